"""Transactions of one process go to its coordinator in waves, and get their timestamps together."""

from __future__ import annotations

from viewtide.coordinator.cluster.waves import (
    GATHER_MS,
    WAVE_MS_MAX,
    WAVE_SUBMITS_MAX,
    WAVES_MAX,
    WAVES_MAX_LOCAL,
    Waves,
)
from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.messages import Outcome, Submit, Wave
from viewtide.ltm.catalog import Catalog
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import Draw
from viewtide.ltm.versions import Horizon


def submit(number: int) -> Submit:
    return Submit((number, 1), False, (("t", ((b"\0\0\0\x01%d" % number, ("", None, None, True)),)),))


def begun(waves: Waves, now_ms: int, *numbers: int) -> list[int]:
    """Those that go when these have come."""
    for number in numbers:
        waves.add("client", submit(number))
    return [each.tx_id[0] for _, each in waves.release(now_ms)]


def full(waves: Waves, now_ms: int = 0) -> None:
    """As many waves as may be under way; each is one transaction, 1, 2 ..."""
    for number in range(1, WAVES_MAX + 1):
        assert begun(waves, now_ms, number) == [number]


def test_whoever_comes_alone_goes_at_once() -> None:
    waves = Waves()
    full(waves)
    assert waves.release(0) == ()


def test_those_that_wait_go_together_when_a_wave_has_ended() -> None:
    waves = Waves()
    full(waves)
    assert begun(waves, 1, 10, 11) == []
    assert begun(waves, 2, 12) == []
    assert len(waves) == 3 and waves.due_ms == WAVE_MS_MAX
    waves.answered((1, 1), 3)
    assert waves.due_ms == 0
    assert begun(waves, 3) == [10, 11, 12]
    assert begun(waves, 3, 13) == []
    for number in (10, 11):
        waves.answered((number, 1), 3)
    assert begun(waves, 4) == []
    waves.answered((12, 1), 4)
    assert begun(waves, 4) == [] and waves.due_ms == 4 + GATHER_MS
    assert begun(waves, 4 + GATHER_MS) == [13]


def test_those_who_were_answered_are_waited_for_a_moment() -> None:
    waves = Waves(WAVES_MAX_LOCAL)
    assert begun(waves, 0, 1) == [1]
    assert begun(waves, 1, 2, 3) == []
    waves.answered((1, 1), 2)
    assert begun(waves, 2) == [2, 3]
    assert begun(waves, 3, 4) == []
    for number in (2, 3):
        waves.answered((number, 1), 4)
    # Without these two, they would be two waves in turns from now on.
    assert begun(waves, 4) == []
    assert begun(waves, 4, 5, 6) == [4, 5, 6]
    for number in (4, 5, 6):
        waves.answered((number, 1), 10)
    assert begun(waves, 10, 7) == []
    assert begun(waves, 10 + GATHER_MS) == [7]
    waves.answered((7, 1), 20)
    assert begun(waves, 20, 8) == [8]


def test_nobody_is_waited_for_who_has_not_come_back_for_long() -> None:
    """From when he was answered, not from when somebody looks."""
    waves = Waves(WAVES_MAX_LOCAL)
    assert begun(waves, 0, 1, 2, 3, 4) == [1, 2, 3, 4]
    for number in (1, 2, 3, 4):
        waves.answered((number, 1), 5)
    assert not waves.is_gathering(10_000)
    assert begun(waves, 10_000, 5) == [5]


def test_those_of_the_last_wave_are_expected_back_for_a_moment() -> None:
    waves = Waves(WAVES_MAX_LOCAL)
    assert not waves.is_gathering(0)
    assert begun(waves, 0, 1, 2, 3) == [1, 2, 3]
    assert not waves.is_gathering(0), "it is under way"
    for number in (1, 2):
        waves.answered((number, 1), 4)
    assert not waves.is_gathering(4)
    waves.answered((3, 1), 4)
    assert waves.is_gathering(4) and waves.is_gathering(4 + GATHER_MS - 1)
    waves.add("client", submit(4))
    assert waves.is_gathering(4), "most of them are not back"
    waves.add("client", submit(5))
    assert not waves.is_gathering(4)
    assert begun(waves, 5) == [4, 5]
    waves.answered((4, 1), 6)
    waves.answered((5, 1), 6)
    assert waves.is_gathering(6) and not waves.is_gathering(6 + GATHER_MS)


def test_a_wave_that_takes_long_is_not_waited_for() -> None:
    waves = Waves()
    full(waves)
    assert begun(waves, WAVE_MS_MAX - 1, 10) == []
    assert begun(waves, WAVE_MS_MAX) == [10]
    # Its answers count for nothing any more.
    waves.answered((1, 1), WAVE_MS_MAX)
    assert begun(waves, WAVE_MS_MAX, 11) == [11]


def test_a_wave_is_bounded() -> None:
    waves = Waves()
    assert len(begun(waves, 0, *range(WAVE_SUBMITS_MAX + 5))) == WAVE_SUBMITS_MAX
    assert len(waves) == 5


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    waves = Waves()
    waves.answered((7, 1), 0)
    assert len(waves) == 0 and waves.release(0) == ()


def test_submits_that_come_together_draw_together() -> None:
    made = Coordinator(PlainHost("c"), "oracle", Tables(Catalog(), Horizon()), RangeMap(1, (b"",), ("ltm-1",)))
    made.start(0, (), 1)
    wave = Wave(tuple(("client", submit(number)) for number in (1, 2, 3)))
    draws = [
        message
        for _, message in made.receive("process", wave, 0).send  # type: ignore[misc]
        if isinstance(message, Draw)
    ]
    assert [draw.wanted for draw in draws] == [3]
    assert not any(isinstance(message, Outcome) for message in draws)
    # One that comes later waits for its own: nobody gets a timestamp from before it came (rule T1).
    assert made.receive("client", submit(4), 0).send == ()


def test_where_logs_are_local_one_wave_is_under_way() -> None:
    waves = Waves(WAVES_MAX_LOCAL)
    assert begun(waves, 0, 1) == [1]
    assert begun(waves, 0, 2, 3) == []
    waves.answered((1, 1), 1)
    assert begun(waves, 1) == [2, 3]
