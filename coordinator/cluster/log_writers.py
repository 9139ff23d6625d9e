"""Group commit for the log of one life: records are gathered, and a flush takes all of them.

A log on a local disk is synced inline, by the thread that handles messages. One that is elsewhere has a thread of its
own, which appends what has gathered while it waited for the append before: messages are handled meanwhile.

Whatever goes wrong with an append ends the life: nobody knows what is in the log, and the next life seals it and sees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from threading import Condition, Thread
from typing import Protocol

from ...changetables.errors import Error
from ...ltm.cluster.flushes import encode_flush
from ...ltm.cluster.member import LifeOver
from ...ltm.commit_log.elsewhere import OwnLog

#: Records in one flush, and their bytes: it stays well below what a log takes at once, and a reader decodes it as a
#: whole. A record that is larger goes alone.
FLUSH_RECORDS_MAX = 4_096
FLUSH_BYTES_MAX = 16 * 2**20
#: Records that wait for a log that is elsewhere. Beyond it the process takes no more messages until some are durable.
WAITING_RECORDS_MAX = 50_000


class LogWriter(Protocol):
    """`durable_lsn` and `last_lsn` count records, from 1."""

    durable_lsn: int
    last_lsn: int
    flushes: int

    def add(self, records: Sequence[object]) -> None: ...

    def flush(self) -> None:
        """Begin, or finish, making all that was added durable. Raises LifeOver."""

    @property
    def is_full(self) -> bool: ...

    def trim(self, below_lsn: int) -> None: ...

    def close(self) -> None: ...


class _Places:
    """Which flush a record is in: for trimming, which is asked for by record."""

    def __init__(self) -> None:
        self._first: deque[tuple[int, int]] = deque()

    def add(self, first_lsn: int, flush_lsn: int) -> None:
        self._first.append((first_lsn, flush_lsn))

    def below(self, lsn: int) -> int:
        """Flushes below this one have only records below `lsn`; 0: there is none."""
        found = 0
        while len(self._first) > 1 and self._first[1][0] <= lsn:
            self._first.popleft()
            found = self._first[0][1]
        return found


class InlineWriter:
    """For a log on a local disk. `later` runs something in another thread."""

    def __init__(self, log: OwnLog, later: Callable[[Callable[[], object]], None]) -> None:
        self._log = log
        self._later = later
        self._gathered: list[object] = []
        self._places = _Places()
        self.durable_lsn = self.last_lsn = self.flushes = 0

    def add(self, records: Sequence[object]) -> None:
        self._gathered.extend(records)
        self.last_lsn += len(records)

    def flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        start = 0
        while start < len(gathered):
            first_lsn = self.durable_lsn + 1
            payload, count = encode_flush(first_lsn, gathered[start : start + FLUSH_RECORDS_MAX], FLUSH_BYTES_MAX)
            try:
                flush_lsn = self._log.append(payload)
            except Error as error:
                raise LifeOver(f"the log takes nothing more: {error}") from error
            self._places.add(first_lsn, flush_lsn)
            start += count
            self.durable_lsn += count
            self.flushes += 1
        if self._log.wants_spare:
            self._later(self._log.prepare)

    @property
    def is_full(self) -> bool:
        return False

    def trim(self, below_lsn: int) -> None:
        flush_lsn = self._places.below(below_lsn)
        if flush_lsn:
            self._later(lambda: self._log.trim(flush_lsn))

    def close(self) -> None:
        self._log.close()


class ThreadWriter:
    """For a log that is elsewhere: it is opened in the thread, too. `wake` is called from there."""

    def __init__(self, open_log: Callable[[], OwnLog], wake: Callable[[], None]) -> None:
        self._open_log = open_log
        self._wake = wake
        self._gathered: list[object] = []
        self._wanted = Condition()
        self._trim_below = 0
        self._failure: Exception | None = None
        self._closed = False
        self._places = _Places()
        self.durable_lsn = self.last_lsn = self.flushes = 0
        self._thread = Thread(target=self._run, name="appender", daemon=True)
        self._thread.start()

    def add(self, records: Sequence[object]) -> None:
        with self._wanted:
            self._gathered.extend(records)
            self.last_lsn += len(records)

    def flush(self) -> None:
        with self._wanted:
            if self._failure is not None:
                raise LifeOver(f"the log takes nothing more: {self._failure}") from self._failure
            if self._gathered:
                self._wanted.notify()

    @property
    def is_full(self) -> bool:
        return self.last_lsn - self.durable_lsn > WAITING_RECORDS_MAX

    def trim(self, below_lsn: int) -> None:
        with self._wanted:
            self._trim_below = max(self._trim_below, below_lsn)
            self._wanted.notify()

    def close(self) -> None:
        """What is being appended may still get there; nobody is told."""
        with self._wanted:
            self._closed = True
            self._wanted.notify()

    def _run(self) -> None:
        try:
            with closing(self._open_log()) as log:
                while self._work(log):
                    self._wake()
        except Exception as error:
            # Carried over to the thread that handles messages: its next flush raises.
            with self._wanted:
                self._failure = error
            self._wake()

    def _work(self, log: OwnLog) -> bool:
        with self._wanted:
            self._wanted.wait_for(lambda: self._closed or self._gathered or self._trim_below)
            if self._closed:
                return False
            batch = self._gathered[:FLUSH_RECORDS_MAX]
            trim_below, self._trim_below = self._trim_below, 0
        if batch:
            first_lsn = self.durable_lsn + 1
            payload, count = encode_flush(first_lsn, batch, FLUSH_BYTES_MAX)
            with self._wanted:
                # Meanwhile others have only added to it.
                del self._gathered[:count]
            flush_lsn = log.append(payload)
            self._places.add(first_lsn, flush_lsn)
            self.flushes += 1
            self.durable_lsn += count
        if trim_below:
            flush_lsn = self._places.below(trim_below)
            if flush_lsn:
                log.trim(flush_lsn)
        return True
