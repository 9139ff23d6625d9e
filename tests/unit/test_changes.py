"""`v.changes()`: the change tables of a view, in order, exactly once for whoever stores the token."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import viewtide as vt
from viewtide.changes import _Reading
from viewtide.changetables.plan import Contribution
from viewtide.ltm.commit_log.segments import SegmentLog

pytestmark = pytest.mark.served

SUMS = "SELECT shop, SUM(x) AS total FROM sales GROUP BY shop"
ENDS = "SELECT shop, MIN(x) AS low, MAX(x) AS high FROM sales GROUP BY shop"

Rows = list[tuple[tuple[object, ...], int]]


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        make_tables(opened)
        yield opened


def make_tables(db: vt.Database) -> None:
    db.create_table("sales", {"id": int, "shop": int, "x": int}, key="id")


def sell(db: vt.Database, *rows: tuple[int, int, int | None]) -> vt.Token:
    with db.transaction() as tx:
        tx.upsert("sales", [dict(zip(("id", "shop", "x"), row, strict=True)) for row in rows])
    return tx.token


def unsell(db: vt.Database, *keys: int) -> vt.Token:
    with db.transaction() as tx:
        for key in keys:
            tx.delete("sales", key)
    return tx.token


def plain(changes: Iterable[vt.ViewChange]) -> list[Rows]:
    return [sorted(((tuple(row.values()), times) for row, times in change.rows), key=repr) for change in changes]


def bag(rows: Iterable[vt.Row]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in rows)


def added(start: Iterable[vt.Row], changes: Iterable[vt.ViewChange]) -> Counter[tuple[object, ...]]:
    total = bag(start)
    for change in changes:
        for row, times in change.rows:
            total[tuple(row.values())] += times
    assert min(total.values(), default=0) >= 0
    return +total


def oldest_of(error: vt.Error) -> vt.Token:
    found = re.search(r"the oldest token that works is Token\((\d+)\)", error.hint)
    assert found is not None, error.hint
    return vt.Token(int(found[1]))


# --- synchronous views ---


def test_one_change_table_per_commit(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    start = view.rows().token
    tokens = [sell(db, (1, 7, 10), (2, 7, 5)), sell(db, (1, 7, 11)), sell(db, (3, 8, 1)), unsell(db, 3)]
    found = list(view.changes(since=start))
    assert plain(found) == [
        [((7, 15), 1)],
        [((7, 15), -1), ((7, 16), 1)],
        [((8, 1), 1)],
        [((8, 1), -1)],
    ]
    assert [change.token.commit_ts for change in found] == [token.commit_ts for token in tokens]
    assert [change.watermark for change in found] == [change.token.commit_ts for change in found]
    assert isinstance(found[0].rows[0][0], vt.Row)
    assert found[0].rows[0][0].total == 15


def test_every_token_is_a_place_to_go_on_from(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    db.create_table("others", {"id": int}, key="id")
    tokens = [view.rows().token]
    for number in range(10):
        tokens.append(sell(db, (number % 3, number % 2, number)))
        with db.transaction() as tx:
            tx.insert("others", {"id": number})
        tokens.append(tx.token)
    whole = list(view.changes(since=tokens[0]))
    for token in tokens:
        assert list(view.changes(since=token)) == [change for change in whole if change.watermark > token.commit_ts]
    reading = view.changes(since=whole[4].token)
    assert next(reading) == whole[5]
    assert reading.token == whole[5].token
    assert len(list(reading)) == len(whole) - 6
    assert reading.token.commit_ts >= tokens[-1].commit_ts, "it was read up to now, also where nothing changed"
    with pytest.raises(StopIteration):
        next(reading)


def test_what_does_not_change_the_view_is_no_change(db: vt.Database) -> None:
    view = db.create_view("big", "SELECT shop, MAX(x) AS high FROM sales GROUP BY shop HAVING MAX(x) > 5")
    start = sell(db, (1, 7, 3), (2, 7, 9))
    sell(db, (1, 7, 4))
    sell(db, (3, 8, 1))
    sell(db, (2, 7, 9))
    sell(db, (2, 7, 8), (4, 7, 9))
    assert list(view.changes(since=start)) == []
    sell(db, (4, 7, None))
    assert plain(view.changes(since=start)) == [[((7, 8), 1), ((7, 9), -1)]]


def test_multiplicities(db: vt.Database) -> None:
    view = db.create_view("values", "SELECT x FROM sales")
    start = view.rows().token
    sell(db, (1, 7, 3), (2, 7, 3), (3, 7, 4))
    sell(db, (1, 7, 4))
    assert plain(view.changes(since=start)) == [[((3,), 2), ((4,), 1)], [((3,), -1), ((4,), 1)]]


def test_the_first_rows(db: vt.Database) -> None:
    view = db.create_view("top", "SELECT id, x FROM sales ORDER BY x DESC LIMIT 2")
    start = sell(db, *((number, 7, number) for number in range(1, 6)))
    sell(db, (1, 7, 3))
    sell(db, (2, 7, 9))
    unsell(db, 2, 5)
    assert plain(view.changes(since=start)) == [
        [((2, 9), 1), ((4, 4), -1)],
        [((1, 3), 1), ((2, 9), -1), ((4, 4), 1), ((5, 5), -1)],
    ]


def test_from_now_on(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    sell(db, (1, 7, 10))
    reading = view.changes(follow=True, timeout=0)
    sell(db, (1, 7, 11))
    assert plain(reading) == [[((7, 10), -1), ((7, 11), 1)]]


def test_a_repair_is_a_change(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    start = sell(db, (1, 7, 10))
    rows = db._node.engine.ltm.tables.views["sums"]
    (contribution,) = [
        Contribution(key, state[:1], tuple(2 * value for value in state[1:]))  # type: ignore[operator]
        for key, state in rows.versions.dirty.items()
        for state in [state[1]]
        if state is not None
    ]
    db._node.engine.contribute(rows.view.id, [contribution])
    assert plain(view.changes(since=start)) == [[((7, 10), -1), ((7, 30), 1)]]


# --- deferred views ---


def test_one_change_table_per_step(db: vt.Database) -> None:
    view = db.create_view("ends", ENDS, refresh="manual")
    start = view.rows()
    token = sell(db, (1, 7, 10))
    sell(db, (2, 7, 5))
    assert list(view.changes(since=start.token)) == [], "nothing is published"
    view.refresh()
    middle = view.rows()
    sell(db, (1, 7, 6))
    sell(db, (2, 7, None))
    view.refresh()
    whole = list(view.changes(since=start.token))
    assert plain(whole) == [[((7, 5, 10), 1)], [((7, 5, 10), -1), ((7, 6, 6), 1)]]
    assert whole[0].watermark <= middle.watermark < whole[1].watermark
    assert list(view.changes(since=middle.token)) == whole[1:]
    assert list(view.changes(since=token)) == whole, "the first step has a watermark above it"
    assert added(middle, whole[1:]) == bag(view.rows())


@pytest.mark.embedded("holds the engine while it reads")
def test_a_step_that_is_open_or_dropped_does_not_count(db: vt.Database) -> None:
    view = db.create_view("shares", "SELECT shop, 100 / SUM(x) AS share FROM sales GROUP BY shop", refresh="manual")
    sell(db, (1, 7, 10))
    view.refresh()
    start = view.rows()
    seen: list[tuple[str, list[vt.ViewChange]]] = []

    def look(point: str) -> None:
        seen.append((point, list(view.changes(since=start.token))))

    sell(db, (1, 7, 0))
    db._node.refresher.on_point = look
    with pytest.raises(vt.StaleRead):
        view.refresh()
    sell(db, (1, 7, 20))
    view.refresh()
    db._node.refresher.on_point = None
    points = [point for point, _ in seen]
    assert {"after opened", "after refreshed", "after dropped", "after published"} <= set(points)
    assert all(not changes for point, changes in seen if point != "after publication")
    assert plain(view.changes(since=start.token)) == [[((7, 10), -1), ((7, 5), 1)]]


@pytest.mark.embedded("holds the engine while it reads")
def test_a_follower_that_looks_in_the_middle_of_a_step(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS, refresh="manual")
    following = view.changes(since=view.rows().token, follow=True, timeout=0)
    sell(db, (1, 7, 10))
    view.refresh()
    sell(db, (1, 7, 20))
    seen: list[vt.ViewChange] = []

    def look(point: str) -> None:
        if point == "after refreshed":
            seen.extend(iter(following._next, None))

    db._node.refresher.on_point = look
    view.refresh()
    db._node.refresher.on_point = None
    assert plain(seen) == [[((7, 10), 1)]]
    assert plain(following) == [[((7, 10), -1), ((7, 20), 1)]]


def test_a_follower_over_a_switch(db: vt.Database) -> None:
    """All that changed is in a hidden view that is gone after the switch; its successor never had the old value."""
    view = db.create_view("ends", ENDS, refresh="manual")
    following = view.changes(follow=True, timeout=0)
    sell(db, (1, 7, 10))
    view.refresh()
    assert plain(iter(following._next, None)) == [[((7, 10, 10), 1)]]
    sell(db, (1, 7, None))
    view.set_refresh("sync")
    assert plain(following) == [[((7, 10, 10), -1), ((7, None, None), 1)]]


def test_a_batch_refresh_is_an_error_with_the_way_out(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS, refresh="manual")
    start = view.rows()
    sell(db, (1, 7, 10))
    ltm = db._node.engine.ltm
    with ltm.lock:
        ltm.positions[ltm.tables.views["sums"].view.id] = None
    view.refresh()
    with pytest.raises(vt.OperationalError, match="was refreshed by a batch") as raised:
        list(view.changes(since=start.token))
    again = view.rows()
    assert oldest_of(raised.value) <= again.token
    sell(db, (1, 7, 11))
    view.refresh()
    for token in (oldest_of(raised.value), again.token):
        assert plain(view.changes(since=token)) == [[((7, 10), -1), ((7, 11), 1)]]


@pytest.mark.parametrize("definition", [SUMS, ENDS, "SELECT id, x FROM sales ORDER BY x LIMIT 2"])
def test_a_view_that_is_switched(db: vt.Database, definition: str) -> None:
    view = db.create_view("switched", definition)
    sell(db, (1, 7, 10), (2, 7, 11), (3, 8, 12))
    starts = [view.rows()]
    for number, mode in enumerate(("manual", "0ms", "sync", "manual", "sync")):
        sell(db, (1, 7, 20 + number))
        view.set_refresh(mode)
        sell(db, (2, 7, 30 - number))
        if mode != "sync":
            sell(db, (3, 8, number))
            view.refresh()
        starts.append(view.rows())
    now = bag(view.rows())
    for start in starts:
        assert added(start, view.changes(since=start.token)) == now


# --- errors ---


def test_a_view_that_is_younger_than_the_token(db: vt.Database) -> None:
    token = sell(db, (1, 7, 10))
    for name, mode in (("sums", "sync"), ("later", "manual")):
        view = db.create_view(name, SUMS, refresh=mode)
        with pytest.raises(vt.OperationalError, match="was created after that token"):
            next(view.changes(since=token))
        assert list(view.changes(since=view.rows().token)) == []


def test_a_dropped_view_and_a_closed_database(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    start = view.rows().token
    reading = view.changes(since=start)
    following = db.create_view("other", SUMS).changes(follow=True)
    db.drop_view("sums")
    with pytest.raises(vt.ProgrammingError, match="was dropped"):
        next(reading)
    db.close()
    with pytest.raises(vt.InterfaceError, match="closed"):
        next(following)


@pytest.mark.parametrize("since", [7, "now", b""])
def test_since_is_a_token(db: vt.Database, since: object) -> None:
    view = db.create_view("sums", SUMS)
    with pytest.raises(vt.InterfaceError, match="since takes a token"):
        view.changes(since=since)  # type: ignore[arg-type]


# --- history ---


class Clock:
    """The clock of a database, by hand."""

    def __init__(self, db: vt.Database) -> None:
        self.engine = db._node.engine
        self.ms = self.engine._now_ms() + 1
        self.engine._now_ms = lambda: self.ms

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


def too_old(changes: Iterable[vt.ViewChange]) -> vt.Token:
    """The token that the refusal names."""
    with pytest.raises(vt.OperationalError, match="not in the log any more") as raised:
        next(iter(changes))
    return oldest_of(raised.value)


def test_without_history_bytes_a_checkpoint_takes_the_changes_along() -> None:
    with vt.connect("memory:", history_bytes=0) as db:
        make_tables(db)
        view = db.create_view("sums", SUMS)
        start = view.rows().token
        last = [sell(db, (1, 7, number)) for number in range(5)][-1]
        assert len(list(view.changes(since=start))) == 5
        db._node.engine.checkpoint()
        assert list(view.changes(since=too_old(view.changes(since=start)))) == []
        sell(db, (1, 7, 9))
        assert plain(view.changes(since=last)) == [[((7, 4), -1), ((7, 9), 1)]]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_is_older_than_the_history_is_refused_whether_the_log_has_it_or_not(checkpoints: bool) -> None:
    with vt.connect("memory:", history="1s") as db:
        make_tables(db)
        clock, view = Clock(db), db.create_view("sums", SUMS)
        start = view.rows().token
        tokens = []
        for number in range(20):
            clock.pass_ms(100)
            tokens.append(sell(db, (1, 7, number)))
            if checkpoints:
                db._node.engine.checkpoint()
        # A second ago it was number 9: what came after that is there.
        oldest = too_old(view.changes(since=start))
        assert tokens[8].commit_ts < oldest.commit_ts <= tokens[9].commit_ts
        assert oldest == too_old(view.changes(since=tokens[8])) or checkpoints
        for token in (oldest, tokens[9]):
            assert [change.watermark for change in view.changes(since=token)] == [
                each.commit_ts for each in tokens[10:]
            ]
        clock.pass_ms(8_000)
        oldest = too_old(view.changes(since=tokens[18]))
        assert list(view.changes(since=oldest)) == list(view.changes(since=tokens[19])) == []


def test_with_no_history_only_the_newest_token_goes_on() -> None:
    with vt.connect("memory:", history=0) as db:
        make_tables(db)
        view = db.create_view("sums", SUMS)
        start = view.rows().token
        assert list(view.changes(since=start)) == []
        sell(db, (1, 7, 0))
        last = sell(db, (1, 7, 1))
        assert too_old(view.changes(since=start)).commit_ts == last.commit_ts
        assert list(view.changes(since=last)) == []


def test_who_follows_is_not_thrown_out() -> None:
    """History is for where one begins: from there on the iterator has whatever the log has."""
    with vt.connect("memory:", history="1s") as db:
        make_tables(db)
        clock, view = Clock(db), db.create_view("sums", SUMS)
        old = view.rows().token
        followers = [view.changes(since=since, follow=True) for since in (old, None, old)]
        assert [each._next() for each in followers[:2]] == [None, None]
        sell(db, (1, 7, 0))
        given: list[list[vt.ViewChange | None]] = [[], [], [followers[2]._next()]]  # it is amid a round
        for number in range(1, 4):
            clock.pass_ms(5_000)  # longer than the history, between any two looks
            sell(db, (1, 7, number))
        too_old(view.changes(since=old))
        for follower, changes in zip(followers, given, strict=True):
            # A round of it may end without a change.
            changes += [change for _ in range(6) if (change := follower._next()) is not None]
            assert len(changes) == 4


def test_a_view_that_did_not_change_meanwhile_is_never_too_far_behind() -> None:
    with vt.connect("memory:", history="1s") as db:
        make_tables(db)
        db.create_table("others", {"id": int}, key="id")
        clock, view = Clock(db), db.create_view("sums", SUMS)
        start = sell(db, (1, 7, 0))
        for number in range(5):
            clock.pass_ms(5_000)
            with db.transaction() as tx:
                tx.insert("others", {"id": number})
        assert list(view.changes(since=start)) == []
        sell(db, (1, 7, 1))
        assert len(list(view.changes(since=start))) == 1


def test_history_is_longer_while_a_deferred_view_needs_it() -> None:
    with vt.connect("memory:", history="1s") as db:
        make_tables(db)
        clock, view = Clock(db), db.create_view("sums", SUMS)
        deferred = db.create_view("later", SUMS, refresh="manual")
        start, shown = sell(db, (2, 7, 0)), deferred.rows().token
        deferred.refresh()
        for number in range(1, 6):
            clock.pass_ms(5_000)
            sell(db, (1, 7, number))
        clock.pass_ms(5_000)
        assert len(list(view.changes(since=start))) == 5
        # Its own changes are as old as its steps: the first is from before the history, the second just made.
        after_first = deferred.rows().token
        deferred.refresh()
        too_old(view.changes(since=start))
        assert len(list(deferred.changes(since=after_first))) == 1
        assert too_old(deferred.changes(since=shown)) <= after_first


def test_history_outlives_checkpoints_and_the_process(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        make_tables(db)
        view = db.create_view("ends", ENDS)
        deferred = db.create_view("later", ENDS, refresh="manual")
        starts = [(each.name, each.rows()) for each in (view, deferred)]
        for number in range(20):
            sell(db, (number % 4, number % 2, number))
            if number % 5 == 0:
                deferred.refresh()
                db._node.engine.checkpoint()
        deferred.refresh()
        before = {name: list(db.view(name).changes(since=start.token)) for name, start in starts}
    with vt.connect(db_path) as db:
        for name, start in starts:
            changes = list(db.view(name).changes(since=start.token))
            assert changes == before[name]
            assert changes
            assert added(start, changes) == bag(db.view(name).rows())


def test_history_in_bytes_is_kept_to(db_path: Path) -> None:
    with vt.connect(db_path, history_bytes=8 << 20) as db:
        make_tables(db)
        db.create_table("notes", {"id": int, "text": str}, key="id")
        view = db.create_view("sums", SUMS)
        log = db._node.engine.ltm._log
        for number in range(30):
            sell(db, (1, 7, number))
            with db.transaction() as tx:
                tx.insert("notes", {"id": number, "text": "x" * (1 << 20)})
        db._node.engine.checkpoint()
        assert 8 << 20 <= log.bytes_since(log.oldest_lsn) <= (8 << 20) + 2 * (4 << 20)
        oldest = vt.Token(db._node.engine.ltm.oldest_ts() or 0)
        assert 0 < len(list(view.changes(since=oldest))) < 30


@pytest.mark.parametrize(
    "settings", [{"history": "soon"}, {"history": -1}, {"history_bytes": -1}, {"history_bytes": 1.5}]
)
def test_history_is_checked(settings: dict[str, object]) -> None:
    with pytest.raises(vt.InterfaceError):
        vt.connect("memory:", **settings)  # type: ignore[arg-type]


@pytest.mark.embedded("a client has some changes ahead")
def test_a_slow_reader_hears_of_what_was_trimmed_meanwhile(db_path: Path) -> None:
    small = functools.partial(SegmentLog, segment_bytes=4096)
    with mock.patch("viewtide.node.SegmentLog", small), vt.connect(db_path, history_bytes=0) as db:
        make_tables(db)
        view = db.create_view("sums", SUMS)
        changes = view.changes(since=view.rows().token)
        for number in range(100):
            sell(db, (1, 7, number))
        first = next(changes)
        assert plain([first]) == [[((7, 0), 1)]]
        db._node.engine.checkpoint()
        given = [first]
        with pytest.raises(vt.OperationalError, match="not in the log any more") as raised:
            given.extend(changes)
        assert [change.rows[-1][0].total for change in given] == list(range(len(given))), "no gap before the error"
        assert given[-1].token < oldest_of(raised.value)
        assert len(list(view.changes(since=oldest_of(raised.value)))) < 100 - len(given)


# --- following ---


def test_following_while_writers_run(db: vt.Database) -> None:
    views = [db.create_view("sums", SUMS), db.create_view("later", ENDS, refresh="0ms")]
    starts = [view.rows() for view in views]
    ended = threading.Event()
    found: list[list[vt.ViewChange]] = [[], []]

    def write(first: int) -> None:
        for number in range(150):
            sell(db, (first + number % 5, number % 3, number))

    def follow(place: int) -> None:
        # It stops and goes on from its token all the time.
        token = starts[place].token
        while True:
            last_round = ended.is_set()
            with views[place].changes(since=token, follow=True, timeout="10ms") as changes:
                for change in changes:
                    found[place].append(change)
                    token = change.token
                    if len(found[place]) % 7 == 0:
                        break
                else:
                    if last_round:
                        return

    writers = [threading.Thread(target=write, args=(10 * number,)) for number in range(3)]
    readers = [threading.Thread(target=follow, args=(place,)) for place in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join()
    views[1].refresh()
    ended.set()
    for thread in readers:
        thread.join()
    for view, start, changes in zip(views, starts, found, strict=True):
        assert added(start, changes) == bag(view.rows())
        assert [change.token for change in changes] == sorted({change.token for change in changes})


def test_close_ends_the_wait(db: vt.Database) -> None:
    changes = db.create_view("sums", SUMS).changes(follow=True)
    found: list[vt.ViewChange] = []
    reader = threading.Thread(target=lambda: found.extend(changes))
    reader.start()
    changes.close()
    reader.join(10)
    assert not reader.is_alive()
    assert found == []


def test_timeout_ends_the_wait(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    start = view.rows().token
    sell(db, (1, 7, 1))
    assert len(list(view.changes(since=start, follow=True, timeout="5ms"))) == 1


def test_a_follower_of_a_quiet_view_is_not_left_behind() -> None:
    """The log goes on and is trimmed, but nothing of what it lost concerns the view."""
    with vt.connect("memory:", history_bytes=0) as db:
        make_tables(db)
        db.create_table("others", {"id": int}, key="id")
        for mode in ("sync", "manual"):
            view = db.create_view(f"sums_{mode}", SUMS, refresh=mode)
            following = view.changes(follow=True, timeout=0)
            assert following._next() is None
            for number in range(5):
                with db.transaction() as tx:
                    tx.upsert("others", {"id": number})
                assert view.refresh() >= tx.token.commit_ts
                assert following._next() is None
                assert following.token.commit_ts >= tx.token.commit_ts
                db._node.engine.checkpoint()
            key = len(mode)
            sell(db, (key, key, 1))
            view.refresh()
            assert plain(following) == [[((key, 1), 1)]]


# --- asyncio ---


def test_async_for() -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.create_table("sales", {"id": int, "shop": int, "x": int}, key="id")
            views = [await db.create_view("sums", SUMS), await db.create_view("later", ENDS, refresh="0ms")]
            starts = [await view.rows() for view in views]
            found: list[list[vt.ViewChange]] = [[], []]

            async def follow(place: int) -> None:
                async for change in views[place].changes(since=starts[place].token, follow=True, timeout="1s"):
                    found[place].append(change)
                    if change.rows[0][0].shop == 99:
                        return

            async def write() -> None:
                for number in range(100):
                    async with db.transaction() as tx:
                        await tx.upsert("sales", {"id": number % 7, "shop": number % 3, "x": number})
                await views[1].refresh()
                async with db.transaction() as tx:
                    await tx.insert("sales", {"id": 99, "shop": 99, "x": 1})

            await asyncio.gather(follow(0), follow(1), write())
            for view, start, changes in zip(views, starts, found, strict=True):
                assert added(start, changes) == bag(await view.rows())
                again = [change async for change in view.changes(since=start.token)]
                assert again == changes

    asyncio.run(main())


def test_tokens_of_one_flush() -> None:
    """Transactions of several tasks come into the log together; each is a place to go on from all the same."""

    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.create_table("sales", {"id": int, "shop": int, "x": int}, key="id")
            view = await db.create_view("sums", SUMS)
            start = await view.rows()

            async def write(number: int) -> vt.Token:
                async with db.transaction() as tx:
                    await tx.upsert("sales", {"id": 1, "shop": 7, "x": number})
                return tx.token

            flushes = (await db.status()).flushes
            tokens = await asyncio.gather(*(write(number) for number in range(20)))
            assert (await db.status()).flushes - flushes < 20
            whole = [change async for change in view.changes(since=start.token)]
            assert [change.watermark for change in whole] == sorted(token.commit_ts for token in tokens)
            for token in tokens:
                rest = [change async for change in view.changes(since=token)]
                assert rest == [change for change in whole if change.watermark > token.commit_ts]

    asyncio.run(main())


def test_a_cancelled_wait_loses_nothing() -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.create_table("sales", {"id": int, "shop": int, "x": int}, key="id")
            view = await db.create_view("sums", SUMS)
            start = await view.rows()
            found = []
            async with view.changes(since=start.token, follow=True) as changes:
                for number in range(20):
                    async with db.transaction() as tx:
                        await tx.upsert("sales", {"id": 1, "shop": 7, "x": number})
                    for _ in range(3):
                        waiting = asyncio.ensure_future(anext(changes))
                        await asyncio.sleep(0)
                        waiting.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            found.append(await waiting)
                while len(found) < 20:
                    found.append(await anext(changes))
                assert changes.token == found[-1].token
            assert [change.rows[-1][0].total for change in found] == list(range(20))
            with pytest.raises(StopAsyncIteration):
                await anext(changes)

    asyncio.run(main())


def test_what_was_found_before_an_error_is_given_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.create_table("sales", {"id": int, "shop": int, "x": int}, key="id")
            view = await db.create_view("sums", SUMS)
            start = await view.rows()
            for number in range(5):
                async with db.transaction() as tx:
                    await tx.upsert("sales", {"id": 1, "shop": 7, "x": number})
            changes = view.changes(since=start.token)
            calls, following = [0], _Reading._next

            def failing_once(reading: _Reading) -> vt.ViewChange | None:
                calls[0] += 1
                if calls[0] == 3:
                    raise vt.OperationalError("the disk had a hiccup")
                return following(reading)

            monkeypatch.setattr(_Reading, "_next", failing_once)
            found = [await anext(changes), await anext(changes)]
            assert changes.token == found[-1].token
            with pytest.raises(vt.OperationalError, match="hiccup"):
                await anext(changes)
            found += [change async for change in changes]
            assert [change.rows[-1][0].total for change in found] == list(range(5))

    asyncio.run(main())
