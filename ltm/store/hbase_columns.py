r"""Rows as other HBase clients see them: a column of text for each attribute.

| type                  | in HBase                                                                  |
|-----------------------|---------------------------------------------------------------------------|
| int                   | decimal digits                                                            |
| float                 | the shortest text that reads back as the same float; `NaN`, `Infinity`    |
| decimal               | decimal digits, with all digits of its scale                              |
| str, json             | UTF-8                                                                     |
| bytes                 | the bytes                                                                 |
| bool                  | `true`, `false`                                                           |
| date                  | `2026-11-16`                                                              |
| timestamp             | `2026-11-16 21:40:00.000001` (the fraction only if there is one)          |
| timestamptz           | the same in UTC, with `+00:00`                                            |
| NULL, of any type     | `\N`; a text or bytes that begin with a backslash have one more before it |

Every version of a row has all its columns, so that the newest cell of each belongs to the newest version. Left out are
hidden and dropped columns, texts of more than `TEXT_BYTES_MAX`, and what a view's row does not hold by itself: MIN and
MAX, and what is made from them.

The HBase table is called like the table or view. Where the name has other characters than letters, digits and
underscores, each byte of them is written as a hyphen and two hexadecimal digits: `Größe` is `Gr-c3-b6-c3-9fe`.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from ...changetables.branches import columns_of
from ...changetables.errors import DataError
from ...changetables.schema import Table
from ...changetables.types import Row
from ...changetables.types import Value as SqlValue
from ..catalog import catalog_from_plain
from ..codec import unpack
from ..tables import Tables, ViewRows
from ..versions import Horizon

#: Longer ones are in the exact value only: they would double what is stored, and HBase refuses 10 MB.
TEXT_BYTES_MAX = 1 << 20
NULL = rb"\N"

#: What a packed row shows, (column, text) of each attribute; None if it is not shown to anybody.
Attributes: TypeAlias = Callable[[bytes], list[tuple[bytes, bytes]] | None]
_Show: TypeAlias = Callable[[Row], Row | None]


class Described(NamedTuple):
    """A table or view: the name of its HBase table, and what its rows show there."""

    name: str
    attributes: Attributes


class _Column(NamedTuple):
    name: bytes
    place: int
    kind: str


def described_tables(catalog: bytes) -> dict[int, Described]:
    """The tables and views that users know, by id."""
    tables = Tables(catalog_from_plain(unpack(catalog)), Horizon())
    found: dict[int, Described] = {}
    for name, rows in tables.by_name.items():
        columns = _columns(rows.table)
        found[rows.table.id] = Described(hbase_name(name), _attributes(rows.versions.decode, _as_it_is, columns))
    for name, view in tables.views.items():
        # Partial rows say nothing about the view to those who do not add them up.
        if not view.view.hidden and not view.partials:
            found[view.view.id] = Described(hbase_name(name), _view_attributes(view))
    return found


def hbase_name(name: str) -> str:
    """No name begins with a hyphen in HBase, so one that would has an underscore before it."""
    escaped = re.sub(rb"[^A-Za-z0-9_]", lambda match: b"-%02x" % match[0][0], name.encode()).decode()
    return "_" + escaped if escaped.startswith("-") else escaped


def to_text(value: SqlValue, kind: str) -> bytes:
    if type(value) is int:  # as most are
        return b"%d" % value
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return b"\\" + value if value.startswith(b"\\") else value
    if isinstance(value, str):
        return b"\\" + value.encode() if value.startswith("\\") else value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float):
        return repr(value).encode() if math.isfinite(value) else _not_finite(value)
    if isinstance(value, datetime.datetime):
        return (value.isoformat(" ") + ("+00:00" if kind == "timestamptz" else "")).encode()
    if isinstance(value, datetime.date):
        return value.isoformat().encode()
    if isinstance(value, Decimal):
        return format(value, "f").encode() if value.is_finite() else _not_finite(value)
    return b"%d" % value


def _not_finite(value: float | Decimal) -> bytes:
    return b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"


def _columns(table: Table) -> list[_Column]:
    return [
        _Column(table.columns[place].name.encode(), place, table.columns[place].type.kind) for place in table.visible()
    ]


def _as_it_is(row: Row) -> Row:
    return row


def _attributes(decode: Callable[[bytes], Row], show: _Show, columns: Sequence[_Column]) -> Attributes:
    def attributes(packed: bytes) -> list[tuple[bytes, bytes]] | None:
        try:
            row = show(decode(packed))
        except DataError:
            return []  # A division by zero, say, in what the view shows. Its readers are told; here it has no columns.
        if row is None:
            return None
        return [
            (name, text) for name, place, kind in columns if len(text := to_text(row[place], kind)) <= TEXT_BYTES_MAX
        ]

    return attributes


def _view_attributes(view: ViewRows) -> Attributes:
    plan, kept = view.plan, view.plan.kept
    columns = [_Column(name.encode(), place, type_.kind) for place, (name, type_) in enumerate(plan.columns)]
    unknown = (None,) * len(plan.extremes)
    if plan.extremes:
        # Minima and maxima are in other rows. What does not need them is shown.
        first = len(kept.key)
        extreme = {first + place for place, shown in enumerate(kept.aggregates) if shown.extreme is not None}
        needs = [{each.position for each in columns_of(output.expression)} & extreme for output in kept.outputs]
        columns = [column for column in columns if not needs[column.place]]

    def show(row: Row) -> Row | None:
        return plan.output(row, unknown) if plan.extremes or plan.multiplicity(row) else None

    return _attributes(view.versions.decode, show, columns)
