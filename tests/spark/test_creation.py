"""Views whose contents Spark computes, while writers go on; and jobs that die on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

import viewtide as vt
from viewtide.changetables.evaluators import whole
from viewtide.changetables.evaluators.spark import Parts
from viewtide.changetables.evaluators.spark_tasks import RESULT_ROWS_MAX
from viewtide.changetables.evaluators.whole import COSTS
from viewtide.changetables.plan import Contribution
from viewtide.changetables.types import Row
from viewtide.coordinator import batch, build, on_spark
from viewtide.coordinator.embedded import Engine
from viewtide.ltm.driver import Ltm
from viewtide.ltm.tables import ViewRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_COUNT = 3_000
CATEGORIES_COUNT = 7
#: One view with a join and hidden views, so that everything is computed by Spark: extremes, distinct values, presence.
SQL = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, MAX(e.cost) AS hi, COUNT(DISTINCT e.cost) AS d"
    " FROM events e LEFT JOIN products p ON e.product = p.id GROUP BY p.category"
)
#: One view and nothing else.
JOIN = (
    "SELECT e.cost, p.category, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id"
    " GROUP BY e.cost, p.category"
)


@pytest.fixture
def db(tmp_path: Path, spark: SparkSession) -> Iterator[vt.Database]:
    with vt.connect(tmp_path / "shop.db") as db:
        db.create_table("products", {"id": int, "category": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        with db.transaction() as tx:
            tx.insert("products", [{"id": n, "category": f"c{n % CATEGORIES_COUNT}"} for n in range(50)])
            tx.insert("events", [event(n) for n in range(ROWS_COUNT)])
        yield db


def event(n: int) -> dict[str, object]:
    return {"id": n, "product": None if n % 11 == 0 else n % 60, "cost": None if n % 13 == 0 else n % 101}


class Writer(threading.Thread):
    """Commits one row after the other until it is told to stop."""

    def __init__(self, db: vt.Database) -> None:
        super().__init__(daemon=True)
        self._db, self._stop_it = db, threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._stop_it.is_set():
            with self._db.transaction() as tx:
                tx.insert("events", event(ROWS_COUNT + self.count))
                if self.count % 3 == 0:
                    tx.delete("events", self.count)
            self.count += 1

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join(60)
        assert not self.is_alive()


def check(db: vt.Database, name: str, writer: Writer) -> None:
    assert db.view(name).verify().ok
    assert sum(row["n"] for row in db.view(name).rows()) == sum(1 for _ in db.sql("SELECT id FROM events"))
    assert writer.count > 0, "nobody wrote meanwhile"


@pytest.mark.parametrize("refresh", ["sync", "manual"])
def test_contents_are_computed_by_spark_while_writers_go_on(db: vt.Database, refresh: str) -> None:
    with Writer(db) as writer:
        db.create_view("v", SQL, refresh=refresh, evaluator="spark")
    db.view("v").refresh()
    check(db, "v", writer)
    assert "computed as a whole by spark (asked for)" in db.view("v").status().evaluator
    assert "computed as a whole by spark (asked for)" in db.view("v").explain()


@pytest.mark.parametrize("refresh", ["sync", "manual"])
def test_workers_read_large_tables_from_the_store(db: vt.Database, refresh: str) -> None:
    """What writers change meanwhile, before and after a checkpoint, is not to be seen at that timestamp."""
    stored_at, checkpoint = on_spark.stored_at, db._engine.checkpoint
    divided = []

    def overlapped(ltm: Ltm, at: int, rows_count: int) -> on_spark.InParts:
        in_parts = stored_at(ltm, at, rows_count)

        def watched(name: str) -> Parts | None:
            parts = in_parts(name)
            if parts is not None:
                divided.append((name, len(parts.parts)))
            with db.transaction() as tx:
                tx.update("events", 1, {"cost": 1_000})
                tx.delete("events", 2)
            checkpoint()
            with db.transaction() as tx:
                tx.insert("events", {**event(2), "cost": 2_000})
            return parts

        return watched

    with (
        mock.patch.object(on_spark, "PARTS_CELLS_MIN", 1_000),
        mock.patch.object(on_spark, "stored_at", overlapped),
    ):
        db.create_view("v", JOIN, refresh=refresh, evaluator="spark")
        assert divided and divided[0][0] == "events" and divided[0][1] > 2
        divided.clear()
        assert db.view("v").verify(evaluator="spark").ok
        assert divided and divided[0][0] == "events" and divided[0][1] > 2
    db.view("v").refresh()
    assert db.view("v").verify().ok
    assert db.view("v").get((2_000, "c2"))["n"] == 1


def while_reading(name: str) -> Iterator[tuple[bytes, Row]]:
    raise Killed


class Killed(Exception):
    """Stands for whatever ends a job."""


@pytest.mark.parametrize(
    ("stage", "refresh"), [("reading", "sync"), ("writing", "sync"), ("before publish", "sync"), ("writing", "manual")]
)
def test_a_job_that_dies_leaves_nothing_and_is_repeated(db: vt.Database, stage: str, refresh: str) -> None:
    """An incremental refresh of another view goes on beside it."""
    db.create_view("other", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", refresh="20ms")
    with Writer(db) as writer:
        with dying(db, stage), pytest.raises(Killed):
            db.create_view("v", JOIN, refresh=refresh, evaluator="spark")
        assert db.views() == ["other"]
        assert list(db._catalog().views) == ["other"]
        db.create_view("v", JOIN, refresh=refresh, evaluator="spark")
    for name in ("v", "other"):
        db.view(name).refresh()
        assert db.view(name).verify().ok
    assert len(db.view("v").rows()) > RESULT_ROWS_MAX, "the result has several parts"
    assert writer.count > 0, "nobody wrote meanwhile"


@contextmanager
def dying(db: vt.Database, stage: str) -> Iterator[None]:
    """Something ends the job at a stage: while rows are read for it, when a part of its result is in the view, or when
    all of it is."""
    contribute, contributed = build.contribute, iter([True])

    def failing(engine: Engine, view: ViewRows, contributions: list[Contribution], ts: int) -> None:
        if contributions and not next(contributed, False):
            raise Killed
        contribute(engine, view, contributions, ts)

    with ExitStack() as patches:
        if stage == "reading":
            patches.enter_context(mock.patch.object(on_spark, "shown_at", lambda *_: while_reading))
        elif stage == "writing":
            for module in (build, batch):
                patches.enter_context(mock.patch.object(module, "contribute", failing))
        else:
            # The first one is for Spark's workers, the second for what is in the view.
            checkpoint, made = db._engine.checkpoint, iter([True])

            def stopped() -> None:
                if not next(made, False):
                    raise Killed
                checkpoint()

            patches.enter_context(mock.patch.object(db._engine, "checkpoint", stopped))
        yield


def test_a_cancelled_job_is_an_error_and_leaves_nothing(db: vt.Database, spark: SparkSession) -> None:
    contents = on_spark.contents

    def cancelled(*args: object) -> Iterator[object]:
        spark.sparkContext.cancelAllJobs()
        stop = threading.Event()

        def cancel() -> None:
            while not stop.wait(0.05):
                spark.sparkContext.cancelAllJobs()

        thread = threading.Thread(target=cancel, daemon=True)
        thread.start()
        try:
            yield from contents(*args)  # type: ignore[arg-type]
        finally:
            stop.set()
            thread.join(30)

    with mock.patch.object(on_spark, "contents", cancelled), pytest.raises(vt.OperationalError, match="Spark"):
        db.create_view("v", JOIN, evaluator="spark")
    assert db.views() == []


def test_an_error_in_the_data_is_told_as_by_rows(db: vt.Database) -> None:
    told = []
    for evaluator in ("rows", "spark"):
        with pytest.raises(vt.DataError) as error:
            db.create_view("bad", "SELECT id, 6 / (id - 7) AS q FROM events", evaluator=evaluator)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "(7,)" in told[0]
    assert db.views() == []


def test_small_work_goes_by_rows_even_if_there_is_a_session(db: vt.Database) -> None:
    db._engine.checkpoint()
    with mock.patch.dict(COSTS.us, {"rows": 1_000.0, "spark": 0.001}):
        db.create_view("v", JOIN)
        assert "computed as a whole" not in db.view("v").status().evaluator
        with (
            mock.patch.object(whole, "SPARK_ROWS_MIN", 1_000),
            mock.patch.object(build, "SPARK_ROWS_MIN", 1_000),
            mock.patch.object(COSTS, "job_s", 0.0),
        ):
            db.create_view("w", JOIN)
        assert f"computed as a whole by spark ({ROWS_COUNT:,} rows: about" in db.view("w").status().evaluator
    with mock.patch.object(build, "SPARK_ROWS_MIN", 1_000):
        db.create_view("x", JOIN)
    assert db.view("v").rows() == db.view("w").rows() == db.view("x").rows()
    assert "computed as a whole by rows (" in db.view("x").status().evaluator
