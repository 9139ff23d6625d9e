"""Python's garbage collector while a database is open.

A database keeps many rows alive, none of them in a cycle, and the collector looks through all of them again and again:
with Python's own thresholds that is about a tenth of a writer's time, and its longest pauses. So the thresholds are
raised while a database is open, and put back when the last one is closed. Whoever has set thresholds keeps them.

What has survived the youngest generation is looked at again soon, in small portions: with 16 writers, 40,000 new
objects take 2 ms (7 at the most), 400,000 took up to 44 ms.

Who has a loop looks for young garbage while nothing else is to do, and now and then at everything, which takes as long
as there is much that may be in cycles (a million such objects 0.2 s; rows are not such), but a hundredth of the time.

Whoever goes through many rows at once, a page of some thousand, pauses it for the page: all of its rows are alive until
it is done, so that looking through them finds nothing. That was a fifth of the time of a view's first computation.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

#: What CPython starts with: a process that has something else has chosen it.
PYTHON_THRESHOLDS = (700, 10, 10)
#: Allocations until the youngest generation is looked at, and how often until the next ones are.
OPEN_THRESHOLDS = (10_000, 3, 500)

#: Allocations after which a loop that has nothing to do collects by itself: then nobody waits for it.
IDLE_ALLOCATIONS = 3_000
#: After all has been looked through, it is not for so many times as long as that took.
REST_TIMES = 100

_lock = threading.Lock()
#: Held by the one who pauses it.
_pausing = threading.Lock()
_open_count = 0
#: All is not looked through before then.
_rests_until_s = 0.0


def database_opened() -> None:
    global _open_count
    with _lock:
        _open_count += 1
        if gc.get_threshold() == PYTHON_THRESHOLDS:
            gc.set_threshold(*OPEN_THRESHOLDS)


def database_closed() -> None:
    global _open_count
    with _lock:
        _open_count -= 1
        if _open_count == 0 and gc.get_threshold() == OPEN_THRESHOLDS:
            gc.set_threshold(*PYTHON_THRESHOLDS)


@contextmanager
def paused() -> Iterator[None]:
    """For a page of rows that are in no cycle. One thread at a time: others go on with the collector as it is, so that
    it gets its turn between the pages, however many there are."""
    if not _pausing.acquire(blocking=False):
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        _pausing.release()


def is_due() -> bool:
    """Whether it would be good to `collect`, if there is nothing else to do."""
    return gc.get_count()[0] >= IDLE_ALLOCATIONS and gc.isenabled()


def collect() -> None:
    """What is young: with so few new objects it takes 0.3 ms. Now and then all there is: Python looks through that only
    when it collects by itself, and whoever is always first keeps it from that."""
    global _rests_until_s
    began = perf_counter()
    if gc.get_count()[2] < OPEN_THRESHOLDS[2] or began < _rests_until_s:
        gc.collect(1)
        return
    gc.collect()
    ended = perf_counter()
    _rests_until_s = ended + REST_TIMES * (ended - began)
