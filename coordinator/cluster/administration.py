"""Changes of tables and views in a cluster: the catalog is changed through the leader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...changetables.errors import NotSupportedError, UnsupportedView
from ...changetables.keeping import keep
from ...changetables.keys import table_range
from ...changetables.plan import compile_view, needed_indexes
from ...changetables.schema import Index
from ...ltm.catalog import Catalog, View
from ...ltm.reading import NEWEST
from ...ltm.tables import Planned, Scoped, Tables, ViewRows
from ...ltm.versions import Horizon
from ..ports import Feeding
from ..verify import Outcome, Progress
from .engine import ClusterEngine


class ClusterAdministration:
    def __init__(self, engine: ClusterEngine) -> None:
        self._engine = engine

    def create_view(self, view: View) -> None:
        def change(catalog: Catalog) -> Catalog:
            tables = Tables(catalog, Horizon())
            return self._with_views(tables, _with_hidden(tables, view))

        self._engine.change_catalog(change)

    def _with_views(self, tables: Tables, views: list[View]) -> Catalog:
        """The catalog with new views, which are ready: there is nothing to compute."""
        for view in views:
            scoped = Scoped(tables, view.scope)
            kept = keep(view.relation, scoped)
            needs = needed_indexes(kept, {name: tables.table(name) for name in kept.sources})
            catalog = tables.catalog
            for owner, columns in needs:
                if tables.source(owner).index_on(columns) is None:
                    self._check_empty(tables, owner)
                    catalog = catalog.with_index(owner, Index(catalog.next_id, columns, for_views=True))
            tables = Tables(catalog, Horizon(), tables)
            plan = compile_view(view.name, 0, view.relation, Scoped(tables, view.scope))
            for name in plan.reads:
                self._check_empty(tables, name)
            made = replace(view, id=catalog.next_id, reads=plan.reads, ready_ts=1, needs=needs)
            tables = Tables(catalog.with_view(made), Horizon(), tables)
        return tables.catalog

    def _check_empty(self, tables: Tables, name: str) -> None:
        rows = tables.source(name)
        if next(self._engine.ltm.scan(rows.versions, *table_range(rows.table.id), NEWEST), None) is not None:
            raise NotSupportedError(
                f"{name!r} has rows: what is made from it is not computed in a cluster yet",
                hint="create views and indexes before the first rows",
            )

    def build_index(self, table: str, columns: tuple[int, ...], name: str = "") -> None:
        def change(catalog: Catalog) -> Catalog:
            self._check_empty(Tables(catalog, Horizon()), table)
            return catalog.with_index(table, Index(catalog.next_id, columns, name=name))

        self._engine.change_catalog(change)

    def switch(self, name: str, refresh: str) -> None:
        view = self._engine.ltm.tables.catalog.views[name]
        if view.refresh == refresh:
            return
        if view.deferred and refresh != "sync":
            self._engine.change_catalog(
                lambda catalog: catalog.with_view(replace(catalog.views[name], refresh=refresh))
            )
            return
        raise NotSupportedError(
            "views of a cluster cannot be switched between sync and deferred yet", hint="drop it and create it again"
        )

    def drop(self, views: Iterable[str], change: Callable[[Catalog], Catalog]) -> None:
        self._engine.change_catalog(change)

    def repair(self, name: str, progress: Progress | None) -> Outcome:
        raise NotSupportedError("views of a cluster are not repaired", hint="drop it and create it again")

    def feed(self, view: ViewRows, since: int | None) -> Feeding:
        raise NotSupportedError("there is no change feed in a cluster yet", hint="read the view")


def _with_hidden(tables: Tables, view: View) -> list[View]:
    """A view with the hidden views that it needs, each after those that it reads."""
    if view.deferred:
        scope = f"group {view.group}" if view.group else f"view {tables.catalog.next_id}"
        view = replace(view, scope=scope)
    planned = Planned(tables, view.scope)
    kept = keep(view.relation, planned)
    hidden = planned.needed(kept)
    if not view.deferred:
        reads = set(kept.reads).union(*(inner.reads for _, _, inner in planned.missing.values()))
        below = sorted(name for name in reads if name in tables.views and tables.views[name].view.deferred)
        if below:
            raise UnsupportedView(
                f"view {view.name!r} cannot be sync: {', '.join(map(repr, below))} is deferred",
                hint="make it deferred too, or switch the view that it reads to sync",
            )
    # The text of a hidden view is the name of the view that it was made for: errors call it so until that is there.
    made = [View(0, name, relation, view.refresh, view.name, scope=view.scope) for name, relation in hidden.items()]
    return [*made, view]
