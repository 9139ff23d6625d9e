"""SQL text to statements: what each head says, what is refused, and where."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viewtide.changetables.errors import DatabaseError, NotSupportedError, ProgrammingError
from viewtide.changetables.sql.heads import STATEMENTS_MAX, is_complete
from viewtide.changetables.sql.statements import parse_script
from viewtide.changetables.statements import (
    AddColumn,
    AlterTable,
    AlterView,
    Begin,
    Commit,
    CreateIndex,
    CreateTable,
    CreateView,
    Default,
    Delete,
    DropColumn,
    DropIndex,
    DropTable,
    DropView,
    Explain,
    ExplainView,
    Fragment,
    Insert,
    Name,
    Option,
    RefreshView,
    Rollback,
    Savepoint,
    Select,
    Statement,
    Truncate,
    Update,
)
from viewtide.changetables.types import type_of


def one(text: str) -> Statement:
    (statement,) = parse_script(text).statements
    return statement


def texts(names: tuple[Name, ...] | None) -> list[str]:
    return [name.text for name in names or ()]


# --- texts of several statements ---


def test_statements_are_split_at_semicolons_outside_of_quotes_and_comments() -> None:
    text = """
        SELECT ';' AS "a;b" /* ; */; -- ;
        SELECT $$;$$; ;
        EXPLAIN SELECT ';'; REFRESH MATERIALIZED VIEW v
    """
    statements = parse_script(text).statements
    assert [type(statement) for statement in statements] == [Select, Select, Explain, RefreshView]
    assert [statement.place for statement in statements] == [(2, 9), (3, 9), (4, 9), (4, 29)]


def test_a_text_may_be_empty() -> None:
    assert parse_script(" ; -- nothing\n;").statements == ()


def test_every_statement_is_parsed_before_the_first_could_run() -> None:
    with pytest.raises(ProgrammingError, match=r'syntax error at or near "SELEC" at line 2, column 1'):
        parse_script("SELECT 1;\nSELEC 2")


def test_the_number_of_statements_is_limited() -> None:
    with pytest.raises(ProgrammingError, match="statements"):
        parse_script("COMMIT;" * (STATEMENTS_MAX + 1))


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT ';';", True),
        ("/* ;", False),
        ("SELECT $$ ;", False),
        ("EXPLAIN SELECT ';", False),
        ("", False),
        (";", True),
    ],
)
def test_a_shell_knows_when_a_statement_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


# --- CREATE TABLE ---


def table(text: str) -> CreateTable:
    statement = one(text)
    assert isinstance(statement, CreateTable)
    return statement


@pytest.mark.parametrize(
    "written",
    [
        "smallint",
        "int",
        "integer",
        "bigint",
        "int8",
        "real",
        "float8",
        "double precision",
        "float(24)",
        "numeric",
        "numeric(10, 2)",
        "decimal(5)",
        "text",
        "varchar",
        "varchar(20)",
        "character varying(20)",
        "char",
        "char(3)",
        "boolean",
        "bytea",
        "date",
        "timestamp",
        "timestamp without time zone",
        "timestamp(6) with time zone",
        "timestamptz",
        "json",
        "jsonb",
    ],
)
def test_the_types_of_create_table(written: str) -> None:
    made = table(f"CREATE TABLE t (a {written} NOT NULL, b int)")
    assert made.columns[0].type == type_of(written)
    assert made.columns[0].not_null
    assert table(f"create table t (a {written.upper()})").columns[0].type == type_of(written)


@pytest.mark.parametrize("written", ['"int4"', '"varchar"(3)', '"numeric"(4, 2)', '"timestamptz"', '"text"'])
def test_types_by_the_names_of_the_catalog_in_quotes(written: str) -> None:
    assert table(f"CREATE TABLE t (a {written})").columns[0].type == type_of(written.replace('"', ""))


@pytest.mark.parametrize(
    "written", ["money", "uuid", "serial", "int[]", "interval", "time", "xml", "inet", "str", "bytes", "varchar(0)"]
)
def test_other_types_are_not_supported(written: str) -> None:
    with pytest.raises(NotSupportedError, match=r"at line 1, column 19"):
        parse_script(f"CREATE TABLE t (a {written})")


def test_constraints_of_columns_stand_in_any_order() -> None:
    made = table(
        "CREATE TABLE IF NOT EXISTS t ("
        "a int CHECK (a > 0) NOT NULL PRIMARY KEY, b text DEFAULT 'x' || 'y' NOT NULL UNIQUE, c int NULL DEFAULT NULL,"
        " d bool DEFAULT 1 IS NOT NULL, e int CONSTRAINT positive CHECK (e > 0) CONSTRAINT once UNIQUE)"
    )
    assert made.if_not_exists
    assert texts(made.key) == ["a"]
    assert [column.not_null for column in made.columns] == [True, True, False, False, False]
    defaults = [column.default.text if column.default else None for column in made.columns]
    assert defaults == [None, "'x' || 'y'", "NULL", "1 IS NOT NULL", None]
    assert [(check.name, check.condition.text) for check in made.checks] == [("", "a > 0"), ("positive", "e > 0")]
    assert [(unique.name, texts(unique.columns)) for unique in made.uniques] == [("", ["b"]), ("once", ["e"])]


def test_constraints_of_the_table() -> None:
    made = table(
        'CREATE TABLE t (a int, "B" int, c int, PRIMARY KEY (a, "B"), CONSTRAINT u UNIQUE (c, a),'
        " CHECK (a < c AND (a, c) <> (1, 2)))"
    )
    assert texts(made.key) == ["a", "B"]
    assert [(unique.name, texts(unique.columns)) for unique in made.uniques] == [("u", ["c", "a"])]
    assert [check.condition.text for check in made.checks] == ["a < c AND (a, c) <> (1, 2)"]


def test_a_table_without_primary_key() -> None:
    assert table("CREATE TABLE t (a int)").key is None


def test_identifiers_fold_unless_quoted() -> None:
    made = table('CREATE TABLE Orders (Id int, "Id" int, "we""ird ;" text, name text, date date, größe int)')
    assert made.name.text == "orders"
    assert [column.name.text for column in made.columns] == ["id", "Id", 'we"ird ;', "name", "date", "größe"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t ()", 'table "t" has no columns'),
        ("CREATE TABLE t (a int, a text)", 'column "a" specified more than once at line 1, column 24'),
        ("CREATE TABLE t (a int PRIMARY KEY, b int PRIMARY KEY)", 'multiple primary keys for table "t"'),
        ("CREATE TABLE t (a int PRIMARY KEY, PRIMARY KEY (a))", 'multiple primary keys for table "t"'),
        ("CREATE TABLE t (a int, PRIMARY KEY (b))", 'column "b" named in key does not exist at line 1, column 37'),
        ("CREATE TABLE t (a int, PRIMARY KEY (a, a))", 'column "a" appears twice'),
        ("CREATE TABLE t (a int, UNIQUE (b))", 'column "b" named in key does not exist'),
        ("CREATE TABLE t (a int NULL NOT NULL)", "conflicting NULL/NOT NULL"),
        ("CREATE TABLE t (a int DEFAULT 1 DEFAULT 2)", "multiple default values"),
        ("CREATE TABLE t (a int DEFAULT)", "syntax error"),
        ("CREATE TABLE t (a int CHECK a > 0)", 'syntax error at or near "a" at line 1, column 29'),
        ("CREATE TABLE t (a int,)", 'syntax error at or near ","'),
        ("CREATE TABLE t (a)", "syntax error"),
        ("CREATE TABLE t (a int sometimes)", 'syntax error at or near "sometimes"'),
        ("CREATE TABLE t (a int) extra", 'syntax error at or near "extra"'),
        ("CREATE TABLE select (a int)", 'syntax error at or near "select"'),
        ("CREATE TABLE t (a int", "syntax error at the end of the statement"),
        ("CREATE TABLE t (a int DEFAULT ?)", "a definition cannot have parameters at line 1, column 31"),
        ("CREATE TABLE 5 (a int)", 'syntax error at or near "5"'),
    ],
)
def test_wrong_tables(text: str, message: str) -> None:
    with pytest.raises(ProgrammingError, match=re.escape(message)):
        parse_script(text)


# --- ALTER, DROP, indexes ---


def test_add_column() -> None:
    statement = one("ALTER TABLE IF EXISTS t ADD COLUMN IF NOT EXISTS a numeric(5,1) DEFAULT 0.5 NOT NULL")
    assert isinstance(statement, AlterTable)
    assert isinstance(statement.action, AddColumn)
    assert statement.if_exists
    assert statement.action.if_not_exists
    assert statement.action.column.name.text == "a"
    assert statement.action.column.not_null
    assert statement.action.column.default is not None
    assert isinstance(one("ALTER TABLE t ADD a int"), AlterTable)


def test_drop_column() -> None:
    statement = one("ALTER TABLE t DROP COLUMN IF EXISTS a CASCADE")
    assert isinstance(statement, AlterTable)
    action = statement.action
    assert isinstance(action, DropColumn)
    assert (action.name.text, action.if_exists, action.cascade) == ("a", True, True)
    assert one("ALTER TABLE t DROP a RESTRICT").action.cascade is False  # type: ignore[union-attr]


def test_drops() -> None:
    dropped = one("DROP TABLE IF EXISTS a, b CASCADE")
    assert isinstance(dropped, DropTable)
    assert (texts(dropped.names), dropped.if_exists, dropped.cascade) == (["a", "b"], True, True)
    view = one("DROP MATERIALIZED VIEW a, b")
    assert isinstance(view, DropView)
    assert (texts(view.names), view.if_exists, view.cascade) == (["a", "b"], False, False)
    index = one("DROP INDEX CONCURRENTLY IF EXISTS i RESTRICT")
    assert isinstance(index, DropIndex)
    assert (texts(index.names), index.if_exists) == (["i"], True)


def test_create_index() -> None:
    index = one("CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS i ON t USING btree (a, b ASC)")
    assert isinstance(index, CreateIndex)
    assert index.name is not None
    assert (index.name.text, index.table.text, texts(index.columns)) == ("i", "t", ["a", "b"])
    assert index.unique
    assert index.if_not_exists
    unnamed = one("CREATE INDEX ON t (a)")
    assert isinstance(unnamed, CreateIndex)
    assert unnamed.name is None
    assert not unnamed.unique


# --- views ---


def test_create_materialized_view_with_options() -> None:
    view = one(
        "CREATE MATERIALIZED VIEW IF NOT EXISTS v WITH (refresh = '500ms', layout = 'local') AS\n"
        "  SELECT a, 'x;' FROM t WITH DATA"
    )
    assert isinstance(view, CreateView)
    assert (view.name.text, view.layout, view.if_not_exists) == ("v", "local", True)
    assert view.refresh == Option("500ms", (1, 58))
    assert view.query.text == "SELECT a, 'x;' FROM t"
    assert view.query.place == (2, 3)


def test_create_materialized_view_without_options() -> None:
    view = one("CREATE MATERIALIZED VIEW v AS WITH c AS (SELECT 1 AS one) SELECT one FROM c")
    assert isinstance(view, CreateView)
    assert (view.refresh, view.layout, view.if_not_exists) == (None, None, False)
    assert view.query.text == "WITH c AS (SELECT 1 AS one) SELECT one FROM c"


@pytest.mark.parametrize("written", ["'sync'", "sync", '"sync"', "$$sync$$"])
def test_alter_materialized_view(written: str) -> None:
    view = one(f"ALTER MATERIALIZED VIEW IF EXISTS v SET (refresh = {written})")
    assert isinstance(view, AlterView)
    assert (view.name.text, view.if_exists) == ("v", True)
    assert view.refresh == Option("sync", (1, 52))


def test_refresh_materialized_view() -> None:
    for text in ("REFRESH MATERIALIZED VIEW v", "refresh materialized view concurrently v with data"):
        view = one(text)
        assert isinstance(view, RefreshView)
        assert view.name.text == "v"


def test_explain() -> None:
    for text, kind in [
        ("EXPLAIN SELECT 1", Select),
        ("EXPLAIN (SELECT 1)", Select),
        ("EXPLAIN DELETE FROM t", Delete),
        ("EXPLAIN UPDATE t SET a = 1", Update),
        ("EXPLAIN INSERT INTO t SELECT 1", Insert),
        ("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT 1 AS a", CreateView),
    ]:
        statement = one(text)
        assert isinstance(statement, Explain)
        assert isinstance(statement.statement, kind)
    assert one("EXPLAIN MATERIALIZED VIEW v") == ExplainView((1, 1), Name("v", (1, 27)))


# --- rows ---


def insert(text: str) -> Insert:
    statement = one(text)
    assert isinstance(statement, Insert)
    return statement


def test_insert_rows_with_defaults() -> None:
    made = insert("INSERT INTO t (a, b) VALUES (1, DEFAULT), (-2, 'x' || 'y'), (DEFAULT, \"default\")")
    assert texts(made.columns) == ["a", "b"]
    assert made.rows is not None
    kinds = [[type(item) for item in row] for row in made.rows]
    assert kinds == [[Fragment, Default], [Fragment, Fragment], [Default, Fragment]]
    assert made.query is None
    assert made.conflict is None


def test_insert_default_values() -> None:
    made = insert("INSERT INTO t DEFAULT VALUES")
    assert (made.rows, made.query, made.columns) == (None, None, None)


@pytest.mark.parametrize(
    "query", ["SELECT 1", "(SELECT 1)", "WITH c AS (SELECT 1) SELECT * FROM c", "VALUES (1), (2) LIMIT 1", "TABLE t"]
)
def test_insert_from_a_query(query: str) -> None:
    made = insert(f"INSERT INTO t (a) {query} ON CONFLICT DO NOTHING")
    assert made.query is not None
    assert made.query.text == query
    assert made.rows is None
    assert made.conflict is not None
    assert made.conflict.assignments is None
    assert made.conflict.target is None


def test_on_of_a_join_is_not_on_conflict() -> None:
    made = insert("INSERT INTO t SELECT 1 FROM a JOIN b ON a.conflict = b.x ON CONFLICT (id) DO NOTHING")
    assert made.query is not None
    assert made.query.text.endswith("b.x")
    assert made.conflict is not None
    assert texts(made.conflict.target) == ["id"]


def test_on_conflict_do_update() -> None:
    made = insert(
        "INSERT INTO t AS x (a) VALUES (1) ON CONFLICT (a, b) DO UPDATE SET c = excluded.c + x.c, (d, e) = (1, DEFAULT)"
        " WHERE x.c IS DISTINCT FROM excluded.c"
    )
    assert made.alias is not None
    assert made.alias.text == "x"
    conflict = made.conflict
    assert conflict is not None
    assert texts(conflict.target) == ["a", "b"]
    assert conflict.assignments is not None
    assert [texts(assignment.columns) for assignment in conflict.assignments] == [["c"], ["d", "e"]]
    assert isinstance(conflict.assignments[1].values[1], Default)
    assert conflict.where is not None
    assert conflict.where.text == "x.c IS DISTINCT FROM excluded.c"


def test_update() -> None:
    made = one(
        "UPDATE ONLY t AS x SET a = a IS DISTINCT FROM b, (c, d) = ROW(1, 2), e = DEFAULT, (f) = (3) WHERE a > 1"
    )
    assert isinstance(made, Update)
    assert made.alias is not None
    assert made.alias.text == "x"
    assert [texts(assignment.columns) for assignment in made.assignments] == [["a"], ["c", "d"], ["e"], ["f"]]
    assert isinstance(made.assignments[2].values[0], Default)
    assert made.where is not None
    assert made.where.text == "a > 1"
    assert one("UPDATE t x SET a = 1").alias is not None  # type: ignore[union-attr]


def test_delete_and_truncate() -> None:
    made = one("DELETE FROM t x WHERE (a, b) IN ((1, 2))")
    assert isinstance(made, Delete)
    assert made.alias is not None
    assert made.where is not None
    assert one("DELETE FROM t").where is None  # type: ignore[union-attr]
    truncate = one("TRUNCATE TABLE a, b CONTINUE IDENTITY RESTRICT")
    assert isinstance(truncate, Truncate)
    assert texts(truncate.names) == ["a", "b"]


@pytest.mark.parametrize("text", ["SELECT 1", "(SELECT 1)", "VALUES (1)", "WITH c AS (SELECT 1) TABLE c", "TABLE t"])
def test_select(text: str) -> None:
    statement = one(text)
    assert isinstance(statement, Select)
    assert statement.query.text == text


# --- transactions ---


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BEGIN", Begin),
        ("BEGIN WORK", Begin),
        ("begin transaction", Begin),
        ("START TRANSACTION", Begin),
        ("COMMIT", Commit),
        ("COMMIT WORK", Commit),
        ("END", Commit),
        ("ROLLBACK", Rollback),
        ("ROLLBACK TRANSACTION", Rollback),
        ("SAVEPOINT s", Savepoint),
        ("RELEASE SAVEPOINT s", Savepoint),
        ("ROLLBACK TO SAVEPOINT s", Savepoint),
    ],
)
def test_transaction_statements(text: str, kind: type) -> None:
    assert type(one(text)) is kind


# --- what is refused, with its place ---


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        ("CREATE TABLE t (a int REFERENCES b)", "foreign keys", 23),
        ("CREATE TABLE t (a int, FOREIGN KEY (a) REFERENCES b (c))", "foreign keys", 24),
        ("CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY)", "generated columns", 23),
        ("CREATE TABLE t (a text COLLATE c)", "COLLATE", 24),
        ("CREATE TABLE t (a int UNIQUE NULLS NOT DISTINCT)", "NULLS NOT DISTINCT", 30),
        ("CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)", "deferrable constraints", 35),
        ("CREATE TABLE t (LIKE b)", "LIKE in CREATE TABLE", 17),
        ("CREATE TABLE t AS SELECT 1", "CREATE TABLE AS", 16),
        ("CREATE TABLE t (a int) PARTITION BY RANGE (a)", "partitions", 24),
        ("CREATE TABLE public.t (a int)", "schemas", 14),
        ("CREATE TEMP TABLE t (a int)", "TEMP tables", 8),
        ("CREATE VIEW v AS SELECT 1", "CREATE VIEW", 8),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "CREATE VIEW", 8),
        ("CREATE EXTENSION x", "CREATE EXTENSION", 8),
        ("CREATE INDEX i ON t (lower(a))", "indexes on expressions", 22),
        ("CREATE INDEX i ON t ((a + 1))", "indexes on expressions", 22),
        ("CREATE INDEX i ON t (a DESC)", "the order and collation of an index", 24),
        ("CREATE INDEX i ON t USING gin (a)", "gin indexes", 27),
        ("CREATE INDEX i ON t (a) WHERE a > 0", "partial indexes", 25),
        ("CREATE MATERIALIZED VIEW v (a) AS SELECT 1", "a column list of a view", 28),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 WITH NO DATA", "WITH NO DATA", 1),
        ("REFRESH MATERIALIZED VIEW v WITH NO DATA", "WITH NO DATA", 29),
        ("ALTER MATERIALIZED VIEW v RENAME TO w", "this ALTER MATERIALIZED VIEW", 27),
        ('CREATE TABLE t (a "char")', 'type "char"', 19),
        ('CREATE TABLE t (a "char"(3))', 'type "char"', 19),
        ('CREATE TABLE t (a "Text")', 'type "Text"', 19),
        ("ALTER TABLE t RENAME TO u", "ALTER TABLE ... RENAME", 15),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)", "adding a constraint to a table", 19),
        ("ALTER TABLE t ADD a int UNIQUE", "adding a column with a constraint", 19),
        ("ALTER TABLE t ADD a int, DROP b", "several actions in one ALTER TABLE", 24),
        ("ALTER INDEX i RENAME TO j", "ALTER INDEX", 7),
        ("DROP VIEW v", "DROP VIEW", 6),
        ("DROP SCHEMA s", "DROP SCHEMA", 6),
        ("DROP INDEX i CASCADE", "DROP INDEX ... CASCADE", 1),
        ("INSERT INTO t VALUES (1) RETURNING a", "RETURNING", 26),
        ("INSERT INTO t SELECT 1 RETURNING a", "RETURNING", 24),
        ("INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (1)", "OVERRIDING", 15),
        ("INSERT INTO t VALUES (1) ON CONFLICT ON CONSTRAINT c DO NOTHING", "ON CONFLICT ON CONSTRAINT", 38),
        ("UPDATE t SET a = 1 FROM b WHERE t.a = b.a", "UPDATE ... FROM", 20),
        ("UPDATE t SET a = 1 RETURNING a", "RETURNING", 20),
        ("UPDATE t SET (a, b) = (SELECT 1, 2)", "SET (...) = (SELECT ...)", 23),
        ("UPDATE t SET a = 1 WHERE CURRENT OF c", "WHERE CURRENT OF", 26),
        ("DELETE FROM t USING b WHERE t.a = b.a", "DELETE ... USING", 15),
        ("DELETE FROM t WHERE a = 1 RETURNING *", "RETURNING", 27),
        ("WITH c AS (SELECT 1) INSERT INTO t SELECT * FROM c", "INSERT together with WITH", 1),
        ("WITH c AS (SELECT 1) UPDATE t SET a = 1", "UPDATE together with WITH", 1),
        ("WITH c AS (DELETE FROM t RETURNING a) SELECT * FROM c", "DELETE together with WITH", 1),
        ("WITH c AS MATERIALIZED (INSERT INTO t VALUES (1)) SELECT 1", "INSERT together with WITH", 1),
        ("TRUNCATE t RESTART IDENTITY", "RESTART IDENTITY", 12),
        ("TRUNCATE t CASCADE", "TRUNCATE ... CASCADE", 12),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN ANALYZE", 9),
        ("EXPLAIN (FORMAT json) SELECT 1", "options of EXPLAIN", 9),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", "transaction modes", 7),
        ("COMMIT AND CHAIN", "AND CHAIN", 8),
        ("COPY t FROM 'x'", "COPY", 1),
        ("GRANT ALL ON t TO x", "GRANT", 1),
        ("MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", "MERGE", 1),
        ("SET x = 1", "SET", 1),
        ("LOCK TABLE t", "LOCK", 1),
        ("VACUUM", "VACUUM", 1),
        ("DO $$ BEGIN END $$", "DO", 1),
    ],
)
def test_not_supported(text: str, what: str, column: int) -> None:
    with pytest.raises(NotSupportedError) as raised:
        parse_script(f"SELECT 1;\n{text}")
    assert raised.value.message == f"{what}: not supported at line 2, column {column}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE MATERIALIZED VIEW v WITH (speed = 1) AS SELECT 1", "unknown option speed at line 1, column 34"),
        (
            "CREATE MATERIALIZED VIEW v WITH (refresh = a, refresh = b) AS SELECT 1",
            "option refresh stands twice at line 1, column 47",
        ),
        ("CREATE MATERIALIZED VIEW v WITH (layout = 'x') AS SELECT 1", "unknown layout 'x' at line 1, column 43"),
        ("CREATE MATERIALIZED VIEW v", "syntax error at the end of the statement at line 1, column 27"),
        ("CREATE MATERIALIZED VIEW v AS DELETE FROM t", 'syntax error at or near "DELETE" at line 1, column 31'),
        ("CREATE MATERIALIZED VIEW v AS SELECT ?", "a definition cannot have parameters at line 1, column 38"),
        ("ALTER MATERIALIZED VIEW v SET (layout = 'local')", "unknown option layout at line 1, column 32"),
        ("INSERT INTO t (a, a) VALUES (1, 2)", 'column "a" specified more than once at line 1, column 19'),
        ("INSERT INTO t (a) DEFAULT VALUES", 'syntax error at or near "DEFAULT"'),
        ("INSERT INTO t", "syntax error at the end of the statement"),
        ("INSERT t VALUES (1)", 'syntax error at or near "t" at line 1, column 8'),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO UPDATE SET a = 1", "needs to know which conflict"),
        ("UPDATE t SET a = 1, a = 2", 'multiple assignments to same column "a" at line 1, column 21'),
        ("UPDATE t SET t.a = 1", '"t." before the column that is set at line 1, column 14'),
        ("UPDATE t SET (a, b) = (1, 2, 3)", "number of columns does not match number of values"),
        ("UPDATE t SET (a, b) = 5", "must be a row of values at line 1, column 23"),
        ("UPDATE t SET a 1", 'syntax error at or near "1"'),
        ("UPDATE t WHERE a = 1", 'syntax error at or near "WHERE"'),
        ("DELETE t", 'syntax error at or near "t"'),
        ("DELETE FROM t WHERE", "syntax error at the end of the statement"),
        ("DELETE FROM t WHERE a = 1 2", "syntax error"),
        ("SELECT FROM WHERE", "syntax error"),
        ("EXPLAIN DROP TABLE t", 'syntax error at or near "DROP"'),
        ("SELECT 'x", "unterminated"),
        ("EXPLAIN SELECT 'x", "unterminated"),
        ("DROP", "syntax error at the end of the statement"),
        ("'text'", "syntax error at or near \"'text'\""),
        ("DROP TABLE a b", 'syntax error at or near "b" at line 1, column 14'),
    ],
)
def test_wrong_statements(text: str, message: str) -> None:
    with pytest.raises(ProgrammingError, match=re.escape(message)):
        parse_script(text)


WORDS = """
    CREATE TABLE t ( a int ) , ; INSERT INTO VALUES DEFAULT ON CONFLICT DO UPDATE SET = 1 'x' "y" WHERE DELETE FROM
    SELECT MATERIALIZED VIEW WITH AS refresh EXPLAIN ? :n . * NOT NULL PRIMARY KEY CHECK ALTER ADD COLUMN DROP INDEX
    UNIQUE BEGIN ROLLBACK TO
"""


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.sampled_from(WORDS.split()),
        max_size=12,
    )
)
def test_any_text_is_parsed_or_refused_with_an_error_of_the_tree(words: list[str]) -> None:
    text = " ".join(words)
    try:
        statements = parse_script(text).statements
    except DatabaseError as error:
        assert error.message
    else:
        assert len(statements) <= text.count(";") + 1
