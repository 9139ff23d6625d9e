"""Random databases and random relations over them, for every test that says "two ways give the same bag".

Tables are small and their values few, so that keys meet, rows repeat and groups have several members. The odd values
of each type are among them: NULL, NaN, both zeros, infinities, decimals that differ by their scale only. Relations are
well typed and, unless asked otherwise, cannot fail: no division, no overflow. Nothing depends on which of two equal
values represents a group (0.0 or -0.0, 1.0 or 1.00), because SQL does not say.

Everything is drawn through Hypothesis, the simplest choice first, so that a failure shrinks to a small tree.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from viewtide.changetables.algebra import (
    Distinct,
    Field,
    Filter,
    Group,
    Join,
    Order,
    Output,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Top,
    Values,
    column,
    inputs,
)
from viewtide.changetables.expressions import Aggregate, Call, ColumnRef, Expression, Literal
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.types import BOOL, DATE, DECIMAL, FLOAT, INT, NAN, STR, Row, Type, Value

DEPTH_MAX = 4
#: Columns of one relation; a join of wider ones is cut down first.
WIDTH_MAX = 8
ROWS_MAX = 8

PRICE = Type("decimal", 6, 2)
#: Few values per type, so that equal ones meet. Sums and products of these stay far from every limit.
VALUES: dict[Type, list[Value]] = {
    INT: [0, 1, 2, 3, -1, 1_000_000],
    FLOAT: [0.0, 1.5, -0.0, 0.1, -2.5, 1e16, float("inf"), float("-inf"), NAN],
    DECIMAL: [*map(Decimal, ("0", "1", "1.0", "1.00", "-2.5", "0.333333333333333333", "Infinity")), DECIMAL_NAN],
    PRICE: [Decimal("0.00"), Decimal("1.00"), Decimal("99.99"), Decimal("-3.10")],
    STR: ["", "a", "b", "Ab%", "straße", "a_b"],
    BOOL: [True, False],
    DATE: [datetime.date(2024, 2, 29), datetime.date(1, 1, 1)],
}
#: What tables are keyed by, and the values that keys have.
KEYS: list[tuple[Type, ...]] = [(INT,), (INT, STR), (STR,), (FLOAT,), (DECIMAL,), (DATE, INT)]
#: Kinds whose equal values may look different.
INEXACT = ("float", "decimal")
NUMERIC = ("int", "float", "decimal")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")

_Any = TypeVar("_Any")
Draw = Callable[[st.SearchStrategy[_Any]], _Any]


@dataclass(frozen=True)
class Database:
    """Tables (views among them, which have a hidden column "*") and their physical rows, keys unique."""

    tables: dict[str, Table]
    rows: dict[str, list[Row]]


# --- tables and rows ---


def key_of(table: Table, row: Row) -> Row:
    return tuple(row[position] for position in table.key)


def table_named(draw: Draw[object], name: str, number: int, *, view: bool = False) -> Table:
    """A table with a primary key, or with a hidden row id; a view also has a hidden multiplicity."""
    choose = _Chooser(draw)
    columns: list[Column] = []
    if view or choose.chance(4):
        columns.append(Column("", INT, nullable=False, hidden=True))
        key: tuple[int, ...] = (0,)
    else:
        kinds = choose.one(KEYS)
        columns += [Column(f"k{place}", kind, nullable=False) for place, kind in enumerate(kinds)]
        key = tuple(range(len(kinds)))
        if len(key) == 2 and choose.chance(3):
            key = (1, 0)
    if view:
        columns.append(Column("*", INT, nullable=False, hidden=True))
    columns += [Column("a", INT), Column("b", INT, nullable=not choose.chance(2))]
    columns += [
        Column(f"c{place}", choose.one(list(VALUES)), nullable=not choose.chance(3))
        for place in range(choose.number(0, 2))
    ]
    if not view and choose.chance(3):
        columns.append(Column("late", INT, default=choose.one([None, 7]), has_default=True))
    visible = [place for place, item in enumerate(columns) if not item.hidden]
    indexed = {tuple(choose.some(visible, 1, 2)) for _ in range(choose.number(0, 3))}
    indexes = tuple(Index(100 * number + place, positions) for place, positions in enumerate(sorted(indexed)))
    return Table(number, name, tuple(columns), key, indexes)


def row_of(draw: Draw[object], table: Table) -> Row:
    """A physical row. One that is older than the last column of its table lacks it."""
    choose = _Chooser(draw)
    values: list[Value] = []
    for position, item in enumerate(table.columns):
        if item.name == "" and item.hidden:
            values.append(choose.number(0, 2 * ROWS_MAX))
        elif item.name == "*":
            values.append(choose.number(1, 3))
        elif item.nullable and position not in table.key and choose.chance(5):
            values.append(None)
        elif item.type == INT and not choose.chance(8):
            values.append(choose.number(0, 3))  # Small ones are foreign keys, and find partners.
        else:
            values.append(choose.one(VALUES[item.type]))
    if table.columns[-1].name == "late" and choose.chance(3):
        values.pop()
    return tuple(values)


@st.composite
def databases(draw: Draw[object], *, views: bool = True) -> Database:
    """Two or three tables with rows, and perhaps a view."""
    choose = _Chooser(draw)
    names = [f"t{number}" for number in range(choose.number(2, 3))]
    tables = {name: table_named(draw, name, number + 1) for number, name in enumerate(names)}
    if views and choose.chance(2):
        tables["v"] = table_named(draw, "v", len(names) + 1, view=True)
    return Database(tables, {name: rows_of(draw, table) for name, table in tables.items()})


def rows_of(draw: Draw[object], table: Table) -> list[Row]:
    """Rows with different keys (0.0 and -0.0 are one key)."""
    choose = _Chooser(draw)
    # Most tables have rows enough that a relation of some depth has any.
    drawn = [row_of(draw, table) for _ in range(choose.number(0 if choose.chance(6) else ROWS_MAX // 2, ROWS_MAX))]
    return list({key_of(table, row): row for row in drawn}.values())


# --- relations ---


@st.composite
def relations(
    draw: Draw[object],
    tables: dict[str, Table],
    *,
    incremental: bool = False,
    risky: bool = False,
    depth: int = DEPTH_MAX,
) -> Relation:
    """A relation over the tables, of all kinds of nodes, at most `depth` of them one above the other.

    `incremental`: only what can be kept: each join, semi-join and anti-join has an equality of columns of both sides,
    each Top has a limit. `risky`: arithmetic may divide by zero or overflow.
    """
    return Maker(draw, tables, incremental=incremental, risky=risky).relation(depth)


@lru_cache(maxsize=64)
def _up_to(number: int) -> st.SearchStrategy[int]:
    """Making a strategy takes longer than drawing from it."""
    return st.integers(0, number)


class _Chooser:
    """Draws with Hypothesis, the first of the choices being the simplest."""

    def __init__(self, draw: Draw[object]) -> None:
        self._draw = draw

    def number(self, low: int, high: int) -> int:
        found = self._draw(_up_to(high - low))
        assert isinstance(found, int)
        return low + found

    def one(self, choices: Sequence[_Any]) -> _Any:
        return choices[self.number(0, len(choices) - 1)]

    def chance(self, one_in: int) -> bool:
        """True once in so many times; False is the simpler one."""
        return self.number(0, one_in - 1) == one_in - 1

    def some(self, choices: Sequence[_Any], least: int, most: int) -> list[_Any]:
        """Different choices, in any order."""
        left, found = list(choices), []
        for _ in range(min(self.number(least, max(least, most)), len(left))):
            found.append(left.pop(self.number(0, len(left) - 1)))
        return found


def nullable(expression: Expression) -> bool:
    """Whether the expression may be NULL, on the safe side."""
    if isinstance(expression, Literal):
        return expression.value is None
    if isinstance(expression, Call):
        return expression.op not in ("is_null", "is_not_null", "is_distinct", "is_not_distinct")
    return expression.nullable


class Maker:
    """Draws relations over given tables."""

    def __init__(self, draw: Draw[object], tables: dict[str, Table], *, incremental: bool, risky: bool) -> None:
        self._choose = _Chooser(draw)
        self._tables, self._incremental, self._risky = tables, incremental, risky

    def relation(self, depth: int) -> Relation:
        choose = self._choose
        if depth <= 1 or choose.chance(8):
            return self.leaf()
        makers = (self.filter, self.project, self.join, self.group, self.semi, self.set_operation, self.distinct)
        return choose.one((*makers, self.join, self.group, self.top))(depth)

    # --- leaves ---

    def leaf(self) -> Relation:
        choose = self._choose
        if choose.chance(8):
            return self.values()
        scan = self.scan()
        return Filter(scan, self.key_condition(scan)) if choose.chance(4) else scan

    def scan(self) -> Scan:
        choose = self._choose
        table = choose.one(list(self._tables.values()))
        positions = tuple(choose.some(table.visible(), 2, WIDTH_MAX)) if choose.chance(2) else table.visible()
        columns = [table.columns[position] for position in positions]
        fields = tuple(Field(item.name, item.type, item.nullable) for item in columns)
        return Scan(table.name, f"{table.name}_{choose.number(0, 9)}", positions, fields)

    def values(self) -> Values:
        choose = self._choose
        types = [INT, *(choose.one(list(VALUES)) for _ in range(choose.number(0, 2)))]
        rows = tuple(
            tuple(None if choose.chance(5) else choose.one(VALUES[type_]) for type_ in types)
            for _ in range(choose.number(0, 3))
        )
        return Values(rows, tuple(Field(f"v{place}", type_, True) for place, type_ in enumerate(types)))

    # --- one input ---

    def filter(self, depth: int) -> Relation:
        below = self.relation(depth - 1)
        if isinstance(below, Scan) and self._choose.chance(2):
            return Filter(below, self.key_condition(below))
        return Filter(below, self.condition(below))

    def key_condition(self, scan: Scan) -> Expression:
        """What a primary key or an index can serve: their columns compared with constants, in one of the usual ways."""
        choose, table = self._choose, self._tables[scan.table]
        served = [table.key, *(index.columns for index in table.indexes)]
        shown = [[scan.positions.index(place) for place in places if place in scan.positions] for places in served]
        # Indexes first: there are fewer of them.
        places = choose.one([some for some in reversed(shown) if some] or [[0]])
        columns = [column(scan, place) for place in places]

        def row_is() -> Expression:
            equalities = tuple(Call("=", (item, self.literal(item.type.kind)), BOOL) for item in columns)
            return Call("and", equalities, BOOL) if len(equalities) > 1 else equalities[0]

        def between() -> Expression:
            kind = columns[-1].type.kind
            low, high = self.literal(kind), self.literal(kind)
            parts = (Call(">=", (columns[-1], low), BOOL), Call("<", (columns[-1], high), BOOL))
            equalities = tuple(Call("=", (item, self.literal(item.type.kind)), BOOL) for item in columns[:-1])
            return Call("and", (*equalities, *parts), BOOL)

        def listed() -> Expression:
            first = columns[0]
            return Call("in", (first, *(self.literal(first.type.kind) for _ in range(choose.number(1, 3)))), BOOL)

        def any_of() -> Expression:
            return Call("or", (row_is(), row_is()), BOOL)

        return choose.one((row_is, between, any_of, listed))()

    def project(self, depth: int) -> Relation:
        below = self.relation(depth - 1)
        expressions = [self.expression(below) for _ in range(self._choose.number(1, 4))]
        return self._projected(below, expressions)

    def _projected(self, below: Relation, expressions: Sequence[Expression]) -> Project:
        outputs = (Output(f"o{place}", item, nullable(item)) for place, item in enumerate(expressions))
        return Project(below, tuple(outputs))

    def distinct(self, depth: int) -> Relation:
        return Distinct(self._narrow(self.relation(depth - 1), 2))

    def group(self, depth: int) -> Relation:
        choose, below = self._choose, self.relation(depth - 1)
        keys = tuple(self.expression(below) for _ in range(choose.number(0, 2)))
        aggregates = tuple(self.aggregate(below) for _ in range(choose.number(0 if keys else 1, 3)))
        names = tuple(f"g{place}" for place in range(len(keys) + len(aggregates)))
        never_null = ("count", "count_star")
        can_be_null = [*map(nullable, keys), *(item.kind not in never_null for item in aggregates)]
        return Group(below, keys, aggregates, names, tuple(can_be_null))

    def top(self, depth: int) -> Relation:
        choose, below = self._choose, self.relation(depth - 1)
        order = []
        # At least one: without ORDER BY, any rows are a right answer.
        for _ in range(choose.number(1, 2)):
            expression = self.column(below) if not choose.chance(4) else self.expression(below)
            descending = choose.chance(2)
            order.append(Order(expression, descending, descending if not choose.chance(4) else not descending))
        unlimited = not self._incremental and choose.chance(5)
        return Top(below, tuple(order), None if unlimited else choose.number(0, 4), choose.one((0, 0, 1, 2)))

    def _narrow(self, relation: Relation, width: int) -> Relation:
        """The relation with at most `width` of its columns."""
        if len(relation.fields) <= width:
            return relation
        places = self._choose.some(range(len(relation.fields)), 1, width)
        return self._projected(relation, [column(relation, place) for place in places])

    # --- two inputs ---

    def join(self, depth: int) -> Relation:
        left, right = self._sides(depth)
        condition = self.join_condition(left, right)
        if condition is None and self._incremental:
            return left
        kind = self._choose.one(("inner", "inner", "left", "right", "full"))
        return Join(kind, left, right, condition)

    def semi(self, depth: int) -> Relation:
        left, right = self._sides(depth)
        condition = self.join_condition(left, right)
        if condition is None and self._incremental:
            return left
        return Semi(left, right, condition, self._choose.chance(2))

    def _sides(self, depth: int) -> tuple[Relation, Relation]:
        left, right = self.relation(depth - 1), self.relation(depth - 1)
        return self._narrow(left, WIDTH_MAX // 2), self._narrow(right, WIDTH_MAX // 2)

    def join_condition(self, left: Relation, right: Relation) -> Expression | None:
        """Equalities, where there are columns of one type, and perhaps more; None: no equality was found, or wanted."""
        choose, width = self._choose, len(left.fields)
        both = Join("full", left, right, None)
        pairs = [
            (mine, width + other)
            for mine, field in enumerate(left.fields)
            for other, partner in enumerate(right.fields)
            if field.type.kind == partner.type.kind
            and (not self._incremental or (is_stored(left, mine) and is_stored(right, other)))
        ]
        if self._incremental and not pairs:
            return None
        parts: list[Expression] = []
        for mine, other in choose.some(pairs, 1, 2):
            op = "is_not_distinct" if choose.chance(6) else "="
            sides = (column(both, mine), column(both, other))
            parts.append(Call(op, sides if not choose.chance(3) else sides[::-1], BOOL))
        if not self._incremental and choose.chance(4):
            parts = []
        if choose.chance(3):
            parts.append(self.condition(both))
        return self._all_of(parts)

    def _all_of(self, parts: list[Expression]) -> Expression | None:
        if len(parts) > 1:
            return Call("and", tuple(parts), BOOL)
        return parts[0] if parts else None

    def set_operation(self, depth: int) -> Relation:
        choose = self._choose
        left, right = self._narrow(self.relation(depth - 1), 3), self.relation(depth - 1)
        matching = [self.expression(right, field.type.kind) for field in left.fields]
        # The types of both sides are equal, so that precisions go where they differ.
        left_types = [Type(field.type.kind) for field in left.fields]
        left = self._projected(left, [_plain(column(left, place), type_) for place, type_ in enumerate(left_types)])
        right = self._projected(right, [_plain(item, type_) for item, type_ in zip(matching, left_types, strict=True)])
        return SetOp(choose.one(("union", "union", "intersect", "except")), choose.chance(2), left, right)

    # --- expressions ---

    def column(self, relation: Relation) -> Expression:
        return column(relation, self._choose.number(0, len(relation.fields) - 1))

    def expression(self, relation: Relation, kind: str = "", depth: int = 2) -> Expression:
        """An expression over the relation's rows, of the kind if one is given: a column as a rule."""
        choose = self._choose
        columns = [column(relation, place) for place in range(len(relation.fields))]
        fitting = [item for item in columns if kind in ("", item.type.kind)]
        if fitting and (depth == 0 or not choose.chance(3)):
            return choose.one(fitting)
        kind = kind or choose.one(columns).type.kind
        return self._computed(relation, kind, depth) if depth else self.literal(kind)

    def literal(self, kind: str) -> Literal:
        type_ = Type(kind)
        return Literal(None if self._choose.chance(8) else self._choose.one(VALUES[type_]), type_)

    def _computed(self, relation: Relation, kind: str, depth: int) -> Expression:
        choose, type_ = self._choose, Type(kind)

        def below(wanted: str = kind) -> Expression:
            return self.expression(relation, wanted, depth - 1)

        def case() -> Expression:
            return Call("case", (self.condition(relation, depth - 1), below(), below()), type_)

        makers: list[Callable[[], Expression]] = [
            lambda: self.literal(kind),
            lambda: Call("coalesce", (below(), below()), type_),
            case,
            lambda: Call("nullif", (below(), below()), type_),
        ]
        if kind == "int":
            makers += [
                lambda: Call(choose.one(("+", "-")), (below(), below()), type_),
                lambda: Call("*", (below(), Literal(choose.number(-2, 3), INT)), type_),
                lambda: Call("/", (below(), Literal(choose.number(1, 3), INT)), type_),
                lambda: Call("neg", (below(),), type_),
                lambda: Call("length", (below("str"),), type_),
            ]
            if self._risky:
                makers += [lambda: Call(choose.one(("/", "%", "*")), (below(), below()), type_)]
        elif kind in INEXACT:
            makers += [
                lambda: Call(choose.one(("+", "-")), (below(), below()), type_),
                lambda: Call("abs", (below(),), type_),
                lambda: Call("cast", (below("int"),), type_),
            ]
        elif kind == "str":
            makers += [
                lambda: Call("||", (below(), below()), type_),
                lambda: Call("lower", (below(),), type_),
                lambda: Call("cast", (below("int"),), type_),
            ]
        elif kind == "bool":
            makers += [lambda: self.condition(relation, depth - 1)]
        return choose.one(makers)()

    def condition(self, relation: Relation, depth: int = 2) -> Expression:
        """A truth value: mostly a comparison of a column with a constant, which keys and indexes can serve."""
        choose = self._choose
        if depth and choose.chance(3):
            parts = (self.condition(relation, depth - 1), self.condition(relation, depth - 1))
            return choose.one((Call("and", parts, BOOL), Call("or", parts, BOOL), Call("not", parts[:1], BOOL)))
        first = self.expression(relation, depth=depth)
        kind = first.type.kind

        def second() -> Expression:
            return self.literal(kind) if not choose.chance(3) else self.expression(relation, kind, depth)

        def listed() -> Expression:
            return Call("in", (first, *(second() for _ in range(choose.number(1, 3)))), BOOL)

        makers: list[Callable[[], Expression]] = [
            lambda: Call("=", (first, second()), BOOL),
            lambda: Call(choose.one(COMPARISONS), choose.one([(first, second()), (second(), first)]), BOOL),
            lambda: Call(choose.one(("is_null", "is_not_null")), (first,), BOOL),
            listed,
            lambda: Call(choose.one(("is_distinct", "is_not_distinct")), (first, second()), BOOL),
        ]
        if kind == "str":
            pattern = Literal(choose.one(("a%", "%b", "_", "%")), STR)
            makers.append(lambda: Call("like", (first, pattern), BOOL))
        return choose.one(makers)()

    def aggregate(self, relation: Relation) -> Aggregate:
        choose = self._choose
        argument = self.expression(relation)
        kind, distinct = argument.type.kind, choose.chance(4)
        if choose.chance(5):
            return Aggregate("count_star", None, INT)
        kinds = ["count", "min", "max"]
        if kind in NUMERIC:
            kinds += ["sum", "avg", "sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp"]
        if kind == "bool":
            kinds = ["count", "bool_and", "bool_or"]
        name = choose.one(kinds)
        return Aggregate(name, argument, _aggregate_type(name, argument.type), distinct)


def is_stored(relation: Relation, position: int) -> bool:
    """Whether a column is one of a table or of a view that must be kept below, not computed on the way."""
    match relation:
        case Scan() | Group():
            return True
        case Values():
            return False
        case Project():
            shown = relation.outputs[position].expression
            return isinstance(shown, ColumnRef) and is_stored(relation.input, shown.position)
        case Join():
            width = len(relation.left.fields)
            return (
                is_stored(relation.left, position) if position < width else is_stored(relation.right, position - width)
            )
        case SetOp():
            kept = not (relation.kind == "union" and relation.all)
            return kept or (is_stored(relation.left, position) and is_stored(relation.right, position))
        case Semi():
            return is_stored(relation.left, position)
        case Distinct() | Top():
            return True
        case _:
            return all(is_stored(below, position) for below in inputs(relation))


def _plain(expression: Expression, type_: Type) -> Expression:
    """The expression without precision and length."""
    return expression if expression.type == type_ else Call("cast", (expression,), type_)


def _aggregate_type(name: str, argument: Type) -> Type:
    if name == "count":
        return INT
    if name in ("min", "max", "bool_and", "bool_or"):
        return argument
    if name == "sum" or argument.kind == "float":
        return Type(argument.kind)
    return DECIMAL
