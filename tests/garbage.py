"""Garbage for any port: what somebody sends who does not know the protocol, or knows it and means harm.

`Garbage(address, seed)` is a context manager: threads of it connect and send until its end, as fast as they can unless
`slow_down` was called. The address is tcp://host:port or ipc://path of a hub, http://host:port, or unix://path of the
socket of an open directory.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable

import zmq

from viewtide.coordinator.cluster.addressed import Addressed
from viewtide.coordinator.vms.cluster_messages import Hello
from viewtide.ltm import batches, codec, wire
from viewtide.ltm.addresses import parse_address
from viewtide.ltm.two_phase.messages import Vote
from viewtide.remote_protocol import VERSION

#: Connections that each thread keeps open and says nothing on.
SILENT_MAX = 20
TIMEOUT_S = 2.0
CHUNK_BYTES = 64 * 2**10

Attack = Callable[["Attacker"], None]


def greeting(mechanism: bytes = b"NULL", version: tuple[int, int] = (3, 1)) -> bytes:
    """How a connection of ZeroMQ begins (ZMTP 3)."""
    return b"\xff" + bytes(8) + b"\x7f" + bytes(version) + mechanism.ljust(20, b"\0") + bytes(32)


def ready() -> bytes:
    """The end of the handshake where no keys are used."""
    properties = b"".join(
        bytes((len(name),)) + name + struct.pack(">I", len(value)) + value
        for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", b""))
    )
    body = b"\x05READY" + properties
    return bytes((4, len(body))) + body


def long_frame(size: int, *, more: bool = False) -> bytes:
    """The head of a frame that says it has so many bytes."""
    return struct.pack(">BQ", 2 | more, size)


class Attacker:
    """One thread's connections and random numbers."""

    def __init__(self, address: str, seed: int) -> None:
        self.random = random.Random(seed)
        self._scheme, _, self._place = address.partition("://")
        self._silent: list[socket.socket] = []

    def connect(self) -> socket.socket:
        if self._scheme in ("ipc", "unix"):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(TIMEOUT_S)
            connection.connect(self._place)
            return connection
        host, _, port = self._place.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)

    def send(self, *parts: bytes) -> None:
        """On a connection of its own; the other side may close it at any time."""
        with self.connect() as connection:
            for part in parts:
                connection.sendall(part)

    def keep(self, *parts: bytes) -> None:
        """As `send`, but the connection stays open."""
        connection = self.connect()
        self._silent.append(connection)
        for part in parts:
            connection.sendall(part)
        if len(self._silent) > SILENT_MAX:
            self._silent.pop(0).close()

    def bytes(self, most: int) -> bytes:
        return self.random.randbytes(self.random.randint(1, most))

    def close(self) -> None:
        for connection in self._silent:
            connection.close()


def _random_bytes(attacker: Attacker) -> None:
    attacker.send(*[attacker.bytes(CHUNK_BYTES) for _ in range(4)])


def _other_protocols(attacker: Attacker) -> None:
    attacker.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0" * 100)


def _half_a_greeting(attacker: Attacker) -> None:
    attacker.keep(greeting()[: attacker.random.randint(0, 63)])


def _garbage_after_the_greeting(attacker: Attacker) -> None:
    mechanism = attacker.random.choice((b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"\xff" * 20))
    attacker.send(greeting(mechanism), attacker.bytes(CHUNK_BYTES))


def _another_version(attacker: Attacker) -> None:
    version = (attacker.random.randint(0, 255), attacker.random.randint(0, 255))
    attacker.send(greeting(version=version), ready(), attacker.bytes(100))


def _garbage_after_the_handshake(attacker: Attacker) -> None:
    attacker.send(greeting(), ready(), attacker.bytes(CHUNK_BYTES))


def _an_endless_frame(attacker: Attacker) -> None:
    size = attacker.random.choice((2**63 - 1, 2**40, batches.FRAME_BYTES_MAX + 1))
    attacker.send(greeting(), ready(), long_frame(size), bytes(CHUNK_BYTES))


def _a_large_frame_that_never_comes(attacker: Attacker) -> None:
    attacker.keep(greeting(), ready(), long_frame(batches.FRAME_BYTES_MAX), bytes(1_000))


def _a_large_command(attacker: Attacker) -> None:
    attacker.send(greeting(), struct.pack(">BQ", 6, 2**30), bytes(CHUNK_BYTES))


def _many_frames_that_do_not_end(attacker: Attacker) -> None:
    """Few enough on each connection: ZeroMQ has no limit for them (see `transport`)."""
    attacker.send(greeting(), ready(), bytes((1, 5, *b"hello")) * 5_000)


def _curve_hello(attacker: Attacker) -> None:
    body = b"\x05HELLO" + attacker.random.randbytes(194)
    attacker.send(greeting(b"CURVE"), bytes((4, len(body))) + body)


#: For every port; those above know ZeroMQ's handshake.
ATTACKS: dict[str, Attack] = {
    attack.__name__.strip("_"): attack
    for attack in (
        _random_bytes,
        _other_protocols,
        _half_a_greeting,
        _garbage_after_the_greeting,
        _another_version,
        _garbage_after_the_handshake,
        _an_endless_frame,
        _a_large_frame_that_never_comes,
        _a_large_command,
        _many_frames_that_do_not_end,
        _curve_hello,
    )
}


def _an_endless_request_line(attacker: Attacker) -> None:
    attacker.send(b"GET /" + b"a" * CHUNK_BYTES, *[b"a" * CHUNK_BYTES] * 20)


def _endless_headers(attacker: Attacker) -> None:
    attacker.send(b"GET /metrics HTTP/1.1\r\n", *[b"x-%d: y\r\n" % number * 100 for number in range(1_000)])


def _half_a_request(attacker: Attacker) -> None:
    attacker.keep(b"GET /metrics HTTP/1.1\r\nHost: x\r\nx-half"[: attacker.random.randint(0, 40)])


def _a_body_that_never_comes(attacker: Attacker) -> None:
    attacker.keep(b"POST /metrics HTTP/1.1\r\nContent-Length: 9999999999999\r\n\r\n", bytes(1_000))


def _strange_requests(attacker: Attacker) -> None:
    line = attacker.random.choice(
        (b"GET /metrics HTTP/9.9", b"GET", b"\x00\xff\xfe", b"PUT " + b"/../" * 5_000, b"GET /metrics?" + b"[" * 5_000)
    )
    attacker.send(line + b"\r\n\r\n")


HTTP_ATTACKS: dict[str, Attack] = {
    attack.__name__.strip("_"): attack
    for attack in (
        _random_bytes,
        _an_endless_request_line,
        _endless_headers,
        _half_a_request,
        _a_body_that_never_comes,
        _strange_requests,
    )
}


def _knock_and_go(attacker: Attacker) -> None:
    attacker.send()


def _knock_and_say_something(attacker: Attacker) -> None:
    attacker.keep(attacker.bytes(1_000))


KNOCKS: dict[str, Attack] = {
    attack.__name__.strip("_"): attack for attack in (_random_bytes, _knock_and_go, _knock_and_say_something)
}


def wrong_requests(numbers: random.Random) -> list[bytes]:
    """Requests of a client, and messages between machines, that are read and make no sense."""
    number, noise = numbers.randint(-(2**62), 2**62), numbers.randbytes(50)
    operations = ("tables", "sql", "session", "commit", "view.rows", "page", "create_table", "no such thing", "schema")
    arguments: tuple[object, ...] = (
        *((), ((), {}), (noise,), ((1, 2), 1, None, (), "get", ()), ((1, 2), False, ((0, "t", 0, [noise], None),))),
        *((((),),), (number, noise, None, True), ("x" * 10_000, {"a": noise})),
    )
    version = numbers.choice((VERSION, VERSION, VERSION, 0, 99, -1, noise))
    operation = numbers.choice(operations)
    return [
        *[codec.pack((version, number, operation, each)) for each in arguments],
        codec.pack((VERSION, noise, operation, ())),
        codec.pack((VERSION, number)),
        codec.pack((VERSION, number, operation, ()))[:-1] + b"\x91" * 40_000,
        wire.encode(Addressed("ltm-1.leader", "mallory", Hello(1))),
        wire.encode(Addressed("ltm-1", "ltm-2", Vote(((1, 2), 3), "ltm-1", 4))),
        wire.encode(Addressed("nobody", "mallory", Vote(((1, 2), 3), "ltm-1", 4))),
        wire.encode(Addressed("vm-1", "mallory", Vote(((1, 2), 3), "ltm-1", 4))),
        wire.encode(Vote(((1, 2), 3), "ltm-1", 4)),
    ]


def wrong_batches(numbers: random.Random) -> list[list[bytes]]:
    """Messages of somebody who speaks ZeroMQ properly, as frames: none of them is a batch of good messages."""
    header = batches.header_of("mallory")
    good = wire.encode(Vote(((1, 2), 3), "ltm-1", 4))
    batch = batches.pack_batch(header, [good])
    noise = numbers.randbytes(numbers.randint(1, 2_000))
    payloads = (
        noise,
        b"\x01" + noise,
        b"\x02" + good[1:],
        good[: numbers.randint(0, len(good) - 1)],
        good + b"\0",
        b"\x01" + b"\x91" * 50_000,
        b"\x01" + b"\xdd\x00\x10\x00\x00" * 900 + bytes(2**20),
        b"\x01" + codec.pack((numbers.randint(0, 300), *[numbers.randint(0, 9)] * numbers.randint(0, 9))),
        *wrong_requests(numbers),
    )
    return [
        *[[batches.pack_batch(header, [payload])] for payload in payloads],
        [noise],
        [b""],
        [batch[: numbers.randint(0, len(batch) - 1)]],
        [b"\x07" + batch[1:]],
        [batch, batch],
        [batch] * 100,
        [header + struct.pack("<I", 2**32 - 1) + bytes(100)],
        [header + struct.pack("<2I", 1, 2**32 - 1) + bytes(100)],
        [batches.pack_batch(header, [b""] * (batches.PAYLOADS_PER_BATCH_MAX + 1))],
        [bytes(3 * 2**20)],
    ]


class Garbage:
    def __init__(self, address: str, seed: int, *, threads: int = 2, speaks_zeromq: bool = True) -> None:
        """`speaks_zeromq`: one more thread sends wrong messages in proper frames."""
        scheme = address.partition("://")[0]
        self.attacks = {"http": HTTP_ATTACKS, "unix": KNOCKS}.get(scheme, ATTACKS)
        self.sent: Counter[str] = Counter()
        self._stop = threading.Event()
        self._pause_s = 0.001
        self._address = address
        work = [threading.Thread(target=self._attack, args=(seed * 1_000 + number,)) for number in range(threads)]
        if speaks_zeromq and self.attacks is ATTACKS:
            assert parse_address(address)
            work.append(threading.Thread(target=self._speak, args=(seed,)))
        self._threads = work

    def __enter__(self) -> Garbage:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def slow_down(self, pause_s: float) -> None:
        """So long between two of them, from now on."""
        self._pause_s = pause_s

    def _attack(self, seed: int) -> None:
        attacker = Attacker(self._address, seed)
        names = list(self.attacks)
        with contextlib.closing(attacker):
            while not self._stop.wait(self._pause_s):
                name = attacker.random.choice(names)
                # That it closes the connection, or is slow to accept one, is the other side's right.
                with contextlib.suppress(OSError):
                    self.attacks[name](attacker)
                self.sent[name] += 1

    def _speak(self, seed: int) -> None:
        numbers = random.Random(seed)
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger, dealer.sndhwm = 0, 20
            dealer.connect(self._address)
            while not self._stop.wait(2 * self._pause_s):
                for frames in wrong_batches(numbers):
                    # Without waiting: a message of several frames may stick in the middle when it is disconnected.
                    with contextlib.suppress(zmq.Again):
                        dealer.send_multipart(frames, zmq.DONTWAIT)
                        self.sent["wrong messages"] += 1
