"""The configuration of processes, their log lines and metrics."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from viewtide import cluster_process
from viewtide.changetables.errors import InterfaceError
from viewtide.cli import app
from viewtide.cluster_process import stay_on
from viewtide.json_logs import JsonFormatter, log_as_json
from viewtide.ltm.transport import new_keys
from viewtide.metrics_server import Figure, MetricsServer, metrics_text
from viewtide.process_config import ANY_PROCESSOR, example_config, load_config, read_password

LEAST = 'name = "ltm-1"\n[zookeeper]\nhosts = "127.0.0.1:2181/shop"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ltm.toml"


def test_what_is_not_given_has_a_default(path: Path) -> None:
    path.write_text(LEAST)
    config = load_config(path)
    assert (config.name, config.zookeeper.hosts) == ("ltm-1", "127.0.0.1:2181/shop")
    assert (config.listen, config.storage.kind, config.hbase.thrift) == ("tcp://127.0.0.1:0", "local", ())


def filled_in(example: str) -> str:
    """With all keys, as they are where nothing is said."""
    text = example.replace("#", "").replace('"..."', '"x1"')
    return "\n".join(line for line in text.splitlines() if " = " in line or line.startswith("["))


def printed(role: str) -> str:
    done = CliRunner().invoke(app, [role, "--example"])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_example_has_all_keys_and_is_a_configuration(path: Path) -> None:
    path.write_text(filled_in(printed("ltm")))
    assert load_config(path).name == "x1"
    for key in ("session_ms", "allowed", "directory", "thrift", "clients", "metrics", "password_file"):
        assert f"{key} = " in printed("ltm")
    assert printed("ltm") == example_config()


def test_the_example_of_a_view_manager_has_only_what_it_takes(path: Path) -> None:
    path.write_text(filled_in(printed("view-manager")))
    assert load_config(path).name == "x1"
    assert set(tomllib.loads(path.read_text())) == {
        *("name", "listen", "advertise", "metrics", "log_level", "processor"),
        *("zookeeper", "keys"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "nmae = 1", "unknown key zookeeper.nmae"),
        ("nmae = 1\n" + LEAST, "unknown key nmae"),
        (LEAST + "[colour]\n", "unknown key colour"),
        ("[zookeeper]\nhosts = 'x'", "name is missing"),
        ("name = 'a'", "zookeeper is missing"),
        ("name = 3\n[zookeeper]\nhosts='x'", "name must be a string"),
        ("name = 'a/b'\n[zookeeper]\nhosts='x'", "cannot be the name of a process"),
        ("name = 'a.leader'\n[zookeeper]\nhosts='x'", "cannot be the name of a process"),
        (LEAST + "session_ms = 'x'", "zookeeper.session_ms must be a whole number"),
        (LEAST + "session_ms = true", "zookeeper.session_ms must be a whole number"),
        (LEAST + "session_ms = 10", "from 1000 to 60000"),
        (LEAST + "[storage]\nkind = 'paper'", "storage.kind is 'paper'"),
        (LEAST + "[storage]\nkind = 'hbase'", "hbase.thrift names no server"),
        (LEAST + "[hbase]\nthrift = 'x'", "must be a list of strings"),
        (LEAST + "[keys]\nfile = 'x'", "need each other"),
        ("log_level = 'loud'\n" + LEAST, "log_level is 'loud'"),
        ("processor = 99999\n" + LEAST, "processor is 99999"),
        ("processor = 'all'\n" + LEAST, "processor must be a whole number"),
        ("zookeeper = 3\nname = 'a'", "zookeeper must be a table"),
        ("name = ", "is not TOML"),
        ("listen = 'tcp://0.0.0.0:7401'\n" + LEAST, "nobody can connect to listen"),
        ("listen = 'tcp://*:7401'\n" + LEAST, "nobody can connect to listen"),
        ("clients = 'tcp://0.0.0.0:7400'\n" + LEAST, "nobody can connect to clients"),
        ("clients = 'tcp://[::]:7400'\n" + LEAST, "nobody can connect to clients"),
        ("clients = 'tcp://[0::0]:7400'\n" + LEAST, "nobody can connect to clients"),
        ("advertise = 'tcp://0.0.0.0:7401'\n" + LEAST, "nobody can connect to advertise"),
        ("clients = 'tcp://db:1'\nadvertise_clients = 'tcp://*:1'\n" + LEAST, "connect to advertise_clients"),
        ("advertise_clients = 'tcp://db.example:7400'\n" + LEAST, "clients is empty"),
        ("clients = 'db:7400'\n" + LEAST, "clients"),
    ],
)
def test_what_is_wrong_is_named(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(InterfaceError, match=message):
        load_config(path)


def _affinity_of_a_thread() -> set[int]:
    with ThreadPoolExecutor(1) as begun:
        return begun.submit(os.sched_getaffinity, 0).result()


@pytest.mark.parametrize("processor", [ANY_PROCESSOR, max(os.sched_getaffinity(0))])
def test_a_loop_stays_on_its_processor_with_the_threads_that_it_begins(path: Path, processor: int) -> None:
    path.write_text(f"processor = {processor}\n{LEAST}")
    before = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as loop:
        loop.submit(stay_on, load_config(path).processor).result()
        expected = before if processor == ANY_PROCESSOR else {processor}
        assert loop.submit(os.sched_getaffinity, 0).result() == expected
        assert loop.submit(_affinity_of_a_thread).result() == expected
    assert os.sched_getaffinity(0) == before


def test_an_address_of_all_interfaces_is_told_by_another_one(path: Path) -> None:
    addresses = """
listen = "tcp://0.0.0.0:7401"
advertise = "tcp://db1.example:7401"
clients = "tcp://*:7400"
advertise_clients = "tcp://db1.example:7400"
"""
    path.write_text(addresses + LEAST)
    assert load_config(path).advertise_clients == "tcp://db1.example:7400"


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(InterfaceError, match=r"ltm\.toml cannot be read"):
        load_config(path)


@pytest.mark.parametrize("clients", ["", 'clients = "tcp://127.0.0.1:0"\n'])
def test_a_process_does_not_start_without_its_allow_list(
    path: Path, monkeypatch: pytest.MonkeyPatch, clients: str
) -> None:
    monkeypatch.setattr(cluster_process, "ZooKeeper", lambda *_: Mock())
    monkeypatch.setattr(cluster_process, "log_as_json", lambda *_: None)
    new_keys("ltm-1", "ltm").save(path.parent / "keys" / "ltm-1.key")
    listed = path.parent / "keys" / "allowed"
    path.write_text(f'{clients}{LEAST}[keys]\nfile = "{path.parent}/keys/ltm-1.key"\nallowed = "{listed}"\n')
    done = CliRunner().invoke(app, ["ltm", "--config", str(path)])
    assert done.exit_code == 1
    assert f"the allow-list {listed} cannot be read: No such file or directory (check its name; " in done.stderr


@pytest.mark.parametrize("role", ["ltm", "view-manager"])
def test_a_process_without_the_extra_says_what_to_install(
    role: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(LEAST)
    monkeypatch.delitem(sys.modules, cluster_process.__name__)
    monkeypatch.delattr("viewtide.cluster_process")
    monkeypatch.delitem(sys.modules, "viewtide.coordinator.cluster.zookeeper")
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    done = CliRunner().invoke(app, [role, "--config", str(path)])
    assert done.exit_code != 0
    assert "kazoo" in done.stderr and "pip install 'viewtide[cluster]'" in done.stderr


def test_a_password_that_others_can_read_is_refused(path: Path) -> None:
    path.write_text("secret\n")
    path.chmod(0o640)
    with pytest.raises(InterfaceError, match="others can read"):
        read_password(str(path))
    path.chmod(0o600)
    assert read_password(str(path)) == "secret"


def test_log_lines_are_json() -> None:
    out = io.StringIO()
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        log_as_json("ltm-1", "info", out)
        logging.getLogger("viewtide.test").info("a %s\nline", "long", extra={"life": 3})
        logging.getLogger("viewtide.test").debug("not this")
    finally:
        root.handlers, root.level = before
    (line,) = out.getvalue().splitlines()
    told = json.loads(line)
    assert told["time"].endswith("Z")
    assert {key: told[key] for key in ("level", "process", "logger", "message", "life")} == {
        "level": "info",
        "process": "ltm-1",
        "logger": "viewtide.test",
        "message": "a long\nline",
        "life": 3,
    }


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise ValueError("this")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "it failed", "exc_info": (ValueError, error, error.__traceback__)})
    told = json.loads(JsonFormatter("p").format(record))
    assert "ValueError: this" in told["exception"] and told["message"] == "it failed"


def test_figures_of_one_name_stand_together() -> None:
    figures: list[Figure] = [
        ("turns_total", {"process": "a"}, 5),
        ("life", {"process": "a"}, 2.5),
        ("turns_total", {"process": 'b"\\\n'}, 6.0),
    ]
    assert metrics_text(figures) == (
        "# TYPE viewtide_turns_total counter\n"
        'viewtide_turns_total{process="a"} 5\n'
        'viewtide_turns_total{process="b\\"\\\\\\n"} 6\n'
        "# TYPE viewtide_life gauge\n"
        'viewtide_life{process="a"} 2.5\n'
    )


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    reasons = iter(["not yet", ""])
    server = MetricsServer("127.0.0.1:0", lambda: [("life", {}, 1)], lambda: next(reasons))
    yield server
    server.close()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health_are_served(server: MetricsServer) -> None:
    assert get(server, "/metrics") == (200, "# TYPE viewtide_life gauge\nviewtide_life{} 1\n")
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (503, "not yet\n")
    assert get(server, "/readyz") == (200, "ok\n")
    assert get(server, "/etc/passwd")[0] == 404


def test_garbage_and_silence_do_not_keep_others_out(server: MetricsServer) -> None:
    host, _, port = server.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(8)]
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(b"\x00\xff" * 1_000 + b"\r\n\r\n")
        assert get(server, "/healthz") == (200, "ok\n")
    for each in silent:
        each.close()


@pytest.mark.parametrize("listen", ["", "9401", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(InterfaceError, match="metrics"):
        MetricsServer(listen, lambda: [], lambda: "")
