"""Both kinds of hub: real sockets in this process. Batches, limits, addresses, peers that come and go."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from viewtide.changetables.errors import InterfaceError, LocalProtocolError, OperationalError, RemoteProtocolError
from viewtide.ltm import batches, plain_hub, transport, zmq_hub
from viewtide.ltm.addresses import parse_address
from viewtide.ltm.keys import LOCAL, Identity
from viewtide.ltm.plain_hub import PlainHub
from viewtide.ltm.transport import Hub, Received
from viewtide.ltm.zmq_hub import ZmqHub

WAIT_S = 10.0


KINDS: dict[str, tuple[type[Hub], ModuleType]] = {"plain": (PlainHub, plain_hub), "zmq": (ZmqHub, zmq_hub)}


class Hubs:
    """Makes hubs of one kind, and closes them at the end of the test."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.make, self.module = KINDS[kind]
        self.made: list[Hub] = []
        self._kept: dict[Hub, list[Received]] = {}

    def __call__(self, name: str, listen: str | None = None, *, insecure: bool = False) -> Hub:
        hub = self.make(name, listen=listen, insecure=insecure)
        self.made.append(hub)
        return hub

    def connected(self, name: str = "client") -> tuple[Hub, Hub]:
        """Two that have talked to each other: the one who listens, and the other."""
        server, client = self("server", "tcp://127.0.0.1:0"), self(name)
        client.know("server", server.address)
        client.send("server", b"hello")
        client.flush()
        assert payloads_of(self.wait_for(server)) == [b"hello"]
        return server, client

    def wait_for(self, hub: Hub, count: int = 1) -> list[Received]:
        """Poll until so many batches are there. The others do what they have to, as each would in a loop of its own."""
        received = self._kept.pop(hub, [])
        deadline = time.monotonic() + WAIT_S
        while len(received) < count:
            assert time.monotonic() < deadline, f"{len(received)} of {count} batches came"
            self.poll_others(hub)
            received += hub.poll(5)
        return received

    def poll_others(self, hub: Hub) -> None:
        for other in self.made:
            if other is not hub and not other._closed:
                self._kept.setdefault(other, []).extend(other.poll(0))


@pytest.fixture(params=KINDS)
def hubs(request: pytest.FixtureRequest) -> Iterator[Hubs]:
    made = Hubs(request.param)
    yield made
    for hub in made.made:
        hub.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[Hub]:
    return KINDS[request.param][0]


def payloads_of(received: list[Received]) -> list[bytes]:
    return [payload for batch in received for payload in batch.payloads]


ADDRESSES = ["tcp://127.0.0.1:0", "tcp://localhost:*", "tcp://[::1]:0", "ipc"]


@pytest.mark.parametrize("listen", ADDRESSES)
def test_a_batch_goes_there_and_an_answer_comes_back(hubs: Hubs, listen: str, tmp_path: Path) -> None:
    if listen == "ipc":
        listen = f"ipc://{tmp_path}/hub.sock"
    server, client = hubs("server", listen), hubs("client-7")
    client.know("server", server.address)
    for payload in (b"one", b"", b"three"):
        assert client.send("server", payload)
    client.flush()
    (batch,) = hubs.wait_for(server)
    assert batch.who == Identity("client-7", LOCAL)
    assert batch.payloads == [b"one", b"", b"three"]
    assert server.reply(batch.route, b"yes") and server.reply(batch.route, b"and no")
    server.flush()
    (answer,) = hubs.wait_for(client)
    assert answer.who == Identity("server", LOCAL)
    assert answer.payloads == [b"yes", b"and no"]
    # A route to a peer that one has connected to works as well.
    assert client.reply(answer.route, b"thanks")
    client.flush()
    assert payloads_of(hubs.wait_for(server)) == [b"thanks"]
    assert (client.counts.sent_batches, client.counts.sent_payloads) == (2, 4)
    assert (server.counts.received_batches, server.counts.received_payloads) == (2, 4)


def test_nothing_leaves_before_the_flush(hubs: Hubs) -> None:
    server, client = hubs.connected()
    client.send("server", b"second")
    assert server.poll(50) == []
    client.flush()
    assert payloads_of(hubs.wait_for(server)) == [b"second"]


def test_many_clients_are_told_apart_and_each_gets_its_own_answers(hubs: Hubs) -> None:
    server = hubs("server", "tcp://127.0.0.1:0")
    clients = [hubs(f"client-{number}") for number in range(8)]
    for client in clients:
        client.know("server", server.address)
        client.send("server", client.name.encode())
        client.flush()
    for batch in hubs.wait_for(server, len(clients)):
        assert batch.payloads == [batch.who.name.encode()]
        server.reply(batch.route, b"for " + batch.payloads[0])
    server.flush()
    for client in clients:
        assert payloads_of(hubs.wait_for(client)) == [b"for " + client.name.encode()]


def test_batches_of_one_peer_in_one_poll_have_one_route_so_that_answers_leave_together(hubs: Hubs) -> None:
    server, client = hubs.connected()
    for payload in (b"a", b"b"):
        client.send("server", payload)
        client.flush()
    first, second = hubs.wait_for(server, 2)
    assert server.reply(first.route, b"A") and server.reply(second.route, b"B")
    server.flush()
    assert [batch.payloads for batch in hubs.wait_for(client)] == [[b"A", b"B"]]


def test_whom_nobody_knows_nothing_is_sent(hubs: Hubs) -> None:
    hub = hubs("hub")
    assert not hub.send("nobody", b"x")
    hub.flush()
    assert not hub.knows("nobody")


def test_a_peer_may_come_later_and_come_back(hubs: Hubs, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/late.sock"
    client = hubs("client")
    client.know("server", address)
    assert client.send("server", b"early")
    client.flush()
    server = hubs("server", address)
    assert payloads_of(hubs.wait_for(server)) == [b"early"]
    server.close()
    again = hubs("server", address)
    client.send("server", b"after")
    client.flush()
    assert payloads_of(hubs.wait_for(again)) == [b"after"]


def test_a_peer_with_another_address_is_connected_anew_and_gets_what_waits_for_it(hubs: Hubs) -> None:
    old, new, client = hubs("old", "tcp://127.0.0.1:0"), hubs("new", "tcp://127.0.0.1:0"), hubs("client")
    client.know("server", old.address)
    client.send("server", b"first")
    client.flush()
    hubs.wait_for(old)
    assert client.send("server", b"second")
    client.know("server", new.address)
    client.know("server", new.address)
    assert client.send("server", b"third")
    client.flush()
    assert payloads_of(hubs.wait_for(new)) == [b"second", b"third"]
    client.forget("server")
    client.forget("server")
    assert not client.send("server", b"x") and not client.knows("server")


def test_an_answer_to_somebody_who_has_gone_is_dropped_and_counted(hubs: Hubs) -> None:
    server, client = hubs("server", "tcp://127.0.0.1:0"), hubs("client")
    client.know("server", server.address)
    client.send("server", b"x")
    client.flush()
    (batch,) = hubs.wait_for(server)
    client.close()
    deadline = time.monotonic() + WAIT_S
    while server.reply(batch.route, b"answer"):
        assert time.monotonic() < deadline, "it is never noticed that the client has gone"
        server.flush()
        server.poll(5)
    assert not server.reply(batch.route, b"another")
    assert server.counts.dropped >= 2


def test_a_full_queue_says_so_and_nothing_that_was_taken_is_lost(hubs: Hubs) -> None:
    """The server does not read: what a client may queue is bounded, and all of it arrives, in order, when it does."""
    server, client = hubs("server", "tcp://127.0.0.1:0"), hubs("client")
    client.know("server", server.address)
    size, taken = 256 * 2**10, 0
    while client.send("server", taken.to_bytes(4, "big") + bytes(size)):
        client.flush()
        taken += 1
        assert taken * size < 2**30, "the queue never gets full"
    assert client.counts.full == 1
    arrived = b"".join(payload[:4] for payload in _read_all(server, client, taken))
    assert arrived == b"".join(number.to_bytes(4, "big") for number in range(taken))
    assert client.send("server", b"room again")


def _read_all(server: Hub, client: Hub, count: int) -> list[bytes]:
    read: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(read) < count and time.monotonic() < deadline:
        # What waits in the client leaves from its `poll`, without another flush.
        client.poll(0)
        read += payloads_of(server.poll(5))
    return read


def test_a_batch_is_divided_when_it_gets_too_large(hubs: Hubs) -> None:
    server, client = hubs("server", "tcp://127.0.0.1:0"), hubs("client")
    client.know("server", server.address)
    count = batches.PAYLOADS_PER_BATCH_MAX + 1
    assert all(client.send("server", b"x") for _ in range(count))
    client.flush()
    sizes = [len(batch.payloads) for batch in hubs.wait_for(server, 2)]
    assert sizes == [batches.PAYLOADS_PER_BATCH_MAX, 1]
    half = bytes(batches.BATCH_BYTES_MAX // 2)
    assert all(client.send("server", half) for _ in range(3))
    client.flush()
    assert [len(batch.payloads) for batch in hubs.wait_for(server, 2)] == [2, 1]


def test_the_largest_message_arrives_and_a_larger_one_is_refused(hubs: Hubs) -> None:
    server, client = hubs("server", "tcp://127.0.0.1:0"), hubs("client")
    client.know("server", server.address)
    assert client.send("server", bytes(batches.MESSAGE_BYTES_MAX))
    client.flush()
    assert [len(payload) for payload in payloads_of(hubs.wait_for(server))] == [batches.MESSAGE_BYTES_MAX]
    with pytest.raises(LocalProtocolError, match="at most"):
        client.send("server", bytes(batches.MESSAGE_BYTES_MAX + 1))


def test_one_poll_gives_a_bounded_part_and_the_next_one_the_rest(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = hubs.connected()
    monkeypatch.setattr(hubs.module, "RECEIVED_BATCHES_MAX", 3)
    for number in range(10):
        client.send("server", bytes([number]))
        client.flush()
    seen: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(seen) < 10 and time.monotonic() < deadline:
        received = server.poll(100)
        assert len(received) <= 3
        seen += payloads_of(received)
    assert seen == [bytes([number]) for number in range(10)]


def test_what_is_dropped_counts_for_the_bounded_part_too(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise somebody who sends large nonsense keeps everybody else from being answered."""
    monkeypatch.setattr(hubs.module, "RECEIVED_BYTES_MAX", 1_000)
    server = hubs("server", "tcp://127.0.0.1:0")
    with zmq.Context() as context, context.socket(zmq.DEALER) as mallory:
        mallory.linger = 0
        mallory.connect(server.address)
        for frames in ([bytes(600)], [bytes(1)] * 3) * 3:
            mallory.send_multipart(frames)
        counted = []
        deadline = time.monotonic() + WAIT_S
        while server.counts.malformed < 6 and time.monotonic() < deadline:
            before = server.counts.malformed
            assert server.poll(50) == []
            counted.append(server.counts.malformed - before)
    assert server.counts.malformed == 6 and max(counted) <= 2


@pytest.mark.parametrize("hubs", ["zmq"], indirect=True)
def test_routes_that_are_remembered_are_bounded_and_old_ones_still_work(
    hubs: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs.module, "ROUTES_MAX", 2)
    server = hubs("server", "tcp://127.0.0.1:0")
    routes = {}
    clients = [hubs(f"client-{number}") for number in range(5)]
    for client in clients:
        client.know("server", server.address)
        client.send("server", b"x")
        client.flush()
        (batch,) = hubs.wait_for(server)
        routes[client.name] = batch.route
    assert isinstance(server, ZmqHub) and len(server._routes) == 2
    for client in clients:
        assert server.reply(routes[client.name], client.name.encode())
    server.flush()
    for client in clients:
        assert payloads_of(hubs.wait_for(client)) == [client.name.encode()]


def test_wake_ends_a_poll_from_another_thread(hubs: Hubs) -> None:
    hub = hubs("hub")
    woken: list[float] = []

    def poll() -> None:
        hub.poll(int(WAIT_S * 1_000))
        woken.append(time.monotonic())

    began = time.monotonic()
    thread = threading.Thread(target=poll)
    thread.start()
    hub.wake()
    thread.join(WAIT_S)
    assert woken and woken[0] - began < WAIT_S / 2
    # It is over with that one poll.
    assert hub.poll(0) == []
    began = time.monotonic()
    hub.poll(30)
    assert time.monotonic() - began > 0.02


def test_who_is_woken_while_it_looks_can_be_woken_again(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, read = hubs("hub"), os.eventfd_read

    def woken_meanwhile(fd: int) -> int:
        hub.wake()
        return read(fd)

    monkeypatch.setattr(transport.os, "eventfd_read", woken_meanwhile)
    hub.wake()
    hub.poll(10_000)
    monkeypatch.undo()
    began = time.monotonic()
    hub.wake()
    hub.poll(10_000)
    assert time.monotonic() - began < 5


def test_a_closed_hub_says_so_and_wake_does_nothing(hubs: Hubs) -> None:
    hub = hubs("hub", "tcp://127.0.0.1:0")
    hub.close()
    hub.close()
    hub.wake()
    with pytest.raises(InterfaceError, match="closed"):
        hub.poll(0)
    with pytest.raises(InterfaceError, match="closed"):
        hub.know("x", "tcp://127.0.0.1:1")


def test_what_is_no_public_key_is_named(hubs: Hubs) -> None:
    hub = Hub("hub", keys=transport.new_keys("ann", "client"))
    hubs.made.append(hub)
    for text in ("x", "ab", "zz" * 32):
        with pytest.raises(InterfaceError, match="is no public key"):
            hub.know("node", "tcp://127.0.0.1:1", text)


def test_hubs_that_nobody_closed_end_when_they_are_collected(kind: type[Hub]) -> None:
    """In a cycle, as a client's are: their context must not wait for sockets that go with it."""

    def forget_some() -> None:
        server = kind("server", listen="tcp://127.0.0.1:0")
        client = kind("client")
        client.know("server", server.address)
        client.send("server", b"hello")
        client.flush()
        for hub in (server, client):
            hub.itself = hub  # type: ignore[attr-defined]

    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        forget_some()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("listen", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:7400"])
def test_without_keys_a_hub_stays_on_this_machine(kind: type[Hub], listen: str) -> None:
    with pytest.raises(InterfaceError, match="open to everybody") as caught:
        kind("hub", listen=listen)
    assert "viewtide keys" in caught.value.hint
    hub = kind("hub")
    with pytest.raises(InterfaceError, match="is on another machine"):
        hub.know("peer", "tcp://192.0.2.1:7400")
    hub.close()


def test_who_asks_for_it_explicitly_may_talk_in_plaintext(hubs: Hubs) -> None:
    server = hubs("server", "tcp://*:0", insecure=True)
    port = server.address.rpartition(":")[2]
    for host in ("127.0.0.1", "[::1]"):
        client = hubs("client")
        client.know("server", f"tcp://{host}:{port}")
        client.send("server", b"x")
        client.flush()
        assert payloads_of(hubs.wait_for(server)) == [b"x"]


def test_a_port_that_is_taken_is_named(hubs: Hubs) -> None:
    server = hubs("server", "tcp://127.0.0.1:0")
    with pytest.raises(OperationalError, match=r"cannot listen on tcp://127.*: Address already in use") as caught:
        hubs("other", server.address)
    assert caught.value.hint == "another process has the port: choose another `listen`; port 0 is any that is free"


def test_an_address_that_cannot_be_had_is_told_by_its_kind(hubs: Hubs, tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"cannot listen on ipc://.*: No such file or directory") as caught:
        hubs("hub", f"ipc://{tmp_path}/missing/s")
    assert caught.value.hint == "its directory is missing: make it, or choose another `listen`"
    (tmp_path / "d").mkdir()
    with pytest.raises(OperationalError, match="cannot listen on ipc://") as caught:
        hubs("hub", f"ipc://{tmp_path}/d")
    assert caught.value.hint.startswith("something else has this path")
    with pytest.raises(OperationalError, match="cannot listen on tcp://") as caught:
        hubs("hub", "tcp://192.0.2.1:7400", insecure=True)
    assert "an address of this machine" in caught.value.hint


def test_a_socket_file_is_its_owners_only(hubs: Hubs, tmp_path: Path) -> None:
    path = tmp_path / "hub.sock"
    hub = hubs("hub", f"ipc://{path}")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    hub.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7400",
        "localhost:7400",
        "tcp://:7400",
        "tcp://host",
        "tcp://host:port",
        "tcp://host:70000",
        "tcp://::1:7400",
        "udp://host:7400",
        "inproc://x",
        "ipc://",
        "ipc://@abstract",
        "ipc://" + "x" * 108,
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InterfaceError):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "here", "ipv6"),
    [
        ("tcp://127.0.0.1:1", True, False),
        ("tcp://127.9.9.9:1", True, False),
        ("tcp://localhost:1", True, False),
        ("tcp://[::1]:1", True, True),
        ("tcp://*:1", False, True),
        ("tcp://10.0.0.1:1", False, False),
        ("tcp://[2001:db8::1]:1", False, True),
        ("ipc:///run/x.sock", True, False),
    ],
)
def test_which_addresses_stay_on_this_machine(text: str, here: bool, ipv6: bool) -> None:
    address = parse_address(text)
    assert (address.stays_here, address.wants_ipv6) == (here, ipv6)


# --- batches


@given(st.text("ltm-1.é山", min_size=1, max_size=20), st.lists(st.binary(max_size=50), min_size=1))
def test_a_batch_is_read_as_it_was_packed(name: str, payloads: list[bytes]) -> None:
    frame = batches.pack_batch(batches.header_of(name), payloads)
    found, start = batches.name_in(frame)
    assert (found, batches.payloads_in(frame, start)) == (name, payloads)


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda rest: b"\x01\x03abc" + rest))
def test_any_other_bytes_are_refused_by_a_protocol_error(frame: bytes) -> None:
    try:
        name, start = batches.name_in(frame)
        payloads = batches.payloads_in(frame, start)
    except RemoteProtocolError:
        return
    assert batches.pack_batch(batches.header_of(name), payloads) == frame


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_a_batch_that_is_cut_or_too_long_is_refused(payloads: list[bytes], data: st.DataObject) -> None:
    frame = batches.pack_batch(batches.header_of("x"), payloads)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for wrong in (frame[:cut], frame + b"\0"):
        with pytest.raises(RemoteProtocolError):
            _, start = batches.name_in(wrong)
            batches.payloads_in(wrong, start)


def test_names_are_bounded(kind: type[Hub]) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(LocalProtocolError):
            kind(name)


#: Hears nothing for a while, as a process that is busy or was paused, and then all of it.
DEAF = """
import sys, time
from viewtide.ltm.zmq_hub import ZmqHub
hub = ZmqHub("deaf", listen="tcp://127.0.0.1:0")
print(hub.address, flush=True)
sys.stdin.readline()
time.sleep(0.5)
print(len(hub.poll(0)), flush=True)
hub.close()
"""


def test_a_peer_that_leaves_while_its_queue_is_full_ends_nobody() -> None:
    """It did while ZeroMQ sent heartbeats, in either direction."""
    command = [sys.executable, "-c", DEAF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        address = process.stdout.readline().strip()
        hub = ZmqHub("flood")
        hub.know("deaf", address)
        while hub.send("deaf", b"x" * 500_000):
            hub.flush()
        time.sleep(0.2)
        hub.close()
        process.stdin.write("\n")
        process.stdin.flush()
        assert int(process.stdout.readline() or "0") > 0, "it ended without a word"
    assert process.returncode == 0


@pytest.mark.parametrize("main_kind", KINDS)
def test_a_hub_wakes_up_for_another_one_of_its_thread(hubs: Hubs, main_kind: str) -> None:
    main = KINDS[main_kind][0]("main", listen="tcp://127.0.0.1:0")
    hubs.made.append(main)
    guest, client = hubs("guest", "tcp://127.0.0.1:0"), hubs("client")
    main.also(guest)
    client.know("guest", guest.address)
    received: list[Received] = []
    for number in range(3):
        client.send("guest", b"%d" % number)
        client.flush()
        deadline = time.monotonic() + WAIT_S
        while len(received) <= number:
            assert time.monotonic() < deadline, "nobody woke it up"
            client.poll(0)
            assert main.poll(20) == []
            received += guest.poll(0)
    assert payloads_of(received) == [b"0", b"1", b"2"]

    began = time.monotonic()
    threading.Timer(0.05, guest.wake).start()
    main.poll(int(WAIT_S * 1000))
    assert time.monotonic() - began < WAIT_S / 2, "another thread woke the guest up"
    guest.poll(0)
