"""What every store must do, as one suite: a new implementation is one `open()`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from viewtide.changetables.errors import InterfaceError, InternalError, OperationalError
from viewtide.ltm.hbase_client import TIMESTAMP_MAX, Hbase
from viewtide.ltm.ports import KEY_BYTES_MAX, Cell, Store
from viewtide.ltm.store import lmdb as lmdb_module
from viewtide.ltm.store.hbase import HbaseStore
from viewtide.ltm.store.lmdb import LmdbStore
from viewtide.ltm.store.memory import MemoryStore

TABLE = b"\0\0\0\7"
END = b"\0\0\0\x08"
NOW = 2**64 - 1
Note = tuple[int, bytes, int]


def key(number: int) -> bytes:
    return TABLE + number.to_bytes(2, "big")


def put(
    store: Store, cells: Sequence[Cell] = (), notes: Iterable[Note] = (), meta: dict[str, bytes] | None = None
) -> None:
    store.write([cells] if cells else [], notes, meta or {}, lambda: None)


def pages(store: Store, start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
    """The whole range, page by page, as the port tells its callers to do it."""
    found: list[Cell] = []
    while page := store.scan(start, stop, at, limit):
        assert len(page) <= limit and page[0].key >= start
        found += page
        start = page[-1].key + b"\0"
    return found


class StoreContract:
    """Inherit, and say how to open an empty store."""

    #: The highest timestamp that can be written; read can be at any.
    ts_max = NOW
    #: A version that was removed may stay invisible when it is written again, which nobody does.
    hides_what_was_removed = False

    def open(self, path: Path) -> Store:
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.open(tmp_path / "store")
        yield store
        store.close()

    # Versions

    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        assert store.get(key(1), NOW) is None
        assert store.get_many([key(1), key(2)], NOW) == [None, None]
        assert store.scan(TABLE, END, NOW, 10) == []
        assert store.max_key(TABLE, END) is None
        assert store.meta("lsn") is None
        assert store.prune(NOW, 10) == 0

    def test_get_returns_the_newest_version_at_or_below_the_timestamp(self, store: Store) -> None:
        versions = [Cell(key(1), ts, b"at %d" % ts) for ts in (10, 20, 30)]
        put(store, versions)
        assert store.get(key(1), 9) is None
        assert [store.get(key(1), at) for at in (10, 19, 20, 29, 30, NOW)] == [versions[n] for n in (0, 0, 1, 1, 2, 2)]

    def test_versions_may_arrive_in_any_order(self, store: Store) -> None:
        put(store, [Cell(key(1), 30, b"c")])
        put(store, [Cell(key(1), 10, b"a")])
        put(store, [Cell(key(1), 20, b"b")])
        assert [cell and cell.value for cell in (store.get(key(1), at) for at in (10, 20, 30))] == [b"a", b"b", b"c"]

    def test_the_lowest_and_the_highest_timestamp_are_timestamps_like_others(self, store: Store) -> None:
        put(store, [Cell(key(1), 0, b"first"), Cell(key(1), self.ts_max, b"last"), Cell(key(2), 0, b"x")])
        assert store.get(key(1), 0) == Cell(key(1), 0, b"first")
        assert store.get(key(1), self.ts_max - 1) == Cell(key(1), 0, b"first")
        assert store.get(key(1), NOW) == Cell(key(1), self.ts_max, b"last")
        assert pages(store, TABLE, END, 0, 1) == [Cell(key(1), 0, b"first"), Cell(key(2), 0, b"x")]

    def test_a_tombstone_is_a_version_and_not_an_empty_value(self, store: Store) -> None:
        put(store, [Cell(key(1), 10, b""), Cell(key(1), 20, None), Cell(key(1), 30, b"\0")])
        assert [store.get(key(1), at) for at in (10, 20, 30)] == [
            Cell(key(1), 10, b""),
            Cell(key(1), 20, None),
            Cell(key(1), 30, b"\0"),
        ]

    def test_values_of_all_sizes(self, store: Store) -> None:
        cells = [Cell(key(size), 10, bytes([size % 251]) * size) for size in (0, 1, 5, 4_000, 4_096, 60_000)]
        put(store, cells)
        assert store.scan(TABLE, END, 10, 100) == cells

    def test_get_many_keeps_the_order_and_the_repetitions_of_the_keys(self, store: Store) -> None:
        put(store, [Cell(key(n), 10, b"%d" % n) for n in (1, 3, 5)])
        found = store.get_many([key(5), key(2), key(1), key(5), key(9)], 10)
        assert [cell and cell.value for cell in found] == [b"5", None, b"1", b"5", None]
        assert store.get_many([], 10) == []

    def test_the_longest_key_can_be_stored_noted_and_pruned(self, store: Store) -> None:
        longest = TABLE + b"\xff" * (KEY_BYTES_MAX - 4)
        put(store, [Cell(longest, 10, b"old"), Cell(longest, 20, b"new")], [(20, longest, 10)])
        assert pages(store, TABLE, END, 10, 1) == [Cell(longest, 10, b"old")]
        assert store.max_key(TABLE, END) == longest
        assert store.prune(20, 10) == 1
        assert store.get(longest, 19) is None
        assert store.get(longest, 20) == Cell(longest, 20, b"new")

    def test_a_longer_key_is_refused_and_never_found(self, store: Store) -> None:
        too_long = TABLE + b"a" * (KEY_BYTES_MAX - 3)
        with pytest.raises(InternalError, match=f"{KEY_BYTES_MAX}"):
            put(store, [Cell(key(1), 10, b"a"), Cell(too_long, 10, b"b")])
        assert store.get(key(1), 10) is None
        put(store, [Cell(key(1), 10, b"a")])
        long_bound = TABLE + b"\0" * 2_000
        assert store.get(TABLE + b"a" * 2_000, 10) is None
        assert store.scan(long_bound, END, 10, 10) == [Cell(key(1), 10, b"a")]
        assert store.scan(TABLE, long_bound, 10, 10) == []
        assert store.max_key(long_bound, END) == key(1)
        assert store.max_key(TABLE, TABLE + b"z" * 2_000) == key(1)

    # Scans

    def test_scan_returns_one_version_per_key_in_key_order(self, store: Store) -> None:
        put(store, [Cell(key(n), ts, b"%d" % ts) for n in (3, 1, 2) for ts in (30, 10, 20)])
        assert store.scan(TABLE, END, 25, 10) == [Cell(key(n), 20, b"20") for n in (1, 2, 3)]
        assert store.scan(TABLE, END, 5, 10) == []

    def test_scan_is_bounded_by_the_range_and_the_limit(self, store: Store) -> None:
        cells = [Cell(key(n), 10, b"x") for n in range(10)]
        outside = [Cell(b"\0\0\0\6zz", 10, b"below"), Cell(END + b"00", 10, b"above")]
        put(store, cells + outside)
        assert store.scan(TABLE, END, 10, 100) == cells
        assert store.scan(key(3), key(6), 10, 100) == cells[3:6]
        assert store.scan(key(3), key(6), 10, 2) == cells[3:5]
        assert store.scan(key(6), key(3), 10, 100) == []
        assert store.scan(TABLE, END, 10, 0) == []
        assert store.scan(b"", b"\xff", 10, 100) == [outside[0], *cells, outside[1]]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    def test_paging_meets_every_key_once(self, store: Store, limit: int) -> None:
        put(store, [Cell(key(n), ts, b"%d" % ts) for n in range(20) for ts in range(1, 2 + n % 7)])
        assert pages(store, TABLE, END, NOW, limit) == [Cell(key(n), 1 + n % 7, b"%d" % (1 + n % 7)) for n in range(20)]

    def test_scan_passes_over_many_versions(self, store: Store) -> None:
        put(store, [Cell(key(n), ts, b"%d" % ts) for n in range(4) for ts in range(100)])
        put(store, [Cell(key(n), ts, b"%d" % ts) for n in range(4, 8) for ts in range(200, 300)])
        for at in (0, 1, 50, 95, 98, 99, 199):
            newest = min(at, 99)
            assert store.scan(TABLE, END, at, 10) == [Cell(key(n), newest, b"%d" % newest) for n in range(4)]
        assert [cell.commit_ts for cell in pages(store, TABLE, END, 250, 3)] == [99] * 4 + [250] * 4

    def test_scan_includes_tombstones(self, store: Store) -> None:
        put(store, [Cell(key(1), 10, b"a"), Cell(key(1), 20, None), Cell(key(2), 20, b"b")])
        assert store.scan(TABLE, END, 20, 10) == [Cell(key(1), 20, None), Cell(key(2), 20, b"b")]

    # Writes

    def test_one_write_takes_many_batches_and_calls_between_after_each(self, store: Store) -> None:
        seen: list[tuple[str, bool]] = []

        def batches() -> Iterator[list[Cell]]:
            for n in range(3):
                seen.append((f"batch {n}", store.get(key(0), NOW) is not None))
                yield [Cell(key(n), 10, b"x"), Cell(key(n + 100), 10, b"y")]

        store.write(batches(), (), {}, lambda: seen.append(("between", store.get(key(0), NOW) is not None)))
        assert [name for name, _ in seen] == ["batch 0", "between", "batch 1", "between", "batch 2", "between"]
        assert not any(visible for _, visible in seen)
        assert len(store.scan(TABLE, END, NOW, 100)) == 6

    def test_the_last_of_equal_cells_wins(self, store: Store) -> None:
        put(store, [Cell(key(1), 10, b"z"), Cell(key(1), 10, b"a")])
        assert store.get(key(1), 10) == Cell(key(1), 10, b"a")
        put(store, [Cell(key(1), 10, None)])
        assert store.get(key(1), 10) == Cell(key(1), 10, None)

    def test_the_same_write_again_changes_nothing(self, store: Store) -> None:
        cells = [Cell(key(1), 10, b"a"), Cell(key(1), 20, b"b"), Cell(key(2), 20, None)]
        notes = [(20, key(1), 10), (20, key(2), 20)]
        for _ in range(3):
            put(store, cells, notes, {"lsn": b"7"})
        assert store.stat()["cells"] == 3
        assert store.stat()["notes"] == 2
        assert store.prune(NOW, 10) == 2
        put(store, cells, notes, {"lsn": b"7"})
        assert store.prune(NOW, 10) == 2
        assert store.scan(TABLE, END, NOW, 10) == [Cell(key(1), 20, b"b")]

    def test_an_exception_midway_leaves_nothing_behind(self, store: Store) -> None:
        put(store, [Cell(key(1), 10, b"before")], (), {"lsn": b"1"})

        def breaking() -> Iterator[list[Cell]]:
            yield [Cell(key(1), 20, b"after"), Cell(key(2), 20, b"after")]
            raise RuntimeError("no more cells")

        def breaking_notes() -> Iterator[Note]:
            yield (20, key(1), 10)
            raise RuntimeError("no more notes")

        def interrupt() -> None:
            raise KeyboardInterrupt

        good = [[Cell(key(1), 20, b"after")]]
        with pytest.raises(RuntimeError, match="cells"):
            store.write(breaking(), [(20, key(1), 10)], {"lsn": b"2"}, lambda: None)
        with pytest.raises(RuntimeError, match="notes"):
            store.write(good, breaking_notes(), {"lsn": b"2"}, lambda: None)
        with pytest.raises(KeyboardInterrupt):
            store.write(good, [(20, key(1), 10)], {"lsn": b"2"}, interrupt)
        assert store.scan(TABLE, END, NOW, 10) == [Cell(key(1), 10, b"before")]
        assert store.meta("lsn") == b"1"
        assert store.prune(NOW, 10) == 0
        put(store, [Cell(key(1), 20, b"after")])
        assert store.get(key(1), NOW) == Cell(key(1), 20, b"after")

    def test_many_notes_in_one_write(self, store: Store) -> None:
        cells = [Cell(key(n), ts, b"x") for n in range(700) for ts in (10, 20)]
        put(store, cells, ((20, key(n), 10) for n in range(700)))
        assert store.stat()["notes"] == 700
        assert store.prune(20, 10_000) == 700
        assert store.stat()["cells"] == 700

    def test_meta_entries_are_replaced_by_name(self, store: Store) -> None:
        put(store, meta={"lsn": b"1", "schema": b""})
        put(store, meta={"lsn": b"2"})
        assert store.meta("lsn") == b"2"
        assert store.meta("schema") == b""
        assert store.meta("ls") is None

    # Prune

    def test_prune_removes_what_is_superseded_up_to_the_horizon(self, store: Store) -> None:
        put(store, [Cell(key(1), ts, b"%d" % ts) for ts in (10, 20, 30)], [(20, key(1), 10), (30, key(1), 20)])
        assert store.prune(19, 10) == 0
        assert store.prune(20, 10) == 1
        assert [store.get(key(1), at) for at in (19, 20, 30)] == [
            None,
            Cell(key(1), 20, b"20"),
            Cell(key(1), 30, b"30"),
        ]
        assert store.prune(30, 10) == 1
        assert store.prune(30, 10) == 0
        assert store.stat()["cells"] == 1

    def test_prune_goes_no_further_than_the_limit(self, store: Store) -> None:
        cells = [Cell(key(n), ts, b"x") for n in range(10) for ts in (10, 20)]
        put(store, cells, [(20, key(n), 10) for n in range(10)])
        assert [store.prune(20, 4) for _ in range(4)] == [4, 4, 2, 0]
        assert store.stat()["cells"] == 10
        assert store.stat()["notes"] == 0

    def test_a_pruned_tombstone_is_gone(self, store: Store) -> None:
        put(store, [Cell(key(1), 10, b"a"), Cell(key(1), 20, None)], [(20, key(1), 10), (20, key(1), 20)])
        assert store.prune(20, 10) == 2
        assert store.get(key(1), NOW) is None
        assert store.max_key(TABLE, END) is None
        assert store.stat()["cells"] == 0

    def test_a_value_in_the_place_of_a_tombstone_stays(self, store: Store) -> None:
        """One slot of a step removes a row, a checkpoint comes, and another slot brings the row back."""
        put(store, [Cell(key(1), 10, b"a"), Cell(key(1), 20, None)], [(20, key(1), 10), (20, key(1), 20)])
        put(store, [Cell(key(1), 20, b"b")])
        assert store.prune(20, 10) == 2
        assert store.get(key(1), NOW) == Cell(key(1), 20, b"b")
        assert store.stat()["cells"] == 1

    def test_a_tombstone_goes_after_the_versions_that_it_hides(self, store: Store) -> None:
        put(store, [Cell(key(1), 10, b"a"), Cell(key(1), 20, None)], [(20, key(1), 20), (20, key(1), 10)])
        assert store.prune(20, 1) == 1
        assert store.get(key(1), NOW) == Cell(key(1), 20, None)
        assert store.prune(20, 1) == 1
        assert store.get(key(1), NOW) is None

    def test_a_note_without_its_version_is_settled_and_harms_nobody(self, store: Store) -> None:
        put(store, [Cell(key(1), 20, b"b"), Cell(key(2), 10, b"c")], [(20, key(1), 10), (20, key(3), 10)])
        assert store.prune(20, 10) == 2
        assert store.stat()["notes"] == 0
        assert store.scan(TABLE, END, NOW, 10) == [Cell(key(1), 20, b"b"), Cell(key(2), 10, b"c")]

    # Ranges

    def test_max_key_is_the_highest_key_in_the_range(self, store: Store) -> None:
        put(store, [Cell(key(n), ts, b"x") for n in (1, 5, 9) for ts in (10, 20)])
        put(store, [Cell(key(9), 30, None)])
        assert store.max_key(TABLE, END) == key(9)
        assert store.max_key(TABLE, key(9)) == key(5)
        assert store.max_key(key(5), key(9)) == key(5)
        assert store.max_key(key(6), key(9)) is None
        assert store.max_key(TABLE, key(1)) is None
        assert store.max_key(END, b"\xff") is None
        # A bound that a stored key is a prefix of, as the next page of a scan starts with.
        assert store.max_key(TABLE, key(5) + b"\0") == key(5)
        assert store.max_key(TABLE, key(5) + b"\xff" * 9) == key(5)
        assert store.max_key(key(5) + b"\0", key(9)) is None

    def test_drop_range_deletes_every_version_in_it_and_nothing_else(self, store: Store) -> None:
        put(
            store, [Cell(key(n), ts, b"x") for n in range(10) for ts in (10, 20)], [(20, key(n), 10) for n in range(10)]
        )
        store.drop_range(key(3), key(7))
        assert [cell.key for cell in store.scan(TABLE, END, 20, 100)] == [key(n) for n in (0, 1, 2, 7, 8, 9)]
        assert store.get(key(3), 10) is None
        assert store.stat()["cells"] == 12
        store.prune(20, 100)
        assert store.stat() | {"used_bytes": 0, "file_bytes": 0} == {
            "cells": 6,
            "notes": 0,
            "used_bytes": 0,
            "file_bytes": 0,
        }
        store.drop_range(TABLE, END)
        assert store.scan(b"", b"\xff", NOW, 10) == []

    def test_drop_range_spares_a_key_that_is_a_prefix_of_its_start(self, store: Store) -> None:
        put(store, [Cell(key(n), 10, b"x") for n in range(3)])
        store.drop_range(key(0) + b"\0", key(1) + b"\0")
        assert [cell.key for cell in store.scan(TABLE, END, 10, 10)] == [key(0), key(2)]

    def test_stat_counts(self, store: Store) -> None:
        put(store, [Cell(key(n), 10, b"x" * 100) for n in range(50)], [(20, key(1), 10)])
        stat = store.stat()
        assert stat["cells"] == 50
        assert stat["notes"] == 1
        assert stat["used_bytes"] >= 50 * 106
        assert stat["file_bytes"] == 0 or stat["file_bytes"] >= stat["used_bytes"]

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = self.open(tmp_path / "store")
        store.get(key(1), NOW)
        store.close()
        store.close()
        with pytest.raises(InterfaceError, match="closed"):
            store.get(key(1), NOW)
        with pytest.raises(InterfaceError, match="closed"):
            put(store, [Cell(key(1), 10, b"x")])

    # Threads

    def test_readers_see_whole_writes_while_one_thread_writes(self, store: Store) -> None:
        """Each write sets all keys to its number, in three batches: every read must find one number in all of them."""
        keys = [key(n) for n in range(60)]
        rounds = 40
        finished = threading.Event()
        failures: list[object] = []
        reads = [0, 0]

        def cells(number: int) -> Iterator[list[Cell]]:
            for third in range(3):
                yield [Cell(each, number, b"%d" % number) for each in keys[third::3]]

        def notes(number: int) -> list[Note]:
            return [(number, each, number - 1) for each in keys]

        def read(reader: int) -> None:
            last = 0
            try:
                while not finished.is_set() or reads[reader] == 0:
                    many = [cell.commit_ts for cell in store.get_many(keys, NOW) if cell]
                    scanned = [cell.commit_ts for cell in store.scan(TABLE, END, NOW, 100)]
                    for timestamps in (many, scanned):
                        if len(timestamps) != len(keys) or len(set(timestamps)) != 1 or timestamps[0] < last:
                            failures.append((last, timestamps))
                            return
                        last = timestamps[0]
                    reads[reader] += 1
            except Exception as error:
                failures.append(error)

        store.write(cells(1), (), {}, lambda: None)
        threads = [threading.Thread(target=read, args=(reader,)) for reader in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(2, rounds + 2):
                store.write(cells(number), notes(number), {"number": b"%d" % number}, lambda: None)
                # A write that has returned is seen by whoever asks next.
                newest = store.get(keys[0], NOW)
                assert newest is not None and newest.commit_ts == number
                assert store.meta("number") == b"%d" % number
                if number % 5 == 0:
                    store.prune(number, 1_000)
        finally:
            finished.set()
            for thread in threads:
                thread.join(timeout=60)
        assert failures == []
        assert all(reads)


#: No key is a prefix of another; some differ in length, some hold the lowest and highest bytes.
MODEL_KEYS = [
    TABLE + tail
    for tail in (
        b"\0\1",
        b"\0\xff\1",
        b"a\0\1",
        b"ab\0\1",
        b"b\0\1",
        b"\xfe\xff\0\1",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\0",
    )
]
timestamps = st.integers(1, 12)
cells_of_model = st.builds(Cell, st.sampled_from(MODEL_KEYS), timestamps, st.none() | st.binary(max_size=3))
bounds = st.sampled_from(
    [b"", TABLE, END, *MODEL_KEYS, *(each + b"\0" for each in MODEL_KEYS), TABLE + b"a", TABLE + b"\xff"]
)
operations = st.one_of(
    st.tuples(st.just("write"), st.lists(st.lists(cells_of_model, max_size=6), max_size=3)),
    st.tuples(st.just("note"), st.lists(st.tuples(timestamps, st.sampled_from(MODEL_KEYS), timestamps), max_size=4)),
    st.tuples(st.just("prune"), st.tuples(timestamps, st.integers(1, 5))),
    st.tuples(st.just("drop"), st.tuples(bounds, bounds)),
)


class _Model:
    """What the port says, in the simplest words."""

    def __init__(self) -> None:
        self.cells: dict[tuple[bytes, int], bytes | None] = {}
        self.notes: set[Note] = set()
        #: Versions that were removed; one that was not there when it was to be removed counts, too.
        self.gone: set[tuple[bytes, int]] = set()

    def get(self, wanted: bytes, at: int) -> Cell | None:
        versions = [ts for each, ts in self.cells if each == wanted and ts <= at]
        return Cell(wanted, max(versions), self.cells[wanted, max(versions)]) if versions else None

    def keys(self, start: bytes, stop: bytes) -> list[bytes]:
        return sorted({each for each, _ in self.cells if start <= each < stop})

    def scan(self, start: bytes, stop: bytes, at: int) -> list[Cell]:
        return [cell for each in self.keys(start, stop) if (cell := self.get(each, at))]

    def prune(self, horizon: int, limit: int) -> int:
        due = sorted(note for note in self.notes if note[0] <= horizon)[:limit]
        for note in due:
            self.notes.remove(note)
            version = note[1], note[2]
            # What superseded itself was a tombstone; a value in its place stays.
            if note[0] != note[2] or self.cells.get(version) is None:
                self.cells.pop(version, None)
                self.gone.add(version)
        return len(due)

    def drop(self, start: bytes, stop: bytes) -> None:
        dropped = {version for version in self.cells if start <= version[0] < stop}
        self.cells = {version: value for version, value in self.cells.items() if version not in dropped}
        self.gone |= dropped


def _run_model(store: Store, data: st.DataObject, hides_what_was_removed: bool) -> None:
    model = _Model()
    steps: list[tuple[str, Any]] = data.draw(st.lists(operations, max_size=8))
    for name, argument in steps:
        if name == "write":
            if hides_what_was_removed:
                argument = [[cell for cell in batch if cell[:2] not in model.gone] for batch in argument]
            store.write(argument, (), {}, lambda: None)
            model.cells.update({(cell.key, cell.commit_ts): cell.value for batch in argument for cell in batch})
        elif name == "note":
            store.write((), argument, {}, lambda: None)
            model.notes.update(argument)
        elif name == "prune":
            assert store.prune(*argument) == model.prune(*argument)
        else:
            store.drop_range(*argument)
            model.drop(*argument)
    start, stop, at = data.draw(bounds), data.draw(bounds), data.draw(timestamps)
    expected = model.scan(start, stop, at)
    limit = data.draw(st.integers(1, 4))
    assert store.scan(start, stop, at, limit) == expected[:limit]
    assert pages(store, start, stop, at, limit) == expected
    assert store.get_many(MODEL_KEYS, at) == [model.get(each, at) for each in MODEL_KEYS]
    assert store.max_key(start, stop) == max(model.keys(start, stop), default=None)
    assert (store.stat()["cells"], store.stat()["notes"]) == (len(model.cells), len(model.notes))


class TestMemoryStore(StoreContract):
    def open(self, path: Path) -> Store:
        return MemoryStore()

    def test_many_keys_stay_in_order_through_splits_and_removals(self) -> None:
        store = MemoryStore()
        numbers = [(n * 7919 + 5_000) % 10_007 for n in range(10_007)]
        cells = [Cell(key(n), 10, None if n % 3 else b"x") for n in numbers]
        put(store, cells, [(10, key(n), 10) for n in numbers if n % 3])
        assert [cell.key for cell in store.scan(TABLE, END, 10, 20_000)] == [key(n) for n in range(10_007)]
        assert store.max_key(TABLE, key(5_000)) == key(4_999)
        assert store.prune(10, 20_000) == 6_671
        assert [cell.key for cell in pages(store, TABLE, END, 10, 100)] == [key(n) for n in range(0, 10_007, 3)]
        assert store.max_key(TABLE, key(5_001)) == key(4_998)
        put(store, [Cell(key(n), 20, b"y") for n in range(10_006, -1, -1) if n % 3])
        assert [cell.key for cell in pages(store, TABLE, END, 20, 700)] == [key(n) for n in range(10_007)]
        assert all(store.max_key(TABLE, key(n)) == key(n - 1) for n in range(1, 10_007))
        store.drop_range(TABLE, END)
        assert store.max_key(TABLE, END) is None


class TestLmdbStore(StoreContract):
    def open(self, path: Path) -> Store:
        return LmdbStore(path)

    def test_what_was_written_is_there_after_reopening(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b"
        store = self.open(path)
        put(
            store, [Cell(key(1), 10, b"a"), Cell(key(1), 20, None)], [(20, key(1), 10), (20, key(1), 20)], {"lsn": b"5"}
        )
        store.close()
        store = self.open(path)
        assert store.get(key(1), 19) == Cell(key(1), 10, b"a")
        assert store.meta("lsn") == b"5"
        assert store.prune(20, 1) == 1
        store.close()
        store = self.open(path)
        assert store.get(key(1), 19) is None
        assert store.get(key(1), 20) == Cell(key(1), 20, None)
        assert store.prune(20, 10) == 1
        store.close()

    def test_files_are_for_their_owner_only(self, tmp_path: Path) -> None:
        store = self.open(tmp_path / "store")
        store.close()
        assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
        assert {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "store").iterdir()} == {
            "data.mdb": 0o600,
            "lock.mdb": 0o600,
        }

    def test_a_long_range_is_dropped_in_steps(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_module, "DROP_CELLS_MAX", 7)
        store = self.open(tmp_path / "store")
        put(store, [Cell(key(n), ts, b"x") for n in range(20) for ts in range(1, 4)])
        store.drop_range(key(2), key(18))
        assert store.stat()["cells"] == 12
        store.close()

    def test_freed_pages_are_used_again_after_a_read(self, tmp_path: Path) -> None:
        """An idle read transaction that was kept over a write would let the file grow with every further write."""
        store = self.open(tmp_path / "store")

        def file_bytes_after_writes(count: int) -> int:
            for n in range(count):
                put(store, [Cell(key(each), 10, bytes([n]) * 500) for each in range(100)])
            assert store.get(key(5), NOW) == Cell(key(5), 10, bytes([count - 1]) * 500)
            return store.stat()["file_bytes"]

        few = file_bytes_after_writes(4)
        assert file_bytes_after_writes(40) <= few * 1.5
        store.close()

    def test_a_read_that_a_write_overtakes_sees_one_state_and_the_next_read_the_new_one(self, tmp_path: Path) -> None:
        store = self.open(tmp_path / "store")
        put(store, [Cell(key(n), 10, b"old") for n in range(2)])

        class Keys(list[bytes]):
            def __iter__(self) -> Iterator[bytes]:
                yield key(0)
                put(store, [Cell(key(n), 20, b"new") for n in range(2)])
                yield key(1)

        assert store.get_many(Keys(), NOW) == [Cell(key(n), 10, b"old") for n in range(2)]
        assert store.get_many([key(0), key(1)], NOW) == [Cell(key(n), 20, b"new") for n in range(2)]
        store.close()

    def test_a_full_store_says_so_and_keeps_what_it_has(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_module, "MAP_BYTES", 1 << 20)
        store = self.open(tmp_path / "store")
        put(store, [Cell(key(1), 10, b"small")])
        with pytest.raises(OperationalError, match=r"data\.mdb is full.*1048576 bytes"):
            put(store, [Cell(key(n), 10, b"x" * 60_000) for n in range(100)])
        assert store.scan(TABLE, END, NOW, 100) == [Cell(key(1), 10, b"small")]
        put(store, [Cell(key(2), 10, b"small too")])
        assert len(store.scan(TABLE, END, NOW, 100)) == 2
        store.close()

    def test_more_readers_at_once_than_are_kept_idle(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path / "store")
        put(store, [Cell(key(1), 10, b"a")])
        together = threading.Barrier(lmdb_module.IDLE_READERS_MAX + 8)
        results: list[Cell | None] = []

        def read() -> None:
            together.wait(timeout=60)
            results.extend(store.get(key(1), NOW) for _ in range(20))

        threads = [threading.Thread(target=read) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert results == [Cell(key(1), 10, b"a")] * 20 * together.parties
        store.close()

    # Opening

    def test_an_environment_of_somebody_else_is_refused_and_not_touched(self, tmp_path: Path) -> None:
        with lmdb.open(str(tmp_path), max_dbs=1) as environment, environment.begin(write=True) as transaction:
            transaction.put(b"cells", b"not a database")
        before = (tmp_path / "data.mdb").read_bytes()
        with pytest.raises(OperationalError, match=r"data\.mdb is not a store.*other data"):
            self.open(tmp_path)
        assert (tmp_path / "data.mdb").read_bytes() == before

    def test_a_file_that_is_no_environment_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data.mdb").write_bytes(b"something else entirely" * 1_000)
        with pytest.raises(OperationalError, match=r"data\.mdb is not a store"):
            self.open(tmp_path)

    def test_another_format_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lmdb_module, "FORMAT", b"viewtide store 9")
            self.open(tmp_path / "store").close()
        with pytest.raises(OperationalError, match=r"viewtide store 9.*viewtide store 1"):
            self.open(tmp_path / "store")

    def test_a_path_that_cannot_be_a_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OperationalError, match="directory"):
            self.open(tmp_path / "file")

    def test_a_store_is_opened_once(self, tmp_path: Path) -> None:
        store = self.open(tmp_path / "store")
        with pytest.raises(OperationalError, match="already open"):
            self.open(tmp_path / "store")
        put(store, [Cell(key(1), 10, b"a")])
        store.close()


@pytest.mark.slow
class TestHbaseStore(StoreContract):
    """What only it does is in tests/hbase/test_store.py."""

    ts_max = TIMESTAMP_MAX
    hides_what_was_removed = True

    @pytest.fixture(autouse=True)
    def client(self, hbase_client: Hbase) -> None:
        hbase_client.create_namespace("contract")
        self._client = hbase_client

    def open(self, path: Path) -> Store:
        """One set of tables for all tests: to make new ones takes longer than most tests."""
        return HbaseStore(self._client, "contract", "ltm-1", prefix=str(path).encode() + b"\0")


@pytest.mark.parametrize("suite", [TestMemoryStore, TestLmdbStore])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_store_equals_a_dict_of_versions(
    suite: type[StoreContract], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = suite().open(tmp_path_factory.mktemp("model") / "store")
    try:
        _run_model(store, data, suite.hides_what_was_removed)
    finally:
        store.close()


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_store_in_hbase_equals_a_dict_of_versions(
    hbase_client: Hbase, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    suite = TestHbaseStore()
    hbase_client.create_namespace("contract")
    suite._client = hbase_client
    store = suite.open(tmp_path_factory.mktemp("model"))
    try:
        _run_model(store, data, suite.hides_what_was_removed)
    finally:
        store.close()
