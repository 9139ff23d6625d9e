"""`connect`: what is no database is refused with the reason, and nothing that was asked for is ignored."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import viewtide as vt
from viewtide import remote_cluster, remote_links, server
from viewtide.cli import app
from viewtide.cluster_gateway import ClusterGateway
from viewtide.ltm import transport, zmq_hub, zmtp
from viewtide.ltm.keys import ADMIN, CLIENT, LTM, VIEW_MANAGER, Allowed, AllowList, Keys
from viewtide.ltm.transport import Hub, new_keys
from viewtide.remote_protocol import REQUEST_BYTES_MAX
from viewtide.serve import served

ANYWHERE = "tcp://127.0.0.1:0"
KEY = "0" * 64


@pytest.mark.parametrize(
    "target",
    ["tcp:/x", "tcp:x:7400", "tcp:127.0.0.1:7400", "ipc:/run/x", "zk:/host:2181/x", Path("tcp://x:7400"), "zk:host"],
)
def test_an_address_that_lacks_a_slash_is_no_directory(
    target: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vt.InterfaceError, match="is no address") as raised:
        vt.connect(target)
    assert "tcp://host:port" in raised.value.hint and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["http://x/y", "postgres://x", "hdfs:/x", "c:/x", "TCP://127.0.0.1:7400"])
def test_a_scheme_that_is_not_known_is_no_directory(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vt.NotSupportedError, match="is not known"):
        vt.connect(target)
    assert list(tmp_path.iterdir()) == []


def test_memory_without_its_colon_is_no_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vt.InterfaceError, match="would be a new directory") as raised:
        vt.connect("memory")
    assert "'memory:'" in raised.value.hint and list(tmp_path.iterdir()) == []
    vt.connect("./memory").close()
    vt.connect("memory").close()  # it is there now


def test_a_directory_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    with vt.connect(tmp_path / "shop:2") as db:
        assert db.tables() == []


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        ("memory:", {"keys": "ann.key"}, "keys is for addresses"),
        ("memory:", {"server_key": KEY}, "server_key is for addresses"),
        ("shop.db", {"keys": "ann.key", "server_key": KEY}, "keys is for addresses"),
        ("tcp://127.0.0.1:1", {"ltms": 3}, "ltms is for a database in this process"),
        ("tcp://127.0.0.1:1", {"view_managers": 2}, "view_managers is for a database in this process"),
        ("zk://127.0.0.1:1/x", {"history": "2h"}, "history is for a database in this process"),
        ("ipc://x", {"cache_rows": 1_000}, "cache_rows is for a database in this process"),
        ("tcp://127.0.0.1:1", {"keys": "ann.key"}, "keys without server_key"),
        ("tcp://127.0.0.1:1", {"server_key": KEY}, "server_key without keys"),
        ("zk://127.0.0.1:1/x", {"keys": "ann.key", "server_key": KEY}, "server_key is not needed"),
        ("memory:", {"insecure": True}, "insecure is for addresses"),
        ("zk://127.0.0.1:1/x", {"insecure": True}, "insecure is for a served node"),
        (
            "tcp://127.0.0.1:1",
            {"insecure": True, "keys": "ann.key", "server_key": KEY},
            "insecure is for a node without",
        ),
    ],
)
def test_arguments_that_are_for_something_else_are_refused_at_once(
    target: str, options: dict[str, object], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vt.InterfaceError, match=why) as raised:
        vt.connect(target, **options)  # type: ignore[arg-type]
    assert raised.value.hint and list(tmp_path.iterdir()) == []


# --- a node on another machine, without keys


@pytest.fixture
def open_to_all(base: vt.Database) -> Iterator[str]:
    """An address that counts as one of another machine, and leads here."""
    with served(base, "tcp://0.0.0.0:0", insecure=True) as address:
        assert address.startswith("tcp://0.0.0.0:")
        yield address


def test_a_node_on_another_machine_is_taken_without_keys_only_if_that_is_meant(open_to_all: str) -> None:
    with pytest.raises(vt.InterfaceError, match="is on another machine, and without keys") as raised:
        vt.connect(open_to_all)
    assert "`server_key`" in raised.value.hint and "`insecure`" in raised.value.hint
    with vt.connect(open_to_all, insecure=True) as db:
        assert db.tables() == ["t"]


def test_a_cluster_on_another_machine_has_to_have_keys(open_to_all: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes neither `insecure` nor `server_key`: no hint may say so."""
    monkeypatch.setattr(remote_cluster, "serving", lambda hosts: [(open_to_all, "")])
    with pytest.raises(vt.InterfaceError, match="is on another machine, and without keys") as raised:
        vt.connect("zk://127.0.0.1:1/shop")
    assert "[keys] of their configurations" in raised.value.hint and "`keys`" in raised.value.hint
    assert "server_key" not in raised.value.hint and "insecure" not in raised.value.hint


def test_a_process_of_a_cluster_that_others_reach_has_to_have_keys() -> None:
    with pytest.raises(vt.InterfaceError, match="open to everybody") as raised:
        ClusterGateway("ltm-1", "tcp://0.0.0.0:0")
    assert "[keys] of its configuration" in raised.value.hint and "insecure" not in raised.value.hint


def test_tasks_take_it_too(open_to_all: str) -> None:
    async def use() -> list[str]:
        async with vt.aio.connect(open_to_all, insecure=True) as db:
            async with db.transaction() as tx:
                await tx.insert("t", {"id": 1, "s": "a"})
            return await db.tables()

    assert asyncio.run(use()) == ["t"]


@pytest.mark.parametrize("command", ["sql", "status", "views", "verify", "load", "export"])
def test_each_command_of_clients_takes_it_too(command: str, open_to_all: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 2, "s": "b"}\n')
    arguments = {
        "sql": (open_to_all, "-c", "SELECT 1 AS a"),
        "load": ("t", str(rows), "--into", open_to_all),
        "export": ("t", str(tmp_path / "t.jsonl"), "--from", open_to_all),
    }.get(command, (open_to_all,))
    refused = run(command, *arguments)
    assert refused.exit_code == 1 and "say that it is meant: --insecure" in refused.stderr
    done = run(command, *arguments, "--insecure")
    assert done.exit_code == 0, done.output


# --- who is not let in is told why


class Guarded:
    """A database behind keys."""

    def __init__(self, base: vt.Database, folder: Path) -> None:
        self.folder = folder
        self.own = new_keys("node", LTM)
        self.allowed = AllowList(folder / "allowed")
        self.allow(self.own)
        self.hub = Hub("node", listen=ANYWHERE, keys=self.own, allowed=self.allowed)
        self.server = server.Server(base, self.hub)
        self.address = self.hub.address

    def allow(self, keys: Keys) -> None:
        self.allowed.add(Allowed(keys.public, keys.name, keys.role))

    def key(self, name: str, role: str, *, allowed: bool = True) -> Path:
        keys = new_keys(name, role)
        if allowed:
            self.allow(keys)
        keys.save(self.folder / f"{name}.key")
        return self.folder / f"{name}.key"


@pytest.fixture
def base() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table("t", {"id": int, "s": str}, key="id")
        opened.create_view("v", "SELECT COUNT(*) AS n FROM t")
        yield opened


@pytest.fixture
def guarded(base: vt.Database, tmp_path: Path) -> Iterator[Guarded]:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    made = Guarded(base, folder)
    thread = threading.Thread(target=made.server.run)
    thread.start()
    try:
        yield made
    finally:
        made.server.stop()
        thread.join()


@contextmanager
def at_once() -> Iterator[None]:
    """Well before anybody gives up waiting."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < remote_links.CONNECT_S_MAX - 1


def test_a_key_that_is_not_on_the_list(guarded: Guarded) -> None:
    stranger = guarded.key("eve", CLIENT, allowed=False)
    with at_once(), pytest.raises(vt.Refused, match="does not take this key") as raised:
        vt.connect(guarded.address, keys=stranger, server_key=guarded.own.public)
    assert "viewtide keys allow" in raised.value.hint and not raised.value.retryable


def test_no_key_where_one_is_wanted(guarded: Guarded) -> None:
    with at_once(), pytest.raises(vt.Refused, match="takes only those who have a key") as raised:
        vt.connect(guarded.address)
    assert "server_key" in raised.value.hint


def test_the_wrong_key_of_the_node(guarded: Guarded) -> None:
    with at_once(), pytest.raises(vt.OperationalError, match="cuts every connection") as raised:
        vt.connect(guarded.address, keys=guarded.key("ann", CLIENT), server_key=new_keys("other", LTM).public)
    assert "public key" in raised.value.hint


def test_a_key_where_none_is_used(base: vt.Database, guarded: Guarded) -> None:
    with served(base, ANYWHERE) as address, at_once(), pytest.raises(vt.OperationalError, match="uses no keys"):
        vt.connect(address, keys=guarded.key("ann", CLIENT), server_key=guarded.own.public)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "zk://127.0.0.1:1/x"])
def test_a_key_file_that_is_not_there(address: str, tmp_path: Path) -> None:
    server_key = KEY if address.startswith("tcp") else ""
    with at_once(), pytest.raises(vt.OperationalError, match=r"ann\.key cannot be read") as raised:
        vt.connect(address, keys=tmp_path / "ann.key", server_key=server_key)
    assert "viewtide keys new" in raised.value.hint


def test_somebody_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(zmtp.CUTS_MIN):
                listening.accept()[0].close()

        thread = threading.Thread(target=answer)
        thread.start()
        with at_once(), pytest.raises(vt.OperationalError, match="no process of Viewtide"):
            vt.connect(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize("role", [LTM, VIEW_MANAGER])
def test_a_role_that_may_not_use_the_database(guarded: Guarded, role: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(vt.OperationalError, match=f"role '{role}' may not"),
        vt.connect(guarded.address, keys=guarded.key("x", role), server_key=guarded.own.public) as db,
    ):
        db.tables()
    assert f"refused: x: the role {role!r} may not" in caplog.text


def test_a_key_that_is_revoked_while_it_is_used(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls say so; of a commit that was sent nobody knows."""
    monkeypatch.setattr(remote_links, "LOST_S", 1.0)
    keys = guarded.key("ann", CLIENT)

    async def in_a_loop() -> None:
        async with await vt.aio.connect(guarded.address, keys=keys, server_key=guarded.own.public) as db:
            assert await db.tables() == ["t"]
            guarded.allowed.revoke(Keys.load(keys).public)
            with pytest.raises(vt.Refused, match="does not take this key"):
                await db.tables()
            guarded.allow(Keys.load(keys))
            assert await db.tables() == ["t"]

    with vt.connect(guarded.address, keys=keys, server_key=guarded.own.public) as db:
        assert db.tables() == ["t"]
        guarded.allowed.revoke(Keys.load(keys).public)
        with pytest.raises(vt.OperationalError, match="does not take this key"):
            db.tables()
        guarded.allow(Keys.load(keys))
        assert db.tables() == ["t"]
    asyncio.run(in_a_loop())


def test_a_process_that_was_refused_comes_back_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An LTM whose key is put on the list of another one later: ZeroMQ itself would not try again."""
    monkeypatch.setattr(zmq_hub, "RECONNECT_MS_MAX", 50)
    allowed = AllowList(tmp_path / "allowed")
    own, late = new_keys("ltm-1", LTM), new_keys("ltm-2", LTM)
    listening = Hub("ltm-1", listen=ANYWHERE, keys=own, allowed=allowed)
    coming = Hub("ltm-2", keys=late)
    try:
        coming.know("ltm-1", listening.address, own.public)
        deadline = time.monotonic() + 10
        while coming.refusal("ltm-1") is None:
            assert time.monotonic() < deadline
            assert listening.poll(5) == [] and coming.poll(5) == []
        allowed.add(Allowed(late.public, late.name, late.role))
        received: list[transport.Received] = []
        while not received:
            assert time.monotonic() < deadline
            coming.send("ltm-1", b"hello")
            coming.flush()
            coming.poll(5)
            received = listening.poll(5)
        assert received[0].who.name == "ltm-2" and coming.refusal("ltm-1") is None
    finally:
        coming.close()
        listening.close()


# --- sizes


def test_what_does_not_fit_into_a_message_is_a_data_error(base: vt.Database) -> None:
    large = "x" * REQUEST_BYTES_MAX
    with served(base, ANYWHERE) as address, vt.connect(address) as db:
        with pytest.raises(vt.DataError, match="bytes") as raised, db.transaction() as tx:
            tx.insert("t", [{"id": 1, "s": "small"}, {"id": 2, "s": large}])
        assert "served node" in raised.value.hint
        with db.transaction() as tx, pytest.raises(vt.DataError, match="bytes"):
            tx.get("t", 1)
            tx.update("t", 1, {"s": large})
        with pytest.raises(vt.DataError, match="bytes"):
            db.sql("SELECT ?", [large])
        # A row that the node's own process wrote.
        with base.transaction() as tx:
            tx.insert("t", {"id": 3, "s": large * 2})
        with pytest.raises(vt.DataError, match="cannot be sent"), db.snapshot() as snapshot:
            snapshot.get("t", 3)
        assert db.view("v").get() == {"n": 1}


def test_more_reads_at_a_time_than_a_node_takes_wait_for_their_turn(
    base: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the node says that it has too much to do."""
    monkeypatch.setattr(server, "JOBS_MAX", 20)

    async def read_all(address: str) -> int:
        async with await vt.aio.connect(address) as db:
            results = await asyncio.gather(*[db.sql("SELECT id FROM t") for _ in range(100)])
            assert all(result == [] for result in results)
            counts = await asyncio.gather(*[db.view("v").get() for _ in range(3_000)])
            texts = await asyncio.gather(*[db.explain_view("SELECT COUNT(*) AS n FROM t") for _ in range(300)])
            return len(counts) + len(texts)

    with served(base, ANYWHERE) as address:
        assert asyncio.run(read_all(address)) == 3_300


# --- the command line


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def without_zookeeper(code: str) -> tuple[str, str]:
    """Where it was looked for in vain, and what the code wrote to the standard error."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    code = (
        "import sys; from viewtide.coordinator.cluster import zookeeper\n"
        "zookeeper.ZooKeeper.start.__defaults__, zookeeper.TOLD_AFTER_MS = (500,), 100\n"
        + code.replace("ADDRESS", address)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return address, done.stderr


def test_a_command_tells_of_zookeeper_in_one_line() -> None:
    """kazoo told of every attempt to connect, some 55 times."""
    address, told = without_zookeeper(
        "from viewtide import cli; sys.argv = ['viewtide', 'status', 'zk://ADDRESS/viewtide']; cli.main()"
    )
    assert told == f"viewtide: ZooKeeper at {address} did not answer within 500 ms (check address and servers)\n"


def test_a_program_is_told_of_zookeeper_by_the_error_alone() -> None:
    address, told = without_zookeeper(
        "import viewtide as vt\ntry: vt.connect('zk://ADDRESS/x')\nexcept vt.Unavailable as error: sys.exit(str(error))"
    )
    assert told == f"ZooKeeper at {address} did not answer within 500 ms (check address and servers)\n"


def test_the_log_of_a_process_tells_of_zookeeper_once() -> None:
    address, told = without_zookeeper(
        "from viewtide.json_logs import log_as_json; log_as_json('ltm-1', 'info')\n"
        "zookeeper.ZooKeeper('ADDRESS/x', 2_000).start()"
    )
    logged = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [(each["level"], each["message"]) for each in logged] == [
        ("info", f"ZooKeeper at {address} cannot be reached yet")
    ]
    assert "Connection dropped" not in told


def test_hints_name_the_options_of_the_command_line(guarded: Guarded, tmp_path: Path) -> None:
    assert "give --keys and --server-key" in run("status", guarded.address).stderr
    served = run("serve", str(tmp_path / "new"), "--listen", "tcp://0.0.0.0:0")
    assert served.exit_code == 1 and "--insecure" in served.stderr


def test_commands_take_addresses_and_keys(guarded: Guarded) -> None:
    options = ["--keys", str(guarded.key("boss", ADMIN)), "--server-key", guarded.own.public]
    assert '"views": 1' in run("status", guarded.address, "--json", *options).output
    assert '"v"' in run("views", guarded.address, "--json", *options).output
    verified = run("verify", guarded.address, "--json", *options)
    assert verified.exit_code == 0 and '"ok": true' in verified.output
    assert '"rows": [[0]]' in run("sql", guarded.address, "-c", "SELECT n FROM v", "--json", *options).output
    refused = run("status", guarded.address)
    assert refused.exit_code == 1 and "takes only those who have a key" in refused.output


@pytest.mark.parametrize("command", ["status", "views", "verify"])
def test_commands_say_what_is_no_database(command: str, tmp_path: Path) -> None:
    assert "there is no database" in run(command, str(tmp_path)).output
    assert "is no address" in run(command, "tcp:/x").output
    assert "there is no database" in run(command, "memory:").output
