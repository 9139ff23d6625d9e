"""What the commit log keeps of transactions over several LTMs.

Committed   the only participant's vote: the transaction is committed
Voted       writes, refreshes and what was looked up: recovery restores all holds (rule V3)
Refusal     this log will never vote for the attempt; attempts of the tx_id that started below it either (V5)
Decided     commit_ts of an attempt that has a vote here, 0: aborted
Forgotten   the decision is durable in all logs of the list: vote and decision need not be kept for others (V6)
Adopted     keys that another log owned before: all their versions, and what became of transactions there
"""

from __future__ import annotations

from typing import NamedTuple

from ...changetables.types import Row
from ..codec import with_one_nan
from .messages import Attempt, Refresh, TxId

#: (key, old row, new row): together they are the base change tables.
LoggedWrite = tuple[bytes, Row | None, Row | None]
#: A timestamp, and others for some tables (`journal.Stored`).
StoredTo = tuple[int, tuple[tuple[bytes, int], ...]]


class Committed(NamedTuple):
    attempt: Attempt
    commit_ts: int
    catalog_version: int
    writes: tuple[LoggedWrite, ...]
    refreshes: tuple[Refresh, ...]
    at: int = 0
    members: tuple[TxId, ...] = ()


class Voted(NamedTuple):
    attempt: Attempt
    priority: int
    min_ts: int
    catalog_version: int
    logs: tuple[str, ...]
    writes: tuple[LoggedWrite, ...]
    refreshes: tuple[Refresh, ...]
    looked_up: tuple[bytes, ...]
    looked_up_ranges: tuple[tuple[bytes, bytes], ...]
    at: int = 0
    members: tuple[TxId, ...] = ()


class Refusal(NamedTuple):
    attempt: Attempt
    reason: str


class Decided(NamedTuple):
    attempt: Attempt
    commit_ts: int


class Forgotten(NamedTuple):
    attempts: tuple[Attempt, ...]


class Adopted(NamedTuple):
    """`rows` are keys with their versions, newest first; `stop` None: no end. What was decided at or below
    `forgotten_ts` may be missing, and versions that only readers below `horizon` see. What is not among the rows is in
    the store up to `stored`, if there is one; `before` is up to where the log that adopts the keys had stored
    what it had then."""

    start: bytes
    stop: bytes | None
    rows: tuple[tuple[bytes, tuple[tuple[int, Row | None], ...]], ...]
    committed: tuple[tuple[TxId, int, int], ...]
    refused: tuple[tuple[TxId, int], ...]
    forgotten_ts: int
    horizon: int
    stored: StoredTo = (0, ())
    before: StoredTo = (0, ())


Record = Committed | Voted | Refusal | Decided | Forgotten | Adopted

#: The first word of a record in a log; never changed, only added to.
_KINDS: tuple[type[Record], ...] = (Committed, Voted, Refusal, Decided, Forgotten, Adopted)


def to_plain(record: Record) -> tuple[object, ...]:
    """As the codec takes it."""
    return (_KINDS.index(type(record)), *record)


def from_plain(item: tuple[object, ...]) -> Record:
    """The record that `to_plain` made this of."""
    kind, *fields = item
    assert isinstance(kind, int)
    record: Record = _KINDS[kind](*fields)  # type: ignore[arg-type]
    if isinstance(record, Committed | Voted):
        writes = tuple((key, _one_nan(old), _one_nan(new)) for key, old, new in record.writes)
        refreshes = tuple(
            (view, key, with_one_nan(group), with_one_nan(delta)) for view, key, group, delta in record.refreshes
        )
        return record._replace(writes=writes, refreshes=refreshes)
    if isinstance(record, Adopted):
        rows = tuple((key, tuple((ts, _one_nan(row)) for ts, row in versions)) for key, versions in record.rows)
        return record._replace(rows=rows)
    return record


def _one_nan(row: Row | None) -> Row | None:
    return None if row is None else with_one_nan(row)
