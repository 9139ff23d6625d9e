"""Repairs views of a cluster: to each row that differs is added what it should be minus what it is, by ordinary
transactions, while writers go on.

A synchronous view is corrected at the commit_ts. The rows of a deferred view change from one watermark to the next: it
is corrected at a version above all steps that were opened so far, and shows it when a step has got there. That takes a
transaction that sees no step open or end meanwhile (rule D1). Views that are made from a corrected one are compared
when they have taken the correction in: whatever they have made of it is seen then.

Every correction writes a row of its view in the table of steps. Two that repair a view at the same time meet there, and
the second one is told so: it would mend the same rows twice.
"""

from __future__ import annotations

import time

from ...changetables.errors import TransactionConflict
from ...changetables.plan import Contribution
from ...changetables.types import Row
from ...ltm.tables import ViewRows
from ...ltm.two_phase.messages import NewRow
from ..two_phase.attempt import entries_of
from ..two_phase.messages import Submit
from ..verify import LIMITS, Limits, Outcome, Progress, Repair, Snapshot
from ..vms.groups import group_key
from ..vms.step_rows import STEPS, repaired, repaired_key, step_key
from .engine import ClusterEngine
from .reader import ClusterReader
from .refreshing import ClusterRefreshing

#: So long a correction is tried again when a step begins or ends meanwhile, and so long one waits until it is shown.
CONTRIBUTE_MS_MAX = 30_000
REFRESH_MS_MAX = 600_000
AGAIN_MS = 5


class ClusterRepair(Repair):
    def __init__(
        self,
        engine: ClusterEngine,
        refreshing: ClusterRefreshing,
        name: str,
        progress: Progress | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        super().__init__(engine, name, progress, limits)
        self._engine, self._refreshing = engine, refreshing
        #: By the id of a view: the last correction that this repair has committed; and the last of all.
        self._committed: dict[int, int] = {}
        self._last_ts = 0

    def snapshot(self, name: str) -> Snapshot:
        view = self._engine.ltm.tables.views.get(name)
        if view is not None and view.view.deferred:
            # Also one that somebody began and did not wait for.
            (before_ts, _), *_ = self._engine.requests.read(0, (repaired_key(view.view.id),)).rows
            wanted_ts = max(before_ts, self._last_ts)
            if wanted_ts:
                self._refreshing.wait_for(name, wanted_ts, REFRESH_MS_MAX)
        return Snapshot(self._engine, name)

    def made_from(self, view: ViewRows) -> list[ViewRows]:
        found: dict[int, ViewRows] = {}
        waiting = [view]
        while waiting:
            below = waiting.pop()
            for above in (*below.views, *below.deferred):
                if above.view.id not in found and above.view.ready_ts:
                    found[above.view.id] = above
                    waiting.append(above)
        return list(found.values())

    def contribute(self, snapshot: Snapshot, view: ViewRows, corrections: list[Contribution]) -> None:
        unfinished = [each.view.name for each in (*view.views, *view.deferred) if not each.view.ready_ts]
        if unfinished:
            raise TransactionConflict(
                f"a view is being created from {view.view.name!r}", hint="run it again when that is done"
            )
        give_up = time.monotonic() + CONTRIBUTE_MS_MAX / 1000
        while True:
            try:
                commit_ts = self._engine.requests.commit(self._submit(snapshot, view, corrections))
                break
            except RepairedMeanwhile:
                raise
            except TransactionConflict:
                if time.monotonic() > give_up:
                    raise
            time.sleep(AGAIN_MS / 1000)
        self._committed[view.view.id] = self._last_ts = commit_ts

    def _submit(self, snapshot: Snapshot, view: ViewRows, corrections: list[Contribution]) -> Submit:
        requests, view_id = self._engine.requests, view.view.id
        seen = [repaired_key(view_id)]
        if view.view.deferred:
            seen.append(step_key(group_key(snapshot.tables, view.view.name)))
        read = requests.read(0, seen)
        if read.rows[0][0] > max(snapshot.at, self._committed.get(view_id, 0)):
            raise RepairedMeanwhile(
                f"view {view.view.name!r} is being repaired by somebody else, too", hint="repair it again after that"
            )
        cells: list[NewRow] = []
        if view.indexes and not view.view.deferred:
            # Those of a deferred view follow with the step that shows the correction.
            cells = _entries(self._engine.ltm, view, corrections, read.at)
            seen += [item.key for item in corrections]
        return Submit(
            requests.next_tx_id(),
            False,
            ((STEPS, ((repaired_key(view_id), repaired(view_id, read.at)),)),),
            read.at,
            tuple(seen),
            (),
            tuple((view_id, item.key, item.key_values, item.delta) for item in corrections),
            read.at if view.view.deferred else 0,
            snapshot.tables.catalog.version,
            True,
            tuple(cells),
        )


class RepairedMeanwhile(TransactionConflict):
    """Trying the same again would mend rows twice."""


def _entries(ltm: ClusterReader, view: ViewRows, corrections: list[Contribution], at: int) -> list[NewRow]:
    """The entries of its indexes that change with corrections of rows as they are at a timestamp. A view that shows
    minima or maxima has none: those are of a hidden view that has its rows."""
    assert not view.values
    changed: list[tuple[bytes, Row | None, Row | None]] = []
    ltm.fetch(view.versions, [item.key for item in corrections], at)
    for item in corrections:
        state = ltm.read(view.versions, item.key, at)
        new = view.plan.refresh(state, item)
        changed.append((item.key, view.plan.source_row(state), view.plan.source_row(new)))
    return [cell for entries in view.indexes for cell in entries_of(entries, changed)]


def repair_view(
    engine: ClusterEngine, refreshing: ClusterRefreshing, name: str, progress: Progress | None = None
) -> Outcome:
    """Make the stored rows of a view right, and those of all views that it is made from or that are made from it."""
    return ClusterRepair(engine, refreshing, name, progress).run()
