"""Repairs views of any mode.

What differs in a synchronous view is corrected by one more contribution (`verify.repair`). The rows of a deferred view
change in steps only, from one watermark to the next, so its group is computed anew by a batch refresh: readers go on at
the old watermark until it is published, writers are not stopped. The same is done to deferred views that are made from
a synchronous one that is corrected, whichever of those that a repair goes through it is: their next step would add a
correction of rows that, perhaps, were right when they read them. They are given up before the correction is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..changetables.errors import ProgrammingError
from .embedded import Engine
from .ports import GroupMoved
from .refresher import Refresher
from .verify import LIMITS, Outcome, Progress, repair, verify

#: How long a repair waits for a batch refresh.
RECOMPUTE_MS_MAX = 86_400_000.0


def repair_view(engine: Engine, refresher: Refresher, name: str, progress: Progress | None = None) -> Outcome:
    """Make the stored rows of a view right, and those of all views that it is made from or that are made from it."""
    while True:
        view = engine.ltm.tables.catalog.views.get(name)
        if view is None:
            raise ProgrammingError(f"there is no view {name!r}", hint="it may have been dropped meanwhile")
        with suppress(GroupMoved):  # it was switched meanwhile: again, as what it is now
            if not view.deferred:
                return _repair_sync(engine, refresher, name, progress)
            with engine.repairing:
                return _repair_deferred(engine, refresher, name, progress)


def _repair_sync(engine: Engine, refresher: Refresher, name: str, progress: Progress | None) -> Outcome:
    given_up: dict[str, None] = {}

    @contextmanager
    def giving_up(view_id: int) -> Iterator[None]:
        with refresher.given_up(view_id) as names:
            given_up.update(dict.fromkeys(names))
            yield

    outcome = repair(engine, name, progress, LIMITS, giving_up)
    with engine.ltm.lock:
        now_ts = engine.draw_ts()
    for each in given_up:
        with suppress(GroupMoved):  # whoever switched it has brought it to that moment
            refresher.wait_for(each, now_ts, RECOMPUTE_MS_MAX)
    return outcome


def _repair_deferred(engine: Engine, refresher: Refresher, name: str, progress: Progress | None) -> Outcome:
    found = verify(engine, name, progress)
    if found.ok:
        return found
    refresher.recompute([name], RECOMPUTE_MS_MAX)
    after = verify(engine, name)
    if after.ok:
        after.rows_repaired = found.rows_differing
        after.rows_differing, after.differences = found.rows_differing, found.differences
    return after
