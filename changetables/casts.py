"""Casts with PostgreSQL 15's results, for compiled expressions: text forms, and texts, numbers and moments read."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from decimal import Decimal

from . import literals, numbers
from .errors import INFINITE_HINT, INTEGER_HINT, DataError, input_hint
from .moments import date_text, timestamp_text, timestamptz_text
from .types import INT_MAX, INT_MIN, NAN, Type, Value

#: Significant digits that PostgreSQL keeps when it makes a numeric of a double (DBL_DIG).
FLOAT_DIGITS = 15
#: Digits of the largest 64-bit integer.
INT_DIGITS_MAX = 19
#: Digits of an exponent that a numeric could still hold; longer ones are an overflow.
EXPONENT_DIGITS_MAX = 7

_SPACE = " \t\n\r\v\f"
_INT_TEXT = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_NUMBER_TEXT = re.compile(r"\s*[+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?([0-9]+))?\s*", re.ASCII)
_SPECIAL_TEXT = {
    "nan": "NaN",
    "inf": "Infinity",
    "+inf": "Infinity",
    "infinity": "Infinity",
    "+infinity": "Infinity",
    "-inf": "-Infinity",
    "-infinity": "-Infinity",
}
_BOOL_TEXT = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
#: Beyond it the middle between two floats is an integer, which may have few digits.
_FLOAT_INTEGERS_TO = 2.0**53
_INFINITIES = (float("inf"), float("-inf"))
_ISO_DATE_CHARACTERS = len("YYYY-MM-DD")


# --- text forms ---


def float_text(value: float) -> str:
    """The shortest digits that give the same double, with the exponent where PostgreSQL writes one."""
    if value != value:
        return "NaN"
    if value in _INFINITIES:
        return "Infinity" if value > 0 else "-Infinity"
    shortest = Decimal(repr(value))
    while abs(value) >= _FLOAT_INTEGERS_TO and _is_halfway(value, int(shortest)):
        # Python trusts in the rule for halves when it is read back; PostgreSQL writes more digits.
        shortest = Decimal(f"{value:.{len(shortest.as_tuple().digits)}e}")
    sign, digits, exponent = shortest.as_tuple()
    text = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not text:
        return "-0" if sign else "0"
    assert isinstance(exponent, int)
    point = len(digits) + exponent - 1  # The exponent of the first digit.
    minus = "-" if sign else ""
    if -5 < point < FLOAT_DIGITS:
        return minus + format(Decimal(f"{text}e{point - len(text) + 1}"), "f")
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}e{'-' if point < 0 else '+'}{abs(point):02d}"


def _is_halfway(value: float, whole: int) -> bool:
    """Whether an integer is as near to the float as to a neighbour of it."""
    neighbours = (math.nextafter(value, 0.0), math.nextafter(value, math.copysign(math.inf, value)))
    return any(2 * whole == int(value) + int(other) for other in neighbours if math.isfinite(other))


def decimal_text(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def bool_text(value: bool) -> str:
    return "true" if value else "false"


def bytes_text(value: bytes) -> str:
    return "\\x" + value.hex()


_TEXT_FORMS: dict[str, Callable[..., str]] = {
    "int": str,
    "float": float_text,
    "decimal": decimal_text,
    "bool": bool_text,
    "bytes": bytes_text,
    "date": date_text,
    "timestamp": timestamp_text,
    "timestamptz": timestamptz_text,
}


# --- numbers ---


def _invalid(kind: str, text: str) -> DataError:
    return DataError(f'invalid input syntax for type {kind}: "{text}"', hint=input_hint(kind))


def _float_out_of_range(text: str) -> DataError:
    return DataError(
        f'"{text[:40]}" is out of range for type double precision', hint="use numeric, which has more digits"
    )


def _checked_int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise DataError("integer out of range", hint=INTEGER_HINT)


def float_to_int(value: float) -> int:
    """Halves go to the even neighbour, as in PostgreSQL for double precision."""
    if value != value or value in _INFINITIES:
        raise DataError(f"cannot convert {float_text(value)} to an integer", hint=INFINITE_HINT)
    return _checked_int(round(value))


def decimal_to_int(value: Decimal) -> int:
    """Halves go away from zero, as in PostgreSQL for numeric."""
    if not value.is_finite():
        raise DataError(f"cannot convert {value} to an integer", hint=INFINITE_HINT)
    return _checked_int(int(numbers.decimal_round(value, 0)))


def float_to_decimal(value: float) -> Decimal:
    if value != value:
        return numbers.DECIMAL_NAN
    if value in _INFINITIES:
        return Decimal(value)
    return numbers.decimal_value(Decimal(f"{value:.{FLOAT_DIGITS}g}"))


def decimal_to_float(value: Decimal) -> float:
    if value.is_nan():
        return NAN
    result = float(value)
    # Neither a number that is too large becomes an infinity, nor one that is too small becomes 0.
    if value.is_finite() and (result in _INFINITIES or (result == 0 and value)):
        raise _float_out_of_range(decimal_text(value))
    return result


def int_to_bool(value: int) -> bool:
    return value != 0


def text_to_int(text: str) -> int:
    if not _INT_TEXT.fullmatch(text):
        raise _invalid("bigint", text)
    # Python refuses to read thousands of digits at once; these would be out of range anyway.
    digits = text.strip(_SPACE).lstrip("+-").lstrip("0")
    return _checked_int(int(text) if len(digits) <= INT_DIGITS_MAX else INT_MAX + 1)


def text_to_float(text: str) -> float:
    special = _SPECIAL_TEXT.get(text.strip(_SPACE).lower())
    if special is not None:
        return NAN if special == "NaN" else float(special)
    match = _NUMBER_TEXT.fullmatch(text)
    if match is None:
        raise _invalid("double precision", text)
    result = float(text)
    if result in _INFINITIES or (result == 0 and match[1].strip("0.")):
        raise _float_out_of_range(text)
    return result


def text_to_decimal(text: str) -> Decimal:
    special = _SPECIAL_TEXT.get(text.strip(_SPACE).lower())
    if special is not None:
        return numbers.DECIMAL_NAN if special == "NaN" else Decimal(special)
    match = _NUMBER_TEXT.fullmatch(text)
    if match is None:
        raise _invalid("numeric", text)
    if len((match[2] or "").lstrip("0")) > EXPONENT_DIGITS_MAX:
        raise DataError(f"value overflows numeric format: {text[:40]}", hint=numbers.NUMERIC_HINT)
    value = Decimal(text.strip(_SPACE))
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > numbers.SCALE_DIGITS_MAX:
        raise DataError(f"value overflows numeric format: {text[:40]}", hint=numbers.NUMERIC_HINT)
    return numbers.decimal_value(value)


def text_to_bool(text: str) -> bool:
    value = _BOOL_TEXT.get(text.strip(_SPACE).lower())
    if value is None:
        raise _invalid("boolean", text)
    return value


# --- moments ---


def date_to_timestamp(value: datetime.date) -> datetime.datetime:
    return datetime.datetime(value.year, value.month, value.day)


def timestamp_to_date(value: datetime.datetime) -> datetime.date:
    return value.date()


def text_to_date(text: str) -> datetime.date:
    """The usual form at once; whatever else can be read as a date by `literals`."""
    if len(text) == _ISO_DATE_CHARACTERS and text[4] == text[7] == "-":
        try:
            return datetime.date.fromisoformat(text)
        except ValueError:
            pass  # Read again below, which says what is wrong with it.
    return literals.read_date(text)


_CASTS: dict[tuple[str, str], Callable[..., Value] | None] = {
    ("int", "float"): float,
    ("int", "decimal"): Decimal,
    ("int", "bool"): int_to_bool,
    ("bool", "int"): int,
    ("float", "int"): float_to_int,
    ("float", "decimal"): float_to_decimal,
    ("decimal", "int"): decimal_to_int,
    ("decimal", "float"): decimal_to_float,
    ("date", "timestamp"): date_to_timestamp,
    ("date", "timestamptz"): date_to_timestamp,
    ("timestamp", "date"): timestamp_to_date,
    ("timestamptz", "date"): timestamp_to_date,
    # Both are naive datetimes, and the session is in UTC: nothing to do.
    ("timestamp", "timestamptz"): None,
    ("timestamptz", "timestamp"): None,
    ("str", "int"): text_to_int,
    ("str", "float"): text_to_float,
    ("str", "decimal"): text_to_decimal,
    ("str", "bool"): text_to_bool,
    ("str", "bytes"): literals.read_bytes,
    ("str", "date"): text_to_date,
    ("str", "timestamp"): literals.read_timestamp,
    ("str", "timestamptz"): literals.read_timestamptz,
}
#: Casts that cannot raise, whatever the value.
SAFE_CASTS = frozenset(
    {
        ("int", "float"),
        ("int", "decimal"),
        ("int", "bool"),
        ("bool", "int"),
        ("date", "timestamp"),
        ("date", "timestamptz"),
        ("timestamp", "date"),
        ("timestamptz", "date"),
        *((kind, "str") for kind in _TEXT_FORMS),
    }
)


def caster(source: Type, target: Type) -> Callable[..., Value] | None:
    """The function that casts a value, or None if the value stays as it is. Raises KeyError for an unknown cast."""
    convert: Callable[..., Value] | None = None
    if source.kind != target.kind:
        convert = _TEXT_FORMS[source.kind] if target.kind == "str" else _CASTS[source.kind, target.kind]
    fit = _fitter(target) if target != source else None
    if convert is None or fit is None:
        return convert or fit
    first, second = convert, fit
    return lambda value: second(first(value))


def _fitter(target: Type) -> Callable[..., Value] | None:
    if target.kind == "decimal" and target.precision is not None:
        return _scaler(target.precision, target.scale or 0)
    if target.kind == "str" and target.length is not None:
        length = target.length
        if target.padded:
            return lambda text: text[:length].rstrip(" ")
        return lambda text: text[:length]
    return None


def _scaler(precision: int, scale: int) -> Callable[[Decimal], Decimal]:
    return lambda value: numbers.decimal_fit(value, precision, scale)
