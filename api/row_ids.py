"""Row ids: the hidden keys of tables without a primary key.

An id is ms << 20 | counter, from one generator per open database: unique because a directory is open in one process
only, and increasing, so that a scan gives rows in the order in which they were inserted. A clock that was set back
cannot give an id twice: the first time that a table is written, the generator goes above the highest id stored there.
In a cluster an id is a timestamp.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .changetables.keys import table_range
from .changetables.schema import Column, Table
from .changetables.types import INT, INT_MAX
from .coordinator.cluster.reader import ClusterReader
from .coordinator.embedded import wall_clock_ms
from .coordinator.timestamps import STEP
from .ltm.reading import NEWEST, Reader, ReadHorizon
from .ltm.tables import TableRows

if TYPE_CHECKING:
    from .ports import OpenNode

COUNTER_BITS = 20

#: The first column of a table without a primary key. It has no name, so nobody can name it.
ROW_ID = Column("", INT, nullable=False, hidden=True)


def has_row_id(table: Table) -> bool:
    return table.columns[table.key[0]].hidden


class RowIds:
    """The generator of one open database; threads may share it."""

    def __init__(self, ltm: Reader, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._ltm = ltm
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._last = 0
        self._known_tables: set[int] = set()

    def take(self, rows: TableRows, count: int) -> range:
        """New ids for this many rows."""
        with self._lock:
            first = max(self._last + 1, self._now_ms() << COUNTER_BITS)
            if rows.table.id not in self._known_tables:
                first = max(first, self._above_stored(rows, first))
                self._known_tables.add(rows.table.id)
            self._last = first + count - 1
            return range(first, first + count)

    def _above_stored(self, rows: TableRows, first: int) -> int:
        """The lowest id from `first` on with none stored at or above it: `first`, unless the clock was set back."""
        low, high = first, INT_MAX
        if not self._any_from(rows, low):
            return low
        while low < high:
            middle = (low + high + 1) // 2
            if self._any_from(rows, middle):
                low = middle
            else:
                high = middle - 1
        return low + 1

    def _any_from(self, rows: TableRows, row_id: int) -> bool:
        start = rows.codec.keys.encode_checked((row_id,))
        stored = self._ltm.scan(rows.versions, start, table_range(rows.table.id)[1], NEWEST)
        return next(stored, None) is not None


class ClusterRowIds:
    """Processes of a cluster know nothing of each other's numbers; but no two get the same timestamp, whose last bits
    are free."""

    def __init__(self, horizon: ReadHorizon) -> None:
        self._horizon = horizon

    def take(self, rows: TableRows, count: int) -> list[int]:
        """New ids for this many rows."""
        ids: list[int] = []
        while len(ids) < count:
            first = self._horizon.durable_ts
            ids += range(first, first + min(STEP, count - len(ids)))
        return ids


_generators: weakref.WeakKeyDictionary[OpenNode, RowIds | ClusterRowIds] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def row_ids_of(node: OpenNode) -> RowIds | ClusterRowIds:
    """The generator of an open database."""
    found = _generators.get(node)
    if found is None:
        with _making:
            ltm = node.engine.ltm
            found = ClusterRowIds(ltm.horizon) if isinstance(ltm, ClusterReader) else RowIds(ltm)
            found = _generators.setdefault(node, found)
    return found
