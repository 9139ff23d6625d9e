"""Bulk loads beside views that are made, rows that change, an interrupt, `close`, and a clock that is set back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import viewtide as vt
from viewtide import bulk, node
from viewtide.coordinator import bulk_load
from viewtide.ltm.two_phase.participant import MS_SHIFT

WAIT_S_MAX = 20
#: Of a directory that is open: what a crash leaves.
WITHOUT_SOCKET = shutil.ignore_patterns("socket")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a few rows are staged, in several writes."""
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", 1)
    monkeypatch.setattr(bulk, "CHUNK_ROWS", 50)
    monkeypatch.setattr(bulk_load, "WRITE_ROWS", 120)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[vt.Database]:
    with vt.connect(tmp_path / "db", ltms=1) as database:
        database.create_table("t", {"id": int, "g": int, "x": int}, key="id")
        yield database


def batch(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "g": [n % 10 for n in ids], "x": [n % 7 for n in ids]})


def load_beside(db: vt.Database, act: Callable[[], object]) -> None:
    """500 rows; `act` is called in the middle. Again after a conflict, as its hint says."""

    def batches() -> Iterator[pa.Table]:
        yield batch(range(300))
        act()
        yield batch(range(300, 500))

    try:
        db.table("t").load(batches())
    except vt.TransactionConflict:
        db.table("t").load([batch(range(500))])


def check(view: vt.View) -> None:
    report = view.verify()
    assert report.ok, report.differences


def test_a_view_on_a_view_that_is_made_during_a_load(db: vt.Database) -> None:
    v = db.create_view("v", "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t GROUP BY g")
    with db.transaction() as tx:
        tx.insert("t", {"id": -1, "g": 1, "x": 1})
    load_beside(db, lambda: db.create_view("u", "SELECT n, COUNT(*) AS c FROM v GROUP BY n"))
    check(v)
    check(db.view("u"))


def test_a_minimum_that_is_joined_with_changes_during_a_load(db: vt.Database) -> None:
    db.create_table("o", {"id": int, "g": int, "x": int}, key="id")
    with db.transaction() as tx:
        tx.insert("o", [{"id": n, "g": n % 10, "x": n + 1} for n in range(30)])
    db.create_view("w", "SELECT g, MIN(x) AS m FROM o GROUP BY g")
    v = db.create_view("v", "SELECT t.id, w.m FROM t JOIN w ON t.g = w.g")

    def act() -> None:
        with db.transaction() as tx:
            tx.update("o", 3, {"x": -5})

    load_beside(db, act)
    check(v)


def interrupted_after_commit(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when a load is committed, and before that is known to whoever called it."""
    refresher = db._node.refresher  # type: ignore[attr-defined]
    real = refresher.held

    @contextmanager
    def held(names: list[str]) -> Iterator[object]:
        with real(names) as ids:
            yield ids
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(refresher, "held", held)
        with pytest.raises(KeyboardInterrupt):
            db.table("t").load([batch(range(500))])


def test_an_interrupt_after_the_commit_takes_nothing_back(
    db: vt.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = db.create_view("v", "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t GROUP BY g")
    interrupted_after_commit(db, monkeypatch)
    assert db.sql("SELECT COUNT(*) AS n FROM t")[0].n == 500
    check(v)
    shutil.copytree(tmp_path / "db", tmp_path / "crashed", ignore=WITHOUT_SOCKET)
    with vt.connect(tmp_path / "crashed", ltms=1) as again:
        assert again.sql("SELECT COUNT(*) AS n FROM t")[0].n == 500
        check(again.view("v"))


def test_the_timestamp_of_a_load_that_did_not_happen_is_not_issued_again(
    db: vt.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[int] = []

    def batches() -> Iterator[pa.Table]:
        yield batch(range(300))
        staged.extend(db._engine.ltm.staging._loads)
        shutil.copytree(tmp_path / "db", tmp_path / "crashed", ignore=WITHOUT_SOCKET)
        yield batch(range(300, 310))

    db.table("t").load(batches())
    monkeypatch.setattr(node, "wall_clock_ms", lambda: staged[0] >> MS_SHIFT)  # the clock was set back meanwhile
    with vt.connect(tmp_path / "crashed", ltms=1) as crashed:
        with crashed.transaction() as tx:
            tx.insert("t", {"id": 5, "g": 7, "x": 0})
        assert tx.token.commit_ts > staged[0]
        crashed._engine.checkpoint()
        for _ in range(3):
            for versions in crashed._engine.ltm.tables.versions.values():
                versions.age()  # as when memory is full
        assert [row.id for row in crashed.sql("SELECT id FROM t")] == [5]


def test_close_beside_a_load_that_is_about_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store must not be closed under an open write: both would wait for each other for ever. Whether the load is
    committed just before, nobody can tell; it is, or it is not there at all."""
    db = vt.connect(tmp_path / "db", ltms=1)
    db.create_table("t", {"id": int, "g": int, "x": int}, key="id")
    engine = db._engine
    started, go, inside, closing = (threading.Event() for _ in range(4))
    result: list[object] = []
    real_stage, real_checkpoint, real_fail = bulk_load._Loading._stage, engine.checkpoint, engine.fail

    def stage(*args: object) -> object:
        if go.is_set() and not inside.is_set():
            inside.set()
            closing.wait(0.5)  # `close` goes on if it can: it has to wait for this write
        return real_stage(*args)  # type: ignore[arg-type]

    def checkpoint() -> None:
        real_checkpoint()
        if engine._closing and not go.is_set():
            go.set()
            assert inside.wait(WAIT_S_MAX)

    def fail(error: BaseException) -> None:
        closing.set()
        real_fail(error)

    def batches() -> Iterator[pa.Table]:
        yield batch(range(300))
        started.set()
        assert go.wait(WAIT_S_MAX)
        yield batch(range(300, 600))

    def load() -> None:
        try:
            result.append(db.table("t").load(batches()))
        except vt.Error as error:
            result.append(error)

    monkeypatch.setattr(bulk_load._Loading, "_stage", stage)
    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    assert started.wait(WAIT_S_MAX)
    monkeypatch.setattr(engine, "checkpoint", checkpoint)
    monkeypatch.setattr(engine, "fail", fail)
    closer = threading.Thread(target=db.close, daemon=True)
    closer.start()
    closer.join(WAIT_S_MAX)
    loader.join(WAIT_S_MAX)
    assert not closer.is_alive() and not loader.is_alive(), "close() and the load wait for each other"
    assert len(result) == 1
    with vt.connect(tmp_path / "db", ltms=1) as again:
        assert again.sql("SELECT COUNT(*) AS n FROM t")[0].n == (0 if isinstance(result[0], vt.Error) else 600)


POINTS = {"begun": 0, "staged": 0, "checkpoint": 1, "loaded": 500, "stored": 500, "refreshed": 500, "written": 500}


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_during_and_after_a_load(db: vt.Database, tmp_path: Path, point: str) -> None:
    db.create_index("t", ["g"])
    db.create_view("v", "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t GROUP BY g")
    db.create_view("d", "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")
    db.create_view("dv", "SELECT SUM(n) AS n FROM v", refresh="manual")
    db.create_view("m", "SELECT g, MIN(x) AS lo, MAX(x) AS hi FROM t GROUP BY g")

    def crash(now: str) -> None:
        if now == point:
            shutil.copytree(tmp_path / "db", tmp_path / "crashed", ignore=WITHOUT_SOCKET)

    def batches() -> Iterator[pa.Table]:
        crash("begun")
        yield batch(range(300))
        crash("staged")
        if point == "checkpoint":
            with db.transaction() as tx:
                tx.insert("t", {"id": 5000, "g": 1, "x": 1})
            db._engine.checkpoint()
            crash("checkpoint")
        yield batch(range(300, 500))

    db.table("t").load(batches())
    crash("loaded")
    db._engine.checkpoint()
    crash("stored")
    db.view("d").refresh()
    crash("refreshed")
    with db.transaction() as tx:
        for id in range(0, 500, 7):
            tx.update("t", id, {"x": 100})
    crash("written")

    with vt.connect(tmp_path / "crashed", ltms=1) as again:
        assert again.sql("SELECT COUNT(*) AS n FROM t")[0].n == POINTS[point]
        for name in ("v", "d", "dv", "m"):
            check(again.view(name))
        for name in ("d", "dv"):
            again.view(name).refresh()
            check(again.view(name))
        assert sum(row.n for row in again.view("d").rows()) == POINTS[point]
