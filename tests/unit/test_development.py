"""Development clusters, as far as nothing has to run: what they refuse, and how they say it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import viewtide as vt
from viewtide.changetables.types import Value
from viewtide.cli import app
from viewtide.cluster_client import _key
from viewtide.development import Development


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cluster whose servers were started, and whose processes have ended."""
    processes = {"ltm-1": 1, "ltm-2": 1, "vm-1": 1}
    (tmp_path / "cluster.json").write_text(json.dumps({"storage": "local", "processes": processes}))
    (tmp_path / "hbase").mkdir()
    servers = {"zookeeper": "127.0.0.1:1", "thrift": [], "thrift1": [], "commands": {}, "pids": {"hbase": os.getpid()}}
    (tmp_path / "hbase" / "servers.json").write_text(json.dumps(servers))
    return tmp_path


def refused(directory: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["cluster", *words, "--dir", str(directory)])
    assert done.exit_code == 1, done.output
    return done.stderr.removeprefix("viewtide: ").strip()


def test_who_cannot_be_killed_is_told_who_can(directory: Path) -> None:
    all_of_them = "there are ltm-1, ltm-2, vm-1"
    assert refused(directory, "kill", "ltm-22") == f"there is no process ltm-22 ({all_of_them})"
    assert refused(directory, "kill", "hbase") == (
        f"hbase is a server of the cluster, none of its processes ({all_of_them}; `down` ends all)"
    )
    assert refused(directory, "kill", "ltm-1").startswith("ltm-1 does not run")


def test_keys_are_moved_to_ltms(directory: Path) -> None:
    ltms = "there are ltm-1, ltm-2"
    assert refused(directory, "move", "t", "--to", "ltm-9") == f"there is no process ltm-9 ({ltms})"
    assert refused(directory, "move", "t", "--to", "vm-1") == f"vm-1 is no ltm ({ltms})"


@pytest.mark.parametrize("words", [["status"], ["split", "t"], ["start", "ltm-1"], ["add", "ltm"]])
def test_a_cluster_that_is_down(directory: Path, words: list[str]) -> None:
    (directory / "hbase" / "servers.json").unlink()
    assert refused(directory, *words) == (
        f"the cluster in {directory} does not run (start it again with: viewtide cluster up --dir {directory})"
    )


def test_the_address_is_what_connect_takes(directory: Path) -> None:
    cluster = Development.attach(directory)
    assert (cluster.address, cluster.zookeeper) == ("zk://127.0.0.1:1/viewtide", "127.0.0.1:1/viewtide")


KEY_OF_T = "its key is (id integer)"
KEY_OF_U = "its key is (a text, b date)"


@pytest.mark.parametrize(
    ("table", "values", "message", "hint"),
    [
        ("t", ("two",), "('two') is no key of t: invalid input syntax for type integer: \"two\"", KEY_OF_T),
        ("t", (1.5,), "(1.5) is no key of t: column t.id: expected int, got float", KEY_OF_T),
        ("t", (None,), "(None) is no key of t: column t.id may not be NULL", KEY_OF_T),
        ("t", (1, 2), "(1, 2) is no key of t: 2 values", KEY_OF_T),
        ("u", ("x",), "('x') is no key of u: 1 of 2 values", KEY_OF_U),
        ("u", ("x", "y"), "('x', 'y') is no key of u: invalid input syntax for type date: \"y\"", KEY_OF_U),
        ("v", ("y",), "('y') is no key of v: invalid input syntax for type date: \"y\"", "its key is (b date)"),
    ],
)
def test_keys_that_are_none(table: str, values: tuple[Value, ...], message: str, hint: str) -> None:
    with tables() as db:
        known = db._engine.ltm.tables
        with pytest.raises(vt.ProgrammingError) as raised:
            _key(known.by_name.get(table) or known.views[table], values)
    assert (raised.value.message, raised.value.hint) == (message, hint)


def test_keys_of_all_types_are_written_as_json() -> None:
    with tables() as db:
        known = db._engine.ltm.tables
        db.sql("INSERT INTO t VALUES (7); INSERT INTO u VALUES ('x', '2024-02-29')")
        for source, values in ((known.by_name["t"], (7,)), (known.by_name["u"], ("x", "2024-02-29"))):
            key = _key(source, values)
            assert source.codec.keys.encode(source.codec.keys.decode(key)) == key


def tables() -> vt.Database:
    db = vt.connect("memory:")
    db.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (a text, b date, PRIMARY KEY (a, b))")
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM u GROUP BY b")
    return db


def test_a_new_cluster_keeps_its_rows_in_hbase_unless_told_otherwise(tmp_path: Path) -> None:
    assert Development(tmp_path).storage == "hbase"
    told = Development(tmp_path)
    assert told._planned(1, 0, "local") == ["ltm-1"]
    assert told.storage == "local"
