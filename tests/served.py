"""A served node in the test's own process, so that tests of the API can be run against one as they are.

`connect` takes what `vt.connect` takes, opens that database, serves it on a port of its own, and gives a client of it;
closing the client stops the node and closes the database. What tests look at inside a database (`_node`, `_engine`) is
that of the database on the node.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from viewtide import database
from viewtide.ltm.transport import Hub
from viewtide.remote import RemoteDatabase, RemoteNode
from viewtide.remote_links import Target
from viewtide.server import Server

connect_embedded = database.connect


class Served(RemoteDatabase):
    """A client with its own node."""

    def __init__(self, served: database.Database) -> None:
        self._served = served
        hub = Hub("node", listen="tcp://127.0.0.1:0")
        self.server = Server(served, hub)
        self._thread = threading.Thread(target=self.server.run, name="served-node", daemon=True)
        self._thread.start()
        node = RemoteNode(Target(hub.address))
        node.links.meet()
        super().__init__(node)
        self._node, self._engine, self._changing = served._node, served._engine, served._changing

    def __repr__(self) -> str:
        return repr(self._served)

    def close(self) -> None:
        super().close()
        self.server.stop()
        self._thread.join()
        self._served.close()

    def _catalog(self) -> Any:
        return self._served._catalog()


def connect(target: str | os.PathLike[str], **options: Any) -> database.Database:
    """`vt.connect`, served."""
    if isinstance(target, str) and target.startswith(("tcp://", "ipc://")):
        return connect_embedded(target, **options)
    return Served(connect_embedded(target, **options))
