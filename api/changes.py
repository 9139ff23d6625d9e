"""The change feed as users hold it: `for change in v.changes(since=token)`, and the same for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self, cast

from .changetables.errors import InterfaceError
from .coordinator.ports import ChangeFeed, Feeding
from .durations import milliseconds
from .reads import through_switches, view_columns, view_rows
from .rows import Columns, Row, Token

if TYPE_CHECKING:
    from .ports import OpenNode

#: How often a follower looks for more: soon after something came, then less and less often.
LOOK_MS_MIN = 1.0
LOOK_MS_MAX = 20.0
#: Change tables that are computed beside the loop at once: to go there and back costs as much as a few of them.
FETCHED_CHANGES = 256


@dataclass(frozen=True, slots=True)
class ViewChange:
    """One change table of a view: what one commit did to a synchronous view, or one step to a deferred one.

    `rows` are (row, multiplicity): negative if it leaves the view, positive if it comes in, how often. `token`: pass it
    as `since` to get everything after this. `watermark` is the commit_ts at which the view is so.
    """

    token: Token
    watermark: int
    rows: list[tuple[Row, int]]


class _Reading:
    """What both iterators share: rounds of the feed, and how long to wait between them."""

    def __init__(
        self, node: OpenNode, name: str, since: Token | None, follow: bool, timeout: str | float | None
    ) -> None:
        if since is not None and not isinstance(since, Token):
            raise InterfaceError(
                f"since takes a token, not {type(since).__name__}",
                hint="that of a transaction, of a result or of an earlier change",
            )
        self._node = node
        self._timeout_ms = None if timeout is None else milliseconds(timeout)
        self._follow = follow
        node.check_open()
        self._feed = self._feed_of(name, None if since is None else since.commit_ts)
        self._round: Iterator[ViewChange] | None = None
        self._rounds_count = 0
        self._error: Exception | None = None
        self._closed = threading.Event()
        self._look_ms = LOOK_MS_MIN
        self._give_up = 0.0

    def _feed_of(self, name: str, since_ts: int | None) -> ChangeFeed:
        node = self._node
        return through_switches(lambda: node.admin.feed(view_rows(name, node.engine.ltm.tables), since_ts))

    def _columns(self) -> Columns:
        """As they are now."""
        return view_columns(cast(Feeding, self._feed).view())

    def _may_have_more(self) -> bool:
        self._node.check_open()
        return self._round is not None or not self._rounds_count or self._feed.has_news()

    def _next(self) -> ViewChange | None:
        """The next change that is there already."""
        if not self._may_have_more():
            return None
        if self._round is None:
            self._round = self._made()
            self._rounds_count += 1
        try:
            change = next(self._round, None)
        except BaseException:
            self._round = None  # the next one goes on behind what was given
            raise
        if change is None:
            self._round = None
        else:
            self._look_ms, self._give_up = LOOK_MS_MIN, 0.0
        return change

    def _some(self, count_max: int) -> list[ViewChange]:
        """Changes that are there already. What fails after the first of them is told the next time: none is lost."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        taken: list[ViewChange] = []
        try:
            while len(taken) < count_max and (change := self._next()) is not None:
                taken.append(change)
        except Exception as error:
            if not taken:
                raise
            self._error = error
        return taken

    def _made(self) -> Iterator[ViewChange]:
        columns = self._columns()
        for ts, rows in self._feed.round():
            yield ViewChange(Token(ts), ts, [(columns.row(values), times) for values, times in rows])

    def _wait_s(self) -> float | None:
        """How long to wait before the next look, None: no more."""
        if not self._follow or self._closed.is_set():
            return None
        wait_ms = self._look_ms
        self._look_ms = min(2 * wait_ms, LOOK_MS_MAX)
        if self._timeout_ms is not None:
            now_ms = time.monotonic() * 1000
            self._give_up = self._give_up or now_ms + self._timeout_ms
            wait_ms = min(wait_ms, self._give_up - now_ms)
        return wait_ms / 1000 if wait_ms > 0 else None


class Changes(_Reading, Iterator[ViewChange]):
    """`v.changes(since=token)`: ordered and resumable. With `follow` it waits for more; `close` ends that, from any
    thread."""

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> ViewChange:
        while not self._closed.is_set():
            change = self._next()
            if change is not None:
                return change
            wait_s = self._wait_s()
            if wait_s is None:
                self._closed.set()
            else:
                self._closed.wait(wait_s)
        raise StopIteration

    @property
    def token(self) -> Token:
        """Everything up to here was given, also where nothing changed: it is at or after that of the last change."""
        return Token(self._feed.ts)

    def close(self) -> None:
        self._closed.set()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncOnly:
    """What `async with` enters. Who forgets the first word is told so; type checkers know it without this."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise InterfaceError("what comes from vt.aio is not entered by `with`", hint="write `async with`")

        def __exit__(self, *_: object) -> None:  # looked for before the other one is called
            ...


class Itself:
    """What is there without a wait: it can be used at once, or awaited like every other name of `vt.aio`."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class AsyncChanges(AsyncOnly, Itself, _Reading, AsyncIterator[ViewChange]):
    """The same for `async for`: the log is read in a thread beside the loop."""

    def __init__(
        self, node: OpenNode, name: str, since: Token | None, follow: bool, timeout: str | float | None
    ) -> None:
        super().__init__(node, name, since, follow, timeout)
        self._ahead: deque[ViewChange] = deque()
        #: Goes on when whoever waits for it is cancelled: what it finds is for the next one.
        self._fetching: asyncio.Task[list[ViewChange]] | None = None
        self._given_ts = self._feed.ts

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> ViewChange:
        while not self._closed.is_set():
            if not self._ahead and (self._fetching is not None or self._may_have_more()):
                await self._fetch()
            if self._ahead:
                change = self._ahead.popleft()
                self._given_ts = change.watermark
                return change
            self._given_ts = self._feed.ts
            wait_s = self._wait_s()
            if wait_s is None:
                self._closed.set()
            else:
                await asyncio.sleep(wait_s)
        raise StopAsyncIteration

    async def _fetch(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.create_task(asyncio.to_thread(self._some, FETCHED_CHANGES))
        fetching = self._fetching
        try:
            await asyncio.shield(fetching)
        finally:
            # Also if the one who waits was cancelled when it was just done.
            if fetching.done():
                self._fetching = None
                if fetching.exception() is None:
                    self._ahead.extend(fetching.result())

    @property
    def token(self) -> Token:
        """As that of `Changes`."""
        return Token(self._given_ts)

    async def close(self) -> None:
        self._closed.set()

    async def __aenter__(self) -> AsyncChanges:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
