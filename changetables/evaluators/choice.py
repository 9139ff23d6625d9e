"""Which evaluator a batch is given to: the one that costs less per row, as measured on batches of the same plan.

Costs are kept per form of the input, because converting it is part of the cost: rows must be made of columnar input for
the one evaluator, arrays of row-wise input for the other. The first large batch is divided between both; after that,
what each batch takes moves the cost of the evaluator that it was given to. Small batches always go by rows: the Arrow
functions of a plan cost as much as a thousand rows before they have looked at the first.

Time is measured here, so the choice is for whoever is not bound to one trace: bulk loads, and large steps of deferred
views with a target lag, first contents of views where rows are stored so that they can be read by columns
(`ltm/fixed.py`). The change tables of transactions go by rows. So do first contents where rows are read one by one: in
pages of 500 the columns evaluator has 0.1 to 0.6 of the speed (`python -m bench evaluators`), larger pages gain for few
plans, and reading the rows takes most of the time anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias, cast

from ..change_table import Change
from ..errors import InterfaceError
from ..numbers import decimal_add
from ..operators.aggregate import Components
from ..operators.join import Law, LookUp
from ..schema import Table
from ..types import Row

if TYPE_CHECKING:
    from .columns import ArrowTable, Batch, ColumnsTerm

ROWS, COLUMNS = "rows", "columns"
#: The forms of input.
COLUMNAR, ROW_WISE = "columnar", "row-wise"

#: Rows below which a batch goes by rows, whatever was measured.
COLUMNS_ROWS_MIN = 2_048
#: Rows from which on a batch is divided to measure both evaluators; the rows get one part in so many.
MEASURED_ROWS_MIN = 8_192
MEASURED_PART = 8
#: The first rows that each of them gets are not measured: code is compiled then, and libraries are loaded.
WARM_UP_ROWS = 256
#: If rows are cheaper, a batch so many times as large is divided again: what a batch costs at all counts for less then.
MEASURED_GROWTH = 4
#: Weight of the last batch in the cost.
LAST_WEIGHT = 0.2

_Groups: TypeAlias = dict[Row, object]
_Place: TypeAlias = tuple[int, int]
_Answers: TypeAlias = Sequence[Sequence[object]]
_Asking: TypeAlias = Generator[list[LookUp], _Answers, None]
#: Runs a term over rows and adds what it gives to the groups.
RunRows: TypeAlias = Callable[[_Place, Law, Sequence[Change], _Groups], _Asking]


class Costs:
    """Microseconds per row of each evaluator, for one form of input."""

    def __init__(self) -> None:
        self._us: dict[str, float] = {}
        self._measured_rows = 0

    def record(self, evaluator: str, rows_count: int, seconds: float) -> None:
        us = seconds * 1e6 / max(1, rows_count)
        known = self._us.get(evaluator)
        self._us[evaluator] = us if known is None else known + LAST_WEIGHT * (us - known)

    def are_due(self, rows_count: int) -> bool:
        """Whether a batch should be divided to measure both evaluators."""
        if rows_count < MEASURED_ROWS_MIN:
            return False
        return COLUMNS not in self._us or (self.cheaper == ROWS and rows_count >= MEASURED_GROWTH * self._measured_rows)

    def forget(self, rows_count: int) -> None:
        """Both are measured anew, on a batch of so many rows."""
        self._us.clear()
        self._measured_rows = rows_count

    @property
    def cheaper(self) -> str:
        """Rows until columns are known to cost less."""
        rows, columns = self._us.get(ROWS), self._us.get(COLUMNS)
        return COLUMNS if rows is not None and columns is not None and columns < rows else ROWS

    def text(self, form: str) -> str:
        measured = ", ".join(f"{name}: {self._us[name]:.2f} us/row" for name in (ROWS, COLUMNS) if name in self._us)
        return f"{measured or 'not measured yet'} ({form} input)"


class Evaluators:
    """The evaluators of one plan. `term` makes the columns evaluator of a term, which imports pyarrow;
    `component_kinds` are those of its groups, None if it keeps rows."""

    def __init__(
        self,
        run_rows: RunRows,
        term: Callable[[_Place, Law], ColumnsTerm],
        component_kinds: Sequence[str] | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run_rows, self._make_term, self._clock = run_rows, term, clock
        self._component_kinds = component_kinds
        self._terms: dict[tuple[_Place, Law], ColumnsTerm] = {}
        self.costs: Mapping[str, Costs] = {COLUMNAR: Costs(), ROW_WISE: Costs()}
        #: How many batches the columns evaluator gave up, and why it did so the last time.
        self.gave_up_count = 0
        self.gave_up_reason = ""
        #: By what the view was computed as a whole the last time, and why.
        self.whole = ""
        #: The evaluator of the last step for which somebody asked for one.
        self.asked_step = ""

    def text(self) -> str:
        """What was measured, and what is chosen by it."""
        lines = [f"{costs.text(form)}: {costs.cheaper}" for form, costs in self.costs.items()]
        if self.gave_up_count:
            lines.append(f"columns gave up {self.gave_up_count} times, last: {self.gave_up_reason}")
        if self.whole:
            lines.append(f"computed as a whole by {self.whole}")
        if self.asked_step:
            lines.append(f"the last step for which an evaluator was asked for went by {self.asked_step}")
        return "\n".join(lines)

    def for_step(self, rows_count: int) -> tuple[str | None, int]:
        """For a step with so many changed rows: the evaluator, None to measure both, and the rows that it needs at once
        to be worth it."""
        costs = self.costs[ROW_WISE]
        if costs.are_due(rows_count):
            return None, MEASURED_ROWS_MIN
        return (
            (COLUMNS, MEASURED_ROWS_MIN) if costs.cheaper == COLUMNS and rows_count >= MEASURED_ROWS_MIN else (ROWS, 1)
        )

    def run_changes(
        self, evaluator: str | None, place: _Place, law: Law, table: Table, changes: Sequence[Change], groups: _Groups
    ) -> _Asking:
        """Run a term over row-wise changes. `evaluator` None: the cheaper one."""
        if evaluator == ROWS or (evaluator is None and not has_columns()):
            yield from self._run_rows(place, law, changes, groups)
            return
        require_columns()
        from .columns import Batch

        yield from self._run(evaluator, ROW_WISE, place, law, Batch.of_changes(table, changes), groups)

    def run_arrow(
        self, evaluator: str | None, place: _Place, table: Table, columns: ArrowTable, groups: _Groups
    ) -> _Asking:
        """Run a term over new rows in an Arrow table. `evaluator` None: the cheaper one."""
        require_columns()
        from .columns import Batch

        yield from self._run(evaluator, COLUMNAR, place, Law.ONE_SOURCE, Batch.of_arrow(table, columns), groups)

    def _run(self, evaluator: str | None, form: str, place: _Place, law: Law, batch: Batch, groups: _Groups) -> _Asking:
        if evaluator is None:
            yield from self._run_cheaper(form, place, law, batch, groups)
        elif evaluator == ROWS:
            yield from self._by_rows(place, law, batch, groups)
        elif evaluator == COLUMNS:
            yield from self._by_columns(place, law, batch, groups)
        else:
            raise InterfaceError(f"{evaluator!r} is no evaluator", hint=f"use {ROWS!r} or {COLUMNS!r}")

    def _run_cheaper(self, form: str, place: _Place, law: Law, batch: Batch, groups: _Groups) -> _Asking:
        costs = self.costs[form]
        if costs.are_due(batch.rows_count):
            yield from self._run_both(costs, place, law, batch, groups)
        elif batch.rows_count < COLUMNS_ROWS_MIN:
            yield from self._by_rows(place, law, batch, groups)
        else:
            running = self._run(costs.cheaper, form, place, law, batch, groups)
            yield from self._timed(costs, costs.cheaper, batch.rows_count, running)

    def _run_both(self, costs: Costs, place: _Place, law: Law, batch: Batch, groups: _Groups) -> _Asking:
        """Divide a batch between the evaluators and measure them. Each row counts once."""
        costs.forget(batch.rows_count)
        first, second = WARM_UP_ROWS, 2 * WARM_UP_ROWS
        third = second + batch.rows_count // MEASURED_PART
        yield from self._by_columns(place, law, batch.slice(0, first), groups)
        yield from self._by_rows(place, law, batch.slice(first, second), groups)
        by_rows, by_columns = batch.slice(second, third), batch.slice(third, batch.rows_count)
        yield from self._timed(costs, ROWS, by_rows.rows_count, self._by_rows(place, law, by_rows, groups))
        yield from self._timed(costs, COLUMNS, by_columns.rows_count, self._by_columns(place, law, by_columns, groups))

    def _by_rows(self, place: _Place, law: Law, batch: Batch, groups: _Groups) -> _Asking:
        yield from self._run_rows(place, law, batch.changes(self._term(place, law).reads), groups)

    def _by_columns(self, place: _Place, law: Law, batch: Batch, groups: _Groups) -> _Asking:
        from .columns import GaveUp

        try:
            found = yield from self._term(place, law).run(batch)
        except GaveUp as error:
            self.gave_up_count += 1
            self.gave_up_reason = str(error)
            yield from self._by_rows(place, law, batch, groups)
        else:
            self.merge(groups, found)

    def merge(self, groups: _Groups, found: _Groups) -> None:
        """Add what was collected elsewhere, by the columns evaluator or by another process."""
        for key, state in found.items():
            known = groups.setdefault(key, state)
            if known is state:
                continue
            mine, other = cast("Components", known), cast("Components", state)
            if self._component_kinds is None:
                mine.extend(other)
                continue
            for place, kind in enumerate(self._component_kinds):
                mine[place] = (
                    decimal_add(mine[place], other[place]) if kind == "decimal" else mine[place] + other[place]
                )

    def _term(self, place: _Place, law: Law) -> ColumnsTerm:
        term = self._terms.get((place, law))
        if term is None:
            term = self._terms[place, law] = self._make_term(place, law)
        return term

    def _timed(self, costs: Costs, evaluator: str, rows_count: int, asking: _Asking) -> _Asking:
        """What an evaluator takes by itself, without the time in which others look rows up."""
        seconds, answers = 0.0, None
        while True:
            start = self._clock()
            try:
                wanted = next(asking) if answers is None else asking.send(answers)
            except StopIteration:
                costs.record(evaluator, rows_count, seconds + self._clock() - start)
                return
            seconds += self._clock() - start
            answers = yield wanted


def has_columns() -> bool:
    """Whether the columns evaluator can be used: its library is optional."""
    return find_spec("pyarrow") is not None


def require_columns() -> None:
    if not has_columns():
        raise InterfaceError(
            "the columns evaluator needs pyarrow, which is not installed", hint="pip install 'viewtide[batch]'"
        )


def load_columns() -> None:
    """Import what the columns evaluator needs, ahead of its first use."""
    from . import columns

    assert columns, "it was imported"
