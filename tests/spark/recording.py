"""A `Memory` that remembers what its plans were evaluated for, so that Spark can do many of them in one job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.propagation import Memory, Rows
from viewtide.changetables.algebra import Relation
from viewtide.changetables.evaluators.spark import Evaluation, Input, Listed, evaluate, looked_up
from viewtide.changetables.operators.join import Law, State
from viewtide.changetables.plan import Contribution, ViewPlan
from viewtide.changetables.schema import Table
from viewtide.changetables.types import Row
from viewtide.ltm.reading import same_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Recorded:
    """Evaluations and what the row evaluator gave, by view key."""

    evaluations: list[Evaluation] = field(default_factory=list)
    expected: list[dict[bytes, Contribution]] = field(default_factory=list)

    def add(self, evaluation: Evaluation, expected: dict[bytes, Contribution]) -> None:
        self.evaluations.append(evaluation)
        self.expected.append(expected)

    def some(self, step: int) -> Recorded:
        """One in so many."""
        return Recorded(self.evaluations[::step], self.expected[::step])

    def check(self, spark: SparkSession, small_rows_max: int) -> int:
        """Let Spark evaluate all of it in one job and compare. Returns how many contributions were equal."""
        found: list[dict[bytes, Contribution]] = [{} for _ in self.evaluations]
        for number, contributions in evaluate(spark, self.evaluations, small_rows_max):
            for item in contributions:
                assert item.key not in found[number], "one contribution per view key"
                found[number][item.key] = item
        for evaluation, mine, theirs in zip(self.evaluations, found, self.expected, strict=True):
            assert written(mine) == written(theirs), evaluation.plan.relation
            assert {key: item.key_values for key, item in mine.items()} == {
                key: item.key_values for key, item in theirs.items()
            }
        return sum(map(len, found))


def written(contributions: Mapping[bytes, Contribution]) -> dict[bytes, str]:
    """Deltas to the letter. Of a group whose key is written in several ways (1.0, 1.00), any may be its name."""
    return {key: repr(item.delta) for key, item in contributions.items()}


class RecordingMemory(Memory):
    """`recorded` gets the first contents of each view, and the change table of each view at each commit."""

    def __init__(self, tables: Iterable[Table], recorded: Recorded | None = None) -> None:
        super().__init__(tables)
        self.recorded = Recorded() if recorded is None else recorded
        self.records_commits = True

    def _create(self, name: str, relation: Relation) -> ViewPlan:
        plan = super()._create(name, relation)
        terms = [((part, source), Law.ONE_SOURCE, self._listed(table)) for part, source, table in plan.starts()]
        if terms:
            rows: dict[tuple[str, int], Input] = {
                (table, state): self._listed(table)
                for table, state in looked_up(plan, [(place, law) for place, law, _ in terms])
            }
            expected: dict[bytes, Contribution] = {}
            for part, source, table in plan.starts():
                shown = list(self.shown(table).values())
                _add(plan, expected, self.run(plan.contribute_from(part, source, shown)))
            self.recorded.add(Evaluation(plan, terms, rows), expected)
        return plan

    def _listed(self, table: str) -> Listed:
        return Listed([(row, 1) for row in self.shown(table).values()])

    def commit(self) -> dict[str, list[Contribution]]:
        before = self._all_shown()
        contributions = super().commit()
        if self.records_commits:
            after = self._all_shown()
            for name, rows in self.tables.views.items():
                if not rows.plan.kept.slice_of:
                    self._record(rows.plan, before, after, contributions.get(name, []))
        return contributions

    def _all_shown(self) -> dict[str, Rows]:
        return {name: dict(self.shown(name)) for name in self.stored}

    def _record(
        self,
        plan: ViewPlan,
        before: Mapping[str, Rows],
        after: Mapping[str, Rows],
        contributions: Sequence[Contribution],
    ) -> None:
        changes = {name: Listed(_net(before[name], after[name])) for name in plan.sources}
        changed = [name for name, listed in changes.items() if listed.changes]
        places = [(place, law) for place, laws in plan.changed_places(changed) for law in laws]
        if not places:
            return
        sources = {place: plan.kept.parts[place[0]].graph.sources[place[1]].table for place, _ in places}
        terms = [(place, law, changes[sources[place]]) for place, law in places]
        rows: dict[tuple[str, int], Input] = {
            (table, state): Listed([(row, 1) for row in _in_state(before[table], after[table], state)])
            for table, state in looked_up(plan, places)
        }
        self.recorded.add(Evaluation(plan, terms, rows), {item.key: item for item in contributions})


def _add(plan: ViewPlan, expected: dict[bytes, Contribution], contributions: Iterable[Contribution]) -> None:
    for item in contributions:
        known = expected.pop(item.key, None)
        both = item if known is None else plan.combine(known, item)
        if both is not None:
            expected[item.key] = both


def _net(before: Rows, after: Rows) -> list[tuple[Row, int]]:
    changes: list[tuple[Row, int]] = []
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if not same_row(old, new):
            changes += [(row, times) for row, times in ((old, -1), (new, 1)) if row is not None]
    return changes


def _in_state(before: Rows, after: Rows, state: int) -> list[Row]:
    if state == State.OLD:
        return list(before.values())
    if state == State.NEW:
        return list(after.values())
    if state == State.KEPT:
        return [row for key, row in before.items() if same_row(row, after.get(key))]
    return list({**after, **before}.values())
