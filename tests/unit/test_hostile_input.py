"""Input that nobody should send: each gets a clear error of ours, changes nothing, and the database goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import viewtide as vt


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.sql("CREATE TABLE t (id int PRIMARY KEY, x int, s text); INSERT INTO t VALUES (1, 2, 'a')")
        yield opened


CASES: dict[str, tuple[Callable[[vt.Database], object], type[vt.Error]]] = {
    "surrogate in a view": (
        lambda db: db.create_view("v", "SELECT id FROM t WHERE s <> '\ud800'"), vt.ProgrammingError,
    ),
    "surrogate in a statement": (lambda db: db.sql("SELECT '\ud800' AS a"), vt.ProgrammingError),
    "surrogate in the name of an index": (lambda db: db.sql('CREATE INDEX "\ud800" ON t (x)'), vt.ProgrammingError),
    "surrogate in a check": (
        lambda db: db.sql("CREATE TABLE c (id int PRIMARY KEY, b text CHECK (b <> '\ud800'))"), vt.ProgrammingError,
    ),
    "a name of the engine's own": (lambda db: db.create_view("~x", "SELECT id FROM t"), vt.InterfaceError),
    "the same in SQL": (lambda db: db.sql('CREATE MATERIALIZED VIEW "~x" AS SELECT id FROM t'), vt.InterfaceError),
    "a list as a view": (lambda db: db.view(["a"]), vt.InterfaceError),  # type: ignore[arg-type]
    "a list as a table": (lambda db: db.drop_table(["a"]), vt.InterfaceError),  # type: ignore[arg-type]
    "a list as a table to read": (lambda db: db.transaction().get(["a"], 1), vt.InterfaceError),  # type: ignore[arg-type]
    "a type modifier that is no number": (lambda db: db.sql("SELECT 1::numeric(4, upper('s'))"), vt.NotSupportedError),
    "an empty type modifier": (lambda db: db.sql('SELECT 1::numeric(4, "")'), vt.ProgrammingError),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_and_the_database_goes_on(db: vt.Database, name: str) -> None:
    attempt, kind = CASES[name]
    with pytest.raises(kind):
        attempt(db)
    assert (db.tables(), db.views()) == (["t"], [])
    db.sql("INSERT INTO t VALUES (2, 3, 'b')")
    assert db.create_view("v", "SELECT COUNT(*) AS n FROM t").get() == {"n": 2}


def test_a_parameter_may_stand_right_before_an_operator(db: vt.Database) -> None:
    assert list(db.sql("SELECT ?::numeric AS a, ?||'b' AS b", [1, "a"])) == [{"a": 1, "b": "ab"}]


def test_an_error_while_a_view_is_created_names_that_view(db: vt.Database) -> None:
    db.sql("INSERT INTO t VALUES (2, 0, 'b')")
    with pytest.raises(vt.DataError, match=r"view 'v' \(row \(2,\) of table 't'\): division by zero"):
        db.create_view("v", "SELECT MAX(10 / x) AS m FROM t")
    assert db.views() == [] and db._catalog().views == {}
