"""Tables, columns, indexes and what reads of them return."""

from __future__ import annotations

import copy
import datetime
import math
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import pytest

import viewtide as vt

pytestmark = pytest.mark.several_ltms


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        yield opened


@pytest.fixture
def shop(db: vt.Database) -> vt.Database:
    db.create_table("products", {"id": int, "category": str}, key="id")
    db.create_table(
        "events",
        {"id": int, "product": int, "cost": vt.column(int, nullable=False), "note": str},
        key="id",
        indexes=["product", ("product", "note")],
    )
    with db.transaction() as tx:
        tx.insert("products", [{"id": i, "category": f"c{i % 2}"} for i in range(4)])
        tx.insert("events", [{"id": i, "product": i % 4, "cost": i * 10, "note": f"n{i % 3}"} for i in range(12)])
    return db


def _ids(rows: vt.Result) -> list[object]:
    return [row["id"] for row in rows]


# --- tables and columns

ALL_TYPES: dict[str, tuple[object, object, object]] = {
    # name: (type, what is given, what is read)
    "i": (int, -(2**63), -(2**63)),
    "f": (float, 1, 1.0),
    "d": (Decimal, Decimal("1.50"), Decimal("1.50")),
    "n": ("numeric(10,2)", Decimal("1.005"), Decimal("1.01")),
    "s": (str, "ä\0ž", "ä\0ž"),
    "v": ("varchar(3)", "ab", "ab"),
    "b": (bytes, bytearray(b"\0\xff"), b"\0\xff"),
    "t": (bool, True, True),
    "day": (datetime.date, datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
    "at": (datetime.datetime, datetime.datetime(2024, 1, 1, 1, 2, 3, 4), datetime.datetime(2024, 1, 1, 1, 2, 3, 4)),
    "tz": (
        "timestamptz",
        datetime.datetime(2024, 1, 1, 3, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        datetime.datetime(2024, 1, 1, 1, tzinfo=datetime.UTC),
    ),
    "j": (dict, {"b": [1, 2.5, None], "a": "x"}, {"a": "x", "b": [1, 2.5, None]}),
    "l": (list, [1, {"k": []}], [1, {"k": []}]),
}


@pytest.mark.parametrize("reopen", [False, True], ids=["same", "reopened"])
def test_every_type_goes_in_and_comes_out(db_path: Path, reopen: bool) -> None:
    db = vt.connect(db_path)
    db.create_table("t", {"id": int, **{name: spec for name, (spec, _, _) in ALL_TYPES.items()}}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, **{name: given for name, (_, given, _) in ALL_TYPES.items()}})
        tx.insert("t", {"id": 2})
    if reopen:
        db.close()
        db = vt.connect(db_path)
    with db.snapshot() as snapshot:
        row = snapshot.get("t", 1)
        assert row is not None
        for name, (_, _, expected) in ALL_TYPES.items():
            assert (row[name], type(row[name])) == (expected, type(expected)), name
        assert row["tz"].tzinfo is datetime.UTC  # type: ignore[attr-defined]
        assert snapshot.get("t", 2) == {"id": 2, **dict.fromkeys(ALL_TYPES)}
    db.close()


@pytest.mark.parametrize("name", [name for name in ALL_TYPES if name not in ("j", "l")])
def test_every_type_is_a_key_and_an_index(db: vt.Database, name: str) -> None:
    spec, given, expected = ALL_TYPES[name]
    db.create_table("t", {"k": spec, "other": spec}, key="k", indexes=["other"])
    with db.transaction() as tx:
        tx.insert("t", {"k": given, "other": given})
        assert tx.get("t", given) == {"k": expected, "other": expected}
    with db.snapshot() as snapshot:
        assert snapshot.get("t", given) == snapshot.get("t", k=given) == {"k": expected, "other": expected}
        assert len(snapshot.find("t", other=given)) == len(snapshot.find("t", k=given)) == 1


def test_float_keys_are_equal_as_in_sql(db: vt.Database) -> None:
    db.create_table("t", {"k": float, "f": float}, key="k", indexes=["f"])
    with db.transaction() as tx:
        tx.insert("t", [{"k": 0.0, "f": -0.0}, {"k": math.nan, "f": math.nan}, {"k": math.inf, "f": 0.0}])
    with pytest.raises(vt.IntegrityError), db.transaction() as tx:
        tx.insert("t", {"k": -0.0})
    with pytest.raises(vt.IntegrityError), db.transaction() as tx:
        tx.insert("t", {"k": -math.nan})
    with db.snapshot() as snapshot:
        assert [row["k"] for row in snapshot.scan("t")][:2] == [0.0, math.inf]
        assert len(snapshot.find("t", f=0.0)) == len(snapshot.find("t", f=-0.0)) == 2
        assert len(snapshot.find("t", f=math.nan)) == 1
        assert snapshot.get("t", -0.0) is not None and snapshot.get("t", math.nan) is not None


def test_defaults_and_not_null(db: vt.Database) -> None:
    db.create_table(
        "t", {"id": int, "n": vt.column(int, nullable=False, default=7), "s": vt.column(str, default="x")}, key="id"
    )
    with db.transaction() as tx:
        tx.insert("t", [{"id": 1}, {"id": 2, "n": 0, "s": None}])
    with db.snapshot() as snapshot:
        assert snapshot.scan("t") == [{"id": 1, "n": 7, "s": "x"}, {"id": 2, "n": 0, "s": None}]


def test_names_of_tables_and_views(shop: vt.Database) -> None:
    assert shop.tables() == ["products", "events"]
    assert shop.views() == []
    shop.create_view("v", "SELECT COUNT(*) AS n FROM events")
    shop.drop_table("products")
    assert (shop.tables(), shop.views()) == (["events"], ["v"])
    status = shop.status()
    assert (status.name, status.tables, status.views) == ("memory:", 1, 1)


def test_names_need_quotes_in_sql_only(db: vt.Database) -> None:
    db.create_table("Group", {"Order": int, "select": int, "ü b": str}, key="Order")
    with db.transaction() as tx:
        tx.insert("Group", {"Order": 1, "select": 2, "ü b": "x"})
    view = db.create_view("a view", 'SELECT "select", COUNT(*) AS n FROM "Group" GROUP BY "select"')
    assert view.rows() == [{"select": 2, "n": 1}]
    with db.snapshot() as snapshot:
        assert snapshot.get("Group", Order=1) == {"Order": 1, "select": 2, "ü b": "x"}


def test_memory_databases_are_private() -> None:
    with vt.connect("memory:") as first, vt.connect("memory:") as second:
        first.create_table("t", {"id": int}, key="id")
        assert (first.tables(), second.tables()) == (["t"], [])


def test_a_dropped_table_can_be_made_again_and_is_empty(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        for value in (1, 2):
            db.create_table("t", {"id": int, "x": int}, key="id", indexes=["x"])
            with db.transaction() as tx:
                tx.insert("t", {"id": 1, "x": value})
                assert len(tx.scan("t")) == 1
            if value == 1:
                db._engine.checkpoint()
                db.drop_table("t")
        db._engine.checkpoint()
    with vt.connect(db_path) as db, db.snapshot() as snapshot:
        assert snapshot.scan("t") == [{"id": 1, "x": 2}]
        assert len(snapshot.find("t", x=2)) == 1 and len(snapshot.find("t", x=1)) == 0


# --- columns online


@pytest.mark.parametrize("reopen", [False, True], ids=["same", "reopened"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["logged", "stored"])
def test_an_added_column_has_its_default_in_old_rows(db_path: Path, checkpoint: bool, reopen: bool) -> None:
    db = vt.connect(db_path)
    db.create_table("t", {"id": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1})
    if checkpoint:
        db._engine.checkpoint()
    db.add_column("t", "n", vt.column(int, nullable=False, default=5))
    db.add_column("t", "s", str)
    with db.transaction() as tx:
        tx.insert("t", {"id": 2, "n": 6, "s": "x"})
    if reopen:
        db.close()
        db = vt.connect(db_path)
    with db.snapshot() as snapshot:
        assert snapshot.scan("t") == [{"id": 1, "n": 5, "s": None}, {"id": 2, "n": 6, "s": "x"}]
    view = db.create_view("v", "SELECT SUM(n) AS n FROM t")
    with db.transaction() as tx:
        tx.update("t", 1, {"s": "y"})
    assert view.get() == {"n": 11}
    db.close()


@pytest.mark.several_ltms
@pytest.mark.parametrize("by_sql", [False, True], ids=["python", "sql"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["logged", "stored"])
def test_indexes_and_constraints_go_with_a_column(db_path: Path, checkpoint: bool, by_sql: bool) -> None:
    """As in PostgreSQL: those that contain it, and no others; in one change of the catalog."""

    def indexed(db: vt.Database) -> list[tuple[int, ...]]:
        table = db._table("t")
        assert all(index.ready for index in table.indexes)
        assert [unique.name for unique in table.uniques] == [
            name for name, columns in (("t_b_key", (2,)),) if columns in {index.columns for index in table.indexes}
        ]
        return sorted(index.columns for index in table.indexes)

    with vt.connect(db_path) as db:
        db.sql("CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b int UNIQUE, c int, UNIQUE (b, a))")
        db.create_index("t", "c")
        db.create_index("t", ["c", "a"])
        db.create_view("counts", "SELECT c, COUNT(*) AS n FROM t GROUP BY c")
        db.sql("INSERT INTO t VALUES (1, 10, 20, 30), (2, 11, 21, 30)")
        if checkpoint:
            db._engine.checkpoint()
        version = db._catalog().version
        tx = db.transaction()
        tx.insert("t", {"id": 3, "a": 12, "b": 22, "c": 31})
        if by_sql:
            db.sql("ALTER TABLE t DROP COLUMN a")
        else:
            db.drop_column("t", "a")
        assert db._catalog().version > version
        assert indexed(db) == [(2,), (3,)]
        with pytest.raises(vt.Error):
            tx.commit()  # it wrote the column
        db.sql("INSERT INTO t VALUES (3, 22, 31)")
        with pytest.raises(vt.IntegrityError):
            db.sql("INSERT INTO t VALUES (4, 22, 31)")
    with vt.connect(db_path) as db:
        assert indexed(db) == [(2,), (3,)]
        with db.snapshot() as snapshot:
            assert [dict(row) for row in snapshot.find("t", c=30)] == [
                {"id": 1, "b": 20, "c": 30},
                {"id": 2, "b": 21, "c": 30},
            ]
            with pytest.raises(vt.ProgrammingError):
                snapshot.find("t", a=10)
        db.add_column("t", "a", int)
        db.create_index("t", "a")
        db.run(lambda tx: tx.update("t", 1, {"a": 5}))
        assert [row.id for row in db.snapshot().find("t", a=5)] == [1]
        assert db.view("counts").verify().ok


def test_a_column_stays_whose_index_a_view_needs(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    db.create_table("u", {"id": int, "x": int}, key="id")
    db.create_view("joined", "SELECT t.id, u.x FROM t JOIN u ON u.id = t.a")
    with pytest.raises(vt.ProgrammingError, match="'joined' depends on it") as raised:
        db.drop_column("t", "a")
    assert raised.value.hint == "drop it first"
    assert [index.columns for index in db._table("t").indexes] == [(1,)]
    db.drop_view("joined")
    db.drop_column("t", "a")
    assert db._table("t").indexes == ()


@pytest.mark.parametrize("checkpoint", [False, True], ids=["logged", "stored"])
def test_a_dropped_column_is_gone_and_its_name_is_free(db_path: Path, checkpoint: bool) -> None:
    db = vt.connect(db_path)
    db.create_table("t", {"id": int, "a": int, "b": str}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 10, "b": "x"})
    if checkpoint:
        db._engine.checkpoint()
    db.drop_column("t", "a")
    with db.snapshot() as snapshot:
        row = snapshot.get("t", 1)
        assert row == {"id": 1, "b": "x"}
        assert (row[1], len(row), list(row)) == ("x", 2, ["id", "b"])
    with pytest.raises(vt.ProgrammingError), db.transaction() as tx:
        tx.update("t", 1, {"a": 1})
    db.add_column("t", "a", str)
    with db.transaction() as tx:
        assert tx.get("t", 1) == {"id": 1, "b": "x", "a": None}
        tx.insert("t", {"id": 2, "b": "y", "a": "z"})
        tx.upsert("t", {"id": 1, "a": "w"})
    db.close()
    with vt.connect(db_path) as db, db.snapshot() as snapshot:
        assert snapshot.scan("t") == [{"id": 1, "b": "x", "a": "w"}, {"id": 2, "b": "y", "a": "z"}]


@pytest.mark.parametrize("converted", [False, True], ids=["plain", "with_json"])
def test_a_column_is_added_while_a_transaction_is_open(db: vt.Database, converted: bool) -> None:
    """Who has read goes on with the columns that it knows; what a writer wrote before gets the default."""
    extra: dict[str, object] = {"j": dict} if converted else {}
    null: dict[str, object] = {"j": None} if converted else {}
    db.create_table("t", {"id": int, "a": int, **extra}, key="id", indexes=["a"])
    db.create_view("v", "SELECT a, COUNT(*) AS n FROM t GROUP BY a")
    with db.transaction() as tx:
        tx.insert("t", [{"id": 1, "a": 1}, {"id": 2, "a": 1}])
    reader, tx = db.transaction(), db.transaction()
    tx.insert("t", {"id": 3, "a": 1})
    assert reader.get("t", 1) == {"id": 1, "a": 1, **null}
    db.add_column("t", "b", vt.column(int, default=9))
    for row in (reader.get("t", 1), reader.scan("t")[0], reader.find("t", a=1)[0]):
        assert row is not None
        assert dict(row) == {"id": 1, "a": 1, **null}
        assert len(row) == len(list(row)) == 2 + len(extra)
    assert reader.view("v").get(1) == {"a": 1, "n": 2}
    own = tx.get("t", 3)
    assert own is not None and (own["id"], own["a"], own.get("b", 9)) == (3, 1, 9)
    assert len(own) == len(list(own))
    assert tx.update("t", 1, {"a": 2})
    assert tx.update("t", 2, {"id": 20})
    tx.upsert("t", {"id": 4, "a": 2})
    reader.commit()
    tx.commit()
    with db.snapshot() as snapshot:
        assert [(row["id"], row["a"], row["b"]) for row in snapshot.scan("t")] == [
            (1, 2, 9), (3, 1, 9), (4, 2, 9), (20, 1, 9),
        ]  # fmt: skip
    assert db.view("v").verify().ok


def test_a_view_on_an_added_column_is_read_by_a_transaction_that_wrote_before(db: vt.Database) -> None:
    db.create_table("t", {"id": int}, key="id")
    tx = db.transaction()
    tx.insert("t", {"id": 1})
    db.add_column("t", "b", vt.column(int, default=9))
    db.create_view("v", "SELECT SUM(b) AS b FROM t")
    assert tx.view("v").get() == {"b": 9}
    tx.commit()
    assert db.view("v").get() == {"b": 9}


def test_a_not_null_column_without_default_never_becomes_null(db: vt.Database) -> None:
    """The table is empty when the column is added, but a transaction has a row under way."""
    db.create_table("t", {"id": int}, key="id")
    tx = db.transaction()
    tx.insert("t", {"id": 1})
    db.add_column("t", "n", vt.column(int, nullable=False))
    with pytest.raises((vt.TransactionConflict, vt.IntegrityError)):
        tx.commit()
    with db.snapshot() as snapshot:
        assert snapshot.scan("t") == []


def test_a_column_is_dropped_while_a_transaction_is_open(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "a": int, "b": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 1, "b": 1})
    snapshot, tx = db.snapshot().__enter__(), db.transaction()
    tx.update("t", 1, {"a": 2})
    db.drop_column("t", "a")
    assert snapshot.get("t", 1) == {"id": 1, "a": 1, "b": 1}
    snapshot.close()
    with pytest.raises(vt.TransactionConflict):
        tx.commit()
    with db.snapshot() as snapshot:
        assert snapshot.get("t", 1) == {"id": 1, "b": 1}


def test_rows_have_all_their_columns_while_columns_are_added(db: vt.Database) -> None:
    db.create_table("t", {"id": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", [{"id": i} for i in range(50)])
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                with db.snapshot() as snapshot:
                    for row in snapshot.scan("t"):
                        assert len(row) == len(list(row))
                        assert row[-1] == (row["id"] if len(row) == 1 else len(row))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(2, 22):
        db.add_column("t", f"c{number}", vt.column(int, default=number))
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []


# --- reads of tables


def test_get_takes_a_value_a_tuple_or_names(db: vt.Database) -> None:
    db.create_table("t", {"x": int, "b": str, "a": int}, key=["a", "b"])
    with db.transaction() as tx:
        tx.insert("t", [{"a": a, "b": b, "x": a} for a in (1, 2) for b in ("p", "q")])
        expected = {"x": 2, "b": "p", "a": 2}
        assert tx.get("t", (2, "p")) == tx.get("t", a=2, b="p") == tx.get("t", b="p", a=2) == expected
        assert tx.get("t", {"b": "p", "a": 2}) == tx.get("t", [2, "p"]) == expected
        assert tx.get("t", (3, "p")) is None
        assert tx.get_many("t", [(1, "q"), (9, "q"), (2, "p")]) == [{"x": 1, "b": "q", "a": 1}, None, expected]
        assert tx.update("t", (2, "p"), {"x": 7}) and tx.update("t", {"a": 2, "b": "q"}, {"x": 8})
        assert tx.delete("t", a=1, b="p") and tx.delete("t", (1, "q"))
    with db.snapshot() as snapshot:
        assert [row["x"] for row in snapshot.scan("t")] == [7, 8]


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_scan_ranges_prefixes_and_limits(db: vt.Database, stored: bool) -> None:
    db.create_table("t", {"a": int, "b": str, "c": int}, key=["a", "b"])
    keys = [(a, b) for a in (-2, 1, 2, 10) for b in ("", "a", "ab", "b")]
    with db.transaction() as tx:
        tx.insert("t", [{"a": a, "b": b, "c": 0} for a, b in reversed(keys)])
    if stored:
        db._engine.checkpoint()

    def scanned(*args: object, **named: object) -> list[tuple[object, object]]:
        with db.snapshot() as snapshot:
            return [(row["a"], row["b"]) for row in snapshot.scan("t", *args, **named)]  # type: ignore[arg-type]

    assert scanned() == keys
    assert scanned((1,), (10,)) == [key for key in keys if 1 <= key[0] < 10]
    assert scanned(1, 10) == scanned({"a": 1}, {"a": 10}) == scanned((1,), (10,))
    assert scanned((1, "ab")) == [key for key in keys if key >= (1, "ab")]
    assert scanned(stop=(2, "ab")) == [key for key in keys if key < (2, "ab")]
    assert scanned((1, "a"), (1, "b")) == [(1, "a"), (1, "ab")]
    assert scanned(start=1, limit=3) == keys[4:7]
    assert scanned(limit=0) == scanned(11) == scanned(5, 3) == []
    assert scanned(limit=1000) == keys


def test_scans_longer_than_a_page(db: vt.Database) -> None:
    db.create_table("t", {"id": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", [{"id": i} for i in range(0, 2000, 2)])
    db._engine.checkpoint()
    with db.transaction() as tx:
        tx.insert("t", [{"id": i} for i in range(1, 2000, 2)])
        for i in range(500, 520):
            tx.delete("t", i)
    with db.snapshot() as snapshot:
        expected = [i for i in range(2000) if not 500 <= i < 520]
        assert _ids(snapshot.scan("t")) == expected
        assert _ids(snapshot.scan("t", 255, 1300, 700)) == [i for i in expected if 255 <= i < 1300][:700]


def test_find_uses_the_key_an_index_or_a_prefix_of_the_key(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        assert _ids(snapshot.find("events", id=5)) == [5]
        assert _ids(snapshot.find("events", id=5, product=1)) == [5]
        assert _ids(snapshot.find("events", id=5, product=2)) == []
        assert set(_ids(snapshot.find("events", product=1))) == {1, 5, 9}
        assert _ids(snapshot.find("events", product=1, note="n0")) == [9]
        assert _ids(snapshot.find("events", product=1, cost=50)) == [5]
        assert snapshot.find("events", product=77) == []
    shop.create_table("pairs", {"a": int, "b": int, "c": int}, key=["a", "b"])
    with shop.transaction() as tx:
        tx.insert("pairs", [{"a": a, "b": b, "c": b % 2} for a in range(3) for b in range(4)])
        assert [row["b"] for row in tx.find("pairs", a=1)] == [0, 1, 2, 3]
        assert [row["b"] for row in tx.find("pairs", a=1, c=1)] == [1, 3]


def test_find_by_null(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    with db.transaction() as tx:
        tx.insert("t", [{"id": 1}, {"id": 2, "a": 0}, {"id": 3}])
        assert _ids(tx.find("t", a=None)) == [1, 3]
    with db.snapshot() as snapshot:
        assert _ids(snapshot.find("t", a=None)) == [1, 3]


# --- indexes


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_an_index_created_later_has_all_rows(shop: vt.Database, stored: bool) -> None:
    if stored:
        shop._engine.checkpoint()
    with shop.snapshot() as snapshot, pytest.raises(vt.ProgrammingError) as raised:
        snapshot.find("events", cost=50)
    assert "create_index" in raised.value.hint
    shop.create_index("events", "cost")
    shop.create_index("events", ["note", "cost"])
    with shop.transaction() as tx:
        assert _ids(tx.find("events", cost=50)) == [5]
        tx.update("events", 5, {"cost": 51})
        tx.delete("events", 6)
        tx.insert("events", {"id": 100, "product": 1, "cost": 60, "note": "n2"})
        assert _ids(tx.find("events", cost=60)) == [100]
    with shop.snapshot() as snapshot:
        assert (_ids(snapshot.find("events", cost=50)), _ids(snapshot.find("events", cost=51))) == ([], [5])
        assert _ids(snapshot.find("events", cost=60, note="n2")) == [100]
    shop.drop_index("events", "cost")
    with shop.snapshot() as snapshot, pytest.raises(vt.ProgrammingError):
        snapshot.find("events", cost=51)


def test_an_index_is_created_while_writers_go_on(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "g": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", [{"id": i, "g": i % 7} for i in range(2500)])
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            turn = 0
            while not stop.is_set():
                turn += 1
                with db.transaction() as tx:
                    key = (number * 911 + turn * 37) % 2500
                    if turn % 3:
                        tx.upsert("t", {"id": key, "g": turn % 7})
                    else:
                        tx.delete("t", key)
        except BaseException as error:
            if not isinstance(error, vt.TransactionConflict):
                failures.append(error)

    def write_again(number: int) -> None:
        while not stop.is_set() and not failures:
            write(number)

    writers = [threading.Thread(target=write_again, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    db.create_index("t", "g")
    stop.set()
    for writer in writers:
        writer.join()
    assert failures == []
    with db.snapshot() as snapshot:
        for group in range(7):
            assert _ids(snapshot.find("t", g=group)) == [row["id"] for row in snapshot.scan("t") if row["g"] == group]


def test_long_index_values_never_make_a_write_fail(db_path: Path) -> None:
    texts = ["x" * 10_000 + end for end in ("a", "b")] + ["\0" * 600, "é" * 5_000, "short"]
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "s": str, "raw": bytes}, key="id", indexes=["s", ("s", "raw")])
        db.create_view("v", "SELECT s, COUNT(*) AS n FROM t GROUP BY s")
        with db.transaction() as tx:
            tx.insert("t", [{"id": i, "s": text, "raw": text.encode()} for i, text in enumerate(texts)])
            assert _ids(tx.find("t", s=texts[0])) == [0]
    with vt.connect(db_path) as db:
        with db.snapshot() as snapshot:
            for number, text in enumerate(texts):
                assert _ids(snapshot.find("t", s=text)) == [number]
                assert _ids(snapshot.find("t", s=text, raw=text.encode())) == [number]
                assert snapshot.view("v").get(text) == {"s": text, "n": 1}
        with db.transaction() as tx:
            tx.delete("t", 0)
            tx.update("t", 1, {"s": texts[3]})
        view = db.view("v")
        assert view.get(texts[0]) is None and view.get(texts[3]) == {"s": texts[3], "n": 2}
        assert view.verify().ok


def test_a_transaction_that_is_older_than_the_drop_of_an_index_does_not_use_it(db: vt.Database) -> None:
    """The index is not kept any more: rows that came later are not in it."""
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    tx = db.transaction()
    db.drop_index("t", "a")
    with db.transaction() as writer:
        writer.insert("t", {"id": 1, "a": 1})
    db._engine.checkpoint()
    try:
        found = _ids(tx.find("t", a=1))
    except vt.Error as error:
        assert isinstance(error, vt.ProgrammingError | vt.TransactionConflict)
    else:
        assert found == [1]


def test_a_snapshot_that_is_older_than_an_index_does_not_use_it(db: vt.Database) -> None:
    """The index has no entries at the time of the snapshot, whatever else the snapshot learns of the catalog."""
    db.create_table("t", {"id": int, "a": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 1})
    with db.snapshot() as snapshot:
        db.create_index("t", "a")
        db.create_table("u", {"id": int}, key="id")
        try:
            assert snapshot.scan("u") == []
            found = _ids(snapshot.find("t", a=1))
        except vt.Error as error:
            assert isinstance(error, vt.ProgrammingError)
        else:
            assert found == [1]


@pytest.mark.parametrize("what", ["table", "view", "index"])
def test_a_snapshot_keeps_what_is_dropped_or_says_so(db: vt.Database, what: str) -> None:
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    db.create_view("v", "SELECT a, COUNT(*) AS n FROM t GROUP BY a")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 1})
    db._engine.checkpoint()
    with db.snapshot() as snapshot:
        view = snapshot.view("v")
        assert view.get(1) == {"a": 1, "n": 1}
        if what in ("table", "view"):
            db.drop_view("v")
        if what == "table":
            db.drop_table("t")
        if what == "index":
            db.drop_index("t", "a")
        db._engine.checkpoint()
        ltm = db._engine.ltm
        with ltm.lock:
            for versions in ltm.tables.versions.values():
                versions.age()
                versions.age()
        reads = {
            "table": lambda: snapshot.scan("t"),
            "view": lambda: view.rows(),
            "index": lambda: snapshot.find("t", a=1),
        }
        try:
            found = reads[what]()
        except vt.Error as error:
            assert error.hint
        else:
            assert len(found) == 1


@pytest.mark.parametrize("what", ["view", "index", "table"])
def test_a_commit_after_the_drop_of_what_was_read_is_a_conflict(db: vt.Database, what: str) -> None:
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    db.create_table("u", {"id": int}, key="id")
    db.create_view("v", "SELECT a, COUNT(*) AS n FROM t GROUP BY a")
    tx = db.transaction()
    tx.view("v").get(1)
    tx.find("t", a=1)
    tx.insert("u", {"id": 1})
    if what in ("table", "view"):
        db.drop_view("v")
    if what == "table":
        db.drop_table("t")
    if what == "index":
        db.drop_index("t", "a")
    try:
        tx.commit()
    except vt.Error as error:
        assert type(error) is vt.TransactionConflict


# --- rows and results


def test_a_slice_of_a_row_is_a_tuple(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        row = snapshot.get("events", 5)
    assert row is not None
    assert (row[0:2], row[-2:], row[:], row[::2]) == ((5, 1), (50, "n2"), (5, 1, 50, "n2"), (5, 50))
    assert row[9:] == ()
    with pytest.raises(TypeError):
        row[["id"]]  # type: ignore[call-overload]


def test_a_copy_of_a_row_is_a_row(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "data": dict}, key="id")
    db.create_view("v", "SELECT id, data FROM t", refresh="manual")
    db.run(lambda tx: tx.insert("t", {"id": 1, "data": {"a": [1]}}))
    db.view("v").refresh()
    row = db.view("v").get(1)
    assert row is not None
    for made in (copy.copy(row), copy.deepcopy(row), copy.deepcopy([row, row])[1]):
        assert type(made) is vt.Row and made == row
        assert (made.data, made[0], made.watermark, made.lag_ms) == ({"a": [1]}, 1, row.watermark, row.lag_ms)
    deep = copy.deepcopy(row)
    deep.data["a"].append(2)  # type: ignore[index]
    assert row.data == {"a": [1]}
    with db.snapshot() as snapshot:
        (scanned,) = snapshot.scan("t")
    assert type(copy.deepcopy(scanned)) is vt.Row and copy.deepcopy(scanned) == scanned


def test_a_row_is_a_mapping_a_sequence_and_an_object(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        row = snapshot.get("events", 5)
    assert row is not None and isinstance(row, vt.Row) and isinstance(row, Mapping)
    assert list(row) == ["id", "product", "cost", "note"] == list(row.keys())
    assert (row["cost"], row[2], row.cost, row[-1]) == (50, 50, 50, "n2")
    assert dict(row) == dict(row.items()) == row == {"note": "n2", "cost": 50, "product": 1, "id": 5}
    assert row != {"id": 5} and row != 5
    assert ("cost" in row, "nope" in row, len(row)) == (True, False, 4)
    assert row.get("nope", 1) == 1
    assert {**row} == dict(row) and hash(row) == hash(row)
    assert "cost=50" in repr(row) and "cost" in dir(row)
    assert pickle.loads(pickle.dumps(row)) == dict(row)
    with pytest.raises(KeyError):
        row["nope"]
    with pytest.raises(IndexError, match="the row has 4 columns"):
        row[4]
    with pytest.raises(IndexError, match=r"the row has 1 column$"):
        shop.sql("SELECT id FROM products")[0][1]
    with pytest.raises(AttributeError):
        _ = row.nope


def test_rows_are_read_only(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        row = snapshot.get("events", 5)
    assert row is not None
    with pytest.raises(TypeError):
        row["cost"] = 1  # type: ignore[operator]
    with pytest.raises(AttributeError):
        row.cost = 1
    with pytest.raises((TypeError, AttributeError)):
        del row.cost
    assert row.cost == 50


def test_a_result_is_a_sequence_with_columns_and_a_time(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        result = snapshot.scan("events", limit=3)
        token = snapshot.token
        empty = snapshot.find("events", id=99)
    assert isinstance(result, vt.Result)
    assert result.columns == ("id", "product", "cost", "note") == empty.columns
    assert (result.rowcount, len(result), len(empty), bool(empty)) == (3, 3, 0, False)
    assert [row.id for row in result] == [0, 1, 2] == [row.id for row in result]
    assert result[0].id == 0 and result[-1].id == 2 and [row.id for row in result[1:]] == [1, 2]
    assert result.watermark == token.commit_ts and result.lag_ms == 0.0
    assert result == list(result) and result != empty


def test_a_column_may_have_the_name_of_a_method(db: vt.Database) -> None:
    db.create_table("t", {"items": int, "keys": str, "get": int}, key="items")
    with db.transaction() as tx:
        tx.insert("t", {"items": 1, "keys": "k", "get": 2})
        row = tx.get("t", 1)
    assert row is not None
    assert (row["items"], row["keys"], row["get"]) == (1, "k", 2)
    assert dict(row) == {"items": 1, "keys": "k", "get": 2}


def test_json_is_a_copy_on_the_way_in_and_out(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "j": dict}, key="id")
    given: dict[str, object] = {"list": [1, 2], "n": {"a": None}}
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "j": given})
        given["list"].append(3)  # type: ignore[attr-defined]
        own = tx.get("t", 1)
        assert own is not None
        own["j"]["n"]["a"] = 5  # type: ignore[index]
    given["n"] = {}
    expected = {"list": [1, 2], "n": {"a": None}}
    for _ in range(2):
        with db.snapshot() as snapshot:
            row = snapshot.get("t", 1)
            assert row is not None and row["j"] == expected
            row["j"]["list"].clear()


def test_a_naive_timestamptz_is_utc(db: vt.Database) -> None:
    db.create_table("t", {"at": "timestamptz", "day": "timestamp"}, key="at")
    moment = datetime.datetime(2024, 5, 1, 12)
    with db.transaction() as tx:
        tx.insert("t", {"at": moment, "day": moment})
    with db.snapshot() as snapshot:
        row = snapshot.get("t", moment.replace(tzinfo=datetime.UTC))
        assert row == {"at": moment.replace(tzinfo=datetime.UTC), "day": moment}
        east = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
        assert snapshot.get("t", moment.replace(tzinfo=datetime.UTC).astimezone(east)) == row


# --- Arrow and pandas


def _typed(db: vt.Database) -> None:
    db.create_table("t", {name: spec for name, (spec, _, _) in ALL_TYPES.items()}, key="i")
    with db.transaction() as tx:
        tx.insert("t", {name: given for name, (_, given, _) in ALL_TYPES.items()})


def test_a_result_becomes_an_arrow_table(db: vt.Database) -> None:
    _typed(db)
    with db.snapshot() as snapshot:
        table = snapshot.scan("t").to_arrow()
    assert table.column_names == list(ALL_TYPES)
    plain = {name: expected for name, (_, _, expected) in ALL_TYPES.items() if name not in ("j", "l")}
    assert table.select(list(plain)).to_pylist() == [plain]
    types = {name: str(table.schema.field(name).type) for name in ALL_TYPES}
    assert {name: types[name] for name in ("i", "f", "s", "b", "t", "day", "at", "tz")} == {
        "i": "int64", "f": "double", "s": "string", "b": "binary", "t": "bool", "day": "date32[day]",
        "at": "timestamp[us]", "tz": "timestamp[us, tz=UTC]",
    }  # fmt: skip


def test_an_empty_result_keeps_its_columns_and_types_in_arrow(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        table = snapshot.find("events", id=99).to_arrow()
    assert table.num_rows == 0
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("id", "int64"), ("product", "int64"), ("cost", "int64"), ("note", "string"),
    ]  # fmt: skip


def test_sums_beyond_64_bits_go_to_arrow(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "x": int}, key="id")
    view = db.create_view("v", "SELECT SUM(x) AS x FROM t")
    with db.transaction() as tx:
        tx.insert("t", [{"id": i, "x": 2**63 - 1} for i in range(3)])
    assert view.get() == {"x": 3 * (2**63 - 1)}
    (value,) = view.to_arrow().column("x").to_pylist()
    assert int(value) == 3 * (2**63 - 1)


def test_decimals_have_the_type_of_their_column_in_arrow(db: vt.Database) -> None:
    specs = {
        "a": "numeric(10,2)",
        "b": "numeric(38,10)",
        "c": "numeric(40,2)",
        "d": "numeric(5,-2)",
        "e": "numeric(2,4)",
    }
    expected = ["decimal128(10, 2)", "decimal128(38, 10)", "decimal256(40, 2)", "decimal128(7, 0)", "decimal128(4, 4)"]
    db.create_table("t", {"id": int, **specs, "free": "numeric", "wide": "numeric(100,50)"}, key="id")

    def types() -> list[str]:
        return [str(field.type) for field in db.sql("SELECT * FROM t ORDER BY id").to_arrow().schema][1:]

    assert types() == [*expected, "decimal128(38, 9)", "decimal128(38, 9)"], "without rows"
    with db.transaction() as tx:
        tx.insert("t", {"id": 1})
    assert types() == [*expected, "decimal128(38, 9)", "decimal128(38, 9)"], "without values"
    row = {name: Decimal(0) for name in specs} | {"a": Decimal("1.5"), "d": 1234, "e": Decimal("0.0012")}
    with db.transaction() as tx:
        tx.insert("t", {"id": 2, **row, "free": Decimal("12.5"), "wide": Decimal("0.25")})
        tx.insert("t", {"id": 3, "free": Decimal("0.125")})
    assert types()[:6] == [*expected, "decimal128(5, 3)"]
    result = db.sql("SELECT * FROM t ORDER BY id")
    assert result.to_arrow().to_pylist() == [dict(row) for row in result]
    assert list(result.to_pandas()["a"]) == [None, Decimal("1.50"), None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("('Infinity'::numeric)", [math.inf]),
        ("('-Infinity'::numeric), (NULL), (2)", [-math.inf, None, 2.0]),
        ("('NaN'::numeric), (1.5)", [math.nan, 1.5]),
    ],
)
def test_decimals_that_are_no_numbers_become_floats_in_arrow(
    db: vt.Database, values: str, expected: list[float | None]
) -> None:
    result = db.sql(f"SELECT x FROM (VALUES {values}) AS v (x)")
    column = result.to_arrow().column("x")
    assert str(column.type) == "double" and repr(column.to_pylist()) == repr(expected)
    assert len(result.to_pandas()) == len(expected)


@pytest.mark.parametrize("values", ["(1e80)", "(1e-60), (1e60)", "('NaN'::numeric), (1e400)"])
def test_decimals_that_no_arrow_type_holds_are_an_error_with_the_column(db: vt.Database, values: str) -> None:
    result = db.sql(f"SELECT x::numeric AS x FROM (VALUES {values}) AS v (x)")
    with pytest.raises(vt.DataError, match="column 'x' does not fit an Arrow type"):
        result.to_arrow()


def test_json_of_any_shape_goes_to_arrow(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "j": "json"}, key="id")
    with db.transaction() as tx:
        tx.insert("t", [{"id": 1, "j": {"a": 1}}, {"id": 2, "j": [1, "x"]}, {"id": 3, "j": "text"}, {"id": 4}])
    with db.snapshot() as snapshot:
        assert snapshot.scan("t").to_arrow().num_rows == 4


def test_a_result_becomes_a_pandas_frame(shop: vt.Database) -> None:
    with shop.snapshot() as snapshot:
        frame = snapshot.scan("events").to_pandas()
    assert list(frame.columns) == ["id", "product", "cost", "note"]
    assert frame["cost"].sum() == sum(i * 10 for i in range(12))


def test_without_pyarrow_the_error_says_what_to_install(shop: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with shop.snapshot() as snapshot:
        result = snapshot.scan("events")
    for convert in (result.to_arrow, result.to_pandas):
        with pytest.raises(vt.InterfaceError) as raised:
            convert()
        assert "viewtide[batch]" in raised.value.hint


# --- life


def test_reopening_keeps_everything(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "g": str, "x": vt.column(int, default=1)}, key="id", indexes=["g"])
        db.create_view("v", "SELECT g, SUM(x) AS x FROM t GROUP BY g")
        with db.transaction() as tx:
            tx.insert("t", [{"id": i, "g": f"g{i % 3}"} for i in range(30)])
    for turn in range(3):
        with vt.connect(db_path) as db:
            assert (db.tables(), db.views()) == (["t"], ["v"])
            with db.transaction() as tx:
                assert len(tx.scan("t")) == 30 + turn
                assert len(tx.find("t", g="g1")) == 10 + turn
                assert tx.view("v").get("g1") == {"g": "g1", "x": 10 + turn}
                tx.insert("t", {"id": 100 + turn, "g": "g1"})
            assert db.view("v").verify().ok


def test_tokens_grow_over_a_restart(db_path: Path) -> None:
    tokens = []
    for number in range(3):
        with vt.connect(db_path) as db:
            if number == 0:
                db.create_table("t", {"id": int}, key="id")
            with db.transaction() as tx:
                tx.insert("t", {"id": number})
            tokens.append(tx.token)
    assert tokens == sorted(tokens) and len({token.commit_ts for token in tokens}) == 3


def test_a_database_is_a_context_manager_and_closes_twice(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        assert "test.db" in repr(db)
    db.close()
    assert "closed" in repr(db)
    with vt.connect(str(db_path)) as again:
        assert again.tables() == []


def test_a_snapshot_that_is_older_than_the_drop_of_a_column_goes_on_showing_it(tmp_path: Path) -> None:
    """Rows that were stored before the column came have its default, also after the drop."""
    with vt.connect(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", [{"id": 1}, {"id": 2}])
        db._engine.checkpoint()
        db.add_column("t", "c", vt.column(int, nullable=False, default=7))
        with db.snapshot() as snapshot:
            assert snapshot.get("t", 1) == {"id": 1, "c": 7}
            db.drop_column("t", "c")
            for _ in range(3):
                for versions in db._engine.ltm.tables.versions.values():
                    versions.age()
            assert snapshot.get("t", 1) == {"id": 1, "c": 7}
            assert snapshot.scan("t")[1] == {"id": 2, "c": 7}


@pytest.mark.embedded("an interrupt of the client does not interrupt the node")
def test_an_interrupted_index_build_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with vt.connect(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "x": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", [{"id": number, "x": number % 3} for number in range(9)])
        with monkeypatch.context() as patch:
            patch.setattr("viewtide.coordinator.build._add_entries", interrupt)
            with pytest.raises(KeyboardInterrupt):
                db.create_index("t", "x")
        db.create_index("t", "x")
        with db.snapshot() as snapshot:
            assert [row["id"] for row in snapshot.find("t", x=1)] == [1, 4, 7]


def test_look_ups_through_an_index_that_is_in_the_store_are_one_load(tmp_path: Path) -> None:
    """However many prefixes are missing in memory: asked for one by one, a transaction would take quadratic time."""
    with vt.connect(tmp_path / "db") as db:
        db.create_table("p", {"id": int, "c": str}, key="id")
        db.create_table("e", {"id": int, "p": int}, key="id")
        db.create_view("v", "SELECT p.c, COUNT(*) AS n FROM p JOIN e ON e.p = p.id GROUP BY p.c")
        with db.transaction() as tx:
            tx.insert("p", [{"id": number, "c": "a"} for number in range(300)])
            tx.insert("e", [{"id": number, "p": number % 300} for number in range(600)])
        for _ in range(4):
            db._engine.checkpoint()
        for _ in range(3):
            for versions in db._engine.ltm.tables.versions.values():
                versions.age()
        loads = []
        load = db._engine.ltm.load
        db._engine.ltm.load = lambda need: (loads.append(need), load(need))  # type: ignore[method-assign, assignment]
        with db.transaction() as tx:
            for number in range(300):
                tx.update("p", number, {"c": "b"})
        assert len(loads) <= 4
        assert db.view("v").get("b") == {"c": "b", "n": 600}
