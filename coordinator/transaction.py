"""The transaction machine: decides one transaction, in the steps of the modified two-phase commit (Nikolov, fig. 5.2).

    OLD_ROWS   the participants that own the written rows answer with the whole old rows
    LOOK_UPS   base change tables are formed and propagated; rows that they join with are asked for. Views go level by
               level: what a view shows before and after is the change table of those that are kept from it
    DECIDED    the record is complete: base change tables and one refresh per changed view row

It does no I/O and knows no participant: `wanted` says what to ask for, the driver asks and calls `old_rows`, then
`looked_up` until nothing is wanted any more. With one participant the driver then commits `record` in one phase.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TypeAlias, cast

from ..changetables.change_table import Change
from ..changetables.errors import IntegrityError, TransactionConflict
from ..changetables.plan import FIRST, LAST, STATES, Answers, Contribution, LookUp, State
from ..changetables.schema import Unique
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
    """A transaction as its client hands it over for commit. `again`: it was handed over before, perhaps to another
    process, and nobody said what became of it. `snapshot` is None if it read nothing. `inserts_only`: all
    intents are (ABSENT, row, None, True). `absent_ts`: there was no row under any of their keys, all of one table, when
    the table's last change was at this timestamp. `tx_ids`: its own, or those of several that are run as one.
    `inserted`: all that it writes as (table, keys, rows), if it inserts into one table and nobody has asked for
    `writes` yet; most are committed before anybody does, which spares a tuple and an entry for each row."""

    __slots__ = (
        "_writes",
        "absent_ts",
        "again",
        "inserted",
        "inserts_only",
        "keys",
        "ranges",
        "snapshot",
        "tables",
        "tx_id",
        "tx_ids",
    )

    def __init__(self, tx_id: tuple[int, int]) -> None:
        self.tx_id = tx_id
        self.tx_ids: tuple[tuple[int, int], ...] = (tx_id,)
        self.again = False
        self.snapshot: int | None = None
        self.inserts_only = False
        self.absent_ts: int | None = None
        self.keys: set[tuple[int, bytes]] = set()
        self.ranges: list[tuple[int, bytes, bytes]] = []
        self.tables: dict[str, TableRows] = {}
        self.inserted: tuple[str, list[bytes], list[Row]] | None = None
        self._writes: dict[str, dict[bytes, Intent]] = {}

    @property
    def writes(self) -> dict[str, dict[bytes, Intent]]:
        """What it wants of each row, by table."""
        if self.inserted is not None:
            (name, keys, rows), self.inserted = self.inserted, None
            self._writes[name] = inserts(keys, rows)
        return self._writes

    @classmethod
    def together(cls, requests: Sequence[Request]) -> Request:
        """Several requests that read nothing and write different rows, as one."""
        whole = cls(requests[0].tx_id)
        whole.tx_ids = tuple(map(_tx_id_of, requests))
        whole.inserts_only = all(map(_inserts_only, requests))
        if len(set(map(_absent_ts_of, requests))) == 1:
            whole.absent_ts = requests[0].absent_ts
        for request in requests:
            for name, intents in request.writes.items():
                known = whole.writes.get(name)
                if known is None:
                    whole.writes[name] = dict(intents)
                else:
                    known.update(intents)
        return whole


def inserts(keys: list[bytes], rows: list[Row]) -> dict[bytes, Intent]:
    """{key: (ABSENT, row, None, True)}, without a function of its own."""
    return dict(zip(keys, zip(repeat(ABSENT), rows, repeat(None), repeat(True), strict=False), strict=True))


_tx_id_of = attrgetter("tx_id")
_inserts_only = attrgetter("inserts_only")
_absent_ts_of = attrgetter("absent_ts")
#: Yields look-ups, is sent their answers; a propagation returns contributions.
_Asking: TypeAlias = Generator[list[LookUp], Answers, list[Contribution]] | Generator[list[LookUp], Answers, None]
_NOTHING: Row = ()


class Transaction:
    """One attempt at one transaction, or at several that do not touch each other."""

    __slots__ = (
        "_affected",
        "_changes",
        "_read",
        "_running",
        "_shows",
        "_tables",
        "contributions",
        "request",
        "shown",
        "wanted",
        "writes",
    )

    def __init__(self, request: Request, tables: Tables, shows: bool = False) -> None:
        """`shows`: find out what views with indexes show, too, because their entries are written like rows, and what
        those show that may fail: nobody else checks it."""
        self.request = request
        self._shows = shows
        self._tables = tables
        self._changes: dict[str, list[Change]] = {}
        #: The views that still have to be propagated to, by id.
        self._affected: dict[int, ViewRows] = {}
        self._running: list[tuple[ViewRows | None, _Asking, int]] = []
        #: The views of this level that others read, and their contributions.
        self._read: list[tuple[ViewRows, list[Contribution]]] = []
        self.wanted: list[LookUp] = []
        self.writes: list[tuple[int, list[Write]]] = []
        self.contributions: list[tuple[int, list[Contribution]]] = []
        #: What views that others read show before and after, by name.
        self.shown: dict[str, list[Write]] = {}

    def old_rows(self, old: Mapping[str, list[Row | None]]) -> None:
        """The answer of the first phase: by table, one old row per written key, in the order of the writes."""
        affected, request = self._affected, self.request
        for name, intents in request.writes.items():
            table = self._tables.by_name[name]
            if request.inserts_only and table.check is None and not any(old[name]):
                # The common case, where nothing has to be decided row by row.
                self.writes.append((table.table.id, [(key, None, intent[1]) for key, intent in intents.items()]))
                change: list[Change] = []
                if table.views:
                    change = [(intent[1], 1) for intent in intents.values()]  # type: ignore[misc]  # not None here
            else:
                change = self._resolve(table, intents, old[name])
            if table.views and change:
                self._changes[name] = change
                for view in table.views:
                    affected[view.view.id] = view
            if table.table.uniques:
                self._advance(None, self._unique(table), None)
        if len(affected) == 1 and not self._running:
            # The common case, as `_run_levels` does it.
            view = affected.popitem()[1]
            self._advance(view, view.plan.propagate(self._changes), None)
        if not self._running and (self._read or affected):
            self._run_levels()

    def looked_up(self, answers: Answers) -> None:
        """The answers to `wanted`, in order; more may be wanted afterwards."""
        running, self._running, self.wanted = self._running, [], []
        taken = 0
        for view, asking, count in running:
            self._advance(view, asking, answers[taken : taken + count])
            taken += count
        if not self._running and (self._read or self._affected):
            self._run_levels()

    def _run_levels(self) -> None:
        """Go on until something is wanted. A view comes after all that it reads; those of one level ask together."""
        while not self._running:
            if self._read:
                read, self._read = self._read, []
                self._advance(None, self._show(read), None)
            elif affected := self._affected:
                for view in [affected.popitem()[1]] if len(affected) == 1 else self._lowest_level():
                    self._advance(view, view.plan.propagate(self._changes), None)
            else:
                return

    def _lowest_level(self) -> list[ViewRows]:
        views = list(self._affected.values())
        level = min([view.level for view in views])
        self._affected = {view.view.id: view for view in views if view.level != level}
        return [view for view in views if view.level == level]

    def _advance(self, view: ViewRows | None, asking: _Asking, answers: Answers | None) -> None:
        """Let a propagation go on; `view` None: it finds out what views show."""
        try:
            wanted = next(asking) if answers is None else asking.send(answers)
        except StopIteration as finished:
            if view is not None:
                if finished.value:
                    self.contributions.append((view.view.id, finished.value))
                if view.views or (view.plan.extremes and view.is_read) or (self._shows and is_shown(view)):
                    self._read.append((view, finished.value))
            return
        assert wanted, "whoever asks for nothing would never be answered"
        self._running.append((view, asking, len(wanted)))
        self.wanted += wanted

    def _show(self, views: list[tuple[ViewRows, list[Contribution]]]) -> Generator[list[LookUp], Answers, None]:
        """Find out what views show before and after: that is what the views above them are told."""
        views = [(view, found) for view, found in views if found or view.plan.extremes]
        if not views:
            return
        touched = [touched_keys(view, found, self.shown) for view, found in views]
        states = yield [
            LookUp(view.view.name, STATES, list(keys), State.OLD)
            for (view, _), keys in zip(views, touched, strict=True)
        ]
        extremes = yield from _extremes(views, touched)
        for number, ((view, found), keys) in enumerate(zip(views, touched, strict=True)):
            contributions = {item.key: item for item in found}
            before, after = extremes.get(number, ((), ()))
            writes: list[Write] = []
            for place, (key, state) in enumerate(zip(keys, states[number], strict=True)):
                old_state = cast("Row | None", state)
                item = contributions.get(key)
                new_state = old_state if item is None else view.plan.refresh(old_state, item)
                old = view.plan.source_row(old_state, before[place] if before else _NOTHING)
                new = view.plan.source_row(new_state, after[place] if after else _NOTHING)
                if old != new or repr(old) != repr(new):
                    writes.append((key, old, new))
            if writes:
                self.shown[view.view.name] = writes
                self._changes[view.view.name] = _change_table(writes)
                self._affected.update((reader.view.id, reader) for reader in view.views)

    def own_rows(self) -> dict[str, dict[bytes, Row | None]]:
        """The transaction's own new rows, and what views show because of them: look-ups of the new state see them."""
        own: dict[str, dict[bytes, Row | None]] = {}
        for table_id, writes in self.writes:
            own[self._tables.by_id[table_id].table.name] = {key: new for key, _, new in writes}
        for name, writes in self.shown.items():
            own[name] = {key: new for key, _, new in writes}
        return own

    def record(self, tx_ids: tuple[tuple[int, int], ...], commit_ts: int) -> CommitRecord:
        writes, contributions = tuple(self.writes), tuple(self.contributions)
        # Half the time of calling CommitRecord.
        return tuple.__new__(CommitRecord, (tx_ids, commit_ts, self._tables.catalog.version, writes, contributions))

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
            if table.check is not None and row is not None:
                table.check(row)
        if writes:
            self.writes.append((table.table.id, writes))
        return change

    def _unique(self, table: TableRows) -> Generator[list[LookUp], Answers, None]:
        """No two rows may be equal in the columns of a UNIQUE constraint, after the whole transaction."""
        written = next((writes for table_id, writes in self.writes if table_id == table.table.id), [])
        asked: list[tuple[Unique, LookUp]] = []
        for unique in table.table.uniques:
            entries = table.index_on(unique.columns)
            assert entries is not None, "a UNIQUE constraint comes with its index"
            new = [row for _, old, row in written if row is not None and _differs(old, row, unique.columns)]
            prefixes = list(dict.fromkeys(entries.codec.prefix_of(row) for row in new))
            if prefixes:
                asked.append((unique, LookUp(table.table.name, entries.index.id, prefixes, State.NEW)))
        if not asked:
            return
        answers = yield [look_up for _, look_up in asked]
        for (unique, _), found in zip(asked, answers, strict=True):
            for rows in cast("Sequence[list[Row]]", found):
                if len(rows) > 1:
                    names = ", ".join(table.table.columns[place].name for place in unique.columns)
                    values = ", ".join(repr(rows[0][place]) for place in unique.columns)
                    raise IntegrityError(
                        f"two rows of table {table.table.name!r} would have ({names}) = ({values})",
                        hint=f"constraint {unique.name!r} asks for different values",
                    )

    def _unexpected(self, table: TableRows, key: bytes, what: str) -> Exception:
        values = table.codec.keys.decode(key)
        message = f"row {', '.join(map(repr, values))} of table {table.table.name!r} {what}"
        if self.request.snapshot is None:
            return IntegrityError(message, hint="use upsert, in SQL ON CONFLICT, to insert or update")
        return TransactionConflict(message, hint="another transaction changed it: run the transaction again")


def stands_twice(unique: Unique, values: Row) -> IntegrityError:
    """Rows are there that a new constraint does not allow."""
    return IntegrityError(
        f"cannot make index {unique.name!r} unique: {', '.join(map(repr, values))} stands twice",
        hint="remove the duplicates first",
    )


def is_shown(view: ViewRows) -> bool:
    """Whether it has to be found out what it shows, for its indexes or because that may fail."""
    return bool(view.indexes) or (view.plan.fallible and view.checked)


def _differs(old: Row | None, new: Row, columns: tuple[int, ...]) -> bool:
    """Whether a row has new values in these columns; NULL is equal to nothing."""
    if any(new[place] is None for place in columns):
        return False
    return old is None or any(old[place] != new[place] for place in columns)


def touched_keys(
    view: ViewRows, contributions: list[Contribution], shown: Mapping[str, list[Write]]
) -> dict[bytes, tuple[Value, ...]]:
    """The keys of a view whose rows may show something else: those with a contribution, and, of minima and maxima,
    those whose values changed."""
    touched = {item.key: item.key_values for item in contributions}
    key_count = len(view.plan.key_columns)
    for extreme in view.plan.extremes:
        for _, old, new in shown.get(extreme.table, ()):
            group = cast(Row, old if new is None else new)[:key_count]
            touched.setdefault(view.plan.keys.encode_short(group), group)
    return touched


def _extremes(
    views: list[tuple[ViewRows, list[Contribution]]], touched: list[dict[bytes, tuple[Value, ...]]]
) -> Generator[list[LookUp], Answers, dict[int, tuple[list[Row], list[Row]]]]:
    """For each view that has some, by its place: the extremes of the touched groups before and after."""
    asked = [number for number, (view, _) in enumerate(views) if view.plan.extremes]
    if not asked:
        return {}
    look_ups = []
    for number in asked:
        plan = views[number][0].plan
        for state in (State.OLD, State.NEW):
            for place, extreme in enumerate(plan.extremes):
                prefixes = [plan.extreme_prefix(place, group) for group in touched[number].values()]
                look_ups.append(LookUp(extreme.table, LAST if extreme.last else FIRST, prefixes, state))
    answers = iter((yield look_ups))
    found: dict[int, tuple[list[Row], list[Row]]] = {}
    for number in asked:
        count = len(views[number][0].plan.extremes)
        sides = [[next(answers) for _ in range(count)] for _ in range(2)]
        before, after = ([cast(Row, group) for group in zip(*side, strict=True)] for side in sides)
        found[number] = (before, after)
    return found


def _change_table(writes: list[Write]) -> list[Change]:
    changes: list[Change] = []
    for _, old, new in writes:
        if old is not None:
            changes.append((old, -1))
        if new is not None:
            changes.append((new, 1))
    return changes


def _merged(row: Row, changes: Mapping[int, Value]) -> Row:
    merged = list(row)
    for position, value in changes.items():
        merged[position] = value
    return tuple(merged)


def check_table(name: str, used: TableRows, request: Request, tables: Tables) -> None:
    """The table may have changed since the transaction began: new indexes and added columns do no harm."""
    now = tables.by_name.get(name)
    if now is None or now.table.id != used.table.id:
        raise TransactionConflict(f"table {name!r} was dropped meanwhile", hint="run the transaction again")
    if now.codec is used.codec or now.table.columns == used.table.columns:
        return
    added = now.table.columns[len(used.table.columns) :]
    unfilled = any(not column.nullable and not column.has_default for column in added)
    if unfilled or now.table.columns[: len(used.table.columns)] != used.table.columns:
        raise TransactionConflict(f"the columns of table {name!r} changed meanwhile", hint="run the transaction again")
    intents = request.writes.get(name, {})
    for key, (expect, row, changes, touch) in intents.items():
        if row is not None:
            intents[key] = (expect, now.codec.pad(row), changes, touch)
