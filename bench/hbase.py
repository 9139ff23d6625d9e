"""`python -m bench hbase`: appends to commit logs in HBase, beside what HBase does by itself, and checkpoints.

A development HBase of its own, in one JVM on this machine: it shares the cores with its clients. The figure to compare
with is the bare conditional put of the same bytes into the same table, by as many connections, in the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine, report
from .errors import BenchError, Violation

if TYPE_CHECKING:
    from viewtide.ltm.hbase_client import Hbase

SUMMARY = "appends to commit logs in HBase beside bare conditional puts, and checkpoints into its store"

PAYLOAD_BYTES = 1_000
WRITERS = (1, 8)
SECONDS, SECONDS_QUICK = 6.0, 2.0
#: The servers' code is compiled while it runs.
WARM_UP_S = 3.0
ROUNDS = 3
CHECKPOINT_CELLS, CHECKPOINT_CELLS_QUICK = 20_000, 5_000
NAMESPACE = "bench"
PUT_IF, APPEND, CHECKPOINT = "conditional put", "append", "checkpoint, cells"


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    writers: int
    per_s: float
    p50_ms: float
    p99_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        except OperationalError as error:
            raise BenchError(str(error)) from error
    print(f"{'what':<18} {'writers':>7} {'per s':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for row in rows:
        print(f"{row.what:<18} {row.writers:>7} {row.per_s:>9.0f} {row.p50_ms:>8.2f} {row.p99_ms:>8.2f}")
    return {
        "machine": machine.machine_facts(Path.cwd()),
        "rows": [asdict(row) for row in rows],
        "ratios": {
            f"append_vs_put_if_{writers}": round(_rate(rows, APPEND, writers) / _rate(rows, PUT_IF, writers), 3)
            for writers in WRITERS
        },
    }


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
