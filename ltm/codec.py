"""Rows and log records as msgpack: positional arrays, never maps of names (three times the bytes and the time).

Extension types carry what msgpack lacks: 1 decimal (its text), 2 date (ordinal), 3 timestamp (microseconds since
1970), 4 integer beyond 64 bits (signed big-endian bytes; the exact float sums are such numbers).
"""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial

import msgpack

from ..changetables.errors import OperationalError
from ..changetables.numbers import DECIMAL_NAN
from ..changetables.types import NAN, Row

#: No record, row or part of one is longer; a flush is bounded by the driver well below it.
DECODED_BYTES_MAX = 2**31 - 1
#: The longest number that a peer may send: more digits than PostgreSQL's numeric has. Larger ones take long to read.
PEER_EXTENSION_BYTES_MAX = 150_000
#: A buffer that had to grow beyond this is not kept.
KEPT_BUFFER_BYTES_MAX = 256 * 2**10
SMALL_BUFFER_BYTES = 16 * 2**10

#: How msgpack begins an array whose length has four bytes.
_ARRAY = b"\xdd"
_DECIMAL, _DATE, _TIMESTAMP, _BIG_INT = 1, 2, 3, 4
#: How every NaN and infinity begins, of 4 or 8 bytes; found by chance elsewhere, it costs only time.
_NAN_MAY_BE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)


def _to_extension(value: object) -> msgpack.ExtType:
    if isinstance(value, Decimal):
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    if isinstance(value, datetime.datetime):
        return msgpack.ExtType(_TIMESTAMP, ((value - _EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True))
    if isinstance(value, datetime.date):
        return msgpack.ExtType(_DATE, value.toordinal().to_bytes(4, "big"))
    if isinstance(value, int):
        return msgpack.ExtType(_BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    raise TypeError(f"no encoding for {type(value).__name__}")


def _from_extension(code: int, data: bytes) -> object:
    if code == _DECIMAL:
        return DECIMAL_NAN if data == b"NaN" else Decimal(data.decode())
    if code == _TIMESTAMP:
        return _EPOCH + datetime.timedelta(microseconds=int.from_bytes(data, "big", signed=True))
    if code == _DATE:
        return datetime.date.fromordinal(int.from_bytes(data, "big"))
    if code == _BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    raise OperationalError(f"unknown value type {code} in stored data", hint="it was written by a newer version")


def pack(value: object) -> bytes:
    """Encode plain data."""
    packed: bytes = msgpack.packb(value, default=_to_extension)
    return packed


def make_pack() -> Callable[[object], bytes]:
    """A `pack` that keeps its buffer between calls, which saves half the time; not for several threads at once."""
    packer: Callable[[object], bytes] = msgpack.Packer(default=_to_extension).pack
    return packer


#: Decode plain data, for callers that expect whatever bytes may raise.
decoded: Callable[[bytes], object] = partial(
    msgpack.unpackb, ext_hook=_from_extension, use_list=False, strict_map_key=False
)


def unpack(data: bytes) -> object:
    try:
        return decoded(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise OperationalError(f"stored data cannot be decoded: {error}") from error


def unpack_stream(data: bytes) -> Iterator[tuple[object, ...]]:
    """The values that stand one after another in `data`, each an array."""
    unpacker = msgpack.Unpacker(ext_hook=_from_extension, use_list=False, max_buffer_size=DECODED_BYTES_MAX)
    unpacker.feed(data)
    yield from unpacker


class NotUnderstood(Exception):
    """Bytes that a peer has sent are no plain value."""


class _Buffered(threading.local):
    """A packer and unpackers that keep their buffers between calls, which saves a third of the time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.pack = make_pack()
        sizes = {"read_size": SMALL_BUFFER_BYTES, "max_buffer_size": DECODED_BYTES_MAX}
        self.structure = msgpack.Unpacker(**sizes)
        self.values = msgpack.Unpacker(ext_hook=_from_peer_extension, use_list=False, strict_map_key=False, **sizes)
        self.read_bytes = 0


def _from_peer_extension(code: int, data: bytes) -> object:
    if len(data) > PEER_EXTENSION_BYTES_MAX:
        raise NotUnderstood(f"a number of {len(data)} bytes")
    return _from_extension(code, data)


_buffered = _Buffered()


def pack_for_peer(value: object) -> bytes:
    """As `pack`, but quicker for many small values."""
    packed = _buffered.pack(value)
    if len(packed) > KEPT_BUFFER_BYTES_MAX:
        _buffered.reset()
    return packed


def array_of(packed: Sequence[bytes]) -> bytes:
    """Values that are packed already, as one array."""
    return b"".join((_ARRAY, len(packed).to_bytes(4, "big"), *packed))


def unpack_from_peer(data: bytes, start: int) -> object:
    """The value that begins at `start` and ends with `data`. Raises `NotUnderstood`, whatever is wrong with the bytes.

    It takes memory in proportion to them only. An array that says it is long makes the unpacker take the memory for it
    at once, and arrays in arrays do so a thousand times: so the structure is walked through first, which makes nothing.
    """
    buffered = _buffered
    size = len(data) - start
    try:
        part = memoryview(data)[start:]
        buffered.structure.feed(part)
        buffered.structure.skip()
        buffered.read_bytes += size
        if buffered.structure.tell() != buffered.read_bytes:
            raise NotUnderstood("there are bytes after the end")
        buffered.values.feed(part)
        value: object = buffered.values.unpack()
        # In most data none of these is found, in a quarter of the time that the pattern takes.
        may_be = b"\xcb\x7f" in data or b"\xcb\xff" in data or b"\xca\x7f" in data or b"\xca\xff" in data
        if may_be and _NAN_MAY_BE.search(data) is not None:
            value = _one_nan_in(value)
    except Exception as error:
        # Decoding raises many things, none of which is this process's fault. What is in the buffers is of no use.
        buffered.reset()
        raise NotUnderstood(str(error) or type(error).__name__) from error
    if size > KEPT_BUFFER_BYTES_MAX:
        buffered.reset()
    return value


def _one_nan_in(value: object) -> object:
    """Every NaN in it as the one that the engine knows."""
    if value.__class__ is tuple:
        return tuple([_one_nan_in(each) for each in value])
    if value.__class__ is dict:
        return {key: _one_nan_in(each) for key, each in value.items()}
    return NAN if value.__class__ is float and value != value else value


def unpack_row(data: bytes) -> Row:
    row: Row = msgpack.unpackb(data, ext_hook=_from_extension, use_list=False)
    return row


def with_one_nan(row: Row) -> Row:
    """Decoding makes a new object of every NaN; the engine knows only one (types.NAN)."""
    for value in row:  # written out: every row with a float that is read from the store or the log comes through here
        if value != value:
            return tuple([NAN if value.__class__ is float and value != value else value for value in row])
    return row
