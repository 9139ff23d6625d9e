"""Text to values: what PostgreSQL's input functions read for each type, as far as it can be read without a session.

A quoted literal has no type of its own in SQL. It takes the type of what it meets (`d >= '2024-02-01'`), and it is read
once, when the view is bound. The oracle reads strings that a view casts with the same functions.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable
from decimal import Decimal

from .errors import DataError, UnsupportedView
from .numbers import DECIMAL_NAN
from .types import INT_MAX, INT_MIN, NAN, Type, Value

#: Digits of PostgreSQL's numeric before and after the point; what is larger is an overflow there, and here.
NUMERIC_DIGITS_BEFORE_POINT_MAX = 131_072
NUMERIC_DIGITS_AFTER_POINT_MAX = 16_383

#: Wide enough that no sum or product of two numerics is ever rounded; a rounding would be an error, not a result.
EXACT = decimal.Context(
    prec=2 * (NUMERIC_DIGITS_BEFORE_POINT_MAX + NUMERIC_DIGITS_AFTER_POINT_MAX),
    rounding=decimal.ROUND_HALF_UP,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)

SQL_NAMES = {
    "int": "integer",
    "float": "double precision",
    "decimal": "numeric",
    "str": "text",
    "bytes": "bytea",
    "bool": "boolean",
}

_SPACE = " \t\n\r\v\f"
_INT = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOL_WORDS = {False: ("false", "no", "off", "0"), True: ("true", "yes", "on", "1")}
_SPECIAL = re.compile(r"nan|([+-]?)inf(?:inity)?", re.IGNORECASE)
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[T ]+([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?)?"
    r" *(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)


def sql_name(type_: Type) -> str:
    return SQL_NAMES.get(type_.kind, type_.kind)


def value_of_text(text: str, type_: Type) -> Value:
    """The value that `text` stands for, DataError if it stands for none. Precision and length are for `fit`."""
    readers: dict[str, Callable[[str], Value]] = {
        "int": read_int,
        "decimal": read_decimal,
        "float": read_float,
        "bool": read_bool,
        "str": str,
        "bytes": read_bytes,
        "date": read_date,
        "timestamp": read_timestamp,
        "timestamptz": read_timestamptz,
    }
    reader = readers.get(type_.kind)
    if reader is None:
        raise UnsupportedView(f"literals of type {sql_name(type_)}")
    return reader(text)


def _bad(text: str, name: str, hint: str = "") -> DataError:
    return DataError(f'invalid input syntax for type {name}: "{text}"', hint=hint)


def read_int(text: str) -> int:
    stripped = text.strip(_SPACE)
    if not _INT.fullmatch(stripped):
        raise _bad(text, "integer")
    exact = Decimal(stripped)  # Unlike int(), it takes any number of digits in linear time.
    if not INT_MIN <= exact <= INT_MAX:
        raise DataError(f'value "{text[:40]}" is out of range for type integer')
    return int(exact)


def read_decimal(text: str) -> Decimal:
    stripped = text.strip(_SPACE)
    special = _SPECIAL.fullmatch(stripped)
    if special is not None:
        return DECIMAL_NAN if special[1] is None else Decimal(f"{special[1]}Infinity")
    if not _NUMBER.fullmatch(stripped):
        raise _bad(text, "numeric")
    return decimal_of_digits(stripped)


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def decimal_of_digits(digits: str) -> Decimal:
    """A numeric as written: the scale is the number of digits after the point, and never below 0 (1e3 is 1000)."""
    value = Decimal(digits)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "the caller passes digits only"
    if (value and value.adjusted() >= NUMERIC_DIGITS_BEFORE_POINT_MAX) or -exponent > NUMERIC_DIGITS_AFTER_POINT_MAX:
        raise DataError(f"value overflows numeric format: {digits[:40]}")
    if exponent > 0:
        value = Decimal(0) if not value else value.quantize(Decimal(1), context=EXACT)
    return value if value else value.copy_abs()


def read_float(text: str) -> float:
    stripped = text.strip(_SPACE)
    special = _SPECIAL.fullmatch(stripped)
    if special is not None:
        return NAN if special[1] is None else math.copysign(math.inf, -1 if special[1] == "-" else 1)
    if not _NUMBER.fullmatch(stripped):
        raise _bad(text, "double precision")
    return float_in_range(stripped)


def float_in_range(digits: str) -> float:
    """Neither a number that is too large becomes an infinity, nor one that is too small becomes 0."""
    value = float(digits)
    mantissa = digits.lower().partition("e")[0]
    if math.isinf(value) or (value == 0 and mantissa.strip("+-0.")):
        raise DataError(f'"{digits[:40]}" is out of range for type double precision')
    return value


def read_bool(text: str) -> bool:
    word = text.strip(_SPACE).lower()
    matches = {value for value, names in _BOOL_WORDS.items() if word and any(name.startswith(word) for name in names)}
    if len(matches) != 1:  # "o" could be on or off.
        raise _bad(text, "boolean")
    return matches.pop()


def read_bytes(text: str) -> bytes:
    if text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise _bad(text, "bytea") from None
    if "\\" in text:
        raise _bad(text, "bytea", hint="write bytes in hexadecimal, as '\\x0aff'")
    return text.encode()


def _read_moment(text: str, name: str) -> tuple[datetime.datetime, str | None]:
    match = _TIMESTAMP.fullmatch(text.strip(_SPACE))
    if match is None:
        raise _bad(text, name, hint="write 'YYYY-MM-DD', with ' HH:MM:SS' for a time of day")
    *numbers, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(number or 0) for number in numbers)
    try:
        moment = datetime.datetime(year, month, day, hour, minute, second, int((fraction or "0").ljust(6, "0")))
    except ValueError:
        raise DataError(f'date/time field value out of range: "{text}"') from None
    return moment, zone


def read_date(text: str) -> datetime.date:
    return _read_moment(text, "date")[0].date()


def read_timestamp(text: str) -> datetime.datetime:
    """A zone in the text is ignored, as PostgreSQL does for a type that has none."""
    return _read_moment(text, "timestamp")[0]


def read_timestamptz(text: str) -> datetime.datetime:
    """Naive, in UTC. Without a zone it is UTC: a view must not depend on the time zone of a session."""
    moment, zone = _read_moment(text, "timestamptz")
    if zone is None or zone == "Z":
        return moment
    digits = zone[1:].replace(":", "")
    offset = datetime.timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    try:
        return moment - offset if zone[0] == "+" else moment + offset
    except OverflowError:
        raise DataError(f'date/time field value out of range: "{text}"') from None


def fit(value: Value, type_: Type) -> Value:
    """What an explicit cast does for the limits of a type: numeric(p, s) rounds or overflows, varchar(n) cuts."""
    if isinstance(value, Decimal) and type_.precision is not None and not value.is_nan():
        scale = type_.scale or 0
        if value.is_infinite():
            raise DataError(f"numeric field overflow: {sql_name(type_)}({type_.precision},{scale}) holds no infinity")
        rounded = value.quantize(Decimal(1).scaleb(-scale, context=EXACT), context=EXACT)
        if rounded and rounded.adjusted() >= type_.precision - scale:
            raise DataError(
                f"numeric field overflow: {value:f} does not fit {sql_name(type_)}({type_.precision},{scale})"
            )
        return rounded if rounded else rounded.copy_abs()
    if isinstance(value, str) and type_.length is not None:
        return value[: type_.length]
    return value
