"""The versions of the catalog: as they stand in ZooKeeper, and compiled for the machines of one process.

A version is *pending* at first: LTMs refuse the votes of earlier ones for good and hold its own off. When nothing that
was voted for by an earlier one is undecided anywhere, it is *open* at S: all that is committed at or below S was made
by earlier catalogs, all above S by this one or a later one (rule C1). The range map says which version that is, so that
nobody answers for a log without knowing it; what the catalog is stands in a node of its own.
"""

from __future__ import annotations

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
from ..two_phase.participant import RefreshRow
from ..versions import Horizon

#: Versions that are kept for those who read at an earlier timestamp, or come late.
ENTRIES_MAX = 4
#: Their size together, in bytes: what ZooKeeper takes in one node is a megabyte.
ENTRIES_BYTES_MAX = 900_000
#: Changes that are remembered by their numbers, for whoever missed the answer.
DONE_MAX = 64
#: Compiled catalogs that the machines of a process share.
COMPILED_MAX = 16
#: The timestamp of a catalog that was there before everything.
BEGINNING = 1


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


class Stored(NamedTuple):
    """The node: the last versions, newest last, and what was done lately."""

    entries: tuple[Entry, ...] = ()
    done: tuple[Done, ...] = ()

    @property
    def version(self) -> int:
        return self.entries[-1].version if self.entries else 0

    @property
    def pending(self) -> bool:
        return bool(self.entries) and not self.entries[-1].ts

    def begin(self, version: int, number: int, data: bytes) -> Stored:
        """With a pending version."""
        entries = [*self.entries, Entry(version, 0, number, data)]
        while len(entries) > 2 and (
            len(entries) > ENTRIES_MAX or sum(len(entry.data) for entry in entries) > ENTRIES_BYTES_MAX
        ):
            del entries[0]
        return self._replace(entries=tuple(entries))

    def open(self, ts: int) -> Stored:
        """The pending version is open at `ts`."""
        entry = self.entries[-1]._replace(ts=ts)
        done = (*self.done, Done(entry.number, entry.version, ts))[-DONE_MAX:]
        return Stored((*self.entries[:-1], entry), done)

    def pack(self) -> bytes:
        return codec.pack((self.entries, self.done))

    @classmethod
    def unpack(cls, data: bytes) -> Stored:
        stored: Any = codec.unpack(data)
        entries, done = stored
        return cls(tuple(Entry(*each) for each in entries), tuple(Done(*each) for each in done))


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
    return Tables(unpack_catalog(data), Horizon())


class Catalogs:
    """What one machine knows of them. `first` refreshes view rows as long as there is no catalog in ZooKeeper."""

    def __init__(self, first: RefreshRow | None = None) -> None:
        self._first = first
        self.stored = Stored()
        self._views: dict[int, _Operator] = {}

    @property
    def version(self) -> int:
        """The newest one that is known, pending or open."""
        return self.stored.version

    @property
    def opened(self) -> Entry | None:
        """The newest one that is open."""
        return next((entry for entry in reversed(self.stored.entries) if entry.ts), None)

    def adopt(self, stored: Stored) -> bool:
        """True if it is newer than what was known."""
        if (stored.version, not stored.pending) <= (self.version, not self.stored.pending):
            return False
        self.stored = stored
        for entry in stored.entries:
            for view_id, rows in tables_of(entry.data).views_by_id.items():
                self._views[view_id] = rows.plan.refresh
        return True

    def tables(self) -> Tables | None:
        """The newest catalog that is open, compiled."""
        opened = self.opened
        return None if opened is None else tables_of(opened.data)

    def unfinished(self) -> frozenset[bytes]:
        """The first bytes of the keys of views, pending ones included, whose rows may be written at timestamps that
        have passed: their contents are being computed, or they are deferred."""
        if not self.stored.entries:
            return frozenset()
        views = tables_of(self.stored.entries[-1].data).views_by_id
        return frozenset(
            view_id.to_bytes(TABLE_PREFIX_BYTES, "big")
            for view_id, rows in views.items()
            if not rows.view.ready_ts or rows.view.deferred
        )

    def tables_at(self, ts: int) -> Tables | None:
        """The catalog of a timestamp; None if that is too long ago, or before the first one."""
        found = next((entry for entry in reversed(self.stored.entries) if entry.ts and entry.ts <= ts), None)
        return None if found is None else tables_of(found.data)

    def tables_by_version(self, version: int) -> Tables | None:
        found = next((entry for entry in self.stored.entries if entry.version == version), None)
        return None if found is None else tables_of(found.data)

    def refresh_row(self, refresh: Refresh, row: Row | None) -> Row | None:
        """The view's own operator. A view that no catalog has any more is gone, and what old records say of it, too:
        nobody accepts a vote, or replays a log, by a catalog that he does not have."""
        operator = self._views.get(refresh[0])
        if operator is not None:
            return operator(row, Contribution(*refresh[1:]))
        return self._first(refresh, row) if self._first is not None and not self.version else None
