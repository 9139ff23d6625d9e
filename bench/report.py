"""From raw measurements to figures: rows, medians over runs, ratios, the printed table and the JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .driver import Measurement
from .workload import HOT, UNIFORM, Cell

VIEWTIDE = "viewtide"
VIEWTIDE_ASYNCIO = "viewtide_asyncio"
POSTGRES = "postgres_trigger"
SQLITE = "sqlite_trigger"

#: The cell that the ratios speak of.
RATIO_K = 10


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one system in one cell. Field names are those of the JSON file."""

    system: str
    k: int
    clients: int
    skew: str
    tx_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    #: Transactions of the client that got through least often, over those of the one that did most often; 1 is fair.
    slowest_over_fastest: float
    view_read_p50_ms: float
    view_read_p99_ms: float
    #: Reads in the whole cell, warm-up included; every one of them was checked.
    view_reads: int


Ratios = dict[str, float | None]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed; 0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def row_of(system: str, cell: Cell, measured: Measurement) -> Row:
    fastest = max(measured.client_counts)
    return Row(
        system=system,
        k=cell.k,
        clients=cell.clients,
        skew=cell.skew,
        tx_per_s=round(sum(measured.client_counts) / measured.measure_s, 1),
        p50_ms=_ms(percentile(measured.latencies_s, 50)),
        p99_ms=_ms(percentile(measured.latencies_s, 99)),
        max_ms=_ms(percentile(measured.latencies_s, 100)),
        slowest_over_fastest=round(min(measured.client_counts) / fastest, 3) if fastest else 0.0,
        view_read_p50_ms=_ms(percentile(measured.read_latencies_s, 50)),
        view_read_p99_ms=_ms(percentile(measured.read_latencies_s, 99)),
        view_reads=measured.reads_checked,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1_000, 3)


def median_rows(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """One row per system and cell: the median of each figure over the runs, which all have the same cells in order."""
    return [_median_row(same) for same in zip(*runs, strict=True)]


def _median_row(rows: Sequence[Row]) -> Row:
    first = rows[0]
    figures = {
        field.name: statistics.median(getattr(row, field.name) for row in rows)
        for field in fields(Row)
        if field.name not in ("system", "k", "clients", "skew", "view_reads")
    }
    return Row(first.system, first.k, first.clients, first.skew, view_reads=sum(r.view_reads for r in rows), **figures)


def ratios(rows: Sequence[Row]) -> Ratios:
    """The figures that Viewtide is judged by, k = 10 and uniform unless named; None where a part was not measured."""

    def figure(system: str, clients: int, name: str = "tx_per_s", skew: str = UNIFORM) -> float | None:
        for row in rows:
            if (row.system, row.k, row.clients, row.skew) == (system, RATIO_K, clients, skew):
                return float(getattr(row, name))
        return None

    def over(upper: float | None, lower: float | None) -> float | None:
        return round(upper / lower, 3) if upper is not None and lower else None

    threads16 = figure(VIEWTIDE, 16)
    threads16_hot = figure(VIEWTIDE, 16, skew=HOT)
    asyncio16 = figure(VIEWTIDE_ASYNCIO, 16)
    return {
        "threads16_vs_postgres": over(threads16, figure(POSTGRES, 16)),
        "threads16_vs_sqlite": over(threads16, figure(SQLITE, 16)),
        "asyncio16_vs_postgres": over(asyncio16, figure(POSTGRES, 16)),
        "asyncio16_vs_sqlite": over(asyncio16, figure(SQLITE, 16)),
        "thread1_vs_postgres": over(figure(VIEWTIDE, 1), figure(POSTGRES, 1)),
        "thread1_vs_sqlite": over(figure(VIEWTIDE, 1), figure(SQLITE, 1)),
        "hot_vs_uniform": over(threads16_hot, threads16),
        "threads16_hot_vs_postgres_hot": over(threads16_hot, figure(POSTGRES, 16, skew=HOT)),
        "view_read_p50_ms": figure(VIEWTIDE, 16, "view_read_p50_ms"),
        "p99_ms_16_threads": figure(VIEWTIDE, 16, "p99_ms"),
        "slowest_over_fastest_16_threads": figure(VIEWTIDE, 16, "slowest_over_fastest"),
    }


def median_ratios(runs: Sequence[Ratios]) -> Ratios:
    """The median of the runs' own ratios: within a run the systems took turns, so noise of the machine hit both."""
    medians: Ratios = {}
    for name in runs[0]:
        known = [value for run in runs if (value := run[name]) is not None]
        medians[name] = statistics.median(known) if known else None
    return medians


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    text: Callable[[Row], str]


_COLUMNS = (
    _Column("k", 4, lambda row: str(row.k)),
    _Column("clients", 8, lambda row: str(row.clients)),
    _Column("skew", 8, lambda row: row.skew),
    _Column("system", 17, lambda row: row.system),
    _Column("tx/s", 9, lambda row: f"{row.tx_per_s:,.0f}"),
    _Column("p50 ms", 9, lambda row: f"{row.p50_ms:.2f}"),
    _Column("p99 ms", 9, lambda row: f"{row.p99_ms:.2f}"),
    _Column("max ms", 10, lambda row: f"{row.max_ms:.1f}"),
    _Column("slow/fast", 10, lambda row: f"{row.slowest_over_fastest:.2f}"),
    _Column("read p50", 9, lambda row: f"{row.view_read_p50_ms:.2f}"),
    _Column("read p99", 9, lambda row: f"{row.view_read_p99_ms:.2f}"),
    _Column("reads", 7, lambda row: str(row.view_reads)),
)


def table_header() -> str:
    return " ".join(column.title.rjust(column.width) for column in _COLUMNS)


def table_line(row: Row) -> str:
    return " ".join(column.text(row).rjust(column.width) for column in _COLUMNS)


def ratio_lines(named: Ratios) -> list[str]:
    width = max(len(name) for name in named)
    return [
        f"{name.ljust(width)}  {'not measured' if value is None else f'{value:g}'}" for name, value in named.items()
    ]


def row_dicts(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


def write_json(path: Path, result: Mapping[str, object]) -> None:
    path.write_text(json_text(result) + "\n")


def json_text(result: Mapping[str, object]) -> str:
    return json.dumps(result, indent=2)
