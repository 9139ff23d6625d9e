"""Steps of deferred views that Spark computes, and comparisons that it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

import viewtide as vt
from tests.properties.deferred_histories import Run, Seen, plain_case
from tests.unit.test_verify import DAMAGES, _hidden
from viewtide import freshness
from viewtide.changetables.errors import OperationalError
from viewtide.coordinator import on_spark
from viewtide.coordinator.refresher import Refresher
from viewtide.coordinator.vms.groups import Group
from viewtide.coordinator.vms.scheduler import Cost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Jobs of Spark for steps of the histories, and histories until it has done that many.
STEPS_MAX = 4
HISTORIES_MAX = 12
#: Of one level: a join, an anti-join, sums. Their hidden views are below.
VIEWS = {
    "joined": "SELECT e.id, p.name FROM events e LEFT JOIN products p ON e.product = p.id",
    "missing": "SELECT id FROM products WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.product = products.id)",
    "sums": "SELECT product, SUM(cost) AS s, MAX(cost) AS hi FROM events GROUP BY product",
    "first": "SELECT id, cost FROM events ORDER BY cost DESC, id LIMIT 5",
}


@pytest.fixture
def db(tmp_path: Path, spark: SparkSession) -> Iterator[vt.Database]:
    with vt.connect(tmp_path / "shop.db") as db:
        db.create_table("products", {"id": int, "name": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        for name, sql in VIEWS.items():
            db.create_view(name, sql, refresh="manual", group="all")
        yield db


def write(db: vt.Database, rng: Random) -> None:
    with db.transaction() as tx:
        for _ in range(40):
            number = rng.randrange(100)
            if rng.random() < 0.3 and tx.get("events", number) is not None:
                tx.delete("events", number)
            else:
                product = None if rng.random() < 0.1 else rng.randrange(20)
                tx.upsert("events", {"id": number, "product": product, "cost": rng.randrange(50)})
            if rng.random() < 0.3:
                tx.upsert("products", {"id": rng.randrange(20), "name": rng.choice("ab")})


def test_steps_by_rows_columns_and_spark_follow_each_other(db: vt.Database) -> None:
    rng = Random(6)
    for evaluator in ("rows", "spark", "columns", None):
        write(db, rng)
        db.view("sums").refresh(evaluator)
        for name in VIEWS:
            assert db.view(name).verify().ok, (evaluator, name)
    assert "went by spark" in db.view("joined").status().evaluator
    assert "went by spark" in db.view("joined").explain()


def test_a_step_that_dies_on_spark_is_taken_back_and_repeated(db: vt.Database) -> None:
    rng = Random(7)
    write(db, rng)
    db.view("sums").refresh()
    before = {name: db.view(name).rows() for name in VIEWS}
    write(db, rng)
    change_tables, calls = on_spark.change_tables, iter([False, True])

    def dying(*args: object) -> object:
        """The hidden views of the first level are refreshed, the views above them are not."""
        if next(calls):
            raise OperationalError("the Spark job failed: killed")
        return change_tables(*args)  # type: ignore[arg-type]

    with mock.patch.object(on_spark, "change_tables", dying), pytest.raises(vt.StaleRead, match="killed"):
        db.view("sums").refresh("spark")
    assert {name: db.view(name).rows() for name in VIEWS} == before
    db.view("sums").refresh("spark")
    for name in VIEWS:
        assert db.view(name).verify().ok, name


def test_writers_and_other_views_go_on_while_spark_works(db: vt.Database) -> None:
    db.create_view("other", "SELECT cost, COUNT(*) AS n FROM events GROUP BY cost", refresh="manual")
    rng = Random(8)
    write(db, rng)
    change_tables = on_spark.change_tables
    meanwhile: list[int] = []

    def overlapped(*args: object) -> object:
        found = change_tables(*args)  # type: ignore[arg-type]
        # The step waits for this: nobody holds a lock against it.
        writer = threading.Thread(target=write, args=(db, rng), daemon=True)
        writer.start()
        writer.join(60)
        meanwhile.append(writer.is_alive())
        return found

    with mock.patch.object(on_spark, "change_tables", overlapped):
        db.view("sums").refresh("spark")
    assert meanwhile and not any(meanwhile)
    db.view("other").refresh()
    db.view("sums").refresh()
    for name in (*VIEWS, "other"):
        assert db.view(name).verify().ok, name


def test_spark_finds_what_verify_finds(db: vt.Database) -> None:
    """Rows that are missing, rows that should not be there, and wrong ones; in the view and in what it is made from."""
    write(db, Random(9))
    db.create_view("v", "SELECT product, COUNT(*) AS n, MAX(cost) AS hi FROM events GROUP BY product")
    assert db.view("v").verify(evaluator="spark").ok
    for name in ("v", *_hidden(db, "v")):
        for damage in DAMAGES.values():
            damage(db, name)
    expected, found = db.view("v").verify(), db.view("v").verify(evaluator="spark")
    assert found.rows_differing == expected.rows_differing >= 2 * len(DAMAGES)
    assert sorted(map(str, found.differences)) == sorted(map(str, expected.differences))


def test_an_evaluator_that_there_is_not_is_refused(db: vt.Database) -> None:
    for ask in (db.view("sums").refresh, lambda name: db.view("sums").verify(evaluator=name)):
        with pytest.raises(vt.InterfaceError, match="'gpu' is no evaluator"):
            ask("gpu")


def test_histories_with_spark_at_random_steps(spark: SparkSession) -> None:
    """The copies of a view in every mode are equal at every watermark, whoever computes a step."""
    dice, step, change_tables = Random(10), Refresher._step, on_spark.change_tables
    jobs = 0

    def forced(self: Refresher, group: Group, measures: bool = False, evaluator: str | None = None) -> Cost:
        # Until Spark has had something to do so often: a step may have nothing for it.
        if self._turns._pauses and jobs < STEPS_MAX and dice.random() < 0.2:
            evaluator = "spark"
        return step(self, group, measures, evaluator)

    def counted(*args: object) -> object:
        nonlocal jobs
        jobs += 1
        return change_tables(*args)  # type: ignore[arg-type]

    seen = Seen()
    # Readers wait for steps, and Spark takes its time.
    with (
        mock.patch.object(Refresher, "_step", forced),
        mock.patch.object(on_spark, "change_tables", counted),
        mock.patch.object(freshness, "READ_MS_MAX", 600_000.0),
    ):
        for seed in range(HISTORIES_MAX):
            if seed < 3 or jobs < STEPS_MAX:
                Run(plain_case(seed, 5 * seed), seed, seen, None)()
    assert jobs >= STEPS_MAX, "Spark was asked for, and did it"
    assert seen.compared > 50
