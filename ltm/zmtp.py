"""ZeroMQ's protocol on the wire, as far as it is spoken without keys: ZMTP 3.0, mechanism NULL. No I/O in here.

    greeting, 64 bytes:  FF 0*8 7F | 3 0 | mechanism 20 | as server 1 | 0*31
    command:             flags 4 | size 1 | name size 1 | name | properties ...          READY, once from each side
    message frame:       flags 0 | size 1 | body     or     flags 2 | size 8 | body      numbers are big-endian

Flag 1 says that the message has another frame. No message of Viewtide does: the frames of one that has are passed over
as they come, and none of it is kept.
"""

from __future__ import annotations

import struct

from ..changetables.errors import RemoteProtocolError
from .batches import FRAME_BYTES_MAX

MORE, LONG, COMMAND = 1, 2, 4
#: READY of ZeroMQ has 40 bytes, with an identity up to 300.
COMMAND_BYTES_MAX = 4 * 2**10
#: Frames of one message that are passed over. Who sends more than somebody may by mistake is disconnected.
PARTS_MAX = 1_024
#: Who is cut off so often in his handshakes, again and again, is refused: a process that just ends cuts one.
CUTS_MIN = 3

NULL = b"NULL".ljust(20, b"\0")
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + NULL + bytes(32)
#: Who hears at once that the mechanism is another hangs up without saying which one he wants: so one who connects says
#: that much first.
VERSION_END = 12
_VERSION_MIN = 3

LONG_SIZE = struct.Struct(">Q")
#: What stands before a message of so many bytes, if they are few.
SHORT_HEADS = [bytes((0, size)) for size in range(256)]
#: Whom a ROUTER talks to, and a DEALER.
_SPEAKERS = (b"DEALER", b"ROUTER", b"REQ", b"REP")


def _ready(socket_type: bytes) -> bytes:
    properties = ((b"Socket-Type", socket_type), (b"Identity", b""))
    packed = [bytes((len(name),)) + name + struct.pack(">I", len(value)) + value for name, value in properties]
    body = b"\x05READY" + b"".join(packed)
    return bytes((COMMAND, len(body))) + body


DEALER_READY, ROUTER_READY = _ready(b"DEALER"), _ready(b"ROUTER")


def frame_head(size: int) -> bytes:
    """What stands before a message of so many bytes."""
    return SHORT_HEADS[size] if size < 256 else b"\x02" + LONG_SIZE.pack(size)


def may_be_greeting(beginning: bytes | bytearray) -> bool:
    """Whether a greeting can begin so. Versions that are newer talk to older ones as those do."""
    return (
        beginning[0] == 0xFF
        and (len(beginning) < 10 or beginning[9] == 0x7F)
        and (len(beginning) < 11 or beginning[10] >= _VERSION_MIN)
    )


def wants_no_keys(greeting: bytes | bytearray) -> bool:
    return greeting[VERSION_END : VERSION_END + len(NULL)] == NULL


def is_ready(body: bytes) -> bool:
    """Whether a command is READY, of somebody who sends and receives messages as we do."""
    if not body.startswith(b"\x05READY"):
        return False
    at, speaks = 6, False
    while at < len(body):
        value = at + 1 + body[at] + 4
        end = value + int.from_bytes(body[value - 4 : value], "big")
        if end > len(body):
            return False
        if body[at + 1 : value - 4].lower() == b"socket-type":
            speaks = body[value:end] in _SPEAKERS
        at = end
    return speaks


#: Kinds of frames, beside COMMAND: a whole message; one of several frames, and the last one of these.
MESSAGE, PART, LAST_PART = 0, 1, 2


class Frames:
    """Cuts what has come into frames. It holds what has come of one that is not whole, and not what is announced."""

    __slots__ = ("_at", "_body", "_flags", "_parts", "_rest", "missing")

    def __init__(self) -> None:
        #: What is not cut yet, from `_at` on.
        self._rest, self._at = b"", 0
        #: The frame that has begun, and its flags; -1: there is none.
        self._body, self._flags = bytearray(), -1
        #: Frames so far of a message of several.
        self._parts = 0
        #: Bytes that the frame which has begun still needs.
        self.missing = 0

    @property
    def held_bytes(self) -> int:
        return len(self._rest) - self._at + len(self._body)

    @property
    def between(self) -> bool:
        """Nothing has begun: what comes next is the beginning of a message."""
        return not self._rest and self._flags < 0 and not self._parts

    def feed(self, data: bytes) -> None:
        if self.missing:
            part = data[: self.missing]
            data = data[len(part) :]
            self.missing -= len(part)
            if not self._is_passed_over(self._flags):
                self._body += part
        if data:
            self._rest, self._at = self._rest[self._at :] + data, 0

    def next(self) -> tuple[int, bytes] | None:
        """The kind and the body of the next frame; None: it is not whole. Only a message and a command have a body."""
        if self.missing:
            return None
        if self._flags >= 0:
            flags, body = self._flags, bytes(self._body)
            self._body, self._flags = bytearray(), -1
            return self._kind(flags), body
        rest, at = self._rest, self._at
        if len(rest) < at + 2:
            return None
        flags = rest[at]
        if flags > MORE | LONG | COMMAND or (flags & COMMAND and flags & MORE):
            raise RemoteProtocolError(f"a frame with the flags {flags}")
        if flags & LONG:
            if len(rest) < at + 9:
                return None
            start, size = at + 9, LONG_SIZE.unpack_from(rest, at + 1)[0]
        else:
            start, size = at + 2, rest[at + 1]
        if size > (COMMAND_BYTES_MAX if flags & COMMAND else FRAME_BYTES_MAX):
            raise RemoteProtocolError(f"a frame of {size} bytes")
        end = start + size
        passed_over = self._is_passed_over(flags)
        if end > len(rest):
            self._flags, self.missing = flags, end - len(rest)
            self._body += b"" if passed_over else rest[start:]
            self._rest, self._at = b"", 0
            return None
        body = b"" if passed_over else rest[start:end]
        self._rest, self._at = (b"", 0) if end == len(rest) else (rest, end)
        return self._kind(flags), body

    def _is_passed_over(self, flags: int) -> bool:
        return bool(flags & MORE or (self._parts and not flags & COMMAND))

    def _kind(self, flags: int) -> int:
        if flags & COMMAND:
            return COMMAND
        if flags & MORE:
            self._parts += 1
            if self._parts > PARTS_MAX:
                raise RemoteProtocolError(f"a message of more than {PARTS_MAX} frames")
            return PART
        if self._parts:
            self._parts = 0
            return LAST_PART
        return MESSAGE
