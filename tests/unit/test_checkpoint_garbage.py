"""What checkpoints leave of superseded versions: nothing that nobody reads, and no deleted row comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

import viewtide as vt
from viewtide.ltm import driver

ROWS = 400
GROUPS = 100
#: A checkpoint for every page of rows that a new view is computed from.
CACHE_ROWS = 100


@pytest.fixture(params=["memory:", "disk"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> vt.Database:
    db = vt.connect("memory:" if request.param == "memory:" else tmp_path / "db", cache_rows=CACHE_ROWS)
    db.create_table("t", {"id": int, "grp": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "grp": number % GROUPS} for number in range(ROWS)])
    request.addfinalizer(db.close)
    return db


def noted(db: vt.Database) -> int:
    """How many superseded versions wait in the store."""
    return db._engine.ltm._store.stat()["notes"]


def ids(db: vt.Database) -> set[object]:
    return {row["id"] for row in db.sql("SELECT id FROM t")}


def test_a_view_that_is_computed_leaves_nothing_behind(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viewtide.coordinator.build.PAGE_ROWS", 10)
    # Where a checkpoint was quick enough, the store would give longer pages.
    monkeypatch.setattr(driver.Ltm, "stored_pages", lambda *args: None)
    before = noted(db)
    db.create_view("v", "SELECT grp, COUNT(*) AS n FROM t GROUP BY grp")
    # Every group was written again by every other page, and checkpoints came between.
    assert db.status().checkpoints > 2 * ROWS // GROUPS
    assert noted(db) == before
    assert db.view("v").verify().ok


def test_a_reader_sees_its_versions_and_those_between_are_gone(db: vt.Database) -> None:
    reader = db.transaction()
    assert reader.get("t", 1)["grp"] == 1
    for value in range(100, 110):
        with db.transaction() as tx:
            for number in range(ROWS):
                tx.update("t", number, {"grp": value})
        db._engine.checkpoint()
    # One in the background, meanwhile, may have left something to the next ones.
    for _ in range(10):
        if noted(db) > ROWS:
            db._engine.checkpoint()
    # One version of each row is kept for the reader, and not those of the nine checkpoints between.
    assert 0 < noted(db) <= ROWS
    assert [reader.get("t", number)["grp"] for number in range(ROWS)] == [number % GROUPS for number in range(ROWS)]
    reader.rollback()
    db._engine.checkpoint()
    assert noted(db) == 0
    assert {row["grp"] for row in db.sql("SELECT grp FROM t")} == {109}


def test_a_checkpoint_removes_only_so_many_and_no_deleted_row_comes_back(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = db.transaction()
    assert reader.get("t", 1)["grp"] == 1
    with db.transaction() as tx:
        for number in range(ROWS):
            tx.update("t", number, {"grp": 7})
    db._engine.checkpoint()
    waiting = noted(db)
    assert waiting >= ROWS
    reader.rollback()
    monkeypatch.setattr(driver, "PRUNE_CELLS", 10)
    monkeypatch.setattr(driver, "PRUNE_CELLS_MIN", 10)
    monkeypatch.setattr(driver, "PRUNE_CELLS_PER_ROW", 0)
    deleted: set[object] = set()
    for number in range(0, ROWS, 3):
        with db.transaction() as tx:
            assert tx.delete("t", number)
        deleted.add(number)
        if number % 30 == 0:
            db._engine.checkpoint()
            assert ids(db) == set(range(ROWS)) - deleted
    assert 0 < noted(db) <= waiting + len(deleted)
    while noted(db):
        before = noted(db)
        db._engine.checkpoint()
        assert before - 10 <= noted(db) < before
        assert ids(db) == set(range(ROWS)) - deleted
