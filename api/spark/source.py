"""The data source that Spark knows as "viewtide". Spark makes it anew, from the options, wherever it needs it."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from . import FORMAT
from .options import Options, options_from
from .reading import FilteringReader, ViewtideReader, schema_of
from .streaming import ViewtideStreamReader
from .writing import ViewtideStreamWriter, ViewtideWriter, check_target


class ViewtideSource(DataSource):
    """Filters are left to Spark, unless the user says otherwise."""

    takes_filters = False

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._said: Options = options_from(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schema_of(self._said)

    def reader(self, schema: StructType) -> DataSourceReader:
        pushdown = self.takes_filters if self._said.pushdown is None else self._said.pushdown
        return FilteringReader(self._said, schema) if pushdown else ViewtideReader(self._said, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check_target(self._said, schema, overwrite)
        return ViewtideWriter(self._said)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ViewtideStreamReader(self._said, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        check_target(self._said, schema, overwrite)
        return ViewtideStreamWriter(self._said)


class FilteringSource(ViewtideSource):
    """For a Spark that keeps what a reader made of its filters to the query that they are of."""

    takes_filters = True
