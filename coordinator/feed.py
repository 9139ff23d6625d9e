"""The change feed of a view: its own change tables, in order, from any place that the log still has.

The log has contributions, not what a view shows: `shown` finds that, and reads the log twice for it.

A synchronous view changes with every commit that contributes to it, a deferred one with every step that was published:
then all contributions of its slots count, at W1. Steps that are open or were dropped do not count. A view that was
switched has both, one after the other.

Memory: the states of the keys that changed since then, and of one step the contributions. Nothing is held between two
rounds: no snapshot, no log records. What the log has not any more is an error, never a gap.

The log has more than the history that was asked for until a checkpoint trims it. Who begins does not get that: whether
it works must not depend on when checkpoints are made. Who has begun gets whatever is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..changetables.errors import OperationalError, ProgrammingError
from ..changetables.plan import Contribution
from ..ltm.catalog import View
from ..ltm.driver import Ltm
from ..ltm.outputs import CommitRecord
from ..ltm.partial_rows import all_partials
from ..ltm.steps import Dropped, Opened, Published, Refreshed, StepId
from ..ltm.tables import ViewRows
from .embedded import Engine
from .shown import Change, Part, Sources, shown_at_start, too_young

#: Its readers have numbers of their own.
_READER = -(1 << 52)
_readers = itertools.count(1)


class Place(NamedTuple):
    """Everything above `ts` comes after `lsn` in the log."""

    ts: int
    lsn: int


class Feed:
    """Reads the change tables of one view. `ts`: everything up to it was given."""

    def __init__(self, engine: Engine, view: ViewRows, since: int | None) -> None:
        self._engine, self._ltm = engine, engine.ltm
        self._id, self._name = view.view.id, view.view.name
        #: None: still to be looked for.
        self._place: Place | None = None
        #: The view as the last round found it.
        self._seen: View | None = None
        self._has_begun = since is None
        if since is None:
            with self._ltm.lock:
                since = self.view().versions.horizon.durable_ts
        self.ts = since

    def has_news(self) -> bool:
        """Whether a round may give something: cheap, to be asked again and again. If nothing happened to the view, the
        place in the log moves on: what is passed need not be kept."""
        last_lsn, view = self._ltm.last_lsn, self.view()
        now = view.versions.horizon.durable_ts
        if now <= self.ts:
            return False
        # What changes a view is noted there before it comes into the log. What happened before this process is not.
        if self._place is None or view.view is not self._seen or _changed_ts(view) > self._place.ts:
            return True
        position: int | None = last_lsn
        if view.view.deferred:
            # A step that is open is in the log from its beginning, and noted there when its first slot is in.
            position = self._ltm.positions.get(self._id)
        if position is not None:
            self.ts, self._place = now, Place(now, min(position, last_lsn))
        return False

    def view(self) -> ViewRows:
        """As it is now."""
        view = self._ltm.tables.views_by_id.get(self._id)
        if view is None:
            raise ProgrammingError(f"view {self._name!r} was dropped", hint="its changes are gone with it")
        return view

    def round(self) -> Iterator[Change]:
        """What changed until now. Afterwards `ts` is there."""
        round_ = _Round(self._engine, self.view(), self.ts, self._place, not self._has_begun)
        try:
            for change in round_.run():
                self.ts, self._has_begun = change.ts, True
                yield change
        except OperationalError as error:
            if round_.is_trimmed:
                raise trimmed(self._engine, f"view {self._name!r}", self.ts, round_.at) from error
            raise
        self._has_begun = True
        self.ts, self._place, self._seen = max(self.ts, round_.at), round_.next_place, round_.view.view


def _changed_ts(view: ViewRows) -> int:
    return max(each.versions.changed_ts for each in (*all_partials(view), *view.values))


class _Round:
    """From one place to now; `begins`: only if that is in the history."""

    def __init__(self, engine: Engine, view: ViewRows, since: int, place: Place | None, begins: bool) -> None:
        self._engine, self._ltm, self.view, self._since = engine, engine.ltm, view, since
        self._begins = begins
        self._start_lsn = None if place is None else place.lsn
        self.at = since
        self.next_place = place

    @property
    def is_trimmed(self) -> bool:
        """Whether the log lost meanwhile what is being read."""
        return self._start_lsn is not None and self._ltm.was_trimmed(self._start_lsn)

    def run(self) -> Iterator[Change]:
        ltm, reader = self._ltm, _READER - next(_readers)
        with ltm.lock:
            # Together: the log up to this place has exactly what the view shows at that timestamp, and open steps.
            view = self.view = ltm.tables.views_by_id.get(self.view.view.id, self.view)
            self.at, last_lsn = view.versions.horizon.pin(reader), ltm.last_lsn
        try:
            if self.at <= self._since:
                return
            start_lsn = self._start_lsn = self._start()
            log = _Log(ltm, view, start_lsn, last_lsn)
            if self._begins:
                events = log.events(self._since, self.at)
                check_history(self._engine, f"view {view.view.name!r}", self._since, events)
            shown = shown_at_start(ltm, view, log.sources, lambda: log.events(self._since, self.at), self.at)
        finally:
            ltm.horizon.unpin(reader)
        if shown is not None:
            for ts, parts in log.events(self._since, self.at):
                rows = shown.change(parts)
                if rows:
                    yield Change(ts, rows)
        self.next_place = Place(self.at, log.next_lsn)

    def _start(self) -> int:
        view = self.view.view
        if self._since < view.ready_ts:
            raise too_young(view.name, view.ready_ts, self._since)
        if self._start_lsn is not None:
            return self._start_lsn
        start_lsn = self._ltm.place_before(self._since)
        if start_lsn is None:
            raise trimmed(self._engine, f"view {view.name!r}", self._since, self.at)
        return start_lsn


# --- the log ---


@dataclass(slots=True)
class _Open:
    """A step that is not yet published, or a repair above the watermark."""

    lsn: int
    parts: list[tuple[int, list[Contribution]]] = field(default_factory=list)


class _Log:
    """A part of the commit log as the events that change one view. It can be read again and again."""

    def __init__(self, ltm: Ltm, view: ViewRows, start_lsn: int, last_lsn: int) -> None:
        self._ltm, self._view = ltm, view
        self._start_lsn, self._last_lsn = start_lsn, last_lsn
        self.sources = Sources(view)
        #: Where to go on reading, once it was read to the end.
        self.next_lsn = last_lsn

    def events(self, since: int, up_to: int) -> Iterator[tuple[int, list[Part]]]:
        """What contributes to the view at timestamps of since < ts <= up_to, in their order."""
        view_id = self._view.view.id
        steps: dict[StepId, _Open] = {}
        #: Repairs of a deferred view, by commit_ts: they are seen when its watermark gets there.
        waiting: dict[int, _Open] = {}
        for lsn, record in self._ltm.read_contributions(self._start_lsn, self._last_lsn, self.sources.ids):
            match record:
                case CommitRecord(commit_ts=ts):
                    if ts > since:
                        waiting[ts] = _Open(lsn, [*record.contributions])
                        if not self.sources.was_deferred(ts):
                            yield from self._due(waiting, min(ts, up_to))
                case Opened():
                    if view_id in record.views and record.w1 > since:
                        steps[record.id] = _Open(lsn)
                case Refreshed():
                    if record.step in steps:
                        steps[record.step].parts += record.contributions
                case Dropped():
                    steps.pop((record.views[0], record.w1), None)
                case Published():
                    if view_id not in record.views or not since < record.w1 <= up_to:
                        continue
                    if record.stored_lsn:
                        raise self._batch(record)
                    yield from self._due(waiting, record.w1)
                    step = steps.pop((record.views[0], record.w1), None)
                    if step is not None:
                        yield record.w1, self.sources.parts(record.w1, step.parts)
        yield from self._due(waiting, up_to)
        self.next_lsn = min([self._last_lsn, *(each.lsn - 1 for each in (*steps.values(), *waiting.values()))])

    def _due(self, waiting: dict[int, _Open], up_to: int) -> Iterator[tuple[int, list[Part]]]:
        for ts in [ts for ts in waiting if ts <= up_to]:
            yield ts, self.sources.parts(ts, waiting.pop(ts).parts)

    def _batch(self, record: Published) -> OperationalError:
        return OperationalError(
            f"view {self._view.view.name!r} was refreshed by a batch at {record.w1}: what changed row by row before "
            "that is not known",
            hint="read it with rows() and go on from the token of that result; the oldest token that works is "
            f"Token({record.w1})",
        )


# --- how far back ---


def check_history(engine: Engine, what: str, since: int, events: Iterable[tuple[int, object]]) -> None:
    """Refuse to begin where changes would be given that are older than the history. `events` begin with a timestamp,
    and are in the order of those: they are looked at only as far as is needed."""
    passed_ts = _passed_ts(engine)
    if since >= passed_ts:
        return
    last_ts = since
    for ts, _ in events:
        if ts > passed_ts:
            break
        last_ts = ts
    if last_ts > since:
        raise _too_old(what, since, last_ts)


def _passed_ts(engine: Engine) -> int:
    """Up to here, changes are too old: older than the history, and no deferred view has still to take them in."""
    ltm = engine.ltm
    if ltm.history is None:
        return 0
    views = ltm.tables.views_by_id.values()
    needed = (each.versions.horizon.durable_ts for each in views if ltm.positions.get(each.view.id) is not None)
    return min((engine.now_ts() - ltm.history.age, *needed))


def trimmed(engine: Engine, what: str, since: int, at: int) -> OperationalError:
    """The log has not everything any more that came after `since`."""
    oldest = engine.ltm.oldest_ts()
    return _too_old(what, since, at if oldest is None else max(oldest, _passed_ts(engine)))


def _too_old(what: str, since: int, oldest: int) -> OperationalError:
    return OperationalError(
        f"the changes of {what} since {since} are not in the log any more",
        hint=f"the oldest token that works is Token({oldest}); read all of it and "
        "go on from the token of that result, and keep more with connect(..., history=, history_bytes=)",
    )
