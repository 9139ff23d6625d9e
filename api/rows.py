"""What reads return: rows, results, tokens."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from .arrow import to_arrow, to_pandas
from .changetables.errors import counted
from .changetables.rows import to_api
from .changetables.schema import Table
from .changetables.types import Row as Values
from .changetables.types import Type

if TYPE_CHECKING:
    from .arrow import ArrowTable, DataFrame


class Columns:
    """Names, types and positions of a result's columns, shared by all its rows."""

    __slots__ = ("_all", "_converted", "_picked", "names", "places", "positions", "types")

    def __init__(self, columns: Sequence[tuple[str, Type]], picked: Sequence[int] | None = None) -> None:
        self.names = tuple(name for name, _ in columns)
        self.types = tuple(type_ for _, type_ in columns)
        self.positions = {name: position for position, name in enumerate(self.names)}
        #: By name and by number, also from the end: one look-up finds either.
        self.places: dict[str | int, int] = {name: position for position, name in enumerate(self.names)}
        self.places.update((number, number % len(columns)) for number in range(-len(columns), len(columns)))
        self._picked = tuple(range(len(columns))) if picked is None else tuple(picked)
        self._converted = any(type_.kind in ("json", "timestamptz") for type_ in self.types)
        self._all = picked is None or self._picked == tuple(range(len(columns)))

    @classmethod
    def of_table(cls, table: Table) -> Columns:
        visible = table.visible()
        whole = len(visible) == len(table.columns)
        columns = [(table.columns[position].name, table.columns[position].type) for position in visible]
        return cls(columns, None if whole else visible)

    def row(self, values: Values) -> Row:
        """A row from the engine's values, which have more columns if some were added after the snapshot."""
        if not self._all or len(values) > len(self.names):
            values = tuple(values[position] for position in self._picked)
        if self._converted:
            return Row(self, tuple(to_api(type_, value) for type_, value in zip(self.types, values, strict=True)))
        return Row(self, values)

    def rows(self, found: Iterable[Values]) -> list[Row]:
        """`row` for each. Written out for plain values: a view is read as a whole again and again."""
        if self._converted or not self._all:
            return [self.row(values) for values in found]
        width, new, set_columns, set_values = len(self.names), Row.__new__, _set_columns, _set_values
        rows = []
        for values in found:
            row = new(Row)
            set_columns(row, self)
            set_values(row, values if len(values) == width else values[:width])
            rows.append(row)
        return rows


class Row(Mapping[str, object]):
    """One row: a read-only mapping in column order, also by position (row[0], row[0:2]) and by attribute (row.cost).

    The row of a `get` says what a result says of its rows: `row.watermark` and `row.lag_ms`, unless these are columns.
    """

    __slots__ = ("_columns", "_read", "_values")

    def __init__(self, columns: Columns, values: tuple[object, ...]) -> None:
        _set_columns(self, columns)
        _set_values(self, values)

    _columns: Columns
    _values: tuple[object, ...]
    #: Of a row that was read alone: watermark and lag_ms. Unset in the rows of a result, which has them once for all.
    _read: tuple[int, float]

    @overload
    def __getitem__(self, name: str | int) -> object: ...
    @overload
    def __getitem__(self, name: slice) -> tuple[object, ...]: ...
    def __getitem__(self, name: str | int | slice) -> object:
        try:
            return self._values[self._columns.places[name]]  # type: ignore[index]  # The rare slices come last.
        except (KeyError, TypeError):
            if isinstance(name, slice):
                return self._values[name]
            if isinstance(name, int):
                raise IndexError(f"the row has {counted(len(self._values), 'column')}") from None
            raise

    def __getattr__(self, name: str) -> object:
        position = self._columns.positions.get(name)
        if position is None:
            if name in _READ_NAMES:
                with suppress(AttributeError):  # unset
                    return _get_read(self)[_READ_NAMES.index(name)]
            raise AttributeError(f"no column {name!r}; there are {', '.join(self._columns.names)}")
        return self._values[position]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("rows are read-only; write with a transaction")

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.names)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._columns.positions

    def values(self) -> ValuesView[object]:
        """In column order; by position, because a SELECT may have two columns of one name."""
        return _Values(self)

    def items(self) -> ItemsView[str, object]:
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return self._columns.names == other._columns.names and self._values == other._values
        if isinstance(other, Mapping):
            return dict(self.items()) == dict(other.items())
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._columns.names, self._values))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._columns.names]

    def __reduce__(self) -> tuple[object, ...]:
        """Another process gets a dict: it may not have Viewtide."""
        return dict, (dict(self),)

    def __copy__(self) -> Row:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Row:
        """Only values of json can be changed; a row without any is its own copy."""
        values = copy.deepcopy(self._values, memo)
        if values is self._values:
            return self
        made = Row(self._columns, values)
        with suppress(AttributeError):  # unset
            _set_read(made, _get_read(self))
        return made


class _Values(ValuesView[object]):
    __slots__ = ()
    _mapping: Row

    def __iter__(self) -> Iterator[object]:
        return iter(self._mapping._values)


class _Items(ItemsView[str, object]):
    __slots__ = ()
    _mapping: Row

    def __iter__(self) -> Iterator[tuple[str, object]]:
        return zip(self._mapping._columns.names, self._mapping._values, strict=True)


#: The way past __setattr__.
_set_columns = Row.__dict__["_columns"].__set__
_set_values = Row.__dict__["_values"].__set__
_set_read, _get_read = Row.__dict__["_read"].__set__, Row.__dict__["_read"].__get__
_READ_NAMES = ("watermark", "lag_ms")


def read_alone(row: Row, watermark: int, lag_ms: float = 0.0) -> Row:
    """The row of a `get`, which says what a result says of all its rows."""
    _set_read(row, (watermark, lag_ms))
    return row


def reading(row: Row) -> tuple[int, float]:
    """The watermark and lag_ms of a row that was read alone."""
    return row._read


class Result(Sequence[Row]):
    """Rows of one read, with the timestamp that they are true at."""

    __slots__ = ("_columns", "_rows", "lag_ms", "watermark")

    def __init__(self, columns: Columns, rows: list[Row], watermark: int, lag_ms: float = 0.0) -> None:
        self._columns = columns
        self._rows = rows
        self.watermark = watermark
        self.lag_ms = lag_ms

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns.names

    @property
    def token(self) -> Token:
        """Where these rows stand in the one order: of a view, `changes(since=result.token)` goes on from them."""
        return Token(self.watermark)

    @property
    def rowcount(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Result):
            return self._rows == other._rows
        if isinstance(other, list):
            return self._rows == other
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by content

    def __repr__(self) -> str:
        return f"Result({self._rows!r}, watermark={self.watermark}, lag_ms={self.lag_ms})"

    def to_arrow(self) -> ArrowTable:
        """The rows as an Arrow table; needs the extra `batch`."""
        return to_arrow(self.columns, self._columns.types, [tuple(row.values()) for row in self._rows])

    def to_pandas(self) -> DataFrame:
        """The rows as a pandas frame; needs pandas and the extra `batch`."""
        return to_pandas(self.to_arrow())


class Written(Result):
    """The result of a statement that returns no rows. `rowcount` is the number of rows that it changed."""

    __slots__ = ("_affected",)

    def __init__(self, affected: int, watermark: int = 0) -> None:
        super().__init__(Columns(()), [], watermark)
        self._affected = affected

    @property
    def rowcount(self) -> int:
        return self._affected

    def __repr__(self) -> str:
        return f"Written(rowcount={self._affected})"


#: Above the tx_id of every transaction.
AFTER_ALL = ((1 << 63) - 1, (1 << 63) - 1)


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """Where a commit stands in the one order. Opaque and comparable; give it to `at_least=` and `since=`."""

    commit_ts: int
    #: Of what is not a transaction, a snapshot or a result, that of none: it has all commits of its timestamp, and so
    #: comes after them (commits can share a timestamp, and are ordered by this then).
    tx_id: tuple[int, int] = AFTER_ALL
