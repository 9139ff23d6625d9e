"""Benches of clusters: LTM processes with client processes, logs on the local disk and in HBase."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import cluster, hbase
from bench.driver import Timing
from bench.processes import measure_processes
from bench.workload import UNIFORM, Cell
from viewtide.dev_cluster import DevelopmentHbase

QUICKEST = Timing(0.1, 0.5)


def test_ratios_of_the_cluster_on_hbase() -> None:
    rows = [
        hbase.Row(what, writers, 100.0 * writers, 1, 2) for what in (hbase.PUT_IF, hbase.APPEND) for writers in (1, 8)
    ]
    made = hbase.ratios(rows, [hbase.ClusterRow(2, 16, 10, 1_200.0, 5.0, 9.0, 4.5)])
    assert made == {
        "append_vs_put_if_1": 1.0,
        "append_vs_put_if_8": 1.0,
        "ltms_2_transactions_per_append": 4.5,
        "ltms_2_vs_put_if_8": 1.5,
    }


def test_arguments() -> None:
    options = bench.parser().parse_args(["hbase", "--ltms", "1", "--clients", "4"])
    assert (options.ltms, options.clients) == ((1,), 4)


@pytest.mark.slow
def test_two_ltms_with_client_processes(tmp_path: Path, hbase_servers: DevelopmentHbase) -> None:
    """Every read is checked, and the view compared with a recompute: a wrong answer raises."""
    with cluster.cluster_place(tmp_path, hbase_servers, 2) as place:
        assert len(place.addresses) == 2
        measured = measure_processes("two", lambda: nullcontext(place), Cell(10, 2, UNIFORM), QUICKEST)
        figures = place.figures()
    assert len(measured.client_counts) == 2 and len(measured.latencies_s) > 0 and measured.reads_checked > 0
    assert figures["viewtide_messages_sent_total"] > 0 and figures["viewtide_log_flushes"] > 0
    assert not list(tmp_path.iterdir())
