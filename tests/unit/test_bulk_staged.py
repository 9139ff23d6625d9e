"""Loads that go to the store beside the log: nobody sees a part of one, whatever happens meanwhile and afterwards."""

from __future__ import annotations

import datetime
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import viewtide as vt
from viewtide import bulk
from viewtide.coordinator import bulk_load
from viewtide.coordinator.bulk_load import can_stage

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.embedded("a served node loads by a transaction")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load is staged, in several writes."""
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", 1)
    monkeypatch.setattr(bulk, "CHUNK_ROWS", 50)
    monkeypatch.setattr(bulk_load, "WRITE_ROWS", 120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def db(path: Path) -> Iterator[vt.Database]:
    with vt.connect(path, ltms=1) as database:
        _create(database)
        yield database


def _create(db: vt.Database) -> None:
    db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
    db.create_table("products", {"id": int, "category": str}, key="id")
    with db.transaction() as tx:
        tx.insert("products", [{"id": n, "category": "ab"[n % 2]} for n in range(10)])
    db.create_view(
        "costs",
        "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p ON p.id = e.product"
        " GROUP BY p.category",
    )
    db.create_view("late", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", refresh="manual")


def _events(ids: range | list[int]) -> object:
    return pa.table({"id": list(ids), "product": [n % 10 for n in ids], "cost": [n % 7 for n in ids]})


def _cells(db: vt.Database) -> int:
    return db._node.engine.ltm._store.stat()["cells"]  # type: ignore[attr-defined]


def _check(db: vt.Database, ids: list[int]) -> None:
    """Everything agrees that exactly these events are there."""
    with db.snapshot() as snapshot:
        assert [row.id for row in snapshot.scan("events")] == sorted(ids)
        for product in (0, 3):
            assert sorted(row.id for row in snapshot.find("events", product=product)) == sorted(
                n for n in ids if n % 10 == product
            )
        assert all(snapshot.get("events", n) is not None for n in ids[:20])
        assert sum(row.n for row in snapshot.view("costs").rows()) == len(ids)
    late = db.view("late")
    late.refresh()
    assert sum(row.n for row in late.rows()) == len(ids)
    assert db.view("costs").verify().ok and late.verify().ok


@pytest.mark.parametrize("ids", [list(range(500)), random.Random(1).sample(range(-500, 500), 500)])
def test_a_load_is_what_inserts_are(db: vt.Database, path: Path, ids: list[int]) -> None:
    result = db.table("events").load(_events(ids))
    assert result.rows == 500
    _check(db, ids)
    with db.transaction() as tx:
        tx.insert("events", {"id": 1000, "product": 3, "cost": 1})
    db.table("events").load(_events(range(2000, 2100)))
    db.close()
    with vt.connect(path, ltms=1) as again:
        assert again.sql("SELECT COUNT(*) AS n FROM events")[0].n == 601
        assert again.view("costs").verify().ok


def test_a_snapshot_of_before_sees_nothing_of_it(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("events", {"id": -1, "product": 3, "cost": 1})
    seen: list[int] = []

    def batches() -> Iterator[object]:
        yield _events(range(400))
        # In the middle of the load, after some of it is in the store: commits and snapshots between its timestamps.
        with db.transaction() as tx:
            tx.insert("events", {"id": 10_000, "product": 3, "cost": 1})
        between.__enter__()
        seen.append(len(between.scan("events")))
        seen.append(len(between.find("events", product=3)))
        yield _events(range(400, 500))

    between = db.snapshot()
    with db.snapshot() as before:
        assert len(before.scan("events")) == 1
        db.table("events").load(batches())
        for snapshot, count in ((before, 1), (between, 2)):
            assert len(snapshot.scan("events")) == count
            assert [row.id for row in snapshot.find("events", product=3)] == [-1, 10_000][:count]
            assert snapshot.get("events", 3) is None
            assert snapshot.view("costs").get("b").n == count
            db._node.engine.checkpoint()  # type: ignore[attr-defined]
            assert len(snapshot.scan("events")) == count
    assert seen == [2, 2]
    between.close()
    with db.snapshot() as after:
        assert len(after.scan("events")) == 502 and after.get("events", 3) is not None


def test_rows_that_were_loaded_change_and_go(db: vt.Database, path: Path) -> None:
    db.table("events").load(_events(range(300)))
    ids = list(range(300))
    with db.snapshot() as before:
        with db.transaction() as tx:
            for n in range(0, 100, 2):
                tx.delete("events", n)
                ids.remove(n)
            for n in range(101, 200, 2):
                tx.update("events", n, {"cost": 100, "product": (n + 1) % 10})
            tx.insert("events", {"id": 500, "product": 0, "cost": 0})
        db._node.engine.checkpoint()  # type: ignore[attr-defined]
        assert len(before.scan("events")) == 300 and before.get("events", 101).product == 1
        assert len(before.find("events", product=1)) == 30
    for _ in range(3):
        with db.transaction() as tx:
            tx.update("events", 500, {"cost": 1})
        db._node.engine.checkpoint()  # type: ignore[attr-defined]
    with db.transaction() as tx:
        tx.delete("events", 500)
    assert db.sql("SELECT COUNT(*) AS n FROM events")[0].n == len(ids)
    assert db.view("costs").verify().ok
    db.close()
    with vt.connect(path, ltms=1) as again:
        assert [row.id for row in again.sql("SELECT id FROM events ORDER BY id")] == ids
        assert again.view("costs").verify().ok
        # What was deleted can be loaded again, and what was changed cannot.
        again.table("events").load(_events(range(0, 100, 2)))
        with pytest.raises(vt.IntegrityError, match="row 101 of table 'events' exists"):
            again.table("events").load(_events([1000, 101]))
        assert again.sql("SELECT COUNT(*) AS n FROM events")[0].n == 300


def test_a_load_that_fails_leaves_nothing(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("events", {"id": 450, "product": 0, "cost": 2})
    db._node.engine.checkpoint()  # type: ignore[attr-defined]
    cells = _cells(db)
    with pytest.raises(vt.IntegrityError, match="row 450 of table 'events' exists already"):
        db.table("events").load(_events(range(500)))
    with pytest.raises(vt.IntegrityError, match=r"row 7 .* comes twice"):
        db.table("events").load([_events(range(400)), _events([7])])
    with pytest.raises(vt.IntegrityError, match=r"row 399 .* comes twice"):
        db.table("events").load([_events(range(400)), _events([399, 2000])])
    with pytest.raises(vt.DataError, match=r"row 401: column events\.cost"):
        db.table("events").load([_events(range(400)), pa.table({"id": [999], "cost": ["x"]})])

    def broken() -> Iterator[object]:
        yield _events(range(400))
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError):
        db.table("events").load(broken())
    assert _cells(db) == cells
    _check(db, [450])
    db.table("events").load(_events(range(400)))
    _check(db, [450, *range(400)])


def test_writers_beside_a_load_go_on_and_only_the_same_keys_conflict(db: vt.Database) -> None:
    def batches(action: object) -> Iterator[object]:
        yield _events(range(300))
        action()  # type: ignore[operator]
        yield _events(range(300, 400))

    def write(key: int, then_checkpoint: bool) -> None:
        with db.transaction() as tx:
            tx.insert("events", {"id": key, "product": 1, "cost": 1})
        if then_checkpoint:
            db._node.engine.checkpoint()  # type: ignore[attr-defined]

    for stored in (False, True):
        with pytest.raises(vt.IntegrityError, match="exists already"):
            db.table("events").load(batches(lambda stored=stored: write(5, stored)))
        with db.transaction() as tx:
            assert tx.delete("events", 5)
        db.table("events").load(batches(lambda stored=stored: write(-7, stored)))
        db.sql("DELETE FROM events")
        db._node.engine.checkpoint()  # type: ignore[attr-defined]
    with pytest.raises(vt.TransactionConflict, match="a view joins the load with"):
        db.table("events").load(batches(lambda: db.sql("UPDATE products SET category = 'z' WHERE id = 3")))
    db.table("events").load(batches(lambda: db.sql("INSERT INTO products VALUES (77, 'z')")))
    with pytest.raises(vt.TransactionConflict, match="changed during the load"):
        db.table("events").load(_with(range(1000, 1300), lambda: db.create_view("w", "SELECT id FROM events")))
    _check(db, list(range(400)))


def test_two_loads_of_a_table_come_one_after_the_other(db: vt.Database) -> None:
    refused: list[vt.TransactionConflict] = []

    def nested() -> Iterator[object]:
        yield _events(range(300))
        try:
            db.table("events").load(_events(range(200, 500)))
        except vt.TransactionConflict as error:
            refused.append(error)
        db.table("products").load(pa.table({"id": range(100, 300), "category": ["x"] * 200}))
        yield _events(range(300, 400))

    db.table("events").load(nested())
    assert len(refused) == 1 and "another load" in str(refused[0])
    with pytest.raises(vt.IntegrityError, match="exists already"):
        db.table("events").load(_events(range(200, 500)))
    _check(db, list(range(400)))
    assert db.sql("SELECT COUNT(*) AS n FROM products")[0].n == 210


def test_a_load_that_begins_while_another_is_committed_does_not_call_that_one_loaded(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would have it before the log does."""
    db.create_table("others", {"id": int}, key="id")
    engine = db._node.engine
    begun = threading.Event()
    note_begun, flush, commit_load = engine.ltm.staging.note_begun, engine.ltm.flush, engine.commit_load
    seen: list[bool] = []
    second = threading.Thread(target=lambda: db.table("others").load([pa.table({"id": list(range(5))})]))

    def noted(meta: dict[str, bytes]) -> None:
        note_begun(meta)
        begun.set()

    def flushed() -> None:
        if not seen:  # the first load is shown, and its record is about to be written
            monkeypatch.setattr(engine.ltm.staging, "note_begun", noted)
            second.start()
            seen.append(begun.wait(0.3))
        flush()

    def committed(*args: object) -> int:
        monkeypatch.setattr(engine.ltm, "flush", flushed)
        return commit_load(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "commit_load", committed)
    db.table("events").load([_events(range(20))])
    second.join(20)
    assert seen == [False] and begun.is_set()
    _check(db, list(range(20)))
    assert db.sql("SELECT COUNT(*) FROM others")[0][0] == 5


def test_a_load_that_could_not_begin_is_no_obstacle(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(meta: dict[str, bytes]) -> None:
        raise vt.OperationalError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(db._node.engine.ltm.staging, "note_begun", fails)
        with pytest.raises(vt.OperationalError, match="the disk is full"):
            db.table("events").load([_events(range(20))])
    db.table("events").load([_events(range(20))])
    _check(db, list(range(20)))


@pytest.mark.parametrize("rows_min", [1_000, 1], ids=["by a transaction", "staged"])
def test_bytes_that_are_no_text_are_refused_with_their_place(
    tmp_path: Path, rows_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", rows_min)
    names = pa.array([b"a"] * 99 + [b"\xff"], pa.binary())
    texts = pa.StringArray.from_buffers(len(names), *names.buffers()[1:])
    with vt.connect(tmp_path / "db", ltms=1) as db:
        db.create_table("t", {"id": int, "name": str}, key="id")
        with pytest.raises(vt.DataError, match=r"row 100: column t\.name: a text is not UTF-8"):
            db.table("t").load([pa.table({"id": range(100), "name": texts})])
        assert db.sql("SELECT COUNT(*) FROM t")[0][0] == 0


def _with(ids: range, action: object) -> Iterator[object]:
    yield _events(ids)
    action()  # type: ignore[operator]


def test_a_transaction_that_read_before_is_validated_against_the_load(db: vt.Database) -> None:
    for read in ("get", "scan", "find"):
        start = 1000 * ["get", "scan", "find"].index(read)
        tx = db.transaction()
        if read == "get":
            assert tx.get("events", start + 5) is None
        elif read == "scan":
            tx.scan("events", start, start + 10)
        else:
            tx.find("events", product=5)
        db.table("events").load(_events(range(start, start + 10)))
        tx.insert("products", {"id": 100 + start, "category": "x"})
        with pytest.raises(vt.TransactionConflict):
            tx.commit()
    # What was known to be absent is there now.
    with db.transaction() as tx, pytest.raises(vt.IntegrityError):
        tx.insert("events", {"id": 5, "product": 1, "cost": 1})


def test_every_type_and_null(db: vt.Database) -> None:
    rows = [
        {
            "id": n,
            "t": "é" * (n % 300),
            "f": [None, 0.5, float("nan"), -0.0][n % 4],
            "b": [None, True, False][n % 3],
            "d": [None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)][n % 3],
            "ts": [None, datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)][n % 3],
            "raw": [None, b"", bytes([0, 1, 255]) * (n % 100)][n % 3],
            "n": [None, 1, -1, 200, -40_000, 2**31, -(2**63), 2**63 - 1][n % 8],
        }
        for n in range(400)
    ]
    kinds = {"id": int, "t": str, "f": float, "b": bool, "d": "date", "ts": "timestamp", "raw": bytes, "n": int}
    for name in ("loaded", "inserted"):
        db.create_table(name, kinds, key=["t", "d", "id"][2:], indexes=["t", "d", ["b", "ts"], "raw", "n"])
    db.table("loaded").load(pa.Table.from_pylist(rows))
    with db.transaction() as tx:
        tx.insert("inserted", rows)
    left, right = (db.sql(f"SELECT * FROM {name} ORDER BY id") for name in ("loaded", "inserted"))
    assert [repr(dict(row)) for row in left] == [repr(dict(row)) for row in right]
    with db.snapshot() as snapshot:
        for column, value in (("t", "é" * 3), ("d", datetime.date(1, 1, 1)), ("n", -40_000), ("raw", b"")):
            found = [
                sorted(row.id for row in snapshot.find(name, **{column: value})) for name in ("loaded", "inserted")
            ]
            assert found[0] == found[1] and found[0]


ADD_UP = {
    "where": "SELECT id, cost FROM events WHERE cost > 3",
    "some": "SELECT product, SUM(cost) AS cost FROM events WHERE cost > 3 GROUP BY product",
    "ends": "SELECT product, MIN(cost) AS low, MAX(cost) AS high FROM events GROUP BY product",
    "left join": "SELECT e.id, p.category FROM events e LEFT JOIN products p ON p.id = e.cost",
    "anti-join": "SELECT id FROM events e WHERE NOT EXISTS (SELECT 1 FROM products p WHERE p.id = e.cost)",
    "no key": "SELECT e.id, p.id AS other FROM events e JOIN products p ON p.size = e.cost",
    "union": "SELECT id FROM events WHERE cost = 1 UNION ALL SELECT cost FROM events",
    "distinct": "SELECT DISTINCT cost FROM events",
}
NOT = {
    "itself": "SELECT a.id, b.cost FROM events a JOIN events b ON a.cost = b.id",
    "count distinct": "SELECT product, COUNT(DISTINCT cost) AS n FROM events GROUP BY product",
}


@pytest.mark.parametrize("kind", [*ADD_UP, *NOT])
def test_views_of_a_load(db: vt.Database, kind: str) -> None:
    db.add_column("products", "size", int)
    db.sql("UPDATE products SET size = id WHERE id < 4")
    db.sql("DELETE FROM products WHERE id = 5")
    db.table("events").load(_events(range(100)))
    db.create_view("v", {**ADD_UP, **NOT}[kind])
    engine = db._node.engine
    assert can_stage(engine, engine.ltm.tables.by_name["events"]) is (kind in ADD_UP)  # type: ignore[arg-type]
    with db.snapshot() as before:
        was = before.view("v").rows()
        result = db.table("events").load(_events(range(200, 400)))
        assert before.view("v").rows() == was
    assert result.rows == 200 and db.view("v").verify().ok
    db.sql("DELETE FROM events WHERE cost = 6")
    db.sql("INSERT INTO products VALUES (5, 'c', 5)")
    assert db.view("v").verify().ok


def test_a_row_that_a_view_did_not_find_comes_during_a_load(db: vt.Database) -> None:
    db.create_view("v", ADD_UP["left join"])
    db.sql("DELETE FROM products WHERE id = 5")

    def batches() -> Iterator[object]:
        yield _events(range(100))
        db.sql("INSERT INTO products VALUES (5, 'c')")

    with pytest.raises(vt.TransactionConflict):
        db.table("events").load(batches())
    assert db.view("v").verify().ok and db.view("v").rows() == []


CRASHING = """
import os, sys
import pyarrow as pa
import viewtide as vt
from viewtide import bulk
from viewtide.coordinator import bulk_load
from viewtide.ltm import driver
from viewtide.ltm.bulk_staging import Staging
bulk.STAGED_ROWS_MIN, bulk.CHUNK_ROWS, bulk_load.WRITE_ROWS = 1, 50, 100
path, point = sys.argv[1:]
db = vt.connect(path, ltms=1)

def die(*_):
    os._exit(9)

if point == "before the record":
    driver.Ltm.accept_load = die
elif point == "after the record":
    flush = driver.Ltm.flush
    accept = driver.Ltm.accept_load
    def accept_load(self, *args):
        accept(self, *args)
        flush(self)
        die()
    driver.Ltm.accept_load = accept_load

def batches():
    for first in range(1000, 1400, 100):
        if first == 1300 and point == "staged":
            die()
        yield pa.table({"id": range(first, first + 100), "product": [n % 10 for n in range(100)], "cost": [1] * 100})

db.table("events").load(batches())
if point == "after all":
    die()
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["staged", "before the record", "after the record", "after all"])
def test_a_crash_leaves_all_of_it_or_nothing(path: Path, point: str) -> None:
    with vt.connect(path, ltms=1) as db:
        _create(db)
        db.table("events").load(_events(range(200)))
    with vt.connect(path, ltms=1) as db:
        cells = _cells(db)
    done = subprocess.run([sys.executable, "-c", CRASHING, str(path), point], check=False, env=os.environ)
    assert done.returncode == 9
    ids = [*range(200), *(range(1000, 1400) if point.startswith("after") else [])]
    with vt.connect(path, ltms=1) as db:
        if not point.startswith("after"):
            assert _cells(db) == cells
        _check(db, ids)
        db.table("events").load(_events(range(5000, 5100)))
    with vt.connect(path, ltms=1) as db:
        _check(db, [*ids, *range(5000, 5100)])
