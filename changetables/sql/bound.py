"""What the binders of queries hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..algebra import Relation
from ..binding import Place, Scope
from ..expressions import Expression


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound query, with the places of its columns."""

    relation: Relation
    places: tuple[Place | None, ...]


@dataclass(frozen=True, slots=True)
class Cte:
    """A bound CTE. `relations` is what each use of it counts."""

    relation: Relation
    names: tuple[str, ...]
    relations: int


@dataclass(frozen=True, slots=True)
class Around:
    """What a query sees of the text around it: CTEs, and the scope of the query that it is a subquery of, whose columns
    it may name anywhere if it is `free`."""

    ctes: Mapping[str, Cte] = field(default_factory=dict)
    scope: Scope | None = None
    free: bool = False


@dataclass(frozen=True, slots=True)
class Sorting:
    """One item of ORDER BY: an output by its position, or else another expression."""

    position: int | None
    expression: Expression | None
    descending: bool
    nulls_first: bool
