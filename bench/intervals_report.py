"""From the cells of the intervals to figures: rows, medians over runs, ratios, the printed and the Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import BenchError
from .lag import LIMIT_ABOVE_INTERVAL_MS, LagFigures
from .plot import Panel
from .report import Ratios
from .workload import INSERT, UPDATE

NO_VIEW = "none"
POSTGRES_CHANGE_TABLE = "postgres_change_table"
#: The refresh mode that the ratios speak of, and its interval.
JUDGED = "500ms"
JUDGED_MS = 500.0
#: The cell that the ratios speak of.
RATIO_K = 10

#: What `--table` replaces is between these two lines.
TABLE_BEGIN = "<!-- intervals: begin -->"
TABLE_END = "<!-- intervals: end -->"


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One workload, update size and refresh mode. Field names are those of the JSON file. There is no lag without a
    view."""

    workload: str
    k: int
    clients: int
    refresh: str
    tx_per_s: float
    p50_ms: float
    p99_ms: float
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    #: Reads in the whole cell, warm-up included; every one of them was checked.
    view_reads: int


#: One round of cells that follow each other directly: name of the cell -> transactions per second.
Round = Mapping[str, float]


def median_rows(runs: Sequence[Sequence[IntervalRow]]) -> list[IntervalRow]:
    """One row per cell: the median of each figure over the runs, which all have the same cells in order."""
    return [_median_row(same) for same in zip(*runs, strict=True)]


def _median_row(rows: Sequence[IntervalRow]) -> IntervalRow:
    return replace(
        rows[0],
        tx_per_s=statistics.median(row.tx_per_s for row in rows),
        p50_ms=statistics.median(row.p50_ms for row in rows),
        p99_ms=statistics.median(row.p99_ms for row in rows),
        lag_p50_ms=_median([row.lag_p50_ms for row in rows]),
        lag_p99_ms=_median([row.lag_p99_ms for row in rows]),
        view_reads=sum(row.view_reads for row in rows),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratios(rows: Sequence[IntervalRow], rounds: Sequence[Round], lag: LagFigures | None) -> Ratios:
    """The figures that deferred views are judged by, k = 10; None where a part was not measured."""
    return {
        "deferred_500ms_vs_no_view": _median_ratio(rounds, JUDGED, NO_VIEW),
        "deferred_500ms_vs_postgres_change_table": _median_ratio(rounds, JUDGED, POSTGRES_CHANGE_TABLE),
        "lag_p99_over_interval_ms": None if lag is None else round(lag.lag_p99_ms - lag.interval_ms, 1),
        "lag_recovery_ms": None if lag is None else lag.recovery_ms,
        "lag_recovered": None if lag is None else float(lag.recovered),
        "half_rate_kept": None if lag is None else lag.half_kept,
        **_figure_ratios(rows),
    }


def _figure_ratios(rows: Sequence[IntervalRow]) -> Ratios:
    """Every refresh mode over no view at all, in both workloads: what the figure shows at k = 10, as numbers."""
    found: Ratios = {}
    for workload in (UPDATE, INSERT):
        speeds = {row.refresh: row.tx_per_s for row in rows if (row.workload, row.k) == (workload, RATIO_K)}
        base = speeds.pop(NO_VIEW, None)
        for refresh, speed in speeds.items():
            found[f"{workload}_{refresh}_vs_no_view"] = round(speed / base, 3) if base else None
    return found


def _median_ratio(rounds: Sequence[Round], upper: str, lower: str) -> float | None:
    """The median of the rounds' own ratios: within a round the cells follow each other, so noise hits both."""
    found = [each[upper] / each[lower] for each in rounds if each.get(upper) and each.get(lower)]
    return round(statistics.median(found), 3) if found else None


# -- what is printed


def table_header() -> str:
    titles = ("tx/s", "p50 ms", "p99 ms", "lag p50", "lag p99")
    return f"{'workload':>10} {'k':>4} {'refresh':>22} " + " ".join(f"{title:>9}" for title in titles)


def table_line(row: IntervalRow) -> str:
    lags = (f"{lag:,.0f}" if lag is not None else "-" for lag in (row.lag_p50_ms, row.lag_p99_ms))
    return (
        f"{row.workload:>10} {row.k:>4} {row.refresh:>22} {row.tx_per_s:>9,.0f} {row.p50_ms:>9.2f} {row.p99_ms:>9.2f} "
        + " ".join(f"{lag:>9}" for lag in lags)
    )


# -- what goes into the documents


def panels(rows: Sequence[IntervalRow]) -> dict[str, Panel]:
    """The plot: a panel per workload, a line per refresh mode."""
    titles = {UPDATE: "update: the same 150 rows", INSERT: "insert: new rows"}
    made: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        label = "no view" if row.refresh == NO_VIEW else row.refresh
        made.setdefault(titles[row.workload], {}).setdefault(label, {})[row.k] = row.tx_per_s
    return dict(made)


def markdown(rows: Sequence[IntervalRow], named: Ratios, lag: LagFigures | None, about: str) -> str:
    """The tables for the documents: the figure's numbers and the ratios."""
    titles = ("workload", "rows per transaction", "refresh", "tx/s", "p50 ms", "p99 ms", "lag p50 ms", "lag p99 ms")
    lines = [about, "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_markdown_line(row) for row in rows]
    if lag is not None:
        lines += ["", _markdown_lag(lag)]
    lines += ["", "| ratio | value |", "|---|---|"]
    lines += [f"| `{name}` | {value:g} |" for name, value in named.items() if value is not None]
    return "\n".join(lines)


def _markdown_line(row: IntervalRow) -> str:
    refresh = "no view" if row.refresh == NO_VIEW else row.refresh
    lags = (f"{lag:,.0f}" if lag is not None else "–" for lag in (row.lag_p50_ms, row.lag_p99_ms))
    cells = [row.workload, str(row.k), refresh, f"{row.tx_per_s:,.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", *lags]
    return f"| {' | '.join(cells)} |"


def _markdown_lag(lag: LagFigures) -> str:
    limit = lag.interval_ms + LIMIT_ABOVE_INTERVAL_MS
    back = (
        f"kept to {limit:,.0f} ms again {lag.recovery_ms:,.0f} ms after its end"
        if lag.recovered
        else f"did not keep to {limit:,.0f} ms again"
    )
    return (
        f"At half of the highest rate ({lag.half_tx_per_s:,.0f} of {lag.maximum_tx_per_s:,.0f} tx/s) the lag of the "
        f"{lag.interval_ms:,.0f} ms view was {lag.lag_p50_ms:,.0f} ms in the median and {lag.lag_p99_ms:,.0f} ms at "
        f"the 99th percentile. In the overload that followed ({lag.overload_tx_per_s:,.0f} tx/s) it reached "
        f"{lag.overload_lag_max_ms:,.0f} ms, and {back}."
    )


def check_table_file(path: Path) -> None:
    """Before anything is measured: can the tables go there?"""
    lines = path.read_text().splitlines() if path.is_file() else []
    if [line for line in lines if line in (TABLE_BEGIN, TABLE_END)] != [TABLE_BEGIN, TABLE_END]:
        raise BenchError(f"--table {path}: needs a file with a line {TABLE_BEGIN} and below it a line {TABLE_END}")


def write_table(path: Path, tables: str) -> None:
    """Replaces what is between the two marks."""
    check_table_file(path)
    before, rest = path.read_text().split(TABLE_BEGIN + "\n", 1)
    _, after = rest.split(TABLE_END, 1)
    path.write_text(f"{before}{TABLE_BEGIN}\n\n{tables}\n\n{TABLE_END}{after}")
