"""Rows of 100 KB in a cluster: whatever goes from process to process is in pages that are bounded by bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from viewtide.ltm.two_phase.pages import PAGE_BYTES_MAX

ROWS = 150
BODY = "x" * 100_000
#: Of one transaction.
BATCH = 20
#: A page, and the row that fills it; far more than that is in the table.
MESSAGE_BYTES_MAX = PAGE_BYTES_MAX + 2**20
assert ROWS * len(BODY) > 2 * MESSAGE_BYTES_MAX


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        opened.cluster.message_bytes_max = MESSAGE_BYTES_MAX
        yield opened


@pytest.fixture(scope="module")
def db(cluster: TestCluster) -> vt.Database:
    db = cluster.database()
    db.create_table("owners", {"id": int, "name": str}, key="id")
    db.create_table("docs", {"id": int, "owner": int, "body": str}, key="id", indexes=["owner"])
    db.create_view("late", "SELECT owner, COUNT(*) AS n, MAX(body) AS body FROM docs GROUP BY owner", refresh="manual")
    with db.transaction() as tx:
        tx.insert("owners", [{"id": number, "name": f"owner {number}"} for number in (1, 2)])
    for first in range(0, ROWS, BATCH):
        with db.transaction() as tx:
            some = range(first, min(first + BATCH, ROWS))
            tx.insert("docs", [{"id": number, "owner": 1, "body": BODY} for number in some])
    return db


def test_rows_are_scanned_and_read_by_key_and_by_index(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.scan("docs")] == list(range(ROWS))
        assert [row["id"] for row in snapshot.scan("docs", start=7, stop=90, limit=70)] == list(range(7, 77))
        assert all(row == {"id": n, "owner": 1, "body": BODY} for n, row in enumerate(snapshot.find("docs", owner=1)))
        assert len(snapshot.get_many("docs", list(range(ROWS)))) == ROWS


def test_a_view_and_an_index_are_made_of_them(db: vt.Database) -> None:
    db.create_index("docs", "body")
    db.create_view("named", "SELECT d.id, o.name, d.body FROM docs d JOIN owners o ON d.owner = o.id")
    assert len(db.view("named").rows()) == ROWS
    assert db.view("named").verify().ok
    db.drop_view("named")


def test_a_transaction_looks_them_up(db: vt.Database) -> None:
    """All rows of an owner, for a view that has his name."""
    joined = "SELECT o.name, COUNT(d.body) AS n FROM owners o JOIN docs d ON d.owner = o.id GROUP BY o.name"
    db.create_view("names", joined)
    with db.transaction() as tx:
        tx.update("owners", 1, {"name": "other"})
    assert db.view("names").rows() == [{"name": "other", "n": ROWS}]
    assert db.view("names").verify().ok


def test_a_deferred_view_is_refreshed_from_them(db: vt.Database) -> None:
    view = db.view("late")
    view.refresh()
    assert view.rows() == [{"owner": 1, "n": ROWS, "body": BODY}]
    assert view.verify().ok


def test_they_change_their_owner(cluster: TestCluster, db: vt.Database) -> None:
    docs = db._node.engine.ltm.tables.by_name["docs"].table.id
    for target in cluster.ltms:
        cluster.move(docs, f"{target}/1")
        with db.snapshot() as snapshot:
            assert [row["id"] for row in snapshot.scan("docs")] == list(range(ROWS))
