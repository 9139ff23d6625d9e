"""The API in an LTM process of a cluster, served to clients by the thread that drives its machines."""

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
from .process_config import KEYS_HINT
from .server import Server

#: Reads wait for LTMs, each in a thread of its own.
WORKERS = 32
#: A cluster that does not answer yet is asked again after this long.
AGAIN_S = 0.2


class ClusterGateway:
    """It listens at once, and answers when it is started and called (`Guest`). `place`: where other processes can read
    the rows."""

    def __init__(
        self,
        name: str,
        listen: str,
        *,
        keys: Keys | None = None,
        allowed: AllowList | None = None,
        place: StorePlace | None = None,
    ) -> None:
        self._name, self._place = name, place
        self._hub = Hub(name, listen=listen, keys=keys, allowed=allowed, keys_hint=KEYS_HINT)
        self.address = self._hub.address
        self._closing = threading.Event()
        #: Whether the cluster has told its catalog.
        self._is_known = False
        self._host: Hub | None = None
        self._database: Database | None = None
        self._server: Server | None = None

    def start(self, asking: Asking, ltm_names: Callable[[], tuple[str, ...]]) -> None:
        """`asking` are the machines of this process."""
        self._requests = requests = Requests(asking, f"{self._name}.coordinator")
        self._catalogs = CatalogFollower(requests)
        node = ClusterNode(self._name, requests, self._catalogs, ltm_names)
        self._database = Database(node)
        stored = SharedStore(node.engine, self._place)
        self._server = Server(self._database, self._hub, workers=WORKERS, calls={OPERATION: stored.reach})
        self._follower = threading.Thread(target=self._follow, name="viewtide-catalog", daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        """Know of new tables before anybody asks for them."""
        while not self._closing.is_set():
            try:
                if not self._is_known:
                    # Whatever is answered tells the version of the catalog.
                    self._catalogs.newest()
                    self._is_known = True
                    self._hub.wake()
                self._catalogs.follow()
            except Error:
                self._closing.wait(AGAIN_S)  # nobody answers, or the process ends

    # -- for the thread of the machines

    def attach(self, hub: Hub) -> None:
        self._requests.machines_thread = threading.get_ident()
        self._host = hub

    def take(self) -> bool:
        """Nobody is answered before the cluster is there."""
        assert self._server is not None, "it was started"
        if not self._is_known:
            return False
        if self._host is not None:
            # Not before: it would be woken up for what nobody takes.
            self._host.also(self._hub)
            self._host = None
        return self._server.take(0)

    def finish(self) -> bool:
        assert self._server is not None, "it was started"
        return self._server.finish()

    def close(self) -> None:
        """When nobody calls it any more."""
        self._closing.set()
        if self._server is None or self._database is None:
            self._hub.close()
            return
        self._server.close()
        self._follower.join()
        self._database.close()
