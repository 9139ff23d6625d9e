"""What `connect` is given: a directory, "memory:", or an address, and which other arguments belong to each of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from .changetables.errors import InterfaceError, NotSupportedError

MEMORY = "memory:"
TCP, IPC, ZK = "tcp", "ipc", "zk"
SCHEMES = (TCP, IPC, ZK)
EXAMPLES = "'tcp://host:port', 'ipc://path' or 'zk://host:port/path'"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)")


def name_of(target: object) -> str:
    name = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InterfaceError(
            f"connect takes a directory, 'memory:' or an address, not {target!r}", hint=f"like {MEMORY!r} or 'data/'"
        )
    if name == ":memory:":
        raise InterfaceError("':memory:' is SQLite's word", hint=f"use {MEMORY!r} for a private database in memory")
    if target == "memory" and not os.path.isdir(name):
        raise InterfaceError(
            f"'memory' would be a new directory, and {MEMORY!r} is a private database in memory",
            hint=f"write {MEMORY!r}, or './memory' for a directory of that name",
        )
    return name


def scheme_of(name: str) -> str:
    """One of SCHEMES, or "": a directory, or MEMORY. What looks like an address and is none is refused: nobody wants a
    directory of that name."""
    found = _SCHEME.match(name)
    if found is None or name == MEMORY:
        return ""
    scheme, slashes = found.groups()
    if scheme in SCHEMES and len(slashes) >= 2:  # ipc:///run/shop.sock has three
        return scheme
    if scheme in SCHEMES:
        raise InterfaceError(f"{name!r} is no address", hint=f"write {EXAMPLES}, as text: a Path drops a slash")
    if slashes:
        raise NotSupportedError(
            f"{scheme}:{slashes} is not known",
            hint=f"give {MEMORY!r}, {EXAMPLES}; a directory of that name is './{name}'",
        )
    return ""


def check_options(
    name: str,
    scheme: str,
    of_directories: Mapping[str, object],
    *,
    keys: str | os.PathLike[str] | None,
    server_key: str,
    insecure: bool,
) -> None:
    """`of_directories`: those that are not as they are by default; the others are for nodes. Nothing that was asked for
    is ignored."""
    said = {"keys": keys, "server_key": server_key, "insecure": insecure}
    of_nodes = [option for option, value in said.items() if value]
    if scheme:
        for option in of_directories:
            raise InterfaceError(
                f"{option} is for a database in this process, and {name} is served by another one",
                hint="leave it out; a node is told such things when it is started",
            )
    else:
        for option in of_nodes:
            raise InterfaceError(
                f"{option} is for addresses of nodes, and {name} is none",
                hint=f"leave it out, or give {EXAMPLES}",
            )
    if scheme == ZK and "insecure" in of_nodes:
        raise InterfaceError(
            "insecure is for a served node: the processes of a cluster have keys, or are all on one machine",
            hint="leave it out, and give `keys`, the file of your own key, if the cluster wants one",
        )
    if "insecure" in of_nodes and len(of_nodes) > 1:
        raise InterfaceError(
            "insecure is for a node without keys, and keys are given", hint="leave out `insecure`, or the keys"
        )
    if scheme == ZK and server_key:
        raise InterfaceError("server_key is not needed: ZooKeeper has the keys of all processes", hint="leave it out")
    if scheme in (TCP, IPC) and "keys" in of_nodes and not server_key:
        raise InterfaceError(
            f"keys without server_key: nobody would know whether {name} is the right node",
            hint="give its public key; `viewtide serve` prints it, and `viewtide keys list`",
        )
    if scheme and server_key and "keys" not in of_nodes:
        raise InterfaceError(
            "server_key without keys: a node that has a key wants one of its clients, too",
            hint="give `keys`, the file of your own key; `viewtide keys new` makes one",
        )
