"""What a query reads: tables and views at the timestamp of a snapshot or transaction, through keys and indexes.

`ReadsReader` is the reader of `changetables.execute` over `Reads`. Inside a transaction its own writes count, and what
was read goes into the read set, page by page before the page is handed out: a query that stops early has read no more
than it saw, and never less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from .changetables.algebra import Distinct, Filter, Group, Join, Project, Relation, Scan, Semi, SetOp, Top, scans
from .changetables.errors import DataError, InterfaceError, InternalError, ProgrammingError
from .changetables.expressions import Call, ColumnRef, Expression, Literal
from .changetables.keys import VIEW_PREFIX_BYTES_WHOLE, prefix_stop, table_range
from .changetables.rows import coerce
from .changetables.schema import Table
from .changetables.types import BOOL, Value
from .changetables.types import Row as Values
from .ltm.participant import rows_by_prefix
from .ltm.tables import TableRows, ViewRows
from .names import nearest
from .reads import PAGE_ROWS, Reads, ViewReads, check_switched, sources

#: Rows that are read one by one from the end of a table; after that, the rest is read forward and turned round.
EDGE_ROWS = 1_000


def tables_of(reads: Reads) -> Mapping[str, Table]:
    """Tables, and views as tables, by name. A table that is newer than the snapshot has no rows there, but can be
    written."""
    newest = reads._ltm.tables
    found = sources(newest if reads._snapshot is None else reads._tables)
    if reads._snapshot is not None and reads._tables is not newest:
        found = {**newest.catalog.tables, **found}
    # The indexes of views serve other views; a query finds rows of a view by its key.
    return {name: replace(table, indexes=()) if table.view else table for name, table in found.items()}


def read_relation(
    reads: Reads, relation: Relation, tables: Mapping[str, Table], columns: Sequence[str] = ()
) -> list[Values]:
    """The rows of a relation. `columns` are what its outputs are for, if not for a result: errors name them."""
    from .changetables.execute import execute

    reader = ReadsReader(reads)
    try:
        return execute(relation, tables, reader)
    except DataError as error:
        from .changetables.locating import located

        raise located(error, relation, tables, reader, columns) from None


class ReadsReader:
    """Reads of one snapshot or transaction, as `changetables.access.Reader` asks for them."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        reads._begin()

    def get_many(self, table: str, keys: list[Values]) -> list[Values | None]:
        view = self._view(table)
        if view is not None:
            return _ViewSource(self._reads, view).get_many(keys)
        reads, rows = self._reads, self._reads._table(table)
        encoded = [_encoded(rows, key) for key in keys]
        reads._ltm.fetch(rows.versions, [key for key in encoded if key is not None], reads._begin())
        return [None if key is None else reads._row(rows, key) for key in encoded]

    def find(self, table: str, columns: tuple[int, ...], values: list[Values]) -> list[list[Values]]:
        view = self._view(table)
        if view is not None:
            return _ViewSource(self._reads, view).find(columns, values)
        reads, rows = self._reads, self._reads._table(table)
        entries = rows.index_on(columns)
        if entries is not None and entries.index.ready:
            own = reads._own(rows)
            added = rows_by_prefix(entries, own)
            prefixes = [entries.codec.prefix(each) for each in values]
            reads._ltm.fetch_prefixes(entries.versions, prefixes, reads._begin())
            return [reads._by_prefix(rows, entries, prefix, own, added) for prefix in prefixes]
        return [list(self._under(rows, each)) for each in values]

    def _under(self, rows: TableRows, values: Values) -> Iterator[Values]:
        """The rows whose key begins with these values."""
        try:
            prefix = rows.codec.keys.encode_prefix(values)
        except DataError:
            return iter(())  # A sum of a view may have more than 64 bits, a key of a table has not.
        return self._pages(rows, prefix, prefix_stop(prefix))

    def scan(self, table: str, start: Values | None, stop: Values | None, descending: bool = False) -> Iterator[Values]:
        view = self._view(table)
        if view is not None:
            return _ViewSource(self._reads, view).scan(start, stop, descending)
        rows = self._reads._table(table)
        low, high = table_range(rows.table.id)
        if start is not None:
            low = rows.codec.keys.encode_prefix(start)
        if stop is not None:
            high = prefix_stop(rows.codec.keys.encode_prefix(stop))
        if low >= high:
            return iter(())
        return self._pages_back(rows, low, high) if descending else self._pages(rows, low, high)

    def _view(self, name: str) -> ViewRows | None:
        tables = self._reads._tables
        view = None if name in tables.by_name else tables.views.get(name)
        check_switched(view)
        return view

    def _pages(self, rows: TableRows, low: bytes, high: bytes) -> Iterator[Values]:
        reads = self._reads
        merged = reads._merged(rows, low, high)
        while page := list(itertools.islice(merged, PAGE_ROWS)):
            after = page[-1][0] + b"\0"
            reads._read_range(rows.table.id, low, after)
            low = after
            for _, values in page:
                yield values
        reads._read_range(rows.table.id, low, high)

    def _pages_back(self, rows: TableRows, low: bytes, high: bytes) -> Iterator[Values]:
        """From the last key back. Whoever wants the last few rows gets them without reading the others."""
        reads, count = self._reads, 0
        merged = self._merged_back(rows, low, high)
        while count < EDGE_ROWS and (page := list(itertools.islice(merged, PAGE_ROWS))):
            first = page[-1][0]
            reads._read_range(rows.table.id, first, high)
            high, count = first, count + len(page)
            for _, values in page:
                yield values
        reads._read_range(rows.table.id, low, high)
        rest = list(reads._merged(rows, low, high))
        while rest:
            yield rest.pop()[1]

    def _merged_back(self, rows: TableRows, low: bytes, high: bytes) -> Iterator[tuple[bytes, Values]]:
        """The stored rows with the transaction's own ones in their places, from the last key back."""
        reads = self._reads
        own = reads._own(rows)
        waiting = sorted((key for key, values in own.items() if values is not None and low <= key < high), reverse=True)
        position = 0
        for key, values in reads._ltm.edge(rows.versions, low, high, reads._begin(), last=True):
            while position < len(waiting) and waiting[position] > key:
                yield waiting[position], own[waiting[position]]  # type: ignore[misc]  # None was left out
                position += 1
            if key not in own:
                yield key, values
        for key in waiting[position:]:
            yield key, own[key]  # type: ignore[misc]  # None was left out


class _ViewSource:
    """What a view shows, as rows of its table: outputs, then hidden columns for its key and multiplicity."""

    def __init__(self, reads: Reads, rows: ViewRows) -> None:
        self._reads = reads
        self._rows = rows

    def get_many(self, keys: Sequence[Values]) -> list[Values | None]:
        if self._is_cut:
            found = self.find(self._rows.table.key, keys)
            return [some[0] if some else None for some in found]
        reads, rows = self._reads, self._rows
        encoded = [rows.plan.keys.encode_short(key) for key in keys]
        reads._ltm.fetch_states(rows, encoded, reads._at(rows))
        return [self._shown(reads._view_row(rows, key)) for key in encoded]

    def find(self, columns: tuple[int, ...], values: Sequence[Values]) -> list[list[Values]]:
        if self._is_cut or columns != self._rows.table.key[: len(columns)]:
            everything = list(self.scan(None, None, False))
            return [_having(everything, columns, each) for each in values]
        return [_having(list(self._between(each, each)), columns, each) for each in values]

    def scan(self, start: Values | None, stop: Values | None, descending: bool) -> Iterator[Values]:
        """The rows between bounds, and perhaps some more, in the order of the key as SQL has it: the stored order has
        NULL and long values elsewhere."""
        found = list(self._cut() if self._is_cut else self._between(start, stop))
        key = self._rows.table.key
        found.sort(key=lambda row: [_rank(row[position]) for position in key], reverse=descending)
        return iter(found)

    @property
    def _is_cut(self) -> bool:
        """Whether more is stored than is shown: the first rows in an order."""
        return self._rows.plan.kept.kind == "ordered"

    def _between(self, start: Values | None, stop: Values | None) -> Iterator[Values]:
        low, high = table_range(self._rows.view.id)
        if start:
            low = self._bound(start)
        if stop:
            high = max(low, prefix_stop(self._bound(stop)))
        stored = False
        for _, state in self._reads._view_rows(self._rows, low, high):
            stored = True
            row = self._shown(state)
            if row is not None:
                yield row
        if not stored and self._rows.plan.always:
            row = self._shown(None)
            if row is not None:
                yield row

    def _bound(self, values: Values) -> bytes:
        """What keys with these first values begin with, as far as no key is cut."""
        return self._rows.plan.keys.encode_prefix(values)[:VIEW_PREFIX_BYTES_WHOLE]

    def _cut(self) -> Iterator[Values]:
        """Rows come once for each time that they count, so each counts once here; their keys are nobody's business."""
        columns = self._rows.table.columns
        hidden = len(columns) - len(self._rows.plan.columns)
        tail: Values = (None,) * (hidden - 1) + (1,) if hidden else ()
        for _, outputs in ViewReads(self._reads, self._rows.view.name)._top():
            yield outputs + tail

    def _shown(self, state: Values | None) -> Values | None:
        reads, plan = self._reads, self._rows.plan
        extremes = reads._extremes(self._rows, state, reads._view_own()) if plan.extremes else ()
        return plan.source_row(state, extremes)


class _NoTables:
    """For expressions over constants: nothing is read."""

    def get_many(self, table: str, keys: list[Values]) -> list[Values | None]:
        self._refuse(table)

    def find(self, table: str, columns: tuple[int, ...], values: list[Values]) -> list[list[Values]]:
        self._refuse(table)

    def scan(self, table: str, start: Values | None, stop: Values | None, descending: bool = False) -> Iterator[Values]:
        self._refuse(table)

    def _refuse(self, table: str) -> NoReturn:
        raise InternalError(f"constants read table {table!r}")


NO_TABLES = _NoTables()


def _encoded(rows: TableRows, key: Values) -> bytes | None:
    """The bytes of a key; None for one that is too long for any row to have it."""
    try:
        return rows.codec.keys.encode_checked(key)
    except DataError:
        return None


def _having(rows: Sequence[Values], columns: Sequence[int], values: Values) -> list[Values]:
    pairs = list(zip(columns, values, strict=True))
    return [row for row in rows if all(row[place] is value or row[place] == value for place, value in pairs)]


def _rank(value: Value) -> tuple[int, object]:
    """Values in the order of SQL: NULL above NaN above everything else."""
    if value is None:
        return (2, 0)
    return (1, 0) if value != value else (0, value)


# --- join() of the builder: where it starts ---


def started(relation: Relation, start: Mapping[str, object], tables: Mapping[str, Table]) -> Relation:
    """As if WHERE named rows of one table by their values, {"alias.column": value}: what comes from them."""
    if not isinstance(start, Mapping):
        raise InterfaceError(f"start takes a mapping, not {type(start).__name__}", hint='like {"alias.column": value}')
    found = list(scans(relation))
    aliases = list(dict.fromkeys(scan.alias for scan in found))
    parts = {name: name.partition(".") for name in start}
    named = {alias for alias, _, _ in parts.values()}
    if len(named) != 1 or not named <= set(aliases):
        raise ProgrammingError(
            f"start must name columns of one table of the join as 'alias.column'; aliases are {', '.join(aliases)}",
            hint='like {"alias.column": value}',
        )
    alias = named.pop()
    scan = next(scan for scan in found if scan.alias == alias)
    wanted = [_equality(scan, tables[scan.table], parts[name][2], value) for name, value in start.items()]
    condition = wanted[0]
    for other in wanted[1:]:
        condition = Call("and", (condition, other), BOOL)
    return _replaced(relation, lambda each: Filter(each, condition) if each.alias == alias else each)


def _equality(scan: Scan, table: Table, name: str, value: object) -> Expression:
    position = table.position(name)
    if position is None or position not in scan.positions:
        known = [table.columns[visible].name for visible in table.visible()]
        raise ProgrammingError(f"table {table.name!r} has no column {name!r}", hint=nearest(name, known))
    column = table.columns[position]
    place = scan.positions.index(position)
    literal = Literal(coerce(column, value, f"{table.name}.{name}"), column.type)
    return Call("=", (ColumnRef(0, place, name, column.type, column.nullable), literal), BOOL)


def _replaced(relation: Relation, change: Callable[[Scan], Relation]) -> Relation:
    """The tree with every use of a table changed. Its rows are those that the result comes from, so an outer join makes
    none without them."""
    match relation:
        case Scan():
            return change(relation)
        case Join() | Semi() | SetOp():
            left, right = _replaced(relation.left, change), _replaced(relation.right, change)
            if isinstance(relation, Join):
                kind = relation.kind
                if left != relation.left:
                    kind = {"right": "inner", "full": "left"}.get(kind, kind)
                if right != relation.right:
                    kind = {"left": "inner", "full": "right"}.get(kind, kind)
                return replace(relation, kind=kind, left=left, right=right)
            return replace(relation, left=left, right=right)
        case Filter() | Project() | Group() | Distinct() | Top():
            return replace(relation, input=_replaced(relation.input, change))
        case _:
            return relation
