"""Reads at a timestamp, wherever the rows are: in the memory and the store of this process, or in a cluster.

`Reader` asks for rows by key and by range (`read`, `scan`, `edge`, `entries_at`), and knows what views store (`state`,
`states`) and show of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar, cast

from ..changetables.keys import (
    KEY_BYTES_KEPT,
    SHORTENED_TAIL_BYTES,
    key_under,
    prefix_stop,
    table_range,
    was_shortened,
)
from ..changetables.operators.slice import sliced
from ..changetables.plan import FIRST, LAST, STATES, TOP, WHOLE_TABLE, LookUp, State, ViewPlan, top_count
from ..changetables.types import Row, Value
from .partial_rows import all_partials, keys_of, ranges_of, total
from .tables import TableRows, Tables, ViewRows
from .versions import IndexVersions, TableVersions

#: As a timestamp: whatever is newest.
NEWEST = 2**64 - 1
#: Rows whose index keys are counted for `fan_out`, and entries that are counted per key at the most.
FAN_OUT_SAMPLE_ROWS = 20
FAN_OUT_COUNT_MAX = 1_000

T = TypeVar("T")
_key_of = itemgetter(0)
#: All rows that are stored of a view at the newest timestamp: that timestamp, and what there is in key order, of the
#: view itself or of each of its partial rows.
Whole: TypeAlias = tuple[int, list[list[Row]]]


class ReadHorizon(Protocol):
    """Where readers begin. `pins` are the timestamps of those at work."""

    pins: dict[int, int]

    @property
    def durable_ts(self) -> int:
        """Every commit that was acknowledged is at or below it."""

    def pin(self, reader: int) -> int:
        """Register a reader; the timestamp at which it reads."""

    def unpin(self, reader: int) -> None: ...


class Guard(Protocol):
    """A lock."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class Reader:
    """Whoever reads at a timestamp holds a pin at or below it."""

    tables: Tables
    horizon: ReadHorizon
    #: Held while plans are compiled: their functions are made when they are first needed.
    lock: Guard

    def newest_tables(self) -> Tables:
        """Somebody else may have changed them."""
        return self.tables

    # -- where the rows are

    def read(self, versions: TableVersions[T], key: bytes, at: int) -> T | None:
        raise NotImplementedError

    def scan(self, versions: TableVersions[T], start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, T]]:
        """The visible rows of start <= key < stop in key order. Of an index, `catch_up` comes first."""
        raise NotImplementedError

    def edge(
        self, versions: TableVersions[T], start: bytes, stop: bytes, at: int, last: bool
    ) -> Iterator[tuple[bytes, T]]:
        """As `scan`, or from the last key back, for whoever wants only the first few."""
        raise NotImplementedError

    def entries_at(self, entries: IndexVersions, prefix: bytes, at: int) -> list[bytes]:
        """The primary keys that an index has under `prefix`."""
        raise NotImplementedError

    def horizon_of(self, view: ViewRows) -> ReadHorizon:
        """Where readers of a view begin: a deferred one has its own."""
        raise NotImplementedError

    def catch_up(self, entries: IndexVersions) -> None:
        """An index may note changes and make its entries later: now."""

    def whole(self, versions: TableVersions[T], at: int) -> list[T] | None:
        """All visible rows in key order of what is small and in memory, else None: then `scan` it."""
        return None

    def newest_whole(self, view: ViewRows, reader: int) -> Whole | None:
        """What is stored of a view, if it is small and at hand, else None: then `scan` it. `reader` has a pin of that
        number meanwhile."""
        at = self.horizon.pin(reader)
        try:
            parts: list[list[Row]] = []
            for each in all_partials(view):
                states = self.whole(each.versions, at)
                if states is None:
                    return None
                parts.append(states)
            return at, parts
        finally:
            self.horizon.unpin(reader)

    def fetch(self, versions: TableVersions[T], keys: Sequence[bytes], at: int) -> None:
        """These are read next, one by one: where rows are far away, they are brought here at once."""

    def fetch_prefixes(self, entries: IndexVersions, prefixes: Sequence[bytes], at: int) -> None:
        """The same for what an index has under some prefixes, with the rows that it names."""

    def fetch_extremes(self, view: ViewRows, states: Sequence[Row | None], at: int) -> None:
        """The same for the minima and maxima of some stored rows of a view."""

    def rows_as_of(self, rows: TableRows | ViewRows, keys: list[bytes], at: int) -> list[Row | None]:
        """The rows of a table, or those that a view shows, under these keys."""
        if isinstance(rows, ViewRows):
            self.fetch_states(rows, keys, at)
            return [self.show(rows, self.state(rows, key, at), at) for key in keys]
        self.fetch(rows.versions, keys, at)
        return [self.read(rows.versions, key, at) for key in keys]

    # -- what is stored of views

    def state(self, view: ViewRows, key: bytes, at: int) -> Row | None:
        """The stored row of a view under a key: of the local layout the sum of its partial rows."""
        if not view.partials:
            return self.read(view.versions, key, at)
        keys = keys_of(view, key)
        self.fetch(view.versions, keys, at)
        partials = zip(all_partials(view), keys, strict=True)
        return total(view.plan, [self.read(each.versions, own, at) for each, own in partials])

    def fetch_states(self, view: ViewRows, keys: Sequence[bytes], at: int) -> None:
        """`fetch` for `state`."""
        if view.partials:
            keys = [own for key in keys for own in keys_of(view, key)]
        self.fetch(view.versions, keys, at)

    # -- what views show

    def show(self, view: ViewRows, state: Row | None, at: int) -> Row | None:
        """The row of the view's table that a stored row shows at a timestamp."""
        return view.plan.source_row(state, self.extremes(view, state, at))

    def extremes(self, view: ViewRows, state: Row | None, at: int) -> Row:
        """The minima and maxima of a stored row's group."""
        plan = view.plan
        if not plan.extremes or (state is None and not plan.always):
            return ()
        group = state or ()
        return tuple(
            self.extreme(view.values[number], plan.extreme_prefix(number, group), at, each.last, {})
            for number, each in enumerate(plan.extremes)
        )

    def extreme(self, values: ViewRows, prefix: bytes, at: int, last: bool, mine: Mapping[bytes, Row | None]) -> Value:
        """The first or last value of a group in a hidden view of (group, value), with a transaction's own rows."""
        candidates = [(key, row) for key, row in mine.items() if row is not None and key.startswith(prefix)]
        cut: bytes | None = None
        for key, state in self.edge(values.versions, prefix, prefix_stop(prefix), at, last):
            if cut is not None and key[: len(cut)] != cut:
                break
            row = None if key in mine else values.plan.source_row(state)
            if row is None:
                continue
            candidates.append((key, row))
            if not was_shortened(key):
                break
            # Values that begin alike were cut: which of them is the extreme is told by the values.
            cut = cut or key[:-SHORTENED_TAIL_BYTES]
        if not candidates:
            return None
        whole = values.plan.keys.encode
        choose = max if last else min
        return choose((whole(row), row[-1]) for _, row in candidates)[1]

    def shown(self, rows: TableRows | ViewRows, start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, Row]]:
        """The rows of a table, or those that a view shows, at a timestamp, in key order."""
        if isinstance(rows, TableRows):
            return self.scan(rows.versions, start, stop, at)
        found = self._kept_rows(rows, start, stop, at)
        if rows.table.top is None:
            return found
        limit, offset = rows.table.top
        first = self.first_rows(rows, None if limit is None else limit + offset, at, {})
        width = len(rows.table.columns) - rows.plan.kept.weighted
        counted = [(row, cast(int, row[width]) if row[width:] else 1) for row in first]
        keys = (tuple(row[place] for place in rows.table.key) for row in first)
        encoded = dict(zip(first, map(rows.plan.keys.encode_short, keys), strict=True))
        shown = [
            (row, row[:width] + ((times,) if row[width:] else ())) for row, times in sliced(counted, limit, offset)
        ]
        return iter([(encoded[row], cut) for row, cut in shown if start <= encoded[row] < stop])

    def _kept_rows(self, rows: ViewRows, start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, Row]]:
        """What every stored row of a view shows, whether it is among the first or not."""
        found = False
        for key, state in self.states(rows, start, stop, at):
            row = self.show(rows, state, at)
            found = True
            if row is not None:
                yield key, row
        if not found and rows.plan.always:
            row = self.show(rows, None, at)
            if row is not None:
                yield rows.plan.keys.encode_short(()), row

    def states(self, view: ViewRows, start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, Row]]:
        """The stored rows of a view in key order. Keys of an ordered view that are too long were cut: what begins alike
        is put in order here."""
        if view.partials:
            return self._sums(view, start, stop, at)
        stored = self.scan(view.versions, start, stop, at)
        if view.plan.kept.kind != "ordered":
            return stored
        return _in_whole_order(stored, view.plan)

    def _sums(self, view: ViewRows, start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, Row]]:
        """As `states`, of the local layout: the partial rows of each key as one."""
        view_id, plan = view.view.id, view.plan
        stored = [
            ((key_under(view_id, key), row) for key, row in self.scan(each.versions, low, high, at))
            for each, low, high in ranges_of(view, start, stop)
        ]
        for key, alike in itertools.groupby(heapq.merge(*stored, key=_key_of), key=_key_of):
            row = total(plan, (row for _, row in alike))
            if row is not None:
                yield key, row

    def first_rows(
        self, view: ViewRows, rows_count: int | None, at: int, mine: Mapping[bytes, Row | None]
    ) -> list[Row]:
        """The first rows of an ordered view, with a transaction's own in their places, until so many are counted."""

        def order(row: Row) -> bytes:
            # Not the stored key, which is cut if it is too long.
            return view.plan.keys.encode(tuple(row[place] for place in view.table.key))

        kept = self._kept_rows(view, *table_range(view.view.id), at)
        stored = (row for key, row in kept if key not in mine)
        own = sorted((row for row in mine.values() if row is not None), key=order)
        weighted = view.plan.kept.weighted
        found: list[Row] = []
        counted = 0
        for row in heapq.merge(stored, own, key=order):
            if rows_count is not None and counted >= rows_count:
                break
            found.append(row)
            counted += cast(int, row[-1]) if weighted else 1
        return found

    # -- look-ups of a step, between two timestamps

    def answer(self, look_up: LookUp, tables: Tables, w0: int, w1: int) -> Sequence[object]:
        """As `look_up`, for a change from one timestamp to another instead of a transaction: W0 is the state before it,
        W1 the one after it."""
        rows = tables.source(look_up.table)
        at = w1 if look_up.state == State.NEW else w0
        match look_up.index:
            case None:
                return self._rows_between(rows, look_up.keys, look_up.state, w0, w1)
            case index if index == STATES:
                assert isinstance(rows, ViewRows), "only a view has states"
                return [self.state(rows, key, at) for key in look_up.keys]
            case index if index in (FIRST, LAST):
                assert isinstance(rows, ViewRows), "only hidden views have groups of values"
                return [self.extreme(rows, prefix, at, index == LAST, {}) for prefix in look_up.keys]
            case index if index == TOP:
                assert isinstance(rows, ViewRows), "only a view is kept in order"
                return [self.first_rows(rows, top_count(key), at, {}) for key in look_up.keys]
            case index if index == WHOLE_TABLE:
                return [self._whole_between(rows, look_up.state, w0, w1)] * len(look_up.keys)
        entries = tables.indexes[look_up.index][1].versions
        found = [self.entries_at(entries, prefix, at) for prefix in look_up.keys]
        shown = iter(self._rows_between(rows, [key for some in found for key in some], look_up.state, w0, w1))
        return [[row for _ in some if (row := next(shown)) is not None] for some in found]

    def _rows_between(
        self, rows: TableRows | ViewRows, keys: list[bytes], state: int, w0: int, w1: int
    ) -> list[Row | None]:
        if state == State.NEW:
            return self.rows_as_of(rows, keys, w1)
        old = self.rows_as_of(rows, keys, w0)
        if state == State.OLD or w0 == w1:
            return old
        new = self.rows_as_of(rows, keys, w1)
        if state == State.KEPT:
            return [before if same_row(before, after) else None for before, after in zip(old, new, strict=True)]
        return [after if before is None else before for before, after in zip(old, new, strict=True)]

    def _whole_between(self, rows: TableRows | ViewRows, state: int, w0: int, w1: int) -> list[Row]:
        start, stop = table_range(rows.table.id)
        if state == State.NEW:
            return [row for _, row in self.shown(rows, start, stop, w1)]
        old = dict(self.shown(rows, start, stop, w0))
        if state == State.OLD or w0 == w1:
            return list(old.values())
        new = dict(self.shown(rows, start, stop, w1))
        if state == State.KEPT:
            return [row for key, row in old.items() if same_row(row, new.get(key))]
        return list({**new, **old}.values())

    def fan_out(self, table: str, columns: tuple[int, ...]) -> float | None:
        """How many rows an index finds per key: a small sample, for people who want to know what a view costs."""
        rows = self.tables.by_name.get(table) or self.tables.views.get(table)
        entries = None if rows is None else rows.index_on(columns)
        if rows is None or entries is None:
            return None
        at = self.horizon.durable_ts
        sample = itertools.islice(self.shown(rows, *table_range(rows.table.id), at), FAN_OUT_SAMPLE_ROWS)
        counts = []
        for prefix in {entries.codec.prefix_of(row) for _, row in sample}:
            self.catch_up(entries.versions)
            found = self.scan(entries.versions, prefix, prefix_stop(prefix), at)
            counts.append(sum(1 for _ in itertools.islice(found, FAN_OUT_COUNT_MAX)))
        return sum(counts) / len(counts) if counts else None


def order_of(plan: ViewPlan) -> Callable[[tuple[bytes, Row]], bytes]:
    """What the stored rows of a view are ordered by: their keys, those of an ordered view by the whole ones."""
    if plan.kept.kind != "ordered":
        return lambda item: item[0]
    key_count = len(plan.key_columns)
    return lambda item: plan.keys.encode(item[1][:key_count])


def _in_whole_order(stored: Iterator[tuple[bytes, Row]], plan: ViewPlan) -> Iterator[tuple[bytes, Row]]:
    key_count = len(plan.key_columns)
    for _, group in itertools.groupby(stored, key=lambda item: item[0][:KEY_BYTES_KEPT]):
        alike = list(group)
        if len(alike) > 1:
            alike.sort(key=lambda item: plan.keys.encode(item[1][:key_count]))
        yield from alike


def same_row(old: Row | None, new: Row | None) -> bool:
    """Equal in every respect: 1.0 is another decimal than 1.00."""
    return old is new or (old == new and repr(old) == repr(new))
