"""The refresh of deferred views with one rule left out at a time, and other known-bad variants. Each must be caught.

That owners of one epoch of the map close a step (D3) is in tests/unit/test_cluster_vms.py: whoever gets keys begins
above W1 anyway, by a floor that was drawn later (H3), and everybody whom the newest map names is asked; what is left
needs too much to coincide before a client sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from unittest.mock import patch

from viewtide.coordinator.timestamps import MS_SHIFT
from viewtide.coordinator.transaction import ANY, Intent
from viewtide.coordinator.two_phase.messages import Intents, RowsAt
from viewtide.coordinator.vms import cluster_scheduler, cluster_subsystem
from viewtide.coordinator.vms.cluster_scheduler import SLOTS_PER_MANAGER, ClusterScheduler
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant, History
from viewtide.coordinator.vms.cluster_view_manager import ClusterViewManager, Gather
from viewtide.coordinator.vms.groups import Group
from viewtide.coordinator.vms.step_rows import Step, opened, step_key, step_of, watermark_key, watermark_of
from viewtide.ltm.two_phase.participant import Participant

from .scenario import Mutant

#: The names of directed scenarios.
SLOW, DISKS = "views-slow", "views-disks"

Change = tuple[object, str, object]


def _patched(*changes: Change) -> Callable[[], AbstractContextManager[object]]:
    def patches() -> AbstractContextManager[object]:
        stack = ExitStack()
        for target, name, replacement in changes:
            stack.enter_context(patch.object(target, name, replacement))
        return stack

    return patches


def _always(*arguments: object) -> bool:
    return True


def _nothing(*arguments: object) -> None:
    return None


def _no_keys(*arguments: object) -> tuple[bytes, ...]:
    return ()


# D1.


def _open_in_memory(self: ClusterScheduler, group: Group, read: RowsAt) -> Generator[object, object, Step]:
    """The step begins at once; nobody else hears of it."""
    slots = max(len(self._alive()), 1) * SLOTS_PER_MANAGER
    yield from ()
    return Step(group.key, watermark_of(read.rows[1][1]), read.at, slots)


_publication_rightly = ClusterScheduler._publication


def _publication_without_step(self: ClusterScheduler, step: Step, levels: int) -> dict[bytes, Intent]:
    writes = _publication_rightly(self, step, levels)
    del writes[step_key(step.group)]
    return writes


def _is_at_w0(self: ClusterScheduler, step: Step, read: RowsAt) -> bool:
    """There is no row to look at: whether nobody has published anything."""
    return len(read.rows) > 1 and watermark_of(read.rows[1][1]) == step.w0


def _published_over(self: ClusterScheduler, step: Step, levels: int) -> dict[bytes, Intent]:
    """Whatever the step's rows and the watermark are."""
    return {cell: (ANY, *intent[1:]) for cell, intent in _publication_rightly(self, step, levels).items()}


_submit_rightly = ClusterScheduler._submit


def _publish_unseen(
    self: ClusterScheduler, writes: dict[bytes, Intent], read: RowsAt, seen: tuple[bytes, ...]
) -> object:
    return _submit_rightly(self, writes, read, seen if len(writes) == 1 else ())


def _no_step(*arguments: object) -> None:
    return None


def _opened_over(step: Step) -> Intent:
    """Whether another one is open or not."""
    return (ANY, *opened(step)[1:])


def _seen_watermark(self: ClusterScheduler, group: int) -> tuple[bytes, ...]:
    return (watermark_key(group),)


def _is_of_same_w1(self: ClusterViewManager, step: Step, row: object) -> bool:
    found = step_of(row)  # type: ignore[arg-type]
    return found is not None and found.w1 == step.w1


def _is_open_with_w1(self: ClusterScheduler, step: Step, read: RowsAt) -> bool:
    found = step_of(read.rows[0][1])
    return found is not None and found.w1 == step.w1


def _open_step_anew(self: ClusterScheduler, read: RowsAt) -> Step | None:
    """Divided between those who are there now."""
    step = step_of(read.rows[0][1])
    return None if step is None else step._replace(slots=max(len(self._alive()), 1) * SLOTS_PER_MANAGER)


# D2.


def _is_known(step: Step, ts: int) -> bool:
    """Whatever is in the log when the marker goes out."""
    return step.w0 < ts


# T1.


def _w1_by_the_clock(self: ClusterScheduler, each: object, read_at: int) -> int:
    return max(read_at, self._now_ms << MS_SHIFT)


# D3.

_apply_rightly = Participant._apply


def _apply_at_commit(self: Participant, writes: object, refreshes: object, commit_ts: int, at: int) -> None:
    _apply_rightly(self, writes, refreshes, commit_ts, 0)  # type: ignore[arg-type]


# Slots.


def _row_over(self: ClusterViewManager, step: Step, level: int, slot: int) -> Intents:
    ((name, ((cell, intent),)),) = _row_rightly(self, step, level, slot)
    return ((name, ((cell, (ANY, *intent[1:])),)),)


_row_rightly = ClusterViewManager._row


def _missing_but_one(self: ClusterScheduler, step: Step, level: int, done: set[tuple[int, int]]) -> list[int]:
    return [slot for slot in range(step.slots - 1) if (level, slot) not in done]


def _publication_of_watermark(self: ClusterScheduler, step: Step, levels: int) -> dict[bytes, Intent]:
    writes = _publication_rightly(self, step, levels)
    return {cell: writes[cell] for cell in (watermark_key(step.group), step_key(step.group))}


def _levels_backwards(self: Group) -> object:
    return _levels_rightly(self)[::-1]


_levels_rightly = Group.levels


# Collecting.

_first_missing_rightly = Gather.first_missing


def _first_missing_before_marker(self: Gather, log: str) -> int | None:
    return None if log in self._counts else _first_missing_rightly(self, log)


def _settled_but_not_durable(self: FeedingParticipant, step: Step) -> bool:
    return not any(
        part.min_ts and part.decided is None and (part.at or part.min_ts) <= step.w1 for part in self.parts.values()
    )


def _settled_but_slots(self: FeedingParticipant, step: Step) -> bool:
    return not any(
        part.min_ts and part.decided is None and part.min_ts <= step.w1 for part in self.parts.values()
    ) and not any(part.min_ts <= step.w1 for _, _, part in self._unnoted)


def _passed_by_one(self: History, watermarks: Sequence[tuple[int, int]]) -> None:
    """As soon as one group has taken it in."""
    for group, watermark in watermarks:
        for source_id, groups in self._readers.items():
            if group in groups:
                for kept in (self._writes, self._refreshes):
                    if source_id in kept:
                        kept[source_id] = [item for item in kept[source_id] if item[0] > watermark]  # type: ignore


# Readers.


def _wait_for_writers_only(self: Participant, claims: object, at: int, waits_for: set[object]) -> None:
    for claim in claims:  # type: ignore[attr-defined]
        part = self.parts[claim.attempt]
        if part.min_ts and part.min_ts <= at and part.decided is None and not part.at:
            waits_for.add(claim.attempt)


MUTANTS = (
    Mutant(
        "D1: the step is not durable before its slots",
        _patched(
            (ClusterScheduler, "_open", _open_in_memory),
            (ClusterScheduler, "_publication", _publication_without_step),
            (ClusterViewManager, "_is_open", _always),
            (ClusterViewManager, "_seen", _no_keys),
            (ClusterScheduler, "_is_open", _is_at_w0),
        ),
    ),
    Mutant(
        "D1: a new leader begins another step",
        _patched(
            (ClusterScheduler, "_open_step", _no_step),
            (cluster_scheduler, "opened", _opened_over),
            (ClusterScheduler, "_seen_at_opening", _seen_watermark),
        ),
    ),
    Mutant(
        "D1: a slot of an old step is accepted",
        _patched((ClusterViewManager, "_is_open", _always), (ClusterViewManager, "_seen", _no_keys)),
        scenario=SLOW,
    ),
    Mutant(
        "D1: publication is not compare-and-set",
        _patched(
            (ClusterScheduler, "_publication", _published_over),
            (ClusterScheduler, "_submit", _publish_unseen),
            (ClusterScheduler, "_is_open", _always),
        ),
    ),
    Mutant("T1: W1 is a clock value", _patched((ClusterScheduler, "_w1", _w1_by_the_clock))),
    Mutant(
        "the ring changes inside a step",
        _patched(
            (ClusterScheduler, "_open_step", _open_step_anew),
            (ClusterScheduler, "_is_open", _is_open_with_w1),
            (ClusterViewManager, "_is_open", _is_of_same_w1),
        ),
    ),
    Mutant("D2: whatever is in the log belongs to the step", _patched((cluster_subsystem, "_is_of", _is_known))),
    Mutant("D3: slots are refreshed at commit_ts", _patched((Participant, "_apply", _apply_at_commit))),
    Mutant("D3: W1 is not marked", _patched((FeedingParticipant, "_mark_closed", _nothing))),
    Mutant("closed without waiting for votes", _patched((FeedingParticipant, "_is_settled", _always))),
    Mutant(
        "collected without waiting for the slots below",
        _patched((FeedingParticipant, "_is_settled", _settled_but_slots)),
    ),
    Mutant(
        "collected without what is not durable yet",
        _patched((FeedingParticipant, "_is_settled", _settled_but_not_durable)),
        scenario=DISKS,
    ),
    Mutant("a marker overtakes changes", _patched((Gather, "first_missing", _first_missing_before_marker))),
    Mutant(
        "the watermark before the last slot",
        _patched(
            (ClusterScheduler, "_missing", _missing_but_one),
            (ClusterScheduler, "_publication", _publication_of_watermark),
        ),
    ),
    Mutant("a level before the one below", _patched((Group, "levels", _levels_backwards))),
    Mutant("a slot is refreshed twice", _patched((ClusterViewManager, "_row", _row_over)), scenario=SLOW),
    Mutant("changes are forgotten when one group has them", _patched((History, "passed", _passed_by_one))),
    Mutant("readers do not wait for slots", _patched((Participant, "_wait_for", _wait_for_writers_only))),
)
