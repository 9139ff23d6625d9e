"""A table as users hold it: rows in bulk come in through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from .arrow import ArrowTable, RecordBatch
    from .database import Database

#: Is called now and then with the rows that were taken in so far.
LoadProgress: TypeAlias = Callable[[int], object]


class LoadResult(NamedTuple):
    """How many rows were loaded, and where that stands in the one order."""

    rows: int
    commit_ts: int


class Table:
    """`db.table(name)`."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self.name = database._table(name).name

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    def load(self, batches: Iterable[RecordBatch | ArrowTable], *, progress: LoadProgress | None = None) -> LoadResult:
        """Insert all rows of Arrow record batches or tables as one transaction: all or none of them.

        The columns are those of the table, by name; one that is missing gets its default. A key that exists, or comes
        twice, is an IntegrityError, and nothing has changed. Synchronous views change in the same moment.
        """
        # Imported here: who never loads needs none of it.
        from .bulk import load

        return load(self._database, self.name, batches, progress)
