"""HBase as the store and the commit log see it: a few calls over Thrift 2, several endpoints, no lost answers mistaken.

Thrift 2, not happybase: a checkpoint writes many rows with a timestamp each, which Thrift 1 takes one call per
timestamp for (363 puts/s instead of some 30,000), and a log row of several cells is written only if absent in one call.

- **A connection whose call failed is thrown away.** After a time-out the same connection would answer the *next* call
  with the old reply, and stay one behind for good.
- Reads, and writes with explicit timestamps, are the same however often they are made: they are made again, on the
  next endpoint, for `patience_ms`. Then `Unavailable`.
- `put_if` is made once. When its answer is lost, or is no, `AnswerLost` or False says nothing about its fate: HBase's
  own client may have tried twice. The caller reads the row and looks whose it is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, TypeVar

import thriftpy2
from thriftpy2.protocol import TBinaryProtocolFactory, TCyBinaryProtocolFactory
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TBufferedTransportFactory, TCyBufferedTransportFactory, TSocket, TTransportException

from ..changetables.errors import InterfaceError, OperationalError, Unavailable

CONNECT_MS_MAX = 3_000
#: One call. Longer than HBase's own retries while a region moves, shorter than anybody waits for.
CALL_MS_MAX = 20_000
#: How long a call is made again: a region server that died is replaced after its ZooKeeper session, some seconds.
PATIENCE_MS = 60_000
#: Between two rounds through all endpoints.
PAUSE_MS = 100
#: Connections that are kept open while nobody uses them: more than the threads of a process that talk to HBase.
IDLE_CONNECTIONS_MAX = 16
#: What one call carries at most, about: half the heap that a small Thrift server spares for it.
CALL_BYTES_MAX = 4 << 20
#: HBase's timestamps are signed, and the highest one means "now".
TIMESTAMP_MAX = 2**63 - 2
#: As many versions as there are.
ALL_VERSIONS = 2**31 - 1

#: Java's exceptions that the same call would meet again, where `can_retry` does not tell: inside those of a batch.
_FINAL = ("TableNotFoundException", "NoSuchColumnFamilyException", "DoNotRetryIOException", "AccessDeniedException")

_REFUSED_HINT = "does the table exist, with its families, and may this user write to it?"

T = TypeVar("T")
_Call = Callable[[Any], T]

_idl: Any = thriftpy2.load(str(Path(__file__).with_name("hbase.thrift")), module_name="viewtide_hbase_thrift")


class AnswerLost(Exception):
    """A conditional write may have been made or not."""


class HbaseRefused(OperationalError):
    """For a reason that does not pass by itself: no such table, no such family, no right."""


class Value(NamedTuple):
    """One cell of a row."""

    family: bytes
    qualifier: bytes
    timestamp: int
    value: bytes


class RowOf(NamedTuple):
    """A row with its cells: those to be written, or those found."""

    row: bytes
    values: Sequence[Value]


class Removal(NamedTuple):
    """The version `timestamp` of some columns of a row (family, qualifier), or of all in a family (qualifier None)."""

    row: bytes
    timestamp: int
    columns: Sequence[tuple[bytes, bytes | None]]
    #: All versions up to it as well.
    older: bool = False


class ScanOf(NamedTuple):
    """Rows in start <= row < stop (empty: no bound), those cells of them with first_ts <= timestamp <= last_ts.

    Backwards (one page only), `start` is the highest row and included, `stop` the lowest and not.
    """

    start: bytes
    stop: bytes
    last_ts: int = TIMESTAMP_MAX
    first_ts: int = 0
    columns: Sequence[tuple[bytes, bytes | None]] = ()
    versions: int = 1
    filter: bytes = b""
    backwards: bool = False


class Hbase:
    """A pool of connections to Thrift servers, for any number of threads. `endpoints` are host:port."""

    def __init__(self, endpoints: Sequence[str], *, call_ms: int = CALL_MS_MAX, patience_ms: int = PATIENCE_MS) -> None:
        if not endpoints:
            raise InterfaceError("HBase needs the address of a Thrift 2 server", hint="give at least one host:port")
        self._endpoints = [_address(each) for each in endpoints]
        self._call_ms, self._patience_ms = call_ms, patience_ms
        self._preferred = 0
        self._lock = threading.Lock()
        self._idle: deque[tuple[int, TClient]] = deque()
        self._closed = False

    # Rows

    def get(self, table: bytes, row: bytes, **options: Any) -> RowOf | None:
        return self.get_many(table, [row], **options)[0]

    def get_many(
        self,
        table: bytes,
        rows: Sequence[bytes],
        *,
        last_ts: int = TIMESTAMP_MAX,
        columns: Sequence[tuple[bytes, bytes | None]] = (),
        versions: int = 1,
    ) -> list[RowOf | None]:
        """The rows, each with the newest cells at or below last_ts, in the order of `rows`; None if it has none."""
        if not rows:
            return []
        when, which = _time_range(0, last_ts), _columns(columns)
        gets = [_idl.Get(row=row, columns=which, time_range=when, versions=versions) for row in rows]
        found = self._again(lambda client: client.getMultiple(table, gets))
        return [_row(each) if each.values else None for each in found]

    def scan(self, table: bytes, scan: ScanOf, page_rows: int) -> Iterator[RowOf]:
        """Page by page: each page is one call that leaves nothing open at the server."""
        start = scan.start
        while page := self.page(table, scan._replace(start=start), page_rows):
            yield from page
            if len(page) < page_rows:
                return
            start = page[-1].row + b"\0"

    def page(self, table: bytes, scan: ScanOf, rows: int) -> list[RowOf]:
        return [_row(each) for each in self._page(table, scan, rows)]

    def page_of_column(self, table: bytes, scan: ScanOf, rows: int) -> list[tuple[bytes, int, bytes]]:
        """As `page`, of one version of one column: (row, timestamp, value), in half the time."""
        return [(each.row, (value := each.values[0]).timestamp, value.value) for each in self._page(table, scan, rows)]

    def _page(self, table: bytes, scan: ScanOf, rows: int) -> list[Any]:
        wanted = _idl.Scan(
            start=scan.start,
            stop=scan.stop,
            columns=_columns(scan.columns),
            time_range=_time_range(scan.first_ts, scan.last_ts),
            versions=scan.versions,
            filter=scan.filter or None,
            reversed=scan.backwards,
            caching=rows,
            limit=rows,
        )
        found: list[Any] = self._again(lambda client: client.getScannerResults(table, wanted, rows))
        return found

    def put(self, table: bytes, rows: Iterable[RowOf]) -> None:
        """Not atomic: when it raises, some rows may be written. With the same timestamps it can be made again."""
        for call in _put_calls(table, rows):
            self._again(lambda client, call=call: _called(client, _PUT_MULTIPLE, call), table)  # type: ignore[misc]

    def remove(self, table: bytes, removals: Sequence[Removal]) -> None:
        """Exactly these versions. The same versions, written again later, may stay invisible."""
        for begin in range(0, len(removals), 1_000):
            deletes = [_delete(each) for each in removals[begin : begin + 1_000]]
            self._again(lambda client, deletes=deletes: client.deleteMultiple(table, deletes), table)  # type: ignore[misc]

    def put_if(self, table: bytes, row: RowOf, family: bytes, qualifier: bytes, expected: bytes | None) -> bool:
        """Write the row if the cell has the expected value, None: if it is absent. False: it has another one.

        Made once. See the top of the file for what False and AnswerLost mean.
        """
        put = _put(row)
        return self._once(lambda client: bool(client.checkAndPut(table, row.row, family, qualifier, expected, put)))

    # Tables

    def create_table(self, table: bytes, families: Sequence[tuple[bytes, int]], splits: Sequence[bytes] = ()) -> None:
        """Families with their number of versions. A table that exists already is left as it is."""
        described = [_idl.Family(name=name, versions_max=versions) for name, versions in families]
        wanted = _idl.TableDescriptor(table=_table_name(table), families=described)
        try:
            self._again(lambda client: client.createTable(wanted, list(splits) or None))
        except HbaseRefused:
            if not self.table_exists(table):
                raise

    def table_exists(self, table: bytes) -> bool:
        return bool(self._again(lambda client: client.tableExists(_table_name(table))))

    def drop_table(self, table: bytes) -> None:
        name = _table_name(table)
        for step in ("disableTable", "deleteTable"):
            try:
                self._again(lambda client, step=step: getattr(client, step)(name))  # type: ignore[misc]
            except HbaseRefused:
                # Disabled or gone already, by a call whose answer was lost.
                if step == "deleteTable" and self.table_exists(table):
                    raise

    def tables(self, namespace: str) -> list[bytes]:
        """Their full names."""
        found = self._again(lambda client: client.getTableNamesByNamespace(namespace))
        return sorted(namespace.encode() + b":" + each.name.rpartition(b":")[2] for each in found)

    def namespaces(self) -> list[str]:
        return list(self._again(lambda client: client.listNamespaces()))

    def create_namespace(self, namespace: str) -> None:
        try:
            self._again(lambda client: client.createNamespace(_idl.NamespaceDescriptor(name=namespace)))
        except HbaseRefused:
            if namespace not in self.namespaces():
                raise

    def drop_namespace(self, namespace: str) -> None:
        """With all its tables."""
        if namespace not in self.namespaces():
            return
        for table in self.tables(namespace):
            self.drop_table(table)
        try:
            self._again(lambda client: client.deleteNamespace(namespace))
        except HbaseRefused:
            if namespace in self.namespaces():
                raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = list(self._idle)
            self._idle.clear()
        for _, client in idle:
            client.close()

    # Calls

    def _again(self, call: _Call[T], table: bytes = b"") -> T:
        """Make a call that may be made any number of times until it is answered.

        Of a batch, HBase does not tell whether its `table` is missing or a region is on its way: so it is asked.
        """
        deadline = time.monotonic() + self._patience_ms / 1000
        tries = 0
        while True:
            try:
                return self._call(call)
            except (OSError, TException) as error:
                tries += 1
                if table and isinstance(error, _idl.Failure) and not self.table_exists(table):
                    raise HbaseRefused(
                        f"HBase refused: there is no table {table.decode(errors='replace')}", hint=_REFUSED_HINT
                    ) from None
                if time.monotonic() >= deadline:
                    raise self._unavailable(error) from error
            if tries % len(self._endpoints) == 0:
                time.sleep(PAUSE_MS / 1000)

    def _once(self, call: _Call[T]) -> T:
        try:
            return self._call(call)
        except (OSError, TException) as error:
            raise AnswerLost(_text(error)) from error

    def _call(self, call: _Call[T]) -> T:
        endpoint, client = self._take()
        try:
            result = call(client)
        except _idl.Failure as error:
            # A whole answer: the connection is good.
            self._give_back(endpoint, client)
            raise _refused(error) or error from None
        except TApplicationException as error:
            # The server's own code failed on it: a column without a name, a cell that is too large.
            client.close()
            raise HbaseRefused(
                f"HBase failed on the call: {_text(error)}", hint="its Thrift server's log says more"
            ) from None
        except BaseException as error:
            client.close()
            if isinstance(error, (OSError, TTransportException)):
                self._avoid(endpoint)
            raise
        self._give_back(endpoint, client)
        return result

    def _take(self) -> tuple[int, TClient]:
        with self._lock:
            if self._closed:
                raise InterfaceError("the connection to HBase is closed", hint="open it again")
            if self._idle:
                return self._idle.pop()
            endpoint = self._preferred
        try:
            return endpoint, _connect(self._endpoints[endpoint], self._call_ms)
        except (OSError, TException):
            self._avoid(endpoint)
            raise

    def _give_back(self, endpoint: int, client: TClient) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append((endpoint, client))
                return
        client.close()

    def _avoid(self, endpoint: int) -> None:
        """The others first from now on; its idle connections are as dead as the one that failed."""
        with self._lock:
            if self._preferred == endpoint:
                self._preferred = (endpoint + 1) % len(self._endpoints)
            dead = [each for each in self._idle if each[0] == endpoint]
            self._idle = deque(each for each in self._idle if each[0] != endpoint)
        for _, client in dead:
            client.close()

    def _unavailable(self, error: Exception) -> Unavailable:
        where = ", ".join(f"{host}:{port}" for host, port in self._endpoints)
        return Unavailable(
            f"HBase did not answer for {self._patience_ms / 1000:g} s at {where}: {_text(error)}",
            hint="are its Thrift 2 servers, region servers and ZooKeeper up? The call can be made again",
        )


def _connect(address: tuple[str, int], call_ms: int) -> TClient:
    socket = TSocket(*address, socket_timeout=call_ms, connect_timeout=CONNECT_MS_MAX)
    transport = _transports.get_transport(socket)
    try:
        transport.open()
    except BaseException:
        with suppress(OSError):
            transport.close()
        raise
    return TClient(_idl.THBaseService, _protocols.get_protocol(transport))


# The compiled ones are ten times faster, and are missing on PyPy.
_transports = TCyBufferedTransportFactory() if TCyBufferedTransportFactory else TBufferedTransportFactory()
_protocols = TCyBinaryProtocolFactory() if TCyBinaryProtocolFactory else TBinaryProtocolFactory()


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise InterfaceError(f"{endpoint!r} is not the address of a Thrift server", hint="write host:port")
    return host, int(port)


def _refused(error: Any) -> HbaseRefused | None:
    """An error for what does not pass by itself; None for what may."""
    if error.can_retry is not False and not any(each in (error.message or "") for each in _FINAL):
        return None
    return HbaseRefused(f"HBase refused: {_text(error)}", hint=_REFUSED_HINT)


def _text(error: Exception) -> str:
    """For a message: str() of an exception that carries bytes raises in some versions of the library."""
    message = getattr(error, "message", None) or (error.args[0] if error.args else None) or type(error).__name__
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    return text.splitlines()[0][:300] if text else type(error).__name__


def _time_range(first: int, last: int) -> Any:
    return _idl.TimeRange(first=first, stop=min(last, TIMESTAMP_MAX) + 1)


def _columns(columns: Sequence[tuple[bytes, bytes | None]]) -> list[Any] | None:
    return [_idl.Column(family=family, qualifier=qualifier) for family, qualifier in columns] or None


def _row(result: Any) -> RowOf:
    return RowOf(result.row, [Value(each.family, each.qualifier, each.timestamp, each.value) for each in result.values])


def _put(row: RowOf) -> Any:
    values = [
        _idl.ColumnValue(family=each.family, qualifier=each.qualifier, value=each.value, timestamp=each.timestamp)
        for each in row.values
    ]
    return _idl.Put(row=row.row, values=values)


#: What a delete is about, as HBase numbers it.
_ONE_VERSION, _UP_TO, _FAMILY_UP_TO, _FAMILY_VERSION = range(4)


def _delete(removal: Removal) -> Any:
    columns = [
        _idl.Column(family=family, qualifier=qualifier, timestamp=removal.timestamp)
        for family, qualifier in removal.columns
    ]
    if removal.columns[0][1] is None:
        kind = _FAMILY_UP_TO if removal.older else _FAMILY_VERSION
    else:
        kind = _UP_TO if removal.older else _ONE_VERSION
    return _idl.Delete(row=removal.row, columns=columns, kind=kind)


def _table_name(table: bytes) -> Any:
    namespace, _, name = table.rpartition(b":")
    return _idl.TableName(namespace_=namespace or b"default", name=name)


# --- many rows in one call ---
#
# A checkpoint spends half of its time making objects of Thrift for every cell, so the bytes of this one call are made
# here. They are those of Thrift's binary protocol:
#
#     message     version and kind (4) | name | sequence (4) | fields | 0
#     field       type (1) | number (2) | value
#     name, text  length (4) | bytes
#     list        type of its elements (1) | length (4) | elements
#     structure   fields | 0

_PUT_MULTIPLE = "putMultiple"
_CALL = b"\x80\1\0\1"
_NUMBER, _TEXT, _STRUCTURE, _LIST, _END = b"\x0a", b"\x0b", b"\x0c", b"\x0f", b"\0"
_i32 = Struct(">i").pack
_i64 = Struct(">q").pack
#: Of columns whose beginnings are remembered: more than tables have.
_HEADS_MAX = 10_000


def _text_field(number: int, text: bytes) -> bytes:
    return _TEXT + number.to_bytes(2, "big") + _i32(len(text)) + text


def _list_field(number: int, count: int) -> bytes:
    """Of structures, which follow."""
    return _LIST + number.to_bytes(2, "big") + _STRUCTURE + _i32(count)


class _Heads(dict[tuple[bytes, bytes], bytes]):
    """By column: a cell, up to its value."""

    def __missing__(self, column: tuple[bytes, bytes]) -> bytes:
        if len(self) >= _HEADS_MAX:
            self.clear()
        family, qualifier = column
        head = self[column] = _text_field(1, family) + _text_field(2, qualifier) + _TEXT + b"\0\3"
        return head


_heads = _Heads()
_ROW_HEAD = _TEXT + b"\0\1"
_CELLS_HEAD = _list_field(2, 0)[:-4]


def _encoded(row: RowOf) -> bytes:
    """The structure Put."""
    parts = [_ROW_HEAD, _i32(len(row.row)), row.row, _CELLS_HEAD, _i32(len(row.values))]
    last_ts, tail = -1, b""
    for family, qualifier, timestamp, value in row.values:
        if timestamp != last_ts:
            last_ts, tail = timestamp, _NUMBER + b"\0\4" + _i64(timestamp) + _END
        parts += (_heads[family, qualifier], _i32(len(value)), value, tail)
    parts.append(_END)
    return b"".join(parts)


def _put_calls(table: bytes, rows: Iterable[RowOf]) -> Iterator[bytes]:
    """Messages with as many rows as one call carries."""
    some: list[bytes] = []
    size = 0
    for encoded in map(_encoded, rows):
        some.append(encoded)
        size += len(encoded)
        if size >= CALL_BYTES_MAX:
            yield _put_call(table, some)
            some, size = [], 0
    if some:
        yield _put_call(table, some)


def _put_call(table: bytes, puts: Sequence[bytes]) -> bytes:
    name = _PUT_MULTIPLE.encode()
    begin = _CALL + _i32(len(name)) + name + _i32(0) + _text_field(1, table) + _list_field(2, len(puts))
    return b"".join((begin, *puts, _END))


def _called(client: TClient, name: str, call: bytes) -> None:
    """Make a call whose message is there already."""
    client._oprot.trans.write(call)
    client._oprot.trans.flush()
    client._recv(name)
