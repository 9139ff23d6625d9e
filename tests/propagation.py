"""A database of plain dicts for tests of plans: it answers look-ups from an old and a new state, and keeps a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from viewtide.changetables.change_table import Change
from viewtide.changetables.definition import Definition
from viewtide.changetables.keys import index_codec, key_codec
from viewtide.changetables.plan import Contribution, LookUp, State, ViewPlan, compile_view, needed_indexes
from viewtide.changetables.schema import Index, Table
from viewtide.changetables.types import Row

VIEW_ID = 1000
INDEX_ID_FIRST = 500

#: Rows by their primary key, by table.
Rows = dict[str, dict[bytes, Row]]
Changes = dict[str, list[Change]]


def with_needed_indexes(definition: Definition, tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables with every index that the view's look-ups need."""
    result, next_id = dict(tables), INDEX_ID_FIRST
    for name, columns in needed_indexes(definition, tables):
        if all(index.columns != columns for index in result[name].indexes):
            result[name] = replace(result[name], indexes=(*result[name].indexes, Index(next_id, columns)))
            next_id += 1
    return result


@dataclass
class Base:
    """Base tables in two states: `old` (W0) and `new` (W1, with the changes of the running transaction)."""

    tables: Mapping[str, Table]
    old: Rows = field(default_factory=dict)
    new: Rows = field(default_factory=dict)
    asked: list[list[LookUp]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = {
            name: key_codec(table.id, [(table.columns[position].type, False) for position in table.key])
            for name, table in self.tables.items()
        }
        for name in self.tables:
            self.old.setdefault(name, {})
            self.new.setdefault(name, dict(self.old[name]))

    def put(self, table: str, row: Row) -> None:
        self.new[table][self.key(table, row)] = row

    def remove(self, table: str, row: Row) -> None:
        self.new[table].pop(self.key(table, row), None)

    def key(self, table: str, row: Row) -> bytes:
        return self.keys[table].encode(tuple(row[position] for position in self.tables[table].key))

    def changes(self) -> Changes:
        """The change tables of the running transaction: old row out, new row in."""
        result: Changes = {}
        for name in self.tables:
            old, new = self.old[name], self.new[name]
            for key in dict.fromkeys([*old, *new]):
                before, after = old.get(key), new.get(key)
                if repr(before) != repr(after):
                    changes = result.setdefault(name, [])
                    changes += [(row, sign) for row, sign in ((before, -1), (after, 1)) if row is not None]
        return result

    def commit(self) -> None:
        self.old = {name: dict(rows) for name, rows in self.new.items()}

    def abort(self) -> None:
        self.new = {name: dict(rows) for name, rows in self.old.items()}

    def rows(self) -> dict[str, list[Row]]:
        return {name: list(rows.values()) for name, rows in self.new.items()}

    def answer(self, look_ups: Sequence[LookUp]) -> list[list[object]]:
        self.asked.append(list(look_ups))
        return [self._found(look_up) for look_up in look_ups]

    def _found(self, look_up: LookUp) -> list[object]:
        rows = self._rows_in(look_up)
        if look_up.index is None:
            return [rows.get(key) for key in look_up.keys]
        table = self.tables[look_up.table]
        [index] = [index for index in table.indexes if index.id == look_up.index]
        codec = index_codec(table, index)
        prefixes = [(codec.prefix(tuple(row[position] for position in index.columns)), row) for row in rows.values()]
        return [[row for prefix, row in prefixes if prefix == key] for key in look_up.keys]

    def _rows_in(self, look_up: LookUp) -> Mapping[bytes, Row]:
        old, new = self.old[look_up.table], self.new[look_up.table]
        if look_up.state == State.OLD:
            return old
        if look_up.state == State.NEW:
            return new
        return {key: row for key, row in old.items() if key in new and repr(new[key]) == repr(row)}

    def propagate(self, plan: ViewPlan, changes: Mapping[str, Sequence[Change]]) -> list[Contribution]:
        running = plan.propagate(changes)
        try:
            asked = next(running)
            while True:
                asked = running.send(self.answer(asked))
        except StopIteration as done:
            contributions: list[Contribution] = done.value
            return contributions

    def join_from(self, plan: ViewPlan, source: int, rows: list[Row]) -> list[Row]:
        running = plan.join_from(source, rows)
        try:
            asked = next(running)
            while True:
                asked = running.send(self.answer(asked))
        except StopIteration as done:
            outputs: list[Row] = done.value
            return outputs


@dataclass
class View:
    """The stored rows of a view, folded from contributions."""

    plan: ViewPlan
    stored: dict[bytes, Row] = field(default_factory=dict)

    def refresh(self, contributions: Sequence[Contribution]) -> None:
        for contribution in contributions:
            row = self.plan.refresh(self.stored.pop(contribution.key, None), contribution)
            if row is not None:
                self.stored[contribution.key] = row

    def outputs(self) -> list[Row]:
        outputs = [self.plan.output(row) for row in self.stored.values() if self.plan.present(row)]
        empty = self.plan.empty_output()
        return [empty] if not outputs and empty is not None else outputs


def open_view(definition: Definition, tables: Mapping[str, Table], name: str = "v") -> tuple[Base, View]:
    """An empty database with the indexes that the view needs, and the view."""
    indexed = with_needed_indexes(definition, tables)
    return Base(indexed), View(compile_view(name, VIEW_ID, definition, indexed))
