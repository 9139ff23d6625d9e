"""The columns evaluator: a term of a plan, for a whole batch of changes at once.

    changes of one source -> (look-ups -> filters) per stage -> aggregate or project

It does what the generated function of the term does (`operators/join.py`), stage by stage, with the same look-ups: but
each different key is asked for once, found rows are joined by taking places of columns, and filters, outputs and sums
are Arrow functions. What Arrow cannot do exactly is done by generated code, row by row, over the columns that it reads.

A batch in which anything fails is given up with `GaveUp`, and nothing of it counts: the caller hands it to the row
evaluator, which alone decides what is an error, and which row is to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..branches import columns_of
from ..compiler import Code, Compiler, Lines
from ..errors import DataError
from ..expressions import Call, ColumnRef, Expression, Literal
from ..keeping import Part
from ..keys import table_range
from ..operators import join
from ..operators.aggregate import Components, Layout
from ..operators.join import WHOLE_TABLE, Emit, KeyMemo, LookUp, Step, Term
from ..operators.project import Collected
from ..rewriting import constant
from ..schema import Table
from ..types import BOOL, INT, Row, Type, Value
from .kernels import vectorised
from .sums import add_to_groups
from .vectors import Batch, Frame, Ref, Unsuitable, Vector, distinct

__all__ = ["ArrowTable", "Batch", "ColumnsTerm", "Emission", "GaveUp"]

#: What bulk files give: the physical columns of a table, in their order.
ArrowTable: TypeAlias = pa.Table | pa.RecordBatch

#: What a term collects, as the generated functions do: components of groups, or rows under their key.
Groups: TypeAlias = dict[Row, object]
_Asking: TypeAlias = Generator[list[LookUp], Sequence[Sequence[object]], Groups]

#: For each code of a frame, the number of the answer to its look-up, None: there is none. None altogether: each has its
#: own, in their order.
_Meant: TypeAlias = Sequence[int | None] | None

_FAILURES = (DataError, Unsuitable, pa.ArrowException, OverflowError)


class GaveUp(Exception):
    """The batch is for the row evaluator."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What a part does with joined rows. `layout` is None for views of plain rows; `emitter` is the same as code."""

    part: Part
    layout: Layout | None
    emitter: Emit


class ColumnsTerm:
    """A term, ready to run."""

    def __init__(self, term: Term, tables: Mapping[str, Table], emission: Emission) -> None:
        self._term, self._emission, self._tables = term, emission, tables
        part = emission.part
        self._graph, self._weights = part.graph, part.weights
        self._key = [_folded(expression) for expression in part.key]
        self._arguments = [None if expression is None else _folded(expression) for expression in part.values]
        conditions = join.conditions_of(part.graph, term)
        self._conditions = {source: [_folded(each) for each in some] for source, some in conditions.items()}
        self._memos: dict[int, KeyMemo] = {}
        self._rowwise: dict[object, Callable[..., object]] = {}
        self._needed = self._needed_after()
        #: The columns of its own source that it reads.
        self.reads = sorted({position for source, position in self._needed[0] if source == term.source})

    def run(self, batch: Batch) -> _Asking:
        """Yields look-ups, is sent the answers, returns what the batch gives. Raises GaveUp."""
        try:
            return (yield from self._run(batch))
        except _FAILURES as error:
            raise GaveUp(f"{type(error).__name__}: {error}") from error

    def _run(self, batch: Batch) -> _Asking:
        source = self._term.source
        columns = {(source, position): batch.columns[position] for position in self.reads}
        frame = Frame(columns, batch.rows_count, batch.times, {})
        frame = self._select(frame, source, 0)
        for number, stage in enumerate(self._term.stages):
            frame = self._joining(frame, stage, number)
            if not frame.rows_count:
                return {}
            asked, frame = self._asked(frame, stage)
            answers = yield [look_up for look_up, _ in asked]
            for step, (_, meant), answer in zip(stage, asked, answers, strict=True):
                frame = self._bound(frame, step, meant, answer, number + 1)
                frame = self._select(frame, step.source, number + 1)
        return self._emit(frame) if frame.rows_count else {}

    # --- which columns are needed ---

    def _needed_after(self) -> list[set[Ref]]:
        """At the start and after each stage: the columns that are still read. Each set holds all later ones."""
        needed = _refs(*self._emitted())
        found = [needed]
        for stage in reversed(self._term.stages):
            for step in stage:
                needed = needed | _refs(*step.probes, *self._conditions[step.source])
            found.insert(0, needed)
        found[0] = found[0] | _refs(*self._conditions[self._term.source])
        return found

    def _emitted(self) -> list[Expression]:
        """What joined rows are read for."""
        return [each for each in (*self._key, *self._arguments, *self._weights) if each is not None]

    # --- filters ---

    def _select(self, frame: Frame, source: int, stage: int) -> Frame:
        for condition in self._conditions[source]:
            if frame.rows_count:
                # The conditions that follow may read more than the next stage does.
                frame = frame.where(self._condition(frame, condition), self._needed[max(stage - 1, 0)])
        return frame

    def _condition(self, frame: Frame, condition: Expression) -> pa.Array:
        try:
            return self._array(frame, condition)
        except Unsuitable:
            function = self._function(condition, is_condition=True)
            return pa.array(cast("list[bool]", function(frame.rows_count, *self._rows(frame, [condition]))), pa.bool_())

    # --- look-ups ---

    def _joining(self, frame: Frame, stage: Sequence[Step], number: int) -> Frame:
        """Without the rows that NULL keeps from being looked up. An anti source lets them pass."""
        for step in stage:
            for probe in () if step.anti else _strict_probes(step):
                vector = frame.columns[probe.source, probe.position]
                mask = pc.is_valid(vector.array) if vector.has_array else _not_null(vector.values)
                frame = frame.where(mask, self._needed[number])
        return frame

    def _asked(self, frame: Frame, stage: Sequence[Step]) -> tuple[list[tuple[LookUp, _Meant]], Frame]:
        """For each step its look-up, and, for each code of the frame, which of its answers is meant."""
        asked: list[tuple[LookUp, _Meant]] = []
        codes: dict[int, Vector] = {}
        for step in stage:
            numbers, probes = distinct([self._vector(frame, probe) for probe in step.probes], frame.rows_count)
            codes[step.source] = Vector(INT, array=numbers)
            asked.append(self._look_up(step, probes))
        return asked, Frame(frame.columns, frame.rows_count, frame.times, codes)

    def _look_up(self, step: Step, probes: Sequence[Row]) -> tuple[LookUp, _Meant]:
        name = self._graph.sources[step.source].table
        index = WHOLE_TABLE if step.whole else step.index.id if step.index else None
        if step.whole:
            # There is nothing to ask by, and one answer for all.
            return LookUp(name, index, cast("list[bytes]", [None]), step.state), [0]
        memo = self._memo(step)
        places = [place for place, null_safe in enumerate(step.null_safe) if step.anti and not null_safe]
        values: Iterable[object] = probes if len(step.probes) != 1 else [value for (value,) in probes]
        if places:
            # NULL finds nothing.
            nulls = [any(probe[place] is None for place in places) for probe in probes]
            encoded = [None if null else memo[value] for null, value in zip(nulls, values, strict=True)]
        else:
            encoded = list(map(memo.__getitem__, values))
        keys = [key for key in dict.fromkeys(encoded) if key is not None]
        if len(keys) == len(encoded):
            return LookUp(name, index, keys, step.state), None
        if not keys:
            keys = [table_range(self._tables[name].id)[0]]  # A key that no row has: the answer is awaited.
        numbers = {key: number for number, key in enumerate(keys)}
        return LookUp(name, index, keys, step.state), [None if key is None else numbers[key] for key in encoded]

    def _memo(self, step: Step) -> KeyMemo:
        memo = self._memos.get(step.source)
        if memo is None:
            encode = join.key_encoder(self._tables[self._graph.sources[step.source].table], step)
            memo = self._memos[step.source] = KeyMemo(encode, single=len(step.columns) == 1)
        return memo

    def _bound(self, frame: Frame, step: Step, meant: _Meant, answer: Sequence[object], stage: int) -> Frame:
        """The frame joined with the rows that were found."""
        answers = answer if meant is None else [None if number is None else answer[number] for number in meant]
        codes = frame.codes[step.source].array
        needed = self._needed[stage - 1]  # Also what the conditions of this stage read.
        if step.anti:
            absent = pa.array([not _rows_of(each, step) for each in answers], pa.bool_()).take(codes)
            return frame.where(absent, needed)
        if step.by_key:
            found = [cast(Row, each) for each in answers if each is not None]
            joined, right = frame, codes
            if len(found) < len(answers):
                places = iter(range(len(found)))
                place = pa.array([None if each is None else next(places) for each in answers], pa.int64()).take(codes)
                joined, right = frame.where(pc.is_valid(place), needed), place.drop_null()
        else:
            found, lists = [], []
            for each in answers:
                rows = _rows_of(each, step)
                lists.append(range(len(found), len(found) + len(rows)))
                found += rows
            partners = pa.array(lists, pa.list_(pa.int64())).take(codes)
            joined = frame.take(pc.list_parent_indices(partners).cast(pa.int64()), needed)
            right = pc.list_flatten(partners)
        return self._with_columns(joined, step.source, found, right, needed)

    def _with_columns(
        self, frame: Frame, source: int, found: Sequence[Row], places: pa.Array, needed: Iterable[Ref]
    ) -> Frame:
        table = self._tables[self._graph.sources[source].table]
        columns = dict(frame.columns)
        for owner, position in needed:
            if owner == source:
                values = [row[position] for row in found]
                columns[owner, position] = Vector(table.columns[position].type, values=values).take(places)
        return Frame(columns, frame.rows_count, frame.times, frame.codes)

    # --- expressions ---

    def _vector(self, frame: Frame, expression: Expression) -> Vector:
        """The value of an expression in all rows."""
        if isinstance(expression, ColumnRef):
            return frame.columns[expression.source, expression.position]
        if isinstance(expression, Literal):
            one = Vector(expression.type, values=[expression.value])
            return one.take(pa.repeat(pa.scalar(0, pa.int64()), frame.rows_count))
        try:
            return Vector(expression.type, array=self._array(frame, expression))
        except Unsuitable:
            function = self._function(expression)
            values = function(frame.rows_count, *self._rows(frame, [expression]))
            return Vector(_own_type(expression), values=cast("list[Value]", values))

    def _array(self, frame: Frame, expression: Expression) -> pa.Array:
        if not isinstance(expression, Call):
            return self._vector(frame, expression).array
        result = vectorised(expression, lambda argument: self._vector(frame, argument).array)
        return result if isinstance(result, pa.Array) else pa.repeat(result, frame.rows_count)

    def _function(self, expression: Expression, *, is_condition: bool = False) -> Callable[..., object]:
        """Generated code for the values of an expression, row by row."""
        identity = (repr(expression), is_condition)
        if identity not in self._rowwise:
            compiler, heads, loop = self._compiler([expression])
            text = compiler.condition(expression) if is_condition else compiler.value(expression).text
            compiler.define(f"def values(n{heads}):\n    return [{text} for {loop}]\n")
            self._rowwise[identity] = cast("Callable[..., object]", compiler.namespace["values"])
        return self._rowwise[identity]

    def _compiler(self, expressions: Sequence[Expression]) -> tuple[Compiler, str, str]:
        """A compiler for rows that have only the columns that the expressions read; names and loop of the sources."""
        places = _by_source(expressions)

        def leaf(expression: Expression) -> Code:
            assert isinstance(expression, ColumnRef), "expressions of a plan read columns"
            place = places[expression.source].index(expression.position)
            return Code(f"r{expression.source}[{place}]", expression.type, expression.nullable, simple=True)

        heads = "".join(f", s{source}" for source in places)
        rows = "".join(f"r{source}, " for source in places)
        loop = f"_, {rows}in zip(range(n){heads})"
        return Compiler(leaf, {"DataError": DataError}), heads, loop

    def _rows(self, frame: Frame, expressions: Sequence[Expression]) -> list[Iterable[Row]]:
        """Per source that the expressions read, the rows of just these columns."""
        return [
            zip(*(frame.columns[source, position].values for position in positions), strict=True)
            for source, positions in _by_source(expressions).items()
        ]

    # --- results ---

    def _emit(self, frame: Frame) -> Groups:
        groups: Groups = {}
        try:
            times = self._times(frame)
            if self._emission.layout is None:
                self._project(frame, times, cast(Collected, groups))
            else:
                self._aggregate(frame, times, self._emission.layout, cast("dict[Row, Components]", groups))
        except Unsuitable:
            groups = self._emit_rows(frame)
        return groups

    def _times(self, frame: Frame) -> Vector | None:
        """The multiplicities times the weights of the sources."""
        times = frame.times
        for weight in self._weights:
            factor = frame.columns[weight.source, weight.position]
            times = factor if times is None else Vector(INT, array=pc.multiply_checked(times.array, factor.array))
        return times

    def _project(self, frame: Frame, times: Vector | None, groups: Collected) -> None:
        keys = self._tuples(frame, self._key)
        outputs = self._tuples(frame, cast("Sequence[Expression]", self._arguments))
        counts = repeat(1, frame.rows_count) if times is None else cast("Sequence[int]", times.values)
        for key, row, count in zip(keys, outputs, counts, strict=True):
            known = groups.get(key)
            if known is None:
                groups[key] = [(row, count)]
            else:
                known.append((row, count))

    def _tuples(self, frame: Frame, expressions: Sequence[Expression]) -> Iterable[Row]:
        if not expressions:
            return repeat((), frame.rows_count)
        return zip(*(self._vector(frame, expression).values for expression in expressions), strict=True)

    def _aggregate(self, frame: Frame, times: Vector | None, layout: Layout, groups: dict[Row, Components]) -> None:
        vectors = [self._vector(frame, expression) for expression in self._key]
        codes, keys = distinct(vectors, frame.rows_count, as_first=True, spare=True)
        if any(vector.type.kind == "float" for vector in vectors):
            # -0.0 and 0.0 are one group, which is called 0.0.
            keys = [tuple(0.0 if isinstance(value, float) and value == 0.0 else value for value in key) for key in keys]
        arguments = [
            (slots, self._vector(frame, argument))
            for slots, argument in zip(layout.slots, self._arguments, strict=True)
            if argument is not None and (slots.count or slots.total >= 0 or slots.trues >= 0)
        ]
        array = None if times is None else times.array
        add_to_groups(groups, layout, self._emission.part.counter, codes, keys, array, arguments)

    def _emit_rows(self, frame: Frame) -> Groups:
        """With the same generated code as the row evaluator."""
        read = self._emitted()
        function = self._rowwise.get("emit")
        if function is None:
            compiler, heads, loop = self._compiler(read)
            lines = Lines()
            with (
                lines.block(f"def emit(n, times, groups{heads}):"),
                lines.block(f"for m, {loop.replace('range(n)', 'times, range(n)')}:"),
            ):
                self._emission.emitter(lines, compiler, "m")
            compiler.define(str(lines))
            function = self._rowwise["emit"] = cast("Callable[..., object]", compiler.namespace["emit"])
        groups: Groups = {}
        times = repeat(1, frame.rows_count) if frame.times is None else frame.times.values
        function(frame.rows_count, times, groups, *self._rows(frame, read))
        return groups


def _folded(expression: Expression) -> Expression:
    """The expression with its constant parts computed."""
    if isinstance(expression, Call):
        return constant(expression) or replace(expression, args=tuple(map(_folded, expression.args)))
    return expression


def _refs(*expressions: Expression) -> set[Ref]:
    return {(each.source, each.position) for expression in expressions for each in columns_of(expression)}


def _by_source(expressions: Sequence[Expression]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for source, position in sorted(_refs(*expressions)):
        places.setdefault(source, []).append(position)
    return places


def _strict_probes(step: Step) -> list[ColumnRef]:
    """The probes that find nothing with NULL, and can be NULL."""
    probes = zip(step.probes, step.null_safe, strict=True)
    return [probe for probe, safe in probes if not safe and isinstance(probe, ColumnRef) and probe.nullable]


def _not_null(values: Sequence[Value]) -> pa.Array:
    return pa.array([value is not None for value in values], pa.bool_())


def _rows_of(answer: object, step: Step) -> list[Row]:
    if step.by_key or answer is None:
        return [] if answer is None else [cast(Row, answer)]
    return cast("list[Row]", answer)


def _own_type(expression: Expression) -> Type:
    """What an expression gives may have another scale than its type says."""
    return BOOL if expression.type == BOOL else Type(expression.type.kind)
