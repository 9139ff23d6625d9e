"""A cluster whose nodes in ZooKeeper belong to a user: clients, who have no password, find it."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import viewtide as vt
from viewtide.cli import app
from viewtide.cluster_process import EXIT_SUPERSEDED
from viewtide.remote_cluster import serving

from .running import WAIT_S_MAX, wait_for

pytestmark = pytest.mark.slow

CONFIG = """
name = "{name}"
{addresses}
[zookeeper]
hosts = "{hosts}"
user = "viewtide"
password_file = "{password}"
[storage]
directory = "{logs}"
"""


class Processes:
    def __init__(self, hosts: str, directory: Path, closing: ExitStack) -> None:
        self._hosts, self._directory, self._closing = hosts, directory, closing

    def start(
        self, command: str, name: str, password: str, addresses: str = ""
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """The process, and what it says."""
        kept = self._directory / f"{name}.password"
        kept.write_text(password)
        kept.chmod(0o600)
        config, said = self._directory / f"{name}.toml", self._directory / f"{name}.log"
        config.write_text(
            CONFIG.format(
                name=name, addresses=addresses, hosts=self._hosts, password=kept, logs=self._directory / "logs"
            )
        )
        with open(said, "wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "viewtide.cli", command, "--config", str(config)], stdout=out, stderr=out
            )
        self._closing.callback(process.wait)
        self._closing.callback(process.kill)
        return process, said


@pytest.fixture
def processes(zookeeper_path: str, tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as closing:
        yield Processes(zookeeper_path, tmp_path, closing)


def _free_port() -> int:
    """Not one that the system gives to whoever connects somewhere meanwhile."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def test_clients_need_no_user(processes: Processes, zookeeper_path: str) -> None:
    port = _free_port()
    told = f"tcp://localhost:{port}"
    addresses = f'clients = "tcp://127.0.0.1:{port}"\nadvertise_clients = "{told}"'
    ltm, said = processes.start("ltm", "ltm-1", "secret", addresses)
    _until_known(ltm, said, zookeeper_path)
    with vt.connect(f"zk://{zookeeper_path}") as db:
        db.create_table("t", {"id": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1})
        assert db.sql("SELECT COUNT(*) AS n FROM t") == [{"n": 1}]
    assert serving(zookeeper_path) == [(told, "")]
    shown = CliRunner().invoke(app, ["status", f"zk://{zookeeper_path}"])
    assert shown.exit_code == 0, shown.output

    for command, name in (("ltm", "ltm-2"), ("view-manager", "vm-1")):
        stranger, said = processes.start(command, name, "guessed")
        assert stranger.wait(WAIT_S_MAX) not in (0, EXIT_SUPERSEDED)
        assert "ZooKeeper does not let user 'viewtide' use" in said.read_text()


def _until_known(process: subprocess.Popen[bytes], said: Path, hosts: str) -> None:
    """`connect` waits for whoever serves clients, but not for a cluster of which there is nothing yet."""

    def known() -> bool:
        assert process.poll() is None, said.read_text()
        try:
            return bool(serving(hosts))
        except vt.Unavailable:
            return False

    wait_for("a process that serves clients", known)
