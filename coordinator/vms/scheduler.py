"""The refresh scheduler: which group of deferred views makes its next step, and when.

An interval is a promise about lag, which is largest just before a step is published. So the next step begins early by
the time that steps take, with something to spare because not all take equally long:

    begin(n+1) = begin(n) + max(interval - 1.5 duration, interval / 2)

A *target lag* asks for the cheapest interval that keeps the promise: the longer it is, the more changes of one row
collapse into one, and the more often the cost of a step that does not depend on its size is saved. The controller
(`Tuning`) measures both costs and the share of time that refreshing takes from writers; docs/tuning.md tells why.

No clock, no I/O: `now_ms` comes in, "this group, now" or "nothing before so many ms" comes out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .groups import Group
from .modes import Mode

#: After a failure the next try waits this long, then twice as long each time, up to the other.
RETRY_MS_FIRST = 100.0
RETRY_MS_MAX = 10_000.0
#: How often a group whose interval is 0 moves its watermark while nothing changes.
IDLE_MS = 50.0

#: A step begins early by so many times what steps take.
EARLY_TIMES = 1.5

#: A target lag is kept with this much to spare.
TARGET_SHARE = 0.9
#: The shortest interval that a target lag leads to.
INTERVAL_MS_MIN = 10.0
#: Refreshing may take this share of the time from writers; above it the interval grows, up to so many times the target.
WRITERS_SHARE_MAX = 0.25
BACKED_OFF_TIMES_MAX = 4.0
#: How much a new measurement counts.
_WEIGHT = 0.3


@dataclass(slots=True)
class Cost:
    """What one step took. `busy_ms` is the time for which writers could not run."""

    rows_count: int
    look_ups_count: int
    read_ms: float
    propagate_ms: float
    apply_ms: float
    duration_ms: float

    @property
    def busy_ms(self) -> float:
        return self.read_ms + self.propagate_ms + self.apply_ms


@dataclass(slots=True)
class Tuning:
    """Finds the interval for a target lag.

        lag just before publication = interval + fixed + per_row * rows_per_ms * interval

    is kept at TARGET_SHARE of the target. `rows_per_ms` counts rows *after* netting: it falls when the interval grows
    and rows are updated again and again, which is why a longer interval can be cheaper.
    """

    interval_ms: float = INTERVAL_MS_MIN
    fixed_ms: float = 1.0
    per_row_ms: float = 0.004
    rows_per_ms: float = 0.0
    writers_share: float = 0.0
    #: 1 while the target decides; above, refreshing took too much from writers.
    backed_off_times: float = 1.0

    def measured(self, cost: Cost, since_last_ms: float, target_ms: float) -> None:
        """A step is done that began `since_last_ms` after the one before it."""
        if cost.rows_count > 100:
            per_row = max(cost.duration_ms - self.fixed_ms, 0.0) / cost.rows_count
            self.per_row_ms += _WEIGHT * (per_row - self.per_row_ms)
        elif cost.rows_count:
            self.fixed_ms += _WEIGHT * (cost.duration_ms - self.fixed_ms)
        since_last_ms = max(since_last_ms, 1.0)
        self.rows_per_ms += _WEIGHT * (cost.rows_count / since_last_ms - self.rows_per_ms)
        self.writers_share += _WEIGHT * (cost.busy_ms / since_last_ms - self.writers_share)
        if self.writers_share > WRITERS_SHARE_MAX:
            self.backed_off_times = min(self.backed_off_times * 1.5, BACKED_OFF_TIMES_MAX)
        elif self.writers_share < WRITERS_SHARE_MAX / 2:
            self.backed_off_times = max(self.backed_off_times / 1.25, 1.0)
        room_ms = TARGET_SHARE * target_ms - self.fixed_ms
        wanted_ms = room_ms / (1 + self.per_row_ms * self.rows_per_ms)
        limit_ms = BACKED_OFF_TIMES_MAX * target_ms
        self.interval_ms = min(max(wanted_ms, INTERVAL_MS_MIN) * self.backed_off_times, max(limit_ms, INTERVAL_MS_MIN))

    def text(self, target_ms: float) -> str:
        """What it decided, and why."""
        found = f"interval {self.interval_ms:.0f} ms for a target lag of {target_ms:g} ms"
        if self.backed_off_times > 1:
            return f"{found}: backed off, refreshing took {self.writers_share:.0%} of the time from writers"
        return f"{found}: {self.rows_per_ms * 1000:.0f} changed rows/s at {self.per_row_ms * 1000:.1f} us"


@dataclass(slots=True)
class Schedule:
    """What the scheduler knows of one group."""

    mode: Mode
    began_ms: float = float("-inf")
    duration_ms: float = 0.0
    #: Somebody waits for a watermark at or above it.
    wanted_ts: int = 0
    failures_count: int = 0
    failure: str = ""
    retry_ms: float = 0.0
    retry_at_ms: float = float("-inf")
    #: The step that is under way was asked for: it says nothing about the interval.
    asked: bool = False
    #: Somebody has the group for himself, or waits to have it: no step begins.
    held: int = 0
    awaited: int = 0
    steps_count: int = 0
    last: Cost | None = None
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def interval_ms(self) -> float | None:
        """How often a step begins; None: only when it is asked for."""
        return self.tuning.interval_ms if self.mode.target_ms is not None else self.mode.interval_ms

    def due_ms(self, changes_wait: bool) -> float:
        """When the next step is to begin."""
        interval = self.interval_ms
        if interval is None:
            return float("inf")
        if interval == 0:
            return float("-inf") if changes_wait else self.began_ms + IDLE_MS
        return self.began_ms + max(interval - EARLY_TIMES * self.duration_ms, interval / 2)


class Scheduler:
    """Groups by their key."""

    def __init__(self) -> None:
        self.schedules: dict[int, Schedule] = {}

    def adopt(self, groups: Iterable[Group]) -> None:
        """These are the groups now."""
        known, self.schedules = self.schedules, {}
        for group in groups:
            schedule = known.get(group.key) or Schedule(group.mode)
            schedule.mode = group.mode
            self.schedules[group.key] = schedule

    def request(self, key: int, wanted_ts: int) -> None:
        """Somebody needs the group at `wanted_ts`: now."""
        schedule = self.schedules[key]
        schedule.wanted_ts = max(schedule.wanted_ts, wanted_ts)
        schedule.retry_at_ms = float("-inf")

    def next(self, waiting: Iterable[tuple[Group, bool]], now_ms: float) -> tuple[Group | None, float | None]:
        """The group whose step is due, or how long there is none. `waiting`: the groups that can make a step, each with
        whether changes wait for it."""
        due: list[tuple[float, Group]] = []
        soonest_ms = float("inf")
        for group, changes_wait in waiting:
            schedule = self.schedules[group.key]
            if schedule.held or schedule.awaited:
                continue
            due_ms = schedule.due_ms(changes_wait)
            if schedule.wanted_ts > group.watermark:
                due_ms = float("-inf")
            due_ms = max(due_ms, schedule.retry_at_ms)
            soonest_ms = min(soonest_ms, due_ms)
            if due_ms <= now_ms:
                due.append((schedule.began_ms, group))
        if due:
            # Not the one that is most overdue: a group that is always due would keep all others from theirs.
            chosen = min(due, key=lambda item: item[0])[1]
            schedule = self.schedules[chosen.key]
            schedule.asked = schedule.wanted_ts > chosen.watermark
            return chosen, 0.0
        return None, None if soonest_ms == float("inf") else soonest_ms - now_ms

    def published(self, key: int, began_ms: float, cost: Cost) -> None:
        schedule = self.schedules.get(key)
        if schedule is None:
            return
        since_last_ms = began_ms - schedule.began_ms
        schedule.began_ms = began_ms
        schedule.failures_count, schedule.failure, schedule.retry_ms = 0, "", 0.0
        schedule.retry_at_ms = float("-inf")
        if cost.rows_count:
            schedule.steps_count += 1
            schedule.last = cost
            schedule.duration_ms += _WEIGHT * (cost.duration_ms - schedule.duration_ms)
        if schedule.mode.target_ms is not None and not schedule.asked and since_last_ms != float("inf"):
            schedule.tuning.measured(cost, since_last_ms, schedule.mode.target_ms)

    def failed(self, key: int, now_ms: float, failure: str) -> None:
        """The step left nothing behind; it is tried again, later and later."""
        schedule = self.schedules.get(key)
        if schedule is None:
            return
        schedule.began_ms = now_ms
        schedule.failures_count += 1
        schedule.failure = failure
        schedule.retry_ms = min(max(schedule.retry_ms * 2, RETRY_MS_FIRST), RETRY_MS_MAX)
        schedule.retry_at_ms = now_ms + schedule.retry_ms
