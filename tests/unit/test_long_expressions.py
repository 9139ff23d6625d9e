"""Expressions with thousands of alternatives, and those that are nested too deeply to be compiled at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest

import viewtide as vt
from viewtide.changetables.compiler import EXPRESSION_DEPTH_MAX, Compiler, column_leaf
from viewtide.changetables.errors import UnsupportedView
from viewtide.changetables.evaluate import evaluate
from viewtide.changetables.expressions import Call, ColumnRef, Expression, Literal
from viewtide.changetables.types import BOOL, INT, Row, Value

T = TypeVar("T")

X = ColumnRef(0, 0, "x", INT, True)
Y = ColumnRef(0, 1, "y", INT, True)
ROWS: tuple[Row, ...] = tuple(itertools.product((None, 0, 1, 5, 40), repeat=2))


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.sql("CREATE TABLE t (id int PRIMARY KEY, x int, g int)")
        yield opened


def compiled(expression: Expression) -> Callable[[Row], Value]:
    compiler = Compiler(column_leaf, {})
    compiler.define(f"def value(r0):\n    return {compiler.value(expression).text}\n")
    return compiler.namespace["value"]  # type: ignore[return-value]


def rows(found: Iterable[vt.Row]) -> list[Row]:
    return [tuple(row.values()) for row in found]


def deeper(frames: int, work: Callable[[], T]) -> T:
    return work() if not frames else deeper(frames - 1, work)


def case_of(arms: int, subject: str = "x") -> str:
    return "CASE " + " ".join(f"WHEN {subject} = {n} THEN {n + 1}" for n in range(arms)) + " ELSE -1 END"


# --- alternatives ---


@pytest.mark.parametrize("frames", [0, 300])
def test_a_case_of_thousands_of_arms(db: vt.Database, frames: int) -> None:
    query = f"SELECT id, {case_of(2_000)} AS a FROM t"
    deeper(frames, lambda: db.sql(f"CREATE MATERIALIZED VIEW v AS {query}"))
    deeper(frames, lambda: db.sql("INSERT INTO t VALUES (1, 0, 1), (2, 1999, 1), (3, 2000, 1), (4, NULL, 1)"))
    expected = [(1, 1), (2, 2000), (3, -1), (4, -1)]
    assert rows(db.sql("SELECT id, a FROM v ORDER BY id")) == expected
    assert rows(deeper(frames, lambda: db.sql(f"{query} ORDER BY id"))) == expected
    db.sql("UPDATE t SET x = 7 WHERE id = 4")
    assert db.view("v").verify().ok
    assert db.view("v").get(4)["a"] == 8


def test_a_coalesce_of_a_thousand_arguments(db: vt.Database) -> None:
    arguments = ", ".join(f"CASE WHEN x = {n} THEN {n + 1} END" for n in range(1_000))
    query = f"SELECT id, COALESCE({arguments}) AS a FROM t"
    db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    db.sql("INSERT INTO t VALUES (1, 0, 1), (2, 999, 1), (3, 1000, 1)")
    expected = [(1, 1), (2, 1000), (3, None)]
    assert rows(db.sql("SELECT id, a FROM v ORDER BY id")) == expected
    assert rows(db.sql(f"{query} ORDER BY id")) == expected
    assert db.view("v").verify().ok


@pytest.mark.parametrize("aggregate", ["SUM(x)", "MAX(x)", "g"])
def test_many_arms_over_what_a_group_shows(db: vt.Database, aggregate: str) -> None:
    """Their functions read the stored row of the group, and its extremes."""
    arms = case_of(100, aggregate)
    db.sql(f"CREATE MATERIALIZED VIEW v AS SELECT g, {arms} AS a FROM t GROUP BY g HAVING {arms} > 0")
    db.sql("INSERT INTO t VALUES (1, 77, 77), (2, 100, 100)")
    assert rows(db.sql("SELECT g, a FROM v")) == [(77, 78)]


def test_many_arms_in_a_check_and_in_a_condition(db: vt.Database) -> None:
    db.sql(f"CREATE TABLE c (id int PRIMARY KEY, x int CHECK ({case_of(500)} > 0))")
    db.sql("INSERT INTO c VALUES (1, 499)")
    with pytest.raises(vt.IntegrityError):
        db.sql("INSERT INTO c VALUES (2, 500)")
    assert len(list(db.sql(f"SELECT id FROM c WHERE {case_of(500)} = 500"))) == 1


def test_a_long_constant_is_computed_once() -> None:
    """What it calls is there by then: its deep parts are functions, too."""
    total: Expression = Literal(0, INT)
    arms: list[Expression] = []
    for number in range(2 * EXPRESSION_DEPTH_MAX):
        total = Call("+", (total, Literal(1, INT)), INT)
        arms += [Call("=", (Literal(number, INT), Literal(-1, INT)), BOOL), Literal(number, INT)]
    row: Row = (None, None)
    assert compiled(total)(row) == 2 * EXPRESSION_DEPTH_MAX
    assert compiled(Call("case", (*arms, Literal(7, INT)), INT))(row) == 7
    assert Compiler(column_leaf, {}).value(total).simple


@pytest.mark.parametrize("count", [1, 2, EXPRESSION_DEPTH_MAX - 2, EXPRESSION_DEPTH_MAX - 1, EXPRESSION_DEPTH_MAX, 60])
@pytest.mark.parametrize("depth", [0, 1, EXPRESSION_DEPTH_MAX - 2, EXPRESSION_DEPTH_MAX])
def test_alternatives_are_chosen_alike_wherever_they_stand(count: int, depth: int) -> None:
    """Nested or line by line, and with others inside of them."""
    fallback = Call("coalesce", (*(Call("nullif", (Y, Literal(n % 6, INT)), INT) for n in range(count)), X), INT)
    arms = [
        part
        for number in range(count)
        for part in (Call("=", (fallback, Literal(number, INT)), BOOL), Call("+", (X, Literal(number, INT)), INT))
    ]
    expression: Expression = Call("case", (*arms, fallback), INT)
    for _ in range(depth):
        expression = Call("+", (expression, Literal(1, INT)), INT)
    value = compiled(expression)
    assert [value(row) for row in ROWS] == [evaluate(expression, row) for row in ROWS]


def test_how_deep_the_caller_stands_does_not_matter() -> None:
    expression: Expression = X
    for number in range(100):
        expression = Call("coalesce", (Call("nullif", (expression, Literal(number, INT)), INT), Y), INT)
    for frames in range(500, 850, 10):
        value = deeper(frames, lambda: compiled(expression))
        assert [value(row) for row in ((3, 200), (200, 3))] == [200, 200]


def test_only_the_arms_up_to_the_one_that_is_taken_are_evaluated() -> None:
    failing = Call("/", (Literal(1, INT), Call("-", (X, X), INT)), INT)
    arms = [part for n in range(50) for part in (Call("=", (X, Literal(n, INT)), BOOL), Literal(n, INT))]
    late = Call("case", (*arms[:80], Call("=", (failing, Y), BOOL), *arms[81:], failing), INT)
    assert compiled(late)((39, 1)) == 39
    with pytest.raises(vt.DataError):
        compiled(late)((40, 1))
    assert compiled(Call("coalesce", (*(Literal(None, INT),) * 50, X, failing), INT))((5, 1)) == 5


# --- nested too deeply ---


def rows_compared(columns: int) -> str:
    return f"({', '.join(f'c{n}' for n in range(columns))}) < ({', '.join('1' for _ in range(columns))})"


def wide(db: vt.Database) -> None:
    db.sql(f"CREATE TABLE w (id int PRIMARY KEY, {', '.join(f'c{n} int' for n in range(300))})")


def insert_wide(db: vt.Database) -> None:
    ones = ["1"] * 300
    db.sql(f"INSERT INTO w VALUES (1, {', '.join(ones)})")
    db.sql(f"INSERT INTO w VALUES (2, {', '.join([*ones[:99], '0', *ones[100:]])})")


def test_rows_of_many_columns_are_compared(db: vt.Database) -> None:
    wide(db)
    db.sql(f"CREATE MATERIALIZED VIEW v AS SELECT id FROM w WHERE {rows_compared(100)}")
    deeper(500, lambda: insert_wide(db))
    assert rows(db.sql("SELECT id FROM v")) == [(2,)]
    assert rows(db.sql(f"SELECT id FROM w WHERE {rows_compared(100)}")) == [(2,)]


@pytest.mark.parametrize("columns", [150, 200, 300])
@pytest.mark.parametrize("frames", [0, 200])
@pytest.mark.parametrize("refresh", ["sync", "manual"])
def test_what_is_nested_too_deeply_is_refused_at_creation(
    db: vt.Database, columns: int, frames: int, refresh: str
) -> None:
    wide(db)
    compared = rows_compared(columns)
    for query in (
        f"SELECT id FROM w WHERE {compared}",
        f"SELECT id, {compared} AS a FROM w",
        f"SELECT COUNT(*) AS n FROM w WHERE {compared}",
    ):
        try:
            deeper(frames, lambda query=query: db.create_view("v", query, refresh=refresh))  # type: ignore[misc]
        except UnsupportedView as error:
            assert error.reason == "expressions that are nested too deeply"
            assert not db.views()
        else:
            db.drop_view("v")  # Rows that are compared in a shallow way are as good.
    insert_wide(db)
