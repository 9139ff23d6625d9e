"""The scenarios, by name. The first is the one that runs when none is named."""

from __future__ import annotations

from . import toy
from .scenario import Scenario

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in (toy.SCENARIO, toy.SCENARIO_BACK_AT_EXPIRY)}
DEFAULT = next(iter(SCENARIOS))
