"""What a protocol machine gives back: everything that has to happen outside it, as one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ..changetables.plan import Contribution
from ..changetables.types import Row

#: One row of a base change table: (key, old row, new row); old is None for an insert, new for a delete.
Write: TypeAlias = tuple[bytes, Row | None, Row | None]


class CommitRecord(NamedTuple):
    """What the commit log keeps of a transaction: its base change tables and its part of each synchronous view's.
    Several that do not touch each other may share a record and a commit_ts; they are ordered by tx_id.

    `writes` are (table id, writes of that table), `contributions` (view id, contributions to that view). A view that is
    not named was not refreshed by it.
    """

    tx_ids: tuple[tuple[int, int], ...]
    commit_ts: int
    catalog_version: int
    writes: tuple[tuple[int, list[Write]], ...]
    contributions: tuple[tuple[int, list[Contribution]], ...]

    @property
    def rows_count(self) -> int:
        count = 0
        for _, writes in self.writes:
            count += len(writes)
        for _, rows in self.contributions:
            count += len(rows)
        return count


class Outputs(NamedTuple):
    """`persist` goes to the log buffer; `apply` to memory at once (early visibility of one-phase transactions). Whoever
    asked is told after everything persisted so far is durable."""

    persist: CommitRecord
    apply: Callable[[], None]
