"""What the commit log keeps of the steps of deferred views, and what it does to the views' rows.

    opened      (views, W0, W1, slots, position)     durable before the first slot (rule D1)
    refreshed   (step, level, slot, contributions)   one slot's part of □V, written at version W1: nobody reads it yet
    shown       (step, level, rows before and after) what the views of this level show: for those made from them
    published   (views, W0, W1, position)            readers read at W1 from now on, and every change up to it is in
    cut         (commit_ts, position)                a moment at which later steps may end: rows are kept as of it
    dropped     (views, W0, W1, rows)                the step failed: at W1 the rows are again what they were at W0

A slot that is in the log is not refreshed again, whoever repeats it: that is how every change counts exactly once.
`position` is a place in the log: every change above the watermark that it belongs to comes after it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

from ..changetables.plan import Contribution
from ..changetables.types import Row
from .codec import with_one_nan
from .outputs import Write
from .tables import Tables, ViewRows

#: The first word of a log record: 0 and 1 are transactions and catalogs.
OPENED, REFRESHED, SHOWN, PUBLISHED, DROPPED, CUT = 2, 3, 4, 5, 6, 7

#: A step by its lowest view and its W1.
StepId: TypeAlias = tuple[int, int]


class Opened(NamedTuple):
    """`slots` are the view managers between which the changes are divided."""

    views: tuple[int, ...]
    w0: int
    w1: int
    slots: tuple[int, ...]
    position: int

    @property
    def id(self) -> StepId:
        return self.views[0], self.w1


class Refreshed(NamedTuple):
    step: StepId
    level: int
    slot: int
    contributions: tuple[tuple[int, list[Contribution]], ...]


class Shown(NamedTuple):
    step: StepId
    level: int
    rows: tuple[tuple[int, list[Write]], ...]


class Published(NamedTuple):
    """`stored_lsn`: the store must be at least that new, because it alone has what a batch refresh wrote."""

    views: tuple[int, ...]
    w0: int
    w1: int
    position: int
    stored_lsn: int = 0


class Dropped(NamedTuple):
    views: tuple[int, ...]
    w0: int
    w1: int
    rows: tuple[tuple[int, list[tuple[bytes, Row | None]]], ...]


class Cut(NamedTuple):
    commit_ts: int
    position: int


StepRecord: TypeAlias = Opened | Refreshed | Shown | Published | Dropped | Cut

_KINDS: dict[type, int] = {
    Opened: OPENED,
    Refreshed: REFRESHED,
    Shown: SHOWN,
    Published: PUBLISHED,
    Dropped: DROPPED,
    Cut: CUT,
}


def plain_step(record: StepRecord) -> tuple[object, ...]:
    """As the codec takes it."""
    return (_KINDS[type(record)], *record)


def step_of_plain(item: tuple[object, ...]) -> StepRecord:
    """The record that `plain_step` made this of."""
    kind, *fields = item
    if kind == OPENED:
        views, w0, w1, slots, position = cast("tuple[tuple[int, ...], int, int, tuple[int, ...], int]", fields)
        return Opened(views, w0, w1, slots, position)
    if kind == REFRESHED:
        step, level, slot, contributions = cast(
            "tuple[StepId, int, int, tuple[tuple[int, tuple[tuple[bytes, Row, Row], ...]], ...]]", fields
        )
        return Refreshed(step, level, slot, contributions_of_plain(contributions))
    if kind == SHOWN:
        step, level, rows = cast("tuple[StepId, int, tuple[tuple[int, tuple[Write, ...]], ...]]", fields)
        made = [(view, [(key, _one_nan(old), _one_nan(new)) for key, old, new in writes]) for view, writes in rows]
        return Shown(step, level, tuple(made))
    if kind == CUT:
        return Cut(*cast("tuple[int, int]", fields))
    if kind == PUBLISHED:
        return Published(*cast("tuple[tuple[int, ...], int, int, int, int]", fields))
    views, w0, w1, restored = cast(
        "tuple[tuple[int, ...], int, int, tuple[tuple[int, tuple[tuple[bytes, Row | None], ...]], ...]]", fields
    )
    return Dropped(views, w0, w1, tuple((view, [(key, _one_nan(row)) for key, row in rows]) for view, rows in restored))


def contributions_of_plain(
    plain: tuple[tuple[int, tuple[tuple[bytes, Row, Row], ...]], ...],
) -> tuple[tuple[int, list[Contribution]], ...]:
    return tuple(
        (view_id, [Contribution(key, with_one_nan(values), with_one_nan(delta)) for key, values, delta in parts])
        for view_id, parts in plain
    )


def _one_nan(row: Row | None) -> Row | None:
    return None if row is None else with_one_nan(row)


def rows_count(record: StepRecord) -> int:
    """How many rows it writes."""
    if isinstance(record, Refreshed):
        return sum(len(contributions) for _, contributions in record.contributions)
    return sum(len(rows) for _, rows in record.rows) if isinstance(record, Dropped) else 0


def refreshed_rows(record: Refreshed, tables: Tables) -> list[tuple[ViewRows, list[Write]]]:
    """The rows that a slot leaves. Raises NotLoaded if one is not in memory; nothing has changed then."""
    found = []
    for view_id, contributions in record.contributions:
        view = tables.views_by_id.get(view_id)
        if view is None:
            continue  # dropped since
        before = view.versions.newest_rows([item.key for item in contributions])
        refresh = view.plan.refresh
        found.append(
            (view, [(item.key, row, refresh(row, item)) for item, row in zip(contributions, before, strict=True)])
        )
    return found


def put_shown(record: Shown, tables: Tables) -> None:
    """Note what the indexes of views have to be made of."""
    for view_id, writes in record.rows:
        view = tables.views_by_id.get(view_id)
        for entries in () if view is None else view.indexes:
            entries.versions.later(writes, record.step[1])


def put_back(record: Dropped, tables: Tables) -> None:
    """At W1 the rows are what they were at W0."""
    for view_id, rows in record.rows:
        view = tables.views_by_id.get(view_id)
        if view is not None:
            for key, row in rows:
                view.versions.put(key, record.w1, row, replaces=True)
