"""One connection of a client to a hub that listens without keys: a DEALER of its own, in the caller's thread.

ZeroMQ sends and receives in a thread of its own. For a client that sends one request and waits for the answer, every
message then wakes a thread and is woken by it: of 16 client processes on two cores each exchange took 85 to 120 us of
processor time in pyzmq, and takes 36 here. What goes over the wire is ZeroMQ's own protocol (`zmtp`), and a body is a
batch (`batches`). Connections with keys need ZeroMQ's encryption: they are a `Hub`'s.
"""

from __future__ import annotations

import socket
import struct
import time

from ..changetables.errors import RemoteProtocolError
from .addresses import KEYS_HINT, Address, Refusal, check_plaintext_to, parse_address
from .batches import FRAME_BYTES_MAX, header_of, name_in, payloads_in
from .sockets import port_of, tune
from .zmtp import (
    COMMAND,
    CUTS_MIN,
    DEALER_READY,
    GREETING,
    LONG,
    LONG_SIZE,
    MORE,
    SHORT_HEADS,
    VERSION_END,
    frame_head,
    is_ready,
    may_be_greeting,
    wants_no_keys,
)

#: What one system call may bring: most answers are small, and a larger one takes several.
RECEIVE_BYTES = 64 * 2**10
#: So long a full connection is waited for; a node whose loop takes nothing for as long gives no sign of life either.
SEND_S_MAX = 3.0
CONNECT_S_MAX = 3.0
#: Between two attempts to connect to somebody who is not there (yet).
CONNECT_PAUSE_S = 0.05
#: What an answer to a request is awaited with: an answer to a commit has 50 bytes, and Python's own allocator has as
#: many at hand, the system's has not.
ANSWER_BYTES = 448
_ONE = struct.Struct("<II")
_ONE_BYTES = _ONE.size


class Direct:
    """Not for several threads. It connects when it is first used, and again until somebody has answered the handshake;
    once that has happened, a connection that breaks is an `OSError`."""

    def __init__(self, name: str, address: str, *, insecure: bool = False, keys_hint: str = KEYS_HINT) -> None:
        """`insecure`: the other side may be on another machine. `keys_hint`: what to do if it is."""
        self._address = parse_address(address)
        if not insecure:
            check_plaintext_to(self._address, keys_hint)
        self._header = header_of(name)
        self._socket: socket.socket | None = None
        self._greeted = self._open = False
        self._timeout_ms = -1
        #: What has come of a frame that is not whole.
        self._rest = bytearray()
        #: Sent when the handshake is done.
        self._first: list[bytes] = []
        #: How the other side's batches begin.
        self._peer_header = b"?"
        self._cuts = 0
        self._refusal: Refusal | None = None

    def send(self, payload: bytes) -> None:
        size = len(self._header) + _ONE_BYTES + len(payload)
        framed = b"".join((frame_head(size), self._header, _ONE.pack(1, len(payload)), payload))
        if self._open:
            assert self._socket is not None
            self._socket.sendall(framed)
        else:
            self._first.append(framed)

    def ask(self, payload: bytes, timeout_ms: int) -> list[bytes]:
        """`send` and `receive`, written out for an answer that comes alone, as it mostly does: in a process that was
        asleep until then each call is cold."""
        connection, header, size = self._socket, self._header, len(payload)
        if not self._open or self._rest or self._timeout_ms != timeout_ms:
            self.send(payload)
            return self.receive(timeout_ms)
        assert connection is not None
        framed = len(header) + _ONE_BYTES + size
        head = SHORT_HEADS[framed] if framed < 256 else b"\x02" + LONG_SIZE.pack(framed)
        connection.sendall(b"".join((head, header, _ONE.pack(1, size), payload)))
        try:
            data = connection.recv(ANSWER_BYTES)
        except BlockingIOError:
            return []
        size = len(data)
        if 1 < size < ANSWER_BYTES and data[0] == 0 and data[1] == size - 2 and data.startswith(self._peer_header, 2):
            at = 2 + len(self._peer_header)
            if data.startswith(_ONE.pack(1, size - at - _ONE_BYTES), at):
                return [data[at + _ONE_BYTES :]]
            return payloads_in(data, at)
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        self._rest += data
        return self.receive(timeout_ms)

    def receive(self, timeout_ms: int) -> list[bytes]:
        """The messages of the next batch; none: nothing has come in time."""
        if not self._open and not self._opened(timeout_ms):
            return []
        connection = self._socket
        assert connection is not None
        if self._timeout_ms != timeout_ms:
            self._wait_at_most(timeout_ms)
        while True:
            frame = self._whole_frame() if self._rest else None
            if frame is None:
                try:
                    data = connection.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    return []
                if not data:
                    raise ConnectionResetError("the other side has closed the connection")
                self._rest += data
                continue
            header = self._peer_header
            if not frame.startswith(header):
                header = self._peer_header = frame[: name_in(frame)[1]]
            return payloads_in(frame, len(header))

    def refusal(self) -> Refusal | None:
        """Why the last attempts to connect failed; None: they did not, or there is nobody at all."""
        return self._refusal

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._open = False

    # Frames.

    def _whole_frame(self) -> bytes | None:
        """The next message that has come as a whole; commands are of no interest once the handshake is done."""
        while True:
            found = self._cut_frame()
            if found is None:
                return None
            flags, body = found
            if flags & MORE:
                raise RemoteProtocolError("a batch in several frames")
            if not flags & COMMAND:
                return body

    def _cut_frame(self) -> tuple[int, bytes] | None:
        rest = self._rest
        if len(rest) < 2:
            return None
        flags = rest[0]
        if flags & LONG:
            if len(rest) < 9:
                return None
            start, size = 9, LONG_SIZE.unpack_from(rest, 1)[0]
            if size > FRAME_BYTES_MAX:
                raise RemoteProtocolError(f"a frame of {size} bytes")
        else:
            start, size = 2, rest[1]
        if len(rest) < start + size:
            return None
        body = bytes(memoryview(rest)[start : start + size])
        del rest[: start + size]
        return flags, body

    # The connection.

    def _wait_at_most(self, timeout_ms: int) -> None:
        assert self._socket is not None
        wait = struct.pack("@ll", timeout_ms // 1000, timeout_ms % 1000 * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._timeout_ms = timeout_ms

    def _opened(self, timeout_ms: int) -> bool:
        """Go on with connecting and the handshake, for so long; whether it is done."""
        give_up = time.monotonic() + timeout_ms / 1000
        try:
            if self._socket is None:
                self._socket = _connected(self._address, timeout_ms / 1000)
                self._timeout_ms = -1
                self._rest.clear()
                self._greeted = False
                # Who hears at once that the mechanism is another hangs up without saying which one he wants.
                self._socket.sendall(GREETING[:VERSION_END])
            while not self._shaken(self._socket):
                self._wait_at_most(max(1, int((give_up - time.monotonic()) * 1000)))
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError
                self._rest += data
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            self._cut(in_handshake=self._socket is not None)
            time.sleep(max(0.0, min(CONNECT_PAUSE_S, give_up - time.monotonic())))
            return False
        self._open, self._refusal, self._cuts = True, None, 0
        first, self._first = self._first, []
        for framed in first:
            self._socket.sendall(framed)
        return True

    def _shaken(self, connection: socket.socket) -> bool:
        """Whether the other side's greeting and its READY have come."""
        if not self._greeted:
            if len(self._rest) < len(GREETING):
                return False
            self._check_greeting(self._rest)
            del self._rest[: len(GREETING)]
            self._greeted = True
            connection.sendall(GREETING[VERSION_END:] + DEALER_READY)
        found = self._cut_frame()
        if found is None:
            return False
        flags, body = found
        if not flags & COMMAND or not is_ready(body):
            self._refuse(f"who listens at {self._address.text} is no process of Viewtide", "check the address")
        return True

    def _check_greeting(self, greeting: bytearray) -> None:
        if not may_be_greeting(greeting):
            self._refuse(f"who listens at {self._address.text} is no process of Viewtide", "check the address")
        if not wants_no_keys(greeting):
            self._refuse(
                f"the node at {self._address.text} takes only those who have a key", "give `keys` and `server_key`"
            )

    def _refuse(self, message: str, hint: str) -> None:
        self._refusal = Refusal(message, hint)
        raise ConnectionRefusedError(message)

    def _cut(self, in_handshake: bool) -> None:
        if in_handshake:
            self._cuts += 1
            if self._cuts >= CUTS_MIN and self._refusal is None:
                self._refusal = Refusal(
                    f"the node at {self._address.text} cuts every connection",
                    "perhaps it takes only those who have a key (`keys`, `server_key`), or is no process of Viewtide",
                )
        self.close()


def _connected(address: Address, timeout_s: float) -> socket.socket:
    timeout_s = max(0.001, min(timeout_s, CONNECT_S_MAX))
    if address.path:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(timeout_s)
            made.connect(address.path)
        except BaseException:
            made.close()
            raise
    else:
        made = socket.create_connection((address.host, port_of(address)), timeout_s)
        tune(made)
    # Time limits of the system instead of Python's: those take a system call more for each send and receive.
    made.settimeout(None)
    seconds, fraction = divmod(SEND_S_MAX, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(fraction * 1e6)))
    return made
