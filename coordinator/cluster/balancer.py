"""Spreads key ranges over the LTMs by what is asked of them. In the leader; no I/O, no clock.

LTMs tell how many requests they had, and the keys of some of them: each stands for as many requests as are told for one
key. So it is known what every range has to do, and at which key it could be cut. From the busiest LTM a range goes to
the idlest one, one at a time: the largest of those that leave the busiest one above the idlest one, so that it does not
have to come back. If all of them are too large, the busiest one is cut where about half of its requests are below, but
only where both sides will have something to do: a single key cannot be shared, and of rows that are added at the end
of a table nobody asks any more when they are on the lower side.

Nothing is done while keys move, before everybody has told enough since the last change, where there is little to do at
all, and where the two do not differ by much.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...changetables.keys import TABLE_PREFIX_BYTES
from ...ltm.cluster.messages import MoveRange, Split
from ...ltm.key_range import RangeMap


class BalanceSettings(NamedTuple):
    #: What was told is looked at for so long, after the last change of the map by whomever.
    measure_ms: int = 5_000
    #: Requests per second of all LTMs: where there are fewer, it does not pay to move keys.
    rate_min: float = 200.0
    #: The busiest LTM has so many times as much to do as the idlest one, or nothing is done.
    ratio_min: float = 1.5
    #: Keys that are needed to tell where a range is cut, and how many ranges there may be.
    keys_min: int = 32
    ranges_max: int = 1_000


USUAL = BalanceSettings()
#: What is noted with every change.
BALANCE = "balance"
#: A range may take so much of the difference with it: with more, it might come back.
MOVED_MAX = 0.5
#: One that takes less than that is not worth it as long as another one can be cut.
MOVED_MIN = 0.1
#: Where a range is cut, each side has so much of what was asked last.
SIDE_MIN = 0.1
#: Keys of one life that are kept in mind, while nobody may act on them: many times as many as are told in one go.
KEYS_MAX = 4_096


class _Asked(NamedTuple):
    """A key, how many requests it stands for, and in which report it came."""

    key: bytes
    weight: float
    report: int


class _Told:
    """Of one life since the last change: requests, and keys of some of them."""

    def __init__(self) -> None:
        self.requests = 0
        self.reports = 0
        self.keys: list[_Asked] = []


class Balancer:
    """`told` what LTMs report, it `advises` what to change in the map."""

    def __init__(self, settings: BalanceSettings = USUAL) -> None:
        self._settings = settings
        self._told: dict[str, _Told] = {}
        self._since_ms = 0
        self._of: tuple[object, ...] = ()

    def told(self, life: str, requests: int, keys: Sequence[bytes]) -> None:
        known = self._told.setdefault(life, _Told())
        known.requests += requests
        known.reports += 1
        known.keys += [_Asked(key, requests / len(keys), known.reports) for key in keys]
        del known.keys[:-KEYS_MAX]

    def advise(
        self, ranges: RangeMap, lives: Sequence[str], now_ms: int, fixed: Collection[int] = ()
    ) -> Split | MoveRange | None:
        """`lives` may answer; `fixed` are the ids of tables whose keys stay where they are. The numbers of commands are
        0."""
        settings = self._settings
        known = (ranges.starts, ranges.logs, ranges.moves, tuple(lives))
        if known != self._of:
            self._of = known
            self._begin(now_ms)
            return None
        passed_ms = now_ms - self._since_ms
        if ranges.moves or passed_ms < settings.measure_ms:
            return None
        told = {life: self._told.get(life, _Told()) for life in lives}
        self._begin(now_ms)
        requests = sum(each.requests for each in told.values())
        if len(lives) < 2 or requests * 1_000 < settings.rate_min * passed_ms:
            return None
        if not all(each.reports for each in told.values()):
            return None
        busiest = max(lives, key=lambda life: (told[life].requests, life))
        idlest = min(lives, key=lambda life: (told[life].requests, life))
        if told[busiest].requests < settings.ratio_min * told[idlest].requests:
            return None
        target = next((log for log, host in ranges.hosts.items() if host.life == idlest), None)
        if target is None:
            return None
        difference = told[busiest].requests - told[idlest].requests
        return self._relieve(ranges, busiest, target, told[busiest], difference, fixed)

    def _begin(self, now_ms: int) -> None:
        self._told.clear()
        self._since_ms = now_ms

    def _relieve(
        self, ranges: RangeMap, life: str, target: str, told: _Told, difference: int, fixed: Collection[int]
    ) -> Split | MoveRange | None:
        asked: dict[int, list[_Asked]] = {}
        for each in told.keys:
            if fixed and int.from_bytes(each.key[:TABLE_PREFIX_BYTES], "big") in fixed:
                continue
            place = bisect_right(ranges.starts, each.key) - 1
            host = ranges.hosts.get(ranges.logs[place])
            if host is not None and host.life == life:
                asked.setdefault(place, []).append(each)
        loads = {place: _weight(some) for place, some in asked.items()}
        light = [place for place, load in loads.items() if load <= MOVED_MAX * difference]
        place = max(light, key=lambda each: (loads[each], each), default=-1)
        if light and loads[place] >= MOVED_MIN * difference:
            stop = ranges.starts[place + 1] if place + 1 < len(ranges.starts) else b""
            return MoveRange(0, ranges.starts[place], stop, target)
        heavy = sorted((place for place in loads if place not in light), key=lambda each: (-loads[each], each))
        for place in heavy:
            cut = self._cut(asked[place], told.reports)
            if cut is not None and len(ranges.starts) < self._settings.ranges_max:
                return Split(0, cut)
        return None

    def _cut(self, asked: list[_Asked], last_report: int) -> bytes | None:
        """The key at which about half of the requests are below; None: that would not divide what there is to do."""
        if len(asked) < self._settings.keys_min:
            return None
        ordered = sorted(asked)
        half = _weight(ordered) / 2
        below, cuts = ordered[0].weight, []
        for before, each in pairwise(ordered):
            if each.key > before.key:
                cuts.append((abs(below - half), each.key))
            below += each.weight
        if not cuts:
            return None  # it is always the same key
        _, cut = min(cuts)
        last = [each for each in asked if each.report == last_report]
        low = _weight([each for each in last if each.key < cut])
        return cut if SIDE_MIN * _weight(last) <= min(low, _weight(last) - low) > 0 else None


def _weight(asked: Sequence[_Asked]) -> float:
    return sum(each.weight for each in asked)
