"""Deferred views over several LTMs: the commit protocol with view managers that come and go and schedulers that replace
each other, for a while without knowing it. Clients and their checkers are those of the commit protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import cast

from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.messages import Outcome, ReadAt, RowsAt, Submit
from viewtide.coordinator.two_phase.oracle import Oracle
from viewtide.coordinator.vms import cluster_scheduler as schedulers
from viewtide.coordinator.vms import cluster_subsystem as subsystems
from viewtide.coordinator.vms import cluster_view_manager as managers
from viewtide.coordinator.vms.cluster_client import ASKER, Asker
from viewtide.coordinator.vms.cluster_scheduler import ClusterScheduler
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant
from viewtide.coordinator.vms.cluster_view_manager import ClusterViewManager
from viewtide.coordinator.vms.step_rows import STEPS, watermark_key, watermark_of, withdrawn, withdrawn_key
from viewtide.ltm.two_phase.views import refresh_with

from .client_checkers import Bank, Lists
from .commit_checkers import ExactlyOnce
from .faults import Mix, Planned, Surroundings
from .liveness_checkers import Liveness
from .process import NOTHING, Host, Outputs
from .scenario import Built, Scenario
from .views_checkers import SYSTEM_TX, Lag, ViewsReplay, groups
from .views_mutants import DISKS, MUTANTS, SLOW
from .workload import (
    CLIENTS,
    COORDINATORS,
    DELETE,
    LTMS,
    OPERATIONS,
    OPERATIONS_WEIGHTS,
    ORACLE,
    Client,
    Operation,
    range_map,
    tables,
    whole,
    with_hidden,
)
from .world import World

CANDIDATES = ("leader-1", "leader-2")
MANAGERS = ("manager-1", "manager-2", "manager-3")
FOREMAN = "foreman"

SAFETY_MS = 6_000
WORKING_MS = SAFETY_MS + 500
LIVENESS_MS_MAX = 60_000
#: The one leads for so long, then the other; each goes on a little longer than it should.
TERM_MS = 1_700
OVERTIME_MS_MAX = 500
COMMAND_MS_MAX = 1_500
#: It owns the first range, where the rows of steps are. The counters are elsewhere.
STEPS_LTM = LTMS[1]
#: So few that most shares are in several messages.
ITEMS_MAX = 3

CRASH_POINTS = (*schedulers.PROBES, *subsystems.PROBES, *managers.PROBES)


def look_late(client: Client, random: Random) -> Operation:
    """A deferred view at its published watermark: a row says which that is."""
    key, group = random.choice(list(groups().items()))
    read = cast("RowsAt | None", (yield ReadAt(0, 0, (watermark_key(key),))))
    if read is None:
        return
    names = [name for view in random.sample(group.names, 2) for name in with_hidden(view)]
    yield ReadAt(0, watermark_of(read.rows[0][1]), (), tuple(whole(name) for name in dict.fromkeys(names)))


OPERATIONS["look_late"] = look_late


class Candidate:
    """Leads when it is its turn, by its own clock, and a little longer."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._place = CANDIDATES.index(host.name)
        self.scheduler = ClusterScheduler(host, tables(), COORDINATORS, lambda: tuple((log, log) for log in LTMS))
        self._terms = 0
        self._until_ms = 0

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._terms = incarnation * 1_000
        return Outputs(timers=((now_ms + 1, ("turn", 0)),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        return self.scheduler.receive(sender, message, now_ms)

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a candidate writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        if token != ("turn", 0):
            return self.scheduler.timer(token, now_ms)
        outputs = NOTHING
        if now_ms // TERM_MS % len(CANDIDATES) == self._place:
            self._until_ms = now_ms + self._host.random.randint(0, OVERTIME_MS_MAX)
            if not self.scheduler.leads:
                self._terms += 1
                outputs = self.scheduler.lead(now_ms, self._terms * len(CANDIDATES) + self._place)
        elif self.scheduler.leads and now_ms > self._until_ms:
            self.scheduler.step_down()
        return outputs._replace(timers=(*outputs.timers, (now_ms + 50, token)))


class Foreman:
    """Withdraws view managers, and assigns them again."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._asker = Asker(host, COORDINATORS)
        self._end_ms = 0
        self._number = SYSTEM_TX
        self._now_ms = 0
        self._latest_ts = 0

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._end_ms = now_ms + WORKING_MS
        return Outputs(timers=((now_ms + self._host.random.randint(1, COMMAND_MS_MAX), ("next", 0)),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        assert isinstance(message, RowsAt | Outcome)
        self._now_ms = now_ms
        self._asker.receive(message, now_ms)
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a foreman writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        assert isinstance(token, tuple)
        self._now_ms = now_ms
        if token[0] == ASKER:
            self._asker.timer(token[1], now_ms)
        elif now_ms < self._end_ms:
            # Not of nothing: only who answers for a key knows whether a timestamp comes from an earlier leader.
            self._asker.ask(ReadAt(0, 0, (withdrawn_key(1),)), now_ms, self._command, noted=True)
        return self._out()

    def _command(self, answer: RowsAt | Outcome) -> None:
        assert isinstance(answer, RowsAt)
        number = self._host.random.randint(1, len(MANAGERS))
        self._number += 1
        intent = withdrawn(number) if self._host.random.random() < 0.5 else DELETE
        submit = Submit((self._number, answer.at), False, ((STEPS, ((withdrawn_key(number), intent),)),))
        self._asker.ask(submit, self._now_ms, self._done)

    def _done(self, answer: RowsAt | Outcome) -> None:
        self._asker.timers.append((self._now_ms + self._host.random.randint(1, COMMAND_MS_MAX), ("next", 0)))

    def _out(self) -> Outputs:
        out = Outputs(send=tuple(self._asker.send), timers=tuple(self._asker.timers))
        self._asker.send, self._asker.timers = [], []
        return out


def _participant(host: Host) -> FeedingParticipant:
    return FeedingParticipant(host, host.name, ORACLE, refresh_with(tables()), tables(), ITEMS_MAX)


def _coordinator(host: Host) -> Coordinator:
    ranges = range_map()
    return Coordinator(host, ORACLE, tables(), replace(ranges, logs=(STEPS_LTM, *ranges.logs[1:])))


def _manager(host: Host) -> ClusterViewManager:
    return ClusterViewManager(host, MANAGERS.index(host.name) + 1, tables(), COORDINATORS, CANDIDATES)


def _client(host: Host) -> Client:
    return Client(host, WORKING_MS, {**OPERATIONS_WEIGHTS, "look_late": 15})


def build(world: World) -> Built:
    world.add(ORACLE, Oracle)
    for name in LTMS:
        world.add(name, _participant)
    for name in COORDINATORS:
        world.add(name, _coordinator, disk=False)
    for name in CANDIDATES:
        world.add(name, Candidate, disk=False)
    for name in MANAGERS:
        world.add(name, _manager, disk=False)
    for name in CLIENTS:
        world.add(name, _client, disk=False)
    world.add(FOREMAN, Foreman, disk=False)
    # The last one is added while the others work.
    world.at(1, world.crash, MANAGERS[-1], world.streams["scenario"].randint(0, 3_000_000))
    mix = Mix(
        per_second=3.0,
        # Those of participants and coordinators are in the scenario of the commit protocol.
        crash_points=CRASH_POINTS,
        passages_max=8,
        down_ms_max=1_200,
        pause_ms_max=2_000,
        partition_ms_max=2_000,
        disturbed_ms_max=1_500,
        spared=(*CLIENTS, FOREMAN),
    )
    return Built(Surroundings(world, mix=mix), checkers(world))


def checkers(world: World) -> tuple[ViewsReplay, Bank, Lists, ExactlyOnce, Liveness, Lag]:
    replay = ViewsReplay(world)
    return replay, Bank(), Lists(world), ExactlyOnce(world), Liveness(world), Lag(world, replay, ORACLE)


def _no_faults(around: Surroundings) -> tuple[Planned, ...]:
    return ()


def plan_pauses(around: Surroundings) -> tuple[Planned, ...]:
    """View managers stop for a while again and again: what they are about to do, others have done meanwhile."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(200, SAFETY_MS, 150):
        duration_us = random.randint(300_000, 1_500_000)
        planned.append(
            Planned(at_ms * 1_000 + random.randint(0, 100_000), "pause", (random.choice(MANAGERS),), duration_us)
        )
    return tuple(planned)


def plan_crashes(around: Surroundings) -> tuple[Planned, ...]:
    """Somebody dies at every named point, again and again."""
    random = around.world.streams["plan"]
    points = random.sample(CRASH_POINTS, len(CRASH_POINTS))
    planned = []
    for number, at_ms in enumerate(range(200, SAFETY_MS, 250)):
        passage, down_us = random.randint(1, 3), random.randint(10_000, 500_000)
        planned.append(Planned(at_ms * 1_000, "crash_at", (), down_us, points[number % len(points)], passage))
    return tuple(planned)


def plan_disks(around: Surroundings) -> tuple[Planned, ...]:
    """LTMs without rows of steps have slow disks, and one coordinator is slow to reach them: what began
    before W1 is visible, and not durable yet, when the step closes."""
    planned = []
    for name in LTMS:
        if name == STEPS_LTM:
            continue
        planned.append(Planned(0, "disk_slow", (name,), SAFETY_MS * 1_000))
        planned.append(Planned(0, "slow_link", (COORDINATORS[0], name), SAFETY_MS * 1_000))
    return tuple(planned)


SCENARIO = Scenario(
    name="views",
    summary="deferred views over three LTMs, view managers that come and go, schedulers that replace each other",
    build=build,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    mutants=MUTANTS,
    probes=CRASH_POINTS,
    traffic_min={"commits": 100, "watermarks": 10, "slots": 30},
)

SCENARIO_CALM = Scenario(
    name="views-calm",
    summary="the same without faults",
    build=build,
    plan=_no_faults,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 150, "watermarks": 20, "slots": 100},
)

SCENARIO_SLOW = Scenario(
    name=SLOW,
    summary="view managers that stop for a while: others do their work, and then they do it again",
    build=build,
    plan=plan_pauses,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 150, "watermarks": 10, "slots": 30},
)

SCENARIO_DISKS = Scenario(
    name=DISKS,
    summary="LTMs with slow disks, and requests that are slow to reach them",
    build=build,
    plan=plan_disks,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 80, "watermarks": 5, "slots": 20},
)

SCENARIO_CRASHES = Scenario(
    name="views-crashes",
    summary="somebody dies at every named point of the refresh",
    build=build,
    plan=plan_crashes,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    crash_points=CRASH_POINTS,
)

DIRECTED = (SCENARIO_CALM, SCENARIO_SLOW, SCENARIO_DISKS)
SCENARIOS = (SCENARIO, SCENARIO_CRASHES, *DIRECTED)
