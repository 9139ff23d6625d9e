"""A reader over plain lists that remembers what it was asked for: whether a query looked up or scanned."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from viewtide.changetables.evaluate import canonical, compared
from viewtide.changetables.schema import Table
from viewtide.changetables.types import Row


def completed(table: Table, row: Row) -> Row:
    return row + tuple(column.default for column in table.columns[len(row) :])


def key_order(one: Row, two: Row) -> int:
    """The order of key bytes: NULL is last."""
    for left, right in zip(one, two, strict=False):
        found = (left is None) - (right is None) if left is None or right is None else compared(left, right)
        if found:
            return found
    return 0


@dataclass
class ListReader:
    """Answers from the rows of each table. `given`: how many rows it gave away, by table."""

    tables: Mapping[str, Table]
    rows: Mapping[str, Iterable[Row]]
    calls: list[tuple[str, str]] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {name: [tuple(map(canonical, row)) for row in rows] for name, rows in self.rows.items()}
        self._sorted: dict[str, list[Row]] = {}

    def _given(self, table: str, row: Row) -> Row:
        self.given[table] = self.given.get(table, 0) + 1
        return row

    def _values(self, table: Table, row: Row, columns: Iterable[int]) -> Row:
        whole = completed(table, row)
        return tuple(whole[column] for column in columns)

    def get_many(self, table: str, keys: list[Row]) -> list[Row | None]:
        self.calls.append(("get_many", table))
        assert all(len(key) == len(self.tables[table].key) for key in keys), "whole keys only"
        by_key = self._by_columns(table, self.tables[table].key)
        found = [by_key.get(self._asked(key), [None])[0] for key in keys]
        return [row if row is None else self._given(table, row) for row in found]

    def find(self, table: str, columns: tuple[int, ...], values: list[Row]) -> list[list[Row]]:
        self.calls.append(("find", table))
        schema = self.tables[table]
        prefix = columns == schema.key[: len(columns)]
        assert prefix or any(index.ready and index.columns == columns for index in schema.indexes), "no such index"
        by_columns = self._by_columns(table, columns)
        return [[self._given(table, row) for row in by_columns.get(self._asked(key), [])] for key in values]

    def _asked(self, key: Row) -> Row:
        assert None not in key, "nobody asks for NULL"
        return tuple(map(canonical, key))

    def _by_columns(self, table: str, columns: tuple[int, ...]) -> dict[Row, list[Row]]:
        found: dict[Row, list[Row]] = {}
        for row in self._rows[table]:
            found.setdefault(self._values(self.tables[table], row, columns), []).append(row)
        return found

    def scan(self, table: str, start: Row | None, stop: Row | None, descending: bool = False) -> Iterator[Row]:
        bounded = start is not None or stop is not None
        self.calls.append(("range" if bounded else "scan", table))
        assert start is None or None not in start, "nobody asks for NULL"
        for row in reversed(self._in_order(table)) if descending else self._in_order(table):
            key = self._values(self.tables[table], row, self.tables[table].key)
            if (start is None or key_order(start, key) <= 0) and (stop is None or key_order(key, stop) <= 0):
                yield self._given(table, row)

    def _in_order(self, table: str) -> list[Row]:
        if table not in self._sorted:
            schema = self.tables[table]
            by_key = functools.cmp_to_key(key_order)
            self._sorted[table] = sorted(
                self._rows[table], key=lambda row: by_key(self._values(schema, row, schema.key))
            )
        return self._sorted[table]

    def asked(self, table: str) -> list[str]:
        """The kinds of calls for one table."""
        return [kind for kind, name in self.calls if name == table]
