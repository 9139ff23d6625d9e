"""One SELECT: its clauses in the order in which they mean something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from .. import coercion
from ..algebra import Distinct, Relation, column
from ..binding import Groups, Item, Scope, filtered, find, find_source, project
from ..expressions import Expression
from .bound import Around, Bound, Sorting
from .expressions import Binder, output_name
from .from_clause import FromClause
from .subqueries import Subqueries
from .text import SqlText, bare, identifier_name, ordinal_of

if TYPE_CHECKING:
    from .query import Queries

_REFUSED_PARTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "into": ("SELECT INTO", ("INTO",), ""),
    "windows": ("window functions", ("WINDOW",), "aggregate with GROUP BY"),
    "locks": ("FOR UPDATE and FOR SHARE", ("FOR",), "leave it out: reading locks nothing"),
}
_PARTS = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "limit", "offset", "with_"}
)
_SEVERAL_GROUPINGS = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(slots=True)
class SelectQuery:
    """Binds one SELECT."""

    queries: Queries
    node: exp.Expr
    around: Around

    @property
    def source(self) -> SqlText:
        return self.queries.source

    def bound(self, *, root: bool, settle: bool) -> Bound:
        self._check_parts()
        ordered = self.queries.orders(self.node, root=root)
        settle = settle or any(self.node.args.get(part) for part in ("distinct", "order"))
        item = FromClause(self.queries, self.around).item(self.node)
        relation, _ = self.queries.where(item, self._where(), self.around, outer=False)
        groups = Groups(self.source, item.scope)
        subqueries = Subqueries(self.queries, item.scope, self.around, len(item.fields))
        items = list(self.items(item.scope, groups, settle=settle, subqueries=subqueries))
        relation = subqueries.applied(relation)
        if not items:
            place = self.source.clause(self.node, "SELECT")
            raise self.source.wrong("the select list is empty", place, hint="name a column")
        self._group_by(item.scope, groups, items)
        having = self._having(item.scope, groups)
        # An order that does not matter is checked, but no aggregate is kept for it.
        for_order = groups
        if not ordered:
            keys = None if groups.keys is None else list(groups.keys)
            for_order = replace(groups, keys=keys, aggregates=list(groups.aggregates))
        sorting = self._sorting(item.scope, for_order, items)
        if groups.keys is not None or for_order.aggregates:
            if subqueries.found:
                raise subqueries.refused_with_groups()
            sorting = [self._sorted_groups(for_order, item) for item in sorting]
            relation, items, sorting = self._grouped(relation, groups, items, having, sorting)
        sorting = self._sorted_outputs(items, sorting)
        return Bound(self._shown(relation, items, sorting if ordered else [], root=root), tuple(i.place for i in items))

    def plain(self, *, exists: bool) -> tuple[Relation, list[Expression], list[Expression]] | None:
        """For EXISTS and IN: the rows, the conditions that name columns of the query around, and the outputs. None if
        this is more than FROM, WHERE and outputs; then it must not name such columns. DISTINCT and ORDER BY, and for
        EXISTS also LIMIT, change nothing for them."""
        self._check_parts()
        limit, offset = self.queries.limits(self.node)
        limited = limit is not None and not (exists and limit > 0)
        if limited or offset or self.node.args.get("group") or self.node.args.get("having"):
            return None
        before = self.queries.relations
        item = FromClause(self.queries, self.around).item(self.node)
        groups = Groups(self.source, item.scope)
        items = list(self.items(item.scope, groups, settle=True, outer=True))
        self._sorting(item.scope, groups, items)
        if groups.aggregates:
            self.queries.relations = before  # It is bound again, as a grouped query.
            return None
        relation, correlated = self.queries.where(item, self._where(), self.around, outer=True)
        return relation, correlated, [one.expression for one in items]

    def _check_parts(self) -> None:
        for name, (reason, words, hint) in _REFUSED_PARTS.items():
            if self.node.args.get(name):
                raise self.source.unsupported(reason, self.source.clause(self.node, *words), hint)
        for name, value in self.node.args.items():
            if value and name not in _PARTS:
                what = name.strip("_").replace("_", " ").upper()
                raise self.source.unsupported(what, self.source.place(self.node))
        distinct = self.node.args.get("distinct")
        if distinct is not None and any(distinct.args.values()):
            place = self.source.clause(self.node, "DISTINCT")
            raise self.source.unsupported("DISTINCT ON", place, "GROUP BY its columns, with MIN or MAX of the others")

    def _where(self) -> exp.Expr | None:
        where = self.node.args.get("where")
        return None if where is None else where.this

    # --- the select list ---

    def items(
        self,
        scope: Scope,
        groups: Groups,
        *,
        settle: bool,
        outer: bool = False,
        subqueries: Subqueries | None = None,
    ) -> Iterator[Item]:
        for node in self.node.expressions:
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                yield from self._star(scope, node)
                continue
            written = node.this if isinstance(node, exp.Alias) else node
            named = isinstance(node, exp.Alias)
            name = identifier_name(node.args["alias"]) if named else output_name(self.source, written)
            binder = self.queries.binder(scope, "", groups, outer=outer)
            if subqueries is not None and not self.queries.is_view:
                binder.subqueries = subqueries.column
            expression = binder.settled(written) if settle else binder.bind(written)
            yield Item(name, expression, self.source.place(written))

    def _star(self, scope: Scope, node: exp.Expr) -> Iterator[Item]:
        star = node if isinstance(node, exp.Star) else node.this
        place = self.source.place(node)
        if any(star.args.values()) or node.args.get("db"):
            raise self.source.unsupported("EXCEPT, REPLACE and the like after *", place, hint="name the columns")
        columns = scope.columns
        if isinstance(node, exp.Column):
            columns = find_source(self.source, scope, identifier_name(node.args["table"]), place)
        elif not scope.sources:
            raise self.source.wrong("SELECT * without FROM", place, hint="name what to select")
        for visible in columns:
            yield Item(visible.name, visible.expression, place)

    # --- GROUP BY and HAVING ---

    def _group_by(self, scope: Scope, groups: Groups, items: Sequence[Item]) -> None:
        group = self.node.args.get("group")
        if group is None:
            return
        nodes = list(_flattened(group.expressions))
        simple = not any(value for name, value in group.args.items() if name != "expressions")
        if not group.expressions or not simple or any(isinstance(node, _SEVERAL_GROUPINGS) for node in nodes):
            place = self.source.clause(self.node, "GROUP BY")
            hint = "make one query for each grouping and combine them with UNION ALL"
            raise self.source.unsupported("grouping sets, ROLLUP, CUBE and GROUP BY ALL", place, hint)
        groups.keys = []  # GROUP BY (): one group of all rows, also of none.
        for node in nodes:
            binder = self.queries.binder(scope, "GROUP BY")
            groups.add_key(group_key(binder, node, items), self.source.place(node))

    def _having(self, scope: Scope, groups: Groups) -> list[Expression]:
        having = self.node.args.get("having")
        if having is None:
            return []
        groups.keys = groups.keys or []
        return self.queries.binder(scope, "", groups).conditions(having.this, "HAVING")

    def _grouped(
        self,
        relation: Relation,
        groups: Groups,
        items: Sequence[Item],
        having: Sequence[Expression],
        sorting: Sequence[Sorting],
    ) -> tuple[Relation, list[Item], list[Sorting]]:
        """Everything above GROUP BY, in terms of its groups."""
        over = [groups.over(item.expression, item.place) for item in items]
        node = self.node.args.get("having")
        conditions = [groups.over(condition, self.source.place(node)) for condition in having]
        relation = filtered(groups.group(relation), [groups.finished(condition) for condition in conditions])
        made = [replace(item, expression=groups.finished(made)) for item, made in zip(items, over, strict=True)]
        sorted_by = [replace(item, expression=item.expression and groups.finished(item.expression)) for item in sorting]
        return relation, made, sorted_by

    def _sorted_groups(self, groups: Groups, item: Sorting) -> Sorting:
        if item.expression is None:
            return item
        place = self.source.place(self.node.args.get("order"))
        return replace(item, expression=groups.over(item.expression, place))

    # --- ORDER BY, DISTINCT, LIMIT ---

    def _sorting(self, scope: Scope, groups: Groups, items: Sequence[Item]) -> list[Sorting]:
        order = self.node.args.get("order")
        sorting = []
        for node in order.expressions if order is not None else ():
            names, expressions = [item.name for item in items], [item.expression for item in items]
            position = self.queries.output_position(node, names, expressions)
            expression = None
            if position is None:
                expression = self.queries.binder(scope, "", groups).settled(node.this)
                self.queries.require_order(expression, self.source.place(node))
            sorting.append(self.queries.sorting(node, position, expression))
        return sorting

    def _sorted_outputs(self, items: Sequence[Item], sorting: Sequence[Sorting]) -> list[Sorting]:
        """With the position of an expression that is an output too."""
        expressions = [item.expression for item in items]
        found = []
        for item in sorting:
            if item.position is None and item.expression is not None:
                item = replace(item, position=find(item.expression, expressions))
            if item.position is None and self.node.args.get("distinct") is not None:
                message = "for SELECT DISTINCT, ORDER BY expressions must appear in the select list"
                raise self.source.wrong(
                    message, self.source.place(self.node.args["order"]), hint="select them, too, or use GROUP BY"
                )
            found.append(item)
        return found

    def _shown(self, relation: Relation, items: Sequence[Item], sorting: Sequence[Sorting], *, root: bool) -> Relation:
        """The outputs, ordered and limited. What is only sorted by is a column until then."""
        named = [(item.name, item.expression) for item in items]
        positions = []
        for item in sorting:
            if item.position is None:
                assert item.expression is not None, "an item is a position or an expression"
                named.append(("?column?", item.expression))
            positions.append(len(named) - 1 if item.position is None else item.position)
        made: Relation = project(relation, named)
        if self.node.args.get("distinct") is not None:
            for one in items:
                self.queries.require_order(one.expression, one.place)
            made = Distinct(made)
        placed = [replace(item, position=position) for item, position in zip(sorting, positions, strict=True)]
        made = self.queries.top(self.node, made, placed, root=root)
        if len(named) == len(items):
            return made
        return project(made, [(item.name, column(made, index)) for index, item in enumerate(items)])


def _flattened(nodes: Iterable[exp.Expr]) -> Iterator[exp.Expr]:
    """GROUP BY (a, b) is GROUP BY a, b, and () adds nothing."""
    for node in nodes:
        if isinstance(node, exp.Tuple):
            yield from _flattened(node.expressions)
        else:
            yield node


def _different(expressions: Iterable[Expression]) -> list[Expression]:
    different: list[Expression] = []
    for expression in expressions:
        if find(expression, different) is None:
            different.append(expression)
    return different


def group_key(binder: Binder, node: exp.Expr, items: Sequence[Item]) -> Expression:
    """PostgreSQL's order: an ordinal, a column of FROM, the name of an output, an expression."""
    source, inner = binder.source, bare(node)
    place = source.place(node)
    ordinal = ordinal_of(inner)
    if ordinal is not None:
        if not 1 <= ordinal <= len(items):
            raise source.wrong(
                f"GROUP BY position {ordinal} is not in the select list",
                place,
                hint=f"outputs have the numbers 1 to {len(items)}",
            )
        return coercion.settled(items[ordinal - 1].expression)
    if type(inner) in (exp.Literal, exp.Boolean, exp.Null):
        raise source.wrong(
            "non-integer constant in GROUP BY",
            source.place(node, "GROUP BY"),
            hint="name a column, or the number of an output",
        )
    if type(inner) is exp.Column and not inner.args.get("table") and isinstance(inner.this, exp.Identifier):
        name = identifier_name(inner.this)
        named = _different(item.expression for item in items if item.name == name)
        if not binder.scope.named(name) and named:
            if len(named) > 1:
                raise source.wrong(
                    f"GROUP BY {name} is ambiguous", place, hint="give the outputs different names with AS"
                )
            return coercion.settled(named[0])
    return binder.settled(node)
