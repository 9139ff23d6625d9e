"""The participant: what one LTM does in transactions over several LTMs. No I/O, no clock.

    Ask       hold what is to be written or was looked up, answer with what is newest
    Prepare   hold the rest, vote: the record is durable before the vote leaves
    Decide    make it visible at commit_ts, let go; look-ups become marks
    Read      mark first, then wait for whoever has voted and may commit at or below the timestamp; so for ReadChanges

A transaction is committed exactly when every participant on its list has a durable yes, at the highest min_ts. Nobody
keeps that fact but the votes: whoever misses a decision asks the others. A transaction with one participant takes one
phase: its vote is the commit, and it is visible to the next one at once; nothing that shows it leaves before it is
durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from ...changetables.keys import table_range
from ...changetables.types import Row
from ..due import Due
from ..machine import Host, Outputs, WhenDurable
from . import hand_over, recent
from .cells import Cells, Version
from .holds import CONTRIBUTION, LOOK_UP, WRITE, Bounds, Claim, Holds
from .journal import Journal
from .marks import RAISE_MAX, Marks
from .messages import (
    ABORTED,
    CLOSED,
    COMMITTED,
    FOREVER,
    FORGOTTEN,
    VOTED,
    Answer,
    Ask,
    Attempt,
    Decide,
    Draw,
    Forget,
    FoundChanges,
    FoundRows,
    Inquire,
    NotServed,
    Prepare,
    Read,
    ReadChanges,
    ReadRows,
    Refresh,
    Refused,
    Resolve,
    Resolved,
    Settled,
    Timestamps,
    Told,
    TxId,
    Vote,
)
from .pages import PAGE_BYTES_MAX, fitting, row_bytes
from .records import Adopted, Committed, Decided, Forgotten, LoggedWrite, Refusal, Voted
from .stored_cells import StoredCells

if TYPE_CHECKING:
    from ..cluster.catalogs import Stored

#: Holds without a vote are dropped after this long.
HOLD_MS_MAX = 2_000
#: How long one that voted waits for the decision before it asks the others, and again.
DECISION_MS_MAX = 500
#: How long a decision waits for word that all have it before it asks.
SETTLED_MS_MAX = 5_000
#: The same for a floor.
FLOOR_MS_MAX = 200
#: Marks, answers and refusals are looked through so often.
CLEAN_MS = 5_000
#: How long a decision is known by its tx_id.
TX_MEMORY_MS = 3_600_000
#: How long a version stays for readers after it was superseded.
HISTORY_MS = 30_000
#: Transactions at work, and readers that wait: beyond it newcomers are refused.
PARTS_MAX = 10_000
READERS_MAX = 10_000

#: The refresh operator of the view that a refresh is for.
#: Milliseconds begin at this bit of a timestamp.
MS_SHIFT = 20
RefreshRow = Callable[[Refresh, Row | None], Row | None]

CHANGED = "another transaction changed what this one read"
ENDED = "the attempt has ended"
OUTDATED = "a row that it relies on has changed"
EXISTS = "a row that it inserts is there already"
WOULD_WAIT = "it would have to wait where others take it for one that waits for nobody"
TOO_MANY = "too many transactions at once"
HOLDS_GONE = "what it held was dropped meanwhile"
IN_DOUBT = "an earlier attempt is in doubt"
TOO_OLD = "the timestamp is too old"
NOT_STORED = "the store does not have all of it yet"

#: The timer by which one that has restarted asks what became of its votes.
RECOVERING = "recovering"

# Where a machine may end (names for a simulator).
BEFORE_VOTE = "participant: before the vote"
AFTER_VOTE = "participant: vote logged"
BEFORE_APPLY = "participant: decision known"
AFTER_APPLY = "participant: decision applied"
REFUSING = "participant: refusal logged"
RECOVERED = "participant: recovered"
ANSWERING = "participant: about to answer a look-up"
PROBES = (BEFORE_VOTE, AFTER_VOTE, BEFORE_APPLY, AFTER_APPLY, REFUSING, RECOVERED, ANSWERING)


class _Part:
    """This participant's part of one attempt."""

    __slots__ = (
        "answers",
        "asked",
        "at",
        "began_ms",
        "catalog_version",
        "claim",
        "coordinator",
        "decided",
        "first_lsn",
        "incarnation",
        "logs",
        "looked_up",
        "looked_up_ranges",
        "min_ts",
        "prepare",
        "readers",
        "refreshes",
        "seen_ts",
        "settled",
        "tx_ids",
        "vote_lsn",
        "writes",
    )

    def __init__(self, claim: Claim, incarnation: int, coordinator: str, now_ms: int) -> None:
        self.claim = claim
        #: Whoever was told something by an earlier part of the attempt has lost its holds (rules V2 and H5).
        self.incarnation = incarnation
        self.coordinator = coordinator
        self.began_ms = now_ms
        #: Questions that wait for holds, and the request to vote.
        self.asked: list[Ask] = []
        self.prepare: Prepare | None = None
        #: The highest version that the transaction was shown.
        self.seen_ts = 0
        self.min_ts = 0
        #: What must be durable before the vote or the decision is told; and where the vote is in the log.
        self.vote_lsn = 0
        self.first_lsn = 0
        self.at = 0
        self.catalog_version = 0
        self.logs: tuple[str, ...] = ()
        self.writes: tuple[LoggedWrite, ...] = ()
        self.refreshes: tuple[Refresh, ...] = ()
        #: What is held and not written: it becomes marks at the decision.
        self.looked_up: tuple[bytes, ...] = ()
        self.looked_up_ranges: tuple[Bounds, ...] = ()
        #: commit_ts, 0: aborted; None: in doubt, or not voted.
        self.decided: int | None = None
        self.answers: dict[str, int] = {}
        #: Logs that have the decision.
        self.settled: set[str] = set()
        self.readers: list[int] = []
        self.tx_ids: tuple[TxId, ...] = ()


class _Reader:
    __slots__ = ("message", "sender", "waits_for")

    def __init__(self, sender: str, message: Read | ReadChanges, waits_for: set[Attempt]) -> None:
        self.sender, self.message, self.waits_for = sender, message, waits_for


class Participant:
    """One LTM. `log` is the name that lists of participants call it by; `oracle` is whom it asks for timestamps."""

    def __init__(self, host: Host, log: str, oracle: str, refresh: RefreshRow) -> None:
        self.host = host
        self.log = log
        self.oracle = oracle
        self.refresh = refresh
        self.cells = Cells()
        self.holds = Holds()
        self.marks = Marks()
        #: What must outlive the log, where a store has the rows; None: nothing does, the log is kept.
        self.journal: Journal | None = None
        #: For those who follow change tables; None: nobody does that here.
        self.recent: recent.Recent | None = None
        #: Tables, by the first bytes of their keys, whose rows may be written at timestamps that have passed.
        self.unfinished: frozenset[bytes] = frozenset()
        #: Somebody waits until the store has everything up to it; the next checkpoint takes it. 0: nobody does.
        self.wanted_ts = 0
        #: At a restart: what the store has of keys that are in the log, before what is there is replayed.
        self.bases: dict[bytes, Version] = {}
        #: Whether the only participant's vote is the commit. Not where somebody else makes commits visible.
        self.one_phase = True
        self.incarnation = 0
        self.epoch = 0
        self.parts: dict[Attempt, _Part] = {}
        #: The attempt that has an undecided part here: never two of one transaction.
        self._latest: dict[TxId, Attempt] = {}
        #: Decided transactions: the attempt's start and commit_ts; of refused ones the highest start.
        self.committed: dict[TxId, tuple[int, int]] = {}
        self._refused: dict[TxId, int] = {}
        self._refused_lsn: dict[TxId, int] = {}
        #: Decided transactions that started at or below it may have been forgotten.
        self.forgotten_ts = 0
        #: Holds without a vote; votes without a decision; decisions that not all are known to have.
        self._holding: Due[Attempt] = Due(HOLD_MS_MAX, partial(self._set_timer, "holds"))
        self._decisions: Due[Attempt] = Due(DECISION_MS_MAX, partial(self._set_timer, "decisions"))
        self._settling: Due[Attempt] = Due(SETTLED_MS_MAX, partial(self._set_timer, "settling"))
        self._open = False
        self._parked: list[tuple[str, object]] = []
        self._readers: dict[int, _Reader] = {}
        self._reader_number = 0
        self._part_number = 0
        self.history_ms, self.clean_ms = HISTORY_MS, CLEAN_MS
        #: How long those who follow find changes.
        self.changes_ms = recent.HISTORY_MS
        #: What one answer to a transaction has at the most, about.
        self.page_bytes = PAGE_BYTES_MAX
        #: With a store: whether a request must wait for rows that are not in memory. It comes again then.
        self.must_load: Callable[[str, Ask | Read], bool] | None = None
        #: The highest timestamp that anybody came with.
        self._newest_ts = 0
        #: Somebody reads at it, or above; and tables, indexes and views that were dropped, with when: FOREVER if their
        #: cells are gone.
        self._kept_ts = FOREVER
        self._dropped: dict[int, int] = {}
        self._lsn = 0
        self._durable_lsn = 0
        #: The last one-phase commit: what shows it must not leave before it is durable.
        self._visible_lsn = 0
        #: One-phase commits that are visible and not durable yet.
        self._unnoted: deque[tuple[int, Attempt, _Part]] = deque()
        self._now_ms = 0
        self._persist: list[object] = []
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        self.incarnation = incarnation
        last_lsn = self._durable_lsn = getattr(disk, "last_lsn", len(disk))
        if self.recent is not None and self.journal is not None:
            self.recent.floor = self.journal.stored.lowest
        for key, base in self.bases.items():
            self.cells.place(key, base)
        # While it is replayed, the place of a record is the last one.
        self._lsn = last_lsn - len(disk)
        for record in disk:
            self._lsn += 1
            self._replay(record)
        self.bases = {}
        # Nobody can be asked to vote for what was only held: it is gone.
        self.host.probe(RECOVERED)
        self._ask_for_floor()
        self._timers.append((now_ms + self.clean_ms, "clean"))
        for attempt, part in self.parts.items():
            if part.decided is not None:
                self._settling.add(attempt, now_ms)
        self._timers.append((now_ms, RECOVERING))  # all others have voted
        return self._out()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        handle = _HANDLERS.get(type(message))
        if handle is None:
            raise TypeError(f"unexpected message {message!r} from {sender}")
        if self._open or type(message) in _ALWAYS:
            handle(self, sender, message)
        elif len(self._parked) < PARTS_MAX:
            self._parked.append((sender, message))
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        self._durable_lsn = lsn
        while self._unnoted and self._unnoted[0][0] <= lsn:
            _, attempt, part = self._unnoted.popleft()
            self._note_commit(attempt, part)
        return self._out()

    def _note_commit(self, attempt: Attempt, part: _Part) -> None:
        self.host.note(
            "committed",
            attempt,
            self.log,
            part.decided,
            part.min_ts,
            part.logs,
            part.writes,
            part.refreshes,
            part.tx_ids,
            part.catalog_version,
        )
        self._heard_commit(part.decided or 0, part.at, part.writes, part.refreshes)

    def shows_up_to(self, message: object) -> int:
        """The answer to a message tells what was committed up to this timestamp, 0: it does not."""
        return message.at if isinstance(message, Read) else 0

    def _heard_commit(
        self, commit_ts: int, at: int, writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh]
    ) -> None:
        """A commit is durable, or was found in the log: for those who follow the change tables."""

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        if token == "clean":
            self._clean()
        elif token == "floor":
            if not self._open:
                self._ask_for_floor()
        elif token == "holds":
            for attempt in self._holding.take(now_ms, self._is_holding):
                self._hold_ended(attempt)
        elif token == RECOVERING:
            self._ask_overdue([attempt for attempt in self.parts if self._is_in_doubt(attempt)])
        elif token == "decisions":
            self._ask_overdue(self._decisions.take(now_ms, self._is_in_doubt))
        else:
            assert token == "settling"
            for attempt in self._settling.take(now_ms, self.parts.__contains__):
                self._ask_settled(attempt, self.parts[attempt])
                self._settling.add(attempt, now_ms)
        return self._out()

    def _set_timer(self, token: str, at_ms: int) -> None:
        self._timers.append((at_ms, token))

    def _is_holding(self, attempt: Attempt) -> bool:
        part = self.parts.get(attempt)
        return part is not None and not part.min_ts

    def _is_in_doubt(self, attempt: Attempt) -> bool:
        """Not what is only held, also by a copy of a message that came late: nobody decides about that here."""
        return self._is_undecided(attempt) and not self._is_holding(attempt)

    def _is_undecided(self, attempt: Attempt) -> bool:
        part = self.parts.get(attempt)
        return part is not None and part.decided is None

    def _out(self) -> Outputs:
        if not (self._persist or self._send or self._timers):
            return Outputs()
        out = Outputs(tuple(self._persist), tuple(self._send), tuple(self._timers))
        self._persist, self._send, self._timers = [], [], []
        return out

    def _log_record(self, record: object) -> int:
        self._persist.append(record)
        self._lsn += 1
        return self._lsn

    def _show(self, destination: str, message: object) -> None:
        """Send something that shows rows: never before they are durable (rule V7)."""
        if self._visible_lsn > self._durable_lsn:
            self._send.append(WhenDurable(self._visible_lsn, destination, message))
        else:
            self._send.append((destination, message))

    def _when_durable(self, lsn: int, destination: str, message: object) -> None:
        self._send.append(WhenDurable(lsn, destination, message))

    # -- recovery

    def _replay(self, record: object) -> None:
        match record:
            case Committed():
                self._apply_again(record.writes, record.refreshes, record.commit_ts, record.at)
                attempt, commit_ts = record.attempt, record.commit_ts
                self._note_recent(attempt, commit_ts, record.at, record.writes, record.refreshes)
                for tx_id in (attempt[0], *record.members):
                    self.committed[tx_id] = (attempt[1], commit_ts)
                if self.journal is not None:
                    self.journal.committed(attempt, (attempt[0], *record.members), self._lsn, commit_ts)
                self.host.note(
                    "committed",
                    attempt,
                    self.log,
                    commit_ts,
                    commit_ts,
                    (self.log,),
                    record.writes,
                    record.refreshes,
                    (attempt[0], *record.members),
                    record.catalog_version,
                )
                self._heard_commit(commit_ts, record.at, record.writes, record.refreshes)
            case Voted():
                self._restore(record)
            case Decided():
                part = self.parts.get(record.attempt)
                if part is not None and part.decided is None:
                    self._settle(record.attempt, part, record.commit_ts, again=True)
                    if record.commit_ts:
                        self._note_commit(record.attempt, part)
            case Refusal():
                self._note_refusal(record.attempt, 0)
            case Forgotten():
                for attempt in record.attempts:
                    self._drop(attempt)
            case Adopted():
                hand_over.take_in(self, record)

    def _restore(self, record: Voted) -> None:
        """A vote: everything that it promised is held again (rule V3)."""
        claim = self.holds.claim(record.attempt, record.priority)
        claim.voted = True
        self.holds.take(claim, [key for key, _, _ in record.writes], WRITE)
        self.holds.take(claim, [refresh[1] for refresh in record.refreshes], CONTRIBUTION)
        self.holds.take(claim, record.looked_up, LOOK_UP)
        self.holds.take_ranges(claim, record.looked_up_ranges)
        assert not claim.waiting, "all votes in a log had what they held at the same time"
        part = _Part(claim, 0, "", self._now_ms)
        part.min_ts, part.logs, part.at = record.min_ts, record.logs, record.at
        part.writes, part.refreshes, part.catalog_version = record.writes, record.refreshes, record.catalog_version
        part.looked_up, part.looked_up_ranges = record.looked_up, record.looked_up_ranges
        part.first_lsn = self._lsn
        self._enter(record.attempt, part, record.members)

    def _enter(self, attempt: Attempt, part: _Part, members: tuple[TxId, ...]) -> None:
        self.parts[attempt] = part
        part.tx_ids = (attempt[0], *members)
        self._newest_ts = max(self._newest_ts, attempt[1])
        for tx_id in part.tx_ids:
            self._latest[tx_id] = attempt

    def _leave(self, attempt: Attempt, part: _Part) -> None:
        """The part is not undecided any more."""
        for tx_id in part.tx_ids:
            if self._latest.get(tx_id) == attempt:
                del self._latest[tx_id]

    def _ask_for_floor(self) -> None:
        # The number keeps answers to an earlier incarnation out: they are too old.
        self._send.append((self.oracle, Draw(self.incarnation, 1)))
        self._timers.append((self._now_ms + FLOOR_MS_MAX, "floor"))

    def _open_up(self, sender: str, message: Timestamps) -> None:
        """A timestamp that was issued after the restart: all marks that were forgotten are below it (rule H3)."""
        if self._open or message.number != self.incarnation:
            return
        self.epoch = max(self.epoch, message.epoch)
        self.marks.raise_floor(message.first)
        self._newest_ts = max(self._newest_ts, message.first)
        self._open = True
        parked, self._parked = self._parked, []
        for each_sender, each in parked:
            _HANDLERS[type(each)](self, each_sender, each)

    # -- before the vote

    def _ask(self, sender: str, ask: Ask) -> None:
        attempt = ask.attempt
        part = self._part(sender, attempt, ask.priority, ask.incarnation, ask.members)
        if part is None:
            return
        if part.prepare is not None or part.min_ts:
            return  # an old copy
        holds, claim = self.holds, part.claim
        refused = holds.take(claim, ask.writes, WRITE) if ask.writes else []
        if ask.keys:
            refused += holds.take(claim, ask.keys, LOOK_UP)
        if ask.ranges:
            refused += holds.take_ranges(claim, [(start, stop) for start, stop, _, _ in ask.ranges])
        if ask.seen or ask.seen_ranges:
            refused += holds.take(claim, ask.seen, LOOK_UP)
            refused += holds.take_ranges(claim, [(start, stop) for start, stop, _, _ in ask.seen_ranges])
        for key, mode in ask.holds:
            refused += holds.take(claim, (key,), mode)
        if refused:
            self._refuse_all(refused, "an older transaction needs what it holds")
        if claim.waiting:
            part.asked.append(ask)
        else:
            self._tell(part, ask)

    def _part(
        self, sender: str, attempt: Attempt, priority: int, incarnation: int, members: tuple[TxId, ...]
    ) -> _Part | None:
        """The part of an attempt, a new one if it may have one; None: it was refused, and told so."""
        part = self.parts.get(attempt)
        if part is not None:
            if not part.coordinator:
                part.coordinator = sender
            if part.min_ts or not self._lost_holds(part, incarnation):
                return part
            self._refuse(attempt, HOLDS_GONE)
            return None
        tx_ids = (attempt[0], *members)
        if self._lost_holds(None, incarnation):
            self._send.append((sender, Refused(attempt, HOLDS_GONE)))
        elif self._are_new(tx_ids) and len(self.parts) < PARTS_MAX:
            return self._new_part(sender, attempt, priority, members)
        elif any(tx_id in self.committed or self._has_ended(tx_id, attempt[1]) for tx_id in tx_ids):
            self._send.append((sender, Refused(attempt, ENDED)))
        elif any(self._is_superseded(tx_id, attempt[1]) for tx_id in tx_ids):
            pass  # an old copy: a later attempt is here
        elif any(self._in_doubt(tx_id) for tx_id in tx_ids):
            self._send.append((sender, Refused(attempt, IN_DOUBT)))
        elif len(self.parts) >= PARTS_MAX:
            self._send.append((sender, Refused(attempt, TOO_MANY)))
        else:
            for tx_id in tx_ids:
                if tx_id in self._latest:
                    self._let_go(self._latest[tx_id])
            return self._new_part(sender, attempt, priority, members)
        return None

    def _new_part(self, sender: str, attempt: Attempt, priority: int, members: tuple[TxId, ...]) -> _Part:
        self._part_number += 1
        incarnation = self.incarnation << 32 | self._part_number
        part = _Part(self.holds.claim(attempt, priority), incarnation, sender, self._now_ms)
        self._enter(attempt, part, members)
        self._holding.add(attempt, self._now_ms)
        return part

    def _are_new(self, tx_ids: tuple[TxId, ...]) -> bool:
        """Whether nothing is known here of any of these transactions: the common case."""
        return (
            self.committed.keys().isdisjoint(tx_ids)
            and self._latest.keys().isdisjoint(tx_ids)
            and self._refused.keys().isdisjoint(tx_ids)
            and min([made_ts for _, made_ts in tx_ids]) > self.forgotten_ts
        )

    def _lost_holds(self, part: _Part | None, incarnation: int) -> bool:
        """Whether a request relies on holds that were dropped, or lost with a restart."""
        return incarnation != 0 and (part is None or part.incarnation != incarnation)

    def _in_doubt(self, tx_id: TxId) -> bool:
        """Whether an attempt has voted here and is not decided: another one could be committed beside it (rule V5)."""
        attempt = self._latest.get(tx_id)
        if attempt is None or not self.parts[attempt].min_ts:
            return False
        # Somebody went on without it, so the decision is overdue.
        self._ask_others(attempt, self.parts[attempt])
        return True

    def _has_ended(self, tx_id: TxId, start: int) -> bool:
        """Whether attempts of a transaction that started there are refused for good, or too long ago."""
        return start <= self._refused.get(tx_id, 0) or tx_id[1] <= self.forgotten_ts

    def _is_superseded(self, tx_id: TxId, start: int) -> bool:
        attempt = self._latest.get(tx_id)
        return attempt is not None and start < attempt[1]

    def _tell(self, part: _Part, ask: Ask) -> None:
        """All is held: what is newest now stays so until the decision."""
        if self._must_load(part.coordinator, ask):
            return
        self.host.probe(ANSWERING)
        # Of what was deleted below the horizon, nothing may be left to tell that it was (rule H3).
        seen_ts = max(part.seen_ts, self.cells.horizon)
        rows: list[Row | None] = []
        versions: list[int] = []
        self.cells.load(ask.writes, ask.keys, ask.seen)
        chains = self.cells.chains
        left, more = self.page_bytes, False
        for key in ask.writes + ask.keys if ask.keys else ask.writes:
            if left <= 0:
                break
            version = chains.get(key)
            if version is None:
                rows.append(None)
                versions.append(0)
            else:
                rows.append(version[1])
                versions.append(version[0])
                left -= row_bytes(version[1])
                if version[0] > seen_ts:
                    seen_ts = version[0]
        found: list[FoundRows] = []
        for each in ask.ranges:
            seen_ts = max(seen_ts, self.cells.newest_ts(each[0], each[1]))
            if left > 0:
                some = self.cells.newest_between(each)
                page = some[: fitting(some, _found_bytes, left)]
                left -= sum(map(_found_bytes, page))
                found.append(page)
                more = len(page) < len(some)
        if (ask.seen or ask.seen_ranges) and self._has_changed(ask):
            self._refuse(ask.attempt, CHANGED)
            return
        part.seen_ts = seen_ts
        looked_up = tuple(versions[len(ask.writes) :])
        told = Told(ask.attempt, ask.number, part.incarnation, tuple(rows), tuple(found), more, looked_up)
        self._show(part.coordinator, told)

    def _has_changed(self, ask: Ask) -> bool:
        """Whether something that was read at the snapshot has a newer version (rule V9)."""
        cells, snapshot = self.cells, ask.snapshot
        if snapshot < cells.horizon:
            return True  # that something was deleted since may be forgotten
        return any(cells.newest(key)[0] > snapshot for key in ask.seen) or any(
            cells.changed_since(start, stop, snapshot) for start, stop, _, _ in ask.seen_ranges
        )

    # -- the vote

    def _prepare(self, sender: str, prepare: Prepare) -> None:
        attempt = prepare.attempt
        part = self.parts.get(attempt)
        if part is None:
            part = self._late(sender, prepare)
            if part is None:
                return
        elif part.min_ts:
            # It is in the log already: whoever asks again has not heard of it (rule V2).
            part.coordinator = sender
            self._when_durable(part.vote_lsn, sender, Vote(attempt, self.log, part.min_ts))
            return
        elif part.prepare is not None:
            return
        elif self._lost_holds(part, prepare.incarnation):
            self._refuse_for_good(attempt, sender, HOLDS_GONE)
            return
        part.prepare = prepare
        holds, claim = self.holds, part.claim
        refused = holds.take(claim, [key for key, _ in prepare.writes], WRITE) if prepare.writes else []
        if prepare.relied:
            refused += holds.take(claim, [key for key, _ in prepare.relied], LOOK_UP)
        if prepare.refreshes:
            refused += holds.take(claim, [refresh[1] for refresh in prepare.refreshes], CONTRIBUTION)
        if refused:
            self._refuse_all(refused, "an older transaction needs what it holds")
            if part.min_ts:
                return  # it voted as soon as the last one of them had let go
        if not claim.waiting:
            self._vote(attempt, part, prepare)
        elif prepare.logs != (self.log,):
            # It may have voted elsewhere, where older ones wait for it because it waits for nobody (rule H4).
            self._refuse_for_good(attempt, sender, WOULD_WAIT)

    def _late(self, sender: str, prepare: Prepare) -> _Part | None:
        """The request to vote finds no holds: they were dropped, lost with a restart, or never asked for."""
        attempt = prepare.attempt
        tx_id, start = attempt
        committed = self.committed.get(tx_id)
        if committed is not None and committed[0] == start:
            # Only in a one-phase transaction does the coordinator need the answer; others have their decision.
            if prepare.logs == (self.log,):
                self._when_durable(self._lsn, sender, Vote(attempt, self.log, committed[1]))
            return None
        tx_ids = (tx_id, *prepare.members)
        if self._are_new(tx_ids) and not prepare.incarnation and len(self.parts) < PARTS_MAX:
            return self._new_part(sender, attempt, prepare.priority, prepare.members)
        if any(each in self.committed for each in tx_ids):
            self._refuse_for_good(attempt, sender, ENDED)
            return None
        if self._lost_holds(None, prepare.incarnation):
            self._refuse_for_good(attempt, sender, HOLDS_GONE)
            return None
        if any(self._has_ended(each, start) or self._is_superseded(each, start) for each in tx_ids):
            self._refuse_for_good(attempt, sender, ENDED)
            return None
        if any(self._in_doubt(each) for each in tx_ids):
            self._refuse_for_good(attempt, sender, IN_DOUBT)
            return None
        if len(self.parts) >= PARTS_MAX:
            self._refuse_for_good(attempt, sender, TOO_MANY)
            return None
        return self._part(sender, attempt, prepare.priority, 0, prepare.members)

    def _vote(self, attempt: Attempt, part: _Part, prepare: Prepare) -> None:
        """Everything is held: find the lowest timestamp that fits, and promise."""
        self.host.probe(BEFORE_VOTE)
        marks = self.marks
        highest = part.seen_ts
        writes: list[LoggedWrite] = []
        keys = [key for key, _ in prepare.writes]
        versions = self._newest(keys, prepare.absent)
        has_versions = any(versions)
        if prepare.absent:
            if has_versions and self._is_there(versions[: prepare.absent]):
                self._refuse_for_good(attempt, part.coordinator, EXISTS)
                return
            # As of what is told: that something was deleted below the horizon may be forgotten (rule H3).
            highest = max(highest, self.cells.horizon)
        if prepare.relied:
            if self._is_outdated(prepare.relied):
                self._refuse_for_good(attempt, part.coordinator, OUTDATED)
                return
            highest = max(highest, self.cells.horizon, max([ts for _, ts in prepare.relied]))
        if keys:
            highest = max(highest, marks.highest(keys))
            if has_versions:
                highest = max([highest, *(version[0] for version in versions if version is not None)])
                writes = [
                    (key, None if version is None else version[1], new)
                    for (key, new), version in zip(prepare.writes, versions, strict=True)
                ]
            else:
                writes = [(key, None, new) for key, new in prepare.writes]
        wanted = part.claim.wanted
        if prepare.refreshes and not prepare.at:
            keys = [refresh[1] for refresh in prepare.refreshes]
            highest = max(highest, marks.highest(keys))
            for key in keys:
                if wanted[key] == WRITE:
                    # Another view builds on it: its row was looked up and is a base row for this purpose (rule H6).
                    highest = max(highest, self.cells.newest(key)[0])
        min_ts = _lowest_above(highest, attempt[1])
        if not min_ts:
            self._refuse_for_good(attempt, part.coordinator, "too many transactions at one timestamp")
            return
        part.min_ts = min_ts
        part.writes, part.refreshes = tuple(writes), prepare.refreshes
        part.logs, part.at, part.catalog_version = prepare.logs, prepare.at, prepare.catalog_version
        part.looked_up, part.looked_up_ranges = _looked_up(part)
        part.claim.voted = True
        if prepare.logs == (self.log,) and self.one_phase:
            part.vote_lsn = part.first_lsn = self._visible_lsn = self._log_record(
                Committed(
                    attempt, min_ts, prepare.catalog_version, part.writes, part.refreshes, part.at, prepare.members
                )
            )
            self._settle(attempt, part, min_ts)
            self._drop(attempt)
            self._unnoted.append((part.vote_lsn, attempt, part))
            self._when_durable(part.vote_lsn, part.coordinator, Vote(attempt, self.log, min_ts))
            return
        part.vote_lsn = part.first_lsn = self._log_record(voted(attempt, part))
        self.host.probe(AFTER_VOTE)
        self._when_durable(part.vote_lsn, part.coordinator, Vote(attempt, self.log, min_ts))
        self._decisions.add(attempt, self._now_ms)

    def _newest(self, keys: list[bytes], unasked: int) -> list[Version | None]:
        """The newest versions; the first so many were not asked for before."""
        if unasked:
            self.cells.load(keys[:unasked])
        return list(map(self.cells.chains.get, keys))

    def _is_there(self, versions: list[Version | None]) -> bool:
        """Whether one of them is a row."""
        return any(version is not None and version[1] is not None for version in versions)

    def _is_outdated(self, relied: Sequence[tuple[bytes, int]]) -> bool:
        """Whether one of these versions is not the newest."""
        versions = self._newest([key for key, _ in relied], len(relied))
        return not all(versions) or [version[0] for version in versions if version] != [ts for _, ts in relied]

    # -- refusals

    def _refuse_all(self, attempts: list[Attempt], reason: str) -> None:
        for attempt in dict.fromkeys(attempts):
            self._refuse(attempt, reason)

    def _refuse(self, attempt: Attempt, reason: str) -> None:
        """It has no holds any more. A request to vote that is here or comes later is refused for good."""
        part = self.parts.get(attempt)
        if part is None:
            return
        if part.prepare is not None:
            self._refuse_for_good(attempt, part.coordinator, reason)
            return
        self._send.append((part.coordinator, Refused(attempt, reason)))
        self._let_go(attempt)

    def _refuse_for_good(self, attempt: Attempt, coordinator: str, reason: str) -> None:
        """Durable before it is told: only then may another attempt begin (rules V4 and V5)."""
        lsn = self._log_refusal(attempt, reason)
        self.host.probe(REFUSING)
        self._when_durable(lsn, coordinator, Vote(attempt, self.log, 0, reason))
        if attempt in self.parts:
            self._let_go(attempt)

    def _log_refusal(self, attempt: Attempt, reason: str) -> int:
        tx_id, start = attempt
        if start <= self._refused.get(tx_id, 0):
            return self._refused_lsn[tx_id]
        lsn = self._log_record(Refusal(attempt, reason))
        self._note_refusal(attempt, lsn)
        return lsn

    def _note_refusal(self, attempt: Attempt, lsn: int) -> None:
        tx_id, start = attempt
        if start > self._refused.get(tx_id, 0):
            self._refused[tx_id] = start
            self._refused_lsn[tx_id] = lsn
            if self.journal is not None:
                self.journal.refused(attempt)

    def _hold_ended(self, attempt: Attempt) -> None:
        self._refuse(attempt, "it held too long without a vote")

    def _let_go(self, attempt: Attempt) -> None:
        """The attempt ends here without a trace but a refusal, perhaps."""
        part = self.parts.pop(attempt)
        self._leave(attempt, part)
        self._release(attempt)
        if part.readers:
            self._wake(attempt, part)

    def _release(self, attempt: Attempt) -> None:
        for served in self.holds.release(attempt):
            self._go_on(served)

    def _go_on(self, attempt: Attempt) -> None:
        """An attempt that waited has all that it asked for."""
        part = self.parts.get(attempt)
        if part is None or part.claim.waiting:
            return
        asked, part.asked = part.asked, []
        for ask in asked:
            if attempt in self.parts:
                self._tell(part, ask)
        if part.prepare is not None and not part.min_ts and attempt in self.parts:
            self._vote(attempt, part, part.prepare)

    # -- the decision

    def _decide(self, sender: str, decide: Decide) -> None:
        attempt, commit_ts = decide
        part = self.parts.get(attempt)
        if part is None:
            if commit_ts or attempt[0] in self.committed:
                self._when_durable(self._lsn, sender, Settled(attempt, self.log))
            return
        part.coordinator = sender
        if part.decided is not None:
            self._when_durable(part.vote_lsn, sender, Settled(attempt, self.log))
        elif part.min_ts:
            self._decided(attempt, part, commit_ts)
        elif not commit_ts:
            self._let_go(attempt)

    def _decided(self, attempt: Attempt, part: _Part, commit_ts: int) -> None:
        self.host.probe(BEFORE_APPLY)
        self.host.note("decided", attempt, self.log, commit_ts)
        lsn = self._log_record(Decided(attempt, commit_ts))
        self._settle(attempt, part, commit_ts)
        part.vote_lsn = lsn
        if commit_ts:
            self._note_commit(attempt, part)
        part.settled.add(self.log)
        if part.coordinator:
            self._when_durable(lsn, part.coordinator, Settled(attempt, self.log))
        self._settling.add(attempt, self._now_ms)
        self.host.probe(AFTER_APPLY)

    def _settle(self, attempt: Attempt, part: _Part, commit_ts: int, again: bool = False) -> None:
        """Make a decision known: rows are visible, what was looked up is marked (rule H2), holds end."""
        part.decided = commit_ts
        if commit_ts:
            apply = self._apply_again if again else self._apply
            apply(part.writes, part.refreshes, commit_ts, part.at)
            self._note_recent(attempt, commit_ts, part.at, part.writes, part.refreshes)
            for tx_id in part.tx_ids:
                self.committed[tx_id] = (attempt[1], commit_ts)
            if self.journal is not None:
                self.journal.committed(attempt, part.tx_ids, part.first_lsn, commit_ts, part)
            self._mark_looked_up(part, commit_ts)
        self._leave(attempt, part)
        self._release(attempt)
        if part.readers:
            self._wake(attempt, part)

    def _note_recent(
        self, attempt: Attempt, commit_ts: int, at: int, writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh]
    ) -> None:
        """With the moment from which on readers see it: nobody who is told of the one misses the other."""
        if self.recent is not None:
            self.recent.add(commit_ts, at, attempt, writes, refreshes)

    def _mark_looked_up(self, part: _Part, commit_ts: int) -> None:
        self.marks.mark(part.looked_up, commit_ts)
        self.marks.mark_ranges([start for start, _ in part.looked_up_ranges], commit_ts)

    def _apply(self, writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh], commit_ts: int, at: int) -> None:
        cells, refresh_row = self.cells, self.refresh
        if writes:
            cells.put_all(writes, commit_ts)
        for refresh in refreshes:
            cells.add(refresh[1], at or commit_ts, partial(refresh_row, refresh))

    def _apply_again(
        self, writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh], commit_ts: int, at: int
    ) -> None:
        """At a restart: only what is not in the store."""
        if self.journal is not None:
            stored = self.journal.stored
            writes = [write for write in writes if commit_ts > stored.of(write[0])]
            refreshes = [refresh for refresh in refreshes if (at or commit_ts) > stored.of(refresh[1])]
        self._apply(writes, refreshes, commit_ts, at)

    def _drop(self, attempt: Attempt) -> None:
        """Nobody will ask for this attempt any more."""
        self.parts.pop(attempt, None)

    def _forget(self, sender: str, forget: Forget) -> None:
        known = [attempt for attempt in forget.attempts if attempt in self.parts and not self._is_undecided(attempt)]
        if known:
            self._log_record(Forgotten(tuple(known)))
            for attempt in known:
                self._drop(attempt)

    # -- whoever misses a decision asks

    def _ask_overdue(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            self._ask_others(attempt, self.parts[attempt])
            self._decisions.add(attempt, self._now_ms)

    def _ask_others(self, attempt: Attempt, part: _Part) -> None:
        """The decision is overdue: every participant on the list says what it knows (rule V4)."""
        for log in part.logs:
            if log != self.log:
                self._send.append((log, Inquire(attempt, log)))
        self._decide_if_all_voted(attempt, part)

    def _decide_if_all_voted(self, attempt: Attempt, part: _Part) -> None:
        """Committed exactly when every yes is durable."""
        if part.answers.keys() | {self.log} >= set(part.logs) and self._durable_lsn >= part.vote_lsn:
            self._decided(attempt, part, max([part.min_ts, *part.answers.values()]))

    def _ask_settled(self, attempt: Attempt, part: _Part) -> None:
        """Nobody said that all have the decision: the coordinator may be gone."""
        for log in part.logs:
            if log != self.log and log not in part.settled:
                self._send.append((log, Inquire(attempt, log)))

    def _inquire(self, sender: str, inquire: Inquire) -> None:
        attempt = inquire.attempt
        part = self.parts.get(attempt)
        committed = self.committed.get(attempt[0])
        if part is not None and part.decided is not None:
            known = COMMITTED if part.decided else ABORTED
            self._when_durable(part.vote_lsn, sender, Answer(attempt, self.log, known, part.decided))
        elif part is not None and part.min_ts:
            self._when_durable(part.vote_lsn, sender, Answer(attempt, self.log, VOTED, part.min_ts, part.logs))
        elif committed is not None:
            # Another attempt was committed: this one must have been refused before (rules V1 and V5).
            state = (COMMITTED, committed[1]) if committed[0] == attempt[1] else (ABORTED, 0)
            self._when_durable(self._lsn, sender, Answer(attempt, self.log, *state))
        elif attempt[0][1] <= self.forgotten_ts:
            self._send.append((sender, Answer(attempt, self.log, FORGOTTEN)))
        else:
            lsn = self._log_refusal(attempt, "asked before it voted")
            self.host.probe(REFUSING)
            if part is not None:
                self._let_go(attempt)
            self._when_durable(lsn, sender, Answer(attempt, self.log, ABORTED))

    def _answer(self, sender: str, answer: Answer) -> None:
        part = self.parts.get(answer.attempt)
        if part is None or not part.min_ts:
            # Who has not voted did not ask: it is an answer to an earlier part, and a late copy of a question has made
            # another one since. Nobody decides about what is only held.
            return
        if part.decided is not None:
            if answer.state in (COMMITTED, ABORTED, FORGOTTEN):
                part.settled.add(answer.log)
                if part.settled.issuperset(part.logs):
                    self._log_record(Forgotten((answer.attempt,)))
                    self._drop(answer.attempt)
            return
        if answer.state == COMMITTED:
            self._decided(answer.attempt, part, answer.ts)
        elif answer.state == ABORTED:
            self._decided(answer.attempt, part, 0)
        elif answer.state == VOTED:
            part.answers[answer.log] = answer.ts
            self._decide_if_all_voted(answer.attempt, part)

    def _resolve(self, sender: str, resolve: Resolve) -> None:
        """A transaction whose coordinator is gone: committed, or refused for good up to a start; in doubt: later."""
        tx_id, number, start, _ = resolve
        committed = self.committed.get(tx_id)
        latest = self._latest.get(tx_id)
        part = None if latest is None else self.parts.get(latest)
        if committed is not None:
            self._when_durable(self._lsn, sender, Resolved(tx_id, number, COMMITTED, committed[1]))
        elif part is not None and part.min_ts and part.decided is None:
            self._ask_others(part.claim.attempt, part)  # whoever asks asks again
        elif tx_id[1] <= self.forgotten_ts:
            self._send.append((sender, Resolved(tx_id, number, FORGOTTEN)))
        else:
            if part is not None and part.claim.attempt[1] < start and not part.min_ts:
                self._refuse(part.claim.attempt, "its coordinator is gone")
            lsn = self._log_refusal((tx_id, start - 1), "its coordinator is gone")
            state = CLOSED if self._refused[tx_id] == FOREVER - 1 else ABORTED
            self._when_durable(lsn, sender, Resolved(tx_id, number, state))

    # -- reads

    def _read(self, sender: str, read: Read) -> None:
        at = read.at
        self._newest_ts = max(self._newest_ts, at)
        if at < self.cells.horizon and not read.stored:
            self._send.append((sender, NotServed(read.number, self.epoch, TOO_OLD)))
            return
        self._read_when_decided(sender, read)

    def _read_changes(self, sender: str, read: ReadChanges) -> None:
        self._newest_ts = max(self._newest_ts, read.at)
        self._read_when_decided(sender, read)

    def _read_when_decided(self, sender: str, read: Read | ReadChanges) -> None:
        at = read.at
        # Mark first, then see whom to wait for: whoever votes from now on commits above (rule H1).
        self._mark_read(read)
        waits_for: set[Attempt] = set()
        for key in read.keys:
            self._wait_for(self.holds.writers(key), at, waits_for)
        for start, stop, _, _ in read.ranges:
            self._wait_for(self.holds.writers_between(start, stop), at, waits_for)
        if not waits_for:
            self._answer_read(sender, read)
        elif len(self._readers) >= READERS_MAX:
            self._send.append((sender, NotServed(read.number, self.epoch, "too many readers wait")))
        else:
            self._reader_number += 1
            self._readers[self._reader_number] = _Reader(sender, read, waits_for)
            for attempt in waits_for:
                self.parts[attempt].readers.append(self._reader_number)

    def _mark_read(self, read: Read | ReadChanges) -> None:
        self.marks.mark(read.keys, read.at)
        self.marks.mark_ranges([each[0] for each in read.ranges], read.at)

    def _wait_for(self, claims: Iterable[Claim], at: int, waits_for: set[Attempt]) -> None:
        for claim in claims:
            part = self.parts[claim.attempt]
            # The rows of a deferred view's step are of its W1, whenever they are decided.
            if part.min_ts and (part.at or part.min_ts) <= at and part.decided is None:
                waits_for.add(claim.attempt)

    def _wake(self, attempt: Attempt, part: _Part) -> None:
        for number in part.readers:
            reader = self._readers.get(number)
            if reader is not None:
                reader.waits_for.discard(attempt)
                if not reader.waits_for:
                    del self._readers[number]
                    self._answer_read(reader.sender, reader.message)

    def _must_load(self, sender: str, message: Ask | Read) -> bool:
        """The first rows of a range may be others than those that were there when the request came: whom it waited
        for has deleted some, and the next ones may be in the store only."""
        if self.must_load is None or not message.ranges:
            return False
        return self.must_load(sender, message)

    def _answer_read(self, sender: str, read: Read | ReadChanges) -> None:
        if isinstance(read, ReadChanges):
            self._answer_changes(sender, read)
            return
        if read.stored:
            self._answer_stored(sender, read)
            return
        if self._must_load(sender, read):
            return
        at, cells = read.at, self.cells
        left, more = read.bytes_max, False
        rows = []
        for key in read.keys:
            if left <= 0:
                break
            version = cells.at(key, at)
            rows.append((version[0], version[1]))
            left -= row_bytes(version[1])
        ranges = []
        for start, stop, limit, last in read.ranges:
            if left <= 0:
                break
            found: list[tuple[bytes, int, Row]] = []
            for key in cells.keys(start, stop, last):
                ts, row, _ = cells.at(key, at)
                if row is not None:
                    found.append((key, ts, row))
                    left -= row_bytes(row)
                    if len(found) == limit:
                        break
                    if left <= 0:
                        more = True  # perhaps: nothing is known of what is behind
                        break
            ranges.append(tuple(found))
        self._show(sender, ReadRows(read.number, self.incarnation, tuple(rows), tuple(ranges), more))

    def _answer_stored(self, sender: str, read: Read) -> None:
        """Whoever is refused asks again; the next checkpoint has it."""
        if self._has_stored(read):
            rows = tuple((0, None) for _ in read.keys)
            self._show(sender, ReadRows(read.number, self.incarnation, rows, tuple(() for _ in read.ranges)))
        else:
            self.wanted_ts = max(self.wanted_ts, read.at)
            self._send.append((sender, NotServed(read.number, self.epoch, NOT_STORED)))

    def _has_stored(self, read: Read) -> bool:
        """Whether the store has all versions up to the timestamp, for good. Those of a deferred view that came with
        their keys may be final here, and were not where they came from: then they are not there yet."""
        journal, cells, at = self.journal, self.cells, read.at
        if journal is None or not isinstance(cells, StoredCells):
            return False
        stored = journal.stored
        ranges = [*((key, key + b"\0") for key in read.keys), *((start, stop) for start, stop, _, _ in read.ranges)]
        return all(stored.of(start) >= at and not cells.misses(start, stop, at) for start, stop in ranges)

    def _answer_changes(self, sender: str, read: ReadChanges) -> None:
        known = self.recent
        if known is None:
            self._send.append((sender, NotServed(read.number, self.epoch, "changes are not followed here")))
            return
        writes, refreshes, next_place = known.page(read.ids, read.start, read.at, read.limit)
        found = FoundChanges(read.number, self.incarnation, writes, refreshes, next_place, known.oldest(read.ids))
        self._show(sender, found)

    # -- keys that change their owner (`hand_over`)

    def refuse(self, attempts: list[Attempt], reason: str, now_ms: int) -> Outputs:
        """Those that have not voted."""
        self._now_ms = now_ms
        self._refuse_all(attempts, reason)
        return self._out()

    def refuse_readers(self, start: bytes, stop: bytes | None, reason: str) -> None:
        """Those that wait, for whatever: when they could be answered, the keys may be gone."""
        for number, reader in list(self._readers.items()):
            read = reader.message
            ranges = [(key, key + b"\0") for key in read.keys] + [(each[0], each[1]) for each in read.ranges]
            if any((stop is None or low < stop) and start < high for low, high in ranges):
                del self._readers[number]
                self._send.append((reader.sender, NotServed(read.number, self.epoch, reason)))

    def refuse_vote(self, sender: str, attempt: Attempt, reason: str, now_ms: int) -> Outputs:
        """A request to vote that cannot be granted here."""
        self._now_ms = now_ms
        self._refuse_for_good(attempt, sender, reason)
        return self._out()

    # -- catalogs that change

    def follow(self, stored: Stored) -> None:
        """The catalogs that there are: called before any record or vote of the newest one is taken."""
        opened = stored.opened
        # What is being made is made as of S.
        self._kept_ts = opened[-1].ts if opened and stored.unfinished else FOREVER
        for table_id in stored.dropped():
            self._dropped.setdefault(table_id, opened[-1].ts)

    def refuse_older(self, version: int, reason: str, now_ms: int) -> Outputs:
        """Requests to vote that were made by an earlier catalog and still wait for something (rule C1)."""
        self._now_ms = now_ms
        for attempt, part in list(self.parts.items()):
            prepare = part.prepare
            if prepare is not None and not part.min_ts and prepare.catalog_version < version and attempt in self.parts:
                self._refuse_for_good(attempt, part.coordinator, reason)
        return self._out()

    def has_older_votes(self, version: int) -> bool:
        """Whether something is undecided that was voted for by an earlier catalog."""
        return any(
            part.min_ts and part.decided is None and part.catalog_version < version for part in self.parts.values()
        )

    def adopt(self, adopted: Adopted, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        self._log_record(adopted)
        self._replay(adopted)
        return self._out()

    def refused_for_good(self) -> Iterable[Attempt]:
        return self._refused.items()

    def has_refused(self, attempt: Attempt) -> bool:
        return attempt[1] <= self._refused.get(attempt[0], 0)

    def note_refusal(self, attempt: Attempt) -> None:
        self._note_refusal(attempt, 0)

    @property
    def last_lsn(self) -> int:
        return self._lsn

    # -- house-keeping

    def _clean(self) -> None:
        """Forget what nobody can ask for any more. The newest timestamp that was seen is the clock."""
        self._timers.append((self._now_ms + self.clean_ms, "clean"))
        self._forget_versions(min(self._newest_ts - (self.history_ms << MS_SHIFT), self._needed_ts()))
        self._forget_transactions(self._newest_ts - (TX_MEMORY_MS << MS_SHIFT))
        if self.recent is not None:
            ages = (self.changes_ms, self.history_ms)
            old_ts, young_ts = (self._newest_ts - (age_ms << MS_SHIFT) for age_ms in ages)
            self.recent.forget(old_ts, young_ts, self._passed_versions(young_ts))

    def _passed_versions(self, young_ts: int) -> dict[int, int]:
        """By deferred view: what was published at `young_ts`."""
        return {}

    def _needed_ts(self) -> int:
        """Somebody will read at it, or above."""
        return min(self._newest_ts, self._kept_ts)

    # -- what a store may have (`journal`)

    def lowest_undecided(self) -> int:
        """Nothing that is not decided yet will have a version below it; FOREVER if there is nothing."""
        return min(
            (part.at or part.min_ts for part in self.parts.values() if part.min_ts and part.decided is None),
            default=FOREVER,
        )

    def final_ts(self) -> dict[bytes, int]:
        """By table: the versions above it may change yet, whatever the floor is."""
        return dict.fromkeys(self.unfinished, 0)

    def followed_ts(self) -> int:
        """The records of commits above it are needed, whatever the store has."""
        return FOREVER

    def to_keep(self) -> object:
        """What else must outlive the log."""
        return None

    def keep(self, kept: object) -> None:
        """At a restart."""

    @property
    def newest_ts(self) -> int:
        return self._newest_ts

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def reads(self) -> Iterable[Read]:
        """Those that wait for rows."""
        return (reader.message for reader in self._readers.values() if isinstance(reader.message, Read))

    def _forget_versions(self, horizon: int) -> None:
        """With versions, rows that are gone are forgotten: the floor keeps those below from coming back (rule H3)."""
        if horizon > self.cells.horizon:
            self.cells.horizon = horizon
            self.marks.forget_below(horizon)
            for table_id in [table_id for table_id, ts in self._dropped.items() if ts <= horizon]:
                self.cells.drop(*table_range(table_id))
                self._dropped[table_id] = FOREVER
            self.cells.prune()

    def forget_decided(self) -> None:
        """For a driver that knows that nobody will ask for any transaction again."""
        for attempt in [attempt for attempt, part in self.parts.items() if part.decided is not None]:
            del self.parts[attempt]
        for known in (self.committed, self._refused, self._refused_lsn):
            known.clear()

    def _forget_transactions(self, before: int) -> None:
        """They are never executed again: a tx_id says when it was made (rule V6)."""
        if before > self.forgotten_ts:
            self.forgotten_ts = before
            kept = {tx_id for part in self.parts.values() for tx_id in part.tx_ids}
            # Those of an hour are millions, about in the order of their commits: the younger are not looked at.
            old = [tx_id for tx_id, _ in takewhile(lambda item: item[1][1] <= before, self.committed.items())]
            for tx_id in [tx_id for tx_id in old if tx_id[1] <= before and tx_id not in kept]:
                del self.committed[tx_id]
            for known in (self._refused, self._refused_lsn):
                for tx_id in [tx_id for tx_id in known if tx_id[1] <= before and tx_id not in kept]:
                    del known[tx_id]


def voted(attempt: Attempt, part: _Part) -> Voted:
    """The record of a vote."""
    return Voted(
        attempt,
        part.claim.age[0],
        part.min_ts,
        part.catalog_version,
        part.logs,
        part.writes,
        part.refreshes,
        part.looked_up,
        part.looked_up_ranges,
        part.at,
        part.tx_ids[1:],
    )


def _lowest_above(highest: int, start: int) -> int:
    """The lowest timestamp from the start on that is above all marks and versions in the way, counted up in the last
    bits of an issued one (rules T1 and T2); 0 if there is no room for it."""
    if start > highest:
        return start
    return 0 if highest & RAISE_MAX == RAISE_MAX else highest + 1


def _found_bytes(found: tuple[bytes, Row]) -> int:
    return row_bytes(found[1])


def _looked_up(part: _Part) -> tuple[tuple[bytes, ...], tuple[Bounds, ...]]:
    """What is held and not written. Some was asked for in order to write it, and is not: that was looked up, too. So
    was a view row that is contributed to and held as if it were written: contributions that come later do not look at
    its versions, only a mark keeps them above."""
    wanted = part.claim.wanted
    refreshed = [refresh[1] for refresh in part.refreshes]
    keys = [key for key in refreshed if wanted[key] == WRITE]
    if len(wanted) > len(part.writes) + len(refreshed):
        written = {key for key, _, _ in part.writes}
        written.update(refreshed)
        keys += [key for key in wanted if key not in written and type(key) is bytes]
    return tuple(keys), tuple([key for key in wanted if type(key) is tuple]) if part.claim.has_ranges else ()


_HANDLERS: dict[type, Callable[..., None]] = {
    Ask: Participant._ask,
    Prepare: Participant._prepare,
    Decide: Participant._decide,
    Forget: Participant._forget,
    Inquire: Participant._inquire,
    Answer: Participant._answer,
    Resolve: Participant._resolve,
    Read: Participant._read,
    ReadChanges: Participant._read_changes,
    Timestamps: Participant._open_up,
}
#: Handled also before a floor is known: they concern votes that were given before the restart, or give it.
_ALWAYS = (Timestamps, Decide, Forget, Inquire, Answer)
