"""As `test_deferred`, on a cluster in one process: steps come between a commit and whatever is read after it.

A snapshot of a cluster has a timestamp of its own, above that of the last commit. Whoever takes the one for the other
takes a deferred view, whose watermark is between them, for wrong: once in many runs, where a step takes long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster_database import open_cluster
from tests.properties.deferred_histories import Run, Seen, plain_case
from tests.properties.sql_cases import Write


class RunOnCluster(Run):
    @contextlib.contextmanager
    def _limits(self) -> Iterator[None]:
        """Those are of an embedded database."""
        with open_cluster() as self.cluster:
            yield

    def _connect(self) -> None:
        self.db = self.cluster.database(1)

    def _transact(self, step: Sequence[Write]) -> int | None:
        commit_ts = super()._transact(step)
        for name, mode in self.modes.items():
            if mode != "sync":
                self.db.view(name).refresh()
        return commit_ts

    def _checkpoint(self) -> None:
        """There is no store."""

    def _command(self) -> None:
        """View managers stay."""


@pytest.mark.parametrize("seed", [1, 33])
def test_a_step_between_a_commit_and_a_look_at_the_model(seed: int) -> None:
    seen = Seen()
    RunOnCluster(plain_case(seed, seed), seed, seen, None)()
    assert seen.compared > 30
