"""The leader: one of several candidates, elected in ZooKeeper. It issues timestamps and changes the range map. No I/O.

    FOLLOWING   another one leads, or nobody
    TAKING      elected: the next map begins a new *term*; no timestamps yet
    LEADING     every LTM of the map has adopted a map of this term, or lost what it answered for

A timestamp must be above all that were issued and used before. The one who led before may still issue some, not knowing
better: below its bound, which is in ZooKeeper, so the next leader begins above it; but too late, perhaps. LTMs refuse
those of an earlier term once they have adopted a map of this one, and this is why they are waited for. One that does
not answer loses its logs, but not before the earlier leader has noticed that it is none: it issues timestamps for
`LEASE_MS` after it asked ZooKeeper and was told that it leads, measured by its own clock, and no longer (rule T3).

What an LTM may answer without writing to its log, reads, ends with its lease, a timestamp below the bound. Before an
LTM loses its logs the leader goes past its lease: whoever takes over draws a floor above it (rule H3).

A change of the catalog takes two maps: with the first one the version is pending, with the second one it is open at S,
which is drawn when every LTM has said, by one epoch of the map, that nothing of earlier ones is undecided (rule C1).
Map and catalog are written together, so whoever leads next goes on where this one was.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...changetables.errors import ProgrammingError
from ...ltm.cluster import zk_messages as zk
from ...ltm.cluster.catalogs import Stored, tables_of
from ...ltm.cluster.keeper import Keeper
from ...ltm.cluster.messages import (
    BOUND,
    CATALOG,
    LEADER,
    LTMS,
    MAP,
    OTHER_BASE,
    SESSION_MS,
    UNFINISHED,
    CatalogChanged,
    ChangeCatalog,
    Done,
    FetchMap,
    Lease,
    Merge,
    MoveRange,
    NewMap,
    Report,
    Split,
    life_of,
)
from ...ltm.key_range import RangeMap, process_of
from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import Draw, Timestamps
from ..timestamps import MS_SHIFT, STEP, TimestampOracle
from .balancer import BALANCE, Balancer
from .partial_places import partial_ids, wanted_move

FOLLOWING, TAKING, LEADING = "following", "taking", "leading"

#: How often it looks after everything.
TICK_MS = 100
#: After a word from ZooKeeper that it leads, it issues timestamps for so long.
LEASE_MS = 1_000
#: By how much two clocks may disagree about such a time, when one of them is set.
CLOCK_MS_MAX = 600
#: An LTM that has not been heard of for so long loses its logs, whatever ZooKeeper says.
SILENT_MS_MAX = 3_000
#: The bound is so far ahead, and is moved when less than half of it is left.
BOUND_MS = 1_000
#: An LTM may answer so far ahead of the last timestamp; never beyond the bound.
LTM_LEASE_MS = 600
#: Timestamps in one answer, requests that wait for the bound, and commands that wait for the map.
DRAWN_MAX = 4_096
PARKED_MAX = 10_000
COMMANDS_MAX = 100

ELECTED = "leader: elected"
TERM_BEGUN = "leader: term begun"
LEADS = "leader: leads"
DROPPING = "leader: about to give logs to another LTM"
CLOSING = "leader: about to close keys"
OPENING = "leader: about to open keys"
PUBLISHED = "leader: map published"
PROBES = (ELECTED, TERM_BEGUN, LEADS, DROPPING, CLOSING, OPENING, PUBLISHED)
BALANCING = "leader: about to balance key ranges"
PLACING = "leader: about to move partial rows of a local view"
CATALOG_BEGUN = "leader: about to make a catalog pending"
CATALOG_CLEAN = "leader: about to open a catalog"
CATALOG_PUBLISHED = "leader: catalog published"
CATALOG_PROBES = (CATALOG_BEGUN, CATALOG_CLEAN, CATALOG_PUBLISHED)
CATALOG_RELEASED = "leader: about to open a catalog for writers"

Command = Split | Merge | MoveRange


class Leader:
    """`balancer`: key ranges are spread over the LTMs by what they have to do; None: by commands only."""

    def __init__(self, host: Host, balancer: Balancer | None = None) -> None:
        self.host = host
        self._balancer = balancer
        self.keeper = Keeper(SESSION_MS, (MAP, BOUND, LEADER, CATALOG), (LTMS,))
        self.state = FOLLOWING
        #: As it stands in ZooKeeper, written by this leader in this term; with the versions of both nodes.
        self.map = RangeMap(0, (b"",), ("",))
        self._map_version = 0
        self._bound = 0
        self._bound_version = 0
        #: The same of the catalog; the version is -1 as long as there is no node.
        self.catalog = Stored()
        self._catalog_version = -1
        self._oracle = TimestampOracle()
        self._lease_until_ms = 0
        self._elected_ms = 0
        #: A term that could not be begun is not begun again before.
        self._begin_at_ms = 0
        #: What is under way: at most one of each.
        self._creating = self._moving_bound = self._writing_map = False
        #: By life: the epoch it has reached, when it was heard of (or first seen), and its lease.
        self._reached: dict[str, int] = {}
        self._heard_ms: dict[str, int] = {}
        self._leases: dict[str, int] = {}
        #: Moves that can be opened, and the life that says so.
        self._ready: dict[int, str] = {}
        #: Logs whose earlier segments are not needed, and the life that says so.
        self._complete: dict[str, str] = {}
        self._parked: list[tuple[str, Draw]] = []
        self._commands: list[tuple[str, Command]] = []
        #: By life: the epoch in which nothing of earlier catalogs was undecided there.
        self._clean: dict[str, int] = {}
        #: Changes of the catalog, by number: who waits for the answer; and those that are not begun.
        self._changing: dict[int, str] = {}
        self._changes: list[ChangeCatalog] = []
        #: How what is unfinished ends: the next catalog, and why if it failed.
        self._ending: tuple[ChangeCatalog, tuple[str, str, str] | None] | None = None
        #: The version that is certain to stay.
        self._released = 0
        #: Counts terms: answers to what an earlier one asked mean nothing.
        self._terms = 0
        self._now_ms = 0
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        self.keeper.connect()
        self._timers.append((now_ms + TICK_MS, "tick"))
        return self._out()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        match message:
            case Draw():
                self._draw(sender, message)
            case Report():
                self._report(sender, message)
            case FetchMap(epoch):
                if self.state != FOLLOWING and epoch < self.map.epoch:
                    self._send.append((sender, NewMap(self.map.pack())))
            case Split() | Merge() | MoveRange():
                self._command(sender, message)
            case ChangeCatalog():
                self._change_catalog(sender, message)
            case _:
                assert sender == zk.ZOOKEEPER, f"unexpected message {message!r} from {sender}"
                self._from_zookeeper(message)
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a leader has no log: all it knows is in ZooKeeper")

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        self._timers.append((now_ms + TICK_MS, "tick"))
        if self.keeper.connected:
            self._look()
            if self.state != FOLLOWING:
                self._renew()
                self._extend_bound()
                self._act()
        return self._out()

    def _out(self) -> Outputs:
        self._send += self.keeper.send
        self.keeper.send.clear()
        out = Outputs((), tuple(self._send), tuple(self._timers))
        self._send, self._timers = [], []
        return out

    # -- the election

    def _from_zookeeper(self, message: object) -> None:
        keeper = self.keeper
        keeper.receive(message)
        if keeper.state == zk.LOST:
            self._step_down()
            self._creating = False
            keeper.nodes = dict.fromkeys(keeper.nodes)
            keeper.connect()
        elif keeper.connected:
            self._look()

    def _look(self) -> None:
        """Who leads?"""
        keeper = self.keeper
        node = keeper.nodes[LEADER]
        if node is not None and node.stat.owner == keeper.session:
            if self.state == FOLLOWING:
                self._begin_term()
        else:
            if self.state != FOLLOWING:
                self._step_down()
            if node is None and not self._creating:
                self._creating = True
                name = self.host.name.encode()
                keeper.ask(lambda number: zk.Create(number, LEADER, name, True), self._created)

    def _created(self, answer: zk.Answer) -> None:
        self._creating = False
        if not answer.error:
            self.host.probe(ELECTED)
        self.keeper.read(LEADER)

    def _begin_term(self) -> None:
        """The first map and bound of this term: whatever an earlier leader means to write fails from now on."""
        stored, bound, catalog = (self.keeper.nodes[path] for path in (MAP, BOUND, CATALOG))
        if stored is None or bound is None or self._writing_map or self._now_ms < self._begin_at_ms:
            return
        ranges = RangeMap.unpack(stored.data).led_anew()
        if ranges.catalog != (Stored.unpack(catalog.data).version if catalog is not None else 0):
            # They are written together: one of them was read before the other one changed, or not at all.
            return
        self._writing_map = True
        self._terms += 1
        term = self._terms
        elected_ms = self._now_ms
        before = int(bound.data)
        after = self._wanted_bound(before)
        writes: tuple[zk.Set, ...] = (
            zk.Set(0, MAP, ranges.pack(), stored.stat.version),
            zk.Set(0, BOUND, str(after).encode(), bound.stat.version),
        )
        if catalog is not None:
            # What is known of it may be old: then this fails.
            writes = (*writes, zk.Set(0, CATALOG, catalog.data, catalog.stat.version))

        def then(answer: zk.Answer) -> None:
            self._writing_map = False
            if answer.error or term != self._terms:
                # Not at once: what is lost with a connection is answered at once, again and again.
                self._begin_at_ms = self._now_ms + TICK_MS
                self._read_again()
                return
            self.state = TAKING
            if catalog is not None:
                self.catalog, self._catalog_version = Stored.unpack(catalog.data), catalog.stat.version + 1
            self._elected_ms = elected_ms
            self.map, self._map_version = ranges, stored.stat.version + 1
            self._bound, self._bound_version = after, bound.stat.version + 1
            self._oracle = TimestampOracle(self._first_ts(before))
            self.host.note("term", ranges.term)
            self.host.probe(TERM_BEGUN)
            self._renew()
            self._announce()
            self._act()

        self.keeper.ask(lambda number: zk.Multi(number, writes), then)

    def _first_ts(self, bound: int) -> int:
        """Everything that was ever issued is below it."""
        return bound

    def _step_down(self) -> None:
        self.state = FOLLOWING
        self._terms += 1
        self._lease_until_ms = 0
        self._moving_bound = self._writing_map = False
        for known in (self._reached, self._heard_ms, self._leases, self._ready, self._complete, self._clean):
            known.clear()
        self._parked.clear()
        # Who asked for a change of the catalog asks again, whoever leads.
        self._changing.clear()
        self._changes.clear()
        self._ending = None
        self._released = 0
        for sender, command in self._commands:
            self._send.append((sender, Done(command.number, "another one leads now")))
        self._commands.clear()

    def _renew(self) -> None:
        """Does ZooKeeper still take it for the leader? It did at some time after this was asked, if it says so. It is
        asked at every tick, however slow the answers are: they come in order."""
        asked_ms, term = self._now_ms, self._terms

        def then(answer: zk.Answer) -> None:
            if term == self._terms and answer.stat is not None and answer.stat.owner == self.keeper.session:
                self._lease_until_ms = max(self._lease_until_ms, asked_ms + LEASE_MS)
                self._answer_draws()

        self.keeper.ask(lambda number: zk.Get(number, LEADER), then)

    # -- timestamps

    def _wanted_bound(self, last: int) -> int:
        return max(self._now_ms << MS_SHIFT, last) + (BOUND_MS << MS_SHIFT)

    def _extend_bound(self) -> None:
        last = max(self._now_ms << MS_SHIFT, self._oracle.last)
        if self._moving_bound or self._bound - last > (BOUND_MS << MS_SHIFT) // 2:
            return
        self._moving_bound = True
        wanted, term = self._wanted_bound(self._oracle.last), self._terms

        def then(answer: zk.Answer) -> None:
            if term != self._terms:
                return
            self._moving_bound = False
            if answer.error:
                # Somebody else leads, or nobody knows whether it was done: begin again from what is stored.
                self._begin_again()
                return
            assert answer.stat is not None
            self._bound, self._bound_version = wanted, answer.stat.version
            self._answer_draws()

        data, version = str(wanted).encode(), self._bound_version
        self.keeper.ask(lambda number: zk.Set(number, BOUND, data, version), then)

    def _begin_again(self) -> None:
        self._step_down()
        self._read_again()

    def _read_again(self) -> None:
        for path in (MAP, BOUND, CATALOG):
            self.keeper.read(path)

    def _is_leased(self) -> bool:
        return self._now_ms < self._lease_until_ms

    def _draw(self, sender: str, draw: Draw) -> None:
        if self.state == LEADING and len(self._parked) < PARKED_MAX:
            self._parked.append((sender, draw))
            self._answer_draws()

    def _answer_draws(self) -> None:
        """Those that there is room for below the bound; the others wait until it has moved."""
        while self._parked:
            sender, draw = self._parked[0]
            drawn = self._drawn(draw)
            if drawn is None:
                self._extend_bound()
                return
            # After drawing: while a request waited, another one may have been elected (rule T3).
            if not self._is_leased():
                self._parked.clear()
                return
            del self._parked[0]
            self.host.note("issued", drawn.first, drawn.issued)
            self._send.append((sender, drawn))

    def _drawn(self, draw: Draw) -> Timestamps | None:
        wanted = max(1, min(draw.wanted, DRAWN_MAX))
        before = self._oracle.last
        first = self._oracle.draw(self._now_ms)
        last = first + (wanted - 1) * STEP
        if last + STEP > self._bound:
            self._oracle.last = before
            return None
        self._oracle.seen(last)
        return Timestamps(draw.number, first, wanted, self.map.epoch)

    # -- LTMs

    def _report(self, sender: str, report: Report) -> None:
        if self.state == FOLLOWING:
            return
        life = report.life
        self._reached[life] = max(self._reached.get(life, 0), report.epoch)
        self._heard_ms[life] = self._now_ms
        self._ready.update(dict.fromkeys(report.ready, life))
        if report.clean:
            self._clean[life] = report.epoch
        self._complete.update(dict.fromkeys(report.complete, life))
        if self._balancer is not None and report.load is not None:
            self._balancer.told(life, *report.load)
        if report.epoch < self.map.epoch:
            self._send.append((sender, NewMap(self.map.pack())))
        if self.state == LEADING and report.epoch >= self.map.term and self._leases.get(life) != 0:
            ahead = max(self._now_ms << MS_SHIFT, self._oracle.last) + (LTM_LEASE_MS << MS_SHIFT)
            self._leases[life] = max(self._leases.get(life, 0), min(ahead, self._bound - STEP))
            self._send.append((sender, Lease(life, self.map.term, self._leases[life])))
        self._act()

    def _alive(self) -> list[str]:
        """The lives that may answer for logs: they have a session, no later life, and say something."""
        children = self.keeper.children[LTMS] or ()
        lives = [life_of(child) for child in children]
        latest: dict[str, str] = {}
        for life in lives:
            known = latest.get(process_of(life))
            if known is None or _number_of(life) > _number_of(known):
                latest[process_of(life)] = life
        alive = []
        for life in latest.values():
            heard_ms = self._heard_ms.setdefault(life, self._now_ms)
            if self._now_ms - heard_ms < SILENT_MS_MAX:
                alive.append(life)
        return sorted(alive)

    # -- the map

    def _act(self) -> None:
        """Whatever is to be changed in the map now, all at once."""
        if self.keeper.children[LTMS] is None or self._writing_map or not self.keeper.connected:
            return
        alive = self._alive()
        ranges = self._forget_segments(self._end_moves(self.map))
        ranges = self._take_from_dead(ranges, alive)
        if self.state == TAKING and self._all_reached():
            self.state = LEADING
            self.host.probe(LEADS)
        commands: list[tuple[str, object]] = []
        if self.state == LEADING:
            ranges = self._give_logs(ranges, alive)
            if not self.catalog.pending:
                # Writers wait for the catalog: first things first.
                ranges = self._obey(ranges, commands)
        catalog = self.catalog
        if self.state == LEADING and ranges.epoch == self.map.epoch:
            ranges, catalog = self._next_catalog(ranges)
        if self.state == LEADING and ranges.epoch == self.map.epoch:
            ranges = self._place_partials(ranges, alive)
        if self.state == LEADING and ranges.epoch == self.map.epoch:
            ranges = self._balance(ranges, alive)
        if ranges.epoch != self.map.epoch:
            self._publish(ranges, commands, catalog)
        else:
            self._send += commands

    def _all_reached(self) -> bool:
        """Nobody who answers for a log takes timestamps of an earlier leader any more."""
        return all(self._reached.get(host.life, 0) >= self.map.term for host in self.map.hosts.values())

    def _end_moves(self, ranges: RangeMap) -> RangeMap:
        for move in ranges.moves:
            # Another life that took over from the one that said so has to fetch the keys itself.
            if self._ready.get(move.number) == ranges.hosts[move.target].life:
                self.host.probe(OPENING)
                ranges = ranges.end_move(move.number)
        return ranges

    def _forget_segments(self, ranges: RangeMap) -> RangeMap:
        for log, life in self._complete.items():
            host = ranges.hosts.get(log)
            if host is not None and host.life == life and len(host.segments) > 1:
                ranges = ranges.forget_segments(log)
        return ranges

    def _take_from_dead(self, ranges: RangeMap, alive: list[str]) -> RangeMap:
        for log, host in ranges.hosts.items():
            if host.life in alive or not self._may_drop(host.life):
                continue
            heirs = [life for life in alive if life not in host.segments]
            if not heirs:
                continue
            self.host.probe(DROPPING)
            self._pass_lease(host.life)
            ranges = ranges.host(log, min(heirs, key=lambda life: (_logs_of(ranges, life), life)))
        return ranges

    def _pass_lease(self, life: str) -> None:
        """Whatever it answers, or has answered, is below all timestamps from now on; and it gets no lease any more."""
        self._oracle.seen(self._leases.get(life, 0))
        self._leases[life] = 0

    def _may_drop(self, life: str) -> bool:
        """One that has not said that it refuses timestamps of the earlier leader may still answer them: that one must
        have noticed before."""
        if self._reached.get(life, 0) >= self.map.term:
            return True
        return self._now_ms - self._elected_ms > LEASE_MS + CLOCK_MS_MAX

    def _give_logs(self, ranges: RangeMap, alive: list[str]) -> RangeMap:
        """A process that answers for nothing gets a log, which keys can be moved to."""
        for life in alive:
            if not _logs_of(ranges, life) and life not in ranges.hosts:
                ranges = ranges.host(life, life)
        return ranges

    def _command(self, sender: str, command: Command) -> None:
        if self.state != LEADING or len(self._commands) >= COMMANDS_MAX:
            self._send.append((sender, Done(command.number, "it cannot be done here now")))
            return
        self._commands.append((sender, command))
        self._act()

    def _obey(self, ranges: RangeMap, answers: list[tuple[str, object]]) -> RangeMap:
        commands, self._commands = self._commands, []
        for sender, command in commands:
            try:
                match command:
                    case Split(_, at):
                        ranges = ranges.split(at)
                    case Merge(_, at):
                        ranges = ranges.merge(at)
                    case MoveRange(_, start, stop, target):
                        ranges = ranges.begin_move(start, stop or None, target)
                        self.host.probe(CLOSING)
            except ProgrammingError as error:
                answers.append((sender, Done(command.number, str(error))))
            else:
                answers.append((sender, Done(command.number)))
        return ranges

    def _place_partials(self, ranges: RangeMap, alive: list[str]) -> RangeMap:
        """Of local views. When the catalog is open: writers have nothing to wait for then."""
        wanted = None if self.catalog.pending else wanted_move(ranges, self._tables(), alive)
        if wanted is None:
            return ranges
        self.host.probe(PLACING)
        return ranges.begin_move(wanted.start, wanted.stop or None, wanted.target)

    def _tables(self) -> Tables | None:
        opened = self.catalog.opened
        return tables_of(opened[-1].data) if opened else None

    def _balance(self, ranges: RangeMap, alive: list[str]) -> RangeMap:
        """Only where nothing else is to be done."""
        if self._balancer is None:
            return ranges
        advice = self._balancer.advise(ranges, alive, self._now_ms, partial_ids(self._tables()))
        if advice is None:
            return ranges
        self.host.probe(BALANCING)
        self.host.note(BALANCE, advice)
        if isinstance(advice, Split):
            return ranges.split(advice.at)
        return ranges.begin_move(advice.start, advice.stop or None, advice.target)

    def _publish(self, ranges: RangeMap, answers: list[tuple[str, object]], catalog: Stored) -> None:
        self._writing_map = True
        term = self._terms
        changes_catalog = catalog is not self.catalog

        def then(answer: zk.Answer) -> None:
            if term != self._terms:
                return
            self._writing_map = False
            if answer.error:
                self._begin_again()
                return
            self.map, self._map_version = ranges, version + 1
            if changes_catalog:
                self.catalog, self._catalog_version = catalog, catalog_version + 1
                self.host.probe(CATALOG_PUBLISHED)
                self.host.note("catalog", catalog.pack())
                self._answer_changes()
            self.host.probe(PUBLISHED)
            self._send.extend(answers)
            self._announce()
            self._act()

        version, catalog_version = self._map_version, self._catalog_version
        write = zk.Set(0, MAP, ranges.pack(), version)
        if not changes_catalog:
            self.keeper.ask(lambda number: write._replace(request=number), then)
        elif catalog_version < 0:
            made = zk.Create(0, CATALOG, catalog.pack())
            self.keeper.ask(lambda number: zk.Multi(number, (write, made)), then)
        else:
            changed = zk.Set(0, CATALOG, catalog.pack(), catalog_version)
            self.keeper.ask(lambda number: zk.Multi(number, (write, changed)), then)

    # -- the catalog

    def _change_catalog(self, sender: str, change: ChangeCatalog) -> None:
        if self.state != LEADING:
            return  # who asks asks again
        known = next((done for done in self.catalog.done if done.number == change.number), None)
        if known is not None:
            self._send.append((sender, CatalogChanged(*known)))
            return
        entries = self.catalog.entries
        if change.number in self._changing or (entries and entries[-1].number == change.number):
            self._changing[change.number] = sender
        elif len(self._changes) < COMMANDS_MAX:
            self._changing[change.number] = sender
            self._changes.append(change)
            self._act()

    def _is_unfinished(self, catalog: Stored) -> bool:
        """Whether contents have to be made for the version that is about to be opened."""
        return False

    def _is_held(self, catalog: Stored) -> bool:
        """Whether it is not certain that the version stays which is about to be opened, as it will be then."""
        return False

    def _release(self) -> None:
        """The newest version stays."""
        self._released = self.catalog.version
        self._act()

    def _end_unfinished(self, change: ChangeCatalog, error: tuple[str, str, str] | None = None) -> None:
        """What is unfinished is done, or taken back because of an error."""
        if self.state == LEADING:
            self._ending = (change, error)
            self._act()

    def _why_not(self, change: ChangeCatalog) -> str:
        if change.base_version != self.catalog.version:
            return OTHER_BASE
        if self.catalog.unfinished:
            return UNFINISHED
        try:
            version = tables_of(change.data).catalog.version
        except Exception as error:  # whatever it is, it is wrong with what came from outside
            return f"the catalog cannot be used: {error!r}"
        return "" if version > change.base_version else "the version of a new catalog is higher than the one before"

    def _next_catalog(self, ranges: RangeMap) -> tuple[RangeMap, Stored]:
        """Open the version that is pending, or begin another one."""
        catalog = self.catalog
        if catalog.pending:
            ts = self._drawn_for_catalog() if self._all_clean() else 0
            if not ts:
                return ranges, catalog
            self.host.probe(CATALOG_CLEAN)
            opened = catalog.open(ts, self._is_unfinished(catalog))
            return ranges.with_catalog(catalog.version, ts, self._is_held(opened)), opened
        if self._ending is not None:
            change, error = self._ending
            self._ending = None
            if change.base_version == catalog.version:
                version = tables_of(change.data).catalog.version
                ended = catalog if error is None else catalog.fail(error)
                return ranges.with_catalog(version, 0), ended.begin(version, change.number, change.data)
        if ranges.catalog_held and self._released == catalog.version:
            self.host.probe(CATALOG_RELEASED)
            return ranges.released(), catalog
        while self._changes:
            change = self._changes.pop(0)
            why = self._why_not(change)
            if why:
                sender = self._changing.pop(change.number)
                self._send.append((sender, CatalogChanged(change.number, catalog.version, 0, why)))
                continue
            self.host.probe(CATALOG_BEGUN)
            version = tables_of(change.data).catalog.version
            return ranges.with_catalog(version, 0), catalog.begin(version, change.number, change.data)
        return ranges, catalog

    def _all_clean(self) -> bool:
        """Whoever takes over a log later has the map of this epoch, or a later one, and keeps to it."""
        return all(self._clean.get(host.life) == self.map.epoch for host in self.map.hosts.values())

    def _drawn_for_catalog(self) -> int:
        """S. If another one leads by now it is not published: the map has another version, then."""
        drawn = self._drawn(Draw(0, 1))
        if drawn is None:
            self._extend_bound()
            return 0
        self.host.note("issued", drawn.first, 1)
        return drawn.first

    def _answer_changes(self) -> None:
        if not self.catalog.pending:
            done = self.catalog.done[-1]
            sender = self._changing.pop(done.number, "")
            if sender:
                self._send.append((sender, CatalogChanged(*done)))

    def _announce(self) -> None:
        """LTMs hear of it from ZooKeeper, too; this is faster when that is slow."""
        data = self.map.pack()
        for process in sorted({host.process for host in self.map.hosts.values()}):
            self._send.append((process, NewMap(data)))


def _number_of(life: str) -> int:
    return int(life.rpartition("/")[2])


def _logs_of(ranges: RangeMap, life: str) -> int:
    return sum(host.life == life for host in ranges.hosts.values())
