"""`viewtide load` and `viewtide export`."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from .bulk import Places, Rows, load_chunks
from .changetables.errors import InterfaceError, ProgrammingError
from .changetables.schema import Table
from .files import chunks_of, format_of, inferred_columns, is_standard_output, write_file
from .names import nearest
from .rows import Result
from .table import LoadProgress

if TYPE_CHECKING:
    from .arrow import RecordBatch
    from .database import Database
    from .reads import Snapshot

#: Rows of a table that are read at once.
PAGE_ROWS = 10_000


class _Input:
    """The rows of several files one after the other, and which row is in which file."""

    def __init__(self, paths: Sequence[Path], wanted: str) -> None:
        self._files = [(path, format_of(path, wanted)) for path in paths]
        self.places = Places(())

    def create(self, database: Database, name: str, key: Sequence[str]) -> None:
        columns = inferred_columns(*self._files[0])
        for column in key:
            if column not in columns:
                raise InterfaceError(f"{self._files[0][0]} has no column {column!r}", hint=nearest(column, columns))
        database.create_table(name, columns, key=tuple(key) or None)

    def chunks(self, table: Table) -> Iterator[RecordBatch | Rows]:
        rows_count = 0
        for path, kind in self._files:
            self.places.begun.append((f"{path}, ", rows_count))
            for chunk in chunks_of(path, kind, table):
                yield chunk
                rows_count += len(chunk.rows) if isinstance(chunk, Rows) else chunk.num_rows


class Loaded(NamedTuple):
    table: str
    rows: int
    seconds: float
    commit_ts: int


def run_load(
    database: Database,
    name: str,
    paths: Sequence[Path],
    *,
    wanted: str,
    create: bool,
    key: Sequence[str],
    as_json: bool,
    out: TextIO,
    err: TextIO,
) -> None:
    """Load files into a table, as one transaction."""
    source = _Input(paths, wanted)
    if create and name not in database.tables():
        source.create(database, name, key)
    elif key and not create:
        raise InterfaceError("--key is for --create", hint="leave it out: the table has its key")
    began = time.monotonic()
    with _progress(name, err, as_json) as progress:
        table = database._table(name)
        result = load_chunks(database, name, source.chunks(table), progress, source.places)
    done = Loaded(name, result.rows, round(time.monotonic() - began, 3), result.commit_ts)
    if as_json:
        print(json.dumps(done._asdict()), file=out)
    else:
        rate = done.rows / done.seconds if done.seconds else 0
        print(f"{done.rows} rows loaded into {name} in {done.seconds:.1f} s ({rate:,.0f} rows/s)", file=out)


def _progress(name: str, err: TextIO, quiet: bool) -> AbstractContextManager[LoadProgress | None]:
    """A line that counts, where somebody sees it."""
    return nullcontext() if quiet or not err.isatty() else _Counting(name, err)


class _Counting(AbstractContextManager[LoadProgress]):
    def __init__(self, name: str, err: TextIO) -> None:
        # Imported here: a script's output needs none of it.
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        counted = TextColumn("{task.description}: {task.completed:,.0f} rows, {task.fields[rate]:,.0f}/s")
        self._shown = Progress(SpinnerColumn(), counted, TimeElapsedColumn(), console=Console(file=err), transient=True)
        self._task = self._shown.add_task(f"loading {name}", total=None, rate=0.0)
        self._began = time.monotonic()

    def __enter__(self) -> LoadProgress:
        self._shown.start()
        return self._count

    def _count(self, rows: int) -> None:
        rate = rows / max(time.monotonic() - self._began, 1e-3)
        self._shown.update(self._task, completed=rows, rate=rate)

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
        count = write_file(path, kind, columns.names, columns.types, pages, out.buffer)
    # Where rows are, nothing else may be.
    told = err if is_standard_output(path) else out
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({"source": name, "file": str(path), "rows": count, "seconds": seconds, "ts": at}), file=told)
    else:
        where = "standard output" if is_standard_output(path) else path
        print(f"{count} row{'' if count == 1 else 's'} of {name} written to {where}", file=told)


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
