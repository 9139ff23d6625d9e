"""Writing: tasks stage their rows, the driver commits all of them as one transaction (`staging`, `loading`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..changetables.errors import InterfaceError, NotSupportedError
from .columns import positions_of
from .loading import BULK_ROWS, JOB, forget_jobs, load_in_bulk, load_once
from .options import Options
from .reading import columns_of
from .staging import Staged, discard, make_room, stage, staged

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: Where Spark says which stream and which batch a task works for.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"

Messages = Sequence[WriterCommitMessage | None]


def check_target(options: Options, schema: StructType, overwrite: bool) -> None:
    """What can be refused before anything is computed."""
    if overwrite:
        raise NotSupportedError("rows are added, not overwritten", hint='use .mode("append"), and delete rows by SQL')
    if options.is_view:
        raise InterfaceError(f"{options.name!r} is a view", hint="write into the tables that it is made from")
    if options.as_of is not None or options.since is not None:
        raise InterfaceError("as_of and since are for reading")
    positions_of(columns_of(options), schema.names)


class ViewtideWriter(DataSourceArrowWriter):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._job = uuid.uuid4().hex
        make_room(options, self._job)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._job, _part(), iterator)

    def commit(self, messages: Messages) -> None:
        found = _staged_messages(messages)
        options = self._options
        batches = partial(staged, options, found)
        with options.open() as db:
            if sum(message.rows for message in found) >= BULK_ROWS:
                load_in_bulk(db, options.name, batches)
            else:
                load_once(db, options.name, self._job, JOB, batches)
                forget_jobs(db)
        discard(options, self._job)

    def abort(self, messages: Messages) -> None:
        discard(self._options, self._job)


class ViewtideStreamWriter(DataSourceStreamArrowWriter):
    """A batch that is repeated, because the driver died after its commit, is recognised by its stream and number."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise InterfaceError("Spark does not say which stream this is")
        make_room(self._options, f"{query}-{batch}")
        return stage(self._options, f"{query}-{batch}", _part(), iterator, query)

    def commit(self, messages: Messages, batchId: int) -> None:
        found = _staged_messages(messages)
        if not found:
            return
        options = self._options
        with options.open() as db:
            load_once(db, options.name, found[0].query, batchId, partial(staged, options, found))
        discard(options, found[0].job)

    def abort(self, messages: Messages, batchId: int) -> None:
        for job in {message.job for message in _staged_messages(messages)}:
            discard(self._options, job)


def _staged_messages(messages: Messages) -> list[Staged]:
    """Of tasks that failed there is none."""
    return [message for message in messages if isinstance(message, Staged)]


def _part() -> str:
    """Every attempt of every task has its own file."""
    return f"{_context().partitionId()}-{_context().taskAttemptId()}"


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InterfaceError("rows are staged by tasks of Spark")
    return context
