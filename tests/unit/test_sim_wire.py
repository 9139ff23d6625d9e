"""The protocol with the bytes that a cluster sends: runs of the simulator are the same, event for event."""

from __future__ import annotations

import pytest

from tests.sim import cluster, commit, views_cluster, world
from tests.sim.scenario import Scenario, run_seed
from tests.sim.wire import RealWire
from viewtide.ltm.cluster import zk_messages

#: What a process asks of its own ZooKeeper client, and hears from it; and what only its own log holds.
LOCAL = {"Bound"} | {name for name, kind in vars(zk_messages).items() if isinstance(kind, type)}


SCENARIOS = (commit.SCENARIO, cluster.SCENARIO, views_cluster.SCENARIO)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_run_over_the_real_wire_is_the_same_run(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = 1
    plain = run_seed(scenario, seed)
    monkeypatch.setattr(world, "AnyWire", RealWire)
    RealWire.encoded.clear()
    RealWire.passed.clear()
    real = run_seed(scenario, seed)
    assert (plain.violation, real.violation) == (None, None)
    assert real.digest == plain.digest
    assert RealWire.encoded["ForLog"] + RealWire.encoded["Prepare"] > 100 and RealWire.encoded["Outcome"] > 20
    assert set(RealWire.passed) <= LOCAL, "messages that have no number in a `registered.py`"
