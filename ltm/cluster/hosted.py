"""One participant in a process that answers for several: its records are in the process's log, among others."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..machine import Outputs, WhenDurable
from ..two_phase.participant import Participant
from .loading import Loader
from .saving import Saver
from .taking_over import Found


class Logged(NamedTuple):
    """A record of a participant in the log of the process that answers for it."""

    log: str
    record: object


class Hosted:
    """`machine` is None until the logs of those who answered for it before are sealed and read."""

    def __init__(self, log: str, incarnation: int, since_epoch: int, segments: tuple[str, ...]) -> None:
        self.log = log
        self.incarnation = incarnation
        #: The map with which this process began to answer for it.
        self.since_epoch = since_epoch
        self.machine: Participant | None = None
        #: Logs to be read, in order, and what they hold of this participant.
        self.segments = segments
        self.found: dict[str, Found] = {}
        #: Whether all of them are read, and what the store has of it is being asked for.
        self.is_read = False
        #: Whether its floor is known.
        self.open = False
        #: It counts its own records; those that are not durable yet, with their places in the process's log.
        self._last = 0
        self._durable = 0
        self._places: deque[tuple[int, int]] = deque()
        #: With a store: what goes there and comes from there.
        self.saver: Saver | None = None
        self.loader: Loader | None = None
        self.next_save_ms = self.next_evict_ms = 0
        #: Where replay would begin: in which log, and after which record. And where those records are that are not
        #: covered: of earlier lives, and, with their own numbers, of this one.
        self.replay_from = ("", 0)
        self._kept = 0
        self._origins: tuple[tuple[str, int], ...] = ()
        self._needed: deque[tuple[int, int]] = deque()

    def begin(self, machine: Participant, replayed: int) -> None:
        self.machine = machine
        self._last = self._durable = replayed

    def begin_saving(
        self,
        saver: Saver,
        loader: Loader,
        replay_from: tuple[str, int],
        kept: int,
        origins: tuple[tuple[str, int], ...],
    ) -> None:
        self.saver, self.loader = saver, loader
        self.replay_from, self._kept, self._origins = replay_from, kept, origins

    def add_record(self, lsn: int) -> None:
        """Its next record is at `lsn` of the process's log."""
        self._last += 1
        self._places.append((self._last, lsn))
        if self.saver is not None:
            self._needed.append((self._last, lsn))

    def place(self, own_lsn: int) -> int:
        """The lsn in the process's log that makes its record durable, 0 if it is."""
        if own_lsn <= self._durable:
            return 0
        return self._places[own_lsn - self._durable - 1][1]

    def replay_after(self, own_lsn: int, life: str, last_lsn: int) -> tuple[str, int]:
        """Where replay begins if this record and those before it are not needed: the log, and the lsn there.
        `last_lsn` is that of the process's log."""
        if own_lsn == self._last:
            return life, last_lsn
        if own_lsn >= self._kept + len(self._origins):
            return life, next(lsn for own, lsn in self._needed if own > own_lsn) - 1
        return self.replay_from if own_lsn <= self._kept else self._origins[own_lsn - self._kept - 1]

    def saved(self, own_lsn: int, replay_from: tuple[str, int]) -> None:
        """A checkpoint is durable that covers its records up to this one."""
        self.replay_from = replay_from
        while self._needed and self._needed[0][0] <= own_lsn:
            self._needed.popleft()

    def needed_lsn(self, life: str) -> int:
        """The lowest lsn in the process's log that replay may need; 0: there is none."""
        if self.saver is not None and self.replay_from[0] == life:
            return self.replay_from[1] + 1
        if self.saver is not None:
            return self._needed[0][1] if self._needed else 0
        return 1 if self.machine is not None else 0

    def persisted(self, lsn: int) -> int:
        """The process's log is durable up to `lsn`: up to where its own records are, 0 if nothing has changed."""
        before = self._durable
        while self._places and self._places[0][1] <= lsn:
            self._durable = self._places.popleft()[0]
        return self._durable if self._durable > before else 0

    def is_durable(self, own_lsn: int) -> bool:
        return own_lsn <= self._durable

    def sent(self, out: Outputs) -> list[tuple[int, str, object]]:
        """(lsn in the process's log or 0, destination, message)."""
        return [
            (self.place(item.lsn), item.destination, item.message) if isinstance(item, WhenDurable) else (0, *item)
            for item in out.send
        ]
