"""`python -m bench choice`: the first contents of a join-aggregate view by rows, by columns and by Spark, and what the
choice by cost takes, over tables of growing size.

What is timed is `create_view` over a table in a directory, all of it: reading the rows, evaluating, storing. Spark's
session is started before, and a first job is run; what that takes is printed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine
from .errors import BenchError, Violation

if TYPE_CHECKING:
    import viewtide as vt

SUMMARY = "first contents of a view by rows, columns and Spark, and the choice between them"

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000)
PRODUCTS = 1_000
CATEGORIES = 20
SQL = (
    "SELECT p.category, COUNT(*) AS n, SUM(e.cost) AS s FROM events e JOIN products p ON p.id = e.product"
    " GROUP BY p.category"
)
EVALUATORS = ("rows", "columns", "spark")


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of each evaluator and of the choice. `ratio`: the choice over the best."""

    size: int
    rows_s: float
    columns_s: float
    spark_s: float
    chosen: str
    chosen_s: float
    ratio: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", help="events in the table")


def run(options: argparse.Namespace) -> dict[str, object]:
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    facts = machine.machine_facts(Path(tempfile.gettempdir()))
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    started_s, job_s = _started()
    print(f"\nstart of a Spark session: {started_s:.1f} s; its first view: {job_s:.1f} s")
    print(f"\n{'events':>12}{'rows s':>10}{'columns s':>11}{'Spark s':>10}{'choice s':>10}   choice / best")
    rows = []
    for size in sizes:
        row = _row(size)
        print(
            f"{row.size:>12,}{row.rows_s:>10.2f}{row.columns_s:>11.2f}{row.spark_s:>10.2f}{row.chosen_s:>10.2f}"
            f"{row.ratio:>8.2f} ({row.chosen})",
            flush=True,
        )
        rows.append(row)
    return {
        "bench": "choice",
        "machine": facts,
        "session_start_s": started_s,
        "first_job_s": job_s,
        "rows": [asdict(row) for row in rows],
        "ratios": {"choice_vs_best_max": max(row.ratio for row in rows)},
    }


def _started() -> tuple[float, float]:
    try:
        from viewtide.changetables.evaluators.spark_session import measured_start_s, spark_session

        spark_session()
    except Exception as error:
        raise BenchError(f"there is no Spark: {error}") from error
    with _database(QUICK_SIZES[0]) as db:
        return measured_start_s() or 0.0, _create(db, "spark")[0]


def _row(size: int) -> Row:
    with _database(size) as db:
        found = {evaluator: _create(db, evaluator) for evaluator in EVALUATORS}
        chosen_s, shown = _create(db, None)
        status = db.view("v_None").status().evaluator
    if any(each[1] != shown for each in found.values()):
        raise Violation(f"the evaluators do not agree on {size:,} events")
    chosen = status.partition("computed as a whole by ")[2].partition(" ")[0] or "rows"
    best_s = min(each[0] for each in found.values())
    return Row(size, found["rows"][0], found["columns"][0], found["spark"][0], chosen, chosen_s, chosen_s / best_s)


def _create(db: vt.Database, evaluator: str | None) -> tuple[float, list[dict[str, object]]]:
    began = time.perf_counter()
    view = db.create_view(f"v_{evaluator}", SQL, evaluator=evaluator)
    return time.perf_counter() - began, list(view.rows())


class _database:
    """A database in a directory of its own, with so many events."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._directory = tempfile.TemporaryDirectory(prefix="viewtide-bench-")

    def __enter__(self) -> vt.Database:
        import pyarrow

        import viewtide as vt

        self._db = db = vt.connect(Path(self._directory.name) / "db")
        db.create_table("products", {"id": int, "category": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        with db.transaction() as tx:
            tx.insert("products", [{"id": n, "category": f"c{n % CATEGORIES}"} for n in range(PRODUCTS)])
        db.table("events").load(pyarrow.RecordBatch.from_pylist(some) for some in _events(self._size))
        return db

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._directory.cleanup()


def _events(count: int, page: int = 50_000) -> Iterator[list[dict[str, object]]]:
    draw = random.Random(1)
    for first in range(0, count, page):
        yield [
            {"id": number, "product": draw.randrange(PRODUCTS), "cost": draw.randrange(1_000)}
            for number in range(first, min(first + page, count))
        ]
