"""What was committed lately at one LTM, by timestamp: for those who follow the change tables of a table or view.

It is kept for a time (`HISTORY_MS`), a shorter one if it is much. The rows of a deferred view's step have its W1,
however long the step takes: they stay until it is published and followers had the time to ask for them. What was
committed here stays here when the keys change their owner: whoever follows asks all logs. After a restart it is what
the log still has; what only the store has, nobody can tell in order any more. `oldest` says up to where something may
be missing, for each table by itself: one that does not change is never too far behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ..codec import pack_for_peer
from .holds import PREFIX_BYTES
from .messages import Attempt, ChangedRow, Place, Refresh, RefreshedRow
from .pages import PAGE_BYTES_MAX, ROW_BYTES
from .records import LoggedWrite

#: Changes are known for so long after their commit.
HISTORY_MS = 3_600_000
#: If there are more bytes than that, about, only the young ones and those of steps are.
KEPT_BYTES = 64 * 2**20
#: Changed rows that are kept at the most, whatever they are.
ROWS_MAX = 500_000
#: Commits that are looked through for one answer: about 10 ms.
SCANNED_MAX = 20_000

#: (ts, attempt, writes, refreshes, commit_ts, bytes). Where `ts` is not the commit_ts, it is a step's W1.
_Entry: TypeAlias = tuple[int, Attempt, Sequence[LoggedWrite], Sequence[Refresh], int, int]


class Page(NamedTuple):
    """Changes in the order of their timestamps, and where the next ones are."""

    writes: tuple[ChangedRow, ...]
    refreshes: tuple[RefreshedRow, ...]
    next: Place


class Recent:
    def __init__(self) -> None:
        #: In the order of (ts, attempt): contributions to view rows do not come in that of their timestamps.
        self._entries: list[_Entry] = []
        self._count = self._bytes = 0
        self.bytes_max = KEPT_BYTES
        #: Of everything, what is at or below it may be missing; of some tables and views, what is at or below these.
        self.floor = 0
        self._forgotten: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    def add(
        self, commit_ts: int, at: int, attempt: Attempt, writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh]
    ) -> None:
        """`at` is the version of the refreshed rows, 0: commit_ts."""
        if not at or at == commit_ts:
            self._insert((commit_ts, attempt, writes, refreshes, commit_ts, _size(writes, refreshes)))
            return
        if writes:
            self._insert((commit_ts, attempt, writes, (), commit_ts, _size(writes, ())))
        self._insert((at, attempt, (), refreshes, commit_ts, _size((), refreshes)))

    def _insert(self, entry: _Entry) -> None:
        entries, name = self._entries, entry[:2]
        if not entries or entries[-1][:2] < name:
            entries.append(entry)
        else:
            place = bisect_left(entries, name, key=_name)
            if entries[place][:2] == name:
                return  # at a restart: it is beside the checkpoint, and in the log
            entries.insert(place, entry)
        self._count += len(entry[2]) + len(entry[3])
        self._bytes += entry[5]

    def forget(self, old_ts: int, young_ts: int, passed: Mapping[int, int] = MappingProxyType({})) -> None:
        """What was committed at or below `old_ts`; if there is much, also the oldest up to `young_ts`. `passed`: by
        deferred view, up to which version followers had the time to ask for it."""
        kept: list[_Entry] = []
        for place, entry in enumerate(self._entries):
            ts, _, writes, refreshes, commit_ts, size = entry
            is_much, is_too_much = self._bytes > self.bytes_max, self._count > ROWS_MAX
            if ts > old_ts and not is_too_much and (ts > young_ts or not is_much):
                kept += self._entries[place:]  # all that follow are younger
                break
            is_old = commit_ts <= old_ts or (is_much and commit_ts <= young_ts)
            if not is_too_much and (not is_old or any(ts > passed.get(refresh[0], ts) for refresh in refreshes)):
                kept.append(entry)
                continue
            self._count -= len(writes) + len(refreshes)
            self._bytes -= size
            for table_id in {*(_table_of(key) for key, _, _ in writes), *(refresh[0] for refresh in refreshes)}:
                # Rows of a step may come when later ones are forgotten.
                self._forgotten[table_id] = max(ts, self._forgotten.get(table_id, 0))
        self._entries = kept

    def oldest(self, ids: Iterable[int]) -> int:
        """The lowest timestamp above which nothing of these tables and views is missing."""
        return max([self.floor, *(self._forgotten.get(each, 0) for each in ids)])

    def page(self, ids: Sequence[int], start: Place, at: int, limit: int) -> Page:
        """From a place on and up to a timestamp, at most so many, fewer if they are long: they go into one message. The
        order is the same whenever it is asked."""
        writes: list[ChangedRow] = []
        refreshes: list[RefreshedRow] = []
        wanted = frozenset(ids)
        last_ts = seen = size = 0
        for scanned, (ts, _, some_writes, some_refreshes, _, _) in enumerate(self._from(start[0])):
            if ts > at:
                break
            if ts != last_ts:
                if scanned >= SCANNED_MAX:
                    return Page(tuple(writes), tuple(refreshes), (ts, 0))
                last_ts, seen = ts, 0
            for write in some_writes:
                if _table_of(write[0]) in wanted:
                    seen += 1
                    if (ts, seen) > start:
                        writes.append((ts, *write))
                        size += _size((write,), ())
                        if len(writes) + len(refreshes) >= limit or size >= PAGE_BYTES_MAX:
                            return Page(tuple(writes), tuple(refreshes), (ts, seen))
            for refresh in some_refreshes:
                if refresh[0] in wanted:
                    seen += 1
                    if (ts, seen) > start:
                        refreshes.append((ts, *refresh))
                        size += _size((), (refresh,))
                        if len(writes) + len(refreshes) >= limit or size >= PAGE_BYTES_MAX:
                            return Page(tuple(writes), tuple(refreshes), (ts, seen))
        return Page(tuple(writes), tuple(refreshes), (at + 1, 0))

    def _from(self, ts: int) -> Iterator[_Entry]:
        entries = self._entries
        return (entries[place] for place in range(bisect_left(entries, ts, key=_ts), len(entries)))


def _table_of(key: bytes) -> int:
    return int.from_bytes(key[:PREFIX_BYTES], "big")


def _size(writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh]) -> int:
    """About how many bytes they take. Every row that is committed comes through here: to pack them all takes less time
    than to look at each value."""
    return ROW_BYTES * (len(writes) + len(refreshes)) + len(pack_for_peer((writes, refreshes)))


def _name(entry: _Entry) -> tuple[int, Attempt]:
    return entry[:2]


def _ts(entry: _Entry) -> int:
    return entry[0]
