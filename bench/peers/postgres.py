"""PostgreSQL with a statement-level trigger that keeps the totals, as the dashboard's system `postgres_trigger`.

The server is the bench's own: made by initdb in the bench's folder, reachable by a Unix socket in it only, stopped and
deleted at the end. Durable as it is by default: fsync and synchronous_commit are on. shared_buffers holds all data and
max_wal_size keeps checkpoints out of the measured time; everything else is as PostgreSQL sets it.

What was tried for PostgreSQL's best at k = 10, on two cores that other work kept busy: differences below about a third
were lost in noise there and are called undecided.
- one INSERT ... SELECT FROM unnest(arrays), binary and prepared: used. One statement is one round trip, and the trigger
  runs once. At 16 clients a multi-row VALUES against it is undecided; COPY was slower at one client, in a single run;
- executemany in pipeline mode fires the trigger once per row, and deadlocks at 16 clients: only within one statement
  can the trigger take the groups in a fixed order;
- 16 threads of one process: used. Two and four client processes brought no consistent gain, nor did pgbench, a client
  in C, with similar transactions: Python is not what holds PostgreSQL up here;
- one lock for all groups (an advisory lock in the trigger) shares out more evenly, but was slower in 15 of 18 pairs;
- fillfactor 10 for the totals: undecided, so left as it is. There is no index that the trigger does not need.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psycopg

from ..errors import BenchError
from ..workload import TABLES, VIEW_SQL, Event, ViewRow, base_rows

START_S_MAX = 30.0
STOP_S_MAX = 30.0
#: Linux limits the path of a Unix socket to 107 bytes; PostgreSQL appends "/.s.PGSQL.5432".
SOCKET_FOLDER_BYTES_MAX = 107 - len("/.s.PGSQL.5432")

SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
}

_TEMPLATE = "dashboard_template"
_CELL = "dashboard"
_SQL_TYPES: dict[type, str] = {int: "bigint", str: "text"}

#: ORDER BY: every transaction locks the groups in the same order, else two of them deadlock.
_TOTALS = """
CREATE TABLE cost_by_category (category text PRIMARY KEY, cost bigint NOT NULL, n bigint NOT NULL);
CREATE FUNCTION add_to_totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cost_by_category AS t (category, cost, n)
        SELECT p.category, SUM(e.cost), COUNT(*)
        FROM new_events e JOIN products p ON p.id = e.product
        GROUP BY p.category ORDER BY p.category
    ON CONFLICT (category) DO UPDATE SET cost = t.cost + excluded.cost, n = t.n + excluded.n;
    RETURN NULL;
END $$;
CREATE TRIGGER events_totals AFTER INSERT ON events
    REFERENCING NEW TABLE AS new_events FOR EACH STATEMENT EXECUTE FUNCTION add_to_totals();
"""
_READ = "SELECT category, cost, n FROM cost_by_category"
#: SUM of bigint is numeric in PostgreSQL; the recompute must compare as the totals are kept.
_RECOMPUTE = f"SELECT category, cost::bigint, n FROM ({VIEW_SQL}) AS view"
_INSERT = (
    "INSERT INTO events SELECT * FROM"
    " unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::text[], %b::bigint[])"
)


class Client:
    """A connection of its own. Autocommit: one statement is the transaction, no round trips for BEGIN and COMMIT."""

    def __init__(self, conninfo: str) -> None:
        self._connection = connect(conninfo)
        self._cursor = self._connection.cursor()

    def prepare(self, events: list[Event]) -> Callable[[], object]:
        columns = [list(column) for column in zip(*events, strict=True)]
        return lambda: self._cursor.execute(_INSERT, columns)

    def close(self) -> None:
        self._connection.close()


class Reader:
    """Reads the view in one statement at REPEATABLE READ: one snapshot."""

    def __init__(self, conninfo: str) -> None:
        self._connection = connect(conninfo)
        self._connection.execute("SET default_transaction_isolation = 'repeatable read'")
        self._cursor = self._connection.cursor(binary=True)

    def read(self) -> list[ViewRow]:
        return cast(list[ViewRow], self._cursor.execute(_READ).fetchall())

    def close(self) -> None:
        self._connection.close()


class _Session:
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def client(self) -> Client:
        return Client(self._conninfo)

    def reader(self) -> Reader:
        return Reader(self._conninfo)

    def recompute_differs(self) -> str | None:
        return recompute_differs(self._conninfo)


def recompute_differs(conninfo: str) -> str | None:
    with connect(conninfo) as connection:
        view = sorted(connection.execute(_READ).fetchall())
        recomputed = sorted(connection.execute(_RECOMPUTE).fetchall())
    return None if view == recomputed else f"{view} instead of {recomputed}"


def connect(conninfo: str) -> psycopg.Connection[tuple[object, ...]]:
    # prepare_threshold=0: prepared at the first use.
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=0)


class PostgresServer:
    """A running server with a template database; each cell gets a copy of that."""

    def __init__(self, socket_folder: Path) -> None:
        self._socket_folder = socket_folder

    def conninfo(self, database: str) -> str:
        return f"host={self._socket_folder} user=postgres dbname={database}"

    @contextmanager
    def session(self) -> Iterator[_Session]:
        with self.fresh_database() as conninfo:
            yield _Session(conninfo)

    @contextmanager
    def fresh_database(self) -> Iterator[str]:
        """A copy of the template, which is dropped at the end."""
        with connect(self.conninfo("postgres")) as admin:
            admin.execute(f"CREATE DATABASE {_CELL} TEMPLATE {_TEMPLATE}")
            # What the copy left to be written is written now, not in the measured time.
            admin.execute("CHECKPOINT")
            try:
                yield self.conninfo(_CELL)
            finally:
                # Clients that failed may still be connected. The checkpoint keeps the server's leftovers out of the
                # measured time of whichever system comes next.
                admin.execute(f"DROP DATABASE {_CELL} WITH (FORCE)")
                admin.execute("CHECKPOINT")

    def create_template(self, keeping: str, after_load: str | None) -> None:
        with connect(self.conninfo("postgres")) as admin:
            admin.execute(f"CREATE DATABASE {_TEMPLATE}")
        with connect(self.conninfo(_TEMPLATE)) as connection:
            for table in TABLES:
                columns = [f"{name} {_SQL_TYPES[kind]}" for name, kind in table.columns.items()]
                columns.append(f"PRIMARY KEY ({table.key})")
                connection.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")
            connection.execute(keeping.encode(), prepare=False)  # Several statements cannot be prepared as one.
            for table in TABLES:
                with connection.cursor().copy(f"COPY {table.name} FROM STDIN") as copy:
                    for row in base_rows(table.name):
                        copy.write_row(row)
            if after_load is not None:
                connection.execute(after_load.encode())
            # Without statistics the planner would guess at the size of products.
            connection.execute("VACUUM ANALYZE")


@contextmanager
def postgres_server(parent: Path, keeping: str = _TOTALS, after_load: str | None = None) -> Iterator[PostgresServer]:
    """Starts a server in a folder below `parent`; stops it and deletes the folder at the end, whatever happens.

    `keeping` are the statements that make the totals be kept; `after_load` runs once the initial rows are there.
    """
    initdb, postgres = _program("initdb"), _program("postgres")
    folder = parent / "postgres"
    if len(os.fsencode(folder)) > SOCKET_FOLDER_BYTES_MAX:
        raise BenchError(f"{folder} is too long for a Unix socket: choose a shorter --dir")
    folder.mkdir(mode=0o700)
    try:
        user = _server_user(parent, folder)
        _initdb(initdb, folder, user)
        with running(postgres, folder, user, SETTINGS):
            server = PostgresServer(folder)
            server.create_template(keeping, after_load)
            yield server
    finally:
        shutil.rmtree(folder)


def server_version() -> str:
    return subprocess.run(
        [_program("postgres"), "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _program(name: str) -> str:
    """The newest version that is installed the way Debian does, else what the PATH has."""
    installed = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(installed, key=lambda path: float(path.parts[4]), default=None)
    found = str(newest) if newest is not None else shutil.which(name)
    if found is None:
        raise BenchError(
            f"PostgreSQL's program {name} was not found in /usr/lib/postgresql/*/bin or the PATH. Install the server "
            "(apt-get install postgresql-15), or leave it out with --systems"
        )
    return found


@dataclass(frozen=True, slots=True)
class _User:
    """Whom the server runs as, in the form that subprocess takes; None: as we are."""

    name: str | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None


def _server_user(parent: Path, folder: Path) -> _User:
    """PostgreSQL refuses to run as root: then the folder and the server belong to the user postgres, or nobody."""
    if os.geteuid() != 0:
        return _User()
    entries = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = entries.get("postgres") or entries.get("nobody")
    if entry is None:
        raise BenchError(
            "PostgreSQL does not run as root, and there is no user postgres or nobody: run as another user"
        )
    user = _User(entry.pw_name, entry.pw_gid, ())
    parent.chmod(0o711)  # That user must get through to its own folder.
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    if _run(["test", "-w", str(folder)], Path("/"), user).returncode != 0:
        raise BenchError(f"the user {user.name}, who runs PostgreSQL, cannot write {folder}: choose another --dir")
    return user


def _run(command: list[str], folder: Path, user: _User) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        user=user.name,
        group=user.group,
        extra_groups=user.extra_groups,
        capture_output=True,
        text=True,
        check=False,
    )


def _initdb(program: str, folder: Path, user: _User) -> None:
    # The C locale compares text by bytes: the fastest that PostgreSQL has, and the order of the other systems.
    options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]
    done = _run([program, "-D", str(folder / "data"), *options], folder, user)
    if done.returncode != 0:
        raise BenchError(f"initdb failed: {done.stdout}{done.stderr}")


@contextmanager
def running(program: str, folder: Path, user: _User, settings: Mapping[str, str]) -> Iterator[None]:
    """The server as a child of this process: it is stopped by its own pid, and only it."""
    command = [program, "-D", str(folder / "data"), "-k", str(folder)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        # A session of its own: a Ctrl-C at the terminal reaches the bench, which then stops the server in order.
        server = subprocess.Popen(
            command,
            cwd=folder,
            user=user.name,
            group=user.group,
            extra_groups=user.extra_groups,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, folder, log_path)
        yield
    finally:
        _stop(server)


def _wait_until_ready(server: subprocess.Popen[bytes], folder: Path, log_path: Path) -> None:
    give_up = time.monotonic() + START_S_MAX
    conninfo = PostgresServer(folder).conninfo("postgres")
    while True:
        try:
            connect(conninfo).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > give_up:
                raise BenchError(f"PostgreSQL did not start ({error}): {log_path.read_text()}") from error
        time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Fast shutdown (SIGINT), and if that takes too long an immediate one (SIGQUIT), which also ends all backends."""
    for stop_signal in (signal.SIGINT, signal.SIGQUIT):
        if server.poll() is not None:
            return
        server.send_signal(stop_signal)
        try:
            server.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            continue
    if server.poll() is None:
        raise BenchError(f"PostgreSQL (pid {server.pid}) does not stop")
