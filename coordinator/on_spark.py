"""Views computed by Spark as of a timestamp, while writers go on.

Large tables in a directory are read by Spark's workers themselves, from the store, after a checkpoint. All other rows
that a plan needs are written to files in a directory of their own, which goes away with the job. What Spark gives are
contributions like any others. Nothing of a job that fails or is given up is anywhere but in that directory, so it can
be repeated.

Workers must be on this machine, or on machines that share its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..changetables.change_table import Change
from ..changetables.evaluators.spark_session import require_spark, spark_session
from ..changetables.keys import table_range
from ..changetables.operators.join import Law, State
from ..changetables.plan import Contribution, ViewPlan
from ..changetables.types import Row
from ..ltm.driver import Ltm
from ..ltm.reading import Reader, same_row
from ..ltm.tables import TableRows, Tables

if TYPE_CHECKING:
    from ..changetables.evaluators.spark import Input, Parts, Spooled

#: The rows of a table or of what a view shows, in the order of their keys.
Shown: TypeAlias = Callable[[str], Iterator[tuple[bytes, Row]]]
#: A table that workers read by themselves, None if it is too small for that, or cannot be read there.
InParts: TypeAlias = "Callable[[str], Parts | None]"

#: Cells below which the rows of a table are written to a file: every worker may get all of them then.
PARTS_CELLS_MIN = 100_000
#: Into so many parts a table is divided, for each task that can run at once.
PARTS_PER_TASK = 4


def nothing_in_parts(name: str) -> Parts | None:
    """All rows come from here."""
    return None


def contents(plan: ViewPlan, shown: Shown, in_parts: InParts = nothing_in_parts) -> Iterator[list[Contribution]]:
    """The sum, over all parts of a view, of what the rows of one of its sources give. `shown`: as of one moment.
    `in_parts`: what workers can read by themselves."""
    terms = [((part, source), Law.ONE_SOURCE, table) for part, source, table in plan.starts()]
    if terms:
        with _Spool(lambda table, _: (row for _, row in shown(table)), in_parts=in_parts) as spool:
            for _, contributions in spool.evaluate([(plan, terms)]):
                yield contributions


def change_tables(
    plans: Sequence[ViewPlan],
    share: Mapping[str, Sequence[Change]],
    changed: frozenset[str],
    old: Shown,
    new: Shown,
) -> list[list[Contribution]]:
    """What `propagate` of each plan gives for these changes, between two moments. All in one job."""
    evaluated = []
    for plan in plans:
        mine = {table for table in share if table in plan.sources}
        evaluated.append(
            (
                plan,
                [
                    (place, law, plan.kept.parts[place[0]].graph.sources[place[1]].table)
                    for place, laws in plan.changed_places(mine, changed)
                    for law in laws
                ],
            )
        )
    found: list[list[Contribution]] = [[] for _ in plans]
    if any(terms for _, terms in evaluated):
        with _Spool(lambda table, state: _in_state(old(table), new(table), state), share) as spool:
            for number, contributions in spool.evaluate(evaluated):
                found[number] += contributions
    return found


#: A term of a plan: its place, its law, and the table whose rows it goes through.
_Term: TypeAlias = tuple[tuple[int, int], Law, str]


class _Spool:
    """A directory with the rows that a job needs, each table and state once. `share`: what terms go through,
    by table; without it they go through all rows."""

    def __init__(
        self,
        rows: Callable[[str, int], Iterable[Row]],
        share: Mapping[str, Sequence[Change]] | None = None,
        in_parts: InParts = nothing_in_parts,
    ) -> None:
        require_spark()
        self._rows, self._share, self._in_parts = rows, share, in_parts
        self._directory = tempfile.TemporaryDirectory(prefix="viewtide-spark-")
        self._spooled: dict[tuple[str, int], Input] = {}
        self._changes: dict[str, Input] = {}

    def __enter__(self) -> _Spool:
        self._directory.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def evaluate(self, plans: Sequence[tuple[ViewPlan, Sequence[_Term]]]) -> Iterator[tuple[int, list[Contribution]]]:
        from ..changetables.evaluators.spark import Evaluation, evaluate, looked_up

        evaluations = [
            Evaluation(
                plan,
                [(place, law, self._input(table)) for place, law, table in terms],
                {
                    (table, state): self._looked_up(table, state)
                    for table, state in looked_up(plan, [(place, law) for place, law, _ in terms])
                },
            )
            for plan, terms in plans
        ]
        yield from evaluate(spark_session(), evaluations)

    def _input(self, table: str) -> Input:
        if self._share is None:
            return self._looked_up(table, State.OLD)
        if table not in self._changes:
            self._changes[table] = self._write(self._share[table])
        return self._changes[table]

    def _looked_up(self, table: str, state: int) -> Input:
        if (table, state) not in self._spooled:
            parts = self._in_parts(table)
            written = self._write((row, 1) for row in self._rows(table, state)) if parts is None else parts
            self._spooled[table, state] = written
        return self._spooled[table, state]

    def _write(self, changes: Iterable[Change]) -> Spooled:
        from ..changetables.evaluators.spark import spool

        return spool(Path(self._directory.name), changes)


def _in_state(old: Iterator[tuple[bytes, Row]], new: Iterator[tuple[bytes, Row]], state: int) -> Iterator[Row]:
    """What a look-up in this state sees; both are in the order of their keys."""
    if state == State.OLD:
        return (row for _, row in old)
    if state == State.NEW:
        return (row for _, row in new)
    pairs = _side_by_side(old, new)
    if state == State.KEPT:
        return (before for before, after in pairs if before is not None and same_row(before, after))
    return (after if before is None else before for before, after in pairs)  # type: ignore[misc]  # one of them is there


def _side_by_side(
    old: Iterator[tuple[bytes, Row]], new: Iterator[tuple[bytes, Row]]
) -> Iterator[tuple[Row | None, Row | None]]:
    """The rows of each key before and after."""
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before[0] < after[0]):
            assert before is not None, "one of them is there"
            yield before[1], None
            before = next(old, None)
        elif before is None or after[0] < before[0]:
            yield None, after[1]
            after = next(new, None)
        else:
            yield before[1], after[1]
            before, after = next(old, None), next(new, None)


def shown_at(ltm: Reader, tables: Tables, at: int) -> Shown:
    def shown(name: str) -> Iterator[tuple[bytes, Row]]:
        rows = tables.source(name)
        return ltm.shown(rows, *table_range(rows.table.id), at)

    return shown


def stored_at(ltm: Ltm, at: int, rows_count: int) -> InParts:
    """What workers on this machine can read from the store, if a checkpoint was made since `at` was pinned.
    `rows_count`: of the largest table, as far as somebody counted."""
    from ..changetables.evaluators.spark import Parts
    from ..ltm.stored_parts import stored_parts

    def in_parts(name: str) -> Parts | None:
        if not isinstance(ltm.tables.source(name), TableRows):
            return None
        parts_count = PARTS_PER_TASK * spark_session().sparkContext.defaultParallelism
        parts = stored_parts(ltm, name, at, parts_count, PARTS_CELLS_MIN)
        return None if parts is None else Parts(parts, rows_count)

    return in_parts
