"""Followers of changes in the simulator, in the size that every run of the tests can pay for. More:
`python -m tests.sim --scenario following --seeds 1000`, and the same with following-stored."""

from __future__ import annotations

import pytest

from tests.sim import following, runner
from tests.sim.scenario import Scenario, run_seed

FIRST_SEED, SEEDS = 100, 4


@pytest.mark.parametrize("scenario", following.SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_seed_of_followers_holds(scenario: Scenario) -> None:
    assert run_seed(scenario, 1).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("scenario", following.SCENARIOS, ids=lambda scenario: scenario.name)
def test_some_seeds_of_followers_hold_and_follow_much(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, FIRST_SEED, SEEDS, jobs=2, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(scenario, totals.result) == []
