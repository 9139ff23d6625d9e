"""What clients of the commit protocol can tell by themselves, without the model: money, lists and counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import cast

from viewtide.changetables.types import Row
from viewtide.coordinator.two_phase.messages import Outcome, ReadAt, RowsAt, Submit
from viewtide.ltm.two_phase.messages import COMMITTED

from .checkers import Checker
from .model import shown_by
from .trace import Event
from .workload import key, tables
from .world import World


class Bank(Checker):
    """No snapshot ever shows money that appeared or went."""

    kinds = ("read",)

    def observe(self, event: Event) -> None:
        question, answer = cast(ReadAt, event.detail[0]), cast(RowsAt, event.detail[1])
        if answer.error:
            return
        ids = [int.from_bytes(start[:4], "big") for start, _, limit, _ in question.ranges if not limit]
        found = dict(zip(ids, answer.ranges, strict=False)) if len(ids) == len(answer.ranges) else {}
        accounts = found.get(tables().by_name["accounts"].table.id)
        if accounts is not None:
            total = sum(cast(int, row[2]) for _, _, row in accounts)
            if total:
                raise self.violation(f"the accounts at {answer.at} sum up to {total}", event.process, answer.at)
        for name in ("bank", "by_branch"):
            states = found.get(tables().views[name].view.id)
            if states is not None:
                rows = shown_by(tables(), name, {cell: row for cell, _, row in states}, {})
                total = sum(cast(int, row[-2] or 0) for row in rows)
                self.traffic["bank looks"] += 1
                if total:
                    raise self.violation(f"{name} at {answer.at} shows {rows}", event.process, answer.at)


class Lists(Checker):
    """Lists only grow at their ends, and who saw what gives no cycle. It knows neither timestamps nor the model."""

    kinds = ("read", "outcome", "submit")

    def __init__(self, world: World) -> None:
        super().__init__()
        self._committed: set[str] = set()
        self._refused: set[str] = set()
        #: (who, list, what it saw); a reader is its read, a writer its name.
        self._saw: list[tuple[str, int, tuple[str, ...]]] = []
        self._numbers = {key("lists", number): number for number in range(100)}
        self._table = tables().by_name["lists"].table.id.to_bytes(4, "big")

    def observe(self, event: Event) -> None:
        if event.what == "outcome":
            outcome = cast(Outcome, event.detail[0])
            (self._committed if outcome.state == COMMITTED else self._refused).add(str(outcome.tx_id[0]))
        elif event.what == "submit":
            submit = cast(Submit, event.detail[0])
            for table, intents in submit.writes:
                for cell, intent in intents if table == "lists" else ():
                    items = cast(Row, intent[1])[1]
                    *before, name = cast(str, items).split()
                    self._saw.append((name, self._numbers[cell], tuple(before)))
        else:
            self._read(cast(ReadAt, event.detail[0]), cast(RowsAt, event.detail[1]))

    def _read(self, question: ReadAt, answer: RowsAt) -> None:
        if answer.error:
            return
        for (start, _, limit, _), rows in zip(question.ranges, answer.ranges, strict=True):
            if start[:4] == self._table and not limit:
                found = {cell: cast(str, row[1]) for cell, _, row in rows}
                for cell, number in list(self._numbers.items())[:10]:
                    seen = tuple(found.get(cell, "").split())
                    self._saw.append((f"read {question.number}", number, seen))

    def finish(self) -> None:
        saw = [each for each in self._saw if each[0].startswith("read") or each[0] in self._committed]
        longest: dict[int, tuple[str, ...]] = {}
        for who, number, seen in saw:
            whole = seen if who.startswith("read") else (*seen, who)
            if len(whole) > len(longest.get(number, ())):
                longest[number] = whole
        after: dict[str, set[str]] = defaultdict(set)
        for number, items in longest.items():
            self.traffic["list items"] += len(items)
            for name in items:
                if name in self._refused:
                    raise self.violation(f"{name} was refused and is in list {number}", name)
            if len(set(items)) != len(items):
                raise self.violation(f"list {number} has something twice: {items}")
            for first, second in pairwise(items):
                after[first].add(second)
        for who, number, seen in saw:
            order = longest.get(number, ())
            if order[: len(seen)] != seen:
                raise self.violation(f"{who} saw {seen} of list {number}, others {order}", who)
            if seen:
                after[seen[-1]].add(who)
            if len(order) > len(seen) and order[len(seen)] != who:
                after[who].add(order[len(seen)])
        cycle = _cycle(after)
        if cycle:
            raise self.violation(f"a cycle: {' -> '.join(cycle)}", *cycle)


def _cycle(after: dict[str, set[str]]) -> list[str]:
    """Take away whoever comes after nobody, as long as there is one: a cycle is left, or nothing."""
    incoming = Counter(second for followers in after.values() for second in followers)
    free = [who for who in after if not incoming[who]]
    while free:
        for second in sorted(after.pop(free.pop(), ())):
            incoming[second] -= 1
            if not incoming[second]:
                free.append(second)
    left = {first for first in after if incoming[first]}
    if not left:
        return []
    path = [min(left)]
    while len(path) == len(set(path)):
        # Everybody who is left has somebody before who is left.
        path.append(min(first for first in left if path[-1] in after[first]))
    return path[::-1]
