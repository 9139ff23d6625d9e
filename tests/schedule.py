"""Which process of a run with several has which tests, and when.

The first process has those that wait more than they compute (for servers, sessions and leases), the others compute
meanwhile; whoever has nothing left takes what the others have not begun. What takes longest is begun first, so that the
end of a run is many short tests and not a long one on one process. The tests of a file share what it sets up, so they
stay together, but for files of long tests.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

#: In this order.
WAITING = (
    "tests/cluster/test_failover.py", "tests/cluster/", "tests/hbase/", "tests/contract/", "tests/unit/test_bench_",
)  # fmt: skip
#: Those that take minutes or many seconds, the longest first; then all others.
LONG = (
    "tests/spark/", "tests/properties/test_views_postgres.py", "tests/properties/test_histories.py",
    "tests/unit/test_sim_", "tests/crash/", "tests/properties/", "tests/unit/test_api_on_cluster.py",
)  # fmt: skip
#: Their tests may be in different processes.
APART = (
    "tests/unit/test_sim_", "tests/properties/test_views_postgres.py", "tests/properties/test_deferred.py",
    "tests/unit/test_api_on_cluster.py", "tests/crash/test_kill.py",
)  # fmt: skip
#: Marked `slow` as a whole: they start processes and clusters, run histories, or take seconds for another reason.
SLOW = (
    "tests/crash/", "tests/properties/", "tests/unit/test_balancer.py", "tests/unit/test_bench",
    "tests/unit/test_checkpoint_process.py", "tests/unit/test_cluster_", "tests/unit/test_connecting.py",
    "tests/unit/test_demo.py", "tests/unit/test_files.py", "tests/unit/test_long_expressions.py",
    "tests/unit/test_open_socket.py", "tests/unit/test_remembered.py", "tests/unit/test_served.py",
    "tests/unit/test_sim_", "tests/unit/test_transport_keys.py",
)  # fmt: skip
#: They share a session of Spark, whose start takes longer than most of them.
TOGETHER = ("tests/spark/",)


def waits(name: str) -> bool:
    return name.startswith(WAITING)


def is_slow(name: str) -> bool:
    return name.startswith(SLOW)


def turn(name: str) -> int:
    """Tests begin in this order; those of equal turns as they were found."""
    order = (*WAITING, *LONG)
    return next((place for place, prefix in enumerate(order) if name.startswith(prefix)), len(order))


def unit(name: str) -> str:
    """Tests of equal units are in one process."""
    for prefix in TOGETHER:
        if name.startswith(prefix):
            return prefix
    return name if name.startswith(APART) else name.partition("::")[0]


class Schedule(LoadScopeScheduling):
    """xdist's own, with these units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_first = node is self.nodes[0]
        wanted = next((name for name in self.workqueue if waits(name) == is_first), None)
        if wanted is not None:
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)
