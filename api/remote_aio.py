"""A database on a served node for asyncio: the calls of `remote_calls`, many at once on one connection.

What the tasks of a loop ask in one turn leaves as one message, and the node commits together what came together.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from .aio import (
    AsyncDatabase,
    AsyncReads,
    AsyncSnapshot,
    AsyncTransaction,
    AsyncView,
    AsyncViewManagers,
    AsyncViewReads,
    check_task,
    iterable,
    running_task,
)
from .changes import LOOK_MS_MIN, AsyncChanges, ViewChange
from .changetables.builder import Query
from .changetables.errors import Busy, InterfaceError, Refused, Unavailable
from .coordinator.vms.managers import ViewManagerStatus
from .durations import milliseconds
from .freshness import TargetLag
from .ltm.addresses import Refusal
from .ltm.codec import make_pack
from .reads import NO_KEY
from .remote import RemoteDatabase
from .remote_calls import (
    COMMIT,
    NO_NAMES,
    ONCE,
    READ,
    TELL,
    Ask,
    Asking,
    Client,
    FeedCalls,
    SnapshotCalls,
    TransactionCalls,
    call,
    check_evaluator,
    key_of,
    levels,
    listed,
    reporting,
    sent_columns,
    sent_type,
)
from .remote_links import (
    CONNECT_S_MAX,
    LOST_S,
    PEER,
    PING_S,
    REFUSED_LOOK_S,
    RETRIES_S_MAX,
    RETRY_PAUSE_S,
    Lost,
    Target,
    given_up,
)
from .remote_protocol import (
    ANSWER,
    FAILURE,
    IN_FLIGHT_MAX,
    PROGRESS,
    RETRIES_MS_MAX,
    error_from_wire,
    reply_of,
    request_bytes,
)
from .rows import Result, Row, Token
from .status import DatabaseStatus, ViewStatus
from .verify import Progress, VerifyReport

if TYPE_CHECKING:
    from .arrow import ArrowTable, DataFrame
    from .changetables.sql import ParameterValues

T = TypeVar("T")

#: Calls of one loop that are under way, commits aside; the others wait for their turn here. A node takes a thousand at
#: a time from all its clients (`server.JOBS_MAX`).
CALLS_IN_FLIGHT_MAX = 256


class _Waiting:
    """A request that was sent."""

    __slots__ = ("answer", "ask")

    def __init__(self, ask: Ask, answer: asyncio.Future[tuple[int, object]]) -> None:
        self.ask = ask
        self.answer = answer


class AsyncLink:
    """One connection of one loop; many requests at once."""

    def __init__(self, target: Target, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._client, self._loop = target, client, loop
        self.address = target.address
        self._hub = target.hub(f"client-{client.number:x}")
        self._pack = make_pack()
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._life: object = None
        self._ping = -1
        self._heard_s = 0.0
        self._flushing = False
        self._looking: asyncio.TimerHandle | None = None
        self.lost = False
        self.refusal: Refusal | None = None
        self._descriptor = self._hub.descriptor(PEER)
        loop.add_reader(self._descriptor, self._drain)
        #: Before anything is asked: who answers later may be another process, which knows nothing of it.
        self.met = loop.create_task(self._meet_first())

    async def _meet_first(self) -> None:
        try:
            await self.meet(LOST_S)
        except (Lost, Refused):
            self.close()

    def close(self) -> None:
        """Whoever waits finds the connection lost."""
        if self.lost:
            return
        self.lost = True
        if self._looking is not None:
            self._looking.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._hub.close()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.answer.done():
                each.answer.set_exception(Lost())

    async def meet(self, seconds: float) -> None:
        """Find out who answers; Lost if nobody does, Refused if he does not let this client in."""
        answer = self._send(Ask("ping", ()), ()).answer
        give_up = time.monotonic() + seconds
        while not answer.done():
            if time.monotonic() > give_up:
                raise Lost
            await asyncio.wait((answer,), timeout=REFUSED_LOOK_S)
            if not self.lost:
                self.refusal = self._hub.refusal(PEER)
            if self.refusal is not None:
                raise Refused(self.refusal.message, hint=self.refusal.hint)
        self._life = answer.result()[1]

    async def exchange(self, ask: Ask, arguments: tuple[object, ...]) -> object:
        waiting = self._send(ask, arguments)
        if ask.kind == TELL:
            return None
        kind, body = await waiting.answer
        if kind == FAILURE:
            raise error_from_wire(body)
        return body

    def _send(self, ask: Ask, arguments: tuple[object, ...]) -> _Waiting:
        if self.lost:
            raise Lost
        self._number += 1
        payload = request_bytes(self._number, ask.operation, arguments, self._pack)
        if not self._hub.send(PEER, payload):
            raise Busy(f"the queue to {self._target.address} is full", hint="try again in a moment")
        if not self._flushing:
            # Once a turn, not once a task.
            self._flushing = True
            self._loop.call_soon(self._flush)
        waiting = _Waiting(ask, self._loop.create_future())
        if ask.kind != TELL:
            if not self._waiting:
                self._heard_s = time.monotonic()
            self._waiting[self._number] = waiting
            if self._looking is None:
                self._looking = self._loop.call_later(PING_S, self._look)
        return waiting

    def _flush(self) -> None:
        self._flushing = False
        if not self.lost:
            self._hub.flush()
            # Sending may have taken the one sign that something has arrived.
            self._drain()

    def _drain(self) -> None:
        while not self.lost:
            batches = self._hub.poll(0)
            if not batches:
                return
            self._heard_s = time.monotonic()
            for batch in batches:
                for payload in batch.payloads:
                    self._take(reply_of(payload))

    def _take(self, reply: tuple[object, ...]) -> None:
        number, kind, first, body = reply
        if number == self._ping and kind == ANSWER:
            if body != self._life:
                self.close()  # another process, to which nobody has sent these requests
            return
        waiting = self._waiting.get(cast(int, number))
        if waiting is None:
            return
        if kind == PROGRESS:
            if waiting.ask.progress is not None:
                waiting.ask.progress(cast(int, first), cast(int, body))
            return
        del self._waiting[cast(int, number)]
        self._client.heard(first)
        if not waiting.answer.done():  # it was cancelled
            waiting.answer.set_result((cast(int, kind), body))

    def _look(self) -> None:
        """Whether somebody is still there."""
        self._looking = None
        if self.lost or not self._waiting:
            return
        if time.monotonic() - self._heard_s > LOST_S:
            self.close()
            return
        self._number += 1
        self._ping = self._number
        self._hub.send(PEER, request_bytes(self._number, "ping", (), self._pack))
        self._flush()
        if not self.lost:
            self._looking = self._loop.call_later(PING_S, self._look)


class AsyncLinks:
    """One connection for each loop that uses the database."""

    def __init__(self, target: Target, client: Client) -> None:
        self._target, self._client = target, client
        self._links: dict[asyncio.AbstractEventLoop, AsyncLink] = {}
        #: For commits, and for other calls.
        self._room: dict[asyncio.AbstractEventLoop, tuple[asyncio.Semaphore, asyncio.Semaphore]] = {}
        self._lock = threading.Lock()
        self.closed = False

    async def run(self, asking: Asking[T]) -> T:
        """Run a call to its end."""
        if self.closed:
            asking.close()
            raise InterfaceError("the database is closed", hint="open it again with viewtide.connect()")
        try:
            ask = next(asking)
            while True:
                try:
                    body = await self._exchange(ask)
                except BaseException as error:
                    ask = asking.throw(error)
                else:
                    ask = asking.send(body)
        except StopIteration as end:
            return cast(T, end.value)

    def close(self) -> None:
        """From the loop that closes the database; connections of other loops end with them."""
        self.closed = True
        with self._lock:
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()

    async def _exchange(self, ask: Ask) -> object:
        loop = asyncio.get_running_loop()
        room = self._room.get(loop)
        if room is None:
            # The node remembers so many commits of one client.
            room = self._room[loop] = asyncio.Semaphore(IN_FLIGHT_MAX), asyncio.Semaphore(CALLS_IN_FLIGHT_MAX)
        for_commits, for_calls = room
        if ask.kind == COMMIT:
            async with for_commits:
                return await self._repeated(ask, RETRIES_MS_MAX / 1000)
        async with for_calls:
            return await self._repeated(ask, RETRIES_S_MAX)

    async def _repeated(self, ask: Ask, seconds: float) -> object:
        give_up = time.monotonic() + seconds
        arguments = ask.arguments
        while True:
            try:
                link = await self._link(anew=ask.kind == ONCE)
                return await link.exchange(ask, arguments)
            except Lost:
                with suppress(Unavailable):  # the next attempt finds that, too
                    await asyncio.to_thread(self._target.lost, link.address)
                if ask.kind == ONCE or time.monotonic() > give_up:
                    break
                arguments = arguments if ask.resent is None else ask.resent
            except (Busy, Unavailable, Refused) as error:
                late = time.monotonic() > give_up
                if ask.kind == COMMIT and arguments is not ask.arguments:
                    # Of a commit that was sent before, that says nothing: it may have happened.
                    if late:
                        break
                elif late or ask.kind == COMMIT or not isinstance(error, Busy):
                    raise
            await asyncio.sleep(RETRY_PAUSE_S)
        raise given_up(self._target, ask)

    async def _link(self, anew: bool) -> AsyncLink:
        """The connection of this loop. `anew`: to a node that is there for sure."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is not None and link.address != self._target.address:
            link.close()
            link = None
        if link is None or link.lost:
            link = AsyncLink(self._target, self._client, loop)
            with self._lock:
                for other in [other for other in self._links if other.is_closed()]:
                    self._links.pop(other).close()
                    self._room.pop(other, None)
                self._links[loop] = link
        if not link.met.done():
            await asyncio.shield(link.met)
        if link.refusal is not None:
            raise Refused(link.refusal.message, hint=link.refusal.hint)
        if anew:
            try:
                await link.meet(CONNECT_S_MAX)
            except Lost:
                link.close()
                raise self._target.unavailable() from None
            except Refused:
                link.close()
                raise
        return link


class AsyncRemoteDatabase(AsyncDatabase):
    """`await vt.aio.connect("tcp://...")`."""

    def __init__(self, database: RemoteDatabase) -> None:
        super().__init__(database)
        node = database._remote
        self._client = node.client
        self._links = AsyncLinks(node.links.target, node.client)

    async def _call(
        self, operation: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES, kind: int = READ
    ) -> object:
        return await self._links.run(call(operation, args, kwargs, kind))

    async def close(self) -> None:
        self._links.close()
        await super().close()

    def transaction(self) -> AsyncTransaction:
        self._check_open()
        return AsyncRemoteTransaction(self._links, self._client)

    def snapshot(
        self,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        views: Sequence[str] = (),
    ) -> AsyncSnapshot:
        self._check_open()
        if isinstance(views, str) or not isinstance(views, Sequence):
            raise InterfaceError("views must be a list of names", hint=f"like views=[{views!r}]")
        return AsyncRemoteSnapshot(self._links, SnapshotCalls(self._client, at_least, latest, max_lag, tuple(views)))

    def _check_open(self) -> None:
        if self._links.closed:
            raise InterfaceError("the database is closed", hint="open it again with viewtide.connect()")

    @iterable
    async def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        return cast(Result, await self._call("sql", text, listed(params), kind=ONCE))

    async def create_table(
        self,
        name: str,
        columns: Mapping[str, object],
        key: str | Sequence[str] | None = None,
        indexes: Iterable[str | Sequence[str]] = (),
    ) -> None:
        await self._call("create_table", name, sent_columns(columns), listed(key), listed(indexes), kind=ONCE)

    async def drop_table(self, name: str) -> None:
        await self._call("drop_table", name, kind=ONCE)

    async def add_column(self, table: str, name: str, type: object) -> None:
        await self._call("add_column", table, name, sent_type(type), kind=ONCE)

    async def drop_column(self, table: str, name: str) -> None:
        await self._call("drop_column", table, name, kind=ONCE)

    async def create_index(self, table: str, columns: str | Sequence[str]) -> None:
        await self._call("create_index", table, listed(columns), kind=ONCE)

    async def drop_index(self, table: str, columns: str | Sequence[str]) -> None:
        await self._call("drop_index", table, listed(columns), kind=ONCE)

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
        options = {
            "refresh": refresh,
            "layout": layout,
            "key": listed(key),
            "group": group,
            "backlog_rows": backlog_rows,
            "backlog_bytes": backlog_bytes,
            "evaluator": evaluator,
        }
        await self._call("create_view", name, definition, kwargs=options, kind=ONCE)
        return self.view(name)

    async def drop_view(self, name: str, *, cascade: bool = False) -> None:
        await self._call("drop_view", name, kwargs={"cascade": cascade}, kind=ONCE)

    def view(self, name: str) -> AsyncView:
        """Whether there is such a view, its first call tells."""
        self._check_open()
        return AsyncRemoteView(self._links, self._client, name)

    async def tables(self) -> list[str]:
        return cast("list[str]", await self._call("tables"))

    async def views(self) -> list[str]:
        return cast("list[str]", await self._call("views"))

    @property
    def view_managers(self) -> AsyncViewManagers:
        self._check_open()
        return AsyncRemoteViewManagers(self)

    async def status(self) -> DatabaseStatus:
        return cast(DatabaseStatus, await self._call("status"))

    async def explain_view(self, definition: str | Query) -> str:
        return cast(str, await self._call("explain_view", definition))


class _AsyncRemoteReads(AsyncReads):
    """The reads that transactions and snapshots share."""

    _links: AsyncLinks
    _calls: TransactionCalls | SnapshotCalls

    async def _ask(self, what: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES) -> object:
        return await self._links.run(self._calls.ask(what, args, kwargs))

    async def get(self, table: str, key: object = NO_KEY, /, **columns: object) -> Row | None:
        return cast("Row | None", await self._ask("get", table, *key_of(key), kwargs=columns))

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
        asked = levels(at_least, latest, max_lag)
        return cast("list[Row | None]", await self._ask("get_many", table, listed(keys), kwargs=asked))

    @iterable
    async def find(self, table: str, /, **columns: object) -> Result:
        return cast(Result, await self._ask("find", table, kwargs=columns))

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
        asked = levels(at_least, latest, max_lag)
        return cast(Result, await self._ask("scan", table, start, stop, limit, kwargs=asked))

    @iterable
    async def join(self, query: Query, start: Mapping[str, object] | None = None) -> Result:
        return cast(Result, await self._ask("join", query, start))

    @iterable
    async def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        return cast(Result, await self._ask("sql", text, listed(params)))

    def view(self, name: str) -> AsyncViewReads:
        return AsyncRemoteViewReads(self, name)


class AsyncRemoteTransaction(_AsyncRemoteReads, AsyncTransaction):
    _calls: TransactionCalls

    def __init__(self, links: AsyncLinks, client: Client) -> None:
        self._links = links
        self._calls = TransactionCalls(client)
        self._task = running_task()

    async def _ask(self, what: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES) -> object:
        check_task(self._task)
        return await super()._ask(what, *args, kwargs=kwargs)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._calls.ended is None:
            if kind is None:
                check_task(self._task)
            await self._links.run(self._calls.commit() if kind is None else self._calls.rollback())

    async def insert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        check_task(self._task)
        await self._links.run(self._calls.insert(table, rows))

    async def upsert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        check_task(self._task)
        await self._links.run(self._calls.upsert(table, rows))

    async def update(self, table: str, key: object, changes: Mapping[str, object]) -> bool:
        return cast(bool, await self._ask("update", table, key, changes))

    async def delete(self, table: str, key: object = NO_KEY, /, **columns: object) -> bool:
        return cast(bool, await self._ask("delete", table, *key_of(key), kwargs=columns))

    async def commit(self) -> Token:
        check_task(self._task)
        await self._links.run(self._calls.commit())
        return self._calls.the_token()

    async def rollback(self) -> None:
        check_task(self._task)
        await self._links.run(self._calls.rollback())

    @property
    def token(self) -> Token:
        return self._calls.the_token()


class AsyncRemoteSnapshot(_AsyncRemoteReads, AsyncSnapshot):
    _calls: SnapshotCalls

    def __init__(self, links: AsyncLinks, calls: SnapshotCalls) -> None:
        self._links, self._calls = links, calls

    async def _begin(self) -> None:
        await self._links.run(self._calls.begin())

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._links.run(self._calls.close())

    @property
    def token(self) -> Token:
        """Known once it was awaited or entered."""
        return self._calls.the_token()


class AsyncRemoteViewReads(AsyncViewReads):
    """A view in a transaction or snapshot."""

    def __init__(self, reads: _AsyncRemoteReads, name: str) -> None:
        self._remote_reads = reads
        self.name = name

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
        asked = {**levels(at_least, latest, max_lag), **columns}
        return cast("Row | None", await self._remote_reads._ask("view.get", self.name, *key_of(key), kwargs=asked))

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
        asked = levels(at_least, latest, max_lag)
        return cast(Result, await self._remote_reads._ask("view.scan", self.name, start, stop, limit, kwargs=asked))

    @iterable
    async def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        asked = levels(at_least, latest, max_lag)
        return cast(Result, await self._remote_reads._ask("view.rows", self.name, kwargs=asked))


class AsyncRemoteView(AsyncView):
    """`db.view(name)`."""

    def __init__(self, links: AsyncLinks, client: Client, name: str) -> None:
        self._links, self._client = links, client
        self.name = name

    async def _call(
        self, operation: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES, kind: int = READ
    ) -> object:
        return await self._links.run(call(operation, (self.name, *args), kwargs, kind))

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
        asked = {**levels(at_least, latest, max_lag), **columns}
        return cast("Row | None", await self._call("view.get", *key_of(key), kwargs=asked))

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
        asked = levels(at_least, latest, max_lag)
        return cast(Result, await self._call("view.scan", start, stop, limit, kwargs=asked))

    @iterable
    async def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        return cast(Result, await self._call("view.rows", kwargs=levels(at_least, latest, max_lag)))

    async def to_arrow(self) -> ArrowTable:
        return (await self.rows()).to_arrow()

    async def to_pandas(self) -> DataFrame:
        return (await self.rows()).to_pandas()

    async def status(self) -> ViewStatus:
        return cast(ViewStatus, await self._call("view.status"))

    async def explain(self) -> str:
        return cast(str, await self._call("view.explain"))

    async def refresh(self, evaluator: str | None = None) -> int:
        return cast(int, await self._call("view.refresh", evaluator))

    async def set_refresh(self, refresh: str | TargetLag) -> None:
        await self._call("view.set_refresh", refresh, kind=ONCE)

    def changes(
        self, since: Token | None = None, *, follow: bool = False, timeout: str | float | None = None
    ) -> AsyncChanges:
        return AsyncRemoteChanges(self._links, FeedCalls(self._client, self.name, since), follow, timeout)

    async def verify(self, progress: Progress | None = None, evaluator: str | None = None) -> VerifyReport:
        check_evaluator(evaluator)
        return cast(VerifyReport, await self._links.run(reporting("view.verify", self.name, progress)))

    async def repair(self, progress: Progress | None = None) -> VerifyReport:
        return cast(VerifyReport, await self._links.run(reporting("view.repair", self.name, progress)))


class AsyncRemoteChanges(AsyncChanges):
    """The feed for `async for`."""

    def __init__(self, links: AsyncLinks, calls: FeedCalls, follow: bool, timeout: str | float | None) -> None:
        self._links, self._calls = links, calls
        self._timeout_ms = None if timeout is None else milliseconds(timeout)
        self._follow = follow
        self._ahead: deque[ViewChange] = deque()
        self._closed = threading.Event()
        self._look_ms = LOOK_MS_MIN
        self._give_up = 0.0
        self._given_ts = calls.given_ts
        #: Goes on when whoever waits for it is cancelled: what it finds is for the next one.
        self._asking: asyncio.Task[list[ViewChange]] | None = None

    async def __anext__(self) -> ViewChange:
        while not self._closed.is_set():
            if not self._ahead:
                await self._fetch_some()
            if self._ahead:
                change = self._ahead.popleft()
                self._given_ts = change.watermark
                self._look_ms, self._give_up = LOOK_MS_MIN, 0.0
                return change
            self._given_ts = self._calls.given_ts
            wait_s = self._wait_s()
            if wait_s is None:
                self._closed.set()
            else:
                await asyncio.sleep(wait_s)
        raise StopAsyncIteration

    async def _fetch_some(self) -> None:
        if self._asking is None:
            self._asking = asyncio.create_task(self._links.run(self._calls.next()))
        asking = self._asking
        try:
            await asyncio.shield(asking)
        finally:
            if asking.done():
                self._asking = None
                if not asking.cancelled() and asking.exception() is None:
                    self._ahead.extend(asking.result())

    async def close(self) -> None:
        self._closed.set()


class AsyncRemoteViewManagers(AsyncViewManagers):
    """`db.view_managers`."""

    def __init__(self, database: AsyncRemoteDatabase) -> None:
        self._remote = database

    async def add(self) -> int:
        return cast(int, await self._remote._call("managers.add", kind=ONCE))

    async def remove(self, id: int) -> None:
        await self._remote._call("managers.remove", id, kind=ONCE)

    async def assign(self, id: int, ltm: str | None = None) -> None:
        await self._remote._call("managers.assign", id, ltm, kind=ONCE)

    async def withdraw(self, id: int) -> None:
        await self._remote._call("managers.withdraw", id, kind=ONCE)

    async def status(self) -> list[ViewManagerStatus]:
        return cast("list[ViewManagerStatus]", await self._remote._call("managers.status"))
