"""Rows that are committed just before a change of the catalog takes effect: what the change was checked for before it
was asked for does not hold for them. Either it takes them in, or it is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"
BROKEN = "SELECT id, 10 / w AS y FROM e"
ABOVE = "SELECT y, COUNT(*) AS n FROM broken GROUP BY y"


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture
def db(cluster: TestCluster) -> vt.Database:
    database = cluster.database(1)
    database.create_table("e", {"id": int, "g": int, "v": int, "w": int}, key="id")
    return database


@pytest.fixture
def other(cluster: TestCluster) -> vt.Database:
    return cluster.database(2)


def write(db: vt.Database, id: int, w: int, g: int = 1, v: int = 1) -> None:
    with db.transaction() as tx:
        tx.upsert("e", {"id": id, "g": g, "v": v, "w": w})


def before_changes(monkeypatch: pytest.MonkeyPatch, db: vt.Database, job: Callable[[], None]) -> None:
    """It is done once, when the next change of the catalog is made and not asked for yet."""
    catalogs = db._engine._catalogs  # type: ignore[attr-defined]
    requests = catalogs._requests
    ask, jobs = requests.ask, [job]

    def late(question: object, *more: object) -> object:
        if jobs and type(question).__name__ == "ChangeCatalog":
            jobs.pop()()
        return ask(question, *more)

    monkeypatch.setattr(requests, "ask", late)


# --- views that cannot be computed ---


def can_change(db: vt.Database) -> None:
    db.create_view("later", SUMS, refresh="manual")
    db.drop_view("later")


def test_a_view_stays_deferred(db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    view = db.create_view("broken", BROKEN, refresh="manual")
    write(db, 1, 2)
    before_changes(monkeypatch, db, lambda: write(other, 2, 0))
    with pytest.raises(vt.StaleRead, match=r"'broken' .*division by zero") as caught:
        view.set_refresh("sync")
    assert "mend" in caught.value.hint
    assert view.status().refresh == "manual"
    can_change(db)
    write(db, 2, 5)
    write(other, 3, 1)
    view.refresh()
    assert view.verify().ok and len(view.rows()) == 3
    view.set_refresh("sync")
    write(other, 4, 1)
    assert view.verify().ok and len(view.rows()) == 4


def test_a_view_on_one_that_cannot_be_computed_is_not_created(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = db.create_view("broken", BROKEN, refresh="manual")
    before_changes(monkeypatch, db, lambda: write(other, 2, 0))
    with pytest.raises(vt.StaleRead, match=r"'broken' .*division by zero"):
        db.create_view("above", ABOVE, refresh="manual")
    assert db.views() == ["broken"]
    can_change(db)
    write(other, 2, 5)
    view.refresh()
    above = db.create_view("above", ABOVE, refresh="manual")
    assert [tuple(row.values()) for row in above.rows()] == [(2, 1)]
    assert view.verify().ok and above.verify().ok


@pytest.mark.parametrize("gone", ["broken", "sums"])
def test_views_of_a_group_that_cannot_be_computed_are_dropped(db: vt.Database, other: vt.Database, gone: str) -> None:
    """What is left of the group goes on where it was."""
    sums = db.create_view("sums", SUMS, refresh="manual", group="both")
    broken = db.create_view("broken", BROKEN, refresh="manual", group="both")
    write(db, 1, 2)
    sums.refresh()
    write(other, 2, 0)
    with pytest.raises(vt.StaleRead, match="division by zero"):
        broken.refresh()
    db.drop_view(gone)
    left = db.view("sums" if gone == "broken" else "broken")
    assert left.verify().ok and len(left.rows()) == 1
    write(other, 2, 5)
    left.refresh()
    assert left.verify().ok and list(left.rows()[0].values()) == ([1, 2, 2] if gone == "broken" else [1, 5])
    can_change(db)


# --- conditions ---


def test_an_index_that_is_unique_over_rows_that_came_meanwhile(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(db, 1, 1)
    for id in (2, 3):
        before_changes(monkeypatch, db, lambda id=id: write(other, id, 1))  # type: ignore[misc]
    with pytest.raises(vt.IntegrityError, match="cannot make index 'ws' unique") as caught:
        db.sql("CREATE UNIQUE INDEX ws ON e (w)")
    assert caught.value.hint
    assert db._table("e").uniques == () and db._table("e").indexes == ()
    write(other, 2, 2)
    write(other, 3, 3)
    db.sql("CREATE UNIQUE INDEX ws ON e (w)")
    with pytest.raises(vt.IntegrityError):
        write(other, 4, 1)


def test_an_index_that_is_unique_over_an_empty_table_that_gets_rows_meanwhile(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_changes(monkeypatch, db, lambda: write(other, 1, 1))
    db.sql("CREATE UNIQUE INDEX ws ON e (w)")
    assert [row.id for row in db.sql("SELECT id FROM e WHERE w = 1")] == [1]
    with pytest.raises(vt.IntegrityError):
        write(other, 2, 1)


def test_duplicates_that_come_while_an_index_is_made_unique(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that a view needs is there already: only the constraint comes."""
    db.create_view("pairs", "SELECT a.id, b.id AS other FROM e a JOIN e b ON a.id = b.w")
    write(db, 1, 1)
    before_changes(monkeypatch, db, lambda: write(other, 2, 1))
    with pytest.raises(vt.IntegrityError, match="cannot make index 'ws' unique"):
        db.sql("CREATE UNIQUE INDEX ws ON e (w)")
    (index,) = db._table("e").indexes
    assert index.for_views and db._table("e").uniques == ()
    write(other, 3, 1)
    assert db.view("pairs").verify().ok


def test_a_column_that_must_not_be_null_in_a_table_that_gets_rows_meanwhile(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_changes(monkeypatch, db, lambda: write(other, 1, 1))
    with pytest.raises(vt.IntegrityError, match="'x' is NOT NULL and table 'e' has rows") as caught:
        db.add_column("e", "x", vt.column(int, nullable=False))
    assert caught.value.hint == "give it a default"
    assert [column.name for column in db._table("e").columns] == ["id", "g", "v", "w"]
    write(other, 2, 1)
    db.add_column("e", "x", vt.column(int, nullable=False, default=3))
    assert {row.x for row in db.sql("SELECT x FROM e")} == {3}
    with other.transaction() as tx:
        tx.delete("e", 1)
        tx.delete("e", 2)
    db.add_column("e", "y", vt.column(int, nullable=False))
    assert db._table("e").columns[-1].name == "y"
