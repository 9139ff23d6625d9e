"""The one place that wires it all: a directory or memory, a commit log, a store, an LTM and the engine."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from .changetables.errors import DirectoryInUse, InterfaceError, OperationalError
from .config import Config
from .coordinator.administration import EmbeddedAdministration
from .coordinator.embedded import Engine, wall_clock_ms
from .coordinator.refresher import Refresher
from .coordinator.several import SeveralEngine
from .coordinator.timestamps import to_ms
from .ltm.commit_log.memory import MemoryLog
from .ltm.commit_log.segments import SegmentLog
from .ltm.driver import Ltm
from .ltm.garbage import database_closed, database_opened
from .ltm.ports import CommitLog, Store
from .ltm.store.memory import MemoryStore
from .open_socket import LOCK, OpenSocket, open_socket
from .open_socket import NAME as SOCKET

logger = logging.getLogger("viewtide")

#: How long to wait for the lock of a process that was killed, and how often to look.
ORPHANED_LOCK_S_MAX = 10.0
ORPHANED_LOCK_LOOK_S = 0.005

#: The folders of the LTMs' logs, with a number behind.
LTM_FOLDER = "ltm-"

#: The open databases of this process.
_nodes: weakref.WeakSet[Node] = weakref.WeakSet()


def _after_fork() -> None:
    for node in list(_nodes):
        node.forked()


os.register_at_fork(after_in_child=_after_fork)


class Node:
    """An open database."""

    def __init__(
        self,
        name: str,
        log: CommitLog,
        store: Store,
        config: Config,
        lock: DirectoryLock | None,
        ltm_logs: Sequence[CommitLog] = (),
    ) -> None:
        """`ltm_logs`: one for each of several LTMs."""
        self.name = name
        self.closed = False
        self._forked = False
        self._lock = lock
        #: Where other processes of the same user find it; only a directory has one.
        self.socket: OpenSocket | None = None
        self._session = secrets.randbits(62)
        self._numbers = itertools.count(1)
        #: Held by whoever changes tables and views.
        self.changing = threading.Lock()
        ltm = Ltm(log, store, config.cache_rows, logger.warning)
        ltm.history = config.kept(in_memory=isinstance(log, MemoryLog))
        self.engine = (
            SeveralEngine(ltm, wall_clock_ms, ltm_logs, config.ltms) if ltm_logs else Engine(ltm, wall_clock_ms)
        )
        self.engine.start()
        self.refresher = Refresher(self.engine, config.view_managers)
        self.refresher.start()
        self.admin = EmbeddedAdministration(self.engine, self.refresher)
        _nodes.add(self)
        database_opened()

    def lag_ms(self, watermark: int) -> float:
        """How far a watermark is behind the clock."""
        return float(max(wall_clock_ms() - to_ms(watermark), 0))

    def next_tx_id(self) -> tuple[int, int]:
        return self._session, next(self._numbers)

    def check_open(self) -> None:
        if self._forked:
            raise InterfaceError(
                "the database was opened before this process was forked", hint="open it after the fork, in one process"
            )
        if self.closed:
            raise InterfaceError("the database is closed", hint="open it again with viewtide.connect()")

    def forked(self) -> None:
        """In a forked child: the parent goes on with the database, the child must not touch its files."""
        self.closed = self._forked = True
        if self.socket is not None:
            self.socket.forked()
        if self._lock is not None:
            self._lock.release()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        _nodes.discard(self)
        database_closed()
        try:
            if self.socket is not None:
                self.socket.close()
            self.refresher.close()
            self.engine.close()
        finally:
            if self._lock is not None:
                self._lock.release()


class DirectoryLock:
    """One process per directory, and one opener in it. The kernel frees it when its holder dies."""

    def __init__(self, directory: Path) -> None:
        try:
            self._file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise OperationalError(f"{directory} cannot be opened: {error.strerror}", hint="check its owner") from error
        give_up = time.monotonic() + ORPHANED_LOCK_S_MAX
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                holder = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
                if not _is_gone(holder) or time.monotonic() > give_up:
                    os.close(self._file)
                    reached = directory / SOCKET
                    otherwise = f", or connect to 'ipc://{reached}'" if reached.exists() else ""
                    raise DirectoryInUse(
                        f"{directory} is open in process {holder}",
                        hint=f"one process per directory: close it there first{otherwise}",
                    ) from error
                time.sleep(ORPHANED_LOCK_LOOK_S)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    @property
    def descriptor(self) -> int:
        return self._file

    def release(self) -> None:
        os.close(self._file)


def _is_gone(holder: str) -> bool:
    """Whether the process that took the lock was killed: the one that wrote a checkpoint for it just ends, too."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        return False
    return False


def open_memory(config: Config) -> Node:
    """A new private database that lives as long as the process."""
    ltm_logs = [MemoryLog() for _ in range(config.ltms)] if config.ltms > 1 else []
    return Node("memory:", MemoryLog(), MemoryStore(), config, None, ltm_logs)


def open_directory(directory: Path, config: Config) -> Node:
    """Open or create the database in a directory."""
    try:
        _check_directory(directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_directory(directory.parent)
    except OSError as error:
        raise OperationalError(
            f"{directory} cannot be made or opened: {error.strerror}",
            hint="check the path and its permissions, or choose another one",
        ) from error
    lock = DirectoryLock(directory)
    try:
        # Imported here: a database in memory needs no LMDB.
        from .ltm.store.lmdb import LmdbStore

        store = LmdbStore(directory / "store", inherit=(lock.descriptor,))
        opened: list[CommitLog | Store] = [store]
        try:
            log = SegmentLog(directory / "log", on_report=logger.warning)
            opened.append(log)
            ltm_logs = _open_ltm_logs(directory, config.ltms)
            opened += ltm_logs
            node = Node(str(directory), log, store, config, lock, ltm_logs)
        except BaseException:
            for each in opened:
                each.close()
            raise
    except BaseException:
        lock.release()
        raise
    node.socket = open_socket(node, directory)
    return node


def ltm_numbers(directory: Path) -> list[int]:
    """Of the LTMs that have a log there."""
    names = [entry.name[len(LTM_FOLDER) :] for entry in directory.glob(f"{LTM_FOLDER}*")]
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _open_ltm_logs(directory: Path, ltms: int) -> list[CommitLog]:
    """The logs of several LTMs. Those of an earlier opening with more of them are opened too: they may have votes."""
    known = ltm_numbers(directory)
    if ltms == 1 and not known:
        return []
    logs: list[CommitLog] = []
    try:
        for number in range(1, max([ltms, *known]) + 1):
            logs.append(SegmentLog(directory / f"{LTM_FOLDER}{number}", on_report=logger.warning))
    except BaseException:
        for log in logs:
            log.close()
        raise
    return logs


def _sync_directory(directory: Path) -> None:
    """The name of a new database must be as durable as what is acknowledged in it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_directory(directory: Path) -> None:
    around = directory.absolute().parent
    if (around / LOCK).exists() and (around / "store").exists():
        # One at the place of the socket would keep everybody from reaching the database around it.
        raise OperationalError(
            f"{directory} is inside of a database, {around}",
            hint=f"open {around}; while a process has it open, others connect to ipc://{around / SOCKET}",
        )
    if directory.is_dir():
        names = {entry.name for entry in directory.iterdir()}
        if names and not names & {LOCK, "log", "store"}:
            raise OperationalError(
                f"{directory} holds something else than a Viewtide database", hint="choose a new path"
            )
    elif directory.exists():
        raise OperationalError(f"{directory} is a file", hint="a database is a directory: choose another path")
