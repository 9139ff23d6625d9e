"""The cluster as the threads of one process see it: ask the coordinator of this process, and wait for the answer.

Whoever is not answered asks again until a deadline; that is done here, and where the machines run (`Asking`).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar, cast

from ...changetables import errors
from ...changetables.errors import CommitUnknown, Error, InternalError, TransactionConflict, Unavailable
from ...changetables.keys import table_range
from ...ltm.two_phase.messages import COMMITTED, KeyRange, Place, TxId
from ...ltm.two_phase.participant import HISTORY_MS, TOO_OLD
from ..two_phase.messages import ChangesAt, ChangesFound, Outcome, ReadAt, RowsAt, Submit
from ..two_phase.whole_reads import rest_of, with_more
from ..vms.step_rows import STEPS_ID
from .calls import Later

#: A read is given up after this long: more than it takes another LTM to take over.
READ_MS_MAX = 20_000
#: So long for a checkpoint of all LTMs: at some thousand rows per second, of a few million that are not in the store.
STORED_MS_MAX = 600_000
#: A transaction that was not answered for so long has an unknown outcome.
COMMIT_MS_MAX = 30_000
#: A read that was refused is asked again after this long.
AGAIN_MS = 20
#: A timestamp that is not older than this says when a transaction began; far below what tx_ids are remembered for.
RECENT_MS = 10_000

_COUNTER_BITS = 24
_SESSION_BITS = 36

A = TypeVar("A")


class Asking(Protocol):
    """Where the machines of this process run."""

    def ask(self, to: str, question: object) -> Future[object]:
        """From any thread. `question` is a Submit, or has a number; 0 is replaced by one of this process. It is asked
        again until it is answered; a future that is cancelled is forgotten."""

    def ask_later(self, to: str, question: object, then: Callable[[Any], None]) -> Later:
        """The same for the thread in which they run: `then` is called with the answer, or with None."""


class Requests:
    """`coordinator` is the name of the machine that is asked."""

    def __init__(self, asking: Asking, coordinator: str) -> None:
        self._asking = asking
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._session = secrets.randbits(_SESSION_BITS)
        self._counter = itertools.count(1)
        self._recent = (0, 0.0)
        self._turns = itertools.count()
        #: Of tables, indexes and views.
        self.ids: Sequence[int] = (STEPS_ID,)
        #: The thread in which the machines run: it must not wait for them.
        self.machines_thread = 0

    # -- timestamps

    def next_tx_id(self) -> TxId:
        """(a number nobody else has, a timestamp at or below its first start)."""
        number = next(self._counter)
        if number >> _COUNTER_BITS:
            with self._lock:
                self._session, self._counter = secrets.randbits(_SESSION_BITS), itertools.count(1)
            return self.next_tx_id()
        ts, seen_s = self._recent
        if not ts or time.monotonic() - seen_s > RECENT_MS / 1000:
            ts = self.now().at
        return self._session << _COUNTER_BITS | number, ts

    def now(self) -> RowsAt:
        """A new timestamp, above those of all commits that were acknowledged before, and the catalog of it."""
        # Not of nothing: only who answers for a key knows whether a timestamp comes from an earlier leader. Whose key
        # does not matter: not always the same LTM.
        ids = self.ids
        return self.read(0, (table_range(ids[next(self._turns) % len(ids)])[0],))

    def _saw(self, ts: int) -> None:
        self._recent = (max(ts, self._recent[0]), time.monotonic())

    # -- reads

    def read(self, at: int, keys: Sequence[bytes], ranges: Sequence[KeyRange] = (), some: bool = False) -> RowsAt:
        """Rows at one timestamp, a new one if `at` is 0. `some`: one page of them is enough."""
        question = ReadAt(0, at, tuple(keys), tuple(ranges), some=some)
        answer = self._read(question, READ_MS_MAX)
        while (rest := rest_of(question, answer)) is not None:
            answer = with_more(answer, self._read(rest, READ_MS_MAX))
        return answer

    def read_later(self, ranges: Sequence[KeyRange], then: Callable[[RowsAt | None], None]) -> Later:
        """One page at a new timestamp, for the thread of the machines. `then` is told what there is, which may be an
        error, or None if it is cancelled; nothing is asked for again that was refused."""
        return self._asking.ask_later(self._coordinator, ReadAt(0, 0, (), tuple(ranges), some=True), then)

    def await_stored(self, at: int, ids: Sequence[int]) -> None:
        """Until the store that all LTMs share has everything of some tables and views up to a timestamp that was issued
        before, or published. Then nothing at or below it will ever change there, whoever owns the keys (`saving`)."""
        ranges = tuple((*table_range(each), 0, False) for each in ids)
        self._read(ReadAt(0, at, (), ranges, stored=True), STORED_MS_MAX)

    def _read(self, question: ReadAt, ms_max: int) -> RowsAt:
        at = question.at
        give_up = time.monotonic() + ms_max / 1000
        while True:
            found = self.ask(question, RowsAt, give_up)
            if not found.error:
                if not at:
                    self._saw(found.at)
                return found
            if found.error == TOO_OLD:
                raise TransactionConflict(
                    f"the snapshot is too old: a cluster keeps what was overwritten for {HISTORY_MS // 1000} s",
                    hint="begin a new transaction or snapshot",
                )
            if time.monotonic() > give_up:
                raise _unavailable(found.error)
            time.sleep(AGAIN_MS / 1000)

    def changes(
        self, at: int, ids: tuple[int, ...], since: int, limit: int, places: tuple[tuple[str, Place], ...] = ()
    ) -> ChangesFound:
        """A page of what was committed to tables and views, as `ChangesAt` says."""
        give_up = time.monotonic() + READ_MS_MAX / 1000
        while True:
            found = self.ask(ChangesAt(0, at, ids, since, limit, places), ChangesFound, give_up)
            if not found.error:
                return found
            if time.monotonic() > give_up:
                raise _unavailable(found.error)
            time.sleep(AGAIN_MS / 1000)

    def ask(self, question: object, kind: type[A], give_up: float) -> A:
        """The answer, which is of that kind; Unavailable at the time `give_up` of the monotonic clock."""
        if threading.get_ident() == self.machines_thread:
            raise InternalError(f"{question!r} waits for itself", hint="please report this")
        future = self._asking.ask(self._coordinator, question)
        try:
            answer = future.result(max(give_up - time.monotonic(), 0))
        except (TimeoutError, CancelledError):
            future.cancel()
            raise _unavailable("nobody answered in time") from None
        except BaseException:
            future.cancel()  # an interrupt: nobody wants to know any more
            raise
        if not isinstance(answer, kind):
            raise InternalError(f"{question!r} was answered by {answer!r}", hint="please report this")
        return answer

    # -- transactions

    def commit(self, submit: Submit) -> int:
        """Its commit_ts."""
        future = self._asking.ask(self._coordinator, submit)
        try:
            outcome = future.result(COMMIT_MS_MAX / 1000)
        except (TimeoutError, CancelledError, Unavailable):
            future.cancel()
            raise unknown_outcome() from None
        return self._committed(cast(Outcome, outcome))

    async def commit_async(self, submit: Submit) -> int:
        future = asyncio.wrap_future(self._asking.ask(self._coordinator, submit))
        try:
            outcome = await asyncio.wait_for(future, COMMIT_MS_MAX / 1000)
        except (TimeoutError, Unavailable):
            raise unknown_outcome() from None
        return self._committed(cast(Outcome, outcome))

    def commit_later(self, submit: Submit, then: Callable[[Outcome | None], None]) -> Later:
        """For the thread of the machines: `then` is called with what `commit_ts_of` takes. Cancelled, it is not asked
        for again."""
        return self._asking.ask_later(self._coordinator, submit, then)

    def commit_ts_of(self, outcome: Outcome | None) -> int:
        if outcome is None:
            raise unknown_outcome()
        return self._committed(outcome)

    def _committed(self, outcome: Outcome) -> int:
        if outcome.state != COMMITTED:
            raise error_of(outcome)
        self._saw(outcome.commit_ts)
        return outcome.commit_ts


def error_of(outcome: Outcome) -> Error:
    """The error that an outcome tells of, as whoever raised it had it."""
    name, message, hint = outcome.error
    made = getattr(errors, name, None)
    if not (isinstance(made, type) and issubclass(made, Error)):
        return InternalError(f"{name}: {message}", hint=hint)
    return made(message, hint=hint)


def _unavailable(why: str) -> Unavailable:
    return Unavailable(f"the cluster does not answer: {why}", hint="try again; see whether its processes run")


def unknown_outcome() -> CommitUnknown:
    return CommitUnknown(
        "nobody said whether the transaction was committed", hint="look at the data, or submit it again by its tx_id"
    )
