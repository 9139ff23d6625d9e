"""Long work in slices: the engine's lock is held, and given to whoever waits for it every few milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..ltm.fair_lock import FairLock

#: How long writers wait for a slice of other work.
SLICE_MS = 2.0


class Turns:
    """A context manager that holds the lock. `pause` lets go of it if the slice has been long enough."""

    def __init__(self, lock: FairLock) -> None:
        self._lock = lock
        self._began = 0.0
        self._pauses = True

    def __enter__(self) -> Turns:
        self._lock.acquire()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release_if_owned()

    def pause(self) -> None:
        if self._pauses and (time.perf_counter() - self._began) * 1000 >= SLICE_MS:
            self._lock.release()
            self._lock.acquire()
            self._began = time.perf_counter()

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
