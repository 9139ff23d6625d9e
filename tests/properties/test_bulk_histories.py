"""Random histories with staged loads: every snapshot is what a model says, also of before, also after a restart."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import viewtide as vt
from viewtide import bulk
from viewtide.coordinator import bulk_load

pa = pytest.importorskip("pyarrow")

SEEDS = range(60) if os.environ.get("VIEWTIDE_SOAK") else range(3)
STEPS = 60
KEYS = 200

pytestmark = pytest.mark.embedded("a served node loads by a transaction")


@pytest.mark.parametrize("seed", SEEDS)
def test_histories_with_loads(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", 1)
    monkeypatch.setattr(bulk, "CHUNK_ROWS", 7)
    monkeypatch.setattr(bulk_load, "WRITE_ROWS", 15)
    History(tmp_path / "db", random.Random(seed)).run()


class History:
    """`model` is key -> (group, value)."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path, self.chance = path, chance
        self.model: dict[int, tuple[int, int]] = {}
        self.open: list[tuple[vt.Snapshot, dict[int, tuple[int, int]]]] = []
        self.loads = 0
        self.db = vt.connect(path, ltms=1)
        self.db.create_table("t", {"id": int, "g": int, "x": int}, key="id", indexes=["g"])
        self.db.create_view("sums", "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t GROUP BY g")
        self.db.create_view("some", "SELECT id, x FROM t WHERE x > 50")
        self.db.create_view("ends", "SELECT g, MIN(x) AS low, MAX(x) AS high FROM t GROUP BY g")
        self.db.create_view("late", "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")

    def run(self) -> None:
        actions = [self.load, self.load, self.write, self.write, self.delete, self.look, self.checkpoint, self.reopen]
        for _ in range(STEPS):
            self.chance.choice(actions)()
        self.reopen()
        self.check(self.db.snapshot(), self.model)
        self.db.view("late").refresh()
        assert self.db.view("late").rows() == self.db.view("sums").rows()
        assert all(self.db.view(name).verify().ok for name in self.db.views())
        assert self.loads, "no load went through"
        self.db.close()

    def row(self, key: int) -> dict[str, int]:
        return {"id": key, "g": self.chance.randrange(5), "x": self.chance.randrange(100)}

    def load(self) -> None:
        """With other transactions in the middle. It fails exactly if a key is there, or comes while it is under way."""
        keys = self.chance.sample(range(KEYS), self.chance.randrange(1, 40))
        if self.chance.random() < 0.7:
            keys = [key for key in keys if key not in self.model] or [next(iter(set(range(KEYS)) - set(self.model)))]
        rows = [self.row(key) for key in keys]
        written: set[int] = set()

        def batches() -> object:
            for first in range(0, len(rows), 16):
                yield pa.Table.from_pylist(rows[first : first + 16])
                if self.chance.random() < 0.3:
                    written.add(self.write())
                if self.chance.random() < 0.3:
                    self.look()
                if self.chance.random() < 0.3:
                    self.checkpoint()

        before = dict(self.model)
        try:
            self.db.table("t").load(batches())
        except (vt.IntegrityError, vt.TransactionConflict):
            assert set(keys) & (before.keys() | written)
        else:
            assert not set(keys) & (before.keys() | written)
            self.model.update({row["id"]: (row["g"], row["x"]) for row in rows})
            self.loads += 1

    def write(self) -> int:
        row = self.row(self.chance.randrange(KEYS))
        with self.db.transaction() as tx:
            tx.upsert("t", row)
        self.model[row["id"]] = (row["g"], row["x"])
        return row["id"]

    def delete(self) -> None:
        with self.db.transaction() as tx:
            for key in self.chance.sample(range(KEYS), 30):
                tx.delete("t", key)
                self.model.pop(key, None)

    def look(self) -> None:
        """Look at what is open already, and open another one."""
        for snapshot, model in self.open:
            self.check(snapshot, model)
        if len(self.open) > 3:
            self.open.pop(0)[0].close()
        snapshot = self.db.snapshot()
        self.check(snapshot, self.model)
        self.open.append((snapshot, dict(self.model)))

    def check(self, snapshot: vt.Snapshot, model: dict[int, tuple[int, int]]) -> None:
        found = {row.id: (row.g, row.x) for row in snapshot.scan("t")}
        assert found == model
        for group in range(5):
            keys = [key for key, (g, _) in model.items() if g == group]
            assert sorted(row.id for row in snapshot.find("t", g=group)) == sorted(keys)
            view = snapshot.view("sums").get(group)
            assert (0 if view is None else view.n) == len(keys)
            ends = snapshot.view("ends").get(group)
            assert (None if ends is None else ends.high) == max((model[key][1] for key in keys), default=None)
        assert len(snapshot.view("some").rows()) == sum(x > 50 for _, x in model.values())
        for key in self.chance.sample(range(KEYS), 10):
            assert (snapshot.get("t", key) is not None) == (key in model)

    def checkpoint(self) -> None:
        self.db._node.engine.checkpoint()  # type: ignore[attr-defined]
        if self.chance.random() < 0.3:
            self.db.view("late").refresh()

    def reopen(self) -> None:
        while self.open:
            self.open.pop()[0].close()
        self.db.close()
        self.db = vt.connect(self.path, ltms=1)
