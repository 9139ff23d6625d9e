"""Garbage on every port that Viewtide has, at the same time: nobody crashes, memory is bounded, others are served.

A served node, the socket of an open directory, an LTM (its port for processes, its port for clients, its metrics) and
a view manager, all of them processes of their own. A minute on each port in `make test`, a few seconds otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import viewtide as vt
from tests.conftest import PROFILE, SOAK
from tests.garbage import Garbage
from viewtide.coordinator.cluster.directory import PROCESSES, Address
from viewtide.coordinator.cluster.zookeeper import ZooKeeper
from viewtide.open_socket import KNOCK, running_address

from .running import wait_for

pytestmark = pytest.mark.slow

SECONDS = 8.0 if PROFILE == "dev" else 60.0
#: After so many of them it comes with pauses, and good clients make some: as fast as they can for a minute, they would
#: take a tenth of what all tests together take of the processors. In a soak nobody slows down.
FAST_S = SECONDS if SOAK else 15.0
PAUSE_S = 0.02
#: A good client is answered within this: two cores have all the attackers, their victims and the clients on them, and
#: perhaps the processes of other tests. (19 s were seen with twenty processes waiting for two cores, 5 s with fewer.)
ANSWER_S_MAX = 60.0
#: What each process may take more than before: large frames that are on their way, on all connections at once.
MEMORY_KB_MAX = 300 * 2**10
#: Opens a directory and ends with its standard input.
HOLDER = (
    "import sys, viewtide as vt\n"
    "with vt.connect(sys.argv[1]) as db:\n"
    "    print('{}', flush=True)\n"
    "    sys.stdin.read()\n"
)


class Victim:
    """A process with ports, and what a good client of it does again and again."""

    def __init__(self, name: str, process: subprocess.Popen[str], ports: list[str], use: Callable[[], None]) -> None:
        self.name, self.process, self.ports, self.use = name, process, ports, use
        self.used = 0
        self.slowest_s = 0.0

    def memory_kb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def use_once(self) -> None:
        began = time.monotonic()
        self.use()
        self.used += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


@contextmanager
def process(folder: Path, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Its standard input is closed at the end, and it is told to end; it must do so by itself."""
    with (
        open(folder / "errors", "a") as errors,
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as started,
    ):
        assert started.stdin is not None
        try:
            yield started
            assert started.poll() is None, f"{command} has ended: {(folder / 'errors').read_text()[-3_000:]}"
            started.stdin.close()
            started.terminate()
            started.wait(30)
        finally:
            started.kill()


def first_line(started: subprocess.Popen[str]) -> Any:
    assert started.stdout is not None
    return json.loads(started.stdout.readline())


def writing(db: vt.Database) -> Callable[[], None]:
    """Each turn one row more, seen by the view at once."""
    db.create_table("good", {"id": int, "x": int}, key="id")
    db.create_view("total", "SELECT SUM(x) AS x, COUNT(*) AS n FROM good")
    written = 0

    def use() -> None:
        nonlocal written
        written += 1
        db.run(lambda tx: tx.upsert("good", {"id": written, "x": 2}))
        assert db.view("total").get() == {"x": 2 * written, "n": written}

    return use


def asking(metrics: list[str]) -> Callable[[], None]:
    def use() -> None:
        for address in metrics:
            # More requests at a time than it takes are closed at once: then one asks again.
            assert "viewtide_" in wait_for("metrics", lambda address=address: _metrics(address), ANSWER_S_MAX)

    return use


def _metrics(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=ANSWER_S_MAX) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def served_node(closing: ExitStack, folder: Path) -> Victim:
    started = closing.enter_context(
        process(folder, "-m", "viewtide.cli", "serve", folder / "served.db", "--listen", "tcp://127.0.0.1:0", "--json")
    )
    address = first_line(started)["address"]
    return Victim("served node", started, [address], writing(closing.enter_context(vt.connect(address))))


def open_directory(closing: ExitStack, folder: Path) -> Victim:
    started = closing.enter_context(process(folder, "-c", HOLDER, folder / "open.db"))
    first_line(started)
    db = closing.enter_context(vt.connect(f"ipc://{folder}/open.db/socket"))
    node = running_address(folder / "open.db")
    knocks = Path(node.removeprefix("ipc://")).with_name(KNOCK)
    return Victim("open directory", started, [f"unix://{knocks}", node], writing(db))


def cluster(closing: ExitStack, folder: Path, zookeeper_path: str) -> list[Victim]:
    victims = []
    for name, command in (("ltm-1", "ltm"), ("vm-1", "view-manager")):
        config = folder / f"{name}.toml"
        clients = 'clients = "tcp://127.0.0.1:0"\n' if command == "ltm" else ""
        config.write_text(
            f'name = "{name}"\n{clients}\n[zookeeper]\nhosts = "{zookeeper_path}"\nsession_ms = 10000\n\n'
            f'[storage]\nkind = "local"\ndirectory = "{folder / "logs"}"\n'
        )
        started = closing.enter_context(process(folder, "-m", "viewtide.cli", command, "--config", config))
        victims.append(Victim(name, started, [], lambda: None))
    addresses = found(zookeeper_path, [victim.name for victim in victims])
    for victim in victims:
        address = addresses[victim.name]
        victim.ports = [address.address, f"http://{address.metrics}"]
        victim.use = asking([address.metrics])
        if address.clients:
            victim.ports.append(address.clients)
            ask, write = victim.use, writing(closing.enter_context(vt.connect(f"zk://{zookeeper_path}")))

            def use(ask: Callable[[], None] = ask, write: Callable[[], None] = write) -> None:
                ask()
                write()

            victim.use = use
    return victims


def found(zookeeper_path: str, names: list[str]) -> dict[str, Address]:
    zookeeper = ZooKeeper(zookeeper_path, 4_000)
    zookeeper.start()
    try:
        return {
            name: wait_for(name, lambda name=name: Address.unpack(zookeeper.read(f"{PROCESSES}/{name}") or b""))
            for name in names
        }
    finally:
        zookeeper.stop()


def test_garbage_on_every_port(tmp_path: Path, zookeeper_path: str) -> None:
    with ExitStack() as closing:
        victims = [served_node(closing, tmp_path), open_directory(closing, tmp_path)]
        victims += cluster(closing, tmp_path, zookeeper_path)
        for victim in victims:
            victim.use_once()
        before = {victim.name: victim.memory_kb() for victim in victims}
        ports = [port for victim in victims for port in victim.ports]
        assert len(ports) == 8, ports
        with ExitStack() as attacking:
            attacks = [attacking.enter_context(Garbage(port, seed, threads=1)) for seed, port in enumerate(ports)]
            begun = time.monotonic()
            while time.monotonic() < begun + SECONDS:
                if time.monotonic() > begun + FAST_S:
                    for attack in attacks:
                        attack.slow_down(PAUSE_S)
                    time.sleep(PAUSE_S)
                for victim in victims:
                    victim.use_once()
        for victim in victims:
            victim.use_once()
            grown = victim.memory_kb() - before[victim.name]
            print(f"{victim.name}: used {victim.used} times, slowest {victim.slowest_s:.2f} s, {grown:,} KB more")
            assert grown < MEMORY_KB_MAX, victim.name
            assert victim.slowest_s < ANSWER_S_MAX, victim.name
            assert victim.used >= 3, victim.name
        for port, attack in zip(ports, attacks, strict=True):
            assert len(attack.sent) > len(attack.attacks) // 2 and attack.sent.total() > 20, (port, attack.sent)
