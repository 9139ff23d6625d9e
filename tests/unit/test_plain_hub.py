"""The hub without ZeroMQ: that ZeroMQ cannot tell the difference, and what raw sockets can do to it."""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from viewtide.changetables.errors import InterfaceError, OperationalError, RemoteProtocolError
from viewtide.ltm import plain_hub, zmtp
from viewtide.ltm.batches import BATCH_BYTES_MAX, FRAME_BYTES_MAX, header_of, name_in, pack_batch, payloads_in
from viewtide.ltm.keys import AllowList
from viewtide.ltm.plain_hub import QUEUE_BYTES_MAX, PlainHub
from viewtide.ltm.transport import Hub, Received, new_keys
from viewtide.ltm.zmq_hub import ZmqHub
from viewtide.ltm.zmtp import DEALER_READY, GREETING, LAST_PART, MESSAGE, PART, ROUTER_READY, Frames, frame_head

ANYWHERE = "tcp://127.0.0.1:0"
WAIT_S = 20.0
SIZES = [0, 1, 200, 247, 248, 70_000, 3_000_000]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def made(closing: ExitStack, name: str, listen: str | None = None, kind: type[Hub] = PlainHub) -> Hub:
    hub = kind(name, listen=listen)
    closing.callback(hub.close)
    return hub


def until(hub: Hub, condition: Callable[[list[Received]], object], *others: Hub) -> list[Received]:
    """Poll until it is so; others do what they have to, as each would in a loop of its own."""
    received: list[Received] = []
    give_up = time.monotonic() + WAIT_S
    while not condition(received):
        assert time.monotonic() < give_up, f"{len(received)} batches came, and it is not so"
        for other in others:
            assert other.poll(0) == []
        received += hub.poll(2)
    return received


def readable(*descriptors: int | None, wait_s: float = 0.0) -> bool:
    """Whether one of them has something to be read. Not `select.select`, which takes no number above 1,023."""
    poll = select.poll()
    for descriptor in descriptors:
        assert descriptor is not None
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def payloads(received: list[Received]) -> list[bytes]:
    return [payload for batch in received for payload in batch.payloads]


def framed(*messages: bytes, name: str = "raw") -> bytes:
    body = pack_batch(header_of(name), messages)
    return frame_head(len(body)) + body


class Raw:
    """A client that writes what it likes. The hub is polled meanwhile."""

    def __init__(self, hub: Hub, *, shakes: bool = True) -> None:
        host, _, port = hub.address.removeprefix("tcp://").rpartition(":")
        self.hub = hub
        self.received: list[Received] = []
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setblocking(False)
        if shakes:
            self.send(GREETING + DEALER_READY)
            assert self.read(len(GREETING) + len(ROUTER_READY)) == GREETING + ROUTER_READY

    def send(self, data: bytes) -> None:
        give_up = time.monotonic() + WAIT_S
        while data:
            assert time.monotonic() < give_up
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                self.received += self.hub.poll(1)

    def read(self, size: int) -> bytes:
        """So many bytes, or all until the connection is closed."""
        data, give_up = b"", time.monotonic() + WAIT_S
        while len(data) < size:
            assert time.monotonic() < give_up, f"{len(data)} of {size} bytes came"
            self.received += self.hub.poll(1)
            try:
                part = self.socket.recv(size - len(data))
            except BlockingIOError:
                continue
            except ConnectionResetError:
                break
            if not part:
                break
            data += part
        return data

    def is_cut(self) -> bool:
        return len(self.read(1)) == 0

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def server(closing: ExitStack) -> Hub:
    return made(closing, "server", ANYWHERE)


@pytest.fixture
def raw(closing: ExitStack, server: Hub) -> Callable[..., Raw]:
    def connect(*, shakes: bool = True) -> Raw:
        client = Raw(server, shakes=shakes)
        closing.callback(client.close)
        return client

    return connect


# --- ZeroMQ at the other end


@pytest.mark.parametrize("address", [ANYWHERE, "tcp://[::1]:0", "ipc"])
def test_a_dealer_of_zeromq_talks_to_it(closing: ExitStack, tmp_path: Path, address: str) -> None:
    server = made(closing, "server", f"ipc://{tmp_path}/s" if address == "ipc" else address)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.ipv6 = 0, True
        dealer.connect(server.address)
        for size in SIZES:
            dealer.send(pack_batch(header_of("zeromq"), [bytes(size), b"x"]))
            (batch,) = until(server, len)
            assert batch.who.name == "zeromq" and batch.payloads == [bytes(size), b"x"]
            assert server.reply(batch.route, b"y" * size)
            server.flush()
            until(server, lambda _: dealer.poll(0))
            frame = dealer.recv()
            assert payloads_in(frame, name_in(frame)[1]) == [b"y" * size]


def test_it_talks_to_a_router_of_zeromq(closing: ExitStack) -> None:
    client = made(closing, "client")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(ANYWHERE)
        client.know("node", router.last_endpoint.decode())
        for size in SIZES:
            client.send("node", b"x" * size)
            client.flush()
            until(client, lambda _: router.poll(0))
            routing_id, frame = router.recv_multipart()
            assert payloads_in(frame, name_in(frame)[1]) == [b"x" * size]
            router.send_multipart((routing_id, pack_batch(header_of("zeromq"), [bytes(size)])))
            (batch,) = until(client, len)
            assert (batch.who.name, batch.payloads) == ("node", [bytes(size)])


@pytest.mark.parametrize("kinds", [(PlainHub, ZmqHub), (ZmqHub, PlainHub)])
def test_the_two_kinds_of_hubs_talk_to_each_other(closing: ExitStack, kinds: tuple[type[Hub], type[Hub]]) -> None:
    server, client = made(closing, "server", ANYWHERE, kinds[0]), made(closing, "client", None, kinds[1])
    client.know("server", server.address)
    for number in range(20):
        client.send("server", b"%d" % number)
        client.flush()
        (batch,) = until(server, len, client)
        server.reply(batch.route, b"answer " + batch.payloads[0])
        server.flush()
        assert payloads(until(client, len, server)) == [b"answer %d" % number]


def test_without_keys_zeromq_is_not_loaded_and_with_keys_it_is_used(closing: ExitStack) -> None:
    assert type(made(closing, "plain", None, Hub)) is PlainHub
    keyed = Hub("keyed", keys=new_keys("keyed", "ltm"))
    closing.callback(keyed.close)
    assert type(keyed) is ZmqHub
    code = "import sys, viewtide.ltm.transport as t; t.Hub('x', listen='tcp://127.0.0.1:0').close(); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('zmq' in sys.modules)"], check=True)


# --- frames in pieces


STREAM = st.lists(
    st.one_of(
        st.binary(max_size=300).map(lambda body: (MESSAGE, body, frame_head(len(body)) + body)),
        st.binary(max_size=300).map(lambda body: (MESSAGE, body, b"\x02" + struct.pack(">Q", len(body)) + body)),
        st.binary(max_size=50).map(lambda body: (zmtp.COMMAND, body, bytes((4, len(body))) + body)),
        st.binary(max_size=50).map(lambda body: (-1, b"", bytes((1, len(body))) + body + bytes((0, 1, 7)))),
    ),
    max_size=8,
)


@given(STREAM, st.lists(st.integers(1, 700), max_size=20))
def test_frames_are_the_same_however_they_are_cut(stream: list[tuple[int, bytes, bytes]], cuts: list[int]) -> None:
    data, frames = b"".join(raw for _, _, raw in stream), Frames()
    expected = []
    for kind, body, _ in stream:
        expected += [(kind, body)] if kind >= 0 else [(PART, b""), (LAST_PART, b"")]
    found = []
    for size in [*cuts, len(data) + 1]:
        frames.feed(data[:size])
        data = data[size:]
        while (frame := frames.next()) is not None:
            found.append(frame)
    assert found == expected
    assert frames.between and frames.held_bytes == 0


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    frames = Frames()
    frames.feed(data)
    try:
        while frames.next() is not None:
            pass
    except RemoteProtocolError:
        return
    assert frames.held_bytes <= len(data)


def test_bytes_that_come_one_by_one(server: Hub, raw: Callable[..., Raw]) -> None:
    client = raw(shakes=False)
    for byte in (
        GREETING + DEALER_READY + framed(b"one") + framed(bytes(300)) + b"\x04\x05\x04PING" + framed(b"x", b"y")
    ):
        client.send(bytes((byte,)))
        client.received += server.poll(0)
    until(server, lambda more: client.received.extend(more) or len(client.received) >= 3)
    assert payloads(client.received) == [b"one", bytes(300), b"x", b"y"]


def test_many_frames_in_one_piece_are_all_there_and_bounded_parts_at_a_time(
    server: Hub, raw: Callable[..., Raw]
) -> None:
    client = raw()
    client.send(b"".join(framed(b"%d" % number) for number in range(1_000)))
    seen: list[bytes] = []
    give_up = time.monotonic() + WAIT_S
    while len(seen) < 1_000 and time.monotonic() < give_up:
        batches = server.poll(5)
        assert len(batches) <= plain_hub.RECEIVED_BATCHES_MAX
        seen += payloads(batches)
    assert seen == [b"%d" % number for number in range(1_000)]


def test_who_always_has_more_to_say_keeps_nobody_from_being_heard(
    server: Hub, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    loud, quiet = [raw() for _ in range(3)], raw()
    monkeypatch.setattr(plain_hub, "RECEIVED_BATCHES_MAX", 20)
    for client in loud:
        client.send(framed(b"noise") * 2_000)
    server.poll(5)
    quiet.send(framed(b"me too"))
    heard = [payloads(server.poll(5)) for _ in range(4)]
    assert any(b"me too" in each for each in heard)


def test_a_connection_may_change_its_name_and_keeps_its_number(server: Hub, raw: Callable[..., Raw]) -> None:
    first, second = raw(), raw()
    for client, name in ((first, "ann"), (first, "bob"), (second, "bob")):
        client.send(framed(b"x", name=name))
    received = until(server, lambda received: len(received) == 3)
    by_number: dict[bytes, list[str]] = {}
    for batch in received:
        by_number.setdefault(server.connection(batch.route), []).append(batch.who.name)
    assert sorted(by_number.values()) == [["ann", "bob"], ["bob"]]


# --- slow ones, and those who leave


def test_who_does_not_read_gets_a_bounded_amount_and_then_all_of_it_in_order(
    server: Hub, raw: Callable[..., Raw]
) -> None:
    client = raw()
    client.send(framed(b"hello"))
    (batch,) = until(server, len)
    taken, payload = 0, bytes(100_000)
    while server.reply(batch.route, taken.to_bytes(4, "big") + payload):
        server.flush()
        server.poll(0)
        taken += 1
        assert taken * len(payload) < 2 * QUEUE_BYTES_MAX, "it never gets full"
    assert server.counts.full == 1 and taken * len(payload) > QUEUE_BYTES_MAX // 2
    frames, seen = Frames(), 0
    while seen < taken:
        frames.feed(client.read(1))
        frames.feed(client.socket.recv(2**20))
        while (frame := frames.next()) is not None:
            for each in payloads_in(frame[1], name_in(frame[1])[1]):
                assert int.from_bytes(each[:4], "big") == seen
                seen += 1
    assert server.reply(batch.route, b"room again")


def test_who_vanishes_in_the_middle_leaves_nothing_behind(server: Hub, raw: Callable[..., Raw]) -> None:
    assert isinstance(server, PlainHub)
    for part in (GREETING[:20], GREETING, GREETING + DEALER_READY[:9]):
        client = raw(shakes=False)
        client.send(part)
        until(server, lambda _: server._links)
        client.close()
        until(server, lambda _: not server._links)
    for part in (b"\x02\0\0", framed(bytes(1_000))[:-1], framed(bytes(2_000_000))[:-1], b"\x01\x01x"):
        client = raw()
        client.send(part)
        client.close()
        until(server, lambda _: not server._links)
    assert server._unfinished_bytes == 0 and server._connections == 0 and not server._shaking
    assert server.counts.refused == 3
    client = raw()
    client.send(framed(b"still there?"))
    assert payloads(until(server, len)) == [b"still there?"]


def test_what_had_not_left_as_a_whole_is_sent_again(closing: ExitStack, tmp_path: Path) -> None:
    """The other side is there, hears the beginning of a large message, ends, and comes back."""
    address = f"ipc://{tmp_path}/s"
    client, server = made(closing, "client"), made(closing, "server", address)
    client.know("server", address)
    client.send("server", b"hello")
    client.flush()
    until(server, len, client)
    large = os.urandom(20_000_000)
    client.send("server", large)
    client.flush()
    assert server.poll(10) == []
    client.send("server", b"and another")
    server.close()
    again = made(closing, "server", address)
    assert payloads(until(again, lambda received: len(payloads(received)) == 2, client)) == [large, b"and another"]


def test_who_comes_later_gets_what_waits_and_nobody_there_is_no_refusal(closing: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    client = made(closing, "client")
    client.know("server", address)
    count = 0
    while client.send("server", count.to_bytes(4, "big") + bytes(BATCH_BYTES_MAX // 2)):
        client.flush()
        client.poll(0)
        count += 1
    assert client.counts.full == 1 and client.refusal("server") is None
    server = made(closing, "server", address)
    arrived = payloads(until(server, lambda received: len(payloads(received)) == count, client))
    assert [int.from_bytes(payload[:4], "big") for payload in arrived] == list(range(count))


def test_a_connection_that_breaks_again_and_again_is_made_again(closing: ExitStack) -> None:
    server, client = made(closing, "server", ANYWHERE), made(closing, "client")
    client.know("server", server.address)
    numbers = set()
    for number in range(3):
        client.send("server", b"%d" % number)
        client.flush()
        (batch,) = until(server, len, client)
        numbers.add(server.connection(batch.route))
        assert isinstance(server, PlainHub) and isinstance(batch.route, plain_hub._Link)
        server._lost(batch.route)
        assert not server.reply(batch.route, b"x")
        until(client, lambda _: not client._peers["server"].open)  # type: ignore[attr-defined]
    assert len(numbers) == 3


# --- handshakes


def test_who_does_not_finish_its_handshake_is_cut(
    server: Hub, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_hub, "HANDSHAKE_MS_MAX", 50)
    began = time.monotonic()
    silent, half = raw(shakes=False), raw(shakes=False)
    half.send(GREETING)
    assert silent.read(len(GREETING) + 1) == GREETING
    assert half.read(1_000) == GREETING + ROUTER_READY
    assert time.monotonic() - began > 0.04 and server.counts.refused == 2


def test_who_has_answered_while_the_loop_was_busy_is_not_cut(
    server: Hub, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_hub, "HANDSHAKE_MS_MAX", 0)
    client = raw(shakes=False)
    client.send(GREETING + DEALER_READY + framed(b"hello"))
    assert payloads(until(server, len)) == [b"hello"]


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff" + bytes(8) + b"\x7e",
        b"\xff" + bytes(8) + b"\x7f\x02",
        GREETING + b"\x00\x05hello",
        GREETING + b"\x04\x06\x05ERROR",
        GREETING + b"\x04\x06\x05READY",
        GREETING + DEALER_READY.replace(b"DEALER", b"PULLER"),
        GREETING + DEALER_READY[:-1] + b"\x05",
        GREETING + struct.pack(">BQ", 6, 2**30),
        GREETING + b"\xff\xff",
    ],
)
def test_who_does_not_speak_the_protocol_is_cut_and_counted(
    server: Hub, raw: Callable[..., Raw], beginning: bytes
) -> None:
    client = raw(shakes=False)
    client.send(beginning)
    assert client.read(1_000).startswith(GREETING)
    assert client.is_cut() and client.received == []
    assert server.counts.refused == 1


def test_who_has_keys_reads_that_none_are_used(server: Hub, raw: Callable[..., Raw]) -> None:
    client = raw(shakes=False)
    client.send(GREETING.replace(b"NULL", b"CURV"))
    assert client.read(len(GREETING)) == GREETING
    until(server, lambda _: server.counts.refused == 1)
    client.send(bytes(100_000))  # nobody listens any more
    assert isinstance(server, PlainHub) and server._connections == 1
    client.close()
    until(server, lambda _: server._connections == 0)
    assert server.counts.refused == 1


@contextmanager
def answering(*parts: bytes) -> Iterator[tuple[str, Callable[[], None]]]:
    """Somebody who sends this to whoever connects, and hangs up. The second is called again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return
            for part in parts:
                connection.sendall(part)
            if parts:
                kept.append(connection)
            else:
                connection.close()

        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}", accept
        for connection in kept:
            connection.close()


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n",), "no process of Viewtide"),
        ((GREETING + b"\x00\x05hello",), "no process of Viewtide"),
        ((GREETING + b"\x04\x06\x05ERROR",), "no process of Viewtide"),
        ((GREETING.replace(b"NULL\0", b"CURVE"),), "takes only those who have a key"),
        ((), "cuts every connection"),
    ],
)
def test_a_peer_that_cannot_be_talked_to_is_named(
    closing: ExitStack, monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...], match: str
) -> None:
    monkeypatch.setattr(plain_hub, "RECONNECT_MS_MIN", 1)
    monkeypatch.setattr(plain_hub, "RECONNECT_MS_MAX", 10)
    client = made(closing, "client")
    with answering(*parts) as (address, accept):
        client.know("node", address)
        until(client, lambda _: accept() or client.refusal("node"))
        refusal = client.refusal("node")
        assert refusal is not None and match in refusal.message and refusal.hint
    # Another one comes, and it is forgotten.
    server = made(closing, "node", address)
    client.send("node", b"hello")
    client.flush()
    assert payloads(until(server, len, client)) == [b"hello"]
    assert client.refusal("node") is None


def test_a_peer_that_wants_keys_is_named(closing: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "allowed").touch(mode=0o600)
    guarded = ZmqHub("node", listen=ANYWHERE, keys=new_keys("node", "ltm"), allowed=AllowList(tmp_path / "allowed"))
    closing.callback(guarded.close)
    client = made(closing, "client")
    client.know("node", guarded.address)
    until(client, lambda _: client.refusal("node"), guarded)
    refusal = client.refusal("node")
    assert refusal is not None and "takes only those who have a key" in refusal.message


def test_a_peer_that_says_nothing_is_tried_again_and_not_refused(
    closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_hub, "HANDSHAKE_MS_MAX", 5)
    monkeypatch.setattr(plain_hub, "RECONNECT_MS_MIN", 1)
    monkeypatch.setattr(plain_hub, "RECONNECT_MS_MAX", 5)
    client = made(closing, "client")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        client.know("node", f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        accepted: list[socket.socket] = []

        def accept() -> bool:
            try:
                accepted.append(listening.accept()[0])
            except BlockingIOError:
                client.refusal("node")  # this, too, looks after it
            return len(accepted) > zmtp.CUTS_MIN + 1

        until(client, lambda _: accept())
        assert client.refusal("node") is None
        for connection in accepted:
            connection.close()


# --- what means harm


@pytest.mark.parametrize(
    "harm",
    [
        struct.pack(">BQ", 2, FRAME_BYTES_MAX + 1),
        struct.pack(">BQ", 2, 2**63),
        struct.pack(">BQ", 3, FRAME_BYTES_MAX + 1),
        struct.pack(">BQ", 6, zmtp.COMMAND_BYTES_MAX + 1),
        b"\x05\x01x",
        b"\x08\x01x",
        b"\x01\x01x" * (zmtp.PARTS_MAX + 1),
    ],
)
def test_frames_that_nobody_sends_end_the_connection(server: Hub, raw: Callable[..., Raw], harm: bytes) -> None:
    client, good = raw(), raw()
    client.send(framed(b"first") + harm)
    assert client.is_cut()
    assert payloads(client.received) == [b"first"] and server.counts.malformed == 1
    good.send(framed(b"good"))
    assert payloads(until(server, len)) == [b"good"]


def test_messages_of_several_frames_are_passed_over_and_not_kept(server: Hub, raw: Callable[..., Raw]) -> None:
    client = raw()
    assert isinstance(server, PlainHub)
    part = struct.pack(">BQ", 3, 2_000_000) + bytes(2_000_000)
    for _ in range(20):
        client.send(part)
        client.received += server.poll(0)
        assert server._unfinished_bytes < 100_000
    client.send(b"\x00\x01x" + framed(b"after"))
    assert payloads(until(server, len)) == [b"after"]
    assert client.received == [] and server.counts.malformed == 1


def test_frames_that_do_not_end_are_bounded_together_and_the_oldest_goes(
    server: Hub, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_hub, "UNFINISHED_BYTES_MAX", 1_000_000)
    clients = [raw() for _ in range(4)]
    assert isinstance(server, PlainHub)
    for client in clients:
        client.send(struct.pack(">BQ", 2, 2_000_000) + bytes(300_000))
        until(server, lambda _: not readable(*server._links))
    assert clients[0].is_cut() and server.counts.malformed == 1
    assert server._unfinished_bytes <= 1_000_000 and server._connections == 3


@given(st.lists(st.binary(max_size=200), max_size=5), st.sampled_from([b"", GREETING, GREETING + DEALER_READY]))
def test_any_bytes_leave_the_hub_alone(parts: list[bytes], beginning: bytes) -> None:
    hub = PlainHub("server", listen=ANYWHERE)
    try:
        client = Raw(hub, shakes=False)
        for part in (beginning, *parts):
            try:
                client.send(part)
            except OSError:
                break
            hub.poll(0)
        client.close()
        until(hub, lambda _: hub._connections == 0)
        assert hub._unfinished_bytes == 0 and not hub._shaking and not hub._links
    finally:
        hub.close()


# --- many connections


def test_many_connections(closing: ExitStack, server: Hub) -> None:
    client = made(closing, "client")
    names = {f"peer-{number}" for number in range(300)}
    for name in names:
        client.know(name, server.address)
        client.send(name, name.encode())
    client.flush()
    for batch in until(server, lambda received: len(received) == len(names), client):
        assert server.reply(batch.route, b"for " + batch.payloads[0])
    server.flush()
    answers = until(client, lambda received: len(received) == len(names), server)
    assert {(batch.who.name, *batch.payloads) for batch in answers} == {
        (name, f"for {name}".encode()) for name in names
    }
    for name in names:
        client.forget(name)
    assert isinstance(server, PlainHub)
    until(server, lambda _: server._connections == 0)


def test_connections_are_bounded_and_who_does_not_finish_makes_room(
    server: Hub, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_hub, "CONNECTIONS_MAX", 3)
    first, silent, second = raw(), raw(shakes=False), raw()
    assert silent.read(len(GREETING)) == GREETING
    third = raw()
    assert silent.is_cut()
    refused = raw(shakes=False)
    assert refused.is_cut()
    for client in (first, second, third):
        client.send(framed(b"x"))
    until(server, lambda received: len(received) == 3)


def test_without_another_file_nobody_is_accepted_until_there_is_one(server: Hub, raw: Callable[..., Raw]) -> None:
    """And the loop does not run hot meanwhile, and serves those who are there."""
    good = raw()
    late = raw(shakes=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest_free:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free.fileno() + 1, hard))
        try:
            polls, ends = 0, time.monotonic() + 0.3
            while time.monotonic() < ends:
                server.poll(10)
                polls += 1
            good.send(framed(b"x"))
            assert payloads(until(server, len)) == [b"x"]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert polls < 100
    late.send(GREETING + DEALER_READY + framed(b"late"))
    assert payloads(until(server, len)) == [b"late"]


# --- who waits for one answer, or at a descriptor


def test_receive_gives_one_peers_batches_and_keeps_the_others(closing: ExitStack) -> None:
    ann, bob, client = made(closing, "ann", ANYWHERE), made(closing, "bob", ANYWHERE), made(closing, "client")
    routes = {}
    for hub in (ann, bob):
        client.know(hub.name, hub.address)
        client.send(hub.name, b"hello")
        client.flush()
        routes[hub] = until(hub, len, client)[0].route
    for hub, route in routes.items():
        for number in range(2):
            hub.reply(route, b"%s %d" % (hub.name.encode(), number))
            hub.flush()
    assert client.receive("bob", 5_000) == [b"bob 0"]
    assert client.receive("bob", 5_000) == [b"bob 1"]
    assert client.receive("bob", 0) == [] == client.receive("bob", 20)
    assert payloads(client.poll(0)) == [b"ann 0", b"ann 1"]


def test_the_descriptor_tells_when_to_poll(closing: ExitStack) -> None:
    server, client = made(closing, "server", ANYWHERE), made(closing, "client")
    client.know("server", server.address)
    client.send("server", b"hello")
    client.flush()

    def turn() -> None:
        if readable(client.descriptor("server")):
            assert client.poll(0) == []

    (batch,) = until(server, lambda received: turn() or received)
    assert not readable(client.descriptor("server"))
    server.reply(batch.route, b"answer")
    server.flush()
    assert readable(client.descriptor("server"), wait_s=WAIT_S)
    assert payloads(client.poll(0)) == [b"answer"]


def test_who_waits_at_the_descriptor_is_told_of_what_lies_here_already(
    closing: ExitStack, server: Hub, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of what came was nonsense, so that `poll` gave nothing, and the rest has left the system's buffer."""
    client = raw()
    assert isinstance(server, PlainHub)
    monkeypatch.setattr(plain_hub, "RECEIVED_BATCHES_MAX", 2)
    client.send(b"\x00\x01x" * 5 + framed(b"sense"))
    received: list[Received] = []
    give_up = time.monotonic() + WAIT_S
    while not received and time.monotonic() < give_up:
        assert readable(server._epoll.fileno(), wait_s=WAIT_S), "nobody says that there is more"
        received = server.poll(0)
    assert payloads(received) == [b"sense"]


# --- addresses


def test_a_socket_file_that_was_left_behind_is_replaced_and_another_file_is_not(
    closing: ExitStack, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    first = made(closing, "server", f"ipc://{path}")
    second = made(closing, "server", f"ipc://{path}")
    first.close()  # not the file of the second
    assert path.exists()
    second.close()
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(OperationalError, match="cannot listen"):
        made(closing, "server", f"ipc://{path}")
    assert path.read_text() == "mine"


def test_who_is_connected_to_needs_a_port(closing: ExitStack) -> None:
    with pytest.raises(InterfaceError, match="no address to connect to"):
        made(closing, "client").know("x", "tcp://127.0.0.1:*")


def test_nothing_is_held_of_a_message_before_the_handshake() -> None:
    hub = PlainHub("hub", listen="tcp://127.0.0.1:0")
    try:
        port = int(hub.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(GREETING + b"\x02" + (2**20).to_bytes(8, "big") + bytes(2**16))
            deadline = time.monotonic() + 10
            while not hub.counts.refused:
                assert time.monotonic() < deadline
                hub.poll(20)
        assert not hub._links
    finally:
        hub.close()
