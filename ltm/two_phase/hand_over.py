"""Keys change their owner: what the participant that had them does, and the one that gets them.

The one that had them refuses whoever has not voted there, waits until those who have are decided, and then gives away
all versions and its memory of transactions, in pages. The other one logs them before it may answer for them. With a
store that both can reach, the rows go there before, and only what is not final yet is given away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...changetables.types import Row
from ..machine import Outputs
from . import pages
from .cells import Version
from .records import Adopted
from .stored_cells import StoredCells

if TYPE_CHECKING:
    from .messages import Attempt
    from .participant import Participant


def held(participant: Participant, start: bytes, stop: bytes | None) -> list[Attempt]:
    """The attempts that hold something there, or wait for it."""
    return [claim.attempt for claim in participant.holds.claims() if claim.touches(start, stop)]


def close(participant: Participant, start: bytes, stop: bytes | None, reason: str, now_ms: int) -> Outputs:
    """Refuse all that hold something there and have not voted (rule V8), and readers that wait."""
    participant.refuse_readers(start, stop, reason)
    unvoted = [attempt for attempt in held(participant, start, stop) if not participant.parts[attempt].min_ts]
    return participant.refuse(unvoted, reason, now_ms)


def give_away(participant: Participant, start: bytes, stop: bytes | None) -> Adopted:
    """Everything about keys in which nothing is held any more: with a store, only what that has not got. It may be
    shown when all records are durable. Transactions that are too old to be answered for are not among it: whoever gets
    them knows them a while longer than this one, and they would come back with the next keys, for ever."""
    cells, forgotten_ts = participant.cells, participant.forgotten_ts
    keys = cells.touched_between(start, stop) if isinstance(cells, StoredCells) else cells.all_keys(start, stop)
    rows = []
    for key in keys:
        versions = []
        version: Version | None = cells.newest(key)
        while version is not None:
            versions.append((version[0], version[1]))
            version = version[2]
        rows.append((key, tuple(versions)))
    return Adopted(
        start,
        stop,
        tuple(rows),
        tuple((tx_id, *known) for tx_id, known in participant.committed.items() if tx_id[1] > forgotten_ts),
        tuple(participant.refused_for_good()),
        forgotten_ts,
        participant.cells.horizon,
    )


def in_pages(adopted: Adopted, items_max: int, bytes_max: int = pages.PAGE_BYTES_MAX) -> list[Adopted]:
    """The same in several, none with more rows, or transactions, than that: each is about a part of the keys, or about
    none."""
    found = []
    bare = adopted._replace(rows=(), committed=(), refused=())
    parts = [tuple(rows) for rows in pages.in_pages(adopted.rows, _versions_bytes, items_max, bytes_max)] or [()]
    starts = [adopted.start, *(rows[0][0] for rows in parts[1:])]
    for start, stop, rows in zip(starts, [*starts[1:], adopted.stop], parts, strict=True):
        found.append(bare._replace(start=start, stop=stop, rows=rows))
    nowhere = bare._replace(start=adopted.start, stop=adopted.start)
    for place in range(0, len(adopted.committed), items_max):
        found.append(nowhere._replace(committed=adopted.committed[place : place + items_max]))
    for place in range(0, len(adopted.refused), items_max):
        found.append(nowhere._replace(refused=adopted.refused[place : place + items_max]))
    return found


def _versions_bytes(versions: tuple[bytes, tuple[tuple[int, Row | None], ...]]) -> int:
    return sum(pages.row_bytes(row) for _, row in versions[1])


def take_in(participant: Participant, adopted: Adopted) -> None:
    """The keys as they are; what was here of them from an earlier time goes."""
    cells = participant.cells
    if adopted.start != adopted.stop:
        cells.drop(adopted.start, adopted.stop)
        for key, versions in adopted.rows:
            chain: Version | None = None
            for ts, row in reversed(versions):
                chain = (ts, row, chain)
            if chain is not None:
                cells.place(key, chain)
                if isinstance(cells, StoredCells):
                    cells.touched[key] = 0
    journal = participant.journal
    for tx_id, start, commit_ts in adopted.committed:
        if participant.committed.setdefault(tx_id, (start, commit_ts)) == (start, commit_ts) and journal is not None:
            journal.memory.append((tx_id, start, commit_ts))
    for tx_id, start in adopted.refused:
        participant.note_refusal((tx_id, start))
    participant.forgotten_ts = max(participant.forgotten_ts, adopted.forgotten_ts)
    cells.horizon = max(cells.horizon, adopted.horizon)
    if journal is not None:
        journal.adopted(participant.last_lsn, adopted.stored[0])
        _take_bases(participant, adopted)


def _take_bases(participant: Participant, adopted: Adopted) -> None:
    """At a restart: what the store had of keys when they came, or has since by checkpoints of this log."""
    cells = participant.cells
    for key, base in participant.bases.items():
        if adopted.start <= key and (adopted.stop is None or key < adopted.stop):
            if key in cells.chains:
                cells.drop(key, key + b"\0")
            cells.place(key, base)
