"""Bulk loads: rows that go to the store beside the log, and become visible by one record of it.

    begun      the store says so, in its meta entry; `staged_ts` is drawn
    staged     cells with the timestamp `staged_ts`, durable, in as many writes as it takes; nobody sees them
    loaded     one log record: from now on they count as written at `commit_ts`
    forgotten  after a restart, when nobody reads below `commit_ts` any more: then `staged_ts` does as well

No key of a load has a version between its two timestamps: whoever writes one meanwhile makes the load fail. So the
versions of a key stand in the right order in the store, and only who reads between the two has to be told.

A load that has no log record never happened: recovery, or whoever began it, removes its cells.
"""

from __future__ import annotations

from typing import NamedTuple, cast

#: The first word of the log record; those of steps are below.
LOADED = 8
#: As commit_ts of what is staged: above everything that anybody reads at, NEWEST included.
NEVER = 2**64


class Load(NamedTuple):
    """`table_ids`: the table and its indexes. `commit_ts` is NEVER until it is loaded."""

    staged_ts: int
    commit_ts: int
    table_ids: tuple[int, ...]

    @property
    def is_loaded(self) -> bool:
        return self.commit_ts != NEVER


class Loaded(NamedTuple):
    """The log record. `given_up`: deferred views that have to be computed anew, because the log has not the rows.
    `table_id`: 0 in records of before it was noted."""

    staged_ts: int
    commit_ts: int
    rows_count: int
    given_up: tuple[int, ...]
    table_id: int = 0


def loaded_of_plain(item: tuple[object, ...]) -> Loaded:
    """The record, with its first word."""
    return Loaded(*cast("tuple[int, int, int, tuple[int, ...], int]", item[1:]))


def loads_to_plain(loads: dict[int, Load]) -> list[object]:
    return [[load.staged_ts, load.commit_ts if load.is_loaded else 0, list(load.table_ids)] for load in loads.values()]


def loads_from_plain(plain: object) -> dict[int, Load]:
    found = cast("tuple[tuple[int, int, tuple[int, ...]], ...]", plain)
    return {staged_ts: Load(staged_ts, commit_ts or NEVER, tuple(ids)) for staged_ts, commit_ts, ids in found}


def visible_from(loads: dict[int, Load]) -> dict[tuple[bytes, int], int]:
    """(table id, timestamp of a cell) -> the timestamp that it counts as, where the two differ."""
    return {
        (table_id.to_bytes(4, "big"), load.staged_ts): load.commit_ts
        for load in loads.values()
        for table_id in load.table_ids
    }
