"""How far a deferred view is behind, under load: does it keep its promise, and does it find back to it?

First the highest rate of the writers is measured, then half of it is asked of them, by schedule, while the lag of the
view is looked at every few milliseconds. Ten seconds of overload follow, all writers without pause, and then half of
the rate again: how long until the lag keeps its limit again?

The lag is now − watermark, at the moment at which a reader has the answer. Between two looks the view is taken to be
where it was last seen, so a look that came late, because the system let nobody through, counts with the lag that it
did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import BenchError
from .load import OpenSession, Sighting, Window, crew_of
from .report import percentile
from .workload import Cell

LOOK_EVERY_S = 0.004
#: What a refresh itself may take on top of the interval.
LIMIT_ABOVE_INTERVAL_MS = 60.0
OVERLOAD_S = 10.0
#: For so many intervals a view keeps its limit before it counts as recovered: a lag goes up and down within each.
INTERVALS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Phases:
    """How long each phase lasts, in seconds."""

    warm_up_s: float
    maximum_s: float
    settle_s: float
    half_s: float
    overload_s: float
    recovery_s: float


FULL_PHASES = Phases(0.5, 3.0, 2.0, 10.0, OVERLOAD_S, 15.0)
QUICK_PHASES = Phases(0.3, 1.2, 1.5, 4.0, OVERLOAD_S, 4.0)


@dataclass(frozen=True, slots=True)
class LagFigures:
    """Field names are those of the JSON file."""

    interval_ms: float
    maximum_tx_per_s: float
    half_tx_per_s: float
    #: What came of the rate that was asked for, over that rate; 1 unless the system could not even keep half.
    half_kept: float
    half_p99_ms: float
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    overload_tx_per_s: float
    overload_lag_max_ms: float
    #: From the end of the overload until the lag keeps its limit again, as `recovery_ms` has it.
    recovery_ms: float
    #: If not, `recovery_ms` only says how long was watched.
    recovered: bool
    looks: int


def measure_lag(system: str, open_session: OpenSession, cell: Cell, interval_ms: float, phases: Phases) -> LagFigures:
    with crew_of(system, open_session, cell, LOOK_EVERY_S) as crew:
        crew.keep_on(phases.warm_up_s)
        maximum = crew.tx_per_s(crew.keep_on(phases.maximum_s))
        half = maximum / 2
        if half == 0:
            raise BenchError(f"{system} acknowledged nothing in {phases.maximum_s:g} s ({cell})")
        crew.keep_on(phases.settle_s, half)
        steady = crew.keep_on(phases.half_s, half)
        overload = crew.keep_on(phases.overload_s)
        recovery = crew.keep_on(phases.recovery_s, half)
    lags = lags_ms(crew.sightings, steady)
    recovered_ms = recovery_ms(lags_ms(crew.sightings, recovery), interval_ms)
    return LagFigures(
        interval_ms=interval_ms,
        maximum_tx_per_s=round(maximum, 1),
        half_tx_per_s=round(half, 1),
        half_kept=round(crew.tx_per_s(steady) / half, 3),
        half_p99_ms=round(percentile(crew.latencies_s(steady), 99) * 1_000, 3),
        lag_p50_ms=round(percentile(lags, 50), 1),
        lag_p99_ms=round(percentile(lags, 99), 1),
        lag_max_ms=round(percentile(lags, 100), 1),
        overload_tx_per_s=round(crew.tx_per_s(overload), 1),
        overload_lag_max_ms=round(percentile(lags_ms(crew.sightings, overload), 100), 1),
        recovery_ms=phases.recovery_s * 1_000 if recovered_ms is None else round(recovered_ms, 1),
        recovered=recovered_ms is not None,
        looks=len(crew.sighted_in(steady)),
    )


def lags_ms(sightings: Sequence[Sighting], window: Window) -> list[float]:
    """The lag at evenly spaced moments of the window: that moment minus the watermark that was seen last."""
    lags: list[float] = []
    seen = 0
    for number in range(int(window.seconds / LOOK_EVERY_S)):
        moment = window.start + number * LOOK_EVERY_S
        while seen < len(sightings) and sightings[seen].at <= moment:
            seen += 1
        if seen:
            lags.append((moment - sightings[seen - 1].watermark) * 1_000)
    return lags


def recovery_ms(lags: Sequence[float], interval_ms: float) -> float | None:
    """How long after the first of these evenly spaced lags the promise is kept again: the lag is below the limit, and
    at most one look of a hundred in the next intervals finds it above. None: not while it was watched."""
    limit_ms = interval_ms + LIMIT_ABOVE_INTERVAL_MS
    looks = max(1, int(INTERVALS_KEPT * interval_ms / 1_000 / LOOK_EVERY_S))
    above = [lag > limit_ms for lag in lags]
    for first in range(len(above) - looks + 1):
        if not above[first] and sum(above[first : first + looks]) * 100 <= looks:
            return first * LOOK_EVERY_S * 1_000
    return None


def lag_lines(figures: LagFigures) -> list[str]:
    back = f"kept again after {figures.recovery_ms:,.0f} ms" if figures.recovered else "not kept again"
    return [
        f"highest rate {figures.maximum_tx_per_s:,.0f} tx/s; at half of it ({figures.half_tx_per_s:,.0f} tx/s, "
        f"{figures.half_kept:.1%} kept, response p99 {figures.half_p99_ms:.1f} ms):",
        f"  lag p50 {figures.lag_p50_ms:,.0f} ms, p99 {figures.lag_p99_ms:,.0f} ms, highest "
        f"{figures.lag_max_ms:,.0f} ms ({figures.looks:,} looks)",
        f"  overload ({figures.overload_tx_per_s:,.0f} tx/s): highest lag {figures.overload_lag_max_ms:,.0f} ms; "
        f"limit {figures.interval_ms + LIMIT_ABOVE_INTERVAL_MS:,.0f} ms, {back}",
    ]
