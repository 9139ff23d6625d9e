"""Parameters of statements, and the expressions and rows that statements bind besides whole queries."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

from viewtide.changetables.algebra import Field, Filter, Project, Scan, Semi, Top, scans
from viewtide.changetables.errors import DataError, ProgrammingError, UnsupportedView
from viewtide.changetables.expressions import Call, ColumnRef, Expression, Literal
from viewtide.changetables.recompute import recompute
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import (
    Parameters,
    ParameterValues,
    SqlText,
    bind_rows,
    bind_scalar,
    bind_select,
    parse_expression,
    parse_select,
    parse_statements,
    parse_view,
)
from viewtide.changetables.types import (
    BOOL,
    BYTES,
    DATE,
    DECIMAL,
    FLOAT,
    INT,
    JSON,
    NAN,
    STR,
    TIMESTAMP,
    TIMESTAMPTZ,
    Row,
    Type,
)

T = Table(
    1,
    "t",
    (Column("id", INT, nullable=False), Column("a", INT), Column("s", STR), Column("d", DATE), Column("f", FLOAT)),
    key=(0,),
)
#: A table without a primary key, with a dropped column.
H = Table(
    2,
    "h",
    (
        Column("", INT, nullable=False, hidden=True),
        Column("a", INT),
        Column("old", STR, dropped=True),
        Column("b", INT),
    ),
    key=(0,),
)
TABLES = {"t": T, "h": H}


def condition(sql: str, parameters: ParameterValues) -> Expression:
    relation = parse_select(f"SELECT id FROM t WHERE {sql}", TABLES, parameters)
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Filter)
    return relation.input.condition


def output(parameter: object) -> Expression:
    relation = parse_select("SELECT ?", TABLES, [parameter])
    assert isinstance(relation, Project)
    return relation.outputs[0].expression


A, S, D = (ColumnRef(0, position, T.columns[position].name, T.columns[position].type, True) for position in (1, 2, 3))


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (1, Literal(1, INT)),
        (2**63, Literal(Decimal(2**63), DECIMAL)),
        (True, Literal(True, BOOL)),
        (1.5, Literal(1.5, FLOAT)),
        (float("nan"), Literal(NAN, FLOAT)),
        (Decimal("1.50"), Literal(Decimal("1.50"), DECIMAL)),
        ("x", Literal("x", STR)),
        (None, Literal(None, STR)),
        (b"x", Literal(b"x", BYTES)),
        (bytearray(b"x"), Literal(b"x", BYTES)),
        (datetime.date(2024, 1, 2), Literal(datetime.date(2024, 1, 2), DATE)),
        (datetime.datetime(2024, 1, 2, 3), Literal(datetime.datetime(2024, 1, 2, 3), TIMESTAMP)),
        (
            datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            Literal(datetime.datetime(2024, 1, 2, 1), TIMESTAMPTZ),
        ),
        ({"b": 1, "a": [None]}, Literal('{"a":[null],"b":1}', JSON)),
    ],
)
def test_values_of_parameters(value: object, literal: Literal) -> None:
    made = output(value)
    assert made == literal
    assert isinstance(made, Literal)
    assert type(made.value) is type(literal.value)


def test_a_text_takes_the_type_of_what_it_meets() -> None:
    assert condition("a = ?", ["5"]) == Call("=", (A, Literal(5, INT)), BOOL)
    assert condition("d = ?", ["2024-01-02"]) == Call("=", (D, Literal(datetime.date(2024, 1, 2), DATE)), BOOL)
    assert condition("a = ?", [None]) == Call("=", (A, Literal(None, INT)), BOOL)


def test_positions_follow_the_text() -> None:
    made = condition("s = ? AND a IN (?, ?)", ["x", 1, 2])
    first = Call("=", (S, Literal("x", STR)), BOOL)
    assert made == Call("and", (first, Call("in", (A, Literal(1, INT), Literal(2, INT)), BOOL)), BOOL)


def test_names_may_stand_more_than_once_and_next_to_casts() -> None:
    made = condition("a = :n::int AND id > :n", {"n": 3})
    first = Call("=", (A, Literal(3, INT)), BOOL)
    identifier = ColumnRef(0, 0, "id", INT, False)
    assert made == Call("and", (first, Call(">", (identifier, Literal(3, INT)), BOOL)), BOOL)
    assert condition("a::int = :Name", {"Name": 3}) == first
    assert condition("a=:from", {"from": 3}) == first


def test_question_marks_and_colons_in_literals_are_text() -> None:
    assert condition("s = '? :n ::'", []) == Call("=", (S, Literal("? :n ::", STR)), BOOL)
    assert condition("s = ':n' /* ? */ -- :n", {}) == Call("=", (S, Literal(":n", STR)), BOOL)


def test_limits_and_subqueries_take_parameters() -> None:
    relation = parse_select("SELECT a FROM t ORDER BY a LIMIT ? OFFSET ?", TABLES, [2, 1])
    assert isinstance(relation, Top)
    assert (relation.limit, relation.offset) == (2, 1)
    rows: list[Row] = [(1, 1, "x", None, None), (2, 2, "y", None, None)]
    nested = parse_select("SELECT id FROM t WHERE a IN (SELECT id FROM t WHERE s = :s)", TABLES, {"s": "y"})
    assert recompute(nested, TABLES, {"t": rows}) == [(2,)]


@pytest.mark.parametrize(
    ("sql", "values", "message"),
    [
        ("a = ?", [], "the text has 1 parameter, values given: 0"),
        ("a = ?", [1, 2], "the text has 1 parameter, values given: 2"),
        ("a = 1", [1], "the text has 0 parameters, values given: 1"),
        ("a = ?", {"a": 1}, "a mapping for ? parameters"),
        ("a = :n", [1], "parameter :n needs a mapping at line 1, column 28"),
        ("a = :n", {}, "no value for parameter :n at line 1, column 28"),
        ("a = :n", {"N": 1}, "no value for parameter :n"),
        ("a = :n", {"n": 1, "m": 2}, "the text has no parameter :m"),
        ("a = :n AND a = ?", [1], "both ? and :name parameters"),
        ("a = ?", [object()], "parameter 1 is a object, which is no SQL value at line 1, column 28"),
        ("a = ?", "5", "parameters must be a list or a mapping, not str"),
        ("a = ?", 5, "parameters must be a list or a mapping, not int"),
        ("s = ?", [5], "operator does not exist: text = integer"),
    ],
)
def test_wrong_parameters(sql: str, values: ParameterValues, message: str) -> None:
    with pytest.raises(ProgrammingError) as caught:
        condition(sql, values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "values", "message"),
    [
        ("a = ?", ["x"], 'invalid input syntax for type integer: "x" at line 1, column 24'),
        ("s = ?", ["\ud800"], "parameter 1: the text is not valid Unicode"),
        ("s = :n", {"n": [float("nan")]}, "parameter :n: the value cannot be stored as json"),
    ],
)
def test_parameters_that_their_type_cannot_hold(sql: str, values: ParameterValues, message: str) -> None:
    with pytest.raises(DataError) as caught:
        condition(sql, values)
    assert message in str(caught.value)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(DataError, match="LIMIT must not be negative at line 1, column 23"):
        parse_select("SELECT a FROM t LIMIT ?", TABLES, [-1])


def test_a_view_has_no_parameters() -> None:
    with pytest.raises(UnsupportedView, match="parameters") as caught:
        parse_view("SELECT a FROM t WHERE a = ?", TABLES)
    assert caught.value.place == (1, 27)


def test_parameters_are_numbered_through_all_statements_of_a_text() -> None:
    source = SqlText("SELECT ? AS x; SELECT a FROM t WHERE a = ? AND s = ?")
    values = Parameters([1, 2, "x"])
    values.check(source)
    _, second = parse_statements(source)
    relation = bind_select(source, second, TABLES, values)
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Filter)
    expected = (Call("=", (A, Literal(2, INT)), BOOL), Call("=", (S, Literal("x", STR)), BOOL))
    assert relation.input.condition == Call("and", expected, BOOL)


def test_a_part_of_a_text_keeps_its_places() -> None:
    source = SqlText("SELECT 1; SELECT nosuch FROM t")
    part = source.part(source.tokens[3:])
    (node,) = parse_statements(part)
    with pytest.raises(ProgrammingError, match="unknown column nosuch at line 1, column 18"):
        bind_select(part, node, TABLES)


# --- expressions and rows ---

FIELDS = (Field("a", INT, False), Field("b", STR, True))


def scalar(text: str, **options: str) -> Expression:
    source, node = parse_expression(text)
    return bind_scalar(node, FIELDS, source, alias=options.get("alias", ""), clause=options.get("clause", "CHECK"))


def test_scalars_read_the_fields_by_position() -> None:
    field_a, field_b = ColumnRef(0, 0, "a", INT, False), ColumnRef(0, 1, "b", STR, True)
    assert scalar("a + 1") == Call("+", (field_a, Literal(1, INT)), INT)
    assert scalar("b") == field_b
    assert scalar("q.b", alias="q") == field_b
    assert scalar("'x'") == Literal("x", STR)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("nosuch", ProgrammingError, "unknown column nosuch at line 1, column 1"),
        ("q.a", ProgrammingError, "no table q here"),
        ("sum(a)", ProgrammingError, "aggregate functions are not allowed in CHECK at line 1, column 1"),
        ("a IN (SELECT 1)", UnsupportedView, "inside an expression"),
        ("(SELECT 1)", UnsupportedView, "scalar subqueries"),
        ("a = ?", UnsupportedView, "parameters"),
        ("a, b", ProgrammingError, "syntax error"),
        ("", ProgrammingError, "not one expression"),
    ],
)
def test_wrong_scalars(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        scalar(text)
    assert message in str(caught.value)


def test_rows_to_change_have_all_columns_and_names_only_for_the_visible_ones() -> None:
    source, node = parse_expression("a > 1 AND EXISTS (SELECT 1 FROM t WHERE t.id = h.b)")
    rows = bind_rows(source, "h", "h", node, TABLES)
    assert isinstance(rows.relation, Semi)
    scan = next(scans(rows.relation))
    assert isinstance(scan, Scan)
    assert scan.positions == (0, 1, 3)
    stored: list[Row] = [(1, 5, None, 1), (2, 5, None, 9), (3, 0, None, 1)]
    physical = {"h": stored, "t": [(1, None, None, None, None)]}
    assert recompute(rows.relation, TABLES, physical) == [(1, 5, 1)]
    _, value = parse_expression("a + b")
    column_a, column_b = ColumnRef(0, 1, "a", INT, True), ColumnRef(0, 2, "b", INT, True)
    assert rows.binder.settled(value) == Call("+", (column_a, column_b), INT)
    source, dropped = parse_expression("old = 1")
    with pytest.raises(ProgrammingError, match="unknown column old"):
        bind_rows(source, "h", "h", dropped, TABLES)


def test_rows_without_where_are_all_rows() -> None:
    rows = bind_rows(SqlText(""), "t", "x", None, TABLES)
    assert isinstance(rows.relation, Scan)
    assert rows.relation.alias == "x"
    assert [field.type for field in rows.relation.fields] == [column.type for column in T.columns]


def test_types_of_limited_columns_stay() -> None:
    limited = {"w": Table(1, "w", (Column("id", INT, nullable=False), Column("m", Type("decimal", 5, 2))), key=(0,))}
    assert parse_select("SELECT m FROM w", limited).fields[0].type == Type("decimal", 5, 2)
