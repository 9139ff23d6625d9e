"""`python -m bench evaluators`: the first computation of a view from rows and from columns, by both evaluators.

The same events are handed to a plan as row tuples and as Arrow arrays, all at once and, as rows, in the pages in which
a new view is computed from a stored table. What is timed is the evaluator with the conversion that it needs, not the
look-ups, which come from a dict. All evaluators must give the same contributions to the letter.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine
from .errors import BenchError, Violation

if TYPE_CHECKING:
    from viewtide.changetables.plan import Asking, Contribution, ViewPlan

SUMMARY = "first computation of views from rows and from columns, by the row and the columns evaluator"

ROWS_COUNT = 1_000_000
QUICK_ROWS_COUNT = 100_000
#: As `coordinator.build` reads them.
PAGE_ROWS = 500
PRODUCTS = 1_000
CATEGORIES = 20
RUNS = 3

#: Over events (id, product, kind, cost, x) and products (id, category).
PLANS: dict[str, str] = {
    "aggregate": "SELECT kind, COUNT(*) AS n, SUM(cost) AS s FROM events WHERE cost > 100 GROUP BY kind",
    "join aggregate": (
        "SELECT p.category, COUNT(*) AS n, SUM(e.cost) AS s FROM events e JOIN products p ON p.id = e.product"
        " GROUP BY p.category"
    ),
    "variance of floats": "SELECT kind, VAR_SAMP(x) AS v FROM events GROUP BY kind",
    "plain rows": "SELECT id, cost FROM events WHERE cost > 900",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Rows per second of both evaluators on one form of input. `ratio`: columns over rows."""

    plan: str
    input: str
    rows_per_s: float
    columns_per_s: float
    ratio: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help=f"events (default {ROWS_COUNT:,})")


def run(options: argparse.Namespace) -> dict[str, object]:
    count = options.rows or (QUICK_ROWS_COUNT if options.quick else ROWS_COUNT)
    facts = machine.machine_facts(Path(tempfile.gettempdir()))
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    print(f"\n{count:,} events, rows per second\n{'plan':20}{'input':18}{'by rows':>12}{'by columns':>12}   ratio")
    rows = []
    for row in _measured(count):
        print(f"{row.plan:20}{row.input:18}{row.rows_per_s:>12,.0f}{row.columns_per_s:>12,.0f}{row.ratio:>8.2f}")
        rows.append(row)
    columnar = [row.ratio for row in rows if row.input == "columns"]
    return {
        "bench": "evaluators",
        "machine": facts,
        "rows": [asdict(row) for row in rows],
        "ratios": {"columnar_columns_vs_rows_min": min(columnar), "columnar_columns_vs_rows_max": max(columnar)},
    }


def _measured(count: int) -> Generator[Row, None, None]:
    try:
        import pyarrow

        from viewtide.changetables.plan import compile_view
        from viewtide.changetables.schema import Column, Index, Table
        from viewtide.changetables.sql import parse_view
        from viewtide.changetables.types import FLOAT, INT, STR
    except ImportError as error:
        raise BenchError(f"the evaluators cannot be imported: {error}") from error

    products = Table(1, "products", (Column("id", INT, nullable=False), Column("category", STR)), (0,))
    columns = [("id", INT), ("product", INT), ("kind", STR), ("cost", INT), ("x", FLOAT)]
    fields = tuple(Column(name, type_, nullable=False) for name, type_ in columns)
    tables = {"products": products, "events": Table(2, "events", fields, (0,), (Index(3, (1,)),))}

    class Stored:
        def table(self, name: str) -> Table:
            return tables[name]

        def inner(self, relation: object) -> Table:
            raise BenchError(f"a plan of this bench needs no hidden view: {relation}")

    rows = _events(count)
    arrays = [pyarrow.array([row[place] for row in rows]) for place in range(len(columns))]
    table = pyarrow.table(arrays, names=[name for name, _ in columns])
    pages = [rows[start : start + PAGE_ROWS] for start in range(0, count, PAGE_ROWS)]
    for name, sql in PLANS.items():
        plan = compile_view("v", 4, parse_view(sql, tables), Stored())
        yield _row(name, "columns", count, lambda plan, by: [plan.contribute_columns(0, 0, table, by)], plan)
        yield _row(name, "rows", count, lambda plan, by: [plan.contribute_from(0, 0, rows, by)], plan)
        paged = f"rows, pages of {PAGE_ROWS}"
        yield _row(name, paged, count, lambda plan, by: [plan.contribute_from(0, 0, page, by) for page in pages], plan)


def _events(count: int) -> list[tuple[int, int, str, int, float]]:
    draw = random.Random(1)
    kinds = ("view", "click", "buy")
    return [
        (number, draw.randrange(PRODUCTS), draw.choice(kinds), draw.randrange(1_000), draw.random())
        for number in range(count)
    ]


def _row(
    name: str,
    form: str,
    count: int,
    runs: Callable[[ViewPlan, str], Sequence[Asking[list[Contribution]]]],
    plan: ViewPlan,
) -> Row:
    """The best of some runs of each evaluator, which take turns."""
    best = {"rows": float("inf"), "columns": float("inf")}
    found: dict[str, object] = {}
    for _ in range(RUNS):
        for evaluator in best:
            results, seconds = _timed(runs(plan, evaluator))
            best[evaluator] = min(best[evaluator], seconds)
            found[evaluator] = [sorted(map(repr, some)) for some in results]
    if found["rows"] != found["columns"]:
        raise Violation(f"the evaluators differ: {name}, {form}")
    by_rows, by_columns = (count / best[evaluator] for evaluator in ("rows", "columns"))
    return Row(name, form, round(by_rows), round(by_columns), round(by_columns / by_rows, 2))


def _timed(runs: Sequence[Asking[list[Contribution]]]) -> tuple[list[list[Contribution]], float]:
    """What the plan gives, and the seconds it takes without the look-ups."""
    results, seconds = [], 0.0
    for asking in runs:
        answers: list[list[object]] | None = None
        while True:
            started = time.perf_counter()
            try:
                wanted = next(asking) if answers is None else asking.send(answers)
            except StopIteration as done:
                seconds += time.perf_counter() - started
                results.append(done.value)
                break
            seconds += time.perf_counter() - started
            answers = [[_product(key) for key in look_up.keys] for look_up in wanted]
    return results, seconds


def _product(key: bytes) -> tuple[int, str]:
    """The row of a product: the last 8 bytes of its key are its number, above the sign."""
    number = int.from_bytes(key[-8:], "big") - 2**63
    return number, f"c{number % CATEGORIES}"
