"""One body for every operator and every evaluator: rows, columns and `recompute` agree on random data.

The histories are those of `test_operators.py`, with NULLs, duplicates, inserts, updates and deletes; every propagation
and every first computation in them, also those of hidden views, runs on both evaluators.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests.evaluating import both_evaluators
from tests.propagation import Memory
from tests.properties.test_operators import QUERIES, TABLES, run_history, start, transaction
from viewtide.changetables.errors import DataError
from viewtide.changetables.recompute import same_bag


@pytest.mark.parametrize(("name", "sql", "below"), QUERIES, ids=[each[0] for each in QUERIES])
def test_both_evaluators_keep_the_view(name: str, sql: str, below: dict[str, str]) -> None:
    with both_evaluators() as seen:
        run_history(Random(name), Memory(TABLES), sql, {**below, "v": sql})
    assert (seen.contributions and seen.batches) or name == "values"
    assert seen.gave_up == [], "the columns evaluator left a batch to the rows where nothing fails"


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_both_evaluators_agree_on_any_view(data: st.DataObject) -> None:
    with both_evaluators() as seen:
        database, memory, relation = start(data)
        for _ in range(data.draw(st.integers(1, 3), label="transactions")):
            transaction(data, database, memory)
            memory.commit()
            assert same_bag(memory.recomputed(relation), memory.outputs("v")) == []
    event(f"batches given up: {bool(seen.gave_up)}, Arrow input: {bool(seen.arrow_batches)}")


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_both_evaluators_fail_alike(data: st.DataObject) -> None:
    """Arithmetic may fail here: the same row is blamed with the same words, or neither fails."""
    with both_evaluators() as seen:
        try:
            database, memory, _ = start(data, risky=True)
        except DataError:
            event("the first contents fail")
            assert seen.errors
            assume(False)
        for _ in range(data.draw(st.integers(1, 3), label="transactions")):
            transaction(data, database, memory)
            try:
                memory.commit()
            except DataError:
                memory.abort()
    event(f"failed: {bool(seen.errors)}")
