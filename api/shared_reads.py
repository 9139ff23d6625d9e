"""Timestamps that an open database keeps readable in its store for other processes, such as Spark's.

Whoever wants to read a whole table asks the process that has the directory open for a timestamp, and reads the store
by itself, beside it (`stored`). Every pin has a lease: it is let go when nobody renewed it, with the versions that it
kept.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time

from .changetables.errors import InterfaceError, NotSupportedError, OperationalError
from .coordinator.embedded import Engine
from .ports import OpenNode
from .reads import readers, unknown_table, view_rows

#: Longer leases would keep old versions of every row for too long if nobody comes back.
LEASE_S_MAX = 24 * 3_600.0
#: Timestamps that are kept for others, at the most: every write that replaces a row looks at them.
PINS_MAX = 256


class SharedReads:
    """Of one open database. Calls may come from many threads."""

    def __init__(self, node: OpenNode) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._numbers = itertools.count(secrets.randbits(48))
        #: By number: the reader, its lease and when it ends.
        self._pins: dict[int, tuple[int, float, float]] = {}

    def pin(self, name: str, lease_s: float) -> tuple[int, int]:
        """(its number, the timestamp at which the table or view can be read in the store)"""
        engine = self._node.engine
        if not isinstance(engine, Engine):
            raise NotSupportedError("only a database in a directory is read from its store", hint="read it by its url")
        if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
            raise InterfaceError(f"a lease of {lease_s!r} s; it is above 0 and at most {LEASE_S_MAX:g}")
        tables = engine.ltm.newest_tables()
        horizon = engine.ltm.horizon
        if not isinstance(name, str) or name not in tables.by_name:
            if name not in tables.views:
                raise unknown_table(name, tables)
            view = view_rows(name, tables)
            if view.view.deferred:
                horizon = engine.ltm.horizon_of(view)
        with self._lock:
            if len(self._pins) >= PINS_MAX:
                raise OperationalError(
                    f"{PINS_MAX} timestamps are kept for other processes", hint="wait for their leases to end"
                )
        reader = next(readers)
        at = engine.share(reader, horizon)
        number = next(self._numbers)
        with self._lock:
            self._pins[number] = (reader, lease_s, time.monotonic() + lease_s)
        return number, at

    def renew(self, number: int) -> bool:
        """Whether it still was there."""
        with self._lock:
            found = self._pins.get(number)
            if found is not None:
                self._pins[number] = (found[0], found[1], time.monotonic() + found[1])
            return found is not None

    def release(self, number: int) -> None:
        with self._lock:
            found = self._pins.pop(number, None)
        if found is not None:
            self._unshare([found[0]])

    @property
    def overdue(self) -> bool:
        now = time.monotonic()
        return any(end < now for _, _, end in list(self._pins.values()))

    def expire(self) -> None:
        """It may wait for a checkpoint that is under way."""
        now = time.monotonic()
        with self._lock:
            gone = [number for number, (_, _, end) in self._pins.items() if end < now]
            freed = [self._pins.pop(number)[0] for number in gone]
        if freed:
            self._unshare(freed)

    def _unshare(self, freed: list[int]) -> None:
        engine = self._node.engine
        assert isinstance(engine, Engine), "it was shared by one"
        engine.unshare(freed)
