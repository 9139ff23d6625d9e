"""What a served node keeps for its clients between two requests: transactions, snapshots, feeds, pages of results, and
what became of their commits.

Everything has a lease: whoever does not use it for a while loses it, with the versions that it kept from being pruned.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

from .changetables.errors import Busy, CommitUnknown, TransactionConflict
from .changetables.types import Row as Values
from .coordinator.embedded import wall_clock_ms
from .coordinator.timestamps import to_ms
from .ltm.driver import Ltm
from .ltm.outputs import CommitRecord
from .remote_protocol import IN_FLIGHT_MAX, RETRIES_MS_MAX

#: A transaction, snapshot or feed that is not used for so long is ended.
SESSION_IDLE_S = 60.0
#: Open ones at the most: each may keep old versions alive.
SESSIONS_MAX = 10_000
#: Results of which further pages are kept, at the most.
CURSORS_MAX = 1_000
#: How long it is remembered what became of a commit, and of how many clients.
TX_MEMORY_S = 3_600.0
CLIENTS_MAX = 100_000
#: Commits of one client that are remembered: some more than it may have under way, for one that takes long to arrive.
REMEMBERED_MAX = 4 * IN_FLIGHT_MAX
#: Of them, so many are looked at in one turn.
CLIENTS_LOOKED_AT = 256
#: Commits of earlier processes that are looked up in the log, at the most.
EARLIER_MAX = 2_000_000

TxId: TypeAlias = tuple[int, int]
#: The client's own number, and its number of the session.
SessionKey: TypeAlias = tuple[int, int]


class Session:
    """A transaction, a snapshot, a shell or a feed of a client. Its operations are numbered, one runs at a time, and
    the last answer is kept: one that got lost is asked for again."""

    __slots__ = ("_make", "busy", "held", "last_body", "last_kind", "last_number", "name", "used_s", "waiting")

    def __init__(self, make: Callable[[], object], name: str) -> None:
        """`make` may wait: it is called by whoever first needs what the session holds."""
        self._make = make
        self.held: object = None
        #: Who began it.
        self.name = name
        self.last_number = 0
        self.last_kind = 0
        self.last_body: object = None
        self.used_s = time.monotonic()
        self.busy = False
        #: What came while it was busy.
        self.waiting: deque[Callable[[], None]] = deque()

    def hold(self) -> object:
        if self.held is None:
            self.held = self._make()
        return self.held


class Sessions:
    """The sessions of all clients. Used by the server's loop only."""

    def __init__(self, end: Callable[[object], None], idle_s: float = SESSION_IDLE_S) -> None:
        """`end` ends what a session held."""
        self._end = end
        self._idle_s = idle_s
        self._open: dict[SessionKey, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, key: SessionKey, name: str, make: Callable[[], object]) -> Session:
        if len(self._open) >= SESSIONS_MAX:
            raise Busy(f"the node has {SESSIONS_MAX} open transactions and snapshots", hint="end those not needed")
        session = self._open[key] = Session(make, name)
        return session

    def known(self, key: SessionKey, name: str) -> Session | None:
        session = self._open.get(key)
        if session is None or session.name != name:
            return None
        session.used_s = time.monotonic()
        return session

    def find(self, key: SessionKey, name: str) -> Session:
        session = self.known(key, name)
        if session is None:
            raise TransactionConflict(
                f"the node does not know this transaction or snapshot: it was not used for {self._idle_s:g} s, "
                "or the node was restarted",
                hint="begin a new one",
            )
        return session

    def end(self, key: SessionKey, name: str) -> None:
        session = self._open.get(key)
        if session is None or session.name != name:
            return
        if session.busy:
            session.waiting.append(lambda: self.end(key, name))  # as soon as it can be
            return
        del self._open[key]
        self._end(session.held)

    def expire(self) -> None:
        long_ago = time.monotonic() - self._idle_s
        for key, session in list(self._open.items()):
            if session.used_s < long_ago and not session.busy:
                self.end(key, session.name)

    def end_all(self) -> None:
        for key, session in list(self._open.items()):
            session.busy = False
            self.end(key, session.name)


class Cursors:
    """Pages that were not asked for yet."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[int, tuple[float, list[list[Values]]]] = OrderedDict()

    def keep(self, pages: list[list[Values]]) -> int:
        number = next(self._numbers)
        self._kept[number] = (time.monotonic(), pages)
        while len(self._kept) > CURSORS_MAX:
            self._kept.popitem(last=False)
        return number

    def page(self, number: object, at: object) -> tuple[list[Values], bool]:
        """One page, and whether there are more. Pages stay until the last was asked for: a reply may get lost."""
        found = self._kept.get(number) if isinstance(number, int) else None
        if found is None or not isinstance(at, int) or not 0 <= at < len(found[1]):
            raise TransactionConflict("the rest of this result is not kept any more", hint="read it again")
        pages = found[1]
        self._kept[number] = (time.monotonic(), pages)  # type: ignore[index]  # an int: it was found
        return pages[at], at + 1 < len(pages)

    def expire(self) -> None:
        long_ago = time.monotonic() - SESSION_IDLE_S
        for number in [number for number, (used_s, _) in self._kept.items() if used_s < long_ago]:
            del self._kept[number]


class Decided:
    """What became of the commits of clients: a commit that is sent again is answered, not done again.

    A client numbers its transactions upwards and has at most IN_FLIGHT_MAX of them under way, so the last ones of each
    client are enough. Of what earlier processes committed, the log tells.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[int, OrderedDict[int, int]] = OrderedDict()
        #: The highest number of each client that was forgotten: they are not noted in the order of their numbers.
        self._forgotten: dict[int, int] = {}

    def find(self, tx_id: TxId) -> int | None:
        """The commit_ts, None: it was not committed as far as this process knows."""
        client, number = tx_id
        commits = self._clients.get(client)
        if commits is None:
            return None
        commit_ts = commits.get(number)
        if commit_ts is None and number <= self._forgotten.get(client, 0):
            raise CommitUnknown("it is not known any more what became of this transaction", hint="look at the data")
        return commit_ts

    def note(self, tx_id: TxId, commit_ts: int) -> None:
        client, number = tx_id
        commits = self._clients.get(client)
        if commits is None:
            commits = self._clients[client] = OrderedDict()
            if len(self._clients) > CLIENTS_MAX:
                self._forgotten.pop(self._clients.popitem(last=False)[0], None)
        commits[number] = commit_ts
        if len(commits) > REMEMBERED_MAX:
            forgotten, _ = commits.popitem(last=False)
            self._forgotten[client] = max(forgotten, self._forgotten.get(client, 0))

    def expire(self) -> None:
        """Forget clients that have not committed for long. They are looked at in turn."""
        long_ago_ms = wall_clock_ms() - TX_MEMORY_S * 1000
        for client in list(itertools.islice(self._clients, CLIENTS_LOOKED_AT)):
            if to_ms(next(reversed(self._clients[client].values()))) < long_ago_ms:
                del self._clients[client]
                self._forgotten.pop(client, None)
            else:
                self._clients.move_to_end(client)


class Earlier:
    """What earlier processes committed, as far as the log that is kept has it: the newest EARLIER_MAX."""

    def __init__(self, ltm: Ltm, begun_ms: int) -> None:
        """`begun_ms`: when this process began to serve."""
        self._commits: OrderedDict[TxId, int] = OrderedDict()
        reached_ms = begun_ms
        for lsn, record in ltm.read_log(ltm.log_kept()[0] - 1):
            if not isinstance(record, CommitRecord):
                continue
            if not self._commits:
                # The very first record has the number 1: then nothing is missing.
                reached_ms = 0 if lsn == 1 else to_ms(record.commit_ts)
            for tx_id in record.tx_ids:
                self._commits[tx_id] = record.commit_ts
            while len(self._commits) > EARLIER_MAX:
                reached_ms = to_ms(self._commits.popitem(last=False)[1])
        self._is_whole = reached_ms <= begun_ms - RETRIES_MS_MAX or ltm.log_kept()[0] == 1

    def find(self, tx_id: TxId) -> int | None:
        """The commit_ts, or None if it was not committed."""
        commit_ts = self._commits.get(tx_id)
        if commit_ts is None and not self._is_whole:
            raise CommitUnknown("the log does not reach back to this transaction", hint="look at the data")
        return commit_ts
