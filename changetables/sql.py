"""SQL text to a Definition. sqlglot reads the text; what it means is decided here, as PostgreSQL 15 does.

The one module that imports sqlglot, which costs 230 ms: import it lazily, when a view is made. A database that is only
opened reads its definitions with `serialize`.

sqlglot is lenient: it reads several dialects, drops what it takes for noise, and gives many nodes no position. So every
node is accepted by name with the parts that are understood and refused with anything more, and places come from the
nearest token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError

from . import coercion
from .binding import (
    NO_SCOPE,
    From,
    Item,
    Place,
    Scope,
    Text,
    Visible,
    add_key,
    define,
    find_source,
    fold,
    nearest,
    side_by_side,
)
from .definition import Definition
from .errors import DataError, ProgrammingError, UnsupportedView
from .expressions import Aggregate, Call, ColumnRef, Expression, Literal
from .schema import Table
from .types import BOOL, DATE, DECIMAL, FLOAT, INT, STR, TIMESTAMP, TIMESTAMPTZ, Type

if TYPE_CHECKING:
    from .builder import JoinEdge, JoinTable, Query

#: Longer texts are refused before they cost anything.
SQL_CHARACTERS_MAX = 1_000_000
#: Nested levels of one expression. Every reader of a definition may recurse, so none is ever deeper than this.
EXPRESSION_LEVELS_MAX = 150

_T = TypeVar("_T")

_VOLATILE = frozenset(
    {
        "now", "random", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday",
        "current_timestamp", "current_date", "current_time", "localtime", "localtimestamp", "gen_random_uuid",
        "uuid_generate_v4", "nextval", "currval", "lastval", "setval", "setseed", "random_normal", "pg_sleep",
        "current_user", "session_user", "user", "current_role", "current_catalog", "current_schema",
    }
)  # fmt: skip


def identifier_name(identifier: exp.Identifier) -> str:
    name = str(identifier.this)
    return name if identifier.args.get("quoted") else fold(name)


# --- text and places ---

_QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
#: What cannot begin an item of a list.
_NO_ITEM = frozenset(
    {
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.ORDER_BY,
        TokenType.HAVING,
        TokenType.LIMIT,
        TokenType.R_PAREN,
        TokenType.SEMICOLON,
        TokenType.COMMA,
    }
)


class SqlText(Text):
    """A text with its tokens: where things stand."""

    def __init__(self, text: str, label: str = "") -> None:
        super().__init__(text, label)
        if len(text) > SQL_CHARACTERS_MAX:
            raise ProgrammingError(f"SQL text of {len(text)} characters", hint=f"the limit is {SQL_CHARACTERS_MAX}")
        if "\0" in text:
            raise self.wrong("syntax error: a NUL character", self.place_of_offset(text.index("\0")))
        try:
            self.tokens: list[Token] = Postgres().tokenize(text)
        except TokenError as error:
            raise self._unterminated(error) from None
        self._refuse_other_dialects()

    def place(self, node: exp.Expr | None) -> Place | None:
        """Where the node begins: its first part that has a position."""
        offset = self.offset(node)
        return None if offset is None else self.place_of_offset(offset)

    def offset(self, node: exp.Expr | None) -> int | None:
        if node is None:
            return None
        return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)

    def word(self, node: exp.Expr) -> str:
        """The name of a function as it was written, for nodes that remember where their name stands."""
        if "start" not in node.meta:
            return ""
        written = self.text[node.meta["start"] : node.meta["end"] + 1]
        return written[1:-1] if written.startswith('"') else fold(written)

    def keyword(self, *words: str, depth: int | None = None, after: int = -1) -> Place | None:
        """The first of these words behind the offset `after`, at this depth of parentheses."""
        level = 0
        for token in self.tokens:
            if token.token_type == TokenType.L_PAREN:
                level += 1
            if token.token_type == TokenType.R_PAREN:
                level -= 1
            right_depth = depth is None or level == depth
            if right_depth and token.start > after and token.text.upper() in words:
                return self.place_of_offset(token.start)
        return None

    def opening(self, node: exp.Expr, words: Sequence[str]) -> Place | None:
        """The word before the node's first position, or the parenthesis in front of that word."""
        index = self.index_of(self.offset(node))
        while index is not None and index >= 0:
            if self.tokens[index].text.upper() in words:
                if index and self.tokens[index - 1].token_type == TokenType.L_PAREN:
                    index -= 1
                return self.place_of_offset(self.tokens[index].start)
            index -= 1
        return self.place(node)

    def index_of(self, offset: int | None) -> int | None:
        return next((index for index, token in enumerate(self.tokens) if token.start == offset), None)

    def function_name(self, node: exp.Expr) -> tuple[str, Place | None]:
        """The name of a function as it was written and where: at its own position or before its first argument."""
        index = first = self.index_of(node.meta.get("start", self.offset(node)))
        if "start" not in node.meta and index is not None:
            while index and self.tokens[index - 1].token_type == TokenType.L_PAREN:
                index -= 1
            before = self.tokens[index - 1] if 0 < index != first else None
            index = index - 1 if before is not None and before.text.isidentifier() else None
        if index is None:
            names = _names_of(node) or [node.key]
            return names[0].lower(), self.keyword(*(name.upper() for name in names)) or self.place(node)
        token = self.tokens[index]
        name = token.text if token.token_type == TokenType.IDENTIFIER else fold(token.text)
        return name, self.place_of_offset(token.start)

    def operator(self, node: exp.Expr) -> str:
        """The operator of a binary expression: the token before its right side."""
        index = self.index_of(self.offset(node.expression))
        while index and self.tokens[index - 1].token_type == TokenType.L_PAREN:
            index -= 1
        return self.tokens[index - 1].text.upper() if index else type(node).__name__

    def _unterminated(self, error: TokenError) -> ProgrammingError:
        """sqlglot tells the line and a column of the opening quote in the text of its error only."""
        match = re.search(r"Missing (.+) from (\d+):(\d+)", str(error.__cause__))
        if match is None:
            return self.wrong("syntax error: unterminated comment or literal", self.place_of_offset(len(self.text)))
        return self.wrong(f"syntax error: unterminated {match[1]}", (int(match[2]), int(match[3]) + 1))

    def _refuse_other_dialects(self) -> None:
        """What sqlglot reads although PostgreSQL has no such syntax."""
        for index, token in enumerate(self.tokens):
            then = self.tokens[index + 1].token_type if index + 1 < len(self.tokens) else TokenType.SEMICOLON
            trailing_comma = token.token_type == TokenType.COMMA and then in _NO_ITEM
            if trailing_comma or (token.text in ("!", "==", "<=>") and token.token_type not in _QUOTED):
                raise self.wrong(f'syntax error at or near "{token.text}"', self.place_of_offset(token.start))


def _names_of(node: exp.Expr) -> list[str]:
    return list(node.sql_names()) if isinstance(node, exp.Func) else []


def parse_statement(source: SqlText) -> exp.Expr:
    """The one statement of the text."""
    parsed = [node for node in _parse(source, None) if node is not None and not isinstance(node, exp.Semicolon)]
    if not parsed:
        raise source.wrong("the SQL text is empty", (1, 1), hint="write SELECT ... FROM ...")
    if len(parsed) > 1:
        second = source.keyword(";", depth=0)
        raise source.wrong("more than one statement", second, hint="a view is one SELECT")
    return parsed[0]


def _parse(source: SqlText, into: type[exp.Expr] | None) -> Sequence[exp.Expr | None]:
    try:
        parser = Postgres().parser()
        if into is None:
            return list(parser.parse(source.tokens, source.text))
        return list(parser.parse_into(into, source.tokens, source.text))
    except ParseError as error:
        raise _syntax_error(source, error) from None
    except RecursionError:
        raise source.wrong("the SQL text is nested too deeply", None) from None


def _syntax_error(source: SqlText, error: ParseError) -> ProgrammingError:
    # For parse_into, the reason stands in the innermost error.
    details = next((detail for detail in reversed(error.errors) if detail.get("line")), None)
    if details is None:
        return source.wrong("syntax error", None)
    highlight = str(details["highlight"])
    place = (int(details["line"]), max(1, int(details["col"]) - len(highlight) + 1))
    return source.wrong(f'syntax error at or near "{highlight}"', place)


# --- expressions ---


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
    exp.DPipe: 7,
    exp.Add: 8,
    exp.Sub: 8,
    exp.Mul: 9,
    exp.Div: 9,
    exp.Mod: 9,
    exp.Neg: 10,
}
_BINDS_TIGHTEST = 11
_CHAINS = frozenset({1, 2, 7, 8, 9})  # Left-associative; a < b < c and the like are syntax errors.

_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_FUNCTIONS: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.Abs: ("abs",),
    exp.Lower: ("lower",),
    exp.Upper: ("upper",),
    exp.Length: ("length", "char_length", "character_length"),
    exp.Coalesce: ("coalesce",),
    exp.Nullif: ("nullif",),
    exp.Mod: ("mod",),
}
_AGGREGATES: dict[type[exp.Expr], str] = {exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg"}
_LATER_AGGREGATES: dict[type[exp.Expr], str] = {exp.Min: "min", exp.Max: "max"}
_TYPES: dict[exp.DType, tuple[Type, str]] = {
    exp.DType.SMALLINT: (INT, "int2"),
    exp.DType.INT: (INT, "int4"),
    exp.DType.BIGINT: (INT, "int8"),
    exp.DType.DECIMAL: (DECIMAL, "numeric"),
    exp.DType.FLOAT: (FLOAT, "float4"),
    exp.DType.DOUBLE: (FLOAT, "float8"),
    exp.DType.TEXT: (STR, "text"),
    exp.DType.VARCHAR: (STR, "varchar"),
    exp.DType.BOOLEAN: (BOOL, "bool"),
    exp.DType.DATE: (DATE, "date"),
    exp.DType.TIMESTAMP: (TIMESTAMP, "timestamp"),
    exp.DType.TIMESTAMPTZ: (TIMESTAMPTZ, "timestamptz"),
    exp.DType.VARBINARY: (Type("bytes"), "bytea"),
}
#: numeric(p, s) in PostgreSQL: 1 to 1000 digits.
_PRECISION_DIGITS_MAX = 1_000
_VARCHAR_CHARACTERS_MAX = 10_485_760

_NAMED_FEATURES: dict[type[exp.Expr], tuple[str, str]] = {
    exp.ILike: ("ILIKE", "ILIKE"),
    exp.Escape: ("LIKE ... ESCAPE", "ESCAPE"),
    exp.Tuple: ("row values", "("),
    exp.Interval: ("intervals", "INTERVAL"),
    exp.AtTimeZone: ("AT TIME ZONE", "AT TIME ZONE"),
    exp.Collate: ("COLLATE", "COLLATE"),
    exp.Dot: ("qualified function names", "."),
    exp.ByteString: ("strings with escapes", "E"),
    exp.Concat: ("CONCAT and adjacent strings", "CONCAT"),
}
_MIN_MAX_REASON = "MIN and MAX"
_WHOLE_ROW_REASON = "a whole row as a value"
_SUBQUERY_REASON = "subqueries"


def _binding(node: exp.Expr) -> int:
    """NOT IN, NOT BETWEEN and NOT LIKE bind as their operators do, though sqlglot puts the NOT outside."""
    if type(node) is exp.Not and type(node.this) in (exp.In, exp.Between, exp.Like, exp.Is):
        return _BINDS[type(node.this)]
    if type(node) is exp.Mod and node.meta:
        return _BINDS_TIGHTEST  # mod(a, b)
    return _BINDS.get(type(node), _BINDS_TIGHTEST)


def _bare(node: exp.Expr) -> exp.Expr:
    while type(node) is exp.Paren:
        node = node.this
    return node


def _chain(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    """The operands of nested ANDs (or ORs) in the order of the text, without recursion."""
    operands, pending = [], [node]
    while pending:
        part = pending.pop()
        inner = _bare(part)
        if type(inner) is kind:
            pending += (inner.expression, inner.this)
        else:
            operands.append(part)
    return operands


@dataclass(slots=True)
class Binder:
    """Binds expressions of one text. `no_aggregates_in` is the clause that forbids them, empty where they may stand."""

    source: SqlText
    scope: Scope
    no_aggregates_in: str = ""
    within_aggregate: bool = False
    level: int = 0
    _methods: dict[type[exp.Expr], Callable[[exp.Expr], Expression]] = field(init=False)

    def __post_init__(self) -> None:
        self._methods = {
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: Literal(bool(node.this), BOOL),
            exp.Null: lambda node: coercion.unknown(None),
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
            exp.Count: self._count,
            exp.Sum: self._aggregate,
            exp.Avg: self._aggregate,
        }
        for kind in _FUNCTIONS:
            self._methods[kind] = self._function
        for kind in _ARITHMETIC:
            self._methods[kind] = self._arithmetic
        for kind in _COMPARISONS:
            self._methods[kind] = self._comparison

    def bind(self, node: exp.Expr) -> Expression:
        """The bound expression; a literal that nothing gives a type to stays of type UNKNOWN."""
        return self._operand(node)

    def condition(self, node: exp.Expr, clause: str) -> list[Expression]:
        """The conditions that are ANDed in `node`, in the order of the text."""
        bound, parts = [], _chain(node, exp.And)
        for part in parts:
            if len(parts) > 1:
                self._check_binding(part, _BINDS[exp.And])
            bound.append(self._typed(part, coercion.condition, self._operand(part), clause))
        return bound

    # --- help ---

    def _operand(self, node: exp.Expr) -> Expression:
        if self.level >= EXPRESSION_LEVELS_MAX:
            reason = f"expressions of more than {EXPRESSION_LEVELS_MAX} nested levels"
            raise self.source.unsupported(reason, self.source.place(node), "split the expression")
        self.level += 1
        method = self._methods.get(type(node), self._refuse)
        bound = method(node)
        self.level -= 1
        return bound

    def _typed(self, node: exp.Expr, rule: Callable[..., _T], *args: object) -> _T:
        """Applies a rule of typing; its errors get the place of the node."""
        try:
            return rule(*args)
        except DataError as error:
            literals = (part for part in node.find_all(exp.Literal) if f'"{part.this}"' in error.message)
            raise self.source.placed(error, self.source.place(next(literals, node))) from None
        except (ProgrammingError, UnsupportedView) as error:
            raise self.source.placed(error, self.source.place(node)) from None

    def _only(self, node: exp.Expr, *parts: str) -> None:
        """Refuses a node that has parts besides these: a modifier that would be dropped silently."""
        for name, value in node.args.items():
            if value and name not in parts:
                what = f"{name.strip('_').replace('_', ' ')} in {node.key.upper()}"
                raise self.source.unsupported(what, self.source.place(node))

    def _check_binding(self, node: exp.Expr, binding: int, *, right: bool = False) -> None:
        inner = _binding(node)
        fits = inner > binding or (inner == binding and binding in _CHAINS and not right)
        if inner == binding and (binding in (1, 2) or (type(node) in (exp.Is, exp.Not) and not right)):
            return  # AND and OR are associative; x IS NULL IS TRUE has one reading only.
        if not fits:
            place = self.source.place(node)
            raise self.source.wrong("operators in an order that needs parentheses", place, hint="add parentheses")

    def _operands(self, node: exp.Expr) -> tuple[Expression, Expression]:
        binding = _binding(node)
        self._check_binding(node.this, binding)
        self._check_binding(node.expression, binding, right=True)
        return self._operand(node.this), self._operand(node.expression)

    def _binary(self, node: exp.Expr, rule: Callable[..., Expression], extra: Sequence[str] = ()) -> Expression:
        self._only(node, "this", "expression", *extra)
        left, right = self._operands(node)
        return self._typed(node, rule, left, right)

    # --- leaves ---

    def _column(self, node: exp.Expr) -> Expression:
        return resolve_column(self.source, self.scope, node)

    def _literal(self, node: exp.Expr) -> Expression:
        if node.args.get("is_string"):
            return coercion.unknown(str(node.this))
        return self._typed(node, coercion.number, str(node.this))

    def _negation(self, node: exp.Expr) -> Expression:
        inner, sign = _bare(node.this), "-"
        while type(inner) is exp.Neg:
            inner, sign = _bare(inner.this), "" if sign else "-"
        if type(inner) is exp.Literal and not inner.args.get("is_string"):
            return self._typed(node, coercion.number, sign + str(inner.this))
        self._check_binding(node.this, _BINDS[exp.Neg] - 1)
        return self._typed(node, coercion.negation, self._operand(node.this))

    # --- operators ---

    def _arithmetic(self, node: exp.Expr) -> Expression:
        if type(node) is exp.Mod and node.meta:
            return self._function(node)
        op = _ARITHMETIC[type(node)]
        return self._binary(node, lambda a, b: coercion.arithmetic(op, a, b), extra=("typed", "safe"))

    def _comparison(self, node: exp.Expr) -> Expression:
        op = _COMPARISONS[type(node)]
        return self._binary(node, lambda a, b: coercion.comparison(op, a, b))

    def _distinct(self, node: exp.Expr, op: str) -> Expression:
        return self._binary(node, lambda a, b: Call(op, coercion.comparable("=", a, b), BOOL))

    def _connective(self, node: exp.Expr, kind: type[exp.Expr]) -> Expression:
        op, binding = kind.key, _BINDS[kind]
        conditions = []
        for part in _chain(node, kind):
            self._check_binding(part, binding)
            conditions.append(self._typed(part, coercion.condition, self._operand(part), op.upper()))
        return coercion.balanced(op, conditions)

    def _not(self, node: exp.Expr) -> Expression:
        inner = node.this
        if type(inner) is exp.Is and type(inner.expression) is exp.Boolean:
            return self._truth(inner, negated=True)
        if _binding(inner) < _BINDS[exp.Not]:
            self._check_binding(inner, _BINDS[exp.Not])
        argument = self._typed(inner, coercion.condition, self._operand(inner), "NOT")
        return Call("not", (argument,), BOOL)

    def _is(self, node: exp.Expr) -> Expression:
        if type(node.expression) is exp.Boolean:
            return self._truth(node, negated=bool(node.args.get("negate")))
        self._only(node, "this", "expression", "negate")
        if type(node.expression) is not exp.Null:
            raise self.source.unsupported(f"IS {node.expression.sql('postgres')}", self.source.place(node))
        self._check_binding(node.this, _BINDS[exp.Is])
        argument = coercion.settled(self._operand(node.this))
        return Call("is_not_null" if node.args.get("negate") else "is_null", (argument,), BOOL)

    def _truth(self, node: exp.Expr, *, negated: bool) -> Expression:
        self._check_binding(node.this, _BINDS[exp.Is])
        argument, value = self._operand(node.this), bool(node.expression.this)
        return self._typed(node, lambda: coercion.truth_test(argument, value, negated=negated))

    def _between(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "low", "high")
        value, *bounds = (self._inner(node, part) for part in (node.this, node.args["low"], node.args["high"]))
        return self._typed(node, coercion.between, value, *bounds)

    def _inner(self, node: exp.Expr, part: exp.Expr) -> Expression:
        """An operand of an operator that does not chain."""
        self._check_binding(part, _binding(node))
        return self._operand(part)

    def _in(self, node: exp.Expr) -> Expression:
        if node.args.get("query"):
            self._refuse_subquery(node.args["query"])
        self._only(node, "this", "expressions")
        value = self._inner(node, node.this)
        items = [self._operand(item) for item in node.expressions]
        return self._typed(node, coercion.membership, value, items)

    def _like(self, node: exp.Expr) -> Expression:
        matched = self._binary(node, coercion.like, extra=("negate",))
        return Call("not", (matched,), BOOL) if node.args.get("negate") else matched

    # --- CASE, CAST, functions ---

    def _case(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "ifs", "default")
        subject = None if node.this is None else coercion.settled(self._operand(node.this))
        branches = []
        for branch in node.args["ifs"]:
            test = self._operand(branch.this)
            if subject is not None:
                test = self._typed(branch, coercion.comparison, "=", subject, test)
            branches.append((test, self._operand(branch.args["true"])))
        default = node.args.get("default")
        otherwise = coercion.unknown(None) if default is None else self._operand(default)
        return self._typed(node, coercion.case, branches, otherwise)

    def _cast(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "to")
        target = self._type(node.args["to"])
        return self._typed(node, coercion.cast, self._operand(node.this), target)

    def _type(self, node: exp.Expr) -> Type:
        known = _TYPES.get(node.this) if type(node) is exp.DataType else None
        if known is None or node.args.get("nested") or node.args.get("values"):
            raise self.source.unsupported(f"type {node.sql('postgres').lower()}", self.source.place(node.parent))
        limits = [int(parameter.name) for parameter in node.expressions]
        type_ = known[0]
        if not limits or type_ == FLOAT:
            return type_
        if type_ == DECIMAL and len(limits) <= 2:
            scale = limits[1] if len(limits) == 2 else 0
            if 1 <= limits[0] <= _PRECISION_DIGITS_MAX and 0 <= scale <= limits[0]:
                return Type("decimal", precision=limits[0], scale=scale)
        if known[1] == "varchar" and len(limits) == 1 and 1 <= limits[0] <= _VARCHAR_CHARACTERS_MAX:
            return Type("str", length=limits[0])
        raise self.source.unsupported(f"type {node.sql('postgres').lower()}", self.source.place(node.parent))

    def _function(self, node: exp.Expr) -> Expression:
        name = self.source.word(node)
        if name not in _FUNCTIONS[type(node)]:
            self._refuse(node)
        self._only(node, "this", "expression", "expressions")
        parts = [node.this, node.args.get("expression"), *node.expressions]
        arguments = [self._operand(part) for part in parts if isinstance(part, exp.Expr)]
        return self._typed(node, coercion.function, name, arguments)

    def _aggregate_argument(self, node: exp.Expr, name: str) -> exp.Expr | None:
        """Checks what stands around and inside an aggregate; gives its one argument."""
        if node.meta and self.source.word(node) != name:
            self._refuse(node)
        place = self.source.place(node)
        if self.within_aggregate:
            raise self.source.wrong("aggregate function calls cannot be nested", place)
        if self.no_aggregates_in:
            raise self.source.wrong(f"aggregate functions are not allowed in {self.no_aggregates_in}", place)
        argument = node.this
        if isinstance(argument, exp.Distinct):
            keyword = self.source.keyword("DISTINCT", after=self.source.offset(node) or -1)
            raise self.source.unsupported(f"{name.upper()}(DISTINCT ...)", keyword)
        if isinstance(argument, exp.Order):
            raise self.source.unsupported("ORDER BY in an aggregate", place, "leave it out: it changes nothing here")
        self._only(node, "this", "expressions", "big_int")
        if node.expressions or not isinstance(argument, exp.Expr):
            count = len(node.expressions) + (argument is not None)
            raise self.source.wrong(f"function {name} takes one argument, not {count}", place)
        return argument

    def _count(self, node: exp.Expr) -> Expression:
        argument = self._aggregate_argument(node, "count")
        if isinstance(argument, exp.Star):
            self._only(argument)
            return Aggregate("count_star", None, INT)
        return self._aggregate(node)

    def _aggregate(self, node: exp.Expr) -> Expression:
        name = _AGGREGATES[type(node)]
        argument = self._aggregate_argument(node, name)
        assert argument is not None, "checked by _aggregate_argument"
        if isinstance(argument, exp.Star):
            raise self.source.wrong(f"function {name}(*) does not exist", self.source.place(node))
        self.within_aggregate = True
        bound = self._operand(argument)
        self.within_aggregate = False
        return self._typed(node, coercion.aggregate, name, bound)

    # --- what is refused ---

    def _refuse_subquery(self, node: exp.Expr) -> NoReturn:
        place = self.source.opening(node, ("SELECT", "WITH", "VALUES", "TABLE"))
        raise self.source.unsupported(_SUBQUERY_REASON, place, "write it as a join")

    def _refuse(self, node: exp.Expr) -> NoReturn:
        """Names what cannot be bound as precisely as the tree allows."""
        place = self.source.place(node)
        if isinstance(node, exp.Exists | exp.Query):
            self._refuse_subquery(node)
        if isinstance(node, exp.Window | exp.WithinGroup):
            raise self.source.unsupported("window functions", place, "aggregate with GROUP BY")
        if isinstance(node, exp.Filter):
            keyword = self.source.keyword("FILTER", after=self.source.offset(node) or -1)
            raise self.source.unsupported("FILTER", keyword, "use SUM(CASE WHEN ... THEN ... END)")
        if type(node) in _LATER_AGGREGATES:
            raise self.source.unsupported(_MIN_MAX_REASON, place)
        if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
            raise self.source.unsupported("parameters", place or self.source.keyword("?", ":"), "write the value")
        if isinstance(node, exp.Star):
            raise self.source.wrong('syntax error at or near "*"', place)
        if type(node) in _NAMED_FEATURES:
            feature, word = _NAMED_FEATURES[type(node)]
            raise self.source.unsupported(feature, place or self.source.keyword(word))
        if isinstance(node, exp.Binary):
            raise self.source.unsupported(f"operator {self.source.operator(node)}", place)
        if isinstance(node, exp.Func):
            self._refuse_function(node)
        raise self.source.unsupported(f"expression {type(node).__name__}", place)

    def _refuse_function(self, node: exp.Expr) -> NoReturn:
        name, place = self.source.function_name(node)
        if name in _VOLATILE or type(node) is exp.CurrentTimestamp:
            hint = "store the value in a column when the row is written"
            raise self.source.unsupported(f"volatile function {name}", place, hint)
        kind = "aggregate function" if isinstance(node, exp.AggFunc) else "function"
        raise self.source.unsupported(f"{kind} {name}", place)


def resolve_column(source: SqlText, scope: Scope, node: exp.Expr) -> ColumnRef:
    """A column by its name, or by alias and name."""
    place = source.place(node)
    if isinstance(node.this, exp.Star):
        raise source.unsupported(_WHOLE_ROW_REASON, place, "name a column")
    if node.args.get("db") or node.args.get("catalog") or not isinstance(node.this, exp.Identifier):
        raise source.unsupported("names of more than two parts", place, "write alias.column")
    name, table = identifier_name(node.this), node.args.get("table")
    if table is not None:
        alias = identifier_name(table)
        columns = find_source(source, scope, alias, place)
        for column in columns:
            if column.name == name:
                return column.reference
        hint = nearest(name, (column.name for column in columns))
        raise source.wrong(f"unknown column {alias}.{name}", source.place(node.this), hint)
    found = scope.named(name)
    if len(found) == 1:
        return found[0]
    if found:
        owners = sorted(alias for alias, columns in scope.sources.items() if any(c.name == name for c in columns))
        hint = "write " + " or ".join(f"{alias}.{name}" for alias in owners)
        raise source.wrong(f"column {name} is ambiguous", place, hint)
    if name in scope.sources:
        raise source.unsupported(_WHOLE_ROW_REASON, place, "name a column")
    raise source.wrong(f"unknown column {name}", place, nearest(name, (column.name for column in scope.columns)))


# --- FROM ---


@dataclass(slots=True)
class FromClause:
    """Reads the FROM clause of a SELECT."""

    source: SqlText
    collected: From

    def scope(self, select: exp.Expr) -> Scope:
        first = select.args.get("from_")
        if first is None:
            raise self.source.unsupported("a SELECT without FROM", self.source.keyword("SELECT", depth=0))
        item = self._item(first.this)
        whole = NO_SCOPE
        for join in select.args.get("joins") or ():
            if self._is_comma(join):
                # An ON sees only the tables of its own join, not those before the comma.
                whole, item = side_by_side(whole, item), self._item(join.this)
            else:
                item = self._join(item, join)
        return side_by_side(whole, item)

    def _is_comma(self, join: exp.Expr) -> bool:
        if any(value for name, value in join.args.items() if name != "this"):
            return False
        index = self.source.index_of(self.source.offset(join))
        while index and self.source.tokens[index - 1].token_type == TokenType.L_PAREN:
            index -= 1
        if index and self.source.tokens[index - 1].token_type == TokenType.COMMA:
            return True
        if type(join.this) not in (exp.Table, exp.Subquery):
            return True  # Refused by _item, with a better reason.
        raise self.source.wrong("syntax error: JOIN without ON", self.source.place(join), hint="add ON or USING")

    def _item(self, node: exp.Expr) -> Scope:
        """A table with its alias, or joins in parentheses."""
        if type(node) is exp.Subquery and type(node.this) is exp.Table:
            if any(value for name, value in node.args.items() if name != "this"):
                raise self.source.unsupported("an alias for joins in parentheses", self.source.place(node))
            return self._item(node.this)
        if type(node) is not exp.Table:
            self._refuse_item(node)
        if not isinstance(node.this, exp.Identifier):
            raise self.source.unsupported("functions in FROM", self.source.place(node))
        if node.args.get("db") or node.args.get("catalog"):
            raise self.source.unsupported(
                "names of tables with a schema", self.source.place(node), "leave the schema out"
            )
        for name, value in node.args.items():
            if value and name not in ("this", "alias", "joins"):
                raise self.source.unsupported(f"{name.replace('_', ' ').upper()} in FROM", self.source.place(node))
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise self.source.unsupported("aliases for columns in FROM", self.source.place(node))
        name = identifier_name(node.this)
        alias_name = identifier_name(alias.this) if alias is not None else name
        item = self.collected.add(self.source, name, alias_name, self.source.place(node.this))
        for join in node.args.get("joins") or ():
            item = self._join(item, join)
        return item

    def _refuse_item(self, node: exp.Expr) -> NoReturn:
        if isinstance(node, exp.Values):
            raise self.source.unsupported("VALUES", self.source.opening(node, ("VALUES",)), "use a table")
        if isinstance(node, exp.Lateral):
            raise self.source.unsupported("LATERAL", self.source.opening(node, ("LATERAL",)))
        if isinstance(node, exp.Query):
            place = self.source.opening(node, ("SELECT", "WITH", "VALUES", "TABLE"))
            raise self.source.unsupported(_SUBQUERY_REASON, place, "write it as a join")
        raise self.source.unsupported("this item in FROM", self.source.place(node))

    def _join(self, left: Scope, join: exp.Expr) -> Scope:
        self._check_kind(join)
        right = self._item(join.this)
        if join.args.get("method") == "NATURAL":
            rights = {column.name for column in right.columns}
            names = list(dict.fromkeys(column.name for column in left.columns if column.name in rights))
            return self._using(left, right, [(name, self.source.place(join.this)) for name in names])
        if join.args.get("using"):
            return self._using(left, right, [self._using_name(node) for node in join.args["using"]])
        joined = side_by_side(left, right)
        condition = join.args.get("on")
        if condition is None and join.args.get("kind") != "CROSS":
            raise self.source.wrong("syntax error: JOIN without ON", self.source.place(join), hint="add ON or USING")
        if condition is not None:
            binder = Binder(self.source, joined, "JOIN conditions")
            for part in binder.condition(condition, "JOIN/ON"):
                self.collected.require(part)
        return joined

    def _using_name(self, node: exp.Expr) -> tuple[str, Place | None]:
        identifier = node.this if isinstance(node, exp.Column) else node
        if not isinstance(identifier, exp.Identifier):
            raise self.source.wrong("syntax error in USING", self.source.place(node))
        return identifier_name(identifier), self.source.place(node)

    def _check_kind(self, join: exp.Expr) -> None:
        side, kind, method = (str(join.args.get(name) or "") for name in ("side", "kind", "method"))
        if side or kind == "OUTER":
            # The keyword before this join's table: another join may stand before it.
            place = self.source.opening(join.this, (side, "NATURAL") if method == "NATURAL" else (side,))
            raise self.source.unsupported("outer joins", place, "use an inner JOIN")
        cross_with_condition = kind == "CROSS" and (join.args.get("on") or join.args.get("using"))
        if cross_with_condition:
            raise self.source.wrong("syntax error: CROSS JOIN with a condition", self.source.place(join))
        if kind not in ("", "INNER", "CROSS") or method not in ("", "NATURAL"):
            what = " ".join(word for word in (method, kind) if word)
            raise self.source.unsupported(f"{what} JOIN", self.source.place(join))
        for name, value in join.args.items():
            if value and name not in ("this", "on", "using", "kind", "method"):
                raise self.source.unsupported(f"{name} in JOIN", self.source.place(join))

    def _using(self, left: Scope, right: Scope, names: Sequence[tuple[str, Place | None]]) -> Scope:
        """The merged columns come first, once; the others follow. PostgreSQL shows the left one of an inner join."""
        merged = []
        for name, place in names:
            ours, theirs = self._one(left, name, "left", place), self._one(right, name, "right", place)
            try:
                condition = coercion.comparison("=", ours, theirs)
            except (ProgrammingError, UnsupportedView) as error:
                raise self.source.placed(error, place) from None
            self.collected.require(condition)
            assert isinstance(condition, Call), "a comparison is a call"
            # If only the right one is compared as it is, that is the one with the common type.
            shown = theirs if condition.args[0] != ours and condition.args[1] == theirs else ours
            merged.append(Visible(name, shown))
        gone = {name for name, _ in names}
        rest = tuple(column for column in left.columns + right.columns if column.name not in gone)
        return Scope({**left.sources, **right.sources}, tuple(merged) + rest)

    def _one(self, scope: Scope, name: str, side: str, place: Place | None) -> ColumnRef:
        found = scope.named(name)
        if not found:
            hint = nearest(name, (column.name for column in scope.columns))
            raise self.source.wrong(f"column {name} of USING does not exist in the {side} table", place, hint)
        if len(found) > 1:
            raise self.source.wrong(f"column {name} appears more than once in the {side} table", place)
        return found[0]


# --- SELECT ---


_REFUSED_PARTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "with_": ("CTEs (WITH)", ("WITH",), "write it as a join"),
    "distinct": ("DISTINCT", ("DISTINCT",), "GROUP BY all columns gives the same rows as DISTINCT"),
    "into": ("SELECT INTO", ("INTO",), ""),
    "having": ("HAVING", ("HAVING",), "filter when you read the view"),
    "windows": ("window functions", ("WINDOW",), "aggregate with GROUP BY"),
    "limit": ("LIMIT", ("LIMIT", "FETCH"), "limit when you read the view"),
    "offset": ("OFFSET", ("OFFSET",), "skip rows when you read the view"),
    "locks": ("FOR UPDATE and FOR SHARE", ("FOR",), "a view locks nothing"),
}
_ACCEPTED_PARTS = frozenset({"expressions", "from_", "joins", "where", "group", "order"})
_BEGINS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.L_PAREN})
_SET_OPERATIONS: dict[type[exp.Expr], str] = {exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}


def parse_view(text: str, tables: Mapping[str, Table], views: Collection[str] = ()) -> Definition:
    """The definition that a SELECT stands for. `views` are names that are known, but cannot be selected from.

    UnsupportedView: it cannot be kept (yet). ProgrammingError: it is wrong. DataError: it holds a literal that its
    type cannot hold. All say where.
    """
    source = SqlText(text)
    try:
        return _bind_select(source, _one_select(source), From(tables, views))
    except RecursionError:
        raise source.wrong("the SQL text is nested too deeply", None, hint="split the expression") from None


def _one_select(source: SqlText) -> exp.Expr:
    first = next((token for token in source.tokens if token.token_type != TokenType.SEMICOLON), None)
    begin = source.place_of_offset(first.start) if first is not None else (1, 1)
    if first is not None and first.token_type not in _BEGINS:
        # Before parsing: sqlglot passes what it does not know on as a command, with a warning in the log.
        raise source.wrong("not a SELECT", begin, hint="a view is defined by SELECT ... FROM ...")
    node = parse_statement(source)
    operation = _SET_OPERATIONS.get(type(node))
    if operation is not None:
        place = source.keyword(operation, depth=0) or source.keyword(operation)
        raise source.unsupported("UNION, INTERSECT and EXCEPT", place, "make a view for each part")
    if isinstance(node, exp.Values):
        raise source.unsupported("VALUES", begin, "use a table")
    if isinstance(node, exp.Subquery):
        raise source.unsupported(_SUBQUERY_REASON, begin, "leave the parentheses out")
    if type(node) is not exp.Select:
        raise source.wrong("not a SELECT", begin, hint="a view is defined by SELECT ... FROM ...")
    for name, (reason, words, hint) in _REFUSED_PARTS.items():
        if node.args.get(name):
            raise source.unsupported(reason, source.keyword(*words, depth=0), hint)
    for name, value in node.args.items():
        if value and name not in _ACCEPTED_PARTS:
            raise source.unsupported(name.strip("_").replace("_", " ").upper(), source.place(node))
    return node


def _bind_select(source: SqlText, select: exp.Expr, collected: From) -> Definition:
    scope = FromClause(source, collected).scope(select)
    where = select.args.get("where")
    if where is not None:
        for part in Binder(source, scope, "WHERE").condition(where.this, "WHERE"):
            collected.require(part)
    items = list(_items(source, scope, select.expressions))
    if not items:
        raise source.wrong("the select list is empty", source.keyword("SELECT", depth=0), hint="name a column")
    keys = _group_by(source, scope, select.args.get("group"), items)
    _check_order(source, scope, select.args.get("order"), items)
    collected.check_connected(source)
    return define(source, collected, keys, items)


def _items(source: SqlText, scope: Scope, nodes: Sequence[exp.Expr]) -> Iterator[Item]:
    for node in nodes:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            yield from _star(source, scope, node)
        else:
            yield output_item(source, scope, node)


def _star(source: SqlText, scope: Scope, node: exp.Expr) -> Iterator[Item]:
    star = node if isinstance(node, exp.Star) else node.this
    place = source.place(node)
    if any(star.args.values()) or node.args.get("db"):
        raise source.unsupported("EXCEPT, REPLACE and the like after *", place)
    columns = scope.columns
    if isinstance(node, exp.Column):
        columns = find_source(source, scope, identifier_name(node.args["table"]), place)
    for column in columns:
        yield Item(column.name, column.reference, place)


def output_item(source: SqlText, scope: Scope, node: exp.Expr, name: str | None = None) -> Item:
    written = node.this if isinstance(node, exp.Alias) else node
    if name is None:
        name = identifier_name(node.args["alias"]) if isinstance(node, exp.Alias) else output_name(source, written)
    expression = coercion.settled(Binder(source, scope).bind(written))
    return Item(name, expression, source.place(written))


def output_name(source: SqlText, node: exp.Expr) -> str:
    return _figure_name(source, node)[0] or "?column?"


def _figure_name(source: SqlText, node: exp.Expr) -> tuple[str, bool]:
    """PostgreSQL's name for an unnamed output, and whether CASE and CAST around it keep that name."""
    inner = _bare(node)
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
    if type(inner) in _AGGREGATES:
        return _AGGREGATES[type(inner)], True
    if type(inner) in _FUNCTIONS and inner.meta:
        return source.word(inner), True
    return "", False


# --- GROUP BY and ORDER BY ---


def _group_by(
    source: SqlText, scope: Scope, group: exp.Expr | None, items: Sequence[Item]
) -> tuple[Expression, ...] | None:
    if group is None:
        return None
    several = (exp.Tuple, exp.Rollup, exp.Cube, exp.GroupingSets)
    nodes = list(_flattened(group.expressions))
    plain = not any(value for name, value in group.args.items() if name != "expressions")
    if not nodes or not plain or any(isinstance(node, several) for node in nodes):
        raise source.unsupported("grouping sets, ROLLUP, CUBE and GROUP BY ALL", source.keyword("GROUP BY", depth=0))
    keys: list[Expression] = []
    for node in nodes:
        add_key(source, keys, group_key(source, scope, node, items), source.place(node))
    return tuple(keys)


def _flattened(nodes: Iterable[exp.Expr]) -> Iterator[exp.Expr]:
    """GROUP BY (a, b) is GROUP BY a, b."""
    for node in nodes:
        if isinstance(node, exp.Tuple) and node.expressions:
            yield from _flattened(node.expressions)
        else:
            yield node


def group_key(source: SqlText, scope: Scope, node: exp.Expr, items: Sequence[Item]) -> Expression:
    """PostgreSQL's order: an ordinal, a column of FROM, the name of an output, an expression."""
    inner, place = _bare(node), source.place(node)
    ordinal = _ordinal(inner)
    if ordinal is not None:
        if not 1 <= ordinal <= len(items):
            raise source.wrong(f"GROUP BY position {ordinal} is not in the select list", place)
        return items[ordinal - 1].expression
    if type(inner) in (exp.Literal, exp.Boolean, exp.Null):
        raise source.wrong("non-integer constant in GROUP BY", place or source.keyword("GROUP BY", depth=0))
    if type(inner) is exp.Column and not inner.args.get("table") and isinstance(inner.this, exp.Identifier):
        name = identifier_name(inner.this)
        named = list(dict.fromkeys(item.expression for item in items if item.name == name))
        if not scope.named(name) and named:
            if len(named) > 1:
                raise source.wrong(f"GROUP BY {name} is ambiguous", place)
            return named[0]
    return coercion.settled(Binder(source, scope, "GROUP BY").bind(node))


def _ordinal(node: exp.Expr) -> int | None:
    sign = 1
    while type(node) is exp.Neg:
        node, sign = _bare(node.this), -sign
    if type(node) is exp.Literal and not node.args.get("is_string") and str(node.this).isdecimal():
        return sign * int(str(node.this)[:20])
    return None


def _check_order(source: SqlText, scope: Scope, order: exp.Expr | None, items: Sequence[Item]) -> None:
    """ORDER BY changes nothing in a bag; its names must still exist, else the text is not what its author means."""
    outputs = {item.name for item in items}
    for ordered in order.expressions if order is not None else ():
        inner = _bare(ordered.this)
        ordinal = _ordinal(inner)
        if ordinal is not None and not 1 <= ordinal <= len(items):
            raise source.wrong(f"ORDER BY position {ordinal} is not in the select list", source.place(ordered))
        if type(inner) is exp.Column and not inner.args.get("table") and identifier_name(inner.this) in outputs:
            continue
        for column in inner.find_all(exp.Column):
            if not isinstance(column.this, exp.Star):
                resolve_column(source, scope, column)


# --- the builder ---


def parse_expression(text: str, label: str) -> tuple[SqlText, exp.Expr]:
    """One expression of a builder's query. `label` names it in errors."""
    source = SqlText(text, label)
    parsed = [node for node in _parse(source, exp.Condition) if node is not None] if source.tokens else []
    if len(parsed) != 1:
        raise source.wrong("not one expression", None, hint="write an expression of SQL, as e.cost > 0")
    return source, parsed[0]


def bind_query(query: Query, tables: Mapping[str, Table], views: Collection[str] = ()) -> Definition:
    """The definition of a builder's query: the same as that of the SQL text with the same parts."""
    whole = SqlText("", "the query")
    try:
        return _bind_query(whole, query, From(tables, views))
    except RecursionError:
        raise whole.wrong("the query is nested too deeply", None, hint="split the expression") from None


def _bind_query(whole: SqlText, query: Query, collected: From) -> Definition:
    scope = NO_SCOPE
    for table in query.tables:
        scope = side_by_side(scope, _query_table(whole, collected, table))
    for edge in query.on:
        collected.require(_query_edge(scope, edge))
    if query.where is not None:
        source, node = parse_expression(query.where, "where")
        for part in Binder(source, scope, "WHERE").condition(node, "WHERE"):
            collected.require(part)
    items = _query_items(scope, query)
    keys: list[Expression] = []
    unnamed: list[Item] = []
    for text in query.group_by or ():
        source, node = parse_expression(text, f"group_by {text!r}")
        if _ordinal(_bare(node)) is not None:
            raise source.wrong("a number in group_by", None, hint="write the column or expression")
        key = group_key(source, scope, node, items)
        add_key(source, keys, key, source.place(node))
        if all(item.expression != key for item in (*items, *unnamed)):
            unnamed.append(Item(output_name(source, node), key, None))
    if query.select is None and query.group_by is None:
        items = [Item(column.name, column.reference, None) for column in scope.columns]
    collected.check_connected(whole)
    return define(whole, collected, None if query.group_by is None else tuple(keys), [*unnamed, *items])


def _query_table(whole: SqlText, collected: From, table: JoinTable) -> Scope:
    """A name of the Python API is exact; one that does not exist so is looked up as SQL would."""
    name = table.table if table.table in collected.tables else fold(table.table)
    return collected.add(whole, name, fold(table.alias) if table.alias else name, None)


def _query_edge(scope: Scope, edge: JoinEdge) -> Expression:
    label = f"on {edge.left!r} = {edge.right!r}"
    if edge.kind != "inner":
        raise UnsupportedView(f"outer joins in {label}", hint="use kind='inner'")
    sides = []
    for text in (edge.left, edge.right):
        source, node = parse_expression(text, label)
        if type(node) is not exp.Column or not node.args.get("table"):
            raise source.wrong(f"{text!r} is not alias.column", None)
        sides.append(resolve_column(source, scope, node))
    try:
        return coercion.comparison("=", *sides)
    except (ProgrammingError, UnsupportedView) as error:
        raise SqlText("", label).placed(error, None) from None


def _query_items(scope: Scope, query: Query) -> list[Item]:
    items = []
    for name, value in query.select or ():
        label = f"select {name!r}"
        if isinstance(value, str):
            source, node = parse_expression(value, label)
        elif value.argument is None:
            source, node = SqlText("", label), exp.Count(this=exp.Star())
        else:
            source, argument = parse_expression(value.argument, label)
            node = _AGGREGATE_NODES[value.kind](this=argument)
        items.append(output_item(source, scope, node, name))
    return items


_AGGREGATE_NODES: dict[str, type[exp.Expr]] = {
    name: node for node, name in (*_AGGREGATES.items(), *_LATER_AGGREGATES.items())
}
