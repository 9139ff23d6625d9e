"""Loads of clients into a directory that a process has open, or a served node: whoever has it loads them in bulk."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import viewtide as vt
from viewtide import bulk, uploads
from viewtide.cli import app
from viewtide.coordinator import bulk_load
from viewtide.remote_calls import SessionCalls

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.embedded("it is about one that is open here")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load is staged, and takes several messages and writes."""
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", 1)
    monkeypatch.setattr(bulk, "CHUNK_ROWS", 50)
    monkeypatch.setattr(bulk_load, "WRITE_ROWS", 120)
    monkeypatch.setattr(uploads, "PART_BYTES_MAX", 1_000)


@pytest.fixture
def db(db_path: Path) -> Iterator[vt.Database]:
    with vt.connect(db_path, ltms=1) as database:
        database.create_table("t", {"id": int, "g": str, "n": int}, key="id", indexes=["g"])
        database.create_table("u", {"id": int, "j": "json"}, key="id")
        database.create_view("sums", "SELECT g, SUM(n) AS n, COUNT(*) AS c FROM t GROUP BY g")
        database.create_view("late", "SELECT g, SUM(n) AS n FROM t GROUP BY g", refresh="manual")
        yield database


@pytest.fixture
def client(db: vt.Database, db_path: Path) -> Iterator[vt.Database]:
    with vt.connect(f"ipc://{db_path}/socket") as database:
        yield database


def _rows(ids: range) -> object:
    return pa.table({"id": list(ids), "g": ["ab"[n % 2] for n in ids], "n": list(ids)})


def _check(db: vt.Database, count: int) -> None:
    assert db.sql("SELECT COUNT(*) AS n FROM t")[0].n == count
    assert sum(row.c for row in db.view("sums").rows()) == count
    db.view("late").refresh()
    assert all(view.verify().ok for view in (db.view("sums"), db.view("late")))


def _loaded_ts(db: vt.Database) -> int:
    """The commit_ts of the last load that went to the store beside the log."""
    return db._node.engine.ltm.staging.loaded_ts  # type: ignore[attr-defined]


def _open_files(path: Path) -> list[str]:
    """Those in the directory that have no name any more."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [link for link in links if link.startswith(str(path)) and "(deleted)" in link]


def test_it_is_loaded_in_bulk_by_who_has_it_open(db: vt.Database, client: vt.Database, db_path: Path) -> None:
    counted: list[int] = []
    result = client.table("t").load([_rows(range(300)), _rows(range(300, 500))], progress=counted.append)
    assert result == (500, _loaded_ts(db)) and counted[-1] == 500
    _check(db, 500)
    assert _open_files(db_path) == []


def test_what_is_wrong_with_it_is_told_and_nothing_has_changed(
    db: vt.Database, client: vt.Database, db_path: Path
) -> None:
    client.table("t").load(_rows(range(100)))
    with pytest.raises(vt.IntegrityError, match="row 50 of table 't' exists already"):
        client.table("t").load([_rows(range(1000, 1100)), _rows(range(50, 60))])
    bad = pa.table({"id": ["200", "201", "three"]})
    with pytest.raises(vt.DataError, match=r"row 13: column t\.id: invalid input syntax"):
        client.table("t").load([_rows(range(190, 200)), bad])

    def breaks() -> Iterator[object]:
        yield _rows(range(2000, 2500))
        raise KeyError("no more")

    with pytest.raises(KeyError):
        client.table("t").load(breaks())
    _check(db, 100)
    assert _open_files(db_path) == []


def test_a_client_that_goes_away_leaves_nothing(db: vt.Database, client: vt.Database, db_path: Path) -> None:
    node = client._remote  # type: ignore[attr-defined]
    calls = SessionCalls(node.client, ("upload", "t"))
    assert node.run(calls.ask("open"))
    node.run(calls.ask("add", (uploads.ARROW, b"whatever")))
    assert len(_open_files(db_path)) == 1
    db._node.socket._server._sessions.end_all()  # type: ignore[attr-defined]  # as after some time
    assert _open_files(db_path) == []
    with pytest.raises(vt.TransactionConflict):
        node.run(calls.ask("load", ([("", 0)],)))
    _check(db, 0)


def test_a_full_disk_is_told_and_ends_nothing_but_the_load(
    db: vt.Database, client: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", lambda dir: open("/dev/full", "r+b"))  # noqa: SIM115
        with pytest.raises(vt.OperationalError, match=r"cannot be kept on the node.*space"):
            client.table("t").load(_rows(range(100)))
        node = client._remote  # type: ignore[attr-defined]
        calls = SessionCalls(node.client, ("upload", "t"))
        with pytest.raises(vt.OperationalError, match="space"):
            node.run(calls.ask("add", (uploads.ARROW, b"some")))
        with pytest.raises(vt.Error, match="without rows"):
            node.run(calls.ask("load", ([("", 0)],)))
        db._node.socket._server._sessions.end_all()  # type: ignore[attr-defined]  # as after some time
    _check(db, 0)
    assert client.table("t").load(_rows(range(100))).rows == 100
    _check(db, 100)


def test_so_many_loads_at_a_time(db: vt.Database, client: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_room", threading.BoundedSemaphore(1))
    node = client._remote  # type: ignore[attr-defined]
    calls = SessionCalls(node.client, ("upload", "t"))
    assert node.run(calls.ask("open"))
    with pytest.raises(vt.Busy, match="loads of clients"):
        client.table("t").load(_rows(range(100)))
    db._node.socket._server._sessions.end_all()  # type: ignore[attr-defined]  # as after some time
    assert client.table("t").load(_rows(range(100))).rows == 100
    assert client.table("t").load(_rows(range(100, 200))).rows == 100
    _check(db, 200)


@pytest.mark.parametrize(
    ("kind", "data"),
    [(uploads.ARROW, b"nonsense"), (uploads.VALUES, b"\xc1"), (uploads.VALUES, b"\x93\x01\x02\x03"), (7, b"")],
)
def test_nonsense_is_refused(db: vt.Database, client: vt.Database, kind: int, data: bytes) -> None:
    node = client._remote  # type: ignore[attr-defined]
    calls = SessionCalls(node.client, ("upload", "t"))
    with pytest.raises(vt.Error, match="cannot be"):
        node.run(calls.ask("add", (kind, data)))
        node.run(calls.ask("load", ([("", 0)],)))
    _check(db, 0)


def test_a_table_that_takes_no_bulk_loads_is_loaded_by_a_transaction(db: vt.Database, client: vt.Database) -> None:
    db.sql("CREATE TABLE single (id int PRIMARY KEY, code text UNIQUE)")
    result = client.table("single").load(pa.table({"id": [1, 2], "code": ["a", "b"]}))
    assert result.rows == 2 and _loaded_ts(db) == 0
    assert [row.code for row in db.sql("SELECT code FROM single ORDER BY id")] == ["a", "b"]


def test_files(db: vt.Database, db_path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,g,n\n" + "".join(f"{n},x,{n}\n" for n in range(300)))
    (tmp_path / "b.csv").write_text("id,g,n\n500,x,1\n")
    (tmp_path / "bad.csv").write_text("id,g,n\n1000,x,1\n1001,x,none\n")
    (tmp_path / "j.jsonl").write_text("".join(json.dumps({"id": n, "j": [n, {"a": None}]}) + "\n" for n in range(200)))
    assert _run("load", "t", tmp_path / "a.csv", "--into", db_path).exit_code == 0
    assert _loaded_ts(db) > 0
    bad = _run("load", "t", tmp_path / "b.csv", tmp_path / "bad.csv", "--into", db_path)
    assert bad.exit_code == 1 and f"{tmp_path / 'bad.csv'}, row 2: column t.n: invalid input" in bad.output
    _check(db, 300)
    before = _loaded_ts(db)
    assert _run("load", "u", tmp_path / "j.jsonl", "--into", db_path).exit_code == 0
    assert _loaded_ts(db) > before
    assert db.sql("SELECT j FROM u WHERE id = 7")[0].j == [7, {"a": None}]


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])
