"""What the processes of a cluster say to each other about who owns what. What is stored in ZooKeeper, and where.

/leader             ephemeral; the name of the leader
/map                the range map
/bound              a timestamp: nothing at or above it was issued, and no lease goes beyond it
/ltms/<life>        ephemeral, one per life of an LTM process; "/" in its name is written ":"
/catalog            the last versions of the catalog (`catalogs.Stored`)
"""

from __future__ import annotations

from typing import NamedTuple

from ...changetables.types import Row
from ..two_phase.messages import TxId

LEADER, MAP, BOUND, LTMS, CATALOG = "/leader", "/map", "/bound", "/ltms", "/catalog"
#: ZooKeeper takes a process for gone when it has not heard of it for so long.
SESSION_MS = 1_500
#: An LTM reports to the leader so often, and with every tenth report what is asked of it.
REPORT_MS = 100
LOAD_REPORTS = 10

#: Why something is refused: the map has changed, or the leader.
MOVED = "the keys have another owner"
OLD_TERM = "the timestamp is of an earlier leader"
#: The catalog has changed: the vote is of an earlier one, or of one that is not open yet.
OLD_CATALOG = "the catalog has changed meanwhile"
PENDING_CATALOG = "the catalog is being changed"
#: Why a change of the catalog is refused: it was made from another version. Fetch that, and make it again.
OTHER_BASE = "the catalog has changed since this change was made"
#: Or something that another one began has to be finished first. Try again later.
UNFINISHED = "a view or an index is being made"


def node_of(life: str) -> str:
    return f"{LTMS}/{life.replace('/', ':')}"


def life_of(child: str) -> str:
    return child.replace(":", "/")


class ForLog(NamedTuple):
    """A message of the commit protocol for whoever answers for a log. `sender` is the log that it is from, "" if it is
    from a coordinator."""

    log: str
    sender: str
    message: object


class NotHere(NamedTuple):
    """This process does not answer for the log, or the log does not own the keys. `epoch` is that of its map."""

    log: str
    epoch: int


class Report(NamedTuple):
    """Of an LTM to the leader, again and again: its map has reached `epoch`, and these moves can be opened. `clean`:
    nothing that it answers for was voted for by an earlier catalog than that of the map, and is undecided. For the logs
    `complete` no earlier log than that of this life is needed any more. `load`, from time to time: requests since the
    last time, and the keys of some of them."""

    life: str
    epoch: int
    ready: tuple[int, ...] = ()
    clean: bool = False
    complete: tuple[str, ...] = ()
    load: tuple[int, tuple[bytes, ...]] | None = None


class Lease(NamedTuple):
    """The LTM may answer reads at timestamps up to `until`. `term` is that of the leader."""

    life: str
    term: int
    until: int


class FetchMap(NamedTuple):
    """Who has a map of an earlier epoch asks for another."""

    epoch: int


class NewMap(NamedTuple):
    """A map as it stands in ZooKeeper. It may come late: an LTM adopts it only if its epoch is higher."""

    data: bytes


class FetchRange(NamedTuple):
    """The target of a move asks the source for the keys, page by page. `incarnation` is that of the source that the
    first page came from: another one has other pages."""

    number: int
    target: str
    page: int = 0
    incarnation: int = 0


class RangeRows(NamedTuple):
    """One of `pages` pages of all that the target of a move must know: nothing is held in the range any more, and all
    of this is durable.

    `rows` are keys from `start` to `stop` (None: no end) with all their versions, newest first. The memory of
    transactions goes along: the owner of the first key that a transaction writes is asked what became of it. What was
    decided at or below `forgotten_ts` may be missing, and versions that only readers below `horizon` see. With a shared
    store, that has what is not among the rows, up to `stored`.
    """

    number: int
    incarnation: int
    page: int
    pages: int
    start: bytes
    stop: bytes | None
    rows: tuple[tuple[bytes, tuple[tuple[int, Row | None], ...]], ...]
    committed: tuple[tuple[TxId, int, int], ...]
    refused: tuple[tuple[TxId, int], ...]
    forgotten_ts: int
    horizon: int
    stored: tuple[int, tuple[tuple[bytes, int], ...]] = (0, ())


class Split(NamedTuple):
    """A command to the leader, as the next two. Answered by `Done`, when the map has changed."""

    number: int
    at: bytes


class Merge(NamedTuple):
    number: int
    at: bytes


class MoveRange(NamedTuple):
    """The keys from `start` to `stop` (b"": no end) become the target's, as soon as nothing is held there."""

    number: int
    start: bytes
    stop: bytes
    target: str


class Done(NamedTuple):
    """`error` says why the command was refused."""

    number: int
    error: str = ""


class ChangeCatalog(NamedTuple):
    """The catalog `data` (`catalogs.pack_catalog`) in the place of the version `base_version`, 0 if there was none: to
    a coordinator, which passes it on to whoever leads until it is answered by `CatalogChanged`. `number` is one that
    nobody else has, below 2**62: a change that is asked for again is not made again. The version of
    the new catalog is higher."""

    number: int
    base_version: int
    data: bytes


class CatalogChanged(NamedTuple):
    """The version is open at the timestamp `ts`, its S; with an `error` it is not, and `version` is the newest one."""

    number: int
    version: int
    ts: int = 0
    error: str = ""


class FetchCatalog(NamedTuple):
    """To a coordinator: the catalog, as soon as a version above `above_version` is open, or after a while as it is."""

    number: int
    above_version: int = -1


class CatalogIs(NamedTuple):
    """The newest version that is open, and its S. Version 0: none was ever made; `data` is what to begin with.
    `stored` is the whole node (`catalogs.Stored`): the versions before it, what is unfinished, what has failed."""

    number: int
    version: int
    ts: int
    data: bytes
    stored: bytes = b""
