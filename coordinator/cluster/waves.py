"""Transactions of this process go to its coordinator in waves. No I/O, no clock.

What a transaction over several LTMs costs is mostly its messages and records, and transactions that write different
rows can be run as one (rule T2). So those that come while a few waves are under way wait until one of them has ended,
and go together. Whoever comes alone does not wait. A wave that takes long, because of a conflict or because an LTM is
gone, is not waited for any longer: others may have nothing to do with it.

When a wave has ended, its clients come back within a moment. If it is not waited for, the others go without them, and
from then on there are two waves of half the size, in turns, each of which costs as much as a whole one.
"""

from __future__ import annotations

from collections import deque

from ...ltm.two_phase.messages import TxId
from ..two_phase.messages import Submit

#: Where the logs are elsewhere, one wave waits for them while the other is computed. A log on a local disk takes so
#: little that two waves only halve each other: every message and record is of half as many transactions then.
WAVES_MAX = 2
WAVES_MAX_LOCAL = 1
#: So long a wave is waited for: several times what one takes when all goes well, also on a busy machine.
WAVE_MS_MAX = 50
#: So long those are waited for who were there before.
GATHER_MS = 2
#: Transactions in one wave.
WAVE_SUBMITS_MAX = 256


class _Wave:
    __slots__ = ("begun_ms", "left")

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = begun_ms
        #: Transactions that are not answered yet.
        self.left = 0


class Waves:
    """`waves_max` are under way at a time."""

    def __init__(self, waves_max: int = WAVES_MAX) -> None:
        self._waves_max = waves_max
        self._held: deque[tuple[str, Submit]] = deque()
        self._waves: deque[_Wave] = deque()
        self._wave_of: dict[TxId, _Wave] = {}
        #: How many were there at a time since the last wave began, and when one last ended.
        self._present = 0
        self._ended_ms = 0

    def __len__(self) -> int:
        """Transactions that wait."""
        return len(self._held)

    def add(self, client: str, submit: Submit) -> None:
        self._held.append((client, submit))
        self._present = max(self._present, len(self._held) + len(self._wave_of))

    def answered(self, tx_id: TxId, now_ms: int) -> None:
        wave = self._wave_of.pop(tx_id, None)
        if wave is not None:
            wave.left -= 1
            if not wave.left:
                self._ended_ms = now_ms

    def release(self, now_ms: int) -> tuple[tuple[str, Submit], ...]:
        """The next wave; empty if it has to wait, or if there is nothing."""
        if not self._held:
            return ()
        self._forget(now_ms)
        if len(self._waves) >= self._waves_max or (self._is_gathering and now_ms < self._ended_ms + GATHER_MS):
            return ()
        submits = tuple([self._held.popleft() for _ in range(min(len(self._held), WAVE_SUBMITS_MAX))])
        wave = _Wave(now_ms)
        self._waves.append(wave)
        for _, submit in submits:
            # It may be there twice, if its client has asked again.
            self.answered(submit.tx_id, now_ms)
            self._wave_of[submit.tx_id] = wave
            wave.left += 1
        self._present = len(self._wave_of)
        return submits

    def is_under_way(self, now_ms: int) -> bool:
        """Whether no other wave can begin before one of these has ended."""
        left = [wave for wave in self._waves if wave.left and now_ms < wave.begun_ms + WAVE_MS_MAX]
        return len(left) >= self._waves_max

    def is_gathering(self, now_ms: int) -> bool:
        """Whether the next wave waits for those whom the last one had."""
        self._forget(now_ms)
        return not self._waves and self._is_gathering and now_ms < self._ended_ms + GATHER_MS

    def unanswered(self) -> list[TxId]:
        """All of them."""
        return [*self._wave_of, *(submit.tx_id for _, submit in self._held)]

    @property
    def due_ms(self) -> int:
        """When to look again at the latest, if something waits; 0: at once."""
        if not all(wave.left for wave in self._waves):
            return 0
        if len(self._waves) < self._waves_max:
            return self._ended_ms + GATHER_MS if self._is_gathering else 0
        return self._waves[0].begun_ms + WAVE_MS_MAX

    @property
    def _is_gathering(self) -> bool:
        """Whether many of those who were there and are answered are not back yet."""
        return 3 * len(self._held) < 2 * (self._present - len(self._wave_of))

    def _forget(self, now_ms: int) -> None:
        """Waves that have ended, or take long."""
        for wave in [wave for wave in self._waves if not wave.left or now_ms >= wave.begun_ms + WAVE_MS_MAX]:
            self._waves.remove(wave)
            if wave.left:
                self._present -= wave.left
                self._wave_of = {tx_id: other for tx_id, other in self._wave_of.items() if other is not wave}
