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

import pytest

import viewtide as vt
from viewtide.config import usual_ltms
from viewtide.ltm.commit_log.format import (
    SEGMENT_HEADER_BYTES,
    Place,
    decode_segment_header,
    walk_records,
)

ROWS = 40
VICTIM = 17
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
    table_id = db._engine.ltm.tables.by_name["items"].table.id
    key = db._engine.ltm.tables.by_name["items"].codec.key_of(VICTIM)
    with pytest.raises(vt.OperationalError, match=rf"data\.mdb.*table {table_id}.*{key.hex()}"):
        read(db)
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
        with pytest.raises(vt.OperationalError, match=r"data\.mdb.*table \d+"):
            db.view("texts").rows()
        with pytest.raises(vt.OperationalError, match=r"data\.mdb.*table \d+"), db.transaction() as tx:
            tx.update("items", VICTIM, {"text": "x"})
        # A transaction that fails has changed nothing.
        with db.snapshot() as snapshot:
            assert snapshot.get("items", VICTIM) == {"id": VICTIM, "kind": VICTIM % 3, "text": text_of(VICTIM)}


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
