"""Three LTM processes and two view managers: real ZooKeeper and ZeroMQ, logs in a shared directory; some are killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.workload import BRANCHES, key, tables, view_key
from viewtide.changetables.errors import Error
from viewtide.coordinator.transaction import ANY, Intent
from viewtide.coordinator.two_phase.messages import Outcome, Submit
from viewtide.coordinator.vms.groups import groups_of
from viewtide.coordinator.vms.step_rows import watermark_key, watermark_of
from viewtide.ltm.cluster.messages import MoveRange, Split
from viewtide.ltm.two_phase.messages import COMMITTED

from .running import Cluster, running, wait_for

pytestmark = pytest.mark.slow

LTMS = ("ltm-1", "ltm-2", "ltm-3")
#: Where the accounts are cut: each LTM has a third of them.
ACCOUNTS = 60


def put(number: int, balance: int) -> tuple[bytes, Intent]:
    return key("accounts", number), (ANY, (number, number % BRANCHES, balance), None, True)


def spread(cluster: Cluster) -> None:
    """Accounts go to all three."""
    cuts = [key("accounts", ACCOUNTS // 3), key("accounts", 2 * ACCOUNTS // 3), key("accounts", ACCOUNTS)]
    for cut in cuts:
        cluster.command(Split(0, cut))
    # Whoever was there first has got all of them.
    owner = cluster.map.process(cluster.map.logs[0])
    one, other = (name for name in LTMS if name != owner)
    cluster.command(MoveRange(0, cuts[0], cuts[1], cluster.log_of(one)))
    cluster.command(MoveRange(0, cuts[1], cuts[2], cluster.log_of(other)))
    wait_for("moves", lambda: not cluster.map.moves)


@pytest.fixture
def cluster(zookeeper_path: str, tmp_path: Path) -> Iterator[Cluster]:
    with running(zookeeper_path, tmp_path, *LTMS) as cluster:
        spread(cluster)
        yield cluster


class Writer:
    """Sets all three accounts of a triple, one in each LTM, to the same number, again and again."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        self._cluster = cluster
        self.place = place
        self.acknowledged = 0
        self.asked = 0
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._first = cluster.read(*self.keys).at
        self._thread.start()

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self.place + third * ACCOUNTS // 3 for third in range(3))

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(key("accounts", number) for number in self.numbers)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.asked += 1
            tx_id = (self.place * 1_000_000 + self.asked, self._first)
            writes = tuple(put(number, self.asked) for number in self.numbers)
            began = time.monotonic()
            try:
                outcome = self._cluster.commit(Submit(tx_id, False, (("accounts", writes),)))
            except (Error, TimeoutError):
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if outcome.state == COMMITTED:
                self.acknowledged = self.asked

    def go_on(self, commits: int = 5) -> None:
        """Until it has committed some more."""
        goal = self.acknowledged + commits
        wait_for(f"{commits} more commits of writer {self.place}", lambda: self.acknowledged >= goal)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def check(cluster: Cluster, writers: list[Writer]) -> None:
    """Nothing that was acknowledged is lost, nothing is half there, and the view is the sum of the rows."""
    keys = [key for writer in writers for key in writer.keys]
    branches = [view_key("by_branch", branch) for branch in range(BRANCHES)]
    found = cluster.read(*keys, *branches)
    rows = [row for _, row in found.rows]
    for place, writer in enumerate(writers):
        balances = {row[2] for row in rows[3 * place : 3 * place + 3] if row is not None}
        assert len(balances) == 1, (writer.place, rows[3 * place : 3 * place + 3])
        assert writer.acknowledged <= min(balances) <= writer.asked
    sums: dict[object, int] = {}
    for row in rows[: len(keys)]:
        assert row is not None
        sums[row[1]] = sums.get(row[1], 0) + row[2]
    view = tables().views["by_branch"]
    shown = [view.plan.output(row) for row in rows[len(keys) :] if row is not None]
    assert {row[0]: row[1] for row in shown} == sums


def test_transactions_over_three_processes(cluster: Cluster) -> None:
    at = cluster.read().at
    writes = (put(1, 10), put(21, 20), put(41, 30))
    outcome = cluster.commit(Submit((1, at), False, (("accounts", writes),)))
    assert isinstance(outcome, Outcome) and outcome.state == COMMITTED
    found = cluster.read(*(key("accounts", number) for number in (1, 21, 41, 2)))
    assert [row for _, row in found.rows] == [(1, 1, 10), (21, 1, 20), (41, 1, 30), None]
    assert {ts for ts, _ in found.rows[:3]} == {outcome.commit_ts}
    # The same tx_id by another coordinator is not executed again.
    again = cluster.ask(Submit((1, at), True, (("accounts", writes),)), "ltm-3.coordinator")
    assert (again.state, again.commit_ts) == (COMMITTED, outcome.commit_ts)
    assert cluster.stop("ltm-2") == 0


def test_killed_processes_are_replaced_and_come_back(cluster: Cluster) -> None:
    writers = [Writer(cluster, place) for place in range(3)]
    for writer in writers:
        writer.go_on()
    for name in LTMS:
        cluster.kill(name)
        for writer in writers:
            writer.go_on()
        cluster.start(name)
        wait_for(f"{name} is back", lambda name=name: cluster.log_of(name) and name in cluster.client.directory.peers)
    for writer in writers:
        writer.stop()
    check(cluster, writers)


def test_a_process_that_is_paused_past_its_lease_answers_nothing_old(cluster: Cluster) -> None:
    writers = [Writer(cluster, place) for place in range(3)]
    for writer in writers:
        writer.go_on()
    for name in LTMS:
        cluster.pause(name)
        # All of them need its keys: somebody else has them when they go on, after its session and its lease.
        for writer in writers:
            writer.go_on()
        cluster.resume(name)
        for writer in writers:
            writer.go_on()
        check_now(cluster, writers)
    for writer in writers:
        writer.stop()
    check(cluster, writers)


def check_now(cluster: Cluster, writers: list[Writer]) -> None:
    """What was acknowledged before is read by whoever asks, whomever he asks."""
    for name in LTMS:
        before = [writer.acknowledged for writer in writers]
        found = cluster.read(*(writer.keys[0] for writer in writers))
        for acknowledged, (_, row) in zip(before, found.rows, strict=True):
            assert row is not None and row[2] >= acknowledged, name


def test_deferred_views_are_refreshed(cluster: Cluster) -> None:
    cluster.start("vm-1", "vm-2")
    writer = Writer(cluster, 1)
    writer.go_on()
    groups = [group.key for group in groups_of(tables())]

    def watermarks() -> list[int]:
        return [watermark_of(row) for _, row in cluster.read(*map(watermark_key, groups)).rows]

    after = cluster.read().at
    wait_for("two steps of each group", lambda: min(watermarks()) > after)
    cluster.kill("vm-1")
    cluster.kill("ltm-1")
    writer.go_on()
    after = cluster.read().at
    wait_for("more steps", lambda: min(watermarks()) > after)
    writer.stop()
