"""Keys change their owner: what the participant that had them does, and the one that gets them.

The one that had them refuses whoever has not voted there, waits until those who have are decided, and then gives away
all versions and its memory of transactions. The other one logs them before it may answer for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..machine import Outputs
from .cells import Version
from .records import Adopted

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
    """Everything about keys in which nothing is held any more. It may be shown when all records are durable."""
    rows = []
    for key in participant.cells.all_keys(start, stop):
        versions = []
        version: Version | None = participant.cells.newest(key)
        while version is not None:
            versions.append((version[0], version[1]))
            version = version[2]
        rows.append((key, tuple(versions)))
    return Adopted(
        start,
        stop,
        tuple(rows),
        tuple((tx_id, *known) for tx_id, known in participant.committed.items()),
        tuple(participant.refused_for_good()),
        participant.forgotten_ts,
        participant.cells.horizon,
    )


def take_in(participant: Participant, adopted: Adopted) -> None:
    """The keys as they are; what was here of them from an earlier time goes."""
    cells = participant.cells
    cells.drop(adopted.start, adopted.stop)
    for key, versions in adopted.rows:
        chain: Version | None = None
        for ts, row in reversed(versions):
            chain = (ts, row, chain)
        if chain is not None:
            cells.place(key, chain)
    for tx_id, start, commit_ts in adopted.committed:
        participant.committed.setdefault(tx_id, (start, commit_ts))
    for tx_id, start in adopted.refused:
        participant.note_refusal((tx_id, start))
    participant.forgotten_ts = max(participant.forgotten_ts, adopted.forgotten_ts)
    cells.horizon = max(cells.horizon, adopted.horizon)
