"""Three LTM processes behind proxies: connections between them and to ZooKeeper are cut, and what they say comes late.

A proxy stands before each LTM, at the address that the others are told, and another one between it and ZooKeeper. Each
LTM serves a writer and an auditor (`load`), so that each coordinates transactions over all three. Every test ends with
connections that flow: the writers get on, nobody is in doubt, exactly what was acknowledged is there, and views are
what their definitions say.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

import viewtide as vt
from tests.tcp_proxy import TcpProxy
from viewtide.cluster_client import ClusterClient
from viewtide.coordinator.cluster.leader import LTM_LEASE_MS
from viewtide.coordinator.two_phase.coordinator import RESEND_MS
from viewtide.dev_cluster import DevelopmentHbase
from viewtide.ltm.batches import header_of
from viewtide.ltm.cluster.messages import MAP, Done, MoveRange
from viewtide.ltm.key_range import process_of

from .faults import PIECES, Piece
from .load import DEFERRED, FAR, STALE, SYNC, WRITERS, Auditor, Writer, audit, create, is_expected, number_of
from .running import WAIT_S_MAX, again, wait_for

pytestmark = pytest.mark.slow

LTMS = tuple(f"ltm-{number}" for number in range(1, WRITERS + 1))
VIEW_MANAGER = "vm-1"
#: How often all connections are cut, and for how long they are there before, at most.
CUTS = 14
BETWEEN_S_MAX = 0.05
#: By how much messages come late: they were sent again meanwhile, and nobody has lost its lease.
LATE_S = 3 * RESEND_MS / 1000
#: By then nobody may read by what it was told before.
PAST_LEASE_S = 2 * LTM_LEASE_MS / 1000
#: Commits of each writer after which it has got over a fault.
COMMITS_AFTER = 3
#: What a write that must not happen would change its counter by.
STALE_STEP = 100

CONFIG = """
name = "{name}"
listen = "{listen}"
{addresses}
[zookeeper]
hosts = "{hosts}"
session_ms = 2000
[storage]
directory = "{logs}"
"""

Value = TypeVar("Value")


class Cluster:
    def __init__(self, zookeeper: str, directory: Path, ending: ExitStack) -> None:
        self._directory, self._ending = directory, ending
        self._logs = directory / "logs"
        self._path = f"/t{uuid.uuid4().hex[:12]}"
        self._hosts = zookeeper + self._path
        #: By LTM: before it, and between it and ZooKeeper.
        self.before: dict[str, TcpProxy] = {}
        self.to_zookeeper: dict[str, TcpProxy] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.client = ending.enter_context(closing(ClusterClient(self._hosts)))
        # Nothing is there yet: it has to wait for the first LTM.
        self._start("view-manager", VIEW_MANAGER, "tcp://127.0.0.1:0", "", self._hosts)
        for name in LTMS:
            socket = directory / f"{name}.socket"
            before = self.before[name] = ending.enter_context(TcpProxy(str(socket)))
            between = self.to_zookeeper[name] = ending.enter_context(TcpProxy(zookeeper))
            addresses = f'advertise = "tcp://{before.address}"\nclients = "tcp://127.0.0.1:0"'
            self._start("ltm", name, f"ipc://{socket}", addresses, between.address + self._path)
        wait_for("all processes", lambda: self.are_back(*LTMS) and VIEW_MANAGER in self.client.status().processes)
        #: Asks who leads. One for all questions: until those that are asked know where to answer, it takes a second.
        self._asking = ending.enter_context(self.client._asking())
        known = self.client.status().processes
        self.clients = {name: known[name].clients for name in LTMS}
        self._metrics = {name: known[name].metrics for name in LTMS}

    def _start(self, command: str, name: str, listen: str, addresses: str, hosts: str) -> None:
        config = self._directory / f"{name}.toml"
        config.write_text(CONFIG.format(name=name, listen=listen, addresses=addresses, hosts=hosts, logs=self._logs))
        with open(self._directory / f"{name}.log", "wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "viewtide.cli", command, "--config", str(config)], stdout=out, stderr=out
            )
        self.processes[name] = process
        self._ending.callback(process.wait)
        self._ending.callback(process.kill)

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            assert process.poll() is None, (self._directory / f"{name}.log").read_text()

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        assert {name: process.wait(WAIT_S_MAX) for name, process in self.processes.items()} == dict.fromkeys(
            self.processes, 0
        )

    # -- what is known of it

    def figure(self, name: str, figure: str) -> float:
        """Of its metrics; not a number if there is none, as between two lives."""
        with urllib.request.urlopen(f"http://{self._metrics[name]}/metrics", timeout=WAIT_S_MAX) as answer:
            lines = answer.read().decode().splitlines()
        prefix = f"viewtide_{figure}{{"
        return float(next((line.rpartition(" ")[2] for line in lines if line.startswith(prefix)), "nan"))

    def lives(self) -> set[str]:
        """Those that answer for logs."""
        return {host.life for host in self.client.map().hosts.values()}

    def life_of(self, name: str) -> str:
        """The latest that answers for a log; "" if none does."""
        lives = [life for life in self.lives() if process_of(life) == name]
        return max(lives, key=lambda life: int(life.rpartition("/")[2]), default="")

    def is_sealed(self, life: str) -> bool:
        """Nothing that it writes to its own log counts any more."""
        return (self._logs / life.replace("/", ":") / "SEALED").exists()

    def are_back(self, *names: str) -> bool:
        self.check_alive()
        if self.client.zookeeper.read(MAP) is None:
            return False
        known = self.client.status().processes
        return all(name in known and self.life_of(name) for name in names)

    def leader(self) -> str:
        return wait_for("a leader", lambda: self.client.status().leader)

    # -- who owns what

    def spread(self) -> None:
        """Whoever owns no keys gets some of those of the one that has most."""
        wait_for("all LTMs", lambda: self.are_back(*LTMS))
        for name in LTMS:
            owners = self._owners()
            if name not in owners.values():
                most = max(LTMS, key=lambda each: list(owners.values()).count(each))
                piece = next(piece for piece, owner in owners.items() if owner == most)
                wait_for(f"{piece} goes to {name}", lambda piece=piece, name=name: self._moved(piece, name))

    def _owners(self) -> dict[Piece, str]:
        ranges = self.client.map()
        return {piece: ranges.process(ranges.owner(self.client._bounds(*piece)[0])) for piece in PIECES}

    def _moved(self, piece: Piece, name: str) -> bool:
        """A leader that is new refuses it at first."""
        ranges = self.client.map()
        log = next((log for log, host in ranges.hosts.items() if host.process == name), None)
        if log is None:
            return False
        answer = self._asking.ask("leader", MoveRange(0, *self.client._bounds(*piece), log)).result(WAIT_S_MAX)
        assert isinstance(answer, Done)
        wait_for("moves", lambda: not self.client.map().moves)
        return not answer.error


class Load:
    """A writer and an auditor at each LTM."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.spread()
        with vt.connect(cluster.clients[LTMS[0]]) as db:
            wait_for("counters at 0", lambda: succeeds(lambda: db.run(_reset)))
        addresses = [cluster.clients[name] for name in LTMS]
        self.writers = [Writer(number, address) for number, address in enumerate(addresses)]
        self.auditors = [Auditor(address, self.writers) for address in addresses]
        for worker in (*self.writers, *self.auditors):
            worker.start()
        self.get_on()

    def until(self, what: str, ask: Callable[[], Value | None]) -> Value:
        def asked() -> Value | None:
            self.cluster.check_alive()
            for worker in (*self.writers, *self.auditors):
                if worker.failure is not None:
                    raise worker.failure
            return ask()

        return wait_for(what, asked)

    def get_on(self, *names: str) -> None:
        """The writers there, or all, are told of some commits from now on."""
        since_s = time.monotonic()
        for name in names or LTMS:
            writer = self.writers[LTMS.index(name)]
            self.until(f"{writer.name} gets on", lambda writer=writer: writer.told_since(since_s) >= COMMITS_AFTER)

    def any_gets_on(self) -> None:
        since_s = time.monotonic()
        self.until("anybody gets on", lambda: any(writer.told_since(since_s) for writer in self.writers))

    def end(self) -> None:
        """All get on, and then they stop: nobody is in doubt, and exactly what was acknowledged is there."""
        self.get_on()
        self.stop()
        wait_for("all LTMs", lambda: self.cluster.are_back(*LTMS))
        for name in LTMS:
            for figure in ("transactions_running", "transactions_undecided"):
                wait_for(
                    f"no {figure} of {name}", lambda name=name, figure=figure: self.cluster.figure(name, figure) == 0
                )
        with vt.connect(self.cluster.clients[LTMS[0]]) as db:
            again(lambda: self._check(db))
        assert all(auditor.looks for auditor in self.auditors)

    def stop(self) -> None:
        for worker in (*self.writers, *self.auditors):
            worker.stop()

    def _check(self, db: vt.Database) -> None:
        audit(db, self.writers)
        with db.snapshot() as snapshot:
            shown, token = list(snapshot.view(SYNC).rows()), snapshot.token
        counters = counters_of(db)
        for number, writer in enumerate(self.writers):
            assert writer.acknowledged <= counters[number] <= writer.acknowledged + writer.unknown
        assert sorted(map(str, db.view(DEFERRED).rows(at_least=token))) == sorted(map(str, shown))
        assert db.view(SYNC).verify().ok and db.view(DEFERRED).verify().ok


def _reset(tx: vt.Transaction) -> None:
    for number in (*range(WRITERS), *range(FAR, FAR + WRITERS)):
        tx.update("counters", number, {"n": 0})


def counters_of(db: vt.Database) -> dict[int, int]:
    with db.snapshot() as snapshot:
        return {int(str(row["id"])): number_of(row) for row in snapshot.scan("counters")}


def succeeds(do: Callable[[], object]) -> bool:
    with expecting_errors():
        do()
        return True
    return False


@contextmanager
def expecting_errors() -> Iterator[None]:
    try:
        yield
    except vt.Error as error:
        if not is_expected(error):
            raise


@pytest.fixture(scope="module")
def cluster(hbase_servers: DevelopmentHbase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as ending:
        made = Cluster(hbase_servers.zookeeper, tmp_path_factory.mktemp("cut"), ending)
        with vt.connect(made.clients[LTMS[0]]) as db:
            create(db)
        yield made
        made.end()


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    made = Load(cluster)
    try:
        yield made
    finally:
        made.stop()


def test_connections_are_cut_again_and_again(cluster: Cluster, load: Load) -> None:
    chance = Random(CUTS)
    for _ in range(CUTS):
        made = [(proxy, proxy.connections) for proxy in cluster.before.values()]
        for proxy, _ in made:
            proxy.cut()
        for proxy, before in made:
            # Both others.
            load.until("connections", lambda proxy=proxy, before=before: proxy.connections >= before + 2)
        load.any_gets_on()
        time.sleep(chance.uniform(0, BETWEEN_S_MAX))
    load.end()


def test_messages_come_late(cluster: Cluster, load: Load) -> None:
    assert RESEND_MS < 1000 * LATE_S < LTM_LEASE_MS
    for proxy in cluster.before.values():
        with proxy.holding_requests():
            proxy.wait_for_held()
            time.sleep(LATE_S)
        load.any_gets_on()
    load.end()


def test_an_ltm_does_not_hear_another_past_its_lease(cluster: Cluster, load: Load) -> None:
    """What it hears from the leader is its lease, and timestamps; from the other one, votes and rows."""
    leader = cluster.leader()
    deaf, other = (name for name in LTMS if name != leader)
    proxy = cluster.before[deaf]
    for unheard in (leader, other):
        with proxy.holding_requests(header_of(unheard)):
            proxy.wait_for_held()
            time.sleep(PAST_LEASE_S)
        load.get_on()
    load.end()


def test_the_leader_does_not_hear_an_ltm(cluster: Cluster, load: Load) -> None:
    """One that says nothing loses what it owns; what it said comes when others have it."""

    def loses_all() -> bool:
        leader = cluster.leader()
        silent, other = (name for name in LTMS if name != leader)
        life = cluster.life_of(silent)
        with cluster.before[leader].holding_requests(header_of(silent)):
            # On a machine with other things to do another one may lead meanwhile, who hears it.
            load.until(f"{silent} loses its logs", lambda: life not in cluster.lives() or cluster.leader() != leader)
            load.get_on(leader, other)
        load.until(f"{silent} is back", lambda: cluster.are_back(silent))
        return cluster.life_of(silent) != life

    load.until("one loses all", loses_all)
    load.end()


def test_connections_to_zookeeper_are_cut(cluster: Cluster, load: Load) -> None:
    """Within its session an LTM goes on with the same life."""

    def goes_on(name: str) -> bool:
        life, proxy = cluster.figure(name, "life"), cluster.to_zookeeper[name]
        made = proxy.connections
        proxy.cut()
        load.until(f"{name} connects", lambda: proxy.connections > made and cluster.figure(name, "zookeeper_connected"))
        load.get_on()
        return cluster.figure(name, "life") == life

    for name in LTMS:
        # On a machine with other things to do it may come too late.
        load.until(f"{name} goes on", lambda name=name: goes_on(name))
    load.end()


def test_a_leader_hears_nothing_of_zookeeper(cluster: Cluster, load: Load) -> None:
    """Past its session others have its keys, and it shows and does nothing old. It knows nothing of them, and hears
    only then what it was asked before: what was read there is not committed, and reads that it is asked for meanwhile
    show what others have done. Then it begins a new life."""
    name = cluster.leader()
    life, proxy = cluster.life_of(name), cluster.to_zookeeper[name]
    others = [each for each in LTMS if each != name]
    with (
        vt.connect(cluster.clients[name]) as asked,
        vt.connect(cluster.clients[others[0]]) as db,
        ThreadPoolExecutor(1) as pool,
    ):

        def cut_off() -> tuple[int, list[int], Future[dict[int, int]]] | None:
            """None: it has refused even before."""
            sent = None
            with expecting_errors(), asked.transaction() as tx:
                newest = number_of(tx.get("counters", STALE)) + 1
                with proxy.holding_requests(), proxy.holding_answers():
                    with cluster.before[name].holding_requests():
                        load.until(f"{life} is sealed", lambda: cluster.is_sealed(life))
                    load.get_on(*others)
                    assert life not in cluster.lives()
                    raised = partial(db.run, lambda tx: tx.update("counters", STALE, {"n": newest}))
                    load.until("a newer value", lambda: succeeds(raised))
                    told = [writer.acknowledged for writer in load.writers]
                    sent = newest, told, pool.submit(counters_of, asked)
                tx.update("counters", STALE, {"n": newest + STALE_STEP})
            return sent

        newest, told, reading = load.until(f"{name} is cut off", cut_off)
        with expecting_errors():
            counters = reading.result(WAIT_S_MAX)
            assert counters[STALE] == newest and all(counters[n] >= count for n, count in enumerate(told))
        load.until(f"{name} is back", lambda: cluster.are_back(name))
        assert cluster.life_of(name) != life
        assert again(lambda: counters_of(db))[STALE] == newest
    load.end()
