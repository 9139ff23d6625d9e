"""A scenario: what is in the world, what it does, what must hold; and one run of it with one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from .checkers import STORY_LINES_MAX, Checker, Violation
from .faults import Faults, Planned, Surroundings, draw_conditions, draw_plan, set_clocks
from .world import World

#: How often the checkers are asked, after the healing, whether all is well again.
CONVERGENCE_CHECK_US = 100_000


@dataclass(slots=True)
class Built:
    """What `Scenario.build` returns."""

    around: Surroundings
    checkers: tuple[Checker, ...]


class Mutant(NamedTuple):
    """A known-bad patch. `patch` returns a context in which machines that are built are the bad ones; the run must then
    find a violation within `seeds_max` seeds. A rare one names the directed scenario that finds it."""

    name: str
    patch: Callable[[], AbstractContextManager[object]]
    seeds_max: int = 200
    scenario: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    summary: str
    #: Adds processes and services to the world. Everything it draws comes from the world's streams.
    build: Callable[[World], Built]
    make_world: Callable[[int, bool], World] = lambda seed, keep_all: World(seed, keep_all=keep_all)
    #: A context in which limits of the machines are so small that a run reaches them.
    limits: Callable[[], AbstractContextManager[object]] = nullcontext
    #: Instead of a drawn plan, in directed scenarios.
    plan: Callable[[Surroundings], tuple[Planned, ...]] | None = None
    safety_ms: int = 20_000
    liveness_ms_max: int = 60_000
    mutants: tuple[Mutant, ...] = ()
    #: Probes that must fire, and crash points that must be hit, in a run of many seeds.
    probes: tuple[str, ...] = ()
    crash_points: tuple[str, ...] = ()
    #: On average per seed, at least: names of `Checker.traffic`.
    traffic_min: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """Figures of one run, or of many."""

    seeds: int = 0
    simulated_us: int = 0
    events: int = 0
    sent: int = 0
    delivered: int = 0
    messages_bytes: int = 0
    crashes: int = 0
    stopped: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    crash_points: Counter[str] = field(default_factory=Counter)
    traffic: Counter[str] = field(default_factory=Counter)

    def add(self, other: Result) -> None:
        for name in ("seeds", "simulated_us", "events", "sent", "delivered", "messages_bytes", "crashes", "stopped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("faults", "probes", "crash_points", "traffic"):
            getattr(self, name).update(getattr(other, name))


@dataclass(slots=True)
class Run:
    seed: int
    digest: str
    result: Result
    violation: Violation | None
    world: World
    plan: tuple[Planned, ...]


def run_seed(
    scenario: Scenario,
    seed: int,
    *,
    keep_all: bool = False,
    mutant: Mutant | None = None,
    without: frozenset[int] = frozenset(),
) -> Run:
    """`without` leaves out faults of the plan, by their number from 0: to find out which ones matter."""
    with scenario.limits(), mutant.patch() if mutant is not None else nullcontext():
        world = scenario.make_world(seed, keep_all)
        built = scenario.build(world)
        around = built.around
        set_clocks(around)
        world.watch(built.checkers)
        if scenario.plan is None:
            world.network.conditions = draw_conditions(world.streams["conditions"])
            world.record("", "network", repr(world.network.conditions))
            plan = draw_plan(around, scenario.safety_ms * 1_000)
        else:
            plan = scenario.plan(around)
        violation = None
        plan = tuple(fault for number, fault in enumerate(plan) if number not in without)
        try:
            _run(scenario, world, built, Faults(around, plan))
        except Violation as found:
            violation = found
            violation.story = world.trace.story(violation.concerns, STORY_LINES_MAX)
    return Run(seed, world.trace.digest(), _figures(world, built), violation, world, plan)


def _run(scenario: Scenario, world: World, built: Built, faults: Faults) -> None:
    world.boot()
    world.run_until(scenario.safety_ms * 1_000)
    faults.heal()
    deadline_us = world.now_us + scenario.liveness_ms_max * 1_000
    while True:
        world.run_until(world.now_us + CONVERGENCE_CHECK_US)
        missing = [(checker, why) for checker in built.checkers if (why := checker.converged())]
        if not missing:
            break
        if world.now_us >= deadline_us:
            checker, why = missing[0]
            raise checker.violation(f"{scenario.liveness_ms_max} ms after the last fault: {why}")
    for checker in built.checkers:
        checker.finish()


def _figures(world: World, built: Built) -> Result:
    traffic: Counter[str] = Counter()
    for checker in built.checkers:
        traffic.update(checker.traffic)
    return Result(
        seeds=1,
        simulated_us=world.now_us,
        events=world.events,
        sent=world.network.sent,
        delivered=world.delivered,
        messages_bytes=world.messages_bytes,
        crashes=world.crashes,
        stopped=world.stopped,
        faults=Counter(world.faults),
        probes=Counter(world.probes),
        crash_points=Counter(world.crash_points),
        traffic=traffic,
    )
