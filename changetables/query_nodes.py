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
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias, cast

from . import access
from .access import InRange, Path, Reader
from .accumulators import Accumulator, accumulator_of
from .compiler import Compiler, Lines, column_leaf
from .errors import InternalError
from .expressions import Aggregate, ColumnRef, Expression, Literal
from .rewriting import ROW_ID_NAME, described, in_two_rows, selectivity
from .schema import Table
from .types import BOOL, Row, Type

#: The hidden column that says how often a row of a view counts.
MULTIPLICITY = "*"
#: Distinct keys up to which a join looks its partners up; above, it reads the other side once and hashes.
LOOKED_UP_KEYS_MAX = 10_000
#: Distinct keys of the first look-up where a LIMIT may end the query soon; each one after it has four times as many.
KEYS_FIRST_LOOK_UP = 16
#: Rows that a join holds at once while it looks their partners up.
ROWS_PER_STEP_MAX = 10_000
#: Rows up to which a LIMIT keeps the best ones in a heap; above, sorting all is faster.
HEAP_ROWS_MAX = 10_000

Columns: TypeAlias = tuple[int, ...]
RowFunction: TypeAlias = Callable[[Iterable[Row]], Iterator[Row]]


class Item(NamedTuple):
    """One item of an order, a column of the node that is asked."""

    column: int
    descending: bool
    nulls_first: bool


class Coder:
    """Compiles the expressions of one query. `r0` and `r1` are the names of rows in the generated code."""

    def __init__(self) -> None:
        self._compiler = Compiler(column_leaf, {"Reversed": Reversed})

    def _function(self, head: str, body: Callable[[Lines], None]) -> Callable[..., object]:
        name, lines = self._compiler.fresh("function_"), Lines()
        with lines.block(f"def {name}({head}):"):
            body(lines)
        self._compiler.define(str(lines))
        return cast("Callable[..., object]", self._compiler.namespace[name])

    def condition(self, conditions: Sequence[Expression]) -> str:
        """Source that is true when all conditions are TRUE: the first that is not ends the evaluation."""
        return " and ".join(self._compiler.condition(condition) for condition in conditions) or "True"

    def tuple_of(self, expressions: Iterable[Expression]) -> str:
        texts = [self._compiler.value(expression).text for expression in expressions]
        return f"({', '.join(texts)},)" if texts else "()"

    def filtered(self, conditions: Sequence[Expression]) -> RowFunction:
        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"), lines.block(f"if {self.condition(conditions)}:"):
                lines.add("yield r0")

        return cast(RowFunction, self._function("rows", body))

    def projected(self, outputs: Sequence[Expression]) -> RowFunction:
        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"):
                lines.add(f"yield {self.tuple_of(outputs)}")

        return cast(RowFunction, self._function("rows", body))

    def stored(self, table: Table, conditions: Sequence[Expression], outputs: Sequence[Expression]) -> RowFunction:
        """Physical rows to outputs: completed with defaults, tested, as often as their multiplicity says."""
        defaults = self._compiler.bind(tuple(column.default for column in table.columns), "defaults")
        counts = [place for place, column in enumerate(table.columns) if column.hidden and column.name == MULTIPLICITY]

        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"):
                with lines.block(f"if len(r0) < {len(table.columns)}:"):
                    lines.add(f"r0 += {defaults}[len(r0):]")
                with lines.block(f"if {self.condition(conditions)}:"):
                    if not counts:
                        lines.add(f"yield {self.tuple_of(outputs)}")
                        return
                    lines.add(f"made = {self.tuple_of(outputs)}")
                    with lines.block(f"for _ in range(r0[{counts[0]}]):"):
                        lines.add("yield made")

        return cast(RowFunction, self._function("rows", body))

    def key(self, expressions: Sequence[Expression], null_matches: Sequence[bool]) -> Callable[[Row], Row | None]:
        """The values of a join key; None if one is NULL that is equal to nothing."""

        def body(lines: Lines) -> None:
            names = []
            for number, (expression, matches) in enumerate(zip(expressions, null_matches, strict=True)):
                code = self._compiler.value(expression)
                names.append(f"k{number}")
                lines.add(f"k{number} = {code.text}")
                if code.nullable and not matches:
                    with lines.block(f"if k{number} is None:"):
                        lines.add("return None")
            lines.add(f"return ({', '.join(names)},)" if names else "return ()")

        return cast("Callable[[Row], Row | None]", self._function("r0", body))

    def pair_test(self, conditions: Sequence[Expression], left_width: int) -> Callable[[Row, Row], bool]:
        in_rows = [in_two_rows(condition, left_width) for condition in conditions]

        def body(lines: Lines) -> None:
            lines.add(f"return {self.condition(in_rows)}")

        return cast("Callable[[Row, Row], bool]", self._function("r0, r1", body))

    def group_feeder(
        self, keys: Sequence[Expression], aggregates: Sequence[Aggregate]
    ) -> Callable[[Iterable[Row], dict[Row, _State], Callable[[], _State]], None]:
        """Feeds rows to the accumulators of their groups. Each state has the `add` of every accumulator."""

        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"):
                lines.add(f"key = {self.tuple_of(keys)}")
                lines.add("state = groups.get(key)")
                with lines.block("if state is None:"):
                    lines.add("state = groups[key] = new()")
                for number, aggregate in enumerate(aggregates):
                    if aggregate.argument is None:
                        lines.add(f"state[0][{number}](None)")
                        continue
                    code = self._compiler.value(aggregate.argument)
                    lines.add(f"value = {code.text}")
                    with lines.block("if value is not None:" if code.nullable else "if True:"):
                        lines.add(f"state[0][{number}](value)")

        function = self._function("rows, groups, new", body)
        return cast("Callable[[Iterable[Row], dict[Row, _State], Callable[[], _State]], None]", function)

    def sort_key(self, order: Sequence[tuple[Expression, bool, bool]]) -> Callable[[Row], tuple[object, ...]]:
        """What Python sorts rows by: (expression, descending, nulls first) for each item."""

        def body(lines: Lines) -> None:
            parts = []
            for number, (expression, descending, nulls_first) in enumerate(order):
                name, code = f"k{number}", self._compiler.value(expression)
                lines.add(f"{name} = {code.text}")
                part = self._rank(name, code.type, descending)
                if code.nullable:
                    null, value = (0, 1) if nulls_first else (1, 0)
                    part = f"(({null},) if {name} is None else ({value}, {part}))"
                parts.append(part)
            lines.add(f"return ({', '.join(parts)},)" if parts else "return ()")

        return cast("Callable[[Row], tuple[object, ...]]", self._function("r0", body))

    def _rank(self, name: str, type_: Type, descending: bool) -> str:
        """A value in the order of SQL: NaN is above everything."""
        kind = type_.kind
        if kind in ("float", "decimal"):
            nan = f"{name} != {name}" if kind == "float" else f"{name}.is_nan()"
            if descending:
                negated = f"-{name}" if kind == "float" else f"{name}.copy_negate()"
                return f"((0, 0) if {nan} else (1, {negated}))"
            return f"((1, 0) if {nan} else (0, {name}))"
        if not descending:
            return name
        return f"-{name}" if kind == "int" else f"Reversed({name})"


class Reversed:
    """A value in descending order."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __lt__(self, other: Reversed) -> bool:
        return bool(other.value < self.value)  # type: ignore[operator]  # Both are of one type, which has an order.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reversed) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


_State: TypeAlias = tuple[list[Callable[[object], None]], list[Accumulator]]


class Node(ABC):
    """One operator. `names`: of the columns of its rows, for EXPLAIN. `estimate`: a guess of how many rows there are,
    which orders joins. `restricted`: it surely does not give all rows of a table."""

    names: tuple[str, ...]
    estimate: float
    restricted: bool = True

    @abstractmethod
    def rows(self, reader: Reader) -> Iterator[Row]: ...

    @property
    def width(self) -> int:
        return len(self.names)

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


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


# --- leaves ---


class ValuesNode(Node):
    def __init__(self, rows: Sequence[Row], names: Iterable[str]) -> None:
        self._rows, self.names, self.estimate = rows, tuple(names), float(len(rows))

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
        self._columns = [f"{alias}.{column.name or ROW_ID_NAME}" for column in table.columns]
        self.names = tuple(described(output, self._columns) for output in outputs)
        self.restricted = bool(conditions)
        self.estimate = self._path.estimate * math.prod(map(selectivity, conditions))

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
        self.names = below.names
        self.estimate = below.estimate * math.prod(map(selectivity, conditions))

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
        return [f"filter {conditions}", *_indented(self._below.explain(columns))]


class ProjectNode(Node):
    def __init__(self, coder: Coder, below: Node, outputs: Sequence[Expression]) -> None:
        self._coder, self._below, self._outputs = coder, below, tuple(outputs)
        self.names = tuple(described(output, below.names) for output in outputs)
        self.estimate, self.restricted = below.estimate, below.restricted

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
        return [f"project {', '.join(self.names)}", *_indented(below)]


class GroupNode(Node):
    def __init__(self, coder: Coder, below: Node, keys: Sequence[Expression], aggregates: Sequence[Aggregate]) -> None:
        self._coder, self._below = coder, below
        self._keys, self._aggregates = tuple(keys), tuple(aggregates)
        self._makers = [accumulator_of(aggregate) for aggregate in aggregates]
        self.names = (
            *(described(key, below.names) for key in keys),
            *(_aggregate_text(aggregate, below.names) for aggregate in aggregates),
        )
        self.estimate = below.estimate * 0.1 if keys else 1.0

    @cached_property
    def _feed(self) -> Callable[[Iterable[Row], dict[Row, _State], Callable[[], _State]], None]:
        return self._coder.group_feeder(self._keys, self._aggregates)

    def _new(self) -> _State:
        accumulators = [make() for make in self._makers]
        return [accumulator.add for accumulator in accumulators], accumulators

    def _grouped(self, rows: Iterable[Row]) -> Iterator[Row]:
        # Without GROUP BY there is one row, whatever is selected.
        groups: dict[Row, _State] = {} if self._keys else {(): self._new()}
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
        return [f"{title}: {', '.join(aggregates)}" if aggregates else title, *_indented(below)]


def _aggregate_text(aggregate: Aggregate, names: Sequence[str]) -> str:
    if aggregate.argument is None:
        return "count(*)"
    return f"{aggregate.kind}({'DISTINCT ' if aggregate.distinct else ''}{described(aggregate.argument, names)})"


class DistinctNode(Node):
    def __init__(self, below: Node) -> None:
        self._below, self.names = below, below.names
        self.estimate, self.restricted = below.estimate, below.restricted

    def rows(self, reader: Reader) -> Iterator[Row]:
        return _once(self._below.rows(reader))

    def usable(self, columns: Columns) -> Columns:
        return self._below.usable(columns)

    def is_unique(self, columns: Columns) -> bool:
        return self._below.is_unique(columns)

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        return _once(self._below.fetch(reader, columns, keys))

    def ordered(self, items: Sequence[Item]) -> int:
        return self._below.ordered(items)

    def in_order(self, reader: Reader, items: Sequence[Item]) -> Iterator[Row]:
        return _once(self._below.in_order(reader, items))

    def explain(self, columns: Columns = ()) -> list[str]:
        return ["distinct", *_indented(self._below.explain(columns))]


def _once(rows: Iterable[Row]) -> Iterator[Row]:
    seen: set[Row] = set()
    for row in rows:
        if row not in seen:
            seen.add(row)
            yield row


class TopNode(Node):
    """The rows in order. `order` ends with the whole row. `items`: its first ones that are plain columns."""

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
        self.names = below.names
        self.estimate = below.estimate if limit is None else min(below.estimate, float(limit))

    @cached_property
    def _key(self) -> Callable[[Row], tuple[object, ...]]:
        return self._coder.sort_key(self._order)

    def rows(self, reader: Reader) -> Iterator[Row]:
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
        by = ", ".join(parts) or "the whole row"
        return [f"{title}{offset} by {by}{how}", *_indented(self._below.explain())]


# --- two inputs ---


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
        self.names = left.names + right.names
        self.estimate = self._estimate(unique)
        self.restricted = left.restricted or right.restricted

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
            *_indented(self._left.explain(columns)),
            *_indented(self._right.explain(self._match.from_left[0] if self._looks_up else ())),
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
        self.names, self.estimate = left.names, left.estimate * 0.5
        right_columns, left_columns = self._match.from_left[0], self._match.from_right[0]
        plain = null_pair is None
        unique = bool(right_columns) and right.is_unique(right_columns)
        # From the side that is thought to have fewer rows the other one is looked up.
        self._from_right = (
            plain and not anti and bool(left_columns) and right.restricted and right.estimate < left.estimate
        )
        self._from_left = plain and not self._from_right and bool(right_columns) and (left.restricted or unique)

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
        return [f"{'anti' if self._anti else 'semi'}-join on {on}, {how}", *_indented(left), *_indented(right)]


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
        self.names = left.names
        self.estimate = left.estimate + right.estimate if kind == "union" else left.estimate
        self.restricted = left.restricted and right.restricted

    def rows(self, reader: Reader) -> Iterator[Row]:
        return self._combined(self._left.rows(reader), self._right.rows(reader))

    def _combined(self, left: Iterator[Row], right: Iterator[Row]) -> Iterator[Row]:
        if self._kind == "union":
            both = itertools.chain(left, right)
            return both if self._all else _once(both)
        if self._all:
            return self._counted(left, Counter(right))
        others, wanted = set(right), self._kind == "intersect"
        return _once(row for row in left if (row in others) == wanted)

    def _counted(self, left: Iterable[Row], others: Counter[Row]) -> Iterator[Row]:
        """Each row of the right side takes one equal row of the left side: INTERSECT keeps those, EXCEPT the rest."""
        for row in left:
            taken = others[row] > 0
            if taken:
                others[row] -= 1
            if taken == (self._kind == "intersect"):
                yield row

    def usable(self, columns: Columns) -> Columns:
        both = self._right.usable(self._left.usable(columns))
        # Either side may go by fewer columns if it is given fewer.
        return both if both == self._left.usable(both) else ()

    def fetch(self, reader: Reader, columns: Columns, keys: Iterable[Row]) -> Iterator[Row]:
        wanted = list(keys)
        return self._combined(self._left.fetch(reader, columns, wanted), self._right.fetch(reader, columns, wanted))

    def explain(self, columns: Columns = ()) -> list[str]:
        title = f"{self._kind}{' all' if self._all else ''}"
        return [title, *_indented(self._left.explain(columns)), *_indented(self._right.explain(columns))]
