"""Readers of the shared store in the simulator, in the size that every run of the tests can pay for. More:
`python -m tests.sim --scenario stored-reading --seeds 1000`."""

from __future__ import annotations

from tests.sim import reading_store
from tests.sim.scenario import run_seed

SEEDS = 2


def test_some_seeds_of_readers_of_the_store_hold_and_read_much() -> None:
    runs = [run_seed(reading_store.SCENARIO, seed) for seed in range(SEEDS)]
    assert [run.violation for run in runs] == [None] * SEEDS
    assert sum(run.result.traffic["reads of the store"] for run in runs) >= 10 * SEEDS
