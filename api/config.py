"""What `connect` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from .changetables.errors import InterfaceError

#: About 0.5 KB each: a few hundred MB at the most.
CACHE_ROWS = 400_000


@dataclass(frozen=True, slots=True)
class Config:
    """`cache_rows`: about how many rows are kept in memory; the rest is read from disk when asked for."""

    cache_rows: int = CACHE_ROWS

    def __post_init__(self) -> None:
        if not isinstance(self.cache_rows, int) or self.cache_rows < 100:
            raise InterfaceError(f"cache_rows must be a whole number of at least 100, not {self.cache_rows!r}")
