"""`v.changes()` on a cluster: what its LTMs tell, merged; while keys move, LTMs die and little is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from unittest import mock

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from tests.unit.test_changes import ENDS, SUMS, added, bag, make_tables, oldest_of, plain, sell
from viewtide.coordinator.cluster import feed
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.two_phase.participant import Participant
from viewtide.rows import Token
from viewtide.table_changes import TableChanges


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture
def db(cluster: TestCluster) -> vt.Database:
    database = cluster.database(1)
    make_tables(database)
    return database


def sell_much(db: vt.Database, count: int = 40) -> None:
    """In many groups, on both sides of where ranges begin."""
    for number in range(count):
        sell(db, *((each, each % 9, number + each) for each in range(number % 3, 12, 3)))


def participants(cluster: TestCluster) -> Iterable[Participant]:
    for process in cluster.cluster.processes.values():
        if isinstance(process.machine, Member):
            yield from (hosted.machine for hosted in process.machine.hosted.values() if hosted.machine is not None)


def forget(cluster: TestCluster) -> None:
    """All but the last few changes."""

    def do() -> None:
        for participant in participants(cluster):
            assert participant.recent is not None
            participant.recent.bytes_max = 2_000
            participant.recent.forget(0, participant.newest_ts)

    cluster.cluster.do(do)


@pytest.mark.parametrize("kept", [0, feed.KEPT_ROWS_MAX], ids=["asked twice", "asked once"])
def test_small_pages_of_all_logs_are_merged(db: vt.Database, kept: int) -> None:
    views = [db.create_view("sums", SUMS), db.create_view("ends", ENDS), db.create_view("late", ENDS, refresh="manual")]
    starts = [view.rows() for view in views]
    sell_much(db, 20)
    views[2].refresh()
    sell_much(db, 5)
    views[2].refresh()
    whole = [list(view.changes(since=start.token)) for view, start in zip(views, starts, strict=True)]
    assert [len(changes) for changes in whole] == [25, 25, 2]
    with mock.patch.multiple(feed, PAGE_ROWS=2, KEPT_ROWS_MAX=kept):
        for view, start, changes in zip(views, starts, whole, strict=True):
            assert list(view.changes(since=start.token)) == changes
            assert added(start, changes) == bag(view.rows())


def test_tokens_are_good_at_every_process(cluster: TestCluster, db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    start = view.rows().token
    sell_much(db, 5)
    whole = list(view.changes(since=start))
    other = cluster.database(3).view("sums")
    assert list(other.changes(since=start)) == whole
    assert list(other.changes(since=whole[2].token)) == whole[3:]


def test_what_was_committed_before_keys_moved_is_told_by_who_had_them(cluster: TestCluster, db: vt.Database) -> None:
    view = db.create_view("ends", ENDS)
    rows = db._node.engine.ltm.tables.views["ends"]
    start = view.rows()
    ended = threading.Event()
    found: list[vt.ViewChange] = []

    def follow() -> None:
        token = start.token
        while True:
            last_round = ended.is_set()
            for change in view.changes(since=token):
                found.append(change)
                token = change.token
            if last_round:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    for target in (1, 2, 3, 1):
        sell_much(db, 10)
        for each in (rows, *rows.values):
            cluster.move(each.view.id, f"ltm-{target}/1")
    sell_much(db, 10)
    ended.set()
    follower.join(60)
    assert not follower.is_alive()
    assert added(start, found) == bag(view.rows())
    assert list(view.changes(since=start.token)) == found


def test_another_ltm_takes_over_and_its_log_tells_the_rest(cluster: TestCluster, db: vt.Database) -> None:
    views = [db.create_view("sums", SUMS), db.create_view("late", SUMS, refresh="manual")]
    starts = [view.rows() for view in views]
    sell_much(db, 10)
    views[1].refresh()
    before = [list(view.changes(since=start.token)) for view, start in zip(views, starts, strict=True)]
    cluster.kill(2)
    sell_much(db, 3)
    views[1].refresh()
    for view, start, changes in zip(views, starts, before, strict=True):
        after = list(view.changes(since=start.token))
        assert after[: len(changes)] == changes and len(after) > len(changes)
        assert added(start, after) == bag(view.rows())


def test_what_is_forgotten_is_an_error_with_the_way_out(cluster: TestCluster, db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    quiet = db.create_view("quiet", "SELECT COUNT(*) AS n FROM sales WHERE x < 0")
    start, before = view.rows().token, quiet.rows().token
    sell_much(db, 20)
    forget(cluster)
    with pytest.raises(vt.OperationalError, match="not known to the cluster any more") as raised:
        list(view.changes(since=start))
    oldest = oldest_of(raised.value)
    assert start < oldest
    last = list(view.changes(since=oldest))
    sell(db, (1, 1, 1_000))
    assert list(view.changes(since=oldest))[: len(last)] == last
    assert list(quiet.changes(since=before)) == [], "nothing of it was forgotten"
    sell(db, (1, 1, -1))
    assert plain(quiet.changes(since=before)) == [[((0,), -1), ((1,), 1)]]


def test_a_step_that_takes_long_is_told_to_whoever_waited_for_it(cluster: TestCluster, db: vt.Database) -> None:
    """Its version is older than what is kept, when it is published: here nothing is kept for longer than needed."""
    view = db.create_view("late", SUMS, refresh="manual")
    start = view.rows()

    def clean(history_ms: int) -> None:
        for participant in participants(cluster):
            assert participant.recent is not None
            participant.recent.bytes_max = participant.changes_ms = 0
            participant.history_ms = history_ms
            participant._clean()

    cluster.cluster.do(lambda: clean(30_000))
    sell_much(db, 5)
    view.refresh()
    cluster.cluster.do(lambda: clean(30_000))
    assert added(start, list(view.changes(since=start.token))) == bag(view.rows())
    for _ in range(2):
        cluster.cluster.do(lambda: clean(0))
    with pytest.raises(vt.OperationalError, match="not known to the cluster any more"):
        list(view.changes(since=start.token))


def test_a_slow_reader_hears_of_what_was_forgotten_meanwhile(cluster: TestCluster, db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    start = view.rows()
    for number in range(30):
        sell(db, (1, 7, number))
    with mock.patch.multiple(feed, PAGE_ROWS=2, KEPT_ROWS_MAX=0):
        changes = view.changes(since=start.token)
        given = [next(changes)]
        forget(cluster)
        with pytest.raises(vt.OperationalError, match="not known to the cluster any more"):
            given.extend(changes)
    assert [change.rows[-1][0].total for change in given] == list(range(len(given))), "no gap before the error"
    assert len(given) < 30


def test_a_view_that_is_switched_often_forgets_how_it_was(db: vt.Database) -> None:
    view = db.create_view("ends", ENDS)
    first = view.rows()
    with mock.patch("viewtide.coordinator.cluster.catalog_changes.EARLIER_MAX", 2):
        starts = []
        for number, mode in enumerate(("manual", "sync", "manual", "sync")):
            sell(db, (number, 7, number))
            view.set_refresh(mode)
            starts.append(view.rows())
    sell(db, (9, 7, 9))
    with pytest.raises(vt.OperationalError, match="was created after that token"):
        list(view.changes(since=first.token))
    for start in starts[1:]:
        assert added(start, view.changes(since=start.token)) == bag(view.rows())


# --- tables ---


def test_what_every_commit_did_to_a_table(cluster: TestCluster, db: vt.Database) -> None:
    first = sell(db, (1, 7, 1), (8, 7, 2))
    with db.transaction() as second:
        second.update("sales", 1, {"x": 5})
        second.update("sales", 8, {"x": 2})
    db.add_column("sales", "late", vt.column(int, default=9))
    with db.transaction() as third:
        third.delete("sales", 1)
    feed = TableChanges(db._node, "sales", Token(first.commit_ts - 1), True, 0)
    given = list(feed)
    assert plain(given) == [
        [((1, 7, 1, 9), 1), ((8, 7, 2, 9), 1)],
        [((1, 7, 1, 9), -1), ((1, 7, 5, 9), 1)],
        [((1, 7, 5, 9), -1)],
    ]
    assert [change.token.commit_ts for change in given] == [
        token.commit_ts for token in (first, second.token, third.token)
    ]
    assert feed.token.commit_ts > third.token.commit_ts
    with TableChanges(cluster.database(2)._node, "sales", second.token, False, None) as others:
        assert list(others) == given[2:]
    later = TableChanges(db._node, "sales", None, False, None)
    assert later._next() is None
    sell(db, (2, 2, 2))
    assert later._next() is not None
    assert later._next() is None
    db.drop_table("sales")
    with pytest.raises(vt.ProgrammingError, match="was dropped"):
        later._next()


def test_what_is_forgotten_of_a_table_is_an_error(cluster: TestCluster, db: vt.Database) -> None:
    token = sell(db, (1, 7, 1))
    sell_much(db, 10)
    forget(cluster)
    with pytest.raises(
        vt.OperationalError, match=r"table 'sales' since .* not known to the cluster any more"
    ) as raised:
        list(TableChanges(db._node, "sales", token, False, None))
    assert len(list(TableChanges(db._node, "sales", oldest_of(raised.value), False, None))) < 10
