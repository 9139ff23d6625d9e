"""A query: from sqlglot's tree to a relation.

    FROM -> WHERE (Filter, then a Semi for each EXISTS and IN) -> GROUP BY (Group) -> HAVING (Filter) -> select list
    (Project) -> DISTINCT -> ORDER BY and LIMIT (Top)

A subquery of EXISTS or IN that names columns of the query around it must be a plain SELECT: those of its conditions
that do so become the condition of the semi-join, and the others stay below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import TokenType, exp

from .. import coercion
from ..algebra import Field, Order, Relation, Scan, Semi, SetOp, Top, column, inputs
from ..binding import (
    FromItem,
    Groups,
    Place,
    Scope,
    Visible,
    all_of,
    converted,
    filtered,
    find,
    mapped,
    matched,
    named_item,
    nullable,
    project,
    references,
    require_unique_names,
)
from ..errors import DataError, Error, ProgrammingError, UnsupportedView
from ..expressions import Call, ColumnRef, Expression, Literal
from ..schema import Table
from ..types import BOOL, INT, Type
from .bound import Around, Bound, Cte, Sorting
from .expressions import (
    FURTHER_OUT_REASON,
    OUTER_HINT,
    OUTER_REASON,
    QUERY_WORDS,
    Binder,
    compared_rows,
    row_items,
    subquery_of,
)
from .parameters import Parameters, ParameterValues
from .select import SelectQuery
from .subqueries import Subqueries, reads_columns_from
from .text import SqlText, bare, identifier_name, ordinal_of, parse_statement
from .values import constant, constant_rows, in_types, union_of

#: Tables, subqueries and lists of values of one query, with those of its CTEs once for each use.
RELATIONS_MAX = 200
#: Nested relations of one query. Every reader of a relation may recurse.
RELATION_LEVELS_MAX = 150

_BEGINS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.TABLE, TokenType.L_PAREN})
_KINDS: dict[type[exp.Expr], str] = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}
_MODIFIERS = ("order", "limit", "offset")


# --- public ---


def parse_view(text: str, tables: Mapping[str, Table]) -> Relation:
    """The relation that the query of a view stands for. `tables` has the views too, as tables with hidden columns.

    UnsupportedView: it cannot be kept. ProgrammingError: it is wrong. DataError: it holds a literal that its type
    cannot hold. All say where.
    """
    source = SqlText(text)
    return bind_view(source, _one_query(source), tables)


def bind_view(source: SqlText, node: exp.Expr, tables: Mapping[str, Table]) -> Relation:
    """The same for a query that is parsed already, as a part of a longer text."""
    bound = _bind(Queries(source, tables, is_view=True), node)
    require_unique_names(source, [field.name for field in bound.relation.fields], bound.places)
    return bound.relation


def parse_select(text: str, tables: Mapping[str, Table], parameters: ParameterValues = ()) -> Relation:
    """The relation of a query that is run once. A Top in it, at the root or under the last Project, is its order."""
    source = SqlText(text)
    values = Parameters(parameters)
    values.check(source)
    return bind_select(source, _one_query(source), tables, values)


def bind_select(
    source: SqlText, node: exp.Expr, tables: Mapping[str, Table], parameters: Parameters | None = None
) -> Relation:
    """The same for a query that is parsed already. Parameters are checked against the whole text by the caller."""
    return _bind(Queries(source, tables, parameters), node).relation


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table for UPDATE and DELETE: those that WHERE takes, with all columns that are not dropped, hidden
    ones too. `binder` binds expressions over them, with `subqueries`."""

    relation: Relation
    binder: Binder
    subqueries: Subqueries


def bind_rows(
    source: SqlText,
    name: str,
    alias: str,
    where: exp.Expr | None,
    tables: Mapping[str, Table],
    parameters: Parameters | None = None,
) -> Rows:
    """The rows of table `name` for which the condition is TRUE. Like a SELECT, it may have subqueries."""
    table = tables[name]
    positions = tuple(position for position, column in enumerate(table.columns) if not column.dropped)
    fields = tuple(
        Field(table.columns[position].name, table.columns[position].type, table.columns[position].nullable)
        for position in positions
    )
    item = named_item(Scan(name, alias, positions, fields), alias)
    shown = tuple(
        visible
        for visible, position in zip(item.scope.columns, positions, strict=True)
        if not table.columns[position].hidden
    )
    scope = Scope({alias: shown}, shown)
    queries = Queries(source, tables, parameters)
    try:
        relation, _ = queries.where(replace(item, scope=scope), where, NO_CTES, outer=False)
    except RecursionError:
        raise _too_deep(source) from None
    subqueries = Subqueries(queries, scope, NO_CTES, len(fields))
    binder = Binder(source, scope, "this clause", parameters=parameters, subqueries=subqueries.column)
    return Rows(relation, binder, subqueries)


def bind_scalar(
    node: exp.Expr,
    fields: Sequence[Field],
    source: SqlText,
    *,
    alias: str = "",
    clause: str = "this expression",
    parameters: Parameters | None = None,
) -> Expression:
    """An expression over the columns of one relation. `clause` says where aggregates are not allowed."""
    columns = tuple(
        Visible(field.name, ColumnRef(0, position, field.name, field.type, field.nullable))
        for position, field in enumerate(fields)
    )
    scope = Scope({alias: columns} if alias else {}, columns)
    try:
        return Binder(source, scope, clause, parameters=parameters).settled(node)
    except RecursionError:
        raise _too_deep(source) from None


def _one_query(source: SqlText) -> exp.Expr:
    first = next((token for token in source.tokens if token.token_type != TokenType.SEMICOLON), None)
    begin = source.place_of_offset(first.start) if first is not None else (1, 1)
    if first is not None and first.token_type not in _BEGINS:
        # Before parsing: sqlglot passes what it does not know on as a command, with a warning in the log.
        raise source.wrong("not a SELECT", begin, hint="write SELECT ... FROM ...")
    node = parse_statement(source)
    if not isinstance(node, exp.Query | exp.Values):
        raise source.wrong("not a SELECT", begin, hint="write SELECT ... FROM ...")
    return node


def _bind(queries: Queries, node: exp.Expr) -> Bound:
    try:
        return queries.query(node, NO_CTES, root=True)
    except RecursionError:
        raise _too_deep(queries.source) from None


def _too_deep(source: SqlText) -> ProgrammingError:
    return source.wrong("the SQL text is nested too deeply", None, hint="split the expression")


# --- queries ---


NO_CTES = Around()


@dataclass(slots=True)
class Queries:
    """Binds the queries of one text."""

    source: SqlText
    tables: Mapping[str, Table]
    parameters: Parameters | None = None
    is_view: bool = False
    relations: int = 0

    def query(
        self, node: exp.Expr, around: Around, *, root: bool = False, settle: bool = True, in_from: bool = False
    ) -> Bound:
        """A SELECT, VALUES, set operation, or one of them in parentheses. Without `settle`, literals of its select
        list may stay of unknown type, for the set operation around it to decide. In FROM it has an alias, and maybe
        joins behind it, which the caller reads."""
        around = self._with(node, around)
        extra = ("alias", "joins") if in_from else ()
        if isinstance(node, exp.Subquery):
            self.source.only(node, "this", "with_", *_MODIFIERS, *extra)
            bare_query = not any(node.args.get(part) for part in _MODIFIERS)
            self._check_once(node)
            inner = self.query(node.this, around, root=root and bare_query, settle=settle or not bare_query)
            bound = inner if bare_query else self._modified(node, inner, around, root=root)
        elif type(node) in _KINDS:
            bound = self._modified(node, self._set_operation(node, around), around, root=root)
        elif isinstance(node, exp.Values):
            self.source.only(node, "expressions", "with_", *_MODIFIERS, *extra)
            bound = self._modified(node, self._values(node, around), around, root=root)
        elif type(node) is exp.Select:
            bound = SelectQuery(self, node, around).bound(root=root, settle=settle)
        else:
            raise self.source.unsupported(f"a {node.key.upper()} as a query", self.source.place(node))
        if _levels(bound.relation) > RELATION_LEVELS_MAX:
            reason = f"queries of more than {RELATION_LEVELS_MAX} nested relations"
            raise self.source.unsupported(reason, self.source.place(node), "make a view of a part of it")
        return bound

    def _check_once(self, node: exp.Expr) -> None:
        """(SELECT ... LIMIT 3) LIMIT 2 is an error in PostgreSQL, too: the parentheses mean nothing there."""
        inner = node.this
        while isinstance(inner, exp.Subquery):
            inner = inner.this
        for part, word in (("order", "ORDER BY"), ("limit", "LIMIT"), ("offset", "OFFSET")):
            if node.args.get(part) and inner.args.get(part):
                message = f"multiple {word} clauses are not allowed"
                raise self.source.wrong(message, self.source.place(node.args[part]), hint="put the query into FROM")

    def count(self, relations: int, place: Place | None) -> None:
        self.relations += relations
        if self.relations > RELATIONS_MAX:
            reason = f"queries of more than {RELATIONS_MAX} tables and subqueries"
            raise self.source.unsupported(reason, place, "make a view of a part of it")

    def binder(self, scope: Scope, clause: str, groups: Groups | None = None, *, outer: bool = False) -> Binder:
        return Binder(self.source, scope, clause, groups, self.parameters, outer)

    def query_place(self, node: exp.Expr) -> Place | None:
        return self.source.opening(node, QUERY_WORDS)

    # --- WITH ---

    def _with(self, node: exp.Expr, around: Around) -> Around:
        clause = node.args.get("with_")
        if clause is None:
            return around
        if clause.args.get("recursive"):
            raise self.source.unsupported(
                "recursion (WITH RECURSIVE)",
                self.source.keyword("RECURSIVE"),
                hint="walk from row to row when you read, with a transaction; or keep each level as a view",
            )
        self.source.only(clause, "expressions")
        ctes = dict(around.ctes)
        here: set[str] = set()
        for cte in clause.expressions:
            self.source.only(cte, "this", "alias", "materialized")
            alias = cte.args["alias"]
            name = identifier_name(alias.this)
            self._check_as(alias)
            if name in here:
                place = self.source.place(alias)
                raise self.source.wrong(
                    f"WITH query name {name} specified more than once", place, hint="give each a name of its own"
                )
            here.add(name)
            if not isinstance(cte.this, exp.Query | exp.Values):
                raise self.source.unsupported(
                    "statements that change rows in WITH",
                    self.source.place(cte.this),
                    hint="write several statements in one transaction",
                )
            before = self.relations
            relation = self.query(cte.this, replace(around, ctes=ctes)).relation
            names = self.column_names(alias, len(relation.fields), name)
            ctes[name] = Cte(relation, names, max(1, self.relations - before))
            self.relations = before  # Each use counts, and one that is not used is not part of the relation.
        return replace(around, ctes=ctes)

    def _check_as(self, alias: exp.Expr) -> None:
        """sqlglot takes WITH q (SELECT ...) without AS."""
        index = self.source.index_of(self.source.offset(alias.this))
        if index is None:
            return
        depth = 0
        for token in self.source.tokens[index + 1 :]:
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if token.token_type == TokenType.ALIAS and depth == 0:
                return
            if token.token_type == TokenType.SELECT:
                place = self.source.place_of_offset(token.start)
                raise self.source.wrong(f'syntax error at or near "{token.text}"', place, hint="write WITH name AS (")

    def column_names(self, alias: exp.Expr | None, width: int, name: str) -> tuple[str, ...]:
        """The names that an alias gives to the first columns of a relation of this width."""
        columns = (alias.args.get("columns") or ()) if alias is not None else ()
        if len(columns) > width:
            message = f"table {name} has {width} columns available but {len(columns)} columns specified"
            raise self.source.wrong(message, self.source.place(alias), hint=f"give at most {width} names")
        return tuple(
            identifier_name(column.this if isinstance(column, exp.ColumnDef) else column) for column in columns
        )

    # --- VALUES ---

    def _values(self, node: exp.Expr, around: Around) -> Bound:
        place = self.source.opening(node, ("VALUES",))
        binder = self.binder(Scope(outer=around.scope, free=around.free), "VALUES")
        rows = [[binder.bind(item) for item in row_items(row)] for row in node.expressions]
        if len({len(row) for row in rows}) != 1:
            raise self.source.wrong(
                "VALUES lists must all be the same length", place, hint="give every row as many values"
            )
        columns = [self._values_column(node, [row[index] for row in rows]) for index in range(len(rows[0]))]
        parts = constant_rows(columns, place)
        self.count(len(parts), place)
        return Bound(union_of(parts), (place,) * len(columns))

    def _values_column(self, node: exp.Expr, expressions: Sequence[Expression]) -> list[Expression]:
        _, common = self.source.typed(node, coercion.matching, "VALUES", expressions)
        types = {expression.type for expression in expressions}
        type_ = types.pop() if len(types) == 1 and coercion.UNKNOWN not in types else Type(common.kind)
        return [constant(self.source.typed(node, converted, item, type_)) for item in expressions]

    # --- set operations ---

    def _set_operation(self, node: exp.Expr, around: Around) -> Bound:
        """A chain of set operations, from its left end: it may be long, so there is no recursion along it."""
        self.source.check_operands()
        chain = [node]
        while type(chain[-1].this) in _KINDS:
            left = chain[-1].this
            if type(chain[-1]) is exp.Intersect and type(left) is not exp.Intersect:
                # INTERSECT binds tighter; the parser should have seen to it.
                raise self.source.wrong(
                    "set operations in an order that needs parentheses",
                    self.source.place(left),
                    hint="write parentheses",
                )
            chain.append(left)
        bound = self.query(chain[-1].this, around, settle=False)
        for operation in reversed(chain):
            self.source.only(operation, "this", "expression", "distinct", "with_", *_MODIFIERS)
            if operation is not node and any(operation.args.get(part) for part in ("with_", *_MODIFIERS)):
                raise self.source.unsupported(
                    "ORDER BY or LIMIT inside a set operation",
                    self.source.place(operation),
                    hint="put the query in parentheses",
                )
            right = self.query(operation.expression, around, settle=False)
            bound = self._combined(operation, bound, right)
        return bound

    def _combined(self, node: exp.Expr, left: Bound, right: Bound) -> Bound:
        kind = _KINDS[type(node)]
        word = kind.upper()
        if len(left.relation.fields) != len(right.relation.fields):
            place = self.query_place(node.expression)
            raise self.source.wrong(
                f"each {word} query must have the same number of columns",
                place,
                hint="select as many columns in each; NULL can stand for one",
            )
        types = []
        pairs = zip(left.relation.fields, right.relation.fields, right.places, strict=True)
        everything = not node.args.get("distinct")
        for ours, theirs, place in pairs:
            try:
                type_ = matched(word, ours.type, theirs.type)
                if not (everything and kind == "union"):
                    coercion.require_equality(type_)
            except (ProgrammingError, UnsupportedView) as error:
                raise self.source.placed(error, place) from None
            types.append(type_)
        sides = []
        for bound in (left, right):
            try:
                sides.append(in_types(bound.relation, types))
            except DataError as error:
                raise self.source.placed(error, self._literal_place(node, error)) from None
        place = self.query_place(node.expression)
        return Bound(SetOp(kind, everything, sides[0], sides[1], place), left.places)

    def _literal_place(self, node: exp.Expr, error: Error) -> Place | None:
        literals = (part for part in node.find_all(exp.Literal) if f'"{part.this}"' in error.message)
        return self.source.place(next(literals, node))

    # --- ORDER BY and LIMIT of what is not a SELECT ---

    def _modified(self, node: exp.Expr, bound: Bound, around: Around, *, root: bool) -> Bound:
        sorting = []
        order = node.args.get("order")
        names = [field.name for field in bound.relation.fields]
        for ordered in order.expressions if order is not None else ():
            position = self.output_position(ordered, names)
            if position is None:
                what = "VALUES" if isinstance(node, exp.Values) else "UNION, INTERSECT and EXCEPT"
                hint = "name a column of the result or its number; or put the query into FROM"
                raise self.source.unsupported(f"ORDER BY an expression over {what}", self.source.place(ordered), hint)
            sorting.append(self.sorting(ordered, position, None))
        return Bound(self.top(node, bound.relation, sorting, root=root), bound.places)

    def output_position(
        self, ordered: exp.Expr, names: Sequence[str], expressions: Sequence[Expression] | None = None
    ) -> int | None:
        """The output that an ordinal or the bare name of an output means in ORDER BY. Of two with one name that are
        the same expression, the first."""
        inner = bare(ordered.this)
        place = self.source.place(inner, "ORDER BY")
        ordinal = ordinal_of(inner)
        if ordinal is not None:
            if not 1 <= ordinal <= len(names):
                raise self.source.wrong(
                    f"ORDER BY position {ordinal} is not in the select list",
                    place,
                    hint=f"outputs have the numbers 1 to {len(names)}",
                )
            return ordinal - 1
        if type(inner) in (exp.Literal, exp.Boolean, exp.Null):
            raise self.source.wrong(
                "non-integer constant in ORDER BY", place, hint="name a column, or the number of an output"
            )
        if type(inner) is not exp.Column or inner.args.get("table") or not isinstance(inner.this, exp.Identifier):
            return None
        name = identifier_name(inner.this)
        found = [index for index, other in enumerate(names) if other == name]
        for index in found[1:]:
            if expressions is None or find(expressions[index], [expressions[found[0]]]) is None:
                raise self.source.wrong(
                    f"ORDER BY {name} is ambiguous", place, hint="give the outputs different names with AS"
                )
        return found[0] if found else None

    def sorting(self, node: exp.Expr, position: int | None, expression: Expression | None) -> Sorting:
        self.source.only(node, "this", "desc", "nulls_first")
        return Sorting(position, expression, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))

    def limits(self, node: exp.Expr) -> tuple[int | None, int]:
        """LIMIT and OFFSET."""
        limit, offset = node.args.get("limit"), node.args.get("offset")
        skipped = 0
        if offset is not None:
            self.source.only(offset, "expression")
            skipped = self._row_count(offset.expression, "OFFSET") or 0
        if limit is None:
            return None, skipped
        if isinstance(limit, exp.Fetch):
            self.source.only(limit, "direction", "count", "limit_options")
            options = limit.args.get("limit_options")
            if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
                raise self.source.unsupported(
                    "FETCH with PERCENT or WITH TIES",
                    self.source.clause(node, "FETCH"),
                    hint="write LIMIT with a number",
                )
            count = limit.args.get("count")
            return (1 if count is None else self._row_count(count, "LIMIT")), skipped
        self.source.only(limit, "expression")
        if type(limit.expression) is exp.Var and str(limit.expression.this).upper() == "ALL":
            return None, skipped
        return self._row_count(limit.expression, "LIMIT"), skipped

    def _row_count(self, node: exp.Expr, clause: str) -> int | None:
        bound = self.binder(Scope(), clause).bind(node)
        value = self.source.typed(node, coercion.settled, bound, INT)
        if not isinstance(value, Literal) or value.type != INT:
            place = self.source.place(node)
            raise self.source.unsupported(f"{clause} with an expression", place, "write the number, or a parameter")
        assert value.value is None or isinstance(value.value, int), "an integer"
        if value.value is not None and value.value < 0:
            raise DataError(
                f"{clause} must not be negative{self.source.where(self.source.place(node))}", hint="give 0 or more"
            )
        return value.value

    def orders(self, node: exp.Expr, *, root: bool) -> bool:
        """Whether the order of this query matters: for LIMIT, or because it is the result of an ad-hoc SELECT."""
        limit, offset = self.limits(node)
        if self.is_view and limit is not None and node.args.get("order") is None:
            hint = "add ORDER BY: which rows are the first ones must not depend on chance"
            raise self.source.unsupported("LIMIT without ORDER BY", self.source.clause(node, "LIMIT", "FETCH"), hint)
        if self.is_view and offset:
            raise self.source.unsupported("OFFSET", self.source.clause(node, "OFFSET"), "skip rows when you read it")
        return limit is not None or bool(offset) or (root and not self.is_view)

    def top(self, node: exp.Expr, relation: Relation, sorting: Sequence[Sorting], *, root: bool) -> Relation:
        limit, offset = self.limits(node)
        if not self.orders(node, root=root) or (not sorting and limit is None and not offset):
            return relation
        orders = []
        for item in sorting:
            assert item.position is not None, "every item is a column of the relation"
            reference = column(relation, item.position)
            self.require_order(reference, self.source.place(node))
            orders.append(Order(reference, item.descending, item.nulls_first))
        return Top(relation, tuple(orders), limit, offset)

    def require_order(self, expression: Expression, place: Place | None) -> None:
        try:
            coercion.require_equality(expression.type)
        except UnsupportedView as error:
            raise self.source.placed(error, place) from None

    # --- WHERE ---

    def where(
        self, item: FromItem, node: exp.Expr | None, around: Around, *, outer: bool
    ) -> tuple[Relation, list[Expression]]:
        """The rows that the condition takes, and those of its parts that name columns of the query around."""
        if node is None:
            return item.relation, []
        subqueries = Subqueries(self, item.scope, around, len(item.fields))
        binder = self.binder(item.scope, "WHERE", outer=outer)
        if not self.is_view:
            binder.subqueries = subqueries.column
        plain: list[Expression] = []
        correlated: list[Expression] = []
        semis: list[tuple[exp.Expr, exp.Expr, bool]] = []
        for part in binder.conjuncts(node):
            inner, negated = _without_not(part)
            if isinstance(inner, exp.Exists) or subquery_of(inner) is not None:
                semis.append((part, inner, negated))
                continue
            condition = binder.condition(part, "WHERE")
            is_outer = outer and any(reference.source for reference in references(condition))
            (correlated if is_outer else plain).append(condition)
        late = [condition for condition in plain if reads_columns_from([condition], subqueries.width)]
        relation = filtered(item.relation, [condition for condition in plain if condition not in late])
        for part, inner, negated in semis:
            try:
                relation = self._semi(replace(item, relation=relation), inner, around, negated=negated)
            except UnsupportedView as error:
                if self.is_view or error.reason not in (OUTER_REASON, FURTHER_OUT_REASON):
                    raise
                late.append(binder.condition(part, "WHERE"))
        if reads_columns_from(correlated, subqueries.width):
            raise self.source.unsupported(OUTER_REASON, self.source.place(node), OUTER_HINT)
        if late:
            above = filtered(subqueries.applied(relation), late)
            relation = project(above, [(field.name, column(above, place)) for place, field in enumerate(item.fields)])
        return relation, correlated

    def _semi(self, item: FromItem, node: exp.Expr, around: Around, *, negated: bool) -> Relation:
        query = node.this if isinstance(node, exp.Exists) else subquery_of(node)
        assert isinstance(query, exp.Expr), "the caller found a subquery"
        below = Around(around.ctes, item.scope)
        if isinstance(node, exp.Exists):
            self.source.only(node, "this")
            right, conditions = self._subquery(query, below)[:2]
        else:
            self.source.only(node, "this", "expression", "query", "expressions")
            negated = negated != (type(node) is exp.NEQ)
            binder = self.binder(item.scope, "WHERE")
            values = [binder.bind(part) for part in row_items(node.this)]
            if any(reference.source for value in values for reference in references(value)):
                raise self.source.unsupported(OUTER_REASON, self.source.place(node), OUTER_HINT)
            right, conditions, items = self._subquery(query, below, columns=len(values))
            if len(items) != len(values):
                few = "few" if len(items) < len(values) else "many"
                raise self.source.wrong(
                    f"subquery has too {few} columns",
                    self.query_place(query),
                    hint="select as many columns as stand on the left",
                )
            # Literals of unknown type in the select list of a subquery are text, as in any other.
            values = [mapped(value, lambda reference: replace(reference, source=1)) for value in values]
            equal = self.source.typed(node, compared_rows, "=", values, items)
            if negated and any(map(nullable, (*values, *items))):
                equal = Call("is_distinct", (equal, Literal(False, BOOL)), BOOL)
            conditions = [*conditions, equal]
        width = len(item.fields)

        def leaf(reference: ColumnRef) -> ColumnRef:
            shift = 0 if reference.source else width
            return replace(reference, source=0, position=reference.position + shift)

        condition = all_of([mapped(part, leaf) for part in conditions])
        return Semi(item.relation, right, condition, negated, self.source.place(node))

    def _subquery(
        self, node: exp.Expr, around: Around, columns: int = 0
    ) -> tuple[Relation, list[Expression], list[Expression]]:
        """The rows of a subquery, the conditions that connect them with the row outside, and its outputs, all with
        source 0 for the subquery and 1 for the query around it. Without `columns`, only whether there is a row counts.
        """
        select = node
        while isinstance(select, exp.Subquery) and not any(select.args.get(name) for name in ("with_", *_MODIFIERS)):
            select = select.this
        if type(select) is exp.Select:
            query = SelectQuery(self, select, self._with(select, around))
            plain = query.plain(exists=not columns)
            if plain is not None:
                return plain
        relation = self.query(node, around).relation
        return relation, [], [column(relation, position) for position in range(len(relation.fields))]


def _without_not(node: exp.Expr) -> tuple[exp.Expr, bool]:
    inner, negated = bare(node), False
    while type(inner) is exp.Not:
        inner, negated = bare(inner.this), not negated
    return inner, negated


def _levels(relation: Relation) -> int:
    return 1 + max(map(_levels, inputs(relation)), default=0)
