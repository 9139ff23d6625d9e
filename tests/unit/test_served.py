"""A served node and its clients: what is different from a database in the same process. (That the rest is not, the
tests of the API show, which run against a served node, too.)"""

from __future__ import annotations

import asyncio
import enum
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import viewtide as vt
from tests.tcp_proxy import TcpProxy
from viewtide import remote_links, server, server_sessions
from viewtide.cli import app
from viewtide.ltm.codec import pack, unpack
from viewtide.ltm.keys import Allowed, AllowList, Keys
from viewtide.ltm.transport import Hub, new_keys
from viewtide.remote import RemoteDatabase, RemoteTransaction
from viewtide.remote_calls import ONCE, READ, Ask, call
from viewtide.remote_protocol import ANSWER, FAILURE, REQUEST_BYTES_MAX, VERSION, from_wire, reply_of, to_wire
from viewtide.serve import served

ANYWHERE = "tcp://127.0.0.1:0"


@pytest.fixture
def base() -> Iterator[vt.Database]:
    """The database on the node."""
    with vt.connect("memory:") as opened:
        opened.create_table("t", {"id": int, "g": str, "x": vt.column(int, default=1)}, key="id", indexes=["g"])
        opened.create_view("sums", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
        yield opened


@pytest.fixture
def address(base: vt.Database) -> Iterator[str]:
    with served(base, ANYWHERE) as address:
        yield address


@pytest.fixture
def db(address: str) -> Iterator[RemoteDatabase]:
    with vt.connect(address) as opened:
        assert isinstance(opened, RemoteDatabase)
        yield opened


def row(number: int, group: str = "a", x: int = 1) -> dict[str, object]:
    return {"id": number, "g": group, "x": x}


def ids(db: vt.Database) -> list[object]:
    with db.snapshot() as snapshot:
        return [each["id"] for each in snapshot.scan("t")]


# --- connecting


def test_two_clients_see_one_database(address: str, db: vt.Database) -> None:
    with vt.connect(address) as other:
        with db.transaction() as tx:
            tx.insert("t", [row(1), row(2, "b")])
        assert other.view("sums").rows(at_least=tx.token) == db.view("sums").rows()
        assert ids(other) == [1, 2]
    assert repr(db) == f"Database({address!r})"
    assert repr(other) == f"Database({address!r}, closed)"


def test_over_a_unix_socket(base: vt.Database, tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with served(base, f"ipc://{path}") as address:
        assert path.stat().st_mode & 0o777 == 0o600
        with vt.connect(address) as db:
            assert db.tables() == ["t"]


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_links, "CONNECT_S_MAX", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        pytest.raises(vt.Unavailable, match="nobody answers") as raised,
    ):
        vt.connect(f"tcp://127.0.0.1:{deaf.getsockname()[1]}")
    assert "viewtide serve" in raised.value.hint


def test_another_machine_needs_keys() -> None:
    with pytest.raises(vt.InterfaceError, match="without keys"):
        vt.connect("tcp://192.0.2.1:7400")


@contextmanager
def guarded(base: vt.Database, folder: Path, *clients: Keys) -> Iterator[tuple[str, Keys]]:
    """The database behind keys; its address and the node's key."""
    own = new_keys("node", "ltm")
    allowed = AllowList(folder / "allowed")
    for keys in clients:
        allowed.add(Allowed(keys.public, keys.name, keys.role))
    hub = Hub("node", listen=ANYWHERE, keys=own, allowed=allowed)
    node = server.Server(base, hub)
    thread = threading.Thread(target=node.run)
    thread.start()
    try:
        yield hub.address, own
    finally:
        node.stop()
        thread.join()


def test_keys_and_roles(base: vt.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_links, "CONNECT_S_MAX", 1.0)
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    client, ltm, stranger = new_keys("ann", "client"), new_keys("ltm-1", "ltm"), new_keys("eve", "client")
    for keys in (client, ltm, stranger):
        keys.save(folder / f"{keys.name}.key")
    with guarded(base, folder, client, ltm) as (address, own):
        with vt.connect(address, keys=folder / "ann.key", server_key=own.public) as db:
            assert db.tables() == ["t"]
        with (
            pytest.raises(vt.OperationalError, match="role 'ltm' may not"),
            vt.connect(address, keys=folder / "ltm-1.key", server_key=own.public) as db,
        ):
            db.tables()
        with pytest.raises(vt.OperationalError, match="does not take this key"):
            vt.connect(address, keys=folder / "eve.key", server_key=own.public)


# --- transactions


def test_writes_are_one_message(base: vt.Database, db: RemoteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    once = remote_links.Links.once

    def counting(self: remote_links.Links, ask: Ask, arguments: tuple[object, ...]) -> object:
        asked.append(ask.operation)
        return once(self, ask, arguments)

    monkeypatch.setattr(remote_links.Links, "once", counting)
    for number in range(3):
        with db.transaction() as tx:
            tx.insert("t", row(number))
            tx.insert("t", [row(10 + number), row(20 + number)])
            tx.upsert("t", {"id": number, "x": 5})
    assert asked == ["schema", "commit", "commit", "commit"]
    assert base.view("sums").get("a") == {"g": "a", "x": 21, "n": 9}


def test_an_existing_key_is_told_at_the_commit(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("t", row(1))
    with pytest.raises(vt.IntegrityError, match="row 1 of table 't' exists already"), db.transaction() as tx:
        tx.insert("t", [row(1), row(2)])
    with pytest.raises(vt.IntegrityError, match="exists already"), db.transaction() as tx:
        tx.insert("t", row(1))
        tx.get("t", 2)
    with pytest.raises(vt.IntegrityError, match="row 3 "), db.transaction() as tx:
        tx.insert("t", [row(3), row(3)])
    assert ids(db) == [1]


@pytest.mark.parametrize(("type_", "keys"), [(int, [1, 2, 3]), (str, ["a", "b", "c"])])
def test_a_key_that_is_given_twice_is_told_at_once(db: vt.Database, type_: type, keys: list[object]) -> None:
    db.create_table("u", {"k": type_, "x": int}, key="k")
    one, two, three = ({"k": key, "x": 1} for key in keys)
    tx = db.transaction()
    for twice in ([one, two, one], [three, three]):
        with pytest.raises(vt.IntegrityError, match=f"row {twice[-1]['k']!r} of table 'u' exists already"):
            tx.insert("u", twice)
    tx.insert("u", [one, two])
    for again in (two, [three, one]):
        with pytest.raises(vt.IntegrityError, match="exists already"):
            tx.insert("u", again)
    tx.upsert("u", [one, three])
    with pytest.raises(vt.IntegrityError, match=f"row {three['k']!r} of table 'u' exists already"):
        tx.insert("u", three)
    tx.commit()
    with db.snapshot() as snapshot:
        assert [each["k"] for each in snapshot.scan("u")] == keys


def test_a_key_that_is_too_long_is_told_at_once(db: vt.Database) -> None:
    db.create_table("u", {"k": str}, key="k")
    with db.transaction() as tx, pytest.raises(vt.DataError, match="the limit is 480"):
        tx.insert("u", {"k": "a" * 500})


def test_many_rows_go_in_several_messages(db: vt.Database) -> None:
    with db.transaction() as tx:
        for first in range(0, 12_000, 3_000):
            tx.insert("t", [row(first + number) for number in range(3_000)])
        tx.upsert("t", [{"id": number, "x": 2} for number in range(6_000)])
    assert db.view("sums").get("a") == {"g": "a", "x": 18_000, "n": 12_000}
    with db.snapshot() as snapshot:
        found = snapshot.scan("t")
    assert len(found) == 12_000
    assert [each["id"] for each in found] == list(range(12_000))


def test_large_values(db: vt.Database) -> None:
    db.create_table("files", {"id": int, "data": bytes}, key="id")
    data = os.urandom(1 << 20)
    with db.transaction() as tx:
        tx.insert("files", [{"id": number, "data": data} for number in range(20)])
    with db.snapshot() as snapshot:
        assert [each["data"] == data for each in snapshot.scan("files")] == [True] * 20
    with pytest.raises(vt.Error), db.transaction() as tx:
        tx.insert("files", {"id": 99, "data": bytes(20 << 20)})
    assert db.sql("SELECT COUNT(*) AS n FROM files")[0]["n"] == 20


def test_columns_that_are_added_by_another(address: str, db: vt.Database) -> None:
    with vt.connect(address) as other:
        with db.transaction() as tx:
            tx.insert("t", row(1))
        other.add_column("t", "note", str)
        with db.transaction() as tx:  # it does not know yet
            tx.insert("t", row(2))
        with db.transaction() as tx:
            tx.insert("t", {**row(3), "note": "new"})
        other.drop_column("t", "note")
        with pytest.raises(vt.TransactionConflict), db.transaction() as tx:
            tx.insert("t", row(4))
        with db.transaction() as tx:
            tx.insert("t", row(4))
    assert ids(db) == [1, 2, 3, 4]


def test_a_session_that_is_not_used_ends(base: vt.Database) -> None:
    hub = Hub("node", listen=ANYWHERE)
    node = server.Server(base, hub, idle_s=0.2)
    thread = threading.Thread(target=node.run)
    thread.start()
    try:
        with vt.connect(hub.address) as db:
            pins = base._engine.ltm.horizon.pins  # type: ignore[attr-defined]
            tx = db.transaction()
            assert tx.get("t", 1) is None
            assert pins
            deadline = time.monotonic() + 10
            while pins and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not pins
            with pytest.raises(vt.TransactionConflict, match=r"not used for 0\.2 s"):
                tx.get("t", 1)
            tx.rollback()
    finally:
        node.stop()
        thread.join()


def test_what_ends_lets_go_of_its_versions(base: vt.Database, db: vt.Database) -> None:
    pins = base._engine.ltm.horizon.pins  # type: ignore[attr-defined]
    with db.snapshot() as snapshot:
        snapshot.get("t", 1)
        assert pins
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.get("t", 1)
        raise ZeroDivisionError
    with db.transaction() as tx:
        tx.get("t", 1)
    db.tables()
    assert not pins


# --- answers that get lost


class Lossy(remote_links.Link):
    """Loses the answer of every request of some operations, once each."""

    lost: ClassVar[set[str]] = set()
    operations: ClassVar[tuple[str, ...]] = ()

    def exchange(self, ask: Ask, arguments: tuple[object, ...]) -> object:
        body = super().exchange(ask, arguments)
        name = ask.operation + repr(ask.arguments)
        if ask.operation in self.operations and name not in self.lost:
            self.lost.add(name)
            raise remote_links.Lost
        return body


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> type[Lossy]:
    monkeypatch.setattr(remote_links, "Link", Lossy)
    monkeypatch.setattr(Lossy, "lost", set())
    monkeypatch.setattr(Lossy, "operations", ("commit", "session", "view.rows"))
    return Lossy


def test_commits_and_operations_happen_once(lossy: type[Lossy], address: str, base: vt.Database) -> None:
    with vt.connect(address) as db:
        for number in range(5):
            with db.transaction() as tx:
                tx.insert("t", row(number))
            with db.transaction() as tx:
                assert tx.update("t", number, {"x": 2}) is True
                tx.insert("t", row(100 + number, "b"))
                assert len(tx.find("t", g="b")) == number + 1
        assert [each["x"] for each in db.view("sums").rows()] == [10, 5]
    assert len(lossy.lost) > 15
    assert base.status().commits == 10


@pytest.mark.parametrize(
    ("raised", "told", "state"),
    [
        (None, None, "committed"),
        (remote_links.Lost(), None, "committed"),
        (vt.Busy("full"), vt.Busy, "rolled back"),
        (vt.CommitUnknown("gone"), vt.CommitUnknown, "interrupted in its commit, which may have happened"),
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted in its commit, which may have happened"),
    ],
)
def test_a_commit_whose_first_attempt_fails(
    db: RemoteDatabase,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException | None,
    told: type[BaseException] | None,
    state: str,
) -> None:
    """Most commits are one request and no more than that; what else may come of it is told as ever."""
    ids(db)
    exchange, attempts = remote_links.Link.exchange, 0

    def failing(link: remote_links.Link, ask: Ask, arguments: tuple[object, ...]) -> object:
        nonlocal attempts
        attempts += ask.operation == "commit"
        if ask.operation == "commit" and attempts == 1 and raised is not None:
            raise raised
        return exchange(link, ask, arguments)

    tx = db.transaction()
    tx.insert("t", row(1))
    monkeypatch.setattr(remote_links.Link, "exchange", failing)
    if told is None:
        token = tx.commit()
        assert token == tx.token and token.commit_ts and token.tx_id[0] == db._remote.client.number
    else:
        with pytest.raises(told):
            tx.commit()
    assert attempts == (2 if isinstance(raised, remote_links.Lost) else 1)
    assert isinstance(tx, RemoteTransaction)
    assert tx._calls.ended == state
    with pytest.raises(vt.InterfaceError, match=f"the transaction is {state}"):
        tx.insert("t", row(2))
    with pytest.raises(vt.InterfaceError, match=f"the transaction is {state}"):
        tx.commit()
    if told is not None:
        with pytest.raises(vt.InterfaceError, match=f"the transaction is {state}"):
            _ = tx.token
    links = db._remote.links
    assert ids(db) == ([1] if told is None else [])
    assert links._count == len(links._idle) == 1


def test_a_commit_in_a_closed_database(db: RemoteDatabase) -> None:
    tx = db.transaction()
    tx.insert("t", row(1))
    db.close()
    with pytest.raises(vt.InterfaceError, match="the database is closed"):
        tx.commit()


def test_what_may_not_be_done_twice_is_unknown(lossy: type[Lossy], address: str) -> None:
    lossy.operations = ("create_table",)
    with vt.connect(address) as db:
        with pytest.raises(vt.CommitUnknown, match="create_table may have happened"):
            db.create_table("u", {"id": int}, key="id")
        assert db.tables() == ["t", "u"]


def test_a_commit_of_an_earlier_process_is_found_in_the_log(tmp_path: Path) -> None:
    """The answer got lost, and the node was restarted before the client asked again."""
    with vt.connect(tmp_path / "db") as base:
        base.create_table("t", {"id": int, "x": int}, key="id")
        with served(base, ANYWHERE) as address, vt.connect(address) as db:
            assert isinstance(db, RemoteDatabase)
            with db.transaction() as tx:
                tx.insert("t", {"id": 1, "x": 1})
            token = tx.token
            with db.transaction() as tx:
                tx.upsert("t", {"id": 1, "x": 7})
    with vt.connect(tmp_path / "db") as base, served(base, ANYWHERE) as address, vt.connect(address) as db:
        assert isinstance(db, RemoteDatabase)
        with db.transaction() as tx:
            tx.insert("t", {"id": 2, "x": 1})

        def again(tx_id: tuple[int, int]) -> object:
            layout = db._remote.client.schemas["t"].layout
            return db._remote.links._exchange(Ask("commit", (tx_id, True, ((0, "t", layout, ((1, 1),), None),))))

        assert again(token.tx_id) == token.commit_ts
        with pytest.raises(vt.IntegrityError):
            again((1, 1))
        with db.snapshot() as snapshot:
            assert snapshot.get("t", 1) == {"id": 1, "x": 7}


def test_decided_transactions_of_a_client_are_remembered_for_a_while() -> None:
    decided = server_sessions.Decided()
    for number in range(1, 2_000):
        assert decided.find((5, number)) is None
        decided.note((5, number), number * 10)
    assert decided.find((5, 1999)) == 19990
    with pytest.raises(vt.CommitUnknown):
        decided.find((5, 3))
    assert decided.find((6, 3)) is None
    decided.expire()
    assert decided.find((5, 1999)) is None


# --- what is wrong


def raw(address: str, *payloads: bytes) -> list[tuple[object, ...]]:
    """The replies to some bytes, and to a proper request behind them."""
    hub = Hub("raw", listen=None)
    hub.know("node", address)
    try:
        for payload in payloads:
            hub.send("node", payload)
        hub.send("node", pack((VERSION, 77, "tables", ((1,), (2,)))))
        hub.flush()
        replies: list[tuple[object, ...]] = []
        deadline = time.monotonic() + 10
        while not any(reply[0] == 77 for reply in replies) and time.monotonic() < deadline:
            for batch in hub.poll(1_000):
                replies += [unpack(payload) for payload in batch.payloads]  # type: ignore[misc]
        return replies
    finally:
        hub.close()


NO_REQUESTS = [
    b"", b"\xc1", b"\x00" * 100, pack("text"), pack([VERSION, "one", "tables", []]), pack([VERSION, 1]),
    b"\x91" * 5_000, b"\xdd\xff\xff\xff\xff",
    # Numbers that an answer to a commit has no room for.
    *(pack([VERSION, number, "commit", [[1, 2], False, []]]) for number in (-1, 2**63, 2**64, 2**200)),
]  # fmt: skip
REFUSED = [
    (99, 1, "tables", ()),
    (VERSION, 1, "nothing", ((1,), (2,))),
    (VERSION, 1, 5, ()),
    (VERSION, 1, "tables", ()),
    (VERSION, 1, "tables", ((1, 5), (2,))),
    (VERSION, 1, "view.get", ((1,), (2,))),
    (VERSION, 1, "view.get", ((1, "sums"), (2, "at_least", (10, "x", "y")))),
    (VERSION, 1, "sql", ((1, 5, 6), (2,))),
    (VERSION, 1, "sql", ((99, 5), (2,))),
    (VERSION, 1, "create_table", ((1, "u", (14, 1, 2)), (2,))),
    (VERSION, 1, "commit", ()),
    (VERSION, 1, "commit", ((1, 2), False, ((0, "t", 0, ((1, 2, 3),), None),))),
    (VERSION, 1, "commit", ("no", False, ())),
    (VERSION, 1, "commit", ((1, 2), False, (5,))),
    (VERSION, 1, "commit", ((1, 2), False, ((7, "t", 0, (), None),))),
    (VERSION, 1, "session", (1, 2, 3)),
    (VERSION, 1, "session", ((1, 1), 1, (1, "nothing"), (), "get", ((1,), (2,)))),
    (VERSION, 1, "session", ((1, 2), 1, (1, "transaction"), (), "nothing", ((1,), (2,)))),
    (VERSION, 1, "session", ((1, 3), 1, (1, "transaction"), (), "_begin", ((1,), (2,)))),
    (VERSION, 1, "session", ((1, 4), 9, (1, "transaction"), (), "get", ((1,), (2,)))),
    (VERSION, 1, "session", ((1, 5), 1, None, (), "get", ((1,), (2,)))),
    (VERSION, 1, "schema", (5,)),
    (VERSION, 1, "page", (1, 2)),
    (VERSION, 1, "end", (1,)),
]


def test_bytes_that_are_no_request_are_dropped(address: str, base: vt.Database) -> None:
    assert raw(address, *NO_REQUESTS)[-1][:2] == (77, 0)
    assert base.status().commits == 0


@pytest.mark.parametrize("message", REFUSED, ids=lambda message: repr(message)[:60])
def test_wrong_requests_are_refused(address: str, base: vt.Database, message: tuple[object, ...]) -> None:
    replies = raw(address, pack(message))
    assert [reply[:2] for reply in replies] == [(1, FAILURE), (77, 0)] or replies[1][:2] == (1, FAILURE)
    assert base.status().commits == 0
    assert base.tables() == ["t"]


@pytest.mark.parametrize(
    "values",
    [(1,), (1, "a", "x"), (1, "a", 2**63), (None, "a", 1), (1, 5, 1), "abc", 5, (1, "a", 1, 1), (True, "a", 1)],
    ids=str,
)
def test_rows_that_are_none(address: str, db: RemoteDatabase, base: vt.Database, values: object) -> None:
    layout = db._remote.run(db._remote.client.schema("t")).layout
    for number, rows in enumerate([(values,), ((1, "a", 1), values)]):
        replies = raw(address, pack((VERSION, 1, "commit", ((1, number), False, ((0, "t", layout, rows, None),)))))
        assert [reply[:2] for reply in replies if reply[0] == 1] == [(1, FAILURE)]
    assert base.status().commits == 0


def test_the_largest_number_of_a_request_is_answered(address: str) -> None:
    hub = Hub("raw", listen=None)
    hub.know("node", address)
    try:
        hub.send("node", pack((VERSION, 2**63 - 1, "commit", ((1, 2), False, ()))))
        hub.flush()
        [payload] = hub.receive("node", 10_000)
    finally:
        hub.close()
    number, kind, _, commit_ts = reply_of(payload)
    assert (number, kind) == (2**63 - 1, ANSWER) and isinstance(commit_ts, int) and commit_ts > 0


def test_a_forked_child_cannot_use_its_parents_connections(db: vt.Database) -> None:
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            with db.transaction() as tx:
                tx.insert("t", {"id": 1, "g": "a", "x": 1})
        except vt.InterfaceError:
            refused = 7
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert db.sql("SELECT id FROM t") == []


def test_a_client_that_waits_for_a_worker_keeps_nobody_waiting(base: vt.Database, address: str) -> None:
    held = threading.Event()
    with vt.connect(address) as slow, vt.connect(address) as quick:
        base._node.changing.acquire()
        thread = threading.Thread(target=lambda: (slow.create_table("u", {"id": int}, key="id"), held.set()))
        thread.start()
        try:
            for number in range(20):
                with quick.transaction() as tx:
                    tx.insert("t", row(number))
            assert not held.is_set()
        finally:
            base._node.changing.release()
        thread.join()
        assert quick.tables() == ["t", "u"]


def test_too_much_at_once_is_busy(base: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "JOBS_MAX", 0)
    with served(base, ANYWHERE) as address, vt.connect(address) as db, pytest.raises(vt.Busy) as raised:
        db.status()
    assert raised.value.retryable


# --- calls


def test_arguments_are_the_callers_mistake(db: RemoteDatabase) -> None:
    with pytest.raises(vt.InterfaceError, match="wrong arguments"):
        db._remote.run(call("drop_table", (1, 2, 3), kind=ONCE))
    with pytest.raises(vt.InterfaceError, match="wrong arguments"):
        db._remote.run(call("tables", (), {"no": 1}, READ))


def test_verify_tells_how_far_it_is(base: vt.Database, db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PROGRESS_S", 0.0)
    with base.transaction() as tx:
        tx.insert("t", [row(number, str(number % 50)) for number in range(3_000)])
    told: list[tuple[int, int]] = []
    assert db.view("sums").verify(lambda done, expected: told.append((done, expected))).ok
    assert told and all(done <= expected for done, expected in told)


def test_tasks_share_a_connection(address: str, base: vt.Database) -> None:
    async def main() -> None:
        async with await vt.aio.connect(address) as db:

            async def write(number: int) -> None:
                async with db.transaction() as tx:
                    await tx.insert("t", row(number))

            await asyncio.gather(*(write(number) for number in range(500)))
            assert (await db.view("sums").get("a"))["n"] == 500  # type: ignore[index]
            async with db.snapshot(latest=True) as snapshot:
                assert len(await snapshot.scan("t")) == 500

    asyncio.run(main())
    status = base.status()
    assert status.commits == 500
    assert status.flushes < 250


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_command(tmp_path: Path, ending: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "viewtide.cli", "serve", str(tmp_path / "db"), "--listen", ANYWHERE, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            with vt.connect(said["address"]) as db:
                db.sql("CREATE TABLE t (id int PRIMARY KEY)")
                db.sql("INSERT INTO t VALUES (1)")
            process.send_signal(ending)
            assert process.wait(30) == code
        finally:
            process.kill()
    with vt.connect(tmp_path / "db") as db:
        assert db.sql("SELECT id FROM t") == [{"id": 1}]


def test_the_command_makes_no_database_where_it_cannot_listen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "viewtide.cli", "serve", str(tmp_path / "db"), "--listen", address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    taken_by = "another process has the port: choose another --listen; port 0 is any that is free"
    assert f"cannot listen on {address}: Address already in use ({taken_by})" in done.stderr
    assert not (tmp_path / "db").exists()


def test_the_command_does_not_start_without_its_allow_list(tmp_path: Path) -> None:
    new_keys("node", "ltm").save(tmp_path / "keys" / "node.key")
    listed = tmp_path / "keys" / "alowed"
    own = ["--keys", str(tmp_path / "keys" / "node.key"), "--allowed", str(listed)]
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "db"), "--listen", ANYWHERE, *own])
    assert done.exit_code == 1
    assert f"the allow-list {listed} cannot be read: No such file or directory (check its name; " in done.stderr
    assert not (tmp_path / "db").exists()


def test_the_command_leaves_the_socket_of_a_running_node_alone(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    command = [sys.executable, "-m", "viewtide.cli", "serve", str(tmp_path / "db"), "--listen", address]
    with vt.connect(tmp_path / "db") as base, served(base, address):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "is open in process" in done.stderr
        with vt.connect(address) as db:
            assert db.tables() == []


# --- commits whose answers are missed


def test_numbers_of_a_client_are_forgotten_in_any_order() -> None:
    """Commits of several connections are not noted in the order of their numbers: none is taken for one that was
    never done."""
    decided = server_sessions.Decided()
    for number in (300, 299, *range(301, 301 + server_sessions.REMEMBERED_MAX)):
        decided.note((5, number), number)
    with pytest.raises(vt.CommitUnknown):
        decided.find((5, 300))
    assert decided.find((5, 302)) == 302


def test_a_transaction_that_is_long_under_way_is_not_forgotten(db: RemoteDatabase) -> None:
    """Its number is made when its rows are at the node, however much others of this client commit meanwhile."""
    tx = db.transaction()
    assert tx.get("t", 1) is None
    tx.insert("t", row(1))
    assert isinstance(tx, RemoteTransaction)
    steps = tx._calls.commit()
    shipped = db._remote.links._exchange(next(steps))
    for number in range(2, server_sessions.REMEMBERED_MAX + 10):
        with db.transaction() as other:
            other.insert("t", row(number))
    commit = steps.send(shipped)
    assert isinstance(db._remote.links._exchange(commit), int)
    assert ids(db)[0] == 1


@pytest.mark.parametrize("readable", [True, False])
def test_a_commit_sent_again_is_answered_however_busy_the_node_is(
    base: vt.Database, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    monkeypatch.setattr(server, "JOBS_MAX", 0)
    if not readable:
        monkeypatch.setattr(server, "Earlier", lambda ltm, begun_ms: 1 / 0)
    with served(base, ANYWHERE) as address, vt.connect(address) as db:
        assert isinstance(db, RemoteDatabase)
        for number in (1, 2):
            again = Ask("commit", ((7, number), True, ()))
            if readable:
                assert isinstance(db._remote.links._exchange(again), int)
            else:
                with pytest.raises(vt.CommitUnknown, match="log cannot be read"):
                    db._remote.links._exchange(again)


def test_a_commit_that_was_sent_before_is_not_refused_by_a_busy_node(
    lossy: type[Lossy], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may have happened: `db.run` would do it twice."""
    refusals: list[str] = []
    answered = Lossy.exchange

    def exchange(link: Lossy, ask: Ask, arguments: tuple[object, ...]) -> object:
        if ask.operation == "commit" and arguments is not ask.arguments and len(refusals) < 2:
            refusals.append(ask.operation)
            raise vt.Busy("busy") if len(refusals) == 1 else vt.Unavailable("nobody")
        return answered(link, ask, arguments)

    monkeypatch.setattr(lossy, "exchange", exchange)
    with vt.connect(address) as db:
        db.run(lambda tx: tx.insert("t", row(1)))
        assert ids(db) == [1]
    assert len(refusals) == 2


def test_a_connection_that_missed_an_answer_is_lost(base: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue was full. A node that went on to answer signs of life would keep the client waiting for ever."""
    monkeypatch.setattr(remote_links, "LOST_S", 1.0)
    missed: list[bytes] = []
    reply = Hub.reply

    def full(hub: Hub, route: object, payload: bytes) -> bool:
        if b"absent" in payload and not missed:
            missed.append(payload)
            return False
        return reply(hub, route, payload)

    monkeypatch.setattr(Hub, "reply", full)
    with (
        served(base, ANYWHERE) as address,
        vt.connect(address) as db,
        pytest.raises(vt.ProgrammingError, match="absent"),
    ):
        db.view("absent")
    assert missed


@pytest.mark.parametrize("in_flight", ["the request", "the answer"])
def test_what_was_lost_with_a_connection_is_sent_again(base: vt.Database, address: str, in_flight: str) -> None:
    """ZeroMQ connects again by itself, and the node gives signs of life: they say nothing of what was under way."""
    with TcpProxy(address.removeprefix("tcp://")) as proxy, vt.connect(f"tcp://{proxy.address}") as client:
        assert client.tables() == base.tables()
        holding = proxy.holding_requests() if in_flight == "the request" else proxy.holding_answers()
        with ThreadPoolExecutor(1) as pool:
            with holding:
                asked = pool.submit(client.tables)
                proxy.wait_for_held()
                proxy.cut()
            assert asked.result(remote_links.LOST_S + 10) == base.tables()


def test_what_may_not_be_done_twice_finds_its_way_past_broken_connections(base: vt.Database, address: str) -> None:
    """The node was restarted, say: nothing was asked through those that were idle meanwhile."""
    with TcpProxy(address.removeprefix("tcp://")) as proxy, vt.connect(f"tcp://{proxy.address}") as client:
        assert isinstance(client, RemoteDatabase)
        links = client._remote.links
        idle = [links._new_link() for _ in range(3)]
        for link in idle:
            link.meet(remote_links.CONNECT_S_MAX)
        links._idle += idle
        proxy.cut()
        began = time.process_time()
        client.create_table("u", {"id": int}, key="id")
        assert client.tables() == base.tables() == ["t", "u"]
        assert links._count == len(links._idle) == 1
        assert time.process_time() - began < remote_links.CONNECT_S_MAX / 2, "nobody asks a broken one again and again"


def test_an_operation_that_cannot_be_sent_leaves_the_transaction_as_it_was(db: RemoteDatabase) -> None:
    for first in (True, False):
        with db.transaction() as tx:
            if not first:
                tx.insert("t", row(1))
                assert tx.get("t", 1) is not None
            with pytest.raises(vt.Error, match="at most"):
                tx.sql("SELECT ?", ["x" * REQUEST_BYTES_MAX])
            with pytest.raises(vt.InterfaceError, match="cannot be sent"):
                tx.find("t", g="\ud800")
            assert tx.get("t", 2) is None
    assert ids(db) == [1]


def test_a_session_that_is_ended_while_it_is_busy_ends_after_that(base: vt.Database) -> None:
    ended: list[object] = []
    sessions = server_sessions.Sessions(ended.append)
    session = sessions.begin((1, 1), "a", lambda: "held")
    assert session.hold() == "held"
    session.busy = True
    sessions.end((1, 1), "a")
    assert len(sessions) == 1
    session.busy = False
    session.waiting.popleft()()
    assert len(sessions) == 0 and ended == ["held"]


class Colour(str, enum.Enum):  # noqa: UP042  # as many write it: its str() is not its value
    RED = "red"


@pytest.mark.parametrize(
    ("given", "arrives"), [(Colour.RED, "red"), (Decimal("sNaN"), Decimal("NaN")), (Decimal("1.50"), Decimal("1.50"))]
)
def test_values_that_are_nearly_plain(given: object, arrives: object) -> None:
    assert repr(from_wire(to_wire(given))) == repr(arrives)
