"""The model that the commit protocol is compared with: base tables in plain dicts, views computed from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from tests.propagation import Memory
from viewtide.changetables.keys import TABLE_PREFIX_BYTES
from viewtide.changetables.recompute import recompute
from viewtide.changetables.schema import Table
from viewtide.changetables.types import Row
from viewtide.coordinator.transaction import ABSENT, PRESENT
from viewtide.coordinator.two_phase.messages import ReadAt, RowsAt, Submit
from viewtide.coordinator.vms.step_rows import STEPS

from .workload import DEFERRED, VIEWS, tables, with_hidden

#: All that readers may read, the deferred ones at their watermarks.
ALL_VIEWS = (*VIEWS, *(name for _, views in DEFERRED.values() for name in views))

Cells: TypeAlias = dict[bytes, Row]
#: By cell: what was there, and what is there now.
Changed: TypeAlias = dict[bytes, tuple[Row | None, Row | None]]


def shown_by(name: str, states: Cells, hidden: Mapping[str, Cells]) -> list[Row]:
    """What a reader sees of a view's stored rows."""
    memory = Memory(())
    memory.tables = tables()
    memory.stored = {name: states, **hidden}
    return memory.outputs(name)


class Model:
    def __init__(self) -> None:
        self.rows: dict[str, Cells] = {name: {} for name in tables().by_name}
        #: The commit_ts of each row, deleted ones included.
        self._changed: dict[bytes, int] = {}
        #: What was computed, and the versions of the tables that it was computed from.
        self._versions = dict.fromkeys(tables().by_name, 0)
        self._computed: dict[str, tuple[tuple[int, ...], list[Row]]] = {}
        self._names = {rows.table.id: name for name, rows in tables().by_name.items()}
        self._names |= {view.view.id: name for name, view in tables().views.items()}

    def _name(self, cell: bytes) -> str:
        return self._names.get(int.from_bytes(cell[:TABLE_PREFIX_BYTES], "big"), "")

    # Transactions.

    def apply(self, submit: Submit, commit_ts: int) -> Changed:
        """Carry out a transaction: the cells that change, those of indexes included."""
        changed: Changed = {}
        for name, intents in submit.writes:
            stored = self.rows[name]
            for cell, (expect, row, changes, touch) in intents:
                before = stored.get(cell)
                assert not (expect == ABSENT and before is not None), f"{submit.tx_id}: {before} is there"
                assert not (expect == PRESENT and before is None), f"{submit.tx_id}: {cell!r} is not there"
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
                for entries in tables().by_name[name].indexes:
                    old_entry = None if before is None else entries.codec.entry(before, cell)
                    new_entry = None if row is None else entries.codec.entry(row, cell)
                    if old_entry != new_entry:
                        if old_entry is not None:
                            changed[old_entry] = ((cell,), None)
                        if new_entry is not None:
                            changed[new_entry] = (None, (cell,))
        return changed

    # Views.

    def view(self, name: str) -> list[Row]:
        view = tables().catalog.views[name]
        version = tuple(count for table, count in self._versions.items() if table != STEPS)
        known = self._computed.get(name)
        reads = [source for source in view.reads if not source.startswith("~")]
        if known is not None and known[0] == version:
            return known[1]
        catalog = tables().catalog
        schema: dict[str, Table] = {}
        rows: dict[str, list[Row]] = {}
        for source in reads:
            if source in self.rows:
                schema[source] = catalog.tables[source]
                rows[source] = list(self.rows[source].values())
            else:
                table = tables().table(source)
                columns = tuple(table.columns[position] for position in table.visible())
                schema[source] = replace(table, columns=columns, key=())
                rows[source] = self.view(source)
        found = recompute(view.relation, schema, rows)
        self._computed[name] = (version, found)
        return found

    def _view_row_differs(self, name: str, cell: bytes, state: Row | None) -> str:
        """Of a view whose rows begin with its key."""
        view = tables().views[name]
        count = len(view.plan.key_columns)
        expected = [row for row in self.view(name) if view.plan.keys.encode_short(row[:count]) == cell]
        shown = [] if state is None else shown_by(name, {cell: state}, {})
        return "" if shown == expected else f"{name} shows {shown}, not {expected}"

    # Comparing.

    def differs(self, question: ReadAt, answer: RowsAt, exact: bool = False) -> str:
        """How an answer is not what the model has, "" if it is. `exact`: each row's commit_ts, too."""
        for cell, (ts, row) in zip(question.keys, answer.rows, strict=True):
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
        for (start, stop, limit, last), found in zip(question.ranges, answer.ranges, strict=True):
            name = self._name(start)
            states = {cell: row for cell, _, row in found}
            if name in self.rows:
                cells = sorted(cell for cell in self.rows[name] if start <= cell < stop)
                cells = (cells[::-1] if last else cells)[: limit or None]
                wanted = {cell: self.rows[name][cell] for cell in cells}
                if list(states.items()) != list(wanted.items()):
                    return f"{name} is {states}, not {wanted}"
            elif limit:
                shown, all_rows = shown_by(name, states, {}), sorted(self.view(name))
                if sorted(shown) != sorted((all_rows[::-1] if last else all_rows)[:limit]):
                    return f"the end of {name} is {shown}, not of {all_rows}"
            else:
                stored[name] = states
        return self.views_differ(stored)

    def views_differ(self, stored: dict[str, Cells]) -> str:
        for name in ALL_VIEWS:
            if name in stored:
                hidden = {each: stored[each] for each in with_hidden(name)[1:]}
                shown, expected = shown_by(name, stored[name], hidden), self.view(name)
                same = shown == expected if name in ("dear", "late_dear") else Counter(shown) == Counter(expected)
                if not same:
                    return f"view {name} is {shown}, not {expected}"
        return ""

    def differs_from_cells(self, cells: Cells) -> str:
        """All cells there are."""
        stored: dict[str, Cells] = {name: {} for name in (*self.rows, *tables().views)}
        entries: Cells = {}
        for cell, row in cells.items():
            name = self._name(cell)
            (stored[name] if name else entries)[cell] = row
        for name, rows in self.rows.items():
            if stored[name] != rows:
                return f"table {name} is {stored[name]}, not {rows}"
        wanted = {
            each.codec.entry(row, cell): (cell,)
            for name, rows in self.rows.items()
            for each in tables().by_name[name].indexes
            for cell, row in rows.items()
        }
        if entries != wanted:
            return f"index entries are {entries}, not {wanted}"
        synchronous = [name for name, view in tables().views.items() if not view.view.deferred]
        return self.views_differ({name: stored[name] for name in synchronous})
