"""Aggregation: the change table of an aggregate is the aggregate of the change table, with deletions negated.

    □V = π_G,sum(a),sum(_count)( Π_G,a,_count=1(ΔE) ⊎ Π_G,-a,_count=-1(∇E) )            (Nikolov eq. 4.1, table 4.1)

Neither the old nor the new state of E is needed, because every stored component is a sum over the rows of a group: the
state of a group after □E is its state before plus the component of □V, in any order. What is no sum itself is computed
at read from components that are (Gupta's algebraic functions: AVG = sum / count).

The components of a group, in order; `_count` is the first (a set operation has two, one for each side), and an argument
that several aggregates share has its own components once:

| of an argument x     | component                                                                                  |
|----------------------|--------------------------------------------------------------------------------------------|
| any                  | how many x are not NULL; this is `_count` itself if x cannot be NULL                       |
| int                  | the sum, a Python int of any size; the sum of squares                                      |
| float                | the exact sum of the finite x, times 2**1074; how many are NaN, infinity, -infinity; the   |
|                      | exact sum of squares, times 2**2148                                                        |
| decimal              | the exact sum of the finite x; how many are NaN, infinity, -infinity; the sum of squares   |
| decimal, no fixed scale | how many have each scale (digits after the point): Σ multiplicity << (64 * scale)       |
| bool                 | how many are TRUE                                                                          |

NaN and infinities are counted beside the sum, because no sum comes back from them when they are deleted. Scales are
counted, because the scale of PostgreSQL's SUM, and the digits of its AVG, follow the largest scale among the rows.
Sums of squares are there only for variances: n Σx² - (Σx)² is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from .. import numbers
from ..compiler import ONCE, Code, Compiler, Lines
from ..errors import InternalError
from ..expressions import ColumnRef, Expression
from ..keeping import Argument, Kept, Part, Shown
from ..types import NAN, Type
from ..variance import float_variance, numeric_variance
from .project import tuple_source

#: Bits for the count of one scale: more rows than that no table has.
SCALE_COUNT_BITS = 64
#: Floats are added up as integers: times 2**1074 they have no fraction.
FLOAT_UNIT = 2**1074

Component: TypeAlias = int | Decimal
Components: TypeAlias = list[Component]

_ZERO = Decimal(0)
_INFINITY = Decimal("Infinity")
_MINUS_INFINITY = Decimal("-Infinity")


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the components of one argument stand among those of the group. -1: there is none.

    A float or decimal has its NaN, infinity and -infinity counters right behind `total`.
    """

    type: Type
    count: int
    total: int = -1
    scales: int = -1
    squares: int = -1
    trues: int = -1


@dataclass(slots=True)
class Layout:
    """The components of a view's groups: `kinds[i]` is "int" or "decimal"."""

    kinds: list[str] = field(default_factory=lambda: ["int"])
    slots: list[Slots] = field(default_factory=list)

    def add(self, kind: str) -> int:
        self.kinds.append(kind)
        return len(self.kinds) - 1


def layout_of(kept: Kept) -> Layout:
    """Give every argument of the view's aggregates its components."""
    layout = Layout()
    if kept.kind == "set":
        layout.add("int")
    for argument in kept.arguments:
        layout.slots.append(_slots(layout, argument))
    return layout


def _slots(layout: Layout, argument: Argument) -> Slots:
    count = layout.add("int") if argument.nullable else 0
    trues = layout.add("int") if "trues" in argument.needs else -1
    if "total" not in argument.needs:
        return Slots(argument.type, count, trues=trues)
    kind = argument.type.kind
    if kind not in ("int", "float", "decimal"):
        raise InternalError(f"SUM and AVG of {argument.type}")
    number = "decimal" if kind == "decimal" else "int"
    total, scales = layout.add(number), -1
    if kind != "int":
        for _ in range(3):
            layout.add("int")
    if kind == "decimal" and not argument.fixed_scale:
        scales = layout.add("int")
    squares = layout.add(number) if "squares" in argument.needs else -1
    return Slots(argument.type, count, total, scales, squares, trues)


# --- propagation ---


def emit_group(lines: Lines, compiler: Compiler, layout: Layout, part: Part) -> None:
    """Inside a loop over joined rows: the components of the row's group in `groups`, as `s`."""
    lines.add(f"g = {tuple_source(_group_value(compiler, expression) for expression in part.key)}")
    lines.add("s = groups.get(g)")
    with lines.block("if s is None:"):
        lines.add(f"groups[g] = s = [{', '.join(zeros(compiler, layout))}]")


def emit_sums(lines: Lines, compiler: Compiler, layout: Layout, part: Part, m: str) -> None:
    """Add the row to the components `s`, `m` times."""
    if part.counter is not None:
        lines.add(f"s[{part.counter}] += {m}")
    # The arguments of a part of distinct values are none of the others, and the other way round.
    for slots, argument in zip(layout.slots, part.values, strict=True):
        if argument is not None and (slots.count or slots.total >= 0 or slots.trues >= 0):
            _emit_argument(lines, compiler, slots, argument, m)


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


def _emit_argument(lines: Lines, compiler: Compiler, slots: Slots, argument: Expression, m: str) -> None:
    code = compiler.value(argument)
    text = code.text
    if not code.simple:
        text = "x"
        lines.add(f"x = {code.text}")
    if not code.nullable:
        _emit_components(lines, compiler, slots, text, m)
        return
    with lines.block(f"if {text} is not None:"):
        _emit_components(lines, compiler, slots, text, m)


def _emit_components(lines: Lines, compiler: Compiler, slots: Slots, text: str, m: str) -> None:
    # An argument that can be NULL in one branch of a view may not be NULL in another one.
    if slots.count:
        lines.add(f"s[{slots.count}] += {m}")
    if slots.trues >= 0:
        lines.add(f"if {text}: s[{slots.trues}] += {m}")
    if slots.total < 0:
        return
    kind = slots.type.kind
    if kind == "int":
        times = "" if m == ONCE else f" * {m}"
        lines.add(f"s[{slots.total}] += {text}{times}")
        if slots.squares >= 0:
            lines.add(f"s[{slots.squares}] += {text} * {text}{times}")
    elif kind == "float":
        name = compiler.bind(_add_float, "add_float")
        lines.add(f"{name}(s, {slots.total}, {slots.squares}, {text}, {m})")
    else:
        name = compiler.bind(_add_decimal, "add_decimal")
        lines.add(f"{name}(s, {slots.total}, {slots.scales}, {slots.squares}, {text}, {m})")


def _add_float(state: Components, total: int, squares: int, x: float, m: int) -> None:
    if x - x == 0.0:  # Only finite numbers.
        exact = numbers.float_to_exact(x)
        state[total] += exact * m
        if squares >= 0:
            state[squares] += exact * exact * m
    else:
        state[total + (1 if x != x else 2 if x > 0 else 3)] += m


def _add_decimal(state: Components, total: int, scales: int, squares: int, x: Decimal, m: int) -> None:
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
    if squares >= 0:
        square = numbers.decimal_mul(x, x)
        state[squares] = numbers.decimal_add(state[squares], numbers.decimal_mul(square, m))


def _scale(x: Decimal) -> int:
    exponent = x.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


# --- reading ---


def aggregate_leaf(kept: Kept, layout: Layout, compiler: Callable[[], Compiler]) -> Callable[[Expression], Code]:
    """Compiles the columns that outputs read: first the key, then the aggregates. They stand in the stored row of the
    view, in variable `row`; minima and maxima are brought along in `extremes`."""
    key_count = len(kept.key)

    def leaf(expression: Expression) -> Code:
        if not isinstance(expression, ColumnRef):
            raise InternalError(f"{type(expression).__name__} is not a column of a group")
        position = expression.position
        if position < key_count:
            key = kept.key[position]
            return Code(f"row[{position}]", key.type, key.nullable, simple=True)
        return _read(compiler(), layout, key_count, kept.aggregates[position - key_count])

    return leaf


def _read(compiler: Compiler, layout: Layout, key_count: int, shown: Shown) -> Code:
    if shown.extreme is not None:
        return Code(f"extremes[{shown.extreme}]", shown.type, nullable=True, simple=True)
    if shown.argument is None:
        return Code(f"row[{key_count}]", shown.type, simple=True)
    slots = layout.slots[shown.argument]
    count = f"row[{key_count + slots.count}]"
    if shown.kind == "count":
        return Code(count, shown.type, simple=True)
    if shown.kind in ("bool_and", "bool_or"):
        trues = f"row[{key_count + slots.trues}]"
        value = f"{trues} == {count}" if shown.kind == "bool_and" else f"{trues} > 0"
        return Code(f"(({value}) if {count} else None)", shown.type, nullable=True)
    if slots.squares >= 0 and shown.kind not in ("sum", "avg"):
        return _read_variance(compiler, slots, key_count, shown, count)
    value = _read_total(compiler, slots, key_count, count if shown.kind == "avg" else None)
    # The sum of floats can be above the largest float, therefore it is not safe.
    safe = not (shown.kind == "sum" and slots.type.kind == "float")
    return Code(f"({value} if {count} else None)", shown.type, nullable=True, safe=safe)


def _read_variance(compiler: Compiler, slots: Slots, key_count: int, shown: Shown, count: str) -> Code:
    sample, root = shown.kind.endswith("_samp"), shown.kind.startswith("stddev")
    places = f"{key_count + slots.total}, {key_count + slots.squares}"
    if slots.type.kind == "float":
        name = compiler.bind(_float_variance, "float_variance")
    elif slots.type.kind == "decimal":
        name = compiler.bind(_decimal_variance, "decimal_variance")
        places += f", {key_count + slots.scales if slots.scales >= 0 else -1}"
    else:
        name = compiler.bind(_int_variance, "int_variance")
    return Code(f"{name}(row, {count}, {sample}, {root}, {places})", shown.type, nullable=True, safe=False)


def _int_variance(row: Sequence[int], count: int, sample: bool, root: bool, total: int, squares: int) -> Decimal | None:
    return numeric_variance(count, Decimal(row[total]), Decimal(row[squares]), sample, root)


def _decimal_variance(
    row: Sequence[Component], count: int, sample: bool, root: bool, total: int, squares: int, scales: int
) -> Decimal | None:
    if count and any(row[total + 1 : total + 4]):
        return None if sample and count < 2 else numbers.DECIMAL_NAN
    value, square = row[total], row[squares]
    assert isinstance(value, Decimal) and isinstance(square, Decimal)
    if count and scales >= 0:
        digits = _largest_scale(row, scales)
        value, square = numbers.decimal_round(value, digits), numbers.decimal_round(square, 2 * digits)
    return numeric_variance(count, value, square, sample, root)


def _float_variance(row: Sequence[int], count: int, sample: bool, root: bool, total: int, squares: int) -> float | None:
    if count and any(row[total + 1 : total + 4]):
        return None if sample and count < 2 else NAN
    exact, square = Fraction(row[total], FLOAT_UNIT), Fraction(row[squares], FLOAT_UNIT * FLOAT_UNIT)
    return float_variance(count, exact, square, sample, root)


def _read_total(compiler: Compiler, slots: Slots, key_count: int, divisor: str | None) -> str:
    """Source of the sum, or of the average if there is a divisor, of at least one value."""
    kind, total = slots.type.kind, key_count + slots.total
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
    return numbers.decimal_round(value, _largest_scale(row, scales))


def _largest_scale(row: Sequence[Component], scales: int) -> int:
    return max(0, (int(row[scales]).bit_length() - 1) // SCALE_COUNT_BITS)
