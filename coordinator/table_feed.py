"""The change feed of a table: its change tables, in order, from any place that the log still has.

The records of the commit log *are* the change tables of base tables: each has the old and the new row of every key that
it wrote. So nothing is computed and nothing is kept: a round reads the log from where the last one ended. Rows that
were loaded in bulk are not in it: that is an error, never a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..changetables.errors import OperationalError, ProgrammingError
from ..ltm.loads import Loaded
from ..ltm.outputs import CommitRecord, Write
from ..ltm.reading import same_row
from ..ltm.tables import TableRows
from .embedded import Engine
from .feed import Place, check_history, trimmed
from .shown import Change, SignedRows


class TableFeed:
    """Reads the change tables of one table. `ts`: everything up to it was given."""

    def __init__(self, engine: Engine, table: TableRows, since: int | None) -> None:
        self._engine, self._ltm = engine, engine.ltm
        self._id, self._name = table.table.id, table.table.name
        self._place: Place | None = None
        self._has_begun = since is None
        self.ts = self._ltm.horizon.durable_ts if since is None else since

    def has_news(self) -> bool:
        return self._ltm.horizon.durable_ts > self.ts

    def table(self) -> TableRows:
        """As it is now."""
        table = self._ltm.tables.by_id.get(self._id)
        if table is None:
            raise ProgrammingError(f"table {self._name!r} was dropped", hint="its changes are gone with it")
        return table

    def round(self) -> Iterator[Change]:
        """What changed until now. Afterwards `ts` is there."""
        ltm = self._ltm
        with ltm.lock:
            # Together: the log up to this place has everything up to that timestamp.
            at, last_lsn, table = ltm.horizon.durable_ts, ltm.last_lsn, self.table()
        if at <= self.ts:
            return
        start_lsn = ltm.place_before(self.ts) if self._place is None else self._place.lsn
        if start_lsn is None:
            raise trimmed(self._engine, f"table {self._name!r}", self.ts, at)
        try:
            for loaded in ltm.read_loads(start_lsn, last_lsn):
                if loaded.table_id in (self._id, 0) and self.ts < loaded.commit_ts <= at:
                    raise self._loaded(loaded)
            if not self._has_begun:
                events = self._changes(table, start_lsn, last_lsn, at)
                check_history(self._engine, f"table {self._name!r}", self.ts, events)
                self._has_begun = True
            for change in self._changes(table, start_lsn, last_lsn, at):
                self.ts = change.ts
                yield change
        except OperationalError as error:
            if ltm.was_trimmed(start_lsn):
                raise trimmed(self._engine, f"table {self._name!r}", self.ts, at) from error
            raise
        self.ts, self._place = at, Place(at, last_lsn)

    def _changes(self, table: TableRows, start_lsn: int, last_lsn: int, at: int) -> Iterator[Change]:
        since = self.ts
        for lsn, record in self._ltm.read_log(start_lsn):
            if lsn > last_lsn:
                return
            if isinstance(record, CommitRecord) and since < record.commit_ts <= at:
                rows = [
                    row
                    for table_id, writes in record.writes
                    if table_id == self._id
                    for row in signed_rows(writes, table)
                ]
                if rows:
                    yield Change(record.commit_ts, rows)

    def _loaded(self, loaded: Loaded) -> OperationalError:
        return OperationalError(
            f"{loaded.rows_count} rows of table {self._name!r} were loaded in bulk at {loaded.commit_ts}: "
            "they are not in the log",
            hint=f"read all of it and go on from there; the oldest token that works is Token({loaded.commit_ts})",
        )


def signed_rows(writes: Iterable[Write], table: TableRows) -> SignedRows:
    """Rows that go and come; those of before a column was added have its default."""
    signed: SignedRows = []
    pad = table.codec.pad
    for _, old, new in writes:
        if same_row(old, new):
            continue
        if old is not None:
            signed.append((pad(old), -1))
        if new is not None:
            signed.append((pad(new), 1))
    return signed
