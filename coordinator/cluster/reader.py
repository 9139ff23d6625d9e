"""Reads in a cluster: rows come from the LTMs that own them, at the reader's timestamp.

What was read at a timestamp never changes, so what is fetched ahead (`fetch`, `fetch_prefixes`, `fetch_extremes`) is
kept with its timestamp until it is read, or until there is too much of it. LTMs keep what was overwritten for
`HISTORY_MS`: whoever reads at an older timestamp is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, cast

from ...changetables.keys import prefix_stop, table_range
from ...changetables.types import Row
from ...ltm.catalog import View
from ...ltm.fair_lock import FairLock
from ...ltm.partial_rows import all_partials
from ...ltm.reading import NEWEST, Reader, ReadHorizon, Whole
from ...ltm.tables import Tables, ViewRows
from ...ltm.two_phase.messages import KeyRange
from ...ltm.two_phase.pages import rest_of, row_bytes
from ...ltm.versions import IndexVersions, TableVersions
from ..ports import GroupMoved, Switched
from ..two_phase.messages import RowsAt
from ..vms.groups import group_key
from ..vms.step_rows import watermark_key, watermark_of
from .calls import Later
from .requests import Requests

#: Rows of the first page of a scan, and of the largest one: each is so many times the one before.
PAGE_ROWS_FIRST = 256
PAGE_ROWS_MAX = 4_096
PAGE_TIMES = 4
#: A view with at most so many rows is read as a whole.
WHOLE_ROWS_MAX = 256
#: One with more is not tried again for so long.
LARGE_S = 60.0
#: The first page of whoever wants the first few rows from one end.
EDGE_ROWS_FIRST = 4
#: Keys and ranges in one message.
KEYS_MAX = 1_000
RANGES_MAX = 250
#: Entries under one prefix that are fetched ahead; where there are more, they are scanned.
PREFIX_ROWS_MAX = 200
#: Values of one group that are fetched ahead to find its minimum or maximum: the first may show nothing.
EXTREME_ROWS = 2
#: Rows that were fetched ahead and are kept in mind, over all readers, and about how many bytes.
FETCHED_ROWS_MAX = 50_000
FETCHED_BYTES_MAX = 256 * 2**20

T = TypeVar("T")
_Found = list[tuple[bytes, Row]]


class FollowsCatalog(Protocol):
    @property
    def tables(self) -> Tables:
        """As far as it is known."""

    def newest(self) -> Tables:
        """Ask for the newest ones."""

    def reach(self, version: int) -> bool:
        """Whether that is the version that is known now. Whoever reads by another one may look into an index that has
        not all entries any more."""

    def is_known(self, version: int) -> bool:
        """The same without asking for it."""

    def moves_as(self, view: View, tables: Tables, version: int) -> bool:
        """Whether a view moves with the same others by that version as by these tables; if not, the newest ones are
        fetched. CatalogMoved: whoever changes the catalog has only those that he changes."""


class _Fetched:
    """What was fetched ahead, by timestamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[int, dict[bytes, Row | None]] = {}
        self._ranges: dict[int, dict[KeyRange, _Found]] = {}
        self._count = 0
        #: Since it was last empty.
        self._bytes = 0

    def row(self, at: int, key: bytes) -> tuple[Row | None] | None:
        """In a tuple; None if it was not fetched."""
        rows = self._rows.get(at)
        return (rows[key],) if rows is not None and key in rows else None

    def range(self, at: int, wanted: KeyRange) -> _Found | None:
        ranges = self._ranges.get(at)
        return None if ranges is None else ranges.get(wanted)

    def put(self, at: int, rows: dict[bytes, Row | None], ranges: dict[KeyRange, _Found]) -> None:
        size = sum(map(row_bytes, rows.values())) + sum(row_bytes(row) for found in ranges.values() for _, row in found)
        with self._lock:
            self._count += len(rows) + sum(len(found) + 1 for found in ranges.values())
            self._bytes += size
            if self._count > FETCHED_ROWS_MAX or self._bytes > FETCHED_BYTES_MAX:
                self._rows.clear()
                self._ranges.clear()
                self._count = self._bytes = 0
            self._rows.setdefault(at, {}).update(rows)
            self._ranges.setdefault(at, {}).update(ranges)

    def forget(self, at: int) -> None:
        with self._lock:
            rows, ranges = self._rows.pop(at, {}), self._ranges.pop(at, {})
            self._count -= len(rows) + sum(len(found) + 1 for found in ranges.values())
            self._count = max(self._count, 0)
            if not self._count:
                self._bytes = 0


class ClusterHorizon:
    """Readers begin at a new timestamp. Their pins keep nothing: versions are kept for a time."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader
        self.pins: dict[int, int] = {}

    @property
    def durable_ts(self) -> int:
        return self._reader.begin()

    def pin(self, reader: int) -> int:
        at = self.durable_ts
        self.pins[reader] = at
        return at

    def unpin(self, reader: int) -> None:
        at = self.pins.pop(reader, None)
        if at is not None:
            self._reader.forget(at)


class _Watermark(ClusterHorizon):
    """Of a deferred view: what its group has published."""

    def __init__(self, reader: ClusterReader, view: View, pins: dict[int, int]) -> None:
        super().__init__(reader)
        self._view = view
        self.pins = pins

    @property
    def durable_ts(self) -> int:
        try:
            return self._reader.watermark(self._view)
        except GroupMoved as error:
            raise Switched(error.message, hint=error.hint) from None


class ClusterReader(Reader):
    def __init__(self, requests: Requests, catalogs: FollowsCatalog) -> None:
        self._requests = requests
        self._catalogs = catalogs
        self._fetched = _Fetched()
        #: Views that had too many rows to be read as a whole, and until when that is taken for granted.
        self._large: dict[int, float] = {}
        self.horizon: ClusterHorizon = ClusterHorizon(self)
        self.lock = FairLock()

    @property
    def tables(self) -> Tables:  # type: ignore[override]  # it follows the catalog
        return self._catalogs.tables

    def newest_tables(self) -> Tables:
        return self._catalogs.newest()

    def begin(self) -> int:
        """A new timestamp, and the catalog of it."""
        while True:
            now = self._requests.now()
            if self._catalogs.reach(now.catalog_version):
                return now.at

    def forget(self, at: int) -> None:
        self._fetched.forget(at)

    def horizon_of(self, view: ViewRows) -> ReadHorizon:
        if not view.view.deferred:
            return self.horizon
        return _Watermark(self, view.view, self.horizon.pins)

    def watermark(self, view: View) -> int:
        """Of a deferred view: what its group, by the catalog of the moment at which that is read, has published."""
        while True:
            tables = self.tables
            now = tables.views_by_id.get(view.id)
            if now is None or not now.view.deferred:
                raise GroupMoved(view.name)
            try:
                key = watermark_key(group_key(tables, view.name))
            except Switched:
                if self.newest_tables() is tables:
                    raise
                continue
            found = self._requests.read(0, (key,))
            if self._catalogs.moves_as(view, tables, found.catalog_version):
                return watermark_of(found.rows[0][1])

    # -- rows

    def read(self, versions: TableVersions[T], key: bytes, at: int) -> T | None:
        known = self._fetched.row(at, key)
        row = self._requests.read(_asked(at), (key,)).rows[0][1] if known is None else known[0]
        return None if row is None else self._shown_value(versions, row)

    def _shown_value(self, versions: TableVersions[T], row: Row) -> T:
        """A cell as it is read: of an index, the primary key; rows are as wide as their table is now."""
        if isinstance(versions, IndexVersions):
            return cast(T, row[0])
        table = self.tables.by_id.get(versions.table_id)
        return cast(T, row if table is None else table.whole(row))

    def scan(self, versions: TableVersions[T], start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, T]]:
        known = self._fetched.range(at, (start, stop, 0, False))
        if known is not None:
            return ((key, self._shown_value(versions, row)) for key, row in known)
        return self._pages(versions, start, stop, at, False, PAGE_ROWS_FIRST)

    def edge(
        self, versions: TableVersions[T], start: bytes, stop: bytes, at: int, last: bool
    ) -> Iterator[tuple[bytes, T]]:
        known = self._fetched.range(at, (start, stop, EXTREME_ROWS, last))
        for key, row in known or ():
            yield key, self._shown_value(versions, row)
        if known is not None:
            if len(known) < EXTREME_ROWS:
                return
            start, stop = (start, known[-1][0]) if last else (known[-1][0] + b"\0", stop)
        yield from self._pages(versions, start, stop, at, last, EDGE_ROWS_FIRST)

    def _pages(
        self, versions: TableVersions[T], start: bytes, stop: bytes, at: int, last: bool, size: int
    ) -> Iterator[tuple[bytes, T]]:
        at = _asked(at)
        while start < stop:
            wanted = (start, stop, size, last)
            found = self._requests.read(at, (), (wanted,), some=True)
            at, page = found.at, found.ranges[0]
            for key, _, row in page:
                yield key, self._shown_value(versions, row)
            if found.left_ranges:
                start, stop = found.left_ranges[0][1][:2]  # they are long: not more of them the next time
                continue
            if len(page) < size:
                return
            start, stop = rest_of(wanted, page[-1][0], len(page))[:2]
            size = min(size * PAGE_TIMES, PAGE_ROWS_MAX)

    # -- a view as a whole, in one question

    def newest_whole(self, view: ViewRows, reader: int) -> Whole | None:
        wanted = self._whole_ranges(view)
        return self._whole(view, self._requests.read(0, (), wanted, some=True)) if wanted else None

    def newest_whole_later(self, view: ViewRows, then: Callable[[Whole | None], None]) -> Later | None:
        """For the thread of the machines, which cannot wait. None: it would be in vain; `then` is not called."""
        wanted = self._whole_ranges(view)
        if not wanted:
            return None
        return self._requests.read_later(
            wanted, lambda found: then(None if found is None else self._whole(view, found))
        )

    def _whole_ranges(self, view: ViewRows) -> list[KeyRange]:
        if time.monotonic() < self._large.get(view.view.id, 0.0):
            return []
        return [(*table_range(each.versions.table_id), WHOLE_ROWS_MAX + 1, False) for each in all_partials(view)]

    def _whole(self, view: ViewRows, found: RowsAt) -> Whole | None:
        if found.error or not self._catalogs.is_known(found.catalog_version):
            return None
        if found.left_ranges or any(len(rows) > WHOLE_ROWS_MAX for rows in found.ranges):
            now = time.monotonic()
            known = {each: until for each, until in self._large.items() if now < until}
            self._large = {**known, view.view.id: now + LARGE_S}
            return None
        return found.at, [[row for _, _, row in rows] for rows in found.ranges]

    def entries_at(self, entries: IndexVersions, prefix: bytes, at: int) -> list[bytes]:
        return [key for _, key in self.scan(entries, prefix, prefix_stop(prefix), at)]

    # -- ahead

    def fetch(self, versions: TableVersions[T], keys: Sequence[bytes], at: int) -> None:
        self._fetch_keys(keys, at)

    def _fetch_keys(self, keys: Sequence[bytes], at: int) -> None:
        missing = [key for key in dict.fromkeys(keys) if self._fetched.row(at, key) is None]
        if len(missing) < 2 or at == NEWEST:
            return  # it is read as quickly when it is asked for
        for place in range(0, len(missing), KEYS_MAX):
            some = missing[place : place + KEYS_MAX]
            found = self._requests.read(at, some)
            self._fetched.put(at, {key: row for key, (_, row) in zip(some, found.rows, strict=True)}, {})

    def fetch_prefixes(self, entries: IndexVersions, prefixes: Sequence[bytes], at: int) -> None:
        if len(prefixes) < 2 or at == NEWEST:
            return
        wanted = [(prefix, prefix_stop(prefix), PREFIX_ROWS_MAX, False) for prefix in dict.fromkeys(prefixes)]
        keys: list[bytes] = []
        for (start, stop, limit, last), found in self._fetch_ranges(wanted, at):
            if len(found) < limit:
                self._fetched.put(at, {}, {(start, stop, 0, last): found})
                keys += [cast(bytes, row[0]) for _, row in found]
        self._fetch_keys(keys, at)

    def fetch_extremes(self, view: ViewRows, states: Sequence[Row | None], at: int) -> None:
        plan = view.plan
        if len(states) < 2 or at == NEWEST:
            return
        wanted: list[KeyRange] = []
        for number, each in enumerate(plan.extremes):
            for state in states:
                prefix = plan.extreme_prefix(number, state or ())
                wanted.append((prefix, prefix_stop(prefix), EXTREME_ROWS, each.last))
        for each_range, found in self._fetch_ranges(wanted, at):
            self._fetched.put(at, {}, {each_range: found})

    def _fetch_ranges(self, wanted: Sequence[KeyRange], at: int) -> Iterator[tuple[KeyRange, _Found]]:
        for place in range(0, len(wanted), RANGES_MAX):
            some = wanted[place : place + RANGES_MAX]
            found = self._requests.read(at, (), some)
            for each, rows in zip(some, found.ranges, strict=True):
                yield each, [(key, row) for key, _, row in rows]


def _asked(at: int) -> int:
    """As a coordinator is asked: 0 is a new timestamp, which is above all that there is."""
    return 0 if at == NEWEST else at
