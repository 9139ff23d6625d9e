"""Text to values: what PostgreSQL's input functions read for each type, as far as it can be read without a session.

A quoted literal has no type of its own in SQL. It takes the type of what it meets (`d >= '2024-02-01'`), and it is read
once, when the view is bound. The oracle reads strings that a view casts with the same functions.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import NoReturn

from .errors import FIELD_HINT, INTEGER_HINT, UNSUPPORTED_HINT, DataError, UnsupportedView, input_hint
from .numbers import DECIMAL_NAN, NUMERIC_HINT
from .rows import canonical_json
from .types import INT_MAX, INT_MIN, NAN, Type, Value

#: Digits of PostgreSQL's numeric before and after the point; what is larger is an overflow there, and here.
NUMERIC_DIGITS_BEFORE_POINT_MAX = 131_072
NUMERIC_DIGITS_AFTER_POINT_MAX = 16_383

#: Digits of an exponent that a numeric could still hold.
_EXPONENT_DIGITS_MAX = 7

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
    r"(?:([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})|([0-9]{4})([0-9]{2})([0-9]{2}))"
    r"(?:[T ]\s*([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(\.[0-9]*)?)?)?"
    r"\s*(Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2}(?::[0-9]{2})?)?)?",
    re.ASCII | re.IGNORECASE,
)
_ZONE = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2})(?::([0-9]{2}))?)?")
#: PostgreSQL's limit of an offset from UTC.
_ZONE_HOURS_MAX = 15


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
        "json": read_json,
    }
    reader = readers.get(type_.kind)
    if reader is None:
        raise UnsupportedView(f"literals of type {sql_name(type_)}", hint=UNSUPPORTED_HINT)
    return reader(text)


def _bad(text: str, name: str, hint: str = "") -> DataError:
    return DataError(f'invalid input syntax for type {name}: "{text}"', hint=hint or input_hint(name))


def read_int(text: str) -> int:
    stripped = text.strip(_SPACE)
    if not _INT.fullmatch(stripped):
        raise _bad(text, "integer")
    exact = Decimal(stripped)  # Unlike int(), it takes any number of digits in linear time.
    if not INT_MIN <= exact <= INT_MAX:
        raise DataError(f'value "{text[:40]}" is out of range for type integer', hint=INTEGER_HINT)
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
    if len(digits.lower().partition("e")[2].lstrip("+-0")) > _EXPONENT_DIGITS_MAX:
        raise DataError(f"value overflows numeric format: {digits[:40]}", hint=NUMERIC_HINT)
    value = Decimal(digits)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "the caller passes digits only"
    if (value and value.adjusted() >= NUMERIC_DIGITS_BEFORE_POINT_MAX) or -exponent > NUMERIC_DIGITS_AFTER_POINT_MAX:
        raise DataError(f"value overflows numeric format: {digits[:40]}", hint=NUMERIC_HINT)
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
        raise DataError(
            f'"{digits[:40]}" is out of range for type double precision', hint="use numeric, which has more digits"
        )
    return value


def read_bool(text: str) -> bool:
    word = text.strip(_SPACE).lower()
    matches = {value for value, names in _BOOL_WORDS.items() if word and any(name.startswith(word) for name in names)}
    if len(matches) != 1:  # "o" could be on or off.
        raise _bad(text, "boolean")
    return matches.pop()


def read_bytes(text: str) -> bytes:
    """Hexadecimal after \\x, else the characters themselves with \\\\ for a backslash and \\ooo for any byte."""
    if text.startswith("\\x"):
        return _read_hex(text)
    result, position = bytearray(), 0
    for match in _ESCAPED_BYTE.finditer(text):
        result += text[position : match.start()].encode()
        position = match.end()
        if match[1] is None and match[0] != "\\\\":
            raise _bad(text, "bytea", hint="write bytes in hexadecimal, as '\\x0aff'")
        result.append(int(match[1], 8) if match[1] is not None else ord("\\"))
    return bytes(result + text[position:].encode())


_ESCAPED_BYTE = re.compile(r"\\(?:([0-3][0-7]{2})|\\)?")


def _read_hex(text: str) -> bytes:
    digits = text[2:].translate({ord(space): None for space in " \t\n\r"})
    if not set(digits) <= set("0123456789abcdefABCDEF") or len(digits) % 2:
        raise _bad(text, "bytea", hint="two hexadecimal digits are one byte")
    return bytes.fromhex(digits)


def _read_moment(text: str, name: str) -> tuple[datetime.datetime, datetime.timedelta, str]:
    """The day, the time of day and the zone. The time may be 24:00:00 or end with second 60: the next day or minute."""
    match = _TIMESTAMP.fullmatch(text.strip(_SPACE))
    if match is None:
        raise _bad(text, name, hint="write 'YYYY-MM-DD', with ' HH:MM:SS' for a time of day")
    *numbers, fraction, zone = match.groups()
    _offset(zone or "", text)  # It must be in range even where it does not count.
    year, month, day = (int(number) for number in numbers[:6] if number is not None)
    hour, minute, second = (int(number or 0) for number in numbers[6:])
    microsecond = round(Decimal("0" + (fraction or "0")[:_FRACTION_CHARACTERS_MAX]) * 1_000_000)
    time = datetime.timedelta(hours=hour, minutes=minute, seconds=second, microseconds=microsecond)
    in_range = hour <= 24 and minute <= 59 and second <= 60 and time <= datetime.timedelta(days=1)
    try:
        if in_range and (second < 60 or not microsecond):
            return datetime.datetime(year, month, day), time, zone or ""
    except ValueError:
        pass  # A day that the calendar does not have: told below, like an hour that the day does not have.
    raise _out_of_range(text)


#: Digits of a fraction of a second that decide how it is rounded.
_FRACTION_CHARACTERS_MAX = 20


def _out_of_range(text: str) -> DataError:
    return DataError(
        f'date/time field value out of range: "{text}"', hint="write it as YYYY-MM-DD HH:MM:SS; years go from 1 to 9999"
    )


def read_date(text: str) -> datetime.date:
    return _read_moment(text, "date")[0].date()


def read_timestamp(text: str) -> datetime.datetime:
    """A zone in the text is ignored, as PostgreSQL does for a type that has none."""
    day, time, _ = _read_moment(text, "timestamp")
    try:
        return day + time
    except OverflowError:
        raise _out_of_range(text) from None


def read_timestamptz(text: str) -> datetime.datetime:
    """Naive, in UTC. Without a zone it is UTC: a view must not depend on the time zone of a session."""
    day, time, zone = _read_moment(text, "timestamptz")
    try:
        return day + (time - _offset(zone, text))
    except OverflowError:
        raise _out_of_range(text) from None


def _offset(zone: str, text: str) -> datetime.timedelta:
    match = _ZONE.fullmatch(zone)
    if match is None:
        return datetime.timedelta()
    hours, minutes, seconds = (int(number or 0) for number in match.groups()[1:])
    if hours > _ZONE_HOURS_MAX or minutes > 59 or seconds > 59:
        raise DataError(
            f'time zone displacement out of range: "{text}"', hint=f"a zone is at most {_ZONE_HOURS_MAX} hours from UTC"
        )
    offset = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return offset if match[1] == "+" else -offset


def read_json(text: str) -> str:
    """The canonical text of the same JSON value."""
    try:
        return canonical_json(json.loads(text, parse_constant=_no_constant), "json")
    except (ValueError, RecursionError):
        raise _bad(text, "json") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# --- intervals: constants only ---

_MICROSECONDS = {"microsecond": 1, "millisecond": 1_000, "second": 10**6, "minute": 60 * 10**6, "hour": 3_600 * 10**6}
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12, "decade": 120, "century": 1_200, "millennium": 12_000}
_DAY_MICROSECONDS = 86_400 * 10**6
_MONTH_DAYS = 30
_INTERVAL_PART = re.compile(
    r"\s*(?:([+-]?)([0-9]+):([0-9]{2})(?::([0-9]{2}(?:\.[0-9]*)?))?|([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))\s*([a-z]*))",
    re.ASCII | re.IGNORECASE,
)
#: Longer texts of an interval, and numbers of more digits in it, are refused.
INTERVAL_CHARACTERS_MAX = 200
INTERVAL_DIGITS_MAX = 12


def read_interval(text: str, unit: str = "") -> tuple[int, int, int]:
    """Months, days and microseconds. `unit` is the word behind the text, as in INTERVAL '1' DAY."""
    words = text.strip(_SPACE).removeprefix("@").strip(_SPACE)
    sign = -1 if words.lower().endswith(" ago") else 1
    if sign < 0:
        words = words[: -len(" ago")].rstrip(_SPACE)
    if not words or len(words) > INTERVAL_CHARACTERS_MAX:
        raise _bad(text, "interval")
    total, position = Counter[str](), 0
    while position < len(words):
        match = _INTERVAL_PART.match(words, position)
        if match is None or any(len(number or "") > INTERVAL_DIGITS_MAX for number in match.groups()):
            raise _bad(text, "interval")
        position = match.end()
        last = position == len(words)
        total.update(_interval_part(match, unit if last else "day", text))
    months, days, microseconds = (total[name] * sign for name in ("months", "days", "microseconds"))
    return months, days, microseconds


def _interval_part(match: re.Match[str], bare_unit: str, text: str) -> dict[str, int]:
    minus, hours, minutes, seconds, number, written = match.groups()
    if number is None:
        exact = Decimal(int(hours) * 3_600 + int(minutes) * 60) + Decimal(seconds or 0)
        return {"microseconds": round(exact * 10**6) * (-1 if minus == "-" else 1)}
    unit = INTERVAL_UNITS.get((written or bare_unit or "second").lower())
    if unit is None:
        raise _bad(text, "interval", hint="use years, months, weeks, days, hours, minutes and seconds")
    amount = Decimal(number)
    if unit in _MICROSECONDS:
        return {"microseconds": round(amount * _MICROSECONDS[unit])}
    if unit in _DAYS:
        return _days_and_rest(amount * _DAYS[unit])
    if unit != "month":
        return {"months": round(amount * _MONTHS[unit])}
    whole = int(amount)
    return {"months": whole, **_days_and_rest((amount - whole) * _MONTH_DAYS)}


def _days_and_rest(days: Decimal) -> dict[str, int]:
    return {"days": int(days), "microseconds": round((days - int(days)) * _DAY_MICROSECONDS)}


INTERVAL_UNITS = {
    **dict.fromkeys(("microsecond", "microseconds", "us", "usec", "usecs"), "microsecond"),
    **dict.fromkeys(("millisecond", "milliseconds", "ms", "msec", "msecs"), "millisecond"),
    **dict.fromkeys(("second", "seconds", "s", "sec", "secs"), "second"),
    **dict.fromkeys(("minute", "minutes", "m", "min", "mins"), "minute"),
    **dict.fromkeys(("hour", "hours", "h", "hr", "hrs"), "hour"),
    **dict.fromkeys(("day", "days", "d"), "day"),
    **dict.fromkeys(("week", "weeks", "w"), "week"),
    **dict.fromkeys(("month", "months", "mon", "mons"), "month"),
    **dict.fromkeys(("year", "years", "y", "yr", "yrs"), "year"),
    **dict.fromkeys(("decade", "decades", "dec", "decs"), "decade"),
    **dict.fromkeys(("century", "centuries", "c", "cent"), "century"),
    **dict.fromkeys(("millennium", "millennia", "mil", "mils"), "millennium"),
}


def fit(value: Value, type_: Type) -> Value:
    """What an explicit cast does for the limits of a type: numeric(p, s) rounds or overflows, varchar(n) cuts, and
    char(n) has no blanks at its end."""
    if isinstance(value, Decimal) and type_.precision is not None and not value.is_nan():
        scale = type_.scale or 0
        if value.is_infinite():
            raise DataError(
                f"numeric field overflow: {sql_name(type_)}({type_.precision},{scale}) holds no infinity",
                hint=FIELD_HINT,
            )
        rounded = value.quantize(Decimal(1).scaleb(-scale, context=EXACT), context=EXACT)
        if rounded and rounded.adjusted() >= type_.precision - scale:
            raise DataError(
                f"numeric field overflow: {value:f} does not fit {sql_name(type_)}({type_.precision},{scale})",
                hint=FIELD_HINT,
            )
        return rounded if rounded else rounded.copy_abs()
    if isinstance(value, str) and type_.length is not None:
        cut = value[: type_.length]
        return cut.rstrip(" ") if type_.padded else cut
    return value
