"""Deferred views against the synchronous ones, over random histories: at every watermark, in every mode, with any
number of view managers that come, go and die, all copies of a view are equal, and equal to `recompute`.

To look at a seed: `python -m tests.properties.test_deferred SEED ...`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import PROFILE
from tests.properties.deferred_histories import FEATURES, FLAVOURS, Run, Seen, plain_case
from tests.properties.sql_views import case

HISTORIES = {"dev": 24, "full": 200, "soak": 2_000}[PROFILE]
#: With views of any shape, whose plans take longer to make than their histories to run.
SQL_HISTORIES = {"dev": 2, "full": 8, "soak": 200}[PROFILE]
#: Spread over several tests, for several processes.
PARTS = 4
#: Every so many histories happen in a directory, which is closed, abandoned and opened again.
DIRECTORY_EVERY = 10


def _run(seeds: range, directory: Path, *, plain: bool) -> Seen:
    seen = Seen()
    for seed in seeds:
        place = directory / str(seed) if seed // PARTS % DIRECTORY_EVERY == 0 else None
        if place is not None:
            place.mkdir()
        Run(plain_case(seed, seed // PARTS) if plain else case(seed), seed, seen, place)()
    return seen


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_at_every_watermark_all_copies_of_a_view_are_equal(tmp_path: Path, part: int) -> None:
    seen = _run(range(part, HISTORIES, PARTS), tmp_path, plain=True)
    assert seen.histories == HISTORIES // PARTS
    assert seen.compared > 30 * seen.histories
    # Views that are never behind would not be deferred.
    assert seen.behind > seen.histories
    assert {"after opened", "after refreshed", "after shown", "after publication"} <= seen.points.keys()
    if PROFILE != "dev":
        assert set(seen.features) == set(FEATURES)
        assert set(seen.flavours) == set(FLAVOURS)
        assert seen.switches and seen.refusals and seen.commands and seen.killed_at_work
        assert seen.log_reads and seen.checkpoints_in_steps and seen.writes_in_steps
        assert seen.reopened and seen.abandoned


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(2))
def test_views_of_any_shape(tmp_path: Path, part: int) -> None:
    seen = _run(range(part, SQL_HISTORIES, 2), tmp_path, plain=False)
    assert seen.histories == SQL_HISTORIES // 2
    assert seen.compared > 20 * seen.histories


@pytest.mark.parametrize("seed", [3, 18])
def test_histories_that_once_went_wrong(seed: int) -> None:
    """Hidden views that are made from hidden views; an index of a hidden view that only a switched view needs."""
    seen = Seen()
    Run(case(seed), seed, seen, None)()
    assert seen.compared > 20


if __name__ == "__main__":
    for argument in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as made:
            Run(plain_case(argument, argument // PARTS), argument, Seen(), Path(made))()
            print(argument, "holds")
