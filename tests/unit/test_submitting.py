"""Where transactions of a process's clients are coordinated, and what becomes of those that are passed on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

from viewtide.coordinator.cluster import process as process_module
from viewtide.coordinator.cluster import submitting
from viewtide.coordinator.cluster.addressed import Addressed
from viewtide.coordinator.cluster.calls import Calls, Later
from viewtide.coordinator.cluster.process import Process
from viewtide.coordinator.cluster.submitting import Places, Submitting
from viewtide.coordinator.cluster.waves import WAVE_MS_MAX, WAVES_MAX_LOCAL
from viewtide.coordinator.transaction import ABSENT
from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.messages import BUSY, Outcome, Outcomes, Submit, Submits, Wave
from viewtide.ltm.catalog import Catalog
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.tables import Tables
from viewtide.ltm.versions import Horizon
from viewtide.ltm.wire import decode, encode

HERE, THERE = "ltm-1.coordinator", "ltm-2.coordinator"
CALLS = "ltm-1.calls"


def submit(number: int, key: bytes = b"\0\0\0\x01a") -> Submit:
    return Submit((number, 1), False, (("t", ((key, (ABSENT, (1,), None, True)),)),))


def outcomes(*numbers: int) -> Outcomes:
    return Outcomes(tuple(Outcome((number, 1), "committed", 7) for number in numbers))


def ranges_of(*processes: str) -> RangeMap:
    """One range each: b"", b"1", b"2" ..."""
    logs = [f"{process}/1" for process in processes]
    starts = (b"", *(b"%d" % number for number in range(1, len(processes))))
    return RangeMap(1, starts, tuple(logs), {}, 0, {log: Hosting(1, (log,)) for log in logs})


def place_of(made: Submit, ranges: RangeMap, leader: str) -> str:
    return Places().of(made, ranges, leader)


def test_with_two_ltms_the_leader_coordinates() -> None:
    ranges = ranges_of("ltm-1", "ltm-2")
    for key in (b"0", b"1"):
        assert place_of(submit(1, key), ranges, "ltm-2") == "ltm-2"


def test_with_more_the_owner_of_the_first_row_does() -> None:
    ranges = ranges_of("ltm-1", "ltm-2", "ltm-3")
    assert [place_of(submit(1, key), ranges, "ltm-1") for key in (b"0", b"1", b"2")] == ["ltm-1", "ltm-2", "ltm-3"]


def test_without_a_leader_too() -> None:
    assert place_of(submit(1, b"1"), ranges_of("ltm-1", "ltm-2"), "") == "ltm-2"


def test_logs_that_one_process_answers_for_count_once() -> None:
    """Whoever takes over answers for the logs of the dead, too."""
    ranges = ranges_of("ltm-1", "ltm-2", "ltm-3").host("ltm-3/1", "ltm-2/9")
    assert place_of(submit(1, b"0"), ranges, "ltm-2") == "ltm-2"


def test_what_was_found_out_holds_for_its_map_and_its_leader() -> None:
    places, two, three = Places(), ranges_of("ltm-1", "ltm-2"), ranges_of("ltm-1", "ltm-2", "ltm-3")
    asked = [(two, "ltm-2"), (two, "ltm-1"), (three, "ltm-1"), (two, "ltm-1"), (two, "")]
    assert [places.of(submit(1, b"1"), *each) for each in asked] == ["ltm-2", "ltm-1", "ltm-2", "ltm-1", "ltm-2"]


def test_what_comes_from_several_processes_goes_as_one_wave() -> None:
    made = Submitting(WAVES_MAX_LOCAL)
    made.add(HERE, CALLS, [submit(1)])
    made.add(HERE, "ltm-2.calls", [submit(2), submit(3)])
    assert list(made.release(0)) == [
        (HERE, ((CALLS, submit(1)), ("ltm-2.calls", submit(2)), ("ltm-2.calls", submit(3))))
    ]
    assert made.is_under_way(0) and not made.is_under_way(WAVE_MS_MAX)
    made.answered(HERE, outcomes(1, 2), 0)
    assert made.is_under_way(0)
    made.answered(HERE, Outcome((3, 1), "conflict"), 0)
    assert not made.is_under_way(0)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "HELD_MAX", 3)
    made = Submitting(WAVES_MAX_LOCAL)
    made.add(HERE, CALLS, [submit(number) for number in range(10)])
    ((_, wave),) = made.release(0)
    assert len(wave) == 3


def test_of_a_coordinator_that_is_gone_all_is_taken_back() -> None:
    made = Submitting(WAVES_MAX_LOCAL)
    made.add(THERE, CALLS, [submit(1), submit(2)])
    assert len(list(made.release(0))) == 1
    made.add(THERE, CALLS, [submit(3)])
    made.answered(THERE, outcomes(1), 0)
    assert made.forget(THERE) == [(2, 1), (3, 1)]
    assert made.forget(THERE) == [] and list(made.due_ms()) == []


def test_who_comes_together_is_told_together_and_others_one_by_one() -> None:
    made = Coordinator(PlainHost("c"), "oracle", Tables(Catalog(), Horizon()), RangeMap(1, (b"",), ("ltm-1",)))
    made.start(0, (), 1)
    made.receive("p", Wave(((CALLS, submit(1)), ("ltm-2.calls", submit(2)), (CALLS, submit(3)))), 0)
    made.receive("vm-1", submit(4), 0)
    made._committed([made.work[number, 1] for number in (1, 2, 3, 4)], 7)
    sent = dict(made._out().send)  # type: ignore[arg-type]
    assert sent[CALLS] == outcomes(1, 3)
    assert [sent[each] for each in ("ltm-2.calls", "vm-1")] == [Outcome((n, 1), "committed", 7) for n in (2, 4)]
    assert not made.work


# In a process.


class _Queue:
    """A hub that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, peer: str, payload: bytes) -> bool:
        message = decode(payload)
        assert isinstance(message, Addressed)
        self.sent.append((peer, message.to, message.message))
        return True

    def forget(self, peer: str) -> None:
        self.sent.append((peer, "", "forgotten"))


@pytest.fixture
def process() -> Process:
    made = Process.__new__(Process)
    made.name = "ltm-1"
    made._hub = _Queue()  # type: ignore[assignment]
    made._submitting = Submitting(WAVES_MAX_LOCAL)
    made._calls = Calls(lambda: None)
    made._machines, made._local, made._own = {}, deque(), deque()
    made.counts = Counter()
    made._known = {"ltm-2": None}  # type: ignore[dict-item]
    made._clock = lambda: 0
    return made


def _sent(process: Process) -> list[Any]:
    return process._hub.sent  # type: ignore[attr-defined,no-any-return]


def test_what_is_too_large_for_one_message_goes_in_several_or_stays(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [submit(number) for number in range(4)]
    large = submit(9, b"\0\0\0\x01" + b"x" * 200)
    two = len(encode(Addressed(THERE, CALLS, Submits(tuple(small[:2])))))
    monkeypatch.setattr(process_module, "MESSAGE_BYTES_MAX", two)
    process._pass_on(THERE, [*small, large])
    assert max(len(message.submits) for _, _, message in _sent(process)) == 2
    assert [each for _, _, message in _sent(process) for each in message.submits] == small
    assert list(process._local) == [(HERE, CALLS, large)]


def test_what_a_process_had_that_is_gone_is_submitted_again_here(process: Process) -> None:
    """As one that may have been done (rule V5)."""
    told: list[object] = []
    process._calls.ask_later(HERE, submit(1), told.append)
    assert len(process._calls.take()) == 1
    process._submitting.add(THERE, CALLS, [submit(1)])
    list(process._submitting.release(0))
    process._meet({})
    assert _sent(process) == [("ltm-2", "", "forgotten")]
    assert list(process._local) == [(HERE, CALLS, submit(1)._replace(again=True))]
    # It is answered once, whoever is first.
    process._deliver(CALLS, HERE, Outcome((1, 1), "committed", 7))
    process._deliver(CALLS, THERE, Outcomes((Outcome((1, 1), "committed", 7),)))
    assert told == [Outcome((1, 1), "committed", 7)]


def test_submits_of_others_wait_for_a_wave(process: Process) -> None:
    process._machines[HERE] = object()  # type: ignore[assignment]
    process._deliver(HERE, "ltm-2.calls", Submits((submit(1), submit(2))))
    process._unanswered = None  # type: ignore[assignment]
    process._take_calls()
    assert list(process._local) == [(HERE, CALLS, Wave((("ltm-2.calls", submit(1)), ("ltm-2.calls", submit(2)))))]


# Answers that nobody waits for in a thread.


@pytest.mark.parametrize(
    "end", [Later.cancel, lambda later: later.set_exception(OSError()), lambda later: later.set_result(None)]
)
def test_who_does_not_wait_is_told_once(end: Callable[[Later], None]) -> None:
    told: list[object] = []
    later = Later(told.append)
    assert later.set_running_or_notify_cancel() and not later.cancelled()
    end(later)
    later.set_result(7)
    assert told == [None] and later.cancelled() and not later.set_running_or_notify_cancel()


def test_when_the_process_ends_all_are_told() -> None:
    calls, told = Calls(lambda: None), []
    calls.ask_later(HERE, submit(1), told.append)
    calls.take()
    calls.ask_later(HERE, submit(2), told.append)
    calls.close()
    assert told == [None, None]


def test_busy_elsewhere_says_nothing_of_one_that_was_asked_again() -> None:
    """The coordinator that it was passed on to has not begun it, and this one commits it (rule V5)."""
    calls, told = Calls(lambda: None), []
    calls.ask_later(HERE, submit(1), told.append)
    calls.ask_later(HERE, submit(2), told.append)
    calls.take()
    busy = [Outcome((number, 1), "conflict", 0, (BUSY, "too many", "try again")) for number in (1, 2)]
    calls.again((1, 1))
    calls.receive(Outcomes(tuple(busy)))
    assert told == [busy[1]], "it was asked for once"
    committed = Outcome((1, 1), "committed", 7)
    calls.receive(committed)
    assert told == [busy[1], committed] and len(calls) == 0


def test_a_wave_with_one_twice_ends() -> None:
    made = Submitting(WAVES_MAX_LOCAL)
    made.add(HERE, CALLS, [submit(1), submit(2), submit(1)])
    list(made.release(0))
    made.answered(HERE, outcomes(1, 2), 0)
    assert not made.is_under_way(0)


class _Guest:
    heard = 0

    def take(self) -> bool:
        self.heard += 1
        return False

    def finish(self) -> bool:
        return False


def test_clients_are_heard_however_many_votes_there_are(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = process._guest = _Guest()  # type: ignore[assignment]
    process._failure, process._inbox, process._puts_off = None, deque(), False
    for name in ("_from_zookeeper", "_take_calls", "_fire_timers", "_start_machines", "_flush_logs", "_to_zookeeper"):
        monkeypatch.setattr(process, name, lambda: None)
    monkeypatch.setattr(process, "_wait", lambda: [])
    monkeypatch.setattr(process, "_is_full", lambda: False)
    monkeypatch.setattr(process, "_is_hurried", lambda: True)
    process._hub.flush = lambda: None  # type: ignore[method-assign]
    for _ in range(10):
        process._turn()
    assert guest.heard == 5  # type: ignore[attr-defined]
