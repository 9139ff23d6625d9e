"""The network: per direction of each pair of processes, a link with delays, losses, duplicates and partitions.

A healthy link is as a connection is: it keeps the order. Reordering, loss and late duplicates are conditions of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from .streams import Streams

#: What a blocked link keeps for the time after, as the queue of a broken connection does; beyond it, all is lost.
KEPT_MESSAGES_MAX = 1_000
#: Within a process, a message still takes a moment: it never overtakes what is being handled.
LOOPBACK_US = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """How links behave. The ratios are per message and must not sum up to more than 1."""

    delay_us_min: int = 150
    delay_us_max: int = 1_500
    #: Some messages take up to this long instead.
    tail_ratio: float = 0.005
    tail_us_max: int = 20_000
    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    #: The second copy comes up to this much later.
    duplicate_us_max: int = 3_000_000
    #: A reordered message does not wait for those before it.
    reorder_ratio: float = 0.0
    #: Of the messages sent into a partition, how many come after it instead of never.
    kept_ratio: float = 0.3


HEALTHY = Conditions()


@dataclass(slots=True)
class Link:
    """One direction. `blocked` and `slow` count the faults that are on it, because faults overlap."""

    source: str
    destination: str
    random: Random
    blocked: int = 0
    slow: int = 0
    lossy: int = 0
    latest_us: int = 0
    kept: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return self.blocked == 0


#: A slow link's delays are so many times longer, a lossy one loses this part of its messages.
SLOW_FACTOR = 40
LOSSY_RATIO = 0.3

#: What the network calls to let something arrive: the time, and the message as it was given.
Arrive = Callable[[int, tuple[object, ...]], None]


class Network:
    """Decides when, how often and whether a message arrives; `schedule(time_us, message)` makes it so."""

    def __init__(self, streams: Streams, schedule: Arrive) -> None:
        self._streams = streams
        self._schedule = schedule
        self._links: dict[tuple[str, str], Link] = {}
        self.conditions = HEALTHY
        #: Conditions of single directions, instead of the common ones.
        self.special: dict[tuple[str, str], Conditions] = {}
        self.sent = self.lost = self.blocked = self.kept = self.duplicated = self.reordered = 0

    def link(self, source: str, destination: str) -> Link:
        link = self._links.get((source, destination))
        if link is None:
            random = self._streams[f"link {source} > {destination}"]
            link = self._links[source, destination] = Link(source, destination, random)
        return link

    def send(self, now_us: int, source: str, destination: str, message: tuple[object, ...]) -> None:
        self.sent += 1
        if source == destination:
            self._schedule(now_us + LOOPBACK_US, message)
            return
        link = self._links.get((source, destination)) or self.link(source, destination)
        conditions = self.special.get((source, destination), self.conditions) if self.special else self.conditions
        random = link.random.random
        if link.blocked:
            self._into_partition(link, conditions, message)
            return
        fate = random()
        loss = LOSSY_RATIO if link.lossy else conditions.loss_ratio
        if fate < loss:
            self.lost += 1
            return
        fate -= loss
        if fate < conditions.duplicate_ratio:
            self.duplicated += 1
            again_us = now_us + delay_us(link, conditions) + int(random() * conditions.duplicate_us_max)
            self._schedule(again_us, message)
            fate = 1.0
        at_us = now_us + delay_us(link, conditions)
        if fate - conditions.duplicate_ratio < conditions.reorder_ratio:
            self.reordered += 1
            self._schedule(now_us + int(random() * conditions.tail_us_max) + 1, message)
            return
        if at_us < link.latest_us:
            at_us = link.latest_us
        link.latest_us = at_us
        self._schedule(at_us, message)

    def _into_partition(self, link: Link, conditions: Conditions, message: tuple[object, ...]) -> None:
        if link.random.random() < conditions.kept_ratio and len(link.kept) < KEPT_MESSAGES_MAX:
            self.kept += 1
            link.kept.append(message)
        else:
            self.blocked += 1

    def block(self, pairs: Iterable[tuple[str, str]]) -> None:
        for source, destination in pairs:
            self.link(source, destination).blocked += 1

    def unblock(self, now_us: int, pairs: Iterable[tuple[str, str]]) -> None:
        """What was kept comes now, in its order, unless another fault still blocks the link."""
        for source, destination in pairs:
            link = self.link(source, destination)
            link.blocked -= 1
            if link.blocked == 0:
                kept, link.kept = link.kept, []
                for message in kept:
                    link.latest_us = max(link.latest_us, now_us + delay_us(link, self.conditions))
                    self._schedule(link.latest_us, message)

    def reachable(self, one: str, other: str) -> bool:
        """Both directions are open."""
        return self.link(one, other).open and self.link(other, one).open


def delay_us(link: Link, conditions: Conditions) -> int:
    random = link.random.random
    part = random()
    if part < conditions.tail_ratio:
        delay = conditions.delay_us_min + int(random() * conditions.tail_us_max)
    else:
        delay = conditions.delay_us_min + int((conditions.delay_us_max - conditions.delay_us_min) * part * part)
    return delay * SLOW_FACTOR if link.slow else delay
