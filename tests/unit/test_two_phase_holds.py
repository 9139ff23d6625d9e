"""Holds: who goes together, who waits, who is refused."""

from __future__ import annotations

import itertools

import pytest

from viewtide.changetables.types import Row
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.two_phase.holds import CONTRIBUTION, LOOK_UP, WRITE, Claim, Holds
from viewtide.ltm.two_phase.messages import (
    ABORTED,
    COMMITTED,
    VOTED,
    Answer,
    Ask,
    Attempt,
    Prepare,
    Refresh,
    Timestamps,
)
from viewtide.ltm.two_phase.participant import RECOVERING, Participant
from viewtide.ltm.two_phase.records import Committed

KEY, OTHER = b"\x00\x00\x00\x01k", b"\x00\x00\x00\x01p"
RANGE = (b"\x00\x00\x00\x01a", b"\x00\x00\x00\x01n")


def attempt(age: int) -> Attempt:
    return ((age, 0), age)


def claim(holds: Holds, age: int) -> Claim:
    return holds.claim(attempt(age), age)


TOGETHER = {(LOOK_UP, LOOK_UP), (CONTRIBUTION, CONTRIBUTION)}


@pytest.mark.parametrize(("first", "second"), list(itertools.product((LOOK_UP, WRITE, CONTRIBUTION), repeat=2)))
def test_who_may_have_a_key_together(first: int, second: int) -> None:
    holds = Holds()
    older, younger = claim(holds, 1), claim(holds, 2)
    assert holds.take(older, [KEY], first) == []
    assert holds.take(younger, [KEY], second) == []
    assert bool(younger.waiting) == ((first, second) not in TOGETHER)
    assert not older.waiting


@pytest.mark.parametrize(("mode", "waits"), [(LOOK_UP, False), (WRITE, True), (CONTRIBUTION, True)])
def test_a_range_is_in_the_way_of_writes_inside_it(mode: int, waits: bool) -> None:
    holds = Holds()
    older, younger = claim(holds, 1), claim(holds, 2)
    assert holds.take_ranges(older, [RANGE]) == []
    assert holds.take(younger, [KEY, OTHER], mode) == []
    assert younger.waiting == ({KEY} if waits else set())


@pytest.mark.parametrize(("mode", "waits"), [(LOOK_UP, False), (WRITE, True), (CONTRIBUTION, True)])
def test_a_write_is_in_the_way_of_ranges_around_it(mode: int, waits: bool) -> None:
    holds = Holds()
    older, younger = claim(holds, 1), claim(holds, 2)
    holds.take(older, [KEY], mode)
    holds.take_ranges(younger, [RANGE])
    assert bool(younger.waiting) == waits


def test_ranges_go_together_and_another_table_is_not_touched() -> None:
    holds = Holds()
    first, second = claim(holds, 1), claim(holds, 2)
    holds.take_ranges(first, [RANGE])
    holds.take_ranges(second, [RANGE])
    holds.take(second, [b"\x00\x00\x00\x02k"], WRITE)
    assert not first.waiting and not second.waiting


def test_an_older_one_refuses_a_younger_one_that_has_not_voted() -> None:
    holds = Holds()
    older, younger = claim(holds, 1), claim(holds, 2)
    holds.take(younger, [KEY], WRITE)
    assert holds.take(older, [KEY], WRITE) == [attempt(2)]
    assert older.waiting == {KEY}
    assert holds.release(attempt(2)) == [attempt(1)]
    assert not older.waiting


def test_an_older_one_waits_for_a_younger_one_that_has_voted() -> None:
    holds = Holds()
    older, younger = claim(holds, 1), claim(holds, 2)
    holds.take(younger, [KEY], WRITE)
    younger.voted = True
    assert holds.take(older, [KEY], WRITE) == []
    assert older.waiting == {KEY}
    assert holds.release(attempt(2)) == [attempt(1)]


def test_a_younger_one_does_not_pass_an_older_one_that_waits() -> None:
    holds = Holds()
    first, older, younger = claim(holds, 1), claim(holds, 2), claim(holds, 3)
    holds.take(first, [KEY], CONTRIBUTION)
    holds.take(older, [KEY], WRITE)
    assert holds.take(younger, [KEY], CONTRIBUTION) == [], "it could go with the first one"
    assert younger.waiting == {KEY}
    assert holds.release(attempt(1)) == [attempt(2)]
    assert holds.release(attempt(2)) == [attempt(3)]


def test_those_who_go_together_are_served_together_oldest_first() -> None:
    holds = Holds()
    writer = claim(holds, 1)
    holds.take(writer, [KEY], WRITE)
    for age in (4, 2, 3):
        holds.take(claim(holds, age), [KEY], LOOK_UP)
    assert holds.release(attempt(1)) == [attempt(2), attempt(3), attempt(4)]


def test_a_key_that_is_looked_up_and_contributed_to_is_written() -> None:
    holds = Holds()
    first, second = claim(holds, 1), claim(holds, 2)
    holds.take(first, [KEY], CONTRIBUTION)
    holds.take(first, [KEY], LOOK_UP)
    assert holds.mode(attempt(1), KEY) == WRITE
    holds.take(second, [KEY], CONTRIBUTION)
    assert second.waiting == {KEY}


def test_it_waits_until_it_has_all() -> None:
    holds = Holds()
    first, second, third = claim(holds, 1), claim(holds, 2), claim(holds, 3)
    holds.take(first, [KEY], WRITE)
    holds.take(second, [OTHER], WRITE)
    holds.take(third, [KEY, OTHER], WRITE)
    assert third.waiting == {KEY, OTHER}
    assert holds.release(attempt(1)) == []
    assert holds.release(attempt(2)) == [attempt(3)]


def test_only_those_who_have_it_make_a_reader_wait() -> None:
    holds = Holds()
    writer, waiting, looking = claim(holds, 1), claim(holds, 2), claim(holds, 3)
    holds.take(writer, [KEY], WRITE)
    holds.take(waiting, [KEY], WRITE)
    holds.take(looking, [OTHER], LOOK_UP)
    assert list(holds.writers(KEY)) == [writer]
    assert list(holds.writers(OTHER)) == []
    assert list(holds.writers_between(*RANGE)) == [writer]


def test_nothing_is_left_when_all_are_released() -> None:
    holds = Holds()
    for age in (1, 2, 3):
        each = claim(holds, age)
        holds.take(each, [KEY, OTHER], CONTRIBUTION)
        holds.take_ranges(each, [(b"\x00\x00\x00\x02", b"\x00\x00\x00\x03")])
    for age in (2, 1, 3):
        holds.release(attempt(age))
    assert len(holds) == 0 and attempt(1) not in holds
    assert not holds._by_key and not holds._ranges and not holds._waiting


def test_who_waits_for_more_keeps_what_it_has() -> None:
    """One that looked a key up and waits to write it too: an older one does not pass it, it has it refused."""
    holds = Holds()
    voted, upgrading, older = claim(holds, 10), claim(holds, 30), claim(holds, 20)
    holds.take(voted, [KEY], LOOK_UP)
    voted.voted = True
    holds.take(upgrading, [KEY], LOOK_UP)
    holds.take(upgrading, [KEY], CONTRIBUTION)
    assert upgrading.waiting == {KEY}
    assert holds.take(older, [KEY], CONTRIBUTION) == [upgrading.attempt]
    assert holds.release(voted.attempt) == []
    assert older.waiting == {KEY}
    assert holds.release(upgrading.attempt) == [older.attempt]


def test_one_vote_however_the_holds_become_free() -> None:
    """An older transaction is asked to vote and has a younger one refused: it must not vote again for that."""
    key, other = b"\x00\x00\x00\x01k", b"\x00\x00\x00\x02b"
    participant = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", _add)
    participant.start(0, (), 1)
    participant.receive("oracle", Timestamps(1, 256, 1, 0), 0)
    older, younger = ((1, 1024), 1024), ((2, 2048), 2048)
    participant.receive("c1", Ask(older, 1, 1024, 0, 0, (other,)), 0)
    participant.receive("c2", Ask(younger, 1, 2048, 0, 0, (), (key,)), 0)
    incarnation = participant.parts[older].incarnation
    refreshes = ((1, key, (), (5,)),)
    prepare = Prepare(older, 1024, 0, incarnation, 1, ("ltm-1",), ((other, (1,)),), refreshes)
    out = participant.receive("c1", prepare, 0)
    assert [type(record) for record in out.persist] == [Committed]
    assert participant.cells.newest(key)[:2] == (1024, (5,))


def test_one_that_restarted_decides_nothing_about_what_it_only_holds() -> None:
    """Seed 59 of the scenario `commit`: what came between the start and the timer was decided, then voted for."""
    participant = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", _add)
    participant.start(0, (), 1)
    participant.receive("oracle", Timestamps(1, 256, 1, 0), 0)
    held = ((1, 1024), 1024)
    participant.receive("c1", Ask(held, 1, 1024, 0, 0, (KEY,)), 0)
    out = participant.timer(RECOVERING, 1)
    assert out.persist == () and participant.parts[held].decided is None


@pytest.mark.parametrize(("state", "ts"), [(VOTED, 1024), (COMMITTED, 1024), (ABORTED, 0)])
def test_an_answer_decides_nothing_about_what_is_only_held(state: str, ts: int) -> None:
    """Seed 106516 of the scenario `commit-long`: an attempt was aborted and forgotten, a late copy of a question made a
    part of it again, and then came a late answer: another one has voted, and the list of the new part was empty."""
    participant = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", _add)
    participant.start(0, (), 1)
    participant.receive("oracle", Timestamps(1, 256, 1, 0), 0)
    held = ((1, 1024), 1024)
    participant.receive("c1", Ask(held, 1, 1024, 0, 0, (KEY,)), 0)
    out = participant.receive("ltm-2", Answer(held, "ltm-2", state, ts, ("ltm-1", "ltm-2")), 1)
    assert out.persist == () and participant.parts[held].decided is None
    assert (1, 1024) not in participant.committed


def _add(refresh: Refresh, row: Row | None) -> Row | None:
    return ((0 if row is None else row[0]) + refresh[3][0],)  # type: ignore[operator]
