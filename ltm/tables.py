"""The catalog compiled: for each table, index and view its codecs, its plan and its versions in memory.

A new catalog version makes a new `Tables`; what did not change is taken over, versions always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from ..changetables.algebra import Relation
from ..changetables.branches import hidden_name
from ..changetables.constraints import row_check
from ..changetables.errors import DataError, InternalError, OperationalError
from ..changetables.keeping import Kept, keep
from ..changetables.keys import IndexCodec, index_codec, key_under, primary_key_codec
from ..changetables.plan import ViewPlan, compile_view
from ..changetables.rows import RowCodec, row_codec
from ..changetables.schema import Index, Table
from ..changetables.types import Row, Value
from .catalog import Catalog, View
from .codec import make_pack, unpack_row, unpack_stream, with_one_nan
from .fixed import FixedValues
from .versions import Horizon, IndexVersions, RowVersions, TableVersions

if TYPE_CHECKING:
    from ..changetables.evaluators.columns import ArrowTable

#: Cells that are read and decoded together: some milliseconds. What many of their rows look up is looked up once.
PAGE_CELLS = 16_384
#: `BulkStore.values`.
ReadValues: TypeAlias = Callable[[bytes, bytes, int, int], tuple[Sequence[bytes], bytes | None]]


@dataclass(slots=True)
class IndexEntries:
    index: Index
    codec: IndexCodec
    versions: IndexVersions


@dataclass(slots=True, eq=False)
class ViewRows:
    """`views` are those that are kept from what this one shows. `level` is above that of all views that it reads."""

    view: View
    plan: ViewPlan
    versions: RowVersions
    indexes: tuple[IndexEntries, ...] = ()
    #: Every row has an output; a writer whose change would leave one without is refused.
    checked: bool = False
    #: Users know of it: it can be read, or could be before it began to be switched.
    was_ready: bool = False
    level: int = 0
    views: list[ViewRows] = field(default_factory=list)
    #: The deferred views that are made from it: no writer's transaction refreshes them.
    deferred: list[ViewRows] = field(default_factory=list)
    #: The hidden views of (group, value) that its minima and maxima are read from, in the order of `plan.extremes`.
    values: list[ViewRows] = field(default_factory=list)
    #: Of the local layout: where its other partial rows are. What is stored under a key is the sum of all of them
    #: (`partial_rows.py`); keys are those of the first.
    partials: tuple[ViewRows, ...] = ()
    #: What the API shows of a row (names, types); the API makes it on first use.
    header: object = None

    @property
    def table(self) -> Table:
        return self.plan.table

    @property
    def is_read(self) -> bool:
        """Whether a transaction has to find out what the view shows before and after it."""
        return bool(self.views) or (self.plan.fallible and self.checked and bool(self.plan.extremes))

    def index_on(self, columns: tuple[int, ...]) -> IndexEntries | None:
        return next((entries for entries in self.indexes if entries.index.columns == columns), None)


@dataclass(slots=True, eq=False)
class TableRows:
    """`views` are those that are kept synchronously from this table."""

    table: Table
    codec: RowCodec
    versions: RowVersions
    indexes: tuple[IndexEntries, ...]
    #: Raises IntegrityError for a row that breaks a CHECK; None if there is none.
    check: Callable[[Row], None] | None = None
    views: list[ViewRows] = field(default_factory=list)
    #: As in ViewRows.
    deferred: list[ViewRows] = field(default_factory=list)
    #: Whether a transaction is judged by the state that it leaves (UNIQUE, views that may have no value): then it must
    #: not be run as one with others.
    judged: bool = False
    #: What takes new rows into the views, where nothing else has to be decided about an insert: the coordinator's.
    inserts: object = None
    inserts_known: bool = False
    #: As in ViewRows.
    header: object = None

    def index_on(self, columns: tuple[int, ...]) -> IndexEntries | None:
        return next((entries for entries in self.indexes if entries.index.columns == columns), None)

    def whole(self, row: Row) -> Row:
        """A row that is older than the table's last columns, with their defaults. One that is newer stays as it is:
        whoever has an older catalog finds all that he knows of in it."""
        return row if len(row) >= len(self.table.columns) else self.codec.pad(row)

    def decoded(self, values: Sequence[bytes]) -> list[Row]:
        """Stored rows, together: in half the time that one after another would take."""
        rows = values.rows() if isinstance(values, FixedValues) else None
        pad, columns_count = self.codec.pad, len(self.table.columns)
        if rows is not None:
            # All have as many values as the first.
            return rows if len(rows[0]) == columns_count else list(map(pad, rows))
        rows = cast("list[Row]", list(unpack_stream(b"".join(values))))
        if self.codec.has_float:
            rows = list(map(with_one_nan, rows))
        return rows if {columns_count}.issuperset(map(len, rows)) else list(map(pad, rows))

    def pages(self, values: ReadValues, start: bytes, stop: bytes, at: int) -> Iterator[list[Row]]:
        """The rows of a range as a store has them, some at a time."""
        return map(self.decoded, _stored_values(values, start, stop, at))

    def pages_in_columns(
        self, values: ReadValues, start: bytes, stop: bytes, at: int
    ) -> Iterator[list[Row] | ArrowTable]:
        """The same, as columns where they are stored so."""
        for some in _stored_values(values, start, stop, at):
            columns = None
            if isinstance(some, FixedValues):
                from .woven import arrow_table  # who has read such values has pyarrow

                columns = arrow_table(some, self.table)
            yield self.decoded(some) if columns is None else columns


def _stored_values(values: ReadValues, start: bytes, stop: bytes, at: int) -> Iterator[Sequence[bytes]]:
    place: bytes | None = start
    while place is not None:
        some, place = values(place, stop, at, PAGE_CELLS)
        if some:
            yield some


class Tables:
    """Everything by name and by id."""

    def __init__(self, catalog: Catalog, horizon: Horizon, before: Tables | None = None) -> None:
        self.catalog = catalog
        self.by_name: dict[str, TableRows] = {}
        self.by_id: dict[int, TableRows] = {}
        self.views: dict[str, ViewRows] = {}
        self.views_by_id: dict[int, ViewRows] = {}
        #: For each deferred view the ids of all that move together with it, and a number, which is equal for them; the
        #: coordinator makes both on first use.
        self.group_ids: dict[str, tuple[int, ...]] | None = None
        self.group_keys: dict[str, int] | None = None
        #: Whether a view has partial rows.
        self.has_partials = False
        #: The views whose rows show minima and maxima.
        self.computed: set[str] = set()
        self.versions: dict[int, TableVersions] = {}  # type: ignore[type-arg]  # rows and index entries alike
        self.indexes: dict[int, tuple[TableRows | ViewRows, IndexEntries]] = {}
        for table in catalog.tables.values():
            self._add_table(table, horizon, before)
        for view in catalog.views.values():
            self._add_view(view, horizon, before)
        for base in self.by_name.values():
            base.judged = bool(base.table.uniques) or _any_fallible(base.views)
        for rows in self.views.values():
            if rows.view.hidden:
                rows.plan.called = next((view.name for view in catalog.readers_of(rows.view.name)), rows.view.text)

    # -- what plans read

    def source(self, name: str) -> TableRows | ViewRows:
        """A table or a view, hidden ones included."""
        found = self.by_name.get(name) or self.views.get(name)
        if found is None:
            raise InternalError(f"there is neither a table nor a view {name!r}")
        return found

    def table(self, name: str) -> Table:
        return self.source(name).table

    def cell_name(self, table_id: int, key: bytes) -> str | None:
        """What users call a stored row or index entry; None if there is nothing with this id."""
        indexed = self.indexes.get(table_id)
        if indexed is not None:
            rows, entries = indexed
            columns = ", ".join(rows.table.columns[position].name for position in entries.index.columns)
            name = f" {entries.index.name!r}" if entries.index.name else ""
            return f"the entry {key.hex()} of index{name} ({columns}) of {_called(rows)}"
        found = self.by_id.get(table_id) or self.views_by_id.get(table_id)
        if found is None:
            return None
        values = _key_values(found, key_under(found.table.id, key))
        return f"the row with key {key.hex() if values is None else values} of {_called(found)}"

    # -- compiling

    def _add_table(self, table: Table, horizon: Horizon, before: Tables | None) -> None:
        known = before.by_id.get(table.id) if before else None
        if known is not None and known.table == table:
            rows = TableRows(known.table, known.codec, known.versions, known.indexes, known.check)
        else:
            codec = row_codec(table)
            decode = _decoder(codec, len(table.columns))
            versions = known.versions if known else RowVersions(table.id, horizon, make_pack(), decode)
            versions.decode = decode
            entries = tuple(_index_entries(table, index, horizon, before) for index in table.indexes)
            rows = TableRows(table, codec, versions, entries, row_check(table))
        self.by_name[table.name] = self.by_id[table.id] = rows
        self.versions[table.id] = rows.versions
        for entries_of_index in rows.indexes:
            self.versions[entries_of_index.index.id] = entries_of_index.versions
            self.indexes[entries_of_index.index.id] = (rows, entries_of_index)

    def _add_view(self, view: View, horizon: Horizon, before: Tables | None) -> None:
        known = before.views_by_id.get(view.id) if before else None
        if (
            known is not None
            and before is not None
            and known.view.indexes == view.indexes
            and known.view.scope == view.scope
            and known.view.needs == view.needs
            and self._same(known, before)
        ):
            plan = known.plan
        else:
            plan = compile_view(view.name, view.id, view.relation, _Chosen(self, view), view.indexes)
        # A deferred view has a horizon of its own: nobody reads it above its watermark.
        own = Horizon(horizon) if view.deferred else horizon
        versions = known.versions if known else RowVersions(view.id, own, make_pack(), _decode_view_row)
        if known is not None and plan is known.plan:
            entries = known.indexes
        else:
            entries = tuple(_index_entries(plan.table, index, versions.horizon, before) for index in view.indexes)
        checked = view.ready_ts > 0 or (known is not None and known.checked)
        was_ready = view.ready_ts > 0 or (known is not None and known.was_ready)
        rows = ViewRows(view, plan, versions, entries, checked, was_ready)
        self.views[view.name] = self.views_by_id[view.id] = rows
        self.versions[view.id] = versions
        if view.partials:
            self._add_partials(rows, versions.horizon, before)
        for entries_of_index in entries:
            self.versions[entries_of_index.index.id] = entries_of_index.versions
            self.indexes[entries_of_index.index.id] = (rows, entries_of_index)
        for name in plan.reads:
            source = self.source(name)
            if isinstance(source, ViewRows):
                rows.level = max(rows.level, source.level + 1)
        for name in plan.sources:
            _readers(self.source(name), view).append(rows)
        for extreme in plan.extremes:
            # What its groups show changes with the values, even where no sum changes.
            self.computed.add(view.name)
            values = self.views[extreme.table]
            rows.values.append(values)
            readers = _readers(values, view)
            if not any(reader is rows for reader in readers):
                readers.append(rows)

    def _add_partials(self, rows: ViewRows, horizon: Horizon, before: Tables | None) -> None:
        """Contributions to them, and their versions, are found by their ids, as those of any view."""
        made = []
        for number in rows.view.partials:
            known = before.views_by_id.get(number) if before else None
            versions = known.versions if known else RowVersions(number, horizon, make_pack(), _decode_view_row)
            made.append(ViewRows(rows.view, rows.plan, versions, (), rows.checked, rows.was_ready))
            self.views_by_id[number] = made[-1]
            self.versions[number] = versions
        rows.partials = tuple(made)
        self.has_partials = True

    def _same(self, known: ViewRows, before: Tables) -> bool:
        """Whether everything that the plan was compiled for is as it was. An index that it does not use is no part."""
        needs = frozenset(known.view.needs)
        for name in known.plan.reads:
            table, was = self.table(name), _table_of(before, name)
            if table is not was and (was is None or _with_chosen(table, needs) != _with_chosen(was, needs)):
                return False
        return True


class Planned:
    """What a view is made from, or would need: the tables and views that there are, and hidden ones that are still to
    be made. A view that is there may ask for such, too: in a branch that turns out to be empty."""

    def __init__(self, tables: Tables, scope: str = "") -> None:
        self._tables, self._scope = tables, scope
        #: The missing hidden views, each after those that it reads. Some may have been asked for in vain: see `needed`.
        self.missing: dict[str, tuple[Relation, Table, Kept]] = {}

    def table(self, name: str) -> Table:
        planned = self.missing.get(name)
        return self._tables.table(name) if planned is None else planned[1]

    def inner(self, relation: Relation) -> Table:
        name = hidden_name(relation, self._scope)
        if name not in self._tables.views and name not in self.missing:
            kept = keep(relation, self)
            self.missing[name] = (relation, kept.table(0, name), kept)
        return self.table(name)

    def needed(self, kept: Kept) -> dict[str, Relation]:
        """The missing hidden views that something kept really reads, straight or through others."""
        names: set[str] = set()
        waiting = [*kept.reads]
        while waiting:
            name = waiting.pop()
            if name in self.missing and name not in names:
                names.add(name)
                waiting += self.missing[name][2].reads
        return {name: relation for name, (relation, _, _) in self.missing.items() if name in names}

    def plans(self) -> dict[str, ViewPlan]:
        """The plans of all hidden views, those that are still to be made included."""
        known = {name: rows.plan for name, rows in self._tables.views.items()}
        missing = {name: compile_view(name, 0, relation, self) for name, (relation, _, _) in self.missing.items()}
        return {**known, **missing}


class _Chosen:
    """The tables as one view sees them: with the indexes that were chosen for it when it was created. A plan must not
    change to another index that comes later, which may go again."""

    def __init__(self, tables: Tables, view: View) -> None:
        self._planned, self._needs = Planned(tables, view.scope), frozenset(view.needs)

    def table(self, name: str) -> Table:
        return _with_chosen(self._planned.table(name), self._needs)

    def inner(self, relation: Relation) -> Table:
        return self._planned.inner(relation)


def _called(rows: TableRows | ViewRows) -> str:
    if isinstance(rows, TableRows):
        return f"table {rows.table.name!r}"
    return f"{'what is kept for ' if rows.view.hidden else ''}view {rows.plan.called!r}"


def _key_values(rows: TableRows | ViewRows, key: bytes) -> tuple[Value, ...] | None:
    """None if the key does not hold them: it was shortened, or is damaged."""
    codec = primary_key_codec(rows.table)
    try:
        values = codec.decode(key)
        return values if codec.encode_short(values) == key else None
    except (OperationalError, DataError):
        return None


def _readers(source: TableRows | ViewRows, view: View) -> list[ViewRows]:
    """Where a view is noted among those that are made from a source."""
    return source.deferred if view.deferred else source.views


def _any_fallible(views: list[ViewRows]) -> bool:
    return any(view.plan.fallible or _any_fallible(view.views) for view in views)


def _with_chosen(table: Table, needs: frozenset[tuple[str, tuple[int, ...]]]) -> Table:
    """Without the indexes that are not among the chosen ones."""
    chosen = tuple(index for index in table.indexes if (table.name, index.columns) in needs)
    return table if chosen == table.indexes else replace(table, indexes=chosen)


def _table_of(tables: Tables, name: str) -> Table | None:
    found = tables.by_name.get(name) or tables.views.get(name)
    return None if found is None else found.table


def _index_entries(table: Table, index: Index, horizon: Horizon, before: Tables | None) -> IndexEntries:
    known = before.indexes.get(index.id) if before else None
    versions = known[1].versions if known else IndexVersions(index.id, horizon)
    codec = index_codec(table, index)
    versions.prefix_and_entry = codec.prefix_and_entry
    return IndexEntries(index, codec, versions)


def _decoder(codec: RowCodec, columns_count: int) -> Callable[[bytes], Row]:
    def decode(data: bytes) -> Row:
        row = unpack_row(data)
        if codec.has_float:
            row = with_one_nan(row)
        return row if len(row) == columns_count else codec.pad(row)

    return decode


def _decode_view_row(data: bytes) -> Row:
    return with_one_nan(unpack_row(data))
