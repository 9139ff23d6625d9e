"""`v.repair()` on a cluster: corrections are transactions like any others, of deferred views between two steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from tests.unit.test_verify import SMALL, VIEWS, _fill, _hidden, _other
from viewtide.changetables.keys import table_range
from viewtide.changetables.plan import Contribution
from viewtide.coordinator.cluster.mending import ClusterRepair, RepairedMeanwhile
from viewtide.coordinator.verify import Snapshot
from viewtide.ltm.reading import NEWEST
from viewtide.ltm.tables import ViewRows

#: One of every kind; some are made from others, and some look into an index of another one.
NAMES = ("groups", "filtered", "plain", "bounds", "several", "without", "top", "full_", "sub_top", "sub_max", "twice")


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture(scope="module")
def shop(cluster: TestCluster) -> vt.Database:
    """Every test that damages it also repairs it."""
    database = cluster.database(1)
    _fill(database, *NAMES)
    return database


def rows_of(db: vt.Database, name: str) -> ViewRows:
    return db._node.engine.ltm.tables.views[name]


def repairing(db: vt.Database, name: str) -> ClusterRepair:
    return ClusterRepair(db._node.engine, db._node.refresher, name, None, SMALL)  # type: ignore[arg-type]


def stored(db: vt.Database, view: ViewRows, place: int) -> Contribution:
    """A stored row as the one contribution that would make it."""
    states = list(db._node.engine.ltm.scan(view.versions, *table_range(view.view.id), NEWEST))
    key, state = states[place % len(states)]
    key_count = len(view.plan.key_columns)
    return Contribution(key, state[:key_count], state[key_count:])


def damage(db: vt.Database, name: str, how: str) -> None:
    """As a repair does it, but wrong."""
    view = rows_of(db, name)
    row = stored(db, view, 0)
    if how == "taken":
        wrong = view.plan.negate(row)
    else:
        values = tuple(_other(value) for value in row.key_values)
        wrong = Contribution(view.plan.keys.encode_short(values), values, row.delta)
    with Snapshot(db._node.engine) as snapshot:
        repairing(db, name).contribute(snapshot, view, [wrong])


def entries(db: vt.Database) -> dict[int, list[bytes]]:
    """Of all indexes of views."""
    ltm = db._node.engine.ltm
    found = {each.index.id: each for view in ltm.tables.views.values() for each in view.indexes}
    return {id: [key for key, _ in ltm.scan(each.versions, *table_range(id), NEWEST)] for id, each in found.items()}


@pytest.mark.parametrize("how", ["taken", "added"])
def test_what_differs_is_found_and_mended(shop: vt.Database, how: str) -> None:
    indexed, changed_count = entries(shop), 0
    for name in NAMES:
        before = shop.view(name).rows()
        for damaged in (name, *_hidden(shop, name)):
            if how == "added" and rows_of(shop, damaged).plan.always:
                continue  # there is no other key
            damage(shop, damaged, how)
            changed_count += entries(shop) != indexed
            found = shop.view(name).verify()
            assert not found.ok and found.rows_differing == 1, (name, damaged, found.differences)
            report = shop.view(name).repair()
            assert report.ok and report.repaired >= 1, (name, damaged, report.differences)
            assert report.differences[: len(found.differences)] == found.differences
            assert shop.view(name).rows() == before
            assert entries(shop) == indexed
            for each in shop.views():
                assert shop.view(each).verify().ok, (name, damaged, each)
    assert all(shop.view(name).repair().repaired == 0 for name in NAMES)
    assert changed_count, "one of them has an index"


@pytest.mark.parametrize("name", ["groups", "bounds", "plain", "full_", "top"])
def test_a_deferred_view_shows_it_with_its_next_step(shop: vt.Database, name: str) -> None:
    late = shop.create_view("late", VIEWS[name], refresh="manual")
    above = shop.create_view("above", "SELECT COUNT(*) AS n FROM late", refresh="manual")
    try:
        start, right = late.rows(), shop.view(name).rows()
        for damaged in ("late", *_hidden(shop, "late")):
            damage(shop, damaged, "taken")
            assert late.rows() == start and late.verify().ok, "nobody sees it before a step"
            late.refresh()
            found = late.verify()
            assert not found.ok and found.rows_differing >= 1, (damaged, found.differences)
            # Of a hidden view, what is made from it has taken it in.
            assert found.rows_differing == 1 or damaged != "late", found.differences
            report = late.repair()
            assert report.ok and report.repaired >= 1, (damaged, report.differences)
            assert report.as_of > found.as_of
            assert late.verify().ok and above.verify().ok
            assert sorted(late.rows(), key=repr) == sorted(right, key=repr)
    finally:
        shop.drop_view("late", cascade=True)


def test_views_above_are_mended_after_it(shop: vt.Database) -> None:
    late = shop.create_view("late", "SELECT n, COUNT(*) AS times FROM filtered GROUP BY n", refresh="50ms")
    try:
        damage(shop, "filtered", "taken")
        with shop.transaction() as tx:
            tx.insert("e", {"id": 900, "p": 1, "cost": 3})
        late.rows(at_least=tx.token)
        assert shop.view("filtered").repair().ok
        assert shop.view("twice").verify().ok and late.verify().ok
        assert sorted(late.rows(latest=True), key=repr) == sorted(shop.view("twice").rows(), key=repr)
    finally:
        shop.drop_view("late")
        shop.sql("DELETE FROM e WHERE id = 900")


def test_who_repairs_beside_somebody_else_mends_nothing_twice(shop: vt.Database, cluster: TestCluster) -> None:
    for mode in ("sync", "manual"):
        view = shop.create_view("both_mend", VIEWS["groups"], refresh=mode)
        damage(shop, "both_mend", "taken")
        view.refresh()
        mine, rows = repairing(shop, "both_mend"), rows_of(shop, "both_mend")
        with Snapshot(shop._node.engine, "both_mend") as snapshot:
            correction = stored(shop, rows, 0)
            assert cluster.database(2).view("both_mend").repair().repaired == 1
            with pytest.raises(RepairedMeanwhile, match="by somebody else"):
                mine.contribute(snapshot, rows, [correction])
        assert view.verify().ok
        shop.drop_view("both_mend")


@pytest.mark.parametrize("mode", ["sync", "0ms"])
def test_writers_and_followers_go_on_meanwhile(shop: vt.Database, mode: str) -> None:
    view = shop.create_view("busy_one", "SELECT p, SUM(cost) AS cost, MAX(cost) AS top FROM e GROUP BY p", refresh=mode)
    start = view.rows()
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            with shop.transaction() as tx:
                tx.upsert("e", {"id": 700 + number % 5, "p": number % 4, "cost": number})
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for place in range(3):
            damage(shop, "busy_one", ("taken", "added")[place % 2])
            view.refresh()
            assert view.repair().ok
    finally:
        ended.set()
        writer.join(30)
    view.refresh()
    assert view.verify().ok
    total = {tuple(row.values()): 1 for row in start}
    for change in view.changes(since=start.token):
        for row, times in change.rows:
            total[tuple(row.values())] = total.get(tuple(row.values()), 0) + times
    assert {row for row, times in total.items() if times} == {tuple(row.values()) for row in view.rows()}
    shop.drop_view("busy_one")
    shop.sql("DELETE FROM e WHERE id >= 700")
