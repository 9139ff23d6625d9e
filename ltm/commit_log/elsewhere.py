"""Commit logs that others can read and seal: a log for each life of a process, in a place that all processes share.

Sealing closes a log for good. What its writer was told to be durable is in it, and nothing gets into it afterwards:
whoever seals it, once or again, reads the same.
"""

from __future__ import annotations

from typing import Protocol

from ...changetables.errors import OperationalError
from ..ports import LogRecord


class LogSealed(OperationalError):
    """Another process has closed this log: the flush is not in it, or nobody will know that it is."""


class OwnLog(Protocol):
    """The log of this life, as its one writer sees it."""

    def append(self, payload: bytes) -> int:
        """As in `CommitLog`; `LogSealed`: every further append is refused, too."""

    def trim(self, below_lsn: int) -> None: ...

    @property
    def wants_spare(self) -> bool:
        """As in `CommitLog`, and the next."""

    def prepare(self) -> bool: ...

    def close(self) -> None: ...


class LogsElsewhere(Protocol):
    #: Whether an append takes no longer than a local sync: then it is made inline by the thread that handles messages.
    is_local: bool

    def create(self, log: str) -> OwnLog:
        """A new one. `LogSealed`: there is, or was, one of this name."""

    def seal(self, log: str) -> list[LogRecord]:
        """All its flushes. One that does not exist is sealed empty: nobody will ever write it."""

    def read(self, log: str, from_lsn: int) -> tuple[list[LogRecord], bool] | None:
        """The flushes from an lsn on, and whether it is sealed; None: there is none. It may grow unless sealed."""
