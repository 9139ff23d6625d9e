"""The destination STORE of a process: requests in threads of their own, answered once, failures included."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event

import pytest

from viewtide.changetables.errors import OperationalError
from viewtide.coordinator.cluster.store_service import StoreService
from viewtide.ltm.cluster.store_messages import NEWEST, LoadCells, LoadedCells, StoreFailed, WriteCells, Written
from viewtide.ltm.ports import Cell
from viewtide.ltm.store.memory import MemoryStore

KEY = b"\0\0\0\x01a"
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
        if b"damaged" in keys:
            raise OperationalError("the checksum of b'damaged' is wrong")
        return super().get_many(keys, at)


class Bench:
    def __init__(self) -> None:
        self.store = SlowStore()
        self.answers: SimpleQueue[tuple[Hashable, object]] = SimpleQueue()
        self.service = StoreService(self.store, lambda caller, message: self.answers.put((caller, message)))

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


def test_damage_is_a_failure_and_no_row(bench: Bench) -> None:
    bench.service.request("a", LoadCells(1, NEWEST, (b"damaged",)))
    assert bench.next() == ("a", StoreFailed(1, "the checksum of b'damaged' is wrong"))
