"""Runs one cell: clients that commit without pause and one reader of the view beside them, as threads or asyncio tasks.

All systems get the same treatment: rows are made before a transaction's clock starts, the garbage collector is on, with
Python's thresholds or those that the system under test sets itself, and what was alive before the cell is frozen so
that no system pays for the leftovers of another. Clients stop by the clock, not by a signal from another thread, which
might not get its turn.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from .errors import BenchError, Violation
from .workload import Cell, Event, ViewChecker, ViewRow, transactions

#: The reader's pause between two reads: a dashboard that is refreshed far more often than anyone looks, but one that
#: leaves the processors to the writers.
READ_PAUSE_S = 0.005
#: How long clients may take to stop once their time is over, before the bench calls the system stuck. It is above the
#: busy timeout of SQLite, whose clients can wait that long.
STOP_S_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Timing:
    warm_up_s: float
    measure_s: float


class Client(Protocol):
    """One client with its own connection, if the system has such. Made, used and closed in one thread."""

    def prepare(self, events: list[Event]) -> Callable[[], object]:
        """Brings the events into the form that the system likes best; the call that it returns commits them durably
        in one transaction. Only that call is timed."""

    def close(self) -> None: ...


class Reader(Protocol):
    def read(self) -> Sequence[ViewRow]:
        """The whole view, in one consistent read, as the system gives it: rows that can be read by position."""

    def close(self) -> None: ...


class Session(Protocol):
    """One fresh database that holds the initial rows and the view."""

    def client(self) -> Client: ...

    def reader(self) -> Reader: ...

    def recompute_differs(self) -> str | None:
        """Compares the view with a recompute from the base tables: None, or what differs."""


class AsyncClient(Protocol):
    def prepare(self, events: list[Event]) -> Callable[[], Awaitable[object]]: ...


class AsyncSession(Protocol):
    """`Session` for asyncio: clients are tasks of one loop and share one database."""

    def client(self) -> AsyncClient: ...

    async def read(self) -> Sequence[ViewRow]: ...

    async def recompute_differs(self) -> str | None: ...


@dataclass(slots=True)
class Record:
    """Begin and end of each operation of one client or reader, by time.perf_counter(). Arrays of doubles: the garbage
    collector need not look at them."""

    begins: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))

    def add(self, begin: float, end: float) -> None:
        self.begins.append(begin)
        self.ends.append(end)

    def ended_in(self, start: float, stop: float) -> int:
        return sum(1 for end in self.ends if start <= end < stop)

    def latencies_s(self, start: float, stop: float) -> list[float]:
        """Of all operations that overlap the window: one that began in it and waited beyond its end counts too, else
        a system that starves clients would hide its longest waits."""
        return [end - begin for begin, end in zip(self.begins, self.ends, strict=True) if end >= start and begin < stop]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one cell gave, raw. `client_counts` are transactions acknowledged in the measured time, per client."""

    measure_s: float
    client_counts: list[int]
    latencies_s: list[float]
    read_latencies_s: list[float]
    reads_checked: int


class _Run:
    """What the clients and the reader of one cell share."""

    def __init__(self, system: str, cell: Cell, timing: Timing) -> None:
        self.system = system
        self.cell = cell
        self.timing = timing
        self.records = [Record() for _ in range(cell.clients)]
        self.reads = Record()
        self.checker = ViewChecker(system, cell)
        self.start = 0.0
        self.stop = 0.0
        self.broken = False

    def start_clock(self) -> None:
        self.start = time.perf_counter() + self.timing.warm_up_s
        self.stop = self.start + self.timing.measure_s

    def break_off(self) -> None:
        self.broken = True

    def goes_on(self) -> bool:
        return time.perf_counter() < self.stop and not self.broken

    def acknowledged(self) -> int:
        return sum(len(record.ends) for record in self.records)

    def check_end(self, rows: Sequence[ViewRow], differs: str | None) -> None:
        self.checker.check_end(rows, self.acknowledged())
        if differs is not None:
            raise Violation(f"the view differs from its recompute ({self.system}, {self.cell}): {differs}")

    def measurement(self) -> Measurement:
        return Measurement(
            measure_s=self.timing.measure_s,
            client_counts=[record.ended_in(self.start, self.stop) for record in self.records],
            latencies_s=[s for record in self.records for s in record.latencies_s(self.start, self.stop)],
            read_latencies_s=self.reads.latencies_s(self.start, self.stop),
            reads_checked=len(self.reads.ends),
        )


@contextmanager
def frozen_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def measure_threads(
    system: str, open_session: Callable[[], AbstractContextManager[Session]], cell: Cell, timing: Timing
) -> Measurement:
    run = _Run(system, cell, timing)
    with open_session() as session, frozen_garbage():
        _run_threads(session, run)
        reader = session.reader()
        try:
            run.check_end(reader.read(), session.recompute_differs())
        finally:
            reader.close()
    return run.measurement()


class Team:
    """Threads that begin together, each with the barrier at which it waits for the others once it is ready. The first
    one that fails makes the others end early (`on_failure`), and its error is raised by `join`."""

    def __init__(
        self,
        works: Sequence[Callable[[threading.Barrier], None]],
        on_start: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._on_failure = on_failure
        self._ready = threading.Barrier(len(works), action=on_start)
        self._failures: list[Exception] = []
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[threading.Barrier], None]) -> None:
        try:
            work(self._ready)
        except threading.BrokenBarrierError:
            return  # Another thread failed before the start and has put its own error into `_failures`.
        except Exception as error:
            self._failures.append(error)
            self._on_failure()
            self._ready.abort()

    def join(self, seconds_max: float) -> bool:
        """Whether all ended within the time."""
        give_up = time.perf_counter() + seconds_max
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.perf_counter()))
        if self._failures:
            raise self._failures[0]
        return not any(thread.is_alive() for thread in self._threads)


def _run_threads(session: Session, run: _Run) -> None:
    works = [partial(_client_thread, session, run, index) for index in range(run.cell.clients)]
    works.append(partial(_reader_thread, session, run))
    team = Team(works, run.start_clock, run.break_off)
    team.start()
    if not team.join(run.timing.warm_up_s + run.timing.measure_s + STOP_S_MAX):
        raise stuck(run.system, run.cell)


def _client_thread(session: Session, run: _Run, index: int, ready: threading.Barrier) -> None:
    source = transactions(run.cell, index)
    add = run.records[index].add
    client = session.client()
    try:
        ready.wait()
        while run.goes_on():
            commit = client.prepare(next(source))
            begin = time.perf_counter()
            commit()
            add(begin, time.perf_counter())
    finally:
        client.close()


def _reader_thread(session: Session, run: _Run, ready: threading.Barrier) -> None:
    reader = session.reader()
    try:
        ready.wait()
        while run.goes_on():
            acknowledged = run.acknowledged()
            begin = time.perf_counter()
            rows = reader.read()
            run.reads.add(begin, time.perf_counter())
            run.checker.check(rows, acknowledged)
            time.sleep(READ_PAUSE_S)
    finally:
        reader.close()


def measure_asyncio(
    system: str, open_session: Callable[[], AbstractAsyncContextManager[AsyncSession]], cell: Cell, timing: Timing
) -> Measurement:
    run = _Run(system, cell, timing)
    asyncio.run(_measure_tasks(open_session, run))
    return run.measurement()


async def _measure_tasks(open_session: Callable[[], AbstractAsyncContextManager[AsyncSession]], run: _Run) -> None:
    async with open_session() as session, _frozen_garbage_async():
        try:
            async with asyncio.timeout(run.timing.warm_up_s + run.timing.measure_s + STOP_S_MAX):
                await _run_tasks(session, run)
        except TimeoutError as error:
            raise stuck(run.system, run.cell) from error
        run.check_end(await session.read(), await session.recompute_differs())


@asynccontextmanager
async def _frozen_garbage_async() -> AsyncIterator[None]:
    with frozen_garbage():
        yield


async def _run_tasks(session: AsyncSession, run: _Run) -> None:
    sources = [transactions(run.cell, index) for index in range(run.cell.clients)]
    clients = [session.client() for _ in sources]
    run.start_clock()
    tasks = [asyncio.create_task(_reader_task(session, run))]
    for client, source, record in zip(clients, sources, run.records, strict=True):
        tasks.append(asyncio.create_task(_client_task(client, source, record, run)))
    try:
        await asyncio.gather(*tasks)
    finally:
        run.broken = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _client_task(client: AsyncClient, source: Iterator[list[Event]], record: Record, run: _Run) -> None:
    while run.goes_on():
        commit = client.prepare(next(source))
        begin = time.perf_counter()
        await commit()
        record.add(begin, time.perf_counter())


async def _reader_task(session: AsyncSession, run: _Run) -> None:
    while run.goes_on():
        acknowledged = run.acknowledged()
        begin = time.perf_counter()
        rows = await session.read()
        run.reads.add(begin, time.perf_counter())
        run.checker.check(rows, acknowledged)
        await asyncio.sleep(READ_PAUSE_S)


def stuck(system: str, cell: Cell) -> BenchError:
    return BenchError(
        f"{system} is stuck ({cell}): clients did not stop within {STOP_S_MAX:.0f} s after their time was over"
    )
