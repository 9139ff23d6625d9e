"""Deferred views in a cluster: ranges move and LTMs come and go while steps run, and whoever leads schedules."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from viewtide.changetables.keys import TABLE_PREFIX_BYTES
from viewtide.coordinator.vms.cluster_leader import SchedulingLeader
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant
from viewtide.coordinator.vms.cluster_view_manager import ClusterViewManager
from viewtide.coordinator.vms.step_rows import STEPS
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.messages import Merge, MoveRange, Split
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.machine import Host as MachineHost
from viewtide.ltm.two_phase.participant import RefreshRow
from viewtide.ltm.two_phase.views import refresh_with

from . import cluster, views
from .cluster import CANDIDATES, LTMS
from .cluster_checkers import ClusterReplay
from .faults import Planned, Surroundings
from .process import Host
from .scenario import Built, Scenario
from .views import FOREMAN, ITEMS_MAX, MANAGERS, Foreman
from .views_checkers import Lag, ViewsReplay
from .workload import CLIENTS, COORDINATORS, OPERATIONS_WEIGHTS, Client, tables
from .world import World

SAFETY_MS = cluster.SAFETY_MS
LIVENESS_MS_MAX = 60_000


class ClusterViewsReplay(ViewsReplay, ClusterReplay):
    """Both."""


def _feeding(host: MachineHost, log: str, oracle: str, refresh: RefreshRow) -> FeedingParticipant:
    return FeedingParticipant(host, log, oracle, refresh, tables(), ITEMS_MAX)


def _member(host: Host) -> Member:
    return Member(host, refresh_with(tables()), _feeding)


def _leader(host: Host) -> SchedulingLeader:
    return SchedulingLeader(host, tables(), COORDINATORS)


def _manager(host: Host) -> ClusterViewManager:
    return ClusterViewManager(host, MANAGERS.index(host.name) + 1, tables(), COORDINATORS, CANDIDATES)


def _client(host: Host) -> Client:
    return Client(host, cluster.WORKING_MS, {**OPERATIONS_WEIGHTS, "look_late": 15})


def build(world: World, ranges: RangeMap | None = None) -> Built:
    built = cluster.build(world, ranges=ranges)
    for names, factory in ((LTMS, _member), (CANDIDATES, _leader), (CLIENTS, _client)):
        for name in names:
            world.nodes[name].factory = factory
    for name in MANAGERS:
        world.add(name, _manager, disk=False)
    world.add(FOREMAN, Foreman, disk=False)
    around = built.around
    around.mix = replace(
        around.mix,
        crash_points=(*around.mix.crash_points, *views.CRASH_POINTS),
        spared=(*around.mix.spared, FOREMAN),
    )
    assert around.zookeeper is not None
    replay = ClusterViewsReplay(world, around.zookeeper)
    others = [checker for checker in built.checkers if not isinstance(checker, ClusterReplay)]
    return Built(around, (*others, replay, Lag(world, replay, CANDIDATES[0])))


def plan_absent(around: Surroundings) -> tuple[Planned, ...]:
    """An LTM comes back and gets a log of its own, which keys are moved to at once, when the one who led has lost
    ZooKeeper: steps that it began are finished by another one, with changes from a log that it never knew."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in (700, 5_000):
        at_us = at_ms * 1_000 + random.randint(0, 300_000)
        planned.append(Planned(at_us, "crash", (random.choice(LTMS),), 2_600_000))
        for name in random.sample(CANDIDATES, 2):
            planned.append(Planned(at_us + 2_100_000, "zk_disconnect", (name,), 3_500_000))
    return tuple(sorted(planned))


class Mover(cluster.Operator):
    """Moves keys of base tables to logs that there were not in the beginning, as soon as there are some."""

    def _choose(self, ranges: RangeMap, random: Random) -> list[Split | Merge | MoveRange]:
        new = [log for log in ranges.hosts if not log.endswith("/1")]
        ids = [rows.table.id for name, rows in tables().by_name.items() if name != STEPS]
        base = [
            place
            for place, start in enumerate(ranges.starts)
            if int.from_bytes(start[:TABLE_PREFIX_BYTES], "big") in ids and ranges.logs[place] not in new
        ]
        if not new or not base:
            return []
        return [self._move(ranges, random.choice(base), random.choice(new))]


def _build_absent(world: World) -> Built:
    built = build(world)
    world.nodes[cluster.OPERATOR].factory = Mover
    return built


def _no_faults(around: Surroundings) -> tuple[Planned, ...]:
    return ()


SCENARIO = Scenario(
    name="views-cluster",
    summary="deferred views while ranges move, LTMs come and go, and leaders change",
    build=build,
    make_world=cluster.make_world,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 60, "watermarks": 5, "slots": 15, "take-overs": 1},
)

SCENARIO_CALM = Scenario(
    name="views-cluster-calm",
    summary="the same without faults, but with ranges that move",
    build=build,
    make_world=cluster.make_world,
    plan=_no_faults,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 150, "watermarks": 15, "slots": 60},
)

SCENARIO_ZOMBIES = Scenario(
    name="views-zombies",
    summary="deferred views with leaders and LTMs that do not know yet that they are none any more",
    build=build,
    make_world=cluster.make_world,
    plan=cluster.plan_zombies,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_ABSENT = Scenario(
    name="views-absent",
    summary="deferred views while keys go to a new log and the leader is lost",
    build=_build_absent,
    make_world=cluster.make_world,
    plan=plan_absent,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

DIRECTED = (SCENARIO_CALM, SCENARIO_ZOMBIES, SCENARIO_ABSENT)
SCENARIOS = (SCENARIO, *DIRECTED)
