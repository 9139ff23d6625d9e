"""repair and verify beside whoever switches, drops and creates views: nothing that is right becomes wrong."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import viewtide as vt
from viewtide.changetables.keys import table_range
from viewtide.coordinator import build, mending, verify
from viewtide.ltm.driver import Ltm
from viewtide.ltm.reading import NEWEST
from viewtide.ltm.tables import Tables
from viewtide.ltm.versions import Horizon

S = "SELECT p.cat, SUM(e.cost) AS cost, COUNT(*) AS n FROM e JOIN p ON e.p = p.id GROUP BY p.cat"
OVER_S = "SELECT SUM(cost) AS cost, SUM(n) AS n FROM s"
WAIT_S_MAX = 20


@pytest.fixture
def db(tmp_path: Path) -> Iterator[vt.Database]:
    with vt.connect(tmp_path / "db", ltms=1) as database:
        database.create_table("p", {"id": int, "cat": str}, key="id")
        database.create_table("e", {"id": int, "p": int, "cost": int}, key="id")
        with database.transaction() as tx:
            tx.insert("p", [{"id": i, "cat": f"c{i % 3}"} for i in range(8)])
            tx.insert("e", [{"id": i, "p": i % 6, "cost": i * i % 9} for i in range(24)])
        yield database


def write(db: vt.Database, id: int) -> None:
    with db.transaction() as tx:
        tx.upsert("e", {"id": id, "p": 1, "cost": id % 11})


def falsify(db: vt.Database, name: str) -> None:
    """Damage of what is stored, of which no log record tells."""
    ltm = db._engine.ltm
    view = ltm.tables.views[name]
    key, state = next(iter(ltm.scan(view.versions, *table_range(view.view.id), NEWEST)))
    with ltm.lock:
        view.versions.put(key, db._engine.draw_ts(), (*state[:-1], 1000), replaces=True)
        ltm.wrote_unlogged(1)


def check(view: vt.View) -> None:
    report = view.verify()
    assert report.ok, report.differences


def repaired_beside(view: vt.View, act: Callable[[], None]) -> vt.VerifyReport:
    """`act` is called once, while the view is being compared."""
    done: list[int] = []

    def progress(rows: int, expected: int) -> None:
        if not done:
            done.append(rows)
            act()

    report = view.repair(progress)
    assert done, "nothing was compared"
    return report


def after_repair(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """`act` is called when the synchronous views are corrected, before anything else is done."""
    real = mending.repair

    def repair(*args: object) -> verify.Outcome:
        outcome = real(*args)  # type: ignore[arg-type]
        act()
        return outcome

    monkeypatch.setattr(mending, "repair", repair)


# --- views that are switched or made again meanwhile ---


def test_a_reader_that_is_switched_during_a_repair_is_not_corrected(db: vt.Database) -> None:
    s, u = db.create_view("s", S), db.create_view("u", OVER_S)

    def act() -> None:
        u.set_refresh("manual")
        write(db, 700)  # it has this with its next step

    assert repaired_beside(s, act).repaired == 0, "nothing was damaged"
    u.refresh()
    check(u)


def test_a_view_that_is_switched_during_its_repair_is_not_corrected(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = db.create_view("s", S)
    real, done = mending.repair, []

    def repair(*args: object) -> verify.Outcome:
        if not done:
            done.append(1)
            s.set_refresh("manual")  # after somebody has looked at its mode
            write(db, 700)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(mending, "repair", repair)
    assert s.repair().ok
    s.refresh()
    check(s)


def test_a_reader_that_is_being_made_again_is_not_corrected(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    s = db.create_view("s", S)
    db.create_view("u", OVER_S)
    registered, go = threading.Event(), threading.Event()
    real = build.first_contents

    def first_contents(*args: object) -> Iterator[object]:
        registered.set()
        assert go.wait(WAIT_S_MAX)
        yield from real(*args)  # type: ignore[arg-type]

    maker = threading.Thread(target=lambda: db.create_view("u", OVER_S))

    def act() -> None:
        db.drop_view("u")
        monkeypatch.setattr(build, "first_contents", first_contents)
        maker.start()
        assert registered.wait(WAIT_S_MAX)

    try:
        repaired_beside(s, act)
    finally:
        go.set()
        maker.join()
    check(db.view("u"))


def test_a_view_that_is_switched_before_the_oracle_is_asked(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    s = db.create_view("s", S)
    real, done = verify.Repair._next, []

    def next_(self: verify.Repair) -> str | None:
        found = real(self)
        if found is None and not done:
            done.append(1)
            s.set_refresh("manual")
            write(db, 700)
        return found

    monkeypatch.setattr(verify.Repair, "_next", next_)
    assert s.repair().ok


def test_a_deferred_view_that_becomes_sync_during_its_repair_is_repaired(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = db.create_view("d", S, refresh="manual")
    falsify(db, "d")
    write(db, 4)
    d.refresh()
    assert not d.verify().ok
    real, done = mending.verify, []

    def compared(*args: object) -> verify.Outcome:
        found = real(*args)  # type: ignore[arg-type]
        if not done:
            done.append(1)
            d.set_refresh("sync")
        return found

    monkeypatch.setattr(mending, "verify", compared)
    report = d.repair()
    assert report.ok and report.repaired
    check(d)


def test_a_deferred_reader_that_is_dropped_does_not_fail_a_repair(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = db.create_view("s", S)
    db.create_view("d", OVER_S, refresh="manual")
    falsify(db, "s")
    write(db, 4)
    after_repair(monkeypatch, lambda: db.drop_view("d"))
    assert s.repair().repaired == 1


def test_a_deferred_reader_that_is_made_just_before_a_correction(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = db.create_view("s", S)
    falsify(db, "s")
    real = mending.repair

    def repair(*args: object) -> verify.Outcome:
        db.create_view("d", OVER_S, refresh="manual")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(mending, "repair", repair)
    assert s.repair().repaired == 1
    db.view("d").refresh()
    check(db.view("d"))


# --- deferred views above those that are corrected: they were right, and stay so ---


def test_a_deferred_view_above_one_that_is_corrected_on_the_way(db: vt.Database) -> None:
    s = db.create_view("s", S)
    u = db.create_view("u", "SELECT cat, n, cost + 0 AS cost FROM s")
    d = db.create_view("d", "SELECT SUM(cost) AS n FROM u", refresh="manual")
    write(db, 500)
    d.refresh()
    falsify(db, "u")
    write(db, 501)
    d.refresh()  # its watermark is above the damage, of which it was not told
    assert not u.verify().ok
    assert s.repair().repaired == 1
    check(s)
    check(u)
    d.refresh()
    check(d)


def test_a_step_right_after_a_correction_does_not_take_it_in(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    s = db.create_view("s", S)
    d = db.create_view("d", "SELECT SUM(cost) AS n FROM s", refresh="manual")
    falsify(db, "s")
    write(db, 501)
    d.refresh()
    shown: list[int] = []

    def act() -> None:
        d.refresh()  # what the refresher does by itself for a view with an interval
        shown.append(d.rows()[0].n)

    after_repair(monkeypatch, act)
    assert s.repair().repaired == 1
    assert shown == [db.sql("SELECT SUM(e.cost) AS n FROM e JOIN p ON e.p = p.id")[0].n]


def test_a_crash_right_after_a_correction(db: vt.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = db.create_view("s", S)
    d = db.create_view("d", "SELECT SUM(cost) AS n FROM s", refresh="manual")
    falsify(db, "s")
    write(db, 501)
    d.refresh()
    db._engine.checkpoint()
    without = shutil.ignore_patterns("socket")
    after_repair(monkeypatch, lambda: shutil.copytree(tmp_path / "db", tmp_path / "crashed", ignore=without) and None)
    assert s.repair().repaired == 1
    with vt.connect(tmp_path / "crashed", ltms=1) as crashed:
        check(crashed.view("s"))
        crashed.view("d").refresh()
        check(crashed.view("d"))


# --- verify ---


def test_verify_in_the_moment_in_which_a_view_becomes_sync(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had the new tables, and the horizon of before."""
    d = db.create_view("d", S, refresh="manual")
    write(db, 500)
    write(db, 501)
    d.refresh()
    reports: list[vt.VerifyReport] = []
    read, go = threading.Event(), threading.Event()
    real_pin, real_modes = Horizon.pin, Ltm._adopt_modes

    def pin(self: Horizon, reader: int) -> int:
        if threading.current_thread() is not verifier or read.is_set():
            return real_pin(self, reader)
        while True:  # as it is, with a switch of threads after the first line
            at = self.durable_ts
            read.set()
            assert go.wait(WAIT_S_MAX)
            self.pins[reader] = at
            if at == self.durable_ts:
                return at

    def modes(self: Ltm, tables: Tables) -> None:
        if not verifier.is_alive() and not read.is_set() and not tables.views["d"].view.deferred:
            verifier.start()
            assert read.wait(WAIT_S_MAX)
        real_modes(self, tables)

    verifier = threading.Thread(target=lambda: reports.append(d.verify()))
    monkeypatch.setattr(Horizon, "pin", pin)
    monkeypatch.setattr(Ltm, "_adopt_modes", modes)
    d.set_refresh("sync")
    for cost in (1, 2, 3, 77, 78):
        with db.transaction() as tx:
            tx.update("e", 500, {"cost": cost})
    go.set()
    verifier.join()
    assert reports[0].ok, reports[0].differences
