"""What only the store in HBase does: rows that any client reads, atomic writes in spite of crashes, fencing, damage."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import happybase
import pytest

import viewtide as vt
from tests.tcp_proxy import TcpProxy
from viewtide.changetables.errors import InterfaceError, InternalError, OperationalError
from viewtide.config import Config
from viewtide.database import Database
from viewtide.dev_cluster import DevelopmentHbase
from viewtide.ltm.catalog import catalog_to_plain
from viewtide.ltm.codec import pack
from viewtide.ltm.commit_log.hbase import HbaseLog, create_log_table
from viewtide.ltm.hbase_client import TIMESTAMP_MAX, Hbase, RowOf, Value
from viewtide.ltm.ports import Cell
from viewtide.ltm.store import hbase as hbase_store
from viewtide.ltm.store import hbase_columns
from viewtide.ltm.store.hbase import HbaseStore
from viewtide.ltm.store.hbase_columns import hbase_name, to_text
from viewtide.ltm.store.lmdb import LmdbStore
from viewtide.node import Node

pytestmark = pytest.mark.slow

NOW = 2**64 - 1
TABLE = b"\0\0\0\7"
END = b"\0\0\0\x08"


def key(number: int) -> bytes:
    return TABLE + number.to_bytes(2, "big")


def put(store: HbaseStore, *cells: Cell, meta: dict[str, bytes] | None = None) -> None:
    store.write([cells], (), meta or {}, lambda: None)


@pytest.fixture
def store(hbase_client: Hbase, hbase_namespace: str) -> HbaseStore:
    return HbaseStore(hbase_client, hbase_namespace, "ltm-1")


@pytest.fixture
def other_client(hbase_servers: DevelopmentHbase) -> Iterator[Any]:
    """happybase: another client, on the other Thrift interface."""
    host, _, port = hbase_servers.thrift1[0].partition(":")
    connection = happybase.Connection(host, int(port))
    yield connection
    connection.close()


class Killed(BaseException):
    """The process ends here."""


# Rows that any client reads


def copied(path: Path, store: HbaseStore) -> None:
    """Everything that an embedded database has in its store, into HBase."""
    source = LmdbStore(path / "store")
    catalog = source.meta("catalog")
    assert catalog is not None
    store.describe(catalog)
    cells = source.scan(b"", b"\xff" * 5, NOW, 10_000)
    assert cells
    put(store, *cells)
    assert store.scan(b"", b"\xff" * 5, NOW, 10_000) == cells
    source.close()


def shown(table: Any) -> list[dict[str, str]]:
    """The rows that are not deleted, as text."""
    return [
        {name.decode().partition(":")[2]: text.decode() for name, text in row.items() if name.startswith(b"a:")}
        for _, row in table.scan()
        if row[b"v:deleted"] == b"0"
    ]


def test_rows_of_tables_and_views_are_read_by_happybase(
    db_path: Path, store: HbaseStore, hbase_namespace: str, other_client: Any
) -> None:
    with vt.connect(db_path) as db:
        db.create_table("products", {"id": int, "category": str, "price": Decimal}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        db.create_view(
            "costs",
            "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, MAX(e.cost) AS top, MAX(e.cost) + 1 AS above "
            "FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
        )
        with db.transaction() as tx:
            tx.insert("products", [{"id": 1, "category": "books", "price": Decimal("9.50")}, {"id": 2}])
            tx.insert("events", [{"id": n, "product": 1, "cost": n * 10} for n in range(1, 4)])
            tx.delete("events", 2)
    copied(db_path, store)
    products = other_client.table(f"{hbase_namespace}:products")
    assert shown(products) == [
        {"id": "1", "category": "books", "price": "9.50"},
        {"id": "2", "category": r"\N", "price": r"\N"},
    ]
    assert shown(other_client.table(f"{hbase_namespace}:events")) == [
        {"id": "1", "product": "1", "cost": "10"},
        {"id": "3", "product": "1", "cost": "30"},
    ]
    # A maximum is in other rows than the view's, so it is left out.
    assert shown(other_client.table(f"{hbase_namespace}:costs")) == [{"category": "books", "cost": "40", "n": "2"}]


def test_a_deleted_row_says_so_and_a_new_version_takes_it_back(
    store: HbaseStore, hbase_namespace: str, other_client: Any
) -> None:
    with vt.connect("memory:") as db:
        db.create_table("items", {"id": int, "name": str}, key="id")
        catalog = db._engine.ltm.tables.catalog
        table_id = catalog.tables["items"].id
    store.describe(pack(catalog_to_plain(catalog)))
    row = table_id.to_bytes(4, "big") + b"\x80key"
    table = other_client.table(f"{hbase_namespace}:items")
    put(store, Cell(row, 10, pack((1, "old"))))
    assert table.row(row)[b"a:name"] == b"old" and table.row(row)[b"v:deleted"] == b"0"
    put(store, Cell(row, 20, None))
    assert table.row(row)[b"v:deleted"] == b"1"
    put(store, Cell(row, 30, pack((1, None))))
    assert table.row(row)[b"a:name"] == rb"\N" and table.row(row)[b"v:deleted"] == b"0"
    # As of an earlier moment; the bound of happybase is exclusive.
    assert table.row(row, timestamp=11)[b"a:name"] == b"old"
    assert table.row(row, timestamp=21)[b"v:deleted"] == b"1"
    store.write((), [(20, row, 10), (20, row, 20), (30, row, 20)], {}, lambda: None)
    store.prune(30, 100)
    assert table.row(row, timestamp=30) == {}
    assert table.row(row)[b"a:name"] == rb"\N"


def test_a_row_that_the_view_does_not_show_is_a_deleted_one(
    db_path: Path, store: HbaseStore, hbase_namespace: str, other_client: Any
) -> None:
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "g": str}, key="id")
        db.create_view("large", "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 1")
        with db.transaction() as tx:
            tx.insert("t", [{"id": 1, "g": "a"}, {"id": 2, "g": "a"}, {"id": 3, "g": "b"}])
    copied(db_path, store)
    assert shown(other_client.table(f"{hbase_namespace}:large")) == [{"g": "a", "n": "2"}]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "str", rb"\N"),
        (-5, "int", b"-5"),
        (0.1, "float", b"0.1"),
        (1e300, "float", b"1e+300"),
        (float("nan"), "float", b"NaN"),
        (float("-inf"), "float", b"-Infinity"),
        (Decimal("1.500"), "decimal", b"1.500"),
        (Decimal("1E+3"), "decimal", b"1000"),
        (Decimal("NaN"), "decimal", b"NaN"),
        ("", "str", b""),
        ("Größe", "str", "Größe".encode()),
        (r"\N", "str", rb"\\N"),
        (b"\\\0", "bytes", b"\\\\\0"),
        (True, "bool", b"true"),
        (datetime.date(2026, 11, 16), "date", b"2026-11-16"),
        (datetime.datetime(2026, 11, 16, 21, 40), "timestamp", b"2026-11-16 21:40:00"),
        (datetime.datetime(2026, 11, 16, 21, 40, 0, 1), "timestamptz", b"2026-11-16 21:40:00.000001+00:00"),
    ],
)
def test_values_as_text(value: Any, kind: str, text: bytes) -> None:
    assert to_text(value, kind) == text


@pytest.mark.parametrize(
    ("name", "called"),
    [("costs", "costs"), ("Größe", "Gr-c3-b6-c3-9fe"), ("a.b", "a-2eb"), ("-x", "_-2dx"), (" ", "_-20")],
)
def test_names_of_hbase_tables(name: str, called: str, hbase_client: Hbase, hbase_namespace: str) -> None:
    assert hbase_name(name) == called
    hbase_client.create_table(f"{hbase_namespace}:{called}".encode(), [(b"v", 1)])
    assert hbase_client.table_exists(f"{hbase_namespace}:{called}".encode())


def test_a_text_that_is_too_long_is_in_the_exact_value_only(
    store: HbaseStore, hbase_namespace: str, other_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbase_columns, "TEXT_BYTES_MAX", 10)
    with vt.connect("memory:") as db:
        db.create_table("items", {"id": int, "name": str}, key="id")
        catalog = db._engine.ltm.tables.catalog
    store.describe(pack(catalog_to_plain(catalog)))
    row = catalog.tables["items"].id.to_bytes(4, "big") + b"\x80key"
    put(store, Cell(row, 10, pack((1, "x" * 11))))
    assert set(other_client.table(f"{hbase_namespace}:items").row(row)) == {b"a:id", b"v:r", b"v:deleted"}
    assert store.get(row, 10) == Cell(row, 10, pack((1, "x" * 11)))


def test_a_table_stays_where_it_began(hbase_client: Hbase, hbase_namespace: str, store: HbaseStore) -> None:
    """Rows that came before the description are found after it, by other owners, and after opening again."""
    with vt.connect("memory:") as db:
        db.create_table("early", {"id": int}, key="id")
        db.create_table("late", {"id": int}, key="id")
        catalog = db._engine.ltm.tables.catalog
    early, late = (catalog.tables[name].id.to_bytes(4, "big") + b"k" for name in ("early", "late"))
    put(store, Cell(early, 10, pack((1,))))
    other = HbaseStore(hbase_client, hbase_namespace, "ltm-2")
    store.describe(pack(catalog_to_plain(catalog)))
    put(store, Cell(early, 20, pack((1,))), Cell(late, 20, pack((1,))))
    expected = [Cell(early, 20, pack((1,))), Cell(late, 20, pack((1,)))]
    for each in (store, other, HbaseStore(hbase_client, hbase_namespace, "ltm-3")):
        assert each.get_many([early, late], NOW) == expected
        assert each.scan(b"", b"\xff", NOW, 10) == expected
        assert each.max_key(b"", b"\xff") == late
    assert f"{hbase_namespace}:late".encode() in hbase_client.tables(hbase_namespace)
    assert f"{hbase_namespace}:early".encode() not in hbase_client.tables(hbase_namespace)
    other.drop_range(late, late + b"\xff")
    assert store.get(late, NOW) is None


def test_owners_share_rows_and_have_meta_entries_and_notes_of_their_own(
    hbase_client: Hbase, hbase_namespace: str, store: HbaseStore
) -> None:
    other = HbaseStore(hbase_client, hbase_namespace, "ltm-2")
    store.write([[Cell(key(1), 10, b"a"), Cell(key(1), 20, b"b")]], [(20, key(1), 10)], {"lsn": b"1"}, lambda: None)
    put(other, Cell(key(2), 10, b"b"), meta={"lsn": b"2"})
    assert store.get(key(2), NOW) == Cell(key(2), 10, b"b")
    assert (store.meta("lsn"), other.meta("lsn")) == (b"1", b"2")
    assert (other.prune(NOW, 10), store.prune(NOW, 10)) == (0, 1)


# Atomic writes


def test_a_write_that_counts_is_carried_out_by_the_next_one(
    hbase_client: Hbase, hbase_namespace: str, store: HbaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbase_store, "STAGE_BYTES", 1_000)
    put(store, Cell(key(1), 10, b"old"), Cell(key(2), 10, b"old"))
    cells = [Cell(key(number), 20, b"%d" % number * 30) for number in range(100)]

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store, "_carry_out", die)
        with pytest.raises(Killed):
            store.write([cells], [(20, key(1), 10)], {"lsn": b"7"}, lambda: None, [(key(2), 10)])
    again = HbaseStore(hbase_client, hbase_namespace, "ltm-1")
    assert again.scan(TABLE, END, NOW, 200) == cells
    assert again.meta("lsn") == b"7"
    assert again.get(key(2), 10) is None
    assert again.prune(NOW, 10) == 1 and again.get(key(1), 10) is None
    assert HbaseStore(hbase_client, hbase_namespace, "ltm-1").scan(TABLE, END, NOW, 200) == cells


def test_a_write_that_was_half_carried_out_is_finished(
    hbase_client: Hbase, hbase_namespace: str, store: HbaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbase_store, "PUT_CELLS", 10)
    calls = 0

    def leave() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise Killed

    store.may_write = leave
    cells = [Cell(key(number), 20, b"new") for number in range(100)]
    with pytest.raises(Killed):
        put(store, *cells)
    # Who reads in this process does not see that it is half done.
    assert store.scan(TABLE, END, NOW, 200) == cells
    assert store.get(key(99), NOW) == cells[99] and store.max_key(TABLE, END) == key(99)
    assert HbaseStore(hbase_client, hbase_namespace, "ltm-1").scan(TABLE, END, NOW, 200) == cells


def test_the_next_write_of_the_same_process_finishes_it_too(
    store: HbaseStore, hbase_client: Hbase, hbase_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("HBase is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_carry_out", fail)
        with pytest.raises(OperationalError, match="away"):
            put(store, Cell(key(1), 10, b"first"), meta={"lsn": b"1"})
    assert store.get(key(1), NOW) == Cell(key(1), 10, b"first")
    put(store, Cell(key(1), 20, b"second"))
    assert [store.get(key(1), at) for at in (10, 20)] == [Cell(key(1), 10, b"first"), Cell(key(1), 20, b"second")]
    assert store.meta("lsn") == b"1"


def test_a_write_that_does_not_count_leaves_nothing(
    hbase_client: Hbase, hbase_namespace: str, store: HbaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbase_store, "STAGE_BYTES", 100)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store, "_commit", die)
        with pytest.raises(Killed):
            put(store, *(Cell(key(number), 20, b"new") for number in range(100)), meta={"lsn": b"7"})
    again = HbaseStore(hbase_client, hbase_namespace, "ltm-1")
    assert again.scan(TABLE, END, NOW, 200) == [] and again.meta("lsn") is None
    rows = hbase_client.page(f"{hbase_namespace}:viewtide.store".encode(), hbase_store.ScanOf(b"", b""), 100)
    assert [row.row for row in rows] == [b"\0identity", b"ltm-1\0c"], "the parts of the write are gone"


def test_an_earlier_process_is_refused(hbase_client: Hbase, hbase_namespace: str, store: HbaseStore) -> None:
    put(store, Cell(key(1), 10, b"mine"))
    later = HbaseStore(hbase_client, hbase_namespace, "ltm-1")
    with pytest.raises(OperationalError, match="another process has taken over"):
        put(store, Cell(key(1), 10, b"of a zombie"))
    put(later, Cell(key(2), 20, b"next"))
    assert later.scan(TABLE, END, NOW, 10) == [Cell(key(1), 10, b"mine"), Cell(key(2), 20, b"next")]


def test_writes_whose_answers_are_lost_are_made_once(hbase_servers: DevelopmentHbase, hbase_namespace: str) -> None:
    with TcpProxy(hbase_servers.thrift[0]) as proxy:
        client = Hbase([proxy.address])
        store = HbaseStore(client, hbase_namespace, "ltm-1")
        for number in range(1, 13):
            proxy.answers_to_lose = number % 4
            put(store, Cell(key(number), 10, b"%d" % number), meta={"lsn": b"%d" % number})
            proxy.answers_to_lose = number % 3
            assert store.get(key(number), 10) == Cell(key(number), 10, b"%d" % number)
        assert [cell.key for cell in store.scan(TABLE, END, NOW, 100)] == [key(number) for number in range(1, 13)]
        assert HbaseStore(client, hbase_namespace, "ltm-1").meta("lsn") == b"12"
        client.close()


# Limits and damage


def test_a_value_larger_than_a_cell_of_hbase(store: HbaseStore) -> None:
    values = [os.urandom(size) for size in (11 << 20, hbase_store.PART_BYTES, hbase_store.PART_BYTES + 1)]
    cells = [Cell(key(number), 10, value) for number, value in enumerate(values)]
    for cell in cells:
        put(store, cell)
    put(store, Cell(key(0), 20, b"short"))
    assert store.scan(TABLE, END, 10, 10) == cells
    assert store.get(key(0), 20) == Cell(key(0), 20, b"short")


def test_a_timestamp_that_means_now_in_hbase_is_refused(store: HbaseStore) -> None:
    for commit_ts in (-1, TIMESTAMP_MAX + 1, NOW):
        with pytest.raises(InternalError, match="cannot be a timestamp in HBase"):
            put(store, Cell(key(1), commit_ts, b"x"))
    assert store.get(key(1), NOW) is None


@pytest.mark.parametrize("owner", ["", "a\0b"])
def test_impossible_owners_are_refused(hbase_client: Hbase, hbase_namespace: str, owner: str) -> None:
    with pytest.raises(InterfaceError, match="cannot be the name of an owner"):
        HbaseStore(hbase_client, hbase_namespace, owner)


@pytest.mark.parametrize("stored", [b"", b"\1\0\0\0\0", b"\x09\0\0\0\0x", b"\1\0\0\0\0changed"])
def test_a_changed_value_is_damage(store: HbaseStore, hbase_client: Hbase, hbase_namespace: str, stored: bytes) -> None:
    put(store, Cell(key(1), 10, b"genuine"))
    table = f"{hbase_namespace}:viewtide.cells".encode()
    hbase_client.put(table, [RowOf(key(1), [Value(b"v", b"r", 10, stored)])])
    for read in (lambda: store.get(key(1), 10), lambda: store.scan(TABLE, END, 10, 10)):
        with pytest.raises(OperationalError, match=f"damaged: version 10 of row {key(1).hex()}"):
            read()


def test_a_value_under_another_key_or_timestamp_is_damage(
    store: HbaseStore, hbase_client: Hbase, hbase_namespace: str
) -> None:
    put(store, Cell(key(1), 10, b"genuine"))
    table = f"{hbase_namespace}:viewtide.cells".encode()
    (genuine,) = hbase_client.get_many(table, [key(1)])
    assert genuine is not None
    hbase_client.put(table, [RowOf(key(2), genuine.values)])
    hbase_client.put(table, [RowOf(key(3), [each._replace(timestamp=11) for each in genuine.values])])
    for damaged in (key(2), key(3)):
        with pytest.raises(OperationalError, match="damaged"):
            store.get(damaged, 20)


def test_damaged_meta_entries_stop_the_start(store: HbaseStore, hbase_client: Hbase, hbase_namespace: str) -> None:
    put(store, Cell(key(1), 10, b"x"), meta={"lsn": b"1"})
    table = f"{hbase_namespace}:viewtide.store".encode()
    hbase_client.put(table, [RowOf(b"ltm-1\0c", [Value(b"f", b"mlsn", 1_000, b"2\0\0\0\0")])])
    with pytest.raises(OperationalError, match=r"damaged: b'mlsn' of row b'ltm-1\\x00c'"):
        HbaseStore(hbase_client, hbase_namespace, "ltm-1")


# The whole engine on it


def opened(client: Hbase, namespace: str) -> Database:
    log = HbaseLog(client, create_log_table(client, namespace), "ltm-1")
    return Database(Node("hbase:", log, HbaseStore(client, namespace, "ltm-1"), Config(), None, []))


def test_an_engine_with_store_and_log_in_hbase_recovers(hbase_client: Hbase, hbase_namespace: str) -> None:
    db = opened(hbase_client, hbase_namespace)
    db.create_table("events", {"id": int, "g": str, "cost": int}, key="id", indexes=["g"])
    db.create_view("costs", "SELECT g, SUM(cost) AS cost, MAX(cost) AS top FROM events GROUP BY g")
    for number in range(30):
        with db.transaction() as tx:
            tx.insert("events", {"id": number, "g": "ab"[number % 2], "cost": number})
        if number == 15:
            db._engine.ltm.checkpoint()
    with db.transaction() as tx:
        tx.delete("events", 29)
    # Not closed: the next one finds what a killed process leaves.
    again = opened(hbase_client, hbase_namespace)
    assert again.view("costs").rows() == [
        {"g": "a", "cost": sum(range(0, 30, 2)), "top": 28},
        {"g": "b", "cost": sum(range(1, 28, 2)), "top": 27},
    ]
    assert again.view("costs").verify().ok
    assert len(list(again.sql("SELECT id FROM events"))) == 29
    with pytest.raises(OperationalError, match="opened by another process"), db.transaction() as tx:
        tx.insert("events", {"id": 100, "g": "a", "cost": 1})
    with suppress(OperationalError):
        db.close()
    again.close()
    third = opened(hbase_client, hbase_namespace)
    assert third.view("costs").get("a") == {"g": "a", "cost": sum(range(0, 30, 2)), "top": 28}
    third.close()


def test_a_store_that_its_writer_still_uses_while_it_is_opened_is_not_damaged(
    hbase_client: Hbase, hbase_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a write are gone once it is carried out, also for somebody who was about to read them."""
    monkeypatch.setattr(hbase_store, "STAGE_BYTES", 100)
    leases = iter([False])

    def may_write() -> None:
        if not next(leases, True):
            raise OperationalError("no lease")

    before = HbaseStore(hbase_client, hbase_namespace, "ltm-1", may_write=may_write)
    with pytest.raises(OperationalError, match="no lease"):
        put(before, *[Cell(key(number), 10, b"v" * 50) for number in range(20)], meta={"m": b"1"})
    read = HbaseStore._read_content

    def slowly(store: HbaseStore, *args: Any) -> Any:
        monkeypatch.setattr(HbaseStore, "_read_content", read)
        put(before, Cell(key(20), 11, b"new"), meta={"m": b"2"})
        return read(store, *args)

    monkeypatch.setattr(HbaseStore, "_read_content", slowly)
    after = HbaseStore(hbase_client, hbase_namespace, "ltm-1")
    assert after.meta("m") == b"2"
    assert len(after.scan(TABLE, END, NOW, 100)) == 21
    with pytest.raises(OperationalError, match="taken over"):
        put(before, Cell(key(21), 12, b"of a zombie"))
