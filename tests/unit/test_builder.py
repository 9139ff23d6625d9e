"""The builder gives exactly the relation of the equivalent SQL, and refuses wrong arguments at once."""

from __future__ import annotations

import pytest

from viewtide.changetables.builder import (
    JoinEdge,
    JoinTable,
    Query,
    avg,
    count,
    max,
    min,
    query,
    stddev_pop,
    stddev_samp,
    sum,
    var_pop,
    var_samp,
)
from viewtide.changetables.errors import InterfaceError, ProgrammingError, UnsupportedView
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import parse_view
from viewtide.changetables.types import FLOAT, INT, STR

EVENTS = Table(
    1,
    "events",
    (
        Column("id", INT, nullable=False),
        Column("product", INT),
        Column("cost", INT, nullable=False),
        Column("rate", FLOAT),
    ),
    key=(0,),
)
PRODUCTS = Table(2, "products", (Column("id", INT, nullable=False), Column("category", STR)), key=(0,))
UPPER = Table(3, "Upper", (Column("id", INT, nullable=False),), key=(0,))
TABLES = {"events": EVENTS, "products": PRODUCTS, "Upper": UPPER}

E, P = JoinTable("events", "e"), JoinTable("products", "p")
EDGE = JoinEdge("e.product", "p.id")


@pytest.mark.parametrize(
    ("built", "sql"),
    [
        (
            query(
                E,
                P,
                on=[EDGE],
                where="e.cost > 0",
                group_by=["p.category"],
                select={"cost": sum("e.cost"), "n": count()},
            ),
            "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id"
            " WHERE e.cost > 0 GROUP BY p.category",
        ),
        (
            query(E, P, on=[JoinEdge("p.id", "e.product")], select={"id": "e.id", "twice": "e.cost * 2"}),
            "SELECT e.id, e.cost * 2 AS twice FROM events e JOIN products p ON e.product = p.id",
        ),
        (query(JoinTable("events")), "SELECT * FROM events"),
        (
            query(E, where="rate IS NULL AND (cost = 1 OR cost = 2)"),
            "SELECT * FROM events e WHERE rate IS NULL AND (cost = 1 OR cost = 2)",
        ),
        (
            query(E, select={"n": count("e.rate"), "mean": avg("rate")}),
            "SELECT COUNT(e.rate) AS n, AVG(rate) AS mean FROM events e",
        ),
        (query(E, group_by=["product", "e.cost"]), "SELECT product, cost FROM events e GROUP BY product, cost"),
        (
            query(E, group_by=["product"], select={"n": count(), "key": "e.product"}),
            'SELECT COUNT(*) AS n, product AS "key" FROM events e GROUP BY product',
        ),
        (
            query(P, group_by=["lower(category)"], select={"n": count()}),
            "SELECT LOWER(category), COUNT(*) AS n FROM products p GROUP BY 1",
        ),
        (
            query(P, group_by=["c"], select={"c": "upper(category)", "n": count()}),
            "SELECT UPPER(category) AS c, COUNT(*) AS n FROM products p GROUP BY c",
        ),
        (
            query(E, select={"share": "sum(e.cost) / count(*)"}),
            "SELECT SUM(e.cost) / COUNT(*) AS share FROM events e",
        ),
        (
            query(
                JoinTable("events", "a"),
                JoinTable("events", "b"),
                on=[JoinEdge("a.id", "b.product")],
                select={"x": "a.id", "y": "b.id"},
            ),
            "SELECT a.id AS x, b.id AS y FROM events a JOIN events b ON a.id = b.product",
        ),
        (
            query(E, P, on=[EDGE, JoinEdge("e.rate", "p.id")], select={"x": "e.id"}),
            "SELECT e.id AS x FROM events e JOIN products p ON e.product = p.id AND e.rate = p.id",
        ),
        (
            query(E, P, where="e.product = p.id", select={"x": "e.id"}),
            "SELECT e.id AS x FROM events e, products p WHERE e.product = p.id",
        ),
        (query(JoinTable("Upper", "u")), 'SELECT * FROM "Upper" u'),
        (query(JoinTable("EVENTS", "E"), select={"x": "E.ID"}), "SELECT E.id AS x FROM events E"),
        (query(E, group_by=[], select={"n": count()}), "SELECT COUNT(*) AS n FROM events e"),
        (
            query(E, P, on=[JoinEdge("e.product", "p.id", kind="left")], select={"x": "e.id", "y": "p.id"}),
            "SELECT e.id AS x, p.id AS y FROM events e LEFT JOIN products p ON e.product = p.id",
        ),
        (
            query(E, P, on=[JoinEdge("p.id", "e.product", kind="left")], select={"x": "e.id", "y": "p.id"}),
            "SELECT e.id AS x, p.id AS y FROM events e RIGHT JOIN products p ON e.product = p.id",
        ),
        (
            query(E, P, on=[JoinEdge("e.product", "p.id", kind="right")], select={"x": "e.id"}),
            "SELECT e.id AS x FROM events e RIGHT JOIN products p ON e.product = p.id",
        ),
        (
            query(E, P, on=[JoinEdge("p.id", "e.product", kind="full")], select={"x": "e.id"}),
            "SELECT e.id AS x FROM events e FULL JOIN products p ON e.product = p.id",
        ),
        (
            query(
                P,
                E,
                JoinTable("Upper", "u"),
                on=[JoinEdge("p.id", "e.product"), JoinEdge("e.id", "u.id", "left"), JoinEdge("p.id", "u.id", "left")],
                select={"x": "u.id"},
            ),
            "SELECT u.id AS x FROM products p JOIN events e ON p.id = e.product"
            ' LEFT JOIN "Upper" u ON e.id = u.id AND p.id = u.id',
        ),
        (query(E, P, select={"x": "e.id"}), "SELECT e.id AS x FROM events e, products p"),
        (
            query(E, on=[JoinEdge("e.product", "e.cost")], select={"x": "id"}),
            "SELECT id AS x FROM events e WHERE e.product = e.cost",
        ),
        (
            query(E, select={"x": min("cost"), "y": max("rate"), "z": count("cost", distinct=True)}),
            "SELECT MIN(cost) AS x, MAX(rate) AS y, COUNT(DISTINCT cost) AS z FROM events e",
        ),
        (
            query(E, select={"x": sum("cost", distinct=True), "y": avg("cost", True), "z": sum("cost")}),
            "SELECT SUM(DISTINCT cost) AS x, AVG(DISTINCT cost) AS y, SUM(cost) AS z FROM events e",
        ),
        (
            query(
                E, select={"a": var_pop("cost"), "b": var_samp("cost"), "c": stddev_pop("rate"), "d": stddev_samp("id")}
            ),
            "SELECT VAR_POP(cost) AS a, VAR_SAMP(cost) AS b, STDDEV_POP(rate) AS c, STDDEV(id) AS d FROM events e",
        ),
        (
            query(E, group_by=["product"], select={"n": count()}, having="count(*) > 1 AND sum(cost) < 9"),
            "SELECT product, COUNT(*) AS n FROM events e GROUP BY product HAVING count(*) > 1 AND sum(cost) < 9",
        ),
        (
            query(E, select={"n": count()}, having="max(cost) > 1"),
            "SELECT COUNT(*) AS n FROM events e HAVING max(cost) > 1",
        ),
        (
            query(E, group_by=["e.id"], select={"cost": "cost"}),
            "SELECT id, cost FROM events e GROUP BY e.id",
        ),
    ],
)
def test_the_builder_equals_sql(built: Query, sql: str) -> None:
    assert built.bind(TABLES) == parse_view(sql, TABLES)


def test_group_columns_come_first_under_their_names() -> None:
    bound = query(E, group_by=["e.product", "cost"], select={"n": count()}).bind(TABLES)
    assert [field.name for field in bound.fields] == ["product", "cost", "n"]


def test_a_query_is_a_value() -> None:
    first, second = (query(E, P, on=[EDGE], select={"n": count()}) for _ in range(2))
    assert first == second
    assert len({first, second}) == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: query(), InterfaceError, "without tables"),
        (lambda: query("events"), InterfaceError, "must be JoinTable objects"),  # type: ignore[arg-type]
        (lambda: query(E, on=[("e.a", "p.b")]), InterfaceError, "must be JoinEdge objects"),  # type: ignore[list-item]
        (lambda: query(E, on=EDGE), InterfaceError, "on must be a list"),  # type: ignore[arg-type]
        (lambda: query(E, E), ProgrammingError, "two tables with the alias 'e'"),
        (lambda: query(E, JoinTable("products", "E")), ProgrammingError, "two tables with the alias 'e'"),
        (lambda: query(E, group_by="product"), InterfaceError, "group_by must be a list"),
        (lambda: query(E, group_by=[1]), InterfaceError, "group_by must be a text"),  # type: ignore[list-item]
        (lambda: query(E, where=""), InterfaceError, "where must be a text"),
        (lambda: query(E, select={}), InterfaceError, "select must be a mapping"),
        (lambda: query(E, select=["a"]), InterfaceError, "select must be a mapping"),  # type: ignore[arg-type]
        (lambda: query(E, select={"n": 1}), InterfaceError, "select['n'] must be a text"),  # type: ignore[dict-item]
        (lambda: query(E, select={"": "id"}), InterfaceError, "an output name in select"),
        (lambda: JoinTable(""), InterfaceError, "the table of a JoinTable"),
        (lambda: JoinTable("events", " "), InterfaceError, "the alias of a JoinTable"),
        (lambda: JoinEdge("product", "p.id"), ProgrammingError, "'product' in a JoinEdge names no column"),
        (lambda: JoinEdge("e.a", "p.b", kind="outer"), InterfaceError, "unknown join kind 'outer'"),
        (lambda: sum(""), InterfaceError, "sum() must be a text"),
        (lambda: avg(None), InterfaceError, "avg() must be a text"),  # type: ignore[arg-type]
        (lambda: var_pop(""), InterfaceError, "var_pop() must be a text"),
        (lambda: count(distinct=True), InterfaceError, "without an expression"),
        (lambda: sum("a", distinct="yes"), InterfaceError, "distinct must be True or False"),  # type: ignore[arg-type]
        (lambda: query(E, having=""), InterfaceError, "having must be a text"),
    ],
)
def test_wrong_arguments_are_refused_at_once(make: object, error: type[Exception], message: str) -> None:
    assert callable(make)
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("built", "error", "message"),
    [
        (query(JoinTable("event")), ProgrammingError, "unknown table event of the query (did you mean events?)"),
        (
            query(E, select={"x": "e.nosuch"}),
            ProgrammingError,
            "unknown column e.nosuch at line 1, column 3 of select 'x'",
        ),
        (query(E, where="cost >"), ProgrammingError, "of where"),
        (query(E, where="cost > 0; DROP TABLE events"), ProgrammingError, "of where"),
        (query(E, where="cost > 0 GROUP BY id"), ProgrammingError, "of where"),
        (query(E, where="cost"), ProgrammingError, "argument of WHERE must be type boolean"),
        (query(E, where="sum(cost) > 1"), ProgrammingError, "not allowed in WHERE"),
        (query(E, group_by=["1"]), ProgrammingError, "a number in group_by"),
        (query(E, group_by=["rate"], select={"cost": "cost"}), ProgrammingError, "column cost must appear in GROUP BY"),
        (query(E, group_by=["id"], select={"id": count()}), ProgrammingError, "two outputs named id"),
        (query(E, P, on=[EDGE]), ProgrammingError, "two outputs named id"),
        (query(E, P, on=[JoinEdge("e.product", "q.id")]), ProgrammingError, "no table q here"),
        (query(E, P, on=[JoinEdge("e.product + 1", "p.id")]), ProgrammingError, "is not alias.column"),
        (
            query(E, P, on=[JoinEdge("e.product", "p.category")]),
            ProgrammingError,
            "operator does not exist: integer = text",
        ),
        (
            query(E, P, on=[EDGE, JoinEdge("e.id", "p.id", kind="left")], select={"x": "e.id"}),
            ProgrammingError,
            "the edges of table p have different kinds of join: inner, left",
        ),
        (
            query(E, on=[JoinEdge("e.id", "e.cost", kind="left")], select={"x": "e.id"}),
            ProgrammingError,
            "an outer join of a table with itself in on 'e.id' = 'e.cost'",
        ),
        (query(E, having="cost > 1", select={"n": count()}), ProgrammingError, "column cost must appear in GROUP BY"),
        (
            query(E, having="count(*)", select={"n": count()}),
            ProgrammingError,
            "argument of HAVING must be type boolean",
        ),
        (query(E, having="count(", select={"n": count()}), ProgrammingError, "of having"),
        (query(P, select={"x": max("category = ''")}), ProgrammingError, "function max(boolean) does not exist"),
        (query(E, where="id IN (SELECT 1)"), UnsupportedView, "EXISTS and IN (subquery) inside an expression in where"),
        (query(E, select={"x": sum("DISTINCT cost")}), ProgrammingError, "of select 'x'"),
        (query(E, select={"x": "now()"}), UnsupportedView, "volatile function now in select 'x' at line 1, column 1"),
    ],
)
def test_wrong_queries_are_refused_when_bound(built: Query, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        built.bind(TABLES)
    assert message in str(caught.value)
