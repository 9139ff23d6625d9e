"""Changes of tables and views in a cluster: the catalog is changed through the leader, which makes their contents.

A group of deferred views that joins others, or of which a view becomes synchronous, is refreshed once more, up to the
timestamp of the new catalog; writers wait for that, and if it cannot be computed there all is as it was. So it is
refreshed before, too: there is little left to be done then, and whoever wants the change is told what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...changetables.algebra import scans
from ...changetables.errors import NotSupportedError
from ...changetables.evaluators.choice import ROWS
from ...changetables.schema import Unique
from ...ltm.catalog import SYNC, Catalog, View
from ...ltm.tables import TableRows, ViewRows
from ..verify import Outcome, Progress
from ..vms.groups import group_keys
from .catalog_changes import creating, indexing, making_unique, switching
from .engine import ClusterEngine
from .feed import ClusterFeed, ClusterTableFeed
from .mending import repair_view
from .refreshing import ClusterRefreshing

#: So long a group may take to get to now: as long as a change of the catalog may take.
REFRESH_MS_MAX = 60_000


class ClusterAdministration:
    def __init__(self, engine: ClusterEngine, refreshing: ClusterRefreshing) -> None:
        self._engine, self._refreshing = engine, refreshing

    def create_view(self, view: View, evaluator: str | None = None) -> None:
        if evaluator not in (None, ROWS):
            raise NotSupportedError(
                f"a cluster does not compute the contents of a view by {evaluator!r}", hint="leave evaluator out"
            )
        if view.deferred:
            self._refresh_groups((*(scan.table for scan in scans(view.relation)), *self._grouped(view.group)))
        self._engine.carry_out(creating(view))

    def build_index(self, table: str, columns: tuple[int, ...], name: str = "") -> None:
        self._engine.carry_out(indexing(self._engine.ltm.tables.table(table), columns, name))

    def make_unique(self, table: str, unique: Unique) -> None:
        self._engine.carry_out(making_unique(self._engine.ltm.tables.table(table), unique))

    def switch(self, name: str, refresh: str) -> None:
        catalog = self._engine.ltm.tables.catalog
        view = catalog.views[name]
        if view.deferred and refresh == SYNC:
            self._refresh_groups([name])
        elif not view.deferred and refresh != SYNC:
            readers = (each.name for each in catalog.readers_of(name))
            self._refresh_groups((*readers, *self._grouped(view.group)))
        self._engine.carry_out(switching(name, refresh))

    def drop(self, views: Iterable[str], change: Callable[[Catalog], Catalog]) -> None:
        # What is left of their groups stays where it is: it may be that one of these cannot be computed.
        self._engine.change_catalog(change)

    def _grouped(self, group: str) -> list[str]:
        views = self._engine.ltm.tables.catalog.views.values()
        return [view.name for view in views if group and view.group == group]

    def _refresh_groups(self, names: Iterable[str]) -> None:
        """The groups of those that are deferred views: each to now."""
        keys = group_keys(self._engine.ltm.tables)
        for name in {keys[name]: name for name in names if name in keys}.values():
            self._refreshing.wait_for(name, self._engine.ltm.begin(), REFRESH_MS_MAX)

    def repair(self, name: str, progress: Progress | None) -> Outcome:
        return repair_view(self._engine, self._refreshing, name, progress)

    def feed(self, view: ViewRows, since: int | None) -> ClusterFeed:
        return ClusterFeed(self._engine.requests, self._engine.ltm, view, since)

    def table_feed(self, table: TableRows, since: int | None) -> ClusterTableFeed:
        return ClusterTableFeed(self._engine.requests, self._engine.ltm, table, since)
