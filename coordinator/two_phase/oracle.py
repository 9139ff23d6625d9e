"""The timestamp oracle of several LTMs: one machine issues all timestamps, in batches, never ahead of need.

Its upper bound is durable before anything below it is issued: whoever comes after it starts above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.two_phase.messages import Draw, Timestamps
from ..timestamps import MS_SHIFT, STEP, TimestampOracle

#: The bound is this far ahead of the clock, and is moved when less than half of it is left.
BOUND_MS = 3_000
#: Timestamps in one answer.
DRAWN_MAX = 4_096


class Bound(NamedTuple):
    """Nothing above it was issued."""

    ts: int


class Oracle:
    def __init__(self, host: Host, epoch: Callable[[], int] = lambda: 0) -> None:
        self.host = host
        self._epoch = epoch
        self._oracle = TimestampOracle()
        #: Durable, and written but perhaps not durable yet.
        self._bound = 0
        self._next_bound = 0
        self._lsn = 0
        self._next_lsn = 0
        self._parked: list[tuple[str, Draw]] = []

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._lsn = getattr(disk, "last_lsn", len(disk))
        for record in disk:
            assert isinstance(record, Bound)
            self._oracle.seen(record.ts)
        return self._extend(now_ms)

    def _extend(self, now_ms: int) -> Outputs:
        """Move the bound, if it is near."""
        wanted = max(now_ms << MS_SHIFT, self._oracle.last) + (BOUND_MS << MS_SHIFT)
        if self._next_bound - max(now_ms << MS_SHIFT, self._oracle.last) > (BOUND_MS << MS_SHIFT) // 2:
            return Outputs()
        self._next_bound = wanted
        self._lsn += 1
        self._next_lsn = self._lsn
        return Outputs(persist=(Bound(wanted),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        assert isinstance(message, Draw)
        out = self._extend(now_ms)
        answer = self._drawn(message, now_ms)
        if answer is None:
            self._parked.append((sender, message))
            return out
        return out._replace(send=((sender, answer),))

    def _drawn(self, message: Draw, now_ms: int) -> Timestamps | None:
        wanted = min(message.wanted, DRAWN_MAX)
        before = self._oracle.last
        first = self._oracle.draw(now_ms)
        last = first + (wanted - 1) * STEP
        if last >= self._bound:
            self._oracle.last = before
            return None
        self._oracle.seen(last)
        return Timestamps(message.number, first, wanted, self._epoch())

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        if lsn < self._next_lsn:
            return Outputs()
        self._bound, durable = self._next_bound, self._next_lsn
        send: list[tuple[str, object] | WhenDurable] = []
        parked, self._parked = self._parked, []
        for sender, message in parked:
            answer = self._drawn(message, now_ms)
            if answer is None:
                self._parked.append((sender, message))
            else:
                send.append((sender, answer))
        return self._extend(now_ms)._replace(send=tuple(send), trim=durable)

    def timer(self, token: object, now_ms: int) -> Outputs:
        raise AssertionError("the oracle sets no timers")
