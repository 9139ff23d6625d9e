"""Statements and views at the edges of what is accepted: PostgreSQL 15 decides, and a refusal says why and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

import pytest

import viewtide as vt


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        yield database


def rows(result: vt.Result) -> list[tuple[object, ...]]:
    return [tuple(row[position] for position in range(len(result.columns))) for row in result]


# --- types and clauses ---


def test_a_numeric_may_be_rounded_before_the_point(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n numeric(5, -2)); INSERT INTO t VALUES (1, 12345), (2, -50), (3, 49)")
    view = db.create_view("v", "SELECT SUM(n) AS total, MAX(n) AS highest FROM t")
    assert rows(db.sql("SELECT n FROM t ORDER BY id")) == [(12300,), (-100,), (0,)]
    assert view.get() == {"total": 12200, "highest": 12300}
    assert rows(db.sql("SELECT 12345.678::numeric(5,-2), CAST(0.00123 AS numeric(3, 5))")) == [
        (Decimal(12300), Decimal("0.00123"))
    ]
    with pytest.raises(vt.DataError, match=r"column t\.n: numeric field overflow"):
        db.sql("INSERT INTO t VALUES (4, 99999999)")
    assert view.verify().ok


@pytest.fixture
def codes(db: vt.Database) -> vt.Database:
    """The blanks at the end of `code` and `kind` mean nothing, those of `note` do."""
    db.sql("CREATE TABLE codes (code char(4) PRIMARY KEY, kind char(3), note text)")
    db.sql("INSERT INTO codes VALUES ('ab', 'q  ', 'ab '), ('cd  ', 'q', 'cd'), ('e      ', NULL, 'e')")
    return db


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT code || '|', length(code) FROM codes", [("ab|", 2), ("cd|", 2), ("e|", 1)]),
        ("SELECT kind, COUNT(*) FROM codes GROUP BY kind", [("q", 2), (None, 1)]),
        ("SELECT DISTINCT kind FROM codes", [("q",), (None,)]),
        ("SELECT note FROM codes WHERE code = 'ab   '", [("ab ",)]),
        ("SELECT note FROM codes WHERE code IN ('ab ', 'cd')", [("ab ",), ("cd",)]),
        ("SELECT note FROM codes WHERE (code, kind) = ('cd ', 'q ')", [("cd",)]),
        ("SELECT code FROM codes WHERE code > 'ab '", [("cd",), ("e",)]),
        ("SELECT code FROM codes WHERE code = note", [("cd",), ("e",)]),
        ("SELECT code FROM codes WHERE code::text = 'ab ' OR code = 'cd '::text", []),
        ("SELECT CASE code WHEN 'ab ' THEN 1 END FROM codes", [(1,), (None,), (None,)]),
        ("SELECT COALESCE(kind, 'z ') || '|' FROM codes", [("q|",), ("q|",), ("z|",)]),
        ("SELECT note::char(3) || '|' FROM codes", [("ab|",), ("cd|",), ("e|",)]),
        ("SELECT 'abcd'::char(3), 'xy'::char, CAST('a  ' AS character(3)) || '|'", [("abc", "x", "a|")]),
    ],
)
def test_blanks_at_the_end_of_char_mean_nothing(
    codes: vt.Database, sql: str, expected: list[tuple[object, ...]]
) -> None:
    assert rows(codes.sql(sql)) == expected


def test_keys_of_char_have_no_blanks_at_the_end(codes: vt.Database) -> None:
    with pytest.raises(vt.IntegrityError, match="row 'ab' of table 'codes' exists already"):
        codes.sql("INSERT INTO codes VALUES ('ab ')")
    assert rows(codes.sql("SELECT note FROM codes WHERE code = ?", ["ab  "])) == [("ab ",)]
    view = codes.create_view("kinds", "SELECT kind, COUNT(*) AS n FROM codes WHERE code <> 'e ' GROUP BY kind")
    with codes.transaction() as tx:
        assert tx.get("codes", "ab ") == {"code": "ab", "kind": "q", "note": "ab "} == tx.find("codes", code="ab  ")[0]
        assert tx.update("codes", "ab ", {"kind": "r "}) and tx.delete("codes", "cd ")
        tx.upsert("codes", {"code": "ab  ", "note": "new"})
    assert rows(codes.sql("SELECT code, kind, note FROM codes")) == [("ab", "r", "new"), ("e", None, "e")]
    assert view.get("r ") == {"kind": "r", "n": 1} and view.verify().ok


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("(SELECT 3 ORDER BY 1 LIMIT 1) UNION ALL SELECT 1", [(3,), (1,)]),
        ("SELECT 1 UNION ALL (SELECT 3 LIMIT 1) ORDER BY 1 DESC LIMIT 1", [(3,)]),
        ('SELECT 1 AS "limit" UNION SELECT 1', [(1,)]),
        ("WITH q AS (SELECT 1 LIMIT 1) TABLE q UNION ALL SELECT 2", [(1,), (2,)]),
        ("SELECT 5 LIMIT 1; SELECT 1 UNION SELECT 1", [(1,)]),
    ],
)
def test_set_operations_with_an_order_where_it_may_stand(
    db: vt.Database, sql: str, expected: list[tuple[object, ...]]
) -> None:
    assert rows(db.sql(sql)) == expected


def test_group_by_nothing_is_one_group(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
    view = db.create_view("v", "SELECT COUNT(*) AS n, 7 AS seven FROM t GROUP BY ()")
    assert rows(db.sql("SELECT COUNT(*) FROM t GROUP BY ()")) == [(0,)]
    assert rows(db.sql("SELECT 1 AS x FROM t GROUP BY ()")) == [(1,)]
    assert rows(db.sql("SELECT a, COUNT(*) FROM t GROUP BY (), a")) == []
    assert view.get() == {"n": 0, "seven": 7}
    db.sql("INSERT INTO t VALUES (1, 1), (2, 1)")
    assert rows(db.sql("SELECT a, COUNT(*) FROM t GROUP BY (), (a, ())")) == [(1, 2)]
    assert view.get() == {"n": 2, "seven": 7}


def test_abort_is_rollback(db: vt.Database) -> None:
    with pytest.raises(vt.ProgrammingError, match=re.escape("are not for sql() at line 1, column 1")) as caught:
        db.sql("ABORT TRANSACTION")
    assert "db.transaction()" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint", "place"),
    [
        ("INSERT INTO t VALUES (1, random())", "give the value as a parameter", (1, 26)),
        ("UPDATE t SET a = random()", "give the value as a parameter", (1, 18)),
        ("DELETE FROM t WHERE a > random()", "give the value as a parameter", (1, 25)),
        ("SELECT now()", "give the value as a parameter", (1, 8)),
        ("CREATE TABLE u (at timestamptz DEFAULT now())", "give the value when the row is written", (1, 40)),
        ("CREATE TABLE u (at date CHECK (at < now()))", "compare with a column or a constant", (1, 37)),
        ("CREATE MATERIALIZED VIEW v AS SELECT now() FROM t", "store the value in a column", (1, 38)),
    ],
)
def test_volatile_functions_are_refused_with_what_to_do_there(
    db: vt.Database, text: str, hint: str, place: tuple[int, int]
) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
    with pytest.raises(vt.NotSupportedError, match="volatile function") as caught:
        db.sql(text)
    assert hint in caught.value.hint
    assert isinstance(caught.value, vt.UnsupportedView)
    assert caught.value.place == place


def test_the_first_of_equal_numbers_shows_how_they_are_written(db: vt.Database) -> None:
    def written(text: str) -> list[str]:
        return [str(row[0]) for row in db.sql(text)]

    assert written("VALUES (1.0), (1.00), (1.000) EXCEPT ALL VALUES (1.0000)") == ["1.0", "1.0"]
    assert written("VALUES (1.00), (1.0), (2.0) INTERSECT ALL VALUES (1.0), (1.0)") == ["1.00", "1.00"]


def test_a_view_shows_equal_numbers_as_the_first_was_written(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, n numeric); INSERT INTO t VALUES (1, 1.0)")
    grouped = db.create_view("g", "SELECT n, COUNT(*) AS c FROM t GROUP BY n")
    highest = db.create_view("m", "SELECT MAX(n) AS n FROM t")
    plain = db.create_view("p", "SELECT n FROM t")
    db.sql("UPDATE t SET n = 1.00")  # the value is in the view before and after it
    assert (str(grouped.get(1).n), str(highest.get().n), str(plain.get(1).n)) == ("1.0", "1.0", "1.00")
    db.sql("DELETE FROM t")
    db.sql("INSERT INTO t VALUES (1, 1.00)")
    assert (str(grouped.get(1).n), str(highest.get().n), str(plain.get(1).n)) == ("1.00", "1.00", "1.00")
    assert grouped.verify().ok
    assert highest.verify().ok


# --- options of views ---


@pytest.mark.parametrize("way", ["soon", "-5ms", "target_lag", "5 parsecs"])
def test_a_wrong_way_to_refresh_is_a_wrong_text(db: vt.Database, way: str) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int)")
    db.create_view("v", "SELECT a FROM t")
    for text, place in (
        (f"CREATE MATERIALIZED VIEW w WITH (refresh = '{way}') AS SELECT a FROM t", "line 1, column 44"),
        (f"ALTER MATERIALIZED VIEW v\nSET (refresh = '{way}')", "line 2, column 16"),
    ):
        with pytest.raises(vt.ProgrammingError, match=place) as caught:
            db.sql(text)
        assert caught.value.hint
    assert db.views() == ["v"] and db.view("v").status().mode == "sync"


# --- ON CONFLICT ---


def test_bare_names_in_do_update_are_ambiguous(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 1)")
    for clause in ("SET a = a + 1", "SET a = excluded.a WHERE a > 0"):
        with pytest.raises(vt.ProgrammingError, match="column a is ambiguous at line 1, column ") as caught:
            db.sql(f"INSERT INTO t VALUES (1, 2) ON CONFLICT (id) DO UPDATE {clause}")
        assert caught.value.hint == "write excluded.a or t.a"
    db.sql("INSERT INTO t AS u VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET a = u.a + excluded.a WHERE u.a > 0")
    assert rows(db.sql("TABLE t")) == [(1, 3)]


def test_a_proposed_row_that_breaks_a_check_is_an_error_also_if_it_is_not_inserted(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a > 0)); INSERT INTO t VALUES (1, 1)")
    for action in ("DO NOTHING", "(id) DO NOTHING", "(id) DO UPDATE SET a = 5"):
        with pytest.raises(vt.IntegrityError, match="breaks check 't_a_check'"):
            db.sql(f"INSERT INTO t VALUES (1, -1) ON CONFLICT {action}")
    assert rows(db.sql("TABLE t")) == [(1, 1)]


# --- refusals say where ---


def _refused(db: vt.Database, text: str) -> tuple[str, tuple[int, int] | None]:
    with pytest.raises(vt.UnsupportedView) as caught:
        db.sql(text)
    return caught.value.reason, caught.value.place


def test_limits_of_views_are_told_with_their_places(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    head = "CREATE MATERIALIZED VIEW v AS\n"
    values = ", ".join(f"({number})" for number in range(65))
    assert _refused(db, f"{head}SELECT x FROM (VALUES {values}) q(x)") == ("VALUES with more than 64 rows", (2, 15))
    outer = "".join(f"\nFULL JOIN t t{number} ON t{number}.id = t0.id" for number in range(1, 8))
    reason, place = _refused(db, f"{head}SELECT t0.id FROM t t0{outer}")
    assert reason.startswith("a query with more than 64 alternatives")
    assert place == (8, 11)
    union = "".join("\nUNION ALL SELECT 1" for _ in range(64))
    reason, place = _refused(db, f"{head}SELECT 1 AS x{union}")
    assert reason.startswith("a query with more than 64 alternatives")
    assert place == (66, 11)
    inner = "".join(f"\nJOIN t t{number} ON t{number}.id = t0.id" for number in range(1, 33))
    assert _refused(db, f"{head}SELECT t0.id FROM t t0{inner}") == ("a join of more than 32 tables", (34, 6))


def test_a_sync_view_on_a_deferred_one_is_refused_where_it_is_named(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS TABLE t")
    reason = "view 's' cannot be sync: 'd' is deferred"
    text = "CREATE MATERIALIZED VIEW s AS\nSELECT d.id FROM t JOIN d ON d.id = t.id"
    assert _refused(db, text) == (reason, (2, 25))
    with pytest.raises(vt.UnsupportedView) as caught:
        db.create_view("s", "SELECT COUNT(*) AS n FROM (SELECT id FROM d) q")
    assert caught.value.place == (1, 43)
    db.sql("CREATE MATERIALIZED VIEW s WITH (refresh = 'manual') AS TABLE d")
    with pytest.raises(vt.ProgrammingError, match=r"view 's' cannot become sync.* at line 1, column 25"):
        db.sql("ALTER MATERIALIZED VIEW s SET (refresh = 'sync')")


# --- NOT IN of rows ---

_NOT_IN_HISTORY = """
    INSERT INTO a VALUES (1, 1, 1), (2, 1, NULL), (3, NULL, 1), (4, NULL, NULL), (5, 2, 2)
    INSERT INTO b VALUES (1, 0, 1, 1)
    INSERT INTO b VALUES (2, 0, 2, NULL)
    UPDATE b SET y = 3 WHERE id = 2
    INSERT INTO b VALUES (3, 4, NULL, 7)
    UPDATE b SET g = 3 WHERE id = 1
    INSERT INTO b VALUES (4, 5, NULL, NULL)
    DELETE FROM b WHERE id = 1
    UPDATE a SET x = 2, y = NULL WHERE id = 1
    DELETE FROM b WHERE id = 4
    DELETE FROM b
"""


@pytest.mark.parametrize("condition", ["", "WHERE b.g = a.id", "WHERE g > 0"])
@pytest.mark.parametrize("columns", ["x, y", "y, x, id"])
def test_a_row_is_not_in_a_subquery_with_nulls(db: vt.Database, columns: str, condition: str) -> None:
    db.sql(
        "CREATE TABLE a (id int PRIMARY KEY, x int, y int); CREATE TABLE b (id int PRIMARY KEY, g int, x int, y int)"
    )
    text = f"SELECT id FROM a WHERE ({columns}) NOT IN (SELECT {columns.replace('id', 'b.id')} FROM b {condition})"
    view = db.create_view("v", text)
    for statement in _NOT_IN_HISTORY.strip().splitlines():
        db.sql(statement)
        assert sorted(rows(view.rows())) == sorted(rows(db.sql(text))), statement
    assert len(view.rows()) == 5
    assert view.verify().ok


def test_not_in_of_many_columns_that_may_be_null_is_refused(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int, d int)")
    text = "CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE (a, b, c, d) NOT IN (SELECT d, c, b, a FROM t u)"
    assert _refused(db, text) == ("NOT IN (subquery) with more than 3 columns that may be NULL", (1, 55))


# --- errors of values say which table, column and row, or where in the text ---


@pytest.fixture
def goods(db: vt.Database) -> vt.Database:
    db.sql(
        """
        CREATE TABLE goods (id int PRIMARY KEY, n int, name varchar(3), price numeric(3,1), k int NOT NULL DEFAULT 1,
            CONSTRAINT share CHECK (10 / k < 100));
        CREATE TABLE bag (n int, name text);
        INSERT INTO goods VALUES (1, 1, 'a'), (2, 0, 'b');
        INSERT INTO bag VALUES (1, 'x'), (0, 'y')
        """
    )
    return db


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("UPDATE goods SET n = 10 / n", "row (2,) of table 'goods', column goods.n: division by zero"),
        (
            "UPDATE goods SET n = n + 9223372036854775807",
            "row (1,) of table 'goods', column goods.n: integer out of range",
        ),
        (
            "UPDATE goods SET price = 1, n = name::int",
            "row (1,) of table 'goods', column goods.n: invalid input syntax",
        ),
        (
            "UPDATE goods SET name = name || 'bcd' WHERE id = 2",
            "row (2,) of table 'goods', column goods.name: value too",
        ),
        ("UPDATE goods SET price = 100.5", "row (1,) of table 'goods', column goods.price: numeric field overflow"),
        ("UPDATE goods SET n = (SELECT 1 / goods.n)", "row (2,) of table 'goods', subquery: division by zero"),
        ("UPDATE bag SET n = 1 / n", "row {'n': 0, 'name': 'y'} of table 'bag', column bag.n: division by zero"),
        ("DELETE FROM goods WHERE 10 / n > 1", "row (2,) of table 'goods', condition: division by zero"),
        (
            "DELETE FROM goods WHERE id > 0 AND 1 / n > (SELECT 0)",
            "row (2,) of table 'goods', condition: division by zero",
        ),
        ("INSERT INTO goods VALUES (3, 1), (4, 1 / 0)", "column goods.n: division by zero at line 1, column 38"),
        ("INSERT INTO goods VALUES (3,\n1e30)", "column goods.n: integer out of range at line 2, column 1"),
        (
            "INSERT INTO goods VALUES (3, 1, 'abcd')",
            "column goods.name: value too long: 4 characters, the limit is 3 at",
        ),
        ("INSERT INTO goods SELECT id + 2, 1 / n FROM goods", "row (2,) of table 'goods', column goods.n: division by"),
        ("INSERT INTO goods SELECT id + 2, 1, 'abcd' FROM goods", "the limit is 3 in row 1 of the query"),
        (
            "INSERT INTO goods VALUES (2, 0) ON CONFLICT (id) DO UPDATE SET n = 1 / excluded.n",
            "row (2,) of table 'goods', column goods.n: division by zero",
        ),
        (
            "INSERT INTO goods VALUES (2, 0) ON CONFLICT (id) DO UPDATE SET name = 'abcd'",
            "row (2,) of table 'goods', column goods.name: value too long",
        ),
        (
            "INSERT INTO goods VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET n = 1 WHERE 1 / excluded.n > 0",
            "row (1,) of table 'goods', condition: division by zero",
        ),
        ("UPDATE goods SET k = 0 WHERE id = 1", "of table 'goods', check 'share': division by zero"),
        ("SELECT 10 / n AS share FROM goods", "row (2,) of table 'goods', output share: division by zero"),
        ("SELECT SUM(1 / n) FROM goods", "row (2,) of table 'goods', sum: division by zero"),
        ("SELECT COUNT(*) FROM goods GROUP BY 1 / n", "row (2,) of table 'goods', GROUP BY: division by zero"),
        ("SELECT COUNT(*) / (COUNT(*) - 2) AS x FROM goods", "output x: division by zero"),
    ],
)
def test_a_data_error_says_where(goods: vt.Database, text: str, message: str) -> None:
    before = rows(goods.sql("TABLE goods")), rows(goods.sql("TABLE bag"))
    with pytest.raises(vt.DataError, match=re.escape(message)):
        goods.sql(text)
    assert (rows(goods.sql("TABLE goods")), rows(goods.sql("TABLE bag"))) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO goods VALUES (3, 1), (NULL, 1)", "column goods.id may not be NULL at line 1, column 35"),
        ("INSERT INTO goods (id, k) VALUES (3, NULL)", "column goods.k may not be NULL at line 1, column 38"),
        ("INSERT INTO goods (n) VALUES (3)", "column goods.id may not be NULL and has no default at line 1, column 13"),
        (
            "INSERT INTO goods SELECT id + 2, n, name, price, NULL FROM goods",
            "goods.k may not be NULL in row 1 of the query",
        ),
        ("UPDATE goods SET k = NULL WHERE id = 2", "row (2,) of table 'goods', column goods.k may not be NULL"),
    ],
)
def test_a_null_that_may_not_be_says_where(goods: vt.Database, text: str, message: str) -> None:
    with pytest.raises(vt.IntegrityError, match=re.escape(message)):
        goods.sql(text)


def test_after_an_error_the_transaction_may_go_on_without_the_statement(goods: vt.Database) -> None:
    with goods.transaction() as tx:
        tx.sql("UPDATE goods SET n = 7 WHERE id = 1")
        with pytest.raises(vt.DataError, match="division by zero"):
            tx.sql("UPDATE goods SET n = 10 / n")
        tx.sql("UPDATE goods SET n = n + 1 WHERE id = 2")
    assert rows(goods.sql("SELECT n FROM goods ORDER BY id")) == [(7,), (1,)]


def test_an_error_that_leaves_the_transaction_undoes_it(goods: vt.Database) -> None:
    with pytest.raises(vt.DataError, match="division by zero"), goods.transaction() as tx:
        tx.sql("UPDATE goods SET n = 7 WHERE id = 1")
        tx.sql("UPDATE goods SET n = 10 / n")
    with pytest.raises(vt.DataError, match="division by zero"):
        goods.sql("UPDATE goods SET n = 7 WHERE id = 1; UPDATE goods SET n = 10 / n")
    assert rows(goods.sql("SELECT n FROM goods ORDER BY id")) == [(1,), (0,)]
