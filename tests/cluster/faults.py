"""A cluster on an HBase of separate processes, all of which can be killed; LTMs can be paused, too."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import viewtide as vt
from tests.hbase_servers import CRASH_SESSION_MS
from viewtide.cluster_client import ClusterClient
from viewtide.coordinator.cluster.directory import LTM
from viewtide.dev_cluster import REGION_SERVERS_SEPARATE, DevelopmentHbase
from viewtide.dev_cluster import running as running_hbase
from viewtide.development import Development, role_of
from viewtide.ltm.key_range import process_of

from .load import ACCOUNTS, DEFERRED, FAR, STALE, SYNC, WRITERS, Auditor, Writer, create, is_expected, number_of
from .running import wait_for

LTMS, VIEW_MANAGERS = 3, 2
SESSION_MS = 2_000
#: What recovers is given so long, on a machine that does other things, too.
RECOVERY_S_MAX = 150.0
#: Commits of each writer after which it has got over a fault.
COMMITS_AFTER = 5
#: What is sent to a process that is paused lies in its sockets by then.
ON_THE_WAY_S = 0.1
#: What a write that must not happen would change its counter by.
STALE_STEP = 100
MS_SHIFT = 20
#: All commits are in it.
COMMIT_LOG = "viewtide:viewtide.commit_log"

LTM_KIND, LEADER, VIEW_MANAGER, THRIFT, REGION = "LTM", "leader", "view manager", "Thrift server", "region server"
PAUSED = PAUSED_LTM, PAUSED_LEADER = "paused LTM", "paused leader"

Value = TypeVar("Value")
Piece = tuple[str, tuple[int, ...], tuple[int, ...]]
#: Key ranges that go to whoever has none.
PIECES: tuple[Piece, ...] = (
    ("accounts", (), (ACCOUNTS // 3,)),
    ("accounts", (ACCOUNTS // 3,), (2 * ACCOUNTS // 3,)),
    ("accounts", (2 * ACCOUNTS // 3,), ()),
    ("counters", (), (FAR,)),
    ("counters", (FAR,), ()),
    (SYNC, (), ()),
    (DEFERRED, (), ()),
)


class Struck(NamedTuple):
    """A fault: the longest time that a writer waited for an acknowledgement because of it, and how long it took until
    the deferred view had all that was there before it."""

    kind: str
    victim: str
    outage_s: float
    view_s: float


class _Asked(NamedTuple):
    """A read of all counters that was sent to a process that is paused, and what it must show at least: what each
    writer was told of before it was sent, and the value of STALE."""

    answer: Future[dict[int, int]]
    told: list[int]
    newest: int


class Faults:
    def __init__(self, cluster: Development, hbase: DevelopmentHbase, client: ClusterClient, seed: int) -> None:
        self._cluster, self._hbase, self._client = cluster, hbase, client
        self._chance = Random(seed)
        self._thrift_turn = 0
        #: Lives that there were when an LTM was struck, and region servers when one of them was.
        self._struck: dict[str, set[str]] = {}
        self._regions_before: set[str] = set()
        self.address = f"zk://{cluster.zookeeper}"
        self.stale_reads = self.stale_writes = 0
        self.reads_after_pause = self.writes_after_pause = 0
        self.writers = [Writer(number, self.address) for number in range(WRITERS)]
        self.auditor = Auditor(self.address, self.writers)
        with vt.connect(self.address) as db:
            create(db)
        self.spread()
        self._db = vt.connect(self.address)
        for worker in (*self.writers, self.auditor):
            worker.start()
        self._go_on(time.monotonic())

    def strike(self, kind: str) -> Struck:
        """One fault, until commits and the deferred view go on. Who was struck may still be on the way back."""
        self._until(f"those who a fault of a {kind} needs are back", lambda: self._is_ready_for(kind))
        victim = self._victim(kind)
        began_ms, began_s = time.time_ns() // 1_000_000, time.monotonic()
        self._hit(kind, victim)
        self._go_on(began_s)
        self._caught_up(began_ms)
        view_s = time.monotonic() - began_s
        return Struck(kind, victim, max(writer.longest_s(began_s) for writer in self.writers), view_s)

    def stop(self) -> None:
        """The load ends; nobody of it has seen what must not be."""
        for worker in (*self.writers, self.auditor):
            worker.stop()

    def close(self) -> None:
        self._db.close()

    # -- faults

    def _is_ready_for(self, kind: str) -> bool:
        if kind == VIEW_MANAGER:
            return self._view_managers_are_back()
        if kind == THRIFT:
            return self._thrift_answers()
        if kind == REGION:
            return self._region_servers_are_back()
        return self._ltms_are_back()

    def _victim(self, kind: str) -> str:
        if kind == VIEW_MANAGER:
            return f"vm-{self._chance.randint(1, VIEW_MANAGERS)}"
        if kind == THRIFT:
            self._thrift_turn += 1
            return f"thrift-{self._thrift_turn % len(self._hbase.thrift) + 1}"
        if kind == REGION:
            return self._hbase.region_server_of(COMMIT_LOG)
        return self._ltm(leads=kind in (LEADER, PAUSED_LEADER))

    def _hit(self, kind: str, name: str) -> None:
        if role_of(name) == LTM:
            self._struck[name] = self._lives()
        if kind == REGION:
            self._regions_before = set(self._hbase.region_servers())
        if kind in PAUSED:
            self._pause(name)
        elif kind in (THRIFT, REGION):
            self._hbase.kill(name)
            self._hbase.revive(name)
        else:
            self._cluster.kill(name)
            # As systemd would.
            self._cluster.start(name)

    def _ltm(self, *, leads: bool) -> str:
        """The leader, or an LTM that is none and owns keys."""
        status = self._until("a leader", lambda: found if (found := self._client.status()).leader else None)
        if leads:
            return status.leader
        owners = {each.process for each in status.ranges} - {status.leader}
        return self._chance.choice(sorted(owners) or [n for n in self._ltms() if n != status.leader])

    def _pause(self, name: str) -> None:
        """Until the others have gone on without it. Then it is asked for what it knew before, and to go on with it."""
        address = self._client.status().processes[name].clients
        with ThreadPoolExecutor(1) as pool, self._until(f"{name} serves", lambda: _connected(address)) as asked:
            reading, told, newest = self._until(f"{name} is paused", lambda: self._stale_commit(name, asked, pool))
            self.writes_after_pause += 1
            self.stale_writes += self._until("a value", self._stale_value) != newest
            with _expecting_errors():
                self._judge(reading.result(RECOVERY_S_MAX), told, newest)

    def _stale_commit(self, name: str, asked: vt.Database, pool: ThreadPoolExecutor) -> _Asked | None:
        """A transaction that has read before the pause and commits after it, and a read that is sent during it. Whether
        the transaction is refused, and how, is not the point: it must not happen. None: there was no pause."""
        sent: _Asked | None = None
        with _expecting_errors(), asked.transaction() as tx:
            read = number_of(tx.get("counters", STALE))
            with _stopped(self._cluster.processes[name]):
                self._go_on(time.monotonic())
                self._until(f"{name} has lost what it had", lambda: not self._hosts(name))
                self._until("a newer value", self._raise_stale)
                newest = self._until("the newest value", self._stale_value)
                told = [writer.acknowledged for writer in self.writers]
                sent = _Asked(pool.submit(self._counters, asked), told, newest)
                time.sleep(ON_THE_WAY_S)
            tx.update("counters", STALE, {"n": read + STALE_STEP})
        return sent

    def _hosts(self, name: str) -> bool:
        return name in {process_of(life) for life in self._lives()}

    def _judge(self, counters: dict[int, int], told: list[int], stale: int) -> None:
        self.reads_after_pause += 1
        fresh = counters[STALE] >= stale and all(counters[number] >= count for number, count in enumerate(told))
        self.stale_reads += not fresh

    def _counters(self, db: vt.Database) -> dict[int, int]:
        with db.snapshot() as snapshot:
            return {int(str(row["id"])): number_of(row) for row in snapshot.scan("counters")}

    def _stale_value(self) -> int | None:
        """Of the counter that only this thread changes; None: nobody answers."""
        with _expecting_errors():
            return self._counters(self._db)[STALE]
        return None

    def _raise_stale(self) -> bool:
        with _expecting_errors():
            self._db.run(lambda tx: tx.update("counters", STALE, {"n": number_of(tx.get("counters", STALE)) + 1}))
            return True
        return False

    # -- recovery

    def _until(self, what: str, ask: Callable[[], Value | None]) -> Value:
        def asked() -> Value | None:
            for worker in (*self.writers, self.auditor):
                if worker.failure is not None:
                    raise worker.failure
            # On a busy machine a region server may miss its session, and end.
            for name in self._hbase.dead:
                self._hbase.revive(name)
            return ask()

        return wait_for(what, asked, RECOVERY_S_MAX)

    def _go_on(self, since_s: float) -> None:
        """Every writer was told of some commits."""
        for writer in self.writers:
            self._until(f"{writer.name} goes on", lambda writer=writer: writer.told_since(since_s) >= COMMITS_AFTER)

    def _caught_up(self, ms: int) -> None:
        def watermark_ms() -> int:
            with _expecting_errors():
                return (self._db.view(DEFERRED).rows().watermark or 0) >> MS_SHIFT
            return 0

        self._until("the deferred view is behind", lambda: watermark_ms() >= ms)

    def _lives(self) -> set[str]:
        return {host.life for host in self._client.map().hosts.values()}

    def _ltms_are_back(self) -> bool:
        """Those that were struck have begun a new life, and all own keys."""
        for name in self._cluster.processes:
            assert self._cluster.is_alive(name), f"{name} has ended by itself"
        lives = self._lives()
        if any(
            not [life for life in lives - before if process_of(life) == name] for name, before in self._struck.items()
        ):
            return False
        self._cluster.await_ready()
        self._struck.clear()
        self.spread()
        return True

    def _region_servers_are_back(self) -> bool:
        """The one that was killed is known as dead, and the one that took its place as alive."""
        now = set(self._hbase.region_servers())
        return len(now) == REGION_SERVERS_SEPARATE and now != self._regions_before

    def _view_managers_are_back(self) -> bool:
        known = self._client.status().processes
        return all(name in known for name in self._cluster.processes if role_of(name) != LTM)

    def _thrift_answers(self) -> bool:
        for endpoint in self._hbase.thrift:
            host, _, port = endpoint.rpartition(":")
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                return False
        return True

    def spread(self) -> None:
        """Whoever owns no keys gets some of those of the one that has most."""
        for name in self._ltms():
            owners = self._owners()
            if name not in owners.values():
                most = max(sorted(set(owners.values())), key=lambda each: list(owners.values()).count(each))
                piece = next(piece for piece, owner in owners.items() if owner == most)
                self._until(f"{piece} goes to {name}", lambda piece=piece, name=name: self._moved(piece, name))

    def _moved(self, piece: Piece, name: str) -> bool:
        """A leader that is new refuses it at first."""
        try:
            self._client.move(*piece, name)
        except (vt.OperationalError, vt.ProgrammingError):
            return False
        return True

    def _owners(self) -> dict[Piece, str]:
        ranges = self._client.map()
        return {piece: ranges.process(ranges.owner(self._client._bounds(*piece)[0])) for piece in PIECES}

    def _ltms(self) -> list[str]:
        return [name for name in self._cluster.processes if role_of(name) == LTM]


@contextmanager
def _expecting_errors() -> Iterator[None]:
    try:
        yield
    except vt.Error as error:
        if not is_expected(error):
            raise


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _connected(address: str) -> vt.Database | None:
    with suppress(vt.Unavailable):
        return vt.connect(address)
    return None


@contextmanager
def faults_under_load(directory: Path, seed: int) -> Iterator[Faults]:
    """HBase first, so that the cluster finds it there."""
    with running_hbase(directory / "hbase", separate=True, session_ms=CRASH_SESSION_MS) as hbase:
        cluster = Development.up(directory, LTMS, VIEW_MANAGERS, "hbase", session_ms=SESSION_MS)
        try:
            with closing(cluster.client()) as client, closing(Faults(cluster, hbase, client, seed)) as faults:
                yield faults
        finally:
            for name in filter(cluster.is_alive, cluster.processes):
                cluster.kill(name)
