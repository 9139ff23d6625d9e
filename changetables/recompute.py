"""The oracle: a relation evaluated from scratch over all rows of its tables. Slow and obvious; every other way must
agree with it.

    recompute(relation, tables, rows) = the bag of rows of the relation

It shares no code with the compiled operators: expressions are walked node by node (`evaluate`), sums are taken over all
rows of a group at once. Only the smallest arithmetic (division of numerics, the last step of a variance) comes from
`numbers` and `variance`. The one thing that is not obvious keeps it usable: inner joins go by a dict of the join keys.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from .algebra import (
    Apply,
    Distinct,
    Filter,
    Group,
    Join,
    Keyed,
    Order,
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
from .errors import OVERFLOW_HINT, DataError, InternalError
from .evaluate import canonical, compared, evaluate, is_nan
from .expressions import Aggregate, Call, ColumnRef, Expression, Literal
from .literals import EXACT
from .numbers import DECIMAL_NAN, decimal_avg, decimal_value
from .query_subqueries import more_than_one, with_row
from .schema import Table
from .types import NAN, Row, Value
from .variance import float_variance, numeric_variance

#: The hidden column that says how often a row of a view counts.
MULTIPLICITY = "*"
#: Differences that `same_bag` reports; more would hide the first ones.
DIFFERENCES_MAX = 20


def recompute(relation: Relation, tables: Mapping[str, Table], rows: Mapping[str, Iterable[Row]]) -> list[Row]:
    """All rows, a row as often as it occurs; in the order of a Top that is the root, else in no particular one.

    `rows` are physical tuples by table. A view that is read here is a table too, and a hidden column "*" of it says how
    often a row counts.
    """
    complete = {
        name: [_complete(row, tables[name]) for row in rows[name]]
        for name in dict.fromkeys(scan.table for scan in scans(relation))
    }
    return _Oracle(tables, complete).rows(relation)


def _complete(row: Row, table: Table) -> Row:
    """A row that is older than the last columns of its table has their defaults; every NaN is the one NaN."""
    defaults = tuple(column.default for column in table.columns[len(row) :])
    return _canonical_row(row + defaults)


def _canonical_row(row: Iterable[Value]) -> Row:
    return tuple(canonical(value) for value in row)


class _Oracle:
    """Evaluates relations over the rows of all tables."""

    def __init__(self, tables: Mapping[str, Table], stored: Mapping[str, Sequence[Row]]) -> None:
        self._tables, self._stored = tables, stored

    def rows(self, relation: Relation) -> list[Row]:
        match relation:
            case Scan():
                return self._scanned(relation)
            case Values():
                return [_canonical_row(row) for row in relation.rows]
            case Filter():
                return self._block(relation)
            case Project():
                return [_values([o.expression for o in relation.outputs], row) for row in self.rows(relation.input)]
            case Join():
                return self._block(relation) if relation.kind == "inner" else self._outer_join(relation)
            case Semi():
                return self._semi_join(relation)
            case Group():
                return _grouped(relation, self.rows(relation.input))
            case Distinct():
                return list(dict.fromkeys(self.rows(relation.input)))
            case SetOp():
                return _combined(relation, self.rows(relation.left), self.rows(relation.right))
            case Top():
                return _top(relation, self.rows(relation.input))
            case Keyed():
                return self.rows(relation.input)
            case Apply():
                return [(*row, self._subquery(relation, row)) for row in self.rows(relation.input)]
            case WithKey() | Slice():
                raise InternalError(f"{type(relation).__name__} is for the engine's own views, not for a query")

    def _subquery(self, apply: Apply, row: Row) -> Value:
        found = self.rows(with_row(apply, row))
        if apply.kind == "exists":
            return bool(found)
        if apply.kind != "any" and len(found) > 1:
            raise more_than_one(apply)
        if apply.kind == "scalar" or (apply.kind == "row" and not found):
            return found[0][0] if found else None
        assert apply.comparison is not None, "it compares"
        values = [evaluate(apply.comparison, (*row, *other)) for other in found]
        return True if True in values else None if None in values else False

    def _scanned(self, scan: Scan) -> list[Row]:
        columns = self._tables[scan.table].columns
        counts = [place for place, column in enumerate(columns) if column.hidden and column.name == MULTIPLICITY]
        found: list[Row] = []
        for row in self._stored[scan.table]:
            times = row[counts[0]] if counts else 1
            assert isinstance(times, int), "a multiplicity is an integer"
            found += [tuple(row[position] for position in scan.positions)] * times
        return found

    # --- joins ---

    def _block(self, relation: Relation) -> list[Row]:
        """Filters and inner joins, in any nesting, are one product of relations and one list of conditions: so a join
        finds its equalities wherever they were written, in ON or in WHERE."""
        parts, conditions = _parts(relation)
        starts = [sum(len(part.fields) for part in parts[:number]) for number in range(len(parts))]
        equalities = [found for condition in conditions if (found := _equality(condition, starts)) is not None]
        used = {id(equality.condition) for equality in equalities}
        others = [condition for condition in conditions if id(condition) not in used]
        joined = _joined_rows([self.rows(part) for part in parts], equalities)
        return [row for row in joined if _all_true(others, row)]

    def _outer_join(self, join: Join) -> list[Row]:
        left, right = self.rows(join.left), self.rows(join.right)
        matcher = _Matcher(join.condition, len(join.left.fields), right)
        pairs = [(place, partner) for place, row in enumerate(left) for partner in matcher.partners(row)]
        found = [left[place] + right[partner] for place, partner in pairs]
        if join.kind in ("left", "full"):
            matched = {place for place, _ in pairs}
            nulls = (None,) * len(join.right.fields)
            found += [row + nulls for place, row in enumerate(left) if place not in matched]
        if join.kind in ("right", "full"):
            matched = {partner for _, partner in pairs}
            nulls = (None,) * len(join.left.fields)
            found += [nulls + row for partner, row in enumerate(right) if partner not in matched]
        return found

    def _semi_join(self, semi: Semi) -> list[Row]:
        matcher = _Matcher(semi.condition, len(semi.left.fields), self.rows(semi.right))
        return [row for row in self.rows(semi.left) if any(True for _ in matcher.partners(row)) != semi.anti]


def _values(expressions: Iterable[Expression], row: Row) -> Row:
    return tuple(canonical(evaluate(expression, row)) for expression in expressions)


# --- conditions ---


def _conjuncts(condition: Expression | None) -> list[Expression]:
    """The conditions that AND connects. As in PostgreSQL the first one that is not TRUE ends the evaluation."""
    if condition is None:
        return []
    if isinstance(condition, Call) and condition.op == "and":
        return [conjunct for argument in condition.args for conjunct in _conjuncts(argument)]
    return [condition]


def _all_true(conditions: Iterable[Expression], row: Row) -> bool:
    return all(evaluate(condition, row) is True for condition in conditions)


def _shifted(expression: Expression, offset: int) -> Expression:
    """The expression over rows that have `offset` more columns in front."""
    if isinstance(expression, ColumnRef):
        position = expression.position + offset
        return ColumnRef(expression.source, position, expression.name, expression.type, expression.nullable)
    if isinstance(expression, Call):
        return Call(expression.op, tuple(_shifted(argument, offset) for argument in expression.args), expression.type)
    return expression


def _parts(relation: Relation) -> tuple[list[Relation], list[Expression]]:
    """What a nest of filters and inner joins is the product of, and the conditions over all columns of the product."""
    if isinstance(relation, Filter):
        parts, conditions = _parts(relation.input)
        return parts, conditions + _conjuncts(relation.condition)
    if isinstance(relation, Join) and relation.kind == "inner":
        parts, conditions = _parts(relation.left)
        right_parts, right_conditions = _parts(relation.right)
        width = len(relation.left.fields)
        conditions = conditions + [_shifted(condition, width) for condition in right_conditions]
        return parts + right_parts, conditions + _conjuncts(relation.condition)
    return [relation], []


#: An expression over one part of a product, in terms of that part's columns.
_Side: TypeAlias = tuple[int, Expression]


class _Equality(NamedTuple):
    """left = right (or IS NOT DISTINCT FROM) of expressions over two different parts."""

    condition: Expression
    left: _Side
    right: _Side
    null_matches: bool


def _equality(condition: Expression, starts: Sequence[int]) -> _Equality | None:
    """An equality between two parts; None if the condition is anything else. `starts`: where each part begins."""
    if not isinstance(condition, Call) or condition.op not in ("=", "is_not_distinct"):
        return None
    left, right = (_side(argument, starts) for argument in condition.args)
    if left is None or right is None or left[0] == right[0] or left[1].type.kind != right[1].type.kind:
        return None
    return _Equality(condition, left, right, condition.op == "is_not_distinct")


def _side(expression: Expression, starts: Sequence[int]) -> _Side | None:
    parts = {max(n for n, start in enumerate(starts) if start <= position) for position in _positions(expression)}
    if len(parts) != 1:
        return None
    [part] = parts
    return part, _shifted(expression, -starts[part])


def _positions(expression: Expression) -> set[int]:
    if isinstance(expression, ColumnRef):
        return {expression.position}
    if isinstance(expression, Call):
        return set().union(*(_positions(argument) for argument in expression.args))
    return set()


class _Pair(NamedTuple):
    """An equality seen from the part that is joined next: its own side, and the other one."""

    mine: Expression
    other: _Side
    null_matches: bool


def _pairs(equalities: Iterable[_Equality], part: int, done: Iterable[int]) -> list[_Pair]:
    pairs = []
    for equality in equalities:
        for mine, other in ((equality.left, equality.right), (equality.right, equality.left)):
            if mine[0] == part and other[0] in done:
                pairs.append(_Pair(mine[1], other, equality.null_matches))
    return pairs


def _joined_rows(sources: Sequence[Sequence[Row]], equalities: Sequence[_Equality]) -> Iterator[Row]:
    """The product of all sources where the equalities hold. Sources are added one by one, each after one that it is
    joined with, so that no step is a product if that can be avoided."""
    partial: list[dict[int, Row]] = [{}]
    done: list[int] = []
    while len(done) < len(sources):
        waiting = [source for source in range(len(sources)) if source not in done]
        connected = [source for source in waiting if _pairs(equalities, source, done)]
        source = (connected or waiting)[0]
        pairs = _pairs(equalities, source, done)
        by_key = _by_key(sources[source], [pair.mine for pair in pairs])
        partial = [
            {**joined, source: row} for joined in partial for row in _found(by_key, pairs, _other_values(pairs, joined))
        ]
        done.append(source)
    return (tuple(value for source in range(len(sources)) for value in row[source]) for row in partial)


def _other_values(pairs: Iterable[_Pair], joined: Mapping[int, Row]) -> Row:
    return tuple(canonical(evaluate(pair.other[1], joined[pair.other[0]])) for pair in pairs)


def _by_key(rows: Iterable[Row], expressions: Sequence[Expression]) -> dict[Row, list[Row]]:
    by_key: dict[Row, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[_values(expressions, row)].append(row)
    return by_key


def _found(by_key: Mapping[Row, list[Row]], pairs: Sequence[_Pair], key: Row) -> Sequence[Row]:
    """NULL is equal to nothing, not even to NULL; only IS NOT DISTINCT FROM finds it."""
    if any(value is None and not pair.null_matches for value, pair in zip(key, pairs, strict=True)):
        return ()
    return by_key.get(key, ())


class _Matcher:
    """Finds the rows of the right side with which a row of the left side makes the condition TRUE."""

    def __init__(self, condition: Expression | None, left_width: int, right: Sequence[Row]) -> None:
        conditions = _conjuncts(condition)
        starts = (0, left_width)
        equalities = [found for part in conditions if (found := _equality(part, starts)) is not None]
        used = {id(equality.condition) for equality in equalities}
        self._others = [part for part in conditions if id(part) not in used]
        self._pairs = _pairs(equalities, 1, [0])
        # The place of a row goes along as its last value, because equal rows are told apart.
        self._numbered = [(*row, place) for place, row in enumerate(right)]
        self._by_key = _by_key(self._numbered, [pair.mine for pair in self._pairs])
        self._not_in = None if self._pairs else next(filter(None, (_not_in(p, starts) for p in self._others)), None)
        self._by_value = _by_key(self._numbered, [self._not_in.mine]) if self._not_in is not None else {}

    def partners(self, left: Row) -> Iterator[int]:
        for *right, place in self._candidates(left):
            if _all_true(self._others, left + tuple(right)):
                assert isinstance(place, int), "it was put there by enumerate"
                yield place

    def _candidates(self, left: Row) -> Iterable[Row]:
        """All rows among which the partners are."""
        if self._not_in is None:
            return _found(self._by_key, self._pairs, _other_values(self._pairs, {0: left}))
        [value] = _other_values([self._not_in], {0: left})
        if value is None:
            return self._numbered
        return [*self._by_value.get((value,), ()), *self._by_value.get((None,), ())]


def _not_in(condition: Expression, starts: Sequence[int]) -> _Pair | None:
    """(x = y) IS NOT FALSE, from the side of y: what NOT IN asks. It is false only where both are known and differ."""
    match condition:
        case Call("is_distinct", (equality, Literal(False))):
            found = _equality(equality, starts)
            if found is not None and not found.null_matches:
                return _pairs([found], 1, [0])[0]
    return None


# --- groups ---


def _grouped(group: Group, rows: Iterable[Row]) -> list[Row]:
    groups: dict[Row, list[Row]] = {}
    for row in rows:
        groups.setdefault(_values(group.keys, row), []).append(row)
    if not group.keys and not groups:
        groups[()] = []  # Without GROUP BY there is one row, whatever is selected.
    return [
        key + tuple(_aggregated(aggregate, members) for aggregate in group.aggregates)
        for key, members in groups.items()
    ]


def _aggregated(aggregate: Aggregate, rows: Sequence[Row]) -> Value:
    if aggregate.kind == "count_star" or aggregate.argument is None:
        return len(rows)
    values = [canonical(evaluate(aggregate.argument, row)) for row in rows]
    present = [value for value in values if value is not None]
    if aggregate.distinct:
        present = list(dict.fromkeys(present))
    if aggregate.kind == "count":
        return len(present)
    return _of_values(aggregate.kind, present) if present else None


def _of_values(kind: str, values: Sequence[Value]) -> Value:
    """An aggregate of values of one type, none of them NULL."""
    match kind:
        case "min":
            return functools.reduce(lambda first, value: value if compared(value, first) < 0 else first, values)
        case "max":
            return functools.reduce(lambda first, value: value if compared(value, first) > 0 else first, values)
        case "bool_and":
            return all(value is True for value in values)
        case "bool_or":
            return any(value is True for value in values)
        case "sum" | "avg":
            return _summed(values, average=kind == "avg")
        case "var_pop" | "var_samp" | "stddev_pop" | "stddev_samp":
            return _variance(values, sample=kind.endswith("samp"), root=kind.startswith("stddev"))
    raise InternalError(f"the oracle knows no aggregate {kind!r}")


def _summed(values: Sequence[Value], average: bool) -> Value:
    if isinstance(values[0], float):
        return _float_sum([value for value in values if isinstance(value, float)], average)
    if isinstance(values[0], Decimal):
        total = _decimal_sum([value for value in values if isinstance(value, Decimal)])
        return decimal_avg(total, len(values)) if average else total
    integers = [value for value in values if isinstance(value, int)]
    return decimal_avg(Decimal(sum(integers)), len(values)) if average else sum(integers)


def _float_sum(values: Sequence[float], average: bool) -> float:
    """The exact sum (or the exact average), rounded once."""
    infinities = {value for value in values if math.isinf(value)}
    if any(math.isnan(value) for value in values) or len(infinities) == 2:
        return NAN
    if infinities:
        return infinities.pop()
    exact = sum(map(Fraction, values), Fraction())
    try:
        return float(exact / len(values) if average else exact)
    except OverflowError:
        raise DataError("value out of range: overflow", hint=OVERFLOW_HINT) from None


def _decimal_sum(values: Sequence[Decimal]) -> Decimal:
    infinities = {value for value in values if value.is_infinite()}
    if any(value.is_nan() for value in values) or len(infinities) == 2:
        return DECIMAL_NAN
    if infinities:
        return infinities.pop()
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return decimal_value(total)


def _variance(values: Sequence[Value], sample: bool, root: bool) -> Value:
    """NaN as soon as a value is not finite, but NULL for a sample of one, whatever it is: as in PostgreSQL."""
    count = len(values)
    if sample and count < 2:
        return None
    numbers = [value for value in values if isinstance(value, int | float | Decimal)]
    floats = isinstance(values[0], float)
    if any(is_nan(number) or abs(number) == math.inf for number in numbers):
        return NAN if floats else DECIMAL_NAN
    if floats:
        exact = [Fraction(number) for number in numbers]
        squares = sum((number * number for number in exact), Fraction())
        return float_variance(count, sum(exact, Fraction()), squares, sample, root)
    decimals = [Decimal(number) for number in numbers]
    total = functools.reduce(EXACT.add, decimals)
    squares_total = functools.reduce(EXACT.add, [EXACT.multiply(number, number) for number in decimals])
    return numeric_variance(count, total, squares_total, sample, root)


# --- sets and order ---


def _combined(operation: SetOp, left: list[Row], right: list[Row]) -> list[Row]:
    """Rows are equal as keys of a dict: NULL is NULL there, and NaN the one NaN."""
    if operation.kind == "union":
        return left + right if operation.all else list(dict.fromkeys(left + right))
    ours, theirs = Counter(left), Counter(right)
    if not operation.all:
        wanted = operation.kind == "intersect"
        return [row for row in ours if (row in theirs) == wanted]
    result = ours & theirs if operation.kind == "intersect" else ours - theirs
    return list(result.elements())


def _top(top: Top, rows: list[Row]) -> list[Row]:
    whole_row = [
        Order(ColumnRef(0, place, field.name, field.type, field.nullable), descending=False, nulls_first=False)
        for place, field in enumerate(top.fields)
    ]
    order = [*top.order, *whole_row]
    sort_key = functools.cmp_to_key(functools.partial(_order_of, order))
    ordered = sorted(rows, key=lambda row: sort_key(_values([item.expression for item in order], row)))
    return ordered[top.offset :] if top.limit is None else ordered[top.offset : top.offset + top.limit]


def _order_of(order: Sequence[Order], first: Row, second: Row) -> int:
    for item, one, two in zip(order, first, second, strict=True):
        if one is None or two is None:
            found = (one is None) - (two is None)
            found = -found if item.nulls_first else found
        else:
            found = -compared(one, two) if item.descending else compared(one, two)
        if found:
            return found
    return 0


# --- comparing bags ---


class Difference(NamedTuple):
    """A row that two bags do not hold equally often: `first` times in the first one, `second` times in the second."""

    row: tuple[object, ...]
    first: int
    second: int

    def __str__(self) -> str:
        return f"{self.row!r}: {self.first} times in the first, {self.second} times in the second"


def same_bag(first: Iterable[tuple[object, ...]], second: Iterable[tuple[object, ...]]) -> list[Difference]:
    """The differences of two bags of SQL values, at most DIFFERENCES_MAX; empty if the bags are equal."""
    ours, theirs = _counted(first), _counted(second)
    rows = {key: row for counts in (ours, theirs) for key, (row, _) in counts.items()}
    differences = [
        Difference(row, ours[key][1], theirs[key][1]) for key, row in rows.items() if ours[key][1] != theirs[key][1]
    ]
    return sorted(differences, key=repr)[:DIFFERENCES_MAX]


_Key: TypeAlias = tuple[tuple[str, object], ...]
_Counts: TypeAlias = "defaultdict[_Key, tuple[tuple[object, ...], int]]"


def _counted(rows: Iterable[tuple[object, ...]]) -> _Counts:
    counts: _Counts = defaultdict(lambda: ((), 0))
    for row in rows:
        # The Python type is part of the key: True, 1, 1.0 and Decimal(1) are equal in Python, not in a result.
        key = tuple((type(value).__name__, canonical(value)) for value in row)
        counts[key] = (row, counts[key][1] + 1)
    return counts
