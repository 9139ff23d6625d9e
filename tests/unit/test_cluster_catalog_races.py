"""Rows that are committed just before a change of the catalog takes effect: what the change was checked for before it
was asked for does not hold for them. Either it takes them in, or it is undone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from viewtide.changetables.schema import Index
from viewtide.coordinator.cluster import administration, catalog_follower
from viewtide.coordinator.cluster.catalog_builder import CatalogBuilder, Pause

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"
BROKEN = "SELECT id, 10 / w AS y FROM e"
JOINED = "SELECT s.id, f.n FROM second s JOIN first f ON f.g = s.id"
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


def before_changes(monkeypatch: pytest.MonkeyPatch, db: vt.Database, *given: Callable[[], None]) -> None:
    """Each is done once, one when the next change of the catalog is made and not asked for yet, one at the next."""
    catalogs = db._engine._catalogs  # type: ignore[attr-defined]
    requests = catalogs._requests
    ask, jobs = requests.ask, [*given]

    def late(question: object, *more: object) -> object:
        if jobs and type(question).__name__ == "ChangeCatalog":
            jobs.pop(0)()
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


def test_a_unique_index_that_is_interrupted_is_no_plain_one(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others change tables between its two changes: it goes on. If that fails, there is no index of its name."""
    write(db, 1, 1)
    make = "CREATE UNIQUE INDEX IF NOT EXISTS ws ON e (w)"
    before_changes(monkeypatch, db, nothing, lambda: other.create_table("f", {"id": int}, key="id"))
    db.sql(make)
    assert [(unique.name, unique.columns) for unique in db._table("e").uniques] == [("ws", (3,))]
    with pytest.raises(vt.IntegrityError):
        write(other, 2, 1)
    db.sql("DROP INDEX ws")

    def fail() -> None:
        raise vt.Unavailable("nobody is there")

    before_changes(monkeypatch, db, nothing, fail)
    with pytest.raises(vt.Unavailable):
        db.sql(make)
    monkeypatch.undo()
    assert db._table("e").uniques == () and all(index.for_views for index in db._table("e").indexes)
    other.sql(make)
    with pytest.raises(vt.IntegrityError):
        write(other, 2, 1)


def nothing() -> None: ...


@pytest.mark.parametrize("columns", [{"id": int, "a": str, "b": str, "c": str}, {"id": int, "a": int}])
@pytest.mark.parametrize("changes_before", [0, 1])
def test_a_unique_index_of_a_table_that_is_another_one_by_now(
    db: vt.Database,
    other: vt.Database,
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, type],
    changes_before: int,
) -> None:
    write(db, 1, 1)

    def make_again() -> None:
        other.drop_table("e")
        other.create_table("e", columns, key="id")

    before_changes(monkeypatch, db, *[nothing] * changes_before, make_again)
    with pytest.raises(vt.ProgrammingError, match="no column 'w'"):
        db.sql("CREATE UNIQUE INDEX ws ON e (w)")
    assert db._table("e").uniques == () and db._table("e").indexes == ()


def test_a_unique_index_whose_column_or_name_is_taken_meanwhile(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(db, 1, 1)
    other.create_table("f", {"id": int, "x": int}, key="id")
    before_changes(monkeypatch, db, nothing, lambda: other.sql("CREATE INDEX ws ON f (x)"))
    with pytest.raises(vt.ProgrammingError, match="index 'ws' already"):
        db.sql("CREATE UNIQUE INDEX ws ON e (w)")
    before_changes(monkeypatch, db, lambda: other.drop_column("e", "w"))
    with pytest.raises(vt.ProgrammingError, match="no column 'w'"):
        db.sql("CREATE UNIQUE INDEX w2 ON e (w)")
    assert db._table("e").uniques == ()


def test_an_index_on_columns_that_have_another_one_meanwhile(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is for a view becomes the user's own; of two of the users' own, the second is refused."""
    db.create_table("p", {"id": int, "q": int}, key="id")
    joined = "SELECT e.id, p.q FROM p JOIN e ON e.w = p.id"
    before_changes(monkeypatch, db, lambda: (other.create_view("j", joined), None)[1])
    db.sql("CREATE INDEX ws ON e (w)")
    other.drop_view("j")
    db._engine.ltm.newest_tables()
    assert [(index.name, index.for_views) for index in db._table("e").indexes] == [("ws", False)]
    before_changes(monkeypatch, db, lambda: (other.sql("CREATE INDEX theirs ON e (v)"), None)[1])
    with pytest.raises(vt.ProgrammingError, match="has an index on v already"):
        db.sql("CREATE INDEX vs ON e (v)")


def test_a_catalog_that_cannot_be_compiled_is_refused(db: vt.Database) -> None:
    """Whoever leads goes on."""
    broken = Index(50, (7,), name="no such column")
    with pytest.raises(vt.OperationalError, match="cannot be used"), db._changing:
        db._engine.change_catalog(lambda catalog: catalog.with_index("e", broken))
    can_change(db)


def test_what_was_made_for_a_view_that_stays_deferred_goes(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hidden views that it would have had."""
    view = db.create_view("lows", "SELECT g, 10 / MIN(w) AS most FROM e GROUP BY g", refresh="manual")
    write(db, 1, 2)
    before = set(db._engine.ltm.newest_tables().views)
    before_changes(monkeypatch, db, lambda: None, lambda: write(other, 2, 0))
    with pytest.raises(vt.StaleRead, match="division by zero"):
        view.set_refresh("sync")
    assert set(db._engine.ltm.newest_tables().views) == before
    write(other, 2, 5)
    view.set_refresh("sync")
    assert view.verify().ok and list(view.rows()[0].values()) == [1, 5]


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


# --- reads while a change is under way ---


@contextmanager
def unfinished(monkeypatch: pytest.MonkeyPatch, part: str) -> Iterator[threading.Event]:
    """Whoever builds does not begin with a part of his work until the event is set."""
    go_on = threading.Event()
    do = getattr(CatalogBuilder, part)

    def late(self: CatalogBuilder, *given: object) -> Generator[object, object, None]:
        while not go_on.is_set():
            yield Pause(5)
        yield from do(self, *given)

    monkeypatch.setattr(CatalogBuilder, part, late)
    try:
        yield go_on
    finally:
        go_on.set()


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not come to that")


def version_of(db: vt.Database) -> int:
    return db._engine.ltm.newest_tables().catalog.version


def test_what_is_left_of_a_group_is_read_where_it_was_until_it_moves_alone(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = db.create_view("first", SUMS, refresh="manual", group="both")
    second = other.create_view("second", SUMS.replace("SUM(v)", "SUM(w)"), refresh="manual", group="both")
    write(db, 1, 5)
    first.refresh()
    version = version_of(other)
    with ThreadPoolExecutor() as pool, unfinished(monkeypatch, "_watermarks") as go_on:
        dropping = pool.submit(db.drop_view, "first")
        until(lambda: version_of(other) > version)
        assert [tuple(row.values()) for row in second.rows()] == [(1, 5, 1)]
        assert second.status().watermark > 1
        go_on.set()
        dropping.result()
    write(db, 2, 6)
    second.refresh()
    assert [tuple(row.values()) for row in second.rows()] == [(1, 11, 2)] and second.verify().ok


def test_a_change_that_is_not_finished_is_not_waited_for_without_end(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_view("first", SUMS, refresh="manual", group="both")
    db.create_view("second", SUMS, refresh="manual", group="both")
    with unfinished(monkeypatch, "_watermarks"), monkeypatch.context() as patched:
        patched.setattr(catalog_follower, "FINISH_MS_MAX", 50)
        with pytest.raises(vt.Unavailable, match=r"steps of deferred views .* do not end") as caught:
            db.drop_view("first")
        assert "view managers" in caught.value.hint
        with pytest.raises(vt.Unavailable, match="another change of tables and views is not finished"):
            other.drop_view("second")
    other.drop_view("second")
    assert db.views() == []


def test_a_view_that_becomes_deferred_is_read_when_it_has_a_watermark(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = db.create_view("sums", SUMS)
    write(db, 1, 5)
    seen = other.view("sums")
    version = version_of(other)
    with ThreadPoolExecutor() as pool, unfinished(monkeypatch, "_watermarks") as go_on:
        switching = pool.submit(view.set_refresh, "manual")
        until(lambda: version_of(other) > version)
        with (
            other.snapshot() as snapshot,
            pytest.raises(vt.TransactionConflict, match="becoming deferred") as caught,
        ):
            snapshot.view("sums").rows()
        assert caught.value.hint
        reading = pool.submit(seen.rows)
        assert not wait([reading], 0.2).done, "it has no watermark yet"
        go_on.set()
        assert [tuple(row.values()) for row in reading.result()] == [(1, 1, 1)]
        switching.result()


def test_groups_that_are_joined_are_read_each_where_it_is(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until both have got to one watermark: one that is ahead of the other is not where that one is read."""
    first = db.create_view("first", SUMS, refresh="manual")
    second = other.create_view("second", BROKEN, refresh="manual")
    other.create_index("e", ["g"])  # so that there is only one change
    write(db, 1, 5)
    version, at = version_of(other), []

    def break_second() -> None:
        write(other, 2, 0)
        at.append(second.status().watermark)

    def join_them() -> None:
        with pytest.raises(vt.StaleRead, match=r"'second' .*division by zero"):
            db.create_view("joined", JOINED, refresh="manual")

    before_changes(monkeypatch, db, break_second)
    with ThreadPoolExecutor() as pool, unfinished(monkeypatch, "_final_steps") as go_on:
        joining = pool.submit(join_them)
        until(lambda: version_of(other) > version and first.status().watermark > at[0])
        assert second.status().watermark == at[0]
        assert [tuple(row.values()) for row in second.rows()] == [(1, 2)]
        go_on.set()
        joining.result()
    assert second.status().watermark == at[0]


@pytest.mark.parametrize("names", [["first", "second"], ["second", "first"]])
def test_a_snapshot_of_views_whose_group_is_being_divided(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    first = db.create_view("first", SUMS, refresh="manual")
    db.create_view("second", SUMS.replace("SUM(v)", "SUM(w)"), refresh="manual")
    db.create_view("both", "SELECT f.g, f.n, s.n AS m FROM first f JOIN second s ON f.g = s.g", refresh="manual")
    write(db, 1, 5)
    first.refresh()
    write(db, 2, 7)
    version = version_of(other)

    def read() -> list[int]:
        with other.snapshot(views=names) as snapshot:
            return [snapshot.view(name).rows()[0].n for name in names]

    with ThreadPoolExecutor() as pool, unfinished(monkeypatch, "_watermarks") as go_on:
        dropping = pool.submit(db.drop_view, "both")
        until(lambda: version_of(other) > version)
        reading = pool.submit(read)
        assert not wait([reading], 0.2).done, "nobody refreshes them before they are divided"
        go_on.set()
        dropping.result()
        assert reading.result() == [2, 2]


def test_a_snapshot_of_several_groups_one_of_which_is_divided_meanwhile(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scheduler is asked to move is found by a catalog that is over: it moved only a part of it."""
    first = db.create_view("first", SUMS, refresh="manual")
    db.create_view("second", SUMS.replace("SUM(v)", "SUM(w)"), refresh="manual")
    db.create_view("both", "SELECT f.g, f.n, s.n AS m FROM first f JOIN second s ON f.g = s.g", refresh="manual")
    third = db.create_view("third", SUMS, refresh="manual")
    write(db, 1, 5)
    first.refresh()
    third.refresh()
    write(db, 2, 7)
    other._engine.ltm.newest_tables()
    refresher = other._node.refresher
    ask, jobs = refresher._group, [lambda: db.drop_view("both")]  # type: ignore[attr-defined]

    def late(*given: object, **named: object) -> object:
        if jobs:
            jobs.pop()()
        return ask(*given, **named)

    monkeypatch.setattr(refresher, "_group", late)
    names = ["first", "second", "third"]
    with other.snapshot(views=names) as snapshot:
        assert [snapshot.view(name).rows()[0].n for name in names] == [2, 2, 2]
    assert not jobs


def test_a_view_is_made_from_what_is_left_of_a_group_that_is_being_divided(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes it waits for the catalog that he changes, and not for a group that ends."""
    monkeypatch.setattr(administration, "REFRESH_MS_MAX", 5_000)
    db.create_view("first", SUMS, refresh="manual", group="both")
    db.create_view("second", SUMS, refresh="manual", group="both")
    write(db, 1, 5)
    version = version_of(other)
    with ThreadPoolExecutor() as pool, unfinished(monkeypatch, "_watermarks") as go_on:
        dropping = pool.submit(db.drop_view, "first")
        until(lambda: version_of(other) > version)
        text = "SELECT s, COUNT(*) AS n FROM second GROUP BY s"
        making = pool.submit(other.create_view, "above", text, refresh="manual")
        assert not wait([making], 0.2).done
        go_on.set()
        dropping.result()
        assert [tuple(row.values()) for row in making.result().rows()] == [(1, 1)]


@pytest.mark.parametrize("what", ["refresh", "verify", "repair", "changes", "snapshot", "age"])
def test_whoever_uses_a_view_that_becomes_deferred_waits_until_it_is(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    view = db.create_view("sums", SUMS)
    write(db, 1, 5)
    seen, version = other.view("sums"), version_of(other)

    def snapshot() -> bool:
        with other.snapshot(views=["sums"]) as taken:
            return [tuple(row.values()) for row in taken.view("sums").rows()] == [(1, 1, 1)]

    uses: dict[str, Callable[[], bool]] = {
        "refresh": lambda: seen.refresh() > 1,
        "verify": lambda: seen.verify().ok,
        "repair": lambda: seen.repair().ok,
        "changes": lambda: list(seen.changes()) == [],
        "snapshot": snapshot,
        "age": lambda: seen._age()[1] < 60_000,
    }
    with ThreadPoolExecutor() as pool, unfinished(monkeypatch, "_watermarks") as go_on:
        switching = pool.submit(view.set_refresh, "manual")
        until(lambda: version_of(other) > version)
        using = pool.submit(uses[what])
        assert not wait([using], 0.1).done
        go_on.set()
        assert using.result()
        switching.result()


def test_whoever_makes_a_view_does_not_begin_again_for_changes_of_others(
    db: vt.Database, other: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While what it is made from is refreshed."""
    db.create_view("first", SUMS, refresh="manual")
    write(db, 1, 5)
    refresher = db._node.refresher
    ask, wait_for = refresher._group, refresher.wait_for  # type: ignore[attr-defined]
    begun: list[object] = []

    def late(*given: object, **named: object) -> object:
        other.create_table(f"t{len(other.tables())}", {"id": int}, key="id")
        return ask(*given, **named)

    monkeypatch.setattr(refresher, "_group", late)
    monkeypatch.setattr(refresher, "wait_for", lambda *given: (begun.append(given), wait_for(*given))[1])
    above = db.create_view("above", "SELECT s, COUNT(*) AS n FROM first GROUP BY s", refresh="manual")
    assert len(begun) == 1 and len(other.tables()) > 1
    assert [tuple(row.values()) for row in above.rows()] == [(1, 1)]


def test_a_view_of_the_same_name_is_not_where_a_snapshot_reads(db: vt.Database, other: vt.Database) -> None:
    view = db.create_view("sums", SUMS, refresh="manual")
    write(db, 1, 5)
    view.refresh()
    with db.snapshot() as snapshot:
        seen = snapshot.view("sums")
        other.drop_view("sums")
        made = other.create_view("sums", SUMS, refresh="manual")
        write(other, 2, 5)
        made.refresh()
        version_of(db)
        with pytest.raises(vt.TransactionConflict, match="dropped or switched"):
            seen.rows()
    assert view.rows()[0].n == 2
