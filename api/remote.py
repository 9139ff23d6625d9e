"""A database on a served node: the same classes for whoever uses them, every call a message or two (`remote_calls`)."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from .changes import LOOK_MS_MIN, Changes, ViewChange
from .changetables.builder import Query
from .changetables.errors import InterfaceError, OperationalError, TransactionConflict, Unavailable
from .changetables.schema import Table
from .changetables.serialize import table_from_plain
from .changetables.statements import Commit, Rollback, Statement
from .coordinator.ports import Managing
from .coordinator.verify import Progress
from .coordinator.vms.managers import ViewManagerStatus
from .database import Database
from .durations import milliseconds
from .freshness import TargetLag
from .ltm.keys import Keys
from .open_socket import NAME as SOCKET_NAME
from .open_socket import running_address
from .reads import NO_KEY, Snapshot, ViewReads
from .remote_calls import (
    COMMITTED,
    NO_NAMES,
    ONCE,
    READ,
    Ask,
    Asking,
    Client,
    FeedCalls,
    SessionCalls,
    SnapshotCalls,
    TransactionCalls,
    as_lists,
    call,
    check_evaluator,
    key_of,
    levels,
    listed,
    reporting,
    sent_columns,
    sent_type,
)
from .remote_links import Links, Target
from .rows import Result, Row, Token, Written
from .sql import Session, not_committed, statements_refused
from .status import DatabaseStatus, ViewStatus
from .transaction import Transaction, wrong_thread
from .verify import VerifyReport
from .view import View

if TYPE_CHECKING:
    from .changetables.sql import ParameterValues

T = TypeVar("T")

#: To ask the system each time takes a call of it.
_process = os.getpid()


def _forked() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_forked)


class RemoteNode:
    """What the objects of one remote database share. It takes the place of a `Node`."""

    def __init__(self, target: Target) -> None:
        self.name = target.address
        self.client = Client()
        self.links = Links(target, self.client)
        self.closed = False
        self.process = _process

    def check_open(self) -> None:
        if _process != self.process:
            raise InterfaceError(
                "the database was opened before this process was forked", hint="open it after the fork, in one process"
            )
        if self.closed:
            raise InterfaceError("the database is closed", hint="open it again with viewtide.connect()")

    def run(self, asking: Asking[T]) -> T:
        if self.closed or _process != self.process:
            asking.close()
            self.check_open()
        return self.links.run(asking)

    def call(self, operation: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES, kind: int = READ) -> object:
        return self.run(call(operation, args, kwargs, kind))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.links.close()


def connect_remote(
    address: str, keys: str | os.PathLike[str] | None = None, server_key: str = "", *, insecure: bool = False
) -> RemoteDatabase:
    """Connect to a served node; Unavailable if nobody answers."""
    own = None if keys is None else own_key(keys)
    node = RemoteNode(Target(_real_address(address), own, server_key, insecure=insecure))
    node.links.meet()
    return RemoteDatabase(node)


def own_key(file: str | os.PathLike[str]) -> Keys:
    """The key of a client, from its file."""
    try:
        return Keys.load(Path(file))
    except OperationalError as error:
        error.hint = error.hint or "check the path; `viewtide keys new` makes the file of a key"
        raise


def _real_address(address: str) -> str:
    """Of the socket of an open directory: where the process that has it open listens."""
    path = Path(address.removeprefix("ipc://"))
    if address.startswith("ipc://") and os.path.exists(path / "LOCK") and os.path.exists(path / "store"):
        raise InterfaceError(
            f"{path} is the directory of a database, and an address names a socket",
            hint=f"did you mean 'ipc://{path / SOCKET_NAME}'?",
        )
    if not address.startswith("ipc://") or path.name != SOCKET_NAME or not (path.parent / "LOCK").exists():
        return address
    running = running_address(path.parent)
    if not running:
        raise Unavailable(
            f"no process has the database {path.parent} open",
            hint="open the directory itself, or start: viewtide serve",
        )
    return running


class RemoteDatabase(Database):
    """`vt.connect("tcp://...")`."""

    def __init__(self, node: RemoteNode) -> None:
        self._remote = node

    def __repr__(self) -> str:
        return f"Database({self._remote.name!r}{', closed' if self._remote.closed else ''})"

    def close(self) -> None:
        """Close the connections; the node goes on."""
        self._remote.close()

    # -- transactions

    def transaction(self) -> Transaction:
        if self._remote.closed:
            self._remote.check_open()
        return RemoteTransaction(self._remote)

    def snapshot(
        self,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        views: Sequence[str] = (),
    ) -> Snapshot:
        self._remote.check_open()
        if isinstance(views, str) or not isinstance(views, Sequence):
            raise InterfaceError("views must be a list of names", hint=f"like views=[{views!r}]")
        return RemoteSnapshot(self._remote, at_least, latest, max_lag, tuple(views))

    def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        return cast(Result, self._remote.call("sql", text, listed(params), kind=ONCE))

    # -- tables

    def create_table(
        self,
        name: str,
        columns: Mapping[str, object],
        key: str | Sequence[str] | None = None,
        indexes: Iterable[str | Sequence[str]] = (),
    ) -> None:
        self._remote.call("create_table", name, sent_columns(columns), listed(key), listed(indexes), kind=ONCE)

    def drop_table(self, name: str) -> None:
        self._remote.call("drop_table", name, kind=ONCE)

    def add_column(self, table: str, name: str, type: object) -> None:
        self._remote.call("add_column", table, name, sent_type(type), kind=ONCE)

    def drop_column(self, table: str, name: str) -> None:
        self._remote.call("drop_column", table, name, kind=ONCE)

    def create_index(self, table: str, columns: str | Sequence[str]) -> None:
        self._remote.call("create_index", table, listed(columns), kind=ONCE)

    def drop_index(self, table: str, columns: str | Sequence[str]) -> None:
        self._remote.call("drop_index", table, listed(columns), kind=ONCE)

    def tables(self) -> list[str]:
        return cast("list[str]", self._remote.call("tables"))

    # -- views

    def create_view(
        self,
        name: str,
        definition: str | Query,
        *,
        refresh: str | TargetLag = "sync",
        layout: str = "global",
        key: str | Sequence[str] | None = None,
        group: str = "",
        backlog_rows: int = 0,
        backlog_bytes: int = 0,
        evaluator: str | None = None,
    ) -> View:
        self._remote.call(
            "create_view",
            name,
            definition,
            kwargs={
                "refresh": refresh,
                "layout": layout,
                "key": listed(key),
                "group": group,
                "backlog_rows": backlog_rows,
                "backlog_bytes": backlog_bytes,
                "evaluator": evaluator,
            },
            kind=ONCE,
        )
        return RemoteView(self._remote, name)

    def drop_view(self, name: str, *, cascade: bool = False) -> None:
        self._remote.call("drop_view", name, kwargs={"cascade": cascade}, kind=ONCE)

    def view(self, name: str) -> View:
        self._remote.call("view", name)
        return RemoteView(self._remote, name)

    def views(self) -> list[str]:
        return cast("list[str]", self._remote.call("views"))

    def explain_view(self, definition: str | Query) -> str:
        return cast(str, self._remote.call("explain_view", definition))

    @property
    def view_managers(self) -> Managing:
        self._remote.check_open()
        return RemoteViewManagers(self._remote)

    def status(self) -> DatabaseStatus:
        return cast(DatabaseStatus, self._remote.call("status"))

    # -- for the shell

    def _session(self) -> Session:
        return RemoteShell(self, self._remote)

    def _table(self, name: str) -> Table:
        return self._remote.run(self._remote.client.schema(name)).table

    def _sources(self) -> dict[str, Table]:
        body = self._remote.run(_sources())
        return {table.name: table for table in map(table_from_plain, cast("list[object]", as_lists(body)))}


def _sources() -> Asking[object]:
    return (yield Ask("sources", ()))


#: After a minute the node forgets a session. A shell without a transaction has nothing in it, and begins another one.
IDLE_S_MAX = 30.0


class RemoteShell(Session):
    """The shell's statements, run by a shell on the node."""

    def __init__(self, database: Database, node: RemoteNode) -> None:
        self._remote = node
        self._calls = SessionCalls(node.client, ("shell",))
        self._state = (False, False)
        self.failed = False
        #: The transaction was lost with a statement that was left; its end is still to be said.
        self._lost = False
        self._used_s = time.monotonic()

    @property
    def in_transaction(self) -> bool:
        return self._state[0]

    def execute(self, statement: Statement, text: str = "") -> Result:
        if self._lost:
            return self._end_lost(statement)
        self.goes_on = False
        if not self.in_transaction and time.monotonic() - self._used_s > IDLE_S_MAX:
            self._calls = SessionCalls(self._remote.client, ("shell",))  # there is nothing in the old one
        try:
            return self._executed(statement, text)
        except Exception:
            raise
        except BaseException:  # Ctrl-C
            self._leave(statement)
            raise

    def close(self) -> None:
        self._remote.run(self._calls.end())

    def _executed(self, statement: Statement, text: str) -> Result:
        try:
            result = cast(Result, self._remote.run(self._calls.ask("execute", (text, statement.place))))
        except Exception:
            self._look()
            raise
        self._look()
        return result

    def _look(self) -> None:
        try:
            self._state = cast("tuple[bool, bool]", self._remote.run(self._calls.ask("state")))
        except TransactionConflict:  # the node has forgotten the session, or is another one
            self._lose(self.in_transaction)
        self.failed = self._state[1]
        self._used_s = time.monotonic()

    def _leave(self, statement: Statement) -> None:
        """The node ends its session when it is done with the statement, which may take as long as it likes: nobody
        waits for it."""
        ending = self._calls.end()
        self._lose(self.in_transaction and not isinstance(statement, Commit | Rollback))
        self.goes_on = not self._lost
        with suppress(Exception):
            # Once: a node that cannot be told ends the session after a while by itself.
            for ask in ending:
                self._remote.links.once(ask, ask.arguments)

    def _lose(self, in_transaction: bool) -> None:
        """What is next begins another session."""
        self._calls = SessionCalls(self._remote.client, ("shell",))
        self._lost = self.failed = in_transaction
        self._state = (in_transaction, in_transaction)

    def _end_lost(self, statement: Statement) -> Result:
        if not isinstance(statement, Commit | Rollback):
            raise statements_refused()
        self._lost = self.failed = False
        self._state = (False, False)
        if isinstance(statement, Commit):
            raise not_committed()
        return Written(0)


class _RemoteReads:
    """The reads that transactions and snapshots share."""

    _remote: RemoteNode
    _calls: TransactionCalls | SnapshotCalls

    def _ask(self, what: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES) -> object:
        return self._remote.run(self._calls.ask(what, args, kwargs))

    def get(self, table: str, key: object = NO_KEY, /, **columns: object) -> Row | None:
        return cast("Row | None", self._ask("get", table, *key_of(key), kwargs=columns))

    def get_many(
        self,
        table: str,
        keys: Iterable[object],
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> list[Row | None]:
        asked = levels(at_least, latest, max_lag)
        return cast("list[Row | None]", self._ask("get_many", table, listed(keys), kwargs=asked))

    def find(self, table: str, /, **columns: object) -> Result:
        return cast(Result, self._ask("find", table, kwargs=columns))

    def scan(
        self,
        table: str,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        return cast(Result, self._ask("scan", table, start, stop, limit, kwargs=levels(at_least, latest, max_lag)))

    def join(self, query: Query, start: Mapping[str, object] | None = None) -> Result:
        return cast(Result, self._ask("join", query, start))

    def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        return cast(Result, self._ask("sql", text, listed(params)))

    def view(self, name: str) -> ViewReads:
        self._ask("view", name)
        return RemoteViewReads(self, name)


class RemoteTransaction(_RemoteReads, Transaction):
    """`db.transaction()`."""

    _calls: TransactionCalls

    def __init__(self, node: RemoteNode) -> None:
        self._remote = node
        self._calls = TransactionCalls(node.client)
        self._owner = get_ident()

    def _check_owner(self) -> None:
        if self._owner != get_ident():
            raise wrong_thread()

    def _ask(self, what: str, *args: object, kwargs: Mapping[str, object] = NO_NAMES) -> object:
        self._check_owner()
        return super()._ask(what, *args, kwargs=kwargs)

    def __enter__(self) -> RemoteTransaction:
        if self._calls.ended is not None:
            self._calls.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._calls.ended is None:
            if kind is None:
                self._commit()
            else:
                self._roll_back()

    def insert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        if self._owner != get_ident():
            raise wrong_thread()
        if self._remote.closed or not self._calls.insert_now(table, rows):
            self._remote.run(self._calls.insert(table, rows))

    def upsert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        self._check_owner()
        self._remote.run(self._calls.upsert(table, rows))

    def update(self, table: str, key: object, changes: Mapping[str, object]) -> bool:
        return cast(bool, self._ask("update", table, key, changes))

    def delete(self, table: str, key: object = NO_KEY, /, **columns: object) -> bool:
        return cast(bool, self._ask("delete", table, *key_of(key), kwargs=columns))

    def commit(self) -> Token:
        self._commit()
        return self._calls.the_token()

    def _commit(self) -> None:
        """What `run` does with `commit`, in few calls where one request is all."""
        if self._owner != get_ident():
            raise wrong_thread()
        calls, node = self._calls, self._remote
        ask = calls.commit_now()
        if ask is None or node.closed or _process != node.process:
            node.run(calls.commit())
            return
        try:
            calls.commit_ts = node.links.once(ask, ask[1])
            calls.ended = COMMITTED
        except BaseException as error:
            node.links.run(calls.commit(ask), error)

    def rollback(self) -> None:
        self._check_owner()
        self._calls.check_open()
        self._roll_back()

    def _roll_back(self) -> None:
        """Where the database was closed meanwhile, the node forgets it by itself: nothing hides the caller's error."""
        if self._remote.closed:
            self._calls.ended = "rolled back"
        else:
            self._remote.run(self._calls.rollback())

    @property
    def token(self) -> Token:
        return self._calls.the_token()


class RemoteSnapshot(_RemoteReads, Snapshot):
    """`db.snapshot()`."""

    _calls: SnapshotCalls

    def __init__(
        self,
        node: RemoteNode,
        at_least: Token | None,
        latest: bool,
        max_lag: str | float | None,
        views: Sequence[str],
    ) -> None:
        self._remote = node
        self._calls = SnapshotCalls(node.client, at_least, latest, max_lag, views)
        if levels(at_least, latest, max_lag):
            node.run(self._calls.open())

    def __enter__(self) -> RemoteSnapshot:
        self._remote.run(self._calls.begin())
        return self

    def close(self) -> None:
        self._remote.run(self._calls.close())

    @property
    def token(self) -> Token:
        return Token(self._remote.run(self._calls.begin()))


class RemoteViewReads(ViewReads):
    """A view in a transaction or snapshot."""

    def __init__(self, reads: _RemoteReads, name: str) -> None:
        self._remote_reads = reads
        self.name = name

    def get(
        self,
        key: object = NO_KEY,
        /,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        **columns: object,
    ) -> Row | None:
        asked = levels(at_least, latest, max_lag)
        return cast(
            "Row | None", self._remote_reads._ask("view.get", self.name, *key_of(key), kwargs={**asked, **columns})
        )

    def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        return cast(Result, self._remote_reads._ask("view.rows", self.name, kwargs=levels(at_least, latest, max_lag)))

    def scan(
        self,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        asked = levels(at_least, latest, max_lag)
        return cast(Result, self._remote_reads._ask("view.scan", self.name, start, stop, limit, kwargs=asked))


class RemoteView(View):
    """`db.view(name)`."""

    def __init__(self, node: RemoteNode, name: str) -> None:
        self._remote = node
        self.name = name

    def get(
        self,
        key: object = NO_KEY,
        /,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        **columns: object,
    ) -> Row | None:
        asked = levels(at_least, latest, max_lag)
        return cast("Row | None", self._remote.call("view.get", self.name, *key_of(key), kwargs={**asked, **columns}))

    def scan(
        self,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        asked = levels(at_least, latest, max_lag)
        return cast(Result, self._remote.call("view.scan", self.name, start, stop, limit, kwargs=asked))

    def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        return cast(Result, self._remote.call("view.rows", self.name, kwargs=levels(at_least, latest, max_lag)))

    def status(self) -> ViewStatus:
        return cast(ViewStatus, self._remote.call("view.status", self.name))

    def _age(self) -> tuple[str, float]:
        return cast("tuple[str, float]", self._remote.call("view.age", self.name))

    def explain(self) -> str:
        return cast(str, self._remote.call("view.explain", self.name))

    def refresh(self, evaluator: str | None = None) -> int:
        return cast(int, self._remote.call("view.refresh", self.name, evaluator))

    def set_refresh(self, refresh: str | TargetLag) -> None:
        self._remote.call("view.set_refresh", self.name, refresh, kind=ONCE)

    def changes(
        self, since: Token | None = None, *, follow: bool = False, timeout: str | float | None = None
    ) -> Changes:
        return RemoteChanges(self._remote, self.name, since, follow, timeout)

    def verify(self, progress: Progress | None = None, evaluator: str | None = None) -> VerifyReport:
        check_evaluator(evaluator)
        return cast(VerifyReport, self._remote.run(reporting("view.verify", self.name, progress)))

    def repair(self, progress: Progress | None = None) -> VerifyReport:
        return cast(VerifyReport, self._remote.run(reporting("view.repair", self.name, progress)))


class RemoteChanges(Changes):
    """`v.changes(...)`: some changes are fetched at a time; their order and their tokens are the node's."""

    def __init__(
        self, node: RemoteNode, name: str, since: Token | None, follow: bool, timeout: str | float | None
    ) -> None:
        self._remote = node
        self._timeout_ms = None if timeout is None else milliseconds(timeout)
        self._follow = follow
        self._calls = FeedCalls(node.client, name, since)
        self._ahead: deque[ViewChange] = deque()
        self._closed = threading.Event()
        self._look_ms = LOOK_MS_MIN
        self._give_up = 0.0
        self._given = Token(node.run(self._calls.begin()))

    def _next(self) -> ViewChange | None:
        self._remote.check_open()
        if not self._ahead:
            self._ahead.extend(self._remote.run(self._calls.next()))
        if not self._ahead:
            self._given = Token(self._calls.given_ts)
            return None
        change = self._ahead.popleft()
        self._given = change.token
        self._look_ms, self._give_up = LOOK_MS_MIN, 0.0
        return change

    @property
    def token(self) -> Token:
        return self._given


class RemoteViewManagers:
    """`db.view_managers`."""

    def __init__(self, node: RemoteNode) -> None:
        self._remote = node

    def add(self) -> int:
        return cast(int, self._remote.call("managers.add", kind=ONCE))

    def remove(self, id: int) -> None:
        self._remote.call("managers.remove", id, kind=ONCE)

    def assign(self, id: int, ltm: str | None = None) -> None:
        self._remote.call("managers.assign", id, ltm, kind=ONCE)

    def reassign(self, id: int, ltm: str | None = None) -> None:
        self.assign(id, ltm)

    def withdraw(self, id: int) -> None:
        self._remote.call("managers.withdraw", id, kind=ONCE)

    def status(self) -> list[ViewManagerStatus]:
        return cast("list[ViewManagerStatus]", self._remote.call("managers.status"))
