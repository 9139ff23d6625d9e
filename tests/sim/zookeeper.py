"""A fake ZooKeeper with the client library's side of it: a service in virtual time that answers by messages.

A process sends one of the requests of `zk_messages` to the service and gets `Answer`, `Watched` and `Session` back. As
with kazoo, *suspended* means that the connection is gone (what was asked is answered with ConnectionLoss: it may have
been done or not; watches are forgotten), and *lost* that the session has expired. A client learns of its expiry only
when it reaches the servers again; a paused one, when it wakes up, and not before what waited for it.

The servers themselves never fail here: they are one linearizable tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from viewtide.ltm.cluster.zk_messages import (
    ANY,
    BAD_VERSION,
    CHANGED,
    CHILD,
    CONNECTED,
    CONNECTION_LOSS,
    CREATED,
    DELETED,
    LOST,
    NO_CHILDREN_FOR_EPHEMERALS,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    SESSION_EXPIRED,
    SUSPENDED,
    Answer,
    Check,
    Children,
    Close,
    Connect,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    Operation,
    Session,
    Set,
    Stat,
    Watched,
)

from .network import HEALTHY, delay_us
from .node import Node, State
from .world import World

#: While it has no connection, a client tries this often in one timeout.
ATTEMPTS_PER_TIMEOUT = 10
#: What a blocked link holds up is tried again after this long.
RETRANSMIT_US = 20_000
#: A slow server takes so much longer for each answer.
SLOW_US = 800_000


class _Znode(NamedTuple):
    data: bytes
    version: int
    created: int
    changed: int
    #: The session that it ends with; 0 if it stays.
    owner: int
    #: How many children there ever were: the next sequence number.
    born: int

    def stat(self) -> Stat:
        return Stat(self.version, self.created, self.changed, self.owner)


_Tree: TypeAlias = dict[str, _Znode]


class _Refused(Exception):
    """An error of an operation."""


@dataclass(slots=True, eq=False)
class _Session:
    number: int
    client: str
    timeout_us: int
    heard_us: int
    expired: bool = False


@dataclass(slots=True, eq=False)
class _Client:
    """The library in one incarnation of a process. `connection` counts: what was sent on an earlier one is gone."""

    node: Node
    incarnation: int
    timeout_us: int
    session: _Session | None = None
    state: str = ""
    connection: int = 0
    contact_us: int = 0
    #: Until when a fault keeps it from the servers.
    cut_until_us: int = 0
    request_us: int = 0
    answer_us: int = 0
    #: What a blocked link holds up, in both directions: a connection loses nothing as long as it stands.
    unsent: list[Operation] = field(default_factory=list)
    unanswered: list[object] = field(default_factory=list)
    outstanding: dict[int, None] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.node.incarnation == self.incarnation and self.node.state is not State.DOWN


class ZooKeeper:
    def __init__(self, world: World, name: str = "zookeeper") -> None:
        self.name = name
        self._world = world
        self._tree: _Tree = {"/": _Znode(b"", 0, 0, 0, 0, 0)}
        self._zxid = 0
        self._sessions: dict[int, _Session] = {}
        self._clients: dict[str, _Client] = {}
        #: Per path, who is told once: (client, connection); of data and of children.
        self._data_watches: dict[str, list[tuple[_Client, int]]] = {}
        self._child_watches: dict[str, list[tuple[_Client, int]]] = {}
        self._slow = 0
        self.expired = 0
        world.add_service(name, self)

    # For scenarios, checkers and faults.

    def ensure(self, path: str, data: bytes = b"") -> None:
        """Create a node that stays, with its parents: the state before the run."""
        parts = path.strip("/").split("/")
        for length in range(1, len(parts) + 1):
            part = "/" + "/".join(parts[:length])
            if part not in self._tree:
                self._do(Create(0, part, data if length == len(parts) else b""), 0)

    def peek(self, path: str) -> bytes | None:
        """What is stored now, for checkers."""
        znode = self._tree.get(path)
        return None if znode is None else znode.data

    def clients(self) -> list[str]:
        return list(self._clients)

    def expire(self, client: str) -> bool:
        """The servers end its session. False: it has none."""
        connected = self._clients.get(client)
        if connected is None or connected.session is None or connected.session.expired:
            return False
        self._expire(connected.session)
        return True

    def disconnect(self, client: str, duration_us: int) -> bool:
        """The connection breaks, and none can be made for so long."""
        connected = self._clients.get(client)
        if connected is None or not connected.alive:
            return False
        connected.cut_until_us = self._world.now_us + duration_us
        self._suspend(connected)
        return True

    def slow(self, by: int) -> None:
        """Faults that make the servers slow begin (1) or end (-1)."""
        self._slow += by

    def heal(self) -> None:
        self._slow = 0
        for client in self._clients.values():
            client.cut_until_us = 0

    # The client library.

    def request(self, node: Node, message: object) -> None:
        match message:
            case Connect(timeout_ms):
                client = _Client(node, node.incarnation, timeout_ms * 1_000)
                self._clients[node.name] = client
                self._connect(client)
            case Close():
                self._close(node)
            case _:
                self._ask(node, message)  # type: ignore[arg-type]

    def _ask(self, node: Node, operation: Operation) -> None:
        client = self._clients.get(node.name)
        if client is None or not client.alive or client.state in ("", LOST):
            self._world.after(1, self._refuse, node, node.incarnation, operation.request, SESSION_EXPIRED)
            return
        if client.state == SUSPENDED:
            self._world.after(1, self._refuse, node, node.incarnation, operation.request, CONNECTION_LOSS)
            return
        client.outstanding[operation.request] = None
        client.unsent.append(operation)
        self._transmit(client, client.connection)

    def _transmit(self, client: _Client, connection: int) -> None:
        """Client to servers, in order."""
        if client.connection != connection or not client.unsent:
            return
        link = self._world.network.link(client.node.name, self.name)
        if not link.open:
            self._world.after(RETRANSMIT_US, self._transmit, client, connection)
            return
        client.request_us = max(client.request_us, self._world.now_us + delay_us(link, HEALTHY))
        for operation in client.unsent:
            self._world.at(client.request_us, self._serve, client, connection, operation)
        client.unsent.clear()

    def _refuse(self, node: Node, incarnation: int, request: int, error: str) -> None:
        self._world.hand(node, incarnation, self.name, Answer(request, error=error))

    def _close(self, node: Node) -> None:
        client = self._clients.pop(node.name, None)
        if client is not None and client.session is not None and self._reachable(client):
            self._expire(client.session)

    def _connect(self, client: _Client) -> None:
        """Begin a session as soon as the servers can be reached."""
        if not client.alive or self._clients.get(client.node.name) is not client:
            return
        if client.node.state is State.PAUSED or not self._reachable(client):
            self._world.after(client.timeout_us // ATTEMPTS_PER_TIMEOUT, self._connect, client)
            return
        number = len(self._sessions) + 1
        session = _Session(number, client.node.name, client.timeout_us, self._world.now_us)
        self._sessions[number] = client.session = session
        self._world.record(self.name, "session", client.node.name, number)
        self._world.after(client.timeout_us, self._check_expiry, session)
        client.contact_us = self._world.now_us
        self._change_state(client, CONNECTED)
        self._world.after(client.timeout_us // 3, self._heartbeat, client)

    def _heartbeat(self, client: _Client) -> None:
        """Every third of the timeout. A paused process sends none."""
        if not client.alive or self._clients.get(client.node.name) is not client or client.session is None:
            return
        if client.node.state is not State.PAUSED:
            self._contact(client, client.session)
        if client.state == LOST:
            return
        often = 3 if client.state == CONNECTED else ATTEMPTS_PER_TIMEOUT
        self._world.after(client.timeout_us // often, self._heartbeat, client)

    def _contact(self, client: _Client, session: _Session) -> None:
        now_us = self._world.now_us
        if self._reachable(client):
            client.contact_us = now_us
            if session.expired:
                self._suspend(client)
                client.session = None
                self._change_state(client, LOST)
                return
            session.heard_us = now_us
            if client.state == SUSPENDED:
                self._change_state(client, CONNECTED)
            return
        if client.state == CONNECTED:
            if self._world.network.link(client.node.name, self.name).open and now_us >= client.cut_until_us:
                session.heard_us = now_us
            if now_us - client.contact_us >= client.timeout_us * 2 // 3:
                self._suspend(client)

    def _suspend(self, client: _Client) -> None:
        """The connection is gone: nobody knows what became of what was asked, and watches are forgotten."""
        if client.state != CONNECTED:
            return
        client.connection += 1
        client.unsent.clear()
        client.unanswered.clear()
        self._change_state(client, SUSPENDED)
        outstanding, client.outstanding = client.outstanding, {}
        for request in outstanding:
            self._tell(client, Answer(request, error=CONNECTION_LOSS))

    def _change_state(self, client: _Client, state: str) -> None:
        client.state = state
        number = client.session.number if client.session is not None else 0
        self._tell(client, Session(state, number))

    def _tell(self, client: _Client, message: object) -> None:
        """What the library itself says, in the order of what the servers said."""
        at_us = client.answer_us = max(client.answer_us, self._world.now_us)
        self._world.at(at_us, self._world.hand, client.node, client.incarnation, self.name, message)

    def _reachable(self, client: _Client) -> bool:
        if self._world.now_us < client.cut_until_us:
            return False
        return self._world.network.reachable(client.node.name, self.name)

    # The servers.

    def _serve(self, client: _Client, connection: int, operation: Operation) -> None:
        session = client.session
        if session is None or session.expired:
            # The connection is about to be closed; the client hears of it at its next heartbeat.
            return
        try:
            value, stat = self._do(operation, session.number)
            answer = Answer(operation.request, value, "", stat)
        except _Refused as refused:
            answer = Answer(operation.request, error=str(refused))
        if getattr(operation, "watch", False):
            self._add_watch(client, connection, operation)
        self._reply(client, connection, answer)

    def _reply(self, client: _Client, connection: int, message: object) -> None:
        if client.connection == connection:
            client.unanswered.append(message)
            self._transmit_back(client, connection)

    def _transmit_back(self, client: _Client, connection: int) -> None:
        """Servers to client, in order."""
        if client.connection != connection or not client.unanswered:
            return
        link = self._world.network.link(self.name, client.node.name)
        if not link.open:
            self._world.after(RETRANSMIT_US, self._transmit_back, client, connection)
            return
        delay = delay_us(link, HEALTHY) + (SLOW_US if self._slow else 0)
        client.answer_us = max(client.answer_us, self._world.now_us + delay)
        for message in client.unanswered:
            self._world.at(client.answer_us, self._hand_reply, client, connection, message)
        client.unanswered.clear()

    def _hand_reply(self, client: _Client, connection: int, message: object) -> None:
        if client.connection != connection or not client.alive:
            return
        if isinstance(message, Answer):
            client.outstanding.pop(message.request, None)
        self._world.hand(client.node, client.incarnation, self.name, message)

    def _check_expiry(self, session: _Session) -> None:
        if session.expired:
            return
        due_us = session.heard_us + session.timeout_us
        if self._world.now_us >= due_us:
            self._expire(session)
        else:
            self._world.at(due_us, self._check_expiry, session)

    def _expire(self, session: _Session) -> None:
        session.expired = True
        self.expired += 1
        self._world.record(self.name, "expired", session.client, session.number)
        for path in [path for path, znode in self._tree.items() if znode.owner == session.number]:
            self._do(Delete(0, path), 0)

    def _do(self, operation: Operation, session: int) -> tuple[object, Stat | None]:
        """Carry it out and fire the watches, or raise `_Refused` and change nothing."""
        if isinstance(operation, (Get, Exists, Children, Check)):
            return _read(self._tree, operation)
        tree = dict(self._tree)
        fired: list[tuple[str, str]] = []
        zxid = self._zxid + 1
        if isinstance(operation, Multi):
            values = tuple(_write(tree, each, session, zxid, fired)[0] for each in operation.operations)
            result: tuple[object, Stat | None] = (values, None)
        else:
            result = _write(tree, operation, session, zxid, fired)
        self._tree, self._zxid = tree, zxid
        self._world.record(self.name, "write", *[f"{what} {path}" for what, path in fired])
        for what, path in fired:
            self._fire(what, path)
        return result

    def _add_watch(self, client: _Client, connection: int, operation: Operation) -> None:
        assert isinstance(operation, (Get, Exists, Children))
        if operation.path not in self._tree and not isinstance(operation, Exists):
            return
        watches = self._child_watches if isinstance(operation, Children) else self._data_watches
        waiting = watches.setdefault(operation.path, [])
        if (client, connection) not in waiting:
            waiting.append((client, connection))

    def _fire(self, what: str, path: str) -> None:
        told = [] if what == CHILD else self._data_watches.pop(path, [])
        if what in (CHILD, DELETED):
            told = told + [each for each in self._child_watches.pop(path, []) if each not in told]
        for client, connection in told:
            self._reply(client, connection, Watched(what, path))


def _read(tree: _Tree, operation: Get | Exists | Children | Check) -> tuple[object, Stat | None]:
    znode = tree.get(operation.path)
    match operation:
        case Exists():
            return znode is not None, znode.stat() if znode is not None else None
        case Check(_, path, version):
            checked = _expect(tree, path, version)
            return None, checked.stat()
    if znode is None:
        raise _Refused(NO_NODE)
    if isinstance(operation, Children):
        return tuple(_children(tree, operation.path)), znode.stat()
    return znode.data, znode.stat()


def _write(
    tree: _Tree, operation: Create | Set | Delete | Check, session: int, zxid: int, fired: list[tuple[str, str]]
) -> tuple[object, Stat | None]:
    match operation:
        case Create():
            return _create(tree, operation, session, zxid, fired)
        case Set(_, path, data, version):
            znode = _expect(tree, path, version)
            tree[path] = znode._replace(data=data, version=znode.version + 1, changed=zxid)
            fired.append((CHANGED, path))
            return None, tree[path].stat()
        case Delete(_, path, version):
            _expect(tree, path, version)
            if _children(tree, path):
                raise _Refused(NOT_EMPTY)
            del tree[path]
            fired.append((DELETED, path))
            fired.append((CHILD, _parent(path)))
            return None, None
        case Check():
            return _read(tree, operation)


def _create(
    tree: _Tree, operation: Create, session: int, zxid: int, fired: list[tuple[str, str]]
) -> tuple[object, Stat | None]:
    above = tree.get(_parent(operation.path))
    if above is None:
        raise _Refused(NO_NODE)
    if above.owner:
        raise _Refused(NO_CHILDREN_FOR_EPHEMERALS)
    path = f"{operation.path}{above.born:010d}" if operation.sequence else operation.path
    if path in tree:
        raise _Refused(NODE_EXISTS)
    tree[_parent(path)] = above._replace(born=above.born + 1)
    tree[path] = _Znode(operation.data, 0, zxid, zxid, session if operation.ephemeral else 0, 0)
    fired.append((CREATED, path))
    fired.append((CHILD, _parent(path)))
    return path, tree[path].stat()


def _expect(tree: _Tree, path: str, version: int) -> _Znode:
    znode = tree.get(path)
    if znode is None:
        raise _Refused(NO_NODE)
    if version not in (ANY, znode.version):
        raise _Refused(BAD_VERSION)
    return znode


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _children(tree: _Tree, path: str) -> list[str]:
    return sorted(each.rpartition("/")[2] for each in tree if each != "/" and _parent(each) == path)
