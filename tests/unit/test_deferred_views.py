"""Deferred views as users meet them: what a read shows, how failures and backlogs show, and which modes go together."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt
from tests.conftest import PROFILE
from viewtide.changetables.plan import Answers, LookUp
from viewtide.coordinator import batch, refresher
from viewtide.coordinator.vms import managers, view_manager
from viewtide.coordinator.vms.view_manager import ViewManager
from viewtide.ltm.versions import Horizon

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"
LEAST = "SELECT g, MIN(v) AS lo, MAX(v) AS hi FROM e GROUP BY g"
RATIO = "SELECT g, SUM(v) / SUM(w) AS r FROM e GROUP BY g"


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:", view_managers=2) as database:
        create(database)
        yield database


def create(db: vt.Database) -> None:
    db.create_table("e", {"id": int, "g": int, "v": int, "w": int}, key="id")
    db.create_table("p", {"id": int, "n": str}, key="id")


def row(id_: int, g: int, v: int = 1, w: int = 1) -> dict[str, object]:
    return {"id": id_, "g": g, "v": v, "w": w}


def write(db: vt.Database, *rows: dict[str, object]) -> vt.Token:
    with db.transaction() as tx:
        tx.upsert("e", list(rows))
    return tx.token


def shown(view: vt.View, **level: object) -> list[tuple[object, ...]]:
    return sorted((tuple(each.values()) for each in view.rows(**level)), key=repr)  # type: ignore[arg-type]


def until(holds: Callable[[], object]) -> None:
    """Wait for what another thread is about to do."""
    pause = threading.Event()
    for _ in range(5_000):
        if holds():
            return
        pause.wait(0.002)
    raise AssertionError("it did not happen")


# --- exactly once ---


@pytest.mark.parametrize("piece_rows", [1, 3])
def test_every_change_counts_once_while_view_managers_die_at_work(
    monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    """Each write is worth one, and the test knows how many it made."""
    monkeypatch.setattr(managers, "PIECE_ROWS", piece_rows)
    monkeypatch.setattr(view_manager, "PIECE_ROWS_MIN", 1)
    monkeypatch.setattr(view_manager, "PIECE_ROWS_MAX", piece_rows)
    dice = random.Random(piece_rows)
    work = ViewManager.work
    killed = 0

    def dangerous(manager: ViewManager, *args: object) -> Generator[list[LookUp], Answers, object]:
        nonlocal killed
        working = work(manager, *args)  # type: ignore[arg-type]
        answers: Answers | None = None
        # Whoever comes after a few that died gets through.
        dies_at = dice.choice((0, 1, 5, None))
        for number in itertools.count():
            try:
                wanted = next(working) if answers is None else working.send(answers)
            except StopIteration as finished:
                return finished.value
            if number == dies_at and db._node.refresher.managers.alive(manager):
                db.view_managers.kill(manager.id)
                killed += 1
            answers = yield wanted
        return None

    monkeypatch.setattr(ViewManager, "work", dangerous)
    with vt.connect("memory:", view_managers=5) as db:
        create(db)
        totals = "SELECT COUNT(*) AS n, SUM(v) AS s FROM e"
        views = [db.create_view(f"total_{mode}", totals, refresh=mode) for mode in ("0ms", "20ms", "manual")]
        joined = db.create_view(
            "joined",
            "SELECT p.n, SUM(e.v) AS s, MIN(e.v) AS lo FROM e JOIN p ON e.g = p.id GROUP BY p.n",
            refresh="0ms",
        )
        with db.transaction() as tx:
            tx.insert("p", [{"id": g, "n": "all"} for g in range(4)])
        written = 0
        for number in range(60):
            # 15 rows whose v grows by one each time.
            written += 15
            ids = [(number * 15 + place) % 120 for place in range(15)]
            rows = [row(id_, id_ % 4, (number * 15 + place) // 120 + 1) for place, id_ in enumerate(ids)]
            token = write(db, *rows)
            if number % 6 == 0:
                db.view_managers.add()
            if number % 5 == 0:
                for view in views:
                    assert view.get(at_least=token) == {"n": min(written, 120), "s": written}
        for view in views:
            assert view.get(at_least=token) == {"n": 120, "s": written}
        assert shown(joined, at_least=token) == [("all", written, min(written // 120, 7))]
    assert killed > 30


# --- reading ---


#: Transactions of one row, each of which is looked for: in memory, and in a directory, where commits wait for the disk.
WRITES_COUNT = {"dev": (1_000, 200), "full": (10_000, 1_000), "soak": (100_000, 10_000)}
WRITERS_COUNT = 4


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_read_your_writes_from_another_thread(where: str, db_path: Path) -> None:
    """Every write is looked for by another thread, before the next one, in views that are refreshed in all ways. Each
    writer has a group of its own: so it is known what is right, neither older nor newer."""
    writes_count = WRITES_COUNT[PROFILE][where == "directory"] // WRITERS_COUNT

    def write_and_look(writer: int) -> None:
        def look(view: vt.View, token: vt.Token) -> tuple[object, int]:
            found, rows = view.get(writer, at_least=token), view.rows(at_least=token)
            assert found is not None and rows.watermark is not None
            return found["n"], min(cast(int, found.watermark), rows.watermark)

        with ThreadPoolExecutor(1) as another_thread:
            for count, view in zip(range(1, writes_count + 1), itertools.cycle(views), strict=False):
                token = write(db, row(count * WRITERS_COUNT + writer, writer))
                seen, watermark = another_thread.submit(look, view, token).result()
                assert seen == count and watermark >= token.commit_ts

    with (
        vt.connect("memory:" if where == "memory" else db_path, view_managers=2) as db,
        ThreadPoolExecutor(WRITERS_COUNT) as writers,
    ):
        create(db)
        sql = "SELECT g, COUNT(*) AS n FROM e GROUP BY g"
        views = [db.create_view(f"n_{mode}", sql, refresh=mode) for mode in ("0ms", "20ms", "manual")]
        list(writers.map(write_and_look, range(WRITERS_COUNT)))
        for view in views:
            assert shown(view, latest=True) == [(writer, writes_count) for writer in range(WRITERS_COUNT)]


@pytest.mark.parametrize("mode", ["0ms", "20ms"])
def test_a_scan_never_shows_a_row_twice_nor_misses_one(mode: str) -> None:
    """Rows move between groups and keys all the time; how many there are never changes."""
    rows_count = 200
    stop = threading.Event()

    def move() -> None:
        dice = random.Random(7)
        while not stop.is_set():
            chosen = dice.sample(range(rows_count), 20)
            write(db, *(row(id_, dice.randrange(10), dice.randrange(100)) for id_ in chosen))

    with vt.connect("memory:", view_managers=2) as db:
        create(db)
        write(db, *(row(id_, id_ % 10, id_) for id_ in range(rows_count)))
        plain = db.create_view("plain", "SELECT id, g FROM e", refresh=mode)
        keyed = db.create_view("keyed", "SELECT v, g, id FROM e", key=("v", "id"), refresh=mode)
        sums = db.create_view("sums", SUMS, refresh=mode)
        mover = threading.Thread(target=move)
        mover.start()
        seen: set[int] = set()
        try:
            while len(seen) < 40:
                rows = plain.scan()
                assert sorted(cast(int, each["id"]) for each in rows) == list(range(rows_count))
                assert sorted(cast(int, each["id"]) for each in keyed.rows()) == list(range(rows_count))
                assert sum(cast(int, each["n"]) for each in sums.rows()) == rows_count
                with db.snapshot() as snapshot:
                    halves = [
                        *snapshot.view("keyed").scan(stop=(50,)),
                        *snapshot.view("keyed").scan(start=(50,)),
                    ]
                assert sorted(cast(int, each["id"]) for each in halves) == list(range(rows_count))
                assert rows.watermark is not None
                seen.add(rows.watermark)
        finally:
            stop.set()
            mover.join()


def test_a_snapshot_reads_each_group_at_one_watermark(db: vt.Database) -> None:
    db.create_view("below", SUMS, refresh="0ms")
    db.create_view("above", "SELECT n, COUNT(*) AS m FROM below GROUP BY n", refresh="0ms")
    for name in ("one", "two"):
        db.create_view(name, LEAST, refresh="20ms", group="x")
    stop = threading.Event()

    def grow() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            write(db, row(number, number % 7, number))

    writer = threading.Thread(target=grow)
    writer.start()
    seen = set()
    try:
        while len(seen) < 40:
            with db.snapshot() as snapshot:
                below, above = snapshot.view("below").rows(), snapshot.view("above").rows()
                one, two = snapshot.view("one").rows(), snapshot.view("two").rows()
            assert below.watermark == above.watermark
            assert one.watermark == two.watermark
            assert list(one) == list(two)
            assert sum(cast(int, each["m"]) for each in above) == len(below)
            assert sum(cast(int, each["n"] or 0) * cast(int, each["m"]) for each in above) == sum(
                cast(int, each["n"]) for each in below
            )
            seen.add((below.watermark, one.watermark))
    finally:
        stop.set()
        writer.join()


def test_a_group_is_as_far_as_the_last_of_its_views(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step publishes its views one after the other. Whoever asks for the latest meanwhile is not told by the first of
    them that it is there, to read another one where it was then."""
    names = ("a", "b", "c")
    for name in names:
        db.create_view(name, "SELECT g, COUNT(*) AS n FROM e GROUP BY g", refresh="manual", group="together")
    group = db._node.refresher._group_of("a")
    publish = Horizon.publish
    seen: list[int] = []

    def published(horizon: Horizon, ts: int) -> None:
        publish(horizon, ts)
        marks = [rows.versions.horizon.durable_ts for rows in group.views]
        seen.append(len(set(marks)))
        assert group.watermark == min(marks)

    monkeypatch.setattr(Horizon, "publish", published)
    with db.transaction() as tx:
        tx.insert("e", {"id": 1, "g": 1, "v": 1, "w": 1})
    for name in names:
        assert (db.view(name).rows(latest=True).watermark or 0) >= tx.token.commit_ts
    assert 2 in seen


def test_a_deferred_view_stays_where_it_is_until_it_is_refreshed(db: vt.Database) -> None:
    view = db.create_view("v", SUMS, refresh="manual")
    first = write(db, row(1, 1))
    assert shown(view) == []
    assert view.refresh() >= first.commit_ts
    assert shown(view) == [(1, 1, 1)]
    second = write(db, row(2, 1, 5))
    assert shown(view) == [(1, 1, 1)]
    with db.transaction() as tx:
        tx.insert("e", row(3, 1, 100))
        # Its own writes are never in it.
        assert [tuple(each.values()) for each in tx.view("v").rows()] == [(1, 1, 1)]
    assert shown(view, at_least=second)[0][1] in (6, 106)
    assert shown(view, latest=True) == [(1, 106, 3)]


def test_refresh_by_an_evaluator_that_there_is_not_is_refused_in_every_mode(db: vt.Database) -> None:
    for mode in ("sync", "manual"):
        view = db.create_view(mode, "SELECT g, COUNT(*) AS n FROM e GROUP BY g", refresh=mode)
        with pytest.raises(vt.InterfaceError, match="'gpu' is no evaluator"):
            view.refresh("gpu")


def test_updates_of_a_row_inside_a_step_cost_one_change(db: vt.Database) -> None:
    view = db.create_view("v", SUMS, refresh="manual")
    for value in range(50):
        write(db, row(1, 1, value), row(2, 2, 7))
    view.refresh()
    step = db._node.refresher.status("v").schedule.last
    assert step is not None and step.rows_count == 2
    assert shown(view) == [(1, 49, 1), (2, 7, 1)]


# --- what a step reads ---

BY_NAME = "SELECT p.n, COUNT(*) AS c FROM e JOIN p ON p.id = e.g GROUP BY p.n"


def name_group(db: vt.Database, name: str) -> None:
    with db.transaction() as tx:
        tx.upsert("p", {"id": 1, "n": name})


def test_a_step_reads_its_sources_as_of_its_end(db: vt.Database) -> None:
    """Whatever is written while it pauses: the versions at W1 are kept."""
    name_group(db, "zero")
    view = db.create_view("v", BY_NAME, refresh="manual")
    driven = db._node.refresher
    written: list[str] = []

    def write_meanwhile(point: str) -> None:
        if point == "after opened" and not written:
            written.extend(("two", "three", "four"))
            with driven._turns.let_go():
                for name in written:
                    name_group(db, name)

    driven.on_point = write_meanwhile
    with db.transaction() as tx:
        tx.update("p", 1, {"n": "one"})
        tx.insert("e", row(1, 1))
    view.refresh()
    assert shown(view) == [("one", 1)]
    view.refresh()
    assert shown(view) == [("four", 1)]
    assert written


def test_recovery_keeps_what_the_next_steps_read(tmp_path: Path) -> None:
    """A row that was written several times since a view's watermark is looked up as it was there."""
    with vt.connect(tmp_path / "db") as db:
        create(db)
        name_group(db, "zero")
        view = db.create_view("v", BY_NAME, refresh="manual")
        db._engine.checkpoint()
        name_group(db, "one")
        write(db, row(1, 1))
        view.refresh()
        for name in ("two", "three"):
            name_group(db, name)
        with db.transaction() as tx:
            tx.delete("e", 1)
            tx.insert("e", row(2, 1))
        with db._engine._checkpoint_lock, db._engine.ltm.lock:
            shutil.copytree(tmp_path / "db", tmp_path / "crashed", ignore=shutil.ignore_patterns("socket"))
    with vt.connect(tmp_path / "crashed") as db:
        assert shown(db.view("v")) == [("one", 1)]
        assert shown(db.view("v"), latest=True) == [("three", 1)]


def test_a_long_backlog_is_taken_in_by_several_steps(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them ends at a moment whose rows were kept, however often they were written since."""
    monkeypatch.setattr(refresher, "STEP_ROWS_MAX", 20)
    view = db.create_view("v", BY_NAME, refresh="manual")
    twin = db.create_view("twin", BY_NAME)
    driven = db._node.refresher
    published: list[tuple[int, list[tuple[object, ...]]]] = []
    driven.on_point = lambda point: (
        published.append((driven.status("v").watermark, shown(view))) if point == "after publication" else None
    )
    history = {}
    for number in range(60):
        with db.transaction() as tx:
            tx.upsert("p", [{"id": g, "n": f"n{(g + number) % 4}"} for g in range(3)])
            tx.upsert("e", [row(number % 7, number % 3), row(50 + number % 5, (number + 1) % 3)])
        history[tx.token.commit_ts] = shown(twin)
        if number % 10 == 9:
            # Moments to end at are chosen by the refresher, while it has nothing else to do.
            until(lambda: not driven._cut_due)
    view.refresh()
    assert len(published) > 3
    for watermark, rows in published:
        assert rows == history[max(ts for ts in history if ts <= watermark)]
    assert shown(view) == shown(twin)
    until(lambda: not db._engine.ltm.cuts)  # let go of after the publication that ended the wait


def test_a_step_that_fails_when_a_slot_was_just_applied_takes_it_back(db: vt.Database) -> None:
    view = db.create_view("v", BY_NAME, refresh="manual")
    name_group(db, "one")
    write(db, row(1, 1))
    failures = []

    def fail_once(point: str) -> None:
        if point == "after refreshed" and not failures:
            failures.append(point)
            raise OSError("something beside it failed")

    db._node.refresher.on_point = fail_once
    with pytest.raises(vt.Error, match="something beside it failed"):
        view.refresh()
    view.refresh()
    assert failures and shown(view) == [("one", 1)]
    assert view.verify().ok


def test_what_was_broken_at_an_earlier_moment_and_mended_is_no_obstacle(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a step that had to be dropped: later ones never write below it."""
    monkeypatch.setattr(refresher, "STEP_ROWS_MAX", 5)
    view = db.create_view("v", RATIO, refresh="manual")
    twin_sql = "SELECT g, SUM(v) AS v, SUM(w) AS w FROM e GROUP BY g"
    twin = db.create_view("twin", twin_sql)
    least = db.create_view("least", "SELECT r, COUNT(*) AS n, MIN(g) AS lo FROM v GROUP BY r", refresh="manual")
    driven = db._node.refresher
    for number in range(4):
        write(db, *(row(id_, id_ % 4, 10 * (id_ + number), 5) for id_ in range(12)))
        write(db, row(99, 9, 1, 0))
        until(lambda: not driven._cut_due)
        with pytest.raises(vt.StaleRead, match="division by zero"):
            least.refresh()
        write(db, row(98, 8, number, 0), row(99, 9, 1, 1))
        until(lambda: not driven._cut_due)
        write(db, row(98, 8, number, 1), *(row(id_, id_ % 3, id_, 1) for id_ in range(6)))
        least.refresh()
        expected = sorted((each["g"], each["v"] // each["w"]) for each in twin.rows())  # type: ignore[operator]
        assert shown(view) == expected
        for _ in range(2):
            db._engine.checkpoint()
        with db._engine.ltm.lock:
            for versions in db._engine.ltm.tables.versions.values():
                versions.age()
                versions.age()
        assert shown(view) == expected
        ratios = [ratio for _, ratio in expected]
        assert shown(least) == sorted(
            ((r, ratios.count(r), min(g for g, each in expected if each == r)) for r in set(ratios)), key=repr
        )


# --- failures ---


def test_a_view_that_cannot_be_computed_is_retried_and_blocks_nobody(db: vt.Database) -> None:
    broken = db.create_view("broken", RATIO, refresh="20ms")
    good = db.create_view("good", SUMS, refresh="20ms")
    write(db, row(1, 1, 6, 2))
    assert shown(broken, latest=True) == [(1, 3)]
    token = write(db, row(2, 2, 5, 0))
    with pytest.raises(vt.StaleRead, match=r"broken.*division by zero"):
        broken.get(2, at_least=token)
    assert shown(broken) == [(1, 3)]
    until(lambda: db._node.refresher.status("broken").schedule.failures_count >= 3)
    status = db._node.refresher.status("broken")
    assert status.state == "failing"
    assert "division by zero" in status.schedule.failure
    assert shown(good, at_least=token) == [(1, 6, 1), (2, 5, 1)]
    assert db._node.refresher.status("good").state == "live"
    # The data is mended: nothing else has to be done.
    mended = write(db, row(2, 2, 5, 5))
    assert shown(broken, at_least=mended) == [(1, 3), (2, 1)]
    status = db._node.refresher.status("broken")
    assert (status.state, status.schedule.failures_count, status.schedule.failure) == ("live", 0, "")


def test_refresh_of_a_view_that_cannot_be_computed_says_why(db: vt.Database) -> None:
    view = db.create_view("v", RATIO, refresh="manual")
    write(db, row(1, 1, 1, 0))
    for _ in range(2):
        with pytest.raises(vt.StaleRead, match=r"v.*division by zero") as caught:
            view.refresh()
        assert caught.value.hint
    write(db, row(1, 1, 4, 2))
    view.refresh()
    assert shown(view) == [(1, 2)]


def test_a_step_that_fails_at_a_higher_level_leaves_nothing_below(db: vt.Database) -> None:
    """What its lower levels had written, also in indexes, is as it was."""
    db.create_view("sums", SUMS, refresh="manual")
    ratio = db.create_view("ratio", "SELECT e.id, 10 / s.s AS r FROM e JOIN sums s ON e.g = s.g", refresh="manual")
    write(db, row(1, 1, 2), row(2, 2, 5))
    ratio.refresh()
    before = shown(db.view("sums"))
    for _ in range(3):
        write(db, row(3, 1, -2), row(4, 3, 5), row(2, 3, 1))
        with pytest.raises(vt.StaleRead, match="division by zero"):
            ratio.refresh()
        assert shown(db.view("sums")) == before
        assert shown(ratio) == [(1, 5), (2, 2)]
    write(db, row(3, 1, 3))
    ratio.refresh()
    assert shown(db.view("sums")) == [(1, 5, 2), (3, 6, 2)]
    assert shown(ratio) == [(1, 2), (2, 1), (3, 2), (4, 1)]


def test_a_read_that_cannot_wait_longer_says_so(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    view = db.create_view("v", SUMS, refresh="manual")
    token = write(db, row(1, 1))
    with db._node.refresher.held(["v"]), pytest.raises(vt.StaleRead, match="within"):
        db._node.refresher.wait_for("v", token.commit_ts, 20)
    assert shown(view, at_least=token) == [(1, 1, 1)]


# --- backlogs ---


def test_a_view_too_far_behind_is_computed_anew(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresher, "LOOK_MS", 5.0)
    view = db.create_view("v", LEAST, refresh="manual", backlog_rows=100)
    twin = db.create_view("twin", LEAST)
    write(db, *(row(id_, id_ % 3, id_) for id_ in range(50)))
    db._node.refresher._wake.set()
    view.refresh()
    before = shown(view)
    assert db._node.refresher.status("v").state == "live"
    for number in range(12):
        write(db, *(row(id_, id_ % 4, id_ + number) for id_ in range(10 * number, 10 * number + 20)))
    until(lambda: db._node.refresher.status("v").state == "needs batch refresh")
    assert shown(view) == before
    token = write(db, row(1_000, 9, 9))
    view.refresh()
    assert shown(view) == shown(twin)
    assert db._node.refresher.status("v").state == "live"
    assert (view.rows().watermark or 0) >= token.commit_ts
    # From there it goes on step by step.
    write(db, row(1_001, 9, 8))
    view.refresh()
    assert shown(view) == shown(twin)


def test_a_backlog_is_noticed_while_others_are_busy(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view without pause must not keep the backlogs from being looked at, or the log would grow for ever."""
    monkeypatch.setattr(refresher, "LOOK_MS", 5.0)
    db.create_view("behind", SUMS, refresh="manual", backlog_rows=100)
    db.create_view("busy", SUMS, refresh="0ms")
    monkeypatch.setattr(refresher.Refresher, "_pending", lambda *_: True)
    for number in range(200):
        write(db, *(row(id_, id_ % 3, number) for id_ in range(5)))
    until(lambda: db._node.refresher.status("behind").state == "needs batch refresh")


@pytest.mark.parametrize("fails_at", ["clear", "fill"])
def test_a_batch_refresh_that_is_interrupted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """Also if what it had written is in the store already, and the database is opened again."""
    monkeypatch.setattr(refresher, "LOOK_MS", 5.0)
    monkeypatch.setattr(batch, "PAGE_ROWS", 7)
    clear, fill = batch._clear, batch.fill
    interrupting = True

    def stop(engine: object, turns: object) -> None:
        if interrupting:
            with turns.let_go():  # type: ignore[attr-defined]
                engine.checkpoint()  # type: ignore[attr-defined]
            raise vt.OperationalError("interrupted")

    def stopped_clear(engine: object, view: object, w1: int, turns: object) -> None:
        clear(engine, view, w1, turns)  # type: ignore[arg-type]
        if fails_at == "clear":
            stop(engine, turns)

    def stopped_fill(engine: object, view: object, at: int, turns: object, evaluator: str | None) -> int:
        rows_count = fill(engine, view, at, turns, evaluator)  # type: ignore[arg-type]
        if fails_at == "fill":
            stop(engine, turns)
        return rows_count

    with vt.connect(tmp_path / "db") as db:
        create(db)
        view = db.create_view("v", LEAST, refresh="manual", backlog_rows=30)
        db.create_view("above", "SELECT lo, COUNT(*) AS n FROM v GROUP BY lo", refresh="manual")
        db.create_view("twin", LEAST)
        write(db, *(row(id_, id_ % 5, id_) for id_ in range(40)))
        view.refresh()
        before = shown(view)
        for number in range(5):
            write(db, *(row(id_, id_ % 6, id_ + number) for id_ in range(20)))
        with db.transaction() as tx:
            for id_ in range(20, 40):
                tx.delete("e", id_)
        until(lambda: db._node.refresher.status("v").state == "needs batch refresh")
        monkeypatch.setattr(batch, "_clear", stopped_clear)
        monkeypatch.setattr(batch, "fill", stopped_fill)
        with pytest.raises(vt.StaleRead, match="interrupted"):
            view.refresh()
        assert shown(view) == before
    with vt.connect(tmp_path / "db") as db:
        view = db.view("v")
        assert shown(view) == before
        assert db._node.refresher.status("v").state == "needs batch refresh"
        with pytest.raises(vt.StaleRead, match="interrupted"):
            view.refresh()
        interrupting = False

        def refreshed() -> bool:
            try:
                view.refresh()
            except vt.StaleRead:
                return False  # one that had begun before: it is made again by itself, too
            return True

        until(refreshed)
        assert shown(view) == shown(db.view("twin"))
        assert db._node.refresher.status("v").state == "live"
        write(db, row(7, 2, 77))
        db.view("above").refresh()
        assert shown(view) == shown(db.view("twin"))
        lows = [each["lo"] for each in view.rows()]
        assert shown(db.view("above")) == sorted(((low, lows.count(low)) for low in set(lows)), key=repr)


# --- modes ---


def test_a_sync_view_on_a_deferred_one_is_refused(db: vt.Database) -> None:
    db.create_view("below", SUMS, refresh="500ms")
    with pytest.raises(vt.UnsupportedView, match=r"above.*'below' is deferred"):
        db.create_view("above", "SELECT n FROM below")
    with pytest.raises(vt.UnsupportedView, match="deferred"):
        db.create_view("above", "SELECT DISTINCT q.n FROM (SELECT MAX(n) AS n FROM below) AS q")
    assert db.views() == ["below"]


def test_switching_below_or_above_the_wrong_mode_is_refused_by_name(db: vt.Database) -> None:
    below = db.create_view("below", SUMS)
    above = db.create_view("above", "SELECT n, MAX(s) AS hi FROM below GROUP BY n")
    top = db.create_view("top", "SELECT hi, COUNT(*) AS c FROM above GROUP BY hi")
    with pytest.raises(vt.ProgrammingError, match=r"below.*'above' is sync"):
        below.set_refresh("20ms")
    with pytest.raises(vt.ProgrammingError, match=r"above.*'top' is sync"):
        above.set_refresh("manual")
    for view in (top, above, below):
        view.set_refresh("manual")
    with pytest.raises(vt.ProgrammingError, match=r"above.*'below'"):
        above.set_refresh("sync")
    with pytest.raises(vt.ProgrammingError, match=r"top.*'above'"):
        top.set_refresh("sync")
    write(db, row(1, 1, 3), row(2, 2, 4))
    assert shown(top) == []
    for view in (below, above, top):
        view.set_refresh("sync")
    assert shown(top) == [(4, 1)]
    write(db, row(3, 2, 5))
    assert shown(top) == [(3, 1), (9, 1)]


def test_views_are_dropped_with_what_is_made_from_them(db: vt.Database) -> None:
    db.create_view("below", LEAST, refresh="0ms")
    db.create_view("above", "SELECT lo, COUNT(*) AS n FROM below GROUP BY lo", refresh="manual")
    with pytest.raises(vt.ProgrammingError, match="above"):
        db.drop_view("below")
    with pytest.raises(vt.ProgrammingError, match=r"above|below"):
        db.drop_table("e")
    db.drop_view("below", cascade=True)
    assert db.views() == []
    assert db._engine.ltm.tables.views == {}
    assert db._engine.ltm.positions == {}
    db.drop_table("e")


def test_a_view_is_not_dropped_in_the_middle_of_a_step(db: vt.Database) -> None:
    """Those that stay in the group would keep half of it."""
    db.create_view("gone", SUMS, refresh="manual", group="x")
    stays = db.create_view("stays", LEAST, refresh="manual", group="x")
    driven = db._node.refresher
    dropping: list[threading.Thread] = []

    def drop_now(point: str) -> None:
        if point == "after refreshed" and not dropping:
            dropping.append(threading.Thread(target=db.drop_view, args=("gone",)))
            dropping[0].start()
            with driven._turns.let_go():
                until(lambda: driven.status("stays").schedule.awaited or not dropping[0].is_alive())

    driven.on_point = drop_now
    write(db, *(row(id_, id_ % 3, id_) for id_ in range(30)))
    stays.refresh()
    dropping[0].join()
    assert db.views() == ["stays"]
    assert shown(stays) == [(0, 0, 27), (1, 1, 28), (2, 2, 29)]
    write(db, *(row(id_ + 100, id_ % 3, id_ - 5) for id_ in range(3)))
    stays.refresh()
    assert shown(stays) == [(0, -5, 27), (1, -4, 28), (2, -3, 29)]


@pytest.mark.parametrize("mode", ["sync", "0ms", "20ms", "manual", "target_lag 100ms"])
def test_any_mode_becomes_any_other_under_load(db: vt.Database, mode: str) -> None:
    view = db.create_view("v", LEAST, refresh=mode)
    twin = db.create_view("twin", LEAST)
    stop = threading.Event()

    def change() -> None:
        dice = random.Random(3)
        while not stop.is_set():
            write(db, *(row(dice.randrange(50), dice.randrange(5), dice.randrange(20)) for _ in range(3)))

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for other in ("manual", "sync", "20ms", "sync", "target_lag 100ms", "0ms", "manual", "0ms", "sync", mode):
            view.set_refresh(other)
            assert view.status().refresh == other
            for _ in range(3):
                with db.snapshot() as snapshot:
                    rows, at_once = snapshot.view("v").rows(), snapshot.view("twin").rows()
                if other == "sync":
                    assert list(rows) == list(at_once)
    finally:
        stop.set()
        writer.join()
    view.refresh()
    assert shown(view) == shown(twin)


def test_hidden_views_and_indexes_of_a_switched_view_come_and_go_with_its_mode(db: vt.Database) -> None:
    write(db, *(row(id_, id_ % 3, id_) for id_ in range(9)))
    sql = "SELECT p.n, q.lo FROM p LEFT JOIN (SELECT g, MIN(v) AS lo FROM e GROUP BY g) AS q ON q.g = p.id"
    view = db.create_view("v", sql)
    with db.transaction() as tx:
        tx.insert("p", [{"id": g, "n": f"p{g}"} for g in range(5)])
    hidden = len(db._engine.ltm.tables.views)
    for mode in ("manual", "sync", "0ms", "sync"):
        view.set_refresh(mode)
        token = write(db, row(1, 4, 1))
        assert shown(view, at_least=token)[4] == ("p4", 1)
        token = write(db, row(1, 1, 1))
        assert shown(view, at_least=token)[4] == ("p4", None)
        assert len(db._engine.ltm.tables.views) == hidden


def test_columns_and_indexes_come_and_go_under_deferred_views(db: vt.Database) -> None:
    joined = "SELECT e.g, COUNT(p.id) AS n FROM e LEFT JOIN p ON p.id = e.v GROUP BY e.g"
    view = db.create_view("v", joined, refresh="0ms")
    lazy = db.create_view("lazy", LEAST, refresh="manual")
    with db.transaction() as tx:
        tx.insert("p", [{"id": id_, "n": ""} for id_ in range(5)])
    for number in range(6):
        write(db, *(row(id_, id_ % 3, id_ % 7 + number) for id_ in range(10)))
        if number % 2:
            db.drop_column("e", "extra")
            db.drop_index("e", "g")
        else:
            db.add_column("e", "extra", vt.column(int, default=number))
            db.create_index("e", "g")
    token = write(db, row(99, 9, 0))
    twin = db.create_view("twin", joined)
    least = db.create_view("least", LEAST)
    assert shown(view, at_least=token) == shown(twin)
    assert shown(lazy, at_least=token) == shown(least)


def test_a_group_has_one_watermark_from_the_creation_of_each_member_on(db: vt.Database) -> None:
    for number in range(4):
        write(db, *(row(id_, id_ % 3, id_ + number) for id_ in range(20)))
        db.create_view(f"v{number}", LEAST, refresh="manual", group="x")
        with db.snapshot() as snapshot:
            marks = {snapshot.view(f"v{each}").rows().watermark for each in range(number + 1)}
            contents = [list(snapshot.view(f"v{each}").rows()) for each in range(number + 1)]
        assert len(marks) == 1
        assert all(each == contents[0] for each in contents)
    write(db, row(1, 8, 1))
    db.view("v2").refresh()
    assert {db.view(f"v{each}").rows().watermark for each in range(4)} == {db.view("v0").rows().watermark}
    assert shown(db.view("v0")) == shown(db.view("v3"))
