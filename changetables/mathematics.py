"""Mathematical functions with PostgreSQL 15's results: of double precision, of numeric, of 64-bit integers.

A function of numeric gives as many digits after the point as PostgreSQL does: at least 16 significant ones, estimated
from the first base-10000 digits of its arguments, and at least as many as the arguments have. What it computes with is
`decimal` with some digits more, rounded once. All work is bounded: PostgreSQL's own limits bound the digits of any
numeric, and a result beyond them is a DataError before it is computed.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal

from .errors import DIVISION_HINT, LOGARITHM_HINT, OVERFLOW_HINT, POWER_HINT, ROOT_HINT, UNDERFLOW_HINT, DataError
from .numbers import (
    DECIMAL_NAN,
    INTEGER_DIGITS_MAX,
    NUMERIC_HINT,
    SCALE_DIGITS_MAX,
    decimal_div,
    decimal_round,
    decimal_value,
    int_abs,
    int_mul,
)
from .types import INT_MAX, NAN

#: PostgreSQL gives a function of numeric at least 16 significant digits, and at most 1000 digits after the point.
SIGNIFICANT_DIGITS_MIN = 16
DISPLAY_SCALE_DIGITS_MAX = 1_000
#: Natural logarithms beyond this are an overflow (or 0) for exp() and power() of numeric.
EXP_ARGUMENT_MAX = 6_000
#: Exponents of power() that are integers of 32 bits are computed by multiplication, larger ones by exp() and ln().
_POWER_EXPONENT_MIN, _POWER_EXPONENT_MAX = -(2**31), 2**31 - 1
#: Digits of numerics that gcd() and lcm() take: their time grows with the square, to seconds for the largest numerics.
GCD_DIGITS_MAX = 20_000
#: Digits that are computed beyond those of the result, so that one rounding decides.
_GUARD_DIGITS = 20
_BASE_DIGITS = 4
_LOG10_E = 0.434294481903252
_LOG10_2 = 0.301029995663981
#: The series of exp() is summed up for arguments up to this, with so many digits more than the result has.
_EXP_SERIES_MAX = 0.01
_SERIES_DIGITS = 8

_ZERO, _ONE = Decimal(0), Decimal(1)
_INFINITY = Decimal("Infinity")
_MINUS_INFINITY = Decimal("-Infinity")

#: Beyond 2**52 every double is an integer.
_FLOAT_INTEGERS_FROM = 2.0**52


def _context(digits: int) -> decimal.Context:
    return decimal.Context(
        prec=max(digits, _GUARD_DIGITS),
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        traps=[decimal.InvalidOperation],
    )


#: Holds every numeric; for steps that do not round.
_WIDE = _context(2 * (INTEGER_DIGITS_MAX + SCALE_DIGITS_MAX))


def _overflow() -> DataError:
    return DataError("value overflows numeric format", hint=NUMERIC_HINT)


# --- double precision -----------------------------------------------------------------------------------------------


def float_ceil(x: float) -> float:
    # Infinities and NaN fail the test too, and are their own ceiling. The sign of a zero result is that of x.
    return math.copysign(float(math.ceil(x)), x) if -_FLOAT_INTEGERS_FROM < x < _FLOAT_INTEGERS_FROM else x


def float_floor(x: float) -> float:
    return math.copysign(float(math.floor(x)), x) if -_FLOAT_INTEGERS_FROM < x < _FLOAT_INTEGERS_FROM else x


def float_round(x: float) -> float:
    """Halves go to the even neighbour."""
    return math.copysign(float(round(x)), x) if -_FLOAT_INTEGERS_FROM < x < _FLOAT_INTEGERS_FROM else x


def float_trunc(x: float) -> float:
    return math.copysign(float(int(x)), x) if -_FLOAT_INTEGERS_FROM < x < _FLOAT_INTEGERS_FROM else x


def float_sign(x: float) -> float:
    """The sign of NaN is 0, as in PostgreSQL."""
    return 1.0 if x > 0 else -1.0 if x < 0 else 0.0


def float_sqrt(x: float) -> float:
    if x < 0:
        raise DataError("cannot take square root of a negative number", hint=ROOT_HINT)
    return math.sqrt(x) if x == x else NAN


def float_exp(x: float) -> float:
    if x - x != 0.0:
        return NAN if x != x else math.inf if x > 0 else 0.0
    try:
        result = math.exp(x)
    except OverflowError:
        raise _float_overflow() from None
    if result == 0.0:
        raise _float_underflow()
    return result


def float_ln(x: float) -> float:
    if x <= 0:
        raise _no_logarithm(x == 0)
    return math.log(x) if x == x else NAN


def float_log10(x: float) -> float:
    if x <= 0:
        raise _no_logarithm(x == 0)
    return math.log10(x) if x == x else NAN


def float_power(x: float, y: float) -> float:
    if (x == 0 and y < 0) or (x < 0 and math.isfinite(y) and not y.is_integer()):
        raise _no_power(x == 0)
    try:
        result = math.pow(x, y)
    except OverflowError:
        raise _float_overflow() from None
    if result != result:
        return NAN
    if result == 0.0 and x != 0.0 and math.isfinite(x) and math.isfinite(y):
        raise _float_underflow()
    return result


def _float_overflow() -> DataError:
    return DataError("value out of range: overflow", hint=OVERFLOW_HINT)


def _float_underflow() -> DataError:
    return DataError("value out of range: underflow", hint=UNDERFLOW_HINT)


def _no_logarithm(of_zero: bool) -> DataError:
    return DataError(f"cannot take logarithm of {'zero' if of_zero else 'a negative number'}", hint=LOGARITHM_HINT)


def _no_power(of_zero: bool) -> DataError:
    if of_zero:
        return DataError("zero raised to a negative power is undefined", hint=POWER_HINT)
    return DataError("a negative number raised to a non-integer power yields a complex result", hint=POWER_HINT)


# --- numeric: digits ------------------------------------------------------------------------------------------------


def decimal_ceil(x: Decimal) -> Decimal:
    return _whole(x, decimal.ROUND_CEILING)


def decimal_floor(x: Decimal) -> Decimal:
    return _whole(x, decimal.ROUND_FLOOR)


def _whole(x: Decimal, rounding: str) -> Decimal:
    if not x.is_finite():
        return DECIMAL_NAN if x.is_nan() else x
    return _limited(x.to_integral_value(rounding, _WIDE))


def decimal_round_to(x: Decimal, scale: int = 0) -> Decimal:
    """Halves go away from zero. A negative scale rounds before the point."""
    if not x.is_finite():
        return DECIMAL_NAN if x.is_nan() else x
    if scale < -INTEGER_DIGITS_MAX:
        return _ZERO
    return _limited(decimal_round(x, min(scale, SCALE_DIGITS_MAX)))


def decimal_trunc(x: Decimal, scale: int = 0) -> Decimal:
    if not x.is_finite():
        return DECIMAL_NAN if x.is_nan() else x
    if scale < -INTEGER_DIGITS_MAX:
        return _ZERO
    quantum = Decimal((0, (1,), -min(scale, SCALE_DIGITS_MAX)))
    return decimal_value(x.quantize(quantum, decimal.ROUND_DOWN, _WIDE))


def decimal_sign(x: Decimal) -> Decimal:
    if x.is_nan():
        return DECIMAL_NAN
    return Decimal((x > 0) - (x < 0))


def _limited(x: Decimal) -> Decimal:
    """Rounding up may carry into a digit that numeric does not have."""
    if x and x.adjusted() >= INTEGER_DIGITS_MAX:
        raise _overflow()
    return x if x else x.copy_abs()


def decimal_div_whole(a: Decimal, b: Decimal) -> Decimal:
    """The quotient truncated to an integer."""
    if not (a.is_finite() and b.is_finite()):
        return decimal_div(a, b)
    if not b:
        raise DataError("division by zero", hint=DIVISION_HINT)
    if a and a.adjusted() - b.adjusted() > INTEGER_DIGITS_MAX:
        raise _overflow()
    return _limited(_WIDE.divide_int(a, b).quantize(_ONE, context=_WIDE))


def decimal_gcd(a: Decimal, b: Decimal) -> Decimal:
    if not (a.is_finite() and b.is_finite()):
        return DECIMAL_NAN
    require_gcd_digits(a, b)
    scale = max(_scale(a), _scale(b))
    return _scaled(math.gcd(_unscaled(a, scale), _unscaled(b, scale)), scale)


def decimal_lcm(a: Decimal, b: Decimal) -> Decimal:
    if not (a.is_finite() and b.is_finite()):
        return DECIMAL_NAN
    require_gcd_digits(a, b)
    scale = max(_scale(a), _scale(b))
    result = _scaled(math.lcm(_unscaled(a, scale), _unscaled(b, scale)), scale)
    return _limited(result)


def require_gcd_digits(*numbers: Decimal) -> None:
    if any(max(number.adjusted(), 0) + 1 + _scale(number) > GCD_DIGITS_MAX for number in numbers):
        raise DataError("too many digits for gcd() or lcm()", hint=f"they take at most {GCD_DIGITS_MAX} digits")


def _unscaled(x: Decimal, scale: int) -> int:
    return int(_WIDE.scaleb(x, scale))


def _scaled(unscaled: int, scale: int) -> Decimal:
    return _WIDE.scaleb(Decimal(unscaled), -scale)


def int_gcd(a: int, b: int) -> int:
    result = math.gcd(a, b)
    if result > INT_MAX:
        raise DataError("integer out of range", hint="integers have 64 bits; use numeric for larger ones")
    return result


def int_lcm(a: int, b: int) -> int:
    if a == 0 or b == 0:
        return 0
    return int_abs(int_mul(a // math.gcd(a, b), b))


# --- numeric: roots, powers and logarithms --------------------------------------------------------------------------


def _scale(x: Decimal) -> int:
    exponent = x.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _display_scale(weight: int, *arguments: Decimal) -> int:
    """Digits after the point of a result whose first digit stands about `weight` places before the point."""
    scale = max(SIGNIFICANT_DIGITS_MIN - weight, 0, *map(_scale, arguments))
    return min(scale, DISPLAY_SCALE_DIGITS_MAX)


def _rounded(x: Decimal, scale: int) -> Decimal:
    return _limited(decimal_round(x, scale))


def _float_of(x: Decimal) -> float:
    """As a double; what is too large for one is infinite."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def decimal_sqrt(x: Decimal) -> Decimal:
    if x.is_nan():
        return DECIMAL_NAN
    if x < 0:
        raise DataError("cannot take square root of a negative number", hint=ROOT_HINT)
    if x.is_infinite():
        return x
    weight = x.adjusted() // _BASE_DIGITS if x else 0
    scale = _display_scale(weight * _BASE_DIGITS // 2 + 1, x)
    # A root is nearer to the middle between two results than half of these digits could tell only if it is there.
    digits = 2 * (max(x.adjusted(), 0) // 2 + 2 + scale)
    return _rounded(_context(digits).sqrt(x), scale)


def decimal_exp(x: Decimal) -> Decimal:
    if not x.is_finite():
        return DECIMAL_NAN if x.is_nan() else x if x > 0 else _ZERO
    weight = _float_of(x) * _LOG10_E
    scale = _display_scale(int(max(-2_000.0, min(2_000.0, weight))), x)
    return _exp(x, scale)


def _exp(x: Decimal, scale: int) -> Decimal:
    estimate = _float_of(x)
    if abs(estimate) >= EXP_ARGUMENT_MAX:
        if estimate > 0:
            raise _overflow()
        return _rounded(_ZERO, scale)
    return _rounded(_exp_series(x, estimate, scale), scale)


def _exp_series(x: Decimal, estimate: float, scale: int) -> Decimal:
    """exp(x) as PostgreSQL sums it up, with its eight digits more: a result that ends with a 5 just behind them is
    rounded as it does. x is halved until it is small, and the sum of its powers is squared as often."""
    halvings = 0
    weight = int(estimate * _LOG10_E)
    while abs(estimate) > _EXP_SERIES_MAX:
        estimate /= 2
        halvings += 1
    if halvings:
        places = _scale(x) + halvings
        x = decimal_round(_context(max(x.adjusted(), 0) + places + _GUARD_DIGITS).divide(x, 2**halvings), places)
    digits = max(1 + weight + scale + int(halvings * _LOG10_2), 0) + _SERIES_DIGITS
    total, term = _WIDE.add(_ONE, x), _term(x, x, 2, digits - 1)
    count = 2
    while term:
        total = _WIDE.add(total, term)
        count += 1
        term = _term(term, x, count, digits - 1)
    for _ in range(halvings):
        places = max(digits - total.adjusted() // _BASE_DIGITS * 2 * _BASE_DIGITS, 0)
        total = decimal_round(_WIDE.multiply(total, total), places)
    return total


def _term(term: Decimal, x: Decimal, count: int, scale: int) -> Decimal:
    """The next term of the series: the last one times x / count."""
    product = decimal_round(_WIDE.multiply(term, x), scale)
    if not product:
        return product
    # More digits than the quotient keeps: rounding it once is enough.
    context = _context(max(product.adjusted(), 0) + scale + _GUARD_DIGITS)
    return decimal_round(context.divide(product, count), scale)


def decimal_ln(x: Decimal) -> Decimal:
    _require_logarithm(x)
    if not x.is_finite():
        return DECIMAL_NAN if x.is_nan() else x
    scale = _display_scale(_ln_weight(x), x)
    return _rounded(_ln(x, scale), scale)


def decimal_log10(x: Decimal) -> Decimal:
    return decimal_log(Decimal(10), x)


def decimal_log(base: Decimal, x: Decimal) -> Decimal:
    """The logarithm of x to a base."""
    if base.is_nan() or x.is_nan():
        return DECIMAL_NAN
    _require_logarithm(base)
    _require_logarithm(x)
    if base.is_infinite():
        return DECIMAL_NAN if x.is_infinite() else _ZERO
    if x.is_infinite():
        return x
    weight = _ln_weight(x) - _ln_weight(base)
    scale = _display_scale(weight, base, x)
    extra = scale + abs(weight) + abs(_ln_weight(base))
    divisor = _ln(base, extra)
    if not divisor:
        raise DataError("division by zero", hint=DIVISION_HINT)
    return _rounded(_context(extra + _GUARD_DIGITS).divide(_ln(x, extra), divisor), scale)


def _require_logarithm(x: Decimal) -> None:
    if not x.is_nan() and x <= 0:
        raise _no_logarithm(not x)


def _ln(x: Decimal, scale: int) -> Decimal:
    """The logarithm, exact to `scale` digits after the point and then some."""
    return _context(scale + _GUARD_DIGITS).ln(x)


def _ln_weight(x: Decimal) -> int:
    """How many places before the point the first digit of ln(x) stands, as PostgreSQL estimates it."""
    if Decimal("0.9") <= x <= Decimal("1.1"):
        distance = _WIDE.subtract(x, _ONE)
        return distance.adjusted() if distance else 0
    # The first two base-10000 digits stand for the number.
    weight = x.adjusted() // _BASE_DIGITS
    digits = int(_WIDE.scaleb(x, -(weight - 1) * _BASE_DIGITS))
    logarithm = math.log(digits) + (weight - 1) * _BASE_DIGITS * math.log(10)
    return int(math.log10(abs(logarithm)))


def decimal_power(x: Decimal, y: Decimal) -> Decimal:
    if x.is_nan() or y.is_nan():
        # Anything to the power 0, and 1 to any power, is 1: as POSIX has it.
        one = (not y.is_nan() and y == 0) or (not x.is_nan() and x == 1)
        return _ONE if one else DECIMAL_NAN
    if not x and y < 0:
        raise _no_power(True)
    whole = y.is_infinite() or y == y.to_integral_value(context=_WIDE)
    if x < 0 and not whole:
        raise _no_power(False)
    if x.is_infinite() or y.is_infinite():
        return _power_of_infinity(x, y)
    if whole and _POWER_EXPONENT_MIN <= y <= _POWER_EXPONENT_MAX:
        return _power_int(x, int(y))
    if not x:
        return _rounded(_ZERO, SIGNIFICANT_DIGITS_MIN)
    result = _power_exp(x.copy_abs(), y)
    odd = whole and _WIDE.remainder(y, Decimal(2)) != 0
    return result.copy_negate() if x < 0 and odd and result else result


def _power_of_infinity(x: Decimal, y: Decimal) -> Decimal:
    if x == 1 or y == 0:
        return _ONE
    if x == 0:
        return _ZERO
    if y.is_infinite():
        if x == -1:
            return _ONE
        return _INFINITY if (x.copy_abs() > 1) == (y > 0) else _ZERO
    if y < 0:
        return _ZERO
    odd = _WIDE.remainder(y, Decimal(2)).copy_abs() == 1
    return _MINUS_INFINITY if x < 0 and odd else _INFINITY


def _power_int(x: Decimal, exponent: int) -> Decimal:
    scale = _display_scale(0, x)
    if not x or exponent == 0:
        return _rounded(_ONE if exponent == 0 else _ZERO, scale)
    weight = _log10_estimate(x) * exponent
    if weight > INTEGER_DIGITS_MAX + _BASE_DIGITS:
        raise _overflow()
    if weight + 1 < -scale:
        return _rounded(_ZERO, scale)
    digits = scale + max(int(weight), 0) + len(str(exponent)) + _GUARD_DIGITS
    context = _context(digits)
    return _rounded(context.power(x, exponent), scale)


def _log10_estimate(x: Decimal) -> float:
    exponent = x.adjusted()
    return math.log10(float(_WIDE.scaleb(x.copy_abs(), -exponent))) + exponent


def _power_exp(x: Decimal, y: Decimal) -> Decimal:
    """x ** y for x > 0 as exp(y * ln(x))."""
    ln_weight = _ln_weight(x)
    # PostgreSQL's own estimate, with eight digits of the logarithm: its rounding shows in the scale of the result.
    rough_scale = max(8 - ln_weight, 0)
    rough = decimal_round(_ln(x, rough_scale + abs(ln_weight)), rough_scale)
    estimate = _float_of(decimal_round(_WIDE.multiply(rough, y), rough_scale))
    if abs(estimate) > EXP_ARGUMENT_MAX * 1.005:
        if estimate > 0:
            raise _overflow()
        return _rounded(_ZERO, DISPLAY_SCALE_DIGITS_MAX)
    weight = int(estimate * _LOG10_E)
    scale = _display_scale(weight, x, y)
    local_scale = max(scale + weight - ln_weight + _SERIES_DIGITS, 0)
    logarithm = decimal_round(_ln(x, local_scale), local_scale)
    return _exp(decimal_round(_WIDE.multiply(logarithm, y), local_scale), scale)
