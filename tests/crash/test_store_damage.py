"""Damage in the store's file is found when it is read, and a killed writer leaves whole writes only."""

from __future__ import annotations

import errno
import random
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from viewtide.changetables.errors import OperationalError
from viewtide.ltm.ports import Cell
from viewtide.ltm.store import lmdb as lmdb_module
from viewtide.ltm.store.lmdb import LmdbStore

TABLE = b"\0\0\0\7"
END = b"\0\0\0\x08"
NOW = 2**64 - 1
PAGE_BYTES = 4096
CELLS = [Cell(TABLE + b"key-%02d" % n, 10, b"payload-%02d" % n) for n in range(20)]
VICTIM = CELLS[7]
TOMBSTONE = Cell(TABLE + b"dead-1", 10, None)
assert VICTIM.value is not None

Read = Callable[[LmdbStore], object]
READS: dict[str, Read] = {
    "get": lambda store: store.get(VICTIM.key, NOW),
    "get_many": lambda store: store.get_many([CELLS[0].key, VICTIM.key], NOW),
    "scan": lambda store: store.scan(TABLE, END, NOW, 100),
    "scan from the key": lambda store: store.scan(VICTIM.key, END, NOW, 1),
    "max_key": lambda store: store.max_key(TABLE, VICTIM.key + b"\0"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with one page of cells, a note and a meta entry."""
    store = LmdbStore(tmp_path / "store")
    store.write([[TOMBSTONE, *CELLS]], [(20, CELLS[3].key, 10)], {"checkpoint": b"lsn-12345"}, lambda: None)
    store.close()
    return tmp_path / "store"


def flip(path: Path, sought: bytes, offset: int = 0, bits: int = 0x10) -> None:
    """Change the byte at `offset` from each place in the file that holds `sought` (old pages may hold it too)."""
    file = path / "data.mdb"
    content = bytearray(file.read_bytes())
    position = content.find(sought)
    assert position >= 0
    while position >= 0:
        content[position + offset] ^= bits
        position = content.find(sought, position + 1)
    file.write_bytes(content)


def stored(cell: Cell) -> bytes:
    """The LMDB key and the value of a cell, which lie side by side in its page."""
    content = cell.key + (NOW - cell.commit_ts).to_bytes(8, "big")
    return content + (b"\0" if cell.value is None else cell.value + b"\1")


def holds(page: bytes, cell: Cell) -> bool:
    """Whether one of the page's nodes is the cell. Its bytes alone prove nothing: LMDB does not clear its buffers.

    A page has 16 bytes of header, of which the 13th and 14th say where its node pointers end; a node has 8.
    """
    nodes = struct.unpack_from(f"<{(struct.unpack_from('<H', page, 12)[0] - 16) // 2 % 2_000}H", page, 16)
    return any(page[node + 8 :].startswith(stored(cell)) for node in nodes)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_damaged_value_is_reported_with_table_key_and_file(path: Path, read: Read) -> None:
    flip(path, VICTIM.value or b"")
    store = LmdbStore(path)
    with pytest.raises(OperationalError, match=rf"data\.mdb.*table 7.*{VICTIM.key.hex()}") as raised:
        read(store)
    assert str(path) in str(raised.value)
    assert raised.value.hint
    # What is not damaged can still be read, for whoever wants to save it.
    assert store.get(CELLS[12].key, NOW) == CELLS[12]
    store.close()


@pytest.mark.parametrize(
    "victim", [VICTIM, CELLS[0], CELLS[-1], TOMBSTONE], ids=["middle", "first", "last", "tombstone"]
)
def test_no_damaged_byte_of_a_cell_becomes_a_wrong_answer(path: Path, victim: Cell) -> None:
    """Key, timestamp, value, kind and checksum; a damaged key must not turn into "no such row" either."""
    original = (path / "data.mdb").read_bytes()
    for offset in range(len(stored(victim)) + 4):
        for bits in (0x01, 0x80):
            flip(path, stored(victim), offset, bits)
            store = LmdbStore(path)
            with pytest.raises(OperationalError, match="damage"):
                store.get(victim.key, NOW)
            with pytest.raises(OperationalError, match="damage"):
                store.scan(TABLE, END, NOW, 100)
            store.close()
            (path / "data.mdb").write_bytes(original)


def test_a_cell_in_the_place_of_another_is_damage(path: Path) -> None:
    """Two values with good checksums, exchanged: the checksum covers the key."""
    file = path / "data.mdb"
    content = file.read_bytes()
    key_bytes = len(CELLS[4].key) + 8
    one, other = (content[content.index(each) :][: len(each) + 4] for each in map(stored, CELLS[4:6]))
    content = content.replace(one, one[:key_bytes] + other[key_bytes:])
    content = content.replace(other, other[:key_bytes] + one[key_bytes:])
    file.write_bytes(content)
    store = LmdbStore(path)
    with pytest.raises(OperationalError, match="damage"):
        store.get(CELLS[4].key, NOW)
    with pytest.raises(OperationalError, match="damage"):
        store.scan(CELLS[5].key, END, NOW, 1)
    store.close()


@pytest.mark.parametrize("sought", [b"lsn-12345", b"checkpoint"], ids=["value", "name"])
def test_a_damaged_meta_entry_is_reported(path: Path, sought: bytes) -> None:
    flip(path, sought)
    store = LmdbStore(path)
    with pytest.raises(OperationalError, match=r"damage.*data\.mdb.*meta entry"):
        store.meta("checkpoint")
    store.close()


@pytest.mark.parametrize("offset", [0, 7, 8, 20], ids=["superseding", "its last byte", "table", "superseded"])
def test_a_damaged_note_deletes_nothing(path: Path, offset: int) -> None:
    flip(path, (20).to_bytes(8, "big") + CELLS[3].key + (10).to_bytes(8, "big"), offset, 0x01)
    store = LmdbStore(path)
    with pytest.raises(OperationalError, match=r"damage.*garbage note"):
        store.prune(NOW, 10)
    assert store.scan(TABLE, END, NOW, 100) == [TOMBSTONE, *CELLS]
    store.close()


def test_a_damaged_format_entry_is_refused(path: Path) -> None:
    flip(path, b"viewtide store 1")
    with pytest.raises(OperationalError, match=r"damage.*data\.mdb"):
        LmdbStore(path)


@pytest.mark.parametrize("half", [0, 1])
def test_half_a_page_of_zeros_is_reported(path: Path, half: int) -> None:
    file = path / "data.mdb"
    content = bytearray(file.read_bytes())
    pages = [
        page for page in range(0, len(content), PAGE_BYTES) if holds(bytes(content[page : page + PAGE_BYTES]), VICTIM)
    ]
    assert pages
    for page in pages:
        begin = page + half * PAGE_BYTES // 2
        content[begin : begin + PAGE_BYTES // 2] = bytes(PAGE_BYTES // 2)
    file.write_bytes(content)
    store = LmdbStore(path)
    for read in READS.values():
        with pytest.raises(OperationalError, match=r"data\.mdb"):
            read(store)
    store.close()


@pytest.mark.parametrize(
    ("code", "free_bytes", "message"),
    [
        (errno.ENOSPC, 1 << 40, "no space left"),
        (errno.EIO, 0, "no space left"),
        (errno.EIO, 1 << 40, "failed: mdb_txn_commit"),
    ],
    ids=["full", "filled by this write", "broken"],
)
def test_a_full_disk_and_a_broken_one_are_told_apart(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, free_bytes: int, message: str
) -> None:
    class Environment:
        def reader_check(self) -> int:
            return 0

        def begin(self, write: bool) -> object:
            error = lmdb.Error("mdb_txn_commit")
            error.__dict__["code"] = code
            raise error

    store = LmdbStore(path)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_environment", Environment())
        patch.setattr(lmdb_module, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
        with pytest.raises(OperationalError, match=message) as raised:
            store.write((), (), {"checkpoint": b"later"}, lambda: None)
    assert str(path / "data.mdb") in str(raised.value)
    assert store.meta("checkpoint") == b"lsn-12345"
    store.close()


LIMITED_WRITER = """
import resource, signal, sys
from pathlib import Path
from viewtide.changetables.errors import OperationalError
from viewtide.ltm.ports import Cell
from viewtide.ltm.store.lmdb import LmdbStore

store = LmdbStore(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    cells = [Cell(b"new-%03d" % n, 20, b"x" * 5000) for n in range(100)]
    store.write([cells], (), {"checkpoint": b"new"}, lambda: None)
except OperationalError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.meta("checkpoint").decode(), len(store.scan(b"", b"z", 99, 1000)))
"""


def test_a_device_that_refuses_a_write_leaves_the_last_state(path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITER, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    message, state = result.stdout.splitlines()
    assert "data.mdb failed" in message
    assert state == f"lsn-12345 {len(CELLS) + 1}"
    store = LmdbStore(path)
    assert store.scan(TABLE, END, NOW, 100) == [TOMBSTONE, *CELLS]
    store.close()


WRITER = """
import itertools, sys
from pathlib import Path
from viewtide.ltm.ports import Cell
from viewtide.ltm.store.lmdb import LmdbStore

store = LmdbStore(Path(sys.argv[1]))
keys = [b"\\0\\0\\0\\7%04d" % n for n in range(400)]
for number in itertools.count(int(store.meta("number") or b"0") + 1):
    batches = ([Cell(key, number, b"%d" % number * 20) for key in keys[part::4]] for part in range(4))
    notes = [(number, key, number - 1) for key in keys]
    store.write(batches, notes, {"number": b"%d" % number}, lambda: None)
    print(number, flush=True)
    if number % 3 == 0:
        store.prune(number - 1, 500)
"""


def test_a_killed_writer_leaves_whole_writes_only(tmp_path: Path) -> None:
    """Killed by a timer that knows nothing of what the writer does; each life goes on where the one before ended."""
    seeded = random.Random(20)
    acknowledged = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]
            timer = threading.Timer(seeded.uniform(0.005, 0.06), writer.kill)
            timer.start()
            lines += writer.stdout.readlines()
            timer.join()
        assert writer.returncode == -signal.SIGKILL
        previous, acknowledged = acknowledged, int([line for line in lines if line.endswith("\n")][-1])
        assert acknowledged > previous
        store = LmdbStore(tmp_path / "store")
        number = int(store.meta("number") or b"0")
        assert number in (acknowledged, acknowledged + 1)
        cells = store.scan(TABLE, END, NOW, 1_000)
        assert {(cell.commit_ts, cell.value) for cell in cells} == {(number, b"%d" % number * 20)}
        assert len(cells) == 400
        store.close()
