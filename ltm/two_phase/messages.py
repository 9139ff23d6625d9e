"""The messages of the commit protocol. Every one that belongs to a transaction names its attempt: (tx_id, start).

    client          coordinator                              participants
      | Submit        |                                          |
      |-------------> | draws a start                            |
      |               | Ask (keys to write, keys and ranges      |
      |               |      to look up)                         |
      |               |----------------------------------------> | hold them; the newest rows
      |               | <----------------------------------------| Told          (as often as the propagation asks;
      |               |                                          |               new rows are not asked for)
      |               | Prepare (writes, refreshes, all logs)    |
      |               |----------------------------------------> | hold the rest, compute min_ts, log the vote
      |               | <----------------------------------------| Vote          (when it is durable)
      | Outcome       | Decide (commit_ts)                       |
      | <-------------|----------------------------------------> | apply, let go; log the decision
      |               | <----------------------------------------| Settled       (when that is durable)
      |               | Forget                                   |
      |               |----------------------------------------> | nobody will ask any more

A participant is named by its log: whoever owns the log answers for it. Plain tuples of plain values throughout: they
are sent as arrays.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...changetables.types import Row

#: Made by the client: (a number nobody else has, a timestamp not above the transaction's first start).
TxId: TypeAlias = tuple[int, int]
#: One attempt at a transaction: (tx_id, start). Only *committed* is final for a tx_id (rule V1).
Attempt: TypeAlias = tuple[TxId, int]
#: Keys in start <= key < stop: (start, stop, at most so many rows or 0, from the end).
KeyRange: TypeAlias = tuple[bytes, bytes, int, bool]
#: Rows with their keys, in the order of the range.
FoundRows: TypeAlias = tuple[tuple[bytes, Row], ...]
#: (key, new row), None to delete it.
NewRow: TypeAlias = tuple[bytes, Row | None]
#: (view id, key, key values, delta).
Refresh: TypeAlias = tuple[int, bytes, Row, Row]

#: A timestamp, and how many changes that were committed at it come before the place.
Place: TypeAlias = tuple[int, int]
#: (commit_ts, key, old row, new row).
ChangedRow: TypeAlias = tuple[int, bytes, Row | None, Row | None]
#: (version, view id, key, key values, delta).
RefreshedRow: TypeAlias = tuple[int, int, bytes, Row, Row]


class Ask(NamedTuple):
    """Hold these and answer with the newest rows. `priority` is the first start of the tx_id. `incarnation` is that of
    the participant's part, as far as it is known (0: not yet): holds are dropped with it. `seen` and `seen_ranges` were
    read at `snapshot`: they are held too, and a newer version refuses the transaction (rule V9). `members` as in
    `Prepare`. `holds` are (key, mode): what votes will need, held before anybody votes."""

    attempt: Attempt
    number: int
    priority: int
    epoch: int
    incarnation: int
    writes: tuple[bytes, ...]
    keys: tuple[bytes, ...] = ()
    ranges: tuple[KeyRange, ...] = ()
    snapshot: int = 0
    seen: tuple[bytes, ...] = ()
    seen_ranges: tuple[KeyRange, ...] = ()
    members: tuple[TxId, ...] = ()
    holds: tuple[tuple[bytes, int], ...] = ()


class Told(NamedTuple):
    """`rows` of `writes`, then of `keys`. It is a page: if what was asked for is too long, the rest is missing; `more`:
    the last range has rows behind those that are here. Whoever asked asks for the rest. `versions` are the timestamps
    of the rows of `keys`."""

    attempt: Attempt
    number: int
    incarnation: int
    rows: tuple[Row | None, ...]
    ranges: tuple[FoundRows, ...]
    more: bool = False
    versions: tuple[int, ...] = ()


class Refused(NamedTuple):
    """The attempt has no holds here any more. No vote: before vote requests are out it ends the attempt. `epoch` is
    that of the range map, if it was refused because of the map."""

    attempt: Attempt
    reason: str
    epoch: int = 0


class Prepare(NamedTuple):
    """`logs` are all participants. `incarnation` 0: this one was asked for nothing before. `at` is the version of the
    refreshed rows of a deferred view's step, 0: commit_ts. `members` are the other transactions of
    a group that is run as one: they write different rows and read nothing, so they can share a commit_ts (rule T2).
    `absent`: of so many of the first writes there must be no row yet, which nobody has looked at before. `relied`:
    (key, timestamp of the version) of rows that were looked up for an earlier transaction and must be the newest."""

    attempt: Attempt
    priority: int
    epoch: int
    incarnation: int
    catalog_version: int
    logs: tuple[str, ...]
    writes: tuple[NewRow, ...]
    refreshes: tuple[Refresh, ...]
    at: int = 0
    members: tuple[TxId, ...] = ()
    absent: int = 0
    relied: tuple[tuple[bytes, int], ...] = ()


class Vote(NamedTuple):
    """Durable when it is sent. `min_ts` 0: refused."""

    attempt: Attempt
    log: str
    min_ts: int
    reason: str = ""


class Decide(NamedTuple):
    """`commit_ts` 0: aborted."""

    attempt: Attempt
    commit_ts: int


class Settled(NamedTuple):
    """The decision is durable in this log."""

    attempt: Attempt
    log: str


class Forget(NamedTuple):
    """Their decisions are durable in all logs of their lists (rule V6)."""

    attempts: tuple[Attempt, ...]


class Inquire(NamedTuple):
    """What became of it? `log` is whom the question is for. Whoever has not voted makes a refusal durable first
    (rule V4)."""

    attempt: Attempt
    log: str


COMMITTED, ABORTED, VOTED, FORGOTTEN, CLOSED = "committed", "aborted", "voted", "forgotten", "closed"
#: Above every start.
FOREVER = 1 << 62


class Answer(NamedTuple):
    """`ts` is commit_ts if committed, min_ts if voted."""

    attempt: Attempt
    log: str
    state: str
    ts: int = 0
    logs: tuple[str, ...] = ()


class Resolve(NamedTuple):
    """What became of a transaction whose coordinator is gone? Attempts that started below `start` and have not voted
    are refused for good (rule V5). Asked of the owner of `key`, the first that it writes: it is on every list. With a
    `start` of FOREVER no attempt can ever be committed: that comes before the answer that it was not."""

    tx_id: TxId
    number: int
    start: int
    key: bytes = b""


class Resolved(NamedTuple):
    """`state` is COMMITTED (at `ts`), ABORTED, CLOSED (aborted for ever), or FORGOTTEN: too long ago to tell."""

    tx_id: TxId
    number: int
    state: str
    ts: int = 0


class Draw(NamedTuple):
    """So many timestamps, please. They serve only transactions that began before this left (rule T1)."""

    number: int
    wanted: int


class Timestamps(NamedTuple):
    """`first`, `first + STEP`, ...: above everything that was issued before. `epoch` is that of the range map."""

    number: int
    first: int
    issued: int
    epoch: int


class Read(NamedTuple):
    """Rows at a timestamp; nobody commits at or below it there any more. `stored`: no rows are told, but that the store
    has all versions of theirs up to the timestamp. The answer has about `bytes_max` bytes at the most, or one row."""

    number: int
    at: int
    epoch: int
    keys: tuple[bytes, ...]
    ranges: tuple[KeyRange, ...] = ()
    stored: bool = False
    bytes_max: int = FOREVER


class ReadRows(NamedTuple):
    """Each row with its commit_ts. What did not fit is missing, as in `Told`."""

    number: int
    incarnation: int
    rows: tuple[tuple[int, Row | None], ...]
    ranges: tuple[tuple[tuple[bytes, int, Row], ...], ...]
    more: bool = False


class ReadChanges(NamedTuple):
    """What was committed to the rows of some tables and views, up to `at`, from a place on; at most so many rows, or a
    transaction more. `ranges` are those of their keys that this log owns: nobody commits at or below `at` there any
    more. What it has of others is from when it owned them."""

    number: int
    at: int
    epoch: int
    ids: tuple[int, ...]
    start: Place
    limit: int
    ranges: tuple[KeyRange, ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        return ()


class FoundChanges(NamedTuple):
    """In the order of their timestamps. `next` is where the next ones are, above `at` if there are none. Up to `oldest`
    some may be forgotten."""

    number: int
    incarnation: int
    writes: tuple[ChangedRow, ...]
    refreshes: tuple[RefreshedRow, ...]
    next: Place
    oldest: int


class NotServed(NamedTuple):
    """The question cannot be answered here: not the owner, not open yet, or the timestamp is too old. `epoch` is that
    of the range map that the answer is given by."""

    number: int
    epoch: int
    reason: str
