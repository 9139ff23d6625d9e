"""The store of a cluster: HBase tables that any HBase client can read.

    <namespace>:<table or view>     one HBase table for each table and view that the catalog names (`hbase_columns.py`)
        row key     the key as Viewtide encodes it: 4 bytes of the table's id, then the key columns, in value order
        timestamp   commit_ts, of every cell
        a:<name>    the column <name> as text; see `hbase_columns.py`
        v:deleted   1 if this version says that the row was deleted, else 0
        v:r         the exact value: kind (1) | crc32 (4) | packed row. Kind 0 is a tombstone, 1 a value, 2 a long
                    value, whose parts are in v:p0000, v:p0001, ...
    <namespace>:viewtide.cells      the same for everything else (indexes, hidden and local views), without a:
    <namespace>:viewtide.store      what follows; family f
        <owner> 0 c                 the last write: f:s sequence, f:d its first part, f:m<name> the meta entries,
                                    f:a the sequence of the last write that was carried out
        <owner> 0 s <attempt> <n>   its further parts
        <owner> 0 n <note>          superseding commit_ts (8) | key | superseded commit_ts (8): garbage for `prune`
        0 routes                    f:<id> the HBase table in which the rows of a table are
        0 identity                  f:i a random number of this store, by which readers in other processes know it

Whoever reads a row must look at `v:deleted` first. A row is as of the last checkpoint; of one that is written just now
some columns may be newer than others (compare timestamps).

**All or nothing.** HBase changes one row at once, not many. So a write is first stored as a whole, in parts; one
conditional put of the row `<owner> 0 c`, which names the parts and has the meta entries, is the moment from which it
counts; then its cells are put where they belong. A process that dies before that moment leaves parts that nobody asks
for; one that dies after it leaves a write that the next one to open the store carries out again: the same cells, with
the same timestamps. Until all cells are in their places the readers of this process find them in memory (`_Overlay`),
so that each read sees the state before the write or after it.

**One writer per owner.** Opening the store takes over the row `<owner> 0 c`: an earlier process that still writes finds
another value in it and is refused. What it still puts in places, of a write that counts, has been put there by the new
one already. That would do harm only to a version that has been overwritten since: so `may_write` is asked before each
call, and raises when the lease is over. Owners (LTMs) share the tables of rows; each key is written by the owner of its
range.

**What is removed stays removed.** HBase hides a version that is written again after it was deleted, until the next
major compaction. So a version that was pruned, removed or dropped may not be written again with another meaning. Nobody
does: it lies below the horizon of all readers, and ids of tables are not used twice.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice
from struct import Struct
from typing import NamedTuple, TypeVar, cast
from zlib import crc32

from ...changetables.errors import InterfaceError, InternalError, OperationalError, Unavailable
from ..codec import make_pack, pack, unpack, unpack_stream
from ..hbase_client import ALL_VERSIONS, TIMESTAMP_MAX, AnswerLost, Hbase, Removal, RowOf, ScanOf, Value
from ..ports import KEY_BYTES_MAX, Cell, Damaged, WriteElsewhere
from .hbase_cells import (
    CELLS_TABLE,
    HEAD,
    IDENTITY,
    LONG,
    ROUTES,
    SCAN_ROWS,
    STORE_TABLE,
    TOMBSTONE,
    VALUE,
    F,
    HbaseCells,
    R,
    V,
    bound,
    cell_crc,
    store_identity,
    table_id_of,
)
from .hbase_columns import Described, described_tables

#: A value is cut into cells of this size: HBase refuses cells of more than 10 MB.
PART_BYTES = 4 << 20
#: A write is stored in parts of about so many bytes.
STAGE_BYTES = 1 << 20
GET_ROWS = 1_000
#: Cells, notes or removed versions between two calls of `between` and in one call of HBase.
CELLS_PER_CALL = 2_000
#: Cells that are put in their places in one call, and calls under way: neither this side nor HBase waits for the other
#: for long.
PUT_CELLS = 500
PUTS_AT_ONCE = 3
#: `stat` counts no further: it reads what it counts.
STAT_CELLS_MAX = 1_000_000
#: How long the commit of a write whose answer was lost is looked for.
COMMIT_MS_MAX = 30_000

_A = b"a"
_DELETED = b"deleted"
_STATE, _FIRST_PART, _APPLIED, _META = b"s", b"d", b"a", b"m"
_KEYS_ONLY = b"KeyOnlyFilter(true)"

_u64 = Struct(">Q")
_u32 = Struct(">I")

T = TypeVar("T")
_Note = tuple[int, bytes, int]


class _State(NamedTuple):
    """What `f:s` holds: the sequence of the last write, who made it, and where its parts are."""

    sequence: int
    writer: bytes
    attempt: bytes
    parts: int


class _Overlay:
    """The cells of a write that counts already, until they are all in their places."""

    def __init__(self, cells: dict[tuple[bytes, int], bytes | None]) -> None:
        self.versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        for (key, commit_ts), value in cells.items():
            self.versions.setdefault(key, []).append((commit_ts, value))
        self.keys = sorted(self.versions)

    def newer(self, key: bytes, at: int, stored: Cell | None) -> Cell | None:
        """What a reader finds who has found `stored` in HBase."""
        versions = self.versions.get(key)
        if versions is None:
            return stored
        known = [each for each in versions if each[0] <= at]
        if not known:
            return stored
        commit_ts, value = max(known, key=lambda each: each[0])
        return stored if stored is not None and stored.commit_ts > commit_ts else Cell(key, commit_ts, value)

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        return self.keys[bisect_left(self.keys, start) : bisect_left(self.keys, stop)]


_NOTHING = _Overlay({})


class HbaseStore(HbaseCells):
    """Implements `ports.Store` for one owner. `prefix` keeps several databases apart in the same tables."""

    def __init__(
        self,
        client: Hbase,
        namespace: str,
        owner: str,
        *,
        prefix: bytes = b"",
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        if not owner or "\0" in owner:
            raise InterfaceError(f"{owner!r} cannot be the name of an owner of a store")
        super().__init__(client, namespace, prefix)
        self._owner = prefix + owner.encode() + b"\0"
        self._writer = os.urandom(16)
        #: Asked before each call that puts cells in their places; whoever opened the store may give another one.
        self.may_write = may_write
        self._closed = False
        self._described: dict[int, Described] = {}
        self._gate = _Gate()
        self._unfinished: _Content | None = None
        self._putting: ThreadPoolExecutor | None = None
        create_store_tables(client, namespace)
        self._load_routes()
        self._state, self._meta = self._take_over()

    # Reading

    def get(self, key: bytes, at: int) -> Cell | None:
        return self.get_many([key], at)[0]

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        self._check_open()
        with self._gate.reading() as overlay:
            found: dict[bytes, Cell | None] = {}
            for table, some in self._by_table(dict.fromkeys(key for key in keys if len(key) <= KEY_BYTES_MAX)).items():
                for begin in range(0, len(some), GET_ROWS):
                    found |= self._stored(table, some[begin : begin + GET_ROWS], at)
            return [overlay.newer(key, at, found.get(key)) for key in keys]

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        self._check_open()
        with self._gate.reading() as overlay:
            stored = list(islice(self._scan(start, stop, at, min(limit, SCAN_ROWS)), limit))
            if len(stored) == limit and limit:
                stop = min(stop, stored[-1].key + b"\0")
            cells = {cell.key: cell for cell in stored}
            for key in overlay.between(start, stop):
                if cell := overlay.newer(key, at, cells.get(key)):
                    cells[key] = cell
            return [cells[key] for key in sorted(cells)[:limit]]

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        self._check_open()
        with self._gate.reading() as overlay:
            known = overlay.between(start, stop)[-1:]
            for table, first, end in reversed(self._pieces(start, stop)):
                found = self._highest(table, first, end)
                if found is not None:
                    known.append(found)
                    break
            return max(known, default=None)

    def meta(self, name: str) -> bytes | None:
        self._check_open()
        return self._meta.get(name)

    def stat(self) -> dict[str, int]:
        """Counted by reading: not for a large store, and no further than STAT_CELLS_MAX."""
        self._check_open()
        cells = size = 0
        for table, start, stop in self._pieces(b"", bound(1 << 32)):
            scan = self._range(start, stop, TIMESTAMP_MAX)._replace(versions=ALL_VERSIONS, filter=_KEYS_ONLY)
            for row in self._client.scan(table, scan, SCAN_ROWS):
                cells += len(row.values)
                size += sum(len(row.row) + 8 + int.from_bytes(each.value, "big") for each in row.values)
                if cells >= STAT_CELLS_MAX:
                    break
        notes = sum(1 for _ in self._client.scan(self._store_table, self._notes_below(TIMESTAMP_MAX), SCAN_ROWS))
        return {"cells": cells, "notes": notes, "used_bytes": size, "file_bytes": 0}

    # Writing

    def describe(self, catalog: bytes) -> None:
        """The packed catalog: from now on rows of its tables and views carry a column for each attribute.

        To be called before the first row of a new table is written: rows stay in the HBase table that they began in.
        """
        self._check_open()
        described = described_tables(catalog)
        for table_id, table in described.items():
            if table_id not in self._routes:
                self._add_route(table_id, table.name)
        self._described = described

    def write(
        self,
        batches: Iterable[Sequence[Cell]],
        superseded: Iterable[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
        removed: Iterable[tuple[bytes, int]] = (),
    ) -> None:
        self._check_open()
        self._finish()
        cells: dict[tuple[bytes, int], bytes | None] = {}
        for batch in batches:
            for key, commit_ts, value in batch:
                _check_cell(key, commit_ts)
                cells[key, commit_ts] = value
            between()
        content = _Content(cells, list(_pausing(superseded, between)), list(_pausing(removed, between)))
        attempt = os.urandom(16)
        parts = self._store_parts(attempt, content)
        state = _State(self._state.sequence + 1, self._writer, attempt, len(parts))
        self._commit(state, parts, meta)
        self._unfinished = content
        self._state, self._meta = state, self._meta | meta
        self._gate.show(_Overlay(cells))
        self._finish()

    def _finish(self) -> None:
        """Carry out the last write, also after HBase could not be reached in the middle of it."""
        if self._unfinished is not None:
            self._carry_out(self._state, self._unfinished)
            self._unfinished = None
            self._gate.show(_NOTHING)

    def write_elsewhere(self) -> WriteElsewhere | None:
        return None

    def prune(self, horizon: int, limit: int) -> int:
        self._check_open()
        self._finish()
        if limit <= 0:
            return 0
        notes = self._client.scan(self._store_table, self._notes_below(horizon), min(limit, SCAN_ROWS))
        due = [
            (row.row, row.values[0].timestamp, _decode_note(row.row[len(self._owner) + 1 :]))
            for row in islice(notes, limit)
        ]
        # A tombstone goes last: it hides the others.
        self._remove([(key, ts) for _, _, (superseding, key, ts) in due if superseding != ts])
        self._remove(self._still_tombstones([(key, ts) for _, _, (superseding, key, ts) in due if superseding == ts]))
        self._client.remove(self._store_table, [Removal(row, ts, [(F, b"n")], older=True) for row, ts, _ in due])
        return len(due)

    def drop_range(self, start: bytes, stop: bytes) -> None:
        self._check_open()
        self._finish()
        for table, first, end in self._pieces(start, stop):
            scan = self._range(first, end, TIMESTAMP_MAX)._replace(versions=ALL_VERSIONS, filter=_KEYS_ONLY)
            while rows := self._client.page(table, scan, SCAN_ROWS):
                self._remove([(row.row[len(self._prefix) :], each.timestamp) for row in rows for each in row.values])

    def close(self) -> None:
        self._closed = True
        if self._putting is not None:
            self._putting.shutdown(wait=False)

    # Where things are

    def _add_route(self, table_id: int, name: str) -> None:
        scan = self._range(bound(table_id), bound(table_id + 1), TIMESTAMP_MAX)
        if self._client.page(self._cells_table, scan, 1):
            return  # It began without a description, and stays where it is.
        table = f"{self._namespace}:{name}".encode()
        self._client.create_table(table, [(V, ALL_VERSIONS), (_A, ALL_VERSIONS)])
        route = Value(F, b"%d" % table_id, 1, table)
        self._client.put(self._store_table, [RowOf(self._prefix + ROUTES, [route])])
        self._routes[table_id] = table

    def _notes_below(self, horizon: int) -> ScanOf:
        start = self._owner + b"n"
        return ScanOf(start, start + _u64.pack(min(horizon, TIMESTAMP_MAX) + 1), columns=[(F, b"n")])

    # Cells

    def _encode(self, key: bytes, commit_ts: int, value: bytes | None) -> RowOf:
        row = self._prefix + key
        kind = TOMBSTONE if value is None else VALUE if len(value) <= PART_BYTES else LONG
        head = HEAD.pack(kind, cell_crc(row, commit_ts, kind, value or b""))
        values = [
            Value(V, R, commit_ts, head + (b"" if kind == LONG else value or b"")),
        ]
        if kind == LONG and value is not None:
            values += [
                Value(V, b"p%04d" % number, commit_ts, value[number * PART_BYTES : (number + 1) * PART_BYTES])
                for number in range(-(-len(value) // PART_BYTES))
            ]
        table_id = table_id_of(key)
        if table_id in self._routes:
            described = self._described.get(table_id)
            attributes = None if value is None or described is None else described.attributes(value)
            hidden = value is None or (described is not None and attributes is None)
            values.append(Value(V, _DELETED, commit_ts, b"1" if hidden else b"0"))
            values += [Value(_A, name, commit_ts, text) for name, text in attributes or ()]
        return RowOf(row, values)

    def _still_tombstones(self, versions: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
        """Without those that a value has taken the place of since."""
        found: list[tuple[bytes, int]] = []
        for key, commit_ts in versions:
            cell = self._stored(self._table_of(key), [key], commit_ts).get(key)
            if cell is not None and cell.commit_ts == commit_ts and cell.value is None:
                found.append((key, commit_ts))
        return found

    def _remove(self, versions: Sequence[tuple[bytes, int]]) -> None:
        by_table: dict[bytes, list[Removal]] = {}
        for key, commit_ts in versions:
            table = self._table_of(key)
            families: list[tuple[bytes, bytes | None]] = [(V, None)]
            if table != self._cells_table:
                families.append((_A, None))
            by_table.setdefault(table, []).append(Removal(self._prefix + key, commit_ts, families))
        for table, removals in by_table.items():
            self._client.remove(table, removals)

    # The steps of a write

    def _store_parts(self, attempt: bytes, content: _Content) -> list[bytes]:
        """All but the first, which goes into the row that makes the write count."""
        parts = list(content.parts())
        rows = [
            RowOf(self._part_key(attempt, number), [Value(F, _FIRST_PART, 1, part)])
            for number, part in enumerate(parts)
            if number
        ]
        self._client.put(self._store_table, rows)
        return parts

    def _commit(self, state: _State, parts: list[bytes], meta: dict[str, bytes]) -> None:
        ts = state.sequence
        values = [Value(F, _STATE, ts, _sealed(pack(tuple(state))))]
        values += [Value(F, _FIRST_PART, ts, part) for part in parts[:1]]
        values += [Value(F, _META + name.encode(), ts, _sealed(value)) for name, value in meta.items()]
        before = _sealed(pack(tuple(self._state)))
        if not self._swap(RowOf(self._commit_key(), values), before):
            raise OperationalError(
                "another process has taken over this store: what was to be written was not",
                hint="this process does not own it any more; start again",
            )

    def _swap(self, row: RowOf, before: bytes | None) -> bool:
        """Replace `f:s`, and find out whether it was done if the answer is lost or doubtful."""
        wanted = row.values[0].value
        deadline = time.monotonic() + COMMIT_MS_MAX / 1000
        while True:
            lost = ""
            try:
                if self._client.put_if(self._store_table, row, F, _STATE, before):
                    return True
            except AnswerLost as error:
                lost = str(error)
            found = self._client.get(self._store_table, row.row, columns=[(F, _STATE)])
            now = found.values[0].value if found else None
            if now == wanted:
                return True
            if now != before:
                return False
            if time.monotonic() > deadline:
                raise Unavailable(f"a write to HBase is not answered: {lost}", hint="it can be made again")

    def _carry_out(self, state: _State, content: _Content) -> None:
        """Put everything in its place. Done again, it is the same."""
        by_table: dict[bytes, list[tuple[bytes, int]]] = {}
        for key, commit_ts in content.cells:
            by_table.setdefault(self._table_of(key), []).append((key, commit_ts))
        self._put_cells(
            [(table, some) for table, versions in by_table.items() for some in _split(versions, PUT_CELLS)], content
        )
        for notes in _split(content.notes, CELLS_PER_CALL):
            self._client.put(self._store_table, [self._note_row(note, state.sequence) for note in notes])
        for gone in _split(content.removed, CELLS_PER_CALL):
            self.may_write()
            self._remove(gone)
        done = Value(F, _APPLIED, state.sequence, _sealed(_u64.pack(state.sequence)))
        self._client.put(self._store_table, [RowOf(self._commit_key(), [done])])
        if state.parts > 1:  # the first one is in the row that makes the write count
            self._forget_parts(state.attempt)

    def _put_cells(self, calls: Sequence[tuple[bytes, Sequence[tuple[bytes, int]]]], content: _Content) -> None:
        """Several calls at a time: while HBase is busy with one the next is made. All have ended when this returns."""

        def put(call: tuple[bytes, Sequence[tuple[bytes, int]]]) -> None:
            table, versions = call
            self.may_write()
            self._client.put(table, [self._encode(*each, content.cells[each]) for each in versions])

        if len(calls) <= 1:
            for call in calls:
                put(call)
            return
        if self._putting is None:
            self._putting = ThreadPoolExecutor(PUTS_AT_ONCE, "store puts")
        done = [self._putting.submit(put, call) for call in calls]
        wait(done)
        for each in done:
            each.result()

    def _note_row(self, note: _Note, sequence: int) -> RowOf:
        superseding, key, superseded = note
        row = self._owner + b"n" + _u64.pack(superseding) + key + _u64.pack(superseded)
        return RowOf(row, [Value(F, b"n", sequence, b"1")])

    def _forget_parts(self, attempt: bytes = b"") -> None:
        start = self._owner + b"s" + attempt
        stop = start + b"\xff" * 17
        scan = ScanOf(start, stop, columns=[(F, _FIRST_PART)], filter=_KEYS_ONLY)
        rows = list(self._client.scan(self._store_table, scan, SCAN_ROWS))
        self._client.remove(self._store_table, [Removal(row.row, 1, [(F, _FIRST_PART)]) for row in rows])

    # Opening

    def _take_over(self) -> tuple[_State, dict[str, bytes]]:
        """Become the one who writes, carry out what the one before did not come to, and read the meta entries."""
        while True:
            row = self._client.get(self._store_table, self._commit_key())
            stored = {each.qualifier: each.value for each in row.values} if row else {}
            last = self._read_state(stored)
            mine = _State(last.sequence + 1 if last else 1, self._writer, last.attempt if last else b"", 0)
            if last is not None and self._applied(stored) < last.sequence and last.parts:
                try:
                    content = self._read_content(last, stored)
                except OperationalError:
                    if self._is_state(stored[_STATE]):
                        raise
                    continue  # the one before is still at work: it has carried it out, and made another write
                self._carry_out(last, content)
            taken = Value(F, _STATE, mine.sequence, _sealed(pack(tuple(mine))))
            if self._swap(RowOf(self._commit_key(), [taken]), stored.get(_STATE)):
                break
        self._forget_parts()
        meta = {name[1:].decode(): self._unsealed(value, name) for name, value in stored.items() if name[:1] == _META}
        return mine, meta

    def _is_state(self, state: bytes) -> bool:
        row = self._client.get(self._store_table, self._commit_key(), columns=[(F, _STATE)])
        return row is not None and row.values[0].value == state

    def _read_state(self, stored: dict[bytes, bytes]) -> _State | None:
        if _STATE not in stored:
            return None
        plain = unpack(self._unsealed(stored[_STATE], _STATE))
        return _State(*cast(tuple[int, bytes, bytes, int], plain))

    def _applied(self, stored: dict[bytes, bytes]) -> int:
        return int.from_bytes(self._unsealed(stored[_APPLIED], _APPLIED), "big") if _APPLIED in stored else 0

    def _read_content(self, state: _State, stored: dict[bytes, bytes]) -> _Content:
        keys = [self._part_key(state.attempt, number) for number in range(1, state.parts)]
        rows = [self._client.get(self._store_table, key) for key in keys]
        parts = [stored.get(_FIRST_PART), *(row and row.values[0].value for row in rows)]
        whole = bytearray()
        for part in parts:
            if not part:
                raise Damaged(
                    f"the store is damaged: a part of write {state.sequence} is not in {self._store_table.decode()}",
                    hint="restore it from a backup of HBase",
                )
            whole += self._unsealed(part, _FIRST_PART)
        return _Content.of(bytes(whole))

    def _unsealed(self, stored: bytes, name: bytes) -> bytes:
        if len(stored) < 4 or crc32(stored[:-4]) != int.from_bytes(stored[-4:], "big"):
            raise Damaged(
                f"the store is damaged: {name!r} of row {self._commit_key()!r} in {self._store_table.decode()} "
                "has a wrong checksum",
                hint="restore it from a backup of HBase",
            )
        return stored[:-4]

    def _commit_key(self) -> bytes:
        return self._owner + b"c"

    def _part_key(self, attempt: bytes, number: int) -> bytes:
        return self._owner + b"s" + attempt + _u32.pack(number)

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the store is closed", hint="open the database again")


class _Content(NamedTuple):
    """What one write puts in its places."""

    cells: dict[tuple[bytes, int], bytes | None]
    notes: list[_Note]
    removed: list[tuple[bytes, int]]

    def parts(self) -> Iterator[bytes]:
        """One at least, so that a write without content is told from one that has been carried out."""
        packer, some = make_pack(), bytearray()
        for item in self._items():
            some += packer(item)
            while len(some) >= STAGE_BYTES:
                yield _sealed(bytes(some[:STAGE_BYTES]))
                del some[:STAGE_BYTES]
        yield _sealed(bytes(some))

    def _items(self) -> Iterator[tuple[object, ...]]:
        for (key, commit_ts), value in self.cells.items():
            yield "c", key, commit_ts, value
        for note in self.notes:
            yield "n", *note
        for version in self.removed:
            yield "r", *version

    @staticmethod
    def of(parts: bytes) -> _Content:
        content = _Content({}, [], [])
        for kind, *rest in unpack_stream(parts):
            if kind == "c":
                key, commit_ts, value = cast(tuple[bytes, int, bytes | None], rest)
                content.cells[key, commit_ts] = value
            elif kind == "n":
                content.notes.append(cast(_Note, tuple(rest)))
            else:
                content.removed.append(cast(tuple[bytes, int], tuple(rest)))
        return content


class _Gate:
    """Lets readers see a write as a whole: those who began before it counts end before its cells are put in places."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._overlay = _NOTHING
        self._readers: dict[_Overlay, int] = {}

    @contextmanager
    def reading(self) -> Iterator[_Overlay]:
        with self._changed:
            overlay = self._overlay
            self._readers[overlay] = self._readers.get(overlay, 0) + 1
        try:
            yield overlay
        finally:
            with self._changed:
                self._readers[overlay] -= 1
                if not self._readers[overlay]:
                    del self._readers[overlay]
                    self._changed.notify_all()

    def show(self, overlay: _Overlay) -> None:
        """From now on readers see it. Returns when nobody sees less any more."""
        with self._changed:
            self._overlay = overlay
            self._changed.wait_for(lambda: all(each is overlay for each in self._readers))


def create_store_tables(client: Hbase, namespace: str) -> None:
    for name, families in ((CELLS_TABLE, [(V, ALL_VERSIONS)]), (STORE_TABLE, [(F, 1)])):
        table = f"{namespace}:{name}".encode()
        if not client.table_exists(table):
            client.create_table(table, families)
    while not store_identity(client, namespace):
        made = RowOf(IDENTITY, [Value(F, b"i", 1, os.urandom(16))])
        # Whoever comes first; the answer may be lost.
        with suppress(AnswerLost):
            client.put_if(f"{namespace}:{STORE_TABLE}".encode(), made, F, b"i", None)


def _check_cell(key: bytes, commit_ts: int) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise InternalError(f"a key has at most {KEY_BYTES_MAX} bytes, this one has {len(key)}")
    if not 0 <= commit_ts <= TIMESTAMP_MAX:
        raise InternalError(f"{commit_ts} cannot be a timestamp in HBase, whose highest is {TIMESTAMP_MAX}")


def _sealed(value: bytes) -> bytes:
    return value + _u32.pack(crc32(value))


def _decode_note(stored: bytes) -> _Note:
    superseding, superseded = _u64.unpack(stored[:8])[0], _u64.unpack(stored[-8:])[0]
    return superseding, stored[8:-8], superseded


def _split(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _pausing(items: Iterable[T], between: Callable[[], None]) -> Iterator[T]:
    for number, item in enumerate(items, 1):
        yield item
        if number % CELLS_PER_CALL == 0:
            between()
