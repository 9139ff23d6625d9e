"""What must hold of deferred views: each is its definition at every watermark, whatever happened meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import cast

from viewtide.changetables.keys import TABLE_PREFIX_BYTES
from viewtide.changetables.types import Row
from viewtide.coordinator.timestamps import to_ms
from viewtide.coordinator.two_phase.messages import Submit
from viewtide.coordinator.vms.groups import Group, groups_of
from viewtide.coordinator.vms.step_rows import SLOT, STEPS, STEPS_ID, WATERMARK, step_of, watermark_key, watermark_of
from viewtide.ltm.two_phase.messages import TxId

from .checkers import Checker
from .commit_checkers import Parts, Replay, Seen
from .model import Cells, Model
from .trace import Event
from .workload import tables
from .world import World

#: Transactions of view managers and schedulers have higher numbers than those of clients.
SYSTEM_TX = 1 << 60
#: After healing, a watermark is behind by the interval and so much at most.
LAG_MS_MAX = 1_500

Commits = dict[TxId, tuple[int, Parts]]


def groups() -> dict[int, Group]:
    return {group.key: group for group in groups_of(tables())}


class ViewsReplay(Replay):
    """Beside what holds of all transactions: watermarks only grow, slots are refreshed once, and the whole view is
    right at every watermark that was ever published."""

    def _still_so(self, model: Model, submit: Submit, based_on: dict[tuple[str, int], list[Seen]]) -> None:
        if submit.tx_id[0] < SYSTEM_TX:
            super()._still_so(model, submit, based_on)
            return
        for (_, at), reads in based_on.items():
            for read in reads if at == submit.snapshot else ():
                found = dict(zip(read.question.keys, read.answer.rows, strict=True))
                for cell in submit.seen:
                    if cell in found and found[cell][1] != model.rows[STEPS].get(cell):
                        raise self.violation(
                            f"{submit.tx_id} read {found[cell][1]}, which is {model.rows[STEPS].get(cell)}",
                            submit.tx_id,
                        )

    def is_owner(self, cell: bytes, log: str) -> bool:
        # The rows of steps are where the scenario wants them.
        return cell[:TABLE_PREFIX_BYTES] == bytes(TABLE_PREFIX_BYTES) or super().is_owner(cell, log)

    def finish(self) -> None:
        super().finish()
        commits = self._atomic()
        published = self._watermarks(commits)
        self._slots(commits)
        self._views(commits, published)

    def _step_rows(self, commits: Commits, kind: int) -> list[tuple[int, TxId, Row | None, Row | None]]:
        """What became of the rows of one kind, in the order of commits."""
        found = []
        for tx_id, (commit_ts, parts) in commits.items():
            for part in parts.values():
                for cell, old, new in part.writes:
                    row = old if new is None else new
                    if int.from_bytes(cell[:TABLE_PREFIX_BYTES], "big") == STEPS_ID and cast(Row, row)[1] == kind:
                        found.append((commit_ts, tx_id, old, new))
        return sorted(found, key=lambda item: item[:2])

    def _watermarks(self, commits: Commits) -> list[tuple[int, int]]:
        """(W1, group), in order."""
        published: list[tuple[int, int]] = []
        for commit_ts, tx_id, old, new in self._step_rows(commits, WATERMARK):
            step = step_of(new)
            if step is None:
                raise self.violation(f"{tx_id} removed a watermark", tx_id)
            if step.w0 != watermark_of(old) or not step.w0 < step.w1 < commit_ts:
                raise self.violation(f"{tx_id} published {step} at {commit_ts} after {old}", tx_id)
            published.append((step.w1, step.group))
        self.traffic["watermarks"] += len(published)
        return sorted(published)

    def _slots(self, commits: Commits) -> None:
        """Every transaction that refreshes at a version of its own wrote the row of one slot, or removed it: then it
        took back what another one had added."""
        inserted: Counter[tuple[object, ...]] = Counter()
        removed: Counter[tuple[object, ...]] = Counter()
        writers: dict[TxId, int] = Counter()
        for _, tx_id, old, new in self._step_rows(commits, SLOT):
            if new is not None and old is None:
                inserted[new[:5]] += 1
                writers[tx_id] += 1
            elif old is not None and new is None and self.submits[tx_id][1].at:
                removed[old[:5]] += 1
                writers[tx_id] += 1
        for slot, times in inserted.items():
            self.traffic["slots"] += 1
            if times != 1:
                raise self.violation(f"slot {slot} was refreshed {times} times")
            if removed[slot] > 1:
                raise self.violation(f"slot {slot} was taken back {removed[slot]} times")
        for tx_id in commits:
            if self.submits[tx_id][1].at and writers[tx_id] != 1:
                raise self.violation(f"{tx_id} refreshed {writers[tx_id]} slots", tx_id)

    def _views(self, commits: Commits, published: list[tuple[int, int]]) -> None:
        model = self.model()
        order = sorted((ts, tx_id) for tx_id, (ts, _) in commits.items())
        place = 0
        for w1, group in published:
            while place < len(order) and order[place][0] <= w1:
                self.advance(model, order[place][0])
                model.apply(self.submits[order[place][1]][1], order[place][0])
                place += 1
            self.advance(model, w1)
            why = model.views_differ(self._stored_views(group, w1))
            if why:
                raise self.violation(f"group {group} at its watermark {w1}: {why}", w1)

    def _stored_views(self, group: int, w1: int) -> dict[str, Cells]:
        names = {view.view.id: view.view.name for view in groups()[group].views}
        stored: dict[str, Cells] = {name: {} for name in names.values()}
        for cell, row in self.cells_at(w1).items():
            view_id = int.from_bytes(cell[:TABLE_PREFIX_BYTES], "big")
            if view_id in names:
                stored[names[view_id]][cell] = row
        return stored


class Lag(Checker):
    """When all is healed, every watermark comes after its interval, and soon."""

    kinds = ("published",)

    def __init__(self, world: World, replay: Replay, clock: str) -> None:
        """`clock`: whose clock tells how late it is."""
        super().__init__()
        self._world, self._replay, self._clock = world, replay, clock

    def observe(self, event: Event) -> None:
        self.traffic["publications"] += 1

    def converged(self) -> str:
        now_ms = self._world.nodes[self._clock].clock.now_ms(self._world.now_us)
        for key, group in groups().items():
            assert group.mode.interval_ms is not None
            lag_ms = now_ms - to_ms(watermark_of(self.newest(watermark_key(key))))
            if lag_ms > group.mode.interval_ms + LAG_MS_MAX:
                return f"{group.names} are {lag_ms} ms behind"
        return ""

    def newest(self, cell: bytes) -> Row | None:
        return self._replay.cells_at(1 << 62).get(cell)
