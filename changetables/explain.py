"""Plans as text: for each source that may change the look-ups that follow, through which key or index, and what a
changed row costs.

    view spend: groups, key (category)
    └─ events e ⋈ products p
       ├─ change of events e: 1.0 look-ups per row
       │  └─ products p by primary key (id = e.product)
       └─ change of products p: 1.0 look-ups and 12.5 rows per row
          └─ events e by index (product = p.id)

Views that the engine keeps for this one stand below it, numbered, with their own plans. Of a view that exists, the last
line says what the evaluators cost, as far as it was measured, and which one large change tables go through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .algebra import (
    Apply,
    Distinct,
    Filter,
    Group,
    Join,
    Keyed,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Slice,
    Top,
    Values,
    WithKey,
)
from .branches import is_hidden
from .expressions import Call, ColumnRef, Expression, Literal
from .keeping import Part
from .operators.join import Step, Term
from .plan import ViewPlan
from .schema import Table

#: Rows that an index is expected to find where nothing is known about the data.
FAN_OUT_UNKNOWN = 10.0

#: How many rows an index of a table finds per key, on average; None: unknown.
FanOut = Callable[[str, tuple[int, ...]], float | None]

_KINDS = {
    "rows": "plain rows",
    "groups": "groups",
    "set": "a set of rows",
    "ordered": "rows in order",
    "slice": "the first rows of a view",
}


@dataclass(slots=True)
class _Node:
    """One line of the tree, and the lines below it."""

    text: str
    below: list[_Node] = field(default_factory=list)

    def lines(self) -> list[str]:
        found = [self.text]
        for number, node in enumerate(self.below):
            last = number == len(self.below) - 1
            first, *rest = node.lines()
            found.append(("└─ " if last else "├─ ") + first)
            found += [("   " if last else "│  ") + line for line in rest]
        return found


def explain(
    plan: ViewPlan, plans: Mapping[str, ViewPlan], fan_out: FanOut = lambda *_: None, *, measured: bool = False
) -> str:
    """The plan of a view as a tree. `plans` has those of all views that it reads, hidden ones included. `measured`:
    with the evaluators' costs, which a plan knows that has run."""
    lines = _Explanation(plans, fan_out).view(plan).lines()
    if measured:
        lines.append(f"evaluators: {'; '.join(plan.evaluator_choice().splitlines())}")
    return "\n".join(lines)


class _Explanation:
    def __init__(self, plans: Mapping[str, ViewPlan], fan_out: FanOut) -> None:
        self._plans, self._fan_out = plans, fan_out
        self._numbers: dict[str, int] = {}

    def view(self, plan: ViewPlan) -> _Node:
        key = ", ".join(name for name, _, _ in plan.key_columns)
        node = _Node(f"view {plan.name}: {_KINDS[plan.kept.kind]}, key ({key})")
        self._fill(node, plan)
        explained: set[str] = set()
        while waiting := [name for name in self._numbers if name not in explained]:
            for name in waiting:
                explained.add(name)
                inner = self._plans[name]
                text = describe(inner.relation, self._tables(inner), self.label)
                below = _Node(f"{self.label(name)}, kept for it: {text}")
                self._fill(below, inner)
                node.below.append(below)
        return node

    def _tables(self, plan: ViewPlan) -> dict[str, Table]:
        return {**plan.tables, **{name: inner.table for name, inner in self._plans.items()}}

    def label(self, name: str) -> str:
        """Hidden views are called by number."""
        if not is_hidden(name):
            return name
        return f"inner view {self._numbers.setdefault(name, len(self._numbers) + 1)}"

    def _source(self, part: Part, number: int) -> str:
        source = part.graph.sources[number]
        if is_hidden(source.table) or source.alias == source.table:
            return self.label(source.table)
        return f"{source.table} {source.alias}"

    def _fill(self, node: _Node, plan: ViewPlan) -> None:
        for number, part in enumerate(plan.kept.parts):
            names = [
                ("not in " if source.anti else "") + self._source(part, place)
                for place, source in enumerate(part.graph.sources)
            ]
            branch = _Node(" ⋈ ".join(names) or "constant rows")
            node.below.append(branch)
            for place in range(len(part.graph.sources)):
                branch.below.append(self._term(plan, part, place, plan.term((number, place))))
        for each in plan.extremes:
            end = "last" if each.last else "first"
            node.below.append(_Node(f"{end} value of a group, when it is read: {self.label(each.table)}"))
        if plan.kept.slice_of:
            node.below.append(_Node(f"change of {self.label(plan.kept.slice_of)}: its first rows, before and after"))

    def _term(self, plan: ViewPlan, part: Part, place: int, term: Term) -> _Node:
        rows, look_ups, found = 1.0, 0.0, 0.0
        below = []
        for stage in term.stages:
            reached = rows
            for step in stage:
                look_ups += reached
                if not step.by_key:
                    table = part.graph.sources[step.source].table
                    matches = self._fan_out(table, step.columns)
                    rows *= FAN_OUT_UNKNOWN if matches is None else matches
                    found += rows
                below.append(_Node(self._step(plan, part, step)))
        cost = f"{look_ups:.1f} look-ups" + (f" and {found:.1f} rows" if found else "") if below else "no look-up"
        return _Node(f"change of {self._source(part, place)}: {cost} per row", below)

    def _step(self, plan: ViewPlan, part: Part, step: Step) -> str:
        label = self._source(part, step.source)
        if step.whole:
            return f"{label}: all rows, because the first or the last row of the other side came or went"
        table = plan.tables[part.graph.sources[step.source].table]
        tables = self._tables(plan)
        equal = []
        for position, probe in zip(step.columns, step.probes, strict=True):
            name = _column_name(table, position)
            equal.append(f"{name} = {self._probe(part, probe, tables)}")
        through = "primary key" if step.by_key else "index"
        absent = ", must not be there" if step.anti else ""
        return f"{label} by {through} ({' and '.join(equal)}){absent}"

    def _probe(self, part: Part, probe: Expression, tables: Mapping[str, Table]) -> str:
        if not isinstance(probe, ColumnRef):
            return _Text({}, str).expression(probe, ())
        source = part.graph.sources[probe.source]
        alias = self.label(source.table) if is_hidden(source.table) else source.alias
        return f"{alias}.{_column_name(tables[source.table], probe.position)}"


def _column_name(table: Table, position: int) -> str:
    return table.columns[position].name or f"column {position + 1}"


# --- relations as text ---


def describe(relation: Relation, tables: Mapping[str, Table], label: Callable[[str], str] = str) -> str:
    """A relation in a few words, close to SQL: for people, not for reading it again. `label` names tables."""
    return _Text(tables, label).relation(relation)


class _Text:
    def __init__(self, tables: Mapping[str, Table], label: Callable[[str], str]) -> None:
        self._tables, self._label = tables, label

    def relation(self, relation: Relation) -> str:
        match relation:
            case Project() | Filter() | Scan() | Values() | Join() | Semi() | WithKey():
                return f"SELECT {', '.join(self.columns(relation)) or 'nothing'} FROM {self._from(relation)}"
            case Distinct():
                return self.relation(relation.input).replace("SELECT", "SELECT DISTINCT", 1)
            case Group():
                shown = ", ".join(self.columns(relation))
                keys = [self.expression(key, self.columns(relation.input)) for key in relation.keys]
                grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
                return f"SELECT {shown} FROM {self._from(relation.input)}{grouped}"
            case SetOp():
                operation = f" {relation.kind.upper()}{' ALL' if relation.all else ''} "
                return f"{self.relation(relation.left)}{operation}{self.relation(relation.right)}"
            case Top():
                return f"the first {relation.limit} of {self.relation(relation.input)}, in order"
            case Keyed() | Apply():
                return self.relation(relation.input)
            case Slice():
                return f"the first {relation.limit} rows of {self._label(relation.input.table)}"

    def _from(self, relation: Relation) -> str:
        match relation:
            case Scan():
                return self._label(relation.table)
            case Values():
                return "VALUES"
            case Project() | WithKey():
                return self._from(relation.input)
            case Filter():
                condition = self.expression(relation.condition, self.columns(relation.input))
                below = self._from(relation.input)
                return f"{below} {'AND' if ' WHERE ' in below else 'WHERE'} {condition}"
            case Join():
                kind = "" if relation.kind == "inner" else f"{relation.kind.upper()} "
                on = "" if relation.condition is None else f" ON {self._on(relation, relation.condition)}"
                return f"{self._from(relation.left)} {kind}JOIN {self._from(relation.right)}{on}"
            case Semi():
                word = "NOT EXISTS" if relation.anti else "EXISTS"
                return f"{self._from(relation.left)} WHERE {word} ({self.relation(relation.right)})"
            case _:
                return f"({self.relation(relation)})"

    def _on(self, relation: Join, condition: Expression) -> str:
        return self.expression(condition, [*self.columns(relation.left), *self.columns(relation.right)])

    def columns(self, relation: Relation) -> list[str]:
        match relation:
            case Scan():
                table = self._tables.get(relation.table)
                return [
                    _column_name(table, position) if table is not None else f"column {position + 1}"
                    for position in relation.positions
                ]
            case Values():
                return [f"column{place + 1}" for place in range(len(relation.fields))]
            case Project():
                inner = self.columns(relation.input)
                return [self.expression(output.expression, inner) for output in relation.outputs]
            case Join():
                return [*self.columns(relation.left), *self.columns(relation.right)]
            case Semi() | SetOp():
                return self.columns(relation.left)
            case Group():
                inner = self.columns(relation.input)
                keys = [self.expression(key, inner) for key in relation.keys]
                return [*keys, *(self._aggregate(each.kind, each.argument, inner) for each in relation.aggregates)]
            case WithKey():
                return [*self.columns(relation.input), *("key" for _ in relation.keys)]
            case Apply():
                return [*self.columns(relation.input), "subquery"]
            case Filter() | Distinct() | Top() | Slice() | Keyed():
                return self.columns(relation.input)

    def _aggregate(self, kind: str, argument: Expression | None, columns: Sequence[str]) -> str:
        return "count(*)" if argument is None else f"{kind}({self.expression(argument, columns)})"

    def expression(self, expression: Expression, columns: Sequence[str]) -> str:
        if isinstance(expression, ColumnRef):
            return columns[expression.position]
        if isinstance(expression, Literal):
            return "NULL" if expression.value is None else repr(expression.value)
        return self._call(expression, [self.expression(argument, columns) for argument in expression.args])

    def _operand(self, text: str) -> str:
        return text if text.isidentifier() or " " not in text else f"({text})"

    def _call(self, call: Call, args: list[str]) -> str:
        match call.op, args:
            case "is_null", [only]:
                return f"{only} IS NULL"
            case "is_not_null", [only]:
                return f"{only} IS NOT NULL"
            case "is_distinct", [one, other]:
                return f"{one} IS DISTINCT FROM {other}"
            case "is_not_distinct", [one, other]:
                return f"{one} IS NOT DISTINCT FROM {other}"
            case "cast", [only]:
                return f"{only}::{call.type}"
            case ("and" | "or") as word, _:
                return f"({f' {word.upper()} '.join(args)})"
            case op, [_, _] if not op.isidentifier():
                return f" {op} ".join(self._operand(part) for part in args)
            case op, _:
                return f"{op}({', '.join(args)})"
