"""What the simulator runs: anything with this interface. Nothing in it may look at a clock, a file or a socket.

A process gets messages, timers and "durable up to here" as calls with the time of its own clock, and gives back one
`Outputs`. It is built by a factory that the world calls again at every restart, with a `Host`: its name, its own
stream of random numbers, and the probes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol, runtime_checkable

from viewtide.ltm.machine import NOTHING, Outputs, WhenDurable

__all__ = ["NOTHING", "Crash", "HearsOfDisk", "Host", "Outputs", "Process", "Recovered", "Stop", "WhenDurable"]


class Recovered(tuple[object, ...]):
    """The durable records of a disk at boot. The first one has the lsn `first_lsn`; `cut` says that the last write
    was torn: it was found and cut off, and is not among them. `log` is the name that others know it by: a process whose
    log was sealed begins another one."""

    first_lsn: int
    cut: bool
    log: str

    def __new__(cls, records: Iterable[object], first_lsn: int = 1, cut: bool = False, log: str = "") -> Recovered:
        made = super().__new__(cls, records)
        made.first_lsn = first_lsn
        made.cut = cut
        made.log = log
        return made

    @property
    def last_lsn(self) -> int:
        return self.first_lsn + len(self) - 1


class Process(Protocol):
    """Everything that is raised is a violation, except `Stop` and what the world was told to take for one."""

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        """Called once, after boot, before anything else. `disk` is a `Recovered`."""

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        """The message is this process's own copy."""

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        """Every record up to `lsn` is durable."""

    def timer(self, token: object, now_ms: int) -> Outputs:
        """The clock has reached the timer's time: now_ms >= at_ms. Timers die with the process."""


@runtime_checkable
class HearsOfDisk(Protocol):
    """A process may have this too. One that has not is stopped when its disk fails."""

    def disk_failed(self, now_ms: int) -> Outputs:
        """The fate of everything that is not durable yet is unknown, and nothing more is written until a restart."""


class Host(Protocol):
    """What a process is given when it is built."""

    @property
    def name(self) -> str: ...
    @property
    def random(self) -> Random:
        """Its own stream; it goes on over restarts."""

    def probe(self, name: str) -> None:
        """Say that the machine has come to a named point. The world may let the process crash there."""

    def note(self, what: str, *detail: object) -> None:
        """An event for the checkers and the story: plain values, which nobody changes afterwards."""

    def spend(self, duration_us: int) -> None:
        """The call that is being handled takes this long: its outputs leave afterwards, and what comes next waits."""


class Stop(Exception):
    """A process ends itself, because of its surroundings and not of a fault of its own: a crash that it chose."""


class Crash(BaseException):
    """Raised by a probe: the process is gone. Not an Exception, so that no machine can catch it by mistake."""
