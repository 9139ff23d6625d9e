"""Rows of a client on their way into a table of a served node. They are kept in a file without a name, then loaded.

    open    whether the table takes a bulk load; if it does not, the client makes one ordinary transaction of its rows
    add     some rows, in one message: an Arrow stream, or values with the names of their columns
    load    all of them as one transaction; (rows, commit_ts)

An upload is a session (`server_sessions`): one that is not used any more ends, and nothing is left of its rows.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import IO, TYPE_CHECKING, cast

from .arrow import batches_from_bytes, bytes_of_batch
from .bulk import Places, Rows, load_staged, staged_target
from .changetables.errors import (
    Busy,
    CommitUnknown,
    DataError,
    OperationalError,
    RemoteProtocolError,
    TransactionConflict,
    Unavailable,
)
from .changetables.evaluators.choice import has_columns
from .ltm.codec import NotUnderstood, pack, unpack_from_peer
from .remote_protocol import from_wire, to_wire
from .table import LoadProgress, LoadResult

if TYPE_CHECKING:
    from .arrow import RecordBatch
    from .database import Database
    from .remote import RemoteNode

#: Rows of one message. A request may have some times as many bytes.
PART_BYTES_MAX = 4 << 20
#: What one upload may leave on the disk of the node. Its rows take about as much again in the store.
UPLOAD_BYTES_MAX = 256 << 30
#: At a time in one process: each has a file open, and a process may have about a thousand.
UPLOADS_MAX = 100

ARROW, VALUES = 0, 1
_HEAD = Struct("<BQ")
_room = threading.BoundedSemaphore(UPLOADS_MAX)


class Upload:
    """On the node."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = database._table(table).name
        target = staged_target(database, self._table)
        #: None: the table takes no bulk loads. It is closed with the session.
        self._file: IO[bytes] | None = None
        self._size = 0
        if target is not None:
            if not _room.acquire(blocking=False):
                raise Busy(f"{UPLOADS_MAX} loads of clients are under way", hint="try again when one is done")
            try:
                self._file = tempfile.TemporaryFile(dir=target.directory)  # noqa: SIM115
            except OSError as error:
                _room.release()
                raise _not_kept(error) from error

    def open(self) -> bool:
        return self._file is not None and has_columns()

    def add(self, kind: int, data: bytes) -> None:
        if self._file is None or kind not in (ARROW, VALUES) or type(data) is not bytes:
            raise RemoteProtocolError("rows that cannot be taken in")
        self._size += len(data)
        if self._size > UPLOAD_BYTES_MAX:
            raise DataError(f"a load is larger than {UPLOAD_BYTES_MAX} bytes", hint="divide it into several")
        try:
            _keep(self._file, kind, data)
            self._file.flush()
        except OSError as error:
            self.close()
            raise _not_kept(error) from error

    def load(self, begun: Sequence[tuple[str, int]]) -> tuple[int, int]:
        """`begun`: as in `Places`."""
        target = staged_target(self._database, self._table)
        if target is None:
            raise TransactionConflict(f"table {self._table!r} was changed during the load", hint="load it again")
        return load_staged(target, self._chunks(), lambda rows: None, Places(begun))

    def _chunks(self) -> Iterator[RecordBatch | Rows]:
        if self._file is None:
            raise RemoteProtocolError("a load without rows")
        self._file.seek(0)
        yield from kept_chunks(self._file)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be written goes, too
                self._file.close()
            self._file = None
            _room.release()


def keep_chunk(file: IO[bytes], chunk: RecordBatch | Rows) -> int:
    """Write rows to a file that `kept_chunks` reads; how many they are."""
    rows_count = 0
    for kind, count, data in _parts(chunk):
        _keep(file, kind, data)
        rows_count += count
    return rows_count


def _keep(file: IO[bytes], kind: int, data: bytes) -> None:
    file.write(_HEAD.pack(kind, len(data)))
    file.write(data)


def kept_chunks(file: IO[bytes]) -> Iterator[RecordBatch | Rows]:
    while head := file.read(_HEAD.size):
        kind, size = _HEAD.unpack(head)
        data = file.read(size)
        if kind == ARROW:
            yield from batches_from_bytes(data)
        else:
            yield _rows_from(data)


def _not_kept(error: OSError) -> OperationalError:
    return OperationalError(
        f"the rows of a load cannot be kept on the node: {error}", hint="check its disk and free space"
    )


def _rows_from(data: bytes) -> Rows:
    try:
        made = from_wire(unpack_from_peer(data, 0))
    except NotUnderstood as error:
        raise RemoteProtocolError(f"rows that cannot be read: {error}") from None
    names, rows = made if isinstance(made, tuple) and len(made) == 2 else (None, None)
    if not isinstance(names, tuple) or not isinstance(rows, list):
        raise RemoteProtocolError("rows that cannot be read")
    if any(type(row) is not tuple or len(row) != len(names) for row in rows):
        raise RemoteProtocolError("rows that cannot be read")
    return Rows(cast("tuple[str, ...]", names), rows)


# --- clients ---


def upload(
    node: RemoteNode, table: str, chunks: Iterable[RecordBatch | Rows], progress: LoadProgress, places: Places
) -> LoadResult | None:
    """Load rows into a table of a served node; None, before any of them is taken: it makes transactions only."""
    from .remote_calls import ONCE, SessionCalls

    calls = SessionCalls(node.client, ("upload", table))
    try:
        if not node.run(calls.ask("open")):
            return None
        rows_count = 0
        for chunk in chunks:
            for kind, count, data in _parts(chunk):
                node.run(calls.ask("add", (kind, data)))
                rows_count += count
            progress(rows_count)
        try:
            done = node.run(calls.ask("load", (list(places.begun),), kind=ONCE))
        except CommitUnknown as error:
            raise CommitUnknown(
                "the connection was lost during a load, which may have happened", hint=error.hint
            ) from None
        return LoadResult(*cast("tuple[int, int]", done))
    finally:
        with suppress(Unavailable):  # then it ends by itself
            node.run(calls.end())


def _parts(chunk: RecordBatch | Rows) -> Iterator[tuple[int, int, bytes]]:
    """(kind, rows, bytes) of a chunk, in parts that fit into a message."""
    kind, count, data = _part(chunk)
    if len(data) <= PART_BYTES_MAX or count < 2:
        yield kind, count, data
        return
    half = count // 2
    for first, stop in ((0, half), (half, count)):
        some = (
            chunk._replace(rows=chunk.rows[first:stop]) if isinstance(chunk, Rows) else chunk.slice(first, stop - first)
        )
        yield from _parts(some)


def _part(chunk: RecordBatch | Rows) -> tuple[int, int, bytes]:
    if isinstance(chunk, Rows):
        return VALUES, len(chunk.rows), pack(to_wire((chunk.names, list(chunk.rows))))
    return ARROW, int(chunk.num_rows), bytes_of_batch(chunk)
