"""The catalog: which tables, indexes and views there are. Immutable; every change makes a new version.

It is small, so a change is logged as the whole new catalog, and a checkpoint stores it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias, cast

from ..changetables.algebra import Relation
from ..changetables.branches import is_hidden
from ..changetables.schema import Index, Table, Unique
from ..changetables.serialize import relation_from_plain, relation_to_plain, table_from_plain, table_to_plain

#: The mode of views that are refreshed inside the writer's transaction.
SYNC = "sync"


class Earlier(NamedTuple):
    """How a view was refreshed until a switch, and the ids of the hidden views that its minima and maxima were read
    from: their contributions are in the log. In a cluster also from when on it could be read; `until` is 0 there while
    it is being switched."""

    until: int
    deferred: bool
    values: tuple[int, ...]
    ready_ts: int = 0


@dataclass(frozen=True)
class View:
    """`ready_ts` is the commit_ts from which on the view can be read, 0 while its contents are being computed.

    A hidden view is one that the engine keeps for others; `reads` are the tables and views that it is made from.
    `layout` is global, or local: one partial row per LTM, summed at read. `refresh` is sync, or how a deferred view is
    refreshed: manual, an interval, a target lag (see `coordinator/vms/modes.py`).
    """

    id: int
    name: str
    relation: Relation
    refresh: str
    text: str
    ready_ts: int = 0
    indexes: tuple[Index, ...] = ()
    reads: tuple[str, ...] = ()
    layout: str = "global"
    #: The indexes that its look-ups go through: (table or view, columns).
    needs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    #: Whose hidden views it is made from: views that are refreshed at different times cannot share them.
    scope: str = ""
    #: Deferred views of one named group move together.
    group: str = ""
    #: What a deferred view may be behind before its log records are given up, 0: as much as is usual.
    backlog_rows: int = 0
    backlog_bytes: int = 0
    #: What it was before it was switched between sync and deferred, as far back as the log goes.
    earlier: tuple[Earlier, ...] = ()
    #: Of the local layout: the ids under which its other partial rows are kept, in the order of their LTMs; the first
    #: ones are under `id`. Where it is not in the catalog yet, only their number counts.
    partials: tuple[int, ...] = ()

    def numbered(self, first_id: int) -> View:
        """With ids of its own, which begin there."""
        return replace(self, id=first_id, partials=tuple(range(first_id + 1, first_id + 1 + len(self.partials))))

    @property
    def ids(self) -> tuple[int, ...]:
        """All that keys of its rows and of its indexes begin with."""
        return (self.id, *self.partials, *(index.id for index in self.indexes))

    @property
    def hidden(self) -> bool:
        return is_hidden(self.name)

    @property
    def deferred(self) -> bool:
        return self.refresh != SYNC

    @cached_property
    def plain_relation(self) -> object:
        """Every change of the catalog writes it, so it is made once."""
        return relation_to_plain(self.relation)


@dataclass(frozen=True, slots=True)
class Catalog:
    """`dropped` are ids whose cells still have to be deleted from the store. A view comes after those that it reads."""

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

    def with_index(self, name: str, index: Index) -> Catalog:
        """Add an index to a table or view, or put it in the place of the one with its id."""
        owner = self.tables.get(name) or self.views[name]
        others = [other for other in owner.indexes if other.id != index.id]
        changed = replace(owner, indexes=tuple(sorted([*others, index], key=lambda each: each.id)))
        return self._with_owner(changed, next_id=max(self.next_id, index.id + 1))

    def with_unique(self, name: str, index: Index, unique: Unique) -> Catalog:
        """The columns of an index of a table are unique; it is the user's own."""
        table = self.with_index(name, replace(index, name=unique.name, for_views=False)).tables[name]
        return self.with_table(replace(table, uniques=(*table.uniques, unique)))

    def without_index(self, name: str, index: Index) -> Catalog:
        """Also without the constraint that it is for: there is none without its index."""
        owner = self.tables.get(name) or self.views[name]
        changed = replace(owner, indexes=tuple(other for other in owner.indexes if other.id != index.id))
        if isinstance(changed, Table):
            changed = replace(changed, uniques=tuple(each for each in changed.uniques if each.columns != index.columns))
        return self._with_owner(changed, dropped=(*self.dropped, index.id))

    def _with_owner(
        self, owner: Table | View, *, next_id: int | None = None, dropped: tuple[int, ...] | None = None
    ) -> Catalog:
        if isinstance(owner, Table):
            return self._next(tables={**self.tables, owner.name: owner}, next_id=next_id, dropped=dropped)
        return self._next(views={**self.views, owner.name: owner}, next_id=next_id, dropped=dropped)

    def with_view(self, view: View) -> Catalog:
        return self._next(views={**self.views, view.name: view}, next_id=max(self.next_id, max(view.ids) + 1))

    def without_view(self, name: str) -> Catalog:
        """Also without the hidden views that nobody needs then."""
        rest = {other: kept for other, kept in self.views.items() if other != name}
        gone = [self.views[name]]
        while unused := [view for view in rest.values() if view.hidden and not _read_by_any(view.name, rest)]:
            gone += unused
            rest = {other: kept for other, kept in rest.items() if kept not in unused}
        ids = [number for view in gone for number in view.ids]
        return self._next(views=rest, dropped=(*self.dropped, *ids))._without_unneeded_indexes()

    def _without_unneeded_indexes(self) -> Catalog:
        """Without indexes that were made for views and that no view needs any more."""
        needed = {need for view in self.views.values() for need in view.needs}
        catalog = self
        owners: list[Table | View] = [*self.tables.values(), *self.views.values()]
        for owner in owners:
            for index in owner.indexes:
                if index.for_views and index.ready and (owner.name, index.columns) not in needed:
                    catalog = catalog.without_index(owner.name, index)
        return catalog

    def readers_of(self, name: str) -> list[View]:
        """The views of users that are made from a table or view, straight or through hidden ones."""
        found: dict[str, View] = {}
        waiting = [name]
        while waiting:
            below = waiting.pop()
            for view in self.views.values():
                if below in view.reads and view.name not in found:
                    found[view.name] = view
                    if view.hidden:
                        waiting.append(view.name)
        return [view for view in self.views.values() if view.name in found and not view.hidden]

    def without_dropped(self, ids: tuple[int, ...]) -> Catalog:
        return replace(self, dropped=tuple(dropped for dropped in self.dropped if dropped not in ids))

    def without_unfinished(self) -> Catalog:
        """What a crash left half made: views and indexes whose contents were still being computed."""
        catalog = self
        for view in reversed(list(self.views.values())):
            if not view.ready_ts and view.name in catalog.views:
                catalog = catalog.without_view(view.name)
        catalog = catalog.without_unused()
        for table in self.tables.values():
            for index in table.indexes:
                if not index.ready:
                    catalog = catalog.without_index(table.name, index)
        for view in catalog.views.values():
            for index in view.indexes:
                if not index.ready:
                    catalog = catalog.without_index(view.name, index)
        return catalog

    def without_unused(self) -> Catalog:
        """Without hidden views that nobody reads."""
        catalog = self
        for view in reversed(list(self.views.values())):
            if view.hidden and view.name in catalog.views and not _read_by_any(view.name, catalog.views):
                catalog = catalog.without_view(view.name)
        return catalog._without_unneeded_indexes()

    def in_order(self) -> Catalog:
        """Each view after those that it reads: new hidden views stand at the end."""
        ordered: dict[str, View] = {}

        def put(view: View) -> None:
            for name in view.reads:
                if name in self.views and name not in ordered:
                    put(self.views[name])
            ordered[view.name] = view

        for view in self.views.values():
            if view.name not in ordered:
                put(view)
        return replace(self, views=ordered)

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


def without_views(catalog: Catalog, name: str) -> Catalog:
    """Without a view and all that are made from it."""
    for reader in reversed(catalog.readers_of(name)):
        if reader.name in catalog.views:
            catalog = without_views(catalog, reader.name)
    return catalog.without_view(name)


def _read_by_any(name: str, views: Mapping[str, View]) -> bool:
    return any(name in view.reads for view in views.values())


def _highest_id(table: Table) -> int:
    return max([table.id, *(index.id for index in table.indexes)])


def catalog_to_plain(catalog: Catalog) -> list[object]:
    views = [
        [
            view.id,
            view.name,
            view.plain_relation,
            view.refresh,
            view.text,
            view.ready_ts,
            [[index.id, list(index.columns), index.ready, index.name, index.for_views] for index in view.indexes],
            list(view.reads),
            view.layout,
            [[owner, list(columns)] for owner, columns in view.needs],
            view.scope,
            view.group,
            view.backlog_rows,
            view.backlog_bytes,
            [list(each) for each in view.earlier],
            list(view.partials),
        ]
        for view in catalog.views.values()
    ]
    tables = [table_to_plain(table) for table in catalog.tables.values()]
    return [catalog.version, catalog.next_id, tables, views, list(catalog.dropped)]


def _lists(plain: object) -> object:
    """The codec gives arrays as tuples, the relations are written as lists."""
    return [_lists(item) for item in plain] if isinstance(plain, tuple) else plain


def catalog_from_plain(plain: object) -> Catalog:
    version, next_id, tables, views, dropped = cast(
        tuple[int, int, tuple[object], tuple[tuple[object]], tuple[int]], plain
    )
    made = [table_from_plain(_lists(table)) for table in tables]
    seen = [_view_from_plain(item) for item in views]
    return Catalog(
        version, next_id, {table.name: table for table in made}, {view.name: view for view in seen}, tuple(dropped)
    )


_PlainIndex: TypeAlias = tuple[int, tuple[int, ...], bool, str, bool]
_PlainNeed: TypeAlias = tuple[str, tuple[int, ...]]
_PlainEarlier: TypeAlias = tuple[int, bool, tuple[int, ...]]
_PlainView: TypeAlias = tuple[
    int,
    str,
    object,
    str,
    str,
    int,
    tuple[_PlainIndex, ...],
    tuple[str, ...],
    str,
    tuple[_PlainNeed, ...],
    str,
    str,
    int,
    int,
    tuple[_PlainEarlier, ...],
    tuple[int, ...],
]


#: scope, group, backlog_rows, backlog_bytes, earlier
_REST_BEFORE_PARTIALS = 5


def _view_from_plain(item: tuple[object, ...]) -> View:
    plain = cast(_PlainView, item)
    view_id, name, relation, refresh, text, ready_ts, indexes, reads, layout, needs, *rest = plain
    # Earlier versions kept one row whatever the layout, and wrote no ids of partial rows.
    partials = tuple(cast("tuple[int, ...]", rest.pop())) if len(rest) > _REST_BEFORE_PARTIALS else ()
    scope, group, rows, size, past = cast("tuple[str, str, int, int, tuple[_PlainEarlier, ...]]", rest)
    earlier = tuple(Earlier(*each) for each in past)
    made = tuple(Index(number, tuple(columns), ready, label, auto) for number, columns, ready, label, auto in indexes)
    needed = tuple((owner, tuple(columns)) for owner, columns in needs)
    read = relation_from_plain(_lists(relation))
    return View(
        view_id,
        name,
        read,
        refresh,
        text,
        ready_ts,
        made,
        tuple(reads),
        layout,
        needed,
        scope,
        group,
        rows,
        size,
        earlier,
        partials,
    )
