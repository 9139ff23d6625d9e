"""Spark reads tables and views, and writes tables: `viewtide.spark.register(spark)`, then the format "viewtide".

Needs the extra `spark`. Nothing of it is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..changetables.evaluators.spark_session import require_spark, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "register", "session"]

FORMAT = "viewtide"
#: Spark refuses a reader that takes filters as long as this is not set.
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


#: What has this method keeps the filters of one query for the next one (`reading.FilteringReader`).
_SHARED_PLAN = ("org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2", "setReadInfo")


def register(spark: SparkSession) -> None:
    """Make the format "viewtide" known to a session, for reading and writing, in batches and as a stream."""
    require_spark()
    # Imported here: whoever never registers it needs no Spark.
    from .source import FilteringSource, ViewtideSource

    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource if _keeps_filters_apart(spark) else ViewtideSource)


def session(master: str = "local[*]") -> SparkSession:
    """The Spark session of this process, or a new local one, to which the format is known."""
    spark = spark_session(master)
    register(spark)
    return spark


def _keeps_filters_apart(spark: SparkSession) -> bool:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return False  # a session of Spark Connect: what runs there is not known
    name, method = _SHARED_PLAN
    methods = jvm.java.lang.Class.forName(name).getMethods()
    return all(each.getName() != method for each in methods)
