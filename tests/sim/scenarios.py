"""The scenarios, by name. The first is the one that runs when none is named."""

from __future__ import annotations

from . import cluster, commit, toy, views, views_cluster
from .scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        toy.SCENARIO,
        toy.SCENARIO_BACK_AT_EXPIRY,
        *commit.SCENARIOS,
        *cluster.SCENARIOS,
        *views.SCENARIOS,
        *views_cluster.SCENARIOS,
    )
}
DEFAULT = next(iter(SCENARIOS))
