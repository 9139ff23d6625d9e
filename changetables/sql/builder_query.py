"""The builder's query to a relation: the same one as that of the SQL text with the same parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from .. import coercion
from ..algebra import Relation
from ..binding import (
    FromItem,
    Groups,
    Item,
    Scope,
    all_of,
    filtered,
    fold,
    joined,
    nearest,
    project,
    require_unique_names,
    side_by_side,
    table_item,
)
from ..errors import ProgrammingError, UnsupportedView
from ..expressions import Expression
from ..schema import Table
from .expressions import AGGREGATE_NODES, Binder, output_name, resolve_column
from .select import group_key
from .text import SqlText, bare, identifier_name, ordinal_of, parse_expression

if TYPE_CHECKING:
    from ..builder import JoinEdge, JoinTable, Query

_FLIPPED = {"inner": "inner", "left": "right", "right": "left", "full": "full"}


def bind_query(query: Query, tables: Mapping[str, Table]) -> Relation:
    """The relation of a builder's query. `tables` has the views too, as tables with hidden columns."""
    whole = SqlText("", "the query")
    try:
        return _bind_query(whole, query, tables)
    except RecursionError:
        raise whole.wrong("the query is nested too deeply", None, hint="split the expression") from None


def _bind_query(whole: SqlText, query: Query, tables: Mapping[str, Table]) -> Relation:
    items = [_table(whole, tables, table) for table in query.tables]
    item, conditions = _joined(items, query.on)
    scope = item.scope
    if query.where is not None:
        source, node = parse_expression(query.where, "where")
        conditions += Binder(source, scope, "WHERE").conditions(node, "WHERE")
    relation = filtered(item.relation, conditions)
    groups = Groups(whole, scope)
    outputs = _outputs(scope, groups, query)
    outputs = [*_group_by(scope, groups, query, outputs), *outputs]
    having = _having(scope, groups, query)
    if query.select is None and query.group_by is None:
        outputs = [Item(column.name, column.expression, None) for column in scope.columns]
    if groups.keys is not None or groups.aggregates:
        over = [groups.over(output.expression, None) for output in outputs]
        kept = [groups.over(condition, None) for condition in having]
        relation = filtered(groups.group(relation), [groups.finished(condition) for condition in kept])
        outputs = [Item(output.name, groups.finished(made), None) for output, made in zip(outputs, over, strict=True)]
    require_unique_names(whole, [output.name for output in outputs], [None] * len(outputs))
    return project(relation, [(output.name, output.expression) for output in outputs])


def _table(whole: SqlText, tables: Mapping[str, Table], table: JoinTable) -> FromItem:
    """A name of the Python API is exact; one that does not exist so is looked up as SQL would."""
    name = table.table if table.table in tables else fold(table.table)
    if name not in tables:
        raise whole.wrong(f"unknown table {name}", None, nearest(name, tables))
    return table_item(tables[name], name, fold(table.alias) if table.alias else name)


# --- joins ---


def _joined(items: Sequence[FromItem], edges: Sequence[JoinEdge]) -> tuple[FromItem, list[Expression]]:
    """The tables joined in their order, each on its edges with those before it; and the conditions within one table."""
    aliases = [next(iter(item.scope.sources)) for item in items]
    placed = [_placed(edge, aliases) for edge in edges]
    whole, conditions = items[0], []
    for index, item in enumerate(items[1:], start=1):
        own = [(edge, ends) for edge, ends in zip(edges, placed, strict=True) if max(ends) == index > min(ends)]
        kinds = {edge.kind if ends[0] < ends[1] else _FLIPPED[edge.kind] for edge, ends in own}
        if len(kinds) > 1:
            message = f"the edges of table {aliases[index]} have different kinds of join: {', '.join(sorted(kinds))}"
            raise ProgrammingError(message, hint="give all of them one kind")
        scope = side_by_side(whole, item)
        equalities = [_equality(scope, edge, flipped=ends[0] > ends[1]) for edge, ends in own]
        whole = joined(kinds.pop() if kinds else "inner", whole, item, all_of(equalities))
    for edge, ends in zip(edges, placed, strict=True):
        if ends[0] == ends[1]:
            if edge.kind != "inner":
                raise ProgrammingError(f"an outer join of a table with itself in {_label(edge)}", hint="use an alias")
            conditions.append(_equality(whole.scope, edge, flipped=False))
    return whole, conditions


def _label(edge: JoinEdge) -> str:
    return f"on {edge.left!r} = {edge.right!r}"


def _side(edge: JoinEdge, text: str) -> tuple[SqlText, exp.Expr]:
    source, node = parse_expression(text, _label(edge))
    if type(node) is not exp.Column or not node.args.get("table"):
        raise source.wrong(f"{text!r} is not alias.column", None, hint='write alias.column, as "e.product"')
    return source, node


def _placed(edge: JoinEdge, aliases: Sequence[str]) -> tuple[int, int]:
    """Which of the tables the edge connects."""
    ends = []
    for text in (edge.left, edge.right):
        source, node = _side(edge, text)
        alias = identifier_name(node.args["table"])
        if alias not in aliases:
            hint = nearest(alias, aliases) + "; an alias hides the name of its table"
            raise source.wrong(f"no table {alias} here", source.place(node), hint)
        ends.append(aliases.index(alias))
    return ends[0], ends[1]


def _equality(scope: Scope, edge: JoinEdge, *, flipped: bool) -> Expression:
    """The earlier table comes first, so that an edge means the same in both directions."""
    sides = []
    for text in (edge.right, edge.left) if flipped else (edge.left, edge.right):
        source, node = _side(edge, text)
        sides.append(resolve_column(source, scope, node)[0])
    try:
        return coercion.comparison("=", sides[0], sides[1])
    except (ProgrammingError, UnsupportedView) as error:
        raise SqlText("", _label(edge)).placed(error, None) from None


# --- outputs and groups ---


def _outputs(scope: Scope, groups: Groups, query: Query) -> list[Item]:
    items = []
    for name, value in query.select or ():
        label = f"select {name!r}"
        node: exp.Expr
        if isinstance(value, str):
            source, node = parse_expression(value, label)
        elif value.argument is None:
            source, node = SqlText("", label), exp.Count(this=exp.Star())
        else:
            source, argument = parse_expression(value.argument, label)
            inner = exp.Distinct(expressions=[argument]) if value.distinct else argument
            node = AGGREGATE_NODES[value.kind](this=inner)
        items.append(Item(name, Binder(source, scope, "", groups).settled(node), source.place(node)))
    return items


def _group_by(scope: Scope, groups: Groups, query: Query, items: Sequence[Item]) -> list[Item]:
    """Adds the keys; gives an output for each that the select list does not name."""
    unnamed: list[Item] = []
    for text in query.group_by or ():
        source, node = parse_expression(text, f"group_by {text!r}")
        if ordinal_of(bare(node)) is not None:
            raise source.wrong("a number in group_by", None, hint="write the column or expression")
        key = group_key(Binder(source, scope, "GROUP BY"), node, items)
        groups.add_key(key, source.place(node))
        if all(item.expression != key for item in (*items, *unnamed)):
            unnamed.append(Item(output_name(source, node), key, None))
    return unnamed


def _having(scope: Scope, groups: Groups, query: Query) -> list[Expression]:
    if query.having is None:
        return []
    source, node = parse_expression(query.having, "having")
    groups.keys = groups.keys or []
    return Binder(source, scope, "", groups).conditions(node, "HAVING")
