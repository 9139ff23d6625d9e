"""A process is killed while it makes a database, before each call that may change a file: what it leaves opens as a new
database. Once it is made, commits that are missing because their log is gone are missed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import viewtide as vt

#: More than there are.
POINTS_MAX = 300
#: Forks children that make a database each, and kills the n-th before its n-th call that may change a file. Each line
#: of its output is the name of that call.
KILLER = """
import os, signal, sys
import viewtide as vt

SYSTEM = "mkdir open write pwrite pwritev ftruncate rename unlink fsync fdatasync chmod fchmod flock bind"
LMDB = "open_db put __exit__"
CHANGING = {*SYSTEM.split(), *LMDB.split()}
place, points_max = sys.argv[1], int(sys.argv[2])
vt.connect(f"{place}/first.db").close()  # what is imported later is imported now: only the making is counted

def kill_at(point):
    passed = 0
    def before(frame, event, function):
        nonlocal passed
        if event == "c_call" and function.__name__ in CHANGING:
            passed += 1
            if passed > point:
                os.write(1, f"{function.__name__}\\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
    return before

for point in range(points_max):
    child = os.fork()
    if not child:
        sys.setprofile(kill_at(point))
        try:
            vt.connect(f"{place}/{point}.db")
        finally:
            os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.several_ltms
def test_a_database_whose_making_was_interrupted_opens_as_a_new_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path), str(POINTS_MAX)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    calls = done.stdout.split()
    assert {"mkdir", "open", "fsync", "rename", "flock"} <= set(calls), calls
    assert 20 < len(calls) < POINTS_MAX, calls
    for point, call in enumerate(calls):
        path = tmp_path / f"{point}.db"
        with vt.connect(path) as db:
            assert db.tables() == [], (point, call)
            db.create_table("t", {"id": int}, key="id")
            db.run(lambda tx: tx.insert("t", {"id": 1}))
        with vt.connect(path) as db, db.snapshot() as snapshot:
            assert snapshot.scan("t") == [{"id": 1}], (point, call)
        shutil.rmtree(path)


def killed_database(path: Path) -> None:
    """One that has never had a checkpoint: all that was acknowledged is in its log."""
    code = (
        "import os, signal, sys, viewtide as vt\n"
        "db = vt.connect(sys.argv[1])\n"
        "db.create_table('t', {'id': int}, key='id')\n"
        "db.run(lambda tx: tx.insert('t', [{'id': n} for n in range(10)]))\n"
        "assert db.status().checkpoints == 0\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def zero(segment: Path) -> None:
    segment.write_bytes(bytes(segment.stat().st_size))


LOSSES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "zeroed": zero,
    "truncated to nothing": lambda segment: os.truncate(segment, 0),
    "truncated to its header": lambda segment: os.truncate(segment, 48),
    "its folder is deleted": lambda segment: shutil.rmtree(segment.parent),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_log_that_is_lost_before_the_first_checkpoint_is_missed(
    db_path: Path, lose: Callable[[Path], object]
) -> None:
    killed_database(db_path)
    [segment] = (db_path / "log").glob("*.log")
    lose(segment)
    for _ in range(2):  # what the first opening left is no new database either
        with pytest.raises(vt.OperationalError, match="files are missing") as raised:
            vt.connect(db_path)
        assert str(db_path / "log") in raised.value.message
        assert raised.value.hint


def test_what_was_killed_before_its_first_checkpoint_opens_with_all_commits(db_path: Path) -> None:
    killed_database(db_path)
    with vt.connect(db_path) as db, db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.scan("t")] == list(range(10))


def test_a_new_database_that_was_closed_opens_without_a_report(db_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with vt.connect(db_path) as db:
            assert db.tables() == []
    assert not caplog.records
