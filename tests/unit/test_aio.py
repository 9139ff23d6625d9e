"""`vt.aio`: the same names, awaitable; group commit of tasks, cancellation, tasks beside threads."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt
from viewtide import aio, database

pytestmark = pytest.mark.served

Test = Callable[[aio.AsyncDatabase], Awaitable[None]]


def _run(test: Test, target: str | Path = "memory:") -> None:
    async def main() -> None:
        async with await vt.aio.connect(target) as db:
            await db.create_table("t", {"id": int, "g": str, "x": int}, key="id", indexes=["g"])
            await db.create_view("sums", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
            await db.create_view("total", "SELECT SUM(x) AS x, COUNT(*) AS n FROM t")
            await test(db)

    asyncio.run(main())


def _row(number: int, group: str = "a", x: int = 1) -> dict[str, object]:
    return {"id": number, "g": group, "x": x}


async def _check(db: aio.AsyncDatabase) -> None:
    for name in await db.views():
        report = await db.view(name).verify()
        assert report.ok, report.differences


# --- the same names


@pytest.mark.parametrize(
    ("awaitable", "blocking"),
    [
        (aio.AsyncDatabase, vt.Database),
        (aio.AsyncTransaction, vt.Transaction),
        (aio.AsyncSnapshot, vt.Snapshot),
        (aio.AsyncView, vt.View),
    ],
)
def test_the_names_and_arguments_are_the_same(awaitable: type, blocking: type) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: [parameter for parameter in inspect.signature(member).parameters if parameter != "self"]
            for name in dir(kind)
            if not name.startswith("_") and callable(member := getattr(kind, name)) and name != "commit_async"
        }

    assert public(awaitable) == public(blocking)


def test_connect_takes_the_same_arguments() -> None:
    assert list(inspect.signature(aio.connect).parameters) == list(inspect.signature(vt.connect).parameters)


def test_every_name_works() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        async with db.transaction() as tx:
            await tx.insert("t", [_row(1), _row(2, "b", 5), _row(3, "b", 7)])
            await tx.upsert("t", {"id": 1, "x": 2})
            assert await tx.update("t", 2, {"x": 6}) is True
            assert await tx.delete("t", 3) is True
            assert await tx.delete("t", id=3) is False
            assert await tx.get("t", 1) == await tx.get("t", id=1) == _row(1, "a", 2)
            assert await tx.get_many("t", [2, 3]) == [_row(2, "b", 6), None]
            assert [row["id"] for row in await tx.find("t", g="b")] == [2]
            assert [row["id"] for row in await tx.scan("t", 1, 3, 1)] == [1]
            assert await tx.view("sums").get("b") == {"g": "b", "x": 6, "n": 1}
            assert (await tx.view("sums").scan("b")).rowcount == 1
            assert (await tx.view("sums").rows()).rowcount == 2
            query = vt.query(vt.JoinTable("t"), select={"id": "t.id"})
            assert [row["id"] for row in await tx.join(query, start={"t.g": "b"})] == [2]
        token = tx.token
        view = db.view("sums")
        assert await view.get("b", at_least=token) == await view.get(g="b", latest=True, max_lag="1s")
        assert (await view.scan(limit=1)).rowcount == 1 and (await view.rows()).rowcount == 2
        assert (await view.to_arrow()).num_rows == len(await view.to_pandas()) == 2
        status = await view.status()
        assert (status.name, status.rows) == ("sums", 2)
        assert "change of t" in await view.explain()
        assert await view.refresh() >= token.commit_ts
        await view.set_refresh("sync")
        assert (await view.verify()).ok
        async with db.snapshot() as snapshot:
            assert snapshot.token.commit_ts == token.commit_ts
            assert await snapshot.get("t", 2) == _row(2, "b", 6)
            assert await snapshot.view("total").get() == {"x": 8, "n": 2}
        await db.create_index("t", "x")
        await db.add_column("t", "y", int)
        await db.drop_column("t", "y")
        await db.drop_index("t", "x")
        assert "change of t" in await db.explain_view("SELECT id FROM t")
        await db.create_table("u", {"id": int}, key="id")
        assert await db.tables() == ["t", "u"]
        await db.drop_table("u")
        await db.drop_view("total")
        assert await db.views() == ["sums"]
        assert (await db.status()).tables == 1
        await _check(db)

    _run(test)


def test_what_is_there_at_once_can_be_awaited_too() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        tx = await db.transaction()
        await tx.insert("t", [_row(1), _row(2, "b")])
        assert await (await tx.view("sums")).get("b") == {"g": "b", "x": 1, "n": 1}
        token = await tx.commit()
        async with await db.transaction() as tx:
            await tx.insert("t", _row(3, "b"))
        view = await db.view("sums")
        assert await view.get("b") == {"g": "b", "x": 2, "n": 2}
        watermarks = [change.watermark async for change in await view.changes(since=token)]
        assert watermarks == [tx.token.commit_ts]
        assert (await db.table("t")).name == "t"

        for views in ([], ["sums"]):
            snapshot = await db.snapshot(views=views)
            assert snapshot.token >= tx.token  # it has begun
            async with db.transaction() as later:
                await later.delete("t", 3)
            async with await db.snapshot() as newer, snapshot:
                assert await newer.get("t", 3) is None
                assert await snapshot.get("t", 3) == _row(3, "b")
                assert (await (await snapshot.view("sums")).rows()).rowcount == 2
            with pytest.raises(vt.InterfaceError):
                await snapshot.get("t", 3)
            async with db.transaction() as tx:
                await tx.insert("t", _row(3, "b"))

    _run(test)


def test_rows_are_awaited_or_iterated() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        async with db.transaction() as tx:
            await tx.insert("t", [_row(number, "ab"[number % 2]) for number in range(4)])
        query = vt.query(vt.JoinTable("t"), select={"id": "t.id"})

        def reads(of: aio.AsyncTransaction | aio.AsyncSnapshot) -> list[aio.AsyncRows[Sequence[vt.Row | None]]]:
            on_views = [of.view("sums").scan(), of.view("sums").rows()]
            return [of.get_many("t", [1, 9]), of.find("t", g="a"), of.scan("t"), of.join(query), *on_views]

        view, sql = db.view("sums"), "SELECT id FROM t"
        async with db.transaction() as tx, db.snapshot() as snapshot:
            awaited = [await rows for rows in [*reads(tx), *reads(snapshot), view.scan(), view.rows()]]
            iterated = [
                [row async for row in rows] for rows in [*reads(tx), *reads(snapshot), view.scan(), view.rows()]
            ]
            assert awaited == iterated
            assert [len(rows) for rows in iterated] == [2, 2, 4, 4, 2, 2] * 2 + [2, 2]
            for of in (db, tx, snapshot):
                assert (
                    [row["id"] async for row in of.sql(sql)] == [row["id"] for row in await of.sql(sql)] == [*range(4)]
                )

    _run(test)


def test_what_is_to_be_awaited_is_a_coroutine() -> None:
    """So it is for create_task(), gather() and asyncio.run(), is closed unused, and passes on what is thrown in."""

    async def main(db: aio.AsyncDatabase) -> None:
        await db.create_table("u", {"id": int}, key="id")
        await db.create_view("v", "SELECT id FROM u")
        await db.sql("INSERT INTO u VALUES (1)")
        task = asyncio.create_task(db.view("v").scan())
        assert await asyncio.gather(task, db.view("v").rows()) == [[{"id": 1}], [{"id": 1}]]
        db.view("v").rows().close()
        for thrown in ((KeyError,), (KeyError, "x"), (KeyError, KeyError("x"), None), (KeyError("x"),)):
            with pytest.raises(KeyError):
                db.view("v").rows().throw(*thrown)
        await db.close()

    asyncio.run(main(asyncio.run(vt.aio.connect("memory:"))))


def test_connect_is_entered_or_awaited(db_path: Path) -> None:
    async def main() -> None:
        async with vt.aio.connect(db_path) as db:
            await db.create_table("u", {"id": int}, key="id")
        with pytest.raises(vt.InterfaceError, match="closed"):
            await db.tables()
        with pytest.raises(ZeroDivisionError):
            async with vt.aio.connect(db_path) as db:
                raise ZeroDivisionError
        with pytest.raises(vt.InterfaceError):
            async with vt.aio.connect(db_path, cache_rows=0):
                pass
        db = await vt.aio.connect(db_path)
        assert await db.tables() == ["u"]
        await db.close()

    asyncio.run(main())


def test_who_forgets_to_await_is_told_so() -> None:
    opening = vt.aio.connect("memory:")
    with pytest.raises(AttributeError, match=r"no 'transaction' before the database is open: .*await vt.aio.connect"):
        opening.transaction()  # type: ignore[attr-defined]
    assert not hasattr(opening, "__deepcopy__") and not hasattr(copy.copy(opening), "_opened")
    assert inspect.isawaitable(opening) and isinstance(opening, Coroutine)
    with pytest.raises(vt.InterfaceError, match="not entered by `with`"), opening:  # type: ignore[attr-defined]
        pass
    opening.close()


def test_who_forgets_async_before_with_is_told_so() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        for entered in (db, db.transaction(), db.snapshot(), db.view("sums").changes()):
            with pytest.raises(vt.InterfaceError) as raised, entered:  # type: ignore[attr-defined]
                pass
            assert raised.value.hint == "write `async with`"

    _run(test)


def test_commit_rollback_and_exceptions() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        tx = db.transaction()
        await tx.insert("t", _row(1))
        assert await tx.commit() == tx.token
        tx = db.transaction()
        await tx.insert("t", _row(2))
        await tx.rollback()
        with pytest.raises(vt.InterfaceError):
            await tx.commit()
        with pytest.raises(ZeroDivisionError):
            async with db.transaction() as tx:
                await tx.insert("t", _row(3))
                raise ZeroDivisionError
        async with db.transaction() as tx:
            assert [row["id"] for row in await tx.scan("t")] == [1]
        assert tx.token.commit_ts > 0
        snapshot = db.snapshot()
        await snapshot.get("t", 1)
        await snapshot.close()
        with pytest.raises(vt.InterfaceError):
            await snapshot.get("t", 1)

    _run(test)


@pytest.mark.embedded("whether there is a view, its first awaited call tells")
def test_errors_are_the_same() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        with pytest.raises(vt.ProgrammingError):
            db.view("nope")
        with pytest.raises(vt.UnsupportedView):
            await db.create_view("v", "SELECT id FROM t LIMIT 1")
        async with db.transaction() as tx:
            await tx.insert("t", _row(1))
            with pytest.raises(vt.IntegrityError):
                await tx.insert("t", _row(1))
            with pytest.raises(vt.DataError):
                await tx.update("t", 1, {"x": "one"})
        await db.create_view("shares", "SELECT id, 10 / x AS share FROM t")
        with pytest.raises(vt.DataError):
            async with db.transaction() as tx:
                await tx.insert("t", _row(2, "a", 0))
        first, second = db.transaction(), db.transaction()
        for tx in (first, second):
            row = await tx.get("t", 1)
            assert row is not None
            await tx.update("t", 1, {"x": cast(int, row["x"]) + 1})
        await first.commit()
        with pytest.raises(vt.TransactionConflict):
            await second.commit()
        await _check(db)
        await db.close()
        with pytest.raises(vt.InterfaceError):
            db.transaction()

    _run(test)


# --- many tasks


def test_16_tasks_share_flushes(tmp_path: Path) -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        async def work(number: int) -> list[vt.Token]:
            tokens = []
            for turn in range(20):
                async with db.transaction() as tx:
                    await tx.insert("t", _row(number * 100 + turn, f"g{number % 3}"))
                tokens.append(tx.token)
            return tokens

        before = await db.status()
        tokens = await asyncio.gather(*(work(number) for number in range(16)))
        after = await db.status()
        assert after.commits - before.commits == 320
        assert 20 <= after.flushes - before.flushes <= 320 // 4
        assert all(mine == sorted(mine) for mine in tokens)
        assert len({token for mine in tokens for token in mine}) == 320
        assert await db.view("total").get() == {"x": 320, "n": 320}
        await _check(db)

    _run(test, tmp_path / "db")


def test_more_tasks_than_one_flush_takes() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        async def insert(number: int) -> None:
            async with db.transaction() as tx:
                await tx.insert("t", _row(number))

        await asyncio.gather(*(insert(number) for number in range(1000)))
        assert await db.view("total").get() == {"x": 1000, "n": 1000}

    _run(test)


def test_run_repeats_conflicts_of_tasks() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        async def increment(tx: aio.AsyncTransaction, by: int, *, number: int) -> int:
            row = await tx.get("t", number)
            assert row is not None
            await asyncio.sleep(0)
            x = cast(int, row["x"]) + by
            await tx.update("t", number, {"x": x})
            return x

        async with db.transaction() as tx:
            await tx.insert("t", _row(1, "a", 0))
        results = await asyncio.gather(*(db.run(increment, 1, number=1) for _ in range(10)))
        assert sorted(results) == list(range(1, 11))

        twice = db.transactional(increment)
        assert await twice(5, number=1) == 15
        assert await db.view("total").get() == {"x": 15, "n": 1}

    _run(test)


def test_run_of_tasks_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RUN_DEADLINE_MS", 20)
    attempts: list[int] = []

    async def test(db: aio.AsyncDatabase) -> None:
        async def conflict(tx: aio.AsyncTransaction) -> None:
            attempts.append(1)
            raise vt.TransactionConflict("never")

        async def fail(tx: aio.AsyncTransaction) -> None:
            attempts.append(1)
            raise vt.DataError("once")

        with pytest.raises(vt.TransactionConflict):
            await db.run(conflict)
        assert len(attempts) > 1
        attempts.clear()
        with pytest.raises(vt.DataError):
            await db.run(fail)
        assert len(attempts) == 1

    _run(test)


def test_one_bad_task_does_not_harm_the_others_of_its_flush() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        await db.create_view("shares", "SELECT id, 10 / x AS share FROM t")

        async def insert(number: int) -> None:
            async with db.transaction() as tx:
                await tx.insert("t", _row(number, "a", number % 2))

        results = await asyncio.gather(*(insert(number) for number in range(20)), return_exceptions=True)
        assert [type(result) for result in results] == [vt.DataError, type(None)] * 10
        assert await db.view("total").get() == {"x": 10, "n": 10}
        await _check(db)

    _run(test)


# --- cancellation


def test_a_task_cancelled_during_commit_leaves_all_or_nothing() -> None:
    """Cancelled in every turn of the loop that a commit takes: the row and the views agree, and work goes on."""

    async def test(db: aio.AsyncDatabase) -> None:
        async def insert(number: int) -> None:
            async with db.transaction() as tx:
                await tx.insert("t", [_row(number), _row(number + 1)])

        for turns in range(6):
            tasks = [asyncio.create_task(insert(turns * 1000 + number * 10)) for number in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            async with db.snapshot() as snapshot:
                for number, result in enumerate(results):
                    first = turns * 1000 + number * 10
                    found = len(await snapshot.scan("t", first, first + 2))
                    assert found == 2 if result is None else found in (0, 2)
                rows = await snapshot.scan("t")
                assert await snapshot.view("total").get() == {"x": len(rows) or None, "n": len(rows)}
            await insert(turns * 1000 + 500)
        await _check(db)
        assert db._database._engine.ltm.horizon.pins == {}

    _run(test)


@pytest.mark.embedded("wraps a database of this process")
def test_a_commit_whose_loop_is_gone_does_not_stop_the_others(tmp_path: Path) -> None:
    """A task is cancelled while a thread leads; its loop is closed before the thread comes to its transaction."""
    with vt.connect(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, key="id")
        engine = db._engine
        assert engine._leader.acquire(blocking=False)

        async def committing() -> None:
            tx = aio.AsyncDatabase(db).transaction()
            await tx.insert("t", {"id": 1})
            await tx.commit()

        async def cancelled() -> None:
            task = asyncio.ensure_future(committing())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        other = threading.Thread(target=asyncio.run, args=(cancelled(),))
        other.start()
        other.join()
        engine._leader.release()

        outcomes: list[object] = []

        def commit(number: int) -> None:
            try:
                with db.transaction() as tx:
                    tx.insert("t", {"id": number})
                outcomes.append("committed")
            except BaseException as error:
                outcomes.append(error)

        for number in (2, 3):
            thread = threading.Thread(target=commit, args=(number,), daemon=True)
            thread.start()
            thread.join(timeout=5)
            hung = thread.is_alive()
            if hung:
                engine._leader.release()  # so that the database can be closed
                thread.join(timeout=5)
            assert not hung
        assert outcomes == ["committed", "committed"]
        with db.snapshot() as snapshot:
            assert {2, 3} <= {row["id"] for row in snapshot.scan("t")}


# --- beside threads


def test_tasks_and_threads_share_a_database(tmp_path: Path) -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        blocking = db._database
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(40):
                    with blocking.transaction() as tx:
                        tx.insert("t", _row(100_000 + number * 100 + turn, "thread"))
            except BaseException as error:
                failures.append(error)

        async def task(number: int) -> None:
            for turn in range(40):
                async with db.transaction() as tx:
                    await tx.insert("t", _row(number * 100 + turn, "task"))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(asyncio.gather(*(task(number) for number in range(8))), timeout=30)
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        assert failures == []
        assert await db.view("sums").rows() == [
            {"g": "task", "x": 320, "n": 320}, {"g": "thread", "x": 160, "n": 160},
        ]  # fmt: skip
        await _check(db)

    _run(test, tmp_path / "db")


@pytest.mark.embedded("wraps a database of this process")
def test_a_loop_that_is_not_run_just_now_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: a task of it waits in the queue before that of another loop, and cannot be called to lead."""
    with vt.connect("memory:") as blocking:
        blocking.create_table("t", {"id": int}, key="id")
        db = aio.AsyncDatabase(blocking)
        flushing, may_flush = threading.Event(), threading.Event()
        ltm = blocking._engine.ltm
        flush = ltm.flush

        def slow() -> None:
            if threading.current_thread() is leader:
                flushing.set()
                assert may_flush.wait(20)
            flush()

        def write() -> None:
            with blocking.transaction() as tx:
                tx.insert("t", {"id": 1})

        async def insert(number: int) -> None:
            async with db.transaction() as tx:
                await tx.insert("t", {"id": number})

        async def begin() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(insert(2), 0.05)

        async def wait() -> None:
            waiting = asyncio.ensure_future(insert(3))
            await asyncio.sleep(0.05)
            may_flush.set()
            await asyncio.wait_for(waiting, 20)

        monkeypatch.setattr(ltm, "flush", slow)
        leader = threading.Thread(target=write)
        leader.start()
        assert flushing.wait(20)
        stopped = asyncio.new_event_loop()
        try:
            stopped.run_until_complete(begin())
            asyncio.run(wait())
            leader.join(20)
            with blocking.snapshot() as snapshot:
                assert [row.id for row in snapshot.scan("t")] == [1, 2, 3]
        finally:
            stopped.close()


@pytest.mark.embedded("wraps a database of this process")
def test_two_loops_share_a_database() -> None:
    with vt.connect("memory:") as blocking:
        blocking.create_table("t", {"id": int}, key="id")
        failures: list[BaseException] = []

        async def work(first: int) -> None:
            db = aio.AsyncDatabase(blocking)

            async def insert(number: int) -> None:
                async with db.transaction() as tx:
                    await tx.insert("t", {"id": number})

            for turn in range(10):
                await asyncio.gather(*(insert(first + turn * 10 + number) for number in range(10)))

        def loop(first: int) -> None:
            try:
                asyncio.run(work(first))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=loop, args=(first,), daemon=True) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert failures == [] and not any(thread.is_alive() for thread in threads)
        with blocking.snapshot() as snapshot:
            assert len(snapshot.scan("t")) == 300


def test_a_view_is_created_while_tasks_write() -> None:
    async def test(db: aio.AsyncDatabase) -> None:
        async with db.transaction() as tx:
            await tx.insert("t", [_row(number, f"g{number % 5}") for number in range(1500)])
        stop = False

        async def write(number: int) -> int:
            turn = 0
            while not stop:
                turn += 1
                async with db.transaction() as tx:
                    await tx.upsert("t", _row((number * 379 + turn * 13) % 1600, f"g{turn % 5}", turn))
                await asyncio.sleep(0)
            return turn

        writers = [asyncio.create_task(write(number)) for number in range(4)]
        view = await db.create_view("late", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
        assert (await view.verify()).ok
        stop = True
        assert min(await asyncio.gather(*writers)) > 0
        await _check(db)

    _run(test)
