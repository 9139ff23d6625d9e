"""Files of rows: CSV, Parquet and JSON lines, read in chunks and written in pages.

| format | NULL                       | values                                                                     |
|--------|----------------------------|----------------------------------------------------------------------------|
| csv    | an empty field, not quoted | texts as SQL writes and reads them; the first line has the names           |
| parquet| NULL                       | Arrow types; a decimal without a scale and json are text                   |
| jsonl  | null, or left out          | one object a line; what JSON has no form for is text as SQL writes it      |
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, TypeAlias

from .arrow import csv_batches, csv_columns, parquet_batches, parquet_columns, parquet_writer, texts_read
from .bulk import CHUNK_ROWS, Rows, placed
from .changetables.casts import bytes_text, decimal_text, float_text
from .changetables.errors import DataError, InterfaceError, OperationalError, ProgrammingError
from .changetables.schema import Table
from .changetables.types import BOOL, DATE, DECIMAL, FLOAT, INT, JSON, STR, TIMESTAMP, TIMESTAMPTZ, Type
from .names import nearest

if TYPE_CHECKING:
    from .arrow import RecordBatch

Pages: TypeAlias = Iterable[Sequence[tuple[object, ...]]]

CSV, PARQUET, JSON_LINES = "csv", "parquet", "jsonl"
FORMATS = (CSV, PARQUET, JSON_LINES)
_SUFFIXES = {
    ".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET, ".jsonl": JSON_LINES, ".ndjson": JSON_LINES, ".json": JSON_LINES
}  # fmt: skip
#: Rows of a file that a new table's types are taken from.
INFERRED_ROWS = 1_000
#: What a text may be, tried in this order.
_GUESSES = (INT, DECIMAL, BOOL, DATE, TIMESTAMP, TIMESTAMPTZ)


def format_of(path: Path, wanted: str = "") -> str:
    """The format by name, or by the suffix of the file."""
    if wanted:
        if wanted not in FORMATS:
            raise InterfaceError(f"there is no format {wanted!r}", hint=f"formats are {', '.join(FORMATS)}")
        return wanted
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        shown = "-" if str(path) == "-" else f"the name of {path}"
        raise InterfaceError(f"{shown} does not tell its format", hint=f"give --format {'|'.join(FORMATS)}")
    return found


# -- reading


def chunks_of(path: Path, kind: str, table: Table) -> Iterator[RecordBatch | Rows]:
    """The rows of a file for a table, some thousand at a time."""
    if not path.is_file():
        raise OperationalError(f"there is no file {path}")
    if kind == PARQUET:
        yield from parquet_batches(path, CHUNK_ROWS)
    elif kind == CSV:
        # All its columns are text, which is read for the types of the table.
        yield from csv_batches(path)
    else:
        yield from _json_chunks(path, table)


def _json_chunks(path: Path, table: Table) -> Iterator[Rows]:
    visible = [table.columns[position].name for position in table.visible()]
    types = {table.columns[position].name: table.columns[position].type for position in table.visible()}
    # Rows of one chunk have the same columns: what a line leaves out gets the default of its column.
    names: tuple[str, ...] = ()
    rows: list[tuple[object, ...]] = []
    for number, mapping in _json_objects(path):
        given = tuple(mapping)
        if given != names or len(rows) >= CHUNK_ROWS:
            if rows:
                yield Rows(names, rows)
            names, rows = given, []
            for name in given:
                if name not in types:
                    raise ProgrammingError(
                        f"{path}, line {number}: table {table.name!r} has no column {name!r}",
                        hint=nearest(name, visible),
                    )
        try:
            rows.append(tuple([_json_value(mapping[name], types[name]) for name in given]))
        except DataError as error:
            raise placed(error, f"{path}, line {number}") from None
    if rows:
        yield Rows(names, rows)


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of a file with the numbers of their lines. Numbers with a point stay exact."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, parse_float=Decimal)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: no JSON: {error}") from None
            if not isinstance(found, dict):
                raise DataError(f"{path}, line {number}: not an object", hint='like {"id": 1, "name": "ann"}')
            yield number, found


def _json_value(value: object, type_: Type) -> object:
    if type_.kind == "json":
        return _with_floats(value)
    if isinstance(value, str) and type_.kind != "str":
        return texts_read([value], type_)[0]
    if isinstance(value, Decimal) and type_.kind != "decimal":
        return float(value)
    return value


def _with_floats(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_with_floats(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_floats(each) for name, each in value.items()}
    return value


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise OperationalError(f"{path} cannot be read: {error.strerror}") from error


# -- the columns of a new table


def inferred_columns(path: Path, kind: str) -> dict[str, str]:
    """The columns that a table for a file would have, with the SQL names of their types."""
    if not path.is_file():
        raise OperationalError(f"there is no file {path}")
    if kind == PARQUET:
        return parquet_columns(path)
    if kind == CSV:
        return {name: str(_guessed(texts)) for name, texts in csv_columns(path, INFERRED_ROWS).items()}
    seen: dict[str, list[object]] = {}
    for _, mapping in zip(range(INFERRED_ROWS), (found for _, found in _json_objects(path)), strict=False):
        for name, value in mapping.items():
            seen.setdefault(name, []).append(value)
    return {name: str(_json_type(values)) for name, values in seen.items()}


def _guessed(texts: Iterable[object]) -> Type:
    """The first type that all texts can be read as."""
    some = [text for text in texts if text is not None]
    for type_ in _GUESSES if some else ():
        try:
            texts_read(some, type_)
        except DataError:
            continue
        if not any(_reads_too_much(str(text), type_) for text in some):
            return type_
    return STR


def _reads_too_much(text: str, type_: Type) -> bool:
    """SQL takes "yes" for a truth value, and the day of a timestamp for a date: a guess does not."""
    if type_ is BOOL:
        return text.lower() not in ("true", "false", "t", "f")
    return type_ is DATE and ":" in text


def _json_type(values: Iterable[object]) -> Type:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return STR
    if kinds == {bool}:
        return BOOL
    if kinds == {int}:
        return INT
    if kinds and kinds <= {int, Decimal}:
        return FLOAT
    return JSON if kinds else STR


# -- writing


def text_of(value: object, type_: Type) -> str:
    """A value as SQL writes it, and reads it again."""
    if type_.kind == "json":
        return json.dumps(value, ensure_ascii=False)
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case bytes():
            return bytes_text(value)
        case float():
            return float_text(value)
        case Decimal():
            return decimal_text(value)
        case datetime.datetime():
            return value.isoformat(sep=" ")
        case _:
            return str(value)


def _json_form(value: object, type_: Type) -> object:
    if value is None or type_.kind == "json" or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return text_of(value, type_)


def write_file(
    path: Path, kind: str, names: Sequence[str], types: Sequence[Type], pages: Pages, standard_output: BinaryIO
) -> int:
    """Write rows to a file that appears when it is whole; how many there were. Its parent directory must be there.

    Symbolic links are followed. What is no regular file, like a pipe, gets the rows as they come.
    """
    shown = "standard output" if is_standard_output(path) else str(path)
    try:
        there = None if is_standard_output(path) else _status(path)
        if is_standard_output(path) or (there is not None and not stat.S_ISREG(there.st_mode)):
            if kind == PARQUET:
                raise InterfaceError(
                    f"{shown} is no regular file, and Parquet needs one", hint="name a new file, or use csv or jsonl"
                )
            return _write_directly(path, kind, names, types, pages, standard_output)
        return _replace(path, there, kind, names, types, pages)
    except OSError as error:
        raise OperationalError(f"{shown} cannot be written: {error.strerror}") from error


def is_standard_output(path: Path) -> bool:
    """Also by the names that the system has for it: what a shell has sent it to is gone on with, not replaced."""
    return str(path) in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _write_directly(
    path: Path, kind: str, names: Sequence[str], types: Sequence[Type], pages: Pages, standard_output: BinaryIO
) -> int:
    if not is_standard_output(path):
        with path.open("w", encoding="utf-8", newline="") as file:
            return _write_text(file, kind, names, types, pages)
    # Not as the terminal would have it: a file has the same bytes wherever it goes.
    text = io.TextIOWrapper(standard_output, encoding="utf-8", newline="")
    try:
        count = _write_text(text, kind, names, types, pages)
        text.flush()
    finally:
        with suppress(OSError):  # it tries to write once more, and the first failure is known
            text.detach()
    return count


def _replace(
    path: Path, there: os.stat_result | None, kind: str, names: Sequence[str], types: Sequence[Type], pages: Pages
) -> int:
    target = path.resolve()
    # Under a name that nobody can have prepared: in a directory like /tmp a link could stand there.
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    # Rows that only some may read are not shown to others meanwhile.
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if there is None else 0o600))
    try:
        if kind == PARQUET:
            count = _write_parquet(beside, names, types, pages)
        else:
            with beside.open("w", encoding="utf-8", newline="") as file:
                count = _write_text(file, kind, names, types, pages)
        if there is not None:
            with suppress(PermissionError):  # only root gives files away
                os.chown(beside, there.st_uid, there.st_gid)
            beside.chmod(stat.S_IMODE(there.st_mode))
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _write_text(file: TextIO, kind: str, names: Sequence[str], types: Sequence[Type], pages: Pages) -> int:
    return (_write_csv if kind == CSV else _write_json)(file, names, types, pages)


def _write_csv(file: TextIO, names: Sequence[str], types: Sequence[Type], pages: Pages) -> int:
    count = 0
    # Text is quoted, so that an empty one is not NULL.
    csv.writer(file, lineterminator="\n").writerow(names)
    for page in pages:
        file.writelines(_csv_line(row, types) for row in page)
        count += len(page)
    return count


def _csv_line(row: Sequence[object], types: Sequence[Type]) -> str:
    fields = zip(row, types, strict=True)
    return ",".join(["" if value is None else _csv_field(value, type_) for value, type_ in fields]) + "\n"


def _csv_field(value: object, type_: Type) -> str:
    text = text_of(value, type_)
    if type_.kind in ("str", "json", "bytes"):
        return '"' + text.replace('"', '""') + '"'
    return text


def _write_json(file: TextIO, names: Sequence[str], types: Sequence[Type], pages: Pages) -> int:
    count = 0
    for page in pages:
        for row in page:
            plain = {name: _json_form(value, type_) for name, value, type_ in zip(names, row, types, strict=True)}
            file.write(json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n")
        count += len(page)
    return count


def _write_parquet(path: Path, names: Sequence[str], types: Sequence[Type], pages: Pages) -> int:
    count = 0
    with parquet_writer(path, names, types) as write:
        for page in pages:
            write(page, text_of)
            count += len(page)
    return count
