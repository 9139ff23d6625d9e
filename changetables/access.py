"""How the rows of one table are found: by primary key, by an index, in a range of keys, or all of them.

Conditions say which columns are bound to constants, in one or several alternatives:

    a = 1 AND b IN (2, 3)               ->  {a: 1, b: 2}, {a: 1, b: 3}
    (a = 1 AND b = 2) OR (a, b) = (3, 4)  ->  {a: 1, b: 2}, {a: 3, b: 4}

and between which bounds the others are. A path is a way to read a superset of the rows that fulfil the conditions; the
conditions themselves are tested on every row that is read, whatever the path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .expressions import Call, ColumnRef, Expression
from .rewriting import ROW_ID_NAME, constant
from .schema import Table
from .types import BOOL, Row, Value

#: Alternatives of one table. A product of IN lists above it is found by some of its columns only.
ALTERNATIVES_MAX = 10_000
#: Keys of one call of a reader.
KEYS_PER_CALL_MAX = 1_000

_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "is_not_distinct": "is_not_distinct"}

#: Values of columns (physical positions) that go together.
Binding: TypeAlias = Mapping[int, Value]


class Reader(Protocol):
    """Where a query reads, all of it at one snapshot. Rows are physical tuples in the engine's form of values; those
    that are older than the last columns of their table may lack them. No value given here is NULL.

    A query keeps a scan open while it calls the other methods, and leaves scans before their end.
    """

    def get_many(self, table: str, keys: list[Row]) -> list[Row | None]:
        """For each whole primary key, in the order of `Table.key`, its row or None."""

    def find(self, table: str, columns: tuple[int, ...], values: list[Row]) -> list[list[Row]]:
        """For each tuple of values, the rows whose `columns` (physical positions) equal it. The columns are those of
        an index that is ready, or the first ones of the primary key, in that order."""

    def scan(self, table: str, start: Row | None, stop: Row | None, descending: bool = False) -> Iterator[Row]:
        """Rows in the order of their primary key, or in the reverse of it.

        `start` and `stop` are values of the first columns of the key, as many as they have, both inclusive: the rows
        with start <= key[:len(start)] and key[:len(stop)] <= stop; none if start is above stop. None: no bound.
        """


# --- what conditions say ---


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive; None: no bound. A strict bound is one too: the condition itself is tested afterwards."""

    low: Value = None
    high: Value = None


def alternatives(conditions: Iterable[Expression]) -> list[Binding]:
    """The bindings one of which holds for each row that fulfils all conditions. [{}]: nothing is bound; []: no row
    fulfils them."""
    found: list[Binding] = [{}]
    for condition in conditions:
        these = _alternatives(condition)
        if these is not None and len(found) * len(these) <= ALTERNATIVES_MAX:
            found = _both(found, these)
    return found


def _alternatives(condition: Expression) -> list[Binding] | None:
    """None: the condition binds nothing."""
    if isinstance(condition, ColumnRef) and condition.type == BOOL:
        return [{condition.position: True}]
    if not isinstance(condition, Call):
        return None
    if condition.op in ("=", "is_not_distinct"):
        return _of_equality(condition)
    if condition.op == "in":
        value, *items = condition.args
        return _any([_of_equality(Call("=", (value, item), BOOL)) for item in items])
    if condition.op == "or":
        return _any([_alternatives(argument) for argument in condition.args])
    if condition.op == "and":
        return _all([_alternatives(argument) for argument in condition.args])
    if condition.op == "not" and isinstance(condition.args[0], ColumnRef):
        return [{condition.args[0].position: False}]
    return None


def _of_equality(condition: Call) -> list[Binding] | None:
    compared = _column_and_constant(condition)
    if compared is None:
        return None
    position, _, value = compared
    if value is None:
        # Nothing equals NULL. IS NOT DISTINCT FROM does, but no reader is asked for NULL.
        return [] if condition.op == "=" else None
    return [{position: value}]


def _column_and_constant(condition: Call) -> tuple[int, str, Value] | None:
    """(column, operator, value) of a comparison of a column with a constant of the same type, however it is written."""
    if condition.op not in _FLIPPED:
        return None
    left, right = condition.args
    for column, op, other in ((left, condition.op, right), (right, _FLIPPED[condition.op], left)):
        if isinstance(column, ColumnRef):
            literal = constant(other)
            if literal is not None and (literal.value is None or literal.type.kind == column.type.kind):
                return column.position, op, literal.value
    return None


def _any(arms: Sequence[list[Binding] | None]) -> list[Binding] | None:
    found: list[Binding] = []
    for arm in arms:
        if arm is None:
            return None
        found += arm
    return found


def _all(arms: Sequence[list[Binding] | None]) -> list[Binding] | None:
    found: list[Binding] | None = None
    for arm in arms:
        if arm is not None and found is not None and len(found) * len(arm) <= ALTERNATIVES_MAX:
            found = _both(found, arm)
        else:
            found = arm if found is None else found
    return found


def _both(first: Iterable[Binding], second: Sequence[Binding]) -> list[Binding]:
    """Each of the one with each of the other, without those that contradict each other."""
    return [
        {**one, **two}
        for one, two in itertools.product(first, second)
        if all(one[position] == two[position] or one[position] is two[position] for position in one.keys() & two.keys())
    ]


def bounds(conditions: Iterable[Expression]) -> dict[int, Bounds]:
    """Between what the columns are. Of several bounds one will do."""
    found: dict[int, Bounds] = {}
    for condition in conditions:
        compared = _column_and_constant(condition) if isinstance(condition, Call) else None
        if compared is None or compared[2] is None:
            continue
        position, op, value = compared
        known = found.get(position, Bounds())
        if op in (">", ">="):
            found[position] = Bounds(value, known.high)
        elif op in ("<", "<="):
            found[position] = Bounds(known.low, value)
    return found


# --- paths ---


@dataclass(frozen=True, slots=True)
class Nothing:
    """No row can fulfil the conditions."""

    @property
    def estimate(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class ByKey:
    """Whole primary keys."""

    keys: tuple[Row, ...]

    @property
    def estimate(self) -> float:
        return float(len(self.keys))


@dataclass(frozen=True, slots=True)
class ByIndex:
    """Values of `columns`: an index, or the beginning of the primary key."""

    columns: tuple[int, ...]
    values: tuple[Row, ...]

    @property
    def estimate(self) -> float:
        return ROWS_PER_INDEX_VALUE * len(self.values)


@dataclass(frozen=True, slots=True)
class InRange:
    """A range of the primary key, of which the first `bound` columns have one value each; without bounds, all rows."""

    start: Row | None = None
    stop: Row | None = None
    bound: int = 0

    @property
    def estimate(self) -> float:
        if self.bound:
            return ROWS_PER_INDEX_VALUE
        sides = (self.start is not None) + (self.stop is not None)
        return ROWS_PER_TABLE * 0.1**sides


Path: TypeAlias = Nothing | ByKey | ByIndex | InRange

#: Guesses, for the order of joins only: there are no statistics.
ROWS_PER_INDEX_VALUE = 20.0
ROWS_PER_TABLE = 1_000_000.0


def path_for(table: Table, conditions: Sequence[Expression]) -> Path:
    """The narrowest way to the rows that fulfil the conditions; columns in them are physical positions."""
    found = alternatives(conditions)
    if not found:
        return Nothing()
    bound = set(found[0]).intersection(*found[1:])
    limits = bounds(conditions)
    columns = best_columns(table, bound)
    if columns == table.key and columns:
        return ByKey(_values(found, columns))
    prefix = _prefix(table, bound)
    next_column = table.key[len(prefix)] if len(prefix) < len(table.key) else None
    # An index with as many columns is taken before the beginning of a key: that often is a tenant or a date.
    if columns and columns != prefix:
        return ByIndex(columns, _values(found, columns))
    values = _values(found, prefix)
    if len(values) > 1:
        return ByIndex(prefix, values)
    limit = limits.get(next_column, Bounds()) if next_column is not None else Bounds()
    start = values[0] + (() if limit.low is None else (limit.low,))
    stop = values[0] + (() if limit.high is None else (limit.high,))
    return InRange(start or None, stop or None, len(prefix))


def best_columns(table: Table, bound: Iterable[int]) -> tuple[int, ...]:
    """The columns to look rows up by, if all columns of `bound` have values: the whole primary key, the index with the
    most columns, the beginning of the key; () if there is no such way."""
    known = set(bound)
    prefix = _prefix(table, known)
    if prefix == table.key:
        return prefix
    served = [index.columns for index in table.indexes if index.ready and known.issuperset(index.columns)]
    widest = max(served, key=len, default=())
    return widest if len(widest) >= max(1, len(prefix)) else prefix


def _prefix(table: Table, bound: Iterable[int]) -> tuple[int, ...]:
    known = set(bound)
    return tuple(itertools.takewhile(known.__contains__, table.key))


def _values(found: Sequence[Binding], columns: Sequence[int]) -> tuple[Row, ...]:
    return tuple(dict.fromkeys(tuple(binding[column] for column in columns) for binding in found))


# --- reading ---


def read(path: Path, table: Table, reader: Reader, *, descending: bool = False) -> Iterator[Row]:
    """The rows at the end of a path. Only a range has an order."""
    match path:
        case Nothing():
            return iter(())
        case ByKey():
            return get(table, reader, path.keys)
        case ByIndex():
            return find(table, reader, path.columns, path.values)
        case InRange():
            return iter(reader.scan(table.name, path.start, path.stop, descending))


def get(table: Table, reader: Reader, keys: Iterable[Row]) -> Iterator[Row]:
    for some in batches(keys, KEYS_PER_CALL_MAX):
        yield from (row for row in reader.get_many(table.name, some) if row is not None)


def find(table: Table, reader: Reader, columns: tuple[int, ...], values: Iterable[Row]) -> Iterator[Row]:
    for some in batches(values, KEYS_PER_CALL_MAX):
        yield from itertools.chain.from_iterable(reader.find(table.name, columns, some))


def batches(items: Iterable[Row], count: int) -> Iterator[list[Row]]:
    iterator = iter(items)
    while some := list(itertools.islice(iterator, count)):
        yield some


# --- explaining ---


def described_path(path: Path, table: Table, text: Callable[[Value], str]) -> str:
    match path:
        case Nothing():
            return "nothing, the conditions contradict each other"
        case ByKey():
            return f"{_counted(len(path.keys), 'key')} by {described_columns(table, table.key)}"
        case ByIndex():
            return f"{_counted(len(path.values), 'value')} by {described_columns(table, path.columns)}"
        case InRange():
            if path.start is None and path.stop is None:
                return "all rows"
            width = max(len(path.start or ()), len(path.stop or ()))
            start = "" if path.start is None else f" from ({', '.join(map(text, path.start))})"
            stop = "" if path.stop is None else f" to ({', '.join(map(text, path.stop))})"
            return f"range of {described_columns(table, table.key[:width])}{start}{stop}"


def described_columns(table: Table, columns: tuple[int, ...]) -> str:
    """The primary key, its beginning, or an index."""
    names = ", ".join(table.columns[column].name or ROW_ID_NAME for column in columns)
    return f"{'primary key' if columns == table.key[: len(columns)] else 'index'} ({names})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
