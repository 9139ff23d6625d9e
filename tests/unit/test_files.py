"""`viewtide load` and `viewtide export`: what is written comes back as it was."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import viewtide as vt
from tests.unit.test_bulk import COLUMNS, EMPTY, ROW
from viewtide.arrow import plain_texts_read, texts_read, values_of
from viewtide.changetables.rows import coerce
from viewtide.changetables.schema import Column
from viewtide.changetables.types import Type, type_of
from viewtide.cli import app
from viewtide.file_commands import _Input, run_load
from viewtide.files import is_standard_output, opened_sources

pyarrow = pytest.importorskip("pyarrow")


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_what_is_exported_is_loaded_as_it_was(tmp_path: Path, suffix: str) -> None:
    path, file = tmp_path / "db", tmp_path / f"rows.{suffix}"
    odd = {**EMPTY, "id": 3, "name": "línea\n2", "weight": float("inf"), "price": Decimal("NaN"), "more": "text"}
    rows = [ROW, EMPTY, odd]
    with vt.connect(path) as db:
        db.create_table("t", COLUMNS, key="id")
        with db.transaction() as tx:
            tx.insert("t", rows)
    exported = _run("export", "t", file, "--from", path, "--json")
    assert exported.exit_code == 0, exported.output
    assert json.loads(exported.output)["rows"] == 3
    with vt.connect(tmp_path / "copy") as db:
        db.create_table("t", COLUMNS, key="id")
    loaded = _run("load", "t", file, "--into", tmp_path / "copy", "--json")
    assert loaded.exit_code == 0, loaded.output
    assert json.loads(loaded.output)["rows"] == 3
    with vt.connect(tmp_path / "copy") as copy, vt.connect(path) as db:
        found = [repr(dict(row)) for row in copy.sql("SELECT * FROM t ORDER BY id")]
        assert found == [repr(dict(row)) for row in db.sql("SELECT * FROM t ORDER BY id")]


def test_pages_of_a_long_table_and_a_view(tmp_path: Path) -> None:
    path, count = tmp_path / "db", 20_001
    (tmp_path / "a.csv").write_text("a,b,c\n" + "".join(f"{n % 2},{n},x\n" for n in range(count)))
    loaded = _run("load", "t", tmp_path / "a.csv", "--into", path, "--create", "--key", "a", "--key", "b")
    assert loaded.exit_code == 0, loaded.output
    assert f"{count} rows loaded into t" in loaded.output
    assert f"{count} rows of t written" in _run("export", "t", tmp_path / "b.csv", "--from", path).output
    lines = (tmp_path / "b.csv").read_text().splitlines()
    assert len(set(lines)) == len(lines) == count + 1
    assert lines[:2] == ["a,b,c", '0,0,"x"'] and lines[-1] == '1,19999,"x"'
    with vt.connect(path) as db:
        db.create_view("v", "SELECT a, COUNT(*) AS n FROM t GROUP BY a")
    assert _run("export", "v", tmp_path / "v.jsonl", "--from", path).exit_code == 0
    assert (tmp_path / "v.jsonl").read_text().splitlines() == ['{"a": 0, "n": 10001}', '{"a": 1, "n": 10000}']


def test_errors_name_the_file_and_the_row(tmp_path: Path) -> None:
    path = tmp_path / "db"
    (tmp_path / "a.csv").write_text("id,n\n1,2\n2,3\n")
    (tmp_path / "b.csv").write_text("id,n\n3,2\n4,three\n")
    (tmp_path / "c.jsonl").write_text('{"id": 5, "n": 1}\n{"id": 6, "m": 1}\n')
    assert _run("load", "t", tmp_path / "a.csv", "--into", path, "--create", "--key", "id").exit_code == 0
    bad = _run("load", "t", tmp_path / "a.csv", tmp_path / "b.csv", "--into", path)
    assert bad.exit_code == 1 and "row 1 of table 't' exists already" in bad.output
    bad = _run("load", "t", tmp_path / "b.csv", "--into", path)
    assert bad.exit_code == 1 and f"{tmp_path / 'b.csv'}, row 2: column t.n: invalid input syntax" in bad.output
    bad = _run("load", "t", tmp_path / "c.jsonl", "--into", path)
    assert bad.exit_code == 1 and f"{tmp_path / 'c.jsonl'}, line 2: table 't' has no column 'm'" in bad.output
    assert "does not tell its format" in _run("load", "t", tmp_path / "a.txt", "--into", path).output
    assert "there is no file" in _run("load", "t", tmp_path / "none.csv", "--into", path).output
    assert "neither a table nor a view" in _run("export", "u", tmp_path / "u.csv", "--from", path).output
    with vt.connect(path) as db:
        assert [row.id for row in db.sql("SELECT id FROM t")] == [1, 2]
    assert not list(tmp_path.glob(".*"))


def test_types_of_a_new_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("i,d,b,day,t,s\n1,1.50,true,2026-01-02,2026-01-02 03:04:05,x\n,,,,,\n")
    (tmp_path / "a.jsonl").write_text('{"i": 1, "f": 1.5, "s": "x", "j": [1]}\n')
    for name in ("a.csv", "a.jsonl"):
        assert _run("load", "t", tmp_path / name, "--into", tmp_path / name[2:], "--create").exit_code == 0
    with vt.connect(tmp_path / "csv") as db:
        kinds = [column.type.kind for column in db._table("t").columns]
        assert kinds[1:] == ["int", "decimal", "bool", "date", "timestamp", "str"]
    with vt.connect(tmp_path / "jsonl") as db:
        assert [column.type.kind for column in db._table("t").columns][1:] == ["int", "float", "str", "json"]


def test_a_served_node_takes_a_load(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n" + "".join(f"{n},{n}\n" for n in range(12_000)))
    with vt.connect(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        # The directory is open: whoever has it does the work.
        loaded = _run("load", "t", tmp_path / "a.csv", "--into", tmp_path / "db")
        assert loaded.exit_code == 0, loaded.output
        assert db.sql("SELECT COUNT(*) AS n FROM t")[0].n == 12_000
        assert _run("export", "t", tmp_path / "b.csv", "--from", tmp_path / "db").exit_code == 0
    assert (tmp_path / "b.csv").read_text() == (tmp_path / "a.csv").read_text()


def _one_row(path: Path) -> None:
    with vt.connect(path) as db:
        db.create_table("t", {"id": int, "name": str}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "name": "é"})


ONE_ROW = {"csv": 'id,name\n1,"é"\n', "jsonl": '{"id": 1, "name": "é"}\n'}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_export_follows_links_and_keeps_modes(tmp_path: Path, suffix: str) -> None:
    _one_row(tmp_path / "db")
    target, link, new = tmp_path / f"target.{suffix}", tmp_path / f"link.{suffix}", tmp_path / f"new.{suffix}"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target.name)
    before = os.umask(0o027)
    try:
        assert _run("export", "t", link, "--from", tmp_path / "db").exit_code == 0
        assert _run("export", "t", new, "--from", tmp_path / "db").exit_code == 0
        target.chmod(0o400)
        assert _run("export", "t", target, "--from", tmp_path / "db").exit_code == 0
    finally:
        os.umask(before)
    assert link.is_symlink() and target.read_bytes() == new.read_bytes() != b"old"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (target, new)] == [0o400, 0o640]
    dangling = tmp_path / f"dangling.{suffix}"
    dangling.symlink_to(tmp_path / f"made.{suffix}")
    assert _run("export", "t", dangling, "--from", tmp_path / "db").exit_code == 0
    assert dangling.is_symlink() and (tmp_path / f"made.{suffix}").read_bytes() == new.read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_pipe_gets_the_rows_and_stays(tmp_path: Path, kind: str) -> None:
    _one_row(tmp_path / "db")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    done = _run("export", "t", pipe, "--from", tmp_path / "db", "--format", kind)
    assert done.exit_code == 0, done.output
    reader.join(10)
    assert got == [ONE_ROW[kind]] and pipe.is_fifo()


# Nothing in /dev is exported to: whoever breaks this and tests as root would lose it. In /proc nothing is replaced.
STANDARD_OUTPUT = "/proc/self/fd/1"


def test_only_a_regular_file_takes_parquet(tmp_path: Path) -> None:
    _one_row(tmp_path / "db")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for place in (tmp_path / "pipe", tmp_path / "link", "-", STANDARD_OUTPUT):
        bad = _run("export", "t", place, "--from", tmp_path / "db", "--format", "parquet")
        assert bad.exit_code == 1 and "is no regular file, and Parquet needs one" in bad.output
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    bad = _run("export", "t", tmp_path, "--from", tmp_path / "db", "--format", "csv")
    assert bad.exit_code == 1 and f"{tmp_path} cannot be written: Is a directory" in bad.output


def _program(*args: object, **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own, which has its own standard input and output."""
    command = [sys.executable, "-m", "viewtide.cli", *map(str, args)]
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **kwargs)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("name", ["-", STANDARD_OUTPUT])
def test_rows_alone_go_to_the_standard_output(tmp_path: Path, name: str) -> None:
    assert is_standard_output(Path(name)) and is_standard_output(Path("/dev/stdout"))
    _one_row(tmp_path / "db")
    # What a shell has opened is gone on with: `>>` keeps what was there.
    file = tmp_path / "all.txt"
    file.write_text("first\n")
    with file.open("ab") as out:
        done = _program("export", "t", name, "--from", tmp_path / "db", "--format", "csv", stdout=out)
    assert done.returncode == 0 and done.stderr == b"1 row of t written to standard output\n"
    assert file.read_text() == "first\n" + ONE_ROW["csv"]
    asked = _run("export", "t", name, "--from", tmp_path / "db", "--format", "jsonl", "--json")
    assert asked.exit_code == 0 and asked.stdout == ONE_ROW["jsonl"] and json.loads(asked.stderr)["rows"] == 1
    assert "does not tell its format" in _run("export", "t", name, "--from", tmp_path / "db").output


def test_a_reader_that_goes_away_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    _one_row(tmp_path / "db")
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as out:
        done = _program("export", "t", "-", "--from", tmp_path / "db", "--format", "csv", stdout=out)
    assert done.returncode == 1
    assert done.stderr == b"viewtide: standard output cannot be written: Broken pipe\n"


def test_files_that_cannot_be_read_are_named_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "db"
    bad = {
        "twice.csv": (b"id,n,id\n1,2,3\n", "two columns have the name 'id'"),
        "empty_name.csv": (b"id,,n\n1,2,3\n", "column 2 has no name"),
        "header.csv": (b"id,\xff\n1,2\n", "line 1: not UTF-8: byte 0xff at 4"),
        "latin.csv": (b"id,n\n1,a\n2,\xe9\n", "line 3: not UTF-8: byte 0xe9 at 3"),
        "latin.jsonl": (b'{"id": 1}\n{"id": "\xe9"}\n', "line 2: not UTF-8: byte 0xe9 at 9"),
        "deep.jsonl": (b'{"id": ' + b"[" * 100_000 + b"\n", "line 1: no JSON"),
        "empty.jsonl": (b"\n", "has no rows to take columns from"),
        "no.parquet": (b"PAR1 and nothing else PAR1", "is no Parquet file"),
    }
    for name, (data, told) in bad.items():
        (tmp_path / name).write_bytes(data)
        done = _run("load", "t", tmp_path / name, "--into", path, "--create")
        assert done.exit_code == 1 and not done.stdout, (name, done.output)
        assert done.stderr.startswith(f"viewtide: {tmp_path / name}") and told in done.stderr
    (tmp_path / "only_names.csv").write_text("id,n\n")
    done = _run("load", "t", tmp_path / "only_names.csv", "--into", path, "--create", "--key", "id")
    assert done.exit_code == 0 and done.stdout.startswith("0 rows loaded into t"), done.output
    for name in ("twice.csv", "latin.csv", "latin.jsonl"):
        assert bad[name][1] in _run("load", "t", tmp_path / name, "--into", path).output
    (tmp_path / "one.csv").write_text("id,n\n1,2\n")
    assert _run("load", "t", tmp_path / "one.csv", "--into", path).stdout.startswith("1 row loaded into t")
    assert "is a directory" in _run("load", "t", tmp_path, "--into", path, "--format", "csv").output
    below = tmp_path / "one.csv" / "two.csv"
    assert "two.csv cannot be read: Not a directory" in _run("load", "t", below, "--into", path).output


def test_a_load_that_fails_leaves_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "db"
    (tmp_path / "a.csv").write_text("id,n\n1,2\n")
    (tmp_path / "b.csv").write_text("id,n\n2,x\n")
    both = ("load", "t", tmp_path / "a.csv", tmp_path / "b.csv", "--into", path, "--create", "--key", "id")
    done = _run(*both)
    assert done.exit_code == 1 and "b.csv, row 1: column t.n: invalid input syntax" in done.output
    with vt.connect(path) as db:
        assert db.tables() == []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("viewtide.file_commands.load_chunks", interrupted)
        done = _run("load", "t", tmp_path / "a.csv", "--into", path, "--create", "--key", "id")
        assert done.exit_code == 130 and done.stderr == "stopped\n"
    with vt.connect(path) as db:
        assert db.tables() == []
        db.create_table("t", {"id": int, "n": int}, key="id")
    assert _run(*both).exit_code == 1
    with vt.connect(path) as db:
        assert db.tables() == ["t"]  # it was there before


@pytest.mark.parametrize("is_open", [False, True])
def test_ctrl_c_in_the_middle_of_a_large_load_leaves_no_table(tmp_path: Path, is_open: bool) -> None:
    path, pipe = tmp_path / "db", tmp_path / "rows.csv"
    pipe.write_text("id,n\n" + "".join(f"{n},{n}\n" for n in range(150_000)))
    with vt.connect(path) as db:
        db.create_table("other", {"id": int}, key="id")
        command = [sys.executable, "-c", INTERRUPTED, "load", "t", str(pipe), "--into", str(path), "--create"]
        if is_open:  # by another process, which does the work
            done = subprocess.run([*command, "--key", "id"], capture_output=True, timeout=60, check=False)
    if not is_open:
        done = subprocess.run([*command, "--key", "id"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"stopped\n")
    with vt.connect(path) as db:
        assert db.tables() == ["other"]


#: Ctrl-C comes with the third part of a file, and once more while the table is dropped.
INTERRUPTED = """
import os, signal
from viewtide import cli, database, file_commands, remote
files = file_commands.chunks_of
def chunks_of(source, *rest):
    for number, chunk in enumerate(files(source, *rest), 1):
        yield chunk
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
file_commands.chunks_of = chunks_of
for kind in (database.Database, remote.RemoteDatabase):
    def drop_table(self, name, before=kind.drop_table):
        os.kill(os.getpid(), signal.SIGINT)
        before(self, name)
    kind.drop_table = drop_table
cli.main()
"""


def test_the_key_of_a_table_that_is_there_is_not_another_one(tmp_path: Path) -> None:
    path, file = tmp_path / "db", tmp_path / "a.csv"
    file.write_text("id,n\n1,2\n")
    with vt.connect(path) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        db.create_table("bare", {"id": int, "n": int})
    bad = _run("load", "t", file, "--into", path, "--create", "--key", "n")
    assert bad.exit_code == 1 and "table 't' is there already, and has the key id, not n" in bad.output
    bad = _run("load", "bare", file, "--into", path, "--create", "--key", "id")
    assert bad.exit_code == 1 and "table 'bare' is there already, and has no key, not id" in bad.output
    assert _run("load", "t", file, "--into", path, "--create", "--key", "id").exit_code == 0


@pytest.mark.parametrize("options", [[], ["--create"]], ids=["", "create"])
def test_rows_are_not_loaded_into_a_view(tmp_path: Path, options: list[str]) -> None:
    path, file = tmp_path / "db", tmp_path / "a.csv"
    file.write_text("id\n1\n")
    with vt.connect(path) as db:
        db.create_table("t", {"id": int}, key="id")
        db.create_view("v", "SELECT id FROM t")
    bad = _run("load", "v", file, "--into", path, *options)
    assert bad.exit_code == 1 and "'v' is a view, and rows are loaded into tables" in bad.output
    assert "`viewtide export`" in bad.output and ".view(" not in bad.output


def test_a_database_is_made_only_if_asked_for(tmp_path: Path) -> None:
    path, file = tmp_path / "typo", tmp_path / "a.csv"
    file.write_text("id,n\n1,2\n")
    bad = _run("load", "t", file, "--into", path)
    assert bad.exit_code == 2 and "there is no database in" in bad.output and "--create" in bad.output
    assert "there is no file" in _run("load", "t", tmp_path / "b.csv", "--into", path, "--create").output
    assert not path.exists()
    assert _run("load", "t", file, "--into", path, "--create").exit_code == 0


def test_without_pyarrow_no_database_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, csv, json_lines = tmp_path / "db", tmp_path / "a.csv", tmp_path / "a.jsonl"
    csv.write_text("id,n\n1,2\n")
    json_lines.write_text('{"id": 1}\n')
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    bad = _run("load", "t", csv, "--into", path, "--create")
    assert bad.exit_code == 1 and "pip install 'viewtide[batch]'" in bad.output
    assert not path.exists()
    done = _run("load", "t", json_lines, "--into", path, "--create")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("create", [False, True])
def test_pipes_are_read(tmp_path: Path, kind: str, create: bool) -> None:
    _one_row(tmp_path / "db")
    rows = ONE_ROW[kind].replace("1", "2")
    wanted = ["--into", tmp_path / "db", "--format", kind]
    table = "new" if create else "t"
    wanted += ["--create", "--key", "id"] if create else []
    piped = CliRunner().invoke(app, ["load", table, "-", *map(str, wanted)], input=rows)
    assert piped.exit_code == 0 and piped.stdout.startswith(f"1 row loaded into {table}"), piped.output
    done = _program("load", table, "/dev/stdin", *wanted, input=rows.replace("2", "3").encode())
    assert done.returncode == 0, done.stderr
    # As a shell does it for <(command).
    read, write = os.pipe()
    os.write(write, rows.replace("2", "4").encode())
    os.close(write)
    try:
        done = _program("load", table, f"/dev/fd/{read}", *wanted, pass_fds=[read])
    finally:
        os.close(read)
    assert done.returncode == 0, done.stderr
    with vt.connect(tmp_path / "db") as db:
        assert {row.id: row.name for row in db.sql(f"SELECT * FROM {table} WHERE id > 1")} == dict.fromkeys(
            [2, 3, 4], "é"
        )
    bad = CliRunner().invoke(app, ["load", table, "-", *map(str, wanted)], input=rows.replace("2", "x"))
    assert bad.exit_code == 1 and "standard input, " in bad.output, bad.output
    bad = CliRunner().invoke(app, ["load", "t", "-", "--into", str(tmp_path / "db")], input=rows)
    assert bad.exit_code == 1 and "- does not tell its format" in bad.output


@pytest.mark.parametrize("rows", [3, 120_000])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_key_that_comes_twice_is_told_from_one_that_is_there(tmp_path: Path, rows: int, is_open: bool) -> None:
    path, first, second = tmp_path / "db", tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("id,n\n" + "".join(f"{n},0\n" for n in range(rows)))
    second.write_text(f"id,n\n{rows},0\n2,0\n")
    with vt.connect(path) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": -1, "n": 0})
        if is_open:
            _check_twice(path, first, second)
    if not is_open:
        _check_twice(path, first, second)


def _check_twice(path: Path, first: Path, second: Path) -> None:
    bad = _run("load", "t", first, second, "--into", path)
    assert bad.exit_code == 1 and "upsert" not in bad.output
    told = f"{second}, row 2: row 2 of table 't' comes twice in what is loaded, the first time in {first}, row 3"
    assert told in bad.output
    second.write_text("id,n\n-1,0\n")
    bad = _run("load", "t", first, second, "--into", path)
    assert bad.exit_code == 1 and "row -1 of table 't' exists already" in bad.output
    assert "load only inserts" in bad.output and "upsert" not in bad.output


def test_the_separator_of_csv(tmp_path: Path) -> None:
    path, file = tmp_path / "db", tmp_path / "a.csv"
    for number, (separator, said) in enumerate({";": ";", "\t": "tab", "|": "|"}.items()):
        file.write_text(f"id,product,cost\n{number},2,3\n".replace(",", separator))
        bad = _run("load", "t", file, "--into", path, "--create", "--key", "id")
        assert (
            bad.exit_code == 1
            and f"{file}, line 1:" in bad.output
            and f"give --separator {said}" in bad.output.replace("'", "")
        )
        done = _run("load", "t", file, "--into", path, "--create", "--key", "id", "--separator", said)
        assert done.exit_code == 0, done.output
    with vt.connect(path) as db:
        assert [tuple(row.values()) for row in db.sql("SELECT * FROM t")] == [(n, 2, 3) for n in range(3)]
    assert _run("load", "odd", file, "--into", path, "--create", "--separator", ",").exit_code == 0
    for wrong in ("ab", "é", '"'):
        bad = _run("load", "t", file, "--into", path, "--separator", wrong)
        assert bad.exit_code == 1 and "columns cannot be separated by" in bad.output
    bad = _run("load", "t", file, "--into", path, "--separator", ";", "--format", "jsonl")
    assert bad.exit_code == 1 and "--separator is for CSV" in bad.output


def test_a_closed_standard_input_is_missed_only_by_who_reads_it(tmp_path: Path) -> None:
    _one_row(tmp_path / "db")
    (tmp_path / "a.csv").write_text("id,name\n2,b\n")
    arguments = [sys.executable, "-m", "viewtide.cli", "load", "t", "--into", str(tmp_path / "db"), "--format", "csv"]
    for file, told in ((tmp_path / "a.csv", "1 row loaded"), ("-", "viewtide: the standard input is closed")):
        closed = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *arguments, str(file)]
        done = subprocess.run(closed, capture_output=True, text=True, timeout=60, check=False)
        assert told in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr


#: By SQL type: texts that are read column by column, and texts that are read one by one or refused.
TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "bigint": (
        ["0", "-0", "007", "-12", "9" * 18],
        ["+5", " 5", "9" * 19, str(2**63 - 1), "0x1f", "1.0", "\u0665", "5\n"],
    ),
    "float8": (
        ["0", "-0", "0.1", "-12.5e-7", "1E22", "9007199254740993", "123456789012345.6789", "4.9e-99"],
        ["nan", "inf", "-Infinity", ".5", "5.", "1e308", "1e400", "4.9e-324", " 1", "0x1p3", "1e-400"],
    ),
    "boolean": (["true", "false"], ["t", "TRUE", "yes", "1", "x"]),
    "date": (
        ["2026-01-31", "9999-12-31"],
        ["2026-02-30", "0999-01-01", "20260131", "2026-1-3", "infinity", "0000-01-01"],
    ),
    "timestamp": (
        ["2026-01-31 12:30:00", "2026-01-31T12:30:00.5", "2026-01-31 00:00:00.000001"],
        [
            "2026-01-31",
            "2026-01-31 24:00:00",
            "2026-01-31 23:59:60",
            "2026-01-31 12:30:00.1234567",
            "2026-13-01 00:00:00",
        ],
    ),
    "timestamptz": (
        ["2026-01-31 12:30:00+00:00", "2026-01-31T12:30:00.25+00:00"],
        ["2026-01-31 12:30:00", "2026-01-31 12:30:00+02:00", "2026-01-31 12:30:00Z", "2026-02-30 12:30:00+00:00"],
    ),
    "text": ([], ["1", "true"]),
    "numeric": ([], ["1.50", "1e3"]),
}


@pytest.mark.parametrize("type_", TEXTS)
def test_texts_of_csv_are_the_same_values_by_columns_and_one_by_one(type_: str) -> None:
    plain, other = TEXTS[type_]
    kind = type_of(type_)
    for text in [*plain, *other]:
        batch = plain_texts_read(pyarrow.record_batch({"c": [text, None]}), {"c": kind})
        assert (batch.column(0).type == pyarrow.string()) == (text not in plain), text
        try:
            expected = row_value(texts_read([text], kind)[0], kind)
        except vt.DataError as error:
            with pytest.raises(vt.DataError, match=re.escape(error.message)):
                values_of(batch.column(0), kind)
            continue
        found = [row_value(value, kind) for value in values_of(batch.column(0), kind)]
        assert repr(found) == repr([expected, None]), text
    mixed = plain_texts_read(pyarrow.record_batch({"c": [*plain, *other]}), {"c": kind})
    assert mixed.column(0).to_pylist() == [*plain, *other], "one that is different leaves all as they are"


def row_value(value: object, kind: Type) -> object:
    """As it is stored."""
    return None if value is None else coerce(Column("c", kind), value, "c")


def test_spark_is_asked_for_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    load = ("load", "t", tmp_path / "a.csv", "--create", "--spark", "--into")
    done = _run(*load, "memory:")
    assert done.exit_code == 1 and "leave --spark out" in done.output
    monkeypatch.setattr("viewtide.changetables.evaluators.spark_session.has_spark", lambda: False)
    done = _run(*load, tmp_path / "db")
    assert done.exit_code == 1 and "pip install 'viewtide[spark]'" in done.output
    assert not (tmp_path / "db").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_what_was_read_is_told_in_bytes_of_all_files(tmp_path: Path, suffix: str) -> None:
    path, count = tmp_path / "db", 120_000
    (tmp_path / "rows.csv").write_text("id,note\n" + "".join(f"{n},event number {n}\n" for n in range(count)))
    assert _run("load", "t", tmp_path / "rows.csv", "--into", path, "--create", "--key", "id").exit_code == 0
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for file in files:
        assert _run("export", "t", file, "--from", path).exit_code == 0
    with vt.connect(path) as db, opened_sources(files, "", "", None) as sources:
        source = _Input(sources)
        told = [source.bytes_read for _ in source.chunks(db._table("t"))]
        assert source.bytes_total == sum(file.stat().st_size for file in files) == source.bytes_read
    assert told == sorted(told) and len(set(told)) >= 4, "it moves in the middle of a file, too"
    assert any(0 < each < source.bytes_total // 2 for each in told)


def test_a_terminal_shows_a_bar_and_a_count_for_what_comes_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb one shows no bars
    file, pipe = tmp_path / "rows.csv", tmp_path / "pipe"
    file.write_text("id\n1\n2\n")
    os.mkfifo(pipe)

    def shown(db: vt.Database, name: str, path: Path, as_json: bool = False) -> str:
        err = Terminal()
        with opened_sources([path], "csv", "", None) as sources:
            run_load(db, name, sources, create=True, key=["id"], as_json=as_json, out=io.StringIO(), err=err)
        return err.getvalue()

    with vt.connect(tmp_path / "db") as db:
        bar = shown(db, "[bold]t", file)
        assert "loading [bold]t" in bar and "100%" in bar and "2 rows" in bar and "7/7 bytes" in bar
        writer = threading.Thread(target=pipe.write_text, args=("id\n1\n",))
        writer.start()
        spinner = shown(db, "piped", pipe)
        writer.join()
        assert "loading piped" in spinner and "1 row" in spinner and "%" not in spinner
        assert shown(db, "quiet", file, as_json=True) == ""
