"""`viewtide load --spark`: what it loads, refuses and leaves is what `viewtide load` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

import viewtide as vt
from tests.unit.test_bulk import COLUMNS, EMPTY, ROW
from viewtide.cli import app
from viewtide.open_socket import running_address
from viewtide.spark import loaded_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def rows_of(path: Path) -> list[str]:
    with vt.connect(path) as db:
        return [repr(dict(row)) for row in db.sql("SELECT * FROM t ORDER BY id")]


def staged(path: Path) -> bool:
    return (path / "spark").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_files_have_the_same_rows_as_without_spark(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    parts = [[ROW], [EMPTY, {**EMPTY, "id": 3, "name": "lines\n2"}]]
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for number, (rows, file) in enumerate(zip(parts, files, strict=True)):
        with vt.connect(tmp_path / f"from-{number}") as db:
            db.create_table("t", COLUMNS, key="id")
            with db.transaction() as tx:
                tx.insert("t", rows)
        assert _run("export", "t", file, "--from", tmp_path / f"from-{number}").exit_code == 0
    for name, options in (("plain", ()), ("spark", ("--spark",))):
        with vt.connect(tmp_path / name) as db:
            db.create_table("t", COLUMNS, key="id")
        done = _run("load", "t", *files, "--into", tmp_path / name, *options)
        assert done.exit_code == 0 and "3 rows loaded into t" in done.output, done.output
    assert rows_of(tmp_path / "spark") == rows_of(tmp_path / "plain") and len(rows_of(tmp_path / "spark")) == 3
    assert not staged(tmp_path / "spark")


def test_what_a_line_leaves_out_gets_its_default(spark: SparkSession, tmp_path: Path) -> None:
    path, file = tmp_path / "db", tmp_path / "a.jsonl"
    file.write_text('{"id": 1}\n{"id": 2, "n": null}\n{"n": 3, "id": 3}\n')
    with vt.connect(path) as db:
        db.create_table("t", {"id": int, "n": vt.column(int, default=7)}, key="id")
    assert _run("load", "t", file, "--into", path, "--spark").exit_code == 0
    with vt.connect(path) as db:
        assert [row["n"] for row in db.sql("SELECT n FROM t ORDER BY id")] == [7, None, 3]


@pytest.mark.parametrize(
    "second",
    ["id,n\n2,x\n", "id,m\n2,2\n", "id,n\n2,2\n1,5\n", "id,n\n,2\n", "id,n\n2\n"],
    ids=["value", "column", "twice", "null", "damage"],
)
def test_a_load_that_fails_says_the_same_and_leaves_nothing(spark: SparkSession, tmp_path: Path, second: str) -> None:
    path, files = tmp_path / "db", [tmp_path / "a.csv", tmp_path / "b.csv"]
    files[0].write_text("id,n\n1,2\n")
    files[1].write_text(second)
    load = ("load", "t", *files, "--into", path, "--create", "--key", "id")
    plain, done = _run(*load), _run(*load, "--spark")
    # Where one thread reads, as in a task, Arrow knows the row, too.
    assert done.exit_code == plain.exit_code == 1
    assert done.stderr.replace("Row #2: ", "") == plain.stderr.replace("Row #2: ", "") != ""
    with vt.connect(path) as db:
        assert db.tables() == []
    assert not staged(path)


@pytest.mark.embedded("another process would have it open")
def test_a_directory_that_is_open_and_a_served_node(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = tmp_path / "db", 120_000
    files = [tmp_path / f"{number}.csv" for number in range(3)]
    for number, file in enumerate(files):
        first = number * count
        file.write_text("id,n\n" + "".join(f"{n},{n % 7}\n" for n in range(first, first + count)))
    with vt.connect(path) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        view = db.create_view("sums", "SELECT n, COUNT(*) AS c FROM t GROUP BY n")
        assert _run("load", "t", *files[:2], "--into", path, "--spark").exit_code == 0
        assert sum(row["c"] for row in view.rows()) == 2 * count
        done = _run("load", "t", files[2], "--into", running_address(path), "--spark")
        assert done.exit_code == 0, done.output
        assert sum(row["c"] for row in view.rows()) == 3 * count and view.verify().ok
        assert not staged(path)


def test_what_is_too_much_for_a_message_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the task of a served node's load does it."""
    import io

    from viewtide.files import opened_sources

    (tmp_path / "a.csv").write_text("id\n1\n")
    with vt.connect(tmp_path / "db") as db, opened_sources([tmp_path / "a.csv"], "", "", None) as (source,):
        db.create_table("t", {"id": int}, key="id")
        with pytest.raises(vt.OperationalError, match=r"a\.csv has more than 5 bytes"):
            loaded_files._kept(io.BytesIO(), source, db._table("t"), 5)
