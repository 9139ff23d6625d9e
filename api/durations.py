"""Durations as people write them: "200ms", "5s", "1.5s", "2m", or a number of milliseconds."""

from __future__ import annotations

import math
import re

from .changetables.errors import InterfaceError

_UNITS_MS = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0}


def milliseconds(duration: object) -> float:
    if (
        isinstance(duration, int | float)
        and not isinstance(duration, bool)
        and duration >= 0
        and math.isfinite(duration)
    ):
        return float(duration)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", duration) if isinstance(duration, str) else None
    if match is None:
        raise InterfaceError(f"{duration!r} is no duration", hint="write it like '200ms', '5s' or '2m'")
    return float(match[1]) * _UNITS_MS[match[2]]
