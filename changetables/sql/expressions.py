"""Scalar expressions and aggregates: from sqlglot's nodes to bound expressions, as PostgreSQL 15 reads them.

Columns, operators, CASE, CAST and aggregates are bound here; `scalars` binds everything else that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from sqlglot import exp

from .. import coercion
from ..binding import Groups, Place, Scope, aggregate, find_source, fold, mapped, nearest, references
from ..errors import ProgrammingError
from ..expressions import Aggregate, Call, Expression, Literal
from ..types import BOOL, BYTES, DATE, DECIMAL, FLOAT, INT, JSON, STR, TIMESTAMP, TIMESTAMPTZ, Type
from . import scalars
from .parameters import Parameters
from .text import SqlText, bare, identifier_name, parameter_key

#: Nested levels of one expression. Every reader of a relation may recurse, so none is ever deeper than this.
EXPRESSION_LEVELS_MAX = 150

_VOLATILE = frozenset(
    {
        "now", "random", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday",
        "current_timestamp", "current_date", "current_time", "localtime", "localtimestamp", "gen_random_uuid",
        "uuid_generate_v4", "nextval", "currval", "lastval", "setval", "setseed", "random_normal", "pg_sleep",
        "current_user", "session_user", "user", "current_role", "current_catalog", "current_schema",
    }
)  # fmt: skip

#: How tightly PostgreSQL's operators bind. sqlglot's order is not the same everywhere: where its tree is not the one
#: that these give, the text is refused, not misread.
_BINDS: dict[type[exp.Expr], int] = {
    exp.Or: 1,
    exp.And: 2,
    exp.Not: 3,
    exp.Is: 4,
    exp.NullSafeEQ: 4,
    exp.NullSafeNEQ: 4,
    exp.EQ: 5,
    exp.NEQ: 5,
    exp.LT: 5,
    exp.LTE: 5,
    exp.GT: 5,
    exp.GTE: 5,
    exp.Between: 6,
    exp.In: 6,
    exp.Like: 6,
    exp.ILike: 6,
    exp.SimilarTo: 6,
    exp.Escape: 6,
    exp.DPipe: 7,
    exp.RegexpLike: 7,
    exp.RegexpILike: 7,
    exp.BitwiseAnd: 7,
    exp.BitwiseOr: 7,
    exp.BitwiseXor: 7,
    exp.BitwiseLeftShift: 7,
    exp.BitwiseRightShift: 7,
    exp.JSONExtract: 7,
    exp.JSONExtractScalar: 7,
    exp.Add: 8,
    exp.Sub: 8,
    exp.Mul: 9,
    exp.Div: 9,
    exp.Mod: 9,
    exp.Pow: 10,
    exp.AtTimeZone: 11,
    exp.Neg: 12,
}
_BINDS_TIGHTEST = 13
_CHAINS = frozenset({1, 2, 7, 8, 9, 10})  # Left-associative; a < b < c and the like are syntax errors.

_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
#: What PostgreSQL calls each aggregate, and its kind; the first is also that of a node without a name.
_AGGREGATES: dict[type[exp.Expr], dict[str, str]] = {
    exp.Count: {"count": "count"},
    exp.Sum: {"sum": "sum"},
    exp.Avg: {"avg": "avg"},
    exp.Min: {"min": "min"},
    exp.Max: {"max": "max"},
    exp.Variance: {"var_samp": "var_samp", "variance": "var_samp"},
    exp.VariancePop: {"var_pop": "var_pop"},
    exp.Stddev: {"stddev": "stddev_samp"},
    exp.StddevSamp: {"stddev_samp": "stddev_samp"},
    exp.StddevPop: {"stddev_pop": "stddev_pop"},
    exp.LogicalAnd: {"bool_and": "bool_and"},
    exp.LogicalOr: {"bool_or": "bool_or"},
    exp.Anonymous: {"every": "bool_and"},
}
AGGREGATE_NODES: dict[str, type[exp.Expr]] = {
    "count": exp.Count,
    "sum": exp.Sum,
    "avg": exp.Avg,
    "min": exp.Min,
    "max": exp.Max,
    "var_pop": exp.VariancePop,
    "var_samp": exp.Variance,
    "stddev_pop": exp.StddevPop,
    "stddev_samp": exp.StddevSamp,
}
#: The type, and PostgreSQL's name for a column that is only a cast to it.
_TYPES: dict[exp.DType, tuple[Type, str]] = {
    exp.DType.SMALLINT: (INT, "int2"),
    exp.DType.INT: (INT, "int4"),
    exp.DType.BIGINT: (INT, "int8"),
    exp.DType.DECIMAL: (DECIMAL, "numeric"),
    exp.DType.FLOAT: (FLOAT, "float4"),
    exp.DType.DOUBLE: (FLOAT, "float8"),
    exp.DType.TEXT: (STR, "text"),
    exp.DType.VARCHAR: (STR, "varchar"),
    exp.DType.CHAR: (Type("str", length=1, padded=True), "bpchar"),
    exp.DType.BPCHAR: (STR, "bpchar"),
    exp.DType.BOOLEAN: (BOOL, "bool"),
    exp.DType.DATE: (DATE, "date"),
    exp.DType.TIMESTAMP: (TIMESTAMP, "timestamp"),
    exp.DType.TIMESTAMPTZ: (TIMESTAMPTZ, "timestamptz"),
    exp.DType.VARBINARY: (BYTES, "bytea"),
    exp.DType.JSON: (JSON, "json"),
    exp.DType.JSONB: (JSON, "jsonb"),
}
#: numeric(p, s) in PostgreSQL: 1 to 1000 digits, with a scale of -1000 to 1000.
_PRECISION_DIGITS_MAX = 1_000
_VARCHAR_CHARACTERS_MAX = 10_485_760
_LIMITED_TEXTS = ("varchar", "bpchar")

_NAMED_FEATURES: dict[type[exp.Expr], tuple[str, str]] = {
    exp.ILike: ("ILIKE", "ILIKE"),
    exp.Escape: ("LIKE ... ESCAPE", "ESCAPE"),
    exp.Tuple: ("row values", "("),
    exp.Interval: ("intervals", "INTERVAL"),
    exp.AtTimeZone: ("AT TIME ZONE", "AT TIME ZONE"),
    exp.Collate: ("COLLATE", "COLLATE"),
    exp.Dot: ("qualified function names", "."),
    exp.ByteString: ("strings with escapes", "E"),
    exp.RawString: ("strings in dollar signs", "$"),
    exp.Concat: ("CONCAT and adjacent strings", "CONCAT"),
}
#: What to do without a function that there is not.
_FUNCTION_HINTS = {
    "aggregate function": f"there are {', '.join(name for names in _AGGREGATES.values() for name in names)}; or put the"
    " rows together when you read them",
    "function": "docs/sql.md lists the functions; or compute it when you write the row, or when you read it",
}
_WHOLE_ROW_REASON = "a whole row as a value"
QUERY_WORDS = ("SELECT", "WITH", "VALUES", "TABLE")
_SEMI_HINT = (
    "let it stand alone or ANDed in WHERE; instead of an OR, write one query for each side and combine them with UNION"
)
_SCALAR_HINT = "join it: LEFT JOIN (SELECT key, value FROM ...) q ON q.key = t.key, with GROUP BY for an aggregate"
OUTER_HINT = "write it as a join"
OUTER_REASON = "a column of the query around a subquery, named elsewhere than in WHERE of a plain SELECT"
FURTHER_OUT_REASON = "a subquery that names a column of a query further out than the one around it"
#: What to do instead of a volatile function, by clause. Elsewhere a view stores the value, and a statement is given it.
_VOLATILE_HINTS = {"DEFAULT": "give the value when the row is written", "CHECK": "compare with a column or a constant"}


def binding_of(node: exp.Expr) -> int:
    """NOT IN, NOT BETWEEN and NOT LIKE bind as their operators do, though sqlglot puts the NOT outside."""
    if type(node) is exp.Not and type(node.this) in (exp.In, exp.Between, exp.Like, exp.ILike, exp.SimilarTo, exp.Is):
        return _BINDS[type(node.this)]
    if type(node) in (exp.Mod, exp.Pow, exp.RegexpLike, exp.RegexpILike) and node.meta:
        return _BINDS_TIGHTEST  # mod(a, b)
    return _BINDS.get(type(node), _BINDS_TIGHTEST)


def chain(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    """The operands of nested ANDs (or ORs) in the order of the text, without recursion."""
    operands, pending = [], [node]
    while pending:
        part = pending.pop()
        inner = bare(part)
        if type(inner) is kind:
            pending += (inner.expression, inner.this)
        else:
            operands.append(part)
    return operands


def is_row(node: exp.Expr) -> bool:
    """(a, b) or ROW(a, b)."""
    inner = bare(node)
    return type(inner) is exp.Tuple or (type(inner) is exp.Anonymous and str(inner.this).upper() == "ROW")


def row_items(node: exp.Expr) -> list[exp.Expr]:
    """The items of a row, or the one value."""
    return list(bare(node).expressions) if is_row(node) else [node]


def subquery_of(node: exp.Expr) -> exp.Expr | None:
    """The query of IN (query), = ANY (query) and <> ALL (query), None if it is none of them."""
    inner: exp.Expr | None = None
    if type(node) is exp.In:
        inner = node.args.get("query")
        if inner is None and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query | exp.Values):
            inner = node.expressions[0]
    elif type(node) in (exp.EQ, exp.NEQ):
        right, every = node.expression, type(node) is exp.NEQ
        if type(right) is (exp.All if every else exp.Any):
            inner = right.this
        elif type(right) is exp.Anonymous and str(right.this).upper() in (("ALL",) if every else ("ANY", "SOME")):
            # How sqlglot reads SOME, and ANY and ALL before VALUES.
            inner = right.expressions[0] if len(right.expressions) == 1 else None
    return inner if isinstance(inner, exp.Query | exp.Values) else None


def quantified(node: exp.Expr) -> tuple[str, exp.Expr, bool] | None:
    """The operator, the query and whether it is ALL, of x IN (query) and x op ANY / SOME / ALL (query)."""
    if type(node) is exp.In:
        query = subquery_of(node)
        return None if query is None else ("=", query, False)
    op = _COMPARISONS.get(type(node))
    if op is None:
        return None
    right = node.expression
    word, inner = right.key.upper(), right.this
    if type(right) is exp.Anonymous:  # How sqlglot reads SOME, and ANY and ALL before VALUES.
        word, inner = str(right.this).upper(), right.expressions[0] if len(right.expressions) == 1 else None
    if word not in ("ANY", "SOME", "ALL") or not isinstance(inner, exp.Query | exp.Values):
        return None
    return op, inner, word == "ALL"


def compares_row(node: exp.Expr) -> bool:
    """(a, b) = (query) and the like."""
    return type(node) in _COMPARISONS and is_row(node.this) and isinstance(bare(node.expression), exp.Query)


def operator_of(node: exp.Expr) -> str:
    return _COMPARISONS[type(node)]


@dataclass(slots=True)
class Binder:
    """Binds expressions of one text over the columns of one scope.

    `groups` collects aggregates; where they may not stand, it is None and `clause` says what forbids them. `outer`:
    columns of the query around this one may be named; they become references with source 1. `subqueries` gives the
    column that stands for a subquery; where they may not stand, it is None.
    """

    source: SqlText
    scope: Scope
    clause: str = ""
    groups: Groups | None = None
    parameters: Parameters | None = None
    outer: bool = False
    subqueries: Callable[[Binder, exp.Expr], Expression] | None = None
    within_aggregate: bool = False
    level: int = 0
    _methods: dict[type[exp.Expr], Callable[[exp.Expr], Expression]] = field(init=False)

    def __post_init__(self) -> None:
        self._methods = {
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: Literal(bool(node.this), BOOL),
            exp.Null: lambda node: coercion.unknown(None),
            exp.Placeholder: self._parameter,
            exp.Paren: lambda node: self._operand(node.this),
            exp.Neg: self._negation,
            exp.And: lambda node: self._connective(node, exp.And),
            exp.Or: lambda node: self._connective(node, exp.Or),
            exp.Not: self._not,
            exp.Is: self._is,
            exp.NullSafeEQ: lambda node: self._distinct(node, "is_not_distinct"),
            exp.NullSafeNEQ: lambda node: self._distinct(node, "is_distinct"),
            exp.Between: self._between,
            exp.In: self._in,
            exp.Like: self._like,
            exp.DPipe: lambda node: self._binary(node, coercion.concatenation, extra=("safe",)),
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.Filter: self._filter,
        }
        for kind in _AGGREGATES:
            self._methods[kind] = self._aggregate
        for kind in _ARITHMETIC:
            self._methods[kind] = self._arithmetic
        for kind in _COMPARISONS:
            self._methods[kind] = self._comparison

    def bind(self, node: exp.Expr) -> Expression:
        """The bound expression; a literal that nothing gives a type to stays of type UNKNOWN."""
        return self._operand(node)

    def settled(self, node: exp.Expr) -> Expression:
        """The bound expression; what nothing gives a type to is text."""
        return self.source.typed(node, coercion.settled, self.bind(node))

    def conjuncts(self, node: exp.Expr) -> list[exp.Expr]:
        """The conditions that are ANDed in `node`, in the order of the text."""
        parts = chain(node, exp.And)
        if len(parts) > 1:
            for part in parts:
                self._check_binding(part, _BINDS[exp.And])
        return parts

    def condition(self, node: exp.Expr, clause: str) -> Expression:
        """One condition, which must be boolean."""
        return self.source.typed(node, coercion.condition, self._operand(node), clause)

    def conditions(self, node: exp.Expr, clause: str) -> list[Expression]:
        return [self.condition(part, clause) for part in self.conjuncts(node)]

    # --- help ---

    def _operand(self, node: exp.Expr) -> Expression:
        if self.level >= EXPRESSION_LEVELS_MAX:
            reason = f"expressions of more than {EXPRESSION_LEVELS_MAX} nested levels"
            raise self.source.unsupported(reason, self.source.place(node), "split the expression")
        self.level += 1
        method = self._methods.get(type(node), self._other)
        bound = method(node)
        self.level -= 1
        return bound

    def _other(self, node: exp.Expr) -> Expression:
        """A node that only `scalars` may know."""
        if self.subqueries is not None and isinstance(node, exp.Exists | exp.Query):
            return self._subquery(node)
        operator = node.this if type(node) is exp.Escape else node  # The operands are those of its LIKE.
        if type(operator) is exp.AtTimeZone:
            self._check_binding(operator.this, _BINDS[exp.AtTimeZone] - 1)
        elif type(operator) in _BINDS and binding_of(operator) < _BINDS_TIGHTEST and isinstance(operator, exp.Binary):
            self._check_operands(operator)
        bound = scalars.bind_function(node, self._operand, self.source)
        if bound is None:
            self._refuse(node)
        return bound

    def _check_binding(self, node: exp.Expr, binding: int, *, right: bool = False) -> None:
        inner = binding_of(node)
        fits = inner > binding or (inner == binding and binding in _CHAINS and not right)
        if inner == binding and (binding in (1, 2) or (type(node) in (exp.Is, exp.Not) and not right)):
            return  # AND and OR are associative; x IS NULL IS TRUE has one reading only.
        if not fits:
            place = self.source.place(node)
            raise self.source.wrong("operators in an order that needs parentheses", place, hint="add parentheses")

    def _check_operands(self, node: exp.Expr) -> None:
        binding = binding_of(node)
        self._check_binding(node.this, binding)
        self._check_binding(node.expression, binding, right=True)

    def _binary(self, node: exp.Expr, rule: Callable[..., Expression], extra: Sequence[str] = ()) -> Expression:
        self.source.only(node, "this", "expression", *extra)
        self._check_operands(node)
        left, right = self._operand(node.this), self._operand(node.expression)
        return self.source.typed(node, rule, left, right)

    # --- leaves ---

    def _column(self, node: exp.Expr) -> Expression:
        expression, level = resolve_column(self.source, self.scope, node)
        if level == 0:
            return expression
        place = self.source.place(node)
        if _is_free(self.scope, level):
            return expression
        if level > 1:
            raise self.source.unsupported(FURTHER_OUT_REASON, place, OUTER_HINT)
        if not self.outer or self.within_aggregate:
            raise self.source.unsupported(OUTER_REASON, place, OUTER_HINT)
        return expression

    def _literal(self, node: exp.Expr) -> Expression:
        if node.args.get("is_string"):
            return coercion.unknown(str(node.this))
        return self.source.typed(node, coercion.number, str(node.this))

    def _parameter(self, node: exp.Expr) -> Expression:
        key = parameter_key(node)
        if key is None or self.parameters is None:
            place = self.source.place(node, "?", ":")
            raise self.source.unsupported("parameters", place, "write the value")
        return self.source.typed(node, self.parameters.literal, key)

    def _negation(self, node: exp.Expr) -> Expression:
        inner, sign = bare(node.this), "-"
        while type(inner) is exp.Neg:
            inner, sign = bare(inner.this), "" if sign else "-"
        if type(inner) is exp.Literal and not inner.args.get("is_string"):
            return self.source.typed(node, coercion.number, sign + str(inner.this))
        self._check_binding(node.this, _BINDS[exp.Neg] - 1)
        return self.source.typed(node, coercion.negation, self._operand(node.this))

    # --- operators ---

    def _arithmetic(self, node: exp.Expr) -> Expression:
        if type(node) is exp.Mod and node.meta:
            return self._other(node)
        op = _ARITHMETIC[type(node)]
        return self._binary(node, lambda a, b: coercion.arithmetic(op, a, b), extra=("typed", "safe"))

    def _comparison(self, node: exp.Expr) -> Expression:
        if subquery_of(node) is not None:
            return self._subquery(node)
        if self.subqueries is not None and (quantified(node) is not None or compares_row(node)):
            return self._subquery(node)
        op = _COMPARISONS[type(node)]
        if is_row(node.this) and is_row(node.expression):
            return self._row_comparison(node, op)
        return self._binary(node, lambda a, b: coercion.comparison(op, a, b))

    def _row_comparison(self, node: exp.Expr, op: str) -> Expression:
        self.source.only(node, "this", "expression")
        left = [self._operand(item) for item in row_items(node.this)]
        right = [self._operand(item) for item in row_items(node.expression)]
        return self.source.typed(node, compared_rows, op, left, right)

    def _distinct(self, node: exp.Expr, op: str) -> Expression:
        return self._binary(node, lambda a, b: Call(op, coercion.comparable("=", a, b), BOOL))

    def _connective(self, node: exp.Expr, kind: type[exp.Expr]) -> Expression:
        op, binding = kind.key, _BINDS[kind]
        conditions = []
        for part in chain(node, kind):
            self._check_binding(part, binding)
            conditions.append(self.condition(part, op.upper()))
        return coercion.balanced(op, conditions)

    def _not(self, node: exp.Expr) -> Expression:
        inner = node.this
        if type(inner) is exp.Is and type(inner.expression) is exp.Boolean:
            return self._truth(inner, negated=True)
        if binding_of(inner) < _BINDS[exp.Not]:
            self._check_binding(inner, _BINDS[exp.Not])
        return Call("not", (self.condition(inner, "NOT"),), BOOL)

    def _is(self, node: exp.Expr) -> Expression:
        if type(node.expression) is exp.Boolean:
            return self._truth(node, negated=bool(node.args.get("negate")))
        self.source.only(node, "this", "expression", "negate")
        if type(node.expression) is not exp.Null:
            raise self.source.unsupported(f"IS {node.expression.sql('postgres')}", self.source.place(node))
        self._check_binding(node.this, _BINDS[exp.Is])
        argument = self.settled(node.this)
        return Call("is_not_null" if node.args.get("negate") else "is_null", (argument,), BOOL)

    def _truth(self, node: exp.Expr, *, negated: bool) -> Expression:
        self._check_binding(node.this, _BINDS[exp.Is])
        argument, value = self._operand(node.this), bool(node.expression.this)
        return self.source.typed(node, lambda: coercion.truth_test(argument, value, negated=negated))

    def _between(self, node: exp.Expr) -> Expression:
        self.source.only(node, "this", "low", "high", "symmetric")
        value, low, high = (self._inner(node, part) for part in (node.this, node.args["low"], node.args["high"]))
        symmetric = bool(node.args.get("symmetric"))
        return self.source.typed(node, lambda: coercion.between(value, low, high, symmetric=symmetric))

    def _inner(self, node: exp.Expr, part: exp.Expr) -> Expression:
        """An operand of an operator that does not chain."""
        self._check_binding(part, binding_of(node))
        return self._operand(part)

    def _in(self, node: exp.Expr) -> Expression:
        if subquery_of(node) is not None:
            return self._subquery(node)
        self.source.only(node, "this", "expressions")
        if is_row(node.this):
            return self._row_in(node)
        value = self._inner(node, node.this)
        items = [self._operand(item) for item in node.expressions]
        return self.source.typed(node, coercion.membership, value, items)

    def _row_in(self, node: exp.Expr) -> Expression:
        values = [self._operand(item) for item in row_items(node.this)]
        tests = []
        for row in node.expressions:
            items = [self._operand(item) for item in row_items(row)]
            tests.append(self.source.typed(row, compared_rows, "=", values, items))
        return coercion.balanced("or", tests)

    def _like(self, node: exp.Expr) -> Expression:
        matched = self._binary(node, coercion.like, extra=("negate",))
        return Call("not", (matched,), BOOL) if node.args.get("negate") else matched

    # --- CASE, CAST ---

    def _case(self, node: exp.Expr) -> Expression:
        self.source.only(node, "this", "ifs", "default")
        subject = None if node.this is None else self.settled(node.this)
        branches = []
        for branch in node.args["ifs"]:
            test = self._operand(branch.this)
            if subject is not None:
                test = self.source.typed(branch, coercion.comparison, "=", subject, test)
            branches.append((test, self._operand(branch.args["true"])))
        default = node.args.get("default")
        otherwise = coercion.unknown(None) if default is None else self._operand(default)
        return self.source.typed(node, coercion.case, branches, otherwise)

    def _cast(self, node: exp.Expr) -> Expression:
        target = bind_type(node.args["to"])
        if target is None:
            bound = scalars.bind_function(node, self._operand, self.source)
            if bound is not None:
                return bound
            name = node.args["to"].sql("postgres").lower()
            raise self.source.unsupported(f"type {name}", self.source.place(node))
        self.source.only(node, "this", "to")
        return self.source.typed(node, coercion.cast, self._operand(node.this), target)

    # --- aggregates ---

    def _aggregate(self, node: exp.Expr, only_where: exp.Expr | None = None) -> Expression:
        names = _AGGREGATES[type(node)]
        written = fold(str(node.this)) if type(node) is exp.Anonymous else self.source.word(node)
        name = written or next(iter(names))
        if name not in names:
            return self._other(node)
        groups = self._groups(node)
        argument, distinct = self._aggregate_argument(node, name)
        self.within_aggregate = True
        bound = None if isinstance(argument, exp.Star) else self._operand(argument)
        condition = None
        if only_where is not None:
            condition = replace(self, clause="FILTER", groups=None).condition(only_where, "FILTER")
        self.within_aggregate = False
        self._check_level(node, [part for part in (bound, condition) if part is not None])
        if bound is None and condition is None:
            return groups.add(Aggregate("count_star", None, INT))
        value: Expression = Literal(1, INT) if bound is None else bound
        made = self.source.typed(node, lambda: aggregate(names[name], value, distinct=distinct))
        if condition is not None:
            case = self.source.typed(node, coercion.case, [(condition, made.argument)], coercion.unknown(None))
            made = replace(made, argument=case)
        return groups.add(made)

    def _check_level(self, node: exp.Expr, parts: Sequence[Expression]) -> None:
        """An aggregate of nothing but columns of the query around a subquery is one of that query, for PostgreSQL."""
        read = {reference.source for part in parts for reference in references(part)}
        if read and 0 not in read:
            reason = "an aggregate of columns of the query around a subquery"
            raise self.source.unsupported(reason, self.source.place(node), OUTER_HINT)

    def _filter(self, node: exp.Expr) -> Expression:
        """aggregate FILTER (WHERE condition)."""
        self.source.only(node, "this", "expression")
        if type(node.this) not in _AGGREGATES:
            self._refuse(node.this)
        return self._aggregate(node.this, node.expression.this)

    def _groups(self, node: exp.Expr) -> Groups:
        place = self.source.place(node)
        if self.within_aggregate and self.clause != "FILTER":
            raise self.source.wrong(
                "aggregate function calls cannot be nested", place, hint="aggregate in a query in FROM first"
            )
        if self.groups is None:
            where = self.clause or "this expression"
            raise self.source.wrong(
                f"aggregate functions are not allowed in {where}",
                place,
                hint="use HAVING, or aggregate in a query in FROM",
            )
        return self.groups

    def _aggregate_argument(self, node: exp.Expr, name: str) -> tuple[exp.Expr, bool]:
        """Checks what stands inside an aggregate; gives its one argument and whether it is DISTINCT."""
        place = self.source.place(node)
        if type(node) is exp.Anonymous:
            arguments = list(node.expressions)
        else:
            self.source.only(node, "this", "expressions", "big_int")
            arguments = [part for part in (node.this, *node.expressions) if isinstance(part, exp.Expr)]
        distinct = len(arguments) == 1 and type(arguments[0]) is exp.Distinct
        if distinct:
            self.source.only(arguments[0], "expressions")
            arguments = list(arguments[0].expressions)
        if len(arguments) != 1:
            raise self.source.wrong(
                f"function {name} takes one argument, not {len(arguments)}", place, hint=f"write {name}(x)"
            )
        argument = arguments[0]
        if isinstance(argument, exp.Order):
            raise self.source.unsupported("ORDER BY in an aggregate", place, "leave it out: it changes nothing here")
        if isinstance(argument, exp.Star):
            self.source.only(argument)
            if distinct:
                raise self.source.wrong('syntax error at or near "*"', place)
            if name != "count":
                raise self.source.wrong(
                    f"function {name}(*) does not exist", place, hint=f"write {name}(x); only COUNT takes *"
                )
        return argument, distinct

    # --- what is refused ---

    def _subquery(self, node: exp.Expr) -> Expression:
        if self.subqueries is None or self.within_aggregate:
            self._refuse_subquery(node)
        return self.subqueries(self, node)

    def _refuse_subquery(self, node: exp.Expr) -> NoReturn:
        query = node.this if isinstance(node, exp.Exists) else subquery_of(node)
        place = self.source.opening(query or node, QUERY_WORDS)
        if query is None:
            raise self.source.unsupported("scalar subqueries", place, _SCALAR_HINT)
        hint = "move it to WHERE" if self.clause == "JOIN conditions" else _SEMI_HINT
        raise self.source.unsupported("EXISTS and IN (subquery) inside an expression", place, hint)

    def _refuse(self, node: exp.Expr) -> NoReturn:
        """Names what cannot be bound as precisely as the tree allows."""
        place = self.source.place(node)
        if isinstance(node, exp.Exists | exp.Query):
            self._refuse_subquery(node)
        if isinstance(node, exp.Any | exp.All):
            raise self.source.unsupported(f"{node.key.upper()} other than = ANY and <> ALL (subquery)", place)
        if isinstance(node, exp.WithinGroup):
            raise self.source.unsupported(
                "aggregates over an order (WITHIN GROUP)", place, hint="sort the rows when you read them"
            )
        if isinstance(node, exp.Window):
            raise self.source.unsupported("window functions", place, "aggregate with GROUP BY")
        if isinstance(node, exp.Parameter | exp.SessionParameter):
            raise self.source.unsupported("parameters", self.source.place(node, "$", "@"), "write ? or :name")
        if isinstance(node, exp.Star):
            raise self.source.wrong('syntax error at or near "*"', place)
        if is_row(node):
            raise self.source.unsupported("row values", place, "compare them with =, <>, <, > or IN")
        if type(node) in _NAMED_FEATURES:
            feature, word = _NAMED_FEATURES[type(node)]
            raise self.source.unsupported(feature, self.source.place(node, word))
        if isinstance(node, exp.Binary) and not isinstance(node, exp.AggFunc):
            raise self.source.unsupported(f"operator {self.source.operator(node)}", place)
        if isinstance(node, exp.Func):
            self._refuse_function(node)
        if type(node) is exp.Var and str(node.this).upper() == "DEFAULT":
            raise self.source.wrong(
                "DEFAULT is not allowed in this context",
                self.source.place(node, "DEFAULT"),
                hint="it stands alone, in VALUES or SET",
            )
        raise self.source.unsupported(f"expression {type(node).__name__}", place)

    def _refuse_function(self, node: exp.Expr) -> NoReturn:
        name, place = self.source.function_name(node)
        if name in _VOLATILE or type(node) is exp.CurrentTimestamp:
            hint = _VOLATILE_HINTS.get(self.clause, "give the value as a parameter")
            if self.parameters is None and self.clause not in _VOLATILE_HINTS:
                hint = "store the value in a column when the row is written"
            raise self.source.unsupported(f"volatile function {name}", place, hint)
        kind = "aggregate function" if isinstance(node, exp.AggFunc) else "function"
        raise self.source.unsupported(f"{kind} {name}", place, hint=_FUNCTION_HINTS[kind])


def compared_rows(op: str, left: Sequence[Expression], right: Sequence[Expression]) -> Expression:
    """A comparison of rows: by their first items that differ."""
    if len(left) != len(right):
        raise ProgrammingError(
            "unequal number of entries in row expressions", hint="write as many values on both sides"
        )
    if not left:
        raise ProgrammingError("cannot compare rows of zero length", hint="write at least one value in each row")
    if op in ("=", "<>"):
        tests = [coercion.comparison(op, *pair) for pair in zip(left, right, strict=True)]
        return coercion.balanced("and" if op == "=" else "or", tests)
    whole = coercion.comparison(op, left[-1], right[-1])
    for ours, theirs in reversed(list(zip(left[:-1], right[:-1], strict=True))):
        equal = Call("and", (coercion.comparison("=", ours, theirs), whole), BOOL)
        whole = Call("or", (coercion.comparison(op[0], ours, theirs), equal), BOOL)
    return whole


def bind_type(node: exp.Expr) -> Type | None:
    """The type that a cast names, None if it is not one of ours."""
    known = _TYPES.get(node.this) if type(node) is exp.DataType else None
    if known is None or node.args.get("nested") or node.args.get("values"):
        return None
    if not all(parameter.name.removeprefix("-").isdecimal() for parameter in node.expressions):
        return None
    limits = [int(parameter.name) for parameter in node.expressions]
    type_ = known[0]
    if not limits or type_ == FLOAT:
        return type_
    if type_ == DECIMAL and len(limits) <= 2:
        scale = limits[1] if len(limits) == 2 else 0
        if 1 <= limits[0] <= _PRECISION_DIGITS_MAX and abs(scale) <= _PRECISION_DIGITS_MAX:
            return Type("decimal", precision=limits[0], scale=scale)
    if known[1] in _LIMITED_TEXTS and len(limits) == 1 and 1 <= limits[0] <= _VARCHAR_CHARACTERS_MAX:
        return Type("str", length=limits[0], padded=known[1] == "bpchar")
    return None


# --- names ---


def resolve_column(source: SqlText, scope: Scope, node: exp.Expr) -> tuple[Expression, int]:
    """A column by its name, or by alias and name, and how many queries further out it stands."""
    place = source.place(node)
    if isinstance(node.this, exp.Star):
        raise source.unsupported(_WHOLE_ROW_REASON, place, "name a column")
    if node.args.get("db") or node.args.get("catalog") or not isinstance(node.this, exp.Identifier):
        raise source.unsupported("names of more than two parts", place, "write alias.column")
    name, table = identifier_name(node.this), node.args.get("table")
    alias = None if table is None else identifier_name(table)
    level, around = 0, scope
    while around.outer is not None and not _knows(around, alias, name):
        level, around = level + 1, around.outer
    if not _knows(around, alias, name):
        level, around = 0, scope  # The message is about the query itself.
    found = _found(source, around, node, alias, name, place)
    return mapped(found, lambda reference: replace(reference, source=level)), level


def _is_free(scope: Scope, level: int) -> bool:
    """Whether columns that stand so many queries further out may be named anywhere."""
    for _ in range(level):
        if not scope.free or scope.outer is None:
            return False
        scope = scope.outer
    return True


def _knows(scope: Scope, alias: str | None, name: str) -> bool:
    return bool(scope.named(name)) if alias is None else alias in scope.sources


def _found(
    source: SqlText, scope: Scope, node: exp.Expr, alias: str | None, name: str, place: Place | None
) -> Expression:
    if alias is not None:
        columns = find_source(source, scope, alias, place)
        found = [column.expression for column in columns if column.name == name]
        if not found:
            hint = nearest(name, (column.name for column in columns))
            raise source.wrong(f"unknown column {alias}.{name}", source.place(node.this), hint)
        if len(found) > 1:
            raise source.wrong(f"column {alias}.{name} is ambiguous", place, hint="give its columns different names")
        return found[0]
    found = scope.named(name)
    if len(found) == 1:
        return found[0]
    if found:
        owners = sorted(other for other, columns in scope.sources.items() if any(c.name == name for c in columns))
        hint = "write " + " or ".join(f"{owner}.{name}" for owner in owners)
        raise source.wrong(f"column {name} is ambiguous", place, hint)
    if name in scope.sources:
        raise source.unsupported(_WHOLE_ROW_REASON, place, "name a column")
    raise source.wrong(f"unknown column {name}", place, nearest(name, (column.name for column in scope.columns)))


def output_name(source: SqlText, node: exp.Expr) -> str:
    return _figure_name(source, node)[0] or "?column?"


def _figure_name(source: SqlText, node: exp.Expr) -> tuple[str, bool]:
    """PostgreSQL's name for an unnamed output, and whether CASE and CAST around it keep that name."""
    inner = bare(node)
    if type(inner) is exp.Column:
        return identifier_name(inner.this), True
    if type(inner) is exp.Case:
        default = inner.args.get("default")
        name, strong = _figure_name(source, default) if default is not None else ("", False)
        return (name, True) if strong else ("case", False)
    if type(inner) is exp.Cast:
        name, strong = _figure_name(source, inner.this)
        known = _TYPES.get(inner.args["to"].this)
        return (name, True) if strong else (known[1] if known else "", False)
    if type(inner) is exp.Filter:
        return _figure_name(source, inner.this)
    if type(inner) is exp.Exists:
        return "exists", True
    if isinstance(inner, exp.Query):
        return _query_name(source, inner), True
    written = source.word(inner) if isinstance(inner, exp.Func) else ""
    named = _SPECIAL_NAMES.get(type(inner), written)
    if type(inner) is exp.Trim:
        named = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(inner.args.get("position") or "").upper(), named)
    return named, bool(named)


def _query_name(source: SqlText, query: exp.Expr) -> str:
    """A subquery is called by its first column."""
    while not isinstance(query, exp.Select) and isinstance(query.this, exp.Expr):
        query = query.this  # parentheses, or the left side of a set operation
    first = query.expressions[0] if query.expressions else None
    if isinstance(first, exp.Alias):
        return identifier_name(first.args["alias"])
    return "column1" if first is None or not isinstance(query, exp.Select) else output_name(source, first)


#: Functions with a syntax of their own, under the names that PostgreSQL runs them by.
_SPECIAL_NAMES: dict[type[exp.Expr], str] = {
    exp.Extract: "extract",
    exp.AtTimeZone: "timezone",
    exp.Trim: "btrim",
    exp.Substring: "substring",
    exp.StrPosition: "position",
}
