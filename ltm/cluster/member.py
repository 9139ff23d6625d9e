"""One LTM process in a cluster. It answers for some logs, as the range map says, and for nothing else. No I/O.

A process lives with one session of ZooKeeper and one log of its own. When the session is lost, or others have taken
over what it answered for, the life ends (`LifeOver`): the driver drops all that is in memory and starts another one,
with a new log.

Who is fenced how: whatever is acknowledged is durable before, and a log is sealed before another process answers for
what is in it; reads have no record, so they are answered only up to a timestamp, the *lease*, and the next owner begins
with a floor above it (rules H3 and T3).

Taking over    the map gives a log to this life: seal and read all logs where its records are, replay them, draw a floor
Moving keys    the map closes them: the source refuses whoever has not voted and waits for the others; the target
               fetches all versions, logs them, draws a floor, and says so; the leader opens them in the next map
Catalogs       the map names the version: votes of earlier ones are refused for good, those of a pending one for the
               moment; it is said when all earlier votes are decided; open at S, everything is marked at S (rule C1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..key_range import Move, RangeMap
from ..machine import Host, Outputs, WhenDurable
from ..two_phase import hand_over
from ..two_phase.messages import (
    Ask,
    Draw,
    KeyRange,
    NotServed,
    Prepare,
    Read,
    Refused,
    Resolve,
    Timestamps,
)
from ..two_phase.participant import Participant, RefreshRow
from ..two_phase.records import Adopted
from . import zk_messages as zk
from .catalogs import Catalogs, Stored
from .hosted import Hosted, Logged
from .keeper import Keeper
from .log_messages import LOGS, LogRecords, NoLog, Seal
from .messages import (
    CATALOG,
    LEADER,
    MAP,
    MOVED,
    OLD_CATALOG,
    OLD_TERM,
    PENDING_CATALOG,
    REPORT_MS,
    SESSION_MS,
    FetchMap,
    FetchRange,
    ForLog,
    Lease,
    NewMap,
    NotHere,
    RangeRows,
    Report,
    node_of,
)

#: Whom participants ask for timestamps: whoever leads.
ORACLE = "oracle"
#: Requests for timestamps that are not answered: the oldest are forgotten beyond it.
DRAWS_MAX = 1_000

TAKING_OVER = "member: about to seal"
SEALED = "member: a log is sealed and read"
TAKEN_OVER = "member: replayed, not open"
OPENED = "member: open"
CLOSED = "member: keys closed"
HANDING = "member: about to hand keys over"
ADOPTING = "member: keys adopted"
READY = "member: adopted keys are ready"
ADOPTED_MAP = "member: map adopted"
PROBES = (TAKING_OVER, SEALED, TAKEN_OVER, OPENED, CLOSED, HANDING, ADOPTING, READY, ADOPTED_MAP)
CATALOG_PENDING = "member: a catalog is pending"
CATALOG_CLEAN = "member: nothing of earlier catalogs is undecided"
CATALOG_OPEN = "member: a catalog is open"
CATALOG_PROBES = (CATALOG_PENDING, CATALOG_CLEAN, CATALOG_OPEN)


class LifeOver(Exception):
    """This life of the process is over: another one begins with a new log."""


class _Adoption:
    """Keys that come to a participant here: its own lsn of the record, and whether their floor is known."""

    def __init__(self, move: Move, lsn: int) -> None:
        self.move = move
        self.lsn = lsn
        self.ready = False


class Member:
    def __init__(
        self,
        host: Host,
        refresh: RefreshRow,
        make: Callable[[Host, str, str, RefreshRow], Participant] = Participant,
    ) -> None:
        self.host = host
        #: `refresh` is for views of a catalog that never changes.
        self.catalogs = Catalogs(refresh)
        self._make = make
        self.life = ""
        self.map = RangeMap(0, (b"",), ("",))
        self.hosted: dict[str, Hosted] = {}
        #: Reads are answered up to this timestamp.
        self.lease = 0
        self.keeper = Keeper(SESSION_MS, (MAP, LEADER, CATALOG))
        self._registered = False
        #: The epoch in which it said that nothing of earlier catalogs is undecided.
        self._clean_epoch = 0
        self._adoptions: dict[int, _Adoption] = {}
        #: For whom a timestamp was asked: a log and its own number, or "" and the number of a move.
        self._draws: dict[int, tuple[str, int]] = {}
        self._number = 0
        self._lsn = 0
        self._now_ms = 0
        self._persist: list[object] = []
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        self.life = getattr(disk, "log", self.host.name)
        assert not disk, "every life of an LTM begins with a new log"
        # Answers to an earlier life must not be taken for those to this one.
        self._number = incarnation << 32
        self.keeper.connect()
        self._timers.append((now_ms + REPORT_MS, "tick"))
        return self._out()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        if sender == zk.ZOOKEEPER:
            self._from_zookeeper(message)
        elif self.keeper.connected:
            # Suspended, it answers nobody; whoever asked asks again.
            self._received(sender, message)
        return self._out()

    def _received(self, sender: str, message: object) -> None:
        match message:
            case ForLog():
                self._for_log(sender, message)
            case Lease():
                self._take_lease(message)
            case NewMap(data):
                self._adopt_map(RangeMap.unpack(data))
            case Timestamps():
                self._timestamps(message)
            case LogRecords():
                self._read_log(message)
            case FetchRange():
                self._fetch_range(sender, message)
            case RangeRows():
                self._range_rows(message)
            case NotHere():
                self.keeper.read(MAP)
            case NoLog(_, log):
                raise LifeOver(f"there is no log {log}, which the range map names")
            case _:
                raise TypeError(f"unexpected message {message!r} from {sender}")

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        for hosted in self.hosted.values():
            durable = hosted.persisted(lsn)
            if durable and hosted.machine is not None:
                self._carry_out(hosted, hosted.machine.persisted(durable, now_ms))
        self._draw_for_adopted()
        return self._out()

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        if token == "tick":
            self._timers.append((now_ms + REPORT_MS, "tick"))
            if self.keeper.connected:
                self._tick()
        else:
            assert isinstance(token, tuple)
            log, own = token
            hosted = self.hosted[log]
            assert hosted.machine is not None
            self._carry_out(hosted, hosted.machine.timer(own, now_ms))
        return self._out()

    def _out(self) -> Outputs:
        self._say_clean()
        self._send += self.keeper.send
        self.keeper.send.clear()
        out = Outputs(tuple(self._persist), tuple(self._send), tuple(self._timers))
        self._persist, self._send, self._timers = [], [], []
        return out

    def _carry_out(self, hosted: Hosted, out: Outputs) -> None:
        """What a participant wants, as part of this process."""
        for record in out.persist:
            self._lsn += 1
            hosted.add_record(self._lsn)
            self._persist.append(Logged(hosted.log, record))
        for at_ms, token in out.timers:
            self._timers.append((at_ms, (hosted.log, token)))
        for lsn, destination, message in hosted.sent(out):
            if isinstance(message, Draw):
                self._draw(hosted.log, message.number)
            elif destination in self.map.hosts:
                process = self.map.process(destination)
                self._send.append(WhenDurable(lsn, process, ForLog(destination, hosted.log, message)))
            else:
                self._send.append(WhenDurable(lsn, destination, message))

    # -- ZooKeeper and the leader

    def _from_zookeeper(self, message: object) -> None:
        keeper = self.keeper
        keeper.receive(message)
        if keeper.state == zk.LOST:
            raise LifeOver("the session with ZooKeeper is lost")
        if isinstance(message, zk.Session) and keeper.connected and not self._registered:
            keeper.ask(lambda number: zk.Create(number, node_of(self.life), b"", True), self._created)
        catalog, stored = keeper.nodes[CATALOG], keeper.nodes[MAP]
        if catalog is not None:
            self._adopt_catalog(catalog.data)
        if stored is not None:
            self._adopt_map(RangeMap.unpack(stored.data))

    def _created(self, answer: zk.Answer) -> None:
        if answer.error in ("", zk.NODE_EXISTS):
            self._registered = True

    @property
    def leader(self) -> str:
        node = self.keeper.nodes[LEADER]
        return "" if node is None else node.data.decode()

    def _to_leader(self, message: object) -> None:
        if self.leader:
            self._send.append((self.leader, message))

    def _tick(self) -> None:
        ready = tuple(number for number, adoption in self._adoptions.items() if adoption.ready)
        self._to_leader(Report(self.life, self.map.epoch, ready, self._is_clean()))
        for hosted in self.hosted.values():
            if hosted.machine is None:
                self._seal(hosted)
        for move in self.map.moves:
            self._fetch(move)
        self._draw_for_adopted()

    def _take_lease(self, lease: Lease) -> None:
        if lease.life == self.life and lease.term == self.map.term:
            self.lease = max(self.lease, lease.until)

    def _draw(self, log: str, number: int) -> None:
        self._number += 1
        self._draws[self._number] = (log, number)
        if len(self._draws) > DRAWS_MAX:
            del self._draws[next(iter(self._draws))]
        self._to_leader(Draw(self._number, 1))

    def _timestamps(self, message: Timestamps) -> None:
        """A floor. It must be of the present leader and of a map in which the keys are here or closed: only then is it
        above all that others answered."""
        wanted = self._draws.pop(message.number, None)
        if wanted is None or message.epoch < self.map.term:
            return
        log, number = wanted
        if not log:
            self._open_adopted(number, message)
            return
        hosted = self.hosted[log]
        if hosted.open or hosted.machine is None or message.epoch < hosted.since_epoch:
            return
        hosted.open = True
        moves = self.map.moves
        ranges = tuple(each for each in self.map.owned(log) if not any(move.touches(*each) for move in moves))
        self.host.note("opened", log, hosted.incarnation, message.first, hosted.since_epoch, ranges)
        self._carry_out(hosted, hosted.machine.receive(ORACLE, message._replace(number=number, issued=1), self._now_ms))
        self.host.probe(OPENED)

    # -- the map

    def _is_newer(self, ranges: RangeMap) -> bool:
        return ranges.epoch > self.map.epoch

    def _adopt_map(self, ranges: RangeMap) -> None:
        if not self._is_newer(ranges):
            return
        before, self.map = self.map, ranges
        self.host.probe(ADOPTED_MAP)
        for log, hosted in self.hosted.items():
            if ranges.hosts[log].life != self.life:
                raise LifeOver(f"{ranges.hosts[log].life} answers for {log} now")
            if hosted.machine is not None:
                hosted.machine.epoch = ranges.epoch
        if (ranges.catalog, ranges.catalog_ts) != (before.catalog, before.catalog_ts):
            self.host.probe(CATALOG_OPEN if ranges.catalog_ts else CATALOG_PENDING)
            for hosted in self.hosted.values():
                self._keep_to_catalog(hosted)
        for move in before.moves:
            if move not in ranges.moves:
                self._moved(move)
        for move in ranges.moves:
            if move not in before.moves:
                self._close(move)
        for log, host in ranges.hosts.items():
            if host.life == self.life and log not in self.hosted:
                self.host.probe(TAKING_OVER)
                hosted = Hosted(log, host.incarnation, ranges.epoch, host.segments[:-1])
                self.hosted[log] = hosted
                self._seal(hosted)
        self._to_leader(Report(self.life, ranges.epoch, (), self._is_clean()))

    def _behind(self) -> None:
        """Somebody knows a newer map."""
        self.keeper.read(MAP)
        self._to_leader(FetchMap(self.map.epoch))

    # -- the catalog

    def _adopt_catalog(self, data: bytes) -> None:
        if self.catalogs.adopt(Stored.unpack(data)):
            for hosted in self.hosted.values():
                if hosted.machine is None:
                    self._begin_if_read(hosted)

    def _keep_to_catalog(self, hosted: Hosted) -> None:
        """From now on nobody votes by an earlier catalog; and by this one only above its S (rule C1)."""
        if hosted.machine is not None:
            out = hosted.machine.refuse_older(self.map.catalog, OLD_CATALOG, self._now_ms)
            self._carry_out(hosted, out)
            self._mark_opened(hosted.machine)

    def _mark_opened(self, machine: Participant) -> None:
        """A vote by the new catalog may have a start from before S: it was drawn when that was not known yet."""
        machine.marks.raise_floor(self.map.catalog_ts)

    def _is_clean(self) -> bool:
        return all(
            hosted.machine is not None and not self._has_older_votes(hosted.machine) for hosted in self.hosted.values()
        )

    def _has_older_votes(self, machine: Participant) -> bool:
        return machine.has_older_votes(self.map.catalog)

    def _say_clean(self) -> None:
        """As soon as it is so: writers wait for it."""
        if self.map.catalog_pending and self._clean_epoch != self.map.epoch and self._is_clean():
            self.host.probe(CATALOG_CLEAN)
            self._clean_epoch = self.map.epoch
            self._to_leader(Report(self.life, self.map.epoch, (), True))

    def _of_other_catalog(self, prepare: Prepare) -> str:
        """Why the vote is refused."""
        if prepare.catalog_version < self.map.catalog:
            return OLD_CATALOG
        return PENDING_CATALOG if self.map.catalog_pending else ""

    def _knows_catalog(self, version: int) -> bool:
        """Whether a vote of this version can be judged, and carried out. If not, it is asked for again."""
        if not self.map.catalog or version < self.map.catalog:
            return True
        if version > self.map.catalog:
            self._behind()
            return False
        if self.catalogs.version < version:
            self.keeper.read(CATALOG)
            return False
        return True

    # -- taking over

    def _seal(self, hosted: Hosted) -> None:
        """Nobody else writes for this participant any more; what was durable is all that ever will be (rule V8)."""
        for segment in hosted.segments:
            if segment not in hosted.found:
                self._number += 1
                self._send.append((LOGS, Seal(self._number, segment)))
        self._begin_if_read(hosted)

    def _read_log(self, message: LogRecords) -> None:
        for hosted in self.hosted.values():
            if hosted.machine is None and message.log in hosted.segments and message.log not in hosted.found:
                self.host.probe(SEALED)
                hosted.found[message.log] = tuple(
                    each.record for each in message.records if isinstance(each, Logged) and each.log == hosted.log
                )
                self._begin_if_read(hosted)

    def _begin_if_read(self, hosted: Hosted) -> None:
        if len(hosted.found) < len(hosted.segments):
            return
        if self.catalogs.version < self.map.catalog:
            # There may be records of views that it does not know yet.
            self.keeper.read(CATALOG)
            return
        records = [record for segment in hosted.segments for record in hosted.found[segment]]
        hosted.found.clear()
        machine = self._make(self.host, hosted.log, ORACLE, self.catalogs.refresh_row)
        machine.epoch = self.map.epoch
        hosted.begin(machine, len(records))
        out = machine.start(self._now_ms, records, hosted.incarnation)
        # Keys that went to others meanwhile.
        for key in [key for key in machine.cells.chains if self.map.owner(key) != hosted.log]:
            machine.cells.drop(key, key + b"\0")
        self.host.probe(TAKEN_OVER)
        self._carry_out(hosted, out)
        self._keep_to_catalog(hosted)

    # -- moving keys

    def _close(self, move: Move) -> None:
        source = self.hosted.get(move.source)
        if source is not None and source.machine is not None:
            self._carry_out(source, hand_over.close(source.machine, move.start, move.stop, MOVED, self._now_ms))
            self.host.probe(CLOSED)
        self._fetch(move)

    def _fetch(self, move: Move) -> None:
        target = self.hosted.get(move.target)
        if target is not None and target.machine is not None and move.number not in self._adoptions:
            self._send.append((self.map.process(move.source), FetchRange(move.number, move.target)))

    def _fetch_range(self, sender: str, message: FetchRange) -> None:
        move = next((move for move in self.map.moves if move.number == message.number), None)
        if move is None:
            if message.number > self.map.epoch:
                self._behind()
            return
        source = self.hosted.get(move.source)
        if source is None or source.machine is None or self._is_held(source.machine, move):
            return
        self.host.probe(HANDING)
        given = hand_over.give_away(source.machine, move.start, move.stop)
        lsn = source.place(source.machine.last_lsn)
        self._send.append(WhenDurable(lsn, sender, RangeRows(move.number, *given[2:])))

    def _is_held(self, machine: Participant, move: Move) -> bool:
        """Votes that are not decided: they are decided where they were given (rule V8)."""
        return bool(hand_over.held(machine, move.start, move.stop))

    def _range_rows(self, message: RangeRows) -> None:
        move = next((move for move in self.map.moves if move.number == message.number), None)
        if move is None or move.number in self._adoptions:
            return
        target = self.hosted.get(move.target)
        if target is None or target.machine is None:
            return
        adopted = Adopted(move.start, move.stop, *message[1:])
        self._carry_out(target, target.machine.adopt(adopted, self._now_ms))
        self.host.probe(ADOPTING)
        self._adoptions[move.number] = _Adoption(move, target.machine.last_lsn)

    def _draw_for_adopted(self) -> None:
        """Only now: whatever the source answered is below a timestamp that is drawn from here on."""
        for number, adoption in self._adoptions.items():
            target = self.hosted[adoption.move.target]
            if not adoption.ready and target.open and target.is_durable(adoption.lsn):
                self._draw("", number)

    def _open_adopted(self, number: int, message: Timestamps) -> None:
        adoption = self._adoptions.get(number)
        if adoption is None or adoption.ready or message.epoch < number:
            return
        target = self.hosted[adoption.move.target]
        assert target.machine is not None
        target.machine.marks.raise_floor(message.first)
        adoption.ready = True
        self.host.probe(READY)
        ranges = ((adoption.move.start, adoption.move.stop),)
        since_epoch = max(number, target.since_epoch)
        self.host.note("opened", target.log, target.incarnation, message.first, since_epoch, ranges)
        self._to_leader(Report(self.life, self.map.epoch, (number,)))

    def _moved(self, move: Move) -> None:
        """The keys are the target's."""
        self._adoptions.pop(move.number, None)
        source = self.hosted.get(move.source)
        if source is not None and source.machine is not None:
            source.machine.cells.drop(move.start, move.stop)

    # -- the commit protocol

    def _for_log(self, sender: str, envelope: ForLog) -> None:
        log, from_log, message = envelope
        hosted = self.hosted.get(log)
        if hosted is None:
            if not from_log:
                self._send.append((sender, NotHere(log, self.map.epoch)))
            return
        if hosted.machine is None:
            return
        if from_log and from_log not in self.map.hosts:
            self._behind()
            return
        if self._is_admitted(hosted, hosted.machine, sender, message):
            self._carry_out(hosted, hosted.machine.receive(from_log or sender, message, self._now_ms))

    def _is_admitted(self, hosted: Hosted, machine: Participant, sender: str, message: object) -> bool:
        """Whether the participant gets it. What is refused is answered here, or asked again."""
        if not isinstance(message, Ask | Prepare | Read | Resolve):
            return self._is_leased(machine.shows_up_to(message))
        if not hosted.open:
            return False
        if isinstance(message, Resolve):
            if not self.map.serves_key(hosted.log, message.key):
                self._send.append((sender, NotHere(hosted.log, self.map.epoch)))
                return False
            return True
        if isinstance(message, Prepare) and self._is_answered(machine, message):
            return True
        if self._is_ahead(message):
            self._behind()
            return False
        if isinstance(message, Prepare) and not self._knows_catalog(message.catalog_version):
            return False
        why = self._why_refused(hosted, machine, message)
        if why:
            self._refuse(hosted, machine, sender, message, why)
            return False
        return not isinstance(message, Read) or self._may_read(hosted, message)

    def _is_ahead(self, message: Ask | Prepare | Read) -> bool:
        """Only a map of that epoch says whether the keys are still here (rule T3)."""
        return message.epoch > self.map.epoch

    def _is_answered(self, machine: Participant, prepare: Prepare) -> bool:
        """The vote is in the log: it is only repeated, whoever owns the keys now."""
        part = machine.parts.get(prepare.attempt)
        return (part is not None and part.min_ts > 0) or prepare.attempt[0] in machine.committed

    def _why_refused(self, hosted: Hosted, machine: Participant, message: Ask | Prepare | Read) -> str:
        # What was asked for before the leader changed was drawn before, too.
        known = isinstance(message, Prepare) and message.attempt in machine.parts
        if not known and self._is_of_old_term(message):
            return OLD_TERM
        if isinstance(message, Prepare) and (why := self._of_other_catalog(message)):
            return why
        keys: Iterable[bytes]
        ranges: tuple[KeyRange, ...] = ()
        if isinstance(message, Ask):
            keys = (*message.writes, *message.keys, *message.seen)
            ranges = (*message.ranges, *message.seen_ranges)
        elif isinstance(message, Prepare):
            keys = [*(key for key, _ in message.writes), *(refresh[1] for refresh in message.refreshes)]
        else:
            keys, ranges = message.keys, message.ranges
        return "" if self._serves(hosted.log, keys, ranges) else MOVED

    def _is_of_old_term(self, message: Ask | Prepare | Read) -> bool:
        """Drawn from an earlier leader, perhaps after the present one began: it may be too low. (0: a timestamp that
        was read at before.)"""
        return 0 < message.epoch < self.map.term or (message.epoch == 0 and not isinstance(message, Read))

    def _serves(self, log: str, keys: Iterable[bytes], ranges: tuple[KeyRange, ...]) -> bool:
        ranges_map = self.map
        return all(ranges_map.serves_key(log, key) for key in keys) and all(
            ranges_map.serves(log, each[0], each[1]) for each in ranges
        )

    def _refuse(
        self, hosted: Hosted, machine: Participant, sender: str, message: Ask | Prepare | Read, why: str
    ) -> None:
        if isinstance(message, Ask):
            self._send.append((sender, Refused(message.attempt, why, self.map.epoch)))
        elif isinstance(message, Prepare):
            self._carry_out(hosted, machine.refuse_vote(sender, message.attempt, why, self._now_ms))
        else:
            self._send.append((sender, NotServed(message.number, self.map.epoch, why)))

    def _may_read(self, hosted: Hosted, read: Read) -> bool:
        if not self._is_leased(read.at):
            return False
        self.host.note("answered", hosted.log, hosted.incarnation, read.at, read.keys, read.ranges)
        return True

    def _is_leased(self, at: int) -> bool:
        return at <= self.lease
