"""Items of one width, woven from the bytes of columns, with the checksum of each at its end.

    item    key | body | crc32 of both (4, little-endian)        see `store/lmdb.py`

The bytes at one place of all items are a stride of the buffer, which Python copies in one step. A CRC is affine: it is
the one of an item of zeros, and for every byte an exclusive or with what this byte at its distance from the end makes,
256 numbers. So the checksums of all items are added up place by place, too. What is alike in all items is done once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, TypeAlias, overload
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

#: Wider items are cheaper to join and to check one by one.
WOVEN_BYTES_MAX = 160
#: Tables of 1 KiB, one for each distance from the end.
_TABLES_MAX = WOVEN_BYTES_MAX
_CRC_BYTES = 4


class Fixed(NamedTuple):
    """The values of a column, so many bytes each."""

    data: bytes
    width: int


#: What all items have alike, or a column.
Piece: TypeAlias = bytes | Fixed


class Woven(Sequence[tuple[bytes, bytes]]):
    """(LMDB key, LMDB value) of each item. They are cut out when somebody looks: nobody needs all of them at once."""

    def __init__(self, data: bytearray, key_bytes: int, width: int) -> None:
        self._data = data
        self._cut = Struct(f"{key_bytes}s{width - key_bytes}s")

    def __len__(self) -> int:
        return len(self._data) // self._cut.size

    @overload
    def __getitem__(self, place: int) -> tuple[bytes, bytes]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[tuple[bytes, bytes]]: ...
    def __getitem__(self, place: int | slice) -> tuple[bytes, bytes] | Sequence[tuple[bytes, bytes]]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        key, value = self._cut.unpack_from(self._data, range(len(self))[place] * self._cut.size)
        return key, value

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._cut.iter_unpack(self._data)


def width_of(pieces: Sequence[Piece]) -> int:
    return sum(piece.width if isinstance(piece, Fixed) else len(piece) for piece in pieces)


def woven(key: Sequence[Piece], body: Sequence[Piece], count: int) -> Woven:
    """So many items, from what their keys and values consist of."""
    alike, columns = _places([*key, *body], count)
    width = len(alike) + _CRC_BYTES
    sums = _sums(alike, columns, count)
    data = bytearray((bytes(alike) + bytes(_CRC_BYTES)) * count)
    for place, column in columns:
        data[place::width] = column
    for number in range(_CRC_BYTES):
        data[len(alike) + number :: width] = sums[number::_CRC_BYTES]
    return Woven(data, width_of(key), width)


def _places(pieces: Sequence[Piece], count: int) -> tuple[bytearray, list[tuple[int, bytes]]]:
    """An item with zeros wherever items differ; those places, with the bytes that are there."""
    alike = bytearray()
    columns = []
    for piece in pieces:
        if isinstance(piece, bytes):
            alike += piece
            continue
        for number in range(piece.width):
            column = piece.data[number :: piece.width]
            if column == column[:1] * count:
                alike += column[:1]
            else:
                columns.append((len(alike), column))
                alike += b"\0"
    return alike, columns


def _sums(alike: bytearray, columns: Sequence[tuple[int, bytes]], count: int) -> bytes:
    """The CRC of every item, four bytes each."""
    base = crc32(alike)
    if not columns:
        return base.to_bytes(_CRC_BYTES, "little") * count
    total = pa.scalar(base, pa.uint32())
    for place, column in columns:
        numbers = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(column)])
        total = pc.bit_wise_xor(_made_by(len(alike) - 1 - place).take(numbers), total)
    sums = memoryview(total.buffers()[1])[: _CRC_BYTES * count]
    if sys.byteorder == "little":
        return bytes(sums)
    return b"".join([number.to_bytes(_CRC_BYTES, "little") for number in sums.cast("I")])


@lru_cache(_TABLES_MAX)
def _made_by(distance: int) -> pa.Array:
    """What each byte makes of a CRC that so many bytes before the end."""
    rest = bytes(distance)
    nothing = crc32(b"\0" + rest)
    return pa.array([crc32(bytes([byte]) + rest) ^ nothing for byte in range(256)], pa.uint32())
