"""A batch refresh: a group of deferred views computed anew as of W1, while its readers stay at W0.

For views whose changes since W0 are not all in the log any more. Every row is removed at W1, then the contents as of W1
are added, in pages, at the same version: nobody reads it before it is published. What it writes is not logged, so a
checkpoint comes before it is published; one that was interrupted is done again, at a later W1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ..changetables.evaluators.whole import SPARK
from ..changetables.keys import table_range
from ..changetables.plan import Contribution
from ..ltm.reading import NEWEST
from ..ltm.tables import ViewRows
from .build import PAGE_ROWS, check_shown, choose, contribute, first_contents
from .embedded import Engine
from .turns import Turns
from .vms.groups import Group

_READER = -(1 << 50)


def batch_refresh(engine: Engine, group: Group, turns: Turns, evaluator: str | None = None) -> tuple[int, int, int]:
    """Compute a group as of now. Returns W1, the place in the log that belongs to it, and the number of rows written.

    The caller holds the engine's lock in turns, and publishes.
    """
    ltm = engine.ltm
    w1, position = engine.draw_ts(), ltm.last_lsn
    reader = _READER - group.key
    ltm.horizon.pins[reader] = w1
    ltm.log_pins[reader] = position
    try:
        for view in reversed(group.views):
            _clear(engine, view, w1, turns)
        rows_count = 0
        for view in group.views:
            rows_count += fill(engine, view, w1, turns, evaluator)
        with turns.let_go():
            engine.checkpoint()
        return w1, position, rows_count
    finally:
        ltm.horizon.unpin(reader)
        del ltm.log_pins[reader]


def _clear(engine: Engine, view: ViewRows, w1: int, turns: Turns) -> None:
    """Remove all rows at `w1`, also those that an interrupted batch left."""
    ltm = engine.ltm
    if view.indexes:
        shown = ltm.shown(view, *table_range(view.view.id), NEWEST)
        while page := list(itertools.islice(shown, PAGE_ROWS)):
            for entries in view.indexes:
                entries.versions.later([(key, row, None) for key, row in page], w1)
            turns.pause()
    stored = ltm.scan(view.versions, *table_range(view.view.id), NEWEST)
    while page := list(itertools.islice(stored, PAGE_ROWS)):
        view.versions.put_many([(key, row, None) for key, row in page], w1)
        ltm.wrote_unlogged(len(page))
        turns.pause()
    _relieve(engine, turns)


def fill(engine: Engine, view: ViewRows, at: int, turns: Turns, evaluator: str | None = None) -> int:
    """Add the contents of a view as of a timestamp, at that version, and the entries of its indexes."""
    ltm = engine.ltm
    rows_count = 0
    with turns.let_go():
        chosen = choose(engine, view.plan, evaluator)
    contents = first_contents(engine, view.view.name, at, chosen)
    for contributions in _unlocked(contents, turns) if chosen.evaluator == SPARK else contents:
        contribute(engine, view, contributions, at)
        rows_count += len(contributions)
        turns.pause()
        _relieve(engine, turns)
    check_shown(engine, view, at, turns.pause)
    if view.indexes:
        shown = ltm.shown(view, *table_range(view.view.id), at)
        while page := list(itertools.islice(shown, PAGE_ROWS)):
            for entries in view.indexes:
                entries.versions.later([(key, None, row) for key, row in page], at)
            turns.pause()
    return rows_count


def _unlocked(contents: Iterator[list[Contribution]], turns: Turns) -> Iterator[list[Contribution]]:
    """Others go on while Spark works: what it reads stays as it is at its timestamp."""
    while True:
        with turns.let_go():
            some = next(contents, None)
        if some is None:
            return
        yield some


def _relieve(engine: Engine, turns: Turns) -> None:
    if engine.ltm.checkpoint_due:
        with turns.let_go():
            engine.checkpoint_if_due()
