"""`viewtide load` and `viewtide export`: what is written comes back as it was."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import viewtide as vt
from tests.unit.test_bulk import COLUMNS, EMPTY, ROW
from viewtide.cli import app

pytest.importorskip("pyarrow")


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
