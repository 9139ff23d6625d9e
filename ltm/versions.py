"""Multi-version rows of one LTM in memory, as layers over a store.

    dirty    versions since the last checkpoint began      written by commits
    frozen   versions that a checkpoint is writing now     read only
    young    versions that are in the store, kept to read  rows of the last checkpoint, loaded rows
    old      the same, one generation older                dropped when the next generation begins

Content moves only from a layer to the one below it, and arrives there before it leaves. A reader that looks from top
to bottom therefore misses nothing, without any lock. Each entry is a chain, newest version first, of immutable tuples
(commit_ts, row, older); row is None where the row was deleted. What no layer has is in the store or nowhere.

Nothing here reads: what is not in memory is raised as `NotLoaded`, the driver loads it with `admit` and asks again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ..changetables.types import Row

R = TypeVar("R")
Version: TypeAlias = tuple[int, R | None, tuple | None]  # type: ignore[type-arg]  # a recursive tuple

_row_of = itemgetter(1)  # of a version
#: What a key without any row looks like.
ABSENT: tuple[int, None, None] = (0, None, None)


class NotLoaded(Exception):
    """The call needs rows that only the store has: load `keys` (or the index entries under `prefixes`), then repeat."""

    def __init__(self, table_id: int, keys: list[bytes], prefixes: list[bytes]) -> None:
        super().__init__(table_id)
        self.table_id = table_id
        self.keys = keys
        self.prefixes = prefixes


class Watermarks:
    """Of all deferred views, in order. Replaced as a whole: some look without the lock."""

    __slots__ = ("ts",)

    def __init__(self) -> None:
        self.ts: tuple[int, ...] = ()


class Horizon:
    """Who still reads what: decides which superseded versions may be forgotten.

    durable_ts   every version at or below it is durable; new readers read there
    sealed_ts    every version at or below it is durable or in the flush that is under way
    pins         the timestamps of readers at work, by reader
    watermarks   of deferred views: their next steps begin there

    The rows of a deferred view have a horizon of their own, where the first two are its watermark: a step writes above
    it, and nobody reads that before it is published. Pins and watermarks are the same for all (`main`).
    """

    __slots__ = ("durable_ts", "pins", "sealed_ts", "watermarks")

    def __init__(self, main: Horizon | None = None) -> None:
        self.durable_ts = 0
        self.sealed_ts = 0
        self.pins: dict[int, int] = {} if main is None else main.pins
        self.watermarks: Watermarks = Watermarks() if main is None else main.watermarks

    def publish(self, ts: int) -> None:
        """Readers read there from now on."""
        self.sealed_ts = ts
        self.durable_ts = ts

    def pin(self, reader: int) -> int:
        """Register a reader at durable_ts. The second look closes the gap to a commit that just forgot that version."""
        while True:
            at = self.durable_ts
            self.pins[reader] = at
            if at == self.durable_ts:
                return at

    def unpin(self, reader: int) -> None:
        self.pins.pop(reader, None)

    def pinned_between(self, low: int, high: int) -> bool:
        """Is there a reader that sees a version written at `low` and superseded at `high`?"""
        marks = self.watermarks.ts
        if marks:
            # There may be thousands of deferred views, and this is asked for every row that is written again.
            place = bisect_left(marks, low)
            if place < len(marks) and marks[place] < high:
                return True
        return any(low <= at < high for at in list(self.pins.values()))

    def oldest(self) -> int:
        """Nobody reads below it, now or later."""
        return min([self.durable_ts, *self.watermarks.ts[:1], *list(self.pins.values())])


class _Keys(NamedTuple):
    """The keys of one dirty layer in order. The dict only grows, so its length says whether this is up to date."""

    rows: dict[bytes, tuple]  # type: ignore[type-arg]
    rows_count: int
    ordered: list[bytes]


class TableVersions(Generic[R]):
    """The versions of one table, index or view."""

    __slots__ = (
        "_dirty_keys",
        "_frozen_keys",
        "changed_ts",
        "decode",
        "dirty",
        "encode",
        "first_only",
        "freed_count",
        "frozen",
        "frozen_first_only",
        "frozen_replaced",
        "horizon",
        "old",
        "replaced",
        "stored_max",
        "table_id",
        "young",
    )

    def __init__(
        self, table_id: int, horizon: Horizon, encode: Callable[[R], bytes], decode: Callable[[bytes], R]
    ) -> None:
        self.table_id = table_id
        self.horizon = horizon
        self.encode = encode
        self.decode = decode
        self.dirty: dict[bytes, Version[R]] = {}
        self.frozen: dict[bytes, Version[R]] = {}
        self.young: dict[bytes, Version[R]] = {}
        self.old: dict[bytes, Version[R]] = {}
        #: Keys of the dirty layer whose first version there took the place of an older one, which becomes garbage, and
        #: the commit_ts of that; 0: only the store knows it.
        self.replaced: dict[bytes, int] = {}
        self.frozen_replaced: dict[bytes, int] = {}
        #: Whether all versions of the dirty layer are the first of their row: nothing but inserts.
        self.first_only = True
        self.frozen_first_only = True
        #: No key above it is in the store: new keys, the common insert, need no look-up there.
        self.stored_max = b""
        self.changed_ts = 0
        #: Counts generations that are forgotten, before they are freed row by row. A reader without the lock may have
        #: one of them still, lose a version in front of an older one, and so reads again if it counts another one.
        self.freed_count = 0
        self._dirty_keys = _Keys(self.dirty, 0, [])
        self._frozen_keys = _Keys(self.frozen, 0, [])

    # -- reading

    def newest(self, key: bytes) -> Version[R] | None:
        """The newest version in memory (ABSENT if there surely is none), or None: it must be loaded."""
        version = self.dirty.get(key)
        if version is None:
            version = self.frozen.get(key)
            if version is None:
                version = self.young.get(key)
                if version is None:
                    version = self.old.get(key)
                    if version is not None:
                        self.young[key] = version
                    elif key > self.stored_max:
                        return ABSENT
        return version

    def newest_rows(self, keys: Sequence[bytes]) -> list[R | None]:
        """The newest row of each key, None where there is none; all must be in memory. Written out: it runs for every
        written and every looked-up row of every transaction, mostly with all keys in one layer or in none."""
        if not keys:
            return []
        dirty, young = self.dirty, self.young
        try:
            if keys[0] in dirty:
                return list(map(_row_of, map(dirty.__getitem__, keys)))
            if keys[0] > self.stored_max and self.surely_absent(keys):
                return [None] * len(keys)
            if keys[0] in young and not self.frozen and dirty.keys().isdisjoint(keys):
                return list(map(_row_of, map(young.__getitem__, keys)))
        except KeyError:
            pass  # not all in one layer: the careful way
        in_dirty, in_frozen, in_young = self.dirty.get, self.frozen.get, self.young.get
        stored_max = self.stored_max
        rows: list[R | None] = []
        missing: list[bytes] = []
        for key in keys:
            version = in_dirty(key) or in_frozen(key) or in_young(key)
            if version is None:
                if key > stored_max:
                    rows.append(None)
                    continue
                version = self.newest(key)
                if version is None:
                    missing.append(key)
                    continue
            rows.append(version[1])
        if missing:
            raise NotLoaded(self.table_id, missing, [])
        return rows

    def surely_absent(self, keys: Sequence[bytes]) -> bool:
        """A quick look at the common insert: True if all keys are new, as memory tells without asking the store. No
        lock is needed."""
        # In this order: rows go from each to the next, also while this looks.
        return (
            self.dirty.keys().isdisjoint(keys)
            and (not self.frozen or self.frozen.keys().isdisjoint(keys))
            and (not keys or min(keys) > self.stored_max)
        )

    def at(self, key: bytes, ts: int) -> Version[R] | None:
        """The version that a reader at `ts` sees, or None: the store has to be asked."""
        while True:
            freed_count = self.freed_count
            version: Version[R] | None = None
            for layer in (self.dirty, self.frozen, self.young, self.old):
                version = layer.get(key)
                while version is not None and version[0] > ts:
                    version = version[2]
                if version is not None:
                    break
            if version is None:
                return ABSENT if key > self.stored_max else None
            if self.freed_count == freed_count:
                return version

    def each_at(self, keys: list[bytes], ts: int, keep: bool) -> list[R | None] | None:
        """The row that a reader at `ts` sees under each key; None if one of them is not in memory. `keep`: they are
        needed again, so they stay for another generation; the caller holds the lock."""
        freed_count = self.freed_count
        dirty = self.dirty
        frozen = self.frozen  # in this order, see above
        young = self.young
        if keys:
            # Mostly they are all in one layer, as in `newest_rows`.
            layer = dirty if keys[0] in dirty else {} if frozen or not dirty.keys().isdisjoint(keys) else young
            try:
                found = [row for seen_ts, row, _ in map(layer.__getitem__, keys) if seen_ts <= ts]
            except KeyError:
                found = []
            if len(found) == len(keys) and self.freed_count == freed_count:
                return found
        in_dirty, in_frozen, in_young, in_old = dirty.get, frozen.get, young.get, self.old.get
        rows: list[R | None] = []
        for key in keys:
            version = in_dirty(key) or in_frozen(key) or in_young(key)
            if version is None:
                version = in_old(key)
                if keep and version is not None:
                    self.young[key] = version
            if version is None or version[0] > ts:
                version = self.at(key, ts)
                if version is None:
                    return None
            rows.append(version[1])
        return rows if self.freed_count == freed_count else self.each_at(keys, ts, keep)

    def whole_at(self, keys: list[bytes], ts: int) -> list[R] | None:
        """As `rows_at`, without the keys. Versions that are not durable yet are passed here: a reader beside writers
        finds one in front of most rows of a view."""
        freed_count = self.freed_count
        in_dirty, in_frozen, in_young, in_old = self.dirty.get, self.frozen.get, self.young.get, self.old.get
        rows: list[R] = []
        for key in keys:
            version = in_dirty(key) or in_frozen(key) or in_young(key) or in_old(key)
            while version is not None and version[0] > ts:
                version = version[2]
            if version is None:
                version = self.at(key, ts)
                if version is None:
                    return None
            row = version[1]
            if row is not None:
                rows.append(row)
        return rows if self.freed_count == freed_count else self.whole_at(keys, ts)

    def rows_at(self, keys: list[bytes], ts: int) -> list[tuple[bytes, R]] | None:
        """The rows that a reader at `ts` sees under these keys; None if one of them is not in memory. Written out:
        small views are read as a whole again and again."""
        freed_count = self.freed_count
        in_dirty, in_frozen, in_young, in_old = self.dirty.get, self.frozen.get, self.young.get, self.old.get
        rows = []
        for key in keys:
            version = in_dirty(key) or in_frozen(key) or in_young(key) or in_old(key)
            if version is None or version[0] > ts:
                # Not here, or newer: the careful way.
                version = self.at(key, ts)
                if version is None:
                    return None
            row = version[1]
            if row is not None:
                rows.append((key, row))
        return rows if self.freed_count == freed_count else self.rows_at(keys, ts)

    def keys_between(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys of the dirty and frozen layers in start <= key < stop, in order."""
        dirty = self.dirty
        frozen = self.frozen  # after dirty, which may have become the frozen layer just now
        self._dirty_keys = ordered = _in_order(self._dirty_keys, dirty)
        found = ordered.ordered[bisect_left(ordered.ordered, start) : bisect_left(ordered.ordered, stop)]
        if frozen and frozen is not dirty:
            self._frozen_keys = ordered = _in_order(self._frozen_keys, frozen)
            more = ordered.ordered[bisect_left(ordered.ordered, start) : bisect_left(ordered.ordered, stop)]
            found = sorted({*found, *more}) if found else more
        return found

    def changed_between(self, start: bytes, stop: bytes, since: int) -> bool:
        """Did anything in the range change after `since`, as far as memory tells (see `Ltm.changed_in_store`)?"""
        if self.changed_ts <= since:
            return False
        for key in self.keys_between(start, stop):
            version = self.dirty.get(key) or self.frozen.get(key)
            if version is not None and version[0] > since:
                return True
        return False

    # -- writing (one thread at a time)

    def put(self, key: bytes, ts: int, row: R | None, replaces: bool) -> None:
        """A new version; `replaces`: there is an older one, in whatever layer or in the store."""
        head = self.dirty.get(key)
        self.first_only = False
        if head is None:
            self.dirty[key] = (ts, row, None)
            if replaces:
                self.replaced[key] = (self.frozen.get(key) or self.young.get(key) or self.old.get(key) or ABSENT)[0]
        else:
            self.dirty[key] = (ts, row, self._kept(head))
        if ts > self.changed_ts:
            # Entries of an index are made later: what is put now may be older than what was noted.
            self.changed_ts = ts

    def put_many(self, changes: Sequence[tuple[bytes, R | None, R | None]], ts: int) -> None:
        """`put` for each (key, old row, new row)."""
        dirty, horizon = self.dirty, self.horizon
        sealed_ts, pins, marks = horizon.sealed_ts, horizon.pins, horizon.watermarks.ts
        rows_count = len(dirty) + len(changes)
        for key, old, new in changes:
            head = dirty.get(key)
            if head is not None:
                # `_kept`, written out: a view's rows come here again and again.
                head_ts, row, older = head
                if head_ts > sealed_ts:
                    dirty[key] = (ts, new, older)
                elif older is None or ((pins or marks) and horizon.pinned_between(older[0], head_ts)):
                    dirty[key] = (ts, new, head)
                else:
                    dirty[key] = (ts, new, (head_ts, row, older[2]))
            elif old is None:
                dirty[key] = (ts, new, None)
            else:
                self.put(key, ts, new, replaces=True)
        if len(dirty) != rows_count:
            self.first_only = False
        self.changed_ts = ts

    def put_new(self, keys: list[bytes], rows: list[R], ts: int) -> None:
        """`put_many` of rows that were not there before, nor anything under their keys in the dirty layer."""
        self.dirty.update(zip(keys, zip(repeat(ts), rows, repeat(None), strict=False), strict=True))
        self.changed_ts = ts

    def _kept(self, head: Version[R]) -> Version[R] | None:
        """What stays of the chain below a new version: what readers, now or later, can still see."""
        ts, row, older = head
        horizon = self.horizon
        if ts > horizon.sealed_ts:
            # Not yet in any flush: it becomes durable together with the new version, nobody ever reads between them.
            return older
        if older is None or ((horizon.pins or horizon.watermarks.ts) and horizon.pinned_between(older[0], ts)):
            return head
        return (ts, row, older[2])

    def admit(self, key: bytes, version: Version[R]) -> None:
        """Keep a version that was loaded from the store: the newest one there, or ABSENT."""
        self.young.setdefault(key, version)

    # -- layers

    def freeze(self) -> None:
        """The dirty layer is handed to a checkpoint. The frozen one must be empty: one checkpoint at a time."""
        self.frozen_replaced = self.replaced
        self.frozen_first_only = self.first_only
        self.first_only = True
        self._frozen_keys = self._dirty_keys
        self.frozen = self.dirty
        self.dirty = {}
        self.replaced = {}

    def checkpointed(self, max_key: bytes) -> dict[bytes, Version[R]]:
        """All that is frozen is in the store now; `max_key` is the highest key of it. Returns the generation that is
        forgotten: to free it takes time."""
        forgotten: dict[bytes, Version[R]] = {}
        if self.frozen:
            self.stored_max = max(self.stored_max, max_key)
            self.freed_count += 1
            forgotten = self.old
            self.old = self.young
            self.young = self.frozen
            self.frozen = {}
            self.frozen_replaced = {}
        return forgotten

    def age(self) -> dict[bytes, Version[R]]:
        """A new generation: rows that nobody asked for since the last one are forgotten, and returned."""
        forgotten = self.old
        self.old = self.young
        self.young = {}
        return forgotten

    def loaded(self, ts: int, max_key: bytes) -> None:
        """Rows came into the store beside memory, at `ts`: what memory knows to be absent may be there now."""
        self.young = {}
        self.old = {}
        self.stored_max = max(self.stored_max, max_key)
        self.changed_ts = max(self.changed_ts, ts)

    def transform(self, change: Callable[[R], R]) -> None:
        """Rewrite every row in memory (a column was added)."""

        def chain(version: Version[R]) -> Version[R]:
            ts, row, older = version
            return (ts, None if row is None else change(row), None if older is None else chain(older))

        for name in ("old", "young", "frozen", "dirty"):
            setattr(self, name, {key: chain(version) for key, version in getattr(self, name).items()})


def _in_order(known: _Keys, rows: dict[bytes, tuple]) -> _Keys:  # type: ignore[type-arg]
    if known.rows is not rows:
        known = _Keys(rows, 0, [])
    if known.rows_count == len(rows):
        return known
    keys = list(rows)  # atomic, in order of insertion: what is new stands behind the keys known
    ordered = known.ordered + keys[known.rows_count :]
    ordered.sort()  # nearly sorted: one merge
    return _Keys(rows, len(keys), ordered)


#: Rows that changed at a commit_ts: (commit_ts, keys, old rows, new rows); None: there were no old ones. By columns: a
#: tuple for each row would be one more object for Python's garbage collector to look at.
Noted: TypeAlias = tuple[int, Sequence[bytes], Sequence[Row | None] | None, Sequence[Row | None]]


class IndexVersions(TableVersions[bytes]):
    """The entries of an index: row = the primary key. Look-ups go by prefix, so entries are also kept by prefix.

    Entries follow from the rows, and most are never looked up while they are new. So a commit only notes the changed
    rows (`later`); their entries are made (`fold`) before anybody looks, and before a checkpoint, unless it makes them
    itself. Whoever calls anything else here without having called `fold` under the lock sees too little.
    """

    __slots__ = ("_by_prefix", "_by_prefix_frozen", "_later", "_stored", "noted_frozen", "prefix_and_entry")

    def __init__(self, table_id: int, horizon: Horizon) -> None:
        super().__init__(table_id, horizon, bytes, bytes)
        self.prefix_and_entry: Callable[[Row, bytes], tuple[bytes, bytes]]
        self._later: deque[Noted] = deque()
        #: What a checkpoint makes entries of.
        self.noted_frozen: deque[Noted] = deque()
        self._by_prefix: dict[bytes, list[bytes]] = {}
        self._by_prefix_frozen: dict[bytes, list[bytes]] = {}
        self._stored: dict[bytes, list[tuple[bytes, bytes]]] = {}

    def later(self, changes: list[tuple[bytes, Row | None, Row | None]], ts: int) -> None:
        """These rows (key, old row, new row) changed at `ts`."""
        if changes:
            keys, old, new = zip(*changes, strict=True)
            self._later.append((ts, keys, old, new))
        if ts > self.changed_ts:
            self.changed_ts = ts

    def later_new(self, keys: list[bytes], rows: list[Row], ts: int) -> None:
        """These rows are new at `ts`. Nobody changes the lists."""
        self._later.append((ts, keys, None, rows))
        if ts > self.changed_ts:
            self.changed_ts = ts

    @property
    def behind(self) -> bool:
        # In this order: `freeze_unmade` moves from the first to the second.
        return bool(self._later) or bool(self.noted_frozen)

    def fold(self, rows_max: int | None = None) -> None:
        """Make the entries of changed rows, of all or of about `rows_max`. The caller holds the lock."""
        self._fold_frozen()
        rows_count = 0
        while self._later and (rows_max is None or rows_count < rows_max):
            noted = self._later[0]
            rows_count += len(noted[1])
            self._put_entries(noted)
            # Only now: a reader that finds nothing left to fold must find the entries.
            self._later.popleft()

    def _fold_frozen(self) -> None:
        """Somebody looks while a checkpoint makes the entries of inserted rows itself."""
        while self.noted_frozen:
            ts, keys, _, rows = self.noted_frozen[0]
            for key, row in zip(keys, rows, strict=True):
                if row is not None:
                    prefix, entry = self.prefix_and_entry(row, key)
                    self._by_prefix_frozen.setdefault(prefix, []).append(entry)
                    self.frozen[entry] = (ts, key, None)
            self.noted_frozen.popleft()

    def _put_entries(self, noted: Noted) -> None:
        both, put_entry = self.prefix_and_entry, self.put_entry
        ts, keys, before, after = noted
        for key, old, new in zip(keys, repeat(None) if before is None else before, after, strict=False):
            if old is None:
                if new is not None:
                    put_entry(*both(new, key), ts, key)
                continue
            prefix, entry = both(old, key)
            if new is None:
                put_entry(prefix, entry, ts, None)
                continue
            new_prefix, new_entry = both(new, key)
            if new_entry != entry:
                put_entry(prefix, entry, ts, None)
                put_entry(new_prefix, new_entry, ts, key)

    def put_entry(self, prefix: bytes, key: bytes, ts: int, primary_key: bytes | None) -> None:
        if key in self.dirty:
            self.put(key, ts, primary_key, replaces=False)
            return
        # In this order: after an interrupt the entry is made again, and a key that stands twice under its prefix does
        # no harm, one that is missing there would never be found.
        entries = self._by_prefix.get(prefix)
        if entries is None:
            self._by_prefix[prefix] = [key]
        else:
            entries.append(key)
        if primary_key is None:
            # Only a removed entry leaves garbage: before a new one there is nothing, or a tombstone with its own note.
            self.replaced[key] = 0
        self.dirty[key] = (ts, primary_key, None)

    def admit(self, key: bytes, version: Version[bytes]) -> None:
        """Entries are read from the store by prefix: single ones are not kept, they would be outdated one day."""

    def must_load(self, prefixes: Iterable[bytes]) -> None:
        """Raise NotLoaded for those of the prefixes whose stored entries are not in memory, all at once."""
        missing = [prefix for prefix in prefixes if prefix < self.stored_max and prefix not in self._stored]
        if missing:
            raise NotLoaded(self.table_id, [], list(dict.fromkeys(missing)))

    def primary_keys(self, prefix: bytes) -> list[bytes]:
        """The primary keys of the newest rows under `prefix`, in key order."""
        if self.behind:
            self.fold()
        found: dict[bytes, bytes | None] = {}
        self.must_load((prefix,))
        found.update(self._stored.get(prefix, ()))
        for key in self._by_prefix_frozen.get(prefix, ()):
            found[key] = self.frozen[key][1]
        for key in self._by_prefix.get(prefix, ()):
            if key in self.dirty:
                found[key] = self.dirty[key][1]
        return [found_key for _, found_key in sorted(found.items()) if found_key is not None]

    def at_prefix(self, prefix: bytes, ts: int) -> dict[bytes, bytes | None]:
        """The entries under `prefix` that memory has for a reader at `ts`, None where one was removed. No lock is
        needed: a key that a checkpoint moves to the store meanwhile is found there."""
        # In this order: content moves from the first to the second.
        keys = [*self._by_prefix.get(prefix, ()), *self._by_prefix_frozen.get(prefix, ())]
        found: dict[bytes, bytes | None] = {}
        for key in keys:
            for layer in (self.dirty, self.frozen):
                version = layer.get(key)
                while version is not None and version[0] > ts:
                    version = version[2]
                if version is not None:
                    found[key] = version[1]
                    break
        return found

    def admit_prefix(self, prefix: bytes, entries: list[tuple[bytes, bytes]]) -> None:
        """Keep the newest entries under `prefix` as the store has them, until the next generation or checkpoint."""
        self._stored[prefix] = entries

    def changed_between(self, start: bytes, stop: bytes, since: int) -> bool:
        self.fold()
        return super().changed_between(start, stop, since)

    def freeze(self) -> None:
        self.fold()
        super().freeze()
        self._by_prefix_frozen = self._by_prefix
        self._by_prefix = {}

    def freeze_unmade(self) -> None:
        """As `freeze`, of an index that only has entries of new rows: those that nobody looked for are not made here,
        and those that were made are made there again, just so."""
        super().freeze()
        self._by_prefix_frozen = self._by_prefix
        self._by_prefix = {}
        self.noted_frozen = self._later
        self._later = deque()

    def checkpointed(self, max_key: bytes) -> dict[bytes, Version[bytes]]:
        # First: readers hold no lock, and whoever does not find something in memory any more must look into the store.
        self.stored_max = max(self.stored_max, max_key)
        self._by_prefix_frozen = {}
        self.noted_frozen = deque()
        self._stored = {}
        # There is no use in keeping what is in the store: see `admit`.
        forgotten, self.frozen, self.frozen_replaced = self.frozen, {}, {}
        return forgotten

    def loaded(self, ts: int, max_key: bytes) -> None:
        self._stored = {}
        super().loaded(ts, max_key)

    def age(self) -> dict[bytes, Version[bytes]]:
        self._stored = {}
        return super().age()


RowVersions: TypeAlias = TableVersions[Row]
