"""Scalar expressions of a view, bound to columns: plain immutable trees.

They are evaluated twice, on purpose, by code that shares nothing: compiled to Python for propagation
(`compiler.py`), and walked node by node by the oracle (`recompute.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .types import Type, Value


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value
    type: Type


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """Column `position` (physical) of the row of `source`, an index into Definition.sources."""

    source: int
    position: int
    name: str
    type: Type
    nullable: bool


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function on arguments. `op` is one of OPERATORS.

    case: (condition, result, condition, result, ..., else). in: (value, item, item, ...).
    cast: one argument, `type` is the target.
    """

    op: str
    args: tuple[Expression, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`kind`: count_star (argument None), count, sum, avg. Only in outputs of an aggregate view."""

    kind: str
    argument: Expression | None
    type: Type


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The value of Definition.group_by[index]. Only in outputs of an aggregate view."""

    index: int
    type: Type


Expression: TypeAlias = Literal | ColumnRef | Call | Aggregate | GroupKey

OPERATORS = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "%",
        "neg",
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "and",
        "or",
        "not",
        "is_null",
        "is_not_null",
        "is_distinct",
        "is_not_distinct",
        "in",
        "case",
        "coalesce",
        "nullif",
        "cast",
        "abs",
        "lower",
        "upper",
        "length",
        "||",
        "like",
    ]
)
