"""The subsystem of one LTM: what was committed since each deferred view's watermark, and who works on it.

It hears of every committed record in order and keeps what the deferred views are made from, up to a limit; older
records are read again from the commit log. A step takes the changes of W0 < commit_ts <= W1, nets them (repeated
updates of a row inside a step cost one change), and divides them between the view managers by a hash ring.

View managers are assigned to it and withdrawn while it runs (Adler, alg. 1 and 2). The ring of an open step does not
change: its slots are named in the log. What changes is who works on a slot, so that the work of a view manager that is
gone is done by another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...changetables.change_table import Change
from ...changetables.types import Row
from ...ltm.outputs import CommitRecord, Write
from ...ltm.reading import same_row
from .hash_ring import HashRing

#: Changed rows that are kept in memory for all deferred views together: about 100 MB. Older ones are in the log.
QUEUED_ROWS_MAX = 500_000

#: The net change of rows: key -> (first old row, last new row).
Net: TypeAlias = dict[bytes, tuple[Row | None, Row | None]]


class _Queued(NamedTuple):
    """What a transaction did to one table: writes, or, of a synchronous view, contributions (their keys count)."""

    commit_ts: int
    rows: Sequence[tuple[object, ...]]


class Subsystem:
    """Queues by the id of a table or synchronous view."""

    def __init__(self, rows_max: int = QUEUED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._queues: dict[int, deque[_Queued]] = {}
        #: Everything of a queue above this commit_ts is in memory.
        self._complete_above: dict[int, int] = {}
        self._rows_count = 0
        #: Changed rows that it ever heard of.
        self.rows_fed = 0
        #: Changed rows of each table since it is watched.
        self._totals: dict[int, int] = {}

    def total(self, ids: Iterable[int]) -> int:
        """How many changed rows of these tables it heard of."""
        return sum(self._totals.get(source_id, 0) for source_id in ids)

    def watch(self, ids: Iterable[int], now_ts: int) -> None:
        """Keep the changes of exactly these tables and views; of those that are new, the ones above `now_ts`."""
        wanted = set(ids)
        for gone in self._queues.keys() - wanted:
            self._rows_count -= sum(len(item.rows) for item in self._queues.pop(gone))
            del self._complete_above[gone], self._totals[gone]
        for new in wanted - self._queues.keys():
            self._queues[new] = deque()
            self._complete_above[new] = now_ts
            self._totals[new] = 0

    def feed(self, record: CommitRecord) -> bool:
        """A transaction was committed; True if somebody waits for its changes."""
        queues = self._queues
        if not queues:
            return False
        fed = 0
        for source_id, rows in changes_of(record, queues):
            queues[source_id].append(_Queued(record.commit_ts, rows))
            self._totals[source_id] += len(rows)
            fed += len(rows)
        self._rows_count += fed
        self.rows_fed += fed
        if self._rows_count > self._rows_max:
            self._forget()
        return bool(fed)

    def _forget(self) -> None:
        """Too much is waiting: the older half is left to the log. It belongs to the views that are furthest behind."""
        oldest = sorted(item.commit_ts for queue in self._queues.values() for item in queue)
        if oldest:
            self.passed(dict.fromkeys(self._queues, oldest[len(oldest) // 2]), forgotten=True)

    def passed(self, marks: Mapping[int, int], forgotten: bool = False) -> None:
        """Nobody needs what a table did up to its mark any more; or, if forgotten, it has to be read from the log."""
        for source_id, mark in marks.items():
            queue = self._queues.get(source_id)
            if queue is None:
                continue
            while queue and queue[0].commit_ts <= mark:
                self._rows_count -= len(queue.popleft().rows)
            if forgotten:
                self._complete_above[source_id] = max(self._complete_above[source_id], mark)

    def missing_up_to(self, ids: Iterable[int], w0: int) -> int:
        """Changes in (w0, this] of these tables are not in memory; w0 if all are."""
        return max([w0, *(self._complete_above.get(source_id, 0) for source_id in ids)])

    def pending(self, ids: Iterable[int], above: int) -> bool:
        """Whether anything changed above a watermark, as far as memory tells."""
        for source_id in ids:
            try:
                if self._queues[source_id][-1].commit_ts > above:
                    return True
            except LookupError:
                continue  # nothing waits; a writer may just have left it to the log
        return False

    def backlog_rows(self, ids: Iterable[int], above: int) -> int:
        """Changed rows in memory that a view has not taken in."""
        count = 0
        for source_id in ids:
            for item in reversed(self._queues.get(source_id, ())):
                if item.commit_ts <= above:
                    break
                count += len(item.rows)
        return count

    def changes(self, source_id: int, above: int, up_to: int) -> list[Sequence[tuple[object, ...]]]:
        """What a table's transactions of above < commit_ts <= up_to did, in order, as far as it is in memory."""
        return [item.rows for item in self._queues.get(source_id, ()) if above < item.commit_ts <= up_to]


def changes_of(record: CommitRecord, ids: Container[int]) -> list[tuple[int, Sequence[tuple[object, ...]]]]:
    """What a transaction did to these tables and synchronous views."""
    found: list[tuple[int, Sequence[tuple[object, ...]]]] = []
    found += [(table_id, writes) for table_id, writes in record.writes if table_id in ids]
    found += [(view_id, contributions) for view_id, contributions in record.contributions if view_id in ids]
    return found


def net(known: Net, writes: Iterable[Write]) -> None:
    """Add writes, in commit order, to the net change of a table."""
    for key, old, new in writes:
        before = known.get(key)
        known[key] = (old, new) if before is None else (before[0], new)


def divide(writes: Iterable[Write], ring: HashRing, shares: Mapping[int, list[Change]]) -> None:
    """Add a net change to the change tables of the view managers that get its rows."""
    owner = ring.owner
    alone = shares[ring.members[0]] if len(ring.members) == 1 else None
    for key, old, new in writes:
        share = shares[owner(key)] if alone is None else alone
        if old is None:
            if new is not None:
                share.append((new, 1))
        elif new is None:
            share.append((old, -1))
        elif not same_row(old, new):
            share += ((old, -1), (new, 1))
