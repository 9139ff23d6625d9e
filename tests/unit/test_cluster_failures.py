"""Deferred views of a cluster that cannot be computed for a while: they stay at their watermark and say why, and all
others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from viewtide import freshness
from viewtide.coordinator.cluster import refreshing

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"
RATIO = "SELECT g, SUM(v) / SUM(w) AS r FROM e GROUP BY g"
#: Both sides of where ranges begin, and all slots of a step.
MANY = range(30)


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture
def db(cluster: TestCluster) -> vt.Database:
    database = cluster.database(1)
    database.create_table("e", {"id": int, "g": int, "v": int, "w": int}, key="id", indexes=["g"])
    return database


def row(id: int, g: int, v: int, w: int = 1) -> dict[str, int]:
    return {"id": id, "g": g, "v": v, "w": w}


def write(db: vt.Database, *rows: dict[str, int]) -> vt.Token:
    with db.transaction() as tx:
        tx.upsert("e", list(rows))
    return tx.token


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to that")


def shown(view: vt.View, **how: object) -> list[tuple[object, ...]]:
    return [tuple(found.values()) for found in view.rows(**how)]  # type: ignore[arg-type]


def test_a_view_that_cannot_be_computed_is_retried_and_blocks_nobody(db: vt.Database) -> None:
    broken = db.create_view("broken", "SELECT id, 10 / w AS y FROM e", refresh="20ms")
    good = db.create_view("good", SUMS, refresh="20ms")
    write(db, row(1, 1, 6, 2))
    assert shown(broken, latest=True) == [(1, 5)]
    before = broken.status().watermark
    token = write(db, *(row(id, 2, 1) for id in MANY), row(99, 2, 5, 0))
    with pytest.raises(vt.StaleRead, match=r"'broken' could not be refreshed: .*division by zero") as caught:
        broken.get(2, at_least=token)
    assert caught.value.hint
    with pytest.raises(vt.StaleRead, match="division by zero"):
        broken.rows(latest=True)
    with pytest.raises(vt.StaleRead, match="division by zero"):
        broken.refresh()
    assert shown(broken) == [(1, 5)]
    until(lambda: broken.status().failures >= 2)
    status = broken.status()
    assert status.state == "failing" and "division by zero" in status.failure
    assert status.watermark < token.commit_ts and status.watermark >= before
    assert shown(good, at_least=token) == [(2, 35, 31)]
    assert (good.status().state, good.status().failures) == ("live", 0)
    assert good.rows(at_least=write(db, row(7, 3, 7))).rowcount == 2
    # The data is mended: nothing else has to be done.
    mended = write(db, row(99, 2, 5, 5))
    assert len(shown(broken, at_least=mended)) == len(MANY) + 1
    status = broken.status()
    assert (status.state, status.failures, status.failure) == ("live", 0, "")
    assert broken.verify().ok and good.verify().ok


def test_a_step_that_fails_at_a_higher_level_leaves_nothing_below(db: vt.Database) -> None:
    """What its lower levels had written, also in indexes, is as it was."""
    sums = db.create_view("sums", SUMS, refresh="manual")
    ratio = db.create_view("ratio", "SELECT e.id, 10 / s.s AS r FROM e JOIN sums s ON e.g = s.g", refresh="manual")
    write(db, row(1, 1, 2), row(2, 2, 5))
    ratio.refresh()
    before = shown(sums)
    followed = sums.changes(since=sums.rows().token)
    for _ in range(3):
        write(db, row(3, 1, -2), row(4, 3, 5), row(2, 3, 1), *(row(id, id, 1) for id in range(10, 30)))
        with pytest.raises(vt.StaleRead, match="division by zero"):
            ratio.refresh()
        assert shown(sums) == before and shown(ratio) == [(1, 5), (2, 2)]
        assert sums.verify().ok and ratio.verify().ok
    write(db, row(3, 1, 3))
    ratio.refresh()
    assert shown(sums)[:3] == [(1, 5, 2), (3, 6, 2), (10, 1, 1)]
    assert shown(ratio)[:4] == [(1, 2), (2, 1), (3, 2), (4, 1)]
    assert sums.verify().ok and ratio.verify().ok
    # Who follows the changes hears of the step that was published, and of no other.
    assert len(list(followed)) == 1


def test_what_a_view_shows_is_computed_before_it_is_published(db: vt.Database) -> None:
    view = db.create_view("v", RATIO, refresh="manual")
    least = db.create_view("least", "SELECT g, 10 / MIN(w) AS x FROM e GROUP BY g", refresh="manual")
    write(db, row(1, 1, 6, 2))
    assert (view.refresh(), least.refresh()) > (0, 0)
    write(db, *(row(id, id % 3, 4, 2) for id in MANY), row(99, 1, 5, -20), row(98, 2, 5, 0))
    for each, found in ((view, [(1, 3)]), (least, [(1, 5)])):
        with pytest.raises(vt.StaleRead, match="division by zero"):
            each.refresh()
        assert shown(each) == found
    write(db, row(99, 1, 5, 5), row(98, 2, 5, 5))
    view.refresh()
    least.refresh()
    assert shown(view) == [(0, 2), (1, 1), (2, 1)] and shown(least) == [(0, 5), (1, 5), (2, 5)]
    assert view.verify().ok and least.verify().ok


def test_a_view_that_cannot_be_computed_stays_deferred(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT id, 10 / w AS y FROM e", refresh="manual")
    write(db, *(row(id, 2, 1) for id in MANY), row(99, 1, 1, 0))
    for _ in range(2):
        with pytest.raises(vt.StaleRead, match="division by zero"):
            view.set_refresh("sync")
    assert (view.status().refresh, view.status().state) == ("manual", "failing")
    # The catalog can be changed as before.
    other = db.create_view("other", SUMS, refresh="manual")
    other.set_refresh("sync")
    write(db, row(99, 1, 1, 5))
    view.set_refresh("sync")
    assert view.status().refresh == "sync" and view.verify().ok
    assert len(view.rows()) == len(MANY) + 1


def test_groups_that_cannot_be_computed_do_not_become_others(db: vt.Database) -> None:
    """They would be refreshed once more, up to just the timestamp from which they are others."""
    sums = db.create_view("sums", SUMS, refresh="manual", group="both")
    db.create_view("broken", "SELECT id, 10 / w AS y FROM e", refresh="manual", group="both")
    write(db, row(1, 1, 1, 0))
    above = "SELECT n, COUNT(*) AS m FROM sums GROUP BY n"
    with pytest.raises(vt.StaleRead, match="division by zero"):
        db.create_view("above", above, refresh="manual")
    with pytest.raises(vt.StaleRead, match="division by zero"):
        db.create_view("third", SUMS, refresh="manual", group="both")
    db.create_view("apart", SUMS, refresh="manual")
    # Without the one that cannot be computed the others can.
    db.drop_view("broken")
    db.create_view("above", above, refresh="manual")
    sums.refresh()
    assert shown(db.view("above")) == [(1, 1)]


def test_all_of_a_group_can_be_dropped_while_it_cannot_be_computed(db: vt.Database) -> None:
    view = db.create_view("v", "SELECT id, 10 / w AS y FROM e", refresh="10ms")
    write(db, row(1, 1, 1, 0))
    until(lambda: view.status().failures > 0)
    db.drop_view("v")
    assert db.views() == []


def test_a_snapshot_over_several_groups_says_which_cannot_be_computed(db: vt.Database) -> None:
    db.create_view("broken", "SELECT id, 10 / w AS y FROM e", refresh="manual")
    db.create_view("good", SUMS, refresh="manual")
    write(db, row(1, 1, 1, 0))
    with (
        pytest.raises(vt.StaleRead, match=r"'broken' could not be refreshed: .*division by zero"),
        db.snapshot(views=["broken", "good"]),
    ):
        pass


def test_without_a_view_manager_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing, "NOBODY_MS_MAX", 300)
    monkeypatch.setattr(refreshing, "SILENT_MS_MAX", 0)
    monkeypatch.setattr(freshness, "READ_MS_MAX", 300.0)
    with open_cluster(managers=0) as cluster:
        db = cluster.database(1)
        db.create_table("e", {"id": int, "g": int, "v": int, "w": int}, key="id", indexes=["g"])
        view = db.create_view("v", SUMS, refresh="20ms")
        token = write(db, row(1, 1, 1))
        with pytest.raises(vt.StaleRead, match="'v' is not refreshed: no view manager of") as caught:
            view.refresh()
        assert "viewtide view-manager" in caught.value.hint and caught.value.retryable
        with pytest.raises(vt.StaleRead, match="no view manager of the cluster answers"):
            view.get(1, at_least=token)
        assert shown(view) == []
