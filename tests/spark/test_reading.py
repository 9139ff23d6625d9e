"""Tables and views read by Spark: from a directory that is open or closed, and from a served node."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import viewtide as vt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300
WIDE = {
    "id": int,
    "f": float,
    "exact": "numeric(10,2)",
    "any": Decimal,
    "s": str,
    "b": bytes,
    "ok": bool,
    "d": datetime.date,
    "at": datetime.datetime,
    "utc": "timestamptz",
    "j": dict,
}
FULL = {
    "id": 1,
    "f": 0.1,
    "exact": Decimal("1.25"),
    "any": Decimal("-7.5"),
    "s": "é",
    "b": b"\0\xff",
    "ok": True,
    "d": datetime.date(2026, 1, 31),
    "at": datetime.datetime(2026, 1, 31, 12, 30, 0, 5),
    "utc": datetime.datetime(2026, 1, 31, 12, 30, tzinfo=datetime.UTC),
    "j": {"a": [1, None]},
}


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


def view_rows(db: vt.Database) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in db.view("sums").rows())


def test_an_open_directory_and_the_same_one_closed(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    expected, sums = table_rows(db), view_rows(db)
    frame = read(spark, db_path, table="t")
    assert frame.schema.simpleString() == "struct<id:bigint,g:string,n:bigint>"
    assert rows(frame) == expected
    assert rows(read(spark, db_path, view="sums")) == sums
    with db.transaction() as tx:
        tx.delete("t", 0)
    db._engine.checkpoint()
    assert rows(frame) == expected, "a frame is one snapshot"
    assert rows(read(spark, db_path, table="t")) == expected[1:]
    db.close()
    both = read(spark, db_path, table="t").join(read(spark, db_path, view="sums"), "g")
    assert both.count() == ROWS - 1


def test_every_type_comes_as_it_is(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    db.create_table("wide", WIDE, key="id")
    with db.transaction() as tx:
        tx.insert("wide", [FULL, {"id": 2}])
    frame = read(spark, db_path, table="wide")
    types = dict(frame.dtypes)
    assert (types["exact"], types["any"], types["at"], types["utc"], types["j"]) == (
        "decimal(10,2)", "decimal(38,18)", "timestamp_ntz", "timestamp", "string",
    )  # fmt: skip
    full, empty = sorted(frame.collect())
    # Spark gives timestamps in its own form: as local time.
    local = full["utc"].astimezone(datetime.UTC)
    assert {**full.asDict(), "utc": local} == {**FULL, "j": '{"a":[1,null]}'}
    assert set(empty[1:]) == {None}
    db.close()


def test_columns_are_chosen_by_option_or_schema(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    assert read(spark, db_path, table="t", columns="n, id").columns == ["n", "id"]
    schema = "n decimal(38,0), g string"
    frame = spark.read.format("viewtide").option("path", str(db_path)).option("view", "sums").schema(schema).load()
    assert rows(frame) == sorted((Decimal(total), group) for group, total, _ in view_rows(db))
    with db.transaction() as tx:
        tx.insert("t", [{"id": ROWS + more, "g": "big", "n": 2**63 - 1} for more in range(2)])
    assert dict(rows(frame)) != {}, "the same frame is the same snapshot"
    wide = spark.read.format("viewtide").option("path", str(db_path)).option("view", "sums").schema(schema).load()
    assert (Decimal(2**64 - 2), "big") in rows(wide)
    with pytest.raises(Exception, match="wider type"):
        read(spark, db_path, view="sums").collect()
    with pytest.raises(Exception, match="no column 'x'"):
        read(spark, db_path, table="t", columns="x")
    db.close()


def test_filters_of_one_query_do_not_reach_another(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    expected = table_rows(db)
    frame = read(spark, db_path, table="t")
    assert rows(frame.filter("id < 10")) == expected[:10]
    assert rows(frame) == expected
    assert rows(frame.filter("id < 10").union(frame.filter("id >= 290"))) == [*expected[:10], *expected[290:]]
    db.close()


@pytest.mark.parametrize(
    "condition",
    [
        "id = 5",
        "id > 290 AND g = 'a'",
        "id IN (1, 2, 500)",
        "5 <= id AND id < 8 AND n IS NOT NULL",
        "g > 'b' OR id = 0",
    ],
)
def test_filters_that_are_taken_leave_what_spark_would(
    spark: SparkSession, db: vt.Database, db_path: Path, condition: str
) -> None:
    whole = read(spark, db_path, table="t")
    taken = read(spark, db_path, table="t", pushdown="true").filter(condition)
    assert rows(taken) == rows(whole.filter(condition))
    db.close()


def test_history(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    expected, sums = table_rows(db), view_rows(db)
    begin = db.view("sums").rows().token.commit_ts
    with db.transaction() as tx:
        tx.update("t", 1, {"n": -5})
        tx.delete("t", 2)
        tx.insert("t", {"id": ROWS, "g": "new", "n": 0})
    changed = tx.token.commit_ts
    db.sql("DELETE FROM t WHERE id < 5")
    assert rows(read(spark, db_path, table="t", as_of=begin)) == expected
    assert rows(read(spark, db_path, view="sums", as_of=begin)) == sums
    changes = read(spark, db_path, table="t", since=begin, as_of=changed)
    assert changes.columns == ["id", "g", "n", "_change", "_commit_ts"]
    assert rows(changes) == [
        (1, "b", -5, 1, changed),
        (1, "b", 1, -1, changed),
        (2, "c", 2, -1, changed),
        (ROWS, "new", 0, 1, changed),
    ]
    # What was, and all that changed, is what is.
    both = read(spark, db_path, view="sums", since=begin).selectExpr("g", "n", "c", "_change")
    was = read(spark, db_path, view="sums", as_of=begin).selectExpr("g", "n", "c", "1L AS _change")
    now = both.union(was).groupBy("g", "n", "c").sum("_change").filter("`sum(_change)` <> 0").drop("sum(_change)")
    assert rows(now) == view_rows(db)
    db.close()
    assert rows(read(spark, db_path, table="t", as_of=begin)) == expected


def test_a_served_node(spark: SparkSession, db: vt.Database, db_path: Path) -> None:
    expected = table_rows(db)
    begin = db.view("sums").rows().token.commit_ts
    db.sql("DELETE FROM t WHERE id < 5")
    source = spark.read.format("viewtide").option("url", f"ipc://{db_path}/socket")
    assert rows(source.option("table", "t").load()) == expected[5:]
    assert rows(source.option("as_of", str(begin)).load()) == expected
    db.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nothing"}, "no table 'nothing'"),
        ({"table": "sums"}, "is a view"),
        ({"view": "t"}, "is a table"),
        ({"table": "t", "view": "sums"}, "one of them"),
        ({"table": "t", "as_off": "5"}, "did you mean 'as_of'"),
        ({"table": "t", "as_of": "yesterday"}, "no timestamp"),
    ],
)
def test_mistakes_are_told(
    spark: SparkSession, db: vt.Database, db_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, db_path, **options).collect()
    db.close()
    if "as_of" not in options:
        with pytest.raises(Exception, match=message):
            read(spark, db_path, **options).collect()
