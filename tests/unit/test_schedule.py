"""The order of the tests, and which of them stay together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import schedule

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("prefix", [*schedule.WAITING, *schedule.LONG, *schedule.APART, *schedule.TOGETHER])
def test_every_prefix_is_of_some_tests(prefix: str) -> None:
    names = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert any(name.startswith(prefix) for name in names)


def test_tests_of_a_file_stay_together_but_for_long_ones() -> None:
    assert schedule.unit("tests/unit/test_sql.py::test_one[x::y]") == "tests/unit/test_sql.py"
    assert schedule.unit("tests/unit/test_sim_commit.py::test_one") == "tests/unit/test_sim_commit.py::test_one"
    assert schedule.unit("tests/spark/test_steps.py::test_one") == "tests/spark/"


def test_what_waits_and_what_is_long_comes_first() -> None:
    names = ["tests/unit/test_sql.py", "tests/unit/test_sim_views.py", "tests/hbase/test_log.py"]
    assert sorted(names, key=schedule.turn) == names[::-1]
