"""Consistent hashing: which view manager gets a row's changes. Same key, same view manager (Adler 4.2).

When a view manager comes or goes, only the keys that it gets or had move.
"""

from __future__ import annotations

from bisect import bisect_right
from zlib import crc32

#: Points of each view manager on the ring: with five of them, the largest share is about 1.2 times the mean.
POINTS_PER_MEMBER = 128


class HashRing:
    """Immutable: a change takes effect at the next marker, so a step keeps the ring that it began with."""

    __slots__ = ("_owners", "_points", "members")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = tuple(sorted(members))
        placed = sorted(
            (crc32(f"{member}/{number}".encode()), member)
            for member in self.members
            for number in range(POINTS_PER_MEMBER)
        )
        self._points = [point for point, _ in placed]
        self._owners = [owner for _, owner in placed]

    def owner(self, key: bytes) -> int:
        """The member whose first point comes after that of the key."""
        place = bisect_right(self._points, crc32(key))
        return self._owners[place if place < len(self._owners) else 0]
