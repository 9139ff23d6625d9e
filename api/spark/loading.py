"""One commit of staged rows: a transaction that also notes who wrote what, so that a repeated one does nothing.

The notes are rows of a hidden table of the database, `~spark`: for each writer and table the last batch that is in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from ..arrow import batches_of
from ..bulk import CHUNK_ROWS, mappings
from ..changetables.errors import ProgrammingError
from ..database import SPARK_NOTES, Database, column
from ..transaction import Transaction

if TYPE_CHECKING:
    from pyarrow import RecordBatch

NOTES = SPARK_NOTES
#: Rows from which on a job that is not part of a stream is loaded in bulk. Bulk loads cannot take a note with them:
#: what refuses a repeated one is the key of its rows.
BULK_ROWS = 100_000
#: Notes of jobs that ended before are dropped when another one commits: nobody repeats them any more.
NOTE_S = 24 * 3_600

Batches = Callable[[], Iterable["RecordBatch"]]


def load_once(db: Database, table: str, writer: str, batch: int, batches: Batches) -> bool:
    """Insert all rows unless this batch of this writer, or a later one, is in already. False: it was."""
    _make_notes(db)
    return db.run(_load, db, table, writer, batch, batches)


def _load(tx: Transaction, db: Database, table: str, writer: str, batch: int, batches: Batches) -> bool:
    known = tx.get(NOTES, (writer, table))
    if known is not None and cast(int, known["batch"]) >= batch:
        return False
    schema = db._table(table)
    for chunk in batches_of(batches(), CHUNK_ROWS):
        tx.insert(table, mappings(chunk, schema, _place))
    tx.upsert(NOTES, {"writer": writer, "target": table, "batch": batch, "at": int(time.time())})
    return True


def load_in_bulk(db: Database, table: str, batches: Batches) -> None:
    db.table(table).load(batches())


def forget_jobs(db: Database) -> None:
    """Drop the notes of jobs that ended long ago. Those of streams, which may go on any time, stay."""
    old = int(time.time()) - NOTE_S
    if _has_notes(db):
        db.sql(f'DELETE FROM "{NOTES}" WHERE batch = {JOB} AND at < {old}')


#: The batch of a job that is no stream: it has only one.
JOB = -1


def _make_notes(db: Database) -> None:
    if _has_notes(db):
        return
    columns = {"writer": str, "target": str, "batch": column(int, nullable=False), "at": column(int, nullable=False)}
    try:
        db.create_table(NOTES, columns, key=["writer", "target"])
    except ProgrammingError:
        if not _has_notes(db):
            raise  # else another job was faster


def _has_notes(db: Database) -> bool:
    try:
        db._table(NOTES)
    except ProgrammingError:  # there is no such table
        return False
    return True


def _place(number: int) -> str:
    return f"row {number} of a batch"
