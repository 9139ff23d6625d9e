"""`python -m bench bulk`: rows in bulk against rows in transactions, and the first computation of a view.

One Parquet file of events is loaded into embedded databases: without an index, with one, and with a synchronous view
that joins and adds up. The same events go in by transactions of 1,000 rows, as many as take about as long. Then the
view is computed over what is there: from the stored rows, by rows and by columns, as `create_view` does it, from the
columns of the file, and from rows that are in memory already.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine
from .errors import BenchError, Violation

if TYPE_CHECKING:
    from viewtide import Database
    from viewtide.changetables.plan import Asking, Contribution

SUMMARY = "bulk load and first computation of a view against row by row"

ROWS_COUNT = 5_000_000
QUICK_ROWS_COUNT = 500_000
PRODUCTS = 1_000
CATEGORIES = 20
TRANSACTION_ROWS = 1_000
#: Of all rows, this part goes in by transactions: they take several times as long.
TRANSACTIONS_PART = 10
#: Rows that are handed on at once, as `load` takes them.
BATCH_ROWS = 50_000

VIEW = (
    "SELECT p.category, COUNT(*) AS n, SUM(e.cost) AS cost FROM events e JOIN products p ON p.id = e.product"
    " GROUP BY p.category"
)


@dataclass(frozen=True, slots=True)
class Row:
    """`cpu_rows_per_s`: by the processor time of this process, which a busy machine changes less."""

    what: str
    rows: int
    seconds: float
    rows_per_s: float
    cpu_rows_per_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help=f"events (default {ROWS_COUNT:,})")


def run(options: argparse.Namespace) -> dict[str, object]:
    count = options.rows or (QUICK_ROWS_COUNT if options.quick else ROWS_COUNT)
    folder = Path(tempfile.mkdtemp(prefix="viewtide-bulk-"))
    try:
        facts = machine.machine_facts(folder)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
        print(f"\n{'what':60}{'rows':>12}{'rows/s':>12}{'per cpu s':>12}", flush=True)
        rows = {}
        for row in _measured(folder, count):
            print(f"{row.what:60}{row.rows:>12,}{row.rows_per_s:>12,.0f}{row.cpu_rows_per_s:>12,.0f}", flush=True)
            rows[row.what] = row
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = {what: row.rows_per_s for what, row in rows.items()}
    return {
        "bench": "bulk",
        "machine": facts,
        "rows": [asdict(row) for row in rows.values()],
        "ratios": {
            "load_vs_transactions": round(rate[LOAD] / rate[TRANSACTIONS], 2),
            "load_with_index_vs_transactions": round(rate[LOAD_INDEX] / rate[TRANSACTIONS_INDEX], 2),
            "load_with_view_vs_transactions": round(rate[LOAD_VIEW] / rate[TRANSACTIONS_VIEW], 2),
            "first_by_columns_vs_by_rows": round(rate[FIRST_COLUMNS] / rate[FIRST_ROWS], 2),
        },
    }


LOAD = "load"
LOAD_INDEX = "load, one index"
#: The view needs the index, and makes it.
LOAD_VIEW = "load, a synchronous view with its index"
TRANSACTIONS = f"transactions of {TRANSACTION_ROWS:,} rows"
TRANSACTIONS_INDEX = f"{TRANSACTIONS}, one index"
TRANSACTIONS_VIEW = f"{TRANSACTIONS}, a synchronous view with its index"
FIRST_STORED = "first computation of a view, from the stored rows, by columns"
FIRST_ROWS = "first computation of a view, from the stored rows, by rows"
FIRST_MEMORY = "first computation of a view, from rows in memory"
FIRST_COLUMNS = "first computation of a view, from the columns of the file"


def _measured(folder: Path, count: int) -> Iterator[Row]:
    file = folder / "events.parquet"
    _write_events(file, count)
    some = max(count // TRANSACTIONS_PART, TRANSACTION_ROWS)
    with _database(folder, indexes=()) as db:
        yield _timed(LOAD, count, lambda: _load(db, file))
    with _database(folder, indexes=("product",)) as db:
        yield _timed(LOAD_INDEX, count, lambda: _load(db, file))
        yield _timed(FIRST_ROWS, count, lambda: db.create_view("v", VIEW, evaluator="rows"))
        expected = _totals(db)
        db.drop_view("v")
        yield _timed(FIRST_STORED, count, lambda: db.create_view("v", VIEW, evaluator="columns"))
        if _totals(db) != expected:
            raise Violation("the first computations differ")
        found: list[dict[str, tuple[int, int]]] = []
        yield _timed(FIRST_COLUMNS, count, lambda: found.append(_first_by_columns(db, file)))
        rows = [tuple(row.values()) for row in _rows(file, some)]
        part: list[dict[str, tuple[int, int]]] = []
        yield _timed(FIRST_MEMORY, some, lambda: part.append(_first_by_rows(db, rows)))
        counted = [sum(n for n, _ in totals.values()) for totals in (expected, part[0])]
        if found[0] != expected or counted != [count, some]:
            raise Violation("the first computations differ")
    with _database(folder, indexes=()) as db:
        db.create_view("v", VIEW)
        yield _timed(LOAD_VIEW, count, lambda: _load(db, file))
        if _totals(db) != expected:
            raise Violation("the view differs after a load")
    for what, indexes, with_view in (
        (TRANSACTIONS, (), False), (TRANSACTIONS_INDEX, ("product",), False), (TRANSACTIONS_VIEW, (), True)
    ):  # fmt: skip
        with _database(folder, indexes=indexes) as db:
            if with_view:
                db.create_view("v", VIEW)
            rows = _rows(file, some)
            yield _timed(what, some, lambda db=db, rows=rows: _insert(db, rows))  # type: ignore[misc]


def _timed(what: str, count: int, work: Callable[[], object]) -> Row:
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Row(what, count, round(seconds, 3), round(count / seconds), round(count / cpu_s))


@contextmanager
def _database(folder: Path, indexes: tuple[str, ...]) -> Iterator[Database]:
    import viewtide

    path = Path(tempfile.mkdtemp(dir=folder))
    try:
        with viewtide.connect(path / "db", ltms=1) as db:
            db.create_table("products", {"id": int, "category": str}, key="id")
            columns = {name: viewtide.column(int, nullable=False) for name in ("id", "product", "cost")}
            db.create_table("events", columns, key="id", indexes=indexes)
            with db.transaction() as tx:
                tx.insert("products", [{"id": n, "category": f"c{n % CATEGORIES}"} for n in range(PRODUCTS)])
            yield db
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write_events(file: Path, count: int) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise BenchError(f"this bench needs pyarrow: {error}") from error
    draw = random.Random(1)
    products = draw.choices(range(PRODUCTS), k=QUICK_ROWS_COUNT)
    costs = draw.choices(range(1_000), k=QUICK_ROWS_COUNT)
    schema = pyarrow.schema([(name, pyarrow.int64()) for name in ("id", "product", "cost")])
    with parquet.ParquetWriter(file, schema) as writer:
        for first in range(0, count, QUICK_ROWS_COUNT):
            size = min(QUICK_ROWS_COUNT, count - first)
            columns = [
                pyarrow.array(range(first, first + size)),
                pyarrow.array(products[:size]),
                pyarrow.array(costs[:size]),
            ]
            writer.write_table(pyarrow.table(columns, schema=schema))


def _batches(file: Path) -> Iterator[object]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        yield from opened.iter_batches(batch_size=BATCH_ROWS)


def _load(db: Database, file: Path) -> None:
    db.table("events").load(_batches(file))


def _rows(file: Path, count: int) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = []
    for batch in _batches(file):
        rows += batch.to_pylist()  # type: ignore[attr-defined]
        if len(rows) >= count:
            break
    return rows[:count]


def _insert(db: Database, rows: list[dict[str, int]]) -> None:
    for first in range(0, len(rows), TRANSACTION_ROWS):
        with db.transaction() as tx:
            tx.insert("events", rows[first : first + TRANSACTION_ROWS])
    # A load leaves its rows in the store. So do these, after a checkpoint.
    db._node.engine.checkpoint()  # type: ignore[attr-defined]


def _totals(db: Database) -> dict[str, tuple[int, int]]:
    return {row["category"]: (row["n"], row["cost"]) for row in db.view("v").rows()}  # type: ignore[misc]


def _first_by_columns(db: Database, file: Path) -> dict[str, tuple[int, int]]:
    """What the view's plan makes of the columns of the file, with the products as the database has them."""
    import pyarrow

    plan = db._node.engine.ltm.tables.views["v"].plan
    ((part, source),) = plan.places_of("events")
    tables = (pyarrow.Table.from_batches([batch]) for batch in _batches(file))
    return _computed(db, (plan.contribute_columns(part, source, table) for table in tables))


def _first_by_rows(db: Database, rows: list[tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """The same of rows that are there already."""
    plan = db._node.engine.ltm.tables.views["v"].plan
    ((part, source),) = plan.places_of("events")
    pages = (rows[first : first + TRANSACTION_ROWS] for first in range(0, len(rows), TRANSACTION_ROWS))
    return _computed(db, (plan.contribute_from(part, source, page) for page in pages))


def _computed(db: Database, askings: Iterable[Asking[list[Contribution]]]) -> dict[str, tuple[int, int]]:
    ltm = db._node.engine.ltm
    plan = ltm.tables.views["v"].plan
    at = ltm.horizon.durable_ts
    states: dict[bytes, tuple[object, ...] | None] = {}
    for asking in askings:
        answers = None
        while True:
            try:
                wanted = next(asking) if answers is None else asking.send(answers)
            except StopIteration as done:
                for item in done.value:
                    states[item.key] = plan.refresh(states.get(item.key), item)
                break
            answers = [ltm.answer(look_up, ltm.tables, at, at) for look_up in wanted]
    shown = [plan.output(state) for state in states.values()]
    return {row[0]: (row[1], row[2]) for row in shown}  # type: ignore[misc]
