"""`Database` over an `InProcessCluster`: for tests of the API on a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from viewtide.changetables.keys import table_range
from viewtide.changetables.rows import row_codec
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import INT
from viewtide.cluster_node import ClusterNode
from viewtide.config import Config
from viewtide.coordinator.cluster.balancer import Balancer, BalanceSettings
from viewtide.coordinator.cluster.catalog_follower import CatalogFollower
from viewtide.coordinator.cluster.coordinator import ClusterCoordinator
from viewtide.coordinator.cluster.requests import Requests
from viewtide.coordinator.vms.cluster_leader import SchedulingLeader
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant
from viewtide.coordinator.vms.cluster_view_manager import ClusterViewManager
from viewtide.coordinator.vms.step_rows import with_steps
from viewtide.database import Database
from viewtide.ltm.catalog import Catalog
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.messages import BOUND, LTMS, MAP, Done, Merge, MoveRange, Split
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.machine import Host, PlainHost
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.participant import RefreshRow
from viewtide.ltm.two_phase.views import refresh_with
from viewtide.ltm.versions import Horizon

from .in_process_cluster import InProcessCluster

#: Ids of tables, indexes and views that have ranges of their own; keys of whole numbers are cut at this one, too.
IDS = range(1, 100)
CUT = 5


def first_map(ltms: int) -> RangeMap:
    starts = [b""]
    for number in IDS:
        table = Table(number, "t", (Column("id", INT, nullable=False),), (0,))
        starts += [table_range(number)[0], row_codec(table).keys.encode((CUT,))]
    names = [f"ltm-{place + 1}/1" for place in range(ltms)]
    logs = tuple(names[place % ltms] for place in range(len(starts)))
    return RangeMap(1, tuple(starts), logs, {}, 0, {name: Hosting(1, (name,)) for name in names})


class TestCluster:
    """`database(k)`: the API in LTM process k."""

    __test__ = False

    def __init__(
        self, ltms: int = 3, managers: int = 2, ranges: RangeMap | None = None, balance: BalanceSettings | None = None
    ) -> None:
        self.cluster = cluster = InProcessCluster()
        self.tables = Tables(with_steps(Catalog()), Horizon())
        self.ltms = [f"ltm-{number}" for number in range(1, ltms + 1)]
        coordinators = [f"{name}.coordinator" for name in self.ltms]
        leaders = [f"{name}.leader" for name in self.ltms]
        cluster.zookeeper.ensure(LTMS)
        cluster.zookeeper.ensure(MAP, (ranges or first_map(ltms)).pack())
        cluster.zookeeper.ensure(BOUND, b"0")

        def participant(host: Host, log: str, oracle: str, refresh: RefreshRow) -> FeedingParticipant:
            return FeedingParticipant(host, log, oracle, refresh, self.tables)

        def manager(host: PlainHost) -> ClusterViewManager:
            number = int(host.name.removeprefix("vm-"))
            return ClusterViewManager(host, number, self.tables, coordinators, leaders)

        def leader(host: PlainHost) -> SchedulingLeader:
            balancer = None if balance is None else Balancer(balance)
            return SchedulingLeader(host, self.tables, coordinators, balancer)

        for name in self.ltms:
            cluster.add(name, lambda host: Member(host, refresh_with(self.tables), participant), with_log=True)
        for name in coordinators:
            cluster.add(name, lambda host: ClusterCoordinator(host, self.tables))
        for name in leaders:
            cluster.add(name, leader)
        for number in range(1, managers + 1):
            cluster.add(f"vm-{number}", manager)
        cluster.start()

    def database(self, ltm: int = 1) -> Database:
        requests = Requests(self.cluster, f"ltm-{ltm}.coordinator")
        return Database(ClusterNode(f"ltm-{ltm}", requests, CatalogFollower(requests), lambda: tuple(self.ltms)))

    def kill(self, ltm: int) -> None:
        name = f"ltm-{ltm}"
        self.cluster.kill(name, f"{name}.coordinator", f"{name}.leader")

    def map(self) -> RangeMap:
        """The newest one that an LTM has."""
        maps: list[RangeMap] = self.cluster.do(
            lambda: [
                process.machine.map
                for process in self.cluster.processes.values()
                if isinstance(process.machine, Member)
            ]
        )
        return max(maps, key=lambda each: each.epoch)

    def move(self, table_id: int, target: str) -> None:
        """All keys of a table, index or view."""
        start, stop = table_range(table_id)
        for log, low, high in list(self.map().owners(start, stop)):
            if log != target:
                self.command(MoveRange(0, low, high, target))
        self.wait_for_map(
            lambda ranges: not ranges.moves and {log for log, _, _ in ranges.owners(start, stop)} == {target}
        )

    def wait_for_map(self, condition: Callable[[RangeMap], bool]) -> None:
        pause = threading.Event()
        for _ in range(2_000):
            if condition(self.map()):
                return
            pause.wait(0.005)
        raise AssertionError("the range map is not as it should be")

    def command(self, command: Split | Merge | MoveRange) -> None:
        """To whoever leads."""
        errors = []
        for name in self.ltms:
            done = self.cluster.ask(f"{name}.leader", command).result(10)
            assert isinstance(done, Done)
            if not done.error:
                return
            errors.append(done.error)
        raise AssertionError(errors)

    def close(self) -> None:
        self.cluster.close()


class ClusterOfItsOwn(ClusterNode):
    """Closes its cluster with it."""

    def __init__(self, cluster: TestCluster) -> None:
        requests = Requests(cluster.cluster, "ltm-1.coordinator")
        super().__init__("memory:", requests, CatalogFollower(requests), lambda: tuple(cluster.ltms))
        self._cluster = cluster

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._cluster.close()


def open_in_cluster(config: Config) -> ClusterOfItsOwn:
    """In the place of `node.open_memory`."""
    return ClusterOfItsOwn(TestCluster(3, config.view_managers))


@contextmanager
def open_cluster(
    ltms: int = 3, managers: int = 2, ranges: RangeMap | None = None, balance: BalanceSettings | None = None
) -> Iterator[TestCluster]:
    cluster = TestCluster(ltms, managers, ranges, balance)
    try:
        yield cluster
    finally:
        cluster.close()
