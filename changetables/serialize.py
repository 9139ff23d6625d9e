"""Relations and tables as plain lists, so that a database reopens without reading SQL again.

    plain = [VERSION, node]
    node  = [class name, field, field, ...]      a frozen dataclass of the registry, its fields in order
          | ["()", item, item, ...]              a tuple
          | None, bool, int, float, str, bytes, Decimal, date, datetime

Fields are positional. A field may be added at the end of a class with a default: older texts read with that default.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TypeAlias, TypeVar, Union

from .algebra import (
    Distinct,
    Field,
    Filter,
    Group,
    Join,
    Keyed,
    Order,
    Output,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Slice,
    Top,
    Values,
    WithKey,
)
from .errors import InternalError, OperationalError
from .expressions import Aggregate, Call, ColumnRef, Literal
from .numbers import DECIMAL_NAN
from .schema import Check, Column, Index, Table, Unique
from .types import NAN, Type, Value

VERSION = 2
#: Nodes inside nodes. A definition has far fewer; a damaged text must not exhaust the stack.
LEVELS_MAX = 400

Plain: TypeAlias = Union[Value, "list[Plain]"]
_T = TypeVar("_T")

_TUPLE = "()"
_CLASSES: Mapping[str, type] = {
    "Scan": Scan,
    "Values": Values,
    "Filter": Filter,
    "Project": Project,
    "Join": Join,
    "Semi": Semi,
    "Group": Group,
    "Distinct": Distinct,
    "SetOp": SetOp,
    "Top": Top,
    "WithKey": WithKey,
    "Slice": Slice,
    "Keyed": Keyed,
    "Field": Field,
    "Output": Output,
    "Order": Order,
    "Literal": Literal,
    "ColumnRef": ColumnRef,
    "Call": Call,
    "Aggregate": Aggregate,
    "Type": Type,
    "Table": Table,
    "Column": Column,
    "Index": Index,
    "Unique": Unique,
    "Check": Check,
}
_FIELDS = {kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in _CLASSES.values()}
_LEAVES = (bool, int, float, str, bytes, Decimal, datetime.date, datetime.datetime)


def relation_to_plain(relation: Relation) -> list[Plain]:
    return [VERSION, _plain(relation)]


def relation_from_plain(plain: object) -> Relation:
    """OperationalError if this is not a relation that this version wrote or can read."""
    return _read(plain, Relation)  # type: ignore[arg-type]  # a union of classes is as good as one for isinstance


def table_to_plain(table: Table) -> list[Plain]:
    return [VERSION, _plain(table)]


def table_from_plain(plain: object) -> Table:
    """OperationalError if this is not a table that this version wrote or can read."""
    return _read(plain, Table)


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, _LEAVES):
        return value
    if isinstance(value, tuple):
        return [_TUPLE, *map(_plain, value)]
    kind = type(value)
    names = _FIELDS.get(kind)
    if names is None:
        raise InternalError(f"{kind.__name__} is not a part of relations and tables")
    if isinstance(value, Type) and not value.padded:
        # Came later: what has no char(n) is stored as before, and earlier versions read it.
        names = names[:-1]
    return [kind.__name__, *[_plain(getattr(value, name)) for name in names]]


def _read(plain: object, expected: type[_T]) -> _T:
    if not isinstance(plain, list) or len(plain) != 2:
        raise _unreadable("not a list of version and content")
    version, content = plain
    if version != VERSION or isinstance(version, bool):
        raise OperationalError(
            f"a stored {_name(expected)} has format {version!r}; this version reads format {VERSION}",
            hint="open the database with the version of Viewtide that wrote it, or a newer one",
        )
    value = _value(content, 0)
    if not isinstance(value, expected):
        raise _unreadable(f"{type(value).__name__} where a {_name(expected)} is expected")
    return value


def _name(expected: object) -> str:
    return "table" if expected is Table else "relation"


def _value(plain: object, level: int) -> object:
    if not isinstance(plain, list):
        return _leaf(plain)
    if level > LEVELS_MAX or not plain:
        raise _unreadable("nested too deeply" if plain else "an empty node")
    name, *items = plain
    values = [_value(item, level + 1) for item in items]
    if name == _TUPLE:
        return tuple(values)
    class_ = _CLASSES.get(name) if isinstance(name, str) else None
    if class_ is None:
        raise _unreadable(f"unknown node {name!r}")
    try:
        return class_(*values)
    except TypeError:
        raise _unreadable(f"{name} with {len(values)} fields") from None


def _leaf(value: object) -> object:
    """A codec makes new NaN objects; the engine knows each NaN by identity."""
    if isinstance(value, float) and math.isnan(value):
        return NAN
    if isinstance(value, Decimal) and value.is_nan():
        return DECIMAL_NAN
    if value is not None and not isinstance(value, _LEAVES):
        raise _unreadable(f"a value of type {type(value).__name__}")
    return value


def _unreadable(what: str) -> OperationalError:
    return OperationalError(
        f"a stored relation cannot be read: {what}",
        hint="the data is damaged or was written by a newer version of Viewtide",
    )
