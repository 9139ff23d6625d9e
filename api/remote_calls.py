"""What a client of a served node does, without I/O: each call is a generator that asks (`Ask`), is sent the body of the
answer, and returns what the API returns. `remote` runs them in threads, `remote_aio` in tasks.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from .changes import ViewChange
from .changetables.errors import (
    CommitUnknown,
    Error,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    TransactionConflict,
    Unavailable,
)
from .changetables.rows import RowCodec, row_codec
from .changetables.schema import Table
from .changetables.serialize import table_from_plain
from .changetables.types import Row as Values
from .changetables.types import type_of
from .coordinator.timestamps import MS_SHIFT
from .database import ColumnSpec
from .reads import NO_KEY
from .remote_protocol import (
    WRITES_ROWS_MAX,
    NotSent,
    Page,
    TooLong,
    answer_from,
    columns_from,
    pages_of,
    rows_from,
    to_wire,
)
from .rows import Row, Token
from .server_calls import INSERT, UPSERT
from .transaction import _each

T = TypeVar("T")

#: May be asked again without harm; or: is a commit, known by its tx_id; or: must not be done twice.
READ, COMMIT, ONCE = 0, 1, 2
#: Needs no answer.
TELL = 3


#: Layouts of tables that a client remembers.
LAYOUTS_MAX = 1_000


class Ask(NamedTuple):
    """One request. `resent`: the arguments if it has to be sent again, where they differ."""

    operation: str
    arguments: tuple[object, ...]
    kind: int = READ
    resent: tuple[object, ...] | None = None
    progress: Callable[[int, int], object] | None = None


#: Half the time of calling a named tuple's class.
new = tuple.__new__
#: Asks, is sent bodies, returns a T.
Asking: TypeAlias = Generator[Ask, object, T]


NO_NAMES: Mapping[str, object] = {}


def call(
    operation: str, args: tuple[object, ...] = (), kwargs: Mapping[str, object] = NO_NAMES, kind: int = READ
) -> Asking[object]:
    """A call of the API that the node has under this name."""
    body = yield Ask(operation, (to_wire(args), to_wire(kwargs)), kind)
    return (yield from _whole(answer_from(body)))


def check_evaluator(evaluator: str | None) -> None:
    """The one thing about a comparison that a client cannot choose."""
    if evaluator not in (None, "rows"):
        raise NotSupportedError(f"a served view is not verified by {evaluator!r}", hint="do it where the database is")


def reporting(operation: str, name: str, progress: Callable[[int, int], object] | None) -> Asking[object]:
    """A call that tells how far it is."""
    body = yield Ask(operation, (to_wire((name,)), to_wire({})), ONCE, progress=progress)
    return answer_from(body)


def _whole(answer: object) -> Asking[object]:
    """All pages of a result."""
    if not isinstance(answer, Page):
        return answer
    result, cursor = answer
    at = 0
    while cursor is not None:
        rows, more = cast("tuple[object, bool]", (yield Ask("page", (cursor, at))))
        result._rows.extend(rows_from(result._columns, rows))
        at += 1
        if not more:
            break
    return result


def levels(at_least: object, latest: object, max_lag: object) -> dict[str, object]:
    """The keyword arguments of a read that say something."""
    given = {"at_least": at_least, "latest": latest, "max_lag": max_lag}
    return {name: value for name, value in given.items() if value is not None and value is not False}


def key_of(key: object) -> tuple[object, ...]:
    return () if key is NO_KEY else (key,)


def listed(values: object) -> object:
    """Any iterable as a list; what is none goes to the node, which says so."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping):
        return list(values)
    return values


def sent_columns(columns: object) -> object:
    """Columns of a new table with types that can be sent."""
    if not isinstance(columns, Mapping):
        return columns
    return {name: sent_type(spec) for name, spec in columns.items()}


def sent_type(spec: object) -> object:
    if isinstance(spec, ColumnSpec):
        return ColumnSpec(type_of(spec.type), spec.nullable, spec.default)
    return type_of(spec)


# --- what all calls of one client share ---


class Schema(NamedTuple):
    """A table as the node told it; `layout` is the node's word for the order of its columns."""

    table: Table
    codec: RowCodec
    layout: int


class Client:
    """The numbers of one client, and the tables that it knows."""

    def __init__(self) -> None:
        self.number = secrets.randbits(62)
        self._last = 0
        self._lock = threading.Lock()
        self._sessions = itertools.count(1)
        self.schemas: dict[str, Schema] = {}
        #: The tables of layouts that rows may still have.
        self.layouts: dict[int, Table] = {}
        self.version = -1
        #: Whether another process may be asked what became of a transaction that had read.
        self.in_cluster = False

    def next_tx_id(self) -> tuple[int, int]:
        """Numbers go up with the time: processes of a cluster know by them how long ago a transaction was made."""
        now = time.time_ns() // 1_000_000 << MS_SHIFT
        with self._lock:
            self._last = number = now if now > self._last else self._last + 1
        return self.number, number

    def next_session(self) -> tuple[int, int]:
        return self.number, next(self._sessions)

    def heard(self, version: object) -> None:
        """Every answer tells the version of the catalog: what was known of older ones is forgotten."""
        if version != self.version and isinstance(version, int):
            self.schemas = {}
            self.version = version

    def schema(self, table: str) -> Asking[Schema]:
        known = self.schemas.get(table) if isinstance(table, str) else None
        if known is not None:
            return known
        body = yield Ask("schema", (table if isinstance(table, str) else to_wire(table),))
        layout, plain = cast("tuple[int, object]", body)
        made = table_from_plain(as_lists(plain))
        # Whatever version it is of: the node knows its layout, or says that the columns have changed.
        found = self.schemas[table] = Schema(made, row_codec(made), layout)
        self.layouts[layout] = made
        if len(self.layouts) > LAYOUTS_MAX:
            del self.layouts[next(iter(self.layouts))]
        return found


def as_lists(plain: object) -> object:
    """Arrays of a message as `serialize` reads them."""
    return [as_lists(item) for item in plain] if isinstance(plain, tuple) else plain


# --- sessions ---


class SessionCalls:
    """A transaction or snapshot on the node, begun by its first operation."""

    def __init__(self, client: Client, begin: tuple[object, ...]) -> None:
        self._client = client
        self._begin = to_wire(begin)
        self._key: tuple[int, int] | None = None
        self._number = 0
        self._lost = False

    def ask(
        self,
        what: str,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] = NO_NAMES,
        writes: tuple[object, ...] = (),
        kind: int = READ,
    ) -> Asking[object]:
        """An operation, after these writes."""
        sent = to_wire(args), to_wire(kwargs)
        try:
            body = yield self._next(writes, what, sent, kind)
        except (NotSent, TooLong):
            self._number -= 1  # the node expects this number next
            raise
        return (yield from _whole(answer_from(body)))

    def raw(self, what: str) -> Asking[object]:
        """An operation whose answer has a form of its own."""
        return (yield self._next((), what, (to_wire(()), to_wire({}))))

    def commit(self, tx_id: tuple[int, int], key: object = None) -> Asking[int]:
        """`key`: the first that it writes, if that was told."""
        ask = self._next((), "commit", (tx_id, False), COMMIT)
        commit_ts = yield ask._replace(resent=(*ask.arguments[:5], (tx_id, True, key)))
        return cast(int, commit_ts)

    def end(self) -> Asking[None]:
        key, self._key = self._key, None
        if key is not None:
            yield Ask("end", (key,), TELL)

    def _next(self, writes: tuple[object, ...], what: str, args: tuple[object, ...], kind: int = READ) -> Ask:
        if self._key is None:
            self._key = self._client.next_session()
            self._number = 0
        self._number += 1
        begin = self._begin if self._number == 1 else None
        return Ask("session", (self._key, self._number, begin, writes, what, args), kind)


#: (INSERT or UPSERT, table, layout, rows, positions that an upsert gives)
_Write: TypeAlias = tuple[int, str, int, list[Values], list[object] | None]


class Writes:
    """What a transaction keeps aside. Most write once: what they do not need is not made."""

    __slots__ = ("_kept", "_known", "_rows_count")

    def __init__(self) -> None:
        self._kept: list[_Write] | None = None
        #: By table: what tells the rows of these writes apart, see `identities`.
        self._known: dict[str, set[object]] | None = None
        self._rows_count = 0

    def _keep_inserted(self, schema: Schema, rows: object) -> None:
        table, codec, layout = schema
        made = codec.rows(rows if type(rows) is list else _each(rows))  # type: ignore[arg-type]  # it checks
        name = table.name
        if not codec.has_row_id:
            # As `identities` does it. Of most tables no keys have to be made for it, which the node does anyway.
            found = set(codec.keys_of(made) if codec.identity is None else map(codec.identity, made))
            known = None if self._known is None else self._known.get(name)
            if len(found) < len(made) or (known is not None and not known.isdisjoint(found)):
                raise _duplicate(schema, made, known or set())
            if known is not None:
                known |= found
            elif self._known is None:
                self._known = {name: found}
            else:
                self._known[name] = found
        if not made:
            return
        self._rows_count += len(made)
        if self._kept is None:
            self._kept = [(INSERT, name, layout, made, None)]
            return
        last_kind, last_name, last_layout, last, _ = self._kept[-1]
        if last_kind == INSERT and last_name == name and last_layout == layout:
            last.extend(made)
        else:
            self._kept.append((INSERT, name, layout, made, None))

    def _keep_upserted(self, schema: Schema, rows: object) -> None:
        codec, name = schema.codec, schema.table.name
        if codec.has_row_id:
            self._keep_inserted(schema, rows)
            return
        made: list[Values] = []
        positions: list[object] = []
        for item in _each(rows):  # type: ignore[arg-type]  # it checks
            made.append(codec.row(item))
            whole = len(item) == len(schema.table.columns)
            positions.append(None if whole else tuple(codec.changes(item)))
        if self._known is None:
            self._known = {}
        self._known.setdefault(name, set()).update(identities(codec, made))
        if made:
            if self._kept is None:
                self._kept = []
            self._kept.append((UPSERT, name, schema.layout, made, positions))
        self._rows_count += len(made)

    def _take(self) -> tuple[_Write, ...]:
        kept, self._kept, self._known, self._rows_count = self._kept, None, None, 0
        return () if kept is None else tuple(kept)

    def _are_long(self) -> bool:
        """Whether it is too much for one message, as far as the number of rows tells."""
        return self._rows_count > WRITES_ROWS_MAX


def _portions(writes: Iterable[_Write]) -> Iterator[_Write]:
    """The same writes in parts that fit into a message each."""
    for kind, name, layout, rows, positions in writes:
        at = 0
        for page in pages_of(rows):
            given = None if positions is None else positions[at : at + len(page)]
            yield kind, name, layout, page, given
            at += len(page)


def _has_grown(before: Table | None, now: Table) -> bool:
    """Whether a table has columns added, with values for rows that do not name them."""
    if before is None or before.id != now.id or now.columns[: len(before.columns)] != before.columns:
        return False
    return all(column.nullable or column.has_default for column in now.columns[len(before.columns) :])


def identities(codec: RowCodec, rows: list[Values]) -> list[object]:
    """What tells rows of a table apart: their keys, or something that is as good. DataError if a key is too long."""
    return list(codec.keys_of(rows) if codec.identity is None else map(codec.identity, rows))


def _duplicate(schema: Schema, rows: list[Values], known: set[object]) -> IntegrityError:
    codec, seen = schema.codec, set(known)
    pairs = zip(rows, identities(codec, rows), strict=True)
    row = next(row for row, key in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    values = ", ".join(map(repr, codec.keys.decode(codec.key(row))))
    return IntegrityError(
        f"row {values} of table {schema.table.name!r} exists already",
        hint="use upsert, in SQL ON CONFLICT, to insert or update",
    )


def _tx_id_of(commit: Ask) -> tuple[int, int]:
    return cast("tuple[int, int]", commit.arguments[0])


COMMITTED = "committed"
#: Operations of a session that may write.
WRITING = frozenset({"update", "delete", "sql"})


class TransactionCalls(Writes):
    """A transaction: its writes are kept aside until a read could see them, or until the commit."""

    __slots__ = ("_begun", "_client", "_key", "_wrote", "commit_ts", "ended", "tx_id")

    def __init__(self, client: Client) -> None:
        # As `Writes` does it, written out.
        self._kept = self._known = None
        self._rows_count = 0
        self._client = client
        self._begun: SessionCalls | None = None
        self.ended: str | None = None
        #: Whether the node was asked for something that writes; and the first key that it wrote, as a cluster tells it.
        self._wrote = False
        self._key: object = None
        #: Of the token, which is made if somebody asks for it.
        self.commit_ts: object = None
        self.tx_id = (0, 0)

    @property
    def _session(self) -> SessionCalls:
        if self._begun is None:
            self._begun = SessionCalls(self._client, ("transaction",))
        return self._begun

    def check_open(self) -> None:
        if self.ended is not None:
            raise InterfaceError(f"the transaction is {self.ended}", hint="begin a new one with db.transaction()")

    # -- writes

    def insert(self, table: str, rows: object) -> Asking[None]:
        self.check_open()
        self._keep_inserted((yield from self._client.schema(table)), rows)
        if self._are_long():
            yield from self._ship(self._take())

    def insert_now(self, table: str, rows: object) -> bool:
        """`insert` where nothing has to be asked; False: it was not done, because something has to be."""
        schema = self._client.schemas.get(table) if type(table) is str else None
        if schema is None or self.ended is not None or self._rows_count > WRITES_ROWS_MAX:
            return False
        self._keep_inserted(schema, rows)
        return True

    def upsert(self, table: str, rows: object) -> Asking[None]:
        self.check_open()
        self._keep_upserted((yield from self._client.schema(table)), rows)
        if self._are_long():
            yield from self._ship(self._take())

    def _ship(self, writes: Iterable[_Write]) -> Asking[None]:
        """Hand what was kept aside to the node's transaction, in parts."""
        writes = yield from self._as_now(writes)
        for part in _portions(writes):
            self._key = yield from self._guarded(self._session.ask("write", writes=(part,)))

    # -- operations on the node

    def ask(self, what: str, args: tuple[object, ...] = (), kwargs: Mapping[str, object] = NO_NAMES) -> Asking[object]:
        """An operation on the node, which must have seen the writes so far."""
        self.check_open()
        writes = self._take()
        if writes:
            yield from self._ship(writes)
        self._wrote = self._wrote or what in WRITING
        return (yield from self._guarded(self._session.ask(what, args, kwargs)))

    def _guarded(self, asking: Asking[object]) -> Asking[object]:
        """An operation whose answer did not come ends the transaction: nobody knows what it did."""
        try:
            return (yield from asking)
        except Unavailable:
            self.ended = "lost: the node did not answer"
            raise

    # -- the end

    def commit(self, first: Ask | None = None) -> Asking[None]:
        """`first`: what `commit_now` gave, if that was asked already."""
        self.check_open()
        try:
            commit_ts, tx_id = yield from self._commit(first)
        except GeneratorExit:
            raise
        except BaseException as error:
            refused = isinstance(error, Error) and not isinstance(error, CommitUnknown)
            self.ended = "rolled back" if refused else "interrupted in its commit, which may have happened"
            if isinstance(error, TransactionConflict):
                self._client.schemas = {}  # perhaps the columns have changed
            raise
        self.commit_ts, self.tx_id, self.ended = commit_ts, tx_id, COMMITTED

    def commit_now(self) -> Ask | None:
        """What `commit` asks for first, and mostly all that it asks for, of a transaction that only wrote; else None.
        Whoever is answered notes `commit_ts` and that it has `ended`; who is not goes on with `commit`."""
        if self._begun is not None or self.ended is not None:
            return None
        self.tx_id = tx_id = self._client.next_tx_id()
        kept = self._kept
        writes = () if kept is None else tuple(kept)
        return new(Ask, ("commit", (tx_id, False, writes), COMMIT, (tx_id, True, writes), None))

    def _commit(self, first: Ask | None) -> Asking[tuple[object, tuple[int, int]]]:
        """The commit_ts and the tx_id. That is made last: the node forgets old numbers of a client."""
        writes = self._take()
        if self._begun is None:
            ask = self._blind(self._client.next_tx_id(), writes) if first is None else first
            try:
                return (yield from self._commit_blind(ask, writes)), _tx_id_of(ask)
            except TooLong:
                pass  # nothing was sent: it is too long for one message
        yield from self._ship(writes)
        if self._key is None and self._wrote and self._client.in_cluster:
            # Only by a key can another process find out what became of it, if this one is gone before it answers.
            self._key = yield from self._guarded(self._session.ask("write"))
        tx_id = self._client.next_tx_id()
        return (yield from self._session.commit(tx_id, self._key)), tx_id

    def _blind(self, tx_id: tuple[int, int], writes: tuple[_Write, ...]) -> Ask:
        return new(Ask, ("commit", (tx_id, False, writes), COMMIT, (tx_id, True, writes), None))

    def _commit_blind(self, ask: Ask, writes: tuple[_Write, ...]) -> Asking[object]:
        try:
            return (yield ask)
        except TransactionConflict:
            # Perhaps columns were added that these rows do not have yet.
            self._client.schemas = {}
            again = yield from self._as_now(writes)
            if again == writes:
                raise
        return (yield self._blind(_tx_id_of(ask), again))

    def _as_now(self, writes: Iterable[_Write]) -> Asking[tuple[_Write, ...]]:
        """The writes as the tables are now, as far as this client knows: with columns that were added meanwhile."""
        made = []
        for kind, name, layout, rows, positions in writes:
            schema = self._client.schemas.get(name) or (yield from self._client.schema(name))
            if schema.layout != layout and _has_grown(self._client.layouts.get(layout), schema.table):
                rows, layout = [schema.codec.pad(row) for row in rows], schema.layout
            made.append((kind, name, layout, rows, positions))
        return tuple(made)

    def rollback(self) -> Asking[None]:
        self.check_open()
        self.ended = "rolled back"
        self._take()
        if self._begun is not None:
            yield from self._begun.end()

    def the_token(self) -> Token:
        if self.ended is None:
            raise InterfaceError("a transaction has its token after the commit", hint="read it after the with block")
        if self.ended != COMMITTED:
            self.check_open()
        return Token(cast(int, self.commit_ts), self.tx_id)


class SnapshotCalls:
    """A snapshot: its timestamp is fixed by its first operation."""

    def __init__(self, client: Client, at_least: object, latest: object, max_lag: object, views: Sequence[str]) -> None:
        self._session = SessionCalls(client, ("snapshot", at_least, latest, max_lag, views))
        self.ended: str | None = None
        self._ts: int | None = None

    def open(self) -> Asking[None]:
        """Have the node look at what is asked for."""
        yield from self._session.ask("open")

    def begin(self) -> Asking[int]:
        self.check_open()
        if self._ts is None:
            self._ts = cast(int, (yield from self._session.ask("begin")))
        return self._ts

    def ask(self, what: str, args: tuple[object, ...] = (), kwargs: Mapping[str, object] = NO_NAMES) -> Asking[object]:
        self.check_open()
        return (yield from self._session.ask(what, args, kwargs))

    def check_open(self) -> None:
        if self.ended is not None:
            raise InterfaceError(f"the snapshot is {self.ended}", hint="begin a new one with db.snapshot()")

    def the_token(self) -> Token:
        if self._ts is None:
            raise InterfaceError("the snapshot has not begun", hint="use it with `async with`, or read something first")
        return Token(self._ts)

    def close(self) -> Asking[None]:
        self.ended = "closed"
        yield from self._session.end()


# --- the feed ---


class FeedCalls:
    """The change feed of a view. Its place is known here, too: a session that is gone is begun again from there."""

    def __init__(self, client: Client, view: str, since: Token | None) -> None:
        if since is not None and not isinstance(since, Token):
            raise InterfaceError(
                f"since takes a token, not {type(since).__name__}",
                hint="that of a transaction, of a result or of an earlier change",
            )
        self._client, self._view, self._since = client, view, since
        self._session = SessionCalls(client, ("changes", view, since))
        self.given_ts = 0 if since is None else since.commit_ts

    def begin(self) -> Asking[int]:
        """Where it begins."""
        self.given_ts = cast(int, (yield from self._session.ask("place")))
        return self.given_ts

    def next(self) -> Asking[list[ViewChange]]:
        """What is there by now."""
        try:
            body = yield from self._session.raw("next")
        except TransactionConflict:
            if not self.given_ts:
                raise
            self._session = SessionCalls(self._client, ("changes", self._view, Token(self.given_ts)))
            body = yield from self._session.raw("next")
        header, found, ts = cast("tuple[object, tuple[tuple[int, tuple[tuple[object, int], ...]], ...], int]", body)
        self.given_ts = ts
        return [self._change(header, at, rows) for at, rows in found]

    def _change(self, header: object, ts: int, rows: Sequence[tuple[object, int]]) -> ViewChange:
        made: list[Row] = rows_from(columns_from(header), tuple(values for values, _ in rows)) if rows else []
        return ViewChange(Token(ts), ts, list(zip(made, [times for _, times in rows], strict=True)))

    def end(self) -> Asking[None]:
        yield from self._session.end()
