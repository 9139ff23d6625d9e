"""The store of "memory:" databases and of tests: what `LmdbStore` does, without a file.

A lock stands for LMDB's snapshots. `write` collects everything before it takes the lock, so that a failure midway
leaves no trace and no reader sees half of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from threading import Lock

from ...changetables.errors import InterfaceError, InternalError
from ..ordered_keys import OrderedKeys
from ..ports import KEY_BYTES_MAX, Cell

_commit_ts = attrgetter("commit_ts")


class MemoryStore:
    """Implements `ports.Store` in dicts. Nothing outlives the process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._closed = False
        #: Per key its versions, oldest first; never empty.
        self._versions: dict[bytes, list[Cell]] = {}
        self._keys = OrderedKeys()
        #: A heap of (superseding commit_ts, key, superseded commit_ts). The set is there because equal notes are one.
        self._note_heap: list[tuple[int, bytes, int]] = []
        self._notes: set[tuple[int, bytes, int]] = set()
        self._meta: dict[str, bytes] = {}

    def get(self, key: bytes, at: int) -> Cell | None:
        with self._lock:
            self._check_open()
            return self._newest(key, at)

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        with self._lock:
            self._check_open()
            return [self._newest(key, at) for key in keys]

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        found: list[Cell] = []
        with self._lock:
            self._check_open()
            for key in self._keys.between(start, stop):
                if len(found) >= limit:
                    break
                cell = self._newest(key, at)
                if cell is not None:
                    found.append(cell)
        return found

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
            _check_lengths(batch)
            collected.append(batch)
            between()
        notes, gone = list(superseded), list(removed)
        with self._lock:
            self._check_open()
            for cell in chain.from_iterable(collected):
                self._put(cell)
            for key, commit_ts in gone:
                self._delete(key, commit_ts)
            for note in notes:
                if note not in self._notes:
                    self._notes.add(note)
                    heappush(self._note_heap, note)
            self._meta.update(meta)

    def write_elsewhere(self) -> None:
        return None

    def prune(self, horizon: int, limit: int) -> int:
        settled = 0
        with self._lock:
            self._check_open()
            while settled < limit and self._note_heap and self._note_heap[0][0] <= horizon:
                note = heappop(self._note_heap)
                self._notes.remove(note)
                superseding_ts, key, commit_ts = note
                self._delete(key, commit_ts, tombstone_only=superseding_ts == commit_ts)
                settled += 1
        return settled

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        with self._lock:
            self._check_open()
            key = self._keys.last_below(stop)
            return key if key is not None and key >= start else None

    def meta(self, name: str) -> bytes | None:
        with self._lock:
            self._check_open()
            return self._meta.get(name)

    def drop_range(self, start: bytes, stop: bytes) -> None:
        with self._lock:
            self._check_open()
            for key in list(self._keys.between(start, stop)):
                del self._versions[key]
                self._keys.remove(key)

    def stat(self) -> dict[str, int]:
        with self._lock:
            self._check_open()
            cells = used_bytes = 0
            for key, versions in self._versions.items():
                cells += len(versions)
                used_bytes += sum(len(key) + len(cell.value or b"") for cell in versions)
            return {"cells": cells, "notes": len(self._notes), "used_bytes": used_bytes, "file_bytes": 0}

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the store in memory is closed", hint="open the database again")

    def _newest(self, key: bytes, at: int) -> Cell | None:
        versions = self._versions.get(key)
        if versions is None:
            return None
        newest = versions[-1]
        if newest.commit_ts <= at:
            return newest
        position = bisect_right(versions, at, key=_commit_ts)
        return versions[position - 1] if position else None

    def _put(self, cell: Cell) -> None:
        versions = self._versions.get(cell.key)
        if versions is None:
            self._versions[cell.key] = [cell]
            self._keys.add(cell.key)
            return
        position = bisect_left(versions, cell.commit_ts, key=_commit_ts)
        if position < len(versions) and versions[position].commit_ts == cell.commit_ts:
            versions[position] = cell
        else:
            versions.insert(position, cell)

    def _delete(self, key: bytes, commit_ts: int, *, tombstone_only: bool = False) -> None:
        """A version that is not there is passed over: it was dropped with its table."""
        versions = self._versions.get(key, [])
        position = bisect_left(versions, commit_ts, key=_commit_ts)
        if position < len(versions) and versions[position].commit_ts == commit_ts:
            if tombstone_only and versions[position].value is not None:
                return
            del versions[position]
            if not versions:
                del self._versions[key]
                self._keys.remove(key)


def _check_lengths(batch: Sequence[Cell]) -> None:
    """What LMDB refuses is refused here too, or tests on this store would prove less."""
    for cell in batch:
        if not 0 < len(cell.key) <= KEY_BYTES_MAX:
            raise InternalError(
                f"a key of {len(cell.key)} bytes reached the store, which takes 1 to {KEY_BYTES_MAX}: "
                f"{cell.key[:32].hex()}..."
            )
