"""Repairs views of any mode.

What differs in a synchronous view is corrected by one more contribution (`verify.repair`). The rows of a deferred view
change in steps only, from one watermark to the next, so its group is computed anew by a batch refresh: readers go on at
the old watermark until it is published, writers are not stopped. The same is done to deferred views that are made from
a synchronous one that was corrected: their next step would add a correction of rows that, perhaps, were right when they
read them.
"""

from __future__ import annotations

from .embedded import Engine
from .refresher import Refresher
from .verify import Outcome, Progress, repair, verify

#: How long a repair waits for a batch refresh.
RECOMPUTE_MS_MAX = 86_400_000.0


def repair_view(engine: Engine, refresher: Refresher, name: str, progress: Progress | None = None) -> Outcome:
    """Make the stored rows of a view right, and those of all views that it is made from or that are made from it."""
    catalog = engine.ltm.tables.catalog
    if catalog.views[name].deferred:
        with engine.repairing:
            return _repair_deferred(engine, refresher, name, progress)
    outcome = repair(engine, name, progress)
    if outcome.rows_repaired:
        refresher.recompute([view.name for view in catalog.readers_of(name) if view.deferred], RECOMPUTE_MS_MAX)
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
