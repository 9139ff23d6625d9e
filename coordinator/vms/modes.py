"""How a view is refreshed, as the catalog keeps it: "sync", "manual", "500ms", "target_lag 2000ms"."""

from __future__ import annotations

from typing import NamedTuple

from ...ltm.catalog import SYNC, View

MANUAL = "manual"
_TARGET = "target_lag "


class Mode(NamedTuple):
    """`interval_ms` None: not by itself (sync, manual), or the system finds it (`target_ms`)."""

    interval_ms: float | None = None
    target_ms: float | None = None


#: Below it there is no use in waiting: the next step begins when there are changes.
INTERVAL_MS_MIN = 1.0


def interval_text(interval_ms: float) -> str:
    """As short as it can be said exactly: 3600000ms, 2.5ms."""
    if interval_ms < INTERVAL_MS_MIN:
        return "0ms"
    return f"{int(interval_ms) if interval_ms == int(interval_ms) else interval_ms!r}ms"


def target_text(target_ms: float) -> str:
    return f"{_TARGET}{interval_text(target_ms)}"


def mode_of(refresh: str) -> Mode:
    """The mode that a catalog text stands for."""
    if refresh in (SYNC, MANUAL):
        return Mode()
    if refresh.startswith(_TARGET):
        return Mode(target_ms=_milliseconds(refresh.removeprefix(_TARGET)))
    return Mode(interval_ms=_milliseconds(refresh))


def _milliseconds(text: str) -> float:
    return float(text.removesuffix("ms"))


def quickest(views: list[View]) -> Mode:
    """The mode of views that move together: that of the one that asks for most."""
    modes = [mode_of(view.refresh) for view in views]
    intervals = [mode.interval_ms for mode in modes if mode.interval_ms is not None]
    targets = [mode.target_ms for mode in modes if mode.target_ms is not None]
    if intervals and (not targets or min(intervals) <= min(targets)):
        return Mode(interval_ms=min(intervals))
    return Mode(target_ms=min(targets)) if targets else Mode()
