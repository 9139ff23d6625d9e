"""The commit protocol with one rule left out at a time, and other known-bad variants. Each must be caught.

The names begin with the rule that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

from viewtide.changetables.types import Row
from viewtide.coordinator.timestamps import MS_SHIFT
from viewtide.coordinator.two_phase.attempt import DECIDED, VOTING, AttemptAt
from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.oracle import Oracle
from viewtide.ltm.two_phase import cells as cells_module
from viewtide.ltm.two_phase import participant as participants
from viewtide.ltm.two_phase.cells import Cells, Version
from viewtide.ltm.two_phase.holds import CONTRIBUTION, LOOK_UP, WRITE, Claim, Holds
from viewtide.ltm.two_phase.marks import Marks
from viewtide.ltm.two_phase.messages import Attempt, Decide, Draw, Timestamps, Vote
from viewtide.ltm.two_phase.participant import Participant

from .process import Outputs
from .scenario import Mutant
from .workload import tables

#: Directed scenarios, for what a drawn plan rarely does.
BANKING, CLOCKS, COPIES, DISKS, FLOOR, HOT, LATE, NARROW, ONE_SLOW, RELYING, STARVING, TOPPING = (
    "commit-banking",
    "commit-clocks",
    "commit-copies",
    "commit-disks",
    "commit-restarts",
    "commit-hot",
    "commit-late",
    "commit-narrow",
    "commit-one-slow",
    "commit-relying",
    "commit-starving",
    "commit-topping",
)
SEEDS_MAX = 60


def _patched(target: object, name: str, replacement: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(target, name, replacement)


def _mutant(
    name: str, patched: Callable[[], AbstractContextManager[object]], scenario: str = "", seeds_max: int = SEEDS_MAX
) -> Mutant:
    return Mutant(name, patched, seeds_max, scenario)


def _nothing(*arguments: object) -> None:
    return None


def _none(*arguments: object) -> list[object]:
    return []


def _never(*arguments: object) -> bool:
    return False


# Timestamps.


def _request_more(self: Coordinator) -> None:
    """Who comes until the answer is here is served by it, too."""
    self._drawing = len(self._waiting)
    self._draw_number += 1
    self._send.append((self.oracle, Draw(self._draw_number, self._drawing + 4)))
    self._draws.add(self._draw_number, self._now_ms)


_start_rightly = Oracle.start


def _start_by_the_clock(self: Oracle, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
    outputs = _start_rightly(self, now_ms, disk, incarnation)
    self._oracle.last = 0
    return outputs


def _above_without_end(highest: int, start: int) -> int:
    """The bits that it counts up are followed by those of timestamps that the oracle issues later."""
    return max(start, highest + 1)


def _clock_ts(participant: Participant, ts: int) -> int:
    return max(ts, participant._now_ms << MS_SHIFT)


_open_up_rightly = Participant._open_up


def _open_up_by_the_clock(self: Participant, sender: str, message: Timestamps) -> None:
    was_open = self._open
    _open_up_rightly(self, sender, message)
    if self._open and not was_open:
        self.marks.raise_floor(_clock_ts(self, 0))


def _floor_by_the_clock() -> AbstractContextManager[object]:
    return patch.dict(participants._HANDLERS, {Timestamps: _open_up_by_the_clock})


def _mark_read_by_the_clock(self: Participant, read: Any) -> None:
    self.marks.mark(read.keys, _clock_ts(self, read.at))
    self.marks.mark_ranges([each[0] for each in read.ranges], _clock_ts(self, read.at))


# Holds and marks.

_take_rightly = Holds.take


def _take_no_look_ups(self: Holds, claim: Claim, keys: Iterable[bytes], mode: int) -> object:
    return [] if mode == LOOK_UP else _take_rightly(self, claim, keys, mode)


def _take_view_rows_together(self: Holds, claim: Claim, keys: Iterable[bytes], mode: int) -> object:
    views = tables().views_by_id
    keys = list(keys)
    if mode == WRITE and keys and int.from_bytes(keys[0][:4], "big") in views:
        mode = CONTRIBUTION
    return _take_rightly(self, claim, keys, mode)


def _wait_for_everybody(self: Holds, claim: Claim, resource: bytes) -> list[object]:
    """Nobody is refused: they wait for each other."""
    waits = [other for other, has in self._conflicting(claim, resource) if has or other.age < claim.age]
    if waits:
        if not claim.waiting:
            self._waiting += 1
        claim.waiting.add(resource)
    return []


def _abort_and_leave_queued(self: Participant, sender: str, decide: Decide) -> None:
    """What an aborted attempt has is free again; what it waits for, it still waits for."""
    attempt, commit_ts = decide
    part = self.parts.get(attempt)
    queued = {} if part is None or commit_ts or part.min_ts else dict.fromkeys(part.claim.waiting, part.claim)
    _decide_rightly(self, sender, decide)
    for resource, claim in queued.items():
        left = self.holds.claim(attempt, claim.age[0])
        if isinstance(resource, bytes):
            _take_rightly(self.holds, left, (resource,), claim.wanted[resource])


def _queue_stays() -> AbstractContextManager[object]:
    return patch.dict(participants._HANDLERS, {Decide: _abort_and_leave_queued})


_begin_rightly = Coordinator._begin


def _begin_as_youngest(self: Coordinator, work: Any, *rest: Any) -> None:
    work.priority = 0
    _begin_rightly(self, work, *rest)


_answer_read_rightly = Participant._answer_read


def _mark_late(self: Participant, sender: str, read: Any) -> None:
    self.marks.mark(read.keys, read.at)
    self.marks.mark_ranges([each[0] for each in read.ranges], read.at)
    _answer_read_rightly(self, sender, read)


def _marks_after_collecting() -> AbstractContextManager[object]:
    return patch.multiple(Participant, _mark_read=_nothing, _answer_read=_mark_late)


_add_rightly = Cells.add


def _add_and_remove(self: Cells, key: bytes, ts: int, change: Callable[[Row | None], Row | None]) -> None:
    _add_rightly(self, key, ts, change)
    if self.chains[key][1] is None:
        self._remove(key)


def _added_below_only(version: Version, ts: int, change: Callable[[Row | None], Row | None]) -> Version:
    above: list[Version] = []
    below: Version | None = version
    while below is not None and below[0] > ts:
        above.append(below)
        below = below[2]
    made: Version = (ts, change(None if below is None else below[1]), below)
    for each in reversed(above):
        made = (each[0], each[1], made)
    return made


# Votes and decisions.


def _current_of_any_start(self: Coordinator, attempt: tuple[tuple[int, int], int]) -> object:
    work = self.work.get(attempt[0])
    return None if work is None or work.current is None else (work, work.current)


def _lost_with_restart_only(self: Participant, part: object, incarnation: int) -> bool:
    return incarnation != 0 and incarnation >> 32 != self.incarnation


_restore_rightly = Participant._restore


def _restore_writes_only(self: Participant, record: Any) -> None:
    _restore_rightly(self, record._replace(looked_up=(), looked_up_ranges=()))


def _list_writers_only(self: AttemptAt, *parts: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(log for part in parts for log in part))
    return found or tuple(self.asked)


def _vote_of_all_but_one(self: AttemptAt, log: str, min_ts: int) -> bool:
    if self.state != VOTING or log not in self.prepared:
        return False
    if not min_ts:
        self.state, self.decided = DECIDED, 0
        return True
    self.votes[log] = min_ts
    if len(self.votes) < max(1, len(self.prepared) - 1):
        return False
    self.state, self.decided = DECIDED, max(self.votes.values())
    return True


_vote_rightly = AttemptAt.vote


def _vote_for_lowest(self: AttemptAt, log: str, min_ts: int) -> bool:
    decides = _vote_rightly(self, log, min_ts)
    if decides and self.decided:
        self.decided = min(self.votes.values())
    return decides


_resend_rightly = Coordinator._resend


def _resend_or_abort(self: Coordinator, attempt: Any) -> None:
    work = self.work[attempt[0]]
    if work.current is not None and work.current.state == VOTING:
        for each in self._abort(work.current):
            self._try_again(each, "no votes")
        return
    _resend_rightly(self, attempt)


def _refusal_in_memory(self: Participant, attempt: Any, reason: str) -> int:
    self._note_refusal(attempt, 0)
    return 0


def _close_at_once(self: Coordinator, work: Any, outcome: Any) -> None:
    self._end(work, outcome)


def _send_at_once(self: Participant, lsn: int, destination: str, message: object) -> None:
    self._send.append((destination, message))


def _votes_at_once(self: Participant, lsn: int, destination: str, message: object) -> None:
    if isinstance(message, Vote) and message.min_ts:
        self._send.append((destination, message))
    else:
        _when_durable_rightly(self, lsn, destination, message)


_when_durable_rightly = Participant._when_durable


def _show_at_once(self: Participant, destination: str, message: object) -> None:
    self._send.append((destination, message))


# Others.

_apply_rightly = Participant._apply


def _apply_twice(self: Participant, writes: Any, refreshes: Any, commit_ts: int, at: int) -> None:
    _apply_rightly(self, writes, refreshes, commit_ts, at)
    for refresh in refreshes:
        self.cells.add(refresh[1], commit_ts, partial(self.refresh, refresh))


_settle_rightly = Participant._settle


def _settle_at_own_ts(self: Participant, attempt: Any, part: Any, commit_ts: int, again: bool = False) -> None:
    _settle_rightly(self, attempt, part, part.min_ts if commit_ts else 0, again)


def _decide_again(self: Participant, sender: str, decide: Decide) -> None:
    """A copy of a decision is applied like the first one."""
    part = self.parts.get(decide.attempt)
    if part is not None and part.decided:
        self._apply((), part.refreshes, decide.commit_ts, 0)
    _decide_rightly(self, sender, decide)


_decide_rightly = Participant._decide


def _early_decision() -> AbstractContextManager[object]:
    return patch.dict(participants._HANDLERS, {Decide: _decide_again})


_decided_rightly = Participant._decided


def _decided_and_forgotten(self: Participant, attempt: Attempt, part: Any, commit_ts: int) -> None:
    _decided_rightly(self, attempt, part, commit_ts)
    self.parts.pop(attempt, None)
    for tx_id in part.tx_ids:
        self.committed.pop(tx_id, None)


_looked_up_rightly = participants._looked_up


def _not_contributed_to(part: Any) -> tuple[tuple[bytes, ...], tuple[object, ...]]:
    keys, ranges = _looked_up_rightly(part)
    refreshed = {refresh[1] for refresh in part.refreshes}
    return tuple(key for key in keys if key not in refreshed), ranges


def _group_of_all(self: Coordinator, works: list[Any]) -> Iterator[list[Any]]:
    alone = [work for work in works if not work[0].can_join]
    yield from ([work] for work in alone)
    together = [work for work in works if work[0].can_join]
    if together:
        yield together


MUTANTS = (
    _mutant("T1: timestamps for those who came later", _patched(Coordinator, "_request_timestamps", _request_more)),
    _mutant("T1: the oracle forgets its bound", _patched(Oracle, "start", _start_by_the_clock), scenario=CLOCKS),
    _mutant(
        "T1: min_ts runs into later timestamps", _patched(participants, "_lowest_above", _above_without_end), NARROW
    ),
    _mutant("T1: the floor is a clock value", _floor_by_the_clock, FLOOR),
    _mutant("T1: marks are clock values", _patched(Participant, "_mark_read", _mark_read_by_the_clock)),
    _mutant("T2: min_ts at a mark", _patched(participants, "_lowest_above", max)),
    _mutant("H1: look-ups hold nothing", _patched(Holds, "take", _take_no_look_ups)),
    _mutant("H1: ranges hold nothing", _patched(Holds, "take_ranges", _none)),
    _mutant("H1: readers leave no mark", _patched(Participant, "_mark_read", _nothing)),
    _mutant("H1: readers do not wait", _patched(Participant, "_wait_for", _nothing)),
    _mutant("H1: readers mark when they are answered", _marks_after_collecting),
    _mutant("H2: look-ups leave no mark", _patched(Participant, "_mark_looked_up", _nothing), scenario=TOPPING),
    _mutant("H3: no floor after a restart", _patched(Marks, "raise_floor", _nothing), scenario=FLOOR),
    _mutant("H4: everybody waits for everybody", _patched(Holds, "_wait", _wait_for_everybody), scenario=HOT),
    _mutant(
        "H4: a retry is the youngest again", _patched(Coordinator, "_begin", _begin_as_youngest), scenario=STARVING
    ),
    _mutant("H5: holds without a vote stay", _patched(Participant, "_hold_ended", _nothing)),
    _mutant("H5: dropped holds are forgotten", _patched(Participant, "_lost_holds", _lost_with_restart_only), COPIES),
    _mutant("H5: an abort leaves what is queued", _queue_stays, HOT),
    _mutant("H6: rows that views build on are not held", _patched(Holds, "take", _take_view_rows_together), BANKING),
    _mutant("H7: rows of nothing are removed at once", _patched(Cells, "add", _add_and_remove)),
    _mutant("V1: votes of any attempt count", _patched(Coordinator, "_current", _current_of_any_start), LATE),
    _mutant("V2: requests of an earlier incarnation", _patched(Participant, "_lost_holds", _never), FLOOR),
    _mutant(
        "V3: look-ups are not held after a restart", _patched(Participant, "_restore", _restore_writes_only), ONE_SLOW
    ),
    _mutant(
        "V3: who was only looked up is not on the list", _patched(AttemptAt, "_list", _list_writers_only), ONE_SLOW
    ),
    _mutant("V4: all votes but one are enough", _patched(AttemptAt, "vote", _vote_of_all_but_one)),
    _mutant("V4: abort when votes take long", _patched(Coordinator, "_resend", _resend_or_abort)),
    _mutant("V4: a refusal is not recorded", _patched(Participant, "_log_refusal", _refusal_in_memory), LATE),
    _mutant("V5: an attempt beside one in doubt", _patched(Participant, "_in_doubt", _never)),
    _mutant("V5: refused, and a copy is still about", _patched(Coordinator, "_close", _close_at_once), COPIES),
    _mutant("V7: shown before it is durable", _patched(Participant, "_show", _show_at_once), DISKS),
    _mutant("V9: what was read may have changed", _patched(Participant, "_has_changed", _never)),
    _mutant("rows that were relied on have changed", _patched(Participant, "_is_outdated", _never), RELYING),
    _mutant("new rows may be there already", _patched(Participant, "_is_there", _never)),
    _mutant("vote before it is durable", _patched(Participant, "_when_durable", _votes_at_once)),
    _mutant("nothing waits for the disk", _patched(Participant, "_when_durable", _send_at_once)),
    _mutant("commit_ts is the lowest min_ts", _patched(AttemptAt, "vote", _vote_for_lowest)),
    _mutant("each commits at its own min_ts", _patched(Participant, "_settle", _settle_at_own_ts)),
    _mutant("refresh applied twice", _patched(Participant, "_apply", _apply_twice)),
    _mutant("a copy of a decision is applied", _early_decision),
    _mutant("V6: a decision is forgotten too soon", _patched(Participant, "_decided", _decided_and_forgotten)),
    _mutant("H2: a contribution hides a look-up", _patched(participants, "_looked_up", _not_contributed_to), TOPPING),
    _mutant("T2: those that conflict share a commit_ts", _patched(Coordinator, "_groups", _group_of_all), TOPPING),
    _mutant("a late contribution is not in newer versions", _patched(cells_module, "_added", _added_below_only)),
)
