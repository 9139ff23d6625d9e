"""Deferred views of a cluster that look into an index of another deferred view: its entries follow between two levels
of a step, at the version of the step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from tests.unit.test_cluster_repair import damage, entries

#: The rows of the inner view are found by what they show, not by their key.
SAME = (
    "SELECT s.product, p.id AS other FROM (SELECT product, SUM(cost) AS total FROM events GROUP BY product) s "
    "JOIN products p ON p.price = s.total"
)
TOTALS = "SELECT product, SUM(cost) AS total FROM events GROUP BY product"
ON_TOTALS = "SELECT t.product, p.id AS other, p.name FROM totals t LEFT JOIN products p ON p.price = t.total"
#: The other way round: their first contents are made from products, and look into the index that is new with them.
INTO_INNER = f"SELECT p.id, s.product FROM products p JOIN ({TOTALS}) s ON s.total = p.price"
INTO_FOUND = "SELECT p.id, t.product FROM products p LEFT JOIN found t ON t.total = p.price"


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture(scope="module")
def db(cluster: TestCluster) -> vt.Database:
    db = cluster.database()
    db.create_table("products", {"id": int, "price": int, "name": str}, key="id")
    db.create_table("events", {"id": int, "product": int, "cost": int}, key="id")
    write(db, Random(1), 5)
    return db


def write(db: vt.Database, random: Random, transactions: int) -> None:
    for _ in range(transactions):
        with db.transaction() as tx:
            for _ in range(4):
                number = random.randrange(12)
                tx.upsert("events", {"id": number, "product": number % 5, "cost": random.randrange(4)})
                tx.upsert("products", {"id": number, "price": random.randrange(6), "name": f"{number}"})
            gone = random.randrange(12)
            if tx.get("events", gone) is not None:
                tx.delete("events", gone)


def check(db: vt.Database, *names: str) -> None:
    for name in names:
        verified = db.view(name).verify()
        assert verified.ok, verified


def test_an_inner_view_has_an_index_that_follows_the_steps(db: vt.Database) -> None:
    view = db.create_view("same", SAME, refresh="manual")
    start = view.rows()
    check(db, "same")
    random = Random(2)
    for _ in range(4):
        write(db, random, 3)
        view.refresh()
        check(db, "same")
    assert list(view.changes(since=start.token))
    view.set_refresh("sync")
    write(db, random, 3)
    check(db, "same")
    view.set_refresh("manual")
    write(db, random, 3)
    view.refresh()
    check(db, "same")
    db.drop_view("same")


def test_a_correction_reaches_the_indexes_also_if_nothing_else_has_changed(db: vt.Database) -> None:
    sums = db.create_view("sums", TOTALS, refresh="manual")
    on_sums = db.create_view("on_sums", ON_TOTALS.replace("totals", "sums"), refresh="manual")
    right = entries(db)
    damage(db, "sums", "taken")
    sums.refresh()
    assert not sums.verify().ok and entries(db) != right
    report = sums.repair()
    assert report.ok and report.repaired
    assert entries(db) == right
    check(db, "sums", "on_sums")
    write(db, Random(4), 3)
    on_sums.refresh()
    check(db, "sums", "on_sums")
    db.drop_view("sums", cascade=True)


def test_a_view_that_is_there_gets_an_index_with_the_view_that_needs_it(db: vt.Database) -> None:
    totals = db.create_view("totals", TOTALS, refresh="manual")
    random = Random(3)
    write(db, random, 3)
    view = db.create_view("on_totals", ON_TOTALS, refresh="manual")
    check(db, "totals", "on_totals")
    for _ in range(4):
        write(db, random, 3)
        view.refresh()
        assert totals.status().watermark == view.status().watermark
        check(db, "totals", "on_totals")
    with pytest.raises(vt.ProgrammingError, match="looks into an index"):
        totals.set_refresh("sync")
    db.drop_view("on_totals")
    totals.set_refresh("sync")
    write(db, random, 2)
    check(db, "totals")


@pytest.mark.parametrize("sql", [INTO_INNER, INTO_FOUND])
def test_the_first_contents_of_a_view_are_looked_up_in_an_index_that_is_new_with_it(db: vt.Database, sql: str) -> None:
    found = db.create_view("found", TOTALS, refresh="manual")
    random = Random(5)
    write(db, random, 3)
    view = db.create_view("into_it", sql, refresh="manual")
    assert view.rows()
    check(db, "found", "into_it")
    for _ in range(2):
        write(db, random, 3)
        view.refresh()
        check(db, "into_it")
    db.drop_view("into_it")
    db.drop_view(found.name)
