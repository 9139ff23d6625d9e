"""The fake store as a service that machines reach by messages, as they reach HBase through their driver.

A request is carried out when it arrives, and is answered after as long as the call takes. A failed call is answered
with `StoreFailed` after the client's timeout. Answers are not lost but for partitions: ask again after a while.
"""

from __future__ import annotations

from random import Random

from viewtide.ltm.cluster import on_store
from viewtide.ltm.cluster.store_messages import STORE, LoadCells, WriteCells

from .network import HEALTHY, delay_us
from .node import Node
from .store import SimStore
from .world import World


class _Caller:
    """Whoever calls the store; what a call takes is added up. It implements `Host`, as far as the store needs it."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.random: Random = node.random
        self.spent_us = 0

    def spend(self, duration_us: int) -> None:
        self.spent_us += duration_us

    def probe(self, name: str) -> None: ...

    def note(self, what: str, *detail: object) -> None: ...


class StoreService:
    def __init__(self, world: World, store: SimStore, name: str = STORE) -> None:
        self.name = name
        self.store = store
        self._world = world
        world.add_service(name, self)

    def request(self, node: Node, message: object) -> None:
        link = self._world.network.link(node.name, self.name)
        if link.open:
            self._world.after(delay_us(link, HEALTHY), self._serve, node, node.incarnation, message)

    def _serve(self, node: Node, incarnation: int, message: object) -> None:
        assert isinstance(message, WriteCells | LoadCells)
        caller = _Caller(node)
        answer = on_store.answer(self.store.for_host(caller), message)
        self._world.after(caller.spent_us, self._answer, node, incarnation, answer)

    def _answer(self, node: Node, incarnation: int, answer: object) -> None:
        link = self._world.network.link(self.name, node.name)
        if link.open:
            self._world.after(delay_us(link, HEALTHY), self._world.hand, node, incarnation, self.name, answer)
