"""A database much larger than its cache: memory stays bounded by `cache_rows`, and every read is right."""

from __future__ import annotations

import random

import pytest

import viewtide as vt
from viewtide.ltm.versions import NotLoaded

CACHE_ROWS = 2_000
ROWS = 20_000
GROUPS = 500
TRANSACTIONS = 300
ROWS_PER_TRANSACTION = 40
#: Entries of all layers of all tables, indexes and views together. A checkpoint starts at a quarter of `cache_rows`
#: dirty rows and writers wait at half of it; each written row comes with its index entries and view row, and what was
#: written stays for reading for two generations.
LAYERS_MAX = 5 * CACHE_ROWS

BY_GROUP = (
    "SELECT e.grp, COUNT(*) AS n, SUM(e.cost) AS cost, SUM(g.weight) AS weight"
    " FROM events e JOIN groups g ON e.grp = g.id GROUP BY e.grp"
)


def rows_in_memory(db: vt.Database) -> int:
    layers = ("dirty", "frozen", "young", "old")
    tables = db._engine.ltm.tables.versions.values()
    return sum(len(getattr(versions, layer)) for versions in tables for layer in layers)


class Events:
    """The model: cost and group by id."""

    def __init__(self, db: vt.Database) -> None:
        self.db = db
        self.rows: dict[int, tuple[int, int]] = {}
        self.chance = random.Random(7)
        self.most = 0

    def insert(self, first: int, count: int) -> None:
        added = {id_: (id_ * 7 % GROUPS, id_ % 1000) for id_ in range(first, first + count)}
        with self.db.transaction() as tx:
            tx.insert("events", [{"id": id_, "grp": grp, "cost": cost} for id_, (grp, cost) in added.items()])
        self.rows.update(added)
        self.watch()

    def change(self) -> None:
        """Random updates, moves to another group, deletes and inserts."""
        with self.db.transaction() as tx:
            for _ in range(ROWS_PER_TRANSACTION):
                id_ = self.chance.randrange(ROWS)
                draw = self.chance.random()
                if draw < 0.2:
                    assert tx.delete("events", id_) == (self.rows.pop(id_, None) is not None)
                else:
                    grp = self.chance.randrange(GROUPS) if draw < 0.5 else self.rows.get(id_, (0, 0))[0]
                    self.rows[id_] = (grp, self.chance.randrange(1000))
                    tx.upsert("events", {"id": id_, "grp": grp, "cost": self.rows[id_][1]})
        self.watch()

    def watch(self) -> None:
        self.most = max(self.most, rows_in_memory(self.db))

    def check_some(self) -> None:
        with self.db.snapshot() as snapshot:
            for id_ in self.chance.sample(range(ROWS), 50):
                row = snapshot.get("events", id_)
                assert (None if row is None else (row["grp"], row["cost"])) == self.rows.get(id_)
            grp = self.chance.randrange(GROUPS)
            found = {row["id"] for row in snapshot.find("events", grp=grp)}
            assert found == {id_ for id_, (of, _) in self.rows.items() if of == grp}
        self.watch()

    def check_all(self) -> None:
        with self.db.snapshot() as snapshot:
            found = {row["id"]: (row["grp"], row["cost"]) for row in snapshot.scan("events")}
            assert found == self.rows
            self.watch()
            by_group = {row["grp"]: (row["n"], row["cost"], row["weight"]) for row in snapshot.view("by_group").rows()}
        expected: dict[int, tuple[int, int, int]] = {}
        for grp, cost in self.rows.values():
            n, costs, weights = expected.get(grp, (0, 0, 0))
            expected[grp] = (n + 1, costs + cost, weights + grp % 5)
        assert by_group == expected
        assert self.db.view("by_group").verify().ok
        self.watch()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["memory", "directory"])
def test_memory_is_bounded_by_the_cache(target: str, db_path: object) -> None:
    with vt.connect("memory:" if target == "memory" else db_path, cache_rows=CACHE_ROWS) as db:  # type: ignore[arg-type]
        db.create_table("groups", {"id": int, "weight": int}, key="id")
        db.create_table("events", {"id": int, "grp": int, "cost": int}, key="id", indexes=["grp"])
        db.create_view("by_group", BY_GROUP)
        with db.transaction() as tx:
            tx.insert("groups", [{"id": id_, "weight": id_ % 5} for id_ in range(GROUPS)])
        events = Events(db)
        for first in range(0, ROWS, 500):
            events.insert(first, 500)
        for number in range(TRANSACTIONS):
            events.change()
            if number % 10 == 0:
                events.check_some()
        # A view and an index that are made late read everything.
        db.create_index("events", "cost")
        db.create_view("late", "SELECT COUNT(*) AS n, SUM(cost) AS cost FROM events")
        events.watch()
        late = db.view("late").get()
        assert late is not None
        assert (late["n"], late["cost"]) == (len(events.rows), sum(cost for _, cost in events.rows.values()))
        events.check_all()
        assert db.status().checkpoints > 10
        assert events.most <= LAYERS_MAX, events.most
        if target == "directory":
            _reopen_and_check(events, db)


def _reopen_and_check(events: Events, db: vt.Database) -> None:
    db.close()
    with vt.connect(db._node.name, cache_rows=CACHE_ROWS) as again:
        events.db = again
        assert rows_in_memory(again) == 0, "a closed database is in the store; nothing is loaded before it is asked for"
        events.check_some()
        events.check_all()
        assert events.most <= LAYERS_MAX


def test_one_transaction_larger_than_the_cache() -> None:
    """It has to be in memory while it commits, and leaves afterwards."""
    with vt.connect("memory:", cache_rows=100) as db:
        db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
        db.create_view("v", "SELECT x.a, COUNT(*) AS n FROM t x JOIN t y ON x.a = y.a GROUP BY x.a")
        with db.transaction() as tx:
            tx.insert("t", [{"id": id_, "a": id_ % 100} for id_ in range(500)])
        db._engine.checkpoint()
        with db.transaction() as tx:
            for id_ in range(500):
                assert tx.update("t", id_, {"a": id_ % 50})
        with db.transaction() as tx:
            for id_ in range(0, 500, 2):
                assert tx.delete("t", id_)
        assert db.view("v").verify().ok
        assert sorted((row["a"], row["n"]) for row in db.view("v").rows()) == [(a, 100) for a in range(1, 50, 2)]
        for _ in range(3):
            db._engine.checkpoint()
        assert rows_in_memory(db) < 2_000


def test_look_ups_larger_than_the_cache_of_index_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction needs more stored index entries than are kept: it must end all the same."""
    with vt.connect("memory:", cache_rows=100) as db:
        db.create_table("p", {"id": int, "c": str}, key="id")
        db.create_table("e", {"id": int, "p": int}, key="id")
        db.create_view("v", "SELECT p.c, COUNT(*) AS n FROM p JOIN e ON e.p = p.id GROUP BY p.c")
        with db.transaction() as tx:
            tx.insert("p", [{"id": id_, "c": "x"} for id_ in range(3)])
            tx.insert("e", [{"id": id_, "p": id_ % 3} for id_ in range(300)])
        db._engine.checkpoint()
        load, loads = db._engine.ltm.load, 0

        def counted(need: NotLoaded) -> None:
            nonlocal loads
            loads += 1
            assert loads < 100, "the same entries are loaded again and again"
            load(need)

        monkeypatch.setattr(db._engine.ltm, "load", counted)
        with db.transaction() as tx:
            for id_ in range(3):
                tx.update("p", id_, {"c": "y"})
        assert [tuple(row.values()) for row in db.view("v").rows()] == [("y", 300)]
