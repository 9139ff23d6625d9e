"""Streams of changes. An offset is a timestamp: everything up to it was read.

A stream reads the change tables of start < commit_ts <= end, which are the same whenever they are read. So what Spark
asks for again after a failure is what it was, and with its checkpoint every change counts exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ..changetables.errors import InterfaceError
from .history import CHANGE_COLUMNS, api_columns, changed_rows, newest_ts
from .options import NOW, Options
from .reading import batches

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_TS = "ts"


class ChangesPart(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class ViewtideStreamReader(DataSourceStreamReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        if options.since is None:
            raise InterfaceError(
                "a stream is one of changes", hint='say from where on: .option("since", token.commit_ts), or "now"'
            )
        self._options, self._schema, self._since = options, schema, options.since

    def initialOffset(self) -> dict[str, str]:
        return _offset(self._newest() if self._since == NOW else self._since)

    # Older versions of Spark call it without arguments.
    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, str]:
        return _offset(self._newest())

    def _newest(self) -> int:
        with self._options.open() as db:
            return newest_ts(db, self._options)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        first, last = int(start[_TS]), int(end[_TS])
        return [ChangesPart(first, last)] if first < last else []

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, ChangesPart):
            raise InterfaceError(f"a part that is none: {partition!r}")
        with self._options.open() as db:
            columns = [*api_columns(db, self._options), *CHANGE_COLUMNS]
            pages = changed_rows(db, self._options, partition.start, partition.end)
            yield from batches(self._schema, columns, pages)


def _offset(ts: int) -> dict[str, str]:
    # As text: a timestamp has more digits than some who read JSON keep.
    return {_TS: str(ts)}
