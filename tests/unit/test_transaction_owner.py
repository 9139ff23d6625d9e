"""A transaction belongs to the thread or task that began it; the database belongs to all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import viewtide as vt


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.sql(
            "CREATE TABLE t (id int PRIMARY KEY, a int); CREATE MATERIALIZED VIEW v AS SELECT SUM(a) AS a FROM t"
        )
        yield database


def _in_another_thread(function: Callable[[], object]) -> BaseException | None:
    """What it raises there."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    return raised[0] if raised else None


USES: dict[str, Callable[[vt.Transaction], object]] = {
    "insert": lambda tx: tx.insert("t", {"id": 2}),
    "upsert": lambda tx: tx.upsert("t", {"id": 2}),
    "update": lambda tx: tx.update("t", 1, {"a": 2}),
    "delete": lambda tx: tx.delete("t", 1),
    "get": lambda tx: tx.get("t", 1),
    "scan": lambda tx: tx.scan("t"),
    "sql": lambda tx: tx.sql("TABLE t"),
    "view": lambda tx: tx.view("v").get(),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
}


@pytest.mark.parametrize("use", USES)
def test_another_thread_is_refused_and_changes_nothing(db: vt.Database, use: str) -> None:
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 1})
        error = _in_another_thread(lambda: USES[use](tx))
        assert isinstance(error, vt.InterfaceError)
        assert error.message == "the transaction belongs to the thread that began it"
        assert "begin one in each thread" in error.hint
    assert [dict(row) for row in db.sql("TABLE t")] == [{"id": 1, "a": 1}]


def test_threads_share_the_database(db: vt.Database) -> None:
    def write(number: int) -> None:
        with db.transaction() as tx:
            tx.insert("t", {"id": number, "a": 1})

    assert [_in_another_thread(partial(write, number)) for number in range(3)] == [None] * 3
    assert db.view("v").get() == {"a": 3}


def test_another_task_is_refused() -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
            async with db.transaction() as tx:
                await tx.insert("t", {"id": 1, "a": 1})
                for other in (tx.insert("t", {"id": 2}), tx.get("t", 1), tx.sql("TABLE t"), tx.commit(), tx.rollback()):
                    with pytest.raises(vt.InterfaceError, match="belongs to the task that began it"):
                        await asyncio.create_task(other)
                async with asyncio.timeout(30):
                    assert (await tx.sql("SELECT a FROM t"))[0].a == 1
            assert len(await db.sql("TABLE t")) == 1

    asyncio.run(main())


def test_a_task_may_read_a_view_in_a_thread_beside_it() -> None:
    """A read that waits runs in a thread of the loop's: it is still the same task's."""

    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
            await db.sql("CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS SELECT SUM(a) AS a FROM t")
            token = (await db.sql("INSERT INTO t VALUES (1, 5)")).token
            async with db.transaction() as tx:
                row = await tx.view("d").get(at_least=token)
                assert row is not None
                assert row.a == 5

    asyncio.run(main())


def test_a_transaction_that_was_begun_outside_of_a_task_is_the_first_users() -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
            tx = await asyncio.to_thread(db.transaction)
            await tx.insert("t", {"id": 1})
            await tx.commit()
            assert len(await db.sql("TABLE t")) == 1

    asyncio.run(main())
