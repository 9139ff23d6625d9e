"""Bulk loads in the store of one LTM: begin, stage, and either show or remove. See `loads` for what a load is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from ..changetables.errors import OperationalError, TransactionConflict
from .codec import pack, unpack
from .loads import NEVER, Load, Loaded, loads_from_plain, loads_to_plain, visible_from
from .ports import BulkStore, Staged, Store
from .versions import TableVersions

#: The meta entry of the store that names all loads.
META = "loads"


class Staging:
    """All loads of one store. Whoever calls what writes holds the lock for checkpoints."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: None: this store takes no loads.
        self._bulk: BulkStore | None = store if isinstance(store, BulkStore) else None
        #: By `staged_ts`: those under way, and those that some readers may not see yet.
        self._loads: dict[int, Load] = {}
        #: Those that were removed since the start.
        self._gone: dict[int, Load] = {}
        #: Nobody reads below it: loads up to there count as written at `staged_ts` as well.
        self._oldest = 0
        #: (table id, commit_ts) -> the timestamp of the cells in the store.
        self._stored_as: dict[tuple[int, int], int] = {}
        #: Of each load under way: the keys that others wrote to its table since, as far as they left memory.
        self._beside: dict[int, set[bytes]] = {}
        #: The last load was at this commit_ts.
        self.loaded_ts = 0

    @property
    def possible(self) -> bool:
        return self._bulk is not None

    def meta(self) -> dict[str, bytes]:
        """For every checkpoint: what the store has to know of loads."""
        return {META: pack(loads_to_plain(self._loads))} if self._bulk is not None else {}

    # -- one load

    def begin(self, staged_ts: int, table_ids: Sequence[int]) -> tuple[Load, dict[str, bytes]]:
        """The load, and what has to be in the store before its first cell (`note_begun`). The caller holds the lock:
        another load is committed under it, and must not be in the store as loaded before that is in the log.

        One load of a table at a time: two do not see each other's keys."""
        if any(load.table_ids[0] == table_ids[0] and not load.is_loaded for load in self._loads.values()):
            raise TransactionConflict("another load of the table is under way", hint="load it again when that is done")
        load = Load(staged_ts, NEVER, tuple(table_ids))
        self._beside[staged_ts] = set()
        self._loads[staged_ts] = load
        self._counted()
        return load, self.meta()

    def note_begun(self, meta: dict[str, bytes]) -> None:
        """No checkpoint may come between this and `begin`: whoever calls it holds the lock for checkpoints."""
        self._store.write((), (), meta, lambda: None)

    def writing(self) -> AbstractContextManager[Staged]:
        """One durable write of staged cells."""
        assert self._bulk is not None, "this store takes no loads"
        return self._bulk.staging()

    def has(self, load: Load, key: bytes) -> bool:
        """Whether a row with this key was staged."""
        assert self._bulk is not None, "this store takes no loads"
        return self._bulk.has_staged(key, load.staged_ts)

    def written_beside(self, load: Load, versions: TableVersions[object]) -> Iterable[bytes]:
        """The keys of its table that others wrote since it began, and some of before. The caller holds the lock."""
        return {*versions.dirty, *versions.frozen, *self._beside[load.staged_ts]}

    def note_stored(self, frozen: Iterable[TableVersions[object]]) -> None:
        """A checkpoint has stored these, and they leave memory. The caller holds the lock."""
        for staged_ts, keys in self._beside.items():
            table_id = self._loads[staged_ts].table_ids[0]
            for versions in frozen:
                if versions.table_id == table_id:
                    keys.update(versions.frozen)

    def is_loaded(self, load: Load) -> bool:
        """Whether it is committed."""
        return self._loads[load.staged_ts].is_loaded

    @property
    def staged_ts(self) -> int:
        """The highest timestamp of a load, also of one that did not happen: nothing may be written there again."""
        return max([0, *self._loads, *self._gone])

    def unstage(self, load: Load) -> None:
        """Remove the cells of a load that did not happen; `forget` comes after it."""
        assert self._bulk is not None, "this store takes no loads"
        for table_id in load.table_ids:
            self._bulk.unstage(table_id, load.staged_ts)

    def forget(self, load: Load) -> None:
        """Nothing is left of it. The caller holds the lock."""
        self._beside.pop(load.staged_ts, None)
        del self._loads[load.staged_ts]
        # Somebody may still look at what was there before, and must not see it.
        self._gone[load.staged_ts] = load
        self._counted()

    def show(self, loaded: Loaded, versions: Mapping[int, TableVersions[object]]) -> None:
        """It is committed. The caller holds the lock; readers come there after the flush."""
        if loaded.staged_ts not in self._loads:
            raise OperationalError(
                "the commit log has a bulk load that the store does not know of",
                hint="restore log and store from one backup",
            )
        load = self._loads[loaded.staged_ts]._replace(commit_ts=loaded.commit_ts)
        self._loads[loaded.staged_ts] = load
        self._beside.pop(loaded.staged_ts, None)
        self.loaded_ts = loaded.commit_ts
        self._counted()
        for table_id in load.table_ids:
            if table_id in versions:
                highest = self._store.max_key(table_id.to_bytes(4, "big"), (table_id + 1).to_bytes(4, "big"))
                versions[table_id].loaded(loaded.commit_ts, highest or b"")

    def passed(self, oldest: int) -> None:
        """Nobody reads below `oldest` any more. What is in memory keeps its timestamp: see `stored_as`."""
        if any(self._oldest < load.commit_ts <= oldest for load in self._loads.values()):
            self._oldest = oldest
            self._counted()

    def stored_as(self, table_id: int, commit_ts: int) -> int:
        """The timestamp that the store has for a version: the same, unless it was loaded."""
        return self._stored_as.get((table_id, commit_ts), commit_ts) if self._stored_as else commit_ts

    def _counted(self) -> None:
        self._stored_as = {
            (table_id, load.commit_ts): load.staged_ts
            for load in self._loads.values()
            if load.is_loaded
            for table_id in load.table_ids
        }
        if self._bulk is not None:
            told = {ts: load for ts, load in self._loads.items() if load.commit_ts > self._oldest}
            self._bulk.count_as(visible_from(told | self._gone))

    # -- recovery

    def recover(self, oldest: int) -> None:
        """Before the log is replayed. Nobody reads below `oldest`: loads of before need not be told apart any more."""
        packed = self._store.meta(META)
        if packed is not None and self._bulk is not None:
            known = loads_from_plain(unpack(packed))
            self._loads = {ts: load for ts, load in known.items() if load.commit_ts > oldest}
            self._counted()

    def remove_unfinished(self) -> None:
        """After the log was replayed: what it does not know of never happened."""
        for load in [load for load in self._loads.values() if not load.is_loaded]:
            self.unstage(load)
            self.forget(load)
