"""The bench of bulk loads: what it loads and computes agrees, and it says how it compares."""

from __future__ import annotations

import argparse

import pytest

from bench import bulk
from viewtide import bulk as loading

pytest.importorskip("pyarrow")


def test_all_ways_are_measured_and_agree(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(loading, "STAGED_ROWS_MIN", 1)
    result = bulk.run(argparse.Namespace(rows=3_000, quick=True))
    rows = result["rows"]
    assert isinstance(rows, list) and [row["rows"] for row in rows] == [3_000] * 5 + [1_000, 3_000] + [1_000] * 3
    ratios = result["ratios"]
    assert isinstance(ratios, dict) and all(ratio > 0 for ratio in ratios.values())
    assert bulk.FIRST_COLUMNS in capsys.readouterr().out
