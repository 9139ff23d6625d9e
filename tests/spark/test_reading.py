"""Tables and views read by Spark. What needs no Spark to be tried is in test_source.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import viewtide as vt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300


@pytest.fixture
def db(db_path: Path) -> vt.Database:
    db = vt.connect(db_path)
    db.create_table("t", {"id": int, "g": str, "n": int}, key="id")
    db.create_view("sums", "SELECT g, SUM(n) AS n, COUNT(*) AS c FROM t GROUP BY g")
    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "g": "abc"[number % 3], "n": number} for number in range(ROWS)])
    return db


def read(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("viewtide").option("path", str(path))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def table_rows(db: vt.Database) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in db.sql("SELECT * FROM t"))


def test_an_open_directory_and_the_same_one_closed(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    expected = table_rows(db)
    frame = read(spark, db_path, table="t")
    assert frame.schema.simpleString() == "struct<id:bigint,g:string,n:bigint>"
    assert rows(frame) == expected
    with db.transaction() as tx:
        tx.delete("t", 0)
    db._engine.checkpoint()
    assert rows(frame) == expected, "a frame is one snapshot"
    db.close()
    both = read(spark, db_path, table="t").join(read(spark, db_path, view="sums"), "g")
    assert both.count() == ROWS - 1


def test_filters_of_one_query_do_not_reach_another(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    """Spark up to 4.3 would read the same with both sides of the union, if the reader took filters."""
    expected = table_rows(db)
    frame = read(spark, db_path, table="t")
    assert rows(frame.filter("id < 10").union(frame.filter("id >= 290"))) == [*expected[:10], *expected[290:]]
    assert frame.count() == ROWS
    taken = read(spark, db_path, table="t", pushdown="true").filter("id < 10 AND g = 'a'")
    assert rows(taken) == [row for row in expected[:10] if row[1] == "a"]
    assert "Filter (" not in taken._jdf.queryExecution().executedPlan().toString(), "Spark does not filter again"
    db.close()


def test_a_mistake_is_told(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    with pytest.raises(Exception, match="no table 'nothing'"):
        read(spark, db_path, table="nothing")
    db.close()
