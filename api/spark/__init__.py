"""Spark reads tables and views, and writes tables: `viewtide.spark.register(spark)`, then the format "viewtide".

Needs the extra `spark`. Nothing of it is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..changetables.errors import InterfaceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "register"]

FORMAT = "viewtide"
#: Spark refuses a reader that takes filters as long as this is not set.
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


#: What has this method keeps the filters of one query for the next one (`reading.FilteringReader`).
_SHARED_PLAN = ("org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2", "setReadInfo")


def register(spark: SparkSession) -> None:
    """Make the format "viewtide" known to a session, for reading and writing, in batches and as a stream."""
    try:
        from .source import FilteringSource, ViewtideSource
    except ModuleNotFoundError as error:
        raise InterfaceError(f"{error.name} is not installed", hint="pip install 'viewtide[spark]'") from error
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource if _keeps_filters_apart(spark) else ViewtideSource)


def _keeps_filters_apart(spark: SparkSession) -> bool:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return False  # a session of Spark Connect: what runs there is not known
    name, method = _SHARED_PLAN
    methods = jvm.java.lang.Class.forName(name).getMethods()
    return all(each.getName() != method for each in methods)
