"""verify and repair: exactly the rows that were damaged, in bounded memory, while writers go on."""

from __future__ import annotations

import asyncio
import io
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

import viewtide as vt
from viewtide.changetables.evaluators.whole import Chosen
from viewtide.changetables.keys import table_range
from viewtide.changetables.plan import Contribution, ViewPlan
from viewtide.changetables.types import Row
from viewtide.cli import app
from viewtide.coordinator import build
from viewtide.coordinator import verify as machine
from viewtide.coordinator.embedded import Engine
from viewtide.coordinator.verify import Limits, Outcome, repair, verify
from viewtide.ltm.reading import NEWEST
from viewtide.ltm.tables import ViewRows
from viewtide.verify import DIFFERENCES_MAX, Difference, VerifyReport, run_verify

VIEWS = {
    "total": "SELECT COUNT(*) AS n, SUM(cost) AS cost FROM e",
    "groups": "SELECT p.cat, SUM(e.cost) AS cost, COUNT(*) AS n FROM e JOIN p ON e.p = p.id GROUP BY p.cat",
    "filtered": "SELECT p, COUNT(*) AS n FROM e GROUP BY p HAVING COUNT(*) > 2",
    "plain": "SELECT id, cost + 1 AS c FROM e WHERE cost IS NOT NULL",
    "joined": "SELECT e.id, p.cat FROM e JOIN p ON e.p = p.id",
    "bounds": "SELECT p, MIN(cost) AS lo, MAX(cost) AS hi FROM e GROUP BY p",
    "several": "SELECT p, COUNT(DISTINCT cost) AS n, SUM(cost) AS cost FROM e GROUP BY p",
    "distinct_": "SELECT DISTINCT cost FROM e",
    "both": "SELECT cost FROM e INTERSECT SELECT id FROM p",
    "without": "SELECT cost FROM e EXCEPT ALL SELECT id FROM p",
    "united": "SELECT id FROM e UNION ALL SELECT id FROM p",
    "top": "SELECT id, cost FROM e ORDER BY cost DESC LIMIT 3",
    "left_": "SELECT p.id, e.id AS eid FROM p LEFT JOIN e ON e.p = p.id",
    "full_": "SELECT p.id, e.id AS eid FROM p FULL JOIN e ON e.p = p.id",
    "lonely": "SELECT id FROM p WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.p = p.id)",
    "busy": "SELECT id FROM p WHERE id IN (SELECT p FROM e WHERE cost > 1)",
    "sub_top": "SELECT cost, COUNT(*) AS n FROM (SELECT id, cost FROM e ORDER BY cost, id LIMIT 4) q GROUP BY cost",
    "sub_max": "SELECT p.cat, x.hi FROM p JOIN (SELECT p, MAX(cost) AS hi FROM e GROUP BY p) x ON x.hi = p.id",
    "twice": "SELECT n, COUNT(*) AS times FROM filtered GROUP BY n",
}
#: Ranges of a few rows: every view has several.
SMALL = Limits(range_rows=3, page_rows=2, repair_rows=2)


def _fill(db: vt.Database, *names: str) -> None:
    db.create_table("p", {"id": int, "cat": str}, key="id")
    db.create_table("e", {"id": int, "p": int, "cost": int}, key="id")
    for name in names or VIEWS:
        db.create_view(name, VIEWS[name])
    with db.transaction() as tx:
        tx.insert("p", [{"id": i, "cat": f"c{i % 3}"} for i in range(8)])
        tx.insert("e", [{"id": i, "p": i % 6 if i % 7 else None, "cost": i * i % 9} for i in range(24)])
        tx.insert("e", [{"id": 100, "p": 50, "cost": None}])


@pytest.fixture(scope="module")
def shop() -> Iterator[vt.Database]:
    """Every test that damages it also repairs it."""
    with vt.connect("memory:") as db:
        _fill(db)
        yield db


# --- damage


def _view(db: vt.Database, name: str) -> ViewRows:
    return db._engine.ltm.tables.views[name]


def _states(db: vt.Database, name: str) -> list[tuple[bytes, Row]]:
    view = _view(db, name)
    return list(db._engine.ltm.scan(view.versions, *table_range(view.view.id), NEWEST))


def _contribution(view: ViewRows, key: bytes, state: Row) -> Contribution:
    key_count = len(view.plan.key_columns)
    return Contribution(key, state[:key_count], state[key_count:])


def _commit(db: vt.Database, name: str, contributions: list[Contribution]) -> None:
    db._engine.contribute(_view(db, name).view.id, contributions)


def _take(db: vt.Database, name: str) -> None:
    """A row that should be there is not."""
    view = _view(db, name)
    states = _states(db, name)
    stored = _contribution(view, *states[len(states) // 2])
    _commit(db, name, [view.plan.negate(stored)])


def _add(db: vt.Database, name: str) -> None:
    """A row that is like another one, under a key that nothing has."""
    view = _view(db, name)
    stored = _contribution(view, *_states(db, name)[0])
    values = tuple(_other(value) for value in stored.key_values)
    _commit(db, name, [Contribution(view.plan.keys.encode_short(values), values, stored.delta)])


def _other(value: object) -> int | str | None:
    return value + 1000 if isinstance(value, int) else "zz" if isinstance(value, str) else None


def _falsify(db: vt.Database, name: str) -> None:
    """A row that holds something else: of groups another component, of kept rows another output."""
    view = _view(db, name)
    stored = _contribution(view, *_states(db, name)[-1])
    if view.plan.kept.kind in ("groups", "set"):
        delta: Row = (*(0 for _ in stored.delta[1:]), 1)
    else:
        _, *outputs = stored.delta
        delta = (*view.plan.negate(stored).delta, stored.delta[0], *(_other(value) for value in outputs))
    _commit(db, name, [stored._replace(delta=delta)])


DAMAGES: dict[str, Callable[[vt.Database, str], None]] = {"taken": _take, "added": _add, "falsified": _falsify}


def _hidden(db: vt.Database, name: str) -> list[str]:
    return [each.view.name for each in machine._hidden_below(_view(db, name), db._engine.ltm.tables)]


def _contents(db: vt.Database) -> dict[str, list[tuple[bytes, Row]]]:
    return {name: _states(db, name) for name in db._engine.ltm.tables.views}


def _check_all(db: vt.Database, limits: Limits = SMALL) -> None:
    for name in db.views():
        outcome = verify(db._engine, name, None, limits)
        assert outcome.ok, (name, outcome.differences)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("limits", [SMALL, machine.LIMITS], ids=["small_ranges", "one_range"])
def test_exactly_the_damaged_row_is_found_and_repaired(shop: vt.Database, name: str, how: str, limits: Limits) -> None:
    before = _contents(shop)
    engine = shop._engine
    for damaged in (name, *_hidden(shop, name)):
        if how == "added" and _view(shop, damaged).plan.always:
            continue  # there is no other key
        DAMAGES[how](shop, damaged)
        found = verify(engine, name, None, limits)
        assert not found.ok and found.rows_differing == 1, found.differences
        assert 1 <= len(found.differences) <= 2
        expected_where = name if damaged == name else f"{name}: hidden view {damaged}"
        assert {each.where for each in found.differences} == {expected_where}
        repaired = repair(engine, name, None, limits)
        assert repaired.ok and repaired.rows_repaired == repaired.rows_differing == 1, repaired.differences
        assert repaired.differences == found.differences
        assert _contents(shop) == before
        assert verify(engine, name, None, limits).ok
    assert not engine.ltm.horizon.pins


def test_there_are_hidden_views_of_every_kind(shop: vt.Database) -> None:
    """The test above damages them too: values of groups, presences, ordered rows, slices."""
    kinds = {_view(shop, hidden).plan.kept.kind for name in VIEWS for hidden in _hidden(shop, name)}
    assert {"groups", "ordered", "slice"} <= kinds
    assert all(_hidden(shop, name) for name in ("bounds", "several", "left_", "full_", "lonely", "busy", "sub_top"))
    _check_all(shop)


def test_differences_are_what_the_view_shows_and_should_show(shop: vt.Database) -> None:
    _falsify(shop, "total")
    report = shop.view("total").verify()
    [stored, recomputed] = report.differences
    assert stored == Difference((25, 68), 1, 0, "total") and recomputed == Difference((25, 67), 0, 1, "total")
    assert str(stored) == "total: (25, 68) is stored 1 times, recomputed 0 times"
    assert (report.view, report.ok, report.rows_checked, report.repaired) == ("total", False, 1, 0)
    fixed = shop.view("total").repair()
    assert (fixed.ok, fixed.repaired, fixed.differences) == (True, 1, report.differences)
    assert fixed.as_of > report.as_of
    assert shop.view("total").verify().ok


def test_a_difference_that_nobody_sees_is_told_as_it_is_stored(shop: vt.Database) -> None:
    """A presence view counts: whether a key is there twice or three times shows only when rows go."""
    [presence] = _hidden(shop, "lonely")
    _falsify(shop, presence)
    report = shop.view("lonely").verify()
    assert [(len(each.row), each.stored, each.recomputed) for each in report.differences] == [(2, 1, 0), (2, 0, 1)]
    assert report.differences[0].row[0] == report.differences[1].row[0]
    assert cast(int, report.differences[0].row[1]) == cast(int, report.differences[1].row[1]) + 1
    assert shop.view("lonely").repair().repaired == 1
    assert shop.view("lonely").verify().ok


def test_a_repair_goes_on_to_the_views_that_are_made_from_it() -> None:
    with vt.connect("memory:") as db:
        _fill(db, "filtered", "twice")
        view = _view(db, "filtered")
        stored = _contribution(view, *_states(db, "filtered")[0])
        _commit(db, "filtered", [stored._replace(delta=tuple(7 for _ in stored.delta))])
        # Now a transaction tells the view above what the damaged one shows.
        with db.transaction() as tx:
            tx.insert("e", {"id": 1000, "p": stored.key_values[0], "cost": 0})
        assert not db.view("twice").verify().ok
        report = db.view("filtered").repair()
        assert report.ok and report.repaired == report.rows_differing == 5
        assert {each.where for each in report.differences} == {"filtered", "twice"}
        _check_all(db)


def test_a_damaged_hidden_view_is_mended_for_all_that_read_it() -> None:
    """Three views share a presence view; only one of them is repaired by name."""
    with vt.connect("memory:") as db:
        _fill(db, "lonely", "left_")
        db.create_view("lonely_too", "SELECT cat FROM p WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.p = p.id)")
        [presence] = _hidden(db, "lonely")
        assert _hidden(db, "lonely_too") == [presence]
        view = _view(db, presence)
        [stored] = [item for item in (_contribution(view, *each) for each in _states(db, presence))
                    if item.key_values == (2,)]  # fmt: skip
        _commit(db, presence, [view.plan.negate(stored)])
        with db.transaction() as tx:  # both views are told that the key has come
            tx.insert("e", {"id": 1000, "p": 2, "cost": 0})
        assert not db.view("lonely_too").verify().ok
        report = db.view("lonely").repair()
        assert report.ok and report.repaired == report.rows_differing == 4
        assert {each.where for each in report.differences} == {
            f"lonely: hidden view {presence}", "lonely", "lonely_too", "left_"
        }  # fmt: skip
        _check_all(db)


def test_zero_with_a_sign_counts_where_it_is_shown() -> None:
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "x": float, "d": Decimal}, key="id")
        db.create_view("rows_", "SELECT id, x, d FROM t")
        db.create_view("sums", "SELECT x, SUM(x) AS s, SUM(d) AS d FROM t GROUP BY x")
        with db.transaction() as tx:
            tx.insert("t", [{"id": 1, "x": -0.0, "d": Decimal("1.50")}, {"id": 2, "x": 0.0, "d": Decimal("0.0")}])
            tx.insert("t", {"id": 3, "x": float("nan"), "d": Decimal("NaN")})
        with db.transaction() as tx:
            tx.delete("t", 2)
        _check_all(db)
        view = _view(db, "rows_")
        stored = _contribution(view, *_states(db, "rows_")[0])
        _commit(db, "rows_", [stored._replace(delta=(-1, 1, -0.0, Decimal("1.50"), 1, 1, 0.0, Decimal("1.5")))])
        report = db.view("rows_").verify()
        assert report.rows_differing == 1
        assert [repr(each.row) for each in report.differences] == [
            "(1, 0.0, Decimal('1.5'))", "(1, -0.0, Decimal('1.50'))"
        ]  # fmt: skip
        assert db.view("rows_").repair().repaired == 1
        assert repr(db.view("rows_").get(1)["x"]) == "-0.0"  # type: ignore[index]
        _check_all(db)


# --- the oracle


def test_the_oracle_finds_what_the_sums_do_not(shop: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong plan stores what it computes: only another way of computing tells."""
    _falsify(shop, "groups")
    with monkeypatch.context() as patched:
        patched.setattr(machine._Comparison, "differing", lambda *_: iter(()))
        report = shop.view("groups").verify()
        assert not report.ok and len(report.differences) == 2
        assert all(each.where == "groups" for each in report.differences)
        wrong = shop.view("groups").repair()
        assert not wrong.ok and wrong.repaired == 0 and len(wrong.differences) == 2
        assert verify(shop._engine, "groups", None, Limits(oracle_rows=10)).ok, "it is not asked about large tables"
    assert shop.view("groups").repair().repaired == 1


def test_the_oracle_is_not_asked_about_a_view_that_is_large(shop: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(machine, "recompute", lambda *given: asked.append(given) or [])
    assert len(shop.view("united").rows()) == 33
    assert verify(shop._engine, "united", None, Limits(oracle_rows=32)).ok and not asked
    assert not verify(shop._engine, "united", None, Limits(oracle_rows=33)).ok and len(asked) == 1


# --- memory and ranges

ROWS = 600


class Counted:
    """Counts the source rows that go through plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        contribute_from = ViewPlan.contribute_from

        def counted(plan: ViewPlan, part: int, source: int, rows: list[Row]) -> object:
            self.rows += len(rows)
            return contribute_from(plan, part, source, rows)

        monkeypatch.setattr(ViewPlan, "contribute_from", counted)

    def of(self, call: Callable[[], Outcome]) -> tuple[Outcome, int]:
        self.rows = 0
        return call(), self.rows


LARGE_VIEWS = {
    "whole": "SELECT id, a FROM t",
    "by_id": "SELECT id, COUNT(*) AS n, SUM(a) AS a FROM t GROUP BY id",
    "by_group": "SELECT a, COUNT(*) AS n FROM t GROUP BY a",
    "first": "SELECT id, a FROM t ORDER BY a, id LIMIT 5",
    "paired": "SELECT x.id, y.id AS other FROM t x LEFT JOIN t y ON x.a = y.id",
}


@pytest.mark.parametrize("target", ["memory", "directory"])
def test_memory_is_bounded_however_large_the_view(target: str, db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(oracle_rows=100, range_rows=50, page_rows=20, repair_rows=150)
    with vt.connect("memory:" if target == "memory" else db_path, cache_rows=400) as db:
        db.create_table("t", {"id": int, "a": int}, key="id")
        for name, sql in LARGE_VIEWS.items():
            db.create_view(name, sql)
        for first in range(0, ROWS, 100):
            with db.transaction() as tx:
                tx.insert("t", [{"id": i - 300, "a": i * 7 % 400} for i in range(first, first + 100)])
        counted = Counted(monkeypatch)
        for name in LARGE_VIEWS:
            outcome, rows_read = counted.of(lambda name=name: verify(db._engine, name, None, limits))
            assert outcome.ok and outcome.peak_rows <= 100, (name, outcome)
            if name in ("whole", "by_id"):
                assert ROWS <= rows_read <= 2 * ROWS, "each range reads its own part of the source"
        for name in ("whole", "by_group", "first", "paired"):
            # Everything is gone: no stored row says where to cut.
            view = _view(db, name)
            states = _states(db, name)
            _commit(db, name, [view.plan.negate(_contribution(view, *each)) for each in states])
            outcome, rows_read = counted.of(lambda name=name: verify(db._engine, name, None, limits))
            assert not outcome.ok and outcome.rows_differing == len(states), (name, outcome.rows_differing)
            assert len(outcome.differences) == DIFFERENCES_MAX and outcome.peak_rows <= 100
            if name == "whole":
                assert rows_read <= 4 * ROWS
            mended = repair(db._engine, name, None, limits)
            assert mended.ok and mended.rows_repaired == len(states) and mended.peak_rows <= 100
            assert _states(db, name) == states
        # And rows that should not be there.
        extra = [_contribution(_view(db, "whole"), b"", (i, 1, i, 0)) for i in range(5_000, 5_250)]
        keys = _view(db, "whole").plan.keys
        _commit(db, "whole", [item._replace(key=keys.encode_short(item.key_values)) for item in extra])
        outcome = verify(db._engine, "whole", None, limits)
        assert outcome.rows_differing == 250 and outcome.peak_rows <= 100
        assert repair(db._engine, "whole", None, limits).rows_repaired == 250
        _check_all(db, limits)


def test_keys_of_all_kinds_are_cut_at_the_right_places() -> None:
    """Composite, NULL, negative and long keys; the windows of the sources must leave no row out."""
    chance = random.Random(4)
    with vt.connect("memory:") as db:
        db.create_table("a", {"s": str, "n": int, "x": int}, key=("s", "n"))
        db.create_table("b", {"d": Decimal, "f": float, "s": str, "n": int}, key=("d", "f"), indexes=[("s", "n")])
        sqls = [
            "SELECT s, n, x FROM a",
            "SELECT s, COUNT(*) AS c FROM a GROUP BY s",
            "SELECT s, x, COUNT(*) AS c FROM a GROUP BY s, x",
            "SELECT a.x, b.d, b.f FROM a LEFT JOIN b ON a.s = b.s AND a.n = b.n",
            "SELECT a.x, b.d, b.f FROM a FULL JOIN b ON a.s = b.s AND a.n = b.n",
            "SELECT d, f, s FROM b",
            "SELECT d, SUM(f) AS f FROM b GROUP BY d",
            "SELECT x, s FROM a ORDER BY x DESC, s LIMIT 4",
            "SELECT v.s, v.c, b.d FROM v1 v JOIN b ON v.s = b.s",
        ]
        for number, sql in enumerate(sqls):
            db.create_view(f"v{number}", sql)
        texts = ["", "\x00", "\x01z", "a", "ab", "é", "k" * 150, "k" * 150 + "a", "k" * 190, "k" * 190 + "b"]
        pairs = [(text, n) for text in texts for n in (-5, 0, 3)]
        with db.transaction() as tx:
            tx.insert("a", [{"s": s, "n": n, "x": chance.choice([None, 1, 2])} for s, n in pairs])
            for number in range(40):
                s, n = chance.choice([*pairs, ("none", 9), (None, None)])
                tx.insert("b", {"d": Decimal(number - 20) / 4, "f": chance.choice([-1.5, 0.0, 2.0]), "s": s, "n": n})
        for limits in (Limits(0, 1, 1), Limits(0, 2, 3), Limits(0, 7, 2), Limits(0, 1_000, 5)):
            _check_all(db, limits)
        before = _contents(db)
        for name in db.views():
            view = _view(db, name)
            gone = [view.plan.negate(_contribution(view, *each)) for each in before[name]][::2]
            _commit(db, name, gone)
            assert verify(db._engine, name, None, Limits(0, 2, 3)).rows_differing == len(gone)
            assert repair(db._engine, name, None, Limits(0, 2, 3)).rows_repaired == len(gone)
            assert _contents(db) == before


def test_when_too_much_of_a_hidden_view_differs_the_views_above_are_left_alone(shop: vt.Database) -> None:
    hidden = _hidden(shop, "bounds")[0]
    view = _view(shop, hidden)
    states = _states(shop, hidden)
    _commit(shop, hidden, [view.plan.negate(_contribution(view, *each)) for each in states])
    outcome = verify(shop._engine, "bounds", None, Limits(corrections_max=4))
    assert not outcome.ok and outcome.rows_differing == 5
    whole = verify(shop._engine, "bounds")
    assert whole.rows_differing == len(states) and {each.where for each in whole.differences} == {
        f"bounds: hidden view {hidden}"
    }
    assert shop.view("bounds").repair().repaired == len(states)
    _check_all(shop)


def test_progress_never_goes_back_and_ends_at_the_end(shop: vt.Database) -> None:
    for name in VIEWS:
        for work in (shop.view(name).verify, shop.view(name).repair):
            seen: list[tuple[int, int]] = []
            report = work(lambda done, expected, seen=seen: seen.append((done, expected)))
            assert report.ok
            assert seen and seen[-1][0] == seen[-1][1] > 0
            assert all(done <= expected for done, expected in seen) and sorted(seen) == seen


def test_the_snapshot_is_released_whatever_happens(shop: vt.Database) -> None:
    def fail(done: int, expected: int) -> None:
        assert len(shop._engine.ltm.horizon.pins) == 1
        raise ZeroDivisionError

    for work in (shop.view("groups").verify, shop.view("groups").repair):
        with pytest.raises(ZeroDivisionError):
            work(fail)
        assert not shop._engine.ltm.horizon.pins
    assert shop.view("groups").repair().ok, "the next repair is not locked out"


# --- durability


def test_a_repair_survives_a_crash(tmp_path: Path) -> None:
    names = ["groups", "plain", "bounds", "top", "lonely", "without"]
    with vt.connect(tmp_path / "db") as db:
        _fill(db, *names)
        contents = _contents(db)
        for name in names:
            _take(db, name)
            _falsify(db, _hidden(db, name)[0] if _hidden(db, name) else name)
    with vt.connect(tmp_path / "db") as db:
        assert not any(db.view(name).verify().ok for name in names), "the damage is stored"
        reports = [db.view(name).repair() for name in names]
        assert all(report.ok for report in reports) and _contents(db) == contents
        shutil.copytree(tmp_path / "db", tmp_path / "crashed", ignore=shutil.ignore_patterns("socket"))
    for path in ("db", "crashed"):
        with vt.connect(tmp_path / path) as db:
            assert _contents(db) == contents
            _check_all(db)
            assert (db.status().replayed > 0) == (path == "crashed")


def test_the_index_of_a_view_follows_a_repair() -> None:
    """A view above looks rows up through the index of a view below."""
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "a": int}, key="id")
        db.create_table("u", {"id": int, "a": int}, key="id")
        db.create_view("low", "SELECT id, a + 1 AS a FROM t")
        db.create_view("high", "SELECT u.id, low.id AS t FROM u JOIN low ON low.a = u.a")
        with db.transaction() as tx:
            tx.insert("t", [{"id": i, "a": i % 3} for i in range(9)])
        _take(db, "low")
        with db.transaction() as tx:
            tx.insert("u", {"id": 1, "a": 2})
        assert len(db.view("high").rows()) == 2
        report = db.view("low").repair()
        assert report.ok and report.repaired == 2
        with db.transaction() as tx:
            tx.insert("u", {"id": 2, "a": 2})
        assert len(db.view("high").rows()) == 6
        _check_all(db)


# --- writers


def test_writers_do_not_disturb_verify_and_repair(db_path: Path) -> None:
    with vt.connect(db_path, cache_rows=300) as db:
        _fill(db)
        some = Limits(range_rows=10, page_rows=20)
        failures: list[BaseException] = []
        stop = threading.Event()
        written = [0] * 4

        def write(number: int) -> None:
            chance = random.Random(number)
            try:
                while not stop.is_set():
                    with db.transaction() as tx:
                        for _ in range(3):
                            id_ = 200 + number + 4 * chance.randrange(40)
                            if chance.random() < 0.4:
                                tx.delete("e", id_)
                            else:
                                p = chance.choice([None, *range(8)])
                                tx.upsert("e", {"id": id_, "p": p, "cost": chance.randrange(9)})
                    written[number] += 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for name in VIEWS:
                outcome = verify(db._engine, name)
                assert outcome.ok, (name, outcome.differences)
            for name in ("groups", "plain", "bounds", "without", "united"):
                _take(db, name)
                _add(db, name)
                found = verify(db._engine, name, None, some)
                assert found.rows_differing == 2, (name, found.differences)
                mended = repair(db._engine, name, None, some)
                assert mended.ok and mended.rows_repaired == 2, (name, mended.differences)
                assert verify(db._engine, name, None, some).ok
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == [] and min(written) > 0
        _check_all(db)
    with vt.connect(db_path) as db:
        _check_all(db, machine.LIMITS)


def test_two_repairs_at_once_mend_a_row_once(shop: vt.Database) -> None:
    _take(shop, "groups")
    _falsify(shop, "joined")
    reports: list[VerifyReport] = []
    threads = [
        threading.Thread(target=lambda name=name: reports.append(shop.view(name).repair()))
        for name in ("groups", "joined") * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.repaired for report in reports) == [0, 0, 0, 0, 1, 1]
    _check_all(shop)


def test_a_view_that_others_are_being_made_from_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new view has looked at the damaged rows already, and would never hear of the repair."""
    with vt.connect("memory:") as db:
        _fill(db, "filtered", "groups")
        _take(db, "filtered")
        first_contents = build.first_contents
        refused = []

        def interrupted(engine: Engine, view: str, at: int, chosen: Chosen) -> Iterator[list[Contribution]]:
            with pytest.raises(vt.TransactionConflict, match="being created from 'filtered'") as caught:
                db.view("filtered").repair()
            refused.append(caught.value.retryable)
            assert db.view("groups").repair().ok
            yield from first_contents(engine, view, at, chosen)

        monkeypatch.setattr(build, "first_contents", interrupted)
        db.create_view("late", "SELECT n, p FROM filtered")
        monkeypatch.undo()
        assert refused == [True]
        assert db.view("filtered").repair().repaired >= 2
        _check_all(db)


def test_a_view_that_is_dropped_meanwhile(shop: vt.Database) -> None:
    with vt.connect("memory:") as db:
        _fill(db, "plain")
        view = db.view("plain")
        dropped = threading.Event()

        def drop(done: int, expected: int) -> None:
            if not dropped.is_set():
                dropped.set()
                db.drop_view("plain")

        assert view.verify(drop).ok, "the snapshot still has it"
        for work in (view.verify, view.repair):
            with pytest.raises(vt.ProgrammingError, match="there is no view 'plain'"):
                work()
    with pytest.raises(vt.InterfaceError, match="closed"):
        view.repair()
    with pytest.raises(vt.TransactionConflict, match="dropped"):
        shop._engine.contribute(10**6, [])


# --- asyncio and the command line


def test_awaitable() -> None:
    async def main() -> None:
        async with await vt.aio.connect("memory:") as db:
            await asyncio.to_thread(_fill, db._database, "groups")
            _take(db._database, "groups")
            seen: list[int] = []
            assert not (await db.view("groups").verify(lambda done, expected: seen.append(done))).ok
            assert seen
            assert (await db.view("groups").repair()).repaired == 1
            assert (await db.view("groups").verify()).ok

    asyncio.run(main())


COMMAND_VIEWS = ["total", "groups", "plain", "top", "lonely"]


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_the_command(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        _fill(db, *COMMAND_VIEWS)
        _falsify(db, "total")
        _take(db, _hidden(db, "lonely")[0])
    code, output = _run(str(db_path), "groups", "plain")
    lines = [[cell.strip() for cell in line.split("|")] for line in output.splitlines()]
    assert code == 0 and lines[0] == ["view", "ok", "rows checked", "differences", "repaired", "ms"]
    assert [line[:5] for line in lines[2:]] == [["groups", "true", "3", "0", "0"], ["plain", "true", "24", "0", "0"]]
    code, output = _run(str(db_path))
    assert (
        code == 1 and "(25, 68) is stored 1 times, recomputed 0 times" in output and "lonely: hidden view ~" in output
    )
    code, output = _run(str(db_path), "--json", "total", "top")
    [total, top] = json.loads(output)
    assert code == 1 and total["name"] == "total" and not total["ok"] and top["ok"]
    assert total["rows_checked"] == total["rows_differing"] == 1 and total["repaired"] == 0
    assert total["differences"][0] == {"where": "total", "row": [25, 68], "stored": 1, "recomputed": 0}
    assert isinstance(total["ms"], int)
    code, output = _run(str(db_path), "--repair", "--json")
    reports = {each["name"]: each for each in json.loads(output)}
    assert code == 0 and list(reports) == COMMAND_VIEWS and reports["total"]["repaired"] == 1
    assert sum(each["repaired"] for each in reports.values()) >= 2
    assert _run(str(db_path))[0] == 0


def test_the_command_refuses_what_is_not_there(tmp_path: Path) -> None:
    code, output = _run(str(tmp_path / "nothing"))
    assert code == 2 and "there is no database in" in output
    assert list(tmp_path.iterdir()) == [], "nothing is created"
    with vt.connect(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, key="id")
    code, output = _run(str(tmp_path / "db"), "v")
    assert code == 1 and "there is no view 'v'" in output
    code, output = _run(str(tmp_path / "db"), "t")
    assert (code, output) == (1, "viewtide: 't' is a table, and this is about views (there are none)\n")
    assert _run(str(tmp_path / "db"), "--json") == (0, "[]\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(shop: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb one shows no bars
    out, err = io.StringIO(), Terminal()
    assert run_verify(shop, ["groups"], repair=False, as_json=False, out=out, err=err)
    assert "groups" in err.getvalue() and "%" in err.getvalue()
    quiet = Terminal()
    assert run_verify(shop, ["groups"], repair=True, as_json=True, out=out, err=quiet)
    assert quiet.getvalue() == ""


def test_many_differences_are_counted_and_the_first_are_shown(shop: vt.Database) -> None:
    view = _view(shop, "plain")
    gone = [view.plan.negate(_contribution(view, *each)) for each in _states(shop, "plain")]
    _commit(shop, "plain", gone)
    out = io.StringIO()
    assert not run_verify(shop, ["plain"], repair=False, as_json=False, out=out, err=io.StringIO())
    assert f"the first {DIFFERENCES_MAX} differences are shown" in out.getvalue()
    report = shop.view("plain").repair()
    assert report.repaired == report.rows_differing == len(gone) and len(report.differences) == DIFFERENCES_MAX
    _check_all(shop)


# --- definitions that have no value


def _dividing(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "g": int, "x": int}, key="id")
    db.create_table("u", {"id": int, "k": int}, key="id")


def test_a_right_view_over_what_cannot_be_computed_is_right() -> None:
    """The inner query has no value for a group that nobody joins with: the view has all its rows, but the oracle, which
    evaluates the inner query whole, has none."""
    sql = "SELECT u.id, q.a FROM u JOIN (SELECT g, 1 / MIN(x) AS a FROM t GROUP BY g) q ON u.k = q.g"
    with vt.connect("memory:") as db:
        _dividing(db)
        view = db.create_view("v", sql)
        with db.transaction() as tx:
            tx.insert("t", [{"id": 1, "g": 1, "x": 1}, {"id": 2, "g": 2, "x": 0}])
            tx.insert("u", {"id": 1, "k": 1})
        assert view.rows() == [{"id": 1, "a": 1}]
        for report in (view.verify(), view.repair()):
            assert report.ok and report.differences == () and report.rows_checked == 1
            assert report.note == "not evaluated by the oracle, too: division by zero"
        out, err = io.StringIO(), io.StringIO()
        assert run_verify(db, ["v"], repair=False, as_json=False, out=out, err=err)
        assert "v: not evaluated by the oracle, too: division by zero" in err.getvalue() + out.getvalue()
        out = io.StringIO()
        assert run_verify(db, ["v"], repair=False, as_json=True, out=out, err=err)
        assert json.loads(out.getvalue())[0]["note"] == report.note
        with db.transaction() as tx:
            tx.delete("t", 2)
        assert view.verify().note == ""


def test_a_view_over_damage_that_has_no_value_says_which_row() -> None:
    with vt.connect("memory:") as db:
        _dividing(db)
        below = db.create_view("below", "SELECT g, 100 / SUM(x) AS share FROM t GROUP BY g")
        above = db.create_view("above", "SELECT share, COUNT(*) AS n FROM below GROUP BY share")
        with db.transaction() as tx:
            tx.insert("t", [{"id": 1, "g": 1, "x": 5}, {"id": 2, "g": 2, "x": 10}])
        view = _view(db, "below")
        key, state = _states(db, "below")[1]
        # No writer can do this, so it is done behind their backs: the sum is 0, the count is not.
        damaged = (*state[:-1], 0)
        assert state[-1] == 10
        view.versions.put_many([(key, state, damaged)], db._engine.ltm.horizon.durable_ts)
        for report in (above.verify(), above.repair()):
            assert not report.ok
            assert [str(each) for each in report.differences] == [
                "above: cannot be computed: view 'below', row (2,): division by zero"
            ]
        assert below.repair().ok and above.repair().ok and above.verify().ok
