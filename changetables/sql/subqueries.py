"""Subqueries inside expressions, of statements that are run once: each becomes a column of the rows that it is for.

A view keeps EXISTS and IN as joins where they stand alone or ANDed in WHERE, and refuses all others; a statement takes
them anywhere in WHERE, in the values that it writes and in the select list of a query without groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from ..algebra import Apply, Relation
from ..binding import Scope, references
from ..errors import UnsupportedView
from ..expressions import Call, ColumnRef, Expression
from ..types import BOOL
from .bound import Around
from .expressions import (
    OUTER_HINT,
    OUTER_REASON,
    QUERY_WORDS,
    Binder,
    compared_rows,
    compares_row,
    operator_of,
    quantified,
    row_items,
)
from .values import ONE_ROW

if TYPE_CHECKING:
    from .query import Queries


@dataclass(slots=True)
class Subqueries:
    """The subqueries inside expressions over rows of `width` columns, in the order of the text."""

    queries: Queries
    scope: Scope
    around: Around
    width: int
    found: list[Apply] = field(default_factory=list)

    def column(self, binder: Binder, node: exp.Expr) -> Expression:
        """What stands for a subquery of an expression: a column that `applied` adds."""
        place = binder.source.opening(node, QUERY_WORDS)
        if isinstance(node, exp.Exists):
            binder.source.only(node, "this")
            return self._added(Apply(ONE_ROW, self._bound(binder, node.this), "exists", place=place))
        parts = quantified(node)
        if parts is not None:
            return self._compared(binder, node, *parts)
        if compares_row(node):
            return self._compared(binder, node, operator_of(node), node.expression, every=False, kind="row")
        query = self._bound(binder, node)
        if len(query.fields) != 1:
            raise binder.source.wrong("subquery must return only one column", place, hint="select one column")
        return self._added(Apply(ONE_ROW, query, "scalar", place=place))

    def _compared(
        self, binder: Binder, node: exp.Expr, op: str, query: exp.Expr, every: bool, kind: str = "any"
    ) -> Expression:
        """x op ALL (query) is NOT (NOT x op ANY (query))."""
        values = [binder.bind(part) for part in row_items(node.this)]
        if not self.scope.free and any(reference.source for value in values for reference in references(value)):
            raise binder.source.unsupported(OUTER_REASON, binder.source.place(node), OUTER_HINT)
        relation = self._bound(binder, query)
        start = self.width + len(self.found)
        items = [
            ColumnRef(0, start + place, each.name, each.type, each.nullable)
            for place, each in enumerate(relation.fields)
        ]
        if len(items) != len(values):
            few = "few" if len(items) < len(values) else "many"
            raise binder.source.wrong(
                f"subquery has too {few} columns",
                binder.source.opening(query, QUERY_WORDS),
                hint="select as many columns as stand on the left",
            )
        if every and op == "<>":
            comparison: Expression = binder.source.typed(node, compared_rows, "=", values, items)
        else:
            comparison = binder.source.typed(node, compared_rows, op, values, items)
            comparison = Call("not", (comparison,), BOOL) if every else comparison
        found = self._added(Apply(ONE_ROW, relation, kind, comparison, binder.source.opening(query, QUERY_WORDS)))
        return Call("not", (found,), BOOL) if every else found

    def _bound(self, binder: Binder, query: exp.Expr) -> Relation:
        queries = replace(self.queries, source=binder.source)
        relation = queries.query(query, Around(self.around.ctes, self.scope, free=True)).relation
        self.queries.relations = queries.relations
        return relation

    def _added(self, apply: Apply) -> Expression:
        self.found.append(apply)
        last = apply.fields[-1]
        return ColumnRef(0, self.width + len(self.found) - 1, last.name, last.type, last.nullable)

    def applied(self, relation: Relation) -> Relation:
        """The rows with the columns of all subqueries."""
        for apply in self.found:
            relation = replace(apply, input=relation)
        return relation

    def refused_with_groups(self) -> UnsupportedView:
        reason = "scalar subqueries in the select list of a query with groups"
        return self.queries.source.unsupported(reason, self.found[0].place, "put the grouped query into FROM")


def reads_columns_from(expressions: Sequence[Expression], width: int) -> bool:
    """Whether one of them reads a column of a subquery."""
    return any(
        reference.source == 0 and reference.position >= width
        for expression in expressions
        for reference in references(expression)
    )
