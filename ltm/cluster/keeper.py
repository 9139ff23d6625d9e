"""The ZooKeeper side of a process: its session, and copies of nodes that it follows by watches. No I/O.

Whoever has one gives it what comes from ZooKeeper and sends what is in `send`. Watches are forgotten with a connection,
and so is the fate of what was asked: after each, everything that is followed is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import zk_messages as zk


class Node(NamedTuple):
    data: bytes
    stat: zk.Stat


class Keeper:
    def __init__(self, session_ms: int, data: tuple[str, ...] = (), children: tuple[str, ...] = ()) -> None:
        self._session_ms = session_ms
        self.state = ""
        self.session = 0
        #: What is followed; None: it does not exist, or was not read yet.
        self.nodes: dict[str, Node | None] = dict.fromkeys(data)
        self.children: dict[str, tuple[str, ...] | None] = dict.fromkeys(children)
        self.send: list[tuple[str, object]] = []
        self._request = 0
        self._asked: dict[int, Callable[[zk.Answer], None]] = {}
        #: What is being read, and whether it has changed meanwhile.
        self._reading: dict[str, bool] = {}

    @property
    def connected(self) -> bool:
        return self.state == zk.CONNECTED

    def connect(self) -> None:
        """Begin a session, the first or another."""
        self.state = ""
        self.session = 0
        self._asked.clear()
        self._reading.clear()
        self.send.append((zk.ZOOKEEPER, zk.Connect(self._session_ms)))

    def receive(self, message: object) -> None:
        match message:
            case zk.Session(state, session):
                self.state, self.session = state, session or self.session
                if state == zk.CONNECTED:
                    self._read_all()
            case zk.Answer():
                then = self._asked.pop(message.request, None)
                if then is not None:
                    then(message)
            case zk.Watched(_, path):
                self.read(path)

    def ask(self, make: Callable[[int], zk.Operation], then: Callable[[zk.Answer], None]) -> None:
        """`then` gets the answer, unless the session is lost before."""
        self._request += 1
        self._asked[self._request] = then
        self.send.append((zk.ZOOKEEPER, make(self._request)))

    def read(self, path: str) -> None:
        """Read again something that is followed; once more if that is under way."""
        if path in self._reading:
            self._reading[path] = True
            return
        if not self.connected:
            return
        self._reading[path] = False
        if path in self.children:
            self.ask(lambda number: zk.Children(number, path, True), lambda answer: self._children(path, answer))
        else:
            self.ask(lambda number: zk.Get(number, path, True), lambda answer: self._data(path, answer))

    def _read_all(self) -> None:
        for path in (*self.nodes, *self.children):
            self.read(path)

    def _children(self, path: str, answer: zk.Answer) -> None:
        if not answer.error:
            assert isinstance(answer.value, tuple)
            self.children[path] = answer.value
        elif answer.error == zk.NO_NODE:
            self._await(path)
            return
        self._read_done(path)

    def _data(self, path: str, answer: zk.Answer) -> None:
        if not answer.error:
            assert isinstance(answer.value, bytes) and answer.stat is not None
            self.nodes[path] = Node(answer.value, answer.stat)
        elif answer.error == zk.NO_NODE:
            self._await(path)
            return
        self._read_done(path)

    def _await(self, path: str) -> None:
        """It does not exist. Only `Exists` can wait for something to come."""
        self.ask(lambda number: zk.Exists(number, path, True), lambda answer: self._exists(path, answer))

    def _exists(self, path: str, answer: zk.Answer) -> None:
        if not answer.error:
            if answer.value:
                self._reading[path] = True
            elif path in self.children:
                self.children[path] = None
            else:
                self.nodes[path] = None
        self._read_done(path)

    def _read_done(self, path: str) -> None:
        if self._reading.pop(path):
            self.read(path)
