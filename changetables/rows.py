"""Rows: from what a user gives (mappings, Python values) to the engine's physical tuples, and back.

`row_codec` generates Python functions for one table. Their source holds positions and fixed names only; column names,
defaults and converters are bound as constants. A value of exactly the right type is recognised inline; anything else
goes to the column's converter, which converts it or says what is wrong with it.
"""

from __future__ import annotations

import datetime
import difflib
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TypeAlias, cast

from .errors import DataError, IntegrityError, InterfaceError, InternalError, ProgrammingError, counted
from .generated import code_of
from .keys import KeyCodec, key_codec
from .numbers import decimal_fit, decimal_value
from .schema import Column, Table
from .types import INT_MAX, INT_MIN, NAN, Row, Type, Value

Converter: TypeAlias = Callable[[object], Value]

#: Made once: json.dumps with options makes a new encoder at every call, which costs more than the encoding.
_encode_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


# --- one value ------------------------------------------------------------------------------------------------------


def coerce(column: Column, value: object, where: str) -> Value:
    """The engine's form of a user's value for this column; `where` names it in errors, as "table.column"."""
    return _converter(column, where)(value)


def to_api(type: Type, value: Value) -> object:
    """What a user sees of the engine's value."""
    if value is None:
        return None
    if type.kind == "json":
        parsed: object = json.loads(cast(str, value))
        return parsed
    if type.kind == "timestamptz":
        return cast(datetime.datetime, value).replace(tzinfo=datetime.UTC)
    return value


def canonical_json(value: object, where: str) -> str:
    """One text per JSON value, so that equal values are equal as text and as keys."""
    try:
        text = _encode_json(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"column {where}: the value cannot be stored as json: {error}",
            hint="use dicts with str keys, lists, str, int, finite float, bool and None",
        ) from error
    return text


def _converter(column: Column, where: str) -> Converter:
    """The converter of one column: gives the engine's form or raises."""
    convert_not_null = _CONVERTERS[column.type.kind](column.type, where)
    nullable = column.nullable

    def convert(value: object) -> Value:
        if value is not None:
            return convert_not_null(value)
        if nullable:
            return None
        raise _null_refused(where)

    return convert


def _null_refused(where: str) -> IntegrityError:
    return IntegrityError(f"column {where} may not be NULL", hint="give a value")


#: What to do about most values of another type.
_CONVERSIONS = {
    "int": "convert it with int()",
    "float": "convert it with float()",
    "Decimal or int": "convert it with Decimal()",
    "str": "convert it with str()",
}


def _mismatch(where: str, value: object, expected: str, hint: str = "") -> DataError:
    """`hint`: what to do about this value; without one, what to do about any."""
    message = f"column {where}: expected {expected}, got {type(value).__name__}"
    return DataError(message, hint=hint or _CONVERSIONS.get(expected) or f"give a value of type {expected}")


def _index(value: object) -> int | None:
    """The exact int of an int, of a subclass or of something like numpy.int64; None for anything else and for bool."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else int.__index__(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _int_converter(_: Type, where: str) -> Converter:
    def convert(value: object) -> Value:
        number = _index(value)
        if number is None:
            raise _mismatch(where, value, "int")
        if not INT_MIN <= number <= INT_MAX:
            raise DataError(f"column {where}: integer out of range", hint="integers have 64 bits; use a decimal column")
        return number

    return convert


def _float_converter(_: Type, where: str) -> Converter:
    def convert(value: object) -> Value:
        number: float
        if isinstance(value, float):
            number = float.__float__(value)
        else:
            whole = _index(value)
            if whole is None:
                raise _mismatch(where, value, "float")
            try:
                number = float(whole)
            except OverflowError:
                raise DataError(f"column {where}: value out of range", hint="it is above the largest float") from None
        return number if number == number else NAN

    return convert


def _decimal_converter(column_type: Type, where: str) -> Converter:
    precision, scale = column_type.precision, column_type.scale or 0

    def number_of(value: object) -> Decimal:
        if isinstance(value, Decimal):
            return Decimal(value)
        whole = _index(value)
        if whole is None:
            hint = "use Decimal(str(x)): a float is not exact" if isinstance(value, float) else ""
            raise _mismatch(where, value, "Decimal or int", hint)
        return Decimal(whole)

    def convert(value: object) -> Value:
        number = value if type(value) is Decimal else number_of(value)
        try:
            return decimal_value(number) if precision is None else decimal_fit(number, precision, scale)
        except DataError as error:
            raise DataError(f"column {where}: {error.message}", hint=error.hint) from None

    return convert


def _str_converter(column_type: Type, where: str) -> Converter:
    length, padded = column_type.length, column_type.padded

    def convert(value: object) -> Value:
        if not isinstance(value, str):
            raise _mismatch(where, value, "str", "decode it first" if isinstance(value, bytes | bytearray) else "")
        # str(value) would call an overridden __str__: for an Enum that gives its name instead of its text.
        text = value if type(value) is str else str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"column {where}: the text is not valid Unicode: {error}",
                hint="remove the lone surrogates, or keep it as bytes",
            ) from error
        if padded:
            text = text.rstrip(" ")
        if length is None or len(text) <= length:
            return text
        # As in PostgreSQL, blanks beyond the length are cut silently.
        if text[length:].strip(" "):
            raise DataError(
                f"column {where}: value too long: {len(text)} characters, the limit is {length}",
                hint="shorten it, or declare the column as text",
            )
        return text[:length]

    return convert


def _bytes_converter(_: Type, where: str) -> Converter:
    def convert(value: object) -> Value:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return memoryview(value).tobytes()
        raise _mismatch(where, value, "bytes", "encode it first" if isinstance(value, str) else "")

    return convert


def _bool_converter(_: Type, where: str) -> Converter:
    def convert(value: object) -> Value:
        if isinstance(value, bool):
            return value
        raise _mismatch(where, value, "bool", "convert it with bool()")

    return convert


def _date_converter(_: Type, where: str) -> Converter:
    def convert(value: object) -> Value:
        if isinstance(value, datetime.datetime):
            raise _mismatch(where, value, "date", "use its .date()")
        if isinstance(value, datetime.date):
            return datetime.date(value.year, value.month, value.day)
        hint = "use datetime.date.fromisoformat()" if isinstance(value, str) else ""
        raise _mismatch(where, value, "date", hint)

    return convert


def _timestamp_converter(column_type: Type, where: str) -> Converter:
    def convert(value: object) -> Value:
        if isinstance(value, datetime.datetime):
            return _naive_utc(value, where)
        if isinstance(value, datetime.date):
            return datetime.datetime(value.year, value.month, value.day)
        hint = "use datetime.datetime.fromisoformat()" if isinstance(value, str) else ""
        raise _mismatch(where, value, f"datetime ({column_type})", hint)

    return convert


def _naive_utc(value: datetime.datetime, where: str) -> datetime.datetime:
    """Aware datetimes in UTC, without their zone. A subclass becomes a plain datetime."""
    if value.tzinfo is datetime.UTC and type(value) is datetime.datetime:
        return value.replace(tzinfo=None)
    try:
        if value.tzinfo is not None and value.utcoffset() is not None:
            value = value.astimezone(datetime.UTC)
        return datetime.datetime(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
        )
    except (OverflowError, ValueError, TypeError) as error:
        # TypeError and ValueError: pandas.NaT is a datetime without a year.
        raise DataError(f"column {where}: timestamp out of range: {error}", hint="years go from 1 to 9999") from error


def _json_converter(_: Type, where: str) -> Converter:
    return lambda value: canonical_json(value, where)


_CONVERTERS: dict[str, Callable[[Type, str], Converter]] = {
    "int": _int_converter,
    "float": _float_converter,
    "decimal": _decimal_converter,
    "str": _str_converter,
    "bytes": _bytes_converter,
    "bool": _bool_converter,
    "date": _date_converter,
    "timestamp": _timestamp_converter,
    "timestamptz": _timestamp_converter,
    "json": _json_converter,
}


# --- generated functions --------------------------------------------------------------------------------------------

#: kind -> the test, for the value in variable {v}, that it is in the engine's form already. Kinds without a test
#: (decimal, json) always go to their converter. Text outside ASCII is left to it too: it may hold lone surrogates.
_TESTS = {
    "int": f"type({{v}}) is int and {INT_MIN} <= {{v}} <= {INT_MAX}",
    "float": "type({v}) is float and {v} == {v}",
    "str": "type({v}) is str and {v}.isascii()",
    "bytes": "type({v}) is bytes",
    "bool": "type({v}) is bool",
    "date": "type({v}) is date",
    "timestamp": "type({v}) is datetime and {v}.tzinfo is None",
    "timestamptz": "type({v}) is datetime and {v}.tzinfo is None",
}
_NAMESPACE: dict[str, object] = {"date": datetime.date, "datetime": datetime.datetime, "MISSING": object()}


def _test(position: int, column: Column) -> str:
    """The test that the variable v<position> is in the engine's form already; empty if only the converter knows."""
    variable = f"v{position}"
    test = _TESTS.get(column.type.kind)
    if test is None:
        return ""
    test = test.format(v=variable)
    if column.type.length is not None:
        test += f" and len({variable}) <= {column.type.length:d}"
    if column.type.padded:
        test += f" and {variable}[-1:] != ' '"
    if column.nullable:
        test += f" or {variable} is None"
    return test


def _conversion(position: int, column: Column) -> str:
    """The expression for the engine's form of the variable v<position>."""
    test = _test(position, column)
    return f"v{position} if {test} else C{position}(v{position})" if test else f"C{position}(v{position})"


def _default(position: int, column: Column) -> str:
    """The expression for a column that was not given: its default, or a call that raises."""
    return f"R{position}()" if _is_required(column) else f"D{position}"


def _is_required(column: Column) -> bool:
    return not column.nullable and column.default is None


def _tuple_text(items: list[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def _row_source(columns: tuple[Column, ...]) -> str:
    """`row(mapping)`: one way for mappings that name every column, one for those that leave some to their defaults."""
    named = [position for position, column in enumerate(columns) if not (column.dropped or column.hidden)]
    conversions = {position: _conversion(position, columns[position]) for position in named}
    complete = [f"({conversions[p]})" if p in conversions else "None" for p in range(len(columns))]
    partial = [
        f"({_default(p, columns[p])} if v{p} is MISSING else {conversions[p]})" if p in conversions else "None"
        for p in range(len(columns))
    ]
    given = "".join(f" - (v{p} is MISSING)" for p in named)
    lines = [
        "def row(mapping):",
        "    if type(mapping) is not dict: mapping = as_dict(mapping)",
        f"    if len(mapping) == {len(named)}:",
        "        try:",
        *(f"            v{p} = mapping[N{p}]" for p in named),
        "            pass",
        "        except KeyError:",
        "            raise unknown(mapping) from None",
        f"        return {_tuple_text(complete)}",
        "    get = mapping.get",
        *(f"    v{p} = get(N{p}, MISSING)" for p in named),
        f"    if len(mapping) != {len(named)}{given}: raise unknown(mapping)",
        f"    return {_tuple_text(partial)}",
    ]
    return "\n".join(lines)


def _rows_source(columns: tuple[Column, ...]) -> str:
    """`rows(mappings)`: `row` for each, written out for dicts that name every column: a call less per row, and values
    that are in the engine's form already are taken over as one tuple."""
    conversions = [_conversion(position, column) for position, column in enumerate(columns)]
    tests = [_test(position, column) for position, column in enumerate(columns)]
    made = f"add({_tuple_text([f'({conversion})' for conversion in conversions])})"
    if all(tests):
        made = f"add(values) if {' and '.join(f'({test})' for test in tests)} else {made}"
    lines = [
        "def rows(mappings):",
        "    made = []",
        "    add = made.append",
        "    for mapping in mappings:",
        f"        if type(mapping) is not dict or len(mapping) != {len(columns)}:",
        "            add(row(mapping))",
        "            continue",
        "        try:",
        "            values = values_of(mapping)",
        "        except KeyError:",
        "            raise unknown(mapping) from None",
        f"        {''.join(f'v{position}, ' for position in range(len(columns)))}= values",
        f"        {made}",
        "    return made",
    ]
    return "\n".join(lines)


def _checked_source(columns: tuple[Column, ...]) -> str:
    """`checked(rows)`: rows that came by position from elsewhere, mostly in the engine's form already."""
    conversions = [f"({_conversion(position, column)})" for position, column in enumerate(columns)]
    tests = [_test(position, column) for position, column in enumerate(columns)]
    made = f"add({_tuple_text(conversions)})"
    if all(tests):
        made = f"add(values) if {' and '.join(f'({test})' for test in tests)} else {made}"
    lines = [
        "def checked(rows):",
        "    made = []",
        "    add = made.append",
        "    for values in rows:",
        f"        if type(values) is not tuple or len(values) != {len(columns)}: raise no_row()",
        f"        {''.join(f'v{position}, ' for position in range(len(columns)))}= values",
        f"        {made}",
        "    return made",
    ]
    return "\n".join(lines)


def _quick_source(position: int, column: Column) -> str:
    """`quick(value)`: the converter of one column behind the inline test of `row`."""
    return f"def quick(v{position}):\n    return {_conversion(position, column)}"


def _key_values_source(columns: tuple[Column, ...], key: tuple[int, ...]) -> str:
    """`key_values(values)`: the engine's form of a key given in key order."""
    variables = "".join(f"v{position}, " for position in key)
    conversions = _tuple_text([f"({_conversion(position, columns[position])})" for position in key])
    return f"def key_values(values):\n    {variables}= values\n    return {conversions}"


def _compiled(source: str, name: str, namespace: dict[str, object]) -> object:
    exec(code_of(source, "<viewtide row codec>"), namespace)
    return namespace[name]


class RowCodec:
    """What turns a user's values into rows and keys of one table.

    `row(mapping)`: the full physical tuple; dropped and hidden columns are None, columns that are not named get their
    default. `rows(mappings)`: the same for each.
    `key(row)`: the bytes of the row's primary key, DataError if they are too long. `keys_of(rows)`: the same for each.
    `identity(row)`: what tells it apart from other rows as well as that does; None: there is nothing simpler.
    """

    __slots__ = (
        "_columns",
        "_converters",
        "_key_names",
        "_key_values",
        "_namespace",
        "_scalar_type",
        "_tails",
        "checked",
        "has_float",
        "has_row_id",
        "identity",
        "key",
        "keys",
        "keys_of",
        "row",
        "rows",
        "table",
        "takes_positions",
    )

    row: Callable[[Mapping[str, object]], Row]
    rows: Callable[[Iterable[Mapping[str, object]]], list[Row]]
    key: Callable[[Row], bytes]
    keys_of: Callable[[list[Row]], list[bytes]]

    def __init__(self, table: Table) -> None:
        # A key column refuses NULL, whatever it was declared as.
        columns = tuple(
            replace(column, nullable=column.nullable and position not in table.key)
            for position, column in enumerate(table.columns)
        )
        self.table = table
        self.has_row_id = columns[table.key[0]].hidden
        self.keys: KeyCodec = key_codec(table.id, [(columns[position].type, False) for position in table.key])
        self.key = self.keys.row_encoder(table.key, checked=True)
        self.keys_of = self.keys.rows_encoder(table.key)
        self.identity: Callable[[Row], object] | None = None
        if all(columns[position].type.kind in _IDENTITIES for position in table.key):
            self.identity = operator.itemgetter(*table.key)
        #: Rows that come back from bytes must get the one NaN again. Dropped columns count, because whole rows are
        #: compared.
        self.has_float: bool = any(column.type.kind == "float" for column in columns)
        self._tails = tuple(tuple(_older_value(column) for column in columns[n:]) for n in range(len(columns)))
        self._key_names = tuple(columns[position].name for position in table.key)
        self._scalar_type = _scalar_type(columns, table.key)

        self._converters: dict[object, tuple[int, Converter]] = {}
        namespace: dict[str, object] = {**_NAMESPACE, "as_dict": self._as_dict, "unknown": self._unknown}
        self._columns, self._namespace = columns, namespace
        #: Rows by position that nobody has looked at yet: what is wrong with them is raised as by `rows`. Compiled
        #: when it is first asked for.
        self.checked: Callable[[Iterable[object]], list[Row]] = self._check_first
        #: Whether `checked` is for this table: all its columns are there to be seen, and none has another form at the
        #: API than inside.
        self.takes_positions = not any(
            column.dropped or column.hidden or column.type.kind == "json" for column in columns
        )
        for position, column in enumerate(columns):
            if column.dropped:
                continue
            where = f"{table.name}.{column.name}"
            namespace[f"N{position}"] = column.name
            namespace[f"D{position}"] = column.default
            namespace[f"R{position}"] = _required(where)
            namespace[f"C{position}"] = _converter(column, where)
            if not column.hidden:
                quick = _compiled(_quick_source(position, column), "quick", namespace)
                self._converters[column.name] = (position, cast(Converter, quick))
        self.row = cast("Callable[[Mapping[str, object]], Row]", _compiled(_row_source(columns), "row", namespace))
        self.rows = self._rows_function(columns, namespace)
        self._key_values = cast(
            "Callable[[tuple[object, ...]], tuple[Value, ...]]",
            _compiled(_key_values_source(columns, table.key), "key_values", namespace),
        )

    def _rows_function(
        self, columns: tuple[Column, ...], namespace: dict[str, object]
    ) -> Callable[[Iterable[Mapping[str, object]]], list[Row]]:
        if any(column.dropped or column.hidden for column in columns):
            return lambda mappings: [self.row(mapping) for mapping in mappings]
        names = [column.name for column in columns]
        namespace["values_of"] = operator.itemgetter(*names) if len(names) > 1 else lambda mapping: (mapping[names[0]],)
        return cast(
            "Callable[[Iterable[Mapping[str, object]]], list[Row]]",
            _compiled(_rows_source(columns), "rows", namespace),
        )

    def _check_first(self, rows: Iterable[object]) -> list[Row]:
        self._namespace["no_row"] = self._no_row
        made = _compiled(_checked_source(self._columns), "checked", self._namespace)
        self.checked = cast("Callable[[Iterable[object]], list[Row]]", made)
        return self.checked(rows)

    def _no_row(self) -> InterfaceError:
        return InterfaceError(
            f"a row of table {self.table.name} has {counted(len(self._columns), 'value')}",
            hint="give the columns in the order of the table, as a tuple",
        )

    def changes(self, mapping: Mapping[str, object]) -> dict[int, Value]:
        """Position -> new value, for an update."""
        given = mapping if type(mapping) is dict else self._as_dict(mapping)
        result: dict[int, Value] = {}
        converters = self._converters
        for name, value in given.items():
            found = converters.get(name)
            if found is None:
                raise self._unknown(given)
            position, convert = found
            result[position] = convert(value)
        return result

    def key_of(self, key: object) -> bytes:
        """The key bytes of a user's key: a scalar, a tuple or list in key order, or a mapping of the key columns."""
        if self.has_row_id:
            raise self._no_key()
        values = (key,) if type(key) is self._scalar_type else self._key_tuple(key)
        return self.keys.encode_checked(self._key_values(values))

    def prefix_of_key(self, key: object) -> bytes:
        """A bound of a scan: like `key_of`, for a whole key or the first values of one."""
        if self.has_row_id:
            raise self._no_key()
        values = self._first_key_values(key)
        converters = [self._converters[name][1] for name in self._key_names]
        return self.keys.encode_prefix(
            tuple(convert(value) for convert, value in zip(converters, values, strict=False))
        )

    def converter(self, name: str) -> Converter:
        """What turns a user's value of one column into the engine's form."""
        return self._converters[name][1]

    def _no_key(self) -> ProgrammingError:
        return ProgrammingError(
            f"table {self.table.name!r} has no primary key, so no row of it can be named",
            hint="use db.sql() with a WHERE, or give the table a key",
        )

    def pad(self, row: Row) -> Row:
        """A row that was stored before columns were added, with their defaults."""
        missing_from = len(row)
        tails = self._tails
        if missing_from == len(tails):
            return row
        if missing_from > len(tails):
            raise InternalError(f"a row of table {self.table.name} has {missing_from} columns, expected {len(tails)}")
        return row + tails[missing_from]

    def _first_key_values(self, key: object) -> tuple[object, ...]:
        names = self._key_names
        if isinstance(key, Mapping) and not self._is_json_scalar():
            return self._key_of_mapping(key, names[: len(key)])
        if isinstance(key, tuple) or (isinstance(key, list) and not self._is_json_scalar()):
            if len(key) > len(names):
                raise InterfaceError(
                    f"the key of table {self.table.name} has {counted(len(names), 'column')}, "
                    f"got {counted(len(key), 'value')}",
                    hint=f"give at most ({', '.join(names)})",
                )
            return tuple(key)
        return (key,)

    def _key_tuple(self, key: object) -> tuple[object, ...]:
        """The values of a key in any accepted form."""
        names = self._key_names
        if type(key) is tuple and len(key) == len(names):
            return key
        if self._is_json_scalar():
            # A list or a mapping is the value itself here.
            return (key,)
        if isinstance(key, Mapping):
            return self._key_of_mapping(key, names)
        if not isinstance(key, tuple | list):
            if len(names) == 1:
                return (key,)
            raise InterfaceError(
                f"the key of table {self.table.name} has {counted(len(names), 'column')}, got {type(key).__name__}",
                hint=f"give a tuple ({', '.join(names)})",
            )
        if len(key) != len(names):
            raise InterfaceError(
                f"the key of table {self.table.name} has {counted(len(names), 'column')}, "
                f"got {counted(len(key), 'value')}",
                hint=f"give ({', '.join(names)})",
            )
        return tuple(key)

    def _key_of_mapping(self, key: Mapping[object, object], names: tuple[str, ...]) -> tuple[object, ...]:
        """The values of exactly these key columns, in their order."""
        for name in key:
            if name not in self._key_names:
                raise ProgrammingError(
                    f"column {name!r} is not in the key of table {self.table.name}",
                    hint=f"the key is {', '.join(self._key_names)}",
                )
        for name in names:
            if name not in key:
                raise InterfaceError(
                    f"the key of table {self.table.name} lacks column {name}", hint="give all key columns"
                )
        return tuple(key[name] for name in names)

    def _is_json_scalar(self) -> bool:
        return len(self.table.key) == 1 and self.table.columns[self.table.key[0]].type.kind == "json"

    def _as_dict(self, mapping: object) -> dict[object, object]:
        if isinstance(mapping, Mapping):
            return dict(mapping)
        raise InterfaceError(
            f"a row of table {self.table.name} must be a mapping, got {type(mapping).__name__}",
            hint='give column names and values, for example {"id": 1}',
        )

    def _unknown(self, mapping: Mapping[object, object]) -> ProgrammingError:
        """The error for the first name that is no column."""
        name = next(name for name in mapping if name not in self._converters)
        names = [str(known) for known in self._converters]
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its columns are {', '.join(names)}"
        return ProgrammingError(f"table {self.table.name} has no column {name!r}", hint=hint)


def row_codec(table: Table) -> RowCodec:
    """The codec of this state of the table; a changed table needs a new one."""
    return RowCodec(table)


#: Kinds whose values are equal just if their keys are, which are never too long.
_IDENTITIES = frozenset({"int", "bool", "date", "timestamp", "timestamptz"})


def _older_value(column: Column) -> Value:
    """Also of a dropped column: a snapshot that is older than the drop still shows it."""
    return column.default


def _required(where: str) -> Callable[[], Value]:
    def required() -> Value:
        raise IntegrityError(f"column {where} may not be NULL and has no default", hint="give a value")

    return required


def _scalar_type(columns: tuple[Column, ...], key: tuple[int, ...]) -> type | None:
    """The Python type of a one-column key that cannot be mistaken for a tuple or mapping of key columns."""
    return _SCALARS.get(columns[key[0]].type.kind) if len(key) == 1 else None


_SCALARS: dict[str, type] = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "str": str,
    "bytes": bytes,
    "bool": bool,
    "date": datetime.date,
    "timestamp": datetime.datetime,
    "timestamptz": datetime.datetime,
}
