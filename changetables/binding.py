"""From names to relations: scopes, joins, groups, outputs. What SQL and the builder share.

Nothing here knows how a text is parsed; the package `sql` brings bound expressions and the places where they stand.

While a query is being bound, `ColumnRef.source` says what a reference reads: 0 the rows of the query itself, 1 those of
the query around it, and the negative numbers below the parts of its groups. A finished relation has only 0.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from . import coercion
from .algebra import Field, Filter, Group, Join, Output, Project, Relation, Scan
from .errors import JSON_HINT, SYNTAX_HINT, UNSUPPORTED_HINT, Error, ProgrammingError, UnsupportedView
from .expressions import Aggregate, Call, ColumnRef, Expression, Literal
from .functions import NEVER_NULL, STRICT_OPERATORS
from .schema import Table
from .types import BOOL, DECIMAL, FLOAT, INT, STR, Type

#: Line and column in the text, both from 1.
Place: TypeAlias = tuple[int, int]

#: Sources of references to the keys and the aggregates of a group that is still being collected.
KEY_SOURCE = -1
AGGREGATE_SOURCE = -2

_ASCII_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def fold(name: str) -> str:
    """How an unquoted identifier is looked up. Only ASCII letters fold, as in PostgreSQL with UTF-8."""
    return name.translate(_ASCII_FOLD)


class Text:
    """A text of the user, for errors that say where. `label` says which part of a builder's query it is."""

    def __init__(self, text: str, label: str = "") -> None:
        self.text = text
        self.label = label
        self._line_starts: list[int] | None = None

    @property
    def line_starts(self) -> list[int]:
        """The offset of each line. Found once: a long text has a place for each of its values."""
        if self._line_starts is None:
            self._line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        return self._line_starts

    def place_of_offset(self, offset: int) -> Place:
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def wrong(self, message: str, place: Place | None, hint: str = SYNTAX_HINT) -> ProgrammingError:
        """Without a hint of its own it is an error of syntax."""
        return ProgrammingError(f"{message}{self.where(place)}", hint=hint)

    def where(self, place: Place | None) -> str:
        position = f" at line {place[0]}, column {place[1]}" if place else ""
        return f"{position} of {self.label}" if self.label else position

    def unsupported(self, reason: str, place: Place | None, hint: str = "") -> UnsupportedView:
        return UnsupportedView(
            f"{reason} in {self.label}" if self.label else reason, place=place, hint=hint or UNSUPPORTED_HINT
        )

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
    return f"known: {', '.join(names[:20])}" if names else "there are none"


# --- expressions ---


def nullable(expression: Expression) -> bool:
    """Whether the value may be NULL. False is certain, True is not."""
    if isinstance(expression, Literal):
        return expression.value is None
    if isinstance(expression, ColumnRef):
        return expression.nullable
    if expression.op in NEVER_NULL:
        return False
    if expression.op == "coalesce":
        return all(map(nullable, expression.args))
    if expression.op == "case":
        return any(map(nullable, (*expression.args[1::2], expression.args[-1])))
    return expression.op not in STRICT_OPERATORS or any(map(nullable, expression.args))


def mapped(expression: Expression, leaf: Callable[[ColumnRef], Expression]) -> Expression:
    """The expression with every reference replaced."""
    if isinstance(expression, ColumnRef):
        return leaf(expression)
    if isinstance(expression, Call):
        return Call(expression.op, tuple(mapped(argument, leaf) for argument in expression.args), expression.type)
    return expression


def references(expression: Expression) -> Iterable[ColumnRef]:
    if isinstance(expression, ColumnRef):
        yield expression
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from references(argument)


def find(expression: Expression, among: Sequence[Expression]) -> int | None:
    """Where the same expression stands. Equal values are not enough: 1.0 and 1.00 are different literals."""
    for index, other in enumerate(among):
        if other == expression and repr(other) == repr(expression):
            return index
    return None


def all_of(conditions: Sequence[Expression]) -> Expression | None:
    return coercion.balanced("and", conditions) if conditions else None


def filtered(relation: Relation, conditions: Sequence[Expression]) -> Relation:
    condition = all_of(conditions)
    return relation if condition is None else Filter(relation, condition)


# --- names ---


@dataclass(frozen=True, slots=True)
class Visible:
    """A column as `*` shows it and as a bare name finds it. The merged column of a FULL JOIN is a COALESCE."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Base:
    """A table among the inputs: its columns are the fields from `start` on, at these positions of the table."""

    start: int
    table: Table
    positions: tuple[int, ...]

    def determined_by(self, keys: Sequence[Expression]) -> bool:
        """Whether the keys hold its whole primary key, and so determine each of its columns."""
        grouped = {key.position for key in keys if isinstance(key, ColumnRef) and key.source == 0}
        places = [self.positions.index(position) for position in self.table.key if position in self.positions]
        complete = len(places) == len(self.table.key)
        return complete and bool(places) and all(self.start + place in grouped for place in places)

    def holds(self, position: int) -> bool:
        return self.start <= position < self.start + len(self.positions)


@dataclass(frozen=True, slots=True)
class Scope:
    """What can be named at one place of the text. `sources` maps an alias to its columns; `outer` is the scope of the
    query around this one, whose columns may be named anywhere if it is `free`."""

    sources: Mapping[str, tuple[Visible, ...]] = field(default_factory=dict)
    columns: tuple[Visible, ...] = ()
    bases: tuple[Base, ...] = ()
    outer: Scope | None = None
    free: bool = False

    def named(self, name: str) -> list[Expression]:
        return [column.expression for column in self.columns if column.name == name]


@dataclass(frozen=True, slots=True)
class FromItem:
    """A relation with the names of its columns. `fields` are those of the relation, which a deep join makes anew at
    every look."""

    relation: Relation
    scope: Scope
    fields: tuple[Field, ...]


def scan(table: Table, alias: str, place: Place | None = None) -> Scan:
    positions = table.visible()
    return Scan(table.name, alias, positions, tuple(_field(table, position) for position in positions), place)


def _field(table: Table, position: int) -> Field:
    column = table.columns[position]
    # The key of a view can be NULL, that of a table cannot.
    return Field(column.name, column.type, column.nullable and (table.view or position not in table.key))


def table_item(
    table: Table, name: str, alias: str, column_names: Sequence[str] = (), place: Place | None = None
) -> FromItem:
    """A table of FROM. `name` is that of the mapping, under which others look it up."""
    relation = replace(scan(table, alias, place), table=name)
    item = named_item(relation, alias, column_names)
    base = Base(0, table, relation.positions)
    return FromItem(relation, replace(item.scope, bases=(base,)), relation.fields)


def named_item(relation: Relation, alias: str, column_names: Sequence[str] = ()) -> FromItem:
    """A relation under an alias; its first columns take the given names."""
    names = [*column_names, *(field.name for field in relation.fields[len(column_names) :])]
    columns = tuple(
        Visible(name, ColumnRef(0, position, name, field.type, field.nullable))
        for position, (name, field) in enumerate(zip(names, relation.fields, strict=True))
    )
    return FromItem(relation, Scope({alias: columns}, columns), relation.fields)


def side_by_side(left: FromItem, right: FromItem) -> Scope:
    """What a join's condition may name: both sides, before rows are padded with NULL."""
    return _joined_scope("inner", left, right)


def joined(kind: str, left: FromItem, right: FromItem, condition: Expression | None) -> FromItem:
    relation = Join(kind, left.relation, right.relation, condition)
    fields = _padded(left.fields, kind in _PADS_LEFT) + _padded(right.fields, kind in _PADS_RIGHT)
    return FromItem(relation, _joined_scope(kind, left, right), fields)


_PADS_LEFT = ("right", "full")
_PADS_RIGHT = ("left", "full")


def _padded(fields: tuple[Field, ...], padded: bool) -> tuple[Field, ...]:
    return tuple(replace(field, nullable=True) for field in fields) if padded else fields


def _joined_scope(kind: str, left: FromItem, right: FromItem) -> Scope:
    first = _moved(left.scope, 0, kind in _PADS_LEFT)
    second = _moved(right.scope, len(left.fields), kind in _PADS_RIGHT)
    return Scope({**first.sources, **second.sources}, first.columns + second.columns, first.bases + second.bases)


def _moved(scope: Scope, offset: int, padded: bool) -> Scope:
    """The scope of an input inside a join: its columns stand further right, and may be NULL now."""
    if not offset and not padded:
        return scope

    def leaf(reference: ColumnRef) -> ColumnRef:
        return replace(reference, position=reference.position + offset, nullable=reference.nullable or padded)

    def move(columns: tuple[Visible, ...]) -> tuple[Visible, ...]:
        return tuple(Visible(column.name, mapped(column.expression, leaf)) for column in columns)

    sources = {alias: move(columns) for alias, columns in scope.sources.items()}
    bases = tuple(replace(base, start=base.start + offset) for base in scope.bases)
    return Scope(sources, move(scope.columns), bases)


def joined_using(
    kind: str, left: FromItem, right: FromItem, pairs: Sequence[tuple[str, Expression, Expression]]
) -> FromItem:
    """A join on columns of one name: they come first, once, and the others follow. `pairs` are the columns as
    `side_by_side` names them.

    PostgreSQL shows the side that is never padded (of an inner join the one that needs no conversion), and COALESCE of
    both for FULL.
    """
    conditions = [coercion.comparison("=", ours, theirs) for _, ours, theirs in pairs]
    item = joined(kind, left, right, all_of(conditions))
    fields = item.fields
    merged = []
    for (name, ours, theirs), condition in zip(pairs, conditions, strict=True):
        assert isinstance(condition, Call), "a comparison is a call"
        first, second = condition.args
        shown: Expression
        if kind == "full":
            shown = Call("coalesce", (first, second), Type(first.type.kind))
            if first == ours and second == theirs and ours.type == theirs.type:
                shown = replace(shown, type=ours.type)
        elif kind == "right" or (kind == "inner" and first != ours and second == theirs):
            shown = second
        else:
            shown = first
        merged.append(Visible(name, mapped(shown, lambda ref: replace(ref, nullable=fields[ref.position].nullable))))
    gone = {name for name, _, _ in pairs}
    rest = tuple(column for column in item.scope.columns if column.name not in gone)
    return replace(item, scope=replace(item.scope, columns=tuple(merged) + rest))


def find_source(source: Text, scope: Scope, alias: str, place: Place | None) -> tuple[Visible, ...]:
    columns = scope.sources.get(alias)
    if columns is None:
        hint = "; ".join(filter(None, (nearest(alias, scope.sources), "an alias hides the name of its table")))
        raise source.wrong(f"no table {alias} here in FROM", place, hint)
    return columns


# --- outputs and groups ---


@dataclass(frozen=True, slots=True)
class Item:
    """One output before grouping."""

    name: str
    expression: Expression
    place: Place | None


def output(name: str, expression: Expression) -> Output:
    return Output(name, expression, nullable(expression))


def project(relation: Relation, named: Iterable[tuple[str, Expression]]) -> Project:
    return Project(relation, tuple(output(name, expression) for name, expression in named))


def require_unique_names(source: Text, names: Sequence[str], places: Sequence[Place | None]) -> None:
    seen: set[str] = set()
    for name, place in zip(names, places, strict=True):
        if name in seen:
            raise source.wrong(f"two outputs named {name}", place, hint="give one of them an alias with AS")
        seen.add(name)


@dataclass(slots=True)
class Groups:
    """The groups of one SELECT while its expressions are bound. `keys` is None without GROUP BY."""

    source: Text
    scope: Scope
    keys: list[Expression] | None = None
    aggregates: list[Aggregate] = field(default_factory=list)
    #: How many keys, the last ones, were taken because those that GROUP BY names determine them.
    determined: int = 0

    def add_key(self, key: Expression, place: Place | None) -> None:
        if any(reference.source == AGGREGATE_SOURCE for reference in references(key)):
            raise self.source.wrong(
                "aggregate functions are not allowed in GROUP BY",
                place,
                hint="group by a column or an expression over columns",
            )
        if key.type.kind == "json":
            raise self.source.unsupported("comparison and grouping of json values", place, hint=JSON_HINT)
        keys = self.keys = self.keys or []
        if find(key, keys) is None:
            keys.append(key)

    def add(self, aggregate: Aggregate) -> ColumnRef:
        """A reference to the aggregate; the same one is computed once."""
        same = (index for index, other in enumerate(self.aggregates) if repr(other) == repr(aggregate))
        index = next(same, len(self.aggregates))
        if index == len(self.aggregates):
            self.aggregates.append(aggregate)
        may_be_null = aggregate.kind not in ("count", "count_star")
        return ColumnRef(AGGREGATE_SOURCE, index, aggregate.kind, aggregate.type, may_be_null)

    def over(self, expression: Expression, place: Place | None) -> Expression:
        """The expression in terms of keys and aggregates: what may stand outside of aggregates in a grouped query.

        A column that GROUP BY does not name is taken if the keys hold the primary key of its table. It becomes a key:
        the groups stay the same.
        """
        keys = self.keys = [] if self.keys is None else self.keys
        index = find(expression, keys)
        if index is not None:
            return self._key(index)
        if isinstance(expression, Call):
            args = tuple(self.over(argument, place) for argument in expression.args)
            return Call(expression.op, args, expression.type)
        if isinstance(expression, ColumnRef) and expression.source == 0:
            bases = [base for base in self.scope.bases if base.holds(expression.position)]
            if bases and bases[0].determined_by(keys) and expression.type.kind != "json":
                keys.append(expression)
                self.determined += 1
                return self._key(len(keys) - 1)
            message = f"column {expression.name} must appear in GROUP BY or be used in an aggregate"
            raise self.source.wrong(message, place, hint=f"add {expression.name} to GROUP BY")
        return expression

    def _key(self, index: int) -> ColumnRef:
        assert self.keys is not None, "there is a key"
        key = self.keys[index]
        name = key.name if isinstance(key, ColumnRef) else f"key_{index + 1}"
        return ColumnRef(KEY_SOURCE, index, name, key.type, nullable(key))

    def group(self, relation: Relation) -> Group:
        keys = tuple(self.keys or ())
        names = [self._key(index).name for index in range(len(keys))]
        names += [aggregate.kind for aggregate in self.aggregates]
        may_be_null = [nullable(key) for key in keys]
        may_be_null += [aggregate.kind not in ("count", "count_star") for aggregate in self.aggregates]
        return Group(relation, keys, tuple(self.aggregates), tuple(names), tuple(may_be_null), self.determined)

    def finished(self, expression: Expression) -> Expression:
        """What `over` gave, over the fields of `group`, once all keys are known."""
        count = len(self.keys or ())

        def leaf(reference: ColumnRef) -> ColumnRef:
            offset = {KEY_SOURCE: 0, AGGREGATE_SOURCE: count}.get(reference.source)
            if offset is None:
                return reference
            return replace(reference, source=0, position=reference.position + offset)

        return mapped(expression, leaf)


#: As PostgreSQL: there is no min(boolean), min(bytea) or min(json).
_ORDERED = ("int", "decimal", "float", "str", "date", "timestamp", "timestamptz")
_NUMERIC = ("int", "decimal", "float")
#: Aggregates that a second row of the same value does not change.
_IDEMPOTENT = ("min", "max", "bool_and", "bool_or")


def aggregate(name: str, argument: Expression, *, distinct: bool = False) -> Aggregate:
    """An aggregate of an expression. SUM of integers is an integer that may have more than 64 bits."""
    if distinct:
        coercion.require_equality(argument.type)
    if name == "count":
        return Aggregate("count", coercion.settled(argument), INT, distinct)
    if argument.type == coercion.UNKNOWN:
        if name in ("sum", "avg"):
            raise ProgrammingError(f"function {name}(unknown) is not unique", hint="add an explicit CAST")
        text = {"bool_and": BOOL, "bool_or": BOOL, "min": STR, "max": STR}
        argument = coercion.settled(argument, text.get(name, FLOAT))
    kind = argument.type.kind
    takes = _NUMERIC if name in _NUMERIC_AGGREGATES else _ORDERED if name in ("min", "max") else ("bool",)
    if kind not in takes:
        raise coercion.no_function(name, (argument,))
    exact = kind == "int" and name in _NUMERIC_AGGREGATES and name != "sum"
    return Aggregate(name, argument, DECIMAL if exact else Type(kind), distinct and name not in _IDEMPOTENT)


_NUMERIC_AGGREGATES = ("sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp")


def matched(name: str, left: Type, right: Type) -> Type:
    """The type of one column of a set operation. Precision and length stay if both sides agree on them."""
    if left == right and left != coercion.UNKNOWN:
        return left
    operands = [
        coercion.unknown(None) if type_ == coercion.UNKNOWN else Literal(None, type_) for type_ in (left, right)
    ]
    return Type(coercion.matching(name, operands)[1].kind)


def converted(expression: Expression, target: Type) -> Expression:
    """The expression in exactly this type, which is one that it converts to silently."""
    if expression.type == target:
        return expression
    if expression.type != coercion.UNKNOWN and expression.type.kind == target.kind:
        return Call("cast", (expression,), target)
    return coercion.widened(expression, target)
