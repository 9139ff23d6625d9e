"""A fake store with faults, over the store in memory. It outlives the processes, as HBase does, and may be shared.

Each process reads and writes through a `SimStore.for_host(...)` of its own, which implements `ltm.ports.Store`. A call
that fails raises `Unavailable`: it was not done, done in part, done, or will be done later, when somebody else may own
the rows. Who gets it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from random import Random

from viewtide.changetables.errors import Unavailable
from viewtide.ltm.ports import Cell
from viewtide.ltm.store.memory import MemoryStore

from .process import Host
from .world import World

#: What may happen to the next write: nothing is done; all is done; a part is; all is done after a while.
TIMEOUT_BEFORE = "timeout before"
TIMEOUT_APPLIED = "timeout but applied"
PARTIAL = "partial batch"
APPLIED_LATE = "applied late"
WRITE_FAULTS = (TIMEOUT_BEFORE, TIMEOUT_APPLIED, PARTIAL, APPLIED_LATE)

#: How long calls take, on a good and on a slow day, and how long a client waits before it gives up.
CALL_US = 300
SLOW_CALL_US = 400_000
TIMEOUT_US = 1_000_000
#: A write that is applied late comes up to this long after its timeout.
LATE_US_MAX = 5_000_000


class SimStore:
    def __init__(self, world: World, name: str = "store") -> None:
        self.name = name
        self.inner = MemoryStore()
        self.slow = 0
        self._world = world
        self._random: Random = world.streams[f"store {name}"]
        #: Faults that wait for the next write, of a process or ("") of anyone.
        self._armed: list[tuple[str, str]] = []
        self._reads_failing = 0

    def for_host(self, host: Host) -> HostStore:
        return HostStore(self, host)

    def arm(self, fault: str, process: str = "") -> None:
        """The next write of that process, or of anyone, goes wrong."""
        self._armed.append((fault, process))

    def fail_reads(self, by: int) -> None:
        """Faults that make every read time out begin (1) or end (-1)."""
        self._reads_failing += by

    def heal(self) -> None:
        self._armed.clear()
        self.slow = self._reads_failing = 0

    def spend(self, host: Host) -> None:
        host.spend(SLOW_CALL_US if self.slow else CALL_US)

    def before_read(self, host: Host) -> None:
        self.spend(host)
        if self._reads_failing:
            host.spend(TIMEOUT_US)
            self._world.record(host.name, "store", "read timed out")
            raise Unavailable(f"a read from {self.name} timed out")

    def take_fault(self, host: Host) -> str:
        for armed in self._armed:
            if armed[1] in ("", host.name):
                self._armed.remove(armed)
                self._world.record(host.name, "store", armed[0])
                return armed[0]
        return ""

    def write(
        self,
        host: Host,
        batches: list[Sequence[Cell]],
        superseded: list[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        removed: list[tuple[bytes, int]],
    ) -> None:
        self.spend(host)
        fault = self.take_fault(host)
        if fault == PARTIAL:
            cells = list(chain.from_iterable(batches))
            self._apply([cells[: self._random.randint(0, len(cells))]], [], {}, [])
        elif fault == APPLIED_LATE:
            late_us = TIMEOUT_US + self._random.randint(0, LATE_US_MAX)
            self._world.after(late_us, self._apply, batches, superseded, dict(meta), removed)
        elif fault != TIMEOUT_BEFORE:
            self._apply(batches, superseded, meta, removed)
        if fault:
            host.spend(TIMEOUT_US)
            raise Unavailable(f"a write to {self.name} timed out: it is unknown how much of it was done")

    def _apply(
        self,
        batches: list[Sequence[Cell]],
        superseded: list[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        removed: list[tuple[bytes, int]],
    ) -> None:
        self.inner.write(batches, superseded, meta, _nothing, removed)


class HostStore:
    """Implements `ports.Store` for one process."""

    def __init__(self, store: SimStore, host: Host) -> None:
        self._store = store
        self._inner = store.inner
        self._host = host

    def get(self, key: bytes, at: int) -> Cell | None:
        self._store.before_read(self._host)
        return self._inner.get(key, at)

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        self._store.before_read(self._host)
        return self._inner.get_many(keys, at)

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        self._store.before_read(self._host)
        return self._inner.scan(start, stop, at, limit)

    def write(
        self,
        batches: Iterable[Sequence[Cell]],
        superseded: Iterable[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
        removed: Iterable[tuple[bytes, int]] = (),
    ) -> None:
        collected: list[Sequence[Cell]] = []
        for batch in batches:
            collected.append(tuple(batch))
            between()
        self._store.write(self._host, collected, list(superseded), meta, list(removed))

    def write_elsewhere(self) -> None:
        return None

    def prune(self, horizon: int, limit: int) -> int:
        self._store.before_read(self._host)
        return self._inner.prune(horizon, limit)

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        self._store.before_read(self._host)
        return self._inner.max_key(start, stop)

    def meta(self, name: str) -> bytes | None:
        self._store.before_read(self._host)
        return self._inner.meta(name)

    def drop_range(self, start: bytes, stop: bytes) -> None:
        self._store.before_read(self._host)
        self._inner.drop_range(start, stop)

    def stat(self) -> dict[str, int]:
        return self._inner.stat()

    def close(self) -> None:
        """The process is done with it; the data stays for the next one."""


def _nothing() -> None:
    return None
