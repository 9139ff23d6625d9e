"""The operators of an ad-hoc query: each gives its rows one by one, reading as little as it can.

Three ways to ask a node, of which only the first always works:

    rows(reader)                    all rows
    fetch(reader, columns, keys)    the rows whose columns have one of these values, and perhaps others
    in_order(reader, items)         all rows, ordered by the first items of a longer order

`fetch` is how a join reads only the partners of the rows that it has, down to the index of a table. The rows that it
gives beyond those asked for may be incomplete (a group, of which only some rows were read): whoever asks drops them.
`in_order` is how a LIMIT stops early. Expressions are compiled, not walked.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from . import access
from .access import InRange, Path, Reader
from .accumulators import accumulator_of
from .errors import InternalError
from .expressions import Aggregate, ColumnRef, Expression, Literal
from .query_code import Coder, Feeder, RowFunction, State
from .rewriting import ROW_ID_NAME, described, selectivity
from .schema import Table
from .types import BOOL, Row

#: Rows up to which a LIMIT keeps the best ones in a heap; above, sorting all is faster.
HEAP_ROWS_MAX = 10_000
#: What EXPLAIN shows of the expression of a column.
NAME_CHARACTERS_MAX = 120

Columns: TypeAlias = tuple[int, ...]


class Item(NamedTuple):
    """One item of an order, a column of the node that is asked."""

    column: int
    descending: bool
    nulls_first: bool


class Node(ABC):
    """One operator. `width`: columns of its rows. `estimate`: a guess of how many rows there are, which orders joins.
    `restricted`: it surely does not give all rows of a table."""

    width: int
    estimate: float
    restricted: bool = True

    @abstractmethod
    def rows(self, reader: Reader) -> Iterator[Row]: ...

    @cached_property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What EXPLAIN calls the columns."""

    @abstractmethod
    def explain(self, columns: Columns = ()) -> list[str]:
        """What the node does, then what those below do, indented; with columns, what `fetch` by them does."""

    def usable(self, columns: Columns) -> Columns:
        """Those of the columns by which `fetch` finds rows, the others being known too; () if it cannot."""
        return ()

    def is_unique(self, columns: Columns) -> bool:
        """Whether `fetch` by these columns reads at most one row for each key."""
        return False

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        """At least the rows whose columns, which are what `usable` gave, have one of the keys. No key has a NULL."""
        raise InternalError(f"{type(self).__name__} cannot look rows up")

    def ordered(self, items: Sequence[Item]) -> int:
        """How many of the first items `in_order` follows."""
        return 0

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        raise InternalError(f"{type(self).__name__} has no order")


def short(name: str) -> str:
    """A chain of projections may double a column's expression at each step."""
    return name if len(name) <= NAME_CHARACTERS_MAX else name[: NAME_CHARACTERS_MAX - 3] + "..."


def indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


# --- leaves ---


class ValuesNode(Node):
    def __init__(self, rows: Sequence[Row], names: Iterable[str]) -> None:
        self._rows, self._names, self.estimate = rows, tuple(names), float(len(rows))
        self.width = len(self._names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._names

    def rows(self, reader: Reader) -> Iterator[Row]:
        return iter(self._rows)

    def explain(self, columns: Columns = ()) -> list[str]:
        return ["1 constant row" if len(self._rows) == 1 else f"{len(self._rows)} constant rows"]


class TableNode(Node):
    """A table with conditions and outputs over its physical rows: one pass, whatever stands above the scan."""

    def __init__(
        self, coder: Coder, table: Table, alias: str, conditions: Sequence[Expression], outputs: Sequence[Expression]
    ) -> None:
        self._coder, self._table, self._alias = coder, table, alias
        self._conditions, self._outputs = tuple(conditions), tuple(outputs)
        self._path: Path = access.path_for(table, conditions)
        found = access.alternatives(conditions)
        self._constants = found[0] if len(found) == 1 else {}
        self.width = len(self._outputs)
        self.restricted = bool(conditions)
        self.estimate = self._path.estimate * math.prod(map(selectivity, conditions))

    @cached_property
    def _columns(self) -> list[str]:
        return [f"{self._alias}.{column.name or ROW_ID_NAME}" for column in self._table.columns]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(short(described(output, self._columns)) for output in self._outputs)

    def with_outputs(self, outputs: Sequence[Expression]) -> TableNode:
        """The node under a projection, whose expressions are over physical rows already."""
        return TableNode(self._coder, self._table, self._alias, self._conditions, outputs)

    @property
    def outputs(self) -> tuple[Expression, ...]:
        return self._outputs

    @cached_property
    def _finish(self) -> RowFunction:
        return self._coder.stored(self._table, self._conditions, self._outputs)

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._finish(access.read(self._path, self._table, reader))

    def _physical(self, column: int) -> int | None:
        output = self._outputs[column]
        return output.position if isinstance(output, ColumnRef) else None

    def _looked_up(self, columns: Columns) -> Columns:
        """The physical columns that a look-up goes by, given some and those that conditions bind to one value."""
        given = {position for column in columns if (position := self._physical(column)) is not None}
        chosen = access.best_columns(self._table, given | self._constants.keys())
        return chosen if given.intersection(chosen) else ()

    def usable(self, columns: Columns) -> Columns:
        chosen = self._looked_up(columns)
        return tuple(column for column in columns if self._physical(column) in chosen)

    def is_unique(self, columns: Columns) -> bool:
        return self._looked_up(columns) == self._table.key

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        chosen = self._looked_up(columns)
        places = {self._physical(column): place for place, column in enumerate(columns)}
        values = dict.fromkeys(
            tuple(key[places[position]] if position in places else self._constants[position] for position in chosen)
            for key in keys
        )
        if chosen == self._table.key:
            return self._finish(access.get(self._table, reader, values))
        return self._finish(access.find(self._table, reader, chosen, values))

    def ordered(self, items: Sequence[Item]) -> int:
        return self._order(items)[0]

    def _order(self, items: Sequence[Item]) -> tuple[int, bool]:
        """How many items the order of the primary key follows, and whether in its reverse."""
        if not isinstance(self._path, InRange):
            return 0, False
        left = [position for position in self._table.key if position not in self._constants]
        reverse: bool | None = None
        for number, item in enumerate(items):
            position = self._physical(item.column)
            if position is not None and position in self._constants:
                continue
            if not left:
                break  # The key is unique: what comes after it orders nothing.
            # NULL is last in keys, first in their reverse.
            misplaced = self._table.columns[left[0]].nullable and item.nulls_first != item.descending
            if position != left[0] or misplaced or reverse not in (None, item.descending):
                return number, bool(reverse)
            left.pop(0)
            reverse = item.descending
        return len(items), bool(reverse)

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        _, reverse = self._order(items)
        return self._finish(access.read(self._path, self._table, reader, descending=reverse))

    def explain(self, columns: Columns = ()) -> list[str]:
        name = self._table.name if self._alias == self._table.name else f"{self._table.name} {self._alias}"
        if columns:
            how = f"looked up by {access.described_columns(self._table, self._looked_up(columns))}"
        else:
            how = access.described_path(self._path, self._table, lambda value: described(Literal(value, BOOL)))
        where = " AND ".join(described(condition, self._columns) for condition in self._conditions)
        return [f"{name}: {how}{', where ' if where else ''}{where}"]


# --- one input ---


class FilterNode(Node):
    def __init__(self, coder: Coder, below: Node, conditions: Sequence[Expression]) -> None:
        self._coder, self._below, self._conditions = coder, below, tuple(conditions)
        self.width = below.width
        self.estimate = below.estimate * math.prod(map(selectivity, conditions))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._below.names

    @cached_property
    def _filter(self) -> RowFunction:
        return self._coder.filtered(self._conditions)

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._filter(self._below.rows(reader))

    def usable(self, columns: Columns) -> Columns:
        return self._below.usable(columns)

    def is_unique(self, columns: Columns) -> bool:
        return self._below.is_unique(columns)

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return self._filter(self._below.fetch(reader, columns, keys))

    def ordered(self, items: Sequence[Item]) -> int:
        return self._below.ordered(items)

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        return self._filter(self._below.in_order(reader, items))

    def explain(self, columns: Columns = ()) -> list[str]:
        conditions = " AND ".join(described(condition, self.names) for condition in self._conditions)
        return [f"filter {conditions}", *indented(self._below.explain(columns))]


class ProjectNode(Node):
    def __init__(self, coder: Coder, below: Node, outputs: Sequence[Expression]) -> None:
        self._coder, self._below, self._outputs = coder, below, tuple(outputs)
        self.width, self.estimate, self.restricted = len(self._outputs), below.estimate, below.restricted

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(short(described(output, self._below.names)) for output in self._outputs)

    @property
    def below(self) -> Node:
        return self._below

    @property
    def outputs(self) -> tuple[Expression, ...]:
        return self._outputs

    @cached_property
    def _project(self) -> RowFunction:
        return self._coder.projected(self._outputs)

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._project(self._below.rows(reader))

    def _source(self, column: int) -> int | None:
        output = self._outputs[column]
        return output.position if isinstance(output, ColumnRef) else None

    def _below_columns(self, columns: Columns) -> dict[int, int]:
        """The columns of the input that are shown as these columns."""
        return {source: column for column in columns if (source := self._source(column)) is not None}

    def usable(self, columns: Columns) -> Columns:
        shown = self._below_columns(columns)
        return tuple(shown[source] for source in self._below.usable(tuple(shown)))

    def is_unique(self, columns: Columns) -> bool:
        return self._below.is_unique(tuple(self._below_columns(columns)))

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return self._project(self._below.fetch(reader, tuple(self._below_columns(columns)), keys))

    def _items(self, items: Sequence[Item]) -> list[Item]:
        """The first items in terms of the input, up to one that is computed here."""
        found = []
        for item in items:
            source = self._source(item.column)
            if source is None:
                break
            found.append(item._replace(column=source))
        return found

    def ordered(self, items: Sequence[Item]) -> int:
        return self._below.ordered(self._items(items))

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        return self._project(self._below.in_order(reader, self._items(items)))

    def explain(self, columns: Columns = ()) -> list[str]:
        below = self._below.explain(tuple(self._below_columns(columns)))
        return [f"project {', '.join(self.names)}", *indented(below)]


class GroupNode(Node):
    def __init__(self, coder: Coder, below: Node, keys: Sequence[Expression], aggregates: Sequence[Aggregate]) -> None:
        self._coder, self._below = coder, below
        self._keys, self._aggregates = tuple(keys), tuple(aggregates)
        self._makers = [accumulator_of(aggregate) for aggregate in aggregates]
        self.width = len(self._keys) + len(self._aggregates)
        self.estimate = below.estimate * 0.1 if keys else 1.0

    @cached_property
    def names(self) -> tuple[str, ...]:
        below = self._below.names
        texts = [described(key, below) for key in self._keys]
        texts += [_aggregate_text(aggregate, below) for aggregate in self._aggregates]
        return tuple(map(short, texts))

    @cached_property
    def _feed(self) -> Feeder:
        return self._coder.group_feeder(self._keys, self._aggregates)

    def _new(self) -> State:
        accumulators = [make() for make in self._makers]
        return [accumulator.add for accumulator in accumulators], accumulators

    def _grouped(self, rows: Iterable[Row]) -> Iterator[Row]:
        # Without GROUP BY there is one row, whatever is selected.
        groups: dict[Row, State] = {} if self._keys else {(): self._new()}
        self._feed(rows, groups, self._new)
        for key, (_, accumulators) in groups.items():
            yield key + tuple(accumulator.result() for accumulator in accumulators)

    def rows(self, reader: Reader) -> Iterator[Row]:
        edge = self._edge
        if edge is None:
            return self._grouped(self._below.rows(reader))
        rows = self._below.in_order(reader, [edge])
        return self._grouped(itertools.islice((row for row in rows if row[edge.column] is not None), 1))

    @cached_property
    def _edge(self) -> Item | None:
        """MIN or MAX of a column by which the rows can come in order: the first one has it."""
        if self._keys or len(self._aggregates) != 1 or self._aggregates[0].kind not in ("min", "max"):
            return None
        argument, descending = self._aggregates[0].argument, self._aggregates[0].kind == "max"
        if not isinstance(argument, ColumnRef):
            return None
        item = Item(argument.position, descending, descending)
        return item if self._below.ordered([item]) else None

    def _below_columns(self, columns: Columns) -> dict[int, int]:
        return {
            key.position: column
            for column in columns
            if column < len(self._keys) and isinstance(key := self._keys[column], ColumnRef)
        }

    def usable(self, columns: Columns) -> Columns:
        shown = self._below_columns(columns)
        return tuple(shown[source] for source in self._below.usable(tuple(shown)))

    def is_unique(self, columns: Columns) -> bool:
        return set(range(len(self._keys))).issubset(columns)

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return self._grouped(self._below.fetch(reader, tuple(self._below_columns(columns)), keys))

    def explain(self, columns: Columns = ()) -> list[str]:
        keys, aggregates = self.names[: len(self._keys)], self.names[len(self._keys) :]
        title = f"group by {', '.join(keys)}" if keys else "group" if self._edge is None else "first row"
        below = self._below.explain(tuple(self._below_columns(columns)))
        return [f"{title}: {', '.join(aggregates)}" if aggregates else title, *indented(below)]


def _aggregate_text(aggregate: Aggregate, names: Sequence[str]) -> str:
    if aggregate.argument is None:
        return "count(*)"
    return f"{aggregate.kind}({'DISTINCT ' if aggregate.distinct else ''}{described(aggregate.argument, names)})"


class DistinctNode(Node):
    def __init__(self, below: Node) -> None:
        self._below, self.width = below, below.width
        self.estimate, self.restricted = below.estimate, below.restricted

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._below.names

    def rows(self, reader: Reader) -> Iterator[Row]:
        return once(self._below.rows(reader))

    def usable(self, columns: Columns) -> Columns:
        return self._below.usable(columns)

    def is_unique(self, columns: Columns) -> bool:
        return self._below.is_unique(columns)

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return once(self._below.fetch(reader, columns, keys))

    def ordered(self, items: Sequence[Item]) -> int:
        return self._below.ordered(items)

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        return once(self._below.in_order(reader, items))

    def explain(self, columns: Columns = ()) -> list[str]:
        return ["distinct", *indented(self._below.explain(columns))]


def once(rows: Iterable[Row]) -> Iterator[Row]:
    seen: set[Row] = set()
    for row in rows:
        if row not in seen:
            seen.add(row)
            yield row


class TopNode(Node):
    """The rows in order. `order` ends with the whole row, or is empty. `items`: its first that are plain columns."""

    def __init__(
        self,
        coder: Coder,
        below: Node,
        order: Sequence[tuple[Expression, bool, bool]],
        limit: int | None,
        offset: int,
    ) -> None:
        self._coder, self._below, self._order = coder, below, tuple(order)
        self._limit, self._offset = limit, offset
        self._items = [
            Item(expression.position, descending, nulls_first)
            for expression, descending, nulls_first in itertools.takewhile(
                lambda part: isinstance(part[0], ColumnRef), self._order
            )
            if isinstance(expression, ColumnRef)
        ]
        self._followed = below.ordered(self._items) if limit is not None else 0
        self.width = below.width
        self.estimate = below.estimate if limit is None else min(below.estimate, float(limit))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self._below.names

    @cached_property
    def _key(self) -> Callable[[Row], tuple[object, ...]]:
        return self._coder.sort_key(self._order)

    def rows(self, reader: Reader) -> Iterator[Row]:
        if not self._order:
            last = None if self._limit is None else self._offset + self._limit
            return itertools.islice(self._below.rows(reader), self._offset, last)
        if self._limit is None:
            return iter(sorted(self._below.rows(reader), key=self._key)[self._offset :])
        stop = self._offset + self._limit
        if self._limit == 0:
            return iter(())
        if self._followed:
            return itertools.islice(self._in_runs(reader), self._offset, stop)
        if stop > HEAP_ROWS_MAX:
            return iter(sorted(self._below.rows(reader), key=self._key)[self._offset : stop])
        return iter(heapq.nsmallest(stop, self._below.rows(reader), key=self._key)[self._offset :])

    def _in_runs(self, reader: Reader) -> Iterator[Row]:
        """The rows come ordered by the first items: only those that are equal there must be sorted."""
        rows = self._below.in_order(reader, self._items)
        if self._followed == len(self._order):
            return rows
        columns = [item.column for item in self._items[: self._followed]]
        runs = itertools.groupby(rows, key=lambda row: [row[column] for column in columns])
        return itertools.chain.from_iterable(sorted(run, key=self._key) for _, run in runs)

    def explain(self, columns: Columns = ()) -> list[str]:
        order = self._order[: len(self._order) - self.width]
        parts = [f"{described(by, self.names)}{' DESC' if descending else ''}" for by, descending, _ in order]
        title = "order" if self._limit is None else f"top {self._limit}"
        offset = f" after {self._offset}" if self._offset else ""
        how = ", in the order of the primary key" if self._followed else ""
        by = f" by {', '.join(parts)}" if parts else ""
        return [f"{title}{offset}{by}{how}", *indented(self._below.explain())]
