"""A cluster: LTM processes that come and go, candidates for leader, coordinators that follow the map, and an operator
who splits, merges, moves and swaps ranges all the time. Clients and their checkers are those of the commit protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from viewtide.coordinator.cluster import leader as leaders
from viewtide.coordinator.cluster.balancer import Balancer, BalanceSettings
from viewtide.coordinator.cluster.coordinator import ClusterCoordinator
from viewtide.coordinator.cluster.leader import Leader
from viewtide.coordinator.timestamps import MS_SHIFT
from viewtide.ltm.cluster import member as members
from viewtide.ltm.cluster import zk_messages as zk
from viewtide.ltm.cluster.keeper import Keeper
from viewtide.ltm.cluster.member import LifeOver, Member
from viewtide.ltm.cluster.messages import BOUND, MAP, SESSION_MS, Done, Merge, MoveRange, Split
from viewtide.ltm.cluster.messages import LTMS as LTMS_PATH
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.two_phase.views import refresh_with

from .clock import EPOCH_MS
from .cluster_checkers import checkers
from .cluster_mutants import MUTANTS, ORPHANS, PAUSED, RESTARTS, SLOW_DISKS, STALE, ZOMBIES
from .faults import Mix, Planned, Surroundings
from .logs import Logs
from .process import Host, Outputs
from .scenario import Built, Scenario
from .workload import CLIENTS, COORDINATORS, Client, key, range_map, tables
from .world import World
from .zookeeper import ZooKeeper

LTMS = ("ltm-1", "ltm-2", "ltm-3", "ltm-4")
CANDIDATES = ("leader-1", "leader-2", "leader-3")
OPERATOR = "operator"

SAFETY_MS = 9_000
#: Clients and the operator go on for a while after the healing: what is broken must show.
WORKING_MS = SAFETY_MS + 500
LIVENESS_MS_MAX = 60_000
COMMAND_MS_MAX = 800
BUSY_COMMAND_MS_MAX = 150
#: Between two of them; a leader that dies is replaced after about three seconds.
LEADER_DIES_MS, LTM_DIES_MS, LTM_DIES_OFTEN_MS = 1_200, 500, 200
#: So that keys move all the time, by few requests.
BALANCING = BalanceSettings(measure_ms=300, rate_min=5, ratio_min=1.2, keys_min=3, ranges_max=60)

CRASH_POINTS = (*members.PROBES, *leaders.PROBES, leaders.BALANCING)
#: Where leaders die in a run: a leader that dies at one of them does not get to the others, so each seed has one; those
#: that are passed late in a term come again. In the runs of "" only LTMs die.
LEADER_DIES_AT = (
    *leaders.PROBES,
    "",
    leaders.LEADS,
    leaders.DROPPING,
    leaders.CLOSING,
    leaders.OPENING,
    leaders.PUBLISHED,
    leaders.BALANCING,
    leaders.BALANCING,
    leaders.BALANCING,
)


@cache
def cuts() -> tuple[bytes, ...]:
    """Where ranges may begin."""
    inside = [key("accounts", number) for number in range(0, 24, 5)]
    inside += [key("events", number) for number in range(0, 40, 9)]
    inside += [key("lists", number) for number in range(6)]
    inside += [key("counters", 1), key("products", 3)]
    return tuple(sorted({*range_map().starts, *inside}))


def first_map() -> RangeMap:
    """Every LTM has a log of its first life, and some ranges."""
    starts = range_map().starts
    logs = tuple(f"{LTMS[number % len(LTMS)]}/1" for number in range(len(starts)))
    return RangeMap(1, starts, logs, {}, 0, {log: Hosting(1, (log,)) for log in sorted(set(logs))})


class Operator:
    """Changes the map, at random. It does not wait for what it has begun."""

    def __init__(self, host: Host, command_ms_max: int = COMMAND_MS_MAX) -> None:
        self._host = host
        self._command_ms_max = command_ms_max
        self._keeper = Keeper(SESSION_MS, (MAP,))
        self._end_ms = 0
        self._number = 0

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._end_ms = now_ms + WORKING_MS
        self._keeper.connect()
        return self._out(((now_ms + COMMAND_MS_MAX, "next"),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if isinstance(message, Done):
            self._host.note("commanded", message.error)
        else:
            self._keeper.receive(message)
            if self._keeper.state == zk.LOST:
                self._keeper.connect()
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("an operator writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        if now_ms >= self._end_ms:
            return self._out()
        stored = self._keeper.nodes[MAP]
        if stored is not None:
            for command in self._choose(RangeMap.unpack(stored.data), self._host.random):
                for name in CANDIDATES:
                    self._keeper.send.append((name, command))
        return self._out(((now_ms + self._host.random.randint(1, self._command_ms_max), "next"),))

    def _out(self, timers: tuple[tuple[int, object], ...] = ()) -> Outputs:
        send = tuple(self._keeper.send)
        self._keeper.send.clear()
        return Outputs(send=send, timers=timers)

    def _choose(self, ranges: RangeMap, random: Random) -> list[Split | Merge | MoveRange]:
        self._number += 1
        choice = random.random()
        if choice < 0.15:
            return [Split(self._number, random.choice(cuts()))]
        if choice < 0.3:
            return [Merge(self._number, random.choice(ranges.starts))]
        one = random.randrange(len(ranges.starts))
        if choice < 0.75:
            return [self._move(ranges, one, random.choice(list(ranges.hosts)))]
        other = random.randrange(len(ranges.starts))
        return [self._move(ranges, one, ranges.logs[other]), self._move(ranges, other, ranges.logs[one])]

    def _move(self, ranges: RangeMap, place: int, target: str) -> MoveRange:
        self._number += 1
        stop = ranges.starts[place + 1] if place + 1 < len(ranges.starts) else b""
        return MoveRange(self._number, ranges.starts[place], stop, target)


def _member(host: Host) -> Member:
    return Member(host, refresh_with(tables()))


def _coordinator(host: Host) -> ClusterCoordinator:
    return ClusterCoordinator(host, tables())


def _client(host: Host) -> Client:
    return Client(host, WORKING_MS)


def make_world(seed: int, keep_all: bool) -> World:
    return World(seed, keep_all=keep_all, stops=(LifeOver,))


def build(world: World, bound: int = 0, ranges: RangeMap | None = None) -> Built:
    zookeeper = ZooKeeper(world)
    zookeeper.ensure(LTMS_PATH)
    zookeeper.ensure(MAP, (ranges or first_map()).pack())
    zookeeper.ensure(BOUND, str(bound).encode())
    Logs(world)
    for name in LTMS:
        world.add(name, _member, log_per_life=True)
    for name in CANDIDATES:
        world.add(name, Leader, disk=False)
    for name in COORDINATORS:
        world.add(name, _coordinator, disk=False)
    for name in CLIENTS:
        world.add(name, _client, disk=False)
    world.add(OPERATOR, Operator, disk=False)
    mix = Mix(
        per_second=2.5,
        crash_points=(*members.PROBES, *leaders.PROBES),
        passages_max=25,
        down_ms_max=2_000,
        pause_ms_max=5_000,
        partition_ms_max=3_000,
        disturbed_ms_max=2_000,
        spared=(*CLIENTS, OPERATOR),
    )
    return Built(Surroundings(world, zookeeper, mix=mix), checkers(world, zookeeper, cuts()))


def _build_ahead(world: World) -> Built:
    """Timestamps are ahead of all clocks, as after some changes of leaders: only the lease tells when to stop."""
    return build(world, EPOCH_MS + 60_000 << MS_SHIFT)


def plan_zombies(around: Surroundings) -> tuple[Planned, ...]:
    """The servers end sessions of candidates and of LTMs, and those hear of it late. A coordinator that has lost its
    connection meanwhile goes on with the leader that it knows. Two LTMs hear of new maps late."""
    random = around.world.streams["plan"]
    planned = [
        Planned(0, "slow_link", (name, ltm), SAFETY_MS * 1_000)
        for name in ("zookeeper", *CANDIDATES)
        for ltm in LTMS[:2]
    ]
    for at_ms in range(800, SAFETY_MS - 800, 800):
        at_us = at_ms * 1_000 + random.randint(0, 300_000)
        planned.append(Planned(at_us, "zk_disconnect", (random.choice(COORDINATORS),), 700_000))
        planned.append(Planned(at_us + 10_000, "zk_expire", (random.choice(CANDIDATES),), 0))
        if random.random() < 0.3:
            planned.append(Planned(at_us + random.randint(0, 30_000), "zk_expire", (random.choice(LTMS),), 0))
    return tuple(sorted(planned))


def plan_paused(around: Surroundings) -> tuple[Planned, ...]:
    """Candidates are paused for longer than a session and a lease; when they wake up, they find old requests."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(800, SAFETY_MS - 5_000, 1_000):
        at_us = at_ms * 1_000 + random.randint(0, 900_000)
        planned.append(Planned(at_us, "pause", (random.choice(CANDIDATES),), random.randint(4_000_000, 6_000_000)))
    return tuple(sorted(planned))


def plan_stale(around: Surroundings) -> tuple[Planned, ...]:
    """A coordinator has lost its connection and asks by an old map, an LTM has lost its session and is paused for a
    moment: what it is asked meanwhile, it finds when it wakes up."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(800, SAFETY_MS - 1_000, 1_200):
        at_us = at_ms * 1_000 + random.randint(0, 300_000)
        ltm = random.choice(LTMS)
        planned.append(Planned(at_us, "zk_disconnect", (random.choice(COORDINATORS),), 1_400_000))
        planned.append(Planned(at_us + 50_000, "zk_expire", (ltm,), 0))
        planned.append(Planned(at_us + random.randint(0, 100_000), "pause", (ltm,), random.randint(200_000, 1_000_000)))
    return tuple(sorted(planned))


def plan_restarts(around: Surroundings) -> tuple[Planned, ...]:
    """Requests of one coordinator are slow on their way to LTMs that restart: what starts before somebody reads there
    arrives when another process answers for the log."""
    random = around.world.streams["plan"]
    planned = [Planned(0, "slow_link", (COORDINATORS[0], name), SAFETY_MS * 1_000) for name in LTMS]
    for at_ms in range(800, SAFETY_MS - 500, 450):
        at_us = at_ms * 1_000 + random.randint(0, 200_000)
        planned.append(Planned(at_us, "crash", (random.choice(LTMS),), random.randint(1_000, 30_000)))
    return tuple(sorted(planned))


def plan_slow_disks(around: Surroundings) -> tuple[Planned, ...]:
    """The same, and what two of the LTMs write is durable late."""
    slow = [Planned(0, "disk_slow", (name,), SAFETY_MS * 1_000) for name in LTMS[:2]]
    return tuple(sorted([*slow, *plan_restarts(around)]))


def plan_orphans(around: Surroundings) -> tuple[Planned, ...]:
    """Coordinators restart all the time and their answers get lost: votes are in doubt, and clients submit again, while
    keys move."""
    random = around.world.streams["plan"]
    planned = [
        Planned(0, "lossy_link", (coordinator, client), SAFETY_MS * 1_000)
        for coordinator in COORDINATORS
        for client in CLIENTS
    ]
    for at_ms in range(800, SAFETY_MS - 500, 400):
        at_us = at_ms * 1_000 + random.randint(0, 200_000)
        planned.append(Planned(at_us, "crash", (random.choice(COORDINATORS),), random.randint(1_000, 100_000)))
    return tuple(sorted(planned))


def plan_crashes(around: Surroundings) -> tuple[Planned, ...]:
    """Somebody dies at every named point, again and again: LTMs at all of theirs, leaders at the one of this seed."""
    random = around.world.streams["plan"]
    point = LEADER_DIES_AT[around.world.seed % len(LEADER_DIES_AT)]
    planned = [
        Planned(at_ms * 1_000, "crash_at", (), random.randint(10_000, 300_000), point, 1)
        for at_ms in range(0, SAFETY_MS - 300, LEADER_DIES_MS)
        if point
    ]
    points = random.sample(members.PROBES, len(members.PROBES))
    every_ms = LTM_DIES_MS if point else LTM_DIES_OFTEN_MS
    for number, at_ms in enumerate(range(300, SAFETY_MS - 300, every_ms)):
        at_us = at_ms * 1_000 + random.randint(0, 100_000)
        passage, down_us = random.randint(1, 3), random.randint(10_000, 300_000)
        planned.append(Planned(at_us, "crash_at", (), down_us, points[number % len(points)], passage))
    return tuple(sorted(planned))


def _build_moving(world: World) -> Built:
    """The operator is in a hurry."""
    built = build(world)
    world.nodes[OPERATOR].factory = lambda host: Operator(host, BUSY_COMMAND_MS_MAX)
    return built


def _build_balanced(world: World) -> Built:
    """The leader moves keys by what LTMs have to do; an operator does so less often."""
    built = build(world)
    for name in CANDIDATES:
        world.nodes[name].factory = lambda host: Leader(host, Balancer(BALANCING))
    for name in LTMS:
        world.nodes[name].factory = _busy_member
    world.nodes[OPERATOR].factory = lambda host: Operator(host, 6 * COMMAND_MS_MAX)
    return built


def _busy_member(host: Host) -> Member:
    """All its load is told with every report."""
    member = _member(host)
    member.load_reports = 1
    return member


def _build_crashing(world: World) -> Built:
    """Leader and operator both move keys."""
    built = _build_balanced(world)
    world.nodes[OPERATOR].factory = lambda host: Operator(host, COMMAND_MS_MAX // 2)
    return built


def _no_faults(around: Surroundings) -> tuple[Planned, ...]:
    return ()


SCENARIO_BALANCED = Scenario(
    name="cluster-balanced",
    summary="the leader spreads key ranges by what LTMs have to do, while they come and go",
    build=_build_balanced,
    make_world=make_world,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    probes=(leaders.BALANCING,),
    traffic_min={"commits": 60, "reads": 30},
)

SCENARIO = Scenario(
    name="cluster",
    summary="LTMs that come and go, elected leaders, ranges that move under load",
    build=build,
    make_world=make_world,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    mutants=MUTANTS,
    # Without a balancer.
    probes=(*members.PROBES, *leaders.PROBES),
    traffic_min={"commits": 60, "reads": 30, "opened": 6, "answers": 100, "timestamps": 200, "take-overs": 1},
)

SCENARIO_CALM = Scenario(
    name="cluster-calm",
    summary="the same without faults",
    build=build,
    make_world=make_world,
    plan=_no_faults,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 150, "reads": 60, "opened": 10},
)

SCENARIO_ZOMBIES = Scenario(
    name=ZOMBIES,
    summary="leaders and LTMs that do not know yet that they are none any more",
    build=build,
    make_world=make_world,
    plan=plan_zombies,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_PAUSED = Scenario(
    name=PAUSED,
    summary="leaders that are paused for longer than a lease, with timestamps ahead of their clocks",
    build=_build_ahead,
    make_world=make_world,
    plan=plan_paused,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_STALE = Scenario(
    name=STALE,
    summary="coordinators that ask by an old map",
    build=build,
    make_world=make_world,
    plan=plan_stale,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_RESTARTS = Scenario(
    name=RESTARTS,
    summary="LTMs restart while requests are on their way",
    build=build,
    make_world=make_world,
    plan=plan_restarts,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_SLOW_DISKS = Scenario(
    name=SLOW_DISKS,
    summary="LTMs with slow disks restart while keys move",
    build=_build_moving,
    make_world=make_world,
    plan=plan_slow_disks,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_ORPHANS = Scenario(
    name=ORPHANS,
    summary="coordinators restart and answers get lost while keys move",
    build=_build_moving,
    make_world=make_world,
    plan=plan_orphans,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_CRASHES = Scenario(
    name="cluster-crashes",
    summary="LTMs and leaders die at every named point",
    build=_build_crashing,
    make_world=make_world,
    plan=plan_crashes,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    crash_points=CRASH_POINTS,
    traffic_min={"commits": 40, "reads": 30, "take-overs": 2},
)

DIRECTED = (
    SCENARIO_CALM,
    SCENARIO_ZOMBIES,
    SCENARIO_PAUSED,
    SCENARIO_STALE,
    SCENARIO_RESTARTS,
    SCENARIO_SLOW_DISKS,
    SCENARIO_ORPHANS,
    SCENARIO_BALANCED,
)
SCENARIOS = (SCENARIO, SCENARIO_CRASHES, *DIRECTED)
