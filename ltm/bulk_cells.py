"""Rows in Arrow columns as the cells of a store, column by column: no Python object is made of a value.

    cell    key | 2**64-1 - ts (8)  ->  msgpack array of the values | kind (1) | crc32 (4)      see `store/lmdb.py`
    entry   index prefix | primary key without its table id | 2**64-1 - ts  ->  primary key | kind | crc32

A key or value is joined from pieces: what all rows have alike, and the bytes of each column. Where those have one width
in all rows of a batch, as numbers have, cells are woven (`woven.py`), else Arrow joins them. What is written is read by
the decoders of `changetables/keys.py` and `codec.py`; the numbers of a batch all have the width that its largest needs.

Not every table can be done this way. What cannot is None here, and is encoded row by row.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import TypeAlias, cast
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from ..changetables.keys import INDEX_PREFIX_BYTES_MAX, KEY_BYTES_MAX, SHORTENED_TAIL_BYTES
from ..changetables.schema import Column, Index, Table
from ..changetables.types import NAN, Row
from .woven import WOVEN_BYTES_MAX, Fixed, Piece, width_of, woven

#: (LMDB key, LMDB value), in order of the keys.
Items: TypeAlias = Sequence[tuple[bytes, bytes]]
#: What all rows have alike, a column of one width, or Arrow bytes.
_Piece: TypeAlias = Piece | pa.Array
_Pieces: TypeAlias = list[_Piece]

_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_DATE_ZERO_ORDINAL = 719_163
_DATES = (1 - _DATE_ZERO_ORDINAL, 3_652_059 - _DATE_ZERO_ORDINAL)
_DAY_US = 86_400_000_000
_MOMENTS = (_DATES[0] * _DAY_US, (_DATES[1] + 1) * _DAY_US - 1)
_RANGES = {"date": _DATES, "timestamp": _MOMENTS, "timestamptz": _MOMENTS}
_SIGN_BIT = -(2**63)
#: The widths of numbers: bytes -> (Arrow type, code of array.array, msgpack's mark).
_INTS = {
    1: (pa.int8(), "b", b"\xd0"),
    2: (pa.int16(), "h", b"\xd1"),
    4: (pa.int32(), "i", b"\xd2"),
    8: (pa.int64(), "q", b"\xd3"),
}
_NULL = b"\xc0"
#: The kind of a cell that has a value.
_VALUE = b"\x01"
_KEY_VALUE, _KEY_NULL = b"\x01", b"\x02"
_SMALL_TEXT_BYTES_MAX = 255
#: Of Arrow, in the order of the machine.
_OFFSET = Struct("=i")


def takes(table: Table) -> bool:
    """Whether the rows of a table can be encoded here, if their values can."""
    return (
        all(not column.dropped and not column.hidden and _is_plain(column) for column in table.columns)
        and not table.checks
        and all(table.columns[position].type.kind != "float" for position in table.key)
        and all(table.columns[place].type.kind != "float" for index in table.indexes for place in index.columns)
    )


def _is_plain(column: Column) -> bool:
    return column.type.kind in _TYPES and column.type.length is None


def physical(batch: pa.RecordBatch, table: Table) -> pa.Table | None:
    """The columns of a batch, found by name, as the table has them; None if a value has to be looked at."""
    names = batch.schema.names
    arrays = []
    for position, column in enumerate(table.columns):
        if column.name in names:
            made = _fitted(batch.column(names.index(column.name)), column.type.kind)
        else:
            made = None if column.has_default else pa.nulls(batch.num_rows, _TYPES[column.type.kind])
        if made is None or (made.null_count and (not column.nullable or position in table.key)):
            return None
        arrays.append(made)
    return pa.table(arrays, names=[column.name for column in table.columns])


def _fitted(values: pa.Array, kind: str) -> pa.Array | None:
    kinds = pa.types
    found = values.type
    fits = {
        "int": kinds.is_integer(found),
        "float": kinds.is_float64(found) or kinds.is_float32(found),
        "bool": kinds.is_boolean(found),
        "str": kinds.is_string(found) or kinds.is_large_string(found),
        "bytes": kinds.is_binary(found) or kinds.is_large_binary(found),
        "date": kinds.is_date32(found),
        "timestamp": kinds.is_timestamp(found) and found.tz is None and found.unit != "ns",
        "timestamptz": kinds.is_timestamp(found) and found.tz is not None and found.unit != "ns",
    }
    if not fits[kind]:
        return None
    try:
        made = values.cast(_TYPES[kind])
        if kind == "str":
            made.validate(full=True)  # files may have bytes that are no text
    except pa.ArrowException:
        return None
    if kind in _RANGES and len(made) > made.null_count:
        low, high = _RANGES[kind]
        bounds = pc.min_max(_ints(made, kind))
        if bounds["min"].as_py() < low or bounds["max"].as_py() > high:
            return None
    return made


def _ints(values: pa.Array, kind: str) -> pa.Array:
    """Dates and moments as numbers."""
    if kind == "date":
        return values.cast(pa.int32()).cast(pa.int64())
    return values.cast(pa.int64()) if kind in _RANGES else values


def rows_of(columns: pa.Table, table: Table) -> list[Row]:
    """The rows of physical columns in the engine's form."""
    made = []
    for column, values in zip(table.columns, columns.columns, strict=True):
        kind = column.type.kind
        plain = values.cast(_TYPES["timestamp"]) if kind == "timestamptz" else values
        found = plain.to_pylist()
        made.append([NAN if each != each else each for each in found] if kind == "float" else found)
    return list(zip(*made, strict=True))


class Encoder:
    """Makes the cells of one table and its indexes, all with one timestamp."""

    def __init__(self, table: Table, ts: int) -> None:
        self._table = table
        self._suffix = (2**64 - 1 - ts).to_bytes(8, "big")

    def encode(self, rows: pa.Table) -> tuple[Items, list[Items]] | None:
        """The cells of rows and, for each index, of its entries; None: something is too long for a key."""
        table = self._table
        rows = _ordered(rows, table.key)
        columns = _columns(rows)
        key = self._key(columns, table.key, None)
        if key is None or (key_bytes := _longest(key)) + 4 > KEY_BYTES_MAX:
            return None
        body: _Pieces = [_array_head(len(columns))]
        for column, values in zip(table.columns, columns, strict=True):
            body += _value(column, values)
        cells = _items([_prefix(table.id), *key, self._suffix], [*body, _VALUE], rows.num_rows)
        entries = []
        for index in table.indexes:
            made = self._entries(rows, index, key_bytes)
            if made is None:
                return None
            entries.append(made)
        return cells, entries

    def _entries(self, rows: pa.Table, index: Index, key_bytes: int) -> Items | None:
        """Rows are in the order of the primary key, and the sort is stable: entries come in the order of both."""
        columns = _columns(_ordered(rows, index.columns))
        found, key = self._key(columns, index.columns, index), self._key(columns, self._table.key, None)
        if found is None or key is None or not _fits_index(_longest(found), key_bytes):
            return None
        return _items(
            [_prefix(index.id), *found, *key, self._suffix], [_prefix(self._table.id), *key, _VALUE], rows.num_rows
        )

    def _key(self, columns: Sequence[pa.Array], places: Sequence[int], index: Index | None) -> _Pieces | None:
        pieces: _Pieces = []
        for place in places:
            column = self._table.columns[place]
            piece = _key_piece(columns[place], column.type.kind)
            if piece is None:
                return None
            if index is not None and column.nullable and place not in self._table.key:
                piece = [_KEY_VALUE, *piece]
            pieces += _or_null(columns[place], piece, _KEY_NULL)
        return pieces


def _ordered(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    """In the order of some columns, NULLs last, as their keys are: by numbers mostly, not by all the bytes of a key."""
    names = [rows.column_names[place] for place in places]
    if len(places) == 1 and _is_ordered(_one(rows.column(places[0]))):
        return rows
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))


def _columns(rows: pa.Table) -> list[pa.Array]:
    return [_one(column) for column in rows.columns]


def _items(key: _Pieces, body: _Pieces, count: int) -> Items:
    """`key` and `body` in order."""
    if (
        all(isinstance(piece, bytes | Fixed) for piece in (*key, *body))
        and width_of(pieces := cast("list[Piece]", [*key, *body])) <= WOVEN_BYTES_MAX
    ):
        return woven(pieces[: len(key)], pieces[len(key) :], count)
    unsealed, lengths = _joined([*key, *body]), _lengths(key, count)
    sums = array("I", map(crc32, _slices(unsealed)))
    if sys.byteorder == "big":
        sums.byteswap()
    return _pairs(_joined([unsealed, Fixed(sums.tobytes(), 4)]), lengths)


def _is_ordered(values: pa.Array) -> bool:
    count = len(values)
    if values.null_count:
        return False
    return count < 2 or bool(pc.all(pc.less_equal(values.slice(0, count - 1), values.slice(1))).as_py())


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _prefix(table_id: int) -> bytes:
    return table_id.to_bytes(4, "big")


def _arrow(piece: _Piece) -> pa.Array | pa.Scalar:
    if isinstance(piece, bytes):
        return pa.scalar(piece, pa.binary())
    if isinstance(piece, Fixed):
        count = len(piece.data) // piece.width
        made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(piece.width), count, [None, pa.py_buffer(piece.data)])
        return made.cast(pa.binary())
    return piece


def _joined(pieces: _Pieces) -> pa.Array:
    arrays = [_arrow(piece) for piece in pieces]
    return pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.binary())) if len(arrays) > 1 else arrays[0]


def _lengths(pieces: _Pieces, count: int) -> pa.Array:
    """How many bytes the pieces have together."""
    total = pa.repeat(pa.scalar(sum(map(_fixed_bytes, pieces)), pa.int32()), count)
    for piece in pieces:
        if isinstance(piece, pa.Array):
            total = pc.add(total, pc.binary_length(piece))
    return total


def _longest(pieces: _Pieces) -> int:
    """No more bytes than this are in the pieces together."""
    longest = sum(map(_fixed_bytes, pieces))
    return longest + sum(
        pc.max(pc.binary_length(piece)).as_py() or 0 for piece in pieces if isinstance(piece, pa.Array)
    )


def _fixed_bytes(piece: _Piece) -> int:
    return 0 if isinstance(piece, pa.Array) else width_of([piece])


def _fits_index(prefix_bytes: int, key_bytes: int) -> bool:
    """Whether no entry has to be shortened."""
    longest = prefix_bytes + 4
    whole = INDEX_PREFIX_BYTES_MAX - SHORTENED_TAIL_BYTES
    return longest <= whole and longest + key_bytes <= KEY_BYTES_MAX - SHORTENED_TAIL_BYTES


def _or_null(values: pa.Array, pieces: _Pieces, null: bytes) -> _Pieces:
    """The pieces, and other bytes where values are NULL."""
    if not values.null_count:
        return pieces
    return [pc.if_else(values.is_valid(), _joined(pieces), pa.scalar(null, pa.binary()))]


def _big_endian(values: pa.Array, width: int) -> Fixed:
    """Integers of that width, without NULLs, as bytes."""
    type_, code, _ = _INTS[width]
    return _swapped(values.cast(type_), width, code)


def _swapped(values: pa.Array, width: int, code: str) -> Fixed:
    """Numbers, without NULLs, as bytes in big-endian order; `code` is that of array.array."""
    numbers = array(code)
    start = values.offset * width
    numbers.frombytes(memoryview(values.buffers()[1])[start : start + len(values) * width])
    if sys.byteorder == "little":
        numbers.byteswap()
    return Fixed(numbers.tobytes(), width)


def _filled(values: pa.Array) -> pa.Array:
    """With something that stands where a NULL is."""
    if not values.null_count:
        return values
    type_ = values.type
    if pa.types.is_string(type_):
        return values.fill_null("")
    if pa.types.is_binary(type_):
        return values.fill_null(b"")
    number = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    return values.fill_null(pa.scalar(False) if pa.types.is_boolean(type_) else pa.scalar(0, number).cast(type_))


def _bytes(values: pa.Array) -> Fixed:
    """Numbers up to 255, without NULLs, a byte each."""
    return _swapped(values.cast(pa.uint8()), 1, "B")


def _key_piece(values: pa.Array, kind: str) -> _Pieces | None:
    """A column in a key, with anything where it is NULL."""
    filled = _filled(values)
    if kind == "int":
        return [_big_endian(pc.bit_wise_xor(filled, pa.scalar(_SIGN_BIT, pa.int64())), 8)]
    if kind == "date":
        return [_big_endian(pc.add(_ints(filled, kind), _DATE_ZERO_ORDINAL), 4)]
    if kind in _RANGES:
        return [_big_endian(pc.subtract(_ints(filled, kind), _MOMENTS[0]), 8)]
    if kind == "bool":
        return [_bytes(filled)]
    text = _narrowed(filled.cast(pa.binary()))
    data = text.data if isinstance(text, Fixed) else _data(text)
    return None if b"\x00" in data or b"\x01" in data else [text, b"\x00"]


def _narrowed(values: pa.Array) -> Fixed | pa.Array:
    """Bytes that all have one width, if they have."""
    width = _width(pc.binary_length(values))
    return Fixed(_data(values), width) if width else values


def _array_head(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _value(column: Column, values: pa.Array) -> _Pieces:
    """A column in msgpack."""
    kind = column.type.kind
    filled = _filled(values)
    made: _Pieces
    if kind == "int":
        made = _number(filled)
    elif kind == "float":
        made = [b"\xcb", _swapped(filled, 8, "d")]
    elif kind == "bool":
        made = [_bytes(pc.add(filled.cast(pa.uint8()), pa.scalar(0xC2, pa.uint8())))]
    elif kind == "date":
        made = [b"\xd6\x02", _big_endian(pc.add(_ints(filled, kind), _DATE_ZERO_ORDINAL), 4)]
    elif kind in _RANGES:
        made = [b"\xd7\x03", _big_endian(_ints(filled, kind), 8)]
    else:
        made = _text(filled.cast(pa.binary()), kind == "bytes")
    return _or_null(values, made, _NULL)


def _number(values: pa.Array) -> _Pieces:
    bounds = pc.min_max(values)
    low, high = bounds["min"].as_py() or 0, bounds["max"].as_py() or 0
    if low >= 0 and high < 128:
        return [_big_endian(values, 1)]
    width = next(width for width in _INTS if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1))
    return [_INTS[width][2], _big_endian(values, width)]


def _text(values: pa.Array, is_blob: bool) -> _Pieces:
    lengths = pc.binary_length(values)
    longest = pc.max(lengths).as_py() or 0
    if longest > _SMALL_TEXT_BYTES_MAX:
        return [b"\xc6" if is_blob else b"\xdb", _big_endian(lengths, 4), values]
    mark = b"\xc4" if is_blob else b"\xd9"
    return [mark, _bytes(lengths), _narrowed(values)]


def _slices(values: pa.Array) -> list[bytes]:
    """The bytes of each, for one look: they are cut out of one buffer."""
    width = _width(pc.binary_length(values))
    if width:
        return [each for (each,) in Struct(f"{width}s").iter_unpack(_data(values))]
    offsets, data = _offsets(values), _data(values)
    return [data[start:stop] for start, stop in pairwise(offsets)]


def _pairs(values: pa.Array, key_bytes: pa.Array) -> Items:
    width, first, data = _width(pc.binary_length(values)), _width(key_bytes), _data(values)
    if width and first:
        return list(Struct(f"{first}s{width - first}s").iter_unpack(data))
    return [
        (data[start : start + size], data[start + size : stop])
        for (start, stop), size in zip(pairwise(_offsets(values)), key_bytes.to_pylist(), strict=True)
    ]


def _width(lengths: pa.Array) -> int:
    """The width of all if they have one, else 0."""
    bounds = pc.min_max(lengths)
    width: int = bounds["max"].as_py() or 0
    return width if bounds["min"].as_py() == width else 0


def _offsets(values: pa.Array) -> list[int]:
    """Where each begins in `_data`, with the end of the last."""
    offsets = array("i")
    start = values.offset * 4
    offsets.frombytes(values.buffers()[1][start : start + (len(values) + 1) * 4].to_pybytes())
    found = offsets.tolist()
    return [each - found[0] for each in found] if found[0] else found


def _data(values: pa.Array) -> bytes:
    """The bytes of all."""
    _, offsets, data = values.buffers()
    if data is None:
        return b""
    first, stop = (_OFFSET.unpack_from(offsets, 4 * (values.offset + place))[0] for place in (0, len(values)))
    made: bytes = data[first:stop].to_pybytes()
    return made
