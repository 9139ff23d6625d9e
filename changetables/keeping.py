"""How a relation is kept: what is stored under which key, and which branches contribute to it.

| kept as | for                                     | key                          | state under a key           |
|---------|-----------------------------------------|------------------------------|-----------------------------|
| rows    | selection, projection, joins, UNION ALL | the keys of all sources      | the bag of rows, mostly one |
| groups  | GROUP BY, DISTINCT, UNION               | what is grouped by           | `_count` and sums           |
| set     | INTERSECT, EXCEPT, with and without ALL | the whole row                | how often each side has it  |
| ordered | ORDER BY ... LIMIT                      | the order, the row, its keys | as rows                     |
| slice   | the first rows of an ordered view       | as there                     | as rows                     |

All states are sums, so contributions may come in any order. What is no sum is computed when somebody looks: HAVING and
expressions around aggregates from the state, MIN and MAX from the ends of a hidden view that holds each (group, value)
once, in order. COUNT, SUM and AVG DISTINCT are sums over that same hidden view: one more branch of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .algebra import (
    Distinct,
    Field,
    Filter,
    Group,
    Keyed,
    Order,
    Output,
    Project,
    Relation,
    Scan,
    SetOp,
    Slice,
    Top,
    column,
)
from .branches import (
    MULTIPLICITY,
    Branch,
    JoinGraph,
    KeyPart,
    Stored,
    aligned,
    canonical,
    expand,
    join_graph,
)
from .expressions import Aggregate, Call, ColumnRef, Expression
from .rewriting import conjuncts, substituted
from .schema import Column, Index, Table
from .types import BOOL, INT, Type


@dataclass(frozen=True, slots=True)
class Part:
    """One branch of what is kept.

    `values`: the outputs of kept rows; of groups, the arguments of aggregates, None for those of another part.
    `counter`: which counter of a group adds up the multiplicities, None if none does. `weights`: columns that multiply.
    """

    graph: JoinGraph
    key: tuple[Expression, ...]
    values: tuple[Expression | None, ...]
    counter: int | None
    weights: tuple[ColumnRef, ...]


@dataclass(slots=True)
class Argument:
    """What aggregates add up. `needs`: total, squares, trues; how many are not NULL is always known."""

    type: Type
    nullable: bool
    fixed_scale: bool
    needs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Extreme:
    """The first or the last value of the group in a hidden view of (group, value)."""

    table: str
    last: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """How an aggregate is read: from the components of an argument, or an extreme; neither: it is `_count`."""

    kind: str
    type: Type
    argument: int | None = None
    extreme: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """`kind` is a line of the table above. `outputs` and `having` read the key columns, then the aggregates; of kept
    rows, `outputs` only name and type what the parts' values give."""

    kind: str
    parts: tuple[Part, ...]
    key: tuple[Field, ...]
    outputs: tuple[Output, ...]
    having: tuple[Expression, ...] = ()
    aggregates: tuple[Shown, ...] = ()
    arguments: tuple[Argument, ...] = ()
    extremes: tuple[Extreme, ...] = ()
    #: A group that is there even without rows: aggregates without GROUP BY.
    always: bool = False
    #: Of a set: its operation.
    operation: tuple[str, bool] = ("", False)
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    #: How many columns of the key name a row to users, if not all do: of rows under a key that the user chose, and of
    #: groups that show what a grouped primary key determines.
    leading: int = 0
    #: Of a slice: the view that it is taken from, and which of its columns are the key.
    slice_of: str = ""
    slice_key: tuple[int, ...] = ()

    @property
    def weighted(self) -> bool:
        """Whether a row can count several times."""
        if self.kind in ("set", "slice"):
            return self.operation[1] or self.kind == "slice"
        return self.kind != "groups" and any(part.weights for part in self.parts)

    @property
    def sources(self) -> tuple[str, ...]:
        """The tables and views that contribute, each once."""
        if self.slice_of:
            return (self.slice_of,)
        return tuple(dict.fromkeys(source.table for part in self.parts for source in part.graph.sources))

    @property
    def reads(self) -> tuple[str, ...]:
        """All that it depends on: what contributes, and what is looked into when it is read."""
        return tuple(dict.fromkeys((*self.sources, *(extreme.table for extreme in self.extremes))))

    @property
    def shown_keys(self) -> tuple[int | None, ...]:
        """For each key column the output that shows it as it is, if one does."""
        return tuple(self._shown_at(number) for number in range(len(self.key)))

    def _shown_at(self, number: int) -> int | None:
        for place, output in enumerate(self.outputs):
            if self.kind == "slice":
                return self.slice_key[number]
            if self.kind in ("rows", "ordered"):
                if self.parts and all(part.values[place] == part.key[number] for part in self.parts):
                    return place
            elif isinstance(output.expression, ColumnRef) and output.expression.position == number:
                return place
        return None

    def table(self, view_id: int, name: str, indexes: tuple[Index, ...] = ()) -> Table:
        """What it shows, as a table: the outputs, then hidden columns for what the key has and the outputs have not."""
        columns = [Column(output.name, output.expression.type, output.nullable) for output in self.outputs]
        key = []
        for part, place in zip(self.key, self.shown_keys, strict=True):
            if place is None:
                place = len(columns)
                columns.append(Column(part.name, part.type, part.nullable, hidden=True))
            # Whoever looks rows up by key encodes it as it is stored, which depends on this.
            columns[place] = replace(columns[place], nullable=part.nullable)
            key.append(place)
        if self.weighted:
            columns.append(Column(MULTIPLICITY, INT, nullable=False, hidden=True))
        top = (self.limit, self.offset) if self.kind == "ordered" else None
        return Table(
            view_id, name, tuple(columns), tuple(key), indexes, view=True, computed=bool(self.extremes), top=top
        )


def keep(relation: Relation, stored: Stored) -> Kept:
    """Decide how to keep a relation. UnsupportedView where a change would have to touch every row."""
    if isinstance(relation, Keyed):
        return _rows(relation.input, stored, relation.columns)
    core, outputs, conditions = _peeled(relation)
    match core:
        case Group():
            return _groups(core, outputs, conditions, stored)
        case Distinct():
            return _distinct(core.input, [core.input], outputs, conditions, stored)
        case SetOp(kind="union", all=False):
            return _distinct(core, [core.left, core.right], outputs, conditions, stored)
        case SetOp(kind="intersect" | "except"):
            return _set(core, outputs, conditions, stored)
        case Top() if not conditions and (core.limit is not None or core.offset):
            return _ordered(core, outputs, stored)
        case Slice():
            return _slice(core, stored)
    return _rows(relation, stored)


def _peeled(relation: Relation) -> tuple[Relation, list[Output], list[Expression]]:
    """The relation below its projections and filters, and these in terms of its fields."""
    names = [field_.name for field_ in relation.fields]
    nullable = [field_.nullable for field_ in relation.fields]
    expressions: list[Expression] = [column(relation, place) for place in range(len(names))]
    conditions: list[Expression] = []
    core = relation
    while isinstance(core, Project | Filter) or (isinstance(core, Top) and core.limit is None and not core.offset):
        if isinstance(core, Project):
            inner = [output.expression for output in core.outputs]
            expressions = [substituted(expression, inner) for expression in expressions]
            conditions = [substituted(condition, inner) for condition in conditions]
        elif isinstance(core, Filter):
            conditions = [*conjuncts(core.condition), *conditions]
        core = core.input
    return core, list(map(Output, names, expressions, nullable)), conditions


# --- rows ---


def _rows(relation: Relation, stored: Stored, leading: tuple[int, ...] = ()) -> Kept:
    """`leading`: the outputs that the key begins with, before what makes each row one row."""
    branches = aligned(expand(relation, stored))
    parts = tuple(_row_part(branch, stored) for branch in branches)
    outputs = tuple(
        Output(field_.name, column(relation, place), field_.nullable) for place, field_ in enumerate(relation.fields)
    )
    key = _row_key(branches, outputs, parts)
    if not leading:
        return Kept("rows", parts, key, outputs)
    first = tuple(relation.fields[place] for place in leading)
    rekeyed = tuple(replace(part, key=(*(part.values[place] for place in leading), *part.key)) for part in parts)  # type: ignore[arg-type]
    return Kept("rows", rekeyed, _distinct_names((*first, *key)), outputs, leading=len(leading))


def _row_part(branch: Branch, stored: Stored) -> Part:
    graph = join_graph(branch, stored)
    key = tuple(part.expression for part in graph.keys)
    return Part(graph, key, graph.columns, None, _weights(graph, stored))


def _row_key(branches: Sequence[Branch], outputs: Sequence[Output], parts: Sequence[Part]) -> tuple[Field, ...]:
    if not branches:
        return ()
    single = len(branches) == 1 and sum(not source.anti for source in branches[0].sources) == 1
    fields = []
    taken = {output.name for output in outputs}
    for place, part in enumerate(branches[0].keys):
        nullable = any(branch.keys[place].nullable for branch in branches)
        shown = next(
            (
                output.name
                for number, output in enumerate(outputs)
                if all(each.values[number] == each.key[place] for each in parts)
            ),
            None,
        )
        name = shown or _own_name(part, single, taken)
        fields.append(Field(name, part.expression.type, nullable))
    return _distinct_names(fields)


def _own_name(part: KeyPart, single: bool, taken: set[str]) -> str:
    plain = part.name.rpartition(".")[2]
    return plain if single and plain not in taken else part.name


def _distinct_names(fields: Iterable[Field]) -> tuple[Field, ...]:
    named: list[Field] = []
    for number, field_ in enumerate(fields):
        taken = {other.name for other in named}
        name = field_.name if field_.name and field_.name not in taken else f"key_{number + 1}"
        named.append(replace(field_, name=name))
    return tuple(named)


def _weights(graph: JoinGraph, stored: Stored) -> tuple[ColumnRef, ...]:
    weights = []
    for number, source in enumerate(graph.sources):
        columns = stored.table(source.table).columns
        if not source.anti and columns and columns[-1].name == MULTIPLICITY and columns[-1].hidden:
            weights.append(ColumnRef(number, len(columns) - 1, MULTIPLICITY, INT, nullable=False))
    return tuple(weights)


def _ordered(top: Top, outputs: Sequence[Output], stored: Stored) -> Kept:
    """The rows under a key that sorts them. Ties are broken by the whole row, and equal rows by their own keys."""
    branches = aligned(expand(top.input, stored))
    parts = []
    for branch in branches:
        graph = join_graph(branch, stored)
        order = [substituted(item.expression, graph.columns) for item in top.order]
        key = (*order, *graph.columns, *(part.expression for part in graph.keys))
        values = tuple(substituted(output.expression, graph.columns) for output in outputs)
        parts.append(Part(graph, key, values, None, _weights(graph, stored)))
    ascending = [
        *(Order(column(top.input, place), False, False) for place in range(len(top.input.fields))),
        *(Order(part.expression, False, False) for part in (branches[0].keys if branches else ())),
    ]
    orders = (*top.order, *ascending)
    names = [f"order_{number + 1}" for number in range(len(top.order))]
    names += [f"row.{field_.name}" for field_ in top.input.fields]
    names += [part.name for part in (branches[0].keys if branches else ())]
    key_fields = [Field(name, order.expression.type, True) for name, order in zip(names, orders, strict=True)]
    return Kept(
        "ordered",
        tuple(parts),
        _distinct_names(key_fields),
        tuple(outputs),
        order=orders,
        limit=top.limit,
        offset=top.offset,
    )


def _slice(relation: Slice, stored: Stored) -> Kept:
    """Under the key of the ordered view: each of its columns is one of the slice's, in the same place."""
    table = stored.table(relation.input.table)
    outputs = tuple(
        Output(column_.name, ColumnRef(0, place, column_.name, column_.type, column_.nullable), column_.nullable)
        for place, column_ in enumerate(table.columns)
        if not (column_.hidden and column_.name == MULTIPLICITY)
    )
    key = tuple(Field(table.columns[place].name, table.columns[place].type, True) for place in table.key)
    return Kept(
        "slice",
        (),
        _distinct_names(key),
        outputs,
        limit=relation.limit,
        offset=relation.offset,
        slice_of=table.name,
        slice_key=table.key,
    )


# --- groups ---


def _groups(group: Group, outputs: Sequence[Output], having: Sequence[Expression], stored: Stored) -> Kept:
    branches = expand(group.input, stored)
    graphs = [join_graph(branch, stored) for branch in branches]
    known: dict[tuple[str, bool], int] = {}
    arguments: list[Argument] = []
    expressions: list[Expression] = []
    extremes: list[Extreme] = []
    shown: list[Shown] = []
    for aggregate in group.aggregates:
        if aggregate.argument is None:
            shown.append(Shown("count_star", aggregate.type))
        elif aggregate.kind in ("min", "max"):
            extreme = Extreme(_values_of_group(group, aggregate, stored).name, aggregate.kind == "max")
            if extreme not in extremes:
                extremes.append(extreme)
            shown.append(Shown(aggregate.kind, aggregate.type, extreme=extremes.index(extreme)))
        else:
            # repr tells apart literals that are equal but not the same, such as 1.0 and 1.00.
            identity = (repr(aggregate.argument), aggregate.distinct)
            if identity not in known:
                known[identity] = len(arguments)
                arguments.append(_argument(aggregate, graphs))
                expressions.append(aggregate.argument)
            arguments[known[identity]].needs |= _NEEDS[aggregate.kind]
            shown.append(Shown(aggregate.kind, aggregate.type, argument=known[identity]))
    distinct = [number for (_, is_distinct), number in known.items() if is_distinct]
    parts = [_group_part(graph, group.keys, expressions, distinct, stored) for graph in graphs]
    for (_, is_distinct), number in known.items():
        if is_distinct:
            parts.append(_distinct_part(group, expressions[number], number, len(arguments), stored))
    key = _distinct_names(
        Field(_key_name(outputs, number, name), expression.type, nullable)
        for number, (name, expression, nullable) in enumerate(
            zip(group.names, group.keys, group.nullable, strict=False)
        )
    )
    return Kept(
        "groups",
        tuple(parts),
        key,
        tuple(outputs),
        tuple(having),
        tuple(shown),
        tuple(arguments),
        tuple(extremes),
        always=not group.keys,
        leading=len(group.keys) - group.determined if group.determined else 0,
    )


_NEEDS: dict[str, set[str]] = {
    "count": set(),
    "sum": {"total"},
    "avg": {"total"},
    "bool_and": {"trues"},
    "bool_or": {"trues"},
    **{kind: {"total", "squares"} for kind in ("var_pop", "var_samp", "stddev_pop", "stddev_samp")},
}


def _key_name(outputs: Sequence[Output], number: int, name: str) -> str:
    for output in outputs:
        if isinstance(output.expression, ColumnRef) and output.expression.position == number:
            return output.name
    return name


def _argument(aggregate: Aggregate, graphs: Sequence[JoinGraph]) -> Argument:
    argument = aggregate.argument
    assert argument is not None, "count(*) has none"
    # A distinct argument comes from a view of values that are not NULL, but its group may have no row there.
    nullable = aggregate.distinct or any(_may_be_null(substituted(argument, graph.columns)) for graph in graphs)
    return Argument(argument.type, nullable, _has_fixed_scale(argument))


def _may_be_null(expression: Expression) -> bool:
    return not isinstance(expression, ColumnRef) or expression.nullable


def _has_fixed_scale(argument: Expression) -> bool:
    """Stored columns and casts to numeric(p, s) are rounded to s; other expressions carry no such promise."""
    if isinstance(argument, ColumnRef) or (isinstance(argument, Call) and argument.op == "cast"):
        return argument.type.precision is not None
    return False


def _group_part(
    graph: JoinGraph,
    keys: Sequence[Expression],
    arguments: Sequence[Expression],
    distinct: Sequence[int],
    stored: Stored,
) -> Part:
    values = tuple(
        None if number in distinct else substituted(argument, graph.columns)
        for number, argument in enumerate(arguments)
    )
    key = tuple(substituted(expression, graph.columns) for expression in keys)
    return Part(graph, key, values, 0, _weights(graph, stored))


def _values_of_group(group: Group, aggregate: Aggregate, stored: Stored) -> Table:
    """The hidden view of (group, value), each once: what MIN, MAX and DISTINCT aggregates share."""
    assert aggregate.argument is not None, "count(*) has none"
    keys = tuple(Output("", key, nullable) for key, nullable in zip(group.keys, group.nullable, strict=False))
    projected = Project(group.input, (*keys, Output("", aggregate.argument, True)))
    value = column(projected, len(keys))
    pairs = Filter(projected, Call("is_not_null", (value,), BOOL))
    # The filter leaves no NULL: the column is declared so, and its keys need no tag.
    known = tuple(Output("", column(pairs, place), output.nullable) for place, output in enumerate(projected.outputs))
    return stored.inner(canonical(Distinct(Project(pairs, (*known[:-1], replace(known[-1], nullable=False))))))


def _distinct_part(group: Group, argument: Expression, number: int, count: int, stored: Stored) -> Part:
    table = _values_of_group(group, Aggregate("count", argument, INT, True), stored)
    scan = Scan(table.name, "", tuple(range(len(table.columns))), ())
    [branch] = expand(scan, stored)
    graph = join_graph(branch, stored)
    values: list[Expression | None] = [None] * count
    values[number] = graph.columns[len(group.keys)]
    return Part(graph, graph.columns[: len(group.keys)], tuple(values), None, ())


def _distinct(
    relation: Relation,
    sides: Sequence[Relation],
    outputs: Sequence[Output],
    having: Sequence[Expression],
    stored: Stored,
) -> Kept:
    parts = [_whole_row(branch, 0, stored) for side in sides for branch in expand(side, stored)]
    return Kept("groups", tuple(parts), _row_fields(relation, outputs), tuple(outputs), tuple(having))


def _set(relation: SetOp, outputs: Sequence[Output], having: Sequence[Expression], stored: Stored) -> Kept:
    parts = [
        _whole_row(branch, counter, stored)
        for counter, side in enumerate((relation.left, relation.right))
        for branch in expand(side, stored)
    ]
    operation = (relation.kind, relation.all)
    key = _row_fields(relation, outputs)
    return Kept("set", tuple(parts), key, tuple(outputs), tuple(having), operation=operation)


def _whole_row(branch: Branch, counter: int, stored: Stored) -> Part:
    graph = join_graph(branch, stored)
    return Part(graph, graph.columns, (), counter, _weights(graph, stored))


def _row_fields(relation: Relation, outputs: Sequence[Output]) -> tuple[Field, ...]:
    return _distinct_names(
        replace(field_, name=_key_name(outputs, number, field_.name)) for number, field_ in enumerate(relation.fields)
    )
