"""What is killed in processes of Spark: it does so itself, at a stage of its work, by a signal that none can catch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from viewtide import bulk, remote_calls
from viewtide.changetables.change_table import Change
from viewtide.coordinator import bulk_load
from viewtide.coordinator.embedded import Engine
from viewtide.spark import writing
from viewtide.spark.options import Options
from viewtide.spark.source import ViewtideSource
from viewtide.spark.writing import Messages, ViewtideWriter

from .victim import BEFORE_PUBLISH, WRITING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyarrow import RecordBatch

#: Rows that are handed on, or written, at once: each load takes several turns.
SOME_ROWS = 100


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingPart:
    """Rows for a worker, which dies over them. In the process that made it, it is what it was."""

    rows: Callable[[], Iterable[Sequence[Change]]]
    made_in: int = field(default_factory=os.getpid)

    def __call__(self) -> Iterator[list[Change]]:
        for some in self.rows():
            yield list(some)
            if os.getpid() != self.made_in:
                die()


@dataclass(frozen=True)
class Listed:
    changes: list[Change]

    def __call__(self) -> list[list[Change]]:
        return [self.changes]


def dying_batches(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """For `mapInArrow`."""
    for batch in batches:
        yield batch
        die()


class KillingSource(ViewtideSource):
    """As "viewtide", but with `dies` the process that commits dies at that stage. Every load is one in bulk."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._stage = options.get("dies", "")

    @classmethod
    def name(cls) -> str:
        return "viewtide_killing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return KillingWriter(self._said, self._stage)


class KillingWriter(ViewtideWriter):
    def __init__(self, options: Options, stage: str) -> None:
        super().__init__(options)
        self._stage = stage

    def commit(self, messages: Messages) -> None:
        """In a process of its own, which does nothing else: so nothing has to be put back."""
        writing.BULK_ROWS = bulk.STAGED_ROWS_MIN = 1
        bulk.CHUNK_ROWS = bulk_load.WRITE_ROWS = remote_calls.WRITES_ROWS_MAX = SOME_ROWS
        if self._stage == WRITING:
            _die_after(bulk_load._Loading, "_stage_all")
        elif self._stage == BEFORE_PUBLISH:
            # Where it has the directory open itself, and where another process has.
            Engine.commit_load = die  # type: ignore[assignment,method-assign]
            _die_before_asking("load")
        super().commit(messages)


def _die_before_asking(what: str) -> None:
    ask = remote_calls.SessionCalls.ask

    def dying(self: remote_calls.SessionCalls, asked: str, *args: Any, **kwargs: Any) -> remote_calls.Asking[object]:
        return die() if asked == what else ask(self, asked, *args, **kwargs)  # type: ignore[func-returns-value]

    remote_calls.SessionCalls.ask = dying  # type: ignore[method-assign]


def _die_after(kind: type, name: str) -> None:
    method = getattr(kind, name)

    def dying(self: object, *args: object) -> None:
        method(self, *args)
        die()

    setattr(kind, name, dying)
