"""Load on a cluster while its processes die: what each writer was told, and an auditor who believes nothing.

Every transaction of a writer moves money between two accounts and counts itself, in two counters that lie far apart.
So at every moment, whoever looks: both counters of a writer are equal, and at least what the writer was told of before;
the sums of both views are what all accounts had at the beginning.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from random import Random

import viewtide as vt

ACCOUNTS, BRANCHES, BALANCE = 60, 5, 1_000
WRITERS = 3
#: The second counter of a writer has this number more: it is in another range of keys.
FAR = 1_000
#: A counter of its own, never 0, for those who try what must not succeed.
STALE = 500
BY_BRANCH = "SELECT branch, SUM(balance) AS balance, COUNT(*) AS n FROM accounts GROUP BY branch"
#: Its views: one in the writers' transactions, one behind them.
SYNC, DEFERRED = "by_branch", "late"
#: Between two looks of the auditor: the machine is for the cluster.
LOOK_S = 0.2
#: Between two transactions of a writer, for the same reason.
THINK_S = 0.05
JOIN_S_MAX = 60.0


def create(db: vt.Database) -> None:
    db.create_table("accounts", {"id": int, "branch": int, "balance": int}, key="id")
    db.create_table("counters", {"id": int, "n": int}, key="id")
    counters = [*range(WRITERS), *range(FAR, FAR + WRITERS), STALE]
    with db.transaction() as tx:
        tx.insert("accounts", [{"id": n, "branch": n % BRANCHES, "balance": BALANCE} for n in range(ACCOUNTS)])
        tx.insert("counters", [{"id": number, "n": int(number == STALE)} for number in counters])
    db.create_view(SYNC, BY_BRANCH)
    db.create_view(DEFERRED, BY_BRANCH, refresh="100ms")


def number_of(row: vt.Row | None, column: str = "n") -> int:
    assert row is not None
    value = row[column]
    assert isinstance(value, int)
    return value


def is_expected(error: vt.Error) -> bool:
    """While processes die, a client hears that it may try again, or that its commit may have happened: nothing else."""
    return error.retryable or isinstance(error, vt.CommitUnknown)


class Worker(threading.Thread):
    """Does something again and again with a client of its own; what it does not expect is its `failure`."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name=name, daemon=True)
        self._address = address
        self._stopping = threading.Event()
        self.failure: BaseException | None = None
        self.errors = 0

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._connected()
        except BaseException as error:
            self.failure = error

    def _connected(self) -> None:
        try:
            with vt.connect(self._address) as db:
                while not self._stopping.is_set():
                    self._tried(lambda: self.work(db))
        except vt.Unavailable:
            self.errors += 1

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except vt.Error as error:
            if not is_expected(error):
                raise
            self.errors += 1

    def work(self, db: vt.Database) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._stopping.set()
        self.join(JOIN_S_MAX)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure


class Writer(Worker):
    def __init__(self, number: int, address: str) -> None:
        super().__init__(f"writer-{number}", address)
        self._number = number
        self._chance = Random(number)
        #: How often it was told that its transaction is committed, and that nobody knows.
        self.acknowledged = self.unknown = 0
        #: When it was told, on the monotonic clock.
        self.told_s: list[float] = [time.monotonic()]

    def work(self, db: vt.Database) -> None:
        try:
            count = db.run(self._transfer, *self._chance.sample(range(ACCOUNTS), 2), self._chance.randint(1, 9))
        except vt.CommitUnknown:
            self.unknown += 1
            raise
        self.acknowledged += 1
        self.told_s.append(time.monotonic())
        assert self.acknowledged <= count <= self.acknowledged + self.unknown, (
            f"{self.name} was told of {self.acknowledged} commits, {self.unknown} are unknown, and {count} happened"
        )
        self._stopping.wait(THINK_S)

    def _transfer(self, tx: vt.Transaction, giver: int, taker: int, amount: int) -> int:
        count = number_of(tx.get("counters", self._number)) + 1
        for counter in (self._number, FAR + self._number):
            tx.update("counters", counter, {"n": count})
        for account, change in ((giver, -amount), (taker, amount)):
            tx.update("accounts", account, {"balance": number_of(tx.get("accounts", account), "balance") + change})
        return count

    def told_since(self, since_s: float) -> int:
        told = self.told_s
        return len(told) - bisect_right(told, since_s)

    def longest_s(self, since_s: float) -> float:
        """The longest time without an acknowledgement that was not over at `since_s`; up to the last one."""
        told = list(self.told_s)
        return max((two - one for one, two in pairwise(told) if two >= since_s), default=0.0)


class Auditor(Worker):
    def __init__(self, address: str, writers: list[Writer]) -> None:
        super().__init__("auditor", address)
        self._writers = writers
        self.looks = 0

    def work(self, db: vt.Database) -> None:
        audit(db, self._writers)
        self.looks += 1
        self._stopping.wait(LOOK_S)


def audit(db: vt.Database, writers: list[Writer]) -> None:
    """Nothing that was acknowledged is lost, nothing is half there."""
    before = [writer.acknowledged for writer in writers]
    with db.snapshot() as snapshot:
        near, far = (snapshot.get_many("counters", range(at, at + len(writers))) for at in (0, FAR))
        accounts = {int(str(row["id"])): number_of(row, "balance") for row in snapshot.scan("accounts")}
        shown = {row["branch"]: (row["balance"], row["n"]) for row in snapshot.view(SYNC).rows()}
    assert list(map(number_of, near)) == list(map(number_of, far)), "a transaction is half there"
    for writer, told, row in zip(writers, before, near, strict=True):
        assert number_of(row) >= told, f"{writer.name} was told of {told} commits, and {number_of(row)} are there"
    sums = {branch: sum(accounts[n] for n in range(branch, ACCOUNTS, BRANCHES)) for branch in range(BRANCHES)}
    assert sum(sums.values()) == ACCOUNTS * BALANCE, "a transfer is half there"
    assert shown == {branch: (balance, ACCOUNTS // BRANCHES) for branch, balance in sums.items()}
    late = list(db.view(DEFERRED).rows())
    assert sum(number_of(row, "balance") for row in late) == ACCOUNTS * BALANCE, "a step of a view is half there"
