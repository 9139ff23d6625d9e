"""Who holds what until its transaction is decided, and who waits for whom.

|              | look-up  | write    | contribution |
|--------------|----------|----------|--------------|
| look-up      | together | conflict | conflict     |
| write        | conflict | conflict | conflict     |
| contribution | conflict | conflict | together     |

The younger waits for the older; an older one that meets a younger waits if that one has voted (it waits for nobody any
more), else the younger is refused. So whoever waits, waits for an older one or for one that waits for nobody: there is
no cycle, and the oldest is never refused. A younger one does not pass an older one that waits, even where it could be
served at once: nobody starves.

Keys are whole; ranges (index prefixes, scans) are only ever looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TypeAlias

from ...changetables.keys import TABLE_PREFIX_BYTES
from .messages import Attempt

LOOK_UP, WRITE, CONTRIBUTION = 0, 1, 2
#: (start, stop)
Bounds: TypeAlias = tuple[bytes, bytes]
Resource: TypeAlias = bytes | Bounds
#: A range is compared with the keys of its own table only, whose ids are the first bytes of a key.
PREFIX_BYTES = TABLE_PREFIX_BYTES
PREFIX_OF: Callable[[bytes], bytes] = itemgetter(slice(0, PREFIX_BYTES))


class Claim:
    """What one attempt wants and has. `age` begins with the first start of its tx_id: the lower, the older."""

    __slots__ = ("age", "attempt", "had", "has_ranges", "tables", "voted", "waiting", "wanted")

    def __init__(self, attempt: Attempt, priority: int) -> None:
        self.attempt = attempt
        self.age = (priority, attempt)
        self.voted = False
        self.wanted: dict[Resource, int] = {}
        self.has_ranges = False
        #: The tables of its keys, by their first bytes.
        self.tables: set[bytes] = set()
        self.waiting: set[Resource] = set()
        #: Keys that it waits for and has already in a weaker mode: it keeps that meanwhile.
        self.had: dict[bytes, int] = {}

    def touches(self, start: bytes, stop: bytes | None) -> bool:
        """Whether it wants something in start <= key < stop; None: no end."""
        for resource in self.wanted:
            low, high = (resource, resource + b"\0") if isinstance(resource, bytes) else resource
            if (stop is None or low < stop) and start < high:
                return True
        return False


class Holds:
    """All holds of one participant. Nothing is kept that nobody holds or waits for."""

    def __init__(self) -> None:
        self._claims: dict[Attempt, Claim] = {}
        #: In the order of arrival; those who have it and those who wait for it.
        self._by_key: dict[bytes, tuple[Claim, ...]] = {}
        #: How many claims there are for keys of each table: a range of another one need not look at them.
        self._counts: Counter[bytes] = Counter()
        #: Ranges by table, each with one claim.
        self._ranges: dict[bytes, list[tuple[Bounds, Claim]]] = {}
        #: How many of the claims wait.
        self._waiting = 0

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt in self._claims

    def __len__(self) -> int:
        return len(self._claims)

    def claims(self) -> Iterable[Claim]:
        return self._claims.values()

    def claim(self, attempt: Attempt, priority: int) -> Claim:
        claim = self._claims.get(attempt)
        if claim is None:
            claim = self._claims[attempt] = Claim(attempt, priority)
        return claim

    def mode(self, attempt: Attempt, resource: Resource) -> int | None:
        claim = self._claims.get(attempt)
        return None if claim is None else claim.wanted.get(resource)

    def take(self, claim: Claim, keys: Sequence[bytes], mode: int) -> list[Attempt]:
        """Ask for keys. Returns the younger attempts that are in the way and have to be refused: the caller releases
        them. `claim.waiting` says what is still missing then."""
        wanted, by_key, ranges = claim.wanted, self._by_key, self._ranges
        alone = (claim,)
        if (not ranges or mode == LOOK_UP) and by_key.keys().isdisjoint(keys):
            # The common case: nobody has any of them.
            taken = dict.fromkeys(keys, alone)
            by_key.update(taken)
            wanted.update(zip(taken, repeat(mode), strict=False))
            self._count(claim, keys)
            return []
        refused: list[Attempt] = []
        self._count(claim, keys)
        for key in keys:
            known = wanted.get(key)
            if known is None:
                line = by_key.get(key)
                wanted[key] = mode
                if line is None:
                    by_key[key] = alone
                    if not ranges or mode == LOOK_UP or key[:PREFIX_BYTES] not in ranges:
                        continue
                else:
                    by_key[key] = (*line, claim)
            elif known in (mode, WRITE):
                continue
            else:
                if key not in claim.waiting:
                    claim.had[key] = known
                wanted[key] = WRITE
            refused += self._wait(claim, key)
        return refused

    def _count(self, claim: Claim, keys: Iterable[bytes]) -> None:
        tables = set(map(PREFIX_OF, keys)) - claim.tables
        claim.tables |= tables
        for prefix in tables:
            self._counts[prefix] += 1

    def take_ranges(self, claim: Claim, ranges: Iterable[Bounds]) -> list[Attempt]:
        refused: list[Attempt] = []
        for bounds in ranges:
            if bounds in claim.wanted:
                continue
            claim.wanted[bounds] = LOOK_UP
            claim.has_ranges = True
            self._ranges.setdefault(bounds[0][:PREFIX_BYTES], []).append((bounds, claim))
            refused += self._wait(claim, bounds)
        return refused

    def _wait(self, claim: Claim, resource: Resource) -> list[Attempt]:
        """Wait for those who are in the way of something wanted, if there are any; those to be refused instead."""
        refused = []
        waits = False
        for other, has_it in self._conflicting(claim, resource):
            if has_it:
                waits = True
                if not other.voted and other.age > claim.age:
                    refused.append(other.attempt)
            elif other.age < claim.age:
                waits = True
        if waits:
            if not claim.waiting:
                self._waiting += 1
            claim.waiting.add(resource)
        return refused

    def _conflicting(self, claim: Claim, resource: Resource) -> Iterator[tuple[Claim, bool]]:
        """The other claims that conflict with one, and whether they have what they conflict in."""
        mode = claim.wanted[resource]
        if isinstance(resource, bytes):
            for other in self._by_key.get(resource, ()):
                if other is claim:
                    continue
                if resource not in other.waiting:
                    if _conflict(other.wanted[resource], mode):
                        yield other, True
                elif resource in other.had and _conflict(other.had[resource], mode):
                    yield other, True
                elif _conflict(other.wanted[resource], mode):
                    yield other, False
            if mode != LOOK_UP:
                for bounds, other in self._ranges.get(resource[:PREFIX_BYTES], ()):
                    if other is not claim and bounds[0] <= resource < bounds[1]:
                        yield other, bounds not in other.waiting
            return
        start, stop = resource
        if not self._counts[start[:PREFIX_BYTES]]:
            return
        # A writer or two per transaction in flight: few, compared with what a range look-up costs anyway.
        for key, line in self._by_key.items():
            if start <= key < stop:
                for other in line:
                    if other is not claim and other.wanted[key] != LOOK_UP:
                        yield other, key not in other.waiting or other.had.get(key, LOOK_UP) != LOOK_UP

    def has_all(self, attempt: Attempt) -> bool:
        claim = self._claims.get(attempt)
        return claim is not None and not claim.waiting

    def release(self, attempt: Attempt) -> list[Attempt]:
        """It is decided, or refused. Returns those that have all that they want now, oldest first."""
        claim = self._claims.pop(attempt, None)
        if claim is None:
            return []
        if claim.waiting:
            self._waiting -= 1
        by_key, wanted = self._by_key, claim.wanted
        keys: Iterable[bytes] = wanted  # type: ignore[assignment]  # if there are no ranges among them
        tables: dict[bytes, None] = {}
        if claim.has_ranges:
            keys = [resource for resource in wanted if resource.__class__ is bytes]
            tables = {resource[0][:PREFIX_BYTES]: None for resource in wanted if resource.__class__ is tuple}
        lines = list(map(by_key.pop, keys))
        if lines.count((claim,)) != len(lines):
            shared = {key: line for key, line in zip(keys, lines, strict=True) if len(line) > 1}
            for key, line in shared.items():
                by_key[key] = tuple([each for each in line if each is not claim])
        for prefix in claim.tables:
            self._counts[prefix] -= 1
        for prefix in tables:
            left = [item for item in self._ranges[prefix] if item[1] is not claim]
            if left:
                self._ranges[prefix] = left
            else:
                del self._ranges[prefix]
        return self._serve() if self._waiting else []

    def _serve(self) -> list[Attempt]:
        served: list[Attempt] = []
        for claim in sorted((each for each in self._claims.values() if each.waiting), key=_age):
            for resource in list(claim.waiting):
                if not any(has or other.age < claim.age for other, has in self._conflicting(claim, resource)):
                    claim.waiting.discard(resource)
            if not claim.waiting:
                self._waiting -= 1
                served.append(claim.attempt)
        return served

    def writers(self, key: bytes) -> Iterator[Claim]:
        """Those who have a key to write or to contribute to it."""
        for claim in self._by_key.get(key, ()):
            if claim.wanted[key] != LOOK_UP and key not in claim.waiting:
                yield claim

    def writers_between(self, start: bytes, stop: bytes) -> Iterator[Claim]:
        if stop[:PREFIX_BYTES] == start[:PREFIX_BYTES] and not self._counts[start[:PREFIX_BYTES]]:
            return
        for key, line in self._by_key.items():
            if start <= key < stop:
                for claim in line:
                    if claim.wanted[key] != LOOK_UP and key not in claim.waiting:
                        yield claim


def _conflict(one: int, other: int) -> bool:
    return one != other or one == WRITE


def _age(claim: Claim) -> tuple[int, Attempt]:
    return claim.age
