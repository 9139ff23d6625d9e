"""One participant in a process that answers for several: its records are in the process's log, among others."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..machine import Outputs, WhenDurable
from ..two_phase.participant import Participant


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
        self.found: dict[str, tuple[object, ...]] = {}
        #: Whether its floor is known.
        self.open = False
        #: It counts its own records; those that are not durable yet, with their places in the process's log.
        self._last = 0
        self._durable = 0
        self._places: deque[tuple[int, int]] = deque()

    def begin(self, machine: Participant, replayed: int) -> None:
        self.machine = machine
        self._last = self._durable = replayed

    def add_record(self, lsn: int) -> None:
        """Its next record is at `lsn` of the process's log."""
        self._last += 1
        self._places.append((self._last, lsn))

    def place(self, own_lsn: int) -> int:
        """The lsn in the process's log that makes its record durable, 0 if it is."""
        if own_lsn <= self._durable:
            return 0
        return self._places[own_lsn - self._durable - 1][1]

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
