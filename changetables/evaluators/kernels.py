"""Expressions over whole columns, for the operators whose results Arrow gives exactly as the generated code does.

An operator that is not here, or whose arguments Arrow cannot hold, raises `Unsuitable`: the caller then evaluates that
expression row by row, with the generated code. NULL is Arrow's null, NaN equals NaN and is above all other floats.

Every argument is evaluated for every row, also where SQL would not look at it (behind AND, inside CASE). So operators
that fail for common values, such as a division, are not taken there. Integer arithmetic is: that it overflows where
nobody looks is rare, and whatever fails here is tried again by rows, which then fail or not as they should.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..expressions import Call, Expression, Literal
from ..texts import RESULT_CHARACTERS_MAX
from ..types import Type
from .vectors import DECIMAL128_DIGITS_MAX, DECIMAL256_DIGITS_MAX, Unsuitable, arrow_type, decimal_type

#: An array of all rows, or one value for all of them.
Operand: TypeAlias = pa.Array | pa.Scalar
#: Evaluates an argument that is not a constant.
Evaluate: TypeAlias = Callable[[Expression], pa.Array]
_Kernel: TypeAlias = Callable[[Call, Evaluate], pa.Array]

#: Digits of a 64-bit integer as a decimal.
INT_DIGITS = 19

_COMPARED = frozenset({"int", "str", "bytes", "bool", "date", "timestamp", "timestamptz"})
_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def vectorised(call: Call, evaluate: Evaluate) -> pa.Array:
    """The value of a call for all rows. Unsuitable: not by Arrow. ArrowInvalid: some row fails, or overflows."""
    kernel = _KERNELS.get(call.op)
    if kernel is None:
        raise Unsuitable(call.op)
    if all(isinstance(argument, Literal) for argument in call.args):
        raise Unsuitable("constants")
    return kernel(call, evaluate)


def _operand(expression: Expression, evaluate: Evaluate, type_: Type | None = None) -> Operand:
    """`type_`: that of a constant NULL."""
    if not isinstance(expression, Literal):
        return evaluate(expression)
    value, kind = expression.value, expression.type.kind
    if value is None:
        return pa.scalar(None, arrow_type(type_ or expression.type))
    if kind == "decimal":
        assert isinstance(value, Decimal)
        digits, exponent = value.as_tuple().digits, value.as_tuple().exponent
        if not isinstance(exponent, int) or exponent > 0:
            raise Unsuitable(f"the numeric {value}")
        return pa.scalar(value, decimal_type(max(len(digits), -exponent, 1), -exponent))
    return pa.scalar(value, arrow_type(Type(kind)))


def _operands(call: Call, evaluate: Evaluate) -> list[Operand]:
    return [_operand(argument, evaluate) for argument in call.args]


def _kind(arguments: Sequence[Expression]) -> str:
    """The kind that all arguments have; the binder has made them equal, but for NULL."""
    kinds = {argument.type.kind for argument in arguments}
    if len(kinds) != 1:
        raise Unsuitable("arguments of several kinds")
    return kinds.pop()


# --- what must not be evaluated for every row ---

#: Operators that fail for no value, or for values at the limits only.
_ALL_ROWS = frozenset(
    {"+", "-", "*", "neg", "abs", "=", "<>", "<", "<=", ">", ">=", "and", "or", "not", "is_null", "is_not_null"}
    | {"is_distinct", "is_not_distinct", "in", "case", "coalesce", "nullif", "greatest", "least", "length", "||"}
    | {"like", "date_trunc", "octet_length"}
)


def _evaluated_for_all(arguments: Sequence[Expression]) -> None:
    for argument in arguments:
        if isinstance(argument, Call):
            if argument.op not in _ALL_ROWS and not _is_plain_cast(argument):
                raise Unsuitable(f"{argument.op} where it is not always evaluated")
            _evaluated_for_all(argument.args)


def _is_plain_cast(call: Call) -> bool:
    return call.op == "cast" and (call.args[0].type.kind, call.type.kind) in _CASTS and call.type.precision is None


# --- comparison ---


def _comparison(call: Call, evaluate: Evaluate) -> pa.Array:
    kind = _kind(call.args)
    left, right = _operands(call, evaluate)
    return _compared(call.op, kind, left, right)


def _compared(op: str, kind: str, left: Operand, right: Operand) -> pa.Array:
    if kind == "float":
        return _compared_floats(op, left, right)
    if kind == "decimal":
        left, right = _aligned(left, right)
    elif kind not in _COMPARED:
        raise Unsuitable(f"comparison of {kind}")
    return _COMPARISONS[op](left, right)


def _compared_floats(op: str, left: Operand, right: Operand) -> pa.Array:
    if op in (">", "<="):
        return _compared_floats({">": "<", "<=": ">="}[op], right, left)
    nan_left, nan_right = pc.is_nan(left), pc.is_nan(right)
    if op in ("=", "<>"):
        equal = pc.or_(pc.equal(left, right), pc.and_(nan_left, nan_right))
        return equal if op == "=" else pc.invert(equal)
    less = pc.or_(pc.less(left, right), pc.and_(nan_right, pc.invert(nan_left)))
    return less if op == "<" else pc.invert(less)


def _aligned(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Both in a decimal type that holds either."""
    scale = max(left.type.scale, right.type.scale)
    whole = max(left.type.precision - left.type.scale, right.type.precision - right.type.scale)
    common = decimal_type(whole + scale, scale)
    return left.cast(common), right.cast(common)


def _distinct(call: Call, evaluate: Evaluate) -> pa.Array:
    kind = _kind(call.args)
    left, right = (_operand(argument, evaluate, Type(kind)) for argument in call.args)
    equal = pc.fill_null(_compared("=", kind, left, right), False)
    same = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    return same if call.op == "is_not_distinct" else pc.invert(same)


def _in(call: Call, evaluate: Evaluate) -> pa.Array:
    kind = _kind(call.args)
    _evaluated_for_all(call.args[1:])
    value, *items = _operands(call, evaluate)
    found = _compared("=", kind, value, items[0])
    for item in items[1:]:
        found = pc.or_kleene(found, _compared("=", kind, value, item))
    return found


# --- logic ---


def _connective(call: Call, evaluate: Evaluate) -> pa.Array:
    _evaluated_for_all(call.args[1:])
    combine = pc.and_kleene if call.op == "and" else pc.or_kleene
    first, *rest = (_operand(argument, evaluate, call.type) for argument in call.args)
    for each in rest:
        first = combine(first, each)
    return first


def _not(call: Call, evaluate: Evaluate) -> pa.Array:
    return pc.invert(evaluate(call.args[0]))


def _is_null(call: Call, evaluate: Evaluate) -> pa.Array:
    return pc.is_null(evaluate(call.args[0]))


def _is_not_null(call: Call, evaluate: Evaluate) -> pa.Array:
    return pc.is_valid(evaluate(call.args[0]))


# --- choice ---


def _results(call: Call, results: Sequence[Expression], evaluate: Evaluate) -> list[Operand]:
    """Results in one Arrow type; decimals only if they have one scale, which the view would show."""
    if {each.type.kind for each in results if not _is_null_constant(each)} - {call.type.kind}:
        raise Unsuitable("results of several kinds")
    if call.type.kind != "decimal":
        return [_operand(each, evaluate, Type(call.type.kind)) for each in results]
    found = [None if _is_null_constant(each) else _operand(each, evaluate) for each in results]
    types = [each.type for each in found if each is not None]
    if len({type_.scale for type_ in types}) != 1:
        raise Unsuitable("numerics of several scales")
    common = decimal_type(max(type_.precision for type_ in types), types[0].scale)
    return [pa.scalar(None, common) if each is None else each.cast(common) for each in found]


def _is_null_constant(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is None


def _case(call: Call, evaluate: Evaluate) -> pa.Array:
    arguments = call.args if len(call.args) % 2 else (*call.args, Literal(None, call.type))
    conditions, results = arguments[:-1:2], (*arguments[1::2], arguments[-1])
    _evaluated_for_all((*conditions[1:], *results))
    values = _results(call, results, evaluate)
    found = values[-1]
    for condition, value in zip(reversed(conditions), reversed(values[:-1]), strict=True):
        found = pc.if_else(pc.fill_null(_operand(condition, evaluate), False), value, found)
    return found


def _coalesce(call: Call, evaluate: Evaluate) -> pa.Array:
    _evaluated_for_all(call.args[1:])
    return pc.coalesce(*_results(call, call.args, evaluate))


def _nullif(call: Call, evaluate: Evaluate) -> pa.Array:
    kind = _kind(call.args)
    if kind != call.type.kind:
        raise Unsuitable("nullif that converts")
    value, other = _operands(call, evaluate)
    equal = pc.fill_null(_compared("=", kind, value, other), False)
    return pc.if_else(equal, pa.scalar(None, value.type), value)


def _extreme(call: Call, evaluate: Evaluate) -> pa.Array:
    kind = _kind(call.args)
    if kind not in _COMPARED or kind == "bool" or kind != call.type.kind:
        raise Unsuitable(f"{call.op} of {kind}")
    choose = pc.max_element_wise if call.op == "greatest" else pc.min_element_wise
    return choose(*_operands(call, evaluate), skip_nulls=True)


# --- arithmetic ---


def _arithmetic(call: Call, evaluate: Evaluate) -> pa.Array:
    kind = _kind(call.args)
    if kind != call.type.kind:
        raise Unsuitable("arithmetic that converts")
    operands = _operands(call, evaluate)
    if kind == "int":
        return _INTEGERS[call.op](*operands)
    if kind == "float":
        return _float_arithmetic(call.op, operands)
    if kind == "decimal" and call.op in _DECIMALS:
        return _DECIMALS[call.op](*operands)
    raise Unsuitable(f"{call.op} of {kind}")


def _int_remainder(left: Operand, right: Operand) -> pa.Array:
    return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))


def _float_arithmetic(op: str, operands: Sequence[Operand]) -> pa.Array:
    if len(operands) == 1:
        return (pc.negate if op == "neg" else pc.abs)(operands[0])
    if op == "%":
        raise Unsuitable("remainder of floats")
    left, right = operands
    result = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}[op](left, right)
    finite = pc.and_(pc.is_finite(left), pc.is_finite(right))
    suspect = pc.and_(finite, pc.invert(pc.is_finite(result)))
    if op == "*":
        factors = pc.and_(pc.not_equal(left, 0.0), pc.not_equal(right, 0.0))
        suspect = pc.or_(suspect, pc.and_(pc.equal(result, 0.0), factors))
    elif op == "/":
        suspect = pc.or_(suspect, pc.equal(right, 0.0))
        suspect = pc.or_(suspect, pc.and_(pc.equal(result, 0.0), pc.not_equal(left, 0.0)))
    if pc.any(suspect).as_py():
        # An overflow, an underflow or a division by zero; or neither, which the rows know.
        raise pa.ArrowInvalid("value out of range")
    return result


def _decimal_sum(operation: Callable[[Operand, Operand], pa.Array]) -> Callable[..., pa.Array]:
    def add(left: Operand, right: Operand) -> pa.Array:
        left, right = _aligned(left, right)
        return operation(*_with_room(left, right, left.type.precision + 1))

    return add


def _decimal_product(left: Operand, right: Operand) -> pa.Array:
    return pc.multiply(*_with_room(left, right, left.type.precision + right.type.precision + 1))


def _with_room(left: Operand, right: Operand, digits: int) -> tuple[Operand, Operand]:
    """The operands in the wide type if the result needs it."""
    if digits > DECIMAL256_DIGITS_MAX:
        raise Unsuitable(f"numeric of {digits} digits")
    if digits <= DECIMAL128_DIGITS_MAX:
        return left, right
    wide = [each.cast(pa.decimal256(each.type.precision, each.type.scale)) for each in (left, right)]
    return wide[0], wide[1]


_INTEGERS: dict[str, Callable[..., pa.Array]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": pc.divide_checked,
    "%": _int_remainder,
    "neg": pc.negate_checked,
    "abs": pc.abs_checked,
}
_DECIMALS: dict[str, Callable[..., pa.Array]] = {
    "+": _decimal_sum(pc.add),
    "-": _decimal_sum(pc.subtract),
    "*": _decimal_product,
    "neg": pc.negate,
    "abs": pc.abs,
}


# --- casts, texts, moments ---

_CASTS: dict[tuple[str, str], Callable[[pa.Array], pa.Array]] = {
    ("int", "float"): lambda array: array.cast(pa.float64(), safe=False),
    ("int", "decimal"): lambda array: array.cast(pa.decimal128(INT_DIGITS, 0)),
    ("int", "bool"): lambda array: pc.not_equal(array, 0),
    ("int", "str"): lambda array: array.cast(pa.string()),
    ("bool", "int"): lambda array: array.cast(pa.int64()),
    ("date", "timestamp"): lambda array: array.cast(pa.timestamp("us")),
    ("date", "timestamptz"): lambda array: array.cast(pa.timestamp("us")),
    ("timestamp", "date"): lambda array: pc.floor_temporal(array, unit="day").cast(pa.date32()),
    ("timestamptz", "date"): lambda array: pc.floor_temporal(array, unit="day").cast(pa.date32()),
    ("timestamp", "timestamptz"): lambda array: array,
    ("timestamptz", "timestamp"): lambda array: array,
}


def _cast(call: Call, evaluate: Evaluate) -> pa.Array:
    [argument] = call.args
    source, target = argument.type, call.type
    convert = _CASTS.get((source.kind, target.kind))
    if source.kind == target.kind and target.precision is None and target.length is None:
        return evaluate(argument)
    if convert is None or target.precision is not None or target.length is not None:
        raise Unsuitable(f"cast from {source} to {target}")
    return convert(evaluate(argument))


def _length(call: Call, evaluate: Evaluate) -> pa.Array:
    measure = pc.utf8_length if call.op == "length" and call.args[0].type.kind == "str" else pc.binary_length
    if call.args[0].type.kind not in ("str", "bytes"):
        raise Unsuitable(f"length of {call.args[0].type}")
    return measure(evaluate(call.args[0])).cast(pa.int64())


def _concatenation(call: Call, evaluate: Evaluate) -> pa.Array:
    if _kind(call.args) != "str":
        raise Unsuitable("|| of other than texts")
    result = pc.binary_join_element_wise(*_operands(call, evaluate), "")
    if (pc.max(pc.utf8_length(result)).as_py() or 0) > RESULT_CHARACTERS_MAX:
        raise pa.ArrowInvalid("requested length too large")
    return result


def _like(call: Call, evaluate: Evaluate) -> pa.Array:
    """Only patterns that are a text with % at its ends: what else there is differs in its details."""
    text, pattern = call.args
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str) or text.type.kind != "str":
        raise Unsuitable("a pattern that is not constant")
    inner = pattern.value.strip("%")
    if any(character in inner for character in "%_\\"):
        raise Unsuitable("a pattern with more than % at its ends")
    array = evaluate(text)
    starts, ends = not pattern.value.startswith("%"), not pattern.value.endswith("%")
    if not inner:
        return pc.equal(array, "") if not pattern.value else pc.greater_equal(pc.binary_length(array), 0)
    if starts and ends:
        return pc.equal(array, inner)
    if not starts and not ends:
        return pc.match_substring(array, inner)
    return pc.starts_with(array, inner) if starts else pc.ends_with(array, inner)


_TRUNCATIONS = frozenset({"second", "minute", "hour", "day", "week", "month", "quarter", "year"})


def _date_trunc(call: Call, evaluate: Evaluate) -> pa.Array:
    moment, field = call.args
    if not isinstance(field, Literal) or field.value not in _TRUNCATIONS:
        raise Unsuitable("date_trunc to another field")
    if moment.type.kind not in ("timestamp", "timestamptz"):
        raise Unsuitable(f"date_trunc of {moment.type}")
    return pc.floor_temporal(evaluate(moment), unit=field.value)


_KERNELS: dict[str, _Kernel] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(("is_distinct", "is_not_distinct"), _distinct),
    **dict.fromkeys(("and", "or"), _connective),
    **dict.fromkeys(("+", "-", "*", "/", "%", "neg", "abs"), _arithmetic),
    **dict.fromkeys(("greatest", "least"), _extreme),
    **dict.fromkeys(("length", "octet_length"), _length),
    "not": _not,
    "is_null": _is_null,
    "is_not_null": _is_not_null,
    "in": _in,
    "case": _case,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "cast": _cast,
    "||": _concatenation,
    "like": _like,
    "date_trunc": _date_trunc,
}
#: Operators that are evaluated for whole columns, at least for some kinds of arguments.
VECTORISED = frozenset(_KERNELS)
