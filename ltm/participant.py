"""The participant: what one LTM does in a transaction. No I/O, no clock; rows that are not in memory raise NotLoaded.

With one participant a transaction takes one phase: old rows and look-ups are answered and the commit follows in the
same step, so nothing has to be held in between, and commit_ts, drawn in that step, is above every mark: reads happen
at timestamps that were issued before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from ..changetables.plan import LookUp
from ..changetables.types import Row
from .outputs import Acknowledge, CommitRecord, Outputs
from .tables import IndexEntries, TableRows, Tables
from .versions import RowVersions

OwnRows = Mapping[str, Mapping[bytes, Row | None]]


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
            table = versions[table_id]
            if table.changed_ts > snapshot:
                newest = table.newest(key)
                if newest is not None and newest[0] > snapshot:
                    return table_id, key
        for table_id, start, stop in ranges:
            if versions[table_id].changed_between(start, stop, snapshot):
                return table_id, start
        return None

    def look_up(self, look_ups: list[LookUp], own: OwnRows) -> list[list[Row | None]] | list[list[list[Row]]]:
        """The newest rows; `own` are the transaction's new rows by table and key, for look-ups of the new state."""
        answers = []
        for look_up in look_ups:
            rows = self.tables.by_name[look_up.table]
            mine = own.get(look_up.table) if look_up.new else None
            if look_up.index is None:
                answers.append(_by_key(rows.versions, look_up.keys, mine))
            else:
                entries = self.tables.indexes[look_up.index][1]
                added = rows_by_prefix(entries, mine) if mine else {}
                answers.append([_by_prefix(rows, entries, prefix, mine, added) for prefix in look_up.keys])  # type: ignore[arg-type]
        return answers  # type: ignore[return-value]

    # -- the commit

    def commit(self, record: CommitRecord) -> Outputs:
        """One phase: the record is the vote and the decision. All rows that it refreshes must be loaded."""
        for view_id, contributions in record.contributions:
            self.tables.views_by_id[view_id].versions.newest_many([item.key for item in contributions])
        return Outputs(
            persist=(record,),
            apply=(partial(self.apply, record),),
            send=(Acknowledge(record.tx_id, record.commit_ts),),
        )

    def apply(self, record: CommitRecord) -> None:
        """Make a committed record visible: also how recovery replays the log."""
        ts = record.commit_ts
        by_id = self.tables.by_id
        for table_id, key, old, new in record.writes:
            rows = by_id[table_id]
            rows.versions.put(key, ts, new, old is not None)
            for entries in rows.indexes:
                _put_entry(entries, key, ts, old, new)
        for view_id, contributions in record.contributions:
            view = self.tables.views_by_id[view_id]
            versions, refresh = view.versions, view.plan.refresh
            for contribution in contributions:
                row = versions.newest_many([contribution.key])[0][1]
                versions.put(contribution.key, ts, refresh(row, contribution), row is not None)


def _by_key(versions: RowVersions, keys: list[bytes], mine: Mapping[bytes, Row | None] | None) -> list[Row | None]:
    if not mine:
        return [version[1] for version in versions.newest_many(keys)]
    theirs = versions.newest_many([key for key in keys if key not in mine])
    rows = iter(theirs)
    return [mine[key] if key in mine else next(rows)[1] for key in keys]


def _by_prefix(
    rows: TableRows,
    entries: IndexEntries,
    prefix: bytes,
    mine: Mapping[bytes, Row | None] | None,
    added: Mapping[bytes, list[Row]],
) -> list[Row]:
    keys = entries.versions.primary_keys(prefix)
    if mine:
        keys = [key for key in keys if key not in mine]
    found = [version[1] for version in rows.versions.newest_many(keys)]
    return [*(row for row in found if row is not None), *added.get(prefix, ())]


def rows_by_prefix(entries: IndexEntries, own: Mapping[bytes, Row | None]) -> dict[bytes, list[Row]]:
    """A transaction's own rows as the index will have them."""
    by_prefix: dict[bytes, list[Row]] = {}
    for row in own.values():
        if row is not None:
            by_prefix.setdefault(entries.codec.prefix_of(row), []).append(row)
    return by_prefix


def _put_entry(entries: IndexEntries, key: bytes, ts: int, old: Row | None, new: Row | None) -> None:
    codec, versions = entries.codec, entries.versions
    if old is None:
        if new is not None:
            versions.put_entry(codec.prefix_of(new), codec.entry(new, key), ts, key)
        return
    entry = codec.entry(old, key)
    kept = new is not None and codec.entry(new, key) == entry
    if not kept:
        versions.put_entry(codec.prefix_of(old), entry, ts, None)
    if new is not None and not kept:
        versions.put_entry(codec.prefix_of(new), codec.entry(new, key), ts, key)

