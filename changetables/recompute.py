"""The oracle: a view evaluated from scratch over its base rows. Slow and obvious; every other way must agree with it.

    recompute(definition, B1, ..., Bn) = the bag of outputs of SELECT ... FROM B1, ..., Bn WHERE ... GROUP BY ...

It shares no code with the compiled operators: expressions are walked node by node with SQL's three-valued logic, sums
are taken over all rows of a group at once. Only the smallest arithmetic (numeric division) comes from `numbers`.
"""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, TypeAlias, TypeVar

from .definition import Definition, Equality
from .errors import DataError, InternalError
from .expressions import Aggregate, Call, ColumnRef, Expression, GroupKey, Literal
from .literals import EXACT, decimal_of_digits, fit, float_in_range, value_of_text
from .numbers import DECIMAL_NAN, decimal_avg, decimal_div, decimal_value
from .schema import Table
from .types import INT_MAX, INT_MIN, NAN, Row, Type, Value

#: Significant digits of a float that PostgreSQL takes over into a numeric (DBL_DIG).
FLOAT_DIGITS = 15
#: Exponents of ten from which PostgreSQL writes a float with an exponent.
FLOAT_TEXT_EXPONENT_MIN, FLOAT_TEXT_EXPONENT_MAX = -4, 14
#: Differences that `same_bag` reports; more would hide the first ones.
DIFFERENCES_MAX = 20

_AnyValue = TypeVar("_AnyValue")
#: One row of each source, in the order of Definition.sources.
Joined: TypeAlias = tuple[Row, ...]


def recompute(definition: Definition, tables: Mapping[str, Table], rows: Mapping[str, Iterable[Row]]) -> list[Row]:
    """All output rows, in no particular order, a row as often as it occurs. `rows` are physical tuples by table."""
    joined = _joined_rows(definition, _source_rows(definition, tables, rows))
    selected = (row for row in joined if all(_is_true(filter_, row) for filter_ in definition.filters))
    if definition.group_by is None:
        return [tuple(evaluate(output.expression, Context(row)) for output in definition.outputs) for row in selected]
    return _grouped(definition, definition.group_by, selected)


# --- FROM and WHERE ---


def _source_rows(
    definition: Definition, tables: Mapping[str, Table], rows: Mapping[str, Iterable[Row]]
) -> list[list[Row]]:
    read = {source.table: list(rows[source.table]) for source in definition.sources}
    return [[_complete(row, tables[source.table]) for row in read[source.table]] for source in definition.sources]


def _complete(row: Row, table: Table) -> Row:
    """A row that is older than the last columns of its table has their defaults; every NaN is the one NaN."""
    defaults = tuple(column.default for column in table.columns[len(row) :])
    return tuple(_canonical(value) for value in row + defaults)


def _joined_rows(definition: Definition, sources: Sequence[Sequence[Row]]) -> Iterator[Joined]:
    """The product of all sources where the equalities hold. Sources are added one by one, by a dict of their keys."""
    order = _join_order(len(sources), definition.equalities)
    partial: list[dict[int, Row]] = [{}]
    done: set[int] = set()
    for source in order:
        pairs = [_sides(equality, source) for equality in definition.equalities]
        usable = [(mine, other) for mine, other in filter(None, pairs) if other.source in done]
        partial = _extended(partial, source, sources[source], usable)
        done.add(source)
    return (tuple(row[source] for source in range(len(sources))) for row in partial)


def _join_order(count: int, equalities: Sequence[Equality]) -> list[int]:
    """Each source after one that it is joined with, so that no step is a product if that can be avoided."""
    order: list[int] = []
    while len(order) < count:
        waiting = [source for source in range(count) if source not in order]
        connected = [
            source
            for source in waiting
            if any((sides := _sides(equality, source)) and sides[1].source in order for equality in equalities)
        ]
        order.append((connected or waiting)[0])
    return order


def _sides(equality: Equality, source: int) -> tuple[ColumnRef, ColumnRef] | None:
    """The column of `source` and the other one, None if the equality is about other sources."""
    if equality.left.source == source:
        return equality.left, equality.right
    if equality.right.source == source:
        return equality.right, equality.left
    return None


def _extended(
    partial: list[dict[int, Row]], source: int, rows: Sequence[Row], pairs: Sequence[tuple[ColumnRef, ColumnRef]]
) -> list[dict[int, Row]]:
    by_key: dict[Row, list[Row]] = defaultdict(list)
    for row in rows:
        key = tuple(row[mine.position] for mine, _ in pairs)
        if None not in key:  # NULL joins nothing.
            by_key[key].append(row)
    return [
        {**joined, source: row}
        for joined in partial
        for row in by_key.get(tuple(joined[other.source][other.position] for _, other in pairs), ())
    ]


def _is_true(condition: Expression, row: Joined) -> bool:
    return evaluate(condition, Context(row)) is True


# --- GROUP BY ---


def _grouped(definition: Definition, keys: tuple[Expression, ...], rows: Iterable[Joined]) -> list[Row]:
    groups: dict[Row, list[Joined]] = {}
    for row in rows:
        group = tuple(evaluate(key, Context(row)) for key in keys)
        groups.setdefault(group, []).append(row)
    if not keys and not groups:
        groups[()] = []  # A view without GROUP BY has one row, whatever it selects.
    return [
        tuple(evaluate(output.expression, Context((), group, members)) for output in definition.outputs)
        for group, members in groups.items()
    ]


def _aggregated(aggregate: Aggregate, rows: Sequence[Joined]) -> Value:
    if aggregate.kind == "count_star" or aggregate.argument is None:
        return len(rows)
    values = [evaluate(aggregate.argument, Context(row)) for row in rows]
    present = [value for value in values if value is not None]
    if aggregate.kind == "count":
        return len(present)
    if not present:
        return None
    kind, average = aggregate.argument.type.kind, aggregate.kind == "avg"
    if kind == "float":
        return _float_aggregate([value for value in present if isinstance(value, float)], average)
    if kind == "decimal":
        total = _decimal_sum([value for value in present if isinstance(value, Decimal)])
        return decimal_avg(total, len(present)) if average else total
    integers = [value for value in present if isinstance(value, int)]
    return decimal_avg(Decimal(sum(integers)), len(present)) if average else sum(integers)


def _float_aggregate(values: Sequence[float], average: bool) -> float:
    """The exact sum (or the exact average), rounded once."""
    infinities = {value for value in values if math.isinf(value)}
    if any(math.isnan(value) for value in values) or len(infinities) == 2:
        return NAN
    if infinities:
        return infinities.pop()
    if average:
        return float(sum(map(Fraction, values), Fraction()) / len(values))
    try:
        return math.fsum(values)
    except OverflowError:  # fsum also gives up when only a partial sum is too large.
        return _rounded(sum(map(Fraction, values), Fraction()))


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        raise DataError("value out of range: overflow") from None


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


# --- expressions ---


@dataclass(frozen=True, slots=True)
class Context:
    """What an expression is evaluated over: one joined row, or one group with its rows."""

    row: Joined
    group: Row = ()
    members: Sequence[Joined] = ()


def evaluate(expression: Expression, context: Context) -> Value:
    """The value of an expression; None is NULL."""
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, ColumnRef):
        return context.row[expression.source][expression.position]
    if isinstance(expression, GroupKey):
        return context.group[expression.index]
    if isinstance(expression, Aggregate):
        return _aggregated(expression, context.members)
    return _canonical(_call(expression, context))


def _call(call: Call, context: Context) -> Value:
    lazy = _LAZY.get(call.op)
    if lazy is not None:
        return lazy(call, context)
    args = [evaluate(argument, context) for argument in call.args]
    total = _TOTAL.get(call.op)
    if total is not None:
        return total(*args)
    if any(value is None for value in args):
        return None  # All other operators are strict.
    strict = _STRICT.get(call.op)
    if strict is None:
        raise InternalError(f"the oracle knows no operator {call.op!r}")
    return strict(call, *args)


# Operators that do not evaluate all of their arguments.


def _and(call: Call, context: Context) -> Value:
    values: list[Value] = []
    for argument in call.args:
        values.append(evaluate(argument, context))
        if values[-1] is False:
            return False
    return None if None in values else True


def _or(call: Call, context: Context) -> Value:
    values: list[Value] = []
    for argument in call.args:
        values.append(evaluate(argument, context))
        if values[-1] is True:
            return True
    return None if None in values else False


def _case(call: Call, context: Context) -> Value:
    *branches, otherwise = call.args
    for test, result in zip(branches[::2], branches[1::2], strict=True):
        if evaluate(test, context) is True:
            return evaluate(result, context)
    return evaluate(otherwise, context)


def _coalesce(call: Call, context: Context) -> Value:
    for argument in call.args:
        value = evaluate(argument, context)
        if value is not None:
            return value
    return None


_LAZY: dict[str, Callable[[Call, Context], Value]] = {"and": _and, "or": _or, "case": _case, "coalesce": _coalesce}


# Operators that take NULL as a value.


def _same(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return left is right
    return _compared(left, right) == 0


def _in(value: Value, *items: Value) -> Value:
    if value is None:
        return None
    if any(item is not None and _compared(value, item) == 0 for item in items):
        return True
    return None if any(item is None for item in items) else False


def _nullif(left: Value, right: Value) -> Value:
    return None if left is not None and right is not None and _compared(left, right) == 0 else left


_TOTAL: dict[str, Callable[..., Value]] = {
    "is_null": lambda value: value is None,
    "is_not_null": lambda value: value is not None,
    "is_distinct": lambda left, right: not _same(left, right),
    "is_not_distinct": _same,
    "in": _in,
    "nullif": _nullif,
}


# Comparison.


def _compared(left: Value, right: Value) -> int:
    """-1, 0 or 1; NaN equals NaN and is above everything. Both sides are of one type, not NULL."""
    left_nan, right_nan = _is_nan(left), _is_nan(right)
    if left_nan or right_nan:
        return left_nan - right_nan
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bytes) and isinstance(right, bytes):
        return (left > right) - (left < right)
    if isinstance(left, datetime.datetime) and isinstance(right, datetime.datetime):
        return (left > right) - (left < right)
    if isinstance(left, datetime.date) and isinstance(right, datetime.date) and type(left) is type(right):
        return (left > right) - (left < right)
    if isinstance(left, int | float | Decimal) and type(left) is type(right):
        return (left > right) - (left < right)
    raise InternalError(f"comparison of {type(left).__name__} with {type(right).__name__}")


def _is_nan(value: object) -> bool:
    return (isinstance(value, float) and math.isnan(value)) or (isinstance(value, Decimal) and value.is_nan())


def _canonical(value: _AnyValue) -> _AnyValue | float | Decimal:
    """The one NaN of each type, which dicts and tuples find by identity."""
    if not _is_nan(value):
        return value
    return NAN if isinstance(value, float) else DECIMAL_NAN


# Arithmetic.


def _arithmetic(call: Call, left: Value, right: Value) -> Value:
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return _decimal_arithmetic(call.op, left, right)
    if isinstance(left, float) and isinstance(right, float):
        return _float_arithmetic(call.op, left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _int_arithmetic(call.op, left, right)
    raise InternalError(f"{call.op} of {type(left).__name__} and {type(right).__name__}")


def _int_arithmetic(op: str, left: int, right: int) -> int:
    if op in "/%" and right == 0:
        raise DataError("division by zero")
    if op == "+":
        return _in_range(left + right)
    if op == "-":
        return _in_range(left - right)
    if op == "*":
        return _in_range(left * right)
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return _in_range(quotient) if op == "/" else left - quotient * right


def _in_range(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise DataError("integer out of range")
    return value


def _decimal_arithmetic(op: str, left: Decimal, right: Decimal) -> Decimal:
    if op == "/":
        return decimal_div(left, right)
    if left.is_nan() or right.is_nan():
        return DECIMAL_NAN
    if op == "%":
        return _decimal_remainder(left, right)
    infinite = left.is_infinite() or right.is_infinite()
    if op == "*":
        undefined = infinite and (not left or not right)
        return DECIMAL_NAN if undefined else decimal_value(EXACT.multiply(left, right))
    addend = right if op == "+" else right.copy_negate()
    undefined = left.is_infinite() and addend.is_infinite() and left != addend
    return DECIMAL_NAN if undefined else decimal_value(EXACT.add(left, addend))


def _decimal_remainder(left: Decimal, right: Decimal) -> Decimal:
    if not right:
        raise DataError("division by zero")
    if left.is_infinite():
        return DECIMAL_NAN
    return left if right.is_infinite() else decimal_value(EXACT.remainder(left, right))


def _float_arithmetic(op: str, left: float, right: float) -> float:
    if op == "/" and right == 0 and not math.isnan(left):
        raise DataError("division by zero")
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    elif op == "*":
        result = left * right
    else:
        result = NAN if right == 0 else left / right
    if math.isinf(result) and math.isfinite(left) and math.isfinite(right):
        raise DataError("value out of range: overflow")
    vanished = (op == "*" and left and right) or (op == "/" and left and math.isfinite(right))
    if result == 0 and vanished:
        raise DataError("value out of range: underflow")
    return result


def _negated(_: Call, value: Value) -> Value:
    if isinstance(value, Decimal):
        return decimal_value(value.copy_negate())
    if isinstance(value, float):
        return -value
    assert isinstance(value, int), "the binder passes numbers only"
    return _in_range(-value)


def _absolute(_: Call, value: Value) -> Value:
    if isinstance(value, Decimal):
        return value.copy_abs()
    if isinstance(value, float):
        return abs(value)
    assert isinstance(value, int), "the binder passes numbers only"
    return _in_range(abs(value))


# Text.


def _lower(_: Call, value: Value) -> Value:
    return "".join(_one_character(character, character.lower()) for character in _text(value))


def _upper(_: Call, value: Value) -> Value:
    return "".join(_one_character(character, character.upper()) for character in _text(value))


def _one_character(character: str, mapped: str) -> str:
    """PostgreSQL maps characters one by one: what would become two characters stays as it is."""
    return mapped if len(mapped) == 1 else character


def _length(_: Call, value: Value) -> Value:
    return len(value) if isinstance(value, bytes) else len(_text(value))


def _concatenated(_: Call, left: Value, right: Value) -> Value:
    if isinstance(left, bytes) and isinstance(right, bytes):
        return left + right
    return _text(left) + _text(right)


def _text(value: Value) -> str:
    assert isinstance(value, str), "the binder passes text only"
    return value


def _like(_: Call, value: Value, pattern: Value) -> Value:
    return _matches(_text(value), _like_items(_text(pattern)))


def _like_items(pattern: str) -> list[tuple[str, str]]:
    """The pattern as ("%", ""), ("_", "") and ("=", character)."""
    items, position = [], 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
            if position == len(pattern):
                raise DataError("LIKE pattern must not end with escape character")
            items.append(("=", pattern[position]))
        else:
            items.append((character, "") if character in "%_" else ("=", character))
        position += 1
    return items


def _matches(text: str, items: Sequence[tuple[str, str]]) -> bool:
    """Which prefixes of the pattern match which prefixes of the text, prefix by prefix."""
    reachable = {0}
    for kind, character in items:
        if kind == "%":
            reachable = set(range(min(reachable), len(text) + 1)) if reachable else set()
        else:
            reachable = {
                position + 1
                for position in reachable
                if position < len(text) and (kind == "_" or text[position] == character)
            }
    return len(text) in reachable


# Casts.


def _cast(call: Call, value: Value) -> Value:
    return fit(_converted(value, call.type), call.type)


def _converted(value: Value, target: Type) -> Value:
    if target.kind == "str":
        return _as_text(value)
    if isinstance(value, str):
        return value_of_text(value, target)
    if target.kind == "int":
        return _as_int(value)
    if target.kind == "float" and isinstance(value, int | float | Decimal):
        return _as_float(value)
    if target.kind == "decimal" and isinstance(value, int | float | Decimal):
        return _as_decimal(value)
    if target.kind == "bool" and isinstance(value, int):
        return value != 0
    if target.kind == "timestamp" and isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day)
    if target.kind == "date" and isinstance(value, datetime.datetime):
        return value.date()
    raise InternalError(f"no cast from {type(value).__name__} to {target}")


def _as_int(value: Value) -> int:
    """A float goes to the nearest integer, halves to the even one; a decimal's halves go away from zero."""
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise DataError(f"cannot convert {_as_text(value)} to integer")
    if isinstance(value, float):
        return _in_range(round(value))
    if isinstance(value, Decimal):
        return _in_range(int(EXACT.to_integral_value(value)))
    assert isinstance(value, int), "the binder passes numbers and booleans only"
    return int(value)


def _as_float(value: int | float | Decimal) -> float:
    if isinstance(value, Decimal) and value.is_finite():
        return float_in_range(str(value))
    return float(value)


def _as_decimal(value: int | float | Decimal) -> Decimal:
    if isinstance(value, float):
        return decimal_of_digits(f"{value:.{FLOAT_DIGITS}g}") if math.isfinite(value) else Decimal(value)
    return Decimal(value)


def _as_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else str(value)
    assert isinstance(value, int | str), "the binder passes numbers, booleans and text only"
    return str(value)


def _float_text(value: float) -> str:
    """The shortest digits that read back as the same float, with an exponent where PostgreSQL writes one."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    shortest = Decimal(repr(value)).normalize(EXACT)
    if FLOAT_TEXT_EXPONENT_MIN <= shortest.adjusted() <= FLOAT_TEXT_EXPONENT_MAX:
        return format(shortest, "f")
    sign, digits, _ = shortest.as_tuple()
    fraction = "".join(map(str, digits[1:]))
    exponent = shortest.adjusted()
    mantissa = f"{'-' if sign else ''}{digits[0]}{'.' if fraction else ''}{fraction}"
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


_STRICT: dict[str, Callable[..., Value]] = {
    "+": _arithmetic,
    "-": _arithmetic,
    "*": _arithmetic,
    "/": _arithmetic,
    "%": _arithmetic,
    "neg": _negated,
    "abs": _absolute,
    "=": lambda _, left, right: _compared(left, right) == 0,
    "<>": lambda _, left, right: _compared(left, right) != 0,
    "<": lambda _, left, right: _compared(left, right) < 0,
    "<=": lambda _, left, right: _compared(left, right) <= 0,
    ">": lambda _, left, right: _compared(left, right) > 0,
    ">=": lambda _, left, right: _compared(left, right) >= 0,
    "not": lambda _, value: value is False,
    "lower": _lower,
    "upper": _upper,
    "length": _length,
    "||": _concatenated,
    "like": _like,
    "cast": _cast,
}


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
        key = tuple((type(value).__name__, _canonical(value)) for value in row)
        counts[key] = (row, counts[key][1] + 1)
    return counts
