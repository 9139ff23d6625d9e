"""`python -m bench scale`: throughput against the number of LTMs, on this machine and in virtual time.

The load is partitioned (`bench.partitions`): with more than one LTM every transaction has two participants, however
many there are.

- **processes**: 1, 2 and 4 real LTM processes with 16 client processes. They, the clients, the reader and ZooKeeper
  share the cores of one machine, so this cannot grow with the number of LTMs: it shows what two phases cost, and what
  more processes on the same cores do.
- **virtual time**: 1 to 40 LTMs with a core each (`bench.virtual`), 16 clients per LTM.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cluster, dashboard, machine, plot, product, report, virtual
from .driver import Client, Timing
from .partitions import EVENT_SPAN, Partitions
from .processes import measure_processes
from .workload import CATEGORIES_COUNT, PRODUCTS_COUNT, UNIFORM, VIEW_NAME, Cell, Event

SUMMARY = "transactions per second against the number of LTMs: processes on this machine, and more in virtual time"

K, CLIENTS = 10, 16
LTMS, LTMS_QUICK = (1, 2, 4), (1, 2)
SIMULATED, SIMULATED_QUICK = (1, 2, 5, 10, 20, 40), (1, 2, 5)
SIMULATED_S, SIMULATED_S_QUICK = 0.15, 0.05
REAL, VIRTUAL = "processes", "virtual time"


@dataclass(frozen=True, slots=True)
class Row:
    how: str
    ltms: int
    clients: int
    tx_per_s: float
    p50_ms: float
    p99_ms: float
    #: In virtual time: the share of the time that the leader was busy.
    leader_busy: float = 0.0


class _PartitionClient:
    """Writes to the partition of its LTM: what the dashboard draws is mapped there before the clock starts."""

    def __init__(self, client: Client, partitions: Partitions, partition: int) -> None:
        self._client, self._partitions, self._partition = client, partitions, partition

    def prepare(self, events: list[Event]) -> Callable[[], object]:
        first = self._partition * EVENT_SPAN
        product_of = self._partitions.product
        return self._client.prepare(
            [(first + id, at, product_of(self._partition, product), *rest) for id, at, product, *rest in events]  # type: ignore[misc]
        )

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class PartitionedPlace(cluster.ClusterPlace):
    partitions: Partitions

    def client(self, index: int) -> Client:
        partition = index % len(self.addresses)
        return _PartitionClient(product.remote_client(self.addresses[partition]), self.partitions, partition)


@contextmanager
def partitioned_place(parent: Path, servers: cluster.Servers, ltms: int) -> Iterator[PartitionedPlace]:
    categories = CATEGORIES_COUNT // ltms
    partitions = Partitions(ltms, categories, PRODUCTS_COUNT // (categories * ltms * ltms))
    with cluster.filled_cluster(parent, servers, ltms) as (place, client):
        cluster.spread(client, lambda tables: partitions.ranges(tables, cluster.EVENTS, "products", VIEW_NAME))
        yield PartitionedPlace(place.addresses, place.metrics, partitions)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ltms", type=dashboard.numbers_of, help="numbers of LTM processes, such as 1,2,4")
    parser.add_argument(
        "--simulated", type=dashboard.numbers_of, help="numbers of LTMs in virtual time, such as 1,10,40"
    )
    parser.add_argument("--clients", type=dashboard.positive, default=CLIENTS, help=f"processes (default {CLIENTS})")
    parser.add_argument(
        "--sync-us", type=float, help="what a sync takes in virtual time, in microseconds (default: what it takes here)"
    )
    parser.add_argument("--only", choices=(REAL, VIRTUAL), help="leave the other out")
    parser.add_argument("--seconds", type=float, help="measured time of each number of processes")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, such as docs/scale.png (extra `bench`)")
    parser.add_argument("--dir", type=Path, help="where the logs go, on a real disk (default: a temporary folder)")


def run(options: argparse.Namespace) -> dict[str, object]:
    if options.plot is not None:
        plot.empty_figure()  # better known before than after
    rows: list[Row] = []
    with dashboard.bench_folder(options.dir) as folder:
        facts = machine.machine_facts(folder)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
        titles = f"{'tx/s':>9} {'per LTM':>8} {'p50 ms':>8} {'p99 ms':>8} {'leader':>7}"
        print(f"\n{'how':<13} {'LTMs':>4} {'clients':>7} {titles}")
        if options.only != VIRTUAL:
            rows += _shown(_processes(options, folder))
        if options.only != REAL:
            rows += _shown(_simulated(options, options.sync_us or machine.fdatasync_p50_us(folder)))
    if options.plot is not None:
        plot.write_lines(options.plot, "Throughput and the number of LTMs", panels(rows), "LTMs", "transactions/s")
    named = ratios(rows)
    print("\n" + "\n".join(report.ratio_lines(named)), flush=True)
    return {"bench": "scale", "machine": facts, "k": K, "rows": [asdict(row) for row in rows], "ratios": named}


def _processes(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    timing = dashboard.QUICK_TIMING if options.quick else dashboard.FULL_TIMING
    if options.seconds is not None:
        timing = Timing(timing.warm_up_s, options.seconds)
    cell = Cell(K, options.clients, UNIFORM)
    with cluster.servers(folder) as servers:
        for ltms in options.ltms or (LTMS_QUICK if options.quick else LTMS):
            yield measured(folder, servers, ltms, cell, timing)


def measured(folder: Path, servers: cluster.Servers, ltms: int, cell: Cell, timing: Timing) -> Row:
    name = f"{ltms} LTMs"
    found = measure_processes(name, lambda: partitioned_place(folder, servers, ltms), cell, timing)
    row = report.row_of(name, cell, found)
    return Row(REAL, ltms, cell.clients, row.tx_per_s, row.p50_ms, row.p99_ms)


def _simulated(options: argparse.Namespace, sync_us: float) -> Iterator[Row]:
    numbers = options.simulated or (SIMULATED_QUICK if options.quick else SIMULATED)
    seconds = SIMULATED_S_QUICK if options.quick else SIMULATED_S
    for each in virtual.simulate(numbers, K, sync_us, seconds):
        p50_ms, p99_ms = (round(report.percentile(each.latencies_us, percent) / 1000, 2) for percent in (50, 99))
        rate = round(each.transactions / each.seconds, 1)
        clients = virtual.CLIENTS_PER_LTM * each.ltms
        yield Row(VIRTUAL, each.ltms, clients, rate, p50_ms, p99_ms, round(each.leader_busy, 3))


def _shown(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        rates = f"{row.tx_per_s:>9.0f} {row.tx_per_s / row.ltms:>8.0f}"
        times = f"{row.p50_ms:>8.2f} {row.p99_ms:>8.2f} {row.leader_busy:>7.1%}"
        print(f"{row.how:<13} {row.ltms:>4} {row.clients:>7} {rates} {times}", flush=True)
        yield row


def panels(rows: Sequence[Row]) -> dict[str, dict[str, dict[int, float]]]:
    """One for the processes, one for virtual time, there with the line that a straight growth from two LTMs gives."""
    made: dict[str, dict[str, dict[int, float]]] = {}
    for how in (REAL, VIRTUAL):
        line = {row.ltms: row.tx_per_s for row in rows if row.how == how}
        if line:
            made[how] = {"measured" if how == REAL else "simulated": line}
            if how == VIRTUAL and 2 in line:
                made[how]["linear from 2"] = {ltms: line[2] / 2 * ltms for ltms in line}
    return made


def ratios(rows: Sequence[Row]) -> report.Ratios:
    """Of each LTM with the most of them, over that with two: 1 is linear."""

    def of(how: str, ltms: int) -> float | None:
        return next((row.tx_per_s for row in rows if (row.how, row.ltms) == (how, ltms)), None)

    most = max((row.ltms for row in rows if row.how == VIRTUAL), default=0)
    two, last = of(VIRTUAL, 2), of(VIRTUAL, most)
    one_process, two_processes, four = of(REAL, 1), of(REAL, 2), of(REAL, 4)
    return {
        "virtual_per_ltm_most_vs_2": round(last / most / (two / 2), 3) if two and last and most > 2 else None,
        "processes_2_vs_1": round(two_processes / one_process, 3) if one_process and two_processes else None,
        "processes_4_vs_2": round(four / two_processes, 3) if two_processes and four else None,
    }
