"""Rows that a coordinator was told of by look-ups, for the next transactions that look them up.

Most new rows refer to rows that others referred to before, of tables that hardly ever change. A row that is remembered
is not asked for: the request to vote names the version that was relied on, and whoever owns the row holds it then and
sees to it that it is still the newest. If it is not, the vote is refused, the row is forgotten, and the next attempt
asks for everything. So what is remembered may be as old as it likes: it never decides anything.

Only rows of tables: what a view shows at a timestamp may still grow, because contributions share timestamps (rule T2).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...changetables.types import Row
from ...ltm.two_phase.pages import row_bytes

#: Beyond it all are forgotten, and learned again as they are needed. About 50 MB at the most.
ROWS_MAX = 50_000
#: A larger row is asked for each time: it is not worth the memory.
ROW_BYTES_MAX = 1_024


class Remembered:
    """By key: the timestamp of the version, and the row."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, Row]] = {}
        self.find = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    def learn(self, key: bytes, ts: int, row: Row) -> None:
        if row_bytes(row) > ROW_BYTES_MAX:
            return
        if len(self._rows) >= ROWS_MAX:
            self._rows.clear()
        self._rows[key] = (ts, row)

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._rows.pop(key, None)
