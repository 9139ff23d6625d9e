"""Variance and standard deviation from exact sums.

    variance = (n * sum(x^2) - sum(x)^2) / (n * n)          var_pop; var_samp divides by n * (n - 1)

All sums are exact, so the numerator is exact too: adding and deleting the same rows gives back the same result. There
is one rounding of the quotient and, for a standard deviation, one of its root.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from .errors import DataError
from .literals import EXACT
from .numbers import decimal_div

#: Bits of an integer root before the one rounding to a float, which keeps 53.
_ROOT_BITS_MIN = 64


def numeric_variance(
    count: int, total: Decimal | int, total_of_squares: Decimal | int, sample: bool, root: bool
) -> Decimal | None:
    """PostgreSQL's numeric_var_samp, numeric_stddev_pop and so on, digit for digit. All values are finite.

    `total` carries the largest scale of the values, as a sum of them does: it decides how many digits there are. The
    variance is rounded to the scale of a quotient, and its root to that same scale.
    """
    if count < (2 if sample else 1):
        return None
    total, total_of_squares = Decimal(total), Decimal(total_of_squares)
    numerator = EXACT.subtract(EXACT.multiply(total_of_squares, count), EXACT.multiply(total, total))
    if numerator <= 0:
        return Decimal(0)
    variance = decimal_div(numerator, count * (count - 1 if sample else count))
    return _decimal_root(variance) if root else variance


def float_variance(
    count: int, exact_total: Fraction, exact_squares: Fraction, sample: bool, root: bool
) -> float | None:
    """The float next to the exact result. All values are finite."""
    if count < (2 if sample else 1):
        return None
    numerator = exact_squares * count - exact_total * exact_total
    variance = numerator / (count * (count - 1 if sample else count))
    return _float_root(variance) if root else _float(variance)


def _decimal_root(value: Decimal) -> Decimal:
    """The square root with the scale of the value, rounded half away from zero."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "the variance of finite values is finite"
    scale = -exponent
    # One more digit than the result has: rounding half up needs no more of the root.
    digits = math.isqrt(int(EXACT.scaleb(value, scale)) * 10 ** (scale + 2))
    return EXACT.scaleb(Decimal((digits + 5) // 10), -scale)


def _float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        raise DataError("value out of range: overflow", hint="the result is above the largest float") from None


def _float_root(exact: Fraction) -> float:
    """The root as an integer with more bits than a float has, the last of which says whether anything was cut off."""
    numerator, denominator = exact.numerator, exact.denominator
    missing_bits = 2 * _ROOT_BITS_MIN - numerator.bit_length() + denominator.bit_length()
    shift = max(0, (missing_bits + 1) // 2)
    scaled = numerator << (2 * shift)
    found = math.isqrt(scaled // denominator)
    inexact = found * found * denominator != scaled
    return _float(Fraction(2 * found + inexact, 1 << (shift + 1)))
