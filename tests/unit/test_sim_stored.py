"""The cluster on a shared store in the simulator, in the size that every run of the tests can pay for. More: `python -m
tests.sim --scenario stored --seeds 10000`, and the same with stored-crashes, stored-late and stored-views."""

from __future__ import annotations

import pytest

from tests.conftest import SOAK
from tests.sim import runner, stored
from tests.sim.scenario import Scenario, run_seed

#: Seeds of the drawn scenarios, and of each directed one.
SEEDS = 30
#: (After 9 of them each point was hit 20 times.)
SEEDS_CRASHES = 200 if SOAK else 14
SEEDS_DIRECTED = 20 if SOAK else 1
SEEDS_FAST = 2
#: Those that went wrong once: a view manager asked a process that did not answer for the log any more; the last commits
#: before everybody went quiet stayed in the log of a former life; the first rows of a range were counted before a
#: deletion was decided, and the next ones were in the store only.
SEEDS_KEPT = ((stored.SCENARIO_VIEWS, 35), (stored.SCENARIO_LATE, 206), (stored.SCENARIO_CRASHES, 23))


def test_some_seeds_of_the_cluster_on_a_store_hold() -> None:
    assert [run_seed(stored.SCENARIO, seed).violation for seed in range(SEEDS_FAST)] == [None] * SEEDS_FAST


@pytest.mark.parametrize(("scenario", "seed"), SEEDS_KEPT, ids=lambda each: getattr(each, "name", str(each)))
def test_seeds_that_went_wrong_once_hold(scenario: Scenario, seed: int) -> None:
    assert run_seed(scenario, seed).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("scenario", (stored.SCENARIO, stored.SCENARIO_VIEWS), ids=lambda scenario: scenario.name)
def test_many_seeds_of_the_cluster_on_a_store_hold(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, 0, SEEDS, jobs=2)
    assert totals.violations == []
    assert runner.not_covered(scenario, totals.result) == []


@pytest.mark.slow
def test_whoever_dies_at_any_named_point_of_saving_and_loading_does_no_harm() -> None:
    totals = runner.run_many(stored.CRASHES, 0, SEEDS_CRASHES, jobs=2, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(stored.SCENARIO_CRASHES, totals.result) == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", stored.DIRECTED, ids=lambda scenario: scenario.name)
def test_the_directed_scenarios_hold(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, 0, SEEDS_DIRECTED, twice_every=0)
    assert totals.violations == []
