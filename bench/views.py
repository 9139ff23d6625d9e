"""`python -m bench views`: what a changed row costs, for every kind of view, and what a hot group costs.

Cost per changed row: two databases that differ only in the number of base rows, both with a row cache of 1,000 rows, so
that rows come from the store. Each kind of view is made in both, the same transactions (inserts, updates, deletes of
events that join with few rows) are timed in turns, and the view is verified. A view that is kept without scans costs
the same in both.

Hot group: for every aggregate, 16 threads that add to many groups, and 16 that add to one, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from . import machine
from .dashboard import bench_folder
from .errors import Violation
from .product import load_viewtide

SUMMARY = "cost per changed row by kind of view and size of the tables, and aggregates with a hot group"

CACHE_ROWS = 1_000
SMALL_ROWS = 10_000
LARGE_ROWS = 1_000_000
#: 60 seconds are not enough to load a million rows and compute every kind of view.
QUICK_LARGE_ROWS = 50_000
#: Events join with so many rows on average, whatever the size: products and shops grow with the events.
EVENTS_PER_PRODUCT = 10
LOAD_ROWS = 1_000

THREADS = 16
K = 10
GROUPS = 20
#: Both cells of an aggregate are run so often, in turns: what else the machine does falls on both.
HOT_ROUNDS = 5

#: Every kind of view, over events e (id, product, shop, cost, note) and products p (id, category, price).
KINDS: dict[str, str] = {
    "selection": "SELECT id, cost FROM events WHERE cost > 500",
    "inner join": "SELECT e.id, e.cost, p.category FROM events e JOIN products p ON p.id = e.product",
    "left join": "SELECT e.id, p.id AS p, p.category FROM products p LEFT JOIN events e ON e.product = p.id",
    "full join": "SELECT e.id, p.id AS p FROM products p FULL JOIN events e ON e.product = p.id AND e.cost > 100",
    "semi-join": (
        "SELECT id FROM products p WHERE EXISTS (SELECT 1 FROM events e WHERE e.product = p.id AND e.cost > 900)"
    ),
    "anti-join": "SELECT id FROM products p WHERE id NOT IN (SELECT product FROM events WHERE cost > 900)",
    "count, sum, avg": "SELECT product, COUNT(*) AS n, SUM(cost) AS s, AVG(cost) AS a FROM events GROUP BY product",
    "join aggregate": (
        "SELECT p.category, COUNT(*) AS n, SUM(e.cost) AS s FROM events e JOIN products p ON p.id = e.product"
        " GROUP BY p.category"
    ),
    "min, max": "SELECT product, MIN(cost) AS lo, MAX(cost) AS hi FROM events GROUP BY product",
    "count distinct": "SELECT product, COUNT(DISTINCT shop) AS n FROM events GROUP BY product",
    "distinct": "SELECT DISTINCT product, shop FROM events",
    "union": "SELECT product FROM events UNION SELECT id FROM products",
    "except all": "SELECT product FROM events EXCEPT ALL SELECT id FROM products",
    "top 10": "SELECT id, cost FROM events ORDER BY cost DESC LIMIT 10",
    "view on view": (
        "SELECT n, COUNT(*) AS c FROM (SELECT product, COUNT(*) AS n FROM events GROUP BY product) x GROUP BY n"
    ),
    "having": "SELECT product, SUM(cost) AS s FROM events GROUP BY product HAVING COUNT(*) > 5",
}

#: Every aggregate, of events grouped by `grp`.
AGGREGATES: dict[str, str] = {
    "COUNT": "COUNT(*)",
    "SUM": "SUM(x)",
    "AVG": "AVG(x)",
    "MIN": "MIN(x)",
    "MAX": "MAX(x)",
    "COUNT DISTINCT": "COUNT(DISTINCT x)",
    "SUM DISTINCT": "SUM(DISTINCT x)",
    "VAR_SAMP": "VAR_SAMP(x)",
    "BOOL_AND": "BOOL_AND(x > 0)",
}


@dataclass(frozen=True, slots=True)
class CostRow:
    """Microseconds per changed row. `ratio`: large over small. `cpu`: the same in processor time of the writer's
    thread, which says more where others use the machine and waiting is most of it. The slowest transaction shows what
    medians hide: writers that wait for a checkpoint."""

    kind: str
    small_us: float
    large_us: float
    ratio: float
    small_cpu_us: float
    large_cpu_us: float
    cpu_ratio: float
    small_slowest_ms: float
    large_slowest_ms: float


@dataclass(frozen=True, slots=True)
class HotRow:
    aggregate: str
    uniform_tx_per_s: float
    hot_tx_per_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class _Step:
    """Means of an insert, an update and a delete, and the slowest of the three, in microseconds."""

    us: float
    cpu_us: float
    slowest_us: float


class _View(Protocol):
    def verify(self) -> _Report: ...


class _Report(Protocol):
    ok: bool


class _Transaction(Protocol):
    def insert(self, table: str, rows: object) -> None: ...

    def update(self, table: str, key: object, changes: dict[str, object]) -> bool: ...

    def delete(self, table: str, key: object) -> bool: ...

    def __enter__(self) -> _Transaction: ...

    def __exit__(self, *_: object) -> None: ...


class _Database(Protocol):
    def create_table(self, name: str, columns: dict[str, object], key: str) -> None: ...

    def create_view(self, name: str, sql: str) -> _View: ...

    def drop_view(self, name: str) -> None: ...

    def transaction(self) -> _Transaction: ...

    def view(self, name: str) -> _View: ...

    def close(self) -> None: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--large", type=int, help=f"base rows of the large database (default {LARGE_ROWS:,})")
    parser.add_argument("--transactions", type=int, help="timed transactions per kind of view and size")
    parser.add_argument("--kinds", help=f"some of: {'; '.join(KINDS)} (separated by ;)")
    parser.add_argument("--seconds", type=float, help="measured time of each cell of the hot groups")
    parser.add_argument("--dir", type=Path, help="where the databases go, on a real disk (default: a temporary folder)")


def run(options: argparse.Namespace) -> dict[str, object]:
    large = options.large or (QUICK_LARGE_ROWS if options.quick else LARGE_ROWS)
    transactions = options.transactions or (60 if options.quick else 300)
    seconds = options.seconds or (0.5 if options.quick else 1.0)
    chosen = [name.strip() for name in options.kinds.split(";")] if options.kinds else list(KINDS)
    with bench_folder(options.dir) as folder:
        facts = machine.machine_facts(folder)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
        costs = _costs(folder, {name: KINDS[name] for name in chosen}, large, transactions)
        hot = _hot_groups(folder, seconds, 1 if options.quick else HOT_ROUNDS)
    return {
        "bench": "views",
        "machine": facts,
        "rows": [asdict(row) for row in costs],
        "hot": [asdict(row) for row in hot],
        "ratios": {
            "cost_large_vs_small_max": max(row.ratio for row in costs),
            "cpu_cost_large_vs_small_max": max(row.cpu_ratio for row in costs),
            "hot_vs_uniform_min": min(row.ratio for row in hot),
        },
    }


# --- cost per changed row ---


def _costs(folder: Path, kinds: dict[str, str], large: int, transactions: int) -> list[CostRow]:
    databases = [_loaded(folder / f"rows{count}", count) for count in (SMALL_ROWS, large)]
    print(f"\ncost per changed row, cache of {CACHE_ROWS:,} rows")
    print(f"{'kind':18}{SMALL_ROWS:>12,}{large:>12,}   ratio{'processor time':>24}   ratio   slowest transaction")
    rows = []
    try:
        for number, (kind, sql) in enumerate(kinds.items()):
            row = _row(kind, *_kind(databases, f"v{number}", sql, transactions))
            print(
                f"{kind:18}{row.small_us:>9.1f} us{row.large_us:>9.1f} us{row.ratio:>8.2f}"
                f"{row.small_cpu_us:>9.1f} us{row.large_cpu_us:>9.1f} us{row.cpu_ratio:>8.2f}"
                f"{row.small_slowest_ms:>10.1f} ms{row.large_slowest_ms:>6.1f} ms",
                flush=True,
            )
            rows.append(row)
    finally:
        for database, _ in databases:
            database.close()
    return rows


def _row(kind: str, small: Sequence[_Step], large: Sequence[_Step]) -> CostRow:
    small_us, large_us = (statistics.median(step.us for step in steps) for steps in (small, large))
    small_cpu_us, large_cpu_us = (statistics.median(step.cpu_us for step in steps) for steps in (small, large))
    return CostRow(
        kind,
        round(small_us, 1),
        round(large_us, 1),
        round(large_us / small_us, 3),
        round(small_cpu_us, 1),
        round(large_cpu_us, 1),
        round(large_cpu_us / small_cpu_us, 3),
        round(max(step.slowest_us for step in small) / 1_000, 1),
        round(max(step.slowest_us for step in large) / 1_000, 1),
    )


def _loaded(folder: Path, count: int) -> tuple[_Database, int]:
    vt = load_viewtide()
    database: _Database = vt.connect(folder, cache_rows=CACHE_ROWS)
    database.create_table("products", {"id": int, "category": str, "price": int}, "id")
    database.create_table("events", {"id": int, "product": int, "shop": int, "cost": int, "note": str}, "id")
    draw = random.Random(1)
    products = [{"id": n, "category": f"c{n % GROUPS}", "price": n % 100} for n in range(count // EVENTS_PER_PRODUCT)]
    _insert(database, "products", iter(products))
    _insert(database, "events", (_event(n, count, draw) for n in range(count)))
    return database, count


def _event(number: int, count: int, draw: random.Random) -> dict[str, object]:
    return {
        "id": number,
        "product": draw.randrange(count // EVENTS_PER_PRODUCT),
        "shop": draw.randrange(count // EVENTS_PER_PRODUCT),
        "cost": draw.randrange(1_000),
        "note": "n" * draw.randrange(20),
    }


def _insert(database: _Database, table: str, rows: Iterator[dict[str, object]]) -> None:
    while page := list(itertools.islice(rows, LOAD_ROWS)):
        with database.transaction() as tx:
            tx.insert(table, page)


def _kind(databases: Sequence[tuple[_Database, int]], name: str, sql: str, transactions: int) -> list[list[_Step]]:
    """The steps in each database, which take turns."""
    for database, _ in databases:
        database.create_view(name, sql)
    steps: list[list[_Step]] = [[] for _ in databases]
    draws = [random.Random(7) for _ in databases]
    for number in range(transactions):
        for place, (database, count) in enumerate(databases):
            steps[place].append(_timed(database, count, number, draws[place]))
    for database, _ in databases:
        if not database.view(name).verify().ok:
            raise Violation(f"the view {sql!r} differs from its recompute")
        database.drop_view(name)
    return steps


def _timed(database: _Database, count: int, number: int, draw: random.Random) -> _Step:
    """One insert, one update and one delete: the number of rows stays the same."""
    new = count + 10_000_000 + number
    changed, gone = draw.randrange(count), new
    row = _event(new, count, draw)
    changes: dict[str, object] = {"cost": draw.randrange(1_000), "product": draw.randrange(count // EVENTS_PER_PRODUCT)}
    cpu = time.thread_time()
    moments = [time.perf_counter()]
    with database.transaction() as tx:
        tx.insert("events", row)
    moments.append(time.perf_counter())
    with database.transaction() as tx:
        tx.update("events", changed, changes)
    moments.append(time.perf_counter())
    with database.transaction() as tx:
        tx.delete("events", gone)
    moments.append(time.perf_counter())
    cpu = time.thread_time() - cpu
    times = [after - before for before, after in itertools.pairwise(moments)]
    return _Step(sum(times) * 1e6 / 3, cpu * 1e6 / 3, max(times) * 1e6)


# --- hot groups ---


def _hot_groups(folder: Path, seconds: float, rounds: int) -> list[HotRow]:
    """Medians of the rounds; that of the ratios is not the ratio of the medians."""
    print(f"\n{THREADS} threads, {K} rows per transaction\n{'aggregate':18}{'uniform':>12}{'one group':>12}   ratio")
    rows = []
    for name, aggregate in AGGREGATES.items():
        cells: dict[int, list[float]] = {GROUPS: [], 1: []}
        for number in range(rounds):
            for groups in (GROUPS, 1) if number % 2 else (1, GROUPS):
                cells[groups].append(_throughput(folder, aggregate, groups, seconds))
        ratio = statistics.median(hot / uniform for uniform, hot in zip(cells[GROUPS], cells[1], strict=True))
        uniform, hot = (statistics.median(cells[groups]) for groups in (GROUPS, 1))
        row = HotRow(name, round(uniform, 1), round(hot, 1), round(ratio, 3))
        print(f"{name:18}{row.uniform_tx_per_s:>12,.0f}{row.hot_tx_per_s:>12,.0f}{row.ratio:>8.2f}", flush=True)
        rows.append(row)
    return rows


def _throughput(folder: Path, aggregate: str, groups: int, seconds: float) -> float:
    """Transactions per second, with durable commits, of threads that insert without pause."""
    vt = load_viewtide()
    place = folder / f"hot{time.monotonic_ns()}"
    database: _Database = vt.connect(place)
    try:
        database.create_table("events", {"id": int, "grp": int, "x": int}, "id")
        database.create_view("v", f"SELECT grp, {aggregate} AS a FROM events GROUP BY grp")
        counts = [0] * THREADS
        stop_at = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_write, args=(database, number, groups, stop_at, counts))
            for number in range(THREADS)
        ]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - started
        if not database.view("v").verify().ok:
            raise Violation(f"{aggregate} differs from its recompute")
        return sum(counts) / elapsed
    finally:
        database.close()


def _write(database: _Database, number: int, groups: int, stop_at: float, counts: list[int]) -> None:
    draw = random.Random(number)
    ids = itertools.count(number, THREADS)
    while time.monotonic() < stop_at:
        rows = [{"id": next(ids), "grp": draw.randrange(groups), "x": draw.randrange(100_000)} for _ in range(K)]
        with database.transaction() as tx:
            tx.insert("events", rows)
        counts[number] += 1
