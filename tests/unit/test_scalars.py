"""Scalar expressions by hand: values, NULL, errors and refusals. The values are PostgreSQL 15's.

`tests/properties/test_scalars_postgres.py` compares far more of them with a running server.
"""

from __future__ import annotations

import datetime
import math
import time
from decimal import Decimal

import pytest

from tests.scalars import bound, compiled, exact, value
from viewtide.changetables import casts, evaluate, functions, mathematics, signatures, texts
from viewtide.changetables.binding import nullable
from viewtide.changetables.compiler import Compiler, column_leaf
from viewtide.changetables.errors import DataError, ProgrammingError, UnsupportedView
from viewtide.changetables.expressions import OPERATORS, Call, Literal
from viewtide.changetables.types import INT_MAX, INT_MIN, STR, Row, Type, Value

D = Decimal
COLUMNS: dict[str, Type | str] = {
    "i": "bigint", "n": "numeric", "f": "float8", "s": "text", "b": "boolean", "d": "date", "ts": "timestamp",
    "tz": "timestamptz", "x": "bytea", "j": "jsonb",
}  # fmt: skip
NULLS: Row = (None,) * len(COLUMNS)
DAY = datetime.date
MOMENT = datetime.datetime


# --- values ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ceil(-0.5::float8)", -0.0),
        ("ceil(1.2)", D(2)),
        ("ceiling(1)", 1.0),
        ("floor(-1.2)", D(-2)),
        ("round(2.5::float8)", 2.0),
        ("round(2.5)", D(3)),
        ("round(-2.5)", D(-3)),
        ("round(1.005, 2)", D("1.01")),
        ("round(1234.5, -2)", D(1200)),
        ("round(7, 2)", D("7.00")),
        ("trunc(-1.99, 1)", D("-1.9")),
        ("sign(-3)", -1.0),
        ("abs(-3)", 3),
        ("mod(-7, 3)", -1),
        ("-7 / 2", -3),
        ("7.0 / 2", D("3.5000000000000000")),
        ("2 ^ 3", 8.0),
        ("2.0 ^ 3", D("8.0000000000000000")),
        ("2 ^ 3 ^ 2", 64.0),
        ("- 2 ^ 2", 4.0),
        ("power(2, 0.5)", D("1.4142135623730950")),
        ("sqrt(2::numeric)", D("1.414213562373095")),
        ("sqrt(4)", 2.0),
        ("exp(1.0)", D("2.7182818284590452")),
        ("ln(2.0)", D("0.6931471805599453")),
        ("log(100)", 2.0),
        ("log10(1000.0)", D("3.0000000000000000")),
        ("log(2, 8)", D("3.0000000000000000")),
        ("div(7, -2)", D(-3)),
        ("gcd(12, 18)", 6),
        ("lcm(1.5, 0.4)", D("6.0")),
        ("+ 5", 5),
        ("greatest(1, 2.5, null)", D("2.5")),
        ("least(3, 1.5::float8)", 1.5),
        ("greatest('a', null, 'b')", "b"),
    ],
)
def test_numbers(text: str, expected: Value) -> None:
    assert exact(value(text)) == exact(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'a' || 1 || true", "a1true"),
        ("concat('a', null, 1, true, 1.50)", "a1t1.50"),
        ("concat(null, null)", ""),
        ("concat_ws(', ', 'a', null, 'b')", "a, b"),
        ("lower('ÄİΣ')", "äiσ"),
        ("upper('straße ŉ')", "STRAßE ŉ"),
        ("initcap('hELLO wORLD-x 1st')", "Hello World-X 1st"),
        ("length('日本')", 2),
        ("char_length('é')", 1),
        ("octet_length('é')", 2),
        ("length('\\x00ff'::bytea)", 2),
        ("substring('abcdef' from 2 for 3)", "bcd"),
        ("substring('abcdef', -1, 4)", "ab"),
        ("substr('abcdef', 4)", "def"),
        ("substring('abc' for 2)", "ab"),
        ("left('abc', -1)", "ab"),
        ("right('abc', -1)", "bc"),
        ("right('abc', 0)", ""),
        ("trim('  a ')", "a"),
        ("trim(both 'xy' from 'yxaxy')", "a"),
        ("trim(leading 'x' from 'xax')", "ax"),
        ("trim(trailing from ' a ')", " a"),
        ("ltrim('xxa', 'x')", "a"),
        ("btrim('xax', '')", "xax"),
        ("lpad('7', 3, '0')", "007"),
        ("lpad('abc', 2)", "ab"),
        ("rpad('a', 6, 'xyz')", "axyzxy"),
        ("replace('aaa', 'a', 'bc')", "bcbcbc"),
        ("replace('aaa', '', 'x')", "aaa"),
        ("translate('12345', '143', 'ax')", "a2x5"),
        ("position('b' in 'abc')", 2),
        ("strpos('abc', '')", 1),
        ("strpos('abc', 'z')", 0),
        ("starts_with('abc', 'ab')", True),
        ("repeat('ab', 3)", "ababab"),
        ("repeat('ab', -3)", ""),
        ("reverse('aé')", "éa"),
        ("split_part('a,b,c', ',', 2)", "b"),
        ("split_part('a,b,c', ',', -1)", "c"),
        ("split_part('a,b', ',', 9)", ""),
        ("ascii('é')", 233),
        ("ascii('')", 0),
        ("chr(8364)", "€"),
        ("'abc' like 'a%'", True),
        ("'abc' not like 'A%'", True),
        ("'ABC' ilike 'a_c'", True),
        ("'ÄB' not ilike 'ä%'", False),
        ("'a%c' like 'a!%c' escape '!'", True),
        ("'abc' like 'a!%c' escape '!'", False),
        ("'a\\b' like 'a\\b' escape ''", True),
        ("'x' like 'ab\\'", False),
    ],
)
def test_texts(text: str, expected: Value) -> None:
    assert exact(value(text)) == exact(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("date '2024-02-28' + 2", DAY(2024, 3, 1)),
        ("2 + date '2024-02-28'", DAY(2024, 3, 1)),
        ("date '2024-03-01' - 1", DAY(2024, 2, 29)),
        ("date '2024-03-01' - date '2023-03-01'", 366),
        ("date '2024-03-01' - '2024-02-01'", 29),
        ("date '2024-01-31' + interval '1 month'", MOMENT(2024, 2, 29)),
        ("timestamp '2024-02-29 12:00' - interval '1 year'", MOMENT(2023, 2, 28, 12)),
        ("timestamp '2024-01-01' + interval '1 day 02:03:04.5'", MOMENT(2024, 1, 2, 2, 3, 4, 500_000)),
        ("timestamp '2024-01-01' + '90 minutes'", MOMENT(2024, 1, 1, 1, 30)),
        ("timestamp '2024-01-01' + interval '1' hour * 36", MOMENT(2024, 1, 2, 12)),
        ("timestamp '2024-01-01' - interval '1.5 days'", MOMENT(2023, 12, 30, 12)),
        ("timestamp '2024-01-01' + '1 week'::interval", MOMENT(2024, 1, 8)),
        ("date_trunc('month', timestamp '2024-02-29 12:34')", MOMENT(2024, 2, 1)),
        ("date_trunc('week', date '2024-02-29')", MOMENT(2024, 2, 26)),
        ("extract(year from date '2024-02-29')", D(2024)),
        ("extract(epoch from timestamp '1970-01-02 00:00:00.5')", D("86400.500000")),
        ("extract('second' from timestamp '2024-01-01 00:00:12.5')", D("12.500000")),
        ("date_part('second', timestamp '2024-01-01 00:00:12.5')", 12.5),
        ("extract(isodow from date '2024-02-29')", D(4)),
        ("extract(timezone from timestamptz '2024-02-29')", D(0)),
        ("make_date(2024, 2, 29)", DAY(2024, 2, 29)),
        ("timestamp '2024-01-01' at time zone 'UTC'", MOMENT(2024, 1, 1)),
        ("timestamptz '2024-01-01 02:00+02'::text", "2024-01-01 00:00:00+00"),
        ("timestamp '2024-01-01 00:00:00.500'::text", "2024-01-01 00:00:00.5"),
        ("date '0001-01-01'::text", "0001-01-01"),
        ("date '2024-01-01' < timestamptz '2024-01-01 00:00:01'", True),
        ("timestamp '2024-01-01' = timestamptz '2024-01-01 00:00'", True),
        ("nullif(date '2024-01-01', timestamp '2024-01-01 01:00')", DAY(2024, 1, 1)),
        ("coalesce(null, date '2024-01-01', timestamp '2024-01-02')", MOMENT(2024, 1, 1)),
        ("date(timestamp '2024-01-01 23:00')", DAY(2024, 1, 1)),
    ],
)
def test_moments(text: str, expected: Value) -> None:
    assert exact(value(text)) == exact(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e15::float8::text", "1e+15"),
        ("100000::float8::text", "100000"),
        ("0.0001::float8::text", "0.0001"),
        ("23180432705201168::float8::text", "2.3180432705201168e+16"),
        ("'NaN'::float8::text", "NaN"),
        ("1.50::text", "1.50"),
        ("true::text", "true"),
        ("'\\x00ff'::bytea::text", "\\x00ff"),
        ("'a\\001'::text::bytea", b"a\x01"),
        ("'t'::text::boolean", True),
        ("' 12 '::text::bigint", 12),
        ("'2024-01-05 24:00:00'::text::timestamp", MOMENT(2024, 1, 6)),
        ("2.5::int", 3),
        ("2.5::float8::int", 2),
        ("0::boolean", False),
        ("true::int", 1),
        ("12.345::numeric(4,1)", D("12.3")),
        ("'abc'::varchar(2)", "ab"),
    ],
)
def test_casts(text: str, expected: Value) -> None:
    assert exact(value(text)) == exact(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 between symmetric 3 and 1", True),
        ("2 between 3 and 1", False),
        ("null::boolean is unknown", True),
        ("true is not unknown", True),
        ("null is distinct from 1", True),
        ("1 is not distinct from 1", True),
        ("case 2 when 1 then 'a' when 2 then 'b' end", "b"),
        ("case when null then 1 else 2 end", 2),
        ("nullif(1, 1)", None),
        ("'NaN'::float8 = 'NaN'::float8", True),
        ("'NaN'::numeric > 'Infinity'::numeric", True),
        ("-0.0::float8 = 0", True),
    ],
)
def test_choices(text: str, expected: Value) -> None:
    assert exact(value(text)) == exact(expected)


# --- NULL ---


@pytest.mark.parametrize(
    "text",
    [
        "n + 1", "ceil(n)", "round(n, 2)", "power(f, 2)", "gcd(i, 2)", "lower(s)", "s || 'x'", "substring(s, 1, 2)",
        "lpad(s, 3)", "replace('a', s, 'b')", "split_part('a', ',', i)", "s like 'a%'", "'a' like s", "s ilike 'a'",
        "concat_ws(s, 'a')", "d + 1", "d - d", "ts + interval '1 day'", "ts + i * interval '1 day'",
        "date_trunc('day', ts)",
        "extract(year from d)", "date_part(s, ts)", "make_date(i, 1, 1)", "tz at time zone 'UTC'", "n::text", "s::date",
        "greatest(n, null)", "least(i, i)", "chr(i)", "starts_with(s, '')", "x || x", "b is null and null",
        "position(s in 'a')",
    ],
)  # fmt: skip
def test_null_in_null_out(text: str) -> None:
    assert value(text, COLUMNS, NULLS) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("concat(s, i, b)", ""),
        ("concat_ws(',', s, 'a', n)", "a"),
        ("greatest(i, 3, n)", D(3)),
        ("coalesce(s, 'x')", "x"),
        ("b is true", False),
        ("b is not true", True),
        ("b is unknown", True),
        ("false and b", False),
        ("true or b", True),
    ],
)
def test_null_that_counts_for_nothing(text: str, expected: Value) -> None:
    assert exact(value(text, COLUMNS, NULLS)) == exact(expected)


def test_all_arguments_are_evaluated_although_one_is_null() -> None:
    with pytest.raises(DataError, match="division by zero"):
        value("lpad(s, 1 / (i - 1))", {"s": "text", "i": "bigint"}, (None, 1))
    with pytest.raises(DataError, match="division by zero"):
        value("concat_ws(s, (1 / (i - 1))::text)", {"s": "text", "i": "bigint"}, (None, 1))


def test_operators_that_can_be_null_only_through_an_argument() -> None:
    """What the binder concludes from these sets must hold for the compiled code."""
    assert functions.STRICT_OPERATORS | functions.NEVER_NULL <= OPERATORS
    for text in ("lower(s)", "concat(s, s)", "greatest(s, 'a')", "s in ('a', s)", "coalesce(s, 'a')", "s is null"):
        for null in (True, False):
            tree = bound(text, {"s": STR}, nullable=null)
            assert compiled(tree)[1].nullable <= nullable(tree), text


def test_code_of_not_null_columns_has_no_tests_for_null() -> None:
    columns = {"s": "text", "i": "bigint", "ts": "timestamp"}
    for text in (
        "lower(s) || lpad(s, i)",
        "date_trunc('day', ts) + interval '1 day'",
        "greatest(i, 1)",
        "s ilike 'a%'",
    ):
        _, code = compiled(bound(text, columns, nullable=False))
        assert "None" not in code.text.replace("is not None", ""), code.text
        assert not code.nullable


def test_text_of_the_user_is_not_in_the_source() -> None:
    marker = "marker_of_the_user"
    parts = f"replace(s, '{marker}', '{marker}'), date_part('{marker}', ts)"
    text = f"concat_ws('{marker}', {parts}) like '{marker}!%' escape '!'"
    compiler = Compiler(leaf=column_leaf, namespace={})
    code = compiler.value(bound(text, {"s": "text", "ts": "timestamp"}))
    assert marker not in code.text + "".join(compiler.helpers) + "".join(compiler.namespace)
    assert marker in compiler.namespace.values()


# --- errors ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "division by zero"),
        ("1.0 % 0", "division by zero"),
        ("div(1, 0)", "division by zero"),
        ("sqrt(-1)", "cannot take square root of a negative number"),
        ("ln(0.0)", "cannot take logarithm of zero"),
        ("log(-1)", "cannot take logarithm of a negative number"),
        ("log(1.0, 5)", "division by zero"),
        ("0 ^ -1", "zero raised to a negative power is undefined"),
        ("(-8.0) ^ 0.5", "a negative number raised to a non-integer power yields a complex result"),
        ("exp(1000)", "value out of range: overflow"),
        ("exp(-1000)", "value out of range: underflow"),
        ("exp(10000.0)", "value overflows numeric format"),
        ("power(10.0, 200000)", "value overflows numeric format"),
        ("10 ^ 400", "value out of range: overflow"),
        (f"abs({INT_MIN})", "integer out of range"),
        (f"lcm({INT_MAX}, 2)", "integer out of range"),
        ("substring('a', 1, -1)", "negative substring length not allowed"),
        ("split_part('a', ',', 0)", "field position must not be zero"),
        ("chr(0)", "null character not permitted"),
        ("chr(-1)", "requested character too large for encoding"),
        ("chr(55296)", "requested character not valid for encoding"),
        ("repeat('x', 1000000000)", "requested length too large"),
        ("lpad('x', 1000000000)", "requested length too large"),
        ("replace(repeat('x', 10000), 'x', repeat('y', 10000))", "requested length too large"),
        ("repeat('x', 10000000) || repeat('x', 10000000)", "requested length too large"),
        ("concat(repeat('x', 10000000), repeat('x', 10000000))", "requested length too large"),
        ("concat_ws(repeat('x', 10000000), '', '', '')", "requested length too large"),
        ("'a' like 'a' escape 'xy'", "invalid escape string"),
        ("'ab' like 'a\\'", "LIKE pattern must not end with escape character"),
        ("date '9999-12-31' + 1", "date out of range"),
        ("date '0001-01-01' - 1", "date out of range"),
        ("date '2024-01-01' + 9000000000000", "date out of range"),
        ("timestamp '9999-12-31' + interval '1 month'", "timestamp out of range"),
        ("timestamp '0001-01-01' - interval '1 microsecond'", "timestamp out of range"),
        ("date_trunc('decade', date '0001-01-01')", "timestamp out of range"),
        ("date_trunc('fortnight', timestamp '2024-01-01')", 'unit "fortnight" not recognized'),
        ("date_trunc('epoch', timestamp '2024-01-01')", 'unit "epoch" not supported'),
        ("extract(hour from date '2024-01-01')", 'unit "hour" not supported for type date'),
        ("extract(timezone from timestamp '2024-01-01')", 'unit "timezone" not supported'),
        ("make_date(2023, 2, 29)", "date field value out of range: 2023-02-29"),
        ("make_date(0, 1, 1)", "date field value out of range"),
        ("'x'::text::bigint", 'invalid input syntax for type bigint: "x"'),
        ("'1e400'::text::float8", "out of range for type double precision"),
        ("'1e-400'::text::float8", "out of range for type double precision"),
        ("'1e999999999999'::text::numeric", "value overflows numeric format"),
        ("'maybe'::text::boolean", 'invalid input syntax for type boolean: "maybe"'),
        ("'2024-02-30'::text::date", "date/time field value out of range"),
        ("'soon'::text::date", 'invalid input syntax for type date: "soon"'),
        ("'\\x0'::text::bytea", "invalid input syntax for type bytea"),
        ("'NaN'::float8::bigint", "cannot convert NaN to an integer"),
        ("1e300::numeric::float8::numeric(5,2)", "numeric field overflow"),
    ],
)
def test_errors_of_values(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        value(text)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lower(1)", "function lower(integer) does not exist"),
        ("round(1.5::float8, 1)", "function round(double precision, integer) does not exist"),
        ("left('a')", "function left(unknown) does not exist"),
        ("mod(1.5::float8, 1)", "function mod(double precision, integer) does not exist"),
        ("extract(year from 'x')", "function extract(unknown, unknown) is not unique"),
        ("coalesce()", "function coalesce() does not exist"),
        ("greatest(1, 'x'::text)", "GREATEST types integer and text cannot be matched"),
        ("'a' ^ true", "operator does not exist: unknown ^ boolean"),
        ("date '2024-01-01' + date '2024-01-01'", "operator does not exist: date + date"),
        ("date '2024-01-01' * 2", "operator does not exist: date * integer"),
        ("true like 'a'", "operator does not exist: boolean LIKE text"),
        ("1::date", "cannot cast type integer to date"),
        ("true::float8", "cannot cast type boolean to double precision"),
        ("concat_ws(1, 2)", "function concat_ws(integer, integer) does not exist"),
    ],
)
def test_errors_of_types(text: str, message: str) -> None:
    with pytest.raises(ProgrammingError) as caught:
        bound(text)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s ~ 'a'", "regular expressions"),
        ("s similar to 'a'", "regular expressions"),
        ("ts - ts", "the difference of timestamps, which is an interval"),
        ("d - ts", "the difference of timestamps, which is an interval"),
        ("interval '1 day'", "an interval as a value"),
        ("interval '1 day' < interval '2 days'", "an interval as a value"),
        ("coalesce(interval '1 day', null)", "an interval as a value"),
        ("ts at time zone 'Europe/Berlin'", "AT TIME ZONE with another zone than 'UTC'"),
        ("ts at time zone s", "AT TIME ZONE with another zone than 'UTC'"),
        ("j -> 'a'", "operator -> on json"),
        ("j ->> 'a'", "operator ->> on json"),
        ("j::text", "cast from json to text"),
        ("j = j", "comparison and grouping of json values"),
        ("to_char(ts, 'YYYY')", "function to_char"),
        ("age(ts)", "function age"),
        ("md5(s)", "function md5"),
        ("regexp_replace(s, 'a', 'b')", "function regexp_replace"),
        ("now()", "volatile function now"),
        ("random()", "volatile function random"),
        ("current_date", "volatile function current_date"),
        ("interval '1 day' / 2", "operator interval / integer"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedView) as caught:
        bound(text, COLUMNS)
    assert caught.value.reason == reason


@pytest.mark.parametrize("text", ["interval 'soon'", "interval '1 fortnight'", "interval ''", "'x'::interval"])
def test_intervals_that_cannot_be_read(text: str) -> None:
    with pytest.raises(DataError, match="invalid input syntax for type interval"):
        bound(f"ts + {text}", COLUMNS)


# --- bounds and completeness ---


@pytest.mark.parametrize(
    "text",
    [
        "power(n, 131000)", "power(n, 0.3333)", "exp(5999.5)", "ln(repeat('9', 131000)::numeric)",
        "gcd(repeat('9', 131000)::numeric, 7)", "power(1.0000001, 2147483647)", "power(10.5, 2549.3)",
        "round(n, 2147483647)", "lpad('x', 10000000, 'ab')", "'1e131072'::text::numeric",
    ],
)  # fmt: skip
def test_work_is_bounded(text: str) -> None:
    """Seconds for what takes PostgreSQL seconds too, not hours; a machine that pauses must not fail the test."""
    run, _ = compiled(bound(text, {"n": "numeric"}))
    start = time.process_time()
    try:
        result = run((D("9.9"),))
    except DataError:
        result = None
    assert time.process_time() - start < 10
    assert result is None or len(str(result)) <= texts.RESULT_CHARACTERS_MAX


def test_every_operator_is_compiled_and_evaluated() -> None:
    signed = {op for kinds in signatures.SIGNATURES.values() for op, _ in kinds.values()}
    assert signed <= OPERATORS
    by_compiler = {name for name, _ in functions.FUNCTIONS}
    assert by_compiler <= OPERATORS
    by_oracle = {*evaluate._FUNCTIONS, *evaluate._STRICT, *evaluate._TOTAL, *evaluate._LAZY}
    assert by_oracle == OPERATORS
    assert signed <= by_compiler


def test_every_signature_has_a_function_for_its_types() -> None:
    for name, kinds_of in signatures.SIGNATURES.items():
        for kinds, (op, result) in kinds_of.items():
            order = kinds[::-1] if name in signatures.SUBJECT_LAST else kinds
            tree = Call(op, tuple(Literal(None, Type(kind)) for kind in order), Type(result))
            assert compiled(tree)[0](()) is None
            assert (op, order[0]) in functions.FUNCTIONS


def test_nan_stays_the_one_nan() -> None:
    for text in ("round(f)", "ceil(f)", "trunc(f)", "sqrt(f)", "ln(f)", "exp(f)", "power(f, 2)", "greatest(f, 1)"):
        result = value(text, {"f": "float8"}, (math.nan,))
        assert result is math.nan, text


def test_text_forms_read_back() -> None:
    for number in (0.1, 1e22, 5e-324, 1.7976931348623157e308, 2.0**53, -2.5e-7, 6.93540364447091e16):
        assert casts.text_to_float(casts.float_text(number)) == number


def test_gcd_takes_a_limited_number_of_digits() -> None:
    with pytest.raises(DataError, match="too many digits") as caught:
        mathematics.decimal_gcd(D("1e20000") + 1, D(7))
    assert str(mathematics.GCD_DIGITS_MAX) in caught.value.hint
