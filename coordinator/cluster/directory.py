"""Who else is there, and which life of a process this is: what a process keeps in ZooKeeper beside its machines.

/processes/<name>   ephemeral; how to reach the process: its addresses, key and role
/lives              its version counts ids that were given out
/lives/<name>       its data is the id of that name, its version counts the lives of the process

Machines are named after their process: "ltm-1.coordinator" is in the process "ltm-1". No I/O.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from ...changetables.errors import OperationalError
from ...ltm.cluster import zk_messages as zk
from ...ltm.cluster.keeper import Keeper, Node
from ...ltm.cluster.messages import LEADER

PROCESSES, LIVES = "/processes", "/lives"

LTM, VIEW_MANAGER = "ltm", "view-manager"


class Address(NamedTuple):
    """How to reach a process. `clients`: where it serves clients, `metrics`: where its metrics are; "" if nowhere."""

    address: str
    role: str
    public_key: str = ""
    clients: str = ""
    metrics: str = ""

    def pack(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Address | None:
        """None: it is none."""
        try:
            known = json.loads(data)
            return cls(**{field: str(known[field]) for field in cls._fields if field in known})
        except (ValueError, TypeError):
            return None


class Superseded(OperationalError):
    """Another process with the same name has begun."""


class Directory:
    """`send` holds requests to ZooKeeper; `life` is asked for by `want_life` and set when it is known."""

    def __init__(self, name: str, address: Address, session_ms: int) -> None:
        self.name = name
        self._address = address
        self._own = f"{PROCESSES}/{name}"
        self._life_path = f"{LIVES}/{name}"
        self.keeper = Keeper(session_ms, (self._own, LEADER), (PROCESSES,))
        self.peers: dict[str, Address] = {}
        self._registering = False
        #: The session that this process was registered in.
        self._registered = 0
        #: At some time after it, ZooKeeper knew this process.
        self.confirmed_ms = 0
        self.id = 0
        self.life = 0
        self._wants_life = False
        self._asking_life = False
        #: Whether there is nothing of a cluster yet: the first LTM makes it.
        self.is_early = False

    @property
    def connected(self) -> bool:
        return self.keeper.connected

    @property
    def leader(self) -> str:
        """The machine that leads, "" if nobody does."""
        node = self.keeper.nodes[LEADER]
        return "" if node is None else node.data.decode()

    def start(self) -> None:
        self.keeper.connect()

    def take(self) -> list[object]:
        """What is to be sent to ZooKeeper."""
        send = [message for _, message in self.keeper.send]
        self.keeper.send.clear()
        return send

    def receive(self, message: object) -> None:
        keeper = self.keeper
        keeper.receive(message)
        if keeper.state == zk.LOST:
            self._registering = self._asking_life = False
            keeper.nodes[self._own] = None
            keeper.connect()
        elif keeper.connected:
            self._register()
            if not self.is_early:  # else the next tick does: each answer would be another question
                self._ask_life()
            self._follow()

    # -- this process

    def _register(self) -> None:
        node = self.keeper.nodes[self._own]
        mine = node is not None and node.stat.owner == self.keeper.session
        if mine:
            self._registered = self.keeper.session
        elif node is not None and self._registered == self.keeper.session:
            raise Superseded(
                f"another process with the name {self.name} has begun",
                hint="every process of a cluster has its own name",
            )
        elif not self._registering:
            self._registering = True
            data = self._address.pack()
            # One that was killed leaves its node behind until its session ends: this process takes its place.
            before = () if node is None else (zk.Delete(0, self._own, node.stat.version),)
            writes = (*before, zk.Create(0, self._own, data, True))
            self.keeper.ask(lambda number: zk.Multi(number, writes), self._created)

    def _created(self, answer: zk.Answer) -> None:
        if not answer.error:
            self._registering = False
        self.keeper.read(self._own)

    def tick(self, now_ms: int) -> None:
        """Now and then: what failed is tried again, and ZooKeeper is asked whether this process is still known."""
        if self.keeper.connected:
            self._registering = False
            self._register()
            self._ask_life()
            self._confirm(now_ms)

    def _confirm(self, asked_ms: int) -> None:
        def then(answer: zk.Answer) -> None:
            if answer.stat is not None and answer.stat.owner == self.keeper.session:
                self.confirmed_ms = max(self.confirmed_ms, asked_ms)

        self.keeper.ask(lambda number: zk.Get(number, self._own), then)

    def want_life(self) -> None:
        """The number of another life, which nobody of this name had before."""
        self.life = 0
        self._wants_life = True
        if self.keeper.connected:
            self._ask_life()

    def _ask_life(self) -> None:
        if self._wants_life and not self._asking_life:
            self._asking_life = True
            self.keeper.ask(lambda number: zk.Get(number, self._life_path), self._known_id)

    def _known_id(self, answer: zk.Answer) -> None:
        if answer.error == zk.NO_NODE:
            self.keeper.ask(lambda number: zk.Set(number, LIVES, b""), self._new_id)
        elif answer.error:
            self._asking_life = False
        else:
            assert isinstance(answer.value, bytes)
            data = answer.value
            self.id = int(data)
            self.keeper.ask(lambda number: zk.Set(number, self._life_path, data), self._known_life)

    def _new_id(self, answer: zk.Answer) -> None:
        if answer.stat is None:
            self._asking_life = False
            self.is_early = answer.error == zk.NO_NODE
            return
        self.is_early = False
        data = str(answer.stat.version).encode()
        self.keeper.ask(lambda number: zk.Create(number, self._life_path, data), self._made_id)

    def _made_id(self, answer: zk.Answer) -> None:
        self._asking_life = False
        if answer.error in ("", zk.NODE_EXISTS):
            self._ask_life()

    def _known_life(self, answer: zk.Answer) -> None:
        self._asking_life = False
        if answer.stat is not None:
            self._wants_life = False
            self.life = answer.stat.version

    # -- the others

    def _follow(self) -> None:
        names = self.keeper.children[PROCESSES] or ()
        for name in names:
            path = f"{PROCESSES}/{name}"
            if path not in self.keeper.nodes:
                self.keeper.nodes[path] = None
                self.keeper.read(path)
        self.peers = {name: address for name in names if (address := self._known(name)) is not None}

    def _known(self, name: str) -> Address | None:
        node: Node | None = self.keeper.nodes.get(f"{PROCESSES}/{name}")
        return None if node is None else Address.unpack(node.data)
