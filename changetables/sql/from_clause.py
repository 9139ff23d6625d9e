"""FROM: tables, subqueries, lists of values and CTEs with their aliases, and all kinds of joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from sqlglot import exp

from .. import coercion
from ..binding import (
    FromItem,
    Place,
    Scope,
    all_of,
    joined,
    joined_using,
    named_item,
    nearest,
    side_by_side,
    table_item,
)
from ..errors import ProgrammingError, UnsupportedView
from ..expressions import Expression
from .bound import Around
from .expressions import QUERY_WORDS
from .text import SqlText, identifier_name
from .values import ONE_ROW

if TYPE_CHECKING:
    from .query import Queries

_SIDES = ("LEFT", "RIGHT", "FULL")


@dataclass(slots=True)
class FromClause:
    """Reads the FROM clause of one SELECT."""

    queries: Queries
    around: Around
    places: dict[str, Place | None] = field(default_factory=dict)

    @property
    def source(self) -> SqlText:
        return self.queries.source

    def item(self, select: exp.Expr) -> FromItem:
        first = select.args.get("from_")
        if first is None:
            for join in select.args.get("joins") or ():
                raise self.source.wrong(
                    "syntax error: a join without FROM", self.source.place(join), hint="write FROM and the first table"
                )
            self.queries.count(1, self.source.place(select))
            return FromItem(ONE_ROW, Scope(outer=self.around.scope, free=self.around.free), ())
        self.source.only(first, "this")
        item = self._item(first.this)
        whole: FromItem | None = None
        for join in select.args.get("joins") or ():
            if self._is_comma(join):
                # An ON sees only the tables of its own join, not those before the comma.
                whole, item = self._crossed(whole, item), self._item(join.this)
            else:
                item = self._join(item, join)
        whole = self._crossed(whole, item)
        return replace(whole, scope=replace(whole.scope, outer=self.around.scope, free=self.around.free))

    def _crossed(self, left: FromItem | None, right: FromItem) -> FromItem:
        if left is None:
            return right
        self._check_aliases(left, right)
        return joined("inner", left, right, None)

    def _is_comma(self, join: exp.Expr) -> bool:
        if join.meta.get("comma"):
            return True
        if any(value for name, value in join.args.items() if name != "this"):
            return False
        raise self.source.wrong("syntax error: JOIN without ON", self.source.place(join), hint="add ON or USING")

    # --- one item ---

    def _item(self, node: exp.Expr) -> FromItem:
        """A table or subquery with its alias, or joins in parentheses."""
        if type(node) is exp.Subquery and (type(_within(node)) is exp.Table or _has_joins(node.this)):
            return self._joins_in_parentheses(node)
        if type(node) is exp.Table and isinstance(node.this, exp.Values):
            # So sqlglot reads VALUES as the first item of joins in parentheses.
            values = node.this.copy()
            values.set("alias", node.args.get("alias"))
            item = self._subquery(values)
        elif type(node) is exp.Table:
            item = self._table(node)
        elif isinstance(node, exp.Subquery | exp.Values):
            item = self._subquery(node)
        else:
            self._refuse_item(node)
        for join in node.args.get("joins") or ():
            item = self._join(item, join)
        return item

    def _joins_in_parentheses(self, node: exp.Expr) -> FromItem:
        if any(value for name, value in node.args.items() if name not in ("this", "joins")):
            raise self.source.unsupported(
                "an alias for joins in parentheses", self.source.place(node), hint="give an alias to each table"
            )
        item = self._item(node.this)
        for join in node.args.get("joins") or ():
            item = self._join(item, join)
        return item

    def _table(self, node: exp.Expr) -> FromItem:
        place = self.source.place(node)
        if not isinstance(node.this, exp.Identifier):
            raise self.source.unsupported("functions in FROM", place, hint="store its rows in a table")
        if node.args.get("db") or node.args.get("catalog"):
            raise self.source.unsupported("names of tables with a schema", place, "leave the schema out")
        for part, value in node.args.items():
            if value and part not in ("this", "alias", "joins"):
                raise self.source.unsupported(f"{part.replace('_', ' ').upper()} in FROM", place)
        name, alias = identifier_name(node.this), node.args.get("alias")
        if alias is not None and alias.this is None:
            raise self.source.wrong("syntax error: AS without an alias", place, hint="write a name behind AS")
        shown = identifier_name(alias.this) if alias is not None else name
        self.places[shown] = place = self.source.place(node.this)
        cte, table = self.around.ctes.get(name), self.queries.tables.get(name)
        if cte is not None:
            self.queries.count(cte.relations, place)
            renamed = self.queries.column_names(alias, len(cte.relation.fields), shown)
            return named_item(cte.relation, shown, [*renamed, *cte.names[len(renamed) :]])
        if table is None:
            hint = nearest(name, [*self.queries.tables, *self.around.ctes])
            raise self.source.wrong(f"unknown table {name}", place, hint)
        self.queries.count(1, place)
        columns = self.queries.column_names(alias, len(table.visible()), shown)
        return table_item(table, name, shown, columns, place)

    def _subquery(self, node: exp.Expr) -> FromItem:
        alias = node.args.get("alias")
        if alias is None or alias.this is None:
            what = "VALUES in FROM" if isinstance(node, exp.Values) else "a subquery in FROM"
            place = self.source.opening(node, QUERY_WORDS)
            raise self.source.wrong(f"{what} must have an alias", place, hint="add one, as in (SELECT ...) AS q")
        shown = identifier_name(alias.this)
        self.places[shown] = self.source.place(alias.this)
        relation = self.queries.query(node, self.around, in_from=True).relation
        return named_item(relation, shown, self.queries.column_names(alias, len(relation.fields), shown))

    def _refuse_item(self, node: exp.Expr) -> NoReturn:
        if isinstance(node, exp.Lateral):
            place = self.source.opening(node, ("LATERAL",))
            raise self.source.unsupported("LATERAL", place, "write it as a join with a condition in ON")
        raise self.source.unsupported("this item in FROM", self.source.place(node))

    # --- joins ---

    def _join(self, left: FromItem, join: exp.Expr) -> FromItem:
        kind = self._kind(join)
        right = self._item(join.this)
        self._check_aliases(left, right)
        if join.args.get("method") == "NATURAL":
            rights = {column.name for column in right.scope.columns}
            names = list(dict.fromkeys(column.name for column in left.scope.columns if column.name in rights))
            return self._using(kind, left, right, [(name, self.source.place(join.this)) for name in names])
        if join.args.get("using"):
            return self._using(kind, left, right, [self._using_name(node) for node in join.args["using"]])
        condition = join.args.get("on")
        if condition is None:
            if join.args.get("kind") != "CROSS":
                hint = "add ON or USING"
                raise self.source.wrong("syntax error: JOIN without ON", self.source.place(join), hint)
            return joined(kind, left, right, None)
        scope = replace(side_by_side(left, right), outer=self.around.scope, free=self.around.free)
        binder = self.queries.binder(scope, "JOIN conditions")
        return joined(kind, left, right, all_of(binder.conditions(condition, "JOIN/ON")))

    def _check_aliases(self, left: FromItem, right: FromItem) -> None:
        for alias in right.scope.sources:
            if alias in left.scope.sources:
                hint = "give each use of a table its own alias"
                raise self.source.wrong(f"table name {alias} specified more than once", self.places[alias], hint)

    def _kind(self, join: exp.Expr) -> str:
        side, kind, method = (str(join.args.get(name) or "") for name in ("side", "kind", "method"))
        for word in (kind, method):
            if word in ("CROSS", "NATURAL") and (join.args.get("on") or join.args.get("using")):
                raise self.source.wrong(
                    f"syntax error: {word} JOIN with a condition",
                    self.source.place(join),
                    hint="leave ON and USING out, or write JOIN alone",
                )
        kinds = ("", "OUTER") if side in _SIDES else ("", "INNER", "CROSS")
        if kind not in kinds or method not in ("", "NATURAL") or (side and side not in _SIDES):
            what = " ".join(word for word in (method, side, kind) if word)
            raise self.source.unsupported(f"{what} JOIN", self.source.place(join))
        for name, value in join.args.items():
            if value and name not in ("this", "on", "using", "side", "kind", "method"):
                raise self.source.unsupported(f"{name} in JOIN", self.source.place(join))
        return side.lower() or "inner"

    def _using_name(self, node: exp.Expr) -> tuple[str, Place | None]:
        identifier = node.this if isinstance(node, exp.Column) else node
        if not isinstance(identifier, exp.Identifier):
            raise self.source.wrong(
                "syntax error in USING", self.source.place(node), hint="name the columns in parentheses, as USING (id)"
            )
        return identifier_name(identifier), self.source.place(node)

    def _using(self, kind: str, left: FromItem, right: FromItem, names: Sequence[tuple[str, Place | None]]) -> FromItem:
        both = side_by_side(left, right)
        count = len(left.scope.columns)
        pairs: list[tuple[str, Expression, Expression]] = []
        for index, (name, place) in enumerate(names):
            if name in [other for other, _ in names[:index]]:
                raise self.source.wrong(f"column {name} appears more than once in USING", place, hint="name it once")
            ours = self._one(replace(both, columns=both.columns[:count]), name, "left", place)
            theirs = self._one(replace(both, columns=both.columns[count:]), name, "right", place)
            try:
                coercion.comparison("=", ours, theirs)
            except (ProgrammingError, UnsupportedView) as error:
                raise self.source.placed(error, place) from None
            pairs.append((name, ours, theirs))
        return joined_using(kind, left, right, pairs)

    def _one(self, scope: Scope, name: str, side: str, place: Place | None) -> Expression:
        found = scope.named(name)
        if not found:
            hint = nearest(name, (column.name for column in scope.columns))
            raise self.source.wrong(f"column {name} of USING does not exist in the {side} table", place, hint)
        if len(found) > 1:
            raise self.source.wrong(
                f"column {name} appears more than once in the {side} table", place, hint="use ON with alias.column"
            )
        return found[0]


def _has_joins(node: object) -> bool:
    return type(node) is exp.Subquery and bool(node.args.get("joins"))


def _within(node: exp.Expr) -> exp.Expr:
    """What parentheses hold: a table for joins in parentheses, a query for a subquery."""
    while type(node) is exp.Subquery:
        node = node.this
    return node
