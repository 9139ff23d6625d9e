"""The store of an embedded node: one LMDB environment, three named databases.

    cells   key | 2**64-1 - commit_ts (8, big-endian)                 ->  value | kind (1) | crc32 (4, little-endian)
    notes   superseding commit_ts (8) | key | superseded commit_ts (8)  ->  crc32 (4)
    meta    name (UTF-8)                                                ->  value | crc32 (4)

- The timestamp of a cell is inverted, so that the versions of a key lie newest first and a seek to `key | 2**64-1 - at`
  lands on the newest one <= at. Kind is 0 for a tombstone (its value is empty) and 1 for a value.
- The timestamps of a note are plain, so that of the notes of one key the older version comes first: a tombstone, which
  supersedes itself, is never removed before the rows that it hides, however small the steps of `prune` are.
- LMDB has no checksums of its own. Each crc32 covers the whole LMDB key and everything before it in the value, so that
  a value under a wrong key is damage too. The crc32 of bytes that end with their own crc32 is a constant: a reader
  compares with it and need not cut the value apart.
- The cells of a bulk load (`ltm/loads.py`) have one timestamp and count as written at another one, which the meta entry
  `loads` has. Whoever opened the store says what has changed since: `count_as`.
- The meta entry `FORMAT_NAME` holds `FORMAT`; an environment without it is refused.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import chain, islice
from operator import itemgetter, lt
from pathlib import Path
from shutil import disk_usage
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from zlib import crc32

import lmdb

from ...changetables.errors import Error, InterfaceError, InternalError, OperationalError
from ...changetables.evaluators.choice import has_columns
from ..ports import KEY_BYTES_MAX, Cell, Damaged, DamagedCell, NameCell

if TYPE_CHECKING:
    from .process import ProcessWrite

FORMAT = b"viewtide store 1"
FORMAT_NAME = "\0format"

#: Address space, not disk: the file is as long as what was written. LMDB cannot grow a map under running readers.
MAP_BYTES = 1 << 40
#: Slots in the lock file: how many reads can run at the same moment.
READERS_MAX = 1024
#: Read transactions kept open between reads. More than the threads that read at once on any machine we know is waste.
IDLE_READERS_MAX = 32
#: The longest key of LMDB. Longer bounds of a range are cut: no stored key is as long.
SEEK_BYTES_MAX = 511
#: After so many steps over versions that nobody asked for, a seek (about four steps) is cheaper.
STEPS_BEFORE_SEEK = 4
#: `values` gives no more bytes than about this at once, and looks after so many cells.
PAGE_BYTES_MAX = 4 << 20
PIECE_CELLS = 100
#: Where that many cells are wanted it is tried whether so many are alike; so many are taken together, few at first.
ALIKE_CELLS_MIN = 500
ALIKE_PIECE_CELLS = 250
ALIKE_FIRST_CELLS = 20
#: Where they are not, no more are looked at together: they are in the processor's cache when they are looked at again.
PAGE_CELLS_MAX = 1_000
#: Notes or removed versions between two calls of `between`: about a millisecond.
NOTES_PER_BATCH = 500
#: `drop_range` deletes so many cells in one transaction: some tens of milliseconds, a few MB of pages.
DROP_CELLS_MAX = 10_000
#: Keys that are looked at together when cells are counted.
COUNT_CELLS = 10_000
DAMAGE_HINT = "restore the database from a backup, and check the disk and the memory of this machine"
#: A disk with less than this is full: more than LMDB writes in one system call.
FREE_BYTES_MIN = 16 << 20

_TS_MAX = 2**64 - 1
_TS_BYTES = 8
_TABLE_BYTES = 4
_CRC_BYTES = 4
#: crc32(x + crc32(x)) for every x.
_RESIDUE = 0x2144DF1C
_TOMBSTONE = b"\0"
_VALUE = b"\1"
#: Behind the oldest version (commit_ts 0) that a key can have, and before the next key.
_AFTER_VERSIONS = b"\xff" * _TS_BYTES + b"\0"

T = TypeVar("T")

_pack = Struct(">Q").pack
_unpack_from = Struct(">Q").unpack_from
_pack_crc = Struct("<I").pack
_make_tuple = tuple.__new__


class _Reader(NamedTuple):
    """A read transaction that stays open between reads, as long as nothing is written: to begin one costs 0.7 µs."""

    generation: int
    transaction: lmdb.Transaction[bytes]
    cells: lmdb.Cursor[bytes]


class OpenWrite:
    """What is put into one write transaction."""

    def __init__(
        self,
        transaction: lmdb.Transaction[bytes],
        cells: lmdb._Database,
        notes: lmdb._Database,
        meta: lmdb._Database,
    ) -> None:
        self._transaction = transaction
        self._cells, self._notes, self._meta = cells, notes, meta
        self._cursor = transaction.cursor(cells)

    def cells(self, batch: Sequence[tuple[bytes, int, bytes | None]]) -> None:
        self._cursor.putmulti(_encode_cells(batch))

    def stage(self, items: Sequence[tuple[bytes, bytes]]) -> int:
        """Cells as they are stored, in the order of their keys; how many of them were not there yet."""
        _, added = self._cursor.putmulti(items, overwrite=False)
        return int(added)

    def rest(
        self,
        superseded: Iterable[tuple[int, bytes, int]],
        removed: Iterable[tuple[bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
    ) -> None:
        """What comes after all cells."""
        transaction = self._transaction
        notes = transaction.cursor(self._notes)
        for some in _split(superseded, NOTES_PER_BATCH):
            notes.putmulti(_encode_notes(some))
            between()
        for gone in _split(removed, NOTES_PER_BATCH):
            for key, commit_ts in gone:
                transaction.delete(key + _pack(_TS_MAX - commit_ts), db=self._cells)
            between()
        for name, value in meta.items():
            transaction.put(name.encode(), _seal(name.encode(), value), db=self._meta)


class LmdbStore:
    """Implements `ports.Store` in the directory `path`, which it creates if it is missing.

    Reads share a pool of read transactions. A finished write starts a new generation and empties the pool: a read that
    begins later cannot get an older transaction, and no idle one keeps LMDB from using freed pages again.

    `inherit` are files that a process which writes for this one keeps open: the lock of the directory.
    """

    #: By table: the timestamps of cells that count as others.
    _counts_as: Mapping[bytes, Mapping[int, int]] = MappingProxyType({})

    #: For errors; set by whoever knows the catalog.
    name_cell: NameCell = staticmethod(lambda table_id, key: None)

    @property
    def directory(self) -> Path:
        return self._file.parent

    def __init__(self, path: Path, inherit: tuple[int, ...] = ()) -> None:
        self._file = path / "data.mdb"
        self._inherit = inherit
        self._closed = False
        self._generation = 0
        self._idle: deque[_Reader] = deque()
        _make_directory(path)
        try:
            self._environment = lmdb.open(
                str(path),
                map_size=MAP_BYTES,
                subdir=True,
                metasync=True,
                sync=True,
                mode=0o600,
                readahead=False,
                # Pages are cleared, for a twentieth of the time of a write: the rest of a page would otherwise hold
                # whatever was in memory before, rows of other databases and passwords among it.
                meminit=True,
                max_readers=READERS_MAX,
                max_dbs=3,
                # Files of LMDB 1.0 cannot be read by 0.9, so the choice is not left to the process's environment.
                lib_version=0,
            )
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise self._not_a_store(str(error)) from error
        except (lmdb.Error, OSError) as error:
            raise self._failure(error) from error
        try:
            self._open_databases()
        except BaseException:
            self._environment.close()
            raise

    def get(self, key: bytes, at: int) -> Cell | None:
        reader = self._acquire()
        try:
            return self._newest(reader.cells, key, _pack(_TS_MAX - at), at)
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._release(reader)

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        reader = self._acquire()
        try:
            cells, inverted = reader.cells, _pack(_TS_MAX - at)
            return [self._newest(cells, key, inverted, at) for key in keys]
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._release(reader)

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        reader = self._acquire()
        try:
            return self._scan(reader.cells, start, stop, at, limit)
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._release(reader)

    def write(
        self,
        batches: Iterable[Sequence[Cell]],
        superseded: Iterable[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
        removed: Iterable[tuple[bytes, int]] = (),
    ) -> None:
        with self.writing() as write:
            for batch in batches:
                write.cells(batch)
                between()
            write.rest(superseded, removed, meta, between)

    @contextmanager
    def writing(self) -> Iterator[OpenWrite]:
        """One synced transaction, which ends with the block; an exception in it leaves no trace."""
        try:
            # Other processes may read (`LmdbSnapshot`): one that was killed keeps no pages from being used again.
            self._environment.reader_check()
            with self._environment.begin(write=True) as transaction:
                yield OpenWrite(transaction, self._cells, self._notes, self._meta)
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._start_generation()

    # Bulk loads

    def staging(self) -> AbstractContextManager[OpenWrite]:
        return self.writing()

    def count_as(self, timestamps: Mapping[tuple[bytes, int], int]) -> None:
        by_table: dict[bytes, dict[int, int]] = {}
        for (table, staged_ts), ts in timestamps.items():
            by_table.setdefault(table, {})[staged_ts] = ts
        self._counts_as = by_table

    def unstage(self, table_id: int, staged_ts: int) -> None:
        start, stop = table_id.to_bytes(_TABLE_BYTES, "big"), (table_id + 1).to_bytes(_TABLE_BYTES, "big")
        ending = _pack(_TS_MAX - staged_ts)
        while start < stop:
            cell_keys = self._cell_keys(start, stop, DROP_CELLS_MAX)
            if not cell_keys:
                return
            last = cell_keys[-1][:-_TS_BYTES]
            # Not all versions of the last key may be among them.
            self._delete([*(each for each in cell_keys if each.endswith(ending)), last + ending], [])
            start = last + b"\0"

    def has_staged(self, key: bytes, staged_ts: int) -> bool:
        with self._reading() as reader:
            return reader.transaction.get(key + _pack(_TS_MAX - staged_ts)) is not None

    def write_elsewhere(self) -> ProcessWrite | None:
        # Imported here: most databases never have so much to write.
        from .process import ProcessWrite, interpreter

        program = interpreter()
        return None if program is None else ProcessWrite(program, self._file.parent, self._inherit, self._written)

    def _written(self) -> None:
        """Another process wrote, or tried to and died: then LMDB still has its reader in the lock file."""
        self._environment.reader_check()
        self._start_generation()

    def prune(self, horizon: int, limit: int) -> int:
        due = self._due_notes(horizon, limit)
        if due:
            cell_keys = {_cell_key_of_note(note_key): _notes_itself(note_key) for note_key in due}
            rewritten = self._rewritten([cell_key for cell_key, itself in cell_keys.items() if itself])
            self._delete([cell_key for cell_key in cell_keys if cell_key not in rewritten], due)
        return len(due)

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        with self._reading() as reader:
            cells = reader.cells
            found = cells.set_range(stop[:SEEK_BYTES_MAX])
            # A key that is a prefix of `stop` lies before it, but its cells, being longer, may lie behind.
            if not found or self._checked(cells)[:-_TS_BYTES] >= stop:
                found = cells.prev() if found else cells.last()
            key = self._checked(cells)[:-_TS_BYTES] if found else None
            return key if key is not None and key >= start else None

    def meta(self, name: str) -> bytes | None:
        with self._reading() as reader:
            stored = reader.transaction.get(name.encode(), db=self._meta)
            # A name that is missing may be one that was damaged. There are few, so all are looked at.
            entries = [(name.encode(), stored)] if stored else list(reader.transaction.cursor(self._meta))
        for entry, sealed in entries:
            if crc32(sealed, crc32(entry)) != _RESIDUE:
                raise self._damage(f"the meta entry {entry!r}")
        return stored[:-_CRC_BYTES] if stored else None

    def drop_range(self, start: bytes, stop: bytes) -> None:
        # The notes stay: `prune` removes them when their time has come. To find them here, all notes would be read.
        while cell_keys := self._cell_keys(start, stop, DROP_CELLS_MAX):
            self._delete(cell_keys, [])

    def stat(self) -> dict[str, int]:
        with self._reading() as reader:
            cells, notes, meta = (reader.transaction.stat(db) for db in (self._cells, self._notes, self._meta))
        pages = sum(each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"] for each in (cells, notes, meta))
        return {
            "cells": cells["entries"],
            "notes": notes["entries"],
            "used_bytes": pages * cells["psize"],
            "file_bytes": (self._environment.info()["last_pgno"] + 1) * cells["psize"],
        }

    def close(self) -> None:
        self._closed = True
        self._drop_idle()
        self._environment.close()

    # Reading

    def _newest(self, cells: lmdb.Cursor[bytes], key: bytes, inverted: bytes, at: int) -> Cell | None:
        """The cell at a seek to key | inverted, if it is one of the key; else nothing is there."""
        try:
            found = cells.set_range(key + inverted)
        except lmdb.BadValsizeError:
            return None  # Longer than any key that can be stored.
        if found:
            cell_key, stored = cells.item()
            if crc32(stored, crc32(cell_key)) != _RESIDUE:
                raise self._cell_damage(cell_key)
            if cell_key[:-8] == key:
                if self._counts_as and (counts_as := self._counts_as.get(key[:_TABLE_BYTES])):
                    return self._newest_counted(cells, key, at, counts_as)
                return _decode(key, cell_key, stored)
        self._check_before(cells, found, key + inverted)
        return None

    def _newest_counted(
        self, cells: lmdb.Cursor[bytes], key: bytes, at: int, counts_as: Mapping[int, int]
    ) -> Cell | None:
        """The first version from the cursor on that counts as written at or before `at`."""
        more = True
        while more and (cell_key := self._checked(cells))[:-_TS_BYTES] == key:
            cell = _decode(key, cell_key, cells.value())
            ts = counts_as.get(cell.commit_ts, cell.commit_ts)
            if ts <= at:
                return cell._replace(commit_ts=ts)
            more = cells.next()
        return None

    def _check_before(self, cells: lmdb.Cursor[bytes], found: bool, sought: bytes) -> None:
        """After a seek, `found` or not, step back and check the neighbour.

        A cell whose LMDB key was damaged is not found any more. It still lies in its old place, so that it is one of
        the two neighbours of the place where it is sought: before "there is none" is believed, both are checked.
        """
        if (cells.prev() if found else cells.last()) and self._checked(cells) >= sought:
            raise self._cell_damage(cells.key())

    def _scan(self, cells: lmdb.Cursor[bytes], start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        """Steps over versions that are not asked for one by one, and seeks when a key has many of them."""
        found: list[Cell] = []
        done = last = b""
        steps = 0
        item, step, seek = cells.item, cells.next, cells.set_range
        # A scan is one of a table: all its keys begin alike.
        counts_as = self._counts_as.get(start[:_TABLE_BYTES])
        more = self._seek_key(cells, start)
        while more and len(found) < limit:
            cell_key, stored = item()
            # Where LMDB's own pages are damaged, good cells come twice or in a wrong place, and others are missing.
            if crc32(stored, crc32(cell_key)) != _RESIDUE or cell_key <= last:
                raise self._cell_damage(cell_key)
            last = cell_key
            key = cell_key[:-8]
            if key == done:
                steps += 1
                more = step() if steps < STEPS_BEFORE_SEEK else seek(key + _AFTER_VERSIONS)
            elif key >= stop:
                break
            elif counts_as and (ts := counts_as.get(_TS_MAX - _unpack_from(cell_key, -8)[0])) is not None:
                if ts <= at:
                    found.append(_make_tuple(Cell, (key, ts, stored[:-5] if stored[-5] else None)))
                    done, steps = key, 0
                # Step by step: a seek to `at` may lead here again.
                more = step()
            elif (cell := _decode(key, cell_key, stored)).commit_ts > at:
                steps += 1
                more = step() if steps < STEPS_BEFORE_SEEK else seek(key + _pack(_TS_MAX - at))
            else:
                found.append(cell)
                done, steps = key, 0
                more = step()
        return found

    def values(self, start: bytes, stop: bytes, at: int, limit: int) -> tuple[Sequence[bytes], bytes | None]:
        """What `scan` finds, without tombstones and keys, in a sixth of its time: the values of about `limit` cells,
        and where the next ones begin, None if there are no more."""
        with self._reading() as reader:
            if not self._seek_key(reader.cells, start):
                return [], None
            visible = self._visible(start[:_TABLE_BYTES], at)
            if limit >= ALIKE_CELLS_MIN and _has_arrow():
                alike = _alike(reader.cells.iternext(), stop, limit, visible)
                if alike is not None:
                    return alike
                self._seek_key(reader.cells, start)
            cells = reader.cells.iternext()
            page, more = _piece_by_piece(cells, stop, min(limit, PAGE_CELLS_MAX))
            cell_keys = [cell_key for cell_key, _ in page]
            self._check_page(page, cell_keys)
            if cell_keys[-1][:-8] >= stop:
                del page[bisect_left(cell_keys, stop, key=_key_of) :]
            if len({cell_key[:-8] for cell_key, _ in page}) == len(page) and all(
                map(visible, {cell_key[-8:] for cell_key, _ in page})
            ):
                # As most are: one version of each key, and it is old enough.
                found = [stored[:-5] for _, stored in page if stored[-5]]
                return found, page[-1][0][:-8] + b"\0" if more else None
            further = self._checked_one_by_one(cells, stop, cell_keys[-1])
            return self._newest_values(chain(page, further), len(page), visible, more)

    def _check_page(self, page: list[tuple[bytes, bytes]], cell_keys: list[bytes]) -> None:
        if {crc32(stored, crc32(cell_key)) for cell_key, stored in page} == {_RESIDUE} and all(
            map(lt, cell_keys, islice(cell_keys, 1, None))
        ):
            return
        last = b""
        for cell_key, stored in page:
            if crc32(stored, crc32(cell_key)) != _RESIDUE or cell_key <= last:
                raise self._cell_damage(cell_key)
            last = cell_key

    def _checked_one_by_one(
        self, cells: Iterator[tuple[bytes, bytes]], stop: bytes, last: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        for cell_key, stored in cells:
            if crc32(stored, crc32(cell_key)) != _RESIDUE or cell_key <= last:
                raise self._cell_damage(cell_key)
            last = cell_key
            if cell_key[:-8] >= stop:
                return
            yield cell_key, stored

    def _visible(self, table: bytes, at: int) -> Callable[[bytes], bool]:
        """Whether cells that were written at an (inverted) timestamp are seen at `at`."""
        counts_as = {_pack(_TS_MAX - ts): count for ts, count in self._counts_as.get(table, {}).items()}
        inverted = _pack(_TS_MAX - at)
        return lambda written: counts_as[written] <= at if written in counts_as else written >= inverted

    def _newest_values(
        self, cells: Iterator[tuple[bytes, bytes]], count: int, visible: Callable[[bytes], bool], more: bool
    ) -> tuple[list[bytes], bytes | None]:
        """The first version of each key that is visible, of `count` cells and of what belongs to the last key."""
        found: list[bytes] = []
        done = last = b""
        for number, (cell_key, stored) in enumerate(cells):
            key = cell_key[:-8]
            if number >= count and (not more or key != last or key == done):
                break
            last = key
            if key != done and visible(cell_key[-8:]):
                done = key
                if stored[-5]:
                    found.append(stored[:-5])
        return found, last + b"\0" if more else None

    def _seek_key(self, cells: lmdb.Cursor[bytes], start: bytes) -> bool:
        """Put the cursor on the first cell with key >= start, and check that none is passed over."""
        sought = start[:SEEK_BYTES_MAX]
        found = cells.set_range(sought)
        # A key that is a prefix of `start`, as the last key of the page before is, lies before it, but its cells, being
        # longer, may lie behind. No two keys are prefixes of `start`, so one more seek is enough.
        if found and (key := self._checked(cells)[:-_TS_BYTES]) < start:
            sought = key + _AFTER_VERSIONS
            found = cells.set_range(sought)
        self._check_before(cells, found, sought)
        return found and cells.set_range(sought)

    def _checked(self, cells: lmdb.Cursor[bytes]) -> bytes:
        """The LMDB key of the cell under the cursor."""
        cell_key, stored = cells.item()
        if crc32(stored, crc32(cell_key)) != _RESIDUE:
            raise self._cell_damage(cell_key)
        return cell_key

    def _due_notes(self, horizon: int, limit: int) -> list[bytes]:
        due: list[bytes] = []
        with self._reading() as reader:
            for note_key, stored in islice(reader.transaction.cursor(self._notes), limit):
                if crc32(stored, crc32(note_key)) != _RESIDUE:
                    raise self._damage(f"the garbage note {note_key.hex()}")
                if _unpack_from(note_key)[0] > horizon:
                    break
                due.append(note_key)
        return due

    def _rewritten(self, cell_keys: list[bytes]) -> set[bytes]:
        """Those that were noted as tombstones, and hold a value by now."""
        found: set[bytes] = set()
        with self._reading() as reader:
            for cell_key in cell_keys:
                stored = reader.transaction.get(cell_key)
                if stored is None:
                    continue
                if crc32(stored, crc32(cell_key)) != _RESIDUE:
                    raise self._cell_damage(cell_key)
                if stored[-_CRC_BYTES - 1]:
                    found.add(cell_key)
        return found

    def _cell_keys(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
        """Every version in the range, values unread."""
        found: list[bytes] = []
        with self._reading() as reader:
            cells = reader.cells
            more = self._seek_key(cells, start)
            while more and len(found) < limit and (cell_key := cells.key())[:-_TS_BYTES] < stop:
                found.append(cell_key)
                more = cells.next()
        return found

    def count_cells(self, start: bytes, stop: bytes, most: int) -> int:
        count = 0
        with self._reading() as reader:
            if not self._seek_key(reader.cells, start):
                return 0
            keys = reader.cells.iternext(keys=True, values=False)
            while count < most and (some := list(islice(keys, COUNT_CELLS))):
                if some[-1][:-_TS_BYTES] >= stop:
                    count += sum(key[:-_TS_BYTES] < stop for key in some)
                    break
                count += len(some)
        return min(count, most)

    # Read transactions

    @contextmanager
    def _reading(self) -> Iterator[_Reader]:
        """For the calls that are rare. The frequent ones write this out, because it costs a microsecond."""
        reader = self._acquire()
        try:
            yield reader
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._release(reader)

    def _acquire(self) -> _Reader:
        while self._idle:
            try:
                reader = self._idle.pop()
            except IndexError:
                break  # Another thread was faster.
            if reader.generation == self._generation:
                return reader
            reader.transaction.abort()
        # Asked before the transaction begins: it may be newer than its generation says, never older.
        generation = self._generation
        try:
            transaction = self._environment.begin(self._cells)
            return _Reader(generation, transaction, transaction.cursor())
        except lmdb.Error as error:
            raise self._failure(error) from error

    def _release(self, reader: _Reader) -> None:
        if reader.generation == self._generation and len(self._idle) < IDLE_READERS_MAX:
            self._idle.append(reader)
        else:
            reader.transaction.abort()

    def _start_generation(self) -> None:
        self._generation += 1
        self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().transaction.abort()
            except IndexError:
                break  # Another thread took the last one.

    # Writing

    def _delete(self, cell_keys: list[bytes], note_keys: list[bytes]) -> None:
        """In one transaction. A cell that is not there is passed over: it was dropped, or pruned before a crash."""
        try:
            with self._environment.begin(write=True) as transaction:
                for cell_key in cell_keys:
                    transaction.delete(cell_key, db=self._cells)
                for note_key in note_keys:
                    transaction.delete(note_key, db=self._notes)
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._start_generation()

    # Opening and errors

    def _open_databases(self) -> None:
        """Open the store, or make one if the environment has nothing in it yet."""
        try:
            with self._environment.begin(write=True) as transaction:
                new = transaction.stat()["entries"] == 0
                self._cells = self._environment.open_db(b"cells", transaction, create=new)
                self._notes = self._environment.open_db(b"notes", transaction, create=new)
                self._meta = self._environment.open_db(b"meta", transaction, create=new)
                if new:
                    name = FORMAT_NAME.encode()
                    transaction.put(name, _seal(name, FORMAT), db=self._meta)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise self._not_a_store("it holds other data") from error
        except lmdb.Error as error:
            raise self._failure(error) from error
        self._check_format()

    def _check_format(self) -> None:
        found = self.meta(FORMAT_NAME)
        if found is None:
            raise self._not_a_store("it holds other data")
        if found != FORMAT:
            raise self._not_a_store(f"its format is {found!r}, this version reads {FORMAT!r}")

    def _not_a_store(self, reason: str) -> Error:
        return OperationalError(
            f"{self._file} is not a store that this version can read: {reason}",
            hint="check the path, or open it with the version of Viewtide that wrote it",
        )

    def _failure(self, error: lmdb.Error | OSError) -> Error:
        if self._closed:
            return InterfaceError(f"the store {self._file} is closed", hint="open the database again")
        if isinstance(error, lmdb.MapFullError):
            return OperationalError(
                f"the store {self._file} is full: it has reached its limit of {MAP_BYTES} bytes",
                hint="delete data or shorten the history that is kept",
            )
        code = error.errno if isinstance(error, OSError) else error.code
        # A disk that fills up in the middle of a write is an I/O error to LMDB.
        if code == errno.ENOSPC or (code == errno.EIO and disk_usage(self._file.parent).free < FREE_BYTES_MIN):
            return OperationalError(
                f"no space left on the device that holds the store {self._file}",
                hint="free some space and open the database again; nothing acknowledged is lost",
            )
        return OperationalError(f"the store {self._file} failed: {error}", hint="check the disk and the system's log")

    def _damage(self, what: str) -> Error:
        return Damaged(self._damage_of(what), hint=DAMAGE_HINT)

    def _damage_of(self, what: str) -> str:
        return f"damage in the store {self._file}: {what} does not match its checksum or its place"

    def _cell_damage(self, cell_key: bytes) -> Error:
        """The table id may be what was damaged: where nobody knows it, the whole LMDB key is named."""
        table_id, key = int.from_bytes(cell_key[:_TABLE_BYTES], "big"), cell_key[:-_TS_BYTES]
        what = self.name_cell(table_id, key)
        if what is None:
            what = f"the row of table {table_id} with key {key.hex()} and its version {cell_key[-_TS_BYTES:].hex()}"
        return DamagedCell(self._damage_of(what), table_id=table_id, key=key, hint=DAMAGE_HINT)


class LmdbSnapshot(LmdbStore):
    """The store of a directory that another process may have open, as its last write left it: for reads by one thread.

    One read transaction serves all reads, so that they see one state however long they take. Until it is closed, the
    process that writes cannot use the pages again that it frees meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._file = path / "data.mdb"
        self._inherit = ()
        self._closed = False
        self._generation = 0
        self._idle = deque()
        try:
            self._environment = lmdb.open(
                str(path),
                map_size=MAP_BYTES,
                readonly=True,
                create=False,
                # Pages that were not asked for are of no use to others; those of a scan are.
                readahead=True,
                max_readers=READERS_MAX,
                max_dbs=3,
                lib_version=0,
            )
        except (lmdb.Error, OSError) as error:
            raise self._failure(error) from error
        try:
            self._open_databases()
        except BaseException:
            self._environment.close()
            raise

    @property
    def write_id(self) -> int:
        """The number of the write that it shows: every write has a higher one."""
        with self._reading() as reader:
            return int(reader.transaction.id())

    def _open_databases(self) -> None:
        try:
            # What is opened with no transaction is opened in one of its own, which ends at once.
            self._cells = self._environment.open_db(b"cells", create=False)
            self._notes = self._environment.open_db(b"notes", create=False)
            self._meta = self._environment.open_db(b"meta", create=False)
        except (lmdb.NotFoundError, lmdb.ReadonlyError, lmdb.IncompatibleError) as error:
            raise self._not_a_store("it holds other data") from error
        except lmdb.Error as error:
            raise self._failure(error) from error
        self._check_format()


def _decode(key: bytes, cell_key: bytes, stored: bytes) -> Cell:
    """A scan spends a third of its time here, so the lengths are written as numbers and Cell.__new__ is passed by."""
    return _make_tuple(Cell, (key, _TS_MAX - _unpack_from(cell_key, -8)[0], stored[:-5] if stored[-5] else None))


@cache
def _has_arrow() -> bool:
    """It is looked for once: a library that is missing is looked for in every folder."""
    return has_columns()


def _alike(
    cells: Iterator[tuple[bytes, bytes]], stop: bytes, limit: int, visible: Callable[[bytes], bool]
) -> tuple[Sequence[bytes], bytes] | None:
    """What `values` gives, as long as cells are alike, as those of rows are that were loaded together. None: they are
    not, or there is an end or damage among the first ones."""
    # Imported here: it needs pyarrow, which is optional.
    from ..woven import Gathered

    gathered = Gathered()
    while gathered.count < limit:
        piece = list(islice(cells, ALIKE_PIECE_CELLS if gathered.count else ALIKE_FIRST_CELLS))
        if not piece or piece[-1][0][:-8] >= stop:
            break
        cell_keys, stored = zip(*piece, strict=True)
        if not gathered.add(cell_keys, stored):
            break
        if not visible(gathered.written):
            return None
    found = gathered.checked() if gathered.count >= ALIKE_CELLS_MIN else None
    return None if found is None else (found, gathered.last[:-8] + b"\0")


def _piece_by_piece(
    cells: Iterator[tuple[bytes, bytes]], stop: bytes, limit: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """At most `limit` cells, fewer if they are long, not many beyond `stop`; and whether there may be more."""
    page: list[tuple[bytes, bytes]] = []
    size = 0
    while len(page) < limit and size < PAGE_BYTES_MAX:
        wanted = min(PIECE_CELLS, limit - len(page))
        piece = list(islice(cells, wanted))
        page += piece
        if len(piece) < wanted or piece[-1][0][:-8] >= stop:
            return page, False
        size += sum(map(len, map(_stored, piece)))
    return page, True


_stored = itemgetter(1)


def _key_of(cell_key: bytes) -> bytes:
    return cell_key[:-8]


def _seal(lmdb_key: bytes, body: bytes) -> bytes:
    """`body` with the checksum behind it."""
    return body + _pack_crc(crc32(body, crc32(lmdb_key)))


def _encode_cells(batch: Sequence[tuple[bytes, int, bytes | None]]) -> list[tuple[bytes, bytes]]:
    """In key order: LMDB stays on a page while it can. The sort is stable, so that the last of equal cells wins.

    Written out: a checkpoint spends a third of its time here.
    """
    items = []
    for key, commit_ts, value in batch:
        if not 0 < len(key) <= KEY_BYTES_MAX:
            _check_length(key)
        cell_key = key + _pack(_TS_MAX - commit_ts)
        body = _TOMBSTONE if value is None else value + _VALUE
        items.append((cell_key, body + _pack_crc(crc32(body, crc32(cell_key)))))
    items.sort(key=itemgetter(0))
    return items


def _encode_notes(superseded: Iterable[tuple[int, bytes, int]]) -> list[tuple[bytes, bytes]]:
    items = []
    for by_ts, key, commit_ts in superseded:
        _check_length(key)
        note_key = _pack(by_ts) + key + _pack(commit_ts)
        items.append((note_key, _seal(note_key, b"")))
    items.sort()
    return items


def _cell_key_of_note(note_key: bytes) -> bytes:
    return note_key[_TS_BYTES:-_TS_BYTES] + _pack(_TS_MAX - _unpack_from(note_key, -_TS_BYTES)[0])


def _notes_itself(note_key: bytes) -> bool:
    """Whether it is the note of a tombstone."""
    return note_key[:_TS_BYTES] == note_key[-_TS_BYTES:]


def _check_length(key: bytes) -> None:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InternalError(
            f"a key of {len(key)} bytes reached the store, which takes 1 to {KEY_BYTES_MAX}: {key[:32].hex()}..."
        )


def _split(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


def _make_directory(path: Path) -> None:
    """With the parent synced: the name of a new store must be as durable as what is acknowledged in it."""
    try:
        if path.is_dir():
            return
        path.mkdir(mode=0o700, parents=True)
        parent = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise OperationalError(
            f"cannot make the directory {path} for a store: {error.strerror}", hint="choose another path"
        ) from error
