"""Change tables: bags of rows with integer multiplicities (Nikolov 4.3.1, the square box).

    □B = ΔB ⊎ (−∇B)        an update is the deletion of the old row and the insertion of the new one

With `+` they are a commutative group: 0 is the empty change table, −□B undoes □B. That is what lets contributions
arrive in any order, be split over several workers, and be added up. `ChangeTable` is the algebra for code that
composes changes; the hot path hands plain lists of `Change` to compiled plans (a dict costs more than it saves there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from .types import Row

#: A row and how many times it comes (+) or goes (-).
Change: TypeAlias = tuple[Row, int]


class ChangeTable:
    """A bag of rows with integer multiplicities. Rows that net to zero do not count: they are equal to absent ones."""

    __hash__ = None  # type: ignore[assignment]  # It is mutable, so it must not be a dict key.
    __slots__ = ("_multiplicities",)

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._multiplicities: dict[Row, int] = {}
        for row, multiplicity in changes:
            self.insert(row, multiplicity)

    def insert(self, row: Row, n: int = 1) -> None:
        self._multiplicities[row] = self._multiplicities.get(row, 0) + n

    def delete(self, row: Row) -> None:
        self.insert(row, -1)

    def update(self, old: Row, new: Row) -> None:
        """Two updates of one row net to (first old, last new), because the row between them comes and goes."""
        self.insert(old, -1)
        self.insert(new)

    def consolidate(self) -> ChangeTable:
        """The same change table without rows of multiplicity zero, changed in place."""
        self._multiplicities = {row: n for row, n in self._multiplicities.items() if n}
        return self

    def __iter__(self) -> Iterator[Change]:
        """Rows with their multiplicity, those that net to zero left out, in the order in which they first came."""
        return (change for change in self._multiplicities.items() if change[1])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(self._multiplicities.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChangeTable):
            return NotImplemented
        return dict(self) == dict(other)

    def __add__(self, other: ChangeTable) -> ChangeTable:
        total = ChangeTable(self)
        for row, multiplicity in other:
            total.insert(row, multiplicity)
        return total

    def __neg__(self) -> ChangeTable:
        return ChangeTable((row, -multiplicity) for row, multiplicity in self)

    def __sub__(self, other: ChangeTable) -> ChangeTable:
        return self + -other

    def __repr__(self) -> str:
        return f"ChangeTable({list(self)!r})"
