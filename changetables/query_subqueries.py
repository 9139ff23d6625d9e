"""Subqueries inside expressions of a query that is run once: what one says about each row is a further column.

A subquery that reads columns of the row around it is run once for each combination of their values, with these values
as constants, so that it finds its rows through keys and indexes; one that reads none is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from .access import Reader
from .algebra import (
    Apply,
    Distinct,
    Filter,
    Group,
    Join,
    Keyed,
    Order,
    Output,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Slice,
    Top,
    Values,
    WithKey,
    scans,
)
from .errors import ProgrammingError
from .expressions import Aggregate, Call, ColumnRef, Expression, Literal
from .query_code import Coder
from .query_nodes import Columns, Node, indented
from .rewriting import conjuncts, is_safe, moved, positions
from .types import Row, Value

#: Results of one subquery that are remembered, one for each combination of the values that it reads.
RESULTS_MAX = 10_000

#: Kinds whose equal values may be written differently: 1.0 and 1.00, 0.0 and -0.0.
_INEXACT = ("float", "decimal")


# --- the columns that a subquery reads of the row around it ---


def with_row(apply: Apply, row: Row) -> Relation:
    """The subquery for one row of the input."""

    def leaf(reference: ColumnRef) -> Expression:
        return Literal(row[reference.position], reference.type)

    return _changed(apply.query, leaf, 1)


def outer_columns(apply: Apply) -> tuple[ColumnRef, ...]:
    """The columns of the input that the subquery reads, each once."""
    found: dict[int, ColumnRef] = {}

    def leaf(reference: ColumnRef) -> Expression:
        found[reference.position] = reference
        return reference

    _changed(apply.query, leaf, 1)
    return tuple(found[position] for position in sorted(found))


def _changed(relation: Relation, leaf: Callable[[ColumnRef], Expression], level: int) -> Relation:
    """The relation with every column replaced that is read `level` queries further out."""

    def change(expression: Expression) -> Expression:
        if isinstance(expression, ColumnRef):
            return leaf(expression) if expression.source == level else expression
        if isinstance(expression, Call):
            return replace(expression, args=tuple(map(change, expression.args)))
        return expression

    def optional(expression: Expression | None) -> Expression | None:
        return None if expression is None else change(expression)

    def output(made: Output) -> Output:
        return replace(made, expression=change(made.expression))

    def aggregate(made: Aggregate) -> Aggregate:
        return replace(made, argument=optional(made.argument))

    def order(item: Order) -> Order:
        return replace(item, expression=change(item.expression))

    match relation:
        case Scan() | Values() | Slice():
            return relation
        case Filter():
            below = _changed(relation.input, leaf, level)
            return Filter(below, change(relation.condition))
        case Project():
            return Project(_changed(relation.input, leaf, level), tuple(map(output, relation.outputs)))
        case Join() | Semi():
            left, right = _changed(relation.left, leaf, level), _changed(relation.right, leaf, level)
            return replace(relation, left=left, right=right, condition=optional(relation.condition))
        case SetOp():
            left, right = _changed(relation.left, leaf, level), _changed(relation.right, leaf, level)
            return replace(relation, left=left, right=right)
        case Group():
            keys, aggregates = tuple(map(change, relation.keys)), tuple(map(aggregate, relation.aggregates))
            return replace(relation, input=_changed(relation.input, leaf, level), keys=keys, aggregates=aggregates)
        case Top():
            below = _changed(relation.input, leaf, level)
            return replace(relation, input=below, order=tuple(map(order, relation.order)))
        case Distinct() | WithKey() | Keyed():
            return replace(relation, input=_changed(relation.input, leaf, level))
        case Apply():
            return replace(
                relation,
                input=_changed(relation.input, leaf, level),
                query=_changed(relation.query, leaf, level + 1),
                comparison=optional(relation.comparison),
            )


def more_than_one(apply: Apply) -> ProgrammingError:
    where = f" at line {apply.place[0]}, column {apply.place[1]}" if apply.place else ""
    return ProgrammingError(
        f"more than one row returned by a subquery used as an expression{where}",
        hint="choose one with MAX, MIN or LIMIT 1, or compare with IN",
    )


# --- the operator ---


class ApplyNode(Node):
    """`plan` makes the nodes of a subquery whose outer columns are constants."""

    def __init__(self, coder: Coder, below: Node, apply: Apply, plan: Callable[[Relation], Node]) -> None:
        self._below, self._apply, self._plan = below, apply, plan
        self._outer = outer_columns(apply)
        self.width, self.estimate, self.restricted = below.width + 1, below.estimate, below.restricted
        self._comparison = None
        if apply.comparison is not None:
            self._comparison = _comparison(coder, apply.comparison, below.width)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (*self._below.names, "subquery")

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._applied(reader, self._below.rows(reader))

    def _applied(self, reader: Reader, rows: Iterable[Row]) -> Iterator[Row]:
        known: dict[tuple[object, ...], _Result] = {}
        for row in rows:
            key = tuple(self._written(row))
            result = known.get(key)
            if result is None:
                if len(known) >= RESULTS_MAX:
                    known.clear()
                result = known[key] = self._result(reader, row)
            yield (*row, result.value_for(row))

    def _written(self, row: Row) -> Iterator[object]:
        for reference in self._outer:
            value = row[reference.position]
            yield repr(value) if reference.type.kind in _INEXACT else value

    def _result(self, reader: Reader, row: Row) -> _Result:
        found = self._plan(with_row(self._apply, row)).rows(reader)
        if self._apply.kind == "exists":
            return _Known(next(found, None) is not None)
        if self._apply.kind != "any":
            first = next(found, None)
            if first is not None and next(found, None) is not None:
                raise more_than_one(self._apply)
            if first is None or self._apply.kind == "scalar":
                return _Known(None if first is None else first[0])
            found = iter([first])
        assert self._comparison is not None, "it compares"
        return self._comparison(found)

    def usable(self, columns: Columns) -> Columns:
        return self._below.usable(tuple(place for place in columns if place < self._below.width))

    def is_unique(self, columns: Columns) -> bool:
        return self._below.is_unique(columns)

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return self._applied(reader, self._below.fetch(reader, columns, keys))

    def explain(self, columns: Columns = ()) -> list[str]:
        below = indented(self._below.explain(columns))
        if not self._outer:
            return ["with a subquery, run once", *below, *indented(self._plan(self._apply.query).explain())]
        read = ", ".join(self._below.names[reference.position] for reference in self._outer)
        tables = ", ".join(dict.fromkeys(scan.table for scan in scans(self._apply.query))) or "constants"
        return [f"with a subquery over {tables}, run for each value of {read}", *below]


class _Result:
    """What is known of a subquery for the same outer values."""

    def value_for(self, row: Row) -> Value:
        raise NotImplementedError


class _Known(_Result):
    def __init__(self, value: Value) -> None:
        self._value = value

    def value_for(self, row: Row) -> Value:
        return self._value


class _Any(_Result):
    """A comparison with each row: TRUE for one is TRUE, else NULL for one is NULL."""

    def __init__(self, value: Callable[[Row, Row], Value], found: Iterable[Row]) -> None:
        self._value, self._rows = value, list(found)

    def value_for(self, row: Row) -> Value:
        unknown = False
        for other in self._rows:
            value = self._value(row, other)
            if value is True:
                return True
            unknown = unknown or value is None
        return None if unknown else False


class _In(_Result):
    """The same for equalities, by a hash."""

    def __init__(self, left: Callable[[Row], Row | None], found: Iterable[Row | None]) -> None:
        self._left = left
        keys = {key for key in found if key is not None}
        self._known = {key for key in keys if None not in key}
        self._with_null = keys - self._known

    def value_for(self, row: Row) -> Value:
        key = self._left(row)
        assert key is not None, "NULL is a part of it"
        if key in self._known:
            return True
        others = self._with_null if None not in key else self._with_null | self._known
        return None if any(map(_maybe_equal, [key] * len(others), others)) else False


def _maybe_equal(one: Sequence[Value], other: Sequence[Value]) -> bool:
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def _comparison(coder: Coder, comparison: Expression, width: int) -> Callable[[Iterator[Row]], _Result]:
    sides = [_sides(part, width) for part in conjuncts(comparison)]
    pairs = [pair for pair in sides if pair is not None]
    if len(pairs) == len(sides):
        with_null = [True] * len(pairs)
        left = coder.key([ours for ours, _ in pairs], with_null)
        right = coder.key([theirs for _, theirs in pairs], with_null)
        return lambda found: _In(left, map(right, found))
    value = coder.pair_value(comparison, width)
    return lambda found: _Any(value, found)


def _sides(part: Expression, width: int) -> tuple[Expression, Expression] | None:
    """The two sides of an equality, each over its own row, if a hash can find it."""
    if not isinstance(part, Call) or part.op != "=" or not is_safe(part):
        return None
    ours, theirs = part.args
    if ours.type.kind != theirs.type.kind or any(place < width for place in positions(theirs)):
        return None
    return None if any(place >= width for place in positions(ours)) else (ours, moved(theirs, -width))
