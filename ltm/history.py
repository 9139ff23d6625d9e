"""Places in the commit log by time: where to begin to read what came after a timestamp, and what may be trimmed.

Nothing is kept for it beside the log. Transactions and changes of the catalog stand there in the order of their
timestamps, so a place is found by halving, and a database that was opened again knows as much as before.
"""

from __future__ import annotations

from typing import NamedTuple

from .codec import unpack_stream
from .ports import CommitLog

#: The first word of what a flush consists of; steps have others, see `steps`.
COMMIT, CATALOG = 0, 1


class History(NamedTuple):
    """How much of the log is kept after a checkpoint: what is younger, but not more than so many bytes. `age` is the
    difference of two timestamps."""

    age: int
    bytes_max: int


class Stamped(NamedTuple):
    """A flush, and the timestamp of the first transaction or change of the catalog in it."""

    lsn: int
    ts: int


def first_stamped(log: CommitLog, from_lsn: int) -> Stamped | None:
    """The first flush with a timestamp at or after a place; None if steps of views are all there is."""
    for record in log.read(from_lsn):
        for item in unpack_stream(record.payload):
            if item[0] in (COMMIT, CATALOG):
                ts = item[2] if item[0] == COMMIT else item[1]
                assert isinstance(ts, int), "a timestamp is a number"
                return Stamped(record.lsn, ts)
    return None


def place_before(log: CommitLog, ts: int) -> int | None:
    """A place in the log: everything that has a timestamp above `ts` comes after it. None: some of that was trimmed.

    A step has W1 for its timestamp. It was drawn before the step's first record was written, and what is written after
    it has a higher one: so a flush that has a transaction at or below `ts` has no such step before that transaction.
    """
    oldest = log.oldest_lsn
    first = first_stamped(log, oldest)
    if first is None or first.ts > ts:
        return 0 if oldest == 1 else None
    low, high = first.lsn, log.last_lsn + 1
    while high - low > 1:
        middle = (low + high) // 2
        found = first_stamped(log, middle)
        if found is None or found.ts > ts:
            high = middle
        else:
            low = found.lsn
    return low - 1


def passed_lsn(log: CommitLog, now_ts: int, history: History) -> int:
    """The last flush that is too old to be kept."""
    passed = _passed_by_size(log, history.bytes_max)
    old_ts = now_ts - history.age
    first = first_stamped(log, passed + 1)
    if first is None or first.ts > old_ts:
        return passed
    return max(passed, place_before(log, old_ts) or 0)


def _passed_by_size(log: CommitLog, bytes_max: int) -> int:
    low, high = log.oldest_lsn - 1, log.last_lsn
    while low < high:
        middle = (low + high) // 2
        if log.bytes_since(middle + 1) <= bytes_max:
            high = middle
        else:
            low = middle + 1
    return low
