"""The nodes of a cluster in ZooKeeper, to a file and back; operations.md tells when.

    python zookeeper_nodes.py save zk1:2181,zk2:2181/shop nodes.json
    python zookeeper_nodes.py restore zk1:2181,zk2:2181/shop nodes.json

Nodes that belong to a user need ZOOKEEPER_LOGIN=user:password in the environment.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.security import ACL, Id

EXIT_USAGE = 2


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[1] not in ("save", "restore"):
        # Before anything is connected to: a wrong word must not wait for ZooKeeper.
        print(__doc__, file=sys.stderr)
        sys.exit(EXIT_USAGE)
    command, hosts, name = sys.argv[1:]
    login = os.environ.get("ZOOKEEPER_LOGIN")
    client = KazooClient(hosts, auth_data=[("digest", login)] if login else None)
    client.start()
    try:
        running = client.get_children("/processes") if client.exists("/processes") else []
        if running:
            sys.exit(f"stop the cluster first: {', '.join(sorted(running))} (or wait until ZooKeeper has noticed)")
        if command == "save":
            Path(name).write_text(json.dumps(list(saved(client, "/"))))
        else:
            restore(client, json.loads(Path(name).read_text()))
    finally:
        client.stop()


def saved(client: KazooClient, path: str) -> Iterator[dict[str, object]]:
    """Parents first. What a process leaves behind for the length of its session is not part of it."""
    data, state = client.get(path)
    if state.ephemeralOwner:
        return
    rights = [[each.perms, each.id.scheme, each.id.id] for each in client.get_acls(path)[0]]
    if any(scheme == "digest" and who.endswith(":x") for _, scheme, who in rights):
        # The servers tell only the owner by which password a node is his.
        sys.exit(f"{path} belongs to a user: give ZOOKEEPER_LOGIN")
    yield {"path": path, "data": base64.b64encode(data).decode(), "rights": rights}
    for child in sorted(client.get_children(path)):
        yield from saved(client, f"{path.rstrip('/')}/{child}")


def restore(client: KazooClient, nodes: list[dict[str, object]]) -> None:
    client.ensure_path("/")
    for child in client.get_children("/"):
        client.delete(f"/{child}", recursive=True)
    for node in nodes:
        rights = [ACL(perms, Id(scheme, who)) for perms, scheme, who in node["rights"]]
        if node["path"] == "/":
            client.set_acls("/", rights)
        else:
            client.create(node["path"], base64.b64decode(node["data"]), acl=rights)


if __name__ == "__main__":
    main()
