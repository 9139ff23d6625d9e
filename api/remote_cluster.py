"""`vt.connect("zk://host:port,host:port/path")`: one of the LTM processes of a cluster serves this client, another one
if that is gone.

ZooKeeper says where they are. A transaction or snapshot lives in the process that it was begun in: when that is gone,
it ends with TransactionConflict. A commit that was not answered is sent to the next one with its tx_id, so it happens
once. Of a transaction that has read, only its first key is sent, by which the next one finds out what became of it.
"""

from __future__ import annotations

import os
import random
import threading
import time

from .changetables.errors import InterfaceError, NotSupportedError, Unavailable
from .ltm.keys import Keys
from .remote import RemoteDatabase, RemoteNode, own_key
from .remote_links import Target

#: A session with ZooKeeper that lasts for one look.
SESSION_MS = 4_000
#: `connect` looks for a process that serves clients for so long, and so often.
FIND_S_MAX = 10.0
FIND_AGAIN_S = 0.2
#: After one look the next comes at least so much later: many connections are lost at a time.
LOOK_S_MIN = 0.2


class ClusterTarget(Target):
    """`address` is that of the process that serves this client now."""

    keys_hint = (
        "its processes have to have keys: [keys] of their configurations, `viewtide keys new` makes them; then give "
        "`keys`, the file of your own"
    )

    def __init__(self, hosts: str, keys: Keys | None = None) -> None:
        super().__init__("", keys)
        self._hosts = hosts
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._choose("")

    def lost(self, address: str) -> None:
        with self._lock:
            if address == self.address and time.monotonic() - self._looked_s >= LOOK_S_MIN:
                self._choose(address)

    def unavailable(self) -> Unavailable:
        return Unavailable(
            f"no process of the cluster at {self._hosts} answers",
            hint="do its LTMs run, and does this machine reach their addresses for clients?",
        )

    def _choose(self, but: str) -> None:
        """Another one than `but`, if there is one. Which one is left to chance, so that clients spread."""
        give_up = time.monotonic() + FIND_S_MAX
        while True:
            found = serving(self._hosts)
            self._looked_s = time.monotonic()
            others = [each for each in found if each[0] != but] or found
            if others:
                address, server_key = random.choice(others)
                if self.keys is not None and not server_key:
                    raise InterfaceError(f"the cluster at {self._hosts} uses no keys", hint="leave out `keys`")
                self.address, self.server_key = address, server_key
                return
            if time.monotonic() > give_up:
                raise Unavailable(
                    f"no process of the cluster at {self._hosts} serves clients",
                    hint='do its LTMs run, and have they clients = "tcp://..." in their configurations?',
                )
            time.sleep(FIND_AGAIN_S)


def serving(hosts: str) -> list[tuple[str, str]]:
    """Where processes serve clients, and their public keys."""
    try:
        # Imported here: only clusters need the client library of ZooKeeper.
        from .coordinator.cluster.directory import LTM, PROCESSES, Address
        from .coordinator.cluster.zookeeper import ZooKeeper
    except ImportError as error:
        raise NotSupportedError("zk:// needs kazoo", hint="pip install 'viewtide[cluster]'") from error
    zookeeper = ZooKeeper(hosts, SESSION_MS)
    zookeeper.start(create=False)
    try:
        stored = [zookeeper.read(f"{PROCESSES}/{name}") for name in zookeeper.children(PROCESSES)]
        # The root is always there. Where the path is, a cluster may be just starting.
        missing = not stored and bool(zookeeper.chroot) and zookeeper.read("/") is None
        # A cluster may be at the root, too, and none of its processes run.
        rootless = not stored and not zookeeper.chroot and zookeeper.read(PROCESSES) is None
    finally:
        zookeeper.stop()
    if missing:
        raise Unavailable(
            f"there is no cluster at zk://{hosts}: ZooKeeper has no node {zookeeper.chroot}",
            hint="the path is the one in `hosts` of the cluster's processes" + _others(zookeeper.hosts),
        )
    others = _others(zookeeper.hosts) if rootless else ""
    if others:
        raise Unavailable(
            f"there is no cluster at zk://{hosts}, an address without a path",
            hint="add the one in `hosts` of the cluster's processes" + others,
        )
    known = [Address.unpack(data) for data in stored if data is not None]
    return [(each.clients, each.public_key) for each in known if each is not None and each.role == LTM and each.clients]


def _others(hosts: str) -> str:
    """The clusters that there are, where they are easily found."""
    from .coordinator.cluster.directory import PROCESSES
    from .coordinator.cluster.zookeeper import ZooKeeper

    zookeeper = ZooKeeper(hosts, SESSION_MS)
    zookeeper.start()
    try:
        found = [f"/{name}" for name in zookeeper.children("/") if zookeeper.read(f"/{name}{PROCESSES}") is not None]
    finally:
        zookeeper.stop()
    return f"; there are clusters at {', '.join(found)}" if found else ""


def connect_cluster(hosts: str, keys: str | os.PathLike[str] | None = None) -> RemoteDatabase:
    """Connect to a cluster; Unavailable if nobody answers."""
    node = RemoteNode(ClusterTarget(hosts, None if keys is None else own_key(keys)))
    node.client.in_cluster = True
    give_up = time.monotonic() + FIND_S_MAX
    while True:
        try:
            node.links.meet()
        except Unavailable:
            if time.monotonic() > give_up:
                raise
        else:
            node.name = f"zk://{hosts}"
            return RemoteDatabase(node)
