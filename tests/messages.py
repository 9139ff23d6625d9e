"""Hypothesis strategies for messages, and what a field may hold, both from its annotation."""

from __future__ import annotations

import datetime
import decimal
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.types import NAN
from viewtide.coordinator import registered

BIG = 2**2200

PLAIN: dict[type, st.SearchStrategy[object]] = {
    int: st.integers(-(2**63), 2**63 - 1) | st.integers(-BIG, BIG),
    float: st.floats(allow_nan=False) | st.just(NAN),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.just(DECIMAL_NAN),
    str: st.text(max_size=12),
    bytes: st.binary(max_size=12),
    bool: st.booleans(),
    datetime.date: st.dates(),
    datetime.datetime: st.datetimes(),
    type(None): st.none(),
}
FLAT = [kind for kind in registered.MESSAGES.values() if object not in get_type_hints(kind).values()]


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation is object:
        return st.deferred(lambda: st.sampled_from(FLAT).flatmap(messages))
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return st.one_of([values(each) for each in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is Mapping:
        return st.dictionaries(*map(values, inner), max_size=3)
    return messages(annotation)


def messages(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(kind, *map(values, get_type_hints(kind).values()))


def fits(value: object, annotation: Any) -> bool:
    """Whether a value is what an annotation says: slow, obvious, and written without a look at the codec."""
    if annotation is None:
        return value is None
    if annotation is object:
        return is_message(value)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return type(value) is tuple and all(fits(each, inner[0]) for each in value)
    if origin is tuple:
        return type(value) is tuple and len(value) == len(inner) and all(map(fits, value, inner))
    if origin is Mapping:
        return type(value) is dict and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if type(value) is not annotation:
        return False
    return not isinstance(value, tuple) or all(map(fits, value, get_type_hints(annotation).values()))


def is_message(value: object) -> bool:
    return type(value) in registered.MESSAGES.values() and fits(value, type(value))
