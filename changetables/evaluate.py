"""The oracle's scalars: expressions walked node by node with SQL's three-valued logic. Slow and obvious.

It shares no code with the compiled expressions, which must agree with it. Only the smallest arithmetic (numeric
division) and the reading of texts come from `numbers` and `literals`.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_UP, Decimal
from fractions import Fraction
from typing import TypeVar

from . import evaluate_functions as oracle
from .errors import DIVISION_HINT, INFINITE_HINT, INTEGER_HINT, OVERFLOW_HINT, UNDERFLOW_HINT, DataError, InternalError
from .expressions import Call, ColumnRef, Expression, Literal
from .literals import EXACT, decimal_of_digits, fit, float_in_range, value_of_text
from .numbers import DECIMAL_NAN, decimal_div, decimal_value
from .types import INT_MAX, INT_MIN, NAN, Row, Type, Value

#: Significant digits of a float that PostgreSQL takes over into a numeric (DBL_DIG).
FLOAT_DIGITS = 15
#: Exponents of ten from which PostgreSQL writes a float with an exponent.
FLOAT_TEXT_EXPONENT_MIN, FLOAT_TEXT_EXPONENT_MAX = -4, 14

_AnyValue = TypeVar("_AnyValue")


def evaluate(expression: Expression, row: Row) -> Value:
    """The value of an expression over one row of a relation; None is NULL."""
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, ColumnRef):
        return row[expression.position]
    return canonical(_call(expression, row))


def _call(call: Call, row: Row) -> Value:
    lazy = _LAZY.get(call.op)
    if lazy is not None:
        return lazy(call, row)
    args = [evaluate(argument, row) for argument in call.args]
    total = _TOTAL.get(call.op)
    if total is not None:
        return total(*args)
    if any(value is None for value in args):
        return None  # All other operators are strict.
    function = _FUNCTIONS.get(call.op)
    if function is not None:
        return function(*args)
    strict = _STRICT.get(call.op)
    if strict is None:
        raise InternalError(f"the oracle knows no operator {call.op!r}")
    return strict(call, *args)


# Operators that do not evaluate all of their arguments.


def _and(call: Call, row: Row) -> Value:
    values: list[Value] = []
    for argument in call.args:
        values.append(evaluate(argument, row))
        if values[-1] is False:
            return False
    return None if None in values else True


def _or(call: Call, row: Row) -> Value:
    values: list[Value] = []
    for argument in call.args:
        values.append(evaluate(argument, row))
        if values[-1] is True:
            return True
    return None if None in values else False


def _case(call: Call, row: Row) -> Value:
    *branches, otherwise = call.args
    for test, result in zip(branches[::2], branches[1::2], strict=True):
        if evaluate(test, row) is True:
            return evaluate(result, row)
    return evaluate(otherwise, row)


def _coalesce(call: Call, row: Row) -> Value:
    for argument in call.args:
        value = evaluate(argument, row)
        if value is not None:
            return value
    return None


_LAZY: dict[str, Callable[[Call, Row], Value]] = {"and": _and, "or": _or, "case": _case, "coalesce": _coalesce}


# Operators that take NULL as a value.


def _same(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return left is right
    return compared(left, right) == 0


def _in(value: Value, *items: Value) -> Value:
    if value is None:
        return None
    if any(item is not None and compared(value, item) == 0 for item in items):
        return True
    return None if any(item is None for item in items) else False


def _nullif(left: Value, right: Value) -> Value:
    return None if left is not None and right is not None and compared(left, right) == 0 else left


def _extreme(values: Sequence[Value], direction: int) -> Value:
    """The first of the values that no other one exceeds in this direction; NULLs do not count."""
    present = [value for value in values if value is not None]
    for value in present:
        if all(compared(other, value) * direction <= 0 for other in present):
            return value
    return None


_TOTAL: dict[str, Callable[..., Value]] = {
    "is_null": lambda value: value is None,
    "is_not_null": lambda value: value is not None,
    "is_distinct": lambda left, right: not _same(left, right),
    "is_not_distinct": _same,
    "in": _in,
    "nullif": _nullif,
    "greatest": lambda *values: _extreme(values, 1),
    "least": lambda *values: _extreme(values, -1),
    "concat": oracle.concat,
    "concat_ws": oracle.concat_ws,
}


# Comparison.


def compared(left: Value, right: Value) -> int:
    """-1, 0 or 1; NaN equals NaN and is above everything. Both sides are of one type, not NULL."""
    left_nan, right_nan = is_nan(left), is_nan(right)
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


def is_nan(value: object) -> bool:
    return (isinstance(value, float) and math.isnan(value)) or (isinstance(value, Decimal) and value.is_nan())


def canonical(value: _AnyValue) -> _AnyValue | float | Decimal:
    """The one NaN of each type, which dicts and tuples find by identity."""
    if not is_nan(value):
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
        raise DataError("division by zero", hint=DIVISION_HINT)
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
        raise DataError("integer out of range", hint=INTEGER_HINT)
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
        raise DataError("division by zero", hint=DIVISION_HINT)
    if left.is_infinite():
        return DECIMAL_NAN
    return left if right.is_infinite() else decimal_value(EXACT.remainder(left, right))


def _float_arithmetic(op: str, left: float, right: float) -> float:
    if op == "/" and right == 0 and not math.isnan(left):
        raise DataError("division by zero", hint=DIVISION_HINT)
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    elif op == "*":
        result = left * right
    else:
        result = NAN if right == 0 else left / right
    if math.isinf(result) and math.isfinite(left) and math.isfinite(right):
        raise DataError("value out of range: overflow", hint=OVERFLOW_HINT)
    vanished = (op == "*" and left and right) or (op == "/" and left and math.isfinite(right))
    if result == 0 and vanished:
        raise DataError("value out of range: underflow", hint=UNDERFLOW_HINT)
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


def _length(_: Call, value: Value) -> Value:
    return len(value) if isinstance(value, bytes) else len(_text(value))


def _text(value: Value) -> str:
    assert isinstance(value, str), "the binder passes text only"
    return value


def _like(_: Call, value: Value, pattern: Value) -> Value:
    return _matches(_text(value), _like_items(_text(pattern)))


def _ilike(_: Call, value: Value, pattern: Value) -> Value:
    return _matches(oracle.lower(_text(value)), _like_items(oracle.lower(_text(pattern))))


def _like_items(pattern: str) -> list[tuple[str, str]]:
    """The pattern as ("%", ""), ("_", ""), ("=", character), and ("\\\\", "") for a backslash that escapes nothing."""
    items, position = [], 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
            items.append(("=", pattern[position]) if position < len(pattern) else ("\\", ""))
        else:
            items.append((character, "") if character in "%_" else ("=", character))
        position += 1
    return items


def _matches(text: str, items: Sequence[tuple[str, str]]) -> bool:
    """Which prefixes of the pattern match which prefixes of the text, prefix by prefix."""
    reachable = {0}
    # What was reachable before the last '%' with nothing but wildcards behind it, and how many '_' are among these.
    before, skipped = reachable, 0
    after_percent = False
    for kind, character in items:
        if kind == "\\":
            start = before if after_percent else reachable
            if any(len(text) - position >= max(skipped if after_percent else 0, 1) for position in start):
                raise DataError(
                    "LIKE pattern must not end with escape character",
                    hint="write the escape character twice to find it",
                )
            return False
        if kind == "%":
            if not after_percent:
                before, skipped, after_percent = reachable, 0, True
            reachable = set(range(min(reachable), len(text) + 1)) if reachable else set()
            continue
        skipped += kind == "_"
        after_percent = after_percent and kind == "_"
        reachable = {
            position + 1
            for position in reachable
            if position < len(text) and (kind == "_" or text[position] == character)
        }
    return len(text) in reachable


# Casts.


def _cast(call: Call, value: Value) -> Value:
    return fit(_converted(value, call.args[0].type, call.type), call.type)


def _converted(value: Value, source: Type, target: Type) -> Value:
    if target.kind == "str":
        return _as_text(value, source)
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
    if target.kind in ("timestamp", "timestamptz") and isinstance(value, datetime.date):
        # The session is in UTC: a timestamp and the timestamptz that it stands for are the same naive datetime.
        return value if isinstance(value, datetime.datetime) else datetime.datetime.combine(value, datetime.time())
    if target.kind == "date" and isinstance(value, datetime.datetime):
        return value.date()
    raise InternalError(f"no cast from {type(value).__name__} to {target}")


def _as_int(value: Value) -> int:
    """A float goes to the nearest integer, halves to the even one; a decimal's halves go away from zero."""
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        special = "NaN" if is_nan(value) else "Infinity" if value > 0 else "-Infinity"
        raise DataError(f"cannot convert {special} to integer", hint=INFINITE_HINT)
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


def _as_text(value: Value, source: Type) -> str:
    if isinstance(value, datetime.date):
        return oracle.moment_text(value, source.kind)
    if isinstance(value, bytes):
        return oracle.bytes_text(value)
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
    shortest = _shortest(value).normalize(EXACT)
    if FLOAT_TEXT_EXPONENT_MIN <= shortest.adjusted() <= FLOAT_TEXT_EXPONENT_MAX:
        return format(shortest, "f")
    sign, digits, _ = shortest.as_tuple()
    fraction = "".join(map(str, digits[1:]))
    exponent = shortest.adjusted()
    mantissa = f"{'-' if sign else ''}{digits[0]}{'.' if fraction else ''}{fraction}"
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _shortest(value: float) -> Decimal:
    """The fewest digits that are nearer to the value than to any other float. Python also takes those that are just
    as near to a neighbour, and trusts in the rule for halves; PostgreSQL does not."""
    exact, neighbours = Decimal(value), (math.nextafter(value, math.inf), math.nextafter(value, -math.inf))
    for digits in range(17):
        quantum = Decimal((0, (1,), exact.adjusted() - digits))
        candidates = [exact.quantize(quantum, rounding, EXACT) for rounding in (ROUND_HALF_EVEN, ROUND_UP, ROUND_DOWN)]
        for candidate in sorted(candidates, key=lambda candidate: abs(Fraction(candidate) - Fraction(value))):
            distances = [abs(Fraction(candidate) - Fraction(other)) for other in neighbours if math.isfinite(other)]
            if abs(Fraction(candidate) - Fraction(value)) < min(distances) and float(candidate) == value:
                return candidate
    raise InternalError(f"no 17 digits for {value!r}")


_STRICT: dict[str, Callable[..., Value]] = {
    "+": _arithmetic,
    "-": _arithmetic,
    "*": _arithmetic,
    "/": _arithmetic,
    "%": _arithmetic,
    "neg": _negated,
    "abs": _absolute,
    "=": lambda _, left, right: compared(left, right) == 0,
    "<>": lambda _, left, right: compared(left, right) != 0,
    "<": lambda _, left, right: compared(left, right) < 0,
    "<=": lambda _, left, right: compared(left, right) <= 0,
    ">": lambda _, left, right: compared(left, right) > 0,
    ">=": lambda _, left, right: compared(left, right) >= 0,
    "not": lambda _, value: value is False,
    "length": _length,
    "like": _like,
    "ilike": _ilike,
    "cast": _cast,
    "extract": lambda call, moment, field: oracle.extract(call.args[0].type.kind, moment, field),
    "date_part": lambda call, moment, field: oracle.date_part(call.args[0].type.kind, moment, field),
}
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "ceil": oracle.ceil,
    "floor": oracle.floor,
    "round": oracle.rounded,
    "trunc": oracle.trunc,
    "sign": oracle.sign,
    "sqrt": oracle.sqrt,
    "exp": oracle.exp,
    "ln": oracle.ln,
    "log": oracle.log,
    "log10": oracle.log10,
    "power": oracle.power,
    "div": oracle.div,
    "gcd": oracle.gcd,
    "lcm": oracle.lcm,
    "||": oracle.concatenated,
    "lower": oracle.lower,
    "upper": oracle.upper,
    "initcap": oracle.initcap,
    "octet_length": oracle.octet_length,
    "substring": oracle.substring,
    "left": oracle.left,
    "right": oracle.right,
    "btrim": oracle.btrim,
    "ltrim": oracle.ltrim,
    "rtrim": oracle.rtrim,
    "lpad": oracle.lpad,
    "rpad": oracle.rpad,
    "replace": oracle.replace,
    "translate": oracle.translate,
    "strpos": oracle.strpos,
    "starts_with": oracle.starts_with,
    "repeat": oracle.repeat,
    "reverse": oracle.reverse,
    "split_part": oracle.split_part,
    "ascii": oracle.ascii_code,
    "chr": oracle.chr_of,
    "like_escape": oracle.like_escape,
    "add_days": oracle.add_days,
    "days_between": oracle.days_between,
    "add_interval": oracle.add_interval,
    "date_trunc": oracle.date_trunc,
    "make_date": oracle.make_date,
}
