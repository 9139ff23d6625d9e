"""The store as the machines see it: what they ask of it, and what comes back. `on_store` maps this to a store.

A write that fails was not done, done in part, done, or will be done later: whoever gets `StoreFailed`, or nothing, asks
the same again. Doing it twice is doing it once: versions are named by (key, commit_ts), and the same version always has
the same row (`saving` says why).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...changetables.types import Row

STORE = "store"

#: A version: (commit_ts, row), row None where it was deleted.
StoredRow: TypeAlias = tuple[int, Row | None]
#: As an argument: the newest version.
NEWEST = (1 << 63) - 1


class WriteCells(NamedTuple):
    """`cells` are (key, commit_ts, row), `superseded` as in `Store.write`."""

    number: int
    cells: tuple[tuple[bytes, int, Row | None], ...]
    superseded: tuple[tuple[int, bytes, int], ...] = ()


class Written(NamedTuple):
    """All of it is durable."""

    number: int


class LoadCells(NamedTuple):
    """The versions of `keys` at `at`, and those of the ranges (start, stop), of all of them together no more than
    `limit` cells. `tables` are (start, stop) too: the highest key there is wanted."""

    number: int
    at: int
    keys: tuple[bytes, ...] = ()
    ranges: tuple[tuple[bytes, bytes], ...] = ()
    limit: int = 0
    tables: tuple[tuple[bytes, bytes], ...] = ()


class LoadedCells(NamedTuple):
    """`rows` of the keys, None where there is no version. `ranges` are cells in order, deleted ones included, and up to
    which key (not included) they are complete. `last_keys` of the tables, None: the store has nothing of them."""

    number: int
    rows: tuple[StoredRow | None, ...]
    ranges: tuple[tuple[tuple[tuple[bytes, int, Row | None], ...], bytes], ...] = ()
    last_keys: tuple[bytes | None, ...] = ()


class StoreFailed(NamedTuple):
    number: int
    reason: str


Request: TypeAlias = WriteCells | LoadCells
Answer: TypeAlias = Written | LoadedCells | StoreFailed
