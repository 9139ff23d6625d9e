"""Every error that bad input gives is of the right class and says in `hint` what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

import viewtide as vt

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table(
            "t",
            {"id": int, "name": str, "weight": float, "price": "numeric(4,2)", "n": int, "note": "varchar(3)"},
            key="id",
            indexes=["n"],
        )
        opened.create_view("by_name", "SELECT name, COUNT(*) AS n FROM t GROUP BY name")
        opened.create_view("ratio", "SELECT id, 10 / n AS share FROM t WHERE n < 5")
        yield opened


class Case(NamedTuple):
    name: str
    kind: type[vt.Error]
    use: Callable[[vt.Database], object]


def _insert(**columns: object) -> Callable[[vt.Database], object]:
    def use(db: vt.Database) -> None:
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, **columns})

    return use


def _sql(text: str, params: object = None) -> Callable[[vt.Database], object]:
    return lambda db: db.sql(text, params)  # type: ignore[arg-type]


def _view(text: str) -> Callable[[vt.Database], object]:
    return lambda db: db.create_view("v", text)


CASES = [
    # values
    Case("int for str", vt.DataError, _insert(name=5)),
    Case("str for int", vt.DataError, _insert(n="5")),
    Case("str for float", vt.DataError, _insert(weight="5")),
    Case("str for decimal", vt.DataError, _insert(price="5")),
    Case("object for int", vt.DataError, _insert(n=object())),
    Case("decimal field overflow", vt.DataError, _insert(price=Decimal("100"))),
    Case("infinite decimal", vt.DataError, _insert(price=Decimal("inf"))),
    Case("text too long", vt.DataError, _insert(note="abcd")),
    Case("int overflow", vt.DataError, _insert(n=2**63)),
    Case("key of another type", vt.DataError, lambda db: db.view("by_name").get(5)),
    Case("division by zero in a view", vt.DataError, _insert(n=0)),
    # tables
    Case("unknown table", vt.ProgrammingError, lambda db: db.drop_table("x")),
    Case("column exists", vt.ProgrammingError, lambda db: db.add_column("t", "name", int)),
    Case("drop a key column", vt.ProgrammingError, lambda db: db.drop_column("t", "id")),
    Case("drop an unknown index", vt.ProgrammingError, lambda db: db.drop_index("t", "name")),
    Case("index twice", vt.ProgrammingError, lambda db: db.create_index("t", "n")),
    Case(
        "index twice at once",
        vt.ProgrammingError,
        lambda db: db.create_table("u", {"a": int, "b": int}, key="a", indexes=["b", "b"]),
    ),
    Case(
        "column twice in a key",
        vt.ProgrammingError,
        lambda db: db.create_table("u", {"a": int, "b": int}, key=["a", "a"]),
    ),
    Case("empty key", vt.InterfaceError, lambda db: db.create_table("u", {"a": int}, key=[])),
    Case("empty name", vt.InterfaceError, lambda db: db.create_table("", {"a": int}, key="a")),
    # arguments
    Case("negative limit", vt.InterfaceError, lambda db: db.view("by_name").scan(limit=-1)),
    Case("unknown layout", vt.InterfaceError, lambda db: db.create_view("v", "SELECT id FROM t", layout="x")),
    Case("view of nothing", vt.InterfaceError, lambda db: db.create_view("v", None)),  # type: ignore[arg-type]
    Case("number for a directory", vt.InterfaceError, lambda db: vt.connect(5)),  # type: ignore[arg-type]
    Case("no cache", vt.InterfaceError, lambda db: vt.connect("memory:", cache_rows=0)),
    Case("no LTMs", vt.InterfaceError, lambda db: vt.connect("memory:", ltms=0)),
    Case("no view managers", vt.InterfaceError, lambda db: vt.connect("memory:", view_managers=0)),
    Case("negative history", vt.InterfaceError, lambda db: vt.connect("memory:", history_bytes=-1)),
    Case("number for a token", vt.InterfaceError, lambda db: db.view("by_name").rows(at_least=3)),  # type: ignore[arg-type]
    Case("text for latest", vt.InterfaceError, lambda db: db.view("by_name").rows(latest="yes")),  # type: ignore[arg-type]
    Case("key twice", vt.InterfaceError, lambda db: db.view("by_name").get("a", name="a")),
    Case("run of a number", vt.InterfaceError, lambda db: db.run(5)),  # type: ignore[arg-type]
    Case("number for SQL", vt.InterfaceError, lambda db: db.sql(5)),  # type: ignore[arg-type]
    Case("group that is no text", vt.InterfaceError, lambda db: db.create_view("v", "SELECT 1", group=5)),  # type: ignore[arg-type]
    Case(
        "negative backlog",
        vt.InterfaceError,
        lambda db: db.create_view("v", "SELECT id FROM t", refresh="1s", backlog_rows=-1),
    ),
    Case("view key twice", vt.InterfaceError, lambda db: db.create_view("v", "SELECT id FROM t", key=["id", "id"])),
    # SQL
    Case("misspelt SELECT", vt.ProgrammingError, _sql("SELEC 1")),
    Case("half a SELECT", vt.ProgrammingError, _sql("SELECT FROM WHERE")),
    Case("half an INSERT", vt.ProgrammingError, _sql("INSERT INTO t VALUES (")),
    Case("half a CREATE", vt.ProgrammingError, _sql("CREATE TABLE u (a int")),
    Case("open quote", vt.ProgrammingError, _sql("SELECT 'a")),
    Case("reserved word", vt.ProgrammingError, _sql("SELECT select FROM t")),
    Case("junk after a number", vt.ProgrammingError, _sql("SELECT 1a")),
    Case("star as a value", vt.ProgrammingError, _sql("SELECT * + 1 FROM t")),
    Case("NUL", vt.ProgrammingError, _sql("SELECT '\0'")),
    Case("syntax error of a view", vt.ProgrammingError, _view("SELECT FROM WHERE")),
    Case("text that is no integer", vt.DataError, _sql("SELECT id FROM t WHERE n = 'x'")),
    Case("text that is no integer to insert", vt.DataError, _sql("INSERT INTO t (id) VALUES ('x')")),
    Case("text that is no number", vt.DataError, _sql("SELECT id FROM t WHERE price = 'x'")),
    Case("text that is no float", vt.DataError, _sql("SELECT id FROM t WHERE weight = 'x'")),
    Case("text that is no boolean", vt.DataError, _sql("SELECT CAST('x' AS boolean)")),
    Case("text that is no day", vt.DataError, _sql("SELECT CAST('2024-13-01' AS date)")),
    Case("missing parameter", vt.ProgrammingError, _sql("SELECT id FROM t WHERE n = :a", {})),
    Case("too many values", vt.ProgrammingError, _sql("INSERT INTO t (id) VALUES (1, 2)")),
    Case("too few values", vt.ProgrammingError, _sql("INSERT INTO t (id, n) VALUES (1)")),
    Case("rows of two lengths", vt.ProgrammingError, _sql("INSERT INTO t (id, n) VALUES (1, 2), (3)")),
    Case("division by zero", vt.DataError, _sql("SELECT 1 / 0")),
    Case(
        "division of a column by zero",
        vt.DataError,
        _sql("INSERT INTO t (id, n) VALUES (1, 5); SELECT n / (id - 1) FROM t"),
    ),
    Case("remainder by zero", vt.DataError, _sql("SELECT 1.5 % 0")),
    Case("integer overflow", vt.DataError, _sql("SELECT 9223372036854775807 + 1")),
    Case("root of a negative number", vt.DataError, _sql("SELECT sqrt(-1)")),
    Case("logarithm of zero", vt.DataError, _sql("SELECT ln(0)")),
    Case("unknown unit", vt.DataError, _sql("SELECT date_trunc('fortnight', TIMESTAMP '2024-01-01')")),
    Case("number as a condition", vt.ProgrammingError, _sql("SELECT id FROM t WHERE n")),
    Case("no table at all", vt.ProgrammingError, lambda db: vt.connect("memory:").sql("SELECT a FROM b")),
    Case("position of no output", vt.ProgrammingError, _sql("SELECT id FROM t ORDER BY 2")),
    Case("aggregate in WHERE", vt.ProgrammingError, _sql("SELECT id FROM t WHERE COUNT(*) > 1")),
    Case("queries of two widths", vt.ProgrammingError, _sql("SELECT id FROM t UNION SELECT id, n FROM t")),
    Case("column twice", vt.ProgrammingError, _sql("CREATE TABLE u (a int, a int)")),
    # views
    Case(
        "recursion",
        vt.UnsupportedView,
        _view("WITH RECURSIVE r AS (SELECT id FROM t UNION SELECT id + 1 FROM r) SELECT id FROM r"),
    ),
    Case("string_agg", vt.UnsupportedView, _view("SELECT n, string_agg(name, ',') AS names FROM t GROUP BY n")),
    Case("md5", vt.UnsupportedView, _view("SELECT id, md5(name) AS hash FROM t")),
    Case("collation", vt.UnsupportedView, _view('SELECT id FROM t ORDER BY name COLLATE "C" LIMIT 1')),
    Case("function in FROM", vt.UnsupportedView, _view("SELECT g FROM generate_series(1, 3) AS g")),
]


@pytest.mark.served
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_an_error_has_its_class_and_a_hint(db: vt.Database, case: Case) -> None:
    with pytest.raises(vt.Error) as raised:
        case.use(db)
    assert type(raised.value) is case.kind, repr(raised.value)
    assert raised.value.hint, raised.value.message


def test_an_object_as_a_parameter(db: vt.Database) -> None:
    """Of its own: a client of a served node cannot even send it."""
    with pytest.raises(vt.ProgrammingError) as raised:
        db.sql("SELECT id FROM t WHERE n = ?", [object()])
    assert raised.value.hint


@pytest.mark.served
def test_key_columns_with_the_names_of_arguments_are_given_by_name() -> None:
    """A served node had arguments of its own with these names, and refused them."""
    with vt.connect("memory:") as db:
        db.create_table("t", {"name": str, "reads": int, "tx": int}, key=["name", "reads", "tx"], indexes=["name"])
        db.create_view("v", "SELECT name, COUNT(*) AS n FROM t GROUP BY name")
        with db.transaction() as tx:
            tx.insert("t", {"name": "a", "reads": 1, "tx": 2})
            assert tx.get("t", name="a", reads=1, tx=2)
            assert len(tx.find("t", name="a")) == 1
        row = db.view("v").get(name="a")
        assert row is not None and row.n == 1
        with db.snapshot() as snapshot:
            assert snapshot.view("v").get(name="a") == row
        with db.transaction() as tx:
            assert tx.delete("t", name="a", reads=1, tx=2)


#: Errors about what a user gave. The others are about what happened, and each says by its class what to do.
ABOUT_INPUT = {
    "InterfaceError", "OperationalError", "IntegrityError", "ProgrammingError", "DataError", "NotSupportedError",
    "UnsupportedView",
}  # fmt: skip
#: Where users' input is read.
READS_INPUT = [
    "changetables/**/*.py", "api/arrow.py", "api/bulk.py", "api/config.py", "api/database.py", "api/files.py",
    "api/freshness.py", "api/reads.py", "api/remote_protocol.py", "api/sql*.py", "api/table.py", "api/targets.py",
    "api/transaction.py", "api/view.py",
]  # fmt: skip


def test_errors_about_input_are_made_with_a_hint() -> None:
    files = [path for pattern in READS_INPUT for path in sorted(ROOT.glob(pattern))]
    assert len(files) > 80
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ABOUT_INPUT
        and not any(keyword.arg in ("hint", None) for keyword in node.keywords)
    ]
    assert without == []
