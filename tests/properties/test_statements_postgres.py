"""Statements with the rows that PostgreSQL 15 gives for them, one after the other on the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import viewtide as vt
from tests.postgres import Postgres, PostgresError
from tests.unit.test_sql_subqueries import CONDITIONS, TABLES, VALUES

pytestmark = pytest.mark.slow


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.sql(TABLES)
        yield database


def rows(result: vt.Result) -> list[tuple[object, ...]]:
    return [tuple(row[position] for position in range(len(result.columns))) for row in result]


def written(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """With the scale of decimals, and one NaN."""
    return [tuple(str(value) if isinstance(value, Decimal | float) else value for value in row) for row in found]


@pytest.fixture
def peer(postgres: Postgres) -> Iterator[Postgres]:
    postgres.executescript(TABLES)
    yield postgres
    postgres.executescript("DROP TABLE t, u")


def test_where_and_select_list_as_in_postgresql(db: vt.Database, peer: Postgres) -> None:
    for text in [
        *(f"SELECT id FROM t WHERE {condition} ORDER BY id" for condition in CONDITIONS),
        *(f"SELECT id, {value} FROM t ORDER BY id" for value in VALUES),
    ]:
        assert written(rows(db.sql(text))) == written(peer.query(text)), text


def test_update_and_delete_as_in_postgresql(db: vt.Database, peer: Postgres) -> None:
    for statement in [
        *(f"UPDATE t SET x = {value}" for value in VALUES),
        *(f"UPDATE t SET s = s || '+', x = x + 1 WHERE {condition}" for condition in CONDITIONS),
        "INSERT INTO t VALUES ((SELECT MAX(id) + 1 FROM t), 7, (SELECT y FROM u WHERE id = 3)), (90, 1, 1)",
        "INSERT INTO t SELECT id + 100, k, (SELECT COUNT(*) FROM t) FROM u",
        *(f"DELETE FROM t WHERE {condition} AND id % 2 = 0" for condition in CONDITIONS[:8]),
    ]:
        db.sql(statement)
        peer.executescript(statement)
        everything = "SELECT * FROM t ORDER BY id"
        assert written(rows(db.sql(everything))) == written(peer.query(everything)), statement


#: Statements one by one, each on what those before it left.
HISTORY = Path(__file__).with_name("statements_postgres.txt").read_text().splitlines()[1:]
TABLES_OF_HISTORY = ("p", "o", "nk", "c1")


def _ours(db: vt.Database, statement: str) -> list[tuple[object, ...]] | None:
    """The rows, None for an error."""
    try:
        return written(rows(db.sql(statement)))
    except vt.Error as error:
        assert not isinstance(error, vt.InternalError | vt.NotSupportedError), f"{statement}: {error}"
        return None


def _theirs(postgres: Postgres, statement: str) -> list[tuple[object, ...]] | None:
    try:
        return written(postgres.query(statement))
    except PostgresError:
        return None


def test_a_history_of_statements_as_in_postgresql(postgres: Postgres) -> None:
    assert len(HISTORY) > 100
    errors = 0
    try:
        with vt.connect("memory:") as db:
            for statement in HISTORY:
                found = _ours(db, statement)
                assert found == _theirs(postgres, statement), statement
                errors += found is None
    finally:
        for table in TABLES_OF_HISTORY:
            postgres.executescript(f"DROP TABLE IF EXISTS {table} CASCADE")
    assert 10 < errors < 30
