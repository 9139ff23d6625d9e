"""`db.sql` and `tx.sql`: every promise about tables, values and statements, one test each."""

from __future__ import annotations

import asyncio
import datetime
import math
import re
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import viewtide as vt
from viewtide.coordinator import build
from viewtide.row_ids import COUNTER_BITS, RowIds
from viewtide.sql_reads import EDGE_ROWS, PAGE_ROWS


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        yield database


@pytest.fixture
def shop(db: vt.Database) -> vt.Database:
    db.sql(
        """
        CREATE TABLE products (id int PRIMARY KEY, category text);
        CREATE TABLE events (id int PRIMARY KEY, product int, cost int DEFAULT 5);
        CREATE INDEX events_product ON events (product);
        INSERT INTO products VALUES (1, 'books'), (2, 'toys'), (3, NULL);
        INSERT INTO events VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30), (4, 9, NULL)
        """
    )
    return db


def rows(result: vt.Result) -> list[tuple[object, ...]]:
    return [tuple(row[position] for position in range(len(result.columns))) for row in result]


# --- tables and values ---


@pytest.mark.parametrize(
    ("type_", "written", "value"),
    [
        ("smallint", "1", 1),
        ("int", "-5", -5),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("real", "0.5", 0.5),
        ("double precision", "1e10", 1e10),
        ("float8", "'NaN'", math.nan),
        ("float8", "'-Infinity'", -math.inf),
        ("numeric(6,2)", "3.14159", Decimal("3.14")),
        ("numeric", "1.500", Decimal("1.500")),
        ("text", "'it''s'", "it's"),
        ("varchar(3)", "'abc'", "abc"),
        ("char(3)", "'ab'", "ab"),
        ("boolean", "true", True),
        ("boolean", "'off'", False),
        ("bytea", r"'\x00ff'", b"\x00\xff"),
        ("date", "'2024-02-29'", datetime.date(2024, 2, 29)),
        ("timestamp", "'2024-02-29 12:30:00.5'", datetime.datetime(2024, 2, 29, 12, 30, 0, 500_000)),
        ("timestamptz", "'2024-02-29 12:30+02'", datetime.datetime(2024, 2, 29, 10, 30, tzinfo=datetime.UTC)),
        ("text", "NULL", None),
    ],
)
def test_values_of_every_type(db: vt.Database, type_: str, written: str, value: object) -> None:
    db.sql(f"CREATE TABLE t (id int PRIMARY KEY, v {type_}); INSERT INTO t VALUES (1, {written})")
    ((_, found),) = rows(db.sql("SELECT * FROM t"))
    assert repr(found) == repr(value)


def test_json_values(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, j jsonb DEFAULT '{}')")
    db.sql("""INSERT INTO t VALUES (1, '{"b": 1, "a": [1, 2]}'), (2, ?), (3, DEFAULT), (4, NULL)""", [{"x": None}])
    assert rows(db.sql("SELECT j FROM t ORDER BY id")) == [({"a": [1, 2], "b": 1},), ({"x": None},), ({},), (None,)]
    db.sql("INSERT INTO t SELECT id + 10, j FROM t WHERE id = 1; UPDATE t SET j = '[1]' WHERE id = 1")
    db.sql("INSERT INTO t VALUES (2, '5') ON CONFLICT (id) DO UPDATE SET j = excluded.j")
    db.sql("""ALTER TABLE t ADD k json DEFAULT '{"q": 1}'""")
    assert rows(db.sql("SELECT j, k FROM t WHERE id IN (1, 2, 11) ORDER BY id")) == [
        ([1], {"q": 1}),
        (5, {"q": 1}),
        ({"a": [1, 2], "b": 1}, {"q": 1}),
    ]
    with pytest.raises(vt.DataError, match=r'invalid input syntax for type json: "\{bad" at line 1, column 26'):
        db.sql("INSERT INTO t VALUES (5, '{bad')")


def test_a_table_made_by_sql_is_a_table_of_the_python_api(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int, b text, n numeric(5,1) DEFAULT 1.25, PRIMARY KEY (a, b))")
    with db.transaction() as tx:
        tx.insert("t", {"a": 1, "b": "x"})
    with db.snapshot() as snapshot:
        assert snapshot.get("t", (1, "x")) == {"a": 1, "b": "x", "n": Decimal("1.3")}


def test_a_table_of_the_python_api_is_a_table_for_sql(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "n": vt.column(int, default=3)}, key="id")
    assert db.sql("INSERT INTO t (id) VALUES (1), (2)").rowcount == 2
    assert rows(db.sql("SELECT id, n FROM t ORDER BY id DESC")) == [(2, 3), (1, 3)]


def test_defaults_are_expressions_of_constants(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 2 * 3, b text DEFAULT 'x' || 'y', c date DEFAULT NULL)")
    db.sql("INSERT INTO t (id) VALUES (1)")
    assert rows(db.sql("SELECT a, b, c FROM t")) == [(6, "xy", None)]
    with pytest.raises(vt.ProgrammingError, match="id"):
        db.sql("CREATE TABLE u (id int PRIMARY KEY, a int DEFAULT id)")
    with pytest.raises(vt.DataError, match="division by zero"):
        db.sql("CREATE TABLE u (id int PRIMARY KEY, a int DEFAULT 1 / 0)")


def test_not_null(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)")
    with pytest.raises(vt.IntegrityError, match=re.escape("column t.a may not be NULL and has no default")):
        db.sql("INSERT INTO t (id) VALUES (1)")
    for text in ("INSERT INTO t VALUES (1, NULL)", "INSERT INTO t VALUES (1, DEFAULT)"):
        with pytest.raises(vt.IntegrityError, match=re.escape("column t.a may not be NULL")):
            db.sql(text)
    db.sql("INSERT INTO t VALUES (1, 1)")
    with pytest.raises(vt.IntegrityError, match=re.escape("column t.a may not be NULL")):
        db.sql("UPDATE t SET a = NULL")


def test_a_null_in_a_key_is_an_integrity_error(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b)); INSERT INTO t VALUES (1, 1)")
    with pytest.raises(vt.IntegrityError, match=re.escape("t.b may not be NULL")):
        db.sql("INSERT INTO t VALUES (1, NULL)")
    with pytest.raises(vt.IntegrityError, match=re.escape("t.a may not be NULL")):
        db.sql("UPDATE t SET a = NULL")


def test_a_duplicate_key_is_an_integrity_error(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    for text in ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2), (2)", "INSERT INTO t SELECT id FROM t"):
        with pytest.raises(vt.IntegrityError, match="exists already") as raised:
            db.sql(text)
        assert "ON CONFLICT" in raised.value.hint
    assert rows(db.sql("TABLE t")) == [(1,)]


def test_overflow_of_a_stored_int_is_a_data_error(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 9223372036854775807)")
    with pytest.raises(vt.DataError, match="out of range"):
        db.sql("UPDATE t SET n = n + 1")
    with pytest.raises(vt.DataError, match="out of range"):
        db.sql("INSERT INTO t VALUES (2, 9223372036854775808)")


def test_integer_division_truncates_toward_zero(db: vt.Database) -> None:
    assert rows(db.sql("SELECT -7 / 2, -7 % 2, 7 / -2")) == [(-3, -1, -3)]
    with pytest.raises(vt.DataError, match="division by zero"):
        db.sql("SELECT 1 / 0")


def test_text_that_is_too_long_is_refused_but_blanks_are_cut(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, s varchar(3)); INSERT INTO t VALUES (1, 'abc   ')")
    assert rows(db.sql("SELECT s FROM t")) == [("abc",)]
    with pytest.raises(vt.DataError, match="value too long"):
        db.sql("UPDATE t SET s = 'abcd'")
    db.sql("UPDATE t SET s = 'abcd'::varchar(3)")
    assert rows(db.sql("SELECT s FROM t")) == [("abc",)]


def test_identifiers_fold_unless_quoted(db: vt.Database) -> None:
    db.sql('CREATE TABLE T (Id int PRIMARY KEY, "N" int); INSERT INTO t (ID, "N") VALUES (1, 2)')
    assert db.sql('SELECT iD, "N" FROM T').columns == ("id", "N")
    with pytest.raises(vt.ProgrammingError, match="unknown column n"):
        db.sql("SELECT n FROM t")


# --- tables without a primary key ---


def test_a_table_without_primary_key_takes_duplicates(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    result = db.sql("SELECT * FROM t")
    assert result.columns == ("a", "b")
    assert sorted(rows(result), key=repr) == [(1, "x"), (1, "x"), (None, None)]


def test_update_and_delete_act_on_every_matching_row_without_a_key(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (1, 'x'), (2, 'y')")
    assert db.sql("UPDATE t SET b = 'z' WHERE a = 1").rowcount == 2
    assert sorted(rows(db.sql("TABLE t"))) == [(1, "z"), (1, "z"), (2, "y")]
    assert db.sql("DELETE FROM t WHERE b = 'z'").rowcount == 2
    assert rows(db.sql("TABLE t")) == [(2, "y")]


def test_the_row_id_cannot_be_named(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int)")
    for text in (
        'SELECT "" FROM t',
        'INSERT INTO t ("") VALUES (1)',
        'UPDATE t SET "" = 1',
        "INSERT INTO t VALUES (1, 2)",
    ):
        with pytest.raises(vt.ProgrammingError):
            db.sql(text)


def test_rows_without_a_key_come_in_the_order_of_insertion(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int)")
    for n in (5, 3, 4):
        db.sql("INSERT INTO t VALUES (?)", [n])
    assert rows(db.sql("SELECT a FROM t")) == [(5,), (3,), (4,)]


def test_row_ids_survive_a_restart(tmp_path: Path) -> None:
    for n in range(3):
        with vt.connect(tmp_path / "d") as db:
            db.sql("CREATE TABLE IF NOT EXISTS t (a int)")
            db.sql("INSERT INTO t VALUES (?), (?)", [n, n])
    with vt.connect(tmp_path / "d") as db:
        assert [row[0] for row in db.sql("SELECT a FROM t")] == [0, 0, 1, 1, 2, 2]


def test_row_ids_stay_above_stored_ones_when_the_clock_goes_back(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)")
    ltm = db._engine.ltm
    stored = ltm.tables.by_name["t"]
    newest = [values[0] for _, values in ltm.scan(stored.versions, b"", b"\xff", 2**62 - 1)][-1]
    ids = RowIds(ltm, lambda: 1000)
    assert list(ids.take(stored, 2)) == [newest + 1, newest + 2]
    assert list(ids.take(stored, 1)) == [newest + 3]


def test_row_ids_follow_the_clock(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int)")
    stored = db._engine.ltm.tables.by_name["t"]
    now = [5_000]
    ids = RowIds(db._engine.ltm, lambda: now[0])
    first = ids.take(stored, 3)
    assert first[0] == 5_000 << COUNTER_BITS
    now[0] = 4_000
    assert ids.take(stored, 1)[0] == first[-1] + 1
    now[0] = 6_000
    assert ids.take(stored, 1)[0] == 6_000 << COUNTER_BITS


def test_writers_in_many_threads_get_different_row_ids(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int)")

    def write(number: int) -> None:
        for _ in range(20):
            db.sql("INSERT INTO t VALUES (?), (?)", [number, number])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(db.sql("SELECT a, count(*) FROM t GROUP BY a ORDER BY a")) == [(n, 40) for n in range(4)]


# --- parameters ---


def test_parameters_by_position(db: vt.Database) -> None:
    result = db.sql("SELECT ? + 1 AS a, '?' AS b, ? AS c -- ?\n /* ? */", [41, "x"])
    assert rows(result) == [(42, "?", "x")]


def test_parameters_by_name(db: vt.Database) -> None:
    assert rows(db.sql("SELECT :n * :n AS a, ':n' AS b, '5'::int AS c", {"n": 7})) == [(49, ":n", 5)]


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        ("SELECT ?", None, "1 parameter, values given: 0"),
        ("SELECT ?", [1, 2], "1 parameter, values given: 2"),
        ("SELECT 1", [1], "0 parameters, values given: 1"),
        ("SELECT :a", {"b": 1}, "no value for parameter :a"),
        ("SELECT :a", [1], "needs a mapping"),
        ("SELECT ?", {"a": 1}, "a mapping for"),
        ("SELECT ?, :a", [1], "both ? and :name"),
        ("SELECT ?", "x", "must be a list or a mapping"),
        ("SELECT ?", [object()], "no SQL value"),
    ],
)
def test_wrong_parameters(db: vt.Database, text: str, params: object, message: str) -> None:
    with pytest.raises(vt.ProgrammingError, match=re.escape(message)):
        db.sql(text, params)  # type: ignore[arg-type]


VALUES = st.one_of(
    st.none(),
    st.text(),
    st.sampled_from(["'; DROP TABLE t; --", "?", ":a", "\\", "''", "$$", "\x00", "/*"]),
)


@settings(deadline=None, max_examples=60)
@given(VALUES)
def test_a_parameter_is_a_value_whatever_it_holds(value: str | None) -> None:
    with vt.connect("memory:") as db:
        db.sql("CREATE TABLE t (id int PRIMARY KEY, s text); INSERT INTO t VALUES (1, ?)", [value])
        assert rows(db.sql("SELECT s FROM t WHERE s IS NOT DISTINCT FROM :s", {"s": value})) == [(value,)]


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        2**63 - 1,
        -(2**63),
        1.5,
        -0.1,
        math.inf,
        True,
        Decimal("1.50"),
        Decimal(5),
        b"\x00x",
        datetime.date(1, 1, 1),
        datetime.datetime(2024, 1, 2, 3, 4, 5, 6),
        datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    ],
)
def test_parameters_of_every_type_come_back(db: vt.Database, value: object) -> None:
    ((found,),) = rows(db.sql("SELECT ? AS v", [value]))
    assert found == value
    assert type(found) is type(value)


# --- INSERT ---


def test_insert_with_a_column_list(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 7, b text)")
    assert db.sql("INSERT INTO t (b, id) VALUES ('x', 1), ('y', 2)").rowcount == 2
    assert rows(db.sql("SELECT * FROM t")) == [(1, 7, "x"), (2, 7, "y")]


def test_insert_default_and_fewer_values_than_columns(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY DEFAULT 1, a int DEFAULT 7, b text)")
    db.sql("INSERT INTO t VALUES (2), (3); INSERT INTO t VALUES (4, DEFAULT, 'x'); INSERT INTO t DEFAULT VALUES")
    assert rows(db.sql("SELECT * FROM t")) == [(1, 7, None), (2, 7, None), (3, 7, None), (4, 7, "x")]


def test_insert_from_a_query_reads_before_it_writes(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n numeric(5,1)); INSERT INTO t VALUES (1, 1.5), (2, 2.5)")
    assert db.sql("INSERT INTO t SELECT id + 10, n FROM t WHERE n > 2").rowcount == 1
    assert db.sql("INSERT INTO t (id) SELECT id + 100 FROM t").rowcount == 3
    assert rows(db.sql("SELECT id, n FROM t ORDER BY id")) == [
        (1, Decimal("1.5")), (2, Decimal("2.5")), (12, Decimal("2.5")), (101, None), (102, None), (112, None)
    ]  # fmt: skip


def test_literals_of_an_inserted_query_take_the_type_of_their_column(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, d date, n int)")
    db.sql("INSERT INTO t SELECT '5', '2024-01-02', NULL")
    assert rows(db.sql("TABLE t")) == [(5, datetime.date(2024, 1, 2), None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO t VALUES (1, 2, 3, 4)", "INSERT has more expressions than target columns"),
        ("INSERT INTO t (a, b) VALUES (1)", "INSERT has more target columns than expressions"),
        ("INSERT INTO t (a, b) SELECT 1", "INSERT has more target columns than expressions"),
        ("INSERT INTO t VALUES (1), (2, 3)", "VALUES lists must all be the same length"),
        ("INSERT INTO t (a, z) VALUES (1, 2)", "table 't' has no column 'z' at line 1, column 19"),
        ("INSERT INTO u VALUES (1)", "there is no table 'u' at line 1, column 13"),
        ("INSERT INTO t VALUES (a)", "unknown column a at line 1, column 23"),
        ("INSERT INTO t (a) VALUES (true)", "column 'a' is of type integer but expression is of type boolean"),
        ("INSERT INTO t (a) VALUES ('1'::text)", "column 'a' is of type integer but expression is of type text"),
        ("INSERT INTO t (a) VALUES (count(*))", "aggregate functions are not allowed in VALUES"),
    ],
)
def test_wrong_inserts(db: vt.Database, text: str, message: str) -> None:
    db.sql("CREATE TABLE t (a int PRIMARY KEY, b int, c text)")
    with pytest.raises(vt.ProgrammingError, match=re.escape(message)):
        db.sql(text)


def test_assignment_casts(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, i int, f float8, n numeric(6,2), s text)")
    db.sql("INSERT INTO t VALUES (1, 2.5, 1, 1.005, 12), (2, -2.5, 1.5, 2, 1.50)")
    db.sql("INSERT INTO t VALUES (3, 2.5::float8, 7::numeric, 0.125::float8, true)")
    assert rows(db.sql("SELECT i, f, n, s FROM t ORDER BY id")) == [
        (3, 1.0, Decimal("1.01"), "12"),
        (-3, 1.5, Decimal("2.00"), "1.50"),
        (2, 7.0, Decimal("0.13"), "true"),
    ]


# --- ON CONFLICT ---


@pytest.fixture
def stock(db: vt.Database) -> vt.Database:
    db.sql(
        "CREATE TABLE stock (id int PRIMARY KEY, n int, note text); INSERT INTO stock VALUES (1, 10, 'a'), (2, 20, 'b')"
    )
    return db


def test_on_conflict_do_nothing(stock: vt.Database) -> None:
    assert stock.sql("INSERT INTO stock VALUES (1, 0), (3, 30), (3, 31) ON CONFLICT DO NOTHING").rowcount == 1
    assert stock.sql("INSERT INTO stock VALUES (2, 0) ON CONFLICT (id) DO NOTHING").rowcount == 0
    assert rows(stock.sql("SELECT id, n FROM stock")) == [(1, 10), (2, 20), (3, 30)]


def test_on_conflict_do_update(stock: vt.Database) -> None:
    text = """
        INSERT INTO stock AS s VALUES (1, 5, 'x'), (3, 7, 'y')
        ON CONFLICT (id) DO UPDATE SET n = s.n + excluded.n, note = s.note || excluded.note
    """
    assert stock.sql(text).rowcount == 2
    assert rows(stock.sql("TABLE stock")) == [(1, 15, "ax"), (2, 20, "b"), (3, 7, "y")]


def test_on_conflict_do_update_where(stock: vt.Database) -> None:
    text = """
        INSERT INTO stock VALUES (1, 5), (2, 5) ON CONFLICT (id)
        DO UPDATE SET (n, note) = (excluded.n, DEFAULT) WHERE stock.n > 15
    """
    assert stock.sql(text).rowcount == 1
    assert rows(stock.sql("TABLE stock")) == [(1, 10, "a"), (2, 5, None)]


def test_on_conflict_do_update_may_change_the_key(stock: vt.Database) -> None:
    stock.sql("INSERT INTO stock VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET id = 7")
    assert rows(stock.sql("SELECT id FROM stock")) == [(2,), (7,)]
    with pytest.raises(vt.IntegrityError, match="exists already"):
        stock.sql("INSERT INTO stock VALUES (2, 5), (9, 9) ON CONFLICT (id) DO UPDATE SET id = 7")
    assert rows(stock.sql("SELECT id FROM stock")) == [(2,), (7,)]


def test_on_conflict_do_update_cannot_affect_a_row_twice(stock: vt.Database) -> None:
    for text in (
        "INSERT INTO stock VALUES (1, 1), (1, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
        "INSERT INTO stock VALUES (5, 1), (5, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
    ):
        with pytest.raises(vt.ProgrammingError, match="cannot affect a row a second time"):
            stock.sql(text)
    assert rows(stock.sql("SELECT id, n FROM stock")) == [(1, 10), (2, 20)]


def test_on_conflict_needs_a_unique_constraint(stock: vt.Database) -> None:
    with pytest.raises(vt.ProgrammingError, match="there is no unique constraint that matches ON CONFLICT"):
        stock.sql("INSERT INTO stock VALUES (1, 5) ON CONFLICT (n) DO NOTHING")


def test_on_conflict_of_a_unique_constraint(db: vt.Database) -> None:
    db.sql(
        "CREATE TABLE t (id int PRIMARY KEY, mail text UNIQUE, n int); INSERT INTO t VALUES (1, 'a', 1), (2, NULL, 2)"
    )
    assert db.sql("INSERT INTO t VALUES (3, 'a', 3), (4, NULL, 4) ON CONFLICT (mail) DO NOTHING").rowcount == 1
    db.sql("INSERT INTO t VALUES (5, 'a', 5) ON CONFLICT (mail) DO UPDATE SET n = excluded.n")
    assert rows(db.sql("TABLE t")) == [(1, "a", 5), (2, None, 2), (4, None, 4)]


def test_upserts_inside_a_transaction_see_its_own_rows(stock: vt.Database) -> None:
    with stock.transaction() as tx:
        for _ in range(3):
            tx.sql("INSERT INTO stock VALUES (9, 1) ON CONFLICT (id) DO UPDATE SET n = stock.n + 1")
        tx.sql("DELETE FROM stock WHERE id = 1")
        tx.sql("INSERT INTO stock VALUES (1, 77) ON CONFLICT (id) DO UPDATE SET n = 0")
    assert rows(stock.sql("SELECT id, n FROM stock")) == [(1, 77), (2, 20), (9, 3)]


# --- UPDATE, DELETE, TRUNCATE ---


def test_update_with_any_where(shop: vt.Database) -> None:
    assert shop.sql("UPDATE events SET cost = cost + 1 WHERE product = 1").rowcount == 2
    assert shop.sql("UPDATE events SET cost = DEFAULT WHERE cost IS NULL").rowcount == 1
    assert shop.sql("UPDATE events e SET cost = 0 WHERE (e.id, e.product) = (3, 2)").rowcount == 1
    assert (
        shop.sql("UPDATE events SET cost = 99 WHERE id IN (SELECT id FROM products WHERE category = 'toys')").rowcount
        == 1
    )
    assert rows(shop.sql("SELECT id, cost FROM events")) == [(1, 11), (2, 99), (3, 0), (4, 5)]
    assert shop.sql("UPDATE events SET cost = 1 WHERE false").rowcount == 0
    assert shop.sql("UPDATE events SET cost = 1").rowcount == 4


def test_the_values_of_an_update_are_those_before_it(shop: vt.Database) -> None:
    shop.sql("UPDATE events SET product = cost, cost = product WHERE id < 3")
    assert rows(shop.sql("SELECT product, cost FROM events WHERE id < 3")) == [(10, 1), (20, 1)]


def test_delete_with_any_where(shop: vt.Database) -> None:
    assert shop.sql("DELETE FROM events WHERE (product, cost) IN ((1, 10), (2, 31))").rowcount == 1
    assert shop.sql("DELETE FROM events WHERE NOT EXISTS (SELECT 1 FROM products p WHERE p.id = product)").rowcount == 1
    assert rows(shop.sql("SELECT id FROM events")) == [(2,), (3,)]
    assert shop.sql("DELETE FROM events").rowcount == 2


def test_truncate_deletes_all_rows(shop: vt.Database) -> None:
    assert shop.sql("TRUNCATE TABLE events, products").rowcount == 7
    assert rows(shop.sql("SELECT count(*) FROM events")) == [(0,)]


def test_an_update_may_change_keys_in_a_chain(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    assert db.sql("UPDATE t SET id = id + 1").rowcount == 3
    assert rows(db.sql("TABLE t")) == [(2, 1), (3, 2), (4, 3)]
    db.sql("UPDATE t SET id = 6 - id")
    assert rows(db.sql("TABLE t")) == [(2, 3), (3, 2), (4, 1)]


def test_keys_that_an_update_makes_equal_are_an_integrity_error(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    for text in ("UPDATE t SET id = 5", "UPDATE t SET id = 3 WHERE id = 1", "UPDATE t SET id = id + 1 WHERE id < 3"):
        with pytest.raises(vt.IntegrityError, match="exists already"):
            db.sql(text)
    assert rows(db.sql("TABLE t")) == [(1, 1), (2, 2), (3, 3)]


def test_updates_keep_indexes_right(shop: vt.Database) -> None:
    shop.sql("UPDATE events SET product = 7, id = id + 10 WHERE product = 1")
    assert rows(shop.sql("SELECT id FROM events WHERE product = 7")) == [(11,), (12,)]
    assert rows(shop.sql("SELECT id FROM events WHERE product = 1")) == []
    with shop.snapshot() as snapshot:
        assert [row.id for row in snapshot.find("events", product=7)] == [11, 12]


def test_a_view_cannot_be_written(shop: vt.Database) -> None:
    shop.sql("CREATE MATERIALIZED VIEW v AS SELECT product, sum(cost) AS cost FROM events GROUP BY product")
    for text in ("INSERT INTO v VALUES (1, 2)", "UPDATE v SET cost = 1", "DELETE FROM v", "TRUNCATE v"):
        with pytest.raises(vt.ProgrammingError, match="cannot change materialized view 'v'"):
            shop.sql(text)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 2)), max_size=6), st.integers(0, 6), st.integers(-2, 2))
def test_updates_of_keys_match_a_model(moves: list[tuple[int, int]], low: int, step: int) -> None:
    """UPDATE t SET id = id + step WHERE id >= low, on a bag of keys, against a dict."""
    start = dict(moves)
    with vt.connect("memory:") as db:
        db.sql("CREATE TABLE t (id int PRIMARY KEY, n int)")
        with db.transaction() as tx:
            tx.insert("t", [{"id": key, "n": value} for key, value in start.items()])
        moved = {key + step if key >= low else key for key in start}
        try:
            db.sql("UPDATE t SET id = id + :step WHERE id >= :low", {"step": step, "low": low})
        except vt.IntegrityError:
            assert len(moved) < len(start)
            expected = start
        else:
            assert len(moved) == len(start)
            expected = {key + step if key >= low else key: value for key, value in start.items()}
        assert rows(db.sql("SELECT id, n FROM t ORDER BY id")) == sorted(expected.items())


# --- SELECT ---


def test_select_with_joins_groups_order_and_limit(shop: vt.Database) -> None:
    result = shop.sql(
        """
        SELECT p.category, sum(e.cost) AS cost, count(*) AS n FROM events e JOIN products p ON e.product = p.id
        GROUP BY p.category HAVING sum(e.cost) > 0 ORDER BY cost DESC, category LIMIT 2 OFFSET 0
        """
    )
    assert result.columns == ("category", "cost", "n")
    assert result.rowcount == 2
    assert rows(result) == [("books", 30, 2), ("toys", 30, 1)]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("SELECT * FROM events WHERE id = 3", "1 key by primary key (id)"),
        ("SELECT * FROM events WHERE id IN (1, 2)", "2 keys by primary key (id)"),
        ("SELECT * FROM events WHERE product = 3", "1 value by index (product)"),
        ("SELECT * FROM events WHERE id > 3", "range of primary key (id)"),
        ("SELECT * FROM events WHERE cost = 3", "all rows"),
        ("UPDATE events SET cost = 1 WHERE product = 3", "1 value by index (product)"),
        ("DELETE FROM events WHERE id = 3", "1 key by primary key (id)"),
        ("INSERT INTO products SELECT id, NULL FROM events WHERE id = 3", "1 key by primary key (id)"),
    ],
)
def test_statements_use_keys_and_indexes(shop: vt.Database, query: str, path: str) -> None:
    result = shop.sql(f"EXPLAIN {query}")
    assert result.columns == ("plan",)
    assert path in "\n".join(str(row[0]) for row in result)


@pytest.mark.parametrize(
    "where",
    [
        "id = 3",
        "id IN (1, 2, 9)",
        "id >= 2 AND id < 4",
        "product = 1",
        "product IN (1, 2)",
        "id > 5",
        "product IS NULL",
    ],
)
def test_a_select_in_a_transaction_sees_its_own_writes(shop: vt.Database, where: str) -> None:
    writes = """
        INSERT INTO events VALUES (9, 1, 1), (0, 2, 2); UPDATE events SET product = 1 WHERE id = 3;
        DELETE FROM events WHERE id = 2; UPDATE events SET product = NULL WHERE id = 1
    """
    query = f"SELECT * FROM events WHERE {where} ORDER BY id"
    with shop.transaction() as tx:
        tx.sql(writes)
        inside = rows(tx.sql(query))
        backwards = rows(tx.sql(f"{query} DESC"))
        limited = rows(tx.sql(f"{query} DESC LIMIT 1"))
    assert inside == rows(shop.sql(query))
    assert backwards == inside[::-1]
    assert limited == backwards[:1]


def test_pages_of_a_scan_in_both_directions(db: vt.Database) -> None:
    count = EDGE_ROWS + 2 * PAGE_ROWS + 3
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    with db.transaction() as tx:
        tx.insert("t", [{"id": n} for n in range(count)])
    with db.transaction() as tx:
        tx.sql("DELETE FROM t WHERE id = 5; INSERT INTO t VALUES (-1)")
        expected = [-1, *(n for n in range(count) if n != 5)]
        assert [row[0] for row in tx.sql("SELECT id FROM t")] == expected
        last = tx.sql(f"SELECT id FROM t ORDER BY id DESC LIMIT {EDGE_ROWS + 2 * PAGE_ROWS}")
        assert [row[0] for row in last] == expected[::-1][: EDGE_ROWS + 2 * PAGE_ROWS]
        assert [row[0] for row in tx.sql("SELECT id FROM t ORDER BY id DESC LIMIT 3")] == expected[-1:-4:-1]


def test_a_key_that_is_too_long_for_a_table_is_simply_not_there(db: vt.Database) -> None:
    db.sql(
        "CREATE TABLE t (s text PRIMARY KEY, v text); CREATE INDEX ON t (v); INSERT INTO t VALUES ('a', ?)", ["x" * 900]
    )
    assert rows(db.sql("SELECT * FROM t WHERE s = ?", ["x" * 900])) == []
    assert len(rows(db.sql("SELECT s FROM t WHERE v = ?", ["x" * 900]))) == 1
    assert rows(db.sql("SELECT s FROM t WHERE v = ?", ["x" * 899 + "y"])) == []


def test_what_a_select_read_is_validated_at_commit(shop: vt.Database) -> None:
    for text in (
        "SELECT * FROM events WHERE product = 1",
        "SELECT * FROM events WHERE id = 55",
        "SELECT count(*) FROM events",
    ):
        with pytest.raises(vt.TransactionConflict), shop.transaction() as tx:
            tx.sql(text)
            tx.sql("UPDATE products SET category = 'x' WHERE id = 3")
            shop.sql("INSERT INTO events VALUES (55, 1, 1)")
        shop.sql("DELETE FROM events WHERE id = 55")


def test_what_a_select_did_not_read_is_no_conflict(shop: vt.Database) -> None:
    with shop.transaction() as tx:
        assert rows(tx.sql("SELECT id FROM events WHERE id < 3")) == [(1,), (2,)]
        tx.sql("UPDATE products SET category = 'x' WHERE id = 3")
        shop.sql("INSERT INTO events VALUES (55, 1, 1)")
    assert rows(shop.sql("SELECT category FROM products WHERE id = 3")) == [("x",)]


@pytest.mark.parametrize(("order", "seen", "unseen"), [("", 0, 3 * PAGE_ROWS), (" DESC", 4 * PAGE_ROWS - 1, PAGE_ROWS)])
def test_a_select_that_stops_early_has_read_what_it_saw(db: vt.Database, order: str, seen: int, unseen: int) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY)")
    with db.transaction() as tx:
        tx.insert("t", [{"id": n, "n": 0} for n in range(4 * PAGE_ROWS)])
    with db.transaction() as tx:
        assert rows(tx.sql(f"SELECT id FROM t ORDER BY id{order} LIMIT 1")) == [(seen,)]
        tx.sql("INSERT INTO u VALUES (1)")
        db.sql("UPDATE t SET n = 1 WHERE id = ?", [unseen])
    with pytest.raises(vt.TransactionConflict), db.transaction() as tx:
        tx.sql(f"SELECT id FROM t ORDER BY id{order} LIMIT 1")
        tx.sql("INSERT INTO u VALUES (2)")
        db.sql("UPDATE t SET n = 2 WHERE id = ?", [seen])


def test_a_select_alone_reads_one_snapshot(shop: vt.Database) -> None:
    result = shop.sql("SELECT e.id FROM events e JOIN products p ON p.id = e.product; SELECT count(*) FROM events")
    assert result.watermark > 0
    assert rows(result) == [(4,)]


def test_select_of_constants_and_of_columns_with_one_name(db: vt.Database) -> None:
    result = db.sql("SELECT 1, 2")
    assert result.columns == ("?column?", "?column?")
    assert rows(result) == [(1, 2)]


def test_select_from_a_view_reads_what_is_stored(shop: vt.Database) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT product, sum(cost) AS cost, count(*) AS n FROM events GROUP BY product"
    )
    assert rows(shop.sql("SELECT * FROM v WHERE product = 1")) == [(1, 30, 2)]
    assert rows(shop.sql("SELECT v.cost, p.category FROM v JOIN products p ON p.id = v.product ORDER BY p.id")) == [
        (30, "books"),
        (30, "toys"),
    ]
    assert rows(shop.sql("SELECT product FROM v ORDER BY product DESC LIMIT 2")) == [(9,), (2,)]
    assert "1 key by primary key (product)" in str(shop.sql("EXPLAIN SELECT * FROM v WHERE product = 1")[0][0])


def test_select_from_a_view_inside_a_transaction_includes_its_own_writes(shop: vt.Database) -> None:
    shop.sql("CREATE MATERIALIZED VIEW v AS SELECT product, sum(cost) AS cost FROM events GROUP BY product")
    with shop.transaction() as tx:
        tx.sql("INSERT INTO events VALUES (10, 1, 100), (11, 7, 1); DELETE FROM events WHERE product = 2")
        assert rows(tx.sql("SELECT * FROM v ORDER BY product")) == [(1, 130), (7, 1), (9, None)]
        assert rows(tx.sql("SELECT cost FROM v WHERE product IN (1, 2)")) == [(130,)]


def test_select_from_a_view_gives_rows_as_often_as_they_count(shop: vt.Database) -> None:
    shop.sql("CREATE MATERIALIZED VIEW v AS SELECT product FROM events")
    assert sorted(rows(shop.sql("SELECT * FROM v"))) == [(1,), (1,), (2,), (9,)]
    assert rows(shop.sql("SELECT count(*) FROM v")) == [(4,)]


def test_select_from_a_view_of_the_first_rows(shop: vt.Database) -> None:
    shop.sql("CREATE MATERIALIZED VIEW v AS SELECT id, cost FROM events WHERE cost > 0 ORDER BY cost DESC LIMIT 2")
    assert rows(shop.sql("SELECT * FROM v ORDER BY id")) == [(2, 20), (3, 30)]
    assert rows(shop.sql("SELECT cost FROM v WHERE id = 1")) == []
    with shop.transaction() as tx:
        tx.sql("DELETE FROM events WHERE id = 3")
        assert rows(tx.sql("SELECT id FROM v ORDER BY cost")) == [(1,), (2,)]
        assert rows(tx.sql("SELECT cost FROM v WHERE id = 1")) == [(10,)]


def test_select_from_a_view_of_extremes(shop: vt.Database) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT product, min(cost) AS low, max(cost) AS high FROM events GROUP BY product"
    )
    assert rows(shop.sql("SELECT low, high FROM v WHERE product = 1")) == [(10, 20)]
    with shop.transaction() as tx:
        tx.sql("INSERT INTO events VALUES (10, 1, 5); DELETE FROM events WHERE id = 2")
        assert rows(tx.sql("SELECT low, high FROM v WHERE product = 1")) == [(5, 10)]
        assert rows(tx.sql("SELECT product, high FROM v WHERE high >= 10 ORDER BY product")) == [(1, 10), (2, 30)]


def test_select_from_a_view_without_groups_has_one_row(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
    assert rows(db.sql("SELECT n FROM v")) == [(0,)]


def test_explain_of_a_view(shop: vt.Database) -> None:
    text = "SELECT product, sum(cost) AS cost FROM events GROUP BY product"
    planned = [row[0] for row in shop.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {text}")]
    assert "groups, key (product)" in str(planned[0])
    assert shop.views() == []
    shop.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    explained = [row[0] for row in shop.sql("EXPLAIN MATERIALIZED VIEW v")]
    assert explained[0] == "view v: groups, key (product)"
    assert explained[1:-1] == planned[1:] and str(explained[-1]).startswith("evaluators: ")


# --- CREATE, ALTER, DROP ---


def test_create_table_if_not_exists(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE IF NOT EXISTS t (x text)")
    assert rows(db.sql("TABLE t")) == [(1,)]
    with pytest.raises(vt.ProgrammingError, match="there is a table 't' already"):
        db.sql("CREATE TABLE t (id int)")


def test_alter_table_adds_and_drops_columns(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 2)")
    db.sql("ALTER TABLE t ADD COLUMN b numeric(4,1) NOT NULL DEFAULT 1.25; ALTER TABLE t ADD IF NOT EXISTS b int")
    assert rows(db.sql("TABLE t")) == [(1, 2, Decimal("1.3"))]
    db.sql("ALTER TABLE t DROP a; ALTER TABLE t DROP COLUMN IF EXISTS a; ALTER TABLE IF EXISTS u DROP a")
    assert db.sql("TABLE t").columns == ("id", "b")
    db.sql("INSERT INTO t VALUES (2, 3); UPDATE t SET b = b + 1")
    assert rows(db.sql("TABLE t")) == [(1, Decimal("2.3")), (2, Decimal("4.0"))]
    with pytest.raises(vt.ProgrammingError, match="has no column 'a'"):
        db.sql("ALTER TABLE t DROP a")
    with pytest.raises(vt.ProgrammingError, match="there is no table 'u' at line 1, column 13"):
        db.sql("ALTER TABLE u DROP a")
    with pytest.raises(vt.IntegrityError, match="NOT NULL"):
        db.sql("ALTER TABLE t ADD c int NOT NULL")


def test_drop_table(shop: vt.Database) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT product FROM events; CREATE MATERIALIZED VIEW w AS SELECT product FROM v"
    )
    with pytest.raises(vt.ProgrammingError, match="cannot drop table 'events': 'v' depends on it"):
        shop.sql("DROP TABLE events")
    shop.sql("DROP TABLE IF EXISTS events, nothing CASCADE")
    assert shop.tables() == ["products"]
    assert shop.views() == []
    shop.sql("DROP TABLE IF EXISTS events")
    with pytest.raises(vt.ProgrammingError, match="there is no table 'events' at line 1, column 12"):
        shop.sql("DROP TABLE events")


def test_indexes_by_name(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int, b int); INSERT INTO t VALUES (1, 2, 3)")
    db.sql("CREATE INDEX first ON t (a); CREATE INDEX IF NOT EXISTS first ON t (b); CREATE INDEX ON t (b, a)")
    assert "index (b, a)" in str(db.sql("EXPLAIN SELECT * FROM t WHERE a = 1 AND b = 2")[0][0])
    with pytest.raises(vt.ProgrammingError, match="there is an index 'first' already"):
        db.sql("CREATE INDEX first ON t (b)")
    db.sql("DROP INDEX first, t_b_a_idx; DROP INDEX IF EXISTS first")
    assert "all rows" in str(db.sql("EXPLAIN SELECT * FROM t WHERE a = 1 AND b = 2")[0][0])
    with pytest.raises(vt.ProgrammingError, match="there is no index 'first' at line 1, column 12"):
        db.sql("DROP INDEX first")


def test_a_unique_index_refuses_rows_that_are_there_already(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 1), (2, 1), (3, NULL), (4, NULL)")
    with pytest.raises(vt.IntegrityError, match="1 stands twice"):
        db.sql("CREATE UNIQUE INDEX u ON t (a)")
    assert db._table("t").indexes == ()
    db.sql("DELETE FROM t WHERE id = 2; CREATE UNIQUE INDEX u ON t (a)")
    assert [unique.name for unique in db._table("t").uniques] == ["u"]
    db.sql("DROP INDEX u")
    assert db._table("t").uniques == ()


def _count_changes(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each change of the catalog from here on."""
    changes: list[int] = []
    change = db._engine.change_catalog_at

    def counted(*args: Any, **kwargs: Any) -> None:
        change(*args, **kwargs)
        changes.append(1)

    monkeypatch.setattr(db._engine, "change_catalog_at", counted)
    return changes


def test_what_one_statement_drops_goes_in_one_change(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash leaves all of it or nothing."""
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int, b int); CREATE TABLE u (id int PRIMARY KEY)")
    for name, below in (("v", "t"), ("w", "v"), ("x", "w"), ("y", "u"), ("z", "u")):
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT id FROM {below}")
    db.sql("CREATE INDEX i ON t (a); CREATE INDEX j ON t (b)")
    changes = _count_changes(db, monkeypatch)
    with pytest.raises(vt.ProgrammingError, match=r"cannot drop view 'w': 'x' depends on it.*add CASCADE"):
        db.sql("DROP MATERIALIZED VIEW y, v, w")
    with pytest.raises(vt.ProgrammingError, match="there is no index 'k'"):
        db.sql("DROP INDEX i, k")
    assert db.views() == ["v", "w", "x", "y", "z"] and not changes
    db.sql("DROP MATERIALIZED VIEW w, x")  # x depends on w, but is named, too
    assert db.views() == ["v", "y", "z"] and len(changes) == 1
    db.sql("DROP INDEX i, j, i")
    assert db._table("t").indexes == () and len(changes) == 2
    with pytest.raises(vt.ProgrammingError, match="cannot drop table 'u': 'y', 'z' depend on it"):
        db.sql("DROP TABLE u, t")
    db.sql("DROP TABLE t, u, t CASCADE")
    assert db.tables() == db.views() == [] and len(changes) == 3
    db.sql("DROP TABLE IF EXISTS t; DROP MATERIALIZED VIEW IF EXISTS v; DROP INDEX IF EXISTS i")
    assert len(changes) == 3


def test_a_unique_index_of_an_empty_table_is_one_change(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
    changes = _count_changes(db, monkeypatch)
    db.sql("CREATE UNIQUE INDEX ON t (a)")
    assert len(changes) == 1
    db.sql("INSERT INTO t VALUES (1, 1), (2, NULL), (3, NULL)")
    with pytest.raises(vt.IntegrityError, match="t_a_idx"):
        db.sql("INSERT INTO t VALUES (4, 1)")
    assert "index (a)" in str(db.sql("EXPLAIN SELECT * FROM t WHERE a = 1")[0][0])
    assert db.sql("SELECT id FROM t WHERE a = 1") == [{"id": 1}]


def test_constraints_stand_in_the_table(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (a int CHECK (a > 0) UNIQUE, b int, CHECK (a < b), CONSTRAINT ab UNIQUE (b, a))")
    table = db._table("t")
    assert [(check.name, check.text) for check in table.checks] == [("t_a_check", "a > 0"), ("t_check", "a < b")]
    assert [(unique.name, unique.columns) for unique in table.uniques] == [("t_a_key", (1,)), ("ab", (2, 1))]
    assert [(index.name, index.columns) for index in table.indexes] == [("t_a_key", (1,)), ("ab", (2, 1))]
    with pytest.raises(vt.ProgrammingError, match="argument of CHECK must be type boolean"):
        db.sql("CREATE TABLE u (a int CHECK (a + 1))")
    with pytest.raises(vt.ProgrammingError, match="unknown column c"):
        db.sql("CREATE TABLE u (a int CHECK (c > 0))")


def test_views_by_sql(shop: vt.Database) -> None:
    text = "SELECT product, sum(cost) AS cost FROM events GROUP BY product"
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (refresh = 'sync', layout = 'global') AS {text}")
    shop.sql("CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1 AS one")
    assert shop.view("v").status().sql == text
    shop.sql("REFRESH MATERIALIZED VIEW v; ALTER MATERIALIZED VIEW v SET (refresh = 'sync')")
    shop.sql("ALTER MATERIALIZED VIEW IF EXISTS nothing SET (refresh = 'sync')")
    assert shop.view("v").verify().ok
    shop.sql("CREATE MATERIALIZED VIEW w AS SELECT cost FROM v")
    with pytest.raises(vt.ProgrammingError, match="'w' depends on it"):
        shop.sql("DROP MATERIALIZED VIEW v")
    shop.sql("DROP MATERIALIZED VIEW v, w CASCADE; DROP MATERIALIZED VIEW IF EXISTS v")
    assert shop.views() == []
    with pytest.raises(vt.ProgrammingError, match="there is no view 'v' at line 1, column 24"):
        shop.sql("DROP MATERIALIZED VIEW v")


def test_errors_in_a_view_tell_the_place_in_the_whole_text(shop: vt.Database) -> None:
    with pytest.raises(vt.ProgrammingError, match="unknown column nothing at line 3, column 10"):
        shop.sql("SELECT 1;\nCREATE MATERIALIZED VIEW v AS\n  SELECT nothing FROM events")
    with pytest.raises(vt.UnsupportedView) as raised:
        shop.sql("CREATE MATERIALIZED VIEW v AS\n SELECT random() AS r FROM events")
    assert raised.value.place == (2, 9)
    assert str(raised.value).startswith("not supported: volatile function random at line 2, column 9")


@pytest.mark.parametrize(
    ("query", "at"),
    [
        ("SELECT e.id FROM events e, products p", "products p"),
        ("SELECT e.id\n FROM events e JOIN products p ON e.id < p.id", "products p"),
        ("SELECT id FROM events WHERE NOT EXISTS (SELECT 1 FROM products)", "1 FROM products"),
    ],
)
@pytest.mark.parametrize("statement", ["CREATE", "EXPLAIN CREATE"])
def test_refusals_of_the_plan_tell_the_place_in_the_whole_text(
    shop: vt.Database, statement: str, query: str, at: str
) -> None:
    text = f"SELECT 1;\n{statement} MATERIALIZED VIEW v AS {query}"
    with pytest.raises(vt.UnsupportedView, match="joins without any equality") as raised:
        shop.sql(text)
    before = text[: text.index(at)].split("\n")
    assert raised.value.place == (len(before), len(before[-1]) + 1)
    assert shop.views() == []


# --- texts and transactions ---


def test_the_statements_of_one_text_are_one_transaction(shop: vt.Database) -> None:
    with pytest.raises(vt.IntegrityError):
        shop.sql("DELETE FROM products; INSERT INTO events VALUES (1, 1)")
    assert rows(shop.sql("SELECT count(*) FROM products")) == [(3,)]
    before = shop.status().commits
    shop.sql("INSERT INTO products VALUES (7); UPDATE products SET category = 'x' WHERE id = 7; DELETE FROM events")
    assert shop.status().commits == before + 1


def test_a_statement_that_changes_tables_commits_by_itself(db: vt.Database) -> None:
    with pytest.raises(vt.DataError):
        db.sql(
            """
            CREATE TABLE t (id int PRIMARY KEY);
            INSERT INTO t VALUES (1);
            CREATE TABLE u (id int PRIMARY KEY);
            INSERT INTO t VALUES (2);
            SELECT 1 / 0
            """
        )
    assert db.tables() == ["t", "u"]
    assert rows(db.sql("TABLE t")) == [(1,)]


def test_nothing_runs_if_a_later_statement_is_no_sql(db: vt.Database) -> None:
    with pytest.raises(vt.ProgrammingError, match="line 1, column 39"):
        db.sql("CREATE TABLE t (id int PRIMARY KEY);  FROB")
    assert db.tables() == []


def test_the_result_is_that_of_the_last_statement(shop: vt.Database) -> None:
    assert rows(shop.sql("DELETE FROM events; SELECT count(*) AS n FROM events")) == [(0,)]
    result = shop.sql("SELECT 1; INSERT INTO events VALUES (1), (2)")
    assert (result.rowcount, list(result), result.columns) == (2, [], ())
    assert result.watermark > 0
    assert shop.sql("CREATE TABLE u (id int)").rowcount == 0


@pytest.mark.parametrize("text", ["BEGIN", "SELECT 1; COMMIT", "ROLLBACK", "SAVEPOINT s", "START TRANSACTION"])
def test_transaction_statements_are_refused_with_a_hint(db: vt.Database, text: str) -> None:
    with pytest.raises(vt.ProgrammingError) as raised:
        db.sql(text)
    assert "db.transaction()" in raised.value.hint
    with pytest.raises(vt.ProgrammingError, match="are not for sql"), db.transaction() as tx:
        tx.sql(text)


def test_tables_cannot_be_changed_inside_a_transaction(db: vt.Database) -> None:
    with pytest.raises(vt.ProgrammingError) as raised, db.transaction() as tx:
        tx.sql("SELECT 1; CREATE TABLE t (id int)")
    assert "at line 1, column 11" in raised.value.message
    assert "db.sql()" in raised.value.hint
    assert db.tables() == []


def test_sql_and_the_python_api_in_one_transaction(shop: vt.Database) -> None:
    with shop.transaction() as tx:
        tx.insert("events", {"id": 10, "product": 3, "cost": 1})
        assert tx.sql("UPDATE events SET cost = cost + 1 WHERE product = 3").rowcount == 1
        row = tx.get("events", 10)
        assert row is not None
        assert row.cost == 2
        tx.sql("DELETE FROM events WHERE id = 10")
        assert tx.get("events", 10) is None
        assert tx.sql("INSERT INTO events VALUES (10, 4)").rowcount == 1
    assert rows(shop.sql("SELECT product, cost FROM events WHERE id = 10")) == [(4, 5)]


def test_a_transaction_that_has_ended_takes_no_sql(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.sql("SELECT 1")
    with pytest.raises(vt.InterfaceError, match="committed"):
        tx.sql("SELECT 1")


def test_a_statement_that_fails_leaves_the_transaction_as_it_was(shop: vt.Database) -> None:
    with shop.transaction() as tx:
        tx.sql("INSERT INTO events VALUES (10, 1, 1)")
        for text in ("INSERT INTO events VALUES (11, 1), (10, 1)", "UPDATE events SET cost = 10 / (id - 10)"):
            with pytest.raises(vt.DatabaseError):
                tx.sql(text)
    assert rows(shop.sql("SELECT id FROM events WHERE id > 9")) == [(10,)]
    assert rows(shop.sql("SELECT cost FROM events WHERE id = 1")) == [(10,)]


def test_conflicts_of_a_text_are_retried(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)")

    def count() -> None:
        for _ in range(25):
            db.sql("UPDATE t SET n = n + 1 WHERE id = 1")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(db.sql("SELECT n FROM t")) == [(100,)]


def test_inserts_of_constants_read_nothing(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    with db.transaction() as tx:
        tx.sql("INSERT INTO t VALUES (1), (2)")
        assert tx._snapshot is None


@pytest.mark.parametrize("text", ["", "  ;; -- nothing"])
def test_an_empty_text(db: vt.Database, text: str) -> None:
    with pytest.raises(vt.ProgrammingError, match="the SQL text is empty"):
        db.sql(text)


def test_sql_is_text(db: vt.Database) -> None:
    with pytest.raises(vt.InterfaceError, match="SQL is text, not bytes"):
        db.sql(b"SELECT 1")  # type: ignore[arg-type]


def test_a_closed_database_runs_nothing() -> None:
    db = vt.connect("memory:")
    db.close()
    for text in ("SELECT 1", "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "DROP TABLE IF EXISTS t"):
        with pytest.raises(vt.InterfaceError, match="closed"):
            db.sql(text)


def test_what_sql_made_survives_a_restart(tmp_path: Path) -> None:
    with vt.connect(tmp_path / "d") as db:
        db.sql(
            """
            CREATE TABLE t (id int PRIMARY KEY, a text DEFAULT 'x', n int CHECK (n > 0) UNIQUE);
            CREATE INDEX named ON t (a);
            INSERT INTO t (id, n) VALUES (1, 1), (2, 2);
            CREATE MATERIALIZED VIEW v AS SELECT a, sum(n) AS n FROM t GROUP BY a
            """
        )
        table = db._table("t")
    with vt.connect(tmp_path / "d") as db:
        assert db._table("t") == table
        assert rows(db.sql("SELECT * FROM t WHERE a = 'x'")) == [(1, "x", 1), (2, "x", 2)]
        assert rows(db.sql("SELECT * FROM v")) == [("x", 3)]


# --- asyncio ---


def test_sql_for_asyncio() -> None:
    async def work() -> None:
        async with await vt.aio.connect("memory:") as db:
            await db.sql("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO t VALUES (1)")
            await asyncio.gather(*(db.sql("UPDATE t SET n = n + ? WHERE id = 1", [1]) for _ in range(10)))
            assert rows(await db.sql("SELECT n FROM t")) == [(10,)]
            async with db.transaction() as tx:
                assert (await tx.sql("INSERT INTO t VALUES (2, 5)")).rowcount == 1
                assert rows(await tx.sql("SELECT sum(n) FROM t")) == [(15,)]
            result = await db.sql("DELETE FROM t WHERE id = :id", {"id": 2})
            assert result.rowcount == 1
            assert result.watermark > 0
            with pytest.raises(vt.ProgrammingError, match="a transaction cannot change"):
                async with db.transaction() as tx:
                    await tx.sql("DROP TABLE t")

    asyncio.run(work())


# --- join() of the builder ---


def test_join_starts_from_named_rows(shop: vt.Database) -> None:
    query = vt.query(
        vt.JoinTable("events", "e"),
        vt.JoinTable("products", "p"),
        on=[vt.JoinEdge("e.product", "p.id")],
        select={"id": "e.id", "category": "p.category"},
    )
    with shop.snapshot() as snapshot:
        assert sorted(rows(snapshot.join(query))) == [(1, "books"), (2, "books"), (3, "toys")]
        assert rows(snapshot.join(query, start={"e.id": 3})) == [(3, "toys")]
        assert sorted(rows(snapshot.join(query, start={"p.category": "books", "p.id": 1}))) == [
            (1, "books"),
            (2, "books"),
        ]
        for start in ({"x.id": 1}, {"e.id": 1, "p.id": 1}, {}):
            with pytest.raises(vt.ProgrammingError, match="aliases are e, p"):
                snapshot.join(query, start=start)
        with pytest.raises(vt.ProgrammingError, match="has no column 'nothing'"):
            snapshot.join(query, start={"e.nothing": 1})


@pytest.mark.parametrize("value", ["?", "1", "'a'"])
def test_many_rows_in_one_text_cost_the_same_each(value: str) -> None:
    """Counted in calls of functions, which no other process disturbs."""

    def calls(rows: int) -> int:
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        text = f"INSERT INTO t (b) VALUES {', '.join([f'({value})'] * rows)}"
        params = ["a"] * rows if value == "?" else None
        with vt.connect("memory:") as db:
            db.sql("CREATE TABLE t (a int, b text)")
            db.sql("INSERT INTO t VALUES (1, 'a')")
            before = sys.getprofile()
            sys.setprofile(counted)
            try:
                db.sql(text, params)
            finally:
                sys.setprofile(before)
        return count

    few, many = calls(50), calls(500)
    assert many < 10.5 * few


def test_a_unique_index_that_a_crash_interrupts_is_no_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = "CREATE UNIQUE INDEX IF NOT EXISTS ws ON e (w)"
    with monkeypatch.context() as crash, vt.connect(tmp_path / "db") as db:
        db.sql("CREATE TABLE e (id BIGINT PRIMARY KEY, w BIGINT)")
        db.sql("INSERT INTO e VALUES (1, 1)")
        crash.setattr(build, "_check_unique", Mock(side_effect=KeyboardInterrupt))
        crash.setattr(build, "take_back", Mock())
        with pytest.raises(KeyboardInterrupt):
            db.sql(make)
    with vt.connect(tmp_path / "db") as db:
        assert db._table("e").indexes == () and db._table("e").uniques == ()
        db.sql(make)
        with pytest.raises(vt.IntegrityError):
            db.sql("INSERT INTO e VALUES (2, 1)")


def test_a_unique_index_that_is_interrupted_when_it_is_there_is_taken_back_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with vt.connect("memory:") as db:
        db.sql("CREATE TABLE e (id BIGINT PRIMARY KEY, w BIGINT)")
        db.sql("INSERT INTO e VALUES (1, 1)")
        engine = db._engine
        adopted = engine.on_catalog  # type: ignore[attr-defined]

        def interrupted() -> None:
            adopted()
            if db._table("e").uniques:
                monkeypatch.undo()
                raise KeyboardInterrupt

        monkeypatch.setattr(engine, "on_catalog", interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.sql("CREATE UNIQUE INDEX ws ON e (w)")
        assert db._table("e").indexes == () and db._table("e").uniques == ()
        db.sql("INSERT INTO e VALUES (2, 1)")
        with pytest.raises(vt.IntegrityError, match="stands twice"):
            db.sql("CREATE UNIQUE INDEX ws ON e (w)")
        db.sql("DELETE FROM e WHERE id = 2")
        db.sql("CREATE UNIQUE INDEX ws ON e (w)")
        with pytest.raises(vt.IntegrityError):
            db.sql("INSERT INTO e VALUES (2, 1)")
