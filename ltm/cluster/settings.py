"""How a process uses a store that its rows are in, and what it keeps for those who follow changes."""

from __future__ import annotations

from typing import NamedTuple

from ..two_phase import recent


class HistorySettings(NamedTuple):
    """Changes are known for so long, if they take no more bytes than that, about."""

    ms: int = recent.HISTORY_MS
    bytes_max: int = recent.KEPT_BYTES


class StoreSettings(NamedTuple):
    """The store is shared: whoever answers for a log finds there what others wrote for it."""

    #: How often rows go to the store. What is younger than `lag_ms` stays for the next time: it may still come late.
    checkpoint_ms: int = 1_000
    lag_ms: int = 200
    #: Keys that a participant knows; more while they are in use.
    keys_max: int = 200_000
    #: Cells in one write or load, and transactions in one entry.
    page_cells: int = 2_000
    #: How often it is seen to that no more keys are known.
    evict_ms: int = 1_000
