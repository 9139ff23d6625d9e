"""What a view is: a tree of relations, the one form that SQL and the builder both give, and that plans, the oracle and
ad-hoc queries read.

    relation = Scan | Values | Filter(r) | Project(r) | Join(r, r) | Semi(r, r) | Group(r) | Distinct(r) | SetOp(r, r)
             | Top(r) | WithKey(r) | Slice(r) | Keyed(r) | Apply(r, r)

Every relation is a bag of rows with the columns that `fields` names. An expression inside a node reads the rows of the
node's input: `ColumnRef.position` is a place in the input's `fields` (of a join: the left fields, then the right ones),
and `ColumnRef.source` is 0, except in the subquery of an Apply, which may read the row around it. Nothing here says
how a relation is kept or computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from .expressions import Aggregate, ColumnRef, Expression
from .types import BOOL, Row, Type


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a relation."""

    name: str
    type: Type
    nullable: bool


@dataclass(frozen=True, slots=True)
class Output:
    """One column that a projection makes."""

    name: str
    expression: Expression
    nullable: bool


@dataclass(frozen=True, slots=True)
class Order:
    """One item of ORDER BY, with PostgreSQL's defaults made explicit: NULL counts as larger than every value."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a table, or what a view shows. `positions` are those of `schema.Table.columns`, one per field.

    A view is presented as a table too: what its key has and its outputs have not, and its multiplicity, are hidden
    columns. `place` (line, column) is where the text names it; it says nothing about the rows.
    """

    table: str
    alias: str
    positions: tuple[int, ...]
    fields: tuple[Field, ...]
    place: tuple[int, int] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Values:
    """Constant rows; `place` is where the text has them. One row without columns: what a SELECT without FROM reads."""

    rows: tuple[Row, ...]
    fields: tuple[Field, ...]
    place: tuple[int, int] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which the condition is TRUE."""

    input: Relation
    condition: Expression

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@dataclass(frozen=True, slots=True)
class Project:
    """One row for each row. Rows that become equal keep their multiplicities."""

    input: Relation
    outputs: tuple[Output, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(Field(output.name, output.expression.type, output.nullable) for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Join:
    """`kind`: inner, left, right or full. A condition of None is TRUE."""

    kind: str
    left: Relation
    right: Relation
    condition: Expression | None

    @property
    def fields(self) -> tuple[Field, ...]:
        left, right = self.left.fields, self.right.fields
        if self.kind in ("right", "full"):
            left = tuple(Field(each.name, each.type, True) for each in left)
        if self.kind in ("left", "full"):
            right = tuple(Field(each.name, each.type, True) for each in right)
        return left + right


@dataclass(frozen=True, slots=True)
class Semi:
    """The rows of `left` for which some row of `right` makes the condition TRUE; with `anti`, those where none does.

    The condition reads left fields, then right ones; the result has the left ones. EXISTS and IN are semi-joins, NOT
    EXISTS is an anti-join, and x NOT IN (SELECT y ...) is the anti-join on (x = y) IS NOT FALSE. `place` is where the
    text asks for it.
    """

    left: Relation
    right: Relation
    condition: Expression | None
    anti: bool
    place: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.left.fields


@dataclass(frozen=True, slots=True)
class Group:
    """One row for each group of equal keys (NULL equals NULL): the keys, then the aggregates. With `keys` = () there is
    always exactly one row. HAVING is a Filter over it, expressions around aggregates a Project over that. The last
    `determined` keys follow from those before them, which hold the primary key of their table."""

    input: Relation
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]
    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    determined: int = 0

    @property
    def fields(self) -> tuple[Field, ...]:
        types = [part.type for part in (*self.keys, *self.aggregates)]
        return tuple(map(Field, self.names, types, self.nullable))


@dataclass(frozen=True, slots=True)
class Distinct:
    """Each row once."""

    input: Relation

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@dataclass(frozen=True, slots=True)
class SetOp:
    """`kind`: union, intersect or except; without `all`, of sets. Both sides have the same types; names are the left's.

    With multiplicities l and r: union all l + r, intersect all min(l, r), except all max(l - r, 0). `place` is where
    the text has the right side.
    """

    kind: str
    all: bool
    left: Relation
    right: Relation
    place: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        pairs = zip(self.left.fields, self.right.fields, strict=True)
        return tuple(Field(left.name, left.type, left.nullable or right.nullable) for left, right in pairs)


@dataclass(frozen=True, slots=True)
class Top:
    """The rows in order, `offset` of them left out, at most `limit` of the rest. Ties are broken by the whole row, in
    the order of its columns, each ascending with NULL last; with `order` = () any rows will do. Without a limit it only
    orders, which means nothing to whoever reads it as a bag."""

    input: Relation
    order: tuple[Order, ...]
    limit: int | None
    offset: int = 0

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@dataclass(frozen=True, slots=True)
class WithKey:
    """The rows with what makes each of them one row as further columns. Only the engine makes it, for its own views."""

    input: Relation
    keys: tuple[Field, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields + self.keys


@dataclass(frozen=True, slots=True)
class Slice:
    """The first rows of a view that is kept in order. Only the engine makes it, for views that read such a view."""

    input: Scan
    limit: int | None
    offset: int

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@dataclass(frozen=True, slots=True)
class Keyed:
    """The same rows, to be kept under another key: these columns first. It is only ever the root of a view."""

    input: Relation
    columns: tuple[int, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@dataclass(frozen=True, slots=True)
class Apply:
    """The rows with one more column: what a subquery says about each. It stands in queries only, never in a view.

    In `query`, a reference with source 1 reads the row of `input`, with source 2 the row around that, and so on.

        scalar   its one value; NULL if it has no row, an error if it has several
        exists   whether it has a row
        any      whether `comparison`, over the row and then a row of it, is TRUE for some, as OR over all of them
        row      `comparison` with its one row; NULL if it has no row, an error if it has several
    """

    input: Relation
    query: Relation
    kind: str
    comparison: Expression | None = None
    place: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        type_ = self.query.fields[0].type if self.kind == "scalar" else BOOL
        return (*self.input.fields, Field("?column?", type_, self.kind != "exists"))


Relation: TypeAlias = (
    Scan | Values | Filter | Project | Join | Semi | Group | Distinct | SetOp | Top | WithKey | Slice | Keyed | Apply
)


def inputs(relation: Relation) -> tuple[Relation, ...]:
    match relation:
        case Scan() | Values():
            return ()
        case Filter() | Project() | Group() | Distinct() | Top() | WithKey() | Slice() | Keyed():
            return (relation.input,)
        case Join() | Semi() | SetOp():
            return (relation.left, relation.right)
        case Apply():
            return (relation.input, relation.query)


def place_of(relation: Relation) -> tuple[int, int] | None:
    """Where the text has the first part of a relation that knows its place."""
    if isinstance(relation, Scan | Values):
        return relation.place
    return next((place for below in inputs(relation) if (place := place_of(below)) is not None), None)


def scans(relation: Relation) -> Iterator[Scan]:
    """Every use of a table or view, in the order of the text."""
    if isinstance(relation, Scan):
        yield relation
    for below in inputs(relation):
        yield from scans(below)


def column(relation: Relation, position: int) -> ColumnRef:
    """The expression that reads one column of a relation."""
    read = relation.fields[position]
    return ColumnRef(0, position, read.name, read.type, read.nullable)
