"""A sample of the tests of the API, as they are, on a cluster in the thread of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CLUSTER_VARIABLE, LTMS_VARIABLE

HERE = Path(__file__).parent
FILES = (
    "test_api_transactions.py",
    "test_api_views.py",
    "test_read_levels.py",
    "test_sql_deferred.py",
    "test_changes.py",
)
TIMEOUT_S = 280


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_the_tests_of_the_api_hold_on_a_cluster(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / file)],
        env={**os.environ, CLUSTER_VARIABLE: "1", LTMS_VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
