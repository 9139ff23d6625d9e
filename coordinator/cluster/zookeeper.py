"""ZooKeeper for the machines of one process: kazoo behind the messages of `zk_messages`. One session for all of them.

Each machine is a *caller* (any object; a new one for each life of a machine, so that no answer to an earlier life is
taken for one to the next). `request` never blocks. What comes back waits in a queue until `take`; `on_more` is called
from kazoo's threads whenever something was put there.

    connected   every caller that sent `Connect` is told, with the number of the session
    suspended   the connection is gone: what was asked is answered with ConnectionLoss, and so is what is asked now
    lost        the session has expired; whoever sends `Connect` again is told of the next one, which kazoo begins

Answers, watches and states come from three threads of kazoo, so their order among each other is not that of the
servers. The machines' `Keeper` does not need it: whatever it follows is read again after each connection.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import ACL, make_acl, make_digest_acl

from ...changetables.errors import InterfaceError, OperationalError, Unavailable
from ...ltm.cluster import zk_messages as zk

#: Requests that are not answered yet; more are answered with ConnectionLoss at once.
REQUESTS_MAX = 10_000
#: How long the first connection may take.
START_MS_MAX = 15_000
#: After this long without one, the log says that it is waited for.
TOLD_AFTER_MS = 1_000
#: A connection that broke is tried again after the first of these, which grows up to the second: both well below a
#: session's time, because the session is lost unless one attempt succeeds within it.
RECONNECT_MS = 30
RECONNECT_MS_MAX = 300

_WATCHED = {
    EventType.CREATED: zk.CREATED,
    EventType.DELETED: zk.DELETED,
    EventType.CHANGED: zk.CHANGED,
    EventType.CHILD: zk.CHILD,
}
_STATES = {KazooState.CONNECTED: zk.CONNECTED, KazooState.SUSPENDED: zk.SUSPENDED, KazooState.LOST: zk.LOST}


#: What a process logs when its connection changes, after the first one.
_TOLD = {
    zk.CONNECTED: (logging.INFO, "is connected with ZooKeeper at %s again"),
    zk.SUSPENDED: (logging.WARNING, "the connection with ZooKeeper at %s is gone: it is tried again"),
    zk.LOST: (logging.WARNING, "the session with ZooKeeper at %s has ended"),
}

_log = logging.getLogger("viewtide.zookeeper")
#: kazoo warns of every attempt to connect, some four a second. What matters of it is told here, or by an error.
_kazoo_log = logging.getLogger("viewtide.kazoo")
_kazoo_log.setLevel(logging.ERROR)

#: A server that answers nothing for this part of a session's time is silent: there is time left for another one.
SILENT_SHARE = 2 / 3

#: Within the chroot, for a moment: whether this process may write there.
_TRY = "/try"


class Login(NamedTuple):
    """Nodes are created for this user: others can read them, as clients do who look for a process that serves them, and
    there is nothing secret in them. Without a user everybody who can reach the servers can write them, too."""

    user: str = ""
    password: str = ""


NOBODY = Login()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Knows the connection, so that it can be cut. kazoo takes each request for a ping, and so does not notice a server
    that is silent, or a network that swallows everything, as long as it is asked for something."""

    def __init__(self) -> None:
        super().__init__()
        self._socket: socket.socket | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._socket = super().create_connection(*args, **kwargs)
        return self._socket

    def cut(self) -> None:
        connection = self._socket
        if connection is not None:
            with suppress(OSError):  # it is gone already
                connection.shutdown(socket.SHUT_RDWR)


class ZooKeeper:
    def __init__(self, hosts: str, session_ms: int, login: Login = NOBODY) -> None:
        """`hosts` are "host:port,host:port/chroot"."""
        self.hosts, slash, chroot = hosts.partition("/")
        if not self.hosts:
            raise InterfaceError(f"no ZooKeeper host in {hosts!r}", hint='give "host:port,host:port/path"')
        self.chroot = slash + chroot.strip("/") if chroot.strip("/") else ""
        self.on_more: Callable[[], None] = lambda: None
        self._login = login
        self._acl = _acl_of(login)
        self._handler = _Handler()
        self._client = self._make_client(self.hosts + self.chroot, session_ms, self._handler)
        self._client.add_listener(self._state_changed)
        self._lock = Lock()
        self._state = ""
        #: Who has a session, as far as it was told; and the watch that kazoo calls for each.
        self._callers: dict[Hashable, Callable[[WatchedEvent], None]] = {}
        self._unanswered = 0
        #: The last answer, or the first question after it.
        self._heard_s = 0.0
        self._silent_s = session_ms / 1000 * SILENT_SHARE
        self._queue: deque[tuple[Hashable, object]] = deque()

    def _make_client(self, hosts: str, session_ms: int, handler: _Handler | None = None) -> KazooClient:
        user, password = self._login
        retry = KazooRetry(
            max_tries=-1, delay=RECONNECT_MS / 1000, backoff=1.5, max_jitter=0.3, max_delay=RECONNECT_MS_MAX / 1000
        )
        return KazooClient(
            hosts,
            session_ms / 1000,
            default_acl=self._acl or None,
            auth_data=[("digest", f"{user}:{password}")] if user else None,
            connection_retry=retry,
            handler=handler,
            logger=_kazoo_log,
        )

    # -- for whoever sets up a process; these block

    def start(self, timeout_ms: int = START_MS_MAX, *, create: bool = True) -> None:
        """Connect for the first time, and create the chroot if it is missing, unless told otherwise."""
        if self.chroot and create:
            self._create_chroot(timeout_ms)
        self._start(self._client, timeout_ms)

    def _start(self, client: KazooClient, timeout_ms: int) -> None:
        """As kazoo's own `start`, which says nothing while it waits, and warns of a chroot that is missing."""
        connected = client.start_async()
        told_after_ms = min(TOLD_AFTER_MS, timeout_ms)
        if not connected.wait(told_after_ms / 1000):
            _log.info("ZooKeeper at %s cannot be reached yet", self.hosts)
            connected.wait((timeout_ms - told_after_ms) / 1000)
        if not client.connected:
            client.stop()
            client.close()
            raise Unavailable(
                f"ZooKeeper at {self.hosts} did not answer within {timeout_ms} ms", hint="check address and servers"
            )

    def _create_chroot(self, timeout_ms: int) -> None:
        client = self._make_client(self.hosts, timeout_ms)
        try:
            self._start(client, timeout_ms)
            client.ensure_path(self.chroot)
            self._let_others_read(client, self.chroot)
            self._check_writable(client)
        except NoAuthError as error:
            raise self._not_allowed("") from error
        finally:
            client.stop()
            client.close()

    def _let_others_read(self, client: KazooClient, path: str) -> None:
        """Earlier versions let nobody but the user read a node. What somebody else has set is left as it is."""
        if self._acl and client.get_acls(path)[0] == self._acl[:1]:
            client.set_acls(path, self._acl)

    def _check_writable(self, client: KazooClient) -> None:
        """Whoever can only read would wait for ever for what it cannot create. Nobody sees the node."""
        trying = client.transaction()
        trying.create(self.chroot + _TRY)
        trying.delete(self.chroot + _TRY)
        if any(isinstance(result, NoAuthError) for result in trying.commit()):
            raise NoAuthError

    def ensure(self, path: str, data: bytes = b"") -> bool:
        """Create a node that stays, unless it is there. True: it was created now."""
        try:
            try:
                self._client.create(path, data)
            except NodeExistsError:
                self._let_others_read(self._client, path)
                return False
        except NoAuthError as error:
            raise self._not_allowed(path) from error
        except KazooException as error:
            raise Unavailable(f"{path} cannot be created in ZooKeeper: {error!r}") from error
        return True

    def remove(self, path: str) -> None:
        """Unless it is gone already."""
        try:
            self._client.delete(path)
        except NoNodeError:
            return
        except KazooException as error:
            raise Unavailable(f"{path} cannot be removed from ZooKeeper: {error!r}") from error

    def read(self, path: str) -> bytes | None:
        """What is stored there now; None: there is no such node."""
        try:
            data: bytes = self._client.get(path)[0]
        except NoNodeError:
            return None
        except NoAuthError as error:
            raise self._not_allowed(path) from error
        except KazooException as error:
            raise Unavailable(f"{path} cannot be read from ZooKeeper: {error!r}") from error
        return data

    def children(self, path: str) -> list[str]:
        """Their names, sorted; none if there is no such node."""
        try:
            return sorted(self._client.get_children(path))
        except NoNodeError:
            return []
        except NoAuthError as error:
            raise self._not_allowed(path) from error
        except KazooException as error:
            raise Unavailable(f"{path} cannot be read from ZooKeeper: {error!r}") from error

    def _not_allowed(self, path: str) -> OperationalError:
        who = f"user {self._login.user!r}" if self._login.user else "everybody"
        return OperationalError(
            f"ZooKeeper does not let {who} use {self.chroot}{path}",
            hint="the cluster was set up with another user or password",
        )

    def stop(self) -> None:
        """End the session: ephemeral nodes go at once."""
        self._client.remove_listener(self._state_changed)
        self._client.stop()
        self._client.close()

    # -- for the process

    @property
    def state(self) -> str:
        return self._state

    def take(self) -> list[tuple[Hashable, object]]:
        """What has come for whom since the last time."""
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken

    def request(self, caller: Hashable, message: object) -> None:
        match message:
            case zk.Connect():
                self._connect(caller)
            case zk.Close():
                self.forget(caller)
            case _:
                self._ask(caller, message)  # type: ignore[arg-type]

    def forget(self, caller: Hashable) -> None:
        """It is told nothing any more. Its ephemeral nodes stay, because the session does."""
        with self._lock:
            self._callers.pop(caller, None)

    def _connect(self, caller: Hashable) -> None:
        with self._lock:
            self._callers[caller] = partial(self._watched, caller)
            if self._state == zk.CONNECTED:
                self._queue.append((caller, zk.Session(zk.CONNECTED, self._session())))
        self.on_more()

    def _session(self) -> int:
        known = self._client.client_id
        return known[0] if known is not None and known[0] is not None else 0

    def _put(self, caller: Hashable, message: object) -> None:
        self._queue.append((caller, message))
        self.on_more()

    # -- what kazoo calls from its threads

    def _state_changed(self, state: str) -> None:
        with self._lock:
            before, self._state = self._state, _STATES[state]
            told = zk.Session(self._state, self._session())
            for caller in self._callers:
                self._queue.append((caller, told))
            if self._state == zk.LOST:
                # Whoever wants the next session says so.
                self._callers.clear()
        if before:
            level, text = _TOLD[_STATES[state]]
            _log.log(level, text, self.hosts)
        self.on_more()

    def _watched(self, caller: Hashable, event: WatchedEvent) -> None:
        what = _WATCHED.get(event.type)
        # Without a type: kazoo has forgotten the watch, because the connection is gone.
        if what is not None:
            self._put(caller, zk.Watched(what, event.path))

    def _answered(self, caller: Hashable, operation: zk.Operation, result: Any) -> None:
        with self._lock:
            self._unanswered -= 1
            self._heard_s = time.monotonic()
        try:
            value, stat = _value_of(operation, result.get())
        except Exception as error:
            # Whatever kazoo raises is an answer; a machine that knows no better asks again.
            self._put(caller, zk.Answer(operation.request, error=_name_of(error)))
        else:
            self._put(caller, zk.Answer(operation.request, value, "", stat))

    # -- requests

    def _ask(self, caller: Hashable, operation: zk.Operation) -> None:
        with self._lock:
            watch = self._callers.get(caller)
            state = self._state
            full = self._unanswered >= REQUESTS_MAX
            now_s = time.monotonic()
            silent = self._unanswered > 0 and now_s - self._heard_s > self._silent_s
            if silent or not self._unanswered:
                self._heard_s = now_s
            if watch is not None and state == zk.CONNECTED and not full:
                self._unanswered += 1
        if silent:
            self._handler.cut()
        if watch is None or state in ("", zk.LOST):
            self._put(caller, zk.Answer(operation.request, error=zk.SESSION_EXPIRED))
        elif state == zk.SUSPENDED or full:
            # kazoo would keep it and send it later, when the machine has long asked again.
            self._put(caller, zk.Answer(operation.request, error=zk.CONNECTION_LOSS))
        else:
            self._begin(operation, watch).rawlink(partial(self._answered, caller, operation))

    def _begin(self, operation: zk.Operation, watch: Callable[[WatchedEvent], None]) -> Any:
        client = self._client
        match operation:
            case zk.Create(_, path, data, ephemeral, sequence):
                return client.create_async(path, data, ephemeral=ephemeral, sequence=sequence, include_data=True)
            case zk.Get(_, path, watched):
                return client.get_async(path, watch if watched else None)
            case zk.Set(_, path, data, version):
                return client.set_async(path, data, version)
            case zk.Delete(_, path, version):
                return client.delete_async(path, version)
            case zk.Exists(_, path, watched):
                return client.exists_async(path, watch if watched else None)
            case zk.Children(_, path, watched):
                return client.get_children_async(path, watch if watched else None, include_data=True)
            case zk.Check():
                return self._multi((operation,))
            case zk.Multi(_, operations):
                return self._multi(operations)

    def _multi(self, operations: tuple[zk.Create | zk.Set | zk.Delete | zk.Check, ...]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case zk.Create(_, path, data, ephemeral, sequence):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)
                case zk.Set(_, path, data, version):
                    transaction.set_data(path, data, version)
                case zk.Delete(_, path, version):
                    transaction.delete(path, version)
                case zk.Check(_, path, version):
                    transaction.check(path, version)
        return transaction.commit_async()


def _value_of(operation: zk.Operation, result: Any) -> tuple[object, zk.Stat | None]:
    match operation:
        case zk.Create() | zk.Get():
            value, stat = result
            return value, _stat_of(stat)
        case zk.Set():
            return None, _stat_of(result)
        case zk.Delete():
            return None, None
        case zk.Exists():
            return result is not None, None if result is None else _stat_of(result)
        case zk.Children():
            names, stat = result
            return tuple(sorted(names)), _stat_of(stat)
        case _:
            return _values_of(result), None


def _values_of(results: list[object]) -> tuple[object, ...]:
    """Of a transaction, which gives errors as values: only one of them is why it failed."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            raise result
    return tuple(result if isinstance(result, str) else None for result in results)


def _stat_of(stat: ZnodeStat) -> zk.Stat:
    return zk.Stat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def _name_of(error: Exception) -> str:
    if isinstance(error, ConnectionClosedError):
        return zk.SESSION_EXPIRED
    if isinstance(error, OperationTimeoutError):
        return zk.CONNECTION_LOSS
    return type(error).__name__.removesuffix("Error")


def _acl_of(login: Login) -> list[ACL]:
    """Empty: as ZooKeeper does it, everything for everybody. The first is what earlier versions had alone."""
    if not login.user:
        return []
    mine = make_digest_acl(login.user, login.password, all=True)
    return [mine, make_acl("world", "anyone", read=True)]
