"""Wrong input: the exact class of the error, a hint where one helps, and that nothing has changed."""

from __future__ import annotations

import copy
import datetime
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

import viewtide as vt
from viewtide.config import usual_ltms


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table("products", {"id": int, "category": str}, key="id")
        opened.create_table(
            "events",
            {
                "id": int, "product": int, "cost": vt.column(int, nullable=False), "price": "numeric(6,2)",
                "weight": float, "note": "varchar(5)", "raw": bytes, "ok": bool, "day": datetime.date,
                "at": "timestamptz", "data": dict,
            },
            key="id",
            indexes=["product"],
        )  # fmt: skip
        opened.create_table("pairs", {"a": int, "b": str, "x": int}, key=["a", "b"])
        opened.create_table("texts", {"k": str}, key="k")
        opened.create_view("sums", "SELECT product, SUM(cost) AS cost FROM events GROUP BY product")
        opened.create_view("total", "SELECT COUNT(*) AS n FROM events")
        with opened.transaction() as tx:
            tx.insert("products", {"id": 1, "category": "a"})
            tx.insert("events", [{"id": 1, "product": 1, "cost": 10}, {"id": 2, "product": 1, "cost": 20}])
            tx.insert("pairs", {"a": 1, "b": "x"})
        yield opened


def _state(db: vt.Database) -> object:
    with db.snapshot() as snapshot:
        return (
            {name: list(snapshot.scan(name)) for name in db.tables()},
            {name: list(snapshot.view(name).rows()) for name in db.views()},
        )


class Case(NamedTuple):
    """`hint`: a part of the hint; None where there is nothing to add to the message."""

    name: str
    kind: type[vt.Error]
    use: Callable[[vt.Transaction], object]
    message: str = ""
    hint: str | None = ""


def _insert(**columns: object) -> Callable[[vt.Transaction], object]:
    return lambda tx: tx.insert("events", {"id": 9, "cost": 1, **columns})


IN_TRANSACTIONS = [
    # names
    Case("unknown table", vt.ProgrammingError, lambda tx: tx.get("event", 1), "'event'", "events"),
    Case("unknown table to write", vt.ProgrammingError, lambda tx: tx.insert("event", {}), "'event'", "events"),
    Case("table that is a view", vt.ProgrammingError, lambda tx: tx.get("sums", 1), "view", "view('sums')"),
    Case("write to a view", vt.ProgrammingError, lambda tx: tx.insert("sums", {}), "view", "changes with its tables"),
    Case("table of no name", vt.InterfaceError, lambda tx: tx.get(None, 1)),  # type: ignore[arg-type]
    Case("unknown view", vt.ProgrammingError, lambda tx: tx.view("sum"), "'sum'", "sums"),
    Case("view that is a table", vt.ProgrammingError, lambda tx: tx.view("events"), "'events'", ""),
    Case("unknown column", vt.ProgrammingError, _insert(costs=1), "'costs'", "cost"),
    Case(
        "unknown column of update",
        vt.ProgrammingError,
        lambda tx: tx.update("events", 1, {"prise": 1}),
        "prise",
        "price",
    ),
    Case("unknown column of find", vt.ProgrammingError, lambda tx: tx.find("events", prod=1), "'prod'", "product"),
    Case("column name that is no text", vt.ProgrammingError, lambda tx: tx.update("events", 1, {5: 1})),  # type: ignore[dict-item]
    Case("not in the key", vt.ProgrammingError, lambda tx: tx.get("events", cost=1), "cost", "id"),
    Case("view key of wrong name", vt.ProgrammingError, lambda tx: tx.view("sums").get(prod=1), "prod", "product"),
    Case("find without index", vt.ProgrammingError, lambda tx: tx.find("events", cost=1), "cost", "create_index"),
    # values
    Case("text for int", vt.DataError, _insert(product="1"), "events.product", None),
    Case("bool for int", vt.DataError, _insert(product=True), "events.product", "int()"),
    Case("float for int", vt.DataError, _insert(product=1.0), "events.product", "int()"),
    Case("int too large", vt.DataError, _insert(product=2**63), "out of range", "64 bits"),
    Case("int too small", vt.DataError, _insert(product=-(2**63) - 1), "out of range", "64 bits"),
    Case("float for decimal", vt.DataError, _insert(price=1.5), "events.price", "Decimal"),
    Case("decimal too large", vt.DataError, _insert(price=Decimal("99999.99")), "events.price", None),
    Case("text for float", vt.DataError, _insert(weight="1"), "events.weight", None),
    Case("decimal for float", vt.DataError, _insert(weight=Decimal(1)), "events.weight", "float()"),
    Case("int too large for float", vt.DataError, _insert(weight=10**400), "events.weight", ""),
    Case("text too long", vt.DataError, _insert(note="123456"), "events.note", None),
    Case("bytes for text", vt.DataError, _insert(note=b"x"), "events.note", "decode"),
    Case("lone surrogate", vt.DataError, _insert(note="\ud800"), "events.note", None),
    Case("lone surrogate in a key", vt.DataError, lambda tx: tx.insert("texts", {"k": "\udfff"}), "texts.k", None),
    Case("lone surrogate to look up", vt.DataError, lambda tx: tx.get("texts", "\udfff"), "texts.k", None),
    Case("lone surrogate in json", vt.DataError, _insert(data={"a": "\ud800"}), "events.data", ""),
    Case("text for bytes", vt.DataError, _insert(raw="x"), "events.raw", "encode"),
    Case("int for bool", vt.DataError, _insert(ok=1), "events.ok", "bool()"),
    Case("datetime for date", vt.DataError, _insert(day=datetime.datetime(2024, 1, 1)), "events.day", "date()"),
    Case("text for date", vt.DataError, _insert(day="2024-01-01"), "events.day", "fromisoformat"),
    Case("text for timestamp", vt.DataError, _insert(at="2024-01-01"), "events.at", "fromisoformat"),
    Case("object for json", vt.DataError, _insert(data={"a": object()}), "events.data", ""),
    Case("nan for json", vt.DataError, _insert(data=float("nan")), "events.data", ""),
    Case("update to a wrong type", vt.DataError, lambda tx: tx.update("events", 1, {"cost": "1"}), "events.cost", None),
    Case(
        "upsert of a wrong type",
        vt.DataError,
        lambda tx: tx.upsert("events", {"id": 1, "cost": "1"}),
        "events.cost",
        None,
    ),
    Case("find by a wrong type", vt.DataError, lambda tx: tx.find("events", product="1"), "events.product", None),
    Case("get by a wrong type", vt.DataError, lambda tx: tx.get("events", "1"), "events.id", None),
    Case("get by a bool", vt.DataError, lambda tx: tx.get("events", True), "events.id", None),
    Case("scan from a wrong type", vt.DataError, lambda tx: tx.scan("events", "1"), "events.id", None),
    Case("view key of a wrong type", vt.DataError, lambda tx: tx.view("sums").get("x"), "sums.product", None),
    # constraints
    Case("duplicate key", vt.IntegrityError, lambda tx: tx.insert("events", {"id": 1, "cost": 1}), "1", "upsert"),
    Case("duplicate in one call", vt.IntegrityError, lambda tx: tx.insert("texts", [{"k": "a"}] * 2), "'a'", "upsert"),
    Case("update to a key that exists", vt.IntegrityError, lambda tx: tx.update("events", 1, {"id": 2}), "2", ""),
    Case("null key", vt.IntegrityError, lambda tx: tx.insert("events", {"id": None, "cost": 1}), "events.id", ""),
    Case("missing key", vt.IntegrityError, lambda tx: tx.insert("events", {"cost": 1}), "events.id", ""),
    Case("null in part of a key", vt.IntegrityError, lambda tx: tx.insert("pairs", {"a": 1, "b": None}), "pairs.b", ""),
    Case(
        "update of a key to null",
        vt.IntegrityError,
        lambda tx: tx.update("pairs", (1, "x"), {"b": None}),
        "pairs.b",
        "",
    ),
    Case("null in NOT NULL", vt.IntegrityError, lambda tx: tx.insert("events", {"id": 9, "cost": None}), "cost", ""),
    Case("missing NOT NULL", vt.IntegrityError, lambda tx: tx.insert("events", {"id": 9}), "events.cost", ""),
    Case("update to null", vt.IntegrityError, lambda tx: tx.update("events", 1, {"cost": None}), "events.cost", ""),
    Case("key too long", vt.DataError, lambda tx: tx.insert("texts", {"k": "x" * 600}), "key", ""),
    Case("key to look up too long", vt.DataError, lambda tx: tx.get("texts", "x" * 600), "key", ""),
    # arguments
    Case("row that is no mapping", vt.InterfaceError, lambda tx: tx.insert("events", [1]), "mapping", ""),  # type: ignore[list-item]
    Case("text for rows", vt.InterfaceError, lambda tx: tx.insert("events", "abc"), "mapping", ""),  # type: ignore[arg-type]
    Case("nothing for rows", vt.InterfaceError, lambda tx: tx.insert("events", None)),  # type: ignore[arg-type]
    Case("number for rows", vt.InterfaceError, lambda tx: tx.upsert("events", 5)),  # type: ignore[arg-type]
    Case("changes that are no mapping", vt.InterfaceError, lambda tx: tx.update("events", 1, [1])),  # type: ignore[arg-type]
    Case("number for keys", vt.InterfaceError, lambda tx: tx.get_many("events", 5)),  # type: ignore[arg-type]
    Case("key twice", vt.InterfaceError, lambda tx: tx.get("events", 1, id=1), "", None),
    Case("key twice to delete", vt.InterfaceError, lambda tx: tx.delete("events", 1, id=1), "", None),
    Case("key too short", vt.InterfaceError, lambda tx: tx.get("pairs", 1), "2 columns", "a, b"),
    Case("key too short by tuple", vt.InterfaceError, lambda tx: tx.get("pairs", (1,)), "2 columns", "a, b"),
    Case("key too short by name", vt.InterfaceError, lambda tx: tx.get("pairs", a=1), "b", ""),
    Case("key too long by tuple", vt.InterfaceError, lambda tx: tx.delete("pairs", (1, "x", 2)), "2 columns", ""),
    Case("prefix too long", vt.InterfaceError, lambda tx: tx.scan("pairs", (1, "x", 2)), "2 columns", ""),
    Case("view key too long", vt.InterfaceError, lambda tx: tx.view("sums").get((1, 2)), "has 1 column, got 2", ""),
    Case("key of a view that has none", vt.InterfaceError, lambda tx: tx.view("total").get(1), "total", ""),
    Case("find nothing", vt.InterfaceError, lambda tx: tx.find("events"), "", "scan"),
    Case("negative limit", vt.InterfaceError, lambda tx: tx.scan("events", limit=-1), "-1", None),
    Case("limit that is no int", vt.InterfaceError, lambda tx: tx.scan("events", limit=1.5), "1.5", None),  # type: ignore[arg-type]
    Case("limit that is text", vt.InterfaceError, lambda tx: tx.scan("events", limit="1"), "'1'", None),  # type: ignore[arg-type]
    Case("negative limit of a view", vt.InterfaceError, lambda tx: tx.view("sums").scan(limit=-1), "-1", None),
    Case("join of no query", vt.InterfaceError, lambda tx: tx.join("SELECT 1"), "", "query"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("case", IN_TRANSACTIONS, ids=lambda case: case.name.replace(" ", "_"))
def test_in_a_transaction(db: vt.Database, case: Case) -> None:
    before = _state(db)
    with db.transaction() as tx:
        with pytest.raises(vt.Error) as raised:
            case.use(tx)
        assert tx.get("events", 1) is not None, "the transaction goes on"
    _check(raised.value, case)
    assert _state(db) == before


def _check(error: vt.Error, case: Case) -> None:
    assert type(error) is case.kind, repr(error)
    assert case.message in error.message
    if case.hint is not None:
        assert error.hint and case.hint in error.hint, repr((error.message, error.hint))
    assert error.retryable is False
    assert error.message in str(error)


class DatabaseCase(NamedTuple):
    name: str
    kind: type[vt.Error]
    use: Callable[[vt.Database], object]
    message: str = ""
    hint: str | None = ""


ON_THE_DATABASE = [
    # tables
    DatabaseCase(
        "table exists", vt.ProgrammingError, lambda db: db.create_table("events", {"id": int}, key="id"), "events"
    ),
    DatabaseCase(
        "table with the name of a view", vt.ProgrammingError, lambda db: db.create_table("sums", {"id": int}, key="id")
    ),
    DatabaseCase("empty name", vt.InterfaceError, lambda db: db.create_table("", {"id": int}, key="id"), "", None),
    DatabaseCase(
        "name too long", vt.InterfaceError, lambda db: db.create_table("x" * 300, {"id": int}, key="id"), "", None
    ),
    DatabaseCase(
        "name with NUL", vt.InterfaceError, lambda db: db.create_table("a\0b", {"id": int}, key="id"), "", None
    ),
    DatabaseCase(
        "name with a surrogate",
        vt.InterfaceError,
        lambda db: db.create_table("\ud800", {"id": int}, key="id"),
        "",
        None,
    ),
    DatabaseCase(
        "column with a surrogate",
        vt.InterfaceError,
        lambda db: db.create_table("n", {"\ud800": int}, key="\ud800"),
        "",
        None,
    ),
    DatabaseCase(
        "view name with a surrogate",
        vt.InterfaceError,
        lambda db: db.create_view("\ud800", "SELECT id FROM events"),
        "",
        None,
    ),
    DatabaseCase("number as a name", vt.InterfaceError, lambda db: db.create_table(5, {"id": int}, key="id"), "", None),  # type: ignore[arg-type]
    DatabaseCase("no columns", vt.InterfaceError, lambda db: db.create_table("n", {}, key="id")),
    DatabaseCase("columns as a list", vt.InterfaceError, lambda db: db.create_table("n", ["id"], key="id")),  # type: ignore[arg-type]
    DatabaseCase("unknown type", vt.NotSupportedError, lambda db: db.create_table("n", {"id": object}, key="id")),
    DatabaseCase(
        "unknown SQL type", vt.NotSupportedError, lambda db: db.create_table("n", {"id": "uuid"}, key="id"), "uuid"
    ),
    DatabaseCase("no key", vt.InterfaceError, lambda db: db.create_table("n", {"id": int}, key=()), "", None),
    DatabaseCase(
        "unknown key", vt.ProgrammingError, lambda db: db.create_table("n", {"id": int}, key="ident"), "ident", "id"
    ),
    DatabaseCase(
        "key column twice",
        vt.ProgrammingError,
        lambda db: db.create_table("n", {"id": int}, key=["id", "id"]),
        "",
        None,
    ),
    DatabaseCase(
        "unknown index",
        vt.ProgrammingError,
        lambda db: db.create_table("n", {"id": int}, key="id", indexes=["x"]),
        "'x'",
        "id",
    ),
    DatabaseCase(
        "index twice",
        vt.ProgrammingError,
        lambda db: db.create_table("n", {"id": int, "x": int}, key="id", indexes=["x", "x"]),
        "",
        None,
    ),
    DatabaseCase(
        "wrong default",
        vt.DataError,
        lambda db: db.create_table("n", {"id": int, "x": vt.column(int, default="a")}, key="id"),
        "",
        None,
    ),
    DatabaseCase("drop an unknown table", vt.ProgrammingError, lambda db: db.drop_table("evnts"), "evnts", "events"),
    DatabaseCase("drop a view as a table", vt.ProgrammingError, lambda db: db.drop_table("sums"), "view", "drop_view"),
    DatabaseCase("drop a table that a view needs", vt.ProgrammingError, lambda db: db.drop_table("events"), "'sums'"),
    # columns and indexes
    DatabaseCase("column exists", vt.ProgrammingError, lambda db: db.add_column("events", "cost", int), "cost", None),
    DatabaseCase(
        "column of unknown table", vt.ProgrammingError, lambda db: db.add_column("event", "n", int), "event", "events"
    ),
    DatabaseCase(
        "NOT NULL without default",
        vt.IntegrityError,
        lambda db: db.add_column("events", "n", vt.column(int, nullable=False)),
        "NOT NULL",
        "default",
    ),
    DatabaseCase("column of unknown type", vt.NotSupportedError, lambda db: db.add_column("events", "n", "money")),
    DatabaseCase(
        "drop an unknown column", vt.ProgrammingError, lambda db: db.drop_column("events", "const"), "const", "cost"
    ),
    DatabaseCase(
        "drop a key column", vt.ProgrammingError, lambda db: db.drop_column("pairs", "b"), "primary key", None
    ),
    DatabaseCase(
        "drop an indexed column that a view needs",
        vt.ProgrammingError,
        lambda db: db.drop_column("events", "product"),
        "'sums'",
        "drop it first",
    ),
    DatabaseCase(
        "drop a column that a view needs", vt.ProgrammingError, lambda db: db.drop_column("events", "cost"), "'sums'"
    ),
    DatabaseCase("index exists", vt.ProgrammingError, lambda db: db.create_index("events", "product"), "product", None),
    DatabaseCase(
        "index on unknown column", vt.ProgrammingError, lambda db: db.create_index("events", "prod"), "prod", "product"
    ),
    DatabaseCase(
        "drop an unknown index", vt.ProgrammingError, lambda db: db.drop_index("events", "cost"), "cost", None
    ),
    # views
    DatabaseCase(
        "view exists", vt.ProgrammingError, lambda db: db.create_view("sums", "SELECT id FROM events"), "sums"
    ),
    DatabaseCase(
        "view with the name of a table",
        vt.ProgrammingError,
        lambda db: db.create_view("events", "SELECT id FROM pairs"),
    ),
    DatabaseCase(
        "view on an unknown table",
        vt.ProgrammingError,
        lambda db: db.create_view("v", "SELECT id FROM event"),
        "event",
        "events",
    ),
    DatabaseCase(
        "view on an unknown column",
        vt.ProgrammingError,
        lambda db: db.create_view("v", "SELECT prize FROM events"),
        "prize",
        "price",
    ),
    DatabaseCase(
        "view with a syntax error", vt.ProgrammingError, lambda db: db.create_view("v", "SELECT FROM WHERE"), "", None
    ),
    DatabaseCase("view that is no query", vt.Error, lambda db: db.create_view("v", "DELETE FROM events"), "", None),
    DatabaseCase("view of nothing", vt.Error, lambda db: db.create_view("v", ""), "", None),
    DatabaseCase("view of a number", vt.InterfaceError, lambda db: db.create_view("v", 5), "", None),  # type: ignore[arg-type]
    DatabaseCase(
        "view with equal names",
        vt.ProgrammingError,
        lambda db: db.create_view("v", "SELECT id, cost AS id FROM events"),
        "id",
        None,
    ),
    DatabaseCase(
        "view not grouped",
        vt.ProgrammingError,
        lambda db: db.create_view("v", "SELECT cost, COUNT(*) AS n FROM events GROUP BY product"),
        "cost",
        None,
    ),
    DatabaseCase(
        "view that compares text with int",
        vt.ProgrammingError,
        lambda db: db.create_view("v", "SELECT id FROM events WHERE note = id"),
        "",
        None,
    ),
    DatabaseCase(
        "unknown refresh",
        vt.InterfaceError,
        lambda db: db.create_view("v", "SELECT id FROM events", refresh="soon"),
        "soon",
        "ms",
    ),
    DatabaseCase(
        "refresh of a number",
        vt.InterfaceError,
        lambda db: db.create_view("v", "SELECT id FROM events", refresh=5),  # type: ignore[arg-type]
        "",
        None,
    ),
    DatabaseCase(
        "refresh that is none",
        vt.InterfaceError,
        lambda db: db.create_view("v", "SELECT id FROM events", refresh="weekly"),
        "weekly",
        "sync",
    ),
    DatabaseCase(
        "group of a sync view",
        vt.InterfaceError,
        lambda db: db.create_view("v", "SELECT id FROM events", group="g"),
        "group",
        "500ms",
    ),
    DatabaseCase(
        "negative backlog",
        vt.InterfaceError,
        lambda db: db.create_view("v", "SELECT id FROM events", refresh="1s", backlog_rows=-1),
        "backlog_rows",
        None,
    ),
    DatabaseCase("switch to nonsense", vt.InterfaceError, lambda db: db.view("sums").set_refresh("-5s"), "-5s"),
    DatabaseCase("unknown view", vt.ProgrammingError, lambda db: db.view("summ"), "summ", "sums"),
    DatabaseCase("drop an unknown view", vt.ProgrammingError, lambda db: db.drop_view("summ"), "summ", "sums"),
    DatabaseCase("drop a table as a view", vt.ProgrammingError, lambda db: db.drop_view("events"), "events", ""),
    DatabaseCase("wrong at_least", vt.InterfaceError, lambda db: db.view("sums").get(1, at_least=5), "at_least", None),  # type: ignore[arg-type]
    DatabaseCase("wrong max_lag", vt.InterfaceError, lambda db: db.view("sums").rows(max_lag="later"), "later"),
    DatabaseCase("negative max_lag", vt.InterfaceError, lambda db: db.view("sums").rows(max_lag=-1), "-1"),
    DatabaseCase(
        "explain nonsense", vt.ProgrammingError, lambda db: db.explain_view("SELECT nope FROM events"), "nope", None
    ),
]


@pytest.mark.parametrize("case", ON_THE_DATABASE, ids=lambda case: case.name.replace(" ", "_"))
def test_on_the_database(db: vt.Database, case: DatabaseCase) -> None:
    before, names = _state(db), (db.tables(), db.views())
    with pytest.raises(vt.Error) as raised:
        case.use(db)
    if case.kind is not vt.Error:
        assert type(raised.value) is case.kind, repr(raised.value)
    assert case.message in raised.value.message
    if case.hint is not None:
        assert raised.value.hint and case.hint in raised.value.hint, repr((raised.value.message, raised.value.hint))
    assert (db.tables(), db.views()) == names and _state(db) == before
    with db.transaction() as tx:
        tx.insert("events", {"id": 50, "cost": 1})
    assert db.view("total").get() == {"n": 3}


# --- views that cannot be kept

UNSUPPORTED = {
    "SELECT id FROM events LIMIT 5": "LIMIT",
    "SELECT e.id FROM events e, products p": "join",
    "SELECT e.id FROM events e JOIN products p ON e.cost > p.id": "join",
    "SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS n FROM events": "window",
    "SELECT id, random() AS r FROM events": "random",
    "SELECT id, now() AS r FROM events": "now",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r": "",
    "SELECT id FROM events FOR UPDATE": "FOR UPDATE",
    "SELECT id, (SELECT COUNT(*) FROM products) AS n FROM events": "subquer",
    "SELECT e.id FROM events e LEFT JOIN products p ON e.cost > p.id": "join",
    "SELECT e.id FROM events e WHERE EXISTS (SELECT 1 FROM products p WHERE p.id > e.cost)": "join",
    "SELECT e.id FROM events e WHERE EXISTS (SELECT 1 FROM products p)": "join",
    "SELECT DISTINCT ON (product) id FROM events": "DISTINCT ON",
    "SELECT id FROM events WHERE id > 3 OR EXISTS (SELECT 1 FROM products p WHERE p.id = events.product)": "",
    "SELECT e.id FROM events e, LATERAL (SELECT 1 AS x FROM products p WHERE p.id = e.product) q": "LATERAL",
}


@pytest.mark.parametrize("sql", UNSUPPORTED)
def test_a_view_that_cannot_be_kept_names_reason_and_place(db: vt.Database, sql: str) -> None:
    for use in (lambda: db.create_view("v", sql), lambda: db.explain_view(sql)):
        with pytest.raises(vt.UnsupportedView) as raised:
            use()
        error = raised.value
        assert UNSUPPORTED[sql].lower() in error.reason.lower()
        assert error.place is not None
        line, column = error.place
        assert line == 1 and 1 <= column <= len(sql)
        assert f"line {line}, column {column}" in str(error)
        assert isinstance(error, vt.NotSupportedError)
    assert db.views() == ["sums", "total"]


def test_a_place_counts_lines(db: vt.Database) -> None:
    with pytest.raises(vt.UnsupportedView) as raised:
        db.create_view("v", "SELECT id,\n       random() AS r\nFROM events")
    assert raised.value.place == (2, 8)


def test_a_view_that_others_need_is_not_dropped(db: vt.Database) -> None:
    db.create_view("above", "SELECT cost FROM sums")
    with pytest.raises(vt.ProgrammingError) as raised:
        db.drop_view("sums")
    assert "'above'" in str(raised.value) and "cascade" in raised.value.hint
    with pytest.raises(vt.ProgrammingError, match="'sums', 'total' depend"):
        db.drop_table("events")
    db.drop_view("sums", cascade=True)
    assert db.views() == ["total"]


# --- errors of data that a view meets


@pytest.mark.parametrize(
    ("sql", "row"),
    [
        ("SELECT id, 100 / cost AS share FROM events", {"id": 77, "cost": 0}),
        ("SELECT id, 100 % cost AS rest FROM events", {"id": 77, "cost": 0}),
        ("SELECT product, SUM(100 / cost) AS share FROM events GROUP BY product", {"id": 77, "cost": 0}),
        ("SELECT id, cost * 2 AS twice FROM events", {"id": 77, "cost": 2**62}),
        ("SELECT cost + 1 AS more, COUNT(*) AS n FROM events GROUP BY cost + 1", {"id": 77, "cost": 2**63 - 1}),
        ("SELECT id FROM events WHERE 10 / cost > 1", {"id": 77, "cost": 0}),
    ],
    ids=["divide", "modulo", "in_sum", "overflow", "group_key", "filter"],
)
def test_a_view_that_cannot_be_computed_aborts_the_writer_and_names_view_and_row(
    db: vt.Database, sql: str, row: dict[str, object]
) -> None:
    db.create_view("shares", sql)
    before = _state(db)
    tx = db.transaction()
    tx.insert("events", [{"id": 76, "cost": 5}, row])
    with pytest.raises(vt.DataError) as raised:
        tx.commit()
    assert "'shares'" in str(raised.value) and "77" in str(raised.value)
    assert not raised.value.retryable
    assert _state(db) == before
    with pytest.raises(vt.InterfaceError):
        tx.get("events", 1)
    with db.transaction() as tx:
        tx.insert("events", {"id": 76, "cost": 5})
    with pytest.raises(vt.DataError), db.transaction() as tx:
        tx.update("events", 76, {"cost": row["cost"]})
    assert db.view("shares").verify().ok


def test_one_bad_transaction_does_not_harm_others_of_the_same_flush(db: vt.Database) -> None:
    db.create_view("shares", "SELECT id, 100 / cost AS share FROM events")
    barrier = threading.Barrier(8)
    outcomes: list[object] = [None] * 8

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(10):
            try:
                with db.transaction() as tx:
                    tx.insert("events", {"id": 100 + number * 100 + turn, "cost": number % 2})
                outcomes[number] = "committed"
            except vt.DataError as error:
                outcomes[number] = type(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [vt.DataError, "committed"] * 4
    assert db.view("total").get() == {"n": 2 + 40}
    assert db.view("shares").verify().ok


def test_long_keys_of_groups_are_no_error(db: vt.Database) -> None:
    db.create_table("long", {"id": int, "s": str}, key="id", indexes=["s"])
    view = db.create_view("groups", "SELECT s, COUNT(*) AS n FROM long GROUP BY s")
    with db.transaction() as tx:
        tx.insert("long", [{"id": 1, "s": "x" * 5000}, {"id": 2, "s": "x" * 5000 + "y"}])
    assert view.get("x" * 5000) == {"s": "x" * 5000, "n": 1} and view.rows().rowcount == 2


@pytest.mark.parametrize("length", [1, 100, 400])
def test_keys_up_to_the_limit_are_fine(db: vt.Database, length: int) -> None:
    with db.transaction() as tx:
        tx.insert("texts", {"k": "x" * length})
    with db.snapshot() as snapshot:
        assert snapshot.get("texts", "x" * length) is not None


# --- databases


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("tcp://localhost", vt.InterfaceError),
        ("http://x", vt.NotSupportedError),
        ("", vt.InterfaceError),
        (b"bytes", vt.InterfaceError),
        (None, vt.InterfaceError),
        (5, vt.InterfaceError),
        ("a\0b", vt.InterfaceError),
    ],
    ids=str,
)
@pytest.mark.embedded("is about what connect opens itself")
def test_targets_that_cannot_be_opened(
    target: str, kind: type[vt.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as raised:
        vt.connect(target)
    assert type(raised.value) is kind
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cache_rows", [0, 99, -1, 1000.0, "1000", None, True])
def test_cache_rows_must_be_a_number(cache_rows: object) -> None:
    with pytest.raises(vt.InterfaceError):
        vt.connect("memory:", cache_rows=cache_rows)  # type: ignore[arg-type]


def test_a_file_or_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    for path in (file, file / "below", other):
        with pytest.raises(vt.OperationalError):
            vt.connect(path)
    assert file.read_text() == (other / "letter.txt").read_text() == "mine"
    assert [entry.name for entry in other.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("path", ["/proc/x.db", "x" * 300])
def test_a_directory_that_cannot_be_made_is_told_with_a_hint(path: str) -> None:
    with pytest.raises(vt.OperationalError, match="cannot be made or opened: ") as raised:
        vt.connect(path)
    assert "permissions" in raised.value.hint


def test_a_second_opener_is_told_the_pid(db_path: Path) -> None:
    with vt.connect(db_path):
        with pytest.raises(vt.DirectoryInUse) as raised:
            vt.connect(db_path)
        assert str(os.getpid()) in raised.value.message and raised.value.hint
        code = (
            "import sys, viewtide as vt\n"
            "try:\n    vt.connect(sys.argv[1])\n"
            "except vt.OperationalError as error:\n    print(error)\n"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, str(db_path)], capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        assert f"process {os.getpid()}" in other.stdout
    vt.connect(db_path).close()


CLOSED: dict[str, Callable[[vt.Database, vt.Transaction, vt.View], object]] = {
    "transaction": lambda db, tx, view: db.transaction(),
    "snapshot": lambda db, tx, view: db.snapshot(),
    "run": lambda db, tx, view: db.run(lambda tx: None),
    "create_table": lambda db, tx, view: db.create_table("n", {"id": int}, key="id"),
    "drop_table": lambda db, tx, view: db.drop_table("pairs"),
    "add_column": lambda db, tx, view: db.add_column("pairs", "n", int),
    "drop_column": lambda db, tx, view: db.drop_column("pairs", "x"),
    "create_index": lambda db, tx, view: db.create_index("pairs", "x"),
    "drop_index": lambda db, tx, view: db.drop_index("events", "product"),
    "create_view": lambda db, tx, view: db.create_view("v", "SELECT id FROM events"),
    "drop_view": lambda db, tx, view: db.drop_view("sums"),
    "explain_view": lambda db, tx, view: db.explain_view("SELECT id FROM events"),
    "view": lambda db, tx, view: db.view("sums"),
    "tables": lambda db, tx, view: db.tables(),
    "views": lambda db, tx, view: db.views(),
    "status": lambda db, tx, view: db.status(),
    "tx.get": lambda db, tx, view: tx.get("events", 1),
    "tx.insert": lambda db, tx, view: tx.insert("events", {"id": 9, "cost": 1}),
    "tx.commit": lambda db, tx, view: tx.commit(),
    "view.get": lambda db, tx, view: view.get(1),
    "view.rows": lambda db, tx, view: view.rows(),
    "view.status": lambda db, tx, view: view.status(),
    "view.explain": lambda db, tx, view: view.explain(),
    "view.verify": lambda db, tx, view: view.verify(),
    "view.refresh": lambda db, tx, view: view.refresh(),
    "view.set_refresh": lambda db, tx, view: view.set_refresh("sync"),
}


@pytest.mark.parametrize("use", CLOSED)
def test_a_closed_database_is_an_interface_error(db: vt.Database, use: str) -> None:
    tx, view = db.transaction(), db.view("sums")
    tx.get("events", 1)
    tx.update("events", 1, {"cost": 1})
    db.close()
    with pytest.raises(vt.InterfaceError) as raised:
        CLOSED[use](db, tx, view)
    assert "closed" in raised.value.message and raised.value.hint


def test_an_exception_is_not_hidden_when_the_database_was_closed_meanwhile(db: vt.Database) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.update("events", 1, {"cost": 1})
        db.close()
        raise ZeroDivisionError


# --- when the disk fails


def test_a_failing_log_is_an_unknown_commit_and_then_stops_everything(
    db_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = vt.connect(db_path)
    db.create_table("t", {"id": int}, key="id")

    def fail(*_: object) -> int:
        raise vt.OperationalError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(db._engine.ltm._log, "append", fail)
        with pytest.raises(vt.CommitUnknown) as raised, db.transaction() as tx:
            tx.insert("t", {"id": 1})
        assert raised.value.hint and not raised.value.retryable
    with db.snapshot() as snapshot:
        assert snapshot.scan("t") == [], "nobody reads what may be lost"
    with pytest.raises(vt.OperationalError) as stopped, db.transaction() as tx:
        tx.insert("t", {"id": 2})
    assert type(stopped.value) is vt.OperationalError and stopped.value.hint
    with pytest.raises(vt.OperationalError):
        db.create_table("u", {"id": int}, key="id")
    db.close()
    with vt.connect(db_path) as db, db.snapshot() as snapshot:
        # With several LTMs their logs have the votes, and it is committed.
        assert len(snapshot.scan("t")) == (0 if usual_ltms() == 1 else 1)


def test_a_failing_checkpoint_answers_every_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer that waits for the checkpoint gets the error, and so do all after it: nobody hangs."""
    with vt.connect("memory:", cache_rows=100) as db:
        db.create_table("t", {"id": int}, key="id")

        def fail(*_: object) -> None:
            raise vt.OperationalError("no space left")

        monkeypatch.setattr(db._engine.ltm._store, "write", fail)
        outcomes: list[object] = []

        def work(number: int) -> None:
            for turn in range(40):
                try:
                    with db.transaction() as tx:
                        tx.insert("t", [{"id": number * 10_000 + turn * 100 + i} for i in range(20)])
                except vt.Error as error:
                    outcomes.append(type(error))
                    return

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        hung = [thread for thread in threads if thread.is_alive()]
        monkeypatch.undo()
        assert not hung
        assert len(outcomes) == 4 and set(outcomes) <= {vt.OperationalError, vt.CommitUnknown}


# --- the tree of errors


def test_the_tree_of_errors_is_that_of_pep_249() -> None:
    for child in (
        "OperationalError",
        "IntegrityError",
        "ProgrammingError",
        "DataError",
        "NotSupportedError",
        "InternalError",
    ):
        assert issubclass(getattr(vt, child), vt.DatabaseError)
    for child in (
        "TransactionConflict",
        "CommitUnknown",
        "Unavailable",
        "StaleRead",
        "Busy",
        "DirectoryInUse",
        "Refused",
    ):
        assert issubclass(getattr(vt, child), vt.OperationalError)
    assert issubclass(vt.UnsupportedView, vt.NotSupportedError)
    assert issubclass(vt.InterfaceError, vt.Error) and not issubclass(vt.InterfaceError, vt.DatabaseError)
    retryable = {
        name
        for name in vt.__all__
        if isinstance(getattr(vt, name), type) and getattr(getattr(vt, name), "retryable", False)
    }
    assert retryable == {"TransactionConflict", "Busy", "Unavailable", "StaleRead"}


def test_every_public_name_is_there() -> None:
    assert all(hasattr(vt, name) for name in vt.__all__) and set(vt.__all__) <= set(dir(vt))
    with pytest.raises(AttributeError):
        _ = vt.nope


@pytest.mark.parametrize(
    "error",
    [
        vt.UnsupportedView("recursion", place=(2, 7), hint="walk"),
        vt.UnsupportedView("recursion"),
        vt.DataError("integer out of range", hint="use numeric"),
        vt.Busy("full"),
        vt.Refused("no key", hint="give one"),
    ],
    ids=repr,
)
def test_errors_are_pickled_and_copied_as_they_are(error: vt.Error) -> None:
    """Processes hand them to each other: a second "not supported: " came with each of them."""
    error.add_note("of a test")
    for made in (pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(copy.copy(error))), copy.copy(error)):
        assert type(made) is type(error)
        assert (made.args, str(made), repr(made)) == (error.args, str(error), repr(error))
        assert vars(made) == vars(error) and made.hint == error.hint and made.retryable is error.retryable
