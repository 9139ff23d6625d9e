"""Who leads, who waits: threads, tasks and interrupts around one engine."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import viewtide as vt
from viewtide.coordinator.embedded import CrowdPending
from viewtide.coordinator.transaction import Request


@pytest.fixture
def db(db_path: Path) -> Iterator[vt.Database]:
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int}, key="id")
        yield db


class SlowLog:
    """Holds up the next flush until it is let go."""

    def __init__(self, db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        log = db._engine.ltm._log
        append = log.append

        def slow(payload: bytes) -> int:
            monkeypatch.setattr(log, "append", append)
            self.reached.set()
            assert self.go_on.wait(30)
            return append(payload)

        monkeypatch.setattr(log, "append", slow)


def insert(db: vt.Database, number: int) -> None:
    with db.transaction() as tx:
        tx.insert("t", {"id": number})


def ids(db: vt.Database) -> list[object]:
    with db.snapshot() as snapshot:
        return [row["id"] for row in snapshot.scan("t")]


def when_queued(db: vt.Database, count: int, then: Callable[[], None]) -> threading.Thread:
    def watch() -> None:
        while len(db._engine._queue) < count:
            threading.Event().wait(0.001)
        then()

    watcher = threading.Thread(target=watch)
    watcher.start()
    return watcher


def test_an_interrupt_in_a_thread_that_waits_hangs_nobody(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is queued and may be handed the lead: it goes on waiting, leads if it must, and only then is interrupted."""
    slow = SlowLog(db, monkeypatch)
    leader = threading.Thread(target=insert, args=(db, 1))
    leader.start()
    assert slow.reached.wait(30)
    # A shell may have started the tests with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        slow.go_on.set()

    watcher = when_queued(db, 1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            insert(db, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    watcher.join()
    leader.join()
    insert(db, 3)
    assert ids(db) in ([1, 2, 3], [1, 3])


def test_transactions_that_do_not_touch_each_other_are_refused_alone(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are run as one; when that fails, each is run by itself."""
    insert(db, 7)
    slow = SlowLog(db, monkeypatch)
    outcomes: dict[int, BaseException | None] = {}

    def write(number: int, row: int) -> None:
        try:
            tx = db.transaction()
            # Blind: the engine finds the duplicate, not the call.
            tx._write(tx._table("t"), {tx._table("t").codec.key((row,)): (1, (row,), None, True)})
            tx.commit()
            outcomes[number] = None
        except vt.Error as error:
            outcomes[number] = error

    first = threading.Thread(target=write, args=(0, 1))
    first.start()
    assert slow.reached.wait(30)
    others = [threading.Thread(target=write, args=(n, row)) for n, row in ((1, 2), (2, 7), (3, 3), (4, 3))]
    for other in others:
        other.start()
    watcher = when_queued(db, 4, slow.go_on.set)
    for thread in (watcher, first, *others):
        thread.join()
    assert isinstance(outcomes[2], vt.IntegrityError)
    assert outcomes[0] is None and outcomes[1] is None
    assert sorted(type(outcomes[n]).__name__ for n in (3, 4)) == ["IntegrityError", "NoneType"]
    assert ids(db) == [1, 2, 3, 7]


def test_a_loop_that_stops_with_a_commit_queued_does_not_block_other_loops(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    adb = vt.aio.AsyncDatabase(db)

    async def commit(number: int) -> None:
        async with adb.transaction() as tx:
            await tx.insert("t", {"id": number})

    stopped = asyncio.new_event_loop()
    task = stopped.create_task(commit(1))
    stopped.call_soon(stopped.stop)
    stopped.run_forever()
    asyncio.run(asyncio.wait_for(commit(2), 30))
    assert 2 in ids(db)
    stopped.run_until_complete(task)
    stopped.close()
    assert ids(db) == [1, 2]


def test_a_thread_beside_busy_tasks_gets_its_answers(db: vt.Database) -> None:
    """A leading thread hands the tasks of a loop back to their loop."""
    adb = vt.aio.AsyncDatabase(db)
    done = threading.Event()

    async def busy() -> None:
        async def write(start: int) -> None:
            number = start
            while not done.is_set():
                async with adb.transaction() as tx:
                    await tx.insert("t", {"id": number})
                number += 8

        await asyncio.gather(*(write(1_000_000 + n) for n in range(8)))

    loop = threading.Thread(target=lambda: asyncio.run(busy()))
    loop.start()
    for number in range(200):
        insert(db, number)
    done.set()
    loop.join()
    assert ids(db)[:200] == list(range(200))


async def upserts(path: str, prepare: str, table: str, rows: list[dict[str, object]]) -> list[str]:
    """What becomes of transactions that are committed in one turn of the loop, each with one row."""
    db = await vt.aio.connect(path)

    async def one(row: dict[str, object]) -> str:
        try:
            async with db.transaction() as tx:
                await tx.upsert(table, row)
        except vt.Error as error:
            return type(error).__name__
        return "committed"

    try:
        await db.sql(prepare)
        return list(await asyncio.gather(*map(one, rows)))
    finally:
        await db.close()


def test_transactions_that_break_a_unique_alone_do_not_swap_values_together() -> None:
    """Every serial order refuses both, so they must not be judged by what both of them leave."""
    prepare = "CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    rows: list[dict[str, object]] = [{"id": 1, "u": "b"}, {"id": 2, "u": "a"}]
    assert asyncio.run(upserts("memory:", prepare, "t", rows)) == ["IntegrityError", "IntegrityError"]


def test_transactions_that_leave_a_view_without_value_alone_are_refused_together() -> None:
    prepare = (
        "CREATE TABLE s (id int PRIMARY KEY, x int); INSERT INTO s VALUES (0, 1), (1, 0), (2, 0);"
        "CREATE MATERIALIZED VIEW v AS SELECT 10 / SUM(x) AS q FROM s"
    )
    rows: list[dict[str, object]] = [{"id": 1, "x": -1}, {"id": 2, "x": -1}]
    assert asyncio.run(upserts("memory:", prepare, "s", rows)) == ["DataError", "DataError"]


def requests_of(db: vt.Database, numbers: range) -> list[Request]:
    made = []
    for number in numbers:
        tx = db.transaction()
        tx.insert("t", {"id": number})
        made.append(tx._request)
    return made


@pytest.mark.several_ltms
def test_many_at_once_take_few_flushes(db: vt.Database) -> None:
    """Of two that insert the same row one is refused: the later one, where one LTM runs them one after the other. With
    several they run at the same time, in groups, and those of a group that fails are tried again in any order."""
    decided = [CrowdPending(each) for each in (*requests_of(db, range(100)), *requests_of(db, range(90, 110)))]
    db._engine.commit_many(decided)
    assert all(pending.error is None for pending in (*decided[:90], *decided[110:]))
    twice = list(zip(decided[90:100], decided[100:110], strict=True))
    for pair in twice:
        assert sorted(type(pending.error).__name__ for pending in pair) == ["IntegrityError", "NoneType"]
    assert db._engine.several is not None or all(first.error is None for first, _ in twice)
    assert ids(db) == list(range(110))
    assert db.status().flushes < 5


def test_many_at_once_beside_a_thread_that_leads(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowLog(db, monkeypatch)
    leader = threading.Thread(target=insert, args=(db, 1_000))
    leader.start()
    assert slow.reached.wait(30)
    decided = [CrowdPending(each) for each in requests_of(db, range(300))]
    others = [threading.Thread(target=insert, args=(db, 2_000 + number)) for number in range(3)]
    watcher = when_queued(db, 300, lambda: ([thread.start() for thread in others], slow.go_on.set()))
    db._engine.commit_many(decided)
    assert all(pending.error is None and pending.commit_ts for pending in decided)
    for thread in (leader, watcher, *others):
        thread.join(30)
    assert ids(db) == [*range(300), 1_000, 2_000, 2_001, 2_002]
    assert db._engine._leader.acquire(blocking=False), "nobody leads in the end"
    db._engine._leader.release()
