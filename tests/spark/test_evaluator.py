"""One body for every operator: rows, Spark and `recompute` agree on random data.

The histories are those of `test_operators.py`, with NULLs, duplicates, inserts, updates and deletes. What the row
evaluator computed in them, the first contents of views and the change tables of commits, also of hidden views, Spark
computes again: all of it in one job, because a job costs some tenths of a second whatever it does. That the columns
evaluator agrees, too, is `test_evaluators.py`.
"""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.evaluating import arrow_table
from tests.properties import test_operators
from tests.properties.test_operators import QUERIES, TABLES, bound, load, start, transaction, write
from tests.spark.recording import Recorded, RecordingMemory
from viewtide.changetables.errors import DataError
from viewtide.changetables.evaluators.spark import Evaluation, Framed, Listed, evaluate, spool
from viewtide.changetables.operators.join import Law
from viewtide.changetables.recompute import same_bag
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import INT, NAN, STR, Row, Type, Value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("VIEWTIDE_SOAK"))
#: Spark cancels jobs behind the back of whoever asks for it.
CANCELLED_S_MAX = 60.0


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """For each operator: the first contents over rows, and some commits."""
    recorded = Recorded()
    for name, sql, below in QUERIES:
        rng = Random(name)
        memory = RecordingMemory(TABLES, recorded)
        memory.records_commits = False
        for _ in range(3):
            load(rng, memory, 0.2)
            memory.commit()
        for view, text in {**below, "v": sql}.items():
            memory.create_view(view, bound(memory, text))
        memory.records_commits = True
        for _ in range(6 if SOAK else 1):
            write(rng, memory, 0.2)
            memory.commit()
        expected = memory.recomputed(memory.view("v").view.relation)
        assert same_bag(expected, memory.outputs("v")) == [], name
    return recorded


def test_spark_gives_what_rows_give_with_every_look_up_shuffled(spark: SparkSession, recorded: Recorded) -> None:
    assert recorded.check(spark, small_rows_max=-1) > 1_000


def test_spark_gives_what_rows_give_with_small_tables(spark: SparkSession, recorded: Recorded) -> None:
    assert recorded.some(3).check(spark, small_rows_max=100) > 300


def test_spark_agrees_on_any_view(spark: SparkSession) -> None:
    """Random tables with all types, random relations, random transactions."""
    recorded = Recorded()

    @settings(
        deadline=None,
        max_examples=400 if SOAK else 40,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def histories(data: st.DataObject) -> None:
        with mock.patch.object(test_operators, "Memory", lambda tables: RecordingMemory(tables, recorded)):
            database, memory, _ = start(data)
            for _ in range(data.draw(st.integers(1, 2))):
                transaction(data, database, memory)
                memory.commit()

    histories()
    assert recorded.check(spark, small_rows_max=1) > 100


def test_an_error_is_that_of_the_rows(spark: SparkSession) -> None:
    memory = RecordingMemory(TABLES)
    plan = memory.create_view("v", bound(memory, "SELECT id, 6 / x AS q FROM a"))
    rows: list[Row] = [(1, 2, None, None), (7, 0, None, None)]
    with pytest.raises(DataError) as expected:
        memory.run(plan.contribute_from(0, 0, rows))
    evaluation = Evaluation(plan, [((0, 0), Law.ONE_SOURCE, Listed([(row, 1) for row in rows]))], {})
    with pytest.raises(DataError) as found:
        list(evaluate(spark, [evaluation]))
    assert (str(found.value), found.value.hint) == (str(expected.value), expected.value.hint)
    assert "row (7,)" in str(found.value)


TYPED = Table(
    9,
    "typed",
    (
        Column("id", INT, False),
        Column("price", Type("decimal", 12, 2)),
        Column("day", Type("date")),
        Column("at", Type("timestamp")),
        Column("weight", Type("float")),
        Column("label", STR),
    ),
    (0,),
)

TYPED_IN_SPARK = "id bigint, price decimal(12,2), day date, at timestamp_ntz, weight double, label string"


def typed_rows(count: int) -> list[Row]:
    rng = Random(8)
    rows: list[Row] = []
    for number in range(count):
        day = datetime.date(2024, 1, 1) + datetime.timedelta(days=rng.randrange(5))
        values: list[Value] = [
            Decimal(rng.randrange(-(10**11), 10**11)).scaleb(-2),
            day,
            datetime.datetime(2024, 1, 1, rng.randrange(24)),
            rng.choice((0.1, -0.0, 1e300, -1e300, NAN, 2.5)),
            rng.choice(("a", "ä", "")),
        ]
        rows.append((number, *(None if rng.random() < 0.1 else value for value in values)))
    return rows


@pytest.mark.parametrize("small_rows_max", [-1, 10_000])
def test_data_frames_give_what_rows_give(spark: SparkSession, small_rows_max: int) -> None:
    """Columns of every type, by the columns evaluator in the workers, and through a shuffle. Sums beyond 64 bits and of
    floats whose order must not matter."""
    rows = typed_rows(500)
    memory = RecordingMemory([TYPED])
    memory.put("typed", *rows)
    memory.commit()
    memory.recorded.evaluations.clear()
    memory.recorded.expected.clear()
    for number, sql in enumerate(
        (
            "SELECT day, SUM(price) AS s, AVG(weight) AS w, COUNT(label) AS n FROM typed GROUP BY day",
            "SELECT label, SUM(id * 9000000000000000) AS s, SUM(weight) AS w FROM typed WHERE id > 2 GROUP BY label",
            "SELECT l.id, r.at, l.price FROM typed l JOIN typed r ON r.id = l.id + 1 WHERE l.day = r.day",
        )
    ):
        memory.create_view(f"v{number}", bound(memory, sql))
    names = [column.name for column in TYPED.columns]
    columns = arrow_table(TYPED, rows)
    assert columns is not None
    frame = spark.createDataFrame(columns.rename_columns(names), TYPED_IN_SPARK)
    given = Framed(frame, len(rows))
    recorded = memory.recorded
    for number, each in enumerate(recorded.evaluations):
        terms = [(place, law, given) for place, law, _ in each.terms]
        looked_up = each.rows if small_rows_max > 0 else dict.fromkeys(each.rows, given)
        recorded.evaluations[number] = replace(each, terms=terms, rows=looked_up)
    assert recorded.check(spark, small_rows_max) > 50


def test_spooled_rows_give_what_listed_rows_give(spark: SparkSession, tmp_path: Path) -> None:
    rows = typed_rows(12_000)
    memory = RecordingMemory([TYPED])
    plan = memory.create_view(
        "v", bound(memory, "SELECT label, SUM(weight) AS w, SUM(price) AS p FROM typed GROUP BY label")
    )
    spooled = spool(tmp_path, ((row, 1) for row in rows))
    assert spooled.rows_count == len(rows)
    found = [
        item
        for _, some in evaluate(spark, [Evaluation(plan, [((0, 0), Law.ONE_SOURCE, spooled)], {})])
        for item in some
    ]
    expected = memory.run(plan.contribute_from(0, 0, rows))
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_a_result_that_nobody_wants_cancels_its_job(spark: SparkSession) -> None:
    memory = RecordingMemory(TABLES)
    plan = memory.create_view("v", bound(memory, "SELECT id, x FROM a"))
    rows: list[tuple[Row, int]] = [((number, 1, None, None), 1) for number in range(5_000)]
    found = evaluate(spark, [Evaluation(plan, [((0, 0), Law.ONE_SOURCE, Listed(rows))], {})])
    assert next(found)[1]
    found.close()  # type: ignore[attr-defined]  # it is a generator
    give_up = time.monotonic() + CANCELLED_S_MAX
    while jobs := spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < give_up, f"{jobs} go on"
        time.sleep(0.01)
