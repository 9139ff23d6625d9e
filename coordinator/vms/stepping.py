"""One step of a group of deferred views, from W0 to W1.

    open      W0, W1 and the slots are in the log; what tables and views are at W1 is kept from here on
    prepare   the net changes of all sources between W0 and W1
    level     for each level of the group, lowest first: every slot propagates its share and is refreshed at W1; when
              all slots are in, what the views of this level show at W0 and at W1 is the change table of those above
    publish   the watermark becomes W1

It does no I/O: it yields what it needs, and is sent what came of it. A step that a crash left open goes on where its
records in the log end (`Progress`): slots that are in are not refreshed again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

from ...changetables.change_table import Change
from ...changetables.plan import Contribution
from ...changetables.types import Row, Value
from ...ltm.outputs import Write
from ...ltm.steps import Dropped, Opened, Published, Refreshed, Shown, StepId, StepRecord
from ...ltm.tables import TableRows, Tables, ViewRows
from ..transaction import touched_keys
from .groups import Group
from .hash_ring import HashRing
from .subsystem import Net, divide, net

#: Changed rows that are netted before writers go on: about a millisecond.
NET_ROWS = 4_000
#: View rows that are looked at before writers go on.
SHOW_ROWS = 500


class Changes(NamedTuple):
    """Wanted: what the transactions between W0 and W1 did to a table; of a synchronous view, their contributions."""

    source_id: int


class Show(NamedTuple):
    """Wanted: what a table's or view's rows are at W0 and at W1, as writes."""

    view: ViewRows
    keys: list[bytes]


class Work(NamedTuple):
    """Wanted: a slot's part of the change tables of these views. Whoever works on it is the driver's choice."""

    slot: int
    views: list[ViewRows]
    share: Mapping[str, Sequence[Change]]
    changed: frozenset[str]
    whole: bool


class Persist(NamedTuple):
    """To be put into the log and applied. `point` names the place for whoever wants the process to die there."""

    record: StepRecord
    point: str


class Pause(NamedTuple):
    """Let the writers go on."""


Instruction: TypeAlias = Changes | Show | Work | Persist | Pause
_Stepping: TypeAlias = Generator[Instruction, object, None]


@dataclass(slots=True)
class Progress:
    """What the log has of an open step. `lost`: it failed, and has to be dropped."""

    opened: Opened
    lost: bool = False
    refreshed: dict[tuple[int, int], Refreshed] = field(default_factory=dict)
    shown: dict[int, Shown] = field(default_factory=dict)

    @property
    def id(self) -> StepId:
        return self.opened.id

    def note(self, record: StepRecord) -> None:
        """A record of this step is in the log."""
        if isinstance(record, Refreshed):
            self.refreshed[record.level, record.slot] = record
        elif isinstance(record, Shown):
            # The second of a level takes the first one back: the step had failed.
            self.lost = self.lost or record.level in self.shown
            self.shown.setdefault(record.level, record)

    def touched(self) -> dict[int, set[bytes]]:
        """The keys that its slots wrote, by view."""
        found: dict[int, set[bytes]] = {}
        for record in self.refreshed.values():
            for view_id, contributions in record.contributions:
                found.setdefault(view_id, set()).update(item.key for item in contributions)
        return found

    def dropped(self, rows_at_w0: Mapping[int, list[tuple[bytes, Row | None]]]) -> Dropped:
        opened = self.opened
        return Dropped(opened.views, opened.w0, opened.w1, tuple(rows_at_w0.items()))


class Stepping:
    """Runs one step. `changed_rows` is how many rows it took in, after netting."""

    def __init__(self, group: Group, tables: Tables, progress: Progress, resumed: bool) -> None:
        self._group, self._tables, self.progress = group, tables, progress
        self._resumed = resumed
        self._ring = HashRing(progress.opened.slots)
        #: By source name: the share of each slot.
        self._shares: dict[str, dict[int, list[Change]]] = {}
        #: By name: what views of lower levels show before and after.
        self._shown: dict[str, list[Write]] = {}
        self.changed_rows = 0

    def run(self) -> _Stepping:
        opened = self.progress.opened
        if not self._resumed:
            # Before the first pause: from here on the versions at W1 are kept, also by recovery.
            yield Persist(opened, "opened")
        for name, source in self._group.sources(self._tables).items():
            yield from self._prepare(name, source)
        if self._shares:
            for number, views in enumerate(self._group.levels()):
                yield from self._level(number, views)
        yield Persist(Published(opened.views, opened.w0, opened.w1, opened.position), "published")

    # -- prepare

    def _prepare(self, name: str, source: TableRows | ViewRows) -> _Stepping:
        if isinstance(source, TableRows):
            yield from self._prepare_table(name, source)
            return
        keys = yield from self._touched_of(source)
        writes: list[Write] = []
        yield from self._show(source, keys, writes)
        yield from self._divide(name, writes)

    def _prepare_table(self, name: str, source: TableRows) -> _Stepping:
        transactions = cast("list[list[Write]]", (yield Changes(source.table.id)))
        if all(old is None for writes in transactions for _, old, _ in writes):
            # Nothing but inserts: no row comes twice, so there is nothing to net.
            yield from self._insert(name, [_wide(writes, source) for writes in transactions])
            return
        changes: Net = {}
        counted = 0
        for writes in transactions:
            net(changes, _wide(writes, source))
            counted += len(writes)
            if counted > NET_ROWS:
                counted = 0
                yield Pause()
        yield from self._divide(name, [(key, old, new) for key, (old, new) in changes.items()])

    def _touched_of(self, view: ViewRows) -> Generator[Instruction, object, list[bytes]]:
        """The keys of a synchronous view that show something else, perhaps."""
        keys: dict[bytes, None] = {}
        for contributions in cast("list[list[Contribution]]", (yield Changes(view.view.id))):
            keys.update((item.key, None) for item in contributions)
        key_count = len(view.plan.key_columns)
        for values in view.values:
            for contributions in cast("list[list[Contribution]]", (yield Changes(values.view.id))):
                for item in contributions:
                    keys[view.plan.keys.encode_short(item.key_values[:key_count])] = None
        return list(keys)

    def _insert(self, name: str, transactions: Sequence[Sequence[Write]]) -> _Stepping:
        """As `_divide`, of rows that are new."""
        slots = self._ring.members
        if len(slots) > 1:
            yield from self._divide(name, [write for writes in transactions for write in writes])
            return
        share: list[Change] = []
        paused = 0
        for writes in transactions:
            share += [(new, 1) for _, _, new in writes if new is not None]
            if len(share) - paused > NET_ROWS:
                paused = len(share)
                yield Pause()
        if share:
            self._shares[name] = {slots[0]: share}
            self.changed_rows += len(share)

    def _divide(self, name: str, writes: Sequence[Write]) -> _Stepping:
        """The net change of a source, as the change tables of the slots."""
        shares: dict[int, list[Change]] = {slot: [] for slot in self._ring.members}
        for first in range(0, len(writes), NET_ROWS):
            divide(writes[first : first + NET_ROWS], self._ring, shares)
            yield Pause()
        some = {slot: share for slot, share in shares.items() if share}
        if some:
            self._shares[name] = some
            self.changed_rows += sum(map(len, some.values()))

    # -- levels

    def _level(self, number: int, views: list[ViewRows]) -> _Stepping:
        progress = self.progress
        changed = frozenset(self._shares)
        affected = [view for view in views if not changed.isdisjoint(view.plan.reads)]
        if not affected:
            return
        for slot in progress.opened.slots:
            if (number, slot) in progress.refreshed:
                continue
            share = {name: shares[slot] for name, shares in self._shares.items() if slot in shares}
            whole = slot == progress.opened.slots[0]
            done = yield Work(slot, affected, share, changed, whole)
            contributions = tuple(cast("list[tuple[int, list[Contribution]]]", done))
            if contributions:
                yield Persist(Refreshed(progress.id, number, slot, contributions), "refreshed")
        if number in progress.shown:
            logged = progress.shown[number].rows
            yield from self._note_shown({self._tables.views_by_id[view].view.name: rows for view, rows in logged})
        else:
            yield from self._show_level(number, affected)

    def _show_level(self, number: int, views: list[ViewRows]) -> _Stepping:
        """What the views of a level show before and after: for those that are made from them, and to find out whether
        they can be shown at all."""
        shown: dict[str, list[Write]] = {}
        logged: list[tuple[int, list[Write]]] = []
        for view in views:
            is_read = bool(view.deferred) or bool(view.indexes)
            if not (is_read or view.plan.fallible):
                continue
            writes: list[Write] = []
            yield from self._show(view, self._touched(number, view), writes)
            if writes and is_read:
                shown[view.view.name] = writes
                logged.append((view.view.id, writes))
        if logged:
            yield Persist(Shown(self.progress.id, number, tuple(logged)), "shown")
        yield from self._note_shown(shown)

    def _touched(self, number: int, view: ViewRows) -> list[bytes]:
        mine = [
            item
            for (level, _), record in self.progress.refreshed.items()
            if level == number
            for view_id, contributions in record.contributions
            if view_id == view.view.id
            for item in contributions
        ]
        found: Mapping[bytes, tuple[Value, ...]] = touched_keys(view, mine, self._shown)
        return list(found)

    def _show(self, view: ViewRows, keys: list[bytes], writes: list[Write]) -> _Stepping:
        for first in range(0, len(keys), SHOW_ROWS):
            writes += cast("list[Write]", (yield Show(view, keys[first : first + SHOW_ROWS])))
            yield Pause()

    def _note_shown(self, shown: Mapping[str, list[Write]]) -> _Stepping:
        self._shown.update(shown)
        for name, writes in shown.items():
            yield from self._divide(name, writes)


def _wide(writes: Sequence[Write], source: TableRows) -> Sequence[Write]:
    """The writes of one transaction with all columns: its rows may be from before one was added."""
    width = len(source.table.columns)
    _, before, after = writes[0] if writes else (b"", None, None)
    if (before is None or len(before) == width) and (after is None or len(after) == width):
        return writes
    pad = source.codec.pad
    return [(key, None if old is None else pad(old), None if new is None else pad(new)) for key, old, new in writes]
