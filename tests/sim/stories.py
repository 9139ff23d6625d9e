"""Short stories of the commit protocol, told by the machines themselves: two LTMs, two coordinators, an oracle, and
faults at chosen moments. Nothing is drawn by chance.

Each story is kept as a file in `golden/`, message by message, and drawn in docs/protocol.md. When the protocol was
meant to change, `python -m tests.sim.stories` writes them again.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, cast

import viewtide as vt
from viewtide.changetables.plan import Contribution
from viewtide.coordinator.transaction import ABSENT, ANY
from viewtide.coordinator.two_phase.coordinator import Coordinator
from viewtide.coordinator.two_phase.messages import Outcome, ReadAt, Submit
from viewtide.coordinator.two_phase.oracle import Oracle
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.machine import Machine, Outputs, PlainHost, WhenDurable
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.transitions import PARTICIPANT, text
from viewtide.ltm.versions import Horizon

from .process import Recovered

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "protocol.md"
LTMS = ("ltm-1", "ltm-2")
COORDINATORS = ("coordinator-1", "coordinator-2")
ORACLE, CLIENT, OTHER = "oracle", "client", "other client"
#: The wall clock when a story begins.
BEGIN_MS = 1_000
Message = Any


@functools.cache
def tables() -> Tables:
    with vt.connect("memory:", ltms=1) as db:
        db.create_table("events", {"id": int, "kind": str, "cost": int}, key="id")
        db.create_view("by_kind", "SELECT kind, SUM(cost) AS cost, COUNT(*) AS n FROM events GROUP BY kind")
        return Tables(db._engine.ltm.tables.catalog, Horizon())


def key(number: int) -> bytes:
    return tables().by_name["events"].codec.keys.encode((number,))


def write(tx: int, *numbers: int, new: tuple[int, ...] = ()) -> Submit:
    """Write some rows, of which `new` must not be there."""
    rows = tuple(
        (key(number), (ABSENT if number in new else ANY, (number, "book", number * 10), None, True))
        for number in numbers
    )
    return Submit((tx, 1), False, (("events", rows),))


class Stage:
    """The machines, and what is between them."""

    def __init__(self) -> None:
        view = tables().views["by_kind"]
        starts = (b"", key(0), view.view.id.to_bytes(4, "big"))
        self.ranges = RangeMap(1, starts, (LTMS[0], LTMS[0], LTMS[1]))
        self.now_ms = BEGIN_MS
        self.lines: list[str] = []
        self.drawn: list[tuple[str, str, str]] = []
        self.outcomes: list[Message] = []
        self._machines: dict[str, Machine] = {}
        self._logs: dict[str, list[object]] = {name: [] for name in (*LTMS, ORACLE)}
        self._durable = dict.fromkeys(self._logs, 0)
        self._waiting: dict[str, list[WhenDurable]] = {name: [] for name in self._logs}
        self._incarnations = dict.fromkeys((*LTMS, *COORDINATORS, ORACLE), 0)
        self._messages: deque[tuple[str, str, Message]] = deque()
        self._timers: list[tuple[int, int, str, int, object]] = []
        self._order = count()
        #: What to do when a message is about to arrive; it does not arrive if that returns True.
        self.at: dict[tuple[str, str], Callable[[], bool]] = {}
        for name in (ORACLE, *LTMS, *COORDINATORS):
            self.start(name)
        self.run(0)
        self.lines.clear()
        self.drawn.clear()

    # What a story says.

    def tell(self, line: str) -> None:
        self.lines.append(f"{self.now_ms - BEGIN_MS:5} ms  ({line})")
        self.drawn.append(("", "", line))

    def send(self, sender: str, destination: str, message: Message) -> None:
        self._messages.append((destination, sender, message))

    def on(self, destination: str, kind: str, action: Callable[[], None], lost: bool = False) -> None:
        """Once, when a message of this kind arrives there."""

        def once() -> bool:
            del self.at[destination, kind]
            action()
            return lost

        self.at[destination, kind] = once

    def crash(self, name: str) -> None:
        self.tell(f"{name} dies")
        del self._machines[name]
        if name in self._logs:
            del self._logs[name][self._durable[name] :]
            self._waiting[name].clear()

    def start(self, name: str) -> None:
        if self._incarnations[name]:
            self.tell(f"{name} is back")
        self._incarnations[name] += 1
        self._machines[name] = self._made(name)
        disk = Recovered(self._logs.get(name, ()))
        self._carry_out(name, self._machines[name].start(self.now_ms, disk, self._incarnations[name]))

    def _made(self, name: str) -> Machine:
        host = PlainHost(name)
        if name == ORACLE:
            return Oracle(host)
        if name in COORDINATORS:
            return Coordinator(host, ORACLE, tables(), self.ranges)
        refresh = tables().views["by_kind"].plan.refresh
        return Participant(host, name, ORACLE, lambda item, row: refresh(row, Contribution(*item[1:])))

    def run(self, until_ms: int) -> None:
        """Everything that happens by itself until then."""
        until_ms += BEGIN_MS
        while True:
            while self._messages:
                self._deliver(*self._messages.popleft())
            if self._sync():
                continue
            if not self._timers or self._timers[0][0] > until_ms:
                self.now_ms = until_ms
                return
            at_ms, _, name, incarnation, token = heappop(self._timers)
            self.now_ms = max(self.now_ms, at_ms)
            if name in self._machines and self._incarnations[name] == incarnation:
                self._carry_out(name, self._machines[name].timer(token, self.now_ms))

    def _sync(self) -> bool:
        synced = False
        for name, log in self._logs.items():
            if self._durable[name] < len(log):
                synced = True
                self._durable[name] = len(log)
                self._carry_out(name, self._machines[name].persisted(len(log), self.now_ms))
                ready, self._waiting[name] = self._waiting[name], []
                for each in ready:
                    self._send(name, each.destination, each.message)
        return synced

    def _deliver(self, destination: str, sender: str, message: Message) -> None:
        kind = type(message).__name__
        self.lines.append(f"{self.now_ms - BEGIN_MS:5} ms  {sender} -> {destination}: {told(message)}")
        if ORACLE not in (sender, destination):
            self.drawn.append((sender, destination, short(message)))
        action = self.at.get((destination, kind))
        if action is not None and action():
            self.tell("it is lost")
            return
        if destination in (CLIENT, OTHER):
            self.outcomes.append(message)
        elif destination in self._machines:
            self._carry_out(destination, self._machines[destination].receive(sender, message, self.now_ms))

    def _carry_out(self, name: str, out: Outputs) -> None:
        if out.persist:
            self._logs[name] += out.persist
            if name != ORACLE:
                for record in out.persist:
                    self.lines.append(f"{self.now_ms - BEGIN_MS:5} ms  {name} logs {type(record).__name__}")
        for at_ms, token in out.timers:
            heappush(self._timers, (at_ms, next(self._order), name, self._incarnations[name], token))
        for each in out.send:
            if isinstance(each, WhenDurable):
                if each.lsn > self._durable[name]:
                    self._waiting[name].append(each)
                else:
                    self._send(name, each.destination, each.message)
            else:
                self._send(name, *each)

    def _send(self, sender: str, destination: str, message: object) -> None:
        self._messages.append((destination, sender, message))


def told(message: Message) -> str:
    """A message as the files have it: what it is, and the words in it that matter."""
    words = [type(message).__name__]
    for name in ("min_ts", "commit_ts", "state", "reason"):
        value = getattr(message, name, None)
        if value is not None and value != "":
            words.append(f"{name}={moment(value) if isinstance(value, int) else value}")
    return " ".join(words)


def short(message: Message) -> str:
    kind = type(message).__name__
    if kind == "Decide":
        return "Decide commit" if message.commit_ts else "Decide abort"
    if kind == "Vote":
        return "Vote yes" if message.min_ts else "Vote no"
    return f"{kind} {message.state}" if hasattr(message, "state") else kind


def moment(ts: int) -> str:
    """A timestamp as ms from the beginning, counter and raise."""
    return "0" if not ts else f"{(ts >> 20) - BEGIN_MS}.{ts >> 8 & 0xFFF}.{ts & 0xFF}"


# The stories.


def two_participants(stage: Stage) -> None:
    """A transaction over two LTMs: the event on the first, its group of the view on the second."""
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(100)


def new_rows(stage: Stage) -> None:
    """Only new rows: nothing is asked for before the votes. The second transaction inserts a row that is there: the
    vote is refused, and the next attempt looks first."""
    stage.send(CLIENT, COORDINATORS[0], write(1, 1, new=(1,)))
    stage.run(100)
    stage.send(OTHER, COORDINATORS[1], write(2, 1, new=(1,)))
    stage.run(1_000)


def coordinator_dies_holding(stage: Stage) -> None:
    """The coordinator dies before it asked for votes: the holds end by themselves."""
    stage.on(COORDINATORS[0], "Told", lambda: stage.crash(COORDINATORS[0]))
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(3_000)


def coordinator_dies_voting(stage: Stage) -> None:
    """The coordinator dies when the votes are out: the participants find out from each other."""
    stage.on(COORDINATORS[0], "Vote", lambda: stage.crash(COORDINATORS[0]))
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(3_000)


def vote_is_missing(stage: Stage) -> None:
    """The coordinator dies and one request to vote is lost: whoever has not voted refuses for good, and says so."""

    def end() -> None:
        stage.crash(COORDINATORS[0])

    stage.on(LTMS[1], "Prepare", end, lost=True)
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(3_000)


def participant_dies_in_doubt(stage: Stage) -> None:
    """A participant dies after its vote, with the decision on its way; it holds everything again and asks."""
    stage.on(LTMS[0], "Decide", lambda: stage.crash(LTMS[0]), lost=True)
    stage.on(COORDINATORS[0], "Settled", lambda: stage.crash(COORDINATORS[0]))
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(50)
    stage.start(LTMS[0])
    stage.run(3_000)


def asked_again(stage: Stage) -> None:
    """The answer to the client is lost with the coordinator: another one finds out that it is committed, and does not
    do it twice."""
    stage.on(CLIENT, "Outcome", lambda: stage.crash(COORDINATORS[0]), lost=True)
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(1_000)
    stage.send(CLIENT, COORDINATORS[1], write(1, 1)._replace(again=True))
    stage.run(3_000)


def older_meets_younger(stage: Stage) -> None:
    """Two transactions insert one row, and the older one comes second: the younger one lets go, is tried again, and
    finds the row there."""
    first = write(1, 1, 2, new=(2,))
    stage.on(LTMS[0], "Ask", lambda: None, lost=True)
    stage.send(CLIENT, COORDINATORS[0], first)
    stage.run(1)
    stage.on(LTMS[0], "Prepare", lambda: None, lost=True)
    stage.send(OTHER, COORDINATORS[1], write(2, 2, 3, new=(2,)))
    stage.run(1_000)


def reader_waits(stage: Stage) -> None:
    """A reader comes between a vote and its decision: it leaves a mark and waits for the decision."""
    cell = tables().views["by_kind"].plan.keys.encode_short(("book",))

    def read() -> None:
        stage.send(OTHER, COORDINATORS[1], ReadAt(1, 0, (key(1), cell)))

    stage.on(LTMS[1], "Decide", read, lost=True)
    stage.send(CLIENT, COORDINATORS[0], write(1, 1))
    stage.run(2_000)


STORIES: dict[str, Callable[[Stage], None]] = {
    story.__name__: story
    for story in (
        two_participants,
        new_rows,
        coordinator_dies_holding,
        coordinator_dies_voting,
        vote_is_missing,
        participant_dies_in_doubt,
        asked_again,
        older_meets_younger,
        reader_waits,
    )
}


def play(name: str) -> Stage:
    stage = Stage()
    STORIES[name](stage)
    return stage


def file_text(name: str) -> str:
    title = " ".join((STORIES[name].__doc__ or "").split())
    return "\n".join([title, "", *play(name).lines, ""])


def diagram(name: str) -> str:
    """As mermaid draws it."""
    drawn = play(name).drawn
    lines = ["sequenceDiagram"]
    for sender, destination, what in drawn:
        if sender:
            lines.append(f"    {sender.replace(' ', '_')}->>{destination.replace(' ', '_')}: {what}")
        else:
            lines.append(f"    Note over oracle: {what}".replace("oracle", COORDINATORS[0]))
    return "\n".join(lines)


def states() -> str:
    """The states of an attempt at one participant, from its table."""
    lines = ["stateDiagram-v2"]
    by_step: dict[tuple[str, str], list[str]] = {}
    for each in PARTICIPANT:
        if each.state != each.to:
            by_step.setdefault((each.state, each.to), []).append(each.on)
    for (state, to), events in by_step.items():
        lines.append(f"    {state} --> {to}: {', '.join(dict.fromkeys(events))}")
    return "\n".join(lines)


def generated() -> dict[str, str]:
    """What stands between the marks in docs/protocol.md."""
    parts = {"states": f"```mermaid\n{states()}\n```", "transitions": text()}
    for name, story in STORIES.items():
        parts[name] = f"{' '.join((story.__doc__ or '').split())}\n\n```mermaid\n{diagram(name)}\n```"
    return parts


def documented(whole: str) -> str:
    """The documentation with its generated parts made again."""
    for name, part in generated().items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = whole.partition(begin)
        assert found, f"{DOCS.name} has no place for {name}"
        whole = f"{before}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    return whole


def main() -> int:
    GOLDEN.mkdir(exist_ok=True)
    for name in STORIES:
        (GOLDEN / f"{name}.txt").write_text(file_text(name))
    DOCS.write_text(documented(DOCS.read_text()))
    return 0


def outcomes(stage: Stage) -> list[str]:
    return [cast(Outcome, each).state if isinstance(each, Outcome) else type(each).__name__ for each in stage.outcomes]


if __name__ == "__main__":
    sys.exit(main())
