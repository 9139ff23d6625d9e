"""`python -m bench spark`: rows per second that Spark on two cores reads, from an embedded directory and from a cluster
on HBase, and what the driver needs in memory.

The same table in two sizes: events are added up by Spark, and the sums are checked against what was written. The time
is that from asking for the table until the sums are there: the timestamp, the checkpoint, the plan and the job. Rows
that were just committed to a cluster may not be in the store yet, and whoever reads waits for the checkpoint: how long
that takes is measured before, by itself, so that the reads find all rows stored. All of it runs on this machine:
Spark's JVM, which is driver and executors in one, its Python workers, HBase's JVM and LTMs. So the processor time of
all of them together is given, too: on a busy machine it says more than the clock.

Memory is the highest that a process had while the table was read: the driver's Python, and Spark's JVM, whose heap is
bounded. That of the larger table should be that of the smaller one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine
from .errors import BenchError, Violation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from viewtide import Database

SUMMARY = "rows that Spark reads per second, from a directory and from a cluster on HBase, and the driver's memory"

DIRECTORY, HBASE = "directory", "HBase"
#: Rows of the two tables: in a directory, and in HBase, where it takes much longer to write them.
ROWS = {DIRECTORY: (1_000_000, 4_000_000), HBASE: (200_000, 500_000)}
ROWS_QUICK = {DIRECTORY: (200_000, 800_000), HBASE: (20_000, 60_000)}
CORES = 2
#: Each table is read so often, after once that does not count; the fastest counts.
ROUNDS = 3
LTMS = 2
WRITERS = 2
TRANSACTION_ROWS = 1_000
BATCH_ROWS = 50_000
#: Of Spark's JVM.
HEAP = "512m"
#: What Linux counts the processor's time in.
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Row:
    """`awaited_s`: how long the store lacked some of the rows after the last of them was committed. `cpu_us_per_row`:
    processor time of all processes together. Memory is in MiB."""

    source: str
    rows: int
    awaited_s: float
    rows_per_s: float
    cpu_us_per_row: float
    driver_peak_mib: float
    jvm_peak_mib: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", default=f"{DIRECTORY},{HBASE}", help="what is read (default: both)")


def run(options: argparse.Namespace) -> dict[str, object]:
    import viewtide.spark

    sources = options.sources.split(",")
    if unknown := [source for source in sources if source not in ROWS]:
        raise BenchError(f"there is no source {unknown[0]!r}: {', '.join(ROWS)}")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-memory {HEAP} pyspark-shell")
    facts = machine.machine_facts(Path.cwd())
    session = viewtide.spark.session(f"local[{CORES}]")
    rows: list[Row] = []
    columns = ("awaited s", "rows/s", "cpu us/row", "driver MiB", "JVM MiB")
    print(f"{'source':<12}{'rows':>12}" + "".join(f"{each:>14}" for each in columns), flush=True)
    with tempfile.TemporaryDirectory(prefix="viewtide-bench-") as folder:
        for source in sources:
            sizes = (ROWS_QUICK if options.quick else ROWS)[source]
            place = _directory if source == DIRECTORY else _cluster
            with place(Path(folder), sizes) as placed:
                for number, size in enumerate(sizes):
                    row = _measured(session, source, placed, number, size)
                    rows.append(row)
                    figures = (row.awaited_s, row.rows_per_s, row.cpu_us_per_row, row.driver_peak_mib, row.jvm_peak_mib)
                    print(f"{source:<12}{size:>12,}" + "".join(f"{each:>14,.1f}" for each in figures), flush=True)
    return {"bench": "spark", "machine": facts, "rows": [asdict(row) for row in rows], "ratios": ratios(rows)}


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """What the larger table takes, compared with the smaller one."""
    found = {}
    for small, large in zip(rows[::2], rows[1::2], strict=True):
        name = small.source.lower()
        found[f"{name}_rows"] = round(large.rows / small.rows, 2)
        found[f"{name}_driver_memory"] = round(large.driver_peak_mib / small.driver_peak_mib, 2)
        found[f"{name}_jvm_memory"] = round(large.jvm_peak_mib / small.jvm_peak_mib, 2)
    return found


# --- what is read ---


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the tables are: an option of the data source, the processes of servers, and `awaited_s` of each table."""

    target: tuple[str, str]
    servers: Sequence[int]
    awaited_s: Sequence[float]


@contextmanager
def _directory(folder: Path, sizes: Sequence[int]) -> Iterator[Placed]:
    import viewtide

    path = folder / "events.db"
    with viewtide.connect(path) as db:
        for number, size in enumerate(sizes):
            _create(db, number)
            db.table(f"events_{number}").load(_batches(size))
        yield Placed(("path", str(path)), (), [0.0] * len(sizes))


@contextmanager
def _cluster(folder: Path, sizes: Sequence[int]) -> Iterator[Placed]:
    import viewtide
    from viewtide.changetables.errors import OperationalError
    from viewtide.cluster_stored import cluster_pin
    from viewtide.dev_cluster import DevelopmentHbase
    from viewtide.development import Development

    with ExitStack() as closing:
        try:
            made = Development.up(folder / "cluster", LTMS, 0, storage="hbase")
        except OperationalError as error:
            raise BenchError(str(error)) from error
        closing.callback(made.down)
        url = f"zk://{made.zookeeper}"
        awaited_s = []
        with viewtide.connect(url) as db:
            for number, size in enumerate(sizes):
                _create(db, number)
                _write(db, f"events_{number}", size)
                began = time.perf_counter()
                cluster_pin(db, f"events_{number}")  # type: ignore[arg-type]
                awaited_s.append(time.perf_counter() - began)
        servers = list(DevelopmentHbase.attach(made.directory / "hbase").pids.values())
        yield Placed(("url", url), servers, awaited_s)


def _create(db: Database, number: int) -> None:
    db.create_table(f"events_{number}", {"id": int, "product": int, "cost": int}, key="id")


def _event(number: int) -> tuple[int, int, int]:
    return number, number % 1_000, number % 97


def _batches(count: int) -> Iterator[object]:
    import pyarrow

    names = ("id", "product", "cost")
    for first in range(0, count, BATCH_ROWS):
        events = [_event(number) for number in range(first, min(first + BATCH_ROWS, count))]
        yield pyarrow.record_batch([list(column) for column in zip(*events, strict=True)], names=names)


def _insert(db: Database, table: str, rows: list[dict[str, int]]) -> None:
    """Whatever a busy machine does to the answers: rows that are there already were committed without one."""
    from viewtide import CommitUnknown, IntegrityError

    is_unknown = False
    while True:
        try:
            db.run(lambda tx: tx.insert(table, rows))
            return
        except CommitUnknown:
            is_unknown = True
        except IntegrityError:
            if not is_unknown:
                raise
            return


def _write(db: Database, table: str, count: int) -> None:
    failures: list[BaseException] = []

    def work(firsts: Iterable[int]) -> None:
        try:
            for first in firsts:
                events = [_event(number) for number in range(first, min(first + TRANSACTION_ROWS, count))]
                rows = [{"id": each[0], "product": each[1], "cost": each[2]} for each in events]
                _insert(db, table, rows)
        except BaseException as error:
            failures.append(error)

    firsts = range(0, count, TRANSACTION_ROWS)
    threads = [threading.Thread(target=work, args=(firsts[number::WRITERS],)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# --- measuring ---


def _measured(session: SparkSession, source: str, placed: Placed, number: int, size: int) -> Row:
    driver, jvm = os.getpid(), _jvm_pid(session)
    target, servers, table = placed.target, placed.servers, f"events_{number}"
    # Python workers are started, and the JVM compiles its code.
    expected = [size, *(sum(_event(each)[place] for each in range(size)) for place in range(3))]
    _read(session, target, table, expected)
    for pid in (driver, jvm):
        _forget_peak(pid)
    times, cpu = [], _cpu_s(driver, servers)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        _read(session, target, table, expected)
        times.append(time.perf_counter() - began)
    cpu = _cpu_s(driver, servers) - cpu
    return Row(
        source,
        size,
        round(placed.awaited_s[number], 1),
        round(size / min(times), 1),
        round(cpu / ROUNDS / size * 1e6, 2),
        round(_peak_mib(driver), 1),
        round(_peak_mib(jvm), 1),
    )


def _read(session: SparkSession, target: tuple[str, str], table: str, expected: list[int]) -> None:
    frame = session.read.format("viewtide").option(*target).option("table", table).load()
    found = frame.selectExpr("count(*)", "sum(id)", "sum(product)", "sum(cost)").first()
    if found is None or list(found) != expected:
        raise Violation(f"Spark read {found} of {table}, not {expected}")


def _jvm_pid(session: SparkSession) -> int:
    return int(session._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr,unused-ignore]


def _forget_peak(pid: int) -> None:
    """From now on the highest is counted anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1_024


def _cpu_s(root: int, others: Sequence[int]) -> float:
    """Processor time of a process with all below it, and of others with theirs; of those that have ended, too."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    counted, waiting = set(), [root, *others]
    while waiting:
        pid = waiting.pop()
        if pid in ticks and pid not in counted:
            counted.add(pid)
            waiting += [child for child, parent in parents.items() if parent == pid]
    return sum(ticks[pid] for pid in counted) / TICKS_PER_S
