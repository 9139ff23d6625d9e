"""The API in an LTM process of a cluster, and a thread that serves it to clients."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .changetables.errors import Error
from .cluster_node import ClusterNode
from .cluster_stored import OPERATION, SharedStore, StorePlace
from .coordinator.cluster.catalog_follower import CatalogFollower
from .coordinator.cluster.requests import Asking, Requests
from .database import Database
from .ltm.keys import AllowList, Keys
from .ltm.transport import Hub
from .server import Server

#: Reads wait for LTMs, each in a thread of its own.
WORKERS = 32
#: A cluster that does not answer yet is asked again after this long.
AGAIN_S = 0.2


class ClusterGateway:
    """It listens at once, and answers when it is started. `place`: where other processes can read the rows."""

    def __init__(
        self,
        name: str,
        listen: str,
        *,
        keys: Keys | None = None,
        allowed: AllowList | None = None,
        insecure: bool = False,
        place: StorePlace | None = None,
    ) -> None:
        self._name, self._place = name, place
        self._hub = Hub(name, listen=listen, keys=keys, allowed=allowed, insecure=insecure)
        self.address = self._hub.address
        self._closing = threading.Event()
        self._database: Database | None = None
        self._server: Server | None = None
        self._threads: list[threading.Thread] = []

    def start(self, asking: Asking, ltm_names: Callable[[], tuple[str, ...]]) -> None:
        """`asking` are the machines of this process."""
        requests = Requests(asking, f"{self._name}.coordinator")
        self._catalogs = CatalogFollower(requests)
        node = ClusterNode(self._name, requests, self._catalogs, ltm_names)
        self._database = Database(node)
        stored = SharedStore(node.engine, self._place)
        self._server = Server(self._database, self._hub, workers=WORKERS, calls={OPERATION: stored.reach})
        for run in (self._run, self._follow):
            self._threads.append(threading.Thread(target=run, name="viewtide-gateway", daemon=True))
            self._threads[-1].start()

    def _follow(self) -> None:
        """Know of new tables before anybody asks for them."""
        while not self._closing.is_set():
            try:
                self._catalogs.follow()
            except Error:
                self._closing.wait(AGAIN_S)  # nobody answers, or the process ends

    def _run(self) -> None:
        assert self._database is not None and self._server is not None, "it was started"
        # Whatever is answered tells the version of the catalog. Nobody is answered before the cluster is there.
        while not self._closing.is_set():
            try:
                self._database.tables()
                break
            except Error:
                self._closing.wait(AGAIN_S)
        self._server.run()

    def close(self) -> None:
        self._closing.set()
        if self._server is None or self._database is None:
            self._hub.close()
            return
        self._server.stop()
        for thread in self._threads:
            thread.join()
        self._database.close()
