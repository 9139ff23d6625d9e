"""A temporary PostgreSQL 15 server: the reference that results are compared with.

One server per test process, made by initdb in a folder of its own, reachable by a Unix socket in it only, and ended by
its pid. The programs are found, and the server is run as another user than root, as the benches do it. If PostgreSQL is
missing it is installed where that is possible; where it is not, the tests fail and say what to install.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from bench.errors import BenchError
from bench.peers.postgres import PostgresServer, _program, _run, _server_user, running

#: The version whose results the engine promises.
MAJOR_VERSION = 15

_INSTALL = Path(__file__).parent.parent / ".ci" / "system-packages.sh"
#: Text is ordered by code point, as in the engine, but letters outside ASCII have upper and lower case.
_INITDB_OPTIONS = (
    "--auth=trust", "--username=postgres", "--encoding=UTF8", "--lc-collate=C", "--lc-ctype=C.UTF-8", "--no-sync",
)  # fmt: skip
#: Nothing here outlives the tests, so nothing is made durable.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "10",
    "max_parallel_workers": "0",
    "autovacuum": "off",
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "extra_float_digits": "1",
    "jit": "off",
}

PostgresError = psycopg.Error


class Postgres:
    """One connection to the server, in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._connection = connection

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """The rows of one statement; `parameters` are for its %s. Values are Python's, timestamptz in UTC."""
        cursor = self._connection.execute(sql.encode(), parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    def executescript(self, sql: str) -> None:
        """Any number of statements, without parameters. They are one transaction."""
        self._connection.execute(sql.encode())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    programs = [_installed(name) for name in ("initdb", "postgres")]
    # Not in pytest's folder: the path of a Unix socket has at most 107 bytes.
    parent = Path(tempfile.mkdtemp(prefix="viewtide-postgres-"))
    try:
        folder = parent / "server"
        folder.mkdir(mode=0o700)
        user = _server_user(parent, folder)
        made = _run([programs[0], "-D", str(folder / "data"), *_INITDB_OPTIONS], folder, user)
        assert made.returncode == 0, f"initdb failed: {made.stdout}{made.stderr}"
        with running(programs[1], folder, user, _SETTINGS):
            conninfo = PostgresServer(folder).conninfo("postgres")
            with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as connection:
                version = connection.info.server_version // 10_000
                assert version == MAJOR_VERSION, f"PostgreSQL {version} was found, {MAJOR_VERSION} is the reference"
                yield Postgres(connection)
    finally:
        shutil.rmtree(parent)


def _installed(program: str) -> str:
    """The path of a program of the server, which is installed first if it is missing."""
    try:
        return _program(program)
    except BenchError:
        done = subprocess.run([str(_INSTALL), "postgres"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"PostgreSQL is missing: {done.stdout}{done.stderr}"
        return _program(program)
