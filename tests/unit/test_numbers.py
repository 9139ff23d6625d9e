"""Arithmetic: the tables were checked against PostgreSQL 15, the properties against fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from viewtide.changetables import numbers
from viewtide.changetables.errors import DataError
from viewtide.changetables.types import INT_MAX, INT_MIN, NAN

finite_floats = st.floats(allow_nan=False, allow_infinity=False)
finite_decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30).map(
    numbers.decimal_value
)
ints = st.integers(INT_MIN, INT_MAX)

# a, b, a / b, a % b, a * b
POSTGRESQL_RESULTS = [
    ("1", "3", "0.33333333333333333333", "1", "3"),
    ("2", "3", "0.66666666666666666667", "2", "6"),
    ("-2", "3", "-0.66666666666666666667", "-2", "-6"),
    ("1", "7", "0.14285714285714285714", "1", "7"),
    ("10", "3", "3.3333333333333333", "1", "30"),
    ("100", "3", "33.3333333333333333", "1", "300"),
    ("1000", "3", "333.3333333333333333", "1", "3000"),
    ("9999", "3", "3333.0000000000000000", "0", "29997"),
    ("10000", "3", "3333.3333333333333333", "1", "30000"),
    ("10001", "3", "3333.6666666666666667", "2", "30003"),
    ("100000000", "7", "14285714.285714285714", "2", "700000000"),
    ("1", "10000", "0.000100000000000000000000", "1", "10000"),
    ("1", "10001", "0.000099990000999900009999", "1", "10001"),
    ("1", "9999", "0.00010001000100010001", "1", "9999"),
    ("3", "10000", "0.00030000000000000000", "3", "30000"),
    ("0", "3", "0.00000000000000000000", "0", "0"),
    ("0.00", "7", "0.00000000000000000000", "0.00", "0.00"),
    ("0", "-7", "0.00000000000000000000", "0", "0"),
    ("1.50", "3", "0.50000000000000000000", "1.50", "4.50"),
    (
        "1.50000000000000000000000",
        "3",
        "0.50000000000000000000000",
        "1.50000000000000000000000",
        "4.50000000000000000000000",
    ),
    (
        "1",
        "3.00000000000000000000000",
        "0.33333333333333333333333",
        "1.00000000000000000000000",
        "3.00000000000000000000000",
    ),
    ("123456789012345678901234567890", "7", "17636684144620811271604938270", "0", "864197523086419752308641975230"),
    (
        "7",
        "123456789012345678901234567890",
        "0.000000000000000000000000000056700000510300004644",
        "7",
        "864197523086419752308641975230",
    ),
    ("0.0001", "3", "0.000033333333333333333333", "0.0001", "0.0003"),
    ("0.00001", "3", "0.000003333333333333333333", "0.00001", "0.00003"),
    ("0.000000000001", "7", "0.00000000000014285714285714285714", "0.000000000001", "0.000000000007"),
    ("1", "0.0003", "3333.3333333333333333", "0.0001", "0.0003"),
    ("12345.678", "0.001", "12345678.000000000000", "0.000", "12.345678"),
    ("-7.5", "2", "-3.7500000000000000", "-1.5", "-15.0"),
    ("7.5", "-2", "-3.7500000000000000", "1.5", "-15.0"),
    ("5", "5", "1.00000000000000000000", "0", "25"),
    ("5000", "5000", "1.00000000000000000000", "0", "25000000"),
    ("50000", "5", "10000.0000000000000000", "0", "250000"),
    ("99999999", "9999", "10001.0000000000000000", "0", "999899990001"),
    ("1e20", "3", "33333333333333333333", "1", "300000000000000000000"),
    ("0.5", "1e-20", "50000000000000000000.00000000000000000000", "0.00000000000000000000", "0.000000000000000000005"),
    ("22", "7.0000", "3.1428571428571429", "1.0000", "154.0000"),
    ("1e10", "1e-10", "100000000000000000000.0000000000", "0.0000000000", "1.0000000000"),
    ("NaN", "0", "NaN", "NaN", "NaN"),
    ("Infinity", "3", "Infinity", "NaN", "Infinity"),
    ("-Infinity", "-3", "Infinity", "NaN", "Infinity"),
    ("3", "Infinity", "0", "3", "Infinity"),
    ("Infinity", "-Infinity", "NaN", "NaN", "-Infinity"),
    ("NaN", "2", "NaN", "NaN", "NaN"),
    ("1234.5678", "12.34", "100.0460129659643436", "0.5678", "15234.566652"),
    ("-1234.5678", "12.34", "-100.0460129659643436", "-0.5678", "-15234.566652"),
    ("9223372036854775807", "3", "3074457345618258602", "1", "27670116110564327421"),
]


def value(text: str) -> Decimal:
    return numbers.decimal_value(Decimal(text))


def shown(result: Decimal) -> str:
    """As PostgreSQL prints it: the scale is part of the result."""
    return format(result, "f")


@pytest.mark.parametrize(("a", "b", "quotient", "remainder", "product"), POSTGRESQL_RESULTS)
def test_numeric_results_have_the_digits_of_postgresql(
    a: str, b: str, quotient: str, remainder: str, product: str
) -> None:
    assert shown(numbers.decimal_div(value(a), value(b))) == quotient
    assert shown(numbers.decimal_mod(value(a), value(b))) == remainder
    assert shown(numbers.decimal_mul(value(a), value(b))) == product


@pytest.mark.parametrize(
    ("total", "count", "average"),
    [
        (3, 2, "1.5000000000000000"),
        (4, 3, "1.3333333333333333"),
        (18446744073709551614, 2, "9223372036854775807"),
        (0, 2, "0.00000000000000000000"),
        (-5, 3, "-1.6666666666666667"),
        (30002, 3, "10000.6666666666666667"),
        (123456791, 3, "41152263.666666666667"),
        (Decimal("4.50"), 2, "2.2500000000000000"),
    ],
)
def test_average_has_the_digits_of_postgresql(total: Decimal | int, count: int, average: str) -> None:
    assert shown(numbers.decimal_avg(total, count)) == average


@given(st.integers(-(10**40), 10**40), st.integers(1, 10**12))
@settings(deadline=None, max_examples=100)
def test_average_of_integers_is_their_division(total: int, count: int) -> None:
    assert shown(numbers.decimal_avg(total, count)) == shown(numbers.decimal_div(total, count))


@pytest.mark.parametrize(
    ("given_value", "precision", "scale", "stored"),
    [
        ("1.005", 10, 2, "1.01"),
        ("-1.005", 10, 2, "-1.01"),
        ("2.5", 3, 0, "3"),
        ("-2.5", 3, 0, "-3"),
        ("999.994", 5, 2, "999.99"),
        ("999.995", 5, 2, None),
        ("0.00049", 3, 3, "0.000"),
        ("0.0995", 2, 3, None),
        ("1250", 3, -2, "1300"),
        ("99949", 3, -2, "99900"),
        ("99950", 3, -2, None),
        ("0.0099", 2, 4, "0.0099"),
        ("0.00995", 2, 4, None),
        ("NaN", 5, 2, "NaN"),
        ("sNaN", 5, 2, "NaN"),
        ("Infinity", 5, 2, None),
        ("7", 5, 2, "7.00"),
        ("1e3", 6, 2, "1000.00"),
        ("-0.001", 5, 2, "0.00"),
        ("1e999999999", 5, 2, None),
    ],
)
def test_precision_and_scale(given_value: str, precision: int, scale: int, stored: str | None) -> None:
    if stored is None:
        with pytest.raises(DataError, match="numeric"):
            numbers.decimal_fit(Decimal(given_value), precision, scale)
    else:
        assert shown(numbers.decimal_fit(Decimal(given_value), precision, scale)) == stored


@pytest.mark.parametrize(
    ("text", "form"), [("1E+3", "1000"), ("-0.00", "0.00"), ("1.50", "1.50"), ("-Infinity", "-Infinity"), ("0E+5", "0")]
)
def test_engine_form_of_decimals(text: str, form: str) -> None:
    assert str(numbers.decimal_value(Decimal(text))) == form


def test_every_decimal_nan_is_one_object() -> None:
    infinity = Decimal("Infinity")
    results = [
        numbers.decimal_value(Decimal("-NaN123")),
        numbers.decimal_value(Decimal("sNaN")),
        numbers.decimal_add(infinity, -infinity),
        numbers.decimal_sub(infinity, infinity),
        numbers.decimal_mul(infinity, Decimal(0)),
        numbers.decimal_div(infinity, infinity),
        numbers.decimal_mod(infinity, Decimal(2)),
        numbers.decimal_neg(numbers.DECIMAL_NAN),
        numbers.decimal_abs(numbers.DECIMAL_NAN),
    ]
    assert all(result is numbers.DECIMAL_NAN for result in results)


@given(finite_decimals, finite_decimals)
@settings(deadline=None, max_examples=150)
@example(Decimal("-1"), Decimal("0"))
def test_sums_and_products_are_exact(a: Decimal, b: Decimal) -> None:
    # The caller's context must not matter.
    with localcontext() as context:
        context.prec = 3
        total, difference, product = numbers.decimal_add(a, b), numbers.decimal_sub(a, b), numbers.decimal_mul(a, b)
    assert Fraction(total) == Fraction(a) + Fraction(b)
    assert Fraction(difference) == Fraction(a) - Fraction(b)
    assert Fraction(product) == Fraction(a) * Fraction(b)
    assert not any(str(result).startswith("-0E") or str(result) == "-0" for result in (total, difference, product))


@given(finite_decimals, finite_decimals.filter(bool))
@settings(deadline=None, max_examples=150)
def test_quotient_is_rounded_half_away_from_zero(a: Decimal, b: Decimal) -> None:
    quotient = numbers.decimal_div(a, b)
    exponent = quotient.as_tuple().exponent
    assert isinstance(exponent, int)
    exact = abs(Fraction(a) / Fraction(b)) * Fraction(10) ** -exponent
    assert abs(Fraction(quotient)) * Fraction(10) ** -exponent == math.floor(exact + Fraction(1, 2))
    assert not quotient or (quotient < 0) == ((a < 0) != (b < 0))


@given(finite_decimals, finite_decimals.filter(bool))
@settings(deadline=None, max_examples=100)
def test_remainder_completes_the_truncated_quotient(a: Decimal, b: Decimal) -> None:
    exact = Fraction(a) / Fraction(b)
    assert Fraction(numbers.decimal_mod(a, b)) == Fraction(a) - math.trunc(exact) * Fraction(b)


def test_limits_of_numeric() -> None:
    largest = value("9" * 131_072)
    tiny = value("0." + "0" * 16_382 + "1")
    assert numbers.decimal_sub(numbers.decimal_add(largest, tiny), largest) == tiny
    # A product keeps 16383 digits after the point, rounded; this one has nothing left.
    assert shown(numbers.decimal_mul(tiny, tiny)) == "0." + "0" * 16_383
    too_big: list[Callable[[], Decimal]] = [
        lambda: numbers.decimal_add(largest, 1),
        lambda: numbers.decimal_mul(largest, 10),
        lambda: numbers.decimal_div(largest, Decimal("0.1")),
        lambda: numbers.decimal_value(Decimal("1E+131072")),
        lambda: numbers.decimal_value(Decimal("1E+999999999")),
        lambda: numbers.decimal_value(Decimal("1E-999999999999")),
    ]
    for compute in too_big:
        with pytest.raises(DataError, match="value overflows numeric format"):
            compute()


@pytest.mark.parametrize(
    "divide",
    [
        lambda: numbers.decimal_div(Decimal(1), Decimal("0.00")),
        lambda: numbers.decimal_div(Decimal("Infinity"), 0),
        lambda: numbers.decimal_mod(Decimal("Infinity"), Decimal(0)),
        lambda: numbers.decimal_mod(Decimal(1), Decimal(0)),
        lambda: numbers.decimal_avg(1, 0),
        lambda: numbers.int_div(1, 0),
        lambda: numbers.int_mod(1, 0),
        lambda: numbers.float_div(1.0, 0.0),
        lambda: numbers.float_div(math.inf, -0.0),
    ],
)
def test_division_by_zero(divide: Callable[[], object]) -> None:
    with pytest.raises(DataError) as raised:
        divide()
    assert raised.value.message == "division by zero" and "NULLIF" in raised.value.hint


@given(finite_floats)
@settings(deadline=None, max_examples=200)
@example(5e-324)
@example(-1.7976931348623157e308)
@example(-0.0)
def test_a_float_is_an_integer_times_the_smallest_float(x: float) -> None:
    exact = numbers.float_to_exact(x)
    assert Fraction(exact, 2**1074) == Fraction(x)
    assert numbers.exact_to_float(exact) == x


@given(st.lists(finite_floats, min_size=1, max_size=20))
@settings(deadline=None, max_examples=100)
def test_exact_sums_round_once(values: list[float]) -> None:
    total = sum(map(numbers.float_to_exact, values))
    exact = sum(map(Fraction, values), Fraction(0))
    try:
        expected = float(exact)
    except OverflowError:
        with pytest.raises(DataError, match="value out of range"):
            numbers.exact_to_float(total)
    else:
        assert numbers.exact_to_float(total) == expected
    assert numbers.exact_to_float(total, len(values)) == float(exact / len(values))


@given(ints, ints)
@settings(deadline=None, max_examples=200)
@example(INT_MIN, -1)
@example(-7, 2)
def test_integers_have_64_bits_and_truncate(a: int, b: int) -> None:
    operations: list[tuple[Callable[[], int], int]] = [
        (lambda: numbers.int_add(a, b), a + b),
        (lambda: numbers.int_sub(a, b), a - b),
        (lambda: numbers.int_mul(a, b), a * b),
        (lambda: numbers.int_neg(a), -a),
        (lambda: numbers.int_abs(a), abs(a)),
    ]
    if b:
        truncated = math.trunc(Fraction(a, b))
        operations += [(lambda: numbers.int_div(a, b), truncated), (lambda: numbers.int_mod(a, b), a - truncated * b)]
    for compute, expected in operations:
        if INT_MIN <= expected <= INT_MAX:
            assert compute() == expected
        else:
            with pytest.raises(DataError, match="integer out of range"):
                compute()


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: numbers.float_sub(math.inf, math.inf), NAN),
        (lambda: numbers.float_mul(math.inf, 0.0), NAN),
        (lambda: numbers.float_div(math.inf, math.inf), NAN),
        (lambda: numbers.float_div(float("nan"), 0.0), NAN),
        (lambda: numbers.float_add(float("nan"), 1.0), NAN),
        (lambda: numbers.float_result(float("nan")), NAN),
        (lambda: numbers.float_result(math.inf), math.inf),
        (lambda: numbers.float_add(math.inf, 1.0), math.inf),
        (lambda: numbers.float_div(math.inf, 2.0), math.inf),
        (lambda: numbers.float_div(1.0, math.inf), 0.0),
        (lambda: numbers.float_mul(0.0, 5.0), 0.0),
        (lambda: numbers.float_add(1.5, 2.0), 3.5),
    ],
)
def test_float_results(compute: Callable[[], float], expected: float) -> None:
    result = compute()
    assert result is NAN if expected is NAN else result == expected


@pytest.mark.parametrize(
    ("compute", "what"),
    [
        (lambda: numbers.float_add(1.7e308, 1.7e308), "overflow"),
        (lambda: numbers.float_sub(-1.7e308, 1.7e308), "overflow"),
        (lambda: numbers.float_mul(1e200, 1e200), "overflow"),
        (lambda: numbers.float_div(1e300, 1e-300), "overflow"),
        (lambda: numbers.float_mul(1e-200, 1e-200), "underflow"),
        (lambda: numbers.float_div(1e-300, 1e300), "underflow"),
    ],
)
def test_floats_out_of_range(compute: Callable[[], float], what: str) -> None:
    with pytest.raises(DataError, match=f"value out of range: {what}"):
        compute()
