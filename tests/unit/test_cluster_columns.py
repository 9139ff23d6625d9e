"""Columns that are added on a cluster: rows that are older have the default, whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import viewtide as vt
from tests.cluster_database import open_cluster


@pytest.fixture
def db() -> Iterator[vt.Database]:
    """Ten rows that are older than their last columns."""
    with open_cluster() as cluster:
        db = cluster.database(1)
        db.create_table("t", {"id": int, "g": str}, key="id", indexes=["g"])
        db.create_view("before", "SELECT g, COUNT(*) AS n FROM t GROUP BY g", refresh="sync")
        db.create_view("late", "SELECT g, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")
        with db.transaction() as tx:
            tx.insert("t", [{"id": number, "g": "ab"[number % 2]} for number in range(10)])
        db.view("late").refresh()
        db.add_column("t", "x", vt.column(int, nullable=False, default=7))
        db.add_column("t", "note", str)
        yield db


def rows(db: vt.Database, name: str) -> list[dict[str, object]]:
    view = db.view(name)
    if view.status().mode != "sync":
        view.refresh()
    assert view.verify().ok, name
    return [dict(row) for row in view.rows()]


def test_reads(db: vt.Database) -> None:
    whole = {"id": 3, "g": "b", "x": 7, "note": None}
    with db.transaction() as tx:
        assert tx.get("t", 3) == whole
        assert tx.get_many("t", [3, 4])[0] == whole
        assert whole in list(tx.find("t", g="b")) and whole in list(tx.scan("t"))
        assert tx.sql("SELECT COUNT(*) AS n FROM t WHERE x = 7 AND note IS NULL")[0].n == 10
        assert tx.update("t", 3, {"note": "now"}) and tx.get("t", 3) == {**whole, "note": "now"}
    with db.snapshot() as snapshot:
        assert snapshot.get("t", 3) == {**whole, "note": "now"}


@pytest.mark.parametrize("refresh", ["sync", "manual"])
def test_views_over_new_columns(db: vt.Database, refresh: str) -> None:
    db.create_view(
        "sums", "SELECT g, SUM(x) AS x, MAX(x) AS m, COUNT(note) AS notes FROM t GROUP BY g", refresh=refresh
    )
    db.create_view("pairs", "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.x = b.id", refresh=refresh)
    assert rows(db, "sums") == [{"g": g, "x": 35, "m": 7, "notes": 0} for g in "ab"]
    assert [row["other"] for row in rows(db, "pairs")] == [7] * 10
    with db.transaction() as tx:
        assert tx.update("t", 2, {"note": "first"}) and tx.delete("t", 4)
        assert tx.update("t", 5, {"x": 1, "g": "a"})
        tx.upsert("t", {"id": 6, "g": "b"})
    assert rows(db, "sums") == [
        {"g": "a", "x": 22, "m": 7, "notes": 1},
        {"g": "b", "x": 35, "m": 7, "notes": 0},
    ]
    assert {row["id"]: row["other"] for row in rows(db, "pairs")}[5] == 1
    assert rows(db, "before") == rows(db, "late") == [{"g": "a", "n": 4}, {"g": "b", "n": 5}]


def test_an_index_on_a_new_column(db: vt.Database) -> None:
    db.create_index("t", "x")
    with db.transaction() as tx:
        assert len(tx.find("t", x=7)) == 10
        tx.update("t", 1, {"x": 8})
        tx.delete("t", 2)
    with db.snapshot() as snapshot:
        assert len(snapshot.find("t", x=7)) == 8 and [row.id for row in snapshot.find("t", x=8)] == [1]


def test_rows_that_change_before_and_after_in_one_step(db: vt.Database) -> None:
    """A deferred view that is made before, and refreshed after the column came: its changes are of both widths."""
    with db.transaction() as tx:
        tx.insert("t", [{"id": 20, "g": "a"}, {"id": 21, "g": "b"}])
    db.add_column("t", "y", vt.column(int, default=2))
    db.create_view("ys", "SELECT g, SUM(y) AS y FROM t GROUP BY g", refresh="manual")
    with db.transaction() as tx:
        tx.update("t", 20, {"y": 5})
        tx.delete("t", 21)
        tx.insert("t", {"id": 22, "g": "b", "y": 1})
    db.add_column("t", "z", vt.column(int, default=3))
    with db.transaction() as tx:
        tx.update("t", 22, {"z": 4})
    assert rows(db, "ys") == [{"g": "a", "y": 15}, {"g": "b", "y": 11}]
    assert rows(db, "late") == [{"g": "a", "n": 6}, {"g": "b", "n": 6}]
    db.view("ys").set_refresh("sync")
    db.view("late").set_refresh("sync")
    db.run(lambda tx: tx.update("t", 0, {"y": 0}))
    assert rows(db, "ys") == [{"g": "a", "y": 13}, {"g": "b", "y": 11}]


def test_a_column_that_is_dropped_and_added_again(db: vt.Database) -> None:
    db.run(lambda tx: tx.update("t", 1, {"note": "old"}))
    db.drop_column("t", "note")
    db.add_column("t", "note", vt.column(str, default="new"))
    with db.snapshot() as snapshot:
        assert {row.note for row in snapshot.scan("t")} == {"new"}
    db.create_view("notes", "SELECT note, COUNT(*) AS n FROM t GROUP BY note")
    assert rows(db, "notes") == [{"note": "new", "n": 10}]


def test_indexes_and_constraints_go_with_a_column(db: vt.Database) -> None:
    db.sql("CREATE UNIQUE INDEX notes ON t (note, x); CREATE INDEX ON t (x)")
    db.create_view("xs", "SELECT id FROM t WHERE x > 0")
    with pytest.raises(vt.ProgrammingError, match="'xs' depends on it"):
        db.drop_column("t", "x")
    db.drop_view("xs")
    db.sql("ALTER TABLE t DROP COLUMN x")
    table = db._table("t")
    assert [index.columns for index in table.indexes] == [(1,)] and table.uniques == ()
    with db.transaction() as tx:
        tx.insert("t", [{"id": 20, "g": "a", "note": "n"}, {"id": 21, "g": "a", "note": "n"}])
        assert len(tx.find("t", g="a")) == 7
    db.add_column("t", "x", vt.column(int, default=4))
    db.create_index("t", "x")
    with db.snapshot() as snapshot:
        assert len(snapshot.find("t", x=4)) == 12
    assert rows(db, "before") == rows(db, "late")
