"""What a step looks up, read through coordinators: rows as of W0 and as of W1."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, cast

from ...changetables.plan import Answers, LookUp, State
from ...changetables.types import Row
from ...ltm.outputs import Write
from ...ltm.reading import same_row
from ...ltm.tables import Tables, ViewRows
from ..two_phase.look_ups import Found, Wanted, look_up
from ..two_phase.messages import ReadAt, RowsAt

Reading: TypeAlias = Generator[ReadAt, RowsAt, Answers]


def answer_between(tables: Tables, look_ups: Sequence[LookUp], w0: int, w1: int) -> Reading:
    """The answers for a change from one timestamp to another: W0 is the state before it, W1 the one after it."""
    old = [number for number, each in enumerate(look_ups) if each.state != State.NEW]
    new = [number for number, each in enumerate(look_ups) if each.state != State.OLD]
    before = dict(zip(old, (yield from _as_of(tables, [look_ups[number] for number in old], w0)), strict=True))
    after = dict(zip(new, (yield from _as_of(tables, [look_ups[number] for number in new], w1)), strict=True))
    return [_combined(each, before.get(number, ()), after.get(number, ())) for number, each in enumerate(look_ups)]


def _combined(wanted: LookUp, before: Sequence[object], after: Sequence[object]) -> Sequence[object]:
    if wanted.state == State.OLD:
        return before
    if wanted.state == State.NEW:
        return after
    kept = wanted.state == State.KEPT
    both = zip(before, after, strict=True)
    if wanted.index is None:
        rows = cast("list[tuple[Row | None, Row | None]]", list(both))
        if kept:
            return [old if same_row(old, new) else None for old, new in rows]
        return [new if old is None else old for old, new in rows]
    lists = cast("list[tuple[list[Row], list[Row]]]", list(both))
    if kept:
        return [[row for row in old if any(same_row(row, other) for other in new)] for old, new in lists]
    return [[*old, *(row for row in new if not any(same_row(row, other) for other in old))] for old, new in lists]


def _as_of(tables: Tables, look_ups: Sequence[LookUp], at: int) -> Reading:
    if not look_ups:
        return []
    asking = look_up(tables, [each._replace(state=State.OLD) for each in look_ups], {})
    found: list[Found] | None = None
    while True:
        try:
            wanted = next(asking) if found is None else asking.send(found)
        except StopIteration as finished:
            return cast(Answers, finished.value)
        keys = tuple(key for each in wanted for key in each.keys)
        ranges = tuple(one for each in wanted for one in each.ranges)
        found = _parted(wanted, (yield ReadAt(0, at, keys, ranges)))


def _parted(wanted: Sequence[Wanted], rows: RowsAt) -> list[Found]:
    """What was asked for together, given back to who asked for it."""
    each_row, each_range = iter(rows.rows), iter(rows.ranges)
    return [
        Found(
            [next(each_row)[1] for _ in each.keys],
            [tuple((key, row) for key, _, row in next(each_range)) for _ in each.ranges],
        )
        for each in wanted
    ]


def shown_between(
    tables: Tables, view: ViewRows, keys: Sequence[bytes], w0: int, w1: int
) -> Generator[ReadAt, RowsAt, list[Write]]:
    """What became of the rows that a view shows under these keys."""
    name, wanted = view.view.name, list(keys)
    old, new = yield from answer_between(
        tables, [LookUp(name, None, wanted, State.OLD), LookUp(name, None, wanted, State.NEW)], w0, w1
    )
    return [
        (key, cast("Row | None", before), cast("Row | None", after))
        for key, before, after in zip(wanted, old, new, strict=True)
        if not same_row(cast("Row | None", before), cast("Row | None", after))
    ]
