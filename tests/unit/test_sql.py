"""SQL text to a Definition: what is accepted and what it becomes, what is refused, where and why."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from decimal import Decimal

import pytest

from viewtide.changetables.definition import Definition, Equality, Source
from viewtide.changetables.errors import DataError, Error, ProgrammingError, UnsupportedView
from viewtide.changetables.expressions import OPERATORS, Aggregate, Call, ColumnRef, Expression, GroupKey, Literal
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import EXPRESSION_LEVELS_MAX, SQL_CHARACTERS_MAX, parse_view
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
    Type,
)

T_COLUMNS = {
    "id": INT,
    "a": INT,
    "b": BOOL,
    "s": STR,
    "n": DECIMAL,
    "m": Type("decimal", 10, 2),
    "f": FLOAT,
    "d": DATE,
    "ts": TIMESTAMP,
    "tz": TIMESTAMPTZ,
    "j": JSON,
    "x": BYTES,
}
U_COLUMNS = {"id": INT, "a": INT, "k": STR, "n": FLOAT}
V_COLUMNS = {"id": INT, "k": STR, "w": INT}


def table(number: int, name: str, columns: dict[str, Type]) -> Table:
    made = (Column(column, type_, nullable=column != "id") for column, type_ in columns.items())
    return Table(number, name, tuple(made), key=(0,))


DROPPED = Table(
    5, "dropped", (Column("id", INT, nullable=False), Column("old", INT, dropped=True), Column("new", INT)), key=(0,)
)
TABLES = {
    "t": table(1, "t", T_COLUMNS),
    "u": table(2, "u", U_COLUMNS),
    "v": table(3, "v", V_COLUMNS),
    "Mixed": table(4, "Mixed", {"id": INT, "Case": INT}),
    "dropped": DROPPED,
}
COLUMNS = {"t": T_COLUMNS, "u": U_COLUMNS, "v": V_COLUMNS}


def col(source: int, table_name: str, name: str) -> ColumnRef:
    columns = COLUMNS[table_name]
    return ColumnRef(source, list(columns).index(name), name, columns[name], nullable=name != "id")


def t(name: str) -> ColumnRef:
    return col(0, "t", name)


def u(name: str) -> ColumnRef:
    return col(1, "u", name)


def view(sql: str) -> Definition:
    return parse_view(sql, TABLES)


def expression(sql: str) -> Expression:
    return view(f"SELECT {sql} AS q FROM t").outputs[0].expression


def names(sql: str) -> list[str]:
    return [output.name for output in view(sql).outputs]


def test_the_whole_definition_of_a_join_with_groups() -> None:
    definition = view(
        "SELECT u.k, SUM(t.a) AS total, COUNT(*) n FROM t JOIN u ON t.a = u.id AND t.b WHERE t.n > 1.5 GROUP BY u.k"
    )
    assert definition.sources == (Source("t", "t"), Source("u", "u"))
    assert definition.equalities == (Equality(t("a"), u("id")),)
    assert definition.filters == (t("b"), Call(">", (t("n"), Literal(Decimal("1.5"), DECIMAL)), BOOL))
    assert definition.group_by == (u("k"),)
    assert [(output.name, output.expression, output.type) for output in definition.outputs] == [
        ("k", GroupKey(0, STR), STR),
        ("total", Aggregate("sum", t("a"), INT), INT),
        ("n", Aggregate("count_star", None, INT), INT),
    ]


# --- FROM ---


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t.id FROM t JOIN u ON t.a = u.a",
        "SELECT t.id FROM t INNER JOIN u ON u.a = t.a",
        "SELECT t.id FROM t JOIN u ON (t.a = u.a)",
        "SELECT t.id FROM t, u WHERE t.a = u.a",
        "SELECT t.id FROM t CROSS JOIN u WHERE u.a = t.a",
        "SELECT t.id FROM t JOIN u USING (a)",
        "SELECT t.id FROM (t JOIN u ON t.a = u.a)",
        "select T.ID from T join U on T.A = U.A order by T.id desc;",
        'SELECT t.id FROM "t" /* one */ JOIN u ON t."a" = u.a -- two',
        "SELECT t.id FROM t JOIN u ON t.a = u.a AND u.a = t.a",
    ],
)
def test_spellings_of_one_join(sql: str) -> None:
    definition = view(sql)
    assert definition.sources == (Source("t", "t"), Source("u", "u"))
    assert definition.equalities == (Equality(t("a"), u("a")),)
    assert definition.filters == ()
    assert definition.outputs[0].expression == t("id")


def test_a_self_join_has_two_sources() -> None:
    definition = view("SELECT x.id, y.id AS other FROM t x JOIN t AS y ON x.id = y.a")
    assert definition.sources == (Source("t", "x"), Source("t", "y"))
    assert definition.equalities == (Equality(t("id"), col(1, "t", "a")),)


def test_three_tables_on_different_keys() -> None:
    definition = view("SELECT t.id FROM t JOIN u ON t.a = u.id JOIN v ON v.k = u.k AND v.w = t.id")
    assert definition.equalities == (
        Equality(t("a"), u("id")),
        Equality(u("k"), col(2, "v", "k")),
        Equality(t("id"), col(2, "v", "w")),
    )


def test_a_chain_may_connect_through_a_later_table() -> None:
    definition = view("SELECT t.id FROM t, u, v WHERE t.id = v.id AND u.k = v.k")
    assert [(e.left.source, e.right.source) for e in definition.equalities] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t.id FROM t JOIN (u JOIN v ON u.k = v.k) ON t.id = u.id",
        "SELECT t.id FROM t JOIN u JOIN v ON u.k = v.k ON t.id = u.id",
    ],
)
def test_nested_joins(sql: str) -> None:
    definition = view(sql)
    assert [source.table for source in definition.sources] == ["t", "u", "v"]
    assert [(e.left.source, e.right.source) for e in definition.equalities] == [(1, 2), (0, 1)]


def test_equalities_that_convert_a_column_are_filters() -> None:
    definition = view("SELECT t.id FROM t JOIN u ON t.id = u.id AND t.a = u.n")
    assert definition.equalities == (Equality(t("id"), u("id")),)
    assert definition.filters == (Call("=", (Call("cast", (t("a"),), FLOAT), u("n")), BOOL),)


def test_decimals_of_different_scales_are_equal_by_value_and_need_no_conversion() -> None:
    definition = view("SELECT x.id FROM t x JOIN t y ON x.n = y.m")
    assert definition.equalities == (Equality(t("n"), col(1, "t", "m")),)


def test_equality_within_one_table_is_a_filter() -> None:
    assert view("SELECT id FROM t WHERE a = id").filters == (Call("=", (t("a"), t("id")), BOOL),)


def test_equality_under_or_is_a_filter() -> None:
    definition = view("SELECT t.id FROM t JOIN u ON t.id = u.id AND (t.a = u.a OR t.b)")
    assert len(definition.equalities) == 1
    assert definition.filters[0] == Call("or", (Call("=", (t("a"), u("a")), BOOL), t("b")), BOOL)


def test_using_merges_columns() -> None:
    assert names("SELECT * FROM u JOIN v USING (id, k)") == ["id", "k", "a", "n", "w"]
    assert names("SELECT * FROM u NATURAL JOIN v") == ["id", "k", "a", "n", "w"]
    assert names("SELECT id FROM u JOIN v USING (id)") == ["id"]
    assert names("SELECT v.id FROM u JOIN v USING (id)") == ["id"]


def test_using_with_different_types_shows_the_wider_column() -> None:
    definition = view("SELECT n, t.s FROM t JOIN u USING (id, n)")
    assert definition.filters == (Call("=", (Call("cast", (t("n"),), FLOAT), u("n")), BOOL),)
    assert definition.outputs[0].expression == u("n")


def test_stars() -> None:
    assert names("SELECT * FROM u") == list(U_COLUMNS)
    assert names("SELECT u.*, v.w FROM u JOIN v ON u.id = v.id") == [*U_COLUMNS, "w"]
    assert names("SELECT * FROM dropped") == ["id", "new"]


def test_dropped_columns_keep_positions() -> None:
    assert view("SELECT new FROM dropped").outputs[0].expression == ColumnRef(0, 2, "new", INT, True)


def test_identifiers_fold_unless_quoted() -> None:
    assert names('SELECT "Case", ID FROM "Mixed"') == ["Case", "id"]
    assert names('SELECT a AS "A", a AS A FROM t') == ["A", "a"]


# --- output names, checked against PostgreSQL 15 ---


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("a", "a"),
        ("t.a", "a"),
        ("(a)", "a"),
        ("a + 1", "?column?"),
        ("-a", "?column?"),
        ("a IS NULL", "?column?"),
        ("a IN (1)", "?column?"),
        ("NOT b", "?column?"),
        ("s || 'x'", "?column?"),
        ("NULL", "?column?"),
        ("true", "?column?"),
        ("'x'", "?column?"),
        ("SUM(a)", "sum"),
        ("COUNT(*)", "count"),
        ("Avg(a)", "avg"),
        ("COALESCE(a, 1)", "coalesce"),
        ("NULLIF(a, 1)", "nullif"),
        ("ABS(a)", "abs"),
        ("MOD(a, 2)", "mod"),
        ("a % 2", "?column?"),
        ("CHAR_LENGTH(s)", "char_length"),
        ("CASE WHEN b THEN 1 END", "case"),
        ("CASE WHEN b THEN a ELSE 1 END", "case"),
        ("CASE WHEN b THEN 1 ELSE a END", "a"),
        ("CASE WHEN b THEN 1 ELSE ABS(a) END", "abs"),
        ("CASE WHEN b THEN 1 ELSE 2::bigint END", "case"),
        ("a::text", "a"),
        ("1::int", "int4"),
        ("1::smallint", "int2"),
        ("1::double precision", "float8"),
        ("1::real", "float4"),
        ("'1'::varchar(3)", "varchar"),
        ("CAST(1 AS numeric(3, 1))", "numeric"),
        ("DATE '2020-01-01'", "date"),
        ("CAST(CASE WHEN b THEN 1 END AS numeric)", "numeric"),
        ("a AS other", "other"),
        ('a "Other"', "Other"),
    ],
)
def test_output_names(sql: str, name: str) -> None:
    grouped = " GROUP BY a, b, s" if any(word in sql.lower() for word in ("sum", "count", "avg")) else ""
    assert names(f"SELECT {sql} FROM t{grouped}") == [name]


# --- expressions and types ---

ONE, TWO = Literal(1, INT), Literal(2, INT)


def cast(argument: Expression, type_: Type) -> Call:
    return Call("cast", (argument,), type_)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # literals
        ("1", ONE),
        ("-1", Literal(-1, INT)),
        ("- - 1", ONE),
        ("-(1)", Literal(-1, INT)),
        ("9223372036854775807", Literal(2**63 - 1, INT)),
        ("9223372036854775808", Literal(Decimal(2**63), DECIMAL)),
        ("-9223372036854775808", Literal(-(2**63), INT)),
        ("1.50", Literal(Decimal("1.50"), DECIMAL)),
        ("-.5", Literal(Decimal("-0.5"), DECIMAL)),
        ("5.", Literal(Decimal(5), DECIMAL)),
        ("1e3", Literal(Decimal(1000), DECIMAL)),
        ("1e-3", Literal(Decimal("0.001"), DECIMAL)),
        ("'it''s'", Literal("it's", STR)),
        ("NULL", Literal(None, STR)),
        ("TRUE", Literal(True, BOOL)),
        # arithmetic
        ("a + 1", Call("+", (t("a"), ONE), INT)),
        ("a / 2", Call("/", (t("a"), TWO), INT)),
        ("a * n", Call("*", (cast(t("a"), DECIMAL), t("n")), DECIMAL)),
        ("m + n", Call("+", (t("m"), t("n")), DECIMAL)),
        ("a - f", Call("-", (cast(t("a"), FLOAT), t("f")), FLOAT)),
        ("n / f", Call("/", (cast(t("n"), FLOAT), t("f")), FLOAT)),
        ("f + 1", Call("+", (t("f"), cast(ONE, FLOAT)), FLOAT)),
        ("a % 2", Call("%", (t("a"), TWO), INT)),
        ("MOD(a, 2)", Call("%", (t("a"), TWO), INT)),
        ("-m", Call("neg", (t("m"),), DECIMAL)),
        ("a + NULL", Call("+", (t("a"), Literal(None, INT)), INT)),
        ("a + '2'", Call("+", (t("a"), TWO), INT)),
        ("1 + 2 * a", Call("+", (ONE, Call("*", (TWO, t("a")), INT)), INT)),
        ("-a % 2", Call("%", (Call("neg", (t("a"),), INT), TWO), INT)),
        # comparison
        ("a <> 1", Call("<>", (t("a"), ONE), BOOL)),
        ("a != 1", Call("<>", (t("a"), ONE), BOOL)),
        ("a >= n", Call(">=", (cast(t("a"), DECIMAL), t("n")), BOOL)),
        ("d < ts", Call("<", (cast(t("d"), TIMESTAMP), t("ts")), BOOL)),
        ("d = '2024-02-29'", Call("=", (t("d"), Literal(datetime.date(2024, 2, 29), DATE)), BOOL)),
        (
            "ts > '2024-01-01 10:30'",
            Call(">", (t("ts"), Literal(datetime.datetime(2024, 1, 1, 10, 30), TIMESTAMP)), BOOL),
        ),
        (
            "tz = '2024-01-01 10:30+02'",
            Call("=", (t("tz"), Literal(datetime.datetime(2024, 1, 1, 8, 30), TIMESTAMPTZ)), BOOL),
        ),
        ("m = '1.234'", Call("=", (t("m"), Literal(Decimal("1.234"), DECIMAL)), BOOL)),
        ("b = 'yes'", Call("=", (t("b"), Literal(True, BOOL)), BOOL)),
        ("x = '\\x0aff'", Call("=", (t("x"), Literal(b"\n\xff", BYTES)), BOOL)),
        ("'a' < 'b'", Call("<", (Literal("a", STR), Literal("b", STR)), BOOL)),
        ("a IS DISTINCT FROM 1", Call("is_distinct", (t("a"), ONE), BOOL)),
        ("a IS NOT DISTINCT FROM n", Call("is_not_distinct", (cast(t("a"), DECIMAL), t("n")), BOOL)),
        # sugar
        ("a IS NULL", Call("is_null", (t("a"),), BOOL)),
        ("a IS NOT NULL", Call("is_not_null", (t("a"),), BOOL)),
        ("j IS NULL", Call("is_null", (t("j"),), BOOL)),
        ("b IS TRUE", Call("is_not_distinct", (t("b"), Literal(True, BOOL)), BOOL)),
        ("b IS NOT FALSE", Call("is_distinct", (t("b"), Literal(False, BOOL)), BOOL)),
        ("b IS UNKNOWN", Call("is_null", (t("b"),), BOOL)),
        ("a BETWEEN 1 AND 2", Call("and", (Call(">=", (t("a"), ONE), BOOL), Call("<=", (t("a"), TWO), BOOL)), BOOL)),
        ("a IN (1, 2)", Call("in", (t("a"), ONE, TWO), BOOL)),
        ("a NOT IN (1, 2)", Call("not", (Call("in", (t("a"), ONE, TWO), BOOL),), BOOL)),
        ("a IN (1, id)", Call("in", (t("a"), ONE, t("id")), BOOL)),
        (
            "a IN (1, f)",
            Call("or", (Call("in", (t("a"), ONE), BOOL), Call("=", (cast(t("a"), FLOAT), t("f")), BOOL)), BOOL),
        ),
        ("s LIKE 'a%'", Call("like", (t("s"), Literal("a%", STR)), BOOL)),
        ("s NOT LIKE 'a%'", Call("not", (Call("like", (t("s"), Literal("a%", STR)), BOOL),), BOOL)),
        ("NOT b", Call("not", (t("b"),), BOOL)),
        ("a = 1 IS NULL", Call("is_null", (Call("=", (t("a"), ONE), BOOL),), BOOL)),
        ("b OR b AND b", Call("or", (t("b"), Call("and", (t("b"), t("b")), BOOL)), BOOL)),
        # functions
        ("CASE WHEN b THEN 1 END", Call("case", (t("b"), ONE, Literal(None, INT)), INT)),
        (
            "CASE a WHEN 1 THEN 1.5 ELSE 2 END",
            Call(
                "case",
                (Call("=", (t("a"), ONE), BOOL), Literal(Decimal("1.5"), DECIMAL), cast(TWO, DECIMAL)),
                DECIMAL,
            ),
        ),
        ("COALESCE(a, n)", Call("coalesce", (cast(t("a"), DECIMAL), t("n")), DECIMAL)),
        ("COALESCE(s, 'x')", Call("coalesce", (t("s"), Literal("x", STR)), STR)),
        ("COALESCE(d, ts)", Call("coalesce", (cast(t("d"), TIMESTAMP), t("ts")), TIMESTAMP)),
        ("NULLIF(a, 1.5)", Call("nullif", (cast(t("a"), DECIMAL), Literal(Decimal("1.5"), DECIMAL)), DECIMAL)),
        ("ABS(m)", Call("abs", (t("m"),), DECIMAL)),
        ("LOWER(s)", Call("lower", (t("s"),), STR)),
        ("LENGTH(x)", Call("length", (t("x"),), INT)),
        ("CHARACTER_LENGTH(s)", Call("length", (t("s"),), INT)),
        ("s || a", Call("||", (t("s"), cast(t("a"), STR)), STR)),
        ("'x' || b", Call("||", (Literal("x", STR), cast(t("b"), STR)), STR)),
        # casts
        ("a::text", cast(t("a"), STR)),
        ("CAST(n AS bigint)", cast(t("n"), INT)),
        ("f::numeric(5, 2)", cast(t("f"), Type("decimal", 5, 2))),
        ("s::varchar(3)", cast(t("s"), Type("str", length=3))),
        ("d::timestamp", cast(t("d"), TIMESTAMP)),
        ("ts::date", cast(t("ts"), DATE)),
        ("a::int", t("a")),
        ("m::numeric", t("m")),
        ("'12'::int", Literal(12, INT)),
        ("'1.005'::numeric(5, 2)", Literal(Decimal("1.01"), Type("decimal", 5, 2))),
        ("'NaN'::float8", Literal(NAN, FLOAT)),
        ("NULL::int", Literal(None, INT)),
        ("DATE '2024-02-29'", Literal(datetime.date(2024, 2, 29), DATE)),
        ("-1::int", Call("neg", (ONE,), INT)),
    ],
)
def test_expressions(sql: str, expected: Expression) -> None:
    assert expression(sql) == expected


def test_every_operator_is_reachable_from_sql() -> None:
    texts = (
        "a + 1 - 1 * 1 / 1 % 1 = -a, a <> 1 AND a < 1 OR a <= 1, NOT a > 1, a >= 1, a IS NULL, a IS NOT NULL,"
        "a IS DISTINCT FROM 1, a IS NOT DISTINCT FROM 1, a IN (1), CASE WHEN b THEN 1 END, COALESCE(a, 1),"
        "NULLIF(a, 1), a::text, ABS(a), LOWER(s), UPPER(s), LENGTH(s), s || s, s LIKE s"
    )
    aliased = ", ".join(f"{text} AS q{index}" for index, text in enumerate(_split(texts)))
    found: set[str] = set()
    for output in view(f"SELECT {aliased} FROM t").outputs:
        found |= _operators(output.expression)
    assert found == OPERATORS


def _split(texts: str) -> list[str]:
    parts, depth = [""], 0
    for character in texts:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _operators(node: Expression) -> set[str]:
    return {node.op}.union(*map(_operators, node.args)) if isinstance(node, Call) else set()


@pytest.mark.parametrize("clause", [" AND ", " OR "])
def test_thousands_of_conditions_are_a_shallow_tree(clause: str) -> None:
    definition = view(f"SELECT id FROM t WHERE {clause.join(f'a = {number}' for number in range(1_000))}")
    if clause == " AND ":
        assert len(definition.filters) == 1_000
    else:
        assert _depth(definition.filters[0]) < 20


def _depth(node: Expression) -> int:
    return 1 + max(map(_depth, node.args)) if isinstance(node, Call) else 1


# --- aggregates and groups ---


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("COUNT(*)", Aggregate("count_star", None, INT)),
        ("COUNT(s)", Aggregate("count", t("s"), INT)),
        ("COUNT(ALL a)", Aggregate("count", t("a"), INT)),
        ("COUNT(NULL)", Aggregate("count", Literal(None, STR), INT)),
        ("SUM(a)", Aggregate("sum", t("a"), INT)),
        ("SUM(m)", Aggregate("sum", t("m"), DECIMAL)),
        ("SUM(f)", Aggregate("sum", t("f"), FLOAT)),
        ("AVG(a)", Aggregate("avg", t("a"), DECIMAL)),
        ("AVG(n)", Aggregate("avg", t("n"), DECIMAL)),
        ("AVG(f)", Aggregate("avg", t("f"), FLOAT)),
        ("SUM(a * 2) + 1", Call("+", (Aggregate("sum", Call("*", (t("a"), TWO), INT), INT), ONE), INT)),
    ],
)
def test_aggregates_without_group_by(sql: str, expected: Expression) -> None:
    definition = view(f"SELECT {sql} AS q FROM t")
    assert definition.group_by == ()
    assert definition.outputs[0].expression == expected


LOWER_S = Call("lower", (t("s"),), STR)


@pytest.mark.parametrize(
    ("sql", "keys", "first"),
    [
        ("SELECT s, COUNT(*) FROM t GROUP BY s", (t("s"),), GroupKey(0, STR)),
        ("SELECT s, COUNT(*) FROM t GROUP BY 1", (t("s"),), GroupKey(0, STR)),
        ("SELECT s, COUNT(*) FROM t GROUP BY (1)", (t("s"),), GroupKey(0, STR)),
        ("SELECT t.s, COUNT(*) FROM t GROUP BY s, t.s", (t("s"),), GroupKey(0, STR)),
        ("SELECT s AS z, COUNT(*) FROM t GROUP BY z", (t("s"),), GroupKey(0, STR)),
        ("SELECT LOWER(s) AS z FROM t GROUP BY z", (LOWER_S,), GroupKey(0, STR)),
        ("SELECT LOWER(s) FROM t GROUP BY lower(t.s)", (LOWER_S,), GroupKey(0, STR)),
        ("SELECT s FROM t GROUP BY a, s", (t("a"), t("s")), GroupKey(1, STR)),
        ("SELECT s FROM t GROUP BY (a, s), b", (t("a"), t("s"), t("b")), GroupKey(1, STR)),
        (
            "SELECT LOWER(s) || 'x' FROM t GROUP BY LOWER(s)",
            (LOWER_S,),
            Call("||", (GroupKey(0, STR), Literal("x", STR)), STR),
        ),
        ("SELECT 'x' AS z, COUNT(*) FROM t GROUP BY z", (Literal("x", STR),), GroupKey(0, STR)),
        # A column of FROM wins over the name of an output.
        ("SELECT SUM(a) AS s FROM t GROUP BY s", (t("s"),), Aggregate("sum", t("a"), INT)),
        ("SELECT 1 AS a, COUNT(*) FROM t GROUP BY a", (t("a"),), ONE),
        (
            "SELECT a % 2 + SUM(id) FROM t GROUP BY a % 2",
            (Call("%", (t("a"), TWO), INT),),
            Call("+", (GroupKey(0, INT), Aggregate("sum", t("id"), INT)), INT),
        ),
    ],
)
def test_group_by(sql: str, keys: tuple[Expression, ...], first: Expression) -> None:
    definition = view(sql)
    assert definition.group_by == keys
    assert definition.outputs[0].expression == first


def test_a_view_of_rows_has_no_group_by() -> None:
    assert view("SELECT a FROM t").group_by is None


# --- refused ---


@pytest.mark.parametrize(
    ("sql", "reason", "place"),
    [
        ("SELECT t.a FROM t LEFT JOIN u ON t.id = u.id", "outer joins", (1, 19)),
        ("SELECT t.a FROM t JOIN u ON t.id = u.id\n RIGHT OUTER JOIN v ON v.id = t.id", "outer joins", (2, 2)),
        ("SELECT t.a FROM t FULL JOIN u USING (id)", "outer joins", (1, 19)),
        ("SELECT t.a FROM t NATURAL LEFT JOIN u", "outer joins", (1, 27)),
        ("SELECT a FROM t GROUP BY a HAVING COUNT(*) > 1", "HAVING", (1, 28)),
        ("SELECT DISTINCT a FROM t", "DISTINCT", (1, 8)),
        ("SELECT DISTINCT ON (a) a FROM t", "DISTINCT", (1, 8)),
        ("SELECT a FROM t UNION SELECT a FROM u", "UNION", (1, 17)),
        ("SELECT a FROM t\nUNION ALL SELECT a FROM u", "UNION", (2, 1)),
        ("SELECT a FROM t INTERSECT SELECT a FROM u", "INTERSECT", (1, 17)),
        ("SELECT a FROM t EXCEPT SELECT a FROM u", "EXCEPT", (1, 17)),
        ("SELECT a FROM (SELECT a FROM t) q", "subqueries", (1, 15)),
        ("SELECT a, (SELECT 1) FROM t", "subqueries", (1, 11)),
        ("SELECT a FROM t WHERE a IN (SELECT a FROM u)", "subqueries", (1, 28)),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u)", "subqueries", (1, 30)),
        ("(SELECT a FROM t)", "subqueries", (1, 1)),
        ("WITH q AS (SELECT a FROM t) SELECT a FROM q", "CTEs", (1, 1)),
        ("WITH RECURSIVE q AS (SELECT a FROM t) SELECT a FROM q", "CTEs", (1, 1)),
        ("SELECT MIN(a) FROM t", "MIN and MAX", (1, 8)),
        ("SELECT s, MAX(a) FROM t GROUP BY s", "MIN and MAX", (1, 11)),
        ("SELECT COUNT(DISTINCT a) FROM t", "COUNT(DISTINCT ...)", (1, 14)),
        ("SELECT SUM(DISTINCT a) FROM t", "SUM(DISTINCT ...)", (1, 12)),
        ("SELECT COUNT(*) FILTER (WHERE a > 0) FROM t", "FILTER", (1, 17)),
        ("SELECT SUM(a ORDER BY a) FROM t", "ORDER BY in an aggregate", (1, 8)),
        ("SELECT STRING_AGG(s, ',') FROM t", "aggregate function string_agg", (1, 8)),
        ("SELECT a FROM t LIMIT 5", "LIMIT", (1, 17)),
        ("SELECT a FROM t ORDER BY a\nLIMIT 5", "LIMIT", (2, 1)),
        ("SELECT a FROM t FETCH FIRST 3 ROWS ONLY", "LIMIT", (1, 17)),
        ("SELECT a FROM t OFFSET 3", "OFFSET", (1, 17)),
        ("SELECT SUM(a) OVER () FROM t", "window functions", (1, 8)),
        ("SELECT a, ROW_NUMBER() OVER (ORDER BY a) FROM t", "window functions", (1, 11)),
        ("SELECT a FROM t WINDOW w AS (ORDER BY a)", "window functions", (1, 17)),
        ("SELECT a, NOW() FROM t", "volatile function now", (1, 11)),
        ("SELECT RANDOM() FROM t", "volatile function random", (1, 8)),
        ("SELECT a FROM t WHERE ts > CURRENT_TIMESTAMP", "volatile function current_timestamp", (1, 28)),
        ("SELECT CURRENT_DATE FROM t", "volatile function current_date", (1, 8)),
        ("SELECT clock_timestamp() FROM t", "volatile function clock_timestamp", (1, 8)),
        ("SELECT nextval('q') FROM t", "volatile function nextval", (1, 8)),
        ("SELECT a FROM t FOR UPDATE", "FOR UPDATE", (1, 17)),
        ("SELECT a FROM t FOR SHARE", "FOR SHARE", (1, 17)),
        ("VALUES (1)", "VALUES", (1, 1)),
        ("SELECT a FROM (VALUES (1)) q(a)", "VALUES", (1, 15)),
        ("SELECT a INTO q FROM t", "SELECT INTO", (1, 10)),
        ("SELECT foo(a) FROM t", "function foo", (1, 8)),
        ("SELECT CEIL(f) FROM t", "function ceil", (1, 8)),
        ("SELECT EXTRACT(year FROM d) FROM t", "function extract", (1, 8)),
        ("SELECT IFNULL(a, 1) FROM t", "function ifnull", (1, 8)),
        ("SELECT pg_catalog.lower(s) FROM t", "qualified function names", (1, 8)),
        ("SELECT s ILIKE 'a' FROM t", "ILIKE", (1, 8)),
        ("SELECT s LIKE 'a' ESCAPE '!' FROM t", "ESCAPE", (1, 8)),
        ("SELECT s ~ 'a' FROM t", "operator ~", (1, 8)),
        ("SELECT a & 1 FROM t", "operator &", (1, 8)),
        ("SELECT a ^ 2 FROM t", "operator ^", (1, 8)),
        ("SELECT d + 1 FROM t", "operator + on date and integer", (1, 8)),
        ("SELECT ts + INTERVAL '1 day' FROM t", "intervals", (1, 13)),
        ("SELECT id FROM t WHERE (a, id) = (1, 2)", "row values", (1, 25)),
        ("SELECT a FROM t WHERE a = ?", "parameters", (1, 27)),
        ("SELECT a FROM t WHERE a = :p", "parameters", (1, 27)),
        ("SELECT t FROM t", "whole row", (1, 8)),
        ("SELECT COUNT(t.*) FROM t", "whole row", (1, 14)),
        ("SELECT t.a.q FROM t", "more than two parts", (1, 8)),
        ("SELECT a FROM public.t", "schema", (1, 15)),
        ("SELECT a FROM t AS q(z)", "aliases for columns", (1, 15)),
        ("SELECT a FROM t TABLESAMPLE SYSTEM (1)", "SAMPLE", (1, 15)),
        ("SELECT g FROM generate_series(1, 3) g", "functions in FROM", (1, 15)),
        ("SELECT a FROM t, LATERAL (SELECT 1) q", "LATERAL", (1, 18)),
        ("SELECT a FROM t GROUP BY ROLLUP (a)", "grouping sets", (1, 17)),
        ("SELECT COUNT(*) FROM t GROUP BY ()", "grouping sets", (1, 24)),
        ("SELECT 1", "without FROM", (1, 1)),
        ("SELECT t.a FROM t, u", "joins without any equality", (1, 20)),
        ("SELECT t.a FROM t CROSS JOIN u", "joins without any equality", (1, 30)),
        ("SELECT t.a FROM t JOIN u ON t.a < u.a", "joins without any equality", (1, 24)),
        ("SELECT t.a FROM t JOIN u ON t.a = u.n", "joins without any equality", (1, 24)),
        ("SELECT t.a FROM t JOIN u ON t.a + 1 = u.a", "joins without any equality", (1, 24)),
        ("SELECT t.a FROM t JOIN u ON t.id = u.id, v", "joins without any equality", (1, 42)),
        ("SELECT j = j FROM t", "json", (1, 8)),
        ("SELECT COUNT(*) FROM t GROUP BY j", "json", (1, 33)),
        ("SELECT tz > ts FROM t", "time zone", (1, 8)),
        ("SELECT d::text FROM t", "cast from date to text", (1, 8)),
        ("SELECT s::char(3) FROM t", "type char(3)", (1, 8)),
        ("SELECT a::uuid FROM t", "type uuid", (1, 8)),
        ("SELECT a::int[] FROM t", "type int[]", (1, 8)),
        ("SELECT E'a' FROM t", "strings with escapes", (1, 8)),
        ("SELECT '\u20ac\U0001f600', foo(a) FROM t", "function foo", (1, 14)),
        (f"SELECT {' + '.join('a' * 1000)} FROM t", f"more than {EXPRESSION_LEVELS_MAX} nested levels", (1, 8)),
    ],
)
def test_refused_with_reason_and_place(sql: str, reason: str, place: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedView) as caught:
        view(sql)
    assert reason in caught.value.reason
    assert caught.value.place == place
    assert f"at line {place[0]}, column {place[1]}" in str(caught.value)


def test_the_hint_says_why_an_equality_does_not_connect() -> None:
    with pytest.raises(UnsupportedView) as caught:
        view("SELECT t.a FROM t JOIN u ON t.a = u.n")
    assert caught.value.hint == "an equality of integer and double precision cannot be looked up by key"


# --- wrong ---


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nosuch FROM t", "unknown column nosuch at line 1, column 8"),
        ("SELECT t.nosuch FROM t", "unknown column t.nosuch at line 1, column 10"),
        ("SELECT old FROM dropped", "unknown column old at line 1, column 8"),
        ("SELECT q.a FROM t", "no table q here in FROM at line 1, column 8"),
        ("SELECT t.a FROM t q", "no table t here in FROM at line 1, column 8"),
        ("SELECT a FROM\n nosuch", "unknown table nosuch at line 2, column 2"),
        ("SELECT id FROM Mixed", "unknown table mixed at line 1, column 16 (did you mean Mixed?)"),
        ("SELECT a FROM t JOIN u ON t.id = u.id", "column a is ambiguous at line 1, column 8 (write t.a or u.a)"),
        ("SELECT u.a FROM t, u JOIN v ON t.id = v.id", "no table t here in FROM at line 1, column 32"),
        ("SELECT t.a FROM t JOIN t ON true", "table name t specified more than once at line 1, column 24"),
        ("SELECT k FROM t JOIN u USING (nosuch)", "column nosuch of USING does not exist in the left table"),
        ("SELECT t.s FROM t JOIN u ON t.id = u.id JOIN v USING (id)", "id appears more than once in the left table"),
        ("SELECT s + a FROM t", "operator does not exist: text + integer at line 1, column 8"),
        ("SELECT a = s FROM t", "operator does not exist: integer = text at line 1, column 8"),
        ("SELECT a || a FROM t", "operator does not exist: integer || integer"),
        ("SELECT f % 2 FROM t", "operator does not exist: double precision % integer"),
        ("SELECT -s FROM t", "operator does not exist: - text"),
        ("SELECT a LIKE 'x' FROM t", "operator does not exist: integer LIKE text"),
        ("SELECT NULL + NULL FROM t", "operator is not unique: unknown + unknown"),
        ("SELECT LOWER(a) FROM t", "function lower(integer) does not exist at line 1, column 8"),
        ("SELECT SUM(s) FROM t", "function sum(text) does not exist"),
        ("SELECT SUM(NULL) FROM t", "function sum(unknown) is not unique"),
        ("SELECT SUM(*) FROM t", "function sum(*) does not exist"),
        ("SELECT COUNT(a, b) FROM t", "function count takes one argument, not 2"),
        ("SELECT MOD(f, 2) FROM t", "function mod(double precision, integer) does not exist"),
        ("SELECT COALESCE(a, s) FROM t", "COALESCE types integer and text cannot be matched"),
        ("SELECT CASE WHEN a THEN 1 END FROM t", "argument of CASE/WHEN must be type boolean, not type integer"),
        ("SELECT b::numeric FROM t", "cannot cast type boolean to numeric"),
        ("SELECT a FROM t WHERE a", "argument of WHERE must be type boolean, not type integer at line 1, column 23"),
        ("SELECT a FROM t WHERE a AND b", "argument of WHERE must be type boolean, not type integer"),
        ("SELECT a AND b FROM t", "argument of AND must be type boolean, not type integer"),
        ("SELECT a IS TRUE FROM t", "argument of IS TRUE must be type boolean, not type integer"),
        ("SELECT a FROM t WHERE SUM(a) > 1", "aggregate functions are not allowed in WHERE at line 1, column 23"),
        ("SELECT t.a FROM t JOIN u ON COUNT(*) = 1", "aggregate functions are not allowed in JOIN conditions"),
        ("SELECT SUM(COUNT(*)) FROM t", "aggregate function calls cannot be nested at line 1, column 12"),
        ("SELECT COUNT(*) FROM t GROUP BY 1", "aggregate functions are not allowed in GROUP BY"),
        ("SELECT a, COUNT(*) FROM t GROUP BY b", "column a must appear in GROUP BY or be used in an aggregate"),
        ("SELECT a + 1 FROM t GROUP BY 1 + a", "column a must appear in GROUP BY"),
        ("SELECT s AS a FROM t GROUP BY a", "column s must appear in GROUP BY"),
        ("SELECT s AS z, a AS z FROM t GROUP BY z", "GROUP BY z is ambiguous"),
        ("SELECT a FROM t GROUP BY 2", "GROUP BY position 2 is not in the select list at line 1, column 26"),
        ("SELECT a FROM t GROUP BY -1", "GROUP BY position -1 is not in the select list"),
        ("SELECT a FROM t GROUP BY 'x'", "non-integer constant in GROUP BY at line 1, column 26"),
        ("SELECT a FROM t ORDER BY 2", "ORDER BY position 2 is not in the select list"),
        ("SELECT a FROM t ORDER BY nosuch", "unknown column nosuch at line 1, column 26"),
        ("SELECT a, a FROM t", "two outputs named a at line 1, column 11"),
        ("SELECT * FROM t, u WHERE t.id = u.id", "two outputs named id at line 1, column 8"),
        ("SELECT a < a < a FROM t", "needs parentheses at line 1, column 8"),
        ("SELECT a FROM", 'syntax error at or near "FROM" at line 1, column 10'),
        ("SELECT a\nFROM t WHERE", 'syntax error at or near "WHERE" at line 2, column 8'),
        ("SELECT a b c FROM t", 'syntax error at or near "c" at line 1, column 12'),
        ("SELECT a, FROM t", 'syntax error at or near "," at line 1, column 9'),
        ("SELECT a == 1 FROM t", 'syntax error at or near "==" at line 1, column 10'),
        ("SELECT !b FROM t", 'syntax error at or near "!" at line 1, column 8'),
        ("SELECT 'abc FROM t", "unterminated ' at line 1, column 8"),
        ("SELECT a /* FROM t", "unterminated comment"),
        ("SELECT a FROM t JOIN u", "JOIN without ON at line 1, column 22"),
        ("SELECT t.a FROM t CROSS JOIN u ON true", "CROSS JOIN with a condition"),
        ("SELECT a FROM t; SELECT a FROM u", "more than one statement at line 1, column 16"),
        ("", "the SQL text is empty"),
        ("-- nothing", "the SQL text is empty"),
        ("INSERT INTO t VALUES (1)", "not a SELECT at line 1, column 1"),
        ("\n  EXPLAIN SELECT a FROM t", "not a SELECT at line 2, column 3"),
        ("FROM t SELECT a", "not a SELECT at line 1, column 1"),
        ("SELECT \0 FROM t", "a NUL character at line 1, column 8"),
        (f"SELECT a FROM t WHERE {'(' * 3000}b{')' * 3000}", "nested too deeply"),
        (f"SELECT a FROM t WHERE {'NOT ' * 3000} b", "nested too deeply"),
        (f"SELECT a FROM t --{' ' * SQL_CHARACTERS_MAX}", "SQL text of"),
    ],
)
def test_wrong_with_message_and_place(sql: str, message: str) -> None:
    with pytest.raises(ProgrammingError) as caught:
        view(sql)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT k FROM uu", "did you mean u?"),
        ("SELECT td FROM t", "did you mean"),
        ("SELECT zzzz FROM u", "known: a, id, k, n"),
    ],
)
def test_unknown_names_come_with_near_ones(sql: str, hint: str) -> None:
    with pytest.raises(ProgrammingError) as caught:
        view(sql)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("a = '1x'", 'invalid input syntax for type integer: "1x" at line 1, column 12'),
        ("a = '9223372036854775808'", "out of range for type integer"),
        ("n = '1,5'", 'invalid input syntax for type numeric: "1,5"'),
        ("f = '1e400'", '"1e400" is out of range for type double precision'),
        ("b = 'o'", 'invalid input syntax for type boolean: "o"'),
        ("d = '2023-02-29'", 'date/time field value out of range: "2023-02-29"'),
        ("d = 'yesterday'", 'invalid input syntax for type date: "yesterday"'),
        ("x = '\\xzz'", "invalid input syntax for type bytea"),
        ("'1000'::numeric(5, 2)", "numeric field overflow"),
    ],
)
def test_bad_literals(sql: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        view(f"SELECT {sql} FROM t")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("' 7 '::int", 7),
        ("'+5'::int", 5),
        ("' 1e3 '::numeric", Decimal(1000)),
        ("'-.5'::numeric", Decimal("-0.5")),
        ("'-inf'::float8", float("-inf")),
        ("'Infinity'::numeric", Decimal("Infinity")),
        ("'f'::bool", False),
        ("' YES'::bool", True),
        ("'abc'::varchar(2)", "ab"),
        ("'2024-01-02 03:04:05.6'::date", datetime.date(2024, 1, 2)),
        ("'2024-01-02T03:04:05.6'::timestamp", datetime.datetime(2024, 1, 2, 3, 4, 5, 600_000)),
        ("'2024-01-02 03:04+05:30'::timestamptz", datetime.datetime(2024, 1, 1, 21, 34)),
        ("'abc'::bytea", b"abc"),
    ],
)
def test_literals_as_postgresql_reads_them(text: str, value: object) -> None:
    literal = expression(text)
    assert isinstance(literal, Literal)
    assert literal.value == value
    assert type(literal.value) is type(value)


PIECES = re.findall(
    r"\S+",
    "SELECT a FROM t JOIN u ON ( ) , . * + - / = < > || 'x' \"y\" 1 2.5 AND OR NOT IN LIKE IS NULL CASE WHEN THEN END"
    " GROUP BY ORDER COUNT SUM AS b s WHERE :: int ; -- /* [ ] $1 ? WITH UNION OVER FILTER DISTINCT EXISTS",
)


@pytest.mark.parametrize("seed", range(8))
def test_any_text_gives_a_definition_or_an_error_of_ours(seed: int) -> None:
    """A fixed stream of token soups: no text may escape with another exception."""
    state, outcomes = seed + 1, set()
    for _ in range(60):
        words = ["SELECT", "a"] if state % 3 else ["SELECT", "a", "FROM", "t", "WHERE"]
        for _ in range(state % 9):
            state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
            words.append(PIECES[(state >> 33) % len(PIECES)])
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        try:
            outcomes.add(type(view(" ".join(words))))
        except Error as error:
            outcomes.add(type(error))
    assert outcomes <= {Definition, ProgrammingError, UnsupportedView, DataError}
    assert len(outcomes) > 1


def test_only_this_module_needs_sqlglot() -> None:
    code = (
        "import sys; import viewtide.changetables.builder, viewtide.changetables.recompute,"
        " viewtide.changetables.serialize; print('sqlglot' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
