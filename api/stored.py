"""A database directory read straight from its store, by a process that does not have it open.

`pinned` fixes a timestamp: the process that has the directory open keeps it readable for a while (`shared_reads`); a
directory that nobody has open is read as it was left. `StoredRows` reads there. If what was to be seen at the timestamp
is not in the store any more, that is an error, never other rows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self, cast

from .changetables.errors import DirectoryInUse, OperationalError, StaleRead, Unavailable
from .changetables.keys import table_range
from .changetables.types import Row as Values
from .changetables.types import Type
from .database import Database, connect
from .ltm.commit_log.segments import SegmentLog
from .ltm.garbage import database_closed, database_opened
from .ltm.store.lmdb import LmdbSnapshot
from .ltm.stored_reading import (
    StoredReader,
    directory_reader,
    places_between,
    shared_pins,
    stored_ltm_lsns,
    stored_position,
    stored_watermarks,
)
from .ltm.tables import TableRows, Tables, ViewRows
from .node import LTM_FOLDER, DirectoryLock, logger, ltm_numbers
from .open_socket import running_address
from .ports import OpenNode
from .reads import Snapshot, ViewReads, columns_of, unknown_table, view_columns, view_rows
from .remote import connect_remote

#: How long to wait for a process that has the directory open, and does not answer yet or is just closing it.
REACH_S_MAX = 20.0
REACH_LOOK_S = 0.02
#: Rows that are handed on at once.
PAGE_ROWS = 1_000
#: What has fewer cells is not divided: to read them takes as long as to begin another part.
SMALL_CELLS = 10_000


class Pin(NamedTuple):
    """Where a table or view is read. `number`: by which the process that keeps it knows it, and for how long it does
    after `begun_s` (by the clock). Else nobody has the directory open, and `write_id` is the last write to its store:
    after another one it may show less."""

    at: int
    number: int = 0
    lease_s: float = 0.0
    begun_s: float = 0.0
    write_id: int = 0


def pinned(directory: Path, name: str, lease_s: float) -> Pin:
    """Fix the newest timestamp at which a table or view can be read."""
    give_up = time.monotonic() + REACH_S_MAX
    while True:
        address = running_address(directory)
        if address:
            number, at = cast("tuple[int, int]", _called(address, "shared.pin", name, lease_s))
            return Pin(at, number, lease_s, time.time())
        try:
            return _closed(directory, name)
        except DirectoryInUse:
            if time.monotonic() > give_up:
                raise
        time.sleep(REACH_LOOK_S)


@contextmanager
def reached(directory: Path) -> Iterator[Database]:
    """The database through the process that has it open; one that nobody has open is opened."""
    give_up = time.monotonic() + REACH_S_MAX
    while True:
        address = running_address(directory)
        try:
            db = connect_remote(address) if address else connect(_existing(directory))
            break
        except (DirectoryInUse, Unavailable):
            if time.monotonic() > give_up:
                raise
        time.sleep(REACH_LOOK_S)
    with db:
        yield db


def _existing(directory: Path) -> Path:
    if not (directory / "store").is_dir():
        raise OperationalError(f"there is no database in {directory}", hint="check the path")
    return directory


def renew(directory: Path, pin: Pin) -> None:
    """The process that keeps the pin hears that it is still needed, if much of its lease is over."""
    due = pin.number and time.time() > pin.begun_s + pin.lease_s / 4
    address = running_address(directory) if due else ""
    if address:
        _called(address, "shared.renew", pin.number)


def _called(address: str, operation: str, *args: object) -> object:
    db = connect_remote(address)
    with db:
        return db._remote.call(operation, *args)


def _closed(directory: Path, name: str, recovered: bool = False) -> Pin:
    lock = DirectoryLock(_existing(directory))
    try:
        found = _as_left(directory, name, recovered)
    finally:
        lock.release()
    if found is not None:
        return found
    # The last process was killed, perhaps: its log is replayed, and the store brought up to date.
    connect(directory).close()
    return _closed(directory, name, recovered=True)


def _as_left(directory: Path, name: str, recovered: bool) -> Pin | None:
    """Where to read a directory whose lock is held; None if its logs may have more than its store."""
    store = LmdbSnapshot(directory / "store")
    try:
        lsn, at = stored_position(store)
        if not recovered and not (_last_lsn(directory / "log") == lsn and _has_all_of_ltms(store, directory)):
            return None
        source = found_source(directory_reader(store, at).tables, name)
        if isinstance(source, ViewRows) and source.view.deferred:
            at = stored_watermarks(store)[source.view.id]
        return Pin(at, write_id=store.write_id)
    finally:
        store.close()


def _has_all_of_ltms(store: LmdbSnapshot, directory: Path) -> bool:
    """The LTMs may have decided something that the node's log has not. A store of an earlier version does not say how
    far it is."""
    lsns = stored_ltm_lsns(store)
    names = [f"{LTM_FOLDER}{number}" for number in ltm_numbers(directory)]
    return all(lsns.get(name) == _last_lsn(directory / name) for name in names)


def _last_lsn(folder: Path) -> int:
    log = SegmentLog(folder, on_report=logger.warning)
    try:
        return log.last_lsn
    finally:
        log.close()


def found_source(tables: Tables, name: str) -> TableRows | ViewRows:
    """A table or a view that users can read."""
    rows = tables.by_name.get(name)
    if rows is not None:
        return rows
    if name not in tables.views:
        raise unknown_table(name, tables)
    return view_rows(name, tables)


class KeyRange(NamedTuple):
    start: bytes
    stop: bytes


class Closing(Protocol):
    def close(self) -> None: ...


class RowsInStore:
    """One table or view at a timestamp, in a store. A context manager, for one thread."""

    def __init__(self, store: Closing, reader: StoredReader, name: str, at: int) -> None:
        self._opened, self._reader, self.at = store, reader, at
        self.source = found_source(reader.tables, name)

    def __enter__(self) -> Self:
        # Nothing of a page is in a cycle, and the collector would look through all of it again and again.
        database_opened()
        return self

    def __exit__(self, *_: object) -> None:
        database_closed()
        self._opened.close()

    @property
    def tables(self) -> Tables:
        return self._reader.tables

    def columns(self) -> list[tuple[str, Type]]:
        """What can be seen of it."""
        header = columns_of(self.source) if isinstance(self.source, TableRows) else view_columns(self.source)
        return list(zip(header.names, header.types, strict=True))

    def whole(self) -> KeyRange:
        return KeyRange(*table_range(self.source.table.id))

    def divided(self, within: KeyRange, parts: int) -> list[KeyRange]:
        """The range in at most so many parts. Their places are computed from the first and the last key."""
        if isinstance(self.source, ViewRows) and is_one(self.source):
            return [self.whole()]
        if self._reader.is_small(*within, SMALL_CELLS):
            return [within]
        first, last = self._reader.first_key(*within), self._reader.last_key(*within)
        if first is None or last is None or first == last or parts < 2:
            return [within]
        places = [within.start, *places_between(first, last, parts), within.stop]
        return [KeyRange(start, stop) for start, stop in itertools.pairwise(places)]

    def pages(self, within: KeyRange) -> Iterator[list[Values]]:
        """The rows, with the columns that can be seen, some at a time."""
        if isinstance(self.source, TableRows):
            return self._table_pages(self.source, within)
        return self._view_pages(self.source, within)

    def _table_pages(self, rows: TableRows, within: KeyRange) -> Iterator[list[Values]]:
        visible = rows.table.visible()
        whole = len(visible) == len(rows.table.columns)
        for page in self._reader.table_pages(rows, *within, self.at):
            yield page if whole else [tuple([row[place] for place in visible]) for row in page]

    def _view_pages(self, rows: ViewRows, within: KeyRange) -> Iterator[list[Values]]:
        with Snapshot(cast(OpenNode, _StoredNode(self._reader))) as snapshot:
            view = ViewReads(snapshot, rows.view.name)
            if is_one(rows):
                yield view._outputs(*within, None)
                return
            shown = view._shown(snapshot._view_rows(rows, *within))
            while page := [row for _, row in itertools.islice(shown, PAGE_ROWS)]:
                yield page


def is_one(rows: ViewRows) -> bool:
    """Whether a view is read as a whole: its first rows, or one that is there even if nothing is stored."""
    return rows.plan.kept.kind == "ordered" or bool(rows.plan.always)


class StoredRows(RowsInStore):
    """One table or view of a directory at a pin. It holds a read transaction of the store."""

    def __init__(self, directory: Path, name: str, pin: Pin) -> None:
        store = LmdbSnapshot(directory / "store")
        try:
            if not _shows(store, pin):
                raise StaleRead(
                    f"what {name!r} was at {pin.at} is not kept any more in {directory}",
                    hint="give a longer lease, or keep the database open while it is read"
                    if pin.number
                    else "it was opened meanwhile: keep it open while it is read, or read it again",
                )
            super().__init__(store, directory_reader(store, pin.at), name, pin.at)
        except BaseException:
            store.close()
            raise


def _shows(store: LmdbSnapshot, pin: Pin) -> bool:
    if pin.number:
        return pin.at in shared_pins(store)
    return store.write_id == pin.write_id


class _StoredNode:
    """As much of an open database as a `Snapshot` needs to read a view: nobody waits, and nothing changes."""

    closed = False

    def __init__(self, reader: StoredReader) -> None:
        self.engine = self
        self.ltm = reader

    def check_open(self) -> None: ...

    def lag_ms(self, watermark: int) -> float:
        return 0.0
