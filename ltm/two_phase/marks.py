"""Marks: nobody commits at or below them. Every mark is an issued timestamp, perhaps raised, never a clock value (T1).

Marks of single keys are kept one by one, up to a limit; those of ranges for their whole table; when some are forgotten,
the floor, a mark on everything, is raised to them (rule H3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .holds import PREFIX_BYTES, PREFIX_OF

#: `min_ts` counts up the last bits of an issued timestamp; there is no room above this.
RAISE_MAX = 0xFF
#: Marks of single keys.
MARKS_MAX = 10_000


class Marks:
    def __init__(self) -> None:
        self.floor = 0
        self._keys: dict[bytes, int] = {}
        self._tables: dict[bytes, int] = {}

    def raise_floor(self, ts: int) -> None:
        self.floor = max(self.floor, ts)

    def mark(self, keys: Iterable[bytes], ts: int) -> None:
        marks = self._keys
        if ts <= self.floor:
            return
        for key in keys:
            if marks.get(key, 0) < ts:
                marks[key] = ts
        if len(marks) > MARKS_MAX:
            self._forget()

    def mark_ranges(self, starts: Iterable[bytes], ts: int) -> None:
        """Of ranges only the beginning matters: their whole table is marked."""
        for start in starts:
            prefix = start[:PREFIX_BYTES]
            if self._tables.get(prefix, 0) < ts:
                self._tables[prefix] = ts

    def highest(self, keys: Sequence[bytes]) -> int:
        """The highest mark on any of these keys."""
        found, marks, tables = self.floor, self._keys, self._tables
        if not marks.keys().isdisjoint(keys):
            found = max(found, max([marks.get(key, 0) for key in keys]))
        if tables:
            found = max([found, *(tables.get(prefix, 0) for prefix in set(map(PREFIX_OF, keys)))])
        return found

    def forget_below(self, ts: int) -> None:
        """Nobody starts below `ts` any more: those marks raise nobody."""
        self._keys = {key: mark for key, mark in self._keys.items() if mark > ts}
        self._tables = {prefix: mark for prefix, mark in self._tables.items() if mark > ts}
        self.raise_floor(ts)

    def _forget(self) -> None:
        self.raise_floor(max(self._keys.values()))
        self._keys.clear()
