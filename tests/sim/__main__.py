"""`python -m tests.sim --seed N` replays one run and prints its story, a line per event. `--seeds 100 --first 5000`
runs many and ends with one line of figures. `--mutants` runs every known-bad variant, which must be caught.

Exit status: 0 all is well, 1 a violation (or an escaped mutant, or something that should have happened and did not),
2 the command line was wrong.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .faults import Planned
from .runner import TWICE_EVERY, Totals, figures, find_mutant, not_covered, run_many, run_mutants, shrink
from .scenario import Mutant, Run, Scenario, run_seed
from .scenarios import DEFAULT, SCENARIOS

SEEDS = 100
#: With fewer seeds, what they did not cover is no failure: nobody expects it of a look at a few.
COVERAGE_SEEDS_MIN = 100


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    made.add_argument("--scenario", choices=list(SCENARIOS), default=DEFAULT)
    made.add_argument("--list", action="store_true", help="the scenarios and their mutants")
    one = made.add_argument_group("one seed")
    one.add_argument("--seed", type=int, help="replay it and print its story")
    one.add_argument("--about", action="append", default=[], metavar="WORD", help="only lines with this word")
    one.add_argument("--last", type=int, help="only so many of the last lines")
    one.add_argument("--without", default="", metavar="1,2", help="leave out these faults of the plan")
    one.add_argument("--shrink", action="store_true", help="find the faults that matter, and print that story")
    many = made.add_argument_group("many seeds")
    many.add_argument("--seeds", type=int, default=SEEDS)
    many.add_argument("--first", type=int, default=0)
    many.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    many.add_argument("--twice-every", type=int, default=TWICE_EVERY, help="0: none is run twice")
    many.add_argument("--progress", type=Path, metavar="FILE", help="go on from there, and write to it")
    many.add_argument("--minutes", type=float, default=0.0, help="stop after so long; with --progress, to go on later")
    bad = made.add_argument_group("known-bad variants")
    bad.add_argument("--mutant", default="", help="run with this one")
    bad.add_argument("--mutants", action="store_true", help="run all of them: each must be caught")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser()
    chosen = command.parse_args(arguments)
    scenario = SCENARIOS[chosen.scenario]
    mutant = find_mutant(scenario, chosen.mutant)
    if chosen.mutant and mutant is None:
        command.error(f"{scenario.name} has no mutant {chosen.mutant!r}; --list shows them")
    if chosen.list:
        _print_list()
        return 0
    if chosen.mutants:
        return 1 if run_mutants(scenario, chosen.first) else 0
    if chosen.seed is not None:
        return _one(scenario, mutant, chosen)
    totals = run_many(
        scenario.name,
        chosen.first,
        chosen.seeds,
        mutant=chosen.mutant,
        jobs=chosen.jobs,
        twice_every=chosen.twice_every,
        progress=chosen.progress,
        seconds_max=chosen.minutes * 60,
    )
    if totals.result.seeds < COVERAGE_SEEDS_MIN:
        print(f"coverage is not judged: {totals.result.seeds} seeds, {COVERAGE_SEEDS_MIN} are needed")
        missing = []
    else:
        missing = not_covered(scenario, totals.result)
    for what in missing:
        print(what)
    print(figures(totals))
    return 1 if totals.violations or missing else 0


def _print_list() -> None:
    for scenario in SCENARIOS.values():
        print(f"{scenario.name}: {scenario.summary}")
        for mutant in scenario.mutants:
            print(f"    {mutant.name}")


def _one(scenario: Scenario, mutant: Mutant | None, chosen: argparse.Namespace) -> int:
    run: Run | None
    if chosen.shrink:
        run = shrink(scenario, chosen.seed, mutant)
        if run is None:
            print(f"seed {chosen.seed} has no violation")
            return 0
    else:
        without = frozenset(int(number) for number in chosen.without.split(",") if number)
        run = run_seed(scenario, chosen.seed, keep_all=True, mutant=mutant, without=without)
    for number, fault in enumerate(run.plan):
        print(f"plan {number:3d}: {_planned(fault)}")
    for line in run.world.trace.story(chosen.about, chosen.last):
        print(line)
    totals = Totals(scenario.name, chosen.seed, chosen.seed + 1, result=run.result)
    if run.violation is not None:
        totals.violations.append((chosen.seed, str(run.violation)))
        print(f"VIOLATION {run.violation}")
        if run.violation.__cause__ is not None:
            traceback.print_exception(run.violation.__cause__, file=sys.stdout)
    print(f"hash {run.digest}")
    print(figures(totals))
    return 0 if run.violation is None else 1


def _planned(fault: Planned) -> str:
    words = [f"{fault.at_us / 1_000_000:10.6f}", fault.kind, *fault.targets, fault.text]
    if fault.amount:
        words.append(str(fault.amount))
    if fault.duration_us:
        words.append(f"for {fault.duration_us / 1_000:.0f} ms")
    return " ".join(word for word in words if word)


if __name__ == "__main__":
    sys.exit(main())
