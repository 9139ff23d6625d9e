"""The change feed of a view: its own change tables, in order, from any place that the log still has.

    V(since) = V(now) - Σ contributions above `since`          a view is a sum, so it can be taken back
    □V       = what V shows after a commit or step - before it

The log has contributions, not what a view shows: that follows from the sums, the ends of the hidden (group, value)
views that minima and maxima are read from, and the order of rows. So it is read twice. The first time, the
contributions to each key are added up, and the states at `since` are found from those of now; the second time they are
added one commit after another, and what is shown before and after each is compared.

A synchronous view changes with every commit that contributes to it, a deferred one with every step that was published:
then all contributions of its slots count, at W1. Steps that are open or were dropped do not count. A view that was
switched has both, one after the other.

Memory: the states of the keys that changed since then, and of one step the contributions. Nothing is held between two
rounds: no snapshot, no log records. What the log has not any more is an error, never a gap.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ..changetables.errors import OperationalError, ProgrammingError
from ..changetables.keys import table_range
from ..changetables.operators.project import net_exactly
from ..changetables.operators.slice import sliced
from ..changetables.plan import Contribution
from ..changetables.types import Row, Value
from ..ltm.catalog import View
from ..ltm.driver import Ltm
from ..ltm.outputs import CommitRecord
from ..ltm.reading import NEWEST
from ..ltm.steps import Dropped, Opened, Published, Refreshed, StepId
from ..ltm.tables import ViewRows
from .embedded import Engine

#: Its readers have numbers of their own.
_READER = -(1 << 52)
_readers = itertools.count(1)

T = TypeVar("T")

#: The view itself, and after it the hidden views that its minima and maxima are read from.
_VIEW = 0
#: Contributions to the view or to one of those hidden views.
_Part: TypeAlias = tuple[int, list[Contribution]]
#: Rows and how often they are there; negative: how often they are taken away.
SignedRows: TypeAlias = list[tuple[Row, int]]


class Change(NamedTuple):
    """One change table: `ts` is the commit_ts, or the W1 of a step."""

    ts: int
    rows: SignedRows


class Place(NamedTuple):
    """Everything above `ts` comes after `lsn` in the log."""

    ts: int
    lsn: int


class Feed:
    """Reads the change tables of one view. `ts`: everything up to it was given."""

    def __init__(self, engine: Engine, view: ViewRows, since: int | None) -> None:
        self._engine, self._ltm = engine, engine.ltm
        self._id, self._name = view.view.id, view.view.name
        #: None: still to be looked for.
        self._place: Place | None = None
        #: The view as the last round found it.
        self._seen: View | None = None
        if since is None:
            with self._ltm.lock:
                since = self.view().versions.horizon.durable_ts
        self.ts = since

    def has_news(self) -> bool:
        """Whether a round may give something: cheap, to be asked again and again. If nothing happened to the view, the
        place in the log moves on: what is passed need not be kept."""
        last_lsn, view = self._ltm.last_lsn, self.view()
        now = view.versions.horizon.durable_ts
        if now <= self.ts:
            return False
        # What changes a view is noted there before it comes into the log. What happened before this process is not.
        if self._place is None or view.view is not self._seen or _changed_ts(view) > self._place.ts:
            return True
        position: int | None = last_lsn
        if view.view.deferred:
            # A step that is open is in the log from its beginning, and noted there when its first slot is in.
            position = self._ltm.positions.get(self._id)
        if position is not None:
            self.ts, self._place = now, Place(now, min(position, last_lsn))
        return False

    def view(self) -> ViewRows:
        """As it is now."""
        view = self._ltm.tables.views_by_id.get(self._id)
        if view is None:
            raise ProgrammingError(f"view {self._name!r} was dropped", hint="its changes are gone with it")
        return view

    def round(self) -> Iterator[Change]:
        """What changed until now. Afterwards `ts` is there."""
        round_ = _Round(self._ltm, self.view(), self.ts, self._place)
        try:
            for change in round_.run():
                self.ts = change.ts
                yield change
        except OperationalError as error:
            if round_.is_trimmed:
                raise too_old(self._ltm, f"view {self._name!r}", self.ts, round_.at) from error
            raise
        self.ts, self._place, self._seen = max(self.ts, round_.at), round_.next_place, round_.view.view


def _changed_ts(view: ViewRows) -> int:
    return max([view.versions.changed_ts, *(values.versions.changed_ts for values in view.values)])


class _Round:
    """From one place to now."""

    def __init__(self, ltm: Ltm, view: ViewRows, since: int, place: Place | None) -> None:
        self._ltm, self.view, self._since = ltm, view, since
        self._start_lsn = None if place is None else place.lsn
        self.at = since
        self.next_place = place

    @property
    def is_trimmed(self) -> bool:
        """Whether the log lost meanwhile what is being read."""
        return self._start_lsn is not None and self._ltm.was_trimmed(self._start_lsn)

    def run(self) -> Iterator[Change]:
        ltm, reader = self._ltm, _READER - next(_readers)
        with ltm.lock:
            # Together: the log up to this place has exactly what the view shows at that timestamp, and open steps.
            view = self.view = ltm.tables.views_by_id.get(self.view.view.id, self.view)
            self.at, last_lsn = view.versions.horizon.pin(reader), ltm.last_lsn
        try:
            if self.at <= self._since:
                return
            start_lsn = self._start_lsn = self._start()
            log = _Log(ltm, view, start_lsn, last_lsn)
            shown = self._shown_at_start(log)
        finally:
            ltm.horizon.unpin(reader)
        if shown is not None:
            for ts, parts in log.events(self._since, self.at):
                rows = shown.change(parts)
                if rows:
                    yield Change(ts, rows)
        self.next_place = Place(self.at, log.next_lsn)

    def _start(self) -> int:
        view = self.view.view
        if self._since < view.ready_ts:
            raise OperationalError(
                f"view {view.name!r} was created after that token (at {view.ready_ts}, the token is at {self._since})",
                hint="read it with rows() and go on from the token of that result",
            )
        if self._start_lsn is not None:
            return self._start_lsn
        start_lsn = self._ltm.place_before(self._since)
        if start_lsn is None:
            raise too_old(self._ltm, f"view {view.name!r}", self._since, self.at)
        return start_lsn

    def _shown_at_start(self, log: _Log) -> _Shown | None:
        """What the view shows at the start of the keys that change until now; None if none does."""
        ltm, view, at = self._ltm, self.view, self.at
        nets: list[dict[bytes, tuple[Row, Contribution | None]]] = [{} for _ in range(1 + len(log.values))]
        plans = [view.plan, *(values.plan for values in log.values)]
        for _, parts in log.events(self._since, at):
            for slot, contributions in parts:
                net, combine = nets[slot], plans[slot].combine
                for item in contributions:
                    known = net.get(item.key)
                    before = None if known is None else known[1]
                    net[item.key] = (item.key_values, item if before is None else combine(before, item))
        if not any(nets):
            return None
        values = [
            _Values(view, each, _states_at_start(ltm, each, at, net))
            for each, net in zip(log.values, nets[1:], strict=True)
        ]
        for each in values:
            for key, group in each.groups.items():
                nets[_VIEW].setdefault(key, (group, None))
        groups = {key: key_values for key, (key_values, _) in nets[_VIEW].items()}
        for number, extreme in enumerate(view.plan.extremes):
            values[log.slots[number] - 1].look_at_ends(ltm, number, extreme.last, groups, at)
        states = _states_at_start(ltm, view, at, nets[_VIEW])
        ends = [(values[slot - 1], each.last) for slot, each in zip(log.slots, view.plan.extremes, strict=True)]
        return _Shown(view, states, values, ends, _top_of(ltm, view, states, at))


class _State(NamedTuple):
    """What is stored under a key, and the values that the key was made of."""

    key_values: Row
    row: Row | None


def _states_at_start(
    ltm: Ltm, view: ViewRows, at: int, net: Mapping[bytes, tuple[Row, Contribution | None]]
) -> dict[bytes, _State]:
    """By key: what was stored before all these contributions."""
    plan = view.plan
    states: dict[bytes, _State] = {}
    for key, (key_values, total) in net.items():
        state = ltm.read(view.versions, key, at)
        states[key] = _State(key_values, state if total is None else plan.refresh(state, plan.negate(total)))
    return states


# --- the log ---


@dataclass(slots=True)
class _Open:
    """A step that is not yet published, or a repair above the watermark."""

    lsn: int
    parts: list[tuple[int, list[Contribution]]] = field(default_factory=list)


class _Time(NamedTuple):
    """`slots`: by the id of a view, where its contributions count."""

    until: int
    deferred: bool
    slots: dict[int, int]


class _Log:
    """A part of the commit log as the events that change one view. It can be read again and again."""

    def __init__(self, ltm: Ltm, view: ViewRows, start_lsn: int, last_lsn: int) -> None:
        self._ltm, self._view = ltm, view
        self._start_lsn, self._last_lsn = start_lsn, last_lsn
        #: The hidden views of (group, value), each once, and for each extreme where its one stands (from 1 on).
        self.values = list({values.view.id: values for values in view.values}.values())
        places = {values.view.id: place for place, values in enumerate(self.values, 1)}
        self.slots = [places[values.view.id] for values in view.values]
        #: How the view was refreshed, and from which hidden views it was made, until when.
        self._times = [_Time(each.until, each.deferred, self._slots_by_id(each.values)) for each in view.view.earlier]
        now = self._slots_by_id([values.view.id for values in view.values])
        self._times.append(_Time(NEWEST, view.view.deferred, now))
        self._ids = frozenset(itertools.chain(*(time.slots for time in self._times)))
        #: Where to go on reading, once it was read to the end.
        self.next_lsn = last_lsn

    def _slots_by_id(self, values_ids: Iterable[int]) -> dict[int, int]:
        return {self._view.view.id: _VIEW, **dict(zip(values_ids, self.slots, strict=True))}

    def events(self, since: int, up_to: int) -> Iterator[tuple[int, list[_Part]]]:
        """What contributes to the view at timestamps of since < ts <= up_to, in their order."""
        view_id = self._view.view.id
        steps: dict[StepId, _Open] = {}
        #: Repairs of a deferred view, by commit_ts: they are seen when its watermark gets there.
        waiting: dict[int, _Open] = {}
        for lsn, record in self._ltm.read_contributions(self._start_lsn, self._last_lsn, self._ids):
            match record:
                case CommitRecord(commit_ts=ts):
                    if ts > since:
                        waiting[ts] = _Open(lsn, [*record.contributions])
                        if not self._time(ts).deferred:
                            yield from self._due(waiting, min(ts, up_to))
                case Opened():
                    if view_id in record.views and record.w1 > since:
                        steps[record.id] = _Open(lsn)
                case Refreshed():
                    if record.step in steps:
                        steps[record.step].parts += record.contributions
                case Dropped():
                    steps.pop((record.views[0], record.w1), None)
                case Published():
                    if view_id not in record.views or not since < record.w1 <= up_to:
                        continue
                    if record.stored_lsn:
                        raise self._batch(record)
                    yield from self._due(waiting, record.w1)
                    step = steps.pop((record.views[0], record.w1), None)
                    if step is not None:
                        yield record.w1, self._parts(record.w1, step)
        yield from self._due(waiting, up_to)
        self.next_lsn = min([self._last_lsn, *(each.lsn - 1 for each in (*steps.values(), *waiting.values()))])

    def _due(self, waiting: dict[int, _Open], up_to: int) -> Iterator[tuple[int, list[_Part]]]:
        for ts in [ts for ts in waiting if ts <= up_to]:
            yield ts, self._parts(ts, waiting.pop(ts))

    def _time(self, ts: int) -> _Time:
        return next(time for time in self._times if ts < time.until)

    def _parts(self, ts: int, found: _Open) -> list[_Part]:
        """The contributions that count at a timestamp, with the keys that they have now."""
        slots = self._time(ts).slots
        parts = []
        for view_id, contributions in found.parts:
            slot = slots.get(view_id)
            if slot is None:
                continue  # a hidden view that the view is made from at another time
            if slot != _VIEW and self.values[slot - 1].view.id != view_id:
                encode = self.values[slot - 1].plan.keys.encode_short
                contributions = [item._replace(key=encode(item.key_values)) for item in contributions]
            parts.append((slot, contributions))
        return parts

    def _batch(self, record: Published) -> OperationalError:
        return OperationalError(
            f"view {self._view.view.name!r} was refreshed by a batch at {record.w1}: what changed row by row before "
            "that is not known",
            hint="read it with rows() and go on from the token of that result; the oldest token that works is "
            f"Token({record.w1})",
        )


def too_old(ltm: Ltm, what: str, since: int, at: int) -> OperationalError:
    oldest = ltm.oldest_ts()
    return OperationalError(
        f"the changes of {what} since {since} are not in the log any more",
        hint=f"the oldest token that works is Token({at if oldest is None else oldest}); read all of it and "
        "go on from the token of that result, and keep more with connect(..., history=, history_bytes=)",
    )


# --- what the view shows ---


class _Sorted(Generic[T]):
    """Something under keys, in their order."""

    __slots__ = ("_items", "keys")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self._items: dict[bytes, T] = {}

    def put(self, key: bytes, item: T) -> None:
        if key not in self._items:
            insort(self.keys, key)
        self._items[key] = item

    def remove(self, key: bytes) -> None:
        if self._items.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def __getitem__(self, key: bytes) -> T:
        return self._items[key]

    def __iter__(self) -> Iterator[tuple[bytes, T]]:
        return ((key, self._items[key]) for key in self.keys)


class _Values:
    """The values of the groups that change, in a hidden view of (group, value). Of values that stay as they are only
    the ends are known, which is all that is asked for. A group is known by the key that it has in the view."""

    def __init__(self, view: ViewRows, values: ViewRows, states: dict[bytes, _State]) -> None:
        self._view, self._values = view, values
        self._encode_group = view.plan.keys.encode_short
        self._encode_whole = values.plan.keys.encode
        self._group_columns = len(view.plan.key_columns)
        self._rows = {key: state.row for key, state in states.items()}
        self.groups: dict[bytes, Row] = {}
        #: The keys of each group that change, and the values that are there under them.
        self._changing: dict[bytes, dict[bytes, Row | None]] = {}
        self._there: dict[bytes, _Sorted[Row]] = {}
        self._ends: dict[tuple[bytes, bool], tuple[bytes, Value] | None] = {}
        for key, (key_values, row) in states.items():
            group = self._group_of(key_values)
            self.groups[group] = key_values[: self._group_columns]
            self._changing.setdefault(group, {})[key] = None
            self._show(group, key_values, row)

    def _group_of(self, key_values: Row) -> bytes:
        return self._encode_group(key_values[: self._group_columns])

    def groups_of(self, contributions: list[Contribution]) -> list[bytes]:
        return [self._group_of(item.key_values) for item in contributions]

    def look_at_ends(self, ltm: Ltm, number: int, last: bool, groups: Mapping[bytes, Row], at: int) -> None:
        """Find the ends of what stays as it is, for an extreme of the view."""
        for key, group in groups.items():
            prefix = self._view.plan.extreme_prefix(number, group)
            value = ltm.extreme(self._values, prefix, at, last, self._changing.get(key, {}))
            self._ends[key, last] = None if value is None else (self._encode_whole((*group, value)), value)

    def add(self, contributions: list[Contribution], groups: list[bytes]) -> None:
        refresh = self._values.plan.refresh
        for item, group in zip(contributions, groups, strict=True):
            row = self._rows[item.key] = refresh(self._rows[item.key], item)
            self._show(group, item.key_values, row)

    def _show(self, group: bytes, key_values: Row, row: Row | None) -> None:
        there = self._there.get(group)
        if there is None:
            there = self._there[group] = _Sorted()
        shown, whole = self._values.plan.source_row(row), self._encode_whole(key_values)
        if shown is None:
            there.remove(whole)
        else:
            there.put(whole, shown)

    def end(self, group: bytes, last: bool) -> Value:
        """The first or last value of a group, None if it has none."""
        end, there = self._ends[group, last], self._there.get(group)
        if there is None or not there.keys:
            return None if end is None else end[1]
        key = there.keys[-1 if last else 0]
        if end is not None and (key < end[0] if last else key > end[0]):
            return end[1]
        return there[key][-1]


class _Top:
    """The first rows of a view that is kept in order. Of rows that stay as they are, so many are known as can be among
    the first."""

    def __init__(self, view: ViewRows, limit: int, offset: int, staying: list[tuple[bytes, tuple[Row, int]]]) -> None:
        self._plan = view.plan
        self._limit, self._offset = limit, offset
        self._staying = staying
        self._there: _Sorted[tuple[Row, int]] = _Sorted()
        #: The first rows, until one of them changes; None: that has happened. And the last of them, if no more fit.
        self._shown: SignedRows | None = None
        self._last: bytes | None = None

    def replace(self, old: Row | None, new: Row | None) -> None:
        plan = self._plan
        if old is not None:
            self._there.remove(self._changed(old))
        if new is not None and plan.multiplicity(new):
            self._there.put(self._changed(new), (plan.output(new), plan.multiplicity(new)))

    def _changed(self, row: Row) -> bytes:
        key = self._plan.whole_key(row)
        if self._last is None or key <= self._last:
            self._shown = None
        return key

    def shown(self) -> SignedRows:
        """The same list, as long as nothing in it changes."""
        if self._shown is None:
            self._shown = self._first_rows()
        return self._shown

    def _first_rows(self) -> SignedRows:
        wanted = self._offset + self._limit
        found: SignedRows = []
        counted = 0
        self._last = None
        for key, (row, times) in heapq.merge(self._staying, self._there, key=itemgetter(0)):
            if counted < wanted:
                found.append((row, times))
                counted += times
            if counted >= wanted:
                self._last = key
                break
        return sliced(found, self._limit, self._offset)


def _top_of(ltm: Ltm, view: ViewRows, states: dict[bytes, _State], at: int) -> _Top | None:
    """None: the view shows all its rows."""
    plan = view.plan
    limit, offset = plan.kept.limit, plan.kept.offset
    if plan.kept.kind != "ordered" or limit is None:
        return None
    wanted = offset + limit
    staying: list[tuple[bytes, tuple[Row, int]]] = []
    counted = 0
    for key, row in ltm.states(view, *table_range(view.view.id), at):
        if counted >= wanted:
            break
        times = 0 if key in states else plan.multiplicity(row)
        if times:
            staying.append((plan.whole_key(row), (plan.output(row), times)))
            counted += times
    top = _Top(view, limit, offset, staying)
    for state in states.values():
        top.replace(None, state.row)
    return top


class _Shown:
    """What a view shows of the keys that change, from one commit to the next."""

    def __init__(
        self,
        view: ViewRows,
        states: dict[bytes, _State],
        values: list[_Values],
        ends: list[tuple[_Values, bool]],
        top: _Top | None,
    ) -> None:
        self._plan = view.plan
        self._states = {key: state.row for key, state in states.items()}
        self._values, self._ends, self._top = values, ends, top

    def change(self, parts: list[_Part]) -> SignedRows:
        """Add contributions; returns the rows that come in (+) and leave (-)."""
        groups = [[] if slot == _VIEW else self._values[slot - 1].groups_of(items) for slot, items in parts]
        keys = dict.fromkeys(item.key for slot, items in parts if slot == _VIEW for item in items)
        keys.update((key, None) for some in groups for key in some)
        before = self._rows(keys)
        for (slot, items), of in zip(parts, groups, strict=True):
            if slot == _VIEW:
                self._add(items)
            else:
                self._values[slot - 1].add(items, of)
        after = self._rows(keys)
        if before is after:
            return []  # the first rows are the same as before
        return net_exactly([*((row, -times) for row, times in before), *after])

    def _add(self, contributions: list[Contribution]) -> None:
        refresh, states, top = self._plan.refresh, self._states, self._top
        for item in contributions:
            old = states[item.key]
            new = states[item.key] = refresh(old, item)
            if top is not None:
                top.replace(old, new)

    def _rows(self, keys: Iterable[bytes]) -> SignedRows:
        return self._rows_of(keys) if self._top is None else self._top.shown()

    def _rows_of(self, keys: Iterable[bytes]) -> SignedRows:
        plan, found = self._plan, []
        for key in keys:
            state = self._states.get(key)
            if state is None and not plan.always:
                continue
            extremes = tuple(values.end(key, last) for values, last in self._ends)
            times = plan.multiplicity(state, extremes)
            if times:
                found.append((plan.output(state, extremes), times))
        return found
