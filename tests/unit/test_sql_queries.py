"""Queries to relations: the rows of each, as PostgreSQL 15 gives them for the same tables, and the shape of subqueries.

The expected rows were read from PostgreSQL; the oracle computes ours from the relation.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest

from viewtide.changetables.algebra import (
    Distinct,
    Filter,
    Group,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Top,
    Values,
    scans,
)
from viewtide.changetables.errors import ProgrammingError, UnsupportedView
from viewtide.changetables.expressions import Call, ColumnRef, Literal
from viewtide.changetables.recompute import recompute
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import parse_select, parse_view
from viewtide.changetables.types import BOOL, DECIMAL, FLOAT, INT, STR, Row, Type


def table(number: int, name: str, columns: dict[str, Type]) -> Table:
    made = (Column(column, type_, nullable=column != "id") for column, type_ in columns.items())
    return Table(number, name, tuple(made), key=(0,))


TABLES = {
    "t": table(1, "t", {"id": INT, "a": INT, "b": BOOL, "s": STR, "n": DECIMAL, "f": FLOAT}),
    "u": table(2, "u", {"id": INT, "a": INT, "k": STR, "n": DECIMAL}),
    "v": table(3, "v", {"id": INT, "k": STR, "w": INT}),
}
ROWS: dict[str, list[Row]] = {
    "t": [
        (1, 1, True, "x", Decimal("1.5"), 0.5),
        (2, 1, False, "y", Decimal("2.0"), 1.5),
        (3, 2, None, "x", None, 2.5),
        (4, None, True, None, Decimal("0.5"), None),
        (5, 3, True, "y", Decimal("1.5"), 0.5),
    ],
    "u": [(1, 1, "x", Decimal("1.5")), (2, 2, "y", Decimal(9)), (3, None, "x", Decimal("0.5")), (6, 1, None, None)],
    "v": [(1, "x", 1), (2, "z", None), (6, "y", 2)],
}

JOINS: list[tuple[str, list[str], list[Row]]] = [
    ("SELECT t.id, u.id FROM t JOIN u ON t.a = u.a", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    ("SELECT t.id, u.id FROM t INNER JOIN u ON u.a = t.a", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    ("SELECT t.id, u.id FROM t JOIN u ON (t.a = u.a)", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    ("SELECT t.id, u.id FROM t, u WHERE t.a = u.a", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    ("SELECT t.id, u.id FROM t CROSS JOIN u WHERE u.a = t.a", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    ("SELECT t.id, u.id FROM t JOIN u USING (a)", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    ("SELECT t.id, u.id FROM (t JOIN u ON t.a = u.a)", ["id", "id"], [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)]),
    (
        "select T.ID, U.ID from T join U on T.A = U.A order by T.id desc;",
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)],
    ),
    (
        'SELECT t.id, u.id FROM "t" /* one */ JOIN u ON t."a" = u.a -- two',
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)],
    ),
    (
        "SELECT t.id, u.id FROM t JOIN u ON t.a = u.a AND u.a = t.a",
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2)],
    ),
    (
        "SELECT t.id, u.id FROM t LEFT JOIN u ON t.a = u.a",
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2), (4, None), (5, None)],
    ),
    (
        "SELECT t.id, u.id FROM t LEFT OUTER JOIN u ON t.a = u.a AND t.b AND u.k = 'x'",
        ["id", "id"],
        [(1, 1), (2, None), (3, None), (4, None), (5, None)],
    ),
    (
        "SELECT t.id, u.id FROM t RIGHT JOIN u ON t.a = u.a",
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2), (None, 3)],
    ),
    (
        "SELECT t.id, u.id FROM t FULL JOIN u ON t.a = u.a",
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2), (4, None), (5, None), (None, 3)],
    ),
    (
        "SELECT a, t.id, u.id FROM t FULL JOIN u USING (a)",
        ["a", "id", "id"],
        [(1, 1, 1), (1, 1, 6), (1, 2, 1), (1, 2, 6), (2, 3, 2), (3, 5, None), (None, 4, None), (None, None, 3)],
    ),
    (
        "SELECT id, t.a, u.a FROM t RIGHT JOIN u USING (id)",
        ["id", "a", "a"],
        [(1, 1, 1), (2, 1, 2), (3, 2, None), (6, None, 1)],
    ),
    (
        "SELECT * FROM u NATURAL FULL JOIN v",
        ["id", "k", "a", "n", "w"],
        [
            (1, "x", 1, Decimal("1.5"), 1),
            (2, "y", 2, Decimal("9"), None),
            (2, "z", None, None, None),
            (3, "x", None, Decimal("0.5"), None),
            (6, "y", None, None, 2),
            (6, None, 1, None, None),
        ],
    ),
    (
        "SELECT * FROM u NATURAL LEFT JOIN v",
        ["id", "k", "a", "n", "w"],
        [
            (1, "x", 1, Decimal("1.5"), 1),
            (2, "y", 2, Decimal("9"), None),
            (3, "x", None, Decimal("0.5"), None),
            (6, None, 1, None, None),
        ],
    ),
    ("SELECT count(*) FROM u NATURAL JOIN (SELECT 1 AS one) q", ["count"], [(4,)]),
    (
        "SELECT x.id, y.id AS other FROM t x JOIN t AS y ON x.id = y.a",
        ["id", "other"],
        [(1, 1), (1, 2), (2, 3), (3, 5)],
    ),
    (
        "SELECT t.id, u.id, v.id FROM t JOIN u ON t.a = u.id JOIN v ON v.k = u.k AND v.w = t.a",
        ["id", "id", "id"],
        [(1, 1, 1), (2, 1, 1), (3, 2, 6)],
    ),
    (
        "SELECT t.id, u.id, v.id FROM t, u, v WHERE t.id = v.id AND u.k = v.k",
        ["id", "id", "id"],
        [(1, 1, 1), (1, 3, 1)],
    ),
    (
        "SELECT t.id, u.id, v.id FROM t LEFT JOIN (u JOIN v ON u.k = v.k) ON t.id = u.id",
        ["id", "id", "id"],
        [(1, 1, 1), (2, 2, 6), (3, 3, 1), (4, None, None), (5, None, None)],
    ),
    (
        "SELECT t.id, u.id, v.id FROM t JOIN u LEFT JOIN v ON u.k = v.k ON t.id = u.id",
        ["id", "id", "id"],
        [(1, 1, 1), (2, 2, 6), (3, 3, 1)],
    ),
    ("SELECT t.id, u.id FROM t JOIN u ON t.id = u.id AND t.a = u.n", ["id", "id"], []),
    ("SELECT t.id, u.id FROM t JOIN u ON t.f = u.n", ["id", "id"], [(1, 3), (2, 1), (5, 3)]),
    (
        "SELECT t.id, u.id FROM t JOIN u ON t.a IS NOT DISTINCT FROM u.a",
        ["id", "id"],
        [(1, 1), (1, 6), (2, 1), (2, 6), (3, 2), (4, 3)],
    ),
    ("SELECT t.id, u.id FROM t JOIN u ON t.id = u.id AND (t.a = u.a OR t.b)", ["id", "id"], [(1, 1)]),
    ("SELECT z, y, s FROM t AS q(z, y) WHERE z > 3", ["z", "y", "s"], [(4, None, None), (5, 3, "y")]),
]
GROUPS: list[tuple[str, list[str], list[Row]]] = [
    (
        "SELECT a, count(*), sum(id), min(s), max(n) FROM t GROUP BY a",
        ["a", "count", "sum", "min", "max"],
        [
            (1, 2, Decimal("3"), "x", Decimal("2.0")),
            (2, 1, Decimal("3"), "x", None),
            (3, 1, Decimal("5"), "y", Decimal("1.5")),
            (None, 1, Decimal("4"), None, Decimal("0.5")),
        ],
    ),
    (
        "SELECT count(*), count(a), count(DISTINCT a), sum(DISTINCT a), avg(DISTINCT a), sum(a) FILTER (WHERE b)"
        " FROM t",
        ["count", "count", "count", "sum", "avg", "sum"],
        [(5, 4, 3, Decimal("6"), Decimal("2.0000000000000000"), Decimal("4"))],
    ),
    (
        "SELECT count(*), sum(a), max(s), bool_and(b) FROM t WHERE false",
        ["count", "sum", "max", "bool_and"],
        [(0, None, None, None)],
    ),
    ("SELECT a FROM t WHERE false GROUP BY a", ["a"], []),
    ("SELECT 1 FROM t GROUP BY a", ["?column?"], [(1,), (1,), (1,), (1,)]),
    (
        "SELECT s, sum(id) + count(*) * 10 FROM t GROUP BY s HAVING count(a) > 0 AND s IS NOT NULL",
        ["s", "?column?"],
        [("x", Decimal("24")), ("y", Decimal("27"))],
    ),
    ("SELECT count(*) FROM t HAVING count(*) > 100", ["count"], []),
    ("SELECT 'one' FROM t HAVING count(*) > 1", ["?column?"], [("one",)]),
    (
        "SELECT id, s, a + count(*) FROM t GROUP BY id",
        ["id", "s", "?column?"],
        [(1, "x", 2), (2, "y", 2), (3, "x", 3), (4, None, None), (5, "y", 4)],
    ),
    (
        "SELECT u.id, u.k, count(t.id) FROM u LEFT JOIN t ON t.a = u.a GROUP BY u.id",
        ["id", "k", "count"],
        [(1, "x", 2), (2, "y", 1), (3, "x", 0), (6, None, 2)],
    ),
    ("SELECT a % 2, count(*) FROM t GROUP BY a % 2", ["?column?", "count"], [(0, 1), (1, 3), (None, 1)]),
    ("SELECT coalesce(s, '-') AS z, count(*) FROM t GROUP BY z", ["z", "count"], [("-", 1), ("x", 2), ("y", 2)]),
    (
        "SELECT bool_and(b), bool_or(b), every(b IS NOT NULL), var_pop(id), var_samp(id), variance(id) FROM t",
        ["bool_and", "bool_or", "every", "var_pop", "var_samp", "variance"],
        [
            (
                False,
                True,
                False,
                Decimal("2.0000000000000000"),
                Decimal("2.5000000000000000"),
                Decimal("2.5000000000000000"),
            )
        ],
    ),
    ("SELECT count(*) FROM t LEFT JOIN u ON t.a = u.a WHERE u.id IS NULL", ["count"], [(2,)]),
    ("SELECT a FROM t GROUP BY s, a", ["a"], [(1,), (1,), (2,), (3,), (None,)]),
]
SETS: list[tuple[str, list[str], list[Row]]] = [
    ("SELECT DISTINCT a, b FROM t", ["a", "b"], [(1, False), (1, True), (2, None), (3, True), (None, True)]),
    ("SELECT DISTINCT s FROM t", ["s"], [("x",), ("y",), (None,)]),
    ("SELECT a FROM t UNION SELECT a FROM u", ["a"], [(1,), (2,), (3,), (None,)]),
    ("SELECT a FROM t UNION ALL SELECT a FROM u", ["a"], [(1,), (1,), (1,), (1,), (2,), (2,), (3,), (None,), (None,)]),
    ("SELECT a FROM t INTERSECT SELECT a FROM u", ["a"], [(1,), (2,), (None,)]),
    ("SELECT a FROM t INTERSECT ALL SELECT a FROM u", ["a"], [(1,), (1,), (2,), (None,)]),
    ("SELECT a FROM t EXCEPT SELECT a FROM u", ["a"], [(3,)]),
    ("SELECT a FROM t EXCEPT ALL SELECT a FROM u", ["a"], [(3,)]),
    ("SELECT 1 UNION SELECT 2 INTERSECT SELECT 3", ["?column?"], [(1,)]),
    ("(SELECT 1 UNION SELECT 2) INTERSECT SELECT 2", ["?column?"], [(2,)]),
    ("SELECT 1 UNION ALL SELECT 1 EXCEPT SELECT 1", ["?column?"], []),
    ("SELECT 1 UNION ALL (SELECT 1 EXCEPT SELECT 1)", ["?column?"], [(1,)]),
    ("SELECT NULL UNION SELECT 1", ["?column?"], [(1,), (None,)]),
    ("SELECT '1' UNION ALL SELECT 2", ["?column?"], [(1,), (2,)]),
    (
        "SELECT a FROM t UNION SELECT n FROM u",
        ["a"],
        [
            (Decimal("0.5"),),
            (Decimal("1"),),
            (Decimal("1.5"),),
            (Decimal("2"),),
            (Decimal("3"),),
            (Decimal("9"),),
            (None,),
        ],
    ),
    ("SELECT 1 UNION SELECT 1.5 UNION SELECT 2::float8", ["?column?"], [(1.0,), (1.5,), (2.0,)]),
    ("VALUES (1, 'a'), (2, NULL)", ["column1", "column2"], [(1, "a"), (2, None)]),
    ("VALUES (NULL), (1), (1 + 1)", ["column1"], [(1,), (2,), (None,)]),
    (
        "SELECT * FROM (VALUES (1, 'x'), (2.5, NULL)) q",
        ["column1", "column2"],
        [(Decimal("1"), "x"), (Decimal("2.5"), None)],
    ),
    (
        "SELECT x + 1, column2 FROM (VALUES (1, 'x'), (2.5, NULL)) q(x)",
        ["?column?", "column2"],
        [(Decimal("2"), "x"), (Decimal("3.5"), None)],
    ),
    (
        "SELECT t.id, q.z FROM t JOIN (VALUES (1, 'one'), (3, 'three')) q(i, z) ON t.id = q.i",
        ["id", "z"],
        [(1, "one"), (3, "three")],
    ),
    ("SELECT 1, 'x', NULL", ["?column?", "?column?", "?column?"], [(1, "x", None)]),
    ("SELECT 1 WHERE false", ["?column?"], []),
]
SUBQUERIES: list[tuple[str, list[str], list[Row]]] = [
    ("SELECT z FROM (SELECT a + 1 AS z FROM t) q WHERE z > 2", ["z"], [(3,), (4,)]),
    (
        "SELECT q.total, u.id FROM (SELECT a, sum(id) AS total FROM t GROUP BY a) q JOIN u ON u.a = q.a",
        ["total", "id"],
        [(Decimal("3"), 1), (Decimal("3"), 2), (Decimal("3"), 6)],
    ),
    ("SELECT * FROM (SELECT a FROM t UNION ALL SELECT a FROM u) AS q(z) WHERE z = 1", ["z"], [(1,), (1,), (1,), (1,)]),
    (
        "WITH q AS (SELECT a, count(*) AS n FROM t GROUP BY a) SELECT x.n, y.a FROM q x JOIN q y ON x.n = y.a",
        ["n", "a"],
        [(1, 1), (1, 1), (1, 1), (2, 2)],
    ),
    (
        "WITH q(z) AS (SELECT a FROM t), r AS (SELECT z + 1 AS z FROM q) SELECT z FROM r EXCEPT SELECT z FROM q",
        ["z"],
        [(4,)],
    ),
    ("WITH t AS (SELECT 1 AS one) SELECT * FROM t", ["one"], [(1,)]),
    ("WITH q AS (WITH r AS (SELECT 1 AS x) SELECT x FROM r) SELECT x FROM q", ["x"], [(1,)]),
    ("SELECT * FROM (WITH r AS (SELECT 1 AS x) SELECT x FROM r) q", ["x"], [(1,)]),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", ["id"], [(1,), (2,), (3,)]),
    ("SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", ["id"], [(4,), (5,)]),
    ("SELECT id FROM t WHERE EXISTS (SELECT FROM u WHERE u.a = t.a AND u.k = 'x') AND b", ["id"], [(1,)]),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a > t.a LIMIT 1)", ["id"], [(1,), (2,)]),
    ("SELECT id FROM t WHERE EXISTS (SELECT count(*) FROM u WHERE false)", ["id"], [(1,), (2,), (3,), (4,), (5,)]),
    ("SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u GROUP BY a HAVING count(*) > 1)", ["id"], []),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE id = t.id)", ["id"], [(1,), (2,), (3,)]),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE s = k)", ["id"], [(1,), (2,), (3,), (5,)]),
    (
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND EXISTS (SELECT 1 FROM v WHERE v.k = u.k))",
        ["id"],
        [(1,), (2,), (3,)],
    ),
    ("SELECT id FROM t WHERE a IN (SELECT a FROM u)", ["id"], [(1,), (2,), (3,)]),
    ("SELECT id FROM t WHERE a NOT IN (SELECT a FROM u)", ["id"], []),
    ("SELECT id FROM t WHERE a NOT IN (SELECT a FROM u WHERE a IS NOT NULL)", ["id"], [(5,)]),
    ("SELECT id FROM t WHERE a NOT IN (SELECT a FROM u WHERE false)", ["id"], [(1,), (2,), (3,), (4,), (5,)]),
    ("SELECT id FROM t WHERE id NOT IN (SELECT id FROM v)", ["id"], [(3,), (4,), (5,)]),
    ("SELECT id FROM t WHERE a NOT IN (SELECT w FROM v WHERE v.k = t.s)", ["id"], [(2,), (3,), (4,), (5,)]),
    ("SELECT id FROM t WHERE NOT (NOT (a IN (SELECT w FROM v)))", ["id"], [(1,), (2,), (3,)]),
    ("SELECT id FROM t WHERE NOT a IN (SELECT w FROM v WHERE w = 1)", ["id"], [(3,), (5,)]),
    ("SELECT id FROM t WHERE (a, s) IN (SELECT w, k FROM v)", ["id"], [(1,)]),
    ("SELECT id FROM t WHERE (a, s) NOT IN (SELECT w, k FROM v)", ["id"], [(2,), (3,), (5,)]),
    ("SELECT id FROM t WHERE ROW(a, s) NOT IN (SELECT w, k FROM v WHERE w IS NOT NULL)", ["id"], [(2,), (3,), (5,)]),
    ("SELECT id FROM t WHERE a = ANY (SELECT w FROM v)", ["id"], [(1,), (2,), (3,)]),
    ("SELECT id FROM t WHERE a = SOME (VALUES (1), (3))", ["id"], [(1,), (2,), (5,)]),
    ("SELECT id FROM t WHERE a <> ALL (SELECT w FROM v WHERE w IS NOT NULL)", ["id"], [(5,)]),
    ("SELECT id FROM t WHERE a IN (SELECT count(*) FROM u GROUP BY k)", ["id"], [(1,), (2,), (3,)]),
    ("SELECT id FROM t WHERE a IN (SELECT a FROM u UNION SELECT 3)", ["id"], [(1,), (2,), (3,), (5,)]),
    ("SELECT id FROM t WHERE a IN (SELECT u.id + t.a FROM u)", ["id"], []),
    ("SELECT id FROM t WHERE a IN (SELECT a FROM u ORDER BY id DESC LIMIT 1)", ["id"], [(1,), (2,)]),
    ("SELECT id FROM t WHERE 1 IN (SELECT w FROM v)", ["id"], [(1,), (2,), (3,), (4,), (5,)]),
    ("WITH q AS (SELECT a FROM u) SELECT id FROM t WHERE a IN (SELECT a FROM q)", ["id"], [(1,), (2,), (3,)]),
    (
        "SELECT id FROM t WHERE (a, s) = (1, 'x') OR (a, s) IN ((1, 'y'), (2, NULL)) OR (a, id) > (2, 4)",
        ["id"],
        [(1,), (2,), (5,)],
    ),
]
TOPS: list[tuple[str, list[str], list[Row]]] = [
    ("SELECT id FROM t ORDER BY a DESC, id LIMIT 3", ["id"], [(4,), (5,), (3,)]),
    ("SELECT id FROM t ORDER BY a DESC NULLS LAST, id DESC LIMIT 3", ["id"], [(5,), (3,), (2,)]),
    ("SELECT s, count(*) FROM t GROUP BY s ORDER BY count(*) DESC, s LIMIT 2", ["s", "count"], [("x", 2), ("y", 2)]),
    ("SELECT s FROM t GROUP BY s ORDER BY max(n) DESC NULLS LAST, s LIMIT 2", ["s"], [("y",), ("x",)]),
    ("SELECT DISTINCT a FROM t ORDER BY a LIMIT 2", ["a"], [(1,), (2,)]),
    ("SELECT a + 1 AS a FROM t ORDER BY a, t.id LIMIT 4", ["a"], [(2,), (2,), (3,), (4,)]),
    ("SELECT a AS z FROM t UNION SELECT id FROM u ORDER BY z DESC LIMIT 3", ["z"], [(None,), (6,), (3,)]),
    (
        "(SELECT id FROM t ORDER BY id DESC LIMIT 1) UNION ALL (SELECT id FROM u ORDER BY id LIMIT 1)"
        " ORDER BY 1 LIMIT 5",
        ["id"],
        [(1,), (5,)],
    ),
    ("VALUES (3), (1), (2) ORDER BY 1 LIMIT 2", ["column1"], [(1,), (2,)]),
    ("SELECT z FROM (SELECT id AS z FROM t ORDER BY n, id LIMIT 2) q ORDER BY z LIMIT 9", ["z"], [(1,), (4,)]),
    ("SELECT id FROM t ORDER BY id FETCH FIRST 2 ROWS ONLY", ["id"], [(1,), (2,)]),
    ("SELECT id FROM t ORDER BY 1 LIMIT 0", ["id"], []),
]
ADHOC: list[tuple[str, list[str], list[Row]]] = [
    ("SELECT id FROM t ORDER BY a NULLS FIRST, id", ["id"], [(4,), (1,), (2,), (3,), (5,)]),
    ("SELECT a, a FROM t ORDER BY a, id", ["a", "a"], [(1, 1), (1, 1), (2, 2), (3, 3), (None, None)]),
    ("SELECT -a AS a FROM t ORDER BY -a, id", ["a"], [(-3,), (-2,), (-1,), (-1,), (None,)]),
    ("SELECT a AS id FROM t ORDER BY id, t.id", ["id"], [(1,), (1,), (2,), (3,), (None,)]),
    ("SELECT id FROM t ORDER BY id DESC LIMIT 2 OFFSET 1", ["id"], [(4,), (3,)]),
    ("SELECT id FROM t ORDER BY id OFFSET 3", ["id"], [(4,), (5,)]),
    ("SELECT id FROM t ORDER BY id OFFSET 1 ROWS FETCH NEXT ROW ONLY", ["id"], [(2,)]),
    ("SELECT id FROM t ORDER BY id LIMIT ALL OFFSET NULL", ["id"], [(1,), (2,), (3,), (4,), (5,)]),
    ("SELECT s, count(*) FROM t GROUP BY s ORDER BY 2, s", ["s", "count"], [(None, 1), ("x", 2), ("y", 2)]),
    ("SELECT id FROM t GROUP BY id ORDER BY n, id", ["id"], [(4,), (1,), (5,), (2,), (3,)]),
    (
        "SELECT a FROM t UNION ALL SELECT a FROM u ORDER BY a",
        ["a"],
        [(1,), (1,), (1,), (1,), (2,), (2,), (3,), (None,), (None,)],
    ),
    ("((SELECT id FROM t)) ORDER BY id DESC LIMIT 1", ["id"], [(5,)]),
    ("SELECT t.id, u.id FROM t, u WHERE t.id < u.id AND t.a < u.a ORDER BY t.id, 2", ["id", "id"], [(1, 2)]),
    ("VALUES (3), (1), (2) ORDER BY column1 DESC", ["column1"], [(3,), (2,), (1,)]),
]


@pytest.mark.parametrize(
    ("sql", "names", "rows"), [*JOINS, *GROUPS, *SETS, *SUBQUERIES], ids=lambda value: str(value)[:60]
)
def test_rows_are_those_of_postgresql(sql: str, names: list[str], rows: list[Row]) -> None:
    relation = parse_select(sql, TABLES)
    assert [field.name for field in relation.fields] == names
    assert Counter(recompute(relation, TABLES, ROWS)) == Counter(rows)


@pytest.mark.parametrize(("sql", "names", "rows"), [*TOPS, *ADHOC], ids=lambda value: str(value)[:60])
def test_ordered_rows_are_those_of_postgresql(sql: str, names: list[str], rows: list[Row]) -> None:
    relation = parse_select(sql, TABLES)
    assert [field.name for field in relation.fields] == names
    assert _in_order(relation) == rows


def _in_order(relation: Relation) -> list[Row]:
    """A Top orders its rows; a Project over it keeps them so."""
    if isinstance(relation, Project) and isinstance(relation.input, Top):
        width = len(relation.outputs)
        assert all(isinstance(output.expression, ColumnRef) for output in relation.outputs)
        return [row[:width] for row in recompute(relation.input, TABLES, ROWS)]
    return recompute(relation, TABLES, ROWS)


@pytest.mark.parametrize(
    "sql", [sql for sql, names, _ in [*JOINS, *GROUPS, *SETS, *SUBQUERIES, *TOPS] if len(set(names)) == len(names)]
)
def test_a_view_is_the_same_relation(sql: str) -> None:
    """But for an order without LIMIT, which a view does not have."""
    selected = parse_select(sql, TABLES)
    viewed = parse_view(sql, TABLES)
    assert viewed.fields == selected.fields
    assert Counter(recompute(viewed, TABLES, ROWS)) == Counter(recompute(selected, TABLES, ROWS))


@pytest.mark.parametrize(
    ("sql", "names", "rows"), [*JOINS, *GROUPS, *SETS, *SUBQUERIES, *TOPS, *ADHOC], ids=lambda value: str(value)[:60]
)
def test_what_is_not_nullable_is_never_null(sql: str, names: list[str], rows: list[Row]) -> None:
    fields = parse_select(sql, TABLES).fields
    for position, field in enumerate(fields):
        assert field.nullable or all(row[position] is not None for row in rows)


# --- shapes ---


def view(sql: str) -> Relation:
    return parse_view(sql, TABLES)


def semi(sql: str) -> Semi:
    relation = view(sql)
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Semi)
    return relation.input


def ref(position: int, name: str, type_: Type = INT, nullable: bool = True) -> ColumnRef:
    return ColumnRef(0, position, name, type_, nullable)


T_A, T_ID, U_A, V_ID = ref(1, "a"), ref(0, "id", INT, False), ref(7, "a"), ref(6, "id", INT, False)


def test_exists_takes_the_conditions_that_name_both_sides() -> None:
    made = semi("SELECT id FROM t WHERE b AND EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.k = 'x')")
    assert not made.anti
    assert made.condition == Call("=", (U_A, T_A), BOOL)
    assert isinstance(made.left, Filter)
    assert made.left.condition == ref(2, "b", BOOL)
    assert isinstance(made.right, Filter)
    assert made.right.condition == Call("=", (ref(2, "k", STR), Literal("x", STR)), BOOL)
    assert isinstance(made.right.input, Scan)


def test_not_exists_is_an_anti_join() -> None:
    made = semi("SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u)")
    assert made.anti
    assert made.condition is None


def test_in_is_an_equality() -> None:
    made = semi("SELECT id FROM t WHERE a IN (SELECT a FROM u)")
    assert (made.anti, made.condition) == (False, Call("=", (T_A, U_A), BOOL))
    assert semi("SELECT id FROM t WHERE a = ANY (SELECT a FROM u)") == made
    assert semi("SELECT id FROM t WHERE NOT a NOT IN (SELECT DISTINCT a FROM u ORDER BY a)") == made


def test_not_in_keeps_no_row_whose_equality_is_unknown() -> None:
    made = semi("SELECT id FROM t WHERE a NOT IN (SELECT a FROM u)")
    equal = Call("=", (T_A, U_A), BOOL)
    assert (made.anti, made.condition) == (True, Call("is_distinct", (equal, Literal(False, BOOL)), BOOL))
    assert semi("SELECT id FROM t WHERE a <> ALL (SELECT a FROM u)") == made


def test_not_in_of_columns_that_are_never_null_is_a_plain_anti_join() -> None:
    made = semi("SELECT a FROM t WHERE id NOT IN (SELECT id FROM v)")
    assert (made.anti, made.condition) == (True, Call("=", (T_ID, V_ID), BOOL))


def test_a_grouped_subquery_is_a_relation_of_its_own() -> None:
    made = semi("SELECT id FROM t WHERE a IN (SELECT COUNT(*) FROM u GROUP BY k)")
    assert isinstance(made.right, Project)
    assert isinstance(made.right.input, Group)
    assert made.condition == Call("=", (T_A, ref(6, "count", INT, False)), BOOL)


def test_an_order_without_limit_is_dropped_in_views_and_subqueries() -> None:
    assert view("SELECT a FROM t ORDER BY id DESC") == view("SELECT a FROM t")
    assert view("SELECT a FROM (SELECT a FROM t ORDER BY s) q") == view("SELECT a FROM (SELECT a FROM t) q")
    assert view("SELECT a FROM t UNION SELECT a FROM u ORDER BY 1") == view("SELECT a FROM t UNION SELECT a FROM u")
    assert view("SELECT a FROM t ORDER BY a LIMIT ALL") == view("SELECT a FROM t")


def test_an_ad_hoc_order_is_a_top_without_limit() -> None:
    relation = parse_select("SELECT a FROM t ORDER BY a DESC, s", TABLES)
    assert isinstance(relation, Project)
    top = relation.input
    assert isinstance(top, Top)
    assert (top.limit, top.offset) == (None, 0)
    assert [(order.descending, order.nulls_first) for order in top.order] == [(True, True), (False, False)]
    assert [field.name for field in relation.fields] == ["a"]
    assert len(top.fields) == 2
    unordered = parse_select("SELECT a FROM t LIMIT 3", TABLES)
    assert isinstance(unordered, Top)
    assert (unordered.order, unordered.limit) == ((), 3)


def test_types_of_set_operations_are_resolved() -> None:
    def types(sql: str) -> list[Type]:
        relation = view(sql)
        assert isinstance(relation, SetOp)
        assert [field.type for field in relation.left.fields] == [field.type for field in relation.right.fields]
        return [field.type for field in relation.fields]

    assert types("SELECT a, s FROM t UNION SELECT n, NULL FROM u") == [DECIMAL, STR]
    assert types("SELECT NULL UNION ALL SELECT a FROM t") == [INT]
    assert types("SELECT '1' EXCEPT SELECT f FROM t") == [FLOAT]
    assert types("SELECT n::numeric(5, 2) FROM t UNION SELECT n::numeric(5, 2) FROM u") == [Type("decimal", 5, 2)]
    assert types("SELECT n::numeric(5, 2) FROM t UNION SELECT n::numeric(6, 2) FROM u") == [DECIMAL]
    assert types("SELECT s::varchar(2) FROM t UNION SELECT k FROM u") == [STR]
    assert types("SELECT DISTINCT a FROM t UNION SELECT f FROM t") == [FLOAT]


def test_values_are_constants_where_they_can_be() -> None:
    relation = view("VALUES (1, NULL), (2.5, 'x')")
    assert isinstance(relation, Values)
    assert relation.rows == ((Decimal(1), None), (Decimal("2.5"), "x"))
    assert [(field.name, field.type, field.nullable) for field in relation.fields] == [
        ("column1", DECIMAL, False),
        ("column2", STR, True),
    ]
    mixed = view("VALUES (1), (1 + 1), (3)")
    assert isinstance(mixed, SetOp)
    assert isinstance(mixed.left, Values)
    assert mixed.left.rows == ((1,), (3,))


def test_distinct_stands_over_the_outputs() -> None:
    relation = view("SELECT DISTINCT a, s FROM t")
    assert isinstance(relation, Distinct)
    assert isinstance(relation.input, Project)


def test_a_cte_is_put_in_at_each_use() -> None:
    relation = view("WITH q AS (SELECT a FROM t) SELECT x.a FROM q x JOIN q y ON x.a = y.a")
    assert [scan.table for scan in scans(relation)] == ["t", "t"]


def test_scans_know_their_places() -> None:
    relation = view("SELECT t.id, q.k FROM t,\n (SELECT k FROM u) q, v AS w WHERE t.id = w.id AND q.k = w.k")
    assert [(scan.table, scan.place) for scan in scans(relation)] == [("t", (1, 23)), ("u", (2, 17)), ("v", (2, 23))]


def test_equal_names_are_refused_in_a_view_only() -> None:
    with pytest.raises(ProgrammingError, match="two outputs named a at line 1, column 11"):
        parse_view("SELECT a, a FROM t", TABLES)
    assert [field.name for field in parse_select("SELECT a, a FROM t", TABLES).fields] == ["a", "a"]
    assert parse_view("SELECT 1 AS one FROM (SELECT a, s AS a FROM t) q", TABLES).fields[0].name == "one"


def test_an_ad_hoc_select_takes_what_a_view_does_not() -> None:
    for sql in ("SELECT a FROM t LIMIT 1", "SELECT a FROM t ORDER BY a OFFSET 1"):
        assert parse_select(sql, TABLES).fields[0].name == "a"
        with pytest.raises(UnsupportedView):
            parse_view(sql, TABLES)
