"""Keys: bytes whose order is the order of the values.

    key = table id (4 bytes, big-endian) + encoded column + encoded column + ...

| kind                    | encoding of a value                                                                        |
|-------------------------|--------------------------------------------------------------------------------------------|
| int                     | 8 bytes, big-endian, plus 2**63; in views, which have sums of any size, see `_wide_int`    |
| float                   | 8 bytes: IEEE bits, all inverted if negative, else the sign bit set; NaN is ff ff ...      |
| bool                    | 1 byte                                                                                     |
| date                    | 4 bytes: days since the year 1                                                             |
| timestamp, timestamptz  | 8 bytes: microseconds since the year 1                                                     |
| str, json, bytes        | the bytes (UTF-8), 00 written as 01 01 and 01 as 01 02, then the terminator 00             |
| decimal                 | class byte; if finite and not 0: exponent (4 bytes), digits (a nibble each), terminator 00 |

A nullable column has a tag byte before: 01 and the value, or 02 for NULL, which so sorts last. Every encoding ends
itself, therefore no key of a table is a prefix of another one. The encoders run once per row and key: they are
Python functions generated per table, with one `struct` call per run of fixed-width columns.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import TypeAlias, cast

from .errors import DataError, InternalError, OperationalError
from .generated import code_of
from .numbers import DECIMAL_NAN, decimal_value
from .schema import Index, Table
from .types import INT_MAX, INT_MIN, NAN, Row, Type, Value

#: LMDB refuses keys above 511 bytes; a version suffix (8 bytes) and room for what a store adds come on top.
KEY_BYTES_MAX = 480
TABLE_PREFIX_BYTES = 4
#: 0xffffffff stays free, so that every table has a key above all of its own.
TABLE_ID_MAX = 2**32 - 2
#: What an index keeps of its columns, so that most of a primary key fits behind them.
INDEX_PREFIX_BYTES_MAX = 200
#: A shortened key ends with 0xff and a digest of this size: two keys that share it are beyond reach.
DIGEST_BYTES = 32
SHORTENED_TAIL_BYTES = 1 + DIGEST_BYTES
#: What every key of a view keeps of its beginning, however long it is.
VIEW_PREFIX_BYTES_WHOLE = INDEX_PREFIX_BYTES_MAX - SHORTENED_TAIL_BYTES
#: What is left of a key that was cut: keys that differ within it are in order.
KEY_BYTES_KEPT = KEY_BYTES_MAX - SHORTENED_TAIL_BYTES

Encoder: TypeAlias = Callable[[tuple[Value, ...]], bytes]
Columns: TypeAlias = Sequence[tuple[Type, bool]]
_Decoder: TypeAlias = Callable[[bytes, int], tuple[Value, int]]

_TAG_VALUE = 1
_TAG_NULL = 2


# --- ranges and lengths ---------------------------------------------------------------------------------------------


def table_range(table_id: int) -> tuple[bytes, bytes]:
    """All keys of a table: start (inclusive) and stop (exclusive)."""
    start = _table_prefix(table_id)
    return start, prefix_stop(start)


def key_under(table_id: int, key: bytes) -> bytes:
    """The key of another table that has the same values in it."""
    return _table_prefix(table_id) + key[TABLE_PREFIX_BYTES:]


def prefix_stop(prefix: bytes) -> bytes:
    """The smallest bytes above every key with that prefix."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        raise InternalError(f"nothing is above every key with prefix {prefix!r}")
    return kept[:-1] + bytes((kept[-1] + 1,))


def shorten(key: bytes, limit: int) -> bytes:
    """The key in at most `limit` bytes: itself, or its beginning and a digest of the whole.

    A key stays whole up to limit - 33 bytes, not up to `limit`: then none that stayed whole can be a prefix of (or
    equal to) a shortened one, and the store's rule that no key is a prefix of another holds for both together.
    """
    kept_bytes = limit - SHORTENED_TAIL_BYTES
    if len(key) <= kept_bytes:
        return key
    return key[:kept_bytes] + b"\xff" + blake2b(key, digest_size=DIGEST_BYTES).digest()


def _table_prefix(table_id: int) -> bytes:
    if not 0 <= table_id <= TABLE_ID_MAX:
        raise InternalError(f"table id {table_id} is not between 0 and {TABLE_ID_MAX}")
    return table_id.to_bytes(TABLE_PREFIX_BYTES, "big")


def _key_too_long(key: bytes) -> bytes:
    raise DataError(
        f"the primary key needs {len(key)} bytes, the limit is {KEY_BYTES_MAX}",
        hint="use a shorter key, for example a digest of the long value",
    )


def _shorten_key(key: bytes) -> bytes:
    return shorten(key, KEY_BYTES_MAX)


def _shorten_index_prefix(prefix: bytes) -> bytes:
    return shorten(prefix, INDEX_PREFIX_BYTES_MAX)


# --- encoding of one value ------------------------------------------------------------------------------------------

_FLOAT = struct.Struct(">d")
_SIGNED = struct.Struct(">q")
_UNSIGNED = struct.Struct(">Q")
_DAYS = struct.Struct(">I")

#: What stands for a negative value is inverted bytewise, which turns its order around.
_INVERTED = bytes(range(255, -1, -1))
_SIGN_BIT = 2**63
_NAN_BITS = 2**64 - 1
_TIME_ZERO = datetime.datetime(1, 1, 1)
_DAY_SECONDS = 86_400
_SECOND_MICROSECONDS = 1_000_000


def _float_bits(value: float) -> int:
    if value != value:
        return _NAN_BITS
    # Adding 0.0 turns -0.0 into 0.0 and leaves everything else.
    bits: int = _SIGNED.unpack(_FLOAT.pack(value + 0.0))[0]
    return bits + _SIGN_BIT if bits >= 0 else ~bits


def _microseconds(value: datetime.datetime) -> int:
    passed = value - _TIME_ZERO
    return (passed.days * _DAY_SECONDS + passed.seconds) * _SECOND_MICROSECONDS + passed.microseconds


#: Before the magnitude of an integer that needs more than the 8 bytes: how many bytes it has.
_WIDE_LENGTH = struct.Struct(">I")


def _wide_int(value: int) -> bytes:
    """An integer of any size. Between the two ends of 64 bits it is the 8 bytes that it is in a table. The first of
    them, 00 00 ..., and the last, ff ff ..., are followed by how far beyond the end the value is, as a length and a
    magnitude (inverted below the first): the end itself is 0 beyond, which has no bytes."""
    if INT_MIN < value < INT_MAX:
        return _UNSIGNED.pack(value + _SIGN_BIT)
    beyond = value - INT_MAX if value > 0 else INT_MIN - value
    size = (beyond.bit_length() + 7) // 8
    body = _WIDE_LENGTH.pack(size) + beyond.to_bytes(size, "big")
    return b"\xff" * 8 + body if value > 0 else b"\x00" * 8 + body.translate(_INVERTED)


# The class byte of a decimal orders the special values around the finite ones.
_MINUS_INFINITY = b"\x10"
_NEGATIVE = b"\x20"
_ZERO = b"\x30"
_POSITIVE = b"\x40"
_INFINITY = b"\x50"
_DECIMAL_NAN = b"\x60"

_EXPONENT = struct.Struct(">I")
_EXPONENT_BIAS = 2**31
#: A digit d is the nibble d + 1: the nibble 0 fills up an odd count, and no byte of digits is the terminator 00.
_DIGIT_TO_NIBBLE = str.maketrans("0123456789", "123456789a")
_NIBBLE_TO_DIGIT = str.maketrans("123456789a0", "0123456789 ")
_DECIMAL_SPECIALS: dict[bytes, Decimal] = {
    _MINUS_INFINITY: Decimal("-Infinity"),
    _ZERO: Decimal(0),
    _INFINITY: Decimal("Infinity"),
    _DECIMAL_NAN: DECIMAL_NAN,
}


def _decimal_bytes(value: Decimal | int) -> bytes:
    if isinstance(value, int):
        value = Decimal(value)
    if not value.is_finite():
        if value.is_nan():
            return _DECIMAL_NAN
        return _MINUS_INFINITY if value.is_signed() else _INFINITY
    if not value:
        return _ZERO
    # Scientific notation gives the digits in one call, without rounding and whatever the exponent is.
    digits = f"{value.copy_abs():e}".partition("e")[0].replace(".", "").rstrip("0").translate(_DIGIT_TO_NIBBLE)
    nibbles = bytes.fromhex(digits + "0" if len(digits) % 2 else digits)
    body = _EXPONENT.pack(value.adjusted() + _EXPONENT_BIAS) + nibbles + b"\x00"
    return _NEGATIVE + body.translate(_INVERTED) if value.is_signed() else _POSITIVE + body


# --- generated encoders ---------------------------------------------------------------------------------------------

_TEXT = "{v}.encode().replace(ONE, ESCAPED_ONE).replace(ZERO, ESCAPED_ZERO) + ZERO"
_BLOB = "{v}.replace(ONE, ESCAPED_ONE).replace(ZERO, ESCAPED_ZERO) + ZERO"
#: kind -> struct format and the expression that is packed, for the value in variable {v}.
_FIXED = {
    "int": ("Q", "{v} + SIGN_BIT"),
    "float": ("Q", "float_bits({v})"),
    "bool": ("?", "{v}"),
    "date": ("I", "{v}.toordinal()"),
    "timestamp": ("Q", "microseconds({v})"),
    "timestamptz": ("Q", "microseconds({v})"),
}
#: kind -> the expression that gives the bytes.
_WIDE_INT = "wide_int({v})"
_VARIABLE = {"str": _TEXT, "json": _TEXT, "bytes": _BLOB, "decimal": "decimal_bytes({v})"}

_NAMESPACE: dict[str, object] = {
    "ZERO": b"\x00",
    "ESCAPED_ZERO": b"\x01\x01",
    "ONE": b"\x01",
    "ESCAPED_ONE": b"\x01\x02",
    "SIGN_BIT": _SIGN_BIT,
    "float_bits": _float_bits,
    "microseconds": _microseconds,
    "wide_int": _wide_int,
    "decimal_bytes": _decimal_bytes,
    "struct_error": struct.error,
}


class _KeyExpression:
    """The Python expression that encodes the variables v0, v1, ... of some columns behind a table id. `wide`: integers
    may have any size; else they are those of tables, or short enough to look the same.

    Neighbouring fixed-width parts wait in `_pending` until something of variable width comes: they become one
    `struct` call, or one constant if nothing in them varies.
    """

    def __init__(self, table_id: int, columns: Columns, *, wide: bool = False) -> None:
        _table_prefix(table_id)
        self._wide = wide
        self.namespace = dict(_NAMESPACE)
        #: None if a column has no bound.
        self.width_bytes_max: int | None = TABLE_PREFIX_BYTES
        self._pending: list[tuple[str, int | str]] = [("I", table_id)]
        self._terms: list[str] = []
        for number, (column_type, nullable) in enumerate(columns):
            self._add(f"v{number}", column_type.kind, nullable)
        if self._pending:
            self._terms.append(self._packed(self._pending))
        self.text = " + ".join(self._terms)

    def _add(self, variable: str, kind: str, nullable: bool) -> None:
        if kind == "null":
            # A column of bare NULLs: nothing but the tag.
            self._pending.append(("B", _TAG_NULL))
            self._widen(1)
        elif kind in _FIXED and not (kind == "int" and self._wide):
            packing, expression = _FIXED[kind]
            packed = (packing, expression.format(v=variable))
            self._widen(struct.calcsize(f">{packing}") + nullable)
            if nullable:
                self._choose(variable, self._packed([*self._pending, ("B", _TAG_VALUE), packed]))
            else:
                self._pending.append(packed)
        elif kind in _VARIABLE or kind == "int":
            self.width_bytes_max = None
            expression = _VARIABLE.get(kind, _WIDE_INT).format(v=variable)
            if nullable:
                self._choose(variable, f"{self._packed([*self._pending, ('B', _TAG_VALUE)])} + {expression}")
            else:
                if self._pending:
                    self._terms.append(self._packed(self._pending))
                self._terms.append(expression)
                self._pending = []
        else:
            raise InternalError(f"columns of type {kind} cannot be part of a key")

    def _widen(self, width_bytes: int) -> None:
        if self.width_bytes_max is not None:
            self.width_bytes_max += width_bytes

    def _choose(self, variable: str, not_null: str) -> None:
        null = self._packed([*self._pending, ("B", _TAG_NULL)])
        self._terms.append(f"({not_null} if {variable} is not None else {null})")
        self._pending = []

    def _packed(self, items: Sequence[tuple[str, int | str]]) -> str:
        packer = struct.Struct(">" + "".join(packing for packing, _ in items))
        if all(isinstance(argument, int) for _, argument in items):
            return self._bind(packer.pack(*(argument for _, argument in items)))
        return f"{self._bind(packer.pack)}({', '.join(str(argument) for _, argument in items)})"

    def _bind(self, constant: object) -> str:
        name = f"c{len(self.namespace)}"
        self.namespace[name] = constant
        return name


def _positions_read(positions: Sequence[int]) -> str:
    """Statements that load row[position] into v0, v1, ..."""
    return "; ".join(f"v{number} = row[{position}]" for number, position in enumerate(positions)) or "pass"


def _function(
    head: str, load: str, body: Sequence[str], namespace: dict[str, object], nowhere: bytes | None = None
) -> object:
    """Compile one generated function. A value that cannot be packed is the caller's data, not a defect; with `nowhere`,
    that is the result then."""
    lines = [
        f"def {head}:",
        f"    {load}",
        "    try:",
        *(f"        {line}" for line in body),
    ]
    if nowhere is not None:
        lines += ["    except struct_error:", "        return nowhere"]
    lines += ["    except (struct_error, UnicodeEncodeError) as error:", "        raise unfit(error) from None"]
    namespace.update(unfit=_unfit, nowhere=nowhere)
    exec(code_of("\n".join(lines), "<viewtide key encoder>"), namespace)
    return namespace[head.partition("(")[0]]


def _unfit(error: Exception) -> DataError:
    return DataError(f"a key value is out of range: {error}", hint="integers have 64 bits, text must be valid UTF-8")


def _nowhere(table_id: int) -> bytes:
    """What no stored key of a table begins with: it is longer than all of them."""
    return _table_prefix(table_id) + b"\xff" * KEY_BYTES_MAX


def _unless_wide(columns: Columns, arguments: str) -> list[str]:
    """The line that hands a row over to `wide` if an integer of it is not between the ends of 64 bits; none if there
    are no integers. The test is all that wide integers cost where there are none."""
    tests = []
    for number, (column_type, nullable) in enumerate(columns):
        if column_type.kind == "int":
            test = f"{INT_MIN} < v{number} < {INT_MAX}"
            tests.append(f"(v{number} is None or {test})" if nullable else test)
    return [f"if not ({' and '.join(tests)}): return wide({arguments})"] if tests else []


#: A length in bytes, and what to do with longer keys.
_TooLong: TypeAlias = tuple[int, Callable[[bytes], bytes]]


def _encoder(
    table_id: int,
    columns: Columns,
    load: str,
    too_long: _TooLong | None,
    *,
    wide: bool | Encoder = False,
    nowhere: bytes | None = None,
) -> Encoder:
    """A generated function of one tuple. `wide`: integers may have any size, and what encodes a tuple with one that is
    not short, if it is not just encoded."""
    fast = _unless_wide(columns, "row") if wide else []
    if fast and wide is True:
        wide = _encoder_of(_KeyExpression(table_id, columns, wide=True), load, too_long)
    return _encoder_of(_KeyExpression(table_id, columns), load, too_long, fast, wide, nowhere)


def _encoder_of(
    key: _KeyExpression,
    load: str,
    too_long: _TooLong | None,
    first: Sequence[str] = (),
    wide: object = None,
    nowhere: bytes | None = None,
) -> Encoder:
    body = [f"return {key.text}"]
    if too_long is not None and (key.width_bytes_max is None or key.width_bytes_max > too_long[0]):
        key.namespace["limit"], key.namespace["too_long"] = too_long
        body = [f"key = {key.text}", "return key if len(key) <= limit else too_long(key)"]
    key.namespace["wide"] = wide
    return cast(Encoder, _function("encode(row)", load, [*first, *body], key.namespace, nowhere))


def _tuple_read(count: int) -> str:
    return f"{''.join(f'v{number}, ' for number in range(count))}= row" if count else "pass"


_CHECKED = (KEY_BYTES_MAX, _key_too_long)
_SHORTENED = (KEY_BYTES_MAX - SHORTENED_TAIL_BYTES, _shorten_key)
_INDEX_PREFIX = (INDEX_PREFIX_BYTES_MAX - SHORTENED_TAIL_BYTES, _shorten_index_prefix)


class KeyCodec:
    """Encodes the key columns of one table or view; all methods take values in the engine's form.

    `encode`: the key. `encode_checked`: the same for a primary key, DataError above KEY_BYTES_MAX. `encode_short`:
    the same for views and groups, which never fail for length: `shorten(encode(values), KEY_BYTES_MAX)`. `look_up`: the
    key under which a row with these values is stored; where no row can have them, a key that none has.
    """

    __slots__ = (
        "_decoders", "_prefixes", "_wide", "columns", "encode", "encode_checked", "encode_short", "look_up", "table_id",
    )  # fmt: skip

    encode: Encoder
    encode_checked: Encoder
    encode_short: Encoder
    look_up: Encoder

    def __init__(self, table_id: int, columns: Columns, *, wide: bool = False) -> None:
        """`wide`: integers may have any size, as the sums in views do; those of tables have 64 bits."""
        self.table_id = table_id
        self.columns = tuple(columns)
        self._wide = wide
        load = _tuple_read(len(self.columns))
        self.encode = _encoder(table_id, self.columns, load, None, wide=wide)
        self.encode_checked = _encoder(table_id, self.columns, load, _CHECKED, wide=wide)
        self.encode_short = _encoder(table_id, self.columns, load, _SHORTENED, wide=wide)
        self.look_up = _encoder(table_id, self.columns, load, None, wide=wide, nowhere=_nowhere(table_id))
        self._prefixes: dict[int, Encoder] = {}
        self._decoders = tuple(_decoder(column_type.kind, nullable, wide) for column_type, nullable in self.columns)

    def encode_prefix(self, values: tuple[Value, ...]) -> bytes:
        """What every (not shortened) key begins with whose first columns have these values."""
        encoder = self._prefixes.get(len(values))
        if encoder is None:
            if len(values) > len(self.columns):
                raise InternalError(f"{len(values)} values for a key of {len(self.columns)} columns")
            columns = self.columns[: len(values)]
            encoder = _encoder(self.table_id, columns, _tuple_read(len(values)), None, wide=self._wide)
            self._prefixes[len(values)] = encoder
        return encoder(values)

    def row_encoder(self, positions: Sequence[int], *, checked: bool = False) -> Encoder:
        """`encode_checked` or `encode_short` of the values at these positions of a row, without a tuple in between."""
        if len(positions) != len(self.columns):
            raise InternalError(f"{len(positions)} positions for a key of {len(self.columns)} columns")
        too_long = _CHECKED if checked else _SHORTENED
        return _encoder(self.table_id, self.columns, _positions_read(positions), too_long, wide=self._wide)

    def rows_encoder(self, positions: Sequence[int]) -> Callable[[list[Row]], list[bytes]]:
        """`encode_checked` for the values at these positions of each row, in one call."""
        key = _KeyExpression(self.table_id, self.columns)
        limit, key.namespace["too_long"] = _CHECKED
        checked = key.width_bytes_max is None or key.width_bytes_max > limit
        body = [
            "keys = []",
            "for row in rows:",
            f"    {_positions_read(positions)}",
            f"    key = {key.text}",
            f"    keys.append({f'key if len(key) <= {limit} else too_long(key)' if checked else 'key'})",
            "return keys",
        ]
        return cast(Callable[[list[Row]], list[bytes]], _function("encode_all(rows)", "pass", body, key.namespace))

    def decode(self, key: bytes) -> tuple[Value, ...]:
        """The canonical values (0.0 for -0.0, 1 for Decimal('1.00')) of a key that was not shortened."""
        if not key.startswith(self.encode_prefix(())):
            raise InternalError(f"key {key!r} is not of table {self.table_id}")
        values: list[Value] = []
        offset = TABLE_PREFIX_BYTES
        try:
            for decode in self._decoders:
                value, offset = decode(key, offset)
                values.append(value)
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            raise _damaged(key) from error
        if offset != len(key):
            raise _damaged(key)
        return tuple(values)


def key_codec(table_id: int, columns: Columns) -> KeyCodec:
    """The codec for keys of these (type, nullable) columns."""
    return KeyCodec(table_id, columns)


# --- views ----------------------------------------------------------------------------------------------------------


class ViewKeyCodec(KeyCodec):
    """Keys of views. All columns but the last are shortened by themselves if they are long, so that the rows of one
    group stand together, in the order of the last column: there MIN and MAX are found."""

    __slots__ = ("_encode_last", "group_prefix")

    def __init__(self, table_id: int, columns: Columns) -> None:
        super().__init__(table_id, columns, wide=True)
        group, last = self.columns[:-1], self.columns[-1:]
        self.group_prefix = _encoder(table_id, group, _tuple_read(len(group)), _INDEX_PREFIX, wide=True)
        self._encode_last = _encoder(table_id, last, _tuple_read(len(last)), None, wide=True)
        width_bytes_max = _KeyExpression(table_id, group).width_bytes_max
        by_group = self._encode_by_group
        if group and (width_bytes_max is None or width_bytes_max > _INDEX_PREFIX[0]):
            self.encode_short = by_group
        else:
            load = _tuple_read(len(self.columns))
            self.encode_short = _encoder(table_id, self.columns, load, _SHORTENED, wide=by_group)
        self.look_up = self.encode_short

    def _encode_by_group(self, values: tuple[Value, ...]) -> bytes:
        key = self.group_prefix(values[:-1]) + self._encode_last(values[-1:])[TABLE_PREFIX_BYTES:]
        return key if len(key) <= _SHORTENED[0] else _shorten_key(key)


class OrderedKeyCodec(KeyCodec):
    """Keys that sort as ORDER BY asks: `orders` are (descending, nulls first) of each column.

    Each column is a byte for NULL or not, then its encoding, with all bits inverted if it descends: every encoding ends
    itself, so inverted ones compare the other way round.
    """

    __slots__ = ("_encoders", "_orders")

    def __init__(self, table_id: int, columns: Columns, orders: Sequence[tuple[bool, bool]]) -> None:
        super().__init__(table_id, columns, wide=True)
        self._orders = tuple(orders)
        self._encoders = tuple(
            _encoder(0, [(column_type, False)], _tuple_read(1), None, wide=True) for column_type, _ in columns
        )
        self.encode = self._ordered
        self.encode_short = self.look_up = self._ordered_short

    def _ordered(self, values: tuple[Value, ...]) -> bytes:
        parts = [_table_prefix(self.table_id)]
        for value, encode, (descending, nulls_first) in zip(values, self._encoders, self._orders, strict=False):
            if value is None:
                parts.append(b"\x00" if nulls_first else b"\x02")
            else:
                encoded = encode((value,))[TABLE_PREFIX_BYTES:]
                parts.append(b"\x01" + (encoded.translate(_INVERTED) if descending else encoded))
        return b"".join(parts)

    def _ordered_short(self, values: tuple[Value, ...]) -> bytes:
        return _shorten_key(self._ordered(values))

    def encode_prefix(self, values: tuple[Value, ...]) -> bytes:
        return self._ordered(values)


def was_shortened(key: bytes) -> bool:
    """Whether a key may have been cut: then rows whose keys begin alike are not in order."""
    return len(key) == KEY_BYTES_MAX


# --- decoding -------------------------------------------------------------------------------------------------------


def _damaged(key: bytes) -> OperationalError:
    return OperationalError(
        f"key {key!r} does not hold the columns of its table", hint="it is damaged, or was shortened and has no values"
    )


def _decode_int(key: bytes, offset: int) -> tuple[Value, int]:
    return _UNSIGNED.unpack_from(key, offset)[0] - _SIGN_BIT, offset + 8


def _decode_wide_int(key: bytes, offset: int) -> tuple[Value, int]:
    bits, after = _UNSIGNED.unpack_from(key, offset)[0], offset + 8
    if bits not in (0, 2 * _SIGN_BIT - 1):
        return bits - _SIGN_BIT, after
    body = key[after:] if bits else key[after:].translate(_INVERTED)
    (size,) = _WIDE_LENGTH.unpack_from(body)
    start, stop = _WIDE_LENGTH.size, _WIDE_LENGTH.size + size
    if stop > len(body):
        raise ValueError("an integer is cut off")
    beyond = int.from_bytes(body[start:stop], "big")
    return (INT_MAX + beyond if bits else INT_MIN - beyond), after + stop


def _decode_float(key: bytes, offset: int) -> tuple[Value, int]:
    bits: int = _UNSIGNED.unpack_from(key, offset)[0]
    if bits == _NAN_BITS:
        return NAN, offset + 8
    signed = bits - _SIGN_BIT if bits >= _SIGN_BIT else ~bits
    return _FLOAT.unpack(_SIGNED.pack(signed))[0], offset + 8


def _decode_bool(key: bytes, offset: int) -> tuple[Value, int]:
    return key[offset] != 0, offset + 1


def _decode_date(key: bytes, offset: int) -> tuple[Value, int]:
    return datetime.date.fromordinal(_DAYS.unpack_from(key, offset)[0]), offset + 4


def _decode_timestamp(key: bytes, offset: int) -> tuple[Value, int]:
    return _TIME_ZERO + datetime.timedelta(microseconds=_UNSIGNED.unpack_from(key, offset)[0]), offset + 8


def _decode_bytes(key: bytes, offset: int) -> tuple[bytes, int]:
    stop = key.index(0, offset)
    # 01 is always the first byte of a pair here, so that replacing one kind of pair never tears the other.
    return key[offset:stop].replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01"), stop + 1


def _decode_text(key: bytes, offset: int) -> tuple[Value, int]:
    raw, offset = _decode_bytes(key, offset)
    return raw.decode(), offset


def _decode_decimal(key: bytes, offset: int) -> tuple[Value, int]:
    kind = key[offset : offset + 1]
    special = _DECIMAL_SPECIALS.get(kind)
    if special is not None:
        return special, offset + 1
    body_start = offset + 1
    digits_start = body_start + 4
    body = key[body_start:]
    if kind == _NEGATIVE:
        body = body.translate(_INVERTED)
    elif kind != _POSITIVE:
        raise ValueError(f"unknown class of a decimal: {kind!r}")
    digits_count = body.index(0, 4) - 4
    digits = body[4 : 4 + digits_count].hex().translate(_NIBBLE_TO_DIGIT).rstrip()
    exponent = _EXPONENT.unpack_from(body)[0] - _EXPONENT_BIAS
    sign = "-" if kind == _NEGATIVE else ""
    value = decimal_value(Decimal(f"{sign}{digits}E{exponent - len(digits) + 1}"))
    return value, digits_start + digits_count + 1


def _decode_null(key: bytes, offset: int) -> tuple[Value, int]:
    return None, offset + 1


_DECODERS: dict[str, _Decoder] = {
    "int": _decode_int,
    "float": _decode_float,
    "bool": _decode_bool,
    "date": _decode_date,
    "timestamp": _decode_timestamp,
    "timestamptz": _decode_timestamp,
    "str": _decode_text,
    "json": _decode_text,
    "bytes": _decode_bytes,
    "decimal": _decode_decimal,
    "null": _decode_null,
}


def _decoder(kind: str, nullable: bool, wide: bool) -> _Decoder:
    decode = _decode_wide_int if wide and kind == "int" else _DECODERS[kind]
    if not nullable or kind == "null":
        return decode

    def decode_nullable(key: bytes, offset: int) -> tuple[Value, int]:
        return (None, offset + 1) if key[offset] == _TAG_NULL else decode(key, offset + 1)

    return decode_nullable


# --- indexes --------------------------------------------------------------------------------------------------------


class IndexCodec:
    """Encodes the entries of one index.

    `entry(row, primary_key)`: the prefix of the row's indexed columns and the primary key without its table id, in at
    most KEY_BYTES_MAX bytes. The store's entry holds the whole primary key, therefore entries are never decoded.
    `prefix_of(row)`: `prefix` of the row's indexed columns.
    """

    __slots__ = ("_prefix", "columns", "entry", "keys", "prefix_and_entry", "prefix_of")

    entry: Callable[[Row, bytes], bytes]
    prefix_and_entry: Callable[[Row, bytes], tuple[bytes, bytes]]
    prefix_of: Callable[[Row], bytes]

    def __init__(self, table: Table, index: Index) -> None:
        self.columns = index.columns
        columns = [(table.columns[position].type, table.columns[position].nullable) for position in index.columns]
        # What is looked for may be a sum in a view: in a table it finds nothing if it has more than 64 bits.
        wide = table.view
        self.keys = KeyCodec(index.id, columns, wide=wide)
        self._prefix = _encoder(
            index.id, columns, _tuple_read(len(columns)), _INDEX_PREFIX, wide=wide, nowhere=_nowhere(index.id)
        )
        self.prefix_of = _encoder(index.id, columns, _positions_read(index.columns), _INDEX_PREFIX, wide=wide)
        self.entry = cast(Callable[[Row, bytes], bytes], _entry_encoder(index, columns, "entry", wide))
        self.prefix_and_entry = cast(
            Callable[[Row, bytes], tuple[bytes, bytes]], _entry_encoder(index, columns, "prefix, entry", wide)
        )

    def prefix(self, values: tuple[Value, ...]) -> bytes:
        """What exactly the entries of rows with these indexed values begin with.

        With fewer values than columns it is what the entries of all rows that match so far begin with; if these
        values are long, entries of other rows may begin with it too: compare the rows.
        """
        if len(values) == len(self.columns):
            return self._prefix(values)
        return self.keys.encode_prefix(values)[: INDEX_PREFIX_BYTES_MAX - SHORTENED_TAIL_BYTES]


def index_codec(table: Table, index: Index) -> IndexCodec:
    """The codec for entries of this index of the table."""
    return IndexCodec(table, index)


def _entry_encoder(index: Index, columns: Columns, result: str, wide: bool) -> object:
    first = _unless_wide(columns, "row, primary_key") if wide else []
    slow = _entry_encoder_of(_KeyExpression(index.id, columns, wide=True), index, result) if first else None
    return _entry_encoder_of(_KeyExpression(index.id, columns), index, result, first, slow)


def _entry_encoder_of(
    key: _KeyExpression, index: Index, result: str, first: Sequence[str] = (), wide: object = None
) -> object:
    prefix_limit, shorten_prefix = _INDEX_PREFIX
    limit, shorten_entry = _SHORTENED
    key.namespace.update(
        prefix_limit=prefix_limit, shorten_prefix=shorten_prefix, limit=limit, shorten_entry=shorten_entry, wide=wide
    )
    body = [*first, f"prefix = {key.text}"]
    if key.width_bytes_max is None or key.width_bytes_max > prefix_limit:
        body.append("if len(prefix) > prefix_limit: prefix = shorten_prefix(prefix)")
    body += [
        f"entry = prefix + primary_key[{TABLE_PREFIX_BYTES}:]",
        "if len(entry) > limit: entry = shorten_entry(entry)",
        f"return {result}",
    ]
    return _function("entry(row, primary_key)", _positions_read(index.columns), body, key.namespace)


def primary_key_codec(table: Table) -> KeyCodec:
    """The codec of a table's own keys; those of a view may be NULL."""
    columns = [(table.columns[position].type, table.columns[position].nullable) for position in table.key]
    return (
        ViewKeyCodec(table.id, columns) if table.view else KeyCodec(table.id, [(type_, False) for type_, _ in columns])
    )
