"""The controller behind `vt.target_lag`, over made-up costs: docs/tuning.md says what it promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from viewtide.coordinator.vms.scheduler import (
    BACKED_OFF_TIMES_MAX,
    INTERVAL_MS_MIN,
    TARGET_SHARE,
    WRITERS_SHARE_MAX,
    Cost,
    Tuning,
)

TARGET_MS = 1_000.0
STEPS = 60


def run(
    tuning: Tuning,
    rows_in: Callable[[float], float],
    per_row_ms: float,
    fixed_ms: float = 2.0,
    busy_share: float = 0.1,
    target_ms: float = TARGET_MS,
) -> float:
    """Steps until it has settled; returns the highest lag at the end: just before the last publication.

    `rows_in`: changed rows after netting in so many ms. `busy_share`: of a step's time, how much writers wait for.
    """
    lag_ms = 0.0
    for _ in range(STEPS):
        interval_ms = tuning.interval_ms
        rows = rows_in(interval_ms)
        duration_ms = fixed_ms + per_row_ms * rows
        tuning.measured(Cost(round(rows), 0, 0.0, duration_ms * busy_share, 0.0, duration_ms), interval_ms, target_ms)
        lag_ms = interval_ms + duration_ms
    return lag_ms


@pytest.mark.parametrize("rate", [0.0, 0.05, 1.0, 20.0, 60.0])
@pytest.mark.parametrize("per_row_ms", [0.001, 0.01])
def test_it_takes_the_longest_interval_that_keeps_the_lag(rate: float, per_row_ms: float) -> None:
    tuning = Tuning()
    lag_ms = run(tuning, lambda interval_ms: rate * interval_ms, per_row_ms)
    assert tuning.backed_off_times == 1
    assert 0.8 * TARGET_MS <= lag_ms <= TARGET_MS


def test_rows_that_are_changed_again_and_again_cost_less_the_longer_it_waits() -> None:
    few, all_new = Tuning(), Tuning()
    run(few, lambda interval_ms: min(20 * interval_ms, 150), per_row_ms=0.02)
    run(all_new, lambda interval_ms: 20 * interval_ms, per_row_ms=0.02)
    assert few.interval_ms > 1.3 * all_new.interval_ms
    assert few.interval_ms > 0.95 * TARGET_SHARE * TARGET_MS


def test_it_backs_off_when_writers_suffer_and_returns() -> None:
    tuning = Tuning()
    run(tuning, lambda interval_ms: 100 * interval_ms, per_row_ms=0.008, busy_share=1.0)
    assert tuning.backed_off_times == BACKED_OFF_TIMES_MAX
    assert tuning.writers_share > WRITERS_SHARE_MAX
    assert tuning.interval_ms <= BACKED_OFF_TIMES_MAX * TARGET_MS
    assert "backed off, refreshing took" in tuning.text(TARGET_MS)
    lag_ms = run(tuning, lambda interval_ms: 1.0 * interval_ms, per_row_ms=0.008, busy_share=1.0)
    assert tuning.backed_off_times == 1
    assert lag_ms <= TARGET_MS
    assert " changed rows/s at " in tuning.text(TARGET_MS)


def test_between_the_two_limits_it_stays() -> None:
    """A share between half of what it may take and all of it changes nothing: no swinging."""
    tuning = Tuning(backed_off_times=2.0)
    factors = set()
    for _ in range(STEPS):
        tuning.measured(Cost(1_000, 0, 0.0, 0.2 * tuning.interval_ms, 0.0, 5.0), tuning.interval_ms, TARGET_MS)
        if tuning.writers_share > WRITERS_SHARE_MAX / 2:
            factors.add(tuning.backed_off_times)
    assert len(factors) == 1


@pytest.mark.parametrize("target_ms", [1.0, 5.0, 20.0])
def test_the_interval_has_a_lower_bound(target_ms: float) -> None:
    tuning = Tuning()
    run(tuning, lambda interval_ms: 0.1 * interval_ms, per_row_ms=0.004, target_ms=target_ms)
    assert tuning.interval_ms >= INTERVAL_MS_MIN
    run(tuning, lambda interval_ms: 1e6, per_row_ms=1.0, target_ms=target_ms, busy_share=1.0)
    assert INTERVAL_MS_MIN <= tuning.interval_ms <= max(BACKED_OFF_TIMES_MAX * target_ms, INTERVAL_MS_MIN)
