"""A table in the store of a directory, divided into parts that other processes read straight from there.

Whoever divides it keeps the timestamp pinned, and has made a checkpoint since: then all that was visible at it is in
the store, and stays there. A part can be pickled; called, it gives the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..changetables.change_table import Change
from ..changetables.keys import table_range
from .driver import Ltm
from .store.lmdb import LmdbSnapshot
from .stored_reading import directory_reader, places_between


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The rows of a table with start <= key < stop."""

    directory: Path
    table: str
    start: bytes
    stop: bytes
    at: int

    def __call__(self) -> Iterator[list[Change]]:
        store = LmdbSnapshot(self.directory)
        try:
            reader = directory_reader(store, self.at)
            rows = reader.tables.by_name[self.table]
            for page in reader.table_pages(rows, self.start, self.stop, self.at):
                yield [(row, 1) for row in page]
        finally:
            store.close()


def stored_parts(ltm: Ltm, table: str, at: int, parts_count: int, cells_min: int) -> list[StoredPart] | None:
    """A table in about so many parts; None if it has fewer cells than that is worth for, or cannot be read there."""
    directory = ltm.store_directory
    if directory is None:
        return None
    start, stop = table_range(ltm.tables.by_name[table].table.id)
    edges = ltm.stored_edges(start, stop, cells_min)
    if edges is None:
        return None
    places = [start, *places_between(*edges, parts_count), stop]
    return [StoredPart(directory, table, low, high, at) for low, high in itertools.pairwise(places)]
