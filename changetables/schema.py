"""Tables and indexes as data. Columns are physical: a dropped one keeps its position, an added one comes last."""

from __future__ import annotations

from dataclasses import dataclass

from .expressions import Expression
from .types import Row, Type, Value


@dataclass(frozen=True, slots=True)
class Column:
    """`default` is the engine's form of the value for rows that do not name the column, and for rows older than it.

    `hidden` columns are the engine's own: the row id of a table without a primary key, the key of a view.
    """

    name: str
    type: Type
    nullable: bool = True
    default: Value = None
    has_default: bool = False
    dropped: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """A table of its own, keyed (indexed columns, primary key), with a table's `id`. Not `ready`: still being built.
    `for_views`: made for views alone, and gone with the last one that needs it."""

    id: int
    columns: tuple[int, ...]
    ready: bool = True
    name: str = ""
    for_views: bool = False


@dataclass(frozen=True, slots=True)
class Unique:
    """No two rows are equal in these columns; NULL equals nothing. An index on the same columns serves it."""

    name: str
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on each row, broken where it is FALSE. `text` is what the user wrote."""

    name: str
    condition: Expression
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """`id` prefixes every key of the table (4 bytes). `key` are positions into `columns`.

    `view`: what a view shows, as a table; see `keeping.Kept.table`. `computed`: parts of its rows are found only when
    somebody looks, so it cannot have an index. `top`: (limit, offset) of a view that shows the first of its rows.
    """

    id: int
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    indexes: tuple[Index, ...] = ()
    uniques: tuple[Unique, ...] = ()
    checks: tuple[Check, ...] = ()
    view: bool = False
    computed: bool = False
    top: tuple[int | None, int] | None = None

    def position(self, name: str) -> int | None:
        for position, column in enumerate(self.columns):
            if column.name == name and not (column.dropped or column.hidden):
                return position
        return None

    def visible(self) -> tuple[int, ...]:
        return tuple(position for position, column in enumerate(self.columns) if not (column.dropped or column.hidden))


def row_name(table: Table, row: Row) -> str:
    """A row of a table by its key, or by all that is seen of it. It may be older than the last columns."""
    what = "view" if table.view else "table"
    if any(table.columns[position].hidden for position in table.key):
        values: object = {table.columns[position].name: row[position] for position in table.visible()}
    else:
        values = tuple(row[position] for position in table.key)
    return f"row {values!r} of {what} {table.name!r}"
