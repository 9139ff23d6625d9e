"""The operators and functions that compiled expressions call, by name and by the kind of the first argument.

The compiler binds them into the namespace of the code that it makes. No argument is ever None: NULL is handled in the
compiled code, where the types say that it is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from . import mathematics, moments, numbers, texts
from .expressions import OPERATORS
from .types import NAN, Value

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


# --- GREATEST and LEAST: of several that are equal the first one counts, as it may look different (1.0 and 1.00) ---


def _extreme(below: Callable[..., bool], *, greatest: bool) -> Callable[..., Value]:
    def extreme(*values: Value) -> Value:
        found = None
        for value in values:
            if value is None:
                continue
            if found is None or (below(found, value) if greatest else below(value, found)):
                found = value
        return found

    return extreme


def _plain_lt(a: int, b: int) -> bool:
    return a < b


_BELOW: dict[str, Callable[..., bool]] = {"float": float_lt, "decimal": decimal_lt}
#: By name and kind; they skip None. Kinds that are not here compare as Python does: kind "".
EXTREMES: dict[tuple[str, str], Callable[..., Value]] = {
    (name, kind): _extreme(below, greatest=name == "greatest")
    for name in ("greatest", "least")
    for kind, below in {"": _plain_lt, **_BELOW}.items()
}


# --- strict functions ---

#: By name and the kind of the first argument. The result is NULL exactly if an argument is.
FUNCTIONS: dict[tuple[str, str], Callable[..., Value]] = {
    ("+", "int"): numbers.int_add,
    ("-", "int"): numbers.int_sub,
    ("*", "int"): numbers.int_mul,
    ("/", "int"): numbers.int_div,
    ("%", "int"): numbers.int_mod,
    ("neg", "int"): numbers.int_neg,
    ("abs", "int"): numbers.int_abs,
    ("gcd", "int"): mathematics.int_gcd,
    ("lcm", "int"): mathematics.int_lcm,
    ("+", "float"): numbers.float_add,
    ("-", "float"): numbers.float_sub,
    ("*", "float"): numbers.float_mul,
    ("/", "float"): numbers.float_div,
    ("neg", "float"): float_neg,
    ("abs", "float"): float_abs,
    ("ceil", "float"): mathematics.float_ceil,
    ("floor", "float"): mathematics.float_floor,
    ("round", "float"): mathematics.float_round,
    ("trunc", "float"): mathematics.float_trunc,
    ("sign", "float"): mathematics.float_sign,
    ("sqrt", "float"): mathematics.float_sqrt,
    ("exp", "float"): mathematics.float_exp,
    ("ln", "float"): mathematics.float_ln,
    ("log10", "float"): mathematics.float_log10,
    ("power", "float"): mathematics.float_power,
    ("+", "decimal"): numbers.decimal_add,
    ("-", "decimal"): numbers.decimal_sub,
    ("*", "decimal"): numbers.decimal_mul,
    ("/", "decimal"): numbers.decimal_div,
    ("%", "decimal"): numbers.decimal_mod,
    ("neg", "decimal"): numbers.decimal_neg,
    ("abs", "decimal"): numbers.decimal_abs,
    ("ceil", "decimal"): mathematics.decimal_ceil,
    ("floor", "decimal"): mathematics.decimal_floor,
    ("round", "decimal"): mathematics.decimal_round_to,
    ("trunc", "decimal"): mathematics.decimal_trunc,
    ("sign", "decimal"): mathematics.decimal_sign,
    ("sqrt", "decimal"): mathematics.decimal_sqrt,
    ("exp", "decimal"): mathematics.decimal_exp,
    ("ln", "decimal"): mathematics.decimal_ln,
    ("log", "decimal"): mathematics.decimal_log,
    ("log10", "decimal"): mathematics.decimal_log10,
    ("power", "decimal"): mathematics.decimal_power,
    ("div", "decimal"): mathematics.decimal_div_whole,
    ("gcd", "decimal"): mathematics.decimal_gcd,
    ("lcm", "decimal"): mathematics.decimal_lcm,
    ("lower", "str"): texts.lower,
    ("upper", "str"): texts.upper,
    ("initcap", "str"): texts.initcap,
    ("length", "str"): len,
    ("length", "bytes"): len,
    ("octet_length", "str"): texts.octet_length,
    ("octet_length", "bytes"): len,
    ("substring", "str"): texts.substring,
    ("substring", "bytes"): texts.substring,
    ("left", "str"): texts.left,
    ("right", "str"): texts.right,
    ("btrim", "str"): texts.btrim,
    ("ltrim", "str"): texts.ltrim,
    ("rtrim", "str"): texts.rtrim,
    ("lpad", "str"): texts.lpad,
    ("rpad", "str"): texts.rpad,
    ("replace", "str"): texts.replace,
    ("translate", "str"): texts.translate,
    ("strpos", "str"): texts.strpos,
    ("strpos", "bytes"): texts.strpos,
    ("starts_with", "str"): texts.starts_with,
    ("repeat", "str"): texts.repeat,
    ("reverse", "str"): texts.reverse,
    ("split_part", "str"): texts.split_part,
    ("ascii", "str"): texts.ascii_code,
    ("chr", "int"): texts.chr_of,
    ("like_escape", "str"): texts.like_escape,
    ("add_days", "date"): moments.add_days,
    ("days_between", "date"): moments.days_between,
    ("add_interval", "timestamp"): moments.add_interval,
    ("add_interval", "timestamptz"): moments.add_interval,
    ("date_trunc", "timestamp"): moments.date_trunc,
    ("date_trunc", "timestamptz"): moments.date_trunc,
    ("extract", "date"): moments.extract_date,
    ("extract", "timestamp"): moments.extract_timestamp,
    ("extract", "timestamptz"): moments.extract_timestamptz,
    ("date_part", "timestamp"): moments.date_part,
    ("date_part", "timestamptz"): moments.date_part_tz,
    ("make_date", "int"): moments.make_date,
}
#: Those that cannot raise, whatever the values.
SAFE_FUNCTIONS = frozenset(
    {
        ("neg", "float"), ("neg", "decimal"), ("abs", "float"), ("abs", "decimal"),
        ("ceil", "float"), ("floor", "float"), ("round", "float"), ("trunc", "float"),
        ("sign", "float"), ("sign", "decimal"),
        *((name, kind) for name, kind in FUNCTIONS if name in (
            "lower", "upper", "initcap", "length", "octet_length", "left", "right", "btrim", "ltrim", "rtrim", "strpos",
            "starts_with", "reverse", "ascii", "translate", "days_between",
        )),
    }
)  # fmt: skip

#: Operators whose result is never NULL.
NEVER_NULL = frozenset({"is_null", "is_not_null", "is_distinct", "is_not_distinct", "concat"})
#: Operators whose result can be NULL only if an argument is NULL. What is in neither set: CASE and COALESCE are NULL
#: only if a result of theirs can be (of COALESCE: if all can be), NULLIF always can be.
STRICT_OPERATORS = OPERATORS - NEVER_NULL - {"case", "coalesce", "nullif"}
