"""The first rows of an ordered view: what comes in at one end may push something out at the other.

    □(first_n(E)) = first_n(E(W1)) - first_n(E(W0))

It is the one law here that is not linear: it reads the first n rows before and after. n is what the user asked for
(LIMIT and OFFSET together), so the cost does not depend on the size of E.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Row
from .project import net_exactly

#: How a number of rows is written as the key of a look-up: this many bytes, big-endian. None: all rows.
TOP_KEY_BYTES = 8


def top_key(rows_count: int | None) -> bytes:
    return b"" if rows_count is None else rows_count.to_bytes(TOP_KEY_BYTES, "big")


def top_count(key: bytes) -> int | None:
    return int.from_bytes(key, "big") if key else None


def slice_changes(
    old: Sequence[tuple[Row, int]], new: Sequence[tuple[Row, int]], limit: int | None, offset: int
) -> list[tuple[Row, int]]:
    """How often each row comes into the slice (+) or leaves it (-)."""
    leaving = [(row, -times) for row, times in sliced(old, limit, offset)]
    return net_exactly([*leaving, *sliced(new, limit, offset)])


def sliced(rows: Sequence[tuple[Row, int]], limit: int | None, offset: int) -> list[tuple[Row, int]]:
    """The rows after the first `offset`, at most `limit` of them, each with how often it is there."""
    found: list[tuple[Row, int]] = []
    skipped, left = offset, limit
    for row, times in rows:
        if skipped >= times:
            skipped -= times
            continue
        times -= skipped
        skipped = 0
        if left is not None:
            times = min(times, left)
            left -= times
        if times:
            found.append((row, times))
        if left == 0:
            break
    return found
