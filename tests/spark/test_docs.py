"""docs/spark.md runs: its blocks one after the other, in one folder and with the session of all tests."""

from __future__ import annotations

import itertools
import re
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import viewtide as vt

from .patience import patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
#: How the worked example begins, and how many events it has here: as few as are loaded in bulk.
EVENTS = "EVENTS = 10_000_000"
FEW_EVENTS = "EVENTS = 100_000"


def test_the_extra_has_what_spark_asks_for() -> None:
    """Spark refuses `mapInArrow` without pandas, and does not install it by itself; the extra `dev` would hide that."""
    wanted = [each for each in requires("viewtide") or () if 'extra == "spark"' in each]
    assert {re.split(r"[^\w-]", each)[0] for each in wanted} >= {"pyspark", "pyarrow", "pandas"}


def blocks_of() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_worked_example_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in blocks_of() if EVENTS in block]
    block = block.replace(EVENTS, FEW_EVENTS).replace('"events.db"', repr(str(tmp_path / "events.db")))
    names: dict[str, object] = {}
    try:
        exec(compile(block, str(PAGE), "exec"), names)
    finally:
        database = names.get("db")
        if isinstance(database, vt.Database):
            database.close()
    said = capsys.readouterr().out
    assert all(f"{name} verified" in said for name in ("by_day", "by_category", "dearest"))


def test_the_page_about_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of() if EVENTS not in block]
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
