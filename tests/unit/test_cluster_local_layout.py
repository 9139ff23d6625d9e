"""Views of the local layout in a cluster: the leader gives every log partial rows of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from tests.unit.test_local_layout import VIEWS, event, make, make_views, participants, same, write
from viewtide.changetables.keys import table_range
from viewtide.changetables.plan import Contribution
from viewtide.coordinator.cluster.mending import ClusterRepair
from viewtide.coordinator.cluster.partial_places import partial_ids, wanted_move
from viewtide.coordinator.verify import Snapshot
from viewtide.ltm.cluster.messages import MoveRange
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.tables import Tables, ViewRows

LTMS = 3
LOGS = tuple(f"ltm-{number}/1" for number in range(1, LTMS + 1))


def one_range() -> RangeMap:
    """All keys are in one place at first."""
    return RangeMap(1, (b"",), LOGS[:1], {}, 0, {log: Hosting(1, (log,)) for log in LOGS})


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with open_cluster(LTMS, ranges=one_range()) as opened:
        yield opened


def rows_of(db: vt.Database, name: str) -> ViewRows:
    return db._node.engine.ltm.tables.views[name]


def owners(ranges: RangeMap, view: ViewRows) -> list[list[str]]:
    ids = (view.view.id, *view.view.partials)
    return [sorted({log for log, _, _ in ranges.owners(*table_range(number))}) for number in ids]


def wait_until_placed(cluster: TestCluster, *views: ViewRows) -> None:
    cluster.wait_for_map(
        lambda ranges: (
            not ranges.moves and all(sorted(owners(ranges, view)) == [[log] for log in LOGS] for view in views)
        )
    )


def divide(cluster: TestCluster, db: vt.Database, table: str, count: int) -> None:
    """The keys of whole numbers below `count` to all LTMs."""
    rows = db._node.engine.ltm.tables.by_name[table]
    keys = [rows.codec.keys.encode((count * place // LTMS,)) for place in range(1, LTMS)]
    bounds = [table_range(rows.table.id)[0], *keys, table_range(rows.table.id)[1]]
    for place in range(1, LTMS):
        cluster.command(MoveRange(0, bounds[place], bounds[place + 1], LOGS[place]))
        cluster.wait_for_map(lambda ranges: not ranges.moves)


def test_it_shows_what_the_global_layout_shows(cluster: TestCluster) -> None:
    """Also while partial rows and rows move, and after one of the LTMs has died."""
    db, other = cluster.database(1), cluster.database(2)
    rng = random.Random(1)
    make(db)
    with db.transaction() as tx:
        tx.insert("events", [event(number, rng) for number in range(0, 60, 2)])
    make_views(db)
    local = [rows_of(db, f"{name}_local") for name in VIEWS]
    assert [len(view.partials) for view in local] == [LTMS - 1] * len(VIEWS)
    for _ in range(15):
        db.run(lambda tx: write(tx, rng))
    wait_until_placed(cluster, *local)
    divide(cluster, db, "events", 90)
    since = db.run(lambda tx: write(tx, rng)) or db.view("bare").rows().token
    for _ in range(15):
        other.run(lambda tx: write(tx, rng))
    same(db)
    same(other)
    for name in VIEWS:
        ours, theirs = (
            [(each.token, sorted(map(repr, each.rows))) for each in db.view(view).changes(since)]
            for view in (f"{name}_local", name)
        )
        assert ours == theirs
    cluster.kill(3)
    for _ in range(10):
        db.run(lambda tx: write(tx, rng))
    same(db)
    for name in VIEWS:
        db.drop_view(f"{name}_local")


def test_a_writer_of_one_ltm_has_one_participant(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    db = cluster.database(1)
    counts = {}
    for layout in ("local", "global"):
        table, view = f"t_{layout}", f"v_{layout}"
        db.create_table(table, {"id": int, "g": int, "x": int}, key="id")
        with db.transaction() as tx:
            tx.insert(table, [{"id": number, "g": number % 4, "x": number} for number in range(30)])
        db.create_view(view, f"SELECT g, SUM(x) AS x, COUNT(*) AS n FROM {table} GROUP BY g", layout=layout)
        divide(cluster, db, table, 30)
        if layout == "local":
            wait_until_placed(cluster, rows_of(db, view))
        found = participants(monkeypatch)
        for number in range(30):
            with db.transaction() as tx:
                tx.update(table, number, {"x": 7 * number})
        for number in range(30):
            with db.transaction() as tx:
                tx.delete(table, number)
        for number in range(30):
            with db.transaction() as tx:
                tx.insert(table, [{"id": number, "g": number % 4, "x": number}])
        monkeypatch.undo()
        assert db.view(view).verify().ok
        counts[layout] = [len(logs) for logs in found]
    assert counts == {"local": [1] * 90, "global": ([1] * 10 + [2] * 20) * 3}


def test_a_damaged_partial_row_is_repaired(cluster: TestCluster) -> None:
    db = cluster.database(1)
    make(db)
    make_views(db)
    with db.transaction() as tx:
        tx.insert("events", [event(number, random.Random(number)) for number in range(20)])
    view = rows_of(db, "groups_local")
    wait_until_placed(cluster, view)
    engine = db._node.engine
    repairing = ClusterRepair(engine, db._node.refresher, "groups_local", None)  # type: ignore[arg-type]
    with Snapshot(engine) as snapshot:
        key, state = next(iter(snapshot.states(view, *table_range(view.view.id))))
        repairing.contribute(snapshot, view, [Contribution(key, state[:1], state[1:])])
    assert not db.view("groups_local").verify().ok
    assert db.view("groups_local").repair().repaired == 1
    same(db)


# --- where partial rows are ---


def tables_with(db: vt.Database) -> tuple[Tables, ViewRows]:
    make(db)
    db.create_view("v", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", layout="local")
    db.create_view("w", "SELECT product, COUNT(*) AS n FROM events GROUP BY product")
    tables = db._engine.ltm.tables
    return tables, tables.views["v"]


def test_every_log_gets_partial_rows() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        tables, view = tables_with(db)
        ids = (view.view.id, *view.view.partials)
        assert partial_ids(tables) == frozenset(ids) and partial_ids(None) == frozenset()
        ranges = one_range()
        assert wanted_move(ranges, None, list(LOGS)) is None
        for log in LOGS[1:]:
            move = wanted_move(ranges, tables, list(LOGS))
            assert move is not None and move.target == log
            ranges = ranges.begin_move(move.start, move.stop, move.target)
            assert wanted_move(ranges, tables, list(LOGS)) is None  # one after the other
            ranges = ranges.end_move(ranges.moves[0].number)
        assert sorted(owners(ranges, view)) == [[log] for log in LOGS]
        assert wanted_move(ranges, tables, list(LOGS)) is None
        # One more log than partial rows: they stay where they are.
        more = ranges.host("ltm-4/1", "ltm-4/1")
        assert wanted_move(more, tables, [*LOGS, "ltm-4/1"]) is None


def test_partial_rows_go_to_nobody_who_is_dead_and_stay_where_they_were_cut() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        tables, view = tables_with(db)
        move = wanted_move(one_range(), tables, [LOGS[0], LOGS[2]])
        assert move is not None and move.target == LOGS[2]
        ranges = one_range()
        for number in (view.view.id, *view.view.partials):
            start, stop = table_range(number)
            ranges = ranges.begin_move(start + b"\x80", stop, LOGS[1])
            ranges = ranges.end_move(ranges.moves[0].number)
        assert wanted_move(ranges, tables, list(LOGS)) is None
