"""Runs one cell with every client in a process of its own, and the reader of the view in another.

As `driver`, which does the same with threads: rows are made before a transaction's clock starts, clients stop by the
clock, every read of the view is checked, and at the end the view is compared with a recompute. The monotonic clock is
one for all processes of a machine, so their times can be compared.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Barrier
from typing import Protocol

from .driver import READ_PAUSE_S, STOP_S_MAX, Client, Measurement, Reader, Record, Timing
from .errors import BenchError, Violation
from .workload import Cell, ViewChecker, transactions

#: How long the processes may take to start.
START_S_MAX = 120.0
#: How long they may take to say why they did not.
FAILURE_S_MAX = 5.0


class Place(Protocol):
    """Where a running system is; it can be sent to another process."""

    def client(self, index: int) -> Client:
        """Clients are numbered from 0."""

    def reader(self) -> Reader: ...

    def recompute_differs(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the processes of one cell share. `clock`: start and stop. `counts`: acknowledged transactions, by client."""

    system: str
    cell: Cell
    place: Place
    ready: Barrier
    begin: Barrier
    clock: SynchronizedArray[float]
    counts: SynchronizedArray[int]


def measure_processes(
    system: str, open_place: Callable[[], AbstractContextManager[Place]], cell: Cell, timing: Timing
) -> Measurement:
    with open_place() as place:
        records, reads = _run(system, place, cell, timing)
        acknowledged = sum(len(record.ends) for record in records.values())
        checker = ViewChecker(system, cell)
        reader = place.reader()
        try:
            checker.check_end(reader.read(), acknowledged)
        finally:
            reader.close()
        differs = place.recompute_differs()
        if differs is not None:
            raise Violation(f"the view differs from its recompute ({system}, {cell}): {differs}")
    start, stop = reads.begins.pop(), reads.ends.pop()
    return Measurement(
        measure_s=timing.measure_s,
        client_counts=[record.ended_in(start, stop) for record in records.values()],
        latencies_s=[s for record in records.values() for s in record.latencies_s(start, stop)],
        read_latencies_s=reads.latencies_s(start, stop),
        reads_checked=len(reads.ends),
    )


def _run(system: str, place: Place, cell: Cell, timing: Timing) -> tuple[dict[int, Record], Record]:
    """The records of the clients, and that of the reader with the measured time at its end."""
    context = multiprocessing.get_context("spawn")
    count = cell.clients + 2
    shared = _Shared(
        system,
        cell,
        place,
        context.Barrier(count),
        context.Barrier(count),
        context.Array("d", 2),
        context.Array("q", cell.clients, lock=False),  # type: ignore[arg-type]  # each client writes its own
    )
    works: list[Callable[[_Shared, int, Connection], None]] = [_client_process] * cell.clients + [_reader_process]
    processes, ends = [], []
    for index, work in enumerate(works):
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=work, args=(shared, index, theirs), daemon=True))
        ends.append(ours)
    for process in processes:
        process.start()
    try:
        try:
            shared.ready.wait(START_S_MAX)
            start = time.perf_counter() + timing.warm_up_s
            shared.clock[0], shared.clock[1] = start, start + timing.measure_s
            shared.begin.wait(START_S_MAX)
        except threading.BrokenBarrierError:
            raise BenchError(f"a client of {system} failed ({cell}): {_first_failure(ends)}") from None
        give_up = timing.warm_up_s + timing.measure_s + STOP_S_MAX
        records = [_received(end, give_up, system, cell) for end in ends]
        records[-1].add(start, start + timing.measure_s)
        return dict(enumerate(records[:-1])), records[-1]
    finally:
        for process in processes:
            if process.is_alive():
                process.join(1.0)
                process.kill()
            process.join()


def _first_failure(ends: Sequence[Connection]) -> str:
    """Of those that did not start, the one that kept the others from it."""
    failures = [end.recv()[2] for end in ends if end.poll(FAILURE_S_MAX)]
    own = [failure for failure in failures if failure and "BrokenBarrierError" not in failure]
    return own[0] if own else "it did not start in time"


def _received(end: Connection, seconds: float, system: str, cell: Cell) -> Record:
    if not end.poll(seconds):
        raise BenchError(f"{system} is stuck ({cell}): a client did not stop")
    begins, ends, failure = end.recv()
    if failure:
        raise BenchError(f"a client of {system} failed ({cell}): {failure}")
    return Record(array("d", begins), array("d", ends))


def _client_process(shared: _Shared, index: int, end: Connection) -> None:
    record = Record()

    def work() -> None:
        source = transactions(shared.cell, index)
        client = shared.place.client(index)
        client.prepare(next(transactions(shared.cell, index)))
        counts = shared.counts
        _begin(shared)
        stop = shared.clock[1]
        while time.perf_counter() < stop:
            commit = client.prepare(next(source))
            begun = time.perf_counter()
            commit()
            record.add(begun, time.perf_counter())
            counts[index] += 1
        client.close()

    _guarded(work, shared, record, end)


def _reader_process(shared: _Shared, index: int, end: Connection) -> None:
    record = Record()

    def work() -> None:
        reader = shared.place.reader()
        checker = ViewChecker(shared.system, shared.cell)
        reader.read()
        _begin(shared)
        stop = shared.clock[1]
        while time.perf_counter() < stop:
            acknowledged = _sum(shared.counts)
            begun = time.perf_counter()
            rows = reader.read()
            record.add(begun, time.perf_counter())
            checker.check(rows, acknowledged)
            time.sleep(READ_PAUSE_S)
        reader.close()

    _guarded(work, shared, record, end)


def _sum(counts: Sequence[int] | SynchronizedArray[int]) -> int:
    return sum(counts[index] for index in range(len(counts)))


def _begin(shared: _Shared) -> None:
    gc.collect()
    gc.freeze()
    shared.ready.wait(START_S_MAX)
    shared.begin.wait(START_S_MAX)


def _guarded(work: Callable[[], None], shared: _Shared, record: Record, end: Connection) -> None:
    failure = ""
    try:
        work()
    except Exception:
        failure = traceback.format_exc()
        shared.ready.abort()
    end.send((record.begins.tobytes(), record.ends.tobytes(), failure))
