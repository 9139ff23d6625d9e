"""The scenarios, by name."""

from __future__ import annotations

from . import catalog, cluster, commit, following, reading_store, stored, toy, views, views_cluster, views_failing
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
        *views_failing.SCENARIOS,
        *stored.SCENARIOS,
        *catalog.SCENARIOS,
        *following.SCENARIOS,
        reading_store.SCENARIO,
    )
}
DEFAULT = commit.SCENARIO.name
