"""One suite for ZooKeeper as the machines see it: the simulator's, in virtual time, and the real one through kazoo."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.sim import zookeeper as fake
from tests.sim.process import Outputs
from tests.sim.world import World
from tests.tcp_proxy import TcpProxy
from viewtide.changetables.errors import InterfaceError, OperationalError, Unavailable
from viewtide.coordinator.cluster import zookeeper as real
from viewtide.coordinator.cluster.directory import LTM, PROCESSES, Address
from viewtide.coordinator.cluster.roles import prepare_tree
from viewtide.ltm.cluster import zk_messages as zk
from viewtide.ltm.cluster.keeper import Keeper
from viewtide.ltm.cluster.messages import MAP
from viewtide.remote_cluster import serving

SESSION_MS = 2_000
WAIT_MS_MAX = 20_000


class Caller(Protocol):
    """One client of the servers, with a session of its own."""

    #: All that has come, in its order.
    heard: list[object]

    def send(self, message: object) -> None: ...
    def wait(self, until: Callable[[], bool]) -> None:
        """Until it is so; fails if it does not become so."""

    def expire(self) -> None:
        """The servers end its session."""

    def cut(self) -> None:
        """Its connection breaks; it may be made again at once."""


class FakeCaller:
    def __init__(self, world: World, servers: fake.ZooKeeper, name: str) -> None:
        self.heard: list[object] = []
        self._world, self._servers = world, servers
        self._node = world.add(name, lambda host: self, disk=False)  # type: ignore[arg-type, return-value]
        world.start(name)

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        return Outputs()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self.heard.append(message)
        return Outputs()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError

    def timer(self, token: object, now_ms: int) -> Outputs:
        raise AssertionError

    def send(self, message: object) -> None:
        self._servers.request(self._node, message)

    def wait(self, until: Callable[[], bool]) -> None:
        end_us = self._world.now_us + WAIT_MS_MAX * 1_000
        while not until():
            assert self._world.now_us < end_us, self.heard[-5:]
            self._world.run_until(self._world.now_us + 1_000)

    def expire(self) -> None:
        assert self._servers.expire(self._node.name)

    def cut(self) -> None:
        assert self._servers.disconnect(self._node.name, 0)


class RealCaller:
    def __init__(self, hosts: str) -> None:
        self.heard: list[object] = []
        self.servers = real.ZooKeeper(hosts, SESSION_MS)
        self.servers.start()

    def send(self, message: object) -> None:
        self.servers.request(self, message)

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_MS_MAX / 1000
        while True:
            self.heard += [message for caller, message in self.servers.take() if caller is self]
            if until():
                return
            assert time.monotonic() < end, self.heard[-5:]
            time.sleep(0.002)

    def expire(self) -> None:
        # Whoever knows a session's password may go on with it elsewhere, and end it there.
        other = KazooClient(self.servers.hosts, client_id=self.servers._client.client_id)
        other.start()
        other.stop()
        other.close()

    def cut(self) -> None:
        self.servers._client._connection._socket.shutdown(socket.SHUT_RDWR)


Open = Callable[[], Caller]


@pytest.fixture(params=["simulator", pytest.param("real", marks=pytest.mark.slow)])
def open_caller(request: pytest.FixtureRequest) -> Iterator[Open]:
    """A function that connects one more client to the same, empty tree."""
    if request.param == "simulator":
        world = World(7)
        servers = fake.ZooKeeper(world)
        names = iter("abcdefgh")
        yield lambda: connected(FakeCaller(world, servers, next(names)))
        return
    hosts = request.getfixturevalue("zookeeper_path")
    opened: list[RealCaller] = []

    def open_real() -> Caller:
        opened.append(RealCaller(hosts))
        return connected(opened[-1])

    yield open_real
    for caller in opened:
        caller.servers.stop()


def connected(caller: Caller) -> Caller:
    caller.send(zk.Connect(SESSION_MS))
    caller.wait(lambda: state_of(caller) == zk.CONNECTED)
    return caller


def state_of(caller: Caller) -> str:
    return next((message.state for message in reversed(caller.heard) if isinstance(message, zk.Session)), "")


def session_of(caller: Caller) -> int:
    said = [message.session for message in caller.heard if isinstance(message, zk.Session) and message.session]
    return said[-1]


def answer(caller: Caller, operation: zk.Operation) -> zk.Answer:
    """Numbers are used once."""
    number = len(caller.heard) + 1_000 * (1 + sum(isinstance(message, zk.Answer) for message in caller.heard))
    caller.send(operation._replace(request=number))

    def found() -> list[zk.Answer]:
        return [message for message in caller.heard if isinstance(message, zk.Answer) and message.request == number]

    caller.wait(lambda: bool(found()))
    return found()[0]


def watched(caller: Caller) -> list[zk.Watched]:
    return [message for message in caller.heard if isinstance(message, zk.Watched)]


def test_nodes_are_created_read_changed_and_deleted(open_caller: Open) -> None:
    caller = open_caller()
    made = answer(caller, zk.Create(0, "/a", b"one"))
    assert (made.value, made.error) == ("/a", "")
    assert made.stat is not None and (made.stat.version, made.stat.owner) == (0, 0)
    assert answer(caller, zk.Create(0, "/a/b")).value == "/a/b"
    assert answer(caller, zk.Create(0, "/a/c")).value == "/a/c"
    got = answer(caller, zk.Get(0, "/a"))
    assert got.value == b"one" and got.stat == made.stat
    changed = answer(caller, zk.Set(0, "/a", b"two"))
    assert changed.stat is not None and changed.stat.version == 1
    assert changed.stat.changed > changed.stat.created == made.stat.created
    assert answer(caller, zk.Get(0, "/a")).value == b"two"
    assert answer(caller, zk.Children(0, "/a")).value == ("b", "c")
    assert answer(caller, zk.Exists(0, "/a")).value is True
    assert answer(caller, zk.Delete(0, "/a/b")).error == ""
    assert answer(caller, zk.Exists(0, "/a/b"))[1:] == (False, "", None)


def test_what_is_followed_is_found_when_it_comes(open_caller: Open) -> None:
    """A process that begins before the first LTM finds nothing of what it follows."""
    other, caller = open_caller(), open_caller()
    keeper = Keeper(SESSION_MS, ("/data",), ("/names",))
    heard = 0

    def follow_until(until: Callable[[], bool]) -> None:
        def is_so() -> bool:
            nonlocal heard
            new, heard = caller.heard[heard:], len(caller.heard)
            for message in new:
                keeper.receive(message)
            send, keeper.send = keeper.send, []
            for _, asked in send:
                caller.send(asked)
            return until()

        caller.wait(is_so)

    follow_until(lambda: keeper.connected and not keeper._reading)
    assert keeper.nodes == {"/data": None} and keeper.children == {"/names": None}
    answer(other, zk.Create(0, "/data", b"one"))
    answer(other, zk.Create(0, "/names"))
    follow_until(lambda: keeper.nodes["/data"] is not None and keeper.children["/names"] == ())
    answer(other, zk.Create(0, "/names/a"))
    follow_until(lambda: keeper.children["/names"] == ("a",))
    answer(other, zk.Delete(0, "/names/a"))
    answer(other, zk.Delete(0, "/names"))
    follow_until(lambda: keeper.children["/names"] is None)
    answer(other, zk.Create(0, "/names"))
    follow_until(lambda: keeper.children["/names"] == ())
    assert list(keeper.nodes) == ["/data"]


def test_what_cannot_be_done_is_refused_by_name(open_caller: Open) -> None:
    caller = open_caller()
    assert answer(caller, zk.Get(0, "/a")).error == zk.NO_NODE
    assert answer(caller, zk.Set(0, "/a", b"")).error == zk.NO_NODE
    assert answer(caller, zk.Children(0, "/a")).error == zk.NO_NODE
    assert answer(caller, zk.Create(0, "/a/b")).error == zk.NO_NODE
    assert answer(caller, zk.Create(0, "/a")).error == ""
    assert answer(caller, zk.Create(0, "/a")).error == zk.NODE_EXISTS
    assert answer(caller, zk.Set(0, "/a", b"", 3)).error == zk.BAD_VERSION
    assert answer(caller, zk.Delete(0, "/a", 3)).error == zk.BAD_VERSION
    assert answer(caller, zk.Create(0, "/a/e", b"", True)).error == ""
    assert answer(caller, zk.Delete(0, "/a")).error == zk.NOT_EMPTY
    assert answer(caller, zk.Create(0, "/a/e/f")).error == zk.NO_CHILDREN_FOR_EPHEMERALS
    assert answer(caller, zk.Check(0, "/a", 5)).error == zk.BAD_VERSION


def test_one_of_two_that_compare_and_set_wins(open_caller: Open) -> None:
    one, other = open_caller(), open_caller()
    answer(one, zk.Create(0, "/a", b"before"))
    assert answer(one, zk.Set(0, "/a", b"one", 0)).error == ""
    assert answer(other, zk.Set(0, "/a", b"other", 0)).error == zk.BAD_VERSION
    assert answer(other, zk.Get(0, "/a")).value == b"one"


def test_sequence_numbers_only_grow(open_caller: Open) -> None:
    caller = open_caller()
    answer(caller, zk.Create(0, "/a"))
    made = [str(answer(caller, zk.Create(0, "/a/n-", b"", False, True)).value) for _ in range(3)]
    assert answer(caller, zk.Delete(0, made[-1])).error == ""
    made.append(str(answer(caller, zk.Create(0, "/a/n-", b"", False, True)).value))
    assert all(len(path) == len("/a/n-") + 10 for path in made)
    assert made == sorted(set(made))


def test_a_multi_is_done_as_a_whole(open_caller: Open) -> None:
    caller = open_caller()
    answer(caller, zk.Create(0, "/a", b"one"))
    writes = (zk.Set(0, "/a", b"two", 0), zk.Create(0, "/b", b"new"), zk.Check(0, "/a", 1))
    assert answer(caller, zk.Multi(0, writes)).value == (None, "/b", None)
    assert answer(caller, zk.Get(0, "/a")).value == b"two"


def test_a_multi_with_an_error_does_nothing_and_says_the_first(open_caller: Open) -> None:
    caller = open_caller()
    answer(caller, zk.Create(0, "/a", b"one"))
    writes = (zk.Set(0, "/a", b"two"), zk.Delete(0, "/b"), zk.Create(0, "/a"))
    assert answer(caller, zk.Multi(0, writes)).error == zk.NO_NODE
    assert answer(caller, zk.Get(0, "/a")).value == b"one"


def test_a_data_watch_fires_once(open_caller: Open) -> None:
    caller, writer = open_caller(), open_caller()
    answer(writer, zk.Create(0, "/a"))
    answer(caller, zk.Get(0, "/a", True))
    answer(writer, zk.Set(0, "/a", b"1"))
    answer(writer, zk.Set(0, "/a", b"2"))
    caller.wait(lambda: bool(watched(caller)))
    answer(caller, zk.Get(0, "/a", True))
    answer(writer, zk.Delete(0, "/a"))
    caller.wait(lambda: len(watched(caller)) == 2)
    answer(caller, zk.Exists(0, "/a"))
    assert watched(caller) == [zk.Watched(zk.CHANGED, "/a"), zk.Watched(zk.DELETED, "/a")]


def test_an_existence_watch_waits_for_what_is_not_there(open_caller: Open) -> None:
    caller, writer = open_caller(), open_caller()
    assert answer(caller, zk.Exists(0, "/a", True)).value is False
    answer(writer, zk.Create(0, "/a"))
    caller.wait(lambda: watched(caller) == [zk.Watched(zk.CREATED, "/a")])


def test_a_child_watch_fires_when_children_come_and_go(open_caller: Open) -> None:
    caller, writer = open_caller(), open_caller()
    answer(writer, zk.Create(0, "/a"))
    answer(caller, zk.Children(0, "/a", True))
    answer(writer, zk.Set(0, "/a", b"not a child"))
    answer(writer, zk.Create(0, "/a/b"))
    caller.wait(lambda: watched(caller) == [zk.Watched(zk.CHILD, "/a")])
    assert answer(caller, zk.Children(0, "/a", True)).value == ("b",)
    answer(writer, zk.Delete(0, "/a/b"))
    caller.wait(lambda: len(watched(caller)) == 2)


def test_an_ephemeral_node_belongs_to_the_session(open_caller: Open) -> None:
    caller, other = open_caller(), open_caller()
    made = answer(caller, zk.Create(0, "/e", b"", True))
    assert made.stat is not None and made.stat.owner == session_of(caller) != session_of(other)
    assert answer(other, zk.Exists(0, "/e", True)).value is True
    caller.expire()
    other.wait(lambda: watched(other) == [zk.Watched(zk.DELETED, "/e")])
    caller.wait(lambda: state_of(caller) == zk.LOST)


def test_after_a_lost_session_nothing_is_done_before_the_next(open_caller: Open) -> None:
    caller = open_caller()
    before = session_of(caller)
    caller.expire()
    caller.wait(lambda: state_of(caller) == zk.LOST)
    assert answer(caller, zk.Create(0, "/a")).error == zk.SESSION_EXPIRED
    connected(caller)
    assert session_of(caller) != before
    assert answer(caller, zk.Create(0, "/a")).error == ""


def test_a_broken_connection_suspends_and_the_session_goes_on(open_caller: Open) -> None:
    caller, writer = open_caller(), open_caller()
    answer(writer, zk.Create(0, "/a"))
    answer(caller, zk.Create(0, "/e", b"", True))
    answer(caller, zk.Get(0, "/a", True))
    before = session_of(caller)
    caller.cut()
    caller.wait(lambda: state_of(caller) == zk.SUSPENDED)
    caller.wait(lambda: state_of(caller) == zk.CONNECTED)
    assert session_of(caller) == before
    assert answer(caller, zk.Exists(0, "/e")).value is True
    # The watch went with the connection: only what is asked for again is told.
    answer(writer, zk.Set(0, "/a", b"1"))
    answer(caller, zk.Get(0, "/a", True))
    answer(writer, zk.Set(0, "/a", b"2"))
    caller.wait(lambda: watched(caller) == [zk.Watched(zk.CHANGED, "/a")])


# What only the real one has.


@pytest.mark.slow
def test_two_callers_of_one_process_share_the_session(zookeeper_path: str) -> None:
    caller = RealCaller(zookeeper_path)
    try:
        connected(caller)
        caller.servers.request("another", zk.Connect(SESSION_MS))
        caller.servers.request("another", zk.Create(1, "/e", b"", True))
        others: list[object] = []

        def both() -> bool:
            others.extend(message for who, message in caller.servers.take() if who == "another")
            return len(others) == 2

        end = time.monotonic() + WAIT_MS_MAX / 1000
        while not both() and time.monotonic() < end:
            time.sleep(0.002)
        assert others[0] == zk.Session(zk.CONNECTED, session_of(caller))
        assert isinstance(others[1], zk.Answer) and others[1].stat is not None
        assert others[1].stat.owner == session_of(caller)
    finally:
        caller.servers.stop()


@pytest.mark.slow
def test_a_silent_server_is_left_for_another_one_in_the_same_session(zookeeper_path: str) -> None:
    """Also while it is asked for something all the time."""
    hosts, _, path = zookeeper_path.partition("/")
    with TcpProxy(hosts) as one, TcpProxy(hosts) as other:
        caller = RealCaller(f"{one.address},{other.address}/{path}")
        try:
            before = session_of(connected(caller))
            _, port = caller.servers._client._connection._socket.getpeername()
            silent = one if one.address.endswith(f":{port}") else other

            def is_elsewhere() -> bool:
                caller.send(zk.Exists(0, "/"))
                states = [message.state for message in caller.heard if isinstance(message, zk.Session)]
                return states[-2:] == [zk.SUSPENDED, zk.CONNECTED]

            with silent.holding_requests(), silent.holding_answers():
                caller.wait(is_elsewhere)
            assert session_of(caller) == before
        finally:
            caller.servers.stop()


@pytest.mark.slow
def test_a_forgotten_caller_hears_nothing_more(zookeeper_path: str) -> None:
    caller = RealCaller(zookeeper_path)
    try:
        connected(caller)
        caller.send(zk.Close())
        assert answer(caller, zk.Get(0, "/")).error == zk.SESSION_EXPIRED
    finally:
        caller.servers.stop()


@pytest.mark.slow
def test_nodes_belong_to_the_user_who_created_them(zookeeper_path: str) -> None:
    mine = real.ZooKeeper(zookeeper_path, SESSION_MS, login=real.Login("viewtide", "secret"))
    mine.start()
    try:
        assert mine.ensure("/a", b"kept") is True
        assert mine.ensure("/a", b"other") is False
        assert mine.read("/a") == b"kept"
        assert mine.read("/b") is None
        assert mine.ensure("/a/2") and mine.ensure("/a/1")
        assert (mine.children("/a"), mine.children("/b")) == (["1", "2"], [])
        for login in (real.Login("viewtide", "guessed"), real.Login()):
            stranger = real.ZooKeeper(zookeeper_path, SESSION_MS, login=login)
            with pytest.raises(OperationalError, match="does not let"):
                stranger.start()
    finally:
        mine.stop()


SERVED = Address("tcp://10.0.0.1:7401", LTM, "its public key", "tcp://db1.example:7400", "10.0.0.1:9401")


@contextmanager
def owned(zookeeper_path: str) -> Iterator[real.ZooKeeper]:
    """Of a cluster with a user of its own, what a process makes."""
    mine = real.ZooKeeper(zookeeper_path, SESSION_MS, login=real.Login("viewtide", "secret"))
    mine.start()
    try:
        prepare_tree(mine, "ltm-1")
        assert mine.ensure(f"{PROCESSES}/ltm-1", SERVED.pack())
        yield mine
    finally:
        mine.stop()


@pytest.mark.slow
def test_clients_without_the_user_find_who_serves_them_and_write_nothing(zookeeper_path: str) -> None:
    with owned(zookeeper_path) as mine:
        assert serving(zookeeper_path) == [(SERVED.clients, SERVED.public_key)]
        client = KazooClient(zookeeper_path)
        client.start()
        try:
            for path in (PROCESSES, f"{PROCESSES}/ltm-1", MAP, ""):
                with pytest.raises(NoAuthError):
                    client.set(path or "/", b"other")
                with pytest.raises(NoAuthError):
                    client.create(f"{path}/new")
                with pytest.raises(NoAuthError):
                    client.set_acls(path or "/", OPEN_ACL_UNSAFE)
            with pytest.raises(NoAuthError):
                client.delete(f"{PROCESSES}/ltm-1")
        finally:
            client.stop()
            client.close()
        assert mine.read(f"{PROCESSES}/ltm-1") == SERVED.pack()


@pytest.mark.slow
def test_what_only_the_user_could_read_is_opened_to_readers(zookeeper_path: str) -> None:
    """Earlier versions made such nodes; somebody else's rules for a node stay."""
    hosts, _, chroot = zookeeper_path.partition("/")
    only_mine = make_digest_acl("viewtide", "secret", all=True)
    others = [only_mine, make_digest_acl("auditor", "secret", read=True)]
    earlier = KazooClient(hosts, default_acl=[only_mine], auth_data=[("digest", "viewtide:secret")])
    earlier.start()
    try:
        earlier.ensure_path(f"{chroot}{PROCESSES}")
        earlier.create(f"{chroot}{MAP}", b"", acl=others)
        with owned(zookeeper_path):
            assert serving(zookeeper_path) == [(SERVED.clients, SERVED.public_key)]
            assert earlier.get_acls(f"{chroot}{MAP}")[0] == others
    finally:
        earlier.stop()
        earlier.close()


def test_servers_that_do_not_answer_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{taken.getsockname()[1]}"
        nobody = real.ZooKeeper(hosts, SESSION_MS)
        with pytest.raises(Unavailable, match=hosts):
            nobody.start(timeout_ms=200)


def test_an_address_without_a_host_is_refused() -> None:
    with pytest.raises(InterfaceError, match="no ZooKeeper host"):
        real.ZooKeeper("/chroot", SESSION_MS)
