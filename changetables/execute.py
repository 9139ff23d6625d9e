"""Ad-hoc queries: a relation read through keys and indexes instead of kept.

    query = plan of the relation: conditions go down to the tables, inner joins are put in order, each table gets the
            narrowest path (`access`), each operator becomes a node (`query_nodes`, `query_joins`)

The result is the bag that `recompute` gives. A condition that may fail (a division) is not tested earlier than where it
stands, on rows that would never have reached it; so what the oracle computes without an error, this does too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .access import Reader
from .algebra import (
    Apply,
    Distinct,
    Field,
    Filter,
    Group,
    Join,
    Keyed,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Slice,
    Top,
    Values,
    WithKey,
    column,
)
from .errors import InternalError
from .evaluate import canonical
from .expressions import Call, ColumnRef, Expression, Literal
from .query_code import Coder
from .query_joins import JoinNode, Pair, SemiNode, SetNode
from .query_nodes import DistinctNode, FilterNode, GroupNode, Node, ProjectNode, TableNode, TopNode, ValuesNode
from .query_subqueries import ApplyNode
from .rewriting import conjuncts, is_safe, moved, positions, rejects_null, sees_values_only, size, substituted
from .schema import Table
from .types import Row

__all__ = ["Query", "Reader", "execute", "explain_query"]

#: Nodes of an expression that is rewritten in terms of what a projection computes; larger ones stay above it, because
#: a chain of projections may double them at each step.
REWRITTEN_NODES_MAX = 200

Conditions = list[Expression]


class Query:
    """A planned query. It may be run several times, as long as the tables stay as they are."""

    def __init__(self, relation: Relation, tables: Mapping[str, Table]) -> None:
        self.fields: tuple[Field, ...] = relation.fields
        self._root = _Planner(tables).plan(relation, [])

    def rows(self, reader: Reader) -> Iterator[Row]:
        """The rows one by one, in the order of a Top at the root, else in no particular one."""
        return self._root.rows(reader)

    def explain(self) -> str:
        """The tree of operators, with the access path of each table."""
        return "\n".join(self._root.explain())


def execute(relation: Relation, tables: Mapping[str, Table], reader: Reader) -> list[Row]:
    """All rows of the relation, in the order that a Top at its root asks for (or below a projection at its root)."""
    return list(Query(relation, tables).rows(reader))


def explain_query(relation: Relation, tables: Mapping[str, Table]) -> str:
    return Query(relation, tables).explain()


class _Planner:
    """Makes the nodes of one query, from the root down. Every method gets the conditions that stand above its relation,
    over its fields, and sees to it that they hold for the rows of the node that it gives."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._coder = Coder()

    def plan(self, relation: Relation, conditions: Conditions) -> Node:
        wanted = [part for part in conditions if not (isinstance(part, Literal) and part.value is True)]
        names = [field.name for field in relation.fields]
        if any(isinstance(part, Literal) for part in wanted):
            return ValuesNode((), names)  # FALSE or NULL: no row fulfils that.
        match relation:
            case Scan():
                return self._table(relation, wanted)
            case Values():
                rows = [tuple(map(canonical, row)) for row in relation.rows]
                return self._filtered(ValuesNode(rows, names), wanted)
            case Filter():
                return self.plan(relation.input, conjuncts(relation.condition) + wanted)
            case Project():
                return self._project(relation, wanted)
            case Join():
                return self._join(relation, wanted)
            case Semi():
                return self._semi(relation, wanted)
            case Group():
                return self._group(relation, wanted)
            case Distinct():
                below, above = _parted(wanted, sees_values_only)
                return self._filtered(DistinctNode(self.plan(relation.input, below)), above)
            case SetOp():
                return self._set(relation, wanted)
            case Top():
                return self._filtered(self._top(relation), wanted)
            case Apply():
                return self._apply(relation, wanted)
            case WithKey() | Slice() | Keyed():
                raise InternalError(f"{type(relation).__name__} is for the engine's own views, not for a query")

    def _filtered(self, node: Node, conditions: Conditions) -> Node:
        return FilterNode(self._coder, node, conditions) if conditions else node

    def _table(self, scan: Scan, conditions: Conditions) -> Node:
        table = self._tables[scan.table]
        stored = [
            ColumnRef(0, position, field.name, field.type, field.nullable)
            for position, field in zip(scan.positions, scan.fields, strict=True)
        ]
        physical = [substituted(condition, stored) for condition in conditions]
        return TableNode(self._coder, table, scan.alias, physical, stored)

    def _project(self, project: Project, conditions: Conditions) -> Node:
        outputs = [output.expression for output in project.outputs]
        below: Conditions = []
        above: Conditions = []
        for condition in conditions:
            rewritten = substituted(condition, outputs)
            if size(rewritten) <= REWRITTEN_NODES_MAX:
                below.append(rewritten)
            else:
                above.append(condition)
        return self._filtered(self._projected(self.plan(project.input, below), outputs), above)

    def _projected(self, node: Node, outputs: Sequence[Expression]) -> Node:
        """A projection of a table or of another projection becomes one with it."""
        if [output.position if isinstance(output, ColumnRef) else None for output in outputs] == [*range(node.width)]:
            return node
        if isinstance(node, TableNode | ProjectNode):
            rewritten = [substituted(output, node.outputs) for output in outputs]
            if max(map(size, rewritten), default=0) <= REWRITTEN_NODES_MAX:
                return (
                    node.with_outputs(rewritten)
                    if isinstance(node, TableNode)
                    else ProjectNode(self._coder, node.below, rewritten)
                )
        return ProjectNode(self._coder, node, outputs)

    def _group(self, group: Group, conditions: Conditions) -> Node:
        """Conditions on keys alone choose groups: they may choose their rows just as well."""
        below, above = _parted(
            conditions,
            lambda part: (
                bool(positions(part))
                and max(positions(part)) < len(group.keys)
                and sees_values_only(part)
                and size(substituted(part, group.keys)) <= REWRITTEN_NODES_MAX
            ),
        )
        node = self.plan(group.input, [substituted(condition, group.keys) for condition in below])
        return self._filtered(GroupNode(self._coder, node, group.keys, group.aggregates), above)

    def _set(self, operation: SetOp, conditions: Conditions) -> Node:
        def goes_below(condition: Expression) -> bool:
            if operation.kind == "union":
                return operation.all or sees_values_only(condition)
            return sees_values_only(condition) and is_safe(condition)

        below, above = _parted(conditions, goes_below)
        left, right = self.plan(operation.left, below), self.plan(operation.right, below)
        return self._filtered(SetNode(operation.kind, operation.all, left, right), above)

    def _top(self, top: Top) -> Node:
        order = [(item.expression, item.descending, item.nulls_first) for item in top.order]
        whole_row = [(column(top, place), False, False) for place in range(len(top.fields))]
        below = self.plan(top.input, [])
        # Without ORDER BY any rows will do: the first that come.
        by = [*order, *whole_row] if order else []
        return TopNode(self._coder, below, by, top.limit, top.offset)

    def _apply(self, apply: Apply, conditions: Conditions) -> Node:
        """A subquery is planned when its outer columns are known: by then they are constants."""
        width = len(apply.input.fields)
        below, above = _parted(conditions, lambda part: max(positions(part), default=width) < width and is_safe(part))
        node = ApplyNode(self._coder, self.plan(apply.input, below), apply, self._subquery)
        return self._filtered(node, above)

    def _subquery(self, relation: Relation) -> Node:
        return _Planner(self._tables).plan(relation, [])

    # --- joins ---

    def _join(self, join: Join, conditions: Conditions) -> Node:
        kind = _strengthened(join, conditions)
        if kind == "inner":
            return self._inner(replace(join, kind="inner"), conditions)
        if kind == "right":
            return self._right(replace(join, kind="right"), conditions)
        width = len(join.left.fields)
        on = _Sides.of(conjuncts(join.condition), width)
        above = _Sides.of(conditions, width)
        if kind == "full":
            left, right = self.plan(join.left, []), self.plan(join.right, [])
            others = on.left + on.right_as_both + on.both
            return self._filtered(self._joined("full", left, right, width, others), conditions)
        left, right = self.plan(join.left, above.left), self.plan(join.right, on.right)
        node = self._joined("left", left, right, width, on.left + on.both)
        return self._filtered(node, above.right_as_both + above.both)

    def _right(self, join: Join, conditions: Conditions) -> Node:
        """A right join is a left join the other way round."""
        left_width, right_width = len(join.left.fields), len(join.right.fields)
        swapped = [*range(right_width, right_width + left_width), *range(right_width)]
        condition = None if join.condition is None else _placed(join.condition, swapped)
        turned = Join("left", join.right, join.left, condition)
        node = self._join(turned, [_placed(part, swapped) for part in conditions])
        return self._projected(node, [column(turned, place) for place in swapped])

    def _joined(self, kind: str, left: Node, right: Node, width: int, conditions: Conditions) -> Node:
        pairs, others = _pairs(conditions, width)
        return JoinNode(self._coder, kind, left, right, pairs, others)

    def _semi(self, semi: Semi, conditions: Conditions) -> Node:
        width = len(semi.left.fields)
        on = _Sides.of(conjuncts(semi.condition), width)
        below, above = _parted(conditions, is_safe)
        if not semi.anti:
            below = below + on.left
        left, right = self.plan(semi.left, below), self.plan(semi.right, on.right)
        pairs, others = _pairs((on.left if semi.anti else []) + on.both, width)
        null_pairs = [(part, pair) for part in others if (pair := _null_pair(part, width)) is not None]
        null_pair = null_pairs[0][1] if null_pairs else None
        if null_pairs:
            others = [part for part in others if part is not null_pairs[0][0]]
        return self._filtered(SemiNode(self._coder, left, right, pairs, others, semi.anti, null_pair), above)

    def _inner(self, join: Join, conditions: Conditions) -> Node:
        """Inner joins, however they are nested, are one product: they are joined in the order that reads least."""
        parts, on = _parts(join)
        block = _Block(parts, on + conditions)
        nodes = [self.plan(part, block.alone(number)) for number, part in enumerate(parts)]
        joined, order = self._in_order(block, nodes)
        restored = block.restored(order)
        if restored != list(range(len(restored))):
            shown = [column(join, place) for place in range(len(join.fields))]
            joined = self._projected(joined, [_placed(part, restored) for part in shown])
        return self._filtered(joined, block.late)

    def _in_order(self, block: _Block, nodes: Sequence[Node]) -> tuple[Node, list[int]]:
        """From the part with the fewest rows, along equalities, always to the smallest one."""
        order = [min(range(len(nodes)), key=lambda part: nodes[part].estimate)]
        joined = nodes[order[0]]
        while len(order) < len(nodes):
            waiting = [part for part in range(len(nodes)) if part not in order]
            connected = [part for part in waiting if block.is_connected(order, part)]
            part = min(connected or waiting, key=lambda part: nodes[part].estimate)
            conditions = block.between(order, part)
            joined = self._joined("inner", joined, nodes[part], joined.width, conditions)
            order.append(part)
        return joined, order


def _parted(conditions: Conditions, test: Callable[[Expression], bool]) -> tuple[Conditions, Conditions]:
    """The conditions that pass the test, and the others."""
    sides: tuple[Conditions, Conditions] = ([], [])
    for condition in conditions:
        sides[0 if test(condition) else 1].append(condition)
    return sides


def _placed(expression: Expression, places: Sequence[int]) -> Expression:
    """The expression over rows in which column p stands at places[p]."""
    if isinstance(expression, ColumnRef):
        return replace(expression, position=places[expression.position])
    if isinstance(expression, Call):
        return replace(expression, args=tuple(_placed(argument, places) for argument in expression.args))
    return expression


@dataclass(frozen=True, slots=True)
class _Sides:
    """The conditions of a join: those that read one side only and cannot fail, over that side, and all others. Where
    they are tested together, those that cannot fail come first: they may keep the others from failing."""

    left: Conditions
    right: Conditions
    both: Conditions
    #: `right` over the columns of both sides.
    right_as_both: Conditions

    @classmethod
    def of(cls, conditions: Conditions, width: int) -> _Sides:
        left: Conditions = []
        right: Conditions = []
        both: Conditions = []
        for condition in conditions:
            read = positions(condition)
            if not read or not is_safe(condition):
                both.append(condition)
            elif max(read) < width:
                left.append(condition)
            elif min(read) >= width:
                right.append(condition)
            else:
                both.append(condition)
        return cls(left, [moved(condition, -width) for condition in right], both, right)


def _strengthened(join: Join, conditions: Conditions) -> str:
    """The kind of a join under conditions that refuse the rows which an outer join adds."""
    width = len(join.left.fields)
    left_needed = any(rejects_null(condition, range(width)) for condition in conditions)
    right_needed = any(rejects_null(condition, range(width, len(join.fields))) for condition in conditions)
    keeps_left = join.kind in ("left", "full") and not right_needed
    keeps_right = join.kind in ("right", "full") and not left_needed
    return {(True, True): "full", (True, False): "left", (False, True): "right", (False, False): "inner"}[
        keeps_left, keeps_right
    ]


def _pairs(conditions: Conditions, width: int) -> tuple[list[Pair], Conditions]:
    """The equalities between the two sides, and all other conditions."""
    pairs: list[Pair] = []
    others: Conditions = []
    for condition in conditions:
        pair = _pair(condition, width)
        if pair is None:
            others.append(condition)
        else:
            pairs.append(pair)
    return pairs, others


def _pair(condition: Expression, width: int) -> Pair | None:
    """The two sides of an equality that a hash can find: of one type, and unable to fail."""
    if not isinstance(condition, Call) or condition.op not in ("=", "is_not_distinct"):
        return None
    one, other = condition.args
    if one.type.kind != other.type.kind or not is_safe(condition):
        return None
    for left, right in ((one, other), (other, one)):
        left_read, right_read = positions(left), positions(right)
        if left_read and right_read and max(left_read) < width <= min(right_read):
            return Pair(left, moved(right, -width), condition.op == "is_not_distinct")
    return None


def _null_pair(condition: Expression, width: int) -> Pair | None:
    """(x = y) IS NOT FALSE: what NOT IN asks."""
    if not isinstance(condition, Call) or condition.op != "is_distinct":
        return None
    for equality, other in (condition.args, condition.args[::-1]):
        if isinstance(other, Literal) and other.value is False and isinstance(equality, Call) and equality.op == "=":
            return _pair(equality, width)
    return None


def _parts(relation: Relation) -> tuple[list[Relation], Conditions]:
    """What a nest of filters and inner joins is the product of, and all their conditions."""
    if isinstance(relation, Filter):
        parts, conditions = _parts(relation.input)
        return parts, conditions + conjuncts(relation.condition)
    if isinstance(relation, Join) and relation.kind == "inner":
        parts, conditions = _parts(relation.left)
        right_parts, right_conditions = _parts(relation.right)
        width = len(relation.left.fields)
        conditions = conditions + [moved(condition, width) for condition in right_conditions]
        return parts + right_parts, conditions + conjuncts(relation.condition)
    return [relation], []


class _Block:
    """The parts of a nest of inner joins and their conditions, which read the product of all parts."""

    def __init__(self, parts: Sequence[Relation], conditions: Conditions) -> None:
        self._widths = [len(part.fields) for part in parts]
        self._starts = [sum(self._widths[:number]) for number in range(len(parts))]
        self._part_of = [number for number, width in enumerate(self._widths) for _ in range(width)]
        safe, self.late = _parted(conditions, lambda part: bool(positions(part)) and is_safe(part))
        self._reads = [(condition, self._read(condition)) for condition in safe]

    def _read(self, condition: Expression) -> set[int]:
        return {self._part_of[position] for position in positions(condition)}

    def alone(self, part: int) -> Conditions:
        """The conditions on one part, over its fields."""
        return [moved(condition, -self._starts[part]) for condition, read in self._reads if read == {part}]

    def is_connected(self, done: Sequence[int], part: int) -> bool:
        width = sum(self._widths[number] for number in done)
        return any(_pair(condition, width) is not None for condition in self.between(done, part))

    def between(self, done: Sequence[int], part: int) -> Conditions:
        """The conditions that can be tested once `part` is joined to those that are done, over their columns in that
        order."""
        known = {*done, part}
        places = self.restored([*done, part])
        return [
            _placed(condition, places)
            for condition, read in self._reads
            if part in read and len(read) > 1 and read <= known
        ]

    def restored(self, order: Sequence[int]) -> list[int]:
        """Where each column of the product is, if the parts come in this order (-1: it is not there)."""
        places = [-1] * len(self._part_of)
        start = 0
        for part in order:
            for offset in range(self._widths[part]):
                places[self._starts[part] + offset] = start + offset
            start += self._widths[part]
        return places
