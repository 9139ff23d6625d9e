"""Results as Arrow tables and pandas frames. pyarrow is optional: the extra `batch` brings it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from .changetables.errors import DataError, InterfaceError
from .changetables.types import INT_MAX, INT_MIN, Type

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Array, DataType
    from pyarrow import Table as ArrowTable

__all__ = ["ArrowTable", "DataFrame", "to_arrow", "to_pandas"]


def to_arrow(names: Sequence[str], types: Sequence[Type], rows: Sequence[Sequence[object]]) -> ArrowTable:
    arrow = _pyarrow()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [_array(arrow, *column) for column in zip(names, types, columns, strict=True)]
    return arrow.table(arrays, names=list(names))


def to_pandas(table: ArrowTable) -> DataFrame:
    try:
        return table.to_pandas()
    except ImportError as error:
        raise InterfaceError("pandas is not installed", hint="pip install pandas") from error


def _array(arrow: ModuleType, name: str, type_: Type, values: Sequence[object]) -> Array:
    if type_.kind == "json":
        # Any shape, also several in one column: as text.
        values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    try:
        return arrow.array(values, type=_arrow_type(arrow, type_, values))
    except (OverflowError, arrow.ArrowException) as error:
        raise DataError(f"column {name!r} does not fit an Arrow type: {error}") from error


def _pyarrow() -> ModuleType:
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
    # Decimals have no fixed scale: Arrow finds one that fits all.
    return None
