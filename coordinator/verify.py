"""Compares what views store with their definitions evaluated from scratch, and repairs the rows that differ.

    verify   one snapshot: the hidden views that a view is made from, then the view itself
    repair   view by view, each at a snapshot of its own: those below, the view, those that are made from it

All states are sums (`changetables/refresh.py`), so a view is compared by adding up again: the rows of one source of
each branch go through the plan, page by page as of the snapshot, and what they contribute is summed per view key. Only
the keys of one range are summed at a time, which bounds the memory; every range is one pass over the source, or over a
part of it where the key of the view begins with that of the source.

Beside that, a database that is small enough is evaluated by the oracle (`changetables/recompute.py`), which shares
nothing with the plans: it finds what a wrong plan makes wrong, while the sums find what is stored but not shown.

A repair adds, to each row that differs, what it should have been at the snapshot minus what it was. That is one more
contribution, so it does not matter what writers have added since.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

from ..changetables.algebra import scans
from ..changetables.errors import DataError, ProgrammingError
from ..changetables.evaluators.whole import COUNTED_ROWS_MAX, SPARK, forced
from ..changetables.expressions import ColumnRef
from ..changetables.keys import INDEX_PREFIX_BYTES_MAX, SHORTENED_TAIL_BYTES, KeyCodec, prefix_stop, table_range
from ..changetables.operators.project import flatten, net_exactly, unflatten
from ..changetables.plan import WHOLE_TABLE, Asking, Contribution, LookUp, ViewPlan
from ..changetables.recompute import DIFFERENCES_MAX, recompute, same_bag
from ..changetables.types import Row, Value
from ..ltm.participant import rows_by_prefix
from ..ltm.tables import TableRows, Tables, ViewRows
from . import on_spark
from .embedded import Engine
from .ports import GroupMoved, Reading

#: Source rows up to which the oracle is asked too: a second or two of its time, and all of them are in memory then.
VERIFY_ORACLE_ROWS = 50_000
#: View rows of one range. Twice as many sums are held at the most.
VERIFY_RANGE_ROWS = 200_000
#: Source rows that go through the plan at once.
VERIFY_PAGE_ROWS = 500
#: Differing rows of hidden views that are kept in mind while the views above them are compared.
VERIFY_CORRECTIONS_MAX = 10_000
#: View rows that one repairing transaction changes: about 20 ms for which writers wait.
REPAIR_ROWS_MAX = 5_000

#: A key whose first columns need no more bytes stands, cut or not, in the order of their values.
_ORDERED_BYTES_MAX = INDEX_PREFIX_BYTES_MAX - SHORTENED_TAIL_BYTES

#: Called with (rows done, rows expected): rows read, of the sources and of the views.
Progress: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds memory. Tests make them small."""

    oracle_rows: int = VERIFY_ORACLE_ROWS
    range_rows: int = VERIFY_RANGE_ROWS
    page_rows: int = VERIFY_PAGE_ROWS
    corrections_max: int = VERIFY_CORRECTIONS_MAX
    repair_rows: int = REPAIR_ROWS_MAX


LIMITS = Limits()


class Difference(NamedTuple):
    """A row that is stored `stored` times and should be `recomputed` times.

    `where` names the view; a hidden view that the engine keeps for it is named behind it. A row whose difference nobody
    sees yet, such as a group that HAVING leaves out, is given as it is stored: its key, then its components. `reason`:
    the view could not be compared, because what it is made from has no value; it names the row.
    """

    row: tuple[object, ...]
    stored: int
    recomputed: int
    where: str
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.where}: cannot be computed: {self.reason}"
        return f"{self.where}: {self.row!r} is stored {self.stored} times, recomputed {self.recomputed} times"


@dataclass(slots=True)
class Outcome:
    """`differences` are the first DIFFERENCES_MAX of them, `rows_differing` is the number of all rows that differ.

    `peak_rows` is the largest number of sums that were held at once. `note`: what was left out of the comparison.
    """

    as_of: int = 0
    rows_checked: int = 0
    rows_differing: int = 0
    rows_repaired: int = 0
    ok: bool = True
    differences: list[Difference] = field(default_factory=list)
    peak_rows: int = 0
    note: str = ""

    def add(self, differences: list[Difference]) -> None:
        self.ok = False
        self.rows_differing += 1
        self.differences += differences[: DIFFERENCES_MAX - len(self.differences)]

    def fail(self, where: str, error: DataError) -> None:
        """Something that the view is made from has no value: nothing can be said about its rows."""
        self.add([Difference((), 0, 0, where, error.message)])


class Differing(NamedTuple):
    """A view row that is not what it should be; None: there is none, or there should be none."""

    key: bytes
    stored: Row | None
    expected: Row | None
    correction: Contribution


# --- the snapshot ---


class Snapshot:
    """The catalog and the rows of one timestamp: of a deferred view, its watermark. A context manager, which holds the
    pin.

    `corrections`: what rows of views should show, by view name and key. The views above are compared with that.
    """

    def __init__(self, engine: Reading, name: str = "") -> None:
        self._name = name
        self.ltm = engine.ltm
        self.tables: Tables = engine.ltm.tables
        self.at = 0
        self.corrections: dict[str, dict[bytes, Row | None]] = {}
        #: The values of their keys.
        self.corrected: dict[str, dict[bytes, tuple[Value, ...]]] = {}

    def __enter__(self) -> Snapshot:
        while True:
            # The catalog of that timestamp: a newer index has no entries for it.
            self.tables = self.ltm.tables
            view = self.tables.views.get(self._name)
            self.at = (self.ltm.horizon if view is None else self.ltm.horizon_of(view)).pin(-id(self))
            if self.ltm.tables is self.tables:
                return self

    def __exit__(self, *_: object) -> None:
        self.ltm.horizon.unpin(-id(self))

    def view(self, name: str) -> ViewRows:
        view = self.tables.views.get(name)
        if view is None or not view.view.ready_ts:
            raise ProgrammingError(f"there is no view {name!r}", hint="it may have been dropped meanwhile")
        return view

    def states(self, view: ViewRows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Row]]:
        """The stored rows of a view in the order of their keys."""
        if view.partials:
            return self.ltm.states(view, start, stop, self.at)
        return self.ltm.scan(view.versions, start, stop, self.at)

    def shown(self, rows: TableRows | ViewRows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Row]]:
        """The rows of a table, or those that a view shows, or should show."""
        stored = self.ltm.shown(rows, start, stop, self.at)
        corrected = self.corrections.get(rows.table.name)
        if not corrected:
            return stored
        added = sorted((key, row) for key, row in corrected.items() if row is not None and start <= key < stop)
        return heapq.merge((item for item in stored if item[0] not in corrected), added, key=lambda item: item[0])

    def extremes(self, view: ViewRows, state: Row | None) -> Row:
        plan = view.plan
        if not plan.extremes or (state is None and not plan.always):
            return ()
        return tuple(
            self.ltm.extreme(
                values,
                plan.extreme_prefix(number, state or ()),
                self.at,
                each.last,
                self.corrections.get(each.table, {}),
            )
            for number, (each, values) in enumerate(zip(plan.extremes, view.values, strict=True))
        )

    def answered(self, asking: Asking[list[Contribution]]) -> list[Contribution]:
        """What a propagation gives that is answered as of the snapshot."""
        answers: list[list[object]] | None = None
        while True:
            try:
                wanted = next(asking) if answers is None else asking.send(answers)
            except StopIteration as finished:
                return cast("list[Contribution]", finished.value)
            answers = [self._answer(look_up) for look_up in wanted]

    def _answer(self, look_up: LookUp) -> list[object]:
        rows = self.tables.source(look_up.table)
        if look_up.index is None:
            if isinstance(rows, ViewRows):
                self.ltm.fetch_states(rows, look_up.keys, self.at)
            else:
                self.ltm.fetch(rows.versions, look_up.keys, self.at)
            return [self._row(rows, key) for key in look_up.keys]
        if look_up.index == WHOLE_TABLE:
            return [[row for _, row in self.shown(rows, *table_range(rows.table.id))]] * len(look_up.keys)
        entries = self.tables.indexes[look_up.index][1]
        self.ltm.fetch_prefixes(entries.versions, look_up.keys, self.at)
        corrected = self.corrections.get(look_up.table, {})
        added = rows_by_prefix(entries, corrected)
        answers: list[object] = []
        for prefix in look_up.keys:
            keys = [key for key in self.ltm.entries_at(entries.versions, prefix, self.at) if key not in corrected]
            found = [row for key in keys if (row := self._row(rows, key)) is not None]
            answers.append([*found, *added.get(prefix, ())])
        return answers

    def _row(self, rows: TableRows | ViewRows, key: bytes) -> Row | None:
        corrected = self.corrections.get(rows.table.name)
        if corrected is not None and key in corrected:
            return corrected[key]
        if isinstance(rows, ViewRows):
            return self.ltm.show(rows, self.ltm.state(rows, key, self.at), self.at)
        return self.ltm.read(rows.versions, key, self.at)

    def correct(self, view: ViewRows, differing: Differing) -> None:
        """From here on the row shows what it should."""
        item = differing.correction
        name = view.view.name
        self.corrected.setdefault(name, {})[item.key] = item.key_values
        shown = view.plan.source_row(differing.expected, self.extremes(view, differing.expected))
        self.corrections.setdefault(name, {})[item.key] = shown

    def correct_extremes(self, view: ViewRows) -> None:
        """Groups whose values were corrected show other minima and maxima, even where their own rows are right."""
        key_count = len(view.plan.key_columns)
        mine = self.corrections.setdefault(view.view.name, {})
        for extreme in view.plan.extremes:
            for values in self.corrected.get(extreme.table, {}).values():
                key = view.plan.keys.encode_short(values[:key_count])
                if key not in mine:
                    state = self.ltm.state(view, key, self.at)
                    mine[key] = view.plan.source_row(state, self.extremes(view, state))


# --- ranges ---


class _Bound(NamedTuple):
    """A place between two view rows. `values` are those of the row behind it, None at the ends of the view."""

    key: bytes
    values: tuple[Value, ...] | None


@dataclass(slots=True)
class _Range:
    """low <= key < high. `high` comes down when there are more rows than expected."""

    low: _Bound
    high: _Bound


class _Window:
    """Which rows of a starting source can contribute to a range of the view.

    If the first columns of the view's key are the first columns of the source's, both are in the same order: rows of
    the source outside the values of the range contribute outside the range. Both ends are included, because one row of
    the source may contribute on both sides of a bound.
    """

    def __init__(self, plan: ViewPlan, part: int, source: int, rows: TableRows | ViewRows) -> None:
        self._whole = table_range(rows.table.id)
        self._view_keys = plan.keys
        self._source_keys: KeyCodec = rows.codec.keys if isinstance(rows, TableRows) else rows.plan.keys
        ordered = plan.kept.kind == "ordered" or (isinstance(rows, ViewRows) and rows.plan.kept.kind == "ordered")
        self.columns = 0 if ordered else _common_columns(plan, part, source, rows.table.key)

    def of(self, range_: _Range) -> tuple[bytes, bytes]:
        low, high = self._prefix(range_.low), self._prefix(range_.high)
        start, stop = self._whole
        return (start if low is None else low), (stop if high is None else prefix_stop(high))

    def _prefix(self, bound: _Bound) -> bytes | None:
        """What the keys of the source begin with at a bound; None if that says nothing."""
        if bound.values is None or not self.columns:
            return None
        values = bound.values[: self.columns]
        if any(value is None for value in values):
            return None
        if len(self._view_keys.encode_prefix(values)) > _ORDERED_BYTES_MAX:
            return None
        prefix = self._source_keys.encode_prefix(values)
        return prefix if len(prefix) <= _ORDERED_BYTES_MAX else None


def _common_columns(plan: ViewPlan, part: int, source: int, key: tuple[int, ...]) -> int:
    count = 0
    for expression, position in zip(plan.kept.parts[part].key, key, strict=False):
        if not isinstance(expression, ColumnRef) or (expression.source, expression.position) != (source, position):
            break
        count += 1
    return count


# --- comparing ---


class _Comparison:
    """Compares views with what they read, at one snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        limits: Limits,
        outcome: Outcome,
        meter: _Meter,
        evaluator: str | None = None,
        in_parts: on_spark.InParts = on_spark.nothing_in_parts,
    ) -> None:
        self._snapshot, self._limits, self._outcome, self._meter = snapshot, limits, outcome, meter
        self._evaluator, self._in_parts = evaluator, in_parts

    def differing(self, view: ViewRows) -> Iterator[Differing]:
        """The rows of a view that differ, range by range."""
        self._compile(view)
        if self._evaluator == SPARK and not view.plan.has_constants and not view.plan.kept.slice_of:
            yield from self._differing_from_spark(view)
            return
        start, stop = table_range(view.view.id)
        low = _Bound(start, None)
        while low.key < stop:
            range_ = _Range(low, self._high(view, low, stop))
            sums = self._sums(view, range_)
            yield from self._differing(view, range_, sums)
            low = range_.high

    def _differing_from_spark(self, view: ViewRows) -> Iterator[Differing]:
        """Spark gives what each view row should be, in any order, each once: it is compared with what is stored. If
        more is stored than that, it is looked for among the stored rows."""
        found_count = 0
        for contributions in on_spark.contents(view.plan, self._shown, self._in_parts):
            for expected in contributions:
                state = self._snapshot.ltm.state(view, expected.key, self._snapshot.at)
                self._outcome.rows_checked += 1
                if state is None:
                    yield Differing(expected.key, None, _state(expected), expected)
                    continue
                found_count += 1
                correction = _correction(view.plan, _stored(view.plan, expected.key, state), expected)
                if correction is not None:
                    yield Differing(expected.key, state, _state(expected), correction)
            self._meter.add(len(contributions))
        if _count(self._snapshot, view) > found_count:
            yield from self._left_over(view)

    def _left_over(self, view: ViewRows) -> Iterator[Differing]:
        """Stored rows that should not be there."""
        start, stop = table_range(view.view.id)
        low = _Bound(start, None)
        while low.key < stop:
            range_ = _Range(low, self._high(view, low, stop))
            sums = self._sums(view, range_)
            for key, state in self._snapshot.states(view, range_.low.key, range_.high.key):
                if key not in sums:
                    correction = _correction(view.plan, _stored(view.plan, key, state), None)
                    assert correction is not None, "what should not be there is taken away"
                    yield Differing(key, state, None, correction)
            low = range_.high

    def _shown(self, name: str) -> Iterator[tuple[bytes, Row]]:
        rows = self._snapshot.tables.source(name)
        return self._snapshot.shown(rows, *table_range(rows.table.id))

    def _compile(self, view: ViewRows) -> None:
        """The functions of a plan are made when they are first needed, by writers too: one thread at a time."""
        plan = view.plan
        with self._snapshot.ltm.lock:
            self._snapshot.answered(plan.contribute_constants())
            for part, source, _ in plan.starts():
                self._snapshot.answered(plan.contribute_from(part, source, ()))

    def _high(self, view: ViewRows, low: _Bound, stop: bytes) -> _Bound:
        """Where a range ends that has so many stored rows."""
        stored = self._snapshot.states(view, low.key, stop)
        behind = next(itertools.islice(stored, self._limits.range_rows, None), None)
        return _Bound(stop, None) if behind is None else _Bound(behind[0], behind[1][: len(view.plan.key_columns)])

    def _sums(self, view: ViewRows, range_: _Range) -> dict[bytes, Contribution]:
        """What the rows of a range should hold. Where many are missing in the view, the range is cut."""
        combine, most = view.plan.combine, 2 * self._limits.range_rows
        sums: dict[bytes, Contribution] = {}
        for item in self._evaluated(view, range_):
            if not range_.low.key <= item.key < range_.high.key:
                continue
            known = sums.get(item.key)
            total = item if known is None else combine(known, item)
            if total is None:
                del sums[item.key]
                continue
            sums[item.key] = total
            self._outcome.peak_rows = max(self._outcome.peak_rows, len(sums))
            if len(sums) >= most:
                self._cut(range_, sums)
        return sums

    def _cut(self, range_: _Range, sums: dict[bytes, Contribution]) -> None:
        """The upper half is left to the next range: what was summed for the rest is still complete."""
        ordered = sorted(sums)
        half = len(ordered) // 2
        range_.high = _Bound(ordered[half], sums[ordered[half]].key_values)
        for key in ordered[half:]:
            del sums[key]

    def _evaluated(self, view: ViewRows, range_: _Range) -> Iterator[Contribution]:
        """The definition evaluated at the snapshot: what contributes to the range, and more."""
        snapshot, plan = self._snapshot, view.plan
        yield from snapshot.answered(plan.contribute_constants())
        if plan.kept.slice_of:
            kept, ordered = plan.kept, snapshot.tables.views[plan.kept.slice_of]
            rows_count = None if kept.limit is None else kept.offset + kept.limit
            corrected = snapshot.corrections.get(kept.slice_of, {})
            yield from plan.contribute_top(snapshot.ltm.first_rows(ordered, rows_count, snapshot.at, corrected))
        for part, source, table in plan.starts():
            rows = snapshot.tables.source(table)
            yield from self._from_source(plan, part, source, rows, range_)

    def _from_source(
        self, plan: ViewPlan, part: int, source: int, rows: TableRows | ViewRows, range_: _Range
    ) -> Iterator[Contribution]:
        window = _Window(plan, part, source, rows)
        stored = self._snapshot.shown(rows, *window.of(range_))
        page_rows = self._limits.page_rows
        while page := list(itertools.islice(stored, page_rows)):
            contributions = self._snapshot.answered(plan.contribute_from(part, source, [row for _, row in page]))
            if len(contributions) > 2 * self._limits.range_rows:
                # Each row joins with many: fewer of them at once.
                page_rows = max(1, page_rows // 2)
            yield from contributions
            self._meter.add(len(page))
            if page[-1][0] >= window.of(range_)[1]:
                return

    def _differing(self, view: ViewRows, range_: _Range, sums: dict[bytes, Contribution]) -> Iterator[Differing]:
        for key, state in self._snapshot.states(view, range_.low.key, range_.high.key):
            stored = _stored(view.plan, key, state)
            expected = sums.pop(key, None)
            self._outcome.rows_checked += 1
            self._meter.add(1)
            correction = _correction(view.plan, stored, expected)
            if correction is not None:
                yield Differing(key, state, None if expected is None else _state(expected), correction)
        for key, item in sums.items():
            self._outcome.rows_checked += 1
            yield Differing(key, None, _state(item), item)


def _stored(plan: ViewPlan, key: bytes, state: Row) -> Contribution:
    """A stored row as the one contribution that would make it."""
    key_count = len(plan.key_columns)
    return Contribution(key, state[:key_count], state[key_count:])


def _state(contribution: Contribution) -> Row:
    return contribution.key_values + contribution.delta


def _correction(plan: ViewPlan, stored: Contribution, expected: Contribution | None) -> Contribution | None:
    """What to add to what is stored; None if nothing.

    Components of groups are equal if they are equal as numbers. Kept rows are shown as they are written: -0.0 for 0.0
    is a difference there, and so is 1.0 for 1.00.
    """
    if expected is None:
        return plan.negate(stored)
    if plan.kept.kind in ("groups", "set"):
        same = stored.delta == expected.delta
        return None if same else plan.combine(expected, plan.negate(stored))
    if stored.delta == expected.delta and repr(stored.delta) == repr(expected.delta):
        return None
    width = len(plan.kept.outputs)
    changes = [*unflatten(expected.delta, width), *unflatten(plan.negate(stored).delta, width)]
    delta = flatten(net_exactly(changes))
    return expected._replace(delta=delta) if delta else None


def _shown_differences(snapshot: Snapshot, view: ViewRows, found: Differing, where: str) -> list[Difference]:
    """A differing row as the view shows it; where it shows no difference, as it is stored."""
    stored, expected = (_shown(snapshot, view, state) for state in (found.stored, found.expected))
    if stored is None or expected is None or repr(stored) == repr(expected):
        states = ((found.stored, 1, 0), (found.expected, 0, 1))
        return [Difference(state, ours, theirs, where) for state, ours, theirs in states if state is not None]
    if repr(stored[0]) == repr(expected[0]):
        return [Difference(stored[0], stored[1], expected[1], where)]
    sides = ((stored[0], stored[1], 0), (expected[0], 0, expected[1]))
    return [Difference(row, ours, theirs, where) for row, ours, theirs in sides if ours or theirs]


def _shown(snapshot: Snapshot, view: ViewRows, state: Row | None) -> tuple[Row, int] | None:
    """The output of a stored row and how often it is shown; None if it cannot be shown."""
    plan = view.plan
    extremes = snapshot.extremes(view, state)
    try:
        times = plan.multiplicity(state, extremes)
        return (plan.output(state, extremes) if times else (), times)
    except DataError:
        # A damaged row may hold what no output has a value for; the stored row says it.
        return None


# --- the oracle ---


def _ask_oracle(snapshot: Snapshot, view: ViewRows, limits: Limits, outcome: Outcome) -> None:
    """Compare what the view shows with the oracle, if everything is small enough to be held in memory."""
    tables, relation = snapshot.tables, view.view.relation
    names = {scan.table for scan in scans(relation)}
    rows: dict[str, list[Row]] = {}
    left = limits.oracle_rows
    for name in names:
        rows[name] = _some_rows(snapshot, tables.source(name), left + 1)
        left -= len(rows[name])
        if left < 0:
            return
    stored = _some_rows(snapshot, view, limits.oracle_rows + 1)
    if len(stored) > limits.oracle_rows:
        return
    width, weighted = len(view.plan.columns), view.plan.kept.weighted
    outputs = (row[:width] for row in stored for _ in range(cast(int, row[-1]) if weighted else 1))
    try:
        expected = list(recompute(relation, {name: tables.table(name) for name in names}, rows))
    except DataError as error:
        # The plans have computed every row of the view. The oracle computes each part of the query whole, rows that
        # the rest of it leaves out included, and one of those has no value: SQL does not say who is right.
        outcome.note = f"not evaluated by the oracle, too: {error.message}"
        return
    for row, ours, theirs in same_bag(outputs, expected):
        outcome.add([Difference(row, ours, theirs, view.view.name)])


def _some_rows(snapshot: Snapshot, rows: TableRows | ViewRows, count: int) -> list[Row]:
    shown = snapshot.ltm.shown(rows, *table_range(rows.table.id), snapshot.at)
    return [row for _, row in itertools.islice(shown, count)]


# --- progress ---


class _Meter:
    """Counts the rows that were read, for whoever watches. The expected number is an estimate that is never passed."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done = self._expected = 0

    @property
    def is_watched(self) -> bool:
        return self._progress is not None

    def expect(self, rows_count: int) -> None:
        self._expected += rows_count

    def add(self, rows_count: int) -> None:
        self._done += rows_count
        if self._progress is not None and (rows_count > 1 or self._done % VERIFY_PAGE_ROWS == 0):
            self._progress(min(self._done, self._expected), self._expected)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._expected, self._expected)


def _expect(snapshot: Snapshot, view: ViewRows, limits: Limits, meter: _Meter) -> None:
    """Estimate the rows that the comparison of a view reads. It takes a look at all of them, so only if it is asked."""
    if not meter.is_watched:
        return
    stored = _count(snapshot, view)
    meter.expect(stored)
    for part, source, table in view.plan.starts():
        rows = snapshot.tables.source(table)
        in_order = _Window(view.plan, part, source, rows).columns
        passes = 1 if in_order else max(1, -(-stored // limits.range_rows))
        meter.expect(passes * _count(snapshot, rows))


def _count(snapshot: Snapshot, rows: TableRows | ViewRows) -> int:
    start, stop = table_range(rows.table.id)
    if isinstance(rows, ViewRows):
        return sum(1 for _ in snapshot.states(rows, start, stop))
    return sum(1 for _ in snapshot.ltm.scan(rows.versions, start, stop, snapshot.at))


# --- which views ---


def _hidden_below(view: ViewRows, tables: Tables) -> list[ViewRows]:
    """The hidden views that a view is made from, each after those that it reads."""
    found: dict[str, ViewRows] = {}
    waiting = [view]
    while waiting:
        for name in waiting.pop().plan.reads:
            below = tables.views.get(name)
            if below is not None and below.view.hidden and name not in found:
                found[name] = below
                waiting.append(below)
    return sorted(found.values(), key=lambda each: each.level)


def _made_from(view: ViewRows) -> list[ViewRows]:
    """The views that are made from a view, straight or through others; not those that are still being made."""
    found: dict[str, ViewRows] = {}
    waiting = [view]
    while waiting:
        for above in waiting.pop().views:
            if above.view.name not in found and above.view.ready_ts:
                found[above.view.name] = above
                waiting.append(above)
    return list(found.values())


def _where(view: ViewRows, tables: Tables, asked: str, below: Mapping[str, ViewRows]) -> str:
    if not view.view.hidden:
        return view.view.name
    readers = [asked] if view.view.name in below else [each.name for each in tables.catalog.readers_of(view.view.name)]
    return f"{', '.join(readers)}: hidden view {view.view.name}"


# --- verify ---


def verify(
    engine: Reading,
    name: str,
    progress: Progress | None = None,
    limits: Limits = LIMITS,
    evaluator: str | None = None,
) -> Outcome:
    """Compare a view and the hidden views that it is made from with their definitions, at one snapshot. `evaluator`:
    what a user wants them to be evaluated by."""
    if evaluator is not None:
        forced(evaluator)
    outcome, meter = Outcome(), _Meter(progress)
    with Snapshot(engine, name) as snapshot:
        outcome.as_of = snapshot.at
        view = snapshot.view(name)
        hidden = _hidden_below(view, snapshot.tables)
        for each in (*hidden, view):
            _expect(snapshot, each, limits, meter)
        in_parts: on_spark.InParts = on_spark.nothing_in_parts
        if evaluator == SPARK and isinstance(engine, Engine):
            in_parts = _in_parts(engine, snapshot, (*hidden, view))
        comparison = _Comparison(snapshot, limits, outcome, meter, evaluator, in_parts)
        try:
            if not _verify_all(snapshot, comparison, (*hidden, view), name, limits, outcome):
                return outcome
        except DataError as error:
            outcome.fail(name, error)
        if outcome.ok:
            _ask_oracle(snapshot, view, limits, outcome)
    meter.finish()
    return outcome


def _in_parts(engine: Engine, snapshot: Snapshot, views: Iterable[ViewRows]) -> on_spark.InParts:
    """Tables that Spark's workers read by themselves: what was there at the snapshot is brought to the store."""
    engine.checkpoint()
    tables = snapshot.tables.by_name
    names = {name for view in views for _, _, name in view.plan.starts() if name in tables}
    counts = [engine.ltm.stored_count(*table_range(tables[name].table.id), COUNTED_ROWS_MAX) for name in names]
    return on_spark.stored_at(engine.ltm, snapshot.at, max(counts, default=0))


def _verify_all(
    snapshot: Snapshot,
    comparison: _Comparison,
    views: tuple[ViewRows, ...],
    asked: str,
    limits: Limits,
    outcome: Outcome,
) -> bool:
    """Compare hidden views, and the last one, which is made from them. False if too much of them differs."""
    *hidden, view = views
    for each in hidden:
        if not _verify_hidden(snapshot, comparison, each, asked, limits, outcome):
            return False
    outcome.rows_checked = 0
    for found in comparison.differing(view):
        outcome.add(_shown_differences(snapshot, view, found, asked))
    if view.plan.always:
        outcome.rows_checked = max(1, outcome.rows_checked)
    return True


def _verify_hidden(
    snapshot: Snapshot, comparison: _Comparison, view: ViewRows, asked: str, limits: Limits, outcome: Outcome
) -> bool:
    """False if so much of it differs that nothing can be said about the views above."""
    where = _where(view, snapshot.tables, asked, {view.view.name: view})
    found = []
    for differing in comparison.differing(view):
        outcome.add(_shown_differences(snapshot, view, differing, where))
        found.append(differing)
        if outcome.rows_differing > limits.corrections_max:
            return False
    for differing in found:
        # Only now: the comparison of a view must see what is stored in the views below, and in no view of its own.
        snapshot.correct(view, differing)
    if view.plan.extremes:
        snapshot.correct_extremes(view)
    return True


# --- repair ---


#: Holds the deferred views that are made from a view, which has an id, and has them computed anew afterwards.
GivingUp: TypeAlias = Callable[[int], AbstractContextManager[object]]


def _nobody(view_id: int) -> AbstractContextManager[object]:
    return nullcontext()


def repair(
    engine: Engine,
    name: str,
    progress: Progress | None = None,
    limits: Limits = LIMITS,
    giving_up: GivingUp = _nobody,
) -> Outcome:
    """Make the stored rows of a synchronous view right, and those of all views that it is made from or that are made
    from it.

    Each view is compared with what it reads now, so those below come first. One repair at a time: two that found the
    same difference would mend it twice.
    """
    with engine.repairing:
        return _EmbeddedRepair(engine, name, progress, limits, giving_up).run()


class Repair:
    """Mends one view after the other, each at a snapshot of its own."""

    def __init__(self, reading: Reading, name: str, progress: Progress | None, limits: Limits) -> None:
        self._reading, self._name, self._limits = reading, name, limits
        self._meter = _Meter(progress)
        self._outcome = Outcome()
        self._below: dict[str, ViewRows] = {}
        #: What is still to be compared, by name. A view that was mended adds those that are made from it.
        self._waiting: set[str] = set()
        self._done: set[str] = set()
        #: Whether a view could not be compared.
        self._failed = False

    def snapshot(self, name: str) -> Snapshot:
        """At which a view is compared: everything that was corrected before is in it."""
        raise NotImplementedError

    def contribute(self, snapshot: Snapshot, view: ViewRows, corrections: list[Contribution]) -> None:
        """Commit the corrections of a view that was compared at a snapshot."""
        raise NotImplementedError

    def can_mend(self, view: ViewRows) -> bool:
        """Whether a view is still what it was when the repair began, or whoever has its name now: it may be one whose
        contents are being computed."""
        return bool(view.view.ready_ts)

    def made_from(self, view: ViewRows) -> list[ViewRows]:
        """Those that have to be compared if the view was corrected."""
        return _made_from(view)

    def run(self) -> Outcome:
        with Snapshot(self._reading) as snapshot:
            view = snapshot.view(self._name)
            self._below = {each.view.name: each for each in _hidden_below(view, snapshot.tables)}
            for each in (*self._below.values(), view, *self.made_from(view)):
                self._waiting.add(each.view.name)
                _expect(snapshot, each, self._limits, self._meter)
        rows_checked = 0
        while (name := self._next()) is not None:
            with self.snapshot(name) as snapshot:
                found = snapshot.tables.views.get(name)
                if found is not None and self.can_mend(found):
                    self._compare(snapshot, found)
                    if name == self._name:
                        rows_checked = self._outcome.rows_checked
        with self.snapshot(self._name) as snapshot:
            outcome = self._outcome
            outcome.as_of, outcome.rows_checked = snapshot.at, rows_checked
            outcome.ok = not self._failed
            # What the oracle still finds is no damage but a wrong plan, which adding up again cannot mend.
            view = snapshot.view(self._name)
            if outcome.ok and self.can_mend(view):
                _ask_oracle(snapshot, view, self._limits, outcome)
        self._meter.finish()
        return outcome

    def _next(self) -> str | None:
        """A view that reads none of the others that wait; those that were dropped meanwhile do not count."""
        views = self._reading.ltm.tables.views
        waiting = [views[name] for name in self._waiting if name in views]
        if not waiting:
            return None
        name = min(waiting, key=lambda each: each.level).view.name
        self._waiting.discard(name)
        self._done.add(name)
        return name

    def _compare(self, snapshot: Snapshot, view: ViewRows) -> None:
        before = self._outcome.rows_differing
        self._outcome.rows_checked = 0
        try:
            self._mend(snapshot, view)
        except DataError as error:
            self._failed = True
            self._outcome.fail(_where(view, snapshot.tables, self._name, self._below), error)
        if self._outcome.rows_differing > before:
            above = (each.view.name for each in self.made_from(view))
            self._waiting.update(name for name in above if name not in self._done)

    def _mend(self, snapshot: Snapshot, view: ViewRows) -> None:
        where = _where(view, snapshot.tables, self._name, self._below)
        comparison = _Comparison(snapshot, self._limits, self._outcome, self._meter)
        corrections: list[Contribution] = []
        for found in comparison.differing(view):
            self._outcome.add(_shown_differences(snapshot, view, found, where))
            corrections.append(found.correction)
            if len(corrections) >= self._limits.repair_rows:
                self._commit(snapshot, view, corrections)
                corrections = []
        self._commit(snapshot, view, corrections)

    def _commit(self, snapshot: Snapshot, view: ViewRows, corrections: list[Contribution]) -> None:
        if corrections:
            self.contribute(snapshot, view, corrections)
            self._outcome.rows_repaired += len(corrections)


class _EmbeddedRepair(Repair):
    def __init__(
        self, engine: Engine, name: str, progress: Progress | None, limits: Limits, giving_up: GivingUp
    ) -> None:
        super().__init__(engine, name, progress, limits)
        self._engine, self._giving_up = engine, giving_up

    def can_mend(self, view: ViewRows) -> bool:
        if view.view.deferred and view.view.name == self._name:
            raise GroupMoved(self._name)
        # One that was switched meanwhile is behind: what it has not taken in yet is no damage.
        return super().can_mend(view) and not view.view.deferred

    def snapshot(self, name: str) -> Snapshot:
        return Snapshot(self._engine)

    def contribute(self, snapshot: Snapshot, view: ViewRows, corrections: list[Contribution]) -> None:
        with self._giving_up(view.view.id):
            self._engine.contribute(view.view.id, corrections, to_sync=True)
        self._engine.checkpoint_if_due()
