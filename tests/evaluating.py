"""Runs the columns evaluator beside the row evaluator, wherever a plan is run, and compares what they give.

Contributions must be the same to the letter: keys, key values and deltas as they are written, so that 1.0 is not 1.00
and -0.0 is not 0.0. So must be errors: both evaluators blame the same row with the same words.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias
from unittest import mock

import pyarrow as pa

from viewtide.changetables.change_table import Change
from viewtide.changetables.errors import DataError
from viewtide.changetables.plan import Answers, Asking, Contribution, LookUp, ViewPlan
from viewtide.changetables.schema import Table
from viewtide.changetables.types import Row, Type

ARROW_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "json": pa.string(),
    "bytes": pa.binary(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}

#: What an evaluator gave: contributions, or the words of its error.
Outcome: TypeAlias = list[Contribution] | DataError


@dataclass
class Seen:
    """What was compared, so that a test can prove that it tested something. `gave_up`: reasons of the columns
    evaluator to leave a batch to the rows."""

    batches: int = 0
    contributions: int = 0
    errors: int = 0
    arrow_batches: int = 0
    gave_up: list[str] = field(default_factory=list)


@contextmanager
def both_evaluators() -> Iterator[Seen]:
    """While it is open, every propagation and every first computation runs on both evaluators."""
    seen = Seen()
    propagate, contribute_from = ViewPlan.propagate, ViewPlan.contribute_from

    def compared_propagate(self: ViewPlan, changes: Mapping[str, Sequence[Change]]) -> Asking[list[Contribution]]:
        return compared(self, seen, propagate(self, changes), propagate(self, changes, "columns"))

    def compared_contribute(self: ViewPlan, part: int, source: int, rows: Sequence[Row]) -> Asking[list[Contribution]]:
        runs = [contribute_from(self, part, source, rows), contribute_from(self, part, source, rows, "columns")]
        table = self.tables[self.kept.parts[part].graph.sources[source].table]
        columns = arrow_table(table, rows)
        if columns is not None:
            seen.arrow_batches += 1
            runs.append(self.contribute_columns(part, source, columns, "columns"))
            runs.append(self.contribute_columns(part, source, columns, "rows"))
        return compared(self, seen, *runs)

    with (
        mock.patch.object(ViewPlan, "propagate", compared_propagate),
        mock.patch.object(ViewPlan, "contribute_from", compared_contribute),
    ):
        yield seen


def compared(plan: ViewPlan, seen: Seen, *runs: Asking[list[Contribution]]) -> Asking[list[Contribution]]:
    outcomes = []
    for run in runs:
        outcomes.append((yield from outcome_of(run)))
    if plan._evaluators.gave_up_reason:
        seen.gave_up.append(plan._evaluators.gave_up_reason)
        plan._evaluators.gave_up_reason = ""
    first, *others = outcomes
    for other in others:
        assert written(other) == written(first)
    seen.batches += 1
    if isinstance(first, DataError):
        seen.errors += 1
        raise first
    seen.contributions += len(first)
    return first


def outcome_of(asking: Asking[list[Contribution]]) -> Generator[list[LookUp], Answers, Outcome]:
    try:
        return (yield from asking)
    except DataError as error:
        return error


def written(outcome: Outcome) -> object:
    if isinstance(outcome, DataError):
        return str(outcome)
    return sorted((item.key, repr(item.key_values), repr(item.delta)) for item in outcome)


def arrow_table(table: Table, rows: Sequence[Row]) -> pa.Table | None:
    """The rows as columns; None if Arrow has no type for what they hold."""
    arrays = []
    for place, column in enumerate(table.columns):
        values = [row[place] for row in rows]
        arrow_type = _arrow_type(column.type, values)
        if arrow_type is None:
            return None
        arrays.append(pa.array(values, arrow_type))
    names = [f"{place}" for place in range(len(arrays))]
    return pa.table(arrays, names=names) if arrays else None


def _arrow_type(type_: Type, values: Sequence[object]) -> pa.DataType | None:
    if type_.kind != "decimal":
        fits = type_.kind != "int" or all(value is None or -(2**63) <= value < 2**63 for value in values)  # type: ignore[operator]
        return ARROW_TYPES[type_.kind] if fits else None
    numbers = [value for value in values if isinstance(value, Decimal)]
    scales = {value.as_tuple().exponent for value in numbers}
    if len(scales) > 1 or not all(isinstance(scale, int) for scale in scales):
        return None
    scale = -int(scales.pop()) if scales else type_.scale or 0
    if type_.precision is not None and scale != type_.scale:
        return None
    digits = max([type_.precision or 1, scale, *(len(value.as_tuple().digits) for value in numbers)])
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale) if digits <= 76 else None
