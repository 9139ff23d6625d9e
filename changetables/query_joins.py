"""The operators of an ad-hoc query that have two inputs: joins, semi-joins, set operations.

A join goes one of two ways. If its left side has few different keys, the partners are looked up by them, each key once;
else, or as soon as there are too many, the other side is read once and found by a hash. Which side is the left one is
the planner's choice (`execute`): the one that is thought to have fewer rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from . import access
from .access import Reader
from .expressions import ColumnRef, Expression
from .query_code import Coder
from .query_nodes import Columns, Item, Node, indented, once
from .rewriting import described
from .types import Row

#: Distinct keys up to which a join looks its partners up; above, it reads the other side once and hashes.
LOOKED_UP_KEYS_MAX = 10_000
#: Distinct keys of the first look-up where a LIMIT may end the query soon; each one after it has four times as many.
KEYS_FIRST_LOOK_UP = 16
#: Rows that a join holds at once while it looks their partners up.
ROWS_PER_STEP_MAX = 10_000


class Pair(NamedTuple):
    """left = right, each an expression over the rows of its own side. `null_matches`: IS NOT DISTINCT FROM."""

    left: Expression
    right: Expression
    null_matches: bool


class _Match:
    """What a join and a semi-join have in common: the keys of both sides, and how rows of one are looked up by the
    keys of the other."""

    def __init__(
        self, coder: Coder, left: Node, right: Node, pairs: Sequence[Pair], others: Sequence[Expression]
    ) -> None:
        self._coder, self._left, self._right = coder, left, right
        self.pairs, self.others = tuple(pairs), tuple(others)
        self.from_left = self._lookup(right, [pair.right for pair in pairs])
        self.from_right = self._lookup(left, [pair.left for pair in pairs])

    def _lookup(self, node: Node, sides: Sequence[Expression]) -> tuple[Columns, Columns]:
        """The columns by which `node` can be looked up, and their places in the key; both empty if it cannot."""
        places = {
            side.position: place
            for place, side in enumerate(sides)
            if isinstance(side, ColumnRef) and not self.pairs[place].null_matches
        }
        columns = node.usable(tuple(places))
        return columns, tuple(places[column] for column in columns)

    @cached_property
    def left_key(self) -> Callable[[Row], Row | None]:
        return self._coder.key([pair.left for pair in self.pairs], [pair.null_matches for pair in self.pairs])

    @cached_property
    def right_key(self) -> Callable[[Row], Row | None]:
        return self._coder.key([pair.right for pair in self.pairs], [pair.null_matches for pair in self.pairs])

    @cached_property
    def test(self) -> Callable[[Row, Row], bool]:
        return self._coder.pair_test(self.others, self._left.width)

    def left_by_key(self, rows: Iterable[Row]) -> dict[Row, list[Row]]:
        return _by_key(rows, self.left_key)

    def right_by_key(self, rows: Iterable[Row]) -> dict[Row, list[Row]]:
        return _by_key(rows, self.right_key)

    def looked_up(
        self, reader: Reader, left: Iterator[Row], first: int
    ) -> Iterator[tuple[Iterable[Row], dict[Row, list[Row]] | None]]:
        """Rows of the left side, some at a time, with their partners by key. Each key is looked up once. None: there
        are too many different keys for that, and these are all rows that are left."""
        columns, places = self.from_left
        known: dict[Row, list[Row]] = {}
        limit = first
        while rows := self._some(left, known, limit):
            keys = dict.fromkeys(key for key in map(self.left_key, rows) if key is not None and key not in known)
            if len(known) + len(keys) > LOOKED_UP_KEYS_MAX:
                yield itertools.chain(rows, left), None
                return
            if keys:
                wanted = dict.fromkeys(tuple(key[place] for place in places) for key in keys)
                found = self.right_by_key(self._right.fetch(reader, columns, wanted))
                known.update((key, found.get(key, [])) for key in keys)
            yield rows, known
            limit = min(4 * limit, access.KEYS_PER_CALL_MAX)

    def _some(self, rows: Iterator[Row], known: Container[Row], limit: int) -> list[Row]:
        """The next rows, with at most so many keys that are not known yet."""
        some: list[Row] = []
        new: set[Row] = set()
        for row in rows:
            some.append(row)
            key = self.left_key(row)
            if key is not None and key not in known:
                new.add(key)
            if len(new) >= limit or len(some) >= ROWS_PER_STEP_MAX:
                break
        return some

    def explain(self) -> str:
        left, right = self._left.names, self._right.names
        pairs = [
            f"{described(pair.left, left)} {'IS NOT DISTINCT FROM' if pair.null_matches else '='}"
            f" {described(pair.right, right)}"
            for pair in self.pairs
        ]
        return " AND ".join([*pairs, *(described(other, left + right) for other in self.others)]) or "TRUE"


def _by_key(rows: Iterable[Row], key_of: Callable[[Row], Row | None]) -> dict[Row, list[Row]]:
    found: dict[Row, list[Row]] = {}
    for row in rows:
        key = key_of(row)
        if key is not None:
            found.setdefault(key, []).append(row)
    return found


class JoinNode(Node):
    """`kind`: inner, left or full. The left side is the one that is thought to be smaller, or must be kept."""

    def __init__(
        self, coder: Coder, kind: str, left: Node, right: Node, pairs: Sequence[Pair], others: Sequence[Expression]
    ) -> None:
        self._kind, self._left, self._right = kind, left, right
        self._match = _Match(coder, left, right, pairs, others)
        self._nulls = (None,) * right.width
        columns, _ = self._match.from_left
        unique = bool(columns) and right.is_unique(columns)
        # All rows of a table have partners all over the other one: reading that as a whole is faster than an index.
        self._looks_up = bool(columns) and kind != "full" and (left.restricted or unique)
        self.width = left.width + right.width
        self.estimate = self._estimate(unique)
        self.restricted = left.restricted or right.restricted

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._left.names + self._right.names

    def _estimate(self, unique: bool) -> float:
        left, right = self._left.estimate, self._right.estimate
        if unique:
            return left
        return max(left, right) if self._match.pairs else left * max(right, 1.0)

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._joined(reader, self._left.rows(reader))

    def _joined(self, reader: Reader, left: Iterator[Row]) -> Iterator[Row]:
        if not self._looks_up:
            return self._hashed(reader, left)
        return self._looked_up(reader, left, access.KEYS_PER_CALL_MAX, self._hashed)

    def _looked_up(
        self,
        reader: Reader,
        left: Iterator[Row],
        first: int,
        otherwise: Callable[[Reader, Iterable[Row]], Iterator[Row]],
    ) -> Iterator[Row]:
        for rows, by_key in self._match.looked_up(reader, left, first):
            yield from otherwise(reader, rows) if by_key is None else self._with(rows, by_key)

    def _hashed(self, reader: Reader, left: Iterable[Row]) -> Iterator[Row]:
        if self._kind == "full":
            return self._full(left, list(self._right.rows(reader)))
        if self._kind == "inner" and self._left.estimate <= self._right.estimate:
            return self._hashed_left(reader, left)
        return self._hashed_right(reader, left)

    def _with(self, left: Iterable[Row], by_key: dict[Row, list[Row]]) -> Iterator[Row]:
        key_of, nulls, outer = self._match.left_key, self._nulls, self._kind != "inner"
        test = self._match.test if self._match.others else None
        for row in left:
            key = key_of(row)
            partners = by_key.get(key, ()) if key is not None else ()
            if test is not None:
                partners = [partner for partner in partners if test(row, partner)]
            for partner in partners:
                yield row + partner
            if outer and not partners:
                yield row + nulls

    def _hashed_left(self, reader: Reader, left: Iterable[Row]) -> Iterator[Row]:
        """Inner joins only: the smaller side is kept in memory, the other one goes by."""
        by_key = self._match.left_by_key(left)
        if not by_key:
            return
        key_of = self._match.right_key
        test = self._match.test if self._match.others else None
        for partner in self._right.rows(reader):
            key = key_of(partner)
            for row in by_key.get(key, ()) if key is not None else ():
                if test is None or test(row, partner):
                    yield row + partner

    def _hashed_right(self, reader: Reader, left: Iterable[Row]) -> Iterator[Row]:
        """Keeps the order of the left side."""
        return self._with(left, self._match.right_by_key(self._right.rows(reader)))

    def _full(self, left: Iterable[Row], right: list[Row]) -> Iterator[Row]:
        # The place of a row goes along as its last value: equal rows are told apart by it.
        by_key = self._match.right_by_key((*row, place) for place, row in enumerate(right))
        matched: set[object] = set()
        for row in left:
            key, alone = self._match.left_key(row), True
            for *partner, place in by_key.get(key, ()) if key is not None else ():
                if self._match.test(row, tuple(partner)):
                    matched.add(place)
                    alone = False
                    yield row + tuple(partner)
            if alone:
                yield row + self._nulls
        nulls = (None,) * self._left.width
        yield from (nulls + row for place, row in enumerate(right) if place not in matched)

    def usable(self, columns: Columns) -> Columns:
        if self._kind == "full":
            return ()
        return self._left.usable(tuple(column for column in columns if column < self._left.width))

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return self._joined(reader, self._left.fetch(reader, columns, keys))

    def ordered(self, items: Sequence[Item]) -> int:
        if self._kind == "full":
            return 0
        return self._left.ordered(self._left_items(items))

    def _left_items(self, items: Sequence[Item]) -> list[Item]:
        return list(itertools.takewhile(lambda item: item.column < self._left.width, items))

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        left = self._left.in_order(reader, self._left_items(items))
        if self._match.from_left[0]:
            return self._looked_up(reader, left, KEYS_FIRST_LOOK_UP, self._hashed_right)
        return self._hashed_right(reader, left)

    def explain(self, columns: Columns = ()) -> list[str]:
        how = "by look-up" if self._looks_up else "by hash" if self._match.pairs else "each row with each"
        return [
            f"{self._kind} join on {self._match.explain()}, {how}",
            *indented(self._left.explain(columns)),
            *indented(self._right.explain(self._match.from_left[0] if self._looks_up else ())),
        ]


class SemiNode(Node):
    """The rows of the left side that have a partner, or with `anti`, that have none.

    `null_pair` is (x = y) IS NOT FALSE, what NOT IN asks: x and y are equal, or one of them is NULL.
    """

    def __init__(
        self,
        coder: Coder,
        left: Node,
        right: Node,
        pairs: Sequence[Pair],
        others: Sequence[Expression],
        anti: bool,
        null_pair: Pair | None = None,
    ) -> None:
        self._left, self._right, self._anti = left, right, anti
        self._match = _Match(coder, left, right, pairs, others)
        self._null_pair = None if null_pair is None else _NullPair(coder, null_pair)
        self.width, self.estimate = left.width, left.estimate * 0.5
        right_columns, left_columns = self._match.from_left[0], self._match.from_right[0]
        plain = null_pair is None
        unique = bool(right_columns) and right.is_unique(right_columns)
        # From the side that is thought to have fewer rows the other one is looked up.
        self._from_right = (
            plain and not anti and bool(left_columns) and right.restricted and right.estimate < left.estimate
        )
        self._from_left = plain and not self._from_right and bool(right_columns) and (left.restricted or unique)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._left.names

    def rows(self, reader: Reader) -> Iterator[Row]:
        if self._from_right:
            by_key = self._match.right_by_key(self._right.rows(reader))
            return self._with(self._left_rows(reader, by_key), by_key)
        return self._kept(reader, self._left.rows(reader))

    def _left_rows(self, reader: Reader, keys: Collection[Row]) -> Iterator[Row]:
        if len(keys) > LOOKED_UP_KEYS_MAX:
            return self._left.rows(reader)
        columns, places = self._match.from_right
        wanted = dict.fromkeys(tuple(key[place] for place in places) for key in keys)
        # A key with a NULL (of IS NOT DISTINCT FROM) has none in these places.
        return self._left.fetch(reader, columns, wanted)

    def _kept(self, reader: Reader, left: Iterator[Row], first: int = access.KEYS_PER_CALL_MAX) -> Iterator[Row]:
        if not self._from_left:
            yield from self._hashed(reader, left)
            return
        for rows, by_key in self._match.looked_up(reader, left, first):
            yield from self._hashed(reader, rows) if by_key is None else self._with(rows, by_key)

    def _hashed(self, reader: Reader, left: Iterable[Row]) -> Iterator[Row]:
        right = self._right.rows(reader)
        if self._null_pair is not None:
            return self._null_pair.kept(self._match, left, right, self._anti)
        if not self._match.pairs and not self._match.others:
            right = itertools.islice(right, 1)  # Whether there is any row decides.
        return self._with(left, self._match.right_by_key(right))

    def _with(self, left: Iterable[Row], by_key: dict[Row, list[Row]]) -> Iterator[Row]:
        key_of, test, anti = self._match.left_key, self._match.test, self._anti
        tested = bool(self._match.others)
        for row in left:
            key = key_of(row)
            partners = by_key.get(key, ()) if key is not None else ()
            found = any(test(row, partner) for partner in partners) if tested else bool(partners)
            if found != anti:
                yield row

    def usable(self, columns: Columns) -> Columns:
        return self._left.usable(columns)

    def is_unique(self, columns: Columns) -> bool:
        return self._left.is_unique(columns)

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return self._kept(reader, self._left.fetch(reader, columns, keys))

    def ordered(self, items: Sequence[Item]) -> int:
        return 0 if self._from_right else self._left.ordered(items)

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        return self._kept(reader, self._left.in_order(reader, items), KEYS_FIRST_LOOK_UP)

    def explain(self, columns: Columns = ()) -> list[str]:
        from_right = self._from_right and not columns
        looks_up = from_right or self._from_left
        hashed = self._match.pairs or self._null_pair is not None
        how = "by look-up" if looks_up else "by hash" if hashed else "each row with each"
        on = self._match.explain()
        if self._null_pair is not None:
            null_pair = self._null_pair.explain(self._left.names, self._right.names)
            on = null_pair if on == "TRUE" else f"{null_pair} AND {on}"
        left = self._left.explain(self._match.from_right[0] if from_right else columns)
        right = self._right.explain(self._match.from_left[0] if self._from_left else ())
        return [f"{'anti' if self._anti else 'semi'}-join on {on}, {how}", *indented(left), *indented(right)]


class _NullPair:
    """Partners by (x = y) IS NOT FALSE, without comparing each row with each: a hash of y inside the hash of the keys,
    and the rows with NULL beside it."""

    def __init__(self, coder: Coder, pair: Pair) -> None:
        self._pair = pair
        self._left = coder.key([pair.left], [True])
        self._right = coder.key([pair.right], [True])

    def kept(self, match: _Match, left: Iterable[Row], right: Iterable[Row], anti: bool) -> Iterator[Row]:
        by_key = {key: _by_key(rows, self._right) for key, rows in match.right_by_key(right).items()}
        for row in left:
            key = match.left_key(row)
            partners = self._partners(row, by_key.get(key, {})) if key is not None else iter(())
            if any(match.test(row, partner) for partner in partners) != anti:
                yield row

    def _partners(self, left: Row, by_value: dict[Row, list[Row]]) -> Iterator[Row]:
        value = self._left(left)
        if value is None or value == (None,):
            return itertools.chain.from_iterable(by_value.values())
        return itertools.chain(by_value.get(value, ()), by_value.get((None,), ()))

    def explain(self, left: Sequence[str], right: Sequence[str]) -> str:
        return f"({described(self._pair.left, left)} = {described(self._pair.right, right)}) IS NOT FALSE"


class SetNode(Node):
    def __init__(self, kind: str, keeps_all: bool, left: Node, right: Node) -> None:
        self._kind, self._all, self._left, self._right = kind, keeps_all, left, right
        self.width = left.width
        self.estimate = left.estimate + right.estimate if kind == "union" else left.estimate
        self.restricted = left.restricted and right.restricted

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._left.names

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._combined(self._left.rows(reader), self._right.rows(reader))

    def _combined(self, left: Iterator[Row], right: Iterator[Row]) -> Iterator[Row]:
        if self._kind == "union":
            both = itertools.chain(left, right)
            return both if self._all else once(both)
        if self._all:
            return self._counted(left, Counter(right))
        others, wanted = set(right), self._kind == "intersect"
        return once(row for row in left if (row in others) == wanted)

    def _counted(self, left: Iterable[Row], others: Counter[Row]) -> Iterator[Row]:
        """Each row of the right side takes one equal row of the left side: INTERSECT keeps those, EXCEPT the rest. Of
        rows that are equal, but written differently (1.0 and 1.00), the first shows how: so PostgreSQL does."""
        shown: dict[Row, Row] = {}
        for row in left:
            first = shown.setdefault(row, row)
            taken = others[row] > 0
            if taken:
                others[row] -= 1
            if taken == (self._kind == "intersect"):
                yield first

    def usable(self, columns: Columns) -> Columns:
        both = self._right.usable(self._left.usable(columns))
        # Either side may go by fewer columns if it is given fewer.
        return both if both == self._left.usable(both) else ()

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        wanted = list(keys)
        return self._combined(self._left.fetch(reader, columns, wanted), self._right.fetch(reader, columns, wanted))

    def explain(self, columns: Columns = ()) -> list[str]:
        title = f"{self._kind}{' all' if self._all else ''}"
        return [title, *indented(self._left.explain(columns)), *indented(self._right.explain(columns))]
