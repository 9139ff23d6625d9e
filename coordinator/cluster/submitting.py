"""Where the transactions of a process's clients are coordinated, and when they go there. No I/O, no clock.

What a transaction over several LTMs costs is mostly messages, records and turns of two processes, whether it is one or
sixteen that are run as one. So those of all gateways meet at one coordinator as far as that costs nobody anything: a
coordinator that has rows of the transaction needs no message to itself, and one that runs beside the leader has its
timestamps at once.

    a cluster of two LTMs    whoever leads has rows of every transaction over several LTMs: its coordinator
    a larger one             the owner of the first row that is written: the work is spread as the rows are

They go in waves (`waves`), at the gateway that passes them on and at the coordinator where they meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ltm.key_range import RangeMap
from ...ltm.two_phase.messages import TxId
from ..two_phase.messages import Outcome, Outcomes, Submit
from .waves import Waves

#: With so many processes that answer for keys, the leader coordinates everything.
FEW_LTMS = 2
#: Transactions of other processes that wait here; beyond it they are not heard, and asked for again.
HELD_MAX = 20_000


class Places:
    """By whose coordinator transactions go; what a map and a leader mean for all of them is found out once."""

    def __init__(self) -> None:
        self._ranges: RangeMap | None = None
        self._leader = self._for_all = ""

    def of(self, submit: Submit, ranges: RangeMap, leader: str) -> str:
        """The process. `leader` is the one that leads, "": nobody knows."""
        if ranges is not self._ranges or leader != self._leader:
            processes = {host.process for host in ranges.hosts.values()}
            self._ranges, self._leader = ranges, leader
            self._for_all = leader if len(processes) <= FEW_LTMS else ""
        return self._for_all or ranges.process(ranges.owner(submit.first_key))


class Submitting:
    """By coordinator: what waits for it, and what it has. `waves_max` are under way at each."""

    def __init__(self, waves_max: int) -> None:
        self._waves_max = waves_max
        self._waves: dict[str, Waves] = {}

    def add(self, coordinator: str, client: str, submits: Iterable[Submit]) -> None:
        waves = self._waves.get(coordinator)
        if waves is None:
            waves = self._waves[coordinator] = Waves(self._waves_max)
        for submit in submits:
            if len(waves) < HELD_MAX:
                waves.add(client, submit)

    def answered(self, coordinator: str, message: Outcome | Outcomes, now_ms: int) -> None:
        waves = self._waves.get(coordinator)
        if waves is not None:
            for outcome in (message,) if isinstance(message, Outcome) else message.outcomes:
                waves.answered(outcome.tx_id, now_ms)

    def release(self, now_ms: int) -> Iterator[tuple[str, tuple[tuple[str, Submit], ...]]]:
        """Waves that begin now: the coordinator, and each transaction with its client."""
        for coordinator, waves in self._waves.items():
            submits = waves.release(now_ms)
            if submits:
                yield coordinator, submits

    def is_under_way(self, now_ms: int) -> bool:
        """Whether what clients bring now has to wait anyway."""
        return any(waves.is_under_way(now_ms) for waves in self._waves.values())

    def has_wave(self, coordinator: str, now_ms: int) -> bool:
        """Whether the next transactions for that coordinator have to wait anyway."""
        waves = self._waves.get(coordinator)
        return waves is not None and waves.is_under_way(now_ms)

    def is_gathering(self, now_ms: int) -> bool:
        """Whether clients that were just answered are expected back."""
        return any(waves.is_gathering(now_ms) for waves in self._waves.values())

    def forget(self, coordinator: str) -> list[TxId]:
        """Nobody is there any more: what it has not answered, and what waits for it."""
        waves = self._waves.pop(coordinator, None)
        return [] if waves is None else waves.unanswered()

    def due_ms(self) -> Iterator[int]:
        return (waves.due_ms for waves in self._waves.values() if waves)
