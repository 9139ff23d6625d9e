"""What the store keeps of a log beside its rows: cells of a table that is in no catalog.

checkpoint/<log>/<incarnation>        up to where the rows are complete, from where the log must be replayed, and which
                                      records from before are still needed
memory/<log>/<incarnation>/<number>   transactions that are remembered, some in each

Every life that answers for a log has entries of its own, and the version of an entry is the number of the checkpoint.
So a write that is carried out late, by a former life or by this one, hides nothing. Whoever takes over looks for the
newest entry of the last life that has one, after the logs are sealed: a log is trimmed only after the checkpoint that
makes the records superfluous is durable, so whatever is missing in a sealed log is in the checkpoint that is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...changetables.keys import TABLE_PREFIX_BYTES
from .. import codec
from ..two_phase.journal import Remembered, Stored
from ..two_phase.records import Record, StoredTo, from_plain, to_plain
from .store_messages import StoredRow

#: The id of the table of entries: the highest that there is.
ENTRIES_PREFIX = b"\xff" * TABLE_PREFIX_BYTES


class Checkpoint(NamedTuple):
    """Replay begins in the log `segment` after the record `lsn`, "": with all there is. `chunks` are the names of
    entries, with the highest first start of the transactions in each."""

    stored: Stored
    segment: str
    lsn: int
    kept: tuple[Record, ...]
    chunks: tuple[tuple[str, int], ...]
    forgotten_ts: int
    horizon: int
    also: object

    def pack(self) -> bytes:
        kept = [to_plain(record) for record in self.kept]
        return codec.pack((plain(self.stored), self.segment, self.lsn, kept, *self[4:]))

    @classmethod
    def unpack(cls, data: bytes) -> Checkpoint:
        found: Any = codec.unpack(data)
        stored, segment, lsn, kept, chunks, forgotten_ts, horizon, also = found
        return cls(
            stored_to(stored),
            segment,
            lsn,
            tuple(from_plain(each) for each in kept),
            tuple((name, highest) for name, highest in chunks),
            forgotten_ts,
            horizon,
            also,
        )


NONE = Checkpoint(Stored(0, {}), "", 0, (), (), 0, 0, None)


def plain(stored: Stored) -> StoredTo:
    return stored.ts, tuple(stored.tables.items())


def stored_to(item: StoredTo) -> Stored:
    return Stored(item[0], dict(item[1]))


def name_of(log: str, incarnation: int) -> str:
    return f"checkpoint/{log}/{incarnation}"


def chunk_name(log: str, incarnation: int, number: int) -> str:
    return f"memory/{log}/{incarnation}/{number}"


def entry_key(name: str) -> bytes:
    """No key is the beginning of another."""
    return ENTRIES_PREFIX + name.encode() + b"\0"


def entry(stored: StoredRow | None) -> bytes:
    """What an entry holds, b"": there is none."""
    if stored is None or stored[1] is None:
        return b""
    (data,) = stored[1]
    assert isinstance(data, bytes)
    return data


def pack_memory(entries: Iterable[Remembered]) -> bytes:
    return codec.pack(list(entries))


def unpack_memory(data: bytes) -> list[Remembered]:
    if not data:
        return []
    found: Any = codec.unpack(data)
    return [((number, first), start, commit_ts) for (number, first), start, commit_ts in found]
