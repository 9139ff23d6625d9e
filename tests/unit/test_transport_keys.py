"""Keys and the allow-list: who may connect, as what, and who is refused."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from viewtide.changetables.errors import InterfaceError, OperationalError
from viewtide.ltm import keys as keys_module
from viewtide.ltm.keys import ADMIN, CLIENT, LTM, SERVER, Allowed, AllowList, Identity, Keys
from viewtide.ltm.transport import Hub, Received, new_keys

WAIT_S = 10.0
COMES_MAX = 3
ANYWHERE = "tcp://127.0.0.1:0"


class Guarded:
    """A server with keys, its allow-list, and clients, all closed at the end."""

    def __init__(self, directory: Path) -> None:
        self.allowed = AllowList(directory / "allowed")
        self.keys = self.allow("server", LTM)
        self.hubs: list[Hub] = []
        self.server = self._kept(Hub("server", listen=ANYWHERE, keys=self.keys, allowed=self.allowed))

    def allow(self, name: str, role: str) -> Keys:
        keys = new_keys(name, role)
        self.allowed.add(Allowed(keys.public, name, role))
        return keys

    def client(self, name: str, keys: Keys | None, server_key: str | None = None) -> Hub:
        hub = self._kept(Hub(name, keys=keys, allowed=self.allowed))
        public = self.keys.public if server_key is None else server_key
        hub.know("server", self.server.address, public if keys is not None else "")
        return hub

    def _kept(self, hub: Hub) -> Hub:
        self.hubs.append(hub)
        return hub

    def send(self, client: Hub, payload: bytes) -> None:
        assert client.send("server", payload)
        client.flush()

    def receive(self) -> Received:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            received = self.server.poll(20)
            if received:
                assert len(received) == 1
                return received[0]
        raise AssertionError("nothing came")

    def poll_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            assert self.server.poll(20) == [], "somebody was let in"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    for hub in made.hubs:
        hub.close()


def test_a_peer_is_who_its_key_says_whatever_it_says_itself(guarded: Guarded) -> None:
    client = guarded.client("ltm-1", guarded.allow("shop", CLIENT))
    guarded.send(client, b"hello")
    batch = guarded.receive()
    assert batch.who == Identity("shop", CLIENT)
    assert guarded.server.reply(batch.route, b"welcome")
    guarded.server.flush()
    (answer,) = client.poll(int(WAIT_S * 1_000))
    assert (answer.who, answer.payloads) == (Identity("server", LTM), [b"welcome"])


def test_two_processes_may_share_a_key_and_are_answered_apart(guarded: Guarded) -> None:
    shop = guarded.allow("shop", CLIENT)
    first, second = guarded.client("a", shop), guarded.client("b", shop)
    guarded.send(first, b"1")
    one = guarded.receive()
    guarded.send(second, b"2")
    two = guarded.receive()
    assert one.who == two.who and one.route is not two.route
    guarded.server.reply(two.route, b"for two")
    guarded.server.flush()
    assert [batch.payloads for batch in second.poll(int(WAIT_S * 1_000))] == [[b"for two"]]
    assert first.poll(50) == []


def test_a_server_that_is_on_no_list_has_the_role_of_a_server(guarded: Guarded, tmp_path: Path) -> None:
    keys = guarded.allow("shop", CLIENT)
    client = Hub("shop", keys=keys)
    guarded.hubs.append(client)
    client.know("server", guarded.server.address, guarded.keys.public)
    guarded.send(client, b"hello")
    guarded.server.reply(guarded.receive().route, b"welcome")
    guarded.server.flush()
    assert [batch.who for batch in client.poll(int(WAIT_S * 1_000))] == [Identity("server", SERVER)]


def test_a_key_that_is_not_on_the_list_is_refused_logged_and_counted(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = new_keys("stranger", ADMIN)
    with caplog.at_level(logging.WARNING, "viewtide.transport"):
        client = guarded.client("stranger", stranger)
        guarded.send(client, b"let me in")
        guarded.poll_until(lambda: guarded.server.counts.refused > 0)
    assert "127.0.0.1" in caplog.text and stranger.public in caplog.text
    assert guarded.server.counts.received_batches == 0


def test_refused_peers_are_logged_now_and_then_only(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "viewtide.transport"):
        for _ in range(50):
            guarded.server.refuse("one of many")
    assert len(caplog.records) == 1
    assert guarded.server.counts.refused == 50
    guarded.server._log_at = 0.0
    with caplog.at_level(logging.WARNING, "viewtide.transport"):
        guarded.server.refuse("a later one")
    assert "and 49 more" in caplog.records[1].getMessage()


def test_without_a_key_nobody_is_let_in(guarded: Guarded) -> None:
    client = guarded.client("plain", None)
    guarded.send(client, b"let me in")
    guarded.poll_until(lambda: guarded.server.counts.refused > 0)
    assert guarded.server.counts.received_batches == 0


def test_a_client_does_not_talk_to_a_server_with_another_key(guarded: Guarded) -> None:
    """Somebody who has taken the server's address does not learn what the client says."""
    keys = guarded.allow("shop", CLIENT)
    client = guarded.client("shop", keys, server_key=new_keys("other", LTM).public)
    guarded.send(client, b"secret")
    guarded.poll_until(lambda: guarded.server.counts.refused > 0)
    assert guarded.server.counts.received_batches == 0


def test_a_key_that_is_added_counts_at_once_and_a_revoked_one_is_refused_on_open_connections(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes the file: nobody is restarted."""
    monkeypatch.setattr(keys_module, "LOOK_AGAIN_MS", 1)
    elsewhere = AllowList(guarded.allowed.path)
    late = new_keys("late", CLIENT)
    elsewhere.add(Allowed(late.public, "late", CLIENT))
    client = guarded.client("late", late)
    guarded.send(client, b"first")
    assert guarded.receive().who == Identity("late", CLIENT)
    elsewhere.revoke(late.public)
    guarded.poll_until(lambda: guarded.allowed.find(late.public) is None)
    before = guarded.server.counts.refused
    guarded.send(client, b"second")
    guarded.poll_until(lambda: guarded.server.counts.refused > before)
    assert guarded.server.counts.received_batches == 1


def test_a_role_that_changes_counts_on_open_connections(guarded: Guarded) -> None:
    keys = guarded.allow("shop", ADMIN)
    client = guarded.client("shop", keys)
    guarded.send(client, b"x")
    assert guarded.receive().who.role == ADMIN
    guarded.allowed.add(Allowed(keys.public, "shop", CLIENT))
    guarded.send(client, b"y")
    assert guarded.receive().who.role == CLIENT


def test_nobody_takes_over_the_routing_id_of_another_key(guarded: Guarded) -> None:
    """A peer chooses the routing id that somebody else had: it is still only who its own key says."""
    admin, shop = guarded.allow("boss", ADMIN), guarded.allow("shop", CLIENT)
    context = zmq.Context()
    for keys, role in ((admin, ADMIN), (shop, CLIENT)):
        assert _taken_for(guarded, context, keys) == Identity(keys.name, role)
        guarded.poll_until(_gone(guarded))
    context.term()


def _taken_for(guarded: Guarded, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> Identity:
    """Whom the server hears when somebody says that he is the boss. On a busy machine a handshake may be given up, and
    what he said is lost with it: he comes again."""
    for _ in range(COMES_MAX):
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.routing_id = b"the same"
            dealer.curve_publickey, dealer.curve_secretkey = bytes.fromhex(keys.public), bytes.fromhex(keys.secret)
            dealer.curve_serverkey = bytes.fromhex(guarded.keys.public)
            dealer.connect(guarded.server.address)
            dealer.send(b"\x01\x04boss\x01\0\0\0\x01\0\0\0x")
            with suppress(AssertionError):
                return guarded.receive().who
    raise AssertionError(f"{keys.name} is never heard")


def _gone(guarded: Guarded) -> Callable[[], bool]:
    """Whether ZeroMQ has noticed that the connection is closed."""
    route = next(iter(guarded.server._routes.values()))

    def gone() -> bool:
        guarded.server.reply(route, b"x")
        guarded.server.flush()
        return route.gone

    return gone


def test_keys_need_a_list_and_a_peers_key_needs_an_own_one(guarded: Guarded) -> None:
    with pytest.raises(InterfaceError, match="list of the keys"):
        Hub("x", listen=ANYWHERE, keys=guarded.keys)
    with pytest.raises(InterfaceError, match="key of one's own"):
        guarded.client("plain", None).know("other", guarded.server.address, guarded.keys.public)


# --- files


def test_a_key_file_is_read_as_it_was_written_and_is_its_owners_only(tmp_path: Path) -> None:
    keys = new_keys("ltm-1", LTM)
    path = tmp_path / "keys" / "ltm-1.key"
    keys.save(path)
    assert Keys.load(path) == keys
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keys.secret not in repr(keys) and keys.secret not in str(keys)
    with pytest.raises(InterfaceError, match="already"):
        keys.save(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys" / "a.key"
    new_keys("a", CLIENT).save(path)
    os.chmod(path, mode)
    with pytest.raises(OperationalError, match=f"mode is {mode:04o}") as caught:
        Keys.load(path)
    assert "rotate" in caught.value.hint


def test_a_directory_that_others_can_use_takes_no_key(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    with pytest.raises(OperationalError, match="mode is 0755"):
        new_keys("a", CLIENT).save(tmp_path / "a.key")
    assert not (tmp_path / "a.key").exists()


@pytest.mark.parametrize(
    "text",
    ["", "name a\n", "name a\nrole client\npublic 00\nsecret 00\n", "name a\nrole king\npublic {k}\nsecret {k}\n", "é"],
)
def test_a_damaged_key_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.key"
    path.write_text(text.replace("{k}", "0" * 64))
    os.chmod(path, 0o600)
    with pytest.raises((OperationalError, InterfaceError)):
        Keys.load(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"none\.key"):
        Keys.load(tmp_path / "none.key")


@pytest.mark.parametrize(
    ("name", "role"), [("", CLIENT), ("a b", CLIENT), ("-a", CLIENT), ("a" * 65, CLIENT), ("a", "x")]
)
def test_names_and_roles_are_checked(tmp_path: Path, name: str, role: str) -> None:
    with pytest.raises(InterfaceError):
        AllowList(tmp_path / "allowed").add(Allowed("0" * 64, name, role))


def test_a_server_does_not_start_without_its_allow_list_and_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_AGAIN_MS", 0)
    path = tmp_path / "allowed"
    with pytest.raises(OperationalError, match=r"allow-list .*allowed cannot be read: No such file") as caught:
        AllowList.for_server(path)
    assert "viewtide keys new" in caught.value.hint
    AllowList(path).add(Allowed("1" * 64, "a", CLIENT))
    allowed = AllowList.for_server(path)
    assert allowed.find("1" * 64) == Identity("a", CLIENT)
    text = path.read_text()
    path.unlink()
    assert allowed.look() and allowed.entries() == ()
    path.touch(mode=0o600)
    path.write_text(text)
    assert allowed.look() and allowed.find("1" * 64) == Identity("a", CLIENT)


def test_an_allow_list_that_gets_damaged_stays_as_it_was_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_AGAIN_MS", 0)
    allowed = AllowList(tmp_path / "allowed")
    allowed.add(Allowed("1" * 64, "a", CLIENT))
    for damage in ("nonsense\n", f"{'2' * 64} b king\n"):
        allowed.path.write_text(damage)
        assert not allowed.look() and allowed.look()
        assert allowed.find("1" * 64) == Identity("a", CLIENT)
        assert "line 1" in allowed.trouble
    allowed.path.write_text(f"# two\n\n{'2' * 64} b admin\n")
    allowed.look()
    assert not allowed.trouble and allowed.entries() == (Allowed("2" * 64, "b", ADMIN),)
    os.chmod(allowed.path, 0o666)
    assert not allowed.look() and "0666" in allowed.trouble
    with pytest.raises(OperationalError, match="0666"):
        AllowList(allowed.path)
    allowed.path.unlink()
    allowed.look()
    assert allowed.entries() == ()
