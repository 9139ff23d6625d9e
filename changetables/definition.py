"""What a view is: the one form that SQL and the builder both give, and that plans and the oracle read.

    SELECT outputs FROM sources WHERE equalities AND filters GROUP BY group_by

`equalities` are the equi-join conditions between two different sources, wherever they were written (ON, USING,
WHERE). Everything else that was ANDed stands in `filters`. Both are in the order of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from .expressions import ColumnRef, Expression
from .types import Type


@dataclass(frozen=True, slots=True)
class Source:
    """One table of FROM. A self-join has two sources with one table."""

    table: str
    alias: str


@dataclass(frozen=True, slots=True)
class Equality:
    """left.source < right.source; NULL joins nothing."""

    left: ColumnRef
    right: ColumnRef


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    expression: Expression
    type: Type


@dataclass(frozen=True, slots=True)
class Definition:
    """`group_by` is None for a view of plain rows, () for one aggregate row without GROUP BY."""

    sources: tuple[Source, ...]
    equalities: tuple[Equality, ...]
    filters: tuple[Expression, ...]
    group_by: tuple[Expression, ...] | None
    outputs: tuple[Output, ...]
