"""Cells of a participant whose rows are in a store: what is known, what must be loaded, and what may be forgotten."""

from __future__ import annotations

import pytest

from viewtide.ltm.cluster import on_store
from viewtide.ltm.cluster.saving import Pages, with_final
from viewtide.ltm.cluster.store_messages import NEWEST, LoadCells, LoadedCells, WriteCells, Written
from viewtide.ltm.ports import Cell
from viewtide.ltm.store.memory import MemoryStore
from viewtide.ltm.two_phase import stored_cells
from viewtide.ltm.two_phase.cells import ABSENT
from viewtide.ltm.two_phase.journal import Stored
from viewtide.ltm.two_phase.stored_cells import StoredCells

TABLE, STOP = b"\0\0\0\x01", b"\0\0\0\x02"


def key(number: int) -> bytes:
    return TABLE + bytes([number])


def never(_: bytes) -> bool:
    return False


def test_a_key_is_known_by_its_version_or_by_its_range() -> None:
    cells = StoredCells()
    assert not cells.is_known(key(1))
    cells.learn(key(1), (5, (1,), None))
    cells.learn(key(2), ABSENT)
    assert cells.is_known(key(1)) and cells.is_known(key(2)) and not cells.is_known(key(3))
    cells.learn_range(key(3), key(6), ((key(4), 7, (4,)),))
    assert [cells.is_known(key(number)) for number in (3, 4, 5, 6)] == [True, True, True, False]
    assert cells.newest(key(4)) == (7, (4,), None)
    assert cells.newest(key(5)) == ABSENT


def test_what_is_known_is_newer_than_what_is_loaded() -> None:
    cells = StoredCells()
    cells.learn(key(1), (5, (1,), None))
    cells.put(key(1), 9, (2,))
    cells.learn(key(1), (5, (1,), None))
    cells.learn_range(key(0), key(3), ((key(1), 5, (1,)), (key(2), 5, (2,))))
    assert cells.newest(key(1))[:2] == (9, (2,))
    assert cells.newest(key(2))[:2] == (5, (2,))


def test_ranges_that_touch_become_one_and_a_gap_is_found_from_both_ends() -> None:
    cells = StoredCells()
    cells.learn_range(key(0), key(3), ((key(1), 5, (1,)),))
    cells.learn_range(key(5), key(7), ((key(6), 5, (6,)),))
    assert cells.unknown_between((key(0), key(9), 0, False), NEWEST) == ((key(3), key(5)), [])
    assert cells.unknown_between((key(0), key(9), 0, True), NEWEST) == ((key(7), key(9)), [])
    assert cells.unknown_between((key(0), key(9), 1, False), NEWEST) == (None, [])
    assert cells.unknown_between((key(0), key(7), 1, True), NEWEST) == (None, [])
    cells.learn_range(key(3), key(5), ())
    assert cells.unknown_between((key(0), key(7), 0, False), NEWEST) == (None, [])


def test_an_older_version_is_loaded_for_whoever_reads_below() -> None:
    cells = StoredCells()
    cells.learn(key(1), (50, (2,), None))
    assert cells.sees(key(1), 50) and not cells.sees(key(1), 49)
    assert cells.unknown_between((key(1), key(2), 0, False), 49) == ((key(1), key(2)), [])
    cells.learn_range(key(1), key(2), ())
    assert cells.unknown_between((key(1), key(2), 0, False), 49) == (None, [key(1)])
    cells.past[key(1), 49] = (30, (1,), None)
    assert cells.sees(key(1), 49) and cells.at(key(1), 49) == (30, (1,), None)
    assert not cells.sees(key(1), 48)


def test_a_new_key_was_absent_before() -> None:
    cells = StoredCells()
    cells.learn(key(1), ABSENT)
    cells.put(key(1), 50, (1,))
    assert cells.sees(key(1), 10) and cells.at(key(1), 10) == ABSENT
    assert cells.at(key(1), 50)[:2] == (50, (1,))


def test_versions_that_the_store_may_not_have_are_kept_below_the_horizon() -> None:
    cells = StoredCells()
    cells.learn(key(1), ABSENT)
    cells.horizon = 100
    for ts in (10, 20, 30):
        cells.add(key(1), ts, lambda row: ((row or (0,))[0] + 1,))
    assert cells.at(key(1), 10)[1] == (1,)
    cells.stored_ts = 100
    cells.add(key(1), 40, lambda row: ((row or (0,))[0] + 1,))
    assert cells.newest(key(1)) == (40, (4,), (30, (3,), None))


def test_only_keys_that_the_store_has_are_forgotten() -> None:
    cells = StoredCells()
    cells.learn_range(TABLE, STOP, [(key(number), 5, (number,)) for number in range(6)])
    cells.put(key(0), 9, (9,))
    assert cells.evict(2, lambda each: each == key(1)) == 4
    assert sorted(cells.chains) == [key(0), key(1)]
    assert not cells.is_known(key(3))
    # What is between those that were forgotten is still known to be absent.
    assert cells.is_known(key(3) + b"\0")
    assert cells.forgettings == 1


def test_keys_that_go_to_somebody_else_are_not_known_any_more() -> None:
    cells = StoredCells()
    cells.learn_range(TABLE, STOP, [(key(number), 5, (number,)) for number in range(6)])
    cells.put(key(2), 9, (9,))
    cells.past[key(3), 1] = ABSENT
    cells.drop(key(2), key(4))
    assert [cells.is_known(key(number)) for number in range(6)] == [True, True, False, False, True, True]
    assert not cells.touched and not cells.past


def test_of_many_known_ranges_the_last_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_cells, "RANGES_MAX", 3)
    cells = StoredCells()
    for number in (0, 4, 8, 12):
        cells.learn_range(key(number), key(number + 2), ())
    assert [cells.is_known(key(number)) for number in (0, 4, 8, 12)] == [False, False, False, True]


def test_pages_have_what_is_final_and_say_what_it_supersedes() -> None:
    cells = StoredCells()
    cells.learn(key(1), (5, (1,), None))
    cells.learn(key(2), ABSENT)
    cells.put(key(1), 10, (2,))
    cells.put(key(1), 20, None)
    cells.put(key(2), 30, (3,))
    pages = Pages(cells, tuple(cells.touched), Stored(20, {}), 100)
    notes = ((10, key(1), 5), (20, key(1), 10), (20, key(1), 20))
    assert pages.next() == (((key(1), 10, (2,)), (key(1), 20, None)), notes)
    assert pages.next() is None
    pages.written()
    assert cells.touched == {key(2): 0}


def test_pages_are_bounded_and_keys_that_changed_their_owner_meanwhile_are_written_again() -> None:
    cells = StoredCells()
    for number in range(5):
        cells.learn(key(number), ABSENT)
        cells.put(key(number), 10, (number,))
    pages = Pages(cells, tuple(cells.touched), Stored(20, {}), 2)
    sizes = []
    while (page := pages.next()) is not None:
        sizes.append(len(page[0]))
    assert sizes == [2, 2, 1]
    cells.drop(key(4), key(5))
    pages.written()
    assert len(cells.touched) == 4


def test_rows_of_some_tables_are_final_later() -> None:
    cells = StoredCells()
    cells.learn(key(1), ABSENT)
    cells.put(key(1), 10, (1,))
    cells.put(key(1), 20, (2,))
    pages = Pages(cells, tuple(cells.touched), Stored(100, {TABLE: 10}), 100)
    page = pages.next()
    assert page is not None and page[0] == ((key(1), 10, (1,)),)
    pages.written()
    assert cells.touched == {key(1): 10}


# The store behind the messages.


def test_a_store_answers_the_messages() -> None:
    store = MemoryStore()
    cells = tuple((key(number), 10, (number, "x")) for number in range(5))
    assert on_store.answer(store, WriteCells(1, (*cells, (key(5), 12, None)), ((12, key(5), 12),))) == Written(1)
    tables = ((TABLE, STOP), (STOP, b"\0\0\0\x03"))
    answer = on_store.answer(store, LoadCells(2, NEWEST, (key(1), key(5), key(9)), tables=tables))
    assert answer == LoadedCells(2, ((10, (1, "x")), (12, None), None), (), (key(5), None))
    assert store.get(key(1), NEWEST) == Cell(key(1), 10, store.get(key(1), 10).value)  # type: ignore[union-attr]


def test_ranges_are_loaded_as_far_as_the_limit_goes() -> None:
    store = MemoryStore()
    on_store.answer(store, WriteCells(1, tuple((key(number), 10, (number,)) for number in range(5))))
    ranges = ((key(0), key(2)), (key(2), key(9)), (key(9), STOP))
    answer = on_store.answer(store, LoadCells(2, NEWEST, (), ranges, 4))
    assert isinstance(answer, LoadedCells)
    assert [len(found) for found, _ in answer.ranges] == [2, 2, 0]
    assert [complete for _, complete in answer.ranges] == [key(2), key(3) + b"\0", key(9)]
    answer = on_store.answer(store, LoadCells(3, NEWEST, (), ranges, 100))
    assert isinstance(answer, LoadedCells)
    assert [complete for _, complete in answer.ranges] == [key(2), key(9), STOP]


@pytest.mark.parametrize("ranges_max", [1_000, 10, 2])
def test_what_is_forgotten_is_cut_out_of_what_is_known(monkeypatch: pytest.MonkeyPatch, ranges_max: int) -> None:
    monkeypatch.setattr(stored_cells, "RANGES_MAX", ranges_max)
    cells = StoredCells()
    cells.learn_range(key(0), key(20), [(key(number), 5, (number,)) for number in range(2, 20, 2)])
    cells.learn_range(key(22), key(200), [(key(number), 5, (number,)) for number in range(22, 200, 2)])
    kept = {50, 100, 102}
    # All but a few go, in runs.
    assert cells.evict(len(kept), lambda each: each[-1] in kept) == 95
    known = {number for number in range(200) if cells.is_known(key(number))}
    if ranges_max == 1_000:
        assert known == {*range(1, 20, 2), *range(23, 200, 2), 0, *kept}
    elif ranges_max == 10:
        # What is between two that went is not known any more.
        assert known == {0, 1, 49, 51, 99, 101, 103, 199, *kept} and len(cells._known[TABLE]) == 4
    else:
        assert known == {199, *kept} and len(cells._known[TABLE]) == 1


def test_many_keys_are_forgotten_at_once() -> None:
    """An LTM does nothing else meanwhile."""
    cells = StoredCells()
    keys = [TABLE + number.to_bytes(4, "big") for number in range(30_000)]
    cells.learn_range(TABLE, STOP, [(each, 5, (1,)) for each in keys])
    assert cells.evict(10_000, never) == 20_000
    assert not cells.is_known(keys[19_999]) and cells.is_known(keys[20_000])
    assert len(cells._known[TABLE]) == 2  # below them all, and above those that went
    assert cells.is_known(keys[-1] + b"\xff")


def test_many_gaps_of_one_key_are_asked_for_together() -> None:
    cells = StoredCells()
    cells.learn_range(key(0), key(100), [(key(number), 5, (number,)) for number in range(100)])
    few = {key(number) for number in range(0, 100, 20)}
    assert cells.evict(95, lambda each: each not in few) == 5
    assert cells.unknown_between((TABLE, key(90), 0, False), NEWEST) == ((TABLE, key(0) + b"\0"), [])
    many = {key(number) for number in range(1, 100, 3)}
    assert cells.evict(63, lambda each: each not in many) == 32
    gap, missing = cells.unknown_between((key(0), key(90), 0, False), NEWEST)
    assert (gap, missing) == ((key(0), key(88) + b"\0"), [])
    cells.learn_range(*gap, [(key(number), 5, (number,)) for number in range(89)])
    assert cells.unknown_between((key(0), key(90), 0, False), NEWEST) == (None, [])
    assert [cells.newest(key(number))[1] for number in range(90)] == [(number,) for number in range(90)]


def test_a_range_from_the_end_is_asked_for_gap_by_gap() -> None:
    cells = StoredCells()
    cells.learn_range(key(0), key(100), [(key(number), 5, (number,)) for number in range(100)])
    many = {key(number) for number in range(1, 100, 3)}
    assert cells.evict(67, lambda each: each not in many) == 33
    assert cells.unknown_between((key(0), key(90), 0, True), NEWEST) == ((key(88), key(88) + b"\0"), [])


def test_keys_of_which_nothing_is_final_are_not_looked_at_by_a_checkpoint() -> None:
    cells = StoredCells()
    for number, ts in ((1, 5), (2, 15), (3, 5)):
        cells.learn(key(number), ABSENT)
        cells.put(key(number), ts, (number,))
    cells.put(key(3), 20, (30,))
    assert with_final(cells, Stored(10, {})) == [key(1), key(3)]
    assert with_final(cells, Stored(30, {TABLE: 0})) == []
    assert with_final(cells, Stored(30, {})) == [key(1), key(2), key(3)]


def test_what_is_under_way_is_not_believed_after_ranges_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_cells, "RANGES_MAX", 2)
    cells = StoredCells()
    for number in (1, 5):
        cells.learn_range(key(number), key(number + 1), ())
    assert cells.forgettings == 0
    cells.learn_range(key(9), key(10), ())
    assert [cells.is_known(key(number)) for number in (1, 5, 9)] == [False, False, True]
    assert cells.forgettings == 1
