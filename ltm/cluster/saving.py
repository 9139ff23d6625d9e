"""Checkpoints: what is decided goes to the store in the background, in pages; then the log before it is not needed.

A page is a write of bounded size; the next one leaves when the one before is durable. The last write is the entry that
says what the pages hold: without it they mean nothing to whoever takes over. One that fails is sent again as it is.

**Why a late write does no harm.** A write may be carried out long after its writer gave it up, also when another life
owns the rows: it was paused, or a server had it in a queue. What it writes are versions (key, commit_ts) that were
durable in the log before it left, and final: nobody will ever commit, add or change anything at or below the timestamp
that they were final at, whoever owns the keys (`two_phase.journal`). The next owner found them in the log or in the
store; if it writes them too, it writes the same. Versions that are not final, those of a deferred view's open step, are
never written, and are handed over with the keys instead. The entries beside the rows are named by the life, and their
versions are the numbers of its checkpoints: an older one hides no newer one. What remains is a version that comes back
after it was pruned: a row that is hidden by a newer version stays hidden, and tombstones must be kept in a shared store
for longer than any write can be late (that is the pruner's business).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...changetables.types import Row
from ..machine import Host
from ..two_phase.cells import Version
from ..two_phase.holds import PREFIX_BYTES
from ..two_phase.journal import Journal, Remembered, Stored
from ..two_phase.marks import RAISE_MAX
from ..two_phase.messages import FOREVER
from ..two_phase.pages import PAGE_BYTES_MAX, row_bytes
from ..two_phase.participant import MS_SHIFT, Participant
from ..two_phase.stored_cells import StoredCells
from .checkpoint import Checkpoint, chunk_name, entry_key, name_of, pack_memory
from .settings import StoreSettings
from .store_messages import WriteCells

#: Where a machine may end (names for a simulator).
BEGUN = "saving: checkpoint begun"
PAGE_WRITTEN = "saving: a page is written"
CELLS_WRITTEN = "saving: rows are written, not what they are up to"
SAVED = "saving: checkpoint durable, log not trimmed"
PROBES = (BEGUN, PAGE_WRITTEN, CELLS_WRITTEN, SAVED)


def final_to(machine: Participant, journal: Journal, ts: int) -> Stored:
    """Up to where versions are final when everything but deferred views' rows is so up to `ts`."""
    stored = journal.stored
    before = min((part.at for part in machine.parts.values() if part.at and part.decided is None), default=FOREVER)
    tables = {
        prefix: max(stored.of(prefix), min(ts, final, before - 1)) for prefix, final in machine.final_ts().items()
    }
    return Stored(ts, tables)


class Pages:
    """The versions of touched keys that are final, as writes of bounded size, made when they are needed."""

    def __init__(self, cells: StoredCells, keys: Sequence[bytes], to: Stored, cells_max: int) -> None:
        self._cells = cells
        self._keys = keys
        self._to = to
        self._cells_max = cells_max
        self._drops = cells.drops
        self._left = iter(keys)

    def next(self) -> tuple[tuple[tuple[bytes, int, Row | None], ...], tuple[tuple[int, bytes, int], ...]] | None:
        """Cells and notes of what supersedes what; None: all were given."""
        cells: list[tuple[bytes, int, Row | None]] = []
        notes: list[tuple[int, bytes, int]] = []
        left = PAGE_BYTES_MAX
        for key in self._left:
            base = self._cells.touched.get(key)
            if base is None:
                continue
            for ts, row in reversed(list(_final_versions(self._cells.chains.get(key), base, self._to.of(key)))):
                cells.append((key, ts, row))
                left -= row_bytes(row)
                if base:
                    notes.append((ts, key, base))
                if row is None:
                    notes.append((ts, key, ts))
                base = ts
            if len(cells) >= self._cells_max or left <= 0:
                break
        return (tuple(cells), tuple(notes)) if cells else None

    def written(self) -> None:
        """All pages are durable. Keys that went and came meanwhile are written again."""
        cells = self._cells
        if cells.drops != self._drops:
            return
        for key in self._keys:
            base = cells.touched.get(key)
            if base is None:
                continue
            newest, to = cells.chains[key][0], self._to.of(key)
            if newest > to:  # something came meanwhile
                written = max((ts for ts, _ in _final_versions(cells.chains[key], base, to)), default=base)
                if written < newest:
                    cells.touched[key] = written
                    continue
            del cells.touched[key]


def with_final(cells: StoredCells, to: Stored) -> list[bytes]:
    """The touched keys of which something is final, or that the store has. Of a view that is being made, nothing is:
    hundreds of thousands of keys that are looked at for nothing, page by page, leave no time to make it."""
    chains, ts, tables = cells.chains, to.ts, to.tables
    found = []
    for key, base in cells.touched.items():
        version = chains[key]
        while (older := version[2]) is not None and older[0] > base:
            version = older
        if version[0] <= base or version[0] <= tables.get(key[:PREFIX_BYTES], ts):
            found.append(key)
    return found


def _final_versions(version: Version | None, above: int, to: int) -> Iterator[tuple[int, Row | None]]:
    """Newest first."""
    while version is not None and version[0] > above:
        if version[0] <= to:
            yield version[0], version[1]
        version = version[2]


class Memory:
    """The remembered transactions of a log in the store: chunks, of which the last one is written until it is full."""

    def __init__(self, log: str, incarnation: int, settings: StoreSettings) -> None:
        self._log, self._incarnation, self._entries_max = log, incarnation, settings.page_cells
        self._number = 0
        self._tail: list[Remembered] = []
        #: With the highest first start in each.
        self.chunks: dict[str, int] = {}

    def add(self, entries: list[Remembered]) -> list[tuple[str, bytes]]:
        """What is to be written."""
        writes = []
        for entry_start in range(0, len(entries), self._entries_max):
            writes += self._add(entries[entry_start : entry_start + self._entries_max])
        return writes

    def _add(self, entries: list[Remembered]) -> list[tuple[str, bytes]]:
        if len(self._tail) + len(entries) > self._entries_max:
            self._number += 1
            self._tail = []
        self._tail += entries
        name = chunk_name(self._log, self._incarnation, self._number)
        self.chunks[name] = max(tx_id[1] for tx_id, _, _ in self._tail)
        return [(name, pack_memory(self._tail))]

    def expire(self, forgotten_ts: int) -> list[tuple[str, bytes]]:
        """Chunks that nobody needs who begins with a checkpoint that says what is forgotten."""
        gone = [name for name, highest in self.chunks.items() if highest <= forgotten_ts]
        gone = [name for name in gone if name != chunk_name(self._log, self._incarnation, self._number)]
        for name in gone:
            del self.chunks[name]
        return [(name, b"") for name in gone]


class Saver:
    """The checkpoints of one participant. One at a time."""

    def __init__(
        self, host: Host, machine: Participant, log: str, incarnation: int, settings: StoreSettings, last: Checkpoint
    ) -> None:
        assert machine.journal is not None and isinstance(machine.cells, StoredCells)
        self.host = host
        self.machine = machine
        self.journal = machine.journal
        self.cells = machine.cells
        self._name = name_of(log, incarnation)
        self._settings = settings
        self.memory = Memory(log, incarnation, settings)
        self.memory.chunks.update(last.chunks)
        self._forgotten_ts = last.forgotten_ts
        #: The checkpoint that is being made: what it will be up to, what it covers, and its writes.
        self.target: Stored | None = None
        self._covered_ts = 0
        self.position = self.journal.position
        self._made: Checkpoint | None = None
        self._pages = Pages(self.cells, (), self.journal.stored, 0)
        self._entries: list[tuple[str, bytes]] = []
        self._number = 0
        self._wrote_entry = False
        #: The newest timestamp that was known when it was last looked.
        self._newest_ts = 0

    def begin(self, place: Callable[[int], tuple[str, int]], before: tuple[str, int]) -> bool:
        """Whether there is something to save. `place` tells after which log and lsn replay begins if records up to an
        own lsn are covered; `before` is where it begins with the last checkpoint."""
        machine, journal = self.machine, self.journal
        ts = max(journal.stored.ts, self._moment())
        target = final_to(machine, journal, ts)
        covered_ts = min(target.lowest, machine.followed_ts())
        position = journal.needed_from(covered_ts, machine.last_lsn)
        wanted, machine.wanted_ts = machine.wanted_ts, 0
        if target == journal.stored and place(position) == before and not wanted:
            return False
        self._close(ts)
        self.host.probe(BEGUN)
        self.target, self._covered_ts, self.position = target, covered_ts, position
        kept = tuple(journal.kept(machine, position, covered_ts))
        remembered, journal.memory = journal.memory, []
        self._number += 1
        self._entries = [*self.memory.add(remembered), *self.memory.expire(self._forgotten_ts)]
        chunks = tuple(self.memory.chunks.items())
        self._made = Checkpoint(
            target,
            *place(position),
            kept,
            chunks,
            machine.forgotten_ts,
            machine.cells.horizon,
            machine.to_keep(),
        )
        self._pages = Pages(self.cells, with_final(self.cells, target), target, self._settings.page_cells)
        self._wrote_entry = False
        return True

    def _moment(self) -> int:
        """Up to where everything is decided; what is young may come late, and is left for the next time. If nothing
        has come since the last time, all is saved: the log of a former life is not needed for ever."""
        undecided = self.machine.lowest_undecided()
        newest = max(self.machine.newest_ts, self.journal.highest_ts)
        before, self._newest_ts = self._newest_ts, newest
        if newest == before and undecided == FOREVER:
            return newest
        old_enough = max(newest - (self._settings.lag_ms << MS_SHIFT), self.machine.wanted_ts)
        return min(old_enough, undecided - 1) & ~RAISE_MAX

    def _close(self, ts: int) -> None:
        """From now on nobody commits at or below it (rule H3)."""
        self.machine.marks.raise_floor(ts)

    def next_write(self) -> Callable[[int], WriteCells] | None:
        """Called again when the one before is durable; None: the checkpoint is."""
        page = self._pages.next()
        if page is not None:
            cells, notes = page
            return lambda number: WriteCells(number, cells, notes)
        if self._entries:
            return self._write_entry(*self._entries.pop(0))
        if not self._wrote_entry:
            self._wrote_entry = True
            self.host.probe(CELLS_WRITTEN)
            assert self._made is not None
            return self._write_entry(self._name, self._made.pack())
        return None

    def _write_entry(self, name: str, data: bytes) -> Callable[[int], WriteCells]:
        key, version = entry_key(name), self._number
        cell = (key, version, (data,) if data else None)
        notes = ((version, key, version - 1), *([] if data else [(version, key, version)]))
        return lambda number: WriteCells(number, (cell,), notes)

    def saved(self) -> tuple[str, int]:
        """It is durable. Returns where replay begins."""
        assert self.target is not None and self._made is not None
        self.host.probe(SAVED)
        self._pages.written()
        self.journal.saved(self.target, self.position, self._covered_ts)
        self.cells.stored_ts = self.target.lowest
        self._forgotten_ts = self._made.forgotten_ts
        replay_from = (self._made.segment, self._made.lsn)
        self.target = self._made = None
        return replay_from
