"""Writers that go on while the bench changes their pace and watches the view beside them, for the intervals.

Unlike a cell of the dashboard, a crew lives through several phases: without pause, or at a given rate. A given rate is
kept by schedule (an open loop): each transaction has the moment at which it is due, whatever became of the one before,
and its response time counts from that moment. A pause after each transaction would slow down with the system under
test, and hide exactly the waits that are to be seen.

The watcher checks every read. A view that may be behind says which moment it reflects, and that is checked too: what
was acknowledged before that moment is in it. A system that claims to be fresher than it is does not get away with it.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from .driver import STOP_S_MAX, Client, Record, Team, frozen_garbage, stuck
from .errors import Violation
from .workload import Cell, ViewChecker, ViewRow, transactions

#: A commit that was acknowledged so long before the moment that a view reflects must be in it. Above zero, because a
#: watermark has whole milliseconds and clocks are adjusted.
WATERMARK_SLACK_S = 0.005
#: How long all clients may take to connect and draw their rows.
READY_S_MAX = 60.0


class Read(NamedTuple):
    """The view as one read gave it, and the moment that it reflects, in milliseconds since 1970."""

    rows: Sequence[ViewRow]
    watermark_ms: int


class Watcher(Protocol):
    def read(self) -> Read: ...

    def close(self) -> None: ...


class LoadSession(Protocol):
    """One fresh database that holds the initial rows and perhaps a view, deferred or not."""

    def client(self) -> Client: ...

    def watcher(self) -> Watcher | None:
        """None if there is no view."""

    def catch_up(self) -> None:
        """Brings the view up to the last commit."""

    def recompute_differs(self) -> str | None:
        """Compares the view with a recompute from the base tables: None, or what differs."""


OpenSession = Callable[[], AbstractContextManager[LoadSession]]


class Sighting(NamedTuple):
    """At `at` somebody had an answer that reflects the moment `watermark`. Both by time.perf_counter()."""

    at: float
    watermark: float


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, by time.perf_counter()."""

    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Pace:
    """So many transactions per second of all clients together, from `start` on. Clients take turns, evenly spaced."""

    start: float
    clients: int
    tx_per_s: float

    def due(self, client: int, number: int) -> float:
        """When the client's transaction of that number is due, by time.perf_counter()."""
        return self.start + (number * self.clients + client) / self.tx_per_s


class WallClock:
    """Brings moments since 1970 to the scale of time.perf_counter(). The wall clock may be adjusted meanwhile, so the
    difference of both is taken anew each time, unless another thread came in between and would have spoilt it."""

    UNDISTURBED_S = 0.000_05
    TRIES_MAX = 1_000

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.perf_counter()
        for _ in range(self.TRIES_MAX):
            if self._adjust():
                break

    def moment(self, since_1970_ms: float) -> float:
        self._adjust()
        return since_1970_ms / 1_000 - self._ahead_s

    def _adjust(self) -> bool:
        before = time.perf_counter()
        wall = time.time()
        undisturbed = time.perf_counter() - before < self.UNDISTURBED_S
        if undisturbed:
            self._ahead_s = wall - before
        return undisturbed


class Crew:
    """The clients of one cell and the watcher of its view. Figures are asked for by window, afterwards."""

    def __init__(self, system: str, session: LoadSession, cell: Cell, watch_every_s: float) -> None:
        self._system = system
        self._session = session
        self._cell = cell
        self._watch_every_s = watch_every_s
        self._checker = ViewChecker(system, cell)
        self._clock = WallClock()
        self._pace: Pace | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        self.records = [Record() for _ in range(cell.clients)]
        self.sightings: list[Sighting] = []
        self._acknowledged_at: list[tuple[float, int]] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Clients and watcher work inside the `with` block, at first without pause. Ends with the error of the first
        that failed."""
        works: list[Callable[[threading.Barrier], None]] = [
            partial(self._write, index) for index in range(self._cell.clients)
        ]
        watcher = self._session.watcher()
        if watcher is not None:
            works.append(partial(self._watch, watcher))
        team = Team(works, self._started.set, self._break_off)
        team.start()
        try:
            self._started.wait(READY_S_MAX)
            yield
        finally:
            self._ended.set()
            if not team.join(STOP_S_MAX):
                raise stuck(self._system, self._cell)

    def _break_off(self) -> None:
        self._ended.set()
        self._started.set()

    def keep_on(self, seconds: float, tx_per_s: float | None = None) -> Window:
        """Let them work for so long, at the given rate or without pause. Returns early only if one failed. A rate that
        is given again goes on: whoever was behind its schedule still is."""
        start = time.perf_counter()
        if tx_per_s is None:
            self._pace = None
        elif self._pace is None or self._pace.tx_per_s != tx_per_s:
            self._pace = Pace(start, self._cell.clients, tx_per_s)
        self._ended.wait(seconds)
        return Window(start, start + seconds)

    def check_end(self) -> None:
        """When nobody works any more: the view is brought up to date, and then it must hold exactly what was
        acknowledged, and be equal to its recompute."""
        self._session.catch_up()
        watcher = self._session.watcher()
        if watcher is None:
            return
        try:
            self._checker.check_end(watcher.read().rows, self.acknowledged())
        finally:
            watcher.close()
        differs = self._session.recompute_differs()
        if differs is not None:
            raise Violation(f"the view differs from its recompute ({self._system}, {self._cell}): {differs}")

    # -- figures

    def acknowledged(self) -> int:
        return sum(len(record.ends) for record in self.records)

    def tx_per_s(self, window: Window) -> float:
        return sum(record.ended_in(window.start, window.stop) for record in self.records) / window.seconds

    def latencies_s(self, window: Window) -> list[float]:
        return [s for record in self.records for s in record.latencies_s(window.start, window.stop)]

    def sighted_in(self, window: Window) -> list[Sighting]:
        return [sighting for sighting in self.sightings if window.start <= sighting.at < window.stop]

    # -- threads

    def _write(self, index: int, ready: threading.Barrier) -> None:
        source = transactions(self._cell, index)
        add = self.records[index].add
        client = self._session.client()
        pace, number = self._pace, 0
        try:
            ready.wait()
            while not self._ended.is_set():
                commit = client.prepare(next(source))
                if self._pace is not pace:
                    pace, number = self._pace, 0
                if pace is None:
                    begin = time.perf_counter()
                else:
                    begin = pace.due(index, number)
                    number += 1
                    _sleep_until(begin)
                commit()
                add(begin, time.perf_counter())
        finally:
            client.close()

    def _watch(self, watcher: Watcher, ready: threading.Barrier) -> None:
        try:
            ready.wait()
            due = time.perf_counter()
            while not self._ended.is_set():
                self._look(watcher)
                # What was missed is not made up for: reads in a row would only take time from the writers.
                due = max(due + self._watch_every_s, time.perf_counter())
                _sleep_until(due)
        finally:
            watcher.close()

    def _look(self, watcher: Watcher) -> None:
        acknowledged = self.acknowledged()
        self._acknowledged_at.append((time.perf_counter(), acknowledged))  # The clock last: by then they all were.
        rows, watermark_ms = watcher.read()
        at = time.perf_counter()
        watermark = self._clock.moment(watermark_ms)
        self.sightings.append(Sighting(at, watermark))
        self._checker.check(rows, self._acknowledged_before(watermark - WATERMARK_SLACK_S))

    def _acknowledged_before(self, moment: float) -> int:
        """What was surely acknowledged before that moment: the count that the watcher took last before it."""
        later = bisect_left(self._acknowledged_at, (moment, 0))
        return self._acknowledged_at[later - 1][1] if later else 0


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


@contextmanager
def crew_of(system: str, open_session: OpenSession, cell: Cell, watch_every_s: float) -> Iterator[Crew]:
    """A crew that is at work on a fresh database inside the `with` block; afterwards its end is checked."""
    with open_session() as session, frozen_garbage():
        crew = Crew(system, session, cell, watch_every_s)
        with crew.at_work():
            yield crew
        crew.check_end()
