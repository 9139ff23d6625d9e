"""Columns between Viewtide, Arrow and Spark.

| Viewtide | Spark |
|---|---|
| int | bigint; a sum that does not fit is an error, unless the schema says decimal(38,0) |
| float, str, bytes, bool, date | double, string, binary, boolean, date |
| decimal(p, s); without them | decimal(p, s) up to 38 digits; decimal(38, 18) |
| timestamp, timestamptz | timestamp_ntz, timestamp |
| json | string: its text |
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow
from pyspark.sql import types as spark

from ..changetables.errors import DataError, NotSupportedError, ProgrammingError
from ..changetables.types import Row, Type
from ..names import nearest

#: What Spark's decimals have at the most, and the scale of one that has none of its own.
DIGITS_MAX = 38
SCALE = 18

Columns = Sequence[tuple[str, Type]]


def spark_type(type_: Type) -> spark.DataType:
    match type_.kind:
        case "int":
            return spark.LongType()
        case "float":
            return spark.DoubleType()
        case "bytes":
            return spark.BinaryType()
        case "bool":
            return spark.BooleanType()
        case "date":
            return spark.DateType()
        case "timestamp":
            return spark.TimestampNTZType()
        case "timestamptz":
            return spark.TimestampType()
        case "decimal":
            digits, scale = type_.precision, type_.scale or 0
            fits = digits is not None and 0 <= scale <= digits <= DIGITS_MAX
            return spark.DecimalType(digits or 0, scale) if fits else spark.DecimalType(DIGITS_MAX, SCALE)
    return spark.StringType()


def spark_schema(columns: Columns) -> spark.StructType:
    return spark.StructType([spark.StructField(name, spark_type(type_), True) for name, type_ in columns])


def arrow_schema(schema: spark.StructType) -> pyarrow.Schema:
    """What Spark expects of the batches of a reader."""
    return pyarrow.schema([pyarrow.field(each.name, _arrow_type(each), each.nullable) for each in schema.fields])


def _arrow_type(field: spark.StructField) -> pyarrow.DataType:
    match field.dataType:
        case spark.LongType():
            return pyarrow.int64()
        case spark.IntegerType():
            return pyarrow.int32()
        case spark.ShortType():
            return pyarrow.int16()
        case spark.DoubleType():
            return pyarrow.float64()
        case spark.FloatType():
            return pyarrow.float32()
        case spark.StringType():
            return pyarrow.string()
        case spark.BinaryType():
            return pyarrow.binary()
        case spark.BooleanType():
            return pyarrow.bool_()
        case spark.DateType():
            return pyarrow.date32()
        case spark.TimestampNTZType():
            return pyarrow.timestamp("us")
        case spark.TimestampType():
            return pyarrow.timestamp("us", tz="UTC")
        case spark.DecimalType() as decimal:
            return pyarrow.decimal128(decimal.precision, decimal.scale)
    raise NotSupportedError(
        f"column {field.name!r} cannot be read as {field.dataType.simpleString()}",
        hint="leave .schema() out to see the types that it has",
    )


def positions_of(columns: Columns, names: Sequence[str]) -> list[int]:
    """Where the columns of these names stand."""
    places = {name: position for position, (name, _) in enumerate(columns)}
    for name in names:
        if name not in places:
            raise ProgrammingError(f"there is no column {name!r}", hint=nearest(name, places))
    return [places[name] for name in names]


def batch_of(rows: Sequence[Row], positions: Sequence[int], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Some columns of rows, which hold the engine's values."""
    columns = list(zip(*rows, strict=True))
    arrays = [
        _array(columns[position], field) if rows else pyarrow.array((), field.type)
        for position, field in zip(positions, schema, strict=True)
    ]
    return pyarrow.record_batch(arrays, schema=schema)


def _array(values: Sequence[object], field: pyarrow.Field) -> pyarrow.Array:
    try:
        return pyarrow.array(values, field.type)
    except (OverflowError, pyarrow.ArrowException) as error:
        raise DataError(
            f"column {field.name!r} has a value that is no {field.type}: {error}",
            hint="give a wider type with .schema(...), such as decimal(38,0) for large sums",
        ) from error
