"""ZooKeeper as the machines see it: requests to it and what comes back, with a client library in between.

A process sends one of the requests to the destination `ZOOKEEPER` and gets `Answer`, `Watched` and `Session` from it.
*Suspended* means that the connection is gone (what was asked is answered with ConnectionLoss: it may have been done or
not; watches are forgotten), and *lost* that the session has expired.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

ZOOKEEPER = "zookeeper"

CONNECTED, SUSPENDED, LOST = "connected", "suspended", "lost"
CREATED, DELETED, CHANGED, CHILD = "created", "deleted", "changed", "child"

CONNECTION_LOSS = "ConnectionLoss"
SESSION_EXPIRED = "SessionExpired"
NO_NODE = "NoNode"
NODE_EXISTS = "NodeExists"
BAD_VERSION = "BadVersion"
NOT_EMPTY = "NotEmpty"
NO_CHILDREN_FOR_EPHEMERALS = "NoChildrenForEphemerals"

#: As a version: whatever it is.
ANY = -1


class Connect(NamedTuple):
    """Begin a session; also after it was lost. `Session` messages follow."""

    timeout_ms: int


class Create(NamedTuple):
    """Answers the path, which ends in ten digits if `sequence`."""

    request: int
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Get(NamedTuple):
    """Answers the data. A watch fires once: at the next change or deletion."""

    request: int
    path: str
    watch: bool = False


class Set(NamedTuple):
    """Compare-and-set, if a version is given."""

    request: int
    path: str
    data: bytes
    version: int = ANY


class Delete(NamedTuple):
    request: int
    path: str
    version: int = ANY


class Exists(NamedTuple):
    """Answers whether it does. A watch fires once: at the next creation, change or deletion."""

    request: int
    path: str
    watch: bool = False


class Children(NamedTuple):
    """Answers the names, sorted. A watch fires once: when a child comes or goes, or at the deletion."""

    request: int
    path: str
    watch: bool = False


class Check(NamedTuple):
    """Only that it exists and has that version: for `Multi`."""

    request: int
    path: str
    version: int = ANY


class Multi(NamedTuple):
    """All or nothing. Answers a tuple of values, or the first error."""

    request: int
    operations: tuple[Create | Set | Delete | Check, ...]


class Close(NamedTuple):
    """End the session: its ephemeral nodes go at once."""


Operation: TypeAlias = Create | Get | Set | Delete | Exists | Children | Check | Multi


class Stat(NamedTuple):
    """`created` and `changed` count the writes of the whole tree (zxid): they only grow, also over deletion."""

    version: int
    created: int
    changed: int
    owner: int


class Answer(NamedTuple):
    """`error` is "" or a name as above; `stat` is there for what exists."""

    request: int
    value: object = None
    error: str = ""
    stat: Stat | None = None


class Watched(NamedTuple):
    what: str
    path: str


class Session(NamedTuple):
    state: str
    session: int
