"""`viewtide serve`: a database for clients in other processes, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from .ltm.keys import AllowList, Keys
from .ltm.transport import Hub
from .metrics_server import MetricsServer
from .node_figures import NodeFigures
from .server import Server

if TYPE_CHECKING:
    from .database import Database

#: Where a node listens unless told otherwise.
LISTEN = "tcp://127.0.0.1:7400"
#: What a node calls itself without a key.
NAME = "node"
KEYS_HINT = "make keys with `viewtide keys new`, or say that it is meant: `insecure`"


def run_serve(
    opened: Callable[[], Database],
    is_new: bool,
    listen: str,
    *,
    keys: Path | None,
    allowed: Path | None,
    insecure: bool,
    metrics: str = "",
    as_json: bool,
    out: TextIO,
) -> None:
    """Serve until an interrupt. The first line says where. `metrics`: host:port of /metrics, /healthz and /readyz.

    A new database is made when the address is ours: one that cannot be had leaves no directory behind. One that is
    there is opened first: whoever has it open may listen at this very address, and the file of his socket would be
    replaced."""
    own = None if keys is None else Keys.load(keys)
    listed = None if allowed is None else AllowList.for_server(allowed)
    name = NAME if own is None else own.name
    figures = NodeFigures()
    with ExitStack() as closing:
        if metrics:
            watched = MetricsServer(metrics, figures.figures, figures.why_not_ready)
            closing.callback(watched.close)
            metrics = watched.address
        if not is_new:
            database = closing.enter_context(opened())
        hub = Hub(name, listen=listen, keys=own, allowed=listed, insecure=insecure, keys_hint=KEYS_HINT)
        if is_new:
            with ExitStack() as failing:
                failing.callback(hub.close)
                database = closing.enter_context(opened())
                failing.pop_all()
        server = Server(database, hub)
        with figures.of(database, server, hub):
            said = {"address": hub.address, "database": database._node.name}
            said |= {"public_key": "" if own is None else own.public, "metrics": metrics}
            _serve(server, said, as_json, out)


def _serve(server: Server, said: dict[str, str], as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps(said), file=out, flush=True)
    else:
        key = f", public key {said['public_key']}" if said["public_key"] else ""
        metrics = f", metrics at http://{said['metrics']}/metrics" if said["metrics"] else ""
        print(f"{said['database']} is served at {said['address']}{key}{metrics}", file=out, flush=True)
    # What is alive now stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        server.run()
    finally:
        gc.unfreeze()


@contextmanager
def served(database: Database, listen: str, *, insecure: bool = False) -> Iterator[str]:
    """A database of this process, served by a thread of it; gives the address."""
    hub = Hub(NAME, listen=listen, insecure=insecure)
    server = Server(database, hub)
    thread = threading.Thread(target=server.run, name="viewtide-served", daemon=True)
    thread.start()
    try:
        yield hub.address
    finally:
        server.stop()
        thread.join()
