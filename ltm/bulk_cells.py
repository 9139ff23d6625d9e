"""Rows in Arrow columns as the cells of a store, column by column: no Python object is made of a value.

    cell    key | 2**64-1 - ts (8)  ->  msgpack array of the values | kind (1) | crc32 (4)      see `store/lmdb.py`
    entry   index prefix | primary key without its table id | 2**64-1 - ts  ->  primary key | kind | crc32

A key or value is joined from pieces, one Arrow array of bytes for each column. What is written is read by the decoders
of `changetables/keys.py` and `codec.py`; the numbers of a batch all have the width that its largest needs.

Not every table can be done this way. What cannot is None here, and is encoded row by row.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import TypeAlias
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from ..changetables.keys import INDEX_PREFIX_BYTES_MAX, KEY_BYTES_MAX, SHORTENED_TAIL_BYTES
from ..changetables.schema import Column, Index, Table
from ..changetables.types import NAN, Row

#: (LMDB key, LMDB value), in order of the keys.
Items: TypeAlias = list[tuple[bytes, bytes]]
_Pieces: TypeAlias = list[pa.Array | pa.Scalar]

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
_NULL = pa.scalar(b"\xc0", pa.binary())
#: The kind of a cell that has a value.
_VALUE = pa.scalar(b"\x01", pa.binary())
_KEY_NULL = pa.scalar(b"\x02", pa.binary())
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
        self._suffix = pa.scalar((2**64 - 1 - ts).to_bytes(8, "big"), pa.binary())

    def encode(self, rows: pa.Table) -> tuple[Items, list[Items]] | None:
        """The cells of rows and, for each index, of its entries; None: something is too long for a key."""
        table = self._table
        columns = [_one(rows.column(position)) for position in range(len(table.columns))]
        key = self._key(columns, table.key, None)
        if key is None or _longest(key) + 4 > KEY_BYTES_MAX:
            return None
        body: _Pieces = [pa.scalar(_array_head(len(columns)), pa.binary())]
        for place, column in enumerate(table.columns):
            body += _value(column, columns[place])
        prefix = _prefix(table.id)
        cells = self._items([prefix, key], body)
        entries = []
        in_order = _is_ordered(key)
        for index in table.indexes:
            found = self._key(columns, index.columns, index)
            if found is None or not _fits_index(found, key):
                return None
            primary = key
            if in_order and len(index.columns) == 1:
                # A stable sort of what are mostly numbers, instead of one of all the bytes behind them, too.
                order = pc.sort_indices(columns[index.columns[0]])
                found, primary = found.take(order), key.take(order)
            entries.append(self._items([_prefix(index.id), found, primary], [prefix, primary]))
        return cells, entries

    def _key(self, columns: Sequence[pa.Array], places: Sequence[int], index: Index | None) -> pa.Array | None:
        pieces: _Pieces = []
        for place in places:
            column = self._table.columns[place]
            piece = _key_piece(columns[place], column.type.kind)
            if piece is None:
                return None
            if index is not None and column.nullable and place not in self._table.key:
                piece = pc.coalesce(_joined([pa.scalar(b"\x01", pa.binary()), piece]), _KEY_NULL)
            pieces.append(piece)
        return _joined(pieces)

    def _items(self, key: _Pieces, body: _Pieces) -> Items:
        unsealed = _joined([*key, self._suffix, *body, _VALUE])
        lengths = _lengths([*key, self._suffix])
        if not _is_ordered(unsealed):
            # No key is the beginning of another one: the order of the whole is that of the keys.
            order = pc.sort_indices(unsealed)
            unsealed = unsealed.take(order)
            lengths = lengths.take(order)
        sums = array("I", map(crc32, _slices(unsealed)))
        if sys.byteorder == "big":
            sums.byteswap()
        return _pairs(_joined([unsealed, _fixed(sums, 4)]), lengths)


def _is_ordered(values: pa.Array) -> bool:
    count = len(values)
    return count < 2 or bool(pc.all(pc.less_equal(values.slice(0, count - 1), values.slice(1))).as_py())


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _prefix(table_id: int) -> pa.Scalar:
    return pa.scalar(table_id.to_bytes(4, "big"), pa.binary())


def _joined(pieces: _Pieces) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary())) if len(pieces) > 1 else pieces[0]


def _lengths(pieces: _Pieces) -> pa.Array:
    """How many bytes the pieces have together."""
    total = pc.binary_length(pieces[0])
    for piece in pieces[1:]:
        total = pc.add(total, pc.binary_length(piece))
    return total


def _longest(values: pa.Array) -> int:
    return pc.max(pc.binary_length(values)).as_py() or 0


def _fits_index(prefix: pa.Array, key: pa.Array) -> bool:
    """Whether no entry has to be shortened."""
    longest = _longest(prefix) + 4
    whole = INDEX_PREFIX_BYTES_MAX - SHORTENED_TAIL_BYTES
    return longest <= whole and longest + _longest(key) <= KEY_BYTES_MAX - SHORTENED_TAIL_BYTES


def _fixed(numbers: array[int] | array[float], width: int) -> pa.Array:
    """Numbers as bytes of one width each."""
    made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(numbers), [None, pa.py_buffer(numbers)])
    return made.cast(pa.binary())


def _big_endian(values: pa.Array, width: int) -> pa.Array:
    """Integers of that width, without NULLs, as bytes."""
    type_, code, _ = _INTS[width]
    values = values.cast(type_)
    numbers = array(code)
    start = values.offset * width
    numbers.frombytes(values.buffers()[1][start : start + len(values) * width].to_pybytes())
    if sys.byteorder == "little":
        numbers.byteswap()
    return _fixed(numbers, width)


def _key_piece(values: pa.Array, kind: str) -> pa.Array | None:
    """A column in a key: NULL where it is NULL."""
    filled = values.fill_null(_zero(values.type)) if values.null_count else values
    if kind == "int":
        made = _big_endian(pc.bit_wise_xor(filled, pa.scalar(_SIGN_BIT, pa.int64())), 8)
    elif kind == "date":
        made = _big_endian(pc.add(_ints(filled, kind), _DATE_ZERO_ORDINAL), 4)
    elif kind in _RANGES:
        made = _big_endian(pc.subtract(_ints(filled, kind), _MOMENTS[0]), 8)
    elif kind == "bool":
        made = pc.if_else(filled, pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x00", pa.binary()))
    else:
        made = filled.cast(pa.binary())
        if any(pc.any(pc.match_substring(made, each)).as_py() for each in (b"\x00", b"\x01")):
            return None
        made = _joined([made, pa.scalar(b"\x00", pa.binary())])
    return pc.if_else(values.is_valid(), made, None) if values.null_count else made


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Something to stand where a NULL is."""
    if pa.types.is_string(type_):
        return pa.scalar("", type_)
    if pa.types.is_binary(type_):
        return pa.scalar(b"", type_)
    number = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    return pa.scalar(False) if pa.types.is_boolean(type_) else pa.scalar(0, number).cast(type_)


def _array_head(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _value(column: Column, values: pa.Array) -> _Pieces:
    """A column in msgpack."""
    kind = column.type.kind
    filled = values.fill_null(_zero(values.type)) if values.null_count else values
    made: _Pieces
    if kind == "int":
        made = _number(filled)
    elif kind == "float":
        numbers = array("d")
        start = filled.offset * 8
        numbers.frombytes(filled.buffers()[1][start : start + len(filled) * 8].to_pybytes())
        if sys.byteorder == "little":
            numbers.byteswap()
        made = _marked(b"\xcb", _fixed(numbers, 8))
    elif kind == "bool":
        made = [pc.if_else(filled, pa.scalar(b"\xc3", pa.binary()), pa.scalar(b"\xc2", pa.binary()))]
    elif kind == "date":
        made = _marked(b"\xd6\x02", _big_endian(pc.add(_ints(filled, kind), _DATE_ZERO_ORDINAL), 4))
    elif kind in _RANGES:
        made = _marked(b"\xd7\x03", _big_endian(_ints(filled, kind), 8))
    else:
        made = _text(filled.cast(pa.binary()), kind == "bytes")
    return [pc.if_else(values.is_valid(), _joined(made), _NULL)] if values.null_count else made


def _marked(mark: bytes, values: pa.Array) -> _Pieces:
    return [pa.scalar(mark, pa.binary()), values]


def _number(values: pa.Array) -> _Pieces:
    bounds = pc.min_max(values)
    low, high = bounds["min"].as_py() or 0, bounds["max"].as_py() or 0
    if low >= 0 and high < 128:
        return [_big_endian(values, 1)]
    width = next(width for width in _INTS if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1))
    return _marked(_INTS[width][2], _big_endian(values, width))


def _text(values: pa.Array, is_blob: bool) -> _Pieces:
    lengths = pc.binary_length(values)
    if (pc.max(lengths).as_py() or 0) <= _SMALL_TEXT_BYTES_MAX:
        mark = 0xC4 if is_blob else 0xD9
        heads = pa.array([bytes([mark, length]) for length in range(_SMALL_TEXT_BYTES_MAX + 1)], pa.binary())
        return [heads.take(lengths), values]
    return [*_marked(b"\xc6" if is_blob else b"\xdb", _big_endian(lengths, 4)), values]


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
