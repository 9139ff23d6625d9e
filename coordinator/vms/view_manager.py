"""A view manager: propagates its share of a step. It keeps nothing that cannot be made again from the log.

It gets, for each level of a group, the change tables of the sources that fall to it, and gives back its part of the
change table of each view. What it needs beside them it asks for; the driver answers as of W0 and W1. Between two
pieces of work it asks for nothing: there the driver lets the writers go on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TypeAlias

from ...changetables.change_table import Change
from ...changetables.evaluators.choice import ROWS
from ...changetables.plan import Answers, Contribution, LookUp
from ...ltm.tables import ViewRows

#: Yields look-ups, or none for a pause; is sent the answers.
Working: TypeAlias = Generator[list[LookUp], Answers, list[tuple[int, list[Contribution]]]]
Share: TypeAlias = Mapping[str, Sequence[Change]]
#: How much the last step counts in the load.
LOAD_WEIGHT = 0.3
#: A piece is neither so small that pausing costs more than the work, nor so large that writers wait for long.
PIECE_ROWS_MIN = 50
PIECE_ROWS_MAX = 5_000
_ANYTHING: Sequence[Change] = (((), 1),)


class ViewManager:
    """One worker. `rows_count` and `busy_ms` say how much it did, `load` how busy it is now (share of time)."""

    __slots__ = ("busy_ms", "id", "load", "ltm", "piece_rows", "rows_count", "slots_count")

    def __init__(self, id: int, ltm: str | None, piece_rows: int) -> None:
        self.id = id
        #: The LTM whose subsystem feeds it, None while it is withdrawn.
        self.ltm = ltm
        #: Changed rows that it propagates before it pauses.
        self.piece_rows = piece_rows
        self.rows_count = 0
        self.slots_count = 0
        self.busy_ms = 0.0
        self.load = 0.0

    def stepped(self, busy_ms: float, duration_ms: float) -> None:
        """A step is over in which it worked for so long."""
        self.busy_ms += busy_ms
        self.load += LOAD_WEIGHT * (min(busy_ms / max(duration_ms, 0.001), 1.0) - self.load)

    def took(self, piece_ms: float, wanted_ms: float) -> None:
        """A piece of work took so long: the next one is made to take about what is wanted."""
        if piece_ms > 2 * wanted_ms:
            self.piece_rows = max(self.piece_rows // 2, PIECE_ROWS_MIN)
        elif piece_ms < wanted_ms / 2:
            self.piece_rows = min(self.piece_rows * 2, PIECE_ROWS_MAX)

    def work(
        self,
        views: Sequence[ViewRows],
        share: Share,
        changed: frozenset[str],
        whole: bool,
        measures: bool,
        asked: str | None = None,
    ) -> Working:
        """Its part of the change tables of the views of one level. `changed`: the sources that change in this step,
        also if this share has nothing of them. `whole`: it also does what cannot be divided by rows. `measures`: it
        may find out which evaluator costs less. `asked`: the evaluator that a user wants."""
        done: list[tuple[int, list[Contribution]]] = []
        for view in views:
            plan = view.plan
            combined: dict[bytes, Contribution] = {}
            if plan.kept.slice_of:
                # The one law that is not linear: it looks at the first rows before and after, once.
                mine: Share = {plan.kept.slice_of: _ANYTHING} if whole and plan.kept.slice_of in changed else {}
            else:
                mine = {name: share[name] for name in plan.sources if name in share}
            largest = max([len(rows) for rows in mine.values()], default=0)
            evaluator, rows_min = plan.evaluator_for_step(largest) if measures else (ROWS, 1)
            evaluator = evaluator if asked is None else asked
            for piece in _pieces(mine, max(self.piece_rows, rows_min)):
                self.rows_count += sum(len(rows) for rows in piece.values())
                for item in (yield from plan.propagate(piece, evaluator, changed)):
                    known = combined.get(item.key)
                    both = item if known is None else plan.combine(known, item)
                    if both is None:
                        del combined[item.key]
                    else:
                        combined[item.key] = both
                yield []
            if combined:
                done.append((view.view.id, list(combined.values())))
        self.slots_count += 1
        return done


def _pieces(share: Share, rows_max: int) -> Iterator[Share]:
    """A share in pieces of one source each: a sum of terms can be worked on in any order."""
    for name, rows in share.items():
        for first in range(0, len(rows), rows_max):
            yield {name: rows[first : first + rows_max]}
