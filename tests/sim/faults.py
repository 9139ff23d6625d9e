"""Faults: a plan of them is drawn from the seed before the run, and carried out in it. It is data: it can be printed.

Each seed draws its own mix: only some kinds, at a rate of its own, under network conditions of its own. A run where
everything goes wrong at once never gets to the places that a single fault needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeAlias

from .disk import ERROR, FULL, Disk
from .network import HEALTHY, Conditions
from .node import Node, State
from .store import WRITE_FAULTS, SimStore
from .world import CRASH_POINTS, World
from .zookeeper import ZooKeeper

#: A plan never has more, whatever its rate.
PLANNED_FAULTS_MAX = 400
#: One run in so many has no faults at all: it must be fast, and shows what a fault changes.
CALM_RUNS_EVERY = 20
#: Of the kinds that a scenario allows, a run uses each with this probability.
KIND_USED_RATIO = 0.6
#: How often a kind comes, compared with the others. Crashes at named points wait until somebody gets there, and there
#: are many points.
WEIGHTS = {"crash_at": 4.0}


class Planned(NamedTuple):
    """One fault of a plan. What `targets` and `text` mean depends on the kind."""

    at_us: int
    kind: str
    targets: tuple[str, ...]
    duration_us: int
    text: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Mix:
    """What a scenario allows. Without `kinds`, all that make sense with what it has."""

    per_second: float = 2.0
    kinds: tuple[str, ...] = ()
    #: Probes of the scenario's machines at which a process may crash; those of the world come with them.
    crash_points: tuple[str, ...] = ()
    #: At most the n-th passage of one.
    passages_max: int = 40
    down_ms_max: int = 3_000
    #: Past any lease.
    pause_ms_max: int = 8_000
    partition_ms_max: int = 8_000
    disturbed_ms_max: int = 4_000
    clock_offset_ms_max: int = 250
    clock_drift_ppm_max: int = 200
    #: Processes that never crash, pause or lose their disk: those that stand for the world outside.
    spared: tuple[str, ...] = ()


@dataclass(slots=True)
class Surroundings:
    """What faults can get at."""

    world: World
    zookeeper: ZooKeeper | None = None
    stores: tuple[SimStore, ...] = ()
    mix: Mix = field(default_factory=Mix)

    def victims(self) -> list[str]:
        return [name for name in self.world.nodes if name not in self.mix.spared]

    def with_disks(self) -> list[str]:
        return [name for name in self.victims() if self.world.nodes[name].disk is not None]

    def everybody(self) -> list[str]:
        return [*self.world.nodes, *self.world.services]


End: TypeAlias = Callable[[], None]


class Kind(NamedTuple):
    """`draw` gives targets, text and amount, or None if there is nothing to do it to; `begin` returns how it ends, or
    None if it could not be done."""

    longest_ms: Callable[[Mix], int]
    draw: Callable[[Surroundings, Random], tuple[tuple[str, ...], str, int] | None]
    begin: Callable[[Surroundings, Planned], End | None]


def _ended() -> None:
    """For faults that are over at once."""


# Crashes and pauses.


def _draw_victim(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    victims = around.victims()
    return ((random.choice(victims),), "", 0) if victims else None


def _crash(around: Surroundings, fault: Planned) -> End | None:
    (name,) = fault.targets
    if around.world.nodes[name].state is State.DOWN:
        return None
    around.world.crash(name, fault.duration_us, "by plan")
    return _ended


def _draw_point(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    """Most of them at a point of the machines, if they have any. Half of them at the first passage, or points that are
    passed once in a run would never be hit."""
    own = around.mix.crash_points
    points = own if own and random.random() < 0.8 else CRASH_POINTS
    passage = 1 if random.random() < 0.5 else 1 + int(around.mix.passages_max * random.random() ** 3)
    return (), random.choice(points), passage


def _crash_at(around: Surroundings, fault: Planned) -> End | None:
    around.world.crash_at(fault.text, fault.amount, fault.duration_us)
    # It is counted when somebody gets there.
    return None


def _pause(around: Surroundings, fault: Planned) -> End | None:
    (name,) = fault.targets
    incarnation = around.world.nodes[name].incarnation
    if not around.world.pause(name):
        return None

    def end() -> None:
        if around.world.nodes[name].incarnation == incarnation:
            around.world.resume(name)

    return end


# The network.


def _draw_sides(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    """One side of a partition; the other is the rest."""
    everybody = around.everybody()
    if len(everybody) < 2:
        return None
    size = 1 if random.random() < 0.5 else random.randint(1, len(everybody) - 1)
    return tuple(sorted(random.sample(everybody, size))), "", 0


def _partition(around: Surroundings, fault: Planned) -> End | None:
    inside, outside = _sides(around, fault)
    return _block(around, [(a, b) for a in inside for b in outside] + [(b, a) for a in inside for b in outside])


def _one_way(around: Surroundings, fault: Planned) -> End | None:
    inside, outside = _sides(around, fault)
    return _block(around, [(a, b) for a in inside for b in outside])


def _sides(around: Surroundings, fault: Planned) -> tuple[list[str], list[str]]:
    everybody = around.everybody()
    return [name for name in everybody if name in fault.targets], [
        name for name in everybody if name not in fault.targets
    ]


def _block(around: Surroundings, pairs: list[tuple[str, str]]) -> End:
    network, world = around.world.network, around.world
    network.block(pairs)
    return lambda: network.unblock(world.now_us, pairs)


def _draw_link(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    everybody = around.everybody()
    return (tuple(random.sample(everybody, 2)), "", 0) if len(everybody) > 1 else None


def _slow_link(around: Surroundings, fault: Planned) -> End | None:
    link = around.world.network.link(fault.targets[0], fault.targets[1])
    link.slow += 1

    def end() -> None:
        link.slow -= 1

    return end


def _lossy_link(around: Surroundings, fault: Planned) -> End | None:
    link = around.world.network.link(fault.targets[0], fault.targets[1])
    link.lossy += 1

    def end() -> None:
        link.lossy -= 1

    return end


# Disks and clocks.


def _draw_disk(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    names = around.with_disks()
    return ((random.choice(names),), "", 0) if names else None


def _disk_slow(around: Surroundings, fault: Planned) -> End | None:
    node = around.world.nodes[fault.targets[0]]
    _disk_of(node).slow += 1

    def end() -> None:
        _disk_of(node).slow -= 1

    return end


def _disk_of(node: Node) -> Disk:
    """The one that is in use: a process whose log was sealed meanwhile has another."""
    assert node.disk is not None
    return node.disk


def _disk_failing(how: str) -> Callable[[Surroundings, Planned], End | None]:
    def begin(around: Surroundings, fault: Planned) -> End | None:
        node = around.world.nodes[fault.targets[0]]
        if _disk_of(node).failing:
            return None
        _disk_of(node).failing = how

        def end() -> None:
            disk = _disk_of(node)
            disk.failing = ""
            if disk.failed:
                # Its process lives on without a disk; only a restart helps.
                around.world.crash(node.name, 0, "to open its disk again")

        return end

    return begin


def _draw_clock(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    offset_ms = random.randint(-around.mix.clock_offset_ms_max, around.mix.clock_offset_ms_max)
    return (random.choice(list(around.world.nodes)),), "", offset_ms


def _clock(around: Surroundings, fault: Planned) -> End | None:
    """The clock jumps. It stays wrong, within the bound, also when all is healed."""
    world = around.world
    world.nodes[fault.targets[0]].clock.set(world.now_us, fault.amount, 0)
    return _ended


# ZooKeeper and stores.


def _draw_client(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    victims = around.victims()
    return ((random.choice(victims),), "", 0) if around.zookeeper is not None and victims else None


def _draw_servers(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    return ((), "", 0) if around.zookeeper is not None else None


def _zk_expire(around: Surroundings, fault: Planned) -> End | None:
    assert around.zookeeper is not None
    return _ended if around.zookeeper.expire(fault.targets[0]) else None


def _zk_disconnect(around: Surroundings, fault: Planned) -> End | None:
    assert around.zookeeper is not None
    return _ended if around.zookeeper.disconnect(fault.targets[0], fault.duration_us) else None


def _zk_slow(around: Surroundings, fault: Planned) -> End | None:
    zookeeper = around.zookeeper
    assert zookeeper is not None
    zookeeper.slow(1)
    return lambda: zookeeper.slow(-1)


def _draw_store(around: Surroundings, random: Random) -> tuple[tuple[str, ...], str, int] | None:
    if not around.stores:
        return None
    return (), random.choice(WRITE_FAULTS), random.randrange(len(around.stores))


def _store_write(around: Surroundings, fault: Planned) -> End | None:
    around.stores[fault.amount].arm(fault.text)
    return _ended


def _store_slow(around: Surroundings, fault: Planned) -> End | None:
    store = around.stores[fault.amount]
    store.slow += 1

    def end() -> None:
        store.slow -= 1

    return end


def _store_reads(around: Surroundings, fault: Planned) -> End | None:
    store = around.stores[fault.amount]
    store.fail_reads(1)
    return lambda: store.fail_reads(-1)


KINDS: dict[str, Kind] = {
    "crash": Kind(lambda mix: mix.down_ms_max, _draw_victim, _crash),
    "crash_at": Kind(lambda mix: mix.down_ms_max, _draw_point, _crash_at),
    "pause": Kind(lambda mix: mix.pause_ms_max, _draw_victim, _pause),
    "partition": Kind(lambda mix: mix.partition_ms_max, _draw_sides, _partition),
    "one_way": Kind(lambda mix: mix.partition_ms_max, _draw_sides, _one_way),
    "slow_link": Kind(lambda mix: mix.disturbed_ms_max, _draw_link, _slow_link),
    "lossy_link": Kind(lambda mix: mix.disturbed_ms_max, _draw_link, _lossy_link),
    "disk_slow": Kind(lambda mix: mix.disturbed_ms_max, _draw_disk, _disk_slow),
    "disk_error": Kind(lambda mix: mix.disturbed_ms_max, _draw_disk, _disk_failing(ERROR)),
    "disk_full": Kind(lambda mix: mix.disturbed_ms_max, _draw_disk, _disk_failing(FULL)),
    "clock": Kind(lambda mix: 0, _draw_clock, _clock),
    "zk_expire": Kind(lambda mix: 0, _draw_client, _zk_expire),
    "zk_disconnect": Kind(lambda mix: mix.disturbed_ms_max, _draw_client, _zk_disconnect),
    "zk_slow": Kind(lambda mix: mix.disturbed_ms_max, _draw_servers, _zk_slow),
    "store_write": Kind(lambda mix: 0, _draw_store, _store_write),
    "store_slow": Kind(lambda mix: mix.disturbed_ms_max, _draw_store, _store_slow),
    "store_reads": Kind(lambda mix: mix.disturbed_ms_max, _draw_store, _store_reads),
}


def draw_conditions(random: Random) -> Conditions:
    """The network of one run, from a fine one to a bad one."""
    return Conditions(
        delay_us_max=random.choice((500, 1_500, 1_500, 10_000)),
        tail_ratio=random.choice((0.0, 0.005, 0.05)),
        tail_us_max=random.choice((20_000, 200_000, 1_000_000)),
        loss_ratio=random.choice((0.0, 0.0, 0.002, 0.02, 0.1)),
        duplicate_ratio=random.choice((0.0, 0.0, 0.01, 0.1)),
        duplicate_us_max=random.choice((10_000, 3_000_000, 10_000_000)),
        reorder_ratio=random.choice((0.0, 0.0, 0.02, 0.3)),
        kept_ratio=random.choice((0.0, 0.3, 1.0)),
    )


def draw_plan(around: Surroundings, until_us: int) -> tuple[Planned, ...]:
    """The faults of one run. Each is drawn from a stream of its kind, so that a new kind does not change the others."""
    mix, streams = around.mix, around.world.streams
    random = streams["plan"]
    if random.randrange(CALM_RUNS_EVERY) == 0:
        return ()
    rate = mix.per_second * random.choice((0.2, 0.5, 1.0, 1.0, 2.0))
    used = [kind for kind in mix.kinds or KINDS if streams[f"plan {kind}"].random() < KIND_USED_RATIO]
    used = [kind for kind in used if KINDS[kind].draw(around, streams[f"plan {kind}"]) is not None]
    weights = {kind: WEIGHTS.get(kind, 1.0) for kind in used}
    planned: list[Planned] = []
    for kind, weight in weights.items():
        share = rate * weight / sum(weights.values())
        planned.extend(_draw_kind(around, kind, streams[f"plan {kind}"], share, until_us))
    planned.sort()
    return tuple(planned[:PLANNED_FAULTS_MAX])


def _draw_kind(around: Surroundings, name: str, random: Random, rate: float, until_us: int) -> list[Planned]:
    kind = KINDS[name]
    drawn: list[Planned] = []
    at_us = 0
    while len(drawn) < PLANNED_FAULTS_MAX:
        at_us += 1 + int(random.expovariate(rate) * 1_000_000)
        what = kind.draw(around, random)
        if at_us >= until_us or what is None:
            break
        targets, text, amount = what
        drawn.append(Planned(at_us, name, targets, _duration_us(kind.longest_ms(around.mix), random), text, amount))
    return drawn


def _duration_us(longest_ms: int, random: Random) -> int:
    """Short ones are more frequent; long ones, past every timeout, happen."""
    part = random.random()
    return int(longest_ms * 1_000 * part * part)


class Faults:
    """Carries out a plan, and ends everything that is still going on when the world is healed."""

    def __init__(self, around: Surroundings, plan: tuple[Planned, ...]) -> None:
        self._around = around
        self._active: dict[int, End] = {}
        self._healed = False
        for number, fault in enumerate(plan):
            around.world.at(fault.at_us, self._begin, number, fault)

    def _begin(self, number: int, fault: Planned) -> None:
        if self._healed:
            return
        world = self._around.world
        end = KINDS[fault.kind].begin(self._around, fault)
        if end is None:
            return
        world.faults[fault.kind] += 1
        world.record("", "fault", fault.kind, *fault.targets, fault.text, fault.amount, fault.duration_us)
        self._active[number] = end
        world.after(fault.duration_us, self._end, number, fault.kind)

    def _end(self, number: int, kind: str) -> None:
        end = self._active.pop(number, None)
        if end is not None:
            self._around.world.record("", "fault over", kind)
            end()

    def heal(self) -> None:
        """Everything works from now on, and everybody is there."""
        world = self._around.world
        self._healed = True
        world.record("", "healed")
        for number in list(self._active):
            self._active.pop(number)()
        world.disarm()
        world.network.conditions = HEALTHY
        if self._around.zookeeper is not None:
            self._around.zookeeper.heal()
        for store in self._around.stores:
            store.heal()
        for name in world.nodes:
            world.resume(name)
            world.start(name)


def set_clocks(around: Surroundings) -> None:
    """Every process's clock is wrong by something within the bound from the beginning, and drifts."""
    mix = around.mix
    for name, node in around.world.nodes.items():
        random = around.world.streams[f"clock {name}"]
        offset_ms = random.randint(-mix.clock_offset_ms_max, mix.clock_offset_ms_max)
        node.clock.set(0, offset_ms, random.randint(-mix.clock_drift_ppm_max, mix.clock_drift_ppm_max))
