"""A cluster whose rows and commit logs are in HBase: nothing is in its processes that is not there, too."""

from __future__ import annotations

import pytest

import viewtide
from viewtide.coordinator.cluster.directory import LTM
from viewtide.dev_cluster import DevelopmentHbase
from viewtide.development import Development, role_of
from viewtide.ltm.hbase_client import Hbase, ScanOf

from .running import wait_for

pytestmark = pytest.mark.slow

ROWS = 60


def prices(cluster: Development) -> dict[bytes, bytes]:
    """As any client of HBase reads them: by the text of their ids."""
    client = Hbase(DevelopmentHbase.attach(cluster.directory / "hbase").thrift)
    try:
        if not client.table_exists(b"viewtide:sales"):
            return {}
        rows = list(client.scan(b"viewtide:sales", ScanOf(b"", b""), 1_000))
    finally:
        client.close()
    columns = [{value.qualifier: value.value for value in row.values if value.family == b"a"} for row in rows]
    return {each[b"id"]: each[b"price"] for each in columns}


def test_every_process_can_be_killed(hbase_cluster: Development) -> None:
    cluster = hbase_cluster
    with viewtide.connect(f"zk://{cluster.zookeeper}") as database:
        database.create_table("sales", {"id": int, "shop": str, "price": int}, key="id")
        database.create_view("by_shop", "SELECT shop, SUM(price) AS price, COUNT(*) AS n FROM sales GROUP BY shop")
        for number in range(ROWS):
            sell(database, number)
        wanted = {str(n).encode(): str(10 * n).encode() for n in range(ROWS)}

        def stored() -> bool:
            # A checkpoint has what is older than some timestamp: the next transaction draws one.
            sell(database, ROWS - 1)
            return prices(cluster) == wanted

        wait_for("a checkpoint", stored)
    # All of them: whoever comes next finds everything in HBase.
    for name in [name for name in cluster.processes if role_of(name) == LTM]:
        cluster.kill(name)
    for name in cluster.processes:
        cluster.start(name)
    # The dead ones' sessions have to end first.
    with wait_for("an answer", lambda: _connected(cluster)) as database:
        rows = wait_for("rows", lambda: _answered(database))
        assert [row["price"] for row in rows] == [10 * n for n in range(ROWS)]
        assert database.view("by_shop").get("b") == {
            "shop": "b",
            "price": sum(range(10, 10 * ROWS, 20)),
            "n": ROWS // 2,
        }
        assert database.view("by_shop").verify().ok


def sell(database: viewtide.Database, number: int) -> None:
    database.run(lambda tx: tx.upsert("sales", {"id": number, "shop": "ab"[number % 2], "price": 10 * number}))


def _connected(cluster: Development) -> viewtide.Database | None:
    try:
        return viewtide.connect(f"zk://{cluster.zookeeper}")
    except viewtide.Unavailable:
        return None


def _answered(database: viewtide.Database) -> list[viewtide.Row]:
    try:
        with database.snapshot() as snapshot:
            return list(snapshot.scan("sales"))
    except viewtide.Unavailable:
        return []
