"""What a change of the catalog is made of, one catalog after another: each is finished before the next one.

`creating`, `indexing` and `switching` say what the next catalog is, given the one that there is, None if nothing is to
be done any more. `changing` carries that out through a coordinator: it fetches the catalog, waits until nothing in it
is unfinished, sends the next one, and begins again.

    a synchronous view    first the indexes that it and its hidden views look into, then hidden views level by level,
                          because a view needs whole rows of those that it is made from, then the view
    a deferred view       indexes; then its hidden views and the view, all as of one S
    to synchronous        hidden views as above; then it is synchronous from S on, and is refreshed up to S once more
    to deferred           indexes; then it is as it is at S, and its new hidden views are made as of S
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...changetables import errors
from ...changetables.algebra import scans
from ...changetables.errors import Error, OperationalError, ProgrammingError, UnsupportedView
from ...changetables.keeping import Kept, keep
from ...changetables.plan import needed_indexes
from ...changetables.schema import Index, Table, Unique
from ...ltm.catalog import SYNC, Catalog, Earlier, View
from ...ltm.cluster.catalogs import Stored, pack_catalog, tables_of
from ...ltm.cluster.messages import (
    OTHER_BASE,
    UNFINISHED,
    CatalogChanged,
    CatalogIs,
    ChangeCatalog,
    FetchCatalog,
)
from ...ltm.tables import Planned, TableRows, Tables, ViewRows
from ...ltm.versions import Horizon
from ..ports import CatalogMoved

#: Switches of a view that are remembered for those who follow its changes.
EARLIER_MAX = 8

#: Given the catalog that there is, and how many were made on the way to it.
Next: TypeAlias = Callable[[Tables, int], Catalog | None]
Changing: TypeAlias = Generator[FetchCatalog | ChangeCatalog, CatalogIs | CatalogChanged, CatalogIs]


# --- carrying it out ---


def changing(next_catalog: Next, new_number: Callable[[], int]) -> Changing:
    """Returns the catalog in which all is there. Raises what `next_catalog` raises, and why something came to nothing.

    `new_number` gives numbers that nobody else has. Who runs this sends what it yields to a coordinator, again if it is
    not answered, and gives it the answer.
    """
    mine: set[int] = set()
    told = yield from _fetch(new_number(), -1)
    while True:
        stored = Stored.unpack(told.stored) if told.stored else Stored()
        raise_failed(stored, mine)
        if stored.unfinished:
            told = yield from _fetch(new_number(), told.version)
            continue
        catalog = next_catalog(tables_of(told.data), len(mine))
        if catalog is None:
            return told
        change = ChangeCatalog(new_number(), told.version, pack_catalog(catalog))
        changed = yield change
        assert isinstance(changed, CatalogChanged)
        if not changed.error:
            mine.add(changed.version)
        elif changed.error not in (OTHER_BASE, UNFINISHED):
            raise OperationalError(f"the catalog was not changed: {changed.error}")
        told = yield from _fetch(new_number(), -1 if changed.error else told.version)


def _fetch(number: int, above_version: int) -> Changing:
    told = yield FetchCatalog(number, above_version)
    assert isinstance(told, CatalogIs)
    return told


def raise_failed(stored: Stored, mine: set[int]) -> None:
    for version, (name, message, hint) in stored.failed:
        if version in mine:
            found = getattr(errors, name, OperationalError)
            raise found(message, hint=hint) if issubclass(found, Error) else OperationalError(message, hint=hint)


def once(change: Callable[[Catalog], Catalog]) -> Next:
    """For a change that takes one catalog. `change` raises if it cannot be made."""
    return lambda tables, made: None if made else change(tables.catalog)


# --- indexes ---


def indexing(owner: Table, columns: tuple[int, ...], name: str = "") -> Next:
    def next_catalog(tables: Tables, made: int) -> Catalog | None:
        if _same(tables, owner, columns).index_on(columns) is not None:
            if made:
                return None
            # Somebody else's, under another name, or one that goes with a view.
            raise CatalogMoved
        _check_free(tables, name)
        return _with_indexes(tables.catalog, [(owner.name, columns)], name, for_views=False)

    return next_catalog


def making_unique(owner: Table, unique: Unique) -> Next:
    """First an index as for views, if there is none: it becomes the user's own with the condition, which the leader
    checks. If it does not come to that, nobody needs it (`Catalog.without_unused`), and there is none of that name."""

    def next_catalog(tables: Tables, made: int) -> Catalog | None:
        rows = _same(tables, owner, unique.columns)
        if made and unique in rows.table.uniques:
            return None
        _check_free(tables, unique.name)
        entries = rows.index_on(unique.columns)
        if entries is None:
            return _with_indexes(tables.catalog, [(owner.name, unique.columns)])
        if not entries.index.for_views:
            raise CatalogMoved
        return tables.catalog.with_unique(owner.name, entries.index, unique)

    return next_catalog


def _same(tables: Tables, owner: Table, columns: tuple[int, ...]) -> TableRows | ViewRows:
    """A table or view as it is now. CatalogMoved if columns of it are not what they were when somebody looked."""
    now = tables.by_id.get(owner.id) or tables.views_by_id.get(owner.id)
    if now is None or any(now.table.columns[place].dropped for place in columns):
        raise CatalogMoved
    return now


def _check_free(tables: Tables, name: str) -> None:
    """CatalogMoved if an index has that name by now."""
    if name and any(index.name == name for table in tables.catalog.tables.values() for index in table.indexes):
        raise CatalogMoved


def _with_indexes(
    catalog: Catalog, missing: Iterable[tuple[str, tuple[int, ...]]], name: str = "", for_views: bool = True
) -> Catalog:
    for owner, columns in missing:
        index = Index(catalog.next_id, columns, ready=False, name=name, for_views=for_views)
        catalog = catalog.with_index(owner, index)
    return catalog


def _missing_indexes(tables: Tables, kept: Kept) -> list[tuple[str, tuple[int, ...]]]:
    needs = needed_indexes(kept, {name: tables.table(name) for name in kept.sources})
    return [(owner, columns) for owner, columns in needs if tables.source(owner).index_on(columns) is None]


# --- views ---


def creating(view: View) -> Next:
    """Its id and what it reads do not count."""

    def next_catalog(tables: Tables, made: int) -> Catalog | None:
        if view.name in tables.views:
            return None
        return _next_deferred(tables, view) if view.deferred else _next_sync(tables, view)

    return next_catalog


def _next_sync(tables: Tables, view: View) -> Catalog:
    planned = Planned(tables)
    kept = keep(view.relation, planned)
    hidden = planned.needed(kept)
    reads = set(kept.reads)
    for _, _, inner in planned.missing.values():
        reads.update(inner.reads)
    below = sorted(name for name in reads if _is_deferred(tables, name))
    if below:
        raise UnsupportedView(
            f"view {view.name!r} cannot be sync: {', '.join(map(repr, below))} is deferred",
            place=next((scan.place for scan in scans(view.relation) if scan.table in below), None),
            hint="make it deferred too, or switch the view that it reads to sync",
        )
    wanted = [View(0, name, relation, SYNC, view.name) for name, relation in hidden.items()]
    return _next_views(tables, wanted or [view])


def _next_views(tables: Tables, views: Sequence[View]) -> Catalog:
    """The indexes that those of them look into that can be made now, or else these."""
    names = {view.name for view in views}
    now: list[tuple[View, Kept]] = []
    planned = Planned(tables)
    for view in views:
        if view.hidden:
            # One that comes later may name it.
            planned.inner(view.relation)
        kept = keep(view.relation, planned)
        if names.isdisjoint(kept.reads):
            now.append((view, kept))
    missing = list(dict.fromkeys(each for _, kept in now for each in _missing_indexes(tables, kept)))
    if missing:
        return _with_indexes(tables.catalog, missing)
    catalog = tables.catalog
    for view, kept in now:
        needs = needed_indexes(kept, {name: tables.table(name) for name in kept.sources})
        catalog = catalog.with_view(replace(view.numbered(catalog.next_id), reads=kept.reads, needs=needs, ready_ts=0))
    return catalog


def _is_deferred(tables: Tables, name: str) -> bool:
    rows = tables.views.get(name)
    return rows is not None and rows.view.deferred


def _next_deferred(tables: Tables, view: View) -> Catalog:
    scope = f"group {view.group}" if view.group else f"view {tables.catalog.next_id}"
    view = replace(view, scope=scope)
    return _with_deferred(tables, view, tables.catalog, lambda catalog: replace(view, id=catalog.next_id))


def _with_deferred(tables: Tables, view: View, catalog: Catalog, made: Callable[[Catalog], View]) -> Catalog:
    """With a deferred view as `made` gives it, and its hidden views; first the indexes that they look into. Those of
    deferred views come with it: their contents are of its S, as those of the views are."""
    planned = Planned(tables, view.scope)
    hidden = planned.needed(keep(view.relation, planned))
    views = [View(0, name, relation, view.refresh, view.name, scope=view.scope) for name, relation in hidden.items()]
    missing: list[tuple[str, tuple[int, ...]]] = []
    later: list[tuple[str, tuple[int, ...]]] = []
    planned = Planned(tables, view.scope)
    for each in (*views, view):
        if each.hidden:
            planned.inner(each.relation)
        kept = keep(each.relation, planned)
        needs = needed_indexes(kept, {name: planned.table(name) for name in kept.sources})
        for need in needs:
            owner, columns = need
            if owner in hidden:
                later.append(need)
            elif tables.source(owner).index_on(columns) is None:
                (later if _is_deferred(tables, owner) else missing).append(need)
    if missing:
        return _with_indexes(tables.catalog, dict.fromkeys(missing))
    indexes = dict.fromkeys(later)
    catalog = _with_indexes(catalog, [need for need in indexes if need[0] not in hidden])
    for each in views:
        catalog = _with_made(catalog, replace(each, id=catalog.next_id))
        catalog = _with_indexes(catalog, [need for need in indexes if need[0] == each.name])
    # A view that is switched stands before the hidden ones that it is made from now.
    return _with_made(catalog, made(catalog)).in_order()


def _with_made(catalog: Catalog, view: View) -> Catalog:
    tables = Tables(catalog, Horizon())
    kept = keep(view.relation, Planned(tables, view.scope))
    needs = needed_indexes(kept, {name: tables.table(name) for name in kept.sources})
    return catalog.with_view(replace(view, reads=kept.reads, needs=needs))


# --- switching ---


def switching(name: str, refresh: str) -> Next:
    def next_catalog(tables: Tables, made: int) -> Catalog | None:
        view = tables.catalog.views.get(name)
        if view is None:
            raise ProgrammingError(f"there is no view {name!r}", hint="it was dropped meanwhile")
        if view.refresh == refresh:
            return None
        if view.deferred and refresh != SYNC:
            return tables.catalog.with_view(replace(view, refresh=refresh))
        return _next_to_sync(tables, view) if view.deferred else _next_to_deferred(tables, view, refresh)

    return next_catalog


def _next_to_sync(tables: Tables, view: View) -> Catalog:
    users = sorted(_users_below(tables.catalog, [name for name in view.reads if _is_deferred(tables, name)]))
    if users:
        raise ProgrammingError(
            f"view {view.name!r} cannot become sync: it is made from {', '.join(map(repr, users))}, which is deferred",
            hint="switch what it is made from first",
        )
    if view.indexes:
        # Whoever writes to it from S on would enter what its last step has not shown yet.
        readers = [each.name for each in tables.catalog.readers_of(view.name)]
        raise ProgrammingError(
            f"view {view.name!r} cannot become sync: {', '.join(map(repr, readers))} looks into an index of it",
            hint="drop that view first, and create it again afterwards",
        )
    planned = Planned(tables)
    hidden = planned.needed(keep(view.relation, planned))
    if hidden:
        return _next_views(tables, [View(0, each, relation, SYNC, view.name) for each, relation in hidden.items()])
    kept = keep(view.relation, Planned(tables))
    missing = _missing_indexes(tables, kept)
    if missing:
        return _with_indexes(tables.catalog, missing)
    needs = needed_indexes(kept, {each: tables.table(each) for each in kept.sources})
    earlier = _with_earlier(tables, view)
    now = replace(view, refresh=SYNC, scope="", reads=kept.reads, needs=needs, ready_ts=0, earlier=earlier)
    return tables.catalog.with_view(now).in_order().without_unused()


def _users_below(catalog: Catalog, names: Iterable[str]) -> set[str]:
    """The views of users among these, and those that hidden ones are made from."""
    found: set[str] = set()
    for name in names:
        view = catalog.views[name]
        if view.hidden:
            found |= _users_below(catalog, [each for each in view.reads if each in catalog.views])
        elif view.deferred:
            found.add(name)
    return found


def _next_to_deferred(tables: Tables, view: View, refresh: str) -> Catalog:
    readers = [each.name for each in tables.catalog.readers_of(view.name) if not each.deferred]
    if readers:
        raise ProgrammingError(
            f"view {view.name!r} cannot be deferred: {', '.join(map(repr, readers))} is sync and made from it",
            hint="make those deferred first",
        )
    # One without minima and maxima is made from the same rows as before.
    earlier = _with_earlier(tables, view) if tables.views[view.name].values else view.earlier
    now = replace(view, refresh=refresh, scope=f"view {view.id}", earlier=earlier)
    catalog = _with_deferred(tables, now, tables.catalog, lambda _: now)
    if not catalog.views[view.name].deferred:
        return catalog  # only the indexes
    return catalog.without_unused()


def _with_earlier(tables: Tables, view: View) -> tuple[Earlier, ...]:
    """What the view was until S, which is filled in when all is made (`catalog_builder`)."""
    values = tuple(values.view.id for values in tables.views[view.name].values)
    earlier = (*view.earlier, Earlier(0, view.deferred, values, view.ready_ts))
    if len(earlier) <= EARLIER_MAX:
        return earlier
    gone, first, *others = earlier
    return first._replace(ready_ts=gone.until), *others
