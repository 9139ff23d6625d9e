"""How often, and how soon, something that others were in the way of is tried again."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from .coordinator.ports import CatalogMoved

P = ParamSpec("P")
T = TypeVar("T")

_BACKOFF_MS_FIRST = 1.0
_BACKOFF_MS_MAX = 100.0
#: So long a change of tables or views is tried again.
CHANGE_DEADLINE_MS = 30_000


def backoffs_ms() -> Iterator[float]:
    """How long to wait after each refused attempt: twice as long each time, with chance, so that rivals part."""
    longest = _BACKOFF_MS_FIRST
    while True:
        yield longest * random.uniform(0.5, 1.0)
        longest = min(longest * 2, _BACKOFF_MS_MAX)


def changes_catalog(function: Callable[P, T]) -> Callable[P, T]:
    """Looks again, and does it again, if another process of a cluster changed tables or views meanwhile."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        give_up = time.monotonic() + CHANGE_DEADLINE_MS / 1000
        for backoff_ms in backoffs_ms():
            try:
                return function(*args, **kwargs)
            except CatalogMoved:
                if time.monotonic() > give_up:
                    raise
            time.sleep(backoff_ms / 1000)
        raise AssertionError("backoffs never end")

    return call
