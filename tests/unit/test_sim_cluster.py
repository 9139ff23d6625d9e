"""The cluster in the simulator, in the size that every run of the tests can pay for. More: `python -m tests.sim
--scenario cluster --seeds 10000`, and the same with cluster-crashes."""

from __future__ import annotations

import pytest

from tests.conftest import SOAK
from tests.sim import cluster, runner
from tests.sim.scenario import Scenario, run_seed

#: Seeds of the drawn scenario, and of each directed one.
SEEDS = 50
#: Each of the points of leaders has seeds of its own, four times over.
SEEDS_CRASHES = 280 if SOAK else 4 * len(cluster.LEADER_DIES_AT)
SEEDS_DIRECTED = 20 if SOAK else 1
SEEDS_FAST = 4


def test_some_seeds_of_the_cluster_hold() -> None:
    assert [run_seed(cluster.SCENARIO, seed).violation for seed in range(SEEDS_FAST)] == [None] * SEEDS_FAST


@pytest.mark.slow
def test_many_seeds_of_the_cluster_hold_and_cover_what_they_name() -> None:
    totals = runner.run_many("cluster", 0, SEEDS, jobs=2)
    assert totals.violations == []
    assert runner.not_covered(cluster.SCENARIO, totals.result) == []


@pytest.mark.slow
def test_whoever_dies_at_any_named_point_of_membership_and_moves_does_no_harm() -> None:
    totals = runner.run_many(cluster.SCENARIO_CRASHES.name, 0, SEEDS_CRASHES, jobs=2, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(cluster.SCENARIO_CRASHES, totals.result) == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", cluster.DIRECTED, ids=lambda scenario: scenario.name)
def test_the_directed_scenarios_hold(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, 0, SEEDS_DIRECTED, twice_every=0)
    assert totals.violations == []
