"""Distinct keys in order, in chunks, each of which is put in order when somebody looks at it.

Until then new keys stand at the end of their chunk. A key that is only written costs a look at the lowest keys of the
chunks, which are few and in the processor's cache, and none at the others, which are all over the memory. One long list
would move all its pointers at each insert (of a million keys, 0.2 ms).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

#: Keys in one chunk, at the most: who looks at it first sorts them, and the list of chunks stays short.
CHUNK_KEYS_MAX = 2_000
#: So many late keys find their places one by one; if there are more, it takes less to sort the chunk.
LATE_KEYS_FEW = 64
#: A chunk is divided in the middle of so many of its keys.
SAMPLE_KEYS = 31


class OrderedKeys:
    """Nothing may be added or removed while somebody iterates. For one thread at a time: looking changes it."""

    def __init__(self) -> None:
        #: Never an empty chunk.
        self._chunks: list[list[bytes]] = []
        #: Of each chunk a bound: no key in it is below. Of the first one it is below all keys.
        self._lows: list[bytes] = []
        #: How many of each chunk's first keys are in order.
        self._settled: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[bytes]:
        for index in range(len(self._chunks)):
            yield from self._chunk(index)

    def add(self, key: bytes) -> None:
        """The key is not in yet."""
        self.add_all((key,))

    def add_all(self, keys: Iterable[bytes]) -> None:
        """In whatever order; none of them is in yet."""
        chunks, lows = self._chunks, self._lows
        for key in keys:
            if not chunks:
                chunks.append([])
                lows.append(b"")
                self._settled.append(0)
            index = bisect_right(lows, key, 1) - 1
            chunk = chunks[index]
            chunk.append(key)
            if len(chunk) > CHUNK_KEYS_MAX:
                self._divide(index)

    def remove(self, key: bytes) -> None:
        """The key is in."""
        index = bisect_right(self._lows, key, 1) - 1
        chunk = self._chunk(index)
        del chunk[bisect_left(chunk, key)]
        self._settled[index] -= 1
        if not chunk:
            del self._chunks[index], self._settled[index], self._lows[index]
            if self._lows:
                self._lows[0] = b""

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """start <= key < stop."""
        first = max(bisect_right(self._lows, start) - 1, 0)
        for index in range(first, bisect_left(self._lows, stop)):
            chunk = self._chunk(index)
            position = bisect_left(chunk, start) if index == first else 0
            end = len(chunk) if chunk[-1] < stop else bisect_left(chunk, stop)
            for at in range(position, end):
                yield chunk[at]

    def back_between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The same, from the last one back."""
        last = bisect_left(self._lows, stop) - 1
        for index in range(last, -1, -1):
            chunk = self._chunk(index)
            position = len(chunk) if index != last else bisect_left(chunk, stop)
            end = 0 if chunk[0] >= start else bisect_left(chunk, start)
            for at in range(position - 1, end - 1, -1):
                yield chunk[at]
            if end:
                return

    def last_below(self, stop: bytes) -> bytes | None:
        return next(self.back_between(b"", stop), None)

    def _chunk(self, index: int) -> list[bytes]:
        """A chunk, in order."""
        chunk = self._chunks[index]
        settled = self._settled[index]
        if settled < len(chunk):
            late = chunk[settled:]
            if len(late) > LATE_KEYS_FEW:
                chunk.sort()
            else:
                del chunk[settled:]
                for key in late:
                    insort(chunk, key)
            self._settled[index] = len(chunk)
        return chunk

    def _divide(self, index: int) -> None:
        """About in the middle, by a sample: neither part is empty, because the keys are distinct."""
        chunk, settled = self._chunks[index], self._settled[index]
        sample = sorted(chunk[:: max(1, len(chunk) // SAMPLE_KEYS)])
        middle = sample[len(sample) // 2]
        below = [key for key in chunk if key < middle]
        above = [key for key in chunk if key >= middle]
        settled_below = sum([key < middle for key in chunk[:settled]])
        self._chunks[index : index + 1] = [below, above]
        self._settled[index : index + 1] = [settled_below, settled - settled_below]
        self._lows.insert(index + 1, middle)
