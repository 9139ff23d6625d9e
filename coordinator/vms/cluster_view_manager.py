"""A view manager in a cluster: refreshes slots of steps. It keeps nothing that cannot be made again. No I/O, no clock.

A slot: read the step's row (it must be the open step, rule D1), collect the slot's share from all LTMs up to their
markers, propagate with look-ups as of W0 and W1, and commit its part of □V in one transaction: refreshes at version W1,
and the slot's row, which must not be there. The step's row is among what the transaction has read: when the step is not
open any more, it is refused.

A slot that fails because a view cannot be computed fails for everybody: the step is dropped. What its slots have added
is taken back by the same work, which gives the same again, because W0 and W1 are closed: the negated refreshes at
version W1, and the slot's row, which must be there, goes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple, TypeAlias, cast

from ...changetables.change_table import Change
from ...changetables.errors import Error
from ...changetables.plan import Contribution
from ...changetables.types import Row
from ...ltm.cluster.catalogs import Catalogs, Stored, tables_of
from ...ltm.cluster.messages import CatalogIs, FetchCatalog, NotHere
from ...ltm.machine import Host, Outputs, WhenDurable
from ...ltm.outputs import Write
from ...ltm.reading import same_row
from ...ltm.tables import TableRows, Tables, ViewRows
from ...ltm.two_phase.messages import COMMITTED, Refresh, TxId
from ...ltm.two_phase.views import refresh_of_entry
from ..two_phase.attempt import entries_of
from ..two_phase.messages import Intents, Outcome, ReadAt, RowsAt, Submit
from .cluster_client import ASKER, Asker
from .cluster_messages import (
    NOT_OPEN,
    Changed,
    Collect,
    Hello,
    Item,
    Logs,
    Marker,
    SlotDone,
    SlotRefused,
    Work,
    Working,
    addressed,
)
from .cluster_subsystem import catalog_of_step, sources_of
from .groups import Group, groups_of
from .look_ups_between import answer_between, shown_between
from .managers import PIECE_ROWS
from .step_rows import ENDED, STEPS, Step, refreshed, slot_key, step_key, step_of
from .view_manager import ViewManager

#: How often it says that it is there.
HELLO_MS = 100
#: LTMs that have not answered are asked again after this long.
COLLECT_MS = 80
#: Slots that are remembered, for schedulers that ask twice.
DONE_MAX = 1_000
#: Of a failure, which may show a value of any length: it goes into the status of views.
FAILURE_CHARS_MAX = 1_000
#: The numbers of its transactions have this bit, its id, its life and a number below.
_TX_BIT = 1 << 62

WORKING = "view manager: work begun"
GATHERED = "view manager: all markers are in"
SUBMITTING = "view manager: about to commit a slot"
COMMITTED_SLOT = "view manager: slot committed, not told"
PROBES = (WORKING, GATHERED, SUBMITTING, COMMITTED_SLOT)
FAILED_SLOT = "view manager: a slot failed, nobody told"
TAKING_BACK = "view manager: about to take a slot back"
TAKEN_BACK = "view manager: slot taken back, not told"
DROP_PROBES = (FAILED_SLOT, TAKING_BACK, TAKEN_BACK)

SlotName: TypeAlias = tuple[Step, int, int]


class Gather:
    """A slot's share from all logs: complete when every log's marker is here, and all messages before it."""

    def __init__(self, logs: Logs) -> None:
        self.logs = dict(logs)
        self._messages: dict[str, dict[int, tuple[Item, ...]]] = {log: {} for log in self.logs}
        self._counts: dict[str, int] = {}

    def readdress(self, logs: Logs) -> None:
        """Somebody else answers for a log now, perhaps."""
        self.logs.update({log: process for log, process in logs if log in self.logs})

    def changed(self, message: Changed) -> None:
        if message.log in self._messages:
            self._messages[message.log][message.number] = message.items

    def marker(self, message: Marker) -> None:
        if message.log in self._messages:
            self._counts[message.log] = message.messages

    def first_missing(self, log: str) -> int | None:
        """The number of the first message that is not here; None: none is missing."""
        messages = self._messages[log]
        count = self._counts.get(log)
        number = 0
        while number in messages:
            number += 1
        return None if count is not None and number >= count else number

    @property
    def complete(self) -> bool:
        return all(self.first_missing(log) is None for log in self.logs)

    def items(self) -> Iterable[Item]:
        for log in sorted(self._messages):
            for number in sorted(self._messages[log]):
                yield from self._messages[log][number]


Asked: TypeAlias = ReadAt | Submit | Gather
Answered: TypeAlias = RowsAt | Outcome | None


class _Refused(NamedTuple):
    reason: str
    failed: bool = False


#: Returns why the slot was refused, None if it is done.
_Slot: TypeAlias = Generator[Asked, Answered, _Refused | None]


class _Job:
    def __init__(self, scheduler: str, work: Work) -> None:
        self.scheduler = scheduler
        self.work = work
        self.running: _Slot | None = None
        self.gather: Gather | None = None
        self.asked: object = None


class ClusterViewManager:
    def __init__(
        self, host: Host, id: int, tables: Tables, coordinators: Sequence[str], schedulers: Sequence[str]
    ) -> None:
        self.host = host
        self.id = id
        #: The catalogs by their versions, 0 for one that never changes.
        self._catalogs: dict[int, Tables] = {0: tables}
        self._newest = Catalogs()
        self._coordinators = tuple(coordinators)
        self._schedulers = tuple(schedulers)
        self._asker = Asker(host, coordinators)
        self._worker = ViewManager(id, None, PIECE_ROWS)
        self.jobs: dict[SlotName, _Job] = {}
        self._done: dict[SlotName, None] = {}
        self._tx_number = 0
        self._now_ms = 0
        self._send: list[tuple[str, object] | WhenDurable] = []
        self._timers: list[tuple[int, object]] = []

    # -- the machine

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._now_ms = now_ms
        self._asker.begin(incarnation)
        self._tx_number = _TX_BIT | self.id << 40 | incarnation << 20
        self._hello()
        return self._out()

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        match message:
            case Work():
                self._work(sender, message)
            case Changed() | Marker():
                self._share(message)
            case RowsAt() | Outcome():
                self._asker.receive(message, now_ms)
            case CatalogIs():
                self._adopt_catalog(message)
            case NotHere():
                pass  # the scheduler's next word names another process
            case _:
                raise TypeError(f"unexpected message {message!r} from {sender}")
        return self._out()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a view manager has no log")

    def timer(self, token: object, now_ms: int) -> Outputs:
        self._now_ms = now_ms
        if token == "hello":
            self._hello()
        else:
            assert isinstance(token, tuple)
            what, name = token
            if what == ASKER:
                self._asker.timer(name, now_ms)
            else:
                self._collect(name)
        return self._out()

    def _out(self) -> Outputs:
        out = Outputs((), (*self._send, *self._asker.send), (*self._timers, *self._asker.timers))
        self._send, self._timers = [], []
        self._asker.send, self._asker.timers = [], []
        return out

    def _hello(self) -> None:
        for name in self._schedulers:
            self._send.append((name, Hello(self.id)))
        self._timers.append((self._now_ms + HELLO_MS, "hello"))

    # -- slots

    def _work(self, sender: str, work: Work) -> None:
        name = (work.step, work.level, work.slot)
        if name in self._done:
            self._send.append((sender, SlotDone(*name, self.id)))
            return
        job = self.jobs.get(name)
        if job is None:
            tables = catalog_of_step(work.step, self._catalogs)
            if tables is None:
                # The scheduler says it again.
                self._send.append(
                    (self._coordinators[work.number % len(self._coordinators)], FetchCatalog(work.number))
                )
                return
            self._forget_others(work.step)
            job = self.jobs[name] = _Job(sender, work)
            self.host.probe(WORKING)
            job.running = self._slot(work, tables)
            self._go_on(name, job, None)
        elif work.number >= job.work.number or sender != job.scheduler:
            job.scheduler = sender
            if job.gather is not None and work.logs != job.work.logs:
                job.gather.readdress(work.logs)
            job.work = work
        if name in self.jobs:
            self._send.append((sender, Working(*name, self.id)))

    def _adopt_catalog(self, message: CatalogIs) -> None:
        if message.stored and self._newest.adopt(Stored.unpack(message.stored)):
            self._catalogs = {entry.version: tables_of(entry.data) for entry in self._newest.stored.entries}

    def _forget_others(self, step: Step) -> None:
        """Of steps of the group that are older: they are over, or this one would not be open. And of the same step, if
        it is dropped now."""
        for name, job in list(self.jobs.items()):
            other = name[0]
            if other.group == step.group and (other.w1 < step.w1 or (step.is_dropped and other == step.as_opened)):
                self._asker.forget(job.asked)
                del self.jobs[name]

    def _go_on(self, name: SlotName, job: _Job, answer: Answered) -> None:
        assert job.running is not None
        job.gather = None
        try:
            asked = job.running.send(answer)
        except StopIteration as finished:
            self._end(name, job, finished.value)
            return
        except Error as error:
            # Nobody who is given the slot can do it: it is about what the step takes in.
            self.host.probe(FAILED_SLOT)
            self._end(name, job, _Refused(str(error)[:FAILURE_CHARS_MAX], True))
            return
        if isinstance(asked, Gather):
            job.asked = asked
            job.gather = asked
            # The slot was given again while it read, perhaps.
            asked.readdress(job.work.logs)
            self._collect(name)
        else:
            noted = isinstance(asked, ReadAt) and not asked.at
            job.asked = self._asker.ask(asked, self._now_ms, lambda found: self._answered(name, job, found), noted)

    def _answered(self, name: SlotName, job: _Job, found: RowsAt | Outcome) -> None:
        if self.jobs.get(name) is job:
            self._go_on(name, job, found)

    def _end(self, name: SlotName, job: _Job, refused: _Refused | None) -> None:
        del self.jobs[name]
        if refused is not None:
            self._send.append((job.scheduler, SlotRefused(*name, self.id, *refused)))
            return
        self._done[name] = None
        if len(self._done) > DONE_MAX:
            del self._done[next(iter(self._done))]
        self._send.append((job.scheduler, SlotDone(*name, self.id)))

    # -- collecting

    def _collect(self, name: SlotName) -> None:
        job = self.jobs.get(name)
        if job is None or job.gather is None:
            return
        for log in job.gather.logs:
            self._collect_from(name, job.gather, log)
        self._timers.append((self._now_ms + COLLECT_MS, ("collect", name)))

    def _collect_from(self, name: SlotName, gather: Gather, log: str) -> None:
        first = gather.first_missing(log)
        if first is not None:
            step, level, slot = name
            self._send.append(addressed(log, gather.logs[log], Collect(step.as_opened, level, slot, first)))

    def _share(self, message: Changed | Marker) -> None:
        name = (message.step, message.level, message.slot)
        if name not in self.jobs:
            name = (message.step.dropped, message.level, message.slot)
        job = self.jobs.get(name)
        if job is None or job.gather is None:
            return
        if isinstance(message, Changed):
            job.gather.changed(message)
        else:
            job.gather.marker(message)
        if job.gather.complete:
            self.host.probe(GATHERED)
            self._go_on(name, job, None)

    # -- what a slot is

    def _slot(self, work: Work, tables: Tables) -> _Slot:
        step, level, slot = work.step, work.level, work.slot
        group = next(group for group in groups_of(tables) if group.key == step.group)
        row_of_step, row_of_slot = step_key(step.group), slot_key(step.group, step.w1, level, slot)
        read = yield ReadAt(0, 0, (row_of_step, row_of_slot))
        assert isinstance(read, RowsAt)
        is_refreshed = read.rows[1][1] is not None
        if is_refreshed is not step.is_dropped:
            return None
        if not self._is_open(step, read.rows[0][1]):
            return _Refused(NOT_OPEN)
        gather = Gather(work.logs)
        if not gather.complete:
            yield gather
        refreshes = yield from self._propagate(tables, group, step, level, slot, list(gather.items()))
        self.host.probe(TAKING_BACK if step.is_dropped else SUBMITTING)
        outcome = yield Submit(
            self._next_tx_id(step),
            False,
            self._row(step, level, slot),
            read.at,
            self._seen(row_of_step),
            (),
            refreshes,
            step.w1,
        )
        assert isinstance(outcome, Outcome)
        if outcome.state == COMMITTED:
            self.host.probe(TAKEN_BACK if step.is_dropped else COMMITTED_SLOT)
            self.host.note("slot", step, level, slot, self.id)
            return None
        # It may be there, written by another one: whoever is asked to do it again finds out.
        return _Refused(outcome.error[1] or outcome.state)

    def _is_open(self, step: Step, row: Row | None) -> bool:
        return step_of(row) == step

    def _row(self, step: Step, level: int, slot: int) -> Intents:
        intent = ENDED if step.is_dropped else refreshed(step, level, slot, self.id)
        return ((STEPS, ((slot_key(step.group, step.w1, level, slot), intent),)),)

    def _seen(self, row_of_step: bytes) -> tuple[bytes, ...]:
        return (row_of_step,)

    def _next_tx_id(self, step: Step) -> TxId:
        self._tx_number += 1
        return self._tx_number, step.w1

    def _propagate(
        self, tables: Tables, group: Group, step: Step, level: int, slot: int, items: Sequence[Item]
    ) -> Generator[ReadAt, Answered, tuple[Refresh, ...]]:
        """What the slot adds to the views, or what takes that back."""
        phase = group.phases()[level]
        if phase.shown:
            return (yield from self._entries(tables, phase.views, step, items))
        change_tables = yield from self._change_tables(tables, phase.views, step.as_opened, slot, items)
        found: list[Refresh] = []
        for view_id, contributions in change_tables:
            if step.is_dropped:
                contributions = self._negated(tables.views_by_id[view_id], contributions)
            found += [(view_id, key, values, delta) for key, values, delta in contributions]
        return tuple(found)

    def _negated(self, view: ViewRows, contributions: Sequence[Contribution]) -> list[Contribution]:
        return [view.plan.negate(each) for each in contributions]

    def _change_tables(
        self, tables: Tables, views: Sequence[ViewRows], step: Step, slot: int, items: Sequence[Item]
    ) -> Generator[ReadAt, Answered, list[tuple[int, list[Contribution]]]]:
        sources = sources_of(views, tables)
        share: dict[str, Sequence[Change]] = {}
        for name, source in sources.items():
            writes: list[Write]
            if isinstance(source, TableRows):
                whole = source.whole
                mine = net_of([item for item in items if item[0] == source.table.id])
                writes = [
                    (key, None if old is None else whole(old), None if new is None else whole(new))
                    for key, old, new in mine
                ]
            else:
                keys = sorted({key for source_id, key, _, _ in items if source_id == source.view.id})
                writes = []
                if keys:
                    writes = yield from shown_between(tables, source, keys, step.w0, step.w1)
            changes = _change_table(writes)
            if changes:
                share[name] = changes
        working = self._worker.work(views, share, frozenset(sources), slot == 0, False)
        answers: Sequence[Sequence[object]] | None = None
        while True:
            try:
                wanted = next(working) if answers is None else working.send(answers)
            except StopIteration as finished:
                return cast("list[tuple[int, list[Contribution]]]", finished.value)
            answers = []
            if wanted:
                answers = yield from answer_between(tables, wanted, step.w0, step.w1)

    def _entries(
        self, tables: Tables, views: Sequence[ViewRows], step: Step, items: Sequence[Item]
    ) -> Generator[ReadAt, Answered, tuple[Refresh, ...]]:
        """Of views whose rows are all in: what they show now is entered into their indexes, what they showed is not.
        That it can be shown at all is found out here, too."""
        found: list[Refresh] = []
        for view in views:
            keys = sorted({key for source_id, key, _, _ in items if source_id == view.view.id})
            if not keys or (step.is_dropped and not view.indexes):
                continue
            writes = yield from shown_between(tables, view, keys, step.as_opened.w0, step.w1)
            if step.is_dropped:
                writes = [(key, new, old) for key, old, new in writes]
            for entries in view.indexes:
                found += [refresh_of_entry(entries.index.id, entry) for entry in entries_of(entries, writes)]
        return tuple(found)


def net_of(items: Iterable[Item]) -> list[Write]:
    """The net change of each key. One that had several owners in the step comes in pieces from several logs, which form
    a chain: what one of them left another one found. So all that was left and found goes, but the ends."""
    pieces: dict[bytes, list[tuple[Row | None, Row | None]]] = {}
    for _, key, old, new in items:
        pieces.setdefault(key, []).append((old, new))
    return [(key, *(some[0] if len(some) == 1 else _ends(some))) for key, some in pieces.items()]


def _ends(pieces: Sequence[tuple[Row | None, Row | None]]) -> tuple[Row | None, Row | None]:
    found = [old for old, _ in pieces if old is not None]
    left: list[Row] = []
    for _, new in pieces:
        place = next((number for number, old in enumerate(found) if same_row(old, new)), None)
        if place is not None:
            del found[place]
        elif new is not None:
            left.append(new)
    assert len(found) <= 1 and len(left) <= 1, "what one log left another one found"
    return found[0] if found else None, left[0] if left else None


def _change_table(writes: Iterable[Write]) -> list[Change]:
    changes: list[Change] = []
    for _, old, new in writes:
        if old is not None:
            changes.append((old, -1))
        if new is not None:
            changes.append((new, 1))
    return changes
