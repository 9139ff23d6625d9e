"""Results as Arrow tables and pandas frames. pyarrow is optional: the extra `batch` brings it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from importlib import import_module
from itertools import chain
from math import isinf
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from .changetables.errors import DataError, Error, InterfaceError, OperationalError, input_hint
from .changetables.literals import value_of_text
from .changetables.types import INT_MAX, INT_MIN, Type

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Array, DataType, RecordBatch
    from pyarrow import Table as ArrowTable

__all__ = [
    "ArrowTable",
    "DataFrame",
    "RecordBatch",
    "batches_from_bytes",
    "batches_of",
    "bytes_of_batch",
    "to_arrow",
    "to_pandas",
    "values_of",
]

#: Digits of Arrow's decimals: of 128 bits, and of 256.
_SMALL_DIGITS_MAX = 38
_DIGITS_MAX = 76
#: Digits and scale of a column of decimals that has neither a scale of its own nor any value.
_DECIMAL_WITHOUT_VALUES = (38, 9)


def to_arrow(names: Sequence[str], types: Sequence[Type], rows: Sequence[Sequence[object]]) -> ArrowTable:
    arrow = pyarrow()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [_array(arrow, *column) for column in zip(names, types, columns, strict=True)]
    return arrow.table(arrays, names=list(names))


def to_pandas(table: ArrowTable) -> DataFrame:
    try:
        return table.to_pandas()
    except ImportError as error:
        raise InterfaceError("pandas is not installed", hint="pip install pandas") from error


def batches_of(source: Iterable[RecordBatch | ArrowTable], rows_max: int) -> Iterator[RecordBatch]:
    """Record batches of at most so many rows each, of whatever was given."""
    arrow = pyarrow()
    for item in [source] if isinstance(source, arrow.Table | arrow.RecordBatch) else source:
        if isinstance(item, arrow.Table):
            yield from item.to_batches(max_chunksize=rows_max)
        elif isinstance(item, arrow.RecordBatch):
            yield from (item.slice(first, rows_max) for first in range(0, item.num_rows, rows_max))
        else:
            raise InterfaceError(
                f"load takes Arrow record batches or tables, not {type(item).__name__}",
                hint="make one with pyarrow.Table.from_pylist(rows)",
            )


def bytes_of_batch(batch: RecordBatch) -> bytes:
    """An Arrow stream of one batch."""
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def batches_from_bytes(data: bytes) -> Iterator[RecordBatch]:
    """The batches of an Arrow stream that somebody else has made."""
    arrow = pyarrow()
    try:
        for batch in arrow.ipc.open_stream(data):
            batch.validate(full=True)
            yield batch
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"an Arrow stream that cannot be read: {error}", hint="send it again") from error


def values_of(array: Array, type_: Type) -> list[object]:
    """The values of a column as a transaction takes them. Text in a column that is not text is read as SQL reads a
    literal."""
    arrow = pyarrow()
    kinds = arrow.types
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kinds.is_timestamp(array.type) and array.type.unit == "ns":
        # Nanoseconds would come as objects of pandas, or be cut. What has some is refused.
        try:
            array = array.cast(arrow.timestamp("us", tz=array.type.tz))
        except arrow.ArrowInvalid as error:
            raise DataError(f"a timestamp has nanoseconds: {error}", hint="round it to microseconds") from error
    try:
        values: list[object] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"a text is not UTF-8: {error}", hint="load it into a column of type bytes") from error
    if type_.kind != "str" and (kinds.is_string(array.type) or kinds.is_large_string(array.type)):
        return texts_read(values, type_)
    return values


def texts_read(texts: Sequence[object], type_: Type) -> list[object]:
    """The values that texts stand for; NULL is NULL."""
    if type_.kind == "json":
        return [None if text is None else _read_json(str(text)) for text in texts]
    return [None if text is None else value_of_text(str(text), type_) for text in texts]


#: The texts that Arrow reads as SQL does, by the kind of their column.
_DAY = r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
_MOMENT = _DAY + r"[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_PLAIN_TEXTS = {
    "int": r"-?[0-9]{1,18}",
    "float": r"-?[0-9]{1,17}(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?",
    "bool": "true|false",
    "date": _DAY,
    "timestamp": _MOMENT,
    "timestamptz": _MOMENT + r"\+00:00",
}


def plain_texts_read(batch: RecordBatch, types: Mapping[str, Type]) -> RecordBatch:
    """The same rows, and columns of text that all have the usual form as columns of their types, without an object for
    each value. Whatever else there is stays text: it is read value by value, which also says what is wrong with it."""
    arrow, compute = pyarrow(), import_module("pyarrow.compute")
    for position, name in enumerate(batch.schema.names):
        type_ = types.get(name)
        form = None if type_ is None else _PLAIN_TEXTS.get(type_.kind)
        texts = batch.column(position)
        if type_ is None or form is None or not arrow.types.is_string(texts.type):
            continue
        if not compute.all(compute.match_substring_regex(texts, rf"\A({form})\z"), min_count=0).as_py():
            continue
        try:
            made = texts.cast(_arrow_type(arrow, type_, ()))
        except arrow.ArrowInvalid:  # there is no such day
            continue
        batch = batch.set_column(position, name, made)
    return batch


def _read_json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise DataError(f"invalid input syntax for type json: {error}", hint=input_hint("json")) from error
    return value


def _array(arrow: ModuleType, name: str, type_: Type, values: Sequence[object]) -> Array:
    if type_.kind == "json":
        # Any shape, also several in one column: as text.
        values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    try:
        if any(isinstance(value, Decimal) and not value.is_finite() for value in values):
            # Decimals of Arrow are finite. One type for all rows of a column, so its other values are floats, too.
            return arrow.array([_float(value) for value in values], type=arrow.float64())
        return arrow.array(values, type=_arrow_type(arrow, type_, values))
    except (OverflowError, TypeError, ValueError, arrow.ArrowException) as error:
        raise DataError(
            f"column {name!r} does not fit an Arrow type: {error}", hint="read the rows without to_arrow()"
        ) from error


def _float(value: object) -> float | None:
    """The nearest float of a decimal, which may be infinite itself but does not become so."""
    if not isinstance(value, Decimal | int):
        return None
    number = float(value)
    if isinf(number) and Decimal(value).is_finite():
        raise OverflowError(f"{value} beside NaN or Infinity is above the largest float")
    return number


def pyarrow() -> ModuleType:
    """The library, which may be missing."""
    try:
        import pyarrow
    except ImportError as error:
        raise InterfaceError("pyarrow is not installed", hint="pip install 'viewtide[batch]'") from error
    return pyarrow  # type: ignore[no-any-return]  # it has no types of its own


def _arrow_type(arrow: ModuleType, type_: Type, values: Sequence[object]) -> DataType | None:
    match type_.kind:
        case "int":
            # A sum may exceed 64 bits.
            fits = all(INT_MIN <= value <= INT_MAX for value in values if isinstance(value, int))
            return arrow.int64() if fits else arrow.decimal256(76, 0)
        case "float":
            return arrow.float64()
        case "str" | "json":
            return arrow.string()
        case "bytes":
            return arrow.binary()
        case "bool":
            return arrow.bool_()
        case "date":
            return arrow.date32()
        case "timestamp":
            return arrow.timestamp("us")
        case "timestamptz":
            return arrow.timestamp("us", tz="UTC")
        case "decimal":
            return _decimal_type(arrow, type_, values)
    return None


def _decimal_type(arrow: ModuleType, type_: Type, values: Sequence[object]) -> DataType | None:
    """None: Arrow finds the smallest type that holds all values."""
    if type_.precision is not None:
        scale = type_.scale or 0
        # Arrow counts the zeros behind the point of numeric(2,5) as digits, and pandas knows no scale below zero.
        digits = max(type_.precision, scale) if scale >= 0 else type_.precision - scale
        if digits <= _DIGITS_MAX:
            return _decimal_of(arrow, digits, max(scale, 0))
    if any(value is not None for value in values):
        return None
    return _decimal_of(arrow, *_DECIMAL_WITHOUT_VALUES)


def _decimal_of(arrow: ModuleType, digits: int, scale: int) -> DataType:
    return arrow.decimal128(digits, scale) if digits <= _SMALL_DIGITS_MAX else arrow.decimal256(digits, scale)


# -- files


#: Is told how many bytes of a file were read.
Tell: TypeAlias = Callable[[int], None]
#: What is read of CSV at once, and becomes one batch.
_CSV_BLOCK_BYTES = 1 << 20


def parquet_batches(path: Path, name: str, rows_max: int, tell: Tell) -> Iterator[RecordBatch]:
    """`name`: what errors call the file, here and below."""
    arrow = pyarrow()
    parquet = import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            rows_count, size = 0, path.stat().st_size
            for batch in file.iter_batches(batch_size=rows_max):
                rows_count += batch.num_rows
                tell(size * rows_count // file.metadata.num_rows)
                yield batch
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(name, "Parquet", error) from error


def parquet_columns(path: Path, name: str) -> dict[str, str]:
    """The SQL types for the columns of a file."""
    arrow = pyarrow()
    try:
        schema = import_module("pyarrow.parquet").read_schema(path)
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(name, "Parquet", error) from error
    _check_header(schema.names, name)
    return {field.name: _sql_type(arrow.types, field.name, field.type) for field in schema}


def _unreadable(name: str, kind: str, error: Exception) -> Error:
    """What the system refuses has a number; damage has none, though Arrow calls both an OSError."""
    if isinstance(error, OSError) and error.errno is not None:
        return OperationalError(
            f"{name} cannot be read: {os.strerror(error.errno)}", hint="check its name and its permissions"
        )
    return DataError(f"{name} is no {kind} file: {error}", hint=f"is it whole, and {kind}?")


def _sql_type(kinds: ModuleType, name: str, type_: DataType) -> str:
    if kinds.is_dictionary(type_):
        type_ = type_.value_type
    if kinds.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if kinds.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamptz"
    tests = {
        "bigint": kinds.is_integer,
        "float8": kinds.is_floating,
        "text": lambda each: kinds.is_string(each) or kinds.is_large_string(each),
        "bytea": lambda each: kinds.is_binary(each) or kinds.is_large_binary(each),
        "boolean": kinds.is_boolean,
        "date": kinds.is_date,
    }
    for sql, fits in tests.items():
        if fits(type_):
            return sql
    raise DataError(
        f"column {name!r} has the type {type_}, which no column of a table has",
        hint="convert it first, or leave the column out",
    )


def csv_batches(path: Path, name: str, separator: str, tell: Tell) -> Iterator[RecordBatch]:
    """All columns are text; a field that is empty and not quoted is NULL. Without a separator it is a comma."""
    arrow = pyarrow()
    reader = import_module("pyarrow.csv")
    parsing = reader.ParseOptions(delimiter=separator or ",", newlines_in_values=True)
    try:
        names = reader.open_csv(path, parse_options=parsing).schema.names
        _check_header(names, name)
        if not separator:
            _check_comma(names, name)
        options = reader.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        reading = reader.ReadOptions(block_size=_CSV_BLOCK_BYTES)
        opened = reader.open_csv(path, read_options=reading, parse_options=parsing, convert_options=options)
        first = next(opened, None)
        # A file without rows has columns, too.
        batches = [arrow.RecordBatch.from_pylist([], schema=opened.schema)] if first is None else chain([first], opened)
        size = path.stat().st_size
        for number, batch in enumerate(batches, 1):
            # Arrow reads far ahead, and does not say which bytes a batch is from.
            tell(min(number * _CSV_BLOCK_BYTES, size))
            yield batch
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        _check_utf8(path, name)
        raise _unreadable(name, "CSV", error) from error
    except OSError as error:
        raise _unreadable(name, "CSV", error) from error


def _check_header(names: Sequence[str], name: str) -> None:
    for number, column in enumerate(names, 1):
        if not column:
            raise DataError(f"{name}: column {number} has no name", hint="the first line of CSV has the names")
        if column in names[: number - 1]:
            raise DataError(f"{name}: two columns have the name {column!r}", hint="give each a name of its own")


def _check_comma(names: Sequence[str], name: str) -> None:
    """One column whose name looks like several: most likely nobody has thought of the separator."""
    for other, said in ((";", "';'"), ("\t", "tab"), ("|", "'|'")):
        if len(names) == 1 and other in names[0]:
            raise DataError(
                f"{name}, line 1: {names[0]!r} is one column, because no comma stands there",
                hint=f"give --separator {said}, or --separator , if it is one",
            )


def _check_utf8(path: Path, name: str) -> None:
    """Arrow does not say in which line it is."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(f"{name}, line {number}", error) from None


def not_utf8(where: str, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{where}: not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start + 1}",
        hint="convert the file, like iconv -f latin1 -t utf-8",
    )


def csv_columns(path: Path, name: str, separator: str, rows_max: int) -> dict[str, list[object]]:
    """The texts of the first rows, by column."""
    batch = next(csv_batches(path, name, separator, lambda _: None))
    return {column: batch.column(column).slice(0, rows_max).to_pylist() for column in batch.schema.names}


@contextmanager
def parquet_writer(
    path: Path, names: Sequence[str], types: Sequence[Type]
) -> Iterator[Callable[[Sequence[Sequence[object]], Callable[[object, Type], str]], None]]:
    """A function that writes rows, and takes the one that makes a text of a value."""
    arrow = pyarrow()
    kept = [_kept_type(arrow, type_) for type_ in types]
    schema = arrow.schema(list(zip(names, kept, strict=True)))
    with import_module("pyarrow.parquet").ParquetWriter(path, schema) as file:

        def write(rows: Sequence[Sequence[object]], text_of: Callable[[object, Type], str]) -> None:
            columns = list(zip(*rows, strict=True)) or [()] * len(names)
            arrays = []
            for name, type_, target, column in zip(names, types, kept, columns, strict=True):
                if target == arrow.string() and type_.kind != "str":
                    column = tuple([None if value is None else text_of(value, type_) for value in column])
                try:
                    arrays.append(arrow.array(column, type=target))
                except (OverflowError, arrow.ArrowException) as error:
                    raise DataError(f"column {name!r} does not fit into Parquet: {error}", hint="use CSV") from error
            file.write_batch(arrow.record_batch(arrays, schema=schema))

        yield write


def _kept_type(arrow: ModuleType, type_: Type) -> DataType:
    """One type for all rows, whatever comes: decimals without a scale are text."""
    if type_.kind != "decimal":
        return _arrow_type(arrow, type_, ()) or arrow.string()
    if type_.precision is None or type_.precision > 76 or not 0 <= (type_.scale or 0) <= type_.precision:
        return arrow.string()
    return arrow.decimal256(type_.precision, type_.scale or 0)
