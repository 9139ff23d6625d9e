"""What travels between two processes: all messages for a peer that were queued since the last flush, as one frame.

    | version 1 | name bytes 1 | name | count 4 | size 4 ... | payload ... |        numbers are unsigned, little-endian

One frame, and not one frame per message: each frame costs 5 us on its way through pyzmq, a slice of one 0.2 us. `name`
is who the sender says it is; where keys are used, nobody believes it. A payload is an encoded message: see `wire`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..changetables.errors import LocalProtocolError, RemoteProtocolError

VERSION = 1
#: The longest name of a process: what its length byte can say.
NAME_BYTES_MAX = 255
#: One message. Larger things (bulk loads, key ranges that move) are sent in pieces.
MESSAGE_BYTES_MAX = 32 * 2**20
#: A batch takes no further message at this size: a peer begins with the first while the others are still on their way,
#: and what waits for a slow peer is bounded in bytes, too.
BATCH_BYTES_MAX = 2**20
#: Enough for the smallest messages to fill BATCH_BYTES_MAX; who decodes a batch holds as many objects.
PAYLOADS_PER_BATCH_MAX = 8_192
#: A batch of one message that is as large as it may be, with everything around it.
FRAME_BYTES_MAX = 2 + NAME_BYTES_MAX + 4 + 4 * PAYLOADS_PER_BATCH_MAX + MESSAGE_BYTES_MAX

#: Most batches between a client and a node have one message: its count and its size at once take half the time.
_ONE = struct.Struct("<II")
_ONE_BYTES = _ONE.size


def header_of(name: str) -> bytes:
    """How every batch of a process begins."""
    encoded = name.encode()
    if not 0 < len(encoded) <= NAME_BYTES_MAX:
        raise LocalProtocolError(f"the name of a process has 1 to {NAME_BYTES_MAX} bytes, not {len(encoded)}")
    return bytes((VERSION, len(encoded))) + encoded


def pack_batch(header: bytes, payloads: Sequence[bytes]) -> bytes:
    count = len(payloads)
    if count == 1:
        return b"".join((header, _ONE.pack(1, len(payloads[0])), payloads[0]))
    return b"".join((header, struct.pack(f"<{count + 1}I", count, *map(len, payloads)), *payloads))


def name_in(frame: bytes) -> tuple[str, int]:
    """Who the sender says it is, and how long the header is."""
    if len(frame) < 2:
        raise RemoteProtocolError(f"a batch of {len(frame)} bytes")
    if frame[0] != VERSION:
        raise RemoteProtocolError(f"a batch of version {frame[0]}, not {VERSION}", hint="update the older side")
    end = 2 + frame[1]
    try:
        name = frame[2:end].decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a batch whose sender's name is no text") from None
    if end == 2 or end > len(frame) or not name.isprintable():
        raise RemoteProtocolError("a batch without a proper name of its sender")
    return name, end


def payloads_in(frame: bytes, start: int) -> list[bytes]:
    """The messages of a batch whose header has `start` bytes."""
    try:
        count, first_bytes = _ONE.unpack_from(frame, start)
        start_of_first = start + _ONE_BYTES
        if count == 1 and first_bytes == len(frame) - start_of_first:
            return [frame[start_of_first:]]
        if not 0 < count <= PAYLOADS_PER_BATCH_MAX:
            raise RemoteProtocolError(f"a batch of {count} messages, not 1 to {PAYLOADS_PER_BATCH_MAX}")
        sizes: tuple[int, ...] = struct.unpack_from(f"<{count}I", frame, start + 4)
    except struct.error:
        raise RemoteProtocolError("a batch that ends within its sizes") from None
    at = start + 4 + 4 * count
    if at + sum(sizes) != len(frame):
        raise RemoteProtocolError("a batch whose sizes do not add up to its length")
    payloads = []
    for size in sizes:
        end = at + size
        payloads.append(frame[at:end])
        at = end
    return payloads
