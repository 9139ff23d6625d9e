"""What runs in Spark's Python workers: terms of plans over partitions of their input, with the plans' own code.

    read     rows of a source -> its term, as far as it goes      | rows that will be looked up -> keyed
    join     round by round: rows and what they look up meet in the bucket of the key; the term goes on
    combine  what terms have collected meets in the bucket of the view key: contributions

Spark only moves pickled lists of rows between buckets, so values, sums and errors are the row evaluator's. A look-up
into a small table needs no round: every worker has the table. A term has as many rounds as it has look-ups into large
ones, one after the other.

Everything between two tasks is a record of SCHEMA: a bucket, what kind of rows these are, whose, and the rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast
from zlib import crc32

import pyarrow as pa

from ..change_table import Change
from ..errors import DataError
from ..numbers import DECIMAL_NAN
from ..operators.join import KeyMemo, Law, LookUp, Step, Term, key_encoder
from ..plan import Asking, ViewPlan
from ..schema import Table
from ..types import NAN, Row, Type, Value
from .vectors import Batch

#: Kinds of rows. LEFT: partly joined rows with the keys that they look up; RIGHT: rows under the keys by which they are
#: looked up; GROUPS: what a term has collected, at the end the contributions; FAILED: an error instead of a result.
LEFT, RIGHT, GROUPS, FAILED = range(4)
SCHEMA = pa.schema([("bucket", pa.int32()), ("kind", pa.int32()), ("number", pa.int32()), ("rows", pa.binary())])
#: Rows that a task holds before it gives them to Spark: some megabytes.
HELD_ROWS_MAX = 50_000
#: Groups that a term collects before they are given to Spark. More of them make fewer repeated groups.
HELD_GROUPS_MAX = 100_000
#: Contributions in one record of the result: what the driver applies at once.
RESULT_ROWS_MAX = 500

Place: TypeAlias = tuple[int, int]
#: A row that was joined so far, its keys for each step of the stage, and what was found for the first of them.
_Partial: TypeAlias = tuple[Row, tuple[bytes, ...], tuple[object, ...]]
_Batches: TypeAlias = Iterable[pa.RecordBatch]


class Holder(Protocol):
    """A broadcast variable of Spark."""

    @property
    def value(self) -> Job: ...


@dataclass(frozen=True)
class Running:
    """One term of one evaluation. `rounds`: its look-ups that need a round: (stage, step in it)."""

    evaluation: int
    place: Place
    law: Law
    rounds: Sequence[tuple[int, int]]


@dataclass
class Job:
    """Everything that a task has to know. `plans` are pickled: workers compile those that they meet. `small`: the
    rows of tables that every worker has, by evaluation, table and state. `ready`: what this worker has compiled."""

    plans: Sequence[bytes]
    terms: Sequence[Running]
    small: dict[tuple[int, str, int], list[Row]]
    buckets_count: int
    ready: dict[tuple[str, int], object] = field(default_factory=dict)

    def plan(self, evaluation: int) -> ViewPlan:
        found = self.ready.get(("plan", evaluation))
        if found is None:
            found = self.ready["plan", evaluation] = pickle.loads(self.plans[evaluation])
        return cast(ViewPlan, found)

    def term(self, number: int) -> _Term:
        found = self.ready.get(("term", number))
        if found is None:
            found = self.ready["term", number] = _Term(self, number)
        return cast(_Term, found)

    def bucket(self, key: bytes) -> int:
        # Python's own hash differs between processes.
        return crc32(key) % self.buckets_count


def table_of(plan: ViewPlan, place: Place, step: Step) -> str:
    return plan.kept.parts[place[0]].graph.sources[step.source].table


class _Term:
    """A term, ready to run in this worker."""

    def __init__(self, job: Job, number: int) -> None:
        running = job.terms[number]
        self.number, self.evaluation, self._job = number, running.evaluation, job
        self.plan = plan = job.plan(running.evaluation)
        self.place, self.law = running.place, running.law
        self.planned: Term = plan.steps(running.place, running.law)
        self.functions = plan.staged(running.place, running.law)
        self.rounds = running.rounds
        self.anti = self._source.anti
        self._found: dict[tuple[int, int], dict[bytes, object]] = {}

    @property
    def _source(self) -> SourceLike:
        sources = self.plan.kept.parts[self.place[0]].graph.sources
        return cast(SourceLike, sources[self.place[1]])

    @property
    def table(self) -> Table:
        return self.plan.tables[self._source.table]

    def changes(self, rows: Sequence[Change]) -> Sequence[Change]:
        """Those that the law is about; of an anti source, its complement changes."""
        if self.anti:
            rows = [(row, -times) for row, times in rows]
        if self.law == Law.ONE_SOURCE:
            return rows
        sign = 1 if self.law == Law.ADDED else -1
        return [change for change in rows if change[1] * sign > 0]

    def step(self, at: tuple[int, int]) -> Step:
        return self.planned.stages[at[0]][at[1]]

    def keyed(self, at: tuple[int, int]) -> Callable[[Row], bytes]:
        """The key by which a step looks a row of its table up."""
        step = self.step(at)
        table = self.plan.tables[table_of(self.plan, self.place, step)]
        memo, columns = KeyMemo(key_encoder(table, step), single=len(step.columns) == 1), step.columns
        if len(columns) == 1:
            return lambda row: memo[row[columns[0]]]
        return lambda row: memo[tuple(row[column] for column in columns)]

    def answers(self, at: tuple[int, int], keys: Iterable[bytes]) -> list[object]:
        """From a small table."""
        step = self.step(at)
        rows = self._job.small[self.evaluation, table_of(self.plan, self.place, step), int(step.state)]
        if step.whole:
            return [rows for _ in keys]
        found = self._found.get(at)
        if found is None:
            found = self._found[at] = indexed(step, ((self.keyed(at)(row), row) for row in rows))
        return answers_of(step, found, keys)


class SourceLike(Protocol):
    table: str
    anti: bool


def indexed(step: Step, rows: Iterable[tuple[bytes, Row]]) -> dict[bytes, object]:
    if step.by_key:
        return dict(rows)
    found: dict[bytes, list[Row]] = {}
    for key, row in rows:
        found.setdefault(key, []).append(row)
    return cast("dict[bytes, object]", found)


def answers_of(step: Step, found: dict[bytes, object], keys: Iterable[bytes]) -> list[object]:
    nothing: object = None if step.by_key else ()
    return [found.get(key, nothing) for key in keys]


# --- records ---


class _Records:
    """Collects rows by bucket and gives them away as record batches."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int], list[object]] = {}
        self._count = 0

    def add(self, bucket: int, kind: int, number: int, row: object) -> None:
        self._rows.setdefault((bucket, kind, number), []).append(row)
        self._count += 1

    def taken(self, *, all_of_them: bool = False) -> Iterator[pa.RecordBatch]:
        if self._rows and (all_of_them or self._count >= HELD_ROWS_MAX):
            places = list(self._rows)
            blobs = [pickle.dumps(rows, pickle.HIGHEST_PROTOCOL) for rows in self._rows.values()]
            self._rows, self._count = {}, 0
            yield records([(*place, blob) for place, blob in zip(places, blobs, strict=True)])


def records(rows: Sequence[tuple[int, int, int, bytes]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    arrays = [pa.array(column, each.type) for column, each in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def failure(number: int, error: DataError) -> pa.RecordBatch:
    return records([(0, FAILED, number, pickle.dumps((error.message, error.hint)))])


class Loaded:
    """Unpickles rows, with the engine's own NaN in them: dicts find it by identity. `types`: those of the values."""

    def __init__(self, types: Iterable[Type]) -> None:
        self._places = [place for place, each in enumerate(types) if each.kind in ("float", "decimal")]

    def row(self, row: Row) -> Row:
        return with_one_nan(row) if any(row[place] != row[place] for place in self._places) else row

    def rows(self, rows: list[Row]) -> list[Row]:
        return [self.row(row) for row in rows] if self._places else rows

    def changes(self, rows: list[Change]) -> list[Change]:
        return [(self.row(row), times) for row, times in rows] if self._places else rows


def with_one_nan(row: Row) -> Row:
    return tuple(map(_with_one_nan, row))


def _with_one_nan(value: Value) -> Value:
    if isinstance(value, float):
        return value if value == value else NAN
    # A Decimal that is a NaN is not equal to itself; nothing else is.
    return value if value == value else DECIMAL_NAN


# --- a term on its way ---


class _Run:
    """Runs one term in one task. What it collects it gives away as groups, what it cannot answer as rows."""

    def __init__(self, job: Job, number: int, out: _Records) -> None:
        self._job, self.term, self._out = job, job.term(number), out
        self.groups: dict[Row, object] = {}

    def start(self, rows: Sequence[Change]) -> None:
        self._go_on(-1, self.term.functions[0](self.term.changes(rows), self.groups))

    def columns(self, batch: pa.RecordBatch) -> None:
        """Rows in Arrow arrays, of a term that needs no round, by the columns evaluator."""
        asking: Asking[None] = self.term.plan.collect_columns(self.term.place, batch, self.groups)
        answers: list[Sequence[object]] | None = None
        while True:
            try:
                wanted = next(asking) if answers is None else asking.send(answers)
            except StopIteration:
                return
            answers = [self._answer(look_up) for look_up in wanted]

    def _answer(self, look_up: LookUp) -> list[object]:
        for at, stage in enumerate(self.term.planned.stages):
            for place, step in enumerate(stage):
                index = step.index.id if step.index else None
                same = table_of(self.term.plan, self.term.place, step) == look_up.table and step.state == look_up.state
                if same and (step.whole or (index == look_up.index and step.by_key == (look_up.index is None))):
                    return self.term.answers((at, place), look_up.keys)
        raise AssertionError("a look-up is a step of the term")

    def join(self, round_number: int, partials: Sequence[_Partial], found: dict[bytes, object]) -> None:
        """What was looked up in a round is there."""
        stage, place = self.term.rounds[round_number]
        step = self.term.step((stage, place))
        keys = (keys[place] for _, keys, _ in partials)
        answers = answers_of(step, found, keys)
        now = [(row, keys, (*known, answer)) for (row, keys, known), answer in zip(partials, answers, strict=True)]
        following = round_number + 1
        if following < len(self.term.rounds) and self.term.rounds[following][0] == stage:
            self._send(following, now)
        else:
            self._answered(stage, now)

    def _go_on(self, stage: int, result: tuple[list[Row], tuple[list[bytes], ...]] | None) -> None:
        """After a stage: look up what can be looked up here, else leave it to the next round."""
        while result is not None and result[0]:
            stage += 1
            rows, keys = result
            waiting = [number for number, at in enumerate(self.term.rounds) if at[0] == stage]
            if waiting:
                self._send(
                    waiting[0], [(row, each, ()) for row, each in zip(rows, zip(*keys, strict=True), strict=True)]
                )
                return
            answers = [self.term.answers((stage, place), each) for place, each in enumerate(keys)]
            result = self.term.functions[stage + 1](rows, answers, self.groups)

    def _answered(self, stage: int, partials: Sequence[_Partial]) -> None:
        """All rounds of a stage are over."""
        shuffled = [place for at, place in self.term.rounds if at == stage]
        answers: list[Sequence[object]] = []
        for place in range(len(self.term.planned.stages[stage])):
            if place in shuffled:
                number = shuffled.index(place)
                answers.append([known[number] for _, _, known in partials])
            else:
                answers.append(self.term.answers((stage, place), [keys[place] for _, keys, _ in partials]))
        rows = [row for row, _, _ in partials]
        self._go_on(stage, self.term.functions[stage + 1](rows, answers, self.groups))

    def _send(self, round_number: int, partials: Iterable[_Partial]) -> None:
        place, number = self.term.rounds[round_number][1], self.term.number
        for partial in partials:
            self._out.add(self._job.bucket(partial[1][place]), LEFT, number, partial)

    def give(self, *, all_of_them: bool = False) -> None:
        """Give away what was collected."""
        if not self.groups or not (all_of_them or len(self.groups) >= HELD_GROUPS_MAX):
            return
        encode, bucket = self.term.plan.keys.encode_short, self._job.bucket
        for group in self.groups.items():
            self._out.add(bucket(encode(group[0])), GROUPS, self.term.evaluation, group)
        self.groups = {}


# --- tasks ---


@dataclass(frozen=True)
class Reading:
    """Reads local input: records (number, round, path, rows). Round -1: the changes of a term; else what the term looks
    up in that round. `path` is a file of pickled lists, `rows` one such list, or what gives lists when it is called."""

    job: Holder

    def __call__(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        job, out = self.job.value, _Records()
        for batch in batches:
            for number, round_number, path, rows in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                lists = _lists_in(path) if path is not None else _lists_of(pickle.loads(rows))
                try:
                    if round_number < 0:
                        yield from self._start(job, number, lists, out)
                    else:
                        yield from self._key(job, number, round_number, lists, out)
                except DataError as error:
                    yield failure(number, error)
                    return
        yield from out.taken(all_of_them=True)

    def _start(self, job: Job, number: int, lists: Iterable[list[Change]], out: _Records) -> Iterator[pa.RecordBatch]:
        run = _Run(job, number, out)
        loaded = Loaded(column.type for column in run.term.table.columns)
        for changes in lists:
            run.start(loaded.changes(changes))
            run.give()
            yield from out.taken()
        run.give(all_of_them=True)

    def _key(
        self, job: Job, number: int, round_number: int, lists: Iterable[list[Change]], out: _Records
    ) -> Iterator[pa.RecordBatch]:
        for changes in lists:
            _add_keyed(job, number, round_number, [row for row, _ in changes], out)
            yield from out.taken()


@dataclass(frozen=True)
class ReadingColumns:
    """Reads a DataFrame that has the columns of a table: new rows of a term, or what it looks up in a round."""

    job: Holder
    number: int
    round_number: int

    def __call__(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        job, out = self.job.value, _Records()
        run = _Run(job, self.number, out)
        try:
            for batch in batches:
                if self.round_number >= 0:
                    at = run.term.rounds[self.round_number]
                    table = run.term.plan.tables[table_of(run.term.plan, run.term.place, run.term.step(at))]
                    changes = Batch.of_arrow(table, _physical(table, batch)).changes(range(len(table.columns)))
                    _add_keyed(job, self.number, self.round_number, [row for row, _ in changes], out)
                elif run.term.rounds:
                    table = run.term.table
                    run.start(Batch.of_arrow(table, _physical(table, batch)).changes(range(len(table.columns))))
                else:
                    run.columns(_physical(run.term.table, batch))
                run.give()
                yield from out.taken()
        except DataError as error:
            yield failure(self.number, error)
            return
        run.give(all_of_them=True)
        yield from out.taken(all_of_them=True)


def _add_keyed(job: Job, number: int, round_number: int, rows: list[Row], out: _Records) -> None:
    term = job.term(number)
    at = term.rounds[round_number]
    table = term.plan.tables[table_of(term.plan, term.place, term.step(at))]
    keyed = term.keyed(at)
    for row in Loaded(column.type for column in table.columns).rows(rows):
        key = keyed(row)
        out.add(job.bucket(key), RIGHT, number, (key, row))


def _physical(table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a table by their names, in the order in which the engine has them."""
    columns = [
        pa.nulls(batch.num_rows) if column.dropped else batch.column(batch.schema.get_field_index(column.name))
        for column in table.columns
    ]
    return pa.record_batch(columns, names=[str(place) for place in range(len(columns))])


def _lists_of(given: list[Change] | Callable[[], Iterable[list[Change]]]) -> Iterable[list[Change]]:
    return given() if callable(given) else [given]


def _lists_in(path: str) -> Iterator[list[Change]]:
    with open(path, "rb") as file:
        while file.peek(1):
            yield pickle.load(file)


@dataclass(frozen=True)
class Joining:
    """One round: rows meet what they look up. Everything else passes."""

    job: Holder
    round_number: int

    def __call__(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        job, out = self.job.value, _Records()
        lefts: dict[int, list[list[_Partial]]] = {}
        rights: dict[int, list[tuple[bytes, Row]]] = {}
        for batch in batches:
            passing = []
            for bucket, kind, number, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if kind == LEFT:
                    lefts.setdefault(number, []).append(pickle.loads(blob))
                elif kind == RIGHT:
                    rights.setdefault(number, []).extend(pickle.loads(blob))
                else:
                    passing.append((bucket, kind, number, blob))
            if passing:
                yield records(passing)
        for number, lists in lefts.items():
            run = _Run(job, number, out)
            step = run.term.step(run.term.rounds[self.round_number])
            found = indexed(step, rights.pop(number, ()))
            try:
                while lists:
                    run.join(self.round_number, lists.pop(), found)
                    run.give()
                    yield from out.taken()
            except DataError as error:
                yield failure(number, error)
                return
            run.give(all_of_them=True)
        yield from out.taken(all_of_them=True)


@dataclass(frozen=True)
class Combining:
    """The end: what terms have collected for one view key becomes one contribution, none if it is zero."""

    job: Holder

    def __call__(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        job = self.job.value
        groups: dict[int, dict[Row, object]] = {}
        for batch in batches:
            for _, kind, number, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if kind == FAILED:
                    yield records([(0, FAILED, number, blob)])
                elif kind == GROUPS:
                    plan = job.plan(number)
                    loaded = Loaded(type_ for _, type_, _ in plan.key_columns)
                    mine = groups.setdefault(number, {})
                    for key, state in pickle.loads(blob):
                        plan.merge(mine, {loaded.row(key): state})
        for number, found in groups.items():
            contributions = sorted(job.plan(number).finish(found), key=lambda item: item.key)
            for first in range(0, len(contributions), RESULT_ROWS_MAX):
                some = [tuple(item) for item in contributions[first : first + RESULT_ROWS_MAX]]
                yield records([(0, GROUPS, number, pickle.dumps(some, pickle.HIGHEST_PROTOCOL))])
