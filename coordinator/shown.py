"""What a view shows from one commit to the next: from what is stored of it at the end of a time, and from what was
contributed in that time.

    V(since) = V(at) - Σ contributions of since < ts <= at      a view is a sum, so it can be taken back
    □V       = what V shows after a commit or step - before it

Contributions are sums, not what a view shows: that follows from the sums, the ends of the hidden (group, value) views
that minima and maxima are read from, and the order of rows. So the contributions are gone through twice. The first time
those of each key are added up, and the states at `since` are found from those at `at`; the second time they are added
one commit after another, and what is shown before and after each is compared.

Memory: the states of the keys that changed in that time.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ..changetables.errors import OperationalError
from ..changetables.keys import table_range
from ..changetables.operators.project import net_exactly
from ..changetables.operators.slice import sliced
from ..changetables.plan import Contribution
from ..changetables.types import Row, Value
from ..ltm.reading import NEWEST, Reader
from ..ltm.tables import ViewRows

T = TypeVar("T")

#: Keys that are fetched ahead at once: of more, the reader of a cluster would forget the first.
FETCHED_KEYS = 10_000

#: The view itself, and after it the hidden views that its minima and maxima are read from.
_VIEW = 0
#: Contributions to the view or to one of those hidden views.
Part: TypeAlias = tuple[int, list[Contribution]]
#: Those of each commit or step, by timestamp and in its order.
Events: TypeAlias = Iterable[tuple[int, list[Part]]]
#: Rows and how often they are there; negative: how often they are taken away.
SignedRows: TypeAlias = list[tuple[Row, int]]


class Change(NamedTuple):
    """One change table: `ts` is the commit_ts, or the W1 of a step."""

    ts: int
    rows: SignedRows


def too_young(name: str, ready_ts: int, since: int) -> OperationalError:
    return OperationalError(
        f"view {name!r} was created after that token (at {ready_ts}, the token is at {since})",
        hint="read it with rows() and go on from the token of that result",
    )


class _Time(NamedTuple):
    """`slots`: by the id of a view, where its contributions count."""

    until: int
    deferred: bool
    slots: dict[int, int]


class Sources:
    """Whose contributions change what a view shows."""

    def __init__(self, view: ViewRows) -> None:
        self._view = view
        #: The hidden views of (group, value), each once, and for each extreme where its one stands (from 1 on).
        self.values = list({values.view.id: values for values in view.values}.values())
        places = {values.view.id: place for place, values in enumerate(self.values, 1)}
        self.slots = [places[values.view.id] for values in view.values]
        #: How the view was refreshed, and from which hidden views it was made, until when.
        self._times = [_Time(each.until, each.deferred, self._slots_by_id(each.values)) for each in view.view.earlier]
        now = self._slots_by_id([values.view.id for values in view.values])
        self._times.append(_Time(NEWEST, view.view.deferred, now))
        self.ids = frozenset(itertools.chain(*(time.slots for time in self._times)))

    def _slots_by_id(self, values_ids: Iterable[int]) -> dict[int, int]:
        partials = dict.fromkeys(self._view.view.partials, _VIEW)
        return {self._view.view.id: _VIEW, **partials, **dict(zip(values_ids, self.slots, strict=True))}

    def _time(self, ts: int) -> _Time:
        return next(time for time in self._times if ts < time.until)

    def was_deferred(self, ts: int) -> bool:
        return self._time(ts).deferred

    def parts(self, ts: int, found: Iterable[tuple[int, list[Contribution]]]) -> list[Part]:
        """The contributions, by the id of their view, that count at a timestamp, with the keys that they have now."""
        slots = self._time(ts).slots
        parts = []
        for view_id, contributions in found:
            slot = slots.get(view_id)
            if slot is None:
                continue  # a hidden view that the view is made from at another time
            rows = self._view if slot == _VIEW else self.values[slot - 1]
            if rows.view.id != view_id:
                encode = rows.plan.keys.encode_short
                contributions = [item._replace(key=encode(item.key_values)) for item in contributions]
            parts.append((slot, contributions))
        return parts


def shown_at_start(
    reader: Reader, view: ViewRows, sources: Sources, events: Callable[[], Events], at: int
) -> Shown | None:
    """What the view shows, at the start of a time that ends at `at`, of the keys that change in it; None if none does.
    `events` gives the contributions of that time."""
    nets: list[dict[bytes, tuple[Row, Contribution | None]]] = [{} for _ in range(1 + len(sources.values))]
    plans = [view.plan, *(values.plan for values in sources.values)]
    for _, parts in events():
        for slot, contributions in parts:
            net, combine = nets[slot], plans[slot].combine
            for item in contributions:
                known = net.get(item.key)
                before = None if known is None else known[1]
                net[item.key] = (item.key_values, item if before is None else combine(before, item))
    if not any(nets):
        return None
    values = [
        _Values(view, each, _states_at_start(reader, each, at, net))
        for each, net in zip(sources.values, nets[1:], strict=True)
    ]
    for each in values:
        for key, group in each.groups.items():
            nets[_VIEW].setdefault(key, (group, None))
    groups = {key: key_values for key, (key_values, _) in nets[_VIEW].items()}
    for some in _in_chunks(groups):
        part = {key: groups[key] for key in some}
        reader.fetch_extremes(view, list(part.values()), at)
        for number, extreme in enumerate(view.plan.extremes):
            values[sources.slots[number] - 1].look_at_ends(reader, number, extreme.last, part, at)
    states = _states_at_start(reader, view, at, nets[_VIEW])
    ends = [(values[slot - 1], each.last) for slot, each in zip(sources.slots, view.plan.extremes, strict=True)]
    return Shown(view, states, values, ends, _top_of(reader, view, states, at))


class _State(NamedTuple):
    """What is stored under a key, and the values that the key was made of."""

    key_values: Row
    row: Row | None


def _states_at_start(
    reader: Reader, view: ViewRows, at: int, net: Mapping[bytes, tuple[Row, Contribution | None]]
) -> dict[bytes, _State]:
    """By key: what was stored before all these contributions."""
    plan = view.plan
    states: dict[bytes, _State] = {}
    for some in _in_chunks(net):
        reader.fetch_states(view, some, at)
        for key in some:
            key_values, total = net[key]
            state = reader.state(view, key, at)
            states[key] = _State(key_values, state if total is None else plan.refresh(state, plan.negate(total)))
    return states


def _in_chunks(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    """So many as are fetched ahead at once."""
    rest = iter(keys)
    return iter(lambda: list(itertools.islice(rest, FETCHED_KEYS)), [])


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

    def look_at_ends(self, reader: Reader, number: int, last: bool, groups: Mapping[bytes, Row], at: int) -> None:
        """Find the ends of what stays as it is, for an extreme of the view."""
        for key, group in groups.items():
            prefix = self._view.plan.extreme_prefix(number, group)
            value = reader.extreme(self._values, prefix, at, last, self._changing.get(key, {}))
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


def _top_of(reader: Reader, view: ViewRows, states: dict[bytes, _State], at: int) -> _Top | None:
    """None: the view shows all its rows."""
    plan = view.plan
    limit, offset = plan.kept.limit, plan.kept.offset
    if plan.kept.kind != "ordered" or limit is None:
        return None
    wanted = offset + limit
    staying: list[tuple[bytes, tuple[Row, int]]] = []
    counted = 0
    for key, row in reader.states(view, *table_range(view.view.id), at):
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


class Shown:
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

    def change(self, parts: list[Part]) -> SignedRows:
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
