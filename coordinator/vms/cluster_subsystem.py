"""The subsystem of an LTM in a cluster: a participant that follows its own commits for deferred views.

It hears of every commit once it is durable, after a restart again from the log, and keeps what deferred views are made
from until the watermarks of all of them have passed it. What was committed here stays here when the keys change their
owner: the log that has the vote has the change.

Close     nobody commits at or below W1 any more, but a step's slots, whose rows are of W1 (rule D3). Answered when
          everything that may be at or below W1 is decided and durable
Collect   a slot's share of the net changes of W0 < commit_ts <= W1 (never by lsn: rule D2), in numbered messages, and a
          marker that says how many there are
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ...changetables.types import Row
from ...ltm.cluster.catalogs import Stored, tables_of
from ...ltm.machine import Host, Outputs
from ...ltm.reading import same_row
from ...ltm.tables import TableRows, Tables, ViewRows
from ...ltm.two_phase.holds import PREFIX_BYTES
from ...ltm.two_phase.messages import Refresh
from ...ltm.two_phase.pages import in_pages, row_bytes
from ...ltm.two_phase.participant import Participant, RefreshRow
from ...ltm.two_phase.recent import Recent
from ...ltm.two_phase.records import LoggedWrite
from .cluster_messages import Changed, Close, Closed, Collect, Item, Marker, Passed
from .groups import Group, Phase, groups_in_force, groups_of, is_shown_by_step
from .hash_ring import HashRing
from .step_rows import BEGINNING, Step

#: Changed rows in one message, and messages that are sent at a time.
ITEMS_MAX = 500
MESSAGES_MAX = 8

CLOSED = "subsystem: closed"
COLLECTED = "subsystem: share sent"
PROBES = (CLOSED, COLLECTED)

#: What a step asks of an LTM, besides all that is about transactions.
_OF_STEPS = (Close, Collect, Passed)
_READING = (Close, Collect)


@lru_cache(maxsize=16)
def _ring(slots: int) -> HashRing:
    return HashRing(tuple(range(slots)))


def sources_of(views: Iterable[ViewRows], tables: Tables) -> dict[str, TableRows | ViewRows]:
    """What views of one level are made from, by name."""
    return {name: tables.source(name) for view in views for name in view.plan.sources}


def changed_in(phase: Phase, tables: Tables) -> dict[str, TableRows | ViewRows]:
    """By name: whose changes a phase is about."""
    if phase.shown:
        return {rows.view.name: rows for rows in phase.views}
    return sources_of(phase.views, tables)


def watched_ids(source: TableRows | ViewRows) -> tuple[int, ...]:
    """Whose changes tell what a source did: a view shows also what is in its hidden views of values."""
    if isinstance(source, TableRows):
        return (source.table.id,)
    return (source.view.id, *(values.view.id for values in source.values))


def catalog_of_step(step: Step, catalogs: Mapping[int, Tables]) -> Tables | None:
    """The catalog that says which views a step is about; None: it is not known yet. One that is known no more had the
    group as the first after it that is known: nothing else begins before what changes the group is finished, and that
    waits for its step."""
    later = [version for version in catalogs if version >= step.version]
    return catalogs[min(later)] if later else None


class History:
    """What was committed, as far as somebody still needs it. Not in the order of timestamps."""

    def __init__(self, tables: Tables) -> None:
        #: The catalogs by their versions, 0 for one that never changes.
        self._catalogs: dict[int, Tables] = {0: tables}
        #: By version and group.
        self._phases: dict[tuple[int, int], list[Phase]] = {}
        self._watermarks: dict[int, int] = {}
        #: By the id of a table or view: the groups that are made from it.
        self._readers: dict[int, set[int]] = {}
        self._writes: dict[int, list[tuple[int, LoggedWrite]]] = {}
        #: By the id of a view: (version, the refresh).
        self._refreshes: dict[int, list[tuple[int, Refresh]]] = {}
        #: Those that are refreshed now.
        self._groups = groups_of(tables)
        for group in self._groups:
            self._watch(group, tables)

    def follow(self, stored: Stored) -> None:
        """Groups come and go with catalogs: those that are refreshed now, and those that will be."""
        self._catalogs = {entry.version: tables_of(entry.data) for entry in stored.entries}
        self._readers, self._phases = {}, {}
        in_force = groups_in_force(stored).values()
        self._groups = [each.group for each in in_force]
        for each in in_force:
            self._watch(each.group, each.tables)
        newest = self._catalogs[stored.version]
        for group in groups_of(newest):
            self._watch(group, newest)
        known = {group for groups in self._readers.values() for group in groups}
        self._watermarks = {group: ts for group, ts in self._watermarks.items() if group in known}
        for some in (self._writes, self._refreshes):
            for source_id in [source_id for source_id in some if source_id not in self._readers]:
                del some[source_id]

    def _watch(self, group: Group, tables: Tables) -> None:
        self._watermarks.setdefault(group.key, BEGINNING)
        shown = [rows for rows in group.views if is_shown_by_step(rows)]
        for source in (*sources_of(group.views, tables).values(), *shown):
            for source_id in watched_ids(source):
                self._readers.setdefault(source_id, set()).add(group.key)

    def _of_step(self, step: Step) -> tuple[Tables, list[Phase]]:
        """What a step does, by the catalog that it was opened by."""
        tables = catalog_of_step(step, self._catalogs)
        assert tables is not None
        known = self._phases.get((tables.catalog.version, step.group))
        if known is None:
            group = next(group for group in groups_of(tables) if group.key == step.group)
            known = self._phases[tables.catalog.version, step.group] = group.phases()
        return tables, known

    def heard(self, commit_ts: int, at: int, writes: Iterable[LoggedWrite], refreshes: Iterable[Refresh]) -> None:
        readers = self._readers
        if not readers:
            return
        for write in writes:
            source_id = int.from_bytes(write[0][:PREFIX_BYTES], "big")
            if source_id in readers:
                self._writes.setdefault(source_id, []).append((commit_ts, write))
        for refresh in refreshes:
            if refresh[0] in readers:
                self._refreshes.setdefault(refresh[0], []).append((at or commit_ts, refresh))

    def passed(self, watermarks: Iterable[tuple[int, int]]) -> None:
        """Forget what all groups that are made from it have taken in."""
        for group, watermark in watermarks:
            if group in self._watermarks:
                self._watermarks[group] = max(self._watermarks[group], watermark)
        for source_id, groups in self._readers.items():
            low = min(self._watermarks[group] for group in groups)
            if source_id in self._writes:
                self._writes[source_id] = [item for item in self._writes[source_id] if item[0] > low]
            if source_id in self._refreshes:
                self._refreshes[source_id] = [item for item in self._refreshes[source_id] if item[0] > low]

    def watermarks(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._watermarks.items())

    def final_ts(self) -> dict[bytes, int]:
        """The published watermark of each view, by the first bytes of its keys."""
        return {view_id.to_bytes(PREFIX_BYTES, "big"): ts for view_id, ts in self.published().items()}

    def published(self) -> dict[int, int]:
        """The published watermark of each view and its indexes, by their ids."""
        return {
            each: self._watermarks[group.key]
            for group in self._groups
            for rows in group.views
            for each in (rows.view.id, *(entries.index.id for entries in rows.indexes))
        }

    def lowest_watermark(self) -> int:
        return min(self._watermarks.values(), default=2**64 - 1)

    def has(self, step: Step) -> bool:
        """Whether everything that belongs to a step is still here."""
        known = catalog_of_step(step, self._catalogs) is not None
        return known and step.w0 >= self._watermarks.get(step.group, step.w0 + 1)

    def rows_count(self, step: Step) -> int:
        """How many changes concern a step: the same at every time after W1 was closed and before it is published. What
        the step itself refreshes does not count: of deferred views that is what has its W1; what is below are
        corrections (`mending`)."""
        found = 0
        tables, phases = self._of_step(step)
        for source in sources_of([view for phase in phases for view in phase.views], tables).values():
            last_ts = step.w1 - 1 if isinstance(source, ViewRows) and source.view.deferred else step.w1
            for source_id in watched_ids(source):
                found += sum(step.w0 < ts <= last_ts for ts, _ in self._writes.get(source_id, ()))
                found += sum(step.w0 < ts <= last_ts for ts, _ in self._refreshes.get(source_id, ()))
        return found

    def share(self, step: Step, level: int, slot: int) -> list[Item]:
        """What falls to a slot, always in the same order."""
        owner = _ring(step.slots).owner
        found: list[Item] = []
        tables, phases = self._of_step(step)
        for source in changed_in(phases[level], tables).values():
            items = self._of_table(step, source) if isinstance(source, TableRows) else self._of_view(step, source)
            found += [item for item in items if owner(item[1]) == slot]
        found.sort(key=lambda item: item[:2])
        return found

    def _of_table(self, step: Step, table: TableRows) -> list[Item]:
        """The net change of each key; more than one where it was somebody else's in between."""
        changes: dict[bytes, list[tuple[Row | None, Row | None]]] = {}
        some = [item for item in self._writes.get(table.table.id, ()) if _is_of(step, item[0])]
        some.sort(key=lambda item: item[0])
        for _, (key, old, new) in some:
            known = changes.setdefault(key, [])
            if known and same_row(known[-1][1], old):
                known[-1] = (known[-1][0], new)
            else:
                known.append((old, new))
        return [
            (table.table.id, key, old, new)
            for key, known in changes.items()
            for old, new in known
            if not same_row(old, new)
        ]

    def _of_view(self, step: Step, view: ViewRows) -> list[Item]:
        """The keys that show something else, perhaps."""
        keys = {refresh[1] for ts, refresh in self._refreshes.get(view.view.id, ()) if _is_of(step, ts)}
        key_count = len(view.plan.key_columns)
        for values in view.values:
            for ts, refresh in self._refreshes.get(values.view.id, ()):
                if _is_of(step, ts):
                    keys.add(view.plan.keys.encode_short(refresh[2][:key_count]))
        return [(view.view.id, key, None, None) for key in keys]


def _item_bytes(item: Item) -> int:
    return row_bytes(item[2]) + row_bytes(item[3])


def _is_of(step: Step, ts: int) -> bool:
    """Records belong to a step by their timestamp (rule D2)."""
    return step.w0 < ts <= step.w1


class FeedingParticipant(Participant):
    """`items_max`: changed rows in one message."""

    def __init__(
        self, host: Host, log: str, oracle: str, refresh: RefreshRow, tables: Tables, items_max: int = ITEMS_MAX
    ) -> None:
        super().__init__(host, log, oracle, refresh)
        self.history = History(tables)
        self.recent: Recent = Recent()
        #: What was published, by when that was seen.
        self._published: deque[tuple[int, dict[int, int]]] = deque()
        self._items_max = items_max

    def follow(self, stored: Stored) -> None:
        super().follow(stored)
        self.history.follow(stored)

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if message.__class__ not in _OF_STEPS:
            return super().receive(sender, message, now_ms)
        self._now_ms = now_ms
        if isinstance(message, Passed):
            self.history.passed(message.watermarks)
        elif self._open and self.history.has(message.step):
            # Whoever is not answered asks again.
            self._mark_closed(message.step)
            if self._is_settled(message.step):
                if isinstance(message, Close):
                    self._answer_close(sender, message)
                else:
                    self._answer_collect(sender, message)
        return self._out()

    def shows_up_to(self, message: object) -> int:
        """Closing and collecting are like reads at W1: whoever may not answer those may not answer these (rule T3)."""
        return message.step.w1 if isinstance(message, _READING) else super().shows_up_to(message)

    def _heard_commit(
        self, commit_ts: int, at: int, writes: Sequence[LoggedWrite], refreshes: Sequence[Refresh]
    ) -> None:
        self.history.heard(commit_ts, at, writes, refreshes)

    def _needed_ts(self) -> int:
        """The next step of each group reads at its watermark."""
        return min(super()._needed_ts(), self.history.lowest_watermark())

    def _passed_versions(self, young_ts: int) -> dict[int, int]:
        published = self._published
        if published and published[-1][0] == self.newest_ts:
            published.pop()  # nobody came meanwhile: the clock stands still
        published.append((self.newest_ts, self.history.published()))
        while len(published) > 1 and published[1][0] <= young_ts:
            published.popleft()
        return {**published[-1][1], **published[0][1]}

    def final_ts(self) -> dict[bytes, int]:
        """A step writes the rows of its views at W1: they are final up to the published watermark."""
        return {**super().final_ts(), **self.history.final_ts()}

    def followed_ts(self) -> int:
        """What the views are made from is needed until all of them have passed it."""
        return self.history.lowest_watermark()

    def to_keep(self) -> object:
        return self.history.watermarks()

    def keep(self, kept: object) -> None:
        if kept is not None:
            assert isinstance(kept, list | tuple)
            self.history.passed((group, watermark) for group, watermark in kept)

    def _mark_closed(self, step: Step) -> None:
        """After a restart the floor is above W1 anyway: it was drawn later (rules H3 and D3)."""
        self.marks.raise_floor(step.w1)

    def _is_settled(self, step: Step) -> bool:
        """Whether nothing that may be at or below W1 is in doubt, or visible and not durable yet. A slot's rows are of
        W1, whatever its commit_ts is."""
        w1 = step.w1
        for part in self.parts.values():
            if part.min_ts and part.decided is None and (part.at or part.min_ts) <= w1:
                return False
        return not any((part.at or part.min_ts) <= w1 for _, _, part in self._unnoted)

    def _answer_close(self, sender: str, close: Close) -> None:
        self.host.probe(CLOSED)
        self._send.append((sender, Closed(close.step, self.log, self.epoch, self.history.rows_count(close.step))))

    def _answer_collect(self, sender: str, collect: Collect) -> None:
        step, level, slot, first = collect
        pages = in_pages(self.history.share(step, level, slot), _item_bytes, self._items_max)
        for number in range(first, min(first + MESSAGES_MAX, len(pages))):
            self._send.append((sender, Changed(step, level, slot, self.log, number, tuple(pages[number]))))
        if first + MESSAGES_MAX >= len(pages):
            self._send.append((sender, Marker(step, level, slot, self.log, len(pages))))
        self.host.probe(COLLECTED)
