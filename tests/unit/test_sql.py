"""SQL text to relations: expressions and names, what is refused, where and why. Queries: test_sql_queries.py."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from decimal import Decimal

import pytest

from viewtide.changetables.algebra import Filter, Group, Join, Output, Project, Relation, Scan
from viewtide.changetables.binding import nullable
from viewtide.changetables.errors import DataError, Error, ProgrammingError, UnsupportedView
from viewtide.changetables.expressions import Aggregate, Call, ColumnRef, Expression, Literal
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import (
    EXPRESSION_LEVELS_MAX,
    RELATION_LEVELS_MAX,
    RELATIONS_MAX,
    SQL_CHARACTERS_MAX,
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


def col(table_name: str, name: str, offset: int = 0) -> ColumnRef:
    """A column of a table whose fields begin at `offset`."""
    columns = COLUMNS[table_name]
    return ColumnRef(0, offset + list(columns).index(name), name, columns[name], nullable=name != "id")


def t(name: str) -> ColumnRef:
    return col("t", name)


def u(name: str) -> ColumnRef:
    """A column of u behind t."""
    return col("u", name, len(T_COLUMNS))


def view(sql: str) -> Relation:
    return parse_view(sql, TABLES)


def outputs(sql: str) -> tuple[Output, ...]:
    relation = view(sql)
    assert isinstance(relation, Project)
    return relation.outputs


def expression(sql: str) -> Expression:
    return outputs(f"SELECT {sql} AS q FROM t")[0].expression


def condition(sql: str) -> Expression:
    relation = view(f"SELECT id FROM t WHERE {sql}")
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Filter)
    return relation.input.condition


def group(sql: str) -> Group:
    relation = view(sql)
    while not isinstance(relation, Group):
        assert isinstance(relation, Project | Filter)
        relation = relation.input
    return relation


def names(sql: str) -> list[str]:
    return [field.name for field in view(sql).fields]


def test_the_whole_relation_of_a_join_with_groups() -> None:
    relation = view(
        "SELECT u.k, SUM(t.a) AS total, COUNT(*) n FROM t JOIN u ON t.a = u.id AND t.b WHERE t.n > 1.5 GROUP BY u.k"
    )
    scans = [view(f"SELECT * FROM {name}") for name in ("t", "u")]
    assert all(isinstance(scan, Project) and isinstance(scan.input, Scan) for scan in scans)
    left, right = (scan.input for scan in scans if isinstance(scan, Project))
    on = Call("and", (Call("=", (t("a"), u("id")), BOOL), t("b")), BOOL)
    joined = Join("inner", left, right, on)
    filtered = Filter(joined, Call(">", (t("n"), Literal(Decimal("1.5"), DECIMAL)), BOOL))
    aggregates = (Aggregate("sum", t("a"), INT), Aggregate("count_star", None, INT))
    groups = Group(filtered, (u("k"),), aggregates, ("k", "sum", "count_star"), (True, True, False))
    assert relation == Project(
        groups,
        (
            Output("k", ColumnRef(0, 0, "k", STR, True), True),
            Output("total", ColumnRef(0, 1, "sum", INT, True), True),
            Output("n", ColumnRef(0, 2, "count_star", INT, False), False),
        ),
    )


def test_a_scan_shows_what_the_table_shows() -> None:
    relation = view("SELECT * FROM dropped")
    assert isinstance(relation, Project)
    scan = relation.input
    assert isinstance(scan, Scan)
    assert (scan.table, scan.alias, scan.positions) == ("dropped", "dropped", (0, 2))
    assert [(field.name, field.type, field.nullable) for field in scan.fields] == [
        ("id", INT, False),
        ("new", INT, True),
    ]


def test_hidden_columns_cannot_be_seen() -> None:
    columns = (Column("", INT, nullable=False, hidden=True), Column("a", INT), Column("b", INT))
    tables = {"h": Table(1, "h", columns, key=(0,))}
    relation = parse_view("SELECT * FROM h", tables)
    assert [field.name for field in relation.fields] == ["a", "b"]
    with pytest.raises(ProgrammingError, match="must appear in GROUP BY"):
        parse_view("SELECT b FROM h GROUP BY a", tables)


def test_stars() -> None:
    assert names("SELECT * FROM u") == list(U_COLUMNS)
    assert names("SELECT u.*, v.w FROM u JOIN v ON u.id = v.id") == [*U_COLUMNS, "w"]
    assert names("SELECT * FROM dropped") == ["id", "new"]
    assert names("TABLE u") == list(U_COLUMNS)


def test_using_merges_columns() -> None:
    assert names("SELECT * FROM u JOIN v USING (id, k)") == ["id", "k", "a", "n", "w"]
    assert names("SELECT * FROM u NATURAL JOIN v") == ["id", "k", "a", "n", "w"]
    assert names("SELECT * FROM u NATURAL FULL JOIN v") == ["id", "k", "a", "n", "w"]
    assert names("SELECT id FROM u JOIN v USING (id)") == ["id"]
    assert names("SELECT v.id FROM u JOIN v USING (id)") == ["id"]


def test_using_with_different_types_shows_the_wider_column() -> None:
    merged = outputs("SELECT n, t.s FROM t JOIN u USING (id, n)")[0].expression
    assert merged == u("n")


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("LEFT", Call("cast", (t("n"),), FLOAT)),
        ("RIGHT", u("n")),
        ("FULL", Call("coalesce", (Call("cast", (t("n"),), FLOAT), u("n")), FLOAT)),
    ],
)
def test_using_of_an_outer_join(kind: str, shown: Expression) -> None:
    assert outputs(f"SELECT n, t.s FROM t {kind} JOIN u USING (n)")[0].expression == shown


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
        ("VAR_SAMP(a)", "var_samp"),
        ("VARIANCE(a)", "variance"),
        ("EVERY(b)", "every"),
        ("COUNT(*) FILTER (WHERE b)", "count"),
        ("(id, a) = (1, 2)", "?column?"),
        ("a AS other", "other"),
        ('a "Other"', "Other"),
    ],
)
def test_output_names(sql: str, name: str) -> None:
    assert names(f"SELECT {sql} FROM t") == [name]


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
        (
            "(a, id) = (1, 2)",
            Call("and", (Call("=", (t("a"), ONE), BOOL), Call("=", (t("id"), TWO), BOOL)), BOOL),
        ),
        (
            "(a, id) <> ROW(1, 2)",
            Call("or", (Call("<>", (t("a"), ONE), BOOL), Call("<>", (t("id"), TWO), BOOL)), BOOL),
        ),
        (
            "(a, id) <= (1, 2)",
            Call(
                "or",
                (
                    Call("<", (t("a"), ONE), BOOL),
                    Call("and", (Call("=", (t("a"), ONE), BOOL), Call("<=", (t("id"), TWO), BOOL)), BOOL),
                ),
                BOOL,
            ),
        ),
        ("(a, id) IN ((1, 2))", Call("and", (Call("=", (t("a"), ONE), BOOL), Call("=", (t("id"), TWO), BOOL)), BOOL)),
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
        ("s::char(3)", cast(t("s"), Type("str", length=3, padded=True))),
        ("'ab cd'::char(3)", Literal("ab", Type("str", length=3, padded=True))),
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


def test_operators_are_reachable_from_sql() -> None:
    texts = (
        "a + 1 - 1 * 1 / 1 % 1 = -a, a <> 1 AND a < 1 OR a <= 1, NOT a > 1, a >= 1, a IS NULL, a IS NOT NULL,"
        "a IS DISTINCT FROM 1, a IS NOT DISTINCT FROM 1, a IN (1), CASE WHEN b THEN 1 END, COALESCE(a, 1),"
        "NULLIF(a, 1), a::text, ABS(a), LOWER(s), UPPER(s), LENGTH(s), s || s, s LIKE s"
    )
    found: set[str] = set()
    for text in _split(texts):
        found |= _operators(expression(text))
    assert found == {
        "+", "-", "*", "/", "%", "neg", "=", "<>", "<", "<=", ">", ">=", "and", "or", "not", "is_null", "is_not_null",
        "is_distinct", "is_not_distinct", "in", "case", "coalesce", "nullif", "cast", "abs", "lower", "upper", "length",
        "||", "like",
    }  # fmt: skip


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
    assert _depth(condition(clause.join(f"a = {number}" for number in range(1_000)))) < 20


def _depth(node: Expression) -> int:
    return 1 + max(map(_depth, node.args)) if isinstance(node, Call) else 1


# --- aggregates and groups ---

FILTERED = Call("case", (t("b"), ONE, Literal(None, INT)), INT)


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
        ("MIN(s)", Aggregate("min", t("s"), STR)),
        ("MAX(m)", Aggregate("max", t("m"), DECIMAL)),
        ("MAX(tz)", Aggregate("max", t("tz"), TIMESTAMPTZ)),
        ("MIN('x')", Aggregate("min", Literal("x", STR), STR)),
        ("VAR_POP(a)", Aggregate("var_pop", t("a"), DECIMAL)),
        ("VAR_SAMP(n)", Aggregate("var_samp", t("n"), DECIMAL)),
        ("VARIANCE(f)", Aggregate("var_samp", t("f"), FLOAT)),
        ("STDDEV(a)", Aggregate("stddev_samp", t("a"), DECIMAL)),
        ("STDDEV_SAMP(a)", Aggregate("stddev_samp", t("a"), DECIMAL)),
        ("STDDEV_POP(NULL)", Aggregate("stddev_pop", Literal(None, FLOAT), FLOAT)),
        ("BOOL_AND(b)", Aggregate("bool_and", t("b"), BOOL)),
        ("EVERY(b)", Aggregate("bool_and", t("b"), BOOL)),
        ("BOOL_OR('t')", Aggregate("bool_or", Literal(True, BOOL), BOOL)),
        ("COUNT(DISTINCT s)", Aggregate("count", t("s"), INT, distinct=True)),
        ("SUM(DISTINCT a)", Aggregate("sum", t("a"), INT, distinct=True)),
        # A second row with the same value changes none of these.
        ("MIN(DISTINCT a)", Aggregate("min", t("a"), INT)),
        ("BOOL_OR(DISTINCT b)", Aggregate("bool_or", t("b"), BOOL)),
        ("COUNT(*) FILTER (WHERE b)", Aggregate("count", FILTERED, INT)),
        (
            "SUM(DISTINCT a) FILTER (WHERE b)",
            Aggregate("sum", Call("case", (t("b"), t("a"), Literal(None, INT)), INT), INT, distinct=True),
        ),
        (
            "MIN('x') FILTER (WHERE b)",
            Aggregate("min", Call("case", (t("b"), Literal("x", STR), Literal(None, STR)), STR), STR),
        ),
    ],
)
def test_aggregates_without_group_by(sql: str, expected: Aggregate) -> None:
    made = group(f"SELECT {sql} AS q FROM t")
    assert made.keys == ()
    assert made.aggregates == (expected,)


def test_expressions_around_aggregates_and_each_aggregate_once() -> None:
    sql = "SELECT SUM(a * 2) + 1 AS x, SUM(a * 2) AS y, COUNT(*) AS n, SUM(DISTINCT a * 2) AS z FROM t"
    total = Aggregate("sum", Call("*", (t("a"), TWO), INT), INT)
    distinct = Aggregate("sum", total.argument, INT, distinct=True)
    assert group(sql).aggregates == (total, Aggregate("count_star", None, INT), distinct)
    reference = ColumnRef(0, 0, "sum", INT, True)
    assert [output.expression for output in outputs(sql)[:2]] == [Call("+", (reference, ONE), INT), reference]


LOWER_S = Call("lower", (t("s"),), STR)


def key(position: int, name: str, type_: Type, may_be_null: bool = True) -> ColumnRef:
    return ColumnRef(0, position, name, type_, may_be_null)


S0, LOWER0 = key(0, "s", STR), key(0, "key_1", STR)


@pytest.mark.parametrize(
    ("sql", "keys", "first"),
    [
        ("SELECT s, COUNT(*) FROM t GROUP BY s", (t("s"),), S0),
        ("SELECT s, COUNT(*) FROM t GROUP BY 1", (t("s"),), S0),
        ("SELECT s, COUNT(*) FROM t GROUP BY (1)", (t("s"),), S0),
        ("SELECT t.s, COUNT(*) FROM t GROUP BY s, t.s", (t("s"),), S0),
        ("SELECT s AS z, COUNT(*) FROM t GROUP BY z", (t("s"),), S0),
        ("SELECT LOWER(s) AS z FROM t GROUP BY z", (LOWER_S,), LOWER0),
        ("SELECT LOWER(s) FROM t GROUP BY lower(t.s)", (LOWER_S,), LOWER0),
        ("SELECT s FROM t GROUP BY a, s", (t("a"), t("s")), key(1, "s", STR)),
        ("SELECT s FROM t GROUP BY (a, s), b", (t("a"), t("s"), t("b")), key(1, "s", STR)),
        (
            "SELECT LOWER(s) || 'x' FROM t GROUP BY LOWER(s)",
            (LOWER_S,),
            Call("||", (LOWER0, Literal("x", STR)), STR),
        ),
        ("SELECT 'x' AS z, COUNT(*) FROM t GROUP BY z", (Literal("x", STR),), key(0, "key_1", STR, False)),
        # A column of FROM wins over the name of an output.
        ("SELECT SUM(a) AS s FROM t GROUP BY s", (t("s"),), key(1, "sum", INT)),
        ("SELECT 1 AS a, COUNT(*) FROM t GROUP BY a", (t("a"),), ONE),
        (
            "SELECT a % 2 + SUM(id) FROM t GROUP BY a % 2",
            (Call("%", (t("a"), TWO), INT),),
            Call("+", (key(0, "key_1", INT), key(1, "sum", INT)), INT),
        ),
        # The primary key determines the other columns of its table; they become keys.
        ("SELECT n, s FROM t GROUP BY id", (t("id"), t("n"), t("s")), key(1, "n", DECIMAL)),
        # An order that does not matter leaves nothing behind.
        ("SELECT s FROM t GROUP BY s ORDER BY SUM(a)", (t("s"),), S0),
        ("SELECT id FROM t GROUP BY id ORDER BY s", (t("id"),), key(0, "id", INT, False)),
        ("SELECT COUNT(*) FROM t HAVING COUNT(*) > 1", (), key(0, "count_star", INT, False)),
    ],
)
def test_group_by(sql: str, keys: tuple[Expression, ...], first: Expression) -> None:
    assert group(sql).keys == keys
    assert outputs(sql)[0].expression == first


def test_a_view_of_rows_has_no_groups() -> None:
    relation = view("SELECT a FROM t")
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Scan)


# --- what can be NULL ---


@pytest.mark.parametrize(
    ("sql", "may_be_null"),
    [
        ("id", False),
        ("a", True),
        ("id + 1", False),
        ("id + a", True),
        ("a IS NULL", False),
        ("a IS DISTINCT FROM id", False),
        ("COALESCE(a, id)", False),
        ("COALESCE(a, n)", True),
        ("NULLIF(id, 1)", True),
        ("CASE WHEN b THEN id ELSE 1 END", False),
        ("CASE WHEN b THEN id END", True),
        ("id IN (1, 2)", False),
        ("id IN (1, NULL)", True),
        ("id > 1 AND a > 1", True),
        ("id::text", False),
        ("NULL", True),
        ("'x'", False),
    ],
)
def test_nullability_of_expressions(sql: str, may_be_null: bool) -> None:
    made = outputs(f"SELECT {sql} AS q FROM t")[0]
    assert made.nullable == nullable(made.expression) == may_be_null


@pytest.mark.parametrize(
    ("sql", "may_be_null"),
    [
        ("SELECT t.id AS x, u.id AS y FROM t JOIN u ON t.a = u.a", [False, False]),
        ("SELECT t.id AS x, u.id AS y FROM t LEFT JOIN u ON t.a = u.a", [False, True]),
        ("SELECT t.id AS x, u.id AS y FROM t RIGHT JOIN u ON t.a = u.a", [True, False]),
        ("SELECT t.id AS x, u.id AS y FROM t FULL JOIN u ON t.a = u.a", [True, True]),
        ("SELECT t.id AS x, u.id + 1 AS y FROM (t CROSS JOIN v) LEFT JOIN u ON t.a = u.a", [False, True]),
        ("SELECT COUNT(*) AS x, COUNT(a) AS y, SUM(id) AS z FROM t", [False, False, True]),
        ("SELECT id FROM t UNION SELECT id FROM u", [False]),
        ("SELECT id FROM t UNION SELECT a FROM u", [True]),
        ("VALUES (1, 2), (3, NULL)", [False, True]),
        ("SELECT id FROM (SELECT id FROM t) q", [False]),
    ],
)
def test_nullability_of_relations(sql: str, may_be_null: list[bool]) -> None:
    assert [field.nullable for field in view(sql).fields] == may_be_null


# --- refused ---


@pytest.mark.parametrize(
    ("sql", "reason", "place"),
    [
        ("SELECT DISTINCT ON (a) a FROM t", "DISTINCT ON", (1, 8)),
        ("SELECT a FROM (SELECT DISTINCT ON (a) a FROM t) q", "DISTINCT ON", (1, 23)),
        ("SELECT a, (SELECT 1) FROM t", "scalar subqueries", (1, 11)),
        ("SELECT a FROM t WHERE a = (SELECT MAX(a) FROM u)", "scalar subqueries", (1, 27)),
        ("SELECT a FROM t WHERE b OR a IN (SELECT a FROM u)", "inside an expression", (1, 33)),
        ("SELECT a FROM t WHERE b OR EXISTS (SELECT 1 FROM u)", "inside an expression", (1, 35)),
        ("SELECT EXISTS (SELECT 1 FROM u) FROM t", "inside an expression", (1, 15)),
        ("SELECT a FROM t WHERE (a IN (SELECT a FROM u)) IS TRUE", "inside an expression", (1, 29)),
        ("SELECT a FROM t WHERE CASE WHEN a = ANY (SELECT 1) THEN b END", "inside an expression", (1, 41)),
        ("SELECT t.a FROM t JOIN u ON t.id = u.id AND t.a IN (SELECT 1)", "inside an expression", (1, 52)),
        ("SELECT a FROM t GROUP BY a HAVING a IN (SELECT 1)", "inside an expression", (1, 40)),
        ("SELECT a FROM t WHERE a > ANY (SELECT a FROM u)", "ANY other than = ANY", (1, 39)),
        ("SELECT a FROM t WHERE a > ALL (SELECT a FROM u)", "ALL other than", (1, 39)),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE EXISTS (SELECT 1 FROM v WHERE v.id = t.id))",
            "further out",
            (1, 90),
        ),
        ("SELECT a FROM t WHERE EXISTS (SELECT COUNT(*) FROM u WHERE u.id = t.id)", "plain SELECT", (1, 67)),
        ("SELECT a FROM t WHERE a IN (SELECT SUM(t.a) FROM u)", "plain SELECT", (1, 40)),
        ("SELECT 1 FROM t WHERE a IN (SELECT a FROM u WHERE u.id = t.id ORDER BY 1 LIMIT 1)", "plain", (1, 58)),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u GROUP BY u.a HAVING COUNT(*) > t.a)", "plain", (1, 78)),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u JOIN v ON v.id = t.id)", "plain SELECT", (1, 64)),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 UNION SELECT t.a)", "plain SELECT", (1, 53)),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM (SELECT t.a) q)", "plain SELECT", (1, 53)),
        ("WITH RECURSIVE q AS (SELECT a FROM t) SELECT a FROM q", "recursion", (1, 6)),
        ("WITH q AS (DELETE FROM t) SELECT 1", "change rows in WITH", (1, 24)),
        ("SELECT SUM(a ORDER BY a) FROM t", "ORDER BY in an aggregate", (1, 8)),
        ("SELECT STRING_AGG(s, ',') FROM t", "aggregate function string_agg", (1, 8)),
        ("SELECT COUNT(DISTINCT (a, b)) FROM t", "row values", (1, 24)),
        ("SELECT COUNT(DISTINCT j) FROM t", "json", (1, 8)),
        ("SELECT a FROM t LIMIT 5", "LIMIT without ORDER BY", (1, 17)),
        ("SELECT a FROM (SELECT a FROM u\nLIMIT 5) q ORDER BY a LIMIT 3", "LIMIT without ORDER BY", (2, 1)),
        ("SELECT a FROM t FETCH FIRST 3 ROWS ONLY", "LIMIT without ORDER BY", (1, 17)),
        ("SELECT a FROM t UNION SELECT a FROM u LIMIT 3", "LIMIT without ORDER BY", (1, 39)),
        ("SELECT a FROM t ORDER BY a FETCH FIRST 3 ROWS WITH TIES", "WITH TIES", (1, 28)),
        ("SELECT a FROM t ORDER BY a LIMIT 1 + 1", "LIMIT with an expression", (1, 34)),
        ("SELECT a FROM t OFFSET 3", "OFFSET", (1, 17)),
        ("SELECT a FROM t ORDER BY a LIMIT 2 OFFSET 3", "OFFSET", (1, 36)),
        ("SELECT a FROM t UNION SELECT a FROM u ORDER BY a + 1", "ORDER BY an expression over UNION", (1, 48)),
        ("SELECT SUM(a) OVER () FROM t", "window functions", (1, 8)),
        ("SELECT MODE() WITHIN GROUP (ORDER BY a) FROM t", "aggregates over an order (WITHIN GROUP)", (1, 8)),
        ("SELECT CORR(a, b) FROM t", "aggregate function corr", (1, 8)),
        ("SELECT a << 2 FROM t", "operator <<", (1, 8)),
        ("SELECT a @> b FROM t", "operator @>", (1, 8)),
        ("SELECT a, ROW_NUMBER() OVER (ORDER BY a) FROM t", "window functions", (1, 11)),
        ("SELECT a FROM t WINDOW w AS (ORDER BY a)", "window functions", (1, 17)),
        ("SELECT a FROM u WHERE id IN (SELECT RANK() OVER (ORDER BY a) FROM t)", "window functions", (1, 37)),
        ("SELECT a, NOW() FROM t", "volatile function now", (1, 11)),
        ("SELECT RANDOM() FROM t", "volatile function random", (1, 8)),
        ("SELECT a FROM t WHERE ts > CURRENT_TIMESTAMP", "volatile function current_timestamp", (1, 28)),
        ("SELECT CURRENT_DATE FROM t", "volatile function current_date", (1, 8)),
        ("SELECT clock_timestamp() FROM t", "volatile function clock_timestamp", (1, 8)),
        ("SELECT nextval('q') FROM t", "volatile function nextval", (1, 8)),
        ("SELECT a FROM t FOR UPDATE", "FOR UPDATE", (1, 17)),
        ("SELECT a FROM t FOR SHARE", "FOR SHARE", (1, 17)),
        ("SELECT a INTO q FROM t", "SELECT INTO", (1, 10)),
        ("SELECT foo(a) FROM t", "function foo", (1, 8)),
        ("SELECT IFNULL(a, 1) FROM t", "function ifnull", (1, 8)),
        ("SELECT pg_catalog.lower(s) FROM t", "qualified function names", (1, 8)),
        ("SELECT a & 1 FROM t", "operator &", (1, 8)),
        ("SELECT id FROM t WHERE (a, id) IS NULL", "row values", (1, 25)),
        ("SELECT (a, id) FROM t", "row values", (1, 9)),
        ("SELECT a FROM t WHERE a = ?", "parameters", (1, 27)),
        ("SELECT a FROM t WHERE a = :p", "parameters", (1, 27)),
        ("SELECT t FROM t", "whole row", (1, 8)),
        ("SELECT COUNT(t.*) FROM t", "whole row", (1, 14)),
        ("SELECT t.a.q FROM t", "more than two parts", (1, 8)),
        ("SELECT a FROM public.t", "schema", (1, 15)),
        ("SELECT * FROM (t JOIN u USING (id)) q", "alias for joins", (1, 16)),
        ("SELECT a FROM t TABLESAMPLE SYSTEM (1)", "SAMPLE", (1, 15)),
        ("SELECT g FROM generate_series(1, 3) g", "functions in FROM", (1, 15)),
        ("SELECT a FROM t, LATERAL (SELECT 1) q", "LATERAL", (1, 18)),
        ("SELECT a FROM t JOIN LATERAL (SELECT t.a AS z) q ON true", "LATERAL", (1, 22)),
        ("SELECT a FROM t GROUP BY ROLLUP (a)", "grouping sets", (1, 17)),
        ("SELECT j = j FROM t", "json", (1, 8)),
        ("SELECT COUNT(*) FROM t GROUP BY j", "json", (1, 33)),
        ("SELECT DISTINCT j FROM t", "json", (1, 17)),
        ("SELECT j FROM t UNION SELECT j FROM t", "json", (1, 30)),
        ("SELECT j FROM t ORDER BY j LIMIT 1", "json", (1, 8)),
        ("SELECT a::uuid FROM t", "type uuid", (1, 8)),
        ("SELECT a::int[] FROM t", "type int[]", (1, 8)),
        ("SELECT E'a' FROM t", "strings with escapes", (1, 8)),
        ("SELECT '\u20ac\U0001f600', foo(a) FROM t", "function foo", (1, 14)),
        (f"SELECT {' + '.join('a' * 1000)} FROM t", f"more than {EXPRESSION_LEVELS_MAX} nested levels", (1, 8)),
        (
            f"SELECT t0.a FROM {', '.join(f't t{n}' for n in range(RELATIONS_MAX + 1))}",
            f"more than {RELATIONS_MAX} tables",
            (1, 1508),
        ),
        (
            "WITH a AS (SELECT 1 AS x FROM u, u v, u w), b AS (SELECT 1 FROM a, a q, a r, a s, a t, a u, a v),"
            "c AS (SELECT 1 FROM b, b q, b r, b s, b t, b u, b v) SELECT 1 FROM c, c q, c r",
            f"more than {RELATIONS_MAX} tables",
            (1, 168),
        ),
        (
            " UNION ".join(["SELECT a FROM t"] * (RELATION_LEVELS_MAX + 5)),
            f"more than {RELATION_LEVELS_MAX} nested relations",
            (1, 8),
        ),
    ],
)
def test_refused_with_reason_and_place(sql: str, reason: str, place: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedView) as caught:
        view(sql)
    assert reason in caught.value.reason
    assert caught.value.place == place
    assert f"at line {place[0]}, column {place[1]}" in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT a FROM t WHERE (SELECT TRUE)", (1, 23)),
        ("SELECT a, (SELECT NULL) AS q FROM t", (1, 11)),
        ("SELECT COUNT(*) AS c FROM t HAVING (SELECT FALSE)", (1, 36)),
        ("SELECT a FROM t WHERE a = 1\n OR EXISTS (SELECT TRUE)", (2, 12)),
        ("SELECT a FROM t WHERE TRUE IN (SELECT TRUE) OR a = 1", (1, 31)),
        ("SELECT a FROM t WHERE TRUE > ALL (SELECT TRUE)", (1, 42)),
        ("SELECT a FROM t ORDER BY a LIMIT TRUE", (1, 34)),
        ("SELECT a FROM t ORDER BY a LIMIT .5", (1, 34)),
        ("SELECT NULL::bytea[] FROM t", (1, 8)),
        # Nothing in the subquery has a place: what stands before it.
        ("SELECT a FROM t WHERE a = 1 OR EXISTS (SELECT)", (1, 27)),
        ("SELECT a, (SELECT CURRENT_DATE) AS d FROM t", (1, 8)),
    ],
)
def test_refused_with_the_place_of_what_sqlglot_gives_none(sql: str, place: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedView) as caught:
        view(sql)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT TRUE + NULL", 8),
        ("SELECT TRUE::date", 8),
        ("SELECT -TRUE", 9),
        ("SELECT a FROM t WHERE NULL::date", 23),
        ("SELECT a FROM t UNION SELECT FALSE", 30),
        ("SELECT .5::date", 8),
        ("SELECT a FROM t ORDER BY NULL", 26),
    ],
)
def test_wrong_constants_have_a_place(sql: str, column: int) -> None:
    with pytest.raises(ProgrammingError, match=f"at line 1, column {column}"):
        view(sql)


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT a FROM t LIMIT 5", "add ORDER BY"),
        ("SELECT SUM(a) OVER () FROM t", "GROUP BY"),
        ("SELECT a FROM t WHERE a = (SELECT 1)", "LEFT JOIN (SELECT"),
        ("SELECT a FROM t WHERE b OR a IN (SELECT a FROM u)", "UNION"),
        ("SELECT t.a FROM t JOIN u ON t.id = u.id AND t.a IN (SELECT 1)", "WHERE"),
        ("SELECT a FROM t WHERE a = now()", "store the value in a column"),
        ("SELECT a FROM t FOR UPDATE", "leave it out"),
        ("SELECT DISTINCT ON (a) a FROM t", "GROUP BY"),
        ("SELECT a FROM t GROUP BY CUBE (a)", "UNION ALL"),
        ("SELECT a FROM t, LATERAL (SELECT 1) q", "ON"),
    ],
)
def test_refusals_name_the_rewrite_that_works(sql: str, hint: str) -> None:
    with pytest.raises(UnsupportedView) as caught:
        view(sql)
    assert hint in caught.value.hint


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
        ("SELECT k FROM (SELECT * FROM u) q GROUP BY id", "column k must appear in GROUP BY"),
        ("SELECT t.id, u.k FROM t JOIN u ON t.id = u.id GROUP BY t.id", "column k must appear in GROUP BY"),
        ("SELECT a FROM t HAVING COUNT(*) > 1", "column a must appear in GROUP BY"),
        ("SELECT a + 1.0 FROM t GROUP BY a + 1.00", "column a must appear in GROUP BY"),
        ("SELECT s FROM t GROUP BY s ORDER BY a", "column a must appear in GROUP BY"),
        ("SELECT s FROM t GROUP BY s HAVING a", "argument of HAVING must be type boolean"),
        ("SELECT SUM(a) FILTER (WHERE COUNT(*) > 1) FROM t", "aggregate functions are not allowed in FILTER"),
        ("SELECT MIN(b) FROM t", "function min(boolean) does not exist"),
        ("SELECT MAX(x) FROM t", "function max(bytea) does not exist"),
        ("SELECT MIN(j) FROM t", "function min(json) does not exist"),
        ("SELECT MIN(a, s) FROM t", "function min takes one argument, not 2"),
        ("SELECT COUNT(DISTINCT a, b) FROM t", "function count takes one argument, not 2"),
        ("SELECT BOOL_AND(a) FROM t", "function bool_and(integer) does not exist"),
        ("SELECT VAR_POP(s) FROM t", "function var_pop(text) does not exist"),
        ("SELECT a FROM t GROUP BY 2", "GROUP BY position 2 is not in the select list at line 1, column 26"),
        ("SELECT a FROM t GROUP BY -1", "GROUP BY position -1 is not in the select list"),
        ("SELECT a FROM t GROUP BY 'x'", "non-integer constant in GROUP BY at line 1, column 26"),
        ("SELECT a FROM t ORDER BY 2", "ORDER BY position 2 is not in the select list"),
        ("SELECT a FROM t ORDER BY nosuch", "unknown column nosuch at line 1, column 26"),
        ("SELECT a, a FROM t", "two outputs named a at line 1, column 11"),
        ("SELECT * FROM t, u WHERE t.id = u.id", "two outputs named id at line 1, column 8"),
        ("SELECT DISTINCT a FROM t ORDER BY s", "ORDER BY expressions must appear in the select list"),
        ("SELECT a AS x, s AS x FROM t ORDER BY x", "ORDER BY x is ambiguous"),
        ("SELECT a FROM t ORDER BY 'x'", "non-integer constant in ORDER BY at line 1, column 26"),
        ("SELECT a FROM t UNION SELECT a, s FROM t", "each UNION query must have the same number of columns"),
        ("SELECT a FROM t UNION SELECT s FROM t", "UNION types integer and text cannot be matched"),
        ("SELECT DISTINCT '1' UNION ALL SELECT 2", "UNION types text and integer cannot be matched"),
        ("SELECT NULL AS x UNION SELECT NULL UNION SELECT 1", "UNION types text and integer cannot be matched"),
        ("SELECT a FROM (SELECT a FROM t)", "a subquery in FROM must have an alias at line 1, column 15"),
        ("SELECT * FROM (VALUES (1))", "VALUES in FROM must have an alias at line 1, column 15"),
        ("VALUES (1), (1, 2)", "VALUES lists must all be the same length at line 1, column 1"),
        ("VALUES (1, DEFAULT)", "DEFAULT is not allowed"),
        ("VALUES (1), (true)", "VALUES types integer and boolean cannot be matched"),
        ("SELECT * FROM (VALUES (1, 2)) q(a, b, c)", "table q has 2 columns available but 3 columns specified"),
        ("SELECT q.a FROM (SELECT a, s AS a FROM t) q", "column q.a is ambiguous"),
        ("WITH q AS (SELECT 1), q AS (SELECT 2) SELECT 1", "WITH query name q specified more than once"),
        ("WITH q AS (SELECT nosuch FROM t) SELECT 1", "unknown column nosuch"),
        ("WITH q AS (SELECT 1) SELECT * FROM p", "unknown table p"),
        ("SELECT a FROM t, (SELECT t.id) q", "no table t here in FROM at line 1, column 26"),
        ("SELECT t.a FROM t JOIN (SELECT id FROM u) t ON true", "table name t specified more than once"),
        ("SELECT a FROM t WHERE a IN (SELECT w, k FROM v)", "subquery has too many columns at line 1, column 28"),
        ("SELECT a FROM t WHERE (a, s) IN (SELECT w FROM v)", "subquery has too few columns"),
        ("SELECT a FROM t WHERE a IN (SELECT k FROM v)", "operator does not exist: integer = text"),
        ("SELECT a FROM t WHERE EXISTS (SELECT nosuch FROM u)", "unknown column nosuch at line 1, column 38"),
        ("SELECT a FROM t WHERE (a, id) = (1, 2, 3)", "unequal number of entries in row expressions"),
        ("SELECT *", "SELECT * without FROM"),
        ("SELECT FROM t", "the select list is empty at line 1, column 1"),
        ("SELECT a FROM t LIMIT 1, 2", 'syntax error at or near ","'),
        ("SELECT a FROM t LIMIT 2 UNION SELECT 1", 'syntax error at or near "UNION" at line 1, column 25'),
        ("SELECT a FROM t ORDER BY a EXCEPT SELECT 1", 'syntax error at or near "EXCEPT" at line 1, column 28'),
        ("SELECT 1 UNION SELECT 2 OFFSET 1 UNION SELECT 3", 'syntax error at or near "UNION" at line 1, column 34'),
        ("SELECT * FROM (TABLE t LIMIT 1 INTERSECT TABLE t) q", 'syntax error at or near "INTERSECT" at line 1'),
        ("SELECT 1_000", 'trailing junk after numeric literal at or near "1_" at line 1, column 8'),
        ("SELECT 1.5e3x", 'trailing junk after numeric literal at or near "1.5e3x" at line 1, column 8'),
        ("SELECT a FROM t WHERE a = 1AND b", 'trailing junk after numeric literal at or near "1A"'),
        ("SELECT , a FROM t", 'syntax error at or near "," at line 1, column 8'),
        ("SELECT a FROM t 'q'", "syntax error at or near \"'q'\" at line 1, column 17"),
        ("SELECT a FROM t true", 'syntax error at or near "true" at line 1, column 17'),
        ("SELECT a order FROM t", 'syntax error at or near "order" at line 1, column 10'),
        ("SELECT a FROM (SELECT a AS FROM t) q", 'syntax error at or near "AS" at line 1, column 25'),
        ("SELECT a FROM t AS (x)", "AS without an alias"),
        ("WITH q (SELECT 1) SELECT 1", 'syntax error at or near "SELECT" at line 1, column 9'),
        ("SELECT a BETWEEN 1 2 FROM t", "syntax error"),
        ("SELECT NULL JOIN SELECT 1", "syntax error"),
        ("SELECT k FROM u NATURAL JOIN v ON u.id = v.id", "NATURAL JOIN with a condition"),
        ("SELECT k FROM u JOIN v USING (id, id)", "column id appears more than once in USING at line 1, column 35"),
        ("(SELECT a FROM t ORDER BY a LIMIT 3) ORDER BY a LIMIT 2", "multiple ORDER BY clauses"),
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
        ("SELECT a FROM t JOIN (SELECT 1) q", "JOIN without ON"),
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


def test_any_text_gives_a_relation_or_an_error_of_ours() -> None:
    """A fixed stream of token soups: no text may escape with another exception."""
    outcomes = set[object]()
    for seed in range(8):
        state = seed + 1
        for _ in range(60):
            words = ["SELECT", "1"] if state % 3 else ["SELECT", "a", "FROM", "t", "WHERE"]
            for _ in range(state % 9):
                state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
                words.append(PIECES[(state >> 33) % len(PIECES)])
            state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
            try:
                view(" ".join(words))
                outcomes.add(Relation)
            except Error as error:
                outcomes.add(type(error))
    assert outcomes <= {Relation, ProgrammingError, UnsupportedView, DataError}
    assert {Relation, ProgrammingError, UnsupportedView} <= outcomes


QUERIES = [
    "SELECT t.a, u.k FROM t LEFT JOIN u ON t.id = u.id AND u.a > 1 WHERE t.b ORDER BY t.a DESC, 2 LIMIT 3",
    "SELECT s, COUNT(DISTINCT a) FILTER (WHERE b) AS n FROM t GROUP BY s HAVING MAX(a) > 1",
    "SELECT a FROM t WHERE (a, s) NOT IN (SELECT w, k FROM v) AND EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
    "WITH q (x, y) AS (VALUES (1, 'a'), (2, NULL)) SELECT x FROM q UNION ALL SELECT id FROM t EXCEPT SELECT 3",
    "SELECT DISTINCT q.a + 1 AS z FROM (SELECT a, n FROM u NATURAL FULL JOIN v) AS q CROSS JOIN t r",
]


@pytest.mark.parametrize("seed", range(5))
def test_damaged_queries_give_a_relation_or_an_error_of_ours(seed: int) -> None:
    words = re.findall(r"'[^']*'|\w+|\S", QUERIES[seed])
    view(" ".join(words))
    outcomes = set[object]()
    for index in range(len(words)):
        for damaged in (
            [*words[:index], *words[index + 1 :]],
            [*words[:index], words[index - 1], *words[index + 1 :]],
        ):
            try:
                view(" ".join(damaged))
                outcomes.add(Relation)
            except Error as error:
                outcomes.add(type(error))
    assert outcomes <= {Relation, ProgrammingError, UnsupportedView, DataError}
    assert {Relation, ProgrammingError} <= outcomes


def test_only_this_package_needs_sqlglot() -> None:
    code = (
        "import sys; import viewtide.changetables.builder, viewtide.changetables.recompute,"
        " viewtide.changetables.serialize; print('sqlglot' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
