"""Join: the change table of an n-way join is a sum of terms, for each source that changes one of removed and one of
added rows.

    □(B1 ⋈ … ⋈ Bn) = Σ_i  K1 ⋈ … ⋈ K(i-1) ⋈ ΔBi ⋈ B(i+1)(W1) ⋈ … ⋈ Bn(W1)
                   - Σ_i  K1 ⋈ … ⋈ K(i-1) ⋈ ∇Bi ⋈ B(i+1)(W0) ⋈ … ⋈ Bn(W0)

W0 is the state before the transaction, W1 the state with its own changes, K the rows that it leaves as they are, ΔB the
rows that it adds and ∇B those that it removes; □B = ΔB - ∇B. A joined row counts where its *first* changed source is
i, so that a change of several sources counts exactly once, without the correction term -(□B1 ⋈ □B2) of Nikolov alg.
5.2. A self-join has two sources with one table.

Every joined row that a term makes is in the old or in the new state. The usual sum of n terms, with W1 before i and W0
after it, also makes rows that were never there and cancel out; an expression that fails for such a row (a division by
zero) would refuse a good transaction.

If one source changes, and that is the rule, all others are equal in K, W0 and W1, and one term does for both signs: the
inner-join line of table 4.1, □E1 ⋈ E2.

No term scans. From source i, rows of the other sources are looked up along the equalities: by primary key where the
equalities bind all of it, else by an index. All look-ups that one stage can ask for go out together. NULL joins
nothing, therefore a row with a NULL in a join column is dropped before it is looked up.

An anti source P (`branches`) is the join with N, the complement of P: N(k) is there exactly if P(k) is not, and
□N = -□P. Its look-ups are those of P, by its whole key, with the answer turned round; of N, the transaction leaves the
keys that P has neither before nor after it (State.TAKEN). A NULL in the key finds no P, so the row passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

from ..branches import NO_EQUALITY, Equality, JoinGraph
from ..compiler import ONCE, Compiler, Lines, sources_of
from ..errors import InternalError, UnsupportedView
from ..expressions import Call, ColumnRef, Expression
from ..keys import index_codec, primary_key_codec, table_range
from ..schema import Index, Table
from ..types import BOOL, Value
from .select import emit_select

#: Encoded keys that a plan remembers per key or index, and the longest that it remembers. Encoding a key costs about
#: ten times as much as finding it here, and most look-ups go to few rows (products, categories).
KEY_MEMO_ENTRIES_MAX = 16_384
KEY_MEMO_BYTES_MAX = 128
#: Index look-ups of one stage become nested loops, and Python nests 20 of them at most.
INDEX_STEPS_PER_STAGE_MAX = 8


# What stands for an index in look-ups that go through none.
#: All rows of a table: for the one change that touches every row of a view.
WHOLE_TABLE = -1
#: The stored rows of a view, not what it shows.
STATES = -2
#: The first or the last value that a group has in a hidden view of (group, value).
FIRST, LAST = -3, -4
#: The first rows of a view that is kept in order; the key is how many, as `top_key` writes it.
TOP = -5


class State(IntEnum):
    """Which rows a look-up sees: before the transaction (W0), with its changes (W1), only those that it leaves, or, for
    an anti source, all that are there before or after it."""

    OLD = 0
    NEW = 1
    KEPT = 2
    TAKEN = 3


class Law(Enum):
    """Where a term finds the sources before and after its own: see the top of the file."""

    ONE_SOURCE = (State.OLD, State.OLD)
    REMOVED = (State.KEPT, State.OLD)
    ADDED = (State.KEPT, State.NEW)


class LookUp(NamedTuple):
    """Rows that a plan needs from one table, in a `State`.

    `index` None: `keys` are whole primary keys; else it is the id of an index, and they are its prefixes, or one of the
    constants above. They may repeat. The answer has one entry per key: a row or None by primary key and for STATES, a
    value or None for FIRST and LAST, else a list of rows.
    """

    table: str
    index: int | None  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    keys: list[bytes]
    state: int


@dataclass(frozen=True, slots=True)
class Step:
    """One look-up: the rows of `source` whose `columns` equal the `probes`. `index` None: by primary key.

    `null_safe`: for which of them NULL equals NULL. `missing`: no such index exists yet, so that the plan cannot be
    compiled, only described. `whole`: all rows. `anti`: the row passes if there is none.
    """

    source: int
    columns: tuple[int, ...]
    probes: tuple[Expression, ...]
    null_safe: tuple[bool, ...]
    index: Index | None
    missing: bool
    state: State
    anti: bool = False
    whole: bool = False

    @property
    def by_key(self) -> bool:
        return self.index is None and not self.missing and not self.whole


@dataclass(frozen=True, slots=True)
class Term:
    """How the changes of one source find their rows of all others. The look-ups of one stage go out together."""

    source: int
    stages: tuple[tuple[Step, ...], ...]


class KeyMemo(dict[object, bytes]):
    """Encoded keys by value. A value that is missing is encoded; when it is full it starts again."""

    def __init__(self, encode: Callable[[tuple[Value, ...]], bytes], *, single: bool) -> None:
        super().__init__()
        self._encode, self._single = encode, single

    def __missing__(self, values: object) -> bytes:
        key = self._encode((values,) if self._single else values)  # type: ignore[arg-type]  # Typed by the plan.
        if len(key) <= KEY_MEMO_BYTES_MAX:
            if len(self) >= KEY_MEMO_ENTRIES_MAX:
                self.clear()
            self[values] = key
        return key


# --- planning ---


def plan_term(graph: JoinGraph, tables: Mapping[str, Table], source: int, law: Law = Law.ONE_SOURCE) -> Term:
    """The look-ups from `source`; a number behind the last source stands for a constant row."""
    bound, stages = {source}, []
    while not bound.issuperset(range(len(graph.sources))):
        found = _steps(graph, tables, source, bound, law)
        if not found:
            names = ", ".join(s.alias for i, s in enumerate(graph.sources) if i not in bound)
            raise UnsupportedView(f"{NO_EQUALITY}: {names}", hint=f"add a condition column = column for {names}")
        # A primary key finds at most one row, so it never makes the intermediate result larger: first.
        stage = tuple([step for step in found if step.by_key] or found[:INDEX_STEPS_PER_STAGE_MAX])
        stages.append(stage)
        bound.update(step.source for step in stage)
    return Term(source, tuple(stages))


def _steps(graph: JoinGraph, tables: Mapping[str, Table], start: int, bound: set[int], law: Law) -> list[Step]:
    before, after = law.value
    found = []
    for other, source in enumerate(graph.sources):
        if other in bound:
            continue
        table, bindings = tables[source.table], _bindings(graph, bound, start, other)
        if not bindings and not (source.anti and not table.key):
            continue
        state = before if other < start else after
        if source.anti and state == State.KEPT:
            state = State.TAKEN
        step = _step(table, other, bindings, state, source.anti)
        if not (source.anti and not step.by_key):
            found.append(step)
    if not found and start < len(graph.sources) and graph.sources[start].anti:
        # The presence of anything at all has changed: that touches every row.
        other = next(i for i, source in enumerate(graph.sources) if i not in bound and not source.anti)
        return [Step(other, (), (), (), None, False, before if other < start else after, whole=True)]
    return found


def _bindings(graph: JoinGraph, bound: set[int], start: int, source: int) -> dict[int, tuple[Expression, bool]]:
    """Which columns of `source` are equal to which columns of bound sources, and whether NULL is equal too. An anti
    source has a row only where it is the start."""
    bindings: dict[int, tuple[Expression, bool]] = {}
    for equality in graph.equalities:
        for mine, other in ((equality.left, equality.right), (equality.right, equality.left)):
            if mine.source != source or other.source not in bound:
                continue
            if other.source == start or not graph.sources[other.source].anti:
                bindings.setdefault(mine.position, (other, equality.null_safe))
    for mine, constant, null_safe in graph.constants:
        if mine.source == source:
            bindings.setdefault(mine.position, (constant, null_safe))
    return bindings


def _step(table: Table, source: int, bindings: Mapping[int, tuple[Expression, bool]], state: State, anti: bool) -> Step:
    if all(position in bindings for position in table.key):
        columns, index, missing = table.key, None, False
    else:
        usable = [index for index in table.indexes if index.ready and bindings.keys() >= set(index.columns)]
        index = max(usable, key=lambda index: (len(index.columns), -index.id), default=None)
        columns = index.columns if index is not None else tuple(sorted(bindings))
        missing = index is None
    probes = tuple(bindings[position][0] for position in columns)
    null_safe = tuple(bindings[position][1] for position in columns)
    return Step(source, columns, probes, null_safe, index, missing, state, anti)


# --- code ---

#: Writes what happens to a joined row, with the source of its multiplicity.
Emit: TypeAlias = Callable[[Lines, Compiler, str], None]


@dataclass(frozen=True, slots=True)
class Grouping:
    """What happens to a joined row that is added up: `group` writes which components it is added to, by the values of
    `key`, and `sums` what is added, for which it reads the rows of `sums_read`."""

    key: Sequence[Expression]
    sums_read: set[int]
    group: Callable[[Lines, Compiler], None]
    sums: Emit


@dataclass(slots=True)
class JoinWriter:
    """Writes the function of a term: `name(changes, groups)`, a generator if it looks rows up.

    `emit` writes what happens to each joined row, with its rows in r0, r1, ... and its multiplicity in m; `needed` are
    the sources whose rows that reads. `grouping` is the same in two steps, where rows are added up in groups. The code
    of a term is one loop per stage over partly joined rows:

        k1 = [memo[r0[1]] for r0, m in changes]            # the keys that stage 1 asks for
        (r1s,) = yield [LookUp(table, None, k1, 0)]
        for (r0, m), r1 in zip(changes, r1s): ...          # bind the rows that were found, filter, ask for stage 2
    """

    graph: JoinGraph
    tables: Mapping[str, Table]
    compiler: Compiler
    memos: dict[tuple[str, int | None], str]
    needed: set[int]
    emit: Emit
    grouping: Grouping | None = None

    def write(self, name: str, term: Term, blame: str) -> str:
        """`blame` is the name of a function that adds view and row to a DataError; a try block costs nothing."""
        lines, start = Lines(), f"r{term.source}"
        with lines.block(f"def {name}(changes, groups):"):
            lines.add(f"{start} = None")
            with lines.block("try:"):
                self._body(lines, term, conditions_of(self.graph, term))
            with lines.block("except DataError as error:"):
                lines.add(f"raise {blame}(error, {start}) from error")
        return str(lines)

    def write_inserts(self, ask: str, add: str, term: Term, blame: str, finish: str) -> str | None:
        """The same term for rows that are only added, as plain functions: `ask(rows)` gives the look-ups, or None if it
        does not apply to these rows, and `add(rows, answers)` the contributions. It saves a generator and a tuple per
        row. None: the term is none of those that it is worth for, with one stage of look-ups by key at most.

        If it has one look-up there are more: `<ask>_values(rows)`, what each row is joined by, `<ask>_referring(rows)`,
        one row for each of these, and `<add>_known(rows, known)`, the contributions where `known` has what each finds;
        else KeyError. `<add>_collected(rows, known)` is the same before `finish`. If what was found tells the group,
        there is `<add>_grouped(rows, known)`, too: it finds the group of what is known once, not for each row, so all
        that is known must be of some row."""
        conditions, start = conditions_of(self.graph, term), f"r{term.source}"
        stage = term.stages[0] if term.stages else ()
        probes = [probe for step in stage for probe in step.probes]
        if len(term.stages) > 1 or conditions[term.source] or not all(isinstance(probe, ColumnRef) for probe in probes):
            return None
        if any(step.anti or not step.by_key for step in stage):
            return None
        lines = Lines()
        with lines.block(f"def {ask}(rows):"):
            self._ask_inserts(lines, start, stage)
        found = "".join(f", r{step.source}" for step in stage)
        loop = f"for {start}{found} in {'zip(rows, *answers)' if stage else 'rows'}:"
        with lines.block(f"def {add}(rows, answers):"):
            self._add_inserts(lines, start, stage, conditions, loop, "", blame)
            lines.add(f"return {finish}(groups)")
        if len(stage) == 1:
            values = self._values(stage[0])
            with lines.block(f"def {ask}_values(rows):"):
                lines.add(f"return [({values}) for {start} in rows]")
            with lines.block(f"def {ask}_referring(rows):"):
                lines.add(f"return {{({values}): {start} for {start} in rows}}")
            with lines.block(f"def {add}_collected(rows, known):"):
                bind = f"r{stage[0].source} = known[{values}]"
                self._add_inserts(lines, start, stage, conditions, f"for {start} in rows:", bind, blame)
                lines.add("return groups")
            with lines.block(f"def {add}_known(rows, known):"):
                lines.add(f"return {finish}({add}_collected(rows, known))")
            self._add_grouped(lines, add, start, stage[0], conditions[stage[0].source], values, finish)
        return str(lines)

    def _add_grouped(
        self,
        lines: Lines,
        add: str,
        start: str,
        step: Step,
        conditions: Sequence[Expression],
        values: str,
        finish: str,
    ) -> None:
        grouping, found = self.grouping, f"r{step.source}"
        if grouping is None or not {step.source}.issuperset(
            source for expression in (*grouping.key, *conditions) for source in sources_of(expression)
        ):
            return
        # What is added up may need the row that was found, but mostly does not.
        bound = f"s, {found}" if step.source in grouping.sums_read else "s"
        with lines.block(f"def {add}_grouped(rows, known):"):
            lines.add("groups, states = {}, {}")
            with lines.block("try:"):
                with lines.block(f"for value, {found} in known.items():"):
                    lines.add(f"if {found} is None: continue")
                    emit_select(lines, self.compiler, conditions)
                    grouping.group(lines, self.compiler)
                    lines.add(f"states[value] = {bound}")
                lines.add(f"if len(states) < len(known): rows = [{start} for {start} in rows if ({values}) in states]")
                with lines.block(f"for {start} in rows:"):
                    lines.add(f"{bound} = states[{values}]")
                    grouping.sums(lines, self.compiler, ONCE)
            with lines.block("except DataError:"):
                # That one says which row is to blame, in their order.
                lines.add(f"return {add}_known(rows, known)")
            lines.add(f"return {finish}(groups)")

    def _add_inserts(
        self,
        lines: Lines,
        start: str,
        stage: Sequence[Step],
        conditions: Mapping[int, list[Expression]],
        loop: str,
        bind: str,
        blame: str,
    ) -> None:
        """Collects in `groups`."""
        lines.add(f"groups, {start} = {{}}, None")
        with lines.block("try:"), lines.block(loop):
            if bind:
                lines.add(bind)
            for step in stage:
                lines.add(f"if r{step.source} is None: continue")
                emit_select(lines, self.compiler, conditions[step.source])
            self.emit(lines, self.compiler, ONCE)
        with lines.block("except DataError as error:"):
            lines.add(f"raise {blame}(error, {start}) from error")

    def _ask_inserts(self, lines: Lines, start: str, stage: Sequence[Step]) -> None:
        tests = self._null_tests(stage)
        where = f" if not ({' or '.join(tests)})" if tests else ""
        for step in stage:
            lines.add(f"k{step.source} = [{self._key(step)} for {start} in rows{where}]")
        if tests:
            lines.add(f"if len(k{stage[0].source}) != len(rows): return None")
        tables = [self.compiler.bind(self.graph.sources[step.source].table, "table") for step in stage]
        asked = [
            f"LookUp({table}, None, k{step.source}, {int(step.state)})"
            for table, step in zip(tables, stage, strict=True)
        ]
        lines.add(f"return [{', '.join(asked)}]")

    def _body(self, lines: Lines, term: Term, conditions: Mapping[int, list[Expression]]) -> None:
        start, carried = f"r{term.source}", self._carried(term, conditions)
        if term.stages and not conditions[term.source]:
            self._ask_without_filter(lines, start, term.stages[0])
        else:
            self._open_stage(lines, term.stages, 0)
            with lines.block(f"for {start}, m in changes:"):
                emit_select(lines, self.compiler, conditions[term.source])
                self._close_row(lines, term.stages, 0, carried[0])
        found_many = False
        for number, stage in enumerate(term.stages):
            self._look_up(lines, number, stage, unique=found_many)
            found_many = found_many or not stage[0].by_key
            self._bind(lines, term, number, conditions, carried)

    def _bind(
        self,
        lines: Lines,
        term: Term,
        number: int,
        conditions: Mapping[int, list[Expression]],
        carried: Sequence[Sequence[int]],
    ) -> None:
        """The loop that joins what a stage has found to the rows that asked for it."""
        stage = term.stages[number]
        self._open_stage(lines, term.stages, number + 1)
        found = "".join(f", {'r' if step.by_key else 'f'}{step.source}" for step in stage)
        rows = "".join(f"r{source}, " for source in carried[number])
        asked = "".join(f", a{step.source}" for step in stage)
        with lines.block(f"for ({rows}m){found} in zip(p{number}{asked}):"), ExitStack() as loops:
            for step in stage:
                if step.anti:
                    lines.add(f"if r{step.source} is not None: continue")
                elif step.by_key:
                    lines.add(f"if r{step.source} is None: continue")
                else:
                    loops.enter_context(lines.block(f"for r{step.source} in f{step.source}:"))
                emit_select(lines, self.compiler, conditions[step.source])
            self._close_row(lines, term.stages, number + 1, carried[number + 1])

    def write_staged(self, names: Sequence[str], term: Term, blame: str) -> str:
        """The same term cut where it looks rows up, for whoever answers look-ups somewhere else: a plain function per
        stage and one more. The first is called with (changes, groups), the others with (rows, answers, groups), one
        list of answers per step. Each returns the partly joined rows that go on, and their keys for each step of the
        next stage; the last one emits and returns None."""
        conditions, start = conditions_of(self.graph, term), f"r{term.source}"
        carried = self._carried(term, conditions)
        lines = Lines()
        for number, name in enumerate(names):
            taken = "changes, groups" if not number else f"p{number - 1}, answers, groups"
            with lines.block(f"def {name}({taken}):"):
                lines.add(f"{start} = None")
                with lines.block("try:"):
                    if number:
                        stage = term.stages[number - 1]
                        lines.add(f"({''.join(f'a{step.source}, ' for step in stage)}) = answers")
                        self._bind(lines, term, number - 1, conditions, carried)
                    else:
                        self._open_stage(lines, term.stages, 0)
                        with lines.block(f"for {start}, m in changes:"):
                            emit_select(lines, self.compiler, conditions[term.source])
                            self._close_row(lines, term.stages, 0, carried[0])
                    if number < len(term.stages):
                        keys = "".join(f"k{step.source}, " for step in term.stages[number])
                        lines.add(f"return p{number}, ({keys})")
                with lines.block("except DataError as error:"):
                    lines.add(f"raise {blame}(error, {start}) from error")
        return str(lines)

    def _ask_without_filter(self, lines: Lines, start: str, stage: Sequence[Step]) -> None:
        """The common case, where comprehensions are twice as fast as a loop: only NULL keeps a change from being looked
        up, and if there is none, the changes themselves are the partly joined rows."""
        tests = self._null_tests(stage)
        where = f" if not ({' or '.join(tests)})" if tests else ""
        for step in stage:
            lines.add(f"k{step.source} = [{self._key(step)} for {start}, m in changes{where}]")
        lines.add("p0 = changes")
        if tests:
            with lines.block(f"if len(k{stage[0].source}) != len(changes):"):
                lines.add(f"p0 = [({start}, m) for {start}, m in changes{where}]")

    def _carried(self, term: Term, conditions: Mapping[int, list[Expression]]) -> list[list[int]]:
        """Before each stage and at the end: the bound sources whose rows are still read, and the start, for errors."""
        needed = set(self.needed)
        carried: list[list[int]] = [[]]
        for number in range(len(term.stages) - 1, -1, -1):
            for step in term.stages[number]:
                needed.update(*(sources_of(probe) for probe in step.probes))
                needed.update(*(sources_of(condition) for condition in conditions[step.source]))
            earlier = {step.source for stage in term.stages[:number] for step in stage}
            carried.insert(0, [term.source, *sorted(needed & earlier)])
        return carried

    def _open_stage(self, lines: Lines, stages: Sequence[Sequence[Step]], number: int) -> None:
        """Before a loop: the lists that it fills for stage `number`, if there is one."""
        if number < len(stages):
            lines.add(f"p{number} = []")
            for step in stages[number]:
                lines.add(f"k{step.source} = []")

    def _close_row(self, lines: Lines, stages: Sequence[Sequence[Step]], number: int, carried: Sequence[int]) -> None:
        """At the end of a loop's body: ask for the rows of stage `number`, or emit the joined row after the last."""
        if number == len(stages):
            self.emit(lines, self.compiler, "m")
            return
        for test in self._null_tests(stages[number]):
            lines.add(f"if {test}: continue")
        for step in stages[number]:
            lines.add(f"k{step.source}.append({self._key(step)})")
        lines.add(f"p{number}.append(({''.join(f'r{source}, ' for source in carried)}m))")

    def _look_up(self, lines: Lines, number: int, stage: Sequence[Step], *, unique: bool) -> None:
        """`unique`: an index may have found many rows with one key, which is asked for once then."""
        lines.add(f"if not p{number}: return")
        asked = []
        for step in stage:
            keys = f"k{step.source}"
            if unique:
                keys = f"u{step.source}"
                lines.add(f"{keys} = list(dict.fromkeys(k{step.source}))")
            table = self.compiler.bind(self.graph.sources[step.source].table, "table")
            index = WHOLE_TABLE if step.whole else step.index.id if step.index else None
            asked.append(f"LookUp({table}, {index}, {keys}, {int(step.state)})")
        lines.add(f"({''.join(f'a{step.source}, ' for step in stage)}) = yield [{', '.join(asked)}]")
        for step in stage if unique else ():
            lines.add(f"a{step.source} = map(dict(zip(u{step.source}, a{step.source})).__getitem__, k{step.source})")

    def _null_tests(self, stage: Sequence[Step]) -> list[str]:
        """What keeps a row from being looked up. Before an anti source NULL does not: it passes there."""
        return list(dict.fromkeys(test for step in stage if not step.anti for test in self._nulls(step)))

    def _nulls(self, step: Step) -> list[str]:
        probes = zip(step.probes, step.null_safe, strict=True)
        codes = [self.compiler.value(probe) for probe, null_safe in probes if not null_safe]
        return [f"{code.text} is None" for code in codes if code.nullable]

    def _key(self, step: Step) -> str:
        """Source of the encoded key; the values come from the bound rows."""
        if step.whole:
            return "None"
        key = f"{self._memo(step)}[{self._values(step)}]"
        nulls = self._nulls(step) if step.anti else []
        if nulls:
            nowhere = table_range(self.tables[self.graph.sources[step.source].table].id)[0]
            return f"({self.compiler.bind(nowhere, 'nowhere')} if {' or '.join(nulls)} else {key})"
        return key

    def _values(self, step: Step) -> str:
        return ", ".join(self.compiler.value(probe).text for probe in step.probes) or "()"

    def _memo(self, step: Step) -> str:
        table = self.tables[self.graph.sources[step.source].table]
        place = (table.name, step.index.id if step.index else None)
        if place not in self.memos:
            self.memos[place] = self.compiler.bind(
                KeyMemo(key_encoder(table, step), single=len(step.columns) == 1), "keys"
            )
        return self.memos[place]


def key_encoder(table: Table, step: Step) -> Callable[[tuple[Value, ...]], bytes]:
    if step.missing:
        names = ", ".join(table.columns[position].name for position in step.columns)
        raise InternalError(
            f"the index of {table.name!r} on ({names}) does not exist", hint="create needed_indexes first"
        )
    if step.index is not None:
        return index_codec(table, step.index).prefix
    return primary_key_codec(table).look_up


def conditions_of(graph: JoinGraph, term: Term) -> dict[int, list[Expression]]:
    """What each source's row must pass when it is bound: equalities that no look-up used, then filters.

    A condition belongs to the source that is bound last among those that it reads.
    """
    order = [term.source, *(step.source for stage in term.stages for step in stage)]
    used = {
        ((step.source, position), (probe.source, probe.position))
        for stage in term.stages
        for step in stage
        for position, probe in zip(step.columns, step.probes, strict=True)
        if isinstance(probe, ColumnRef)
    }
    conditions: dict[int, list[Expression]] = {source: [] for source in order}
    for condition in (*_checks(graph.equalities, used), *graph.filters):
        last = max((order.index(source) for source in sources_of(condition)), default=0)
        conditions[order[last]].append(condition)
    for column, constant, null_safe in graph.constants:
        if column.source == term.source:
            conditions[term.source].append(Call("is_not_distinct" if null_safe else "=", (column, constant), BOOL))
    return conditions


def _checks(equalities: Sequence[Equality], used: set[tuple[tuple[int, int], tuple[int, int]]]) -> list[Expression]:
    checks: list[Expression] = []
    for equality in equalities:
        left = (equality.left.source, equality.left.position)
        right = (equality.right.source, equality.right.position)
        if (left, right) not in used and (right, left) not in used:
            op = "is_not_distinct" if equality.null_safe else "="
            checks.append(Call(op, (equality.left, equality.right), BOOL))
    return checks
