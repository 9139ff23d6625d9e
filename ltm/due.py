"""What is due after a fixed time, mostly in vain: one timer for all of it. No I/O, no clock.

A transaction sets half a dozen timers that find nothing to do when they fire, because all went well. Each would cost as
much as a message. What is added here is looked at together: what nobody waits for any more goes without a timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Due(Generic[Item]):
    """`set_timer` is called with the time of the next look (`take`), whenever none is set."""

    def __init__(self, delay_ms: int, set_timer: Callable[[int], None]) -> None:
        self._delay_ms = delay_ms
        self._set_timer = set_timer
        #: In the order of their times; a timer is set exactly if there is something.
        self._items: deque[tuple[int, Item]] = deque()

    def add(self, item: Item, now_ms: int) -> None:
        at_ms = now_ms + self._delay_ms
        if not self._items:
            self._set_timer(at_ms)
        self._items.append((at_ms, item))

    def take(self, now_ms: int, is_awaited: Callable[[Item], bool]) -> Iterator[Item]:
        """The timer has fired: what is due and still awaited. Whoever gets one may add it again."""
        due: list[Item] = []
        items = self._items
        while items and (items[0][0] <= now_ms or not is_awaited(items[0][1])):
            at_ms, item = items.popleft()
            if at_ms <= now_ms:
                due.append(item)
        if items:
            self._set_timer(items[0][0])
        for item in due:
            if is_awaited(item):
                yield item
