"""The cluster with its rows in a store that all LTMs share: checkpoints, trimmed logs, rows that are loaded when they
are needed and forgotten when there are too many, and keys that move by the store. The store fails in all its ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from viewtide.changetables.types import Row
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant
from viewtide.ltm import codec
from viewtide.ltm.cluster import member as members
from viewtide.ltm.cluster.checkpoint import ENTRIES_PREFIX
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.settings import StoreSettings
from viewtide.ltm.machine import Host as MachineHost
from viewtide.ltm.two_phase.participant import Participant, RefreshRow
from viewtide.ltm.two_phase.stored_cells import StoredCells
from viewtide.ltm.two_phase.views import refresh_with

from . import cluster, views_cluster
from .checkers import Checker
from .cluster import LTMS
from .cluster_checkers import ClusterExactlyOnce, ClusterReplay, hosted, newest_map
from .faults import Planned, Surroundings
from .process import Host
from .scenario import Built, Scenario
from .store import APPLIED_LATE, PARTIAL, WRITE_FAULTS, SimStore
from .store_service import StoreService
from .stored_mutants import CRASHES, LATE, MUTANTS, ROOMY, SLOW_DISKS, VIEWS, VIEWS_CRASHES
from .trace import Event
from .views import ITEMS_MAX
from .views_checkers import Lag, ViewsReplay
from .workload import CLIENTS, Client, tables
from .world import World
from .zookeeper import ZooKeeper

#: So small that pages, loads and evictions happen all the time.
SETTINGS = StoreSettings(checkpoint_ms=250, lag_ms=30, keys_max=25, page_cells=7, evict_ms=150)
#: Keys are forgotten seldom: LTMs save more and load less.
SETTINGS_ROOMY = SETTINGS._replace(keys_max=80)
PAGE_ITEMS = 5
HISTORY_MS, CLEAN_MS = 1_500, 300

CRASH_POINTS = members.STORE_PROBES


def _participant(host: MachineHost, log: str, oracle: str, refresh: RefreshRow) -> Participant:
    made = Participant(host, log, oracle, refresh)
    made.history_ms, made.clean_ms = HISTORY_MS, CLEAN_MS
    return made


def _feeding(host: MachineHost, log: str, oracle: str, refresh: RefreshRow) -> FeedingParticipant:
    # With all of its history: the views are looked at as of every watermark at the end.
    return FeedingParticipant(host, log, oracle, refresh, tables(), ITEMS_MAX)


def _member(host: Host) -> Member:
    return Member(host, refresh_with(tables()), _participant, SETTINGS, PAGE_ITEMS)


def _feeding_member(host: Host) -> Member:
    return Member(host, refresh_with(tables()), _feeding, SETTINGS, PAGE_ITEMS)


class _InStore:
    """What is in memory and in the store together."""

    _world: World
    _zookeeper: ZooKeeper
    store: SimStore

    def cells_at(self, ts: int) -> dict[bytes, Row]:
        ranges = newest_map(self._zookeeper)
        machines = {each.log: each.machine for _, each in hosted(self._world) if each.machine is not None}
        found: dict[bytes, Row] = {}
        for cell in self.store.inner.scan(b"", ENTRIES_PREFIX, ts, 1 << 60):
            machine = machines.get(ranges.owner(cell.key))
            known = machine is not None and cell.key in machine.cells.chains and _sees(machine.cells, cell.key, ts)
            if not known and cell.value is not None:
                found[cell.key] = codec.unpack_row(cell.value)
        for log, machine in machines.items():
            for key in machine.cells.chains:
                if ranges.owner(key) == log and _sees(machine.cells, key, ts):
                    row = machine.cells.at(key, ts)[1]
                    if row is not None:
                        found[key] = row
        return found


def _sees(cells: object, key: bytes, ts: int) -> bool:
    return cast(StoredCells, cells).sees(key, ts)


class StoredReplay(_InStore, ClusterReplay):
    def __init__(self, world: World, zookeeper: ZooKeeper, store: SimStore) -> None:
        super().__init__(world, zookeeper)
        self.store = store


class StoredViewsReplay(_InStore, ViewsReplay, ClusterReplay):
    def __init__(self, world: World, zookeeper: ZooKeeper, store: SimStore) -> None:
        super().__init__(world, zookeeper)
        self.store = store


class StoredExactlyOnce(_InStore, ClusterExactlyOnce):
    def __init__(self, world: World, zookeeper: ZooKeeper, store: SimStore) -> None:
        super().__init__(world, zookeeper)
        self.store = store

    def newest(self, cell: bytes) -> Row | None:
        return self.cells_at(1 << 62).get(cell)


class Trimmed(Checker):
    """Counts what the store is for; when all is healed, logs are trimmed and those of former lives are forgotten."""

    kinds = ("trim",)

    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        super().__init__()
        self._world, self._zookeeper = world, zookeeper

    def observe(self, event: Event) -> None:
        self.traffic["trims"] += 1

    def converged(self) -> str:
        for log, host in newest_map(self._zookeeper).hosts.items():
            if len(host.segments) > 1:
                return f"{log} needs {host.segments}"
        return ""

    def finish(self) -> None:
        probes = self._world.probes
        self.traffic["checkpoints"] += probes[members.saving.SAVED]
        self.traffic["loads"] += probes[members.loading.LOADED]
        self.traffic["evictions"] += probes[members.loading.EVICTED]


def _with_store(world: World, built: Built, checkers: Iterator[Checker], store: SimStore) -> Built:
    around = built.around
    around.stores = (store,)
    around.mix = replace(around.mix, crash_points=(*around.mix.crash_points, *CRASH_POINTS))
    return Built(around, tuple(checkers))


def _make_store(world: World) -> SimStore:
    store = SimStore(world)
    StoreService(world, store)
    return store


def build(world: World) -> Built:
    built = cluster.build(world)
    for name in LTMS:
        world.nodes[name].factory = _member
    store, zookeeper = _make_store(world), built.around.zookeeper
    assert zookeeper is not None

    def checkers() -> Iterator[Checker]:
        for checker in built.checkers:
            if isinstance(checker, ClusterReplay):
                yield StoredReplay(world, zookeeper, store)
            elif isinstance(checker, ClusterExactlyOnce):
                yield StoredExactlyOnce(world, zookeeper, store)
            else:
                yield checker
        yield Trimmed(world, zookeeper)

    return _with_store(world, built, checkers(), store)


def _roomy_member(host: Host) -> Member:
    return Member(host, refresh_with(tables()), _participant, SETTINGS_ROOMY, PAGE_ITEMS)


def _build_roomy(world: World) -> Built:
    """LTMs that need not forget."""
    built = build(world)
    for name in LTMS:
        world.nodes[name].factory = _roomy_member
    return built


def _build_moving(world: World) -> Built:
    """The operator is in a hurry."""
    built = build(world)
    world.nodes[cluster.OPERATOR].factory = lambda host: cluster.Operator(host, cluster.BUSY_COMMAND_MS_MAX)
    return built


def build_views(world: World) -> Built:
    built = views_cluster.build(world)
    for name in LTMS:
        world.nodes[name].factory = _feeding_member
    store, zookeeper = _make_store(world), built.around.zookeeper
    assert zookeeper is not None
    replay = StoredViewsReplay(world, zookeeper, store)

    def checkers() -> Iterator[Checker]:
        for checker in built.checkers:
            if isinstance(checker, ClusterReplay):
                yield replay
            elif isinstance(checker, ClusterExactlyOnce):
                yield StoredExactlyOnce(world, zookeeper, store)
            elif isinstance(checker, Lag):
                yield Lag(world, replay, cluster.CANDIDATES[0])
            else:
                yield checker
        yield Trimmed(world, zookeeper)

    return _with_store(world, built, checkers(), store)


def plan_crashes(around: Surroundings) -> tuple[Planned, ...]:
    """LTMs die at every named point of saving and loading, again and again, while writes to the store go wrong."""
    random = around.world.streams["plan"]
    points = random.sample(CRASH_POINTS, len(CRASH_POINTS))
    planned = []
    for number, at_ms in enumerate(range(600, cluster.SAFETY_MS - 300, 300)):
        at_us = at_ms * 1_000 + random.randint(0, 100_000)
        passage, down_us = random.randint(1, 4), random.randint(10_000, 300_000)
        planned.append(Planned(at_us, "crash_at", (), down_us, points[number % len(points)], passage))
        if random.random() < 0.6:
            planned.append(Planned(at_us + 1, "store_write", (), 0, random.choice(WRITE_FAULTS)))
    return tuple(sorted(planned))


def plan_late(around: Surroundings) -> tuple[Planned, ...]:
    """Writes to the store are carried out late, when others own the rows: LTMs lose their sessions all the time."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(600, cluster.SAFETY_MS - 300, 250):
        at_us = at_ms * 1_000 + random.randint(0, 100_000)
        planned.append(Planned(at_us, "store_write", (), 0, random.choice((APPLIED_LATE, APPLIED_LATE, PARTIAL))))
        if random.random() < 0.4:
            planned.append(Planned(at_us + random.randint(0, 200_000), "crash", (random.choice(LTMS),), 50_000))
    return tuple(sorted(planned))


def plan_slow_disks(around: Surroundings) -> tuple[Planned, ...]:
    """What LTMs write to their logs is durable late, and lost when they die just after a page went to the store."""
    random = around.world.streams["plan"]
    planned = [Planned(0, "disk_slow", (name,), cluster.SAFETY_MS * 1_000) for name in LTMS]
    for at_ms in range(600, cluster.SAFETY_MS - 300, 200):
        at_us = at_ms * 1_000 + random.randint(0, 100_000)
        point = random.choice((members.saving.PAGE_WRITTEN, members.saving.CELLS_WRITTEN))
        planned.append(Planned(at_us, "crash_at", (), 20_000, point, random.randint(1, 3)))
    return tuple(sorted(planned))


def _hasty_client(host: Host) -> Client:
    return Client(host, cluster.WORKING_MS, {"count": 4, "append": 2, "transfer": 1, "look": 2}, think_ms_max=6)


def _build_hasty(world: World) -> Built:
    """Much that one LTM commits alone: it is visible before it is durable."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _hasty_client
    return built


def _no_faults(around: Surroundings) -> tuple[()]:
    return ()


SCENARIO = Scenario(
    name="stored",
    summary="a cluster whose rows are in a shared store that fails in all its ways",
    build=build,
    make_world=cluster.make_world,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=cluster.LIVENESS_MS_MAX,
    mutants=MUTANTS,
    probes=CRASH_POINTS,
    traffic_min={"commits": 40, "checkpoints": 50, "loads": 100, "trims": 10, "evictions": 20},
)

SCENARIO_CALM = Scenario(
    name="stored-calm",
    summary="the same without faults, but with ranges that move",
    build=build,
    make_world=cluster.make_world,
    plan=_no_faults,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=cluster.LIVENESS_MS_MAX,
    traffic_min={"commits": 100, "checkpoints": 80},
)

SCENARIO_VIEWS = Scenario(
    name=VIEWS,
    summary="deferred views in a cluster whose rows are in a shared store",
    build=build_views,
    make_world=cluster.make_world,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=views_cluster.LIVENESS_MS_MAX,
    traffic_min={"commits": 60, "watermarks": 4, "slots": 12, "checkpoints": 50},
)

SCENARIO_CRASHES = Scenario(
    name=CRASHES,
    summary="LTMs die at every named point of saving and loading, and writes to the store go wrong",
    build=build,
    make_world=cluster.make_world,
    plan=plan_crashes,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=cluster.LIVENESS_MS_MAX,
    crash_points=CRASH_POINTS,
)

SCENARIO_ROOMY = Scenario(
    name=ROOMY,
    summary="the same crashes of LTMs that need not forget keys",
    build=_build_roomy,
    make_world=cluster.make_world,
    plan=plan_crashes,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=cluster.LIVENESS_MS_MAX,
)

SCENARIO_LATE = Scenario(
    name=LATE,
    summary="writes to the store are carried out when others own the rows",
    build=_build_moving,
    make_world=cluster.make_world,
    plan=plan_late,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=cluster.LIVENESS_MS_MAX,
)

SCENARIO_SLOW_DISKS = Scenario(
    name=SLOW_DISKS,
    summary="LTMs with slow disks die while checkpoints are written",
    build=_build_hasty,
    make_world=cluster.make_world,
    plan=plan_slow_disks,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=cluster.LIVENESS_MS_MAX,
)

SCENARIO_VIEWS_CRASHES = Scenario(
    name=VIEWS_CRASHES,
    summary="the same crashes with deferred views",
    build=build_views,
    make_world=cluster.make_world,
    plan=plan_crashes,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=views_cluster.LIVENESS_MS_MAX,
)

DIRECTED = (
    SCENARIO_CALM,
    SCENARIO_CRASHES,
    SCENARIO_ROOMY,
    SCENARIO_LATE,
    SCENARIO_SLOW_DISKS,
    SCENARIO_VIEWS_CRASHES,
)
SCENARIOS = (SCENARIO, SCENARIO_VIEWS, *DIRECTED)
