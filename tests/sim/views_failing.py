"""Deferred views that cannot be computed for a while: their steps are dropped, whoever dies meanwhile; others go on.

A view manager of this scenario takes some changes for such that no view can be made from, always the same ones: a
counter with certain values, for the one group; at the last level of some steps, for the other. When the faults end, so
does this.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import cast

from viewtide.changetables.errors import DataError
from viewtide.coordinator.timestamps import to_ms
from viewtide.coordinator.two_phase.messages import ReadAt
from viewtide.coordinator.vms import cluster_scheduler as schedulers
from viewtide.coordinator.vms import cluster_view_manager as managers
from viewtide.coordinator.vms.cluster_messages import Item
from viewtide.coordinator.vms.cluster_scheduler import ClusterScheduler
from viewtide.coordinator.vms.cluster_view_manager import Answered, ClusterViewManager
from viewtide.coordinator.vms.groups import Group
from viewtide.coordinator.vms.step_rows import Step
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import Refresh

from . import views
from .checkers import Checker
from .clock import EPOCH_MS
from .faults import Planned, Surroundings
from .process import Host
from .scenario import Built, Mutant, Scenario
from .trace import Event
from .views import CANDIDATES, LIVENESS_MS_MAX, MANAGERS, SAFETY_MS
from .views_checkers import LAG_MS_MAX, groups
from .views_mutants import _always, _no_keys, _patched
from .workload import COORDINATORS, tables
from .world import World

CRASH_POINTS = (*schedulers.DROP_PROBES, *managers.DROP_PROBES)
#: Of the counters, one value out of so many, and of the steps of the other group.
BAD_VALUE, VALUES = 1, 2
BAD_STEP, STEPS = 0, 2

Bad = Callable[[Group, Step, int, int, Sequence[Item]], bool]


def _ends_later(step: Step) -> bool:
    return to_ms(step.w1) >= EPOCH_MS + SAFETY_MS


def is_bad(group: Group, step: Step, level: int, slot: int, items: Sequence[Item]) -> bool:
    if _ends_later(step):
        return False
    if "late_counted" in group.names:
        counters = tables().by_name["counters"].table.id
        values = [cast(int, new[1]) for source, _, _, new in items if source == counters and new is not None]
        return any(value % VALUES == BAD_VALUE for value in values)
    ms = to_ms(step.w1)
    return ms % STEPS == BAD_STEP and level == len(group.phases()) - 1 and slot == ms // STEPS % step.slots


def is_bad_always(group: Group, step: Step, level: int, slot: int, items: Sequence[Item]) -> bool:
    """All changes of one group."""
    return "late_counted" in group.names and bool(items) and not _ends_later(step)


class FailingManager(ClusterViewManager):
    bad: Bad = staticmethod(is_bad)

    def _propagate(
        self, tables: Tables, group: Group, step: Step, level: int, slot: int, items: Sequence[Item]
    ) -> Generator[ReadAt, Answered, tuple[Refresh, ...]]:
        found = yield from super()._propagate(tables, group, step, level, slot, items)
        if not step.is_dropped and self.bad(group, step, level, slot, items):
            raise DataError(f"slot {slot} cannot be computed")
        return found


class FailingAlways(FailingManager):
    bad = staticmethod(is_bad_always)


class Failures(Checker):
    """There are some, and all that a dropped step had refreshed is taken back."""

    kinds = ("failed", "slot")

    def observe(self, event: Event) -> None:
        if event.what == "failed":
            self.traffic["failures"] += 1
        elif cast(Step, event.detail[0]).is_dropped:
            self.traffic["taken back"] += 1


class OthersGoOn(Checker):
    """While one group fails, the watermark of the other one moves as it should."""

    kinds = ("failed", "published")

    def __init__(self) -> None:
        super().__init__()
        self._failing: set[int] = set()
        self._published_us: dict[int, int] = {}

    def observe(self, event: Event) -> None:
        key = cast(Step, event.detail[0]).group
        if event.what == "failed":
            self.traffic["failures while others go on"] += 1
            self._failing.add(key)
            for other, group in groups().items():
                if other not in self._failing and other in self._published_us:
                    behind_ms = (event.time_us - self._published_us[other]) // 1_000
                    if behind_ms > (group.mode.interval_ms or 0) + LAG_MS_MAX:
                        raise self.violation(f"{group.names} did not move for {behind_ms} ms while others failed")
        else:
            self._failing.discard(key)
            self._published_us[key] = event.time_us

    def finish(self) -> None:
        if self._failing:
            raise self.violation(f"{self._failing} fail at the end")


def _with(kind: type[FailingManager]) -> Callable[[Host], ClusterViewManager]:
    return lambda host: kind(host, MANAGERS.index(host.name) + 1, tables(), COORDINATORS, CANDIDATES)


def _build(world: World, kind: type[FailingManager], *more: Checker) -> Built:
    built = views.build(world)
    for name in MANAGERS:
        world.nodes[name].factory = _with(kind)
    # Half of the crashes are those of the other scenarios.
    built.around.mix = replace(built.around.mix, crash_points=(*CRASH_POINTS * 2, *views.CRASH_POINTS))
    return Built(built.around, (*built.checkers, *more))


def build(world: World) -> Built:
    return _build(world, FailingManager, Failures())


def build_always(world: World) -> Built:
    return _build(world, FailingAlways, Failures(), OthersGoOn())


def plan_crashes(around: Surroundings) -> tuple[Planned, ...]:
    """Somebody dies at every named point, again and again."""
    random = around.world.streams["plan"]
    points = random.sample(CRASH_POINTS, len(CRASH_POINTS))
    planned = []
    for number, at_ms in enumerate(range(200, SAFETY_MS, 250)):
        down_us = random.randint(10_000, 500_000)
        point = points[number % len(points)]
        planned.append(Planned(at_ms * 1_000, "crash_at", (), down_us, point, random.randint(1, 2)))
    return tuple(planned)


# --- known-bad variants ---


def _nothing_to_take_back(self: ClusterScheduler, step: Step, done: set[tuple[int, int]]) -> list[object]:
    return []


_to_take_back_rightly = ClusterScheduler._to_take_back


def _lowest_level_first(self: ClusterScheduler, step: Step, done: set[tuple[int, int]]) -> list[object]:
    return list(_to_take_back_rightly(self, step, done)[::-1])


def _as_they_are(self: ClusterViewManager, view: object, contributions: object) -> object:
    return contributions


MUTANTS = (
    Mutant("a step is dropped with its slots", _patched((ClusterScheduler, "_to_take_back", _nothing_to_take_back))),
    Mutant("the lowest level is taken back first", _patched((ClusterScheduler, "_to_take_back", _lowest_level_first))),
    Mutant("what is taken back is added again", _patched((ClusterViewManager, "_negated", _as_they_are))),
    Mutant(
        "D1: a slot of a dropped step is accepted",
        _patched((ClusterViewManager, "_is_open", _always), (ClusterViewManager, "_seen", _no_keys)),
    ),
)

SCENARIO = Scenario(
    name="views-failing",
    summary="deferred views that cannot be computed for a while, with all faults",
    build=build,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    mutants=MUTANTS,
    probes=CRASH_POINTS,
    traffic_min={"commits": 100, "watermarks": 4, "failures": 2, "taken back": 4},
)

SCENARIO_CRASHES = Scenario(
    name="views-failing-crashes",
    summary="somebody dies at every named point of what follows a failure",
    build=build,
    plan=plan_crashes,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    crash_points=CRASH_POINTS,
)

SCENARIO_ALWAYS = Scenario(
    name="views-failing-always",
    summary="one group of deferred views fails all the time, without other faults, and the other one goes on",
    build=build_always,
    plan=views._no_faults,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 150, "watermarks": 8, "failures while others go on": 3},
)

SCENARIOS = (SCENARIO, SCENARIO_CRASHES, SCENARIO_ALWAYS)
