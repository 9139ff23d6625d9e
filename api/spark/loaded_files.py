"""`viewtide load --spark`: tasks read the files, one each, and stage their rows; then all of them are loaded as one
transaction, as without Spark.

Tasks read with the code of `viewtide load` itself, so that the values, the defaults and the errors are the same.
`spark.read` takes other texts for numbers and dates, and leaves columns out that are not there.

    shop.db/spark/<job>/<part>.rows         for a directory; a served node's come to the driver as messages
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from pyspark import TaskContext

from ..bulk import Rows
from ..changetables.errors import Error, InterfaceError, OperationalError
from ..changetables.evaluators.spark_session import spark_session
from ..changetables.schema import Table
from ..files import Source, chunks_of
from ..uploads import keep_chunk, kept_chunks
from .options import Options
from .staging import MESSAGE_BYTES_MAX, discard, folder_of, make_room

if TYPE_CHECKING:
    from ..arrow import RecordBatch


class ReadFile(NamedTuple):
    """What a task made of a file. `data`: its rows, if they are not in the file `part`. `error`: what is wrong with it
    (class, message and hint), which is the user's to know, and no failure of the task."""

    part: str
    rows: int
    data: bytes | None = None
    error: tuple[type[Error], str, str] | None = None


class StagedFiles(NamedTuple):
    """`begun`: as in `Places`."""

    chunks: Iterator[RecordBatch | Rows]
    begun: list[tuple[str, int]]


@contextmanager
def staged_files(options: Options, sources: Sequence[Source], table: Table) -> Iterator[StagedFiles]:
    """The rows of files, read by Spark, while this is open."""
    context = spark_session().sparkContext
    job = uuid.uuid4().hex
    make_room(options, job)
    try:
        # Tasks may have another working directory.
        named = [source._replace(path=source.path.resolve()) for source in sources]
        found = context.parallelize(named, len(named)).map(partial(_stage, options, job, table)).collect()
        for each in found:
            if each.error is not None:
                kind, message, hint = each.error
                raise kind(message, hint=hint)
        begun, rows_count = [], 0
        for source, each in zip(sources, found, strict=True):
            begun.append((f"{source.name}, ", rows_count))
            rows_count += each.rows
        yield StagedFiles(_chunks(options, job, found), begun)
    finally:
        discard(options, job)


def _stage(options: Options, job: str, table: Table, source: Source) -> ReadFile:
    """What a task does."""
    task = TaskContext.get()
    if task is None:
        raise InterfaceError("files are read by tasks of Spark", hint="call staged_files")
    # Every attempt has its own file.
    part = f"{task.partitionId()}-{task.taskAttemptId()}"
    try:
        if options.directory is None:
            kept = io.BytesIO()
            rows_count = _kept(kept, source, table, MESSAGE_BYTES_MAX)
            return ReadFile(part, rows_count, kept.getvalue())
        path = folder_of(options.directory, job) / f"{part}.rows"
        path.touch(mode=0o600)
        with path.open("wb") as file:
            return ReadFile(part, _kept(file, source, table, None))
    except Error as error:
        return ReadFile(part, 0, error=(type(error), error.message, error.hint))


def _kept(file: IO[bytes], source: Source, table: Table, bytes_max: int | None) -> int:
    rows_count = 0
    for chunk in chunks_of(source, table, lambda _: None):
        rows_count += keep_chunk(file, chunk)
        if bytes_max is not None and file.tell() > bytes_max:
            raise OperationalError(
                f"{source.name} has more than {bytes_max} bytes of rows, which is what a task can send",
                hint="divide it into several files, or leave --spark out",
            )
    return rows_count


def _chunks(options: Options, job: str, found: Sequence[ReadFile]) -> Iterator[RecordBatch | Rows]:
    for each in found:
        if each.data is not None:
            yield from kept_chunks(io.BytesIO(each.data))
        elif options.directory is not None:
            with (folder_of(options.directory, job) / f"{each.part}.rows").open("rb") as file:
                yield from kept_chunks(file)
