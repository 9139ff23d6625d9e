"""From names to a Definition: scopes, sources and join conditions, grouping. What SQL and the builder share.

Nothing here knows how a text is parsed; `sql` brings bound expressions and the places where they stand.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from . import coercion
from .definition import Definition, Equality, Output, Source
from .errors import Error, ProgrammingError, UnsupportedView
from .expressions import Aggregate, Call, ColumnRef, Expression, GroupKey
from .literals import sql_name
from .schema import Table

#: Line and column in the text, both from 1.
Place: TypeAlias = tuple[int, int]

_ASCII_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def fold(name: str) -> str:
    """How an unquoted identifier is looked up. Only ASCII letters fold, as in PostgreSQL with UTF-8."""
    return name.translate(_ASCII_FOLD)


class Text:
    """A text of the user, for errors that say where. `label` says which part of a builder's query it is."""

    def __init__(self, text: str, label: str = "") -> None:
        self.text = text
        self.label = label

    def place_of_offset(self, offset: int) -> Place:
        return self.text.count("\n", 0, offset) + 1, offset - self.text.rfind("\n", 0, offset)

    def wrong(self, message: str, place: Place | None, hint: str = "") -> ProgrammingError:
        return ProgrammingError(f"{message}{self.where(place)}", hint=hint)

    def where(self, place: Place | None) -> str:
        position = f" at line {place[0]}, column {place[1]}" if place else ""
        return f"{position} of {self.label}" if self.label else position

    def unsupported(self, reason: str, place: Place | None, hint: str = "") -> UnsupportedView:
        return UnsupportedView(f"{reason} in {self.label}" if self.label else reason, place=place, hint=hint)

    def placed(self, error: Error, place: Place | None) -> Error:
        """The same error, with the place that the rules of typing do not know."""
        if isinstance(error, UnsupportedView):
            return self.unsupported(error.reason, place, error.hint)
        return type(error)(f"{error.message}{self.where(place)}", hint=error.hint)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: names like the one that was not found, else the names that there are."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {', '.join(names[:20])}" if names else ""


# --- names ---


@dataclass(frozen=True, slots=True)
class Visible:
    """A column as `*` shows it and as a bare name finds it."""

    name: str
    reference: ColumnRef


@dataclass(frozen=True, slots=True)
class Scope:
    """What can be named at one place of the text. `sources` maps an alias to its columns."""

    sources: Mapping[str, tuple[Visible, ...]]
    columns: tuple[Visible, ...]

    def named(self, name: str) -> list[ColumnRef]:
        return [column.reference for column in self.columns if column.name == name]


NO_SCOPE = Scope({}, ())


def table_scope(source: int, alias: str, table: Table) -> Scope:
    columns = tuple(
        Visible(column.name, ColumnRef(source, position, column.name, column.type, column.nullable))
        for position in table.visible()
        for column in (table.columns[position],)
    )
    return Scope({alias: columns}, columns)


def side_by_side(left: Scope, right: Scope) -> Scope:
    return Scope({**left.sources, **right.sources}, left.columns + right.columns)


def find_source(source: Text, scope: Scope, alias: str, place: Place | None) -> tuple[Visible, ...]:
    columns = scope.sources.get(alias)
    if columns is None:
        hint = nearest(alias, scope.sources) + "; an alias hides the name of its table"
        raise source.wrong(f"no table {alias} here in FROM", place, hint)
    return columns


# --- FROM ---


@dataclass(slots=True)
class From:
    """Collects sources and join conditions. Shared by SQL and the builder."""

    tables: Mapping[str, Table]
    views: Collection[str] = ()
    sources: list[Source] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)
    equalities: list[Equality] = field(default_factory=list)
    filters: list[Expression] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)

    def add(self, source: Text, name: str, alias: str, place: Place | None) -> Scope:
        table = self.tables.get(name)
        if name in self.views:
            raise source.unsupported(f"a view on a view ({name})", place, "define it over the base tables")
        if table is None:
            raise source.wrong(f"unknown table {name}", place, nearest(name, self.tables))
        if any(other.alias == alias for other in self.sources):
            hint = "give each use of a table its own alias"
            raise source.wrong(f"table name {alias} specified more than once", place, hint)
        self.sources.append(Source(name, alias))
        self.places.append(place)
        return table_scope(len(self.sources) - 1, alias, table)

    def require(self, condition: Expression) -> None:
        """Takes one condition of ON, USING or WHERE: an equality that keys can serve, or a filter."""
        columns = coercion.join_columns(condition)
        if columns is None:
            self._note_conversion(condition)
            self.filters.append(condition)
            return
        equality = Equality(*columns)
        if equality not in self.equalities:
            self.equalities.append(equality)

    def _note_conversion(self, condition: Expression) -> None:
        if not isinstance(condition, Call) or condition.op != "=":
            return
        columns = [_uncast(argument) for argument in condition.args]
        types = [sql_name(column.type) for column in columns if isinstance(column, ColumnRef)]
        if len(types) == 2 and types[0] != types[1]:
            self.converted.append(f"an equality of {types[0]} and {types[1]} cannot be looked up by key")

    def check_connected(self, source: Text) -> None:
        """Every source is reached from the first one through equalities."""
        reached, grown = {0}, True
        while grown:
            edges = [{equality.left.source, equality.right.source} for equality in self.equalities]
            new = {side for edge in edges if edge & reached for side in edge} - reached
            reached |= new
            grown = bool(new)
        for index in range(len(self.sources)):
            if index not in reached:
                reason = "joins without any equality (a change would touch every row)"
                hint = (
                    self.converted[0] if self.converted else f"add a condition {self.sources[index].alias}.x = other.y"
                )
                raise source.unsupported(reason, self.places[index], hint)


def _uncast(expression: Expression) -> Expression:
    while isinstance(expression, Call) and expression.op == "cast":
        expression = expression.args[0]
    return expression


# --- outputs and groups ---


@dataclass(frozen=True, slots=True)
class Item:
    """One output before grouping."""

    name: str
    expression: Expression
    place: Place | None


def define(source: Text, collected: From, keys: tuple[Expression, ...] | None, items: Sequence[Item]) -> Definition:
    """The definition of bound parts: decides whether it is an aggregate view, and checks its outputs."""
    if keys is None and any(_has_aggregate(item.expression) for item in items):
        keys = ()
    outputs: list[Output] = []
    names: set[str] = set()
    for item in items:
        expression = item.expression
        if keys is not None:
            expression = _over_groups(source, expression, keys, item.place)
        if item.name in names:
            raise source.wrong(f"two outputs named {item.name}", item.place, hint="give one of them an alias with AS")
        names.add(item.name)
        outputs.append(Output(item.name, expression, expression.type))
    return Definition(
        sources=tuple(collected.sources),
        equalities=tuple(collected.equalities),
        filters=tuple(collected.filters),
        group_by=keys,
        outputs=tuple(outputs),
    )


def _has_aggregate(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return any(_has_aggregate(argument) for argument in expression.args)
    return isinstance(expression, Aggregate)


def _over_groups(source: Text, expression: Expression, keys: tuple[Expression, ...], place: Place | None) -> Expression:
    """The expression in terms of group keys and aggregates: what an output of an aggregate view may use."""
    if expression in keys:
        return GroupKey(keys.index(expression), expression.type)
    if isinstance(expression, Call):
        args = tuple(_over_groups(source, argument, keys, place) for argument in expression.args)
        return Call(expression.op, args, expression.type)
    if isinstance(expression, ColumnRef):
        message = f"column {expression.name} must appear in GROUP BY or be used in an aggregate"
        raise source.wrong(message, place, hint=f"add {expression.name} to GROUP BY")
    return expression


def add_key(source: Text, keys: list[Expression], key: Expression, place: Place | None) -> None:
    if _has_aggregate(key):
        raise source.wrong("aggregate functions are not allowed in GROUP BY", place)
    if key.type.kind == "json":
        raise source.unsupported("comparison and grouping of json values", place)
    if key not in keys:
        keys.append(key)
