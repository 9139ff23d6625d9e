"""An open database as the classes of the API see it, whether its rows are in this process or in a cluster."""

from __future__ import annotations

from typing import Protocol

from .coordinator.ports import Administration, Refreshing, TransactionEngine
from .ltm.reading import Guard


class OpenNode(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def changing(self) -> Guard:
        """Held by whoever changes tables and views."""

    @property
    def engine(self) -> TransactionEngine: ...
    @property
    def refresher(self) -> Refreshing: ...
    @property
    def admin(self) -> Administration: ...

    def lag_ms(self, watermark: int) -> float:
        """How far a watermark is behind the clock."""

    def next_tx_id(self) -> tuple[int, int]: ...

    def check_open(self) -> None: ...

    def close(self) -> None: ...
