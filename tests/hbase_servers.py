"""The real HBase of the tests: one per run, shared by its processes, and servers of their own for those that kill them.

It is started by the first test that needs it and ends by itself after the last process of the run, also if that was
killed. Tests are kept apart by namespaces. Nothing is skipped: without Java or Maven the tests fail and say what to
install (`make test` installs it where it can).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from viewtide.dev_cluster import DevelopmentHbase, running, shared
from viewtide.ltm.hbase_client import Hbase

#: Short, so that tests which kill a region server need not wait long; with less, busy machines kill them, too.
CRASH_SESSION_MS = 4_000


@pytest.fixture(scope="session")
def hbase_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevelopmentHbase]:
    """`zookeeper`, `thrift` (Thrift 2) and `thrift1`: their addresses."""
    base = tmp_path_factory.getbasetemp()
    # With xdist the folder of the run is the one above that of the process.
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared(run / "hbase") as servers:
        yield servers


@pytest.fixture
def zookeeper_path(hbase_servers: DevelopmentHbase) -> str:
    """The servers, and a path of the test's own there."""
    return f"{hbase_servers.zookeeper}/t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def hbase_client(hbase_servers: DevelopmentHbase) -> Iterator[Hbase]:
    client = Hbase(hbase_servers.thrift)
    yield client
    client.close()


@pytest.fixture
def hbase_namespace(hbase_client: Hbase) -> Iterator[str]:
    """A namespace of the test's own; what is in it goes with it."""
    namespace = f"t{uuid.uuid4().hex[:12]}"
    hbase_client.create_namespace(namespace)
    yield namespace
    hbase_client.drop_namespace(namespace)


@pytest.fixture(scope="package")
def own_hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevelopmentHbase]:
    """ZooKeeper, master, two region servers and the Thrift servers as processes of their own, to be killed. Whoever
    kills one starts it again."""
    with running(tmp_path_factory.mktemp("hbase"), separate=True, session_ms=CRASH_SESSION_MS) as servers:
        yield servers


def is_whole(servers: DevelopmentHbase) -> bool:
    """Whether both region servers are there. One that ended by itself, because the machine stood still for longer than
    its session, is started again."""
    for name in servers.dead:
        servers.revive(name)
    return len(servers.region_servers()) == 2
