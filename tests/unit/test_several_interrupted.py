"""Several LTMs in one process: a batch that a failing log interrupts is done again after a restart, in its order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import viewtide as vt
from tests.cluster.running import wait_for


def test_what_is_done_again_does_not_come_behind_what_is_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or deferred views, which rely on the order of the node's log, would pass it."""
    db = vt.connect(tmp_path / "db", ltms=3)
    db.create_table("c", {"id": int, "n": int}, key="id")
    db.create_table("e", {"id": int, "g": int}, key="id")
    db.create_view("late", "SELECT g, COUNT(*) AS n FROM e GROUP BY g", refresh="manual")
    with db.transaction() as tx:
        tx.insert("c", {"id": 1, "n": 0})
        tx.insert("e", {"id": 100, "g": 1})
    db.view("late").refresh()
    engine = db._engine
    engine._leader.acquire()  # so that all that follow are one batch
    unknown: list[vt.Error] = []

    def begin(work: Callable[[vt.Transaction], None]) -> threading.Thread:
        def run() -> None:
            try:
                with db.transaction() as tx:
                    work(tx)
            except vt.CommitUnknown as error:
                unknown.append(error)

        before = len(engine._queue)
        thread = threading.Thread(target=run)
        thread.start()
        wait_for("it is in the queue", lambda: len(engine._queue) > before or None)
        return thread

    def first(tx: vt.Transaction) -> None:
        tx.upsert("c", {"id": 1, "n": 1})

    def second(tx: vt.Transaction) -> None:
        tx.upsert("c", {"id": 1, "n": 2})
        tx.insert("e", {"id": 1, "g": 1})

    def third(tx: vt.Transaction) -> None:
        tx.get("e", 100)
        tx.insert("e", {"id": 2, "g": 1})

    threads = [begin(work) for work in (first, second, third)]
    real, rounds = engine._flush_logs, []

    def flush() -> None:
        rounds.append(1)
        if len(rounds) == 2:
            for log in engine._logs.values():
                log.flush()
            raise vt.OperationalError("no space left")  # what these have is durable, and another log fails
        real()

    monkeypatch.setattr(engine, "_flush_logs", flush)
    engine._lead(None)
    for thread in threads:
        thread.join()
    assert unknown, "nothing was interrupted"
    db.close()
    with vt.connect(tmp_path / "db", ltms=3) as db:
        with db.snapshot() as snapshot:
            assert {row.id for row in snapshot.scan("e")} == {1, 2, 100}
        db.view("late").refresh()
        report = db.view("late").verify()
        assert report.ok, report.differences
        assert db.view("late").rows()[0].n == 3
