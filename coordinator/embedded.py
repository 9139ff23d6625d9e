"""The embedded driver: transactions and one LTM in this process.

Threads combine (flat combining): a thread that finds the engine taken leaves its transaction in the queue and sleeps;
the thread that leads runs what is in the queue, or a part of it (`_share`), syncs once, and wakes the others. asyncio
tasks share their loop's thread: what they commit in one turn of the loop is one batch. A leader that has been served
hands the lead on, so that nobody works for others for long.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import TypeAlias, cast

from ..changetables.errors import (
    CommitUnknown,
    DataError,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    TransactionConflict,
)
from ..changetables.plan import Answers, Contribution, LookUp
from ..ltm.catalog import Catalog
from ..ltm.driver import Ltm
from ..ltm.loads import Load, Loaded
from ..ltm.outputs import CommitRecord
from ..ltm.participant import Inserts
from ..ltm.steps import Published, StepRecord
from ..ltm.tables import Tables
from ..ltm.versions import Horizon
from .inserting import TakingIn, taking_in
from .ports import LogFigures
from .timestamps import MS_SHIFT, TimestampOracle
from .transaction import Request, Transaction, check_table

ViewContributions: TypeAlias = tuple[tuple[int, list[Contribution]], ...]
#: Transactions that one flush covers at the most: bounds its size and the time for which the engine is taken.
BATCH_TRANSACTIONS_MAX = 256
#: Rows that are written by transactions run as one; a larger one is run alone.
GROUP_ROWS_MAX = 4_096


class Pending:
    """A transaction in the queue."""

    __slots__ = ("commit_ts", "decided", "error", "leads", "request")

    #: Whether its owner is a thread that sleeps until it is decided, and can take the lead instead.
    can_lead = False

    def __init__(self, request: Request) -> None:
        self.request = request
        self.commit_ts = 0
        self.error: BaseException | None = None
        self.decided = False
        self.leads = False

    def wake(self) -> None:
        """Tell the owner that it is decided, or, if `leads`, that it is to lead."""
        raise NotImplementedError

    def call_home(self, function: Callable[[], None]) -> bool:
        """Have a function called by the owner's loop; False if there is none."""
        return False

    def outcome(self) -> int:
        if self.error is not None:
            raise self.error
        return self.commit_ts


class _ThreadPending(Pending):
    __slots__ = ("sleep", "wake")

    can_lead = True

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        sleep = threading.Lock()
        sleep.acquire()
        self.sleep = sleep.acquire
        self.wake = sleep.release  # type: ignore[method-assign]


class CrowdPending(Pending):
    """One of many that a single thread has brought; that thread leads as soon as it can, and needs no call."""

    __slots__ = ()

    def wake(self) -> None:
        """Its owner waits for the lead, not for this."""


class _TaskPending(Pending):
    __slots__ = ("decision", "home", "loop")

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(request)
        self.loop = loop
        self.home = threading.get_ident()
        self.decision: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        if threading.get_ident() == self.home:
            self._tell()
        else:
            self.call_home(self._tell)

    def call_home(self, function: Callable[[], None]) -> bool:
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False  # the loop was closed: nobody waits there any more
        return True

    def _tell(self) -> None:
        if not self.decision.done():
            self.decision.set_result(None)


class _Group:
    """Transactions that read nothing and write different rows: they do not touch each other, so they can share a
    commit_ts (rule T2) and be run as one. Any other transaction is a group of its own."""

    __slots__ = ("_is_open", "_rows_count", "_written", "pendings")

    def __init__(self) -> None:
        self.pendings: list[Pending] = []
        self._is_open = True
        self._written: dict[str, set[bytes]] = {}
        self._rows_count = 0

    def takes(self, pending: Pending) -> bool:
        """Add a transaction if it fits. Few calls: it runs for each."""
        request = pending.request
        if self.pendings:
            written = self._written
            if len(self.pendings) == 1:
                # Only now: most groups of a single client have no second.
                first = self.pendings[0].request
                for name, intents in first.writes.items():
                    written[name] = set(intents)
                    self._rows_count += len(intents)
                self._is_open = first.snapshot is None and not _is_judged(first)
            if not self._is_open or request.snapshot is not None or self._rows_count >= GROUP_ROWS_MAX:
                return False
            if True in map(_judged, request.tables.values()):  # as `_is_judged`
                return False
            for name, intents in request.writes.items():
                if not written.get(name, _NO_KEYS).isdisjoint(intents):
                    return False
            for name, intents in request.writes.items():
                if name in written:
                    written[name].update(intents)
                else:
                    written[name] = set(intents)
                self._rows_count += len(intents)
        self.pendings.append(pending)
        return True


def _is_judged(request: Request) -> bool:
    """Whether what it leaves decides about it: together with others it would be judged by what all of them leave."""
    return True in map(_judged, request.tables.values())


_NO_KEYS: frozenset[bytes] = frozenset()
_state_of = attrgetter("state")
_row_of = itemgetter(1)  # of an intent
_decided = attrgetter("decided")
_request_of = attrgetter("request")
_judged = attrgetter("judged")


class Engine:
    """Commits transactions, changes the catalog, runs checkpoints in the background."""

    def __init__(self, ltm: Ltm, now_ms: Callable[[], int]) -> None:
        self.ltm = ltm
        self._now_ms = now_ms
        self._oracle = TimestampOracle()
        self._queue: deque[Pending] = deque()
        self._batch: list[Pending] = []
        #: How many the last flush had; and of the last one with several, whether its sync was the shorter part of it.
        self._batch_count = 1
        self._sync_is_short = False
        #: The loop that calls `_lead_for` in its next turn. Another loop may take its place: then it is called twice.
        self._called: asyncio.AbstractEventLoop | None = None
        self._leader = threading.Lock()
        self._failure: BaseException | None = None
        #: As of the last batch: nothing is overloaded before a checkpoint is due.
        self._checkpoint_due = True
        self._closing = False
        self._background_wanted = threading.Event()
        self._checkpoint_lock = threading.Lock()
        #: Is told, under the lock, that there is a new catalog.
        self.on_catalog: Callable[[], None] | None = None
        #: Takes transactions from the queue and runs them, where one LTM alone does not.
        self.several: Callable[[list[Pending], int], None] | None = None
        #: Held by whoever mends views: see `coordinator/verify.py`.
        self.repairing = threading.Lock()
        self._background = threading.Thread(target=self._run_background, name="viewtide-background", daemon=True)
        self.ltm_names: tuple[str, ...] = ("ltm-1",)
        self.checkpoints_count = 0
        self.commits_count = 0
        self.flushes_count = 0

    def start(self) -> None:
        """Recover, then serve."""
        self._oracle.seen(self.ltm.recover())
        self._recovered()
        unfinished = self.ltm.tables.catalog.without_unfinished()
        if unfinished is not self.ltm.tables.catalog:
            self.change_catalog(lambda _: unfinished)
        self._background.start()

    def _recovered(self) -> None:
        """The log was replayed."""

    # -- commit

    def commit(self, request: Request) -> int:
        """Commit from a thread; returns commit_ts once it is durable."""
        if self._leader.acquire(blocking=False):
            if self._batch_count == 1 and not self._queue and self.several is None and request.snapshot is None:
                return self._commit_alone(request)
            # Who leads never sleeps, and needs nothing to be woken with.
            own = Pending(request)
            self._lead(own, queued=False)
            if own.error is not None:
                raise own.error
            return own.commit_ts
        pending = _ThreadPending(request)
        self._enqueue(pending)
        if self._leader.acquire(blocking=False):
            self._lead(pending)
            return pending.outcome()
        interrupt: BaseException | None = None
        while not (pending.decided or pending.leads):
            try:
                pending.sleep()
            except BaseException as error:  # Ctrl-C: it is queued all the same, and others may hand it the lead
                interrupt = error
        if pending.leads and not pending.decided:
            self._lead(pending)
        if interrupt is not None:
            raise interrupt
        return pending.outcome()

    def _commit_alone(self, request: Request) -> int:
        """The common case of one client, as `_lead` does it, in few calls: after each sync the processor's caches are
        cold. The lead is held on entry; on return it is free or handed on."""
        ltm = self.ltm
        commit_ts = 0
        refused: Error | None = None
        try:
            if self._checkpoint_due and ltm.overloaded:
                self._relieve()
            with ltm.lock:
                try:
                    self._check_requests((request,))
                    commit_ts = self._commit(request)
                except Error as error:
                    refused = error
                try:
                    ltm.flush()
                except Error as error:
                    self.fail(error)
                    refused = _unknown(error)
            self.flushes_count += 1
            if refused is None:
                self.commits_count += 1
            if ltm.at_rest:
                self._checkpoint_due = False
            else:
                self._look_for_work()
        except BaseException as error:  # an interrupt: what was in flight is unknown
            self._abandon(error, None)
            raise
        if self._queue or not self._let_go():
            own = Pending(request)
            own.decided = True
            if not self._hand_on(own):
                self._lead(own)
        if refused is not None:
            raise refused
        return commit_ts

    def _enqueue(self, pending: Pending) -> None:
        if pending.request.snapshot is not None:
            # Until it is decided, whoever waits for it: validation needs the versions since its snapshot.
            self.ltm.horizon.pins[-id(pending)] = pending.request.snapshot
        self._queue.append(pending)

    def commit_many(self, crowd: Sequence[CrowdPending]) -> None:
        """Commit what has come to one thread together, with as few flushes as it takes. All are decided on return: each
        has its commit_ts or its error."""
        for pending in crowd:
            if pending.request.snapshot is None:
                self._queue.append(pending)
            else:
                self._enqueue(pending)
        while not all(map(_decided, crowd)):
            # Whoever leads meanwhile runs some of these, too.
            self._leader.acquire()
            if self._queue:
                self._lead(None)
            else:
                self._leader.release()
        # Who queued up while the lead was let go without a look at the queue found it taken and sleeps.
        self._lead_if_free()

    async def commit_async(self, request: Request) -> int:
        """Commit from a task: everything that the tasks of this loop commit in one turn goes into one flush.

        A task that is cancelled meanwhile does not learn the outcome: its transaction may be committed all the same.
        """
        loop = asyncio.get_running_loop()
        pending = _TaskPending(request, loop)
        self._enqueue(pending)
        if self._called is not loop:
            # Once a turn, not once a task.
            loop.call_soon(self._lead_for, loop)
            self._called = loop
        await pending.decision
        return pending.outcome()

    def _lead_for(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._called is loop:
            self._called = None
        self._lead_if_free()

    def _lead_if_free(self) -> None:
        if self._queue and self._leader.acquire(blocking=False):
            self._lead(None)

    def _lead(self, own: Pending | None, queued: bool = True) -> None:
        """Run what is queued. The lead is held on entry; on return it is free or handed on."""
        try:
            if own is not None and not queued:
                if own.request.snapshot is None:
                    self._queue.append(own)
                else:
                    self._enqueue(own)
            while True:
                if own is not None and self._batch_count > 1 and len(self._queue) == 1:
                    # The others were served a moment ago and come back as soon as they get their turn: here it is.
                    time.sleep(0)
                for pending in self._run_batch(BATCH_TRANSACTIONS_MAX if own is None else self._share()):
                    if pending is not own:
                        pending.wake()
                self._batch = []
                if own is not None and not own.decided:
                    continue
                if self._hand_on(own):
                    return
        except BaseException as error:  # an interrupt in the thread that leads: what was in flight is unknown
            self._abandon(error, own)
            raise

    def _hand_on(self, own: Pending | None) -> bool:
        """Let go of the lead; False if it has to be kept: the loop serves its own tasks, or somebody just came."""
        if not self._queue:
            return self._let_go()
        waiting = list(self._queue)
        heir = next((pending for pending in waiting if pending.can_lead), None)
        if heir is not None:
            heir.leads = True
            heir.wake()
            return True
        if own is None:
            return False
        self._leader.release()
        # A loop that is not run just now would call nobody: all of them are told, and the first that runs leads.
        tasks = {pending.loop: pending for pending in waiting if isinstance(pending, _TaskPending)}
        told = [pending.call_home(self._lead_if_free) for pending in tasks.values()]
        if any(told):
            return True
        return not self._queue or not self._leader.acquire(blocking=False)

    def _let_go(self) -> bool:
        """Let go of the lead, nobody is in the queue; False if somebody came, and it was taken again."""
        self._leader.release()
        # Who queued up after that look found the lead taken and sleeps.
        return not self._queue or not self._leader.acquire(blocking=False)

    def _abandon(self, error: BaseException, own: Pending | None) -> None:
        self.fail(error)
        waiting = [*self._batch, *self._queue]
        self._queue.clear()
        for pending in waiting:
            if not pending.decided:
                pending.error = CommitUnknown(f"the engine was interrupted: {error!r}", hint="reopen the database")
                pending.decided = True
            if pending is not own:
                pending.wake()
        self._leader.release()

    def _share(self) -> int:
        """How many transactions a thread takes into one flush, at the most. Where a sync takes longer than running
        them: all, because syncs are what costs. Else half of those that are about: while these wait for their sync,
        the other threads run."""
        if not self._sync_is_short:
            return BATCH_TRANSACTIONS_MAX
        return min((self._batch_count + len(self._queue) + 1) // 2, BATCH_TRANSACTIONS_MAX)

    def _run_batch(self, count_max: int) -> list[Pending]:
        ltm = self.ltm
        if self._checkpoint_due and ltm.overloaded:
            self._relieve()
        batch: list[Pending] = []
        self._batch = batch
        with ltm.lock:
            begun_s = time.perf_counter()
            if self.several is not None:
                self.several(batch, count_max)
            elif len(self._queue) == 1:
                # Few calls on this path: after each sync the processor's caches are cold.
                batch.append(self._queue.popleft())
                self._execute(batch)
            else:
                self._execute_groups(batch, count_max)
            run_s = time.perf_counter()
            try:
                ltm.flush()
            except Error as error:
                self.fail(error)
                for pending in batch:
                    # Also those that were refused: perhaps because of a transaction that is not durable now.
                    pending.error = _unknown(error)
        self.flushes_count += 1
        self._batch_count = len(batch)
        if self._batch_count > 1:
            self._sync_is_short = time.perf_counter() - run_s < run_s - begun_s
        for pending in batch:
            if pending.request.snapshot is not None:
                ltm.horizon.unpin(-id(pending))
            pending.decided = True
            if pending.error is None:
                self.commits_count += 1
        self._look_for_work()
        return batch

    def _look_for_work(self) -> None:
        """After a flush: is there something to be done in the background?"""
        self._checkpoint_due = self.ltm.checkpoint_due
        if self._checkpoint_due or self.ltm.log_wants_spare:
            self._background_wanted.set()

    def _execute_groups(self, batch: list[Pending], count_max: int) -> None:
        """Run what is queued, as much as one flush takes, and note it in `batch`."""
        queue = self._queue
        group = _Group()
        is_full = self.ltm.flush_full
        while queue and len(batch) < count_max and not is_full:
            pending = queue.popleft()
            batch.append(pending)
            if not group.takes(pending):
                self._execute(group.pendings)
                is_full = self.ltm.flush_full
                group = _Group()
                group.takes(pending)
        self._execute(group.pendings)

    def _relieve(self) -> None:
        """Memory is full: the checkpoint comes before the next transaction."""
        try:
            with self._checkpoint_lock:
                if self.ltm.overloaded:
                    self._checkpoint()
        except Error:
            return  # kept in _failure: the transactions of this batch are answered with it

    def _execute(self, pendings: list[Pending]) -> None:
        """Run transactions that do not touch each other up to the log buffer, as one: their change tables are added and
        propagated once. If that fails, each is run alone, and only those that fail by themselves are refused."""
        if not pendings:
            return
        try:
            if len(pendings) == 1:
                self._check_requests((pendings[0].request,))
                commit_ts = self._commit(pendings[0].request)
            else:
                requests = list(map(_request_of, pendings))
                self._check_requests(requests)
                commit_ts = self._commit(Request.together(requests))
        except Error as error:
            if len(pendings) > 1:
                for pending in pendings:
                    self._execute([pending])
            else:
                pendings[0].error = error
            return
        for pending in pendings:
            pending.commit_ts = commit_ts

    def _check_requests(self, requests: Sequence[Request]) -> None:
        """Whether they can be run at all, now."""
        if self._failure is not None:
            self._check_alive()
        tables = self.ltm.tables
        by_name = tables.by_name
        for request in requests:
            for name, rows in request.tables.items():
                if by_name.get(name) is not rows:
                    check_table(name, rows, request, tables)

    def _commit(self, request: Request) -> int:
        """One phase. Whatever is raised as an Error has changed nothing."""
        ltm = self.ltm
        try:
            if request.snapshot is not None:
                self._validate(request)
            inserts = self._inserted(request, ltm.tables) if request.inserts_only else None
            if inserts is None:
                transaction = self._propagated(request, ltm.tables)
                if not transaction.writes:
                    return ltm.horizon.durable_ts
                record = transaction.record(request.tx_ids, self._oracle.draw(self._now_ms()))
                outputs = ltm.loaded(ltm.participant.commit, record)
        except Error:
            raise
        except Exception as error:
            raise InternalError(f"a transaction failed unexpectedly: {error!r}", hint="please report this") from error
        try:
            if inserts is not None:
                ltm.accept_inserts(inserts)
                return inserts.commit_ts
            ltm.accept(outputs)
        except DataError:
            raise  # too large; nothing has changed
        except BaseException as error:  # memory and log may differ now: nothing may be answered any more
            self.fail(error)
            self._check_alive()
        return record.commit_ts

    def _validate(self, request: Request) -> None:
        """Strict serializability of interactive transactions: what was read at the snapshot still holds (rule V9)."""
        snapshot = request.snapshot
        if snapshot is None or not (request.keys or request.ranges):
            return
        ltm = self.ltm
        changed = ltm.participant.changed_since(snapshot, request.keys, request.ranges)
        if ltm.positions and changed is None:
            # Reads of deferred views are not validated: such a view was sync when it was read, and now it is behind.
            read = itertools.chain((key[0] for key in request.keys), (each[0] for each in request.ranges))
            deferred = [table_id for table_id in read if table_id in ltm.positions]
            changed = (deferred[0], b"") if deferred else None
        if changed is not None or ltm.changed_in_store(snapshot, request.keys, request.ranges):
            raise TransactionConflict(
                "another transaction changed what this one read", hint="run it again, for example with db.run()"
            )

    def _inserted(self, request: Request, tables: Tables) -> Inserts | None:
        """The common transaction, blind inserts into one table whose views ask for rows by key at the most, in few
        calls: what `_propagated` gives for it. None: it is not such a one, or a key may be there."""
        if request.inserted is not None:
            name, keys, rows = request.inserted
        elif len(request.writes) == 1:
            ((name, intents),) = request.writes.items()
            keys, rows = list(intents), list(map(_row_of, intents.values()))
        else:
            return None
        table = tables.by_name[name]
        # Here and below: what needs no function of its own spares one, each is cold after a sync.
        inserts = table.inserts if table.inserts_known else taking_in(table, tables)
        if inserts is None:
            return None
        if request.absent_ts != table.versions.changed_ts and not table.versions.surely_absent(keys):
            return None
        contributions = []
        for view in cast("tuple[TakingIn, ...]", inserts):
            found = view.contributions(rows, self._look_up)
            if found is None:
                return None
            if found[0]:
                contributions.append((view.view_id, found))
        refreshed = self.ltm.loaded(self.ltm.participant.refreshed, contributions)
        commit_ts = self._oracle.draw(self._now_ms())
        # Half the time of calling Inserts.
        return tuple.__new__(Inserts, (request.tx_ids, commit_ts, table, keys, rows, contributions, refreshed))

    def _look_up(self, wanted: list[LookUp]) -> Answers:
        return self.ltm.look_up(wanted, {})

    def _propagated(self, request: Request, tables: Tables) -> Transaction:
        ltm = self.ltm
        transaction = Transaction(request, tables)
        old = {}
        for name, intents in request.writes.items():
            old[name] = ltm.loaded(tables.by_name[name].versions.newest_rows, list(intents))
        transaction.old_rows(old)
        while transaction.wanted:
            wanted = transaction.wanted
            own = transaction.own_rows() if any(map(_state_of, wanted)) else {}
            transaction.looked_up(ltm.look_up(wanted, own))
        return transaction

    def contribute(self, view_id: int, contributions: list[Contribution], *, to_sync: bool = False) -> int:
        """Commit contributions to one view that come from no write: a repair. Returns commit_ts once it is durable.
        `to_sync`: only if it is synchronous still.

        Nothing is propagated to the views that are made from it. One that is still being computed would never hear of
        them, therefore none may be.
        """
        ltm = self.ltm
        with ltm.lock:
            self._check_alive()
            view = ltm.tables.views_by_id.get(view_id)
            if view is None:
                raise TransactionConflict("the view was dropped meanwhile", hint="look for it again")
            if to_sync and view.view.deferred:
                raise TransactionConflict("the view was switched meanwhile", hint="run it again")
            unfinished = [each.view.name for each in view.views if not each.view.ready_ts]
            if unfinished:
                raise TransactionConflict(
                    f"a view is being created from {view.view.name!r}", hint="run it again when that is done"
                )
            record = CommitRecord((), self.draw_ts(), ltm.tables.catalog.version, (), ((view_id, contributions),))
            outputs = ltm.loaded(ltm.participant.commit, record)
            try:
                ltm.accept(outputs)
            except DataError:
                raise  # too large; nothing has changed
            except BaseException as error:  # memory and log may differ now: nothing may be answered any more
                self.fail(error)
                raise
            try:
                ltm.flush()
            except BaseException as error:
                self.fail(error)
                raise
        return record.commit_ts

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Whoever writes to the store beside checkpoints does it here."""
        with self._checkpoint_lock:
            self._check_alive()
            yield

    def commit_load(
        self, load: Load, rows_count: int, contributions: ViewContributions, given_up: tuple[int, ...]
    ) -> int:
        """Make the rows of a bulk load visible; its commit_ts. It is durable on return. The caller holds the lock, and
        has judged it."""
        ltm = self.ltm
        commit_ts = self.draw_ts()
        record = CommitRecord((), commit_ts, ltm.tables.catalog.version, (), contributions)
        outputs = ltm.loaded(ltm.participant.commit, record)
        try:
            ltm.accept_load(Loaded(load.staged_ts, commit_ts, rows_count, given_up, load.table_ids[0]), outputs)
            ltm.flush()
        except DataError:
            raise  # too large; nothing has changed
        except BaseException as error:  # memory and log may differ now: nothing may be answered any more
            self.fail(error)
            raise
        self.commits_count += 1
        return commit_ts

    def accept_step(self, record: StepRecord) -> None:
        """Buffer and apply what a step of deferred views leaves; the caller holds the lock."""
        self._check_alive()
        try:
            self.ltm.accept_step(record)
        except DataError:
            raise  # too large; nothing has changed
        except BaseException as error:  # memory and log may differ now: nothing may be answered any more
            self.fail(error)
            raise

    def flush_steps(self) -> None:
        """Make durable what `accept_step` buffered; the caller holds the lock."""
        try:
            self.ltm.flush()
        except BaseException as error:
            self.fail(error)
            raise

    def seen_ts(self, ts: int) -> None:
        """A timestamp was issued before a restart: stay above it."""
        self._oracle.seen(ts)

    def now_ts(self) -> int:
        """What the clock says, as a timestamp; never before what is committed."""
        return max(self._now_ms() << MS_SHIFT, self.ltm.horizon.durable_ts)

    def draw_ts(self) -> int:
        """A timestamp above all earlier ones; the caller holds the lock."""
        return self._oracle.draw(self._now_ms())

    # -- catalog

    def change_catalog(self, change: Callable[[Catalog], Catalog], *, pin: int | None = None) -> None:
        """Apply a change between two transactions. `pin`: a reader that reads exactly there: all transactions before
        the change, none after it."""
        self.change_catalog_at(lambda catalog, _: change(catalog), pin=pin)

    def change_catalog_at(
        self,
        change: Callable[[Catalog, int], Catalog | Tables],
        *,
        pin: int | None = None,
        published: Callable[[Catalog, int], Sequence[Published]] | None = None,
    ) -> None:
        """As `change_catalog`, for a change that needs its own timestamp, and may have compiled the tables already.
        `published`: the watermarks that deferred views have from then on."""
        with self.ltm.lock:
            self.change_catalog_locked(change, pin=pin, published=published)

    def change_catalog_locked(
        self,
        change: Callable[[Catalog, int], Catalog | Tables],
        *,
        pin: int | None = None,
        published: Callable[[Catalog, int], Sequence[Published]] | None = None,
    ) -> None:
        """As `change_catalog_at`, for a caller that holds the lock."""
        self._check_alive()
        ts = self.draw_ts()
        prepared = self.ltm.prepared_catalog(change(self.ltm.tables.catalog, ts), ts)
        marks = published(prepared[0].catalog, ts) if published is not None else ()
        try:
            self.ltm.change_catalog(prepared, ts, marks)
        except BaseException as error:  # also an interrupt: the log may have it, memory not
            self.fail(error)
            raise
        if pin is not None:
            self.ltm.horizon.pin(pin)
        if self.on_catalog is not None:
            self.on_catalog()

    # -- checkpoints

    def checkpoint(self) -> None:
        """Write everything that is committed to the store now."""
        with self._checkpoint_lock:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self._check_alive()
        try:
            self.ltm.checkpoint()
        except BaseException as error:
            self.fail(error)
            raise
        self.checkpoints_count += 1

    def share(self, reader: int, horizon: Horizon) -> int:
        """Pin a timestamp and bring the store to it: other processes can read it there until it is unshared."""
        with self._checkpoint_lock:
            self._check_alive()
            at = self.ltm.share(reader, horizon)
            self._checkpoint()
            return at

    def unshare(self, readers: Sequence[int]) -> None:
        with self._checkpoint_lock:
            self._check_alive()
            self.ltm.unshare(readers)

    def checkpoint_if_due(self) -> None:
        """For work that writes without committing: it runs the checkpoint itself, as overloaded writers do."""
        if self.ltm.checkpoint_due:
            self.checkpoint()

    def _run_background(self) -> None:
        while True:
            self._background_wanted.wait()
            self._background_wanted.clear()
            if self._closing or self._failure is not None:
                return
            if self.ltm.log_wants_spare:
                self.ltm.prepare_log()
            try:
                if self.ltm.checkpoint_due:
                    self.checkpoint()
            except Error as error:
                self.fail(error)  # every later call answers with it
                return

    # -- life

    def check_alive(self) -> None:
        """Raise if the database has stopped."""
        self._check_alive()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise OperationalError(
                f"the database stopped after a failure: {self._failure}", hint="close it and open it again"
            ) from self._failure

    def log_figures(self) -> LogFigures:
        oldest, size = self.ltm.log_kept()
        return LogFigures(self.ltm.replayed_count, oldest, self.ltm.last_lsn, size)

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def close(self) -> None:
        """Write a last checkpoint, so that the next start replays nothing, and stop."""
        self._closing = True
        self._background_wanted.set()
        if self._background.is_alive():
            self._background.join()
        try:
            if self._failure is None:
                self.checkpoint()
        finally:
            # Nobody else writes to the store (`storing`), or begins to.
            with self._checkpoint_lock, self.ltm.lock:
                self.fail(InterfaceError("the database is closed"))
                self.ltm.close()


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _unknown(error: Error) -> CommitUnknown:
    return CommitUnknown(f"the commit log failed: {error}", hint="reopen the database to see whether it was committed")
