"""What is due after a fixed time has one timer."""

from __future__ import annotations

from viewtide.ltm.due import Due


def test_one_timer_is_set_for_all_and_what_nobody_awaits_is_skipped() -> None:
    timers: list[int] = []
    due: Due[str] = Due(100, timers.append)
    for now_ms, item in ((0, "a"), (10, "b"), (20, "c"), (30, "d")):
        due.add(item, now_ms)
    assert timers == [100]
    assert list(due.take(100, lambda item: item != "b")) == ["a"]
    assert timers == [100, 120]  # that of c: b is gone already
    assert list(due.take(130, lambda item: True)) == ["c", "d"]
    assert timers == [100, 120]
    due.add("e", 140)
    assert timers == [100, 120, 240]


def test_what_is_taken_can_be_added_again_and_may_end_others() -> None:
    timers: list[int] = []
    due: Due[str] = Due(100, timers.append)
    awaited = {"a", "b"}
    due.add("a", 0)
    due.add("b", 0)
    for item in due.take(100, awaited.__contains__):
        awaited.discard("b")
        due.add(item, 100)
    assert timers == [100, 200]
    assert list(due.take(200, awaited.__contains__)) == ["a"]
