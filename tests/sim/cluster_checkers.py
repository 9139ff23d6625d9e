"""What must hold in a cluster, beside what must hold of every commit: one owner at a time, and timestamps that grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

from viewtide.changetables.types import Row
from viewtide.coordinator.cluster.coordinator import ClusterCoordinator
from viewtide.coordinator.cluster.leader import CLOCK_MS_MAX, LEASE_MS
from viewtide.coordinator.timestamps import STEP
from viewtide.ltm.cluster.hosted import Hosted
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.messages import MAP
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.two_phase.messages import Attempt, KeyRange

from .checkers import Checker
from .client_checkers import Bank, Lists
from .commit_checkers import ExactlyOnce, Replay
from .trace import Event
from .workload import CLIENTS, COORDINATORS
from .world import World
from .zookeeper import ZooKeeper


def members(world: World) -> Iterator[Member]:
    for node in world.nodes.values():
        if isinstance(node.process, Member):
            yield node.process


def hosted(world: World) -> Iterator[tuple[Member, Hosted]]:
    for member in members(world):
        for each in member.hosted.values():
            yield member, each


def newest_map(zookeeper: ZooKeeper) -> RangeMap:
    data = zookeeper.peek(MAP)
    assert data is not None
    return RangeMap.unpack(data)


class ClusterReplay(Replay):
    """As it is without a cluster, but owners change."""

    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        super().__init__(world)
        self._zookeeper = zookeeper

    def is_owner(self, cell: bytes, log: str) -> bool:
        # `Ownership` says who was when.
        return True

    def cells_at(self, ts: int) -> dict[bytes, Row]:
        ranges = newest_map(self._zookeeper)
        found: dict[bytes, Row] = {}
        for _, each in hosted(self._world):
            if each.machine is None:
                continue  # not open yet: what it has is still missing
            cells = each.machine.cells
            for cell in cells.chains:
                row = cells.at(cell, ts)[1]
                if row is not None and ranges.owner(cell) == each.log:
                    found[cell] = row
        return found

    def horizon(self) -> int:
        return max(each.machine.cells.horizon for _, each in hosted(self._world) if each.machine is not None)


class ClusterExactlyOnce(ExactlyOnce):
    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        super().__init__(world)
        self._zookeeper = zookeeper

    def newest(self, cell: bytes) -> Row | None:
        owner = newest_map(self._zookeeper).owner(cell)
        for _, each in hosted(self._world):
            if each.log == owner and each.machine is not None:
                return each.machine.cells.newest(cell)[1]
        return None


class Ownership(Checker):
    """An owner answers for timestamps up to the floor of the next one, before and after that one opens.

    Owners come one after another in the order of the epochs with which they got the keys. One that does not know yet
    that it is none any more may open them late: that is no harm.
    """

    kinds = ("opened", "answered")

    def __init__(self, cuts: Iterable[bytes]) -> None:
        super().__init__()
        #: Some keys stand for all: owners are compared there.
        self._keys = sorted(set(cuts))
        #: By key and epoch: the floor, and the highest timestamp answered.
        self._floors: dict[bytes, dict[int, int]] = {key: {} for key in self._keys}
        self._answered: dict[bytes, dict[int, int]] = {key: {} for key in self._keys}
        #: By key and owner: the last epoch in which it opened the key.
        self._epochs: dict[tuple[bytes, str, int], int] = {}

    def observe(self, event: Event) -> None:
        log, incarnation, ts, *what = event.detail
        owner = (cast(str, log), cast(int, incarnation))
        if event.what == "opened":
            self.traffic["opened"] += 1
            epoch, opened = cast("tuple[int, tuple[tuple[bytes, bytes | None], ...]]", what)
            for key in self._keys:
                if any(start <= key and (stop is None or key < stop) for start, stop in opened):
                    self._epochs[key, *owner] = epoch
                    self._floors[key][epoch] = cast(int, ts)
                    self._check(key, owner)
        else:
            self.traffic["answers"] += 1
            keys, ranges = cast("tuple[tuple[bytes, ...], tuple[KeyRange, ...]]", what)
            for key in self._keys:
                if key in keys or any(start <= key < stop for start, stop, _, _ in ranges):
                    self._answer(key, owner, cast(int, ts))

    def _answer(self, key: bytes, owner: tuple[str, int], at: int) -> None:
        epoch = self._epochs.get((key, *owner))
        if epoch is None:
            raise self.violation(f"{owner} answers for {key!r} at {at}, and never opened it", owner[0], at)
        answered = self._answered[key]
        if at > answered.get(epoch, 0):
            answered[epoch] = at
            self._check(key, owner)

    def _check(self, key: bytes, owner: tuple[str, int]) -> None:
        for epoch, at in self._answered[key].items():
            for later, floor in self._floors[key].items():
                if later > epoch and at > floor:
                    raise self.violation(
                        f"{key!r} was answered for at {at} by its owner since epoch {epoch}, and opened at {floor} in "
                        f"epoch {later}; the last to do so was {owner}",
                        owner[0],
                    )


class Issued(Checker):
    """No timestamp is issued twice, whoever leads. Who does not know yet that another leads stops in time."""

    kinds = ("issued", "term")

    def __init__(self) -> None:
        super().__init__()
        self._issued: set[int] = set()
        self._by: Counter[str] = Counter()
        #: When the last term began, and whose it is.
        self._term = (0, "")

    def observe(self, event: Event) -> None:
        if event.what == "term":
            self._term = (event.time_us, event.process)
            return
        since_us, leader = self._term
        if leader != event.process and event.time_us - since_us > (LEASE_MS + CLOCK_MS_MAX) * 1_000:
            raise self.violation(f"{event.process} issues timestamps, and {leader} has led since {since_us} us", leader)
        first, count = cast("tuple[int, int]", event.detail)
        self.traffic["timestamps"] += count
        self._by[event.process] += 1
        if first % STEP:
            raise self.violation(f"{event.process} issues {first}, which is raised already", event.process)
        for ts in range(first, first + count * STEP, STEP):
            if ts in self._issued:
                raise self.violation(f"{event.process} issues {ts}, and somebody did before", event.process)
            self._issued.add(ts)

    def finish(self) -> None:
        self.traffic["leaders"] += len(self._by)


class ClusterLiveness(Checker):
    """When all is healed: every log has somebody who answers for it, no keys are closed, and nothing is held."""

    kinds = ("done",)

    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        super().__init__()
        self._world = world
        self._zookeeper = zookeeper
        self._working = dict.fromkeys(name for name in CLIENTS if name in world.nodes)

    def observe(self, event: Event) -> None:
        self._working.pop(event.process, None)

    def converged(self) -> str:
        if self._working:
            return f"{', '.join(self._working)} not done"
        ranges = newest_map(self._zookeeper)
        if ranges.moves:
            return f"{ranges.moves[0]} does not end"
        running = {each.log: (member, each) for member, each in hosted(self._world)}
        for log, host in ranges.hosts.items():
            if log not in running:
                return f"{host.life} does not answer for {log}"
            member, each = running[log]
            if member.life != host.life or member.map.epoch != ranges.epoch or each.machine is None or not each.open:
                return f"{log} is not open at {host.life}"
            why = self._unfinished(log, each)
            if why:
                return why
        for name in COORDINATORS:
            process = self._world.nodes[name].process
            if not isinstance(process, ClusterCoordinator) or process.inner.work or process.inner._settling:
                return f"{name} has work"
        return ""

    def _unfinished(self, log: str, each: Hosted) -> str:
        assert each.machine is not None
        undecided: list[Attempt] = [attempt for attempt, part in each.machine.parts.items() if part.decided is None]
        if undecided:
            return f"{undecided[0]} is not decided at {log}"
        if len(each.machine.holds) or each.machine._readers:
            return f"{log} holds something"
        return ""

    def finish(self) -> None:
        ranges = newest_map(self._zookeeper)
        self.traffic["epochs"] += ranges.epoch
        self.traffic["take-overs"] += sum(host.incarnation - 1 for host in ranges.hosts.values())


def checkers(world: World, zookeeper: ZooKeeper, cuts: Iterable[bytes]) -> tuple[Checker, ...]:
    return (
        Issued(),
        Ownership(cuts),
        ClusterReplay(world, zookeeper),
        Bank(),
        Lists(world),
        ClusterExactlyOnce(world, zookeeper),
        ClusterLiveness(world, zookeeper),
    )
