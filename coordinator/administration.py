"""Changes of tables and views in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..changetables.evaluators.whole import forced
from ..changetables.schema import Unique
from ..ltm.catalog import Catalog, View
from ..ltm.tables import TableRows, ViewRows
from .build import build_index, make_unique
from .deferred import create, switch
from .embedded import Engine
from .feed import Feed
from .mending import repair_view
from .refresher import Refresher
from .table_feed import TableFeed
from .verify import Outcome, Progress


class EmbeddedAdministration:
    def __init__(self, engine: Engine, refresher: Refresher) -> None:
        self._engine, self._refresher = engine, refresher

    def create_view(self, view: View, evaluator: str | None = None) -> None:
        if evaluator is not None:
            forced(evaluator)
        create(self._engine, self._refresher, view, evaluator)

    def build_index(self, table: str, columns: tuple[int, ...], name: str = "") -> None:
        build_index(self._engine, table, columns, name)

    def make_unique(self, table: str, unique: Unique) -> None:
        make_unique(self._engine, table, unique)

    def switch(self, name: str, refresh: str) -> None:
        switch(self._engine, self._refresher, name, refresh)

    def drop(self, views: Iterable[str], change: Callable[[Catalog], Catalog]) -> None:
        # Not in the middle of a step: the views that stay would keep half of it.
        with self._refresher.held(views):
            self._engine.change_catalog(change)

    def repair(self, name: str, progress: Progress | None) -> Outcome:
        return repair_view(self._engine, self._refresher, name, progress)

    def feed(self, view: ViewRows, since: int | None) -> Feed:
        return Feed(self._engine, view, since)

    def table_feed(self, table: TableRows, since: int | None) -> TableFeed:
        return TableFeed(self._engine, table, since)
