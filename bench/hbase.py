"""`python -m bench hbase`: appends to commit logs in HBase, beside what HBase does by itself, checkpoints, and a
cluster whose logs and rows are there.

A development HBase of its own, in one JVM on this machine: it shares the cores with its clients. The figure to compare
with is the bare conditional put of the same bytes into the same table, by as many connections, in the same run.

The cluster runs the dashboard workload with client processes. Of its LTMs' own metrics, the appends to their logs are
counted: how many transactions share one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import cluster, dashboard, machine, report
from .driver import Timing
from .errors import BenchError, Violation
from .processes import measure_processes
from .workload import EVENTS_COUNT_INITIAL, UNIFORM, Cell

if TYPE_CHECKING:
    from viewtide.ltm.hbase_client import Hbase

SUMMARY = "appends to commit logs in HBase beside bare conditional puts, checkpoints, and a cluster on HBase"

PAYLOAD_BYTES = 1_000
WRITERS = (1, 8)
SECONDS, SECONDS_QUICK = 6.0, 2.0
#: The servers' code is compiled while it runs.
WARM_UP_S = 3.0
ROUNDS = 3
CHECKPOINT_CELLS, CHECKPOINT_CELLS_QUICK = 20_000, 5_000
NAMESPACE = "bench"
PUT_IF, APPEND, CHECKPOINT = "conditional put", "append", "checkpoint, cells"
#: Of the cluster: client processes, rows per transaction, numbers of LTMs.
CLIENTS, K, LTMS = 16, 10, (1, 2)
#: The metric that counts the appends to the log of an LTM.
APPENDS = "viewtide_log_flushes"


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    writers: int
    per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """`transactions_per_append`: of each log; with two LTMs every transaction is in both logs."""

    ltms: int
    clients: int
    k: int
    tx_per_s: float
    p50_ms: float
    p99_ms: float
    transactions_per_append: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ltms", type=dashboard.numbers_of, default=LTMS, help="LTMs of the cluster on HBase, such as 1,2 (default)"
    )
    parser.add_argument("--clients", type=dashboard.positive, default=CLIENTS, help=f"of it (default {CLIENTS})")
    parser.add_argument("--bytes", type=int, default=PAYLOAD_BYTES, help=f"of one flush (default {PAYLOAD_BYTES})")


def run(options: argparse.Namespace) -> dict[str, object]:
    from viewtide.changetables.errors import OperationalError
    from viewtide.dev_cluster import running
    from viewtide.ltm.hbase_client import Hbase

    with tempfile.TemporaryDirectory(prefix="viewtide-bench-") as folder:
        try:
            with running(Path(folder)) as servers:
                client = Hbase(servers.thrift)
                client.create_namespace(NAMESPACE)
                rows = _appends(client, options.bytes, SECONDS_QUICK if options.quick else SECONDS)
                rows.append(_checkpoints(client, CHECKPOINT_CELLS_QUICK if options.quick else CHECKPOINT_CELLS))
                client.close()
                timing = Timing(1.0, SECONDS_QUICK if options.quick else SECONDS)
                clusters = [on_hbase(Path(folder), servers, ltms, options.clients, timing) for ltms in options.ltms]
        except OperationalError as error:
            raise BenchError(str(error)) from error
    print(f"{'what':<18} {'writers':>7} {'per s':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for row in rows:
        print(f"{row.what:<18} {row.writers:>7} {row.per_s:>9.0f} {row.p50_ms:>8.2f} {row.p99_ms:>8.2f}")
    print(f"\n{'LTMs':>4} {'clients':>7} {'k':>3} {'tx/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'tx per append':>14}")
    for each in clusters:
        latencies = f"{each.p50_ms:>8.2f} {each.p99_ms:>8.2f}"
        load = f"{each.ltms:>4} {each.clients:>7} {each.k:>3} {each.tx_per_s:>8.0f}"
        print(f"{load} {latencies} {each.transactions_per_append:>14.1f}")
    return {
        "machine": machine.machine_facts(Path.cwd()),
        "rows": [asdict(row) for row in rows],
        "clusters": [asdict(each) for each in clusters],
        "ratios": ratios(rows, clusters),
    }


def ratios(rows: list[Row], clusters: list[ClusterRow]) -> dict[str, float]:
    found = {
        f"append_vs_put_if_{writers}": round(_rate(rows, APPEND, writers) / _rate(rows, PUT_IF, writers), 3)
        for writers in WRITERS
    }
    for each in clusters:
        found[f"ltms_{each.ltms}_transactions_per_append"] = each.transactions_per_append
        found[f"ltms_{each.ltms}_vs_put_if_8"] = round(each.tx_per_s / _rate(rows, PUT_IF, 8), 3)
    return found


def on_hbase(folder: Path, servers: cluster.Servers, ltms: int, clients: int, timing: Timing) -> ClusterRow:
    """A fresh cluster. Its appends are counted over the whole run, as its transactions are."""
    cell, name = Cell(K, clients, UNIFORM), f"{ltms} LTMs on HBase"
    with cluster.cluster_place(folder, servers, ltms, cluster.HBASE) as place:
        appends = place.figures()[APPENDS]
        measured = measure_processes(name, lambda: nullcontext(place), cell, timing)
        appends = place.figures()[APPENDS] - appends
        reader = place.reader()
        try:
            events = sum(row[2] for row in reader.read())
        finally:
            reader.close()
    row = report.row_of(name, cell, measured)
    per_append = (events - EVENTS_COUNT_INITIAL) / K * ltms / appends
    return ClusterRow(ltms, clients, K, row.tx_per_s, row.p50_ms, row.p99_ms, round(per_append, 2))


def _rate(rows: list[Row], what: str, writers: int) -> float:
    return next(row.per_s for row in rows if row.what == what and row.writers == writers)


def _appends(client: Hbase, payload_bytes: int, seconds: float) -> list[Row]:
    """In turns, because others use the machine too; the median of the rounds counts."""
    from viewtide.ltm.commit_log.hbase import HbaseLog, create_log_table
    from viewtide.ltm.hbase_client import RowOf, Value

    table, payload = create_log_table(client, NAMESPACE), os.urandom(payload_bytes)

    def appender() -> Callable[[], object]:
        log = HbaseLog(client, table, f"bench/{os.urandom(8).hex()}")
        return lambda: log.append(payload)

    def putter() -> Callable[[], object]:
        prefix, number = os.urandom(8).hex().encode(), 0

        def put() -> None:
            nonlocal number
            number += 1
            row = RowOf(prefix + number.to_bytes(8, "big"), [Value(b"f", b"0000", 1, payload)])
            if not client.put_if(table, row, b"f", b"0000", None):
                raise Violation("a new row was there already")

        return put

    _timed([appender()], WARM_UP_S)
    rows = []
    for writers in WRITERS:
        rounds: dict[str, list[list[float]]] = {PUT_IF: [], APPEND: []}
        for _ in range(ROUNDS):
            for what, make in ((PUT_IF, putter), (APPEND, appender)):
                rounds[what].append(_timed([make() for _ in range(writers)], seconds / ROUNDS))
        for what, measured in rounds.items():
            together = [each for times in measured for each in times]
            rate = statistics.median(len(times) for times in measured) / (seconds / ROUNDS)
            p50, p99 = (report.percentile(together, percent) for percent in (50, 99))
            rows.append(Row(what, writers, round(rate, 1), round(p50, 3), round(p99, 3)))
    return rows


def _timed(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """The milliseconds of each call, each of the functions called by a thread of its own."""
    times: list[float] = []
    failures: list[BaseException] = []
    end = time.monotonic() + seconds

    def work(call: Callable[[], object]) -> None:
        try:
            while (begun := time.monotonic()) < end:
                call()
                times.append((time.monotonic() - begun) * 1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return times


def _checkpoints(client: Hbase, cells_count: int) -> Row:
    """Rows of a table with three columns, as a checkpoint writes them: cells per second."""
    import viewtide
    from viewtide.ltm.catalog import catalog_to_plain
    from viewtide.ltm.codec import pack
    from viewtide.ltm.ports import Cell
    from viewtide.ltm.store.hbase import HbaseStore

    with viewtide.connect("memory:") as db:
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id")
        tables = db._engine.ltm.tables
    events = tables.by_name["events"]
    store = HbaseStore(client, NAMESPACE, "bench")
    store.describe(pack(catalog_to_plain(tables.catalog)))
    times = []
    for number in range(ROUNDS):
        cells = [
            Cell(events.codec.keys.encode((each,)), number + 1, pack((each, each % 100, each % 7)))
            for each in range(cells_count)
        ]
        begun = time.monotonic()
        store.write([cells], (), {"round": b"%d" % number}, lambda: None)
        times.append((time.monotonic() - begun) * 1000)
    first, last = cells[0], cells[-1]
    if store.get_many([first.key, last.key], ROUNDS) != [first, last]:
        raise Violation("the store does not have what was written")
    per_s = cells_count / (statistics.median(times) / 1000)
    return Row(CHECKPOINT, 1, round(per_s, 1), round(statistics.median(times), 1), round(max(times), 1))
