"""Streams of changes. An offset is a timestamp: everything up to it was read.

A stream reads the change tables of start < commit_ts <= end, which are the same whenever they are read. So what Spark
asks for again after a failure is what it was, and with its checkpoint every change counts exactly once.

Spark's checkpoint has the ends of batches only. So a stream that begins now begins where its first batch ends, which is
empty: the moment at which it was started would be another one if that batch is repeated.

Without `since` the schema has no sign (`_change`): Spark asks for it in the same way as for that of a frame. Then rows
are read as often as they came, and one that went is an error, because nothing could tell it from one that came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ..changetables.errors import InterfaceError, NotSupportedError
from ..changetables.types import Row
from .history import CHANGE, CHANGE_COLUMNS, api_columns, changed_rows, newest_ts
from .options import NOW, Options
from .reading import batches

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_TS = "ts"
#: The beginning of a stream that begins where its first batch ends.
_NOW = {_TS: "now"}


class ChangesPart(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class ViewtideStreamReader(DataSourceStreamReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._since = NOW if options.since is None else options.since
        self._has_signs = options.since is not None or CHANGE in schema.names

    def initialOffset(self) -> dict[str, str]:
        return _NOW if self._since == NOW else _offset(self._since)

    # Older versions of Spark call it without arguments.
    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, str]:
        return _offset(self._newest())

    def _newest(self) -> int:
        with self._options.open() as db:
            return newest_ts(db, self._options)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if start == _NOW:
            return []
        first, last = int(start[_TS]), int(end[_TS])
        return [ChangesPart(first, last)] if first < last else []

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, ChangesPart):
            raise InterfaceError(f"a part that is none: {partition!r}")
        with self._options.open() as db:
            columns = [*api_columns(db, self._options), *CHANGE_COLUMNS]
            pages = changed_rows(db, self._options, partition.start, partition.end)
            yield from batches(self._schema, columns, pages if self._has_signs else self._that_came(pages))

    def _that_came(self, pages: Iterator[list[Row]]) -> Iterator[list[Row]]:
        for page in pages:
            came = [(row, cast(int, row[-len(CHANGE_COLUMNS)])) for row in page]
            if any(times < 0 for _, times in came):
                raise NotSupportedError(
                    f"rows of {self._options.name!r} were changed or deleted, and this stream has only rows that come",
                    hint='give .option("since", "now"), which adds a column _change, and start it again',
                )
            yield [row for row, times in came for _ in range(times)]


def _offset(ts: int) -> dict[str, str]:
    # As text: a timestamp has more digits than some who read JSON keep.
    return {_TS: str(ts)}
