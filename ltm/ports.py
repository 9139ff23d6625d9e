"""The contract between the machines' drivers and the outside: stores and commit logs.

Every implementation passes the suites in `tests/contract/`. A raise of `OperationalError` means damage (`Damaged`) or
a failed device: the node stops, because what is on disk is no longer known to be what was acknowledged. Of what is on
another machine, `Unavailable` means that nobody knows: it can be asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..changetables.errors import OperationalError
from ..changetables.types import Row


class Damaged(OperationalError):
    """What was stored is not what was written: reading it again does not help, and it must never become an answer."""


class DamagedCell(Damaged):
    """A stored row or index entry of which that is so."""

    def __init__(self, message: str, *, table_id: int, key: bytes, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.table_id = table_id
        self.key = key


#: What users call the cell of a table id and a key; None: there is no such id.
NameCell: TypeAlias = Callable[[int, bytes], str | None]

#: The longest key that every store takes. LMDB allows 511 bytes, of which two timestamps take 16.
KEY_BYTES_MAX = 495


class Cell(NamedTuple):
    """One version of one row: `value` is None for a tombstone (the row was deleted at `commit_ts`)."""

    key: bytes
    commit_ts: int
    value: bytes | None


#: A row that has no older version, as it is in memory: (key, (commit_ts, row, None)). One without a row is passed over.
FirstVersion: TypeAlias = tuple[bytes, tuple[int, Row | None, object]]


class LogPart(NamedTuple):
    """Records of a commit log in one file: those from `from_lsn` on, behind `start` and before `end`, which are places
    as `commit_log/format.py` has them (lsn, offset, chain)."""

    path: str
    salt: bytes
    from_lsn: int
    start: tuple[int, int, int]
    end: tuple[int, int, int]


class LoggedRows(NamedTuple):
    """How many rows of a table are in parts of a log, all of them new, and the indexes that get their entries."""

    table_id: int
    rows_count: int
    indexes: Sequence[int]


class ElsewhereFailed(Exception):
    """The process that was to write did not. It is gone."""


class WriteElsewhere(Protocol):
    """A large write that another process makes. A context manager: what was not committed by its end leaves no trace.

    Every call may raise `ElsewhereFailed`: the caller then writes the same again by `Store.write`, which is the same
    whether the other process had come to its end or not.
    """

    def __enter__(self) -> WriteElsewhere: ...
    def __exit__(self, *_: object) -> None: ...

    def begin(self, catalog: bytes) -> None:
        """First of all: the packed catalog that tells how index entries are made."""

    def rows(self, table_id: int, indexes: Sequence[int], rows: Sequence[FirstVersion]) -> None:
        """Rows of a table or view and, made from them, the entries of some indexes of it."""

    def logged(self, parts: Sequence[LogPart], tables: Sequence[LoggedRows]) -> None:
        """As `rows`, for the tables that are named: all that the log has of them there, read from its files."""

    def cells(self, batch: Sequence[Cell]) -> None: ...

    def commit(
        self, superseded: Sequence[tuple[int, bytes, int]], removed: Sequence[tuple[bytes, int]], meta: dict[str, bytes]
    ) -> dict[int, bytes]:
        """As `Store.write`. Returns the highest key that `rows` and `logged` wrote of each table, view and index."""


class Store(Protocol):
    """Versioned cells in key order. Keys have at most KEY_BYTES_MAX bytes and are self-delimiting: none is a prefix of
    another.

    Reads are safe from many threads at once, also while one thread writes, prunes or drops (one at a time: the caller
    sees to that); each call sees one state, that of the last finished write. A value whose checksum fails raises
    OperationalError that names the key. A call after `close` raises InterfaceError.
    """

    def get(self, key: bytes, at: int) -> Cell | None:
        """The newest version with commit_ts <= at (tombstones included), or None."""

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        """`get` for each key, in one pass."""

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        """The visible version of each key in start <= key < stop, in key order, at most `limit` cells.

        Tombstones are included, so that a caller who merges newer versions on top can tell "deleted" from "not here";
        a caller pages on with start = last key + b"\\0".
        """

    def write(
        self,
        batches: Iterable[Sequence[Cell]],
        superseded: Iterable[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
        removed: Iterable[tuple[bytes, int]] = (),
    ) -> None:
        """One durable, atomic write: all cells, the garbage notes and the meta entries, or nothing.

        Cells overwrite an equal (key, commit_ts), equal notes are one: after a crash, the same may be written again.
        `superseded` are (superseding commit_ts, key, commit_ts of the version that it supersedes): `prune` removes that
        version once nobody reads below the superseding one. A tombstone is noted as superseding itself; if it is
        overwritten by a value before that, as the slots of one step may do, that stays. `removed` are versions (key,
        commit_ts) that nobody reads any more already: they go at once. Both are read after the last batch. `between` is
        called after each batch, and now and then while the rest is written (the caller yields the processor there). If
        an iterable or `between` raises, nothing was written.
        """

    def write_elsewhere(self) -> WriteElsewhere | None:
        """Begin a `write` that takes no interpreter time here; None if there is no such way."""

    def prune(self, horizon: int, limit: int) -> int:
        """Delete at most `limit` superseded versions whose superseding commit_ts <= horizon, lowest first.

        Returns how many notes were settled, also of versions that are gone already: less than `limit` means that
        nothing is left to do. No reader at or above `horizon` sees a difference, whatever the limit.
        """

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        """The highest stored key in start <= key < stop, also if it is a tombstone's, or None."""

    def meta(self, name: str) -> bytes | None:
        """A meta entry of the last write, or None. Damage raises."""

    def drop_range(self, start: bytes, stop: bytes) -> None:
        """Delete every version of every key in the range, durably (a dropped table).

        A long range is deleted in several steps: readers may see some of them, and after a crash the call is repeated.
        """

    def stat(self) -> dict[str, int]:
        """Figures for the status: `cells`, `notes`, `used_bytes`, `file_bytes` (0 if there is no file)."""

    def close(self) -> None: ...


class Staged(Protocol):
    """A write of staged cells that is under way."""

    def stage(self, items: Sequence[tuple[bytes, bytes]]) -> int:
        """Cells as the store has them, in the order of their keys; how many of them were not there yet."""


@runtime_checkable
class BulkStore(Protocol):
    """A store that takes bulk loads (`loads`): cells with a timestamp that counts as another one, or as none yet."""

    def staging(self) -> AbstractContextManager[Staged]:
        """One durable write; an exception in it leaves no trace."""

    def count_as(self, timestamps: Mapping[tuple[bytes, int], int]) -> None:
        """By (table id, timestamp of its cells): when they count as written. What is not named counts as it is."""

    def unstage(self, table_id: int, staged_ts: int) -> None:
        """Remove all cells of a table with this timestamp, durably, in several steps."""

    def has_staged(self, key: bytes, staged_ts: int) -> bool: ...

    def values(self, start: bytes, stop: bytes, at: int, limit: int) -> tuple[Sequence[bytes], bytes | None]:
        """What `scan` finds, without tombstones and keys, and faster: the values of about `limit` cells, and where the
        next ones begin, None if there are no more."""


@runtime_checkable
class CountingStore(Protocol):
    """A store that counts much faster than it reads."""

    def count_cells(self, start: bytes, stop: bytes, most: int) -> int:
        """The versions in start <= key < stop, no more than that many."""


@runtime_checkable
class NamingStore(Protocol):
    """A store whose errors say what users call a row: whoever knows the catalog tells it."""

    name_cell: NameCell


class LogRecord(NamedTuple):
    """One flush: `lsn` counts flushes from 1."""

    lsn: int
    payload: bytes


class CommitLog(Protocol):
    """An append-only sequence of flushes. One thread appends at a time."""

    def append(self, payload: bytes) -> int:
        """Write one flush and make it durable; returns its lsn.

        OperationalError means that its fate is unknown and that every later append is refused: only opening the log
        again tells. DataError (the flush is too large) comes before anything is written and changes nothing.
        """

    def read(self, from_lsn: int) -> Iterator[LogRecord]:
        """The durable records with lsn >= from_lsn, in order, without gaps; from_lsn > last_lsn gives none.

        Raises OperationalError (file, offset) at damage, or naming the oldest lsn if from_lsn was trimmed away. Appends
        and trims may go on meanwhile: the reader may or may not see later records.
        """

    def trim(self, below_lsn: int) -> None:
        """The records with lsn < below_lsn are not needed any more; space is reused when whole segments are free.

        So some of them may stay readable. The lsns count on, whatever is trimmed.
        """

    @property
    def last_lsn(self) -> int:
        """The lsn of the last durable record, 0 if there is none."""

    @property
    def oldest_lsn(self) -> int:
        """The lowest lsn that `read` takes: that of the oldest record, or the next one if there is none."""

    def bytes_since(self, lsn: int) -> int:
        """About how many bytes the records with an lsn >= `lsn` take; never more for a higher lsn."""

    @property
    def wants_spare(self) -> bool:
        """Whether `prepare` has something to do: cheap, to be asked after a flush."""

    def prepare(self) -> bool:
        """Get ahead of need whatever would make a later append slow, from any thread; True if something was done."""

    @property
    def cut_bytes(self) -> int:
        """How many bytes of a torn last flush were cut when the log was opened (0: it ended cleanly)."""

    def close(self) -> None: ...


@runtime_checkable
class LogInFiles(Protocol):
    """A log that another process of this machine can read, too."""

    def parts(self, from_lsn: int) -> list[LogPart]:
        """Where the records from one on are that are durable now, as long as nobody trims them."""
