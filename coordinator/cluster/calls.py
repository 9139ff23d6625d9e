"""Questions of other threads to the machines of this process, and their answers as futures.

A question that is not answered is asked again: a transaction with `again`, because it may have been done. It is
forgotten when its future is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from secrets import randbits
from typing import Any

from ...changetables.errors import Busy, InterfaceError, Unavailable
from ..two_phase.messages import BUSY, Outcome, Outcomes, Submit

#: Longer than a transaction takes when all goes well: a coordinator that has no map yet answers nothing.
ANSWER_MS_MAX = 1_000
#: Questions that are not answered yet; more are refused.
CALLS_MAX = 20_000
#: Numbers begin at one that nobody else has, and no earlier process of this name had: some questions are known by them
#: for good, and answers to an earlier process must not be taken for those to this one.
_RANDOM_BITS = 62


class Later:
    """As a future, for the thread that handles messages: who does not wait has no use for locks, which take ten times
    as long as this."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then: Callable[[Any], None] | None = then

    def cancel(self) -> None:
        self.set_result(None)

    def cancelled(self) -> bool:
        return self._then is None

    def set_running_or_notify_cancel(self) -> bool:
        return self._then is not None

    def set_result(self, answer: object) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(answer)

    def set_exception(self, error: Exception) -> None:
        self.set_result(None)


class _Call:
    __slots__ = ("future", "question", "to")

    def __init__(self, to: str, question: Any, future: Future[Any] | Later) -> None:
        self.to = to
        self.question = question
        self.future = future


class Calls:
    """`ask` is for any thread, the rest for the one that handles messages."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._asked: deque[_Call] = deque()
        #: By tx_id, or by the number that it got here.
        self._open: dict[object, _Call] = {}
        self._number = randbits(_RANDOM_BITS)
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, to: str, question: object) -> Future[Any]:
        """`question` is a Submit, or has a number, the same as its answer: its own, or 0 for one that it gets here."""
        future: Future[Any] = Future()
        self._add(_Call(to, question, future))
        self._wake()
        return future

    def ask_later(self, to: str, question: object, then: Callable[[Any], None]) -> Later:
        """For the thread that handles messages: `then` is called with the answer, or with None if there is none."""
        later = Later(then)
        self._add(_Call(to, question, later))
        return later

    def _add(self, call: _Call) -> None:
        if self._closed:
            raise InterfaceError("the process has ended")
        if len(self._open) + len(self._asked) >= CALLS_MAX:
            raise Busy(f"more than {CALLS_MAX} questions are not answered yet", hint="try again")
        self._asked.append(call)

    def take(self) -> list[tuple[str, object, object]]:
        """New ones: (to whom, the question, what to call `again` with after a while)."""
        taken = []
        while self._asked:
            call = self._asked.popleft()
            if isinstance(call.question, Submit):
                name: object = call.question.tx_id
            elif call.question.number:
                name = call.question.number
            else:
                self._number += 1
                name = self._number
                call.question = call.question._replace(number=self._number)
            earlier = self._open.get(name)
            if earlier is not None:
                earlier.future.cancel()
            self._open[name] = call
            taken.append((call.to, call.question, name))
        return taken

    def is_open(self, name: object) -> bool:
        return name in self._open

    def again(self, name: object) -> tuple[str, object] | None:
        """It was not answered in time: what to send again. None: nobody wants to know any more."""
        call = self._open.get(name)
        if call is None:
            return None
        if call.future.cancelled():
            del self._open[name]
            return None
        if isinstance(call.question, Submit):
            call.question = call.question._replace(again=True)
        return call.to, call.question

    def receive(self, answer: Any) -> None:
        if answer.__class__ is Outcomes:
            for outcome in answer.outcomes:
                self._answer(outcome.tx_id, outcome)
        else:
            self._answer(answer.tx_id if answer.__class__ is Outcome else answer.number, answer)

    def _answer(self, name: object, answer: object) -> None:
        call = self._open.get(name)
        if call is None:
            return
        if isinstance(answer, Outcome) and answer.error[0] == BUSY and call.question.again:
            return  # of one coordinator, where another one may commit it: only those who make certain count (rule V5)
        del self._open[name]
        if call.future.set_running_or_notify_cancel():
            call.future.set_result(answer)

    def close(self) -> None:
        """Whoever waits is told that it will not be answered."""
        self._closed = True
        self.take()
        for call in self._open.values():
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(
                    Unavailable("the process has ended", hint="ask another process; a transaction by the same tx_id")
                )
        self._open.clear()
