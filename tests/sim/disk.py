"""A process's disk: records in order, a buffer, and a sync that takes time. It outlives the process.

The world decides when a sync begins and ends; this file knows what is on the disk then, and after a crash.
"""

from __future__ import annotations

from random import Random

#: How long a sync takes: a good SSD, and the bad moments of it.
SYNC_US_MIN = 80
SYNC_US_MAX = 2_000
#: A slow disk takes so many times longer.
SLOW_FACTOR = 60
#: A trim frees whole segments only: up to so many records below it stay readable.
TRIM_RECORDS_LEFT_MAX = 3

ERROR = "error"
FULL = "full"


class Disk:
    def __init__(self, log: str, random: Random) -> None:
        self.log = log
        self._random = random
        self._records: list[object] = []
        #: Records that were written after it was sealed: they are nowhere, but their writer does not know yet.
        self._ghosts = 0
        self.first_lsn = 1
        self.durable_lsn = 0
        #: How far the sync under way goes; 0 if there is none.
        self.syncing_lsn = 0
        #: Counts crashes and failures: the end of a sync that began before one means nothing.
        self.generation = 0
        #: ERROR or FULL: the next sync, or the next append, fails.
        self.failing = ""
        #: Nothing is written any more, until the process starts again.
        self.failed = False
        #: Counts the faults that make it slow, because they overlap.
        self.slow = 0
        self.cut = False
        #: Somebody else has closed it for good.
        self.sealed = False

    @property
    def stored_lsn(self) -> int:
        return self.first_lsn + len(self._records) - 1

    @property
    def last_lsn(self) -> int:
        """As the writer counts."""
        return self.first_lsn + len(self._records) + self._ghosts - 1

    def records(self) -> list[object]:
        return list(self._records)

    def append(self, record: object) -> bool:
        """False: it is not written, because the disk is full or has failed."""
        if self.failed or self.failing == FULL:
            return False
        if self.sealed:
            self._ghosts += 1
        else:
            self._records.append(record)
        return True

    def sync_duration_us(self) -> int:
        part = self._random.random()
        duration = SYNC_US_MIN + int((SYNC_US_MAX - SYNC_US_MIN) * part * part * part)
        return duration * SLOW_FACTOR if self.slow else duration

    def begin_sync(self) -> bool:
        """Whether there is something to sync and no sync is under way."""
        if self.syncing_lsn or self.failed or self.last_lsn == self.durable_lsn:
            return False
        self.syncing_lsn = self.last_lsn
        return True

    def end_sync(self) -> bool:
        """False: it failed."""
        if self.failing == ERROR or self.sealed:
            return False
        self.durable_lsn = self.syncing_lsn
        self.syncing_lsn = 0
        return True

    def fail(self) -> None:
        self.failed = True
        self.syncing_lsn = 0
        self.generation += 1

    def trim(self, below_lsn: int) -> int:
        """Returns how many records went."""
        left = self._random.randint(0, TRIM_RECORDS_LEFT_MAX)
        count = min(below_lsn, self.durable_lsn + 1) - self.first_lsn - left
        if count <= 0:
            return 0
        del self._records[:count]
        self.first_lsn += count
        return count

    def crash(self) -> int:
        """Any suffix of what is not durable is lost; the first record of it may be torn. Returns how many are lost."""
        self.syncing_lsn = 0
        self.generation += 1
        if self.sealed:
            return 0
        lost = self._lose_suffix()
        self.cut = lost > 0 and self._random.random() < 0.5
        return lost

    def seal(self) -> None:
        """Nothing more gets into it. What was on its way may or may not be in; its writer learns that it is shut out
        when its next sync fails, not before."""
        if not self.sealed:
            self._ghosts = self._lose_suffix()
            self.durable_lsn = self.stored_lsn
            self.sealed = True

    def _lose_suffix(self) -> int:
        lost = self._random.randint(0, self.last_lsn - self.durable_lsn)
        if lost:
            del self._records[len(self._records) - lost :]
        return lost

    def boot(self) -> None:
        """The process opens it again: what is on it now is durable, and a failed device was replaced or emptied."""
        self.durable_lsn = self.last_lsn
        self.failed = False
