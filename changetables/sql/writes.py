"""Statements that write, bound to a state of the catalog: which rows, which columns, which values.

Values are converted as PostgreSQL's assignment casts do: more than silently (a float is rounded to an int, anything
becomes text), less than CAST does (text becomes nothing else). Lengths and precisions are left to the column, which
refuses what does not fit; a CAST would cut it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from sqlglot import exp

from .. import coercion
from ..algebra import Field, Output, Project, Relation, column
from ..binding import Scope, Text, Visible, mapped, nearest, nullable, project, references
from ..errors import Error, ProgrammingError, UnsupportedView
from ..expressions import ColumnRef, Expression, Literal
from ..literals import sql_name
from ..schema import Check, Column, Table, Unique
from ..statements import (
    Assignment,
    CheckDefinition,
    ColumnDefinition,
    CreateTable,
    Default,
    Delete,
    Fragment,
    Insert,
    Item,
    Name,
    OnConflict,
    Place,
    Script,
    Select,
    Update,
)
from ..types import Type
from .expressions import Binder
from .parameters import Parameters, ParameterValues
from .query import NO_CTES, Queries, Rows, bind_rows, bind_scalar, bind_select, bind_view
from .subqueries import Subqueries
from .text import SqlText
from .values import ONE_ROW, union_of

#: For errors about names, whose places are known already.
_TEXT = Text("")

#: kind -> the kinds that PostgreSQL assigns it to without a cast; every kind is assigned to text.
_ASSIGNED = {
    "int": ("decimal", "float"),
    "decimal": ("int", "float"),
    "float": ("int", "decimal"),
    "date": ("timestamp", "timestamptz"),
    "timestamp": ("date", "timestamptz"),
    "timestamptz": ("date", "timestamp"),
}


@dataclass(frozen=True, slots=True)
class BoundInsert:
    """`rows` of constants, or a `relation` whose rows are inserted. Both give one value for each of `positions`."""

    table: Table
    positions: tuple[int, ...]
    rows: tuple[tuple[Expression, ...], ...] | None
    relation: Relation | None
    conflict: BoundConflict | None


@dataclass(frozen=True, slots=True)
class BoundConflict:
    """`target`: the key or unique columns whose conflict counts, None for any. `update` None: DO NOTHING.

    The expressions of `update` and `where` read `fields`: the visible columns of the row that is there, then those of
    the one that was to be inserted.
    """

    place: Place
    target: tuple[int, ...] | None
    fields: tuple[Field, ...]
    update: tuple[tuple[int, Expression], ...] | None
    where: Expression | None


@dataclass(frozen=True, slots=True)
class BoundUpdate:
    """The rows of `relation` are the keys of the rows to change, each with the new values of `positions`."""

    table: Table
    positions: tuple[int, ...]
    relation: Relation


@dataclass(frozen=True, slots=True)
class BoundDelete:
    """The rows of `relation` are the keys of the rows to delete."""

    table: Table
    relation: Relation


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column as CREATE TABLE or ADD COLUMN wants it; `default` is an expression without columns."""

    column: Column
    default: Expression | None


def bound_parameters(script: Script, values: ParameterValues | None) -> Parameters:
    """The values of a text's parameters, which must be those that it asks for."""
    parameters = Parameters(() if values is None else values)
    parameters.check(cast(SqlText, script.source))
    return parameters


# --- queries ---


def bound_select(statement: Select, tables: Mapping[str, Table], parameters: Parameters) -> Relation:
    return bind_select(_source(statement.query), _node(statement.query), tables, parameters)


def bound_view(query: Fragment, tables: Mapping[str, Table]) -> Relation:
    """The relation of a view's query, for errors with places in the whole text."""
    return bind_view(_source(query), _node(query), tables)


@contextmanager
def placed_in(query: Fragment) -> Iterator[None]:
    """A plan is made from the text of the query alone: the places of its refusals become those in the whole text."""
    try:
        yield
    except UnsupportedView as error:
        if error.place is None:
            raise
        (first_line, first_column), (line, column) = query.place, error.place
        if line == 1:
            column += first_column - 1
        place = (first_line + line - 1, column)
        raise UnsupportedView(error.reason, place=place, hint=error.hint) from None


def _source(fragment: Fragment) -> SqlText:
    return cast(SqlText, fragment.source)


def _node(fragment: Fragment) -> exp.Expr:
    return cast(exp.Expr, fragment.node)


# --- names ---


def target_table(tables: Mapping[str, Table], name: Name) -> Table:
    """A table that can be written."""
    table = tables.get(name.text)
    if table is None:
        known = [other for other, found in tables.items() if not found.view]
        raise _TEXT.wrong(f"there is no table {name.text!r}", name.place, nearest(name.text, known))
    if table.view:
        message = f"cannot change materialized view {name.text!r}"
        raise _TEXT.wrong(message, name.place, hint="change the tables that it is made of")
    return table


def _position(table: Table, name: Name) -> int:
    position = table.position(name.text)
    if position is None:
        known = [table.columns[visible].name for visible in table.visible()]
        message = f"table {table.name!r} has no column {name.text!r}"
        raise _TEXT.wrong(message, name.place, nearest(name.text, known))
    return position


# --- values ---


def assigned(expression: Expression, target: Column) -> Expression:
    """The expression in the kind of a column, by an assignment cast."""
    if expression.type == coercion.UNKNOWN:
        return coercion.settled(expression, target.type)
    source, kind = expression.type.kind, target.type.kind
    if source == kind:
        return expression
    if kind != "str" and kind not in _ASSIGNED.get(source, ()):
        message = (
            f"column {target.name!r} is of type {sql_name(target.type)} but expression is of type"
            f" {sql_name(expression.type)}"
        )
        raise ProgrammingError(message, hint="add an explicit CAST")
    return coercion.cast(expression, Type(kind))


def _assigned_at(source: SqlText, node: exp.Expr, place: Place, expression: Expression, target: Column) -> Expression:
    try:
        return source.typed(node, assigned, expression, target)
    except Error as error:
        # A parameter or constant has no place of its own; that of its item is known.
        raise (error if " at line " in error.message else source.placed(error, place)) from None


def _default(target: Column) -> Expression:
    """What DEFAULT stands for. NULL is refused with the row if the column may not be NULL."""
    return Literal(target.default, target.type)


def _value(item: Item, binder: Binder, target: Column) -> Expression:
    if isinstance(item, Default):
        return _default(target)
    source, node = _source(item), _node(item)
    bound = (binder if binder.source is source else replace(binder, source=source)).bind(node)
    return _assigned_at(source, node, item.place, bound, target)


# --- INSERT ---


def bound_insert(statement: Insert, tables: Mapping[str, Table], parameters: Parameters) -> BoundInsert:
    table = target_table(tables, statement.table)
    named = statement.columns is not None
    positions = (
        tuple(_position(table, name) for name in statement.columns)
        if statement.columns is not None
        else table.visible()
    )
    rows: tuple[tuple[Expression, ...], ...] | None = None
    relation: Relation | None = None
    if statement.rows is not None:
        positions = _fitting(positions, len(statement.rows[0]), named, statement.place)
        fragments = (item for row in statement.rows for item in row if isinstance(item, Fragment))
        source = next(map(_source, fragments), None) or SqlText("")  # all stand in one text
        binding = _RowBinding(source, table, positions, tables, parameters)
        made = [(binding.row(row, statement.place), binding.subqueries) for row in statement.rows]
        if any(subqueries.found for _, subqueries in made):
            relation = union_of([_with_subqueries(row, positions, table, subqueries) for row, subqueries in made])
        else:
            rows = tuple(row for row, _ in made)
    elif statement.query is not None:
        relation = bind_select(_source(statement.query), _node(statement.query), tables, parameters)
        positions = _fitting(positions, len(relation.fields), named, statement.query.place)
        relation = _assigned_relation(relation, positions, table, statement.query)
    else:
        positions, rows = (), ((),)
    conflict = statement.conflict
    bound = None if conflict is None else _bound_conflict(conflict, statement, table, parameters)
    return BoundInsert(table, positions, rows, relation, bound)


def _fitting(positions: tuple[int, ...], count: int, named: bool, place: Place) -> tuple[int, ...]:
    """The columns that get values: fewer than the table has, if the text does not name them."""
    if count > len(positions):
        raise _TEXT.wrong(
            "INSERT has more expressions than target columns", place, hint="leave values out, or name more columns"
        )
    if named and count < len(positions):
        raise _TEXT.wrong(
            "INSERT has more target columns than expressions", place, hint="give more values, or name fewer columns"
        )
    return positions[:count]


class _RowBinding:
    """Binds rows of VALUES. One binder does for all rows without subqueries: making it takes longer than such a row.

    `subqueries` are those of the row that was bound last."""

    def __init__(
        self,
        source: SqlText,
        table: Table,
        positions: tuple[int, ...],
        tables: Mapping[str, Table],
        parameters: Parameters,
    ) -> None:
        self._source, self._table, self._positions = source, table, positions
        self._tables, self._parameters = tables, parameters
        self._begin()

    def _begin(self) -> None:
        self.subqueries = Subqueries(Queries(self._source, self._tables, self._parameters), Scope(), NO_CTES, 0)
        self._binder = Binder(
            self._source, Scope(), "VALUES", parameters=self._parameters, subqueries=self.subqueries.column
        )

    def row(self, row: tuple[Item, ...], place: Place) -> tuple[Expression, ...]:
        if len(row) != len(self._positions):
            raise _TEXT.wrong(
                "VALUES lists must all be the same length",
                row[0].place if row else place,
                hint="give every row as many values",
            )
        if self.subqueries.found:
            self._begin()
        columns = self._table.columns
        return tuple(
            _value(item, self._binder, columns[position]) for item, position in zip(row, self._positions, strict=True)
        )


def _with_subqueries(
    row: Sequence[Expression], positions: Sequence[int], table: Table, subqueries: Subqueries
) -> Relation:
    names = [table.columns[position].name for position in positions]
    return project(subqueries.applied(ONE_ROW), zip(names, row, strict=True))


def _assigned_relation(relation: Relation, positions: tuple[int, ...], table: Table, query: Fragment) -> Relation:
    """The query with its columns assigned. Quoted literals and NULL that it selects have no type yet, as in VALUES."""
    source = _source(query)
    written: list[Expression] = [column(relation, place) for place in range(len(positions))]
    below = relation
    if isinstance(relation, Project):
        written, below = [_untyped(output.expression) for output in relation.outputs], relation.input
    outputs = []
    for expression, position in zip(written, positions, strict=True):
        target = table.columns[position]
        value = _assigned_at(source, _node(query), query.place, expression, target)
        outputs.append(Output(target.name, value, nullable(value)))
    return Project(below, tuple(outputs))


def _untyped(expression: Expression) -> Expression:
    if isinstance(expression, Literal) and expression.type.kind == "str":
        return Literal(expression.value, coercion.UNKNOWN)
    return expression


def _bound_conflict(conflict: OnConflict, statement: Insert, table: Table, parameters: Parameters) -> BoundConflict:
    target = None
    if conflict.target is not None:
        target = tuple(_position(table, name) for name in conflict.target)
        sets = [set(table.key), *(set(unique.columns) for unique in table.uniques)]
        if set(target) not in sets:
            raise _TEXT.wrong(
                "there is no unique constraint that matches ON CONFLICT",
                conflict.target[0].place,
                hint="name the columns of the primary key or of a UNIQUE constraint",
            )
    fields = tuple(
        Field(table.columns[position].name, table.columns[position].type, table.columns[position].nullable)
        for position in table.visible()
    )
    if conflict.assignments is None:
        return BoundConflict(conflict.place, target, (), None, None)
    alias = (statement.alias or statement.table).text
    first = next(item for assignment in conflict.assignments for item in assignment.values)
    source = _source(first) if isinstance(first, Fragment) else None
    scope = _conflict_scope(alias, fields)
    binder = Binder(source or SqlText(""), scope, "ON CONFLICT DO UPDATE", parameters=parameters)
    update = _assignments(conflict.assignments, table, binder)
    where = None
    if conflict.where is not None:
        inner = replace(binder, source=_source(conflict.where))
        where = inner.condition(_node(conflict.where), "WHERE")
    return BoundConflict(conflict.place, target, fields + fields, update, where)


def _conflict_scope(alias: str, fields: tuple[Field, ...]) -> Scope:
    """The row that is there by the name of its table, and `excluded`, the one that was to be inserted. A bare name is
    of both, so it is ambiguous."""

    def visible(offset: int) -> tuple[Visible, ...]:
        return tuple(
            Visible(field.name, ColumnRef(0, offset + place, field.name, field.type, field.nullable))
            for place, field in enumerate(fields)
        )

    there, proposed = visible(0), visible(len(fields))
    return Scope({alias: there, "excluded": proposed}, there + proposed)


def _assignments(assignments: Sequence[Assignment], table: Table, binder: Binder) -> tuple[tuple[int, Expression], ...]:
    bound = []
    for assignment in assignments:
        for name, item in zip(assignment.columns, assignment.values, strict=True):
            position = _position(table, name)
            bound.append((position, _value(item, binder, table.columns[position])))
    return tuple(bound)


# --- UPDATE and DELETE ---


def bound_update(statement: Update, tables: Mapping[str, Table], parameters: Parameters) -> BoundUpdate:
    table = target_table(tables, statement.table)
    alias = (statement.alias or statement.table).text
    rows = _matching(table, alias, statement.where, tables, parameters)
    changes = _assignments(statement.assignments, table, replace(rows.binder, clause="UPDATE"))
    outputs = [*_key_outputs(table, rows.relation)]
    outputs += [Output(table.columns[position].name, value, nullable(value)) for position, value in changes]
    relation = Project(rows.subqueries.applied(rows.relation), tuple(outputs))
    return BoundUpdate(table, tuple(position for position, _ in changes), relation)


def bound_delete(statement: Delete, tables: Mapping[str, Table], parameters: Parameters) -> BoundDelete:
    table = target_table(tables, statement.table)
    alias = (statement.alias or statement.table).text
    rows = _matching(table, alias, statement.where, tables, parameters)
    return BoundDelete(table, Project(rows.relation, tuple(_key_outputs(table, rows.relation))))


def _matching(
    table: Table, alias: str, where: Fragment | None, tables: Mapping[str, Table], parameters: Parameters
) -> Rows:
    if where is None:
        return bind_rows(SqlText(""), table.name, alias, None, tables, parameters)
    return bind_rows(_source(where), table.name, alias, _node(where), tables, parameters)


def _key_outputs(table: Table, relation: Relation) -> Sequence[Output]:
    """The primary key, hidden or not, of rows as `bind_rows` gives them."""
    kept = [position for position, item in enumerate(table.columns) if not item.dropped]
    outputs = []
    for position in table.key:
        reference = column(relation, kept.index(position))
        outputs.append(Output(reference.name, reference, False))
    return outputs


# --- CREATE TABLE ---


def bound_column(definition: ColumnDefinition, *, in_key: bool = False) -> BoundColumn:
    made = Column(definition.name.text, definition.type, not (definition.not_null or in_key))
    if definition.default is None:
        return BoundColumn(made, None)
    source, node = _source(definition.default), _node(definition.default)
    bound = Binder(source, Scope(), "DEFAULT").bind(node)
    return BoundColumn(made, _assigned_at(source, node, definition.default.place, bound, made))


def bound_checks(statement: CreateTable, columns: Sequence[Column]) -> tuple[Check, ...]:
    """The CHECK constraints over the physical columns, which may begin with a hidden one."""
    shown = [position for position, item in enumerate(columns) if not item.hidden]
    fields = tuple(Field(columns[p].name, columns[p].type, columns[p].nullable) for p in shown)
    names = {check.name for check in statement.checks if check.name}
    made: list[Check] = []
    for definition in statement.checks:
        condition = mapped(
            _condition(definition, fields, statement.name.text),
            lambda reference: replace(reference, position=shown[reference.position]),
        )
        name = definition.name or _free_name(_check_name(statement.name.text, condition), names)
        if name in {check.name for check in made}:
            message = f'constraint "{name}" for table "{statement.name.text}" already exists'
            raise _TEXT.wrong(message, definition.condition.place, hint="choose another name, or leave it out")
        names.add(name)
        made.append(Check(name, condition, definition.condition.text))
    return tuple(made)


def _condition(definition: CheckDefinition, fields: Sequence[Field], table: str) -> Expression:
    fragment = definition.condition
    source, node = _source(fragment), _node(fragment)
    bound = bind_scalar(node, fields, source, alias=table, clause="CHECK")
    return source.typed(node, coercion.condition, bound, "CHECK")


def _check_name(table: str, condition: Expression) -> str:
    """PostgreSQL's: with the column, if there is only one."""
    used = {reference.name for reference in references(condition)}
    return f"{table}_{used.pop()}_check" if len(used) == 1 else f"{table}_check"


def bound_uniques(statement: CreateTable, columns: Sequence[Column]) -> tuple[Unique, ...]:
    positions = {item.name: position for position, item in enumerate(columns) if not item.hidden}
    names = {unique.name for unique in statement.uniques if unique.name}
    made: list[Unique] = []
    for definition in statement.uniques:
        wanted = tuple(positions[name.text] for name in definition.columns)
        written = "_".join(name.text for name in definition.columns)
        name = definition.name or _free_name(f"{statement.name.text}_{written}_key", names)
        if name in {unique.name for unique in made}:
            message = f'constraint "{name}" for table "{statement.name.text}" already exists'
            raise _TEXT.wrong(message, definition.columns[0].place, hint="choose another name, or leave it out")
        names.add(name)
        if wanted not in [unique.columns for unique in made]:
            made.append(Unique(name, wanted))
    return tuple(made)


def _free_name(name: str, taken: set[str]) -> str:
    """PostgreSQL appends a number to a name that is taken."""
    number, found = 0, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found
