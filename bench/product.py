"""Viewtide embedded, through its public API only: as the dashboard's systems `viewtide` and `viewtide_asyncio`, and
with every refresh mode of the intervals.

The defaults are what is measured: `connect(directory)` is durable, an acknowledged commit is on the disk. Creating the
view also creates the index on events.product that its join needs: Viewtide keeps an index here that the triggers of the
peers do without. Without a view there is no such index, so what a view costs the writers includes it.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from .errors import BenchError
from .load import Read
from .workload import INSERT, TABLES, VIEW_NAME, VIEW_SQL, BaseTable, Event, Value, ViewRow, base_rows

#: Rows per transaction while the initial rows are loaded.
LOAD_ROWS_PER_TRANSACTION = 1_000
#: A watermark is a commit_ts: milliseconds since 1970, and below them so many bits that tell commits apart.
COMMIT_TS_BITS_BELOW_MS = 20

SYNC = "sync"

RowDict = dict[str, Value]


# The public names that this bench uses, and no others. They are declared here and not imported, so that the peers can
# be measured, and this file checked, where viewtide is not installed.
class _Verification(Protocol):
    @property
    def ok(self) -> bool: ...


class _Result(Protocol):
    @property
    def watermark(self) -> int: ...


class _View(Protocol):
    def rows(self) -> Sequence[Mapping[str, object]]: ...
    def refresh(self) -> object: ...
    def verify(self) -> _Verification: ...


class _Transaction(Protocol):
    def insert(self, table: str, rows: list[RowDict]) -> object: ...
    def upsert(self, table: str, rows: list[RowDict]) -> object: ...


class _Database(Protocol):
    def create_table(self, name: str, columns: dict[str, object], *, key: str) -> object: ...
    def create_view(self, name: str, definition: str, *, refresh: str) -> object: ...
    def transaction(self) -> AbstractContextManager[_Transaction]: ...
    def view(self, name: str) -> _View: ...
    def close(self) -> object: ...


class _AsyncView(Protocol):
    def rows(self) -> Awaitable[Sequence[Mapping[str, object]]]: ...
    def verify(self) -> Awaitable[_Verification]: ...


class _AsyncTransaction(Protocol):
    def insert(self, table: str, rows: list[RowDict]) -> Awaitable[object]: ...


class _AsyncDatabase(Protocol):
    def create_table(self, name: str, columns: dict[str, object], *, key: str) -> Awaitable[object]: ...
    def create_view(self, name: str, definition: str, *, refresh: str) -> Awaitable[object]: ...
    def transaction(self) -> AbstractAsyncContextManager[_AsyncTransaction]: ...
    def view(self, name: str) -> _AsyncView: ...
    def close(self) -> Awaitable[object]: ...


def load_viewtide(module: str = "viewtide") -> ModuleType:
    """The installed package, or a clear word that it is not there."""
    try:
        loaded = importlib.import_module(module)
        _ = loaded.connect
    except (ImportError, AttributeError) as error:
        raise BenchError(
            f"{module} cannot be imported ({error}). Install it into this Python first (pip install -e '.[dev]'), "
            "or leave it out of the dashboard: --systems postgres_trigger,sqlite_trigger"
        ) from error
    return loaded


def _event_rows(events: list[Event]) -> list[RowDict]:
    """As somebody who writes the insert would: a display takes a quarter of the time of `dict(zip(...))`, and that is
    the bench's own time, not the product's."""
    return [
        {"id": id, "timestamp": timestamp, "product": product, "shop": shop, "type": type, "cost": cost}
        for id, timestamp, product, shop, type, cost in events
    ]


def _columns(vt: ModuleType, table: BaseTable) -> dict[str, object]:
    """The amounts and keys of events are never NULL, as in the peers' tables; the other columns may be."""
    nullable = table.name != "events"
    return {name: kind if nullable else vt.column(kind, nullable=False) for name, kind in table.columns.items()}


def _batches(table: BaseTable) -> Iterator[list[RowDict]]:
    rows = [dict(zip(table.columns, row, strict=True)) for row in base_rows(table.name)]
    for first in range(0, len(rows), LOAD_ROWS_PER_TRANSACTION):
        yield rows[first : first + LOAD_ROWS_PER_TRANSACTION]


def _view_rows(rows: Sequence[Mapping[str, object]]) -> Sequence[ViewRow]:
    """As they are: rows can be read by position, and so the checker does."""
    return cast(Sequence[ViewRow], rows)


def _difference(verification: _Verification) -> str | None:
    return None if verification.ok else f"verify() answered {verification}"


class _ThreadClient:
    """Client and reader in one: threads share the database, and there is nothing to open or close for each."""

    def __init__(self, db: _Database) -> None:
        self._db = db
        self._view = db.view(VIEW_NAME)

    def prepare(self, events: list[Event]) -> Callable[[], None]:
        rows = _event_rows(events)

        def commit() -> None:
            with self._db.transaction() as tx:
                tx.insert("events", rows)

        return commit

    def read(self) -> Sequence[ViewRow]:
        return _view_rows(self._view.rows())

    def close(self) -> None:
        """The database is closed with the session."""


class _ThreadSession:
    def __init__(self, db: _Database) -> None:
        self._db = db

    def client(self) -> _ThreadClient:
        return _ThreadClient(self._db)

    def reader(self) -> _ThreadClient:
        return _ThreadClient(self._db)

    def recompute_differs(self) -> str | None:
        return _difference(self._db.view(VIEW_NAME).verify())


@contextmanager
def thread_session(parent: Path) -> Iterator[_ThreadSession]:
    with _database(parent, SYNC) as db:
        yield _ThreadSession(db)


@contextmanager
def _database(parent: Path, refresh: str | None) -> Iterator[_Database]:
    """A fresh database with the initial rows and, unless `refresh` is None, the view."""
    vt = load_viewtide()
    with fresh_folder(parent) as folder:
        db = cast(_Database, vt.connect(str(folder / "dashboard.db")))
        try:
            for table in TABLES:
                db.create_table(table.name, _columns(vt, table), key=table.key)
            if refresh is not None:
                db.create_view(VIEW_NAME, VIEW_SQL, refresh=refresh)
            for table in TABLES:
                for rows in _batches(table):
                    with db.transaction() as tx:
                        tx.insert(table.name, rows)
            yield db
        finally:
            db.close()


class _RemoteClient(_ThreadClient):
    """A client of a served node, in a process of its own."""

    def close(self) -> None:
        self._db.close()


def remote_client(address: str) -> _RemoteClient:
    return _RemoteClient(cast(_Database, load_viewtide().connect(address)))


def fill_remote(address: str, tables: Sequence[BaseTable], view: str, definition: str) -> None:
    """The initial rows and the view, through a served node."""
    vt = load_viewtide()
    with vt.connect(address) as db:
        for table in tables:
            db.create_table(table.name, _columns(vt, table), key=table.key)
        db.create_view(view, definition, refresh=SYNC)
        for table in tables:
            for rows in _batches(table):
                with db.transaction() as tx:
                    tx.insert(table.name, rows)


def remote_difference(address: str) -> str | None:
    with load_viewtide().connect(address) as db:
        return _difference(db.view(VIEW_NAME).verify())


class _IntervalClient:
    """A writer of the intervals. Updates write whole rows, as the inserts do, in one call: an upsert of keys that are
    there."""

    def __init__(self, db: _Database, workload: str) -> None:
        self._db = db
        self._inserts = workload == INSERT

    def prepare(self, events: list[Event]) -> Callable[[], None]:
        rows = _event_rows(events)
        inserts = self._inserts

        def commit() -> None:
            with self._db.transaction() as tx:
                if inserts:
                    tx.insert("events", rows)
                else:
                    tx.upsert("events", rows)

        return commit

    def close(self) -> None:
        """The database is closed with the session."""


class _Watcher:
    def __init__(self, db: _Database) -> None:
        self._view = db.view(VIEW_NAME)

    def read(self) -> Read:
        rows = self._view.rows()
        return Read(_view_rows(rows), cast(_Result, rows).watermark >> COMMIT_TS_BITS_BELOW_MS)

    def close(self) -> None:
        """The database is closed with the session."""


class _IntervalSession:
    def __init__(self, db: _Database, refresh: str | None, workload: str) -> None:
        self._db = db
        self._has_view = refresh is not None
        self._workload = workload

    def client(self) -> _IntervalClient:
        return _IntervalClient(self._db, self._workload)

    def watcher(self) -> _Watcher | None:
        return _Watcher(self._db) if self._has_view else None

    def catch_up(self) -> None:
        if self._has_view:
            self._db.view(VIEW_NAME).refresh()

    def recompute_differs(self) -> str | None:
        return _difference(self._db.view(VIEW_NAME).verify()) if self._has_view else None


@contextmanager
def interval_session(parent: Path, refresh: str | None, workload: str) -> Iterator[_IntervalSession]:
    """`refresh` as create_view takes it, None for no view at all. The view reflects all initial rows at the start."""
    with _database(parent, refresh) as db:
        session = _IntervalSession(db, refresh, workload)
        session.catch_up()
        yield session


class _TaskClient:
    def __init__(self, db: _AsyncDatabase) -> None:
        self._db = db

    def prepare(self, events: list[Event]) -> Callable[[], Awaitable[None]]:
        rows = _event_rows(events)

        async def commit() -> None:
            async with self._db.transaction() as tx:
                await tx.insert("events", rows)

        return commit


class _TaskSession:
    def __init__(self, db: _AsyncDatabase) -> None:
        self._db = db

    def client(self) -> _TaskClient:
        return _TaskClient(self._db)

    async def read(self) -> Sequence[ViewRow]:
        return _view_rows(await self._db.view(VIEW_NAME).rows())

    async def recompute_differs(self) -> str | None:
        return _difference(await self._db.view(VIEW_NAME).verify())


@asynccontextmanager
async def task_session(parent: Path) -> AsyncIterator[_TaskSession]:
    vt = load_viewtide()
    aio = load_viewtide("viewtide.aio")
    with fresh_folder(parent) as folder:
        db = cast(_AsyncDatabase, await aio.connect(str(folder / "dashboard.db")))
        try:
            for table in TABLES:
                await db.create_table(table.name, _columns(vt, table), key=table.key)
            await db.create_view(VIEW_NAME, VIEW_SQL, refresh="sync")
            for table in TABLES:
                for rows in _batches(table):
                    async with db.transaction() as tx:
                        await tx.insert(table.name, rows)
            yield _TaskSession(db)
        finally:
            await db.close()


@contextmanager
def fresh_folder(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="viewtide-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
