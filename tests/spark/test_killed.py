"""Real kills while Spark works: of the process that has the database open, of Spark's workers, and of the process that
commits what a job wrote. The views are right afterwards, every change counts once, nothing is to be seen of what was
killed, and it can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

import viewtide as vt
from viewtide.changetables.change_table import Change
from viewtide.changetables.evaluators.spark import Parts
from viewtide.coordinator import on_spark

from ..conftest import SOAK
from .killing import DyingPart, KillingSource, Listed, dying_batches
from .victim import (
    BEFORE_PUBLISH,
    JOIN,
    READING,
    ROWS_COUNT,
    STAGES,
    VIEWS,
    WRITE_S,
    WRITING,
    change,
    event,
    prepare,
    shown,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATER = ("later", "above", "other")
#: How long Spark's process may live after the one that started it.
END_S_MAX = 60.0


def check(db: vt.Database) -> int:
    """Every row counts once in every view. Returns how many there are."""
    for name in LATER:
        db.view(name).refresh()
    count = sum(1 for _ in db.sql("SELECT id FROM events"))
    for name in db.views():
        assert db.view(name).verify().ok, name
        assert sum(row["n"] for row in db.view(name).rows()) == count, name
    return count


# -- the process that has the database open


@dataclass
class Killed:
    """What a victim said before its end."""

    acknowledged: int = 0
    jvm: int = 0
    mark: int = 0


def killed(path: Path, stage: str, errors: Path) -> Killed:
    """Let a victim come to a stage, and kill it."""
    said = Killed()
    program = "from tests.spark.victim import main; main()"
    with errors.open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(path), stage],
            stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    try:
        assert child.stdout is not None
        for line in child.stdout:
            word, _, rest = line.strip().partition(" ")
            assert word in ("ack", "ready"), f"{line}\n{errors.read_text()[-5_000:]}"
            if word == "ready":
                said.jvm, said.mark = map(int, rest.split())
                break
            said.acknowledged = int(rest)
        assert said.jvm, errors.read_text()[-5_000:]
    finally:
        child.kill()
        child.communicate()
    await_end(said.jvm)
    return said


def await_end(pid: int) -> None:
    """Spark's process ends when the one that started it is gone. Nobody but the system waits for it, so it is asked."""
    pause, rest_s = threading.Event(), END_S_MAX
    while rest_s > 0:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        pause.wait(0.1)
        rest_s -= 0.1
    raise AssertionError(f"Spark's process {pid} goes on")


#: Every victim starts a session, which takes seconds; and who reads is killed below, too.
ONLY_SOAK = pytest.mark.skipif(not SOAK, reason="VIEWTIDE_SOAK is not set")


@pytest.mark.parametrize("stage", [pytest.param(READING, marks=ONLY_SOAK), WRITING, BEFORE_PUBLISH])
def test_a_killed_process_leaves_nothing_of_its_jobs(spark: SparkSession, tmp_path: Path, stage: str) -> None:
    path = tmp_path / "shop.db"
    prepare(path)
    said = killed(path, stage, tmp_path / "errors.txt")
    with vt.connect(path) as db:
        assert sorted(db.views()) == sorted(VIEWS)
        assert sorted(db._catalog().views) == sorted(VIEWS), "no hidden view is left, either"
        watermark = db.view("later").rows().watermark
        assert watermark is not None and watermark >= said.mark > 0
        for name in VIEWS:
            assert db.view(name).verify().ok, name
        db.create_view("made", JOIN, evaluator="spark")
        count = check(db)
        assert count - said.acknowledged in (0, 1), "one may not have been answered any more"
        assert said.acknowledged > ROWS_COUNT, "nobody wrote meanwhile"
        assert shown(db, "made") == shown(db, "later")


# -- Spark's workers


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Iterator[vt.Database]:
    prepare(tmp_path / "shop.db")
    with vt.connect(tmp_path / "shop.db") as db:
        yield db


@contextmanager
def writing(db: vt.Database) -> Iterator[list[int]]:
    """Somebody writes, and refreshes a view step by step, until the block is left."""
    stop, written = threading.Event(), [ROWS_COUNT]

    def write() -> None:
        while not stop.wait(WRITE_S):
            with db.transaction() as tx:
                tx.insert("events", event(written[0]))
            written[0] += 1
            db.view("other").refresh()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive() and written[0] > ROWS_COUNT


def test_a_view_whose_workers_are_killed_is_made_again(db: vt.Database) -> None:
    stored_at = on_spark.stored_at

    def dying(*args: object) -> on_spark.InParts:
        in_parts = stored_at(*args)  # type: ignore[arg-type]

        def parts(name: str) -> Parts | None:
            found = in_parts(name)
            return found and Parts([DyingPart(part) for part in found.parts], found.rows_count)

        return parts

    with writing(db) as written:
        with (
            mock.patch.object(on_spark, "PARTS_CELLS_MIN", 1_000),
            mock.patch.object(on_spark, "stored_at", dying),
            pytest.raises(vt.OperationalError, match="the Spark job failed"),
        ):
            db.create_view("made", JOIN, evaluator="spark")
        assert sorted(db._catalog().views) == sorted(VIEWS)
        db.create_view("made", JOIN, evaluator="spark")
    assert check(db) == written[0]


def test_a_step_whose_workers_are_killed_is_made_again(db: vt.Database) -> None:
    def dying(self: object, changes: Iterable[Change]) -> Parts:
        rows = list(changes)
        return Parts([DyingPart(Listed(rows))], len(rows))

    before = shown(db, "later")
    change(db)
    with writing(db) as written:
        with mock.patch.object(on_spark._Spool, "_write", dying), pytest.raises(vt.StaleRead, match="Spark job failed"):
            db.view("later").refresh("spark")
        assert shown(db, "later") == before
        db.view("later").refresh("spark")
    assert check(db) == written[0]


# -- what a job writes


def events(spark: SparkSession) -> DataFrame:
    return spark.range(100_000, 100_600, 1, 2).selectExpr("id", "id % 50 AS product", "id % 101 AS cost")


def save(frame: DataFrame, path: Path, **options: str) -> None:
    """The process that commits kills itself at a stage, unless there is none."""
    writer = frame.write.format(KillingSource.name()).mode("append").option("path", str(path))
    writer.option("table", "events").options(**options).save()


@pytest.mark.parametrize("stage", STAGES)
def test_a_load_into_a_directory_that_is_killed(spark: SparkSession, tmp_path: Path, stage: str) -> None:
    """The process that commits has opened the directory, and loads in bulk."""
    path = tmp_path / "shop.db"
    prepare(path)
    spark.dataSource.register(KillingSource)
    frame = events(spark)
    dying = frame.mapInArrow(dying_batches, frame.schema) if stage == READING else frame
    with pytest.raises(Exception, match=r"(?i)python|crash"):
        save(dying, path, **({} if stage == READING else {"dies": stage}))
    with vt.connect(path) as db:
        assert check(db) == ROWS_COUNT
    save(frame, path)
    with vt.connect(path) as db:
        assert check(db) == ROWS_COUNT + frame.count()
        with pytest.raises(Exception, match="exists already"):
            save(frame, path)
        assert check(db) == ROWS_COUNT + frame.count()


def test_a_load_through_an_open_database_that_is_killed(spark: SparkSession, db: vt.Database, tmp_path: Path) -> None:
    """Its rows have come to the process that has it open, which goes on."""
    spark.dataSource.register(KillingSource)
    frame = events(spark)
    with writing(db) as written:
        with pytest.raises(Exception, match=r"(?i)python|crash"):
            save(frame, tmp_path / "shop.db", dies=BEFORE_PUBLISH)
        assert db.sql("SELECT COUNT(*) AS n FROM events WHERE id >= 100000")[0]["n"] == 0
        save(frame, tmp_path / "shop.db")
    assert check(db) == written[0] + frame.count()
