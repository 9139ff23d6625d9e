"""The participant: what one LTM does in a transaction. No I/O, no clock; rows that are not in memory raise NotLoaded.

With one participant a transaction takes one phase: old rows and look-ups are answered and the commit follows in the
same step, so nothing has to be held in between, and commit_ts, drawn in that step, is above every mark: reads happen
at timestamps that were issued before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple, TypeAlias

from ..changetables.plan import STATES, Answers, LookUp, State
from ..changetables.refresh import Columns, by_columns, contributions_of
from ..changetables.types import Row
from .outputs import CommitRecord, Outputs, Write
from .tables import IndexEntries, TableRows, Tables, ViewRows

OwnRows = Mapping[str, Mapping[bytes, Row | None]]
NO_ROWS: Mapping[bytes, Row | None] = {}
#: A view, and (key, row before, row after) of what a transaction did to it.
Refreshed: TypeAlias = tuple[ViewRows, list[Write]]
#: Half the time of calling a named tuple's class.
new = tuple.__new__


class Inserts(NamedTuple):
    """A transaction that only inserts rows into one table, under keys where nothing is, in memory or in the store; and
    what it does to views."""

    tx_ids: tuple[tuple[int, int], ...]
    commit_ts: int
    table: TableRows
    keys: list[bytes]
    rows: list[Row]
    contributions: list[tuple[int, Columns]]
    refreshed: list[Refreshed]

    def record(self, catalog_version: int) -> CommitRecord:
        writes: list[Write] = list(zip(self.keys, repeat(None), self.rows, strict=False))
        contributions = tuple((view_id, contributions_of(columns)) for view_id, columns in self.contributions)
        written = ((self.table.table.id, writes),)
        return CommitRecord(self.tx_ids, self.commit_ts, catalog_version, written, contributions)


class Participant:
    """One LTM's rows, indexes and views."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    # -- before the vote

    def changed_since(
        self, snapshot: int, keys: Iterable[tuple[int, bytes]], ranges: Iterable[tuple[int, bytes, bytes]]
    ) -> tuple[int, bytes] | None:
        """The first key (table id, key) that was read at `snapshot` and has changed since, absent keys and ranges
        included; None if all still holds. Changes that a checkpoint took out of memory are the driver's to look for."""
        versions = self.tables.versions
        for table_id, key in keys:
            table = versions.get(table_id)
            if table is None:
                return table_id, key  # dropped
            if table.changed_ts > snapshot:
                newest = table.newest(key)
                if newest is not None and newest[0] > snapshot:
                    return table_id, key
        for table_id, start, stop in ranges:
            table = versions.get(table_id)
            if table is None or table.changed_between(start, stop, snapshot):
                return table_id, start
        return None

    def look_up(self, look_ups: list[LookUp], own: OwnRows) -> Answers:
        """The newest rows; `own` are the transaction's new rows by table and key. Look-ups that go along the order of
        keys, and those of views that show minima or maxima, are the driver's."""
        answers: list[Sequence[object]] = []
        by_name, indexes = self.tables.by_name, self.tables.indexes
        for look_up in look_ups:
            name, index, keys, state = look_up
            rows = by_name.get(name) or self.tables.views[name]
            mine = NO_ROWS if state == State.OLD else own_rows(own, look_up)
            if index is None:
                answers.append(_by_key(rows, keys, mine))
            elif index == STATES:
                answers.append(rows.versions.newest_rows(keys))
            else:
                answers.append(_by_prefixes(rows, indexes[index][1], keys, mine))
        return answers

    # -- the commit

    def commit(self, record: CommitRecord) -> Outputs:
        """One phase: the record is the vote and the decision. Recovery replays the log through it too."""
        contributions = [(view_id, by_columns(found)) for view_id, found in record.contributions]
        return new(Outputs, (record, partial(self._apply, record, self.refreshed(contributions))))

    def refreshed(self, changes: Sequence[tuple[int, Columns]]) -> list[Refreshed]:
        """What contributions to views make of their rows; nothing has changed yet."""
        refreshed: list[Refreshed] = []
        for view_id, contributions in changes:
            view = self.tables.views_by_id[view_id]
            plan = view.plan
            old = view.versions.newest_rows(contributions[0])
            rows = plan.refresh_all(contributions, old)
            if plan.fallible and view.checked and not plan.extremes:
                for _, _, row in rows:
                    if row is not None:
                        # A DataError belongs to the writer, not to whoever reads the view later.
                        plan.source_row(row)
            refreshed.append((view, rows))
        return refreshed

    def _apply(self, record: CommitRecord, refreshed: list[Refreshed]) -> None:
        """Make a committed record visible."""
        ts = record.commit_ts
        for table_id, writes in record.writes:
            table = self.tables.by_id[table_id]
            table.versions.put_many(writes, ts)
            for entries in table.indexes:
                entries.versions.later(writes, ts)
        self._put_refreshed(refreshed, ts)

    def insert(self, table: TableRows, keys: list[bytes], rows: list[Row], refreshed: list[Refreshed], ts: int) -> None:
        """Make new rows of one table visible, and what they did to views: `commit` of such a record, in few steps."""
        table.versions.put_new(keys, rows, ts)
        for entries in table.indexes:
            entries.versions.later_new(keys, rows, ts)
        self._put_refreshed(refreshed, ts)

    def _put_refreshed(self, refreshed: list[Refreshed], ts: int) -> None:
        for view, rows in refreshed:
            view.versions.put_many(rows, ts)
            if view.indexes:
                show = view.plan.source_row
                shown = [(key, show(old), show(new)) for key, old, new in rows]
                for entries in view.indexes:
                    entries.versions.later(shown, ts)


def own_rows(own: OwnRows, look_up: LookUp) -> Mapping[bytes, Row | None]:
    """What stands over the stored rows for a look-up: nothing, the transaction's new rows, holes in their places, or
    something in each of their places."""
    if look_up.state == State.OLD:
        return {}
    mine = own.get(look_up.table, {})
    if look_up.state == State.NEW:
        return mine
    return dict.fromkeys(mine, None if look_up.state == State.KEPT else ())


def _by_key(rows: TableRows | ViewRows, keys: list[bytes], mine: Mapping[bytes, Row | None]) -> list[Row | None]:
    if not mine:
        return rows.versions.newest_rows(keys) if type(rows) is TableRows else _newest(rows, keys)
    theirs = iter(_newest(rows, [key for key in keys if key not in mine]))
    return [mine[key] if key in mine else next(theirs) for key in keys]


def _newest(rows: TableRows | ViewRows, keys: list[bytes]) -> list[Row | None]:
    found = rows.versions.newest_rows(keys)
    if isinstance(rows, TableRows):
        return found
    return [rows.plan.source_row(state) for state in found]


def _by_prefixes(
    rows: TableRows | ViewRows, entries: IndexEntries, prefixes: list[bytes], mine: Mapping[bytes, Row | None]
) -> list[list[Row]]:
    """All prefixes at once: what is missing in memory is asked for at once too."""
    entries.versions.must_load(prefixes)
    keys = [[key for key in entries.versions.primary_keys(prefix) if key not in mine] for prefix in prefixes]
    found = iter(_newest(rows, [key for some in keys for key in some]))
    added = rows_by_prefix(entries, mine) if mine else {}
    return [
        [*(row for _ in some if (row := next(found)) is not None), *added.get(prefix, ())]
        for prefix, some in zip(prefixes, keys, strict=True)
    ]


def rows_by_prefix(entries: IndexEntries, own: Mapping[bytes, Row | None]) -> dict[bytes, list[Row]]:
    """A transaction's own rows as the index will have them."""
    by_prefix: dict[bytes, list[Row]] = {}
    for row in own.values():
        if row is not None:
            by_prefix.setdefault(entries.codec.prefix_of(row), []).append(row)
    return by_prefix
