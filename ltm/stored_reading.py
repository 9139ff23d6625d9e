"""Reads of what a checkpoint left in a store, at a timestamp, by a process that does not have the database open.

Of a directory: the process that has it open pins the timestamp and makes a checkpoint first (`Ltm.share`). Whether what
is read is what was there at the timestamp is told by the store itself, in the same read transaction that all reads use:
`shared_pins`.
Of a cluster: whoever asks is answered when the store is complete up to the timestamp (`Requests.await_stored`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from ..changetables.errors import OperationalError
from ..changetables.keys import prefix_stop
from ..changetables.types import Row
from .bulk_staging import META as LOADS
from .catalog import Catalog, catalog_from_plain
from .codec import unpack
from .driver import LTM_LSNS, SHARED_PINS
from .loads import loads_from_plain, visible_from
from .ports import Cell, NameCell
from .reading import NEWEST, Reader
from .tables import TableRows, Tables, ViewRows
from .versions import Horizon, IndexVersions, TableVersions

#: Cells read at once: some hundred microseconds, and little memory.
PAGE_CELLS = 1_000
#: Bytes behind the common beginning of all keys that places between them are computed from.
PLACE_BYTES = 8

T = TypeVar("T")


class StoreSnapshot(Protocol):
    """All reads see one state: `LmdbSnapshot`, `HbaseSnapshot`."""

    def get(self, key: bytes, at: int) -> Cell | None: ...
    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]: ...
    def values(self, start: bytes, stop: bytes, at: int, limit: int) -> tuple[Sequence[bytes], bytes | None]: ...
    def max_key(self, start: bytes, stop: bytes) -> bytes | None: ...


class DirectorySnapshot(StoreSnapshot, Protocol):
    """Of a directory: what is beside the rows, too."""

    name_cell: NameCell

    def meta(self, name: str) -> bytes | None: ...
    def count_as(self, timestamps: Mapping[tuple[bytes, int], int]) -> None: ...


class StoredReader(Reader):
    """Everything is read at `at`, deferred views too: of them it is the watermark."""

    horizon: Horizon

    def __init__(self, store: StoreSnapshot, at: int, catalog: Catalog) -> None:
        self._store = store
        self.horizon = Horizon()
        self.horizon.publish(at)
        self.tables = Tables(catalog, self.horizon)
        self.lock = threading.RLock()

    # -- where the rows are

    def read(self, versions: TableVersions[T], key: bytes, at: int) -> T | None:
        cell = self._store.get(key, at)
        return None if cell is None or cell.value is None else versions.decode(cell.value)

    def scan(self, versions: TableVersions[T], start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, T]]:
        decode = versions.decode
        for page in self._pages(start, stop, at):
            for key, _, value in page:
                if value is not None:
                    yield key, decode(value)

    def table_pages(self, rows: TableRows, start: bytes, stop: bytes, at: int) -> Iterator[list[Row]]:
        """The rows of a table, some at a time, in the fast way: decoded together."""
        return rows.pages(self._store.values, start, stop, at)

    def _pages(self, start: bytes, stop: bytes, at: int) -> Iterator[list[Cell]]:
        """The cells of a range, tombstones included, some at a time."""
        while start < stop:
            cells = self._store.scan(start, stop, at, PAGE_CELLS)
            if cells:
                yield cells
            if len(cells) < PAGE_CELLS:
                return
            start = cells[-1].key + b"\0"

    def edge(
        self, versions: TableVersions[T], start: bytes, stop: bytes, at: int, last: bool
    ) -> Iterator[tuple[bytes, T]]:
        if not last:
            yield from self.scan(versions, start, stop, at)
            return
        while start < stop and (key := self._store.max_key(start, stop)) is not None:
            row = self.read(versions, key, at)
            if row is not None:
                yield key, row
            stop = key

    def entries_at(self, entries: IndexVersions, prefix: bytes, at: int) -> list[bytes]:
        return [key for _, key in self.scan(entries, prefix, prefix_stop(prefix), at)]

    def horizon_of(self, view: ViewRows) -> Horizon:
        return self.horizon

    def is_small(self, start: bytes, stop: bytes, cells: int) -> bool:
        """Whether a range has fewer cells than that."""
        return len(self._store.scan(start, stop, NEWEST, cells)) < cells

    def first_key(self, start: bytes, stop: bytes) -> bytes | None:
        """The lowest key of a range, whatever is visible under it."""
        found = self._store.scan(start, stop, NEWEST, 1)
        return found[0].key if found else None

    def last_key(self, start: bytes, stop: bytes) -> bytes | None:
        return self._store.max_key(start, stop)


def directory_reader(store: DirectorySnapshot, at: int) -> StoredReader:
    catalog = store.meta("catalog")
    if catalog is None:
        raise OperationalError("the store holds no database yet", hint="check the path")
    loads = store.meta(LOADS)
    if loads is not None:
        # What is being loaded, or was after `at`, is in the store, too.
        store.count_as(visible_from(loads_from_plain(unpack(loads))))
    reader = StoredReader(store, at, catalog_from_plain(unpack(catalog)))
    store.name_cell = reader.tables.cell_name
    return reader


def shared_pins(store: DirectorySnapshot) -> list[int]:
    """The timestamps that the process which has the database open keeps readable for others."""
    packed = store.meta(SHARED_PINS)
    return [] if packed is None else list(cast("tuple[int, ...]", unpack(packed)))


def stored_position(store: DirectorySnapshot) -> tuple[int, int]:
    """(lsn, timestamp): every log record and every version up to them is in the store."""
    packed = store.meta("position")
    return (0, 0) if packed is None else cast("tuple[int, int]", unpack(packed))


def stored_ltm_lsns(store: DirectorySnapshot) -> dict[str, int]:
    """Of the logs of several LTMs, by name: all that their records up to it have decided is in the store."""
    packed = store.meta(LTM_LSNS)
    return {} if packed is None else dict(cast("tuple[tuple[str, int], ...]", unpack(packed)))


def stored_watermarks(store: DirectorySnapshot) -> dict[int, int]:
    """Of the deferred views, by id."""
    packed = store.meta("progress")
    found = () if packed is None else cast("tuple[tuple[int, int, int | None], ...]", unpack(packed))
    return {view_id: watermark for view_id, watermark, _ in found}


def places_between(first: bytes, last: bytes, parts: int) -> list[bytes]:
    """Places at about the same distance from each other between two keys, as many as divide it into so many parts."""
    common = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    low, high = (
        int.from_bytes(key[common : common + PLACE_BYTES].ljust(PLACE_BYTES, b"\0"), "big") for key in (first, last)
    )
    places = sorted({low + (high - low) * part // parts for part in range(1, parts)} - {low})
    return [first[:common] + place.to_bytes(PLACE_BYTES, "big") for place in places]
