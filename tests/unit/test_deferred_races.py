"""What readers find when views are published, switched, dropped and made again between two of their looks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

import viewtide as vt
from viewtide import reads
from viewtide.coordinator import deferred
from viewtide.coordinator.refresher import Refresher
from viewtide.freshness import Levels
from viewtide.ltm import versions
from viewtide.ltm.tables import ViewRows
from viewtide.ltm.versions import IndexVersions
from viewtide.ports import OpenNode

WAIT_S = 20.0
#: For something that must not happen: long enough for it to happen where it could.
SOON_S = 0.3
COUNTS = "SELECT g, COUNT(*) AS n FROM t GROUP BY g"
ONE_ROW = "SELECT COUNT(*) AS n FROM t"


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.create_table("t", {"id": int, "g": int}, key="id")
        yield database


def insert(db: vt.Database, first: int, count: int = 1) -> vt.Token:
    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "g": number % 3} for number in range(first, first + count)])
    return tx.token


class LateSnapshot(threading.Thread):
    """A snapshot over some views that holds their groups when it may, and gets the engine's lock later."""

    def __init__(self, db: vt.Database, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        super().__init__(daemon=True)
        self._db, self._names = db, names
        self.begun, self.may_hold = threading.Event(), threading.Event()
        self.holds, self.may_go = threading.Event(), threading.Event()
        self.rows: dict[str, list[vt.Row]] = {}
        self.failure: BaseException | None = None
        held = Refresher.held

        @contextmanager
        def slow(refresher: Refresher, names: Iterable[str]) -> Iterator[set[tuple[int, ...]]]:
            if threading.current_thread() is self and not self.begun.is_set():
                self.begun.set()
                assert self.may_hold.wait(WAIT_S)
            with held(refresher, names) as ids:
                if threading.current_thread() is self and not self.holds.is_set():
                    self.holds.set()
                    assert self.may_go.wait(WAIT_S)
                yield ids

        monkeypatch.setattr(Refresher, "held", slow)
        self.start()
        assert self.begun.wait(WAIT_S)

    def hold(self) -> None:
        self.may_hold.set()
        assert self.holds.wait(WAIT_S)

    def run(self) -> None:
        try:
            with self._db.snapshot(views=self._names) as snapshot:
                self.rows = {name: list(snapshot.view(name).rows()) for name in self._names}
        except BaseException as error:
            self.failure = error

    def go(self) -> None:
        self.may_go.set()
        self.join(WAIT_S)
        assert not self.is_alive()


def test_a_common_watermark_of_a_view_that_just_became_deferred(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of the new group, which the snapshot does not hold, is open: a second one would count all again."""
    insert(db, 0, 90)
    view = db.create_view("v", COUNTS)
    late = LateSnapshot(db, monkeypatch, "v")
    late.hold()
    view.set_refresh("0ms")
    refresher = db._node.refresher
    paused, go_on = threading.Event(), threading.Event()

    def on_point(point: str) -> None:
        if point == "after refreshed" and not paused.is_set():
            with refresher._turns.let_go():
                paused.set()
                assert go_on.wait(WAIT_S)

    refresher.on_point = on_point
    token = insert(db, 100, 30)
    assert paused.wait(WAIT_S)
    late.may_go.set()
    go_on.set()
    late.go()
    assert late.failure is None
    assert [row.n for row in late.rows["v"]] == [40, 40, 40]
    assert [row.n for row in view.rows(at_least=token)] == [40, 40, 40]
    assert view.verify().ok


def test_a_common_watermark_of_a_view_that_is_being_made_again(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(db, 0, 90)
    db.create_view("v", COUNTS, refresh="manual")
    late = LateSnapshot(db, monkeypatch, "v")
    db.drop_view("v")
    late.hold()
    compute = deferred._compute

    def watched(*args: object) -> object:
        late.may_go.set()
        late.join(SOON_S)
        return compute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(deferred, "_compute", watched)
    view = db.create_view("v", COUNTS, refresh="manual")
    late.go()
    assert late.failure is None and [row.n for row in late.rows["v"]] == [30, 30, 30]
    view.refresh()
    assert [row.n for row in view.rows()] == [30, 30, 30] and view.verify().ok


def test_a_common_watermark_of_a_view_that_was_dropped(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.create_view("v", COUNTS)  # a synchronous view is not held
    late = LateSnapshot(db, monkeypatch, "v")
    late.hold()
    db.drop_view("v")
    late.go()
    assert isinstance(late.failure, vt.ProgrammingError) and "there is no view 'v'" in str(late.failure)


def test_levels_are_kept_while_a_view_is_switched(db: vt.Database) -> None:
    view = db.create_view("v", ONE_ROW, refresh="manual")
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                token = insert(db, number)
                assert view.get(latest=True).n == number
                assert (view.rows(max_lag="5s").watermark or 0) > 0
                assert view.get(at_least=token).n == number
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(30):
        view.set_refresh(("sync", "manual", "0ms")[number % 3])
    stop.set()
    reader.join(WAIT_S)
    assert failures == []


def test_what_leaves_the_memory_of_an_index_is_looked_for_in_the_store(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers hold no lock: one may come between any two lines of the end of a checkpoint."""
    db.create_index("t", "g")
    insert(db, 0, 300)
    entries = db._engine.ltm.tables.by_name["t"].indexes[0]
    found: list[bool] = []

    def watched(*args: bytes) -> bytes:
        if sys._getframe(1).f_code is IndexVersions.checkpointed.__code__:
            found.append(bool(entries.versions._by_prefix_frozen or entries.versions.noted_frozen))
        return max(*args)

    monkeypatch.setattr(versions, "max", watched, raising=False)
    db._engine.checkpoint()
    assert found == [True], "memory was empty before the store was known to have it"


def test_a_view_that_was_dropped_is_not_the_latest(db: vt.Database) -> None:
    db.create_view("v", ONE_ROW, refresh="manual")
    with db.snapshot() as before:
        insert(db, 1)
        db.drop_view("v")
        with pytest.raises(vt.TransactionConflict, match="was dropped"):
            before.view("v").rows(latest=True)
        assert [row.n for row in before.view("v").rows()] == [0]  # as it was
    db.create_view("v", ONE_ROW, refresh="manual")
    with db.snapshot() as before:
        token = insert(db, 2)
        db.drop_view("v")
        db.create_view("v", ONE_ROW, refresh="manual")
        with pytest.raises(vt.TransactionConflict, match="was dropped"):
            before.view("v").rows(at_least=token)


def test_a_read_of_a_view_that_is_made_again_meanwhile_begins_again(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = db.create_view("v", ONE_ROW, refresh="manual")
    token = insert(db, 1)
    freshen = reads.freshen
    calls: list[str] = []

    def slow(node: OpenNode, rows: ViewRows, levels: Levels) -> bool:
        calls.append(rows.view.name)
        if len(calls) == 1:
            db.drop_view("v")
            db.create_view("v", ONE_ROW, refresh="manual")
        return freshen(node, rows, levels)

    monkeypatch.setattr(reads, "freshen", slow)
    result = view.rows(at_least=token)
    assert [row.n for row in result] == [1] and (result.watermark or 0) >= token.commit_ts and len(calls) == 2


@pytest.mark.parametrize("first", ["va", "vb"])
def test_a_group_that_was_divided_is_not_read_at_one_watermark(db: vt.Database, first: str) -> None:
    db.create_table("u", {"id": int, "g": int}, key="id")
    db.create_view("va", "SELECT id, g FROM t", refresh="manual")
    db.create_view("vb", "SELECT id, g FROM u", refresh="manual")
    db.create_view("vc", "SELECT va.id, vb.g FROM va JOIN vb ON va.id = vb.id", refresh="manual")
    with db.snapshot() as before:
        db.drop_view("vc")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "g": 1})
            tx.insert("u", {"id": 1, "g": 1})
        db.view("va").refresh()
        with pytest.raises(vt.TransactionConflict, match="refreshed in another way"):
            before.view(first).rows()


def test_a_group_that_lost_a_view_is_not_read_at_one_watermark(db: vt.Database) -> None:
    for name in ("va", "vb"):
        db.create_view(name, ONE_ROW, refresh="manual", group="together")
    with db.snapshot() as before:
        insert(db, 1)
        db.drop_view("vb")
        db.view("va").refresh()
        for name in ("va", "vb"):
            with pytest.raises(vt.TransactionConflict, match="refreshed in another way"):
                before.view(name).rows()


def test_a_group_that_grew_is_read_as_before(db: vt.Database) -> None:
    db.create_view("va", ONE_ROW, refresh="manual")
    with db.snapshot() as before:
        db.create_view("vb", "SELECT n, COUNT(*) AS c FROM va GROUP BY n", refresh="manual")
        assert [row.n for row in before.view("va").rows()] == [0]


def test_minima_of_a_view_that_was_switched_there_and_back(db: vt.Database) -> None:
    """Its hidden views are others then: sums would be new, and minima old."""
    insert(db, 10, 5)
    view = db.create_view("v", "SELECT COUNT(*) AS n, MIN(id) AS low, MAX(id) AS high FROM t")
    view.set_refresh("manual")
    with db.snapshot() as before:
        view.set_refresh("sync")
        view.set_refresh("manual")
        insert(db, 1)
        insert(db, 99)
        view.refresh()
        with pytest.raises(vt.TransactionConflict, match="refreshed in another way"):
            before.view("v").rows()
    assert view.get() == {"n": 7, "low": 1, "high": 99}


def test_a_view_that_joins_a_group_does_not_take_it_back(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    token = insert(db, 0, 10)
    first = db.create_view("va", COUNTS, refresh="manual", group="together")
    first.refresh()
    compute = deferred._compute
    seen: list[tuple[int | None, float, int]] = []

    def watched(*args: object) -> object:
        status = first.status()
        seen.append((status.watermark, status.lag_ms or 0.0, len(first.rows(at_least=token))))
        return compute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(deferred, "_compute", watched)
    db.create_view("vb", ONE_ROW, refresh="manual", group="together")
    ((watermark, lag_ms, rows_count),) = seen
    assert (watermark or 0) >= token.commit_ts and lag_ms < 1e9 and rows_count == 3


def test_tasks_that_share_a_snapshot_read_a_group_at_one_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.create_table("t", {"id": int, "g": int}, key="id")
            for name in ("va", "vb"):
                await db.create_view(name, ONE_ROW, refresh="manual", group="together")
            stepping, go_on = threading.Event(), threading.Event()
            make_step = Refresher._make_step

            def slow(refresher: Refresher, group: object) -> None:
                stepping.set()
                assert go_on.wait(WAIT_S)
                make_step(refresher, group)  # type: ignore[arg-type]

            monkeypatch.setattr(Refresher, "_make_step", slow)
            async with db.transaction() as tx:
                await tx.insert("t", {"id": 1, "g": 1})
            async with db.snapshot() as snapshot:

                async def read_meanwhile() -> vt.Result:
                    assert await asyncio.to_thread(stepping.wait, WAIT_S)
                    return await snapshot.view("vb").rows()

                latest = asyncio.ensure_future(snapshot.view("va").rows(latest=True))
                before = await read_meanwhile()
                go_on.set()
                with pytest.raises(vt.StaleRead):
                    await latest
                again = await snapshot.view("va").rows()
                assert [row.n for row in again] == [0] and again.watermark == before.watermark

    asyncio.run(main())
