"""Large writes of an LMDB store by a process of their own, so that they take no interpreter time from the writers.

    parent  starts a Python with its own import paths for one write, with the store's path and its own process id
    frames  length (4, little-endian) | msgpack [kind, ...]: begin, logged, rows and cells as often as needed, commit
    child   reads what the log has of tables that only got new rows, makes cells, index entries and checksums, puts them
            into one synced LMDB transaction, and commits it when told so; its one answer is ["done", highest keys] or
            ["failed", why]

- Nothing is written unless the parent said `commit`: a parent that is killed closes the pipe, and the child ends. Where
  somebody else holds the pipe open (a forked process), the child sees that its parent is another one.
- The child inherits the lock of the directory: while it lives nobody else can open the database.
- A child that dies, stalls or fails is killed, and the parent writes by itself. A transaction of LMDB leaves no trace
  then, and if it was committed after all, the same is just written again.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, TypeAlias, cast

from ...changetables.errors import InternalError
from ...changetables.keys import index_codec
from ...changetables.rows import row_codec
from ...changetables.schema import Table
from ...changetables.types import Row
from ..catalog import Catalog, catalog_from_plain
from ..codec import make_pack, pack, unpack, unpack_stream, with_one_nan
from ..commit_log.segments import read_part
from ..history import COMMIT
from ..logged import LoggedCommit, LoggedWrites
from ..ports import Cell, ElsewhereFailed, FirstVersion, LoggedRows, LogPart
from .lmdb import LmdbStore, OpenWrite

#: How long the child may take to read the next bytes, and to answer: a commit of 100,000 rows syncs some 10 MB.
STALL_MS_MAX = 60_000
#: How often a child that waits for its parent looks whether there still is one.
ORPHAN_CHECK_MS = 500
#: So much may wait in the pipe: the parent goes on while the child works.
PIPE_BYTES = 1 << 20
#: Rows of the log that are put together.
LOGGED_ROWS = 1_000

_length = Struct("<I")
_Entry = Callable[[Row, bytes], bytes]
_Plain: TypeAlias = tuple[Any, ...]


def interpreter() -> str | None:
    """The Python that runs this; None where the process is something else that embeds it."""
    name = os.path.basename(sys.executable or "")
    return sys.executable if name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False) else None


def command(program: str, store: Path, parent: int) -> list[str]:
    """Isolated (-I): whatever lies in the current directory is imported only if the parent would import it."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    return [program, "-I", "-c", start, str(store.resolve()), str(parent)]


class ProcessWrite:
    """The parent's side: implements `ports.WriteElsewhere`. `on_end` is called when the child is gone."""

    def __init__(self, program: str, store: Path, inherit: tuple[int, ...], on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._pack = make_pack()
        try:
            self._child = subprocess.Popen(
                command(program, store, os.getpid()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=inherit,
                bufsize=0,
                # Ctrl-C is for the parent.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ElsewhereFailed(f"it could not be started: {error}") from error
        assert self._child.stdin is not None and self._child.stdout is not None
        self._to, self._from = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._to, False)
        with suppress(OSError):  # A user may have so many pipes that the kernel gives no more room: then it is slower.
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def __enter__(self) -> ProcessWrite:
        return self

    def __exit__(self, *_: object) -> None:
        # After its answer it ends by itself; before, it has nothing to lose.
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child.wait()
        self._on_end()

    def begin(self, catalog: bytes) -> None:
        self._send(("begin", catalog))

    def rows(self, table_id: int, indexes: Sequence[int], rows: Sequence[FirstVersion]) -> None:
        self._send(("rows", table_id, indexes, rows))

    def logged(self, parts: Sequence[LogPart], tables: Sequence[LoggedRows]) -> None:
        self._send(("logged", [tuple(part) for part in parts], [tuple(table) for table in tables]))

    def cells(self, batch: Sequence[Cell]) -> None:
        self._send(("cells", batch))

    def commit(
        self, superseded: Sequence[tuple[int, bytes, int]], removed: Sequence[tuple[bytes, int]], meta: dict[str, bytes]
    ) -> dict[int, bytes]:
        self._send(("commit", superseded, removed, list(meta.items())))
        kind, result = self._answer()
        if kind != "done":
            raise ElsewhereFailed(str(result))
        return dict(cast(Sequence[tuple[int, bytes]], result))

    def _send(self, message: tuple[object, ...]) -> None:
        packed = self._pack(message)
        for part in (_length.pack(len(packed)), packed):
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[os.write(self._to, rest) :]
                except BlockingIOError:
                    if not _ready(self._to, select.POLLOUT, STALL_MS_MAX):
                        raise ElsewhereFailed("it does not go on") from None
                except BrokenPipeError:
                    raise ElsewhereFailed(str(self._answer()[1])) from None

    def _answer(self) -> tuple[str, object]:
        received = b""
        while _ready(self._from, select.POLLIN, STALL_MS_MAX):
            some = os.read(self._from, PIPE_BYTES)
            if not some:
                if len(received) < _length.size:
                    return "failed", "it ended without an answer"
                return cast(tuple[str, object], unpack(received[_length.size :]))
            received += some
        return "failed", "it does not answer"


def _ready(fd: int, event: int, timeout_ms: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(timeout_ms))


# The child's side.


def main() -> None:
    """Exit status 0 even after a failure: the answer says it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    store_path, parent = sys.argv[1:]
    try:
        answer: tuple[str, object] = ("done", list(_write(Path(store_path), _messages(0, int(parent))).items()))
    except EOFError:
        return  # Nobody is there to be answered.
    except Exception as error:
        answer = ("failed", str(error))
    packed = pack(answer)
    os.write(1, _length.pack(len(packed)) + packed)


def _write(path: Path, messages: Iterator[tuple[object, ...]]) -> dict[int, bytes]:
    """Returns the highest keys once all is committed."""
    store = LmdbStore(path)
    try:
        writing = _Rows(catalog_from_plain(unpack(cast(bytes, next(messages)[1]))))
        with store.writing() as write:
            for kind, *rest in messages:
                if kind == "rows":
                    writing.rows(write, *cast(tuple[int, tuple[int, ...], tuple[FirstVersion, ...]], rest))
                elif kind == "logged":
                    parts, tables = cast(tuple[tuple[_Plain, ...], tuple[_Plain, ...]], rest)
                    writing.logged(write, [LogPart(*part) for part in parts], [LoggedRows(*each) for each in tables])
                elif kind == "cells":
                    write.cells(*cast(tuple[tuple[Cell, ...]], rest))
                else:
                    superseded, removed, meta = cast(
                        tuple[
                            tuple[tuple[int, bytes, int], ...],
                            tuple[tuple[bytes, int], ...],
                            tuple[tuple[str, bytes], ...],
                        ],
                        rest,
                    )
                    write.rest(superseded, removed, dict(meta), lambda: None)
                    return writing.max_keys
        raise AssertionError("messages end with commit")
    finally:
        store.close()


class _Rows:
    """Makes the cells of rows and of their index entries."""

    def __init__(self, catalog: Catalog) -> None:
        self._tables = {table.id: table for table in catalog.tables.values()}
        self._makers: dict[int, _Entry] = {
            index.id: index_codec(table, index).entry for table in self._tables.values() for index in table.indexes
        }
        self._pack = make_pack()
        self.max_keys: dict[int, bytes] = {}

    def logged(self, write: OpenWrite, parts: Sequence[LogPart], tables: Sequence[LoggedRows]) -> None:
        """Rows that a transaction wrote before columns were added get their defaults, as they did in memory. There are
        as many as there: else something here is not what it was taken for, and nothing may be written."""
        whole = {table.table_id: _completing(self._tables[table.table_id]) for table in tables}
        indexes = {table.table_id: table.indexes for table in tables}
        missing = {table.table_id: table.rows_count for table in tables}
        found: dict[int, list[FirstVersion]] = {table.table_id: [] for table in tables}
        for commit_ts, (table_id, keys, _, new) in _logged_writes(parts, missing.keys()):
            complete, rows = whole[table_id], found[table_id]
            rows += [(key, (commit_ts, complete(row), None)) for key, row in zip(keys, new, strict=True)]
            if len(rows) >= LOGGED_ROWS:
                self.rows(write, table_id, indexes[table_id], rows)
                missing[table_id] -= len(rows)
                rows.clear()
        for table_id, rows in found.items():
            self.rows(write, table_id, indexes[table_id], rows)
            missing[table_id] -= len(rows)
        if any(missing.values()):
            raise InternalError(f"the commit log has other rows than memory: {missing} are missing")

    def rows(self, write: OpenWrite, table_id: int, indexes: Sequence[int], rows: Sequence[FirstVersion]) -> None:
        pack_row = self._pack
        self._put(write, table_id, [(key, ts, pack_row(row)) for key, (ts, row, _) in rows if row is not None])
        for index_id in indexes:
            entry = self._makers[index_id]
            self._put(write, index_id, [(entry(row, key), ts, key) for key, (ts, row, _) in rows if row is not None])

    def _put(self, write: OpenWrite, table_id: int, cells: list[tuple[bytes, int, bytes | None]]) -> None:
        if cells:
            write.cells(cells)
            self.max_keys[table_id] = max(self.max_keys.get(table_id, b""), max(cells)[0])


def _completing(table: Table) -> Callable[[Row | None], Row | None]:
    """What makes rows that come from the log equal to those in memory."""
    codec, columns_count = row_codec(table), len(table.columns)

    def complete(row: Row | None) -> Row | None:
        if row is None:
            return None
        if codec.has_float:
            row = with_one_nan(row)
        return row if len(row) >= columns_count else codec.pad(row)

    return complete


def _logged_writes(parts: Sequence[LogPart], tables: Container[int]) -> Iterator[tuple[int, LoggedWrites]]:
    """(commit_ts, writes to one table) of the transactions in parts of a log."""
    for part in parts:
        for record in read_part(part):
            for item in unpack_stream(record.payload):
                if item[0] == COMMIT:
                    _, _, commit_ts, _, written, _ = cast(LoggedCommit, item)
                    yield from ((commit_ts, writes) for writes in written if writes[0] in tables)


def _messages(fd: int, parent: int) -> Iterator[tuple[object, ...]]:
    while True:
        (length,) = _length.unpack(_read(fd, _length.size, parent))
        yield cast(tuple[object, ...], unpack(_read(fd, length, parent)))


def _read(fd: int, count: int, parent: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        while not _ready(fd, select.POLLIN, ORPHAN_CHECK_MS):
            if os.getppid() != parent:
                raise EOFError
        some = os.read(fd, count - len(received))
        if not some:
            raise EOFError
        received += some
    return bytes(received)
