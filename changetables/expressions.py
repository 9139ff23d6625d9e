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
    """Column `position` of the row of `source`: see `algebra` for relations, `branches` for the parts of a plan."""

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
    """`kind` is one of AGGREGATES; count_star has no argument. `distinct`: of each value once. FILTER (WHERE f) is
    written as an argument CASE WHEN f THEN x END, because no aggregate but count_star sees NULL."""

    kind: str
    argument: Expression | None
    type: Type
    distinct: bool = False


Expression: TypeAlias = Literal | ColumnRef | Call

AGGREGATES = frozenset(
    [
        "count_star",
        "count",
        "sum",
        "avg",
        "min",
        "max",
        "var_pop",
        "var_samp",
        "stddev_pop",
        "stddev_samp",
        "bool_and",
        "bool_or",
    ]
)

#: The subject of a function comes first, also where SQL writes it last: date_trunc and extract are (moment, field),
#: strpos is (text, part). add_interval: (moment, months, days, microseconds). concat_ws: (separator, part, part, ...).
#: "interval" (months, days, microseconds) stands only while an expression is bound: no interval is ever a value.
OPERATORS = frozenset(
    {
        "+", "-", "*", "/", "%", "neg", "=", "<>", "<", "<=", ">", ">=", "and", "or", "not",
        "is_null", "is_not_null", "is_distinct", "is_not_distinct", "in",
        "case", "coalesce", "nullif", "greatest", "least", "cast",
        "abs", "ceil", "floor", "round", "trunc", "sign", "sqrt", "exp", "ln", "log", "log10", "power", "div",
        "gcd", "lcm",
        "||", "concat", "concat_ws", "lower", "upper", "initcap", "length", "octet_length", "substring",
        "left", "right", "btrim", "ltrim", "rtrim", "lpad", "rpad", "replace", "translate", "strpos", "starts_with",
        "repeat", "reverse", "split_part", "ascii", "chr", "like", "ilike", "like_escape",
        "add_days", "days_between", "add_interval", "date_trunc", "extract", "date_part", "make_date",
    }
)  # fmt: skip
