"""Samples of the random tests of views, on a cluster of three LTMs and two view managers on HBase: the same bodies as
embedded (`tests/properties`). Keys lie in all three LTMs, and a view manager is killed now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest

import viewtide as vt
from tests.postgres import Postgres
from tests.properties import deferred_histories, test_views_postgres
from tests.properties.sql_cases import Case, Write
from tests.properties.sql_views import case
from viewtide import remote_links
from viewtide.cluster_client import ClusterClient
from viewtide.coordinator.cluster.directory import LTM
from viewtide.development import Development, role_of
from viewtide.ltm.tables import Tables

from ..conftest import SOAK
from .conftest import drop_all
from .running import AGAIN_S_MAX, again

pytestmark = pytest.mark.slow

#: A change of the catalog is several rounds through the cluster, and each case makes a dozen of them.
VIEW_CASES = 200 if SOAK else 4
HISTORIES = 200 if SOAK else 2
#: On a machine that does much else.
TIMEOUT_S = 240 * max(VIEW_CASES, HISTORIES)


class Places:
    """Where the tables of a case are, and how they go when it is over."""

    def __init__(self, cluster: Development, client: ClusterClient) -> None:
        self.cluster, self.client = cluster, client

    def open(self) -> vt.Database:
        return vt.connect(f"zk://{self.cluster.zookeeper}")

    def spread(self, tables: Sequence[str]) -> None:
        """Each table is in another LTM."""
        ltms = [name for name in self.cluster.processes if role_of(name) == LTM]
        for place, table in enumerate(tables):
            target, ranges = ltms[place % len(ltms)], self.client.map()
            if ranges.process(ranges.owner(self.client._bounds(table, (), ())[0])) != target:
                self.client.move(table, (), (), target)

    def close(self, db: vt.Database) -> None:
        drop_all(db)
        db.close()


@pytest.fixture
def places(hbase_cluster: Development, cluster_client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> Places:
    # Nobody who serves clients is killed here: one that says nothing for seconds waits for the processor.
    monkeypatch.setattr(remote_links, "LOST_S", AGAIN_S_MAX)
    return Places(hbase_cluster, cluster_client)


class RunBesidePostgres(test_views_postgres.Run):
    def __init__(self, made: Case, server: Postgres, seen: test_views_postgres.Seen, places: Places) -> None:
        self.places = places
        super().__init__(made, server, seen, sampled=True)

    def _open(self) -> vt.Database:
        return self.places.open()

    def _close(self) -> None:
        self.places.close(self.db)

    def _create_tables(self) -> None:
        super()._create_tables()
        self.places.spread([table.name for table in self.case.tables])

    def _transaction(
        self, step: Sequence[Write], expected: dict[str, test_views_postgres.TextRows], *, inside: bool
    ) -> vt.Error | None:
        return again(lambda: super(RunBesidePostgres, self)._transaction(step, expected, inside=inside))


class RunInAllModes(deferred_histories.Run):
    """What is inside the node of an embedded database is not here: instead, processes are killed."""

    def __init__(self, made: Case, seed: int, seen: deferred_histories.Seen, places: Places) -> None:
        self.places = places
        super().__init__(made, seed, seen, None)

    @contextlib.contextmanager
    def _limits(self) -> Iterator[None]:
        yield

    def _connect(self) -> None:
        self.db = self.places.open()

    def _close(self) -> None:
        self.places.close(self.db)

    def _tables(self) -> Tables:
        tables = self.places.client.tables()
        assert tables is not None
        return tables

    def _checkpoint(self) -> None:
        """LTMs make theirs when they like."""

    def _transact(self, step: Sequence[Write]) -> int | None:
        return again(lambda: super(RunInAllModes, self)._transact(step))

    def _catch_up(self, name: str, token: vt.Token) -> None:
        again(lambda: super(RunInAllModes, self)._catch_up(name, token))

    def _act(self) -> None:
        again(lambda: super(RunInAllModes, self)._act())

    def _command(self) -> None:
        """One of the view managers, if the other one is there."""
        name, other = self.rng.sample(("vm-1", "vm-2"), 2)
        if other in self.places.client.status().processes:
            self.places.cluster.kill(name)
            self.places.cluster.start(name)
            self.seen.commands += 1


@pytest.mark.timeout(TIMEOUT_S)
def test_views_have_the_rows_of_postgres(places: Places, postgres: Postgres) -> None:
    seen = test_views_postgres.Seen()
    for number in range(VIEW_CASES):
        RunBesidePostgres(case(number), postgres, seen, places)()
    assert seen.views + seen.refused > VIEW_CASES and seen.rows > seen.steps


@pytest.mark.timeout(TIMEOUT_S)
def test_at_every_watermark_all_copies_of_a_view_are_equal(places: Places) -> None:
    seen = deferred_histories.Seen()
    for seed in range(HISTORIES):
        RunInAllModes(deferred_histories.plain_case(seed, seed), seed, seen, places)()
    assert seen.histories == HISTORIES and seen.compared > 30 * HISTORIES
    assert seen.behind and seen.switches and seen.commands
