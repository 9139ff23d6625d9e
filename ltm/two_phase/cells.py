"""The versions of one LTM's cells (rows, index entries, view rows), in memory and in key order.

Each chain is made of immutable tuples (commit_ts, row, older), newest first; row is None where there is none. Versions
of base rows come in the order of their timestamps, because their writers hold them. Contributions to view rows do not:
one that comes late is added to every version above it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from ...changetables.types import Row
from ..ordered_keys import OrderedKeys
from .holds import PREFIX_BYTES, PREFIX_OF
from .messages import FoundRows, KeyRange
from .records import LoggedWrite

Version: TypeAlias = tuple[int, Row | None, tuple | None]  # type: ignore[type-arg]  # a recursive tuple

ABSENT: Version = (0, None, None)


class Cells:
    def __init__(self) -> None:
        self.chains: dict[bytes, Version] = {}
        #: Every key whose newest version is no row, and some that have one again: what `prune` looks at. It comes again
        #: and again, and must not take longer the more rows there are.
        self._gone: dict[bytes, None] = {}
        #: The keys of each table, in order.
        self._order: dict[bytes, OrderedKeys] = {}
        #: Versions that nobody above it can see are forgotten; readers below it are refused.
        self.horizon = 0

    def put(self, key: bytes, ts: int, row: Row | None) -> None:
        """A version above all that there are."""
        self.put_all(((key, None, row),), ts)

    def put_all(self, writes: Iterable[LoggedWrite], ts: int) -> None:
        """The same for all rows that a transaction writes."""
        chains = self.chains
        added: list[bytes] = []
        for key, _, row in writes:
            head = chains.get(key)
            if head is not None:
                chains[key] = (ts, row, self._kept(head))
                if row is None:
                    self._gone[key] = None
            elif row is not None:
                chains[key] = (ts, row, None)
                added.append(key)
        self._insert_keys(added)

    def add(self, key: bytes, ts: int, change: Callable[[Row | None], Row | None]) -> None:
        """A contribution at `ts`: every version from there on has it."""
        head = self.chains.get(key)
        if head is None:
            self._insert_key(key)
            self.chains[key] = (ts, change(None), None)
        elif head[0] <= ts:
            older = head[2] if head[0] == ts else self._kept(head)
            self.chains[key] = (ts, change(head[1]), older)
        else:
            self.chains[key] = _added(head, ts, change)
        if self.chains[key][1] is None:
            self._gone[key] = None

    def place(self, key: bytes, chain: Version) -> None:
        """The whole chain of a key that is not here."""
        self._insert_key(key)
        self.chains[key] = chain
        if chain[1] is None:
            self._gone[key] = None

    def drop(self, start: bytes, stop: bytes | None) -> None:
        """Forget keys: they are somebody else's."""
        for key in self.all_keys(start, stop):
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        del self.chains[key]
        self._gone.pop(key, None)
        prefix = key[:PREFIX_BYTES]
        ordered = self._order[prefix]
        ordered.remove(key)
        if not ordered:
            del self._order[prefix]

    def all_keys(self, start: bytes, stop: bytes | None) -> list[bytes]:
        """In order, deleted ones included; `stop` None: no end."""
        return sorted(key for key in self.chains if start <= key and (stop is None or key < stop))

    def _insert_key(self, key: bytes) -> None:
        self._insert_keys([key])

    def _insert_keys(self, keys: list[bytes]) -> None:
        """Mostly of one table after the other."""
        for prefix, some in groupby(keys, PREFIX_OF):
            ordered = self._order.get(prefix)
            if ordered is None:
                ordered = self._order[prefix] = OrderedKeys()
            ordered.add_all(list(some))

    def _kept(self, head: Version) -> Version:
        """What stays of a chain below a new version: what is above the horizon, and what is seen at it."""
        if head[0] <= self.horizon:
            return head if head[2] is None else (head[0], head[1], None)
        older = head[2]
        if older is None or older[0] > self.horizon or older[2] is None:
            return head
        return (head[0], head[1], (older[0], older[1], None))

    def newest(self, key: bytes) -> Version:
        return self.chains.get(key, ABSENT)

    def at(self, key: bytes, ts: int) -> Version:
        version: Version | None = self.chains.get(key)
        while version is not None and version[0] > ts:
            version = version[2]
        return ABSENT if version is None else version

    def keys(self, start: bytes, stop: bytes, last: bool) -> Iterator[bytes]:
        """In order, or from the last one back. Nothing may be put meanwhile."""
        if start[:PREFIX_BYTES] != stop[:PREFIX_BYTES] and stop[PREFIX_BYTES:]:
            found = (key for keys in self._order.values() for key in keys if start <= key < stop)
            return iter(sorted(found, reverse=last))
        ordered = self._order.get(start[:PREFIX_BYTES])
        if ordered is None:
            return iter(())
        return ordered.back_between(start, stop) if last else ordered.between(start, stop)

    def newest_between(self, wanted: KeyRange) -> FoundRows:
        start, stop, limit, last = wanted
        found: list[tuple[bytes, Row]] = []
        for key in self.keys(start, stop, last):
            row = self.chains[key][1]
            if row is not None:
                found.append((key, row))
                if len(found) == limit:
                    break
        return tuple(found)

    def newest_ts(self, start: bytes, stop: bytes) -> int:
        """The highest version of the range, deleted rows included."""
        return max((self.chains[key][0] for key in self.keys(start, stop, False)), default=0)

    def changed_since(self, start: bytes, stop: bytes, snapshot: int) -> bool:
        return self.newest_ts(start, stop) > snapshot

    def load(self, *keys: Sequence[bytes]) -> None:
        """These are needed next. All is in memory here; where it is not, they are fetched at once."""

    def prune(self) -> None:
        """Forget what nobody sees at the horizon or above it, also rows that are gone for good (rule H7: only below
        the horizon)."""
        for key in self._gone_below(self.horizon):
            self._remove(key)

    def _gone_below(self, horizon: int) -> list[bytes]:
        """Keys that have had no row since then, at the latest."""
        chains = self.chains
        self._gone = {key: None for key in self._gone if chains[key][1] is None}
        return [key for key in self._gone if chains[key][0] <= horizon]


def _added(version: Version, ts: int, change: Callable[[Row | None], Row | None]) -> Version:
    """The chain with a contribution at `ts`, which is below its head."""
    above: list[Version] = []
    below: Version | None = version
    while below is not None and below[0] > ts:
        above.append(below)
        below = below[2]
    if below is not None and below[0] == ts:
        made: Version = (ts, change(below[1]), below[2])
    else:
        made = (ts, change(None if below is None else below[1]), below)
    for each in reversed(above):
        made = (each[0], change(each[1]), made)
    return made
