"""The commit protocol: three LTMs, two coordinators, an oracle, and clients that know what they wrote and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from unittest.mock import patch

from viewtide.coordinator import timestamps
from viewtide.coordinator.two_phase import coordinator as coordinators
from viewtide.coordinator.two_phase import oracle as oracles
from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.messages import ReadAt
from viewtide.coordinator.two_phase.oracle import Oracle
from viewtide.ltm.two_phase import participant as participants
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.views import refresh_with

from .commit_checkers import checkers
from .commit_mutants import (
    BANKING,
    CLOCKS,
    COPIES,
    DISKS,
    FLOOR,
    HOT,
    LATE,
    MUTANTS,
    NARROW,
    ONE_SLOW,
    RELYING,
    STARVING,
    TOPPING,
)
from .faults import Mix, Planned, Surroundings
from .liveness_checkers import Calm, Fair, Liveness, Orphans
from .network import Conditions
from .process import Host
from .scenario import Built, Scenario
from .workload import (
    CLIENTS,
    COORDINATORS,
    LISTS,
    LTMS,
    OPERATIONS,
    ORACLE,
    Bursts,
    Client,
    Operation,
    key,
    range_map,
    tables,
    whole,
)
from .world import CRASH_POINTS as WORLD_CRASH_POINTS
from .world import World

SAFETY_MS = 6_000
#: Clients go on for a while after the healing: what is broken must show.
WORKING_MS = SAFETY_MS + 500
LIVENESS_MS_MAX = 60_000
HOT_MS, STARVING_MS = 1_500, 3_000
#: The oracle goes ahead by more than a run takes.
NARROW_MS, AHEAD_MS = 2_000, 60_000

HISTORY_MS, CLEAN_MS = 1_500, 300

#: A long run: the clients' work comes in short bursts, faults come all the time and last longer.
LONG_MS = 240_000
LONG_BURSTS = Bursts(400, 12_000)
LONG_FAULTS_PER_SECOND = 0.35
LONG_FAULT_MS_MAX = 12_000
LONG_CLEAN_MS = 3_000

CRASH_POINTS = (*participants.PROBES, *coordinators.PROBES)


def _participant(host: Host) -> Participant:
    participant = Participant(host, host.name, ORACLE, refresh_with(tables()))
    # Short enough that versions and rows that are gone are forgotten while others still come below.
    participant.history_ms, participant.clean_ms = HISTORY_MS, CLEAN_MS
    return participant


def _coordinator(host: Host) -> Coordinator:
    return Coordinator(host, ORACLE, tables(), range_map())


def _client(host: Host) -> Client:
    return Client(host, WORKING_MS)


def build(world: World) -> Built:
    world.add(ORACLE, Oracle)
    for name in LTMS:
        world.add(name, _participant)
    for name in COORDINATORS:
        world.add(name, _coordinator, disk=False)
    for name in CLIENTS:
        world.add(name, _client, disk=False)
    mix = Mix(
        per_second=4.5,
        crash_points=CRASH_POINTS,
        passages_max=10,
        down_ms_max=1_200,
        pause_ms_max=2_000,
        partition_ms_max=2_000,
        disturbed_ms_max=1_500,
        spared=CLIENTS,
    )
    return Built(Surroundings(world, mix=mix), checkers(world))


def _build_long(world: World) -> Built:
    """Many faults in a long time, of which most last over a burst of work."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _patient_client
    for name in LTMS:
        world.nodes[name].factory = _long_participant
    around = built.around
    around.mix = replace(
        around.mix,
        per_second=LONG_FAULTS_PER_SECOND,
        down_ms_max=LONG_FAULT_MS_MAX,
        pause_ms_max=LONG_FAULT_MS_MAX,
        partition_ms_max=LONG_FAULT_MS_MAX,
        disturbed_ms_max=LONG_FAULT_MS_MAX,
    )
    return built


def _patient_client(host: Host) -> Client:
    return Client(host, LONG_MS + LONG_BURSTS.period_ms, bursts=LONG_BURSTS)


def _long_participant(host: Host) -> Participant:
    participant = _participant(host)
    participant.clean_ms = LONG_CLEAN_MS
    return participant


def _build_calm(world: World) -> Built:
    built = build(world)
    return Built(built.around, (*built.checkers, Calm(world)))


def _no_faults(around: Surroundings) -> tuple[Planned, ...]:
    return ()


def _build_hot(world: World) -> Built:
    """Everybody writes the same rows all the time."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _busy_client
    return Built(built.around, (*built.checkers, Calm(world)))


def _busy_client(host: Host) -> Client:
    return Client(host, HOT_MS, {"crowd": 1}, think_ms_max=2)


def _build_disks(world: World) -> Built:
    """Much that one LTM commits alone, and that others read at once."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _hasty_client
    return built


def _hasty_client(host: Host) -> Client:
    return Client(host, WORKING_MS, {"count": 4, "append": 2, "transfer": 1, "look": 2}, think_ms_max=6)


def _build_banking(world: World) -> Built:
    """Everybody changes what a view on a view is made of."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _banking_client
    return built


def _banking_client(host: Host) -> Client:
    return Client(host, 2_500, {"transfer": 6, "look": 1}, think_ms_max=3)


def _build_topping(world: World) -> Built:
    """Everybody looks at the same rows of a view and changes what they show, or changes it without looking."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _topping_client
    return built


def _topping_client(host: Host) -> Client:
    return Client(host, 2_500, {"top_up": 3, "buy": 3, "look": 1}, think_ms_max=4)


def _build_relying(world: World) -> Built:
    """New rows are joined with rows that change all the time: what coordinators remember of them is often outdated."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _relying_client
    return built


def _relying_client(host: Host) -> Client:
    return Client(host, 2_500, {"insert_or_delete": 6, "write_products": 3, "look": 1}, think_ms_max=4)


def _build_starving(world: World) -> Built:
    """One wants much, the others little, and requests are slow on their way: there is always an older one."""
    built = build(world)
    world.nodes[CLIENTS[0]].factory = _greedy_client
    for name in CLIENTS[1:]:
        world.nodes[name].factory = _modest_client
    return Built(built.around, (*built.checkers, Fair(world)))


def _greedy_client(host: Host) -> Client:
    return Client(host, STARVING_MS, {"hoard": 1}, think_ms_max=30, answer_ms_max=STARVING_MS)


def _modest_client(host: Host) -> Client:
    return Client(host, STARVING_MS, {"write_products": 1}, think_ms_max=1, answer_ms_max=STARVING_MS)


def plan_starving(around: Surroundings) -> tuple[Planned, ...]:
    links = [(coordinator, name) for coordinator in COORDINATORS for name in LTMS]
    return tuple(Planned(0, "slow_link", link, STARVING_MS * 1_000) for link in links)


def _build_copies(world: World) -> Built:
    """Requests of clients come twice, the second time much later."""
    built = build(world)
    world.network.conditions = Conditions(duplicate_ratio=0.3, duplicate_us_max=1_500_000)
    for name in CLIENTS:
        world.nodes[name].factory = _undecided_client
    return built


def _undecided_client(host: Host) -> Client:
    return Client(host, WORKING_MS, {"insert_or_delete": 3, "write_events": 1, "look": 1}, think_ms_max=25)


def plan_copies(around: Surroundings) -> tuple[Planned, ...]:
    """Coordinators forget what they answered."""
    return _crashes(around, COORDINATORS, 400)


def plan_disks(around: Surroundings) -> tuple[Planned, ...]:
    """What is written is not durable for long, and is lost."""
    slow = [Planned(0, "disk_slow", (name,), SAFETY_MS * 1_000) for name in LTMS]
    return (*slow, *_crashes(around, LTMS, 150))


def _build_one_slow(world: World) -> Built:
    """One of two lists is far from one coordinator: its owner votes long after the other one's, which cannot ask it
    any sooner."""
    built = build(world)
    far, restarting = range_map().owner(key("lists", 0)), range_map().owner(key("lists", LISTS - 1))
    for name in (COORDINATORS[0], restarting):
        world.network.special[name, far] = Conditions(delay_us_min=100_000, delay_us_max=300_000)
    for name in CLIENTS:
        world.nodes[name].factory = _watching_client if name == CLIENTS[0] else _list_client
    return built


def _watching_client(host: Host) -> Client:
    return Client(host, WORKING_MS, {"watch": 1}, think_ms_max=1, answer_ms_max=2_000)


def _list_client(host: Host) -> Client:
    return Client(host, WORKING_MS, {"append_to_last": 1, "look": 1}, think_ms_max=80, coordinators=COORDINATORS[1:])


def plan_one_slow(around: Surroundings) -> tuple[Planned, ...]:
    """The other one restarts meanwhile."""
    return _crashes(around, (range_map().owner(key("lists", LISTS - 1)),), 250)


def _crashes(around: Surroundings, names: tuple[str, ...], every_ms: int) -> tuple[Planned, ...]:
    random = around.world.streams["plan"]
    return tuple(
        Planned(at_ms * 1_000 + random.randint(0, 100_000), "crash", (random.choice(names),), random.randint(0, 5_000))
        for at_ms in range(300, SAFETY_MS, every_ms)
    )


def _build_late(world: World) -> Built:
    """One LTM is far from all coordinators, so that it votes last; copies of earlier votes are still about."""
    built = build(world)
    world.network.conditions = Conditions(duplicate_ratio=0.3, duplicate_us_max=200_000)
    for name in COORDINATORS:
        world.network.special[name, LTMS[-1]] = Conditions(delay_us_min=20_000, delay_us_max=120_000)
    return built


def plan_late(around: Surroundings) -> tuple[Planned, ...]:
    """Those who voted restart, ask those who did not yet, and these restart, too."""
    return _crashes(around, LTMS, 60)


def _build_orphans(world: World) -> Built:
    """Nothing fails but coordinators, at every point of their work, and for longer than anybody waits."""
    built = build(world)
    others = [checker for checker in built.checkers if not isinstance(checker, Liveness)]
    return Built(built.around, (*others, Orphans(world)))


def plan_orphans(around: Surroundings) -> tuple[Planned, ...]:
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(200, SAFETY_MS - 500, 400):
        point, passage = random.choice(coordinators.PROBES), random.randint(1, 4)
        planned.append(Planned(at_ms * 1_000, "crash_at", (), random.randint(0, 1_500_000), point, passage))
        at_us = at_ms * 1_000 + random.randint(0, 400_000)
        planned.append(Planned(at_us, "crash", (random.choice(COORDINATORS),), random.randint(0, 1_500_000)))
    return tuple(sorted(planned))


def plan_clocks(around: Surroundings) -> tuple[Planned, ...]:
    """The oracle restarts while its clock stands still, because it was set back."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(200, SAFETY_MS, 400):
        at_us = at_ms * 1_000 + random.randint(0, 50_000)
        planned += [
            Planned(at_us, "clock", (ORACLE,), 0, "", 250),
            Planned(at_us + 100_000, "clock", (ORACLE,), 0, "", -250),
            Planned(at_us + 110_000 + random.randint(0, 150_000), "crash", (ORACLE,), random.randint(0, 20_000)),
        ]
    return tuple(planned)


def plan_narrow(around: Surroundings) -> tuple[Planned, ...]:
    """The oracle has gone ahead of its clock: from then on timestamps follow each other without a gap."""
    return Planned(0, "clock", (ORACLE,), 0, "", AHEAD_MS), Planned(200_000, "clock", (ORACLE,), 0, "", 0)


@contextmanager
def _narrow() -> Iterator[None]:
    """A timestamp cannot be raised at all, instead of 255 times."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(participants, "RAISE_MAX", 0))
        for module in (timestamps, oracles, coordinators):
            stack.enter_context(patch.object(module, "STEP", 1))
        yield


def _glance(client: Client, random: Random) -> Operation:
    """Marks all that others are about to write."""
    yield ReadAt(0, 0, (), (whole("products"),))


OPERATIONS["glance"] = _glance


def _build_narrow(world: World) -> Built:
    """All at once, and then nobody: whatever is committed above the last start is above those that come next."""
    built = build(world)
    for name in CLIENTS:
        world.nodes[name].factory = _narrow_client
    return built


def _narrow_client(host: Host) -> Client:
    return Client(host, NARROW_MS, {"crowd": 3, "glance": 1}, think_ms_max=4, bursts=Bursts(4, 40))


def plan_restarts(around: Surroundings) -> tuple[Planned, ...]:
    """Requests are slow on their way to LTMs that restart quickly: what starts before a restart arrives after it."""
    planned = [Planned(0, "slow_link", (COORDINATORS[0], name), SAFETY_MS * 1_000) for name in LTMS]
    return (*planned, *_crashes(around, LTMS, 150))


SCENARIO = Scenario(
    name="commit",
    summary="transactions over three LTMs that own parts of tables, indexes and views",
    build=build,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    mutants=MUTANTS,
    probes=CRASH_POINTS,
    crash_points=(*CRASH_POINTS, *WORLD_CRASH_POINTS),
    traffic_min={
        "commits": 60,
        "commits of several": 45,
        "reads": 50,
        "bank looks": 12,
        "list items": 8,
        "raised": 1,
    },
)

SCENARIO_LONG = Scenario(
    name="commit-long",
    summary="four minutes with a fault every three seconds, and work in bursts",
    build=_build_long,
    safety_ms=LONG_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 60, "reads": 40},
)

SCENARIO_ORPHANS = Scenario(
    name="commit-orphans",
    summary="coordinators die at every point, nothing else fails: nobody is in doubt for long",
    build=_build_orphans,
    plan=plan_orphans,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    crash_points=coordinators.PROBES,
    traffic_min={"orphans": 1},
)

SCENARIO_CALM = Scenario(
    name="commit-calm",
    summary="the same without faults: nearly nothing conflicts",
    build=_build_calm,
    plan=_no_faults,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"calm commits": 200},
)

SCENARIO_HOT = Scenario(
    name=HOT,
    summary="everybody wants the same rows: nobody starves",
    build=_build_hot,
    plan=_no_faults,
    safety_ms=HOT_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_STARVING = Scenario(
    name=STARVING,
    summary="one wants much, and others are always older: it must get it",
    build=_build_starving,
    plan=plan_starving,
    safety_ms=STARVING_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_RESTARTS = Scenario(
    name=FLOOR,
    summary="LTMs restart while requests are on their way",
    build=build,
    plan=plan_restarts,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_CLOCKS = Scenario(
    name=CLOCKS,
    summary="the oracle restarts while its clock stands still",
    build=build,
    plan=plan_clocks,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_NARROW = Scenario(
    name=NARROW,
    summary="timestamps without a gap, and all that is committed comes in bursts",
    build=_build_narrow,
    limits=_narrow,
    plan=plan_narrow,
    safety_ms=NARROW_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_COPIES = Scenario(
    name=COPIES,
    summary="requests come twice, and coordinators restart in between",
    build=_build_copies,
    plan=plan_copies,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_DISKS = Scenario(
    name=DISKS,
    summary="disks are slow, and LTMs lose what is not durable",
    build=_build_disks,
    plan=plan_disks,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_ONE_SLOW = Scenario(
    name=ONE_SLOW,
    summary="one participant votes late, another restarts meanwhile",
    build=_build_one_slow,
    plan=plan_one_slow,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_LATE = Scenario(
    name=LATE,
    summary="one participant is asked for its vote late, and all restart again and again",
    build=_build_late,
    plan=plan_late,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_TOPPING = Scenario(
    name=TOPPING,
    summary="everybody looks at the same view rows and changes what they show",
    build=_build_topping,
    plan=_no_faults,
    safety_ms=2_000,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_RELYING = Scenario(
    name=RELYING,
    summary="new rows are joined with rows that change all the time",
    build=_build_relying,
    plan=_no_faults,
    safety_ms=2_000,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_BANKING = Scenario(
    name=BANKING,
    summary="everybody changes what a view on a view is made of",
    build=_build_banking,
    plan=_no_faults,
    safety_ms=2_000,
    liveness_ms_max=LIVENESS_MS_MAX,
)

#: Those for what a drawn plan rarely does.
DIRECTED = (
    SCENARIO_BANKING,
    SCENARIO_CALM,
    SCENARIO_HOT,
    SCENARIO_STARVING,
    SCENARIO_RESTARTS,
    SCENARIO_CLOCKS,
    SCENARIO_NARROW,
    SCENARIO_COPIES,
    SCENARIO_DISKS,
    SCENARIO_ONE_SLOW,
    SCENARIO_LATE,
    SCENARIO_LONG,
    SCENARIO_ORPHANS,
    SCENARIO_RELYING,
    SCENARIO_TOPPING,
)
SCENARIOS = (SCENARIO, *DIRECTED)
