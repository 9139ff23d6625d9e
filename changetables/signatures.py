"""The functions of SQL by name and types of arguments, and PostgreSQL's choice among those of one name.

PostgreSQL has more integer types than one; its functions that take or give integer or smallint take and give int here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

Kinds: TypeAlias = tuple[str, ...]

_UNKNOWN = "unknown"
_CATEGORIES = {
    **dict.fromkeys(("int", "decimal", "float"), "number"),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "moment"),
    "str": "text",
    "bytes": "bytes",
    "bool": "bool",
    "json": "json",
}
#: What a value is converted to silently, and the type that each category prefers when there is a choice.
_IMPLICIT = {"int": ("decimal", "float"), "decimal": ("float",), "date": ("timestamp", "timestamptz"),
             "timestamp": ("timestamptz",)}  # fmt: skip
_PREFERRED = frozenset({"float", "timestamptz", "str", "bool"})


def _unary(op: str, *kinds: str, result: str = "") -> dict[Kinds, tuple[str, str]]:
    return {(kind,): (op, result or kind) for kind in kinds}


def _text(op: str, *parameters: Kinds, result: str = "str") -> dict[Kinds, tuple[str, str]]:
    return dict.fromkeys(parameters, (op, result))


_LENGTH = _text("length", ("str",), result="int")
_LOGARITHM = _unary("log10", "decimal", "float")
_SUBSTRING: dict[Kinds, tuple[str, str]] = {
    ("str", "int"): ("substring", "str"),
    ("str", "int", "int"): ("substring", "str"),
    ("bytes", "int"): ("substring", "bytes"),
    ("bytes", "int", "int"): ("substring", "bytes"),
}
_POWER: dict[Kinds, tuple[str, str]] = {
    ("decimal", "decimal"): ("power", "decimal"),
    ("float", "float"): ("power", "float"),
}
_CEIL = _unary("ceil", "decimal", "float")
_POSITION: dict[Kinds, tuple[str, str]] = {("str", "str"): ("strpos", "int"), ("bytes", "bytes"): ("strpos", "int")}
_WHOLE_PAIRS: tuple[Kinds, ...] = (("int", "int"), ("decimal", "decimal"))

#: name -> kinds of the parameters -> operator and kind of the result.
SIGNATURES: Mapping[str, Mapping[Kinds, tuple[str, str]]] = {
    "abs": _unary("abs", "int", "decimal", "float"),
    "ceil": _CEIL,
    "ceiling": _CEIL,
    "floor": _unary("floor", "decimal", "float"),
    "round": {**_unary("round", "decimal", "float"), ("decimal", "int"): ("round", "decimal")},
    "trunc": {**_unary("trunc", "decimal", "float"), ("decimal", "int"): ("trunc", "decimal")},
    "sign": _unary("sign", "decimal", "float"),
    "sqrt": _unary("sqrt", "decimal", "float"),
    "exp": _unary("exp", "decimal", "float"),
    "ln": _unary("ln", "decimal", "float"),
    "log": {**_LOGARITHM, ("decimal", "decimal"): ("log", "decimal")},
    "log10": _LOGARITHM,
    "power": _POWER,
    "pow": _POWER,
    "mod": {kinds: ("%", kinds[0]) for kinds in _WHOLE_PAIRS},
    "gcd": {kinds: ("gcd", kinds[0]) for kinds in _WHOLE_PAIRS},
    "lcm": {kinds: ("lcm", kinds[0]) for kinds in _WHOLE_PAIRS},
    "div": {("decimal", "decimal"): ("div", "decimal")},
    "lower": _unary("lower", "str"),
    "upper": _unary("upper", "str"),
    "initcap": _unary("initcap", "str"),
    "reverse": _unary("reverse", "str"),
    "length": {**_LENGTH, ("bytes",): ("length", "int")},
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "octet_length": _unary("octet_length", "str", "bytes", result="int"),
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": _text("left", ("str", "int")),
    "right": _text("right", ("str", "int")),
    "btrim": _text("btrim", ("str",), ("str", "str")),
    "ltrim": _text("ltrim", ("str",), ("str", "str")),
    "rtrim": _text("rtrim", ("str",), ("str", "str")),
    "lpad": _text("lpad", ("str", "int"), ("str", "int", "str")),
    "rpad": _text("rpad", ("str", "int"), ("str", "int", "str")),
    "replace": _text("replace", ("str", "str", "str")),
    "translate": _text("translate", ("str", "str", "str")),
    "strpos": {("str", "str"): ("strpos", "int")},
    "position": _POSITION,
    "starts_with": _text("starts_with", ("str", "str"), result="bool"),
    "repeat": _text("repeat", ("str", "int")),
    "split_part": _text("split_part", ("str", "str", "int")),
    "ascii": _unary("ascii", "str", result="int"),
    "chr": _unary("chr", "int", result="str"),
    "date_trunc": {("str", kind): ("date_trunc", kind) for kind in ("timestamp", "timestamptz")},
    "extract": {("str", kind): ("extract", "decimal") for kind in ("date", "timestamp", "timestamptz")},
    "date_part": {("str", kind): ("date_part", "float") for kind in ("timestamp", "timestamptz")},
    "make_date": {("int", "int", "int"): ("make_date", "date")},
}
#: Functions whose operator has its arguments the other way round.
SUBJECT_LAST = frozenset({"date_trunc", "extract", "date_part", "position"})


#: Functions that PostgreSQL has for intervals too: a quoted literal could be meant as one.
_ALSO_OF_INTERVALS = frozenset({"date_trunc", "extract", "date_part"})


def resolve(name: str, kinds: Sequence[str]) -> Kinds | None:
    """The parameters of the function that is meant; None if there is none, empty if several fit equally well."""
    fitting = [parameters for parameters in SIGNATURES[name] if _fits(kinds, parameters)]
    if not fitting:
        return None
    # The most exact matches, then the most exact or preferred ones: PostgreSQL's rules, one after the other.
    fitting = _best(fitting, lambda parameters: sum(map(str.__eq__, kinds, parameters)))
    fitting = _best(fitting, lambda parameters: sum(map(_exact_or_preferred, kinds, parameters)))
    if len(fitting) > 1:
        if name in _ALSO_OF_INTERVALS and kinds[1] == _UNKNOWN:
            return ()
        fitting = _with_unknown(kinds, fitting)
    return fitting[0] if len(fitting) == 1 else ()


def _fits(kinds: Sequence[str], parameters: Kinds) -> bool:
    return len(kinds) == len(parameters) and all(
        kind in (parameter, _UNKNOWN) or parameter in _IMPLICIT.get(kind, ())
        for kind, parameter in zip(kinds, parameters, strict=True)
    )


def _exact_or_preferred(kind: str, parameter: str) -> bool:
    return kind != _UNKNOWN and (kind == parameter or parameter in _PREFERRED)


def _best(candidates: Iterable[Kinds], score: Callable[[Kinds], int]) -> list[Kinds]:
    scored = [(score(parameters), parameters) for parameters in candidates]
    highest = max(points for points, _ in scored)
    return [parameters for points, parameters in scored if points == highest]


def _with_unknown(kinds: Sequence[str], candidates: list[Kinds]) -> list[Kinds]:
    """Quoted literals take the category that all candidates agree on, text if one takes text; in it, the preferred
    type. What is left is decided by the arguments that have a type: the others are assumed to have the same."""
    for position, kind in enumerate(kinds):
        if kind != _UNKNOWN:
            continue
        categories = {_CATEGORIES[parameters[position]] for parameters in candidates}
        if len(categories) > 1 and "text" not in categories:
            break
        category = "text" if "text" in categories else categories.pop()
        candidates = [parameters for parameters in candidates if _CATEGORIES[parameters[position]] == category]
        preferred = [parameters for parameters in candidates if parameters[position] in _PREFERRED]
        candidates = preferred or candidates
    known = {kind for kind in kinds if kind != _UNKNOWN}
    if len(candidates) > 1 and len(known) == 1:
        assumed = (known.pop(),) * len(kinds)
        candidates = [parameters for parameters in candidates if parameters == assumed] or candidates
    return candidates
