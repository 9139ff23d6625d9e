"""The catalog: which tables, indexes and views there are. Immutable; every change makes a new version.

It is small, so a change is logged as the whole new catalog, and a checkpoint stores it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from ..changetables.definition import Definition
from ..changetables.schema import Index, Table
from ..changetables.serialize import from_plain, table_from_plain, table_to_plain, to_plain


@dataclass(frozen=True, slots=True)
class View:
    """`ready_ts` is the commit_ts from which on the view can be read, 0 while its contents are being computed."""

    id: int
    name: str
    definition: Definition
    refresh: str
    text: str
    ready_ts: int = 0


@dataclass(frozen=True, slots=True)
class Catalog:
    """`dropped` are ids whose cells still have to be deleted from the store."""

    version: int = 0
    next_id: int = 1
    tables: Mapping[str, Table] = field(default_factory=dict)
    views: Mapping[str, View] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()

    def with_table(self, table: Table) -> Catalog:
        return self._next(tables={**self.tables, table.name: table}, next_id=max(self.next_id, _highest_id(table) + 1))

    def without_table(self, name: str) -> Catalog:
        table = self.tables[name]
        rest = {other: kept for other, kept in self.tables.items() if other != name}
        return self._next(tables=rest, dropped=(*self.dropped, table.id, *(index.id for index in table.indexes)))

    def without_index(self, name: str, index: Index) -> Catalog:
        table = self.tables[name]
        kept = replace(table, indexes=tuple(other for other in table.indexes if other.id != index.id))
        return self._next(tables={**self.tables, name: kept}, dropped=(*self.dropped, index.id))

    def with_view(self, view: View) -> Catalog:
        return self._next(views={**self.views, view.name: view}, next_id=max(self.next_id, view.id + 1))

    def without_view(self, name: str) -> Catalog:
        rest = {other: kept for other, kept in self.views.items() if other != name}
        return self._next(views=rest, dropped=(*self.dropped, self.views[name].id))

    def without_dropped(self, ids: tuple[int, ...]) -> Catalog:
        return replace(self, dropped=tuple(dropped for dropped in self.dropped if dropped not in ids))

    def without_unfinished(self) -> Catalog:
        """What a crash left half made: views and indexes whose contents were still being computed."""
        catalog = self
        for view in self.views.values():
            if not view.ready_ts:
                catalog = catalog.without_view(view.name)
        for table in self.tables.values():
            for index in table.indexes:
                if not index.ready:
                    catalog = catalog.without_index(table.name, index)
        return catalog

    def _next(
        self,
        *,
        tables: Mapping[str, Table] | None = None,
        views: Mapping[str, View] | None = None,
        next_id: int | None = None,
        dropped: tuple[int, ...] | None = None,
    ) -> Catalog:
        return Catalog(
            self.version + 1,
            self.next_id if next_id is None else next_id,
            self.tables if tables is None else tables,
            self.views if views is None else views,
            self.dropped if dropped is None else dropped,
        )


def _highest_id(table: Table) -> int:
    return max([table.id, *(index.id for index in table.indexes)])


def catalog_to_plain(catalog: Catalog) -> list[object]:
    views = [
        [view.id, view.name, to_plain(view.definition), view.refresh, view.text, view.ready_ts]
        for view in catalog.views.values()
    ]
    tables = [table_to_plain(table) for table in catalog.tables.values()]
    return [catalog.version, catalog.next_id, tables, views, list(catalog.dropped)]


def _lists(plain: object) -> object:
    """The codec gives arrays as tuples, the definitions are written as lists."""
    return [_lists(item) for item in plain] if isinstance(plain, tuple) else plain


def catalog_from_plain(plain: object) -> Catalog:
    version, next_id, tables, views, dropped = cast(
        tuple[int, int, tuple[object], tuple[tuple[object]], tuple[int]], plain
    )
    made = [table_from_plain(_lists(table)) for table in tables]
    seen = []
    for item in views:
        view_id, name, definition, refresh, text, ready_ts = cast(tuple[int, str, object, str, str, int], item)
        seen.append(View(view_id, name, from_plain(_lists(definition)), refresh, text, ready_ts))
    return Catalog(
        version, next_id, {table.name: table for table in made}, {view.name: view for view in seen}, tuple(dropped)
    )
