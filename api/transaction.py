"""Interactive transactions: reads at a snapshot, writes kept aside, everything validated and applied at commit."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING

from .changetables.errors import Error, IntegrityError, InterfaceError
from .changetables.plan import Contribution
from .changetables.types import Row as Values
from .coordinator.transaction import ABSENT, ANY, PRESENT, Intent, Request, check_table, inserts
from .coordinator.transaction import Transaction as Machine
from .ltm.reading import order_of
from .ltm.tables import TableRows, Tables, ViewRows
from .reads import NO_KEY, NO_ROWS, OwnRows, Reads, ViewReads, one_key, readers
from .row_ids import row_ids_of
from .rows import Result, Token

if TYPE_CHECKING:
    from .changetables.sql import ParameterValues
    from .ports import OpenNode


NO_OWN_ROWS: OwnRows = {}


class Transaction(Reads):
    """Commits at the end of its `with` block, rolls back on an exception. It belongs to one thread or task.

    Reads see one snapshot and the transaction's own writes. At commit everything that was read, absent keys and ranges
    included, must still hold; otherwise TransactionConflict is raised and nothing has changed.
    """

    _what = "transaction"

    def __init__(self, node: OpenNode) -> None:
        # As Reads does it, written out: few calls and few objects, for most transactions write, commit and are gone.
        self._node = node
        self._ltm = ltm = node.engine.ltm
        self._tables = ltm.tables
        self._reader = next(readers)
        self._request = Request(node.next_tx_id())
        self._owner = get_ident()

    _commit_ts: int | None = None
    _views: dict[int, dict[bytes, Contribution]] | None = None
    _shown_by_views: OwnRows = NO_OWN_ROWS

    def __enter__(self) -> Transaction:
        if self._ended is not None:
            self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended is None:
            if kind is None:
                self._commit()
            else:
                self._end("rolled back")

    # -- writes

    def insert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        """Insert one row or many. A key that exists already: IntegrityError."""
        target = self._table(table)
        codec = target.codec
        made = codec.rows(rows if type(rows) is list else _each(rows))
        if codec.has_row_id:
            made = self._with_row_ids(target, made)
        keys = codec.keys_of(made)
        request = self._request
        changed_ts = target.versions.changed_ts  # before the look
        absent = self._snapshot is None and target.versions.surely_absent(keys)
        if absent and len(set(keys)) < len(keys):
            raise self._duplicate(target, _repeated(keys))
        if absent and keys and not request.tables:
            # The first write, mostly the only one: nothing is there to be merged with.
            request.inserted = (table, keys, made)
            request.tables[table] = target
            request.inserts_only = True
            request.absent_ts = changed_ts
            return
        intents = request.writes.get(table, {})
        if absent and intents.keys().isdisjoint(keys):
            inserts_only = request.inserts_only
            self._write(target, inserts(keys, made))
            request.inserts_only = inserts_only
            request.absent_ts = None
        else:
            self._write(target, self._inserts(target, keys, made, intents))

    def _with_row_ids(self, target: TableRows, rows: list[Values]) -> list[Values]:
        place = target.table.key[0]
        ids = row_ids_of(self._node).take(target, len(rows))
        return [(*row[:place], row_id, *row[place + 1 :]) for row, row_id in zip(rows, ids, strict=True)]

    def _inserts(
        self, target: TableRows, keys: list[bytes], rows: list[Values], intents: Mapping[bytes, Intent]
    ) -> dict[bytes, Intent]:
        added: dict[bytes, Intent] = {}
        if self._snapshot is not None:
            self._ltm.fetch(target.versions, keys, self._snapshot)
        for key, row in zip(keys, rows, strict=True):
            before = added.get(key) or intents.get(key)
            if before is None:
                if self._exists(target, key):
                    raise self._duplicate(target, key)
                added[key] = (ABSENT, row, None, True)
            else:
                if _exists_after(before):
                    raise self._duplicate(target, key)
                added[key] = (before[0], row, None, True)
        return added

    def upsert(self, table: str, rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
        """Insert each row, or, where its key exists, update the columns that are given."""
        target = self._table(table)
        codec = target.codec
        if codec.has_row_id:
            return self.insert(table, rows)
        added: dict[bytes, Intent] = {}
        for item in _each(rows):
            row = codec.row(item)
            key = codec.key(row)
            whole = len(item) == len(target.table.columns)
            changes = None if whole else codec.changes(item)
            before = added.get(key) or self._intent(target, key)
            if before is None or changes is None:
                added[key] = (ANY if before is None else before[0], row, changes, True)
            else:
                added[key] = _then_merge(before, changes, row)
        self._write(target, added)

    def update(self, table: str, key: object, changes: Mapping[str, object]) -> bool:
        """Change columns of a row; says whether the row existed. A new key moves the row."""
        target = self._table(table)
        encoded = target.codec.key_of(key)
        wanted = target.codec.changes(changes)
        if any(position in wanted for position in target.table.key):
            return self._move(target, encoded, wanted)
        before = self._intent(target, encoded)
        if before is None:
            if not self._exists_at_snapshot(target, encoded):
                return False
            self._write(target, {encoded: (PRESENT, None, wanted, True)})
            return True
        if not _exists_after(before):
            return False
        self._write(target, {encoded: _then_merge(before, wanted, None)})
        return True

    def delete(self, table: str, key: object = NO_KEY, /, **columns: object) -> bool:
        """Delete a row; says whether it existed."""
        target = self._table(table)
        encoded = target.codec.key_of(one_key(key, columns))
        before = self._intent(target, encoded)
        if before is None:
            if not self._exists_at_snapshot(target, encoded):
                return False
            self._write(target, {encoded: (PRESENT, None, None, True)})
            return True
        existed = _exists_after(before)
        if existed:
            # What this transaction itself inserted leaves no trace but its expectation.
            self._write(target, {encoded: (before[0], None, None, before[0] != ABSENT)})
        return existed

    # -- the end

    def commit(self) -> Token:
        """Make everything durable and visible, or nothing: then an error says why."""
        self._commit()
        return self.token

    def _commit(self) -> None:
        # Few calls on this path: after each sync the processor's caches are cold.
        if self._ended is not None or self._node.closed or self._owner != get_ident():
            self._check_open()
        request = self._request
        request.snapshot = self._snapshot
        if request.tables:
            try:
                commit_ts = self._node.engine.commit(request)
            except BaseException as error:
                self._failed(error)
                raise
        else:
            # It wrote nothing: it happened at its snapshot.
            commit_ts = self._begin()
        self._commit_ts = commit_ts
        self._end("committed")

    async def commit_async(self) -> Token:
        """`commit` for a task: the loop goes on while others join the same flush."""
        await self._commit_async()
        return self.token

    async def _commit_async(self) -> None:
        self._check_open()
        request = self._request
        request.snapshot = self._snapshot
        if request.tables:
            try:
                commit_ts = await self._node.engine.commit_async(request)
            except BaseException as error:
                self._failed(error)
                raise
        else:
            # It wrote nothing: it happened at its snapshot.
            commit_ts = self._begin()
        self._commit_ts = commit_ts
        self._end("committed")

    def rollback(self) -> None:
        """Forget everything."""
        self._check_open()
        self._end("rolled back")

    def _failed(self, error: BaseException) -> None:
        refused = isinstance(error, Error)
        self._end("rolled back" if refused else "interrupted in its commit, which may have happened")

    @property
    def token(self) -> Token:
        """Where the commit stands in the one order; of a read-only transaction, its read timestamp."""
        if self._commit_ts is None:
            if self._ended is None:
                raise InterfaceError(
                    "a transaction has its token after the commit", hint="read it after the with block"
                )
            self._check_open()
        assert self._commit_ts is not None
        # One that only read has all commits of its timestamp.
        return Token(self._commit_ts, self._request.tx_id) if self._request.tables else Token(self._commit_ts)

    def view(self, name: str) -> ViewReads:
        """The view at this transaction's snapshot, with its own writes."""
        return ViewReads(self, name)

    # -- inside

    def _check_open(self) -> None:
        super()._check_open()
        if self._owner is not None and self._owner != get_ident():
            raise wrong_thread()

    def _unbound(self) -> Transaction:
        """The same for a session of a served node or a task, whose operations may run in any thread, one at a time."""
        self._owner = None
        return self

    def _write(self, target: TableRows, intents: dict[bytes, Intent]) -> None:
        self._views = None
        if not intents:
            return
        name = target.table.name
        request = self._request
        known = request.writes.get(name)
        if known is None:
            request.writes[name] = intents
            request.tables[name] = target
        else:
            known.update(intents)
        request.inserts_only = False

    def _intent(self, target: TableRows, key: bytes) -> Intent | None:
        intents = self._request.writes.get(target.table.name)
        return None if intents is None else intents.get(key)

    def _exists(self, target: TableRows, key: bytes) -> bool:
        """For an insert: a wrong "no" is found at commit; a "yes" is told to the caller, so it is a read."""
        if self._snapshot is None:
            seen = target.versions.at(key, self._ltm.horizon.durable_ts)
            if seen is not None and seen[1] is None:
                return False
        exists = self._ltm.read(target.versions, key, self._begin()) is not None
        if exists:
            self._read_key(target.table.id, key)
        return exists

    def _exists_at_snapshot(self, target: TableRows, key: bytes) -> bool:
        """Only existence is read: a concurrent change of other columns is no conflict. The intent expects PRESENT; an
        absent key counts as read, so that somebody else's insert is a conflict."""
        exists = self._ltm.read(target.versions, key, self._begin()) is not None
        if not exists:
            self._read_key(target.table.id, key)
        return exists

    def _duplicate(self, target: TableRows, key: bytes) -> IntegrityError:
        values = ", ".join(map(repr, target.codec.keys.decode(key)))
        return IntegrityError(
            f"row {values} of table {target.table.name!r} exists already",
            hint="use upsert, in SQL ON CONFLICT, to insert or update",
        )

    def _move(self, target: TableRows, key: bytes, wanted: Mapping[int, object]) -> bool:
        row = self._row(target, key)
        if row is None:
            return False
        values = list(row)
        for position, value in wanted.items():
            values[position] = value  # type: ignore[call-overload]  # `wanted` holds checked values
        moved = tuple(values)
        new_key = target.codec.key(moved)
        if new_key != key:
            if self._row(target, new_key) is not None:
                raise self._duplicate(target, new_key)
            before, there = self._intent(target, key), self._intent(target, new_key)
            leave: Intent = (
                (PRESENT, None, None, True) if before is None else (before[0], None, None, before[0] != ABSENT)
            )
            self._write(target, {key: leave, new_key: (ABSENT if there is None else there[0], moved, None, True)})
        else:
            before = self._intent(target, key)
            self._write(target, {key: (PRESENT if before is None else before[0], moved, None, True)})
        return True

    def _own(self, rows: TableRows) -> Mapping[bytes, Values | None]:
        intents = self._request.writes.get(rows.table.name)
        if not intents:
            return NO_ROWS
        return {key: self._shown(rows, key, intent) for key, intent in intents.items()}

    def _own_row(self, rows: TableRows, key: bytes) -> tuple[Values | None] | None:
        intent = self._intent(rows, key)
        return None if intent is None else (self._shown(rows, key, intent),)

    def _shown(self, rows: TableRows, key: bytes, intent: Intent) -> Values | None:
        """The row as the transaction sees it. What is merged shows columns of the stored row: that is a read."""
        if intent[2] is None:
            # It may have been written before columns were added that the snapshot has.
            return None if intent[1] is None else rows.codec.pad(intent[1])
        self._read_key(rows.table.id, key)
        return _effective(intent, self._ltm.read(rows.versions, key, self._begin()))

    def _read_key(self, table_id: int, key: bytes) -> None:
        self._request.keys.add((table_id, key))

    def _read_range(self, table_id: int, start: bytes, stop: bytes) -> None:
        self._request.ranges.append((table_id, start, stop))

    def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        """Run statements that read and write rows; the result is that of the last one."""
        from .sql import run_in

        return run_in(self, text, params)

    # -- views with the transaction's own writes

    def _view_row(self, rows: ViewRows, key: bytes) -> Values | None:
        stored = super()._view_row(rows, key)
        contribution = self._contributions(rows).get(key)
        return stored if contribution is None else rows.plan.refresh(stored, contribution)

    def _view_states(self, rows: ViewRows, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Values]]:
        stored = super()._view_states(rows, start, stop)
        contributions = {key: each for key, each in self._contributions(rows).items() if start <= key < stop}
        if not contributions:
            return stored
        at = self._at(rows)
        self._ltm.fetch_states(rows, list(contributions), at)
        own = {
            key: rows.plan.refresh(self._ltm.state(rows, key, at), contribution)
            for key, contribution in contributions.items()
        }
        order = order_of(rows.plan)
        mine = sorted(((key, row) for key, row in own.items() if row is not None), key=order)
        return heapq.merge((item for item in stored if item[0] not in own), mine, key=order)

    def _view_own(self) -> OwnRows:
        self._propagated()
        return self._shown_by_views

    def _contributions(self, rows: ViewRows) -> Mapping[bytes, Contribution]:
        """What the writes so far do to the view."""
        return self._propagated().get(rows.view.id, {})

    def _propagated(self) -> Mapping[int, Mapping[bytes, Contribution]]:
        """What the writes so far do to views: the same machine that commits them, run at the snapshot."""
        if self._views is None:
            at = self._begin()
            tables = self._tables
            request = self._at_snapshot(tables)
            machine = Machine(request, tables)
            old = {}
            for name, intents in request.writes.items():
                target = tables.by_name[name]
                self._ltm.fetch(target.versions, list(intents), at)
                old[name] = [self._ltm.read(target.versions, key, at) for key in intents]
                # The old rows are part of what is shown, so they are read for good.
                for key in intents:
                    self._read_key(target.table.id, key)
            machine.old_rows(old)
            while machine.wanted:
                machine.looked_up(self._look_up(machine.wanted, tables, machine.own_rows()))
            self._views = {
                view_id: {item.key: item for item in contributions} for view_id, contributions in machine.contributions
            }
            self._shown_by_views = {
                name: {key: new for key, _, new in writes} for name, writes in machine.shown.items()
            }
        return self._views

    def _at_snapshot(self, tables: Tables) -> Request:
        """The writes so far, as the tables of the snapshot have them: columns may have been added between a write and
        the first read. A table that is newer has no views there."""
        request = Request(self._request.tx_id)
        request.snapshot = self._snapshot
        for name, used in self._request.tables.items():
            if name in tables.by_name:
                request.writes[name] = dict(self._request.writes[name])
                check_table(name, used, request, tables)
        return request


def wrong_thread() -> InterfaceError:
    return InterfaceError(
        "the transaction belongs to the thread that began it",
        hint="begin one in each thread; they may share the database",
    )


def _each(rows: Mapping[str, object] | Iterable[Mapping[str, object]]) -> Iterable[Mapping[str, object]]:
    if type(rows) is list:
        return rows  # the common case, without the slower questions below
    if isinstance(rows, Mapping):
        return (rows,)
    if isinstance(rows, Iterable) and not isinstance(rows, str | bytes):
        return rows
    raise InterfaceError(
        f"rows must be a mapping or several of them, not {type(rows).__name__}", hint='like {"id": 1, "name": "ann"}'
    )


def _repeated(keys: list[bytes]) -> bytes:
    seen: set[bytes] = set()
    return next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _exists_after(intent: Intent) -> bool:
    """Is there a row after this write, as far as the transaction expects?"""
    return intent[3] and (intent[1] is not None or intent[2] is not None)


def _effective(intent: Intent, stored: Values | None) -> Values | None:
    """The row as the transaction itself sees it."""
    _, row, changes, _ = intent
    if changes is None or stored is None:
        return row
    values = list(stored)
    for position, value in changes.items():
        values[position] = value
    return tuple(values)


def _then_merge(before: Intent, changes: Mapping[int, object], row: Values | None) -> Intent:
    """An update (or an upsert, with the row to insert) after an earlier write of the same row."""
    expect, known, merged, touch = before
    if merged is not None:
        inserted = row if known is None else _effective((expect, known, changes, True), known)  # type: ignore[arg-type]
        return (expect, inserted, {**merged, **changes}, True)  # type: ignore[dict-item]
    if known is None or not touch:
        return (expect, row, None, True)
    return (expect, _effective((expect, known, changes, True), known), None, True)  # type: ignore[arg-type]
