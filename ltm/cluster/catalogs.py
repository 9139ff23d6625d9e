"""The versions of the catalog: as they stand in ZooKeeper, and compiled for the machines of one process.

A version is *pending* at first: LTMs refuse the votes of earlier ones for good and hold its own off. When nothing that
was voted for by an earlier one is undecided anywhere, it is *open* at S: all that is committed at or below S was made
by earlier catalogs, all above S by this one or a later one (rule C1). The range map says which version that is, so that
nobody answers for a log without knowing it; what the catalog is stands in a node of its own.

What has to be found out as of S before it is certain that the version stays is found out while it is *held*: it is open
for steps of deferred views, and writers wait as if it were pending. If it is taken back, nobody has written by it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from ...changetables.errors import DataError
from ...changetables.keys import TABLE_PREFIX_BYTES
from ...changetables.refresh import Contribution
from ...changetables.types import Row
from .. import codec
from ..catalog import Catalog, catalog_from_plain, catalog_to_plain
from ..tables import Tables
from ..two_phase.messages import Refresh
from ..two_phase.participant import MS_SHIFT, RefreshRow
from ..two_phase.views import entry_after
from ..versions import Horizon

#: A version is kept for so long after the next one, for those who read at an earlier timestamp, and for logs that have
#: records of what was dropped since: longer than versions of rows are kept.
ENTRIES_MS = 60_000
#: So many at most.
ENTRIES_MAX = 64
#: Always kept: the one that is pending, the newest that is open, and the one before it.
ENTRIES_MIN = 3
#: Their size together, in bytes, before they are compressed to less than a fifth: what ZooKeeper takes in one node is a
#: megabyte.
ENTRIES_BYTES_MAX = 3_000_000
_COMPRESSION = 1
#: Changes that are remembered by their numbers, for whoever missed the answer, and why some came to nothing.
DONE_MAX = 64
FAILED_MAX = 16
#: Compiled catalogs that the machines of a process share.
COMPILED_MAX = 100
#: The timestamp of a catalog that was there before everything.
BEGINNING = 1
#: Keys of the table of a cluster's own begin with it (`coordinator/vms/step_rows.py`): ids of a catalog begin with 1.
OWN_TABLE = bytes(TABLE_PREFIX_BYTES)


#: The refresh operator of one view.
_Operator: TypeAlias = Callable[[Row | None, Contribution], Row | None]


class Entry(NamedTuple):
    """One version. `ts` is its S, 0 while it is pending; `number` is that of the command that made it."""

    version: int
    ts: int
    number: int
    data: bytes


class Done(NamedTuple):
    """A change that is open: what to answer if it is asked for again."""

    number: int
    version: int
    ts: int


class Failed(NamedTuple):
    """What a version began cannot be finished, and was taken back: class, message and hint of the error."""

    version: int
    error: tuple[str, str, str]


class Stored(NamedTuple):
    """The node: the last versions, newest last, and what was done lately. `unfinished`: the contents of views or
    indexes of the newest one are being made, as of its S; until that is done nobody else changes the catalog, and the
    version before it says what was there."""

    entries: tuple[Entry, ...] = ()
    done: tuple[Done, ...] = ()
    unfinished: bool = False
    failed: tuple[Failed, ...] = ()

    @property
    def version(self) -> int:
        return self.entries[-1].version if self.entries else 0

    @property
    def opened(self) -> tuple[Entry, ...]:
        """Those that are open, newest last."""
        return tuple(entry for entry in self.entries if entry.ts)

    @property
    def pending(self) -> bool:
        return bool(self.entries) and not self.entries[-1].ts

    def dropped(self) -> tuple[int, ...]:
        """What was dropped and is not needed any more, to finish something."""
        opened = self.opened
        return tables_of(opened[-1].data).catalog.dropped if opened and not self.unfinished else ()

    def begin(self, version: int, number: int, data: bytes) -> Stored:
        """With a pending version."""
        entries = [*self.entries, Entry(version, 0, number, data)]
        while len(entries) > ENTRIES_MIN and (
            len(entries) > ENTRIES_MAX
            or sum(len(entry.data) for entry in entries) > ENTRIES_BYTES_MAX
            or entries[1].ts < self.entries[-1].ts - (ENTRIES_MS << MS_SHIFT)
        ):
            del entries[0]
        return self._replace(entries=tuple(entries))

    def open(self, ts: int, unfinished: bool = False) -> Stored:
        """The pending version is open at `ts`."""
        entry = self.entries[-1]._replace(ts=ts)
        done = (*self.done, Done(entry.number, entry.version, ts))[-DONE_MAX:]
        return self._replace(entries=(*self.entries[:-1], entry), done=done, unfinished=unfinished)

    def fail(self, error: tuple[str, str, str]) -> Stored:
        """What the newest version began came to nothing."""
        failed = (*self.failed, Failed(self.entries[-1].version, error))[-FAILED_MAX:]
        return self._replace(failed=failed)

    def pack(self) -> bytes:
        return zlib.compress(codec.pack((self.entries, self.done, self.unfinished, self.failed)), _COMPRESSION)

    @classmethod
    def unpack(cls, data: bytes) -> Stored:
        stored: Any = codec.unpack(zlib.decompress(data))
        entries, done, unfinished, failed = stored
        return cls(
            tuple(Entry(*each) for each in entries),
            tuple(Done(*each) for each in done),
            unfinished,
            tuple(Failed(*each) for each in failed),
        )


def pack_catalog(catalog: Catalog) -> bytes:
    return codec.pack(catalog_to_plain(catalog))


def unpack_catalog(data: bytes) -> Catalog:
    plain = codec.unpack(data)
    try:
        return catalog_from_plain(plain)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise DataError(f"this is no catalog: {error}", hint="it may be of another version of Viewtide") from error


@lru_cache(maxsize=COMPILED_MAX)
def tables_of(data: bytes) -> Tables:
    """A catalog compiled. There are plans in it and no rows: machines of one process share it."""
    catalog = unpack_catalog(data)
    before = _last[0] if _last and _is_of_one_line(_last[0], catalog) else None
    tables = Tables(catalog, Horizon(), before)
    _last[:] = [tables]
    return tables


#: What was compiled last: most of the next one is as it was.
_last: list[Tables] = []


def _is_of_one_line(before: Tables, catalog: Catalog) -> bool:
    """Whether what has one id is one thing in both: a process may see catalogs of several databases. One view may have
    the id there that its partial rows have here: its plan names that id."""
    for view in catalog.views.values():
        for number in (view.id, *view.partials):
            known = before.views_by_id.get(number)
            if known is None:
                continue
            if (known.view.id, known.view.name, known.view.relation) != (view.id, view.name, view.relation):
                return False
    return True


class Catalogs:
    """What one machine knows of them. `first` refreshes view rows as long as there is no catalog in ZooKeeper."""

    def __init__(self, first: RefreshRow | None = None) -> None:
        self._first = first
        self.stored = Stored()
        self._data = b""
        self._views: dict[int, _Operator] = {}
        self._indexes: set[int] = set()

    @property
    def version(self) -> int:
        """The newest one that is known, pending or open."""
        return self.stored.version

    @property
    def opened(self) -> Entry | None:
        """The newest one that is open."""
        opened = self.stored.opened
        return opened[-1] if opened else None

    def adopt_data(self, data: bytes) -> bool:
        """The node as it was read. Most often that is what is known already."""
        if data == self._data:
            return False
        self._data = data
        return self.adopt(Stored.unpack(data))

    def adopt(self, stored: Stored) -> bool:
        """True if it is newer than what was known."""
        if (stored.version, not stored.pending) <= (self.version, not self.stored.pending):
            return False
        self.stored = stored
        for entry in stored.entries:
            tables = tables_of(entry.data)
            self._indexes.update(tables.indexes)
            for view_id, rows in tables.views_by_id.items():
                self._views[view_id] = rows.plan.refresh
        return True

    def tables(self) -> Tables | None:
        """The newest catalog that is open, compiled."""
        opened = self.opened
        return None if opened is None else tables_of(opened.data)

    def unfinished(self) -> frozenset[bytes]:
        """The first bytes of the keys of views, pending ones included, whose rows may be written at timestamps that
        have passed: their contents are being computed, or they are deferred. So for the indexes of deferred ones."""
        if not self.stored.entries:
            return frozenset()
        views = tables_of(self.stored.entries[-1].data).views_by_id
        late = [rows.view for rows in views.values() if not rows.view.ready_ts or rows.view.deferred]
        ids = [number for view in late for number in (view.id, *view.partials)]
        ids += [index.id for view in late if view.deferred for index in view.indexes]
        return frozenset(each.to_bytes(TABLE_PREFIX_BYTES, "big") for each in ids)

    def tables_at(self, ts: int) -> Tables | None:
        """The catalog of a timestamp; None if that is too long ago, or before the first one."""
        found = next((entry for entry in reversed(self.stored.opened) if entry.ts <= ts), None)
        return None if found is None else tables_of(found.data)

    def tables_by_version(self, version: int) -> Tables | None:
        found = next((entry for entry in self.stored.entries if entry.version == version), None)
        return None if found is None else tables_of(found.data)

    def refresh_row(self, refresh: Refresh, row: Row | None) -> Row | None:
        """The view's own operator. A view that no catalog has any more is gone, and what old records say of it, too:
        nobody accepts a vote, or replays a log, by a catalog that he does not have."""
        operator = self._views.get(refresh[0])
        if refresh[0] in self._indexes:
            return entry_after(refresh)
        if operator is not None:
            return operator(row, Contribution(*refresh[1:]))
        return self._first(refresh, row) if self._first is not None and not self.version else None
