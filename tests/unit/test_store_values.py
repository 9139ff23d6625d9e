"""`LmdbStore.values` gives what `scan` finds, whatever versions there are and however it is cut into pages."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewtide.changetables.errors import OperationalError
from viewtide.ltm.ports import Cell
from viewtide.ltm.store import lmdb
from viewtide.ltm.store.lmdb import LmdbStore

TABLE = b"\0\0\0\1"
#: Cells that were staged have this timestamp, and count as written at another one.
STAGED_TS = 9


def filled(path: Path, cells: list[Cell], counts_as: int | None = None) -> LmdbStore:
    store = LmdbStore(path)
    store.write([cells], (), {}, lambda: None)
    if counts_as is not None:
        store.count_as({(TABLE, STAGED_TS): counts_as})
    return store


def all_values(store: LmdbStore, start: bytes, stop: bytes, at: int, limit: int) -> list[bytes]:
    found: list[bytes] = []
    place: bytes | None = start
    while place is not None:
        some, place = store.values(place, stop, at, limit)
        found += some
    return found


keys = st.integers(0, 12).map(lambda number: TABLE + bytes([number, 7]))
cells = st.lists(
    # Many are alike.
    st.builds(Cell, keys, st.just(3) | st.integers(1, 12), st.just(b"ab") | st.none() | st.binary(max_size=3)),
    max_size=60,
    unique_by=lambda cell: (cell.key, cell.commit_ts),
)


@given(
    cells,
    keys,
    keys,
    st.integers(0, 14),
    st.integers(1, 9),
    st.none() | st.integers(5, 20),
    st.integers(1, 20),
    st.sampled_from((1, 3, 500)),
)
def test_values_are_what_a_scan_finds(
    cells: list[Cell],
    start: bytes,
    stop: bytes,
    at: int,
    limit: int,
    counts_as: int | None,
    bytes_max: int,
    alike_min: int,
) -> None:
    bounds = mock.patch.multiple(
        lmdb,
        PIECE_CELLS=2,
        PAGE_BYTES_MAX=bytes_max,
        ALIKE_CELLS_MIN=alike_min,
        ALIKE_PIECE_CELLS=2,
        ALIKE_FIRST_CELLS=1,
    )
    with TemporaryDirectory() as folder, bounds:
        store = filled(Path(folder) / "store", cells, counts_as)
        scanned = [cell.value for cell in store.scan(start, stop, at, 1_000) if cell.value is not None]
        assert all_values(store, start, stop, at, limit) == scanned
        store.close()


def test_one_version_each_in_several_pages(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", [Cell(TABLE + bytes([n]), 3, b"%d" % n) for n in range(250)])
    assert all_values(store, TABLE, TABLE + b"\xff", 3, 100) == [b"%d" % n for n in range(250)]
    assert all_values(store, TABLE, TABLE + b"\xff", 2, 100) == []
    store.close()


def test_a_page_of_long_values_is_short_and_ends_with_its_range(tmp_path: Path) -> None:
    large, after = b"x" * 100_000, b"\0\0\0\2"
    cells = [Cell(table + bytes([n]), 3, large) for table in (TABLE, after) for n in range(200)]
    store = filled(tmp_path / "store", cells)
    found, place = store.values(TABLE, after, 3, 1_000)
    assert len(found) == 100 and place == TABLE + bytes([99, 0])
    assert len(store.values(place, after, 3, 1_000)[0]) == 100
    store.close()


@pytest.mark.parametrize("alike_min", [2, 500])
def test_a_damaged_cell_of_a_page_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike_min: int) -> None:
    monkeypatch.setattr(lmdb, "ALIKE_CELLS_MIN", alike_min)
    monkeypatch.setattr(lmdb, "ALIKE_FIRST_CELLS", 2)
    store = filled(tmp_path / "store", [Cell(TABLE + bytes([n]), 3, b"value %d" % n) for n in range(20)])
    store.close()
    file = tmp_path / "store" / "data.mdb"
    data = file.read_bytes()
    assert data.count(b"value 13") == 1
    file.write_bytes(data.replace(b"value 13", b"value_13"))
    store = LmdbStore(tmp_path / "store")
    with pytest.raises(OperationalError, match=(TABLE + bytes([13])).hex()):
        all_values(store, TABLE, TABLE + b"\xff", 3, 100)
    store.close()
