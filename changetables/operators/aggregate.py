"""Aggregation: the change table of an aggregate is the aggregate of the change table, with deletions negated.

    □V = π_G,sum(a),sum(_count)( Π_G,a,_count=1(ΔE) ⊎ Π_G,-a,_count=-1(∇E) )            (Nikolov eq. 4.1, table 4.1)

Neither the old nor the new state of E is needed, because every stored component is a sum over the rows of a group: the
state of a group after □E is its state before plus the component of □V, in any order. What is no sum itself is computed
at read from components that are (Gupta's algebraic functions: AVG = sum / count).

The components of a group, in order; `_count` is the first, and an argument that SUM, AVG and COUNT share has its own
components once:

| of an argument x     | component                                                                                  |
|----------------------|--------------------------------------------------------------------------------------------|
| any                  | how many x are not NULL; this is `_count` itself if x cannot be NULL                       |
| int                  | the sum, a Python int of any size                                                          |
| float                | the exact sum of the finite x, times 2**1074; how many are NaN, infinity, -infinity        |
| decimal              | the exact sum of the finite x; how many are NaN, infinity, -infinity                       |
| decimal, no fixed scale | how many have each scale (digits after the point): Σ multiplicity << (64 * scale)       |

NaN and infinities are counted beside the sum, because no sum comes back from them when they are deleted. Scales are
counted, because the scale of PostgreSQL's SUM, and the digits of its AVG, follow the largest scale among the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from .. import numbers
from ..compiler import Code, Compiler, Lines
from ..definition import Definition
from ..errors import InternalError
from ..expressions import Aggregate, Call, ColumnRef, Expression, GroupKey
from ..types import NAN
from .project import tuple_source

#: Bits for the count of one scale: more rows than that no table has.
SCALE_COUNT_BITS = 64

Component: TypeAlias = int | Decimal
Components: TypeAlias = list[Component]

_ZERO = Decimal(0)
_INFINITY = Decimal("Infinity")
_MINUS_INFINITY = Decimal("-Infinity")


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the components of one argument stand among those of the group. -1: there is none.

    A float or decimal has its NaN, infinity and -infinity counters right behind `total`, and then, if it has them,
    the counts of scales.
    """

    argument: Expression
    count: int
    total: int
    scales: int


@dataclass(slots=True)
class Layout:
    """The components of a view's groups: `kinds[i]` is "int" or "decimal"."""

    kinds: list[str] = field(default_factory=lambda: ["int"])
    slots: dict[str, Slots] = field(default_factory=dict)

    def add(self, kind: str) -> int:
        self.kinds.append(kind)
        return len(self.kinds) - 1


def layout_of(definition: Definition, compiler: Compiler) -> Layout:
    """Give every distinct argument of the view's aggregates its components."""
    layout = Layout()
    summed: dict[str, tuple[Expression, bool]] = {}
    for output in definition.outputs:
        for aggregate in _aggregates(output.expression):
            if aggregate.argument is not None:
                # repr tells apart literals that are equal but not the same, such as 1.0 and 1.00.
                name = repr(aggregate.argument)
                is_sum = aggregate.kind != "count" or summed.get(name, (None, False))[1]
                summed[name] = (aggregate.argument, is_sum)
    for name, (argument, is_sum) in summed.items():
        layout.slots[name] = _slots(layout, compiler, argument, is_sum)
    return layout


def _slots(layout: Layout, compiler: Compiler, argument: Expression, is_sum: bool) -> Slots:
    count = layout.add("int") if compiler.value(argument).nullable else 0
    if not is_sum:
        return Slots(argument, count, -1, -1)
    kind = argument.type.kind
    if kind not in ("int", "float", "decimal"):
        raise InternalError(f"SUM and AVG of {argument.type}")
    total, scales = layout.add("decimal" if kind == "decimal" else "int"), -1
    if kind != "int":
        for _ in range(3):
            layout.add("int")
    if kind == "decimal" and not _has_fixed_scale(argument):
        scales = layout.add("int")
    return Slots(argument, count, total, scales)


def _has_fixed_scale(argument: Expression) -> bool:
    """Stored columns and casts to numeric(p, s) are rounded to s; other expressions carry no such promise."""
    if isinstance(argument, ColumnRef) or (isinstance(argument, Call) and argument.op == "cast"):
        return argument.type.precision is not None
    return False


def _aggregates(expression: Expression) -> list[Aggregate]:
    if isinstance(expression, Aggregate):
        return [expression]
    if isinstance(expression, Call):
        return [found for argument in expression.args for found in _aggregates(argument)]
    return []


# --- propagation ---


def emit_aggregate(lines: Lines, compiler: Compiler, layout: Layout, group_by: Sequence[Expression]) -> None:
    """Inside the innermost loop, with the multiplicity in `m`: add the row to its group in `groups`."""
    lines.add(f"g = {tuple_source(_group_value(compiler, expression) for expression in group_by)}")
    lines.add("s = groups.get(g)")
    with lines.block("if s is None:"):
        lines.add(f"groups[g] = s = [{', '.join(zeros(compiler, layout))}]")
    lines.add("s[0] += m")
    for slots in layout.slots.values():
        if slots.count or slots.total >= 0:
            _emit_argument(lines, compiler, slots)


def zeros(compiler: Compiler, layout: Layout) -> list[str]:
    """Sources of the components of an empty group."""
    zero = compiler.bind(_ZERO, "zero")
    return [zero if kind == "decimal" else "0" for kind in layout.kinds]


def _group_value(compiler: Compiler, expression: Expression) -> Code:
    """-0.0 and 0.0 are one group; it is called 0.0, whichever came first."""
    code = compiler.value(expression)
    if code.type.kind != "float":
        return code
    name = compiler.bind(_plus_zero, "plus_zero")
    return Code(f"{name}({code.text})", code.type, code.nullable)


def _plus_zero(value: float | None) -> float | None:
    return 0.0 if value == 0.0 else value


def _emit_argument(lines: Lines, compiler: Compiler, slots: Slots) -> None:
    code = compiler.value(slots.argument)
    text = code.text
    if not code.simple and (code.nullable or slots.total >= 0):
        text = "x"
        lines.add(f"x = {code.text}")
    if not code.nullable:
        _emit_total(lines, compiler, slots, text)
        return
    with lines.block(f"if {text} is not None:"):
        lines.add(f"s[{slots.count}] += m")
        _emit_total(lines, compiler, slots, text)


def _emit_total(lines: Lines, compiler: Compiler, slots: Slots, text: str) -> None:
    if slots.total < 0:
        return
    kind = slots.argument.type.kind
    if kind == "int":
        lines.add(f"s[{slots.total}] += {text} * m")
    elif kind == "float":
        lines.add(f"{compiler.bind(_add_float, 'add_float')}(s, {slots.total}, {text}, m)")
    else:
        name = compiler.bind(_add_decimal, "add_decimal")
        lines.add(f"{name}(s, {slots.total}, {slots.scales}, {text}, m)")


def _add_float(state: Components, total: int, x: float, m: int) -> None:
    if x - x == 0.0:  # Only finite numbers.
        state[total] += numbers.float_to_exact(x) * m
    else:
        state[total + (1 if x != x else 2 if x > 0 else 3)] += m


def _add_decimal(state: Components, total: int, scales: int, x: Decimal, m: int) -> None:
    if not x.is_finite():
        state[total + (1 if x.is_nan() else 2 if x > 0 else 3)] += m
        return
    # m is almost always 1 or -1, and a product would cost more than the test.
    if m == 1:
        state[total] = numbers.decimal_add(state[total], x)
    elif m == -1:
        state[total] = numbers.decimal_sub(state[total], x)
    else:
        state[total] = numbers.decimal_add(state[total], numbers.decimal_mul(x, m))
    if scales >= 0:
        state[scales] += m << (SCALE_COUNT_BITS * _scale(x))


def _scale(x: Decimal) -> int:
    exponent = x.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


# --- reading ---


def aggregate_leaf(
    layout: Layout, group_nullable: Sequence[bool], compiler: Callable[[], Compiler]
) -> Callable[[Expression], Code]:
    """Compiles group keys and aggregates in outputs, which read the stored row of the view in variable `row`."""
    key_count = len(group_nullable)

    def leaf(expression: Expression) -> Code:
        if isinstance(expression, GroupKey):
            nullable = group_nullable[expression.index]
            return Code(f"row[{expression.index}]", expression.type, nullable, simple=True)
        if not isinstance(expression, Aggregate):
            raise InternalError(f"{type(expression).__name__} outside of GROUP BY and aggregates")
        return _read(compiler(), layout, key_count, expression)

    return leaf


def _read(compiler: Compiler, layout: Layout, key_count: int, aggregate: Aggregate) -> Code:
    if aggregate.argument is None:
        return Code(f"row[{key_count}]", aggregate.type, simple=True)
    slots = layout.slots[repr(aggregate.argument)]
    count = f"row[{key_count + slots.count}]"
    if aggregate.kind == "count":
        return Code(count, aggregate.type, simple=True)
    value = _read_total(compiler, slots, key_count, count if aggregate.kind == "avg" else None)
    # The sum of floats can be above the largest float, therefore it is not safe.
    return Code(f"({value} if {count} else None)", aggregate.type, nullable=True, safe=False)


def _read_total(compiler: Compiler, slots: Slots, key_count: int, divisor: str | None) -> str:
    """Source of the sum, or of the average if there is a divisor, of at least one value."""
    kind, total = slots.argument.type.kind, key_count + slots.total
    if kind == "float":
        return f"{compiler.bind(_float_total, 'float_total')}(row, {total}, {divisor or '1'})"
    text = f"row[{total}]"
    if kind == "decimal":
        scales = key_count + slots.scales if slots.scales >= 0 else -1
        text = f"{compiler.bind(_decimal_total, 'decimal_total')}(row, {total}, {scales})"
    return f"{compiler.bind(numbers.decimal_avg, 'decimal_avg')}({text}, {divisor})" if divisor else text


def _float_total(row: Sequence[int], total: int, divisor: int) -> float:
    nan, plus, minus = row[total + 1 : total + 4]
    if nan or (plus and minus):
        return NAN
    if plus or minus:
        return float("inf") if plus else float("-inf")
    return numbers.exact_to_float(row[total], divisor)


def _decimal_total(row: Sequence[Component], total: int, scales: int) -> Decimal:
    value, nan, plus, minus = row[total : total + 4]
    if nan or (plus and minus):
        return numbers.DECIMAL_NAN
    if plus or minus:
        return _INFINITY if plus else _MINUS_INFINITY
    assert isinstance(value, Decimal)
    if scales < 0:
        return value
    largest = (int(row[scales]).bit_length() - 1) // SCALE_COUNT_BITS
    return numbers.decimal_round(value, max(0, largest))
