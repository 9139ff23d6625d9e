"""Views of the local layout: one partial row for each LTM, summed when it is read. Everywhere the same view in the
global layout stands beside it: nothing that is read may differ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt
from viewtide.changetables.keys import key_under, table_range
from viewtide.changetables.plan import Contribution
from viewtide.coordinator.several import SeveralEngine
from viewtide.coordinator.two_phase.attempt import AttemptAt
from viewtide.coordinator.two_phase.partials import placed
from viewtide.ltm.catalog import catalog_from_plain, catalog_to_plain
from viewtide.ltm.partial_rows import all_partials, ranges_of, total
from viewtide.ltm.tables import ViewRows
from viewtide.ltm.two_phase.messages import Prepare
from viewtide.stored import StoredRows, pinned

LTMS = 3
EVENTS = 90
STEPS = 80

#: One of every kind that can be local.
VIEWS = {
    "groups": "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, AVG(e.weight) AS w, SUM(e.price) AS price"
    " FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
    "many": "SELECT product, COUNT(*) AS n FROM events GROUP BY product HAVING COUNT(*) > 3",
    "bare": "SELECT COUNT(*) AS n, SUM(cost) AS cost, AVG(weight) AS w FROM events",
    "plain": "SELECT id, cost, note FROM events WHERE cost > 3",
    "joined": "SELECT e.id, p.category, e.cost FROM events e JOIN products p ON e.product = p.id",
    "distinct_": "SELECT DISTINCT note FROM events",
    "without": "SELECT product FROM events EXCEPT SELECT id FROM products",
    "in_both": "SELECT product FROM events INTERSECT ALL SELECT id FROM products",
    "either": "SELECT id, cost FROM events WHERE cost < 3 UNION ALL SELECT id, 0 FROM products",
    "over_view": "SELECT n, COUNT(*) AS products FROM per_product GROUP BY n",
}


def make(db: vt.Database) -> None:
    db.create_table("products", {"id": int, "category": str}, key="id")
    columns = {"id": int, "product": int, "cost": int, "weight": float, "price": Decimal, "note": str}
    db.create_table("events", columns, key="id", indexes=["product"])
    db.create_view("per_product", "SELECT product, COUNT(*) AS n FROM events GROUP BY product")
    with db.transaction() as tx:
        tx.insert("products", [{"id": number, "category": "abc"[number % 3]} for number in range(9)])


def make_views(db: vt.Database) -> None:
    for name, text in VIEWS.items():
        db.create_view(name, text)
        db.create_view(f"{name}_local", text, layout="local")


def event(number: int, rng: random.Random) -> dict[str, object]:
    note = rng.choice((None, "", "x", "long" * 150))
    return {
        "id": number,
        "product": rng.randrange(11),
        "cost": rng.randrange(9),
        "weight": rng.choice((0.1, 0.2, 1e16, -1e16)),
        "price": Decimal(rng.randrange(100)).scaleb(-2),
        "note": note,
    }


def write(tx: vt.Transaction, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 4))):
        number = rng.randrange(EVENTS)
        if tx.get("events", number) is None:
            tx.insert("events", [event(number, rng)])
        elif rng.random() < 0.4:
            tx.delete("events", number)
        else:
            changes = event(number, rng)
            tx.update(
                "events", number, {name: changes[name] for name in rng.sample(sorted(changes), 2) if name != "id"}
            )
    if rng.random() < 0.1:
        tx.upsert("products", [{"id": rng.randrange(11), "category": rng.choice("abcd")}])


def same(db: vt.Database) -> None:
    """Everything that can be read of them is the same."""
    with db.snapshot() as snapshot:
        for name in VIEWS:
            ours, theirs = snapshot.view(f"{name}_local"), snapshot.view(name)
            rows = theirs.rows()
            assert ours.rows() == rows
            assert ours.scan(limit=3) == theirs.scan(limit=3)
            for row in rows[:20] if name in ("plain", "many") else ():
                key = row[0]
                assert ours.get(key) == theirs.get(key) is not None
                assert ours.scan(start=key, limit=2) == theirs.scan(start=key, limit=2)
                assert ours.scan(stop=key) == theirs.scan(stop=key)
            order = "ORDER BY 1 DESC" if len(theirs._rows.plan.columns) == 1 else "ORDER BY 2, 1 DESC LIMIT 7"
            assert snapshot.sql(f"SELECT * FROM {name}_local {order}") == snapshot.sql(f"SELECT * FROM {name} {order}")
        assert snapshot.view("bare_local").get() == snapshot.view("bare").get()
        assert snapshot.view("groups_local").get("a") == snapshot.view("groups").get("a")
    for name in VIEWS:
        assert db.view(f"{name}_local").rows() == db.view(name).rows()
        report = db.view(f"{name}_local").verify()
        assert report.ok, report


@pytest.fixture(params=[1, LTMS], ids=["one LTM", "three LTMs"])
def db(request: pytest.FixtureRequest) -> Iterator[vt.Database]:
    with vt.connect("memory:", ltms=request.param) as opened:
        yield opened


def rows_of(db: vt.Database, name: str) -> ViewRows:
    return cast(SeveralEngine, db._engine).ltm.tables.views[name]


def partial_states(db: vt.Database, name: str) -> list[list[tuple[object, ...]]]:
    """What is stored in each of the partial rows' places."""
    ltm = cast(SeveralEngine, db._engine).ltm
    at = ltm.horizon.durable_ts
    return [
        [row for _, row in ltm.scan(each.versions, *table_range(each.versions.table_id), at)]
        for each in all_partials(rows_of(db, name))
    ]


# --- what is read ---


@pytest.mark.parametrize("late", [False, True], ids=["views first", "views over rows"])
def test_it_shows_what_the_global_layout_shows(db: vt.Database, late: bool) -> None:
    rng = random.Random(late)
    make(db)
    if not late:
        make_views(db)
    for number in range(STEPS):
        with db.transaction() as tx:
            write(tx, rng)
        if late and number == STEPS // 2:
            make_views(db)
        if number % 40 == 39 and (not late or number > STEPS // 2):
            same(db)
    with db.transaction() as tx:
        for row in tx.scan("events"):
            tx.delete("events", row.id)
    same(db)
    assert db.view("groups_local").rows() == []
    with db.transaction() as tx:
        for number in range(9):
            tx.delete("products", number)
    for name in VIEWS:
        # What all partial rows add up to is nothing, and nothing is left of it where each of them is nothing.
        assert db.view(f"{name}_local").rows() == db.view(name).rows()


def test_a_transaction_sees_its_own_writes(db: vt.Database) -> None:
    rng = random.Random(3)
    make(db)
    make_views(db)
    for _ in range(20):
        with db.transaction() as tx:
            for _ in range(3):
                write(tx, rng)
                for name in VIEWS:
                    assert tx.view(f"{name}_local").rows() == tx.view(name).rows(), name
                assert tx.view("groups_local").get("b") == tx.view("groups").get("b")
                assert tx.sql("SELECT * FROM groups_local") == tx.sql("SELECT * FROM groups")
    same(db)


def test_a_snapshot_stays_as_it_was(db: vt.Database) -> None:
    rng = random.Random(4)
    make(db)
    make_views(db)
    for _ in range(30):
        with db.transaction() as tx:
            write(tx, rng)
    with db.snapshot() as snapshot:
        before = {name: list(snapshot.view(f"{name}_local").rows()) for name in VIEWS}
        for _ in range(30):
            with db.transaction() as tx:
                write(tx, rng)
        assert {name: list(snapshot.view(f"{name}_local").rows()) for name in VIEWS} == before
        assert {name: list(snapshot.view(name).rows()) for name in VIEWS} == before


def test_its_changes_are_those_of_the_global_layout(db: vt.Database) -> None:
    rng = random.Random(5)
    make(db)
    make_views(db)
    with db.transaction() as tx:
        write(tx, rng)
    since = tx.token
    for _ in range(40):
        with db.transaction() as tx:
            write(tx, rng)
    for name in VIEWS:
        local = [(each.token, sorted(map(repr, each.rows))) for each in db.view(f"{name}_local").changes(since)]
        other = [(each.token, sorted(map(repr, each.rows))) for each in db.view(name).changes(since)]
        assert local == other, name
        assert local or name in ("over_view", "without", "in_both"), name


def test_whoever_read_a_row_conflicts_with_whoever_changes_it(db: vt.Database) -> None:
    """Also where the change goes to another partial row than the one that was there."""
    make(db)
    make_views(db)
    rng = random.Random(6)
    with db.transaction() as tx:
        tx.insert("events", [{**event(number, rng), "product": 1, "note": None} for number in range(EVENTS)])
    for read in (
        lambda tx: tx.view("bare_local").get(),
        lambda tx: tx.view("groups_local").rows(),
        lambda tx: tx.sql("SELECT category FROM groups_local WHERE cost > 5"),
    ):
        for number in (0, EVENTS // 2, EVENTS - 1):
            reading = db.transaction()
            reading.__enter__()
            read(reading)
            with db.transaction() as tx:
                tx.update("events", number, {"cost": rng.randrange(100, 1_000_000)})
            reading.upsert("products", [{"id": 100, "category": "z"}])
            with pytest.raises(vt.TransactionConflict):
                reading.commit()


def test_explain_status_and_arrow(db: vt.Database) -> None:
    make(db)
    make_views(db)
    with db.transaction() as tx:
        tx.insert("events", [event(number, random.Random(number)) for number in range(20)])
    tree, _, layout = db.view("groups_local").explain().rpartition("\n")
    assert tree.replace("groups_local", "groups") == db.view("groups").explain()
    partial_rows = 1 + len(rows_of(db, "groups_local").view.partials)
    assert (
        layout
        == ("layout: local, one partial row: there was one LTM", "layout: local, 3 partial rows")[partial_rows // 3]
    )
    assert db.view("groups_local").status().rows == db.view("groups").status().rows
    assert db.view("many_local").rows().to_arrow() == db.view("many").rows().to_arrow()


# --- what is stored ---


def test_rows_of_one_ltm_are_counted_there() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        make(db)
        make_views(db)
        rng = random.Random(7)
        for number in rng.sample(range(EVENTS), EVENTS):
            with db.transaction() as tx:
                tx.insert("events", [{**event(number, rng), "product": 1}])
        counts = [cast(int, state[0]) for (state,) in partial_states(db, "bare_local")]
        assert len(counts) == LTMS and sum(counts) == EVENTS and all(count > 0 for count in counts)
        assert len(partial_states(db, "bare")) == 1


def test_partial_rows_may_be_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is counted where its LTM was when it came, and taken back where it is when it goes."""
    with vt.connect("memory:", ltms=LTMS) as db:
        make(db)
        make_views(db)
        rng = random.Random(8)
        with db.transaction() as tx:  # before the table is divided
            tx.insert("events", [{**event(number, rng), "product": 1} for number in range(EVENTS)])
        with db.transaction() as tx:
            tx.insert("events", [event(EVENTS, rng)])
        for number in range(EVENTS):
            with db.transaction() as tx:
                tx.delete("events", number)
        counts = [cast(int, state[0]) for some in partial_states(db, "bare_local") for state in some]
        assert min(counts) < 0 < max(counts) and sum(counts) == 1
        same(db)
        with db.transaction() as tx:
            tx.delete("events", EVENTS)
        same(db)
        assert db.view("many_local").rows() == []


def test_with_one_ltm_it_is_one_row() -> None:
    with vt.connect("memory:", ltms=1) as db:
        make(db)
        make_views(db)
        assert all(not rows_of(db, f"{name}_local").partials for name in VIEWS)


def participants(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The participants of every attempt from now on."""
    found: list[tuple[str, ...]] = []
    prepare = AttemptAt.prepare

    def counted(self: AttemptAt) -> list[tuple[str, Prepare]]:
        prepared = prepare(self)
        found.append(tuple(sorted(self.prepared)))
        return prepared

    monkeypatch.setattr(AttemptAt, "prepare", counted)
    return found


def count_participants(db: vt.Database, monkeypatch: pytest.MonkeyPatch, layout: str) -> list[int]:
    """Of transactions that each change, delete or insert one row, all over a table; the view joins it with nothing."""
    db.create_table("t", {"id": int, "g": int, "x": int}, key="id")
    db.create_view("v", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g", layout=layout)
    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "g": number % 5, "x": number} for number in range(90)])
    with db.transaction() as tx:
        tx.insert("t", [{"id": 90, "g": 0, "x": 90}])  # now the table is divided
    found = participants(monkeypatch)
    for number in range(90):
        with db.transaction() as tx:
            tx.update("t", number, {"x": 2 * number})
        with db.transaction() as tx:
            tx.delete("t", number)
        with db.transaction() as tx:
            tx.insert("t", [{"id": number, "g": number % 5, "x": number}])
    monkeypatch.undo()
    assert db.view("v").verify().ok
    assert len({log for logs in found for log in logs}) == LTMS
    return [len(logs) for logs in found]


def test_a_writer_of_one_ltm_has_one_participant(monkeypatch: pytest.MonkeyPatch) -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        assert count_participants(db, monkeypatch, "local") == [1] * 270
    with vt.connect("memory:", ltms=LTMS) as db:
        counts = count_participants(db, monkeypatch, "global")
        assert sorted(set(counts)) == [1, 2] and counts.count(2) > len(counts) // 2


@pytest.mark.slow
def test_it_outlives_a_restart_and_other_numbers_of_ltms(db_path: Path) -> None:
    rng = random.Random(9)
    partials = []
    for ltms in (1, LTMS, 2, 1, LTMS + 1):
        with vt.connect(db_path, ltms=ltms) as db:
            if not partials:
                make(db)
                make_views(db)
            partials.append(len(rows_of(db, "bare_local").partials))
            for number in range(30):
                with db.transaction() as tx:
                    write(tx, rng)
                if number == 15:
                    db._engine.checkpoint()  # type: ignore[attr-defined]
            same(db)
    assert partials == [0, LTMS - 1, LTMS - 1, LTMS - 1, LTMS]


@pytest.mark.slow
def test_another_process_reads_it_in_the_store(db_path: Path) -> None:
    """As the tasks of a Spark job do."""
    with vt.connect(db_path, ltms=LTMS) as db:
        make(db)
        make_views(db)
        rng = random.Random(12)
        for _ in range(30):
            with db.transaction() as tx:
                write(tx, rng)
        expected = {name: [tuple(row.values()) for row in db.view(name).rows()] for name in VIEWS}
    for name, rows in expected.items():
        with StoredRows(db_path, f"{name}_local", pinned(db_path, f"{name}_local", 60.0)) as stored:
            parts = stored.divided(stored.whole(), 3)
            assert [row for part in parts for page in stored.pages(part) for row in page] == rows


@pytest.mark.slow
def test_what_is_dropped_leaves_nothing(db_path: Path) -> None:
    with vt.connect(db_path, ltms=LTMS) as db:
        make(db)
        make_views(db)
        for number in random.Random(11).sample(range(EVENTS), EVENTS):
            with db.transaction() as tx:
                tx.insert("events", [event(number, random.Random(number))])
        ids = [each.versions.table_id for each in all_partials(rows_of(db, "plain_local"))]
        engine = cast(SeveralEngine, db._engine)
        engine.checkpoint()
        assert all(engine.ltm.stored_count(*table_range(number), 10) for number in ids)
        db.drop_view("plain_local")
        with db.transaction() as tx:  # so that nobody reads below the drop any more
            tx.delete("events", 0)
        engine.checkpoint()
        assert not any(engine.ltm.stored_count(*table_range(number), 10) for number in ids)
        again = db.create_view("plain_local", VIEWS["plain"], layout="local")
        assert again.rows() == db.view("plain").rows()


def test_a_damaged_partial_row_is_repaired() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        make(db)
        make_views(db)
        rng = random.Random(10)
        for number in rng.sample(range(EVENTS), EVENTS):
            with db.transaction() as tx:
                tx.insert("events", [event(number, rng)])
        engine = cast(SeveralEngine, db._engine)
        view = rows_of(db, "groups_local")
        for each in all_partials(view):
            at = engine.ltm.horizon.durable_ts
            key, state = next(iter(engine.ltm.scan(each.versions, *table_range(each.versions.table_id), at)))
            engine.contribute(each.versions.table_id, [Contribution(key, state[:1], state[1:])])
            assert not db.view("groups_local").verify().ok
            assert db.view("groups_local").repair().repaired == 1
            same(db)


def test_a_bulk_load_is_counted(db_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    with vt.connect(db_path, ltms=LTMS) as db:
        db.create_table("t", {"id": int, "g": int}, key="id")
        db.create_view("v", "SELECT g, COUNT(*) AS n FROM t GROUP BY g", layout="local")
        db.table("t").load(
            [arrow.RecordBatch.from_pydict({"id": range(3_000), "g": [each % 3 for each in range(3_000)]})]
        )
        with db.transaction() as tx:
            tx.delete("t", 2_999)
        assert [row.n for row in db.view("v").rows()] == [1_000, 1_000, 999]
        assert db.view("v").verify().ok


def test_a_catalog_of_an_earlier_version_is_read() -> None:
    """It had views whose layout was local and who had one row; with several LTMs they get the others."""
    with vt.connect("memory:", ltms=1) as db:
        make(db)
        make_views(db)
        plain = catalog_to_plain(db._catalog())
    older = [*plain[:3], [view[:-1] for view in cast("list[list[object]]", plain[3])], plain[4]]

    def frozen(value: object) -> object:
        return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value

    read = catalog_from_plain(frozen(older))
    assert read == catalog_from_plain(frozen(plain))
    assert read.views["bare_local"].layout == "local" and read.views["bare_local"].partials == ()


# --- what is refused, and what is kept in one row ---


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("SELECT product, MIN(cost) AS low FROM events GROUP BY product", "MIN and MAX"),
        ("SELECT id, cost FROM events ORDER BY cost LIMIT 3", "the first rows of an order"),
        ("SELECT product, 100 / SUM(cost) AS x FROM events GROUP BY product", "expressions around aggregates"),
        ("SELECT COUNT(DISTINCT product) AS n FROM events", "a hidden view"),
        ("SELECT p.id, e.cost FROM products p LEFT JOIN events e ON e.product = p.id", "a hidden view"),
        (
            "SELECT id FROM products WHERE NOT EXISTS (SELECT 1 FROM events WHERE product = products.id)",
            "a hidden view",
        ),
    ],
)
def test_what_needs_the_whole_row_is_kept_in_one(db: vt.Database, definition: str, reason: str) -> None:
    make(db)
    view = db.create_view("v", definition, layout="local")
    twin = db.create_view("twin", definition)
    assert not rows_of(db, "v").view.partials
    last_line = view.explain().splitlines()[-1]
    assert last_line.startswith("layout: local, one partial row") and reason in last_line
    assert "layout" not in twin.explain()
    with db.transaction() as tx:
        tx.insert("events", [{"id": number, "product": number % 3, "cost": number + 1} for number in range(9)])
    assert sorted(map(repr, view.rows())) == sorted(map(repr, twin.rows())) and view.verify().ok


def test_a_deferred_view_has_one_partial_row(db: vt.Database) -> None:
    make(db)
    view = db.create_view("v", VIEWS["bare"], layout="local", refresh="manual")
    assert not rows_of(db, "v").view.partials and "no writer refreshes it" in view.explain()
    for mode in ("20ms", "sync", "manual"):
        view.set_refresh(mode)
    db.drop_view("v")
    view = db.create_view("v", VIEWS["bare"], layout="local")
    if rows_of(db, "v").view.partials:
        with pytest.raises(vt.UnsupportedView, match="a deferred view with partial rows, which 'v' would become"):
            view.set_refresh("manual")
    else:
        view.set_refresh("manual")
    view.set_refresh("sync")


def test_nothing_is_made_from_partial_rows(db: vt.Database) -> None:
    make(db)
    db.create_view("v", VIEWS["many"], layout="local")
    for options in ({}, {"refresh": "manual"}, {"layout": "local"}):
        if not rows_of(db, "v").view.partials:
            db.create_view("w", "SELECT COUNT(*) AS n FROM v", **options)  # type: ignore[arg-type]
            db.drop_view("w")
            continue
        with pytest.raises(
            vt.UnsupportedView, match=r"a view over 'v', which has partial rows .* at line 1, column 27"
        ):
            db.create_view("w", "SELECT COUNT(*) AS n FROM v", **options)  # type: ignore[arg-type]
    assert db.sql("SELECT COUNT(*) AS n FROM v") == [{"n": 0}]  # a query is no view


# --- the parts ---


def view_of(db: vt.Database) -> ViewRows:
    make(db)
    db.create_view("v", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", layout="local")
    return rows_of(db, "v")


def test_ranges_of_partial_rows() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        view = view_of(db)
        ids = [each.versions.table_id for each in all_partials(view)]
        assert ids == [view.view.id, *view.view.partials] and len(ids) == LTMS
        whole = table_range(view.view.id)
        assert [(low, high) for _, low, high in ranges_of(view, *whole)] == [table_range(number) for number in ids]
        low, high = (view.plan.keys.encode((number,)) for number in (3, 7))
        found = [(start, stop) for _, start, stop in ranges_of(view, low, high)]
        assert found == [(key_under(number, low), key_under(number, high)) for number in ids]
        assert list(ranges_of(view, high, low)) == [] == list(ranges_of(view, whole[1], whole[1]))


def test_sums_of_partial_rows() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        plan = view_of(db).plan
        assert total(plan, []) is None is total(plan, [None, None])
        assert total(plan, [(1, 2), None, (1, 3)]) == (1, 5)
        assert total(plan, [(1, 2), (1, -2)]) is None
        assert total(plan, [(1, -2)]) == (1, -2)


def test_where_contributions_go() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        view = view_of(db)
        tables = cast(SeveralEngine, db._engine).ltm.tables
        ids = [each.versions.table_id for each in all_partials(view)]
        items = [Contribution(view.plan.keys.encode((number,)), (number,), (1,)) for number in (1, 2)]

        def owner(key: bytes) -> str:
            return f"ltm-{ids.index(int.from_bytes(key[:4], 'big'))}"

        def ids_near(*logs: str) -> list[int]:
            found = placed([(view.view.id, items)], tables, dict.fromkeys(logs), owner)
            for number, some in found:
                assert [item.key for item in some] == [key_under(number, item.key) for item in items]
                assert [item[1:] for item in some] == [item[1:] for item in items]
            return [number for number, _ in found]

        assert ids_near("ltm-0") == ids[:1] and ids_near("ltm-2") == ids[2:]
        assert ids_near("ltm-1", "ltm-0") == ids[1:2] and ids_near("elsewhere", "ltm-2") == ids[2:]
        assert ids_near("elsewhere") == ids[:1]
        cut = dict(zip((item.key for item in items), ("ltm-0", "ltm-1"), strict=True))
        found = placed(
            [(view.view.id, items)], tables, {"ltm-0": None}, lambda key: cut.get(key, owner(key).replace("1", "0"))
        )
        assert found == [(ids[0], items[:1]), (ids[1], [items[1]._replace(key=key_under(ids[1], items[1].key))])]
