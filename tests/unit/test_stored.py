"""A directory read straight from its store: open elsewhere or not, as of one timestamp, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import viewtide as vt
from viewtide import stored
from viewtide.stored import KeyRange, Pin, StoredRows, pinned, places_between

LEASE_S = 60.0
ROWS = 600


def fill(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "g": str, "n": int}, key="id", indexes=["g"])
    db.create_view("sums", "SELECT g, SUM(n) AS n, MAX(n) AS most FROM t GROUP BY g")
    db.create_view("total", "SELECT COUNT(*) AS n FROM t")
    db.create_view("first", "SELECT id, n FROM t ORDER BY n DESC LIMIT 3")
    db.create_view("later", "SELECT g, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")
    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "g": "abc"[number % 3], "n": number} for number in range(ROWS)])


Rows = list[tuple[object, ...]]
Reading = tuple[Path, str, Pin, int]


def read_in_parts(reading: Reading) -> Rows | tuple[str, str]:
    """In another process: LMDB refuses to open a store twice in one."""
    path, name, pin, parts = reading
    stored.SMALL_CELLS = 0
    try:
        with StoredRows(path, name, pin) as rows:
            ranges = rows.divided(rows.whole(), parts)
            return [tuple(row) for each in ranges for page in rows.pages(each) for row in page]
    except vt.StaleRead as error:
        return error.message, error.hint


class Elsewhere:
    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def rows_of(self, path: Path, name: str, pin: Pin, parts: int = 4) -> Rows:
        found = self._pool.submit(read_in_parts, (path, name, pin, parts)).result(timeout=60)
        if isinstance(found, tuple):
            raise vt.StaleRead(found[0], hint=found[1])
        return found


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield Elsewhere(pool)


def shown(db: vt.Database, name: str) -> list[tuple[object, ...]]:
    with db.snapshot() as snapshot:
        result = snapshot.scan(name) if name in db.tables() else snapshot.view(name).rows()
    return [tuple(row.values()) for row in result]


NAMES = ["t", "sums", "total", "first", "later"]


@pytest.mark.several_ltms
def test_a_closed_directory_is_read_as_it_was_left(db_path: Path, elsewhere: Elsewhere) -> None:
    with vt.connect(db_path) as db:
        fill(db)
        db.view("later").refresh()
        expected = {name: shown(db, name) for name in NAMES}
    pins = {name: pinned(db_path, name, LEASE_S) for name in NAMES}
    for name, pin in pins.items():
        assert pin.number == 0
        assert expected[name] and elsewhere.rows_of(db_path, name, pin) == expected[name]
        assert pinned(db_path, name, LEASE_S) == pin, "to look at it writes nothing"


@pytest.mark.several_ltms
def test_an_open_one_stays_readable_while_writers_go_on(db_path: Path, elsewhere: Elsewhere) -> None:
    with vt.connect(db_path) as db:
        fill(db)
        db.view("later").refresh()
        expected = {name: shown(db, name) for name in NAMES}
        pins = {name: pinned(db_path, name, LEASE_S) for name in NAMES}
        for _ in range(3):
            with db.transaction() as tx:
                for number in range(0, ROWS, 2):
                    tx.update("t", number, {"n": -1, "g": "z"})
                tx.delete("t", 1)
                tx.upsert("t", [{"id": ROWS + more, "g": "new", "n": 7} for more in (1, 2)])
            db.view("later").refresh()
            db._engine.checkpoint()
        for name, pin in pins.items():
            assert shown(db, name) != expected[name]
            assert elsewhere.rows_of(db_path, name, pin) == expected[name]
            assert elsewhere.rows_of(db_path, name, pinned(db_path, name, LEASE_S)) == shown(db, name)


def test_a_bulk_load_is_seen_from_its_commit_on(
    db_path: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("viewtide.bulk.STAGED_ROWS_MIN", 1)
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int}, key="id")
        under_way: list[Pin] = []

        def batches() -> Iterator[object]:
            for first in range(2):
                under_way.append(pinned(db_path, "t", LEASE_S))
                yield pyarrow.table({"id": [first * 100 + number for number in range(100)]})

        db.table("t").load(batches())
        after = pinned(db_path, "t", LEASE_S)
        assert [elsewhere.rows_of(db_path, "t", pin) for pin in under_way] == [[], []]
        assert len(elsewhere.rows_of(db_path, "t", after)) == 200
    assert elsewhere.rows_of(db_path, "t", under_way[0]) == []
    assert len(elsewhere.rows_of(db_path, "t", pinned(db_path, "t", LEASE_S))) == 200


def test_a_timestamp_that_is_let_go_is_refused_before_its_versions_are_gone(
    db_path: Path, elsewhere: Elsewhere
) -> None:
    with vt.connect(db_path) as db:
        fill(db)
        first, second = pinned(db_path, "t", LEASE_S), pinned(db_path, "t", LEASE_S)
        assert first.at == second.at
        with vt.connect(f"ipc://{db_path}/socket") as other:
            assert other._remote.call("shared.renew", first.number) is True
            other._remote.call("shared.release", first.number)
            assert len(elsewhere.rows_of(db_path, "t", first)) == ROWS, "another reader keeps the same timestamp"
            other._remote.call("shared.release", second.number)
            assert other._remote.call("shared.renew", second.number) is False
        with pytest.raises(vt.StaleRead, match="not kept any more"):
            elsewhere.rows_of(db_path, "t", first)
        db.sql("DELETE FROM t")
        db._engine.checkpoint()
        with pytest.raises(vt.StaleRead):
            elsewhere.rows_of(db_path, "t", second)


def test_a_lease_ends(db_path: Path, elsewhere: Elsewhere) -> None:
    with vt.connect(db_path) as db:
        fill(db)
        pin = pinned(db_path, "t", 0.05)
        while pin.at in db._engine.ltm.horizon.pins.values():
            time.sleep(0.01)  # the node looks every second; nobody is told
        with pytest.raises(vt.StaleRead, match="lease") as caught:
            elsewhere.rows_of(db_path, "t", pin)
        assert "longer lease" in caught.value.hint


@pytest.mark.several_ltms
def test_a_closed_one_that_was_opened_meanwhile_is_refused(db_path: Path, elsewhere: Elsewhere) -> None:
    with vt.connect(db_path) as db:
        fill(db)
    pin = pinned(db_path, "t", LEASE_S)
    with vt.connect(db_path) as db:
        db.sql("DELETE FROM t WHERE id < 10")
    with pytest.raises(vt.StaleRead, match="not kept"):
        elsewhere.rows_of(db_path, "t", pin)
    assert len(elsewhere.rows_of(db_path, "t", pinned(db_path, "t", LEASE_S))) == ROWS - 10


KILLED = """
import os, signal, sys
import viewtide as vt
from viewtide.stored import pinned
from pathlib import Path
db = vt.connect(sys.argv[1])
db.create_table("t", {"id": int}, key="id")
pin = pinned(Path(sys.argv[1]), "t", 600.0)
with db.transaction() as tx:
    tx.insert("t", [{"id": number} for number in range(100)])
print(pin.at, pin.number, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.several_ltms
def test_one_that_was_killed_is_recovered_first_and_its_pins_are_gone(db_path: Path, elsewhere: Elsewhere) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(db_path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == -signal.SIGKILL, run.stderr
    at, number = map(int, run.stdout.split())
    assert elsewhere.rows_of(db_path, "t", Pin(at, number)) == []
    assert len(elsewhere.rows_of(db_path, "t", pinned(db_path, "t", LEASE_S))) == 100
    with pytest.raises(vt.StaleRead):
        elsewhere.rows_of(db_path, "t", Pin(at, number))


VOTED = """
import os, signal, sys
import viewtide as vt
from viewtide.coordinator.several import SeveralEngine
with vt.connect(sys.argv[1], ltms=3) as db:
    db.create_table("t", {"id": int}, key="id")
    db.sql("INSERT INTO t VALUES (-1)")
db = vt.connect(sys.argv[1], ltms=3)
SeveralEngine._log_decided = lambda self: os.kill(os.getpid(), signal.SIGKILL)
db.sql("INSERT INTO t VALUES (1)")
"""


def test_what_only_the_logs_of_ltms_have_is_recovered_first(db_path: Path, elsewhere: Elsewhere) -> None:
    """They had voted for it, and the node's log had not heard of it: the store is as the node's log is."""
    run = subprocess.run([sys.executable, "-c", VOTED, str(db_path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert elsewhere.rows_of(db_path, "t", pinned(db_path, "t", LEASE_S)) == [(-1,), (1,)]


def test_columns_that_were_dropped_or_are_hidden_are_not_seen(db_path: Path, elsewhere: Elsewhere) -> None:
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "gone": int, "kept": str}, key="id")
        db.create_table("bare", {"a": int})
        db.sql("INSERT INTO t VALUES (1, 2, 'x'); INSERT INTO bare VALUES (5)")
        db.drop_column("t", "gone")
        db.add_column("t", "late", vt.column(int, default=9))
        assert elsewhere.rows_of(db_path, "t", pinned(db_path, "t", LEASE_S)) == [(1, "x", 9)]
        assert elsewhere.rows_of(db_path, "bare", pinned(db_path, "bare", LEASE_S)) == [(5,)]
    with StoredRows(db_path, "t", pinned(db_path, "t", LEASE_S)) as rows:
        assert [name for name, _ in rows.columns()] == ["id", "kept", "late"]


def test_what_is_not_there_is_told(db_path: Path, tmp_path: Path) -> None:
    with pytest.raises(vt.OperationalError, match="no database"):
        pinned(tmp_path / "nothing", "t", LEASE_S)
    with vt.connect(db_path) as db:
        fill(db)
        with pytest.raises(vt.ProgrammingError, match="no table 'tt'"):
            pinned(db_path, "tt", LEASE_S)
        with pytest.raises(vt.InterfaceError, match="lease"):
            pinned(db_path, "t", -1.0)
    with pytest.raises(vt.ProgrammingError, match="no table 'tt'"):
        pinned(db_path, "tt", LEASE_S)


def test_a_directory_whose_holder_does_not_answer_is_told(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "REACH_S_MAX", 0.1)
    with vt.connect(db_path) as db:
        fill(db)
        os.unlink(db_path / "socket")
        with pytest.raises(vt.OperationalError, match="is open in process"):
            pinned(db_path, "t", LEASE_S)


def test_places_divide_a_range() -> None:
    places = places_between(b"\0\0\0\5" + (0).to_bytes(8, "big"), b"\0\0\0\5" + (1000).to_bytes(8, "big"), 4)
    assert len(places) == 3 and places == sorted(places)
    assert places_between(b"ab", b"b", 1) == []


def test_parts_have_every_row_once(db_path: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    with vt.connect(db_path) as db:
        db.create_table("names", {"name": str, "n": int}, key=["name", "n"])
        with db.transaction() as tx:
            tx.insert("names", [{"name": "x" * (number % 7), "n": number} for number in range(500)])
        expected = shown(db, "names")
    pin = pinned(db_path, "names", LEASE_S)
    for parts in (1, 2, 3, 16, 64):
        assert elsewhere.rows_of(db_path, "names", pin, parts) == expected
    with StoredRows(db_path, "names", pin) as rows:
        assert rows.divided(rows.whole(), 16) == [rows.whole()], "it is small"
        monkeypatch.setattr(stored, "SMALL_CELLS", 0)
        assert len(rows.divided(rows.whole(), 16)) > 4
        nothing = KeyRange(rows.whole().start, rows.whole().start)
        assert list(rows.pages(nothing)) == []
