"""`viewtide cluster`: a development cluster from the first command to the last."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import viewtide
from tests.sim.workload import tables
from viewtide.cli import app
from viewtide.development import Development
from viewtide.ltm.cluster.catalogs import pack_catalog
from viewtide.ltm.cluster.messages import ChangeCatalog

from .running import wait_for

pytestmark = pytest.mark.slow

WAIT_S_MAX = 60


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cluster")
    run("up", directory, "--ltms", "2", "--view-managers", "1", "--storage", "local")
    yield directory
    down = run("down", directory)
    assert down == {"down": True}
    cluster = Development.attach(directory)
    assert not any(cluster.is_alive(name) for name in cluster.processes)


def run(command: str, directory: Path, *words: str) -> Any:
    done = CliRunner().invoke(app, ["cluster", command, *words, "--dir", str(directory), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def states(directory: Path) -> dict[str, str]:
    return {each["name"]: each["state"] for each in run("status", directory)["processes"]}


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_S_MAX) as answer:
        text: str = answer.read().decode()
        return text


def test_all_processes_run_and_one_leads(directory: Path) -> None:
    status = run("status", directory)
    assert {each["name"]: each["role"] for each in status["processes"]} == {
        "ltm-1": "ltm",
        "ltm-2": "ltm",
        "vm-1": "view-manager",
    }
    assert status["servers"] == {"zookeeper": "runs"}
    wait_for("a leader", lambda: "leads" in states(directory).values())
    for each in status["processes"]:
        assert get(each["metrics"], "/healthz") == "ok\n"
        assert wait_for("it is ready", lambda each=each: get(each["metrics"], "/readyz")) == "ok\n"
        assert f'viewtide_life{{process="{each["name"]}"}} ' in get(each["metrics"], "/metrics")
    for log in directory.glob("*.log"):
        for line in log.read_text().splitlines():
            assert json.loads(line)["process"] == log.stem


def test_metrics_tell_who_leads_and_who_owns_what(directory: Path) -> None:
    def figures(name: str) -> dict[str, float]:
        found = next(each for each in run("status", directory)["processes"] if each["name"] == name)
        lines = get(found["metrics"], "/metrics").splitlines()
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    leader = wait_for("a leader", lambda: next((n for n, state in states(directory).items() if state == "leads"), None))
    assert {name: figures(name)["viewtide_leads"] for name in ("ltm-1", "ltm-2")} == {
        name: float(name == leader) for name in ("ltm-1", "ltm-2")
    }
    owned = {name: figures(name)["viewtide_ranges_owned"] for name in ("ltm-1", "ltm-2")}
    owners = [each["process"] for each in run("status", directory)["ranges"]]
    assert owned == {name: owners.count(name) for name in owned}
    for name in ("viewtide_transactions_undecided", "viewtide_transactions_running", "viewtide_map_epoch"):
        assert figures("ltm-1")[name] >= 0
    assert "viewtide_leads" not in figures("vm-1")


def test_keys_are_split_and_moved(directory: Path) -> None:
    with_tables(directory)
    run("split", directory, "accounts", "10")
    run("split", directory, "accounts", "20")
    owner = run("status", directory)["ranges"][0]["process"]
    target = "ltm-1" if owner == "ltm-2" else "ltm-2"
    run("move", directory, "accounts", "--from", "10", "--before", "20", "--to", target)
    ranges = [(each["start"], each["process"]) for each in run("status", directory)["ranges"]]
    assert ranges == [("the beginning", owner), ("accounts 10", target), ("accounts 20", owner)]


def test_up_goes_on_with_what_is_there(directory: Path) -> None:
    before = run("status", directory)
    again = run("up", directory)
    assert again["processes"] == Development.attach(directory).processes
    assert set(again["processes"]) == {each["name"] for each in before["processes"]}
    other = CliRunner().invoke(app, ["cluster", "up", "--storage", "hbase", "--dir", str(directory)])
    assert other.exit_code == 1 and "has the storage local" in other.stderr


def test_an_address_in_zookeeper_that_is_wrong_is_told_with_the_right_one(directory: Path) -> None:
    address = run("status", directory)["zookeeper"]
    hosts = address.partition("/")[0]
    for _ in range(2):  # looking makes no node
        with pytest.raises(viewtide.Unavailable, match="has no node /viewtdie") as raised:
            viewtide.connect(f"zk://{hosts}/viewtdie")
    assert "there are clusters at /viewtide" in raised.value.hint
    with pytest.raises(viewtide.Unavailable, match="without a path") as raised:
        viewtide.connect(f"zk://{hosts}")
    assert "there are clusters at /viewtide" in raised.value.hint
    assert run("status", directory)["address"] == run("up", directory)["address"] == f"zk://{address}"
    shown = CliRunner().invoke(app, ["status", f"zk://{address}", "--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout)["name"], shown.output
    assert "log_newest" not in json.loads(shown.stdout)
    command = [sys.executable, "-m", "viewtide.cli", "status", f"zk://{hosts}/viewtdie"]
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and len(wrong.stderr.splitlines()) == 1, wrong.stderr


def test_what_cannot_be_done_is_said(directory: Path) -> None:
    for words in (
        ["kill", "ltm-9"],
        ["start", "ltm-9"],
        ["add", "owner"],
        ["split", "nothing"],
        ["split", "accounts", "x"],
        ["move", "accounts", "--to", "vm-1"],
    ):
        done = CliRunner().invoke(app, ["cluster", *words, "--dir", str(directory)])
        assert done.exit_code == 1 and done.stderr.startswith("viewtide: "), (words, done.output)


def test_a_killed_process_comes_back_and_another_one_is_added(directory: Path) -> None:
    assert run("kill", directory, "ltm-1") == {"killed": "ltm-1"}
    assert states(directory)["ltm-1"] == "gone"
    wait_for("ltm-2 owns all", lambda: {each["process"] for each in run("status", directory)["ranges"]} == {"ltm-2"})
    run("start", directory, "ltm-1")
    assert run("add", directory, "ltm") == {"added": "ltm-3"}
    assert run("add", directory, "view-manager") == {"added": "vm-2"}
    assert set(states(directory)) == {"ltm-1", "ltm-2", "ltm-3", "vm-1", "vm-2"}
    assert set(states(directory).values()) == {"runs", "leads"}


def with_tables(directory: Path) -> None:
    client = Development.attach(directory).client()
    try:
        with client._asking() as process:
            change = ChangeCatalog(0, 0, pack_catalog(tables().catalog))
            assert process.ask("any.coordinator", change).result(WAIT_S_MAX).error == ""
    finally:
        client.close()


def test_a_client_finds_the_cluster_and_goes_on_when_its_process_is_killed(directory: Path) -> None:
    zookeeper = run("status", directory)["zookeeper"]
    with viewtide.connect(f"zk://{zookeeper}") as database:
        database.create_table(
            "sales", {"id": int, "shop": str, "price": viewtide.column(int, nullable=False)}, key="id"
        )
        database.create_view("by_shop", "SELECT shop, SUM(price) AS price, COUNT(*) AS n FROM sales GROUP BY shop")

        def sell(numbers: range) -> None:
            with database.transaction() as tx:
                tx.insert("sales", [{"id": n, "shop": "ab"[n % 2], "price": n} for n in numbers])

        database.run(lambda tx: tx.insert("sales", {"id": 0, "shop": "a", "price": 0}))
        sell(range(1, 10))
        assert database.view("by_shop").get("b") == {"shop": "b", "price": 25, "n": 5}
        owner = run("status", directory)["ranges"][0]["process"]
        run("kill", directory, owner)
        wait_for("a sale after the kill", lambda: _retried(lambda: sell(range(10, 12))))
        assert database.view("by_shop").get("b") == {"shop": "b", "price": 36, "n": 6}
        run("start", directory, owner)


def _retried(do: Callable[[], None]) -> bool:
    try:
        do()
    except (viewtide.Unavailable, viewtide.TransactionConflict):
        return False
    except viewtide.IntegrityError:
        return True  # it was done before, and nobody said so
    return True
