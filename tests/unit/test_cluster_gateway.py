"""Clients of a cluster: LTM processes serve them the API, and take over from each other."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from tests.in_process_cluster import InProcessCluster
from viewtide import remote_cluster, server
from viewtide.cluster_gateway import ClusterGateway
from viewtide.coordinator.cluster import reader
from viewtide.coordinator.cluster.calls import Later
from viewtide.coordinator.cluster.catalog_follower import CatalogFollower
from viewtide.coordinator.cluster.requests import Requests
from viewtide.ltm.transport import Hub
from viewtide.remote import RemoteDatabase
from viewtide.remote_aio import AsyncRemoteDatabase
from viewtide.remote_cluster import connect_cluster
from viewtide.server import Server

WAIT_S_MAX = 60
BY_CATEGORY = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id "
    "GROUP BY p.category"
)


class _Host:
    """A process of the cluster as its gateway sees it, with a thread of its own: the machines are in another one."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self._hub = Hub("host")
        self._told: deque[Callable[[], None]] = deque()
        self._asked: list[Future[object]] = []

    def ask(self, to: str, question: object) -> Future[object]:
        future = self._cluster.ask(to, question)
        self._asked = [each for each in self._asked if not each.done()]
        self._asked.append(future)
        return future

    def ask_later(self, to: str, question: object, then: Callable[[Any], None]) -> Later:
        later = Later(then)
        future = self._cluster.ask(to, question)

        def told(answered: Future[object]) -> None:
            self._told.append(lambda: later.set_result(answered.result()))
            self._hub.wake()

        future.add_done_callback(told)
        return later

    def serve(self, gateway: ClusterGateway, ending: threading.Event) -> None:
        """What the thread that drives the machines does for its guest."""
        gateway.attach(self._hub)
        while not ending.is_set():
            self._hub.poll(20)
            gateway.take()
            while self._told:
                self._told.popleft()()
            gateway.finish()
        # Nobody is answered by a process that has ended.
        for future in list(self._asked):
            future.cancel()
        self._hub.close()


class Gateways:
    """One in each LTM of a cluster in this process; `end` takes one away with its LTM."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster
        self.serving: dict[int, ClusterGateway] = {}
        self.threads: dict[int, threading.Thread] = {}
        self.ending: dict[int, threading.Event] = {}
        for number in (1, 2, 3):
            gateway = self.serving[number] = ClusterGateway(f"ltm-{number}", "tcp://127.0.0.1:0")
            host = _Host(cluster.cluster)
            gateway.start(host, lambda: tuple(cluster.ltms))
            self.ending[number] = threading.Event()
            self.threads[number] = threading.Thread(target=host.serve, args=(gateway, self.ending[number]), daemon=True)
            self.threads[number].start()

    def found(self, hosts: str) -> list[tuple[str, str]]:
        """As ZooKeeper tells it."""
        return [(gateway.address, "") for gateway in self.serving.values()]

    def at(self, address: str) -> ClusterGateway:
        return next(gateway for gateway in self.serving.values() if gateway.address == address)

    def end(self, address: str) -> None:
        number = next(number for number, gateway in self.serving.items() if gateway.address == address)
        self.cluster.kill(number)
        self._close(number)

    def close(self) -> None:
        for number in list(self.serving):
            self._close(number)

    def _close(self, number: int) -> None:
        gateway = self.serving.pop(number)
        self.ending.pop(number).set()
        self.threads.pop(number).join()
        gateway.close()


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateways]:
    with ExitStack() as closing:
        cluster = closing.enter_context(open_cluster())
        made = Gateways(cluster)
        closing.callback(made.close)
        monkeypatch.setattr(remote_cluster, "serving", made.found)
        yield made


@pytest.fixture
def db(gateways: Gateways) -> Iterator[RemoteDatabase]:
    # Deferred views are refreshed in tests of the API; here the catalog goes through the client.
    with connect_cluster("nowhere:1/shop") as opened:
        assert isinstance(opened, RemoteDatabase)
        opened.create_table("products", {"id": int, "category": str}, key="id")
        opened.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        opened.create_view("by_category", BY_CATEGORY)
        yield opened


def address_of(db: RemoteDatabase) -> str:
    return db._remote.links.target.address


def test_a_client_uses_the_whole_api(db: RemoteDatabase) -> None:
    assert repr(db) == "Database('zk://nowhere:1/shop')"
    with db.transaction() as tx:
        tx.insert("products", [{"id": number, "category": "ab"[number % 2]} for number in range(10)])
        tx.insert("events", [{"id": number, "product": number % 10, "cost": number} for number in range(40)])
    with db.transaction() as tx:
        assert tx.get("events", 7)["cost"] == 7
        tx.update("events", 7, {"cost": 700})
        assert tx.view("by_category").get("b")["cost"] == sum(range(1, 40, 2)) - 7 + 700
    assert {row["n"] for row in db.view("by_category").rows()} == {20}
    assert db.sql("SELECT COUNT(*) AS n FROM events").to_arrow().to_pylist() == [{"n": 40}]
    with db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.find("events", product=3)] == [3, 13, 23, 33]
    assert db.view("by_category").verify().ok
    assert db.status().ltms == ("ltm-1", "ltm-2", "ltm-3")
    with pytest.raises(vt.IntegrityError, match="exists already"), db.transaction() as tx:
        tx.insert("events", {"id": 1, "product": 1, "cost": 1})
    with db.transaction() as empty:
        pass
    assert empty.token.commit_ts > 0


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What the servers have workers do."""
    seen: list[Callable[[], object]] = []
    work = Server._work

    def noted(self: Server, caller: Any, call: Callable[[], object], then: Any = None) -> None:
        seen.append(call)
        work(self, caller, call, then)

    monkeypatch.setattr(Server, "_work", noted)
    return seen


def fill(db: RemoteDatabase) -> None:
    with db.transaction() as tx:
        tx.insert("products", [{"id": number, "category": "ab"[number % 2]} for number in range(4)])
        tx.insert("events", [{"id": number, "product": number % 4, "cost": number} for number in range(8)])


def shown(view: Any) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in view.rows()]


ROWS = [("a", 0 + 2 + 4 + 6, 4), ("b", 1 + 3 + 5 + 7, 4)]


def test_a_small_view_is_read_without_a_worker_and_has_every_commit(
    db: RemoteDatabase, jobs: list[Callable[[], object]]
) -> None:
    view = db.view("by_category")
    jobs.clear()
    assert list(view.rows()) == []
    fill(db)
    assert shown(view) == ROWS
    for number in range(20):
        with db.transaction() as tx:
            tx.insert("events", {"id": 100 + number, "product": number % 2, "cost": 1})
        rows = view.rows()
        assert sum(row["n"] for row in rows) == 9 + number
        assert rows.watermark >= tx.token.commit_ts
    with db.transaction() as tx:
        for number in range(8):
            tx.delete("events", number)
        for number in range(1, 20, 2):
            tx.delete("events", 100 + number)
    jobs.clear()  # a transaction that reads has a session
    for _ in range(10):
        assert shown(view) == [("a", 10, 10)]
    assert len(jobs) < 3, "a read is for a worker only if something is in its way"


def test_a_larger_view_is_read_by_a_worker(
    db: RemoteDatabase, jobs: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WHOLE_ROWS_MAX", 1)
    fill(db)
    view = db.view("by_category")
    jobs.clear()
    assert shown(view) == ROWS
    assert len(jobs) == 1
    asked: list[object] = []
    monkeypatch.setattr(Requests, "read_later", lambda *args: asked.append(args))
    assert shown(view) == ROWS
    assert len(jobs) == 2
    assert asked == [], "it was asked for in vain again"


def test_a_view_that_was_large_is_tried_again(db: RemoteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WHOLE_ROWS_MAX", 1)
    monkeypatch.setattr(reader, "LARGE_S", 0.0)
    fill(db)
    view = db.view("by_category")
    assert shown(view) == ROWS
    asked: list[object] = []
    read_later = Requests.read_later

    def noted(self: Requests, *args: Any) -> Later:
        asked.append(args)
        return read_later(self, *args)

    monkeypatch.setattr(Requests, "read_later", noted)
    assert shown(view) == ROWS
    assert len(asked) == 1


def test_more_reads_than_a_node_takes_go_to_workers(
    gateways: Gateways, db: RemoteDatabase, jobs: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db)
    view = db.view("by_category")
    jobs.clear()
    monkeypatch.setattr(server, "JOBS_MAX", 10)
    serving = gateways.at(address_of(db))._server
    assert serving is not None
    serving._reads = {number: (math.inf, Later(lambda _: None)) for number in range(9)}
    for _ in range(10):
        assert shown(view) == ROWS
    assert len(jobs) < 3
    jobs.clear()
    serving._reads[9] = (math.inf, Later(lambda _: None))
    assert serving.figures()["calls_open"] == 10
    assert shown(view) == ROWS
    assert len(jobs) == 1


VIEWS: list[tuple[dict[str, Any], str, list[tuple[object, ...]]]] = [
    ({"layout": "local"}, BY_CATEGORY, ROWS),
    ({}, f"{BY_CATEGORY} HAVING SUM(e.cost) > 12", ROWS[1:]),
    ({}, "SELECT id, cost FROM events WHERE cost > 5", [(6, 6), (7, 7)]),
    ({}, "SELECT DISTINCT product % 2 AS odd FROM events", [(0,), (1,)]),
    ({}, "SELECT COUNT(*) AS n FROM events", [(8,)]),
    ({}, "SELECT product, MAX(cost) AS most FROM events GROUP BY product", [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ({}, "SELECT id FROM events ORDER BY cost DESC LIMIT 2", [(7,), (6,)]),
]


#: By their places: of the others it takes more than what they store.
WITHOUT_A_WORKER = [0, 1, 2, 3]
TRIES = 5


def test_views_of_all_kinds(db: RemoteDatabase, jobs: list[Callable[[], object]]) -> None:
    for number, (options, definition, _) in enumerate(VIEWS):
        db.create_view(f"v{number}", definition, **options)
    fill(db)
    alone: list[int] = []
    for number, (_, _, rows) in enumerate(VIEWS):
        view = db.view(f"v{number}")
        assert [tuple(row.values()) for row in view.scan()] == rows
        jobs.clear()
        assert [shown(view) for _ in range(TRIES)] == [rows] * TRIES
        if len(jobs) < TRIES:
            alone.append(number)
    assert alone == WITHOUT_A_WORKER


def test_a_view_that_is_made_anew_meanwhile_is_not_read_by_what_it_was(
    gateways: Gateways, db: RemoteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db)
    view = db.view("by_category")
    catalogs = gateways.at(address_of(db))._catalogs
    read_later = Requests.read_later
    changed: list[int] = []

    def while_it_changes(self: Requests, ranges: Any, then: Callable[[Any], None]) -> Later:
        def told(found: Any) -> None:
            # It is asked by the old catalog; when the answer comes, the new one is known, and was when it was given.
            if not changed:
                changed.append(1)
                made = threading.Thread(target=make_anew)
                made.start()
                made.join()
                known = catalogs._known
                assert known is not None
                found = found._replace(catalog_version=known[0])
            then(found)

        return read_later(self, ranges, told)

    def make_anew() -> None:
        other = gateways.cluster.database()
        other.drop_view("by_category")
        other.create_view("by_category", "SELECT category, COUNT(*) AS n FROM products GROUP BY category")
        catalogs.newest()

    monkeypatch.setattr(Requests, "read_later", while_it_changes)
    assert shown(view) == [("a", 2), ("b", 2)]
    assert changed


def test_a_view_of_a_newer_catalog_is_read_by_a_worker(
    db: RemoteDatabase, jobs: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db)
    view = db.view("by_category")
    jobs.clear()
    monkeypatch.setattr(CatalogFollower, "is_known", lambda self, version: False)
    assert shown(view) == ROWS
    assert len(jobs) == 1


def test_a_view_that_is_not_answered_for_is_read_by_a_worker(
    db: RemoteDatabase, jobs: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db)
    view = db.view("by_category")
    jobs.clear()
    monkeypatch.setattr(server, "READ_S_MAX", 0.0)
    monkeypatch.setattr(Requests, "read_later", lambda self, ranges, then: Later(then))
    assert shown(view) == ROWS
    assert len(jobs) == 1


def test_a_view_that_is_gone_is_said_to_be(db: RemoteDatabase) -> None:
    view = db.view("by_category")
    assert list(view.rows()) == []
    db.drop_view("by_category")
    with pytest.raises(vt.ProgrammingError, match="by_category"):
        view.rows()


def test_clients_go_on_with_another_process_and_every_commit_happens_once(
    gateways: Gateways, db: RemoteDatabase
) -> None:
    """The LTM process that serves the clients dies under load: with its machines, its leader perhaps, its server."""
    done: list[int] = []
    unknown: list[int] = []
    halfway = threading.Event()

    def write(first: int) -> None:
        for number in range(first, first + 60):
            try:
                with db.transaction() as tx:
                    tx.insert("events", {"id": number, "product": 1, "cost": 1})
                done.append(number)
            except vt.CommitUnknown:
                unknown.append(number)
            if len(done) > 60:
                halfway.set()

    threads = [threading.Thread(target=write, args=(1_000 * writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    assert halfway.wait(60)
    before = address_of(db)
    gateways.end(before)
    for thread in threads:
        thread.join(90)
    assert not any(thread.is_alive() for thread in threads)
    assert address_of(db) != before
    stored = {row["id"] for row in db.sql("SELECT id FROM events")}
    # An insert that was done twice would have been an IntegrityError: its key is there.
    assert set(done) <= stored and stored - set(done) <= set(unknown)
    assert len(done) + len(unknown) == 240


def test_a_transaction_that_has_read_ends_with_its_process(gateways: Gateways, db: RemoteDatabase) -> None:
    tx = db.transaction()
    assert tx.get("events", 1) is None
    gateways.end(address_of(db))
    with pytest.raises((vt.TransactionConflict, vt.CommitUnknown)):
        tx.insert("events", {"id": 1, "product": 1, "cost": 1})
        tx.commit()
    with db.transaction() as tx:
        assert tx.get("events", 1) is None


def lose_commits(
    gateways: Gateways, db: RemoteDatabase, monkeypatch: pytest.MonkeyPatch, where: str
) -> threading.Event:
    """The process that serves the client ends in a commit: before anybody has heard of it, or when all is done but the
    answer. The event tells that it has come there."""
    lost = threading.Event()
    serving = next(each for each in gateways.serving.values() if each.address == address_of(db))

    def say_nothing(*args: object) -> None:
        lost.set()

    assert serving._server is not None
    monkeypatch.setattr(serving._server, where, say_nothing)
    return lost


WAYS_TO_WRITE: dict[str, Callable[[vt.Transaction], object]] = {
    "insert": lambda tx: tx.insert("events", {"id": 2, "product": 1, "cost": 7}),
    "update": lambda tx: tx.update("events", 1, {"cost": 7}),
    "delete": lambda tx: tx.delete("events", 1),
    "sql": lambda tx: tx.sql("INSERT INTO events VALUES (2, 1, 7)"),
    "both": lambda tx: (tx.insert("events", {"id": 2, "product": 1, "cost": 7}), tx.delete("events", 2)),
}


@pytest.mark.parametrize(
    ("where", "way"),
    [*(("_committed", way) for way in WAYS_TO_WRITE), ("_commit_in_cluster", "insert"), ("_commit_in_cluster", "sql")],
)
def test_what_became_of_a_transaction_that_has_read_is_found_out(
    gateways: Gateways, db: RemoteDatabase, monkeypatch: pytest.MonkeyPatch, where: str, way: str
) -> None:
    """Its process dies in its commit. The next one knows neither the transaction nor its writes."""
    write = WAYS_TO_WRITE[way]
    with db.transaction() as tx:
        tx.insert("events", {"id": 1, "product": 1, "cost": 1})
    before = db.sql("SELECT * FROM events ORDER BY id")
    lost = lose_commits(gateways, db, monkeypatch, where)
    ended = threading.Thread(target=lambda: lost.wait(WAIT_S_MAX) and gateways.end(address_of(db)))
    ended.start()
    tx = db.transaction()
    assert tx.get("events", 1)["cost"] == 1
    write(tx)
    if where == "_committed":
        assert tx.commit().commit_ts > 0
        after = db.sql("SELECT * FROM events ORDER BY id")
        assert (after == before) == (way == "both")
    else:
        with pytest.raises(vt.TransactionConflict, match="was not committed"):
            tx.commit()
        assert db.sql("SELECT * FROM events ORDER BY id") == before
        # Nothing of it is in the way of the next one.
        with db.transaction() as tx:
            write(tx)
    ended.join()
    assert lost.is_set()


def test_a_task_is_told_what_became_of_its_transaction(
    gateways: Gateways, db: RemoteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose_commits(gateways, db, monkeypatch, "_committed")
    ended = threading.Thread(target=lambda: lost.wait(WAIT_S_MAX) and gateways.end(address_of(db)))
    ended.start()

    async def work() -> int:
        async with AsyncRemoteDatabase(db).transaction() as tx:
            assert await tx.get("products", 1) is None
            await tx.insert("products", {"id": 1, "category": "a"})
        return tx.token.commit_ts

    assert asyncio.run(work()) > 0
    ended.join()
    assert [row["id"] for row in db.sql("SELECT id FROM products")] == [1]


def test_tasks_go_on_with_another_process(gateways: Gateways, db: RemoteDatabase) -> None:
    async def work() -> int:
        database = AsyncRemoteDatabase(db)
        async with database.transaction() as tx:
            await tx.insert("products", {"id": 1, "category": "a"})
        gateways.end(address_of(db))
        async with database.transaction() as tx:
            await tx.insert("products", {"id": 2, "category": "a"})
        return len(await database.sql("SELECT id FROM products"))

    assert asyncio.run(work()) == 2


def test_nobody_serves_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_cluster, "serving", lambda hosts: [])
    monkeypatch.setattr(remote_cluster, "FIND_S_MAX", 0.1)
    with pytest.raises(vt.Unavailable, match="serves clients"):
        vt.connect("zk://nowhere:1/shop")


class _Silent:
    """A cluster that does not answer."""

    def ask(self, to: str, question: object) -> Future[object]:
        return Future()

    def ask_later(self, to: str, question: object, then: Callable[[Any], None]) -> Later:
        return Later(then)


def test_a_process_sleeps_while_its_cluster_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = ClusterGateway("ltm-1", "tcp://127.0.0.1:0")
    hub = Hub("ltm-1")
    try:
        monkeypatch.setattr(CatalogFollower, "newest", _not_there)
        gateway.start(_Silent(), tuple)
        gateway.attach(hub)
        with socket.create_connection(("127.0.0.1", int(gateway.address.rpartition(":")[2]))):
            turns, ends = 0, time.monotonic() + 0.5
            while time.monotonic() < ends:
                hub.poll(100)
                assert not gateway.take()
                gateway.finish()
                turns += 1
        assert turns < 50, "it is woken up for what nobody takes"
    finally:
        gateway.close()
        hub.close()


def _not_there(self: CatalogFollower) -> None:
    raise vt.Unavailable("nobody answers")
