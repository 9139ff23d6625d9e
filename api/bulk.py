"""Bulk load: the rows of Arrow batches, or of rows that a file gave, as one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from .arrow import batches_of, values_of
from .changetables.errors import DataError, Error, IntegrityError, ProgrammingError
from .changetables.evaluators.choice import has_columns
from .changetables.rows import RowCodec, row_codec
from .changetables.schema import Table
from .coordinator.bulk_load import Batch, Deferred, bulk_load, can_stage
from .coordinator.embedded import Engine
from .coordinator.refresher import Refresher
from .ltm.tables import TableRows
from .names import nearest
from .table import LoadProgress, LoadResult

if TYPE_CHECKING:
    from .arrow import ArrowTable, RecordBatch
    from .database import Database

#: Rows that are converted at once: some MB of Python objects.
CHUNK_ROWS = 50_000
#: A load of fewer rows is an ordinary transaction, which the log has.
STAGED_ROWS_MIN = 100_000

E = TypeVar("E", bound=Error)


class Rows(NamedTuple):
    """Rows by position, as Python values: what a file that is not columnar gives."""

    names: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


Mapped: TypeAlias = list[dict[str, object]]
#: Says where the row with a number, from 1, stands in the input.
Place: TypeAlias = Callable[[int], str]


class Places:
    """The places in an input that has several parts. `begun`: the names of those that were begun, to be put before a
    row, and how many rows were before each."""

    def __init__(self, begun: Iterable[tuple[str, int]] = (("", 0),)) -> None:
        self.begun = list(begun)

    def __call__(self, number: int) -> str:
        name, before = next((name, before) for name, before in reversed(self.begun) if before < number)
        return f"{name}row {number - before}"


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
    places: Places | None = None,
) -> LoadResult:
    """As `load`. A large load goes to the store beside the log, where that is possible."""
    rest = iter(chunks)
    places = places or Places()
    first: list[RecordBatch | Rows] = []
    rows_count = 0
    while rows_count < STAGED_ROWS_MIN:
        chunk = next(rest, None)
        if chunk is None:
            return _load_by_transaction(database, name, first, progress, places)
        first.append(chunk)
        rows_count += _rows_count(chunk)
    everything = chain(first, rest)
    done = _load_beside_the_log(database, name, everything, progress or _ignore, places)
    return done or _load_by_transaction(database, name, everything, progress, places)


def _load_beside_the_log(
    database: Database, name: str, chunks: Iterable[RecordBatch | Rows], progress: LoadProgress, places: Places
) -> LoadResult | None:
    """None, before any of them is taken: the table takes no such load."""
    remote = getattr(database, "_remote", None)
    if remote is not None:
        from .uploads import upload  # whoever has the database does the rest

        return upload(remote, name, chunks, progress, places)
    target = staged_target(database, name)
    return None if target is None else load_staged(target, chunks, progress, places)


def _rows_count(chunk: RecordBatch | Rows) -> int:
    return len(chunk.rows) if isinstance(chunk, Rows) else int(chunk.num_rows)


def _ignore(rows: int) -> None:
    """Nobody wants to know."""


def _load_by_transaction(
    database: Database,
    name: str,
    chunks: Iterable[RecordBatch | Rows],
    progress: LoadProgress | None,
    place: Place,
) -> LoadResult:
    table = database._table(name)
    rows_count = 0
    with database.transaction() as tx:
        for chunk in chunks:
            here = partial(_further, place, rows_count)
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


def _further(place: Place, rows_before: int, number: int) -> str:
    return place(rows_before + number)


# -- beside the log


class Target(NamedTuple):
    """A table of a database in this process that takes a staged load. `directory`: where the database is."""

    directory: str
    engine: Engine
    refresher: Refresher
    rows: TableRows


def staged_target(database: Database, name: str) -> Target | None:
    node = getattr(database, "_node", None)
    if node is None or not isinstance(node.engine, Engine) or not isinstance(node.refresher, Refresher):
        return None  # it is elsewhere
    rows = node.engine.ltm.tables.by_name.get(name)
    return (
        Target(node.name, node.engine, node.refresher, rows)
        if rows is not None and can_stage(node.engine, rows)
        else None
    )


def load_staged(
    target: Target, chunks: Iterable[RecordBatch | Rows], progress: LoadProgress, place: Place
) -> LoadResult:
    deferred = Deferred(target.refresher.made_from, target.refresher.held)
    batches = _batches(target.rows, chunks, place)
    return LoadResult(*bulk_load(target.engine, target.rows, batches, deferred, progress))


def _batches(target: TableRows, chunks: Iterable[RecordBatch | Rows], place: Place) -> Iterator[Batch]:
    """Column by column if that is possible, else row by row, which also says what is wrong with a value."""
    table, codec = target.table, target.codec
    by_columns = False
    if has_columns():
        from .ltm.bulk_cells import physical, takes  # they need pyarrow, which is optional

        by_columns = takes(table)
    rows_count = 0
    for chunk in chunks:
        here = partial(_further, place, rows_count)
        columns = None
        if by_columns and not isinstance(chunk, Rows):
            check_names(chunk.schema.names, table)
            columns = physical(chunk, table)
        if columns is not None:
            yield Batch(columns.num_rows, None, columns)
            rows_count += columns.num_rows
            continue
        mapped = mappings(chunk, table, here)
        try:
            rows = codec.rows(mapped)
        except (DataError, IntegrityError):
            check_rows(codec, mapped, here)
            raise
        yield Batch(len(rows), rows, None)
        rows_count += len(rows)


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
        raise ProgrammingError(
            f"a column comes twice in the input for table {table.name!r}", hint="name each column once"
        )
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
