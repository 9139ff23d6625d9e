"""`python -m bench dashboard`: Nikolov's dashboard micro-benchmark, Viewtide and its peers in the same run.

For every cell (k events per transaction, clients, uniform or hot) the systems run right after one another, so that a
noisy moment of the machine hits all of them. All are durable, all have their data on the same file system, all view
reads are checked, and at the end of each cell the view is compared with a recompute. A wrong answer ends the bench.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from . import driver, machine, product, report
from .driver import Measurement, Timing
from .errors import BenchError
from .workload import HOT, UNIFORM, Cell

SUMMARY = "transactions per second with a synchronous view, against PostgreSQL and SQLite triggers"

FULL_TIMING = Timing(warm_up_s=0.5, measure_s=3.0)
#: 16 cells of this and the start of PostgreSQL fit into a minute.
QUICK_TIMING = Timing(warm_up_s=0.3, measure_s=1.2)

FULL_K = (1, 10, 100)
FULL_CLIENTS = (1, 4, 16)
QUICK_K = (10,)
QUICK_CLIENTS = (1, 16)
SKEWS = (UNIFORM, HOT)

Measure = Callable[[Cell, Timing], Measurement]


@contextmanager
def _viewtide(folder: Path) -> Iterator[Measure]:
    product.load_viewtide()
    yield lambda cell, timing: driver.measure_threads(
        report.VIEWTIDE, lambda: product.thread_session(folder), cell, timing
    )


@contextmanager
def _viewtide_asyncio(folder: Path) -> Iterator[Measure]:
    product.load_viewtide("viewtide.aio")
    yield lambda cell, timing: driver.measure_asyncio(
        report.VIEWTIDE_ASYNCIO, lambda: product.task_session(folder), cell, timing
    )


@contextmanager
def _postgres_trigger(folder: Path) -> Iterator[Measure]:
    try:
        from .peers import postgres  # Here, because the other systems run without psycopg.
    except ImportError as error:
        raise BenchError(
            f"psycopg cannot be imported ({error}): pip install 'psycopg[binary]', or leave PostgreSQL out "
            "with --systems"
        ) from error
    with postgres.postgres_server(folder) as server:
        yield lambda cell, timing: driver.measure_threads(report.POSTGRES, server.session, cell, timing)


@contextmanager
def _sqlite_trigger(folder: Path) -> Iterator[Measure]:
    from .peers import sqlite

    yield lambda cell, timing: driver.measure_threads(
        report.SQLITE, lambda: sqlite.sqlite_session(folder), cell, timing
    )


SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[Measure]]] = {
    report.VIEWTIDE: _viewtide,
    report.VIEWTIDE_ASYNCIO: _viewtide_asyncio,
    report.POSTGRES: _postgres_trigger,
    report.SQLITE: _sqlite_trigger,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", type=names_of(SYSTEMS), help=f"some of {','.join(SYSTEMS)}; all by default")
    parser.add_argument("--runs", type=positive, default=1, help="how often; figures are the medians (default 1)")
    parser.add_argument("--k", type=numbers_of, help="events per transaction, such as 1,10,100")
    parser.add_argument("--clients", type=numbers_of, help="numbers of clients, such as 1,4,16")
    parser.add_argument("--skew", type=names_of(SKEWS), help="some of uniform,hot; both by default")
    parser.add_argument("--seconds", type=float, help="measured time of each cell")
    parser.add_argument("--dir", type=Path, help="where the databases go, on a real disk (default: a temporary folder)")


def run(options: argparse.Namespace) -> dict[str, object]:
    timing = QUICK_TIMING if options.quick else FULL_TIMING
    if options.seconds is not None:
        timing = Timing(timing.warm_up_s, options.seconds)
    cells = _cells(options)
    names: tuple[str, ...] = options.systems or tuple(SYSTEMS)
    with bench_folder(options.dir) as folder, ExitStack() as stack:
        facts = machine.machine_facts(folder)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
        systems = {name: stack.enter_context(SYSTEMS[name](folder)) for name in names}
        facts["postgres"] = _postgres_version(names)
        runs = [one_run(systems, cells, timing, number) for number in range(options.runs)]
    return _result(runs, facts, timing)


def one_run(systems: Mapping[str, Measure], cells: list[Cell], timing: Timing, number: int) -> list[report.Row]:
    print(f"\nrun {number + 1}: {timing.measure_s:g} s per cell\n{report.table_header()}", flush=True)
    rows = []
    for cell in cells:
        for name, measure in systems.items():
            row = report.row_of(name, cell, measure(cell, timing))
            print(report.table_line(row), flush=True)
            rows.append(row)
    return rows


def _result(runs: list[list[report.Row]], facts: Mapping[str, object], timing: Timing) -> dict[str, object]:
    rows = report.median_rows(runs)
    run_ratios = [report.ratios(run_rows) for run_rows in runs]
    medians = report.median_ratios(run_ratios)
    if len(runs) > 1:
        print(f"\nmedians of {len(runs)} runs\n{report.table_header()}")
        print("\n".join(report.table_line(row) for row in rows))
    print("\n" + "\n".join(report.ratio_lines(medians)), flush=True)
    return {
        "bench": "dashboard",
        "machine": facts,
        "runs": len(runs),
        "measure_s": timing.measure_s,
        "rows": report.row_dicts(rows),
        "ratios": medians,
        "ratios_of_runs": run_ratios,
    }


def _cells(options: argparse.Namespace) -> list[Cell]:
    return [
        Cell(k, clients, skew)
        for k in options.k or (QUICK_K if options.quick else FULL_K)
        for clients in options.clients or (QUICK_CLIENTS if options.quick else FULL_CLIENTS)
        for skew in options.skew or SKEWS
    ]


@contextmanager
def bench_folder(chosen: Path | None) -> Iterator[Path]:
    """A folder for all databases. Not in memory: a sync that costs nothing would compare nothing."""
    if chosen is not None and not chosen.is_dir():
        raise BenchError(f"--dir {chosen} is no folder")
    candidates = [chosen] if chosen is not None else [Path(tempfile.gettempdir()), Path.cwd()]
    on_disk = [path for path in candidates if machine.file_system(path) not in machine.MEMORY_FILE_SYSTEMS]
    if not on_disk:
        places = " and ".join(str(path) for path in candidates)
        raise BenchError(f"{places}: in memory, where commits are not durable; choose a folder on a disk with --dir")
    folder = Path(tempfile.mkdtemp(prefix="viewtide-bench-", dir=on_disk[0].resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _postgres_version(names: tuple[str, ...]) -> str:
    if report.POSTGRES not in names:
        return "not measured"
    from .peers import postgres

    return postgres.server_version()


def numbers_of(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def names_of(known: Mapping[str, object] | tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse
