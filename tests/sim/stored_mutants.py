"""Known-bad variants of what a store changes: checkpoints, trimming, loads, evictions and moves by the store, each
wrong in one way.

That what was loaded before an eviction is not believed, and that a reader who waited looks again for the first rows of
a range, is in tests/unit/test_loading.py, and that versions are kept until they are stored in
tests/unit/test_stored_cells.py: too much has to coincide before a client sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest.mock import patch

from viewtide.coordinator.cluster.leader import Leader
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant, History
from viewtide.ltm.cluster import checkpoint, saving, taking_over
from viewtide.ltm.cluster.hosted import Hosted
from viewtide.ltm.cluster.loading import Load, Loader
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.saving import Memory, Saver
from viewtide.ltm.cluster.store_messages import NEWEST, Answer, LoadedCells, Request, WriteCells
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.two_phase.journal import Journal, Stored
from viewtide.ltm.two_phase.messages import FOREVER
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.records import Adopted
from viewtide.ltm.two_phase.stored_cells import StoredCells

from .scenario import Mutant

#: Directed scenarios.
CRASHES, ROOMY, LATE = "stored-crashes", "stored-crashes-roomy", "stored-late"
SLOW_DISKS = "stored-slow-disks"
VIEWS, VIEWS_CRASHES = "stored-views", "stored-views-crashes"
SEEDS_MAX = 60


def _returns(owner: type, name: str, value: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(owner, name, lambda self, *arguments: value)


def _patched(target: object, name: str, replacement: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(target, name, replacement)


_save_next = Member._save_next


def _trim_first(self: Member, hosted: Hosted, saver: Saver, lsn: int) -> None:
    if saver._made is not None:
        hosted.saved(saver.position, (saver._made.segment, saver._made.lsn))
        self._trim_log()
    _save_next(self, hosted, saver, lsn)


_base_at = taking_over._base_at


def _base_is_newest(stored: Stored, adopted: list[Adopted], key: bytes) -> int | None:
    return None if _base_at(stored, adopted, key) is None else NEWEST


def _base_as_if_never_moved(stored: Stored, adopted: list[Adopted], key: bytes) -> int:
    return stored.of(key)


_learn = Loader._learn


def _learn_too_much(self: Loader, load: Load, answer: LoadedCells) -> None:
    whole = tuple((found, stop) for (found, _), (_, stop) in zip(answer.ranges, load.ranges, strict=True))
    _learn(self, load, answer._replace(ranges=whole))


_ask_store = Member._ask_store


def _ask_at_once(self: Member, make: Callable[[int], Request], then: Callable[[Answer], None], lsn: int = 0) -> None:
    _ask_store(self, make, then)


def _forget_all_segments(self: Leader, ranges: RangeMap) -> RangeMap:
    for log, host in ranges.hosts.items():
        if len(host.segments) > 1:
            ranges = ranges.forget_segments(log)
    return ranges


@contextmanager
def _one_name_for_all_lives() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (checkpoint, saving):
            stack.enter_context(patch.object(module, "name_of", lambda log, incarnation: f"checkpoint/{log}"))
        yield


_write_entry = Saver._write_entry


def _write_unnumbered(self: Saver, name: str, data: bytes) -> Callable[[int], WriteCells]:
    write = _write_entry(self, name, data)

    def unnumbered(number: int) -> WriteCells:
        ((key, _, row),) = write(number).cells
        return WriteCells(number, ((key, 1, row),))

    return unnumbered


@contextmanager
def _not_followed() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(FeedingParticipant, "followed_ts", lambda self: FOREVER))
        stack.enter_context(patch.object(Stored, "lowest", property(lambda self: self.ts)))
        yield


MUTANTS = (
    Mutant("a late write hides a newer entry", _patched(Saver, "_write_entry", _write_unnumbered), 60, ROOMY),
    Mutant("log trimmed before the checkpoint is durable", _patched(Member, "_save_next", _trim_first), 60, CRASHES),
    Mutant("replay begins with a torn checkpoint", _patched(taking_over, "_base_at", _base_is_newest), 60, CRASHES),
    Mutant("V6: votes are forgotten with the log", _returns(Journal, "kept", []), 60, CRASHES),
    Mutant("V6: transactions are forgotten with the log", _returns(Memory, "add", []), 60),
    Mutant("keys move before their rows are in the store", _returns(Member, "_is_flushed", True), 60, LATE),
    Mutant(
        "keys that moved are replayed as if they had not",
        _patched(taking_over, "_base_at", _base_as_if_never_moved),
        60,
        LATE,
    ),
    Mutant("dirty keys are forgotten", _returns(StoredCells, "_unstored", ()), 60),
    Mutant("keys in use are forgotten", _returns(Loader, "_in_use", (set(), [])), 60),
    Mutant("keys beyond a page are taken for absent", _patched(Loader, "_learn", _learn_too_much), 60),
    Mutant("what is not durable goes to the store", _patched(Member, "_ask_store", _ask_at_once), 60, SLOW_DISKS),
    Mutant("H3: a checkpoint is no floor", _returns(Saver, "_close", None), 60),
    Mutant("a checkpoint passes votes in doubt", _returns(Participant, "lowest_undecided", FOREVER), 60),
    Mutant("all lives of a log write one entry", _one_name_for_all_lives, 60, LATE),
    Mutant(
        "logs of former lives are forgotten at once", _patched(Leader, "_forget_segments", _forget_all_segments), 60
    ),
    Mutant("log trimmed before all deferred views have passed it", _not_followed, 60, VIEWS_CRASHES),
    Mutant("rows of an open step go to the store", _returns(History, "final_ts", {}), 60, VIEWS),
)
