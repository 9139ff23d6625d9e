"""Items of one width, woven from the bytes of columns, with the checksum of each at its end.

    item    key | body | crc32 of both (4, little-endian)        see `store/lmdb.py`

The bytes at one place of all items are a stride of the buffer, which Python copies in one step. A CRC is affine: it is
the one of an item of zeros, and for every byte an exclusive or with what this byte at its distance from the end makes,
256 numbers. So the checksums of all items are added up place by place, too. What is alike in all items is done once.
Items that are read again are checked in the same way.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, TypeAlias, overload
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from ..changetables.schema import Column, Table
from .fixed import Column as StoredColumn
from .fixed import FixedValues

#: Wider items are cheaper to join and to check one by one.
WOVEN_BYTES_MAX = 160
#: Tables of 1 KiB, one for each distance from the end.
_TABLES_MAX = WOVEN_BYTES_MAX
#: Places of so many widths and counts: pages of a table have the same, but for the last one.
_OFFSETS_MAX = 8
_CRC_BYTES = 4
_TS_BYTES = 8
#: The kind of a cell that has a value.
_VALUE = b"\1"
#: The CRC of anything that ends with its own CRC.
_RESIDUE = crc32(bytes(_CRC_BYTES)).to_bytes(_CRC_BYTES, "little")


class Fixed(NamedTuple):
    """The values of a column, so many bytes each."""

    data: bytes
    width: int


#: Of the columns that stored rows can be read into, and of numbers in arrays.
_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
_OF_CODES = {
    "B": pa.uint8(),
    "H": pa.uint16(),
    "I": pa.uint32(),
    "Q": pa.uint64(),
    "b": pa.int8(),
    "h": pa.int16(),
    "i": pa.int32(),
    "q": pa.int64(),
    "d": pa.float64(),
}


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


class Gathered:
    """Cells in the order of their keys, as long as they are alike: of one width, written at one time, with a value.
    They are joined piece by piece, while what was made of them is in the processor's cache."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._key_bytes = self._value_bytes = 0
        self.count = 0
        #: The last key, and the (inverted) timestamp of all.
        self.last = self.written = b""

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
        """False: they are not taken, because something about them is different."""
        if not self.count:
            self._key_bytes, self._value_bytes = len(keys[0]), len(values[0])
            self.written = keys[0][-_TS_BYTES:]
        key_bytes, value_bytes = self._key_bytes, self._value_bytes
        if {key_bytes} != set(map(len, keys)) or {value_bytes} != set(map(len, values)):
            return False
        joined, bodies = b"".join(keys), b"".join(values)
        for place in range(-_TS_BYTES, 0):
            if joined[key_bytes + place :: key_bytes] != self.written[place:][:1] * len(keys):
                return False
        if bodies[value_bytes - _CRC_BYTES - 1 :: value_bytes] != _VALUE * len(keys):
            return False
        self._keys.append(joined)
        self._values.append(bodies)
        self.count += len(keys)
        self.last = keys[-1]
        return key_bytes + value_bytes <= WOVEN_BYTES_MAX

    def checked(self) -> FixedValues | None:
        """The values; None: a checksum is wrong, or keys are not in their order."""
        keys, data = b"".join(self._keys), b"".join(self._values)
        pieces = [Fixed(keys, self._key_bytes), Fixed(data, self._value_bytes)]
        if not _ascends(keys, self._key_bytes, self.count):
            return None
        if _sums(*_places(pieces, self.count), self.count) != _RESIDUE * self.count:
            return None
        return FixedValues(data, self._value_bytes, self._value_bytes - _CRC_BYTES - 1)


def _ascends(keys: bytes, width: int, count: int) -> bool:
    """Whether each is above the one before."""
    found = pa.Array.from_buffers(pa.binary(), count, [None, _offsets(width, count), pa.py_buffer(keys)])
    return bool(pc.all(pc.less(found[:-1], found[1:])).as_py())


@lru_cache(_OFFSETS_MAX)
def _offsets(width: int, count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, (count + 1) * width, width)))


def arrow_table(values: FixedValues, table: Table) -> pa.Table | None:
    """Stored rows as the columns of their table; None: that is not how they are stored."""
    found = values.columns()
    if found is None or len(found) != len(table.columns):
        return None
    arrays = [_arrow_column(values, column) for values, column in zip(found, table.columns, strict=True)]
    if any(each is None for each in arrays):
        return None
    return pa.table(arrays, names=[column.name for column in table.columns])


def _arrow_column(values: StoredColumn, column: Column) -> pa.Array | None:
    type_ = _TYPES.get(column.type.kind)
    if type_ is None:
        return None
    if not isinstance(values, array):
        return pa.array(values, type_)
    made = pa.Array.from_buffers(_OF_CODES[values.typecode], len(values), [None, pa.py_buffer(values)])
    return made.cast(type_)
