"""Several LTMs in one process: the machines of the distributed protocol, each participant with a log of its own.

All transactions of a batch are under way at the same time: they hold, wait, are refused and tried again, vote and are
decided as in a cluster; only the network is missing. Rows are in the memory and the store of the node, which all share
(in a cluster, the store); a decided transaction is made visible there as a whole, and goes to the node's commit log,
from which deferred views are refreshed.

    votes durable in the LTMs' logs -> decided -> visible to the batch -> all of it in the node's log, in the order of
    commit_ts -> acknowledged

After a crash the LTMs find out from their votes what was decided; what the node's log does not have is done again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ..changetables import errors
from ..changetables.errors import CommitUnknown, Error, InternalError
from ..changetables.keys import TABLE_PREFIX_BYTES, table_range
from ..changetables.plan import Contribution
from ..changetables.types import Row
from ..ltm.codec import make_pack, unpack_stream
from ..ltm.driver import FLUSH_BYTES, TRANSACTION_BYTES_MAX, Ltm, too_large
from ..ltm.key_range import RangeMap
from ..ltm.machine import Machine, Outputs, PlainHost, WhenDurable
from ..ltm.outputs import CommitRecord, Write
from ..ltm.ports import CommitLog
from ..ltm.reading import NEWEST
from ..ltm.tables import Tables
from ..ltm.two_phase.cells import Cells, Version
from ..ltm.two_phase.messages import (
    COMMITTED,
    Ask,
    Attempt,
    Draw,
    FoundRows,
    KeyRange,
    Refresh,
    Settled,
    Timestamps,
    Told,
    TxId,
)
from ..ltm.two_phase.participant import RECOVERING, Participant
from ..ltm.two_phase.records import LoggedWrite, Record, from_plain, to_plain
from ..ltm.versions import ABSENT, IndexVersions, NotLoaded
from .embedded import Engine, Pending
from .local_layout import with_partials
from .timestamps import STEP
from .transaction import Request, check_table
from .two_phase.attempt import AttemptAt
from .two_phase.coordinator import Coordinator
from .two_phase.messages import Outcome, Submit

#: A part of a commit: (attempt, log, commit_ts, min_ts, logs, writes, refreshes, tx_ids).
_Part: TypeAlias = tuple[
    Attempt, str, int, int, tuple[str, ...], tuple[LoggedWrite, ...], tuple[Refresh, ...], tuple[TxId, ...]
]

#: A table is divided between the LTMs when it has so many new rows, and again when it has so many times as many.
SPLIT_ROWS = 64
SPLIT_AGAIN = 16

ORACLE, COORDINATOR, NODE = "oracle", "coordinator", "node"


class NodeCells(Cells):
    """The node's rows, as a participant sees them. What is decided is put there by the node, as a whole."""

    def __init__(self, ltm: Ltm) -> None:
        super().__init__()
        self._ltm = ltm
        self.chains = _Newest(self)
        #: The highest commit_ts by table, since the batch began: contributions come in any order.
        self.changed: dict[int, int] = {}

    def put_all(self, writes: Iterable[LoggedWrite], ts: int) -> None: ...

    def add(self, key: bytes, ts: int, change: Callable[[Row | None], Row | None]) -> None: ...

    def newest(self, key: bytes) -> Version:
        versions = self._ltm.tables.versions.get(_table_id(key))
        if versions is None or isinstance(versions, IndexVersions):
            # Entries come and go with their rows, which are held.
            return ABSENT
        version = versions.newest(key)
        if version is None:
            self._ltm.load(NotLoaded(versions.table_id, [key], []))
            version = versions.newest(key)
        return ABSENT if version is None else version

    def newest_between(self, wanted: KeyRange) -> FoundRows:
        start, stop, limit, last = wanted
        versions = self._ltm.tables.versions.get(_table_id(start))
        if versions is None:
            return ()
        indexed = isinstance(versions, IndexVersions)
        if isinstance(versions, IndexVersions):
            self._ltm.catch_up(versions)
        if limit or last:
            rows = self._ltm.edge(versions, start, stop, NEWEST, last)
        else:
            rows = self._ltm.scan(versions, start, stop, NEWEST)
        found: list[tuple[bytes, Row]] = []
        for key, row in rows:
            found.append((key, (row,) if indexed else row))
            if len(found) == limit:
                break
        return tuple(found)

    def newest_ts(self, start: bytes, stop: bytes) -> int:
        """Of the whole table: good enough, because it only makes the transaction later."""
        table_id = _table_id(start)
        versions = self._ltm.tables.versions.get(table_id)
        return max(self.changed.get(table_id, 0), 0 if versions is None else versions.changed_ts)

    def changed_since(self, start: bytes, stop: bytes, snapshot: int) -> bool:
        table_id = _table_id(start)
        versions = self._ltm.tables.versions.get(table_id)
        if versions is None or versions.changed_between(start, stop, snapshot):
            return True
        return self._ltm.changed_in_store(snapshot, set(), [(table_id, start, stop)])

    def load(self, *keys: Sequence[bytes]) -> None:
        missing: dict[int, list[bytes]] = {}
        for key in itertools.chain(*keys):
            versions = self._ltm.tables.versions.get(_table_id(key))
            if versions is not None and not isinstance(versions, IndexVersions) and versions.newest(key) is None:
                missing.setdefault(versions.table_id, []).append(key)
        for table_id, some in missing.items():
            self._ltm.load(NotLoaded(table_id, some, []))


class _Newest(dict[bytes, Version]):
    """The newest version of every key, None where there is no row."""

    def __init__(self, cells: NodeCells) -> None:
        super().__init__()
        self._cells = cells

    def get(self, key: bytes, default: object = None) -> Version | None:  # type: ignore[override]
        version = self._cells.newest(key)
        return None if version is ABSENT else version


class _LtmLog:
    """A participant's log: records are buffered, and what waits for them."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.buffer: list[bytes] = []
        self.last_lsn = 0
        self.durable_lsn = 0
        self.waiting: list[WhenDurable] = []
        self._pack = make_pack()

    def records(self) -> list[Record]:
        found = [
            from_plain(item) for flush in self.log.read(self.log.oldest_lsn) for item in unpack_stream(flush.payload)
        ]
        self.last_lsn = self.durable_lsn = len(found)
        return found

    def write(self, records: Iterable[object]) -> None:
        for record in records:
            self.buffer.append(self._pack(to_plain(record)))  # type: ignore[arg-type]
            self.last_lsn += 1

    def flush(self) -> list[WhenDurable]:
        """One sync; returns what may leave now."""
        waiting, self.buffer = deque(self.buffer), []
        while waiting:
            payload = [waiting.popleft()]
            size = len(payload[0])
            while waiting and size + len(waiting[0]) <= FLUSH_BYTES:
                size += len(waiting[0])
                payload.append(waiting.popleft())
            self.log.append(b"".join(payload))
        self.durable_lsn = self.last_lsn
        ready, self.waiting = self.waiting, []
        return ready


class _Host(PlainHost):
    """Collects the commits that a participant finds out about by itself: those of a former life."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.found: list[_Part] = []
        self.keeps = True

    def note(self, what: str, *detail: object) -> None:
        if what == "committed" and self.keeps:
            self.found.append(detail)  # type: ignore[arg-type]


class SeveralEngine(Engine):
    """The embedded engine with several LTMs. Everything but transactions happens between batches, when nothing is
    held."""

    def __init__(self, ltm: Ltm, now_ms: Callable[[], int], logs: Sequence[CommitLog], count: int) -> None:
        """So many of them own keys; the others had some earlier, and may have votes."""
        super().__init__(ltm, now_ms)
        self.several = self._run_queued
        names = tuple(f"ltm-{number}" for number in range(1, len(logs) + 1))
        self.ltm_names = names[:count]
        self._logs = {name: _LtmLog(log) for name, log in zip(names, logs, strict=True)}
        self._hosts = {name: _Host(name) for name in names}
        self._cells = NodeCells(ltm)
        self.participants = {name: self._participant(name) for name in names}
        self.ranges = RangeMap(0, (b"",), self.ltm_names[:1])
        self.coordinator = Coordinator(PlainHost(COORDINATOR), ORACLE, ltm.tables, self.ranges)
        self.coordinator.one_phase = False
        self.coordinator.on_prepare = self._check
        self.coordinator.on_commit = self._apply
        self._machines: dict[str, Machine] = {**self.participants, COORDINATOR: self.coordinator}
        self._messages: deque[tuple[str, str, object]] = deque()
        self._again: list[tuple[str, object]] = []
        #: Word that a decision is durable waits until the node's log has it, too.
        self._settled: list[tuple[str, object]] = []
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._applied: set[tuple[int, int]] = set()
        #: Decided in this batch, and not in the node's log yet.
        self._decided: list[CommitRecord] = []
        self._catalog_version = -1
        self._cuts: dict[int, tuple[bytes, ...]] = {}
        self._cut_rows: dict[int, int] = {}
        self._partials: dict[int, int] = {}
        self.votes_count = 0
        ltm.ltm_lsns = self._lsns

    def _lsns(self) -> dict[str, int]:
        return {name: log.log.last_lsn for name, log in self._logs.items()}

    def _participant(self, name: str) -> Participant:
        participant = Participant(self._hosts[name], name, ORACLE, _no_refresh)
        participant.cells = self._cells
        participant.one_phase = False
        return participant

    # -- recovery

    def _recovered(self) -> None:
        """Finish what was voted for when the process ended: the LTMs ask each other."""
        for name in self.participants:
            out = self.participants[name].start(0, self._logs[name].records(), 1)
            self._carry_out(name, out)
            self._again += [(name, token) for _, token in out.timers if token == RECOVERING]
        self.coordinator.start(0, (), 1)
        self._pump(
            lambda: any(part.decided is None for each in self.participants.values() for part in each.parts.values())
        )
        found = [each for host in self._hosts.values() for each in host.found]
        for participant in self.participants.values():
            for attempt, part in participant.parts.items():
                if part.decided:
                    commit = (attempt, participant.log, part.decided, part.min_ts, part.logs)
                    found.append((*commit, part.writes, part.refreshes, part.tx_ids))
        for host in self._hosts.values():
            host.keeps = False
            host.found = []
        self._redo(found)
        grown = with_partials(self.ltm.tables, len(self.ltm_names))
        if grown is not None:
            self.change_catalog(lambda _: grown)

    def _in_doubt(self) -> bool:
        return any(part.decided is None for each in self.participants.values() for part in each.parts.values())

    def _redo(self, found: list[_Part]) -> None:
        """Commits that the LTMs' logs have and the node's log has not."""
        parts: dict[tuple[int, Attempt], dict[str, _Part]] = {}
        for part in found:
            parts.setdefault((part[2], part[0]), {})[part[1]] = part
        for (commit_ts, attempt), by_log in sorted(parts.items()):
            self._oracle.seen(commit_ts)
            if attempt[0] in self.ltm.replayed_tx_ids or commit_ts <= self.ltm.stored_ts:
                continue
            record = self._record_of(commit_ts, list(by_log.values()))
            if record.writes:
                self._accept(record)
        self._log_decided()
        self.ltm.flush()

    def _record_of(self, commit_ts: int, parts: list[_Part]) -> CommitRecord:
        tables = self.ltm.tables
        writes: dict[int, list[Write]] = {}
        contributions: dict[int, list[Contribution]] = {}
        for _, _, _, _, _, some, refreshes, _ in parts:
            for write in some:
                if _table_id(write[0]) in tables.by_id:
                    writes.setdefault(_table_id(write[0]), []).append(write)
            for view_id, key, group, delta in refreshes:
                contributions.setdefault(view_id, []).append(Contribution(key, group, delta))
        version = tables.catalog.version
        return CommitRecord(parts[0][-1], commit_ts, version, tuple(writes.items()), tuple(contributions.items()))

    # -- a batch

    def _run_queued(self, batch: list[Pending], count_max: int) -> None:
        """Run what is queued, all at the same time."""
        self._cells.changed.clear()
        self._applied.clear()
        for participant in self.participants.values():
            # All of the last batch is decided, and clients in this process do not ask twice.
            participant.forget_decided()
        self._follow_catalog()
        running: dict[tuple[int, int], Pending] = {}
        while self._queue and len(batch) < count_max:
            pending = self._queue.popleft()
            batch.append(pending)
            try:
                submit = self._submitted(pending.request)
            except Error as error:
                pending.error = error
                continue
            running[pending.request.tx_id] = pending
            self._messages.append((COORDINATOR, NODE, submit))
        self._messages.extend((COORDINATOR, name, message) for name, message in self._settled)
        self._settled = []
        try:
            self._pump(lambda: len(self._outcomes) < len(running))
        except Exception as error:
            # Only the LTMs' logs know what is committed, and nobody what is held: nothing goes on. The node's log gets
            # nothing of it: after a restart all of the batch is done again, in the order of commit_ts.
            self._decided = []
            self.fail(error)
            for pending in running.values():
                pending.error = CommitUnknown(
                    f"the transaction was interrupted: {error!r}",
                    hint="reopen the database to see whether it was committed",
                )
            return
        self._log_decided()
        for tx_id, pending in running.items():
            outcome = self._outcomes[tx_id]
            if outcome.state != COMMITTED:
                pending.error = _error(outcome)
            elif tx_id in self._applied:
                pending.commit_ts = outcome.commit_ts
            else:
                pending.commit_ts = self.ltm.horizon.durable_ts
        self._outcomes.clear()

    def _submitted(self, request: Request) -> Submit:
        self._check_alive()
        tables = self.ltm.tables
        for name, rows in request.tables.items():
            if tables.by_name.get(name) is not rows:
                check_table(name, rows, request, tables)
        if request.snapshot is not None:
            self._validate(request)
        return Submit(
            request.tx_id,
            False,
            tuple((name, tuple(intents.items())) for name, intents in request.writes.items()),
            request.snapshot or 0,
            tuple(key for _, key in sorted(request.keys)),
            tuple((start, stop, 0, False) for _, start, stop in request.ranges),
        )

    def _pump(self, unfinished: Callable[[], bool]) -> None:
        """Deliver messages; when all wait for the disks, sync; when all have backed off, let them try again."""
        while True:
            while self._messages:
                destination, sender, message = self._messages.popleft()
                self._deliver(destination, sender, message)
            if not unfinished():
                return
            if any(log.waiting for log in self._logs.values()):
                self._flush_logs()
            elif self._again:
                again, self._again = self._again, []
                for name, token in again:
                    self._carry_out(name, self._machines[name].timer(token, 0))
            else:
                raise InternalError("transactions wait for each other for ever", hint="please report this")

    def _flush_logs(self) -> None:
        for name, log in self._logs.items():
            if log.waiting:
                self.votes_count += 1
                ready = log.flush()
                self._carry_out(name, self.participants[name].persisted(log.durable_lsn, 0))
                for each in ready:
                    self._send(name, each.destination, each.message)

    def _deliver(self, destination: str, sender: str, message: object) -> None:
        if destination == NODE:
            assert isinstance(message, Outcome)
            self._outcomes[message.tx_id] = message
        elif destination == ORACLE:
            assert isinstance(message, Draw)
            first = self.draw_ts()
            self._oracle.seen(first + (message.wanted - 1) * STEP)
            self._messages.append((sender, ORACLE, Timestamps(message.number, first, message.wanted, 0)))
        else:
            try:
                out = self._machines[destination].receive(sender, message, 0)
            except Exception as error:
                # What is damaged, or a defect in a plan, concerns those who need it, as long as nobody has voted.
                if not isinstance(message, Ask | Told):
                    raise
                if not isinstance(error, Error):
                    error = InternalError(f"a transaction failed unexpectedly: {error!r}", hint="please report this")
                out = self.coordinator.fail(message.attempt, error)
                destination = COORDINATOR
            self._carry_out(destination, out)

    def _carry_out(self, name: str, out: Outputs) -> None:
        log = self._logs.get(name)
        if out.persist:
            assert log is not None
            log.write(out.persist)
        for _, token in out.timers:
            if isinstance(token, tuple) and token[0] == "again":
                self._again.append((name, token))
        for each in out.send:
            if not isinstance(each, WhenDurable):
                self._send(name, *each)
            elif log is None or each.lsn <= log.durable_lsn:
                self._send(name, each.destination, each.message)
            else:
                log.waiting.append(each)

    def _send(self, sender: str, destination: str, message: object) -> None:
        if type(message) is Settled:
            self._settled.append((sender, message))
        else:
            self._messages.append((destination, sender, message))

    # -- what is decided

    def _check(self, attempt: AttemptAt) -> None:
        """Whatever would fail when it is made visible must fail before it is voted for."""
        transaction = attempt.transaction
        self._cells.load(*([item.key for item in some] for _, some in transaction.contributions))
        # Nobody was asked for these.
        self._cells.load([key for _, writes in transaction.writes for key, _, _ in writes], list(attempt.relied))
        record = transaction.record((attempt.submit.tx_id,), attempt.start)
        size = self.ltm.packed_bytes(record)
        if size > TRANSACTION_BYTES_MAX:
            raise too_large(size)

    def _apply(self, attempt: AttemptAt, commit_ts: int) -> None:
        if attempt.transaction.writes:
            tx_ids = (attempt.submit.tx_id, *attempt.members)
            self._applied.update(tx_ids)
            self._accept(attempt.transaction.record(tx_ids, commit_ts))

    def _accept(self, record: CommitRecord) -> None:
        changed = self._cells.changed
        for table_id, _ in (*record.writes, *record.contributions):
            changed[table_id] = max(changed.get(table_id, 0), record.commit_ts)
            for entries in self._indexes_of(table_id):
                changed[entries] = max(changed.get(entries, 0), record.commit_ts)
        self.ltm.loaded(self.ltm.participant.commit, record).apply()
        self._decided.append(record)

    def _log_decided(self) -> None:
        """Everything that was decided in the batch goes to the node's log, in the order of commit_ts: whoever reads the
        log relies on that. Equal ones become one (rule T2)."""
        decided, self._decided = self._decided, []
        for _, same in itertools.groupby(sorted(decided, key=_commit_ts), key=_commit_ts):
            records = list(same)
            self.ltm.accept_decided(records[0] if len(records) == 1 else self._combined(records))

    def _combined(self, records: list[CommitRecord]) -> CommitRecord:
        writes: dict[int, list[Write]] = {}
        contributions: dict[int, dict[bytes, Contribution]] = {}
        for record in records:
            for table_id, some in record.writes:
                writes.setdefault(table_id, []).extend(some)
            for view_id, items in record.contributions:
                plan, known = self.ltm.tables.views_by_id[view_id].plan, contributions.setdefault(view_id, {})
                for item in items:
                    both = plan.combine(known[item.key], item) if item.key in known else item
                    if both is None:
                        del known[item.key]
                    else:
                        known[item.key] = both
        return CommitRecord(
            tuple(tx_id for record in records for tx_id in record.tx_ids),
            records[0].commit_ts,
            records[0].catalog_version,
            tuple(writes.items()),
            tuple((view_id, list(items.values())) for view_id, items in contributions.items() if items),
        )

    def _indexes_of(self, table_id: int) -> list[int]:
        rows = self.ltm.tables.by_id.get(table_id) or self.ltm.tables.views_by_id[table_id]
        return [entries.index.id for entries in rows.indexes]

    # -- who owns what

    def _follow_catalog(self) -> None:
        """A new catalog has new tables; tables that have grown are divided. Nothing is held now: ranges just move."""
        tables = self.ltm.tables
        if tables.catalog.version != self._catalog_version:
            self._partials = _partials(tables)
        grown = [
            table_id
            for table_id, versions in tables.versions.items()
            if self._has_grown(table_id, versions.dirty) and table_id not in self._partials
        ]
        if tables.catalog.version == self._catalog_version and not grown:
            return
        self._catalog_version = tables.catalog.version
        count = len(self.ltm_names)
        for table_id in grown:
            keys = sorted(tables.versions[table_id].dirty)
            self._cut_rows[table_id] = len(keys)
            self._cuts[table_id] = tuple(keys[len(keys) * place // count] for place in range(1, count))
        starts, owners = [b""], [0]
        for table_id in sorted(tables.versions):
            own = self._partials.get(table_id)
            cuts = () if own is not None else self._cuts.get(table_id, ())
            for place, start in enumerate([table_range(table_id)[0], *cuts]):
                if start > starts[-1]:
                    starts.append(start)
                    owners.append(((table_id if own is None else own) + place) % count)
        logs = tuple(self.ltm_names[owner] for owner in owners)
        self.ranges = RangeMap(self.ranges.epoch + 1, tuple(starts), logs)
        self.coordinator.tables, self.coordinator.ranges = tables, self.ranges

    def _has_grown(self, table_id: int, dirty: dict[bytes, Version]) -> bool:
        return len(dirty) >= max(SPLIT_ROWS, SPLIT_AGAIN * self._cut_rows.get(table_id, 0))

    # -- life

    def _checkpoint(self) -> None:
        """What the store has, the LTMs' logs need not have any more."""
        with self.ltm.lock:
            lsns = self._lsns()
        super()._checkpoint()
        for name, lsn in lsns.items():
            self._logs[name].log.trim(lsn + 1)

    def close(self) -> None:
        super().close()
        for log in self._logs.values():
            log.log.close()


def _partials(tables: Tables) -> dict[int, int]:
    """By the ids of the partial rows of local views: whose they are. Each LTM has some of every such view."""
    views = [rows.view for rows in tables.views.values() if rows.partials]
    return {number: view.id + place for view in views for place, number in enumerate((view.id, *view.partials))}


def _no_refresh(refresh: object, row: Row | None) -> Row | None:
    raise AssertionError("the node refreshes views")


def _commit_ts(record: CommitRecord) -> int:
    return record.commit_ts


def _table_id(key: bytes) -> int:
    return int.from_bytes(key[:TABLE_PREFIX_BYTES], "big")


def _error(outcome: Outcome) -> Error:
    name, message, hint = outcome.error
    made: Error = getattr(errors, name)(message, hint=hint)
    return made
