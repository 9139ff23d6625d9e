"""The columns evaluator at the edges of every type, what it computes by Arrow and what it leaves to the rows, and the
choice between the evaluators. That it gives what the rows give, for every operator, is in `properties/`."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.__main__ import run_command
from tests.evaluating import arrow_table, both_evaluators, compared, written
from tests.propagation import Memory
from viewtide.changetables.change_table import Change
from viewtide.changetables.errors import DataError, InterfaceError
from viewtide.changetables.evaluators import choice
from viewtide.changetables.evaluators.choice import COLUMNAR, COLUMNS, ROW_WISE, ROWS, Costs
from viewtide.changetables.evaluators.columns import ColumnsTerm
from viewtide.changetables.evaluators.kernels import VECTORISED
from viewtide.changetables.explain import explain
from viewtide.changetables.expressions import OPERATORS
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.plan import Asking, Contribution, ViewPlan
from viewtide.changetables.recompute import same_bag
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import parse_view
from viewtide.changetables.types import (
    BOOL,
    BYTES,
    DATE,
    DECIMAL,
    FLOAT,
    INT,
    INT_MAX,
    INT_MIN,
    JSON,
    NAN,
    STR,
    TIMESTAMP,
    TIMESTAMPTZ,
    Row,
    Type,
    Value,
)

PRICE = Type("decimal", 10, 2)
WIDE = Type("decimal", 50, 5)
FIRST_MOMENT, LAST_MOMENT = datetime.datetime.min, datetime.datetime.max
MOMENTS: list[Value] = [
    FIRST_MOMENT,
    LAST_MOMENT,
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(1970, 1, 1),
    datetime.datetime(2024, 2, 29, 12, 30, 15, 1),
    datetime.datetime(1582, 10, 4, 3),
]
#: Column, type, its odd values.
EDGES: list[tuple[str, Type, list[Value]]] = [
    ("i", INT, [0, 1, -1, 7, INT_MAX, INT_MIN, 2**32, -(2**32) - 1]),
    ("j", INT, [3, -2, 10, 1]),
    ("f", FLOAT, [0.0, -0.0, 1.5, NAN, float("inf"), float("-inf"), 5e-324, 1.7e308, -2.5]),
    ("g", FLOAT, [1.5, -0.5, NAN, 0.25]),
    ("s", STR, ["", "a", "a\0b", "Äß", "\U0001f600x", "\uffff", "ab%c", "A_b"]),
    ("t", STR, ["a", "b", "\U0001f600"]),
    ("b", BYTES, [b"", b"\0", b"\xff\0", b"abc"]),
    ("o", BOOL, [True, False]),
    ("d", PRICE, [Decimal("0.00"), Decimal("12.50"), Decimal("-99999999.99"), Decimal("99999999.99")]),
    ("w", WIDE, [Decimal("0.00000"), Decimal("1" * 44 + ".12345"), Decimal("-" + "9" * 45 + ".99999")]),
    ("u", DECIMAL, [Decimal("1.0"), Decimal("1.00"), Decimal("0"), DECIMAL_NAN, Decimal("Infinity"), Decimal("2.5")]),
    ("day", DATE, [datetime.date.min, datetime.date.max, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    ("at", TIMESTAMP, MOMENTS),
    ("tz", TIMESTAMPTZ, MOMENTS),
    ("js", JSON, ["null", '{"a":[1,"\U0001f600"]}', '"x"']),
]
TABLE = Table(1, "t", (Column("id", INT, nullable=False), *(Column(name, type_) for name, type_, _ in EDGES)), (0,))
#: Arrow has no column for values of several scales: these rows can be given to it as columns.
COLUMNAR_TABLE = Table(1, "t", tuple(column for column in TABLE.columns if column.name != "u"), (0,))


def edge_rows(table: Table = TABLE, count: int = 60) -> list[Row]:
    """Every odd value of every type, and NULL, in random company; the last row has NULLs only."""
    rng = random.Random(7)
    values = {name: [*some, None] for name, _, some in EDGES}
    columns = [values[column.name] for column in table.columns[1:]]
    rows: list[Row] = [(number, *(rng.choice(some) for some in columns)) for number in range(count)]
    longest = max(len(some) for some in columns)
    rows += [(count + place, *(some[place % len(some)] for some in columns)) for place in range(longest)]
    return [*rows, (count + longest, *(None for _ in columns))]


def filled(rows: Sequence[Row], table: Table = TABLE) -> Memory:
    memory = Memory([table])
    memory.put(table.name, *rows)
    memory.commit()
    return memory


@contextmanager
def arrow_alone() -> Iterator[None]:
    """No generated code may run inside the columns evaluator."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this should be computed by Arrow")

    with mock.patch.object(ColumnsTerm, "_function", refuse), mock.patch.object(ColumnsTerm, "_emit_rows", refuse):
        yield


def check(sql: str, rows: Sequence[Row], table: Table = TABLE) -> None:
    """Rows, columns from rows, columns from Arrow, and the oracle; nothing is given up."""
    memory = filled(rows, table)
    relation = parse_view(sql, {table.name: table})
    with both_evaluators() as seen:
        memory.create_view("v", relation)
    assert seen.gave_up == []
    assert same_bag(memory.recomputed(relation), memory.outputs("v")) == []


# --- expressions ---

#: By Arrow, over the whole table of odd values.
BY_ARROW = [
    *(
        f"{column} {op} {other}"
        for column, other in [("i", "j"), ("f", "g"), ("s", "t"), ("d", "12.50"), ("w", "d")]
        for op in ("=", "<>", "<", "<=", ">", ">=")
    ),
    "f > 1.5",
    "f <= CAST('NaN' AS float)",
    "f = CAST('NaN' AS float)",
    "1.5 > f",
    "s < 'b'",
    "b >= '\\x00'",
    "o = TRUE",
    "o < (i > 0)",
    "day > DATE '2000-01-01'",
    "at < TIMESTAMP '1970-01-01'",
    "tz = at",
    "d = 12.5",
    "d < 100",
    "CAST(j AS numeric) < d",
    "i IS DISTINCT FROM j",
    "f IS NOT DISTINCT FROM g",
    "s IS NULL",
    "at IS NOT NULL",
    "i IS DISTINCT FROM 7",
    "i IN (1, 7, NULL)",
    "s IN ('a', '')",
    "f IN (1.5, CAST('NaN' AS float))",
    "i NOT IN (1, 2)",
    "d IN (12.5, 0)",
    "i BETWEEN -1 AND 7",
    "o AND i > 0",
    "o OR f > 0",
    "NOT o",
    "NOT (o AND s = 'a')",
    "i > 0 AND f > 0 AND s > 'a'",
    "CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN 'n' END",
    "CASE WHEN o THEN j ELSE 0 END",
    "CASE WHEN f > 0 THEN f END",
    "CASE WHEN d > 0 THEN d ELSE 1.00 END",
    "COALESCE(i, j, 0)",
    "COALESCE(s, t)",
    "COALESCE(d, 0.00)",
    "NULLIF(i, 7)",
    "NULLIF(s, 'a')",
    "GREATEST(j, 2)",
    "LEAST(i, j)",
    "GREATEST(s, t)",
    "LEAST(at, tz)",
    "j + 1",
    "j - j * 2",
    "i / j",
    "i % j",
    "-j",
    "abs(j)",
    "j * j + 3",
    "7 / j",
    "g + 1",
    "g * g",
    "g / 2",
    "-f",
    "abs(f)",
    "f - f",
    "d + 1",
    "d * d",
    "d - 0.5",
    "-d",
    "abs(d)",
    "w * 2",
    "w + d",
    "CAST(i AS float)",
    "CAST(i AS numeric)",
    "CAST(i AS text)",
    "CAST(o AS int)",
    "CAST(day AS timestamp)",
    "CAST(at AS date)",
    "CAST(tz AS date)",
    "length(s)",
    "octet_length(s)",
    "length(b)",
    "s || t",
    "'<' || s",
    "s LIKE 'a%'",
    "s LIKE '%b'",
    "s LIKE '%b%'",
    "s LIKE 'a'",
    "s LIKE '%'",
    "s LIKE ''",
    *(
        f"date_trunc('{field}', {column})"
        for column in ("at", "tz")
        for field in ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
    ),
]
#: Left to generated code, inside the columns evaluator.
BY_ROWS = [
    "u + 1",
    "u = 1",
    "COALESCE(u, d)",
    "lower(s)",
    "upper(t) || s",
    "s LIKE 'a_b'",
    "s LIKE 'ab\\%c'",
    "round(d, 1)",
    "CAST(d AS int)",
    "extract(year FROM at)",
    "date_part('dow', at)",
    "substring(s, 1, 2)",
    "CAST(day AS text)",
    "CASE WHEN d > 0 THEN d ELSE 1.5 END",
    "CASE WHEN j <> 3 THEN i / (j - 3) END",
    "j = 3 OR i / (j - 3) > 0",
    "COALESCE(i, 1 / (j - 3))",
    "CAST(s AS varchar(1))",
    "js",
    "GREATEST(f, g)",
    "f = g AND 1 / j > 0",
    "i IS NOT NULL AND length(s) > 1 AND upper(s) = 'A'",
]


def test_these_expressions_use_every_operator_that_arrow_computes() -> None:
    """An operator that is added to the one list is added to the other."""
    used = repr([parse_view(f"SELECT {text} AS v FROM t", {"t": TABLE}) for text in BY_ARROW])
    assert {op for op in VECTORISED if f"op={op!r}" not in used} == set()
    assert VECTORISED <= OPERATORS


@pytest.mark.parametrize("text", BY_ARROW)
def test_arrow_gives_what_generated_code_gives(text: str) -> None:
    with arrow_alone():
        check(f"SELECT id, {text} AS v FROM t", edge_rows(COLUMNAR_TABLE), COLUMNAR_TABLE)


@pytest.mark.parametrize("text", BY_ROWS)
def test_what_arrow_cannot_do_is_done_row_by_row(text: str) -> None:
    check(f"SELECT id, {text} AS v FROM t", edge_rows())


@pytest.mark.parametrize(
    "text", ["i > j", "f > g", "o", "u > 1", "i / j > 0", "lower(s) = 'a'", "o AND u = 1", "TRUE", "FALSE", "NULL"]
)
def test_filters(text: str) -> None:
    check(f"SELECT id FROM t WHERE {text}", edge_rows())


# --- groups and sums ---


@pytest.mark.parametrize("key", [column.name for column in COLUMNAR_TABLE.columns if column.name != "js"])
def test_groups_by_every_type(key: str) -> None:
    with arrow_alone():
        rows = edge_rows(COLUMNAR_TABLE)
        check(f"SELECT {key}, COUNT(*) AS n, COUNT(s) AS c FROM t GROUP BY {key}", rows, COLUMNAR_TABLE)


def test_groups_by_several_keys() -> None:
    check("SELECT u, f, s, COUNT(*) AS n FROM t GROUP BY u, f, s", edge_rows())
    check("SELECT o, j, day, SUM(j) AS n FROM t GROUP BY o, j, day", edge_rows())
    check("SELECT DISTINCT o, g FROM t", edge_rows())


@pytest.mark.parametrize(
    "text",
    [
        "SUM(i)",
        "AVG(i)",
        "VAR_SAMP(i)",
        "SUM(f)",
        "AVG(g)",
        "VAR_POP(g)",
        "SUM(d)",
        "VAR_SAMP(d)",
        "SUM(w)",
        "BOOL_AND(o)",
        "BOOL_OR(o)",
        "COUNT(b)",
        "SUM(j) FILTER (WHERE o)",
        "SUM(CAST(j AS numeric))",
    ],
)
def test_sums_by_arrow(text: str) -> None:
    with arrow_alone():
        for group in ("j", "o"):
            rows = edge_rows(COLUMNAR_TABLE)
            check(f"SELECT {group}, {text} AS v FROM t GROUP BY {group}", rows, COLUMNAR_TABLE)
        check(f"SELECT {text} AS v FROM t", rows, COLUMNAR_TABLE)


@pytest.mark.parametrize(
    "text", ["SUM(u)", "AVG(u)", "VAR_SAMP(w)", "SUM(d * w * w)", "MAX(u)", "COUNT(DISTINCT u)", "SUM(DISTINCT i)"]
)
def test_sums_that_are_left_to_the_rows(text: str) -> None:
    check(f"SELECT j, {text} AS v FROM t GROUP BY j", [row for row in edge_rows() if row[10] not in (DECIMAL_NAN,)])


def test_a_sum_of_integers_has_more_than_64_bits() -> None:
    rows: list[Row] = [(number, INT_MAX if number % 3 else INT_MIN) for number in range(100)]
    table = Table(1, "t", (Column("id", INT, False), Column("i", INT)), (0,))
    with arrow_alone():
        check("SELECT SUM(i) AS s, VAR_SAMP(i) AS v FROM t", rows, table)
    memory = filled(rows, table)
    plan = memory.create_view("v", parse_view("SELECT SUM(i) AS s FROM t", {"t": table}))
    [found] = memory.run(plan.contribute_from(0, 0, rows, COLUMNS))
    assert found.delta[-1] == sum(row[1] for row in rows if isinstance(row[1], int))


SUMMED: list[tuple[Type, st.SearchStrategy[Value]]] = [
    (INT, st.integers(INT_MIN, INT_MAX)),
    (FLOAT, st.floats(allow_nan=True).map(lambda x: NAN if x != x else x)),
    (PRICE, st.decimals(-99_999_999, 99_999_999, places=2, allow_nan=False, allow_infinity=False)),
    (Type("decimal", 26, 0), st.integers(-(10**26) + 1, 10**26 - 1).map(Decimal)),
    (BOOL, st.booleans()),
]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_components_are_exact_whatever_the_multiplicities(data: st.DataObject) -> None:
    """Every component of every kind of argument, in the words of the row evaluator."""
    type_, values = data.draw(st.sampled_from(SUMMED))
    table = Table(1, "t", (Column("id", INT, False), Column("g", INT), Column("x", type_)), (0,))
    aggregate = "BOOL_AND(x) AS a" if type_ == BOOL else "SUM(x) AS a, VAR_POP(x) AS b"
    memory = Memory([table])
    plan = memory.create_view("v", parse_view(f"SELECT g, COUNT(x) AS n, {aggregate} FROM t GROUP BY g", {"t": table}))
    numbers = st.integers(0, 2)
    row = st.tuples(st.just(1), numbers, st.none() | values.map(_decimal_as_stored))
    changes: list[Change] = data.draw(st.lists(st.tuples(row, st.sampled_from([1, 1, -1, 2, -3])), max_size=12))
    with arrow_alone():
        by_columns = memory.run(plan.propagate({"t": changes}, COLUMNS))
    assert written(by_columns) == written(memory.run(plan.propagate({"t": changes})))
    assert plan._evaluators.gave_up_count == 0


def _decimal_as_stored(value: Value) -> Value:
    return value + 0 if isinstance(value, Decimal) else value  # -0.00 is no value of the engine.


def test_minus_zero_is_shown_by_rows_but_no_group() -> None:
    table = Table(1, "t", (Column("id", INT, False), Column("f", FLOAT)), (0,))
    rows: list[Row] = [(1, -0.0), (2, 0.0), (3, -0.0)]
    memory = filled(rows, table)
    plain = memory.create_view("plain", parse_view("SELECT f FROM t", {"t": table}))
    groups = memory.create_view("groups", parse_view("SELECT f, COUNT(*) AS n FROM t GROUP BY f", {"t": table}))
    shown = memory.run(plain.contribute_from(0, 0, rows, COLUMNS))
    assert [repr(item.delta) for item in shown] == ["(1, -0.0)", "(1, 0.0)", "(1, -0.0)"]
    [zero] = memory.run(groups.contribute_from(0, 0, rows, COLUMNS))
    assert (repr(zero.key_values), zero.delta) == ("(0.0,)", (3,))


def test_the_first_of_equal_decimals_names_the_group() -> None:
    table = Table(1, "t", (Column("id", INT, False), Column("s", STR), Column("u", DECIMAL)), (0,))
    written_as = [("a", "1.00"), ("b", "1.0"), ("a", "1"), ("b", "1.000")]
    rows: list[Row] = [(number, text, Decimal(digits)) for number, (text, digits) in enumerate(written_as)]
    memory = filled(rows, table)
    plan = memory.create_view("v", parse_view("SELECT u, s, COUNT(*) AS n FROM t GROUP BY u, s", {"t": table}))
    found = memory.run(plan.contribute_from(0, 0, rows, COLUMNS))
    assert sorted(repr(item.key_values) for item in found) == ["(Decimal('1.0'), 'b')", "(Decimal('1.00'), 'a')"]


# --- batches ---


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT s, COUNT(*) AS n, SUM(i) AS v FROM t GROUP BY s",
        "SELECT COUNT(*) AS n FROM t",
        "SELECT id, s FROM t WHERE i > 0",
    ],
)
def test_empty_batches_and_columns_of_nulls(sql: str) -> None:
    memory = filled([], COLUMNAR_TABLE)
    plan = memory.create_view("v", parse_view(sql, {"t": COLUMNAR_TABLE}))
    nulls: list[Row] = [(number, *(None for _ in COLUMNAR_TABLE.columns[1:])) for number in range(3)]
    for rows in ([], nulls):
        columns = arrow_table(COLUMNAR_TABLE, rows)
        assert columns is not None
        expected = written(memory.run(plan.contribute_from(0, 0, rows)))
        assert written(memory.run(plan.contribute_from(0, 0, rows, COLUMNS))) == expected
        assert written(memory.run(plan.contribute_columns(0, 0, columns, COLUMNS))) == expected
    assert plan._evaluators.gave_up_count == 0


SMALL = Table(
    1, "t", (Column("id", INT, nullable=False), Column("x", INT), Column("s", STR), Column("at", TIMESTAMPTZ)), (0,)
)


def small_columns(**changed: pa.Array) -> pa.Table:
    columns = {
        "id": pa.array([1, 2], pa.int64()),
        "x": pa.array([5, None], pa.int64()),
        "s": pa.array(["a", "b"]),
        "at": pa.array([datetime.datetime(2024, 1, 1, 1)] * 2, pa.timestamp("us", tz="UTC")),
    }
    return pa.table({**columns, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"x": pa.array([5, None], pa.int16())},
        {"s": pa.array(["a", "b"]).dictionary_encode()},
        {"s": pa.array(["a", "b"], pa.large_string())},
        {"s": pa.chunked_array([["a"], ["b"]])},
        {"at": pa.array([datetime.datetime(2024, 1, 1, 1)] * 2, pa.timestamp("ms", tz="Europe/Paris"))},
        {"at": pa.array([datetime.datetime(2024, 1, 1, 1)] * 2, pa.timestamp("s"))},
    ],
)
def test_columns_of_related_arrow_types_are_taken(changed: dict[str, pa.Array]) -> None:
    memory = filled([], SMALL)
    plan = memory.create_view("v", parse_view("SELECT id, x, s, at FROM t", {"t": SMALL}))
    found = memory.run(plan.contribute_columns(0, 0, small_columns(**changed), COLUMNS))
    moment = datetime.datetime(2024, 1, 1, 1)
    zone = str(changed.get("at", pa.array([])).type)
    if "Paris" in zone:
        moment = changed["at"].cast(pa.timestamp("us", tz="UTC")).to_pylist()[0].replace(tzinfo=None)
    assert [item.delta for item in found] == [(1, 1, 5, "a", moment), (1, 2, None, "b", moment)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": pa.array(["5", None])}, "column 'x' of table 't': string does not fit int"),
        ({"x": pa.array([1.5, None])}, "column 'x' of table 't': double does not fit int"),
        ({"x": pa.array([2**64 - 1, None], pa.uint64())}, "column 'x' of table 't': uint64 does not fit int"),
        ({"id": pa.array([1, None], pa.int64())}, "column 'id' of table 't': NULL is not allowed"),
        ({"at": pa.array([2**62, 0]).view(pa.timestamp("us"))}, "column 'at' of table 't': a value is out of range"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changed: dict[str, pa.Array], message: str) -> None:
    memory = filled([], SMALL)
    plan = memory.create_view("v", parse_view("SELECT id, x, s, at FROM t", {"t": SMALL}))
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        memory.run(plan.contribute_columns(0, 0, small_columns(**changed)))


def test_all_physical_columns_are_asked_for() -> None:
    memory = filled([], SMALL)
    plan = memory.create_view("v", parse_view("SELECT id FROM t", {"t": SMALL}))
    with pytest.raises(InterfaceError, match="3 columns for table 't', which has 4"):
        memory.run(plan.contribute_columns(0, 0, small_columns().drop_columns(["s"])))


# --- errors ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i + j", "view 'v' (row (2,) of table 't'): integer out of range"),
        ("i * 2", "view 'v' (row (2,) of table 't'): integer out of range"),
        ("j / (i - i)", "view 'v' (row (1,) of table 't'): division by zero"),
        ("j % (i - i)", "view 'v' (row (1,) of table 't'): division by zero"),
        ("f * 1e300", "view 'v' (row (2,) of table 't'): value out of range: overflow"),
        ("f / (f - f)", "view 'v' (row (1,) of table 't'): division by zero"),
        ("CAST(s AS int)", "view 'v' (row (2,) of table 't'): invalid input syntax for type bigint: \"x\""),
    ],
)
@pytest.mark.parametrize(
    "shape", ["SELECT id, {} AS v FROM t", "SELECT SUM({}) AS v FROM t", "SELECT id FROM t WHERE {} > 0"]
)
def test_errors_blame_the_row_that_the_row_evaluator_blames(text: str, message: str, shape: str) -> None:
    columns_of = (Column("i", INT), Column("j", INT), Column("f", FLOAT), Column("s", STR))
    table = Table(1, "t", (Column("id", INT, False), *columns_of), (0,))
    rows: list[Row] = [(1, 1, 1, 1.5, "7"), (2, INT_MAX, 1, 1e300, "x"), (3, INT_MAX, 5, 1e300, "y")]
    memory = filled([], table)
    plan = memory.create_view("v", parse_view(shape.format(text), {"t": table}))
    columns = arrow_table(table, rows)
    assert columns is not None
    for run in (plan.contribute_from(0, 0, rows, COLUMNS), plan.contribute_columns(0, 0, columns, COLUMNS)):
        with pytest.raises(DataError) as caught:
            memory.run(run)
        assert caught.value.message == message
    assert plan._evaluators.gave_up_count == 2


def test_what_only_looks_like_an_error_is_none() -> None:
    """Arrow multiplies in rows that CASE leaves out, and the remainder of the smallest integer by -1 is 0."""
    table = Table(1, "t", (Column("id", INT, False), Column("i", INT), Column("j", INT)), (0,))
    rows: list[Row] = [(1, 5, 2), (2, INT_MIN, -1)]
    memory = filled(rows, table)
    with both_evaluators() as seen:
        sql = "SELECT id, CASE WHEN i > 0 THEN i * 4 END AS a, i % j AS b FROM t"
        memory.create_view("v", parse_view(sql, {"t": table}))
    assert memory.outputs("v") == [(1, 20, 1), (2, None, 0)]
    assert len(seen.gave_up) == 1 and "overflow" in seen.gave_up[0]


# --- the choice ---


class Clock:
    """Time that passes only inside an evaluator, as fast as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_costs_are_seeded_by_both_and_moved_by_the_last_batch() -> None:
    costs = Costs()
    assert costs.cheaper == ROWS and costs.text(COLUMNAR) == "not measured yet (columnar input)"
    costs.record(ROWS, 1_000, 0.002)
    assert costs.cheaper == ROWS, "columns are not known yet"
    costs.record(COLUMNS, 1_000, 0.001)
    assert costs.cheaper == COLUMNS
    costs.record(COLUMNS, 1_000, 0.011)
    assert costs.text(ROW_WISE) == "rows: 2.00 us/row, columns: 3.00 us/row (row-wise input)"
    assert costs.cheaper == ROWS


def test_both_are_measured_on_the_first_large_batch_and_on_much_larger_ones() -> None:
    costs = Costs()
    least = choice.MEASURED_ROWS_MIN
    assert not costs.are_due(least - 1) and costs.are_due(least)
    costs.forget(least)
    costs.record(ROWS, least, 1.0)
    costs.record(COLUMNS, least, 2.0)
    assert not costs.are_due(choice.MEASURED_GROWTH * least - 1) and costs.are_due(choice.MEASURED_GROWTH * least)
    costs.forget(least)
    costs.record(ROWS, least, 2.0)
    costs.record(COLUMNS, least, 1.0)
    assert not costs.are_due(100 * least), "columns can only become cheaper"


def large_plan() -> tuple[Memory, ViewPlan, list[Row], pa.Table]:
    table = Table(1, "t", (Column("id", INT, False), Column("s", STR), Column("x", INT)), (0,))
    memory = filled([], table)
    plan = memory.create_view("v", parse_view("SELECT s, COUNT(*) AS n, SUM(x) AS v FROM t GROUP BY s", {"t": table}))
    rows: list[Row] = [(number, "abc"[number % 3], number) for number in range(10_000)]
    columns = arrow_table(table, rows)
    assert columns is not None
    return memory, plan, rows, columns


def slowed(clock: Clock, name: str, seconds: float) -> Callable[..., object]:
    """An evaluator that takes so long by the clock."""
    original = getattr(choice.Evaluators, name)

    def run(self: choice.Evaluators, *arguments: object) -> Asking[None]:
        clock.now += seconds
        yield from original(self, *arguments)

    return run


@pytest.mark.parametrize(("rows_s", "columns_s", "chosen"), [(0.1, 0.01, COLUMNS), (0.01, 0.1, ROWS)])
def test_the_cheaper_one_is_taken_and_shown(rows_s: float, columns_s: float, chosen: str) -> None:
    memory, plan, rows, columns = large_plan()
    clock = Clock()
    plan._evaluators._clock = clock
    expected = written(memory.run(plan.contribute_from(0, 0, rows)))
    with (
        mock.patch.object(choice.Evaluators, "_by_rows", slowed(clock, "_by_rows", rows_s)),
        mock.patch.object(choice.Evaluators, "_by_columns", slowed(clock, "_by_columns", columns_s)),
    ):
        for _ in range(3):
            assert written(memory.run(plan.contribute_columns(0, 0, columns))) == expected
            assert written(memory.run(plan.contribute_from(0, 0, rows, None))) == expected
    assert explain(plan, {}, measured=True).splitlines()[-1].startswith("evaluators: rows: ")
    first, second = plan.evaluator_choice().splitlines()
    assert first.startswith("rows: ") and first.endswith(f"us/row (columnar input): {chosen}")
    assert second.startswith("rows: ") and second.endswith(f"us/row (row-wise input): {chosen}")


def test_small_batches_go_by_rows() -> None:
    memory, plan, rows, columns = large_plan()
    with mock.patch.object(choice.Evaluators, "_by_columns", side_effect=AssertionError("columns")):
        some = memory.run(plan.contribute_columns(0, 0, columns.slice(0, 100)))
    assert written(some) == written(memory.run(plan.contribute_from(0, 0, rows[:100])))
    assert plan.evaluator_choice().splitlines()[0] == "not measured yet (columnar input): rows"


def test_an_unknown_evaluator_is_refused() -> None:
    memory, plan, rows, _ = large_plan()
    with pytest.raises(InterfaceError, match="'spark' is no evaluator"):
        memory.run(plan.contribute_from(0, 0, rows, "spark"))


def test_without_pyarrow_rows_are_taken_and_columns_say_what_is_missing() -> None:
    memory, plan, rows, _ = large_plan()
    with mock.patch.object(choice, "find_spec", return_value=None):
        assert len(memory.run(plan.contribute_from(0, 0, rows, None))) == 3
        with pytest.raises(InterfaceError) as caught:
            memory.run(plan.contribute_from(0, 0, rows, COLUMNS))
    assert caught.value.hint == "pip install 'viewtide[batch]'"


def test_a_batch_that_is_given_up_is_counted() -> None:
    table = Table(1, "t", (Column("id", INT, False), Column("i", INT)), (0,))
    memory = filled([], table)
    plan = memory.create_view("v", parse_view("SELECT id, i % -1 AS r FROM t", {"t": table}))
    [found] = memory.run(plan.contribute_from(0, 0, [(1, INT_MIN)], COLUMNS))
    assert found.delta == (1, 1, 0)
    assert "columns gave up 1 times, last: ArrowInvalid: overflow" in plan.evaluator_choice()


def test_keys_are_asked_for_once() -> None:
    """However many rows of a batch join with it."""
    products = Table(1, "p", (Column("id", INT, False), Column("c", STR)), (0,))
    events = Table(2, "e", (Column("id", INT, False), Column("p", INT)), (0,))
    memory = Memory([products, events])
    memory.put("p", (1, "a"), (2, "b"))
    memory.commit()
    sql = "SELECT p.c, COUNT(*) AS n FROM e JOIN p ON p.id = e.p GROUP BY p.c"
    plan = memory.create_view("v", parse_view(sql, {"p": products, "e": events}))
    memory.asked.clear()
    rows: list[Row] = [(number, (1, 2, 3, None)[number % 4]) for number in range(40)]
    found: list[Contribution] = memory.run(plan.contribute_from(0, 0, rows, COLUMNS))
    assert {item.key_values: item.delta for item in found} == {("a",): (10,), ("b",): (10,)}
    assert [len(look_up.keys) for batch in memory.asked for look_up in batch] == [3]


def test_comparing_evaluators_finds_a_difference() -> None:
    """The comparison that the property tests rely on is one."""
    memory, plan, rows, _ = large_plan()
    runs = plan.contribute_from(0, 0, rows), plan.contribute_from(0, 0, rows[1:], COLUMNS)
    with both_evaluators() as seen, pytest.raises(AssertionError):
        memory.run(compared(plan, seen, *runs))


def test_the_bench_of_the_evaluators_compares_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    run_command(["evaluators", "--rows", "600", "--json", str(out)])
    result = json.loads(out.read_text())
    assert {row["input"] for row in result["rows"]} == {"columns", "rows", "rows, pages of 500"}
    assert all(row["rows_per_s"] > 0 and row["columns_per_s"] > 0 for row in result["rows"])
    assert result["ratios"]["columnar_columns_vs_rows_max"] > 0
    assert "join aggregate" in capsys.readouterr().out
