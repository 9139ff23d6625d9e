"""Cells in HBase, as the store of an LTM and readers in other processes find them.

The layout is at the top of `hbase.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from zlib import crc32

from ...changetables.errors import StaleRead
from ..hbase_client import TIMESTAMP_MAX, Hbase, RowOf, ScanOf, Value
from ..ports import Cell, Damaged

CELLS_TABLE = "viewtide.cells"
STORE_TABLE = "viewtide.store"
#: Rows of one answer.
SCAN_ROWS = 5_000
#: Of a page of values: the first one, before it is known how long they are, and what the next ones may have in bytes.
FIRST_ROWS = 500
PAGE_BYTES_MAX = 2 << 20

#: Families and qualifiers: of rows, and of what is kept beside them.
V, F = b"v", b"f"
R = b"r"
ROUTES = b"\0routes"
IDENTITY = b"\0identity"
TOMBSTONE, VALUE, LONG = range(3)
HEAD = Struct(">BI")
_EXACT_VALUES = b"QualifierFilter(=, 'binary:%b')" % R

_TABLE_ID_BYTES = 4
_HEAD_BYTES = HEAD.size
_ONE_VALUE = bytes([VALUE])
_u64 = Struct(">Q")
_u32 = Struct(">I")


class HbaseCells:
    """`prefix` keeps several databases apart in the same tables."""

    def __init__(self, client: Hbase, namespace: str, prefix: bytes = b"") -> None:
        self._client, self._namespace, self._prefix = client, namespace, prefix
        self._cells_table = f"{namespace}:{CELLS_TABLE}".encode()
        self._store_table = f"{namespace}:{STORE_TABLE}".encode()
        self._routes: dict[int, bytes] = {}
        self._elsewhere: set[int] = set()

    # Where things are

    def _route(self, table_id: int) -> bytes:
        table = self._routes.get(table_id)
        if table is None and table_id not in self._elsewhere:
            # Another owner may have described it.
            self._load_routes()
            table = self._routes.get(table_id)
            if table is None:
                self._elsewhere.add(table_id)
        return table or self._cells_table

    def _load_routes(self) -> None:
        row = self._client.get(self._store_table, self._prefix + ROUTES)
        for each in row.values if row else ():
            self._routes[int(each.qualifier)] = each.value

    def _by_table(self, keys: Iterable[bytes]) -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for key in keys:
            found.setdefault(self._table_of(key), []).append(key)
        return found

    def _table_of(self, key: bytes) -> bytes:
        return self._route(table_id_of(key))

    def _pieces(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes, bytes]]:
        """The range, cut where another HBase table begins: (table, start, stop), in order."""
        if start >= stop:
            return []
        first = table_id_of(start)
        if start[:_TABLE_ID_BYTES] == stop[:_TABLE_ID_BYTES] or stop == bound(first + 1):
            return [(self._route(first), start, stop)]
        self._load_routes()
        pieces: list[tuple[bytes, bytes, bytes]] = []
        for table_id in sorted(self._routes):
            begin, end = bound(table_id), bound(table_id + 1)
            if end <= start or begin >= stop:
                continue
            pieces.append((self._cells_table, start, begin))
            pieces.append((self._routes[table_id], max(start, begin), min(stop, end)))
            start = end
        pieces.append((self._cells_table, start, stop))
        return [each for each in pieces if each[1] < each[2]]

    def _range(self, start: bytes, stop: bytes, at: int) -> ScanOf:
        return ScanOf(self._prefix + start, self._prefix + stop, last_ts=min(at, TIMESTAMP_MAX), columns=[(V, R)])

    def _values_in(self, start: bytes, stop: bytes, at: int) -> ScanOf:
        """The same for many rows: HBase seeks each time for a column that it is asked for, which takes it three times
        as long as to step over the others."""
        return self._range(start, stop, at)._replace(columns=[(V, None)], filter=_EXACT_VALUES)

    def _highest(self, table: bytes, start: bytes, stop: bytes) -> bytes | None:
        """Backwards, HBase takes the upper bound in and leaves the lower one out: that is looked at by itself."""
        upper, lower = self._prefix + stop, self._prefix + start
        rows = self._client.page(table, ScanOf(upper, lower, columns=[(V, R)], backwards=True), 2)
        rows += self._client.page(table, ScanOf(lower, lower + b"\0", columns=[(V, R)]), 1)
        return max((key for row in rows if start <= (key := row.row[len(self._prefix) :]) < stop), default=None)

    # Cells

    def _stored(self, table: bytes, keys: Sequence[bytes], at: int) -> dict[bytes, Cell | None]:
        rows = self._client.get_many(
            table, [self._prefix + key for key in keys], last_ts=min(at, TIMESTAMP_MAX), columns=[(V, R)]
        )
        return {key: self._decode(table, row) for key, row in zip(keys, rows, strict=True) if row is not None}

    def _scan(self, start: bytes, stop: bytes, at: int, page_rows: int) -> Iterator[Cell]:
        for table, first, end in self._pieces(start, stop):
            for row in self._client.scan(table, self._values_in(first, end, at), page_rows):
                yield self._decode(table, row)

    def _decode(self, table: bytes, row: RowOf) -> Cell:
        stored = row.values[0]
        kind, crc = HEAD.unpack_from(stored.value) if len(stored.value) >= HEAD.size else (-1, 0)
        value = stored.value[HEAD.size :]
        if kind == LONG:
            value = self._long_value(table, row.row, stored.timestamp)
        if kind not in (TOMBSTONE, VALUE, LONG) or crc != cell_crc(row.row, stored.timestamp, kind, value):
            raise Damaged(
                f"the store is damaged: version {stored.timestamp} of row {row.row.hex()} in {table.decode()} "
                "has a wrong checksum",
                hint="restore it from a backup of HBase, or load the row again",
            )
        return Cell(row.row[len(self._prefix) :], stored.timestamp, None if kind == TOMBSTONE else value)

    def _long_value(self, table: bytes, row: bytes, commit_ts: int) -> bytes:
        (found,) = self._client.get_many(table, [row], last_ts=commit_ts, columns=[(V, None)])
        parts = (
            [] if found is None else [v for v in found.values if v.qualifier[:1] == b"p" and v.timestamp == commit_ts]
        )
        return b"".join(each.value for each in sorted(parts, key=lambda each: each.qualifier))


class HbaseSnapshot(HbaseCells):
    """The store of a cluster for a reader in another process, at timestamps up to which it is complete for good: so all
    reads see one state, however long they take. `identity` is that of the store that the timestamp is of."""

    def __init__(self, client: Hbase, namespace: str, identity: bytes) -> None:
        super().__init__(client, namespace)
        self._page_rows = FIRST_ROWS
        if store_identity(client, namespace) != identity:
            raise StaleRead(f"{namespace} in HBase is another store than it was", hint="read it again")

    def get(self, key: bytes, at: int) -> Cell | None:
        return self._stored(self._table_of(key), [key], at).get(key)

    def scan(self, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        return list(islice(self._scan(start, stop, at, min(limit, SCAN_ROWS)), limit))

    def max_key(self, start: bytes, stop: bytes) -> bytes | None:
        highest = (self._highest(*piece) for piece in reversed(self._pieces(start, stop)))
        return next((key for key in highest if key is not None), None)

    def values(self, start: bytes, stop: bytes, at: int, limit: int) -> tuple[list[bytes], bytes | None]:
        """Of a range in one table: as `BulkStore.values` has it. Pages are as large as an answer should be."""
        table, rows = self._table_of(start), self._page_rows
        page = self._client.page_of_column(table, self._values_in(start, stop, at), rows)
        found: list[bytes] = []
        size = 0
        for row, commit_ts, stored in page:
            size += len(stored)
            value = stored[_HEAD_BYTES:]
            # As most are. What is not is looked at closely.
            if stored[:1] == _ONE_VALUE and stored[1:_HEAD_BYTES] == _u32.pack(cell_crc(row, commit_ts, VALUE, value)):
                found.append(value)
            elif (cell := self._decode(table, RowOf(row, [Value(V, R, commit_ts, stored)]))).value is not None:
                found.append(cell.value)
        if len(page) < rows:
            return found, None
        self._page_rows = max(1, min(SCAN_ROWS, PAGE_BYTES_MAX * len(page) // max(size, 1)))
        return found, page[-1][0][len(self._prefix) :] + b"\0"

    def close(self) -> None:
        self._client.close()


def store_identity(client: Hbase, namespace: str) -> bytes:
    """Whoever makes the tables anew makes another one."""
    row = client.get(f"{namespace}:{STORE_TABLE}".encode(), IDENTITY)
    return row.values[0].value if row is not None else b""


def table_id_of(key: bytes) -> int:
    return int.from_bytes(key[:_TABLE_ID_BYTES].ljust(_TABLE_ID_BYTES, b"\0"), "big")


def bound(table_id: int) -> bytes:
    """Where the keys of a table begin."""
    return _u32.pack(table_id) if table_id < 1 << 32 else b"\xff" * (_TABLE_ID_BYTES + 1)


def cell_crc(row: bytes, commit_ts: int, kind: int, value: bytes) -> int:
    return crc32(value, crc32(row + _u64.pack(commit_ts) + bytes([kind])))
