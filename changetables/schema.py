"""Tables and indexes as data. Columns are physical: a dropped one keeps its position, an added one comes last."""

from __future__ import annotations

from dataclasses import dataclass

from .types import Type, Value


@dataclass(frozen=True, slots=True)
class Column:
    """`default` is the engine's form of the value for rows that do not name the column, and for rows older than it."""

    name: str
    type: Type
    nullable: bool = True
    default: Value = None
    has_default: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """A table of its own, keyed (indexed columns, primary key), with a table's `id`. Not `ready`: still being built."""

    id: int
    columns: tuple[int, ...]
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """`id` prefixes every key of the table (4 bytes). `key` are positions into `columns`."""

    id: int
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    indexes: tuple[Index, ...] = ()

    def position(self, name: str) -> int | None:
        for position, column in enumerate(self.columns):
            if column.name == name and not column.dropped:
                return position
        return None

    def visible(self) -> tuple[int, ...]:
        return tuple(position for position, column in enumerate(self.columns) if not column.dropped)
