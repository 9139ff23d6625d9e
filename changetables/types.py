"""Column types and what a value of each looks like inside the engine.

| type        | SQL names                             | inside the engine                    | at the API             |
|-------------|---------------------------------------|--------------------------------------|------------------------|
| int         | smallint, int, integer, bigint        | int, 64 bit                          | same                   |
| float       | real, float, float8, double precision | float; every NaN is the object `NAN` | same                   |
| decimal     | numeric, decimal, with (p, s)         | Decimal, rounded to the scale        | same                   |
| str         | text, varchar, char                   | str that UTF-8 can encode; char(n)   | same                   |
|             |                                       | without the blanks at its end        |                        |
| bytes       | bytea                                 | bytes                                | same                   |
| bool        | boolean                               | bool                                 | same                   |
| date        | date                                  | datetime.date                        | same                   |
| timestamp   | timestamp                             | naive datetime                       | same                   |
| timestamptz | timestamptz                           | naive datetime in UTC                | aware datetime in UTC  |
| json        | json, jsonb                           | canonical JSON text (str)            | parsed value           |

NULL is None everywhere.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from dataclasses import dataclass, replace
from typing import TypeAlias

from .errors import NotSupportedError

Value: TypeAlias = int | float | decimal.Decimal | str | bytes | bool | datetime.date | datetime.datetime | None
Row: TypeAlias = tuple[Value, ...]

#: The one NaN: tuples and dicts find it by identity, so that NaN equals NaN as SQL asks.
NAN = math.nan

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Type:
    """`kind` is a name of the table above. `precision` and `scale` are for numeric(p, s), `length` for varchar(n) and
    char(n). `padded` is for char(n), where blanks at the end mean nothing: values are kept without them, so that what
    is equal has one form as a key, too."""

    kind: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    padded: bool = False

    def __str__(self) -> str:
        if self.precision is not None:
            return f"{self.kind}({self.precision},{self.scale or 0})"
        if self.length is not None:
            return f"{'char' if self.padded else self.kind}({self.length})"
        return self.kind


INT = Type("int")
FLOAT = Type("float")
DECIMAL = Type("decimal")
STR = Type("str")
BYTES = Type("bytes")
BOOL = Type("bool")
DATE = Type("date")
TIMESTAMP = Type("timestamp")
TIMESTAMPTZ = Type("timestamptz")
JSON = Type("json")
#: The type of a bare NULL literal; fits everywhere.
NULL = Type("null")

#: PostgreSQL's limits of numeric(p, s) in digits, and of varchar(n) in characters.
PRECISION_DIGITS_MAX = 1000
LENGTH_CHARACTERS_MAX = 10_485_760

_PYTHON_TYPES: dict[object, Type] = {
    int: INT,
    float: FLOAT,
    decimal.Decimal: DECIMAL,
    str: STR,
    bytes: BYTES,
    bool: BOOL,
    datetime.date: DATE,
    datetime.datetime: TIMESTAMP,
    dict: JSON,
    list: JSON,
}

#: SQL names; the engine's own kinds are among them, so that `type_of(str(t)) == t`.
_SQL_TYPES = {
    **dict.fromkeys(("smallint", "int2", "int", "integer", "int4", "bigint", "int8"), INT),
    **dict.fromkeys(("real", "float4", "float", "float8", "double precision"), FLOAT),
    **dict.fromkeys(("numeric", "decimal", "dec"), DECIMAL),
    **dict.fromkeys(
        ("text", "varchar", "character varying", "char varying", "char", "character", "bpchar", "str"), STR
    ),
    **dict.fromkeys(("bytea", "bytes"), BYTES),
    **dict.fromkeys(("boolean", "bool"), BOOL),
    "date": DATE,
    **dict.fromkeys(("timestamp", "timestamp without time zone"), TIMESTAMP),
    **dict.fromkeys(("timestamptz", "timestamp with time zone"), TIMESTAMPTZ),
    **dict.fromkeys(("json", "jsonb"), JSON),
}
#: Names that take no modifier in parentheses.
_PLAIN_NAMES = frozenset(_SQL_TYPES) - {
    "float",
    "numeric",
    "decimal",
    "dec",
    "varchar",
    "character varying",
    "char varying",
    "char",
    "character",
    "bpchar",
    "str",
    "timestamp",
    "timestamptz",
    "timestamp without time zone",
    "timestamp with time zone",
}
#: Without a modifier, these have one character, but bpchar has any number, as text.
_PADDED_NAMES = frozenset({"char", "character"})
_SQL_NAME = re.compile(
    r"\s*([a-z][a-z0-9 ]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(-?\s*\d+)\s*)?\)\s*([a-z ]*?)\s*)?", re.IGNORECASE
)
_HINT = (
    "use int, float, Decimal, str, bytes, bool, date, datetime, dict or list, or a SQL name such as bigint,"
    " numeric(10,2), varchar(20), timestamptz, jsonb"
)


def type_of(spec: object) -> Type:
    """The Type that a user means: a Python type, a Type, or a SQL type name in any case."""
    if isinstance(spec, Type):
        return spec
    if isinstance(spec, str):
        return _sql_type(spec)
    found = _PYTHON_TYPES.get(spec) if isinstance(spec, type) else None
    if found is None:
        raise NotSupportedError(f"{spec!r} is not a column type", hint=_HINT)
    return found


def _sql_type(text: str) -> Type:
    match = _SQL_NAME.fullmatch(text)
    if match is None:
        raise NotSupportedError(f"{text!r} is not a column type", hint=_HINT)
    head, first, second, tail = match.groups()
    # "timestamp(6) with time zone" carries its modifier in the middle of the name.
    name = " ".join(f"{head} {tail or ''}".lower().split())
    base = _SQL_TYPES.get(name)
    if base is None:
        raise NotSupportedError(f"{text!r} is not a column type", hint=_HINT)
    if first is None:
        return Type("str", length=1, padded=True) if name in _PADDED_NAMES else base
    if name in _PLAIN_NAMES or (second is not None and base is not DECIMAL):
        raise NotSupportedError(f"{text!r}: type {name} takes no such modifier", hint=_HINT)
    made = _modified(text, base, int(first), int("".join((second or "0").split())))
    return replace(made, padded=name in _PADDED_NAMES or name == "bpchar")


def _modified(text: str, base: Type, first: int, second: int) -> Type:
    """`base` with its modifier in parentheses, within PostgreSQL's limits."""
    if base is DECIMAL and 1 <= first <= PRECISION_DIGITS_MAX and abs(second) <= PRECISION_DIGITS_MAX:
        return Type("decimal", precision=first, scale=second)
    if base is STR and 1 <= first <= LENGTH_CHARACTERS_MAX:
        return Type("str", length=first)
    if base is FLOAT and 1 <= first <= 53:
        return FLOAT
    if base in (TIMESTAMP, TIMESTAMPTZ):
        if first == 6:
            return base
        raise NotSupportedError(f"{text!r}: timestamps have microseconds", hint=f"use {base.kind} without a precision")
    raise NotSupportedError(f"{text!r}: the number in parentheses is out of range", hint=_HINT)
