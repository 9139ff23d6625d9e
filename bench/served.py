"""`python -m bench served`: the dashboard workload against one served node and against two LTMs of a cluster, every
client a process of its own.

`viewtide serve` runs in its own process. The two LTMs are processes too, with logs on the local disk: every transaction
has both for participants (`bench.cluster`). PostgreSQL with its statement trigger is measured in the same run, with the
same client processes.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from . import cluster, dashboard, machine, product, report
from .driver import Client, Measurement, Reader, Timing
from .errors import BenchError
from .processes import measure_processes
from .workload import HOT, TABLES, UNIFORM, VIEW_NAME, VIEW_SQL, Cell

SUMMARY = "transactions per second of a served node and of two LTMs with client processes, against PostgreSQL's trigger"

SERVED = "viewtide_served"
TWO_LTMS = "viewtide_2_ltms"
SYSTEMS = (SERVED, TWO_LTMS, report.POSTGRES)
CLIENTS = 16
STOP_S_MAX = 60.0

Measure = Callable[[Cell, Timing], Measurement]


@dataclass(frozen=True, slots=True)
class ServedPlace:
    """A running node."""

    address: str

    def client(self, index: int) -> Client:
        return product.remote_client(self.address)

    def reader(self) -> Reader:
        return product.remote_client(self.address)

    def recompute_differs(self) -> str | None:
        return product.remote_difference(self.address)


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    conninfo: str

    def client(self, index: int) -> Client:
        from .peers import postgres

        return postgres.Client(self.conninfo)

    def reader(self) -> Reader:
        from .peers import postgres

        return postgres.Reader(self.conninfo)

    def recompute_differs(self) -> str | None:
        from .peers import postgres

        return postgres.recompute_differs(self.conninfo)


@contextmanager
def served_place(parent: Path, listen: str) -> Iterator[ServedPlace]:
    """A fresh database with the initial rows and the view, served by a process of its own. `listen` "": at a socket."""
    with product.fresh_folder(parent) as folder, tempfile.TemporaryDirectory(prefix="vt-") as sockets:
        listen = listen or f"ipc://{sockets}/node"
        command = [sys.executable, "-m", "viewtide.cli", "serve", str(folder / "dashboard.db"), "--listen", listen]
        node = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
        try:
            assert node.stdout is not None
            said = node.stdout.readline()
            if not said:
                raise BenchError("viewtide serve did not start")
            address = cast(str, json.loads(said)["address"])
            product.fill_remote(address, TABLES, VIEW_NAME, VIEW_SQL)
            yield ServedPlace(address)
        finally:
            node.send_signal(signal.SIGINT)
            try:
                node.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


@contextmanager
def _served(folder: Path, listen: str) -> Iterator[Measure]:
    product.load_viewtide()
    yield lambda cell, timing: measure_processes(SERVED, lambda: served_place(folder, listen), cell, timing)


@contextmanager
def _two_ltms(folder: Path, _: str) -> Iterator[Measure]:
    product.load_viewtide()
    with cluster.servers(folder) as servers:
        yield lambda cell, timing: measure_processes(
            TWO_LTMS, lambda: cluster.cluster_place(folder, servers, 2), cell, timing
        )


@contextmanager
def _postgres(folder: Path, _: str) -> Iterator[Measure]:
    try:
        from .peers import postgres  # Here, because the node runs without psycopg.
    except ImportError as error:
        raise BenchError(f"psycopg cannot be imported ({error}): leave PostgreSQL out with --systems") from error
    with postgres.postgres_server(folder) as server:

        @contextmanager
        def place() -> Iterator[PostgresPlace]:
            with server.fresh_database() as conninfo:
                yield PostgresPlace(conninfo)

        yield lambda cell, timing: measure_processes(report.POSTGRES, place, cell, timing)


_MEASURES: dict[str, Callable[[Path, str], AbstractContextManager[Measure]]] = {
    SERVED: _served,
    TWO_LTMS: _two_ltms,
    report.POSTGRES: _postgres,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--systems", type=dashboard.names_of(SYSTEMS), help=f"some of {','.join(SYSTEMS)}; all by default"
    )
    parser.add_argument(
        "--runs", type=dashboard.positive, default=1, help="how often; figures are the medians (default 1)"
    )
    parser.add_argument("--k", type=dashboard.numbers_of, help="events per transaction, such as 1,10")
    parser.add_argument("--clients", type=dashboard.numbers_of, help="numbers of client processes (default 16)")
    parser.add_argument("--skew", type=dashboard.names_of((UNIFORM, HOT)), help="some of uniform,hot; both by default")
    parser.add_argument("--seconds", type=float, help="measured time of each cell")
    parser.add_argument("--listen", default="", help="where the node listens (default: a Unix socket, as PostgreSQL)")
    parser.add_argument("--dir", type=Path, help="where the databases go, on a real disk (default: a temporary folder)")


def run(options: argparse.Namespace) -> dict[str, object]:
    timing = dashboard.QUICK_TIMING if options.quick else dashboard.FULL_TIMING
    if options.seconds is not None:
        timing = Timing(timing.warm_up_s, options.seconds)
    cells = [
        Cell(k, clients, skew)
        for k in options.k or ((10,) if options.quick else (1, 10))
        for clients in options.clients or (CLIENTS,)
        for skew in options.skew or (UNIFORM, HOT)
    ]
    names: Sequence[str] = options.systems or SYSTEMS
    with dashboard.bench_folder(options.dir) as folder, ExitStack() as stack:
        facts = machine.machine_facts(folder)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
        systems = {name: stack.enter_context(_MEASURES[name](folder, options.listen)) for name in names}
        runs = [dashboard.one_run(systems, cells, timing, number) for number in range(options.runs)]
    return _result(runs, facts, timing)


def _result(runs: list[list[report.Row]], facts: Mapping[str, object], timing: Timing) -> dict[str, object]:
    rows = report.median_rows(runs)
    medians = report.median_ratios([ratios(each) for each in runs])
    print("\n" + "\n".join(report.ratio_lines(medians)), flush=True)
    return {
        "bench": "served",
        "machine": facts,
        "runs": len(runs),
        "measure_s": timing.measure_s,
        "rows": report.row_dicts(rows),
        "ratios": medians,
    }


def ratios(rows: Sequence[report.Row]) -> report.Ratios:
    """The figures that they are judged by: 16 client processes, k = 10 unless named."""

    def figure(system: str, name: str = "tx_per_s", skew: str = UNIFORM, k: int = report.RATIO_K) -> float | None:
        for row in rows:
            if (row.system, row.k, row.clients, row.skew) == (system, k, CLIENTS, skew):
                return float(getattr(row, name))
        return None

    def over(upper: float | None, lower: float | None) -> float | None:
        return round(upper / lower, 3) if upper is not None and lower else None

    return {
        "served_vs_postgres": over(figure(SERVED), figure(report.POSTGRES)),
        "served_vs_postgres_k1": over(figure(SERVED, k=1), figure(report.POSTGRES, k=1)),
        "served_p99_ms": figure(SERVED, "p99_ms"),
        "served_hot_vs_uniform": over(figure(SERVED, skew=HOT), figure(SERVED)),
        "served_slowest_over_fastest": figure(SERVED, "slowest_over_fastest"),
        "served_view_read_p50_ms": figure(SERVED, "view_read_p50_ms"),
        "two_ltms_vs_postgres": over(figure(TWO_LTMS), figure(report.POSTGRES)),
        "two_ltms_vs_postgres_k1": over(figure(TWO_LTMS, k=1), figure(report.POSTGRES, k=1)),
        "two_ltms_p99_ms": figure(TWO_LTMS, "p99_ms"),
        "two_ltms_hot_vs_uniform": over(figure(TWO_LTMS, skew=HOT), figure(TWO_LTMS)),
    }
