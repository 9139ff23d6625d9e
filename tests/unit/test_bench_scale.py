"""`python -m bench scale`: a partitioned load on processes and in virtual time."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from bench import __main__ as bench
from bench import plot, scale, virtual
from bench.driver import Timing
from bench.partitions import EVENT_SPAN, Partitions
from bench.virtual import Line
from bench.workload import UNIFORM, Cell
from viewtide.dev_cluster import DevelopmentHbase


@pytest.mark.parametrize("count", [1, 2, 4, 40])
def test_all_that_a_partition_has_is_on_two_ltms(count: int) -> None:
    partitions = Partitions(count, 2, 3)
    tables = virtual.schema()
    ranges = list(partitions.ranges(tables, "events", "products", "cost_by_category"))
    assert len(ranges) == 4 * count
    encode = tables.by_name["products"].codec.keys.encode
    for partition in range(count):
        products = {partitions.product(partition, number) for number in range(100)}
        assert len(products) == partitions.products == 6
        owners = {owner for each in products for start, stop, owner in ranges if start <= encode((each,)) < stop}
        assert owners == {(partition + 1) % count}
        assert {each % partitions.all_categories // partitions.categories for each in products} == {partition}
    events = tables.by_name["events"].codec.keys.encode
    assert [owner for start, stop, owner in ranges if start <= events((EVENT_SPAN - 1,)) < stop] == [0]
    starts = sorted(start for start, _, _ in ranges)
    stops = sorted(stop for _, stop, _ in ranges)
    assert all(stop <= start for stop, start in zip(stops, starts[1:], strict=False)), "they do not overlap"


def test_a_line_is_what_steps_and_rows_take() -> None:
    made = virtual.lines_of({"Ask": [(rows, 20.0 + 3.0 * rows) for rows in range(50)], "Vote": [(0, 7.0)] * 5})
    assert made["Ask"].step_us == pytest.approx(20.0) and made["Ask"].row_us == pytest.approx(3.0)
    assert made["Vote"] == Line(pytest.approx(7.0), 0.0)  # type: ignore[arg-type]


def costs() -> virtual.Costs:
    """So much for every step that there is."""
    kinds = virtual.Cluster(2, 2, 100.0, None).run(0.0, 0.02).samples
    return dict.fromkeys(kinds, Line(20.0, 1.0))


def test_more_ltms_do_more_in_virtual_time_and_always_the_same() -> None:
    lines, tables = costs(), virtual.schema()

    def simulated(ltms: int) -> virtual.Simulated:
        return virtual.Cluster(ltms, 2, 100.0, lines, tables).run(0.01, 0.03)

    two, again, four = simulated(2), simulated(2), simulated(4)
    assert two.transactions > 100
    assert (two.transactions, two.latencies_us) == (again.transactions, again.latencies_us)
    assert four.transactions > 1.5 * two.transactions
    assert 0 < two.leader_busy < four.leader_busy < 1


def test_costs_are_measured() -> None:
    (one,) = virtual.simulate((1,), 2, 100.0, 0.02)
    assert one.transactions > 0 and one.ltms == 1 and len(one.latencies_us) == one.transactions


ROWS = [
    scale.Row(scale.REAL, 1, 16, 4_000.0, 3.0, 6.0),
    scale.Row(scale.REAL, 2, 16, 3_000.0, 5.0, 9.0),
    scale.Row(scale.VIRTUAL, 2, 32, 4_000.0, 4.0, 8.0, 0.05),
    scale.Row(scale.VIRTUAL, 40, 640, 72_000.0, 4.0, 8.0, 0.5),
]


def test_ratios_and_panels() -> None:
    assert scale.ratios(ROWS) == {
        "virtual_per_ltm_most_vs_2": 0.9,
        "processes_2_vs_1": 0.75,
        "processes_4_vs_2": None,
    }
    assert scale.panels(ROWS) == {
        "processes": {"measured": {1: 4_000.0, 2: 3_000.0}},
        "virtual time": {
            "simulated": {2: 4_000.0, 40: 72_000.0},
            "linear from 2": {2: 4_000.0, 40: 80_000.0},
        },
    }


def test_every_panel_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, axes = MagicMock(), [MagicMock(), MagicMock()]
    figure.subplots.return_value = [axes]
    monkeypatch.setattr(plot, "empty_figure", lambda: figure)
    plot.write_lines(tmp_path / "scale.png", "title", scale.panels(ROWS), "LTMs", "transactions/s")
    drawn = [[call.args for call in each.plot.call_args_list] for each in axes]
    assert drawn == [
        [([1, 2], [4_000.0, 3_000.0])],
        [([2, 40], [4_000.0, 72_000.0]), ([2, 40], [4_000.0, 80_000.0])],
    ]
    figure.savefig.assert_called_once_with(tmp_path / "scale.png", dpi=plot.DOTS_PER_INCH)


def test_arguments() -> None:
    options = bench.parser().parse_args(["scale", "--ltms", "1,2", "--simulated", "40", "--only", "processes"])
    assert (options.ltms, options.simulated, options.only) == ((1, 2), (40,), "processes")


@pytest.mark.slow
def test_partitions_on_processes(tmp_path: Path, hbase_servers: DevelopmentHbase) -> None:
    """Every read is checked, and the view compared with a recompute: a wrong answer raises."""
    row = scale.measured(tmp_path, hbase_servers, 2, Cell(10, 2, UNIFORM), Timing(0.1, 0.5))
    assert (row.how, row.ltms, row.clients) == (scale.REAL, 2, 2)
    assert row.tx_per_s > 0 and row.p99_ms >= row.p50_ms > 0
