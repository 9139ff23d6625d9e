"""The commit protocol in the simulator, in the size that every run of the tests can pay for. More: `python -m tests.sim
--scenario commit --seeds 10000`."""

from __future__ import annotations

import pytest

from tests.conftest import SOAK
from tests.sim import commit, runner
from tests.sim.liveness_checkers import Orphans, in_doubt_p99_ms
from tests.sim.scenario import Scenario, run_seed

#: Seeds of the drawn scenario, and of each directed one.
SEEDS = 300
SEEDS_DIRECTED = 20 if SOAK else 1
SEEDS_ORPHANS = 100
SEEDS_FAST = 4
#: Those that went wrong once: a late answer decided about what was only held, again.
SEEDS_KEPT_LONG = (106516,)


def test_some_seeds_of_the_commit_protocol_hold() -> None:
    assert [run_seed(commit.SCENARIO, seed).violation for seed in range(SEEDS_FAST)] == [None] * SEEDS_FAST


@pytest.mark.parametrize("seed", SEEDS_KEPT_LONG)
def test_long_seeds_that_went_wrong_once_hold(seed: int) -> None:
    assert run_seed(commit.SCENARIO_LONG, seed).violation is None


@pytest.mark.slow
def test_many_seeds_of_the_commit_protocol_hold_and_cover_what_they_name() -> None:
    totals = runner.run_many("commit", 0, SEEDS, jobs=2)
    assert totals.violations == []
    assert runner.not_covered(commit.SCENARIO, totals.result) == []


@pytest.mark.slow
def test_a_coordinator_that_dies_leaves_nobody_in_doubt_for_longer_than_two_leases() -> None:
    totals = runner.run_many("commit-orphans", 0, SEEDS_ORPHANS, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(commit.SCENARIO_ORPHANS, totals.result) == []
    assert 0 < in_doubt_p99_ms(totals.result.traffic) <= Orphans.IN_DOUBT_MS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("scenario", commit.DIRECTED, ids=lambda scenario: scenario.name)
def test_the_directed_scenarios_hold(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, 0, SEEDS_DIRECTED, twice_every=0)
    assert totals.violations == []
