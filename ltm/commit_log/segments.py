"""The commit log in a directory of segment files; `format` has the bytes and the rules of reading.

Files are zero-filled when they are made and reused after a trim, so that a sync has no metadata to write. A flush is
one synced write (`blocks`) by the thread that appends: a helper thread would have to fight for the interpreter with
every flush.
"""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ...changetables.errors import InterfaceError, OperationalError
from ..ports import Damaged, LogPart, LogRecord
from .blocks import BLOCK_BYTES, BlockFile
from .format import (
    FORMAT_VERSION,
    RECORD_HEADER_BYTES,
    SALT_BYTES,
    SEGMENT_HEADER_BYTES,
    TERMINATOR,
    Place,
    SegmentHeader,
    check_payload,
    decode_record_header,
    decode_segment_header,
    encode_record,
    encode_segment_header,
    find_later_record,
    holds_record,
    record_bytes,
    trimmed_away,
    walk_records,
)

SEGMENT_BYTES = 4 << 20
# One to roll over to at once, and one for the trim that comes before it is used; more would only hold disk space.
SPARE_SEGMENTS_MAX = 2
# A reader that starts in the middle of a segment verifies at most about this much before it finds its lsn.
INDEX_BYTES = 64 << 10
# Zeros are written in pieces, so that filling a segment holds neither much memory nor the interpreter for long.
FILL_BYTES = 1 << 20

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_FAILURE_HINT = "check disk and free space, then open the database again: opening finds what is durable"
_ZEROS = memoryview(bytes(FILL_BYTES))


@dataclass(slots=True, eq=False)
class _Segment:
    """One file of the chain. `places` is a sparse index; `end` is replaced as a whole: readers need no lock for it."""

    path: Path
    salt: bytes
    segment_bytes: int
    places: list[Place]
    end: Place

    @property
    def first_lsn(self) -> int:
        return self.places[0].lsn

    def advance(self, end: Place) -> None:
        """The record from the old end to `end` is durable now."""
        if self.end.offset - self.places[-1].offset >= INDEX_BYTES:
            self.places.append(self.end)
        self.end = end

    def place_at_or_before(self, lsn: int) -> Place:
        return self.places[max(bisect_right(self.places, lsn, key=lambda place: place.lsn) - 1, 0)]

    def part(self, from_lsn: int) -> LogPart:
        return LogPart(str(self.path), self.salt, from_lsn, self.place_at_or_before(from_lsn), self.end)


@dataclass(slots=True, eq=False)
class _Tail:
    """The last segment as it was found on disk. `last_flush_offset` is where its last write began."""

    segment: _Segment
    data: bytes
    last_flush_offset: int


class SegmentLog:
    """A `CommitLog` on local disk.

    One thread appends; everything else but `close` may be called from other threads meanwhile. Only one log may be open
    on a directory: the owner of the database directory sees to that. After a failed write or sync the log refuses every
    further append, because after a failed sync nobody knows what the device holds: asking again may answer "done" for
    data that was dropped. Opening it anew finds out.
    """

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, on_report: Callable[[str], None]
    ) -> None:
        #: The last segment.
        self._file: BlockFile | None = None
        self._directory_fd = -1
        if segment_bytes <= 0 or segment_bytes % BLOCK_BYTES:
            raise InterfaceError(
                f"a log segment of {segment_bytes} bytes is not possible", hint=f"use a multiple of {BLOCK_BYTES}"
            )
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._on_report = on_report
        self._lock = threading.Lock()  # guards _segments and _spares; the append of one flush into one file needs none
        self._segments: list[_Segment] = []
        self._spares: list[Path] = []
        self._spares_made = 0
        self._cut_bytes = 0
        self._failure = ""
        self._closed = False
        try:
            self._open()
        except OSError as error:
            self.close()
            raise OperationalError(
                f"the commit log in {directory} cannot be opened: {error}", hint="check the disk and the files' owner"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def directory(self) -> Path:
        return self._directory

    # Appending.

    def append(self, payload: bytes) -> int:
        # Few calls on this path: after each sync the processor's caches are cold and every line of Python costs thrice.
        if self._failure or self._closed:
            self._refuse()
        check_payload(payload)
        try:
            file = self._file
            if file is None:
                return self._append_to_new_segment(payload)
            segment = self._segments[-1]
            place = segment.end
            header, padding, end = encode_record(segment.salt, place, payload)
            if end.offset > segment.segment_bytes:
                return self._append_to_new_segment(payload)
            file.append((header, payload, padding), min(len(TERMINATOR), segment.segment_bytes - end.offset))
            segment.advance(end)
            return place.lsn
        except OSError as error:
            raise self._fail(f"writing the commit log failed: {error}") from error
        except BaseException:
            # Interrupted half-way: whether the flush is on disk is as unknown as after an error of the device.
            self._fail("a write to the commit log was interrupted")
            raise

    def _append_to_new_segment(self, payload: bytes) -> int:
        """Header and first record become durable before the file gets its name: a segment is never seen half-made."""
        before = self._segments[-1].end if self._segments else Place(1, 0, 0)
        whole_bytes = SEGMENT_HEADER_BYTES + record_bytes(len(payload))
        segment_bytes = max(self._segment_bytes, whole_bytes + -whole_bytes % BLOCK_BYTES)
        first = before._replace(offset=SEGMENT_HEADER_BYTES)
        segment = _Segment(self._path(first.lsn), os.urandom(SALT_BYTES), segment_bytes, [first], first)
        header, padding, end = encode_record(segment.salt, first, payload)
        segment_header = encode_segment_header(segment.salt, first.lsn, segment_bytes, first.chain)
        unnamed = self._take_blank(segment_bytes)
        file = BlockFile(unnamed)
        try:
            terminator_bytes = min(len(TERMINATOR), segment_bytes - end.offset)
            file.append((segment_header, header, payload, padding), terminator_bytes)
            os.rename(unnamed, segment.path)
            os.fsync(self._directory_fd)
        except BaseException:
            file.close()
            raise
        self._replace_file(file)
        segment.advance(end)
        with self._lock:
            self._segments.append(segment)
        return first.lsn

    def _take_blank(self, segment_bytes: int) -> Path:
        """A file to build a segment in: a spare one, or one made now."""
        if segment_bytes == self._segment_bytes:
            with self._lock:
                if self._spares:
                    return self._spares.pop()
            return self._make_spare()
        # A flush that is larger than a segment fills its file completely with its one write: it needs no zeros first.
        path = self._directory / "large.tmp"
        os.close(_create(path))
        return path

    def _fail(self, message: str) -> OperationalError:
        self._failure = f"{message} (directory {self._directory})"
        return OperationalError(self._failure, hint=_FAILURE_HINT)

    def _refuse(self) -> NoReturn:
        self._check_open()
        raise OperationalError(f"the commit log stopped earlier: {self._failure}", hint=_FAILURE_HINT)

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the commit log is closed", hint="open the database again")

    # Spare segments.

    @property
    def wants_spare(self) -> bool:
        """Whether `prepare` has something to do: cheap, to be asked after a flush."""
        return not (self._spares or self._failure or self._closed)

    def prepare(self) -> bool:
        """Make a spare segment ahead of need, from any thread; True if one was made.

        Zero-filling takes long, and without it the append that needs a new segment does it itself.
        """
        if not self.wants_spare:
            return False
        try:
            path = self._make_spare()
        except OSError as error:
            # The log itself is still whole: the append that really needs a new segment will say if it cannot have one.
            raise OperationalError(
                f"no spare log segment could be made in {self._directory}: {error}", hint="check disk and free space"
            ) from error
        with self._lock:
            self._spares.append(path)
        return True

    def _make_spare(self) -> Path:
        with self._lock:
            self._spares_made += 1
            name = f"made-{self._spares_made}"
        return self._make_filled(name, self._segment_bytes, b"").rename(self._directory / f"{name}.spare")

    def _make_filled(self, name: str, segment_bytes: int, start: bytes) -> Path:
        """A durable file that begins with `start`, else zeros; a crash leaves at most a .tmp, which opening removes."""
        path = self._directory / f"{name}.tmp"
        fd = _create(path)
        try:
            os.write(fd, start)
            _write_zeros(fd, len(start), segment_bytes)
            os.fsync(fd)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(fd)
        return path

    # Reading.

    def read(self, from_lsn: int) -> Iterator[LogRecord]:
        self._check_open()
        with self._lock:
            segments = list(self._segments)
        oldest_lsn = _oldest_lsn(segments)
        if max(from_lsn, 1) < oldest_lsn:
            raise trimmed_away(from_lsn, oldest_lsn)
        return self._read_segments(segments, from_lsn)

    def parts(self, from_lsn: int) -> list[LogPart]:
        with self._lock:
            return [segment.part(from_lsn) for segment in self._segments if segment.end.lsn > from_lsn]

    def _read_segments(self, segments: Sequence[_Segment], from_lsn: int) -> Iterator[LogRecord]:
        for segment in segments:
            if segment.end.lsn > from_lsn:
                part = segment.part(from_lsn)
                yield from _records(part, self._read_bytes(segment, part))

    def _read_bytes(self, segment: _Segment, part: LogPart) -> bytes:
        # Under the lock, so that no trim recycles the file meanwhile and new bytes pass for damage.
        with self._lock:
            if segment not in self._segments:
                raise trimmed_away(part.start[0], self._segments[0].first_lsn)
            return _bytes_of(part)

    # Trimming and figures.

    def trim(self, below_lsn: int) -> None:
        if self._failure or self._closed:
            self._refuse()
        try:
            with self._lock:
                # The newest segment stays, whatever is asked for: it holds the count of lsns.
                while len(self._segments) > 1 and self._segments[1].first_lsn <= below_lsn:
                    self._retire(self._segments[0])
                    del self._segments[0]
        except OSError as error:
            raise self._fail(f"trimming the commit log failed: {error}") from error

    def _retire(self, segment: _Segment) -> None:
        """Oldest first and each made durable: a crash must not leave a hole that looks like a lost segment."""
        # The size is asked of the file itself: one that was cut short behind its last record is not worth repair.
        if segment.path.stat().st_size == self._segment_bytes and len(self._spares) < SPARE_SEGMENTS_MAX:
            self._spares.append(segment.path.rename(segment.path.with_suffix(".spare")))
        else:
            segment.path.unlink()
        os.fsync(self._directory_fd)

    @property
    def last_lsn(self) -> int:
        return self._segments[-1].end.lsn - 1 if self._segments else 0

    @property
    def oldest_lsn(self) -> int:
        with self._lock:
            return _oldest_lsn(self._segments)

    @property
    def cut_bytes(self) -> int:
        return self._cut_bytes

    def bytes_since(self, lsn: int) -> int:
        """About how many bytes the kept records with an lsn >= `lsn` take: at most one index step too many."""
        with self._lock:
            kept = [segment for segment in self._segments if segment.end.lsn > lsn]
        return sum(segment.end.offset - segment.place_at_or_before(lsn).offset for segment in kept)

    def close(self) -> None:
        self._closed = True
        self._replace_file(None)
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def __del__(self) -> None:
        """Whoever drops a log without closing it loses no descriptors."""
        self.close()

    # Opening.

    def _open(self) -> None:
        self._open_directory()
        self._collect_spares()
        paths = sorted(path for path in self._directory.iterdir() if _SEGMENT_NAME.fullmatch(path.name))
        unborn = paths[-1] if paths and _is_unborn(paths[-1]) else None
        tail = self._scan(paths if unborn is None else paths[:-1])
        # Every check comes before the first change: a log that is refused is left as it was.
        torn = tail is not None and self._is_torn(tail, unborn)
        if unborn is not None:
            self._remove_unborn(unborn, recreate=tail is None)
            if tail is None:
                tail = self._scan([unborn])
        if tail is not None:
            self._settle(tail, torn)
        os.fsync(self._directory_fd)

    def _open_directory(self) -> None:
        if not self._directory.is_dir():
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True)
            parent_fd = os.open(self._directory.parent, os.O_RDONLY)
            try:
                os.fsync(parent_fd)
            finally:
                os.close(parent_fd)
        self._directory_fd = os.open(self._directory, os.O_RDONLY)

    def _collect_spares(self) -> None:
        """Spares of this size are kept under new names, so that `_make_spare` can count on from them."""
        for path in self._directory.glob("*.tmp"):
            path.unlink()
        for path in sorted(self._directory.glob("*.spare")):
            if path.stat().st_size == self._segment_bytes and len(self._spares) < SPARE_SEGMENTS_MAX:
                self._spares.append(path.rename(path.with_name(f"kept-{os.urandom(8).hex()}.spare")))
            else:
                path.unlink()

    def _scan(self, paths: Sequence[Path]) -> _Tail | None:
        """Verify the whole chain and fill `_segments`; the last one comes back with its bytes, to judge its end."""
        tail: _Tail | None = None
        for path in paths:
            data = path.read_bytes()
            header = _checked_header(path, data)
            if tail is not None:
                _check_continues(tail.segment, path, header)
            tail = _scan_segment(path, data, header)
            self._segments.append(tail.segment)
        return tail

    def _is_torn(self, tail: _Tail, unborn: Path | None) -> bool:
        """Rules 2 and 3 of the format for the last segment."""
        segment, data, end = tail.segment, tail.data, tail.segment.end
        later = find_later_record(data, segment.salt, end)
        if later is not None:
            what = f"the record of lsn {end.lsn} does not verify, but lsn {later[0]} follows at offset {later[1]}"
            raise _damage(segment.path, end.offset, what)
        unfinished = any(data[end.offset : end.offset + RECORD_HEADER_BYTES])
        if unborn is not None and _lsn_of(unborn) != end.lsn:
            # A next segment was begun, so this one had been complete and durable.
            what = f"the record of lsn {end.lsn} does not verify, but the segment {unborn.name} was begun after it"
            raise _damage(segment.path, end.offset, what)
        return unfinished or (unborn is None and len(data) < segment.segment_bytes)

    def _remove_unborn(self, path: Path, *, recreate: bool) -> None:
        self._cut_bytes += max(len(path.read_bytes().rstrip(b"\0")), SEGMENT_HEADER_BYTES)
        if recreate:
            first_lsn = _lsn_of(path)
            header = encode_segment_header(os.urandom(SALT_BYTES), first_lsn, self._segment_bytes, 0)
            self._make_filled("recreated", self._segment_bytes, header).rename(path)
        else:
            path.unlink()
        os.fsync(self._directory_fd)
        self._on_report(f"commit log: {path} had no intact header and no records; it was taken out of use")

    def _settle(self, tail: _Tail, torn: bool) -> None:
        """Make the end of the log what it was judged to be, durably, and go on from there."""
        segment, end = tail.segment, tail.segment.end
        if torn:
            self._cut(tail)
        elif len(tail.data) < segment.segment_bytes:
            _fill_with_zeros(segment.path, len(tail.data), segment.segment_bytes)
        # The last flush may be in the page cache only: its writer was killed before the sync, or the sync failed and
        # the system gave the pages up as clean. It is shown from now on, so it is written again and synced.
        file = BlockFile(segment.path, tail.data[: tail.last_flush_offset])
        self._replace_file(file)
        last_flush = tail.data[tail.last_flush_offset : end.offset]
        file.append((last_flush,), min(len(TERMINATOR), segment.segment_bytes - end.offset))

    def _cut(self, tail: _Tail) -> None:
        segment, data, end = tail.segment, tail.data, tail.segment.end
        _fill_with_zeros(segment.path, end.offset, segment.segment_bytes)
        cut_bytes = _torn_bytes(segment, data)
        self._cut_bytes += cut_bytes
        self._on_report(
            f"commit log: the last flush, lsn {end.lsn}, was unfinished and is cut: {cut_bytes} bytes at offset "
            f"{end.offset} of {segment.path}"
        )

    def _path(self, first_lsn: int) -> Path:
        return self._directory / f"{first_lsn:020d}.log"

    def _replace_file(self, file: BlockFile | None) -> None:
        if self._file is not None:
            self._file.close()
        self._file = file


def read_only(directory: Path) -> list[LogRecord]:
    """What is in a log that another process may be writing, without touching it; what was read is durable afterwards.

    A torn last flush is the end. OperationalError: damage, or segments that were being recycled meanwhile.
    """
    records: list[LogRecord] = []
    before: _Segment | None = None
    paths = sorted(path for path in directory.iterdir() if _SEGMENT_NAME.fullmatch(path.name))
    for path in paths:
        data = _read_durably(path)
        if path == paths[-1] and decode_segment_header(data) is None and not holds_record(data, _lsn_of(path)):
            break
        header = _checked_header(path, data)
        if before is not None:
            _check_continues(before, path, header)
        before = _scan_segment(path, data, header).segment
        place = before.places[0]
        for payload, after in walk_records(memoryview(data), header.salt, place):
            records.append(LogRecord(place.lsn, bytes(payload)))
            place = after
        later = find_later_record(data, header.salt, place)
        if later is not None:
            raise _damage(
                path, place.offset, f"the record of lsn {place.lsn} does not verify, but lsn {later[0]} follows"
            )
    return records


def read_part(part: LogPart) -> Iterator[LogRecord]:
    """What is in a part of a log that another process is writing, which tells of it when it is durable."""
    return _records(part, _bytes_of(part))


def _bytes_of(part: LogPart) -> bytes:
    start, stop = part.start[1], part.end[1]
    try:
        with open(part.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise _damage(Path(part.path), start, f"it cannot be read: {error}") from error


def _records(part: LogPart, data: bytes) -> Iterator[LogRecord]:
    lsn, offset, chain = part.start
    place = Place(lsn, 0, chain)
    for payload, after in walk_records(memoryview(data), part.salt, place):
        if place.lsn >= part.from_lsn:
            yield LogRecord(place.lsn, bytes(payload))
        place = after
    if (place.lsn, offset + place.offset, place.chain) != tuple(part.end):
        raise _damage(Path(part.path), offset + place.offset, f"the record of lsn {place.lsn} does not verify")


def _read_durably(path: Path) -> bytes:
    """Its writer may have been killed before its sync: whoever goes by these bytes syncs them first."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def _oldest_lsn(segments: Sequence[_Segment]) -> int:
    return segments[0].first_lsn if segments else 1


def _lsn_of(path: Path) -> int:
    return int(path.stem)


def _is_unborn(path: Path) -> bool:
    """Whether this segment, the last one, was never in use: header not intact, no record of its time in it."""
    with open(path, "rb") as file:
        if decode_segment_header(file.read(SEGMENT_HEADER_BYTES)) is not None:
            return False
    return not holds_record(path.read_bytes(), _lsn_of(path))


def _checked_header(path: Path, data: bytes) -> SegmentHeader:
    header = decode_segment_header(data)
    if header is None:
        raise _damage(path, 0, "the segment header does not verify")
    if header.version != FORMAT_VERSION:
        raise OperationalError(
            f"{path} has version {header.version} of the log format, this release reads version {FORMAT_VERSION}",
            hint="open the database with the release that wrote it",
        )
    if header.first_lsn != _lsn_of(path):
        raise _damage(path, 0, f"the segment begins with lsn {header.first_lsn}, its name says otherwise")
    if len(data) > header.segment_bytes:
        raise _damage(path, header.segment_bytes, "the file is longer than its header says")
    return header


def _check_continues(before: _Segment, path: Path, header: SegmentHeader) -> None:
    if header.first_lsn != before.end.lsn:
        what = f"the record of lsn {before.end.lsn} does not verify or its segment is missing; {path.name} comes next"
        raise _damage(before.path, before.end.offset, what)
    if header.chain != before.end.chain:
        raise _damage(path, 0, f"the segment does not continue the chain of {before.path.name}")


def _scan_segment(path: Path, data: bytes, header: SegmentHeader) -> _Tail:
    first = Place(header.first_lsn, SEGMENT_HEADER_BYTES, header.chain)
    segment = _Segment(path, header.salt, header.segment_bytes, [first], first)
    last = first
    for _, end in walk_records(memoryview(data), header.salt, first):
        last = segment.end
        segment.advance(end)
    # A segment's header and its first record are one write.
    return _Tail(segment, data, 0 if last == first else last.offset)


def _torn_bytes(segment: _Segment, data: bytes) -> int:
    """How much a cut takes away: the record if its header says, else up to the last byte that is not zero."""
    start = segment.end.offset
    if len(data) < segment.segment_bytes:
        return segment.segment_bytes - start
    header = decode_record_header(data, start)
    if header is not None and header.salt == segment.salt:
        return min(record_bytes(header.payload_bytes), len(data) - start)
    return len(data[start:].rstrip(b"\0"))


def _damage(path: Path, offset: int, what: str) -> Damaged:
    return Damaged(
        f"the commit log is damaged: {path} at offset {offset}: {what}",
        hint="keep the files as they are and restore the database from a backup",
    )


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE)


def _fill_with_zeros(path: Path, start: int, stop: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        _write_zeros(fd, start, stop)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _write_zeros(fd: int, start: int, stop: int) -> None:
    while start < stop:
        start += os.pwrite(fd, _ZEROS[: min(stop - start, FILL_BYTES)], start)
