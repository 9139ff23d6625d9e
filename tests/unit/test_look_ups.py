"""What a transaction reads to keep a view does not depend on how many rows there are.

A counter stands between a database on disk and its store. Before each transaction the cache is emptied, so that every
row that maintenance looks at is a read of the store. The same transactions on a small and on a large database, whose
groups and joins have equally many rows, must then make the same number of reads: nothing is ever scanned.

Every kind of view is compared over thousands of rows, and some kinds over 10,000 and 1,000,000. The sizes follow the
test profile; `VIEWTIDE_LOOK_UPS_ROWS=1000000` compares all kinds over so many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow
import pytest

import viewtide as vt
from tests.conftest import PROFILE
from viewtide.ltm.ports import Cell, Store, WriteElsewhere
from viewtide.reads import ViewReads

#: Rows of the small and of the large database. To compute the first contents of all views takes the time here.
ROWS = {"dev": (2_000, 10_000), "full": (10_000, 50_000), "soak": (10_000, 1_000_000)}
ROWS_SMALL, ROWS_LARGE = ROWS[PROFILE]
ROWS_LARGE = int(os.environ.get("VIEWTIDE_LOOK_UPS_ROWS", ROWS_LARGE))
#: The same where the views are there before the rows. Of a million, all kinds would take minutes.
ROWS_LOADED = {"dev": (2_000, 20_000), "full": (10_000, 1_000_000), "soak": (10_000, 1_000_000)}[PROFILE]
#: Rows of one group, of one join key, of one value.
FAN_OUT = 10
#: Reads of one transaction of one or two rows: a few per hidden view, times the fan-out. A scan of the small table
#: would be ten times as much.
READS_MAX = 900


class CountingStore:
    """The store port; `reads` counts the cells that were asked for: one for each key, one for each cell of a range."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0

    def get(self, key: bytes, at: int) -> Cell | None:
        self.reads += 1
        return self._store.get(key, at)

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        self.reads += len(keys)
        return self._store.get_many(keys, at)

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        found = self._store.scan(start, stop, at, limit)
        self.reads += 1 + len(found)
        return found

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        self.reads += 1
        return self._store.max_key(start, stop)

    def write(
        self,
        batches: Iterable[Sequence[Cell]],
        superseded: Iterable[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
        removed: Iterable[tuple[bytes, int]] = (),
    ) -> None:
        self._store.write(batches, superseded, meta, between, removed)

    def write_elsewhere(self) -> WriteElsewhere | None:
        return self._store.write_elsewhere()

    def prune(self, horizon: int, limit: int) -> int:
        return self._store.prune(horizon, limit)

    def meta(self, name: str) -> bytes | None:
        return self._store.meta(name)

    def drop_range(self, start: bytes, stop: bytes) -> None:
        self._store.drop_range(start, stop)

    def stat(self) -> dict[str, int]:
        return self._store.stat()

    def close(self) -> None:
        self._store.close()


class Counted:
    """A database of so many events, in groups of FAN_OUT; every second group has a row of its own. `kinds` are the
    views that are there before the rows."""

    def __init__(self, path: Path, rows_count: int, kinds: Iterable[str] = ()) -> None:
        self.db = vt.connect(path)
        self.rows_count, self.groups_count = rows_count, rows_count // FAN_OUT
        ltm = self.db._engine.ltm
        self.store = CountingStore(ltm._store)
        ltm._store = self.store
        self.db.create_table("groups", {"id": int, "name": str, "weight": int}, key="id")
        self.db.create_table("events", {"id": int, "grp": int, "cost": int}, key="id", indexes=["grp"])
        for kind in kinds:
            self.db.create_view(kind, VIEWS[kind])
        ids, numbers = range(0, self.groups_count, 2), range(rows_count)
        self._load("groups", id=ids, name=[f"n{n // FAN_OUT}" for n in ids], weight=[n % 7 for n in ids])
        self._load(
            "events", id=numbers, grp=[n % self.groups_count for n in numbers], cost=[self.cost(n) for n in numbers]
        )

    def cost(self, number: int) -> int:
        """Each value as often as the next; the largest of a group is its last row's."""
        return number // FAN_OUT

    def _load(self, table: str, **columns: Sequence[object]) -> None:
        self.db.table(table).load([pyarrow.table({name: list(values) for name, values in columns.items()})])

    def forget(self) -> None:
        """Everything to the store, nothing in memory."""
        engine = self.db._engine
        engine.checkpoint()
        with engine.ltm.lock:
            for versions in engine.ltm.tables.versions.values():
                versions.age()
                versions.age()

    def reads_of(self, write: Callable[[vt.Transaction, Counted], object]) -> int:
        """The reads of one transaction, from an empty cache to its commit."""
        self.forget()
        before = self.store.reads
        with self.db.transaction() as tx:
            write(tx, self)
        return self.store.reads - before


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Counted, Counted]]:
    path = tmp_path_factory.mktemp("look_ups")
    small, large = Counted(path / "small", ROWS_SMALL), Counted(path / "large", ROWS_LARGE)
    yield small, large
    small.db.close()
    large.db.close()


VIEWS = {
    "selection": "SELECT id, cost FROM events WHERE cost % 2 = 0",
    "join": "SELECT e.id, g.name FROM events e JOIN groups g ON e.grp = g.id",
    "expression_join": "SELECT e.id, g.id AS other FROM events e JOIN groups g ON e.grp + 2 = g.id",
    "expression_of_two_join": "SELECT q.id, h.id AS other FROM (SELECT e.id, e.grp + 0 * g.weight AS s"
    " FROM events e JOIN groups g ON e.grp = g.id) q JOIN groups h ON h.id = q.s",
    "left_join": "SELECT e.id, g.name FROM events e LEFT JOIN groups g ON e.grp = g.id",
    "full_join": "SELECT e.id, g.name FROM events e FULL JOIN groups g ON e.grp = g.id AND e.cost > g.weight",
    "anti_join": "SELECT id FROM groups g"
    " WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.grp = g.id AND e.cost % 2 = 0)",
    "not_in": "SELECT id FROM events WHERE grp NOT IN (SELECT id FROM groups)",
    "aggregates": "SELECT g.name, COUNT(*) AS n, SUM(e.cost) AS s"
    " FROM events e JOIN groups g ON e.grp = g.id GROUP BY g.name",
    "min_max": "SELECT grp, MIN(cost) AS lo, MAX(cost) AS hi, COUNT(DISTINCT cost) AS n FROM events GROUP BY grp",
    "one_row": "SELECT COUNT(*) AS n, MIN(cost) AS lo, MAX(cost) AS hi FROM events",
    "outer_join_group": "SELECT g.id, COUNT(e.id) AS n, MAX(e.cost) AS hi"
    " FROM groups g LEFT JOIN events e ON e.grp = g.id GROUP BY g.id",
    "distinct": "SELECT DISTINCT grp, cost FROM events",
    "except": "SELECT grp FROM events EXCEPT ALL SELECT id FROM groups",
    "union": "SELECT grp AS id FROM events UNION SELECT id FROM groups",
    "top": "SELECT id, cost FROM events ORDER BY cost DESC LIMIT 10",
    "group_of_top": "SELECT grp, COUNT(*) AS n"
    " FROM (SELECT grp, cost FROM events ORDER BY cost DESC LIMIT 10) q GROUP BY grp",
    "view_on_view": "SELECT hi, COUNT(*) AS n"
    " FROM (SELECT grp, MAX(cost) AS hi FROM events GROUP BY grp) q GROUP BY hi",
}


def middle(counted: Counted) -> int:
    """The number of a group that has a row of its own, about in the middle."""
    return counted.groups_count // 4 * 2


def new_row(tx: vt.Transaction, counted: Counted) -> None:
    tx.insert("events", {"id": counted.rows_count, "grp": middle(counted), "cost": counted.cost(middle(counted))})


def changed_value(tx: vt.Transaction, counted: Counted) -> None:
    assert tx.update("events", middle(counted), {"cost": counted.cost(counted.rows_count - 1) + 1})


def changed_key(tx: vt.Transaction, counted: Counted) -> None:
    assert tx.update("events", counted.rows_count, {"grp": middle(counted) + 1})


def deleted_row(tx: vt.Transaction, counted: Counted) -> None:
    assert tx.delete("events", counted.rows_count)
    assert tx.update("events", middle(counted), {"cost": counted.cost(middle(counted))})


def deleted_partner(tx: vt.Transaction, counted: Counted) -> None:
    assert tx.delete("groups", middle(counted))


def new_partner(tx: vt.Transaction, counted: Counted) -> None:
    number = middle(counted)
    tx.insert("groups", {"id": number, "name": f"n{number // FAN_OUT}", "weight": number % 7})


#: Look-ups by key and by index, sums, and extremes. With "min_max", of a million rows, it takes ten seconds longer.
LOADED = ("join", "aggregates", "one_row")

#: What readers of some views do: extremes and first rows are found when they are asked for.
READS: dict[str, Callable[[ViewReads, Counted], object]] = {
    "min_max": lambda view, counted: view.get(middle(counted)),
    "one_row": lambda view, _: view.get(),
    "outer_join_group": lambda view, counted: view.get(middle(counted)),
    "top": lambda view, _: view.rows(),
}

#: In this order they leave the database as it was.
WRITES = (new_row, changed_value, changed_key, deleted_row, deleted_partner, new_partner)


@pytest.mark.parametrize("kind", VIEWS)
def test_a_transaction_reads_as_much_in_a_large_database_as_in_a_small_one(
    databases: tuple[Counted, Counted], kind: str
) -> None:
    reads: list[dict[str, int]] = []
    for counted in databases:
        counted.db.create_view("v", VIEWS[kind])
        reads.append({write.__name__: counted.reads_of(write) for write in WRITES})
        if kind in READS:
            reads[-1]["read"] = counted.reads_of(lambda tx, of: READS[kind](tx.view("v"), of))
        counted.db.drop_view("v")
    small, large = reads
    assert small == large
    assert 0 < max(small.values()) < READS_MAX


def test_a_transaction_reads_as_much_over_a_million_rows_as_over_ten_thousand(tmp_path: Path) -> None:
    """All its views together: none of them may read more."""
    reads: list[dict[str, int]] = []
    for rows_count in ROWS_LOADED:
        counted = Counted(tmp_path / str(rows_count), rows_count, LOADED)
        with counted.db:
            reads.append({write.__name__: counted.reads_of(write) for write in WRITES})
            for kind in set(LOADED) & set(READS):
                reads[-1][kind] = counted.reads_of(lambda tx, of, kind=kind: READS[kind](tx.view(kind), of))
    small, large = reads
    assert small == large
    assert 0 < max(small.values()) < READS_MAX
