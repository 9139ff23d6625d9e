"""vt.aio over deferred views: the same names, and no wait that holds the loop."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import viewtide as vt
from viewtide import aio
from viewtide.coordinator.vms.managers import ViewManagers
from viewtide.reads import Snapshot, ViewReads

pytestmark = pytest.mark.served

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"


async def filled(view_managers: int = 1) -> aio.AsyncDatabase:
    db = await aio.connect("memory:", view_managers=view_managers)
    await db.create_table("e", {"id": int, "g": int, "v": int}, key="id")
    await write(db, *range(10))
    return db


async def write(db: aio.AsyncDatabase, *ids: int, v: int = 1) -> vt.Token:
    async with db.transaction() as tx:
        await tx.upsert("e", [{"id": id, "g": id % 2, "v": v} for id in ids])
    return tx.token


async def total(view: aio.AsyncView | aio.AsyncViewReads, **levels: object) -> object:
    rows = await view.rows(**levels)  # type: ignore[arg-type]
    return sum(int(str(row["s"])) for row in rows)


def test_read_levels() -> None:
    async def main() -> None:
        async with await filled() as db:
            v = await db.create_view("d", SUMS, refresh="manual", backlog_rows=100, group="g")
            token = await write(db, 100)
            assert await total(v) == 10
            assert await total(v, at_least=token) == 11
            await write(db, 102)
            assert await total(v, latest=True) == 12
            token = await write(db, 104)
            row = await v.get(0, at_least=token)
            assert row is not None
            assert row.n == 8
            assert (await v.scan(start=0, stop=1, at_least=token))[0].n == 8
            assert (await v.rows(max_lag="100ms")).lag_ms <= 100
            token = await write(db, 106)
            async with db.snapshot() as s:
                assert await total(s.view("d"), at_least=token) == 14
                newer = await write(db, 108)
                with pytest.raises(vt.StaleRead):
                    await s.view("d").get(0, at_least=newer)
                with pytest.raises(vt.StaleRead):
                    await s.get("e", 1, at_least=newer)
                with pytest.raises(vt.StaleRead):
                    await s.scan("e", at_least=newer)
                with pytest.raises(vt.StaleRead):
                    await s.get_many("e", [1], at_least=newer)
            async with db.snapshot(at_least=newer) as s:
                assert (await s.sql("SELECT SUM(s) AS s FROM d"))[0].s == 15
            async with db.transaction() as tx:
                assert await total(tx.view("d"), latest=True) == 15

    asyncio.run(main())


def test_waiting_does_not_hold_the_loop() -> None:
    async def main() -> None:
        async with await filled() as db:
            v = await db.create_view("d", SUMS, refresh="manual")
            await db.create_view("b", SUMS, refresh="manual")
            token = await write(db, 100)
            refresher = db._database._node.refresher
            entered, leave = asyncio.Event(), asyncio.Event()

            async def everything() -> list[object]:
                async with db.snapshot(views=["d", "b"]) as s:
                    aligned = await total(s.view("d"))
                async with db.snapshot(at_least=token) as s:
                    levels = await total(s.view("d"))
                return [await total(v, at_least=token), await v.refresh(), aligned, levels]

            async def hold() -> None:
                held = refresher.held(["d"])
                await asyncio.to_thread(held.__enter__)
                entered.set()
                await leave.wait()
                held.__exit__(None, None, None)

            holding = asyncio.create_task(hold())
            await entered.wait()
            waiting = asyncio.create_task(everything())
            for _ in range(50):
                await write(db, 200)  # tasks go on while the reads wait
            assert not waiting.done()
            leave.set()
            assert (await waiting)[0] == 12
            await holding

    asyncio.run(main())


def test_modes_status_and_view_managers() -> None:
    async def main() -> None:
        async with await filled(view_managers=2) as db:
            v = await db.create_view("d", SUMS, refresh=vt.target_lag("1s"))
            assert (await v.status()).mode == "target_lag"
            for mode in ("sync", "0ms", "manual"):
                await v.set_refresh(mode)
                assert (await v.status()).refresh == mode
                assert await total(v, at_least=await write(db, 100, v=5)) == 15
            watermark = await v.refresh()
            assert (await v.status()).watermark >= watermark
            assert (await v.verify()).ok
            assert (await v.repair()).ok
            managers = db.view_managers
            assert await managers.add() == 3
            await managers.withdraw(1)
            await managers.assign(1)
            await managers.reassign(1, (await db.status()).ltms[0])
            await managers.remove(2)
            assert [each.id for each in await managers.status()] == [1, 3]
            assert [each.id for each in (await db.status()).view_managers] == [1, 3]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("blocking", "awaitable"),
    [
        (vt.View, aio.AsyncView),
        (ViewReads, aio.AsyncViewReads),
        (Snapshot, aio.AsyncSnapshot),
        (ViewManagers, aio.AsyncViewManagers),
        (vt.Database, aio.AsyncDatabase),
    ],
)
def test_the_same_names_take_the_same_arguments(blocking: type, awaitable: type) -> None:
    for name, method in inspect.getmembers(awaitable, inspect.isfunction):
        if not name.startswith("_"):
            known = inspect.signature(getattr(blocking, name)).parameters
            assert list(inspect.signature(method).parameters) == list(known), f"{awaitable.__name__}.{name}"
