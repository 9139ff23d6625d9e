"""The timestamp oracle: 64 bits, ms << 20 | counter (12 bits) | raise (8 bits), issued with raise = 0.

Issued timestamps only grow, also when the wall clock steps back or more than 4,096 are drawn in one millisecond: the
counter then runs on into the milliseconds. A restarted oracle starts above everything that it issued before, because
every commit_ts is in the log.
"""

from __future__ import annotations

MS_SHIFT = 20
STEP = 1 << 8


class TimestampOracle:
    def __init__(self, last: int = 0) -> None:
        self.last = last

    def draw(self, now_ms: int) -> int:
        """A timestamp above every earlier one."""
        ts = now_ms << MS_SHIFT
        if ts <= self.last:
            ts = self.last + STEP
        self.last = ts
        return ts

    def seen(self, ts: int) -> None:
        """`ts` was issued before a restart: stay above it."""
        if ts > self.last:
            self.last = ts


def to_ms(ts: int) -> int:
    """The wall-clock milliseconds in a timestamp: lag is a subtraction."""
    return ts >> MS_SHIFT
