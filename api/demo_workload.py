"""The dashboard of the demo (Nikolov, 2.1): what is stored, what each transaction writes, what must be there then.

Nothing is random: the number of a transaction says everything that it writes. So whoever knows how many transactions
each writer has committed knows every row that the tables must hold, and a transaction that is half there shows.

    number of a transaction = sequence × writers + writer        a writer commits its sequence in order, one at a time
    id of an event          = number × EVENTS_PER_TRANSACTION + 0 ... 9

A transaction inserts ten events and deletes the ten that left the window; some correct the cost of an earlier event,
a few move a product to another category.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SHOPS_COUNT = 50
PRODUCTS_COUNT = 5_000
CATEGORIES = (
    "Beauty", "Books", "Cameras", "Computers", "Fashion", "Films", "Games", "Garden", "Health", "Jewellery",
    "Kitchen", "Music", "Office", "Pets", "Phones", "Shoes", "Sports", "Tools", "Toys", "Travel",
)  # fmt: skip
EVENT_TYPES = ("view", "click", "order")
EVENTS_PER_TRANSACTION = 10
#: Transactions whose events are kept, over all writers: the dashboard shows the latest ones, and a recompute stays
#: small enough to stand beside the view all the time.
WINDOW_TRANSACTIONS = 500
#: Each writer's every so many-th transaction corrects an event, or moves a product.
CORRECT_EVERY = 4
MOVE_EVERY = 50
COST_MAX = 97
EVENT_TIME_START_MS = 1_700_000_000_000

VIEW_NAME = "cost_by_category"
VIEW_SQL = """SELECT c.name AS category, SUM(e.cost) AS cost, COUNT(*) AS n
FROM events e
JOIN products p ON e.product = p.id
JOIN categories c ON p.category = c.id
GROUP BY c.name"""

#: How each table is created; the first column is the primary key.
TABLES: dict[str, dict[str, type]] = {
    "categories": {"id": int, "name": str},
    "shops": {"id": int, "name": str},
    "products": {"id": int, "shop": int, "category": int, "name": str},
    "events": {"id": int, "timestamp": int, "product": int, "shop": int, "type": str, "cost": int},
}


class Event(NamedTuple):
    """A row of the table events."""

    id: int
    timestamp: int
    product: int
    shop: int
    type: str
    cost: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction writes. `corrected`: (event, its new cost). `moved`: (product, its new category)."""

    inserted: tuple[Event, ...]
    corrected: tuple[int, int] | None
    deleted: range
    moved: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Contents:
    """The tables as they were found at one timestamp: `events` by transaction number, `categories` by product."""

    events: Mapping[int, Sequence[Event]]
    categories: Mapping[int, int]


def first_rows() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """What is in the tables before the first transaction."""
    yield "categories", [{"id": number, "name": name} for number, name in enumerate(CATEGORIES)]
    yield "shops", [{"id": shop, "name": f"Shop {shop}"} for shop in range(SHOPS_COUNT)]
    yield (
        "products",
        [
            {
                "id": product,
                "shop": product % SHOPS_COUNT,
                "category": first_category(product),
                "name": f"Product {product}",
            }
            for product in range(PRODUCTS_COUNT)
        ],
    )


def first_category(product: int) -> int:
    return product % len(CATEGORIES)


def by_transaction(events: Iterable[Event]) -> dict[int, list[Event]]:
    """Events in key order, under the number of the transaction that inserted them."""
    found: dict[int, list[Event]] = {}
    for event in events:
        found.setdefault(event.id // EVENTS_PER_TRANSACTION, []).append(event)
    return found


@dataclass(frozen=True, slots=True)
class Workload:
    """The transactions of so many writers."""

    writers: int

    @property
    def window(self) -> int:
        """Transactions whose events are kept, per writer."""
        return max(CORRECT_EVERY, WINDOW_TRANSACTIONS // self.writers)

    def number(self, writer: int, sequence: int) -> int:
        return sequence * self.writers + writer

    def step(self, writer: int, sequence: int) -> Step:
        """The transaction `sequence` of a writer."""
        expired = sequence - self.window
        first = self.number(writer, expired) * EVENTS_PER_TRANSACTION
        return Step(
            self.inserted(self.number(writer, sequence)),
            self._corrected(writer, sequence),
            range(first, first + EVENTS_PER_TRANSACTION) if expired >= 0 else range(0),
            self._moved(writer, sequence),
        )

    def inserted(self, number: int) -> tuple[Event, ...]:
        first = number * EVENTS_PER_TRANSACTION
        return tuple(
            Event(
                event,
                EVENT_TIME_START_MS + number,
                # Steps by a prime: the products of a transaction are spread over shops and categories.
                event * 7_919 % PRODUCTS_COUNT,
                event * 31 % SHOPS_COUNT,
                EVENT_TYPES[event % len(EVENT_TYPES)],
                1 + event * 61 % COST_MAX,
            )
            for event in range(first, first + EVENTS_PER_TRANSACTION)
        )

    def present(self, contents: Contents) -> list[int]:
        """How many transactions of each writer are there, judged by the newest one that left any event."""
        counts = [0] * self.writers
        for number in contents.events:
            sequence, writer = divmod(number, self.writers)
            counts[writer] = max(counts[writer], sequence + 1)
        return counts

    def half_there(self, contents: Contents, present: Sequence[int]) -> set[int]:
        """The transactions that left some of their effects, but not all; none may."""
        wrong: set[int] = set()
        for writer, count in enumerate(present):
            for sequence in range(max(0, count - self.window), count):
                number = self.number(writer, sequence)
                if list(contents.events.get(number, ())) != self._kept(writer, sequence, count):
                    wrong.add(number)
        for number in contents.events:
            sequence, writer = divmod(number, self.writers)
            if sequence < present[writer] - self.window:
                # Its events are still there, so the transaction that should have deleted them is not whole.
                wrong.add(self.number(writer, sequence + self.window))
        return wrong | self._half_moved(contents, present)

    def _kept(self, writer: int, sequence: int, count: int) -> list[Event]:
        """The events of a transaction once its writer has committed `count`."""
        events = list(self.inserted(self.number(writer, sequence)))
        corrected = self._corrected(writer, sequence + 1) if sequence + 1 < count else None
        return [
            event._replace(cost=corrected[1]) if corrected is not None and event.id == corrected[0] else event
            for event in events
        ]

    def _corrected(self, writer: int, sequence: int) -> tuple[int, int] | None:
        """Some transactions correct the cost of an event that their writer inserted just before."""
        if sequence == 0 or sequence % CORRECT_EVERY:
            return None
        before = self.number(writer, sequence - 1)
        return before * EVENTS_PER_TRANSACTION + sequence % EVENTS_PER_TRANSACTION, COST_MAX + sequence % COST_MAX

    def _moved(self, writer: int, sequence: int) -> tuple[int, int] | None:
        """A few move a product to another category; only one writer moves it, so its category is known."""
        if sequence == 0 or sequence % MOVE_EVERY:
            return None
        turn = sequence // MOVE_EVERY
        product = writer + turn * self.writers % (PRODUCTS_COUNT // self.writers * self.writers)
        return product, (first_category(product) + turn) % len(CATEGORIES)

    def _half_moved(self, contents: Contents, present: Sequence[int]) -> set[int]:
        expected = {product: (first_category(product), -1) for product in range(PRODUCTS_COUNT)}
        for writer, count in enumerate(present):
            for sequence in range(0, count, MOVE_EVERY):
                moved = self._moved(writer, sequence)
                if moved is not None:
                    expected[moved[0]] = moved[1], self.number(writer, sequence)
        return {
            # A product that nobody should have moved yet was moved by a writer's next transaction.
            number if number >= 0 else self.number(product % self.writers, present[product % self.writers])
            for product, (category, number) in expected.items()
            if contents.categories.get(product) != category
        }
