"""Views: creating them online, reading them, their state, what depends on what."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

import viewtide as vt
from viewtide.changetables.evaluators.whole import Chosen
from viewtide.changetables.plan import Contribution
from viewtide.coordinator import build
from viewtide.coordinator.embedded import Engine
from viewtide.ltm.driver import Ltm
from viewtide.ltm.versions import NotLoaded

pytestmark = pytest.mark.several_ltms

SUMS = "SELECT category, SUM(cost) AS cost, COUNT(*) AS n, AVG(cost) AS mean FROM events GROUP BY category"
JOINED = (
    "SELECT p.name, SUM(e.cost) AS cost, COUNT(*) AS n"
    " FROM events e JOIN products p ON e.product = p.id GROUP BY p.name"
)


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        _create(opened)
        yield opened


def _create(db: vt.Database) -> None:
    db.create_table("products", {"id": int, "name": str}, key="id")
    db.create_table("events", {"id": int, "product": int, "category": str, "cost": int}, key="id")
    with db.transaction() as tx:
        tx.insert("products", [{"id": i, "name": f"p{i % 2}"} for i in range(4)])
        tx.insert("events", [_event(i) for i in range(12)])


def _event(number: int) -> dict[str, object]:
    return {"id": number, "product": number % 4, "category": f"c{number % 3}", "cost": number}


# --- reading


def test_create_view_returns_the_view_with_its_contents(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    assert isinstance(view, vt.View) and view.name == "sums"
    assert db.views() == ["sums"]
    assert view.get("c1") == {"category": "c1", "cost": 22, "n": 4, "mean": Decimal("5.5")}
    assert view.get("nope") is None
    assert view.get(category="c0") == view.get(("c0",)) == db.view("sums").get("c0")


def test_scan_and_rows(db: vt.Database) -> None:
    view = db.create_view("sums", "SELECT category, COUNT(*) AS n FROM events GROUP BY category")
    rows = [{"category": f"c{i}", "n": 4} for i in range(3)]
    assert view.rows() == view.scan() == rows
    assert view.scan("c1") == rows[1:]
    assert view.scan(stop="c1") == view.scan(limit=1) == rows[:1]
    assert view.scan("c1", "c2") == rows[1:2]
    assert view.scan(limit=0) == view.scan("x") == []
    result = view.rows()
    assert (result.columns, result.rowcount, result.lag_ms) == (("category", "n"), 3, 0.0)


def test_composite_keys_of_views(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT category, product, COUNT(*) AS n FROM events GROUP BY category, product")
    assert view.get(("c1", 1)) == view.get(category="c1", product=1) == {"category": "c1", "product": 1, "n": 1}
    assert view.get(("c1", 77)) is None
    assert [tuple(row.values())[:2] for row in view.scan(("c0", 2), ("c1", 1))] == [("c0", 2), ("c0", 3), ("c1", 0)]


def test_columns_that_a_grouped_primary_key_determines_are_no_part_of_the_key_that_users_give() -> None:
    with vt.connect("memory:") as db:
        db.create_table("people", {"id": int, "name": str, "city": str}, key="id")
        db.create_table("orders", {"id": int, "person": int, "cost": int}, key="id")
        view = db.create_view(
            "spend",
            "SELECT p.name, p.city, p.id, SUM(o.cost) AS cost, MAX(o.cost) AS highest"
            " FROM people p RIGHT JOIN orders o ON o.person = p.id GROUP BY p.id HAVING COUNT(*) < 3",
        )
        with db.transaction() as tx:
            tx.insert("people", [{"id": 1, "name": "ann", "city": "Rome"}, {"id": 2, "name": "bob", "city": "Bonn"}])
            tx.insert("orders", [{"id": 1, "person": 1, "cost": 5}, {"id": 2, "person": 9, "cost": 7}])
            assert tx.view("spend").get(1).cost == 5
        assert view.get(1) == view.get((1,)) == view.get(id=1)
        assert view.get(1) == {"name": "ann", "city": "Rome", "id": 1, "cost": 5, "highest": 5}
        assert view.get(None) == {"name": None, "city": None, "id": None, "cost": 7, "highest": 7}
        assert view.get(2) is None
        with pytest.raises(vt.InterfaceError, match="give") as raised:
            view.get((1, "ann"))
        assert "id" in raised.value.hint

        # Whoever read a group conflicts with a change of it, also if only such a column changes.
        with pytest.raises(vt.TransactionConflict), db.transaction() as tx:
            assert tx.view("spend").get(1).name == "ann"
            db.run(lambda other: other.update("people", 1, {"name": "eve"}))
            tx.insert("orders", {"id": 3, "person": 2, "cost": 1})
        assert view.get(1).name == "eve" and view.verify().ok
        db.run(lambda tx: tx.insert("orders", [{"id": n, "person": 1, "cost": n} for n in (10, 11)]))
        assert view.get(1) is None


def test_a_transaction_reads_no_more_of_a_view_than_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with vt.connect("memory:") as db:
        db.create_table("players", {"id": int, "team": int, "points": int}, key="id")
        db.run(lambda tx: tx.insert("players", [{"id": n, "team": n, "points": 10 * n} for n in range(300)]))
        db.create_view("best", "SELECT id, points FROM players ORDER BY points DESC LIMIT 2")
        db.create_view("teams", "SELECT team, SUM(points) AS points FROM players GROUP BY team")
        ltm, seen = db._node.engine.ltm, []
        states = ltm.states

        def counted(*args: Any) -> Iterator[Any]:
            for item in states(*args):
                seen.append(item)
                yield item

        monkeypatch.setattr(ltm, "states", counted)

        def best_after(other: Callable[[vt.Transaction], object]) -> list[object]:
            with db.transaction() as tx:
                tx.update("players", 298, {"points": 2985})  # it was the second, and is the second again
                tx.delete("players", 299)
                tx.insert("players", {"id": 1000, "team": 1000, "points": 2975})
                best = [row.id for row in tx.view("best").rows()]
                assert [row.team for row in tx.view("teams").scan(limit=2)] == [0, 1]
                assert tx.view("teams").get(1000).points == 2975
                db.run(other)
            return best

        def insert(points: int) -> Callable[[vt.Transaction], object]:
            return lambda tx: tx.insert("players", {"id": 2000 + points, "team": 2000 + points, "points": points})

        assert best_after(insert(2974)) == [298, 1000]  # below them: nothing that was read has changed
        assert len(seen) < 15
        db.run(lambda tx: tx.delete("players", 1000))
        db.run(lambda tx: tx.upsert("players", {"id": 299, "team": 299, "points": 2990}))
        with pytest.raises(vt.TransactionConflict):
            best_after(insert(2980))
        db.run(lambda tx: tx.sql("DELETE FROM players WHERE id <> 298"))
        with pytest.raises(vt.TransactionConflict), db.transaction() as tx:
            assert tx.view("best").rows().rowcount == 1  # there is no second one
            db.run(insert(0))
            tx.update("players", 298, {"points": 1})


def test_a_null_group_is_a_group(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT category, COUNT(*) AS n FROM events GROUP BY category")
    with db.transaction() as tx:
        tx.insert("events", {"id": 100, "cost": 1})
    assert view.get(None) == view.get(category=None) == {"category": None, "n": 1}
    assert view.rows().rowcount == 4


@pytest.mark.parametrize(
    ("freshness"),
    [{"latest": True}, {"max_lag": "200ms"}, {"max_lag": 0}, {"max_lag": 1.5}, {"latest": True, "max_lag": "1s"}],
)
def test_a_synchronous_view_is_always_fresh(db: vt.Database, freshness: dict[str, object]) -> None:
    view = db.create_view("total", "SELECT COUNT(*) AS n FROM events")
    for number in range(100, 110):
        with db.transaction() as tx:
            tx.insert("events", _event(number))
        expected = {"n": 12 + number - 99}
        assert view.get(at_least=tx.token, **freshness) == expected  # type: ignore[arg-type]
        assert view.rows(at_least=tx.token, **freshness) == [expected]  # type: ignore[arg-type]
        scanned = view.scan(at_least=tx.token, **freshness)  # type: ignore[arg-type]
        assert scanned == [expected] and scanned.watermark >= tx.token.commit_ts


def test_a_view_without_group_by_always_has_one_row(db: vt.Database) -> None:
    db.create_table("empty", {"id": int, "x": int}, key="id")
    view = db.create_view("v", "SELECT COUNT(*) AS n, SUM(x) AS x, AVG(x) AS mean, COUNT(x) AS known FROM empty")
    nothing = {"n": 0, "x": None, "mean": None, "known": 0}
    assert view.get() == nothing and view.rows() == [nothing] and view.status().rows == 1
    with db.transaction() as tx:
        assert tx.view("v").get() == nothing
        tx.insert("empty", {"id": 1})
        assert tx.view("v").get() == {**nothing, "n": 1}
    assert view.get() == {**nothing, "n": 1}
    with db.transaction() as tx:
        tx.insert("empty", {"id": 2, "x": 4})
    assert view.get() == {"n": 2, "x": 4, "mean": 4, "known": 1}
    with db.transaction() as tx:
        tx.delete("empty", 1)
        tx.delete("empty", 2)
        assert tx.view("v").rows() == [nothing]
    assert view.get() == nothing and view.rows() == [nothing] and view.verify().ok


def test_a_view_of_plain_rows_is_a_bag(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT category FROM events WHERE cost < 6")
    assert sorted(cast(str, row["category"]) for row in view.rows()) == ["c0", "c0", "c1", "c1", "c2", "c2"]
    assert view.scan(limit=5).rowcount == 5 and view.status().rows == 6
    assert view.get(3) == view.get(id=3) == {"category": "c0"}
    with db.transaction() as tx:
        tx.update("events", 3, {"cost": 6})
        tx.update("events", 4, {"category": "z"})
    assert view.get(3) is None and view.get(4) == {"category": "z"}
    assert view.verify().ok


def test_a_view_goes_to_arrow_and_pandas(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT category, SUM(cost) AS cost FROM events GROUP BY category")
    assert view.to_arrow().to_pylist() == [dict(row) for row in view.rows()]
    assert view.to_pandas()["cost"].sum() == 66


# --- status and the rest


def test_status(db: vt.Database) -> None:
    view = db.create_view("joined", JOINED)
    with db.transaction() as tx:
        tx.insert("events", _event(100))
    status = view.status()
    assert (status.name, status.refresh, status.rows, status.lag_ms) == ("joined", "sync", 2, 0.0)
    assert status.watermark >= tx.token.commit_ts
    assert set(status.tables) == {"events", "products"}
    assert status.sql == JOINED


def test_explain_names_every_look_up_and_its_index(db: vt.Database) -> None:
    planned = db.explain_view(JOINED)
    assert db.views() == []
    view = db.create_view("joined", JOINED)
    text = view.explain()
    for part in ("change of events", "change of products", "primary key (id = ", "index (product = "):
        assert part in text and part in planned
    assert text.splitlines()[-1] == (
        "evaluators: not measured yet (columnar input): rows; not measured yet (row-wise input): rows"
    )
    assert "evaluators" not in planned


def test_verify_reports(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS)
    report = view.verify()
    assert (report.view, report.ok, report.rows_checked, report.differences) == ("sums", True, 3, ())
    assert report.as_of >= view.rows().watermark


def test_verify_finds_a_wrong_row(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT category, COUNT(*) AS n FROM events GROUP BY category")
    ltm = db._engine.ltm
    rows = ltm.tables.views["v"]
    key = rows.plan.key_of("c1")
    stored = ltm.read(rows.versions, key, ltm.horizon.durable_ts)
    assert stored is not None
    wrong = rows.plan.refresh(stored, Contribution(key, ("c1",), (1,) * (len(stored) - 1)))
    with ltm.lock:
        rows.versions.put(key, ltm.horizon.durable_ts, wrong, True)
    report = view.verify()
    assert not report.ok and len(report.differences) == 2


def test_refresh_of_a_synchronous_view(db: vt.Database) -> None:
    view = db.create_view("sums", SUMS, refresh="sync")
    with db.transaction() as tx:
        tx.insert("events", _event(100))
    assert view.refresh() >= tx.token.commit_ts
    view.set_refresh("sync")
    assert view.status().refresh == "sync"


def test_a_database_reopens_with_its_views(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        _create(db)
        for name, sql in {"sums": SUMS, "joined": JOINED, "plain": "SELECT id, cost + 1 AS c FROM events"}.items():
            db.create_view(name, sql)
        with db.transaction() as tx:
            tx.delete("events", 3)
        rows = {name: list(db.view(name).rows()) for name in db.views()}
        texts = {name: (db.view(name).status().sql, db.view(name).explain()) for name in db.views()}
    with vt.connect(db_path) as db:
        assert db.views() == ["sums", "joined", "plain"]
        assert {name: list(db.view(name).rows()) for name in db.views()} == rows
        assert {name: (db.view(name).status().sql, db.view(name).explain()) for name in db.views()} == texts
        with db.transaction() as tx:
            tx.update("products", 1, {"name": "new"})
            tx.insert("events", _event(3))
        assert all(db.view(name).verify().ok for name in db.views())


# --- what depends on what


def test_what_a_view_needs_cannot_be_dropped(db: vt.Database) -> None:
    db.create_view("joined", JOINED)
    db.create_view("other", "SELECT COUNT(*) AS n FROM events")
    drops: list[tuple[Callable[[], None], list[str]]] = [
        (lambda: db.drop_table("products"), ["joined"]),
        (lambda: db.drop_table("events"), ["joined", "other"]),
        (lambda: db.drop_column("events", "cost"), ["joined"]),
        (lambda: db.drop_column("events", "product"), ["joined"]),
        (lambda: db.drop_index("events", "product"), ["joined"]),
    ]
    for drop, dependents in drops:
        with pytest.raises(vt.ProgrammingError) as raised:
            drop()
        assert all(name in str(raised.value) for name in dependents)
        assert raised.value.hint
    assert (db.tables(), db.views()) == (["products", "events"], ["joined", "other"])
    assert db.view("joined").verify().ok
    db.drop_column("events", "category")
    db.drop_view("joined")  # and with it the index that was made for it
    with pytest.raises(vt.ProgrammingError, match="no index"):
        db.drop_index("events", "product")
    db.drop_column("events", "product")
    db.drop_table("products")
    db.drop_view("other")
    db.drop_table("events")
    assert (db.tables(), db.views()) == ([], [])


def test_a_dropped_view_is_gone_and_can_be_made_again(db_path: Path) -> None:
    with vt.connect(db_path) as db:
        _create(db)
        view = db.create_view("v", "SELECT category, COUNT(*) AS n FROM events GROUP BY category")
        db.drop_view("v")
        for use in (view.rows, view.status, view.explain, view.verify, view.refresh, lambda: db.view("v")):
            with pytest.raises(vt.ProgrammingError):
                use()
        with db.transaction() as tx:
            tx.insert("events", _event(100))
        again = db.create_view("v", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", refresh="sync")
        assert view.rows() == again.rows() and again.rows().columns == ("product", "n")
    with vt.connect(db_path) as db:
        assert db.view("v").verify().ok and db.view("v").rows().columns == ("product", "n")
        db.drop_view("v", cascade=True)
    with vt.connect(db_path) as db:
        assert db.views() == []


def test_a_snapshot_does_not_see_a_view_that_came_later(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        snapshot.scan("events")
        db.create_view("v", SUMS)
        with pytest.raises(vt.ProgrammingError):
            snapshot.view("v").rows()
    with db.snapshot() as snapshot:
        assert snapshot.view("v").rows().rowcount == 3


def test_a_transaction_that_is_older_than_a_view_still_changes_it(db: vt.Database) -> None:
    tx = db.transaction()
    tx.insert("events", _event(100))
    tx.delete("events", 1)
    view = db.create_view("v", "SELECT category, SUM(cost) AS cost FROM events GROUP BY category")
    tx.commit()
    assert view.get("c1") == {"category": "c1", "cost": 22 + 100 - 1}
    assert view.verify().ok


def test_a_view_that_cannot_be_computed_leaves_nothing(db: vt.Database) -> None:
    with pytest.raises(vt.DataError) as raised:
        db.create_view("v", "SELECT id, 10 / cost AS share FROM events")
    assert "'v'" in str(raised.value)
    assert db.views() == []
    with db.transaction() as tx:
        tx.insert("events", {"id": 100, "cost": 0})
    with db.transaction() as tx:
        tx.delete("events", 100)
        tx.delete("events", 0)
    assert db.create_view("v", "SELECT id, 10 / cost AS share FROM events").verify().ok


# --- online


@pytest.mark.parametrize("cache_rows", [200_000, 100], ids=["in_memory", "through_the_store"])
def test_views_are_created_while_4_writers_go_on(tmp_path: Path, cache_rows: int) -> None:
    """Right as soon as create_view returns, and at every moment afterwards."""
    with vt.connect(tmp_path / "db", cache_rows=cache_rows) as db:
        db.create_table("products", {"id": int, "name": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "category": str, "cost": int}, key="id")
        with db.transaction() as tx:
            tx.insert("products", [{"id": i, "name": f"p{i % 5}"} for i in range(20)])
            tx.insert("events", [{**_event(i), "product": i % 20} for i in range(1500)])
        stop = threading.Event()
        failures: list[BaseException] = []
        commits = itertools.count()

        def write(number: int) -> None:
            choose = random.Random(number)
            try:
                while not stop.is_set():
                    db.run(_random_writes, choose)
                    next(commits)
            except BaseException as error:
                failures.append(error)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        try:
            for name, sql in {
                "total": "SELECT COUNT(*) AS n, SUM(cost) AS cost FROM events",
                "sums": SUMS,
                "joined": JOINED,
                "plain": "SELECT e.id, p.name FROM events e JOIN products p ON e.product = p.id WHERE e.cost > 500",
            }.items():
                view = db.create_view(name, sql)
                for _ in range(3):
                    report = view.verify()
                    assert report.ok, (name, report.differences[:3])
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert failures == [] and next(commits) > 0
        assert all(db.view(name).verify().ok for name in db.views())
    with vt.connect(tmp_path / "db") as db:
        assert all(db.view(name).verify().ok for name in db.views())


def _random_writes(tx: vt.Transaction, choose: random.Random) -> None:
    for _ in range(choose.randint(1, 3)):
        number = choose.randrange(1600)
        what = choose.random()
        if what < 0.5:
            tx.upsert("events", {**_event(number), "product": choose.randrange(22), "cost": choose.randrange(1000)})
        elif what < 0.8:
            tx.delete("events", number)
        elif what < 0.95:
            tx.update("products", choose.randrange(20), {"name": f"p{choose.randrange(5)}"})
        else:
            tx.upsert("products", {"id": choose.randrange(22), "name": "x"})


@pytest.mark.embedded("looks inside the database of this process")
def test_a_view_is_not_listed_before_it_can_be_read(db: vt.Database) -> None:
    checkpoint, listed = db._engine.checkpoint, []

    def look() -> None:
        listed.append(db.views())
        checkpoint()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(db._engine, "checkpoint", look)
        db.create_view("sums", SUMS)
    assert listed and not any(listed)
    assert db.views() == ["sums"]


@pytest.mark.embedded("looks inside the database of this process")
def test_an_insert_does_not_end_the_pin_of_a_view_that_is_being_computed(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder reads at one timestamp to its end, whatever numbers its readers have."""
    tx = db.transaction()
    monkeypatch.setattr(build, "_builders", itertools.count(tx._reader))
    first_contents = build.first_contents

    def interrupted(engine: Engine, view: str, at: int, chosen: Chosen) -> Iterator[list[Contribution]]:
        engine.checkpoint()
        tx.insert("events", _event(2))  # fails, after a look at the stored row
        with db.transaction() as writer:
            for number in range(12):
                writer.update("events", number, {"cost": 1000})
        engine.checkpoint()
        with db.transaction() as writer:
            writer.update("events", 0, {"cost": 2000})
        engine.checkpoint()
        yield from first_contents(engine, view, at, chosen)

    def insert(*_: object) -> None:
        with pytest.raises(vt.IntegrityError):
            vt.Transaction.insert(tx, "events", _event(2))

    monkeypatch.setattr(tx, "insert", insert)
    monkeypatch.setattr(build, "first_contents", interrupted)
    view = db.create_view("v", "SELECT category, SUM(cost) AS cost FROM events GROUP BY category")
    tx.rollback()
    report = view.verify()
    assert report.ok, report.differences


def _forget(db: vt.Database) -> None:
    """Checkpoint, prune, and keep nothing in memory: what is read next comes from the store."""
    db._engine.checkpoint()
    ltm = db._engine.ltm
    with ltm.lock:
        for versions in ltm.tables.versions.values():
            versions.age()
            versions.age()


def test_an_entry_that_a_writer_and_the_builder_of_an_index_both_make_is_removed_once_and_for_all(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row changes ahead of the builder, a checkpoint stores its entry, the builder makes the entry again. When the
    row changes once more, no older version of the entry may come back."""
    monkeypatch.setattr(build, "PAGE_ROWS", 2)

    def write_then_checkpoint(engine: Engine) -> None:
        monkeypatch.undo()
        with db.transaction() as tx:
            tx.update("events", 9, {"product": 2})
        db._engine.checkpoint()
        with db.transaction() as tx:
            tx.update("events", 11, {"cost": 11})

    monkeypatch.setattr(Engine, "checkpoint_if_due", write_then_checkpoint)
    db.create_index("events", "product")
    view = db.create_view("joined", JOINED)
    with db.transaction() as tx:
        tx.update("events", 9, {"product": 3})
    for _ in range(2):
        _forget(db)
    with db.transaction() as tx:
        tx.update("products", 2, {"name": "other"})
    assert view.get("other") == {"name": "other", "cost": 2 + 6 + 10, "n": 3}
    assert view.verify().ok


def test_a_view_row_that_a_writer_emptied_while_it_was_computed_is_stored(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of the builder a row is deleted and inserted again, so that its view row is empty when a checkpoint stores
    it; then the builder adds its part at the same timestamp. Pruning the empty version must not take the full one."""
    first_contents = build.first_contents

    def interrupted(engine: Engine, view: str, at: int, chosen: Chosen) -> Iterator[list[Contribution]]:
        with db.transaction() as tx:
            tx.delete("events", 5)
        with db.transaction() as tx:
            tx.insert("events", _event(5))
        engine.checkpoint()
        yield from first_contents(engine, view, at, chosen)

    monkeypatch.setattr(build, "first_contents", interrupted)
    view = db.create_view("plain", "SELECT id, cost FROM events")
    for _ in range(2):
        _forget(db)
    assert view.get(5) == {"id": 5, "cost": 5}
    assert view.verify().ok


def test_look_ups_larger_than_the_cache_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one transaction looks up is kept until it has everything, however little the cache holds."""
    load, loads = Ltm.load, itertools.count()

    def counted(self: Ltm, need: NotLoaded) -> None:
        assert next(loads) < 200, "loads the same entries again and again"
        load(self, need)

    with vt.connect("memory:", cache_rows=100) as db:
        _create(db)
        view = db.create_view("joined", JOINED)
        with db.transaction() as tx:
            tx.insert("events", [_event(number) for number in range(12, 800)])
        _forget(db)
        monkeypatch.setattr(Ltm, "load", counted)
        with db.transaction() as tx:
            for number in range(4):
                tx.update("products", number, {"name": "same"})
        assert view.rows() == [{"name": "same", "cost": sum(range(800)), "n": 800}]


def test_a_view_in_a_transaction_is_no_context_manager() -> None:
    """Its end would be that of the whole transaction, and the commit would silently be left out."""
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int}, key="id")
        db.create_view("v", "SELECT COUNT(*) AS n FROM t")
        with db.transaction() as tx:
            assert not hasattr(tx.view("v"), "__exit__")


def test_a_view_row_that_was_stored_while_it_was_computed_does_not_come_back(
    db_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder's versions are not logged, so they may be above the timestamp of the checkpoint that stores them.
    What they supersede must be gone from the store before they are."""
    first_contents = build.first_contents

    def interrupted(engine: Engine, view: str, at: int, chosen: Chosen) -> Iterator[list[Contribution]]:
        with db.transaction() as tx:
            tx.update("t", 1, {"a": 2})
        engine.checkpoint()
        yield from first_contents(engine, view, at, chosen)

    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "a": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "a": 1})
        monkeypatch.setattr(build, "first_contents", interrupted)
        db.create_view("v", "SELECT id, a FROM t")
        with db.transaction() as tx:
            tx.delete("t", 1)
        assert db.view("v").verify().ok
    with vt.connect(db_path) as db:
        report = db.view("v").verify()
        assert report.ok, report.differences


@pytest.mark.parametrize("refresh", ["sync", "manual"])
def test_a_view_of_first_rows_that_no_row_can_be_in(db_path: Path, refresh: str) -> None:
    """What keeps the first rows is not made: nothing is read from it. The view can be opened again without it."""
    sql = "SELECT * FROM (SELECT id, a FROM t ORDER BY a LIMIT 2) AS first WHERE first.id = NULL"
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "a": int}, key="id")
        db.create_view("v", sql, refresh=refresh)
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "a": 1})
    with vt.connect(db_path) as db:
        db.view("v").set_refresh("sync" if refresh == "manual" else "manual")
        assert db.view("v").rows(latest=True) == [] and db.view("v").verify().ok
