"""Plans: everything that is known about one view before any data, compiled once to Python functions.

A plan propagates base change tables to the view's change table (`propagate`), applies that to view rows (`refresh`)
and reads view rows (`output`). It never reads by itself: what it needs it asks for with `LookUp`s, in batches, and is
sent the rows. The laws are in `operators/`, one a file; here they are put together:

    □V = aggregate or project ( join ( select (□B) ) )
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from .change_table import Change
from .compiler import Code, Compiler, Lines, column_leaf, sources_of
from .definition import Definition
from .errors import DataError, InterfaceError, ProgrammingError
from .expressions import Aggregate, ColumnRef, Expression, GroupKey, Literal
from .keys import KeyCodec, key_codec
from .operators.aggregate import Layout, aggregate_leaf, emit_aggregate, layout_of, zeros
from .operators.join import JoinWriter, KeyMemo, Law, LookUp, State, Step, Term, plan_term
from .operators.project import Collected, emit_collect, emit_project, flat_bag, tuple_source
from .refresh import Contribution, Refresh, RefreshGroups, RefreshRows
from .rows import coerce
from .schema import Column, Table
from .types import Row, Type, Value

__all__ = ["Answers", "Contribution", "LookUp", "State", "ViewPlan", "compile_view", "needed_indexes"]

_T = TypeVar("_T")
#: One answer per look-up, with one entry per key: Row | None by primary key, list[Row] by index.
Answers: TypeAlias = Sequence[Sequence[object]]
#: Yields batches of look-ups, is sent the answers.
Asking: TypeAlias = Generator[list[LookUp], Answers, _T]
KeyColumn: TypeAlias = tuple[str, Type, bool]
#: The generated function of a term: a generator if the term looks rows up.
_TermFunction: TypeAlias = Callable[[Sequence[Change], object], Asking[None] | None]


class ViewPlan:
    """The compiled plan of one view.

    `columns`: the outputs (name, type). `key_columns`: the key of the view (name, type, nullable): what it is grouped
    by, or the primary keys of all sources for plain rows. `needed_indexes`: (table, column positions) that look-ups go
    through.
    """

    def __init__(self, name: str, view_id: int, definition: Definition, tables: Mapping[str, Table]) -> None:
        self.name, self.view_id, self.definition = name, view_id, definition
        self.tables = tuple(dict.fromkeys(source.table for source in definition.sources))
        self.columns = tuple((output.name, output.type) for output in definition.outputs)
        self.needed_indexes = needed_indexes(definition, tables)
        builder = _Builder(name, view_id, definition, tables)
        self.key_columns, self.keys = builder.key_columns, builder.keys
        self._builder = builder
        self._sources = tuple(source.table for source in definition.sources)
        self._terms: dict[tuple[int, Law], tuple[_TermFunction, bool]] = {
            (number, Law.ONE_SOURCE): builder.term(number, Law.ONE_SOURCE) for number in range(len(self._sources))
        }
        self._readers: dict[int, tuple[_TermFunction, bool]] = {}
        self._finish, self._output = builder.finish(), builder.output()
        #: Whether `output` may raise DataError: then a writer looks at it before the commit.
        self.fallible = definition.group_by is not None and any(_may_fail(o.expression) for o in definition.outputs)
        self._refresh: Refresh = builder.refresh()
        self.refresh, self.present = self._refresh.refresh, self._refresh.present

    # --- maintenance ---

    def propagate(self, changes: Mapping[str, Sequence[Change]]) -> Asking[list[Contribution]]:
        """The view's change table for the change tables of its base tables, by table name.

        Yields batches of look-ups, is sent one list per look-up, and returns at most one contribution per view key,
        none that is zero.
        """
        changed = [number for number, table in enumerate(self._sources) if changes.get(table)]
        groups: dict[Row, object] = {}
        if len(changed) == 1:
            yield from self._run(changed[0], Law.ONE_SOURCE, changes[self._sources[changed[0]]], groups)
        elif changed:
            yield from _in_lock_step(self._several(changed, changes, groups))
        return self._finish(groups)

    def _several(
        self, changed: Sequence[int], changes: Mapping[str, Sequence[Change]], groups: dict[Row, object]
    ) -> list[Asking[None]]:
        """The terms of a transaction that changes several sources."""
        terms = []
        for number in changed:
            rows = changes[self._sources[number]]
            removed, added = [row for row in rows if row[1] < 0], [row for row in rows if row[1] > 0]
            if removed:
                terms.append(self._run(number, Law.REMOVED, removed, groups))
            if added:
                terms.append(self._run(number, Law.ADDED, added, groups))
        return terms

    def _run(self, source: int, law: Law, rows: Sequence[Change], groups: dict[Row, object]) -> Asking[None]:
        compiled = self._terms.get((source, law))
        if compiled is None:
            self._terms[source, law] = compiled = self._builder.term(source, law)
        term, looks_up = compiled
        started = term(rows, groups)
        if looks_up:
            yield from cast("Asking[None]", started)

    def combine(self, first: Contribution, second: Contribution) -> Contribution | None:
        """Two contributions to one key as one, None if they cancel out."""
        delta = self._refresh.add(first.delta, second.delta)
        return None if delta is None else first._replace(delta=delta)

    def negate(self, contribution: Contribution) -> Contribution:
        """The contribution that takes this one back: value at T = value now - contributions above T."""
        return contribution._replace(delta=self._refresh.negate(contribution.delta))

    # --- reading ---

    def output(self, row: Row) -> Row:
        """The output columns of a stored view row; averages and expressions over aggregates are computed here."""
        try:
            return self._output(row)
        except DataError as error:
            key = row[: len(self.key_columns)]
            raise DataError(f"view {self.name!r}, row {key!r}: {error.message}", hint=error.hint) from error

    def empty_output(self) -> Row | None:
        """What an aggregate view without GROUP BY shows when nothing is stored: it always has one row."""
        return self.output(self._builder.zero_state()) if self.definition.group_by == () else None

    def key_of(self, key: object) -> bytes:
        """The stored key for a user's key: a value, a tuple in key order, or a mapping of the key columns."""
        values = _key_values(self.name, self.key_columns, key)
        coerced = [
            coerce(Column(name, type, nullable), value, f"{self.name}.{name}")
            for (name, type, nullable), value in zip(self.key_columns, values, strict=True)
        ]
        return self.keys.encode_short(tuple(coerced))

    def bound_of(self, key: object) -> bytes:
        """The bound of a scan for a user's key, which may have the first values of a composite key only."""
        if not isinstance(key, tuple | list) or len(key) >= len(self.key_columns):
            return self.key_of(key)
        coerced = [
            coerce(Column(name, type, nullable), value, f"{self.name}.{name}")
            for (name, type, nullable), value in zip(self.key_columns, key, strict=False)
        ]
        return self.keys.encode_prefix_short(tuple(coerced))

    def join_from(self, source: int, rows: list[Row]) -> Asking[list[Row]]:
        """The outputs over just these rows of one source, with all other sources before the transaction."""
        if source not in self._readers:
            plain_rows = self.definition.group_by is None
            self._readers[source] = self._builder.term(source, Law.ONE_SOURCE, collect=plain_rows)
        reader, looks_up = self._readers[source]
        found: object = [] if self.definition.group_by is None else {}
        started = reader([(row, 1) for row in rows], found)
        if looks_up:
            yield from cast("Asking[None]", started)
        if isinstance(found, list):
            return found
        contributions = self._finish(cast("dict[Row, object]", found))
        stored = (self.refresh(None, contribution) for contribution in contributions)
        outputs = [self.output(row) for row in stored if row is not None]
        empty = self.empty_output()
        return [empty] if not outputs and empty is not None else outputs

    def contribute_from(self, source: int, rows: list[Row]) -> Asking[list[Contribution]]:
        """The contributions of just these rows of one source, with all other sources as they are: the contents of a
        new view are the sum of this over all rows of one source."""
        groups: dict[Row, object] = {}
        yield from self._run(source, Law.ONE_SOURCE, [(row, 1) for row in rows], groups)
        return self._finish(groups)

    def explain(self) -> str:
        """The propagation plan as a tree: for each source that may change, its look-ups in order."""
        kind = "plain rows" if self.definition.group_by is None else "groups"
        lines = [f"view {self.name}: {kind}, key ({', '.join(name for name, _, _ in self.key_columns)})"]
        for number, source in enumerate(self.definition.sources):
            lines.append(f"change of {source.table} {source.alias}")
            for place, stage in enumerate(self._builder.plan(number).stages, start=1):
                lines += [f"  {place}. {self._explain_step(step)}" for step in stage]
        return "\n".join(lines)

    def _explain_step(self, step: Step) -> str:
        source = self.definition.sources[step.source]
        table = self._builder.tables[source.table]
        names = [table.columns[position].name for position in step.columns]
        probes = [f"{self.definition.sources[probe.source].alias}.{probe.name}" for probe in step.probes]
        through = "primary key" if step.by_key else "index"
        equal = " and ".join(f"{name} = {probe}" for name, probe in zip(names, probes, strict=True))
        return f"{source.table} {source.alias} by {through} ({', '.join(names)}): {equal}"


def compile_view(name: str, view_id: int, definition: Definition, tables: Mapping[str, Table]) -> ViewPlan:
    """Compile the plan of a view. The indexes that `needed_indexes` names must exist and be ready."""
    return ViewPlan(name, view_id, definition, tables)


def needed_indexes(definition: Definition, tables: Mapping[str, Table]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The (table, column positions) that look-ups go through and that are no primary key, existing or not."""
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for source in range(len(definition.sources)):
        for stage in plan_term(definition, tables, source).stages:
            for step in stage:
                if not step.by_key:
                    found[definition.sources[step.source].table, step.columns] = None
    return tuple(found)


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
        raise InterfaceError(f"the key of view {view!r} has {len(names)} columns, got {len(values)} values", hint=hint)
    return values


# --- compilation ---


class _Builder:
    """Makes the functions of one plan. All generated code of a view shares one namespace."""

    def __init__(self, name: str, view_id: int, definition: Definition, tables: Mapping[str, Table]) -> None:
        self.name, self.definition = name, definition
        self.tables = {source.table: tables[source.table] for source in definition.sources}
        namespace: dict[str, object] = {
            "DataError": DataError,
            "LookUp": LookUp,
            "Contribution": Contribution,
            # Half the time of calling Contribution, ten times per transaction.
            "new": tuple.__new__,
        }
        self._compiler = Compiler(self._column, namespace)
        self._memos: dict[tuple[str, int | None], str] = {}
        self._key = _row_key(definition, self.tables) if definition.group_by is None else definition.group_by
        self._layout = Layout() if definition.group_by is None else layout_of(definition, self._compiler)
        self.key_columns = self._key_columns()
        self.keys: KeyCodec = key_codec(view_id, [(type, nullable) for _, type, nullable in self.key_columns])
        self._view_keys = KeyMemo(self.keys.encode_short, single=False)

    def _column(self, expression: Expression) -> Code:
        """A column of a primary key is never NULL, whatever it was declared as."""
        code = column_leaf(expression)
        assert isinstance(expression, ColumnRef), "column_leaf refuses anything else"
        table = self.tables[self.definition.sources[expression.source].table]
        if expression.position in table.key:
            return Code(code.text, code.type, simple=True)
        return code

    def _key_columns(self) -> tuple[KeyColumn, ...]:
        names: list[str] = []
        for number, expression in enumerate(self._key):
            names.append(_key_name(self.definition, number, expression, names))
        return tuple(
            (name, expression.type, self._compiler.value(expression).nullable)
            for name, expression in zip(names, self._key, strict=True)
        )

    def plan(self, source: int, law: Law = Law.ONE_SOURCE) -> Term:
        return plan_term(self.definition, self.tables, source, law)

    def term(self, source: int, law: Law, *, collect: bool = False) -> tuple[_TermFunction, bool]:
        """The function of a term, and whether it looks rows up. `collect`: output rows instead of contributions, for
        reading plain rows."""
        plan = self.plan(source, law)
        if collect:
            emit, needed = self._emit_collect, _sources(output.expression for output in self.definition.outputs)
        else:
            emit, needed = self._emit, self._needed()
        writer = JoinWriter(self.definition, self.tables, self._compiler, self._memos, needed, emit)
        name = self._compiler.fresh("term_")
        blame = self._compiler.bind(self._blame(source), "blame")
        self._compiler.define(writer.write(name, plan, blame))
        return cast(_TermFunction, self._compiler.namespace[name]), bool(plan.stages)

    def _needed(self) -> set[int]:
        if self.definition.group_by is None:
            return set(range(len(self.definition.sources)))
        return _sources([*self.definition.group_by, *(slots.argument for slots in self._layout.slots.values())])

    def _emit(self, lines: Lines, compiler: Compiler) -> None:
        if self.definition.group_by is None:
            key = cast("Sequence[ColumnRef]", self._key)
            emit_project(lines, compiler, key, [output.expression for output in self.definition.outputs])
        else:
            emit_aggregate(lines, compiler, self._layout, self.definition.group_by)

    def _emit_collect(self, lines: Lines, compiler: Compiler) -> None:
        emit_collect(lines, compiler, [output.expression for output in self.definition.outputs])

    def _blame(self, source: int) -> Callable[[DataError, Row | None], DataError]:
        table = self.tables[self.definition.sources[source].table]

        def blame(error: DataError, row: Row | None) -> DataError:
            where = "" if row is None else f" (row {tuple(row[p] for p in table.key)!r} of table {table.name!r})"
            return DataError(f"view {self.name!r}{where}: {error.message}", hint=error.hint)

        return blame

    def finish(self) -> Callable[[dict[Row, object]], list[Contribution]]:
        """What the terms collected, as contributions."""
        if self.definition.group_by is None:
            return cast("Callable[[dict[Row, object]], list[Contribution]]", self._finish_rows())
        keys, lines = self._compiler.bind(self._view_keys, "view_keys"), Lines()
        nonzero = " or ".join(f"s[{i}]" for i in range(len(self._layout.kinds)))
        with lines.block("def finish(groups):"):
            lines.add(f"return [new(Contribution, ({keys}[g], g, tuple(s))) for g, s in groups.items() if {nonzero}]")
        self._compiler.define(str(lines))
        return cast("Callable[[dict[Row, object]], list[Contribution]]", self._compiler.namespace["finish"])

    def _finish_rows(self) -> Callable[[Collected], list[Contribution]]:
        encode = self.keys.encode_short
        identical = _identical if any(o.type.kind in ("float", "decimal") for o in self.definition.outputs) else _equal

        def finish(groups: Collected) -> list[Contribution]:
            bags = ((key, flat_bag(changes, identical)) for key, changes in groups.items())
            return [Contribution(encode(key), key, bag) for key, bag in bags if bag]

        return finish

    def refresh(self) -> Refresh:
        if self.definition.group_by is None:
            return RefreshRows(len(self._key), len(self.definition.outputs))
        return RefreshGroups(self._compiler, self._layout, len(self._key))

    def output(self) -> Callable[[Row], Row]:
        if self.definition.group_by is None:
            start = len(self._key) + 1
            return lambda row: row[start:]
        nullable = [column[2] for column in self.key_columns]
        reader = Compiler(aggregate_leaf(self._layout, nullable, lambda: reader), dict(self._compiler.namespace))
        lines = Lines()
        with lines.block("def output(row):"):
            lines.add(f"return {tuple_source(reader.value(output.expression) for output in self.definition.outputs)}")
        reader.define(str(lines))
        return cast("Callable[[Row], Row]", reader.namespace["output"])

    def zero_state(self) -> Row:
        """The stored row of a view without GROUP BY that has no rows."""
        return tuple(cast(Value, eval(text, self._compiler.namespace)) for text in zeros(self._compiler, self._layout))


def _may_fail(shown: Expression) -> bool:
    """Counts, keys, averages and exact sums always have a value; a sum of floats may be out of range."""
    if isinstance(shown, Aggregate):
        return shown.kind == "sum" and shown.type.kind == "float"
    return not isinstance(shown, GroupKey | Literal)


def _equal(old: Row, new: Row) -> bool:
    return old == new


def _identical(old: Row, new: Row) -> bool:
    """-0.0 equals 0.0 and 1.0 equals 1.00, but a view shows the one that its base table shows."""
    return old == new and repr(old) == repr(new)


def _sources(expressions: Iterable[Expression]) -> set[int]:
    return set().union(*(sources_of(expression) for expression in expressions))


def _row_key(definition: Definition, tables: Mapping[str, Table]) -> tuple[ColumnRef, ...]:
    """The primary keys of all sources: what makes a joined row one row."""
    key: list[ColumnRef] = []
    for number, source in enumerate(definition.sources):
        table = tables[source.table]
        for position in table.key:
            column = table.columns[position]
            key.append(ColumnRef(number, position, column.name, column.type, nullable=False))
    return tuple(key)


def _key_name(definition: Definition, number: int, expression: Expression, taken: Sequence[str]) -> str:
    """What a user calls a key column: its output if it is shown as it is, else the column, else its place."""
    for output in definition.outputs:
        shown = output.expression
        if isinstance(shown, GroupKey):
            is_key = definition.group_by is not None and shown.index == number
        else:
            is_key = (
                isinstance(shown, ColumnRef)
                and isinstance(expression, ColumnRef)
                and ((shown.source, shown.position) == (expression.source, expression.position))
            )
        if is_key and output.name not in taken:
            return output.name
    if not isinstance(expression, ColumnRef):
        return f"key_{number + 1}"
    outputs = {output.name for output in definition.outputs}
    if len(definition.sources) == 1 and expression.name not in outputs and expression.name not in taken:
        return expression.name
    return f"{definition.sources[expression.source].alias}.{expression.name}"
