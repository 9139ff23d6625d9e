"""The garbage collector is paused for pages of rows, by one thread at a time, and is then as it was."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

import viewtide as vt
from viewtide.coordinator import build
from viewtide.ltm import garbage


def test_it_is_paused_and_goes_on() -> None:
    assert gc.isenabled()
    with garbage.paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), garbage.paused():
        raise ValueError
    assert gc.isenabled()


def test_who_has_disabled_it_finds_it_disabled() -> None:
    gc.disable()
    try:
        with garbage.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_one_thread_pauses_it() -> None:
    """Or the collector would never have its turn while several of them go from page to page."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with garbage.paused():
            inside.set()
            assert leave.wait(10)

    thread = threading.Thread(target=other)
    with garbage.paused():
        thread.start()
        assert inside.wait(10)
    try:
        assert gc.isenabled(), "whoever paused it has ended it, though another one is at work"
    finally:
        leave.set()
        thread.join()
    assert gc.isenabled()


def test_a_view_is_computed_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    real = build._answered

    def answered(engine: object, asking: object, at: int) -> object:
        enabled.append(gc.isenabled())
        return real(engine, asking, at)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "_answered", answered)
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "g": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", [{"id": n, "g": n % 3} for n in range(1_200)])
        db.create_view("v", "SELECT g, COUNT(*) AS n FROM t GROUP BY g")
        assert [row.n for row in db.view("v").rows()] == [400, 400, 400]
    assert enabled[0], "what has no rows is done first"
    assert enabled[1:] == [False] * len(enabled[1:]) and len(enabled) > 2
    assert gc.isenabled()


class _Node:
    """It refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Those of a process that has a database open."""
    before = gc.get_threshold()
    gc.set_threshold(*garbage.OPEN_THRESHOLDS)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_what_is_new_is_looked_at_when_there_is_nothing_else_to_do() -> None:
    gc.collect()
    assert not garbage.is_due()
    kept = [[number] for number in range(garbage.IDLE_ALLOCATIONS)]
    assert garbage.is_due()
    gone = weakref.ref(_Node())
    assert gone() is not None
    garbage.collect()
    assert gone() is None
    assert not garbage.is_due()
    assert len(kept) == garbage.IDLE_ALLOCATIONS


@pytest.mark.usefixtures("thresholds")
def test_what_was_looked_at_and_is_garbage_later_goes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself never comes to it where somebody else is always first."""
    monkeypatch.setattr(garbage, "_rests_until_s", 0.0)
    gc.collect()
    node = _Node()
    gone = weakref.ref(node)
    garbage.collect()  # it survives, and is old
    del node
    for number in range(garbage.OPEN_THRESHOLDS[2] + 1):
        assert gone() is not None or number == garbage.OPEN_THRESHOLDS[2]
        garbage.collect()
    assert gone() is None


@pytest.mark.usefixtures("thresholds")
def test_all_is_not_looked_through_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    generations: list[int] = []

    def collected(generation: int = 2) -> int:
        generations.append(generation)
        now[0] += 2.0 if generation == 2 else 0.0
        return 0

    monkeypatch.setattr(garbage, "_rests_until_s", 0.0)
    monkeypatch.setattr(garbage, "perf_counter", lambda: now[0])
    monkeypatch.setattr(gc, "get_count", lambda: (3_000, 0, garbage.OPEN_THRESHOLDS[2]))
    monkeypatch.setattr(gc, "collect", collected)
    garbage.collect()
    garbage.collect()
    now[0] += garbage.REST_TIMES * 2.0 - 1
    garbage.collect()
    assert generations == [2, 1, 1]
    now[0] += 1
    garbage.collect()
    assert generations == [2, 1, 1, 2]


@pytest.mark.usefixtures("thresholds")
def test_who_has_disabled_it_is_not_helped() -> None:
    gc.collect()
    gc.disable()
    try:
        kept = [[number] for number in range(garbage.IDLE_ALLOCATIONS)]
        assert not garbage.is_due()
    finally:
        gc.enable()
    assert len(kept) == garbage.IDLE_ALLOCATIONS
