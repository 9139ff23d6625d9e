"""Cells and marks of a participant: what is seen when, and above what a commit must be."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from viewtide.changetables.types import Row
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.two_phase import marks as marks_module
from viewtide.ltm.two_phase.cells import Cells
from viewtide.ltm.two_phase.marks import RAISE_MAX, Marks
from viewtide.ltm.two_phase.participant import Participant, _lowest_above

A, B, C = b"\x00\x00\x00\x01a", b"\x00\x00\x00\x01b", b"\x00\x00\x00\x02c"
TABLE = (b"\x00\x00\x00\x01", b"\x00\x00\x00\x02")


def plus(amount: int, row: Row | None) -> Row | None:
    """As refresh operators do: nothing is the row of zero."""
    total = amount + (0 if row is None else row[0])  # type: ignore[operator]
    return (total,) if total else None


def test_versions_are_seen_from_their_timestamps_on() -> None:
    cells = Cells()
    cells.put(A, 10, ("x",))
    cells.put(A, 20, None)
    cells.put(A, 30, ("y",))
    assert [cells.at(A, ts)[:2] for ts in (9, 10, 19, 20, 30)] == [
        (0, None),
        (10, ("x",)),
        (10, ("x",)),
        (20, None),
        (30, ("y",)),
    ]
    assert cells.newest(A)[:2] == (30, ("y",)) and cells.newest(B) == (0, None, None)


def test_the_deletion_of_nothing_leaves_nothing() -> None:
    cells = Cells()
    cells.put(A, 10, None)
    assert not cells.chains and cells.newest_ts(*TABLE) == 0


@pytest.mark.parametrize("order", list(itertools.permutations(((10, 1), (20, 2), (30, -3), (40, 4)))))
def test_contributions_may_come_in_any_order(order: tuple[tuple[int, int], ...]) -> None:
    cells = Cells()
    for ts, amount in order:
        cells.add(A, ts, partial(plus, amount))
    assert [cells.at(A, ts)[1] for ts in (9, 10, 25, 30, 39, 40)] == [None, (1,), (3,), None, None, (4,)]


@pytest.mark.parametrize("late", [10, 20, 30])
def test_contributions_of_one_timestamp_are_one_version(late: int) -> None:
    cells = Cells()
    for ts in (10, 20, 30):
        cells.add(A, ts, partial(plus, 1))
    cells.add(A, late, partial(plus, 5))
    version, seen = cells.newest(A), []
    while version is not None:
        seen.append(version[0])
        version = version[2]  # type: ignore[assignment]
    assert seen == [30, 20, 10]
    assert cells.at(A, 9)[1] is None and cells.at(A, late)[1] == (late // 10 + 5,) and cells.newest(A)[1] == (8,)


def test_a_row_of_nothing_stays_for_those_who_read_below_it() -> None:
    cells = Cells()
    cells.add(A, 10, partial(plus, 1))
    cells.add(A, 20, partial(plus, -1))
    assert cells.newest(A)[1] is None and cells.at(A, 15)[1] == (1,)
    cells.horizon = 19
    cells.prune()
    assert cells.at(A, 19)[1] == (1,)
    cells.horizon = 20
    cells.prune()
    assert not cells.chains and list(cells.keys(*TABLE, False)) == []


def test_a_chain_keeps_what_is_seen_at_the_horizon() -> None:
    cells = Cells()
    for ts in (10, 20, 30):
        cells.put(A, ts, (ts,))
    cells.horizon = 25
    cells.put(A, 40, (40,))
    assert [cells.at(A, ts)[1] for ts in (25, 30, 40)] == [(20,), (30,), (40,)]


def test_keys_are_in_order_from_either_end_and_of_their_table_only() -> None:
    cells = Cells()
    for key in (B, C, A):
        cells.put(key, 10, (key,))
    assert list(cells.keys(*TABLE, False)) == [A, B]
    assert list(cells.keys(*TABLE, True)) == [B, A]
    assert list(cells.keys(A, C + b"\x00", False)) == [A, B, C]
    assert list(cells.keys(B, TABLE[1], False)) == [B]


def test_a_deletion_counts_as_a_version_of_its_range() -> None:
    cells = Cells()
    cells.put(A, 10, ("x",))
    cells.put(A, 20, None)
    assert cells.newest_ts(*TABLE) == 20
    assert cells.changed_since(*TABLE, 19) and not cells.changed_since(*TABLE, 20)


def test_marks_of_keys_tables_and_the_floor() -> None:
    marks = Marks()
    marks.mark([A], 10)
    assert (marks.highest([A]), marks.highest([B]), marks.highest([A, B])) == (10, 0, 10)
    marks.mark([A], 5)
    assert marks.highest([A]) == 10
    marks.mark_ranges([B], 20)
    assert (marks.highest([A]), marks.highest([C])) == (20, 0)
    marks.raise_floor(15)
    assert (marks.highest([A]), marks.highest([C])) == (20, 15)
    marks.raise_floor(1)
    assert marks.highest([C]) == 15


def test_forgotten_marks_raise_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks()
    marks.mark([A, B], 10)
    marks.forget_below(10)
    assert marks.highest([C]) == 10
    monkeypatch.setattr(marks_module, "MARKS_MAX", 2)
    marks.mark([A, B, C], 30)
    assert marks.highest([b"\x00\x00\x00\x09"]) == 30


def test_a_commit_is_strictly_above_what_is_in_its_way() -> None:
    issued = 7 << 8
    assert _lowest_above(issued - 1, issued) == issued
    assert _lowest_above(issued, issued) == issued + 1
    assert _lowest_above(issued + 9, issued) == issued + 10
    assert _lowest_above(issued + RAISE_MAX, issued) == 0, "a raise would pass the next issued timestamp"
    assert _lowest_above(issued - 1 & ~RAISE_MAX | RAISE_MAX, issued) == issued


def test_rows_that_are_forgotten_do_not_come_back_below() -> None:
    """The floor is raised with the horizon: a transaction that started before a forgotten deletion comes after it."""
    participant = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", lambda refresh, row: row)
    participant.cells.put(A, 10, ("x",))
    participant.cells.put(A, 20, None)
    participant._forget_versions(25)
    assert participant.cells.newest(A) == (0, None, None)
    assert participant.marks.highest([A]) == 25


def test_long_decided_transactions_are_forgotten_and_never_executed_again() -> None:
    participant = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", lambda refresh, row: row)
    participant.committed = {(1, 10): (10, 11), (2, 30): (30, 31)}
    participant.note_refusal(((3, 10), 12))
    participant._forget_transactions(20)
    assert participant.committed == {(2, 30): (30, 31)}
    assert not list(participant.refused_for_good())
    assert participant._has_ended((1, 10), 40) and not participant._has_ended((2, 30), 40)
