"""What must outlive a participant's log when a store has its rows: a checkpoint makes most records superfluous.

A checkpoint at T means that the store has every version up to T, and that none up to T will ever come or change: T is a
floor, and everything that was voted for at or below it is decided. So whoever replays the log skips what is at or below
T, and may begin after a *position*: below the lowest record of a commit above T. Of the records up to there these are
still needed, and are kept beside the checkpoint (rule V6):

    votes that are not decided, and decisions that not all participants have, as far as it is known
    votes from before the position that were decided above T since
    committed and refused transactions, by tx_id, for as long as they are remembered

Deferred views' rows are an exception to T: a step writes at its W1, which is below the floor. They are final up to the
published watermark only, and what they are made from is needed above it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .holds import PREFIX_BYTES
from .messages import Attempt, TxId
from .records import Decided, Forgotten, Record

if TYPE_CHECKING:
    from .participant import Participant, _Part


class Stored(NamedTuple):
    """The store has everything up to `ts`, but of some tables only up to an earlier timestamp."""

    ts: int
    tables: dict[bytes, int]

    def of(self, key: bytes) -> int:
        tables = self.tables
        return tables.get(key[:PREFIX_BYTES], self.ts) if tables else self.ts

    @property
    def lowest(self) -> int:
        return min([self.ts, *self.tables.values()])


NOTHING_STORED = Stored(0, {})

#: (tx_id, start, commit_ts); commit_ts 0: attempts up to that start are refused.
Remembered = tuple[TxId, int, int]


class _Commit(NamedTuple):
    first_lsn: int
    commit_ts: int
    attempt: Attempt
    part: _Part | None


class Journal:
    """`position`: records up to this lsn of the participant's own log are not needed, but for those that are kept."""

    def __init__(self, stored: Stored = NOTHING_STORED, position: int = 0) -> None:
        self.stored = stored
        self.position = position
        #: That of the checkpoint that is being made: votes up to it are kept beside that one.
        self._reached = position
        #: The highest commit_ts that was decided here.
        self.highest_ts = 0
        #: Transactions to be remembered that are nowhere but in the log.
        self.memory: list[Remembered] = []
        self._commits: list[_Commit] = []

    def committed(
        self, attempt: Attempt, tx_ids: Iterable[TxId], first_lsn: int, commit_ts: int, part: _Part | None = None
    ) -> None:
        """`part` is given if its vote may be kept beside the checkpoint."""
        self.memory += [(tx_id, attempt[1], commit_ts) for tx_id in tx_ids]
        self.highest_ts = max(self.highest_ts, commit_ts)
        kept = part if first_lsn <= self._reached else None
        self._commits.append(_Commit(first_lsn, commit_ts, attempt, kept))

    def refused(self, attempt: Attempt) -> None:
        self.memory.append((*attempt, 0))

    def adopted(self, lsn: int, ts: int) -> None:
        """Keys came here with versions that the store does not have: they are at or below `ts`."""
        self._commits.append(_Commit(lsn, ts, ((0, 0), 0), None))

    def needed_from(self, covered_ts: int, last_lsn: int) -> int:
        """The position that a checkpoint can have when all commits up to `covered_ts` are not needed any more."""
        first = [
            each.first_lsn for each in self._commits if each.commit_ts > covered_ts and each.first_lsn > self.position
        ]
        return max(self.position, min([*first, last_lsn + 1]) - 1)

    def kept(self, participant: Participant, position: int, covered_ts: int) -> list[Record]:
        """The records from before the position that are still needed."""
        from .participant import voted  # the participant has a journal

        self._reached = position
        found: dict[Attempt, list[Record]] = {}
        undecided: list[Record] = []
        for _, commit_ts, attempt, part in self._commits:
            if part is not None and commit_ts > covered_ts:
                found[attempt] = [voted(attempt, part), Decided(attempt, commit_ts), Forgotten((attempt,))]
        for attempt, part in participant.parts.items():
            if part.min_ts and part.first_lsn <= position:
                if part.decided is None:
                    undecided.append(voted(attempt, part))
                else:
                    found[attempt] = [voted(attempt, part), Decided(attempt, part.decided)]
        # What those hold that are not decided, decided ones may have held before.
        return [*(record for records in found.values() for record in records), *undecided]

    def saved(self, stored: Stored, position: int, covered_ts: int) -> None:
        """A checkpoint is durable."""
        self.stored, self.position = stored, position
        self._commits = [each for each in self._commits if each.commit_ts > covered_ts]
