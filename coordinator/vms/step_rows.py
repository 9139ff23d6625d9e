"""What a cluster keeps of the steps of deferred views: rows of one table, written by ordinary transactions.

    (group, STEP, 0, 0, 0)          the open step: W0, W1, how many slots its changes are divided between (rule D1),
                                    and the version of the catalog that says which views it is about. Of a step that
                                    is dropped W0 is negative: no slot of it is refreshed any more, and those that are
                                    there are taken back
    (group, SLOT, W1, level, slot)  this slot is refreshed: inserted by the transaction that does it, and removed by the
                                    one that takes it back
    (group, WATERMARK, 0, 0, 0)     the published watermark
    (0, WITHDRAWN, 0, 0, manager)   this view manager gets no slots of steps that are opened from now on
    (view, PAGE, S, 0, page)        this page of a new view's contents as of S is there: inserted with it
    (view, REPAIRED, 0, 0, 0)       rows of the view were corrected: written with every correction

The table is in no user's catalog. Its id is reserved, and its keys have an owner like any others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from ...changetables.rows import row_codec
from ...changetables.schema import Column, Table
from ...changetables.types import INT, Row
from ...ltm.catalog import Catalog
from ...ltm.two_phase.messages import KeyRange
from ..transaction import ABSENT, ANY, PRESENT, Intent

#: Ids of a catalog begin with 1.
STEPS_ID = 0
STEPS = "~steps"

STEP, WATERMARK, SLOT, WITHDRAWN, PAGE, REPAIRED = 1, 2, 3, 4, 5, 6
#: The watermark of a group that has made no step: nothing was committed up to it.
BEGINNING = 1
#: The longest step has so many slots.
SLOTS_MAX = 256


def _column(name: str) -> Column:
    return Column(name, INT, nullable=False)


TABLE = Table(
    STEPS_ID,
    STEPS,
    tuple(_column(name) for name in ("group", "kind", "step", "level", "slot", "w0", "w1", "slots", "manager")),
    (0, 1, 2, 3, 4),
)
_KEYS = row_codec(TABLE).keys


def with_steps(catalog: Catalog) -> Catalog:
    """A catalog as the machines of a cluster know it."""
    return catalog.with_table(TABLE)


class Step(NamedTuple):
    """A step of a group. `slots` is 0 where only the step's name matters. `version` is that of the catalog that says
    which views the group has, 0 if there is only one. `w0` is negative if it is dropped: a view manager or scheduler
    that knows nothing of this finds nobody who would close or feed such a step."""

    group: int
    w0: int
    w1: int
    slots: int = 0
    version: int = 0

    @property
    def name(self) -> tuple[int, int, int]:
        return self.group, self.w0, self.w1

    @property
    def is_dropped(self) -> bool:
        return self.w0 < 0

    @property
    def dropped(self) -> Step:
        return self._replace(w0=-abs(self.w0))

    @property
    def as_opened(self) -> Step:
        return self._replace(w0=abs(self.w0))


def step_key(group: int) -> bytes:
    return _KEYS.encode((group, STEP, 0, 0, 0))


def watermark_key(group: int) -> bytes:
    return _KEYS.encode((group, WATERMARK, 0, 0, 0))


def slot_key(group: int, w1: int, level: int, slot: int) -> bytes:
    return _KEYS.encode((group, SLOT, w1, level, slot))


def page_key(view: int, ts: int, page: int) -> bytes:
    return _KEYS.encode((view, PAGE, ts, 0, page))


def pages_range(view: int) -> KeyRange:
    return _all(view, PAGE)


def repaired_key(view: int) -> bytes:
    return _KEYS.encode((view, REPAIRED, 0, 0, 0))


def withdrawn_key(manager: int) -> bytes:
    return _KEYS.encode((0, WITHDRAWN, 0, 0, manager))


def slots_range(group: int) -> KeyRange:
    """The slots of the open step: there are no others."""
    return _all(group, SLOT)


def withdrawn_range() -> KeyRange:
    return _all(0, WITHDRAWN)


def _all(group: int, kind: int) -> KeyRange:
    return _KEYS.encode((group, kind, 0, 0, 0)), _KEYS.encode((group, kind + 1, 0, 0, 0)), 0, False


def opened(step: Step) -> Intent:
    return ABSENT, _row_of(step), None, True


def dropped(step: Step) -> Intent:
    """Where it was open."""
    return PRESENT, _row_of(step.dropped), None, True


def _row_of(step: Step) -> Row:
    return step.group, STEP, 0, 0, 0, step.w0, step.w1, step.slots, step.version


def refreshed(step: Step, level: int, slot: int, manager: int) -> Intent:
    """Only once: whoever comes second finds it there."""
    return ABSENT, (step.group, SLOT, step.w1, level, slot, step.w0, step.w1, step.slots, manager), None, True


def paged(view: int, ts: int, page: int) -> Intent:
    """Only once, as `refreshed`."""
    return ABSENT, (view, PAGE, ts, 0, page, 0, ts, 0, 0), None, True


def published(step: Step) -> Intent:
    return ANY, (step.group, WATERMARK, 0, 0, 0, step.w0, step.w1, 0, 0), None, True


def repaired(view: int, ts: int) -> Intent:
    return ANY, (view, REPAIRED, 0, 0, 0, 0, ts, 0, 0), None, True


def withdrawn(manager: int) -> Intent:
    return ANY, (0, WITHDRAWN, 0, 0, manager, 0, 0, 0, manager), None, True


#: Where a row has to be there.
ENDED: Intent = (PRESENT, None, None, True)


def step_of(row: Row | None) -> Step | None:
    """The open step that a row tells of, or the dropped one."""
    if row is None:
        return None
    group, _, _, _, _, w0, w1, slots, version = cast("tuple[int, ...]", row)
    return Step(group, w0, w1, slots, version)


def watermark_of(row: Row | None) -> int:
    return BEGINNING if row is None else cast(int, row[6])


def slots_of(step: Step, rows: Iterable[Row]) -> set[tuple[int, int]]:
    """(level, slot) of those that are refreshed."""
    return {(cast(int, row[3]), cast(int, row[4])) for row in rows if row[2] == step.w1}


def manager_of(row: Row) -> int:
    return cast(int, row[4])
