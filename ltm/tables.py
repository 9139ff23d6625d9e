"""The catalog compiled: for each table, index and view its codecs, its plan and its versions in memory.

A new catalog version makes a new `Tables`; what did not change is taken over, versions always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..changetables.keys import IndexCodec, index_codec
from ..changetables.plan import ViewPlan, compile_view
from ..changetables.rows import RowCodec, row_codec
from ..changetables.schema import Index, Table
from ..changetables.types import Row
from .catalog import Catalog, View
from .codec import make_pack, unpack_row, with_one_nan
from .versions import Horizon, IndexVersions, RowVersions, TableVersions


@dataclass(slots=True)
class IndexEntries:
    index: Index
    codec: IndexCodec
    versions: IndexVersions


@dataclass(slots=True)
class ViewRows:
    view: View
    plan: ViewPlan
    versions: RowVersions
    #: Every row has an output; a writer whose change would leave one without is refused.
    checked: bool = False
    #: What the API shows of a row (names, types); the API makes it on first use.
    header: object = None


@dataclass(slots=True)
class TableRows:
    """`views` are those that are kept synchronously from this table."""

    table: Table
    codec: RowCodec
    versions: RowVersions
    indexes: tuple[IndexEntries, ...]
    views: tuple[ViewRows, ...] = ()
    #: As in ViewRows.
    header: object = None

    def index_on(self, columns: tuple[int, ...]) -> IndexEntries | None:
        return next((entries for entries in self.indexes if entries.index.columns == columns), None)


class Tables:
    """Everything by name and by id."""

    def __init__(self, catalog: Catalog, horizon: Horizon, before: Tables | None = None) -> None:
        self.catalog = catalog
        self.by_name: dict[str, TableRows] = {}
        self.by_id: dict[int, TableRows] = {}
        self.views: dict[str, ViewRows] = {}
        self.views_by_id: dict[int, ViewRows] = {}
        self.versions: dict[int, TableVersions] = {}  # type: ignore[type-arg]  # rows and index entries alike
        self.indexes: dict[int, tuple[TableRows, IndexEntries]] = {}
        for table in catalog.tables.values():
            self._add_table(table, horizon, before)
        for view in catalog.views.values():
            self._add_view(view, horizon, before)

    def _add_table(self, table: Table, horizon: Horizon, before: Tables | None) -> None:
        known = before.by_id.get(table.id) if before else None
        if known is not None and known.table == table:
            rows = TableRows(known.table, known.codec, known.versions, known.indexes)
        else:
            codec = row_codec(table)
            decode = _decoder(codec, len(table.columns))
            versions = known.versions if known else RowVersions(table.id, horizon, make_pack(), decode)
            versions.decode = decode
            entries = tuple(_index_entries(table, index, horizon, before) for index in table.indexes)
            rows = TableRows(table, codec, versions, entries)
        self.by_name[table.name] = self.by_id[table.id] = rows
        self.versions[table.id] = rows.versions
        for entries_of_index in rows.indexes:
            self.versions[entries_of_index.index.id] = entries_of_index.versions
            self.indexes[entries_of_index.index.id] = (rows, entries_of_index)

    def _add_view(self, view: View, horizon: Horizon, before: Tables | None) -> None:
        known = before.views_by_id.get(view.id) if before else None
        sources = {source.table: self.catalog.tables[source.table] for source in view.definition.sources}
        if (
            known is not None
            and before is not None
            and all(before.catalog.tables.get(name) == table for name, table in sources.items())
        ):
            plan = known.plan
        else:
            plan = compile_view(view.name, view.id, view.definition, sources)
        versions = known.versions if known else RowVersions(view.id, horizon, make_pack(), _decode_view_row)
        rows = ViewRows(view, plan, versions, checked=view.ready_ts > 0 or (known is not None and known.checked))
        self.views[view.name] = self.views_by_id[view.id] = rows
        self.versions[view.id] = versions
        for name in plan.tables:
            table = self.by_name[name]
            table.views = (*table.views, rows)


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
