"""What the tasks of a writing job leave for its one commit: Arrow files that only the owner of the database can read.

    shop.db/spark/<job>/<part>.arrow        for a directory: tasks and commit see the same disk
    in the commit messages                  for a served node or a cluster

Nothing of it is part of the database. A job that ends, well or not, takes its folder away; what a killed one left is
taken away by a later one.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow
from pyspark.sql.datasource import WriterCommitMessage

from ..changetables.errors import InterfaceError, OperationalError
from .options import Options

FOLDER = "spark"
#: Staged rows of one task that go to the driver as a message.
MESSAGE_BYTES_MAX = 64 << 20
#: What nobody has touched for so long was left by a job that was killed.
LEFT_S = 7 * 24 * 3_600.0

_NAME = re.compile(r"[0-9A-Za-z-]{1,100}")


class Staged(WriterCommitMessage):
    """What one task staged: a file of its job, or the bytes of one. `query`: of a stream, which one it is."""

    def __init__(self, job: str, part: str, rows: int, data: bytes | None = None, query: str = "") -> None:
        self.job, self.part, self.rows, self.data, self.query = job, part, rows, data, query


def make_room(options: Options, job: str) -> None:
    """Tasks stage only where there is room for their job: one that outlives its job leaves nothing."""
    if options.directory is not None:
        folder = folder_of(options.directory, job)
        for made in (folder.parent, folder):
            made.mkdir(mode=0o700, exist_ok=True)


def stage(options: Options, job: str, part: str, batches: Iterator[pyarrow.RecordBatch], query: str = "") -> Staged:
    """Write what a task was given."""
    directory = options.directory
    if directory is None:
        return _as_message(job, part, batches, query)
    path = folder_of(directory, job) / f"{_checked(part)}.arrow"
    try:
        path.touch(mode=0o600)
        with path.open("wb") as file:
            rows = _written(batches, file)
    except FileNotFoundError:
        raise OperationalError(f"the job that this task is of has ended: {path.parent} is gone") from None
    return Staged(job, part, rows, query=query)


def _as_message(job: str, part: str, batches: Iterator[pyarrow.RecordBatch], query: str) -> Staged:
    sink = pyarrow.BufferOutputStream()
    rows = _written(batches, sink)
    data = sink.getvalue().to_pybytes()
    if len(data) > MESSAGE_BYTES_MAX:
        raise OperationalError(
            f"a task wrote {len(data)} bytes, and {MESSAGE_BYTES_MAX} can be staged for a url",
            hint="divide it into more partitions, or write several times",
        )
    return Staged(job, part, rows, data, query)


def _written(batches: Iterator[pyarrow.RecordBatch], sink: object) -> int:
    """How many rows there were. Without any, nothing is written."""
    rows, writer = 0, None
    try:
        for batch in batches:
            if writer is None:
                writer = pyarrow.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def staged(options: Options, messages: Sequence[Staged]) -> Iterator[pyarrow.RecordBatch]:
    """Everything that was staged, batch by batch."""
    directory = options.directory
    for message in messages:
        if not message.rows:
            continue
        if message.data is not None:
            yield from pyarrow.ipc.open_stream(message.data)
        elif directory is not None:
            with pyarrow.OSFile(str(folder_of(directory, message.job) / f"{_checked(message.part)}.arrow")) as file:
                yield from pyarrow.ipc.open_stream(file)


def discard(options: Options, job: str) -> None:
    """Take away what was staged for a job, and what others left long ago."""
    directory = options.directory
    if directory is None:
        return
    folder = folder_of(directory, job)
    # Under another name first: tasks that are still at work find it no more.
    with suppress(OSError):  # there is none, or it is gone already
        gone = folder.rename(folder.with_name(f"{folder.name}.gone"))
        shutil.rmtree(gone, ignore_errors=True)
    long_ago = time.time() - LEFT_S
    with suppress(OSError):  # another job is at it, too
        for left in folder.parent.iterdir():
            if left.stat().st_mtime < long_ago:
                shutil.rmtree(left, ignore_errors=True)
        folder.parent.rmdir()


def folder_of(directory: Path, job: str) -> Path:
    return directory / FOLDER / _checked(job)


def _checked(name: str) -> str:
    """A name that leads nowhere else."""
    if not _NAME.fullmatch(name):
        raise InterfaceError(f"{name!r} is no name of staged rows")
    return name
