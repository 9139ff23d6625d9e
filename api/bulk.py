"""Bulk load: the rows of Arrow batches, or of rows that a file gave, as one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from .arrow import batches_of, values_of
from .changetables.errors import DataError, Error, IntegrityError, ProgrammingError
from .changetables.rows import RowCodec, row_codec
from .changetables.schema import Table
from .names import nearest
from .table import LoadProgress, LoadResult

if TYPE_CHECKING:
    from .arrow import ArrowTable, RecordBatch
    from .database import Database

#: Rows that are converted at once: some MB of Python objects.
CHUNK_ROWS = 10_000

E = TypeVar("E", bound=Error)


class Rows(NamedTuple):
    """Rows by position, as Python values: what a file that is not columnar gives."""

    names: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


Mapped: TypeAlias = list[dict[str, object]]
#: Says where the row with a number, from 1, stands in the input.
Place: TypeAlias = Callable[[int], str]


def _row(number: int) -> str:
    return f"row {number}"


def load(
    database: Database,
    name: str,
    batches: Iterable[RecordBatch | ArrowTable],
    progress: LoadProgress | None = None,
) -> LoadResult:
    """All rows as one transaction."""
    return load_chunks(database, name, batches_of(batches, CHUNK_ROWS), progress)


def load_chunks(
    database: Database,
    name: str,
    chunks: Iterable[RecordBatch | Rows],
    progress: LoadProgress | None = None,
    place: Place = _row,
) -> LoadResult:
    table = database._table(name)
    rows_count = 0
    with database.transaction() as tx:
        for chunk in chunks:
            before = rows_count

            def here(number: int, before: int = before) -> str:
                return place(before + number)

            mapped = mappings(chunk, table, here)
            try:
                tx.insert(name, mapped)
            except (DataError, IntegrityError):
                check_rows(row_codec(table), mapped, here)
                raise
            rows_count += len(mapped)
            if progress is not None:
                progress(rows_count)
    return LoadResult(rows_count, tx.token.commit_ts)


def mappings(chunk: RecordBatch | Rows, table: Table, place: Place) -> Mapped:
    """The rows of a chunk by the names of their columns."""
    if isinstance(chunk, Rows):
        check_names(chunk.names, table)
        return [dict(zip(chunk.names, row, strict=True)) for row in chunk.rows]
    names = tuple(chunk.schema.names)
    positions = check_names(names, table)
    columns = [_column(chunk, number, table, position, place) for number, position in enumerate(positions)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(batch: RecordBatch, number: int, table: Table, position: int, place: Place) -> list[object]:
    column = table.columns[position]
    array = batch.column(number)
    try:
        return values_of(array, column.type)
    except DataError:
        for row in range(batch.num_rows):
            try:
                values_of(array.slice(row, 1), column.type)
            except DataError as error:
                raise placed(error, f"{place(row + 1)}: column {table.name}.{column.name}") from None
        raise


def check_names(names: Sequence[str], table: Table) -> list[int]:
    """The positions of columns in a table."""
    positions = []
    for name in names:
        position = table.position(name)
        if position is None:
            known = [table.columns[visible].name for visible in table.visible()]
            raise ProgrammingError(f"table {table.name!r} has no column {name!r}", hint=nearest(name, known))
        positions.append(position)
    if len(set(positions)) != len(positions):
        raise ProgrammingError(f"a column comes twice in the input for table {table.name!r}")
    return positions


def check_rows(codec: RowCodec, mapped: Mapped, place: Place) -> None:
    """Raise what is wrong with a row, and say with which."""
    for number, row in enumerate(mapped, 1):
        try:
            codec.row(row)
        except (DataError, IntegrityError) as error:
            raise placed(error, place(number)) from None


def placed(error: E, place: str) -> E:
    """The same error, which says where in the input it is."""
    return type(error)(f"{place}: {error.message}", hint=error.hint)
