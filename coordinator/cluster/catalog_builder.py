"""Makes what a new catalog has and the one before it had not, while writers go on. In the leader; no I/O, no clock.

A catalog is open at S. Writers keep new indexes and synchronous views right from S on; what was there before is added
here, page by page:

    groups    deferred views that get into another group, or become synchronous, are refreshed up to S, once more
    columns   a table with a new column that must have a value, and has no default, has no rows as of S
    index     entries of the newest rows that nobody has written since S: a page is refused if one of them is changed
    unique    no two rows as of S are equal in the columns of a new constraint, which writers keep to from S on
    view      its contents as of S, by its plan, in refresh transactions at version S. Each page has a row that
              must not be there: it counts once, however many build it. Contributions commute, so that is all
    group     the watermark of new groups is S, or that of the group which they are what is left of

Then another catalog says that all of it is ready. All that matters is in rows and in the catalog: whoever leads next
goes on. What is submitted is refused if the catalog is another one meanwhile: nobody adds to what is ready.

If it cannot be done the catalog that follows is the one before. What only adds something can be taken back at any time.
Everything else is certain after the first two of these, and as long as it is not the catalog is held (`catalogs`):
nobody has written by it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, cast

from ...changetables.errors import Error, IntegrityError, OperationalError, StaleRead
from ...changetables.keys import prefix_stop, table_range
from ...changetables.operators.slice import top_key
from ...changetables.plan import TOP, Answers, Asking, Contribution, LookUp, State
from ...changetables.schema import Column, Index, Table, Unique
from ...changetables.types import Row
from ...ltm.catalog import Catalog, Earlier, View
from ...ltm.cluster.catalogs import Stored, tables_of
from ...ltm.machine import Host, Outputs
from ...ltm.tables import IndexEntries, TableRows, Tables, ViewRows
from ...ltm.two_phase.messages import COMMITTED, KeyRange, Refresh, TxId
from ...ltm.two_phase.pages import PAGE_BYTES_MAX, fitting, row_bytes
from ...ltm.two_phase.views import refresh_of_entry
from ...ltm.versions import Horizon
from ..transaction import Intent, stands_twice
from ..two_phase.messages import Outcome, ReadAt, RowsAt, Submit
from ..vms.cluster_client import ASKER, Asker
from ..vms.groups import Group, changed_groups, groups_in_force
from ..vms.look_ups_between import answer_between
from ..vms.step_rows import STEPS, Step, page_key, paged, published, step_key, watermark_key, watermark_of

#: Rows of one page.
PAGE_ROWS = 200
#: What was refused is tried again after this long, and so is what others have to do first.
AGAIN_MS = 20
#: What fails for another reason than its rows.
FAILED_MS = 500
#: So long writers wait for the last step of groups: longer than a process that dies is missed for.
HELD_MS_MAX = 10_000
#: The first word of its timers.
BUILD = "build"
#: Its transactions have this bit, the term and a number below; its reads are numbered from the other one on.
_TX_BIT = 3 << 59
_READ_BIT = 1 << 24

#: In the place of a transaction's name.
NO_ID: TxId = (0, 0)

INDEXED = "builder: a page of an index is in"
PAGED = "builder: a page of a view is in"
FINISHED = "builder: all is made, the catalog does not say so"
PROBES = (INDEXED, PAGED, FINISHED)
GIVEN_UP = "builder: given up, the catalog does not say so"


class Pause(NamedTuple):
    ms: int


class Certain(NamedTuple):
    """The catalog stays: writers may go on."""


class Ended(NamedTuple):
    """The catalog that follows; `error`: class, message and hint, if what was begun is taken back."""

    catalog: Catalog
    error: tuple[str, str, str] | None = None


_Asked: TypeAlias = ReadAt | Submit | Pause | Certain
_Answer: TypeAlias = RowsAt | Outcome | None
_Building: TypeAlias = Generator[_Asked, _Answer, Ended]
_Making: TypeAlias = Generator[_Asked, _Answer, None]


class CatalogBuilder:
    """`follow` says what there is to make; `ended` is there when it is made. `failure_of`: W1 of the last step of a
    group that was dropped, and why."""

    def __init__(
        self,
        host: Host,
        coordinators: Sequence[str],
        page_rows: int = PAGE_ROWS,
        failure_of: Callable[[int], tuple[int, str]] = lambda key: (0, ""),
    ) -> None:
        self._host = host
        self._asker = Asker(host, coordinators)
        self.page_rows = page_rows
        self._failure_of = failure_of
        self._running: _Building | None = None
        #: Counts what it was told to make: answers for something else mean nothing.
        self._round = 0
        self._asked: object = None
        self._tx_number = 0
        self._now_ms = 0
        self._timers: list[tuple[int, object]] = []
        self.ended: Ended | None = None
        #: The version that it makes something for is not taken back any more.
        self.certain = False

    # -- the machine

    def begin(self, term: int) -> None:
        """It leads. Nobody had this `term` before."""
        self._tx_number = _TX_BIT | term << 24
        self._asker.begin(_READ_BIT | term)

    def follow(self, stored: Stored, now_ms: int, held: bool = False) -> Outputs:
        """Nothing, if the newest catalog has nothing unfinished, or its successor is on the way. `held`: it may be
        taken back, as nobody has written by it."""
        self.stop()
        self._now_ms = now_ms
        if stored.unfinished and not stored.pending:
            self._running = self._build(stored, held)
            self._go_on(self._round, None)
        return self._out()

    def stop(self) -> None:
        self._asker.forget(self._asked)
        self._running = None
        self._round += 1
        self.ended = None
        self.certain = False

    def is_for_it(self, message: RowsAt | Outcome) -> bool:
        number = message.number >> 32 if isinstance(message, RowsAt) else message.tx_id[0]
        return bool(number & _READ_BIT) if isinstance(message, RowsAt) else number & _TX_BIT == _TX_BIT

    def receive(self, message: RowsAt | Outcome, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        self._asker.receive(message, now_ms)
        return self._out()

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        assert isinstance(token, tuple)
        what, name = token
        if what == ASKER:
            self._asker.timer(name, now_ms)
        else:
            self._go_on(name, None)
        return self._out()

    def _out(self) -> Outputs:
        timers = [(at_ms, (BUILD, token)) for at_ms, token in (*self._timers, *self._asker.timers)]
        out = Outputs((), tuple(self._asker.send), tuple(timers))
        self._timers, self._asker.send, self._asker.timers = [], [], []
        return out

    def _go_on(self, round_: int, answer: _Answer) -> None:
        if self._running is None or round_ != self._round:
            return
        try:
            asked = self._running.send(answer)
            if isinstance(asked, Certain):
                self.certain = True
                asked = self._running.send(None)
        except StopIteration as finished:
            self._running = None
            self.ended = cast(Ended, finished.value)
            self._host.probe(FINISHED if self.ended.error is None else GIVEN_UP)
            return
        assert not isinstance(asked, Certain), "it is so once"
        if isinstance(asked, Pause):
            self._timers.append((self._now_ms + asked.ms, ("pause", round_)))
        else:
            noted = isinstance(asked, ReadAt) and not asked.at
            self._asked = self._asker.ask(asked, self._now_ms, lambda found: self._go_on(round_, found), noted)

    # -- what is to be made

    def _build(self, stored: Stored, held: bool) -> _Building:
        entry = stored.opened[-1]
        tables = tables_of(entry.data)
        before = tables_of(stored.opened[-2].data) if len(stored.opened) > 1 else None
        indexed = _indexed(tables)
        certain = False
        while True:
            try:
                if not certain:
                    yield from self._final_steps(stored, entry.ts)
                    yield from self._check_columns(before, tables, entry.ts)
                    certain = True
                    yield Certain()
                yield from self._indexes(tables, entry.ts)
                yield from self._check_unique(before, tables, entry.ts)
                for rows in tables.views.values():
                    if not rows.view.ready_ts and (before is None or rows.view.id not in before.views_by_id):
                        # The indexes of what it reads have their entries: those of deferred views just before it.
                        yield from self._contents(indexed, indexed.views[rows.view.name], entry.ts)
                    if rows.view.deferred:
                        yield from self._entries_as_of(tables, rows, entry.ts)
            except Error as error:
                is_held = held and not certain
                if before is not None and (is_held or _only_adds(before.catalog, tables.catalog)):
                    said = (type(error).__name__, error.message, error.hint)
                    return Ended(_taken_back(before.catalog, tables.catalog), said)
                # A view that was there cannot be taken back: it goes on when its rows allow it.
                yield Pause(FAILED_MS)
                continue
            yield from self._watermarks(stored, before, tables, entry.ts)
            return Ended(_ready(tables.catalog, entry.ts))

    def _submit(self, tables: Tables, read: RowsAt, what: Submit) -> Submit:
        self._tx_number += 1
        tx_id: TxId = (self._tx_number, read.at)
        return what._replace(tx_id=tx_id, catalog_version=tables.catalog.version, exact=True)

    # -- indexes

    def _indexes(self, tables: Tables, ts: int) -> _Making:
        owners: list[TableRows | ViewRows] = [*tables.by_name.values(), *tables.views.values()]
        for rows in owners:
            if isinstance(rows, ViewRows) and rows.view.deferred:
                continue  # when it shows what it is at S
            for entries in rows.indexes:
                if not entries.index.ready:
                    yield from self._entries(tables, rows, entries, ts)

    def _entries(self, tables: Tables, rows: TableRows | ViewRows, entries: IndexEntries, ts: int) -> _Making:
        start, stop = table_range(rows.table.id)
        size = self.page_rows
        while True:
            read = cast(RowsAt, (yield ReadAt(0, 0, (), ((start, stop, size, False),), some=True)))
            found = read.ranges[0]
            wanted: list[tuple[bytes, Row]]
            seen_ranges: tuple[KeyRange, ...] = ()
            if isinstance(rows, TableRows):
                # Who has written since S has made the entry.
                wanted = [(key, rows.whole(row)) for key, row_ts, row in found if row_ts <= ts]
            else:
                states = [(key, row) for key, _, row in found]
                wanted = yield from self._shown(tables, rows, [key for key, _ in states], read.at)
                seen_ranges = tuple(_values_of(rows, [row for _, row in states]))
            cells = tuple((entries.codec.entry(row, key), (key,)) for key, row in wanted)
            if cells:
                keys = tuple(key for key, _ in wanted)
                submit = Submit(NO_ID, False, (), read.at, keys, seen_ranges, cells=cells)
                if cast(Outcome, (yield self._submit(tables, read, submit))).state != COMMITTED:
                    size = max(1, size // 2)
                    yield Pause(AGAIN_MS)
                    continue
                self._host.probe(INDEXED)
            if len(found) < size and not read.left_ranges:
                return
            start = found[-1][0] + b"\0"
            size = min(2 * size, self.page_rows)

    def _entries_as_of(self, tables: Tables, rows: ViewRows, ts: int) -> _Making:
        """Of the new indexes of a deferred view, which is at S: in pages, as the contents of a view."""
        for entries in rows.indexes:
            start: bytes | None = table_range(rows.table.id)[0]
            page = 0
            while not entries.index.ready and start is not None:
                shown, last = yield from self._shown_page(tables, rows, start, ts, not page)
                page += 1
                made = [(entries.codec.entry(row, key), (key,)) for key, row in shown]
                refreshes = tuple(refresh_of_entry(entries.index.id, entry) for entry in made)
                yield from self._add(tables, entries.index.id, ts, page, refreshes)
                start = None if last is None else last + b"\0"

    # -- conditions

    def _check_columns(self, before: Tables | None, tables: Tables, ts: int) -> _Making:
        for table, column in _unfilled(before, tables):
            found, _ = yield from self._stored_page(table.id, table_range(table.id)[0], ts)
            if found:
                raise IntegrityError(
                    f"column {column.name!r} is NOT NULL and table {table.name!r} has rows", hint="give it a default"
                )

    def _check_unique(self, before: Tables | None, tables: Tables, ts: int) -> _Making:
        """By the entries of the index, which was ready before: rows that have the same values stand side by side."""
        for table, unique in _new_uniques(before, tables):
            rows = tables.by_name[table.name]
            entries = rows.index_on(unique.columns)
            assert entries is not None and entries.index.ready, "it is made before the condition"
            last_prefix, seen = b"", set[Row]()
            start: bytes | None = table_range(entries.index.id)[0]
            while start is not None:
                found, last = yield from self._stored_page(entries.index.id, start, ts)
                keys = tuple(cast(bytes, entry[0]) for _, _, entry in found)
                read = cast(RowsAt, (yield ReadAt(0, ts, keys)))
                for _, row in read.rows:
                    assert row is not None, "an entry at S has a row at S"
                    whole = rows.whole(row)
                    values = tuple(whole[position] for position in unique.columns)
                    if None in values:
                        continue
                    prefix = entries.codec.prefix_of(whole)
                    if prefix != last_prefix:
                        last_prefix, seen = prefix, set()
                    if values in seen:
                        raise stands_twice(unique, values)
                    seen.add(values)
                start = None if last is None else last + b"\0"

    # -- views

    def _contents(self, tables: Tables, rows: ViewRows, ts: int) -> _Making:
        """The view's relation evaluated as of S, branch by branch, in pages of one source."""
        plan, page = rows.plan, 0
        contributions = yield from _answered(tables, plan.contribute_constants(), ts)
        if plan.kept.slice_of:
            kept = plan.kept
            count = top_key(None if kept.limit is None else kept.offset + kept.limit)
            look_up = LookUp(kept.slice_of, TOP, [count], State.OLD)
            answers = yield from _as_of(tables, [look_up], ts)
            contributions = [*contributions, *plan.contribute_top(cast("list[Row]", answers[0][0]))]
        yield from self._contribute(tables, rows, ts, page, contributions)
        for part, source, name in plan.starts():
            start, first = table_range(tables.source(name).table.id)[0], True
            while True:
                found, last = yield from self._page_of(tables, name, start, ts, first)
                page += 1
                if found:
                    contributions = yield from _answered(tables, plan.contribute_from(part, source, found), ts)
                    yield from self._contribute(tables, rows, ts, page, contributions)
                if last is None:
                    break
                start, first = last + b"\0", False

    def _page_of(
        self, tables: Tables, name: str, start: bytes, ts: int, first: bool
    ) -> Generator[_Asked, _Answer, tuple[list[Row], bytes | None]]:
        """Rows that a table has or a view shows at S, and the last key, None if there are no others."""
        rows = tables.source(name)
        if isinstance(rows, TableRows):
            found, last = yield from self._stored_page(rows.table.id, start, ts)
            return [rows.whole(row) for _, _, row in found], last
        shown, last = yield from self._shown_page(tables, rows, start, ts, first)
        return [row for _, row in shown], last

    def _shown_page(
        self, tables: Tables, rows: ViewRows, start: bytes, ts: int, first: bool
    ) -> Generator[_Asked, _Answer, tuple[list[tuple[bytes, Row]], bytes | None]]:
        found, last = yield from self._stored_page(rows.table.id, start, ts)
        keys = [key for key, _, _ in found]
        if not keys and first and rows.plan.always:
            keys = [rows.plan.keys.encode_short(())]
        shown = yield from self._shown(tables, rows, keys, ts)
        return shown, last

    def _stored_page(
        self, table_id: int, start: bytes, ts: int
    ) -> Generator[_Asked, _Answer, tuple[list[tuple[bytes, int, Row]], bytes | None]]:
        """Whoever builds next must find the same pages: where they end is told by the rows alone, and not by how many
        of them were in one answer."""
        wanted: KeyRange | None = (start, table_range(table_id)[1], self.page_rows, False)
        found: list[tuple[bytes, int, Row]] = []
        while wanted is not None:
            read = cast(RowsAt, (yield ReadAt(0, ts, (), (wanted,), some=True)))
            found += read.ranges[0]
            wanted = read.left_ranges[0][1] if read.left_ranges else None
            count = fitting(found, _found_bytes, PAGE_BYTES_MAX)
            if count == self.page_rows or sum(map(_found_bytes, found[:count])) >= PAGE_BYTES_MAX:
                return found[:count], found[count - 1][0]
        return found, None

    def _shown(
        self, tables: Tables, rows: ViewRows, keys: list[bytes], ts: int
    ) -> Generator[_Asked, _Answer, list[tuple[bytes, Row]]]:
        if not keys:
            return []
        (shown,) = yield from _as_of(tables, [LookUp(rows.view.name, None, keys, State.OLD)], ts)
        return [(key, row) for key, row in zip(keys, cast("list[Row | None]", shown), strict=True) if row is not None]

    def _contribute(
        self, tables: Tables, rows: ViewRows, ts: int, page: int, contributions: Sequence[Contribution]
    ) -> _Making:
        refreshes = tuple((rows.view.id, *each) for each in contributions)
        yield from self._add(tables, rows.view.id, ts, page, refreshes)

    def _add(self, tables: Tables, owner_id: int, ts: int, page: int, refreshes: tuple[Refresh, ...]) -> _Making:
        """A page of a view or index. Once: whoever finds the page's row there leaves it."""
        if not refreshes:
            return
        key = page_key(owner_id, ts, page)
        writes = ((STEPS, ((key, self._page_row(owner_id, ts, page)),)),)
        submit = Submit(NO_ID, False, writes, refreshes=refreshes, at=ts)
        while True:
            read = cast(RowsAt, (yield ReadAt(0, 0, (key,))))
            if self._is_there(read):
                return
            if cast(Outcome, (yield self._submit(tables, read, submit))).state == COMMITTED:
                self._host.probe(PAGED)
                return
            yield Pause(AGAIN_MS)

    def _page_row(self, view_id: int, ts: int, page: int) -> Intent:
        return paged(view_id, ts, page)

    def _is_there(self, read: RowsAt) -> bool:
        return read.rows[0][1] is not None

    # -- groups

    def _final_steps(self, stored: Stored, ts: int) -> _Making:
        """The scheduler makes them, each group on its own."""
        groups = [each.group for each in groups_in_force(stored).values() if each.final_ts]
        keys = tuple(watermark_key(group.key) for group in groups)
        give_up_ms = self._now_ms + HELD_MS_MAX
        while keys:
            read = cast(RowsAt, (yield ReadAt(0, 0, keys)))
            late = [group for group, (_, row) in zip(groups, read.rows, strict=True) if watermark_of(row) < ts]
            if not late:
                return
            for group in late:
                failed_ts, failure = self._failure_of(group.key)
                if failed_ts == ts:
                    raise StaleRead(
                        f"{_named(late)} could not be refreshed, which has to be done before it changes: {failure}",
                        hint="mend the data that it names, or drop the view that cannot be computed",
                    )
            if self._now_ms >= give_up_ms:
                raise OperationalError(
                    f"{_named(late)} could not be refreshed within {HELD_MS_MAX} ms, which has to be done before it "
                    "changes",
                    hint="see its status for what it is doing, and try again",
                )
            yield Pause(AGAIN_MS)

    def _watermarks(self, stored: Stored, before: Tables | None, tables: Tables, ts: int) -> _Making:
        """Of new groups, when no step of a group that they are what is left of is open."""
        groups = changed_groups(before, tables)
        left_of = {
            group.key: each.group.key
            for each in groups_in_force(stored).values()
            for group in groups
            if each.stays and not set(group.ids).isdisjoint(each.group.ids)
        }
        divided = sorted(set(left_of.values()))
        steps = tuple(map(step_key, divided))
        marks = tuple(watermark_key(key) for key in (*divided, *(group.key for group in groups)))
        while groups:
            read = cast(RowsAt, (yield ReadAt(0, 0, (*steps, *marks))))
            found = [row for _, row in read.rows]
            if any(row is not None for row in found[: len(steps)]):
                yield Pause(AGAIN_MS)
                continue
            known = dict(zip(marks, map(watermark_of, found[len(steps) :]), strict=True))
            writes = []
            for group in groups:
                key = watermark_key(group.key)
                wanted = known[watermark_key(left_of[group.key])] if group.key in left_of else ts
                if known[key] < wanted:
                    writes.append((key, published(Step(group.key, known[key], wanted))))
            if not writes:
                return
            submit = Submit(NO_ID, False, ((STEPS, tuple(writes)),), read.at, (*steps, *dict.fromkeys(marks)))
            if cast(Outcome, (yield self._submit(tables, read, submit))).state != COMMITTED:
                yield Pause(AGAIN_MS)


def _named(groups: Sequence[Group]) -> str:
    names = [name for group in groups for name in group.names]
    return f"{'view' if len(names) == 1 else 'views'} {', '.join(map(repr, names))}"


def _found_bytes(found: tuple[bytes, int, Row]) -> int:
    return row_bytes(found[2])


def _as_of(tables: Tables, look_ups: Sequence[LookUp], ts: int) -> Generator[_Asked, _Answer, Answers]:
    reading = answer_between(tables, [each._replace(state=State.OLD) for each in look_ups], ts, ts)
    return (yield from cast("Generator[_Asked, _Answer, Answers]", reading))


def _answered(
    tables: Tables, asking: Asking[list[Contribution]], ts: int
) -> Generator[_Asked, _Answer, list[Contribution]]:
    """What a propagation gives whose look-ups are answered as of S."""
    answers: Answers | None = None
    while True:
        try:
            wanted = next(asking) if answers is None else asking.send(answers)
        except StopIteration as finished:
            return cast("list[Contribution]", finished.value)
        answers = yield from _as_of(tables, wanted, ts)


def _values_of(rows: ViewRows, states: Iterable[Row]) -> Iterable[KeyRange]:
    """Where the minima and maxima of these rows are."""
    for state in states:
        for number, _ in enumerate(rows.plan.extremes):
            prefix = rows.plan.extreme_prefix(number, state)
            yield prefix, prefix_stop(prefix), 0, False


# --- catalogs ---


def is_unfinished(catalog: Catalog) -> bool:
    """Whether there is something to make before all that a catalog has can be read."""
    if any(not view.ready_ts for view in catalog.views.values()):
        return True
    owners: list[Table | View] = [*catalog.tables.values(), *catalog.views.values()]
    return any(not index.ready for owner in owners for index in owner.indexes)


def has_new_conditions(before: Tables | None, after: Tables) -> bool:
    """Whether rows that are there have to be looked at."""
    return bool(_unfilled(before, after) or _new_uniques(before, after))


def is_uncertain(stored: Stored) -> bool:
    """Whether what the newest version changes can be found to be impossible, and cannot be taken back then unless
    nobody has written by it."""
    opened = stored.opened
    if len(opened) < _BOTH:
        return False
    before, after = (tables_of(entry.data) for entry in opened[-_BOTH:])
    return bool(_unfilled(before, after)) or any(each.final_ts for each in groups_in_force(stored).values())


#: A catalog and the one before.
_BOTH = 2


def _earlier_tables(before: Tables | None, after: Tables) -> Iterable[tuple[Table, Table]]:
    """Those that were there, as they were and as they are."""
    for name, rows in () if before is None else before.by_name.items():
        now = after.by_name.get(name)
        if now is not None and now.table.id == rows.table.id:
            yield rows.table, now.table


def _unfilled(before: Tables | None, after: Tables) -> list[tuple[Table, Column]]:
    """New columns without a value for rows that are there."""
    return [
        (now, column)
        for was, now in _earlier_tables(before, after)
        for column in now.columns[len(was.columns) :]
        if not column.nullable and not column.has_default
    ]


def _new_uniques(before: Tables | None, after: Tables) -> list[tuple[Table, Unique]]:
    return [
        (now, unique)
        for was, now in _earlier_tables(before, after)
        for unique in now.uniques
        if unique.columns not in [known.columns for known in was.uniques]
    ]


def _ready(catalog: Catalog, ts: int) -> Catalog:
    made = _with_ready_indexes(catalog)
    views = {
        name: replace(view, ready_ts=view.ready_ts or ts, earlier=_ended(view.earlier, ts))
        for name, view in made.views.items()
    }
    return replace(made, version=catalog.version + 1, views=views)


def _with_ready_indexes(catalog: Catalog) -> Catalog:
    tables = {name: replace(table, indexes=_all_ready(table.indexes)) for name, table in catalog.tables.items()}
    views = {name: replace(view, indexes=_all_ready(view.indexes)) for name, view in catalog.views.items()}
    return replace(catalog, tables=tables, views=views)


def _indexed(tables: Tables) -> Tables:
    """With plans that look into all indexes: by one that is not ready nothing is looked up."""
    catalog = _with_ready_indexes(tables.catalog)
    return tables if catalog == tables.catalog else Tables(catalog, Horizon(), tables)


def _ended(earlier: tuple[Earlier, ...], ts: int) -> tuple[Earlier, ...]:
    """What a view is from its switch on begins above S: the last step before it is of S."""
    return tuple(each if each.until else each._replace(until=ts + 1) for each in earlier)


def _all_ready(indexes: Iterable[Index]) -> tuple[Index, ...]:
    return tuple(index if index.ready else replace(index, ready=True) for index in indexes)


def _only_adds(before: Catalog, after: Catalog) -> bool:
    """Whether what was there is as it was, but for new indexes."""
    views = {view.id: replace(view, indexes=()) for view in after.views.values()}
    return before.dropped == after.dropped and all(
        views.get(view.id) == replace(view, indexes=()) for view in before.views.values()
    )


def _taken_back(before: Catalog, after: Catalog) -> Catalog:
    """Without what is unfinished, and what was made on the way to it: its cells go like those of something that was
    dropped."""
    left = before.without_unused()
    gone = set(_ids(after)) - set(_ids(before))
    return replace(left, version=after.version + 1, next_id=after.next_id, dropped=(*left.dropped, *sorted(gone)))


def _ids(catalog: Catalog) -> Iterable[int]:
    for table in catalog.tables.values():
        yield table.id
        yield from (index.id for index in table.indexes)
    for view in catalog.views.values():
        yield from view.ids
