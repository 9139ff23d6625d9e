"""One attempt at a transaction over several LTMs, seen from the coordinator: what to ask next, and what to decide.

ASKING      old rows and look-ups, until nothing more is wanted. New rows have no old ones: if a transaction only
            inserts, the first thing that is asked for is what they are joined with, and that there was no row is found
            out with the vote
VOTING      every participant has its part; from here on only the participants decide
DECIDED     all voted yes: committed at the highest min_ts; one refused for good: aborted
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from ...changetables.plan import Answers, Contribution
from ...changetables.types import Row
from ...ltm.key_range import RangeMap
from ...ltm.tables import IndexEntries, TableRows, Tables
from ...ltm.two_phase.holds import CONTRIBUTION, WRITE
from ...ltm.two_phase.messages import Ask, Attempt, FoundRows, KeyRange, NewRow, Prepare, Refresh, Told, TxId
from ...ltm.two_phase.pages import rest_of
from ..inserting import inserts_of
from ..transaction import ABSENT, Request, Transaction, is_shown
from .look_ups import Asking, Found, Wanted, look_up
from .messages import Submit
from .partials import placed
from .remembered import Remembered

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
        "_absent",
        "_asking",
        "_careful",
        "_map",
        "_memory",
        "_number",
        "_recalled",
        "_recalls",
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
        "relied",
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
        memory: Remembered | None = None,
        recalls: bool = False,
    ) -> None:
        """`members` are the other transactions that are run as one with it: their rows are in `submit`. `careful`: all
        is held before votes are asked for; an earlier attempt would have had to wait with its vote (rule H4), or found
        a row that is there already. What is told is put into `memory`; with `recalls`, what is there need not be asked
        for."""
        self.submit = submit
        self.members = members
        self._careful = careful
        self._memory = memory
        #: Rows that were not asked for: by key, the timestamp of the version and the row. It stays the same for the
        #: whole attempt, whatever is learned meanwhile: the vote is about one version of each.
        self.relied: dict[bytes, tuple[int, Row]] = {}
        #: Of what is looked up now, what is remembered: the rows, and the places of those that are asked for. None: all
        #: is asked for.
        self._recalled: list[tuple[list[Row | None], list[int]] | None] = []
        self._recalls = recalls and not careful and bool(memory)
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
        #: Whether it was taken for granted that there are no old rows: the participants see to it when they vote.
        self._absent = False
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
        """The old rows of everything that is written, and whether what was read at the snapshot still holds; of new
        rows, what they are joined with. Nothing to ask: `prepare`."""
        if self._only_inserts():
            asks = self._begin_without_old_rows()
            if asks is not None:
                return asks
        self._recalls = False
        keys = [key for _, intents in self.submit.writes for key, _ in intents]
        self._route = route = _Route([Wanted(keys, write=True)])
        seen: dict[str, tuple[list[bytes], list[KeyRange]]] = {}
        for key in self.submit.seen:
            seen.setdefault(self._map.owner(key), ([], []))[0].append(key)
        for each in self.submit.seen_ranges:
            for log, start, stop in self._map.owners(each[0], each[1]):
                seen.setdefault(log, ([], []))[1].append((start, stop, each[2], each[3]))
        return self._send(route, seen)

    def _only_inserts(self) -> bool:
        """Whether old rows, which there must not be, are all that the first questions would be about."""
        submit, tables = self.submit, self._tables.by_name
        if self._careful or submit.snapshot or not submit.writes:
            return False
        for name, intents in submit.writes:
            table = tables[name]
            if table.check is not None or table.table.uniques:
                return False
            for _, (expect, row, changes, touch) in intents:
                if expect != ABSENT or row is None or changes is not None or not touch:
                    return False
        return True

    def _begin_without_old_rows(self) -> list[tuple[str, Ask]] | None:
        """None: something is wrong with the transaction. What, it is told when the old rows are known."""
        request = self.transaction.request
        request.inserts_only = True
        asks: list[tuple[str, Ask]] = []
        try:
            if not self._take_in():
                self.transaction.old_rows({name: [None] * len(intents) for name, intents in request.writes.items()})
                asks = self._look_up_more(None)
        except Exception:  # whatever it is: it happens again then, and is told as what it is
            request.inserts_only = False
            self._begin_anew(request)
            return None
        self._absent = True
        return asks

    def _take_in(self) -> bool:
        """The common transaction, many of them run as one, in few steps: new rows of one table, whose views look up
        rows by key at the most, all of which are remembered. It leaves what the propagations of its views would, views
        perhaps in another order; False: it is not such a one, and nothing was done."""
        find = self._memory.find if self._memory is not None and self._recalls else _nothing
        if len(self.submit.writes) > 1:
            return False
        ((name, intents),) = self.transaction.request.writes.items()
        table = self._tables.by_name[name]
        views = inserts_of(table)
        if views is None or any(map(is_shown, table.views)):
            return False
        rows: list[Row] = [intent[1] for intent in intents.values()]  # type: ignore[misc]  # none of them is None
        relied: dict[bytes, tuple[int, Row]] = {}
        contributions: list[tuple[int, list[Contribution]]] = []
        for view_id, inserting in views:
            answers: list[list[Row]] = []
            wanted = inserting.ask(rows)
            if wanted is None:
                return False
            for looked_up, index, keys, _ in wanted:
                joined = self._tables.by_name.get(looked_up)
                known = list(map(find, keys))
                if index is not None or joined is None or not all(known):
                    return False
                relied.update(zip(keys, known, strict=True))  # type: ignore[arg-type]  # all of them are there
                answers.append([joined.whole(row) for _, row in known])  # type: ignore[misc]
            found = inserting.add(rows, answers)
            if found:
                contributions.append((view_id, found))
        transaction = self.transaction
        transaction.writes = [(table.table.id, [(key, None, intent[1]) for key, intent in intents.items()])]
        transaction.contributions = contributions
        self.relied = relied
        if self._tables.has_partials and contributions:
            self._place()
        return True

    def _begin_anew(self, request: Request) -> None:
        """Without what is remembered."""
        self._recalls = False
        self.transaction, self._asking = Transaction(request, self._tables, shows=True), None
        self.relied.clear()

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
        self._remember(route, log, ask, told)
        if len(told.rows) < len(keys) or len(told.ranges) < len(ranges) or told.more:
            return [(log, self._ask_for_rest(log, ask, told))]
        if self.waiting:
            return None
        asks = self._go_on(route) if route.wanted else []
        if not asks and self._careful:
            self._careful = False
            return self._hold_all()
        return asks

    def _remember(self, route: _Route, log: str, ask: Ask, told: Told) -> None:
        memory = self._memory
        if memory is None or not told.versions:
            return
        writes = len(ask.writes)
        places = route.places[log][0][writes:]
        for (want, _), key, row, ts in zip(places, ask.keys, told.rows[writes:], told.versions, strict=False):
            if row is not None and route.wanted[want].rows:
                memory.learn(key, ts, row)

    def _recall(self, wanted: list[Wanted]) -> list[Wanted]:
        """Find what is remembered; returns what has to be asked for."""
        memory, relied = self._memory, self.relied
        assert memory is not None
        remembered = memory.find
        asked: list[Wanted] = []
        self._recalled = []
        for each in wanted:
            if each.ranges or not each.rows:
                self._recalled.append(None)
                asked.append(each)
                continue
            rows: list[Row | None] = []
            missing: list[int] = []
            for place, key in enumerate(each.keys):
                known = relied.get(key) or remembered(key)
                if known is None:
                    missing.append(place)
                    rows.append(None)
                else:
                    relied[key] = known
                    rows.append(known[1])
            self._recalled.append((rows, missing))
            if missing:
                asked.append(each._replace(keys=[each.keys[place] for place in missing]))
        return asked

    def _with_recalled(self, found: list[Found]) -> list[Found]:
        """What was asked for, in its places among what is remembered."""
        told = iter(found)
        whole: list[Found] = []
        for each in self._recalled:
            if each is None:
                whole.append(next(told))
                continue
            rows, missing = each
            if missing:
                for place, row in zip(missing, next(told).rows, strict=True):
                    rows[place] = row
            whole.append(Found(rows))
        return whole

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
        for key, _ in chain(self._rows(), self._entries()):
            holds.setdefault(self._map.owner(key), []).append((key, WRITE))
        for _, key, _, _ in self._refreshes():
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
            return self._look_up_more(None)
        found = [
            Found(rows, [_joined(parts, wanted[2:]) for parts, wanted in zip(some, each.ranges, strict=True)])
            for (rows, some), each in zip(route.found, route.wanted, strict=True)
        ]
        return self._look_up_more(self._with_recalled(found) if self._recalls else found)

    def _look_up_more(self, found: list[Found] | None) -> list[tuple[str, Ask]]:
        """`found` is what was asked for last; None: nothing was."""
        transaction = self.transaction
        while True:
            if found is None:
                if not transaction.wanted:
                    if self._tables.has_partials and transaction.contributions:
                        self._place()
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
            if self._recalls:
                wanted = self._recall(wanted)
            self._route = _Route(wanted)
            asks = self._send(self._route, {})
            if asks:
                return asks
            # All of it is remembered, or nothing of it is anywhere: the answer is known.
            found = [Found((), ()) for _ in wanted]
            if self._recalls:
                found = self._with_recalled(found)

    def _place(self) -> None:
        """Contributions to local views go to who takes part anyway: first to those who own rows that are written."""
        owner, transaction = self._map.owner, self.transaction
        logs = dict.fromkeys(chain((owner(key) for key, _ in self._rows()), self.asked, map(owner, self.relied)))
        transaction.contributions = placed(transaction.contributions, self._tables, logs, owner)

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
        by_owner = self._map.by_owner
        writes = by_owner(self._rows())
        absent = {log: len(rows) for log, rows in writes.items()} if self._absent else {}
        for log, entries in by_owner(self._entries()).items():
            writes.setdefault(log, []).extend(entries)
        refreshes = by_owner(self._refreshes(), key_of=1)
        relied = by_owner([(key, ts) for key, (ts, _) in self.relied.items()])
        logs = self._list(writes, refreshes, relied)
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
                absent.get(log, 0),
                tuple(relied.get(log, ())),
            )
        return list(self.prepared.items())

    def _list(self, *parts: Iterable[str]) -> tuple[str, ...]:
        """All participants: whoever was asked for anything, and whoever gets something (rule V3)."""
        return tuple(dict.fromkeys(chain(self.asked, *parts)))

    def _rows(self) -> list[NewRow]:
        return [(key, new) for _, writes in self.transaction.writes for key, _, new in writes]

    def _refreshes(self) -> list[Refresh]:
        refreshes = [
            (view_id, key, key_values, delta)
            for view_id, contributions in self.transaction.contributions
            for key, key_values, delta in contributions
        ]
        refreshes += self.submit.refreshes
        return refreshes

    def _entries(self) -> list[NewRow]:
        """Every other cell that is written: the entries of indexes."""
        found: list[NewRow] = []
        for table_id, writes in self.transaction.writes:
            for entries in self._tables.by_id[table_id].indexes:
                found += entries_of(entries, writes)
        for name, shown in self.transaction.shown.items():
            for entries in self._tables.views[name].indexes:
                found += entries_of(entries, shown)
        found += self.submit.cells
        return found

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


def _nothing(key: bytes) -> None:
    """That is remembered."""


def _whole(table: TableRows, row: Row | None) -> Row | None:
    return None if row is None else table.whole(row)


def _joined(parts: Sequence[FoundRows], limit_and_last: tuple[int, bool]) -> FoundRows:
    """The rows of a range from all its owners."""
    rows = parts[0] if len(parts) == 1 else tuple(chain.from_iterable(sorted(parts, reverse=limit_and_last[1])))
    return rows[: limit_and_last[0]] if limit_and_last[0] else rows


def entries_of(entries: IndexEntries, writes: Iterable[tuple[bytes, Row | None, Row | None]]) -> list[NewRow]:
    """The cells of an index that change with some rows: each has the whole primary key. While an index is being made,
    also those that stay: whoever makes it finds rows that were changed meanwhile entered."""
    entry_of, ready = entries.codec.entry, entries.index.ready
    found: list[NewRow] = []
    for key, old, new in writes:
        if old is None:
            if new is not None:
                found.append((entry_of(new, key), (key,)))
            continue
        before = entry_of(old, key)
        after = None if new is None else entry_of(new, key)
        if before != after:
            found.append((before, None))
            if after is not None:
                found.append((after, (key,)))
        elif not ready:
            found.append((before, (key,)))
    return found
