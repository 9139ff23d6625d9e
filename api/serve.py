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
from .server import Server

if TYPE_CHECKING:
    from .database import Database

#: Where a node listens unless told otherwise.
LISTEN = "tcp://127.0.0.1:7400"
#: What a node calls itself without a key.
NAME = "node"


def run_serve(
    opened: Callable[[], Database],
    is_new: bool,
    listen: str,
    *,
    keys: Path | None,
    allowed: Path | None,
    insecure: bool,
    as_json: bool,
    out: TextIO,
) -> None:
    """Serve until an interrupt. The first line says where.

    A new database is made when the address is ours: one that cannot be had leaves no directory behind. One that is
    there is opened first: whoever has it open may listen at this very address, and the file of his socket would be
    replaced."""
    own = None if keys is None else Keys.load(keys)
    listed = None if allowed is None else AllowList(allowed)
    name = NAME if own is None else own.name
    with ExitStack() as closing:
        if not is_new:
            database = closing.enter_context(opened())
        hub = Hub(name, listen=listen, keys=own, allowed=listed, insecure=insecure)
        if is_new:
            with ExitStack() as failing:
                failing.callback(hub.close)
                database = closing.enter_context(opened())
                failing.pop_all()
        _serve(database, hub, "" if own is None else own.public, as_json, out)


def _serve(database: Database, hub: Hub, public_key: str, as_json: bool, out: TextIO) -> None:
    said = {"address": hub.address, "database": database._node.name, "public_key": public_key}
    if as_json:
        print(json.dumps(said), file=out, flush=True)
    else:
        key = f", public key {public_key}" if public_key else ""
        print(f"{said['database']} is served at {said['address']}{key}", file=out, flush=True)
    # What is alive now stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        Server(database, hub).run()
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
