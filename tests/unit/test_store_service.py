"""The destination STORE of a process: requests in threads of their own, answered once, failures included."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event

import pytest

from viewtide.changetables.errors import OperationalError
from viewtide.coordinator.cluster.store_service import StoreService
from viewtide.ltm.cluster.store_messages import NEWEST, LoadCells, LoadedCells, StoreFailed, WriteCells, Written
from viewtide.ltm.ports import Cell, Damaged
from viewtide.ltm.store.memory import MemoryStore

KEY = b"\0\0\0\x01a"
FAILURES: dict[bytes, Exception] = {
    b"refused": OperationalError("no such table"),
    b"damaged": Damaged("the checksum is wrong"),
    b"strange": ZeroDivisionError("nobody has thought of it"),
}
WAIT_S = 10


class SlowStore(MemoryStore):
    """Writes wait until they are let go; what is damaged raises."""

    def __init__(self) -> None:
        super().__init__()
        self.go = Event()
        self.writes = 0

    def write(
        self,
        batches: Iterable[Sequence[Cell]],
        superseded: Iterable[tuple[int, bytes, int]],
        meta: dict[str, bytes],
        between: Callable[[], None],
        removed: Iterable[tuple[bytes, int]] = (),
    ) -> None:
        assert self.go.wait(WAIT_S)
        self.writes += 1
        super().write(batches, superseded, meta, between, removed)

    def get_many(self, keys: Sequence[bytes], at: int) -> list[Cell | None]:
        for each, error in FAILURES.items():
            if each in keys:
                raise error
        return super().get_many(keys, at)


class Bench:
    def __init__(self) -> None:
        self.store = SlowStore()
        self.answers: SimpleQueue[tuple[Hashable, object]] = SimpleQueue()
        self.failures: SimpleQueue[Exception] = SimpleQueue()
        self.over: set[Hashable] = set()
        self.service = StoreService(
            self.store,
            lambda caller, message: self.answers.put((caller, message)),
            self.failures.put,
            is_over=lambda caller: caller in self.over,
        )

    def next(self) -> tuple[Hashable, object]:
        return self.answers.get(timeout=WAIT_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.store.go.set()
    made.service.close()


def test_loads_do_not_wait_for_writes(bench: Bench) -> None:
    bench.service.request("a", WriteCells(1, ((KEY, 5, (1,)),)))
    bench.service.request("b", LoadCells(2, NEWEST, (KEY,)))
    assert bench.next() == ("b", LoadedCells(2, (None,)))
    bench.store.go.set()
    assert bench.next() == ("a", Written(1))
    bench.service.request("b", LoadCells(3, NEWEST, (KEY,)))
    assert bench.next() == ("b", LoadedCells(3, ((5, (1,)),)))


def test_what_is_asked_again_meanwhile_is_done_once(bench: Bench) -> None:
    for _ in range(3):
        bench.service.request("a", WriteCells(1, ((KEY, 5, (1,)),)))
    bench.service.request("another life", WriteCells(1, ((KEY, 5, (1,)),)))
    bench.store.go.set()
    assert [bench.next(), bench.next()] == [("a", Written(1)), ("another life", Written(1))]
    assert bench.store.writes == 2


def test_what_may_pass_is_answered_as_a_failure(bench: Bench) -> None:
    bench.service.request("a", LoadCells(1, NEWEST, (b"refused",)))
    assert bench.next() == ("a", StoreFailed(1, "no such table"))


@pytest.mark.parametrize("key", [b"damaged", b"strange"])
def test_damage_and_defects_end_the_process_and_are_never_answered(bench: Bench, key: bytes) -> None:
    bench.service.request("a", LoadCells(1, NEWEST, (key,)))
    assert bench.failures.get(timeout=WAIT_S) is FAILURES[key]
    # The thread has not ended with it, and this is the first answer.
    bench.service.request("b", LoadCells(2, NEWEST, (KEY,)))
    assert bench.next() == ("b", LoadedCells(2, (None,)))


def test_a_life_that_is_over_writes_nothing_more(bench: Bench) -> None:
    bench.service.request("first", WriteCells(1, ((KEY, 5, (1,)),)))
    bench.service.request("gone", WriteCells(1, ((KEY, 6, (2,)),)))
    bench.service.request("last", WriteCells(1, ((KEY, 7, (3,)),)))
    bench.over.add("gone")
    bench.store.go.set()
    assert [bench.next(), bench.next()] == [("first", Written(1)), ("last", Written(1))]
    assert bench.store.writes == 2
