"""Drives one LTM on real parts: its commit log, its store and its memory.

    commit      record -> log buffer -> memory (visible to the next transaction) -> flush -> acknowledged
    checkpoint  dirty layer frozen -> written to the store in one synced transaction, in slices -> log trimmed
    recovery    store + log records after the checkpoint

One thread at a time calls the writing methods: whoever holds `lock`. Reads need no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, cast

from ..changetables.errors import DataError, OperationalError
from ..changetables.keys import prefix_stop, table_range
from ..changetables.plan import (
    FIRST,
    LAST,
    STATES,
    TOP,
    WHOLE_TABLE,
    Answers,
    LookUp,
    top_count,
)
from ..changetables.types import Row
from .bulk_staging import Staging
from .catalog import Catalog, catalog_from_plain, catalog_to_plain
from .codec import make_pack, pack, unpack, unpack_stream
from .fair_lock import FairLock
from .history import CATALOG as _CATALOG
from .history import COMMIT as _COMMIT
from .history import History, first_stamped, passed_lsn, place_before
from .loads import LOADED, Loaded, loaded_of_plain
from .logged import commit_of_plain, contributions_in, plain_commit, plain_inserts
from .outputs import CommitRecord, Outputs, Write
from .participant import Inserts, OwnRows, Participant, own_rows
from .ports import (
    BulkStore,
    Cell,
    CommitLog,
    CountingStore,
    ElsewhereFailed,
    LoggedRows,
    LogInFiles,
    LogPart,
    NamingStore,
    Store,
    WriteElsewhere,
)
from .reading import NEWEST, Reader
from .steps import (
    REFRESHED,
    SHOWN,
    Cut,
    Dropped,
    Opened,
    Published,
    Refreshed,
    Shown,
    StepId,
    StepRecord,
    contributions_of_plain,
    plain_step,
    put_back,
    put_shown,
    refreshed_rows,
    rows_count,
    step_of_plain,
)
from .tables import IndexEntries, TableRows, Tables, ViewRows
from .versions import ABSENT, Horizon, IndexVersions, Noted, NotLoaded, TableVersions, Version

if TYPE_CHECKING:
    from ..changetables.evaluators.columns import ArrowTable

#: Cells encoded and written while writers wait, at least: about 0.3 ms of their time; and at most.
SLICE_CELLS_MIN = 100
SLICE_CELLS_MAX = 2_000
#: A checkpoint writes so many cells for each row that writers write meanwhile: it must end before the next is due.
SLICE_CELLS_PER_ROW = 3
#: Changed rows whose index entries are made while writers wait, at least: about 0.4 ms of their time.
FOLD_ROWS = 200
#: Log bytes since the last checkpoint that start the next one, whatever the number of rows.
CHECKPOINT_LOG_BYTES = 32 * 2**20
#: The log record of one transaction; a flush may hold a few that are as large, well below what the log takes.
TRANSACTION_BYTES_MAX = 256 * 2**20
#: A flush is not made longer than this by adding further transactions.
FLUSH_BYTES = 16 * 2**20
#: Log bytes after which the next segment is prepared.
SPARE_LOG_BYTES = 2**20
#: Changed rows from which on a checkpoint is written by another process: below, its start (0.2 s) is not worth it.
ELSEWHERE_ROWS_MIN = 20_000
#: Rows sent to it at once: about 0.5 ms.
SENT_ROWS = 1_000
#: Superseded versions removed from the store in one go.
PRUNE_CELLS = 500
#: One checkpoint removes so many of them at the least, and so many for each row that it writes: more than it adds. A
#: reader that was at work for long may leave millions, and writers wait for a checkpoint that takes too long.
PRUNE_CELLS_MIN = 2_000
PRUNE_CELLS_PER_ROW = 8
#: Cells read from the store at once by a scan.
PAGE_CELLS = 256

#: The meta entry with the timestamps at which other processes may read the store. One that is not there any more, or
#: never was, may show less than there was at it.
SHARED_PINS = "shared_pins"
#: The meta entry with the last record of each of several LTMs' logs: everything up to it is in the store.
LTM_LSNS = "ltm_lsns"
#: Cells that are counted at once.
COUNTED_CELLS = 10_000

#: Moments at which steps may end: every write that replaces a row looks at them.
CUTS_MAX = 32
#: The pins of steps: beyond those of watermarks, which are timestamps.
_STEP_READER = -(1 << 62)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
#: Half the time of calling Cell.
make_cell = partial(tuple.__new__, Cell)


class _Order(NamedTuple):
    """The keys of something small, in order, as long as its layers are these and have no new keys."""

    epoch: int
    dirty: dict[bytes, Version[Any]]
    rows_count: int
    frozen: dict[bytes, Version[Any]]
    keys: list[bytes]


#: The same of a slot.
_LoggedSlot: TypeAlias = tuple[int, StepId, int, int, tuple[tuple[int, tuple[tuple[bytes, Row, Row], ...]], ...]]


class StepTooLarge(DataError):
    """One record of a step does not fit into the log. Nothing has changed."""


def too_large(size: int) -> DataError:
    return DataError(
        f"the transaction is too large: {size} bytes, at most {TRANSACTION_BYTES_MAX}",
        hint="write it in several transactions",
    )


class Ltm(Reader):
    """One local transaction manager in this process."""

    horizon: Horizon
    lock: FairLock

    def __init__(self, log: CommitLog, store: Store, cache_rows: int, on_report: Callable[[str], None]) -> None:
        self.lock = FairLock()
        self.horizon = Horizon()
        #: Those of the participant; written out, because everybody asks for them all the time.
        self.tables = Tables(Catalog(), self.horizon)
        self.participant = Participant(self.tables)
        self._log = log
        self._store = store
        if isinstance(store, NamingStore):
            store.name_cell = lambda table_id, key: self.tables.cell_name(table_id, key)
        self.staging = Staging(store)
        self._report = on_report
        self._checkpoint_rows = max(1, cache_rows // 4)
        self._pack = make_pack()
        self._buffer: list[bytes] = []
        self._buffer_ts = 0
        self._buffer_bytes = 0
        self._dirty_rows = 0
        self._slice_rows = 0
        self._dirty_log_bytes = 0
        self._spare_log_bytes = 0
        self._loaded_rows = 0
        self._elsewhere = True
        self._load_epoch = 0
        #: Counts what changes the keys of the store, and the keys of small tables as of such a count.
        self._store_epoch = 0
        self._small_ranges: dict[tuple[bytes, bytes], tuple[int, dict[bytes, Cell | None]]] = {}
        self._small_orders: dict[int, _Order] = {}
        #: Is told every committed record, in order: deferred views are refreshed from them.
        self.feed: Callable[[CommitRecord], None] | None = None
        #: Of each deferred view: every change above its watermark comes after this lsn. None: the log has not all of
        #: them any more, and only a batch refresh helps.
        self.positions: dict[int, int | None] = {}
        #: Moments at which steps of views that are far behind may end, oldest first. Rows are kept as of them.
        self.cuts: deque[Cut] = deque()
        #: The same for views whose contents are being computed, by whoever does it.
        self.log_pins: dict[int, int] = {}
        #: Bytes that were ever written to the log since it was opened.
        self.log_bytes = 0
        #: How much of the log is kept for those who want to hear of changes again; None: nothing.
        self.history: History | None = None
        #: As of the last checkpoint: log records up to here are not kept for them.
        self.history_lsn = 0
        #: When each of the dropped tables, indexes and views was dropped.
        self._dropped_ts: dict[int, int] = {}
        #: Every version at or below it is in the store; every log record up to the lsn too.
        self.stored_ts = 0
        self._stored_lsn = 0
        #: The last record of each LTM's log, by its name, where there are several. It is asked under the lock.
        self.ltm_lsns: Callable[[], dict[str, int]] = dict
        #: The timestamps at which other processes read the store, by reader; each is pinned, too.
        self._shared_pins: dict[int, int] = {}
        self.replayed_count = 0
        #: The transactions that recovery found in the log.
        self.replayed_tx_ids: set[tuple[int, int]] = set()

    # -- commit

    def accept(self, outputs: Outputs) -> None:
        """Buffer what is to be persisted, and apply it: the next transaction sees it. What `outputs` sends may leave
        after the next `flush`.

        DataError comes before anything has changed. After any other error memory may be wrong, but the log is not.
        """
        record, apply = outputs
        packed = self._pack(plain_commit(record))
        if len(packed) > TRANSACTION_BYTES_MAX:
            raise too_large(len(packed))
        apply()
        self._buffer_record(packed, record)

    def _buffer_record(self, packed: bytes, record: CommitRecord) -> None:
        _, commit_ts, _, writes, contributions = record
        for _, rows in writes:
            self._dirty_rows += len(rows)
        for _, refreshed in contributions:
            self._dirty_rows += len(refreshed)
        self._buffer.append(packed)
        self._buffer_bytes += len(packed)
        if commit_ts > self._buffer_ts:
            self._buffer_ts = commit_ts
        if self.feed is not None:
            self.feed(record)

    def accept_inserts(self, inserts: Inserts) -> None:
        """`accept` of inserts into one table, in few steps: after each sync the processor's caches are cold."""
        tx_ids, commit_ts, table, keys, rows, contributions, refreshed = inserts
        version, table_id = self.tables.catalog.version, table.table.id
        packed = self._pack(plain_inserts(tx_ids, commit_ts, version, table_id, keys, rows, contributions))
        if len(packed) > TRANSACTION_BYTES_MAX:
            raise too_large(len(packed))
        self.participant.insert(table, keys, rows, refreshed, commit_ts)
        self._dirty_rows += len(keys)
        for _, writes in refreshed:
            self._dirty_rows += len(writes)
        self._buffer.append(packed)
        self._buffer_bytes += len(packed)
        if commit_ts > self._buffer_ts:
            self._buffer_ts = commit_ts
        if self.feed is not None:
            self.feed(inserts.record(version))

    def accept_load(self, loaded: Loaded, outputs: Outputs) -> None:
        """As `accept`, of the transaction that makes the rows of a bulk load visible, and apply it: both are in one
        flush. DataError comes before anything has changed."""
        self.accept(outputs)
        packed = pack((LOADED, *loaded))
        self._buffer.append(packed)
        self._buffer_bytes += len(packed)
        self._show_load(loaded)

    def _show_load(self, loaded: Loaded) -> None:
        self.staging.show(loaded, self.tables.versions)
        self._load_epoch += 1
        self._store_epoch += 1
        for view_id in loaded.given_up:
            if view_id in self.positions:
                self.positions[view_id] = None

    def accept_decided(self, record: CommitRecord) -> None:
        """Buffer a transaction that is decided and applied already: nothing may refuse it. A buffer that is full goes
        to the log; readers see none of it before the next `flush`."""
        self._buffer_record(self._pack(plain_commit(record)), record)
        if self.flush_full:
            self._append_buffer()

    def packed_bytes(self, record: CommitRecord) -> int:
        """How large a transaction would be in the log."""
        return len(self._pack(plain_commit(record)))

    def accept_step(self, record: StepRecord) -> None:
        """Buffer a record of a deferred view's step and apply it. The caller holds the lock; publishing is for after
        the next `flush`, because a reader may see it at once.

        DataError comes before anything has changed.
        """
        packed = pack(plain_step(record))
        if len(packed) > TRANSACTION_BYTES_MAX:
            raise StepTooLarge(
                f"a step of a deferred view is too large: {len(packed)} bytes, at most {TRANSACTION_BYTES_MAX}",
                hint="it is refreshed by a batch instead",
            )
        rows = self.loaded(refreshed_rows, record, self.tables) if isinstance(record, Refreshed) else []
        self._buffer.append(packed)
        self._buffer_ts = max(self._buffer_ts, self.horizon.durable_ts)
        self._buffer_bytes += len(packed)
        self._apply_step(record, rows)

    def _apply_step(self, record: StepRecord, rows: list[tuple[ViewRows, list[Write]]]) -> None:
        self._dirty_rows += rows_count(record)
        match record:
            case Refreshed():
                for view, writes in rows:
                    view.versions.put_many([write for write in writes if write[1:] != (None, None)], record.step[1])
            case Shown():
                put_shown(record, self.tables)
            case Dropped():
                put_back(record, self.tables)
                self.horizon.unpin(_STEP_READER - record.views[0])
            case Opened():
                self.pin_step(record)
            case Cut():
                self._keep_cut(record)
            case Published():
                pass  # what it says concerns readers

    def _keep_cut(self, cut: Cut) -> None:
        self.cuts.append(cut)
        self.horizon.pins[cut.commit_ts] = cut.commit_ts
        if len(self.cuts) > CUTS_MAX:
            # Every other one goes: the steps of a view that is so far behind are longer.
            gone = [self.cuts[number] for number in range(0, len(self.cuts), 2)]
            self.cuts = deque(each for each in self.cuts if each not in gone)
            for each in gone:
                self.horizon.unpin(each.commit_ts)

    def drop_cuts(self, lowest: int) -> None:
        """All deferred views are at `lowest` or above it: no step will end there any more."""
        while self.cuts and self.cuts[0].commit_ts <= lowest:
            self.horizon.unpin(self.cuts.popleft().commit_ts)

    def pin_step(self, opened: Opened) -> None:
        """A step reads its sources as of its W0, which is pinned as their watermark, and as of its W1."""
        self.horizon.pins[_STEP_READER - opened.views[0]] = opened.w1

    def publish(self, record: Published) -> None:
        """Readers of these views read at W1 from now on."""
        self.set_watermarks(record.views, record.w1, record.position)
        self.horizon.unpin(_STEP_READER - record.views[0])

    def set_watermarks(self, views: Iterable[int], watermark: int, position: int | None) -> None:
        for view_id in views:
            view = self.tables.views_by_id.get(view_id)
            if view is not None:
                view.versions.horizon.publish(watermark)
                for entries in view.indexes:
                    entries.versions.horizon.publish(watermark)
                self.positions[view_id] = position
        self._pin_watermarks()

    def _pin_watermarks(self) -> None:
        """Base rows stay as they are at each watermark: the next step begins there."""
        marks = {view.versions.horizon.durable_ts for view in self.tables.views.values() if view.view.deferred}
        self.horizon.watermarks.ts = tuple(sorted(marks - {0}))

    @property
    def last_lsn(self) -> int:
        return self._log.last_lsn

    @property
    def stored_lsn(self) -> int:
        """Every log record up to it is in the store."""
        return self._stored_lsn

    def read_log(self, after_lsn: int) -> Iterator[tuple[int, CommitRecord | StepRecord]]:
        """The transactions and steps after a place in the log, with the lsn of their flush."""
        for record in self._log.read(after_lsn + 1):
            for item in unpack_stream(record.payload):
                if item[0] == _COMMIT:
                    yield record.lsn, commit_of_plain(item)
                elif item[0] not in (_CATALOG, LOADED):
                    yield record.lsn, step_of_plain(item)

    def read_loads(self, after_lsn: int, up_to_lsn: int) -> Iterator[Loaded]:
        """The bulk loads in a part of the log: what they loaded is not in it."""
        for record in self._log.read(after_lsn + 1):
            if record.lsn > up_to_lsn:
                return
            yield from (loaded_of_plain(item) for item in unpack_stream(record.payload) if item[0] == LOADED)

    def read_contributions(
        self, after_lsn: int, up_to_lsn: int, view_ids: frozenset[int]
    ) -> Iterator[tuple[int, CommitRecord | StepRecord]]:
        """As `read_log`, for whoever wants contributions to these views only: transactions and slots have nothing else,
        and those without any are left out. So is what views show."""
        for record in self._log.read(after_lsn + 1):
            if record.lsn > up_to_lsn:
                return
            for item in unpack_stream(record.payload):
                if item[0] == _COMMIT:
                    commit = contributions_in(item, view_ids)
                    if commit is not None:
                        yield record.lsn, commit
                elif item[0] == REFRESHED:
                    _, step, level, slot, parts = cast(_LoggedSlot, item)
                    wanted = tuple(part for part in parts if part[0] in view_ids)
                    if wanted:
                        yield record.lsn, Refreshed(step, level, slot, contributions_of_plain(wanted))
                elif item[0] not in (_CATALOG, SHOWN, LOADED):
                    yield record.lsn, step_of_plain(item)

    def place_before(self, ts: int) -> int | None:
        """A place in the log after which everything above `ts` comes; None: some of that was trimmed."""
        return place_before(self._log, ts)

    def was_trimmed(self, after_lsn: int) -> bool:
        """Whether the log has not everything any more that came after a place."""
        return self._log.oldest_lsn > after_lsn + 1

    def oldest_ts(self) -> int | None:
        """The lowest timestamp whose place is in the log."""
        first = first_stamped(self._log, self._log.oldest_lsn)
        return None if first is None else first.ts

    def _needed_lsn(self) -> int:
        """The last log record that nobody needs any more but, perhaps, recovery."""
        kept = [position for position in self.positions.values() if position is not None]
        return min([*kept, *self.log_pins.values(), self.history_lsn])

    def bytes_after(self, lsn: int) -> int:
        """About how many bytes the log has after a place."""
        return self._log.bytes_since(lsn + 1)

    def log_kept(self) -> tuple[int, int]:
        """The oldest log record that is kept, for whatever reason, and about how many bytes follow."""
        oldest_lsn = self._log.oldest_lsn
        return oldest_lsn, self._log.bytes_since(oldest_lsn)

    def flush(self) -> None:
        """Make the log buffer durable: one flush, one log record, one sync."""
        if self._buffer:
            # Not before: of what was applied since the last flush only the last version of a row has to be kept.
            self.horizon.sealed_ts = self._buffer_ts
            self._append_buffer()
        if self.horizon.durable_ts < self._buffer_ts:
            self.horizon.sealed_ts = self.horizon.durable_ts = self._buffer_ts
        if self._loaded_rows > self._checkpoint_rows:
            self._age_if_full()

    def _append_buffer(self) -> None:
        payload = b"".join(self._buffer)
        self._buffer.clear()
        self._dirty_log_bytes += self._buffer_bytes
        self._spare_log_bytes += self._buffer_bytes
        self._buffer_bytes = 0
        self._log.append(payload)
        self.log_bytes += len(payload)

    def wrote_unlogged(self, rows_count: int) -> None:
        """Versions were put without a log record (contents of a new view or index): they too call for a checkpoint."""
        self._dirty_rows += rows_count

    def prepared_catalog(self, changed: Catalog | Tables, ts: int) -> tuple[Tables, bytes]:
        """A new catalog, compiled, unless it is already, and packed: what cannot be must not be in the log. Nothing has
        changed yet."""
        tables = changed if isinstance(changed, Tables) else Tables(changed, self.horizon, self.tables)
        return tables, pack((_CATALOG, ts, self._stored_lsn, catalog_to_plain(tables.catalog)))

    def change_catalog(self, prepared: tuple[Tables, bytes], ts: int, published: Sequence[Published] = ()) -> None:
        """Log a new catalog, durable at once, and go on with it; with it come the watermarks that deferred views have
        from now on. Whatever is raised here is a failure."""
        tables, packed = prepared
        self._buffer.append(packed)
        self._buffer += [pack(plain_step(record)) for record in published]
        self._buffer_ts = ts
        self.flush()
        self._adopt(tables)
        for record in published:
            self.publish(record)

    def _adopt(self, tables: Tables) -> None:
        """Go on with a new catalog. A reader that has the new tables must find whole rows, so those come first; one
        that still has the old tables cuts rows that are longer."""
        before, catalog = self.tables, tables.catalog
        self._load_epoch += 1
        self._small_ranges.clear()
        self._small_orders.clear()
        for table_id, rows in tables.by_id.items():
            known = before.by_id.get(table_id)
            if known is not None and len(known.table.columns) != len(rows.table.columns):
                rows.versions.transform(rows.codec.pad)
        for dropped in catalog.dropped:
            self._dropped_ts.setdefault(dropped, self.horizon.durable_ts)
        # First: whoever has the new tables must pin where the views are now.
        self._adopt_modes(tables)
        self.participant.tables = self.tables = tables
        self._pin_watermarks()

    def _adopt_modes(self, tables: Tables) -> None:
        """A view that was switched between sync and deferred has another horizon; its rows are as of now."""
        for view_id, rows in tables.views_by_id.items():
            shared = rows.versions.horizon is self.horizon
            if rows.view.deferred and shared:
                own = Horizon(self.horizon)
                own.publish(self.horizon.durable_ts)
                self._set_horizon(rows, own)
            elif not rows.view.deferred and not shared:
                self._set_horizon(rows, self.horizon)
            if not rows.view.deferred:
                self.positions.pop(view_id, None)
        for gone in self.positions.keys() - tables.views_by_id.keys():
            del self.positions[gone]

    def _set_horizon(self, rows: ViewRows, horizon: Horizon) -> None:
        rows.versions.horizon = horizon
        for entries in rows.indexes:
            entries.versions.horizon = horizon

    @property
    def flush_full(self) -> bool:
        return self._buffer_bytes >= FLUSH_BYTES

    @property
    def at_rest(self) -> bool:
        """Whether surely neither a checkpoint nor a log segment is wanted: asked after every flush."""
        return (
            self._spare_log_bytes < SPARE_LOG_BYTES
            and self._dirty_rows < self._checkpoint_rows
            and self._dirty_log_bytes < CHECKPOINT_LOG_BYTES
        )

    @property
    def log_wants_spare(self) -> bool:
        """A small database never needs a second log segment, so none is made before it has written something."""
        return self._spare_log_bytes >= SPARE_LOG_BYTES and self._log.wants_spare

    def prepare_log(self) -> None:
        """Make the next log segment ahead of need; called in the background."""
        self._spare_log_bytes = 0
        try:
            self._log.prepare()
        except OperationalError as error:
            # The log is still whole: the flush that needs the segment tries again, and says if it cannot have it.
            self._report(str(error))

    def load(self, need: NotLoaded) -> None:
        """Bring rows into memory that a machine asked for."""
        versions = self.tables.versions[need.table_id]
        for key, cell in zip(need.keys, self._store.get_many(need.keys, NEWEST), strict=False):
            versions.admit(key, _version(versions, cell))
        for prefix in need.prefixes:
            entries = self._stored_range(prefix, prefix_stop(prefix), NEWEST)
            found = [(cell.key, cell.value) for cell in entries if cell.value is not None]
            cast(IndexVersions, versions).admit_prefix(prefix, found)
            self._loaded_rows += len(found)
        self._loaded_rows += len(need.keys)

    def loaded(self, call: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Repeat a call on the participant until everything that it needs is in memory."""
        while True:
            try:
                return call(*args)
            except NotLoaded as need:
                self.load(need)

    def look_up(self, look_ups: list[LookUp], own: OwnRows) -> Answers:
        """The newest rows for a transaction. The caller holds the lock."""
        name, index, keys, state = look_ups[0]
        if len(look_ups) == 1 and index is None and not state and name in self.tables.by_name:
            # The common case: rows of a table by their keys, as they were.
            return [self.loaded(self.tables.by_name[name].versions.newest_rows, keys)]
        computed = self.tables.computed
        for table, index, _, _ in look_ups:
            if (index is not None and index < STATES) or index == WHOLE_TABLE or table in computed:
                return [self._look_up(look_up, own) for look_up in look_ups]
        return self.loaded(self.participant.look_up, look_ups, own)

    def _look_up(self, look_up: LookUp, own: OwnRows) -> Sequence[object]:
        mine = own_rows(own, look_up)
        rows = self.tables.source(look_up.table)
        if look_up.index in (FIRST, LAST):
            assert isinstance(rows, ViewRows), "only hidden views have groups of values"
            return [self.extreme(rows, prefix, NEWEST, look_up.index == LAST, mine) for prefix in look_up.keys]
        if look_up.index == WHOLE_TABLE:
            found = [row for key, row in self.shown(rows, *table_range(rows.table.id), NEWEST) if key not in mine]
            found += [row for row in mine.values() if row is not None]
            return [found] * len(look_up.keys)
        if look_up.index == TOP:
            assert isinstance(rows, ViewRows), "only a view is kept in order"
            return [self.first_rows(rows, top_count(key), NEWEST, mine) for key in look_up.keys]
        if look_up.index is not None or look_up.table not in self.tables.computed:
            return self.loaded(self.participant.look_up, [look_up], own)[0]
        assert isinstance(rows, ViewRows), "only a view can be computed"
        states = self.loaded(rows.versions.newest_rows, look_up.keys)
        return [
            mine[key] if key in mine else self.show(rows, state, NEWEST)
            for key, state in zip(look_up.keys, states, strict=True)
        ]

    def edge(
        self, versions: TableVersions[T], start: bytes, stop: bytes, at: int, last: bool
    ) -> Iterator[tuple[bytes, T]]:
        """As `scan`, or from the last key back, for whoever wants only the first few."""
        # Memory before the store: what a checkpoint moves meanwhile is then seen twice, never missed.
        moving = versions.keys_between(start, stop)
        position = len(moving) - 1 if last else 0
        step = -1 if last else 1
        stored = self._stored_edge(versions, start, stop, last)
        while True:
            waiting = moving[position] if 0 <= position < len(moving) else None
            if waiting is None and stored is None:
                return
            if stored is None or (waiting is not None and (waiting > stored if last else waiting < stored)):
                key = cast(bytes, waiting)
            else:
                key = stored
            if key == waiting:
                position += step
            if key == stored:
                bounds = (start, key) if last else (key + b"\0", stop)
                stored = self._stored_edge(versions, *bounds, last)
            row = self.read(versions, key, at)
            if row is not None:
                yield key, row

    def _stored_edge(self, versions: TableVersions[T], start: bytes, stop: bytes, last: bool) -> bytes | None:
        if start > versions.stored_max or start >= stop:
            return None
        if last:
            return self._store.max_key(start, stop)
        found = self._store.scan(start, stop, NEWEST, 1)
        return found[0].key if found else None

    def _age_if_full(self) -> None:
        """When many rows were loaded, begin a new generation. Never in the middle of a transaction: what it loaded
        first would be gone before it has loaded the rest."""
        if self._loaded_rows > self._checkpoint_rows:
            self._loaded_rows = 0
            self._load_epoch += 1
            for versions in self.tables.versions.values():
                versions.age()

    def changed_in_store(
        self, snapshot: int, keys: set[tuple[int, bytes]], ranges: list[tuple[int, bytes, bytes]]
    ) -> bool:
        """Did anything that was read at `snapshot` change, as far as the store tells? Only for transactions that were
        open over a checkpoint: versions above their snapshot may have left memory."""
        if snapshot >= max(self.stored_ts, self.staging.loaded_ts):
            return False
        cells = self._store.get_many([key for _, key in keys], NEWEST)
        if any(cell is not None and cell.commit_ts > snapshot for cell in cells):
            return True
        return any(
            cell.commit_ts > snapshot for _, start, stop in ranges for cell in self._stored_range(start, stop, NEWEST)
        )

    # -- reading at a timestamp (any thread; the caller holds a pin at or below it)

    def read(self, versions: TableVersions[T], key: bytes, at: int) -> T | None:
        version = versions.at(key, at)
        if version is None:
            return self._read_stored(versions, key, at)
        return version[1]

    def _read_stored(self, versions: TableVersions[T], key: bytes, at: int) -> T | None:
        epoch = self._load_epoch
        cell = self._store.get(key, NEWEST)
        if cell is not None and cell.commit_ts > at:
            return _version(versions, self._store.get(key, at))[1]
        version = _version(versions, cell)
        if self.lock.try_acquire():
            try:
                # Keep it for the next reader, unless a checkpoint or a new generation came between: it may be outdated.
                if epoch == self._load_epoch and versions.newest(key) is None:
                    versions.admit(key, version)
                    self._loaded_rows += 1
                    self._age_if_full()
            finally:
                self.lock.release()
        return version[1]

    def stored(self, keys: list[bytes]) -> list[Cell | None]:
        """The newest versions that the last checkpoint left in the store."""
        return self._store.get_many(keys, NEWEST)

    def newest_entries(self, entries: IndexVersions, keys: list[bytes]) -> list[bytes | None]:
        """The primary key that each of these entries holds, None where there is no entry. The caller holds the lock."""
        stored = self.stored(keys) if keys and min(keys) <= entries.stored_max else [None] * len(keys)
        found = []
        for key, cell in zip(keys, stored, strict=True):
            version = entries.dirty.get(key) or entries.frozen.get(key)
            found.append(version[1] if version is not None else None if cell is None else cell.value)
        return found

    def catch_up(self, entries: IndexVersions) -> None:
        """An index notes changes and makes its entries later: now."""
        if not entries.behind:
            return
        if self.lock.owned:
            entries.fold()
        else:
            with self.lock:
                entries.fold()

    def entries_at(self, entries: IndexVersions, prefix: bytes, at: int) -> list[bytes]:
        """The primary keys that an index has under `prefix`. Not by a scan, which would put all new keys in order."""
        self.catch_up(entries)
        # Memory before the store: what a checkpoint moves meanwhile is then seen twice, never missed.
        moving = entries.at_prefix(prefix, at)
        if prefix > entries.stored_max:
            found: dict[bytes, bytes | None] = moving
        else:
            found = {cell.key: cell.value for cell in self._stored_range(prefix, prefix_stop(prefix), at)}
            found.update(moving)
        return [key for _, key in sorted(found.items()) if key is not None]

    def horizon_of(self, view: ViewRows) -> Horizon:
        return view.versions.horizon

    def rows_as_of(self, rows: TableRows | ViewRows, keys: list[bytes], at: int) -> list[Row | None]:
        """The rows of a table, or those that a view shows, under these keys."""
        stored = rows.versions.each_at(keys, at, self.lock.owned)
        if stored is None:
            stored = [self.read(rows.versions, key, at) for key in keys]
        if isinstance(rows, TableRows):
            return stored
        return [self.show(rows, state, at) for state in stored]

    def scan(self, versions: TableVersions[T], start: bytes, stop: bytes, at: int) -> Iterator[tuple[bytes, T]]:
        """The visible rows of start <= key < stop in key order. Of an index, `catch_up` comes first."""
        # Memory before the store: what a checkpoint moves meanwhile is then seen twice, never missed.
        moving = versions.keys_between(start, stop)
        stored = self._stored_page(versions, start, stop)
        if len(moving) + len(stored) < PAGE_CELLS:
            rows = versions.rows_at(sorted({*moving, *stored}) if stored else moving, at)
            if rows is not None:
                return iter(rows)
        return self._scan_pages(versions, start, stop, at, moving, stored)

    def whole(self, versions: TableVersions[T], at: int) -> list[T] | None:
        """All visible rows in key order of what is small and in memory, else None: then `scan` it. A view that is read
        again and again has the same keys most of the time."""
        known = self._small_orders.get(versions.table_id)
        if (
            known is None
            or known.epoch != self._store_epoch
            or known.dirty is not versions.dirty
            or known.frozen is not versions.frozen
            or known.rows_count != len(known.dirty)
        ):
            known = self._ordered(versions)
            if known is None:
                return None
        return versions.whole_at(known.keys, at)

    def _ordered(self, versions: TableVersions[T]) -> _Order | None:
        epoch, dirty, frozen = self._store_epoch, versions.dirty, versions.frozen
        rows_count = len(dirty)
        # As in `scan`: memory before the store. Keys that come meanwhile are newer than what is noted here.
        start, stop = table_range(versions.table_id)
        moving = versions.keys_between(start, stop)
        stored = self._stored_page(versions, start, stop)
        if len(moving) + len(stored) >= PAGE_CELLS:
            return None
        known = _Order(epoch, dirty, rows_count, frozen, sorted({*moving, *stored}))
        self._small_orders[versions.table_id] = known
        return known

    def _scan_pages(
        self,
        versions: TableVersions[T],
        start: bytes,
        stop: bytes,
        at: int,
        moving: list[bytes],
        stored: dict[bytes, Cell | None],
    ) -> Iterator[tuple[bytes, T]]:
        while True:
            whole = len(stored) < PAGE_CELLS
            last = stop if whole else max(stored) + b"\0"
            moved = set(moving if whole else moving[: bisect_left(moving, last)])
            if not moved and None not in stored.values():
                # What was not in memory a moment ago is as the store has it, or newer than `at`.
                decode = versions.decode
                for key, commit_ts, value in cast("Iterable[Cell]", stored.values()):
                    if commit_ts > at:
                        old = self._read_stored(versions, key, at)
                        if old is not None:
                            yield key, old
                    elif value is not None:
                        yield key, decode(value)
                stored = {}
            for key in sorted(moved.union(stored)) if moved else list(stored):
                version = versions.at(key, at)
                if version is None:
                    cell = stored.get(key)
                    # A key that was in memory a moment ago may have a newer version in the store than the page shows.
                    if cell is None or key in moved or cell.commit_ts > at:
                        row = self._read_stored(versions, key, at)
                    else:
                        row = _version(versions, cell)[1]
                else:
                    row = version[1]
                if row is not None:
                    yield key, row
            if whole:
                return
            start = last
            moving = versions.keys_between(start, stop)
            stored = self._stored_page(versions, start, stop)

    def stored_pages(self, rows: TableRows, at: int, in_columns: bool) -> Iterator[list[Row] | ArrowTable] | None:
        """The rows of a table at a pinned timestamp in the order of their keys, some at a time, several times as fast
        as `scan`; None if the store has not all of them or cannot give them. `in_columns`: where they are stored so."""
        if not isinstance(self._store, BulkStore) or self.stored_ts < at:
            return None
        pages = rows.pages_in_columns if in_columns else rows.pages
        return pages(self._store.values, *table_range(rows.table.id), at)

    def _stored_page(self, versions: TableVersions[T], start: bytes, stop: bytes) -> dict[bytes, Cell | None]:
        """Up to PAGE_CELLS keys of the range that the store has, with their newest version or None: to be read."""
        if start > versions.stored_max:
            return {}
        known = self._small_ranges.get((start, stop))
        epoch = self._store_epoch
        if known is not None and known[0] == epoch:
            return known[1]
        cells: dict[bytes, Cell | None] = {c.key: c for c in self._store.scan(start, stop, NEWEST, PAGE_CELLS)}
        if len(cells) < PAGE_CELLS and (start, stop) == table_range(versions.table_id):
            # A small table or view, read as a whole again and again: its keys stay the same until the next checkpoint.
            self._small_ranges[start, stop] = (epoch, dict.fromkeys(cells))
        return cells

    def _stored_range(self, start: bytes, stop: bytes, at: int) -> Iterator[Cell]:
        while True:
            cells = self._store.scan(start, stop, at, PAGE_CELLS)
            yield from cells
            if len(cells) < PAGE_CELLS:
                return
            start = cells[-1].key + b"\0"

    # -- checkpoint

    @property
    def checkpoint_due(self) -> bool:
        if self._dirty_rows < self._checkpoint_rows and self._dirty_log_bytes < CHECKPOINT_LOG_BYTES:
            return False  # asked after every flush
        return self._dirty(1)

    @property
    def overloaded(self) -> bool:
        """Writers must wait for the checkpoint that is under way, or memory would not be bounded."""
        return self._dirty(2)

    def _dirty(self, times: int) -> bool:
        """Is there so many times what a checkpoint takes? Rows written again and again count once, index entries not:
        they come and go with their rows."""
        limit = times * self._checkpoint_rows
        if self._dirty_rows >= limit:
            kept = [rows.versions for rows in self.tables.by_id.values()]
            kept += [rows.versions for rows in self.tables.views_by_id.values()]
            self._dirty_rows = sum(len(versions.dirty) for versions in kept)
        return self._dirty_rows >= limit or self._dirty_log_bytes >= times * CHECKPOINT_LOG_BYTES

    def checkpoint(self) -> None:
        """Write all that is dirty to the store and trim the log. Called by one thread, without the lock."""
        elsewhere = self._elsewhere and self._dirty_rows >= ELSEWHERE_ROWS_MIN
        for rows, entries in self.tables.indexes.values():
            while entries.versions.behind and not (elsewhere and _made_elsewhere(rows, entries)):
                with self.lock:
                    entries.versions.fold(max(FOLD_ROWS, self.slice_cells()))
        history = self.history
        self.history_lsn = NEWEST if history is None else passed_lsn(self._log, self.horizon.durable_ts, history)
        with self.lock:
            self.flush()
            frozen_ts = self.horizon.durable_ts
            lsn = self._log.last_lsn
            tables = self.tables
            prune_max = max(PRUNE_CELLS_MIN, PRUNE_CELLS_PER_ROW * self._dirty_rows)
            self._dirty_rows = self._dirty_log_bytes = self._slice_rows = 0
            frozen = list(tables.versions.values())
            unmade = self._freeze(tables, elsewhere)
            oldest = self.horizon.oldest()
            progress, cuts = self._progress(), [tuple(cut) for cut in self.cuts]
            shared, ltm_lsns = list(self._shared_pins.values()), list(self.ltm_lsns().items())
            needed_lsn = min(lsn, self._needed_lsn())
            loads = self.staging.meta()
            self.staging.passed(oldest)
            logged = self._logged(tables, unmade) if elsewhere else _Logged([], {})
        pruned = self._prune(oldest, prune_max)
        meta = {
            "catalog": pack(catalog_to_plain(tables.catalog)),
            "position": pack((lsn, frozen_ts)),
            "progress": pack(progress),
            "cuts": pack(cuts),
            **loads,
            SHARED_PINS: pack(shared),
        }
        if ltm_lsns:
            meta[LTM_LSNS] = pack(ltm_lsns)
        max_keys = self._write_elsewhere(frozen, unmade, logged, oldest, pruned, meta) if elsewhere else None
        if max_keys is None:
            writing = _Writing(self, frozen, frozen_ts <= oldest, oldest, pruned)
            try:
                self._store.write(writing, writing.notes, meta, writing.between, writing.removed)
            finally:
                writing.close()
            max_keys = writing.max_keys
        with self.lock:
            self._load_epoch += 1
            self._store_epoch += 1
            self.stored_ts = frozen_ts
            self._stored_lsn = lsn
            self.staging.note_stored(frozen)
            noted = [entries.versions.noted_frozen for _, entries in tables.indexes.values()]
            forgotten = [versions.checkpointed(max_keys.get(versions.table_id, b"")) for versions in frozen]
        _free(forgotten, noted)
        self._log.trim(needed_lsn + 1)
        self._drop_cells(tables.catalog.dropped)

    @property
    def store_directory(self) -> Path | None:
        """Where processes beside this one can read the store (`LmdbSnapshot`); None: nowhere."""
        return getattr(self._store, "directory", None)

    def figures(self) -> dict[str, float]:
        """For the metrics, from any thread. Rows are those of tables, views and indexes, in memory about as many."""
        kept = list(self.tables.versions.values())
        layers = ((each.dirty, each.frozen, each.young, each.old) for each in kept)
        figures: dict[str, float] = {"rows_in_memory": sum(map(len, chain.from_iterable(layers)))}
        if self.store_directory is not None:  # one in memory would have to count
            stored = self._store.stat()
            figures |= {"store_cells": stored["cells"], "store_bytes": stored["file_bytes"]}
        return figures

    def stored_count(self, start: bytes, stop: bytes, most: int) -> int:
        """The cells of a range in the store, no more than that many: about as many rows as were there at the last
        checkpoint."""
        if isinstance(self._store, CountingStore):
            return self._store.count_cells(start, stop, most)
        count = 0
        while count < most:
            cells = self._store.scan(start, stop, NEWEST, min(COUNTED_CELLS, most - count))
            count += len(cells)
            if len(cells) < COUNTED_CELLS:
                break
            start = cells[-1].key + b"\0"
        return count

    def stored_edges(self, start: bytes, stop: bytes, cells_min: int) -> tuple[bytes, bytes] | None:
        """The first and the last key of a range in the store; None if it has fewer cells than that there."""
        cells = self._store.scan(start, stop, NEWEST, cells_min)
        last = self._store.max_key(start, stop)
        return None if len(cells) < cells_min or last is None else (cells[0].key, last)

    def share(self, reader: int, horizon: Horizon) -> int:
        """Pin a timestamp at which other processes will read the store; the next checkpoint brings there what is
        visible at it. Not while a checkpoint is under way."""
        self._shared_pins[reader] = at = horizon.pin(reader)
        return at

    def unshare(self, readers: Iterable[int]) -> None:
        """Let go of some: first the store says so, then versions may go. Not while a checkpoint is under way."""
        for reader in readers:
            del self._shared_pins[reader]
        with self.lock:
            self._write_shared_pins()
        for reader in readers:
            self.horizon.unpin(reader)

    def _write_shared_pins(self) -> None:
        self._store.write((), (), {SHARED_PINS: pack(list(self._shared_pins.values()))}, lambda: None)

    def _progress(self) -> list[tuple[int, int, int | None]]:
        """(view, watermark, position) of each deferred view."""
        views = self.tables.views_by_id
        return [
            (view_id, views[view_id].versions.horizon.durable_ts, position)
            for view_id, position in self.positions.items()
        ]

    def _freeze(self, tables: Tables, elsewhere: bool) -> dict[int, list[int]]:
        """Freeze all. Returns, by table, the indexes whose entries are made from its rows where they are written."""
        unmade: dict[int, list[int]] = {}
        for rows, entries in tables.indexes.values():
            if elsewhere and _made_elsewhere(rows, entries):
                entries.versions.freeze_unmade()
                unmade.setdefault(rows.table.id, []).append(entries.index.id)
            else:
                entries.versions.freeze()
        for versions in tables.versions.values():
            if versions.table_id not in tables.indexes:
                versions.freeze()
        return unmade

    def _logged(self, tables: Tables, unmade: dict[int, list[int]]) -> _Logged:
        """What another process can take from the log: frozen rows of tables that only got new ones since the last
        checkpoint. To send 100,000 rows takes the interpreter for 0.1 s, during which writers wait for it."""
        if not isinstance(self._log, LogInFiles):
            return _Logged([], {})
        found = {
            table_id: LoggedRows(table_id, len(rows.versions.frozen), unmade.get(table_id, []))
            for table_id, rows in tables.by_id.items()
            if rows.versions.frozen_first_only and len(rows.versions.frozen) >= SENT_ROWS
        }
        return _Logged(self._log.parts(self._stored_lsn + 1) if found else [], found)

    def _write_elsewhere(
        self,
        frozen: list[TableVersions],  # type: ignore[type-arg]
        unmade: dict[int, list[int]],
        logged: _Logged,
        oldest: int,
        pruned: bool,
        meta: dict[str, bytes],
    ) -> dict[int, bytes] | None:
        """Have another process write the checkpoint; returns the highest keys, or None: it has to be written here."""
        writing = _Writing(self, frozen, False, oldest, pruned)
        try:
            process = self._store.write_elsewhere()
            if process is not None:
                with process:
                    process.begin(meta["catalog"])
                    writing.send(process, unmade, logged)
                    return {**writing.max_keys, **process.commit(writing.notes, writing.removed, meta)}
        except ElsewhereFailed as error:
            self._report(f"a process that was to write a checkpoint failed: {error}; it is written here instead")
        self._elsewhere = False
        # Not from the newest tables: what was dropped meanwhile is frozen all the same.
        versions_by_id = {versions.table_id: versions for versions in frozen}
        for table_id in (index for indexes in unmade.values() for index in indexes):
            with self.lock:
                cast(IndexVersions, versions_by_id[table_id]).fold()
        return None

    def slice_cells(self) -> int:
        """How many cells the checkpoint may write now, while writers wait."""
        written, self._slice_rows = self._dirty_rows - self._slice_rows, self._dirty_rows
        return max(SLICE_CELLS_MIN, min(SLICE_CELLS_PER_ROW * written, SLICE_CELLS_MAX))

    def _drop_cells(self, dropped: tuple[int, ...]) -> None:
        """Delete the cells of what was dropped, once nobody reads below the drop."""
        oldest = self.horizon.oldest()
        ids = tuple(table_id for table_id in dropped if self._dropped_ts[table_id] < oldest)
        for table_id in ids:
            self._store.drop_range(*table_range(table_id))
        if ids:
            with self.lock:
                # Not a change that anyone sees: the next checkpoint stores it.
                self.tables.catalog = self.tables.catalog.without_dropped(ids)

    def _prune(self, horizon: int, cells_max: int) -> bool:
        """Remove superseded versions that readers at work kept alive at an earlier checkpoint, in slices; says whether
        all are gone. It comes before the next checkpoint, which leaves no trace of a deleted row only if they are."""
        for _ in range(0, cells_max, PRUNE_CELLS):
            with self.lock:
                settled = self._store.prune(horizon, PRUNE_CELLS)
            if settled < PRUNE_CELLS:
                return True
        return False

    # -- recovery

    def recover(self) -> int:
        """Bring memory to the state of the last durable flush; returns the highest timestamp that was ever used."""
        position, catalog = self._store.meta("position"), self._store.meta("catalog")
        if position is None or catalog is None:
            position, catalog = self._begin()
        if unpack(self._store.meta(SHARED_PINS) or pack([])):
            self._write_shared_pins()  # those of a process that was killed: nobody keeps what they see any more
        lsn, self.stored_ts = cast(tuple[int, int], unpack(position))
        self._stored_lsn = lsn
        if self._log.last_lsn < lsn:
            raise OperationalError(
                f"the commit log{self._log_place} ends at {self._log.last_lsn}, but the store was written at {lsn}: "
                "files are missing",
                hint="restore log and store from one backup",
            )
        self._adopt(Tables(catalog_from_plain(unpack(catalog)), self.horizon, self.tables))
        self.horizon.durable_ts = self.horizon.sealed_ts = self.stored_ts
        self._note_stored_keys()
        for view_id, watermark, place in self._stored_progress():
            self.set_watermarks((view_id,), watermark, place)
        for cut in cast("list[tuple[int, int]]", unpack(self._store.meta("cuts") or pack([]))):
            self._keep_cut(Cut(*cut))
        self.staging.recover(self.horizon.oldest())
        for record in self._log.read(lsn + 1):
            for item in unpack_stream(record.payload):
                self._replay(item)
            # Flush by flush, as it was written: deferred views read below the newest versions.
            self.horizon.sealed_ts = self.horizon.durable_ts
        self.staging.remove_unfinished()
        # Watermarks and the ends of steps are issued timestamps too: a commit must not come below them, whatever the
        # clock says.
        pins = self.horizon.pins.values()
        return max([self.horizon.durable_ts, self.staging.staged_ts, *self.horizon.watermarks.ts, *pins])

    def _begin(self) -> tuple[bytes, bytes]:
        """Make a new database: returns its position and its catalog, which are in the store from now on.

        Its first flush is empty, and the store says that it was written: a log without it is one that was lost. It
        comes first, so that whoever was killed here left a database that is still new.
        """
        if self._log.last_lsn > 1 or (self._log.last_lsn and any(record.payload for record in self._log.read(1))):
            raise OperationalError(
                f"there is a commit log{self._log_place}, but its store is missing or empty",
                hint="restore both from one backup",
            )
        lsn = self._log.last_lsn or self._log.append(b"")
        position, catalog = pack((lsn, 0)), pack(catalog_to_plain(Catalog()))
        self._store.write((), (), {"position": position, "catalog": catalog}, lambda: None)
        return position, catalog

    @property
    def _log_place(self) -> str:
        """For messages: only a log on disk has one."""
        directory = getattr(self._log, "directory", None)
        return "" if directory is None else f" in {directory}"

    def _stored_progress(self) -> list[tuple[int, int, int | None]]:
        progress = self._store.meta("progress")
        return [] if progress is None else cast("list[tuple[int, int, int | None]]", unpack(progress))

    def _note_stored_keys(self) -> None:
        for table_id, versions in self.tables.versions.items():
            versions.stored_max = self._store.max_key(*table_range(table_id)) or b""

    def _replay(self, item: tuple[object, ...]) -> None:
        if item[0] == _CATALOG:
            _, ts, stored_lsn, plain = cast(tuple[int, int, int, object], item)
            if stored_lsn > self._stored_lsn:
                # The contents of new views and indexes are in the store only.
                raise self._store_too_old(stored_lsn)
            self._adopt(Tables(catalog_from_plain(plain), self.horizon, self.tables))
        elif item[0] == LOADED:
            self._show_load(loaded_of_plain(item))
            return
        elif item[0] != _COMMIT:
            self._replay_step(step_of_plain(item))
            return
        else:
            record = commit_of_plain(item)
            ts = record.commit_ts
            self.loaded(self.participant.commit, record).apply()
            self._dirty_rows += record.rows_count
            self.replayed_count += 1
            self.replayed_tx_ids.update(record.tx_ids)
        self.horizon.durable_ts = max(ts, self.horizon.durable_ts)

    def _store_too_old(self, expected_lsn: int) -> OperationalError:
        return OperationalError(
            f"the store is older (log position {self._stored_lsn}) than the commit log expects ({expected_lsn})",
            hint="the last checkpoint was lost: restore log and store from one backup",
        )

    def _replay_step(self, record: StepRecord) -> None:
        rows = self.loaded(refreshed_rows, record, self.tables) if isinstance(record, Refreshed) else []
        self._apply_step(record, rows)
        if isinstance(record, Opened):
            # Watermarks that move while nothing changes are not logged: the step says where it began.
            for view_id in record.views:
                self.set_watermarks((view_id,), record.w0, self.positions.get(view_id))
        if isinstance(record, Published):
            if record.stored_lsn > self._stored_lsn:
                raise self._store_too_old(record.stored_lsn)
            self.publish(record)

    def close(self) -> None:
        self._log.close()
        self._store.close()


class _Logged(NamedTuple):
    """Tables whose rows are in parts of the log, by id."""

    parts: list[LogPart]
    tables: dict[int, LoggedRows]


class _Writing:
    """The cells of a checkpoint, in slices: the lock is held while one is encoded and written.

    Every put of the store gives the interpreter away for a moment; without the lock a busy writer would take it each
    time, and the checkpoint would not keep up. A slice is as long as what the writers wrote since the last one asks
    for. Nobody reads below `oldest`. `pruned`: every superseded version that nobody reads has left the store.
    """

    def __init__(
        self,
        ltm: Ltm,
        frozen: list[TableVersions],  # type: ignore[type-arg]
        unread: bool,
        oldest: int,
        pruned: bool,
    ) -> None:
        self._ltm = ltm
        self._frozen = frozen
        self._oldest = oldest
        self._pruned = pruned
        #: Whether nobody reads below anything that is written here.
        self._unread = unread
        #: (superseding commit_ts, key, superseded commit_ts), complete when all cells were given; so is `removed`.
        self.notes: list[tuple[int, bytes, int]] = []
        self.removed: list[tuple[bytes, int]] = []
        self.max_keys: dict[int, bytes] = {}

    def __iter__(self) -> Iterator[list[Cell]]:
        for versions in self._frozen:
            keys = list(versions.frozen)
            first = 0
            while first < len(keys):
                self._ltm.lock.acquire()
                slice_keys = keys[first : first + self._ltm.slice_cells()]
                first += len(slice_keys)
                yield self._slice(versions, slice_keys)

    def send(self, process: WriteElsewhere, unmade: dict[int, list[int]], logged: _Logged) -> None:
        """All to another process, without the lock: nothing here waits for the store. It reads some in the log."""
        made_there = {index for indexes in unmade.values() for index in indexes}
        if logged.tables:
            process.logged(logged.parts, list(logged.tables.values()))
        for versions in self._frozen:
            indexes = unmade.get(versions.table_id, [])
            if versions.table_id in logged.tables:
                continue
            if versions.frozen_first_only and not isinstance(versions, IndexVersions):
                rows = iter(versions.frozen.items())
                while some := list(islice(rows, SENT_ROWS)):
                    process.rows(versions.table_id, indexes, some)
            elif versions.table_id not in made_there:
                keys = list(versions.frozen)
                for first in range(0, len(keys), SENT_ROWS):
                    process.cells(self._slice(versions, keys[first : first + SENT_ROWS]))

    def _slice(self, versions: TableVersions[T], keys: list[bytes]) -> list[Cell]:
        keys.sort()
        self.max_keys[versions.table_id] = max(self.max_keys.get(versions.table_id, b""), keys[-1])
        return self._cells(versions, keys)

    def between(self) -> None:
        self.close()

    def close(self) -> None:
        self._ltm.lock.release_if_owned()

    def _cells(self, versions: TableVersions[T], keys: list[bytes]) -> list[Cell]:
        encode, frozen, oldest = versions.encode, versions.frozen, self._oldest
        replaced = self._replaced(versions, keys)
        if not replaced and self._unread:
            # New rows only, and nobody reads below: the common case, which a checkpoint is to get through quickly.
            return [
                make_cell((key, ts, encode(row))) for key in keys for ts, row, _ in (frozen[key],) if row is not None
            ]
        cells = []
        for key in keys:
            ts, row, older = frozen[key]
            before_ts = replaced.get(key)
            if ts <= oldest and (row is not None or self._pruned):
                # Nobody sees anything older, and what is older will not come to light.
                if row is not None:
                    cells.append(Cell(key, ts, encode(row)))
                if before_ts is not None and (before_ts != ts or row is None):
                    self.removed.append((key, before_ts))
                continue
            if before_ts == ts:
                before_ts = None  # several slots of a step wrote it, and a checkpoint came between: it is overwritten
            cells.append(Cell(key, ts, None if row is None else encode(row)))
            if row is None:
                self.notes.append((ts, key, ts))
            if older is not None:
                for cell in self._older_cells(versions, key, ts, older):
                    cells.append(cell)
                    self.notes.append((ts, key, cell.commit_ts))
                    ts = cell.commit_ts
            if before_ts is not None:
                if self._ltm.horizon.pinned_between(before_ts, ts):
                    self.notes.append((ts, key, before_ts))
                else:
                    # Who reads below `oldest` sees something older still. A view that is being computed from a
                    # snapshot writes its rows again and again, and nobody reads what is between.
                    self.removed.append((key, before_ts))
        return cells

    def _replaced(self, versions: TableVersions[T], keys: list[bytes]) -> dict[bytes, int]:
        """For each key the commit_ts of the version in the store that it supersedes."""
        known = versions.frozen_replaced
        if not known:
            return {}
        replaced = {key: known[key] for key in keys if key in known}
        unknown = [key for key, ts in replaced.items() if ts == 0]
        for key, cell in zip(unknown, self._ltm.stored(unknown), strict=True):
            if cell is None:
                del replaced[key]
            else:
                replaced[key] = cell.commit_ts
        # A wider range of timestamps keeps more, never less.
        stored_as, table_id = self._ltm.staging.stored_as, versions.table_id
        return {key: stored_as(table_id, ts) for key, ts in replaced.items()}

    def _older_cells(self, versions: TableVersions[T], key: bytes, above: int, version: Version[T]) -> Iterator[Cell]:
        """Versions below the newest one that a reader at work still sees."""
        below: Version[T] | None = version
        while below is not None:
            ts, row, older = below
            if self._ltm.horizon.pinned_between(ts, above):
                yield Cell(key, ts, None if row is None else versions.encode(row))
            below, above = older, ts


def _made_elsewhere(rows: TableRows | ViewRows, entries: IndexEntries) -> bool:
    """Whether all new entries of an index follow from the newest rows: rows were only inserted. Those of a view follow
    from what it shows, which only its plan knows; those of an index that is being built are not all new."""
    return isinstance(rows, TableRows) and entries.index.ready and rows.versions.first_only


def _free(forgotten: list[dict[bytes, Version[T]]], noted: list[deque[Noted]]) -> None:
    """Free row by row: to free a whole dict at once would keep the interpreter from every other thread meanwhile."""
    for rows in forgotten:
        while rows:
            rows.popitem()
    for changes in noted:
        while changes:
            changes.popleft()


def _version(versions: TableVersions[T], cell: Cell | None) -> tuple[int, T | None, None]:
    if cell is None:
        return ABSENT
    return (cell.commit_ts, None if cell.value is None else versions.decode(cell.value), None)
