"""A served node is killed at random moments while clients write, and started again at the same address: no commit that
a client was told of is lost, and none happens twice, though clients send again what got no answer."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import viewtide as vt

from ..conftest import PROFILE

KILLS = {"dev": 2, "full": 5, "soak": 60}[PROFILE]
WRITERS = 4
ROWS_PER_TRANSACTION = 3
SEED = 20_261_116
#: A killed node is up again within seconds; on a busy machine it takes longer.
START_S_MAX = 60.0


class Node:
    """`viewtide serve` at one address, through many lives."""

    def __init__(self, path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._command = [sys.executable, "-m", "viewtide.cli", "serve", str(path), "--listen", self.address, "--json"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["address"] == self.address

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(START_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Writer(threading.Thread):
    """Commits without pause: new rows without reading, and a counter that it reads and adds one to."""

    def __init__(self, number: int, address: str, stopping: threading.Event) -> None:
        super().__init__(name=f"writer-{number}")
        self._number, self._address, self._stopping = number, address, stopping
        self.inserted: list[int] = []
        self.unknown: list[int] = []
        self.counted = self.counted_unknown = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with vt.connect(self._address) as db:
                first = self._number * 1_000_000
                while not self._stopping.is_set():
                    self._insert(db, first)
                    self._count(db)
                    first += ROWS_PER_TRANSACTION
        except BaseException as error:
            self.failure = error

    def _insert(self, db: vt.Database, first: int) -> None:
        rows = [{"id": first + n, "writer": self._number} for n in range(ROWS_PER_TRANSACTION)]
        while True:
            try:
                with db.transaction() as tx:
                    tx.insert("t", rows)
                self.inserted.append(first)
                return
            except vt.CommitUnknown:
                self.unknown.append(first)
                return
            except vt.OperationalError as error:
                if not error.retryable:
                    raise

    def _count(self, db: vt.Database) -> None:
        def add(tx: vt.Transaction) -> None:
            row = tx.get("counters", self._number)
            assert row is not None
            tx.update("counters", self._number, {"n": int(str(row["n"])) + 1})

        while True:
            try:
                db.run(add)
                self.counted += 1
                return
            except vt.CommitUnknown:
                self.counted_unknown += 1
                return
            except vt.OperationalError as error:
                if not error.retryable:
                    raise


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_happens_twice(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    node = Node(tmp_path / "db")
    stopping = threading.Event()
    writers = [Writer(number, node.address, stopping) for number in range(WRITERS)]
    try:
        with vt.connect(node.address) as db:
            db.create_table("t", {"id": int, "writer": int}, key="id")
            db.create_table("counters", {"id": int, "n": int}, key="id")
            db.create_view("per_writer", "SELECT writer, COUNT(*) AS n FROM t GROUP BY writer")
            with db.transaction() as tx:
                tx.insert("counters", [{"id": number, "n": 0} for number in range(WRITERS)])
        for writer in writers:
            writer.start()
        for _ in range(KILLS):
            _until_all_get_on(writers)
            # The clock kills, not the progress of the writers: they may be anywhere.
            time.sleep(chance.uniform(0.05, 0.5))
            node.kill()
            node.start()
        _until_all_get_on(writers)
        stopping.set()
        for writer in writers:
            writer.join(START_S_MAX)
            assert not writer.is_alive()
            assert writer.failure is None
        with vt.connect(node.address) as db:
            _check(db, writers)
    finally:
        stopping.set()
        if node.process.poll() is None:
            node.stop()


def _until_all_get_on(writers: list[Writer]) -> None:
    before = [len(writer.inserted) for writer in writers]
    give_up = time.monotonic() + START_S_MAX
    while not all(len(writer.inserted) > count for writer, count in zip(writers, before, strict=True)):
        assert all(writer.failure is None for writer in writers), [writer.failure for writer in writers]
        assert time.monotonic() < give_up, "the writers do not get on"
        time.sleep(0.01)


def _check(db: vt.Database, writers: list[Writer]) -> None:
    with db.snapshot() as snapshot:
        stored = {row["id"] for row in snapshot.scan("t")}
        counters = {row["id"]: int(str(row["n"])) for row in snapshot.scan("counters")}
    may_be = set()
    for number, writer in enumerate(writers):
        for first in writer.inserted:
            assert {first + n for n in range(ROWS_PER_TRANSACTION)} <= stored, "an acknowledged commit is lost"
        for first in [*writer.inserted, *writer.unknown]:
            may_be |= {first + n for n in range(ROWS_PER_TRANSACTION)}
        assert writer.counted <= counters[number] <= writer.counted + writer.counted_unknown
    assert stored <= may_be
    assert len(stored) % ROWS_PER_TRANSACTION == 0
    assert db.view("per_writer").verify().ok
