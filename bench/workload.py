"""The dashboard workload (Nikolov, 2.1 and 6): what is stored, what transactions insert, what every read must show.

50 shops, 5,000 products in 20 categories, 5,000 events to begin with. Each transaction inserts k events. The view is
the total cost and number of events per category.

The rule that makes every single view read checkable (after Nikolov, 6.2): the costs of a transaction's k events differ,
but always average `COST_MEAN`. So at every moment, over all groups together,

    COUNT is a multiple of k,    SUM is a multiple of k,    SUM = COST_MEAN × COUNT.

A view that shows a part of a transaction, in one group or in one of the two columns, breaks one of them.

The workload "update" (Nikolov, 6.3) changes the same 150 events again and again instead. They are divided into blocks
of k, and a transaction gives a whole block new products and costs, drawn like those of new events: whichever
transaction was last at a block, its costs average `COST_MEAN`, so the rule holds there too.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import Violation

SHOPS_COUNT = 50
PRODUCTS_COUNT = 5_000
CATEGORIES_COUNT = 20
#: Events in the table before the first transaction; a multiple of every k, so that the rule holds from the start.
EVENTS_COUNT_INITIAL = 5_000
COST_MEAN = 30
EVENT_TYPES = ("view", "click", "order")
HOT_CATEGORY = 7
#: Random values are drawn before the clock starts and used in turn; only id and timestamp are new in each transaction.
POOL_EVENTS_PER_CLIENT = 5_000
SEED = 20_24

UNIFORM = "uniform"
HOT = "hot"

INSERT = "insert"
UPDATE = "update"
#: The events that the workload "update" changes, the first ones of the table.
UPDATED_ROWS = 150

VIEW_NAME = "cost_by_category"
VIEW_SQL = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n "
    "FROM events e JOIN products p ON e.product = p.id GROUP BY p.category"
)

#: id, timestamp (µs since 1970), product, shop, type, cost. The timestamp is a 64-bit integer in all systems: SQLite
#: has no type for it, and this way all store the same eight bytes and no client pays for a conversion.
Event = tuple[int, int, int, int, str, int]
#: category, cost, n
ViewRow = tuple[str, int, int]
Value = int | str | None


@dataclass(frozen=True, slots=True)
class BaseTable:
    """A table as every system creates it; the first column is the primary key."""

    name: str
    columns: dict[str, type[int] | type[str]]

    @property
    def key(self) -> str:
        return next(iter(self.columns))


TABLES = (
    BaseTable("categories", {"name": str, "parent": str}),
    BaseTable("shops", {"id": int, "name": str}),
    BaseTable("address", {"shop": int, "street": str, "city": str, "province": str, "code": str, "country": str}),
    BaseTable("products", {"id": int, "shop": int, "category": str, "name": str, "description": str, "cluster": int}),
    BaseTable("events", {"id": int, "timestamp": int, "product": int, "shop": int, "type": str, "cost": int}),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One square of the result: k events per transaction, so many clients, uniform or one hot group."""

    k: int
    clients: int
    skew: str
    workload: str = INSERT

    def __str__(self) -> str:
        return f"k={self.k}, {self.clients} clients, {self.skew}, {self.workload}"


def category_name(index: int) -> str:
    return f"category-{index:02d}"


def category_of(product: int) -> str:
    return category_name(product % CATEGORIES_COUNT)


def base_rows(table: str) -> list[tuple[Value, ...]]:
    """The rows of a table before the first transaction, in key order."""
    match table:
        case "categories":
            return [(category_name(i), None) for i in range(CATEGORIES_COUNT)]
        case "shops":
            return [(i, f"Shop {i}") for i in range(SHOPS_COUNT)]
        case "address":
            return [(i, f"{i} Main Street", "Delft", "South Holland", f"26{i:02d}", "NL") for i in range(SHOPS_COUNT)]
        case "products":
            return [
                (i, i % SHOPS_COUNT, category_of(i), f"Product {i}", f"The description of product {i}", i // 2)
                for i in range(PRODUCTS_COUNT)
            ]
        case "events":
            return [
                (i, 0, i % PRODUCTS_COUNT, i % SHOPS_COUNT, EVENT_TYPES[i % len(EVENT_TYPES)], COST_MEAN)
                for i in range(EVENTS_COUNT_INITIAL)
            ]
    raise ValueError(f"no table {table!r} in the dashboard workload")


def transactions(cell: Cell, client: int) -> Iterator[list[Event]]:
    """The transactions of one client, without end; the same for every system."""
    pool = _pool(cell, client)
    firsts = _new_ids(cell, client) if cell.workload == INSERT else _blocks(cell, client)
    for first, drawn in zip(firsts, itertools.cycle(pool), strict=False):
        now_us = time.time_ns() // 1_000
        yield [(first + i, now_us, *values) for i, values in enumerate(drawn)]


def _new_ids(cell: Cell, client: int) -> Iterator[int]:
    """The first id of each transaction. Ids grow together over all clients, as those of a sequence would, without
    one."""
    return itertools.count(EVENTS_COUNT_INITIAL + client * cell.k, cell.clients * cell.k)


def _blocks(cell: Cell, client: int) -> Iterator[int]:
    """The first id of the block that each transaction updates, drawn at random: clients meet at the same rows."""
    if UPDATED_ROWS % cell.k:
        raise ValueError(f"{UPDATED_ROWS} rows cannot be divided into blocks of {cell.k}")
    draw = random.Random(SEED * 2_000 + client)
    while True:
        yield draw.randrange(0, UPDATED_ROWS, cell.k)


def _pool(cell: Cell, client: int) -> list[list[tuple[int, int, str, int]]]:
    draw = random.Random(SEED * 1_000 + client)
    products = range(HOT_CATEGORY, PRODUCTS_COUNT, CATEGORIES_COUNT) if cell.skew == HOT else range(PRODUCTS_COUNT)
    return [
        [(draw.choice(products), draw.randrange(SHOPS_COUNT), draw.choice(EVENT_TYPES), cost) for cost in costs]
        for costs in (_costs(cell.k, draw) for _ in range(max(1, POOL_EVENTS_PER_CLIENT // cell.k)))
    ]


def _costs(k: int, draw: random.Random) -> list[int]:
    """k costs that average COST_MEAN: pairs above and below by the same amount."""
    costs: list[int] = []
    for _ in range(k // 2):
        away = draw.randrange(COST_MEAN)
        costs += [COST_MEAN - away, COST_MEAN + away]
    return costs if k % 2 == 0 else [*costs, COST_MEAN]


class ViewChecker:
    """Checks every read of one reader. Besides the rule of the workload: what was acknowledged before the read began is
    in it, and the count never goes back (both follow from strict serializability)."""

    def __init__(self, system: str, cell: Cell) -> None:
        self._where = f"{system}, {cell}"
        self._k = cell.k
        self._new_per_transaction = cell.k if cell.workload == INSERT else 0
        self._count_before = 0

    def check(self, rows: Sequence[ViewRow], acknowledged: int) -> None:
        """`acknowledged`: transactions that were acknowledged before the read began, or before the moment that the
        view reflects, if it is one that may be behind."""
        if len({row[0] for row in rows}) != len(rows):
            raise self._violation("a category appears twice", rows)
        cost = sum(row[1] for row in rows)
        count = sum(row[2] for row in rows)
        if count % self._k or cost % self._k:
            raise self._violation(f"COUNT {count} or SUM {cost} is no multiple of k = {self._k}", rows)
        if cost != COST_MEAN * count:
            raise self._violation(f"SUM {cost} is not {COST_MEAN} × COUNT {count}", rows)
        if count < (least := events_expected(self._new_per_transaction, acknowledged)):
            raise self._violation(f"COUNT {count} is below {least}, acknowledged before the read", rows)
        if count < self._count_before:
            raise self._violation(f"COUNT went back from {self._count_before} to {count}", rows)
        self._count_before = count

    def check_end(self, rows: Sequence[ViewRow], acknowledged: int) -> None:
        """After the last transaction the view holds what was acknowledged, and nothing else."""
        self.check(rows, acknowledged)
        count = sum(row[2] for row in rows)
        if count != (expected := events_expected(self._new_per_transaction, acknowledged)):
            raise self._violation(f"COUNT at the end is {count}, acknowledged were {expected}", rows)

    def _violation(self, what: str, rows: Sequence[ViewRow]) -> Violation:
        shown = sorted((row[0], row[1], row[2]) for row in rows)
        return Violation(f"wrong view read ({self._where}): {what}. The view was {shown}")


def events_expected(new_per_transaction: int, acknowledged: int) -> int:
    return EVENTS_COUNT_INITIAL + new_per_transaction * acknowledged
