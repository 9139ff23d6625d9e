"""One attempt at a transaction over several LTMs, seen from the coordinator: what to ask next, and what to decide.

ASKING      old rows and look-ups, until nothing more is wanted
VOTING      every participant has its part; from here on only the participants decide
DECIDED     all voted yes: committed at the highest min_ts; one refused for good: aborted
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from ...changetables.plan import Answers
from ...changetables.types import Row
from ...ltm.key_range import RangeMap
from ...ltm.tables import IndexEntries, TableRows, Tables
from ...ltm.two_phase.holds import CONTRIBUTION, WRITE
from ...ltm.two_phase.messages import Ask, Attempt, FoundRows, KeyRange, NewRow, Prepare, Refresh, Told, TxId
from ...ltm.two_phase.pages import rest_of
from ..transaction import Request, Transaction
from .look_ups import Asking, Found, Wanted, look_up
from .messages import Submit

ASKING, VOTING, DECIDED = "asking", "voting", "decided"


class _Route:
    """Where the keys and ranges of some wants went: the answers are put together again in their order."""

    __slots__ = ("found", "places", "wanted")

    def __init__(self, wanted: list[Wanted]) -> None:
        self.wanted = wanted
        #: By log: the places of its keys (want, number), and of its ranges (want, number).
        self.places: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        self.found: list[tuple[list[Row | None], list[list[FoundRows]]]] = [
            ([None] * len(each.keys), [[] for _ in each.ranges]) for each in wanted
        ]


class AttemptAt:
    """One attempt. Everything that raises an `Error` of the change tables ends it: the transaction cannot be done."""

    __slots__ = (
        "_asking",
        "_careful",
        "_map",
        "_number",
        "_route",
        "_tables",
        "asked",
        "attempt",
        "began_ms",
        "decided",
        "epoch",
        "incarnations",
        "members",
        "prepared",
        "priority",
        "resent",
        "settled",
        "start",
        "state",
        "submit",
        "transaction",
        "votes",
        "waiting",
    )

    def __init__(
        self,
        submit: Submit,
        start: int,
        priority: int,
        epoch: int,
        tables: Tables,
        ranges: RangeMap,
        now_ms: int,
        members: tuple[TxId, ...] = (),
        careful: bool = False,
    ) -> None:
        """`members` are the other transactions that are run as one with it: their rows are in `submit`. `careful`: all
        is held before votes are asked for; an earlier attempt would have had to wait with its vote (rule H4)."""
        self.submit = submit
        self.members = members
        self._careful = careful
        self.start = start
        self.attempt: Attempt = (submit.tx_id, start)
        self.priority = priority
        self.epoch = epoch
        self._tables = tables
        self._map = ranges
        self.state = ASKING
        self.began_ms = now_ms
        self.resent = 0
        request = Request(submit.tx_id)
        request.snapshot = submit.snapshot or None
        for name, intents in submit.writes:
            request.writes[name] = dict(intents)
        self.transaction = Transaction(request, tables, shows=True)
        self._number = 0
        #: Questions that are not answered yet, and every participant that was asked, with its incarnation.
        self.waiting: dict[str, Ask] = {}
        self.asked: dict[str, None] = {}
        self.incarnations: dict[str, int] = {}
        self._asking: Asking[Answers] | None = None
        self._route: _Route | None = None
        self.prepared: dict[str, Prepare] = {}
        self.votes: dict[str, int] = {}
        self.settled: set[str] = set()
        self.decided: int | None = None

    # -- asking

    def begin(self) -> list[tuple[str, Ask]]:
        """The old rows of everything that is written, and whether what was read at the snapshot still holds."""
        keys = [key for _, intents in self.submit.writes for key, _ in intents]
        self._route = route = _Route([Wanted(keys, write=True)])
        seen: dict[str, tuple[list[bytes], list[KeyRange]]] = {}
        for key in self.submit.seen:
            seen.setdefault(self._map.owner(key), ([], []))[0].append(key)
        for each in self.submit.seen_ranges:
            for log, start, stop in self._map.owners(each[0], each[1]):
                seen.setdefault(log, ([], []))[1].append((start, stop, each[2], each[3]))
        return self._send(route, seen)

    def told(self, log: str, told: Told) -> list[tuple[str, Ask]] | None:
        """An answer; returns what to ask next, None if others are still to answer. Nothing to ask: `prepare`."""
        ask = self.waiting.get(log)
        if ask is None or ask.number != told.number:
            return None
        del self.waiting[log]
        self.incarnations[log] = told.incarnation
        route = self._route
        assert route is not None
        keys, ranges = route.places[log]
        for (want, number), row in zip(keys, told.rows, strict=False):
            route.found[want][0][number] = row
        for (want, number), rows in zip(ranges, told.ranges, strict=False):
            route.found[want][1][number].append(rows)
        if len(told.rows) < len(keys) or len(told.ranges) < len(ranges) or told.more:
            return [(log, self._ask_for_rest(log, ask, told))]
        if self.waiting:
            return None
        asks = self._go_on(route) if route.wanted else []
        if not asks and self._careful:
            self._careful = False
            return self._hold_all()
        return asks

    def _ask_for_rest(self, log: str, ask: Ask, told: Told) -> Ask:
        """The answer was a page. What is held and has been checked stays so."""
        assert self._route is not None
        keys, range_places = self._route.places[log]
        answered, writes = len(told.rows), len(ask.writes)
        complete = len(told.ranges) - told.more
        ranges = ask.ranges[complete:]
        if told.more:
            found = told.ranges[-1]
            ranges = (rest_of(ranges[0], found[-1][0], len(found)), *ranges[1:])
        self._number += 1
        rest = Ask(
            self.attempt,
            self._number,
            self.priority,
            self.epoch,
            told.incarnation,
            ask.writes[answered:],
            ask.keys[max(0, answered - writes) :],
            ranges,
            members=self.members,
        )
        self.waiting[log] = rest
        self._route.places[log] = (keys[answered:], range_places[complete:])
        return rest

    def _hold_all(self) -> list[tuple[str, Ask]]:
        """Ask for every hold that the votes will need."""
        holds: dict[str, list[tuple[bytes, int]]] = {}
        for key, _ in self._cells():
            holds.setdefault(self._map.owner(key), []).append((key, WRITE))
        for key in self._refreshed():
            holds.setdefault(self._map.owner(key), []).append((key, CONTRIBUTION))
        self._route = route = _Route([])
        sent = []
        for log, some in holds.items():
            self._number += 1
            incarnation = self.incarnations.get(log, 0)
            ask = Ask(self.attempt, self._number, self.priority, self.epoch, incarnation, (), members=self.members)
            self.waiting[log] = ask = ask._replace(holds=tuple(some))
            self.asked[log] = None
            route.places[log] = ([], [])
            sent.append((log, ask))
        return sent

    def _refreshed(self) -> Iterable[bytes]:
        for _, contributions in self.transaction.contributions:
            for contribution in contributions:
                yield contribution.key
        for refresh in self.submit.refreshes:
            yield refresh[1]

    def _go_on(self, route: _Route) -> list[tuple[str, Ask]]:
        transaction = self.transaction
        if self._asking is None:
            rows = iter(route.found[0][0])
            transaction.old_rows(
                {
                    name: [_whole(self._tables.by_name[name], next(rows)) for _ in intents]
                    for name, intents in transaction.request.writes.items()
                }
            )
            found = None
        else:
            found = [
                Found(rows, [_joined(parts, wanted[2:]) for parts, wanted in zip(some, each.ranges, strict=True)])
                for (rows, some), each in zip(route.found, route.wanted, strict=True)
            ]
        while True:
            if found is None:
                if not transaction.wanted:
                    return []
                own = transaction.own_rows() if any(each.state for each in transaction.wanted) else {}
                self._asking = look_up(self._tables, transaction.wanted, own)
            assert self._asking is not None
            try:
                wanted = next(self._asking) if found is None else self._asking.send(found)
            except StopIteration as finished:
                transaction.looked_up(finished.value)
                found = None
                continue
            self._route = _Route(wanted)
            asks = self._send(self._route, {})
            if asks:
                return asks
            # Nothing of what was wanted is anywhere: the answer is known.
            found = [Found((), ()) for _ in wanted]

    def _send(self, route: _Route, seen: dict[str, tuple[list[bytes], list[KeyRange]]]) -> list[tuple[str, Ask]]:
        owner = self._map.owner
        #: By log: keys to write, keys to look up, ranges, and the places of all three.
        parts: dict[str, tuple[list[bytes], list[bytes], list[KeyRange]]] = {}
        write_places: dict[str, list[tuple[int, int]]] = {}
        key_places: dict[str, list[tuple[int, int]]] = {}
        range_places: dict[str, list[tuple[int, int]]] = {}
        for want, wanted in enumerate(route.wanted):
            places = write_places if wanted.write else key_places
            for number, key in enumerate(wanted.keys):
                log = owner(key)
                part = parts.get(log)
                if part is None:
                    part = parts[log] = ([], [], [])
                (part[0] if wanted.write else part[1]).append(key)
                places.setdefault(log, []).append((want, number))
            for number, (start, stop, limit, last) in enumerate(wanted.ranges):
                owners = list(self._map.owners(start, stop))
                for log, low, high in reversed(owners) if last else owners:
                    parts.setdefault(log, ([], [], []))[2].append((low, high, limit, last))
                    range_places.setdefault(log, []).append((want, number))
        sent = []
        for log in dict.fromkeys([*parts, *seen]):
            writes, keys, ranges = parts.get(log, ([], [], []))
            seen_keys, seen_ranges = seen.get(log, ([], []))
            self._number += 1
            ask = Ask(
                self.attempt,
                self._number,
                self.priority,
                self.epoch,
                self.incarnations.get(log, 0),
                tuple(writes),
                tuple(keys),
                tuple(ranges),
                self.submit.snapshot,
                tuple(seen_keys),
                tuple(seen_ranges),
                self.members,
            )
            self.waiting[log] = ask
            self.asked[log] = None
            route.places[log] = (
                write_places.get(log, []) + key_places.get(log, []),
                range_places.get(log, []),
            )
            sent.append((log, ask))
        return sent

    # -- voting

    def prepare(self) -> list[tuple[str, Prepare]]:
        """Nothing more to ask. The part of every participant: also of those that only answered look-ups (rule V3)."""
        owner = self._map.owner
        writes: dict[str, list[NewRow]] = {}
        refreshes: dict[str, list[Refresh]] = {}
        for key, row in self._cells():
            writes.setdefault(owner(key), []).append((key, row))
        for view_id, contributions in self.transaction.contributions:
            for key, key_values, delta in contributions:
                refreshes.setdefault(owner(key), []).append((view_id, key, key_values, delta))
        for refresh in self.submit.refreshes:
            refreshes.setdefault(owner(refresh[1]), []).append(refresh)
        logs = self._list(writes, refreshes)
        version = self._tables.catalog.version
        self.state = VOTING
        for log in logs:
            self.prepared[log] = Prepare(
                self.attempt,
                self.priority,
                self.epoch,
                self.incarnations.get(log, 0),
                version,
                logs,
                tuple(writes.get(log, ())),
                tuple(refreshes.get(log, ())),
                self.submit.at,
                self.members,
            )
        return list(self.prepared.items())

    def _list(self, *parts: Iterable[str]) -> tuple[str, ...]:
        """All participants: whoever was asked for anything, and whoever gets something (rule V3)."""
        return tuple(dict.fromkeys(chain(self.asked, *parts)))

    def _cells(self) -> Iterable[NewRow]:
        """Every cell that is written: rows and the entries of their indexes."""
        for table_id, writes in self.transaction.writes:
            table = self._tables.by_id[table_id]
            for key, _, new in writes:
                yield key, new
            for entries in table.indexes:
                yield from entries_of(entries, writes)
        for name, shown in self.transaction.shown.items():
            for entries in self._tables.views[name].indexes:
                yield from entries_of(entries, shown)
        yield from self.submit.cells

    def vote(self, log: str, min_ts: int) -> bool:
        """A vote; True if it decides."""
        if self.state != VOTING or log not in self.prepared:
            return False
        if not min_ts:
            self.state, self.decided = DECIDED, 0
            return True
        self.votes[log] = min_ts
        if len(self.votes) < len(self.prepared):
            return False
        self.state, self.decided = DECIDED, max(self.votes.values())
        return True

    def end(self, commit_ts: int) -> None:
        """Somebody knows the decision."""
        self.state, self.decided = DECIDED, commit_ts


def _whole(table: TableRows, row: Row | None) -> Row | None:
    return None if row is None else table.whole(row)


def _joined(parts: Sequence[FoundRows], limit_and_last: tuple[int, bool]) -> FoundRows:
    """The rows of a range from all its owners."""
    rows = parts[0] if len(parts) == 1 else tuple(chain.from_iterable(sorted(parts, reverse=limit_and_last[1])))
    return rows[: limit_and_last[0]] if limit_and_last[0] else rows


def entries_of(entries: IndexEntries, writes: Iterable[tuple[bytes, Row | None, Row | None]]) -> Iterable[NewRow]:
    """The cells of an index that change with some rows: each has the whole primary key. While an index is being made,
    also those that stay: whoever makes it finds rows that were changed meanwhile entered."""
    entry_of, ready = entries.codec.entry, entries.index.ready
    for key, old, new in writes:
        before = None if old is None else entry_of(old, key)
        after = None if new is None else entry_of(new, key)
        if before != after:
            if before is not None:
                yield before, None
            if after is not None:
                yield after, (key,)
        elif after is not None and not ready:
            yield after, (key,)
