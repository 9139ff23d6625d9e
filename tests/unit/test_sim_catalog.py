"""Catalogs that change, in the simulator, in the size that every run of the tests can pay for. More: `python -m
tests.sim --scenario catalog --seeds 10000`, and the same with catalog-crashes."""

from __future__ import annotations

import pytest

from tests.conftest import SOAK
from tests.sim import catalog, runner
from tests.sim.scenario import Scenario, run_seed
from tests.sim.scenarios import SCENARIOS

#: Seeds of the drawn scenario, and of each directed one.
SEEDS = 8
#: Each of the points of leaders has seeds of its own, four times over.
SEEDS_CRASHES = 180 if SOAK else 4 * len(catalog.LEADER_DIES_AT)
SEEDS_DIRECTED = 20 if SOAK else 1
#: So many that leaders die often enough at both points.
SEEDS_FAILING = 40 if SOAK else 12
SEEDS_FAST = 2

#: Of the protocol: timestamps, holds, votes, catalogs, deferred views.
RULES = (
    *(f"T{number}" for number in range(1, 4)),
    *(f"H{number}" for number in range(1, 8)),
    *(f"V{number}" for number in range(1, 10)),
    *(f"C{number}" for number in range(1, 3)),
    *(f"D{number}" for number in range(1, 4)),
)


def test_every_rule_of_the_protocol_has_a_variant_without_it() -> None:
    names = [mutant.name for scenario in SCENARIOS.values() for mutant in scenario.mutants]
    assert [rule for rule in RULES if not any(name.startswith(f"{rule}:") for name in names)] == []


def test_some_seeds_of_catalog_changes_hold() -> None:
    assert [run_seed(catalog.SCENARIO, seed).violation for seed in range(SEEDS_FAST)] == [None] * SEEDS_FAST


@pytest.mark.slow
def test_many_seeds_of_catalog_changes_hold_and_cover_what_they_name() -> None:
    totals = runner.run_many("catalog", 0, SEEDS, jobs=2)
    assert totals.violations == []
    assert runner.not_covered(catalog.SCENARIO, totals.result) == []


@pytest.mark.slow
def test_whoever_dies_at_any_named_point_of_a_change_of_the_catalog_does_no_harm() -> None:
    totals = runner.run_many(catalog.SCENARIO_CRASHES.name, 0, SEEDS_CRASHES, jobs=2, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(catalog.SCENARIO_CRASHES, totals.result) == []


@pytest.mark.slow
def test_a_change_of_views_that_cannot_be_computed_is_taken_back_whoever_dies() -> None:
    totals = runner.run_many(catalog.SCENARIO_FAILING.name, 0, SEEDS_FAILING, jobs=2, twice_every=0)
    assert totals.violations == []
    assert runner.not_covered(catalog.SCENARIO_FAILING, totals.result) == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", catalog.DIRECTED, ids=lambda scenario: scenario.name)
def test_the_directed_scenarios_hold(scenario: Scenario) -> None:
    totals = runner.run_many(scenario.name, 0, SEEDS_DIRECTED, twice_every=0)
    assert totals.violations == []
