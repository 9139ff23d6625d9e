"""A process that writes is killed at a random moment, again and again: what it acknowledged is there, nothing is half
there, and the views agree with their tables. The next writer checks that when it opens the directory."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from viewtide.config import LTMS_VARIABLE

from ..conftest import PROFILE
from . import writer

pytestmark = pytest.mark.several_ltms

#: Shares of the stated number of cycles, as for examples of Hypothesis.
CYCLES_FACTOR = {"dev": 0.1, "full": 1.0, "soak": 20.0}[PROFILE]
#: With several LTMs a part of the cycles, unless all tests are run with them: with one LTM all are run in any case.
SAMPLE, IS_SAMPLED = 0.3, LTMS_VARIABLE not in os.environ
SEED = 20_240_229


class Zygote:
    """The warm parent of all writers, or of the children of another module like `writer`."""

    def __init__(self, module: str = writer.__name__) -> None:
        command = [sys.executable, "-m", module]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )
        assert self._process.stdout is not None
        self._lines = open(self._process.stdout.fileno(), "rb", closefd=False)  # noqa: SIM115  # closed by close()

    def start(self, path: Path, mode: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        request = {"path": str(path), "mode": mode, **arguments}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def line(self) -> tuple[str, str]:
        word, _, rest = self._lines.readline().decode().strip().partition(" ")
        assert word, "the parent of the writers ended"
        return word, rest

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._lines.close()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


class Victim:
    """One database directory over many killed writers."""

    def __init__(self, zygote: Zygote, path: Path) -> None:
        self._zygote = zygote
        self._path = path
        self._chance = random.Random(SEED)
        self.acknowledged = [0] * writer.WORKERS
        self.seen: Counter[str] = Counter()

    def cycle(self, mode: str, markers: set[str], delay_ms: tuple[float, float]) -> None:
        """Start a writer and kill it a random while after it has reported each of `markers`."""
        self._zygote.start(self._path, mode, acknowledged=self.acknowledged)
        delay_s = self._chance.uniform(*delay_ms) / 1000
        pid: int | None = None
        timer: threading.Timer | None = None
        seen: set[str] = set()
        while True:
            word, rest = self._zygote.line()
            seen.add(word)
            if word == "pid":
                pid = int(rest)
            elif word == "ack":
                worker, number = map(int, rest.split())
                self.acknowledged[worker] = number
            elif word == "recovered":
                self.acknowledged = json.loads(rest)
            elif word == "ended":
                assert timer is not None, "the writer ended by itself"
                assert int(rest) == -signal.SIGKILL
                self.seen.update(seen)
                return
            assert word != "broken", rest
            if pid is not None and markers <= seen and timer is None:
                timer = threading.Timer(delay_s, os.kill, (pid, signal.SIGKILL))
                timer.start()


def cycles(count: int) -> range:
    share = SAMPLE if IS_SAMPLED and os.environ.get(LTMS_VARIABLE, "1") != "1" else 1.0
    return range(max(3, int(count * share * CYCLES_FACTOR)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_while_writing(zygote: Zygote, tmp_path: Path) -> None:
    victim = Victim(zygote, tmp_path / "db")
    for _ in cycles(100):
        victim.cycle("write", {"ack"}, (20, 150))
    assert min(victim.acknowledged) > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_during_checkpoints(zygote: Zygote, tmp_path: Path) -> None:
    """Checkpoints follow each other without pause: nearly every kill meets one."""
    victim = Victim(zygote, tmp_path / "db")
    for _ in cycles(30):
        victim.cycle("checkpoint", {"ack", "checkpointing"}, (1, 60))
    assert victim.seen["checkpointing"] == victim.seen["ended"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_while_another_process_writes_the_checkpoint(zygote: Zygote, tmp_path: Path) -> None:
    """It writes nothing after its parent is gone, or all of the checkpoint, and the next writer waits for its end."""
    victim = Victim(zygote, tmp_path / "db")
    for _ in cycles(30):
        victim.cycle("elsewhere", {"ack", "checkpointing"}, (1, 500))
    assert victim.seen["checkpointing"] == victim.seen["ended"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_while_opening(zygote: Zygote, tmp_path: Path) -> None:
    """Also the very first time, when the directory is being made; every other writer leaves something to recover."""
    victim = Victim(zygote, tmp_path / "db")
    for number in cycles(30):
        for _ in range(2):
            victim.cycle("write", {"opening"}, (0, 5 if number % 2 else 40))
        victim.cycle("write", {"ack"}, (5, 50))
    # Some were killed before they had recovered.
    assert victim.seen["recovered"] < victim.seen["ended"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_while_a_view_is_created(zygote: Zygote, tmp_path: Path) -> None:
    """A view that was not finished is gone, one that was is whole."""
    victim = Victim(zygote, tmp_path / "db")
    for _ in cycles(30):
        victim.cycle("view", {"building"}, (1, 120))
    assert victim.seen["built"] < victim.seen["ended"]
