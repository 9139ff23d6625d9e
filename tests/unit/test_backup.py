"""The steps of docs/operations.md for backups: what stands there is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl, make_digest_acl

import viewtide as vt

DOCS = Path(__file__).resolve().parents[2] / "docs"
NODES = DOCS / "zookeeper_nodes.py"


def shell_blocks(title: str) -> list[str]:
    """Those of a section."""
    section = re.split(r"^##+ ", (DOCS / "operations.md").read_text(), flags=re.MULTILINE)
    (found,) = [text for text in section if text.startswith(f"{title}\n")]
    return re.findall(r"^```sh\n(.*?)^```", found, re.DOTALL | re.MULTILINE)


def run_block(block: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def state(db: vt.Database) -> tuple[object, ...]:
    with db.snapshot() as snapshot:
        rows = [dict(row) for row in snapshot.scan("orders")]
    return rows, [dict(row) for row in db.view("spend").rows()], [dict(row) for row in db.view("late").rows()]


def test_a_directory_is_saved_and_restored(tmp_path: Path) -> None:
    saving, restoring = shell_blocks("Backup of a directory")
    with vt.connect(tmp_path / "shop.db") as db:
        db.create_table("orders", {"id": int, "buyer": str, "cost": int}, key="id")
        db.create_view("spend", "SELECT buyer, SUM(cost) AS cost FROM orders GROUP BY buyer")
        db.create_view("late", "SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer", refresh="manual")
        with db.transaction() as tx:
            tx.insert("orders", [{"id": n, "buyer": "ab"[n % 2], "cost": n} for n in range(100)])
        before = state(db)
    run_block(saving, tmp_path)
    with vt.connect(tmp_path / "shop.db") as db:
        db.sql("DELETE FROM orders WHERE id < 50")
        assert state(db) != before
    (tmp_path / "shop.db" / "store" / "data.mdb").write_bytes(b"damage" * 1_000)
    told = run_block(restoring, tmp_path)
    assert re.search(r"^ spend +\| true ", told, re.MULTILINE), told
    assert (tmp_path / "shop.damaged").is_dir()
    with vt.connect(tmp_path / "shop.db") as db:
        assert state(db) == before
        assert db.view("late").refresh()
        db.sql("INSERT INTO orders VALUES (100, 'a', 1)")
        assert db.view("late").verify().ok
    assert (tmp_path / "shop.db").stat().st_mode & 0o777 == 0o700


# --- ZooKeeper's nodes ---


def nodes(command: str, hosts: str, file: Path, login: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(NODES), command, hosts, str(file)],
        env={**os.environ, "ZOOKEEPER_LOGIN": login},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("words", [[], ["save"], ["copy", "127.0.0.1:1", "nodes.json"]])
def test_wrong_words_show_how_it_is_used(words: list[str]) -> None:
    done = subprocess.run([sys.executable, str(NODES), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "zookeeper_nodes.py restore" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def owner(zookeeper_path: str) -> Iterator[KazooClient]:
    """A user whose nodes only he can write, as those of a cluster."""
    rights = [make_digest_acl("viewtide", "secret", all=True), make_acl("world", "anyone", read=True)]
    client = KazooClient(zookeeper_path, auth_data=[("digest", "viewtide:secret")], default_acl=rights)
    client.start()
    client.ensure_path("/")
    yield client
    client.stop()


@pytest.mark.slow
def test_nodes_are_saved_and_restored_with_their_owner(owner: KazooClient, zookeeper_path: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    owner.create("/map", b"\x00\xff the map")
    owner.create("/lives/ltm-1", b"3", makepath=True)
    owner.create("/processes/ltm-1", b"", ephemeral=True, makepath=True)
    refused = nodes("save", zookeeper_path, file, "viewtide:secret")
    assert refused.returncode == 1
    assert "stop the cluster first: ltm-1" in refused.stderr
    owner.delete("/processes/ltm-1")
    refused = nodes("save", zookeeper_path, file)
    assert refused.returncode == 1
    assert "belongs to a user" in refused.stderr
    assert not file.exists()
    done = nodes("save", zookeeper_path, file, "viewtide:secret")
    assert done.returncode == 0, done.stderr
    rights = owner.get_acls("/map")[0]

    owner.set("/map", b"later")
    owner.create("/later", b"")
    assert nodes("restore", zookeeper_path, file).returncode != 0
    assert owner.get("/map")[0] == b"later", "it is not his"
    done = nodes("restore", zookeeper_path, file, "viewtide:secret")
    assert done.returncode == 0, done.stderr
    assert sorted(owner.get_children("/")) == ["lives", "map", "processes"]
    assert (owner.get("/map")[0], owner.get("/lives/ltm-1")[0]) == (b"\x00\xff the map", b"3")
    assert owner.get_acls("/map")[0] == rights

    elsewhere = f"{zookeeper_path}-new"
    done = nodes("restore", elsewhere, file, "viewtide:secret")
    assert done.returncode == 0, done.stderr
    other = KazooClient(elsewhere)
    other.start()
    try:
        assert other.get("/map")[0] == b"\x00\xff the map"
        with pytest.raises(NoAuthError):
            other.set("/map", b"")
    finally:
        other.stop()
