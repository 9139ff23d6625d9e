"""Aggregates of one pass over the rows of a group: what an ad-hoc query computes, one value at a time.

Every sum is exact, so the order of the rows does not matter. NULL never gets here: no aggregate but COUNT(*) sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from . import functions
from .errors import InternalError
from .expressions import Aggregate
from .literals import EXACT
from .numbers import (
    DECIMAL_NAN,
    EXACT_SHIFT_BITS,
    decimal_add,
    decimal_avg,
    exact_to_float,
    float_to_exact,
)
from .types import NAN, Value
from .variance import float_variance, numeric_variance

_VARIANCES = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")


class Accumulator(Protocol):
    def add(self, value: object, /) -> None: ...

    def result(self) -> Value: ...


def accumulator_of(aggregate: Aggregate) -> Callable[[], Accumulator]:
    """What makes a new accumulator for each group."""
    make = _plain(aggregate)
    return (lambda: _Once(make())) if aggregate.distinct else make


def _plain(aggregate: Aggregate) -> Callable[[], Accumulator]:
    kind = aggregate.kind
    if kind in ("count", "count_star") or aggregate.argument is None:
        return _Count
    argument = aggregate.argument.type.kind
    if kind == "min":
        less = _LESS.get(argument, _less)
        return lambda: _Extreme(less)
    if kind == "max":
        more = _LESS.get(argument, _less)
        return lambda: _Extreme(lambda value, best: more(best, value))
    if kind in ("bool_and", "bool_or"):
        return lambda: _Truth(kind == "bool_or")
    if kind in ("sum", "avg", *_VARIANCES):
        if argument == "float":
            return lambda: _FloatTotal(kind)
        return lambda: _NumericTotal(kind)
    raise InternalError(f"no aggregate {kind!r}")


class _Count:
    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def add(self, value: object, /) -> None:
        self._count += 1

    def result(self) -> Value:
        return self._count


class _Once:
    """DISTINCT: each value reaches the aggregate once. A dict finds NaN by identity, and 1.0 as 1.00."""

    __slots__ = ("_inner", "_seen")

    def __init__(self, inner: Accumulator) -> None:
        self._inner, self._seen = inner, set[object]()

    def add(self, value: object, /) -> None:
        if value not in self._seen:
            self._seen.add(value)
            self._inner.add(value)

    def result(self) -> Value:
        return self._inner.result()


def _less(one: object, two: object) -> bool:
    return bool(one < two)  # type: ignore[operator]  # Both are of one type, which has an order.


_LESS: dict[str, Callable[..., bool]] = {"float": functions.float_lt, "decimal": functions.decimal_lt}


class _Extreme:
    __slots__ = ("_best", "_better")

    def __init__(self, better: Callable[..., bool]) -> None:
        self._better = better
        self._best: Value = None

    def add(self, value: object, /) -> None:
        if self._best is None or self._better(value, self._best):
            self._best = value  # type: ignore[assignment]  # It is a value that is not NULL.

    def result(self) -> Value:
        return self._best


class _Truth:
    """bool_or is decided by the first TRUE, bool_and by the first FALSE."""

    __slots__ = ("_decisive", "_result")

    def __init__(self, decisive: bool) -> None:
        self._decisive = decisive
        self._result: bool | None = None

    def add(self, value: object, /) -> None:
        if self._result is not self._decisive:
            self._result = value is True

    def result(self) -> Value:
        return self._result


class _NumericTotal:
    """SUM, AVG and variance of integers and numerics. Integers stay integers, which has no limit."""

    __slots__ = ("_count", "_kind", "_special", "_squares", "_total")

    def __init__(self, kind: str) -> None:
        self._kind, self._count = kind, 0
        self._total: Decimal | int = 0
        self._squares: Decimal | int = 0
        self._special: Decimal | None = None

    def add(self, value: object, /) -> None:
        self._count += 1
        if isinstance(value, int):
            self._total += value
            if self._kind in _VARIANCES:
                self._squares += value * value
            return
        assert isinstance(value, Decimal), "numbers only"
        if not value.is_finite():
            # Opposite infinities add up to NaN, and nothing comes back from NaN.
            self._special = value if self._special is None else decimal_add(self._special, value)
            return
        self._total = EXACT.add(self._total, value)
        if self._kind in _VARIANCES:
            self._squares = EXACT.add(self._squares, EXACT.multiply(value, value))

    def result(self) -> Value:
        if self._count == 0:
            return None
        if self._kind in _VARIANCES:
            return self._variance()
        total = self._total if self._special is None else self._special
        if isinstance(total, Decimal):
            total = decimal_add(total, 0)
        return total if self._kind == "sum" else decimal_avg(total, self._count)

    def _variance(self) -> Value:
        sample = self._kind.endswith("samp")
        if self._special is not None:
            return None if sample and self._count < 2 else DECIMAL_NAN
        return numeric_variance(self._count, self._total, self._squares, sample, self._kind.startswith("stddev"))


class _FloatTotal:
    """SUM, AVG and variance of floats: exact integers, see `numbers`, and one rounding at the end."""

    __slots__ = ("_count", "_kind", "_special", "_squares", "_total")

    def __init__(self, kind: str) -> None:
        self._kind, self._count, self._total, self._squares = kind, 0, 0, 0
        self._special: float | None = None

    def add(self, value: object, /) -> None:
        assert isinstance(value, float), "floats only"
        self._count += 1
        if value - value != 0.0:  # Infinite, or NaN.
            self._special = value if self._special is None else self._special + value
            return
        exact = float_to_exact(value)
        self._total += exact
        if self._kind in _VARIANCES:
            self._squares += exact * exact

    def result(self) -> Value:
        if self._count == 0:
            return None
        if self._kind in _VARIANCES:
            return self._variance()
        if self._special is not None:
            return NAN if self._special != self._special else self._special
        return exact_to_float(self._total, self._count if self._kind == "avg" else 1)

    def _variance(self) -> Value:
        sample = self._kind.endswith("samp")
        if self._special is not None:
            return None if sample and self._count < 2 else NAN
        total = Fraction(self._total, 1 << EXACT_SHIFT_BITS)
        squares = Fraction(self._squares, 1 << (2 * EXACT_SHIFT_BITS))
        return float_variance(self._count, total, squares, sample, self._kind.startswith("stddev"))
