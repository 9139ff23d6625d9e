"""Batch reads. Planning and reading happen in processes of Spark's own, which share nothing but what is pickled.

a directory, as it is now       key ranges of its store, each read by a task beside whoever has it open (`stored`)
a cluster on HBase              the same: key ranges, each read by a task from HBase itself (`cluster_stored`)
a served node                   one part, page by page through the client
as_of: what it was before       what it is now, with the changes since then taken back (`history`)
since: changes                  the change tables, one row for each time that a row came or went (`history`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ..changetables.errors import InterfaceError
from ..changetables.types import Row
from ..cluster_stored import ClusterPin, ClusterRows, cluster_pin
from ..ltm.tables import TableRows
from ..open_socket import running_address
from ..reads import unknown_table, view_rows
from ..remote import RemoteDatabase
from ..stored import KeyRange, Pin, RowsInStore, StoredRows, pinned, renew
from .columns import Columns, arrow_schema, batch_of, positions_of, spark_schema
from .filters import Condition, filtered, narrowed, taken
from .history import CHANGE_COLUMNS, api_columns, changed_rows, rows_as_of
from .options import Options

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: Rows of one Arrow batch: large enough that what Spark does for each batch does not count.
BATCH_ROWS = 16_384


class StoredPart(InputPartition):
    """A key range of a directory's store, or of a cluster's."""

    def __init__(self, pin: Pin | ClusterPin, within: KeyRange) -> None:
        self.pin, self.within = pin, within


class WholePart(InputPartition):
    """Everything, through the client."""

    def __init__(self) -> None:
        super().__init__(None)


def columns_of(options: Options) -> Columns:
    """All columns that can be read, in their order."""
    directory = options.directory
    if directory is None or running_address(directory):
        with options.open() as db:
            columns = api_columns(db, options)
    else:
        columns = _stored_columns(options)
    return [*columns, *CHANGE_COLUMNS] if options.since is not None else columns


def _stored_columns(options: Options) -> Columns:
    """To look at a directory that nobody has open leaves it as it is."""
    pin = pinned(_directory(options), options.name, options.lease_s)
    if pin.number:  # somebody has just opened it
        return columns_of(options)
    with StoredRows(_directory(options), options.name, pin) as rows:
        _check_kind(rows, options)
        return rows.columns()


def _check_kind(rows: RowsInStore, options: Options) -> None:
    tables = rows.tables
    if options.is_view:
        view_rows(options.name, tables)
    elif not isinstance(rows.source, TableRows):
        raise unknown_table(options.name, tables)


def schema_of(options: Options) -> StructType:
    """Of the columns that were asked for."""
    columns = columns_of(options)
    if options.columns:
        columns = [columns[position] for position in positions_of(columns, options.columns)]
    return spark_schema(columns)


def _pinned(options: Options) -> Pin | ClusterPin | None:
    """None: it is read through the client."""
    if options.directory is not None:
        return pinned(options.directory, options.name, options.lease_s)
    if not options.is_cluster:
        return None
    with options.open() as db:
        assert isinstance(db, RemoteDatabase), "it is a client of the cluster"
        return cluster_pin(db, options.name)


def _rows_at(options: Options, pin: Pin | ClusterPin) -> RowsInStore:
    if isinstance(pin, Pin):
        return StoredRows(_directory(options), options.name, pin)
    return ClusterRows(options.name, pin)


def _directory(options: Options) -> Path:
    assert options.directory is not None, "it was looked at"
    return options.directory


class ViewtideReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        pin = _pinned(options) if options.as_of is None and options.since is None else None
        if pin is None:
            return [WholePart()]
        with _rows_at(options, pin) as rows:
            _check_kind(rows, options)
            within = rows.whole()
            if isinstance(rows.source, TableRows):
                within = narrowed(within, rows.source, self._conditions)
            return [StoredPart(pin, each) for each in rows.divided(within, options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if isinstance(partition, StoredPart):
            return self._read_stored(partition)
        if isinstance(partition, WholePart):
            return self._read_whole()
        raise InterfaceError(f"a part that is none: {partition!r}")

    def _read_stored(self, part: StoredPart) -> Iterator[RecordBatch]:
        with _rows_at(self._options, part.pin) as rows:
            if isinstance(part.pin, Pin):
                renew(_directory(self._options), part.pin)
            yield from batches(self._schema, rows.columns(), rows.pages(part.within), self._conditions)

    def _read_whole(self) -> Iterator[RecordBatch]:
        options = self._options
        with options.open() as db:
            columns = api_columns(db, options)
            if options.since is not None:
                pages = changed_rows(db, options, options.since, options.as_of)
                columns = [*columns, *CHANGE_COLUMNS]
            else:
                pages = rows_as_of(db, options)
            yield from batches(self._schema, columns, pages, self._conditions)


def batches(
    schema: StructType, columns: Columns, pages: Iterator[list[Row]], conditions: Sequence[Condition] = ()
) -> Iterator[RecordBatch]:
    """The rows as Spark expects them; those that do not meet the conditions are left out."""
    wanted = arrow_schema(schema)
    positions = positions_of(columns, wanted.names)
    rows = (row for page in pages for row in page)
    while some := list(islice(rows, BATCH_ROWS)):
        batch = filtered(batch_of(some, positions, wanted), conditions)
        if batch.num_rows:
            yield batch


class FilteringReader(ViewtideReader):
    """Takes filters, which Spark does not apply again.

    Spark up to 4.3 keeps what a reader made of its filters by DataFrame, not by query: another query over the same
    DataFrame, or the other side of a union, then reads what the first one's filters left. So this one is used only
    where Spark is newer, or where the user says so.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        applied = taken(filters, columns_of(self._options), self._schema)
        self._conditions = list(applied.values())
        return [each for number, each in enumerate(filters) if number not in applied]
