"""A process dies in the middle of a step of deferred views: at every named point of it, and at random moments. When the
directory is opened again, each view is what it was at its watermark, no watermark went back, and every change counts
once."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt

from ..conftest import PROFILE
from . import stepper
from .test_kill import CYCLES_FACTOR, SEED, Zygote, cycles

#: Of each point, so many of the times that the script passes it.
OCCURRENCES = {"dev": 1, "full": 2, "soak": 1_000}[PROFILE]
CHAIN = max(3, int(8 * CYCLES_FACTOR))
#: Under load every writer gets more than so many transactions done. Where they are slow, with several LTMs on a busy
#: machine, a few kills come too early for that: there are more of them then, up to so many times as many.
WRITTEN_MIN = 10
CYCLES_TIMES_MAX = 20
#: Every place of a step between two records of the log, and around what is seen by others.
POINTS = {
    f"{when} {what}"
    for when in ("before", "after")
    for what in ("opened", "refreshed", "shown", "published", "taken back", "dropped", "batch published", "cut")
} | {"after publication", "batch cleared", "batch cleared and stored", "batch filled", "batch filled and stored"}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote(stepper.__name__)
    yield started
    started.close()


@functools.cache
def expected(number: int) -> dict[str, list[tuple[object, ...]]]:
    """What the views show after n transactions of the script: of synchronous ones that never saw a crash."""
    with vt.connect("memory:") as db:
        stepper.create(db)
        for done in range(1, number + 1):
            stepper.transact(db, done)
        return {name: stepper.contents(db, f"{name}_twin") for name in stepper.VIEWS if name != "risky"}


class Death:
    """One child of `stepper`, from its start to its end."""

    def __init__(self, zygote: Zygote, path: Path, point: str, occurrence: int, marks: dict[str, int]) -> None:
        zygote.start(path, "points", point=point, occurrence=occurrence)
        #: The highest watermarks that readers could see, and the commit_ts of each transaction.
        self.marks = dict(marks)
        self.committed: dict[int, int] = {}
        self.passed: Counter[str] = Counter()
        broken = ""
        while True:
            word, rest = zygote.line()
            if word == "broken":
                broken = rest
            elif word == "mark":
                name, mark = rest.split()
                self.marks[name] = max(self.marks.get(name, 0), int(mark))
            elif word == "committed":
                number, commit_ts = map(int, rest.split())
                self.committed[number] = commit_ts
            elif word == "passed":
                self.passed = Counter(json.loads(rest))
            elif word == "ended":
                self.died = int(rest) == stepper.EXIT_AT_POINT
                assert not broken, broken
                assert self.died or int(rest) == 0
                return


def check(path: Path, death: Death, commits: dict[int, int]) -> None:
    """Open what a child left: before and after its views go on."""
    with vt.connect(path, cache_rows=stepper.CACHE_ROWS, view_managers=3) as db:
        views = [name for name in stepper.VIEWS if name in db.views()]
        done = stepper.done_count(db)
        with db.snapshot() as snapshot:
            for name in views:
                rows = snapshot.view(name).rows()
                mark = rows.watermark
                assert mark is not None and mark >= death.marks.get(name, 0), f"the watermark of {name} went back"
                if name != "risky":
                    # A transaction that was not acknowledged may be in it too.
                    low = max([number for number, commit_ts in commits.items() if commit_ts <= mark], default=0)
                    shown = sorted((tuple(row.values()) for row in rows), key=repr)
                    assert shown in [expected(number)[name] for number in range(low, done + 1)], (name, low, done)
                    if done in commits and mark >= commits[done]:
                        assert shown == expected(done)[name]
            marks = {snapshot.view(name).rows().watermark for name in views if name in stepper.TOGETHER}
            assert len(marks) <= 1 or len(views) < len(stepper.VIEWS)


def finish(path: Path) -> None:
    """Run the rest of the script: nothing was lost, nothing counted twice."""
    with vt.connect(path, cache_rows=stepper.CACHE_ROWS, view_managers=1) as db:
        stepper.create(db)
        for number in range(stepper.done_count(db) + 1, stepper.TRANSACTIONS + 1):
            stepper.transact(db, number)
        for name in stepper.VIEWS:
            db.view(name).refresh()
            if name != "risky":
                assert stepper.contents(db, name) == expected(stepper.TRANSACTIONS)[name], name
                assert stepper.contents(db, f"{name}_twin") == expected(stepper.TRANSACTIONS)[name], name
        lows = Counter(cast(int, row["lo"]) for row in db.view("least").rows())
        quotients = [(low, 9000 // (1000 * low + n - 1)) for low, n in lows.items()]
        assert stepper.contents(db, "risky") == sorted(quotients, key=repr)


@pytest.fixture(scope="module")
def passed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often the script passes each point if nothing happens."""
    path = tmp_path_factory.mktemp("undisturbed") / "db"
    whole = Death(zygote, path, "", 0, {})
    assert not whole.died
    finish(path)
    return whole.passed


def test_the_script_passes_every_point(passed: Counter[str]) -> None:
    assert set(passed) == POINTS
    assert passed["after refreshed"] > 2 * passed["after opened"], "several slots or levels in a step"


def died_at(zygote: Zygote, path: Path, point: str, occurrence: int) -> Death:
    """A death when the script comes to a point for the n-th time, or for an earlier one: how often it comes there is a
    matter of how long its steps take."""
    while True:
        death = Death(zygote, path, point, occurrence, {})
        if death.died:
            return death
        occurrence = min(occurrence - 1, death.passed[point])
        assert occurrence, f"the script did not come to {point!r}"
        shutil.rmtree(path)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", sorted(POINTS))
def test_death_at_a_point_of_a_step(zygote: Zygote, tmp_path: Path, passed: Counter[str], point: str) -> None:
    chance = random.Random(f"{SEED} {point}")
    times = range(1, passed[point] + 1)
    chosen = sorted(chance.sample(times, min(OCCURRENCES, len(times))))
    for occurrence in chosen:
        path = tmp_path / str(occurrence)
        death = died_at(zygote, path, point, occurrence)
        check(path, death, death.committed)
        finish(path)
        shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_death_again_and_again(zygote: Zygote, tmp_path: Path, passed: Counter[str]) -> None:
    """Also in steps that were left open by an earlier death: each child dies after a few points more."""
    chance = random.Random(SEED)
    deaths: Counter[str] = Counter()
    for number in range(CHAIN):
        path = tmp_path / str(number)
        marks: dict[str, int] = {}
        commits: dict[int, int] = {}
        died = True
        while died:
            point = chance.choice(sorted(passed))
            death = Death(zygote, path, point, chance.choice((1, 1, 2, 3)), marks)
            died, marks = death.died, death.marks
            commits.update(death.committed)
            check(path, death, commits)
            deaths[point] += died
        finish(path)
        shutil.rmtree(path)
    assert sum(deaths.values()) > 2 * CHAIN
    assert len(deaths) > 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("changes", [False, True], ids=["steady", "views_change"])
def test_kill_under_load(zygote: Zygote, tmp_path: Path, changes: bool) -> None:
    """Every change is worth one, and each view's total is what was written."""
    chance = random.Random(SEED)
    acknowledged, marks = [0] * stepper.WORKERS, dict[str, int]()
    ended, cycles_min = 0, len(cycles(30))
    broken = ""
    while ended < cycles_min or (min(acknowledged) <= WRITTEN_MIN and ended < CYCLES_TIMES_MAX * cycles_min):
        zygote.start(
            tmp_path / "db",
            "load",
            acknowledged=acknowledged,
            marks=marks,
            view_managers=chance.choice((1, 2, 5)),
            changes=changes,
        )
        pid: int | None = None
        timer: threading.Timer | None = None
        ready = False
        while True:
            word, rest = zygote.line()
            if word == "broken":
                broken = rest
            elif word == "pid":
                pid = int(rest)
            elif word == "ack":
                worker, number = map(int, rest.split())
                acknowledged[worker] = number
                ready = ready or not changes
            elif word == "changing":
                ready = True
            elif word == "mark":
                name, mark = rest.split()
                if int(mark) < marks.get(name, 0):
                    broken = f"the watermark of {name} went back"
                marks[name] = int(mark)
            elif word == "recovered":
                acknowledged = json.loads(rest)
            elif word == "ended":
                assert not broken, broken
                assert int(rest) == -signal.SIGKILL
                ended += 1
                break
            if pid is not None and ready and timer is None:
                timer = threading.Timer(chance.uniform(0.005, 0.15), os.kill, (pid, signal.SIGKILL))
                timer.start()
    assert min(acknowledged) > WRITTEN_MIN and len(marks) == len(stepper.COUNTED)
