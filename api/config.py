"""What `connect` can be told."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .changetables.errors import InterfaceError
from .coordinator.timestamps import MS_SHIFT
from .coordinator.vms.managers import VIEW_MANAGERS_MAX
from .durations import milliseconds
from .ltm.history import History

#: About 0.5 KB each: a few hundred MB at the most.
CACHE_ROWS = 400_000
#: How long the changes of views can be read again, and what the log may grow to for that. A log in memory costs memory.
HISTORY = "1h"
HISTORY_BYTES = 256 * 2**20
HISTORY_BYTES_IN_MEMORY = 32 * 2**20
#: Each has a log of its own, and a transaction syncs those that it touches.
LTMS_MAX = 64
LTMS_VARIABLE = "VIEWTIDE_LTMS"


@dataclass(frozen=True, slots=True)
class Config:
    """`cache_rows`: about how many rows are kept in memory; the rest is read from disk when asked for.
    `view_managers`: how many of them refresh the deferred views. `history`: for how long the log is kept after it was
    written to the store, for `changes()`, but at most about `history_bytes` of it (None: as many as is usual). `ltms`:
    how many local transaction managers share the keys."""

    cache_rows: int = CACHE_ROWS
    view_managers: int = 1
    history: str | float = HISTORY
    history_bytes: int | None = None
    ltms: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.cache_rows, int) or self.cache_rows < 100:
            raise InterfaceError(
                f"cache_rows must be a whole number of at least 100, not {self.cache_rows!r}",
                hint=f"leave it out for {CACHE_ROWS}",
            )
        if (
            not isinstance(self.view_managers, int)
            or isinstance(self.view_managers, bool)
            or not 1 <= self.view_managers <= VIEW_MANAGERS_MAX
        ):
            raise InterfaceError(
                f"view_managers must be a whole number from 1 to {VIEW_MANAGERS_MAX}, not {self.view_managers!r}",
                hint="leave it out for 1",
            )
        if not isinstance(self.ltms, int) or isinstance(self.ltms, bool) or not 1 <= self.ltms <= LTMS_MAX:
            raise InterfaceError(
                f"ltms must be a whole number from 1 to {LTMS_MAX}, not {self.ltms!r}", hint="leave it out for 1"
            )
        milliseconds(self.history)
        size = self.history_bytes
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
            raise InterfaceError(
                f"history_bytes must be a whole number of at least 0, not {size!r}",
                hint="leave it out for what suits most",
            )

    def kept(self, in_memory: bool) -> History:
        """How much of the log is kept."""
        usual = HISTORY_BYTES_IN_MEMORY if in_memory else HISTORY_BYTES
        age = int(milliseconds(self.history)) << MS_SHIFT
        return History(age, usual if self.history_bytes is None else self.history_bytes)


def usual_ltms() -> int:
    """How many LTMs there are where nobody says."""
    told = os.environ.get(LTMS_VARIABLE, "1")
    if not (told.isascii() and told.isdigit()):
        raise InterfaceError(f"{LTMS_VARIABLE} must be a whole number, not {told!r}", hint="unset it for 1")
    return int(told)
