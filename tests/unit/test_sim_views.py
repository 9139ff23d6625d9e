"""Deferred views in the simulator, in the size that every run of the tests can pay for. More: `python -m tests.sim
--scenario views --seeds 10000`, and the same with views-cluster and views-failing."""

from __future__ import annotations

import pytest

from tests.conftest import SOAK
from tests.sim import runner, views, views_cluster, views_failing
from tests.sim.scenario import Scenario, run_seed

#: Seeds of the drawn scenarios, and of each directed one.
SEEDS = 64
#: (After 13 of them each point was hit 20 times; with failures, after 7.)
SEEDS_CRASHES = 200 if SOAK else 16
SEEDS_FAILING_CRASHES = 200 if SOAK else 10
SEEDS_CLUSTER = 24
SEEDS_FAILING = 20
SEEDS_DIRECTED = 20 if SOAK else 1
SEEDS_FAST = 3


def test_some_seeds_of_deferred_views_hold() -> None:
    assert [run_seed(views.SCENARIO, seed).violation for seed in range(SEEDS_FAST)] == [None] * SEEDS_FAST


def test_while_one_group_cannot_be_computed_the_other_goes_on() -> None:
    run = run_seed(views_failing.SCENARIO_ALWAYS, 0)
    assert run.violation is None
    assert run.result.traffic["failures while others go on"] >= 3


@pytest.mark.slow
def test_many_seeds_of_views_that_cannot_be_computed_hold_and_cover_what_they_name() -> None:
    totals = runner.run_many("views-failing", 0, SEEDS_FAILING, jobs=2)
    assert totals.violations == []
    assert runner.not_covered(views_failing.SCENARIO, totals.result) == []


@pytest.mark.slow
def test_whoever_dies_at_any_named_point_after_a_failure_does_no_harm() -> None:
    totals = runner.run_many("views-failing-crashes", 0, SEEDS_FAILING_CRASHES, twice_every=0)
    assert totals.violations == []
    hits = totals.result.crash_points
    assert {name: hits[name] for name in views_failing.CRASH_POINTS if hits[name] < runner.CRASH_POINT_HITS_MIN} == {}


@pytest.mark.slow
def test_many_seeds_of_deferred_views_hold_and_cover_what_they_name() -> None:
    totals = runner.run_many("views", 0, SEEDS, jobs=2)
    assert totals.violations == []
    assert runner.not_covered(views.SCENARIO, totals.result) == []


@pytest.mark.slow
def test_whoever_dies_at_any_named_point_of_the_refresh_does_no_harm() -> None:
    totals = runner.run_many("views-crashes", 0, SEEDS_CRASHES, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(views.SCENARIO_CRASHES, totals.result) == []


@pytest.mark.slow
def test_many_seeds_of_deferred_views_in_a_cluster_hold() -> None:
    totals = runner.run_many("views-cluster", 0, SEEDS_CLUSTER, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(views_cluster.SCENARIO, totals.result) == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", (*views.DIRECTED, *views_cluster.DIRECTED), ids=lambda scenario: scenario.name)
def test_the_directed_scenarios_hold(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, 0, SEEDS_DIRECTED, twice_every=0)
    assert totals.violations == []
