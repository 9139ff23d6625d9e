"""The model that the commit protocol is compared with: base tables in plain dicts, views computed from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from tests.propagation import Memory
from viewtide.changetables.keys import TABLE_PREFIX_BYTES, key_under, table_range
from viewtide.changetables.recompute import recompute
from viewtide.changetables.schema import Table
from viewtide.changetables.types import Row
from viewtide.coordinator.transaction import ABSENT, PRESENT
from viewtide.coordinator.two_phase.messages import ReadAt, RowsAt, Submit
from viewtide.coordinator.vms.step_rows import STEPS
from viewtide.ltm.catalog import View
from viewtide.ltm.partial_rows import total
from viewtide.ltm.tables import Tables

from .workload import hidden_of, tables

#: Views whose rows are in an order.
ORDERED = ("dear", "late_dear")

Cells: TypeAlias = dict[bytes, Row]
#: By cell: what was there, and what is there now.
Changed: TypeAlias = dict[bytes, tuple[Row | None, Row | None]]


def _id_of(cell: bytes) -> int:
    return int.from_bytes(cell[:TABLE_PREFIX_BYTES], "big")


def shown_by(catalog: Tables, name: str, states: Cells, hidden: Mapping[str, Cells]) -> list[Row]:
    """What a reader sees of a view's stored rows."""
    if catalog.views[name].partials:
        states = _added_up(catalog, name, states)
    memory = Memory(())
    memory.tables = catalog
    memory.stored = {name: states, **hidden}
    return memory.outputs(name)


class Impossible(Exception):
    """A transaction was committed that cannot be."""


def _added_up(catalog: Tables, name: str, partials: Cells) -> Cells:
    """The partial rows of a local view as its rows."""
    view = catalog.views[name]
    alike: dict[bytes, list[Row | None]] = {}
    for cell, row in partials.items():
        alike.setdefault(key_under(view.view.id, cell), []).append(row)
    sums = {cell: total(view.plan, rows) for cell, rows in alike.items()}
    return {cell: row for cell, row in sums.items() if row is not None}


class Model:
    def __init__(self) -> None:
        self.rows: dict[str, Cells] = {}
        #: The commit_ts of each row, deleted ones included.
        self._changed: dict[bytes, int] = {}
        #: What was computed, and the versions of the tables that it was computed from.
        self._versions: dict[str, int] = {}
        self._computed: dict[str, tuple[tuple[int, ...], list[Row]]] = {}
        self._names: dict[int, str] = {}
        self.adopt(tables())

    def adopt(self, catalog: Tables) -> None:
        """Another catalog: tables come without rows, and go with them."""
        gone = {name: rows.table.id for name, rows in self.tables.by_name.items()} if self.rows else {}
        self.tables = catalog
        kept = {name for name, rows in catalog.by_name.items() if gone.get(name) == rows.table.id}
        self.rows = {name: self.rows[name] if name in kept else {} for name in catalog.by_name}
        self._versions = {name: self._versions[name] if name in kept else 0 for name in catalog.by_name}
        self._computed.clear()
        self._names = {rows.table.id: name for name, rows in catalog.by_name.items()}
        self._names |= {number: view.view.name for number, view in catalog.views_by_id.items()}

    def _name(self, cell: bytes) -> str:
        return self._names.get(_id_of(cell), "")

    # Transactions.

    def apply(self, submit: Submit, commit_ts: int) -> Changed:
        """Carry out a transaction: the cells that change, those of indexes included."""
        changed: Changed = {}
        for name, intents in submit.writes:
            stored = self.rows[name]
            for cell, (expect, row, changes, touch) in intents:
                before = stored.get(cell)
                if expect == ABSENT and before is not None:
                    raise Impossible(f"{submit.tx_id} inserted {cell!r} at {commit_ts}, and {before} was there")
                if expect == PRESENT and before is None:
                    raise Impossible(f"{submit.tx_id} changed {cell!r} at {commit_ts}, which was not there")
                if before is None and (row is None or not touch):
                    continue
                if before is not None and changes is not None:
                    row = tuple(changes.get(place, value) for place, value in enumerate(before))
                changed[cell] = (before, row)
                self._changed[cell] = commit_ts
                self._versions[name] += 1
                if row is None:
                    del stored[cell]
                else:
                    stored[cell] = row
                for entries in self.tables.by_name[name].indexes:
                    old_entry = None if before is None else entries.codec.entry(before, cell)
                    new_entry = None if row is None else entries.codec.entry(row, cell)
                    if old_entry != new_entry:
                        if old_entry is not None:
                            changed[old_entry] = ((cell,), None)
                        if new_entry is not None:
                            changed[new_entry] = (None, (cell,))
        return changed

    # Views.

    def _read_by(self, view: View) -> Iterator[str]:
        """By its definition: hidden views are a matter of how it is kept."""
        for source in view.reads:
            if source.startswith("~"):
                yield from self._read_by(self.tables.catalog.views[source])
            else:
                yield source

    def view(self, name: str) -> list[Row]:
        catalog = self.tables.catalog
        view = catalog.views[name]
        version = tuple(count for table, count in self._versions.items() if table != STEPS)
        known = self._computed.get(name)
        reads = list(dict.fromkeys(self._read_by(view)))
        if known is not None and known[0] == version:
            return known[1]
        schema: dict[str, Table] = {}
        rows: dict[str, list[Row]] = {}
        for source in reads:
            if source in self.rows:
                schema[source] = catalog.tables[source]
                rows[source] = list(self.rows[source].values())
            else:
                table = self.tables.table(source)
                columns = tuple(table.columns[position] for position in table.visible())
                schema[source] = replace(table, columns=columns, key=())
                rows[source] = self.view(source)
        found = recompute(view.relation, schema, rows)
        self._computed[name] = (version, found)
        return found

    def _view_row_differs(self, name: str, cell: bytes, state: Row | None) -> str:
        """Of a view whose rows begin with its key."""
        view = self.tables.views[name]
        count = len(view.plan.key_columns)
        expected = [row for row in self.view(name) if view.plan.keys.encode_short(row[:count]) == cell]
        shown = [] if state is None else shown_by(self.tables, name, {cell: state}, {})
        return "" if shown == expected else f"{name} shows {shown}, not {expected}"

    # Comparing.

    def differs(self, question: ReadAt, answer: RowsAt, exact: bool = False) -> str:
        """How an answer is not what the model has, "" if it is. `exact`: each row's commit_ts, too. It may
        be a page."""
        left_ranges = dict(answer.left_ranges)
        for place, (cell, (ts, row)) in enumerate(zip(question.keys, answer.rows, strict=True)):
            if place in answer.left_keys:
                continue
            name = self._name(cell)
            if name not in self.rows:
                why = self._view_row_differs(name, cell, row)
                if why:
                    return why
                continue
            expected = self.rows[name].get(cell)
            if row != expected:
                return f"{cell!r} is {row}, not {expected}"
            # That a row was deleted long ago may be forgotten.
            if exact and ts != self._changed.get(cell, 0) and (ts or row is not None):
                return f"{cell!r} has {ts}, not {self._changed.get(cell, 0)}"
        stored: dict[str, Cells] = {}
        #: How many of its ids a view still lacks: its rows are told by all of them.
        lacking: dict[str, int] = {}
        for place, ((start, stop, limit, last), found) in enumerate(zip(question.ranges, answer.ranges, strict=True)):
            name = self._name(start)
            states = {cell: row for cell, _, row in found}
            if name in self.rows:
                cells = sorted(cell for cell in self.rows[name] if start <= cell < stop)
                cells = (cells[::-1] if last else cells)[: len(found) if place in left_ranges else limit or None]
                wanted = {cell: self.rows[name][cell] for cell in cells}
                if list(states.items()) != list(wanted.items()):
                    return f"{name} is {states}, not {wanted}"
            elif place in left_ranges or (start, stop) != table_range(_id_of(start)):
                continue  # what some of its rows are is told by the whole view
            elif limit:
                shown, all_rows = shown_by(self.tables, name, states, {}), sorted(self.view(name))
                if sorted(shown) != sorted((all_rows[::-1] if last else all_rows)[:limit]):
                    return f"the end of {name} is {shown}, not of {all_rows}"
            else:
                stored.setdefault(name, {}).update(states)
                lacking[name] = lacking.get(name, 1 + len(self.tables.views[name].partials)) - 1
        return self.views_differ({name: states for name, states in stored.items() if not lacking[name]})

    def views_differ(self, stored: dict[str, Cells]) -> str:
        for name in stored:
            if not self.tables.views[name].view.hidden:
                hidden = {each: stored[each] for each in hidden_of(self.tables, name)[1:]}
                shown, expected = shown_by(self.tables, name, stored[name], hidden), self.view(name)
                same = shown == expected if name in ORDERED else Counter(shown) == Counter(expected)
                if not same:
                    return f"view {name} is {shown}, not {expected}"
        return ""

    def differs_from_cells(self, cells: Cells) -> str:
        """All cells there are."""
        stored: dict[str, Cells] = {name: {} for name in (*self.rows, *self.tables.views)}
        entries: Cells = {}
        ready = {each.index.id for name in self.rows for each in self.tables.by_name[name].indexes if each.index.ready}
        for cell, row in cells.items():
            name = self._name(cell)
            if name:
                stored[name][cell] = row
            elif _id_of(cell) in ready:
                entries[cell] = row
        for name, rows in self.rows.items():
            if stored[name] != rows:
                return f"table {name} is {stored[name]}, not {rows}"
        wanted = {
            each.codec.entry(row, cell): (cell,)
            for name, rows in self.rows.items()
            for each in self.tables.by_name[name].indexes
            if each.index.ready
            for cell, row in rows.items()
        }
        if entries != wanted:
            return f"index entries are {entries}, not {wanted}"
        views = [rows.view for rows in self.tables.views.values()]
        synchronous = [view.name for view in views if not view.deferred and view.ready_ts]
        return self.views_differ({name: stored[name] for name in synchronous})
