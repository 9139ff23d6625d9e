"""The bytes of the commit log's segment files. All integers are little-endian.

    segment file, zero-filled to `segment_bytes`, a multiple of 4096, before its first use
    +----------------+----------+----------+-- ... --+----------+------------+---------------------------+
    | segment header | record   | record   |         | record   | terminator | zeros, or stale bytes of  |
    | 48 bytes       | lsn f    | lsn f+1  |         | last     | 40 zeros   | an earlier use (old salt) |
    +----------------+----------+----------+-- ... --+----------+------------+---------------------------+

    segment header
     0        7       8           24          32              40       44           48
    +--------+-------+-----------+-----------+---------------+--------+------------+
    | magic  | ver.  | salt      | first_lsn | segment_bytes | chain  | header_crc |
    | VTSEGMT| 2     | 16 random | u64       | u64           | u32    | u32        |
    +--------+-------+-----------+-----------+---------------+--------+------------+

    record = one flush; it begins and ends at a multiple of 8
     0      3      4      20     28              32            36           40
    +------+------+------+------+---------------+-------------+------------+---------+------------------+
    | magic| ver. | salt | lsn  | payload_bytes | payload_crc | header_crc | payload | padding: zeros   |
    | VTR  | 2    | 16   | u64  | u32           | u32         | u32        |         | to 8 bytes       |
    +------+------+------+------+---------------+-------------+------------+---------+------------------+

Version byte: the eighth byte of a segment file. A reader refuses a segment whose header is intact and whose version it
does not know. The version in a record's magic repeats it; records of two versions never share a segment. Version 2 has
transactions by columns in its payloads (`ltm/logged.py`).

Checksum scope (CRC-32):
- a header_crc covers all bytes of its header before it, and nothing else, so that a header can be judged alone;
- payload_crc covers payload and padding and is seeded with the *chain* value: the header_crc of the record before
  (0 before lsn 1). As that header covers its own payload_crc, a record vouches for all records before it, also across
  segments: the segment header holds the chain value that its first record continues.

Salt: drawn at random for every use of a file. A recycled file keeps the bytes of its earlier use; they carry another
salt, so they are never taken for records of this use. Lsns count from 1 without gaps; stale ones are always lower.

Terminator: every write ends with 40 zeros (fewer at the end of the file) and more up to the end of their block, which
the next record overwrites. So "nothing was written here" is known from zeros even in a recycled file, and one flipped
bit in the header of the last record cannot make the record pass for stale bytes.

What a reader does where no record verifies, at position p:
1. The next segment's header continues exactly here (lsn and chain): this segment is complete.
2. There is a next segment that does not continue here, or further on in this segment an intact record header with this
   salt that belongs after p: damage in the middle. The reader stops with file and offset and changes nothing.
3. Else p is the end of the log. A zero header at p: it ended cleanly. Anything else, or a file that is shorter than
   segment_bytes: a torn last flush. It is cut: zeros from p to segment_bytes, synced, so that it can never come back,
   and the cut is reported.
A segment appears under its name (20 digits of its first lsn, ".log") only by a rename after header and first record
are durable. A last segment whose header is damaged and that holds no intact record of its time was never in use: it is
removed (or made anew if it is the only one, because its name keeps the count of lsns), and that is reported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from ...changetables.errors import DataError, OperationalError

FORMAT_VERSION = 2
SALT_BYTES = 16
ALIGNMENT_BYTES = 8
SEGMENT_HEADER_BYTES = 48
RECORD_HEADER_BYTES = 40
# Far above any flush that group commit makes, far below what one write call takes (2 GiB - 4 KiB on Linux).
PAYLOAD_BYTES_MAX = 1 << 30

TERMINATOR = bytes(RECORD_HEADER_BYTES)
#: By the payload's bytes beyond a multiple of the alignment.
_PADDINGS = tuple(bytes(-beyond % ALIGNMENT_BYTES) for beyond in range(ALIGNMENT_BYTES))

_SEGMENT_MAGIC = b"VTSEGMT"
_RECORD_MAGIC = b"VTR" + bytes([FORMAT_VERSION])
_SALT_OFFSET = len(_RECORD_MAGIC)
_SEGMENT_FIELDS = struct.Struct("<7sB16sQQI")
_RECORD_FIELDS = struct.Struct("<4s16sQII")
_CRC = struct.Struct("<I")


class SegmentHeader(NamedTuple):
    """`chain` is the header_crc of the record before `first_lsn`, which is in the segment before."""

    version: int
    salt: bytes
    first_lsn: int
    segment_bytes: int
    chain: int


class RecordHeader(NamedTuple):
    salt: bytes
    lsn: int
    payload_bytes: int
    payload_crc: int
    header_crc: int


class Place(NamedTuple):
    """Where the record `lsn` begins, or will begin, and the chain value that it continues."""

    lsn: int
    offset: int
    chain: int


def record_bytes(payload_bytes: int) -> int:
    """The size of a whole record: header, payload, padding."""
    return RECORD_HEADER_BYTES + payload_bytes + (-payload_bytes % ALIGNMENT_BYTES)


def check_payload(payload: bytes) -> None:
    """Refuses, before anything is written, what no record can hold: the log stays usable."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise DataError(
            f"one flush of the commit log may have at most {PAYLOAD_BYTES_MAX} bytes, this one has {len(payload)}",
            hint="split the transaction, or load the rows in bulk",
        )


def trimmed_away(from_lsn: int, oldest_lsn: int) -> OperationalError:
    """A gap in what a reader gets would be a wrong answer, so every log refuses with the oldest lsn that it has."""
    return OperationalError(
        f"the commit log was trimmed: lsn {from_lsn} is gone, the oldest is {oldest_lsn}",
        hint="what needs the older records must be computed anew from the tables",
    )


def encode_segment_header(salt: bytes, first_lsn: int, segment_bytes: int, chain: int) -> bytes:
    fields = _SEGMENT_FIELDS.pack(_SEGMENT_MAGIC, FORMAT_VERSION, salt, first_lsn, segment_bytes, chain)
    return fields + _CRC.pack(crc32(fields))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header at the start of a segment file, of whatever version; None if it is not intact."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, *fields = _SEGMENT_FIELDS.unpack_from(data)
    (header_crc,) = _CRC.unpack_from(data, _SEGMENT_FIELDS.size)
    if magic != _SEGMENT_MAGIC or header_crc != crc32(data[: _SEGMENT_FIELDS.size]):
        return None
    return SegmentHeader(*fields)


def encode_record(salt: bytes, place: Place, payload: bytes) -> tuple[bytes, bytes, Place]:
    """Header and padding, to be written around the payload, and the place of the next record."""
    lsn, offset, chain = place
    payload_bytes = len(payload)
    padding = _PADDINGS[payload_bytes % ALIGNMENT_BYTES]
    payload_crc = crc32(payload, chain)
    if padding:
        payload_crc = crc32(padding, payload_crc)
    fields = _RECORD_FIELDS.pack(_RECORD_MAGIC, salt, lsn, payload_bytes, payload_crc)
    header_crc = crc32(fields)
    after = (lsn + 1, offset + RECORD_HEADER_BYTES + payload_bytes + len(padding), header_crc)
    # Half the time of calling Place.
    return fields + header_crc.to_bytes(4, "little"), padding, tuple.__new__(Place, after)


def decode_record_header(data: bytes | memoryview, offset: int) -> RecordHeader | None:
    """The header at `offset`, None if it is not intact."""
    if offset < 0 or offset + RECORD_HEADER_BYTES > len(data):
        return None
    magic, salt, lsn, payload_bytes, payload_crc = _RECORD_FIELDS.unpack_from(data, offset)
    if magic != _RECORD_MAGIC:
        return None
    crc_offset = offset + _RECORD_FIELDS.size
    (header_crc,) = _CRC.unpack_from(data, crc_offset)
    if header_crc != crc32(data[offset:crc_offset]):
        return None
    return RecordHeader(salt, lsn, payload_bytes, payload_crc, header_crc)


def decode_record(data: memoryview, salt: bytes, place: Place) -> tuple[memoryview, Place] | None:
    """The payload of the record at `place` and the place after it; None if no record verifies there."""
    header = decode_record_header(data, place.offset)
    if header is None or header.salt != salt or header.lsn != place.lsn:
        return None
    start = place.offset + RECORD_HEADER_BYTES
    stop = place.offset + record_bytes(header.payload_bytes)
    if stop > len(data) or crc32(data[start:stop], place.chain) != header.payload_crc:
        return None
    return data[start : start + header.payload_bytes], Place(place.lsn + 1, stop, header.header_crc)


def walk_records(data: memoryview, salt: bytes, place: Place) -> Iterator[tuple[memoryview, Place]]:
    """`decode_record` from `place` on, up to where no record verifies; the caller judges what that means."""
    while (found := decode_record(data, salt, place)) is not None:
        yield found
        place = found[1]


def find_later_record(data: bytes, salt: bytes, place: Place) -> tuple[int, int] | None:
    """(lsn, offset) of an intact header that proves that the log went on after `place`, where no record verifies.

    Payloads may hold copies of older records of this very segment: those have lower lsns. At `place` itself any lsn
    but the expected one is proof of damage, because an unfinished write there could only have had that one.
    """
    found = data.find(salt, place.offset)
    while found >= 0:
        offset = found - _SALT_OFFSET
        header = decode_record_header(data, offset) if offset % ALIGNMENT_BYTES == 0 else None
        if header is not None and _belongs_after(header.lsn, offset, place):
            return header.lsn, offset
        found = data.find(salt, found + 1)
    return None


def _belongs_after(lsn: int, offset: int, place: Place) -> bool:
    if offset == place.offset:
        return lsn != place.lsn
    return offset > place.offset and lsn >= place.lsn


def holds_record(data: bytes, lsn_min: int) -> bool:
    """Whether an intact header with lsn >= lsn_min and any salt is there: for a segment whose own header is damaged."""
    offset = data.find(_RECORD_MAGIC)
    while offset >= 0:
        header = decode_record_header(data, offset) if offset % ALIGNMENT_BYTES == 0 else None
        if header is not None and header.lsn >= lsn_min:
            return True
        offset = data.find(_RECORD_MAGIC, offset + 1)
    return False
