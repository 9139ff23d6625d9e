"""Which types an operator takes, and what it makes of them: PostgreSQL's rules for typing expressions.

Each function builds one node from bound arguments. It inserts a `cast` wherever PostgreSQL would convert silently
(int to decimal to float, date to timestamp), so that an evaluator sees equal types on both sides and has no rules of
its own. Errors carry no place here: the caller knows the text.

A quoted literal and NULL have the type UNKNOWN until they meet something that has a type; no UNKNOWN leaves a bound
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import signatures
from .errors import JSON_HINT, SYNTAX_HINT, ProgrammingError, UnsupportedView
from .expressions import Aggregate, Call, Expression, Literal
from .literals import decimal_of_digits, fit, is_number, read_interval, sql_name, value_of_text
from .types import BOOL, DATE, DECIMAL, FLOAT, INT, INT_MAX, INT_MIN, STR, TIMESTAMP, TIMESTAMPTZ, Type

UNKNOWN = Type("unknown")
#: Intervals are constants that are added to moments; none is ever a value.
INTERVAL = Type("interval")

_NUMERIC = ("int", "decimal", "float")
_MOMENTS = ("date", "timestamp", "timestamptz")
_CASTS_BY_SOURCE = {
    "int": ("decimal", "float", "str", "bool"),
    "decimal": ("int", "float", "str"),
    "float": ("int", "decimal", "str"),
    "bool": ("int", "str"),
    "str": ("int", "decimal", "float", "bool", "bytes", *_MOMENTS),
    "bytes": ("str",),
    "date": ("timestamp", "timestamptz", "str"),
    "timestamp": ("date", "timestamptz", "str"),
    "timestamptz": ("date", "timestamp", "str"),
}
#: The names of the one time zone whose rules never change.
_UTC_NAMES = frozenset({"utc", "uct", "gmt", "z", "zulu", "etc/utc", "etc/uct", "etc/gmt", "etc/zulu", "universal"})
_CAST_HINT = "add an explicit CAST"


# --- literals and conversions ---


def number(digits: str) -> Literal:
    """A numeric literal, with its sign: an integer if it is written as one and fits 64 bits, else a decimal."""
    if not is_number(digits):
        raise ProgrammingError(f'syntax error at or near "{digits}"', hint=SYNTAX_HINT)
    exact = decimal_of_digits(digits)
    if digits.lstrip("-").isdigit() and INT_MIN <= exact <= INT_MAX:
        return Literal(int(exact), INT)
    return Literal(exact, DECIMAL)


def unknown(text: str | None) -> Literal:
    return Literal(text, UNKNOWN)


def settled(expression: Expression, type_: Type = STR) -> Expression:
    """An expression whose type is known: what nothing gave a type to is text, as in PostgreSQL."""
    if expression.type == INTERVAL:
        raise _interval_refused()
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
    if INTERVAL.kind in kinds:
        raise _interval_refused()
    for widening in (_NUMERIC, _MOMENTS):
        if kinds <= set(widening):
            return Type(max(kinds, key=widening.index))
    return Type(kinds.pop()) if len(kinds) == 1 else None


def _interval_refused() -> UnsupportedView:
    return UnsupportedView("an interval as a value", hint="add it to a date or timestamp, or subtract it from one")


def no_operator(left: Type, op: str, right: Type) -> ProgrammingError:
    message = f"operator does not exist: {sql_name(left)} {op} {sql_name(right)}"
    # A list as the value of a parameter is json.
    hint = "write one ? for each value of a list" if "json" in (left.kind, right.kind) else _CAST_HINT
    return ProgrammingError(message, hint=hint)


def no_function(name: str, arguments: Sequence[Expression]) -> ProgrammingError:
    return ProgrammingError(f"function {_call_text(name, arguments)} does not exist", hint=_CAST_HINT)


def _call_text(name: str, arguments: Sequence[Expression]) -> str:
    return f"{name}({', '.join(sql_name(argument.type) for argument in arguments)})"


# --- operators ---


def arithmetic(op: str, left: Expression, right: Expression) -> Expression:
    if left.type == UNKNOWN and right.type == UNKNOWN:
        raise ProgrammingError(f"operator is not unique: unknown {op} unknown", hint=_CAST_HINT)
    types = (left.type, right.type)
    if any(type_.kind in (*_MOMENTS, INTERVAL.kind) for type_ in types):
        return _moment_arithmetic(op, left, right)
    common = common_type(types)
    if common is None or common.kind not in _NUMERIC or (op == "%" and common == FLOAT):
        raise no_operator(left.type, op, right.type)
    return Call(op, (widened(left, common), widened(right, common)), common)


def _moment_arithmetic(op: str, left: Expression, right: Expression) -> Expression:
    kinds = (left.type.kind, right.type.kind)
    if op in "+-" and kinds == ("date", "int"):
        return Call("add_days", (left, right if op == "+" else _negative(right)), DATE)
    if op == "+" and kinds == ("int", "date"):
        return Call("add_days", (right, left), DATE)
    if op == "-" and kinds in (("date", "date"), ("date", UNKNOWN.kind), (UNKNOWN.kind, "date")):
        return Call("days_between", (settled(left, DATE), settled(right, DATE)), INT)
    if op == "+" and UNKNOWN.kind in kinds and not {"date", INTERVAL.kind} & set(kinds):
        # Nothing else can be added to a timestamp.
        left, right = (_interval_of_unknown(side) for side in (left, right))
        kinds = (left.type.kind, right.type.kind)
    if op in "+-" and kinds[0] in _MOMENTS and kinds[1] == INTERVAL.kind:
        return _moved(left, right if op == "+" else negation(right))
    if op == "+" and kinds[0] == INTERVAL.kind and kinds[1] in _MOMENTS:
        return _moved(right, left)
    if INTERVAL.kind in kinds:
        return _interval_arithmetic(op, left, right)
    if op == "-" and all(kind in (*_MOMENTS, UNKNOWN.kind) for kind in kinds):
        hint = "subtract dates, or what extract(epoch FROM ...) gives"
        raise UnsupportedView("the difference of timestamps, which is an interval", hint=hint)
    raise no_operator(left.type, op, right.type)


def _interval_of_unknown(expression: Expression) -> Expression:
    if expression.type != UNKNOWN or not isinstance(expression, Literal):
        return expression
    if expression.value is None:
        return Call("interval", (Literal(None, INT),) * 3, INTERVAL)
    return interval(str(expression.value))


def _moved(moment: Expression, by: Expression) -> Expression:
    """A moment plus an interval; a date becomes a timestamp."""
    assert isinstance(by, Call), "an interval is a call"
    start = widened(moment, TIMESTAMP) if moment.type.kind == "date" else moment
    return Call("add_interval", (start, *by.args), Type(start.type.kind))


def interval(text: str, unit: str = "") -> Expression:
    """INTERVAL 'text' unit."""
    parts = read_interval(text, unit)
    return Call("interval", tuple(Literal(part, INT) for part in parts), INTERVAL)


def _interval_arithmetic(op: str, left: Expression, right: Expression) -> Expression:
    if left.type.kind == "int":
        left, right = right, left
    if op == "*" and isinstance(left, Call) and right.type.kind == "int":
        return Call("interval", tuple(_product(part, right) for part in left.args), INTERVAL)
    if op in "+-" and isinstance(left, Call) and isinstance(right, Call) and left.type == right.type == INTERVAL:
        pairs = zip(left.args, (right if op == "+" else _negated_interval(right)).args, strict=True)
        return Call("interval", tuple(_sum(ours, theirs) for ours, theirs in pairs), INTERVAL)
    types = f"{sql_name(left.type)} {op} {sql_name(right.type)}"
    raise UnsupportedView(f"operator {types}", hint="multiply an interval with an integer")


def _sum(left: Expression, right: Expression) -> Expression:
    if isinstance(left, Literal) and isinstance(right, Literal):
        assert isinstance(left.value, int) and isinstance(right.value, int), "parts of an interval are integers"
        return Literal(left.value + right.value, INT)
    return Call("+", (left, right), INT)


def _product(part: Expression, factor: Expression) -> Expression:
    if isinstance(part, Literal) and isinstance(factor, Literal) and factor.value is not None:
        assert isinstance(part.value, int) and isinstance(factor.value, int), "parts of an interval are integers"
        return number(str(part.value * factor.value))
    return Call("*", (part, factor), INT)


def _negative(expression: Expression) -> Expression:
    if isinstance(expression, Literal) and isinstance(expression.value, int) and expression.value != INT_MIN:
        return Literal(-expression.value, INT)
    return Call("neg", (expression,), INT)


def _negated_interval(argument: Call) -> Call:
    return Call("interval", tuple(map(_negative, argument.args)), INTERVAL)


def negation(argument: Expression) -> Expression:
    if argument.type == UNKNOWN:
        raise ProgrammingError("operator is not unique: - unknown", hint=_CAST_HINT)
    if isinstance(argument, Call) and argument.type == INTERVAL:
        return _negated_interval(argument)
    if argument.type.kind not in _NUMERIC:
        raise ProgrammingError(f"operator does not exist: - {sql_name(argument.type)}", hint=_CAST_HINT)
    return Call("neg", (argument,), Type(argument.type.kind))


def power(left: Expression, right: Expression) -> Expression:
    """The operator ^."""
    try:
        return function("power", (left, right))
    except ProgrammingError:
        raise no_operator(left.type, "^", right.type) from None


def comparable(op: str, left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Both sides in the type in which they are compared."""
    common = common_type((left.type, right.type))
    if common is None:
        raise no_operator(left.type, op, right.type)
    require_equality(common)
    left, right = _without_blanks((left, right))
    return widened(left, common), widened(right, common)


def _without_blanks(expressions: Sequence[Expression]) -> Sequence[Expression]:
    """Texts of unknown type that meet nothing but char(n) are char(n), too: the blanks at their ends mean nothing."""
    known = [expression.type for expression in expressions if expression.type != UNKNOWN]
    if not known or not all(type_.padded for type_ in known):
        return expressions
    return [
        unknown(expression.value.rstrip(" "))
        if isinstance(expression, Literal) and expression.type == UNKNOWN and isinstance(expression.value, str)
        else expression
        for expression in expressions
    ]


def require_equality(type_: Type) -> None:
    if type_.kind == "json":
        raise UnsupportedView("comparison and grouping of json values", hint=JSON_HINT)


def comparison(op: str, left: Expression, right: Expression) -> Expression:
    return Call(op, comparable(op, left, right), BOOL)


def between(value: Expression, low: Expression, high: Expression, *, symmetric: bool = False) -> Expression:
    """BETWEEN; with SYMMETRIC the bounds may stand in either order."""
    within = Call("and", (comparison(">=", value, low), comparison("<=", value, high)), BOOL)
    return Call("or", (within, between(value, high, low)), BOOL) if symmetric else within


def membership(value: Expression, items: Sequence[Expression]) -> Expression:
    """IN. PostgreSQL compares with all constants in one common type, and with each other item in its own."""
    value, *items = _without_blanks((value, *items))
    constants = [item for item in items if not _reads_rows(item)]
    common = common_type([value.type, *(item.type for item in constants)])
    others = [item for item in items if _reads_rows(item)]
    if common is None:
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
        raise ProgrammingError(
            f"argument of {clause} must be type boolean, not type {sql_name(expression.type)}",
            hint="compare it with something, as x <> 0",
        )
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
    if common is None:
        known = list(dict.fromkeys(sql_name(type_) for type_ in types if type_ != UNKNOWN))
        raise ProgrammingError(f"{name} types {' and '.join(known[:2])} cannot be matched", hint=_CAST_HINT)
    return tuple(widened(expression, common) for expression in _without_blanks(expressions)), common


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


def like(
    value: Expression, pattern: Expression, escape: Expression | None = None, *, ignore_case: bool = False
) -> Expression:
    """LIKE and ILIKE; ESCAPE rewrites the pattern."""
    value, pattern = settled(value), settled(pattern)
    if value.type.kind != "str" or pattern.type.kind != "str":
        raise no_operator(value.type, "ILIKE" if ignore_case else "LIKE", pattern.type)
    if escape is not None:
        escape = settled(escape)
        if escape.type.kind != "str":
            raise no_function("like_escape", (pattern, escape))
        pattern = Call("like_escape", (pattern, escape), STR)
    return Call("ilike" if ignore_case else "like", (value, pattern), BOOL)


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
        # A char(n) that is cast to text is compared as text is.
        changed = expression.type != target and (limited or expression.type.padded)
        return Call("cast", (expression,), target) if changed else expression
    if target.kind not in _CASTS_BY_SOURCE.get(source, ()):
        if "json" in (source, target.kind):
            raise UnsupportedView(f"cast from {sql_name(expression.type)} to {sql_name(target)}", hint=JSON_HINT)
        if INTERVAL.kind == source:
            raise _interval_refused()
        raise ProgrammingError(
            f"cannot cast type {sql_name(expression.type)} to {sql_name(target)}", hint=_cast_hint(expression.type)
        )
    return Call("cast", (expression,), target)


def _cast_hint(source: Type) -> str:
    targets = [sql_name(Type(kind)) for kind in _CASTS_BY_SOURCE.get(source.kind, ())]
    return f"it can be cast to {', '.join(targets)}" if targets else _CAST_HINT


def at_time_zone(moment: Expression, zone: Expression) -> Expression:
    """A timestamp read in a zone, or a timestamptz shown in it. Only UTC: the rules of other zones change, and a view
    could not know which of its rows would have to change with them."""
    name = zone.value if isinstance(zone, Literal) else None
    if not isinstance(name, str) or name.strip().lower() not in _UTC_NAMES:
        hint = "keep the local time in a column"
        raise UnsupportedView("AT TIME ZONE with another zone than 'UTC'", hint=hint)
    if moment.type.kind == "timestamp":
        return cast(moment, TIMESTAMPTZ)
    if moment.type != UNKNOWN and moment.type.kind not in _MOMENTS:
        raise no_function("timezone", (zone, moment))
    return cast(cast(moment, TIMESTAMPTZ), TIMESTAMP)


def function(name: str, arguments: Sequence[Expression]) -> Expression:
    """The scalar functions, by the name that the user wrote. KeyError: there is none of that name here."""
    if any(argument.type == INTERVAL for argument in arguments):
        raise _interval_refused()
    special = _SPECIAL_FUNCTIONS.get(name)
    if special is not None and arguments:
        return special(arguments)
    if special is not None:
        raise no_function(name, arguments)
    if name == "date_part" and len(arguments) == 2 and arguments[1].type.kind == "date":
        arguments = (arguments[0], widened(arguments[1], TIMESTAMP))
    parameters = signatures.resolve(name, [argument.type.kind for argument in arguments])
    if parameters is None:
        raise no_function(name, arguments)
    if not parameters:
        raise ProgrammingError(f"function {_call_text(name, arguments)} is not unique", hint=_CAST_HINT)
    op, result = signatures.SIGNATURES[name][parameters]
    args = tuple(widened(argument, Type(kind)) for argument, kind in zip(arguments, parameters, strict=True))
    return Call(op, args[::-1] if name in signatures.SUBJECT_LAST else args, Type(result))


def _coalesce(arguments: Sequence[Expression]) -> Expression:
    args, common = matching("COALESCE", arguments)
    return Call("coalesce", args, common)


def _nullif(arguments: Sequence[Expression]) -> Expression:
    if len(arguments) != 2:
        raise no_function("nullif", arguments)
    left, right = comparable("=", *arguments)
    kind = arguments[0].type.kind
    if kind in _MOMENTS and left.type.kind != kind:
        # PostgreSQL compares a date with a timestamp as they are, and gives back the date.
        return case([(comparison("=", left, right), unknown(None))], arguments[0])
    return Call("nullif", (left, right), Type(left.type.kind))


def _greatest(arguments: Sequence[Expression]) -> Expression:
    return _extreme("greatest", arguments)


def _least(arguments: Sequence[Expression]) -> Expression:
    return _extreme("least", arguments)


def _extreme(name: str, arguments: Sequence[Expression]) -> Expression:
    args, common = matching(name.upper(), arguments)
    require_equality(common)
    return Call(name, args, common)


def _concat(arguments: Sequence[Expression]) -> Expression:
    return Call("concat", tuple(map(_output_text, arguments)), STR)


def _concat_ws(arguments: Sequence[Expression]) -> Expression:
    separator, *parts = arguments
    if separator.type.kind not in ("str", UNKNOWN.kind) or not parts:
        raise no_function("concat_ws", arguments)
    return Call("concat_ws", (settled(separator), *map(_output_text, parts)), STR)


def _output_text(expression: Expression) -> Expression:
    """A value as it is printed, which for a boolean is one letter: the first of its text."""
    expression = settled(expression)
    if expression.type.kind == "bool":
        return cast(expression, Type("str", length=1))
    return _as_text(expression)


_SPECIAL_FUNCTIONS: dict[str, Callable[[Sequence[Expression]], Expression]] = {
    "coalesce": _coalesce,
    "nullif": _nullif,
    "greatest": _greatest,
    "least": _least,
    "concat": _concat,
    "concat_ws": _concat_ws,
}
#: All names that `function` knows.
FUNCTION_NAMES = frozenset(_SPECIAL_FUNCTIONS) | frozenset(signatures.SIGNATURES)


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
