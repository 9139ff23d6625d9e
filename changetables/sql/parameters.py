"""The values of a statement's parameters: `?` by position, `:name` by name. Each becomes a literal of the statement."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias

from .. import coercion
from ..errors import DataError, ProgrammingError
from ..expressions import Literal
from ..rows import coerce
from ..schema import Column
from ..types import BOOL, BYTES, DATE, DECIMAL, FLOAT, INT, INT_MAX, INT_MIN, JSON, STR, TIMESTAMP, TIMESTAMPTZ, Type
from .text import SqlText

ParameterValues: TypeAlias = Sequence[object] | Mapping[str, object]


class Parameters:
    """Values by key: numbers from 0 for a sequence, names for a mapping."""

    def __init__(self, values: ParameterValues = ()) -> None:
        if isinstance(values, str | bytes | bytearray) or not isinstance(values, Sequence | Mapping):
            raise ProgrammingError(
                f"parameters must be a list or a mapping, not {type(values).__name__}", hint="write params=[value]"
            )
        self._named = isinstance(values, Mapping)
        self._values: dict[int | str, object] = {}
        if isinstance(values, Mapping):
            self._values.update(values)
        else:
            self._values.update(enumerate(values))

    def check(self, source: SqlText) -> None:
        """Refuses values that the text does not ask for, and a text that asks for more: once for a whole text."""
        keys = dict(reversed(source.parameters))  # Of a name that stands twice, the first offset.
        numbers = [key for key in keys if isinstance(key, int)]
        names = [key for key in keys if isinstance(key, str)]
        if numbers and names:
            place = source.place_of_offset(keys[names[-1]])
            raise source.wrong("both ? and :name parameters", place, hint="use one of the two")
        if numbers or (not names and not self._named):
            self._check_count(source, numbers)
        else:
            self._check_names(source, keys, names)

    def _check_count(self, source: SqlText, numbers: list[int]) -> None:
        if self._named:
            raise source.wrong("a mapping for ? parameters", None, hint="pass a list, or write :name")
        if len(numbers) != len(self._values):
            plural = "" if len(numbers) == 1 else "s"
            message = f"the text has {len(numbers)} parameter{plural}, values given: {len(self._values)}"
            hint = "give one value for each ?" if numbers else "parameters are written ? or :name"
            raise source.wrong(message, None, hint=hint)

    def _check_names(self, source: SqlText, offsets: Mapping[int | str, int], names: list[str]) -> None:
        if not self._named:
            place = source.place_of_offset(offsets[names[-1]])
            raise source.wrong(f"parameter :{names[-1]} needs a mapping", place, hint=f'pass {{"{names[-1]}": value}}')
        for name in reversed(names):
            if name not in self._values:
                raise source.wrong(
                    f"no value for parameter :{name}",
                    source.place_of_offset(offsets[name]),
                    hint=f'pass {{"{name}": value}}',
                )
        unused = sorted(map(str, self._values.keys() - set(names)))
        if unused:
            raise source.wrong(f"the text has no parameter :{unused[0]}", None, hint="leave its value out")

    def literal(self, key: int | str) -> Literal:
        """The literal that stands for the parameter. A text takes the type of what it meets, as a quoted one does."""
        what = f"parameter {key + 1}" if isinstance(key, int) else f"parameter :{key}"
        if key not in self._values:
            raise ProgrammingError(f"no value for {what}", hint="give one value for each parameter")
        value = self._values[key]
        if value is None:
            return coercion.unknown(None)
        type_ = _type_of(value, what)
        try:
            converted = coerce(Column(what, type_), value, what)
        except DataError as error:
            raise DataError(error.message.removeprefix("column "), hint=error.hint) from None
        if type_ == STR:
            assert isinstance(converted, str), "a text stays a text"
            return coercion.unknown(converted)
        return Literal(converted, type_)


def _type_of(value: object, what: str) -> Type:
    if isinstance(value, datetime.datetime):
        return TIMESTAMP if value.tzinfo is None else TIMESTAMPTZ
    for kind, type_ in _TYPES:
        if isinstance(value, kind):
            return type_
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # An int, or something like numpy.int64.
    except TypeError:
        raise ProgrammingError(
            f"{what} is a {type(value).__name__}, which is no SQL value",
            hint="give a number, str, bytes, bool, date, datetime, list, dict or None",
        ) from None
    return INT if INT_MIN <= number <= INT_MAX else DECIMAL


_TYPES: tuple[tuple[type | tuple[type, ...], Type], ...] = (
    (bool, BOOL),
    (float, FLOAT),
    (Decimal, DECIMAL),
    (str, STR),
    ((bytes, bytearray, memoryview), BYTES),
    (datetime.date, DATE),
    ((dict, list), JSON),
)
