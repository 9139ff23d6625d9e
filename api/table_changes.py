"""The change feed of a table, as that of a view: one change table per commit that changed it."""

from __future__ import annotations

from typing import cast

from .changes import Changes
from .changetables.errors import NotSupportedError
from .coordinator.embedded import Engine
from .coordinator.ports import ChangeFeed
from .coordinator.table_feed import TableFeed
from .reads import columns_of, unknown_table
from .rows import Columns


class TableChanges(Changes):
    """Changes of a table in this process."""

    def _feed_of(self, name: str, since_ts: int | None) -> ChangeFeed:
        engine = self._node.engine
        if not isinstance(engine, Engine):
            raise NotSupportedError(
                "the changes of a table on a cluster cannot be read", hint="read those of a view: SELECT * FROM it"
            )
        table = engine.ltm.newest_tables().by_name.get(name)
        if table is None:
            raise unknown_table(name, engine.ltm.tables)
        return TableFeed(engine, table, since_ts)

    def _columns(self) -> Columns:
        return columns_of(cast(TableFeed, self._feed).table())
