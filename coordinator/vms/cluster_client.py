"""Asks coordinators, one after another, until it is answered: what view managers and the scheduler do as clients.
Answers to reads come in pages; they are put together here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...ltm.machine import Host
from ..two_phase.messages import Outcome, ReadAt, RowsAt, Submit
from ..two_phase.whole_reads import rest_of, with_more

#: Longer than a transaction takes when all goes well.
ANSWER_MS_MAX = 400
#: A read that was refused is begun again after this long.
AGAIN_MS = 30

Then = Callable[[RowsAt | Outcome], None]
#: The first word of its timers.
ASKER = "ask"


class Asker:
    """`send` and `timers` are taken by the machine that it belongs to."""

    def __init__(self, host: Host, coordinators: Sequence[str]) -> None:
        self._host = host
        self._coordinators = tuple(coordinators)
        self._number = 0
        self._turn = 0
        #: By read number or tx_id: the question, and what to do with the answer.
        self._open: dict[object, tuple[ReadAt | Submit, Then]] = {}
        #: The timer of each that counts: of several, all but the last are forgotten. Else a question that is refused
        #: for long would be asked twice as often each time.
        self._waits: dict[object, int] = {}
        #: Of reads whose answer was a page: the question for the next one; and by that, what is known so far.
        self._rests: dict[object, object] = {}
        self._pages: dict[object, tuple[object, ReadAt, RowsAt, Then]] = {}
        self._timer = 0
        self.send: list[tuple[str, object]] = []
        self.timers: list[tuple[int, object]] = []

    def begin(self, incarnation: int) -> None:
        """Numbers of an earlier life must not be taken for those of this one."""
        self._number = incarnation << 32

    def ask(self, question: ReadAt | Submit, now_ms: int, then: Then, noted: bool = False) -> object:
        """Returns what to call it by. `noted`: whoever checks the machine wants to know of the read."""
        name: object
        if isinstance(question, ReadAt):
            self._number += 1
            question = question._replace(number=self._number)
            name = self._number
            if noted:
                self._host.note("reads", self._number)

                def then_noted(answer: RowsAt | Outcome) -> None:
                    self._host.note("read", question, answer)
                    then(answer)

                self._open[name] = (question, then_noted)
            else:
                self._open[name] = (question, then)
        else:
            name = question.tx_id
            self._host.note("submit", question)
            self._open[name] = (question, then)
        self._ask(name, question, now_ms)
        return name

    def forget(self, name: object) -> None:
        """Nobody wants the answer any more."""
        for each in (name, self._rests.pop(name, None)):
            self._open.pop(each, None)
            self._waits.pop(each, None)
            self._pages.pop(each, None)

    def _ask(self, name: object, question: ReadAt | Submit, now_ms: int) -> None:
        self._turn += 1
        self.send.append((self._coordinators[self._turn % len(self._coordinators)], question))
        self._wait(name, now_ms + ANSWER_MS_MAX)

    def _wait(self, name: object, until_ms: int) -> None:
        self._timer += 1
        self._waits[name] = self._timer
        self.timers.append((until_ms, (ASKER, (name, self._timer))))

    def receive(self, message: RowsAt | Outcome, now_ms: int) -> None:
        if isinstance(message, Outcome):
            self._host.note("outcome", message)
            name: object = message.tx_id
        else:
            name = message.number
        if name not in self._open:
            return
        if isinstance(message, RowsAt) and message.error:
            self._wait(self._begun_anew(name), now_ms + AGAIN_MS)
            return
        question, then = self._open.pop(name)
        del self._waits[name]
        if isinstance(message, RowsAt) and isinstance(question, ReadAt):
            self._page(name, question, message, then, now_ms)
        else:
            then(message)

    def _page(self, name: object, question: ReadAt, answer: RowsAt, then: Then, now_ms: int) -> None:
        known = self._pages.pop(name, None)
        if known is not None:
            name, question, before, then = known
            answer = with_more(before, answer)
        rest = rest_of(question, answer)
        if rest is None:
            self._rests.pop(name, None)
            then(answer)
            return
        asked = self._rests[name] = self.ask(rest, now_ms, then)
        self._pages[asked] = (name, question, answer, then)

    def _begun_anew(self, name: object) -> object:
        """The question to ask again. What was read at a new timestamp is read at another one: the first may be too old
        by now."""
        known = self._pages.get(name)
        if known is None or known[1].at:
            return name
        first, question, _, then = known
        self.forget(first)
        self._open[first] = (question, then)
        return first

    def timer(self, token: object, now_ms: int) -> None:
        assert isinstance(token, tuple)
        name, timer = token
        if self._waits.get(name) == timer:
            question = self._open[name][0]
            self._ask(name, question._replace(again=True) if isinstance(question, Submit) else question, now_ms)
