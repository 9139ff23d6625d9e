"""The commit log of a "memory:" database: the same contract, nothing on disk, gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ...changetables.errors import InterfaceError
from ..ports import LogRecord
from .format import check_payload, record_bytes, trimmed_away


class MemoryLog:
    """Keeps the records until they are trimmed, because deferred views and `changes()` read them from here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Lsns have no gaps, so a record's position is its lsn minus the oldest one. `_bytes_before` runs beside
        # `_records`: the size of all records ever appended before that one, so that `bytes_since` is a subtraction.
        self._records: list[LogRecord] = []
        self._bytes_before: list[int] = []
        self._bytes_total = 0
        self._oldest_lsn = 1
        self._closed = False

    def append(self, payload: bytes) -> int:
        check_payload(payload)
        with self._lock:
            self._check_open()
            lsn = self._oldest_lsn + len(self._records)
            self._records.append(LogRecord(lsn, payload))
            self._bytes_before.append(self._bytes_total)
            self._bytes_total += record_bytes(len(payload))
        return lsn

    def read(self, from_lsn: int) -> Iterator[LogRecord]:
        with self._lock:
            self._check_open()
            if max(from_lsn, 1) < self._oldest_lsn:
                raise trimmed_away(from_lsn, self._oldest_lsn)
            # A copy, so that appends and trims while the caller iterates do not disturb it.
            return iter(self._records[max(from_lsn - self._oldest_lsn, 0) :])

    def trim(self, below_lsn: int) -> None:
        with self._lock:
            self._check_open()
            # The newest one stays, as in a file: it tells when the log begins.
            count = min(max(below_lsn - self._oldest_lsn, 0), max(len(self._records) - 1, 0))
            del self._records[:count]
            del self._bytes_before[:count]
            self._oldest_lsn += count

    def prepare(self) -> bool:
        """There is nothing to prepare in memory."""
        return False

    @property
    def wants_spare(self) -> bool:
        return False

    @property
    def last_lsn(self) -> int:
        with self._lock:
            return self._oldest_lsn + len(self._records) - 1

    @property
    def oldest_lsn(self) -> int:
        return self._oldest_lsn

    @property
    def cut_bytes(self) -> int:
        return 0

    def bytes_since(self, lsn: int) -> int:
        """What the kept records with an lsn >= `lsn` would take in a segment file."""
        with self._lock:
            position = max(lsn - self._oldest_lsn, 0)
            return self._bytes_total - self._bytes_before[position] if position < len(self._records) else 0

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the commit log is closed", hint="open the database again")
