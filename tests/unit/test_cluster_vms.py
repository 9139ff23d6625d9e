"""The view maintenance system of a cluster, each machine by itself: the simulator runs them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from tests.sim.workload import LTMS, key, tables
from viewtide.changetables.errors import DataError
from viewtide.changetables.plan import Contribution, LookUp, State
from viewtide.changetables.types import Row
from viewtide.coordinator.transaction import ABSENT, PRESENT
from viewtide.coordinator.two_phase.messages import CONFLICT, Outcome, ReadAt, RowsAt, Submit
from viewtide.coordinator.vms import step_rows
from viewtide.coordinator.vms.cluster_client import AGAIN_MS, ANSWER_MS_MAX, Asker
from viewtide.coordinator.vms.cluster_messages import (
    NOT_OPEN,
    Changed,
    Close,
    Closed,
    Collect,
    GroupIs,
    Hello,
    Item,
    Marker,
    Passed,
    SlotDone,
    SlotRefused,
    WantGroup,
    Work,
    Working,
    addressed,
)
from viewtide.coordinator.vms.cluster_scheduler import SILENT_MS_MAX, TICK_MS, WORK_MS, ClusterScheduler
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant, History, catalog_of_step
from viewtide.coordinator.vms.cluster_view_manager import ClusterViewManager, Gather, net_of
from viewtide.coordinator.vms.groups import groups_of
from viewtide.coordinator.vms.look_ups_between import answer_between
from viewtide.coordinator.vms.step_rows import BEGINNING, Step, slot_key, step_key, watermark_key
from viewtide.ltm.catalog import Catalog
from viewtide.ltm.cluster.hosted import Hosted
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.messages import ForLog
from viewtide.ltm.machine import Outputs, PlainHost, WhenDurable
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import COMMITTED, Decide, Prepare, Timestamps
from viewtide.ltm.two_phase.records import LoggedWrite
from viewtide.ltm.two_phase.views import refresh_with
from viewtide.ltm.versions import Horizon

GROUPS = {name: group for group in groups_of(tables()) for name in group.names}
QUICK, SLOW = GROUPS["late_counted"].key, GROUPS["late_bank"].key


def counted(number: int, old: int | None, new: int | None) -> LoggedWrite:
    """A counter changes its value."""
    return (
        key("counters", number),
        None if old is None else (number, old),
        None if new is None else (number, new),
    )


def sent(outputs: Outputs) -> list[tuple[str, object]]:
    return [(item.destination, item.message) if isinstance(item, WhenDurable) else item for item in outputs.send]


def messages(outputs: Outputs, kind: type) -> list[object]:
    return [message for _, message in sent(outputs) if isinstance(message, kind)]


# --- rows ---


def test_rows_of_a_step_are_found_by_their_ranges() -> None:
    start, stop, _, _ = step_rows.slots_range(7)
    inside = [slot_key(7, 1 << 60, level, slot) for level in range(3) for slot in range(3)]
    outside = [step_key(7), watermark_key(7), slot_key(8, 1, 0, 0), slot_key(6, 1, 0, 0), step_rows.withdrawn_key(1)]
    assert all(start <= each < stop for each in inside)
    assert not any(start <= each < stop for each in outside)
    start, stop, _, _ = step_rows.withdrawn_range()
    assert start <= step_rows.withdrawn_key(255) < stop


def test_the_rows_of_steps_sort_before_all_others() -> None:
    assert max(slot_key(1 << 40, 1 << 62, 9, 255), step_key(1 << 40)) < key("accounts", -(1 << 62))


def test_rows_tell_what_was_written() -> None:
    step = Step(3, 10, 20, 4)
    expect, row, _, _ = step_rows.opened(step)
    assert (expect, step_rows.step_of(row)) == (ABSENT, step)
    assert step_rows.watermark_of(step_rows.published(step)[1]) == 20
    assert step_rows.watermark_of(None) == BEGINNING and step_rows.step_of(None) is None
    rows = [cast(Row, step_rows.refreshed(each, 1, 2, 9)[1]) for each in (step, step._replace(w1=30))]
    assert step_rows.slots_of(step, rows) == {(1, 2)}
    assert step_rows.ENDED[0] == PRESENT
    expect, row, _, _ = step_rows.dropped(step)
    assert expect == PRESENT and step_rows.step_of(row) == step.dropped != step
    assert step.dropped.is_dropped and not step.is_dropped
    assert step.dropped.dropped == step.dropped and step.dropped.as_opened == step == step.as_opened


# --- what was committed ---


def share(history: History, step: Step, level: int = 0) -> list[Item]:
    return [item for slot in range(step.slots) for item in history.share(step, level, slot)]


def test_records_belong_to_a_step_by_commit_ts_and_not_by_the_order_in_which_they_come() -> None:
    history = History(tables())
    history.heard(30, 0, [counted(1, 3, 4)], [])
    history.heard(10, 0, [counted(1, None, 1)], [])
    history.heard(20, 0, [counted(1, 1, 3)], [])
    counters = tables().by_name["counters"].table.id
    assert share(history, Step(QUICK, 1, 20, 3)) == [(counters, key("counters", 1), None, (1, 3))]
    assert share(history, Step(QUICK, 20, 30, 3)) == [(counters, key("counters", 1), (1, 3), (1, 4))]
    assert share(history, Step(QUICK, 30, 40, 3)) == []
    assert history.rows_count(Step(QUICK, 1, 20, 3)) == 2


def test_every_change_falls_to_one_slot_and_those_that_cancel_to_none() -> None:
    history = History(tables())
    history.heard(10, 0, [counted(number, None, number) for number in range(50)], [])
    history.heard(20, 0, [counted(0, 0, None)], [])
    found = share(history, Step(QUICK, 1, 20, 4))
    assert sorted(item[1] for item in found) == sorted(key("counters", number) for number in range(1, 50))
    sizes = [len(history.share(Step(QUICK, 1, 20, 4), 0, slot)) for slot in range(4)]
    assert sum(sizes) == 49 and all(sizes)


def test_of_a_view_the_keys_are_known_that_were_refreshed_at_the_step() -> None:
    history = History(tables())
    view = tables().views["late_by_branch"]
    cells = {branch: view.plan.keys.encode((branch,)) for branch in range(3)}
    history.heard(40, 20, [], [(view.view.id, cells[1], (1,), ())])
    history.heard(45, 30, [], [(view.view.id, cells[2], (2,), ())])
    level = next(
        number
        for number, views in enumerate(GROUPS["late_bank"].levels())
        if "late_bank" in [v.view.name for v in views]
    )
    found = [item for item in share(history, Step(SLOW, 10, 20, 2), level) if item[0] == view.view.id]
    assert found == [(view.view.id, cells[1], None, None)]


def test_changes_are_kept_until_all_groups_have_passed_them() -> None:
    history = History(tables())
    event = (key("events", 1), None, (1, 2, 3))
    history.heard(10, 0, [event], [])
    quick, slow = Step(QUICK, 1, 20, 1), Step(SLOW, 1, 20, 1)
    history.passed([(QUICK, 20), (999, 50)])
    assert not history.has(quick) and history.has(quick._replace(w0=20))
    assert history.has(slow) and history.rows_count(slow) > 0
    history.passed([(SLOW, 20)])
    assert history.rows_count(slow) == 0 and not history.has(slow)


def test_a_key_that_was_elsewhere_in_between_has_one_change_in_the_end() -> None:
    """First here, then there, then here again; and one that was deleted where it had gone."""
    here, there = History(tables()), History(tables())
    step = Step(QUICK, 1, 100, 1)
    here.heard(10, 0, [counted(1, None, 1), counted(2, None, 5)], [])
    here.heard(20, 0, [counted(1, 1, 2)], [])
    there.heard(30, 0, [counted(1, 2, 3), counted(2, 5, None)], [])
    here.heard(40, 0, [counted(1, 3, 4)], [])
    found = [*share(here, step), *share(there, step)]
    assert len(found) == 5
    writes = net_of(found)
    assert (key("counters", 1), None, (1, 4)) in writes and (key("counters", 2), None, None) in writes
    assert sorted(net_of(found[::-1])) == sorted(writes)


# --- closing and collecting ---


class _Ltm:
    """One participant, with a disk that is as fast as the test says."""

    def __init__(self, items_max: int = 2) -> None:
        self.machine = FeedingParticipant(
            PlainHost("ltm-1"), "ltm-1", "oracle", refresh_with(tables()), tables(), items_max
        )
        self.machine.start(0, (), 1)
        self.machine.receive("oracle", Timestamps(1, 5 << 8, 1, 0), 0)
        self.lsn = 0

    def receive(self, message: object) -> list[object]:
        outputs = self.machine.receive("somebody", message, 1)
        self.lsn += len(outputs.persist)
        return [message for _, message in sent(outputs)]

    def prepare(self, number: int, start: int, write: LoggedWrite, logs: tuple[str, ...] = ("ltm-1",)) -> None:
        self.receive(Prepare(((number, start), start), start, 0, 0, 1, logs, ((write[0], write[2]),), ()))

    def durable(self) -> None:
        self.machine.persisted(self.lsn, 2)


def test_w1_is_closed_when_nothing_below_it_is_in_doubt() -> None:
    ltm = _Ltm()
    w1 = 100 << 8
    ltm.prepare(1, 50 << 8, counted(0, None, 1), ("ltm-1", "ltm-2"))
    ltm.durable()
    assert ltm.receive(Close(Step(QUICK, 1, w1, 1), 0)) == []
    ltm.receive(Decide(((1, 50 << 8), 50 << 8), 60 << 8))
    assert ltm.receive(Close(Step(QUICK, 1, w1, 1), 0)) == [Closed(Step(QUICK, 1, w1, 1), "ltm-1", 0, 1)]
    # Nobody commits at or below it any more.
    ltm.prepare(2, 70 << 8, counted(1, None, 1))
    assert ltm.machine.committed[2, 70 << 8][1] == w1 + 1


def test_what_is_visible_and_not_durable_is_waited_for() -> None:
    ltm = _Ltm()
    step = Step(QUICK, 1, 100 << 8, 1)
    ltm.prepare(1, 50 << 8, counted(0, None, 1))
    assert ltm.receive(Collect(step, 0, 0, 0)) == []
    ltm.durable()
    found = ltm.receive(Collect(step, 0, 0, 0))
    assert [type(message) for message in found] == [Changed, Marker]


def test_a_share_is_in_numbered_messages_and_a_marker_that_counts_them() -> None:
    ltm = _Ltm()
    step = Step(QUICK, 1, 1000 << 8, 1)
    for number in range(5):
        ltm.prepare(number, (50 + number) << 8, counted(number, None, 1))
    ltm.durable()
    found = ltm.receive(Collect(step, 0, 0, 0))
    assert [(type(each), getattr(each, "number", None)) for each in found] == [
        (Changed, 0),
        (Changed, 1),
        (Changed, 2),
        (Marker, None),
    ]
    assert cast(Marker, found[-1]).messages == 3
    again = ltm.receive(Collect(step, 0, 0, 2))
    assert again == found[2:]


def test_a_step_that_was_passed_is_not_answered() -> None:
    ltm = _Ltm()
    ltm.receive(Passed(((QUICK, 200 << 8),)))
    assert ltm.receive(Close(Step(QUICK, 1, 100 << 8, 1), 0)) == []
    assert ltm.receive(Collect(Step(QUICK, 1, 100 << 8, 1), 0, 0, 0)) == []


def test_commits_are_heard_of_again_after_a_restart() -> None:
    ltm = _Ltm()
    outputs = ltm.machine.receive(
        "c", Prepare(((1, 50 << 8), 50 << 8), 1, 0, 0, 1, ("ltm-1",), ((key("counters", 1), (1, 1)),), ()), 1
    )
    again = FeedingParticipant(PlainHost("ltm-1"), "ltm-1", "oracle", refresh_with(tables()), tables())
    again.start(0, outputs.persist, 2)
    assert again.history.rows_count(Step(QUICK, 1, 100 << 8, 1)) == 1


def test_what_was_published_is_kept_once_while_nobody_comes() -> None:
    ltm = _Ltm()
    for number in range(1, 50):
        ltm.receive(Passed(((QUICK, number << 8),)))
        ltm.machine.timer("clean", number)
    assert len(ltm.machine._published) == 1
    assert 49 << 8 in ltm.machine._published[0][1].values()


# --- gathering ---

STEP = Step(QUICK, 1, 100 << 8, 2)


def test_a_marker_that_overtakes_changes_does_not_end_the_gathering() -> None:
    gather = Gather((("a", "a"), ("b", "b")))
    items: tuple[Item, ...] = ((1, b"k", None, (1,)),)
    gather.marker(Marker(STEP, 0, 0, "b", 0))
    gather.marker(Marker(STEP, 0, 0, "a", 2))
    gather.changed(Changed(STEP, 0, 0, "a", 1, items))
    assert not gather.complete and gather.first_missing("a") == 0 and gather.first_missing("b") is None
    gather.changed(Changed(STEP, 0, 0, "a", 0, items))
    gather.changed(Changed(STEP, 0, 0, "a", 0, items))
    assert gather.complete and list(gather.items()) == [*items, *items]


# --- asking ---


def test_whoever_does_not_answer_is_asked_again_and_another_one_too() -> None:
    asker = Asker(PlainHost("me"), ("one", "two"))
    answers: list[object] = []
    asker.ask(Submit((1, 2), False, ()), 0, answers.append)
    assert asker.timers == [(ANSWER_MS_MAX, ("ask", ((1, 2), 1)))]
    asker.timer(((1, 2), 1), ANSWER_MS_MAX)
    assert {destination for destination, _ in asker.send} == {"one", "two"}
    assert [cast(Submit, message).again for _, message in asker.send] == [False, True]
    outcome = Outcome((1, 2), COMMITTED, 5)
    asker.receive(outcome, 1)
    asker.receive(outcome, 2)
    assert answers == [outcome]


def test_a_read_that_was_refused_is_begun_again_and_a_forgotten_one_is_not() -> None:
    asker = Asker(PlainHost("me"), ("one",))
    answers: list[object] = []
    name = asker.ask(ReadAt(0, 0, ()), 0, answers.append)
    asker.receive(RowsAt(cast(int, name), 0, (), (), "moved"), 10)
    assert asker.timers[-1] == (10 + AGAIN_MS, ("ask", (name, 2))) and not answers
    asker.forget(name)
    asker.send.clear()
    asker.timer((name, 2), 40)
    assert asker.send == []


def test_a_question_that_is_refused_for_long_is_asked_once_at_a_time() -> None:
    asker = Asker(PlainHost("me"), ("one",))
    name = cast(int, asker.ask(ReadAt(0, 0, ()), 0, lambda _: None))
    for now_ms in range(0, 20 * AGAIN_MS, AGAIN_MS):
        asker.send.clear()
        asker.receive(RowsAt(name, 0, (), (), "moved"), now_ms)
        due, asker.timers = asker.timers, []
        for _, token in due:
            asker.timer(cast("tuple[str, object]", token)[1], now_ms + AGAIN_MS)
        assert len(asker.send) == 1


# --- look-ups between two timestamps ---


def answered(look_up: LookUp, before: Row | None, after: Row | None) -> object:
    asking = answer_between(tables(), [look_up], 10, 20)
    rows: RowsAt | None = None
    while True:
        try:
            asked = next(asking) if rows is None else asking.send(rows)
        except StopIteration as finished:
            return finished.value
        row = before if asked.at == 10 else after
        rows = RowsAt(0, asked.at, tuple((1, row) for _ in asked.keys), ())


@pytest.mark.parametrize(
    ("state", "before", "after", "found"),
    [
        (State.OLD, (1, 1), (1, 2), (1, 1)),
        (State.NEW, (1, 1), (1, 2), (1, 2)),
        (State.KEPT, (1, 1), (1, 2), None),
        (State.KEPT, (1, 1), (1, 1), (1, 1)),
        (State.TAKEN, None, (1, 2), (1, 2)),
        (State.TAKEN, (1, 1), None, (1, 1)),
    ],
)
def test_look_ups_see_what_was_there_before_and_after(state: State, before: Row, after: Row, found: Row) -> None:
    assert answered(LookUp("counters", None, [key("counters", 1)], state), before, after) == [[found]]


# --- the view manager ---


class _Manager:
    def __init__(self) -> None:
        self.machine = ClusterViewManager(PlainHost("manager-1"), 1, tables(), ("c",), ("leader",))
        self.machine.start(0, (), 1)

    def receive(self, message: object, sender: str = "leader") -> list[tuple[str, object]]:
        return sent(self.machine.receive(sender, message, 1))

    def work(self, step: Step = STEP) -> ReadAt:
        """Gives it a slot; returns what it asks first."""
        found = self.receive(Work(step, 0, 0, 1, (("ltm-1", "ltm-1"),)))
        assert ("leader", Working(step, 0, 0, 1)) in found
        return next(message for _, message in found if isinstance(message, ReadAt))

    def rows(self, asked: ReadAt, rows: Iterable[Row | None]) -> list[tuple[str, object]]:
        return self.receive(RowsAt(asked.number, 200 << 8, tuple((1, row) for row in rows), ()), "c")


OPEN = cast(Row, step_rows.opened(STEP)[1])


def test_a_slot_of_a_step_that_is_not_open_is_refused() -> None:
    for row in (None, cast(Row, step_rows.opened(STEP._replace(w1=999 << 8))[1])):
        manager = _Manager()
        assert manager.rows(manager.work(), [row, None]) == [("leader", SlotRefused(STEP, 0, 0, 1, NOT_OPEN))]


def test_a_slot_that_is_done_is_not_done_again() -> None:
    manager = _Manager()
    done = cast(Row, step_rows.refreshed(STEP, 0, 0, 2)[1])
    assert manager.rows(manager.work(), [OPEN, done]) == [("leader", SlotDone(STEP, 0, 0, 1))]
    assert manager.receive(Work(STEP, 0, 0, 2, ()), "other") == [("other", SlotDone(STEP, 0, 0, 1))]


def test_a_slot_is_committed_at_w1_with_its_row_and_the_step_as_seen() -> None:
    manager = _Manager()
    found = manager.rows(manager.work(), [OPEN, None])
    assert found == [("ltm-1", Collect(STEP, 0, 0, 0))]
    counters = tables().by_name["counters"].table.id
    items = ((counters, key("counters", 1), None, (1, 5)),)
    assert manager.receive(Marker(STEP, 0, 0, "ltm-1", 1), "ltm-1") == []
    ((_, submit),) = manager.receive(Changed(STEP, 0, 0, "ltm-1", 0, items), "ltm-1")
    assert isinstance(submit, Submit)
    assert (submit.at, submit.snapshot, submit.seen) == (STEP.w1, 200 << 8, (step_key(QUICK),))
    assert submit.writes[0][1] == ((slot_key(QUICK, STEP.w1, 0, 0), step_rows.refreshed(STEP, 0, 0, 1)),)
    assert [refresh[0] for refresh in submit.refreshes] == [tables().views["late_counted"].view.id]
    refused = Outcome(submit.tx_id, CONFLICT, 0, ("TransactionConflict", "why", ""))
    assert manager.receive(refused, "c") == [("leader", SlotRefused(STEP, 0, 0, 1, "why"))]


SHOWN = "cannot be shown"


def _cannot(*_: object) -> None:
    raise DataError(SHOWN, hint="mend it")


def test_a_slot_that_fails_is_refused_with_the_reason_and_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = _Manager()
    manager.rows(manager.work(), [OPEN, None])
    with monkeypatch.context() as patched:
        patched.setattr(ClusterViewManager, "_change_tables", _cannot)
        found = manager.receive(Marker(STEP, 0, 0, "ltm-1", 0), "ltm-1")
    assert found == [("leader", SlotRefused(STEP, 0, 0, 1, str(DataError(SHOWN, hint="mend it")), True))]
    assert not manager.machine.jobs
    assert manager.rows(manager.work(), [OPEN, None]) == [("ltm-1", Collect(STEP, 0, 0, 0))]


def test_a_slot_of_a_dropped_step_is_taken_back_with_its_row() -> None:
    manager = _Manager()
    dropped = cast(Row, step_rows.dropped(STEP)[1])
    done = cast(Row, step_rows.refreshed(STEP, 0, 0, 2)[1])
    counters = tables().by_name["counters"].table.id
    items = ((counters, key("counters", 1), None, (1, 5)),)
    submits = []
    for step, rows in ((STEP, [OPEN, None]), (STEP.dropped, [dropped, done])):
        # What was begun of the step when it was dropped is forgotten.
        assert manager.rows(manager.work(step), rows) == [("ltm-1", Collect(STEP, 0, 0, 0))]
        manager.receive(Marker(STEP, 0, 0, "ltm-1", 1), "ltm-1")
        ((_, submit),) = manager.receive(Changed(STEP, 0, 0, "ltm-1", 0, items), "ltm-1")
        assert isinstance(submit, Submit)
        submits.append(submit)
    assert list(manager.machine.jobs) == [(STEP.dropped, 0, 0)]
    added, taken = submits
    assert (taken.at, taken.seen) == (added.at, added.seen) == (STEP.w1, (step_key(QUICK),))
    assert taken.writes[0][1] == ((slot_key(QUICK, STEP.w1, 0, 0), step_rows.ENDED),)
    plan = tables().views["late_counted"].plan
    assert [Contribution(*each[1:]) for each in taken.refreshes] == [
        plan.negate(Contribution(*each[1:])) for each in added.refreshes
    ]
    assert manager.receive(Outcome(taken.tx_id, COMMITTED, 5), "c") == [("leader", SlotDone(STEP.dropped, 0, 0, 1))]


def test_a_slot_of_a_dropped_step_that_is_not_there_is_not_taken_back() -> None:
    manager = _Manager()
    dropped = cast(Row, step_rows.dropped(STEP)[1])
    found = manager.rows(manager.work(STEP.dropped), [dropped, None])
    assert found == [("leader", SlotDone(STEP.dropped, 0, 0, 1))]


# --- the scheduler ---


class _Scheduler:
    """One that leads, and two view managers."""

    def __init__(self) -> None:
        self.epoch = 0
        logs = tuple((log, log) for log in LTMS)
        self.machine = ClusterScheduler(PlainHost("leader"), tables(), ("c",), lambda: logs, lambda: self.epoch)
        self.now_ms = 1_000
        self.machine.lead(self.now_ms, 1)
        for number in (1, 2):
            self.receive(Hello(number), f"manager-{number}")

    def receive(self, message: object, sender: str) -> list[tuple[str, object]]:
        return sent(self.machine.receive(sender, message, self.now_ms))

    def tick(self, passed_ms: int = TICK_MS) -> list[tuple[str, object]]:
        self.now_ms += passed_ms
        return sent(self.machine.timer(("tick", self.machine.term), self.now_ms))

    def read(
        self, found: list[tuple[str, object]], step: Step | None, slots: Iterable[Row] = ()
    ) -> list[tuple[str, object]]:
        """Answers the question about the quick group's rows."""
        asked = next(m for _, m in found if isinstance(m, ReadAt) and m.keys[0] == step_key(QUICK))
        rows = ((1, None if step is None else cast(Row, step_rows.opened(step)[1])), (0, None))
        ranges = tuple(tuple((b"", 1, row) for row in slots) for _ in asked.ranges)
        return self.receive(RowsAt(asked.number, 500 << 8, rows[: len(asked.keys)], ranges), "c")

    def close(self, step: Step, rows: int = 1) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        for log in LTMS:
            found += self.receive(Closed(step, log, self.epoch, rows), log)
        return found


FOUND = Step(QUICK, 1, 77 << 8, 3)


def test_a_step_is_opened_at_the_timestamp_of_the_read_before_anything_else() -> None:
    scheduler = _Scheduler()
    found = scheduler.read(scheduler.tick(), None)
    ((_, submit),) = [each for each in found if isinstance(each[1], Submit)]
    assert len(found) == 1 and isinstance(submit, Submit)
    ((_, intent),) = submit.writes[0][1]
    step = step_rows.step_of(intent[1])
    assert step == Step(QUICK, BEGINNING, 500 << 8, 4) and intent[0] == ABSENT
    assert set(submit.seen) == {step_key(QUICK), watermark_key(QUICK)} and submit.snapshot == 500 << 8
    closing = scheduler.receive(Outcome(submit.tx_id, COMMITTED, 600 << 8), "c")
    assert closing == [(log, Close(step, 0)) for log in LTMS]


def opened_by_another(scheduler: _Scheduler, step: Step = FOUND) -> Step:
    """A step that the scheduler found, with all LTMs closed and no slot done."""
    scheduler.read(scheduler.tick(), step)
    return step


def test_an_open_step_is_finished_by_whoever_leads_next_as_it_was_opened() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler)
    done = cast(Row, step_rows.refreshed(step, 0, 1, 9)[1])
    found = scheduler.read(scheduler.close(step), step, [done])
    given = [message for _, message in [*found, *scheduler.tick(WORK_MS)] if isinstance(message, Work)]
    assert {(work.step, work.slot) for work in given} == {(step, 0), (step, 2)}


def test_a_change_of_the_map_repeats_the_closing() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler)
    scheduler.receive(Closed(step, LTMS[0], 0, 1), LTMS[0])
    scheduler.epoch = 1
    assert [message for _, message in scheduler.tick() if isinstance(message, Close)] == [Close(step, 1)] * len(LTMS)
    for log in LTMS:
        assert scheduler.receive(Closed(step, log, 0, 1), log) == []
    assert any(isinstance(message, ReadAt) for _, message in scheduler.close(step))


def test_slots_of_a_silent_view_manager_are_given_to_another() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler)
    found = scheduler.read(scheduler.close(step), step)
    workers = {message.slot: process for process, message in found if isinstance(message, Work)}
    assert set(workers.values()) == {"manager-1", "manager-2"}
    given: dict[int, str] = {}
    for _ in range(SILENT_MS_MAX // TICK_MS + 5):
        scheduler.receive(Hello(1), "manager-1")
        for slot, process in workers.items():
            if process == "manager-1":
                scheduler.receive(Working(step, 0, slot, 1), "manager-1")
        given |= {message.slot: process for process, message in scheduler.tick() if isinstance(message, Work)}
    assert given == dict.fromkeys(workers, "manager-1")


def test_a_watermark_is_published_when_all_slots_are_in_and_not_before() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler)
    scheduler.read(scheduler.close(step), step)
    levels = len(GROUPS["late_counted"].levels())
    for level in range(levels):
        for slot in range(step.slots):
            found = scheduler.receive(SlotDone(step, level, slot, 1), "manager-1")
            assert not messages(Outputs(send=tuple(found)), Submit)
    ((_, submit),) = scheduler.read(found, step)
    assert isinstance(submit, Submit)
    writes = dict(submit.writes[0][1])
    assert writes.pop(watermark_key(QUICK)) == step_rows.published(step)
    slots = {slot_key(QUICK, step.w1, level, slot) for level in range(levels) for slot in range(step.slots)}
    assert writes == dict.fromkeys({step_key(QUICK), *slots}, step_rows.ENDED)
    found = scheduler.receive(Outcome(submit.tx_id, COMMITTED, 900 << 8), "c")
    assert found == [(log, Passed(((QUICK, step.w1),))) for log in LTMS]


def test_a_step_that_another_one_has_published_is_left_alone() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler)
    found = scheduler.read(scheduler.close(step, rows=0), step)
    found = scheduler.read(found, step._replace(w1=99 << 8))
    assert not messages(Outputs(send=tuple(found)), Submit)


def test_a_step_that_fails_is_dropped_its_slots_are_taken_back_and_others_hear_of_it() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler)
    scheduler.read(scheduler.close(step), step)
    scheduler.receive(SlotDone(step, 0, 1, 1), "manager-1")
    failed = SlotRefused(step, 0, 0, 1, "why", True)
    found = scheduler.receive(failed, "manager-1")
    assert not any(manager.slots for manager in scheduler.machine.managers.values())
    # First nobody refreshes a slot of it any more.
    ((_, submit),) = scheduler.read(found, step)
    assert isinstance(submit, Submit)
    assert (submit.writes[0][1], submit.seen) == (((step_key(QUICK), step_rows.dropped(step)),), (step_key(QUICK),))
    assert scheduler.receive(failed, "manager-2") == []
    done = cast(Row, step_rows.refreshed(step, 0, 1, 1)[1])
    found = scheduler.receive(Outcome(submit.tx_id, COMMITTED, 600 << 8), "c")
    found = scheduler.read(found, step.dropped, [done])
    assert [(m.step, m.level, m.slot) for _, m in found if isinstance(m, Work)] == [(step.dropped, 0, 1)]
    found = scheduler.receive(SlotDone(step.dropped, 0, 1, 1), "manager-1")
    ((_, submit),) = scheduler.read(found, step.dropped)
    assert isinstance(submit, Submit)
    assert (submit.writes[0][1], submit.seen) == (((step_key(QUICK), step_rows.ENDED),), (step_key(QUICK),))
    found = scheduler.receive(Outcome(submit.tx_id, COMMITTED, 700 << 8), "c")
    scheduler.read(found, None)
    assert QUICK not in scheduler.machine.runs
    ((_, state),) = scheduler.receive(WantGroup(7, QUICK, 0), "c")
    assert isinstance(state, GroupIs)
    assert (state.watermark, state.failures, state.failure, state.failed_ts) == (0, 1, "why", step.w1)
    # It is tried again, but not at once.
    assert not [m for _, m in scheduler.tick() if isinstance(m, ReadAt) and m.keys[0] == step_key(QUICK)]
    scheduler.receive(Hello(1), "manager-1")
    assert [m for _, m in scheduler.tick(350) if isinstance(m, ReadAt) and m.keys[0] == step_key(QUICK)]


def test_a_dropped_step_is_ended_by_whoever_leads_next() -> None:
    scheduler = _Scheduler()
    step = opened_by_another(scheduler, FOUND.dropped)
    assert isinstance(scheduler.machine.runs[QUICK].wanted, ReadAt)
    asked = scheduler.machine.runs[QUICK].wanted
    assert asked.keys == (step_key(QUICK),) and step.is_dropped


def test_who_is_slow_gets_fewer_slots() -> None:
    scheduler = _Scheduler()
    scheduler.machine.managers[1].slot_ms = 500.0
    step = opened_by_another(scheduler)
    found = scheduler.read(scheduler.close(step), step)
    assert [process for process, message in found if isinstance(message, Work)] == ["manager-2"] * step.slots


# --- in a cluster ---


def test_an_ltm_closes_and_gives_shares_only_up_to_its_lease() -> None:
    """As it answers reads: whoever takes over begins above the lease, so nothing up to it is missing here (rule T3)."""
    member = Member(PlainHost("ltm-1"), refresh_with(tables()))
    member.lease = 100 << 8
    hosted, machine = Hosted("ltm-1/1", 1, 1, ()), _Ltm().machine
    for w1, admitted in ((100 << 8, True), (101 << 8, False)):
        step = Step(QUICK, 1, w1, 1)
        for message in (Close(step, 0), Collect(step, 0, 0, 0)):
            assert member._is_admitted(hosted, machine, "somebody", message) is admitted
    assert member._is_admitted(hosted, machine, "somebody", Passed(((QUICK, 101 << 8),)))


def test_messages_for_a_log_go_to_the_process_that_answers_for_it() -> None:
    message = Passed(())
    assert addressed("ltm-1", "ltm-1", message) == ("ltm-1", message)
    assert addressed("ltm-1/1", "ltm-2", message) == ("ltm-2", ForLog("ltm-1/1", "", message))


def test_a_step_whose_catalog_is_forgotten_is_read_by_the_first_that_is_known_after_it() -> None:
    """The newest one may be what changes the group, and waits for the step."""
    catalogs = {version: Tables(Catalog(version=version), Horizon()) for version in (5, 6)}
    assert catalog_of_step(Step(1, 2, 3, version=6), catalogs) is catalogs[6]
    assert catalog_of_step(Step(1, 2, 3, version=4), catalogs) is catalogs[5]
    assert catalog_of_step(Step(1, 2, 3, version=7), catalogs) is None
