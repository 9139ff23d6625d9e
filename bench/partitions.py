"""The dashboard workload cut into partitions, so that a transaction touches two LTMs however many there are.

Partition p has its own events, products and categories, as a shop has its own customers (CloudTPS and Nikolov scale
such loads: what one transaction touches does not grow with the system). Events and their index entries are on LTM p;
products and the rows of the view on the next one: every transaction takes two phases, and all LTMs have the same to do.
There are as many partitions as LTMs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .workload import category_name

if TYPE_CHECKING:
    from viewtide.ltm.tables import Tables

#: Between the first event ids of two partitions.
EVENT_SPAN = 10**12


@dataclass(frozen=True, slots=True)
class Partitions:
    """`count` of them, with so many `categories` each, and so many products in each category. A product's category is
    its id modulo the number of all categories."""

    count: int
    categories: int
    per_category: int

    @property
    def all_categories(self) -> int:
        return self.count * self.categories

    @property
    def products(self) -> int:
        """In one partition."""
        return self.categories * self.per_category

    def first_product(self, partition: int) -> int:
        return self.all_categories * self.per_category * partition

    def product(self, partition: int, number: int) -> int:
        """One of the products of a partition, by any number."""
        category = partition * self.categories + number % self.categories
        return (
            self.first_product(partition)
            + self.all_categories * (number // self.categories % self.per_category)
            + category
        )

    def ranges(self, tables: Tables, events: str, products: str, view: str) -> Iterator[tuple[bytes, bytes, int]]:
        """(start, stop, number of the LTM) of all that a partition has."""
        event_keys, product_keys = tables.by_name[events].codec.keys.encode, tables.by_name[products].codec.keys.encode
        view_keys = tables.views[view].plan.keys.encode
        (index,) = tables.by_name[events].indexes
        for partition in range(self.count):
            after, other = partition + 1, (partition + 1) % self.count
            low, high = (self.first_product(each) for each in (partition, after))
            yield event_keys((partition * EVENT_SPAN,)), event_keys((after * EVENT_SPAN,)), partition
            yield index.codec.prefix((low,)), index.codec.prefix((high,)), partition
            yield product_keys((low,)), product_keys((high,)), other
            first, last = (category_name(each * self.categories) for each in (partition, after))
            yield view_keys((first,)), view_keys((last,)), other
