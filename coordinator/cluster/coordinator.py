"""A coordinator in a cluster: it follows the range map and the catalog, finds who answers for a log, and who leads.
No I/O.

Changes of the catalog are passed on to whoever leads, again and again until they are answered. The answer is given when
this coordinator works by the new catalog itself: what its client does next finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ltm.cluster import zk_messages as zk
from ...ltm.cluster.catalogs import Catalogs, pack_catalog
from ...ltm.cluster.keeper import Keeper
from ...ltm.cluster.member import ORACLE
from ...ltm.cluster.messages import (
    CATALOG,
    LEADER,
    MAP,
    MOVED,
    OLD_CATALOG,
    OLD_TERM,
    SESSION_MS,
    CatalogChanged,
    CatalogIs,
    ChangeCatalog,
    FetchCatalog,
    FetchMap,
    ForLog,
    NewMap,
    NotHere,
)
from ...ltm.key_range import RangeMap
from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import FoundChanges, NotServed, Refused, Vote
from ..two_phase.attempt import AttemptAt
from ..two_phase.coordinator import Coordinator
from ..two_phase.messages import ChangesAt, ReadAt, RowsAt
from ..vms.cluster_messages import GroupIs, WantGroup
from .gathering import Gathering
from .sizes import check_parts

#: Messages by what they are about.
_ABOUT_CATALOGS = (ChangeCatalog, CatalogChanged, FetchCatalog)
_NOT_HERE = (Refused, NotServed)
#: A read that met an old map is begun again after this long, until so much time has passed.
READ_AGAIN_MS = 20
READ_MS_MAX = 3_000
#: A change of the catalog that is not answered is asked for again after this long.
CHANGE_MS = 200
#: So long somebody waits for another catalog before he is told what there is.
FETCH_MS_MAX = 1_000
#: Who wants to change the catalog or waits for one: beyond it newcomers are not heard, and ask again.
WAITING_MAX = 1_000
#: Answers that wait for a newer map or catalog; the oldest are forgotten beyond it.
HELD_MAX = 10_000
#: Questions to the scheduler that are not answered yet; the oldest are forgotten beyond it.
ASKED_MAX = 1_000


class ClusterCoordinator:
    def __init__(self, host: Host, tables: Tables) -> None:
        self.host = host
        self.keeper = Keeper(SESSION_MS, (MAP, LEADER, CATALOG))
        self.map = RangeMap(0, (b"",), ("",))
        #: `tables` are of the catalog before the first that is in ZooKeeper.
        self.catalogs = Catalogs()
        self.inner = Coordinator(host, ORACLE, tables, self.map)
        self.inner.tables_by_version = self.catalogs.tables_by_version
        self.inner.on_prepare = self._check
        self.inner.on_ahead = lambda: self.keeper.read(CATALOG)
        #: Changes of the catalog by their numbers, with who wants them; the answers that are held back until this one
        #: has that catalog; and who waits for a newer one: by client and number, the version that he has.
        self._changes: dict[int, tuple[str, ChangeCatalog]] = {}
        self._changed: dict[int, CatalogChanged] = {}
        self._fetching: dict[tuple[str, int], int] = {}
        #: Reads as their clients asked for them, and since when: by client and number.
        self._reads: dict[tuple[str, int], tuple[ReadAt, int]] = {}
        #: Answers to reads that wait until this one has the map and the catalog of their timestamps.
        self._held: list[tuple[str, RowsAt]] = []
        self._gathering = Gathering()
        #: What was passed on to the scheduler: who asked, and by which number.
        self._asked: dict[int, tuple[str, int]] = {}
        self._number = 0
        self._now_ms = 0
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        # Answers to an earlier life must not be taken for those to this one.
        self._number = incarnation << 32
        self._gathering.start(incarnation)
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
        elif isinstance(message, _ABOUT_CATALOGS):
            self._about_catalog(sender, message)
        elif isinstance(message, WantGroup):
            self._ask_scheduler(sender, message)
        elif isinstance(message, GroupIs):
            self._tell_group(message)
        elif self.map.epoch:
            # Before its first map it knows nobody; clients ask again.
            self._look_at(message)
            if self._is_of_gathering(sender, message):
                self._send_gathered()
                return self._out()
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
        elif token[0] == "change":
            self._ask_for_change(token[1])
        elif token[0] == "fetch":
            self._tell_catalog((token[1], token[2]))
        elif token[0] == "gather":
            self._gathering.timer(token[1], self.map, now_ms)
            self._send_gathered()
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
            elif not isinstance(message, RowsAt):
                self._send.append((destination, message))
            elif not self._is_read_again(destination, message):
                self._answer_read(destination, message)

    def _check(self, attempt: AttemptAt) -> None:
        check_parts(attempt, self.inner.tables, self.inner.ranges)

    def _is_of_gathering(self, sender: str, message: object) -> bool:
        match message:
            case ChangesAt():
                self._gathering.ask(sender, message, self.map, self._now_ms)
            case FoundChanges():
                self._gathering.found(message)
            case NotServed():
                return self._gathering.not_served(message, self._now_ms)
            case _:
                return False
        return True

    def _send_gathered(self) -> None:
        gathering = self._gathering
        for destination, message in gathering.send:
            if destination in self.map.hosts:
                message = ForLog(destination, "", message)
                destination = self.map.process(destination)
            self._send.append((destination, message))
        self._timers += [(at_ms, ("gather", token)) for at_ms, token in gathering.timers]
        gathering.send.clear()
        gathering.timers.clear()

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

    def _answer_read(self, client: str, answer: RowsAt) -> None:
        """Who gets a new timestamp is told the version of the catalog as of it, which this one has to know first."""
        if not self._follows(answer.epoch):
            self._held.append((client, answer))
            if len(self._held) > HELD_MAX:
                del self._held[0]  # it will be asked for again
            self._fetch(answer.epoch)
            self.keeper.read(CATALOG)
            return
        if answer.epoch:
            opened = next(
                (entry for entry in reversed(self.catalogs.stored.entries) if 0 < entry.ts <= answer.at), None
            )
            answer = answer._replace(catalog_version=0 if opened is None else opened.version)
        self._send.append((client, answer))

    def _follows(self, epoch: int) -> bool:
        """Whether its map is not older, and the catalog is the one that the map names."""
        opened = self.catalogs.opened
        version = 0 if opened is None else opened.version
        return epoch <= self.map.epoch and (self.map.catalog_pending or version >= self.map.catalog)

    def _answer_held(self) -> None:
        held, self._held = self._held, []
        for client, answer in held:
            self._answer_read(client, answer)

    # -- the map

    def _from_zookeeper(self, message: object) -> None:
        keeper = self.keeper
        keeper.receive(message)
        if keeper.state == zk.LOST:
            keeper.connect()
        catalog, stored = keeper.nodes[CATALOG], keeper.nodes[MAP]
        if catalog is not None and self.catalogs.adopt_data(catalog.data):
            self._adopted_catalog()
        if stored is not None:
            self._adopt(RangeMap.unpack(stored.data))

    def _adopt(self, ranges: RangeMap) -> None:
        if ranges.epoch > self.map.epoch:
            self.map = ranges
            # The coordinator names logs; who answers for them is found out here, when a message leaves.
            self.inner.ranges = replace(ranges, hosts={})
            self._answer_held()

    def _look_at(self, message: object) -> None:
        """Whoever refuses because of the map may know a newer one."""
        if isinstance(message, _NOT_HERE):
            if message.epoch > self.map.epoch:
                self._fetch(message.epoch)
        elif isinstance(message, Vote):
            if message.reason == MOVED:
                self.keeper.read(MAP)
            elif message.reason == OLD_CATALOG:
                self.keeper.read(CATALOG)

    def _fetch(self, epoch: int) -> None:
        self.keeper.read(MAP)
        if epoch > self.map.epoch:
            self._to_leader(FetchMap(self.map.epoch))

    # -- the catalog

    def _adopted_catalog(self) -> None:
        """Attempts that are under way keep the tables that they began with; they will be refused, and begin again."""
        tables = self.catalogs.tables()
        if tables is not None:
            self.inner.tables = tables
        for key, version in list(self._fetching.items()):
            if tables is not None and tables.catalog.version > version:
                self._tell_catalog(key)
        for number in list(self._changed):
            self._answer_change(number)
        self._answer_held()

    def _about_catalog(self, sender: str, message: ChangeCatalog | CatalogChanged | FetchCatalog) -> None:
        match message:
            case ChangeCatalog(number):
                if number not in self._changes and len(self._changes) < WAITING_MAX:
                    self._changes[number] = (sender, message)
                    self._ask_for_change(number)
            case CatalogChanged(number):
                if number in self._changes:
                    self._changed[number] = message
                    self._answer_change(number)
            case FetchCatalog(number, above_version):
                key = (sender, number)
                if len(self._fetching) < WAITING_MAX:
                    self._fetching[key] = above_version
                    # As long as none was stored it is told as an empty one, of version 0.
                    known = 0 if self.catalogs.opened is None else self.inner.tables.catalog.version
                    if known > above_version:
                        self._tell_catalog(key)
                    else:
                        self._timers.append((self._now_ms + FETCH_MS_MAX, ("fetch", *key)))

    def _ask_for_change(self, number: int) -> None:
        if number in self._changes:
            self._to_leader(self._changes[number][1])
            self._timers.append((self._now_ms + CHANGE_MS, ("change", number)))

    def _answer_change(self, number: int) -> None:
        answer = self._changed[number]
        opened = self.catalogs.opened
        if not answer.error and (opened is None or opened.version < answer.version):
            self.keeper.read(CATALOG)
            return
        del self._changed[number]
        self._send.append((self._changes.pop(number)[0], answer))

    def _tell_catalog(self, key: tuple[str, int]) -> None:
        if self._fetching.pop(key, None) is not None:
            client, number = key
            opened = self.catalogs.opened
            if opened is None:
                told = CatalogIs(number, 0, 0, pack_catalog(self.inner.tables.catalog))
            else:
                told = CatalogIs(number, opened.version, opened.ts, opened.data, self.catalogs.stored.pack())
            self._send.append((client, told))

    def _ask_scheduler(self, sender: str, message: WantGroup) -> None:
        """Whoever is not answered asks again."""
        self._number += 1
        self._asked[self._number] = (sender, message.number)
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._to_leader(message._replace(number=self._number))

    def _tell_group(self, answer: GroupIs) -> None:
        known = self._asked.pop(answer.number, None)
        if known is not None:
            client, number = known
            self._send.append((client, answer._replace(number=number)))

    def _to_leader(self, message: object) -> None:
        node = self.keeper.nodes[LEADER]
        if node is not None:
            self._send.append((node.data.decode(), message))
