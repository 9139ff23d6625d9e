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
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TextIO, TypeAlias

from .arrow import (
    Tell,
    csv_batches,
    csv_columns,
    not_utf8,
    parquet_batches,
    parquet_columns,
    parquet_writer,
    plain_texts_read,
    pyarrow,
    texts_read,
)
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


class Source(NamedTuple):
    """A file to read. `name`: what errors call it. `separator`: of CSV, if somebody has said which it is.
    `bytes_count`: None if it came from a pipe."""

    name: str
    path: Path
    kind: str
    separator: str = ""
    bytes_count: int | None = None


@contextmanager
def opened_sources(
    paths: Sequence[Path], wanted: str, separator: str, standard_input: TextIO | None
) -> Iterator[list[Source]]:
    """The files to load. What is no regular file, like a pipe, can be read once only: it is kept in a temporary one."""
    separator = _separator_of(separator)
    kinds = [format_of(path, wanted) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if separator and kind != CSV:
            raise InterfaceError(f"--separator is for CSV, and {path} is {kind}", hint="leave it out")
        if not _is_standard_input(path):
            _check_readable(path)
        if kind != JSON_LINES:
            pyarrow()  # whoever lacks it is told before a database is made
    with ExitStack() as stack:
        sources = []
        for path, kind in zip(paths, kinds, strict=True):
            name = "standard input" if _is_standard_input(path) else str(path)
            bytes_count = None
            if _is_standard_input(path):
                path = _kept(_bytes_of(standard_input), name, stack)
            elif not path.is_file():
                with _opened(path) as pipe:
                    path = _kept(pipe, name, stack)
            else:
                bytes_count = path.stat().st_size
            sources.append(Source(name, path, kind, separator, bytes_count))
        yield sources


def _separator_of(given: str) -> str:
    separator = "\t" if given in ("tab", "\\t") else given
    if separator and (len(separator) > 1 or not separator.isascii() or separator in '"\r\n'):
        raise InterfaceError(f"columns cannot be separated by {given!r}", hint="give one character, like ';', or tab")
    return separator


def _is_standard_input(path: Path) -> bool:
    return str(path) in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def _bytes_of(standard_input: TextIO | None) -> BinaryIO:
    if standard_input is None:
        raise OperationalError("the standard input is closed", hint="name a file")
    return standard_input.buffer


def _check_readable(path: Path) -> None:
    """Before a database is opened, or made."""
    try:
        there = _status(path)
    except OSError as error:
        raise OperationalError(
            f"{path} cannot be read: {error.strerror}", hint="check its name and its permissions"
        ) from error
    if there is None:
        raise OperationalError(f"there is no file {path}", hint="check its name")
    if stat.S_ISDIR(there.st_mode):
        raise OperationalError(f"{path} is a directory", hint="name the files in it")


def _kept(pipe: BinaryIO, name: str, stack: ExitStack) -> Path:
    """All that comes, in a file that goes with `stack`."""
    try:
        kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="viewtide-load-"))  # noqa: SIM115
        shutil.copyfileobj(pipe, kept)
        kept.flush()
    except OSError as error:
        raise OperationalError(
            f"{name} cannot be kept in {tempfile.gettempdir()}: {error.strerror}",
            hint="TMPDIR names a directory with more room",
        ) from error
    return Path(kept.name)


def chunks_of(source: Source, table: Table, tell: Tell) -> Iterator[RecordBatch | Rows]:
    """The rows of a file for a table, some thousand at a time; before each of them `tell` is called."""
    if source.kind == PARQUET:
        yield from parquet_batches(source.path, source.name, CHUNK_ROWS, tell)
    elif source.kind == CSV:
        # All its columns are text, which is read for the types of the table.
        types = {table.columns[position].name: table.columns[position].type for position in table.visible()}
        for batch in csv_batches(source.path, source.name, source.separator, tell):
            yield plain_texts_read(batch, types)
    else:
        yield from _json_chunks(source, table, tell)


def _json_chunks(source: Source, table: Table, tell: Tell) -> Iterator[Rows]:
    visible = [table.columns[position].name for position in table.visible()]
    types = {table.columns[position].name: table.columns[position].type for position in table.visible()}
    # Rows of one chunk have the same columns: what a line leaves out gets the default of its column.
    names: tuple[str, ...] = ()
    rows: list[tuple[object, ...]] = []
    bytes_read = 0
    for number, end, mapping in _json_objects(source):
        given = tuple(mapping)
        if given != names or len(rows) >= CHUNK_ROWS:
            if rows:
                tell(bytes_read)
                yield Rows(names, rows)
            names, rows = given, []
            for name in given:
                if name not in types:
                    raise ProgrammingError(
                        f"{source.name}, line {number}: table {table.name!r} has no column {name!r}",
                        hint=nearest(name, visible),
                    )
        try:
            rows.append(tuple([_json_value(mapping[name], types[name]) for name in given]))
        except DataError as error:
            raise placed(error, f"{source.name}, line {number}") from None
        bytes_read = end
    if rows:
        tell(bytes_read)
        yield Rows(names, rows)


def _json_objects(source: Source) -> Iterator[tuple[int, int, dict[str, object]]]:
    """The objects of a file with the numbers of their lines, and where these end. Numbers with a point stay exact."""
    with _opened(source.path) as file:
        end = 0
        for number, line in enumerate(file, 1):
            end += len(line)
            if not line.strip():
                continue
            where = f"{source.name}, line {number}"
            try:
                found = json.loads(line.decode(), parse_float=Decimal)
            except UnicodeDecodeError as error:
                raise not_utf8(where, error) from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: no JSON: {error}", hint='each line is one object, as {"id": 1}') from None
            if not isinstance(found, dict):
                raise DataError(f"{where}: not an object", hint='like {"id": 1, "name": "ann"}')
            yield number, end, found


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


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise OperationalError(
            f"{path} cannot be read: {error.strerror}", hint="check its name and its permissions"
        ) from error


# -- the columns of a new table


def inferred_columns(source: Source) -> dict[str, str]:
    """The columns that a table for a file would have, with the SQL names of their types."""
    if source.kind == PARQUET:
        return parquet_columns(source.path, source.name)
    if source.kind == CSV:
        columns = csv_columns(source.path, source.name, source.separator, INFERRED_ROWS)
        return {name: str(_guessed(texts)) for name, texts in columns.items()}
    seen: dict[str, list[object]] = {}
    for _, mapping in zip(range(INFERRED_ROWS), (found for _, _, found in _json_objects(source)), strict=False):
        for name, value in mapping.items():
            seen.setdefault(name, []).append(value)
    if not seen:
        raise DataError(f"{source.name} has no rows to take columns from", hint="create the table with its columns")
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
    path: Path, kind: str, names: Sequence[str], types: Sequence[Type], pages: Pages, standard_output: TextIO
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
        raise OperationalError(
            f"{shown} cannot be written: {error.strerror or error}",
            # A reader that went away has its reasons.
            hint="" if is_standard_output(path) else "check the directory, its permissions and the free space",
        ) from error


def is_standard_output(path: Path) -> bool:
    """Also by the names that the system has for it: what a shell has sent it to is gone on with, not replaced."""
    return str(path) in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _write_directly(
    path: Path, kind: str, names: Sequence[str], types: Sequence[Type], pages: Pages, standard_output: TextIO
) -> int:
    if not is_standard_output(path):
        with path.open("w", encoding="utf-8", newline="") as file:
            return _write_text(file, kind, names, types, pages)
    # Not as the terminal would have it: a file has the same bytes wherever it goes.
    text = io.TextIOWrapper(standard_output.buffer, encoding="utf-8", newline="")
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
