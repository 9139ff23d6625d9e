"""The world's side of one process: its state, disk and clock, and what it was given as its host."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import TypeAlias

from .clock import Clock
from .disk import Disk
from .process import Host, Process

Factory: TypeAlias = Callable[[Host], Process]


class State(Enum):
    DOWN = "down"
    UP = "up"
    PAUSED = "paused"


class Node:
    """Implements `Host`; the world gives it what `probe` and `note` do."""

    def __init__(
        self,
        name: str,
        factory: Factory,
        disk_random: Random | None,
        random: Random,
        on_probe: Callable[[Node, str], None],
        on_note: Callable[[Node, str, tuple[object, ...]], None],
        log_per_life: bool = False,
    ) -> None:
        self.name = name
        self.factory = factory
        self.random = random
        #: All its logs, the last one is in use: all others are sealed, or will be.
        self.disks: list[Disk] = []
        self._disk_random = disk_random
        self._log_per_life = log_per_life
        self.clock = Clock()
        self.state = State.DOWN
        self.incarnation = 0
        self.process: Process | None = None
        #: How far the process knows its records to be durable; what waits for more is in `waiting`.
        self.told_lsn = 0
        self.waiting: list[tuple[int, str, object, bytes]] = []
        #: Events that came while it was paused, in their order.
        self.held: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.busy_until_us = 0
        self.spent_us = 0
        self._on_probe = on_probe
        self._on_note = on_note
        self.disk = self._new_disk()

    def _new_disk(self) -> Disk | None:
        if self._disk_random is None:
            return None
        self.disks.append(Disk(f"{self.name}/{len(self.disks) + 1}", self._disk_random))
        return self.disks[-1]

    def open_disk(self) -> Disk | None:
        """At boot: the log as it is, or a new one if it was sealed or every life has its own."""
        if self.disk is not None and (self.disk.sealed or (self._log_per_life and self.incarnation > 1)):
            before, self.disk = self.disk, self._new_disk()
            assert self.disk is not None
            self.disk.slow, self.disk.failing = before.slow, before.failing
        elif self.disk is not None:
            self.disk.boot()
        return self.disk

    def probe(self, name: str) -> None:
        self._on_probe(self, name)

    def note(self, what: str, *detail: object) -> None:
        self._on_note(self, what, detail)

    def spend(self, duration_us: int) -> None:
        self.spent_us += duration_us

    def forget(self) -> None:
        """The process is gone, and all that was in memory with it."""
        self.process = None
        self.waiting.clear()
        self.held.clear()
        self.busy_until_us = self.spent_us = 0
