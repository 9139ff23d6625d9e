"""Which types an operator takes, and what it makes of them: PostgreSQL's rules for typing expressions.

Each function builds one node from bound arguments. It inserts a `cast` wherever PostgreSQL would convert silently
(int to decimal to float, date to timestamp), so that an evaluator sees equal types on both sides and has no rules of
its own. Errors carry no place here: the caller knows the text.

A quoted literal and NULL have the type UNKNOWN until they meet something that has a type; no UNKNOWN leaves a bound
definition.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ProgrammingError, UnsupportedView
from .expressions import Aggregate, Call, ColumnRef, Expression, Literal
from .literals import decimal_of_digits, fit, is_number, sql_name, value_of_text
from .types import BOOL, DECIMAL, FLOAT, INT, INT_MAX, INT_MIN, STR, Type

UNKNOWN = Type("unknown")

_NUMERIC = ("int", "decimal", "float")
_MOMENTS = ("date", "timestamp", "timestamptz")
_CASTS_BY_SOURCE = {
    "int": ("decimal", "float", "str", "bool"),
    "decimal": ("int", "float", "str"),
    "float": ("int", "decimal", "str"),
    "bool": ("int", "str"),
    "str": ("int", "decimal", "float", "bool"),
    "date": ("timestamp",),
    "timestamp": ("date",),
}
#: Casts that PostgreSQL does not have either: an error of the statement, not a missing feature.
_IMPOSSIBLE_CASTS = frozenset({("bool", "decimal"), ("bool", "float"), ("decimal", "bool"), ("float", "bool")})
_CAST_HINT = "add an explicit CAST"


# --- literals and conversions ---


def number(digits: str) -> Literal:
    """A numeric literal, with its sign: an integer if it is written as one and fits 64 bits, else a decimal."""
    if not is_number(digits):
        raise ProgrammingError(f'syntax error at or near "{digits}"')
    exact = decimal_of_digits(digits)
    if digits.lstrip("-").isdigit() and INT_MIN <= exact <= INT_MAX:
        return Literal(int(exact), INT)
    return Literal(exact, DECIMAL)


def unknown(text: str | None) -> Literal:
    return Literal(text, UNKNOWN)


def settled(expression: Expression, type_: Type = STR) -> Expression:
    """An expression whose type is known: what nothing gave a type to is text, as in PostgreSQL."""
    if expression.type != UNKNOWN:
        return expression
    assert isinstance(expression, Literal), "only literals are of unknown type"
    plain = Type(type_.kind)
    if expression.value is None:
        return Literal(None, plain)
    assert isinstance(expression.value, str), "a literal of unknown type is its text"
    return Literal(value_of_text(expression.value, plain), plain)


def widened(expression: Expression, target: Type) -> Expression:
    """The silent conversion to the kind of `target`; precision and length play no part in it."""
    if expression.type == UNKNOWN:
        return settled(expression, target)
    if expression.type.kind == target.kind:
        return expression
    return Call("cast", (expression,), Type(target.kind))


def common_type(types: Sequence[Type]) -> Type | None:
    """The type that all convert to silently, None if there is none. UNKNOWN converts to everything."""
    kinds = {type_.kind for type_ in types if type_ != UNKNOWN}
    if not kinds:
        return STR
    if kinds <= set(_NUMERIC):
        return FLOAT if "float" in kinds else DECIMAL if "decimal" in kinds else INT
    if kinds == {"date", "timestamp"}:
        return Type("timestamp")
    return Type(kinds.pop()) if len(kinds) == 1 else None


def _needs_time_zone(types: Sequence[Type]) -> bool:
    kinds = {type_.kind for type_ in types if type_ != UNKNOWN}
    return "timestamptz" in kinds and len(kinds) > 1 and kinds <= set(_MOMENTS)


def no_operator(left: Type, op: str, right: Type) -> ProgrammingError:
    message = f"operator does not exist: {sql_name(left)} {op} {sql_name(right)}"
    return ProgrammingError(message, hint=_CAST_HINT)


def no_function(name: str, arguments: Sequence[Expression]) -> ProgrammingError:
    types = ", ".join(sql_name(argument.type) for argument in arguments)
    return ProgrammingError(f"function {name}({types}) does not exist", hint=_CAST_HINT)


# --- operators ---


def arithmetic(op: str, left: Expression, right: Expression) -> Expression:
    if left.type == UNKNOWN and right.type == UNKNOWN:
        raise ProgrammingError(f"operator is not unique: unknown {op} unknown", hint=_CAST_HINT)
    types = (left.type, right.type)
    if any(type_.kind in (*_MOMENTS, "json") for type_ in types):
        raise UnsupportedView(f"operator {op} on {' and '.join(sorted({sql_name(type_) for type_ in types}))}")
    common = common_type(types)
    if common is None or common.kind not in _NUMERIC or (op == "%" and common == FLOAT):
        raise no_operator(left.type, op, right.type)
    return Call(op, (widened(left, common), widened(right, common)), common)


def negation(argument: Expression) -> Expression:
    if argument.type == UNKNOWN:
        raise ProgrammingError("operator is not unique: - unknown", hint=_CAST_HINT)
    if argument.type.kind not in _NUMERIC:
        raise ProgrammingError(f"operator does not exist: - {sql_name(argument.type)}", hint=_CAST_HINT)
    return Call("neg", (argument,), Type(argument.type.kind))


def comparable(op: str, left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Both sides in the type in which they are compared."""
    types = (left.type, right.type)
    if _needs_time_zone(types):
        raise UnsupportedView(
            "comparison that depends on the time zone of the session", hint="use one type on both sides"
        )
    common = common_type(types)
    if common is None:
        raise no_operator(left.type, op, right.type)
    require_equality(common)
    return widened(left, common), widened(right, common)


def require_equality(type_: Type) -> None:
    if type_.kind == "json":
        raise UnsupportedView("comparison and grouping of json values")


def comparison(op: str, left: Expression, right: Expression) -> Expression:
    return Call(op, comparable(op, left, right), BOOL)


def between(value: Expression, low: Expression, high: Expression) -> Expression:
    return Call("and", (comparison(">=", value, low), comparison("<=", value, high)), BOOL)


def membership(value: Expression, items: Sequence[Expression]) -> Expression:
    """IN. PostgreSQL compares with all constants in one common type, and with each other item in its own."""
    constants = [item for item in items if not _reads_rows(item)]
    common = common_type([value.type, *(item.type for item in constants)])
    others = [item for item in items if _reads_rows(item)]
    if common is None or _needs_time_zone([value.type, *(item.type for item in items)]):
        constants, others = [], list(items)  # The comparison one by one says which item is wrong.
    elif value.type.kind == common.kind and all(item.type.kind == common.kind for item in others):
        constants, others = list(items), []
    tests: list[Expression] = []
    if constants and common is not None:
        require_equality(common)
        tests.append(Call("in", tuple(widened(item, common) for item in (value, *constants)), BOOL))
    tests += [comparison("=", value, item) for item in others]
    return balanced("or", tests)


def _reads_rows(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return any(_reads_rows(argument) for argument in expression.args)
    return not isinstance(expression, Literal)


def condition(expression: Expression, clause: str) -> Expression:
    """A boolean, which is what `clause` asks for."""
    if expression.type == UNKNOWN:
        return settled(expression, BOOL)
    if expression.type.kind != "bool":
        raise ProgrammingError(f"argument of {clause} must be type boolean, not type {sql_name(expression.type)}")
    return expression


def balanced(op: str, conditions: Sequence[Expression]) -> Expression:
    """AND or OR of all, in order, as a shallow tree: a thousand alternatives must not be a thousand levels."""
    if len(conditions) == 1:
        return conditions[0]
    middle = (len(conditions) + 1) // 2
    return Call(op, (balanced(op, conditions[:middle]), balanced(op, conditions[middle:])), BOOL)


def truth_test(argument: Expression, value: bool, *, negated: bool) -> Expression:
    """IS [NOT] TRUE and IS [NOT] FALSE, which are never NULL."""
    checked = condition(argument, f"IS {'NOT ' if negated else ''}{str(value).upper()}")
    return Call("is_distinct" if negated else "is_not_distinct", (checked, Literal(value, BOOL)), BOOL)


def matching(name: str, expressions: Sequence[Expression]) -> tuple[tuple[Expression, ...], Type]:
    """The alternatives of CASE or COALESCE in their common type."""
    types = [expression.type for expression in expressions]
    common = common_type(types)
    if common is None and _needs_time_zone(types):
        raise UnsupportedView(
            f"{name} that depends on the time zone of the session", hint="use one type in all branches"
        )
    if common is None:
        known = list(dict.fromkeys(sql_name(type_) for type_ in types if type_ != UNKNOWN))
        raise ProgrammingError(f"{name} types {' and '.join(known[:2])} cannot be matched", hint=_CAST_HINT)
    return tuple(widened(expression, common) for expression in expressions), common


def case(branches: Sequence[tuple[Expression, Expression]], otherwise: Expression) -> Expression:
    results, common = matching("CASE", [*(result for _, result in branches), otherwise])
    args: list[Expression] = []
    for (test, _), result in zip(branches, results[:-1], strict=True):
        args += (condition(test, "CASE/WHEN"), result)
    return Call("case", (*args, results[-1]), common)


def concatenation(left: Expression, right: Expression) -> Expression:
    """Text with text; PostgreSQL also takes a value of another type on one side, in its text form."""
    kinds = {left.type.kind, right.type.kind}
    if kinds <= {"bytes", UNKNOWN.kind} and "bytes" in kinds:
        return Call("||", (settled(left, right.type), settled(right, left.type)), Type("bytes"))
    left, right = settled(left), settled(right)
    if "str" not in (left.type.kind, right.type.kind):
        raise no_operator(left.type, "||", right.type)
    return Call("||", (_as_text(left), _as_text(right)), STR)


def _as_text(expression: Expression) -> Expression:
    return expression if expression.type.kind == "str" else cast(expression, STR)


def like(value: Expression, pattern: Expression) -> Expression:
    value, pattern = settled(value), settled(pattern)
    if value.type.kind != "str" or pattern.type.kind != "str":
        raise no_operator(value.type, "LIKE", pattern.type)
    return Call("like", (value, pattern), BOOL)


# --- casts and functions ---


def cast(expression: Expression, target: Type) -> Expression:
    """An explicit CAST. A literal of unknown type is read at once: `'2024-02-30'::date` is wrong before any row."""
    if expression.type == UNKNOWN:
        literal = settled(expression, target)
        assert isinstance(literal, Literal), "a literal stays a literal"
        return Literal(fit(literal.value, target), target)
    source = expression.type.kind
    if source == target.kind:
        limited = target.precision is not None or target.length is not None
        return expression if expression.type == target or not limited else Call("cast", (expression,), target)
    if (source, target.kind) in _IMPOSSIBLE_CASTS:
        raise ProgrammingError(f"cannot cast type {sql_name(expression.type)} to {sql_name(target)}")
    if target.kind not in _CASTS_BY_SOURCE.get(source, ()):
        raise UnsupportedView(f"cast from {sql_name(expression.type)} to {sql_name(target)}")
    return Call("cast", (expression,), target)


def function(name: str, arguments: Sequence[Expression]) -> Expression:
    """The scalar functions, by the name that the user wrote."""
    if name == "coalesce" and arguments:
        args, common = matching("COALESCE", arguments)
        return Call("coalesce", args, common)
    if name == "nullif" and len(arguments) == 2:
        left, right = comparable("=", *arguments)
        return Call("nullif", (left, right), Type(left.type.kind))
    if name == "mod" and len(arguments) == 2:
        return _mod(arguments[0], arguments[1])
    if len(arguments) != 1:
        raise no_function(name, arguments)
    if name == "abs":
        argument = settled(arguments[0], FLOAT)
        takes: tuple[str, ...] = _NUMERIC
    else:
        argument = settled(arguments[0])
        takes = ("str", "bytes") if name == "length" else ("str",)
    if argument.type.kind not in takes:
        raise no_function(name, arguments)
    if name in ("length", "char_length", "character_length"):
        return Call("length", (argument,), INT)
    return Call(name, (argument,), Type(argument.type.kind))


def _mod(left: Expression, right: Expression) -> Expression:
    try:
        return arithmetic("%", left, right)
    except ProgrammingError:
        raise no_function("mod", (left, right)) from None


def aggregate(name: str, argument: Expression) -> Aggregate:
    """COUNT, SUM, AVG of an expression. SUM of integers is an integer that may have more than 64 bits."""
    if name == "count":
        return Aggregate("count", settled(argument), INT)
    if argument.type == UNKNOWN:
        raise ProgrammingError(f"function {name}(unknown) is not unique", hint=_CAST_HINT)
    kind = argument.type.kind
    if kind not in _NUMERIC:
        raise no_function(name, (argument,))
    if name == "avg" and kind == "int":
        return Aggregate("avg", argument, DECIMAL)
    return Aggregate(name, argument, Type(kind))


def join_columns(expression: Expression) -> tuple[ColumnRef, ColumnRef] | None:
    """The two columns of an equality that a look-up by key can serve: different sources, nothing converted."""
    if not isinstance(expression, Call) or expression.op != "=":
        return None
    left, right = expression.args
    if not isinstance(left, ColumnRef) or not isinstance(right, ColumnRef) or left.source == right.source:
        return None
    return (left, right) if left.source < right.source else (right, left)
