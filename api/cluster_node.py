"""A database whose rows are in a cluster, as the API sees it in one of its processes."""

from __future__ import annotations

from collections.abc import Callable

from .changetables.errors import InterfaceError
from .coordinator.cluster.administration import ClusterAdministration
from .coordinator.cluster.engine import ChangesCatalog, ClusterEngine
from .coordinator.cluster.refreshing import ClusterRefreshing
from .coordinator.cluster.requests import Requests
from .coordinator.embedded import wall_clock_ms
from .coordinator.timestamps import to_ms


class ClusterNode:
    """`Database(ClusterNode(...))`. Closing it leaves the processes of the cluster as they are."""

    def __init__(
        self, name: str, requests: Requests, catalogs: ChangesCatalog, ltm_names: Callable[[], tuple[str, ...]]
    ) -> None:
        self.name = name
        self.closed = False
        self.changing = _Changing(self, catalogs)
        self.engine = ClusterEngine(requests, catalogs, ltm_names)
        self.refresher = ClusterRefreshing(requests, self.engine.ltm)
        self.admin = ClusterAdministration(self.engine, self.refresher)

    def lag_ms(self, watermark: int) -> float:
        return float(max(wall_clock_ms() - to_ms(watermark), 0))

    def next_tx_id(self) -> tuple[int, int]:
        return self.engine.requests.next_tx_id()

    def check_open(self) -> None:
        if self.closed:
            raise InterfaceError("the database is closed", hint="open it again with viewtide.connect()")

    def close(self) -> None:
        self.closed = True


class _Changing:
    """Held by whoever changes tables and views of an open database."""

    def __init__(self, node: ClusterNode, catalogs: ChangesCatalog) -> None:
        self._node, self._catalogs = node, catalogs

    def __enter__(self) -> object:
        self._node.check_open()
        return self._catalogs.__enter__()

    def __exit__(self, *error: object) -> None:
        self._catalogs.__exit__(None, None, None)
