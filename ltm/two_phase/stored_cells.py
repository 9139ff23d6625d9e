"""The versions of one LTM's cells where a store has them: in memory is what the store may not have yet, and what was
used lately.

A key is *known* if its newest version is here, or if it is in a range that is known as a whole: then it is absent. What
is not known must be loaded first. A key that is known to be absent has the chain ABSENT. A chain has no gaps, but it
may end above older versions that are in the store: what is seen there at a timestamp is loaded for one reader (`past`).

A key is *touched* if it has versions that the store may not have. Only a key that is not is ever forgotten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Container, Iterable

from ...changetables.types import Row
from .cells import ABSENT, Cells, Version
from .holds import PREFIX_BYTES, Bounds
from .messages import FOREVER, KeyRange
from .pages import row_bytes
from .records import LoggedWrite

#: Known ranges of one table: beyond it all but the last one are forgotten. New keys are mostly the highest.
RANGES_MAX = 1_000
#: Gaps in a range that are asked for one by one.
GAPS_MAX = 8
#: Versions that were loaded for one reader each: beyond it they are forgotten when nobody waits.
PAST_MAX = 10_000


class StoredCells(Cells):
    def __init__(self) -> None:
        super().__init__()
        #: By key: the newest version that the store has for sure, 0 if none is known.
        self.touched: dict[bytes, int] = {}
        #: By (key, timestamp): what is seen there.
        self.past: dict[tuple[bytes, int], Version] = {}
        #: Versions above it are kept: the store may not have them.
        self.stored_ts = 0
        #: Counts how often keys became unknown: what was asked of the store before may be too old then.
        self.forgettings = 0
        #: Counts how often keys went to somebody else.
        self.drops = 0
        #: By table: ranges that are known as a whole, in order, none touching another.
        self._known: dict[bytes, list[Bounds]] = {}

    # -- changes

    def put_all(self, writes: Iterable[LoggedWrite], ts: int) -> None:
        chains, touched = self.chains, self.touched
        added: list[bytes] = []
        for key, _, row in writes:
            head = chains.get(key)
            if key not in touched:
                touched[key] = 0 if head is None else head[0]
            if head is None:
                added.append(key)
                head = ABSENT
            chains[key] = (ts, row, self._kept(head))
            if row is None:
                self._gone[key] = None
        self._insert_keys(added)

    def add(self, key: bytes, ts: int, change: Callable[[Row | None], Row | None]) -> None:
        head = self.chains.get(key)
        if key not in self.touched:
            self.touched[key] = 0 if head is None else head[0]
        if head is None:
            self.place(key, ABSENT)
        super().add(key, ts, change)

    def _kept(self, head: Version) -> Version:
        """As it is without a store, but versions that the store may not have stay: at a restart, what was added later
        is added to what is there."""
        horizon = min(self.horizon, self.stored_ts)
        if head[0] <= horizon:
            return head if head[2] is None else (head[0], head[1], None)
        older = head[2]
        if older is None or older[0] > horizon or older[2] is None:
            return head
        return (head[0], head[1], (older[0], older[1], None))

    def drop(self, start: bytes, stop: bytes | None) -> None:
        super().drop(start, stop)
        for key in [key for key in self.touched if start <= key and (stop is None or key < stop)]:
            del self.touched[key]
        for prefix in list(self._known):
            self._forget_known(prefix, start, stop)
        for known in [known for known in self.past if start <= known[0] and (stop is None or known[0] < stop)]:
            del self.past[known]
        self.forgettings += 1
        self.drops += 1

    # -- what is known

    def is_known(self, key: bytes) -> bool:
        return key in self.chains or self._range_of(key) is not None

    def _range_of(self, key: bytes) -> Bounds | None:
        ranges = self._known.get(key[:PREFIX_BYTES])
        if not ranges:
            return None
        place = bisect_right(ranges, key, key=_start) - 1
        return ranges[place] if place >= 0 and key < ranges[place][1] else None

    def sees(self, key: bytes, at: int) -> bool:
        """Whether it is known what is seen of a known key at a timestamp."""
        version: Version | None = self.chains.get(key)
        if version is None:
            return True
        while version is not None and version[0] > at:
            version = version[2]
        return version is not None or (key, at) in self.past

    def unknown_between(self, wanted: KeyRange, at: int, bytes_max: int = FOREVER) -> tuple[Bounds | None, list[bytes]]:
        """What is missing before the rows of a range can be told, as many as fill a page of so many bytes: a part of it
        whose keys are not known, and keys of which it is not known what is seen at `at`."""
        start, stop, limit, last = wanted
        missing: list[bytes] = []
        found = size = 0
        parts = self._parts(start, stop, last)
        for place, (low, high, known) in enumerate(parts):
            if not known:
                return (low, high if last else _gaps_end(parts[place:])), missing
            for key in self.keys(low, high, last):
                if not self.sees(key, at):
                    missing.append(key)
                elif (row := self.at(key, at)[1]) is not None:
                    found += 1
                    size += row_bytes(row)
                    if found == limit or size >= bytes_max:
                        return None, missing
        return None, missing

    def _parts(self, start: bytes, stop: bytes, last: bool) -> list[tuple[bytes, bytes, bool]]:
        """A range, in parts that are known as a whole and parts that are not; from the end if `last`."""
        parts: list[tuple[bytes, bytes, bool]] = []
        place = start
        for low, high in self._known_between(start, stop):
            if place < low:
                parts.append((place, low, False))
            parts.append((max(low, start), min(high, stop), True))
            place = min(high, stop)
        if place < stop:
            parts.append((place, stop, False))
        return parts[::-1] if last else parts

    def _known_between(self, start: bytes, stop: bytes) -> list[Bounds]:
        prefixes = [start[:PREFIX_BYTES]]
        if stop[:PREFIX_BYTES] != start[:PREFIX_BYTES]:
            prefixes = sorted(self._known)
        found: list[Bounds] = []
        for prefix in prefixes:
            ranges = self._known.get(prefix, [])
            first = max(0, bisect_right(ranges, start, key=_start) - 1)
            stopped = bisect_left(ranges, stop, lo=first, key=_start)
            found += [bounds for bounds in ranges[first:stopped] if start < bounds[1]]
        return found

    def learn(self, key: bytes, version: Version) -> None:
        """What the store has of a key, ABSENT if nothing. What is known already is newer."""
        if not self.is_known(key):
            self.place(key, version)

    def learn_range(self, start: bytes, stop: bytes, cells: Collection[tuple[bytes, int, Row | None]]) -> None:
        """All that the store has of a range, in one table."""
        for key, ts, row in cells:
            self.learn(key, (ts, row, None))
        if start < stop:
            self._add_known(start, stop)

    def _add_known(self, start: bytes, stop: bytes) -> None:
        ranges = self._known.setdefault(start[:PREFIX_BYTES], [])
        joined = [bounds for bounds in ranges if bounds[0] <= stop and start <= bounds[1]]
        for bounds in joined:
            ranges.remove(bounds)
        insort(ranges, (min([start, *(b[0] for b in joined)]), max([stop, *(b[1] for b in joined)])))
        if len(ranges) > RANGES_MAX:
            del ranges[:-1]
            # What is under way from the store may be older than what was known there.
            self.forgettings += 1

    def _forget_known(self, prefix: bytes, start: bytes, stop: bytes | None) -> None:
        left: list[Bounds] = []
        for low, high in self._known[prefix]:
            if low < start:
                left.append((low, min(high, start)))
            if stop is not None and stop < high:
                left.append((max(low, stop), high))
        left = [bounds for bounds in left if bounds[0] < bounds[1]]
        if left:
            self._known[prefix] = left
        else:
            del self._known[prefix]

    def at(self, key: bytes, ts: int) -> Version:
        version: Version | None = self.chains.get(key)
        while version is not None and version[0] > ts:
            version = version[2]
        return self.past.get((key, ts), ABSENT) if version is None else version

    # -- forgetting

    def prune(self) -> None:
        """Rows that are gone for good. The store has them, or has forgotten them itself."""
        for key in self._gone_below(min(self.horizon, self.stored_ts)):
            if key not in self.touched and self._range_of(key):
                self._remove(key)

    def evict(self, keys_max: int, is_used: Callable[[bytes], bool]) -> int:
        """Forget keys beyond so many, the longest known first. Returns how many went."""
        beyond, gone = len(self.chains) - keys_max, 0
        by_table: dict[bytes, list[bytes]] = {}
        unstored = self._unstored()
        for key in list(self.chains) if beyond > 0 else ():
            if gone == beyond:
                break
            if key not in unstored and not is_used(key):
                self._remove(key)
                by_table.setdefault(key[:PREFIX_BYTES], []).append(key)
                gone += 1
        for prefix, keys in by_table.items():
            if prefix in self._known:
                self._forget_keys(prefix, sorted(keys))
        if gone:
            self.forgettings += 1
        return gone

    def _forget_keys(self, prefix: bytes, keys: list[bytes]) -> None:
        """They are not here any more. What is between them is known to be absent; where that would be too many ranges,
        it is forgotten with them."""
        left = _without(self._known[prefix], [(key, key + b"\0") for key in keys])
        if len(left) > RANGES_MAX:
            left = _without(self._known[prefix], self._runs(keys))
        if len(left) > RANGES_MAX:
            del left[:-1]
        if left:
            self._known[prefix] = left
        else:
            del self._known[prefix]

    def _runs(self, keys: list[bytes]) -> list[Bounds]:
        """Ranges with these keys and none that is here."""
        runs: list[Bounds] = []
        for key in keys:
            if runs and next(self.keys(runs[-1][1], key, False), None) is None:
                runs[-1] = (runs[-1][0], key + b"\0")
            else:
                runs.append((key, key + b"\0"))
        return runs

    def _unstored(self) -> Container[bytes]:
        return self.touched

    def forget_past(self) -> None:
        """Only when no reader waits."""
        if len(self.past) > PAST_MAX:
            self.past.clear()

    def misses(self, start: bytes, stop: bytes, at: int) -> bool:
        """Whether there is a version up to a timestamp that the store may not have."""
        for key, base in self.touched.items():
            if start <= key < stop:
                version: Version | None = self.chains[key]
                while version is not None and version[0] > base:
                    if version[0] <= at:
                        return True
                    version = version[2]
        return False

    def touched_between(self, start: bytes, stop: bytes | None) -> list[bytes]:
        return sorted(key for key in self.touched if start <= key and (stop is None or key < stop))


def _without(ranges: list[Bounds], gone: list[Bounds]) -> list[Bounds]:
    """Both in order. Each is looked at once: thousands of keys are forgotten at a time."""
    left: list[Bounds] = []
    first = 0
    for low, high in ranges:
        while first < len(gone) and gone[first][1] <= low:
            first += 1
        number = first
        while number < len(gone) and gone[number][0] < high:
            if low < gone[number][0]:
                left.append((low, gone[number][0]))
            low = max(low, gone[number][1])
            number += 1
        if low < high:
            left.append((low, high))
        first = number - 1 if number > first else first  # the last one may go on
    return left


def _gaps_end(parts: list[tuple[bytes, bytes, bool]]) -> bytes:
    """Up to where to ask for what is not known, which begins with the first part. Where keys were forgotten one by one
    are hundreds of gaps of one key each: they are asked for together, with what is between them."""
    gaps = [high for _, high, known in parts if not known]
    return gaps[0] if len(gaps) <= GAPS_MAX else gaps[-1]


def _start(bounds: Bounds) -> bytes:
    return bounds[0]
