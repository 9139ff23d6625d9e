"""What must be replayed, and loaded before, when another life begins to answer for a log: computed from the sealed logs
and the last checkpoint.

Versions up to where the store is complete are skipped in the replay. What is added above them is added to what the
store has *there*, not to what is newest: a checkpoint that did not come to its end has left newer versions in the
store, which the replay makes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..two_phase.journal import Stored
from ..two_phase.records import Adopted, Committed, Voted
from .checkpoint import Checkpoint, stored_to


class Found(NamedTuple):
    """Of one sealed log: the records of this participant with their lsns, and the lsn of the first record there is."""

    first_lsn: int
    records: tuple[tuple[int, object], ...]


class Plan(NamedTuple):
    """`records` begin with those kept beside the checkpoint, so many; `origins` are where the others are. `bases` are
    keys by the timestamp at which the store has what they begin with."""

    kept: int
    records: tuple[object, ...]
    origins: tuple[tuple[str, int], ...]
    bases: dict[int, list[bytes]]


class LogIncomplete(Exception):
    """Records are gone that no checkpoint makes superfluous."""


def plan(checkpoint: Checkpoint, segments: Sequence[str], found: dict[str, Found]) -> Plan:
    records: list[object] = list(checkpoint.kept)
    origins: list[tuple[str, int]] = []
    first = segments.index(checkpoint.segment) if checkpoint.segment in segments else 0
    for segment in segments[first:]:
        after = checkpoint.lsn if segment == checkpoint.segment else 0
        if after and found[segment].first_lsn > after + 1:
            raise LogIncomplete(f"log {segment} begins with {found[segment].first_lsn}, not with {after + 1}")
        for lsn, record in found[segment].records:
            if lsn > after:
                records.append(record)
                origins.append((segment, lsn))
    return Plan(len(checkpoint.kept), tuple(records), tuple(origins), _bases(checkpoint.stored, records))


class _Range(NamedTuple):
    """Of keys that were adopted, ready to be looked at for each of many keys."""

    start: bytes
    stop: bytes | None
    came: frozenset[bytes]
    stored: Stored
    before: Stored

    def has(self, key: bytes) -> bool:
        return self.start <= key and (self.stop is None or key < self.stop)


def _bases(stored: Stored, records: Iterable[object]) -> dict[int, list[bytes]]:
    keys: dict[bytes, None] = {}
    adopted: list[_Range] = []
    for record in records:
        if isinstance(record, Committed | Voted):
            keys.update(dict.fromkeys(key for key, _, _ in record.writes))
            keys.update(dict.fromkeys(refresh[1] for refresh in record.refreshes))
        elif isinstance(record, Adopted):
            came = frozenset(key for key, _ in record.rows)
            adopted.append(_Range(record.start, record.stop, came, stored_to(record.stored), stored_to(record.before)))
            keys.update(dict.fromkeys(key for key, _ in record.rows))
    adopted.reverse()
    found: dict[int, list[bytes]] = {}
    for key in keys:
        at = _base_at(stored, adopted, key)
        if at is not None:
            found.setdefault(at, []).append(key)
    return found


def _base_at(stored: Stored, newest_first: Sequence[_Range], key: bytes) -> int | None:
    """None: what the key begins with came with it, and is not in the store."""
    own = stored.of(key)
    last = next((each for each in newest_first if each.has(key)), None)
    if last is None:
        return own
    if own <= last.before.of(key) and key in last.came:
        return None
    return max(own, last.stored.of(key))
