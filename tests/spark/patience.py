"""Spark gives a Python process of a stream ten seconds to start: not enough for its imports on a busy machine."""

from __future__ import annotations

from collections.abc import Callable

TRIES = 4
TOO_LATE = "failed to connect back"


def patiently(call: Callable[[], None]) -> None:
    """Call it, and again if a process of Spark started too late: a stream goes on where it was."""
    for _ in range(TRIES - 1):
        try:
            call()
            return
        except Exception as error:
            if TOO_LATE not in str(error):
                raise
    call()
