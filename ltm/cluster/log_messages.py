"""Logs that live elsewhere: anyone can read another's, and seal it before taking over what it is about.

A sealed log takes nothing more: what its writer still appends is not durable, and its writer is told so. Answers are
not lost but for partitions: ask again after a while.
"""

from __future__ import annotations

from typing import NamedTuple

LOGS = "logs"


class Seal(NamedTuple):
    """Close a log for good. Done again, it answers the same."""

    request: int
    log: str


class ReadLog(NamedTuple):
    """What is durable in it from an lsn on; not sealed, it may grow."""

    request: int
    log: str
    from_lsn: int = 1


class LogRecords(NamedTuple):
    """The answer to both. `first_lsn` is that of the first record here, or of the next one if there is none."""

    request: int
    log: str
    first_lsn: int
    records: tuple[object, ...]
    sealed: bool


class NoLog(NamedTuple):
    request: int
    log: str
