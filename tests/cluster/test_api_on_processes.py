"""The API on a real cluster: three LTM processes, two view managers, ZooKeeper and HBase; one LTM is killed."""

from __future__ import annotations

from collections import Counter

import pytest

import viewtide as vt
from viewtide.development import Development
from viewtide.remote import RemoteDatabase

from .running import again

pytestmark = pytest.mark.slow

BY_CATEGORY = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id "
    "GROUP BY p.category"
)


def serving(cluster: Development, db: vt.Database) -> str:
    """The process that serves a client."""
    assert isinstance(db, RemoteDatabase)
    address = db._remote.links.target.address
    client = cluster.client()
    try:
        return next(name for name, each in client.status().processes.items() if each.clients == address)
    finally:
        client.close()


class Mirror:
    """Keeps a copy of a view by its changes; what is not known any more is read again."""

    def __init__(self, view: vt.View) -> None:
        self._view = view
        self.changes_count = 0
        self._read()

    def _read(self) -> None:
        result = self._view.rows()
        self.rows, self._token = Counter(tuple(row.values()) for row in result), result.token

    def follow(self) -> None:
        try:
            for change in self._view.changes(since=self._token):
                for row, times in change.rows:
                    self.rows[tuple(row.values())] += times
                self._token = change.token
                self.changes_count += 1
        except vt.OperationalError as error:
            assert "not known to the cluster any more" in error.message
            self._read()
        self.rows = +self.rows


def test_a_cluster_goes_on_when_the_process_that_serves_a_client_is_killed(hbase_cluster: Development) -> None:
    cluster = hbase_cluster
    with vt.connect(f"zk://{cluster.zookeeper}") as db:
        db.create_table("products", {"id": int, "category": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        with db.transaction() as tx:
            tx.insert("products", [{"id": number, "category": "ab"[number % 2]} for number in range(10)])
            tx.insert("events", [{"id": number, "product": number % 10, "cost": number} for number in range(40)])
        db.create_view("by_category", BY_CATEGORY)
        db.create_view("local", BY_CATEGORY, layout="local")
        db.create_view("late", BY_CATEGORY, refresh="200ms")
        with db.transaction() as tx:
            assert tx.get("events", 7) == {"id": 7, "product": 7, "cost": 7}
            tx.update("events", 7, {"cost": 700})
        assert db.view("by_category").get("b")["cost"] == sum(range(1, 40, 2)) - 7 + 700
        late = db.view("late")
        assert again(lambda: late.get("b", at_least=tx.token))["cost"] == sum(range(1, 40, 2)) - 7 + 700
        mirrors = [Mirror(db.view(name)) for name in ("by_category", "late", "local")]
        for number in range(60, 80):
            with db.transaction() as tx:
                tx.insert("events", {"id": number, "product": number % 10, "cost": 1})
        again(lambda: late.rows(at_least=tx.token))
        for mirror in mirrors:
            mirror.follow()
        assert mirrors[0].changes_count == mirrors[2].changes_count == 20 and 1 <= mirrors[1].changes_count <= 20
        cluster.kill(serving(cluster, db))
        for number in range(100, 120):
            with db.transaction() as tx:
                tx.insert("events", {"id": number, "product": 1, "cost": 1})
        assert db.view("by_category").get("b")["n"] == 50
        assert again(lambda: late.get("b", at_least=tx.token))["n"] == 50
        assert db.view("local").rows() == db.view("by_category").rows()
        for mirror, name in zip(mirrors, ("by_category", "late", "local"), strict=True):
            mirror.follow()
            assert mirror.rows == Counter(tuple(row.values()) for row in db.view(name).rows())
        assert all(db.view(name).verify().ok for name in ("by_category", "late", "local"))
