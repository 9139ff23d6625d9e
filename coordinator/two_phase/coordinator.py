"""The coordinator: decides many transactions at a time. It keeps nothing on disk, does no I/O and knows no clock.

A transaction is committed exactly when all votes on its list are durable: the coordinator only finds out first. If it
is gone, the participants find out from each other; a client that heard nothing submits again, by another coordinator,
which first makes sure that the earlier attempt is refused for good, or answers what became of it (rule V5).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from ...changetables import errors
from ...changetables.errors import Error, TransactionConflict
from ...changetables.types import Row
from ...ltm.cluster.messages import OLD_CATALOG, PENDING_CATALOG
from ...ltm.due import Due
from ...ltm.key_range import RangeMap
from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import (
    ABORTED,
    CLOSED,
    COMMITTED,
    FOREVER,
    Answer,
    Ask,
    Attempt,
    Decide,
    Draw,
    Forget,
    Inquire,
    KeyRange,
    NotServed,
    Read,
    ReadRows,
    Refused,
    Resolve,
    Resolved,
    Settled,
    Timestamps,
    Told,
    TxId,
    Vote,
)
from ...ltm.two_phase.pages import PAGE_BYTES_MAX, rest_of, row_bytes
from ...ltm.two_phase.participant import CHANGED, ENDED, EXISTS, OUTDATED, WOULD_WAIT
from ..timestamps import STEP
from ..transaction import Request, check_table
from .attempt import ASKING, VOTING, AttemptAt
from .messages import BUSY, CONFLICT, FAILED, UNKNOWN, Outcome, Outcomes, ReadAt, RowsAt, Submit, Wave, together
from .remembered import Remembered

#: Messages that are not answered are sent again after this long.
RESEND_MS = 150
#: Attempts without vote requests end after this long; it is longer than a participant waits.
ASKING_MS_MAX = 3_000
#: Requests to vote are repeated so often, then the participants are asked what became of it.
PREPARE_SENT_MAX = 3
#: Decisions are repeated so often; then participants ask each other.
DECIDE_SENT_MAX = 5
#: That all have a decision is told of so many transactions at once, or after this long; far below how long participants
#: wait for it before they ask.
FORGET_MAX = 32
FORGET_MS = 100
#: A transaction that is refused again and again ends as a conflict after so many attempts.
ATTEMPTS_MAX = 30
#: The first pause before another attempt; it doubles up to the second.
BACKOFF_MS = 2
BACKOFF_MS_MAX = 100
#: The pause where the catalog is being changed: a few messages and two writes in ZooKeeper.
CATALOG_MS = 15
#: So long a transaction by a catalog that this coordinator does not know yet waits for it: whoever leads tells LTMs of
#: a catalog, and everybody reads it in ZooKeeper, one a moment later than the other.
AHEAD_MS_MAX = 5_000
#: Outcomes that are remembered, for clients that ask twice.
OUTCOMES_MAX = 10_000
#: Transactions at work: beyond it newcomers are refused.
TRANSACTIONS_MAX = 10_000
#: Transactions that are run as one, and their rows.
GROUP_MEMBERS_MAX = 32
GROUP_ROWS_MAX = 1_024

RUN_AGAIN = "run it again, for example with db.run()"

PREPARING = "coordinator: about to ask for votes"
DECIDING = "coordinator: all votes are in"
ANSWERED = "coordinator: client answered, decision not sent"
ABORTING = "coordinator: refused"
RESOLVING = "coordinator: about to resolve"
PROBES = (PREPARING, DECIDING, ANSWERED, ABORTING, RESOLVING)


class _Work:
    """One transaction, over all its attempts."""

    __slots__ = (
        "asks_all",
        "attempts",
        "began_ms",
        "careful",
        "client",
        "current",
        "number",
        "outcome",
        "priority",
        "resolve",
        "resolving",
        "start",
        "submit",
        "together",
    )

    def __init__(self, client: str, submit: Submit, number: int, now_ms: int, together: bool) -> None:
        self.client = client
        self.submit = submit
        self.number = number
        self.began_ms = now_ms
        self.attempts = 0
        self.priority = 0
        self.start = 0
        self.current: AttemptAt | None = None
        #: Whether to find out first what became of earlier attempts; then the question's number.
        self.resolving = submit.again
        self.resolve = 0
        #: What to answer when no attempt can be committed any more.
        self.outcome: Outcome | None = None
        #: Whether nothing that is remembered may be relied on: it was, and was outdated, or made it fail.
        self.asks_all = False
        #: Whether all has to be looked at and held before votes are asked for.
        self.careful = False
        #: Whether its client takes several outcomes at once.
        self.together = together

    @property
    def can_join(self) -> bool:
        """Whether it may be run as one with others: it reads nothing, writes nothing but rows, and was not refused
        before."""
        submit = self.submit
        return not (self.attempts or self.resolving or submit.snapshot or submit.refreshes or submit.exact)


FoundRow: TypeAlias = tuple[bytes, int, Row]


class _RangePart:
    """What one owner has of a range."""

    __slots__ = ("more", "rows")

    def __init__(self) -> None:
        self.rows: tuple[FoundRow, ...] = ()
        #: Whether there is more behind the rows, perhaps.
        self.more = True


class _Reading:
    __slots__ = ("began_ms", "client", "epoch", "message", "ranges", "rows", "waiting")

    def __init__(self, client: str, message: ReadAt, epoch: int, now_ms: int) -> None:
        self.client = client
        self.message = message
        self.epoch = epoch
        self.began_ms = now_ms
        #: By the number of a part: its question, whom it goes to, and the places of its keys and of its ranges: which
        #: range, and which part of it.
        self.waiting: dict[int, tuple[str, Read, list[int], list[tuple[int, int]]]] = {}
        self.rows: list[tuple[int, Row | None] | None] = [None] * len(message.keys)
        #: Of each range its parts, in the order in which it is read.
        self.ranges: list[list[_RangePart]] = [[] for _ in message.ranges]

    def answer(self, bytes_max: int) -> RowsAt:
        """A page of all that was found: what comes first, as far as it is there and fits."""
        message = self.message
        left = bytes_max
        left_keys: list[int] = []
        rows: list[tuple[int, Row | None]] = []
        for place, row in enumerate(self.rows):
            if row is None or left <= 0:
                left_keys.append(place)
                row = (0, None)
            rows.append(row)
            left -= row_bytes(row[1])
        ranges: list[tuple[FoundRow, ...]] = []
        left_ranges: list[tuple[int, KeyRange]] = []
        for place, (wanted, parts) in enumerate(zip(message.ranges, self.ranges, strict=True)):
            found, rest = _first_rows(wanted, parts, left)
            left -= sum(row_bytes(row) for _, _, row in found)
            ranges.append(tuple(found))
            if rest is not None:
                left_ranges.append((place, rest))
        return RowsAt(
            message.number,
            message.at,
            tuple(rows),
            tuple(ranges),
            "",
            self.epoch,
            0,
            tuple(left_keys),
            tuple(left_ranges),
        )


class Coordinator:
    """`tables` compiles plans; no rows are in them."""

    def __init__(self, host: Host, oracle: str, tables: Tables, ranges: RangeMap) -> None:
        self.host = host
        self.oracle = oracle
        self.tables = tables
        self.ranges = ranges
        #: Earlier catalogs, which some submits are made by.
        self.tables_by_version: Callable[[int], Tables | None] = lambda version: None
        #: Is called when a transaction was made by a catalog that is newer than this one's.
        self.on_ahead: Callable[[], None] | None = None
        #: As of the participants.
        self.one_phase = True
        #: What one answer to a read has at the most, about.
        self.page_bytes = PAGE_BYTES_MAX
        #: Are told of an attempt before votes are asked for (what it raises ends it), and that it is committed.
        self.on_prepare: Callable[[AttemptAt], None] | None = None
        self.on_commit: Callable[[AttemptAt, int], None] | None = None
        self.work: dict[TxId, _Work] = {}
        #: Whose attempts are under way: of one transaction, or of several that are run as one.
        self._works: dict[Attempt, list[_Work]] = {}
        #: Decided attempts whose participants do not all have the decision yet.
        self._settling: dict[TxId, AttemptAt] = {}
        self.memory = Remembered()
        #: By log: attempts whose decisions all have, and it was not told yet.
        self._forgotten: dict[str, list[Attempt]] = {}
        #: A plain dictionary would look for its first entry behind all that are gone.
        self._outcomes: OrderedDict[TxId, Outcome] = OrderedDict()
        self._readings: dict[int, _Reading] = {}
        self._number = 0
        #: Who waits for a timestamp, and how many of them the request that is out will serve (rule T1).
        self._waiting: deque[_Work | Callable[[int, int], None]] = deque()
        self._drawing = 0
        self._draw_number = 0
        #: What may have to be sent again.
        self._draws: Due[int] = Due(RESEND_MS, partial(self._set_timer, "draws"))
        self._asked: Due[Attempt] = Due(RESEND_MS, partial(self._set_timer, "attempts"))
        self._decisions: Due[Attempt] = Due(RESEND_MS, partial(self._set_timer, "decisions"))
        #: While several are taken in: they draw together.
        self._gathering = False
        self._now_ms = 0
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        # Numbers of an earlier life must not be taken for those of this one.
        self._number = self._draw_number = incarnation << 32
        return self._out()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        _HANDLERS[type(message)](self, sender, message)
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a coordinator has no log")

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        assert isinstance(token, tuple)
        what, key = token
        if what == "draws":
            for _ in self._draws.take(now_ms, self._is_drawing):
                self._request_timestamps()
        elif what == "attempts":
            for attempt in self._asked.take(now_ms, self._is_awaited):
                self._resend(attempt)
        elif what == "decisions":
            for attempt in self._decisions.take(now_ms, self._is_settling):
                self._decide_again(attempt)
        elif what == "read":
            self._resend_read(key)
        elif what == "forget":
            self._forget_now()
        elif what == "decide":
            if self._is_settling(key):
                self._decide_again(key)
        elif what == "again":
            work = self.work.get(key)
            if work is not None and work.current is None:
                self._draw(work)
        return self._out()

    def _set_timer(self, what: str, at_ms: int) -> None:
        self._timers.append((at_ms, (what, None)))

    def _is_drawing(self, number: int) -> bool:
        return bool(self._drawing) and number == self._draw_number

    def _is_awaited(self, attempt: Attempt) -> bool:
        """Whether it is not decided yet."""
        work = self.work.get(attempt[0])
        return work is not None and work.start == attempt[1]

    def _is_settling(self, attempt: Attempt) -> bool:
        settling = self._settling.get(attempt[0])
        return settling is not None and settling.start == attempt[1]

    def _out(self) -> Outputs:
        if not (self._send or self._timers):
            return Outputs()
        out = Outputs((), tuple(self._send), tuple(self._timers))
        self._send, self._timers = [], []
        return out

    def _to_log(self, log: str, message: object) -> None:
        self._send.append((self.ranges.process(log), message))

    # -- timestamps

    def _want_timestamp(self, then: _Work | Callable[[int, int], None]) -> None:
        self._waiting.append(then)
        if not (self._drawing or self._gathering):
            self._request_timestamps()

    def _request_timestamps(self) -> None:
        self._drawing = len(self._waiting)
        self._draw_number += 1
        self._send.append((self.oracle, Draw(self._draw_number, self._drawing)))
        self._draws.add(self._draw_number, self._now_ms)

    def _timestamps(self, sender: str, message: Timestamps) -> None:
        if message.number != self._draw_number or not self._drawing:
            return
        self._drawing = 0
        served = [self._waiting.popleft() for _ in range(min(message.issued, len(self._waiting)))]
        works: list[tuple[_Work, int]] = []
        for number, then in enumerate(served):
            if isinstance(then, _Work):
                if self._is_ahead(then):
                    self._put_off(then)
                else:
                    works.append((then, message.first + number * STEP))
            else:
                then(message.first + number * STEP, message.epoch)
        for (work, start), *others in self._groups(works):
            self._begin(work, start, message.epoch, [other for other, _ in others])
        if self._waiting and not self._drawing:
            self._request_timestamps()

    # -- transactions

    def _submit(self, client: str, submit: Submit, together: bool = False) -> None:
        tx_id = submit.tx_id
        if not submit.writes_something:
            error = ("ProgrammingError", "a transaction that writes nothing", "read at a snapshot instead")
            self._send.append((client, Outcome(tx_id, FAILED, 0, error)))
            return
        known = self._outcomes.get(tx_id)
        work = self.work.get(tx_id)
        if known is not None:
            self._send.append((client, known))
        elif work is not None:
            work.client = client
        elif len(self.work) >= TRANSACTIONS_MAX:
            error = (BUSY, "too many transactions at once", "try again")
            if not submit.again:
                self._send.append((client, Outcome(tx_id, CONFLICT, 0, error)))
        else:
            self._number += 1
            work = self.work[tx_id] = _Work(client, submit, self._number, self._now_ms, together)
            self._draw(work)

    def _wave(self, sender: str, message: Wave) -> None:
        self._gathering = True
        for client, submit in message.submits:
            self._submit(client, submit, together=True)
        self._gathering = False
        if self._waiting and not self._drawing:
            self._request_timestamps()

    def _draw(self, work: _Work) -> None:
        self._want_timestamp(work)

    def _groups(self, works: list[tuple[_Work, int]]) -> Iterator[list[tuple[_Work, int]]]:
        """Transactions that read nothing and write different rows do not touch each other: they can share a commit_ts
        (rule T2), and are run as one."""
        group: list[tuple[_Work, int]] = []
        written: set[bytes] = set()
        for work, start in works:
            if not work.can_join or self._is_judged(work.submit):
                yield [(work, start)]
                continue
            keys = [key for _, intents in work.submit.writes for key, _ in intents]
            if group and not (
                len(group) < GROUP_MEMBERS_MAX and len(written) < GROUP_ROWS_MAX and written.isdisjoint(keys)
            ):
                yield group
                group, written = [], set()
            group.append((work, start))
            written.update(keys)
        if group:
            yield group

    def _is_ahead(self, work: _Work) -> bool:
        """Whether whoever made it knows a newer catalog: another process did, which passed it on."""
        version = work.submit.catalog_version
        if version <= self.tables.catalog.version or work.resolving:
            return False
        return self._now_ms - work.began_ms < AHEAD_MS_MAX

    def _put_off(self, work: _Work) -> None:
        """Until the catalog is here."""
        if self.on_ahead is not None:
            self.on_ahead()
        self._timers.append((self._now_ms + CATALOG_MS, ("again", work.submit.tx_id)))

    def _is_judged(self, submit: Submit) -> bool:
        """Whether what it leaves decides about it: run as one with others, all of them would be judged together."""
        tables = self.tables.by_name
        return any(name not in tables or tables[name].judged for name, _ in submit.writes)

    def _begin(self, work: _Work, start: int, epoch: int, others: list[_Work]) -> None:
        """`others` are run as one with it."""
        if work.resolving:
            work.start = start
            work.priority = work.priority or start
            self._begin_resolve(work)
            return
        works = [work, *others]
        try:
            submits = [self._as_now(each.submit) for each in works]
        except Error as error:
            self._cannot_begin(works, error)
            return
        submit = submits[0] if not others else together(submits)
        priority = work.priority or start
        members = tuple([other.submit.tx_id for other in others])
        attempt = AttemptAt(
            submit,
            start,
            priority,
            epoch,
            self.tables,
            self.ranges,
            self._now_ms,
            members,
            work.careful,
            self.memory,
            not work.asks_all,
        )
        self._works[attempt.attempt] = works
        for each in works:
            each.start, each.priority = start, priority
            each.attempts += 1
            each.current = attempt
        self._asked.add((work.submit.tx_id, start), self._now_ms)
        self._go_on(work, attempt, attempt.begin())

    def _as_now(self, submit: Submit) -> Submit:
        """With rows as the tables are now. It raises if one of them is gone, or has become another one."""
        tables, version = self.tables, submit.catalog_version
        if version == tables.catalog.version:
            return submit
        if submit.exact:
            raise TransactionConflict(OLD_CATALOG, hint=RUN_AGAIN)
        if not version:
            gone = next((name for name, _ in submit.writes if name not in tables.by_name), None)
            if gone is not None:
                raise TransactionConflict(f"table {gone!r} was dropped meanwhile", hint=RUN_AGAIN)
            return submit
        if version > tables.catalog.version:
            raise TransactionConflict("the catalog that it was made by has not come here", hint=RUN_AGAIN)
        before = self.tables_by_version(version)
        if before is None:
            raise TransactionConflict("the catalog has changed again and again meanwhile", hint=RUN_AGAIN)
        request = Request(submit.tx_id)
        for name, intents in submit.writes:
            request.writes[name] = dict(intents)
            check_table(name, before.by_name[name], request, tables)
        return submit._replace(writes=tuple((name, tuple(some.items())) for name, some in request.writes.items()))

    def _cannot_begin(self, works: list[_Work], error: Error) -> None:
        if len(works) == 1:
            self._close(works[0], _outcome_of(works[0], error))
            return
        for each in works:
            # One of them cannot be done: each is tried alone.
            each.attempts += 1
            self._draw(each)

    def _current(self, attempt: tuple[TxId, int]) -> tuple[_Work, AttemptAt] | None:
        """The work on an attempt, if it is still the one that runs."""
        work = self.work.get(attempt[0])
        if work is None or work.current is None or work.start != attempt[1]:
            return None
        return work, work.current

    def _told(self, sender: str, told: Told) -> None:
        found = self._current(told.attempt)
        if found is None or found[1].state != ASKING:
            return
        work, attempt = found
        log = next((log for log, ask in attempt.waiting.items() if ask.number == told.number), None)
        if log is None:
            return
        try:
            asks = attempt.told(log, told)
        except Error as error:
            self._failed(attempt, error)
            return
        if asks is not None:
            self._go_on(work, attempt, asks)

    def _go_on(self, work: _Work, attempt: AttemptAt, asks: list[tuple[str, Ask]]) -> None:
        """Ask; if there is nothing to ask, for the votes."""
        for log, ask in asks:
            self._to_log(log, ask)
        if asks:
            return
        try:
            if self.on_prepare is not None:
                self.on_prepare(attempt)
        except Error as error:
            self._failed(attempt, error)
            return
        self._prepare(work, attempt)

    def _failed(self, attempt: AttemptAt, error: Error) -> None:
        """It cannot be done."""
        works = self._abort(attempt)
        if attempt.relied:
            # Perhaps it can, with rows as they are now.
            self._relied_wrongly(attempt, works)
            for each in works:
                self._draw(each)
            return
        if len(works) > 1:
            # One of them cannot be done: each is tried alone.
            for each in works:
                self._draw(each)
            return
        self._close(works[0], _outcome_of(works[0], error))

    def fail(self, attempt: Attempt, error: Error) -> Outputs:
        """Rows that it needs cannot be read. No vote was asked for yet."""
        found = self._current(attempt)
        if found is not None and found[1].state == ASKING:
            self._failed(found[1], error)
        return self._out()

    def _prepare(self, work: _Work, attempt: AttemptAt) -> None:
        self.host.probe(PREPARING)
        for log, prepare in attempt.prepare():
            self._to_log(log, prepare)

    def _refused(self, sender: str, refused: Refused) -> None:
        """A participant let go of its holds. Once vote requests are out, only votes count."""
        found = self._current(refused.attempt)
        if found is None or found[1].state != ASKING:
            return
        for work in self._abort(found[1]):
            self._try_again(work, refused.reason)

    def _abort(self, attempt: AttemptAt) -> list[_Work]:
        """Tell the participants; returns whose attempt it was."""
        self.host.probe(ABORTING)
        for log in attempt.prepared or attempt.asked:
            self._to_log(log, Decide(attempt.attempt, 0))
        return self._ended(attempt)

    def _ended(self, attempt: AttemptAt) -> list[_Work]:
        works = self._works.pop(attempt.attempt)
        for work in works:
            work.current = None
        return works

    def _try_again(self, work: _Work, reason: str) -> None:
        tx_id = work.submit.tx_id
        work.careful = work.careful or reason in (WOULD_WAIT, EXISTS)
        if reason == CHANGED:
            self._close(work, Outcome(tx_id, CONFLICT, 0, ("TransactionConflict", reason, RUN_AGAIN)))
        elif reason == ENDED:
            # Perhaps it is committed: somebody else submitted it, or this is an old copy.
            work.resolving = True
            self._draw(work)
        elif reason in (OLD_CATALOG, PENDING_CATALOG):
            # Nobody else wants what it wants: the attempt does not count.
            self._timers.append((self._now_ms + CATALOG_MS, ("again", tx_id)))
            work.attempts = min(work.attempts, ATTEMPTS_MAX // 2)
        elif work.attempts >= ATTEMPTS_MAX:
            error = ("TransactionConflict", f"refused again and again: {reason}", RUN_AGAIN)
            self._close(work, Outcome(tx_id, CONFLICT, 0, error))
        elif reason == OUTDATED:
            self._draw(work)  # nobody is in its way
        else:
            pause_ms = min(BACKOFF_MS_MAX, BACKOFF_MS << min(work.attempts, 6))
            # Not all at once: the number spreads them without chance.
            spread_ms = work.number * 7919 % pause_ms
            self._timers.append((self._now_ms + (pause_ms + spread_ms) // 2, ("again", tx_id)))

    def _vote(self, sender: str, vote: Vote) -> None:
        found = self._current(vote.attempt)
        if found is None:
            return
        work, attempt = found
        if attempt.vote(vote.log, vote.min_ts):
            self._decided(work, attempt, vote.reason)

    def _decided(self, work: _Work, attempt: AttemptAt, reason: str) -> None:
        self.host.probe(DECIDING)
        commit_ts = attempt.decided
        assert commit_ts is not None
        works = self._ended(attempt)
        tx_id = work.submit.tx_id
        if commit_ts:
            if self.on_commit is not None:
                self.on_commit(attempt, commit_ts)
            # Whoever relied on what it changed would be refused.
            for _, writes in attempt.transaction.writes:
                self.memory.forget([key for key, old, _ in writes if old is not None])
            self._committed(works, commit_ts)
            self.host.probe(ANSWERED)
        if len(attempt.prepared) > 1 or not commit_ts or not self.one_phase:
            for log in attempt.prepared:
                self._to_log(log, Decide(attempt.attempt, commit_ts))
            if commit_ts:
                self._settling[tx_id] = attempt
                attempt.resent = 0
                self._decisions.add(attempt.attempt, self._now_ms)
        if not commit_ts:
            if reason == OUTDATED:
                self._relied_wrongly(attempt, works)
            for each in works:
                self._try_again(each, reason)

    def _relied_wrongly(self, attempt: AttemptAt, works: list[_Work]) -> None:
        self.memory.forget(attempt.relied)
        for work in works:
            work.asks_all = True

    def _committed(self, works: list[_Work], commit_ts: int) -> None:
        """Who submitted several of them is told once."""
        outcomes: dict[str, list[Outcome]] = {}
        for work in works:
            outcome = Outcome(work.submit.tx_id, COMMITTED, commit_ts)
            if work.together:
                self._note_outcome(outcome)
                outcomes.setdefault(work.client, []).append(outcome)
            else:
                self._end(work, outcome)
        for client, some in outcomes.items():
            self._send.append((client, some[0] if len(some) == 1 else Outcomes(tuple(some))))

    def _end(self, work: _Work, outcome: Outcome) -> None:
        self._note_outcome(outcome)
        self._send.append((work.client, outcome))

    def _note_outcome(self, outcome: Outcome) -> None:
        self.work.pop(outcome.tx_id, None)
        self._outcomes[outcome.tx_id] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)

    def _settled(self, sender: str, settled: Settled) -> None:
        attempt = self._settling.get(settled.attempt[0])
        if attempt is None or attempt.attempt != settled.attempt:
            return
        attempt.settled.add(settled.log)
        if attempt.settled.issuperset(attempt.prepared):
            del self._settling[settled.attempt[0]]
            for log in attempt.prepared:
                self._forget_later(log, attempt.attempt)

    def _forget_later(self, log: str, attempt: Attempt) -> None:
        """There is no hurry: they are told of several at once."""
        if not self._forgotten:
            self._timers.append((self._now_ms + FORGET_MS, ("forget", None)))
        attempts = self._forgotten.setdefault(log, [])
        attempts.append(attempt)
        if len(attempts) >= FORGET_MAX:
            self._to_log(log, Forget(tuple(attempts)))
            attempts.clear()

    def _forget_now(self) -> None:
        forgotten, self._forgotten = self._forgotten, {}
        for log, attempts in forgotten.items():
            if attempts:
                self._to_log(log, Forget(tuple(attempts)))

    # -- what is not answered

    def _decide_again(self, attempt: Attempt) -> None:
        settling = self._settling[attempt[0]]
        settling.resent += 1
        if settling.resent > DECIDE_SENT_MAX:
            del self._settling[attempt[0]]
            return
        for log in settling.prepared:
            if log not in settling.settled:
                self._to_log(log, Decide(attempt, settling.decided or 0))
        self._timers.append((self._now_ms + (RESEND_MS << settling.resent), ("decide", attempt)))

    def _resend(self, awaited: Attempt) -> None:
        work = self.work[awaited[0]]
        if work.current is None:
            if work.resolving:
                self._ask_resolve(work)
            return
        attempt = work.current
        if attempt.state == ASKING and self._now_ms - attempt.began_ms > ASKING_MS_MAX:
            for each in self._abort(attempt):
                self._try_again(each, "no answer")
            return
        attempt.resent += 1
        if attempt.state == ASKING:
            for log, ask in attempt.waiting.items():
                self._to_log(log, ask)
        else:
            for log, prepare in attempt.prepared.items():
                if log not in attempt.votes:
                    again = attempt.resent <= PREPARE_SENT_MAX
                    self._to_log(log, prepare if again else Inquire(attempt.attempt, log))
        self._asked.add(awaited, self._now_ms)

    def _answer(self, sender: str, answer: Answer) -> None:
        """Votes got lost: what a participant knows of it."""
        found = self._current(answer.attempt)
        if found is None or found[1].state != VOTING:
            return
        work, attempt = found
        if answer.state == COMMITTED:
            attempt.end(answer.ts)
            self._decided(work, attempt, "")
        elif answer.state == ABORTED:
            attempt.end(0)
            self._decided(work, attempt, "a participant had not voted in time")
        elif attempt.vote(answer.log, answer.ts):
            self._decided(work, attempt, "")

    def _close(self, work: _Work, outcome: Outcome) -> None:
        """It was not committed: only when that is certain for every copy of it, wherever it is, say so."""
        work.outcome = outcome
        work.current, work.start, work.resolving = None, FOREVER, True
        self._begin_resolve(work)

    def _begin_resolve(self, work: _Work) -> None:
        self._number += 1
        work.resolve = self._number
        self._ask_resolve(work)

    def _ask_resolve(self, work: _Work) -> None:
        """What became of earlier attempts? The owner of the first written key is on all their lists."""
        self.host.probe(RESOLVING)
        key = work.submit.first_key
        self._to_log(self.ranges.owner(key), Resolve(work.submit.tx_id, work.resolve, work.start, key))
        self._asked.add((work.submit.tx_id, work.start), self._now_ms)

    def _resolved(self, sender: str, resolved: Resolved) -> None:
        work = self.work.get(resolved.tx_id)
        if work is None or not work.resolving or work.resolve != resolved.number:
            return
        work.resolving = False
        if resolved.state == COMMITTED:
            self._end(work, Outcome(resolved.tx_id, COMMITTED, resolved.ts))
        elif resolved.state == ABORTED:
            self._draw(work)
        elif resolved.state == CLOSED:
            error = ("TransactionConflict", "it was refused before", RUN_AGAIN)
            self._end(work, work.outcome or Outcome(resolved.tx_id, CONFLICT, 0, error))
        else:
            error = ("CommitUnknown", "what became of the transaction is too long ago to tell", "look at the data")
            self._end(work, Outcome(resolved.tx_id, UNKNOWN, 0, error))

    # -- reads

    def _read_at(self, client: str, message: ReadAt) -> None:
        if message.at:
            self._begin_read(client, message, message.at, 0)
        else:
            self._want_timestamp(lambda ts, epoch: self._begin_read(client, message, ts, epoch))

    def _begin_read(self, client: str, message: ReadAt, at: int, epoch: int) -> None:
        reading = _Reading(client, message._replace(at=at), epoch, self._now_ms)
        parts: dict[str, tuple[list[int], list[tuple[tuple[int, int], KeyRange]]]] = {}
        for place, key in enumerate(message.keys):
            parts.setdefault(self.ranges.owner(key), ([], []))[0].append(place)
        for place, (start, stop, limit, last) in enumerate(message.ranges):
            owners = list(self.ranges.owners(start, stop))
            for log, low, high in reversed(owners) if last else owners:
                name = (place, len(reading.ranges[place]))
                reading.ranges[place].append(_RangePart())
                parts.setdefault(log, ([], []))[1].append((name, (low, high, limit, last)))
        for log, (places, ranges) in parts.items():
            self._number += 1
            keys = tuple(message.keys[place] for place in places)
            asked = tuple(each for _, each in ranges)
            bytes_max = max(self.page_bytes // len(parts), 1)
            read = Read(self._number, at, epoch, keys, asked, message.stored, bytes_max)
            reading.waiting[self._number] = (log, read, places, [name for name, _ in ranges])
            self._readings[self._number] = reading
            self._to_log(log, read)
            self._timers.append((self._now_ms + RESEND_MS, ("read", self._number)))
        if not parts:
            self._end_read(reading, "")

    def _resend_read(self, number: int) -> None:
        reading = self._readings.get(number)
        if reading is None:
            return
        if self._now_ms - reading.began_ms > ASKING_MS_MAX:
            self._end_read(reading, "no answer")
            return
        log, read, _, _ = reading.waiting[number]
        self._to_log(log, read)
        self._timers.append((self._now_ms + RESEND_MS, ("read", number)))

    def _read_rows(self, sender: str, found: ReadRows) -> None:
        reading = self._readings.pop(found.number, None)
        if reading is None:
            return
        _, _, places, range_places = reading.waiting.pop(found.number)
        for place, row in zip(places, found.rows, strict=False):
            reading.rows[place] = row
        for (place, number), rows in zip(range_places, found.ranges, strict=False):
            part = reading.ranges[place][number]
            part.rows, part.more = rows, False
        if found.more:
            place, number = range_places[len(found.ranges) - 1]
            reading.ranges[place][number].more = True
        if not reading.waiting:
            self._end_read(reading, "")

    def _not_served(self, sender: str, message: NotServed) -> None:
        reading = self._readings.get(message.number)
        if reading is not None:
            self._end_read(reading, message.reason)

    def _end_read(self, reading: _Reading, error: str) -> None:
        for number in reading.waiting:
            self._readings.pop(number, None)
        wanted = reading.message
        answer = RowsAt(wanted.number, wanted.at, (), (), error) if error else reading.answer(self.page_bytes)
        self._send.append((reading.client, answer))


def _outcome_of(work: _Work, error: Error) -> Outcome:
    state = CONFLICT if isinstance(error, TransactionConflict) else FAILED
    # By the name that everybody knows it by: damage is an OperationalError to those who are told of it.
    name = next(kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return Outcome(work.submit.tx_id, state, 0, (name, error.message, error.hint))


def _first_rows(
    wanted: KeyRange, parts: Sequence[_RangePart], bytes_max: int
) -> tuple[list[FoundRow], KeyRange | None]:
    """The first rows of a range, as many as are wanted, known and fit; and what is left of it."""
    limit = wanted[2]
    found: list[FoundRow] = []
    left, more = bytes_max, False
    for part in parts:
        for row in part.rows:
            if len(found) == limit > 0:
                return found, None
            if left <= 0:
                more = True
                break
            found.append(row)
            left -= row_bytes(row[2])
        if more or part.more:
            more = True
            break
    if not more or len(found) == limit > 0:
        return found, None
    return found, rest_of(wanted, found[-1][0], len(found)) if found else wanted


_HANDLERS: dict[type, Callable[..., None]] = {
    Submit: Coordinator._submit,
    Wave: Coordinator._wave,
    Timestamps: Coordinator._timestamps,
    Told: Coordinator._told,
    Refused: Coordinator._refused,
    Vote: Coordinator._vote,
    Settled: Coordinator._settled,
    Answer: Coordinator._answer,
    Resolved: Coordinator._resolved,
    ReadAt: Coordinator._read_at,
    ReadRows: Coordinator._read_rows,
    NotServed: Coordinator._not_served,
}
