"""Results as Arrow tables and pandas frames. pyarrow is optional: the extra `batch` brings it."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from .changetables.errors import InterfaceError
from .changetables.types import Type

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import DataType
    from pyarrow import Table as ArrowTable

__all__ = ["ArrowTable", "DataFrame", "to_arrow"]


def to_arrow(names: Sequence[str], types: Sequence[Type], rows: Sequence[Sequence[object]]) -> ArrowTable:
    arrow = _pyarrow()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [arrow.array(values, type=_arrow_type(arrow, type_)) for values, type_ in zip(columns, types, strict=True)]
    return arrow.table(arrays, names=list(names))


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        raise InterfaceError("pyarrow is not installed", hint="pip install 'viewtide[batch]'") from error
    return pyarrow  # type: ignore[no-any-return]  # it has no types of its own


def _arrow_type(arrow: ModuleType, type_: Type) -> DataType | None:
    match type_.kind:
        case "float":
            return arrow.float64()
        case "str":
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
    # Sums of ints may exceed 64 bits, decimals have no fixed scale, json has any shape: Arrow finds the type.
    return None
