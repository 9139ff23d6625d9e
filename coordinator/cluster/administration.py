"""Changes of tables and views in a cluster: the catalog is changed through the leader, which makes their contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...changetables.errors import NotSupportedError
from ...changetables.evaluators.choice import ROWS
from ...ltm.catalog import Catalog, View
from ...ltm.tables import TableRows, ViewRows
from ..verify import Outcome, Progress
from .catalog_changes import creating, indexing, switching
from .engine import ClusterEngine
from .feed import ClusterFeed, ClusterTableFeed
from .mending import repair_view
from .refreshing import ClusterRefreshing


class ClusterAdministration:
    def __init__(self, engine: ClusterEngine, refreshing: ClusterRefreshing) -> None:
        self._engine, self._refreshing = engine, refreshing

    def create_view(self, view: View, evaluator: str | None = None) -> None:
        if evaluator not in (None, ROWS):
            raise NotSupportedError(
                f"a cluster does not compute the contents of a view by {evaluator!r}", hint="leave evaluator out"
            )
        self._engine.carry_out(creating(view))

    def build_index(self, table: str, columns: tuple[int, ...], name: str = "") -> None:
        self._engine.carry_out(indexing(table, columns, name))

    def switch(self, name: str, refresh: str) -> None:
        self._engine.carry_out(switching(name, refresh))

    def drop(self, views: Iterable[str], change: Callable[[Catalog], Catalog]) -> None:
        self._engine.change_catalog(change)

    def repair(self, name: str, progress: Progress | None) -> Outcome:
        return repair_view(self._engine, self._refreshing, name, progress)

    def feed(self, view: ViewRows, since: int | None) -> ClusterFeed:
        return ClusterFeed(self._engine.requests, self._engine.ltm, view, since)

    def table_feed(self, table: TableRows, since: int | None) -> ClusterTableFeed:
        return ClusterTableFeed(self._engine.requests, self._engine.ltm, table, since)
