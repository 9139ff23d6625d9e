"""A coordinator in a cluster: it follows the range map, finds who answers for a log, and who leads. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ltm.cluster import zk_messages as zk
from ...ltm.cluster.keeper import Keeper
from ...ltm.cluster.member import ORACLE
from ...ltm.cluster.messages import LEADER, MAP, MOVED, OLD_TERM, SESSION_MS, FetchMap, ForLog, NewMap, NotHere
from ...ltm.key_range import RangeMap
from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import NotServed, Refused, Vote
from ..two_phase.coordinator import Coordinator
from ..two_phase.messages import ReadAt, RowsAt

#: A read that met an old map is begun again after this long, until so much time has passed.
READ_AGAIN_MS = 20
READ_MS_MAX = 3_000


class ClusterCoordinator:
    def __init__(self, host: Host, tables: Tables) -> None:
        self.host = host
        self.keeper = Keeper(SESSION_MS, (MAP, LEADER))
        self.map = RangeMap(0, (b"",), ("",))
        self.inner = Coordinator(host, ORACLE, tables, self.map)
        #: Reads as their clients asked for them, and since when: by client and number.
        self._reads: dict[tuple[str, int], tuple[ReadAt, int]] = {}
        self._now_ms = 0
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        self.keeper.connect()
        self._carry_out(self.inner.start(now_ms, disk, incarnation))
        return self._out()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        if sender == zk.ZOOKEEPER:
            self._from_zookeeper(message)
        elif isinstance(message, NewMap):
            self._adopt(RangeMap.unpack(message.data))
        elif isinstance(message, NotHere):
            self._fetch(message.epoch)
        elif self.map.epoch:
            # Before its first map it knows nobody; clients ask again.
            self._look_at(message)
            if isinstance(message, ReadAt):
                self._reads[sender, message.number] = (message, now_ms)
            self._carry_out(self.inner.receive(sender, message, now_ms))
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a coordinator has no log")

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        assert isinstance(token, tuple)
        if token[0] == "read again":
            _, client, number = token
            known = self._reads.get((client, number))
            if known is not None:
                self._carry_out(self.inner.receive(client, known[0], now_ms))
        else:
            self._carry_out(self.inner.timer(token[1], now_ms))
        return self._out()

    def _out(self) -> Outputs:
        self._send += self.keeper.send
        self.keeper.send.clear()
        out = Outputs((), tuple(self._send), tuple(self._timers))
        self._send, self._timers = [], []
        return out

    def _carry_out(self, out: Outputs) -> None:
        for at_ms, token in out.timers:
            self._timers.append((at_ms, ("inner", token)))
        for item in out.send:
            assert not isinstance(item, WhenDurable)
            destination, message = item
            if destination == ORACLE:
                self._to_leader(message)
            elif destination in self.map.hosts:
                self._send.append((self.map.process(destination), ForLog(destination, "", message)))
            elif not isinstance(message, RowsAt) or not self._is_read_again(destination, message):
                self._send.append((destination, message))

    def _is_read_again(self, client: str, answer: RowsAt) -> bool:
        """Whether the read found an old map or an old leader, and is begun anew instead of answered."""
        known = self._reads.get((client, answer.number))
        if known is None:
            return False
        if answer.error in (MOVED, OLD_TERM) and self._now_ms - known[1] < READ_MS_MAX:
            self._timers.append((self._now_ms + READ_AGAIN_MS, ("read again", client, answer.number)))
            return True
        del self._reads[client, answer.number]
        return False

    # -- the map

    def _from_zookeeper(self, message: object) -> None:
        keeper = self.keeper
        keeper.receive(message)
        if keeper.state == zk.LOST:
            keeper.connect()
        stored = keeper.nodes[MAP]
        if stored is not None:
            self._adopt(RangeMap.unpack(stored.data))

    def _adopt(self, ranges: RangeMap) -> None:
        if ranges.epoch > self.map.epoch:
            self.map = ranges
            # The coordinator names logs; who answers for them is found out here, when a message leaves.
            self.inner.ranges = replace(ranges, hosts={})

    def _look_at(self, message: object) -> None:
        """Whoever refuses because of the map may know a newer one."""
        if isinstance(message, Refused | NotServed):
            if message.epoch > self.map.epoch:
                self._fetch(message.epoch)
        elif isinstance(message, Vote) and message.reason == MOVED:
            self.keeper.read(MAP)

    def _fetch(self, epoch: int) -> None:
        self.keeper.read(MAP)
        if epoch > self.map.epoch:
            self._to_leader(FetchMap(self.map.epoch))

    def _to_leader(self, message: object) -> None:
        node = self.keeper.nodes[LEADER]
        if node is not None:
            self._send.append((node.data.decode(), message))
