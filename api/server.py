"""A served node: one loop between the clients' messages and a database.

The loop drains all that has arrived, runs what is short, commits all transactions together with one sync, and sends one
message to each client. What may wait or take long runs in worker threads; the loop never waits for them.

A transaction that only wrote comes as one message. One that reads is a *session*: a real `Transaction` here, to which
the client ships its writes before a read that could see them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from . import __version__
from .changetables.errors import (
    Busy,
    CommitUnknown,
    DataError,
    Error,
    InterfaceError,
    InternalError,
    LocalProtocolError,
    OperationalError,
    RemoteProtocolError,
    TransactionConflict,
    Unavailable,
)
from .changetables.serialize import table_to_plain
from .coordinator.cluster.calls import Later
from .coordinator.cluster.engine import ClusterEngine
from .coordinator.cluster.requests import COMMIT_MS_MAX
from .coordinator.embedded import CrowdPending, Engine, wall_clock_ms
from .coordinator.transaction import ABSENT, Intent, Request
from .coordinator.two_phase.messages import Outcome
from .freshness import ANY_AGE, is_fresh, levels_of
from .ltm.codec import make_pack
from .ltm.driver import Ltm
from .ltm.keys import ADMIN, CLIENT, LOCAL
from .ltm.reading import Whole
from .ltm.tables import TableRows
from .reads import AlignedSnapshot, Snapshot, is_plain, unknown_table, whole_result
from .remote_protocol import (
    ANSWER,
    FAILURE,
    PROGRESS,
    RequestRefused,
    body_of,
    committed_bytes,
    error_to_wire,
    request_of,
)
from .server_calls import (
    INLINE,
    INSERT,
    REPORTING,
    SHORT,
    Call,
    ChangesBody,
    Rows,
    arguments_from,
    as_writes,
    begun,
    called,
    checked_views,
    database_calls,
    ended,
    layout_of,
    mappings_of,
    schema_of,
    session_call,
)
from .server_sessions import SESSION_IDLE_S, Cursors, Decided, Earlier, Session, SessionKey, Sessions, TxId
from .shared_reads import SharedReads
from .transaction import Transaction

if TYPE_CHECKING:
    from .database import Database
    from .ltm.transport import Received

logger = logging.getLogger("viewtide.server")

#: Threads for what may wait or take long, and how many calls may wait for one.
WORKERS = 8
NO_CALLS: Mapping[str, Call] = {}
JOBS_MAX = 1_000
#: How often leases are looked at, and the longest that the loop sleeps.
LOOK_S = 1.0
#: A read that is not answered for so long goes on in a worker, which waits longer.
READ_S_MAX = 2.0
#: A reader of a view whose last result had more rows than this goes to a worker.
SHORT_ROWS = 1_000
#: Rows that are written in the loop.
SHORT_WRITES = 2_000
#: Operations that wait for the one before them in a session. A client sends one, and again when it heard nothing.
SESSION_WAITING_MAX = 64
#: Connections that are known to have missed an answer, at the most.
DEAF_MAX = 1_000
#: Of a long call, progress is told at most so often.
PROGRESS_S = 0.1

NOT_COMMITTED = "the process that had this transaction is gone, and it was not committed"

ROLES = (CLIENT, ADMIN, LOCAL)
#: Half the time of calling a named tuple's class.
new = tuple.__new__


class Hub(Protocol):
    """What of `ltm.transport.Hub` is used here."""

    def poll(self, timeout_ms: int) -> list[Received]: ...
    def reply(self, route: object, payload: bytes) -> bool: ...
    def connection(self, route: object) -> bytes: ...
    def flush(self) -> None: ...
    def wake(self) -> None: ...
    def refuse(self, why: str) -> None: ...
    def close(self) -> None: ...


class Caller(NamedTuple):
    """Whom to answer."""

    route: object
    name: str
    number: int


class _Commit(CrowdPending):
    """A transaction that is committed at the end of this turn; those who sent it again are answered, too."""

    __slots__ = ("callers", "done", "tx_id")

    def __init__(self, tx_id: TxId, request: Request, caller: Caller, done: Callable[[bool], None] | None) -> None:
        # As `Pending` does it, written out.
        self.request = request
        self.commit_ts = 0
        self.error = None
        self.decided = self.leads = False
        self.tx_id = tx_id
        self.callers = [caller]
        #: Is told whether it was committed.
        self.done = done


class Server:
    """Serves one database on one hub. `run` is the loop; `stop` ends it, from any thread. `calls`: what it can be asked
    beside the operations of every database."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        *,
        workers: int = WORKERS,
        idle_s: float = SESSION_IDLE_S,
        calls: Mapping[str, Call] = NO_CALLS,
    ) -> None:
        self._db = database
        self._node = database._node
        self._engine = engine = database._engine
        self._ltm = engine.ltm
        #: Takes all transactions of a turn at once; None: in a cluster each goes its own way.
        self._combining = engine if isinstance(engine, Engine) else None
        self._cluster = engine if isinstance(engine, ClusterEngine) else None
        self._hub = hub
        self._pack = make_pack()
        #: Another one after each start: clients see that what they had here is gone.
        self.life = secrets.randbits(62)
        self._begun_ms = wall_clock_ms()
        self._shared = SharedReads(database._node)
        self._calls = {**database_calls(database, self._shared), **calls}
        self._sessions = Sessions(ended, idle_s)
        self._cursors = Cursors()
        self._decided = Decided()
        self._earlier: Earlier | None = None
        #: Commits that were sent again after a restart, while the log is read.
        self._waiting_for_log: list[tuple[Caller, Callable[[], None]]] = []
        self._commits: dict[TxId, _Commit] = {}
        #: Those that a worker makes ready, with whom to answer.
        self._replaying: dict[TxId, list[Caller]] = {}
        #: Those that the LTMs of a cluster have.
        self._running: dict[TxId, _Commit] = {}
        #: What is awaited from them, and until when: of commits, and of reads that need no worker.
        self._later: dict[TxId, tuple[float, Later]] = {}
        self._reads: dict[object, tuple[float, Later]] = {}
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="viewtide-served")
        self._jobs_count = 0
        #: What workers have done: called by the loop.
        self._done: deque[Callable[[], None]] = deque()
        #: Connections that missed an answer: they hear nothing any more, so that their clients take them for lost.
        self._deaf: OrderedDict[object, None] = OrderedDict()
        self._layouts: dict[str, tuple[TableRows, int]] = {}
        self._rows_counts: dict[str, int] = {}
        self._stopping = threading.Event()
        self._look_s = 0.0

    # -- the loop

    def run(self) -> None:
        """Until `stop`. Clients that are waiting then get no answer, and ask again elsewhere or later."""
        try:
            while not self._stopping.is_set():
                self.take(int(LOOK_S * 1000))
                self.finish()
        finally:
            self.close()

    def stop(self) -> None:
        self._stopping.set()
        self._hub.wake()

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._sessions.end_all()
        self._hub.close()

    def figures(self) -> dict[str, float]:
        """For the metrics, from any thread."""
        return {"sessions_open": len(self._sessions), "calls_open": self._jobs_count + len(self._reads)}

    def take(self, timeout_ms: int) -> bool:
        """The first half of a turn: handle what has arrived. Whether there was something."""
        received = self._hub.poll(timeout_ms)
        for route, (name, role), payloads in received:
            for payload in payloads:
                self._take(route, name, role, payload)
        if self._commits and self._cluster is not None:
            self._commit_all()  # they are told of it by `finish`
        return bool(received)

    def finish(self) -> bool:
        """The second half: all that is known by now is answered. Whether there was something."""
        is_busy = bool(self._done or self._commits)
        while self._done:
            self._done.popleft()()
        if self._commits:
            self._commit_all()
        self._hub.flush()
        now = time.monotonic()
        if now >= self._look_s:
            self._look_s = now + LOOK_S
            self._give_up(now)
            self._sessions.expire()
            self._cursors.expire()
            self._decided.expire()
            if self._shared.overdue:
                self._submit(self._shared.expire, lambda _: None, self._not_expired)
        return is_busy

    def _not_expired(self, error: BaseException) -> None:
        logger.warning("timestamps that were kept for other processes cannot be let go: %s", error)

    def _take(self, route: object, name: str, role: str, payload: bytes) -> None:
        try:
            number, operation, arguments = request_of(payload)
        except RequestRefused as refused:
            self._fail(Caller(route, name, refused.number), refused.error)
            return
        except RemoteProtocolError as error:
            logger.warning("dropped a request of %s: %s", name, error)
            return
        caller = new(Caller, (route, name, number))
        try:
            if role not in ROLES:
                self._hub.refuse(f"{name}: the role {role!r} may not use the database")
                raise OperationalError(f"the role {role!r} may not use the database", hint="use the key of a client")
            if operation == "commit":
                self._take_commit(caller, arguments)
            else:
                self._handle(caller, operation, arguments)
        except Exception as error:
            self._fail(caller, error)

    def _handle(self, caller: Caller, operation: str, arguments: tuple[object, ...]) -> None:
        if operation == "session":
            self._take_session(caller, arguments)
        elif operation == "ping":
            # Another connection than before tells the client that what it sent by that one may have been lost.
            self._answer(caller, (self.life, self._hub.connection(caller.route)))
        elif operation == "hello":
            self._answer(caller, (1, self._node.name, self.life, __version__))
        elif operation == "end":
            self._sessions.end(_key(arguments), caller.name)
            self._answer(caller, None)
        elif operation == "page":
            self._answer(caller, self._cursors.page(*arguments[:2]) if len(arguments) == 2 else None)
        elif operation == "schema":
            name = arguments[0] if arguments else None
            self._tell(caller, lambda: schema_of(self._table(name).table))
        elif operation == "sources":
            self._tell(caller, lambda: [table_to_plain(table) for table in self._db._sources().values()])
        elif operation in REPORTING:
            self._work(caller, partial(self._check_view, caller, operation, arguments_from(arguments)[0]))
        else:
            self._take_call(caller, operation, arguments)

    def _tell(self, caller: Caller, call: Callable[[], object]) -> None:
        """Answer with something plain that is known in this process, or has to be asked for in a cluster."""
        if self._cluster is None:
            self._answer(caller, call())
        else:
            self._begin_work(call, partial(self._answer, caller), partial(self._fail, caller))

    # -- calls of the database

    def _take_call(self, caller: Caller, operation: str, arguments: tuple[object, ...]) -> None:
        call = self._calls.get(operation)
        if call is None:
            raise RemoteProtocolError(f"there is no operation {operation!r}", hint="update the node")
        args, kwargs = arguments_from(arguments)
        # Whatever reads from a cluster waits for others.
        if self._cluster is None and (operation in INLINE or self._is_short(operation, args, kwargs)):
            self._answer_value(caller, called(call, args, kwargs))
        elif operation != "view.rows" or not self._read_whole(caller, args, kwargs):
            self._work(caller, partial(called, call, args, kwargs), partial(self._note_rows, operation, args))

    def _read_whole(self, caller: Caller, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """The rows of a small view of a cluster need no worker: they come in one answer, here."""
        name = args[0] if len(args) == 1 else None
        if self._cluster is None or not isinstance(name, str) or kwargs or len(self._reads) >= JOBS_MAX:
            return False
        reader = self._cluster.ltm
        tables = reader.tables
        rows = tables.views.get(name)
        if rows is None or self._node.closed or not is_plain(rows):
            return False
        view, awaited = rows, object()

        def then(found: Whole | None) -> None:
            self._reads.pop(awaited, None)
            if found is not None and reader.tables is tables:
                self._guarded(caller, lambda: self._answer_value(caller, whole_result(view, found)))
                return
            # Whatever the reason is, a worker can wait until it is over.
            call = partial(called, self._calls["view.rows"], args, kwargs)
            self._guarded(caller, partial(self._work, caller, call))

        later = reader.newest_whole_later(view, then)
        if later is not None:
            self._reads[awaited] = (time.monotonic() + READ_S_MAX, later)
        return later is not None

    def _is_short(self, operation: str, args: Sequence[object], kwargs: dict[str, object]) -> bool:
        """Whether a read of a view neither waits nor gives many rows."""
        name = args[0] if args else None
        if operation not in ("view.get", "view.rows") or not isinstance(name, str):
            return False
        asked = levels_of(kwargs.get("at_least"), kwargs.get("latest", False), kwargs.get("max_lag"))
        if not is_fresh(self._node, name, asked):
            return False
        return operation == "view.get" or self._rows_counts.get(name, SHORT_ROWS + 1) <= SHORT_ROWS

    def _note_rows(self, operation: str, args: Sequence[object], value: object) -> None:
        if operation == "view.rows":
            self._rows_counts[cast(str, args[0])] = len(cast("Sequence[object]", value))

    def _check_view(self, caller: Caller, operation: str, args: tuple[object, ...]) -> object:
        told_s = time.monotonic()

        def progress(done: int, expected: int) -> None:
            nonlocal told_s
            now = time.monotonic()
            if now - told_s >= PROGRESS_S:
                told_s = now
                self._done.append(partial(self._send, caller, PROGRESS, done, expected))
                self._hub.wake()

        return called(partial(checked_views, self._db, operation), args, {"progress": progress})

    def _work(self, caller: Caller, call: Callable[[], object], then: Callable[[object], None] | None = None) -> None:
        """Run a call in a worker and answer with what it gives; `then` is told that first, by the loop."""
        self._begin_work(call, partial(self._worked, caller, then), partial(self._fail, caller))

    def _worked(self, caller: Caller, then: Callable[[object], None] | None, value: object) -> None:
        if then is not None:
            then(value)
        self._answer_value(caller, value)

    def _begin_work(
        self, call: Callable[[], object], good: Callable[[object], None], bad: Callable[[BaseException], None]
    ) -> None:
        if self._jobs_count >= JOBS_MAX:
            raise Busy(f"{JOBS_MAX} calls are waiting for the node", hint="try again in a moment")
        self._submit(call, good, bad)

    def _submit(
        self, call: Callable[[], object], good: Callable[[object], None], bad: Callable[[BaseException], None]
    ) -> None:
        self._jobs_count += 1

        def work() -> None:
            finish: Callable[[], None]
            try:
                finish = partial(good, call())
            except BaseException as error:  # whatever it is, somebody waits for an answer
                finish = partial(bad, error)
            self._done.append(partial(self._finished, finish, bad))
            self._hub.wake()

        self._workers.submit(work)

    def _finished(self, finish: Callable[[], None], bad: Callable[[BaseException], None]) -> None:
        self._jobs_count -= 1
        try:
            finish()
        except Exception as error:  # the answer could not be made
            bad(error)

    # -- transactions that only wrote

    def _take_commit(self, caller: Caller, arguments: tuple[object, ...]) -> None:
        """(tx_id, whether it was sent before, writes), or a session's key instead of writes."""
        if len(arguments) != 3:
            raise RemoteProtocolError("a commit that cannot be read")
        tx_id, again, writes = _key(arguments), arguments[1], arguments[2]
        commit_ts = self._decided.find(tx_id)
        if commit_ts is not None:
            self._answer(caller, commit_ts)
            return
        running = self._commits.get(tx_id) or (self._running.get(tx_id) if self._running else None)
        if running is not None:
            running.callers.append(caller)
            return
        if again and self._is_earlier(caller, tx_id, partial(self._take_commit, caller, arguments)):
            return
        request = self._inserted(tx_id, writes[0]) if type(writes) is tuple and len(writes) == 1 else None
        if request is not None:
            commit = _Commit(tx_id, request, caller, None)
        elif self._cluster is None:
            commit = self._replayed(caller, tx_id, writes)
        else:
            self._replay_elsewhere(caller, tx_id, writes, again is True)
            return
        commit.request.again = again is True
        self._commits[tx_id] = commit

    def _replay_elsewhere(self, caller: Caller, tx_id: TxId, writes: object, again: bool) -> None:
        """In a cluster, tables that are not known here and identities of transactions may have to be asked for."""
        waiting = self._replaying.get(tx_id)
        if waiting is not None:
            waiting.append(caller)
            return

        def good(made: object) -> None:
            commit = cast(_Commit, made)
            commit.callers = self._replaying.pop(tx_id)
            commit.request.again = again
            self._commits[tx_id] = commit

        def bad(error: BaseException) -> None:
            for each in self._replaying.pop(tx_id):
                self._fail(each, error)

        self._begin_work(partial(self._replayed, caller, tx_id, writes), good, bad)
        self._replaying[tx_id] = [caller]

    def _is_earlier(self, caller: Caller, tx_id: TxId, retry: Callable[[], None]) -> bool:
        """Whether a commit that was sent again was done before this process began; then it is answered. The log is
        read once, by a worker, and such commits wait for that: `retry` goes on with one."""
        ltm = self._ltm
        if not isinstance(ltm, Ltm):
            return False  # a cluster knows its transactions by their tx_ids
        if self._earlier is None:
            self._waiting_for_log.append((caller, retry))
            if len(self._waiting_for_log) == 1:
                # Whatever else is waiting: "busy" would tell the client that it was not committed.
                self._submit(partial(Earlier, ltm, self._begun_ms), self._log_was_read, self._log_was_not_read)
            return True
        commit_ts = self._earlier.find(tx_id)
        if commit_ts is None:
            return False
        self._answer(caller, commit_ts)
        return True

    def _log_was_read(self, earlier: object) -> None:
        self._earlier = cast(Earlier, earlier)
        waiting, self._waiting_for_log = self._waiting_for_log, []
        for caller, retry in waiting:
            self._guarded(caller, retry)

    def _log_was_not_read(self, error: BaseException) -> None:
        waiting, self._waiting_for_log = self._waiting_for_log, []
        for caller, _ in waiting:
            unknown = CommitUnknown(f"the log cannot be read for this transaction: {error}", hint="look at the data")
            self._fail(caller, unknown)

    def _guarded(self, caller: Caller, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._fail(caller, error)

    def _replayed(self, caller: Caller, tx_id: TxId, plain: object) -> _Commit:
        tx = self._db.transaction()._unbound()
        try:
            self._replay(tx, plain)
        except BaseException:
            tx.rollback()
            raise
        return self._of_transaction(caller, tx_id, tx)

    def _inserted(self, tx_id: TxId, write: object) -> Request | None:
        """The common case: rows of one table, all of whose columns can be checked where they stand."""
        kind, name, layout, rows, _ = write if type(write) is tuple and len(write) == 5 else (None,) * 5
        if kind != INSERT or type(rows) is not tuple or type(name) is not str:
            return None
        known = self._ltm.tables.by_name.get(name)
        if known is None and self._cluster is not None:
            return None  # it may be a new one, which has to be asked for
        laid_out, of_it = self._layouts.get(name, (None, 0))
        target = known if known is not None and laid_out is known and of_it == layout else self._laid_out(name, layout)
        codec = target.codec
        if not codec.takes_positions:
            return None
        made = codec.checked(rows)
        keys = codec.keys_of(made)
        # {key: (ABSENT, row, None, True)}, without a function of its own.
        intents: dict[bytes, Intent] = dict(
            zip(keys, zip(repeat(ABSENT), made, repeat(None), repeat(True), strict=False), strict=True)
        )
        if len(intents) < len(keys) or not keys:
            return None  # the long way says what is wrong with it
        request = Request(tx_id)
        request.inserts_only = True
        request.writes[name] = intents
        request.tables[name] = target
        return request

    def _laid_out(self, name: str, layout: object) -> TableRows:
        """The table that rows of this layout are for."""
        target = self._table(name)
        known = self._layouts.get(name)
        if known is None or known[0] is not target:
            known = self._layouts[name] = (target, layout_of(target.table))
        if known[1] != layout:
            raise TransactionConflict(
                f"the columns of table {name!r} changed meanwhile", hint="run the transaction again"
            )
        return known[0]

    def _table(self, name: object) -> TableRows:
        self._node.check_open()
        tables = self._ltm.tables
        found = tables.by_name.get(name) if isinstance(name, str) else None
        if found is None:
            tables = self._ltm.newest_tables()
            found = tables.by_name.get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown_table(name, tables)
        return found

    def _replay(self, tx: Transaction, plain: object) -> None:
        """Do in a transaction what a client has kept aside."""
        for kind, name, layout, rows, positions in as_writes(plain):
            table = self._laid_out(name, layout).table
            mappings = cast("list[dict[str, object]]", mappings_of(table, rows, positions))
            if kind == INSERT:
                tx.insert(name, mappings)
            else:
                tx.upsert(name, mappings)

    def _of_transaction(self, caller: Caller, tx_id: TxId, tx: Transaction) -> _Commit:
        """What `Transaction.commit` does, up to the engine."""
        tx._check_open()
        request = tx._request
        request.tx_id, request.tx_ids = tx_id, (tx_id,)
        request.snapshot = tx._snapshot

        def done(committed: bool) -> None:
            tx._end("committed" if committed else "rolled back")

        return _Commit(tx_id, request, caller, done)

    def _commit_all(self) -> None:
        commits, self._commits = list(self._commits.values()), {}
        for commit in [each for each in commits if not each.request.writes]:
            # It wrote nothing: it happened at its snapshot.
            commits.remove(commit)
            snapshot = commit.request.snapshot
            if snapshot is None and self._cluster is not None:
                self._commit_nothing(commit)
                continue
            self._committed(commit, self._ltm.horizon.durable_ts if snapshot is None else snapshot)
        if not commits:
            return
        if self._combining is None:
            for commit in commits:
                self._commit_in_cluster(commit)
            return
        self._combining.commit_many(commits)
        for commit in commits:
            if commit.error is None:
                self._committed(commit, commit.commit_ts)
            else:
                self._refused(commit, commit.error)

    def _commit_nothing(self, commit: _Commit) -> None:
        """It wrote and read nothing: it happens now, whenever that is."""
        good, bad = cast("Callable[[object], None]", partial(self._committed, commit)), partial(self._refused, commit)
        try:
            self._begin_work(lambda: self._ltm.horizon.durable_ts, good, bad)
        except Busy as error:
            bad(error)

    def _commit_in_cluster(self, commit: _Commit) -> None:
        """It is told when others have decided it."""
        assert self._cluster is not None, "an engine of this process combines"
        try:
            later = self._cluster.commit_later(commit.request, partial(self._decided_in_cluster, commit, ""))
        except Error as error:
            self._refused(commit, error)
            return
        self._await_in_cluster(commit, later)

    def _resolve_in_cluster(self, cluster: ClusterEngine, commit: _Commit, first_key: bytes) -> None:
        """The process that had it is gone, or has forgotten it: it is told what became of it."""
        then = partial(self._decided_in_cluster, commit, NOT_COMMITTED)
        try:
            later = cluster.resolve_later(commit.tx_id, first_key, then)
        except InterfaceError as error:
            # Of the transaction that says nothing: the client asks another process.
            raise Unavailable("the process ends", hint="ask another one") from error
        self._await_in_cluster(commit, later)

    def _await_in_cluster(self, commit: _Commit, later: Later) -> None:
        self._running[commit.tx_id] = commit
        self._later[commit.tx_id] = (time.monotonic() + COMMIT_MS_MAX / 1000, later)

    def _decided_in_cluster(self, commit: _Commit, conflict: str, outcome: Outcome | None) -> None:
        """`conflict`: how it is told that it was not committed, if not as it comes."""
        assert self._cluster is not None
        self._running.pop(commit.tx_id, None)
        self._later.pop(commit.tx_id, None)
        try:
            commit_ts = self._cluster.commit_ts_of(outcome)
        except TransactionConflict as error:
            self._refused(commit, TransactionConflict(conflict, hint=error.hint) if conflict else error)
        except Error as error:
            self._refused(commit, error)
        else:
            self._committed(commit, commit_ts)

    def _give_up(self, now: float) -> None:
        for give_up, later in [*self._later.values(), *self._reads.values()]:
            if now > give_up:
                later.cancel()

    def _committed(self, commit: _Commit, commit_ts: int) -> None:
        self._decided.note(commit.tx_id, commit_ts)
        if commit.done is not None:
            commit.done(True)
        # As `_answer` does it, without what can only be wrong with a larger one.
        version = self._ltm.tables.catalog.version
        for route, _, number in commit.callers:
            self._reply(route, committed_bytes(number, version, commit_ts))

    def _refused(self, commit: _Commit, error: BaseException) -> None:
        if commit.done is not None:
            commit.done(False)
        for caller in commit.callers:
            self._fail(caller, error)

    # -- sessions

    def _take_session(self, caller: Caller, arguments: tuple[object, ...]) -> None:
        """(key, number of the operation, what to begin with, writes, operation, arguments). A commit's arguments are
        (tx_id, whether it was sent before), and if it was, the first key that it writes, or None."""
        if len(arguments) != 6:
            raise RemoteProtocolError("an operation of a session that cannot be read")
        key, number, begin, writes, what, args = arguments
        if type(number) is not int or type(what) is not str or type(args) is not tuple:
            raise RemoteProtocolError("an operation of a session that cannot be read")
        if what == "commit" and self._is_decided(caller, arguments, args):
            return
        key = _key((key,))
        session = self._sessions.known(key, caller.name)
        if session is None and begin is not None:
            session = self._sessions.begin(key, caller.name, partial(begun, self._db, begin))
        if session is None:
            session = self._sessions.find(key, caller.name)  # raises
        if session.busy:
            if len(session.waiting) >= SESSION_WAITING_MAX:
                raise Busy("a transaction or snapshot does one thing at a time", hint="wait for its answers")
            session.waiting.append(partial(self._guarded, caller, partial(self._take_session, caller, arguments)))
        else:
            self._run_session(caller, key, session, number, writes, what, args)

    def _is_decided(self, caller: Caller, arguments: tuple[object, ...], args: tuple[object, ...]) -> bool:
        if not 2 <= len(args) <= 3:
            raise RemoteProtocolError("a commit that cannot be read")
        tx_id, again, first_key = _key(args), args[1], args[2] if len(args) == 3 else None
        commit_ts = self._decided.find(tx_id)
        if commit_ts is not None:
            self._answer(caller, commit_ts)
            return True
        running = self._commits.get(tx_id) or self._running.get(tx_id)
        if running is not None:
            running.callers.append(caller)
            return True
        key = _key((arguments[0],))
        if not again or self._sessions.known(key, caller.name) is not None:
            return False
        if self._cluster is not None:
            if type(first_key) is not bytes:
                raise CommitUnknown(
                    "the process that had this transaction is gone, and it may have been committed",
                    hint="look at the data",
                )
            self._resolve_in_cluster(self._cluster, _Commit(tx_id, Request(tx_id), caller, None), first_key)
            return True
        return self._is_earlier(caller, tx_id, partial(self._take_session, caller, arguments))

    def _run_session(
        self, caller: Caller, key: SessionKey, session: Session, number: int, writes: object, what: str,
        args: tuple[object, ...],
    ) -> None:  # fmt: skip
        if number == session.last_number:
            self._send(caller, session.last_kind, self._ltm.tables.catalog.version, session.last_body)  # it got lost
            return
        if number != session.last_number + 1:
            raise RemoteProtocolError(f"operation {number} of a session after {session.last_number}")
        if what == "commit":
            self._commit_session(caller, key, session, writes, args)
            return
        good = partial(self._session_answered, caller, session, number)
        bad = partial(self._session_failed, caller, session, number)
        try:
            positional, named = arguments_from(args)
            if self._cluster is None:
                session.hold()
            call = partial(self._session_work, session, writes, what, positional, named)
            if self._is_short_in(session, what, writes, positional):
                good(call())
                return
            session.busy = True
            self._begin_work(call, good, bad)
        except Exception as error:
            bad(error)

    def _session_work(
        self, session: Session, writes: object, what: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        call = session_call(session.hold(), what)
        self._ship(session, writes)
        return called(call, args, kwargs)

    def _ship(self, session: Session, writes: object) -> None:
        """Do what the client kept aside. It says what is wrong too late for the client to go on: all is rolled back."""
        held = session.hold()
        if not writes:
            return
        if not isinstance(held, Transaction):
            raise RemoteProtocolError("only a transaction writes")
        try:
            self._replay(held, writes)
        except BaseException:
            if held._ended is None:
                held.rollback()
            raise

    def _is_short_in(self, session: Session, what: str, writes: object, args: tuple[object, ...]) -> bool:
        held = session.held
        if self._cluster is not None:
            return False
        if type(writes) is tuple and sum(len(each[3]) for each in as_writes(writes)) > SHORT_WRITES:
            return False
        if isinstance(held, AlignedSnapshot) and held._snapshot is None:
            return False
        if what == "next":
            # A follower asks again and again, mostly for nothing.
            return not held._may_have_more()  # type: ignore[attr-defined]  # only a feed has it
        if what == "view.get" and type(held) is Snapshot:
            return held._levels is ANY_AGE and is_fresh(self._node, cast(str, args[0]), ANY_AGE)
        return what in SHORT

    def _session_answered(self, caller: Caller, session: Session, number: int, value: object) -> None:
        body = self._body(value)
        session.last_number, session.last_kind, session.last_body = number, ANSWER, body
        self._answer(caller, body)
        self._session_free(session)

    def _session_failed(self, caller: Caller, session: Session, number: int, error: BaseException) -> None:
        body = error_to_wire(_as_error(caller, error))
        session.last_number, session.last_kind, session.last_body = number, FAILURE, body
        self._send(caller, FAILURE, self._ltm.tables.catalog.version, body)
        self._session_free(session)

    def _session_free(self, session: Session) -> None:
        session.busy = False
        session.used_s = time.monotonic()
        while session.waiting and not session.busy:
            session.waiting.popleft()()

    def _commit_session(
        self, caller: Caller, key: SessionKey, session: Session, writes: object, args: tuple[object, ...]
    ) -> None:
        tx_id = _key(args)
        if self._cluster is None:
            self._ship(session, writes)
            self._commit_held(caller, key, session, tx_id)
            return

        def good(_: object) -> None:
            self._guarded(caller, partial(self._commit_held, caller, key, session, tx_id))
            self._session_free(session)

        def bad(error: BaseException) -> None:
            self._fail(caller, error)
            self._session_free(session)

        session.busy = True
        try:
            self._begin_work(partial(self._ship, session, writes), good, bad)
        except Busy:
            session.busy = False
            raise

    def _commit_held(self, caller: Caller, key: SessionKey, session: Session, tx_id: TxId) -> None:
        held = session.held
        if not isinstance(held, Transaction):
            raise RemoteProtocolError("only a transaction is committed")
        commit = self._of_transaction(caller, tx_id, held)
        finish = commit.done

        def done(committed: bool) -> None:
            if finish is not None:
                finish(committed)
            self._sessions.end(key, caller.name)

        commit.done = done
        self._commits[tx_id] = commit

    # -- answers

    def _body(self, value: object) -> object:
        if isinstance(value, Rows):
            return value.body
        if isinstance(value, ChangesBody):
            return tuple(value)
        return body_of(value, self._cursors.keep)

    def _answer_value(self, caller: Caller, value: object) -> None:
        self._answer(caller, self._body(value))

    def _answer(self, caller: Caller, body: object) -> None:
        self._send(caller, ANSWER, self._ltm.tables.catalog.version, body)

    def _fail(self, caller: Caller, error: BaseException) -> None:
        failure = error_to_wire(_as_error(caller, error))
        self._send(caller, FAILURE, self._ltm.tables.catalog.version, failure)

    def _send(self, caller: Caller, kind: int, first: object, second: object) -> None:
        try:
            payload = self._pack((caller.number, kind, first, second))
            self._reply(caller.route, payload)
        except (LocalProtocolError, ValueError) as error:
            self._pack = make_pack()
            failure = error_to_wire(DataError(f"the answer cannot be sent: {error}", hint="read less at once"))
            self._reply(caller.route, self._pack((caller.number, FAILURE, 0, failure)))

    def _reply(self, route: object, payload: bytes) -> None:
        """One that is gone or whose queue is full misses it, and must ask again by another connection."""
        if (self._deaf and route in self._deaf) or self._hub.reply(route, payload):
            return
        self._deaf[route] = None
        if len(self._deaf) > DEAF_MAX:
            self._deaf.popitem(last=False)


def _as_error(caller: Caller, error: BaseException) -> Error:
    if isinstance(error, Error):
        return error
    logger.error("a request of %s failed", caller.name, exc_info=error)
    return InternalError(f"a request failed unexpectedly: {error!r}", hint="please report this")


def _key(arguments: tuple[object, ...]) -> SessionKey:
    key = arguments[0] if arguments else None
    if type(key) is not tuple or len(key) != 2 or type(key[0]) is not int or type(key[1]) is not int:
        raise RemoteProtocolError("a key that is none")
    return key
