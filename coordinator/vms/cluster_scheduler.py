"""The refresh scheduler of a cluster, in the elected leader: which group makes its next step, and how it goes on.

    read      the group's rows: its watermark W0, and the step that is open, if one is: that one is finished first
    open      (W0, W1, slots) is a row: durable before the first slot (rule D1)
    close     every LTM closes W1, all of them by one epoch of the range map (rule D3)
    levels    for each level, lowest first, and then the entries of its indexes (`Group.phases`): every slot is given
              to a view manager, and to another one if that is slow
    publish   the watermark becomes W1, if all slots are there and it still is W0; the step's rows go
    drop      or a slot has failed: a view cannot be computed from what the step takes in. The step's row says that it
              is dropped, so no slot of it comes any more; those that are there are taken back, highest level first;
              then the step's row goes. The watermark stays, and the next step, which may take in that the cause is
              gone, is tried later and later

All that matters is in rows, which change by transactions: a scheduler that has been replaced without knowing it can
begin nothing and publish nothing that another one does not know of. No I/O, no clock.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from ...ltm.cluster.catalogs import Stored
from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import COMMITTED, TxId
from ..transaction import Intent
from ..two_phase.messages import Outcome, ReadAt, RowsAt, Submit
from .cluster_client import ASKER, Asker
from .cluster_messages import (
    NOT_OPEN,
    Close,
    Closed,
    GroupIs,
    Hello,
    Logs,
    Passed,
    SlotDone,
    SlotRefused,
    WantGroup,
    Work,
    Working,
    addressed,
)
from .groups import Group, InForce, groups_in_force, groups_of
from .scheduler import Cost, Scheduler
from .step_rows import (
    ENDED,
    SLOTS_MAX,
    STEPS,
    Step,
    dropped,
    manager_of,
    opened,
    published,
    slot_key,
    slots_of,
    slots_range,
    step_key,
    step_of,
    watermark_key,
    watermark_of,
    withdrawn_range,
)

#: How often it looks after everything.
TICK_MS = 20
#: LTMs and view managers that have not answered are asked again after this long.
CLOSE_MS = 60
WORK_MS = 80
#: A view manager that has not been heard of for so long gets nothing, and its slots are given to others.
SILENT_MS_MAX = 400
#: A slot that takes longer is given to another view manager, too.
SLOT_MS_MAX = 1_500
#: A slot is given to so many view managers at a time at most.
WORKERS_MAX = 3
#: So many slots per view manager: the more, the better they can be balanced.
SLOTS_PER_MANAGER = 2
#: What has not gone on for so long begins again with reading the rows: another scheduler may have finished it.
STUCK_MS_MAX = 2_500
#: Timestamps that readers want as watermarks of one group at a time, and those that are remembered; more try again.
EXACT_MAX = 64
#: How much the last slot counts in what a view manager's slots take.
_WEIGHT = 0.3
#: What a slot takes of one that has done none yet.
SLOT_MS_FIRST = 20.0
#: Said of a step that another scheduler has dropped.
_FAILED_BEFORE = "a view cannot be computed from rows that were changed since; its status shows why"
#: The numbers of its transactions have this bit, the term and a number below.
_TX_BIT = 1 << 61

OPENING = "scheduler: about to open a step"
OPENED = "scheduler: step opened"
CLOSED = "scheduler: all LTMs closed"
LEVEL_DONE = "scheduler: all slots of a level are in"
PUBLISHING = "scheduler: about to publish"
PUBLISHED = "scheduler: published, nobody told"
PROBES = (OPENING, OPENED, CLOSED, LEVEL_DONE, PUBLISHING, PUBLISHED)
DROPPING = "scheduler: about to drop a step"
DROPPED = "scheduler: step dropped, its slots are there"
ENDING = "scheduler: all slots are taken back, the step is there"
DROP_PROBES = (DROPPING, DROPPED, ENDING)


class _Manager:
    """A view manager as the scheduler knows it. `slot_ms`: what its slots take."""

    def __init__(self, process: str, now_ms: int) -> None:
        self.process = process
        self.heard_ms = now_ms
        self.slot_ms = SLOT_MS_FIRST
        self.slots = 0


class _Closing:
    """Wanted: every LTM closes W1, by one epoch of the map."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.epoch = -1
        self.closed: dict[str, Closed] = {}
        self.asked_ms = 0


class _Slot:
    """Who works on a slot, since when, and when each was last heard of."""

    def __init__(self) -> None:
        self.workers: dict[int, int] = {}
        self.heard_ms: dict[int, int] = {}
        self.asked_ms = 0
        self.numbers: dict[int, int] = {}


class _Level:
    """Wanted: every slot of a level, or none, if the step is dropped."""

    def __init__(self, step: Step, level: int, missing: Sequence[int]) -> None:
        self.step = step
        self.level = level
        self.slots = {slot: _Slot() for slot in missing}


class _StepFailed(Exception):
    """Thrown into a step whose level cannot be had."""


Wanted: TypeAlias = ReadAt | Submit | _Closing | _Level
_Stepping: TypeAlias = Generator[Wanted, RowsAt | Outcome | None, None]


class _Run:
    """The step of one group that is under way."""

    def __init__(self, running: _Stepping, now_ms: int) -> None:
        self.running = running
        self.began_ms = now_ms
        self.wanted: Wanted | None = None
        self.asked: object = None
        #: When the closing or the level began, or the last slot of it was in.
        self.since_ms = now_ms


class ClusterScheduler:
    """`logs` and `epoch` are of the range map. It does nothing before `lead`."""

    def __init__(
        self,
        host: Host,
        tables: Tables,
        coordinators: Sequence[str],
        logs: Callable[[], Logs],
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self.host = host
        self._logs, self._epoch = logs, epoch
        self._groups = {group.key: InForce(group, tables) for group in groups_of(tables)}
        #: The catalog that steps are opened by: they are not, if there is another one meanwhile.
        self._version = tables.catalog.version
        #: Whether the catalog changes: then a step says by which one it was opened.
        self._follows = False
        self._scheduler = Scheduler()
        self._asker = Asker(host, coordinators)
        self.leads = False
        self.term = 0
        self._tx_number = 0
        self._work_number = 0
        self.managers: dict[int, _Manager] = {}
        self.runs: dict[int, _Run] = {}
        #: As far as it knows.
        self.watermarks: dict[int, int] = {}
        self._had_rows: dict[int, bool] = {}
        #: By group: the W1 of its last step that was dropped.
        self._failed_ts: dict[int, int] = {}
        #: Groups that make no step any more, and have none that is open.
        self._ended: set[int] = set()
        #: By group: timestamps that somebody wants as watermarks, in their order, and the last ones that were.
        self._exact: dict[int, list[int]] = {}
        self._were_exact: dict[int, deque[int]] = {}
        #: View managers that get no slots if there are others.
        self._withdrawn: frozenset[int] = frozenset()
        self._now_ms = 0
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- leading

    def lead(self, now_ms: int, term: int) -> Outputs:
        """It is elected. Nobody had this `term` before."""
        self._now_ms = now_ms
        self.leads = True
        self.term = term
        self._tx_number = _TX_BIT | term << 24
        self._asker.begin(term)
        self._exact.clear()
        self._were_exact.clear()
        self._failed_ts.clear()
        self._ended.clear()
        self._scheduler = Scheduler()
        self._scheduler.adopt(each.group for each in self._groups.values())
        self._timers.append((now_ms + TICK_MS, ("tick", term)))
        return self._out()

    def follow(self, stored: Stored) -> None:
        """Groups come and go with catalogs; what is under way of those that stay as they are goes on."""
        before, self._groups = self._groups, groups_in_force(stored)
        self._ended.clear()
        self._version = stored.opened[-1].version
        self._follows = True
        self._scheduler.adopt(each.group for each in self._groups.values())
        for key, run in list(self.runs.items()):
            now = self._groups.get(key)
            if now is None or now.group.ids != before[key].group.ids:
                self._asker.forget(run.asked)
                del self.runs[key]

    def failure_of(self, key: int) -> tuple[int, str]:
        """Of the last step of a group that was dropped: its W1, 0 if there was none, and why."""
        schedule = self._scheduler.schedules.get(key)
        return (0, "") if schedule is None else (self._failed_ts.get(key, 0), schedule.failure)

    def step_down(self) -> None:
        self.leads = False
        for run in self.runs.values():
            self._asker.forget(run.asked)
        self.runs.clear()
        self.managers.clear()

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        return Outputs()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        if self.leads:
            self._received(sender, message)
        return self._out()

    def _received(self, sender: str, message: object) -> None:
        match message:
            case Hello(number):
                self._heard(number, sender)
            case RowsAt() | Outcome():
                self._asker.receive(message, self._now_ms)
            case Closed():
                self._closed(message)
            case Working(step, level, slot, number):
                self._heard(number, sender)
                place = self._slot(step, level, slot)
                if place is not None and number in place.workers:
                    place.heard_ms[number] = self._now_ms
            case SlotDone(step, level, slot, number):
                self._heard(number, sender)
                self._slot_done(step, level, slot, number)
            case SlotRefused(step, level, slot, number, reason, failed):
                self._heard(number, sender)
                if failed and not step.is_dropped:
                    self._slot_failed(step, level, slot, reason)
                else:
                    self._slot_refused(step, level, slot, number, reason)
            case WantGroup():
                self._want_group(sender, message)
            case _:
                raise TypeError(f"unexpected message {message!r} from {sender}")

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a scheduler has no log: all it knows is in rows")

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        assert isinstance(token, tuple)
        what, name = token
        if what == ASKER:
            self._asker.timer(name, now_ms)
        elif self.leads and name == self.term:
            self._timers.append((now_ms + TICK_MS, token))
            self._tick()
        return self._out()

    def _out(self) -> Outputs:
        out = Outputs((), (*self._send, *self._asker.send), (*self._timers, *self._asker.timers))
        self._send, self._timers = [], []
        self._asker.send, self._asker.timers = [], []
        return out

    def _tick(self) -> None:
        for key, each in self._groups.items():
            run = self.runs.get(key)
            if run is None:
                if self._is_due(key) and self._alive():
                    run = self.runs[key] = _Run(self._stepping(each.group), self._now_ms)
                    self._go_on(key, run, None)
            elif self._is_stuck(run):
                self._begin_again(key, run)
            elif isinstance(run.wanted, _Closing):
                self._ask_to_close(run.wanted)
            elif isinstance(run.wanted, _Level):
                self._give_slots(run.wanted)

    def _is_due(self, key: int) -> bool:
        schedule = self._scheduler.schedules[key]
        final_ts = self._groups[key].final_ts
        if self._groups[key].stays:
            return key not in self._ended
        if final_ts:
            # Earlier steps that failed say nothing about it, and writers wait for it.
            return self.watermarks.get(key, 0) < final_ts != self._failed_ts.get(key)
        due_ms = schedule.due_ms(self._had_rows.get(key, True))
        if schedule.wanted_ts > self.watermarks.get(key, 0):
            due_ms = float("-inf")
        return max(due_ms, schedule.retry_at_ms) <= self._now_ms

    def _is_stuck(self, run: _Run) -> bool:
        return isinstance(run.wanted, _Closing | _Level) and self._now_ms - run.since_ms > STUCK_MS_MAX

    def _begin_again(self, key: int, run: _Run) -> None:
        """With what the rows say."""
        if isinstance(run.wanted, _Level):
            self._take_slots(run.wanted)
        del self.runs[key]

    def _go_on(self, key: int, run: _Run, answer: RowsAt | Outcome | _StepFailed | None) -> None:
        try:
            if isinstance(answer, _StepFailed):
                run.wanted = wanted = run.running.throw(answer)
            else:
                run.wanted = wanted = run.running.send(answer)
        except StopIteration:
            del self.runs[key]
            return
        run.since_ms = self._now_ms
        if isinstance(wanted, _Closing):
            self._ask_to_close(wanted)
        elif isinstance(wanted, _Level):
            self._give_slots(wanted)
        else:
            noted = isinstance(wanted, ReadAt)
            run.asked = self._asker.ask(wanted, self._now_ms, lambda found: self._answered(key, run, found), noted)

    def _answered(self, key: int, run: _Run, found: RowsAt | Outcome) -> None:
        if self.runs.get(key) is run:
            self._go_on(key, run, found)

    def _want_group(self, sender: str, message: WantGroup) -> None:
        """Somebody waits for a watermark, or wants to know how the group is."""
        managers = tuple(
            (number, manager.process, manager.slots, manager.slot_ms)
            for number, manager in sorted(self.managers.items())
            if number in self._alive()
        )
        number, key, wanted_ts, exact = message
        schedule = self._scheduler.schedules.get(key)
        if schedule is None:
            self._send.append((sender, GroupIs(number, key, 0, 0.0, 0, 0, 0.0, managers)))
            return
        was_exact = wanted_ts in self._were_exact.get(key, ())
        if wanted_ts and not was_exact:
            self._scheduler.request(key, wanted_ts)
            if exact and wanted_ts > self.watermarks.get(key, 0):
                self._want_exactly(key, wanted_ts)
        last = schedule.last or Cost(0, 0, 0.0, 0.0, 0.0, 0.0)
        known = (self.watermarks.get(key, 0), schedule.interval_ms or 0.0, schedule.steps_count)
        cost = (last.rows_count, last.duration_ms)
        found = GroupIs(number, key, *known, *cost, managers, was_exact)
        failed_ts = self._failed_ts.get(key, 0)
        found = found._replace(failures=schedule.failures_count, failure=schedule.failure, failed_ts=failed_ts)
        self._send.append((sender, found))

    def _want_exactly(self, key: int, wanted_ts: int) -> None:
        wanted = self._exact.setdefault(key, [])
        if wanted_ts not in wanted and len(wanted) < EXACT_MAX:
            insort(wanted, wanted_ts)

    # -- a step

    def _stepping(self, group: Group) -> _Stepping:
        began_ms = self._now_ms
        step = None
        while step is None:
            read = yield ReadAt(0, 0, (step_key(group.key), watermark_key(group.key)), (withdrawn_range(),))
            assert isinstance(read, RowsAt)
            step = self._open_step(read)
            if step is None:
                if self._groups[group.key].stays:
                    self._ended.add(group.key)
                    return
                w0, final_ts = watermark_of(read.rows[1][1]), self._groups[group.key].final_ts
                if final_ts and w0 >= final_ts:
                    self.watermarks[group.key] = w0
                    return
                step = yield from self._open(group, read)
        if step.is_dropped:
            yield from self._drop(step)
            return
        closing = _Closing(step)
        yield closing
        self.host.probe(CLOSED)
        levels = len(group.phases()) if self._has_changes(closing) else 0
        failure = ""
        try:
            while not (yield from self._publish_when_done(group, step, levels)):
                read = yield ReadAt(0, 0, (step_key(group.key),))
                assert isinstance(read, RowsAt)
                if not self._is_open(step, read):
                    # Another one has published it, or dropped it.
                    return
        except _StepFailed as failed:
            failure = str(failed)
        if failure:
            self._note_failed(step, failure)
            yield from self._drop(step)
            return
        rows = sum(closed.rows for closed in closing.closed.values())
        self._had_rows[group.key] = rows > 0
        self._note_published(group, step, began_ms, rows)

    def _drop(self, step: Step) -> _Stepping:
        """Until no row of the step is there. What is written is decided by what the rows say: another scheduler may do
        the same at the same time."""
        key = step_key(step.group)
        while True:
            read = yield ReadAt(0, 0, (key,), (slots_range(step.group),))
            assert isinstance(read, RowsAt)
            found = step_of(read.rows[0][1])
            if found is None or found.as_opened != step.as_opened:
                return
            if not found.is_dropped:
                self.host.probe(DROPPING)
                yield self._submit({key: dropped(step)}, read, (key,))
                continue
            self.host.probe(DROPPED)
            levels = self._to_take_back(found, slots_of(step, [row for _, _, row in read.ranges[0]]))
            for level, slots in levels:
                yield _Level(found, level, slots)
            if not levels:
                if self._groups[step.group].final_ts == step.w1:
                    # It stays, so that whoever leads next knows and nobody tries it again, until there is another
                    # catalog.
                    if self._failed_ts.get(step.group) != step.w1:
                        self._note_failed(step.as_opened, _FAILED_BEFORE)
                    return
                self.host.probe(ENDING)
                # By no other catalog: it may be the last step of the group by that one.
                yield self._of_this_catalog(self._submit({key: ENDED}, read, (key,)))

    def _to_take_back(self, step: Step, done: set[tuple[int, int]]) -> list[tuple[int, list[int]]]:
        """The slots by level, highest first: what a level was made from stays until it is taken back."""
        levels = sorted({level for level, _ in done}, reverse=True)
        return [(each, sorted(slot for level, slot in done if level == each)) for each in levels]

    def _open_step(self, read: RowsAt) -> Step | None:
        """The step that somebody has opened: it is finished before another one begins (rule D1)."""
        return step_of(read.rows[0][1])

    def _has_changes(self, closing: _Closing) -> bool:
        """Whether there is anything to refresh. Whoever asks gets the same answer: W1 is closed."""
        return any(closed.rows for closed in closing.closed.values())

    def _open(self, group: Group, read: RowsAt) -> Generator[Wanted, RowsAt | Outcome | None, Step | None]:
        """W1 is the timestamp of the read: it was drawn, and is above W0. The last step of a group goes up to S."""
        withdrawn = {manager_of(row) for _, _, row in read.ranges[0]}
        managers = [number for number in self._alive() if number not in withdrawn]
        slots = min(max(len(managers), 1) * SLOTS_PER_MANAGER, SLOTS_MAX)
        self._withdrawn = frozenset(withdrawn)
        each = self._groups[group.key]
        version = each.tables.catalog.version if self._follows else 0
        w0 = watermark_of(read.rows[1][1])
        step = Step(group.key, w0, self._w1(each, self._next_exact(group.key, w0, read.at)), slots, version)
        self.host.probe(OPENING)
        submit = self._submit({step_key(group.key): opened(step)}, read, self._seen_at_opening(group.key))
        # By no other catalog: another one may have other groups.
        outcome = yield self._of_this_catalog(submit)
        assert isinstance(outcome, Outcome)
        if outcome.state != COMMITTED:
            return None
        self.host.probe(OPENED)
        return step

    def _next_exact(self, key: int, w0: int, read_at: int) -> int:
        """The first timestamp that is wanted as a watermark; it was drawn, too. If there is none, that of the read."""
        return next((ts for ts in self._exact.get(key, ()) if w0 < ts < read_at), read_at)

    def _w1(self, each: InForce, read_at: int) -> int:
        return each.final_ts or read_at

    def _seen_at_opening(self, group: int) -> tuple[bytes, ...]:
        return step_key(group), watermark_key(group)

    def _publish_when_done(
        self, group: Group, step: Step, levels: int
    ) -> Generator[Wanted, RowsAt | Outcome | None, bool]:
        """What is missing is refreshed, then the watermark is moved. False: something has changed meanwhile."""
        rows = (step_key(group.key), watermark_key(group.key))
        read = yield ReadAt(0, 0, rows, (slots_range(group.key),))
        assert isinstance(read, RowsAt)
        if not self._is_open(step, read):
            return False
        done = slots_of(step, [row for _, _, row in read.ranges[0]])
        for level in range(levels):
            missing = self._missing(step, level, done)
            if missing:
                yield _Level(step, level, missing)
                self.host.probe(LEVEL_DONE)
        read = yield ReadAt(0, 0, rows)
        assert isinstance(read, RowsAt)
        if not self._is_open(step, read):
            return False
        self.host.probe(PUBLISHING)
        outcome = yield self._submit(self._publication(step, levels), read, rows)
        assert isinstance(outcome, Outcome)
        return outcome.state == COMMITTED

    def _is_open(self, step: Step, read: RowsAt) -> bool:
        return step_of(read.rows[0][1]) == step

    def _missing(self, step: Step, level: int, done: set[tuple[int, int]]) -> list[int]:
        return [slot for slot in self._slots(step) if (level, slot) not in done]

    def _slots(self, step: Step) -> Sequence[int]:
        """As the step was opened: view managers that come and go change nothing in it."""
        return range(step.slots)

    def _publication(self, step: Step, levels: int) -> dict[bytes, Intent]:
        """Compare and set: the step's row and every slot's row have to be there, and go."""
        writes: dict[bytes, Intent] = {watermark_key(step.group): published(step), step_key(step.group): ENDED}
        for level in range(levels):
            for slot in self._slots(step):
                writes[slot_key(step.group, step.w1, level, slot)] = ENDED
        return writes

    def _submit(self, writes: dict[bytes, Intent], read: RowsAt, seen: tuple[bytes, ...]) -> Submit:
        self._tx_number += 1
        tx_id: TxId = (self._tx_number, read.at)
        return Submit(tx_id, False, ((STEPS, tuple(writes.items())),), read.at, seen)

    def _of_this_catalog(self, submit: Submit) -> Submit:
        return submit._replace(catalog_version=self._version, exact=True)

    def _note_published(self, group: Group, step: Step, began_ms: int, rows: int) -> None:
        self.host.probe(PUBLISHED)
        self.host.note("published", step)
        self.watermarks[step.group] = step.w1
        wanted = self._exact.pop(step.group, [])
        if step.w1 in wanted:
            self._were_exact.setdefault(step.group, deque(maxlen=EXACT_MAX)).append(step.w1)
        if wanted and wanted[-1] > step.w1:
            self._exact[step.group] = [ts for ts in wanted if ts > step.w1]
        took_ms = float(self._now_ms - began_ms)
        self._scheduler.published(group.key, began_ms, Cost(rows, 0, 0.0, 0.0, 0.0, took_ms))
        for log, process in self._logs():
            self._send.append(addressed(log, process, Passed(((step.group, step.w1),))))

    def _note_failed(self, step: Step, failure: str) -> None:
        self.host.note("failed", step)
        self._failed_ts[step.group] = step.w1
        self._had_rows[step.group] = True
        # A step up to just there would fail again.
        self._exact[step.group] = [ts for ts in self._exact.get(step.group, ()) if ts > step.w1]
        self._scheduler.failed(step.group, self._now_ms, failure)

    # -- closing

    def _ask_to_close(self, closing: _Closing) -> None:
        if closing.epoch == self._epoch() and self._now_ms - closing.asked_ms < CLOSE_MS:
            return
        if closing.epoch != self._epoch():
            # The map has changed: what was closed by another one does not count.
            closing.epoch = self._epoch()
            closing.closed.clear()
        closing.asked_ms = self._now_ms
        for log, process in self._logs():
            if log not in closing.closed:
                self._send.append(addressed(log, process, Close(closing.step, closing.epoch)))

    def _closed(self, message: Closed) -> None:
        run = self.runs.get(message.step.group)
        if run is None or not isinstance(run.wanted, _Closing) or run.wanted.step != message.step:
            return
        closing = run.wanted
        if self._is_of_one_epoch(message, closing):
            closing.closed[message.log] = message
            if all(log in closing.closed for log, _ in self._logs()):
                self._go_on(message.step.group, run, None)

    def _is_of_one_epoch(self, message: Closed, closing: _Closing) -> bool:
        """Whoever has got keys by a later map got them after W1, then, and begins above it (rule D3)."""
        return message.epoch == closing.epoch == self._epoch()

    # -- slots

    def _heard(self, number: int, process: str) -> None:
        manager = self.managers.get(number)
        if manager is None:
            self.managers[number] = _Manager(process, self._now_ms)
        else:
            manager.heard_ms = self._now_ms

    def _alive(self) -> list[int]:
        return [number for number, manager in self.managers.items() if self._now_ms - manager.heard_ms < SILENT_MS_MAX]

    def _give_slots(self, level: _Level) -> None:
        for slot, place in level.slots.items():
            lost = [
                number
                for number in place.workers
                if self._now_ms - place.heard_ms[number] > SILENT_MS_MAX or number not in self.managers
            ]
            for number in lost:
                self._take_slot(place, number)
            slow = all(self._now_ms - since_ms > SLOT_MS_MAX for since_ms in place.workers.values())
            if slow and len(place.workers) < WORKERS_MAX:
                self._give_slot(place)
            if self._now_ms - place.asked_ms >= WORK_MS:
                place.asked_ms = self._now_ms
                for number in place.workers:
                    work = Work(level.step, level.level, slot, place.numbers[number], self._logs())
                    self._send.append((self.managers[number].process, work))

    def _give_slot(self, place: _Slot) -> None:
        """To the one that will have done it first, by what its slots took."""
        free = [number for number in self._alive() if number not in place.workers]
        chosen = [number for number in free if number not in self._withdrawn] or free
        if not chosen:
            return
        number = min(chosen, key=lambda each: ((self.managers[each].slots + 1) * self.managers[each].slot_ms, each))
        self._work_number += 1
        self.managers[number].slots += 1
        place.workers[number] = place.heard_ms[number] = self._now_ms
        place.numbers[number] = self._work_number
        place.asked_ms = 0

    def _take_slot(self, place: _Slot, number: int) -> None:
        if number in self.managers:
            manager = self.managers[number]
            manager.slots -= 1
            took_ms = self._now_ms - place.workers[number]
            manager.slot_ms += _WEIGHT * (took_ms - manager.slot_ms)
        del place.workers[number], place.heard_ms[number], place.numbers[number]

    def _take_slots(self, level: _Level) -> None:
        for place in level.slots.values():
            for number in list(place.workers):
                self._take_slot(place, number)

    def _slot(self, step: Step, level: int, slot: int) -> _Slot | None:
        run = self.runs.get(step.group)
        if run is None or not isinstance(run.wanted, _Level):
            return None
        wanted = run.wanted
        return wanted.slots.get(slot) if (wanted.step, wanted.level) == (step, level) else None

    def _slot_done(self, step: Step, level: int, slot: int, number: int) -> None:
        place = self._slot(step, level, slot)
        if place is None:
            return
        for worker in list(place.workers):
            self._take_slot(place, worker)
        run = self.runs[step.group]
        assert isinstance(run.wanted, _Level)
        del run.wanted.slots[slot]
        run.since_ms = self._now_ms
        if not run.wanted.slots:
            self._go_on(step.group, run, None)

    def _slot_failed(self, step: Step, level: int, slot: int, reason: str) -> None:
        if self._slot(step, level, slot) is None:
            return
        run = self.runs[step.group]
        assert isinstance(run.wanted, _Level)
        self._take_slots(run.wanted)
        self._go_on(step.group, run, _StepFailed(reason))

    def _slot_refused(self, step: Step, level: int, slot: int, number: int, reason: str) -> None:
        """Somebody else may have done it, or the step is over: whoever does it next finds out."""
        place = self._slot(step, level, slot)
        if place is None:
            return
        if reason == NOT_OPEN:
            self._begin_again(step.group, self.runs[step.group])
        elif number in place.workers:
            self._take_slot(place, number)
