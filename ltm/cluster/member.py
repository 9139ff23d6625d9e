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
With a store   rows go there in the background (`saving`), and the log is trimmed; what is not in memory is loaded
               before a request that needs it is handled (`loading`); who takes over replays what is not in the store
               (`taking_over`); keys that move go by the store. The store is shared by all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..key_range import Move, RangeMap
from ..machine import Host, Outputs, WhenDurable
from ..two_phase import hand_over
from ..two_phase.cells import Version
from ..two_phase.journal import Journal
from ..two_phase.messages import (
    Ask,
    Draw,
    KeyRange,
    NotServed,
    Prepare,
    Read,
    ReadChanges,
    Refused,
    Resolve,
    Timestamps,
)
from ..two_phase.participant import TOO_MANY, Participant, RefreshRow
from ..two_phase.records import Adopted, StoredTo
from ..two_phase.stored_cells import StoredCells
from . import checkpoint, loading, saving, taking_over
from . import zk_messages as zk
from .catalogs import OWN_TABLE, Catalogs
from .checkpoint import Checkpoint, plain
from .hosted import Hosted, Logged
from .keeper import Keeper
from .load import Load as RequestLoad
from .loading import Load, Loader
from .log_messages import LOGS, LogRecords, NoLog, Seal
from .messages import (
    CATALOG,
    LEADER,
    LOAD_REPORTS,
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
from .saving import Pages, Saver
from .settings import StoreSettings
from .store_messages import (
    NEWEST,
    STORE,
    Answer,
    LoadCells,
    LoadedCells,
    Request,
    StoreFailed,
    WriteCells,
    Written,
)

#: Whom participants ask for timestamps: whoever leads.
ORACLE = "oracle"
#: Requests for timestamps that are not answered: the oldest are forgotten beyond it.
DRAWS_MAX = 1_000
#: Rows, or transactions, in one message when keys move.
PAGE_ITEMS = 2_000
#: What the store has not answered for so long is asked again.
STORE_MS_MAX = 1_500

#: Messages by what they want: named once, because making a union of classes takes longer than to look.
_NEEDING_ROWS = (Ask, Prepare, Read)
_READING = (Read, ReadChanges)
_ABOUT_KEYS = (*_NEEDING_ROWS, ReadChanges, Resolve)

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
FOUND = "member: checkpoint found"
FLUSHED = "member: closed keys are in the store"
STORE_PROBES = (*saving.PROBES, *loading.PROBES, FOUND, FLUSHED)


class LifeOver(Exception):
    """This life of the process is over: another one begins with a new log."""


class _Adoption:
    """Keys that come to a participant here: its own lsn of the record, and whether their floor is known."""

    def __init__(self, move: Move, lsn: int) -> None:
        self.move = move
        self.lsn = lsn
        self.ready = False


class _Asked:
    """A request that the store has not answered. It leaves when the process's log is durable up to `lsn`."""

    def __init__(self, request: Request, lsn: int, then: Callable[[Answer], None], sent_ms: int) -> None:
        self.request = request
        self.lsn = lsn
        self.then = then
        self.sent_ms = sent_ms


class Member:
    """`store`: how rows are kept in a store that all processes share; None: they are all in memory. `page_items`: rows
    in one message when keys move."""

    def __init__(
        self,
        host: Host,
        refresh: RefreshRow,
        make: Callable[[Host, str, str, RefreshRow], Participant] = Participant,
        store: StoreSettings | None = None,
        page_items: int = PAGE_ITEMS,
    ) -> None:
        self.host = host
        #: `refresh` is for views of a catalog that never changes.
        self.catalogs = Catalogs(refresh)
        self._make = make
        self._store = store
        self._page_items = page_items
        #: What the store was asked, by number.
        self._asked: dict[int, _Asked] = {}
        #: By move: what is given away, in pages; of those that come, the incarnation of the source and the next page.
        self._handing: dict[int, list[Adopted]] = {}
        self._arriving: dict[int, tuple[int, int]] = {}
        #: Moves whose rows are being written to the store, and those whose rows are there, with what it has then.
        self._flushing: set[int] = set()
        self._flushed: dict[int, StoredTo] = {}
        self._trim = 0
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
        #: What is asked of it, told with some reports.
        self.load = RequestLoad()
        self.load_reports = LOAD_REPORTS
        self._ticks = 0
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
            case Written() | LoadedCells() | StoreFailed():
                self._from_store(message)
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
        out = Outputs(tuple(self._persist), tuple(self._send), tuple(self._timers), 0, self._trim)
        self._persist, self._send, self._timers, self._trim = [], [], [], 0
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
        complete = tuple(
            log
            for log, hosted in self.hosted.items()
            if hosted.replay_from[0] == self.life and len(self.map.hosts[log].segments) > 1
        )
        self._ticks += 1
        load = self.load.take() if self._ticks % self.load_reports == 0 else None
        self._to_leader(Report(self.life, self.map.epoch, ready, self._is_clean(), complete, load))
        for hosted in self.hosted.values():
            if hosted.machine is None:
                self._seal(hosted)
        for move in self.map.moves:
            self._fetch(move)
        self._draw_for_adopted()
        self._ask_store_again()
        for hosted in self.hosted.values():
            self._keep_house(hosted)

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
            # It may be this life's again, after others had it.
            if (ranges.hosts[log].life, ranges.hosts[log].incarnation) != (self.life, hosted.incarnation):
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
        if self.catalogs.adopt_data(data):
            self.host.note("catalog", data)
            for hosted in self.hosted.values():
                if hosted.machine is None:
                    self._begin_if_read(hosted)
                else:
                    hosted.machine.follow(self.catalogs.stored)

    def _keep_to_catalog(self, hosted: Hosted) -> None:
        """From now on nobody votes by an earlier catalog; and by this one only above its S (rule C1)."""
        if hosted.machine is not None:
            out = hosted.machine.refuse_older(self.map.catalog, OLD_CATALOG, self._now_ms)
            self._carry_out(hosted, out)
            self._mark_opened(hosted.machine)

    def _mark_opened(self, machine: Participant) -> None:
        """A vote by the new catalog may have a start from before S: it was drawn when that was not known yet."""
        machine.marks.raise_floor(self.map.catalog_ts)

    def _may_replay(self) -> bool:
        """In the logs may be records of views of every catalog up to that of the map."""
        return self.catalogs.version >= self.map.catalog

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
        return PENDING_CATALOG if self.map.catalog_pending or self._has_to_wait(prepare) else ""

    def _has_to_wait(self, prepare: Prepare) -> bool:
        """Whether it has to wait until the catalog is not taken back any more. Somebody who writes rows writes them
        somewhere: whoever only adds to views there, or was only asked, need not refuse it."""
        return self.map.catalog_held and not all(key.startswith(OWN_TABLE) for key, _ in prepare.writes)

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
                hosted.found[message.log] = taking_over.Found(
                    message.first_lsn,
                    tuple(
                        (lsn, each.record)
                        for lsn, each in enumerate(message.records, message.first_lsn)
                        if isinstance(each, Logged) and each.log == hosted.log
                    ),
                )
                self._begin_if_read(hosted)

    def _begin_if_read(self, hosted: Hosted) -> None:
        if len(hosted.found) < len(hosted.segments) or hosted.is_read:
            return
        if not self._may_replay():
            self.keeper.read(CATALOG)
            return
        hosted.is_read = True
        if self._store is None:
            self._begin(hosted, taking_over.plan(checkpoint.NONE, hosted.segments, hosted.found))
            return
        # Only now: what is missing in the sealed logs is in a checkpoint.
        first = hosted.incarnation - len(hosted.segments)
        names = [checkpoint.name_of(hosted.log, first + place) for place in range(len(hosted.segments))]
        self._ask_store(_load_entries(names), lambda answer: self._found_checkpoint(hosted, answer))

    def _found_checkpoint(self, hosted: Hosted, answer: Answer) -> None:
        assert isinstance(answer, LoadedCells)
        entries = [data for row in answer.rows if (data := checkpoint.entry(row))]
        last = Checkpoint.unpack(entries[-1]) if entries else checkpoint.NONE
        self.host.probe(FOUND)
        plan = taking_over.plan(last, hosted.segments, hosted.found)
        makers: list[Callable[[int], Request]] = [_load_entries([name]) for name, _ in last.chunks]
        loads = [(at, page) for at, keys in plan.bases.items() for page in self._in_pages(keys)]
        makers += [_load_bases(at, page) for at, page in loads]

        def then(answers: list[Answer]) -> None:
            loaded = [each for each in answers if isinstance(each, LoadedCells)]
            chunks = [checkpoint.entry(each.rows[0]) for each in loaded[: len(last.chunks)]]
            bases: dict[bytes, Version] = {}
            for (_, page), each in zip(loads, loaded[len(last.chunks) :], strict=True):
                bases.update(zip(page, map(loading.version_of, each.rows), strict=True))
            self._begin_from(hosted, plan, last, chunks, bases)

        self._ask_all(makers, then)

    def _in_pages(self, keys: list[bytes]) -> list[tuple[bytes, ...]]:
        assert self._store is not None
        size = self._store.page_cells
        return [tuple(keys[place : place + size]) for place in range(0, len(keys), size)]

    def _begin_from(
        self,
        hosted: Hosted,
        plan: taking_over.Plan,
        last: Checkpoint,
        chunks: list[bytes],
        bases: dict[bytes, Version],
    ) -> None:
        """With a store: what it has, and what is remembered beside it."""
        machine = self._make(self.host, hosted.log, ORACLE, self.catalogs.refresh_row)
        cells = machine.cells = StoredCells()
        cells.horizon, cells.stored_ts = last.horizon, last.stored.lowest
        machine.forgotten_ts = last.forgotten_ts
        for chunk in chunks:
            for tx_id, start, commit_ts in checkpoint.unpack_memory(chunk):
                if commit_ts:
                    machine.committed[tx_id] = (start, commit_ts)
                else:
                    machine.note_refusal((tx_id, start))
        machine.keep(last.also)
        machine.journal = Journal(last.stored, plan.kept)
        machine.bases = bases
        settings = self._store
        assert settings is not None
        saver = Saver(self.host, machine, hosted.log, hosted.incarnation, settings, last)
        loader = Loader(
            self.host, machine, settings, self._load, lambda sender, message: self._again(hosted, sender, message)
        )
        machine.must_load = lambda sender, message: not loader.may_pass(sender, message, self._now_ms)
        hosted.begin_saving(saver, loader, (last.segment, last.lsn), plan.kept, plan.origins)
        self._begin(hosted, plan, machine)

    def _begin(self, hosted: Hosted, plan: taking_over.Plan, machine: Participant | None = None) -> None:
        hosted.found.clear()
        if machine is None:
            machine = self._make(self.host, hosted.log, ORACLE, self.catalogs.refresh_row)
        machine.epoch = self.map.epoch
        if self.catalogs.version:
            machine.follow(self.catalogs.stored)
        hosted.begin(machine, len(plan.records))
        out = machine.start(self._now_ms, plan.records, hosted.incarnation)
        # Keys that went to others meanwhile.
        for key in [key for key in machine.cells.chains if self.map.owner(key) != hosted.log]:
            machine.cells.drop(key, key + b"\0")
        self.host.probe(TAKEN_OVER)
        self._carry_out(hosted, out)
        self._keep_to_catalog(hosted)

    # -- the store

    def _ask_store(self, make: Callable[[int], Request], then: Callable[[Answer], None], lsn: int = 0) -> None:
        """`then` gets the answer, however often it must be asked; never a failure."""
        self._number += 1
        request = make(self._number)
        self._asked[self._number] = _Asked(request, lsn, then, self._now_ms)
        self._send.append(WhenDurable(lsn, STORE, request))

    def _ask_all(self, makers: list[Callable[[int], Request]], then: Callable[[list[Answer]], None]) -> None:
        """`then` gets all answers, in the order of the requests."""
        answers: dict[int, Answer] = {}

        def answered(place: int, answer: Answer) -> None:
            answers[place] = answer
            if len(answers) == len(makers):
                then([answers[each] for each in range(len(makers))])

        if not makers:
            then([])
        for place, make in enumerate(makers):
            self._ask_store(make, partial(answered, place))

    def _from_store(self, answer: Answer) -> None:
        asked = self._asked.get(answer.number)
        if asked is None:
            return
        if isinstance(answer, StoreFailed):
            asked.sent_ms = self._now_ms - STORE_MS_MAX  # at the next tick
            return
        del self._asked[answer.number]
        asked.then(answer)

    def _ask_store_again(self) -> None:
        for asked in self._asked.values():
            if self._now_ms - asked.sent_ms >= STORE_MS_MAX:
                asked.sent_ms = self._now_ms
                self._send.append(WhenDurable(asked.lsn, STORE, asked.request))

    def _load(self, load: Load, then: Callable[[LoadedCells], None]) -> None:
        assert self._store is not None
        limit = self._store.page_cells

        def loaded(answer: Answer) -> None:
            assert isinstance(answer, LoadedCells)
            then(answer)

        self._ask_store(lambda number: load.request(number, limit), loaded)

    def _again(self, hosted: Hosted, sender: str, message: object) -> None:
        """A request waited for rows. It is handled as if it came now."""
        if self.hosted.get(hosted.log) is hosted:
            self._for_log(sender, ForLog(hosted.log, "", message))

    def _keep_house(self, hosted: Hosted) -> None:
        if self._store is None or hosted.saver is None or hosted.loader is None:
            return
        hosted.loader.forget_old(self._now_ms)
        if self._now_ms >= hosted.next_evict_ms:
            hosted.next_evict_ms = self._now_ms + self._store.evict_ms
            hosted.loader.evict()
        if self._knows_unfinished(hosted.saver.machine) and self._is_time_to_save(hosted, hosted.saver):
            hosted.next_save_ms = self._now_ms + self._store.checkpoint_ms
            self._save(hosted, hosted.saver)

    def _is_time_to_save(self, hosted: Hosted, saver: Saver) -> bool:
        is_due = self._now_ms >= hosted.next_save_ms or saver.machine.wanted_ts > 0
        return saver.target is None and hosted.open and is_due

    def _knows_unfinished(self, machine: Participant) -> bool:
        """Whether it is known which rows are not final yet. Of a view that is made at S, some may come at S: nothing of
        it goes to the store meanwhile, and nothing up to S before the view is known."""
        if self.catalogs.version < self.map.catalog:
            return False
        machine.unfinished = self.catalogs.unfinished()
        return True

    def _save(self, hosted: Hosted, saver: Saver) -> None:
        """Begin a checkpoint. Nothing leaves before what it shows is durable in the log."""
        if saver.begin(lambda own: hosted.replay_after(own, self.life, self._lsn), hosted.replay_from):
            self._save_next(hosted, saver, hosted.place(saver.machine.last_lsn))

    def _save_next(self, hosted: Hosted, saver: Saver, lsn: int) -> None:
        write = saver.next_write()
        if write is not None:
            self._ask_store(write, lambda answer: self._page_saved(hosted, saver, lsn), lsn)
            return
        replay_from = saver.saved()
        hosted.saved(saver.position, replay_from)
        self._trim_log()

    def _page_saved(self, hosted: Hosted, saver: Saver, lsn: int) -> None:
        self.host.probe(saving.PAGE_WRITTEN)
        self._save_next(hosted, saver, lsn)

    def _trim_log(self) -> None:
        """What no participant here needs for a replay."""
        needed = [lsn for hosted in self.hosted.values() if (lsn := hosted.needed_lsn(self.life))]
        self._trim = min(needed, default=0)

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
            incarnation, page = self._arriving.get(move.number, (0, 0))
            request = FetchRange(move.number, move.target, page, incarnation)
            self._send.append((self.map.process(move.source), request))

    def _fetch_range(self, sender: str, message: FetchRange) -> None:
        move = next((move for move in self.map.moves if move.number == message.number), None)
        if move is None:
            if message.number > self.map.epoch:
                self._behind()
            return
        source = self.hosted.get(move.source)
        if source is None or source.machine is None or self._is_held(source.machine, move):
            return
        if not self._is_flushed(source, source.machine, move):
            return
        self.host.probe(HANDING)
        if move.number not in self._handing:
            given = hand_over.give_away(source.machine, move.start, move.stop)
            given = given._replace(stored=self._flushed.get(move.number, (0, ())))
            self._handing[move.number] = hand_over.in_pages(given, self._page_items)
        pages = self._handing[move.number]
        page = message.page if message.incarnation == source.incarnation and message.page < len(pages) else 0
        lsn = source.place(source.machine.last_lsn)
        rows = RangeRows(move.number, source.incarnation, page, len(pages), *pages[page][:-1])
        self._send.append(WhenDurable(lsn, sender, rows))

    def _is_flushed(self, source: Hosted, machine: Participant, move: Move) -> bool:
        """With a store, all that is final goes there before the keys do; if it is not there yet, it is on its way."""
        cells, journal = machine.cells, machine.journal
        if self._store is None or move.number in self._flushed:
            return True
        if journal is None or not isinstance(cells, StoredCells) or move.number in self._flushing:
            return False
        if not self._knows_unfinished(machine):
            return False
        self._flushing.add(move.number)
        # Nobody changes anything there any more: all is final, but in deferred views.
        highest = max(machine.newest_ts, journal.highest_ts, journal.stored.ts)
        final = saving.final_to(machine, journal, highest)
        keys = tuple(cells.touched_between(move.start, move.stop))
        pages = Pages(cells, keys, final, self._store.page_cells)
        self._flush_next(move.number, pages, plain(final), source.place(machine.last_lsn))
        return False

    def _flush_next(self, number: int, pages: Pages, final: StoredTo, lsn: int) -> None:
        page = pages.next()
        if page is None:
            pages.written()
            self._flushed[number] = final
            self.host.probe(FLUSHED)
            return
        cells, notes = page
        self._ask_store(
            lambda request: WriteCells(request, cells, notes),
            lambda answer: self._flush_next(number, pages, final, lsn),
            lsn,
        )

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
        incarnation, page = self._arriving.get(move.number, (0, 0))
        if message.page == 0 and message.incarnation != incarnation:
            page = 0  # from the beginning: somebody else answers for the source
        elif (message.incarnation, message.page) != (incarnation, page):
            return
        adopted = Adopted(*message[4:], before=_stored_of(target))
        self._carry_out(target, target.machine.adopt(adopted, self._now_ms))
        self.host.probe(ADOPTING)
        self._arriving[move.number] = (message.incarnation, page + 1)
        if page + 1 < message.pages:
            self._fetch(move)
        else:
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
        for known in (self._adoptions, self._arriving, self._handing, self._flushed):
            known.pop(move.number, None)
        self._flushing.discard(move.number)
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
        if not self._is_admitted(hosted, hosted.machine, sender, message):
            return
        loader = hosted.loader
        if loader is not None and not from_log:
            if isinstance(message, _NEEDING_ROWS) and loader.is_full:
                self._refuse(hosted, hosted.machine, sender, message, TOO_MANY)
                return
            if not self._is_answered_from_memory(hosted.machine, message) and not loader.may_pass(
                sender, message, self._now_ms
            ):
                return
        self._carry_out(hosted, hosted.machine.receive(from_log or sender, message, self._now_ms))

    def _is_answered_from_memory(self, machine: Participant, message: object) -> bool:
        return isinstance(message, Prepare) and self._is_answered(machine, message)

    def _is_admitted(self, hosted: Hosted, machine: Participant, sender: str, message: object) -> bool:
        """Whether the participant gets it. What is refused is answered here, or asked again."""
        if not isinstance(message, _ABOUT_KEYS):
            return self._is_leased(machine.shows_up_to(message))
        if not hosted.open:
            return False
        if isinstance(message, _NEEDING_ROWS):
            self.load.note(message)
        if isinstance(message, Resolve):
            if not self.map.serves_keys(hosted.log, (message.key,)):
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
        return not isinstance(message, _READING) or self._may_read(hosted, message)

    def _is_ahead(self, message: Ask | Prepare | Read | ReadChanges) -> bool:
        """Only a map of that epoch says whether the keys are still here (rule T3)."""
        return message.epoch > self.map.epoch

    def _is_answered(self, machine: Participant, prepare: Prepare) -> bool:
        """The vote is in the log: it is only repeated, whoever owns the keys now."""
        part = machine.parts.get(prepare.attempt)
        return (part is not None and part.min_ts > 0) or prepare.attempt[0] in machine.committed

    def _why_refused(self, hosted: Hosted, machine: Participant, message: Ask | Prepare | Read | ReadChanges) -> str:
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
            keys = [key for key, _ in message.writes]
            keys += [key for key, _ in message.relied]
            keys += [refresh[1] for refresh in message.refreshes]
        else:
            keys, ranges = message.keys, message.ranges
        return "" if self._serves(hosted.log, keys, ranges) else MOVED

    def _is_of_old_term(self, message: Ask | Prepare | Read | ReadChanges) -> bool:
        """Drawn from an earlier leader, perhaps after the present one began: it may be too low. (0: a timestamp that
        was read at before.)"""
        given = isinstance(message, _READING)
        return 0 < message.epoch < self.map.term or (message.epoch == 0 and not given)

    def _serves(self, log: str, keys: Iterable[bytes], ranges: tuple[KeyRange, ...]) -> bool:
        ranges_map = self.map
        return ranges_map.serves_keys(log, keys) and all(ranges_map.serves(log, each[0], each[1]) for each in ranges)

    def _refuse(
        self,
        hosted: Hosted,
        machine: Participant,
        sender: str,
        message: Ask | Prepare | Read | ReadChanges,
        why: str,
    ) -> None:
        if isinstance(message, Ask):
            self._send.append((sender, Refused(message.attempt, why, self.map.epoch)))
        elif isinstance(message, Prepare):
            self._carry_out(hosted, machine.refuse_vote(sender, message.attempt, why, self._now_ms))
        else:
            self._send.append((sender, NotServed(message.number, self.map.epoch, why)))

    def _may_read(self, hosted: Hosted, read: Read | ReadChanges) -> bool:
        if not self._is_leased(read.at):
            return False
        self.host.note("answered", hosted.log, hosted.incarnation, read.at, read.keys, read.ranges)
        return True

    def _is_leased(self, at: int) -> bool:
        return at <= self.lease


def _load_entries(names: list[str]) -> Callable[[int], Request]:
    keys = tuple(checkpoint.entry_key(name) for name in names)
    return lambda number: LoadCells(number, NEWEST, keys)


def _load_bases(at: int, keys: tuple[bytes, ...]) -> Callable[[int], Request]:
    return lambda number: LoadCells(number, at, keys)


def _stored_of(target: Hosted) -> StoredTo:
    """Up to where the store has what the target had, when the checkpoint that is being made is done."""
    if target.saver is None:
        return 0, ()
    return plain(target.saver.target or target.saver.journal.stored)
