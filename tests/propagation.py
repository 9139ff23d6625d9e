"""A database of plain dicts for tests of plans: base tables, views and the hidden views that these need.

The plans, the catalog and the transaction machine are the engine's own. Everything else is as naive as can be: rows
are in dicts, and what a look-up finds is computed from all rows. So a plan that asks for the wrong thing fails here,
and what it asked for can be counted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from viewtide.changetables.algebra import Relation
from viewtide.changetables.evaluate import compared
from viewtide.changetables.explain import explain
from viewtide.changetables.keeping import keep
from viewtide.changetables.plan import (
    FIRST,
    LAST,
    STATES,
    TOP,
    WHOLE_TABLE,
    Asking,
    Contribution,
    LookUp,
    State,
    ViewPlan,
    needed_indexes,
    top_count,
)
from viewtide.changetables.recompute import recompute
from viewtide.changetables.schema import Index, Table
from viewtide.changetables.types import Row, Value
from viewtide.coordinator.transaction import ANY, Request, Transaction
from viewtide.ltm.catalog import Catalog, View
from viewtide.ltm.tables import Planned, Tables, ViewRows
from viewtide.ltm.versions import Horizon

#: Rows by their stored key.
Rows: TypeAlias = dict[bytes, Row]
#: A transaction's own rows, by table or view and key; None where there is none any more.
Own: TypeAlias = Mapping[str, Mapping[bytes, Row | None]]


@dataclass
class Folded:
    """The stored rows of one view, folded from contributions."""

    plan: ViewPlan
    states: Rows = field(default_factory=dict)

    def refresh(self, contributions: Iterable[Contribution]) -> None:
        for contribution in contributions:
            row = self.plan.refresh(self.states.pop(contribution.key, None), contribution)
            if row is not None:
                self.states[contribution.key] = row

    def multiplicities(self) -> list[int]:
        return [self.plan.multiplicity(state) for state in self.states.values()]


class Memory:
    """Tables and views. `put` and `remove` belong to one open transaction, which `commit` or `abort` ends."""

    def __init__(self, tables: Iterable[Table]) -> None:
        catalog = Catalog()
        for table in tables:
            catalog = catalog.with_table(table)
        self._horizon = Horizon()
        self.tables = Tables(catalog, self._horizon)
        #: The stored rows of tables and views, all as of the last commit.
        self.stored: dict[str, Rows] = {name: {} for name in catalog.tables}
        #: What the open transaction writes, in its order.
        self.written: dict[str, dict[bytes, Row | None]] = {}
        #: The batches of look-ups since the last `clear`.
        self.asked: list[list[LookUp]] = []

    # --- views ---

    def create_view(self, name: str, relation: Relation) -> ViewPlan:
        """Make a view as of the last commit, with the hidden views and the indexes that it needs."""
        planned = Planned(self.tables)
        kept = keep(relation, planned)
        for hidden, inner in planned.needed(kept).items():
            self._create(hidden, inner)
        return self._create(name, relation)

    def _create(self, name: str, relation: Relation) -> ViewPlan:
        kept = keep(relation, Planned(self.tables))
        for table, columns in needed_indexes(kept, {each: self.tables.table(each) for each in kept.sources}):
            if all(index.columns != columns for index in self.tables.table(table).indexes):
                catalog = self.tables.catalog
                self._adopt(catalog.with_index(table, Index(catalog.next_id, columns)))
        catalog = self.tables.catalog
        needs = needed_indexes(kept, {each: self.tables.table(each) for each in kept.sources})
        view = View(catalog.next_id, name, relation, "sync", "", 1, reads=kept.reads, needs=needs)
        self._adopt(catalog.with_view(view))
        plan = self.plan(name)
        contents = Folded(plan)
        contents.refresh(self.run(plan.contribute_constants()))
        if plan.kept.slice_of:
            ordered = [row for _, row in sorted(self.shown(plan.kept.slice_of).items())]
            contents.refresh(plan.contribute_top(ordered))
        for part, source, table in plan.starts():
            contents.refresh(self.run(plan.contribute_from(part, source, list(self.shown(table).values()))))
        self.stored[name] = contents.states
        return plan

    def _adopt(self, catalog: Catalog) -> None:
        self.tables = Tables(catalog, self._horizon, self.tables)

    def view(self, name: str) -> ViewRows:
        return self.tables.views[name]

    def plan(self, name: str) -> ViewPlan:
        return self.view(name).plan

    def explain(self, name: str) -> str:
        return explain(self.plan(name), {other: rows.plan for other, rows in self.tables.views.items()})

    # --- what is stored and shown ---

    def shown(self, name: str) -> Rows:
        """The rows of a table, or those of a view as a table for others, as of the last commit."""
        stored = self.stored[name]
        if name not in self.tables.views:
            return stored
        rows = self.plan(name)
        states: dict[bytes, Row | None] = dict(stored)
        if rows.always and not states:
            states[rows.keys.encode_short(())] = None
        found = ((key, rows.source_row(state, self._extremes(name, state))) for key, state in states.items())
        return {key: row for key, row in found if row is not None}

    def _extremes(self, name: str, state: Row | None) -> Row:
        plan = self.plan(name)
        return tuple(
            _extreme(self.shown(each.table), plan.extreme_prefix(number, state or ()), each.last)
            for number, each in enumerate(plan.extremes)
        )

    def outputs(self, name: str) -> list[Row]:
        """What a reader sees of a view, each row as often as it counts, in the order of the keys."""
        plan, kept = self.plan(name), self.plan(name).kept
        states: list[tuple[bytes, Row | None]] = sorted(self.stored[name].items())
        if plan.always and not states:
            states = [(plan.keys.encode_short(()), None)]
        found: list[Row] = []
        for _, state in states:
            extremes = self._extremes(name, state)
            times = plan.multiplicity(state, extremes)
            if times:
                found += [plan.output(state, extremes)] * times
        if kept.kind != "ordered":
            return found
        last = None if kept.limit is None else kept.offset + kept.limit
        return list(itertools.islice(found, kept.offset, last))

    def rows(self, name: str) -> list[Row]:
        """The rows of a base table as the open transaction sees them."""
        rows: dict[bytes, Row | None] = {**self.stored[name], **self.written.get(name, {})}
        return [row for row in rows.values() if row is not None]

    def recomputed(self, relation: Relation) -> list[Row]:
        """The oracle's answer as of the last commit; views that the relation reads are recomputed too."""
        tables = dict(self.tables.catalog.tables)
        rows = {name: list(self.stored[name].values()) for name in tables}
        for view in self.tables.catalog.views.values():
            if not view.hidden:
                # What the oracle makes of a view has neither its key nor its multiplicity: each row is there once more.
                shown = self.tables.table(view.name).visible()
                columns = tuple(self.tables.table(view.name).columns[position] for position in shown)
                tables[view.name] = replace(self.tables.table(view.name), columns=columns, key=())
                rows[view.name] = recompute(view.relation, tables, rows)
        return recompute(relation, tables, rows)

    # --- a transaction ---

    def put(self, table: str, *rows: Row) -> None:
        for row in rows:
            self.written.setdefault(table, {})[self._key(table, row)] = self._complete(table, row)

    def remove(self, table: str, *rows: Row) -> None:
        for row in rows:
            self.written.setdefault(table, {})[self._key(table, row)] = None

    def _key(self, name: str, row: Row) -> bytes:
        rows = self.tables.by_name[name]
        return rows.codec.keys.encode(tuple(row[position] for position in rows.table.key))

    def _complete(self, name: str, row: Row) -> Row:
        return row + tuple(column.default for column in self.tables.table(name).columns[len(row) :])

    def machine(self) -> Transaction:
        """The open transaction, propagated through all views."""
        request = Request((1, 1))
        request.writes.update(
            {
                name: {key: (ANY, row, None, True) for key, row in written.items()}
                for name, written in self.written.items()
            }
        )
        machine = Transaction(request, self.tables)
        machine.old_rows({name: [self.stored[name].get(key) for key in rows] for name, rows in self.written.items()})
        while machine.wanted:
            machine.looked_up(self.answer(machine.wanted, machine.own_rows()))
        return machine

    def propagate(self) -> dict[str, list[Contribution]]:
        """The change table of each view for the open transaction, which stays open."""
        machine = self.machine()
        return {self.tables.views_by_id[number].view.name: found for number, found in machine.contributions}

    def commit(self) -> dict[str, list[Contribution]]:
        """Refresh all views. A row that cannot be shown refuses the transaction, which stays open then."""
        contributions = self.propagate()
        refreshed = {}
        for name, found in contributions.items():
            contents = Folded(self.plan(name), dict(self.stored[name]))
            contents.refresh(found)
            if contents.plan.fallible and not contents.plan.extremes:
                for item in found:
                    contents.plan.source_row(contents.states.get(item.key))
            refreshed[name] = contents.states
        self.stored.update(refreshed)
        for name in self.written:
            rows: dict[bytes, Row | None] = {**self.stored[name], **self.written[name]}
            self.stored[name] = {key: row for key, row in rows.items() if row is not None}
        self.abort()
        return contributions

    def abort(self) -> None:
        self.written = {}

    # --- look-ups ---

    def run(self, asking: Asking[list[Contribution]], own: Own | None = None) -> list[Contribution]:
        """Answer whatever a plan asks for."""
        try:
            wanted = next(asking)
            while True:
                wanted = asking.send(self.answer(wanted, own or {}))
        except StopIteration as done:
            contributions: list[Contribution] = done.value
            return contributions

    def answer(self, look_ups: Sequence[LookUp], own: Own) -> list[list[object]]:
        self.asked.append(list(look_ups))
        return [self._found(look_up, own) for look_up in look_ups]

    def _found(self, look_up: LookUp, own: Own) -> list[object]:
        if look_up.index == STATES:
            return [self.stored[look_up.table].get(key) for key in look_up.keys]
        rows = self._in_state(look_up, own.get(look_up.table, {}))
        if look_up.index in (FIRST, LAST):
            return [_extreme(rows, prefix, look_up.index == LAST) for prefix in look_up.keys]
        if look_up.index == WHOLE_TABLE:
            return [list(rows.values()) for _ in look_up.keys]
        if look_up.index == TOP:
            weighted = self.plan(look_up.table).kept.weighted
            return [_first_rows(rows, top_count(key), weighted) for key in look_up.keys]
        if look_up.index is None:
            return [rows.get(key) for key in look_up.keys]
        owner, entries = self.tables.indexes[look_up.index]
        assert owner.table.name == look_up.table, "an index of another table"
        prefixes = [(entries.codec.prefix_of(row), row) for row in rows.values()]
        return [[row for prefix, row in prefixes if prefix == key] for key in look_up.keys]

    def _in_state(self, look_up: LookUp, mine: Mapping[bytes, Row | None]) -> Rows:
        old = self.shown(look_up.table)
        if look_up.state == State.OLD:
            return old
        if look_up.state == State.TAKEN:
            return {**old, **dict.fromkeys(mine, ())}
        left = {key: row for key, row in old.items() if key not in mine}
        if look_up.state == State.KEPT:
            return left
        return {**left, **{key: row for key, row in mine.items() if row is not None}}


def _extreme(rows: Rows, prefix: bytes, last: bool) -> Value:
    """The smallest or largest value, by comparing values: the engine goes by the order of keys."""
    values = [row[-1] for key, row in rows.items() if key.startswith(prefix)]
    if not values:
        return None
    return (max if last else min)(values, key=functools.cmp_to_key(compared))


def _first_rows(rows: Rows, rows_count: int | None, weighted: bool) -> list[Row]:
    """The first rows in the order of keys, until so many are counted."""
    found: list[Row] = []
    counted = 0
    for _, row in sorted(rows.items()):
        if rows_count is not None and counted >= rows_count:
            break
        found.append(row)
        counted += int(row[-1]) if weighted else 1  # type: ignore[arg-type]  # the multiplicity
    return found
