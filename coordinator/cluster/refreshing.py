"""Deferred views of a cluster, as the API asks for them: watermarks are rows, steps are asked for at the scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...changetables.errors import NotSupportedError, ProgrammingError, StaleRead
from ...changetables.evaluators.choice import ROWS
from ...ltm.tables import Tables, ViewRows
from ..hot_groups import HotGroups
from ..ports import GroupMoved
from ..refresher import GroupStatus
from ..transaction import ANY, Intent
from ..two_phase.messages import Submit
from ..vms.cluster_messages import GroupIs, ManagerIs, WantGroup
from ..vms.groups import Group, group_key, groups_of
from ..vms.managers import ViewManagerStatus
from ..vms.scheduler import Cost, Schedule
from ..vms.step_rows import STEPS, manager_of, withdrawn, withdrawn_key, withdrawn_range
from .reader import ClusterReader
from .requests import Requests

#: How often a waiting reader looks at the watermark.
LOOK_MS = 10
#: The scheduler is asked so often, as long as somebody waits; a new one may have been elected.
ASK_MS = 200
#: So long a refresh waits without any view manager: one that died, or is restarted, is back by then. One that computes
#: many rows in one piece says nothing meanwhile.
NOBODY_MS_MAX = 120_000
#: So long all of them are silent now and then.
SILENT_MS_MAX = 2_000
LATE_HINT = "wait longer, or see its status for what it is doing"
NOBODY = "no view manager of the cluster answers"
START_ONE = (
    "start one: `viewtide view-manager --config FILE`, in a development cluster "
    "`viewtide cluster add view-manager --dir DIR`, or `start` one that was there"
)
NOBODY_HINT = f"{START_ONE}; or wait longer if one is at work on many rows"
#: So long an answer of the scheduler is waited for.
STATUS_MS_MAX = 3_000


class ClusterRefreshing:
    def __init__(self, requests: Requests, reader: ClusterReader) -> None:
        self._requests = requests
        self._reader = reader
        self.managers = ClusterViewManagers(requests)
        #: They are counted where view managers work.
        self.hot_groups = HotGroups()

    def watermark(self, name: str) -> int:
        return self._reader.watermark(_deferred(self._reader.tables, name).view)

    def wait_for(self, name: str, wanted_ts: int, timeout_ms: float, evaluator: str | None = None) -> int:
        if evaluator not in (None, ROWS):
            raise NotSupportedError(f"view managers of a cluster do not work by {evaluator!r}", hint="leave it out")
        give_up = time.monotonic() + timeout_ms / 1000
        asked_s = float("-inf")
        waiting = _Waiting(name)
        while True:
            watermark = self.watermark(name)
            if watermark >= wanted_ts:
                return watermark
            now_s = time.monotonic()
            if now_s >= give_up:
                why, hint = (f": {NOBODY}", NOBODY_HINT) if waiting.alone_ms > SILENT_MS_MAX else ("", LATE_HINT)
                raise StaleRead(
                    f"view {name!r} did not get as far as asked for within {timeout_ms:g} ms{why}", hint=hint
                )
            if now_s - asked_s > ASK_MS / 1000:
                asked_s = now_s
                waiting.check(self._group(name, wanted_ts), wanted_ts)
            time.sleep(LOOK_MS / 1000)

    def _group(self, name: str, wanted_ts: int, *, exact: bool = False) -> GroupIs:
        question = WantGroup(0, _group_key(self._reader.tables, name), wanted_ts, exact)
        return self._requests.ask(question, GroupIs, time.monotonic() + STATUS_MS_MAX / 1000)

    @contextmanager
    def aligned(self, names: Sequence[str], timeout_ms: float) -> Iterator[int]:
        tables = self._reader.tables
        views = {name: tables.views.get(name) for name in names}
        deferred = {
            _group_key(tables, name): name for name, rows in views.items() if rows is None or rows.view.deferred
        }
        if len(deferred) > 1:
            yield self._common(list(deferred.values()), timeout_ms)
            return
        now_ts = self._reader.begin()
        yield next((self.wait_for(name, now_ts, timeout_ms) for name in deferred.values()), now_ts)

    def _common(self, names: Sequence[str], timeout_ms: float) -> int:
        """One new watermark of several groups, one view of each. What they are at it stays readable for a while, also
        when they go on."""
        give_up = time.monotonic() + timeout_ms / 1000
        waiting = {name: _Waiting(name) for name in names}
        while True:
            wanted_ts, missing = self._reader.begin(), list(names)
            while missing:
                states = [(name, self._group(name, wanted_ts, exact=True)) for name in missing]
                for name, state in states:
                    waiting[name].check(state, wanted_ts)
                missing = [name for name, state in states if not (state.was_exact or state.watermark == wanted_ts)]
                if any(state.watermark > wanted_ts for name, state in states if name in missing):
                    break  # a step that had begun just before took it further: another timestamp, then
                if time.monotonic() >= give_up:
                    raise StaleRead(
                        f"{', '.join(map(repr, names))} did not get to one watermark within {timeout_ms:g} ms",
                        hint="create them with the same group=, then they always have one",
                    )
                if missing:
                    time.sleep(LOOK_MS / 1000)
            else:
                return wanted_ts

    def status(self, name: str) -> GroupStatus:
        watermark, state = self.watermark(name), self._group(name, 0)
        group = next((group for group in groups_of(self._reader.tables) if name in group.names), None)
        if group is None:
            raise GroupMoved(name)
        return GroupStatus(
            "failing" if state.failures else "live",
            group.names,
            watermark,
            _schedule(group, state),
            0,
            0,
        )


class _Waiting:
    """What happens to a view's group from when somebody begins to wait for a watermark: failures, and nobody who would
    do the work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: int | None = None
        #: Since when there is no view manager.
        self._alone_s: float | None = None

    @property
    def alone_ms(self) -> float:
        """For how long there has been no view manager."""
        return 0.0 if self._alone_s is None else (time.monotonic() - self._alone_s) * 1000

    def check(self, state: GroupIs, wanted_ts: int) -> None:
        """StaleRead if a step that would have got as far as wanted has failed since. One that had begun before, and
        ends below, says nothing. And if nobody has been there for long."""
        if state.managers:
            self._alone_s = None
        elif self._alone_s is None:
            self._alone_s = time.monotonic()
        elif self.alone_ms > NOBODY_MS_MAX:
            raise StaleRead(f"view {self._name!r} is not refreshed: {NOBODY}", hint=NOBODY_HINT)
        if self._before is None or state.failures < self._before:
            # Also after one that succeeded, and if another scheduler counts from 0.
            self._before = state.failures
        elif state.failures > self._before and state.failed_ts >= wanted_ts:
            raise StaleRead(
                f"view {self._name!r} could not be refreshed: {state.failure}",
                hint="its status shows the failure; mend the data that it names, or change the view",
            )


def _group_key(tables: Tables, name: str) -> int:
    _deferred(tables, name)
    return group_key(tables, name)


def _deferred(tables: Tables, name: str) -> ViewRows:
    view = tables.views.get(name)
    if view is None or not view.view.deferred:
        raise GroupMoved(name)
    return view


def _schedule(group: Group, state: GroupIs) -> Schedule:
    made = Schedule(group.mode)
    made.steps_count = state.steps
    made.tuning.interval_ms = state.interval_ms
    made.failures_count, made.failure = state.failures, state.failure
    if state.steps:
        made.last = Cost(state.last_rows, 0, 0.0, 0.0, 0.0, state.last_ms)
    return made


class ClusterViewManagers:
    """They are processes: started and ended where they run, assigned and withdrawn here."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def add(self) -> int:
        raise NotSupportedError("a view manager of a cluster is a process", hint=START_ONE)

    def remove(self, id: int) -> None:
        raise NotSupportedError("a view manager of a cluster is a process", hint="withdraw it, then end the process")

    def assign(self, id: int, ltm: str | None = None) -> None:
        """It gets slots of the steps that are opened from now on. All LTMs feed all view managers."""
        self._known(id)
        self._write(id, (ANY, None, None, True))

    def reassign(self, id: int, ltm: str | None = None) -> None:
        self.assign(id, ltm)

    def withdraw(self, id: int) -> None:
        """It gets no slots any more, unless there is nobody else."""
        self._known(id)
        self._write(id, withdrawn(id))

    def status(self) -> list[ViewManagerStatus]:
        (rows,) = self._requests.read(0, (), (withdrawn_range(),)).ranges
        idle = {manager_of(row) for _, _, row in rows}
        return [
            ViewManagerStatus(id, None if id in idle else process, 0.0, 0, slots, 0.0)
            for id, process, slots, _ in self._managers()
        ]

    def _managers(self) -> tuple[ManagerIs, ...]:
        give_up = time.monotonic() + STATUS_MS_MAX / 1000
        return self._requests.ask(WantGroup(0, 0, 0), GroupIs, give_up).managers

    def _known(self, id: int) -> None:
        known = [number for number, _, _, _ in self._managers()]
        if id not in known:
            raise ProgrammingError(
                f"there is no view manager {id!r}", hint=f"there are {', '.join(map(str, known)) or 'none'}"
            )

    def _write(self, id: int, intent: Intent) -> None:
        self._requests.commit(Submit(self._requests.next_tx_id(), False, ((STEPS, ((withdrawn_key(id), intent),)),)))
