"""The leader alone, with an LTM that does what a test wants: when it issues timestamps, and who loses its logs when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.sim.checkers import Checker
from tests.sim.process import NOTHING, Host, Outputs
from tests.sim.trace import Event
from tests.sim.world import World
from tests.sim.zookeeper import ZooKeeper
from viewtide.coordinator.cluster.leader import CLOCK_MS_MAX, LEASE_MS, SILENT_MS_MAX, Leader
from viewtide.ltm.cluster import zk_messages as zk
from viewtide.ltm.cluster.messages import (
    BOUND,
    LTMS,
    MAP,
    SESSION_MS,
    Done,
    Lease,
    Merge,
    MoveRange,
    NewMap,
    Report,
    Split,
    node_of,
)
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.two_phase.messages import Draw, Timestamps

MS = 1_000


class Ltm:
    """Has a session, and says which maps it has, if it `reports`."""

    def __init__(self, host: Host, life: str, reports: bool) -> None:
        self._host, self._life, self._reports = host, life, reports
        self.epoch = 0
        self.leases: list[Lease] = []

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        return Outputs(send=((zk.ZOOKEEPER, zk.Connect(SESSION_MS)),), timers=((now_ms + 50, "tick"),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if isinstance(message, zk.Session) and message.state == zk.CONNECTED:
            return Outputs(send=((zk.ZOOKEEPER, zk.Create(1, node_of(self._life), b"", True)),))
        if isinstance(message, NewMap):
            self.epoch = max(self.epoch, RangeMap.unpack(message.data).epoch)
        elif isinstance(message, Lease):
            self.leases.append(message)
        return NOTHING

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("nothing was written")

    def timer(self, token: object, now_ms: int) -> Outputs:
        send = (("leader", Report(self._life, self.epoch)),) if self._reports else ()
        return Outputs(send=send, timers=((now_ms + 50, "tick"),))


class Asker:
    """Wants a timestamp every 20 ms, and gives commands."""

    def __init__(self, host: Host, commands: list[object]) -> None:
        self._commands = commands
        self.issued: list[tuple[int, Timestamps]] = []
        self.done: list[Done] = []

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        return self.timer("tick", now_ms)

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if isinstance(message, Timestamps):
            self.issued.append((now_ms, message))
        elif isinstance(message, Done):
            self.done.append(message)
        return NOTHING

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("nothing was written")

    def timer(self, token: object, now_ms: int) -> Outputs:
        send: list[tuple[str, object]] = [("leader", Draw(1, 2))]
        if self.issued and self._commands:
            send.append(("leader", self._commands.pop(0)))
        return Outputs(send=tuple(send), timers=((now_ms + 20, "tick"),))


class Issues(Checker):
    """When the leader issued timestamps."""

    kinds = ("issued",)

    def __init__(self) -> None:
        super().__init__()
        self.times_us: list[int] = []

    def observe(self, event: Event) -> None:
        self.times_us.append(event.time_us)


class Bench:
    """Two logs, a/1 and b/1, of which each has half the keys."""

    def __init__(self, bound: int = 0, *, b_lives: bool = True, b_reports: bool = True) -> None:
        self.world = World(1)
        self.zookeeper = ZooKeeper(self.world)
        hosts = {life: Hosting(1, (life,)) for life in ("a/1", "b/1")}
        self.zookeeper.ensure(LTMS)
        self.zookeeper.ensure(MAP, RangeMap(1, (b"", b"m"), ("a/1", "b/1"), {}, 0, hosts).pack())
        self.zookeeper.ensure(BOUND, str(bound).encode())
        self.commands: list[object] = []
        self.world.add("leader", Leader, disk=False)
        self.world.add("a", lambda host: Ltm(host, "a/1", True), disk=False)
        if b_lives:
            self.world.add("b", lambda host: Ltm(host, "b/1", b_reports), disk=False)
        else:
            self.world.add("b", lambda host: Asker(host, []), disk=False)
        self.issues = Issues()
        self.world.watch([self.issues])
        self.world.add("asker", lambda host: Asker(host, self.commands), disk=False)
        self.world.boot()

    def run(self, until_ms: int) -> None:
        self.world.run_until(until_ms * MS)

    @property
    def asker(self) -> Asker:
        process = self.world.nodes["asker"].process
        assert isinstance(process, Asker)
        return process

    @property
    def map(self) -> RangeMap:
        data = self.zookeeper.peek(MAP)
        assert data is not None
        return RangeMap.unpack(data)


def test_timestamps_are_above_the_stored_bound_and_grow_below_the_next_one() -> None:
    bound = 2_000_000_000 << 20
    bench = Bench(bound)
    bench.run(3_000)
    issued = [stamps.first for _, stamps in bench.asker.issued]
    assert len(issued) > 50
    assert issued[0] >= bound
    assert all(later >= before + 2 * 256 for before, later in pairwise(issued))
    stored = bench.zookeeper.peek(BOUND)
    assert stored is not None
    assert issued[-1] < int(stored)
    assert {stamps.epoch for _, stamps in bench.asker.issued} == {bench.map.epoch}


def test_no_timestamps_before_every_ltm_has_adopted_the_leaders_map_or_lost_its_logs() -> None:
    bench = Bench(b_reports=False)
    bench.run(SILENT_MS_MAX - 100)
    assert bench.map.term == 2
    assert bench.asker.issued == []
    assert bench.map.hosts["b/1"].life == "b/1"
    bench.run(SILENT_MS_MAX + 1_000)
    assert bench.map.hosts["b/1"] == Hosting(2, ("b/1", "a/1"))
    assert bench.asker.issued


def test_an_ltm_that_is_gone_keeps_its_logs_until_an_earlier_leader_must_have_fallen_silent() -> None:
    bench = Bench(b_lives=False)
    bench.run(LEASE_MS + CLOCK_MS_MAX - 100)
    assert bench.map.hosts["b/1"].life == "b/1"
    assert bench.asker.issued == []
    bench.run(LEASE_MS + CLOCK_MS_MAX + 500)
    assert bench.map.hosts["b/1"].life == "a/1"
    assert bench.asker.issued


def test_what_is_issued_after_an_ltm_lost_its_logs_is_above_its_lease() -> None:
    bench = Bench()
    bench.run(1_000)
    ltm = bench.world.nodes["b"].process
    assert isinstance(ltm, Ltm)
    epoch = bench.map.epoch
    bench.zookeeper.expire("b")
    bench.run(1_500)
    lease = max(each.until for each in ltm.leases)
    later = [stamps.first for _, stamps in bench.asker.issued if stamps.epoch > epoch]
    assert bench.map.hosts["b/1"].life == "a/1"
    assert min(later) > lease
    assert any(stamps.first < lease for _, stamps in bench.asker.issued)


def test_commands_change_the_map_or_say_why_not() -> None:
    bench = Bench()
    bench.commands += [Split(1, b"c"), Split(2, b"c"), Merge(3, b"m"), MoveRange(4, b"c", b"m", "b/1"), Merge(5, b"c")]
    bench.run(2_000)
    assert [(done.number, bool(done.error)) for done in bench.asker.done] == [
        (1, False),
        (2, True),
        (3, True),
        (4, False),
        (5, True),
    ]
    assert bench.map.starts == (b"", b"c", b"m")
    assert [(move.start, move.stop, move.source, move.target) for move in bench.map.moves] == [
        (b"c", b"m", "a/1", "b/1")
    ]


@pytest.mark.parametrize("paused_ms", [LEASE_MS + CLOCK_MS_MAX + 500, SESSION_MS * 3])
def test_a_leader_that_was_paused_for_long_issues_nothing_before_zookeeper_confirms_it(paused_ms: int) -> None:
    # Ahead of its clock, as after some changes of leaders: the bound alone would not keep it from issuing.
    bench = Bench(2_000_000_000 << 20)
    bench.run(1_000)
    before = len(bench.issues.times_us)
    bench.world.pause("leader")
    bench.run(1_000 + paused_ms)
    bench.world.resume("leader")
    # Everything that waited is handled now; no answer can have come from ZooKeeper yet.
    bench.world.run_until(bench.world.now_us + 100)
    assert len(bench.issues.times_us) == before > 0
    bench.run(1_000 + paused_ms + 5_000)
    assert len(bench.issues.times_us) > before
