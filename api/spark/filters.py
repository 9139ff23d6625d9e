"""Filters that Spark hands to the reader: those that are taken are applied here, and not by Spark any more.

Taken are comparisons of a column with a value where Arrow and Spark mean the same. Floats are left to Spark, where NaN
equals NaN, and so are decimals and timestamps.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow
from pyarrow import compute
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from ..changetables.errors import DataError
from ..changetables.keys import prefix_stop
from ..ltm.tables import TableRows
from ..stored import KeyRange
from .columns import Columns, spark_type

_KINDS: dict[str, type] = {"int": int, "str": str, "bool": bool, "bytes": bytes, "date": datetime.date}
_COMPARED: dict[type, tuple[str, Callable[[pyarrow.Array, pyarrow.Scalar], pyarrow.Array]]] = {
    spark.EqualTo: ("=", compute.equal),
    spark.GreaterThan: (">", compute.greater),
    spark.GreaterThanOrEqual: (">=", compute.greater_equal),
    spark.LessThan: ("<", compute.less),
    spark.LessThanOrEqual: ("<=", compute.less_equal),
}
_COMPUTED = dict(_COMPARED.values())
IN, IS_NULL, IS_NOT_NULL = "in", "is null", "is not null"


class Condition(NamedTuple):
    column: str
    operator: str
    value: object = None


def taken(filters: Sequence[spark.Filter], columns: Columns, schema: StructType) -> dict[int, Condition]:
    """Those that are applied here, by their number."""
    natural = dict(columns)
    types = {
        each.name: natural[each.name].kind
        for each in schema.fields
        if each.name in natural and each.dataType == spark_type(natural[each.name])
    }
    found = {number: _condition(each, types) for number, each in enumerate(filters)}
    return {number: condition for number, condition in found.items() if condition is not None}


def _condition(filter_: spark.Filter, types: dict[str, str]) -> Condition | None:
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(path) != 1 or path[0] not in types:
        return None
    name, kind = path[0], _KINDS.get(types[path[0]])
    if isinstance(filter_, spark.IsNull):
        return Condition(name, IS_NULL)
    if isinstance(filter_, spark.IsNotNull):
        return Condition(name, IS_NOT_NULL)
    if isinstance(filter_, spark.In):
        values = tuple(filter_.value)
        return Condition(name, IN, values) if values and all(type(value) is kind for value in values) else None
    if type(filter_) in _COMPARED and kind is not None:
        value: object = filter_.value  # type: ignore[attr-defined]  # each of them has one
        return Condition(name, _COMPARED[type(filter_)][0], value) if type(value) is kind else None
    return None


def filtered(batch: pyarrow.RecordBatch, conditions: Sequence[Condition]) -> pyarrow.RecordBatch:
    for condition in conditions:
        column = batch.column(condition.column)
        batch = batch.filter(_mask(column, condition))
    return batch


def _mask(column: pyarrow.Array, condition: Condition) -> pyarrow.Array:
    match condition.operator:
        case "is null":
            return compute.is_null(column)
        case "is not null":
            return compute.is_valid(column)
        case "in":
            return compute.is_in(column, value_set=pyarrow.array(condition.value, column.type))
    return _COMPUTED[condition.operator](column, pyarrow.scalar(condition.value, column.type))


def narrowed(whole: KeyRange, rows: TableRows, conditions: Sequence[Condition]) -> KeyRange:
    """The keys that conditions on the first column of a table's key leave; it may be empty."""
    start, stop = whole
    if rows.codec.has_row_id:
        return whole
    first = rows.table.columns[rows.table.key[0]].name
    many = len(rows.table.key) > 1
    for condition in conditions:
        if condition.column != first or condition.operator in (IS_NULL, IS_NOT_NULL):
            continue
        values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
        try:
            prefixes = [rows.codec.prefix_of_key((value,) if many else value) for value in values]
        except DataError:
            continue  # no key is like it, but it can be compared
        if condition.operator in ("=", ">=", IN):
            start = max(start, min(prefixes))
        if condition.operator == ">":
            start = max(start, prefix_stop(prefixes[0]))
        if condition.operator in ("=", "<=", IN):
            stop = min(stop, prefix_stop(max(prefixes)))
        if condition.operator == "<":
            stop = min(stop, prefixes[0])
    return KeyRange(start, max(start, stop))
