"""`python -m bench choice`: the contents and the steps of a join-aggregate view by rows, by columns and by Spark, and
what the choice by cost takes, over tables of growing size.

Timed are `create_view` over a table in a directory, all of it: reading the rows, evaluating, storing; and `refresh` of
a deferred view after every row of the table was changed. Spark's session is started before, and a first job is run;
what that takes is printed.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine
from .errors import BenchError, Violation

if TYPE_CHECKING:
    import viewtide as vt

SUMMARY = "contents and steps of a view by rows, columns and Spark, and the choice between them"

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (1_000, 10_000)
#: Changes of one step: of more the system makes several, and with millions a view is computed anew, as a whole.
STEP_SIZE_MAX = 100_000
#: Rows that one transaction changes.
TRANSACTION_ROWS = 10_000
PRODUCTS = 1_000
CATEGORIES = 20
SQL = (
    "SELECT p.category, COUNT(*) AS n, SUM(e.cost) AS s FROM events e JOIN products p ON p.id = e.product"
    " GROUP BY p.category"
)
EVALUATORS = ("rows", "columns", "spark")
#: Without a name: by cost.
CHOICES = (*EVALUATORS, None)
#: In which order they come, round by round: each follows each of the others once. What comes after a job of Spark finds
#: other caches, and a JVM that is not done with it.
ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
ROUNDS = 2 * len(ORDERS)
#: Events above which a round takes so long that one must do.
ROUNDS_SIZE_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of each evaluator and of the choice. `ratio`: the choice over the best."""

    what: str
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
    print(f"\n{'':10}{'events':>12}{'rows s':>10}{'columns s':>11}{'Spark s':>10}{'choice s':>10}   choice / best")
    rows = []
    for row in _measured(sizes):
        print(
            f"{row.what:10}{row.size:>12,}{row.rows_s:>10.2f}{row.columns_s:>11.2f}{row.spark_s:>10.2f}"
            f"{row.chosen_s:>10.2f}{row.ratio:>8.2f} ({row.chosen})",
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
        return measured_start_s() or 0.0, _create(db, "spark")


def _measured(sizes: Sequence[int]) -> Iterator[Row]:
    for size in sizes:
        with _database(size) as db:
            yield _row("contents", size, db, _forget, _create)
    for size in sizes:
        if size <= STEP_SIZE_MAX:
            with _database(size) as db:
                for evaluator in CHOICES:
                    db.create_view(_name(evaluator), SQL, refresh="manual")
                yield _row("step", size, db, _change, _refresh)


def _row(
    what: str,
    size: int,
    db: vt.Database,
    prepare: Callable[[vt.Database, int], None],
    measure: Callable[[vt.Database, str | None], float],
) -> Row:
    """The best of some rounds."""
    seconds: dict[str | None, float] = dict.fromkeys(CHOICES, math.inf)
    for number in range(ROUNDS if size <= ROUNDS_SIZE_MAX else 1):
        prepare(db, size)
        for evaluator in (CHOICES[place] for place in ORDERS[number % len(ORDERS)]):
            seconds[evaluator] = min(seconds[evaluator], measure(db, evaluator))
    chosen_s = seconds.pop(None)
    shown = list(db.view(_name(None)).rows())
    if any(list(db.view(_name(evaluator)).rows()) != shown for evaluator in EVALUATORS):
        raise Violation(f"the evaluators do not agree on {size:,} events")
    status = db.view(_name(None)).status().evaluator
    chosen = status.partition("computed as a whole by ")[2].partition(" ")[0] or "rows"
    ratio = chosen_s / min(seconds.values())
    return Row(what, size, seconds["rows"], seconds["columns"], seconds["spark"], chosen, chosen_s, ratio)


def _forget(db: vt.Database, size: int) -> None:
    """There are no views to begin with."""
    for name in db.views():
        db.drop_view(name)


def _name(evaluator: str | None) -> str:
    return f"v_{evaluator}"


def _create(db: vt.Database, evaluator: str | None) -> float:
    began = time.perf_counter()
    db.create_view(_name(evaluator), SQL, evaluator=evaluator)
    return time.perf_counter() - began


def _refresh(db: vt.Database, evaluator: str | None) -> float:
    began = time.perf_counter()
    db.view(_name(evaluator)).refresh(evaluator)
    return time.perf_counter() - began


def _change(db: vt.Database, size: int) -> None:
    for first in range(0, size, TRANSACTION_ROWS):
        db.sql(f"UPDATE events SET cost = cost + 1 WHERE id >= {first} AND id < {first + TRANSACTION_ROWS}")


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
