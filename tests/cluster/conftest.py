"""One cluster for all tests that leave it as they found it: its start takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

import viewtide as vt
from tests.postgres import postgres
from viewtide.cluster_client import ClusterClient
from viewtide.development import Development

__all__ = ["postgres"]


@pytest.fixture(scope="package")
def _running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Development]:
    made = Development.up(tmp_path_factory.mktemp("cluster"), 3, 2, storage="hbase")
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def hbase_cluster(_running_cluster: Development) -> Iterator[Development]:
    """Three LTMs and two view managers on HBase. Whoever was killed is started again, and tables go with the test."""
    yield _running_cluster
    for name in _running_cluster.processes:
        _running_cluster.start(name)
    _running_cluster.await_ready()
    with vt.connect(f"zk://{_running_cluster.zookeeper}") as db:
        drop_all(db)


@pytest.fixture
def cluster_client(hbase_cluster: Development) -> Iterator[ClusterClient]:
    with closing(hbase_cluster.client()) as client:
        yield client


def drop_all(db: vt.Database) -> None:
    """In one change: each takes a round through the cluster."""
    if db.tables():
        db.sql(f"DROP TABLE {', '.join(db.tables())} CASCADE")
