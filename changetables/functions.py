"""What compiled expressions call: comparison with SQL's NaN, LIKE, text forms and casts as in PostgreSQL.

The compiler binds these into the namespace of the code that it makes. No argument is ever None: NULL is handled in
the compiled code, where the types say that it is possible.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from . import numbers
from .errors import DataError
from .types import INT_MAX, INT_MIN, NAN, Type, Value

#: Significant digits that PostgreSQL keeps when it makes a numeric of a double (DBL_DIG).
FLOAT_DIGITS = 15
#: Digits of the largest 64-bit integer.
INT_DIGITS_MAX = 19
#: Patterns of LIKE that are not constants: how many compiled ones are kept.
LIKE_PATTERNS_MAX = 256

_INT_TEXT = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_NUMBER_TEXT = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
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

# --- comparison: NaN equals NaN and is above everything ---


def float_eq(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def float_lt(a: float, b: float) -> bool:
    return a < b or (b != b and a == a)


def decimal_eq(a: Decimal, b: Decimal) -> bool:
    return a == b or (a.is_nan() and b.is_nan())


def decimal_lt(a: Decimal, b: Decimal) -> bool:
    if a.is_nan():
        return False
    return b.is_nan() or a < b


# --- arithmetic that has no function in numbers.py ---


def float_neg(a: float) -> float:
    """Unary minus would make a second NaN object."""
    return -a if a == a else NAN


def float_abs(a: float) -> float:
    return abs(a) if a == a else NAN


# --- LIKE ---


@lru_cache(maxsize=LIKE_PATTERNS_MAX)
def like_matcher(pattern: str) -> Callable[[str], object]:
    """A function that says whether a text matches a LIKE pattern.

    Between two '%' the leftmost match of a segment is always good enough, so each one is an atomic group: matching
    is linear in the text for each segment, whatever the pattern.
    """
    segments = _like_segments(pattern)
    if len(segments) == 1:
        return re.compile(segments[0], re.DOTALL).fullmatch
    middle = "".join(f"(?>.*?{segment})" for segment in segments[1:-1])
    return re.compile(f"{segments[0]}{middle}.*{segments[-1]}", re.DOTALL).fullmatch


def _like_segments(pattern: str) -> list[str]:
    segments, characters = [""], iter(pattern)
    for character in characters:
        if character == "%":
            segments.append("")
            continue
        if character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                raise DataError("LIKE pattern must not end with escape character", hint="write a backslash twice")
            segments[-1] += re.escape(escaped)
        else:
            segments[-1] += "." if character == "_" else re.escape(character)
    return segments


def like(text: str, pattern: str) -> bool:
    return like_matcher(pattern)(text) is not None


# --- text ---


def lower(text: str) -> str:
    """PostgreSQL maps characters one by one: none becomes two, and none depends on its neighbours."""
    return text.lower() if text.isascii() else "".join(_one(character, character.lower()) for character in text)


def upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(_one(character, character.upper()) for character in text)


def _one(character: str, mapped: str) -> str:
    return mapped if len(mapped) == 1 else character


def float_text(value: float) -> str:
    """The shortest digits that give the same double, with the exponent where PostgreSQL writes one."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
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


def decimal_text(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def bool_text(value: bool) -> str:
    return "true" if value else "false"


_TEXT_FORMS: dict[str, Callable[..., str]] = {
    "int": str,
    "float": float_text,
    "decimal": decimal_text,
    "bool": bool_text,
}


# --- casts ---


def _invalid(kind: str, text: object) -> DataError:
    return DataError(f"invalid input syntax for type {kind}: {text!r}")


def _checked_int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise DataError("integer out of range", hint="integers have 64 bits; use numeric")


def float_to_int(value: float) -> int:
    """Halves go to the even neighbour, as in PostgreSQL for double precision."""
    if value != value or value in (float("inf"), float("-inf")):
        raise DataError(f"cannot convert {float_text(value)} to an integer")
    return _checked_int(round(value))


def decimal_to_int(value: Decimal) -> int:
    """Halves go away from zero, as in PostgreSQL for numeric."""
    if not value.is_finite():
        raise DataError(f"cannot convert {value} to an integer")
    return _checked_int(int(numbers.decimal_round(value, 0)))


def float_to_decimal(value: float) -> Decimal:
    if value != value:
        return numbers.DECIMAL_NAN
    if value in (float("inf"), float("-inf")):
        return Decimal(value)
    return numbers.decimal_value(Decimal(f"{value:.{FLOAT_DIGITS}g}"))


def decimal_to_float(value: Decimal) -> float:
    if value.is_nan():
        return NAN
    result = float(value)
    if value.is_finite() and result in (float("inf"), float("-inf")):
        raise DataError("value out of range for double precision")
    return result


def text_to_int(text: str) -> int:
    if not _INT_TEXT.fullmatch(text):
        raise _invalid("bigint", text)
    # Python refuses to read thousands of digits at once; these would be out of range anyway.
    digits = text.strip().lstrip("+-").lstrip("0")
    return _checked_int(int(text) if len(digits) <= INT_DIGITS_MAX else INT_MAX + 1)


def text_to_float(text: str) -> float:
    special = _SPECIAL_TEXT.get(text.strip().lower())
    if special is not None:
        return NAN if special == "NaN" else float(special)
    if not _NUMBER_TEXT.fullmatch(text):
        raise _invalid("double precision", text)
    result = float(text)
    if result in (float("inf"), float("-inf")):
        raise DataError(f"{text!r} is out of range for type double precision")
    return result


def text_to_decimal(text: str) -> Decimal:
    special = _SPECIAL_TEXT.get(text.strip().lower())
    if special is not None:
        return numbers.DECIMAL_NAN if special == "NaN" else Decimal(special)
    if not _NUMBER_TEXT.fullmatch(text):
        raise _invalid("numeric", text)
    return numbers.decimal_value(Decimal(text.strip()))


def text_to_bool(text: str) -> bool:
    value = _BOOL_TEXT.get(text.strip().lower())
    if value is None:
        raise _invalid("boolean", text)
    return value


def date_to_timestamp(value: datetime.date) -> datetime.datetime:
    return datetime.datetime(value.year, value.month, value.day)


def timestamp_to_date(value: datetime.datetime) -> datetime.date:
    return value.date()


def int_to_bool(value: int) -> bool:
    return value != 0


_CASTS: dict[tuple[str, str], Callable[..., Value]] = {
    ("int", "float"): float,
    ("int", "decimal"): Decimal,
    ("int", "bool"): int_to_bool,
    ("bool", "int"): int,
    ("float", "int"): float_to_int,
    ("float", "decimal"): float_to_decimal,
    ("decimal", "int"): decimal_to_int,
    ("decimal", "float"): decimal_to_float,
    ("date", "timestamp"): date_to_timestamp,
    ("timestamp", "date"): timestamp_to_date,
    ("str", "int"): text_to_int,
    ("str", "float"): text_to_float,
    ("str", "decimal"): text_to_decimal,
    ("str", "bool"): text_to_bool,
}
#: Casts that cannot raise, whatever the value.
SAFE_CASTS = frozenset({("int", "float"), ("int", "decimal"), ("int", "bool"), ("bool", "int"), ("date", "timestamp")})


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
        return lambda text: text[:length]
    return None


def _scaler(precision: int, scale: int) -> Callable[[Decimal], Decimal]:
    return lambda value: numbers.decimal_fit(value, precision, scale)
