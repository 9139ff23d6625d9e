"""Gathers what was committed from all logs, for whoever follows the change tables of a table or view. No I/O.

The owners of the keys make sure that nobody commits at or below the timestamp any more, and then tell; so do logs that
owned some of them before. If one of them does not own what the map says any more, all is asked again: a commit that
came after one log had answered may be told by none otherwise. Once all have answered, what is at or below the timestamp
never changes: later pages are asked for where they are.
"""

from __future__ import annotations

from ...changetables.keys import table_range
from ...ltm.cluster.messages import MOVED, OLD_TERM
from ...ltm.key_range import RangeMap
from ...ltm.two_phase.messages import FoundChanges, KeyRange, NotServed, ReadChanges
from ..two_phase.messages import ChangesAt, ChangesFound, ChangesOfLog

#: A log that does not answer is asked again after this long; all of them, if the map was an old one.
RESEND_MS = 150
AGAIN_MS = 20
#: Then it is given up: whoever asked asks again.
GATHERING_MS_MAX = 3_000
#: Questions that are not answered yet; more are refused.
GATHERINGS_MAX = 1_000
#: Set in the numbers of its questions: a coordinator's others have smaller ones.
_NUMBER_BIT = 1 << 31


class _Gathered:
    def __init__(self, client: str, question: ChangesAt, now_ms: int) -> None:
        self.client, self.question, self.began_ms = client, question, now_ms
        #: By number: the log, and what it is asked.
        self.waiting: dict[int, tuple[str, ReadChanges]] = {}
        self.found: list[ChangesOfLog] = []
        self.oldest = 0


class Gathering:
    """`send` and `timers` are taken by the machine that it is a part of; timers come back to `timer`."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], _Gathered] = {}
        self._asked: dict[int, _Gathered] = {}
        self._number = 0
        #: To a log or to a client.
        self.send: list[tuple[str, object]] = []
        self.timers: list[tuple[int, tuple[str, str, int]]] = []

    def start(self, incarnation: int) -> None:
        """Answers to an earlier life must not be taken for those to this one."""
        self._number = incarnation << 32 | _NUMBER_BIT

    def ask(self, client: str, question: ChangesAt, ranges: RangeMap, now_ms: int) -> None:
        name = client, question.number
        if name in self._open:
            return
        if len(self._open) >= GATHERINGS_MAX:
            self.send.append((client, ChangesFound(question.number, (), 0, "too many readers")))
            return
        gathered = self._open[name] = _Gathered(client, question, now_ms)
        self._ask_logs(gathered, ranges, now_ms)

    def _ask_logs(self, gathered: _Gathered, ranges: RangeMap, now_ms: int) -> None:
        question = gathered.question
        if question.places:
            starts = dict(question.places)
            owned: dict[str, list[KeyRange]] = {}
        else:
            starts = dict.fromkeys(ranges.hosts, (question.since + 1, 0))
            owned = _owned(ranges, question.ids)
        for log, start in starts.items():
            self._number += 1
            keys = tuple(owned.get(log, ()))
            read = ReadChanges(self._number, question.at, 0, question.ids, start, question.limit, keys)
            gathered.waiting[self._number] = (log, read)
            self._asked[self._number] = gathered
            self.send.append((log, read))
            self.timers.append((now_ms + RESEND_MS, ("resend", "", self._number)))

    def found(self, answer: FoundChanges) -> None:
        gathered = self._asked.pop(answer.number, None)
        if gathered is None:
            return
        log, _ = gathered.waiting.pop(answer.number)
        gathered.found.append((log, answer.writes, answer.refreshes, answer.next))
        gathered.oldest = max(gathered.oldest, answer.oldest)
        if not gathered.waiting:
            self._end(gathered, "")

    def not_served(self, answer: NotServed, now_ms: int) -> bool:
        """Whether that was asked for here."""
        gathered = self._asked.get(answer.number)
        if gathered is None:
            return False
        if answer.reason in (MOVED, OLD_TERM) and now_ms - gathered.began_ms < GATHERING_MS_MAX:
            self._forget_answers(gathered)
            name = gathered.client, gathered.question.number
            self.timers.append((now_ms + AGAIN_MS, ("again", *name)))
        else:
            self._end(gathered, answer.reason)
        return True

    def timer(self, token: tuple[str, str, int], ranges: RangeMap, now_ms: int) -> None:
        what, client, number = token
        if what == "again":
            gathered = self._open.get((client, number))
            if gathered is not None and not gathered.waiting:
                self._ask_logs(gathered, ranges, now_ms)
            return
        asked = self._asked.get(number)
        if asked is None:
            return
        if now_ms - asked.began_ms > GATHERING_MS_MAX:
            self._end(asked, "no answer")
            return
        self.send.append(asked.waiting[number])
        self.timers.append((now_ms + RESEND_MS, token))

    def _forget_answers(self, gathered: _Gathered) -> None:
        for number in gathered.waiting:
            del self._asked[number]
        gathered.waiting.clear()
        gathered.found.clear()
        gathered.oldest = 0

    def _end(self, gathered: _Gathered, error: str) -> None:
        number = gathered.question.number
        answer = ChangesFound(number, tuple(gathered.found), gathered.oldest)
        if error:
            self._forget_answers(gathered)
            answer = ChangesFound(number, (), 0, error)
        del self._open[gathered.client, number]
        self.send.append((gathered.client, answer))


def _owned(ranges: RangeMap, ids: tuple[int, ...]) -> dict[str, list[KeyRange]]:
    """By log: what it owns of these tables and views."""
    owned: dict[str, list[KeyRange]] = {}
    for each in ids:
        for log, start, stop in ranges.owners(*table_range(each)):
            owned.setdefault(log, []).append((start, stop, 0, False))
    return owned
