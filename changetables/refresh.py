"""The refresh operator: applies one row of a view's change table to the view row that it matches.

    New(V) = V ⊔ □V        match: equal key; update function: addition of every component  (Nikolov 4.3.2, alg. 5.3)

- no match: the contribution becomes the row;
- a match: the components are added; the row disappears when all of them are zero.

Every component is a sum over rows of the change table, and addition is commutative, so contributions to one key may
come in any order: also one that deletes before the one that inserts. Then `_count` is negative, or a component is not
zero at `_count` = 0, for a while; the row is kept with it and is not shown.

| view       | stored row                                       | delta                                            |
|------------|--------------------------------------------------|--------------------------------------------------|
| aggregates | key values, then the components (`_count` first) | the same components                              |
| plain rows | key values, multiplicity, then the output values | a flat bag: multiplicity, outputs, multiplicity, … |

For plain rows the component is the bag of outputs under the key, whose addition is that of change tables. When all
contributions up to some commit are in, it holds exactly one row, because the key has the keys of all sources; how often
it counts is its multiplicity. In between it can be anything, and is stored flat as it is. Two contributions to one such
key always come from transactions that conflict: each wrote one of the base rows in the key and wrote or looked up all
others, which are held to the decision. So in practice they arrive in commit order, but nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple, Protocol, TypeAlias

from .compiler import Compiler, Lines
from .numbers import DECIMAL_NAN, decimal_add, decimal_neg
from .operators.aggregate import Layout
from .operators.project import flatten, net, unflatten
from .types import NAN, Row, Value


class Contribution(NamedTuple):
    """One row of a view's change table. `key` is the stored key of the view row, `delta` what is added to it."""

    key: bytes
    key_values: tuple[Value, ...]
    delta: Row


#: Contributions to one view: their keys, key values and deltas.
Columns: TypeAlias = tuple[Sequence[bytes], Sequence[Row], Sequence[Sequence[Value]]]
#: (key, row before, row after)
Refreshed: TypeAlias = tuple[bytes, Row | None, Row | None]


def contributions_of(columns: Columns) -> list[Contribution]:
    keys, key_values, deltas = columns
    return list(map(Contribution, keys, key_values, map(tuple, deltas)))


def by_columns(contributions: Sequence[Contribution]) -> Columns:
    keys, key_values, deltas = zip(*contributions, strict=True) if contributions else ((), (), ())
    return keys, key_values, deltas


class Refresh(Protocol):
    """What a view does with its contributions. None stands for a row that is not there."""

    def refresh(self, row: Row | None, contribution: Contribution) -> Row | None: ...

    def refresh_all(self, contributions: Columns, rows: Sequence[Row | None]) -> list[Refreshed]:
        """`refresh` of each row, in one call: every transaction does it."""

    def add(self, first: Row, second: Row) -> Row | None:
        """The sum of two deltas, None if it is zero."""

    def negate(self, delta: Row) -> Row: ...


class RefreshGroups:
    """Groups: the components add up. The functions are generated, because they know their positions."""

    __slots__ = ("add", "negate", "refresh", "refresh_all")

    refresh: Callable[[Row | None, Contribution], Row | None]
    refresh_all: Callable[[Columns, Sequence[Row | None]], list[Refreshed]]
    add: Callable[[Row, Row], Row | None]
    negate: Callable[[Row], Row]

    def __init__(self, compiler: Compiler, layout: Layout, key_count: int) -> None:
        compiler.define(_groups_source(compiler, layout, key_count))
        self.refresh = compiler.namespace["refresh"]  # type: ignore[assignment]
        self.refresh_all = compiler.namespace["refresh_all"]  # type: ignore[assignment]
        self.add = compiler.namespace["add"]  # type: ignore[assignment]
        self.negate = compiler.namespace["negate"]  # type: ignore[assignment]


def _groups_source(compiler: Compiler, layout: Layout, key_count: int) -> str:
    plus, minus = compiler.bind(decimal_add, "decimal_add"), compiler.bind(decimal_neg, "decimal_neg")
    numbers = range(len(layout.kinds))
    names = "".join(f"c{i}, " for i in numbers)
    nonzero = " or ".join(f"c{i}" for i in numbers)

    def total(i: int, left: str) -> str:
        return f"{plus}({left}, d[{i}])" if layout.kinds[i] == "decimal" else f"{left} + d[{i}]"

    lines = Lines()
    with lines.block("def refresh(row, contribution):"):
        lines.add("d = contribution[2]")
        with lines.block("if row is None:"):
            lines.add(f"return contribution[1] + d if {' or '.join(f'd[{i}]' for i in numbers)} else None")
        for i in numbers:
            lines.add(f"c{i} = {total(i, f'row[{key_count + i}]')}")
        lines.add(f"return row[:{key_count}] + ({names}) if {nonzero} else None")
    with lines.block("def refresh_all(contributions, rows):"):
        lines.add("refreshed = []")
        with lines.block("for key, group, d, row in zip(*contributions, rows, strict=True):"):
            with lines.block("if row is None:"):
                lines.add(f"new = (*group, *d) if {' or '.join(f'd[{i}]' for i in numbers)} else None")
            with lines.block("else:"):
                for i in numbers:
                    lines.add(f"c{i} = {total(i, f'row[{key_count + i}]')}")
                lines.add(f"new = row[:{key_count}] + ({names}) if {nonzero} else None")
            lines.add("refreshed.append((key, row, new))")
        lines.add("return refreshed")
    with lines.block("def add(first, d):"):
        for i in numbers:
            lines.add(f"c{i} = {total(i, f'first[{i}]')}")
        lines.add(f"return ({names}) if {nonzero} else None")
    with lines.block("def negate(d):"):
        items = (f"{minus}(d[{i}])" if kind == "decimal" else f"-d[{i}]" for i, kind in enumerate(layout.kinds))
        lines.add(f"return ({''.join(f'{item}, ' for item in items)})")
    return str(lines)


class RefreshRows:
    """Plain rows: the bags under one key add up."""

    __slots__ = ("_key_count", "_width")

    def __init__(self, key_count: int, width: int) -> None:
        self._key_count, self._width = key_count, width

    def refresh(self, row: Row | None, contribution: Contribution) -> Row | None:
        delta = contribution.delta
        if row is None:
            return contribution.key_values + delta if delta else None
        state = self.add(row[self._key_count :], delta)
        return None if state is None else contribution.key_values + state

    def refresh_all(self, contributions: Columns, rows: Sequence[Row | None]) -> list[Refreshed]:
        found = zip(contributions_of(contributions), rows, strict=True)
        return [(item.key, row, self.refresh(row, item)) for item, row in found]

    def add(self, first: Row, second: Row) -> Row | None:
        parts = [*unflatten(first, self._width), *unflatten(second, self._width)]
        return flatten(net((_with_one_nan(row), multiplicity) for row, multiplicity in parts).items()) or None

    def negate(self, delta: Row) -> Row:
        return flatten((row, -multiplicity) for row, multiplicity in unflatten(delta, self._width))

    def multiplicity(self, row: Row) -> int:
        """Only one row is a result; anything else waits for another contribution."""
        count = row[self._key_count]
        assert isinstance(count, int)
        return max(0, count) if len(row) == self._key_count + 1 + self._width else 0


def _with_one_nan(row: Row) -> Row:
    """Rows are compared here, and a delta that comes from a log may have another NaN object than the engine's."""
    if any(value != value for value in row):
        return tuple(value if value == value else DECIMAL_NAN if isinstance(value, Decimal) else NAN for value in row)
    return row
