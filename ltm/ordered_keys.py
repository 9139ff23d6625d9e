"""Distinct keys in order, in chunks: one long list would move all its pointers at each insert (of a million keys, 0.2
ms)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

#: Keys in one chunk, at the most: an insert moves half of them, and the list of chunks stays short.
CHUNK_KEYS_MAX = 2_000
#: Keys that wait for their places: sorted first, they find them in a fraction of the time, and nobody waits for long.
LATE_KEYS_MAX = 512


class OrderedKeys:
    """Nothing may be added or removed while somebody iterates."""

    def __init__(self) -> None:
        #: Never an empty chunk. `_lows` holds the first key of each.
        self._chunks: list[list[bytes]] = []
        self._lows: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, key: bytes) -> None:
        """The key is not in yet."""
        chunks, lows = self._chunks, self._lows
        if not chunks or key > chunks[-1][-1]:
            if chunks and len(chunks[-1]) < CHUNK_KEYS_MAX:
                chunks[-1].append(key)
            else:
                chunks.append([key])
                lows.append(key)
            return
        index = max(bisect_right(lows, key) - 1, 0)
        chunk = chunks[index]
        insort(chunk, key)
        lows[index] = chunk[0]
        if len(chunk) > CHUNK_KEYS_MAX:
            half = len(chunk) // 2
            chunks.insert(index + 1, chunk[half:])
            lows.insert(index + 1, chunk[half])
            del chunk[half:]

    def add_all(self, keys: list[bytes]) -> None:
        """Keys in order, none of which is in yet. From the last one back."""
        chunks, lows = self._chunks, self._lows
        if not chunks:
            chunks.append([])
            lows.append(keys[0])
        end = len(keys)
        while end:
            # A chunk that is divided moves none that is still to come.
            index = max(bisect_right(lows, keys[end - 1]) - 1, 0)
            start = bisect_left(keys, lows[index], 0, end) if index else 0
            chunk = chunks[index]
            is_behind = not chunk or keys[start] > chunk[-1]
            if is_behind:
                chunk += keys[start:end]
            else:
                for key in keys[start:end]:
                    insort(chunk, key)
            lows[index] = chunk[0]
            size = len(chunk)
            if size > CHUNK_KEYS_MAX:
                # Keys that grow fill one chunk after the other; others leave room in each.
                step = CHUNK_KEYS_MAX if is_behind else -(-size // -(-2 * size // CHUNK_KEYS_MAX))
                parts = [chunk[place : place + step] for place in range(0, size, step)]
                chunks[index : index + 1] = parts
                lows[index : index + 1] = [part[0] for part in parts]
            end = start

    def remove(self, key: bytes) -> None:
        """The key is in."""
        index = bisect_right(self._lows, key) - 1
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._lows[index] = chunk[0]
        else:
            del self._chunks[index], self._lows[index]

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """start <= key < stop."""
        first = max(bisect_right(self._lows, start) - 1, 0)
        for index in range(first, len(self._chunks)):
            chunk = self._chunks[index]
            position = bisect_left(chunk, start) if index == first else 0
            end = len(chunk) if chunk[-1] < stop else bisect_left(chunk, stop)
            for at in range(position, end):
                yield chunk[at]
            if end < len(chunk):
                return

    def back_between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The same, from the last one back."""
        last = bisect_left(self._lows, stop) - 1
        for index in range(last, -1, -1):
            chunk = self._chunks[index]
            position = len(chunk) if index != last else bisect_left(chunk, stop)
            end = 0 if chunk[0] >= start else bisect_left(chunk, start)
            for at in range(position - 1, end - 1, -1):
                yield chunk[at]
            if end:
                return

    def last_below(self, stop: bytes) -> bytes | None:
        return next(self.back_between(b"", stop), None)


class LateOrderedKeys(OrderedKeys):
    """Keys find their places when somebody looks, or many of them at once. For one thread: looking changes it."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._late or self._chunks)

    def __iter__(self) -> Iterator[bytes]:
        self._settle()
        return super().__iter__()

    def add(self, key: bytes) -> None:
        self.add_all([key])

    def add_all(self, keys: list[bytes]) -> None:
        """In whatever order."""
        self._late += keys
        if len(self._late) >= LATE_KEYS_MAX:
            self._settle()

    def remove(self, key: bytes) -> None:
        self._settle()
        super().remove(key)

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        self._settle()
        return super().between(start, stop)

    def back_between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        self._settle()
        return super().back_between(start, stop)

    def _settle(self) -> None:
        if self._late:
            late, self._late = self._late, []
            late.sort()
            super().add_all(late)
