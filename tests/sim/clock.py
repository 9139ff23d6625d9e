"""A process's own clock: true time with an offset and a drift. Integers only, so that every platform agrees."""

from __future__ import annotations

#: What a clock without an offset shows when the run begins. Above any offset: no clock is ever negative.
EPOCH_MS = 1_000_000_000

_PARTS = 1_000_000


class Clock:
    """Never goes back: where it was set back, it stands still until the time is reached again."""

    def __init__(self) -> None:
        self._since_us = 0
        self._shown_us = EPOCH_MS * 1_000
        self._rate = _PARTS
        self._latest_ms = 0

    def set(self, now_us: int, offset_ms: int, drift_ppm: int) -> None:
        """From now on, be `offset_ms` away from the true time and run `drift_ppm` millionths fast (or slow)."""
        self._since_us = now_us
        self._shown_us = (EPOCH_MS + offset_ms) * 1_000 + now_us
        self._rate = _PARTS + drift_ppm

    def now_ms(self, now_us: int) -> int:
        shown_ms = (self._shown_us + (now_us - self._since_us) * self._rate // _PARTS) // 1_000
        if shown_ms > self._latest_ms:
            self._latest_ms = shown_ms
        return self._latest_ms

    def when_us(self, at_ms: int) -> int:
        """The first true time at which the clock, running as now, shows `at_ms`; it may be in the past."""
        missing_us = at_ms * 1_000 - self._shown_us
        return self._since_us - (-missing_us * _PARTS // self._rate)
