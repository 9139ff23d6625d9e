"""What a participant does with one attempt, as a table. The documentation is generated from it, and the simulator
checks that nothing else ever happens.

    none        nothing is held here for the attempt
    holding     it holds, or waits for, what it asked for
    voted       its yes is in the log: in doubt until the decision is known
    committed   the decision is known, and kept until all participants have it; then by its tx_id
    aborted     the same
    refused     this log will never vote yes for it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .messages import Attempt
    from .participant import Participant

NONE, HOLDING, VOTED, COMMITTED, ABORTED, REFUSED = "none", "holding", "voted", "committed", "aborted", "refused"


class Transition(NamedTuple):
    """`on` is a message or a timer; `sends` goes to whoever is concerned, when what it says is durable."""

    state: str
    on: str
    to: str
    sends: tuple[str, ...]
    why: str


PARTICIPANT: tuple[Transition, ...] = (
    Transition(NONE, "Ask", HOLDING, ("Told",), "everything is free: held, and answered with what is newest"),
    Transition(NONE, "Ask", HOLDING, (), "it waits for an older one, or for one that has voted (H4)"),
    Transition(NONE, "Ask", NONE, ("Refused",), "holds that it relies on are gone, or it has ended"),
    Transition(NONE, "Ask", NONE, (), "an old copy: a later attempt of the transaction is here"),
    Transition(NONE, "Prepare", VOTED, ("Vote",), "it was asked for nothing before: held now, the vote logged (V3)"),
    Transition(NONE, "Prepare", COMMITTED, ("Vote",), "the same, and the only participant: its vote is the commit"),
    Transition(NONE, "Prepare", REFUSED, ("Vote",), "holds that it relies on are gone: the refusal is logged (V2, H5)"),
    Transition(NONE, "Inquire", REFUSED, ("Answer",), "it has not voted: the refusal is logged first (V4)"),
    Transition(NONE, "Inquire", NONE, ("Answer",), "another attempt was committed: not this one (V1)"),
    Transition(NONE, "Decide abort", NONE, (), "nothing is held"),
    Transition(NONE, "Decide abort", NONE, ("Settled",), "nothing is held; the transaction is known to be committed"),
    Transition(HOLDING, "Ask", HOLDING, ("Told",), "further look-ups"),
    Transition(HOLDING, "Ask", HOLDING, (), "further look-ups that have to wait"),
    Transition(HOLDING, "Ask", NONE, ("Refused",), "what was read at the snapshot has changed (V9)"),
    Transition(HOLDING, "Ask", REFUSED, ("Refused",), "the same; earlier attempts were refused here for good"),
    Transition(HOLDING, "Prepare", VOTED, ("Vote",), "all is held: min_ts is above what is in the way (T2)"),
    Transition(HOLDING, "Prepare", COMMITTED, ("Vote",), "the only participant's vote is the commit"),
    Transition(HOLDING, "Prepare", REFUSED, ("Vote",), "it would have to wait with a vote given elsewhere (H4)"),
    Transition(HOLDING, "Decide abort", NONE, (), "the coordinator gave the attempt up before it asked for votes"),
    Transition(HOLDING, "Inquire", REFUSED, ("Answer",), "it has not voted: the refusal is logged first (V4)"),
    Transition(HOLDING, "timer hold", NONE, ("Refused",), "it held for too long without a request to vote (H5)"),
    Transition(VOTED, "Decide commit", COMMITTED, ("Settled",), "all votes are durable: visible at commit_ts"),
    Transition(VOTED, "Decide abort", ABORTED, ("Settled",), "somebody refused for good"),
    Transition(VOTED, "timer decision", VOTED, ("Inquire",), "the decision is overdue: the others are asked"),
    Transition(VOTED, "Inquire", VOTED, ("Answer",), "the vote, its min_ts and the list"),
    Transition(VOTED, "Answer voted", VOTED, (), "not all are known yet"),
    Transition(VOTED, "Answer voted", COMMITTED, ("Settled",), "all have voted: committed at the highest min_ts (V4)"),
    Transition(VOTED, "Answer committed", COMMITTED, ("Settled",), "another one knows the decision"),
    Transition(VOTED, "Answer aborted", ABORTED, ("Settled",), "another one refused for good, or knows the decision"),
    Transition(VOTED, "Prepare", VOTED, ("Vote",), "the vote is in the log: it is repeated (V2)"),
    Transition(COMMITTED, "Decide commit", COMMITTED, ("Settled",), "told again"),
    Transition(COMMITTED, "Inquire", COMMITTED, ("Answer",), "kept until everybody on the list has it (V6)"),
    Transition(COMMITTED, "Prepare", COMMITTED, ("Vote",), "an old copy, or the coordinator missed the answer"),
    Transition(COMMITTED, "Ask", COMMITTED, ("Refused",), "the transaction has ended: whoever asks finds out how"),
    Transition(COMMITTED, "Forget", COMMITTED, (), "all have the decision durable: from now on kept by its tx_id only"),
    Transition(COMMITTED, "timer settled", COMMITTED, ("Inquire",), "who else has it? The others are asked"),
    Transition(COMMITTED, "Answer committed", COMMITTED, (), "one more has it"),
    Transition(ABORTED, "Decide abort", ABORTED, ("Settled",), "told again"),
    Transition(ABORTED, "Inquire", ABORTED, ("Answer",), "kept until everybody on the list has it (V6)"),
    Transition(ABORTED, "timer settled", ABORTED, ("Inquire",), "who else has it? The others are asked"),
    Transition(ABORTED, "Answer aborted", ABORTED, (), "one more has it"),
    Transition(ABORTED, "Answer aborted", NONE, (), "all have it"),
    Transition(ABORTED, "Answer aborted", REFUSED, (), "all have it; earlier attempts were refused here for good"),
    Transition(ABORTED, "Prepare", ABORTED, ("Vote",), "an old copy: the vote is repeated, others have refused"),
    Transition(REFUSED, "Ask", REFUSED, ("Refused",), "the attempt has ended"),
    Transition(REFUSED, "Prepare", REFUSED, ("Vote",), "no, for good (V5)"),
    Transition(REFUSED, "Inquire", REFUSED, ("Answer",), "no, for good (V5)"),
    Transition(REFUSED, "Decide abort", REFUSED, (), "known"),
    Transition(REFUSED, "Decide abort", REFUSED, ("Settled",), "known; the transaction was committed since"),
)


def state_of(participant: Participant, attempt: Attempt) -> str:
    part = participant.parts.get(attempt)
    if part is not None:
        if part.decided is not None:
            return COMMITTED if part.decided else ABORTED
        return VOTED if part.min_ts else HOLDING
    known = participant.committed.get(attempt[0])
    if known is not None and known[0] == attempt[1]:
        return COMMITTED
    return REFUSED if participant.has_refused(attempt) else NONE


def text() -> str:
    """The table, as documentation shows it."""
    rows = [("state", "on", "to", "sends", "why"), *(each._replace(sends=" ".join(each.sends)) for each in PARTICIPANT)]  # type: ignore[arg-type]
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---|---|---|---|---|", *lines[1:]])
