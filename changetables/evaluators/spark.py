"""The Spark evaluator: contributions of many rows, computed by Spark with the plans' own code (`spark_tasks.py`).

    input -> read -> (union with what is looked up -> shuffle by key -> join) per round -> shuffle by group -> combine

One job evaluates any number of plans: a job costs some tenths of a second whatever it does. The driver holds neither
input nor result: rows come from files or DataFrames, contributions go to whoever iterates, partition by partition. If
that is given up, or fails, the job is cancelled; nothing of it is anywhere but here.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ..change_table import Change
from ..errors import DataError, Error, OperationalError
from ..operators.join import Law
from ..plan import Contribution, ViewPlan
from ..types import Row
from .spark_tasks import (
    FAILED,
    Combining,
    Job,
    Joining,
    Place,
    Reading,
    ReadingColumns,
    Running,
    table_of,
    with_one_nan,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows of a table up to which every worker gets all of them: a join without a shuffle. Each worker holds them.
SMALL_ROWS_MAX = 100_000
#: Input rows of one partition, about: what a task has to hold in a round.
PARTITION_ROWS = 250_000
#: Buckets per partition, so that partitions get about equally many rows.
BUCKETS_PER_PARTITION = 8
#: Rows of one spool file, and of one list in it.
FILE_ROWS = 100_000
LIST_ROWS = 5_000

_RECORD = "bucket int, kind int, number int, rows binary"
_INPUT = pa.schema([("number", pa.int32()), ("round", pa.int32()), ("path", pa.string()), ("rows", pa.binary())])


@dataclass(frozen=True)
class Spooled:
    """Rows in files that every worker can read: lists of changes, pickled. `rows_count`: how many."""

    paths: Sequence[str]
    rows_count: int


@dataclass(frozen=True)
class Parts:
    """Rows that workers get by calling: each part can be pickled, and gives lists of changes. `rows_count`: about."""

    parts: Sequence[Callable[[], Iterable[list[Change]]]]
    rows_count: int


@dataclass(frozen=True)
class Listed:
    """Rows in the memory of the driver."""

    changes: Sequence[Change]

    @property
    def rows_count(self) -> int:
        return len(self.changes)


@dataclass(frozen=True)
class Framed:
    """A DataFrame with the columns of a table. Its decimals must have the scale of their type."""

    frame: DataFrame
    rows_count: int


Input: TypeAlias = Spooled | Parts | Listed | Framed


@dataclass(frozen=True)
class Evaluation:
    """What one plan is to be evaluated for: terms with the changes of their source, and what can be looked up, by table
    and `State`."""

    plan: ViewPlan
    terms: Sequence[tuple[Place, Law, Input]]
    rows: Mapping[tuple[str, int], Input]

    def looked_up(self) -> set[tuple[str, int]]:
        """The tables and states that its terms look rows up in."""
        return looked_up(self.plan, [(place, law) for place, law, _ in self.terms])


def looked_up(plan: ViewPlan, terms: Iterable[tuple[Place, Law]]) -> set[tuple[str, int]]:
    """The tables, and the states of them, that terms look rows up in."""
    return {
        (table_of(plan, place, step), int(step.state))
        for place, law in terms
        for stage in plan.steps(place, law).stages
        for step in stage
    }


def spool(directory: Path, changes: Iterable[Change]) -> Spooled:
    """Write rows to files of bounded size in a directory."""
    rows, paths, rows_count = iter(changes), [], 0
    while some := list(islice(rows, LIST_ROWS)):
        path = directory / f"{uuid.uuid4().hex}.rows"
        with open(path, "wb") as file:
            written = 0
            while some:
                pickle.dump(some, file, pickle.HIGHEST_PROTOCOL)
                written += len(some)
                some = list(islice(rows, LIST_ROWS)) if written < FILE_ROWS else []
        paths.append(str(path))
        rows_count += written
    return Spooled(paths, rows_count)


@dataclass
class _Gathered:
    """The input of one round, -1 for the terms themselves."""

    local: list[tuple[int, int, str | None, bytes | None]] = field(default_factory=list)
    frames: list[tuple[int, DataFrame]] = field(default_factory=list)

    def add(self, number: int, round_number: int, given: Input) -> None:
        match given:
            case Spooled():
                self.local += [(number, round_number, path, None) for path in given.paths]
            case Listed():
                for first in range(0, len(given.changes), LIST_ROWS):
                    some = list(given.changes[first : first + LIST_ROWS])
                    self.local.append((number, round_number, None, pickle.dumps(some, pickle.HIGHEST_PROTOCOL)))
            case Parts():
                for part in given.parts:
                    self.local.append((number, round_number, None, pickle.dumps(part, pickle.HIGHEST_PROTOCOL)))
            case Framed():
                self.frames.append((number, given.frame))


def evaluate(
    session: SparkSession, evaluations: Sequence[Evaluation], small_rows_max: int = SMALL_ROWS_MAX
) -> Iterator[tuple[int, list[Contribution]]]:
    """Contributions, each with the number of its evaluation; at most one per view key, none that is zero.

    Raises DataError as the row evaluator does; if several rows are wrong, any of them is blamed. OperationalError: the
    job failed, and can be repeated."""
    small = _small(evaluations, small_rows_max)
    terms = [
        Running(number, place, law, _rounds(number, each.plan, place, law, small))
        for number, each in enumerate(evaluations)
        for place, law, _ in each.terms
    ]
    given = [input_ for each in evaluations for _, _, input_ in each.terms]
    context = session.sparkContext
    rows_count = sum(each.rows_count for each in given)
    partitions_count = max(context.defaultParallelism, -(-rows_count // PARTITION_ROWS))
    plans = [pickle.dumps(each.plan, pickle.HIGHEST_PROTOCOL) for each in evaluations]
    job = Job(plans, terms, small, partitions_count * BUCKETS_PER_PARTITION)
    rounds_count = max((len(term.rounds) for term in terms), default=0)
    gathered = _gathered(terms, evaluations, given, rounds_count)
    group = f"viewtide {uuid.uuid4().hex}"
    context.setJobGroup(group, f"viewtide: {', '.join(dict.fromkeys(each.plan.name for each in evaluations))}", True)
    held = context.broadcast(job)
    is_over = False
    try:
        frame = _read(session, held, -1, gathered[-1])
        for round_number in range(rounds_count):
            frame = frame.unionAll(_read(session, held, round_number, gathered[round_number]))
            frame = frame.repartition(partitions_count, "bucket").mapInArrow(Joining(held, round_number), _RECORD)
        frame = frame.repartition(partitions_count, "bucket").mapInArrow(Combining(held), _RECORD)
        for record in frame.toLocalIterator(prefetchPartitions=True):
            yield record.number, _contributions(evaluations, record)
        is_over = True
    except Error:
        raise
    except Exception as error:
        # Spark's own errors have no common class: those of the JVM come as they are.
        reason = str(error).strip().partition("\n")[0] or repr(error)
        raise OperationalError(f"the Spark job failed: {reason}", hint="see Spark's log, then do it again") from error
    finally:
        if not is_over:
            context.cancelJobGroup(group)
        context.setLocalProperty("spark.jobGroup.id", None)
        held.destroy()


def _contributions(evaluations: Sequence[Evaluation], record: object) -> list[Contribution]:
    number, kind, rows = record.number, record.kind, record.rows  # type: ignore[attr-defined]
    found = pickle.loads(rows)
    if kind == FAILED:
        raise DataError(found[0], hint=found[1])
    kinds = {type_.kind for _, type_, _ in (*evaluations[number].plan.key_columns,)}
    kinds |= {type_.kind for _, type_ in evaluations[number].plan.columns}
    if kinds & {"float", "decimal"}:
        return [Contribution(key, with_one_nan(values), with_one_nan(delta)) for key, values, delta in found]
    return [Contribution(*item) for item in found]


def _small(evaluations: Sequence[Evaluation], small_rows_max: int) -> dict[tuple[int, str, int], list[Row]]:
    """What every worker gets whole: small tables, and those that a term asks for as a whole."""
    small: dict[tuple[int, str, int], list[Row]] = {}
    for number, each in enumerate(evaluations):
        whole = {
            (table_of(each.plan, place, step), int(step.state))
            for place, law, _ in each.terms
            for stage in each.plan.steps(place, law).stages
            for step in stage
            if step.whole
        }
        for place in each.looked_up():
            given = each.rows[place]
            if place in whole or (given.rows_count <= small_rows_max and not isinstance(given, Framed | Parts)):
                small[number, *place] = _all_rows(given)
    return small


def _all_rows(given: Input) -> list[Row]:
    match given:
        case Listed():
            return [row for row, _ in given.changes]
        case Spooled():
            return [row for path in given.paths for row in _rows_in(path)]
        case Parts():
            return [row for part in given.parts for some in part() for row, _ in some]
        case Framed():
            raise OperationalError("a table that is needed as a whole is given as a DataFrame", hint="give its rows")


def _rows_in(path: str) -> Iterator[Row]:
    with open(path, "rb") as file:
        while file.peek(1):
            yield from (row for row, _ in pickle.load(file))


def _rounds(
    number: int, plan: ViewPlan, place: Place, law: Law, small: Mapping[tuple[int, str, int], object]
) -> list[tuple[int, int]]:
    """The look-ups of a term into tables that are not small."""
    return [
        (stage_number, step_number)
        for stage_number, stage in enumerate(plan.steps(place, law).stages)
        for step_number, step in enumerate(stage)
        if (number, table_of(plan, place, step), int(step.state)) not in small
    ]


def _gathered(
    terms: Sequence[Running], evaluations: Sequence[Evaluation], given: Sequence[Input], rounds_count: int
) -> dict[int, _Gathered]:
    """The input of each round."""
    gathered = {round_number: _Gathered() for round_number in range(-1, rounds_count)}
    for number, (running, input_) in enumerate(zip(terms, given, strict=True)):
        gathered[-1].add(number, -1, input_)
        evaluation = evaluations[running.evaluation]
        for round_number, (stage, place) in enumerate(running.rounds):
            step = evaluation.plan.steps(running.place, running.law).stages[stage][place]
            table = (table_of(evaluation.plan, running.place, step), int(step.state))
            gathered[round_number].add(number, round_number, evaluation.rows[table])
    return gathered


def _read(session: SparkSession, held: object, round_number: int, gathered: _Gathered) -> DataFrame:
    columns = list(zip(*gathered.local, strict=True)) if gathered.local else [(), (), (), ()]
    local = pa.table([pa.array(column, each.type) for column, each in zip(columns, _INPUT, strict=True)], schema=_INPUT)
    frame = session.createDataFrame(local).mapInArrow(Reading(held), _RECORD)  # type: ignore[arg-type,unused-ignore]
    for number, each in gathered.frames:
        reading = ReadingColumns(held, number, round_number)  # type: ignore[arg-type]
        frame = frame.unionAll(each.mapInArrow(reading, _RECORD))
    return frame
