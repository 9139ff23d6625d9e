"""Long work in slices: the engine's lock is held, and given to whoever waits for it every few milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..ltm.fair_lock import FairLock

#: How long writers wait for a slice of other work. Between slices each writer that waits is served once: with short
#: slices that is most of what writers get, and 16 of them came down to 0.75 of their speed at 2 ms (0.87 at 8 ms).
SLICE_MS = 8.0
#: Long work rests after so many slices, and after each that follows, as long as a slice, while there are writers. To
#: let go of the lock is not enough: their threads need the interpreter, too.
SLICES_WITHOUT_REST = 8
REST_MS = 8.0


class Turns:
    """A context manager that holds the lock. `pause` lets go of it if the slice has been long enough.

    `commits` counts what writers do: nobody rests for writers that are not there.
    """

    def __init__(self, lock: FairLock, commits: Callable[[], int]) -> None:
        self._lock = lock
        self._commits = commits
        self._commits_seen = 0
        self._began = 0.0
        self._slices_count = 0
        self._pauses = True

    def __enter__(self) -> Turns:
        self._lock.acquire()
        self._began = time.perf_counter()
        self._slices_count = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release_if_owned()

    def pause(self) -> None:
        if self._pauses and (time.perf_counter() - self._began) * 1000 >= SLICE_MS:
            self._lock.release()
            self._rest()
            self._lock.acquire()
            self._began = time.perf_counter()

    def _rest(self) -> None:
        self._slices_count += 1
        commits_count = self._commits()
        if commits_count != self._commits_seen:
            self._commits_seen = commits_count
            if self._slices_count > SLICES_WITHOUT_REST:
                time.sleep(REST_MS / 1000)

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """For work that takes the lock itself."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._began = time.perf_counter()

    @contextmanager
    def without_pauses(self) -> Iterator[None]:
        """For work that has to be done at once. The caller holds the lock already."""
        self._pauses = False
        try:
            yield
        finally:
            self._pauses = True
