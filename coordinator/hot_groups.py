"""Which rows of deferred views get the most contributions: a sample, for whoever looks at a view's status.

A contribution of a step already is the sum of what a slot did to one view row. It counts as often as its `_count` says
that rows came or went, and once if they only changed. Of many contributions of one slot some are looked at, which then
stand for the others; what is older counts less and less. So the cost of a step is bounded, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..changetables.plan import Contribution
from ..changetables.types import Value

#: Contributions of one slot that are looked at: about 20 us.
SAMPLE_CONTRIBUTIONS = 50
#: Rows of one view that are kept in mind; then, and after so many samples, all counts are halved.
ROWS_MAX = 1_000
SAMPLES_HALVED = 100
HOT_GROUPS_SHOWN = 5


class HotGroup(NamedTuple):
    """A view row by the values of its key, and about how many changed rows it got lately."""

    key: tuple[Value, ...]
    changes: int


class HotGroups:
    """By the id of a view."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[tuple[Value, ...], float]] = {}
        self._samples: dict[int, int] = {}

    def note(self, refreshed: Iterable[tuple[int, Sequence[Contribution]]]) -> None:
        """A slot made these contributions."""
        for view_id, contributions in refreshed:
            samples = self._samples[view_id] = self._samples.get(view_id, 0) + 1
            counts = self._counts.setdefault(view_id, {})
            stride = max(-(-len(contributions) // SAMPLE_CONTRIBUTIONS), 1)
            for item in contributions[samples % stride :: stride]:
                rows = item.delta[0] if item.delta else 1
                times = max(abs(rows), 1) if isinstance(rows, int) else 1
                counts[item.key_values] = counts.get(item.key_values, 0.0) + stride * times
            if len(counts) > ROWS_MAX or samples % SAMPLES_HALVED == 0:
                halved = {key: count / 2 for key, count in counts.items() if count >= 2 * stride}
                self._counts[view_id] = halved

    def top(self, view_id: int) -> tuple[HotGroup, ...]:
        """Those with the most, most first."""
        counts = list(self._counts.get(view_id, {}).items())
        best = sorted(counts, key=lambda item: item[1], reverse=True)[:HOT_GROUPS_SHOWN]
        return tuple(HotGroup(key, round(count)) for key, count in best)

    def keep(self, view_ids: Iterable[int]) -> None:
        """All other views are gone."""
        kept = set(view_ids)
        for gone in self._counts.keys() - kept:
            del self._counts[gone], self._samples[gone]
