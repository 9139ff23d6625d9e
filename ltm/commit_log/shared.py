"""Commit logs of many processes in one directory of one machine, each in segment files of its own.

    <directory>/ltm-1:3/*.log       the segments of the log "ltm-1/3"
    <directory>/ltm-1:3/SEALING     somebody is about to seal it
    <directory>/ltm-1:3/SEALED      it is sealed: the last lsn in it, as text

A process may hold the files open and go on writing, not knowing that it is shut out. So the writer looks for SEALING
after each sync and before it acknowledges, and who seals it creates SEALING before it reads: either the writer sees the
mark and acknowledges nothing, or the reader sees the flush. What was written but not acknowledged is in the log or not;
which of both is settled by the first one who creates SEALED, for everybody who reads the log later.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from ...changetables.errors import InterfaceError, OperationalError
from ..ports import LogRecord
from .elsewhere import LogSealed
from .segments import DIRECTORY_MODE, FILE_MODE, SegmentLog, read_only

#: A log that is being written, rolled over or trimmed while it is read may look damaged: its writer stops at its next
#: flush, because of the mark. Read so often, so long apart, before it is taken for damage.
READS_MAX = 10
READ_AGAIN_MS = 50

_LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/[0-9]{1,12}")
_SEALING, _SEALED = "SEALING", "SEALED"


class SharedDirectory:
    """Implements `LogsElsewhere`."""

    is_local = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)

    def _place(self, log: str) -> Path:
        if not _LOG_NAME.fullmatch(log):
            raise InterfaceError(f"{log!r} is no name of a log", hint='it is "process/number"')
        return self._directory / log.replace("/", ":")

    def create(self, log: str) -> SharedLog:
        place = self._place(log)
        try:
            place.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError as error:
            raise LogSealed(f"the log {log} has been used before", hint="begin another one") from error
        _sync_directory(self._directory)
        return SharedLog(log, place)

    def seal(self, log: str) -> list[LogRecord]:
        place = self._place(log)
        with suppress(FileExistsError):
            place.mkdir(mode=DIRECTORY_MODE)
        (place / _SEALING).touch(FILE_MODE)
        _sync_directory(place)
        _sync_directory(self._directory)
        end = _end_of(place)
        if end is None:
            found = _read(place)
            end = _settle(place, found[-1].lsn if found else 0)
        # Once more: another one who was first may have read further.
        return [record for record in _read(place) if record.lsn <= end]

    def read(self, log: str, from_lsn: int) -> tuple[list[LogRecord], bool] | None:
        place = self._place(log)
        if not place.is_dir():
            return None
        end = _end_of(place)
        records = [record for record in _read(place) if record.lsn >= from_lsn]
        return [record for record in records if end is None or record.lsn <= end], end is not None


class SharedLog:
    """Implements `OwnLog`."""

    def __init__(self, log: str, place: Path) -> None:
        self._log = log
        self._sealing = str(place / _SEALING)
        self._segments = SegmentLog(place, on_report=lambda text: None)

    def append(self, payload: bytes) -> int:
        lsn = self._segments.append(payload)
        # After the sync, before anybody hears of it.
        if os.path.exists(self._sealing):
            self._segments.close()
            raise LogSealed(f"another process has sealed the log {self._log}")
        return lsn

    def trim(self, below_lsn: int) -> None:
        self._segments.trim(below_lsn)

    @property
    def wants_spare(self) -> bool:
        return self._segments.wants_spare

    def prepare(self) -> bool:
        return self._segments.prepare()

    def close(self) -> None:
        self._segments.close()


def _read(place: Path) -> list[LogRecord]:
    for again in range(READS_MAX):
        try:
            return read_only(place)
        except (OperationalError, FileNotFoundError):
            if again == READS_MAX - 1:
                raise
            time.sleep(READ_AGAIN_MS / 1000)
    raise AssertionError("unreachable")


def _end_of(place: Path) -> int | None:
    try:
        return int((place / _SEALED).read_text())
    except FileNotFoundError:
        return None


def _settle(place: Path, end: int) -> int:
    """The last lsn in it: the first who says so is right."""
    mine = place / f"sealed-{os.urandom(8).hex()}"
    fd = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        os.write(fd, str(end).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    with suppress(FileExistsError):
        os.link(mine, place / _SEALED)
    mine.unlink()
    _sync_directory(place)
    settled = _end_of(place)
    assert settled is not None
    return settled


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
