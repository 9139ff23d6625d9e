"""Clusters of LTM processes on this machine, as places for client processes: ZooKeeper, two-phase commit over ZeroMQ,
logs on the local disk or in HBase.

ZooKeeper, or one JVM with it and HBase, is started once for a bench; every cell gets LTM processes of its own. With
two LTMs or more, events and the index on them are on one and all else is on another: products, the rows of the view. So
every transaction has two participants. Clients are served by all LTMs in turn. All of them talk over Unix
sockets, as PostgreSQL and its clients do.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from . import product
from .driver import Client, Reader
from .errors import BenchError
from .workload import TABLES, VIEW_NAME, VIEW_SQL

if TYPE_CHECKING:
    from viewtide.cluster_client import ClusterClient
    from viewtide.ltm.tables import Tables

LOCAL, HBASE = "local", "hbase"
EVENTS = "events"
READY_S_MAX = 90.0
STOP_S_MAX = 20.0
LOOK_AGAIN_S = 0.05
#: On a busy machine the JVM may pause for seconds.
SESSION_MS = 10_000


class Servers(Protocol):
    """A running ZooKeeper and HBase."""

    zookeeper: str
    thrift: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A running cluster: where its LTMs serve clients and show their metrics."""

    addresses: tuple[str, ...]
    metrics: tuple[str, ...]

    def client(self, index: int) -> Client:
        return product.remote_client(self.addresses[index % len(self.addresses)])

    def reader(self) -> Reader:
        return product.remote_client(self.addresses[0])

    def recompute_differs(self) -> str | None:
        return product.remote_difference(self.addresses[0])

    def figures(self) -> dict[str, float]:
        """The metrics of all LTMs, added up."""
        found: dict[str, float] = {}
        for address in self.metrics:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=STOP_S_MAX) as answer:
                text: str = answer.read().decode()
            for line in text.splitlines():
                if not line.startswith("#"):
                    name, value = line.partition("{")[0], line.rpartition(" ")[2]
                    found[name] = found.get(name, 0.0) + float(value)
        return found


@contextmanager
def servers(parent: Path) -> Iterator[Servers]:
    """What clusters with logs on the local disk need: no HBase, which would take its part of the processors."""
    from viewtide.changetables.errors import OperationalError
    from viewtide.dev_cluster import running

    with product.fresh_folder(parent) as folder, ExitStack() as stack:
        try:
            started = stack.enter_context(running(folder, only_zookeeper=True))
        except OperationalError as error:
            raise BenchError(f"ZooKeeper cannot be started: {error}") from error
        yield started


@contextmanager
def cluster_place(parent: Path, servers: Servers, ltms: int, storage: str = LOCAL) -> Iterator[ClusterPlace]:
    """A fresh cluster with the initial rows and the view; with several LTMs, events and the index on them are on one,
    the rest is on another."""
    with filled_cluster(parent, servers, ltms, storage) as (place, client):
        if ltms > 1:
            # Whoever came first has everything.
            first = client.status().ranges[0].process
            other = 1 if first == "ltm-1" else 0
            spread(client, lambda tables: [(*each, other) for each in _of_events(tables)])
        yield place


def _of_events(tables: Tables) -> Iterator[tuple[bytes, bytes]]:
    """The keys of the events, and those of the index on them."""
    from viewtide.changetables.keys import table_range

    events = tables.by_name[EVENTS]
    yield table_range(events.table.id)
    for index in events.indexes:
        yield table_range(index.index.id)


@contextmanager
def filled_cluster(
    parent: Path, servers: Servers, ltms: int, storage: str = LOCAL
) -> Iterator[tuple[ClusterPlace, ClusterClient]]:
    """A fresh cluster with the initial rows and the view, all on one of its LTMs."""
    from viewtide.cluster_client import ClusterClient

    chroot = f"{servers.zookeeper}/bench-{secrets.token_hex(6)}"
    with product.fresh_folder(parent) as folder, ExitStack() as stack:
        client = ClusterClient(chroot)
        stack.callback(client.close)
        processes = stack.enter_context(_processes(folder, chroot, servers, ltms, storage))
        _await_ready(client, processes, folder)
        known = client.status().processes
        place = ClusterPlace(
            tuple(known[name].clients for name in processes), tuple(known[name].metrics for name in processes)
        )
        product.fill_remote(place.addresses[0], TABLES, VIEW_NAME, VIEW_SQL)
        yield place, client


def spread(client: ClusterClient, ranges_of: Callable[[Tables], Iterable[tuple[bytes, bytes, int]]]) -> None:
    """Move each range (start, stop, number of the LTM from 0) to its LTM."""
    from viewtide.ltm.cluster.messages import MoveRange

    tables = client.tables()
    assert tables is not None, "tables were made"
    for start, stop, number in ranges_of(tables):
        ranges = client.map()
        target = next(log for log, host in ranges.hosts.items() if host.process == f"ltm-{number + 1}")
        if ranges.owner(start) != target:
            client.command(MoveRange(0, start, stop, target))
            _await(lambda: not client.map().moves, "keys are still on their way")


Processes = dict[str, subprocess.Popen[bytes]]


@contextmanager
def _processes(folder: Path, chroot: str, servers: Servers, count: int, storage: str) -> Iterator[Processes]:
    """LTM processes by their names. They end with the block."""
    started: Processes = {}
    own = sorted(os.sched_getaffinity(0))
    sockets = Path(tempfile.mkdtemp(prefix="vt-"))  # where the names of sockets are short enough
    try:
        for number in range(1, count + 1):
            name = f"ltm-{number}"
            config = folder / f"{name}.toml"
            # LTMs that wake each other on the same processor wait there for each other (docs/operations.md).
            processor = own[number - 1] if 1 < count <= len(own) else -1
            config.write_text(_config(name, chroot, folder, sockets, servers, storage, processor))
            command = [sys.executable, "-m", "viewtide.cli", "ltm", "--config", str(config)]
            with open(folder / f"{name}.log", "wb") as log:
                started[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        yield started
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(sockets)


def _config(name: str, chroot: str, folder: Path, sockets: Path, servers: Servers, storage: str, processor: int) -> str:
    thrift = ", ".join(f'"{each}"' for each in servers.thrift)
    namespace = chroot.rpartition("-")[2]
    return (
        f'name = "{name}"\nlisten = "ipc://{sockets / name}"\nclients = "ipc://{sockets / name}.clients"\n'
        f'log_level = "warning"\nprocessor = {processor}\n\n'
        f'[zookeeper]\nhosts = "{chroot}"\nsession_ms = {SESSION_MS}\n\n'
        f'[storage]\nkind = "{storage}"\ndirectory = "{folder / "logs"}"\n\n'
        f'[hbase]\nthrift = [{thrift}]\nnamespace = "bench{namespace}"\n'
    )


def _await_ready(client: ClusterClient, processes: Processes, folder: Path) -> None:
    """Every LTM answers for a log, and tells where it serves clients."""
    from viewtide.ltm.cluster.messages import MAP

    def ready() -> bool:
        for name, process in processes.items():
            if process.poll() is not None:
                raise BenchError(f"{name} has ended: {(folder / f'{name}.log').read_text()[-2_000:]}")
        if client.zookeeper.read(MAP) is None:
            return False
        hosting = {host.process for host in client.map().hosts.values()}
        return processes.keys() <= hosting and processes.keys() <= client.status().processes.keys()

    _await(ready, "the LTMs are not ready")


def _await(condition: Callable[[], bool], failure: str) -> None:
    give_up = time.monotonic() + READY_S_MAX
    while not condition():
        if time.monotonic() > give_up:
            raise BenchError(f"{failure} after {READY_S_MAX:g} s")
        time.sleep(LOOK_AGAIN_S)
