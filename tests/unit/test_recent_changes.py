"""What an LTM knows of its last commits (`ltm/two_phase/recent.py`), and how a coordinator gathers it from all logs."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from viewtide.changetables.keys import table_range
from viewtide.coordinator.cluster.gathering import AGAIN_MS, GATHERING_MS_MAX, RESEND_MS, Gathering
from viewtide.coordinator.two_phase.messages import ChangesAt, ChangesFound
from viewtide.ltm.cluster.messages import MOVED
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.machine import Outputs, PlainHost, WhenDurable
from viewtide.ltm.two_phase import recent
from viewtide.ltm.two_phase.journal import Journal, Stored
from viewtide.ltm.two_phase.messages import (
    Attempt,
    Decide,
    FoundChanges,
    NotServed,
    Place,
    Prepare,
    ReadChanges,
    Timestamps,
    Vote,
)
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.recent import Recent
from viewtide.ltm.two_phase.records import Committed

TABLE, VIEW, OTHER = 1, 2, 3


def key(table: int, number: int) -> bytes:
    return table_range(table)[0] + bytes([number])


def attempt(number: int) -> Attempt:
    return (number, 1), 1


def add(known: Recent, number: int, ts: int, rows: int = 1, refreshed: int = 0, at: int = 0) -> None:
    writes = [(key(TABLE, each), None, (number,)) for each in range(rows)]
    refreshes = [(VIEW, key(VIEW, each), (each,), (number,)) for each in range(refreshed)]
    known.add(ts, at, attempt(number), writes, refreshes)


# --- Recent ---


commits = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 3), st.integers(0, 3), st.sampled_from((0, 0, 2, 5))), max_size=12
)


@settings(max_examples=200)
@given(
    commits,
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, 4),
    st.sampled_from((1, 700, 4_000)),
    st.randoms(use_true_random=False),
)
def test_pages_together_are_what_was_committed_whatever_came_first(
    made: list[tuple[int, int, int, int]], since: int, at: int, limit: int, bytes_max: int, random: object
) -> None:
    expected: list[tuple[int, str, int]] = []
    order = list(enumerate(made))
    random.shuffle(order)  # type: ignore[attr-defined]
    known = Recent()
    for number, (ts, rows, refreshed, version) in order:
        add(known, number, ts, rows, refreshed, version)
        expected += [(ts, "write", number)] * rows + [(version or ts, "refresh", number)] * refreshed
    found: list[tuple[int, str, int]] = []
    place: Place = (since + 1, 0)
    while place[0] <= at:
        with mock.patch.multiple(recent, SCANNED_MAX=3, PAGE_BYTES_MAX=bytes_max):
            page = known.page((TABLE, VIEW), place, at, limit)
        assert page.next > place and len(page.writes) + len(page.refreshes) <= limit
        for some in ([each[0] for each in page.writes], [each[0] for each in page.refreshes]):
            assert some == sorted(some) and all(place[0] <= ts <= page.next[0] for ts in some)
        found += [(ts, "write", new[0]) for ts, _, _, new in page.writes]  # type: ignore[index,misc]
        found += [(ts, "refresh", delta[0]) for ts, _, _, _, delta in page.refreshes]  # type: ignore[misc]
        place = page.next
    assert sorted(found) == sorted(each for each in expected if since < each[0] <= at)


def test_what_a_log_tells_twice_counts_once() -> None:
    known = Recent()
    for _ in range(2):
        add(known, 1, 10, rows=2)
    add(known, 2, 10)
    assert len(known) == 3
    assert len(known.page((TABLE,), (1, 0), 20, 100).writes) == 3


def test_long_rows_do_not_go_into_one_message() -> None:
    known = Recent()
    row = ("x" * 100_000,)
    known.add(10, 0, attempt(1), [(key(TABLE, each), row, row) for each in range(100)], ())
    page = known.page((TABLE,), (1, 0), 20, 1_000)
    assert len(page.writes) == 21 and page.next == (10, 21)


def test_much_is_forgotten_and_each_table_knows_what_it_misses() -> None:
    known = Recent()
    known.add(1, 0, attempt(100), [(key(OTHER, 1), None, (1,))], ())
    for number in range(10):
        add(known, number, 10 + number)
    with mock.patch.object(recent, "ROWS_MAX", 8):
        known.forget(0, 0)
        assert len(known) == 8, "young ones stay, but not too many"
    known.forget(0, 15)
    assert len(known) == 8, "there is not much of it"
    known.bytes_max = 5 * 330
    known.forget(0, 13)
    assert len(known) == 6, "of the old ones nothing"
    known.forget(0, 17)
    assert len(known) == 5, "no more than is too much"
    known.forget(15, 15)
    assert len(known) == 4, "for a time"
    assert known.oldest((TABLE,)) == 15
    assert known.oldest((OTHER,)) == 1, "nothing of it came after what was forgotten"
    assert known.oldest((VIEW,)) == 0
    add(known, 50, 5)
    known.forget(9, 9)
    assert known.oldest((TABLE,)) == 15, "one that came late was forgotten"
    known.floor = 12
    assert known.oldest((VIEW,)) == 12 and known.oldest((TABLE, VIEW)) == 15


def test_old_changes_of_large_rows_are_not_kept() -> None:
    known = Recent()
    for number in range(10):
        known.add(10 + number, 0, attempt(number), [(key(TABLE, 1), None, ("x" * 1_000,))], ())
    known.bytes_max = 4_000
    known.forget(0, 17)
    assert len(known) == 3
    assert known.oldest((TABLE,)) == 16


def test_rows_of_a_step_wait_for_its_followers_however_old_its_version_is() -> None:
    known = Recent()
    add(known, 1, 50, rows=0, refreshed=1, at=10)
    add(known, 2, 90, rows=0, refreshed=1, at=20)
    known.bytes_max = 0
    known.forget(60, 100, {VIEW: 10})
    assert known.oldest((VIEW,)) == 10, "the step to 20 is not published, or only just"
    known.forget(60, 80, {VIEW: 20})
    assert known.oldest((VIEW,)) == 10, "it is young by its commit"
    known.forget(95, 95, {VIEW: 20})
    assert known.oldest((VIEW,)) == 20


# --- gathering ---


def two_logs(epoch: int = 1) -> RangeMap:
    """The first owns everything; the second owned something once."""
    return RangeMap(epoch, (b"",), ("a",), {}, 0, {"a": Hosting(1, ("a/1",)), "b": Hosting(1, ("b/1",))})


def asked(gathering: Gathering) -> dict[str, ReadChanges]:
    sent = {log: message for log, message in gathering.send if isinstance(message, ReadChanges)}
    gathering.send.clear()
    return sent


def found(read: ReadChanges, oldest: int = 0) -> FoundChanges:
    return FoundChanges(read.number, 1, (), (), (read.at + 1, 0), oldest)


def begun() -> tuple[Gathering, dict[str, ReadChanges]]:
    gathering = Gathering()
    gathering.start(1)
    gathering.ask("client", ChangesAt(7, 100, (VIEW,), 50, 10), two_logs(), 0)
    return gathering, asked(gathering)


def test_all_logs_are_asked_and_owners_close_what_they_own() -> None:
    gathering, reads = begun()
    start, stop = table_range(VIEW)
    assert reads["a"].ranges == ((start, stop, 0, False),) and reads["b"].ranges == ()
    assert all(read.start == (51, 0) for read in reads.values())
    gathering.found(found(reads["a"], oldest=3))
    assert gathering.send == []
    gathering.found(found(reads["b"], oldest=5))
    assert gathering.send == [("client", ChangesFound(7, (("a", (), (), (101, 0)), ("b", (), (), (101, 0))), 5))]


def test_whoever_has_another_map_makes_all_of_them_answer_again() -> None:
    """What was committed at the new owner after it had answered would be told by nobody."""
    gathering, reads = begun()
    gathering.found(found(reads["b"]))
    assert gathering.not_served(NotServed(reads["a"].number, 2, MOVED), 1)
    ((due_ms, token),) = [timer for timer in gathering.timers if timer[1][0] == "again"]
    assert due_ms == 1 + AGAIN_MS
    gathering.timer(token, two_logs(2), due_ms)
    again = asked(gathering)
    assert set(again) == {"a", "b"}
    gathering.found(found(reads["a"]))
    gathering.found(found(again["a"]))
    assert gathering.send == [], "an answer to the first question does not count"
    gathering.found(found(again["b"]))
    assert len(gathering.send) == 1


def test_who_does_not_answer_is_asked_again_for_a_while() -> None:
    gathering, reads = begun()
    gathering.found(found(reads["b"]))
    (token,) = [token for _, token in gathering.timers if token[2] == reads["a"].number]
    gathering.timer(token, two_logs(), RESEND_MS)
    assert asked(gathering) == {"a": reads["a"]}
    gathering.timer(token, two_logs(), GATHERING_MS_MAX + 1)
    assert gathering.send == [("client", ChangesFound(7, (), 0, "no answer"))]
    assert not gathering.not_served(NotServed(reads["a"].number, 1, MOVED), 1)


def test_the_next_page_is_asked_of_those_that_have_one() -> None:
    gathering = Gathering()
    gathering.ask("client", ChangesAt(7, 100, (VIEW,), 50, 10, (("b", (60, 3)),)), two_logs(), 0)
    reads = asked(gathering)
    assert set(reads) == {"b"} and reads["b"].start == (60, 3) and reads["b"].ranges == ()


# --- the participant ---


def participant(known: Recent | None = None) -> Participant:
    made = Participant(PlainHost("a"), "a", "oracle", lambda refresh, row: row)
    made.recent = known or Recent()
    return made


def opened(made: Participant) -> Participant:
    made.start(0, (), 1)
    made.receive("oracle", Timestamps(1, 10 << 20, 1, 1), 0)
    return made


def prepare(number: int, start: int, logs: tuple[str, ...]) -> Prepare:
    return Prepare(((number, 1), start), start, 1, 0, 0, logs, ((key(TABLE, 1), (number,)),), ())


def read_changes(at: int, since: int = 0) -> ReadChanges:
    return ReadChanges(9, at, 0, (TABLE,), (since + 1, 0), 100, ((*table_range(TABLE), 0, False),))


def test_whoever_has_voted_is_waited_for_and_nobody_commits_below_any_more() -> None:
    machine = opened(participant())
    start = 20 << 20
    machine.receive("coordinator", prepare(1, start, ("a", "b")), 0)
    machine.persisted(1, 0)
    assert not machine.receive("reader", read_changes(30 << 20), 0).send
    out = machine.receive("coordinator", Decide(((1, 1), start), start + 5), 0)
    ((_, _, told),) = [each for each in _sent(out) if isinstance(each[2], FoundChanges)]
    assert told.writes == ((start + 5, key(TABLE, 1), None, (1,)),)
    assert told.next == ((30 << 20) + 1, 0)
    late = machine.receive("coordinator", prepare(2, 25 << 20, ("a", "b")), 0)
    ((_, _, vote),) = [each for each in _sent(late) if isinstance(each[2], Vote)]
    assert vote.min_ts > 30 << 20


def test_what_is_not_durable_is_not_told() -> None:
    machine = opened(participant())
    out = machine.receive("coordinator", prepare(1, 20 << 20, ("a",)), 0)
    assert len(out.persist) == 1
    ((lsn, to, told),) = _sent(machine.receive("reader", read_changes(30 << 20), 0))
    assert lsn == 1 and to == "reader" and isinstance(told, FoundChanges) and len(told.writes) == 1


def test_after_a_restart_the_log_tells_what_the_checkpoint_does_not_cover() -> None:
    machine = participant()
    machine.journal = Journal(Stored(15, {b"view": 12}), 0)
    committed = Committed(((1, 1), 20), 20, 0, ((key(TABLE, 1), None, (1,)),), ())
    machine.start(0, (committed,), 2)
    machine.receive("oracle", Timestamps(2, 10 << 20, 1, 1), 0)
    ((_, _, told),) = _sent(machine.receive("reader", read_changes(30), 0))
    assert told.oldest == 12 and [write[0] for write in told.writes] == [20]


def test_who_keeps_no_changes_says_so() -> None:
    machine = participant()
    machine.recent = None
    ((_, _, told),) = _sent(opened(machine).receive("reader", read_changes(30), 0))
    assert isinstance(told, NotServed)


def _sent(out: Outputs) -> list[tuple[int, str, Any]]:
    return [
        (each.lsn, each.destination, each.message) if isinstance(each, WhenDurable) else (0, *each) for each in out.send
    ]
