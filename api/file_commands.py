"""`viewtide load` and `viewtide export`."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TextIO

from .bulk import Places, Rows, load_chunks, mappings
from .changetables.errors import Error, IntegrityError, InterfaceError, ProgrammingError, counted
from .changetables.rows import row_codec
from .changetables.schema import Table
from .files import Source, chunks_of, format_of, inferred_columns, is_standard_output, write_file
from .names import nearest
from .rows import Result
from .table import LoadProgress, LoadResult

if TYPE_CHECKING:
    from .arrow import RecordBatch
    from .database import Database
    from .reads import Snapshot
    from .spark.options import Options

#: Rows of a table that are read at once.
PAGE_ROWS = 10_000
#: Rows among which a key is looked for that comes twice: some 150 bytes of memory each.
SEARCHED_ROWS_MAX = 1_000_000


class _Input:
    """The rows of several files one after the other, and which row is in which file."""

    def __init__(self, sources: Sequence[Source], spark: Options | None = None) -> None:
        self._sources, self._spark = sources, spark
        self.places = Places(())
        self.bytes_read = 0
        sizes = [source.bytes_count for source in sources if source.bytes_count is not None]
        #: None: not all of them are files, or others read them.
        self.bytes_total = sum(sizes) if len(sizes) == len(sources) and spark is None else None

    def columns(self, key: Sequence[str]) -> dict[str, str]:
        """Those of a table for the first file."""
        first = self._sources[0]
        columns = inferred_columns(first)
        for column in key:
            if column not in columns:
                raise InterfaceError(f"{first.name} has no column {column!r}", hint=nearest(column, columns))
        return columns

    @contextmanager
    def opened(self, table: Table) -> Iterator[Iterator[RecordBatch | Rows]]:
        """The rows, read here or by Spark."""
        if self._spark is None:
            yield self.chunks(table)
            return
        from .spark.loaded_files import staged_files

        with staged_files(self._spark, self._sources, table) as staged:
            self.places.begun[:] = staged.begun
            yield staged.chunks

    def chunks(self, table: Table) -> Iterator[RecordBatch | Rows]:
        self.places.begun.clear()
        rows_count = bytes_before = 0
        for source in self._sources:
            self.places.begun.append((f"{source.name}, ", rows_count))
            for chunk in chunks_of(source, table, partial(self._tell, bytes_before)):
                yield chunk
                rows_count += len(chunk.rows) if isinstance(chunk, Rows) else chunk.num_rows
            bytes_before += source.bytes_count or 0
            self._tell(bytes_before, 0)

    def _tell(self, bytes_before: int, bytes_count: int) -> None:
        self.bytes_read = bytes_before + bytes_count

    def twice(self, table: Table) -> IntegrityError | None:
        """The first key that comes a second time, if the files are not too long to look for it."""
        codec = row_codec(table)
        numbers: dict[bytes, int] = {}
        number = 0
        for chunk in self.chunks(table):
            for key in codec.keys_of(codec.rows(mappings(chunk, table, self.places))):
                number += 1
                first = numbers.setdefault(key, number)
                if first != number:
                    values = ", ".join(map(repr, codec.keys.decode(key)))
                    return IntegrityError(
                        f"{self.places(number)}: row {values} of table {table.name!r} comes twice in what is loaded, "
                        f"the first time in {self.places(first)}",
                        hint="leave one of them out",
                    )
            if number >= SEARCHED_ROWS_MAX:
                break
        return None


class Loaded(NamedTuple):
    table: str
    rows: int
    seconds: float
    commit_ts: int


def run_load(
    database: Database,
    name: str,
    sources: Sequence[Source],
    *,
    create: bool,
    key: Sequence[str],
    as_json: bool,
    out: TextIO,
    err: TextIO,
    spark: Options | None = None,
) -> None:
    """Load files into a table, as one transaction. A table that was made for them goes again if that fails. `spark`:
    tasks of Spark read them."""
    if key and not create:
        raise InterfaceError("--key is for --create", hint="leave it out: the table has its key")
    if name in database.views():
        raise ProgrammingError(
            f"{name!r} is a view, and rows are loaded into tables",
            hint="load the tables that it is made from; `viewtide export` writes a view to a file",
        )
    is_there = name in database.tables()
    if key and is_there:
        _check_key(database._table(name), key)
    source = _Input(sources, spark)
    began = time.monotonic()
    created = False
    try:
        if create and not is_there:
            columns = source.columns(key)
            with _uninterrupted():
                database.create_table(name, columns, key=tuple(key) or None)
                created = True
        with _progress(name, source, err, as_json) as progress:
            result = _load(database, name, source, progress)
    except BaseException:
        if created:
            _drop_again(database, name, err)
        raise
    done = Loaded(name, result.rows, round(time.monotonic() - began, 3), result.commit_ts)
    if as_json:
        print(json.dumps(done._asdict()), file=out)
    else:
        rate = done.rows / done.seconds if done.seconds else 0
        print(f"{counted(done.rows, 'row')} loaded into {name} in {done.seconds:.1f} s ({rate:,.0f} rows/s)", file=out)


def _check_key(table: Table, key: Sequence[str]) -> None:
    known = [table.columns[position] for position in table.key]
    if [column.name for column in known] != list(key):
        its = "no key" if known[0].hidden else f"the key {', '.join(column.name for column in known)}"
        raise InterfaceError(
            f"table {table.name!r} is there already, and has {its}, not {', '.join(key)}",
            hint="leave --key out, or load into another table",
        )


def _load(database: Database, name: str, source: _Input, progress: LoadProgress | None) -> LoadResult:
    table = database._table(name)
    try:
        with source.opened(table) as chunks:
            return load_chunks(database, name, chunks, progress, source.places)
    except IntegrityError as error:
        # A key that is taken, which each kind of transaction tells in its own place, and always with this hint. None
        # knows whether its row was there before the load, and no option of `load` is called so.
        if "upsert" not in error.hint:
            raise
        try:
            twice = source.twice(table)
        except Error:  # something else is wrong further on: first things first
            twice = None
        raise twice or IntegrityError(
            error.message, hint="load only inserts: leave out the rows that are there already, or delete them first"
        ) from None


def _drop_again(database: Database, name: str, err: TextIO) -> None:
    try:
        with _uninterrupted():
            database.drop_table(name)
    except Error as error:
        print(f"viewtide: table {name!r}, which was made for this load, could not be dropped: {error}", file=err)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C comes when this is done. Who cannot wait presses it again."""
    came: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt(signum)
        came.append(signum)

    before = {ending: signal.getsignal(ending) for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Only where somebody handles it, which is in the main thread: what is ignored stays so.
    handled = {ending: handler for ending, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        handled = {}
    for ending in handled:
        signal.signal(ending, remember)
    try:
        yield
    finally:
        for ending, handler in handled.items():
            signal.signal(ending, handler)
    if came:
        raise KeyboardInterrupt(came[0])


def _progress(name: str, source: _Input, err: TextIO, quiet: bool) -> AbstractContextManager[LoadProgress | None]:
    """A line that moves, where somebody sees it."""
    return nullcontext() if quiet or not err.isatty() else _Bar(name, source, err)


class _Bar(AbstractContextManager[LoadProgress]):
    """How much of the files was read; for what comes from a pipe, only that something goes on."""

    def __init__(self, name: str, source: _Input, err: TextIO) -> None:
        # Imported here: a script's output needs none of it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            ProgressColumn,
            SpinnerColumn,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        from .shell_output import printable

        title = TextColumn("{task.description}", markup=False)
        counted = TextColumn("{task.fields[counted]}", markup=False)
        columns: tuple[ProgressColumn, ...] = (SpinnerColumn(), title, counted, TimeElapsedColumn())
        if source.bytes_total:
            columns = (title, BarColumn(), TaskProgressColumn(), DownloadColumn(), counted, TimeRemainingColumn())
        self._source = source
        self._shown = Progress(*columns, console=Console(file=err), transient=True)
        self._task = self._shown.add_task(f"loading {printable(name)}", total=source.bytes_total, counted="")
        self._began = time.monotonic()

    def __enter__(self) -> LoadProgress:
        self._shown.start()
        return self._count

    def _count(self, rows: int) -> None:
        rate = rows / max(time.monotonic() - self._began, 1e-3)
        counted = f"{rows:,} row{'' if rows == 1 else 's'}, {rate:,.0f}/s"
        self._shown.update(self._task, completed=self._source.bytes_read, counted=counted)

    def __exit__(self, *_: object) -> None:
        self._shown.stop()


def run_export(
    database: Database, name: str, path: Path, *, wanted: str, as_json: bool, out: TextIO, err: TextIO
) -> None:
    """Write a table or view, as it is at one moment, to a file, or to `out` if that is asked for."""
    kind = format_of(path, wanted)
    tables, views = database.tables(), database.views()
    if name not in tables and name not in views:
        raise ProgrammingError(f"there is neither a table nor a view {name!r}", hint=nearest(name, [*tables, *views]))
    began = time.monotonic()
    with database.snapshot() as snapshot:
        at = snapshot.token.commit_ts
        results = _pages(snapshot, database._table(name)) if name in tables else iter([snapshot.view(name).rows()])
        first = next(results)
        columns = first._columns
        pages = ([tuple(row.values()) for row in result] for result in itertools.chain([first], results))
        count = write_file(path, kind, columns.names, columns.types, pages, out)
    # Where rows are, nothing else may be.
    told = err if is_standard_output(path) else out
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({"source": name, "file": str(path), "rows": count, "seconds": seconds, "ts": at}), file=told)
    else:
        where = "standard output" if is_standard_output(path) else path
        print(f"{counted(count, 'row')} of {name} written to {where}", file=told)


def _pages(snapshot: Snapshot, table: Table) -> Iterator[Result]:
    """A table page by page, in key order; one without a key as a whole, because no row of it can be named."""
    if table.columns[table.key[0]].hidden:
        yield snapshot.scan(table.name)
        return
    key = [table.columns[position].name for position in table.key]
    page = snapshot.scan(table.name, limit=PAGE_ROWS)
    yield page
    while len(page) >= PAGE_ROWS:
        last = page[-1]
        page = snapshot.scan(table.name, start=tuple(last[name] for name in key), limit=PAGE_ROWS + 1)
        # The first of them was the last before.
        page = Result(page._columns, page[1:], page.watermark)
        yield page
