"""The same API for asyncio: the same names, awaitable.

    async with vt.aio.connect("shop.db") as db:
        async with db.transaction() as tx:
            await tx.insert("events", {"id": 1, "product": 7, "cost": 30})
        async for row in db.view("cost_by_category").scan():
            ...

Two kinds of value make that so: `Work` is a coroutine that can be more than awaited (entered, or iterated), and
`Itself` is there at once and can be awaited all the same.

Short work runs on the loop's own thread, where it is fastest: what the tasks commit in one turn of the loop goes into
one flush, and the loop waits for that one sync. Long work (creating views and indexes, verify, opening, closing) runs
in a thread beside it, and so does a read that has to wait until a deferred view is as fresh as it asks for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from . import database as blocking
from .changes import AsyncChanges, AsyncOnly, Itself
from .changetables.builder import Query
from .changetables.errors import Error, InterfaceError
from .config import CACHE_ROWS, HISTORY
from .coordinator.ports import Managing
from .coordinator.vms.managers import ViewManagerStatus
from .freshness import ANY_AGE, Levels, TargetLag, is_fresh, levels_of
from .ports import OpenNode
from .reads import NO_KEY, AlignedSnapshot, Reads, Snapshot, ViewReads
from .retries import backoffs_ms
from .rows import Result, Row, Token
from .sql import Written, groups, is_schema_change, only_reads, prepared, run_group, run_in, run_rows
from .status import DatabaseStatus, ViewStatus
from .table import LoadProgress, LoadResult, Table
from .transaction import Transaction
from .verify import Progress, VerifyReport
from .view import View

if TYPE_CHECKING:
    from .arrow import ArrowTable, DataFrame, RecordBatch
    from .changetables.sql import Parameters, ParameterValues
    from .changetables.statements import Statement

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Work(Coroutine[object, None, T_co]):
    """A coroutine, for whoever wants one: `await`, create_task(), asyncio.run(). Subclasses can be used without it."""

    def __init__(self, work: Coroutine[object, None, T_co]) -> None:
        self._work = work

    def __await__(self) -> Generator[object, None, T_co]:
        return self._work.__await__()

    def send(self, value: None) -> object:
        return self._work.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> object:
        # The form with three arguments is on its way out.
        if isinstance(kind, type):
            kind = error if isinstance(error, BaseException) else kind()
        return self._work.throw(kind if trace is None else kind.with_traceback(trace))

    def close(self) -> None:
        self._work.close()


class AsyncRows(Work[T_co]):
    """Rows that are read when they are awaited, all at once, or by `async for`."""

    async def __aiter__(self: AsyncRows[Sequence[T]]) -> AsyncIterator[T]:
        for row in await self:
            yield row


def iterable(
    method: Callable[P, Coroutine[object, None, T]],
) -> Callable[P, AsyncRows[T]]:
    """For methods that read many rows."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> AsyncRows[T]:
        return AsyncRows(method(*args, **kwargs))

    return call


class Opening(AsyncOnly, Work["AsyncDatabase"]):
    """A database that is open when this is awaited, or from `async with` on to its end."""

    _opened: AsyncDatabase

    async def __aenter__(self) -> AsyncDatabase:
        self._opened = await self
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()

    if not TYPE_CHECKING:  # which would take every name for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"no {name!r} before the database is open: write `db = await vt.aio.connect(...)`, "
                "or `async with vt.aio.connect(...) as db`",
                name=name,
                obj=self,
            )


def connect(
    target: str | os.PathLike[str],
    *,
    cache_rows: int = CACHE_ROWS,
    view_managers: int = 1,
    history: str | float = HISTORY,
    history_bytes: int | None = None,
    ltms: int | None = None,
    keys: str | os.PathLike[str] | None = None,
    server_key: str = "",
    insecure: bool = False,
) -> Opening:
    """Open a database: a directory (created if missing), "memory:" for a new private one, or one on a served node."""
    opening = functools.partial(
        blocking.connect,
        target,
        cache_rows=cache_rows,
        view_managers=view_managers,
        history=history,
        history_bytes=history_bytes,
        ltms=ltms,
        keys=keys,
        server_key=server_key,
        insecure=insecure,
    )
    return Opening(_open(opening))


async def _open(opening: Callable[[], blocking.Database]) -> AsyncDatabase:
    opened = await asyncio.to_thread(opening)
    if type(opened) is blocking.Database:
        return AsyncDatabase(opened)
    # Imported here: a database in this process needs no network.
    from .remote import RemoteDatabase
    from .remote_aio import AsyncRemoteDatabase

    assert isinstance(opened, RemoteDatabase)
    return AsyncRemoteDatabase(opened)


async def _read(node: OpenNode, view: str, levels: Levels, read: Callable[[], T]) -> T:
    """A read of a view: here if it need not wait, else in a thread."""
    if is_fresh(node, view, levels):
        return read()
    return await asyncio.to_thread(read)


class AsyncReads:
    """Reads of a snapshot or transaction."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def _own(self) -> Reads:
        """The reads, for whoever may use them."""
        return self._reads

    async def get(self, table: str, key: object = NO_KEY, /, **columns: object) -> Row | None:
        return self._own().get(table, key, **columns)

    @iterable
    async def get_many(
        self,
        table: str,
        keys: Iterable[object],
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> list[Row | None]:
        return self._own().get_many(table, keys, at_least=at_least, latest=latest, max_lag=max_lag)

    @iterable
    async def find(self, table: str, /, **columns: object) -> Result:
        return self._own().find(table, **columns)

    @iterable
    async def scan(
        self,
        table: str,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        return self._own().scan(table, start, stop, limit, at_least=at_least, latest=latest, max_lag=max_lag)

    @iterable
    async def join(self, query: Query, start: Mapping[str, object] | None = None) -> Result:
        return self._own().join(query, start)

    @property
    def token(self) -> Token:
        return self._reads.token


class AsyncSnapshot(AsyncOnly, AsyncReads):
    """Its timestamp is fixed by `await`, by `async with` or by its first read."""

    _reads: Snapshot

    def __await__(self) -> Generator[object, None, Self]:
        yield from self._begin().__await__()
        return self

    async def _begin(self) -> None:
        if isinstance(self._reads, AlignedSnapshot):
            await asyncio.to_thread(self._reads._begin)
        self._reads.__enter__()

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(self, *_: object) -> None:
        self._reads.close()

    async def close(self) -> None:
        self._reads.close()

    def view(self, name: str) -> AsyncViewReads:
        return AsyncViewReads(self._reads.view(name))

    @iterable
    async def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        if self._reads._levels is not ANY_AGE:
            return await asyncio.to_thread(self._reads.sql, text, params)
        return self._reads.sql(text, params)


class AsyncTransaction(AsyncOnly, Itself, AsyncReads):
    """It belongs to the task that began it: what two tasks write would be committed by whichever ends first."""

    _reads: Transaction

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx._unbound())
        self._task = running_task()

    def _own(self) -> Transaction:
        check_task(self._task)
        return self._reads

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reads._ended is None:
            if kind is None:
                await self._own()._commit_async()
            else:
                self._reads._end("rolled back")

    async def insert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        self._own().insert(table, rows)

    async def upsert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        self._own().upsert(table, rows)

    async def update(self, table: str, key: object, changes: Mapping[str, object]) -> bool:
        return self._own().update(table, key, changes)

    async def delete(self, table: str, key: object = NO_KEY, /, **columns: object) -> bool:
        return self._own().delete(table, key, **columns)

    @iterable
    async def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        return run_in(self._own(), text, params)

    async def commit(self) -> Token:
        return await self._own().commit_async()

    async def rollback(self) -> None:
        self._own().rollback()

    def view(self, name: str) -> AsyncViewReads:
        return AsyncViewReads(self._own().view(name))


def running_task() -> asyncio.Task[object] | None:
    """The task that runs, None outside of any."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def check_task(owner: asyncio.Task[object] | None) -> None:
    """Refuse another task than the owner; what was begun outside of any task is nobody's."""
    if owner is not None and asyncio.current_task() is not owner:
        raise InterfaceError(
            "the transaction belongs to the task that began it",
            hint="begin one in each task; gather() makes tasks, and wait_for() may: use asyncio.timeout()",
        )


class AsyncViewReads(Itself):
    """A view at the timestamp of a snapshot or transaction."""

    def __init__(self, view: ViewReads) -> None:
        self._view = view
        self._node = view._reads._node
        self.name = view.name

    async def get(
        self,
        key: object = NO_KEY,
        /,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        **columns: object,
    ) -> Row | None:
        def read() -> Row | None:
            return self._view.get(key, at_least=at_least, latest=latest, max_lag=max_lag, **columns)

        return await _read(self._node, self.name, self._asked(at_least, latest, max_lag), read)

    @iterable
    async def scan(
        self,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        def read() -> Result:
            return self._view.scan(start, stop, limit, at_least=at_least, latest=latest, max_lag=max_lag)

        return await _read(self._node, self.name, self._asked(at_least, latest, max_lag), read)

    @iterable
    async def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        def read() -> Result:
            return self._view.rows(at_least=at_least, latest=latest, max_lag=max_lag)

        return await _read(self._node, self.name, self._asked(at_least, latest, max_lag), read)

    def _asked(self, at_least: Token | None, latest: bool, max_lag: str | float | None) -> Levels:
        levels = levels_of(at_least, latest, max_lag)
        return self._view._reads._levels if levels is ANY_AGE else levels


class AsyncView(Itself):
    """`db.view(name)`."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._node = view._node
        self.name = view.name

    async def get(
        self,
        key: object = NO_KEY,
        /,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        **columns: object,
    ) -> Row | None:
        def read() -> Row | None:
            return self._view.get(key, at_least=at_least, latest=latest, max_lag=max_lag, **columns)

        return await _read(self._node, self.name, levels_of(at_least, latest, max_lag), read)

    @iterable
    async def scan(
        self,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        def read() -> Result:
            return self._view.scan(start, stop, limit, at_least=at_least, latest=latest, max_lag=max_lag)

        return await _read(self._node, self.name, levels_of(at_least, latest, max_lag), read)

    @iterable
    async def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        def read() -> Result:
            return self._view.rows(at_least=at_least, latest=latest, max_lag=max_lag)

        return await _read(self._node, self.name, levels_of(at_least, latest, max_lag), read)

    async def to_arrow(self) -> ArrowTable:
        return self._view.to_arrow()

    async def to_pandas(self) -> DataFrame:
        return self._view.to_pandas()

    async def status(self) -> ViewStatus:
        return await asyncio.to_thread(self._view.status)

    async def explain(self) -> str:
        return self._view.explain()

    async def refresh(self, evaluator: str | None = None) -> int:
        return await asyncio.to_thread(self._view.refresh, evaluator)

    async def set_refresh(self, refresh: str | TargetLag) -> None:
        await asyncio.to_thread(self._view.set_refresh, refresh)

    def changes(
        self, since: Token | None = None, *, follow: bool = False, timeout: str | float | None = None
    ) -> AsyncChanges:
        """For `async for`."""
        return AsyncChanges(self._node, self.name, since, follow, timeout)

    async def verify(self, progress: Progress | None = None, evaluator: str | None = None) -> VerifyReport:
        """`progress` is called in the thread that works, not on the loop."""
        return await asyncio.to_thread(self._view.verify, progress, evaluator)

    async def repair(self, progress: Progress | None = None) -> VerifyReport:
        """`progress` is called in the thread that works, not on the loop."""
        return await asyncio.to_thread(self._view.repair, progress)


class AsyncTable(Itself):
    """`db.table(name)`. Whether there is such a table, its first call tells."""

    def __init__(self, database: blocking.Database, name: str) -> None:
        self._database = database
        self.name = name

    async def load(
        self, batches: Iterable[RecordBatch | ArrowTable], *, progress: LoadProgress | None = None
    ) -> LoadResult:
        """`batches` are taken, and `progress` is called, in the thread that works, not on the loop."""

        def work() -> LoadResult:
            return Table(self._database, self.name).load(batches, progress=progress)

        return await asyncio.to_thread(work)


class AsyncViewManagers:
    """`db.view_managers`. Whatever waits for a marker does so in a thread."""

    def __init__(self, managers: Managing) -> None:
        self._managers = managers

    async def add(self) -> int:
        return self._managers.add()

    async def remove(self, id: int) -> None:
        await asyncio.to_thread(self._managers.remove, id)

    async def assign(self, id: int, ltm: str | None = None) -> None:
        self._managers.assign(id, ltm)

    async def reassign(self, id: int, ltm: str | None = None) -> None:
        await self.assign(id, ltm)

    async def withdraw(self, id: int) -> None:
        await asyncio.to_thread(self._managers.withdraw, id)

    async def status(self) -> list[ViewManagerStatus]:
        return self._managers.status()


class AsyncDatabase(AsyncOnly):
    """An open database for the tasks of one or more loops."""

    def __init__(self, database: blocking.Database) -> None:
        self._database = database

    async def __aenter__(self) -> AsyncDatabase:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._database.close)

    def transaction(self) -> AsyncTransaction:
        return AsyncTransaction(self._database.transaction())

    def snapshot(
        self,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        views: Sequence[str] = (),
    ) -> AsyncSnapshot:
        """As `Database.snapshot`. With `views`, await it or enter it: there it waits without holding the loop."""
        return AsyncSnapshot(self._database.snapshot(at_least=at_least, latest=latest, max_lag=max_lag, views=views))

    async def run(
        self, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `Database.run`, for a coroutine function."""
        if not inspect.iscoroutinefunction(function):
            raise InterfaceError("run takes a coroutine function here", hint="write it with async def")
        give_up = time.monotonic() + blocking.RUN_DEADLINE_MS / 1000
        for backoff_ms in backoffs_ms():
            try:
                async with self.transaction() as tx:
                    return await function(tx, *args, **kwargs)
            except Error as error:
                if not blocking.is_retried(error) or time.monotonic() + backoff_ms / 1000 > give_up:
                    raise
            await asyncio.sleep(backoff_ms / 1000)
        raise AssertionError("backoffs never end")

    @iterable
    async def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        """As `Database.sql`: what changes tables and views runs in a thread, everything else on the loop."""
        statements, parameters = prepared(text, params)
        result: Result = Written(0)
        for group in groups(statements):
            result = await self._run_group(group, parameters)
        return result

    async def _run_group(self, group: Sequence[Statement], parameters: Parameters) -> Result:
        if is_schema_change(group):
            return await asyncio.to_thread(run_group, self._database, group, parameters)
        if only_reads(group):
            return run_group(self._database, group, parameters)
        used: list[AsyncTransaction] = []

        async def work(tx: AsyncTransaction) -> Result:
            used[:] = [tx]
            return run_rows(tx._reads, group, parameters)

        result = await self.run(work)
        if isinstance(result, Written):
            result.watermark = used[0].token.commit_ts
        return result

    def transactional(
        self, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[T]]
    ) -> Callable[P, Awaitable[T]]:
        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.run(function, *args, **kwargs)

        return call

    async def create_table(
        self,
        name: str,
        columns: Mapping[str, object],
        key: str | Sequence[str] | None = None,
        indexes: Iterable[str | Sequence[str]] = (),
    ) -> None:
        await asyncio.to_thread(self._database.create_table, name, columns, key, indexes)

    async def drop_table(self, name: str) -> None:
        await asyncio.to_thread(self._database.drop_table, name)

    async def add_column(self, table: str, name: str, type: object) -> None:
        await asyncio.to_thread(self._database.add_column, table, name, type)

    async def drop_column(self, table: str, name: str) -> None:
        await asyncio.to_thread(self._database.drop_column, table, name)

    async def create_index(self, table: str, columns: str | Sequence[str]) -> None:
        await asyncio.to_thread(self._database.create_index, table, columns)

    async def drop_index(self, table: str, columns: str | Sequence[str]) -> None:
        await asyncio.to_thread(self._database.drop_index, table, columns)

    async def create_view(
        self,
        name: str,
        definition: str | Query,
        *,
        refresh: str | TargetLag = "sync",
        layout: str = "global",
        key: str | Sequence[str] | None = None,
        group: str = "",
        backlog_rows: int = 0,
        backlog_bytes: int = 0,
        evaluator: str | None = None,
    ) -> AsyncView:
        view = await asyncio.to_thread(
            self._database.create_view,
            name,
            definition,
            refresh=refresh,
            layout=layout,
            key=key,
            group=group,
            backlog_rows=backlog_rows,
            backlog_bytes=backlog_bytes,
            evaluator=evaluator,
        )
        return AsyncView(view)

    async def drop_view(self, name: str, *, cascade: bool = False) -> None:
        await asyncio.to_thread(self._database.drop_view, name, cascade=cascade)

    def view(self, name: str) -> AsyncView:
        return AsyncView(self._database.view(name))

    def table(self, name: str) -> AsyncTable:
        """A handle to load rows in bulk with."""
        return AsyncTable(self._database, name)

    async def tables(self) -> list[str]:
        return self._database.tables()

    async def views(self) -> list[str]:
        return self._database.views()

    @property
    def view_managers(self) -> AsyncViewManagers:
        return AsyncViewManagers(self._database.view_managers)

    async def status(self) -> DatabaseStatus:
        return self._database.status()

    async def explain_view(self, definition: str | Query) -> str:
        return await asyncio.to_thread(self._database.explain_view, definition)
