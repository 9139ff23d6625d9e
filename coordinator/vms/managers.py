"""The view managers of one process, and the operations on them (Adler, alg. 1 and 2; "system operations").

A command takes effect at the next marker: the step that is open keeps its slots. Only one runs at a time, a second one
is refused meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...changetables.errors import OperationalError, ProgrammingError
from .view_manager import ViewManager

#: Changed rows that a view manager propagates before writers go on, at first; it is measured afterwards.
PIECE_ROWS = 500
VIEW_MANAGERS_MAX = 256


@dataclass(frozen=True, slots=True)
class ViewManagerStatus:
    """`load`: the share of the last step's time in which it worked. `rows` and `slots`: what it did so far."""

    id: int
    ltm: str | None
    load: float
    rows: int
    slots: int
    busy_ms: float


def _no_step() -> None:
    """Without a refresher there is no step to wait for."""


class ViewManagers:
    """The pool. Its own lock guards it: commands come from any thread, work from the refresher's."""

    def __init__(self, count: int, ltm: str, *others: str) -> None:
        """`ltm` and `others` are the LTMs of this process."""
        self._ltm = ltm
        self._ltms = (ltm, *others)
        self._lock = threading.Lock()
        self._commanding = threading.Lock()
        self._numbers = itertools.count(1)
        self._members: dict[int, ViewManager] = {}
        #: Waits until the step that is open, if any, has passed its last marker.
        self.await_marker: Callable[[], None] = _no_step
        for _ in range(count):
            self._add(ltm)

    def _add(self, ltm: str | None) -> ViewManager:
        manager = ViewManager(next(self._numbers), ltm, PIECE_ROWS)
        with self._lock:
            self._members[manager.id] = manager
        return manager

    # -- for the driver

    def ring(self) -> tuple[int, ...]:
        """The members that a new step is divided between. There is always one: the work of the last one that died goes
        to a new one."""
        with self._lock:
            assigned = tuple(sorted(manager.id for manager in self._members.values() if manager.ltm is not None))
        return assigned or (self._add(self._ltm).id,)

    def worker(self, slot: int) -> ViewManager:
        """Who works on a slot: its own view manager, or the least busy one if that is gone."""
        with self._lock:
            manager = self._members.get(slot)
            if manager is not None and manager.ltm is not None:
                return manager
            others = [each for each in self._members.values() if each.ltm is not None]
        return min(others, key=lambda each: each.load) if others else self._add(self._ltm)

    def members(self) -> list[ViewManager]:
        with self._lock:
            return list(self._members.values())

    def alive(self, manager: ViewManager) -> bool:
        return self._members.get(manager.id) is manager

    # -- commands

    def add(self) -> int:
        """A new view manager, assigned to the LTM of this process; its id."""
        with self._command():
            if len(self._members) >= VIEW_MANAGERS_MAX:
                raise OperationalError(f"there are {VIEW_MANAGERS_MAX} view managers already", hint="remove some")
            return self._add(self._ltm).id

    def remove(self, id: int) -> None:
        """Withdraw a view manager and end it; the last one stays."""
        with self._command():
            manager = self._member(id)
            self._check_not_last(manager, "remove")
            manager.ltm = None
            self.await_marker()
            with self._lock:
                self._members.pop(id, None)

    def assign(self, id: int, ltm: str | None = None) -> None:
        """Let an LTM's subsystem feed a view manager."""
        with self._command():
            wanted = self._ltm if ltm is None else ltm
            if wanted not in self._ltms:
                raise ProgrammingError(
                    f"there is no LTM {wanted!r}", hint=f"there is {', '.join(map(repr, self._ltms))}"
                )
            self._member(id).ltm = wanted

    def reassign(self, id: int, ltm: str | None = None) -> None:
        """`assign`, for one that has an LTM already."""
        self.assign(id, ltm)

    def withdraw(self, id: int) -> None:
        """Take a view manager from its LTM: it idles until it is assigned again."""
        with self._command():
            manager = self._member(id)
            self._check_not_last(manager, "withdraw")
            manager.ltm = None
            self.await_marker()

    def kill(self, id: int) -> None:
        """As if it had died: what it was working on is done by another."""
        self._member(id)
        with self._lock:
            self._members.pop(id, None)

    def status(self) -> list[ViewManagerStatus]:
        with self._lock:
            members = sorted(self._members.values(), key=lambda manager: manager.id)
        return [
            ViewManagerStatus(each.id, each.ltm, each.load, each.rows_count, each.slots_count, each.busy_ms)
            for each in members
        ]

    # -- inside

    @contextmanager
    def _command(self) -> Iterator[None]:
        if not self._commanding.acquire(blocking=False):
            raise OperationalError("another command on view managers is under way", hint="try again when it is done")
        try:
            yield
        finally:
            self._commanding.release()

    def _member(self, id: int) -> ViewManager:
        manager = self._members.get(id) if isinstance(id, int) else None
        if manager is None:
            known = ", ".join(map(str, sorted(self._members)))
            raise ProgrammingError(f"there is no view manager {id!r}", hint=f"there are {known}")
        return manager

    def _check_not_last(self, manager: ViewManager, what: str) -> None:
        assigned = [each for each in self._members.values() if each.ltm is not None]
        if assigned == [manager]:
            raise OperationalError(
                f"cannot {what} view manager {manager.id}: it is the last one", hint="add another one first"
            )
