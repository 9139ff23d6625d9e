"""The oracle's functions: each as its definition reads, without regard to speed. `evaluate` calls them.

They share no code with those of the compiled expressions, with one exception: roots, powers and logarithms of numeric
come from `mathematics`, whose digits are compared with PostgreSQL's own.
"""

from __future__ import annotations

import datetime
import decimal
import math
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction

from . import mathematics
from .errors import (
    CHARACTER_HINT,
    DIVISION_HINT,
    INTEGER_HINT,
    LOGARITHM_HINT,
    OVERFLOW_HINT,
    POWER_HINT,
    ROOT_HINT,
    SUBSTRING_HINT,
    UNDERFLOW_HINT,
    UNIT_HINT,
    DataError,
    InternalError,
)
from .literals import EXACT
from .numbers import DECIMAL_NAN, decimal_div, decimal_value
from .texts import RESULT_CHARACTERS_MAX
from .types import INT_MAX, INT_MIN, Value

#: PostgreSQL's numeric has no more digits than these, so rounding at a place beyond them changes nothing more.
_PLACES_MIN, _PLACES_MAX = -131_073, 16_383


# --- numbers ---


def _whole(*, decimal_rounding: str, float_rounding: str) -> Callable[..., Value]:
    """Rounding to an integer. A float keeps the sign of its zero."""

    def whole(value: Value, places: int = 0) -> Value:
        if isinstance(value, float):
            if not math.isfinite(value):
                return value
            return math.copysign(float(Decimal(value).to_integral_value(float_rounding, EXACT)), value)
        assert isinstance(value, Decimal), "the binder passes floats and decimals only"
        if not value.is_finite():
            return value
        return _at_place(value, min(max(places, _PLACES_MIN), _PLACES_MAX), decimal_rounding)

    return whole


def _at_place(value: Decimal, places: int, rounding: str) -> Decimal:
    """The multiple of 10**-places that the rounding chooses, with so many digits after the point."""
    shifted = EXACT.scaleb(value, places).to_integral_value(rounding, EXACT)
    result = EXACT.scaleb(shifted, -places)
    return decimal_value(EXACT.quantize(result, Decimal((0, (1,), -max(places, 0)))))


ceil = _whole(decimal_rounding=decimal.ROUND_CEILING, float_rounding=decimal.ROUND_CEILING)
floor = _whole(decimal_rounding=decimal.ROUND_FLOOR, float_rounding=decimal.ROUND_FLOOR)
rounded = _whole(decimal_rounding=decimal.ROUND_HALF_UP, float_rounding=decimal.ROUND_HALF_EVEN)
trunc = _whole(decimal_rounding=decimal.ROUND_DOWN, float_rounding=decimal.ROUND_DOWN)


def sign(value: Value) -> Value:
    if isinstance(value, float):
        return 0.0 if math.isnan(value) or value == 0 else math.copysign(1.0, value)
    assert isinstance(value, Decimal), "the binder passes floats and decimals only"
    if value.is_nan() or value == 0:
        return value if value.is_nan() else Decimal(0)
    return Decimal(-1 if value < 0 else 1)


def _by_type(for_float: Callable[..., float], for_decimal: Callable[..., Decimal]) -> Callable[..., Value]:
    def function(*values: Value) -> Value:
        return for_float(*values) if isinstance(values[0], float) else for_decimal(*values)

    return function


def _finite(result: float) -> float:
    if math.isinf(result):
        raise DataError("value out of range: overflow", hint=OVERFLOW_HINT)
    if result == 0:
        raise DataError("value out of range: underflow", hint=UNDERFLOW_HINT)
    return result


def _float_sqrt(value: float) -> float:
    if value < 0:
        raise DataError("cannot take square root of a negative number", hint=ROOT_HINT)
    return value**0.5 if math.isfinite(value) and value else value


def _float_exp(value: float) -> float:
    if not math.isfinite(value):
        return 0.0 if value == -math.inf else value
    try:
        return _finite(math.exp(value))
    except OverflowError:
        raise DataError("value out of range: overflow", hint=OVERFLOW_HINT) from None


def _logarithm(of: Callable[[float], float]) -> Callable[[float], float]:
    def logarithm(value: float) -> float:
        if value < 0:
            raise DataError("cannot take logarithm of a negative number", hint=LOGARITHM_HINT)
        if value == 0:
            raise DataError("cannot take logarithm of zero", hint=LOGARITHM_HINT)
        return of(value) if math.isfinite(value) else value

    return logarithm


def _float_power(base: float, exponent: float) -> float:
    if base == 1 or exponent == 0:
        return 1.0
    if math.isnan(base) or math.isnan(exponent):
        return math.nan
    if base == 0:
        if exponent < 0:
            raise DataError("zero raised to a negative power is undefined", hint=POWER_HINT)
        return math.pow(base, exponent)
    if base < 0 and math.isfinite(exponent) and exponent % 1:
        raise DataError("a negative number raised to a non-integer power yields a complex result", hint=POWER_HINT)
    if math.isinf(base) or math.isinf(exponent):
        return math.pow(base, exponent)
    try:
        return _finite(math.pow(base, exponent))
    except OverflowError:
        raise DataError("value out of range: overflow", hint=OVERFLOW_HINT) from None


sqrt = _by_type(_float_sqrt, mathematics.decimal_sqrt)
exp = _by_type(_float_exp, mathematics.decimal_exp)
ln = _by_type(_logarithm(math.log), mathematics.decimal_ln)
log10 = _by_type(_logarithm(math.log10), mathematics.decimal_log10)
power = _by_type(_float_power, mathematics.decimal_power)
log = mathematics.decimal_log


def div(left: Decimal, right: Decimal) -> Decimal:
    if not (left.is_finite() and right.is_finite()):
        return decimal_div(left, right)
    if right == 0:
        raise DataError("division by zero", hint=DIVISION_HINT)
    quotient = abs(Fraction(left)) // abs(Fraction(right))
    return decimal_value(Decimal(quotient if (left < 0) == (right < 0) else -quotient))


def gcd(left: Value, right: Value) -> Value:
    """Euclid's algorithm."""
    if isinstance(left, int) and isinstance(right, int):
        return _in_range(int(_euclid(Decimal(left), Decimal(right))))
    assert isinstance(left, Decimal) and isinstance(right, Decimal), "the binder passes two of one type"
    if not (left.is_finite() and right.is_finite()):
        return DECIMAL_NAN
    mathematics.require_gcd_digits(left, right)
    return _with_scale(_euclid(left, right), left, right)


def lcm(left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        product = abs(left * right)
        return _in_range(product // int(_euclid(Decimal(left), Decimal(right)))) if product else 0
    assert isinstance(left, Decimal) and isinstance(right, Decimal), "the binder passes two of one type"
    if not (left.is_finite() and right.is_finite()):
        return DECIMAL_NAN
    mathematics.require_gcd_digits(left, right)
    if not left or not right:
        return _with_scale(Decimal(0), left, right)
    multiple = EXACT.multiply(EXACT.divide_int(left.copy_abs(), _euclid(left, right)), right.copy_abs())
    return decimal_value(_with_scale(multiple, left, right))


def _euclid(left: Decimal, right: Decimal) -> Decimal:
    left, right = left.copy_abs(), right.copy_abs()
    while right:
        left, right = right, EXACT.remainder(left, right)
    return left


def _with_scale(value: Decimal, *like: Decimal) -> Decimal:
    scale = max(max(0, -int(number.as_tuple().exponent)) for number in like)
    return value.quantize(Decimal((0, (1,), -scale)), context=EXACT)


def _in_range(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise DataError("integer out of range", hint=INTEGER_HINT)
    return value


# --- text ---


def _limited(characters: int) -> None:
    if characters > RESULT_CHARACTERS_MAX:
        raise DataError("requested length too large", hint="make the text shorter")


def lower(text: str) -> str:
    return "".join(_lower_letter(letter) for letter in text)


def upper(text: str) -> str:
    return "".join(_upper_letter(letter) for letter in text)


def _lower_letter(letter: str) -> str:
    """PostgreSQL maps characters one by one: what would become two characters stays, but for the dotted capital I."""
    if letter == "İ":
        return "i"
    return letter.lower() if len(letter.lower()) == 1 else letter


def _upper_letter(letter: str) -> str:
    if len(letter.upper()) == 1:
        return letter.upper()
    return letter.title() if len(letter.title()) == 1 else letter


def initcap(text: str) -> str:
    result = ""
    for index, letter in enumerate(text):
        before = text[index - 1] if index else " "
        in_word = unicodedata.category(before) in _WORD_CATEGORIES
        result += _lower_letter(letter) if in_word else _upper_letter(letter)
    return result


#: Letters, decimal digits, and numbers that are letters, as the Roman ones.
_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl"})


def concatenated(left: Value, right: Value) -> Value:
    if isinstance(left, bytes) and isinstance(right, bytes):
        _limited(len(left) + len(right))
        return left + right
    assert isinstance(left, str) and isinstance(right, str), "the binder passes two of one type"
    _limited(len(left) + len(right))
    return left + right


def concat(*parts: str | None) -> str:
    return str(concat_ws("", *parts))


def concat_ws(separator: str | None, *parts: str | None) -> str | None:
    if separator is None:
        return None
    present = [part for part in parts if part is not None]
    result = separator.join(present)
    _limited(len(result))
    return result


def substring(text: str | bytes, start: int, length: int | None = None) -> str | bytes:
    if length is not None and length < 0:
        raise DataError("negative substring length not allowed", hint=SUBSTRING_HINT)
    positions = [
        position for position in range(1, len(text) + 1)
        if position >= start and (length is None or position < start + length)
    ]  # fmt: skip
    return text[positions[0] - 1 : positions[-1]] if positions else text[:0]


def left(text: str, count: int) -> str:
    kept = count if count >= 0 else len(text) + count
    return "".join(letter for index, letter in enumerate(text) if index < kept)


def right(text: str, count: int) -> str:
    return left(text[::-1], count)[::-1]


def ltrim(text: str, characters: str = " ") -> str:
    position = 0
    while position < len(text) and text[position] in characters:
        position += 1
    return text[position:]


def rtrim(text: str, characters: str = " ") -> str:
    return ltrim(text[::-1], characters)[::-1]


def btrim(text: str, characters: str = " ") -> str:
    return ltrim(rtrim(text, characters), characters)


def lpad(text: str, length: int, fill: str = " ") -> str:
    return "".join(_padding(text, length, fill)) + left(text, max(length, 0))


def rpad(text: str, length: int, fill: str = " ") -> str:
    return left(text, max(length, 0)) + "".join(_padding(text, length, fill))


def _padding(text: str, length: int, fill: str) -> Iterator[str]:
    if not fill:
        return
    _limited(length)
    for index in range(length - len(text)):
        yield fill[index % len(fill)]


def replace(text: str, old: str, new: str) -> str:
    if old == "":
        return text
    parts = text.split(old)
    _limited(sum(map(len, parts)) + len(new) * (len(parts) - 1))
    return new.join(parts)


def translate(text: str, old: str, new: str) -> str:
    result = ""
    for letter in text:
        index = old.find(letter)
        result += letter if index < 0 else new[index : index + 1]
    return result


def strpos(text: str | bytes, part: str | bytes) -> int:
    for position in range(len(text) - len(part) + 1):
        if text[position : position + len(part)] == part:
            return position + 1
    return 0


def starts_with(text: str, prefix: str) -> bool:
    return text[: len(prefix)] == prefix


def repeat(text: str, count: int) -> str:
    if not text or count <= 0:
        return ""
    _limited(len(text) * count)
    return text * count


def reverse(text: str) -> str:
    return "".join(reversed(text))


def split_part(text: str, delimiter: str, index: int) -> str:
    if index == 0:
        raise DataError("field position must not be zero", hint="fields count from 1, and from -1 at the end")
    parts, rest = [], text
    while delimiter and delimiter in rest:
        part, _, rest = rest.partition(delimiter)
        parts.append(part)
    parts.append(rest)
    numbered = dict(enumerate(parts, start=1)) | {at - len(parts): part for at, part in enumerate(parts)}
    return numbered.get(index, "")


def octet_length(text: str | bytes) -> int:
    return len(text.encode() if isinstance(text, str) else text)


def ascii_code(text: str) -> int:
    return ord(text[:1] or "\0")


def chr_of(code: int) -> str:
    if code == 0:
        raise DataError("null character not permitted", hint=CHARACTER_HINT)
    try:
        letter = chr(code)
        letter.encode()
    except (ValueError, OverflowError):
        raise DataError("requested character not valid for encoding", hint=CHARACTER_HINT) from None
    return letter


def like_escape(pattern: str, escape: str) -> str:
    if len(escape) > 1:
        raise DataError("invalid escape string", hint="the escape is one character, or empty")
    if escape == "":
        return pattern.replace("\\", "\\\\")
    result, position = "", 0
    while position < len(pattern):
        letter = pattern[position]
        position += 1
        if letter == escape:
            # The escape character and what it escapes; alone at the end it stays alone, which LIKE refuses.
            result += "\\" + pattern[position : position + 1]
            position += 1
        else:
            result += "\\\\" if letter == "\\" else letter
    return result


# --- moments ---


def _moment_error(kind: str) -> DataError:
    return DataError(f"{kind} out of range", hint="years go from 1 to 9999")


def add_days(date: datetime.date, days: int) -> datetime.date:
    ordinal = date.toordinal() + days
    if not 1 <= ordinal <= datetime.date.max.toordinal():
        raise _moment_error("date")
    return datetime.date.fromordinal(ordinal)


def days_between(later: datetime.date, earlier: datetime.date) -> int:
    return later.toordinal() - earlier.toordinal()


def add_interval(moment: datetime.datetime, months: int, days: int, microseconds: int) -> datetime.datetime:
    year = moment.year + (moment.month - 1 + months) // 12
    month = (moment.month - 1 + months) % 12 + 1
    if not 1 <= year <= 9999:
        raise _moment_error("timestamp")
    day = moment.day
    while not _exists(year, month, day):
        day -= 1
    try:
        start = datetime.datetime.combine(datetime.date(year, month, day), moment.time())
        return start + datetime.timedelta(days) + datetime.timedelta(microseconds=microseconds)
    except OverflowError:
        return _add_at_once(moment.replace(year=year, month=month, day=day), days, microseconds)


def _add_at_once(moment: datetime.datetime, days: int, microseconds: int) -> datetime.datetime:
    """Days alone may lead out of the calendar, and the time back into it."""
    total = (moment.toordinal() - 1 + days) * 86_400 * 10**6 + microseconds
    total += (moment - datetime.datetime.combine(moment.date(), datetime.time())) // datetime.timedelta(microseconds=1)
    try:
        return datetime.datetime.min + datetime.timedelta(microseconds=total)
    except OverflowError:
        raise _moment_error("timestamp") from None


def _exists(year: int, month: int, day: int) -> bool:
    try:
        datetime.date(year, month, day)
    except ValueError:
        return False
    return True


def make_date(year: int, month: int, day: int) -> datetime.date:
    if not (1 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31 and _exists(year, month, day)):
        raise DataError(
            "date field value out of range",
            hint="months go from 1 to 12, days to the end of the month, years from 1 to 9999",
        )
    return datetime.date(year, month, day)


_UNITS = ("year", "month", "day", "hour", "minute", "second", "microsecond")
#: What other names PostgreSQL takes for a field.
_ALIASES = {
    "microsecond": "us usec usecs microseconds",
    "millisecond": "ms msec msecs milliseconds",
    "second": "s sec secs seconds",
    "minute": "m min mins minutes",
    "hour": "h hr hrs hours",
    "day": "d days",
    "week": "w weeks",
    "month": "mon mons months",
    "quarter": "qtr",
    "year": "y yr yrs years",
    "decade": "dec decs decades",
    "century": "c cent centuries",
    "millennium": "mil mils millennia",
}
_KNOWN = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases.split())}
_KNOWN |= {name: name for name in ("dow", "doy", "isodow", "isoyear", "epoch", "julian")}
_ZONE = ("timezone", "timezone_hour", "timezone_minute")


def _field(field: str) -> str:
    name = _KNOWN.get(field.lower())
    if name is None:
        raise DataError(f'unit "{field.lower()}" not recognized', hint=UNIT_HINT)
    return name


def date_trunc(moment: datetime.datetime, field: str) -> datetime.datetime:
    name = _field(field)
    parts = [getattr(moment, unit) for unit in _UNITS]
    if name == "week":
        monday = moment.toordinal() - (moment.toordinal() - 1) % 7  # Day 1 was a Monday.
        return datetime.datetime.fromordinal(monday)
    years = {"decade": (10, 0), "century": (100, 1), "millennium": (1000, 1)}
    if name in years:
        length, first = years[name]
        start = (moment.year - first) // length * length + first
        if start < 1:
            raise _moment_error("timestamp")
        return datetime.datetime(start, 1, 1)
    if name == "quarter":
        return datetime.datetime(moment.year, moment.month - (moment.month - 1) % 3, 1)
    if name == "millisecond":
        return moment - datetime.timedelta(microseconds=moment.microsecond % 1000)
    if name not in _UNITS:
        raise DataError(f'unit "{field.lower()}" not supported for type timestamp', hint=UNIT_HINT)
    kept = _UNITS.index(name) + 1
    year, month, day, *time = parts[:kept] + [1, 1, 1, 0, 0, 0, 0][kept:]
    return datetime.datetime(year, month, day, *time)


def _day_part(date: datetime.date, name: str) -> int | None:
    """A part that depends on the day only."""
    ordinal = date.toordinal()
    thursday = ordinal - (ordinal - 1) % 7 + 3  # A week belongs to the year of its Thursday.
    iso_year = datetime.date.fromordinal(thursday).year if thursday <= datetime.date.max.toordinal() else 10_000
    parts = {
        "year": date.year,
        "month": date.month,
        "day": date.day,
        "quarter": [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4][date.month],
        "decade": int(date.year / 10),
        "century": -(-date.year // 100),
        "millennium": -(-date.year // 1000),
        "dow": ordinal % 7,
        "isodow": (ordinal - 1) % 7 + 1,
        "doy": ordinal - datetime.date(date.year, 1, 1).toordinal() + 1,
        "isoyear": iso_year,
        "week": (thursday - datetime.date(iso_year, 1, 1).toordinal()) // 7 + 1 if iso_year < 10_000 else 1,
    }
    return parts.get(name)


def extract(kind: str, moment: datetime.date, field: str) -> Decimal:
    if field.lower() in _ZONE:
        if kind == "timestamptz":
            return Decimal(0)
        raise DataError(f'unit "{field.lower()}" not supported for type {kind}', hint=UNIT_HINT)
    name = _field(field)
    day_part = _day_part(moment, name)
    if day_part is not None:
        return Decimal(day_part)
    days = moment.toordinal() - datetime.date(1970, 1, 1).toordinal()
    julian = moment.toordinal() + 1_721_425  # The Julian day of 0001-01-01 is 1721426.
    if not isinstance(moment, datetime.datetime):
        if name not in ("epoch", "julian"):
            raise DataError(f'unit "{field.lower()}" not supported for type date', hint=UNIT_HINT)
        return Decimal(days * 86_400 if name == "epoch" else julian)
    seconds = Decimal(moment.second) + Decimal(moment.microsecond).scaleb(-6)
    of_day = moment.hour * 3_600 + moment.minute * 60 + seconds
    values = {
        "hour": Decimal(moment.hour),
        "minute": Decimal(moment.minute),
        "second": seconds,
        "millisecond": (seconds * 1000).quantize(Decimal("0.001")),
        "microsecond": Decimal(int(seconds * 10**6)),
        "epoch": days * 86_400 + of_day,
        "julian": EXACT.add(julian, decimal_div(Decimal(int(of_day * 10**6)), Decimal(86_400 * 10**6))),
    }
    return values[name]


def date_part(kind: str, moment: datetime.datetime, field: str) -> float:
    """PostgreSQL computes julian in doubles; everything else is the double next to the exact value."""
    exact = extract(kind, moment, field)
    if field.lower() != "julian":
        return float(exact)
    seconds = moment.hour * 3_600 + moment.minute * 60 + moment.second + moment.microsecond / 1_000_000.0
    return int(exact) + seconds / 86_400.0


# --- text forms ---


def moment_text(moment: datetime.date, kind: str) -> str:
    text = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
    if not isinstance(moment, datetime.datetime):
        return text
    text += f" {moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}"
    if moment.microsecond:
        text += f".{moment.microsecond:06d}".rstrip("0")
    if kind not in ("timestamp", "timestamptz"):
        raise InternalError(f"a datetime as {kind}")
    return text + ("+00" if kind == "timestamptz" else "")


def bytes_text(value: bytes) -> str:
    return "\\x" + "".join(f"{byte:02x}" for byte in value)
