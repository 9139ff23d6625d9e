"""verify and repair of deferred views: at their watermark, while writers go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import viewtide as vt
from viewtide.changetables.keys import table_range
from viewtide.changetables.plan import Contribution
from viewtide.ltm.reading import NEWEST

VIEWS = {
    "groups": "SELECT p.cat, SUM(e.cost) AS cost, COUNT(*) AS n FROM e JOIN p ON e.p = p.id GROUP BY p.cat",
    "bounds": "SELECT p, MIN(cost) AS lo, MAX(cost) AS hi FROM e GROUP BY p",
    "plain": "SELECT id, cost + 1 AS c FROM e WHERE cost IS NOT NULL",
    "left_": "SELECT p.id, e.id AS eid FROM p LEFT JOIN e ON e.p = p.id",
    "top": "SELECT id, cost FROM e ORDER BY cost DESC LIMIT 3",
}


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.create_table("p", {"id": int, "cat": str}, key="id")
        database.create_table("e", {"id": int, "p": int, "cost": int}, key="id")
        with database.transaction() as tx:
            tx.insert("p", [{"id": i, "cat": f"c{i % 3}"} for i in range(8)])
            tx.insert("e", [{"id": i, "p": i % 6, "cost": i * i % 9} for i in range(24)])
        yield database


def damage(db: vt.Database, name: str) -> vt.Token:
    """One stored row is gone, at a version that the next refresh publishes: up to the token."""
    ltm = db._engine.ltm
    view = ltm.tables.views[name]
    key, state = list(ltm.scan(view.versions, *table_range(view.view.id), NEWEST))[1]
    keys = len(view.plan.key_columns)
    db._engine.contribute(view.view.id, [view.plan.negate(Contribution(key, state[:keys], state[keys:]))])
    return write(db, 500)


def write(db: vt.Database, id: int) -> vt.Token:
    with db.transaction() as tx:
        tx.upsert("e", {"id": id, "p": 1, "cost": id % 11})
    return tx.token


@pytest.mark.parametrize("name", VIEWS)
def test_a_deferred_view_is_compared_at_its_watermark(db: vt.Database, name: str) -> None:
    v = db.create_view(name, VIEWS[name], refresh="manual")
    watermark = v.rows().watermark
    for number in range(5):
        write(db, number)
    db._engine.checkpoint()
    report = v.verify()
    assert report.ok, report.differences
    assert report.as_of == watermark
    v.refresh()
    report = v.verify()
    assert report.ok, report.differences
    assert report.as_of > watermark


@pytest.mark.parametrize("name", VIEWS)
def test_damage_is_found_and_repaired(db: vt.Database, name: str) -> None:
    v = db.create_view(name, VIEWS[name], refresh="manual")
    expected = db.create_view("expected", VIEWS[name])
    damage(db, name)
    v.refresh()
    found = v.verify()
    assert not found.ok
    assert found.rows_differing >= 1
    report = v.repair()
    assert report.ok
    assert report.repaired == report.rows_differing == found.rows_differing
    assert report.differences == found.differences
    assert v.verify().ok
    assert v.rows(latest=True) == expected.rows()
    again = v.repair()
    assert (again.ok, again.repaired, again.rows_differing) == (True, 0, 0)
    token = write(db, 7)
    assert v.rows(at_least=token) == expected.rows(), "steps go on after the repair"


def test_a_repair_leaves_writers_and_readers_alone(db: vt.Database) -> None:
    v = db.create_view("groups", VIEWS["groups"], refresh="0ms")
    expected = db.create_view("expected", VIEWS["groups"])
    # Before it is published, a repair would find nothing.
    assert v.rows(at_least=damage(db, "groups")) != expected.rows()
    stop = threading.Event()
    written: list[vt.Token] = []

    def work() -> None:
        while not stop.is_set():
            written.append(write(db, 1000 + len(written) % 50))

    writer = threading.Thread(target=work)
    writer.start()
    try:
        reports = [v.repair() for _ in range(5)]
        # Five of them take some 30 ms, in which a writer on a busy machine may hardly get a turn.
        while len(written) <= 5 and len(reports) < 100:
            reports.append(v.repair())
    finally:
        stop.set()
        writer.join()
    assert [(report.ok, report.repaired) for report in reports] == [(True, 1)] + [(True, 0)] * (len(reports) - 1)
    marks = [report.as_of for report in reports]
    assert marks == sorted(marks)
    assert len(written) > 5
    assert v.rows(at_least=written[-1]) == expected.rows()


def test_a_repaired_sync_view_repairs_deferred_ones_above(db: vt.Database) -> None:
    s = db.create_view("groups", VIEWS["groups"])
    d = db.create_view("above", "SELECT SUM(cost) AS cost, COUNT(*) AS n FROM groups", refresh="manual")
    expected = d.rows()
    ltm = db._engine.ltm
    view = ltm.tables.views["groups"]
    key, state = next(iter(ltm.scan(view.versions, *table_range(view.view.id), NEWEST)))
    # Damage of what is stored, of which no log record tells: the deferred view above stays right.
    view.versions.put(key, db._engine.draw_ts(), (*state[:-1], 1000), replaces=True)
    write(db, 3)
    assert not s.verify().ok
    assert s.repair().repaired == 1
    assert s.verify().ok
    assert d.verify().ok
    assert d.rows(latest=True)[0].n == expected[0].n
    assert d.rows() == db.sql("SELECT SUM(cost) AS cost, COUNT(*) AS n FROM groups")


def test_a_view_is_right_after_it_was_reopened(tmp_path: object) -> None:
    with vt.connect(f"{tmp_path}/db") as db:
        db.create_table("p", {"id": int, "cat": str}, key="id")
        db.create_table("e", {"id": int, "p": int, "cost": int}, key="id")
        with db.transaction() as tx:
            tx.insert("p", [{"id": i, "cat": f"c{i % 3}"} for i in range(8)])
            tx.insert("e", [{"id": i, "p": i % 6, "cost": i} for i in range(24)])
        db.create_view("groups", VIEWS["groups"], refresh="manual")
        damage(db, "groups")
        db.view("groups").refresh()
        assert db.view("groups").repair().repaired >= 1
    with vt.connect(f"{tmp_path}/db") as db:
        write(db, 3)
        assert db.view("groups").verify().ok
        db.view("groups").refresh()
        assert db.view("groups").verify().ok
