"""Tables written by Spark, in batches and as a stream, and streams of changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest

import viewtide as vt
from viewtide import bulk
from viewtide.spark import writing
from viewtide.spark.options import options_from
from viewtide.spark.staging import stage
from viewtide.spark.writing import ViewtideWriter

from .patience import patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUM = "SELECT g, SUM(n) AS n FROM t GROUP BY g"


@pytest.fixture
def db(db_path: Path) -> vt.Database:
    db = vt.connect(db_path)
    for name in ("t", "copied"):
        db.create_table(name, {"id": int, "g": str, "n": int}, key="id")
    db.create_view("sums", SUM)
    db.create_view("later", SUM, refresh="manual")
    return db


def left_behind(path: Path) -> list[Path]:
    return list((path / "spark").rglob("*")) if (path / "spark").exists() else []


def test_a_job_is_one_transaction_or_nothing(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr("id", "concat('g', id % 2) AS g", "id AS n")
    writer = frame.write.format("viewtide").mode("append").option("path", str(db_path)).option("table", "t")
    writer.save()
    assert db.view("sums").rows() == [{"g": "g0", "n": 2450}, {"g": "g1", "n": 2500}]
    db.view("later").refresh()
    assert db.view("later").rows() == db.view("sums").rows()
    with db.snapshot() as snapshot:
        assert len(snapshot.scan("t")) == 100
    with pytest.raises(Exception, match=r"IntegrityError|there is a row"):
        writer.save()
    failing = frame.selectExpr("id + 1000 AS id", "g", "IF(id = 99, raise_error('no more'), n) AS n")
    with pytest.raises(Exception, match="no more"):
        failing.write.format("viewtide").mode("append").option("path", str(db_path)).option("table", "t").save()
    assert db.sql("SELECT COUNT(*) AS n FROM t")[0]["n"] == 100
    assert left_behind(db_path) == []
    db.close()


@pytest.mark.embedded("it looks at the store")
def test_a_large_job_is_loaded_in_bulk_by_who_has_the_directory_open(
    db: vt.Database, db_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver does at the end of a job: no Spark is needed for it."""
    monkeypatch.setattr(writing, "BULK_ROWS", 100)
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", 100)
    options = options_from({"path": str(db_path), "table": "t"})

    def commit() -> None:
        writer = ViewtideWriter(options)
        parts = []
        for part in range(2):
            ids = range(100 * part, 100 * part + 100)
            batch = pyarrow.RecordBatch.from_pylist([{"id": n, "g": f"g{n % 2}", "n": 1} for n in ids])
            parts.append(stage(options, writer._job, str(part), iter([batch])))
        try:
            writer.commit(parts)
        except vt.Error:
            writer.abort(parts)
            raise

    commit()
    with db.snapshot() as snapshot:
        assert 0 < db._node.engine.ltm.staging.loaded_ts <= snapshot.token.commit_ts  # type: ignore[attr-defined]
    assert db.view("sums").rows() == [{"g": "g0", "n": 100}, {"g": "g1", "n": 100}]
    db.view("later").refresh()
    assert db.view("later").rows() == db.view("sums").rows()
    with pytest.raises(vt.IntegrityError, match="exists already"):
        commit()
    assert db.sql("SELECT COUNT(*) AS n FROM t")[0]["n"] == 200
    assert left_behind(db_path) == []
    db.close()


def test_a_stream_of_changes_into_a_table(spark: SparkSession, db: vt.Database, db_path: Path, tmp_path: Path) -> None:
    begin = db.view("sums").rows().token.commit_ts
    source = spark.readStream.format("viewtide").option("path", str(db_path)).option("since", str(begin))
    changes = source.option("table", "t").load()
    wanted = changes.filter("_change > 0").selectExpr("id", "g", "n")

    def run() -> None:
        sink = wanted.writeStream.format("viewtide").option("path", str(db_path)).option("table", "copied")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(250)

    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "g": "x", "n": number} for number in range(10)])
    patiently(run)
    with db.transaction() as tx:
        tx.insert("t", {"id": 10, "g": "y", "n": 10})
        tx.delete("t", 0)
    patiently(run)
    assert sorted(row["id"] for row in db.sql("SELECT id FROM copied")) == list(range(11))
    # As if the driver had died before it noted that the last batch is done: it is repeated.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    patiently(run)
    assert db.sql("SELECT COUNT(*) AS n FROM copied")[0]["n"] == 11
    assert left_behind(db_path) == []
    db.close()


def test_a_stream_without_since_begins_now_and_goes_on_from_its_checkpoint(
    spark: SparkSession, db: vt.Database, db_path: Path, tmp_path: Path
) -> None:
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "g": "before", "n": 1})
    came = spark.readStream.format("viewtide").option("path", str(db_path)).option("table", "t").load()

    def run() -> None:
        sink = came.writeStream.format("viewtide").option("path", str(db_path)).option("table", "copied")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(250)

    patiently(run)
    assert db.sql("SELECT id FROM copied") == []
    for number in (2, 3):
        with db.transaction() as tx:
            tx.insert("t", {"id": number, "g": "after", "n": number})
    patiently(run)
    assert sorted(row["id"] for row in db.sql("SELECT id FROM copied")) == [2, 3]
    db.close()
