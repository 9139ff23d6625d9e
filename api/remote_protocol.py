"""What clients and a served node say to each other. One msgpack array per message, values as `ltm/codec` has them.

    request  (VERSION, number, operation, arguments)                `number` is the client's; its replies carry it
    reply    (number, ANSWER, catalog version, body)
             (number, FAILURE, catalog version, (class, message, hint, reason, place))
             (number, PROGRESS, done, expected)                      any number of these before one of the others
             C1 | number 8 | catalog version 8 | commit_ts 8         the answer to a commit, of which there are most:
                                                                     little-endian, and no msgpack begins so

Inside arguments and bodies an array always begins with its kind: `to_wire` and `from_wire`. Rows of tables and results
are the exception: they are bare arrays of the engine's values, because there are many of them.

Nothing that is not in the tables below can be made from a message, and what is wrong raises `RemoteProtocolError`.
"""

from __future__ import annotations

import dataclasses
import datetime
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple, cast

from . import errors
from .changetables.builder import AggregateCall, JoinEdge, JoinTable, Query
from .changetables.errors import (
    DataError,
    Error,
    InterfaceError,
    InternalError,
    RemoteProtocolError,
    UnsupportedView,
)
from .changetables.numbers import DECIMAL_NAN
from .changetables.rows import canonical_json
from .changetables.types import NAN, Type
from .changetables.types import Row as Values
from .coordinator.hot_groups import HotGroup
from .coordinator.verify import Difference
from .coordinator.vms.managers import ViewManagerStatus
from .database import ColumnSpec
from .freshness import TargetLag
from .ltm.codec import decoded, pack
from .rows import Columns, Result, Row, Token, Written, read_alone, reading
from .status import DatabaseStatus, StepStatus, ViewStatus
from .verify import VerifyReport

VERSION = 2

ANSWER, FAILURE, PROGRESS = 0, 1, 2

#: Values inside values. An argument has far fewer; a message must not exhaust the stack.
LEVELS_MAX = 100
#: Rows and bytes of one page of a result, about: a page is a message.
PAGE_ROWS_MAX = 2_000
PAGE_BYTES_MAX = 1 << 20
#: Rows that a client keeps aside before it hands them to the node's transaction.
WRITES_ROWS_MAX = 5_000
#: Longer requests are refused before anything of them is looked at.
REQUEST_BYTES_MAX = 16 << 20
#: Transactions of one client that the server remembers, and so the most that a client may have under way at once.
IN_FLIGHT_MAX = 256
#: For how long a client sends a commit again and again.
RETRIES_MS_MAX = 30_000


class NotSent(InterfaceError):
    """A request that could not be made of its arguments: the node has heard nothing of it."""


class TooLong(DataError):
    """A request that is larger than a message can be: the node has heard nothing of it."""


class Request(NamedTuple):
    number: int
    operation: str
    arguments: tuple[object, ...]


#: Half the time of calling a named tuple's class.
new = tuple.__new__
_COMMITTED = struct.Struct("<BQQQ")
_COMMITTED_MARK, _COMMITTED_BYTES = 0xC1, _COMMITTED.size
#: Of requests.
_NUMBER_MAX = 2**63 - 1

# --- values and objects ---

_LIST, _TUPLE, _DICT, _AWARE = 0, 1, 2, 3
#: Numbers never change; fields are positional and new ones come last, with a default.
_CLASSES: Mapping[int, type] = {
    10: Token,
    11: TargetLag,
    12: Type,
    13: ColumnSpec,
    14: Query,
    15: JoinTable,
    16: JoinEdge,
    17: AggregateCall,
    20: HotGroup,
    21: StepStatus,
    22: ViewStatus,
    23: DatabaseStatus,
    24: ViewManagerStatus,
    25: Difference,
    26: VerifyReport,
}
_NUMBERS = {class_: number for number, class_ in _CLASSES.items()}
_FIELDS = {
    class_: tuple(field.name for field in dataclasses.fields(class_))
    if dataclasses.is_dataclass(class_)
    else cast("tuple[str, ...]", class_._fields)  # type: ignore[attr-defined]  # the others are named tuples
    for class_ in _CLASSES.values()
}
_PLAIN = (int, str, bytes, bool, float, type(None), Decimal, datetime.date)
_ARRAYS: dict[type, int] = {list: _LIST, tuple: _TUPLE}


def to_wire(value: object, level: int = 0) -> object:
    """Plain data from a value or an object of the API."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if level > LEVELS_MAX:
        raise InterfaceError("a value is nested too deeply to be sent", hint="give it as text, or in parts")
    if kind in _ARRAYS:
        return (_ARRAYS[kind], *[to_wire(item, level + 1) for item in cast("Sequence[object]", value)])
    if kind is datetime.datetime:
        aware = cast(datetime.datetime, value)
        return aware if aware.tzinfo is None else (_AWARE, aware.isoformat())
    number = _NUMBERS.get(kind)
    if number is not None:
        return (number, *[to_wire(getattr(value, name), level + 1) for name in _FIELDS[kind]])
    if isinstance(value, Mapping):
        return (_DICT, *[to_wire(item, level + 1) for pair in value.items() for item in pair])
    return _nearly_plain(value, level)


def _nearly_plain(value: object, level: int) -> object:
    """Subclasses, and numbers such as numpy's."""
    if isinstance(value, str):
        return str.__str__(value)  # also of an Enum, whose str() is its name
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Decimal):
        return Decimal(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime.datetime):
        return to_wire(datetime.datetime.fromisoformat(value.isoformat()), level)
    if isinstance(value, list | tuple):
        return to_wire(list(value) if isinstance(value, list) else tuple(value), level)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InterfaceError(
            f"a {type(value).__name__} cannot be sent to a served node", hint="give a plain value"
        ) from None


def from_wire(plain: object, level: int = 0) -> object:
    """What `to_wire` was given."""
    if type(plain) is not tuple:
        return _one_nan(plain)
    if not plain or level > LEVELS_MAX:
        raise RemoteProtocolError("a value that cannot be read: empty, or nested too deeply")
    kind = plain[0]
    items = [from_wire(item, level + 1) for item in plain[1:]]
    if kind == _LIST:
        return items
    if kind == _TUPLE:
        return tuple(items)
    try:
        if kind == _DICT:
            return dict(zip(items[::2], items[1::2], strict=True))
        if kind == _AWARE:
            return datetime.datetime.fromisoformat(cast(str, items[0]))
        made: object = _CLASSES[cast(int, kind)](*items)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RemoteProtocolError(f"a value that cannot be read: {error!r}") from None
    if type(made) is Token and not (type(made.commit_ts) is int and type(made.tx_id) is tuple):
        raise RemoteProtocolError("a token that is none")
    return made


def _one_nan(value: object) -> object:
    if value.__class__ is float and value != value:
        return NAN
    if value.__class__ is Decimal and value.is_nan():  # a signalling one cannot be compared
        return DECIMAL_NAN
    return value


# --- requests and replies ---


def request_bytes(
    number: int, operation: str, arguments: tuple[object, ...], packed: Callable[[object], bytes] = pack
) -> bytes:
    """`arguments` are plain already. `packed`: a faster one, of the thread that calls."""
    try:
        payload = packed((VERSION, number, operation, arguments))
        if len(payload) > REQUEST_BYTES_MAX:
            raise TooLong(
                f"{operation} would be a request of {len(payload):,} bytes, at most {REQUEST_BYTES_MAX:,} can be sent",
                hint="rows and values of this size do not go through a served node; divide them",
            )
        return payload
    except (ValueError, TypeError, OverflowError) as error:
        raise NotSent(f"the arguments of {operation} cannot be sent: {error}") from error


def request_of(payload: bytes) -> Request:
    if len(payload) > REQUEST_BYTES_MAX:
        raise RemoteProtocolError(f"a request of {len(payload)} bytes; at most {REQUEST_BYTES_MAX} are taken")
    try:
        message = decoded(payload)
    except Exception as error:
        raise _unreadable(error) from None
    if type(message) is not tuple or len(message) != 4:
        raise RemoteProtocolError("a request that cannot be read")
    version, number, operation, arguments = message
    if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
        raise RemoteProtocolError("a request that cannot be read")
    if version != VERSION:
        raise RequestRefused(
            number,
            RemoteProtocolError(
                f"the client speaks version {version!r} of the protocol, this node version {VERSION}",
                hint="use the same version of Viewtide on both sides",
            ),
        )
    if type(operation) is not str or type(arguments) is not tuple:
        raise RequestRefused(number, RemoteProtocolError("a request that cannot be read"))
    return new(Request, (number, operation, arguments))


class RequestRefused(Exception):
    """A request that cannot be read, but can be answered."""

    def __init__(self, number: int, error: Error) -> None:
        super().__init__(str(error))
        self.number = number
        self.error = error


def committed_bytes(number: int, version: int, commit_ts: int) -> bytes:
    """The answer to a commit."""
    return _COMMITTED.pack(_COMMITTED_MARK, number, version, commit_ts)


def reply_of(payload: bytes) -> tuple[object, ...]:
    if len(payload) == _COMMITTED_BYTES and payload[0] == _COMMITTED_MARK:
        _, number, version, commit_ts = _COMMITTED.unpack(payload)
        return number, ANSWER, version, commit_ts
    try:
        message = decoded(payload)
    except Exception as error:
        raise _unreadable(error) from None
    if type(message) is not tuple or len(message) != 4 or type(message[0]) is not int:
        raise RemoteProtocolError("a reply that cannot be read")
    return message


def _unreadable(error: Exception) -> RemoteProtocolError:
    """Dates out of range, decimals that are none: each extension has its own errors."""
    return RemoteProtocolError(f"a message that cannot be read: {error}")


# --- errors ---


def error_to_wire(error: Error) -> tuple[object, ...]:
    """The nearest class that clients know."""
    name = next(base.__name__ for base in type(error).__mro__ if base.__name__ in errors.__all__)
    reason, place = (error.reason, error.place) if isinstance(error, UnsupportedView) else ("", None)
    return name, error.message, error.hint, reason, place


def error_from_wire(body: object) -> Error:
    try:
        name, message, hint, reason, place = cast("tuple[str, str, str, str, tuple[int, int] | None]", body)
        if name == "UnsupportedView":
            return UnsupportedView(reason, place=place, hint=hint)
        class_ = getattr(errors, name) if name in errors.__all__ else InternalError
        made: Error = class_(str(message), hint=str(hint))
        return made
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"an error that cannot be read: {error}") from None


# --- rows ---

Header = tuple[tuple[object, ...], ...]
_HEADERS_MAX = 1_024
_known_headers: dict[Header, Columns] = {}


def header_of(columns: Columns) -> Header:
    return tuple(
        (name, type_.kind, type_.precision, type_.scale, type_.length)
        for name, type_ in zip(columns.names, columns.types, strict=True)
    )


def columns_from(header: object) -> Columns:
    known = _known_headers.get(cast(Header, header))
    if known is None:
        try:
            columns = [(str(name), Type(*cast("tuple[str]", rest))) for name, *rest in cast(Header, header)]
        except (TypeError, ValueError) as error:
            raise RemoteProtocolError(f"columns that cannot be read: {error}") from None
        known = Columns(columns)
        if len(_known_headers) < _HEADERS_MAX:
            _known_headers[cast(Header, header)] = known
    return known


def values_of(columns: Columns, rows: Sequence[Row]) -> list[Values]:
    """The engine's values of rows of the API."""
    found = [cast(Values, row._values) for row in rows]
    kinds = [type_.kind for type_ in columns.types]
    if "json" not in kinds and "timestamptz" not in kinds:
        return found
    return [cast(Values, tuple(map(_engine_value, kinds, values))) for values in found]


def _engine_value(kind: str, value: object) -> object:
    if value is None:
        return None
    if kind == "json":
        return canonical_json(value, "of a result")
    if kind == "timestamptz":
        return cast(datetime.datetime, value).astimezone(datetime.UTC).replace(tzinfo=None)
    return value


def rows_from(columns: Columns, rows: object) -> list[Row]:
    """Rows of the API from the engine's values."""
    if type(rows) is not tuple or any(type(row) is not tuple or len(row) != len(columns.names) for row in rows):
        raise RemoteProtocolError("rows that do not fit their columns")
    if any(type_.kind in ("float", "decimal") for type_ in columns.types):
        rows = tuple([tuple(map(_one_nan, row)) for row in rows])
    return columns.rows(cast("tuple[Values, ...]", rows))


def pages_of(rows: list[Values]) -> list[list[Values]]:
    """The rows in portions that fit into a message each. A single row may be larger; it goes alone."""
    if len(rows) <= PAGE_ROWS_MAX and _bytes_about(rows) <= PAGE_BYTES_MAX:
        return [rows]
    pages: list[list[Values]] = []
    for first in range(0, len(rows), PAGE_ROWS_MAX):
        pages.extend(_halved(rows[first : first + PAGE_ROWS_MAX]))
    return pages


def _halved(rows: list[Values]) -> list[list[Values]]:
    if len(rows) == 1 or _bytes_about(rows) <= PAGE_BYTES_MAX:
        return [rows]
    middle = len(rows) // 2
    return [*_halved(rows[:middle]), *_halved(rows[middle:])]


def _bytes_about(rows: Sequence[Values]) -> int:
    """Ten bytes a value, and the length of long ones."""
    if not rows:
        return 0
    long = sum([len(value) for row in rows for value in row if isinstance(value, str | bytes)])
    return 10 * len(rows) * len(rows[0]) + long


# --- bodies of answers: rows and results beside everything else ---

_ROW, _ROWS, _RESULT, _WRITTEN = 30, 31, 32, 33


def body_of(value: object, keep: Callable[[list[list[Values]]], int]) -> object:
    """Plain data from what a call returned. `keep` takes the further pages of a result and gives the cursor that they
    are asked for with."""
    if type(value) is Row:
        return _ROW, header_of(value._columns), values_of(value._columns, [value])[0], *reading(value)
    if isinstance(value, Written):
        return _WRITTEN, value.rowcount, value.watermark
    if isinstance(value, Result):
        first, *others = pages_of(values_of(value._columns, value._rows))
        cursor = keep(others) if others else None
        return _RESULT, header_of(value._columns), first, value.watermark, value.lag_ms, cursor
    return to_wire(value)


def rows_body(rows: Sequence[Row | None]) -> object:
    """As `body_of`, for rows that may be missing."""
    found = [row for row in rows if row is not None]
    if not found:
        return _ROWS, (), [None] * len(rows)
    columns = found[0]._columns
    values = iter(values_of(columns, found))
    return _ROWS, header_of(columns), [None if row is None else next(values) for row in rows]


class Page(NamedTuple):
    """The first page of a result; `cursor` asks for the next one."""

    result: Result
    cursor: int | None


def answer_from(body: object) -> object:
    """What the call returned; a result is a `Page`."""
    kind = body[0] if type(body) is tuple and body else None
    try:
        if kind == _ROW:
            _, header, values, watermark, lag_ms = cast("tuple[object, object, object, int, float]", body)
            return read_alone(rows_from(columns_from(header), (values,))[0], watermark, lag_ms)
        if kind == _RESULT:
            _, header, rows, watermark, lag_ms, cursor = cast("tuple[object, object, object, int, float, int]", body)
            columns = columns_from(header)
            return Page(Result(columns, rows_from(columns, rows), watermark, lag_ms), cursor)
        if kind == _WRITTEN:
            _, affected, watermark = cast("tuple[object, int, int]", body)
            return Page(Written(affected, watermark), None)
        if kind == _ROWS:
            _, header, found = cast("tuple[object, object, tuple[object, ...]]", body)
            columns = columns_from(header)
            return [None if values is None else rows_from(columns, (values,))[0] for values in found]
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"an answer that cannot be read: {error}") from None
    return from_wire(body)
