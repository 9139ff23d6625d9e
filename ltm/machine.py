"""What every machine of the distributed protocol is: calls in, one value out. No I/O, no clock, no thread.

A driver (a process in a cluster, several LTMs in one process, or the simulator) calls `start` once, then `receive`,
`persisted` and `timer`, each with the time of its own clock, and carries out the `Outputs` that come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class WhenDurable(NamedTuple):
    """A message that leaves as soon as every record up to `lsn` is durable, or at once if it is already."""

    lsn: int
    destination: str
    message: object


class Outputs(NamedTuple):
    """In this order: `persist` goes to the log's buffer, then `timers` are set, then `send` leaves.

    `persist` are records; their lsns count on from 1, over all restarts. `send` are (destination, message), which leave
    at once, or `WhenDurable`. With `after`, every plain one of them waits until that lsn is durable. `timers` are
    (at_ms by the process's own clock, token). Records below the lsn `trim` are not needed any more.
    """

    persist: tuple[object, ...] = ()
    send: tuple[tuple[str, object] | WhenDurable, ...] = ()
    timers: tuple[tuple[int, object], ...] = ()
    after: int = 0
    trim: int = 0


NOTHING = Outputs()


class Machine(Protocol):
    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        """Called once, before anything else; `disk` are the durable records of its log, oldest first."""

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs: ...

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        """Every record up to `lsn` is durable."""

    def timer(self, token: object, now_ms: int) -> Outputs:
        """The clock has reached the timer's time: now_ms >= at_ms. Timers die with the process."""


class Host(Protocol):
    """What a machine is given when it is built."""

    @property
    def name(self) -> str: ...

    def probe(self, name: str) -> None:
        """The machine has come to a named point: a simulator may end it there."""

    def note(self, what: str, *detail: object) -> None:
        """Something that whoever checks the machine wants to know."""


class PlainHost:
    """For drivers that need neither."""

    def __init__(self, name: str) -> None:
        self.name = name

    def probe(self, name: str) -> None: ...

    def note(self, what: str, *detail: object) -> None: ...
