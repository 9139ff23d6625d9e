"""Transactions as the commit log has them: what a transaction did to a table or view stands there by columns.

    [COMMIT, tx_ids, commit_ts, catalog version,
     [[table id, keys, old rows or nil if there were none, new rows], ...],
     [[view id, keys, key values, deltas], ...]]

An array costs as much to pack as four numbers, a named tuple as much as eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias, cast

from ..changetables.refresh import Columns, Contribution, by_columns
from ..changetables.types import Row
from .codec import with_one_nan
from .history import COMMIT
from .outputs import CommitRecord, Write

#: (table id, keys, old rows, new rows)
LoggedWrites: TypeAlias = tuple[int, tuple[bytes, ...], tuple[Row | None, ...] | None, tuple[Row | None, ...]]
#: (view id, keys, key values, deltas)
LoggedContributions: TypeAlias = tuple[int, tuple[bytes, ...], tuple[Row, ...], tuple[Row, ...]]
#: As the codec gives it back.
LoggedCommit: TypeAlias = tuple[
    int, tuple[tuple[int, int], ...], int, int, tuple[LoggedWrites, ...], tuple[LoggedContributions, ...]
]


def plain_commit(record: CommitRecord) -> tuple[object, ...]:
    tx_ids, commit_ts, version, writes, contributions = record
    return (
        COMMIT,
        tx_ids,
        commit_ts,
        version,
        [(table_id, *zip(*rows, strict=True)) for table_id, rows in writes if rows],
        [(view_id, *by_columns(found)) for view_id, found in contributions if found],
    )


def plain_inserts(
    tx_ids: tuple[tuple[int, int], ...],
    commit_ts: int,
    version: int,
    table_id: int,
    keys: list[bytes],
    rows: list[Row],
    contributions: Sequence[tuple[int, Columns]],
) -> tuple[object, ...]:
    """`plain_commit` of a transaction that only inserts rows into one table."""
    contributed = [(view_id, *columns) for view_id, columns in contributions]
    return COMMIT, tx_ids, commit_ts, version, ((table_id, keys, None, rows),), contributed


def commit_of_plain(item: tuple[object, ...]) -> CommitRecord:
    _, tx_ids, commit_ts, version, writes, contributions = cast(LoggedCommit, item)
    return CommitRecord(
        tx_ids, commit_ts, version, tuple(map(writes_of_plain, writes)), tuple(map(_contributions, contributions))
    )


def writes_of_plain(logged: LoggedWrites) -> tuple[int, list[Write]]:
    table_id, keys, old, new = logged
    before = repeat(None) if old is None else map(_one_nan, old)
    return table_id, list(zip(keys, before, map(_one_nan, new), strict=False))


def contributions_in(item: tuple[object, ...], view_ids: frozenset[int]) -> CommitRecord | None:
    """Only what a transaction contributed to these views; None: nothing."""
    _, tx_ids, commit_ts, version, _, contributions = cast(LoggedCommit, item)
    wanted = tuple(_contributions(logged) for logged in contributions if logged[0] in view_ids)
    return CommitRecord(tx_ids, commit_ts, version, (), wanted) if wanted else None


def _contributions(logged: LoggedContributions) -> tuple[int, list[Contribution]]:
    view_id, keys, values, deltas = logged
    return view_id, list(map(Contribution, keys, map(with_one_nan, values), map(with_one_nan, deltas)))


def _one_nan(row: Row | None) -> Row | None:
    return None if row is None else with_one_nan(row)
