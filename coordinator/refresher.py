"""Drives the view maintenance system in this process: one thread that makes the steps of all deferred views.

It works in slices under the engine's lock and lets the writers go on between them. That is faster for both than running
beside them: a Python thread that computes keeps the interpreter for milliseconds whenever a writer comes back from its
disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, cast

from ..changetables.errors import Error, InterfaceError, InternalError, OperationalError, StaleRead
from ..changetables.evaluators.choice import COLUMNS, MEASURED_ROWS_MIN, has_columns, load_columns
from ..changetables.evaluators.spark_session import spark_session
from ..changetables.evaluators.whole import SPARK, forced
from ..changetables.plan import Contribution
from ..changetables.types import Row
from ..ltm.driver import StepTooLarge
from ..ltm.outputs import CommitRecord, Write
from ..ltm.reading import same_row
from ..ltm.steps import Cut, Dropped, Opened, Published, Refreshed, Shown, StepId, StepRecord
from ..ltm.tables import TableRows, Tables, ViewRows
from . import on_spark
from .batch import batch_refresh
from .embedded import Engine
from .hot_groups import HotGroups
from .ports import GroupMoved
from .turns import SLICE_MS, Turns
from .vms.groups import Group, groups_of
from .vms.managers import ViewManagers
from .vms.scheduler import Cost, Schedule, Scheduler
from .vms.stepping import Changes, Pause, Persist, Progress, Show, Stepping, Work
from .vms.subsystem import Subsystem, changes_of
from .vms.view_manager import ViewManager

#: Changed rows of one step, about: it bounds memory and the time to the next watermark. A view that is further behind
#: makes several steps.
STEP_ROWS_MAX = 200_000
#: What a view may be behind before its log records are given up and it is refreshed by a batch, unless it says so.
BACKLOG_ROWS_MAX = 5_000_000
BACKLOG_BYTES_MAX = 1 << 30
#: How often the backlogs are looked at.
LOOK_MS = 1_000.0
#: A slot that so many view managers died over is a failure.
WORKERS_MAX = 100


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What a deferred view's group is doing. `state`: live, held, needs batch refresh, failing. `names`: the views of
    users in it."""

    state: str
    names: tuple[str, ...]
    watermark: int
    schedule: Schedule
    backlog_rows: int
    backlog_bytes: int


class Logged(NamedTuple):
    """Changes that were read again from the log, by source: all above W0 up to a timestamp."""

    by_source: dict[int, list[Sequence[tuple[object, ...]]]]
    up_to: int

    def and_then(self, later: Logged) -> Logged:
        """With what was read from where this ends."""
        both = {source_id: list(rows) for source_id, rows in self.by_source.items()}
        for source_id, rows in later.by_source.items():
            both.setdefault(source_id, []).extend(rows)
        return Logged(both, later.up_to)


class Behind(NamedTuple):
    """What a group has to take in after a restart."""

    first_ts: int
    rows_count: int


class Refresher:
    """Deferred views of one engine."""

    def __init__(
        self,
        engine: Engine,
        view_managers: int,
    ) -> None:
        self._engine = engine
        self._ltm = engine.ltm
        #: Tests let the process die at named points of a step.
        self.on_point: Callable[[str], None] | None = None
        self.managers = ViewManagers(view_managers, *engine.ltm_names)
        self.managers.await_marker = self._await_marker
        self._subsystem = Subsystem()
        self._scheduler = Scheduler()
        self._turns = Turns(engine.ltm.lock, lambda: engine.commits_count)
        self.hot_groups = HotGroups()
        #: Guards what follows; a thread that holds the engine's lock may take it, not the other way round.
        self._state = threading.Condition()
        self._groups: dict[int, Group] = {}
        self._by_name: dict[str, int] = {}
        self._watched: dict[int, tuple[int, ...]] = {}
        self._open: dict[StepId, Progress] = {}
        #: By view: the W1 of its last step that was dropped.
        self._dropped: dict[int, int] = {}
        #: By group: the evaluator that somebody wants for its next step.
        self._forced: dict[int, str] = {}
        self._running: int | None = None
        #: How many steps came to their end.
        self._steps_count = 0
        #: Log bytes and changed rows when a group was last at its watermark.
        self._marks: dict[int, tuple[int, int]] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._hungry = False
        self._rows_cut = 0
        self._look_at_ms = 0.0
        self._closing = False
        self._failure: BaseException | None = None

    # -- life

    def start(self) -> None:
        """After recovery: read the log from where the views are, finish what was begun."""
        with self._ltm.lock:
            self._adopt()
            positions = [position for position in self._ltm.positions.values() if position is not None]
            behind: dict[int, Behind] = {}
            if positions:
                behind = self._read_log(min(positions))
                self._idle_forward(behind)
            for key, group in self._groups.items():
                log_bytes = self._ltm.bytes_after(self._ltm.positions.get(key) or 0)
                self._note_passed(group, log_bytes, behind[key].rows_count if key in behind else 0)
            self._engine.on_catalog = self.adopted
        self._start_thread()

    def _read_log(self, position: int) -> dict[int, Behind]:
        """Hear of everything again. Returns what the groups have to take in that are behind."""
        behind: dict[int, Behind] = {}
        lowest = min(group.watermark for group in self._groups.values())
        self._subsystem = Subsystem()
        self._subsystem.watch({each for ids in self._watched.values() for each in ids}, lowest)
        for _, record in self._ltm.read_log(position):
            match record:
                case CommitRecord():
                    self._subsystem.feed(record)
                    self._note_behind(record, behind)
                case Opened():
                    self._open[record.id] = Progress(record)
                case Published() | Dropped():
                    self._open.pop((record.views[0], record.w1), None)
                    if isinstance(record, Dropped):
                        self.note_dropped(record)
                case Refreshed() | Shown():
                    if record.step in self._open:
                        self._open[record.step].note(record)
                case Cut():
                    pass  # recovery has it
        live = {group.ids for group in self._groups.values()}
        self._open = {key: each for key, each in self._open.items() if each.opened.views in live}
        for progress in self._open.values():
            self._ltm.pin_step(progress.opened)
            self._engine.seen_ts(progress.opened.w1)
        self._forget_passed()
        return behind

    def _note_behind(self, record: CommitRecord, behind: dict[int, Behind]) -> None:
        for key, group in self._groups.items():
            if record.commit_ts > group.watermark:
                rows_count = sum(len(rows) for _, rows in changes_of(record, self._watched[key]))
                if rows_count:
                    first_ts, known = behind.get(key, (record.commit_ts, 0))
                    behind[key] = Behind(first_ts, known + rows_count)

    def _idle_forward(self, behind: Mapping[int, Behind]) -> None:
        """A watermark that moved while nothing changed was not logged; it must not go back."""
        busy = {each.opened.views[0] for each in self._open.values()}
        for key, group in self._groups.items():
            if key in busy:
                continue
            first = behind[key].first_ts if key in behind else None
            forward = self._engine.draw_ts() if first is None else first - 1
            if group.ready and forward > group.watermark and self._ltm.positions.get(key) is not None:
                position = self._ltm.last_lsn if first is None else self._ltm.positions[key]
                self._ltm.set_watermarks(group.ids, forward, position)

    def _start_thread(self) -> None:
        if self._thread is None and self._groups and not self._closing:
            self._thread = threading.Thread(target=self._run, name="viewtide-refresher", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # -- the catalog

    def adopted(self) -> None:
        """There is a new catalog. The caller holds the engine's lock."""
        self._adopt()
        self._start_thread()
        self._wake.set()

    def _adopt(self) -> None:
        tables = self._ltm.tables
        groups = {group.key: group for group in groups_of(tables)}
        watched = {key: _watched(group, tables) for key, group in groups.items()}
        self._subsystem.watch({each for ids in watched.values() for each in ids}, self._ltm.horizon.durable_ts)
        with self._state:
            marks = {key: self._marks[key] for key, ids in watched.items() if self._watched.get(key) == ids}
            self._groups, self._watched = groups, watched
            for key in watched.keys() - marks.keys():
                # Its sources are others than before: what they did up to its watermark is not behind it.
                waiting = self._backlog_rows(groups[key])
                marks[key] = (self._ltm.log_bytes, self._subsystem.total(watched[key]) - waiting)
            self._marks = marks
            self._by_name = {rows.view.name: key for key, group in groups.items() for rows in group.views}
            self._scheduler.adopt(groups.values())
            self._state.notify_all()
        self._forget_passed()
        self._ltm.feed = self._feed if groups else None
        self.hot_groups.keep(each for group in groups.values() for each in group.ids)

    def _feed(self, record: CommitRecord) -> None:
        if self._subsystem.feed(record) and (self._hungry or self._cut_due):
            self._wake.set()

    @property
    def _cut_due(self) -> bool:
        return self._subsystem.rows_fed - self._rows_cut >= STEP_ROWS_MAX

    def _cut(self) -> None:
        """A step can only end where the versions of all sources are kept: now, or at a moment that was chosen then."""
        if not self._cut_due:
            return
        with self._ltm.lock:
            self._rows_cut = self._subsystem.rows_fed
            self.persist(Cut(self._ltm.horizon.durable_ts, self._ltm.last_lsn), "cut")

    @contextmanager
    def held(self, names: Iterable[str]) -> Iterator[set[tuple[int, ...]]]:
        """No step of these views' groups is open or begins meanwhile, and nobody else holds them: the groups' ids."""
        names = list(names)
        with self._state:
            # Again after each wait: groups merge and part meanwhile.
            while not self._free(self._keys(names)):
                self._check_running()
                awaited = [self._scheduler.schedules[key] for key in self._keys(names)]
                for schedule in awaited:
                    schedule.awaited += 1
                self._state.wait(1)
                for schedule in awaited:
                    schedule.awaited -= 1
            schedules = [self._scheduler.schedules[key] for key in self._keys(names)]
            for schedule in schedules:
                schedule.held += 1
            held = self._ids(names)
        try:
            yield held
        finally:
            with self._state:
                for schedule in schedules:
                    schedule.held -= 1
                self._state.notify_all()
            self._wake.set()

    @contextmanager
    def _held_now(self, names: Sequence[str]) -> Iterator[None]:
        """As `held`, with the engine's lock. For whoever does not keep the catalog from changing: until the lock is
        there, a view may have become deferred, or be another one. Nobody holds its group then: a step may be open."""
        while True:
            with self.held(names) as held, self._ltm.lock:
                if held == self._ids(names):
                    yield
                    return

    def made_from(self, source_id: int) -> list[str]:
        """The deferred views that move with one that is made from a table, straight."""
        with self._state:
            groups = [group for key, group in self._groups.items() if source_id in self._watched[key]]
            return [rows.view.name for group in groups for rows in group.views]

    def _check_running(self) -> None:
        if self._closing:
            raise InterfaceError("the database is closed", hint="open it again with viewtide.connect()")
        if self._failure is not None:
            raise OperationalError("the database stopped", hint="open it again") from self._failure

    def _free(self, keys: Iterable[int]) -> bool:
        """Whether these groups can be held: no step is under way, all their views are there, and nobody has them."""
        return not any(
            key == self._running
            or self._open_step(key) is not None
            or self._scheduler.schedules[key].held
            or not self._groups[key].ready
            for key in keys
        )

    def _await_marker(self) -> None:
        with self._state:
            # Not until nothing is running: with one step after the other that may never be.
            steps = self._steps_count
            while self._running is not None and self._steps_count == steps and not self._closing:
                self._state.wait(1)

    # -- what others want

    def wait_for(self, name: str, wanted_ts: int, timeout_ms: float, evaluator: str | None = None) -> int:
        """Wait until a deferred view's watermark is at `wanted_ts` or above it; returns the watermark. `evaluator`: the
        one for its next step."""
        if evaluator is not None:
            forced(evaluator)
            with self._state:
                self._forced[self._group_of(name).key] = evaluator
        give_up = time.monotonic() + timeout_ms / 1000
        with self._state:
            failures = self._failures_of(name)
            while True:
                group = self._group_of(name)
                if group.watermark >= wanted_ts:
                    return group.watermark
                schedule = self._scheduler.schedules[group.key]
                if schedule.failures_count > failures:
                    raise StaleRead(
                        f"view {name!r} could not be refreshed: {schedule.failure}",
                        hint="its status shows the failure; mend the data that it names, or change the view",
                    )
                self._check_running()
                left_s = give_up - time.monotonic()
                if left_s <= 0:
                    raise StaleRead(
                        f"view {name!r} did not get as far as asked for within {timeout_ms:g} ms",
                        hint="wait longer, or see its status for what it is doing",
                    )
                self._scheduler.request(group.key, wanted_ts)
                self._wake.set()
                self._state.wait(left_s)

    def watermark(self, name: str) -> int:
        """Where a deferred view is."""
        with self._state:
            return self._group_of(name).watermark

    @contextmanager
    def aligned(self, names: Sequence[str], timeout_ms: float) -> Iterator[int]:
        """The groups of these views at one new watermark. Nobody goes on while the caller makes use of it; views that
        are not deferred are there anyway."""
        for name in names:
            with suppress(GroupMoved):  # what is not deferred is never behind
                self.wait_for(name, self._ltm.horizon.durable_ts, timeout_ms)
        # What is left is short, so that writers can wait for it.
        with self._held_now(names):
            self.step_now(names)
            self._engine.flush_steps()
            at = self._engine.draw_ts()
            self.forward(self.members(names), at)
            yield at

    def recompute(self, names: Iterable[str], timeout_ms: float) -> None:
        """Have the groups of these views computed anew, by a batch refresh."""
        names = list(names)
        with self._held_now(names):
            self._lose(names)
            now_ts = self._engine.draw_ts()
        for name in names:
            self.wait_for(name, now_ts, timeout_ms)

    @contextmanager
    def given_up(self, source_id: int) -> Iterator[list[str]]:
        """The groups that are made from a table or view, straight, are held, and are computed anew afterwards, whatever
        happens to the process: their names."""
        while True:
            names = self.made_from(source_id)
            with self.held(names) as held:
                with self._ltm.lock:
                    same = held == self._ids(names) and names == self.made_from(source_id)
                    if same:
                        self._lose(names)
                if same:
                    if names:
                        self._engine.checkpoint()  # the log does not say it
                    yield names
                    return

    def _lose(self, names: Iterable[str]) -> None:
        """The caller has these groups, and the lock."""
        for key in self._keys(names):
            for view_id in self._groups[key].ids:
                self._ltm.positions[view_id] = None

    def _failures_of(self, name: str) -> int:
        return self._scheduler.schedules[self._group_of(name).key].failures_count

    def _group_of(self, name: str) -> Group:
        key = self._by_name.get(name)
        if key is None:
            raise GroupMoved(name)
        return self._groups[key]

    def status(self, name: str) -> GroupStatus:
        with self._state:
            group = self._group_of(name)
            schedule = self._scheduler.schedules[group.key]
            state = "live"
            if self._ltm.positions.get(group.key, 0) is None:
                state = "needs batch refresh"
            elif schedule.failures_count:
                state = "failing"
            elif schedule.held:
                state = "held"
            rows, size = self._backlog(group)
            return GroupStatus(state, group.names, group.watermark, schedule, rows, size)

    def members(self, names: Iterable[str]) -> set[str]:
        """The names of all views that move together with these, hidden ones and themselves included."""
        with self._state:
            groups = [self._groups[key] for key in self._keys(names)]
            return {rows.view.name for group in groups for rows in group.views}

    def _keys(self, names: Iterable[str]) -> set[int]:
        return {self._by_name[name] for name in names if name in self._by_name}

    def _ids(self, names: Iterable[str]) -> set[tuple[int, ...]]:
        """Of the groups that these views are in."""
        return {self._groups[key].ids for key in self._keys(names)}

    # -- the thread

    def _run(self) -> None:
        try:
            while (group := self._await_due()) is not None:
                try:
                    self._make_step(group)
                finally:
                    with self._state:
                        self._running = None
                        self._steps_count += 1
                        self._state.notify_all()
        except BaseException as error:  # the engine failed: every caller is answered with that
            with self._state:
                self._failure = error
                self._state.notify_all()
            if not self._engine.failed:
                self._engine.fail(error)

    def _await_due(self) -> Group | None:
        """The next group whose step is to be made; None: the database is closing."""
        while True:
            self._wake.clear()
            self._look_at_backlogs()
            self._cut()
            with self._state:
                if self._closing or self._engine.failed:
                    return None
                for progress in self._open.values():
                    group = self._groups[progress.opened.views[0]]
                    self._running = group.key
                    return group
                self._hungry = any(schedule.interval_ms == 0 for schedule in self._scheduler.schedules.values())
                waiting = [(group, self._pending(group)) for group in self._groups.values() if group.ready]
                group_due, wait_ms = self._scheduler.next(waiting, self._clock_ms())
                if group_due is not None:
                    self._running = group_due.key
                    return group_due
            self._wake.wait(min(LOOK_MS if wait_ms is None else wait_ms, LOOK_MS) / 1000)

    def _pending(self, group: Group) -> bool:
        ids = self._watched[group.key]
        lost = self._ltm.positions.get(group.key) is None
        return lost or self._subsystem.pending(ids, group.watermark) or self._missing(group)

    def _missing(self, group: Group) -> bool:
        return self._subsystem.missing_up_to(self._watched[group.key], group.watermark) > group.watermark

    def _clock_ms(self) -> float:
        return time.monotonic() * 1000

    def _open_step(self, key: int) -> Progress | None:
        return next((each for each in self._open.values() if each.opened.views[0] == key), None)

    # -- one step

    def _make_step(self, group: Group) -> None:
        began_ms = self._clock_ms()
        try:
            measures = self._may_measure(group)
            with self._state:
                evaluator = self._forced.pop(group.key, None)
            if evaluator == SPARK:
                spark_session()  # nobody waits for it here
            with self._turns:
                cost = self._step(group, measures, evaluator)
        except Exception as error:
            if self._engine.failed:
                raise
            if isinstance(error, StepTooLarge):
                self._give_up(group)
            # Whatever it is, it concerns these views only: they stay at their watermark, and say why.
            failure = str(error) if isinstance(error, Error) else f"unexpected: {error!r}"
            self._scheduler.failed(group.key, self._clock_ms(), failure)
        else:
            self._scheduler.published(group.key, began_ms, cost)

    def step_now(self, names: Iterable[str]) -> None:
        """Bring held groups to now without letting anybody else go on. The caller holds the engine's lock."""
        with self._turns.without_pauses():
            waiting = [self._groups[key] for key in self._keys(names)]
            while waiting:
                for group in waiting:
                    self._step(group)
                # A batch lets writers go on for a while, also with what the others are made from.
                waiting = [self._groups[key] for key in self._keys(names) if self._pending(self._groups[key])]

    def forward(self, names: Collection[str], ts: int) -> None:
        """These views are at `ts` too, because nothing changed since. The caller holds the engine's lock."""
        for key in self._keys(names):
            if self._groups[key].ready and self._pending(self._groups[key]):
                raise InternalError(f"views {', '.join(self._groups[key].names)} have changes to take in")
            ids = [rows.view.id for rows in self._groups[key].views if rows.view.name in names]
            self._ltm.set_watermarks(ids, ts, self._ltm.last_lsn)

    def _may_measure(self, group: Group) -> bool:
        """Only large steps of views with a target lag: to measure takes longer than writers should wait."""
        last = self._scheduler.schedules[group.key].last
        if group.mode.target_ms is None or last is None or last.rows_count < MEASURED_ROWS_MIN or not has_columns():
            return False
        load_columns()  # it takes a while, and nobody waits for it here
        return True

    def _step(self, group: Group, measures: bool = False, evaluator: str | None = None) -> Cost:
        ltm = self._ltm
        resumed = self._open_step(group.key)
        if resumed is not None:
            cost = self._resume(group, resumed, measures, evaluator)
            if cost is not None:
                return cost
        if ltm.positions.get(group.key) is None:
            return self._batch(group, evaluator)
        w0 = group.watermark
        if any(rows.versions.horizon.durable_ts != w0 for rows in group.views):
            raise InternalError(f"views {', '.join(group.names)} move together, but have different watermarks")
        if not self._pending(group):
            ltm.set_watermarks(group.ids, self._engine.draw_ts(), ltm.last_lsn)
            self._note_passed(group)
            self._forget_passed()
            return Cost(0, 0, 0.0, 0.0, 0.0, 0.0)
        cut = self._next_cut(group, w0)
        if cut is not None:
            try:
                return self._step_to(group, cut.commit_ts, cut.position, measures, evaluator)
            except Exception:
                if self._engine.failed:
                    raise
                # What could not be computed there may have been mended since.
        return self._step_to(group, self._engine.draw_ts(), ltm.last_lsn, measures, evaluator)

    def note_dropped(self, record: Dropped) -> None:
        self._dropped.update(dict.fromkeys(record.views, record.w1))

    def _resume(self, group: Group, progress: Progress, measures: bool, evaluator: str | None) -> Cost | None:
        """Finish a step that was left open; None: it was dropped, as one that fails is: what was wrong may have been
        mended since."""
        running = _Running(self, group, self._ltm.tables, measures, evaluator)
        if progress.lost:
            running.drop(progress)
            del self._open[progress.id]
            return None
        try:
            return running.run(progress, resumed=True)
        except Exception:
            if self._engine.failed:
                raise
            return None

    def _step_to(self, group: Group, w1: int, position: int, measures: bool, evaluator: str | None) -> Cost:
        """`position`: a place in the log after which all changes above W1 come."""
        opened = Opened(group.ids, group.watermark, w1, self.managers.ring(), position)
        running = _Running(self, group, self._ltm.tables, measures, evaluator)
        return running.run(Progress(opened), resumed=False)

    def _next_cut(self, group: Group, w0: int) -> Cut | None:
        """Where a step ends that would be too long, if there is such a moment."""
        if self._missing(group) or self._backlog_rows(group) > STEP_ROWS_MAX:
            # Versions are written in order: not below those of a step that was dropped.
            above = max([w0, *(self._dropped.get(view_id, 0) for view_id in group.ids)])
            return next((cut for cut in self._ltm.cuts if cut.commit_ts > above), None)
        return None

    def read_changes(self, ids: Collection[int], position: int, above: int, up_to: int) -> Logged:
        """What these tables and views did in above < commit_ts <= up_to, from the log. `position`: a place in the log
        before that."""
        found: dict[int, list[Sequence[tuple[object, ...]]]] = {}
        for _, record in self._ltm.read_log(position):
            if not isinstance(record, CommitRecord) or record.commit_ts <= above:
                continue
            if record.commit_ts > up_to:
                break
            for source_id, rows in changes_of(record, ids):
                found.setdefault(source_id, []).append(rows)
            self._turns.pause()
        return Logged(found, up_to)

    def _batch(self, group: Group, evaluator: str | None) -> Cost:
        began = time.perf_counter()
        w0 = group.watermark
        w1, position, rows_count = batch_refresh(self._engine, group, self._turns, evaluator)
        record = Published(group.ids, w0, w1, position, self._ltm.stored_lsn)
        self.persist(record, "batch published")
        self._publish(group, record)
        took_ms = (time.perf_counter() - began) * 1000
        return Cost(rows_count, 0, took_ms, 0.0, 0.0, took_ms)

    def persist(self, record: StepRecord, point: str, accepted: Callable[[StepRecord], None] | None = None) -> None:
        """Put a record into the log and apply it; what follows is only seen when it is durable. `accepted` is told of
        it before anything else can go wrong: whoever takes a step back has to know of all that was applied."""
        if self.on_point is not None:
            self.on_point(f"before {point}")
        self._engine.accept_step(record)
        if accepted is not None:
            accepted(record)
        if self.on_point is not None or self._ltm.flush_full:
            self._engine.flush_steps()
        if self.on_point is not None:
            self.on_point(f"after {point}")

    def _publish(self, group: Group, record: Published) -> None:
        self._engine.flush_steps()
        self._ltm.publish(record)
        if self.on_point is not None:
            self.on_point("after publication")
        self._note_passed(group)
        self._forget_passed()

    def _note_passed(self, group: Group, log_bytes: int = 0, waiting: int | None = None) -> None:
        """The group is at its watermark; so many bytes of the log came after it, and so many changed rows (None: all of
        them are in memory)."""
        total = self._subsystem.total(self._watched[group.key])
        waiting = self._backlog_rows(group) if waiting is None else waiting
        self._marks[group.key] = (self._ltm.log_bytes - log_bytes, total - waiting)

    def _forget_passed(self) -> None:
        """What every group has passed is not needed any more."""
        marks: dict[int, int] = {}
        for key, ids in self._watched.items():
            watermark = self._groups[key].watermark
            for source_id in ids:
                marks[source_id] = min(marks.get(source_id, watermark), watermark)
        self._subsystem.passed(marks)
        # Those that wait for a batch refresh make no steps before it.
        stepping = [group.watermark for key, group in self._groups.items() if self._ltm.positions.get(key) is not None]
        self._ltm.drop_cuts(min(stepping, default=self._ltm.horizon.durable_ts))

    # -- backlogs

    def _backlog_rows(self, group: Group) -> int:
        return self._subsystem.backlog_rows(self._watched[group.key], group.watermark)

    def _backlog(self, group: Group) -> tuple[int, int]:
        log_bytes, rows = self._marks[group.key]
        total = self._subsystem.total(self._watched[group.key])
        return max(total - rows, 0), max(self._ltm.log_bytes - log_bytes, 0)

    def _look_at_backlogs(self) -> None:
        """Whoever is too far behind has to be refreshed by a batch: its log records are given up. Also while others
        make one step after the other."""
        now_ms = self._clock_ms()
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_MS
        late, idle = [], []
        with self._state:
            for group in self._groups.values():
                rows, size = self._backlog(group)
                limits = [each.view for each in group.views if not each.view.hidden]
                rows_max = min([each.backlog_rows for each in limits if each.backlog_rows], default=BACKLOG_ROWS_MAX)
                sizes = [each.backlog_bytes for each in limits if each.backlog_bytes]
                bytes_max = min(sizes, default=BACKLOG_BYTES_MAX)
                lost = self._ltm.positions.get(group.key) is None
                if not group.ready or lost:
                    continue
                if rows and (rows > rows_max or size > bytes_max):
                    late.append(group)
                elif not rows and size and not self._pending(group):
                    idle.append(group)
        for group in late:
            self._give_up(group)
        for group in idle:
            self._let_log_go(group)

    def _give_up(self, group: Group) -> None:
        """Its changes are not kept any longer: it has to be computed anew."""
        with self._ltm.lock:
            self._give_up_locked(group)

    def _give_up_locked(self, group: Group) -> None:
        for view_id in group.ids:
            view = self._ltm.tables.views_by_id.get(view_id)
            if view is not None and view.view.deferred:  # it may have been dropped or switched meanwhile
                self._ltm.positions[view_id] = None

    def _let_log_go(self, group: Group) -> None:
        """Nothing that it is made from has changed: what others wrote need not be kept for it."""
        with self._ltm.lock:
            if group is self._groups.get(group.key) and not self._pending(group):
                self._ltm.set_watermarks(group.ids, group.watermark, self._ltm.last_lsn)
                self._note_passed(group)


class _Running:
    """Carries out what one step asks for. The engine's lock is held, but for pauses."""

    def __init__(
        self, refresher: Refresher, group: Group, tables: Tables, measures: bool, evaluator: str | None
    ) -> None:
        #: What a user has asked for; None: what costs less.
        self._evaluator = evaluator
        self._refresher, self._group, self._tables = refresher, group, tables
        self._ltm = refresher._ltm
        #: What was read from the log, because it was not in memory any more.
        self._logged = Logged({}, 0)
        self._look_ups_count = 0
        self._read_s = 0.0
        self._work_s = 0.0
        self._apply_s = 0.0
        #: Whether view managers may find out which evaluator costs less.
        self.measures = measures
        self._busy_ms: dict[ViewManager, float] = {}
        #: Whether the log says that the step was begun.
        self._opened = False

    def run(self, progress: Progress, resumed: bool) -> Cost:
        began = time.perf_counter()
        self._opened = resumed
        refresher = self._refresher
        stepping = Stepping(self._group, self._tables, progress, resumed)
        try:
            self._carry_out(stepping)
        except Exception:
            if self._opened and not refresher._engine.failed:
                self.drop(progress)
            raise
        finally:
            refresher._open.pop(progress.id, None)
        duration_ms = (time.perf_counter() - began) * 1000
        for manager in refresher.managers.members():
            manager.stepped(self._busy_ms.get(manager, 0.0), duration_ms)
        return Cost(
            stepping.changed_rows,
            self._look_ups_count,
            self._read_s * 1000,
            self._work_s * 1000,
            self._apply_s * 1000,
            duration_ms,
        )

    def _carry_out(self, stepping: Stepping) -> None:
        running = stepping.run()
        answer: object = None
        progress, refresher = stepping.progress, self._refresher
        w0, w1 = progress.opened.w0, progress.opened.w1
        while True:
            try:
                instruction = running.send(answer)
            except StopIteration:
                return
            answer = None
            match instruction:
                case Pause():
                    refresher._turns.pause()
                case Changes(source_id):
                    answer = self._changes(source_id, w0, w1)
                case Show(view, keys):
                    answer = self._show(view, keys, w0, w1)
                case Work():
                    answer = self._work(instruction, w0, w1)
                case Persist(record, point):
                    self._opened = self._opened or isinstance(record, Opened)
                    self._persist(record, point, progress.note)
                    if isinstance(record, Published):
                        refresher._publish(self._group, record)

    def _changes(self, source_id: int, w0: int, w1: int) -> list[Sequence[tuple[object, ...]]]:
        """What a table did in this step. What is not in memory is read from the log, of all sources at once; while the
        writers go on, more may be left to the log."""
        refresher = self._refresher
        ids, position = refresher._watched[self._group.key], self._ltm.positions[self._group.key]
        if not self._logged.up_to:
            self._logged = Logged({}, w0)
        while (up_to := min(refresher._subsystem.missing_up_to(ids, self._logged.up_to), w1)) > self._logged.up_to:
            assert position is not None, "a step that was opened has its changes in the log"
            more = refresher.read_changes(ids, position, self._logged.up_to, up_to)
            self._logged = self._logged.and_then(more)
        waiting = refresher._subsystem.changes(source_id, self._logged.up_to, w1)
        return [*self._logged.by_source.get(source_id, ()), *waiting]

    def _persist(self, record: StepRecord, point: str, accepted: Callable[[StepRecord], None]) -> None:
        began = time.perf_counter()
        self._refresher.persist(record, point, accepted)
        if isinstance(record, Refreshed):
            self._refresher.hot_groups.note(record.contributions)
        self._apply_s += time.perf_counter() - began

    def _show(self, view: ViewRows, keys: list[bytes], w0: int, w1: int) -> list[Write]:
        began = time.perf_counter()
        old, new = self._ltm.rows_as_of(view, keys, w0), self._ltm.rows_as_of(view, keys, w1)
        self._read_s += time.perf_counter() - began
        return [
            (key, before, after)
            for key, before, after in zip(keys, old, new, strict=True)
            if not same_row(before, after)
        ]

    def _work(self, work: Work, w0: int, w1: int) -> list[tuple[int, list[Contribution]]]:
        if self._evaluator != SPARK:
            return self._worked(work, w0, w1)
        # The first rows of a view are looked at, not computed.
        slices = [view for view in work.views if view.plan.kept.slice_of]
        others = [view for view in work.views if not view.plan.kept.slice_of]
        return [*self._on_spark(others, work, w0, w1), *self._worked(work._replace(views=slices), w0, w1)]

    def _on_spark(
        self, views: Sequence[ViewRows], work: Work, w0: int, w1: int
    ) -> list[tuple[int, list[Contribution]]]:
        """Others go on meanwhile: what tables and views are at W0 and W1 is kept."""
        began = time.perf_counter()
        old, new = (on_spark.shown_at(self._ltm, self._tables, at) for at in (w0, w1))
        with self._refresher._turns.let_go():
            found = on_spark.change_tables([view.plan for view in views], work.share, work.changed, old, new)
        for view in views:
            view.plan.note_step(SPARK)
        self._work_s += time.perf_counter() - began
        return [(view.view.id, some) for view, some in zip(views, found, strict=True) if some]

    def _worked(self, work: Work, w0: int, w1: int) -> list[tuple[int, list[Contribution]]]:
        """Let a view manager do it, or another one if that dies meanwhile."""
        evaluator = COLUMNS if self._evaluator == COLUMNS else None
        managers = self._refresher.managers
        for _ in range(WORKERS_MAX):
            manager = managers.worker(work.slot)
            working = manager.work(work.views, work.share, work.changed, work.whole, self.measures, evaluator)
            answers: Sequence[Sequence[object]] | None = None
            began = time.perf_counter()
            while managers.alive(manager):
                try:
                    wanted = next(working) if answers is None else working.send(answers)
                except StopIteration as finished:
                    self._busy_ms[manager] = self._busy_ms.get(manager, 0.0) + (time.perf_counter() - began) * 1000
                    return cast("list[tuple[int, list[Contribution]]]", finished.value)
                if wanted:
                    asked = time.perf_counter()
                    self._look_ups_count += sum(len(look_up.keys) for look_up in wanted)
                    answers = [self._ltm.answer(look_up, self._tables, w0, w1) for look_up in wanted]
                    read_s = time.perf_counter() - asked
                    self._read_s += read_s
                    self._work_s -= read_s
                else:
                    answers = []
                    piece_s = time.perf_counter() - began
                    self._work_s += piece_s
                    self._busy_ms[manager] = self._busy_ms.get(manager, 0.0) + piece_s * 1000
                    manager.took(piece_s * 1000, SLICE_MS / 2)
                    self._refresher._turns.pause()
                    began = time.perf_counter()
        raise OperationalError(f"{WORKERS_MAX} view managers died over one slot", hint="see what kills them")

    def drop(self, progress: Progress) -> None:
        """The step failed: what its slots have written is taken back."""
        touched = progress.touched()
        w0 = progress.opened.w0
        rows: dict[int, list[tuple[bytes, Row | None]]] = {}
        for view_id, keys in touched.items():
            view = self._tables.views_by_id[view_id]
            rows[view_id] = [(key, self._ltm.read(view.versions, key, w0)) for key in keys]
        for shown in progress.shown.values():
            back = tuple((view_id, [(key, new, old) for key, old, new in writes]) for view_id, writes in shown.rows)
            self._refresher.persist(shown._replace(rows=back), "taken back")
        record = progress.dropped(rows)
        try:
            self._refresher.persist(record, "dropped")
            self._refresher.note_dropped(record)
        except StepTooLarge:
            # A batch removes everything that it finds, also at W1.
            self._refresher._give_up_locked(self._group)
        self._refresher._engine.flush_steps()


def _watched(group: Group, tables: Tables) -> tuple[int, ...]:
    """The ids of the tables and synchronous views whose changes a group is made from."""
    ids: dict[int, None] = {}
    for source in group.sources(tables).values():
        if isinstance(source, TableRows):
            ids[source.table.id] = None
        else:
            ids[source.view.id] = None
            ids.update((values.view.id, None) for values in source.values)
    return tuple(ids)
