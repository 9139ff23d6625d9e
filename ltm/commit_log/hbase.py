"""The commit log in HBase: one row per flush, each written only if it is absent.

    row key       log name (UTF-8, no zero byte) | 0 | position (8, big-endian, from 1)
    f:h           magic VTL (3) | version (1) | kind (1) | writer (16) | lsn (8) | payload bytes (4) | crc32 (4)
    f:0000, ...   the payload in cells of PART_BYTES (HBase refuses cells of more than 10 MB); none if it is empty
    row key       log name | 0                   f:l = lsn (8) | position (8): what lies before was trimmed

- Kind is 1 for a record, 2 for "opened by this writer", 3 for "sealed". The latter two have no payload; the second has
  the lsn of the last record before it. Positions have no gaps up to the first sealed row, which ends the log, and lsns
  have none among the records.
- **Fencing.** A writer appends at the position after the last row that it knows. To open a log is to take that position
  with a row of kind 2, to seal it is to take it with one of kind 3: whoever wrote before finds the place taken, at once
  or with a request that was under way for a minute, and is refused for good. Nothing is deleted that a writer could
  still compare with: records are trimmed from the old end, the newest one stays, and so do all rows of kind 2. Whoever
  opens a log looks afterwards whether the place that it took had only been emptied by a trim.
- A writer that is still at work would be chased for ever by one who wants to seal after its last row. So the seal is
  put some rows ahead, further each time that it comes too late, and then the places between are sealed downwards until
  the last row of the writer is met. It cannot leave out a place, so it ends there.
- **Lost answers.** When the answer to an append is lost, or is no, the row itself tells: its header names the writer.
  Ours: it is durable. Somebody else's: we are fenced. Absent: it is written again, with the same bytes, whatever may
  still be under way.
- The crc32 covers row key, header and payload. A row that is missing above the trimmed bound is damage.
- All cells carry explicit timestamps (1; for f:l the lsn), so that a repeated write or delete is the same.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, NoReturn
from zlib import crc32

from ...changetables.errors import DataError, InterfaceError, OperationalError, Unavailable
from ..hbase_client import CALL_BYTES_MAX, AnswerLost, Hbase, Removal, RowOf, ScanOf, Value
from ..ports import Damaged, LogRecord
from .elsewhere import LogSealed
from .format import check_payload, record_bytes, trimmed_away

#: One cell. Well below HBase's limit of 10 MB.
PART_BYTES = 4 << 20
#: One flush travels in one call, through servers that hold it in memory several times.
HBASE_PAYLOAD_BYTES_MAX = 32 << 20
#: How long an append whose answer was lost is looked for and made again. Then the log has failed.
APPEND_MS_MAX = 30_000
#: Rows whose headers are fetched at once.
HEADERS_PER_CALL = 500
TRIM_ROWS_PER_CALL = 500
#: An earlier writer that is still at work may come first so often.
OPEN_TRIES_MAX = 100

#: No table of a user has a dot in its name.
LOG_TABLE = "viewtide.commit_log"

_FAMILY = b"f"
_HEADER = b"h"
_LOW = b"l"
_TS = 1
_MAGIC = b"VTL\x01"
_fields = Struct(">4sB16sQI")
_crc = Struct(">I")
_position = Struct(">Q")
_low = Struct(">QQ")


class Kind(IntEnum):
    RECORD = 1
    OPENED = 2
    SEALED = 3


class Header(NamedTuple):
    """What is known of a row without its payload."""

    position: int
    kind: Kind
    writer: bytes
    lsn: int
    payload_bytes: int
    crc: int


class LogState(NamedTuple):
    """A log as somebody finds it who does not write to it. `oldest_lsn` is that of the next record if there is none."""

    oldest_lsn: int
    last_lsn: int
    sealed: bool


def create_log_table(client: Hbase, namespace: str, splits: Sequence[bytes] = ()) -> bytes:
    """The table of all logs of a namespace, made if it is missing; returns its name."""
    table = f"{namespace}:{LOG_TABLE}".encode()
    client.create_table(table, [(_FAMILY, 1)], splits)
    return table


def seal_log(client: Hbase, table: bytes, name: str) -> LogState:
    """Close a log for good, also one that its writer has not begun yet. Done again, it changes nothing."""
    rows = _Rows(client, table, name)
    rows.seal()
    return log_state(client, table, name)


def log_state(client: Hbase, table: bytes, name: str) -> LogState:
    rows = _Rows(client, table, name)
    oldest_lsn, _ = rows.low()
    above = 0
    for header in rows.downwards():
        if header.kind is not Kind.SEALED:
            return LogState(oldest_lsn, header.lsn, above == header.position + 1)
        above = header.position
    return LogState(oldest_lsn, 0, above == 1)


def read_log(client: Hbase, table: bytes, name: str, from_lsn: int) -> Iterator[LogRecord]:
    """As `CommitLog.read`, of any log, by anybody."""
    rows = _Rows(client, table, name)
    low = rows.low()
    if max(from_lsn, 1) < low[0]:
        raise trimmed_away(from_lsn, low[0])
    return rows.records(from_lsn, max(low[1], from_lsn))


class HbaseLog:
    """Implements `ports.CommitLog`. Opening it ends the life of every earlier writer of this log."""

    def __init__(self, client: Hbase, table: bytes, name: str) -> None:
        self._rows = _Rows(client, table, name)
        self._name = name
        self._writer = os.urandom(16)
        self._lock = threading.Lock()
        self._closed = False
        self._failure = ""
        # The size of all records known here before each one, by lsn from `_sizes_from` on; the last one is the total.
        self._bytes_before = array("Q", [0])
        self._low_lsn, self._low_position = self._rows.low()
        self._sizes_from = self._low_lsn
        self._last = self._open()

    def append(self, payload: bytes) -> int:
        check_payload(payload)
        if len(payload) > HBASE_PAYLOAD_BYTES_MAX:
            raise DataError(
                f"one flush of a commit log in HBase may have at most {HBASE_PAYLOAD_BYTES_MAX} bytes, this one has "
                f"{len(payload)}",
                hint="use smaller transactions",
            )
        self._check_usable()
        try:
            last = self._rows.append(self._last, self._writer, payload)
        except BaseException as error:
            self._failure = f"{error}" or type(error).__name__
            raise
        with self._lock:
            self._last = last
            self._bytes_before.append(self._bytes_before[-1] + record_bytes(len(payload)))
        return last.lsn

    def read(self, from_lsn: int) -> Iterator[LogRecord]:
        with self._lock:
            self._check_open()
            if max(from_lsn, 1) < self._low_lsn:
                raise trimmed_away(from_lsn, self._low_lsn)
            if from_lsn > self._last.lsn:
                return iter(())
            start = max(self._low_position, from_lsn)
        return self._rows.records(from_lsn, start)

    def trim(self, below_lsn: int) -> None:
        self._check_usable()
        with self._lock:
            low, last = self._low_lsn, self._last.lsn
        # The newest one stays: it keeps the count of lsns.
        below = min(below_lsn, last)
        if below <= low:
            return
        position = self._rows.trim(self._low_position, below)
        with self._lock:
            self._low_lsn, self._low_position = below, position
            del self._bytes_before[: below - self._sizes_from]
            self._sizes_from = below

    @property
    def last_lsn(self) -> int:
        return self._last.lsn

    @property
    def oldest_lsn(self) -> int:
        return self._low_lsn

    def bytes_since(self, lsn: int) -> int:
        with self._lock:
            at = max(lsn, self._low_lsn) - self._sizes_from
            known = self._bytes_before
            return known[-1] - known[at] if at < len(known) else 0

    @property
    def wants_spare(self) -> bool:
        return False

    def prepare(self) -> bool:
        """HBase needs no preparation."""
        return False

    @property
    def cut_bytes(self) -> int:
        """A row is there or it is not."""
        return 0

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _open(self) -> Header:
        """Take the next row, and learn the sizes of the records."""
        last: Header | None = None
        for header in self._rows.headers(self._low_position):
            last = self._learn(header)
        for _ in range(OPEN_TRIES_MAX):
            last = self._learn(self._rows.take_next(last, self._writer))
            if last.kind is Kind.OPENED and last.writer == self._writer:
                if last.position < self._rows.low()[1]:
                    # The place was not free but emptied: it fences nobody.
                    raise OperationalError(
                        f"the commit log {self._name} was trimmed by another process while it was opened, or its rows "
                        "above the trimmed bound are missing",
                        hint="open it again; if that does not help, restore it from a backup of HBase",
                    )
                return last
        raise OperationalError(
            f"another process writes to the commit log {self._name}",
            hint="end it, or seal the log and begin another one",
        )

    def _learn(self, header: Header) -> Header:
        if header.kind is Kind.SEALED:
            raise LogSealed(
                f"the commit log {self._name} is sealed: somebody else has taken over what it was about",
                hint="start again, with a new log",
            )
        if header.kind is Kind.RECORD and header.lsn >= self._low_lsn:
            self._bytes_before.append(self._bytes_before[-1] + record_bytes(header.payload_bytes))
        return header

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the commit log is closed", hint="open the database again")

    def _check_usable(self) -> None:
        self._check_open()
        if self._failure:
            raise OperationalError(
                f"the commit log {self._name} stopped earlier: {self._failure}", hint="open it again: that decides"
            )


class HbaseLogs:
    """Implements `LogsElsewhere`: the logs of all lives of all processes, in one table of a namespace."""

    is_local = False

    def __init__(self, client: Hbase, namespace: str) -> None:
        self._client, self._table = client, create_log_table(client, namespace)

    def create(self, log: str) -> HbaseLog:
        rows = _Rows(self._client, self._table, log)
        if rows.low() != (1, 1) or next(rows.downwards(), None) is not None:
            raise LogSealed(f"the log {log} has been used before", hint="begin another one")
        return HbaseLog(self._client, self._table, log)

    def seal(self, log: str) -> list[LogRecord]:
        state = seal_log(self._client, self._table, log)
        return list(read_log(self._client, self._table, log, state.oldest_lsn))

    def read(self, log: str, from_lsn: int) -> tuple[list[LogRecord], bool] | None:
        """Sealed or not is asked first: what is sealed then is read to its end."""
        state = log_state(self._client, self._table, log)
        records = list(read_log(self._client, self._table, log, max(from_lsn, state.oldest_lsn)))
        if not records and state == LogState(1, 0, False):
            return ([], False) if next(_Rows(self._client, self._table, log).downwards(), None) else None
        return records, state.sealed


class _Rows:
    """The rows of one log."""

    def __init__(self, client: Hbase, table: bytes, name: str) -> None:
        if not name or "\0" in name:
            raise InterfaceError(f"{name!r} cannot be the name of a commit log")
        self._client, self._table, self._name = client, table, name
        self._prefix = name.encode() + b"\0"

    def key(self, position: int) -> bytes:
        return self._prefix + _position.pack(position)

    # Writing

    def append(self, last: Header, writer: bytes, payload: bytes) -> Header:
        """The next record; OperationalError if its fate is unknown or the place is somebody else's."""
        header, row = self._encode(last.position + 1, Kind.RECORD, writer, last.lsn + 1, payload)
        found = self._write_once(header, row)
        if found != header:
            what = "sealed" if found.kind is Kind.SEALED else "opened by another process"
            raise LogSealed(
                f"the commit log {self._name} was {what} after lsn {last.lsn}: this process does not own it any more",
                hint="start again, with a new log",
            )
        return header

    def take_next(self, last: Header | None, writer: bytes) -> Header:
        """Open the log: take the next place. Returns what is there now, that or a row that came before it."""
        position, lsn = (1, 0) if last is None else (last.position + 1, last.lsn)
        return self._write_once(*self._encode(position, Kind.OPENED, writer, lsn, b""))

    def seal(self) -> None:
        last = next(self.downwards(), None)
        position = 0 if last is None else last.position
        ahead = 1
        while last is None or last.kind is not Kind.SEALED:
            last = self._seal_at(position + ahead)
            position, ahead = last.position, ahead * 2
        while position > 1 and self._seal_at(position - 1).kind is Kind.SEALED:
            position -= 1

    def _seal_at(self, position: int) -> Header:
        return self._write_once(*self._encode(position, Kind.SEALED, os.urandom(16), 0, b""))

    def trim(self, low_position: int, below_lsn: int) -> int:
        """Remember the bound first: what is missing below it is not missed. Returns the position that it lies at."""
        doomed: list[Header] = []
        position = low_position
        for header in self.headers(low_position):
            if header.kind is not Kind.RECORD:
                continue  # an earlier writer is still refused by it, however late it comes
            if header.lsn >= below_lsn:
                position = header.position
                break
            doomed.append(header)
        bound = Value(_FAMILY, _LOW, below_lsn, _low.pack(below_lsn, position))
        self._client.put(self._table, [RowOf(self._prefix, [bound])])
        for begin in range(0, len(doomed), TRIM_ROWS_PER_CALL):
            some = doomed[begin : begin + TRIM_ROWS_PER_CALL]
            self._client.remove(self._table, [Removal(self.key(each.position), _TS, _columns(each)) for each in some])
        return position

    def _write_once(self, header: Header, row: RowOf) -> Header:
        """Write a row if it is absent, and find out what is there now."""
        deadline = time.monotonic() + APPEND_MS_MAX / 1000
        while True:
            lost = ""
            try:
                if self._client.put_if(self._table, row, _FAMILY, _HEADER, None):
                    return header
            except AnswerLost as error:
                lost = str(error)
            # Also after a no: HBase's own client may have tried twice, and the first one was ours.
            try:
                found = self._get_header(header.position)
            except Unavailable as error:
                raise self._unknown(header, str(error)) from error
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise self._unknown(header, lost)

    def _unknown(self, header: Header, reason: str) -> OperationalError:
        return OperationalError(
            f"whether lsn {header.lsn} of the commit log {self._name} is durable is not known: {reason}",
            hint="HBase did not answer; open the log again when it does: that decides",
        )

    def _encode(self, position: int, kind: Kind, writer: bytes, lsn: int, payload: bytes) -> tuple[Header, RowOf]:
        key = self.key(position)
        fields = _fields.pack(_MAGIC, kind, writer, lsn, len(payload))
        crc = crc32(payload, crc32(fields, crc32(key)))
        parts = [payload[begin : begin + PART_BYTES] for begin in range(0, len(payload), PART_BYTES)]
        values = [Value(_FAMILY, _HEADER, _TS, fields + _crc.pack(crc))]
        values += [Value(_FAMILY, _part(number), _TS, part) for number, part in enumerate(parts)]
        return Header(position, kind, writer, lsn, len(payload), crc), RowOf(key, values)

    # Reading

    def low(self) -> tuple[int, int]:
        """The lowest lsn that was not trimmed, and the position that it lies at or behind."""
        found = self._client.get(self._table, self._prefix, columns=[(_FAMILY, _LOW)])
        if found is None:
            return 1, 1
        lsn, position = _low.unpack(found.values[0].value)
        return lsn, position

    def downwards(self) -> Iterator[Header]:
        """From the last one on."""
        top = self._prefix + b"\xff" * 9
        rows = 1
        while True:
            scan = ScanOf(top, self._prefix, columns=[(_FAMILY, _HEADER)], backwards=True)
            page = self._client.page(self._table, scan, rows)
            yield from map(self._decode_header, page)
            if len(page) < rows or page[-1].row == self.key(1):
                return
            top, rows = self.key(_position_of(page[-1].row) - 1), HEADERS_PER_CALL

    def headers(self, from_position: int) -> Iterator[Header]:
        """In order, without gaps, up to the last one or the first one that is sealed."""
        scan = ScanOf(self.key(from_position), self._prefix + b"\xff" * 9, columns=[(_FAMILY, _HEADER)])
        last = 0
        for row in self._client.scan(self._table, scan, HEADERS_PER_CALL):
            header = self._decode_header(row)
            if last and header.position != last + 1 and header.kind is not Kind.SEALED:
                self._missing(last + 1)
            last = header.position
            yield header
            if header.kind is Kind.SEALED:
                return

    def records(self, from_lsn: int, from_position: int) -> Iterator[LogRecord]:
        wanted = max(from_lsn, 1)
        for some in _by_bytes(
            each for each in self.headers(from_position) if each.kind is Kind.RECORD and each.lsn >= wanted
        ):
            rows = self._client.get_many(self._table, [self.key(each.position) for each in some])
            for header, row in zip(some, rows, strict=True):
                if header.lsn != wanted or row is None:
                    self._missing(header.position, wanted)
                yield LogRecord(header.lsn, self._payload(header, row))
                wanted += 1

    def _payload(self, header: Header, row: RowOf) -> bytes:
        parts = [each.value for each in row.values if each.qualifier != _HEADER]
        payload = parts[0] if len(parts) == 1 else b"".join(parts)
        stored = next((each.value for each in row.values if each.qualifier == _HEADER), b"")
        if len(payload) != header.payload_bytes or crc32(payload, crc32(stored[:-4], crc32(row.row))) != header.crc:
            raise self._damage(header.position, "its checksum is wrong")
        return payload

    def _get_header(self, position: int) -> Header | None:
        row = self._client.get(self._table, self.key(position), columns=[(_FAMILY, _HEADER)])
        return None if row is None else self._decode_header(row)

    def _decode_header(self, row: RowOf) -> Header:
        position = _position_of(row.row)
        stored = row.values[0].value
        if len(stored) != _fields.size + _crc.size or not stored.startswith(_MAGIC):
            raise self._damage(position, "its header is not one, or of another version")
        _, kind, writer, lsn, payload_bytes = _fields.unpack_from(stored)
        (crc,) = _crc.unpack_from(stored, _fields.size)
        return Header(position, Kind(kind), writer, lsn, payload_bytes, crc)

    def _missing(self, position: int, lsn: int = 0) -> NoReturn:
        """A row is not there: trimmed while it was read, or lost."""
        low_lsn, low_position = self.low()
        if position < low_position:
            raise trimmed_away(lsn or low_lsn - 1, low_lsn)
        raise self._damage(position, "it is missing")

    def _damage(self, position: int, what: str) -> Damaged:
        return Damaged(
            f"the commit log {self._name} is damaged at position {position} (row {self.key(position).hex()} of "
            f"{self._table.decode()}): {what}",
            hint="restore it from a backup of HBase",
        )


def _position_of(key: bytes) -> int:
    (position,) = _position.unpack(key[-_position.size :])
    return int(position)


def _part(number: int) -> bytes:
    return b"%04d" % number


def _columns(header: Header) -> list[tuple[bytes, bytes]]:
    parts = -(-header.payload_bytes // PART_BYTES)
    return [(_FAMILY, _HEADER), *((_FAMILY, _part(number)) for number in range(parts))]


def _by_bytes(headers: Iterator[Header]) -> Iterator[list[Header]]:
    """As many rows as one answer carries."""
    some: list[Header] = []
    size = 0
    for header in headers:
        if some and size + header.payload_bytes > CALL_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(header)
        size += header.payload_bytes + 100
    if some:
        yield some
