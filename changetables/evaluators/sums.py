"""The components of groups (`operators/aggregate.py`) as sums over columns, exact to the last bit.

Arrow adds 64-bit integers modulo 2**64 and floats with rounding. So what is handed to it cannot overflow:

- integers are added as they are if the largest of them times the number of rows fits, else as x = 2**32 h + l;
- floats are integers times a power of two: their mantissas are added per exponent, in two halves;
- squares that are too large, and numerics, are added as decimals of so many digits that no sum reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..numbers import decimal_add
from ..operators.aggregate import SCALE_COUNT_BITS, Component, Components, Layout, Slots
from ..types import INT_MAX, Row
from .kernels import INT_DIGITS
from .vectors import DECIMAL128_DIGITS_MAX, DECIMAL256_DIGITS_MAX, Unsuitable, Vector, plain_list

_HALF_BITS = 32
#: The parts of an IEEE double.
_FRACTION_BITS, _EXPONENTS = 52, 2**11
#: A mantissa, 53 bits and a sign, is added in two parts, the lower one of so many bits.
_MANTISSA_LOW_BITS = 26
#: Rows counted with their multiplicities: sums of half numbers stay below 2**63.
_TIMES_MAX = 2**30

_ZERO = Decimal(0)

#: The results of a grouping: for each column, a sum per group.
_Results: TypeAlias = list[Sequence[Component | None]]
_Convert: TypeAlias = Callable[[Component], Component]


def add_to_groups(
    groups: dict[Row, Components],
    layout: Layout,
    counter: int | None,
    codes: pa.Array,
    keys: Sequence[Row],
    times: pa.Array | None,
    arguments: Iterable[tuple[Slots, Vector]],
) -> None:
    """Add the components of a batch: row i belongs to the group keys[codes[i]] and counts times[i] times.

    Unsuitable comes before anything is added.
    """
    sums = _Sums(codes, times, layout)
    if counter is not None:
        sums.counts(counter, None)
    for slots, vector in arguments:
        sums.argument(slots, vector.array)
    for number, components in sums.components():
        known = groups.setdefault(keys[number], [_ZERO if kind == "decimal" else 0 for kind in layout.kinds])
        for place, (kind, component) in enumerate(zip(layout.kinds, components, strict=True)):
            known[place] = decimal_add(known[place], component) if kind == "decimal" else known[place] + component


class _Sums:
    """Collects the columns that are to be added up, so that the batch is grouped once."""

    def __init__(self, codes: pa.Array, times: pa.Array | None, layout: Layout) -> None:
        self._codes, self._times, self._layout = codes, times, layout
        self._columns: list[pa.Array] = [codes]
        self._names: list[tuple[str, str]] = []
        #: For each component: from the results, by group, what is added to it.
        self._parts: list[tuple[int, Callable[[_Results], Sequence[Component | None]]]] = []
        #: What was added up on the way: component, group, value.
        self._further: list[tuple[int, int, int]] = []
        self._times_bound = len(codes)
        if times is not None:
            total = pc.sum(pc.abs_checked(times).cast(pa.decimal128(DECIMAL128_DIGITS_MAX, 0))).as_py()
            self._times_bound = int(total or 0)
        if self._times_bound >= _TIMES_MAX:
            raise Unsuitable("too many rows at once")

    # --- what is added ---

    def counts(self, component: int, where: pa.Array | None, convert: _Convert | None = None) -> None:
        """How many rows, those where the condition is TRUE."""
        if where is None and self._times is None:
            self._plain(component, self._codes, "count")
        elif where is None:
            self._plain(component, self._times)
        else:
            counted = pc.if_else(where, 1 if self._times is None else self._times, 0)
            self._plain(component, counted, "sum", convert)

    def argument(self, slots: Slots, array: pa.Array) -> None:
        if slots.count:
            self.counts(slots.count, pc.is_valid(array))
        if slots.trues >= 0:
            self.counts(slots.trues, pc.fill_null(array, False))
        if slots.total < 0:
            return
        kind = slots.type.kind
        if kind == "int":
            self._integers(slots, array)
        elif kind == "float":
            self._floats(slots, array)
        else:
            self._decimals(slots, array)

    def _integers(self, slots: Slots, array: pa.Array) -> None:
        ends = pc.min_max(array).as_py()
        largest = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
        if largest * self._times_bound <= INT_MAX:
            self._plain(slots.total, self._multiplied(array))
        else:
            high, low = _halves(array, _HALF_BITS)
            self._halved(slots.total, self._multiplied(high), self._multiplied(low), _HALF_BITS)
        if slots.squares < 0:
            return
        if largest * largest * self._times_bound <= INT_MAX:
            self._plain(slots.squares, self._multiplied(pc.multiply(array, array)))
        else:
            self._squares(slots.squares, array.cast(pa.decimal256(INT_DIGITS, 0)), convert=int)

    def _floats(self, slots: Slots, array: pa.Array) -> None:
        finite = pc.is_finite(array)
        if not pc.all(finite).as_py():
            self.counts(slots.total + 1, pc.fill_null(pc.is_nan(array), False))
            infinite = pc.fill_null(pc.is_inf(array), False)
            positive = pc.fill_null(pc.greater(array, 0.0), False)
            self.counts(slots.total + 2, pc.and_(infinite, positive))
            self.counts(slots.total + 3, pc.and_not(infinite, positive))
        places = pc.indices_nonzero(pc.fill_null(finite, False))
        bits = array.take(places).view(pa.int64())
        times = None if self._times is None else self._times.take(places)
        exponents = pc.bit_wise_and(pc.shift_right(bits, _FRACTION_BITS), _EXPONENTS - 1)
        fractions = pc.bit_wise_and(bits, 2**_FRACTION_BITS - 1)
        mantissas = pc.add(fractions, pc.if_else(pc.greater(exponents, 0), 2**_FRACTION_BITS, 0))
        mantissas = pc.if_else(pc.less(bits, 0), pc.negate(mantissas), mantissas)
        pairs = pc.add(pc.multiply(self._codes.take(places), _EXPONENTS), exponents)
        # Above subnormals a mantissa counts 2**(exponent - 1) times the smallest float.
        for pair, total in _grouped(pairs, *_halves(mantissas, _MANTISSA_LOW_BITS), times):
            number, exponent = divmod(pair, _EXPONENTS)
            self._further.append((slots.total, number, total << max(exponent - 1, 0)))
        if slots.squares >= 0:
            decimals = mantissas.cast(pa.decimal256(INT_DIGITS, 0))
            for pair, square in _grouped_squares(pairs, decimals, times):
                number, exponent = divmod(pair, _EXPONENTS)
                self._further.append((slots.squares, number, square << 2 * max(exponent - 1, 0)))

    def _decimals(self, slots: Slots, array: pa.Array) -> None:
        if not pa.types.is_decimal(array.type):
            raise Unsuitable(f"numerics as {array.type}")
        scale = array.type.scale
        self._decimal_sum(slots.total, array)
        if slots.scales >= 0:
            unit = 1 << SCALE_COUNT_BITS * scale
            self.counts(slots.scales, pc.is_valid(array), lambda count: cast(int, count) * unit)
        if slots.squares >= 0:
            self._squares(slots.squares, _wide(array, array.type.precision))

    def _squares(self, component: int, array: pa.Array, convert: _Convert | None = None) -> None:
        if 2 * array.type.precision + 1 > DECIMAL256_DIGITS_MAX:
            raise Unsuitable(f"squares of {array.type}")
        self._decimal_sum(component, pc.multiply(array, array), convert)

    def _decimal_sum(self, component: int, array: pa.Array, convert: _Convert | None = None) -> None:
        digits, scale = array.type.precision, array.type.scale
        if self._times is not None:
            digits += INT_DIGITS + 1
            array = pc.multiply(_wide(array, digits), self._times.cast(pa.decimal256(INT_DIGITS, 0)))
        digits += len(str(self._times_bound))
        if digits <= DECIMAL128_DIGITS_MAX:
            self._plain(component, array.cast(pa.decimal128(DECIMAL128_DIGITS_MAX, scale)), "sum", convert)
        else:
            wide = _wide(array, digits).cast(pa.decimal256(DECIMAL256_DIGITS_MAX, scale))
            self._plain(component, wide, "sum", convert)

    def _multiplied(self, array: pa.Array) -> pa.Array:
        return array if self._times is None else pc.multiply_checked(array, self._times)

    # --- columns and results ---

    def _column(self, array: pa.Array, function: str = "sum") -> int:
        """Where the result will be."""
        self._columns.append(array)
        self._names.append((str(len(self._columns) - 1), function))
        return len(self._names) - 1

    def _plain(self, component: int, array: pa.Array, function: str = "sum", convert: _Convert | None = None) -> None:
        place = self._column(array, function)

        def total(results: _Results) -> Sequence[Component | None]:
            if convert is None:
                return results[place]
            return [None if value is None else convert(value) for value in results[place]]

        self._parts.append((component, total))

    def _halved(self, component: int, high: pa.Array, low: pa.Array, bits: int) -> None:
        first, second = self._column(high), self._column(low)

        def total(results: _Results) -> Sequence[Component | None]:
            pairs = zip(results[first], results[second], strict=True)
            return [None if h is None else (cast(int, h) << bits) + cast(int, low) for h, low in pairs]

        self._parts.append((component, total))

    def components(self) -> list[tuple[int, Components]]:
        """The components of each group, by its number."""
        if not len(self._codes):
            return []
        table = pa.table(self._columns, names=[str(place) for place in range(len(self._columns))])
        # A column without anything to add up still tells which groups there are.
        wanted = self._names or [("0", "count")]
        result = table.group_by("0", use_threads=False).aggregate(wanted)
        numbers = plain_list(result.column("0").combine_chunks())
        results = [result.column(f"{name}_{function}").to_pylist() for name, function in self._names]
        zero = [_ZERO if kind == "decimal" else 0 for kind in self._layout.kinds]
        found: dict[int, Components] = {number: list(zero) for number in numbers}
        for component, part in self._parts:
            for number, value in zip(numbers, part(results), strict=True):
                if value is not None:
                    found[number][component] = value
        for component, number, value in self._further:
            found[number][component] += value
        return list(found.items())


def _wide(array: pa.Array, digits: int) -> pa.Array:
    if digits > DECIMAL256_DIGITS_MAX:
        raise Unsuitable(f"a sum of {digits} digits")
    return array.cast(pa.decimal256(array.type.precision, array.type.scale))


def _halves(array: pa.Array, bits: int) -> tuple[pa.Array, pa.Array]:
    """h and l with array = 2**bits h + l and 0 <= l < 2**bits: shifting keeps the sign."""
    return pc.shift_right(array, bits), pc.bit_wise_and(array, 2**bits - 1)


def _grouped(pairs: pa.Array, high: pa.Array, low: pa.Array, times: pa.Array | None) -> list[tuple[int, int]]:
    if times is not None:
        high, low = pc.multiply_checked(high, times), pc.multiply_checked(low, times)
    table = pa.table([pairs, high, low], names=["p", "h", "l"])
    found = table.group_by("p", use_threads=False).aggregate([("h", "sum"), ("l", "sum")])
    columns = (plain_list(found.column(name).combine_chunks()) for name in ("p", "h_sum", "l_sum"))
    return [(pair, (first << _MANTISSA_LOW_BITS) + second) for pair, first, second in zip(*columns, strict=True)]


def _grouped_squares(pairs: pa.Array, values: pa.Array, times: pa.Array | None) -> list[tuple[int, int]]:
    squares = pc.multiply(values, values)
    if times is not None:
        squares = pc.multiply(squares, times.cast(pa.decimal256(INT_DIGITS, 0)))
    table = pa.table([pairs, squares.cast(pa.decimal256(DECIMAL256_DIGITS_MAX, 0))], names=["p", "s"])
    found = table.group_by("p", use_threads=False).aggregate([("s", "sum")])
    return [
        (pair, int(square))
        for pair, square in zip(found.column("p").to_pylist(), found.column("s_sum").to_pylist(), strict=True)
    ]
