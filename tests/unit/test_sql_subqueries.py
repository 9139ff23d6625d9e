"""Subqueries inside expressions of statements. `tests/properties/test_statements_postgres.py` asks PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import viewtide as vt
from viewtide.changetables.access import Reader
from viewtide.changetables.execute import execute
from viewtide.changetables.recompute import recompute
from viewtide.changetables.sql import parse_select
from viewtide.changetables.types import Row

TABLES = """
    CREATE TABLE t (id int PRIMARY KEY, k int, x int, n numeric, s text);
    CREATE TABLE u (id int PRIMARY KEY, k int, y int);
    INSERT INTO t VALUES (1, 1, 10, 1.0, 'a'), (2, 1, 20, 1.00, 'b'), (3, 2, 30, 2, 'c'), (4, NULL, 40, NULL, 'd'),
        (5, 3, NULL, 3, NULL);
    INSERT INTO u VALUES (1, 1, 10), (2, 1, 15), (3, 2, 5), (4, NULL, 7), (5, 2, NULL)
"""

#: Conditions of WHERE on rows of t.
CONDITIONS = [
    "x > (SELECT AVG(y) FROM u)",
    "x > (SELECT AVG(y) FROM u WHERE u.k = t.k)",
    "x >= (SELECT AVG(u.y) FROM u WHERE u.k < t.k OR t.k IS NULL)",
    "id = 5 OR k IN (SELECT k FROM u WHERE y > 6)",
    "NOT (k IN (SELECT k FROM u WHERE y > 6) AND x < 30)",
    "(k, x) NOT IN (SELECT k, y FROM u) OR FALSE",
    "((k, x) IN (SELECT k, y FROM u)) IS NULL",
    "x > ALL (SELECT y FROM u WHERE y IS NOT NULL)",
    "x > ALL (SELECT y FROM u WHERE u.k = t.k)",
    "x < ANY (SELECT y FROM u) OR id = 4",
    "(x = ALL (SELECT y FROM u WHERE u.k = t.k)) IS NOT TRUE",
    "(x <> SOME (SELECT y FROM u WHERE u.k = t.k)) IS NULL",
    "EXISTS (SELECT 1 FROM u WHERE u.k = t.k GROUP BY u.k HAVING COUNT(*) > 1)",
    "EXISTS (SELECT 1 FROM u WHERE u.y = (SELECT MAX(v.y) FROM u v WHERE v.k = t.k))",
    "EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.y >= (SELECT MAX(v.y) FROM u v WHERE v.k = u.k))",
    "x IN (SELECT y FROM u WHERE u.k = t.k ORDER BY u.id LIMIT 1)",
    "15 IN (SELECT y + t.x - t.x FROM u WHERE u.k = t.k)",
    "CASE WHEN EXISTS (SELECT 1 FROM u WHERE u.k = t.k) THEN x > 15 ELSE TRUE END",
    "k = (SELECT k FROM (SELECT k, SUM(y) AS y FROM u WHERE u.k <> t.id GROUP BY k) q ORDER BY y DESC LIMIT 1)",
    "(SELECT COUNT(*) FROM u WHERE u.k IN (SELECT w.k FROM t w WHERE w.id <= t.id)) > 2",
    "(SELECT COUNT(*) FROM u JOIN t w ON w.k = u.k AND w.id = t.id) BETWEEN 1 AND 2",
    "(k, x) = (SELECT k, y FROM u WHERE u.id = t.id)",
    "((k, x) >= (SELECT k, y FROM u WHERE u.id = t.id)) IS NOT FALSE",
    "((k, x) = (SELECT 1, NULL::int)) IS NULL",
    "length((SELECT t.n || s.z FROM (VALUES ('!')) s(z))) = 5",
]
#: Values over rows of t.
VALUES = [
    "(SELECT y FROM u WHERE u.k = t.k ORDER BY y DESC NULLS LAST LIMIT 1)",
    "(SELECT COALESCE(SUM(y), 0) + t.id FROM u WHERE u.k = t.k)",
    "(SELECT SUM(u.y * t.x) FILTER (WHERE u.y > t.id) FROM u WHERE u.k = t.k)",
    "(WITH w AS (SELECT y FROM u WHERE u.k = t.k) SELECT MIN(y) FROM w)",
    "(SELECT t.x UNION SELECT t.x)",
    "(SELECT MAX(id) FROM t) + (SELECT COUNT(*) FROM u)",
    "(SELECT y FROM u WHERE FALSE)",
]


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.sql(TABLES)
        yield database


def rows(result: vt.Result) -> list[tuple[object, ...]]:
    return [tuple(row[position] for position in range(len(result.columns))) for row in result]


class _Everything:
    """A reader that knows no keys: whatever is asked for, it looks through all rows."""

    def __init__(self, tables: dict[str, list[Row]], keys: dict[str, tuple[int, ...]]) -> None:
        self._tables, self._keys = tables, keys

    def get_many(self, table: str, keys: list[Row]) -> list[Row | None]:
        found = {tuple(row[place] for place in self._keys[table]): row for row in self._tables[table]}
        return [found.get(key) for key in keys]

    def find(self, table: str, columns: tuple[int, ...], values: list[Row]) -> list[list[Row]]:
        return [
            [row for row in self._tables[table] if tuple(row[place] for place in columns) == wanted]
            for wanted in values
        ]

    def scan(self, table: str, start: Row | None, stop: Row | None, descending: bool = False) -> Iterator[Row]:
        return iter(self._tables[table][:: -1 if descending else 1])


def test_the_oracle_agrees(db: vt.Database) -> None:
    node = db._node  # the schema as the engine has it
    tables = {name: node.engine.ltm.tables.by_name[name].table for name in ("t", "u")}
    stored = {name: [tuple(row.values()) for row in db.sql(f"TABLE {name}")] for name in tables}
    reader: Reader = _Everything(stored, {name: table.key for name, table in tables.items()})
    for text in [
        *(f"SELECT id FROM t WHERE {condition}" for condition in CONDITIONS),
        *(f"SELECT id, {value} FROM t" for value in VALUES),
    ]:
        relation = parse_select(text, tables)
        computed = execute(relation, tables, reader)
        assert sorted(map(repr, computed)) == sorted(map(repr, recompute(relation, tables, stored))), text


def test_a_subquery_sees_what_the_transaction_wrote(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.sql("INSERT INTO u VALUES (9, 3, 1000)")
        assert tx.sql("UPDATE t SET x = (SELECT MAX(y) FROM u) WHERE k = (SELECT k FROM u WHERE id = 9)").rowcount == 1
        assert tx.get("t", 5).x == 1000


def test_what_a_subquery_read_must_hold_at_commit(db: vt.Database) -> None:
    with pytest.raises(vt.TransactionConflict), db.transaction() as tx:
        tx.sql("UPDATE t SET x = (SELECT SUM(y) FROM u) WHERE id = 1")
        db.sql("INSERT INTO u VALUES (9, 3, 1000)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SELECT (SELECT y FROM u)",
            "more than one row returned by a subquery used as an expression at line 1, column 8",
        ),
        ("UPDATE t SET x = (SELECT y FROM u WHERE u.k = t.k)", "more than one row returned by a subquery used as an"),
        ("DELETE FROM t WHERE (k, x) = (SELECT k, y FROM u)", "more than one row returned by a subquery used as an"),
        ("DELETE FROM t WHERE (k, x) = (SELECT k FROM u)", "subquery has too few columns at line 1, column 30"),
        ("SELECT (SELECT y, k FROM u)", "subquery must return only one column at line 1, column 8"),
        ("SELECT (k, x) IN (SELECT k FROM u) FROM t", "subquery has too few columns at line 1, column 18"),
        ("SELECT id FROM t WHERE x = (SELECT 'a')", "operator does not exist: integer = text at line 1, column 24"),
        ("DELETE FROM t WHERE x = (SELECT z FROM u)", "unknown column z at line 1, column 33"),
        ("UPDATE t SET x = (SELECT 'a')", "column 'x' is of type integer but expression is of type text"),
    ],
)
def test_wrong_subqueries(db: vt.Database, text: str, message: str) -> None:
    before = rows(db.sql("TABLE t"))
    with pytest.raises(vt.ProgrammingError, match=re.escape(message)):
        db.sql(text)
    assert rows(db.sql("TABLE t")) == before


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (
            "SELECT k, (SELECT 1) FROM t GROUP BY k",
            "scalar subqueries in the select list of a query with groups",
            (1, 11),
        ),
        ("SELECT k FROM t GROUP BY k HAVING COUNT(*) > (SELECT 1)", "scalar subqueries", (1, 46)),
        ("SELECT t.id FROM t JOIN u ON t.id = (SELECT 1)", "scalar subqueries", (1, 37)),
        ("SELECT id FROM t ORDER BY (SELECT 1)", "scalar subqueries", (1, 27)),
        ("SELECT SUM((SELECT 1)) FROM t", "scalar subqueries", (1, 12)),
        ("SELECT (SELECT SUM(t.x) FROM u) FROM t", "an aggregate of columns of the query around a subquery", (1, 16)),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET x = (SELECT 1)",
            "scalar subqueries",
            (1, 61),
        ),
        ("CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE x > (SELECT 1)", "scalar subqueries", (1, 58)),
    ],
)
def test_refused_with_reason_and_place(db: vt.Database, text: str, reason: str, place: tuple[int, int]) -> None:
    with pytest.raises(vt.UnsupportedView) as caught:
        db.sql(text)
    assert (caught.value.reason, caught.value.place) == (reason, place)


def test_unnamed_subqueries_are_named_as_in_postgresql(db: vt.Database) -> None:
    text = "SELECT (SELECT COUNT(*) FROM u), EXISTS (SELECT 1), (SELECT 1 AS z), (VALUES (4)), 1 IN (SELECT 2)"
    assert db.sql(text).columns == ("count", "exists", "z", "column1", "?column?")


def test_explain_tells_how_often_a_subquery_is_run(db: vt.Database) -> None:
    text = "EXPLAIN DELETE FROM t WHERE x > (SELECT AVG(y) FROM u) OR k = (SELECT MAX(k) FROM u WHERE u.id = t.id)"
    assert [row.plan for row in db.sql(text)][2:] == [
        "  filter ((CAST(t.x AS decimal) > subquery) OR (t.k = subquery))",
        "    with a subquery over u, run for each value of t.id",
        "      with a subquery, run once",
        "        t: all rows",
        "        group: avg(u.y)",
        "          u: all rows",
    ]
