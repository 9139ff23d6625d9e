"""Known-bad variants of the cluster's machines: each rule of membership, leadership and moves left out, one by one.

That a leader waits until its epoch is acknowledged, and how long it waits for those who do not, is in
tests/unit/test_cluster_leader.py: too much has to coincide before a client sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

from viewtide.coordinator.cluster.leader import Leader
from viewtide.ltm.cluster.hosted import Hosted
from viewtide.ltm.cluster.log_messages import LOGS, ReadLog
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.two_phase import hand_over
from viewtide.ltm.two_phase.marks import Marks
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.records import Adopted

from .scenario import Mutant

#: Directed scenarios, for what a drawn plan rarely does.
ZOMBIES, PAUSED = "cluster-zombies", "cluster-paused-leader"
STALE, RESTARTS = "cluster-stale", "cluster-restarts"
SLOW_DISKS, ORPHANS = "cluster-slow-disks", "cluster-orphans"


def _returns(owner: type, name: str, value: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(owner, name, lambda self, *arguments: value)


@contextmanager
def _no_fencing() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(Member, "_is_leased", lambda self, at: True))
        stack.enter_context(patch.object(Member, "_is_ahead", lambda self, message: False))
        yield


def _read_unsealed(self: Member, hosted: Hosted) -> None:
    for segment in hosted.segments:
        if segment not in hosted.found:
            self._number += 1
            self._send.append((LOGS, ReadLog(self._number, segment)))
    self._begin_if_read(hosted)


def _any_other(self: Member, ranges: RangeMap) -> bool:
    return ranges.epoch != self.map.epoch


def _forgetful_host(self: RangeMap, log: str, life: str) -> RangeMap:
    before = self.hosts.get(log, Hosting(0, ()))
    now = Hosting(before.incarnation + 1, (*before.segments[-1:], life))
    return replace(self, epoch=self.epoch + 1, hosts={**self.hosts, log: now})


_give_away = hand_over.give_away


def _without_memory(participant: Participant, start: bytes, stop: bytes | None) -> Adopted:
    return _give_away(participant, start, stop)._replace(committed=(), refused=())


MUTANTS = (
    Mutant("T3: no fencing: who lost its keys answers reads", _no_fencing, 60, STALE),
    Mutant(
        "T3: epoch not checked: timestamps of an earlier leader are taken",
        _returns(Member, "_is_of_old_term", False),
        60,
        ZOMBIES,
    ),
    Mutant("T3: lease not checked when timestamps are drawn", _returns(Leader, "_is_leased", True), 60, PAUSED),
    Mutant("V8: take-over without sealing", lambda: patch.object(Member, "_seal", _read_unsealed), 60, STALE),
    Mutant("H3: take-over and moves without a floor", _returns(Marks, "raise_floor", None), 60, RESTARTS),
    Mutant("V8: keys move before votes are decided", _returns(Member, "_is_held", False), 60, ORPHANS),
    Mutant("map adopted out of order", lambda: patch.object(Member, "_is_newer", _any_other), 60),
    Mutant("ownership not checked", _returns(Member, "_serves", True), 60),
    Mutant("a leader begins with its own clock", _returns(Leader, "_first_ts", 0), 60, ZOMBIES),
    Mutant("earlier logs are not replayed", lambda: patch.object(RangeMap, "host", _forgetful_host), 60),
    Mutant(
        "V6: memory of transactions stays behind",
        lambda: patch.object(hand_over, "give_away", _without_memory),
        60,
        ORPHANS,
    ),
    Mutant("adopted keys are not durable", _returns(Hosted, "is_durable", True), 60, SLOW_DISKS),
    Mutant("readers wait over a move", _returns(Participant, "refuse_readers", None), 60, SLOW_DISKS),
)
