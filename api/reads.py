"""Reads at one timestamp over tables and views: what snapshots and transactions share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from .changetables.branches import is_hidden
from .changetables.builder import Query
from .changetables.errors import Error, InterfaceError, ProgrammingError, StaleRead
from .changetables.keys import VIEW_PREFIX_BYTES_WHOLE, prefix_stop, table_range
from .changetables.plan import FIRST, LAST, STATES, TOP, WHOLE_TABLE, LookUp, top_count
from .changetables.schema import Table
from .changetables.types import Row as Values
from .changetables.types import Value
from .coordinator.ports import GroupMoved, Switched
from .coordinator.vms.groups import group_ids, group_key
from .freshness import ANY_AGE, LEVEL_NAMES, REFRESH_MS_MAX, Levels, check_token, freshen, levels_of
from .ltm.partial_rows import all_partials, keys_of, ranges_of, total
from .ltm.participant import own_rows, rows_by_prefix
from .ltm.reading import Whole
from .ltm.tables import IndexEntries, TableRows, Tables, ViewRows
from .names import nearest
from .rows import Columns, Result, Row, Token, read_alone

if TYPE_CHECKING:
    from .changetables.sql import ParameterValues
    from .ports import OpenNode

#: Rows of one page of a scan: what a query that stops early may have read too much.
PAGE_ROWS = 256

readers = itertools.count(1)

OwnRows = Mapping[str, Mapping[bytes, Values | None]]
NO_ROWS: Mapping[bytes, Values | None] = {}


class _NoKey:
    """Stands for a key that was not given: None is a key, that of the group of NULL."""

    def __repr__(self) -> str:
        return "no key"


NO_KEY = _NoKey()


class _Pinned(tuple[dict[int, int], int]):
    """The pin of a reader: (pins, reader). It goes when this does; most transactions never have one."""

    __slots__ = ()

    def __del__(self) -> None:
        pins, reader = self
        pins.pop(reader, None)


class Mark(NamedTuple):
    """Where a deferred view is read: its watermark, how far that was behind when it was fixed, and what keeps it."""

    at: int
    lag_ms: float
    pinned: _Pinned


T = TypeVar("T")

#: In a cluster, a view that becomes sync cannot be read while its last step is made: readers wait so long, and look so
#: often whether it is there.
SWITCH_S_MAX = 20.0
SWITCH_LOOK_S = 0.01


class Reads:
    """Reads at a timestamp that is fixed by the first read. The subclass may add rows of its own (`_own`) and hears
    of everything that was read (`_read_key`, `_read_range`)."""

    _what = "snapshot"
    _snapshot: int | None = None
    _ended: str | None = None
    #: Lets go of the snapshot when the reader is dropped without an end: it must not keep old versions alive.
    _pinned: _Pinned | None = None
    #: When it was fixed, by the monotonic clock.
    _begun_s = 0.0
    #: What all reads here ask for.
    _levels: Levels = ANY_AGE
    #: Where deferred views are read, by their group.
    _marks: dict[int, Mark] | None = None
    #: The thread that it belongs to; None: whoever has it sees to it that one uses it at a time.
    _owner: int | None = None

    def __init__(self, node: OpenNode) -> None:
        self._node = node
        self._ltm = node.engine.ltm
        self._tables: Tables = self._ltm.tables
        self._reader = next(readers)

    # -- the public reads

    def get(self, table: str, key: object = NO_KEY, /, **columns: object) -> Row | None:
        """The row with this primary key (composite: a tuple in key order, or keyword arguments), or None.

        All reads of tables take `at_least`, `latest` and `max_lag`: StaleRead if the snapshot is older. Where the table
        has a column of such a name, `get` and `find` mean the column.
        """
        rows = self._table(table)
        if columns:
            columns = self._leveled(rows, columns)
        values = self._row(rows, rows.codec.key_of(one_key(key, columns)))
        return None if values is None else read_alone(columns_of(rows).row(values), self._begin())

    def get_many(
        self,
        table: str,
        keys: Iterable[object],
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> list[Row | None]:
        """`get` for each key, in order."""
        rows = self._table(table)
        self._require(rows, levels_of(at_least, latest, max_lag))
        make = columns_of(rows).row
        if not isinstance(keys, Iterable) or isinstance(keys, str | bytes):
            raise InterfaceError(f"get_many takes several keys, not {type(keys).__name__}", hint="use get for one key")
        encoded = [rows.codec.key_of(key) for key in keys]
        self._ltm.fetch(rows.versions, encoded, self._begin())
        found = [self._row(rows, key) for key in encoded]
        return [None if values is None else make(values) for values in found]

    def find(self, table: str, /, **columns: object) -> Result:
        """The rows whose columns equal the given values, through the primary key or an index."""
        rows = self._table(table)
        columns = self._leveled(rows, columns)
        if not columns:
            raise InterfaceError("find needs at least one column=value", hint="use scan() to read a whole table")
        found = self._find(rows, rows.codec.changes(columns))
        return self._result(columns_of(rows), found)

    def scan(
        self,
        table: str,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        """The rows of start <= key < stop in key order; a shorter tuple stands for a prefix of a composite key."""
        rows = self._table(table)
        self._require(rows, levels_of(at_least, latest, max_lag))
        low, high = _bounds(rows, start, stop)
        _check_limit(limit)
        return self._result(columns_of(rows), [values for _, values in self._scan(rows, low, high, limit)])

    def join(self, query: Query, start: Mapping[str, object] | None = None) -> Result:
        """Run a join of the builder: from the rows that `start` names ({"alias.column": value}) along its edges.

        Without `start` it begins with every row of the first table.
        """
        if not isinstance(query, Query):
            raise InterfaceError("join takes a query", hint="make one with vt.query(...)")
        from .sql import run_query  # it needs sqlglot, which costs more than everything else to import

        self._begin()
        return run_query(self, query, start)

    @property
    def token(self) -> Token:
        """The place of these reads in the one order."""
        return Token(self._begin())

    # -- what subclasses fill in

    def _own(self, rows: TableRows) -> Mapping[bytes, Values | None]:
        """The rows of this transaction that differ from the snapshot."""
        return NO_ROWS

    def _own_row(self, rows: TableRows, key: bytes) -> tuple[Values | None] | None:
        """The row as this transaction left it, in a tuple; None if it did not touch it."""
        return None

    def _read_key(self, table_id: int, key: bytes) -> None:
        """`key` was read."""

    def _read_range(self, table_id: int, start: bytes, stop: bytes) -> None:
        """Everything in the range was read."""

    # -- inside

    def _begin(self) -> int:
        """Fix the timestamp of all reads."""
        if self._snapshot is None:
            self._check_open()
            ltm = self._ltm
            while True:
                # The catalog of that timestamp: a newer index has no entries for it, a dropped one lacks the newest.
                self._tables = ltm.tables
                self._pinned = tuple.__new__(_Pinned, (ltm.horizon.pins, self._reader))
                self._snapshot = ltm.horizon.pin(self._reader)
                if ltm.tables is self._tables:
                    break
            self._begun_s = time.monotonic()
        return self._snapshot

    def _end(self, how: str) -> None:
        self._ended = how
        if self._pinned is not None:
            self._ltm.horizon.unpin(self._reader)
        self._marks = None

    def _at(self, rows: TableRows | ViewRows) -> int:
        """The timestamp at which a table or view is read: of a deferred view, its watermark when it was first read
        here. Views that move together are read at one."""
        at = self._begin()
        if type(rows) is TableRows or not rows.view.deferred:  # type: ignore[union-attr]  # a subclass is a ViewRows
            return at
        assert isinstance(rows, ViewRows), "only views are deferred"
        return self._mark(rows, self._levels)[0].at

    def _mark(self, rows: ViewRows, levels: Levels) -> tuple[Mark, bool]:
        """Where a deferred view is read here, and whether that was just fixed: as fresh as is asked for."""
        if self._marks is None:
            self._marks = {}
        group = group_key(self._tables, rows.view.name)
        known = self._marks.get(group)
        if known is not None:
            return known, False
        new = self._new_mark(rows, levels)
        # Another task may have been faster than the one that waited: the first mark counts.
        mark = self._marks.setdefault(group, new)
        return mark, mark is new

    def _new_mark(self, rows: ViewRows, levels: Levels) -> Mark:
        while True:
            behind = levels is ANY_AGE or freshen(self._node, rows, levels)
            reader = next(readers)
            pinned = tuple.__new__(_Pinned, (self._ltm.horizon.pins, reader))
            at = self._ltm.horizon_of(rows).pin(reader)
            self._check_group(rows, levels)
            lag_ms = self._node.lag_ms(at) if behind else 0.0
            if levels.max_lag_ms is None or lag_ms <= levels.max_lag_ms:
                return Mark(at, lag_ms, pinned)

    def _check_group(self, rows: ViewRows, levels: Levels) -> None:
        """All views of a group are read at one mark, and show what hidden ones have there: so they must still be the
        same ones, and move together. A group that is gone as a whole stays where it was."""
        now = self._ltm.tables
        if now is self._tables:
            return
        ids, ids_now = group_ids(self._tables)[rows.view.name], group_ids(now).get(rows.view.name, ())
        if set(ids) <= set(ids_now) or (levels is ANY_AGE and not any(each in now.views_by_id for each in ids)):
            return
        raise Switched(
            f"view {rows.view.name!r} is refreshed in another way since this {self._what} began",
            hint=f"begin a new {self._what}",
        )

    def _require(self, rows: TableRows | ViewRows, levels: Levels) -> None:
        """StaleRead if what is read here is older than asked for. A deferred view that was not read yet is waited
        for; everything else stays where it is."""
        if levels is ANY_AGE:
            return
        fixed = self._snapshot is not None
        at = self._begin()
        lag_ms = (time.monotonic() - self._begun_s) * 1000
        if is_deferred(rows):
            mark, new = self._mark(cast(ViewRows, rows), levels)
            fixed, at, lag_ms = not new, mark.at, self._node.lag_ms(mark.at)
        check_token(self._node, levels.at_least_ts)
        if not fixed or self._ltm.horizon.durable_ts <= at:
            return  # it has every commit
        if levels.at_least_ts > at:
            raise self._stale(rows, "does not have the commit that was asked for")
        if levels.latest:
            raise self._stale(rows, "is not the latest: there are newer commits")
        if levels.max_lag_ms is not None and lag_ms > levels.max_lag_ms:
            raise self._stale(rows, f"is {lag_ms:.0f} ms behind, not at most {levels.max_lag_ms:g} ms")

    def _stale(self, rows: TableRows | ViewRows, why: str) -> StaleRead:
        what = f"{'table' if isinstance(rows, TableRows) else 'view'} {rows.table.name!r}"
        return StaleRead(f"{what} in this {self._what} {why}", hint=f"begin a new {self._what}")

    def _leveled(self, rows: TableRows, columns: dict[str, object]) -> dict[str, object]:
        """The columns among keyword arguments; what the others ask for is met."""
        asked = {name: columns[name] for name in LEVEL_NAMES if name in columns and rows.table.position(name) is None}
        if not asked:
            return columns
        self._require(rows, levels_of(**asked))
        return {name: value for name, value in columns.items() if name not in asked}

    def _check_open(self) -> None:
        if self._ended is not None:
            raise InterfaceError(f"the {self._what} is {self._ended}", hint=f"begin a new one with db.{self._what}()")
        self._node.check_open()

    def _table(self, name: str) -> TableRows:
        if self._ended is not None or self._node.closed or (self._owner is not None and self._owner != get_ident()):
            self._check_open()
        newest = self._ltm.tables
        try:
            rows = newest.by_name.get(name) if self._snapshot is None else self._tables.by_name.get(name)
        except TypeError:  # it cannot be a name
            raise unknown_table(name, newest) from None
        if rows is None:
            # A table that is newer than the snapshot has no rows there, but can be written.
            newest = self._ltm.newest_tables()
            rows = newest.by_name.get(name)
            if rows is None:
                raise unknown_table(name, newest)
        return rows

    def _row(self, rows: TableRows, key: bytes) -> Values | None:
        at = self._begin()
        own = self._own_row(rows, key)
        if own is not None:
            return own[0]
        self._read_key(rows.table.id, key)
        return self._ltm.read(rows.versions, key, at)

    def _scan(self, rows: TableRows, start: bytes, stop: bytes, limit: int | None) -> list[tuple[bytes, Values]]:
        found = list(itertools.islice(self._merged(rows, start, stop), limit))
        # With a limit, only what was seen was read.
        stop_read = found[-1][0] + b"\0" if limit is not None and len(found) == limit and found else stop
        self._read_range(rows.table.id, start, stop_read)
        return found

    def _merged(self, rows: TableRows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Values]]:
        """The stored rows with the transaction's own ones in their places."""
        own = self._own(rows)
        stored = self._ltm.scan(rows.versions, start, stop, self._begin())
        if not own:
            yield from stored
            return
        waiting = sorted(key for key, values in own.items() if values is not None and start <= key < stop)
        position = 0
        for key, values in stored:
            while position < len(waiting) and waiting[position] < key:
                yield waiting[position], own[waiting[position]]  # type: ignore[misc]  # None was left out
                position += 1
            if key not in own:
                yield key, values
        for key in waiting[position:]:
            yield key, own[key]  # type: ignore[misc]  # None was left out

    def _find(self, rows: TableRows, wanted: Mapping[int, object]) -> list[Values]:
        table = rows.table
        if all(column in wanted for column in table.key):
            key = rows.codec.keys.encode_checked(tuple(wanted[column] for column in table.key))  # type: ignore[misc]
            values = self._row(rows, key)
            found = [] if values is None else [values]
        else:
            found = self._find_by_index(rows, wanted)
        return [values for values in found if all(_equal(values[column], value) for column, value in wanted.items())]

    def _find_by_index(self, rows: TableRows, wanted: Mapping[int, object]) -> list[Values]:
        usable = [
            entries for entries in rows.indexes
            if entries.index.ready and all(column in wanted for column in entries.index.columns)
        ]  # fmt: skip
        if usable:
            best = max(usable, key=lambda entries: len(entries.index.columns))
            prefix = best.codec.prefix(tuple(wanted[column] for column in best.index.columns))  # type: ignore[misc]
            own = self._own(rows)
            return self._by_prefix(rows, best, prefix, own, rows_by_prefix(best, own))
        leading = list(itertools.takewhile(lambda column: column in wanted, rows.table.key))
        if leading:
            prefix = rows.codec.keys.encode_prefix(tuple(wanted[column] for column in leading))  # type: ignore[misc]
            return [values for _, values in self._scan(rows, prefix, prefix_stop(prefix), None)]
        names = [rows.table.columns[column].name for column in wanted]
        raise ProgrammingError(
            f"no index of table {rows.table.name!r} serves a look-up by {', '.join(names)}",
            hint=f"db.create_index({rows.table.name!r}, {names[0]!r})",
        )

    def _by_prefix(
        self,
        rows: TableRows | ViewRows,
        entries: IndexEntries,
        prefix: bytes,
        own: Mapping[bytes, Values | None],
        added: Mapping[bytes, list[Values]],
    ) -> list[Values]:
        at = self._at(rows)
        stop = prefix_stop(prefix)
        if not is_deferred(rows):
            self._read_range(entries.index.id, prefix, stop)
        self._ltm.catch_up(entries.versions)
        keys = [key for _, key in self._ltm.scan(entries.versions, prefix, stop, at) if key not in own]
        self._ltm.fetch(rows.versions, keys, at)
        found = [values for key in keys if (values := self._shown_row(rows, key)) is not None]
        return [*found, *added.get(prefix, ())]

    def _look_up(self, look_ups: list[LookUp], tables: Tables, own: OwnRows) -> list[list[object]]:
        """Answer a plan's look-ups at the snapshot; own rows count as it says."""
        return [self._answer(look_up, tables.source(look_up.table), tables, own) for look_up in look_ups]

    def _answer(self, look_up: LookUp, rows: TableRows | ViewRows, tables: Tables, own: OwnRows) -> list[object]:
        at, keys = self._at(rows), look_up.keys
        if look_up.index == STATES:
            assert isinstance(rows, ViewRows), "only a view has states"
            self._ltm.fetch_states(rows, keys, at)
            return [self._stored(rows, key) for key in keys]
        mine = own_rows(own, look_up)
        if look_up.index is None:
            self._ltm.fetch(rows.versions, keys, at)
            return [mine[key] if key in mine else self._shown_row(rows, key) for key in keys]
        if look_up.index == WHOLE_TABLE:
            start, stop = table_range(rows.table.id)
            self._read_all(rows, start, stop)
            found = [row for key, row in self._ltm.shown(rows, start, stop, at) if key not in mine]
            return [[*found, *(row for row in mine.values() if row is not None)] for _ in keys]
        if look_up.index == TOP:
            assert isinstance(rows, ViewRows), "only a view is kept in order"
            self._read_all(rows, *table_range(rows.table.id))
            return [self._ltm.first_rows(rows, top_count(key), at, mine) for key in keys]
        if look_up.index in (FIRST, LAST):
            assert isinstance(rows, ViewRows), "only hidden views have groups of values"
            return [self._extreme(rows, prefix, look_up.index == LAST, mine) for prefix in keys]
        entries = tables.indexes[look_up.index][1]
        added = rows_by_prefix(entries, mine)
        self._ltm.fetch_prefixes(entries.versions, keys, at)
        return [self._by_prefix(rows, entries, prefix, mine, added) for prefix in keys]

    def _stored(self, rows: TableRows | ViewRows, key: bytes) -> Values | None:
        """What is stored under a key: of a view, its state."""
        at = self._at(rows)
        if isinstance(rows, ViewRows) and rows.partials:
            for each, own in zip(all_partials(rows), keys_of(rows, key), strict=True):
                self._read_key(each.versions.table_id, own)
            return self._ltm.state(rows, key, at)
        if not is_deferred(rows):
            self._read_key(rows.table.id, key)
        return self._ltm.read(rows.versions, key, at)

    def _read_all(self, rows: TableRows | ViewRows, start: bytes, stop: bytes) -> None:
        """A range was read. That of a deferred view need not still hold at the commit: it is old by its nature."""
        if isinstance(rows, ViewRows) and rows.partials:
            for each, low, high in ranges_of(rows, start, stop):
                self._read_range(each.versions.table_id, low, high)
        elif not is_deferred(rows):
            self._read_range(rows.table.id, start, stop)

    def _shown_row(self, rows: TableRows | ViewRows, key: bytes) -> Values | None:
        """The row of a table, or the one that a view shows, without the transaction's own changes."""
        stored = self._stored(rows, key)
        if isinstance(rows, TableRows):
            return stored
        return rows.plan.source_row(stored, self._extremes(rows, stored, {}))

    def _extremes(self, rows: ViewRows, state: Values | None, own: OwnRows) -> Values:
        """The minima and maxima of a group."""
        plan = rows.plan
        if state is None and not plan.always:
            return ()
        return tuple(
            self._extreme(
                rows.values[number], plan.extreme_prefix(number, state or ()), each.last, own.get(each.table, NO_ROWS)
            )
            for number, each in enumerate(plan.extremes)
        )

    def _extreme(self, values: ViewRows, prefix: bytes, last: bool, mine: Mapping[bytes, Values | None]) -> Value:
        self._read_all(values, prefix, prefix_stop(prefix))
        return self._ltm.extreme(values, prefix, self._at(values), last, mine)

    def _result(
        self, columns: Columns, found: Iterable[Values], sources: Iterable[TableRows | ViewRows] = ()
    ) -> Result:
        """`sources`: the tables and views that the rows are made from."""
        rows, lag_ms, watermarks = columns.rows(found), 0.0, []
        for source in sources:
            if is_deferred(source):
                mark, _ = self._mark(cast(ViewRows, source), self._levels)
                watermarks.append(mark.at)
                lag_ms = max(lag_ms, mark.lag_ms)
            else:
                watermarks.append(self._begin())
        return Result(columns, rows, min(watermarks, default=self._begin()), lag_ms)

    # -- views

    def _view_result(self, rows: ViewRows, found: Iterable[Values]) -> Result:
        columns = view_columns(rows)
        return Result(columns, columns.rows(found), *self._seen_at(rows))

    def _seen_at(self, rows: ViewRows) -> tuple[int, float]:
        """The watermark and lag_ms of what is read of a view."""
        if not rows.view.deferred:
            return self._begin(), 0.0
        mark, _ = self._mark(rows, self._levels)
        return mark.at, mark.lag_ms

    def _view_row(self, rows: ViewRows, key: bytes) -> Values | None:
        return self._stored(rows, key)

    def _view_rows(self, rows: ViewRows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Values]]:
        """What a view stores in a range, which counts as read."""
        self._read_all(rows, start, stop)
        return self._view_states(rows, start, stop)

    def _view_states(self, rows: ViewRows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Values]]:
        """As `_view_rows`, one after the other; how far it was read is the caller's to say."""
        return self._ltm.states(rows, start, stop, self._at(rows))

    def _view_own(self) -> OwnRows:
        """What views show because of the transaction's own writes."""
        return {}


class Snapshot(Reads):
    """Read-only: one timestamp, many tables and views. A context manager."""

    def __init__(self, node: OpenNode, levels: Levels = ANY_AGE) -> None:
        super().__init__(node)
        self._levels = levels

    def __enter__(self) -> Snapshot:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end("closed")

    def view(self, name: str) -> ViewReads:
        """The view as of this snapshot."""
        return ViewReads(self, name)

    def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        """Run SELECTs as of this snapshot; the result is that of the last one."""
        from .sql import run_in_snapshot

        return run_in_snapshot(self, text, params)


class AlignedSnapshot(Snapshot):
    """A snapshot at a new common watermark of some deferred views: tables and all other views that are never behind
    are read there, too."""

    def __init__(self, node: OpenNode, levels: Levels, views: Sequence[str]) -> None:
        super().__init__(node, levels)
        self._views = views

    def _begin(self) -> int:
        if self._snapshot is None:
            self._check_open()
            for name in self._views:
                view_rows(name, self._ltm.tables)
            through_switches(self._align)
            self._begun_s = time.monotonic()
        assert self._snapshot is not None
        return self._snapshot

    def _align(self) -> None:
        while self._snapshot is None:
            # What moves together is found by the catalog: it must be one from the beginning to the end, and what this
            # process knows of it may be from before.
            self._tables = self._ltm.newest_tables()
            with self._node.refresher.aligned(self._views, REFRESH_MS_MAX) as at:
                if self._ltm.newest_tables() is not self._tables:
                    continue
                self._pinned = self._pin(self._reader, at)
                self._marks = {
                    group_key(self._tables, name): Mark(at, 0.0, self._pin(next(readers), at))
                    for name in self._views
                    if view_rows(name, self._tables).view.deferred
                }
                self._snapshot = at

    def _pin(self, reader: int, at: int) -> _Pinned:
        self._ltm.horizon.pins[reader] = at
        return tuple.__new__(_Pinned, (self._ltm.horizon.pins, reader))


class ViewReads:
    """A view at the timestamp of a snapshot or transaction."""

    def __init__(self, reads: Reads, name: str) -> None:
        self._reads = reads
        self._reads._begin()
        if name not in reads._tables.views and name in reads._ltm.tables.views:
            raise ProgrammingError(f"view {name!r} is newer than this {reads._what}", hint="begin a new one")
        self._rows = view_rows(name, reads._tables)
        self.name = name

    def get(
        self,
        key: object = NO_KEY,
        /,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        **columns: object,
    ) -> Row | None:
        """The row of this group; without GROUP BY, `get()` gives the one row."""
        self._reads._check_open()
        self._reads._require(self._rows, levels_of(at_least, latest, max_lag))
        return self._get(key, columns)

    def _get(self, key: object, columns: Mapping[str, object]) -> Row | None:
        reads, plan = self._reads, self._rows.plan
        if plan.kept.leading:
            first = plan.leading_bound(view_key(plan.key_columns, key, columns))
            return self._alone(next(iter(self._outputs(first, prefix_stop(first), 1)), None))
        stored_key = plan.key_of(view_key(plan.key_columns, key, columns))
        if plan.kept.limit is not None:
            return self._alone(next((row for row_key, row in self._top() if row_key == stored_key), None))
        state = reads._view_row(self._rows, stored_key)
        shown = next(self._shown([(stored_key, state)]), None)
        return None if shown is None else self._alone(shown[1])

    def _alone(self, found: Values | None) -> Row | None:
        if found is None:
            return None
        return read_alone(view_columns(self._rows).row(found), *self._reads._seen_at(self._rows))

    def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        """The whole view."""
        reads, rows = self._reads, self._rows
        reads._check_open()
        reads._require(rows, levels_of(at_least, latest, max_lag))
        return reads._view_result(rows, self._outputs(*table_range(rows.view.id), None))

    def scan(
        self,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        """The rows of start <= key < stop in key order, each as often as its multiplicity."""
        reads, plan = self._reads, self._rows.plan
        reads._check_open()
        reads._require(self._rows, levels_of(at_least, latest, max_lag))
        _check_limit(limit)
        low, high = table_range(self._rows.view.id)
        if start is not None:
            low = plan.bound_of(start)
        if stop is not None:
            high = plan.bound_of(stop)
        return reads._view_result(self._rows, self._outputs(low, high, limit))

    def _outputs(self, low: bytes, high: bytes, limit: int | None) -> list[Values]:
        """`low` and `high` are bounds of whole keys; stored ones are cut if they are long."""
        plan = self._rows.plan
        if low >= high:
            return []
        if plan.kept.kind == "ordered":
            return list(itertools.islice((row for key, row in self._top() if low <= key < high), limit))
        if limit is not None and not plan.always and max(len(low), len(high)) <= VIEW_PREFIX_BYTES_WHOLE:
            return [row for _, row in self._first(low, high, limit)]
        stored: Iterable[tuple[bytes, Values | None]]
        if max(len(low), len(high)) > VIEW_PREFIX_BYTES_WHOLE:
            cut_low, cut_high = low[:VIEW_PREFIX_BYTES_WHOLE], prefix_stop(high[:VIEW_PREFIX_BYTES_WHOLE])
            found = self._reads._view_rows(self._rows, cut_low, cut_high)
            between = [(plan.whole_key(state), state) for _, state in found]
            stored = sorted(item for item in between if low <= item[0] < high)
        else:
            stored = self._reads._view_rows(self._rows, low, high)
        if plan.always:
            stored = list(stored) or [(plan.keys.encode_short(()), None)]
        if limit is None and plan.is_plain:
            # A small view that is read again and again: most rows are shown once.
            if not plan.always:
                return plan.shown([state for _, state in stored if state is not None])
            times, output = plan.multiplicity, plan.output
            return [output(state) for _, state in stored if times(state)]
        return list(itertools.islice((row for _, row in self._shown(stored)), limit))

    def _shown(self, stored: Iterable[tuple[bytes, Values | None]]) -> Iterator[tuple[bytes, Values]]:
        """What stored rows show, each as often as it counts."""
        reads, plan = self._reads, self._rows.plan
        if not plan.extremes:
            for key, state in stored:
                for _ in range(plan.multiplicity(state)):
                    yield key, plan.output(state)
            return
        own, at = reads._view_own(), reads._at(self._rows)
        stored = iter(stored)
        while page := list(itertools.islice(stored, PAGE_ROWS)):
            reads._ltm.fetch_extremes(self._rows, [state for _, state in page], at)
            for key, state in page:
                extremes = reads._extremes(self._rows, state, own)
                for _ in range(plan.multiplicity(state, extremes)):
                    yield key, plan.output(state, extremes)

    def _top(self) -> Iterator[tuple[bytes, Values]]:
        """The first rows of a view that is kept in order."""
        kept, whole = self._rows.plan.kept, table_range(self._rows.view.id)
        if kept.limit is not None:
            return iter(self._first(*whole, kept.offset + kept.limit)[kept.offset :])
        return itertools.islice(self._shown(self._reads._view_rows(self._rows, *whole)), kept.offset, None)

    def _first(self, low: bytes, high: bytes, count: int) -> list[tuple[bytes, Values]]:
        """The first rows that are shown between two bounds, at most so many: only what was seen was read."""
        stored = self._reads._view_states(self._rows, low, high)
        found = list(itertools.islice(self._shown(stored), count))
        if found and len(found) == count:
            # Keys that are long were cut: what begins alike may stand in any order behind it.
            high = min(high, prefix_stop(found[-1][0][:VIEW_PREFIX_BYTES_WHOLE]))
        self._reads._read_all(self._rows, low, high)
        return found


def whole_view(node: OpenNode, name: str) -> Result | None:
    """A view as a whole at the newest timestamp, the short way; None if it takes the long one. Dashboards do this all
    the time, mostly with views of a few groups, which are in memory."""
    ltm = node.engine.ltm
    tables = ltm.tables
    rows = tables.views.get(name)
    if rows is None or node.closed or not is_plain(rows):
        return None
    found = ltm.newest_whole(rows, next(readers))
    return None if found is None or ltm.tables is not tables else whole_result(rows, found)


def is_plain(rows: ViewRows) -> bool:
    """Whether a view is there to be read, always up to date, and shows just what it stores, in that order."""
    view, kept = rows.view, rows.plan.kept
    is_there = bool(view.ready_ts) and not (view.hidden or view.deferred)
    return is_there and rows.plan.is_plain and not kept.always and kept.kind != "ordered"


def whole_result(rows: ViewRows, found: Whole) -> Result:
    at, parts = found
    columns = view_columns(rows)
    states = _sums(rows, parts) if rows.partials else parts[0]
    return Result(columns, columns.rows(rows.plan.shown(states)), at)


def _sums(rows: ViewRows, parts: list[list[Values]]) -> list[Values]:
    """What the partial rows of a local view add up to, in key order."""
    encode, key_count = rows.plan.keys.encode_short, len(rows.plan.key_columns)
    alike: dict[bytes, list[Values]] = {}
    for state in itertools.chain.from_iterable(parts):
        alike.setdefault(encode(state[:key_count]), []).append(state)
    sums = [total(rows.plan, alike[key]) for key in sorted(alike)]
    return [state for state in sums if state is not None]


class OneViewRead(ViewReads):
    """A view with a snapshot of its own, which ends with it."""

    def __enter__(self) -> OneViewRead:
        return self

    def __exit__(self, *_: object) -> None:
        self._reads._end("closed")


def is_deferred(rows: TableRows | ViewRows) -> bool:
    return isinstance(rows, ViewRows) and rows.view.deferred


def view_key(key_columns: tuple[tuple[str, object, bool], ...], key: object, columns: Mapping[str, object]) -> object:
    """A view's key from what the caller gave: nothing for a view without GROUP BY."""
    if not key_columns and key is NO_KEY and not columns:
        return ()
    return one_key(key, columns)


def one_key(key: object, columns: Mapping[str, object]) -> object:
    """The key that a caller gave by position or by keyword arguments."""
    if columns:
        if key is not NO_KEY:
            raise InterfaceError(
                "give the key either by position or by name, not both", hint="like get(1) or get(id=1)"
            )
        return columns
    if key is NO_KEY:
        raise InterfaceError("which row? the key is missing", hint="give it by position, or its columns by name")
    return key


def _bounds(rows: TableRows, start: object, stop: object) -> tuple[bytes, bytes]:
    low, high = table_range(rows.table.id)
    if start is not None:
        low = rows.codec.prefix_of_key(start)
    if stop is not None:
        high = rows.codec.prefix_of_key(stop)
    return low, high


def _check_limit(limit: int | None) -> None:
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InterfaceError(
            f"limit must be a whole number of at least 0, not {limit!r}", hint="leave it out for all rows"
        )


def _equal(value: object, wanted: object) -> bool:
    return value is wanted or (value == wanted and value is not None)


def columns_of(rows: TableRows) -> Columns:
    if rows.header is None:
        rows.header = Columns.of_table(rows.table)
    return cast(Columns, rows.header)


def view_columns(rows: ViewRows) -> Columns:
    if rows.header is None:
        rows.header = Columns(rows.plan.columns)
    return cast(Columns, rows.header)


def view_rows(name: str, tables: Tables) -> ViewRows:
    if not isinstance(name, str):
        raise InterfaceError(f"a view is named by text, not {type(name).__name__}", hint="give its name")
    rows = tables.views.get(name)
    if rows is None and name in tables.by_name:
        raise ProgrammingError(f"{name!r} is a table", hint="read it with get, find or scan in a transaction")
    check_switched(rows)
    if rows is None or not rows.view.ready_ts or rows.view.hidden:
        named = [known for known, each in tables.views.items() if each.view.ready_ts and not each.view.hidden]
        raise ProgrammingError(f"there is no view {name!r}", hint=nearest(name, named))
    return rows


def is_there(rows: ViewRows) -> bool:
    """Whether users know of a view: also of one that is just being switched."""
    return rows.was_ready and not rows.view.hidden


def check_switched(rows: ViewRows | None) -> None:
    """In a cluster, a view that becomes sync cannot be read until its last step is in."""
    if rows is not None and not rows.view.ready_ts and is_there(rows):
        raise Switched(f"view {rows.view.name!r} is just becoming sync", hint="try again in a moment")


def through_switches(read: Callable[[], T]) -> T:
    """A read that stands alone, begun again when a view that it reads was just switched: it is read as it is refreshed
    from then on."""
    give_up = time.monotonic() + SWITCH_S_MAX
    while True:
        try:
            return read()
        except (Switched, GroupMoved):
            if time.monotonic() > give_up:
                raise
        time.sleep(SWITCH_LOOK_S)


def sources(tables: Tables) -> dict[str, Table]:
    """What a query can read: tables, and views as tables."""
    return {**tables.catalog.tables, **{name: rows.table for name, rows in tables.views.items() if is_there(rows)}}


def unknown_table(name: object, tables: Tables) -> Error:
    if not isinstance(name, str):
        return InterfaceError(f"a table is named by text, not {type(name).__name__}", hint="give its name")
    if name in tables.views:
        return ProgrammingError(f"{name!r} is a view", hint=f"read it with .view({name!r}); it changes with its tables")
    known = [each for each in tables.by_name if not is_hidden(each)]
    return ProgrammingError(f"there is no table {name!r}", hint=nearest(name, known))
