"""Whether the commit protocol goes on: nobody in doubt, nobody starving, nothing refused without need."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import cast

from viewtide.coordinator.cluster.leader import LEASE_MS
from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.messages import CONFLICT, Outcome, Submit
from viewtide.ltm.two_phase.messages import COMMITTED, Ask, Attempt, TxId
from viewtide.ltm.two_phase.participant import Participant

from .checkers import Checker
from .trace import SEND, Event
from .workload import CLIENTS, COORDINATORS, LTMS
from .world import World

#: Upper ends of the buckets of how long a transaction was in doubt after its coordinator's death.
IN_DOUBT_MS = (100, 250, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 30_000)


class Liveness(Checker):
    """When all is healed, nobody is in doubt, nobody holds anything, everybody is answered."""

    kinds = ("done", "crash", "decided")

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._working = dict.fromkeys(name for name in CLIENTS if name in world.nodes)
        #: When the coordinator of a transaction in doubt died.
        self._orphans: dict[tuple[str, Attempt], int] = {}

    def observe(self, event: Event) -> None:
        if event.what == "done":
            self._working.pop(event.process, None)
        elif event.what == "decided":
            attempt, log = cast(Attempt, event.detail[0]), cast(str, event.detail[1])
            began_us = self._orphans.pop((log, attempt), None)
            self.traffic["aborts"] += event.detail[2] == 0
            if began_us is not None:
                self._measure((event.time_us - began_us) // 1_000)
        elif event.process in COORDINATORS:
            for name, part, attempt in self._undecided():
                if part.coordinator == event.process and part.min_ts:
                    self._orphans.setdefault((name, attempt), event.time_us)

    def _measure(self, passed_ms: int) -> None:
        place = bisect_left(IN_DOUBT_MS, passed_ms)
        self.traffic["orphans"] += 1
        self.traffic[f"in doubt <= {IN_DOUBT_MS[min(place, len(IN_DOUBT_MS) - 1)]} ms"] += 1

    def _undecided(self) -> Iterable[tuple[str, object, Attempt]]:
        for name in LTMS:
            process = self._world.nodes[name].process
            if isinstance(process, Participant):
                for attempt, part in process.parts.items():
                    if part.decided is None:
                        yield name, part, attempt

    def converged(self) -> str:
        if self._working:
            return f"{', '.join(self._working)} not done"
        for name, _, attempt in self._undecided():
            return f"{attempt} is not decided at {name}"
        for name in LTMS:
            process = self._world.nodes[name].process
            if not isinstance(process, Participant) or len(process.holds) or process._readers:
                return f"{name} holds something"
        for name in COORDINATORS:
            process = self._world.nodes[name].process
            if not isinstance(process, Coordinator) or process.work or process._settling:
                return f"{name} has work"
        return ""


class Orphans(Liveness):
    """Where only coordinators die, nobody is in doubt for longer than two leases after that."""

    IN_DOUBT_MS_MAX = 2 * LEASE_MS

    def _measure(self, passed_ms: int) -> None:
        super()._measure(passed_ms)
        if passed_ms > self.IN_DOUBT_MS_MAX:
            raise self.violation(f"in doubt for {passed_ms} ms after the coordinator's death, and all else is well")


def in_doubt_p99_ms(traffic: Mapping[str, int]) -> int:
    """The upper end of the bucket that the 99th percentile is in; 0 if nobody was in doubt."""
    counts = [traffic.get(f"in doubt <= {end} ms", 0) for end in IN_DOUBT_MS]
    passed = 0
    for end, count in zip(IN_DOUBT_MS, counts, strict=True):
        passed += count
        if count and passed >= 0.99 * sum(counts):
            return end
    return 0


class Calm(Checker):
    """Where nothing goes wrong, nearly everything is committed, and soon."""

    kinds = ("submit", "outcome")
    RATIO_MIN = 0.95
    LATENCY_MS_MAX = 400

    def __init__(self, world: World) -> None:
        super().__init__()
        self._states: Counter[str] = Counter()
        self._began_us: dict[TxId, int] = {}

    def observe(self, event: Event) -> None:
        if event.what == "submit":
            self._began_us[cast(Submit, event.detail[0]).tx_id] = event.time_us
            return
        outcome = cast(Outcome, event.detail[0])
        self._states[outcome.state] += 1
        passed_ms = (event.time_us - self._began_us[outcome.tx_id]) // 1_000
        if passed_ms > self.LATENCY_MS_MAX:
            raise self.violation(f"{outcome} took {passed_ms} ms, and nothing went wrong", outcome.tx_id)

    def finish(self) -> None:
        committed, conflicts = self._states[COMMITTED], self._states[CONFLICT]
        if committed < self.RATIO_MIN * (committed + conflicts):
            raise self.violation(f"{conflicts} conflicts beside {committed} commits, and nothing went wrong")
        self.traffic["calm commits"] += committed


class Fair(Checker):
    """Nobody is refused again and again, and who is refused does not become younger by it (rule H4)."""

    kinds = (SEND,)
    ATTEMPTS_MAX = 20

    def __init__(self, world: World) -> None:
        super().__init__()
        self._attempts: dict[TxId, set[int]] = defaultdict(set)
        self._priorities: dict[TxId, int] = {}

    def observe(self, event: Event) -> None:
        message = event.detail[2]
        if isinstance(message, Ask):
            tx_id, start = message.attempt
            first = self._priorities.setdefault(tx_id, message.priority)
            if message.priority != first or first > start:
                raise self.violation(f"{tx_id} had priority {first} and has {message.priority} now", tx_id)
            starts = self._attempts[tx_id]
            starts.add(start)
            if len(starts) > self.ATTEMPTS_MAX:
                raise self.violation(f"{tx_id} was refused {self.ATTEMPTS_MAX} times", tx_id)

    def finish(self) -> None:
        for starts in self._attempts.values():
            self.traffic[f"transactions of {len(starts)} attempts"] += 1
