"""A served node in the test's own process, so that tests of the API can be run against one as they are.

`connect` takes what `vt.connect` takes, opens that database, serves it on a port of its own, and gives a client of it;
closing the client stops the node and closes the database. What tests look at inside a database (`_node`, `_engine`) is
that of the database on the node.
"""

from __future__ import annotations

import functools
import os
from contextlib import ExitStack
from typing import Any

from viewtide import database
from viewtide.remote import RemoteDatabase, RemoteNode
from viewtide.remote_links import Target
from viewtide.serve import served

connect_embedded = database.connect


class Served(RemoteDatabase):
    """A client with its own node."""

    def __init__(self, served_database: database.Database) -> None:
        self._database = served_database
        self._node_runs = ExitStack()
        address = self._node_runs.enter_context(served(served_database, "tcp://127.0.0.1:0"))
        node = RemoteNode(Target(address))
        node.links.meet()
        super().__init__(node)
        self._node, self._engine = served_database._node, served_database._engine
        self._changing = served_database._changing

    def __repr__(self) -> str:
        return repr(self._database)

    def close(self) -> None:
        super().close()
        self._node_runs.close()
        self._database.close()

    def _catalog(self) -> Any:
        return self._database._catalog()


@functools.wraps(database.connect)
def connect(target: str | os.PathLike[str], **options: Any) -> database.Database:
    """`vt.connect`, served."""
    if isinstance(target, str) and target.startswith(("tcp://", "ipc://")):
        return connect_embedded(target, **options)
    return Served(connect_embedded(target, **options))
