"""Large checkpoints are written by a process of their own: the same contents, and a way back if it fails."""

from __future__ import annotations

import datetime
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt
from viewtide import node
from viewtide.coordinator import build
from viewtide.coordinator.embedded import Engine
from viewtide.ltm import driver
from viewtide.ltm.commit_log.segments import SegmentLog
from viewtide.ltm.ports import ElsewhereFailed, LoggedRows, LogPart
from viewtide.ltm.store import process
from viewtide.ltm.store.process import ProcessWrite

BY_GROUP = "SELECT e.grp, COUNT(*) AS n, SUM(e.cost) AS cost FROM events e JOIN groups g ON e.grp = g.id GROUP BY e.grp"
GROUPS = 5


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ELSEWHERE_ROWS_MIN", 0)
    monkeypatch.setattr(driver, "SENT_ROWS", 7)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[vt.Database]:
    with vt.connect(tmp_path / "db") as opened:
        columns = {"id": int, "grp": int, "cost": Decimal, "day": datetime.date, "at": datetime.datetime, "x": float}
        opened.create_table("groups", {"id": int}, key="id")
        opened.create_table("events", columns, key="id", indexes=["grp", "day", "cost", "x"])
        opened.create_view("by_group", BY_GROUP)
        with opened.transaction() as tx:
            tx.insert("groups", [{"id": id_} for id_ in range(GROUPS)])
        yield opened


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The index ids whose entries were made by the process."""
    seen: list[int] = []
    rows, logged = ProcessWrite.rows, ProcessWrite.logged

    def noted(self: ProcessWrite, table_id: int, indexes: list[int], some: list[object]) -> None:
        seen.extend(indexes)
        rows(self, table_id, indexes, some)  # type: ignore[arg-type]

    def noted_logged(self: ProcessWrite, parts: list[LogPart], tables: list[LoggedRows]) -> None:
        seen.extend(index for table in tables for index in table.indexes)
        logged(self, parts, tables)

    monkeypatch.setattr(ProcessWrite, "rows", noted)
    monkeypatch.setattr(ProcessWrite, "logged", noted_logged)
    return seen


def nothing_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a log that others cannot read. Not a log without `parts`: whether one is a LogInFiles is remembered by
    its class, so that it would depend on the tests before."""
    monkeypatch.setattr(driver.Ltm, "_logged", lambda *_: driver._Logged([], {}))


@pytest.fixture(params=["sent", "logged"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """New rows are sent to the process, or it reads them in the log."""
    if request.param == "sent":
        nothing_in_the_log(monkeypatch)
    else:
        monkeypatch.setattr(process, "LOGGED_ROWS", 7)
    return str(request.param)


def event(id_: int, grp: int) -> dict[str, object]:
    day = datetime.date(2024, 1, 1 + id_ % 28)
    at = datetime.datetime(2024, 1, 1, microsecond=id_)
    x = float("nan") if id_ % 7 == 0 else id_ / 3
    return {"id": id_, "grp": grp, "cost": Decimal(id_) / 4, "day": day, "at": at, "x": x}


def insert(db: vt.Database, first: int, count: int) -> dict[int, dict[str, object]]:
    rows = {id_: event(id_, id_ % GROUPS) for id_ in range(first, first + count)}
    with db.transaction() as tx:
        tx.insert("events", list(rows.values()))
    return rows


def check(db: vt.Database, expected: dict[int, dict[str, object]]) -> None:
    with db.snapshot() as snapshot:
        assert [repr(dict(row)) for row in snapshot.scan("events")] == [repr(expected[id_]) for id_ in sorted(expected)]
        for column in ("grp", "day", "cost", "x"):
            for wanted in {repr(row[column]): row[column] for row in expected.values()}.values():
                found = sorted(row["id"] for row in snapshot.find("events", **{column: wanted}))  # type: ignore[type-var]
                same = sorted(id_ for id_, row in expected.items() if repr(row[column]) == repr(wanted))
                assert found == same
    assert db.view("by_group").verify().ok


def reopened(db: vt.Database) -> vt.Database:
    db.close()
    return vt.connect(db._node.name)


@pytest.mark.usefixtures("way")
def test_inserted_rows_and_their_index_entries(db: vt.Database, made: list[int]) -> None:
    rows = insert(db, 0, 50)
    db._engine.checkpoint()
    assert len(set(made)) == 4
    check(db, rows)
    rows |= insert(db, 50, 20)
    with reopened(db) as again:
        check(again, rows)


@pytest.mark.usefixtures("way")
def test_index_entries_that_somebody_looked_for_are_made_there_too(db: vt.Database, made: list[int]) -> None:
    rows = insert(db, 0, 50)
    check(db, rows)
    rows |= insert(db, 50, 20)
    db._engine.checkpoint()
    assert len(set(made)) == 4
    check(db, rows)
    with reopened(db) as again:
        check(again, rows)


def test_all_kinds_of_changes(db: vt.Database) -> None:
    chance = random.Random(3)
    rows = insert(db, 0, 40)
    for number in range(12):
        with db.snapshot() as pinned:
            before = {row["id"]: dict(row) for row in pinned.scan("events")}
            with db.transaction() as tx:
                for _ in range(6):
                    id_ = chance.randrange(60)
                    if chance.random() < 0.3:
                        assert tx.delete("events", id_) == (rows.pop(id_, None) is not None)
                    else:
                        rows[id_] = event(id_, chance.randrange(GROUPS))
                        tx.upsert("events", rows[id_])
            if number % 3 == 0:
                assert {row["id"] for row in db.snapshot().find("events", grp=1)} == {
                    id_ for id_, row in rows.items() if row["grp"] == 1
                }
            db._engine.checkpoint()
            assert repr({row["id"]: dict(row) for row in pinned.scan("events")}) == repr(before)
        check(db, rows)
    with reopened(db) as again:
        check(again, rows)


def test_the_log_is_read_from_the_last_checkpoint_on(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several segments, and not what other tables got meanwhile, or this one before."""
    log = cast(SegmentLog, db._engine.ltm._log)
    log._segment_bytes = log._segments[-1].segment_bytes = 4096
    read: list[tuple[int, int]] = []
    logged = ProcessWrite.logged

    def noted(self: ProcessWrite, parts: list[LogPart], tables: list[LoggedRows]) -> None:
        read.append((len(parts), sum(table.rows_count for table in tables)))
        logged(self, parts, tables)

    monkeypatch.setattr(ProcessWrite, "logged", noted)
    rows: dict[int, dict[str, object]] = {}
    for first in (0, 100, 200):
        for number in range(first, first + 60, 12):
            rows |= insert(db, number, 12)
            with db.transaction() as tx:
                tx.upsert("groups", {"id": 1})
        db._engine.checkpoint()
        check(db, rows)
    assert [count for _, count in read] == [60, 60, 60]
    assert all(parts > 1 for parts, _ in read)
    with reopened(db) as again:
        check(again, rows)


def test_logged_rows_that_are_older_than_a_column(db: vt.Database) -> None:
    insert(db, 0, 20)
    db.add_column("events", "note", vt.column(str, default="none"))
    insert(db, 20, 20)
    db._engine.checkpoint()
    with reopened(db) as again:
        assert [row["note"] for row in again.snapshot().scan("events")] == ["none"] * 40
        assert len(again.snapshot().find("events", grp=1)) == 8


def test_what_is_dropped_is_not_looked_for_in_the_log(db: vt.Database) -> None:
    db.create_table("gone", {"id": int}, key="id")
    with db.transaction() as tx:
        tx.insert("gone", [{"id": number} for number in range(30)])
    rows = insert(db, 0, 30)
    db.drop_table("gone")
    db._engine.checkpoint()
    with reopened(db) as again:
        check(again, rows)


def test_reads_and_writes_while_it_writes(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = insert(db, 0, 50)
    commit = ProcessWrite.commit

    def meanwhile(self: ProcessWrite, *rest: object) -> dict[int, bytes]:
        check(db, rows)
        rows.update(insert(db, 100, 10))
        with db.transaction() as tx:
            tx.update("events", 3, {"grp": 4})
        rows[3]["grp"] = 4
        check(db, rows)
        return commit(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ProcessWrite, "commit", meanwhile)
    db._engine.checkpoint()
    monkeypatch.undo()
    check(db, rows)
    with reopened(db) as again:
        check(again, rows)


def killed_before(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(ProcessWrite, name)

        def deadly(self: ProcessWrite, *rest: object) -> object:
            self._child.kill()
            self._child.wait()
            return real(self, *rest)

        monkeypatch.setattr(ProcessWrite, name, deadly)

    return patch


def killed_before_rows_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_in_the_log(monkeypatch)
    killed_before("rows")(monkeypatch)


def killed_in_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have written everything: that is written again."""
    answer = ProcessWrite._answer

    def deadly(self: ProcessWrite) -> tuple[str, object]:
        answer(self)
        return "failed", "the answer was lost"

    monkeypatch.setattr(ProcessWrite, "_answer", deadly)


def stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STALL_MS_MAX", 50)
    begin = ProcessWrite.begin

    def stopped(self: ProcessWrite, catalog: bytes) -> None:
        self._child.send_signal(signal.SIGSTOP)
        begin(self, catalog)

    monkeypatch.setattr(ProcessWrite, "begin", stopped)


def not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "interpreter", lambda: "/no/such/python")


def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/true")


def other_rows_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = ProcessWrite.logged

    def one_more(self: ProcessWrite, parts: list[LogPart], tables: list[LoggedRows]) -> None:
        logged(self, parts, [table._replace(rows_count=table.rows_count + 1) for table in tables])

    monkeypatch.setattr(ProcessWrite, "logged", one_more)


def no_file_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = ProcessWrite.logged

    def elsewhere(self: ProcessWrite, parts: list[LogPart], tables: list[LoggedRows]) -> None:
        logged(self, [part._replace(path="/no/such/file") for part in parts], tables)

    monkeypatch.setattr(ProcessWrite, "logged", elsewhere)


def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessWrite, "begin", lambda self, catalog: self._send(("begin", b"\xc1")))


@pytest.mark.parametrize(
    "fail",
    [
        killed_before("begin"),
        killed_before_rows_are_sent,
        killed_before("logged"),
        other_rows_in_the_log,
        no_file_of_the_log,
        killed_before("commit"),
        killed_in_the_commit,
        stalled,
        not_started,
        no_python,
        refused,
    ],
)
def test_a_process_that_fails_does_no_harm(
    db: vt.Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[pytest.MonkeyPatch], None],
) -> None:
    rows = insert(db, 0, 50)
    db._engine.checkpoint()
    rows |= insert(db, 50, 50)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        fail(patched)
        db._engine.checkpoint()
    assert len(caplog.records) == (fail is not no_python)
    check(db, rows)
    rows |= insert(db, 100, 50)
    db._engine.checkpoint()
    check(db, rows)
    with reopened(db) as again:
        check(again, rows)


def test_nothing_is_written_for_a_parent_that_is_gone(db: vt.Database) -> None:
    """It has everything but the word to commit; the pipe closes."""
    insert(db, 0, 50)
    store = db._engine.ltm._store
    before = store.stat()["cells"], store.meta("position")
    writing = store.write_elsewhere()
    assert isinstance(writing, ProcessWrite)
    with writing:
        writing.begin(store.meta("catalog") or b"")
        writing.cells([(b"\0\0\0\1key", 1, b"value")])  # type: ignore[list-item]
        assert writing._child.stdin is not None and writing._child.stdout is not None
        writing._child.stdin.close()
        assert writing._child.stdout.read() == b""
        assert writing._child.wait() == 0
        with pytest.raises((ElsewhereFailed, OSError)):
            writing.cells([(b"\0\0\0\1key", 2, b"value")])  # type: ignore[list-item]
    assert (store.stat()["cells"], store.meta("position")) == before


def test_an_orphan_ends_although_its_pipe_is_open(tmp_path: Path) -> None:
    with vt.connect(tmp_path / "db"):
        pass
    command = process.command(sys.executable, tmp_path / "db" / "store", os.getpid() + 1)
    orphan = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert orphan.stdout is not None and orphan.stdin is not None
    assert orphan.stdout.read() == b""
    assert orphan.wait() == 0
    orphan.stdin.close()
    orphan.stdout.close()


def test_the_lock_of_a_killed_process_is_waited_for(tmp_path: Path) -> None:
    with vt.connect(tmp_path / "db"):
        pass
    holder = node.DirectoryLock(tmp_path / "db")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    os.pwrite(holder.descriptor, f"{gone.pid}\n".ljust(16).encode(), 0)
    timer = threading.Timer(0.05, holder.release)
    timer.start()
    with vt.connect(tmp_path / "db") as db:
        assert db.tables() == []
    timer.join()


def test_the_lock_of_a_running_process_is_not_waited_for(tmp_path: Path) -> None:
    with vt.connect(tmp_path / "db"), pytest.raises(vt.OperationalError, match=str(os.getpid())):
        vt.connect(tmp_path / "db")


def test_an_index_that_is_being_built_gets_its_entries_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder makes entries of old rows with a timestamp of its own; the process must not make them too, or one of
    the two would stay when the row changes."""
    commit, fill = ProcessWrite.commit, build._fill_index
    writing, filled = threading.Event(), threading.Event()

    def held(self: ProcessWrite, *args: object) -> object:
        writing.set()
        assert filled.wait(30)
        return commit(self, *args)  # type: ignore[arg-type]

    def fill_beside_a_checkpoint(engine: Engine, table: str, index_id: int) -> None:
        monkeypatch.setattr(ProcessWrite, "commit", held)
        checkpoint = threading.Thread(target=engine.checkpoint)
        checkpoint.start()
        assert writing.wait(30)
        monkeypatch.setattr(ProcessWrite, "commit", commit)
        fill(engine, table, index_id)
        filled.set()
        checkpoint.join()

    with vt.connect(tmp_path / "other") as db:
        db.create_table("t", {"id": int, "x": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", [{"id": number, "x": number % 3} for number in range(30)])
        monkeypatch.setattr(build, "_fill_index", fill_beside_a_checkpoint)
        db.create_index("t", "x")
        with db.transaction() as tx:
            tx.update("t", 0, {"x": 1})
        for _ in range(2):
            db._engine.checkpoint()
        ltm = db._engine.ltm
        entries = ltm.tables.by_name["t"].indexes[0]
        found = ltm.entries_at(entries.versions, entries.codec.prefix((0,)), ltm.horizon.durable_ts)
        assert len(found) == 9
