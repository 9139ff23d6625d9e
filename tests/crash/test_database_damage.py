"""Damage and foreign files, met through the whole database: an error that says where, never a wrong answer."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import lmdb
import pytest

import viewtide as vt
from viewtide.changetables.keys import table_range
from viewtide.config import usual_ltms
from viewtide.ltm.commit_log.format import (
    SEGMENT_HEADER_BYTES,
    Place,
    decode_segment_header,
    walk_records,
)
from viewtide.ltm.ports import Cell, DamagedCell
from viewtide.ltm.store.lmdb import LmdbStore
from viewtide.ltm.tables import Tables
from viewtide.stored import StoredRows, pinned

ROWS = 40
VICTIM = 17
UNKNOWN_ID = 4711
BY_KIND = "SELECT kind, COUNT(*) AS n FROM items GROUP BY kind"


def text_of(number: int) -> str:
    return f"text-of-row-{number:03d}"


def fill(db: vt.Database) -> None:
    """Four commits of ten rows, a table with an index and a view."""
    db.create_table("items", {"id": int, "kind": int, "text": str}, key="id", indexes=["kind"])
    db.create_view("by_kind", BY_KIND)
    for first in range(0, ROWS, 10):
        with db.transaction() as tx:
            tx.insert("items", [{"id": n, "kind": n % 3, "text": text_of(n)} for n in range(first, first + 10)])


@pytest.fixture
def closed(db_path: Path) -> Path:
    """A database that was closed: everything is in the store."""
    with vt.connect(db_path, cache_rows=100) as db:
        fill(db)
    return db_path


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A database as a crash leaves it: everything is in the log."""
    with vt.connect(tmp_path / "original") as db:
        fill(db)
        assert db.status().checkpoints <= 1, "only the one that finishes the view"
        shutil.copytree(tmp_path / "original", tmp_path / "crashed")
    return tmp_path / "crashed"


def counted(by_kind: vt.Result) -> int:
    return sum(cast(int, row["n"]) for row in by_kind)


def flip(file: Path, sought: bytes) -> None:
    """One bit in every place that holds `sought`: LMDB keeps old pages."""
    content = bytearray(file.read_bytes())
    position = content.find(sought)
    assert position >= 0
    while position >= 0:
        content[position + len(sought) // 2] ^= 0x04
        position = content.find(sought, position + 1)
    file.write_bytes(content)


# --- the store ---

READS: dict[str, Callable[[vt.Database], object]] = {
    "get": lambda db: db.run(lambda tx: tx.get("items", VICTIM)),
    "get_many": lambda db: db.run(lambda tx: tx.get_many("items", [1, VICTIM])),
    "scan": lambda db: db.run(lambda tx: tx.scan("items")),
    "find": lambda db: db.run(lambda tx: tx.find("items", kind=VICTIM % 3)),
    "update": lambda db: db.run(lambda tx: tx.update("items", VICTIM, {"kind": 0})),
    "delete": lambda db: db.run(lambda tx: tx.delete("items", VICTIM)),
    "upsert": lambda db: db.run(lambda tx: tx.upsert("items", {"id": VICTIM, "kind": 0, "text": ""})),
    "insert": lambda db: db.run(lambda tx: tx.insert("items", {"id": VICTIM, "kind": 0, "text": ""})),
    "verify": lambda db: db.view("by_kind").verify(),
    "create_view": lambda db: db.create_view("other", "SELECT SUM(kind) AS s FROM items"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_damaged_row_is_reported_with_table_and_key(closed: Path, read: Callable[[vt.Database], object]) -> None:
    flip(closed / "store" / "data.mdb", text_of(VICTIM).encode())
    db = vt.connect(closed, cache_rows=100)
    with pytest.raises(
        vt.OperationalError, match=rf"data\.mdb: the row with key \({VICTIM},\) of table 'items'"
    ) as raised:
        read(db)
    assert str(closed) in raised.value.message
    assert raised.value.hint
    # The rest is still there, and the database still takes writes.
    with db.transaction() as tx:
        assert tx.get("items", VICTIM + 1) == {"id": VICTIM + 1, "kind": (VICTIM + 1) % 3, "text": text_of(VICTIM + 1)}
        tx.insert("items", {"id": ROWS, "kind": 0, "text": "new"})
    assert counted(db.view("by_kind").rows()) == ROWS + 1
    db.close()


def test_a_damaged_view_row_is_reported(closed: Path) -> None:
    with vt.connect(closed) as db:
        db.create_view("texts", "SELECT text || '-in-the-view' AS t FROM items")
    flip(closed / "store" / "data.mdb", f"{text_of(VICTIM)}-in-the-view".encode())
    with vt.connect(closed) as db:
        named = rf"data\.mdb: the row with key \({VICTIM},\) of view 'texts'"
        with pytest.raises(vt.OperationalError, match=named):
            db.view("texts").rows()
        with pytest.raises(vt.OperationalError, match="of view 'texts'"), db.transaction() as tx:
            tx.update("items", VICTIM, {"text": "x"})
        # A transaction that fails has changed nothing.
        with db.snapshot() as snapshot:
            assert snapshot.get("items", VICTIM) == {"id": VICTIM, "kind": VICTIM % 3, "text": text_of(VICTIM)}


def damage_first(path: Path, table_id: int) -> None:
    """The checksum of the first cell of a table, view or index."""
    with lmdb.open(str(path / "store"), map_size=1 << 30, max_dbs=3, lib_version=0) as environment:
        cells = environment.open_db(b"cells", create=False)
        with environment.begin(cells, write=True) as transaction:
            cursor = transaction.cursor()
            assert cursor.set_range(table_range(table_id)[0])
            key, value = cursor.item()
            assert key < table_range(table_id)[1]
            transaction.put(key, value[:-1] + bytes((value[-1] ^ 1,)))


def tables_of(path: Path) -> Tables:
    with vt.connect(path) as db:
        return db._engine.ltm.tables


@pytest.mark.parametrize("name", ["", "kinds"])
def test_a_damaged_index_entry_is_reported_with_its_index_and_table(db_path: Path, name: str) -> None:
    with vt.connect(db_path) as db:
        fill(db)
        db.sql("CREATE INDEX kinds ON items (text)")
    column = "text" if name else "kind"
    [entries] = [each for each in tables_of(db_path).by_name["items"].indexes if each.index.name == name]
    damage_first(db_path, entries.index.id)
    named = rf"the entry [0-9a-f]+ of index{name and f' {name!r}'} \({column}\) of table 'items'"
    with pytest.raises(vt.OperationalError, match=named), vt.connect(db_path) as db:
        db.run(lambda tx: tx.find("items", **{column: text_of(0) if name else 0}))


def test_a_damaged_group_is_reported_with_its_view(closed: Path) -> None:
    damage_first(closed, tables_of(closed).views["by_kind"].view.id)
    with pytest.raises(vt.OperationalError, match=r"with key \(0,\) of view 'by_kind'"), vt.connect(closed) as db:
        db.view("by_kind").rows()


def test_a_damaged_row_that_is_kept_for_a_view_is_reported_with_the_view(closed: Path) -> None:
    with vt.connect(closed) as db:
        db.create_view("least", "SELECT kind, MIN(text) AS t FROM items GROUP BY kind")
    [hidden] = [rows for rows in tables_of(closed).views.values() if rows.view.hidden]
    damage_first(closed, hidden.view.id)
    named = rf"with key \(0, '{text_of(0)}'\) of what is kept for view 'least'"
    with pytest.raises(vt.OperationalError, match=named), vt.connect(closed) as db:
        db.view("least").rows()


def test_a_damaged_row_with_a_shortened_key_is_reported_with_its_bytes(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        db.create_table("items", {"id": int, "text": str}, key="id")
        db.create_view("texts", "SELECT text, COUNT(*) AS n FROM items GROUP BY text")
        db.run(lambda tx: tx.insert("items", {"id": 1, "text": "long" * 1000}))
    damage_first(db_path, tables_of(db_path).views["texts"].view.id)
    with (
        pytest.raises(vt.OperationalError, match=r"with key [0-9a-f]{400,} of view 'texts'"),
        vt.connect(db_path) as db,
    ):
        db.view("texts").rows()


def test_damage_of_what_was_dropped_or_is_unknown_is_told_by_number_and_bytes(closed: Path) -> None:
    key = table_range(UNKNOWN_ID)[0] + b"key"
    store = LmdbStore(closed / "store")
    store.write([[Cell(key, 10, b"value")]], (), {}, lambda: None)
    store.close()
    damage_first(closed, UNKNOWN_ID)
    named = rf"data\.mdb: the row of table {UNKNOWN_ID} with key {key.hex()} and its version"
    with pytest.raises(DamagedCell, match=named) as raised, vt.connect(closed) as db:
        db._engine.ltm._store.get(key, 10)
    assert (raised.value.table_id, raised.value.key) == (UNKNOWN_ID, key)


def test_damage_that_another_process_reads_is_reported_with_table_and_key(closed: Path) -> None:
    """As Spark's tasks do: from the store of a directory that nobody has open."""
    flip(closed / "store" / "data.mdb", text_of(VICTIM).encode())
    pin = pinned(closed, "items", 10.0)
    named = rf"the row with key \({VICTIM},\) of table 'items'"
    with StoredRows(closed, "items", pin) as rows, pytest.raises(vt.OperationalError, match=named):
        list(rows.pages(rows.whole()))


# --- the log ---


def records_of(segment: Path) -> list[tuple[int, int]]:
    """Where each record begins and ends."""
    data = segment.read_bytes()
    header = decode_segment_header(data)
    assert header is not None
    place = Place(header.first_lsn, SEGMENT_HEADER_BYTES, header.chain)
    found = []
    for _, after in walk_records(memoryview(data), header.salt, place):
        found.append((place.offset, after.offset))
        place = after
    return found


def test_damage_before_the_last_log_record_is_refused(crashed: Path) -> None:
    [segment] = (crashed / "log").glob("*.log")
    intact = segment.read_bytes()
    for start, end in records_of(segment)[:-1]:
        for offset in (start, start + 30, (start + end) // 2, end - 9):
            damaged = bytearray(intact)
            damaged[offset] ^= 0x20
            segment.write_bytes(damaged)
            with pytest.raises(vt.OperationalError, match=rf"{segment.name} at offset {start}\b"):
                vt.connect(crashed)
            assert segment.read_bytes() == damaged, "a log that is refused is left as it was"
    # It let go of everything: the repaired file opens.
    segment.write_bytes(intact)
    with vt.connect(crashed) as db, db.snapshot() as snapshot:
        assert len(snapshot.scan("items")) == ROWS


def test_a_torn_last_flush_is_cut_and_reported(crashed: Path, caplog: pytest.LogCaptureFixture) -> None:
    [segment] = (crashed / "log").glob("*.log")
    start, end = records_of(segment)[-1]
    os.truncate(segment, (start + end) // 2)
    with caplog.at_level(logging.WARNING, logger="viewtide"):
        db = vt.connect(crashed)
    [record] = [record for record in caplog.records if record.name == "viewtide"]
    assert "cut" in record.getMessage()
    assert str(start) in record.getMessage()
    with db, db.snapshot() as snapshot:
        # Several LTMs have it in their logs all the same.
        rows_count = ROWS - 10 if usual_ltms() == 1 else ROWS
        assert [row["id"] for row in snapshot.scan("items")] == list(range(rows_count))
        assert counted(snapshot.view("by_kind").rows()) == rows_count
        assert db.view("by_kind").verify().ok


def test_a_clean_start_reports_nothing(crashed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="viewtide"), vt.connect(crashed) as db:
        assert db.view("by_kind").verify().ok
    assert not caplog.records


# --- who may open what ---


def test_a_second_opener_is_told_who_holds_the_database(closed: Path) -> None:
    script = "import sys, viewtide; viewtide.connect(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with vt.connect(closed) as db:
        with pytest.raises(vt.OperationalError, match=rf"process {os.getpid()}\b"):
            vt.connect(closed)
        other = subprocess.run(
            [sys.executable, "-c", script, str(closed)], env=environment, capture_output=True, text=True, check=False
        )
        assert other.returncode != 0
        assert f"process {os.getpid()}" in other.stderr
        assert db.view("by_kind").verify().ok, "the holder is not disturbed"
    with vt.connect(closed) as db:
        assert db.tables() == ["items"]


def test_a_directory_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(vt.OperationalError, match="something else") as raised:
        vt.connect(tmp_path)
    assert raised.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(vt.OperationalError, match="is a file"):
        vt.connect(file)
    assert file.read_text() == "precious"


def test_a_store_of_another_kind_is_refused(closed: Path) -> None:
    (closed / "store" / "data.mdb").write_bytes(b"not LMDB at all " * 1024)
    with pytest.raises(vt.OperationalError, match=r"data\.mdb|store"):
        vt.connect(closed)


def test_a_log_without_its_store_is_refused(closed: Path) -> None:
    """The log alone is not the database: it is trimmed, and the first contents of a view are in the store only."""
    with vt.connect(closed) as db:
        db.create_view("sums", "SELECT SUM(kind) AS s FROM items")
    shutil.rmtree(closed / "store")
    with pytest.raises(vt.OperationalError, match="store"):
        vt.connect(closed)


def test_a_store_without_its_log_is_refused(closed: Path) -> None:
    """Lsns would begin anew below the checkpoint's, and what is acknowledged then would never be replayed."""
    shutil.rmtree(closed / "log")
    with pytest.raises(vt.OperationalError, match="log"):
        vt.connect(closed)


def test_only_the_owner_can_read_the_files(db_path: Path) -> None:
    before = os.umask(0)
    try:
        with vt.connect(db_path, cache_rows=100) as db:
            fill(db)
        with vt.connect(db_path, cache_rows=100) as db:
            assert db.view("by_kind").verify().ok
    finally:
        os.umask(before)
    paths = [db_path, *db_path.rglob("*")]
    assert len(paths) > 6
    for path in paths:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))
