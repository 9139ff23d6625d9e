"""`python -m bench intervals`: what the refresh interval of a view costs the writers, and whether the view keeps it.

Three parts, all with durable commits on the dashboard's tables:

- figure: Nikolov's figures 6.2 and 6.3. Transactions per second and response times against the rows per transaction,
  without a view, with a synchronous one, and with one that is refreshed every 50, 500 and 5000 ms; in the workload
  "update", the same 150 rows again and again, whose changes collapse, and in the workload "insert", new rows;
- writers: no view, a 500 ms view and PostgreSQL with a change table merged every 500 ms, in turns;
- lag: how far the 500 ms view is behind at half of the highest rate, and after an overload (`bench/lag.py`).

Every read of a view is checked, and at the end of each cell it is refreshed and compared with a recompute. A wrong
answer ends the bench.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine, plot, product, report
from .dashboard import bench_folder, names_of, numbers_of, positive
from .driver import Timing
from .errors import BenchError
from .intervals_report import (
    JUDGED,
    JUDGED_MS,
    NO_VIEW,
    POSTGRES_CHANGE_TABLE,
    RATIO_K,
    IntervalRow,
    Round,
    check_table_file,
    markdown,
    median_rows,
    panels,
    ratios,
    table_header,
    table_line,
    write_table,
)
from .lag import FULL_PHASES, QUICK_PHASES, LagFigures, Phases, lag_lines, measure_lag
from .load import OpenSession, crew_of
from .report import percentile
from .workload import EVENTS_COUNT_INITIAL, INSERT, UNIFORM, UPDATE, UPDATED_ROWS, Cell

if TYPE_CHECKING:
    from .peers.postgres_change_table import ChangeTableServer

SUMMARY = "what the refresh interval costs writers, and how far a deferred view is behind under load"

REFRESHES = {NO_VIEW: 0.0, product.SYNC: 0.0, "50ms": 50.0, JUDGED: JUDGED_MS, "5000ms": 5_000.0}
#: Cells that are long enough for 5000 ms, and cells as long to compare with, have no place in a quick figure.
QUICK_REFRESHES = tuple(refresh for refresh, interval_ms in REFRESHES.items() if interval_ms <= JUDGED_MS)
WORKLOADS = (UPDATE, INSERT)
PARTS = ("figure", "writers", "lag")
CLIENTS = 16

#: As long as the longest interval, for all cells alike: a cell that is over before the first checkpoint, or before much
#: log is kept for the view, looks faster than it would be for long.
FULL_TIMING = Timing(warm_up_s=0.5, measure_s=5.0)
#: 8 cells of the figure, 6 of the writers, the lag and the start of PostgreSQL fit into one and a half minutes.
QUICK_TIMING = Timing(warm_up_s=0.2, measure_s=1.0)
#: The cells that the ratios of the writers come from last longer.
QUICK_WRITERS_TIMING = Timing(warm_up_s=0.3, measure_s=3.0)
FULL_K = (1, 10, 50)
QUICK_K = (RATIO_K,)
FULL_ROUNDS = 3
QUICK_ROUNDS = 2
FULL_RUNS = 3
#: The view of a cell is read so often: the writers, whose speed is asked for, hardly notice.
WATCH_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Setup:
    """What one run measures, and where."""

    folder: Path
    postgres: ChangeTableServer | None
    clients: int
    timing: Timing
    writers_timing: Timing
    sizes: tuple[int, ...]
    refreshes: tuple[str, ...]
    workloads: tuple[str, ...]
    parts: tuple[str, ...]
    rounds: int
    phases: Phases

    def session(self, refresh: str, workload: str) -> OpenSession:
        if refresh == POSTGRES_CHANGE_TABLE:
            assert self.postgres is not None
            return self.postgres.session
        mode = None if refresh == NO_VIEW else refresh
        return partial(product.interval_session, self.folder, mode, workload)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave."""

    rows: list[IntervalRow]
    rounds: list[Round]
    lag: LagFigures | None

    def ratios(self) -> report.Ratios:
        return ratios(self.rows, self.rounds, self.lag)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, help=f"how often; figures are medians (default {FULL_RUNS}, quick 1)")
    parser.add_argument("--parts", type=names_of(PARTS), help=f"some of {','.join(PARTS)}; all by default")
    parser.add_argument("--refresh", type=names_of(REFRESHES), help=f"of the figure: some of {','.join(REFRESHES)}")
    parser.add_argument("--workloads", type=names_of(WORKLOADS), help=f"of the figure: some of {','.join(WORKLOADS)}")
    parser.add_argument("--k", type=_update_sizes, help="of the figure: rows per transaction, such as 1,10,50")
    parser.add_argument("--clients", type=positive, default=CLIENTS, help=f"client threads (default {CLIENTS})")
    parser.add_argument("--seconds", type=float, help="measured time of each cell, at least one interval of its view")
    parser.add_argument("--without-postgres", action="store_true", help="leave the peer out")
    parser.add_argument("--dir", type=Path, help="where the databases go, on a real disk (default: a temporary folder)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure (PNG); needs the extra `bench`")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the tables into this Markdown file")


def run(options: argparse.Namespace) -> dict[str, object]:
    _check_outputs(options)
    product.load_viewtide()
    with bench_folder(options.dir) as folder, _postgres(folder, options) as postgres:
        facts = machine.machine_facts(folder)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
        setup = _setup(options, folder, postgres)
        runs = [_one_run(setup, number) for number in range(options.runs or (1 if options.quick else FULL_RUNS))]
    rows, medians = median_rows([each.rows for each in runs]), report.median_ratios([each.ratios() for each in runs])
    lag = _middle_lag(runs)
    _print_medians(runs, rows, medians)
    if options.plot is not None:
        plot.write_plot(options.plot, "Refresh interval and speed of the writers", panels(rows))
    if options.table is not None:
        about = [_about(facts, setup, len(runs)), *_picture(options.plot, options.table)]
        write_table(options.table, markdown(rows, medians, lag, "\n\n".join(about)))
    return {
        "bench": "intervals",
        "machine": facts,
        "runs": len(runs),
        "measure_s": setup.timing.measure_s,
        "rows": [asdict(row) for row in rows],
        "rounds": [dict(each) for one in runs for each in one.rounds],
        "lag": [asdict(each.lag) for each in runs if each.lag is not None],
        "ratios": medians,
        "ratios_of_runs": [each.ratios() for each in runs],
    }


def _check_outputs(options: argparse.Namespace) -> None:
    """Now, not after minutes of measuring."""
    if options.plot is not None:
        plot.empty_figure()
        if not options.plot.absolute().parent.is_dir():
            raise BenchError(f"--plot {options.plot}: there is no such folder")
    if options.table is not None:
        check_table_file(options.table)


@contextmanager
def _postgres(folder: Path, options: argparse.Namespace) -> Iterator[ChangeTableServer | None]:
    if options.without_postgres or (options.parts is not None and "writers" not in options.parts):
        yield None
        return
    try:
        from .peers.postgres_change_table import change_table_server  # Here: Viewtide is measured without psycopg too.
    except ImportError as error:
        raise BenchError(
            f"psycopg cannot be imported ({error}): pip install 'psycopg[binary]', or leave PostgreSQL out with "
            "--without-postgres"
        ) from error
    with change_table_server(folder) as server:
        yield server


def _setup(options: argparse.Namespace, folder: Path, postgres: ChangeTableServer | None) -> Setup:
    timings = (QUICK_TIMING, QUICK_WRITERS_TIMING) if options.quick else (FULL_TIMING, FULL_TIMING)
    if options.seconds is not None:
        timings = (Timing(timings[0].warm_up_s, options.seconds),) * 2
    return Setup(
        folder=folder,
        postgres=postgres,
        clients=options.clients,
        timing=timings[0],
        writers_timing=timings[1],
        sizes=options.k or (QUICK_K if options.quick else FULL_K),
        refreshes=options.refresh or (QUICK_REFRESHES if options.quick else tuple(REFRESHES)),
        workloads=options.workloads or WORKLOADS,
        parts=options.parts or PARTS,
        rounds=QUICK_ROUNDS if options.quick else FULL_ROUNDS,
        phases=QUICK_PHASES if options.quick else FULL_PHASES,
    )


def _one_run(setup: Setup, number: int) -> Run:
    print(f"\nrun {number + 1}: {setup.timing.measure_s:g} s per cell, {setup.clients} clients", flush=True)
    rows = _figure(setup) if "figure" in setup.parts else []
    rounds = _writers(setup) if "writers" in setup.parts else []
    lag = _lag(setup) if "lag" in setup.parts else None
    return Run(rows, rounds, lag)


def _figure(setup: Setup) -> list[IntervalRow]:
    print(f"\nfigure\n{table_header()}", flush=True)
    return [
        _measured(setup, refresh, Cell(k, setup.clients, UNIFORM, workload), setup.timing)
        for workload in setup.workloads
        for k in setup.sizes
        for refresh in setup.refreshes
    ]


def _writers(setup: Setup) -> list[Round]:
    """In turns, so that a noisy moment of the machine hits all."""
    print(f"\nwriters, in turns\n{table_header()}", flush=True)
    names = (NO_VIEW, JUDGED) if setup.postgres is None else (NO_VIEW, JUDGED, POSTGRES_CHANGE_TABLE)
    cell = Cell(RATIO_K, setup.clients, UNIFORM, INSERT)
    timing = setup.writers_timing
    return [{name: _measured(setup, name, cell, timing).tx_per_s for name in names} for _ in range(setup.rounds)]


def _lag(setup: Setup) -> LagFigures:
    print(f"\nlag of a view that is refreshed every {JUDGED_MS:.0f} ms", flush=True)
    cell = Cell(RATIO_K, setup.clients, UNIFORM, INSERT)
    figures = measure_lag(f"viewtide {JUDGED}", setup.session(JUDGED, INSERT), cell, JUDGED_MS, setup.phases)
    print("\n".join(lag_lines(figures)), flush=True)
    return figures


def _measured(setup: Setup, refresh: str, cell: Cell, timing: Timing) -> IntervalRow:
    row = measure_cell(refresh, setup.session(refresh, cell.workload), cell, timing)
    print(table_line(row), flush=True)
    return row


def measure_cell(refresh: str, open_session: OpenSession, cell: Cell, timing: Timing) -> IntervalRow:
    """The measured time has room for one refresh at least: else a long interval would cost nothing."""
    measure_s = max(timing.measure_s, REFRESHES.get(refresh, 0.0) / 1_000)
    with crew_of(f"refresh {refresh}", open_session, cell, WATCH_EVERY_S) as crew:
        crew.keep_on(timing.warm_up_s)
        window = crew.keep_on(measure_s)
    latencies_ms = [seconds * 1_000 for seconds in crew.latencies_s(window)]
    lags_ms = [(at - watermark) * 1_000 for at, watermark in crew.sighted_in(window)]
    return IntervalRow(
        workload=cell.workload,
        k=cell.k,
        clients=cell.clients,
        refresh=refresh,
        tx_per_s=round(crew.tx_per_s(window), 1),
        p50_ms=round(percentile(latencies_ms, 50), 3),
        p99_ms=round(percentile(latencies_ms, 99), 3),
        lag_p50_ms=round(percentile(lags_ms, 50), 1) if lags_ms else None,
        lag_p99_ms=round(percentile(lags_ms, 99), 1) if lags_ms else None,
        view_reads=len(crew.sightings),
    )


def _middle_lag(runs: Sequence[Run]) -> LagFigures | None:
    """Of several runs, that one whose p99 is the median: figures that belong together."""
    found = sorted((each.lag for each in runs if each.lag is not None), key=lambda lag: lag.lag_p99_ms)
    return found[len(found) // 2] if found else None


def _print_medians(runs: Sequence[Run], rows: Sequence[IntervalRow], medians: report.Ratios) -> None:
    if len(runs) > 1:
        print(f"\nmedians of {len(runs)} runs\n{table_header()}")
        print("\n".join(table_line(row) for row in rows))
    print("\n" + "\n".join(report.ratio_lines(medians)), flush=True)


def _about(facts: dict[str, machine.Fact], setup: Setup, runs: int) -> str:
    measured = "One run" if runs == 1 else f"Medians of {runs} runs"
    return (
        f"{measured} with {setup.clients} client threads on {facts['cores']} cores ({facts['cpu']}), Python "
        f"{facts['python']}, `fdatasync` {facts['fdatasync_p50_us']} µs."
    )


def _picture(drawn: Path | None, table: Path) -> list[str]:
    """The plot as the Markdown file sees it."""
    if drawn is None:
        return []
    place = Path(os.path.relpath(drawn.absolute(), table.absolute().parent)).as_posix()
    return [f"![Transactions per second against rows per transaction, by refresh mode]({place})"]


def _update_sizes(text: str) -> tuple[int, ...]:
    sizes = numbers_of(text)
    for size in sizes:
        if UPDATED_ROWS % size or EVENTS_COUNT_INITIAL % size:
            raise argparse.ArgumentTypeError(
                f"{size} divides {UPDATED_ROWS} updated or {EVENTS_COUNT_INITIAL} initial rows with a remainder"
            )
    return sizes
