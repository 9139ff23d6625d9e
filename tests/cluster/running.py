"""A cluster of real processes for tests, and a client that asks them from this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import viewtide as vt
from viewtide.coordinator.cluster.directory import Address
from viewtide.coordinator.cluster.process import Process
from viewtide.coordinator.cluster.zookeeper import ZooKeeper
from viewtide.coordinator.two_phase.messages import Outcome, ReadAt, RowsAt
from viewtide.ltm.cluster.messages import MAP, Done, MoveRange, Split
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.transport import Hub

from .ltm_main import SESSION_MS

WAIT_S_MAX = 40.0
AGAIN_S_MAX = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]
MAIN = "tests.cluster.ltm_main"

Value = TypeVar("Value")


def wait_for(what: str, ask: Callable[[], Value | None], timeout_s: float = WAIT_S_MAX) -> Value:
    end = time.monotonic() + timeout_s
    while True:
        found = ask()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


def again(do: Callable[[], Value]) -> Value:
    """On a machine with other things to do an LTM may lose its lease, and a step takes its time: whoever asked is told
    to try again."""
    give_up = time.monotonic() + AGAIN_S_MAX
    while True:
        try:
            return do()
        except (vt.TransactionConflict, vt.Unavailable, vt.StaleRead):
            if time.monotonic() > give_up:
                raise


class Cluster:
    def __init__(self, zookeeper_path: str, directory: Path) -> None:
        self._zookeeper_path = zookeeper_path
        self._directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.zookeeper = ZooKeeper(zookeeper_path, SESSION_MS)
        self.zookeeper.start()
        self._hub = Hub("client", listen="tcp://127.0.0.1:0")
        self.client = Process(
            "client", Address(self._hub.address, "client"), (), self._hub, self.zookeeper, None, SESSION_MS
        )
        self._thread = threading.Thread(target=self.client.run, name="client", daemon=True)

    def start(self, *names: str) -> None:
        for name in names:
            with open(self._directory / f"{name}.out", "ab") as out:
                self.processes[name] = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.cluster.ltm_main",
                        name,
                        self._zookeeper_path,
                        self._directory / "logs",
                    ],
                    cwd=REPOSITORY,
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                    stdout=out,
                    stderr=out,
                )
        if not self._thread.is_alive():
            wait_for("a range map", lambda: self.zookeeper.read("/processes") is not None)
            self._thread.start()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def pause(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(WAIT_S_MAX)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.client.stop()
        if self._thread.is_alive():
            self._thread.join(WAIT_S_MAX)
        self._hub.close()
        self.zookeeper.stop()

    def output(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self._directory.glob("*.out")))

    # -- asking

    def ask(self, question: object, to: str = "any.coordinator", timeout_s: float = WAIT_S_MAX) -> Any:
        return self.client.ask(to, question).result(timeout_s)

    def read(self, *keys: bytes, at: int = 0) -> RowsAt:
        """A read that is refused because of a change of owner is begun again."""
        return wait_for("rows", lambda: found if not (found := self.ask(ReadAt(0, at, keys))).error else None)

    def commit(self, submit: object) -> Outcome:
        outcome = self.ask(submit)
        assert isinstance(outcome, Outcome)
        return outcome

    def command(self, command: Split | MoveRange) -> None:
        """A leader that is new may refuse it at first."""
        errors: list[str] = []

        def done() -> bool:
            answer = self.ask(command, "leader")
            assert isinstance(answer, Done)
            errors.append(answer.error)
            return not answer.error

        wait_for(f"{command}: {errors}", done)

    @property
    def map(self) -> RangeMap:
        stored = self.zookeeper.read(MAP)
        assert stored is not None
        return RangeMap.unpack(stored)

    def log_of(self, process: str) -> str:
        """A log that the process answers for."""
        return wait_for(
            f"a log for {process}",
            lambda: next((log for log, host in self.map.hosts.items() if host.process == process), None),
        )


@contextmanager
def running(zookeeper_path: str, directory: Path, *names: str) -> Iterator[Cluster]:
    cluster = Cluster(zookeeper_path, directory)
    try:
        cluster.start(*names)
        yield cluster
    except BaseException:
        print(cluster.output())
        raise
    finally:
        cluster.close()
