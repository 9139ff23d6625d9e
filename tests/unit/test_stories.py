"""The stories of the commit protocol are what the files say, and the documentation shows what they are."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.scenario import run_seed
from tests.sim.scenarios import SCENARIOS
from tests.sim.stories import DOCS, GOLDEN, STORIES, documented, file_text, outcomes, play
from viewtide.ltm.machine import Outputs
from viewtide.ltm.two_phase.messages import Answer, Attempt, Decide, Forget
from viewtide.ltm.two_phase.participant import RECOVERING, Participant
from viewtide.ltm.two_phase.transitions import PARTICIPANT, state_of

WRITE_AGAIN = "if the protocol was meant to change, run `python -m tests.sim.stories`"
#: With these seeds every line of the table happens, but for what takes three faults at once, and for new rows whose
#: views are all with the same participant.
SEEDS = range(7_000, 7_030)
RARE = {
    ("none", "Prepare", "committed", ("Vote",)),
    ("holding", "Ask", "none", ("Refused",)),
    ("holding", "Ask", "refused", ("Refused",)),
    ("none", "Inquire", "none", ("Answer",)),
    ("aborted", "Answer aborted", "refused", ()),
}

#: What becomes of each story.
ENDS = {
    "two_participants": ["committed"],
    "new_rows": ["committed", "failed"],
    "coordinator_dies_holding": [],
    "coordinator_dies_voting": [],
    "vote_is_missing": [],
    "participant_dies_in_doubt": ["committed"],
    "asked_again": ["committed"],
    "older_meets_younger": ["committed", "failed"],
    "reader_waits": ["committed", "RowsAt"],
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_what_its_file_says(name: str) -> None:
    assert file_text(name) == (GOLDEN / f"{name}.txt").read_text(), WRITE_AGAIN
    assert outcomes(play(name)) == ENDS[name]


def test_every_file_has_its_story() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(STORIES)


def test_the_documentation_is_generated_from_the_machines() -> None:
    assert documented(DOCS.read_text()) == DOCS.read_text(), WRITE_AGAIN


#: What a timer of the participant, which is one for all attempts, is for each of them.
TIMERS = {
    "holds": "timer hold",
    "decisions": "timer decision",
    RECOVERING: "timer decision",
    "settling": "timer settled",
}


@pytest.mark.slow
def test_nothing_else_happens_than_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[tuple[str, str, str, tuple[str, ...]]] = Counter()
    receive, timer = Participant.receive, Participant.timer

    def note(participant: Participant, attempt: Attempt, before: str, what: str, out: Outputs) -> None:
        sent = {type(each[-1]).__name__ for each in out.send if getattr(each[-1], "attempt", None) == attempt}
        seen[before, what, state_of(participant, attempt), tuple(sorted(sent))] += 1

    def receiving(self: Participant, sender: str, message: object, now_ms: int) -> Outputs:
        attempts = message.attempts if isinstance(message, Forget) else [getattr(message, "attempt", None)]
        before = {attempt: state_of(self, attempt) for attempt in attempts if attempt is not None}
        out = receive(self, sender, message, now_ms)
        for attempt, state in before.items() if self._open else ():
            what = type(message).__name__
            if isinstance(message, Decide):
                what = "Decide commit" if message.commit_ts else "Decide abort"
            elif isinstance(message, Answer):
                what = f"Answer {message.state}"
            note(self, attempt, state, what, out)
        return out

    def timing(self: Participant, token: object, now_ms: int) -> Outputs:
        name = TIMERS.get(token)  # type: ignore[call-overload]  # each is a text
        before = {attempt: state_of(self, attempt) for attempt in self.parts} if name else {}
        out = timer(self, token, now_ms)
        for attempt, state in before.items():
            # Whoever gets what one let go that held too long is not concerned.
            if name != "timer hold" or attempt not in self.parts:
                note(self, attempt, state, name, out)
        return out

    monkeypatch.setattr(Participant, "receive", receiving)
    monkeypatch.setattr(Participant, "timer", timing)
    for seed in SEEDS:
        run = run_seed(SCENARIOS["commit"], seed)
        assert run.violation is None, run.violation
    table = {(each.state, each.on, each.to, each.sends) for each in PARTICIPANT}
    unknown = {
        step: count
        for step, count in seen.items()
        # Whoever is gone is not told; what changes nothing and says nothing is no step.
        if step not in table and (step[0] != step[2] or step[3]) and (*step[:3], ("Settled",)) not in table
    }
    assert not unknown
    never = table - RARE - {(*step[:3], sends) for step in seen for sends in (step[3], ("Settled",))}
    assert not never
