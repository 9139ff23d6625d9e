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


def encode_flush(first_lsn: int, records: Sequence[object]) -> bytes:
    items = []
    for logged in records:
        assert isinstance(logged, Logged)
        items.append((logged.log, *to_plain(logged.record)))  # type: ignore[arg-type]
    return codec.pack((first_lsn, items))


def decode_flush(payload: bytes) -> tuple[int, list[Logged]]:
    stored: Any = codec.unpack(payload)
    first_lsn, items = stored
    return first_lsn, [Logged(log, from_plain(plain)) for log, *plain in items]
