"""SQLite with a row trigger that keeps the totals, as the dashboard's system `sqlite_trigger`.

Durable like the others: in WAL mode only synchronous=FULL syncs the log at each commit (NORMAL may lose the last
commits at a power cut). For SQLite's best: one connection per thread, prepared statements, executemany in one BEGIN
IMMEDIATE (a deferred BEGIN would fail with SQLITE_BUSY when two clients upgrade), a page cache that holds everything,
automatic checkpoints as usual, no index that the trigger does not need. The module releases the interpreter's lock
while SQLite works; four client processes instead of threads brought no consistent gain.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..workload import TABLES, VIEW_SQL, Event, ViewRow, base_rows

#: A client that does not get the write lock for so long fails: SQLite has no queue, its clients poll.
BUSY_TIMEOUT_MS = 60_000
CACHE_KIB = 262_144

_SQL_TYPES: dict[type, str] = {int: "INTEGER", str: "TEXT"}

#: A row trigger is the only kind that SQLite has. Groups exist from the start, so that a plain UPDATE is
#: enough, which does less than an upsert; the reader leaves out empty ones, as the view would.
_TOTALS = """
CREATE TABLE cost_by_category (category TEXT PRIMARY KEY, cost INTEGER NOT NULL, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER events_totals AFTER INSERT ON events FOR EACH ROW BEGIN
    UPDATE cost_by_category SET cost = cost + NEW.cost, n = n + 1
    WHERE category = (SELECT category FROM products WHERE id = NEW.product);
END;
"""
_READ = "SELECT category, cost, n FROM cost_by_category WHERE n > 0"
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level=None: the module begins no transactions of its own.
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1_000, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


class _Client:
    """Client or reader: a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = _connect(path)

    def prepare(self, events: list[Event]) -> Callable[[], None]:
        connection = self._connection

        def commit() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, events)
            connection.execute("COMMIT")

        return commit

    def read(self) -> list[ViewRow]:
        return self._connection.execute(_READ).fetchall()

    def close(self) -> None:
        self._connection.close()


class _Session:
    def __init__(self, path: Path) -> None:
        self._path = path

    def client(self) -> _Client:
        return _Client(self._path)

    def reader(self) -> _Client:
        return _Client(self._path)

    def recompute_differs(self) -> str | None:
        with closing(_connect(self._path)) as connection:
            view = sorted(connection.execute(_READ).fetchall())
            recomputed = sorted(connection.execute(VIEW_SQL).fetchall())
        return None if view == recomputed else f"{view} instead of {recomputed}"


@contextmanager
def sqlite_session(parent: Path) -> Iterator[_Session]:
    folder = Path(tempfile.mkdtemp(prefix="sqlite-", dir=parent))
    try:
        path = folder / "dashboard.sqlite"
        _create(path)
        yield _Session(path)
    finally:
        shutil.rmtree(folder)


def _create(path: Path) -> None:
    with closing(_connect(path)) as connection:
        for table in TABLES:
            columns = [
                f"{name} {_SQL_TYPES[kind]}" + (" PRIMARY KEY" if name == table.key else "")
                for name, kind in table.columns.items()
            ]
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")
        connection.executescript(_TOTALS)
        connection.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            rows = base_rows(table.name)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' for _ in table.columns)})", rows)
            if table.name == "categories":
                connection.execute("INSERT INTO cost_by_category SELECT name, 0, 0 FROM categories")
        connection.execute("COMMIT")
