"""Projection: the change table of a projection is the projected change table.

    □(Π_A(E)) = Π_A(□E)                                                       (Nikolov table 4.1, Gupta and Mumick)

It is the projection of bags: rows that become equal keep their multiplicities. The law is linear, so neither the old
nor the new state of E is needed.

A view of plain rows is stored under the keys of all of its sources, K: each joined row has a key of its own, and what
is stored under it is the bag of its projected rows, which the change table adds to:

    □V = { k -> the bag Π_A(r), over all r in □E with Π_K(r) = k }

That bag has one row whenever all changes up to some commit are in; it counts once, or as often as a source says that
shows rows several times. An update whose key stays is (old, -1), (new, +1) under one k: one contribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..compiler import Code, Compiler, Lines
from ..expressions import Expression
from ..types import Row

#: The bag of one key, flat: multiplicity, values, multiplicity, values, ... Flat tuples are stored like rows.
FlatBag: TypeAlias = Row
#: What `emit_project` collects: the rows of each key with their multiplicities, in the order of the changes.
Collected: TypeAlias = dict[Row, list[tuple[Row, int]]]


def emit_project(
    lines: Lines, compiler: Compiler, key: Sequence[Expression], outputs: Sequence[Expression], m: str
) -> None:
    """Inside the innermost loop, with the multiplicity in variable `m`: add the projected row to `groups`."""
    lines.add(f"g = {tuple_source(compiler.value(column) for column in key)}")
    lines.add(f"v = ({tuple_source(compiler.value(output) for output in outputs)}, {m})")
    lines.add("s = groups.get(g)")
    with lines.block("if s is None:"):
        lines.add("groups[g] = [v]")
    with lines.block("else:"):
        lines.add("s.append(v)")


def flat_bag(changes: Sequence[tuple[Row, int]], exact: bool) -> FlatBag:
    """The changes of one key as a flat bag, () if they cancel out; rows that go stand before rows that come.

    `exact`: -0.0 equals 0.0 and 1.0 equals 1.00, but a view shows the one that its base table shows.
    """
    if len(changes) == 1:
        row, multiplicity = changes[0]
        return (multiplicity, *row) if multiplicity else ()
    if len(changes) == 2 and changes[0][1] == -1 and changes[1][1] == 1:
        old, new = changes[0][0], changes[1][0]
        same = old == new and (not exact or repr(old) == repr(new))
        return () if same else (-1, *old, 1, *new)
    return flatten(net_exactly(changes) if exact else list(net(changes).items()))


def net(changes: Iterable[tuple[Row, int]]) -> dict[Row, int]:
    """The sum of multiplicities per row, without zeros."""
    total: dict[Row, int] = {}
    for row, multiplicity in changes:
        # A row that nets to zero is forgotten, so that an equal one that is written differently can take its place.
        rest = total.pop(row, 0) + multiplicity
        if rest:
            total[row] = rest
    return total


def net_exactly(changes: Iterable[tuple[Row, int]]) -> list[tuple[Row, int]]:
    """As `net`, of rows as they are written."""
    total: dict[tuple[Row, str], int] = {}
    for row, multiplicity in changes:
        written = (row, repr(row))
        total[written] = total.get(written, 0) + multiplicity
    return [(row, multiplicity) for (row, _), multiplicity in total.items() if multiplicity]


def flatten(bag: Iterable[tuple[Row, int]]) -> FlatBag:
    """Rows that go first: whoever adds a flat bag row by row then never nets the new form of a row with the old one."""
    ordered = sorted(bag, key=lambda item: item[1])
    return tuple(value for row, multiplicity in ordered for value in (multiplicity, *row))


def unflatten(flat: FlatBag, width: int) -> list[tuple[Row, int]]:
    """The rows of `width` values and their multiplicities."""
    step = width + 1
    changes: list[tuple[Row, int]] = []
    for start in range(0, len(flat), step):
        multiplicity = flat[start]
        assert isinstance(multiplicity, int)
        changes.append((flat[start + 1 : start + step], multiplicity))
    return changes


def tuple_source(codes: Iterable[Code]) -> str:
    """Source of a tuple; one element needs its comma."""
    return "(" + "".join(f"{code.text}, " for code in codes) + ")"
