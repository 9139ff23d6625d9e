"""Development clusters, as far as nothing has to run: what they refuse, and how they say it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

import viewtide as vt
from viewtide import development
from viewtide.changetables.errors import OperationalError
from viewtide.changetables.types import Value
from viewtide.cli import app
from viewtide.cluster_client import ClusterClient, _key
from viewtide.coordinator.vms.step_rows import with_steps
from viewtide.development import Development
from viewtide.ltm.key_range import Hosting
from viewtide.ltm.tables import Tables
from viewtide.ltm.versions import Horizon
from viewtide.process_config import load_config


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cluster whose servers were started, and whose processes have ended."""
    processes = {"ltm-1": 1, "ltm-2": 1, "vm-1": 1}
    (tmp_path / "cluster.json").write_text(json.dumps({"storage": "local", "processes": processes}))
    (tmp_path / "hbase").mkdir()
    servers = {"zookeeper": "127.0.0.1:1", "thrift": [], "thrift1": [], "commands": {}, "pids": {"hbase": os.getpid()}}
    (tmp_path / "hbase" / "servers.json").write_text(json.dumps(servers))
    return tmp_path


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `up` that is not refused, though it should be, starts none."""

    def started(place: Path, **_: object) -> None:
        raise AssertionError(f"servers were started in {place}")

    monkeypatch.setattr("viewtide.development.start", started)


def refused(directory: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["cluster", *words, "--dir", str(directory)])
    assert done.exit_code == 1, done.output
    return done.stderr.removeprefix("viewtide: ").strip()


def test_who_cannot_be_killed_is_told_who_can(directory: Path) -> None:
    all_of_them = "there are ltm-1, ltm-2, vm-1"
    assert refused(directory, "kill", "ltm-22") == f"there is no process ltm-22 ({all_of_them})"
    assert refused(directory, "kill", "hbase") == (
        f"hbase is a server of the cluster, none of its processes ({all_of_them}; "
        f"viewtide cluster down --dir {directory} ends all)"
    )
    assert refused(directory, "kill", "ltm-1").startswith("ltm-1 does not run")


def test_who_cannot_be_started_is_told_who_can(directory: Path) -> None:
    all_of_them = "there are ltm-1, ltm-2, vm-1"
    assert refused(directory, "start", "ltm-22") == f"there is no process ltm-22 ({all_of_them})"
    assert refused(directory, "start", "hbase").startswith("hbase is a server of the cluster, none of its processes")


def test_keys_are_moved_to_ltms(directory: Path) -> None:
    ltms = "there are ltm-1, ltm-2"
    assert refused(directory, "move", "t", "--to", "ltm-9") == f"there is no process ltm-9 ({ltms})"
    assert refused(directory, "move", "t", "--to", "vm-1") == f"vm-1 is no ltm ({ltms})"


def test_keys_are_not_moved_to_an_ltm_that_does_not_run(directory: Path) -> None:
    assert refused(directory, "move", "t", "--to", "ltm-2") == (
        f"ltm-2 does not run (start it: viewtide cluster start ltm-2 --dir {directory})"
    )


def test_keys_whose_new_owner_ends_meanwhile_are_not_said_to_be_its_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = ["ltm-2"]
    client = Mock(move=Mock(side_effect=lambda *_: alive.clear()))
    monkeypatch.setattr(Development, "client", lambda _: client)
    monkeypatch.setattr(Development, "is_alive", lambda _, name: name in alive)
    assert refused(directory, "move", "t", "--to", "ltm-2") == (
        f"ltm-2 does not run (it has ended meanwhile; viewtide cluster status --dir {directory} shows who has its keys)"
    )


@pytest.mark.parametrize(
    "words",
    [["status"], ["split", "t"], ["start", "ltm-1"], ["add", "ltm"], ["kill", "ltm-1"], ["move", "t", "--to", "ltm-1"]],
)
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


def test_tables_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with tables() as db:
        known = Tables(with_steps(db._engine.ltm.tables.catalog), Horizon())
        client = ClusterClient.__new__(ClusterClient)
        monkeypatch.setattr(client, "tables", lambda: known, raising=False)
        for name, hint in (("tt", "did you mean 't'?"), ("events", "there are 't', 'u', 'v'")):
            with pytest.raises(vt.ProgrammingError, match="there is no table or view") as raised:
                client.split(name, ())
            assert raised.value.hint == hint


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


# The first start


def test_after_servers_that_did_not_start_the_next_up_is_the_first_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(*_: object) -> None:
        raise OperationalError("java is missing, and HBase needs it")

    monkeypatch.setattr(Development, "_start_servers", no_java)
    with pytest.raises(OperationalError, match="java"):
        Development.up(tmp_path, 1, 0, "local")
    assert Development.attach(tmp_path).processes == {}
    again = Development(tmp_path)
    assert again._planned(None, None, None) == ["ltm-1", "ltm-2", "ltm-3", "vm-1", "vm-2"]
    assert again.storage == "local"
    other = Development(tmp_path)
    other._planned(None, None, "hbase")
    assert other.storage == "hbase"


def test_processes_that_an_interrupted_up_did_not_come_to_are_started_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Development, "_start_servers", lambda *_: None)
    monkeypatch.setattr(Development, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Development.up(tmp_path, 2, 1, "local")
    left = Development.attach(tmp_path)
    assert not any(left.is_alive(name) for name in left.processes)
    left.down()  # has nobody to end
    assert Development(tmp_path)._planned(None, None, None) == ["ltm-1", "ltm-2", "vm-1"]


# Where a cluster can be


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["notes.txt"], "notes.txt"),
        (["LOCK", "log", "store"], "LOCK, log, store"),
        (["d", "c", "b", "a"], "a, b, c, ..."),
        (["cluster.json.part", "x"], "cluster.json.part, x"),
        (["hbase"], "hbase"),
    ],
)
def test_a_directory_with_something_else_is_left_as_it_is(tmp_path: Path, names: list[str], told: str) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert refused(tmp_path, "up") == (
        f"{tmp_path} holds something else than a cluster: {told} (choose an empty or a new directory)"
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "left",
    [
        (),
        ("lost+found/x",),
        ("ltm-2.toml",),
        ("cluster.json.part",),
        ("cluster.json", "notes.txt"),
        ("hbase/conf", "logs"),
    ],
)
def test_a_cluster_begins_in_an_empty_directory_or_goes_on_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...]
) -> None:
    for name in left:
        file = tmp_path / name / ("hbase-site.xml" if name.startswith("hbase") else "")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"storage": "local", "processes": {"ltm-1": 0}}')
    monkeypatch.setattr(Development, "_start_servers", lambda *_: None)
    monkeypatch.setattr(Development, "start", lambda *_: None)
    monkeypatch.setattr(Development, "await_ready", lambda *_: None)
    made = Development.up(tmp_path)
    assert Development.attach(tmp_path).processes == made.processes


@pytest.mark.parametrize(
    ("storage", "begun", "alone"), [("local", False, True), ("local", True, False), ("hbase", False, False)]
)
def test_hbase_runs_where_it_has_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, begun: bool, alone: bool
) -> None:
    """A cluster that was begun with it goes on with it: what its ZooKeeper knows is in another place."""
    started: list[object] = []
    monkeypatch.setattr(development, "start", lambda place, **options: started.append(options["only_zookeeper"]))
    cluster = Development(tmp_path)
    cluster.storage = storage
    if begun:
        (tmp_path / "hbase" / "data").mkdir(parents=True)
    cluster._start_servers(lambda _: None)
    assert started == [alone]


def test_no_cluster_can_be_in_a_file_or_where_no_directory_can_be_made(tmp_path: Path) -> None:
    (file := tmp_path / "events.csv").touch()
    assert refused(file, "up") == f"{file} is a file (a cluster is in a directory: choose another path)"
    assert refused(file / "x", "up") == (
        f"there cannot be a cluster in {file}/x: Not a directory (choose another directory)"
    )
    assert refused(Path("/proc/x"), "up") == (
        "there cannot be a cluster in /proc/x: No such file or directory (choose another directory)"
    )
    long = tmp_path / ("x" * 300)
    assert refused(long, "up") == f"there cannot be a cluster in {long}: File name too long (choose another directory)"
    for command in ("status", "down"):
        assert refused(long, command).startswith(f"there is no cluster in {long}")


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "7", "{}", '{"storage": "local"}', '{"storage": "disk", "processes": {}}', "\udc80",
     '{"storage": "local", "processes": ["ltm-1"]}', '{"storage": "local", "processes": {"ltm-1": "x"}}'],
)  # fmt: skip
@pytest.mark.parametrize("words", [["status"], ["up"], ["down"], ["kill", "ltm-1"]])
def test_a_damaged_file_of_a_cluster_is_named(directory: Path, damage: str, words: list[str]) -> None:
    (directory / "cluster.json").write_bytes(damage.encode(errors="surrogateescape"))
    assert refused(directory, *words).startswith(
        f"{directory}/cluster.json is damaged: it does not say what the cluster has (restore it; or end its processes, "
    )


def test_a_file_of_a_cluster_that_cannot_be_read_is_named(directory: Path) -> None:
    (directory / "cluster.json").unlink()
    (directory / "cluster.json").mkdir()
    assert refused(directory, "status").startswith(f"{directory}/cluster.json cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("asked", "more"),
    [((None, None), []), ((2, 1), []), ((1, None), ["2 LTMs"]), ((1, 0), ["2 LTMs", "1 view manager"])],
)
def test_fewer_processes_than_there_are_end_none(
    directory: Path, asked: tuple[int | None, int | None], more: list[str]
) -> None:
    """Whoever starts a cluster by the same words again, after he has added one, finds it running."""
    cluster = Development(directory)
    processes = cluster._planned(*asked, None)
    assert processes == ["ltm-1", "ltm-2", "vm-1"]
    assert cluster.more_than(*asked) == more


def test_as_many_processes_as_there_are_or_more_are_no_change_or_more(directory: Path) -> None:
    assert Development(directory)._planned(None, None, None) == ["ltm-1", "ltm-2", "vm-1"]
    assert Development(directory)._planned(2, 1, None) == ["ltm-1", "ltm-2", "vm-1"]
    assert Development(directory)._planned(3, None, None) == ["ltm-1", "ltm-2", "ltm-3", "vm-1"]


def test_processes_that_were_only_planned_can_be_left_out(directory: Path) -> None:
    planned = {"ltm-1": 7, "ltm-2": 0, "vm-1": 0, "vm-2": 0}
    (directory / "cluster.json").write_text(json.dumps({"storage": "local", "processes": planned}))
    assert Development(directory)._planned(1, None, None) == ["ltm-1", "vm-1", "vm-2"]
    assert Development(directory)._planned(None, 0, None) == ["ltm-1", "ltm-2"]


@pytest.mark.parametrize(("count", "said"), [(1, "1 process in "), (2, "2 processes in ")])
def test_a_single_process_is_not_several(
    directory: Path, monkeypatch: pytest.MonkeyPatch, count: int, said: str
) -> None:
    cluster = Development.attach(directory)
    cluster.processes = {f"ltm-{number}": 1 for number in range(count)}
    monkeypatch.setattr(Development, "up", lambda *_: cluster)
    done = CliRunner().invoke(app, ["cluster", "up", "--dir", str(directory)])
    assert done.exit_code == 0 and done.stdout.startswith(said), done.output


# One process among others


def test_a_process_is_not_held_to_account_for_another_that_is_dead(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    at_work = _client_of("ltm-1", "ltm-2", "ltm-3")
    monkeypatch.setattr(Development, "client", lambda _: at_work)
    monkeypatch.setattr(Development, "start", lambda _, name, report: started.append(name))
    monkeypatch.setattr(Development, "is_alive", lambda _, name: name in started)
    for words in (["start", "ltm-2"], ["add", "ltm"]):
        done = CliRunner().invoke(app, ["cluster", *words, "--dir", str(directory)])
        assert done.exit_code == 0, done.output
    assert started == ["ltm-2", "ltm-3"]
    with pytest.raises(OperationalError, match="ltm-1 has ended"):
        Development.attach(directory).await_ready()


def _client_of(*ltms: str) -> Mock:
    """To a cluster in which each LTM is known, and answers for its log."""
    hosts = {name: Hosting(1, (f"{name}/1",)) for name in ltms}
    return Mock(map=lambda: Mock(hosts=hosts), status=lambda: Mock(processes=ltms))


@pytest.mark.parametrize("place", ["first", "last"])
def test_the_processor_of_a_process_is_kept_and_its_addresses_are_new(
    directory: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("viewtide.development.subprocess.Popen", lambda *_, **__: Mock(pid=-1))
    monkeypatch.setattr("viewtide.development._children", {})
    config = directory / "ltm-1.toml"
    Development.attach(directory).start("ltm-1")
    written = config.read_text()
    assert written.startswith("# Written by `viewtide cluster`: other changes than `processor` are lost.\n")
    mine = "processor = 0  # beside the other one\n"
    old = written.replace("127.0.0.1:1/", "127.0.0.1:2/").replace("session_ms = 6000", "session_ms = 7000")
    config.write_text(mine + old if place == "first" else old + mine)
    for _ in range(2):
        cluster = Development.attach(directory)
        cluster.processes["ltm-1"] = 1  # has ended
        cluster.start("ltm-1")
        read = load_config(config)
        assert (read.processor, read.zookeeper.hosts, read.zookeeper.session_ms) == (0, cluster.zookeeper, 6000)
        assert config.read_text().count(mine) == 1
