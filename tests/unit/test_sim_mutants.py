"""Every known-bad variant of the machines is caught by the simulator.

Which seed caught one the last time is noted in tests/sim/caught.txt, and tried first; a change of the machines
changes what seeds do, so others are tried, too. `python -m tests.unit.test_sim_mutants` writes the notes anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from tests.sim import runner
from tests.sim.scenario import Mutant, Scenario
from tests.sim.scenarios import SCENARIOS

NOTES = Path(__file__).parents[1] / "sim" / "caught.txt"

#: What only a patch that does not fit any more raises: such a mutant proves nothing.
STALE = re.compile(r"raised (TypeError|AttributeError|NameError)")

#: The toy protocol's are in test_sim_framework.py.
MUTANTS = [(each, mutant) for each in SCENARIOS.values() if each.name != "toy" for mutant in each.mutants]


def name_of(scenario: Scenario, mutant: Mutant) -> str:
    return f"{scenario.name}: {mutant.name}"


def noted() -> dict[str, int]:
    lines = (line.split(" ", 1) for line in NOTES.read_text().splitlines())
    return {name: int(seed) for seed, name in lines}


def test_notes_are_of_mutants_that_there_are() -> None:
    assert set(noted()) <= {name_of(scenario, mutant) for scenario, mutant in MUTANTS}


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "mutant"), [pytest.param(*each, id=name_of(*each)) for each in MUTANTS])
def test_every_known_bad_variant_is_caught(scenario: Scenario, mutant: Mutant) -> None:
    first = [seed for name, seed in noted().items() if name == name_of(scenario, mutant)]
    found = runner.catch(scenario, mutant, chain(first, range(mutant.seeds_max)))
    assert found is not None, f"not caught by {mutant.seeds_max} seeds"
    assert not STALE.search(str(found.violation)), found.violation


def write_notes(mutants: Iterable[tuple[Scenario, Mutant]]) -> None:
    """Only of those that the first few seeds do not catch."""
    notes = noted() if NOTES.exists() else {}
    for scenario, mutant in mutants:
        name = name_of(scenario, mutant)
        first = [notes[name]] if name in notes else []
        found = runner.catch(scenario, mutant, chain(first, range(mutant.seeds_max)))
        print(f"{name}: {'not caught' if found is None else found.seed}", flush=True)
        notes.pop(name, None)
        if found is not None and found.seed > 0:
            notes[name] = found.seed
        NOTES.write_text("".join(f"{seed} {name}\n" for name, seed in sorted(notes.items())))


if __name__ == "__main__":
    write_notes(MUTANTS)
