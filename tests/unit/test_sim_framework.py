"""The simulator itself: what it does to processes, that it always does the same, and that it finds what is wrong."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.sim import __main__ as command_line
from tests.sim import catalog, commit, logs, runner, toy
from tests.sim import zookeeper as zk
from tests.sim.checkers import Checker, Violation
from tests.sim.clock import EPOCH_MS, Clock
from tests.sim.disk import ERROR, FULL
from tests.sim.faults import KINDS, Faults, Mix, Planned, Surroundings, draw_plan
from tests.sim.network import Conditions
from tests.sim.node import Node, State
from tests.sim.process import NOTHING, Host, Outputs, Recovered, Stop, WhenDurable
from tests.sim.scenario import Result, Scenario, run_seed
from tests.sim.scenarios import SCENARIOS
from tests.sim.store import APPLIED_LATE, PARTIAL, SLOW_CALL_US, TIMEOUT_APPLIED, TIMEOUT_BEFORE, SimStore
from tests.sim.streams import Streams
from tests.sim.trace import Event, fingerprint
from tests.sim.wire import AnyWire, CodecWire
from tests.sim.world import AFTER_PERSIST, World
from viewtide import coordinator, ltm
from viewtide.changetables.errors import Unavailable
from viewtide.ltm.ports import Cell, Store

ROOT = Path(__file__).parents[2]
MS = 1_000
SECOND = 1_000_000


class Ping(NamedTuple):
    number: int


class Recorder:
    """Keeps what it is given, over all its lives, and answers with what the test tells it to."""

    def __init__(self, host: Host, log: list[tuple[object, ...]], replies: dict[object, Outputs]) -> None:
        self.host, self.log, self.replies = host, log, replies

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        assert isinstance(disk, Recovered)
        self.log.append(("start", incarnation, tuple(disk), disk.cut, disk.first_lsn, disk.log))
        return self.replies.get("start", NOTHING)

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self.log.append(("receive", sender, message, now_ms))
        self.host.probe("received")
        return self.replies.get("receive", NOTHING)

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        self.log.append(("persisted", lsn))
        return self.replies.get("persisted", NOTHING)

    def timer(self, token: object, now_ms: int) -> Outputs:
        self.log.append(("timer", token, now_ms))
        return self.replies.get(token, NOTHING)


class HearingRecorder(Recorder):
    def disk_failed(self, now_ms: int) -> Outputs:
        self.log.append(("disk failed",))
        return NOTHING


class Bench:
    """A world with recorders in it."""

    def __init__(self, *names: str, seed: int = 1, hearing: bool = False) -> None:
        self.world = World(seed, keep_all=True)
        self.logs: dict[str, list[tuple[object, ...]]] = {name: [] for name in names}
        self.replies: dict[str, dict[object, Outputs]] = {name: {} for name in names}
        kind = HearingRecorder if hearing else Recorder
        for name in names:
            self.world.add(name, lambda host: kind(host, self.logs[host.name], self.replies[host.name]))

    def node(self, name: str) -> Node:
        return self.world.nodes[name]

    def run(self, until_us: int) -> None:
        self.world.run_until(until_us)

    def give(self, name: str, outputs: Outputs) -> None:
        """Let a process ask for this now."""
        self.world._guarded(self.node(name), self.world._perform, self.node(name), outputs)

    def received(self, name: str) -> list[object]:
        return [entry[2] for entry in self.logs[name] if entry[0] == "receive"]

    def kinds(self, name: str) -> list[object]:
        return [entry[0] for entry in self.logs[name]]


# Determinism.


@pytest.mark.parametrize("scenario", (toy.SCENARIO, commit.SCENARIO, catalog.SCENARIO), ids=lambda each: each.name)
def test_a_seed_gives_one_trace_in_every_process_and_at_any_time(scenario: Scenario) -> None:
    hashes = set()
    for hash_seed in ("0", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.sim", "--scenario", scenario.name, "--seed", "7", "--last", "1"]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        hashes.add(next(line for line in ran.stdout.splitlines() if line.startswith("hash ")))
    assert len(hashes) == 1
    assert f"hash {run_seed(scenario, 7).digest}" in hashes


def test_different_seeds_give_different_traces() -> None:
    assert len({run_seed(toy.SCENARIO, seed).digest for seed in range(3)}) == 3


def test_streams_are_independent_of_each_other() -> None:
    one, other = Streams(5), Streams(5)
    one["a"].random()
    assert one["b"].random() == other["b"].random()
    assert Streams(5)["a"].random() != Streams(6)["a"].random()


def test_a_fingerprint_tells_values_apart_and_what_can_change() -> None:
    assert fingerprint((1, "a", b"b", None, Ping(2)))[1]
    assert fingerprint({"b", "a"})[0] == fingerprint({"a", "b"})[0]
    assert fingerprint(frozenset(("x", "y")))[1]
    assert not fingerprint((1, [2]))[1]
    assert fingerprint(2**70)[0] != fingerprint(2**71)[0]
    with pytest.raises(TypeError, match="address"):
        fingerprint(object())


# The toy: right and wrong.


def test_the_right_toy_passes_and_the_wrong_ones_are_caught() -> None:
    assert [run_seed(toy.SCENARIO, seed).violation for seed in range(12)] == [None] * 12
    quick = ("answer before durable", "answer without the backup", "no dedup of retries", "no fencing")
    assert runner.run_mutants(toy.SCENARIO, 1000, quick) == []


@pytest.mark.slow
def test_the_right_toy_passes_many_seeds_and_covers_what_it_names() -> None:
    totals = runner.run_many("toy", 2000, 160)
    assert totals.violations == []
    assert runner.not_covered(toy.SCENARIO, totals.result) == []
    assert set(totals.result.faults) >= set(KINDS) - {"store_write", "store_slow", "store_reads"}
    assert runner.run_many(toy.BACK_AT_EXPIRY, 0, 30).violations == []


@pytest.mark.slow
def test_every_mutant_of_the_toy_is_caught() -> None:
    assert runner.run_mutants(toy.SCENARIO, 0) == []


# The network.


def test_a_healthy_link_keeps_the_order() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.give("a", Outputs(send=tuple(("b", Ping(number)) for number in range(50))))
    bench.run(SECOND)
    assert bench.received("b") == [Ping(number) for number in range(50)]


def test_a_bad_link_loses_doubles_and_reorders() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.world.network.conditions = Conditions(loss_ratio=0.2, duplicate_ratio=0.2, reorder_ratio=0.3)
    bench.give("a", Outputs(send=tuple(("b", Ping(number)) for number in range(300))))
    bench.run(10 * SECOND)
    received = bench.received("b")
    network = bench.world.network
    assert 0 < network.lost < 120 and 0 < network.duplicated < 120 and network.reordered > 0
    assert len(received) == 300 - network.lost + network.duplicated
    assert received != sorted(received)  # type: ignore[type-var]


def test_a_partition_blocks_one_or_both_directions_and_heals() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    network = bench.world.network
    network.conditions = Conditions(kept_ratio=0.5)
    network.block([("a", "b")])
    bench.give("a", Outputs(send=tuple(("b", Ping(number)) for number in range(40))))
    bench.give("b", Outputs(send=(("a", Ping(99)),)))
    bench.run(SECOND)
    assert bench.received("b") == [] and bench.received("a") == [Ping(99)]
    assert network.blocked > 0 and network.kept > 0 and not network.reachable("a", "b")
    network.unblock(bench.world.now_us, [("a", "b")])
    bench.run(2 * SECOND)
    received = bench.received("b")
    assert len(received) == network.kept and received == sorted(received)  # type: ignore[type-var]


def test_overlapping_partitions_end_with_the_last() -> None:
    bench = Bench("a", "b")
    network = bench.world.network
    network.block([("a", "b")])
    network.block([("a", "b")])
    network.unblock(0, [("a", "b")])
    assert not network.link("a", "b").open
    network.unblock(0, [("a", "b")])
    assert network.link("a", "b").open


def test_messages_and_records_are_copies_if_they_can_change() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    shared = [1]
    bench.give("a", Outputs(persist=(("record", shared),), send=(("b", ("message", shared)),)))
    shared.append(2)
    bench.run(SECOND)
    assert bench.received("b") == [("message", [1])]
    bench.world.crash("a", 0)
    bench.run(2 * SECOND)
    assert bench.logs["a"][-1][2] == (("record", [1]),)


def test_wires_keep_or_flatten_types() -> None:
    frozen, _ = AnyWire().freeze(Ping(1))
    assert isinstance(AnyWire().thaw(frozen), Ping)
    frozen, hashed = CodecWire().freeze((1, [2, b"x"]))
    assert CodecWire().thaw(frozen) == (1, (2, b"x")) and isinstance(hashed, bytes)


def test_a_message_to_nobody_is_a_violation() -> None:
    bench = Bench("a")
    bench.world.boot()
    with pytest.raises(Violation, match="does not exist"):
        bench.give("a", Outputs(send=(("nobody", 1),)))


# Disks.


def test_a_send_waits_for_its_lsn_and_others_do_not() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.give("a", Outputs(("r1", "r2"), (WhenDurable(2, "b", Ping(2)), ("b", Ping(1)))))
    bench.give("a", Outputs(("r3",), (("b", Ping(3)),), after=3))
    assert len(bench.node("a").waiting) == 2
    bench.run(SECOND)
    assert bench.received("b") == [Ping(1), Ping(2), Ping(3)]
    assert [entry[1] for entry in bench.logs["a"] if entry[0] == "persisted"] == [2, 3]
    story = "\n".join(bench.world.trace.story())
    assert story.index("durable    2") < story.index("Ping(number=2)")


def test_to_wait_for_what_was_never_written_is_a_violation() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    with pytest.raises(Violation, match="never wrote"):
        bench.give("a", Outputs(send=(WhenDurable(1, "b", Ping(1)),)))


def test_a_crash_loses_any_suffix_that_is_not_durable_and_nothing_else() -> None:
    left, cut = set(), set()
    for seed in range(60):
        bench = Bench("a", seed=seed)
        bench.world.boot()
        bench.give("a", Outputs(("r1",)))
        bench.run(SECOND)
        bench.give("a", Outputs(("r2", "r3")))
        bench.world.crash("a", 10)
        bench.run(2 * SECOND)
        _, incarnation, records, was_cut, first_lsn, _ = bench.logs["a"][-1]
        assert incarnation == 2 and first_lsn == 1
        assert records == ("r1", "r2", "r3")[: len(records)]  # type: ignore[arg-type]
        left.add(len(records))
        cut.add((len(records) < 3, was_cut))
    assert left == {1, 2, 3}
    assert cut == {(True, True), (True, False), (False, False)}


def test_lsns_count_on_over_restarts_and_trims() -> None:
    bench = Bench("a")
    bench.world.boot()
    bench.give("a", Outputs(tuple(f"r{number}" for number in range(1, 11))))
    bench.run(SECOND)
    bench.give("a", Outputs(trim=9))
    disk = bench.node("a").disk
    assert disk is not None and 5 < disk.first_lsn <= 9 and disk.last_lsn == 10
    bench.world.crash("a", 10)
    bench.run(2 * SECOND)
    assert bench.logs["a"][-1][2] == tuple(f"r{number}" for number in range(disk.first_lsn, 11))
    bench.give("a", Outputs(("next",), (WhenDurable(11, "a", Ping(1)),)))
    bench.run(3 * SECOND)
    assert bench.received("a") == [Ping(1)]


@pytest.mark.parametrize("how", [ERROR, FULL])
def test_a_failed_disk_stops_the_process_or_tells_it(how: str) -> None:
    for hearing in (False, True):
        bench = Bench("a", "b", hearing=hearing)
        bench.world.boot()
        disk = bench.node("a").disk
        assert disk is not None
        disk.failing = how
        bench.give("a", Outputs(("r1",), (WhenDurable(1, "b", Ping(1)),)))
        bench.run(100 * MS)
        assert bench.received("b") == []
        assert bench.node("a").state is (State.UP if hearing else State.DOWN)
        assert ("disk failed" in bench.kinds("a")) is hearing
        # What it writes now is nowhere, and what waits for it never leaves.
        if hearing:
            bench.give("a", Outputs(("r2",), (WhenDurable(2, "b", Ping(2)),)))
        disk.failing = ""
        bench.world.crash("a", 10)
        bench.run(2 * SECOND)
        assert bench.logs["a"][-1][0] == "start" and bench.received("b") == []
        if how == FULL:
            assert bench.logs["a"][-1][2] == ()


def test_a_sealed_log_takes_nothing_more_and_its_writer_begins_another() -> None:
    bench = Bench("a", "b", hearing=True)
    logs.Logs(bench.world)
    bench.world.boot()
    bench.give("a", Outputs(("r1",)))
    bench.run(SECOND)
    bench.give("b", Outputs(send=(("logs", logs.Seal(1, "a/1")), ("logs", logs.ReadLog(2, "c/1")))))
    bench.run(2 * SECOND)
    assert sorted(bench.received("b"), key=lambda answer: answer.request) == [  # type: ignore[attr-defined]
        logs.LogRecords(1, "a/1", 1, ("r1",), True),
        logs.NoLog(2, "c/1"),
    ]
    assert "disk failed" not in bench.kinds("a")
    bench.give("a", Outputs(("r2",), (WhenDurable(2, "b", Ping(2)),)))
    bench.run(3 * SECOND)
    assert "disk failed" in bench.kinds("a") and Ping(2) not in bench.received("b")
    bench.world.crash("a", 10)
    bench.run(4 * SECOND)
    assert bench.logs["a"][-1] == ("start", 2, (), False, 1, "a/2")
    bench.give("b", Outputs(send=(("logs", logs.ReadLog(3, "a/1")),)))
    bench.run(5 * SECOND)
    assert bench.received("b")[-1] == logs.LogRecords(3, "a/1", 1, ("r1",), True)


def test_a_log_elsewhere_is_durable_only_while_it_can_be_reached() -> None:
    bench = Bench("a")
    logs.Logs(bench.world)
    bench.world.boot()
    bench.world.network.block([("a", "logs")])
    bench.give("a", Outputs(("r1",)))
    bench.run(SECOND)
    assert "persisted" not in bench.kinds("a")
    bench.world.network.unblock(bench.world.now_us, [("a", "logs")])
    bench.run(2 * SECOND)
    assert "persisted" in bench.kinds("a")


# Processes and clocks.


def test_a_paused_process_gets_late_what_was_due() -> None:
    bench = Bench("a", "b")
    bench.replies["a"]["start"] = Outputs(timers=((EPOCH_MS + 100, "lease"),))
    bench.world.boot()
    bench.world.pause("a")
    bench.give("b", Outputs(send=(("a", Ping(1)),)))
    bench.run(5 * SECOND)
    assert bench.kinds("a") == ["start"]
    bench.world.resume("a")
    bench.run(6 * SECOND)
    assert [(entry[0], entry[-1]) for entry in bench.logs["a"][1:]] == [
        ("receive", EPOCH_MS + 5_000),
        ("timer", EPOCH_MS + 5_000),
    ]


def test_timers_and_held_events_die_with_the_process() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.give("a", Outputs(timers=((EPOCH_MS + 100, "old"),)))
    bench.world.pause("a")
    bench.give("b", Outputs(send=(("a", Ping(1)),)))
    bench.run(50 * MS)
    bench.world.crash("a", 10)
    bench.run(SECOND)
    assert bench.kinds("a") == ["start", "start"]


def test_a_process_crashes_at_the_nth_passage_of_a_probe() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.world.crash_at("received", 3, SECOND, "b")
    bench.give("a", Outputs(send=tuple(("b", Ping(number)) for number in range(4))))
    bench.run(500 * MS)
    assert bench.received("b") == [Ping(0), Ping(1), Ping(2)]
    assert bench.node("b").state is State.DOWN and bench.world.crash_points == {"received": 1}
    assert bench.world.to_dead == 1
    bench.run(2 * SECOND)
    assert bench.node("b").incarnation == 2


def test_a_process_can_crash_between_writing_and_sending() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.world.crash_at(AFTER_PERSIST, 1, SECOND)
    bench.give("a", Outputs(("r1",), (("b", Ping(1)),)))
    bench.run(500 * MS)
    assert bench.node("a").state is State.DOWN and bench.received("b") == []


def test_stop_is_a_crash_and_any_other_exception_a_violation() -> None:
    def stop(message: object) -> Outputs:
        raise Stop("the disk is on fire") if message == Ping(1) else ValueError("a bug")

    bench = Bench("a", "b")
    bench.world.boot()
    process = bench.node("b").process
    assert process is not None
    process.receive = lambda sender, message, now_ms: stop(message)  # type: ignore[method-assign]
    bench.give("a", Outputs(send=(("b", Ping(1)),)))
    bench.run(100 * MS)
    assert bench.node("b").state is State.DOWN and bench.world.stopped == 1
    bench.run(SECOND)
    process = bench.node("b").process
    assert process is not None
    process.receive = lambda sender, message, now_ms: stop(message)  # type: ignore[method-assign]
    bench.give("a", Outputs(send=(("b", Ping(2)),)))
    with pytest.raises(Violation, match="b raised ValueError: a bug"):
        bench.run(2 * SECOND)


def test_a_call_that_takes_time_delays_its_outputs_and_what_comes_next() -> None:
    bench = Bench("a", "b")
    bench.world.boot()
    bench.node("a").spend(300 * MS)
    bench.give("a", Outputs(send=(("b", Ping(1)),)))
    bench.give("b", Outputs(send=(("a", Ping(2)),)))
    bench.run(250 * MS)
    assert bench.received("a") == [] and bench.received("b") == []
    bench.run(SECOND)
    assert bench.received("a") == [Ping(2)] and bench.received("b") == [Ping(1)]
    assert bench.logs["a"][-1][-1] == EPOCH_MS + 300


def test_a_clock_is_off_and_drifts_and_never_goes_back() -> None:
    clock = Clock()
    clock.set(0, 250, 1_000)
    assert clock.now_ms(0) == EPOCH_MS + 250
    assert clock.now_ms(10 * SECOND) == EPOCH_MS + 250 + 10_010
    for at_ms in (EPOCH_MS + 300, EPOCH_MS + 7_777):
        when_us = clock.when_us(at_ms)
        fresh = Clock()
        fresh.set(0, 250, 1_000)
        assert fresh.now_ms(when_us - 1) < at_ms <= fresh.now_ms(when_us)
    clock.set(10 * SECOND, -250, 0)
    assert clock.now_ms(10 * SECOND) == EPOCH_MS + 10_260
    assert clock.now_ms(11 * SECOND) == EPOCH_MS + 10_750


def test_a_timer_fires_by_the_clock_of_its_process() -> None:
    bench = Bench("a")
    bench.node("a").clock.set(0, -200, 0)
    bench.world.boot()
    bench.give("a", Outputs(timers=((EPOCH_MS + 100, "t"),)))
    bench.run(299 * MS)
    assert bench.kinds("a") == ["start"]
    bench.node("a").clock.set(bench.world.now_us, -300, 0)
    bench.run(399 * MS)
    assert bench.kinds("a") == ["start"]
    bench.run(400 * MS)
    assert bench.logs["a"][-1] == ("timer", "t", EPOCH_MS + 100)


# ZooKeeper.


class ZkBench(Bench):
    def __init__(self, *names: str, timeout_ms: int = 3_000) -> None:
        super().__init__(*names)
        self.zookeeper = zk.ZooKeeper(self.world)
        for name in names:
            self.replies[name]["start"] = Outputs(send=(("zookeeper", zk.Connect(timeout_ms)),))
        self.world.boot()
        self.run(10 * MS)

    def ask(self, name: str, *requests: object) -> list[object]:
        """What comes within 50 ms."""
        before = len(self.received(name))
        self.give(name, Outputs(send=tuple(("zookeeper", request) for request in requests)))
        self.run(self.world.now_us + 50 * MS)
        return self.received(name)[before:]

    def states(self, name: str) -> list[str]:
        return [message.state for message in self.received(name) if isinstance(message, zk.Session)]


def test_zookeeper_stores_compares_and_counts() -> None:
    bench = ZkBench("a")
    answers = bench.ask(
        "a",
        zk.Create(1, "/n", b"one"),
        zk.Create(2, "/n"),
        zk.Set(3, "/n", b"two", 0),
        zk.Set(4, "/n", b"three", 0),
        zk.Get(5, "/n"),
        zk.Create(6, "/n/x-", sequence=True),
        zk.Create(7, "/n/x-", sequence=True),
        zk.Children(8, "/n"),
        zk.Delete(9, "/n"),
        zk.Exists(10, "/no"),
        zk.Create(11, "/no/child"),
    )
    by_request = {answer.request: answer for answer in answers if isinstance(answer, zk.Answer)}
    assert by_request[1].value == "/n" and by_request[2].error == zk.NODE_EXISTS
    assert by_request[3].stat is not None and by_request[3].stat.version == 1
    assert by_request[4].error == zk.BAD_VERSION and by_request[5].value == b"two"
    assert by_request[8].value == ("x-0000000000", "x-0000000001")
    assert by_request[9].error == zk.NOT_EMPTY
    assert by_request[10].value is False and by_request[11].error == zk.NO_NODE


def test_zookeeper_multi_is_all_or_nothing() -> None:
    bench = ZkBench("a")
    bench.zookeeper.ensure("/epoch", b"1")
    refused = zk.Multi(1, (zk.Create(0, "/x"), zk.Check(0, "/epoch", 7)))
    done = zk.Multi(2, (zk.Create(0, "/y"), zk.Check(0, "/epoch", 0), zk.Set(0, "/epoch", b"2")))
    first, second = bench.ask("a", refused, done)
    assert isinstance(first, zk.Answer) and first.error == zk.BAD_VERSION and bench.zookeeper.peek("/x") is None
    assert isinstance(second, zk.Answer) and second.value == ("/y", None, None)
    assert bench.zookeeper.peek("/epoch") == b"2"


def test_zookeeper_watches_fire_once_and_before_the_new_data_is_seen() -> None:
    bench = ZkBench("a", "b")
    bench.zookeeper.ensure("/n")
    bench.ask("a", zk.Get(1, "/n", watch=True), zk.Children(2, "/", watch=True), zk.Exists(3, "/later", watch=True))
    bench.ask("b", zk.Set(1, "/n", b"x"), zk.Set(2, "/n", b"y"), zk.Create(3, "/later"))
    watched = [message for message in bench.received("a") if isinstance(message, zk.Watched)]
    assert watched == [zk.Watched(zk.CHANGED, "/n"), zk.Watched(zk.CREATED, "/later"), zk.Watched(zk.CHILD, "/")]


def test_an_ephemeral_node_goes_with_its_session() -> None:
    bench = ZkBench("a", "b")
    bench.ask("a", zk.Create(1, "/a", b"", True), zk.Create(2, "/a/child"))
    assert bench.received("a")[-1] == zk.Answer(2, error=zk.NO_CHILDREN_FOR_EPHEMERALS)
    bench.ask("b", zk.Exists(1, "/a", watch=True))
    bench.world.crash("a")
    bench.run(1_500 * MS)
    assert bench.zookeeper.peek("/a") is not None
    bench.run(5 * SECOND)
    assert bench.zookeeper.peek("/a") is None
    assert bench.received("b")[-1] == zk.Watched(zk.DELETED, "/a")


def test_a_client_that_cannot_reach_zookeeper_is_suspended_and_then_lost() -> None:
    bench = ZkBench("a")
    bench.ask("a", zk.Create(1, "/a", b"", True))
    bench.world.network.block([("zookeeper", "a")])
    bench.give("a", Outputs(send=(("zookeeper", zk.Create(2, "/done")),)))
    bench.run(4 * SECOND)
    # It was done, but nobody told the client.
    assert bench.zookeeper.peek("/done") is not None
    assert bench.states("a") == [zk.CONNECTED, zk.SUSPENDED]
    assert zk.Answer(2, error=zk.CONNECTION_LOSS) in bench.received("a")
    assert bench.ask("a", zk.Get(3, "/")) == [zk.Answer(3, error=zk.CONNECTION_LOSS)]
    bench.run(10 * SECOND)
    assert bench.zookeeper.peek("/a") is None and bench.states("a") == [zk.CONNECTED, zk.SUSPENDED]
    bench.world.network.unblock(bench.world.now_us, [("zookeeper", "a")])
    bench.run(11 * SECOND)
    assert bench.states("a") == [zk.CONNECTED, zk.SUSPENDED, zk.LOST]
    assert bench.ask("a", zk.Get(4, "/")) == [zk.Answer(4, error=zk.SESSION_EXPIRED)]
    bench.ask("a", zk.Connect(3_000))
    assert bench.states("a")[-1] == zk.CONNECTED


def test_a_short_partition_only_delays_what_zookeeper_answers() -> None:
    bench = ZkBench("a")
    bench.world.network.block([("a", "zookeeper")])
    assert bench.ask("a", zk.Create(1, "/a"), zk.Create(2, "/b")) == []
    bench.world.network.unblock(bench.world.now_us, [("a", "zookeeper")])
    bench.run(bench.world.now_us + SECOND)
    assert [message.value for message in bench.received("a")[1:]] == ["/a", "/b"]  # type: ignore[attr-defined]
    assert bench.states("a") == [zk.CONNECTED]


def test_a_paused_client_loses_its_session_and_hears_of_it_last() -> None:
    bench = ZkBench("a", "b")
    bench.ask("a", zk.Create(1, "/a", b"", True))
    bench.world.pause("a")
    bench.give("b", Outputs(send=(("a", Ping(1)),)))
    bench.run(8 * SECOND)
    assert bench.zookeeper.peek("/a") is None
    bench.world.resume("a")
    bench.run(12 * SECOND)
    last = bench.received("a")[-3:]
    assert last[0] == Ping(1) and [state.state for state in last[1:]] == [zk.SUSPENDED, zk.LOST]  # type: ignore[attr-defined]


def test_zookeeper_faults_expire_disconnect_and_slow_down() -> None:
    bench = ZkBench("a")
    around = Surroundings(bench.world, bench.zookeeper)
    assert bench.zookeeper.expire("a") and not bench.zookeeper.expire("a")
    bench.run(2 * SECOND)
    assert bench.states("a")[-1] == zk.LOST
    bench.ask("a", zk.Connect(3_000))
    assert bench.zookeeper.disconnect("a", 500 * MS)
    bench.run(4 * SECOND)
    assert bench.states("a")[-2:] == [zk.SUSPENDED, zk.CONNECTED]
    slow = KINDS["zk_slow"].begin(around, Planned(0, "zk_slow", (), 0))
    assert slow is not None and bench.ask("a", zk.Get(1, "/")) == []
    slow()
    bench.run(6 * SECOND)
    assert bench.ask("a", zk.Get(2, "/")) != []


# The store.


def write(store: Store, *keys: bytes) -> None:
    store.write([[Cell(key, 5, b"v")] for key in keys], [], {"meta": b"m"}, lambda: None)


def test_the_store_fails_in_every_way() -> None:
    bench = Bench("a")
    shared = SimStore(bench.world)
    store = shared.for_host(bench.node("a"))
    write(store, b"k0")
    assert store.get(b"k0", 9) == Cell(b"k0", 5, b"v") and store.meta("meta") == b"m"
    for fault, stored in ((TIMEOUT_BEFORE, False), (TIMEOUT_APPLIED, True), (APPLIED_LATE, False)):
        shared.arm(fault, "a")
        key = fault.encode()
        with pytest.raises(Unavailable, match="unknown how much"):
            write(store, key)
        assert (shared.inner.get(key, 9) is not None) is stored
    bench.run(60 * SECOND)
    assert store.get(APPLIED_LATE.encode(), 9) is not None
    counts = set()
    for number in range(30):
        keys = [b"p%d.%d" % (number, part) for part in range(3)]
        shared.arm(PARTIAL)
        with pytest.raises(Unavailable):
            write(store, *keys)
        found = [shared.inner.get(key, 9) is not None for key in keys]
        assert found == sorted(found, reverse=True)
        counts.add(sum(found))
    assert counts == {0, 1, 2, 3}


def test_a_slow_store_takes_the_time_of_its_process() -> None:
    bench = Bench("a")
    shared = SimStore(bench.world)
    shared.slow += 1
    shared.for_host(bench.node("a")).get(b"k", 1)
    assert bench.node("a").spent_us == SLOW_CALL_US
    shared.heal()
    shared.fail_reads(1)
    with pytest.raises(Unavailable, match="timed out"):
        shared.for_host(bench.node("a")).scan(b"a", b"z", 1, 1)


# Plans, checkers, the command line.


def test_a_plan_is_drawn_from_the_seed_and_all_of_it_ends_with_the_healing() -> None:
    for seed in range(1, 6):
        bench, other = Bench("a", "b", "c", seed=seed), Bench("a", "b", "c", seed=seed)
        mix = Mix(per_second=20, crash_points=("received",), spared=("c",))
        around, again = (
            Surroundings(each.world, zk.ZooKeeper(each.world), (SimStore(each.world),), mix) for each in (bench, other)
        )
        plan = draw_plan(around, 5 * SECOND)
        assert plan == draw_plan(again, 5 * SECOND) and plan == tuple(sorted(plan))
        assert all(fault.targets != ("c",) for fault in plan if fault.kind in ("crash", "pause", "disk_full"))
        faults = Faults(around, plan)
        bench.world.boot()
        bench.run(5 * SECOND)
        faults.heal()
        bench.run(30 * SECOND)
        assert sum(bench.world.faults.values()) > 10
        links = bench.world.network._links.values()
        assert all(link.open and not link.slow and not link.lossy for link in links)
        for node in bench.world.nodes.values():
            assert node.state is State.UP and node.disk is not None and not node.disk.failing and not node.disk.slow


def test_every_kind_of_fault_can_be_planned() -> None:
    bench = Bench("a", "b")
    around = Surroundings(bench.world, zk.ZooKeeper(bench.world), (SimStore(bench.world),))
    for name, kind in KINDS.items():
        drawn = kind.draw(around, bench.world.streams[name])
        assert drawn is not None, name
        assert kind.longest_ms(around.mix) >= 0


class NoThree(Checker):
    kinds = ("counted", "handled", "deliver")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def observe(self, event: Event) -> None:
        self.seen.append(event.what)
        if event.what == "counted" and event.detail == (3,):
            raise self.violation("three was counted", event.process)


def test_a_checker_sees_what_it_asked_for_and_a_violation_tells_the_story() -> None:
    bench = Bench("a", "b")
    checker = NoThree()
    bench.world.watch([checker])
    bench.world.boot()
    bench.give("b", Outputs(send=(("a", Ping(1)),)))
    bench.run(SECOND)
    bench.node("a").note("counted", 2)
    assert "handled" in checker.seen and "deliver" in checker.seen and checker.seen[-1] == "counted"
    with pytest.raises(Violation, match="NoThree: three was counted") as raised:
        bench.node("a").note("counted", 3)
    assert raised.value.concerns == ("a",)
    story = bench.world.trace.story(("counted",), 2)
    assert [line.split() for line in story] == [["1.000000", "a", "counted", number] for number in ("2", "3")]


def test_the_faults_that_matter_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = runner.find_mutant(toy.SCENARIO, "answer without the backup")
    whole = run_seed(toy.SCENARIO, 1000, mutant=mutant)
    small = runner.shrink(toy.SCENARIO, 1000, mutant)
    assert whole.violation is not None and small is not None and small.violation is not None
    assert len(small.plan) < len(whole.plan) and whole.violation.story
    assert "are enough" in capsys.readouterr().out
    assert runner.shrink(toy.SCENARIO, 1000) is None


def test_the_command_line_replays_runs_many_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = tmp_path / "progress.json"
    assert command_line.main(["--scenario", "toy", "--seeds", "2", "--first", "20", "--progress", str(progress)]) == 0
    assert "toy: 2 seeds (1 twice)" in capsys.readouterr().out
    assert command_line.main(["--scenario", "toy", "--seeds", "3", "--first", "20", "--progress", str(progress)]) == 0
    out = capsys.readouterr().out
    assert "going on with seed 22" in out and "toy: 3 seeds" in out and "0 violations" in out
    bad = ["--scenario", "toy", "--mutant", "no dedup of retries"]
    assert command_line.main([*bad, "--seeds", "1", "--first", "1000"]) == 1
    out = capsys.readouterr().out
    assert 'python -m tests.sim --scenario toy --seed 1000 --mutant "no dedup of retries"' in out
    assert command_line.main([*bad, "--seed", "1000", "--last", "3"]) == 1
    assert "VIOLATION ExactlyOnce" in capsys.readouterr().out
    assert command_line.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}: " in out for name in SCENARIOS)
    with pytest.raises(SystemExit):
        command_line.main(["--scenario", "toy", "--mutant", "no such thing"])


def named_points(package: ModuleType) -> set[str]:
    """All that its machines call `probe` with."""
    found: set[str] = set()
    root = Path(package.__path__[0])
    for place in root.rglob("*.py"):
        text = place.read_text()
        if ".probe(" not in text:
            continue
        module = importlib.import_module(".".join((package.__name__, *place.relative_to(root).with_suffix("").parts)))
        for name in re.findall(r"\b[a-z_.]*[A-Z_]{2,}\b", " ".join(re.findall(r"\.probe\((.*)\)", text))):
            point = attrgetter(name)(module)
            assert isinstance(point, str), name
            found.add(point)
    return found


def test_every_point_that_machines_name_is_one_that_some_scenario_must_crash_them_at() -> None:
    """Whether it does is judged where its many seeds are run: `runner.not_covered`."""
    crashed = {point for scenario in SCENARIOS.values() for point in scenario.crash_points}
    named = named_points(ltm) | named_points(coordinator)
    assert len(named) >= 50 and named - crashed == set()


def test_what_many_seeds_did_not_show_is_named() -> None:
    result = Result(seeds=1)
    result.probes["answer"] = 1
    missing = runner.not_covered(toy.SCENARIO, result)
    assert "probe 'take over' never fired" in missing and "probe 'answer' never fired" not in missing
    assert any("crash point" in line for line in missing) and "0.0 answers per seed, not 60" in missing
    assert runner.not_covered(Scenario("none", "", toy.SCENARIO.build), Result()) == ["no seeds were run"]
