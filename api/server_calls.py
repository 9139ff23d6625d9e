"""The operations of a served node that are calls of the API: names, arguments, and where they run.

`INLINE` ones are short and run in the loop; everything else may wait or take long, and runs in a worker thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from .changes import Changes
from .changetables.errors import InterfaceError, RemoteProtocolError
from .changetables.rows import to_api
from .changetables.schema import Table
from .changetables.serialize import table_to_plain
from .coordinator.cluster.engine import ClusterEngine
from .coordinator.verify import Progress
from .ltm.codec import pack
from .reads import Snapshot
from .remote_protocol import from_wire, header_of, rows_body, values_of
from .sql import Session as Shell
from .sql import parse
from .table_changes import TableChanges
from .transaction import Transaction
from .uploads import Upload

if TYPE_CHECKING:
    from .database import Database
    from .shared_reads import SharedReads

#: (positional arguments, keyword arguments) -> what the API gives.
Call: TypeAlias = Callable[..., object]

#: Change tables in one reply, at the most.
CHANGES_PER_REPLY_MAX = 256

INSERT, UPSERT = 0, 1


# --- calls of the database ---


def database_calls(db: Database, shared: SharedReads) -> dict[str, Call]:
    """The operations that need nothing but the database. `progress` goes to those that take it."""
    return {
        "shared.pin": shared.pin,
        "shared.renew": shared.renew,
        "shared.release": shared.release,
        "tables": db.tables,
        "views": db.views,
        "status": db.status,
        "create_table": db.create_table,
        "drop_table": db.drop_table,
        "add_column": db.add_column,
        "drop_column": db.drop_column,
        "create_index": db.create_index,
        "drop_index": db.drop_index,
        "create_view": lambda *args, **kwargs: db.create_view(*args, **kwargs).name,
        "drop_view": db.drop_view,
        "explain_view": db.explain_view,
        "sql": db.sql,
        "view": lambda name: db.view(name).name,
        "view.get": lambda name, /, *args, **kwargs: db.view(name).get(*args, **kwargs),
        "view.scan": lambda name, /, *args, **kwargs: db.view(name).scan(*args, **kwargs),
        "view.rows": lambda name, /, **kwargs: db.view(name).rows(**kwargs),
        "view.status": lambda name: db.view(name).status(),
        "view.explain": lambda name: db.view(name).explain(),
        "view.refresh": lambda name, evaluator=None: db.view(name).refresh(evaluator),
        "view.set_refresh": lambda name, refresh: db.view(name).set_refresh(refresh),
        "view.age": lambda name: db.view(name)._age(),
        "managers.add": lambda: db.view_managers.add(),
        "managers.remove": lambda id: db.view_managers.remove(id),
        "managers.assign": lambda id, ltm=None: db.view_managers.assign(id, ltm),
        "managers.withdraw": lambda id: db.view_managers.withdraw(id),
        "managers.status": lambda: db.view_managers.status(),
    }


#: Those of them that read a name or a number.
INLINE = frozenset({"tables", "views", "view", "view.age", "managers.status"})
#: They are told apart from the rest because they report how far they are.
REPORTING = ("view.verify", "view.repair")


def checked_views(db: Database, operation: str, name: str, progress: Progress | None) -> object:
    """`view.verify` and `view.repair`."""
    view = db.view(name)
    return view.repair(progress) if operation == "view.repair" else view.verify(progress)


def arguments_from(plain: tuple[object, ...]) -> tuple[tuple[object, ...], dict[str, object]]:
    """(positional, keyword) arguments of a call."""
    if len(plain) != 2:
        raise RemoteProtocolError("a call has positional and keyword arguments")
    args, kwargs = from_wire(plain[0]), from_wire(plain[1])
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or any(type(name) is not str for name in kwargs):
        raise RemoteProtocolError("the arguments of a call are no arguments")
    return args, kwargs


def called(call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """A call with arguments of a client: what Python refuses of them is the client's mistake."""
    try:
        return call(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise InterfaceError(f"wrong arguments: {error}", hint="call it as its help() says") from None
        raise


# --- tables, as clients know them ---


def schema_of(table: Table) -> tuple[int, object]:
    """The layout of its rows, by which both sides know that they mean the same columns, and the table."""
    return layout_of(table), table_to_plain(table)


def layout_of(table: Table) -> int:
    columns = table_to_plain(Table(table.id, table.name, table.columns, table.key))
    return zlib.crc32(pack(columns))


def mappings_of(table: Table, rows: Sequence[object], positions: Sequence[object] | None = None) -> list[object]:
    """Rows by position as the API takes them: of columns that can be seen, or of those that are named."""
    visible = table.visible()
    made: list[object] = []
    for number, row in enumerate(rows):
        if type(row) is not tuple or len(row) != len(table.columns):
            raise RemoteProtocolError(f"a row of table {table.name} has {len(table.columns)} values")
        named = visible if positions is None or positions[number] is None else _positions(table, positions[number])
        columns = [table.columns[place] for place in named]
        try:
            made.append({each.name: to_api(each.type, row[place]) for each, place in zip(columns, named, strict=True)})
        except (ValueError, TypeError, AttributeError) as error:
            raise RemoteProtocolError(f"a row of table {table.name} that cannot be read: {error}") from None
    return made


def _positions(table: Table, plain: object) -> tuple[int, ...]:
    visible = table.visible()
    if type(plain) is not tuple or any(type(place) is not int or place not in visible for place in plain):
        raise RemoteProtocolError(f"no columns of table {table.name}")
    return plain


# --- sessions ---


def begun(db: Database, plain: object) -> object:
    """What a session holds: a transaction, a snapshot, a shell, a feed, an upload."""
    made = from_wire(plain)
    if not isinstance(made, tuple) or not made:
        raise RemoteProtocolError("a session begins with what it is")
    kind, *args = made
    if kind == "transaction" and not args:
        return db.transaction()._unbound()
    if kind == "shell" and not args:
        return Shell(db)
    if kind == "upload" and len(args) == 1:
        return Upload(db, args[0])
    if kind == "snapshot" and len(args) == 4:
        at_least, latest, max_lag, views = args
        return db.snapshot(at_least=at_least, latest=latest, max_lag=max_lag, views=views)
    if kind == "changes" and len(args) == 2:
        name, since = args
        if isinstance(name, str) and name in db.tables():
            return TableChanges(db._node, name, since, False, None)
        return db.view(name).changes(since)
    raise RemoteProtocolError(f"there is no session {kind!r}")


def ended(held: object) -> None:
    """Let go of what a session held."""
    if isinstance(held, Transaction) and held._ended is None:
        held._end("rolled back")  # also where the database is closed already
    elif isinstance(held, Snapshot | Shell | Changes | Upload):
        held.close()


def session_call(held: object, what: str) -> Call:
    """The operation of a session by its name."""
    operations = next(operations for kind, operations in _OPERATIONS.items() if isinstance(held, kind))
    found = operations.get(what)
    if found is None:
        raise RemoteProtocolError(f"a {type(held).__name__} has no operation {what!r}")
    return partial(found, held)


_OF_READS: dict[str, Call] = {
    "open": lambda reads: None,
    "begin": lambda reads: reads._begin(),
    "get": lambda reads, /, *args, **kwargs: reads.get(*args, **kwargs),
    "get_many": lambda reads, /, *args, **kwargs: Rows(reads.get_many(*args, **kwargs)),
    "find": lambda reads, /, *args, **kwargs: reads.find(*args, **kwargs),
    "scan": lambda reads, /, *args, **kwargs: reads.scan(*args, **kwargs),
    "join": lambda reads, /, *args, **kwargs: reads.join(*args, **kwargs),
    "sql": lambda reads, /, *args, **kwargs: reads.sql(*args, **kwargs),
    "view": lambda reads, name: reads.view(name).name,
    "view.get": lambda reads, name, /, *args, **kwargs: reads.view(name).get(*args, **kwargs),
    "view.scan": lambda reads, name, /, *args, **kwargs: reads.view(name).scan(*args, **kwargs),
    "view.rows": lambda reads, name, /, **kwargs: reads.view(name).rows(**kwargs),
}
#: Short ones, that run in the loop.
SHORT = frozenset({"open", "begin", "get", "write", "update", "delete", "view", "state", "place"})


class Rows(list[object]):
    """Rows that may be missing: what `get_many` gives."""

    @property
    def body(self) -> object:
        return rows_body(self)  # type: ignore[arg-type]  # rows or None


def _execute(shell: Shell, text: str, place: tuple[int, int]) -> object:
    """One statement of a text: the one at this place."""
    for statement in parse(text).statements:
        if statement.place == place:
            return shell.execute(statement)
    raise RemoteProtocolError(f"there is no statement at {place}")


class ChangesBody(tuple[object, ...]):
    """(header, ((ts, ((values, times), ...)), ...), ts up to which all was given)"""


def _next_changes(changes: Changes) -> ChangesBody:
    """The changes that are there by now."""
    found: list[tuple[int, object]] = []
    header: object = ()
    for change in changes._some(CHANGES_PER_REPLY_MAX):
        rows: list[object] = []
        if change.rows:
            columns = change.rows[0][0]._columns
            header = header_of(columns)
            values = values_of(columns, [row for row, _ in change.rows])
            rows = list(zip(values, [times for _, times in change.rows], strict=True))
        found.append((change.watermark, rows))
    return ChangesBody((header, found, changes.token.commit_ts))


def _first_key(tx: Transaction) -> bytes | None:
    """Of what it has written in a cluster: by it others find out what became of it. What is written once stays so."""
    if not isinstance(tx._node.engine, ClusterEngine):
        return None
    return next((key for intents in tx._request.writes.values() for key in intents), None)


_OPERATIONS: dict[type, dict[str, Call]] = {
    Transaction: {
        **_OF_READS,
        "write": _first_key,
        "update": lambda tx, *args: tx.update(*args),
        "delete": lambda tx, /, *args, **kwargs: tx.delete(*args, **kwargs),
    },
    Snapshot: _OF_READS,
    Shell: {"execute": _execute, "state": lambda shell: (shell.in_transaction, shell.failed)},
    Changes: {"next": _next_changes, "place": lambda changes: changes.token.commit_ts},
    Upload: {
        "open": lambda upload: upload.open(),
        "add": lambda upload, kind, data: upload.add(kind, data),
        "load": lambda upload, begun: upload.load(begun),
    },
}


def as_writes(plain: object) -> tuple[tuple[int, str, int, tuple[object, ...], tuple[object, ...] | None], ...]:
    """(INSERT or UPSERT, table, layout, rows, for upserts the positions that were given) of a client's writes."""
    if type(plain) is not tuple:
        raise RemoteProtocolError("writes are a list")
    for write in plain:
        if type(write) is not tuple or len(write) != 5:
            raise RemoteProtocolError("a write that cannot be read")
        kind, table, layout, rows, positions = write
        if kind not in (INSERT, UPSERT) or type(table) is not str or type(layout) is not int or type(rows) is not tuple:
            raise RemoteProtocolError("a write that cannot be read")
        if (kind == UPSERT) is not (type(positions) is tuple and len(positions) == len(rows)):
            raise RemoteProtocolError("a write that cannot be read")
    return cast("tuple[tuple[int, str, int, tuple[object, ...], tuple[object, ...] | None], ...]", plain)
