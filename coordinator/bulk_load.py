"""Bulk load into one table of an embedded node: staged in the store, then visible by one log record.

    begin    a checkpoint, so that the store knows which rows there are; `staged_ts` is drawn
    stage    batch by batch, while writers go on: cells and index entries into the store, where nobody sees them, and
             what the rows contribute to synchronous views, with look-ups as of a snapshot
    commit   under the engine's lock: nobody wrote one of the keys since, what was looked up still holds, the tables are
             as they were; then one record, in which the contributions are, too
    else     whatever goes wrong before leaves nothing

Deferred views that are made from the table are computed anew, because the log has not the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, cast
from zlib import crc32

from ..changetables.errors import IntegrityError, InternalError, TransactionConflict
from ..changetables.keys import table_range
from ..changetables.plan import Asking, Contribution, LookUp
from ..changetables.types import Row
from ..ltm.codec import make_pack
from ..ltm.ports import Staged
from ..ltm.reading import NEWEST
from ..ltm.tables import TableRows, ViewRows
from ..ltm.versions import TableVersions
from .embedded import Engine

if TYPE_CHECKING:
    from ..changetables.evaluators.columns import ArrowTable
    from ..ltm.bulk_cells import Encoder, Items

#: Rows that go to the store in one durable write: some hundred milliseconds, for which no checkpoint begins.
WRITE_ROWS = 250_000
#: Its readers have numbers of their own.
_READER = -(1 << 54)
_readers = count(1)
#: As the store has them: see `ltm/store/lmdb.py`.
_VALUE = b"\1"


class Batch(NamedTuple):
    """Rows in the engine's form: as tuples, or in the physical columns of the table."""

    rows_count: int
    rows: list[Row] | None
    columns: ArrowTable | None


class Deferred(NamedTuple):
    """What a load needs of whoever refreshes deferred views: those made from a table, and a way to hold them."""

    made_from: Callable[[int], list[str]]
    held: Callable[[Iterable[str]], AbstractContextManager[object]]


def can_stage(engine: Engine, table: TableRows) -> bool:
    """Whether a table takes a staged load. Views that others are made from and UNIQUE constraints have to see what is
    there, row by row: that is a transaction's work."""
    ready = all(entries.index.ready for entries in table.indexes)
    plain = ready and not table.table.uniques and not table.codec.has_row_id and all(map(_adds_up, table.views))
    return plain and engine.several is None and engine.ltm.staging.possible


def _adds_up(view: ViewRows) -> bool:
    """Whether a view of the table changes by what its new rows contribute, each for itself, and nobody has to be told.
    Who only looks for minima and maxima in it finds them when he looks."""
    plan, readers = view.plan, view.views
    if plan.kept.slice_of or (plan.extremes and view.is_read):
        return False
    if any(len(part.graph.sources) != len({source.table for source in part.graph.sources}) for part in plan.kept.parts):
        return False  # joined with itself: new rows may find each other
    made_from = {source.table for reader in readers for part in reader.plan.kept.parts for source in part.graph.sources}
    return view.view.name not in made_from and not any(reader.plan.kept.slice_of for reader in readers)


def bulk_load(
    engine: Engine, table: TableRows, batches: Iterator[Batch], deferred: Deferred, on_rows: Callable[[int], object]
) -> tuple[int, int]:
    """Load all rows of the batches; (rows, commit_ts)."""
    reader = _READER - next(_readers)
    engine.checkpoint()
    at = engine.ltm.horizon.pin(reader)
    try:
        loading = _Loading(engine, table, at)
        try:
            loading.stage(batches, on_rows)
            return loading.rows_count, loading.commit(deferred)
        except BaseException:
            loading.take_back()
            raise
    finally:
        engine.ltm.horizon.unpin(reader)
        with engine.ltm.lock:
            engine.ltm.staging.passed(engine.ltm.horizon.oldest())


class _Twice(Exception):
    """A key of the load was staged already."""


class _Loading:
    """One load under way. `at`: the snapshot at which its look-ups are answered."""

    def __init__(self, engine: Engine, table: TableRows, at: int) -> None:
        self._engine, self._ltm = engine, engine.ltm
        self._table, self._at = table, at
        self._tables = engine.ltm.tables
        self.rows_count = 0
        self._lowest = self._highest = b""
        #: By view: what all rows so far contribute, by key.
        self._contributions: dict[int, dict[bytes, Contribution]] = {view.view.id: {} for view in table.views}
        #: What was looked up: it must still hold at the commit.
        self._keys: set[tuple[int, bytes]] = set()
        self._ranges: set[tuple[int, bytes, bytes]] = set()
        self._pack = make_pack()
        self._encoder: Encoder | None = None
        ids = [table.table.id, *(entries.index.id for entries in table.indexes)]
        with engine.storing():
            with self._ltm.lock:
                staged_ts = engine.draw_ts()
                #: No key above it is in the store, or will be but by checkpoints, which are heard of.
                self._stored_max = table.versions.stored_max
                self._load, begun = self._ltm.staging.begin(staged_ts, ids)
            try:
                self._ltm.staging.note_begun(begun)
            except BaseException:
                with self._ltm.lock:
                    self._ltm.staging.forget(self._load)
                raise
        self._suffix = (NEWEST - staged_ts).to_bytes(8, "big")

    # -- staging

    def stage(self, batches: Iterator[Batch], on_rows: Callable[[int], object]) -> None:
        waiting: list[Batch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(each.rows_count for each in waiting) >= WRITE_ROWS:
                self._stage_all(waiting)
                on_rows(self.rows_count)
                waiting = []
        self._stage_all(waiting)
        on_rows(self.rows_count)

    def _stage_all(self, batches: list[Batch]) -> None:
        try:
            with self._engine.storing(), self._ltm.staging.writing() as writing:
                for batch in batches:
                    self._stage(writing, batch)
        except _Twice:
            raise self._twice(batches) from None
        for batch in batches:
            self._contribute(batch)
            self.rows_count += batch.rows_count

    def _stage(self, writing: Staged, batch: Batch) -> None:
        cells, entries = self._encoded(batch)
        if not cells:
            return
        keys = [cell_key[:-8] for cell_key, _ in cells] if cells[0][0][:-8] <= self._stored_max else []
        self._check_absent(keys)
        if writing.stage(cells) < len(cells):
            raise _Twice
        for some in entries:
            writing.stage(some)
        lowest, highest = cells[0][0][:-8], cells[-1][0][:-8]
        self._lowest = min(self._lowest or lowest, lowest)
        self._highest = max(self._highest, highest)

    def _encoded(self, batch: Batch) -> tuple[Items, list[Items]]:
        table = self._table
        if batch.columns is not None:
            from ..ltm.bulk_cells import Encoder  # it needs pyarrow, which is optional

            if self._encoder is None:
                self._encoder = Encoder(table.table, self._load.staged_ts)
            made = self._encoder.encode(batch.columns)
            if made is not None:
                return made
        rows = self._rows(batch)
        if table.check is not None:
            for row in rows:
                table.check(row)
        keys = table.codec.keys_of(rows)
        pack = self._pack
        cells = self._sealed(keys, [pack(row) for row in rows])
        entries = []
        for index in table.indexes:
            entry = index.codec.entry
            entries.append(self._sealed([entry(row, key) for row, key in zip(rows, keys, strict=True)], keys))
        return cells, entries

    def _rows(self, batch: Batch) -> list[Row]:
        if batch.rows is not None:
            return batch.rows
        from ..ltm.bulk_cells import rows_of

        return rows_of(batch.columns, self._table.table)

    def _sealed(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Items:
        items = []
        for key, value in zip(keys, values, strict=True):
            cell_key, body = key + self._suffix, value + _VALUE
            items.append((cell_key, body + crc32(body, crc32(cell_key)).to_bytes(4, "little")))
        items.sort(key=itemgetter(0))
        return items

    def _check_absent(self, keys: list[bytes]) -> None:
        """No row may be there, as far as the store tells; what is only in memory is looked at in the end."""
        if keys:
            newest = self._table.versions.newest
            for key, cell in zip(keys, self._ltm.stored(keys), strict=True):
                if cell is not None and cell.value is not None:
                    known = newest(key)
                    if known is None or known[1] is not None:
                        raise self._exists(key)

    def _twice(self, batches: list[Batch]) -> IntegrityError:
        seen: set[bytes] = set()
        for batch in batches:
            for key in (cell_key[:-8] for cell_key, _ in self._encoded(batch)[0]):
                if key in seen or self._ltm.staging.has(self._load, key):
                    return self._exists(key)
                seen.add(key)
        raise InternalError("a load has a key twice, but none is found", hint="please report this")

    def _exists(self, key: bytes) -> IntegrityError:
        values = ", ".join(map(repr, self._table.codec.keys.decode(key)))
        return IntegrityError(
            f"row {values} of table {self._table.table.name!r} exists already, or comes twice",
            hint="a load only inserts; use upsert in transactions to change rows",
        )

    # -- views

    def _contribute(self, batch: Batch) -> None:
        """Add up what the rows contribute to synchronous views."""
        for view in self._table.views:
            known = self._contributions[view.view.id]
            for part, source in view.plan.places_of(self._table.table.name):
                for item in self._answered(_contributing(view, part, source, batch, self._rows)):
                    before = known.get(item.key)
                    if before is None:
                        known[item.key] = item
                    elif (both := view.plan.combine(before, item)) is not None:
                        known[item.key] = both
                    else:
                        del known[item.key]

    def _answered(self, asking: Asking[list[Contribution]]) -> list[Contribution]:
        answers: list[Sequence[object]] | None = None
        while True:
            try:
                wanted = next(asking) if answers is None else asking.send(answers)
            except StopIteration as finished:
                return cast("list[Contribution]", finished.value)
            for look_up in wanted:
                self._note_read(look_up)
            answers = [self._ltm.answer(look_up, self._tables, self._at, self._at) for look_up in wanted]

    def _note_read(self, look_up: LookUp) -> None:
        source = self._tables.source(look_up.table)
        table_id = source.table.id
        if isinstance(source, ViewRows):
            # Its minima and maxima change without its rows.
            ids = (values.view.id for values in source.values)
            self._ranges.update((values_id, *table_range(values_id)) for values_id in ids)
        if look_up.index is None:
            self._keys.update((table_id, key) for key in look_up.keys)
        else:
            # Rows were found in other ways than by their keys: none of the table may change.
            self._ranges.add((table_id, *table_range(table_id)))

    # -- the end

    def commit(self, deferred: Deferred) -> int:
        ltm, table_id = self._ltm, self._table.table.id
        names = deferred.made_from(table_id)
        with deferred.held(names), ltm.lock:
            self._engine.check_alive()
            self._check_tables(sorted(names) == sorted(deferred.made_from(table_id)))
            self._check_beside()
            self._check_reads()
            contributions = tuple(
                (view_id, list(found.values())) for view_id, found in self._contributions.items() if found
            )
            given_up = tuple(ltm.tables.views[name].view.id for name in names)
            return self._engine.commit_load(self._load, self.rows_count, contributions, given_up)

    def _check_tables(self, same_deferred: bool) -> None:
        now = self._ltm.tables.by_name.get(self._table.table.name)
        same_views = now is not None and [view.plan for view in now.views] == [view.plan for view in self._table.views]
        # Somebody may be made from one of its views by now, and would have to be told.
        can = now is not None and can_stage(self._engine, now)
        if now is None or now.table != self._table.table or not (same_views and same_deferred and can):
            raise TransactionConflict(
                f"table {self._table.table.name!r} or its views were changed during the load", hint="load it again"
            )

    def _check_beside(self) -> None:
        """Nobody wrote a key of the load since it began."""
        versions = cast("TableVersions[object]", self._table.versions)
        staging = self._ltm.staging
        for key in staging.written_beside(self._load, versions):
            if self._lowest <= key <= self._highest and staging.has(self._load, key):
                newest = self._ltm.loaded(self._table.versions.newest_rows, [key])[0]
                if newest is not None:
                    raise self._exists(key)
                raise TransactionConflict("another transaction wrote a row of the load", hint="load it again")

    def _check_reads(self) -> None:
        keys, ranges = self._keys, list(self._ranges)
        changed = self._ltm.participant.changed_since(self._at, keys, ranges)
        if changed is not None or self._ltm.changed_in_store(self._at, keys, ranges):
            raise TransactionConflict(
                "another transaction changed rows that a view joins the load with", hint="load it again"
            )

    def take_back(self) -> None:
        """What was staged goes, unless the database has stopped: then the next start removes it. What is committed
        stays, if the interrupt came after that."""
        if not self._engine.failed and not self._ltm.staging.is_loaded(self._load):
            with self._engine.storing():
                self._ltm.staging.unstage(self._load)
                with self._ltm.lock:
                    self._ltm.staging.forget(self._load)


def _contributing(
    view: ViewRows, part: int, source: int, batch: Batch, rows_of: Callable[[Batch], list[Row]]
) -> Asking[list[Contribution]]:
    if batch.columns is not None:
        return view.plan.contribute_columns(part, source, batch.columns)
    return view.plan.contribute_from(part, source, rows_of(batch))
