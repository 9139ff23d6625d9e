"""An open database and the processes around it."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

import viewtide as vt
from viewtide.ltm import garbage
from viewtide.ltm.fair_lock import FairLock


def in_child(work: object) -> int:
    """Run a function in a forked child; its exit code: 0 if it returned, 7 if it raised InterfaceError."""
    child = os.fork()
    if child == 0:
        try:
            work()  # type: ignore[operator]
        except vt.InterfaceError:
            os._exit(7)
        except BaseException:
            os._exit(8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_cannot_touch_its_parents_database(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int}, key="id")

        def write() -> None:
            with db.transaction() as tx:
                tx.insert("t", {"id": 1})

        assert in_child(write) == 7
        assert in_child(lambda: db.snapshot()) == 7
        with db.transaction() as tx:
            tx.insert("t", {"id": 2})
    with vt.connect(db_path) as db, db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.scan("t")] == [2]


def test_a_child_that_outlives_its_parents_database_does_not_keep_it_locked(db_path: Path) -> None:
    stop_read, stop_write = os.pipe()
    started_read, started_write = os.pipe()
    with vt.connect(db_path):
        child = os.fork()
        if child == 0:
            os.close(stop_write)
            os.write(started_write, b"!")
            os.read(stop_read, 1)
            os._exit(0)
        os.read(started_read, 1)
    try:
        with vt.connect(db_path) as db:
            assert db.tables() == []
    finally:
        for descriptor in (stop_read, stop_write, started_read, started_write):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_a_failed_checkpoint_stops_the_database_but_not_its_callers(
    db_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure nothing is acknowledged any more; what was, is there after a new start."""
    db = vt.connect(db_path)
    db.create_table("t", {"id": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1})

    def fail(*_: object) -> None:
        raise vt.OperationalError("the disk is gone")

    monkeypatch.setattr(db._engine.ltm._store, "write", fail)
    with pytest.raises(vt.OperationalError, match="the disk is gone"):
        db._engine.checkpoint()
    with pytest.raises(vt.OperationalError, match="stopped after a failure"), db.transaction() as tx:
        tx.insert("t", {"id": 2})
    db.close()
    with vt.connect(db_path) as db, db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.scan("t")] == [1]


def test_a_fair_lock_is_taken_in_turns() -> None:
    """Who releases it and takes it again at once waits behind the one that was waiting."""
    lock, order = FairLock(), []
    lock.acquire()
    other = threading.Thread(target=lambda: (lock.acquire(), order.append("other"), lock.release()))
    other.start()
    while not lock._turnstile.locked():
        threading.Event().wait(0.001)  # until the other one stands in the turnstile
    assert not lock.try_acquire()
    lock.release()
    with lock:
        order.append("first again")
    other.join()
    assert order == ["other", "first again"]
    assert lock.try_acquire() and lock.owned
    lock.release()
    assert not lock.owned


def test_an_interrupted_build_says_that_it_was_interrupted(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it comes in the checkpoint, which stops the database; the next start finds nothing half made."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    db = vt.connect(db_path)
    db.create_table("t", {"id": int, "x": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "x": 1})  # over an empty table there would be nothing to build
    with monkeypatch.context() as patch:
        patch.setattr(db._engine.ltm._store, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            db.create_view("v", "SELECT x, COUNT(*) AS n FROM t GROUP BY x")
    db.close()
    with vt.connect(db_path) as db:
        assert db.views() == []
        assert db.create_view("v", "SELECT x, COUNT(*) AS n FROM t GROUP BY x").verify().ok


def test_the_garbage_collector_is_slower_while_a_database_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_open_count", 0)  # whatever other tests have left open
    before = gc.get_threshold()
    try:
        gc.set_threshold(*garbage.PYTHON_THRESHOLDS)
        with vt.connect("memory:"):
            assert gc.get_threshold() == garbage.OPEN_THRESHOLDS
            with vt.connect("memory:"):
                pass
            assert gc.get_threshold() == garbage.OPEN_THRESHOLDS
        assert gc.get_threshold() == garbage.PYTHON_THRESHOLDS
        gc.set_threshold(900, 5, 5)  # somebody's own choice stays
        with vt.connect("memory:"):
            assert gc.get_threshold() == (900, 5, 5)
        assert gc.get_threshold() == (900, 5, 5)
    finally:
        gc.set_threshold(*before)
