"""docs/spark.md runs: its blocks one after the other, in one folder and with the session of all tests."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import viewtide as vt

from .patience import patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_page_about_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    tries = itertools.count()

    def run() -> None:
        folder = tmp_path / str(next(tries))
        folder.mkdir()
        names: dict[str, object] = {}
        try:
            for block in blocks:
                # Spark runs where the tests do: its paths are made to be elsewhere.
                for path in ("shop.db", "checkpoint"):
                    block = block.replace(f'"{path}"', repr(str(folder / path)))
                exec(compile(block, str(PAGE), "exec"), names)
        finally:
            database = names.get("db")
            if isinstance(database, vt.Database):
                database.close()

    patiently(run)
