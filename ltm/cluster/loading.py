"""Requests that need rows which are not in memory wait here, before they change anything, until the store has told.

What comes later for the same attempt waits behind. A request that waited is handled as if it came now: its keys may
have another owner meanwhile. One that waits too long is forgotten: whoever asked asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...changetables.keys import table_range
from ..machine import Host
from ..two_phase.cells import ABSENT, Version
from ..two_phase.holds import PREFIX_BYTES, Bounds
from ..two_phase.messages import FOREVER, Ask, Attempt, Decide, KeyRange, Prepare, Read
from ..two_phase.participant import Participant
from ..two_phase.stored_cells import StoredCells
from .settings import StoreSettings
from .store_messages import NEWEST, LoadCells, LoadedCells, StoredRow

#: Requests that wait; more are refused. And how long they do at most.
WAITING_MAX = 10_000
WAITING_MS_MAX = 3_000

_OF_ATTEMPTS = (Ask, Prepare, Decide)

#: Where a machine may end (names for a simulator).
LOADING = "loading: a request waits for rows"
LOADED = "loading: rows are there"
EVICTED = "loading: keys forgotten"
PROBES = (LOADING, LOADED, EVICTED)


class Needs(NamedTuple):
    """What must be known before a request is handled."""

    keys: tuple[bytes, ...]
    ranges: tuple[KeyRange, ...]
    at: int
    #: Of each range no more than that.
    bytes_max: int = FOREVER


def needs_of(message: object) -> Needs | None:
    match message:
        case Ask():
            keys = (*message.writes, *message.keys, *message.seen, *(key for key, _ in message.holds))
            return Needs(keys, (*message.ranges, *message.seen_ranges), NEWEST)
        case Prepare():
            keys = (
                *(key for key, _ in message.writes),
                *(key for key, _ in message.relied),
                *(refresh[1] for refresh in message.refreshes),
            )
            return Needs(keys, (), NEWEST)
        case Read(stored=False):
            return Needs(message.keys, message.ranges, message.at, message.bytes_max)
    return None


class _Waiting(NamedTuple):
    since_ms: int
    sender: str
    message: object
    needs: Needs


class Load(NamedTuple):
    """What is asked of the store for one request: what is newest, or what is seen of some keys at a timestamp."""

    at: int
    keys: tuple[bytes, ...]
    ranges: tuple[Bounds, ...]
    tables: tuple[Bounds, ...]
    #: If it has changed when the answer comes, that may be too old.
    forgettings: int

    def request(self, number: int, limit: int) -> LoadCells:
        return LoadCells(number, self.at, self.keys, self.ranges, limit if self.ranges else 0, self.tables)


class Loader:
    """For one participant. `ask` sends a request to the store and calls back with the answer."""

    def __init__(
        self,
        host: Host,
        machine: Participant,
        settings: StoreSettings,
        ask: Callable[[Load, Callable[[LoadedCells], None]], None],
        again: Callable[[str, object], None],
    ) -> None:
        assert isinstance(machine.cells, StoredCells)
        self.host = host
        self._machine = machine
        self._cells = machine.cells
        self._settings = settings
        self._ask = ask
        self._again = again
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0
        #: What came for an attempt whose request waits.
        self._behind: dict[Attempt, deque[tuple[str, object]]] = {}
        #: Tables whose highest key in the store was asked for.
        self._tables: set[bytes] = set()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    def may_pass(self, sender: str, message: object, now_ms: int) -> bool:
        """Whether it can be handled now; if not, it waits here."""
        attempt = message.attempt if isinstance(message, _OF_ATTEMPTS) else None
        if attempt is not None and attempt in self._behind:
            if len(self._behind[attempt]) < WAITING_MAX:
                self._behind[attempt].append((sender, message))
            return False
        needs = needs_of(message)
        if needs is None:
            return True
        load = self._missing(needs)
        if load is None:
            return True
        self._number += 1
        number = self._number
        self._waiting[number] = _Waiting(now_ms, sender, message, needs)
        if attempt is not None:
            self._behind[attempt] = deque()
        self.host.probe(LOADING)
        self._ask(load, lambda answer: self._loaded(number, load, answer))
        return False

    def _missing(self, needs: Needs) -> Load | None:
        cells = self._cells
        keys = dict.fromkeys(key for key in needs.keys if not cells.is_known(key))
        unseen: dict[bytes, None] = {}
        ranges: dict[Bounds, None] = {}
        for key in needs.keys:
            if key not in keys and not cells.sees(key, needs.at):
                unseen[key] = None
        for wanted in needs.ranges:
            gap, missing = cells.unknown_between(wanted, needs.at, needs.bytes_max)
            unseen.update(dict.fromkeys(missing))
            if gap is not None:
                ranges[gap] = None
        if keys or ranges:
            # Of a table that nothing is known of, first the highest key in the store: what is above it is absent, and
            # of an empty table no range has to be looked for.
            new = {each[:PREFIX_BYTES] for each in (*keys, *(start for start, _ in ranges))} - self._tables
            self._tables |= new
            tables = tuple(table_range(int.from_bytes(prefix, "big")) for prefix in sorted(new))
            wanted_ranges = tuple(bounds for bounds in ranges if bounds[0][:PREFIX_BYTES] not in new)
            return Load(NEWEST, tuple(keys), wanted_ranges, tables, cells.forgettings)
        if unseen:
            return Load(needs.at, tuple(unseen), (), (), cells.forgettings)
        return None

    def _loaded(self, number: int, load: Load, answer: LoadedCells) -> None:
        if load.forgettings == self._cells.forgettings:
            self._learn(load, answer)
            self.host.probe(LOADED)
        else:
            self._tables.difference_update(start[:PREFIX_BYTES] for start, _ in load.tables)
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self._handle_again(waiting)

    def _handle_again(self, waiting: _Waiting) -> None:
        message = waiting.message
        attempt = message.attempt if isinstance(message, _OF_ATTEMPTS) else None
        behind = () if attempt is None else self._behind.pop(attempt, ())
        self._again(waiting.sender, message)
        for sender, each in behind:
            self._again(sender, each)

    def _learn(self, load: Load, answer: LoadedCells) -> None:
        cells = self._cells
        if load.at != NEWEST:
            for key, stored in zip(load.keys, answer.rows, strict=True):
                cells.past[key, load.at] = version_of(stored)
            return
        for key, stored in zip(load.keys, answer.rows, strict=True):
            cells.learn(key, version_of(stored))
        for (start, _), (found, complete) in zip(load.ranges, answer.ranges, strict=True):
            cells.learn_range(start, complete, found)
        for (start, stop), last_key in zip(load.tables, answer.last_keys, strict=True):
            cells.learn_range(start if last_key is None else last_key + b"\0", stop, ())

    # -- house-keeping

    def forget_old(self, now_ms: int) -> None:
        for number, waiting in list(self._waiting.items()):
            if now_ms - waiting.since_ms > WAITING_MS_MAX:
                del self._waiting[number]
                message = waiting.message
                if isinstance(message, Ask | Prepare):
                    self._behind.pop(message.attempt, None)

    def evict(self) -> None:
        """Forget keys that are not in use, if there are too many."""
        cells = self._cells
        if not self._waiting and not self._machine.has_readers:
            cells.forget_past()
        if len(cells.chains) <= self._settings.keys_max:
            return
        used_keys, used_ranges = self._in_use()
        if cells.evict(
            self._settings.keys_max,
            lambda key: key in used_keys or any(start <= key < stop for start, stop in used_ranges),
        ):
            self.host.probe(EVICTED)

    def _in_use(self) -> tuple[set[bytes], list[Bounds]]:
        keys: set[bytes] = set()
        ranges: list[Bounds] = []
        for claim in self._machine.holds.claims():
            for resource in claim.wanted:
                if isinstance(resource, bytes):
                    keys.add(resource)
                else:
                    ranges.append(resource)
        for needs in self._needed():
            keys.update(needs.keys)
            ranges += [(start, stop) for start, stop, _, _ in needs.ranges]
        return keys, ranges

    def _needed(self) -> Iterable[Needs]:
        yield from (waiting.needs for waiting in self._waiting.values())
        for read in self._machine.reads():
            yield Needs(read.keys, read.ranges, read.at)


def version_of(stored: StoredRow | None) -> Version:
    return ABSENT if stored is None else (*stored, None)
