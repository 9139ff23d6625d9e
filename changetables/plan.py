"""Plans: everything that is known about one view before any data, compiled once to Python functions.

A plan propagates the change tables of its sources to the view's change table (`propagate`), applies that to view rows
(`refresh`) and shows view rows (`multiplicity`, `output`). It never reads by itself: what it needs it asks for with
`LookUp`s, in batches, and is sent the rows. The laws are in `operators/`, one a file; here they are put together:

    □V = Σ_parts  aggregate or project ( join ( select (□B) ) )
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

from .algebra import Relation
from .branches import MULTIPLICITY, Stored, columns_of, is_hidden
from .change_table import Change
from .compiler import Code, Compiler, Lines, column_leaf, on_a_whole_stack, sources_of
from .errors import DataError, InterfaceError, InternalError, ProgrammingError, counted
from .evaluators.choice import COLUMNS, ROWS, Evaluators
from .expressions import Call, ColumnRef, Expression
from .keeping import Kept, Part, keep
from .keys import KeyCodec, OrderedKeyCodec, ViewKeyCodec, primary_key_codec
from .operators.aggregate import Layout, aggregate_leaf, emit_group, emit_sums, layout_of, zeros
from .operators.join import (
    FIRST,
    LAST,
    STATES,
    TOP,
    WHOLE_TABLE,
    Emit,
    Grouping,
    JoinWriter,
    KeyMemo,
    Law,
    LookUp,
    State,
    Term,
    plan_term,
)
from .operators.project import Collected, emit_project, flat_bag
from .operators.slice import slice_changes, top_count, top_key
from .refresh import Columns, Contribution, Refresh, RefreshGroups, RefreshRows, by_columns
from .rows import coerce
from .schema import Column, Index, Table
from .types import Row, Type, Value

if TYPE_CHECKING:
    from .evaluators.columns import ArrowTable, ColumnsTerm

__all__ = [
    "FIRST",
    "LAST",
    "STATES",
    "TOP",
    "WHOLE_TABLE",
    "Answers",
    "Asking",
    "Contribution",
    "Inserting",
    "LookUp",
    "State",
    "ViewPlan",
    "compile_view",
    "needed_indexes",
    "top_count",
]

#: Rows that refer to the same row, on average, from which on that one is looked up once for all of them.
REFERRING_ROWS_MIN = 2

#: Levels of an expression that can surely be compiled: each takes four or five frames of Python's thousand.
LEVELS_UNCHECKED_MAX = 64

_T = TypeVar("_T")
#: One answer per look-up, with one entry per key: Row | None by primary key, list[Row] by index.
Answers: TypeAlias = Sequence[Sequence[object]]
#: Yields batches of look-ups, is sent the answers.
Asking: TypeAlias = Generator[list[LookUp], Answers, _T]
KeyColumn: TypeAlias = tuple[str, Type, bool]
#: The generated function of a term: a generator if the term looks rows up.
_TermFunction: TypeAlias = Callable[[Sequence[Change], object], Asking[None] | None]


_AddKnown: TypeAlias = Callable[[Sequence[Row], Mapping[object, object]], "list[Contribution]"]
_ColumnsKnown: TypeAlias = Callable[[Sequence[Row], Mapping[object, object]], Columns]


class Inserting(NamedTuple):
    """The functions of `JoinWriter.write_inserts`. `values`, `referring`, `add_known` and `columns_known`, which is the
    same by columns, are None unless there is one look-up, `add_grouped` also if what it finds does not tell the
    group."""

    ask: Callable[[Sequence[Row]], list[LookUp] | None]
    add: Callable[[Sequence[Row], Answers], list[Contribution]]
    values: Callable[[Sequence[Row]], list[object]] | None
    referring: Callable[[Sequence[Row]], dict[object, Row]] | None
    add_known: _AddKnown | None
    add_grouped: _AddKnown | None
    columns_known: _ColumnsKnown | None


#: The functions of `JoinWriter.write_staged`.
_StageFunction: TypeAlias = "Callable[..., tuple[list[Row], tuple[list[bytes], ...]] | None]"
Staged: TypeAlias = tuple[_StageFunction, ...]
#: Part and source in it.
_Place: TypeAlias = tuple[int, int]


class ViewPlan:
    """The compiled plan of one view.

    `columns`: the outputs (name, type). `key_columns`: the key of the view (name, type, nullable). `sources`: the
    tables and views that contribute to it; `reads`: these and what is looked into when it is read; `tables`: these as
    tables. `table`: what it shows, as a table for others to read. `columns_read`: (table, position) of all columns that
    it needs.
    """

    def __init__(
        self,
        name: str,
        view_id: int,
        relation: Relation,
        stored: Stored,
        indexes: tuple[Index, ...] = (),
        kept: Kept | None = None,
    ) -> None:
        self.name, self.view_id, self.relation = name, view_id, relation
        #: What errors call it: a hidden view is called by the views that it is kept for.
        self.called = name
        self.kept = kept = keep(relation, stored) if kept is None else kept
        self.sources, self.reads = kept.sources, kept.reads
        self.table = kept.table(view_id, name, indexes)
        self.columns = tuple((output.name, output.expression.type) for output in kept.outputs)
        self.key_columns = tuple((field.name, field.type, field.nullable) for field in kept.key)
        self.tables = tables = {source: stored.table(source) for source in kept.reads}
        self.needed_indexes = needed_indexes(kept, tables)
        self.columns_read = _columns_read(kept)
        builder = _Builder(lambda: self.called, view_id, kept, tables)
        self.keys = builder.keys
        self._builder = builder
        self._places: dict[str, list[_Place]] = {}
        for number, part in enumerate(kept.parts):
            for place, source in enumerate(part.graph.sources):
                self._places.setdefault(source.table, []).append((number, place))
        self._terms: dict[tuple[_Place, Law], tuple[_TermFunction, bool]] = {}
        #: By table: the term of a change of just this source, once it was needed; see `_propagate_alone`.
        self._alone: dict[str, _TermFunction] = {}
        self._inserting: dict[str, Inserting | None] = {}
        self._staged: dict[tuple[_Place, Law], Staged] = {}
        #: Terms are compiled when they are first needed, by whichever thread that is.
        self._compiling = threading.Lock()
        self._evaluators = Evaluators(self._run, builder.columns_term, builder.component_kinds)
        self._finish = builder.finish()
        self._refresh: Refresh = builder.refresh()
        self.refresh = self._refresh.refresh
        self.refresh_all = self._refresh.refresh_all
        self._multiplicity, self._output, self._source_row = builder.readers(self.table)
        self._shown = builder.shown
        self._zero_state = builder.zero_state() if kept.always else None
        #: Whether what it shows may raise DataError: then a writer looks at it before the commit.
        self.fallible = builder.fallible
        #: Whether what it shows comes from the stored row alone, once.
        self.is_plain = not kept.extremes and not kept.weighted
        #: How many extremes `output` and the others take.
        self.extremes = kept.extremes
        self._extreme_keys = [cast(ViewKeyCodec, primary_key_codec(tables[each.table])) for each in kept.extremes]

    def __reduce__(self) -> tuple[object, ...]:
        """A plan goes to another process as what it is compiled from."""
        return _compile_again, (self.name, self.called, self.view_id, self.relation, self.kept, self.tables, self.table)

    # --- maintenance ---

    def propagate(
        self,
        changes: Mapping[str, Sequence[Change]],
        evaluator: str | None = ROWS,
        changed: Container[str] = (),
    ) -> Asking[list[Contribution]]:
        """The view's change table for the change tables of its sources, by name.

        Yields batches of look-ups, is sent one list per look-up, and returns at most one contribution per view key,
        none that is zero. `evaluator`: rows or columns, None: the one that was measured to cost less. `changed`:
        sources that change too, with rows that others propagate: the view's change table is the sum of what they give.
        """
        if len(changes) == 1 and not changed and evaluator == ROWS:
            ((table, rows),) = changes.items()
            term = self._alone.get(table)
            if term is not None:
                return self._propagate_alone(term, rows)
        return self._propagate(changes, evaluator, changed)

    def _propagate_alone(self, term: _TermFunction, rows: Sequence[Change]) -> Asking[list[Contribution]]:
        """The common case, one changed source that stands once in the query: nothing is left to decide."""
        groups: dict[Row, object] = {}
        started = term(rows, groups)
        if started is not None:
            yield from started
        return self._finish(groups)

    def _propagate(
        self, changes: Mapping[str, Sequence[Change]], evaluator: str | None, changed: Container[str]
    ) -> Asking[list[Contribution]]:
        if self.kept.slice_of:
            return (yield from self._propagate_slice(changes))
        places = [place for table, places in self._places.items() if table in changes for place in places]
        groups: dict[Row, object] = {}
        # One source of its part: the common case needs no counting.
        alone = not changed and len(places) == 1
        per_part = {} if alone else self._changed_per_part(changes, changed)
        if len(places) == 1 and evaluator == ROWS and (alone or per_part[places[0][0]] == 1):
            # The common case, written out.
            term, looks_up = self._terms.get((places[0], Law.ONE_SOURCE)) or self._term(places[0], Law.ONE_SOURCE)
            started = term(self._changes(places[0], changes), groups)
            if looks_up:
                yield from cast("Asking[None]", started)
            source = self.kept.parts[places[0][0]].graph.sources[places[0][1]]
            if not source.anti and len(self._places[source.table]) == 1:
                self._alone[source.table] = term
        elif places:
            yield from _in_lock_step(self._several(places, per_part, changes, groups, evaluator))
        return self._finish(groups)

    def inserting(self, table: str) -> Inserting | None:
        """`propagate` of rows that are only added to one source, as two plain functions; None if that needs more."""
        if table not in self._inserting:
            places = self._places.get(table, [])
            found = None
            if len(places) == 1 and not self.kept.slice_of:
                with self._compiling:
                    found = self._builder.inserting(places[0], self._finish)
            self._inserting[table] = found
        return self._inserting[table]

    def _changed_per_part(self, changes: Container[str], changed: Container[str]) -> dict[int, int]:
        """How many sources of each part change."""
        per_part: dict[int, int] = {}
        for table, places in self._places.items():
            if table in changes or table in changed:
                for number, _ in places:
                    per_part[number] = per_part.get(number, 0) + 1
        return per_part

    def _propagate_slice(self, changes: Mapping[str, Sequence[Change]]) -> Asking[list[Contribution]]:
        """A slice is told the first rows of its view before and after."""
        kept = self.kept
        if not changes.get(kept.slice_of):
            return []
        count = top_key(None if kept.limit is None else kept.offset + kept.limit)
        look_ups = [LookUp(kept.slice_of, TOP, [count], state) for state in (State.OLD, State.NEW)]
        old, new = ([self._counted(row) for row in cast("list[Row]", answer[0])] for answer in (yield look_ups))
        return self._of_rows(slice_changes(old, new, kept.limit, kept.offset))

    def _counted(self, row: Row) -> tuple[Row, int]:
        """A row of an ordered view's table without its multiplicity, and that."""
        width = len(self.kept.outputs)
        return row[:width], cast(int, row[width]) if len(row) > width else 1

    def _of_rows(self, rows: Iterable[tuple[Row, int]]) -> list[Contribution]:
        groups: dict[Row, object] = {}
        for row, times in rows:
            key = tuple(row[place] for place in self.kept.slice_key)
            cast("list[tuple[Row, int]]", groups.setdefault(key, [])).append((row, times))
        return self._finish(groups)

    def _changes(self, place: _Place, changes: Mapping[str, Sequence[Change]]) -> Sequence[Change]:
        source = self.kept.parts[place[0]].graph.sources[place[1]]
        rows = changes[source.table]
        return [(row, -multiplicity) for row, multiplicity in rows] if source.anti else rows

    def _several(
        self,
        places: Sequence[_Place],
        per_part: Mapping[int, int],
        changes: Mapping[str, Sequence[Change]],
        groups: dict[Row, object],
        evaluator: str | None,
    ) -> list[Asking[None]]:
        """The terms of a transaction that changes several sources."""
        run = self._run if evaluator == ROWS else partial(self._run_by, evaluator)
        terms = []
        for place in places:
            rows = self._changes(place, changes)
            if per_part.get(place[0], 1) == 1:
                terms.append(run(place, Law.ONE_SOURCE, rows, groups))
                continue
            removed, added = [row for row in rows if row[1] < 0], [row for row in rows if row[1] > 0]
            if removed:
                terms.append(run(place, Law.REMOVED, removed, groups))
            if added:
                terms.append(run(place, Law.ADDED, added, groups))
        return terms

    def _run(self, place: _Place, law: Law, rows: Sequence[Change], groups: dict[Row, object]) -> Asking[None]:
        term, looks_up = self._terms.get((place, law)) or self._term(place, law)
        started = term(rows, groups)
        if looks_up:
            yield from cast("Asking[None]", started)

    def _run_by(
        self, evaluator: str | None, place: _Place, law: Law, rows: Sequence[Change], groups: dict[Row, object]
    ) -> Asking[None]:
        yield from self._evaluators.run_changes(evaluator, place, law, self._table(place), rows, groups)

    def _table(self, place: _Place) -> Table:
        return self.tables[self.kept.parts[place[0]].graph.sources[place[1]].table]

    def _term(self, place: _Place, law: Law) -> tuple[_TermFunction, bool]:
        with self._compiling:
            compiled = self._terms[place, law] = self._builder.term(place, law)
        return compiled

    # --- for evaluators that answer look-ups somewhere else: the pieces of `propagate` ---

    def changed_places(self, changes: Container[str], changed: Container[str] = ()) -> list[tuple[_Place, list[Law]]]:
        """The terms that `propagate` would run: the places of the sources that change, and by which laws."""
        per_part = self._changed_per_part(changes, changed)
        both = [Law.REMOVED, Law.ADDED]
        return [
            (place, [Law.ONE_SOURCE] if per_part[place[0]] == 1 else both)
            for table, places in self._places.items()
            if table in changes
            for place in places
        ]

    def staged(self, place: _Place, law: Law) -> Staged:
        """A term cut where it looks rows up: see `JoinWriter.write_staged`."""
        with self._compiling:
            found = self._staged.get((place, law))
            if found is None:
                found = self._staged[place, law] = self._builder.staged(place, law)
        return found

    def steps(self, place: _Place, law: Law) -> Term:
        """The look-ups of a term."""
        return self._builder.plan(place, law)

    def collect_columns(self, place: _Place, columns: ArrowTable, groups: dict[Row, object]) -> Asking[None]:
        """What `contribute_columns` does by columns, but for the end: what it gives is added to the groups."""
        return self._evaluators.run_arrow(COLUMNS, place, self._table(place), columns, groups)

    def merge(self, groups: dict[Row, object], found: dict[Row, object]) -> None:
        """Add what was collected elsewhere, which is not to be used any more."""
        self._evaluators.merge(groups, found)

    def finish(self, groups: dict[Row, object]) -> list[Contribution]:
        """What terms have collected, as contributions."""
        return self._finish(groups)

    def combine(self, first: Contribution, second: Contribution) -> Contribution | None:
        """Two contributions to one key as one, None if they cancel out."""
        delta = self._refresh.add(first.delta, second.delta)
        return None if delta is None else first._replace(delta=delta)

    def negate(self, contribution: Contribution) -> Contribution:
        """The contribution that takes this one back: value at T = value now - contributions above T."""
        return contribution._replace(delta=self._refresh.negate(contribution.delta))

    # --- first contents: the sum, over all parts, of what the rows of one of its sources give ---

    def starts(self) -> list[tuple[int, int, str]]:
        """(part, source, table): whose rows to go through for the first contents."""
        return [
            (number, place, part.graph.sources[place].table)
            for number, part in enumerate(self.kept.parts)
            if (place := _first_source(part)) is not None
        ]

    def places_of(self, table: str) -> list[tuple[int, int]]:
        """(part, source): where the rows of a table come in."""
        return list(self._places.get(table, ()))

    def contribute_top(self, rows: Sequence[Row]) -> list[Contribution]:
        """The first contents of a slice, of the first rows of its view."""
        return self._of_rows(slice_changes((), [self._counted(row) for row in rows], self.kept.limit, self.kept.offset))

    def contribute_from(
        self, part: int, source: int, rows: Sequence[Row], evaluator: str | None = ROWS
    ) -> Asking[list[Contribution]]:
        """The contributions of just these rows of one source, with all other sources as they are.

        `evaluator`: rows or columns; None: the one that was measured to cost less.
        """
        place = (part, source)
        inserting = self.inserting(self._table(place).name) if evaluator == ROWS else None
        if inserting is not None:
            referring = None if inserting.referring is None else inserting.referring(rows)
            if referring is not None and len(referring) <= len(rows) // REFERRING_ROWS_MIN:
                wanted = inserting.ask(list(referring.values()))
                if wanted is not None:
                    (found,) = yield wanted
                    add = inserting.add_grouped or inserting.add_known
                    assert add is not None, "there is one look-up"
                    return add(rows, dict(zip(referring, found, strict=True)))
            wanted = inserting.ask(rows)
            if wanted is not None:
                return inserting.add(rows, (yield wanted) if wanted else ())
        groups: dict[Row, object] = {}
        yield from self._run_by(evaluator, place, Law.ONE_SOURCE, [(row, 1) for row in rows], groups)
        return self._finish(groups)

    def contribute_columns(
        self, part: int, source: int, columns: ArrowTable, evaluator: str | None = None
    ) -> Asking[list[Contribution]]:
        """`contribute_from` for rows in an Arrow table: the physical columns of the source's table, in their order."""
        groups: dict[Row, object] = {}
        place = (part, source)
        yield from self._evaluators.run_arrow(evaluator, place, self._table(place), columns, groups)
        return self._finish(groups)

    def evaluator_for_step(self, rows_count: int) -> tuple[str | None, int]:
        """The evaluator for a step with so many changed rows, None to measure, and how many of them it takes at least
        at once."""
        return self._evaluators.for_step(rows_count)

    def note_whole(self, evaluator: str, reason: str) -> None:
        """The view is computed as a whole, by this evaluator."""
        self._evaluators.whole = f"{evaluator} ({reason})"

    def note_step(self, evaluator: str) -> None:
        """A step was computed by an evaluator that somebody asked for."""
        self._evaluators.asked_step = evaluator

    def evaluator_choice(self) -> str:
        """What the evaluators cost per row as far as measured, and which one is taken: a line per form of input."""
        return self._evaluators.text()

    def contribute_constants(self) -> Asking[list[Contribution]]:
        """What the parts give that have no rows to go through: constant rows, some only where others are absent."""
        groups: dict[Row, object] = {}
        for number, part in enumerate(self.kept.parts):
            if _first_source(part) is None:
                yield from self._run((number, len(part.graph.sources)), Law.ONE_SOURCE, [((), 1)], groups)
        return self._finish(groups)

    @property
    def has_constants(self) -> bool:
        return any(_first_source(part) is None for part in self.kept.parts)

    # --- reading ---

    def multiplicity(self, row: Row | None, extremes: Row = ()) -> int:
        """How often the stored row is shown: 0 if it is not there for a reader. None: nothing is stored."""
        if row is None:
            if self._zero_state is None:
                return 0
            row = self._zero_state
        try:
            return self._multiplicity(row, extremes)
        except DataError as error:
            raise self._blamed(error, row) from error

    def output(self, row: Row | None, extremes: Row = ()) -> Row:
        """The output columns of a stored view row; averages and expressions over aggregates are computed here."""
        row = self._zero_state if row is None and self._zero_state is not None else cast(Row, row)
        try:
            return self._output(row, extremes)
        except DataError as error:
            raise self._blamed(error, row) from error

    def shown(self, states: Sequence[Row]) -> list[Row]:
        """Of a plain view: the `output` of each stored row that is shown. Written out for groups, which are read as a
        whole again and again."""
        if self._shown is not None:
            try:
                return self._shown(states)
            except DataError:
                pass  # the long way finds out which row it is
        times, output = self.multiplicity, self.output
        return [output(state) for state in states if times(state)]

    def source_row(self, row: Row | None, extremes: Row = ()) -> Row | None:
        """The row of `table` that a stored row shows, None if it shows none."""
        times = self.multiplicity(row, extremes)
        if not times:
            return None
        row = self._zero_state if row is None and self._zero_state is not None else cast(Row, row)
        try:
            return self._source_row(row, extremes, times)
        except DataError as error:
            raise self._blamed(error, row) from error

    def _blamed(self, error: DataError, row: Row) -> DataError:
        key = row[: len(self.key_columns)]
        row_text = "" if is_hidden(self.name) else f", row {key!r}"
        return DataError(f"view {self.called!r}{row_text}: {error.message}", hint=error.hint)

    def extreme_prefix(self, number: int, row: Row) -> bytes:
        """Where the values of a group stand in the hidden view of an extreme."""
        return self._extreme_keys[number].group_prefix(row[: len(self.key_columns)])

    @property
    def always(self) -> bool:
        """Aggregates without GROUP BY: there is always one row."""
        return self.kept.always

    def key_of(self, key: object) -> bytes:
        """The stored key for a user's key: a value, a tuple in key order, or a mapping of the key columns."""
        return self.keys.encode_short(self._coerced(_key_values(self.name, self.key_columns, key)))

    def _coerced(self, values: Sequence[object]) -> Row:
        """The first key columns in the engine's form. An integer of a view is a sum, maybe, of any size."""
        return tuple(
            value
            if type.kind == "int" and isinstance(value, int) and not isinstance(value, bool)
            else coerce(Column(name, type, nullable), value, f"{self.name}.{name}")
            for (name, type, nullable), value in zip(self.key_columns, values, strict=False)
        )

    def leading_bound(self, key: object) -> bytes:
        """What the whole keys of rows begin with that the first columns of a key name, in any form of a key."""
        return self.bound_of(_key_values(self.name, self.key_columns[: self.kept.leading], key))

    def bound_of(self, key: object) -> bytes:
        """The bound of a scan for a user's key, which may have the first values of a composite key only. It is whole:
        stored keys that are long are cut, see `whole_key`."""
        if isinstance(key, Mapping) or (isinstance(key, tuple | list) and len(key) >= len(self.key_columns)):
            values = _key_values(self.name, self.key_columns, key)
        else:
            values = tuple(key) if isinstance(key, tuple | list) else (key,)
        return self.keys.encode_prefix(self._coerced(values))

    def whole_key(self, state: Row) -> bytes:
        """The key of a stored row as it would be if keys could be of any length."""
        return self.keys.encode(state[: len(self.key_columns)])

    def term(self, place: tuple[int, int]) -> Term:
        """The look-ups that follow a change of one source, given as (part, source in it)."""
        return self._builder.plan(place)


def _first_source(part: Part) -> int | None:
    """Any source that is not anti would do; the first one is the one that the user wrote first."""
    return next((place for place, source in enumerate(part.graph.sources) if not source.anti), None)


@on_a_whole_stack
def compile_view(
    name: str, view_id: int, relation: Relation, stored: Stored, indexes: tuple[Index, ...] = ()
) -> ViewPlan:
    """Compile the plan of a view. The indexes that `needed_indexes` names must exist and be ready before it runs."""
    return ViewPlan(name, view_id, relation, stored, indexes)


class _Known:
    """The tables that a plan was compiled with."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables

    def table(self, name: str) -> Table:
        return self._tables[name]

    def inner(self, relation: Relation) -> Table:
        raise InternalError("how the view is kept is known")


@on_a_whole_stack
def _compile_again(
    name: str,
    called: str,
    view_id: int,
    relation: Relation,
    kept: Kept,
    tables: Mapping[str, Table],
    table: Table,
) -> ViewPlan:
    plan = ViewPlan(name, view_id, relation, _Known(tables), table.indexes, kept)
    plan.called = called
    return plan


def needed_indexes(kept: Kept, tables: Mapping[str, Table]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The (table, column positions) that look-ups go through and that are no primary key, existing or not.

    Whoever creates a view asks for them before anything is changed. So what could not be compiled later, by the first
    writer, is refused here: UnsupportedView."""
    _check_compiled(kept)
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for part in kept.parts:
        for source in range(len(part.graph.sources)):
            for stage in plan_term(part.graph, tables, source).stages:
                for step in stage:
                    if not step.by_key and not step.whole:
                        found[part.graph.sources[step.source].table, step.columns] = None
    return tuple(found)


@on_a_whole_stack
def _check_compiled(kept: Kept) -> None:
    """Compile what is nested so deeply that it may turn out not to be possible. Of the rest that is known; to compile
    all terms of a view over many outer joins takes longer than everything else that is done to create it."""
    conditions, values = [*kept.having], [output.expression for output in kept.outputs]
    for part in kept.parts:
        conditions += part.graph.filters
        values += [*part.key, *part.weights, *(value for value in part.values if value is not None)]
        values += [constant for _, constant, _ in part.graph.constants]
    compiler = Compiler(column_leaf, {})
    texts = [compiler.condition(each) for each in conditions if _levels(each) > LEVELS_UNCHECKED_MAX]
    texts += [compiler.value(each).text for each in values if _levels(each) > LEVELS_UNCHECKED_MAX]
    compiler.define("".join(f"lambda: {text}\n" for text in texts))


def _levels(expression: Expression) -> int:
    return 1 + max(map(_levels, expression.args), default=0) if isinstance(expression, Call) else 1


def _columns_read(kept: Kept) -> frozenset[tuple[str, int]]:
    found = set()
    for part in kept.parts:
        sides = [side for equality in part.graph.equalities for side in (equality.left, equality.right)]
        for expression in (*part.key, *part.values, *part.weights, *part.graph.filters, *sides):
            for reference in () if expression is None else columns_of(expression):
                found.add((part.graph.sources[reference.source].table, reference.position))
    return frozenset(found)


def _in_lock_step(terms: list[Asking[None]]) -> Asking[None]:
    """Run several terms side by side, so that all look-ups that can go out together do."""
    waiting = [(term, asked) for term in terms if (asked := _resume(term, None)) is not None]
    while waiting:
        answers = yield [look_up for _, asked in waiting for look_up in asked]
        start, still_waiting = 0, []
        for term, asked in waiting:
            stop = start + len(asked)
            next_asked = _resume(term, answers[start:stop])
            if next_asked is not None:
                still_waiting.append((term, next_asked))
            start = stop
        waiting = still_waiting


def _resume(term: Asking[None], answers: Answers | None) -> list[LookUp] | None:
    """What a term asks for next, None when it is done. A new one is sent None."""
    try:
        return term.send(answers) if answers is not None else next(term)
    except StopIteration:
        return None


def _key_values(view: str, columns: Sequence[KeyColumn], key: object) -> tuple[object, ...]:
    names = [name for name, _, _ in columns]
    if isinstance(key, Mapping):
        unknown = [name for name in key if name not in names]
        if unknown:
            raise ProgrammingError(
                f"{unknown[0]!r} is not in the key of view {view!r}", hint=f"the key is ({', '.join(names)})"
            )
        if len(key) < len(names):
            missing = ", ".join(name for name in names if name not in key)
            raise InterfaceError(f"the key of view {view!r} lacks {missing}", hint="give all key columns")
        return tuple(key[name] for name in names)
    values = tuple(key) if isinstance(key, tuple | list) else (key,) if names or key is not None else ()
    if len(values) != len(names):
        hint = f"give a tuple ({', '.join(names)})" if names else "the view has one row: ask for it without a key"
        told = f"{counted(len(names), 'column')}, got {counted(len(values), 'value')}"
        raise InterfaceError(f"the key of view {view!r} has {told}", hint=hint)
    return values


# --- compilation ---


def _weighted(lines: Lines, compiler: Compiler, part: Part, m: str) -> str:
    """The multiplicity times the weights of the sources."""
    if not part.weights:
        return m
    lines.add(f"w = {m} * {' * '.join(compiler.value(weight).text for weight in part.weights)}")
    return "w"


class _Builder:
    """Makes the functions of one plan. All generated code of a view shares one namespace."""

    def __init__(self, called: Callable[[], str], view_id: int, kept: Kept, tables: Mapping[str, Table]) -> None:
        self._called, self.kept, self.tables = called, kept, tables
        namespace: dict[str, object] = {
            "DataError": DataError,
            "LookUp": LookUp,
            "Contribution": Contribution,
            # Half the time of calling Contribution, ten times per transaction.
            "new": tuple.__new__,
        }
        self._compiler = Compiler(column_leaf, namespace)
        self.fallible = False
        #: What stored rows show, where each is shown once or not at all and nothing else has to be known.
        self.shown: Callable[[Iterable[Row]], list[Row]] | None = None
        self._memos: dict[tuple[str, int | None], str] = {}
        self._grouped = kept.kind in ("groups", "set")
        self._layout = layout_of(kept) if self._grouped else Layout()
        self.keys = _view_codec(view_id, kept)
        self._view_keys = KeyMemo(self.keys.encode_short, single=False)

    def plan(self, place: _Place, law: Law = Law.ONE_SOURCE) -> Term:
        return plan_term(self.kept.parts[place[0]].graph, self.tables, place[1], law)

    @on_a_whole_stack
    def term(self, place: _Place, law: Law) -> tuple[_TermFunction, bool]:
        """The function of a term, and whether it looks rows up."""
        plan = self.plan(place, law)
        name = self._compiler.fresh("term_")
        self._compiler.define(self._writer(place).write(name, plan, self._blame_name(place)))
        return cast(_TermFunction, self._compiler.namespace[name]), bool(plan.stages)

    @on_a_whole_stack
    def staged(self, place: _Place, law: Law) -> Staged:
        term = self.plan(place, law)
        names = [self._compiler.fresh("stage_") for _ in range(len(term.stages) + 1)]
        self._compiler.define(self._writer(place).write_staged(names, term, self._blame_name(place)))
        return tuple(cast("_StageFunction", self._compiler.namespace[name]) for name in names)

    @on_a_whole_stack
    def inserting(self, place: _Place, finish: Callable[[dict[Row, object]], list[Contribution]]) -> Inserting | None:
        """The functions of a term for rows that are only added, if it has such."""
        if self.kept.parts[place[0]].graph.sources[place[1]].anti:
            return None
        ask, add = self._compiler.fresh("ask_"), self._compiler.fresh("add_")
        last = self._compiler.bind(finish, "finish")
        source = self._writer(place).write_inserts(ask, add, self.plan(place), self._blame_name(place), last)
        if source is None:
            return None
        self._compiler.define(source)
        names = self._compiler.namespace
        optional = [names.get(f"{ask}_values"), names.get(f"{ask}_referring")]
        optional += [names.get(f"{add}_known"), names.get(f"{add}_grouped"), self._columns_known(place, add)]
        return Inserting(names[ask], names[add], *optional)  # type: ignore[arg-type]

    def _columns_known(self, place: _Place, add: str) -> _ColumnsKnown | None:
        known = cast("_AddKnown | None", self._compiler.namespace.get(f"{add}_known"))
        if known is None:
            return None
        part = self.kept.parts[place[0]]
        if not self._grouped or part.counter is None or part.weights:
            return lambda rows, found: by_columns(known(rows, found))
        # Every row counts, so no group is without a contribution, and none needs an object of its own.
        collected, key_of = self._compiler.namespace[f"{add}_collected"], self._view_keys.__getitem__

        def columns(rows: Sequence[Row], found: Mapping[object, object]) -> Columns:
            groups: dict[Row, Sequence[Value]] = collected(rows, found)  # type: ignore[operator]
            return list(map(key_of, groups)), list(groups), list(groups.values())

        return columns

    def _writer(self, place: _Place) -> JoinWriter:
        part = self.kept.parts[place[0]]
        emit, grouping = self._emitter(part), self._grouping(part) if self._grouped else None
        return JoinWriter(part.graph, self.tables, self._compiler, self._memos, _needed(part), emit, grouping)

    def _blame_name(self, place: _Place) -> str:
        sources = self.kept.parts[place[0]].graph.sources
        return self._compiler.bind(self._blame(sources[place[1]].table if place[1] < len(sources) else ""), "blame")

    @property
    def component_kinds(self) -> Sequence[str] | None:
        """Of groups: the kinds of their components."""
        return self._layout.kinds if self._grouped else None

    @on_a_whole_stack
    def columns_term(self, place: _Place, law: Law) -> ColumnsTerm:
        """The same for the columns evaluator, whose library is optional."""
        from .evaluators.columns import ColumnsTerm, Emission

        part = self.kept.parts[place[0]]
        emission = Emission(part, self._layout if self._grouped else None, self._emitter(part))
        return ColumnsTerm(self.plan(place, law), self.tables, emission)

    def _emitter(self, part: Part) -> Emit:
        if self._grouped:
            grouping = self._grouping(part)

            def add_up(lines: Lines, compiler: Compiler, m: str) -> None:
                grouping.group(lines, compiler)
                grouping.sums(lines, compiler, m)

            return add_up

        def project(lines: Lines, compiler: Compiler, m: str) -> None:
            m = _weighted(lines, compiler, part, m)
            emit_project(lines, compiler, part.key, cast("Sequence[Expression]", part.values), m)

        return project

    def _grouping(self, part: Part) -> Grouping:
        def group(lines: Lines, compiler: Compiler) -> None:
            emit_group(lines, compiler, self._layout, part)

        def sums(lines: Lines, compiler: Compiler, m: str) -> None:
            emit_sums(lines, compiler, self._layout, part, _weighted(lines, compiler, part, m))

        read = [*part.weights, *(value for value in part.values if value is not None)]
        return Grouping(part.key, {source for each in read for source in sources_of(each)}, group, sums)

    def _blame(self, table_name: str) -> Callable[[DataError, Row | None], DataError]:
        table = None if not table_name or is_hidden(table_name) else self.tables[table_name]

        def blame(error: DataError, row: Row | None) -> DataError:
            where = ""
            if row is not None and table is not None:
                where = f" (row {tuple(row[p] for p in table.key)!r} of table {table.name!r})"
            return DataError(f"view {self._called()!r}{where}: {error.message}", hint=error.hint)

        return blame

    def finish(self) -> Callable[[dict[Row, object]], list[Contribution]]:
        """What the terms collected, as contributions."""
        if not self._grouped:
            return cast("Callable[[dict[Row, object]], list[Contribution]]", self._finish_rows())
        keys, lines = self._compiler.bind(self._view_keys, "view_keys"), Lines()
        nonzero = " or ".join(f"s[{i}]" for i in range(len(self._layout.kinds)))
        with lines.block("def finish(groups):"):
            lines.add(f"return [new(Contribution, ({keys}[g], g, tuple(s))) for g, s in groups.items() if {nonzero}]")
        self._compiler.define(str(lines))
        return cast("Callable[[dict[Row, object]], list[Contribution]]", self._compiler.namespace["finish"])

    def _finish_rows(self) -> Callable[[Collected], list[Contribution]]:
        encode = self.keys.encode_short
        exact = any(output.expression.type.kind in ("float", "decimal") for output in self.kept.outputs)

        def finish(groups: Collected) -> list[Contribution]:
            bags = ((key, flat_bag(changes, exact)) for key, changes in groups.items())
            return [Contribution(encode(key), key, bag) for key, bag in bags if bag]

        return finish

    def refresh(self) -> Refresh:
        if not self._grouped:
            return RefreshRows(len(self.kept.key), len(self.kept.outputs))
        return RefreshGroups(self._compiler, self._layout, len(self.kept.key))

    def readers(self, table: Table) -> tuple[_Multiplicity, _Output, _SourceRow]:
        """Functions of a stored row and the extremes of its group: how often it is shown, what, and as a row of the
        view's table."""
        key_count = len(self.kept.key)
        if self._grouped:
            leaf = aggregate_leaf(self.kept, self._layout, lambda: reader)
        else:
            # An output of kept rows stands where it was stored, behind the key and the multiplicity.
            def leaf(expression: Expression) -> Code:
                assert isinstance(expression, ColumnRef), "outputs of kept rows are computed by the writer"
                return Code(f"row[{key_count + 1 + expression.position}]", expression.type, expression.nullable)

        reader = Compiler(leaf, dict(self._compiler.namespace))
        if self._grouped:
            computed = [*(output.expression for output in self.kept.outputs), *self.kept.having]
            self.fallible = not all(reader.value(expression).safe for expression in computed)
        outputs = [
            reader.value(output.expression).text if self._grouped else f"row[{key_count + 1 + place}]"
            for place, output in enumerate(self.kept.outputs)
        ]
        hidden = [f"row[{n}]" for n, place in enumerate(self.kept.shown_keys) if place is None]
        times = ["times"] if table.columns and table.columns[-1].name == MULTIPLICITY else []
        lines = Lines()
        with lines.block("def output(row, extremes):"):
            lines.add(f"return {_tuple_text(outputs)}")
        with lines.block("def source_row(row, extremes, times):"):
            lines.add(f"return {_tuple_text([*outputs, *hidden, *times])}")
        if self._grouped:
            with lines.block("def multiplicity(row, extremes):"):
                self._emit_multiplicity(lines, reader, key_count)
            with lines.block("def shown(states):"):
                lines.add("rows = []")
                with lines.block("for row in states:"):
                    lines.add(f"if row[{key_count}] <= 0: continue")
                    for condition in self.kept.having:
                        lines.add(f"if not {reader.condition(condition)}: continue")
                    lines.add(f"rows.append({_tuple_text(outputs)})")
                lines.add("return rows")
        reader.define(str(lines))
        names = reader.namespace
        if self.kept.kind == "groups" and not (self.kept.always or self.kept.weighted or self.kept.extremes):
            self.shown = cast("Callable[[Iterable[Row]], list[Row]]", names["shown"])
        if not self._grouped:
            rows = RefreshRows(key_count, len(self.kept.outputs))
            names["multiplicity"] = lambda row, _: rows.multiplicity(row)
        return (
            cast(_Multiplicity, names["multiplicity"]),
            cast(_Output, names["output"]),
            cast(_SourceRow, names["source_row"]),
        )

    def _emit_multiplicity(self, lines: Lines, reader: Compiler, key_count: int) -> None:
        if self.kept.kind == "set":
            lines.add(f"left, right = row[{key_count}], row[{key_count + 1}]")
            lines.add(f"times = {_SET_OPERATIONS[self.kept.operation]}")
        elif self.kept.always:
            lines.add("times = 1")
        else:
            lines.add(f"times = 1 if row[{key_count}] > 0 else 0")
        lines.add("if not times: return 0")
        for condition in self.kept.having:
            lines.add(f"if not {reader.condition(condition)}: return 0")
        lines.add("return times")

    def zero_state(self) -> Row:
        """The stored row of a view without GROUP BY that has no rows."""
        return tuple(cast(Value, eval(text, self._compiler.namespace)) for text in zeros(self._compiler, self._layout))


_Multiplicity: TypeAlias = Callable[[Row, Row], int]
_Output: TypeAlias = Callable[[Row, Row], Row]
_SourceRow: TypeAlias = Callable[[Row, Row, int], Row]

#: A row can be less often there than it was removed, for a moment, while contributions are on their way.
_SET_OPERATIONS = {
    ("intersect", False): "1 if left > 0 and right > 0 else 0",
    ("intersect", True): "max(0, min(left, right))",
    ("except", False): "1 if left > 0 and right <= 0 else 0",
    ("except", True): "max(0, max(0, left) - max(0, right))",
}


def _view_codec(view_id: int, kept: Kept) -> KeyCodec:
    columns = [(field.type, field.nullable) for field in kept.key]
    if kept.kind == "ordered":
        return OrderedKeyCodec(view_id, columns, [(each.descending, each.nulls_first) for each in kept.order])
    return ViewKeyCodec(view_id, columns)


def _tuple_text(texts: Iterable[str]) -> str:
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def _needed(part: Part) -> set[int]:
    expressions = [*part.key, *part.values, *part.weights]
    return _sources(expression for expression in expressions if expression is not None)


def _sources(expressions: Iterable[Expression]) -> set[int]:
    return set().union(*(sources_of(expression) for expression in expressions))
