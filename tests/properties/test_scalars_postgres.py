"""Scalar expressions three ways: compiled, walked by the oracle, and by PostgreSQL 15. All three must agree.

Where the engine differs on purpose the inputs keep away from it:
- integers have 64 bits always: columns are bigint in PostgreSQL, but what is integer in a PostgreSQL function (a
  length, a position) is an integer column there, named with the type `int`;
- years go from 1 to 9999: a result beyond is a DataError here, and psycopg refuses to read it: an error on both sides;
- a text that an expression makes has a limit of 10 Mi characters, PostgreSQL's is 1 GiB: no input is between the two;
- text has no NUL character in PostgreSQL, which also reads hexadecimal floats ('0x1'), and dates in many more forms;
- right(text, -2**31) is wrong in PostgreSQL, where the negated number is out of range; 1 / 0 as a constant fails there
  even where it would not be evaluated.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.postgres import Postgres, PostgresError
from tests.scalars import ERROR, bound, compiled, exact, outcome
from viewtide.changetables.evaluate import evaluate
from viewtide.changetables.expressions import Expression
from viewtide.changetables.literals import sql_name
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.types import INT_MAX, INT_MIN, NAN, Row, Value

pytestmark = pytest.mark.slow

#: Rows for one expression: all combinations of the pools, or so many of them drawn with a fixed seed.
ROWS_MAX = 40
#: libm and libpq may differ in the last place of a transcendental function.
TOLERANCE = 1e-15
_TRANSCENDENTAL = ("exp(", "ln(", "log(", "log10(", "power(", "^", "sqrt(")


def _timestamps() -> tuple[datetime.datetime, ...]:
    texts = (
        "0001-01-01", "9999-12-31 23:59:59.999999", "2024-02-29 12:34:56.789", "1970-01-01", "2021-01-03 23:59:59.5",
        "1969-12-31 23:59:59.999999", "2000-12-31 00:00:01", "2001-01-01", "2023-03-31 13:00:00.000001",
    )  # fmt: skip
    return tuple(map(datetime.datetime.fromisoformat, texts))


_NUMERICS = (
    "0", "0.00", "1", "1.0", "-1", "2", "3", "10", "0.5", "-0.5", "2.5", "-2.5", "1.45", "0.1", "0.001", "123456.789",
    "-123456.789", "9999", "10000", "99999999.99999999", "0.00000000000000000001", "1.0000000001", "0.99",
    "3.14159265358979323846264338327950288", "12345678901234567890123456789.5", "-7", "NaN", "Infinity", "-Infinity",
)  # fmt: skip
_TEXTS = (
    "", "a", "abc", "Hello World", "äöü ß É", "日本語", "a,b,,c", "  x ", "xyxtrimyyx", "%", "_", "a%b", "\\", "a\\b",
    "\u0130I\u0131i ᾳ Σς", "🌊 x", "aaa", "ABC def-ghi 1st", "abcabcabc", "x²y Ⅷa",
)  # fmt: skip
_NUMBER_TEXTS = (
    "0", "1", "-1", " 12 ", "+5", "1.5", "-2.50", ".5", "5.", "1e3", "1e-3", "NaN", "nan", "inf", "-Infinity", "+inf",
    "",
    " ", "x", "1x", "1_000", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e400", "1e-400",
    "1e999999999999", "1e-20000", "--1", "1 2", "\t7\n", "٣", "1e", "e5", "0e5", "-0", "00012", "1e131071", "1e131072",
)  # fmt: skip
_BOOL_TEXTS = (
    "t",
    "true",
    "TRUE",
    " yes ",
    "on",
    "1",
    "f",
    "fals",
    "no",
    "OFF",
    "of",
    "o",
    "0",
    "",
    "2",
    "truex",
    "y",
    "n",
)
_MOMENT_TEXTS = (
    "2024-02-29", "2023-02-29", "2024-1-5", "20240105", " 2024-01-05 ", "2024-01-05 10:11", "2024-01-05T10:11:12",
    "2024-01-05 1:2:3", "2024-01-05 1:2",
    "2024-01-05 10:11:12.5", "2024-01-05 10:11:12.1234567", "2024-01-05 24:00:00", "2024-01-05 24:00:01",
    "2024-01-05 23:59:60", "2024-01-05 10:60:00", "2024-01-05 25:00:00", "2024-01-05 10:11:12+02",
    "2024-01-05 10:11:12-0530", "2024-01-05 10:11:12+05:30", "2024-01-05 10:11:12Z", "2024-01-05T10:11:12.000001Z",
    "2024-01-05 10:11:12 UTC", "2024-13-01", "2024-00-10", "2024-01-00", "", "x", "2024-01-05 10:11:12+16",
    "0001-01-01", "9999-12-31 23:59:59.999999", "2024-01-05 10:11:12.9999999",
)  # fmt: skip
_BYTEA_TEXTS = (
    "\\x",
    "\\x00ff",
    "\\xABCD",
    "\\x0",
    "\\xzz",
    "abc",
    "a\\\\b",
    "a\\001b",
    "a\\9",
    "\\",
    "é",
    "\\x 61 62",
)

#: Values by PostgreSQL's type; every pool also has NULL.
POOLS: dict[str, tuple[Value, ...]] = {
    "bigint": (0, 1, -1, 2, 3, -3, 7, 10, 12, 100, INT_MAX, INT_MIN, INT_MAX - 1),
    "int": (0, 1, 2, 3, -1, -2, 5, 10, 100, -100, 2**31 - 1, -(2**31)),
    "small": (0, 1, 2, 3, -1, -2, 5, 12, 13, 28, 29, 30, 31, 32, 400, 2023, 2024, 9999, 10000),
    "numeric": tuple(map(Decimal, _NUMERICS)),
    "float8": (
        0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 2.0, 3.0, 0.1, 10.0, 1e300, -1e300, 5e-324, 1e15,
        123456789012345680.0,
        1e-5, 0.0001, 709.0, 710.0, -746.0, 4503599627370497.5, NAN, math.inf, -math.inf,
    ),
    "text": _TEXTS,
    "bytea": (b"", b"a", b"\x00\xff", b"abc", "é".encode()),
    "boolean": (True, False),
    "date": tuple(moment.date() for moment in _timestamps()),
    "timestamp": _timestamps(),
    "timestamptz": _timestamps(),
    "number_text": _NUMBER_TEXTS,
    "bool_text": _BOOL_TEXTS,
    "moment_text": _MOMENT_TEXTS,
    "bytea_text": _BYTEA_TEXTS,
    "pattern": ("", "%", "_", "a%", "%b", "a_c", "%a%", "\\%", "a\\", "A%", "ä%", "%日%", "a!%b", "!!%", "\\\\", "%\\",
    "__", "é%"),
    "field": (
        "year", "YEAR", "years", "month", "mon", "day", "hour", "minute", "min", "second", "milliseconds", "ms",
        "microseconds", "us",
        "week", "quarter", "decade", "century", "millennium", "millennia", "dow", "doy", "isodow", "isoyear", "epoch",
        "julian", "timezone", "timezone_hour", "fortnight", "", "qtr", "y", "d", "h", "m", "s", "c", "w",
    ),
}  # fmt: skip
_PG_TYPES = {
    "small": "int", "number_text": "text", "bool_text": "text", "moment_text": "text", "bytea_text": "text",
    "pattern": "text", "field": "text",
}  # fmt: skip
_RESULT_TYPES = {
    "smallint": "int", "integer": "int", "bigint": "int", "double precision": "float", "numeric": "decimal",
    "text": "str", "character varying": "str", "bytea": "bytes", "boolean": "bool", "date": "date",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip

_NUMERIC_FUNCTIONS = ("ceil", "ceiling", "floor", "round", "trunc", "sign", "sqrt", "exp", "ln", "log", "log10", "abs")
_ORDERED = ("bigint", "numeric", "float8", "text", "bytea", "boolean", "date", "timestamp", "timestamptz")
_MOMENTS = ("date", "timestamp", "timestamptz")
_NUMBERS = ("bigint", "numeric", "float8")

#: Expression, and the pool of each column.
Case = tuple[str, dict[str, str]]


def _numbers() -> list[Case]:
    cases: list[Case] = [(f"{name}(a)", {"a": kind}) for name in _NUMERIC_FUNCTIONS for kind in _NUMBERS]
    cases += [(f"{sign} a", {"a": kind}) for sign in "+-" for kind in _NUMBERS]
    pairs = [(left, right) for left in _NUMBERS for right in _NUMBERS]
    for left, right in pairs:
        columns = {"a": left, "b": right}
        cases += [(f"a {op} b", columns) for op in ("+", "-", "*", "/", "^")]
        cases += [(f"{name}(a, b)", columns) for name in ("power", "pow")]
        if "float8" not in (left, right):
            cases += [(f"a {op} b", columns) for op in ("%",)]
            cases += [(f"{name}(a, b)", columns) for name in ("mod", "div", "log", "gcd", "lcm")]
    cases += [(f"{name}(a, b)", {"a": "numeric", "b": "int"}) for name in ("round", "trunc")]
    cases += [(f"{name}(a, b)", {"a": "bigint", "b": "int"}) for name in ("round", "trunc")]
    return cases


def _strings() -> list[Case]:
    text, number = {"a": "text"}, {"a": "text", "b": "int"}
    two, three = {"a": "text", "b": "text"}, {"a": "text", "b": "text", "c": "text"}
    one = (
        "lower(a)", "upper(a)", "initcap(a)", "length(a)", "char_length(a)", "character_length(a)", "octet_length(a)",
        "reverse(a)", "ascii(a)", "trim(a)", "trim(both from a)", "trim(leading from a)", "trim(trailing from a)",
        "ltrim(a)", "rtrim(a)", "btrim(a)", "concat(a)", "a || 'x'", "'x' || a", "a::varchar(2)",
    )  # fmt: skip
    numbered = (
        "left(a, b)", "repeat(a, b)", "lpad(a, b)", "rpad(a, b)", "substring(a, b)", "substr(a, b)",
        "substring(a from b)", "substring(a for b)", "split_part(a, ',', b)", "split_part(a, '', b)", "a || b",
        "b || a",
        "lpad(a, b, 'xy')", "rpad(a, b, '')", "concat(a, b)", "concat_ws(a, b, a)",
    )  # fmt: skip
    pairs = (
        "a || b", "trim(both b from a)", "trim(leading b from a)", "trim(trailing b from a)", "btrim(a, b)",
        "ltrim(a, b)", "rtrim(a, b)", "strpos(a, b)", "position(b in a)", "starts_with(a, b)", "concat(a, b)",
        "concat_ws(',', a, b)", "concat_ws(a, b, b)",
    )  # fmt: skip
    cases: list[Case] = [(expression, text) for expression in one]
    cases += [(expression, number) for expression in numbered]
    cases += [(expression, two) for expression in pairs]
    cases += [("replace(a, b, c)", three), ("translate(a, b, c)", three), ("split_part(a, b, 2)", two)]
    cases += [("lpad(a, b, c)", {**number, "c": "text"}), ("rpad(a, b, c)", {**number, "c": "text"})]
    counted = {**number, "c": "int"}
    cases += [("substring(a, b, c)", counted), ("substring(a from b for c)", counted), ("substr(a, b, c)", counted)]
    cases += [("right(a, b)", {"a": "text", "b": "small"})]
    cases += [("chr(a)", {"a": "int"}), ("chr(a)", {"a": "small"})]
    cases += [(f"{name}(a)", {"a": "bytea"}) for name in ("length", "octet_length")]
    cases += [("substring(a, b)", {"a": "bytea", "b": "int"}), ("a || b", {"a": "bytea", "b": "bytea"})]
    cases += [("position(b in a)", {"a": "bytea", "b": "bytea"})]
    cases += [("concat('<', a, '>')", {"a": kind}) for kind in _ORDERED]
    cases += [("'<' || a", {"a": kind}) for kind in _ORDERED if kind != "bytea"]
    return cases


def _patterns() -> list[Case]:
    columns = {"a": "text", "b": "pattern"}
    cases: list[Case] = [(f"a {op} b", columns) for op in ("like", "not like", "ilike", "not ilike")]
    escapes = ("!", "", "\\", "ab", "é", "%")
    cases += [(f"a {op} b escape '{escape}'", columns) for op in ("like", "not like", "ilike") for escape in escapes]
    cases += [("a like 'a!%%' escape '!'", {"a": "text"}), ("a ilike 'A%B'", {"a": "text"})]
    return cases


def _moments() -> list[Case]:
    cases: list[Case] = []
    for kind in _MOMENTS:
        columns = {"a": kind}
        cases += [("date_trunc(b, a)", {**columns, "b": "field"}), ("date_part(b, a)", {**columns, "b": "field"})]
        fields = [field for field in POOLS["field"] if str(field).isidentifier()]
        cases += [(f"extract({field} from a)", columns) for field in fields]
        for interval in (
            "interval '1 day'", "interval '1 month'", "interval '-1 year 2 days'", "interval '1' hour",
            "interval '1 day 02:03:04.5'", "'36 hours'::interval", "interval '1.5 days'", "interval '13 months'",
            "interval '1.5 months'", "interval '2 weeks ago'", "interval '0.5 year'", "interval '-00:00:00.000001'",
            "interval '1 02:00:00'", "interval '3' month", "interval '1 century'", "2 * interval '1 day'",
            "(interval '1 month' - interval '1 day')", "(- interval '1 week')",
        ):  # fmt: skip
            cases += [(f"a + {interval}", columns), (f"a - {interval}", columns)]
        cases += [("a + b * interval '1 day'", {**columns, "b": "small"}), ("a at time zone 'UTC'", columns)]
        cases += [("interval '1 day' + a", columns)]
    cases += [
        ("a + b", {"a": "date", "b": "int"}),
        ("b + a", {"a": "date", "b": "int"}),
        ("a - b", {"a": "date", "b": "int"}),
    ]
    cases += [("a - b", {"a": "date", "b": "date"}), ("a - '2024-01-01'", {"a": "date"})]
    cases += [("make_date(a, b, c)", {"a": "small", "b": "small", "c": "small"}), ("date(a)", {"a": "timestamp"})]
    cases += [("a + '1 day'", {"a": "timestamp"})]
    return cases


def _choices() -> list[Case]:
    cases: list[Case] = []
    for kind in _ORDERED:
        columns = {"a": kind, "b": kind, "c": kind}
        cases += [(f"a {op} b", columns) for op in ("=", "<>", "<", "<=", ">", ">=")]
        cases += [(f"a is {negation}distinct from b", columns) for negation in ("", "not ")]
        cases += [
            ("a in (b, c)", columns), ("a not in (b, c)", columns), ("a between b and c", columns),
            ("a not between b and c", columns), ("a between symmetric b and c", columns), ("greatest(a, b, c)",
            columns),
            ("least(a, b, c)", columns), ("coalesce(a, b, c)", columns), ("nullif(a, b)", columns),
            ("case a when b then 1 when c then 2 else 3 end", columns),
            ("case when a < b then a when b < c then b end", columns),
            ("a is null", columns), ("a is not null", columns), ("greatest(a)", columns),
        ]  # fmt: skip
    for left, right in (*itertools.permutations(_NUMBERS, 2), *itertools.permutations(_MOMENTS, 2)):
        columns = {"a": left, "b": right}
        cases += [(f"a {op} b", columns) for op in ("=", "<", ">=")]
        cases += [
            ("coalesce(a, b)", columns), ("greatest(a, b)", columns), ("least(a, b)", columns), ("nullif(a, b)",
            columns),
            ("case when a is null then a else b end", columns), ("a in (b, a)", columns),
        ]  # fmt: skip
    logic = {"a": "boolean", "b": "boolean"}
    cases += [
        (text, logic)
        for text in (
            "a and b", "a or b", "not a", "a and not b", "a is true", "a is not true", "a is false", "a is not false",
            "a is unknown", "a is not unknown", "not (a or b)", "(a = b) is unknown", "a < b",
        )
    ]  # fmt: skip
    # The branch that is not taken must not be evaluated.
    cases += [("case when b = 0 then 0 else a / b end", {"a": "bigint", "b": "bigint"})]
    cases += [
        ("coalesce(a, 1 / b)", {"a": "bigint", "b": "bigint"}),
        ("b <> 0 and a / b > 1", {"a": "bigint", "b": "bigint"}),
    ]
    return cases


def _casts() -> list[Case]:
    targets = {
        "bigint": ("numeric", "float8", "text", "numeric(5,2)", "bigint"),
        "int": ("boolean",),
        "numeric": ("bigint", "float8", "text", "numeric(10,3)", "numeric(3,0)", "varchar(3)"),
        "float8": ("bigint", "numeric", "text", "numeric(10,2)"),
        "boolean": ("int", "text", "varchar(2)"),
        "text": ("varchar(3)", "text"),
        "bytea": ("text",),
        "date": ("timestamp", "timestamptz", "text", "date"),
        "timestamp": ("date", "timestamptz", "text"),
        "timestamptz": ("date", "timestamp", "text"),
        "number_text": ("bigint", "numeric", "float8", "numeric(6,2)"),
        "bool_text": ("boolean",),
        "moment_text": _MOMENTS,
        "bytea_text": ("bytea",),
    }
    cases: list[Case] = [(f"a::{target}", {"a": kind}) for kind in targets for target in targets[kind]]
    cases += [(f"cast(a::text as {kind})", {"a": kind}) for kind in _ORDERED]
    return cases


CASES = [*_numbers(), *_strings(), *_patterns(), *_moments(), *_choices(), *_casts()]


def _rows(pools: Sequence[str]) -> list[Row]:
    every: list[Row] = list(itertools.product(*((None, *POOLS[pool]) for pool in pools)))
    if len(every) <= ROWS_MAX:
        return every
    return random.Random(f"{pools}").sample(every, ROWS_MAX)


def _parameter(given: Value, pool: str) -> object:
    if isinstance(given, datetime.datetime) and pool == "timestamptz":
        return given.replace(tzinfo=datetime.UTC)
    return given


def _postgres(postgres: Postgres, expression: str, pools: dict[str, str], row: Row) -> tuple[str, Value]:
    """PostgreSQL's type and value, in the engine's form."""
    columns = ", ".join(f"%s::{_PG_TYPES.get(pool, pool)} AS {name}" for name, pool in pools.items())
    text = expression.replace("%", "%%")
    sql = f"SELECT pg_typeof(v)::text, v FROM (SELECT {text} AS v FROM (SELECT {columns} OFFSET 0) AS t OFFSET 0) AS u"
    try:
        kind, found = postgres.query(sql, [_parameter(*pair) for pair in zip(row, pools.values(), strict=True)])[0]
    except PostgresError:
        return "", ERROR
    return str(kind), _engine_form(found)


def _engine_form(found: object) -> Value:
    if isinstance(found, datetime.datetime):
        return found.replace(tzinfo=None)
    if isinstance(found, Decimal):
        return DECIMAL_NAN if found.is_nan() else Decimal(format(found, "f")) if found.is_finite() else found
    if isinstance(found, memoryview):
        return bytes(found)
    assert found is None or isinstance(found, int | float | str | bytes | datetime.date)
    return found


def _agree(ours: Value, theirs: Value, expression: str) -> bool:
    if exact(ours) == exact(theirs):
        return True
    close = isinstance(ours, float) and isinstance(theirs, float) and any(f in expression for f in _TRANSCENDENTAL)
    return close and math.isclose(float(str(ours)), float(str(theirs)), rel_tol=TOLERANCE)


@functools.cache
def _ways(expression: str, types: tuple[tuple[str, str], ...]) -> tuple[Expression, list[Callable[[Row], Value]]]:
    """The bound expression, and how to evaluate it: compiled and walked, and compiled for columns without NULL."""
    tree = bound(expression, dict(types))
    strict = bound(expression, dict(types), nullable=False)
    return tree, [compiled(tree)[0], lambda row: evaluate(tree, row), compiled(strict)[0]]


def _check(postgres: Postgres, expression: str, pools: dict[str, str], rows: Sequence[Row]) -> None:
    tree, ways = _ways(expression, tuple((name, _PG_TYPES.get(pool, pool)) for name, pool in pools.items()))
    wrong = []
    for row in rows:
        kind, theirs = _postgres(postgres, expression, pools, row)
        ours = [outcome(functools.partial(way, row)) for way in (ways if None not in row else ways[:2])]
        if not all(_agree(value, theirs, expression) for value in ours):
            wrong.append(f"{expression} of {row!r}: {ours!r}, PostgreSQL {theirs!r}")
        if kind and _RESULT_TYPES[kind] != tree.type.kind:
            wrong.append(f"{expression}: type {sql_name(tree.type)}, PostgreSQL {kind}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize(
    ("expression", "pools"), CASES, ids=[f"{case[0]}-{'-'.join(case[1].values())}" for case in CASES]
)
def test_expression_as_postgresql(postgres: Postgres, expression: str, pools: dict[str, str]) -> None:
    _check(postgres, expression, pools, _rows(list(pools.values())))


_decimals = st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12)
_letters = st.text(st.sampled_from("aAbB%_\\! äÄ日"), max_size=8)


@settings(deadline=None, max_examples=150)
@given(a=_decimals, b=_decimals, places=st.integers(-6, 8))
def test_random_numerics_as_postgresql(postgres: Postgres, a: Decimal, b: Decimal, places: int) -> None:
    pools = {"a": "numeric", "b": "numeric", "c": "int"}
    for expression in (
        "a / b",
        "a % b",
        "round(a, c)",
        "trunc(a, c)",
        "div(a, b)",
        "sqrt(abs(a))",
        "exp(a / 1e10)",
        "ln(abs(a) + 1)",
    ):
        _check(postgres, expression, pools, [(a, b, places)])
    _check(postgres, "power(abs(a) + 0.01, b / 1e12)", pools, [(a, b, places)])


@settings(deadline=None, max_examples=150)
@given(text=_letters, pattern=_letters)
def test_random_patterns_as_postgresql(postgres: Postgres, text: str, pattern: str) -> None:
    pools = {"a": "text", "b": "text"}
    for expression in ("a like b", "a ilike b", "a like b escape '!'", "replace(a, b, 'x')", "split_part(a, b, -1)"):
        _check(postgres, expression, pools, [(text, pattern)])


@settings(deadline=None, max_examples=150)
@given(st.floats())
def test_random_floats_as_postgresql(postgres: Postgres, number: float) -> None:
    row: Row = (NAN if number != number else number,)
    for expression in ("a::text", "a::numeric", "a::bigint", "round(a)", "ceil(a)", "trunc(a)", "a::text::float8"):
        _check(postgres, expression, {"a": "float8"}, [row])
