"""Transactions that are too large for a cluster are refused at once, and change nothing."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from tests.unit.test_cluster_gateway import Gateways
from viewtide import remote_cluster
from viewtide.coordinator.cluster import sizes
from viewtide.coordinator.cluster.engine import ClusterEngine
from viewtide.coordinator.transaction import ABSENT, Request
from viewtide.coordinator.two_phase.messages import Outcome
from viewtide.ltm.batches import MESSAGE_BYTES_MAX
from viewtide.ltm.commit_log.hbase import HBASE_PAYLOAD_BYTES_MAX
from viewtide.remote_cluster import connect_cluster

#: Instead of the real ones: as if everything were two hundred times as small.
PART_BYTES = 100_000
MEASURED_BYTES = 10_000
ROWS_UNCHECKED = 100
AT_ONCE_S = 10.0
WAIT_S_MAX = 20

TOO_LARGE = "the transaction is too large"


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture
def db(cluster: TestCluster) -> Iterator[vt.Database]:
    with closing(cluster.database()) as db:
        yield db
        db.sql(f"DROP TABLE {', '.join(db.tables())} CASCADE")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "PART_BYTES_MAX", PART_BYTES)
    monkeypatch.setattr(sizes, "MEASURED_BYTES_MIN", MEASURED_BYTES)
    monkeypatch.setattr(sizes, "ROWS_UNCHECKED", ROWS_UNCHECKED)


def insert(db: vt.Database, *rows: dict[str, object]) -> None:
    with db.transaction() as tx:
        tx.insert("docs", list(rows))


def ids(db: vt.Database) -> list[object]:
    return [row["id"] for row in db.sql("SELECT id FROM docs ORDER BY id")]


def test_there_is_room_beside_it_in_a_message_and_in_a_record() -> None:
    for takes in (MESSAGE_BYTES_MAX, HBASE_PAYLOAD_BYTES_MAX):
        assert takes > sizes.PART_BYTES_MAX * 1.5
        assert takes > sizes.STEP_PART_BYTES_MAX


def test_a_row_that_is_too_large_is_refused_as_it_is(db: vt.Database) -> None:
    """With the real limit. Characters that take three bytes: what counts is what is sent and stored."""
    db.create_table("docs", {"id": int, "body": str}, key="id")
    began = time.monotonic()
    with pytest.raises(vt.DataError, match=TOO_LARGE) as refused:
        insert(db, {"id": 1, "body": "€" * (sizes.PART_BYTES_MAX // 3 + 1)})
    assert time.monotonic() - began < AT_ONCE_S
    assert f"at most {sizes.PART_BYTES_MAX}" in refused.value.message and "several" in refused.value.hint
    insert(db, {"id": 2, "body": "x" * (sizes.PART_BYTES_MAX * 9 // 10)})
    assert ids(db) == [2]


@pytest.mark.usefixtures("small")
def test_what_rows_were_before_counts(db: vt.Database) -> None:
    db.create_table("docs", {"id": int, "n": int, "body": str}, key="id")
    insert(db, {"id": 1, "n": 0, "body": "x" * (PART_BYTES * 6 // 10)})
    with pytest.raises(vt.DataError, match=TOO_LARGE):
        db.sql("UPDATE docs SET n = 1 WHERE id = 1")
    assert db.sql("SELECT n FROM docs") == [{"n": 0}]
    with pytest.raises(vt.DataError, match=TOO_LARGE):
        insert(db, *({"id": number, "n": 0, "body": "x" * (PART_BYTES // 10)} for number in range(10, 30)))
    assert ids(db) == [1]


@pytest.mark.usefixtures("small")
def test_entries_of_indexes_and_rows_of_views_count(db: vt.Database) -> None:
    """They are with the LTMs that own them."""
    row = {"id": 1, "n": 1, "body": "x" * (PART_BYTES * 7 // 10)}
    db.create_table("docs", {"id": int, "n": int, "body": str}, key="id")
    db.create_table("names", {"n": int, "id": int}, key=["n", "id"])
    with db.transaction() as tx:
        tx.insert("names", [{"n": 1, "id": number} for number in range(5)])
    # Five rows of the view have the body of one.
    db.create_view("named", "SELECT x.n, x.id, d.body FROM docs d JOIN names x ON d.n = x.n")
    with pytest.raises(vt.DataError, match=TOO_LARGE):
        insert(db, row)
    assert ids(db) == [] and db.view("named").rows() == []
    db.drop_view("named")
    insert(db, row)
    assert ids(db) == [1]


@pytest.mark.usefixtures("small")
def test_each_ltm_has_a_part(db: vt.Database) -> None:
    """What is too large for one of them is not for two."""
    db.create_table("docs", {"id": int, "body": str}, key="id")
    body = "x" * (PART_BYTES * 7 // 10)
    with pytest.raises(vt.DataError, match=TOO_LARGE):
        insert(db, {"id": 6, "body": body}, {"id": 7, "body": body})
    insert(db, {"id": 1, "body": body}, {"id": 7, "body": body})
    assert ids(db) == [1, 7]


@pytest.mark.usefixtures("small")
def test_those_that_are_only_together_too_large_are_not(
    cluster: TestCluster, db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator runs several as one; what that cannot be done with is tried alone."""
    db.create_table("docs", {"id": int, "body": str}, key="id")
    engine = db._node.engine
    assert isinstance(engine, ClusterEngine)
    docs = engine.ltm.tables.by_name["docs"]
    refused: list[int] = []
    too_large = sizes._too_large
    monkeypatch.setattr(sizes, "_too_large", lambda size, *rest: refused.append(size) or too_large(size, *rest))
    requests = []
    for number in range(10, 20):
        request = Request(engine.requests.next_tx_id())
        row = (number, "x" * (PART_BYTES * 4 // 10))
        request.writes["docs"] = {docs.codec.keys.encode((number,)): (ABSENT, row, None, True)}
        request.tables["docs"] = docs
        requests.append(request)
    # All at once: the thread of the machines takes them in one turn.
    outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
    cluster.cluster.do(lambda: [engine.commit_later(request, outcomes.put) for request in requests])
    for _ in requests:
        assert engine.commit_ts_of(outcomes.get(timeout=WAIT_S_MAX))
    assert ids(db) == list(range(10, 20)) and refused


@pytest.mark.usefixtures("small")
def test_keys_alone_can_be_too_many(db: vt.Database) -> None:
    """They travel before anything else is known: of what is deleted, and of what was read."""
    db.create_table("docs", {"id": str, "body": str}, key="id")
    keys = [f"{number:0200}" for number in range(PART_BYTES // 200)]
    for first in range(0, len(keys), 100):
        insert(db, *({"id": key, "body": ""} for key in keys[first : first + 100]))
    began = time.monotonic()
    with pytest.raises(vt.DataError, match=TOO_LARGE), db.transaction() as tx:
        for key in keys:
            tx.delete("docs", key)
    with pytest.raises(vt.DataError, match=TOO_LARGE), db.transaction() as tx:
        assert len(tx.get_many("docs", keys)) == len(keys)
        tx.delete("docs", keys[0])
    assert time.monotonic() - began < AT_ONCE_S
    assert len(ids(db)) == len(keys)


@pytest.mark.usefixtures("small")
def test_clients_are_told(cluster: TestCluster, db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways(cluster)
    monkeypatch.setattr(remote_cluster, "serving", gateways.found)
    try:
        with closing(connect_cluster("zookeeper:2181")) as client:
            client.create_table("docs", {"id": int, "body": str}, key="id")
            row = {"id": 6, "body": "x" * (PART_BYTES + 1)}
            with pytest.raises(vt.DataError, match=TOO_LARGE):
                insert(client, row)
            with pytest.raises(vt.DataError, match=TOO_LARGE), client.transaction() as tx:
                assert tx.get("docs", 6) is None
                tx.insert("docs", row)
            assert ids(client) == []
    finally:
        gateways.close()
