"""`python -m bench served`: client processes against a served node, and what is made of their figures."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import pytest

from bench import __main__ as bench
from bench import report, served
from bench.driver import Timing
from bench.errors import BenchError
from bench.processes import Place, measure_processes
from bench.workload import HOT, UNIFORM, Cell


def row(system: str, tx_per_s: float, *, k: int = 10, skew: str = UNIFORM, p99_ms: float = 5.0) -> report.Row:
    return report.Row(system, k, 16, skew, tx_per_s, 1.0, p99_ms, 9.0, 0.8, 0.3, 0.9, 10)


def test_the_ratios() -> None:
    rows = [
        row(served.SERVED, 8_000),
        row(served.SERVED, 7_600, skew=HOT),
        row(served.SERVED, 18_000, k=1),
        row(served.TWO_LTMS, 4_200, p99_ms=12.0),
        row(served.TWO_LTMS, 6_600, k=1),
        row(served.TWO_LTMS, 4_200, skew=HOT),
        row(report.POSTGRES, 2_000),
        row(report.POSTGRES, 6_000, k=1),
    ]
    assert served.ratios(rows) == {
        "served_vs_postgres": 4.0,
        "served_vs_postgres_k1": 3.0,
        "served_p99_ms": 5.0,
        "served_hot_vs_uniform": 0.95,
        "served_slowest_over_fastest": 0.8,
        "served_view_read_p50_ms": 0.3,
        "two_ltms_vs_postgres": 2.1,
        "two_ltms_vs_postgres_k1": 1.1,
        "two_ltms_p99_ms": 12.0,
        "two_ltms_hot_vs_uniform": 1.0,
    }
    assert served.ratios(rows[6:])["served_vs_postgres"] is None


def test_arguments() -> None:
    options = bench.parser().parse_args(["served", "--k", "1,10", "--clients", "16", "--skew", "hot", "--runs", "3"])
    assert (options.k, options.clients, options.skew, options.runs) == ((1, 10), (16,), ("hot",), 3)


@pytest.mark.slow
def test_client_processes_against_a_node(tmp_path: Path) -> None:
    """Every read is checked, and the view compared with a recompute: a wrong answer raises."""
    cell = Cell(10, 2, UNIFORM)
    measured = measure_processes(served.SERVED, lambda: served.served_place(tmp_path, ""), cell, Timing(0.1, 0.5))
    assert len(measured.client_counts) == 2
    assert all(count > 0 for count in measured.client_counts)
    assert measured.reads_checked > 0
    assert not list(tmp_path.iterdir())


class Broken:
    """A place whose clients fail."""

    def client(self, index: int = 0) -> object:
        raise RuntimeError("no client today")

    reader = client

    def recompute_differs(self) -> str | None:
        return None


@pytest.mark.slow
def test_a_client_that_fails_ends_the_bench() -> None:
    def broken() -> AbstractContextManager[Place]:
        return nullcontext(cast(Place, Broken()))

    with pytest.raises(BenchError, match="no client today"):
        measure_processes("broken", broken, Cell(10, 1, UNIFORM), Timing(0.1, 0.1))
