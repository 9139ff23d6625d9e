"""One flush of an LTM process's log: the records that were gathered, each with the log that it belongs to.

    (lsn of the first record, ((log, kind, fields of the record ...), ...))

A log counts flushes, a machine counts records: the lsn of the first one ties both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import codec
from ..two_phase.records import from_plain, to_plain
from .hosted import Logged


def encode_flush(first_lsn: int, records: Sequence[object], bytes_max: int) -> tuple[bytes, int]:
    """A flush of the first records, as many as fit, but at least one; and how many these are.

    Each is packed by itself: a few tenths of a microsecond more than all at once, and nothing is guessed."""
    pack, size = codec.pack_for_peer, 0
    items: list[bytes] = []
    for logged in records:
        assert isinstance(logged, Logged)
        item = pack((logged.log, *to_plain(logged.record)))  # type: ignore[arg-type]
        size += len(item)
        if size > bytes_max and items:
            break
        items.append(item)
    return codec.array_of((pack(first_lsn), codec.array_of(items))), len(items)


def decode_flush(payload: bytes) -> tuple[int, list[Logged]]:
    stored: Any = codec.unpack(payload)
    first_lsn, items = stored
    return first_lsn, [Logged(log, from_plain(plain)) for log, *plain in items]
