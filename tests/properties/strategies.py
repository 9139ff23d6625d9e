"""Random schemas, views and histories, and a model that says what each of them should give.

The model is deliberately not the engine's own recompute: views are nested loops over dicts, expressions are Python
functions made beside their SQL text, and nothing is imported from the package but its public names.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias, TypeVar

from hypothesis import strategies as st

Value: TypeAlias = object
Row: TypeAlias = dict[str, Value]
#: A joined row: by alias of the source.
Joined: TypeAlias = Mapping[str, Row]
Key: TypeAlias = tuple[Value, ...]

INT_MAX = 2**63 - 1

#: Few values each, so that keys collide and joins find partners; every special value is among them.
POOLS: dict[str, tuple[Value, ...]] = {
    "int": (0, 1, 2, 3, -1, INT_MAX),
    "float": (0.0, -0.0, 0.1, 1.5, 1e16, -1e16, math.nan, math.inf, -math.inf),
    "decimal": tuple(map(Decimal, ("0", "1.0", "1.00", "-2.5", "0.1", "1e20", "NaN", "Infinity", "-Infinity"))),
    "str": ("", "a", "b", "A\0b", "é", "\U0001f30a"),
    "bool": (False, True),
    "date": (datetime.date(1, 1, 1), datetime.date(2024, 2, 29), datetime.date(9999, 12, 31)),
}
TYPES: dict[str, object] = {
    "int": int, "float": float, "decimal": Decimal, "str": str, "bool": bool, "date": datetime.date,
}  # fmt: skip
KINDS = tuple(POOLS)
ALIASES = ("a", "b", "c", "d")


class ModelDataError(Exception):
    """The engine must answer with DataError here."""


# --- values ---


def canonical(value: Value) -> Value:
    """Equal exactly where SQL says equal: NaN is NaN, -0.0 is 0.0, 1.0 is 1.00, but True is not 1."""
    if isinstance(value, float | Decimal) and math.isnan(value):
        return type(value).__name__, "NaN"
    return type(value).__name__, value


def exact(value: Value) -> Value:
    """As `canonical`, but also -0.0 is not 0.0: what a view must show of a column that it only passes on."""
    if isinstance(value, float) and value == 0:
        return "float", repr(value)
    return canonical(value)


def same(left: Value, right: Value) -> bool:
    return canonical(left) == canonical(right)


def above(left: Value, right: Value) -> bool:
    """left > right, with NaN above everything."""
    nans = [isinstance(side, float | Decimal) and math.isnan(side) for side in (left, right)]
    if any(nans):
        return nans[0] and not nans[1]
    return bool(operator.gt(left, right))  # type: ignore[arg-type]  # both are of one kind


def in_range(number: int) -> int:
    if not -INT_MAX - 1 <= number <= INT_MAX:
        raise ModelDataError("integer out of range")
    return number


# --- schemas ---


@dataclass
class Column:
    name: str
    kind: str
    default: Value = None


@dataclass
class Table:
    name: str
    columns: list[Column]
    key: tuple[str, ...]
    indexes: list[tuple[str, ...]]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


# --- views ---


@dataclass
class Expression:
    sql: str
    kind: str
    evaluate: Callable[[Joined], Value] = field(repr=False)
    bare: bool = False


@dataclass
class Aggregate:
    sql: str
    function: str
    argument: Expression | None


@dataclass
class ViewSpec:
    """`group_by` None: plain rows. `joins`: (source, column, earlier source, its column)."""

    name: str
    sql: str
    sources: list[tuple[str, str]]
    joins: list[tuple[str, str, str, str]] = field(repr=False)
    filters: list[Expression] = field(repr=False)
    group_by: list[Expression] | None = field(repr=False)
    outputs: list[Expression | Aggregate] = field(repr=False)
    columns: set[tuple[str, str]] = field(repr=False)

    def tables(self) -> set[str]:
        return {table for table, _ in self.sources}


def joined_rows(view: ViewSpec, rows: Mapping[str, Iterable[Row]]) -> list[Joined]:
    partial: list[dict[str, Row]] = [{}]
    for table, alias in view.sources:
        mine = [join for join in view.joins if join[0] == alias]
        partial = [
            {**joined, alias: row}
            for joined in partial
            for row in rows[table]
            if all(
                row[column] is not None and same(row[column], joined[other][other_column])
                for _, column, other, other_column in mine
            )
        ]
    return [joined for joined in partial if all(test.evaluate(joined) is True for test in view.filters)]


def groups_of(view: ViewSpec, rows: Mapping[str, Iterable[Row]]) -> list[tuple[Key, list[Joined]]]:
    assert view.group_by is not None
    found: dict[Key, tuple[Key, list[Joined]]] = {}
    for joined in joined_rows(view, rows):
        key = tuple(expression.evaluate(joined) for expression in view.group_by)
        found.setdefault(tuple(map(canonical, key)), (key, []))[1].append(joined)
    if not view.group_by and not found:
        return [((), [])]
    return list(found.values())


def evaluate_view(view: ViewSpec, rows: Mapping[str, Iterable[Row]]) -> list[tuple[Value, ...]]:
    """The view from scratch. Raises ModelDataError where the engine must refuse."""
    if view.group_by is None:
        return [
            tuple(output.evaluate(joined) for output in view.outputs if isinstance(output, Expression))
            for joined in joined_rows(view, rows)
        ]
    return [group_output(view, key, members) for key, members in groups_of(view, rows)]


def group_output(view: ViewSpec, key: Key, members: Sequence[Joined]) -> tuple[Value, ...]:
    values: list[Value] = []
    for output in view.outputs:
        if isinstance(output, Aggregate):
            values.append(aggregated(output, members))
        else:
            assert view.group_by is not None
            values.append(key[view.group_by.index(output)])
    return tuple(values)


def aggregated(aggregate: Aggregate, members: Sequence[Joined]) -> Value:
    if aggregate.argument is None:
        return len(members)
    values = [value for joined in members if (value := aggregate.argument.evaluate(joined)) is not None]
    if aggregate.function == "COUNT":
        return len(values)
    if not values:
        return None
    total = exact_sum(values)
    if aggregate.function == "SUM":
        return total_of_kind(total, aggregate.argument.kind)
    return average(total, len(values), aggregate.argument.kind)


def exact_sum(values: Sequence[Value]) -> Fraction | float:
    """A Fraction, or the infinity or NaN that it comes to."""
    special = {str(value) for value in values if isinstance(value, float | Decimal) and not math.isfinite(value)}
    if special:
        return float(special.pop().lower()) if len(special) == 1 else math.nan
    return sum((Fraction(value) for value in values), Fraction())  # type: ignore[call-overload]  # numbers only


def total_of_kind(total: Fraction | float, kind: str) -> Value:
    if kind == "float":
        return float(total)
    if isinstance(total, float):
        return Decimal(total)
    return int(total) if kind == "int" else Decimal(total.numerator) / Decimal(total.denominator)


def average(total: Fraction | float, count: int, kind: str) -> Value:
    if isinstance(total, float):
        return total if kind == "float" else Decimal(total)
    mean = total / count
    return float(mean) if kind == "float" else Decimal(mean.numerator) / Decimal(mean.denominator)


def comparable(view: ViewSpec, row: Sequence[Value]) -> tuple[Value, ...]:
    """What must agree between model and engine. Averages of ints and decimals have a scale of their own: 12 digits."""
    result: list[Value] = []
    for output, value in zip(view.outputs, row, strict=True):
        if isinstance(output, Aggregate):
            rounded = output.function == "AVG" and isinstance(value, Decimal) and value.is_finite()
            result.append(("avg", f"{value:.11e}") if rounded and value else canonical(value))
        else:
            result.append(exact(value) if output.bare and view.group_by is None else canonical(value))
    return tuple(result)


# --- steps of a history ---


@dataclass
class Write:
    """`kind` is insert (rows), upsert (rows), update (key, changes) or delete (key)."""

    kind: str
    table: str
    rows: list[Row] = field(default_factory=list)
    key: Key = ()
    changes: Row = field(default_factory=dict)


@dataclass
class Read:
    """Inside a transaction: `what` is get (key), scan, find (column, value) or view (its name)."""

    what: str
    name: str
    key: Key = ()
    column: str = ""
    value: Value = None


@dataclass
class Transact:
    steps: list[Write | Read]
    end: str  # commit, rollback or exception


@dataclass
class CreateView:
    view: ViewSpec


@dataclass
class DropView:
    name: str


@dataclass
class AddColumn:
    table: str
    column: Column


@dataclass
class DropColumn:
    """`used`: by a key or a view, as far as the history knows: then it must be refused. Indexes go with it."""

    table: str
    column: str
    used: bool


@dataclass
class CreateIndex:
    table: str
    columns: tuple[str, ...]


@dataclass
class DropIndex:
    table: str
    columns: tuple[str, ...]


@dataclass
class Checkpoint:
    """`forget`: also push everything that is in the store out of memory."""

    forget: bool


@dataclass
class HoldSnapshot:
    """Open a snapshot that stays open over the steps that follow, and is compared after each."""


@dataclass
class Reopen:
    """`crash`: go on with a copy of the directory as it was at this moment, without any close."""

    crash: bool


Step: TypeAlias = (
    Transact
    | CreateView
    | DropView
    | AddColumn
    | DropColumn
    | CreateIndex
    | DropIndex
    | Checkpoint
    | HoldSnapshot
    | Reopen
)


@dataclass
class History:
    tables: list[Table]
    steps: list[Step]


# --- drawing ---

T = TypeVar("T")
Draw: TypeAlias = Callable[[st.SearchStrategy[int]], int]
_NUMBERS = [st.integers(0, highest) for highest in range(64)]

SOURCES_MAX = 4
STEPS_MIN, STEPS_MAX = 4, 11
#: Most keys come from the first values of their pool, so that writes meet rows that exist.
KEY_POOL = 4
ADDED_NAMES = ("n0", "n1", "n2")


class Chooser:
    """All chance comes through here: small numbers only, which are drawn fast and shrink to the first choice."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._names = 0

    def below(self, count: int) -> int:
        return self._draw(_NUMBERS[count - 1]) if count > 1 else 0

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def one(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def chance(self, one_in: int) -> bool:
        """Rather no: shrinking leads there."""
        return self.below(one_in) == one_in - 1

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def value(self, column: Column, *, key: bool) -> Value:
        pool = POOLS[column.kind]
        if key:
            return pool[self.below(min(len(pool), KEY_POOL))] if not self.chance(4) else self.one(pool)
        return None if self.chance(6) else self.one(pool)


def draw_table(choose: Chooser, name: str) -> Table:
    # Shrinks to int columns; the first column of every table can always be joined with that of another.
    columns = [Column(f"c{number}", choose.one(KINDS)) for number in range(choose.between(2, 4))]
    if not choose.chance(3):
        columns[0].kind = "int"
    key = tuple(column.name for column in columns[: 2 if choose.chance(3) else 1])
    table = Table(name, columns, key, [])
    for _ in range(choose.below(3)):
        index = draw_index(choose, table)
        if index not in table.indexes:
            table.indexes.append(index)
    return table


def draw_index(choose: Chooser, table: Table) -> tuple[str, ...]:
    names = [column.name for column in table.columns]
    first = choose.one(names)
    rest = [name for name in names if name != first]
    return (first, choose.one(rest)) if rest and choose.chance(3) else (first,)


def draw_row(choose: Chooser, table: Table) -> Row:
    return {column.name: choose.value(column, key=column.name in table.key) for column in table.columns}


def draw_key(choose: Chooser, table: Table) -> Key:
    return tuple(choose.value(table.column(name), key=True) for name in table.key)


def draw_write(choose: Chooser, table: Table) -> Write:
    kind = choose.one(("insert", "upsert", "insert", "update", "delete", "move"))
    if kind == "insert":
        return Write(kind, table.name, [draw_row(choose, table) for _ in range(choose.between(1, 3))])
    if kind == "upsert":
        rows = [draw_row(choose, table) for _ in range(choose.between(1, 2))]
        for row in rows:
            for column in table.columns:
                if column.name not in table.key and choose.chance(3):
                    del row[column.name]
        return Write(kind, table.name, rows)
    key = draw_key(choose, table)
    if kind == "delete":
        return Write(kind, table.name, key=key)
    changed = [column for column in table.columns if choose.below(2)] or [table.columns[-1]]
    if kind == "update":
        changed = [column for column in changed if column.name not in table.key]
    else:
        changed.append(table.column(table.key[0]))
    changes = {column.name: choose.value(column, key=column.name in table.key) for column in changed}
    return Write("update", table.name, key=key, changes=changes)


def draw_read(choose: Chooser, tables: Sequence[Table], views: Sequence[ViewSpec]) -> Read:
    if views and choose.below(2):
        return Read("view", choose.one(views).name)
    table = choose.one(tables)
    what = choose.one(("get", "scan", "find"))
    if what == "get":
        return Read(what, table.name, key=draw_key(choose, table))
    if what == "find":
        column = choose.one(table.columns)
        value = choose.value(column, key=False)
        return Read(
            what, table.name, column=column.name, value=choose.one(POOLS[column.kind]) if value is None else value
        )
    return Read(what, table.name)


# Views.


def draw_view(choose: Chooser, name: str, tables: Sequence[Table]) -> ViewSpec:
    sources = [(choose.one(tables), ALIASES[0])]
    joins: list[tuple[str, str, str, str]] = []
    for alias in ALIASES[1 : choose.one((1, 2, 2, 1, 3, SOURCES_MAX))]:
        table = choose.one(tables)
        pairs = [
            (alias, mine.name, other_alias, theirs.name)
            for other, other_alias in sources
            for mine in table.columns
            for theirs in other.columns
            if mine.kind == theirs.kind
        ]
        if not pairs:
            break
        sources.append((table, alias))
        joins.append(choose.one(pairs))
        if choose.chance(4):
            joins.append(choose.one(pairs))
    scope = [(table, alias, column) for table, alias in sources for column in table.columns]
    filters = [draw_test(choose, scope) for _ in range(choose.one((0, 0, 1, 2)))]
    group_by: list[Expression] | None = None
    outputs: list[Expression | Aggregate]
    if choose.below(2):
        drawn = [draw_expression(choose, scope, risky=choose.chance(6)) for _ in range(choose.one((1, 0, 2)))]
        # What stands twice in GROUP BY is one column of the key.
        group_by = list({expression.sql: expression for expression in drawn}.values())
        outputs = [expression for expression in group_by if not choose.chance(5)]
        outputs += [draw_aggregate(choose, scope) for _ in range(choose.between(1, 3))]
    else:
        outputs = [draw_expression(choose, scope, risky=choose.chance(6)) for _ in range(choose.between(1, 3))]
    plain = [(table.name, alias) for table, alias in sources]
    sql = view_sql(choose, plain, joins, filters, group_by, outputs)
    named = set(re.findall(r"\b[a-d]\.\w+", sql))
    used = {(table.name, column.name) for table, alias, column in scope if f"{alias}.{column.name}" in named}
    return ViewSpec(name, sql, plain, joins, filters, group_by, outputs, used)


def view_sql(
    choose: Chooser,
    sources: Sequence[tuple[str, str]],
    joins: Sequence[tuple[str, str, str, str]],
    filters: Sequence[Expression],
    group_by: Sequence[Expression] | None,
    outputs: Sequence[Expression | Aggregate],
) -> str:
    shown = ", ".join(f"{output.sql} AS o{number}" for number, output in enumerate(outputs))
    conditions = [f"({test.sql})" for test in filters]
    comma = choose.chance(4)
    text = f"{sources[0][0]} {sources[0][1]}"
    for table, alias in sources[1:]:
        equal = [f"{alias}.{mine} = {other}.{theirs}" for left, mine, other, theirs in joins if left == alias]
        if comma:
            text += f", {table} {alias}"
            conditions += equal
        else:
            text += f" JOIN {table} {alias} ON {' AND '.join(equal)}"
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    grouping = f" GROUP BY {', '.join(expression.sql for expression in group_by)}" if group_by else ""
    return f"SELECT {shown} FROM {text}{where}{grouping}"


Scope: TypeAlias = Sequence[tuple[Table, str, Column]]


def column_of(entry: tuple[Table, str, Column]) -> Expression:
    _, alias, column = entry
    return Expression(f"{alias}.{column.name}", column.kind, lambda joined: joined[alias][column.name], bare=True)


def draw_expression(choose: Chooser, scope: Scope, *, risky: bool = False, kinds: Sequence[str] = KINDS) -> Expression:
    usable = [entry for entry in scope if entry[2].kind in kinds]
    first = column_of(choose.one(usable))
    form = choose.below(5)
    if form == 3:
        return draw_conditional(choose, scope, first)
    if form != 4:
        return first
    if first.kind == "int":
        other = column_of(choose.one([entry for entry in usable if entry[2].kind == "int"]))
        return draw_arithmetic(choose, first, other, fails=one_source(scope), risky=risky)
    if first.kind in ("float", "decimal"):
        return Expression(f"- {first.sql}", first.kind, strict(operator.neg, first))
    if first.kind == "str":
        if choose.below(2) and "int" in kinds:
            return Expression(f"length({first.sql})", "int", strict(len, first))
        return Expression(f"{first.sql} || 'x'", "str", strict(lambda text: text + "x", first))
    return first


def one_source(scope: Scope) -> bool:
    return len({alias for _, alias, _ in scope}) == 1


def draw_arithmetic(choose: Chooser, first: Expression, other: Expression, *, fails: bool, risky: bool) -> Expression:
    """`fails`: an expression may have no value for some rows, so that the engine must refuse them."""
    if fails and risky:
        return Expression(f"10 / ({first.sql} + {other.sql})", "int", strict(divided, first, other))
    if not fails or choose.below(2):
        return Expression(f"{first.sql} % 3", "int", strict(lambda number: abs(number) % 3 * sign_of(number), first))
    return Expression(
        f"{first.sql} - {other.sql}", "int", strict(lambda left, right: in_range(left - right), first, other)
    )


def sign_of(number: int) -> int:
    return -1 if number < 0 else 1


def divided(left: int, right: int) -> int:
    total = in_range(left + right)
    if total == 0:
        raise ModelDataError("division by zero")
    return int(Fraction(10, total))


def draw_conditional(choose: Chooser, scope: Scope, first: Expression) -> Expression:
    text, value = draw_literal(choose, first.kind)
    if choose.below(2):

        def coalesced(joined: Joined) -> Value:
            found = first.evaluate(joined)
            return value if found is None else found

        return Expression(f"COALESCE({first.sql}, {text})", first.kind, coalesced)
    test = draw_test(choose, scope)

    def chosen(joined: Joined) -> Value:
        return first.evaluate(joined) if test.evaluate(joined) is True else value

    return Expression(f"CASE WHEN {test.sql} THEN {first.sql} ELSE {text} END", first.kind, chosen)


def strict(function: Callable[..., Value], *arguments: Expression) -> Callable[[Joined], Value]:
    """NULL in, NULL out."""

    def evaluate(joined: Joined) -> Value:
        values = [argument.evaluate(joined) for argument in arguments]
        return None if any(value is None for value in values) else function(*values)

    return evaluate


LITERALS: dict[str, tuple[tuple[str, Value], ...]] = {
    "int": (("1", 1), ("0", 0), ("-1", -1)),
    "float": (
        ("CAST(1.5 AS double precision)", 1.5),
        ("CAST('NaN' AS double precision)", math.nan),
        ("CAST('-Infinity' AS double precision)", -math.inf),
    ),
    "decimal": (("1.0", Decimal("1.0")), ("0.1", Decimal("0.1")), ("CAST('NaN' AS numeric)", Decimal("NaN"))),
    "str": (("'a'", "a"), ("'é'", "é"), ("''", "")),
    "bool": (("TRUE", True), ("FALSE", False)),
    "date": (("DATE '2024-02-29'", datetime.date(2024, 2, 29)),),
}


def draw_literal(choose: Chooser, kind: str) -> tuple[str, Value]:
    return choose.one(LITERALS[kind])


COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "=": same,
    "<>": lambda left, right: not same(left, right),
    ">": above,
    "<": lambda left, right: above(right, left),
    ">=": lambda left, right: not above(right, left),
    "<=": lambda left, right: not above(left, right),
}


def draw_test(choose: Chooser, scope: Scope, depth: int = 0) -> Expression:
    form = choose.below(4 if depth else 6)
    if form == 4:
        inner = draw_test(choose, scope, depth + 1)
        return Expression(f"NOT ({inner.sql})", "bool", strict(operator.not_, inner))
    if form == 5:
        left, right = draw_test(choose, scope, depth + 1), draw_test(choose, scope, depth + 1)

        def either(joined: Joined) -> Value:
            found = [left.evaluate(joined), right.evaluate(joined)]
            return True if True in found else None if None in found else False

        return Expression(f"({left.sql} OR {right.sql})", "bool", either)
    first = column_of(choose.one(scope))
    if form == 3:
        return Expression(f"{first.sql} IS NULL", "bool", lambda joined: first.evaluate(joined) is None)
    sign = choose.one(tuple(COMPARISONS))
    if form == 2:
        other = column_of(choose.one([entry for entry in scope if entry[2].kind == first.kind]))
        # An equality between two tables would be one more join condition, which `draw_view` makes.
        sign = "<>" if sign == "=" else sign
        return Expression(f"{first.sql} {sign} {other.sql}", "bool", strict(COMPARISONS[sign], first, other))
    text, value = draw_literal(choose, first.kind)
    compare = COMPARISONS[sign]
    return Expression(f"{first.sql} {sign} {text}", "bool", strict(lambda found: compare(found, value), first))


def draw_aggregate(choose: Chooser, scope: Scope) -> Aggregate:
    numeric = ("int", "float", "decimal")
    function = choose.one(("COUNT(*)", "SUM", "COUNT", "AVG"))
    if function == "COUNT(*)" or (function != "COUNT" and not any(entry[2].kind in numeric for entry in scope)):
        return Aggregate("COUNT(*)", "COUNT", None)
    kinds = KINDS if function == "COUNT" else numeric
    argument = draw_expression(choose, scope, risky=choose.chance(8), kinds=kinds)
    return Aggregate(f"{function}({argument.sql})", function, argument)


# Histories.


@st.composite
def histories(draw: Callable[[st.SearchStrategy[int]], int], *, on_disk: bool) -> History:
    """A schema and some steps that make sense for it; what the engine must refuse is left to the test's model."""
    choose = Chooser(draw)
    tables = [draw_table(choose, f"t{number}") for number in range(choose.between(1, 4))]
    first = [Table(table.name, list(table.columns), table.key, list(table.indexes)) for table in tables]
    steps: list[Step] = []
    views: list[ViewSpec] = []
    if not choose.chance(4):
        steps.append(_create_view(choose, tables, views))
    for _ in range(choose.between(STEPS_MIN, STEPS_MAX)):
        steps.append(_draw_step(choose, tables, views, on_disk))
    return History(first, steps)


def _create_view(choose: Chooser, tables: Sequence[Table], views: list[ViewSpec]) -> CreateView:
    view = draw_view(choose, choose.name("v"), tables)
    views.append(view)
    return CreateView(view)


def _draw_step(choose: Chooser, tables: list[Table], views: list[ViewSpec], on_disk: bool) -> Step:
    form = choose.below(16 if on_disk else 14)
    if form == 13 and len(views) < 3:
        return _create_view(choose, tables, views)
    if form == 12 and views:
        return DropView(views.pop(choose.below(len(views))).name)
    if form in (8, 9):
        return Checkpoint(forget=form == 9)
    if form == 10:
        return HoldSnapshot()
    if form == 11:
        return _draw_change_of_table(choose, choose.one(tables), views)
    if form >= 14:
        return Reopen(crash=form == 15)
    return _draw_transaction(choose, tables, views)


def _draw_transaction(choose: Chooser, tables: Sequence[Table], views: Sequence[ViewSpec]) -> Transact:
    steps: list[Write | Read] = []
    for _ in range(choose.between(1, 5)):
        if choose.chance(4):
            steps.append(draw_read(choose, tables, views))
        else:
            steps.append(draw_write(choose, choose.one(tables)))
    return Transact(steps, choose.one(("commit",) * 6 + ("rollback", "exception")))


def _draw_change_of_table(choose: Chooser, table: Table, views: Sequence[ViewSpec]) -> Step:
    form = choose.below(4)
    if form == 0:
        # Names come again: a column that was dropped and one of the same name are two columns.
        free = [name for name in ADDED_NAMES if all(column.name != name for column in table.columns)]
        if not free:
            return Checkpoint(forget=True)
        column = Column(choose.one(free), choose.one(KINDS))
        if choose.below(2):
            column.default = choose.one(POOLS[column.kind])
        table.columns.append(column)
        return AddColumn(table.name, column)
    if form == 1:
        used = {name for view in views for name_of_table, name in view.columns if name_of_table == table.name}
        used.update(table.key)
        column = choose.one(table.columns)
        if column.name not in used:
            table.columns.remove(column)
            table.indexes[:] = [index for index in table.indexes if column.name not in index]
        return DropColumn(table.name, column.name, column.name in used)
    if form == 2 and table.indexes:
        return DropIndex(table.name, choose.one(table.indexes))
    index = draw_index(choose, table)
    if index not in table.indexes:
        table.indexes.append(index)
    return CreateIndex(table.name, index)
