"""Many seeds, mutants, and the search for the faults that matter; what each prints.

A run of many seeds can write its progress to a file and go on from there another day.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from .liveness_checkers import in_doubt_p99_ms
from .scenario import Mutant, Result, Run, Scenario, run_seed
from .scenarios import SCENARIOS

#: Every crash point must be hit so often in a run of many seeds.
CRASH_POINT_HITS_MIN = 20
#: Every so many seeds one is run twice: its two hashes must be equal.
TWICE_EVERY = 20
#: How often the progress is written.
PROGRESS_SECONDS = 10.0
#: The search for the faults that matter gives up after so many runs.
SHRINK_RUNS_MAX = 300


class Outcome(NamedTuple):
    """What one seed gave, small enough to come back from another process."""

    seed: int
    digest: str
    result: Result
    #: "" if all is well.
    violation: str
    story: tuple[str, ...]


@dataclass(slots=True)
class Totals:
    """Of a run of many seeds, also over several days."""

    scenario: str
    first: int
    next: int
    seconds: float = 0.0
    twice: int = 0
    result: Result = field(default_factory=Result)
    #: Seed and what was found.
    violations: list[tuple[int, str]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        beside = path.with_name(path.name + ".new")
        # Not `asdict`: it copies a Counter as if it were made of its items.
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        stored["result"] = {each.name: getattr(self.result, each.name) for each in fields(self.result)}
        beside.write_text(json.dumps(stored))
        beside.replace(path)

    @staticmethod
    def load(path: Path) -> Totals:
        stored = json.loads(path.read_text())
        result = stored.pop("result")
        for name in ("faults", "probes", "crash_points", "traffic"):
            result[name] = Counter(result[name])
        stored["violations"] = [(seed, what) for seed, what in stored["violations"]]
        return Totals(result=Result(**result), **stored)


def command(scenario: str, seed: int, mutant: str = "") -> str:
    """How to see it again."""
    words = f"python -m tests.sim --scenario {scenario} --seed {seed}"
    return words + (f' --mutant "{mutant}"' if mutant else "")


def find_mutant(scenario: Scenario, name: str) -> Mutant | None:
    return next((mutant for mutant in scenario.mutants if mutant.name == name), None)


def run_one(scenario_name: str, seed: int, mutant_name: str = "", twice: bool = False) -> Outcome:
    scenario = SCENARIOS[scenario_name]
    mutant = find_mutant(scenario, mutant_name) if mutant_name else None
    run = run_seed(scenario, seed, mutant=mutant)
    outcome = Outcome(
        seed,
        run.digest,
        run.result,
        str(run.violation) if run.violation is not None else "",
        tuple(run.violation.story) if run.violation is not None else (),
    )
    del run
    gc.collect()
    if twice and not outcome.violation:
        again = run_seed(scenario, seed, mutant=mutant).digest
        if again != outcome.digest:
            return outcome._replace(violation=f"runner: two runs differ, {outcome.digest} and {again}")
    return outcome


@contextmanager
def _collected_by_hand() -> Iterator[None]:
    """Each run leaves one big cycle behind, which is collected after it: the collector itself would look at everything
    again and again meanwhile."""
    was_enabled = gc.isenabled()
    _collect_by_hand()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _collect_by_hand() -> None:
    gc.freeze()
    gc.disable()


def _outcomes(scenario: str, seeds: range, mutant: str, jobs: int, twice_every: int) -> Iterator[Outcome]:
    arguments = [(scenario, seed, mutant, twice_every > 0 and seed % twice_every == 0) for seed in seeds]
    if not arguments:
        return
    if jobs == 1:
        with _collected_by_hand():
            for each in arguments:
                yield run_one(*each)
        return
    with ProcessPoolExecutor(jobs, initializer=_collect_by_hand) as pool:
        yield from pool.map(run_one, *zip(*arguments, strict=True), chunksize=4)


def run_many(
    scenario: str,
    first: int,
    seeds: int,
    *,
    mutant: str = "",
    jobs: int = 1,
    twice_every: int = TWICE_EVERY,
    progress: Path | None = None,
    seconds_max: float = 0.0,
) -> Totals:
    """Run them all, however many go wrong; each violation is printed as it is found."""
    totals = Totals(scenario, first, first)
    if progress is not None and progress.exists():
        totals = Totals.load(progress)
        print(f"going on with seed {totals.next} after {totals.result.seeds} seeds", flush=True)
    began = saved = time.monotonic()
    before_seconds = totals.seconds
    try:
        for outcome in _outcomes(scenario, range(totals.next, totals.first + seeds), mutant, jobs, twice_every):
            _count(totals, outcome, mutant, twice_every)
            now = time.monotonic()
            totals.seconds = before_seconds + now - began
            if progress is not None and now - saved > PROGRESS_SECONDS:
                totals.save(progress)
                saved = now
            if seconds_max and now - began > seconds_max:
                break
    finally:
        if progress is not None:
            totals.save(progress)
    return totals


def _count(totals: Totals, outcome: Outcome, mutant: str, twice_every: int) -> None:
    totals.result.add(outcome.result)
    totals.next = outcome.seed + 1
    totals.twice += twice_every > 0 and outcome.seed % twice_every == 0
    if outcome.violation:
        totals.violations.append((outcome.seed, outcome.violation))
        print("\n".join(outcome.story))
        print(f"seed {outcome.seed}: {outcome.violation}")
        print(f"  replay: {command(totals.scenario, outcome.seed, mutant)}", flush=True)


def not_covered(scenario: Scenario, result: Result) -> list[str]:
    """What a run of many seeds should have shown and did not, however few they were: a run that is too short for what
    its scenario names has not shown it."""
    missing = [] if result.seeds else ["no seeds were run"]
    missing += [f"probe {name!r} never fired" for name in scenario.probes if not result.probes[name]]
    for name in scenario.crash_points:
        if result.crash_points[name] < CRASH_POINT_HITS_MIN:
            missing.append(
                f"crash point {name!r} was hit {result.crash_points[name]} times, not {CRASH_POINT_HITS_MIN}"
            )
    for name, least in scenario.traffic_min.items():
        if result.traffic[name] < least * result.seeds:
            missing.append(f"{result.traffic[name] / result.seeds:.1f} {name} per seed, not {least}")
    return missing


def figures(totals: Totals) -> str:
    """One line."""
    result = totals.result
    faults = " ".join(f"{kind}={count}" for kind, count in sorted(result.faults.items()))
    traffic = " ".join(f"{name}={count}" for name, count in sorted(result.traffic.items()))
    rate = result.events / totals.seconds if totals.seconds else 0.0
    return (
        f"{totals.scenario}: {result.seeds} seeds ({totals.twice} twice), {result.simulated_us / 3.6e9:.2f} simulated "
        f"hours, {result.events} events, {result.sent} messages, {result.faults.total()} faults ({faults}), "
        f"{result.crashes} crashes, {traffic}, in doubt p99 <= {in_doubt_p99_ms(result.traffic)} ms, "
        f"{len(totals.violations)} violations, {rate:.0f} events/s, "
        f"{totals.seconds:.1f} s"
    )


def run_mutants(scenario: Scenario, first: int, names: tuple[str, ...] = ()) -> list[str]:
    """Run each until it is caught; returns those that were not."""
    escaped: list[str] = []
    for mutant in scenario.mutants:
        if names and mutant.name not in names:
            continue
        caught = catch(scenario, mutant, range(first, first + mutant.seeds_max))
        if caught is None:
            escaped.append(mutant.name)
            print(f"mutant {mutant.name!r}: NOT CAUGHT by {mutant.seeds_max} seeds", flush=True)
        else:
            tried = caught.seed - first + 1
            print(
                f"mutant {mutant.name!r}: caught by seed {caught.seed} ({tried} tried): {caught.violation}", flush=True
            )
    return escaped


def catch(scenario: Scenario, mutant: Mutant, seeds: Iterable[int]) -> Run | None:
    """The first of these runs that has a violation."""
    directed = SCENARIOS[mutant.scenario] if mutant.scenario else scenario
    with _collected_by_hand():
        for seed in seeds:
            run = run_seed(directed, seed, mutant=mutant)
            if run.violation is not None:
                return run
            del run
            gc.collect()
    return None


def shrink(scenario: Scenario, seed: int, mutant: Mutant | None = None) -> Run | None:
    """The same run with as few faults as still make the same checker complain; None if it has no violation."""
    found = run_seed(scenario, seed, mutant=mutant)
    if found.violation is None:
        return None
    checker = found.violation.checker
    without: frozenset[int] = frozenset()
    all_count = len(found.plan)
    size, runs = max(all_count // 2, 1), 0
    while runs < SHRINK_RUNS_MAX:
        smaller = False
        left = [number for number in range(all_count) if number not in without]
        for start in range(0, len(left), size):
            runs += 1
            candidate = without | frozenset(left[start : start + size])
            run = run_seed(scenario, seed, mutant=mutant, without=candidate)
            if run.violation is not None and run.violation.checker == checker:
                without, found, smaller = candidate, run, True
        if not smaller:
            if size == 1:
                break
            size //= 2
    print(f"{len(found.plan)} of {all_count} faults are enough: --without {','.join(map(str, sorted(without)))}")
    return found
