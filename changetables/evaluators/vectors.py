"""Columns of a batch, as Arrow arrays and as lists of the engine's values, whichever is asked for.

Not every value of the engine fits an Arrow type: sums are integers of any size, a numeric without a fixed scale keeps
the digits of each value, NaN is a numeric. Such a column has values only, and whoever needs its array is told so by
`Unsuitable` and goes by rows instead. An array has exactly the engine's values or is not made.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..change_table import Change
from ..errors import DataError, InterfaceError
from ..schema import Column, Table
from ..types import INT, NAN, Row, Type, Value

#: Digits of Arrow's two decimal types.
DECIMAL128_DIGITS_MAX = 38
DECIMAL256_DIGITS_MAX = 76
#: Codes of several columns are combined into one 64-bit number as long as this is not reached.
CODES_MAX = 2**62

#: Source in the branch, position in its rows.
Ref: TypeAlias = tuple[int, int]

_ARROW_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "json": pa.string(),
    "bytes": pa.binary(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us"),
}
#: The limits of Python's moments: Arrow's go further.
_LIMITS = {
    "date": (datetime.date.min, datetime.date.max),
    "timestamp": (datetime.datetime.min, datetime.datetime.max),
    "timestamptz": (datetime.datetime.min, datetime.datetime.max),
}
_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, ValueError, TypeError)


class Unsuitable(Exception):
    """Something that Arrow cannot hold or compute exactly as the engine does."""


def arrow_type(type_: Type) -> pa.DataType:
    if type_.kind == "decimal":
        if type_.precision is None or not 0 <= (type_.scale or 0) <= type_.precision:
            raise Unsuitable(f"{type_} has no fixed scale")
        return decimal_type(type_.precision, type_.scale or 0)
    found = _ARROW_TYPES.get(type_.kind)
    if found is None:
        raise Unsuitable(f"no Arrow type for {type_}")
    return found


def decimal_type(digits: int, scale: int) -> pa.DataType:
    if digits > DECIMAL256_DIGITS_MAX:
        raise Unsuitable(f"numeric of {digits} digits")
    return pa.decimal128(digits, scale) if digits <= DECIMAL128_DIGITS_MAX else pa.decimal256(digits, scale)


class Vector:
    """One column. Immutable; what is computed once is kept.

    Made of an array, of values, of a function that gives values, or of places in another vector: rows that were found
    by a look-up are few, and those that they join with are many.
    """

    __slots__ = ("_array", "_base", "_make", "_places", "_unsuitable", "_values", "type")

    def __init__(
        self,
        type_: Type,
        *,
        array: pa.Array | None = None,
        values: Sequence[Value] | None = None,
        make: Callable[[], Sequence[Value]] | None = None,
        base: Vector | None = None,
        places: pa.Array | None = None,
    ) -> None:
        self.type = type_
        self._unsuitable = ""
        self._array, self._values, self._make, self._base, self._places = array, values, make, base, places

    @property
    def array(self) -> pa.Array:
        """Raises Unsuitable if Arrow has no such values."""
        if self._array is None:
            if self._unsuitable:
                raise Unsuitable(self._unsuitable)
            try:
                self._array = _array_of(self.values, self.type) if self._base is None else self._taken()
            except Unsuitable as error:
                self._unsuitable = str(error)
                raise
        return self._array

    def _taken(self) -> pa.Array:
        assert self._base is not None, "asked by whoever has seen it"
        return self._base.array.take(self._places)

    @property
    def values(self) -> Sequence[Value]:
        if self._values is None:
            if self._make is not None:
                self._values = self._make()
            elif self._base is not None and self._base._prefers_values(len(self)):
                self._values = list(map(self._base.values.__getitem__, plain_list(self._places)))
            else:
                self._values = engine_values(self.array, self.type)
        return self._values

    def _prefers_values(self, taken_count: int) -> bool:
        """Whether taking its values is cheaper than taking from its array, or the only way."""
        at_hand = self._values is not None or self._make is not None
        return at_hand or len(self) <= taken_count or not self.has_array

    def __len__(self) -> int:
        if self._array is not None:
            return len(self._array)
        return len(self.values) if self._places is None else len(self._places)

    def take(self, places: pa.Array) -> Vector:
        return Vector(self.type, base=self, places=places)

    def codes(self) -> tuple[pa.Array, Sequence[Value]]:
        """A number for each row (int64, no NULL), and the value that each number stands for. Equal values have equal
        numbers, but for floats and NULL columns; some numbers may be of no row."""
        if self._base is not None and len(self._base) <= len(self):
            codes, values = self._base.codes()
            return codes.take(self._places), values
        try:
            encoded = self.array.dictionary_encode(null_encoding="encode")
        except Unsuitable:
            return _codes_of(self.values)
        return encoded.indices.cast(pa.int64()), engine_values(encoded.dictionary, self.type)

    @property
    def is_taken(self) -> bool:
        """Made of places in another vector, so that not all values of that one need be here."""
        return self._base is not None

    @property
    def has_array(self) -> bool:
        try:
            return self.array is not None
        except Unsuitable:
            return False


def _codes_of(values: Sequence[Value]) -> tuple[pa.Array, Sequence[Value]]:
    known: dict[Value, int] = {}
    codes = [known.setdefault(value, len(known)) for value in values]
    return pa.array(codes, pa.int64()), list(known)


def _array_of(values: Sequence[Value], type_: Type) -> pa.Array:
    target = arrow_type(type_)
    if type_.kind == "decimal" and not _have_scale(values, type_.scale or 0):
        raise Unsuitable("numerics of several scales")
    try:
        return pa.array(values, target)
    except _CONVERSION_ERRORS as error:
        raise Unsuitable(str(error)) from error


def _have_scale(values: Iterable[Value], scale: int) -> bool:
    """Arrow would write 1.5 as 1.50 without a word, and the view would show it."""
    return all(value is None or cast(Decimal, value).as_tuple().exponent == -scale for value in values)


def plain_list(array: pa.Array) -> list[int]:
    """Integers as a list; without NULL, 64 bits wide, it is twice as fast as `to_pylist`."""
    if array.type != pa.int64() or array.null_count or not len(array):
        return cast("list[int]", array.to_pylist())
    numbers = memoryview(array.buffers()[1]).cast("B").cast("q")
    return numbers[array.offset : array.offset + len(array)].tolist()


def engine_values(array: pa.Array, type_: Type) -> list[Value]:
    """The values as rows have them, with the one NaN object."""
    if type_.kind == "int":
        return cast("list[Value]", plain_list(array))
    values = cast("list[Value]", array.to_pylist())
    if type_.kind == "float" and pc.any(pc.is_nan(array)).as_py():
        return [NAN if value != value else value for value in values]
    return values


# --- frames ---


@dataclass(frozen=True, slots=True)
class Frame:
    """Partly joined rows. `times`: their multiplicities, None if all are 1. `codes`: for the look-ups that are under
    way, which of its keys each row asked for."""

    columns: Mapping[Ref, Vector]
    rows_count: int
    times: Vector | None
    codes: Mapping[int, Vector]

    def take(self, places: pa.Array, needed: Iterable[Ref]) -> Frame:
        """Some of the rows, or some of them several times, with the columns that are still needed."""
        return Frame(
            {ref: self.columns[ref].take(places) for ref in needed if ref in self.columns},
            len(places),
            None if self.times is None else self.times.take(places),
            {source: codes.take(places) for source, codes in self.codes.items()},
        )

    def where(self, mask: pa.Array, needed: Iterable[Ref]) -> Frame:
        """The rows where the mask is TRUE."""
        kept = pc.sum(mask).as_py() or 0
        return self if kept == self.rows_count else self.take(_places(mask), needed)


def _places(mask: pa.Array) -> pa.Array:
    return pc.indices_nonzero(pc.fill_null(mask, False)).cast(pa.int64())


def distinct(
    vectors: Sequence[Vector], rows_count: int, *, as_first: bool = False, spare: bool = False
) -> tuple[pa.Array, list[Row]]:
    """For each row the number of its tuple of values, and the tuples.

    `as_first`: of tuples that are equal but not the same (1.0 and 1.00), the first one is given. `spare`: there may be
    tuples of no row among them, which saves looking at all rows once more.
    """
    if not vectors:
        return pa.repeat(pa.scalar(0, pa.int64()), rows_count), [()]
    coded = [vector.codes() for vector in vectors]
    as_first = as_first and any(vector.type.kind == "decimal" and not vector.has_array for vector in vectors)
    if len(vectors) == 1 and not as_first and (spare or not vectors[0].is_taken):
        codes, values = coded[0]
        return codes, list(zip(values, strict=True))
    combined, count = coded[0][0], len(coded[0][1])
    for codes, values in coded[1:]:
        count *= len(values)
        if count >= CODES_MAX:
            raise Unsuitable("too many different values")
        combined = pc.add(pc.multiply(combined, len(values)), codes)
    encoded = combined.dictionary_encode()
    numbers = encoded.indices.cast(pa.int64())
    if as_first:
        return numbers, _first_rows(vectors, plain_list(numbers), len(encoded.dictionary))
    return numbers, _tuples(encoded.dictionary, [values for _, values in coded])


def _tuples(combined: pa.Array, values: Sequence[Sequence[Value]]) -> list[Row]:
    """What combined codes stand for."""
    columns: list[Iterable[Value]] = []
    for some in reversed(values):
        left = pc.divide(combined, len(some)) if len(some) else combined
        places = pc.subtract(combined, pc.multiply(left, len(some)))
        columns.append(map(some.__getitem__, plain_list(places)))
        combined = left
    return list(zip(*reversed(columns), strict=True))


def _first_rows(vectors: Sequence[Vector], numbers: Sequence[int], count: int) -> list[Row]:
    first: dict[int, int] = {}
    for place, number in enumerate(numbers):
        first.setdefault(number, place)
    columns = [vector.values for vector in vectors]
    return [tuple(values[first[number]] for values in columns) for number in range(count)]


# --- input ---


class Batch:
    """Changes of one source: its columns by physical position, and how many times each row comes or goes."""

    def __init__(self, table: Table, columns: Mapping[int, Vector], times: Vector | None, rows_count: int) -> None:
        self.table, self.columns, self.times, self.rows_count = table, columns, times, rows_count
        self._changes: Sequence[Change] | None = None

    @classmethod
    def of_changes(cls, table: Table, changes: Sequence[Change]) -> Batch:
        """Of rows; a column is taken out of them when it is needed."""

        def column(position: int) -> Vector:
            return Vector(table.columns[position].type, make=lambda: [row[position] for row, _ in changes])

        times = None
        if any(multiplicity != 1 for _, multiplicity in changes):
            times = Vector(INT, values=[multiplicity for _, multiplicity in changes])
        batch = cls(table, {place: column(place) for place in range(len(table.columns))}, times, len(changes))
        batch._changes = changes
        return batch

    @classmethod
    def of_arrow(cls, table: Table, data: pa.Table | pa.RecordBatch, multiplicities: pa.Array | None = None) -> Batch:
        """Of an Arrow table that has the physical columns of the table, in their order."""
        if data.num_columns != len(table.columns):
            raise InterfaceError(
                f"{data.num_columns} columns for table {table.name!r}, which has {len(table.columns)}",
                hint="give all physical columns in their order, hidden and dropped ones too",
            )
        columns = {
            place: Vector(column.type, array=_checked(table, column, _one_array(data.column(place))))
            for place, column in enumerate(table.columns)
            if not column.dropped
        }
        times = None
        if multiplicities is not None:
            times = Vector(INT, array=_one_array(multiplicities).cast(pa.int64()))
        return cls(table, columns, times, data.num_rows)

    def slice(self, start: int, stop: int) -> Batch:
        stop = min(stop, self.rows_count)
        if self._changes is not None:
            return Batch.of_changes(self.table, self._changes[start:stop])
        columns = {
            place: Vector(vector.type, array=vector.array.slice(start, stop - start))
            for place, vector in self.columns.items()
        }
        times = None if self.times is None else Vector(INT, array=self.times.array.slice(start, stop - start))
        return Batch(self.table, columns, times, stop - start)

    def changes(self, needed: Iterable[int]) -> Sequence[Change]:
        """As rows, for the row evaluator: of columns that it does not need, only the place is there."""
        if self._changes is None:
            wanted = {*needed, *self.table.key} & self.columns.keys()
            empty: Sequence[Value] = [None] * self.rows_count
            width = len(self.table.columns)
            columns = [self.columns[place].values if place in wanted else empty for place in range(width)]
            rows = zip(*columns, strict=True) if columns else iter([()] * self.rows_count)
            times = [1] * self.rows_count if self.times is None else cast("Sequence[int]", self.times.values)
            self._changes = list(zip(rows, times, strict=True))
        return self._changes


def _one_array(data: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks()
        if isinstance(data, pa.ChunkedArray):
            data = pa.concat_arrays(data.chunks) if data.num_chunks else pa.array([], data.type)
    return data


def _checked(table: Table, column: Column, array: pa.Array) -> pa.Array:
    """The column in the one Arrow type that its kind has here."""
    where = f"column {column.name!r} of table {table.name!r}"
    try:
        array = _converted(array, column.type)
    except _CONVERSION_ERRORS as error:
        raise DataError(
            f"{where}: {array.type} does not fit {column.type}: {error}",
            hint=f"convert the input to {column.type} first",
        ) from error
    if not column.nullable and array.null_count:
        raise DataError(f"{where}: NULL is not allowed", hint="give a value")
    limits = _LIMITS.get(column.type.kind)
    if limits is not None and array.null_count < len(array):
        low, high = (pc.min_max(array)[end] for end in ("min", "max"))
        if (
            pc.less(low, pa.scalar(limits[0], array.type)).as_py()
            or pc.greater(high, pa.scalar(limits[1], array.type)).as_py()
        ):
            raise DataError(f"{where}: a value is out of range", hint=f"from {limits[0]} to {limits[1]}")
    return array


def _converted(array: pa.Array, type_: Type) -> pa.Array:
    source = array.type
    if pa.types.is_dictionary(source):
        return _converted(array.dictionary_decode(), type_)
    if type_.kind == "decimal" and type_.precision is None:
        return _unscaled(array)
    target = arrow_type(type_)
    if pa.types.is_null(source) or (pa.types.is_decimal(source) and pa.types.is_decimal(target)):
        return array.cast(target)
    if pa.types.is_timestamp(source) and source.tz is not None:
        if type_.kind != "timestamptz":
            raise ValueError("it has a time zone")
        # Arrow stores UTC whatever the zone is.
        return array.cast(pa.timestamp("us", tz="UTC")).view(pa.int64()).view(target)
    if _family(source) != _family(target):
        raise ValueError("another kind of values")
    return array.cast(target)


def _unscaled(array: pa.Array) -> pa.Array:
    """A numeric without precision takes the scale that the array has, but never one below 0."""
    source = array.type
    if pa.types.is_null(source):
        return array.cast(pa.decimal128(1, 0))
    if not pa.types.is_decimal(source):
        raise ValueError("a decimal type is needed")
    return array.cast(decimal_type(source.precision - min(0, source.scale), max(0, source.scale)))


def _family(type_: pa.DataType) -> str:
    """Only what keeps its meaning is cast without a word."""
    checks: list[tuple[str, Callable[[pa.DataType], bool]]] = [
        ("bool", pa.types.is_boolean),
        ("int", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("date", pa.types.is_date),
        ("timestamp", pa.types.is_timestamp),
        ("text", lambda each: pa.types.is_string(each) or pa.types.is_large_string(each)),
        ("bytes", lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each)),
        ("bytes", pa.types.is_fixed_size_binary),
        ("null", pa.types.is_null),
    ]
    return next((name for name, is_one in checks if is_one(type_)), str(type_))
