"""The scalar functions, and the operators that are functions: from sqlglot's nodes to bound calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlglot import exp

from .. import coercion
from ..expressions import Call, Expression
from ..types import BOOL, DATE
from .text import SqlText

Bind: TypeAlias = Callable[[exp.Expr], Expression]

_JSON_HINT = "store the parts that a view needs as columns"
_JSON_OPERATORS: dict[type[exp.Expr], str] = {
    exp.JSONExtract: "->",
    exp.JSONExtractScalar: "->>",
    exp.JSONBExtract: "#>",
    exp.JSONBExtractScalar: "#>>",
}


def bind_function(node: exp.Expr, bind: Bind, source: SqlText) -> Expression | None:
    """The bound call, None for a node that is not known here. `bind` binds an argument; use it exactly once for each.

    Operators come here too, after a check that their operands stand as PostgreSQL's precedence has them.
    """
    binder = _BINDERS.get(type(node))
    return None if binder is None else binder(node, bind, source)


def _named(node: exp.Expr, bind: Bind, source: SqlText) -> Expression | None:
    """A function that is written as its name and its arguments."""
    name = source.word(node)
    if name == "date" and len(node.expressions) == 1:
        return source.typed(node, coercion.cast, bind(node.expressions[0]), DATE)
    if name not in coercion.FUNCTION_NAMES:
        return None
    return _applied(node, name, [bind(argument) for argument in node.expressions], source)


def _applied(node: exp.Expr, name: str, arguments: Sequence[Expression], source: SqlText) -> Expression:
    return source.typed(node, coercion.function, name, arguments)


def _substring(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "start", "length")
    parts = (node.this, node.args.get("start"), node.args.get("length"))
    return _applied(node, "substring", [bind(part) for part in parts if part is not None], source)


def _trim(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "position", "expression")
    sides = {"LEADING": "ltrim", "TRAILING": "rtrim"}
    name = sides.get(str(node.args.get("position") or "").upper(), "btrim")
    parts = (node.this, node.args.get("expression"))
    return _applied(node, name, [bind(part) for part in parts if part is not None], source)


def _position(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "substr")
    return _applied(node, "position", [bind(node.args["substr"]), bind(node.this)], source)


def _extract(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "expression")
    field = coercion.unknown(str(node.this.this))
    return _applied(node, "extract", [field, bind(node.expression)], source)


def _power(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "expression")
    return source.typed(node, coercion.power, bind(node.this), bind(node.expression))


def _like(node: exp.Expr, bind: Bind, source: SqlText) -> Expression | None:
    """ILIKE, and LIKE or ILIKE with ESCAPE. The NOT is a mark on the inner node."""
    inner = node.this if type(node) is exp.Escape else node
    if type(inner) not in (exp.Like, exp.ILike):
        return None
    source.only(inner, "this", "expression", "negate")
    escape = bind(node.expression) if type(node) is exp.Escape else None
    ignore_case = type(inner) is exp.ILike
    value, pattern = bind(inner.this), bind(inner.expression)
    matched = source.typed(node, lambda: coercion.like(value, pattern, escape, ignore_case=ignore_case))
    return Call("not", (matched,), BOOL) if inner.args.get("negate") else matched


def _at_time_zone(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "zone")
    return source.typed(node, coercion.at_time_zone, bind(node.this), bind(node.args["zone"]))


def _interval(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    source.only(node, "this", "unit")
    unit = node.args.get("unit")
    text = str(node.this.this)
    return source.typed(node, coercion.interval, text, "" if unit is None else str(unit.this))


def _cast(node: exp.Expr, bind: Bind, source: SqlText) -> Expression | None:
    """'1 day'::interval: the only cast to a type that no column has."""
    literal = node.this
    known = type(node.args["to"]) is exp.DataType and node.args["to"].this == exp.DType.INTERVAL
    if not known or type(literal) is not exp.Literal or not literal.args.get("is_string"):
        return None
    source.only(node, "this", "to")
    return source.typed(node, coercion.interval, str(literal.this))


def _json(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    raise source.unsupported(f"operator {_JSON_OPERATORS[type(node)]} on json", source.place(node), _JSON_HINT)


def _regular_expression(node: exp.Expr, bind: Bind, source: SqlText) -> Expression:
    raise source.unsupported("regular expressions", source.place(node), "use LIKE, ILIKE or starts_with()")


_BINDERS: dict[type[exp.Expr], Callable[[exp.Expr, Bind, SqlText], Expression | None]] = {
    exp.Anonymous: _named,
    exp.Substring: _substring,
    exp.Trim: _trim,
    exp.StrPosition: _position,
    exp.Extract: _extract,
    exp.Pow: _power,
    exp.ILike: _like,
    exp.Escape: _like,
    exp.AtTimeZone: _at_time_zone,
    exp.Interval: _interval,
    exp.Cast: _cast,
    **dict.fromkeys(_JSON_OPERATORS, _json),
    exp.RegexpLike: _regular_expression,
    exp.RegexpILike: _regular_expression,
    exp.SimilarTo: _regular_expression,
}
