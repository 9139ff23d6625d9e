"""Viewtide embedded, through its public API only, as the dashboard's systems `viewtide` and `viewtide_asyncio`.

The defaults are what is measured: `connect(directory)` is durable, an acknowledged commit is on the disk. Creating the
view also creates the index on events.product that its join needs: Viewtide keeps an index here that the triggers of the
peers do without.
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
from .workload import EVENT_COLUMNS, TABLES, VIEW_NAME, VIEW_SQL, BaseTable, Event, Value, ViewRow, base_rows

#: Rows per transaction while the initial rows are loaded.
LOAD_ROWS_PER_TRANSACTION = 1_000

RowDict = dict[str, Value]


# The public names that this bench uses, and no others. They are declared here and not imported, so that the peers can
# be measured, and this file checked, where viewtide is not installed.
class _Verification(Protocol):
    @property
    def ok(self) -> bool: ...


class _View(Protocol):
    def rows(self) -> Sequence[Mapping[str, object]]: ...
    def verify(self) -> _Verification: ...


class _Transaction(Protocol):
    def insert(self, table: str, rows: list[RowDict]) -> object: ...


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
            "or leave it out: --systems postgres_trigger,sqlite_trigger"
        ) from error
    return loaded


def _event_rows(events: list[Event]) -> list[RowDict]:
    return [dict(zip(EVENT_COLUMNS, event, strict=True)) for event in events]


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
    vt = load_viewtide()
    with _fresh_folder(parent) as folder:
        db = cast(_Database, vt.connect(str(folder / "dashboard.db")))
        try:
            for table in TABLES:
                db.create_table(table.name, _columns(vt, table), key=table.key)
            db.create_view(VIEW_NAME, VIEW_SQL, refresh="sync")
            for table in TABLES:
                for rows in _batches(table):
                    with db.transaction() as tx:
                        tx.insert(table.name, rows)
            yield _ThreadSession(db)
        finally:
            db.close()


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
    with _fresh_folder(parent) as folder:
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
def _fresh_folder(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="viewtide-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
