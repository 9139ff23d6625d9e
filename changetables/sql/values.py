"""Lists of constant rows, and the conversion of whole relations to other types."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from ..algebra import Field, Project, Relation, SetOp, Values, column
from ..binding import Place, converted, output, project
from ..expressions import Call, Expression, Literal
from ..literals import float_in_range
from ..types import Type

#: What a SELECT without FROM reads.
ONE_ROW = Values(((),), ())


def constant(expression: Expression) -> Expression:
    """A literal for a literal that is converted silently, so that a list of numbers stays a list of values."""
    if not isinstance(expression, Call) or expression.op != "cast" or not isinstance(expression.args[0], Literal):
        return expression
    value, target = expression.args[0].value, expression.type
    if target.precision is not None or target.length is not None:
        return expression
    if value is None:
        return Literal(None, target)
    if target.kind == "decimal" and isinstance(value, int):
        return Literal(Decimal(value), target)
    if target.kind == "float" and isinstance(value, int | Decimal) and math.isfinite(value):
        return Literal(float_in_range(str(value)), target)
    if target.kind == "timestamp" and isinstance(value, datetime.date):
        return Literal(datetime.datetime(value.year, value.month, value.day), target)
    return Literal(value, target) if expression.args[0].type.kind == target.kind else expression


def constant_rows(columns: Sequence[Sequence[Expression]], place: Place | None) -> list[Relation]:
    """The rows of VALUES: as they are where they are literals; a row with an expression is a SELECT without FROM."""
    names = [f"column{index + 1}" for index in range(len(columns))]
    rows = list(zip(*columns, strict=True))
    literal_rows = [tuple(item.value for item in row if isinstance(item, Literal)) for row in rows]
    constant = [values for values in literal_rows if len(values) == len(columns)]
    parts: list[Relation] = []
    if constant:
        fields = tuple(
            Field(name, items[0].type, any(row[index] is None for row in constant))
            for index, (name, items) in enumerate(zip(names, columns, strict=True))
        )
        parts.append(Values(tuple(constant), fields, place))
    for row, values in zip(rows, literal_rows, strict=True):
        if len(values) != len(columns):
            parts.append(project(replace(ONE_ROW, place=place), zip(names, row, strict=True)))
    return parts


def union_of(parts: Sequence[Relation]) -> Relation:
    """All rows of all parts, as a shallow tree."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return SetOp("union", True, union_of(parts[:middle]), union_of(parts[middle:]))


def in_types(relation: Relation, types: Sequence[Type]) -> Relation:
    """The relation with columns of exactly these types."""
    if [field.type for field in relation.fields] == list(types):
        return relation
    if isinstance(relation, Project):
        outputs = tuple(
            output(made.name, converted(made.expression, type_))
            for made, type_ in zip(relation.outputs, types, strict=True)
        )
        return Project(relation.input, outputs)
    named = (
        (field.name, converted(column(relation, position), type_))
        for position, (field, type_) in enumerate(zip(relation.fields, types, strict=True))
    )
    return project(relation, named)
