"""Settings that all tests share: how hard Hypothesis tries, and where a test's database lives.

The profile is chosen by `VIEWTIDE_TEST_PROFILE` (dev or full), or by `VIEWTIDE_SOAK=1`. Plain `pytest` uses dev;
`make test` uses full.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import viewtide
from tests.schedule import Schedule, is_slow, turn
from viewtide import database
from viewtide.config import LTMS_VARIABLE

if TYPE_CHECKING:
    from xdist.remote import Producer

EXAMPLES_DEV = 20
EXAMPLES_FULL = 100
EXAMPLES_SOAK = 5_000
# A test that states its own number of examples keeps its proportion to the others: it is scaled by these.
EXAMPLES_FACTOR = {"dev": 0.25, "full": 1.0, "soak": 20.0}
EXAMPLES_MIN = 10

LTMS = (1, 3)
#: With it, `vt.connect` in tests gives a client of a served node.
SERVED_VARIABLE = "VIEWTIDE_TEST_SERVED"
#: With it, databases in memory are over a cluster of three LTMs.
CLUSTER_VARIABLE = "VIEWTIDE_TEST_ON_CLUSTER"

# The real HBase, ZooKeeper and Thrift servers: started when a test asks for them.
pytest_plugins = ["tests.hbase_servers"]

SOAK = os.environ.get("VIEWTIDE_SOAK", "") not in ("", "0")
PROFILE = "soak" if SOAK else os.environ.get("VIEWTIDE_TEST_PROFILE", "dev")

# No deadline per example: a shared machine pauses at any time, and pytest-timeout ends what hangs.
for name, examples in (("dev", EXAMPLES_DEV), ("full", EXAMPLES_FULL), ("soak", EXAMPLES_SOAK)):
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(PROFILE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A sample of the tests is run with one LTM and with three; with `VIEWTIDE_LTMS`, all are run with that many. And a
    sample is run against a served node, too; with `VIEWTIDE_TEST_SERVED`, all are, but for those marked `embedded`."""
    if metafunc.definition.get_closest_marker("several_ltms") and LTMS_VARIABLE not in os.environ:
        metafunc.fixturenames.append("ltms")
        metafunc.parametrize("ltms", LTMS, indirect=True, ids=["one LTM", "three LTMs"])
    both = SERVED_VARIABLE not in os.environ and CLUSTER_VARIABLE not in os.environ
    if metafunc.definition.get_closest_marker("served") and both:
        metafunc.parametrize("_served", (False, True), indirect=True, ids=["embedded", "served"])


@pytest.fixture(autouse=True)
def _served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether `vt.connect` gives a client of a served node."""
    if getattr(request, "param", SERVED_VARIABLE in os.environ):
        embedded = request.node.get_closest_marker("embedded")
        if embedded is not None:
            pytest.skip(embedded.args[0])
        from tests import served

        monkeypatch.setattr(viewtide, "connect", served.connect)
        monkeypatch.setattr(database, "connect", served.connect)


@pytest.fixture
def ltms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many LTMs a database has, also in processes that the test starts."""
    number: int = request.param
    monkeypatch.setenv(LTMS_VARIABLE, str(number))
    return number


@pytest.fixture(autouse=True)
def _on_cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `VIEWTIDE_TEST_ON_CLUSTER`, every database in memory is one over a cluster; `off_cluster` has exceptions."""
    if os.environ.get(CLUSTER_VARIABLE, "") not in ("", "0"):
        from .cluster_database import open_in_cluster
        from .off_cluster import REASONS

        reason = REASONS.get(request.node.originalname)
        if reason is not None:
            pytest.skip(reason)
        monkeypatch.setattr("viewtide.database.open_memory", open_in_cluster)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Schedule:
    config.option.loadscopereorder = False
    return Schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first; some of it is `slow` as a whole. Scale the tests that state their own
    `max_examples`, which a profile alone does not reach."""
    items.sort(key=lambda item: turn(item.nodeid))
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker("slow")
    if PROFILE == "full":
        return
    scaled: set[int] = set()
    for item in items:
        target, name = _own_settings(item)
        if target is None or id(target) in scaled:
            continue
        scaled.add(id(target))
        own = getattr(target, name)
        setattr(target, name, settings(own, max_examples=_scaled(own.max_examples)))


def _own_settings(item: pytest.Item) -> tuple[object | None, str]:
    """Where a test keeps the settings that it states itself: a state machine's class or a `@given` function."""
    machine = getattr(item, "cls", None)
    own = getattr(machine, "settings", None)
    default = settings.get_profile(PROFILE)
    if isinstance(own, settings) and own.max_examples != default.max_examples:
        return machine, "settings"
    # The name is Hypothesis's own and there is no public one.
    function = getattr(item, "function", None)
    if getattr(function, "_hypothesis_internal_settings_applied", False):
        return function, "_hypothesis_internal_use_settings"
    return None, ""


def _scaled(examples: int) -> int:
    return max(min(examples, EXAMPLES_MIN), int(examples * EXAMPLES_FACTOR[PROFILE]))


@pytest.fixture
def db_path(tmp_path: Path) -> Path:
    """A directory that does not exist yet, for one test's database."""
    return tmp_path / "test.db"
