"""The change feed of a table, as that of a view: one change table per commit that changed it."""

from __future__ import annotations

from typing import cast

from .changes import Changes
from .coordinator.ports import ChangeFeed, TableFeeding
from .reads import columns_of, unknown_table
from .rows import Columns


class TableChanges(Changes):
    """Changes of a table."""

    def _feed_of(self, name: str, since_ts: int | None) -> ChangeFeed:
        ltm = self._node.engine.ltm
        table = ltm.newest_tables().by_name.get(name)
        if table is None:
            raise unknown_table(name, ltm.tables)
        return self._node.admin.table_feed(table, since_ts)

    def _columns(self) -> Columns:
        return columns_of(cast(TableFeeding, self._feed).table())
