"""A client's own connection to a hub: ZeroMQ's protocol without its thread."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from viewtide.changetables.errors import InterfaceError, RemoteProtocolError
from viewtide.ltm.batches import FRAME_BYTES_MAX, header_of, pack_batch
from viewtide.ltm.direct import Direct
from viewtide.ltm.keys import AllowList
from viewtide.ltm.transport import Hub, new_keys
from viewtide.ltm.zmtp import DEALER_READY as READY
from viewtide.ltm.zmtp import GREETING

WAIT_S = 20.0


def received(direct: Direct) -> list[bytes]:
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        payloads = direct.receive(50)
        if payloads:
            return payloads
    raise AssertionError("nothing came")


@contextmanager
def echoing(listen: str = "tcp://127.0.0.1:0", copies: int = 1) -> Iterator[str]:
    """A hub that sends back everything, so many times."""
    hub, ending = Hub("node", listen=listen), threading.Event()

    def run() -> None:
        while not ending.is_set():
            for batch in hub.poll(50):
                for payload in batch.payloads:
                    for _ in range(copies):
                        hub.reply(batch.route, payload)
            hub.flush()
        hub.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield hub.address
    finally:
        ending.set()
        thread.join()


@contextmanager
def scripted(*sent: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Somebody who sends these bytes to whoever connects, whatever he hears, and hangs up in the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    leave = threading.Event()

    def run() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                for part in sent:
                    connection.sendall(part)
                    leave.wait(pause_s)
                if sent:
                    leave.wait(WAIT_S)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        leave.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@contextmanager
def opened(address: str) -> Iterator[Direct]:
    direct = Direct("client", address)
    try:
        yield direct
    finally:
        direct.close()


def framed(*payloads: bytes) -> bytes:
    body = pack_batch(header_of("node"), payloads)
    return b"\x02" + struct.pack(">Q", len(body)) + body


@pytest.mark.parametrize("size", [0, 1, 200, 255, 256, 70_000, 3_000_000])
def test_messages_of_all_sizes_come_back(size: int) -> None:
    payload = bytes(size % 251 for _ in range(size))
    with echoing() as address, opened(address) as direct:
        for _ in range(3):
            direct.send(payload)
            assert received(direct) == [payload]


@pytest.mark.parametrize("size", [0, 1, 200, 255, 256, 440, 448, 70_000, 3_000_000])
def test_messages_of_all_sizes_are_answered(size: int) -> None:
    payload = bytes(at % 251 for at in range(size))
    with echoing() as address, opened(address) as direct:
        direct.send(b"hello")
        assert received(direct) == [b"hello"]
        for _ in range(3):
            assert direct.ask(payload, 10_000) == [payload]


def test_an_answer_in_pieces_and_one_with_others_behind_it() -> None:
    parts = framed(b"one")[:5], framed(b"one")[5:] + framed(b"two") + framed(b"three")
    with scripted(GREETING + READY + framed(b"first"), *parts) as address, opened(address) as direct:
        assert received(direct) == [b"first"]
        assert [direct.ask(b"?", 10_000), direct.ask(b"?", 10_000), received(direct)] == [
            [b"one"],
            [b"two"],
            [b"three"],
        ]


def test_a_unix_socket(tmp_path: Path) -> None:
    with echoing(f"ipc://{tmp_path}/s") as address, opened(address) as direct:
        direct.send(b"hello")
        assert received(direct) == [b"hello"]


def test_several_answers_at_once() -> None:
    with echoing(copies=3) as address, opened(address) as direct:
        direct.send(b"hello")
        assert received(direct) == [b"hello"] * 3


def test_nothing_in_time() -> None:
    with echoing() as address, opened(address) as direct:
        direct.send(b"hello")
        assert received(direct) == [b"hello"]
        assert direct.receive(10) == []


def test_bytes_may_come_one_by_one_and_commands_are_passed_over() -> None:
    story = GREETING + READY + framed(b"one") + b"\x04\x05\x04PING" + framed(b"two", b"three")
    with scripted(*(story[at : at + 1] for at in range(len(story)))) as address, opened(address) as direct:
        assert received(direct) == [b"one"]
        assert received(direct) == [b"two", b"three"]


def test_two_frames_in_one_piece() -> None:
    with scripted(GREETING + READY + framed(b"one") + framed(b"two")) as address, opened(address) as direct:
        assert [received(direct), received(direct)] == [[b"one"], [b"two"]]


def test_who_begins_to_listen_later_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with opened(f"tcp://127.0.0.1:{port}") as direct:
        direct.send(b"hello")
        assert direct.receive(1) == [] and direct.refusal() is None
        with echoing(f"tcp://127.0.0.1:{port}"):
            assert received(direct) == [b"hello"]


def test_a_connection_that_breaks_is_an_error() -> None:
    with opened("tcp://127.0.0.1:1") as direct:
        assert direct.receive(1) == []  # nobody is there: it may come
    with echoing() as address:
        direct = Direct("client", address)
        direct.send(b"hello")
        assert received(direct) == [b"hello"]
    with pytest.raises(OSError):
        received(direct)
    direct.close()


@pytest.mark.parametrize(
    ("story", "match"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n".ljust(80),), "no process of Viewtide"),
        ((GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15)),), "only those who have a key"),
        ((GREETING + b"\x00\x05hello",), "no process of Viewtide"),
        ((), "cuts every connection"),
    ],
)
def test_who_cannot_be_talked_to_is_named(story: tuple[bytes, ...], match: str) -> None:
    with scripted(*story) as address, opened(address) as direct:
        give_up = time.monotonic() + WAIT_S
        while direct.refusal() is None and time.monotonic() < give_up:
            assert direct.receive(20) == []
        refusal = direct.refusal()
    assert refusal is not None and match in refusal.message and refusal.hint


def test_a_hub_with_keys_refuses(tmp_path: Path) -> None:
    listed = tmp_path / "allowed"
    listed.touch(mode=0o600)
    hub = Hub("node", listen="tcp://127.0.0.1:0", keys=new_keys("node", "ltm"), allowed=AllowList(listed))
    try:
        with opened(hub.address) as direct:
            give_up = time.monotonic() + WAIT_S
            while direct.refusal() is None and time.monotonic() < give_up:
                direct.receive(20)
                hub.poll(0)
            refusal = direct.refusal()
    finally:
        hub.close()
    assert refusal is not None and "key" in refusal.message


def _oversized() -> bytes:
    return b"\x02" + struct.pack(">Q", FRAME_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "garbage", [_oversized, lambda: b"\x01\x01x", lambda: b"\x00\x01x", lambda: b"\x00\x03\x01\x01n"]
)
def test_garbage_is_an_error(garbage: Callable[[], bytes]) -> None:
    with (
        scripted(GREETING + READY + garbage()) as address,
        opened(address) as direct,
        pytest.raises(RemoteProtocolError),
    ):
        received(direct)


def test_other_machines_need_keys() -> None:
    with pytest.raises(InterfaceError, match="without keys"):
        Direct("client", "tcp://192.0.2.1:7400")
