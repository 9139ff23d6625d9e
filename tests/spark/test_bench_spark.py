"""The bench of what Spark reads runs, and its figures are about what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from bench import spark as bench_spark
from bench.__main__ import parser
from bench.errors import BenchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_directory_is_measured(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_spark.ROWS, bench_spark.DIRECTORY, (1_000, 3_000))
    result = bench_spark.run(parser().parse_args(["spark", "--sources", bench_spark.DIRECTORY]))
    rows = cast("list[dict[str, float]]", result["rows"])
    assert [(row["source"], row["rows"]) for row in rows] == [("directory", 1_000), ("directory", 3_000)]
    for row in rows:
        assert row["rows_per_s"] > 0 and row["cpu_us_per_row"] > 0
        assert row["driver_peak_mib"] > 10 and row["jvm_peak_mib"] > 10
    ratios = cast("dict[str, float]", result["ratios"])
    assert ratios["directory_rows"] == 3 and ratios["directory_driver_memory"] > 0
    with pytest.raises(BenchError, match="no source 'nothing'"):
        bench_spark.run(parser().parse_args(["spark", "--sources", "nothing"]))
