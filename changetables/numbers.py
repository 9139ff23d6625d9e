"""Arithmetic with PostgreSQL 15's results: exact sums of floats, numeric, 64-bit integers, double precision.

The engine's form of a Decimal: never -0, never a positive exponent (1E+3 is 1000), and every NaN is the object
`DECIMAL_NAN`, so that tuples and dicts find it by identity as they do with `types.NAN`. The functions here take and
give that form; `decimal_value` brings any Decimal into it.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

from .errors import DIVISION_HINT, FIELD_HINT, INTEGER_HINT, OVERFLOW_HINT, UNDERFLOW_HINT, DataError
from .types import INT_MAX, INT_MIN, NAN

# --- exact sums of floats -------------------------------------------------------------------------------------------

#: Every finite float is a multiple of 2**-1074, the smallest subnormal: times 2**1074 it is an integer, and sums of
#: integers are exact in any order.
EXACT_SHIFT_BITS = 1074


def float_to_exact(x: float) -> int:
    """A finite x times 2**1074, exactly."""
    numerator, denominator = x.as_integer_ratio()
    # The denominator is a power of two, at most 2**1074.
    return numerator << (EXACT_SHIFT_BITS + 1 - denominator.bit_length())


def exact_to_float(n: int, count: int = 1) -> float:
    """n / (count * 2**1074), rounded once: Python's division of integers rounds correctly."""
    try:
        return n / (count << EXACT_SHIFT_BITS)
    except OverflowError:
        raise DataError("value out of range: overflow", hint=OVERFLOW_HINT) from None


# --- numeric --------------------------------------------------------------------------------------------------------

#: PostgreSQL's numeric: at most so many digits before and after the point.
INTEGER_DIGITS_MAX = 131_072
SCALE_DIGITS_MAX = 16_383
NUMERIC_HINT = f"numeric has at most {INTEGER_DIGITS_MAX} digits before and {SCALE_DIGITS_MAX} after the point"
#: PostgreSQL gives a quotient at least 16 significant digits, and at most 1000 digits after the point.
_QUOTIENT_SIGNIFICANT_DIGITS_MIN = 16
_QUOTIENT_SCALE_DIGITS_MAX = 1_000
#: PostgreSQL stores numeric in base 10000, and the scale of a quotient shows it.
_BASE_DIGITS = 4

#: Holds every sum, difference and product of two numerics; rounding would be a defect and raises.
EXACT = decimal.Context(
    prec=2 * (INTEGER_DIGITS_MAX + SCALE_DIGITS_MAX),
    rounding=decimal.ROUND_HALF_UP,
    Emin=-1_000_000,
    Emax=INTEGER_DIGITS_MAX - 1,
    clamp=0,
    flags=[],
    traps=[decimal.Inexact, decimal.Overflow],
)
#: A result that raises nothing here is within PostgreSQL's limits for sure (at most 8,000 digits, exponent at least
#: -15,999), which spares the common case the check of its scale.
_COMMON = decimal.Context(
    prec=8_000,
    rounding=decimal.ROUND_HALF_UP,
    Emin=-8_000,
    Emax=8_000,
    clamp=0,
    flags=[],
    traps=[decimal.Inexact, decimal.Rounded, decimal.Subnormal, decimal.Overflow, decimal.Clamped],
)
#: For intermediate steps: no limit that a numeric could reach; ROUND_HALF_UP is "half away from zero".
_WIDE = decimal.Context(
    prec=1_000_000,
    rounding=decimal.ROUND_HALF_UP,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    clamp=0,
    flags=[],
    traps=[decimal.InvalidOperation],
)

_Operation: TypeAlias = Callable[[Decimal | int, Decimal | int], Decimal]

#: The one NaN of numeric.
DECIMAL_NAN = Decimal("NaN")
_ZERO = Decimal(0)
_INFINITY = Decimal("Infinity")

_common_add = _COMMON.add
_common_subtract = _COMMON.subtract
_common_multiply = _COMMON.multiply
_wide_quantize = _WIDE.quantize


def decimal_value(value: Decimal) -> Decimal:
    """The engine's form of any Decimal (see the top); DataError beyond PostgreSQL's limits."""
    try:
        # Adding 0 with exponent 0 expands a positive exponent and turns -0 into 0, in one call.
        result = _common_add(value, _ZERO)
    except decimal.DecimalException:
        return _slow(EXACT.add, value, _ZERO)
    return result if result.is_finite() else _special(result)


def decimal_add(a: Decimal | int, b: Decimal | int) -> Decimal:
    try:
        result = _common_add(a, b)
    except decimal.DecimalException:
        return _slow(EXACT.add, a, b)
    return result if result.is_finite() else _special(result)


def decimal_sub(a: Decimal | int, b: Decimal | int) -> Decimal:
    try:
        result = _common_subtract(a, b)
    except decimal.DecimalException:
        return _slow(EXACT.subtract, a, b)
    return result if result.is_finite() else _special(result)


def decimal_mul(a: Decimal | int, b: Decimal | int) -> Decimal:
    """A product with more than 16383 digits after the point is rounded to them, as in PostgreSQL."""
    try:
        result = _common_multiply(a, b)
    except decimal.DecimalException:
        return _slow(EXACT.multiply, a, b)
    if result.is_finite():
        return result if result else result.copy_abs()
    return _special(result)


def decimal_neg(a: Decimal) -> Decimal:
    if a.is_nan():
        return DECIMAL_NAN
    return a.copy_negate() if a else a


def decimal_abs(a: Decimal) -> Decimal:
    return DECIMAL_NAN if a.is_nan() else a.copy_abs()


def decimal_div(a: Decimal | int, b: Decimal | int) -> Decimal:
    """a / b with PostgreSQL's choice of scale, rounded half away from zero."""
    a, b = _decimal(a), _decimal(b)
    if not (a.is_finite() and b.is_finite()):
        return _special_div(a, b)
    if not b:
        raise _division_by_zero()
    scale = _quotient_scale(a, b)
    quotient, remainder = _WIDE.divmod(_WIDE.scaleb(a, scale), b)
    if remainder and _WIDE.multiply(remainder.copy_abs(), 2) >= b.copy_abs():
        away_from_zero = -1 if a.is_signed() != b.is_signed() else 1
        quotient = _WIDE.add(quotient, away_from_zero)
    return _limited(_WIDE.scaleb(quotient, -scale))


def decimal_mod(a: Decimal | int, b: Decimal | int) -> Decimal:
    """The remainder of the division truncated toward zero; it has the sign of a."""
    a, b = _decimal(a), _decimal(b)
    if a.is_nan() or b.is_nan():
        return DECIMAL_NAN
    if not b:
        raise _division_by_zero()
    if a.is_infinite():
        return DECIMAL_NAN
    if b.is_infinite():
        return a
    remainder = _WIDE.remainder(a, b)
    return remainder if remainder else remainder.copy_abs()


def decimal_avg(total: Decimal | int, count: int) -> Decimal:
    """PostgreSQL's AVG of integers and numerics: `decimal_div` of total by count."""
    if isinstance(total, Decimal) or count <= 0:
        return decimal_div(total, count)
    # Integers are the common case, and three times as fast without Decimals in between.
    magnitude = abs(total)
    scale = _scale_of_weights(_leading_digit_of_int(magnitude), _leading_digit_of_int(count))
    quotient, remainder = divmod(magnitude * 10**scale, count)
    if 2 * remainder >= count:
        quotient += 1
    return _WIDE.scaleb(Decimal(quotient if total >= 0 else -quotient), -scale)


def decimal_round(value: Decimal, scale: int) -> Decimal:
    """Rounded half away from zero to `scale` digits after the point (before it, if negative). Specials stay."""
    if not value.is_finite():
        return _special(value)
    try:
        rounded = _wide_quantize(value, _quantum(scale))
    except decimal.InvalidOperation:
        raise _overflow() from None
    if scale < 0:
        return decimal_value(rounded)
    return rounded if rounded else rounded.copy_abs()


def decimal_fit(value: Decimal, precision: int, scale: int) -> Decimal:
    """The value as numeric(precision, scale) holds it; DataError if it has too many digits before the point."""
    if value.is_infinite():
        raise DataError(
            f"numeric field overflow: numeric({precision},{scale}) cannot hold an infinite value", hint=FIELD_HINT
        )
    rounded = decimal_round(value, scale)
    if rounded.is_finite() and rounded and rounded.adjusted() >= precision - scale:
        raise DataError(
            f"numeric field overflow: the absolute value must round to less than 10^{precision - scale}"
            f" for numeric({precision},{scale})",
            hint=FIELD_HINT,
        )
    return rounded


@lru_cache(maxsize=256)
def _quantum(scale: int) -> Decimal:
    return Decimal((0, (1,), -scale))


def _decimal(value: Decimal | int) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value)


def _quotient_scale(a: Decimal, b: Decimal) -> int:
    scale = max(_scale_of_weights(_leading_digit(a), _leading_digit(b)), _scale(a), _scale(b))
    return min(scale, _QUOTIENT_SCALE_DIGITS_MAX)


def _scale_of_weights(a: tuple[int, int], b: tuple[int, int]) -> int:
    """PostgreSQL estimates the weight of the quotient from the first base-10000 digit of each operand."""
    (weight_a, first_a), (weight_b, first_b) = a, b
    weight = weight_a - weight_b - (1 if first_a <= first_b else 0)
    return max(_QUOTIENT_SIGNIFICANT_DIGITS_MIN - weight * _BASE_DIGITS, 0)


def _leading_digit(value: Decimal) -> tuple[int, int]:
    """The weight and the value of the first digit in base 10000; both are 0 for zero."""
    if not value:
        return 0, 0
    weight = value.adjusted() // _BASE_DIGITS
    return weight, int(_WIDE.scaleb(value.copy_abs(), -weight * _BASE_DIGITS))


def _leading_digit_of_int(value: int) -> tuple[int, int]:
    weight = 0
    while value >= 10**_BASE_DIGITS:
        value //= 10**_BASE_DIGITS
        weight += 1
    return weight, value


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _special_div(a: Decimal, b: Decimal) -> Decimal:
    """Division when an operand is NaN or infinite."""
    if a.is_nan() or b.is_nan():
        return DECIMAL_NAN
    if b.is_infinite():
        return DECIMAL_NAN if a.is_infinite() else _ZERO
    if not b:
        raise _division_by_zero()
    return _INFINITY if a.is_signed() == b.is_signed() else _INFINITY.copy_negate()


def _special(value: Decimal) -> Decimal:
    return DECIMAL_NAN if value.is_nan() else value


def _slow(
    operation: _Operation,
    a: Decimal | int,
    b: Decimal | int,
) -> Decimal:
    """The operation for results that `_COMMON` could not prove to be within the limits."""
    try:
        return _limited(operation(a, b))
    except (decimal.Inexact, decimal.Overflow):
        raise _overflow() from None


def _limited(value: Decimal) -> Decimal:
    """PostgreSQL's limits on a finite result: too many digits before the point raise, those after it are rounded."""
    if not value.is_finite():
        return _special(value)
    if not value:
        return Decimal((0, (0,), -min(_scale(value), SCALE_DIGITS_MAX)))
    if value.adjusted() >= INTEGER_DIGITS_MAX:
        raise _overflow()
    return decimal_round(value, SCALE_DIGITS_MAX) if _scale(value) > SCALE_DIGITS_MAX else value


def _overflow() -> DataError:
    return DataError("value overflows numeric format", hint=NUMERIC_HINT)


def _division_by_zero() -> DataError:
    return DataError("division by zero", hint=DIVISION_HINT)


# --- 64-bit integers ------------------------------------------------------------------------------------------------


def int_add(a: int, b: int) -> int:
    result = a + b
    if INT_MIN <= result <= INT_MAX:
        return result
    raise _out_of_range()


def int_sub(a: int, b: int) -> int:
    result = a - b
    if INT_MIN <= result <= INT_MAX:
        return result
    raise _out_of_range()


def int_mul(a: int, b: int) -> int:
    result = a * b
    if INT_MIN <= result <= INT_MAX:
        return result
    raise _out_of_range()


def int_neg(a: int) -> int:
    if a == INT_MIN:
        raise _out_of_range()
    return -a


def int_abs(a: int) -> int:
    if a == INT_MIN:
        raise _out_of_range()
    return abs(a)


def int_div(a: int, b: int) -> int:
    """Truncates toward zero, where Python's // goes down."""
    if b == 0:
        raise _division_by_zero()
    result = a // b if (a >= 0) == (b > 0) else -(-a // b)
    if result > INT_MAX:
        raise _out_of_range()
    return result


def int_mod(a: int, b: int) -> int:
    """The remainder of `int_div`; it has the sign of a."""
    if b == 0:
        raise _division_by_zero()
    result = abs(a) % abs(b)
    return result if a >= 0 else -result


def _out_of_range() -> DataError:
    return DataError("integer out of range", hint=INTEGER_HINT)


# --- double precision -----------------------------------------------------------------------------------------------


def float_result(x: float, *operands: float) -> float:
    """x with the one NaN. An infinity that came from finite operands is an overflow; none given: x is not checked."""
    if x != x:
        return NAN
    if operands and math.isinf(x) and all(map(math.isfinite, operands)):
        raise _float_overflow()
    return x


def float_add(a: float, b: float) -> float:
    result = a + b
    # One subtraction tells finite results from the rare others: it is 0.0 exactly for them.
    return result if result - result == 0.0 else float_result(result, a, b)


def float_sub(a: float, b: float) -> float:
    result = a - b
    return result if result - result == 0.0 else float_result(result, a, b)


def float_mul(a: float, b: float) -> float:
    result = a * b
    if result - result != 0.0:
        return float_result(result, a, b)
    if result == 0.0 and a != 0.0 and b != 0.0:
        raise _float_underflow()
    return result


def float_div(a: float, b: float) -> float:
    if b == 0.0:
        # PostgreSQL lets NaN / 0 be NaN.
        if a != a:
            return NAN
        raise _division_by_zero()
    result = a / b
    if result - result != 0.0:
        return float_result(result, a, b)
    if result == 0.0 and a != 0.0 and not math.isinf(b):
        raise _float_underflow()
    return result


def _float_overflow() -> DataError:
    return DataError("value out of range: overflow", hint=OVERFLOW_HINT)


def _float_underflow() -> DataError:
    return DataError("value out of range: underflow", hint=UNDERFLOW_HINT)
