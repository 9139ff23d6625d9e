"""The transaction machine: decides one transaction, in the steps of the modified two-phase commit (Nikolov, fig. 5.2).

    OLD_ROWS   the participants that own the written rows answer with the whole old rows
    LOOK_UPS   base change tables are formed and propagated; rows that they join with are asked for
    DECIDED    the record is complete: base change tables and one refresh per changed view row

It does no I/O and knows no participant: `wanted` says what to ask for, the driver asks and calls `old_rows`, then
`looked_up` until nothing is wanted any more. With one participant the driver then commits `record` in one phase.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

from ..changetables.change_table import Change
from ..changetables.errors import IntegrityError, TransactionConflict
from ..changetables.plan import Answers, Contribution, LookUp
from ..changetables.types import Row, Value
from ..ltm.outputs import CommitRecord, Write
from ..ltm.tables import TableRows, Tables, ViewRows

# What a write expects of the old row.
ANY, ABSENT, PRESENT = 0, 1, 2


#: What a transaction wants of one row: (expect, row, changes, touch). `row` is the whole new row, None to delete.
#: `changes` (position -> value), if any, are merged into the old row where there is one; `row` is then what to insert
#: where there is none. touch = False checks the expectation only. A plain tuple: a named one costs 0.2 us more per row.
Intent: TypeAlias = tuple[int, Row | None, Mapping[int, Value] | None, bool]


class Request:
    """A transaction as its client hands it over for commit. `snapshot` is None if it read nothing."""

    __slots__ = ("keys", "ranges", "snapshot", "tables", "tx_id", "writes")

    def __init__(self, tx_id: tuple[int, int]) -> None:
        self.tx_id = tx_id
        self.snapshot: int | None = None
        self.keys: set[tuple[int, bytes]] = set()
        self.ranges: list[tuple[int, bytes, bytes]] = []
        self.tables: dict[str, TableRows] = {}
        self.writes: dict[str, dict[bytes, Intent]] = {}

    @classmethod
    def together(cls, requests: Sequence[Request]) -> Request:
        """Several requests that read nothing and write different rows, as one."""
        whole = cls(requests[0].tx_id)
        for request in requests:
            for name, intents in request.writes.items():
                known = whole.writes.get(name)
                if known is None:
                    whole.writes[name] = dict(intents)
                else:
                    known.update(intents)
        return whole


_Propagation: TypeAlias = Generator[list[LookUp], Answers, list[Contribution]]


class Transaction:
    """One attempt at one transaction, or at several that do not touch each other."""

    __slots__ = ("_running", "_tables", "contributions", "request", "wanted", "writes")

    def __init__(self, request: Request, tables: Tables) -> None:
        self.request = request
        self._tables = tables
        self._running: list[tuple[ViewRows, _Propagation, int]] = []
        self.wanted: list[LookUp] = []
        self.writes: list[tuple[int, list[Write]]] = []
        self.contributions: list[tuple[int, list[Contribution]]] = []

    def old_rows(self, old: Mapping[str, list[Row | None]]) -> None:
        """The answer of the first phase: by table, one old row per written key, in the order of the writes."""
        changes: dict[str, list[Change]] = {}
        views: dict[int, ViewRows] = {}
        for name, intents in self.request.writes.items():
            table = self._tables.by_name[name]
            change = self._resolve(table, intents, old[name])
            if table.views and change:
                changes[name] = change
                for view in table.views:
                    views[view.view.id] = view
        for view in views.values():
            self._advance(view, view.plan.propagate(changes), None)

    def looked_up(self, answers: Answers) -> None:
        """The answers to `wanted`, in order; more may be wanted afterwards."""
        running, self._running, self.wanted = self._running, [], []
        taken = 0
        for view, propagation, count in running:
            self._advance(view, propagation, answers[taken : taken + count])
            taken += count

    def own_rows(self) -> dict[str, dict[bytes, Row | None]]:
        """The transaction's own new rows: look-ups of the new state see them."""
        own: dict[str, dict[bytes, Row | None]] = {}
        for table_id, writes in self.writes:
            own[self._tables.by_id[table_id].table.name] = {key: new for key, _, new in writes}
        return own

    def record(self, tx_ids: tuple[tuple[int, int], ...], commit_ts: int) -> CommitRecord:
        return CommitRecord(
            tx_ids, commit_ts, self._tables.catalog.version, tuple(self.writes), tuple(self.contributions)
        )

    def _resolve(self, table: TableRows, intents: Mapping[bytes, Intent], old: list[Row | None]) -> list[Change]:
        """Turn intents into writes; the base change table is delete of the old row + insert of the new one."""
        writes: list[Write] = []
        change: list[Change] = []
        for (key, (expect, row, changes, touch)), before in zip(intents.items(), old, strict=True):
            if expect == ABSENT:
                if before is not None:
                    raise self._unexpected(table, key, "exists already")
            elif expect == PRESENT and before is None:
                raise self._unexpected(table, key, "does not exist any more")
            if before is not None:
                change.append((before, -1))
                if changes is not None:
                    row = _merged(before, changes)
            elif row is None or not touch:
                continue
            if row is not None:
                change.append((row, 1))
            writes.append((key, before, row))
        if writes:
            self.writes.append((table.table.id, writes))
        return change

    def _unexpected(self, table: TableRows, key: bytes, what: str) -> Exception:
        values = table.codec.keys.decode(key)
        message = f"row {', '.join(map(repr, values))} of table {table.table.name!r} {what}"
        if self.request.snapshot is None:
            return IntegrityError(message, hint="use upsert to insert or update")
        return TransactionConflict(message, hint="another transaction changed it: run the transaction again")

    def _advance(self, view: ViewRows, propagation: _Propagation, answers: Answers | None) -> None:
        try:
            wanted = next(propagation) if answers is None else propagation.send(answers)
        except StopIteration as finished:
            if finished.value:
                self.contributions.append((view.view.id, finished.value))
            return
        self._running.append((view, propagation, len(wanted)))
        self.wanted.extend(wanted)


def _merged(row: Row, changes: Mapping[int, Value]) -> Row:
    merged = list(row)
    for position, value in changes.items():
        merged[position] = value
    return tuple(merged)
