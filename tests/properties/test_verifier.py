"""The result verifier (Nikolov, 6.2): load whose every intermediate result has properties that are easy to check.

Each of g generators submits n transactions that insert k events of the value v and m that delete k of its own. While
they run, every total is a multiple of k * v and every count one of k, whatever the interleaving; at the end the sum is
exactly g * (n - m) * k * v.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import pytest

import viewtide as vt

pytestmark = pytest.mark.several_ltms


class Load(NamedTuple):
    generators: int = 8
    inserts: int = 24
    deletes: int = 10
    rows: int = 5
    value: int = 7

    @property
    def total(self) -> int:
        return self.generators * (self.inserts - self.deletes) * self.rows * self.value

    def is_possible(self, row: vt.Row | None) -> bool:
        """Is this a result that some whole number of transactions gives?"""
        if row is None:
            return True
        cost, n = row["cost"] or 0, row["n"]
        assert isinstance(cost, int) and isinstance(n, int)
        return cost == n * self.value and n % self.rows == 0 and n >= 0


LOAD = Load()
PRODUCTS = 6
CATEGORIES = 3
VIEWS = {
    "total": "SELECT SUM(cost) AS cost, COUNT(*) AS n FROM events",
    "by_product": "SELECT product, SUM(cost) AS cost, COUNT(*) AS n FROM events GROUP BY product",
    "by_category": (
        "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n"
        " FROM events e JOIN products p ON e.product = p.id GROUP BY p.category"
    ),
}


def _create(db: vt.Database) -> None:
    db.create_table("products", {"id": int, "category": int}, key="id")
    db.create_table("events", {"id": int, "product": int, "cost": vt.column(int, nullable=False)}, key="id")
    with db.transaction() as tx:
        tx.insert("products", [{"id": i, "category": i % CATEGORIES} for i in range(PRODUCTS)])
    for name, sql in VIEWS.items():
        db.create_view(name, sql)


class Step(NamedTuple):
    insert: bool
    product: int
    ids: list[int]


def _steps(load: Load, generator: int) -> list[Step]:
    """The transactions of one generator in arbitrary order; it deletes only what it inserted before."""
    choose = random.Random(generator)
    kinds = [True] * load.inserts + [False] * load.deletes
    choose.shuffle(kinds)
    steps: list[Step] = []
    live: list[Step] = []
    inserted = waiting = 0
    for insert in kinds:
        if not insert and not live:
            waiting += 1
            continue
        if insert:
            first = (generator * load.inserts + inserted) * load.rows
            step = Step(True, choose.randrange(PRODUCTS), list(range(first, first + load.rows)))
            inserted += 1
            live.append(step)
        else:
            step = live.pop(choose.randrange(len(live)))._replace(insert=False)
        steps.append(step)
    return steps + [live.pop()._replace(insert=False) for _ in range(waiting)]


def _rows(load: Load, step: Step) -> list[dict[str, object]]:
    return [{"id": event, "product": step.product, "cost": load.value} for event in step.ids]


def _check_snapshot(load: Load, snapshot: vt.Snapshot) -> None:
    """All three views at one timestamp: each result is possible, and they agree with each other."""
    total = snapshot.view("total").get()
    assert total is not None and load.is_possible(total)
    for name in ("by_product", "by_category"):
        rows = snapshot.view(name).rows()
        assert all(load.is_possible(row) for row in rows), name
        assert sum(cast(int, row["cost"]) for row in rows) == (total["cost"] or 0)
        assert sum(cast(int, row["n"]) for row in rows) == total["n"]


def _check_end(load: Load, db: vt.Database) -> None:
    total = db.view("total").get()
    assert total == {"cost": load.total, "n": load.total // load.value}
    for name in VIEWS:
        report = db.view(name).verify()
        assert report.ok, report.differences
    with db.snapshot() as snapshot:
        assert len(snapshot.scan("events")) == load.total // load.value


@pytest.mark.parametrize("cache_rows", [200_000, 100], ids=["in_memory", "through_the_store"])
@pytest.mark.parametrize("target", ["memory", "directory"])
def test_every_total_that_a_verifier_thread_sees_is_possible(tmp_path: Path, target: str, cache_rows: int) -> None:
    path = "memory:" if target == "memory" else str(tmp_path / "db")
    with vt.connect(path, cache_rows=cache_rows) as db:
        _create(db)
        failures: list[BaseException] = []
        checks = [0]
        running = threading.Event()

        def generate(generator: int) -> None:
            for step in _steps(LOAD, generator):
                with db.transaction() as tx:
                    if step.insert:
                        tx.insert("events", _rows(LOAD, step))
                    else:
                        for event in step.ids:
                            assert tx.delete("events", event)

        def verify() -> None:
            while not running.is_set():
                with db.snapshot() as snapshot:
                    _check_snapshot(LOAD, snapshot)
                assert LOAD.is_possible(db.view("total").get())
                assert LOAD.is_possible(db.view("by_category").get(1))
                checks[0] += 1

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        verifier = threading.Thread(target=guarded, args=(verify,))
        generators = [threading.Thread(target=guarded, args=(lambda g=g: generate(g),)) for g in range(LOAD.generators)]
        verifier.start()
        for thread in generators:
            thread.start()
        for thread in generators:
            thread.join()
        running.set()
        verifier.join()
        assert failures == []
        assert checks[0] > 0
        _check_end(LOAD, db)
    if target == "directory":
        with vt.connect(path) as db:
            _check_end(LOAD, db)


def test_every_total_that_a_verifier_task_sees_is_possible(tmp_path: Path) -> None:
    async def generate(db: vt.aio.AsyncDatabase, generator: int) -> None:
        for step in _steps(LOAD, generator):
            async with db.transaction() as tx:
                if step.insert:
                    await tx.insert("events", _rows(LOAD, step))
                else:
                    for event in step.ids:
                        assert await tx.delete("events", event)

    async def verify(db: vt.aio.AsyncDatabase) -> int:
        checks = 0
        while True:
            try:
                async with db.snapshot() as snapshot:
                    _check_snapshot(LOAD, snapshot._reads)
                    total = await snapshot.view("total").get()
                assert LOAD.is_possible(total)
                assert LOAD.is_possible(await db.view("by_category").get(1))
                checks += 1
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                return checks

    async def main() -> None:
        async with await vt.aio.connect(tmp_path / "db") as db:
            await asyncio.to_thread(_create, db._database)
            before = await db.status()
            verifier = asyncio.create_task(verify(db))
            await asyncio.gather(*(generate(db, generator) for generator in range(LOAD.generators)))
            verifier.cancel()
            assert await verifier > 0
            after = await db.status()
            assert after.flushes - before.flushes < after.commits - before.commits
            _check_end(LOAD, db._database)

    asyncio.run(main())


def test_the_verifier_sees_a_transaction_that_is_not_atomic() -> None:
    """The check does check: the same load with one row less in one transaction."""
    with vt.connect("memory:") as db:
        _create(db)
        step = _steps(LOAD, 0)[0]
        with db.transaction() as tx:
            tx.insert("events", _rows(LOAD, step)[1:])
        with db.snapshot() as snapshot, pytest.raises(AssertionError):
            _check_snapshot(LOAD, snapshot)
