"""The laws of all operators at once: refresh(view, propagate(□B)) is recompute(B + □B), whatever view and history.

Tables, definitions and histories are random and small, so that keys collide, rows join several times and groups come
and go. The oracle (`recompute`) shares no code with the compiled plans.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.propagation import Base, View, open_view
from viewtide.changetables.compiler import Code, Compiler, column_leaf
from viewtide.changetables.definition import Definition, Equality, Output, Source
from viewtide.changetables.errors import DataError
from viewtide.changetables.expressions import Aggregate, Call, ColumnRef, Expression, GroupKey, Literal
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.recompute import Context, evaluate, recompute, same_bag
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import BOOL, DATE, DECIMAL, FLOAT, INT, NAN, STR, Row, Type, Value

PRICE = Type("decimal", 6, 2)
#: Few values per type, so that equal ones meet; the odd ones of each type are among them.
VALUES: dict[Type, list[Value]] = {
    INT: [0, 1, 2, 3, -1, 2**62],
    FLOAT: [0.0, -0.0, 0.1, 1.5, -2.5, 1e16, 1e300, 5e-324, float("inf"), float("-inf"), NAN],
    DECIMAL: [
        *map(Decimal, ("0", "1", "1.0", "1.00", "-2.5", "0.3333333333333333333", "Infinity", "-Infinity")),
        DECIMAL_NAN,
    ],
    PRICE: [Decimal("0.00"), Decimal("1.00"), Decimal("9999.99"), Decimal("-3.10"), DECIMAL_NAN],
    STR: ["", "a", "b", "Ab%", "straße", "a_b"],
    BOOL: [True, False],
    DATE: [datetime.date(2024, 2, 29), datetime.date(1, 1, 1)],
}
KEY_INTS = list(range(5))


def make_tables(rng: Random) -> dict[str, Table]:
    """Two to four tables: an int (or int and text) primary key, a foreign key each way, some other columns."""
    tables = {}
    for number in range(rng.randint(2, 4)):
        columns = [Column("id", INT), Column("code", STR, nullable=False)]
        key = (0, 1) if rng.random() < 0.3 else (0,)
        for place in range(rng.randint(2, 5)):
            kind = INT if place == 0 else rng.choice(list(VALUES))
            columns.append(Column(f"c{place}", kind, nullable=rng.random() < 0.6))
        tables[f"t{number}"] = Table(number + 1, f"t{number}", tuple(columns), key)
    return tables


def make_row(rng: Random, table: Table) -> Row:
    values: list[Value] = [rng.choice(KEY_INTS), rng.choice(("a", "b"))]
    for column in table.columns[2:]:
        null = column.nullable and rng.random() < 0.15
        # Most ints are small: they are foreign keys and find partners.
        small = column.type == INT and rng.random() < 0.9
        values.append(None if null else rng.choice(KEY_INTS if small else VALUES[column.type]))
    return tuple(values)


class Maker:
    """Draws definitions over given tables."""

    def __init__(self, rng: Random, tables: dict[str, Table]) -> None:
        self.rng, self.tables = rng, tables

    def definition(self) -> Definition:
        rng = self.rng
        sources = tuple(
            Source(rng.choice(list(self.tables)), f"s{number}") for number in range(rng.choice((1, 1, 2, 2, 3, 4)))
        )
        self.columns = [
            ColumnRef(number, position, column.name, column.type, column.nullable)
            for number, source in enumerate(sources)
            for position, column in enumerate(self.tables[source.table].columns)
        ]
        equalities = []
        for number in range(1, len(sources)):
            for _ in range(rng.choice((1, 1, 1, 1, 1, 2))):
                equalities += self.equality(number)
        filters = tuple(self.expression(BOOL, 2) for _ in range(rng.choice((0, 0, 0, 1, 1, 2))))
        if rng.random() < 0.35:
            return Definition(sources, tuple(equalities), filters, None, self.outputs(None))
        group_by = tuple(self.expression(rng.choice(list(VALUES)), 1) for _ in range(rng.choice((0, 1, 1, 2))))
        return Definition(sources, tuple(equalities), filters, group_by, self.outputs(group_by))

    def equality(self, number: int) -> list[Equality]:
        """An equality of source `number` with an earlier one: always possible, because every table has ints."""
        pairs = [
            (left, right)
            for left in self.columns
            for right in self.columns
            if left.source < number == right.source and left.type.kind == right.type.kind
        ]
        keyed = [pair for pair in pairs if pair[0].type == INT and "id" in (pair[0].name, pair[1].name)]
        texts = [pair for pair in pairs if pair[0].name == pair[1].name == "code"]
        return [Equality(*self.rng.choice(self.rng.choice((keyed, keyed, keyed, texts, pairs))))]

    def outputs(self, group_by: tuple[Expression, ...] | None) -> tuple[Output, ...]:
        outputs: list[Expression] = []
        if group_by is None:
            outputs = [self.expression(self.rng.choice(list(VALUES)), 2) for _ in range(self.rng.randint(1, 3))]
        else:
            outputs = [GroupKey(number, key.type) for number, key in enumerate(group_by) if self.rng.random() < 0.9]
            outputs += [self.aggregate() for _ in range(self.rng.randint(1, 4))]
        return tuple(Output(f"o{number}", output, output.type) for number, output in enumerate(outputs))

    def aggregate(self) -> Expression:
        kind = self.rng.choice(("count_star", "count", "sum", "avg", "sum", "avg", "ratio"))
        if kind == "count_star":
            return Aggregate("count_star", None, INT)
        if kind == "count":
            return Aggregate("count", self.expression(self.rng.choice(list(VALUES)), 1), INT)
        argument = self.expression(self.rng.choice((INT, FLOAT, DECIMAL, PRICE)), self.rng.choice((0, 0, 1)))
        plain = Type(argument.type.kind)
        average = Aggregate("avg", argument, DECIMAL if plain == INT else plain)
        if kind == "ratio":
            return Call("coalesce", (Call("neg", (average,), average.type), Literal(None, average.type)), average.type)
        return average if kind == "avg" else Aggregate("sum", argument, plain)

    # --- expressions ---

    def expression(self, kind: Type, depth: int) -> Expression:
        rng = self.rng
        columns = [column for column in self.columns if column.type == kind]
        if depth == 0 or rng.random() < 0.4:
            if columns and rng.random() < 0.85:
                return rng.choice(columns)
            return Literal(None if rng.random() < 0.1 else rng.choice(VALUES[kind]), kind)
        return self.call(kind, depth - 1)

    def call(self, kind: Type, depth: int) -> Expression:
        rng, plain = self.rng, Type(kind.kind)
        if rng.random() < 0.35:
            return self.choice(kind, depth)
        if kind == BOOL:
            return self.condition(depth)
        if kind == STR:
            return self.text(depth)
        if kind == PRICE:
            return Call("cast", (self.expression(rng.choice((INT, FLOAT, DECIMAL, PRICE, STR)), depth),), PRICE)
        if kind in (INT, FLOAT, DECIMAL):
            if rng.random() < 0.2:
                others = (INT, FLOAT, DECIMAL, STR) + ((BOOL,) if kind == INT else ())
                return Call("cast", (self.expression(rng.choice([t for t in others if t != kind]), depth),), plain)
            if rng.random() < 0.2:
                return Call(rng.choice(("neg", "abs")), (self.expression(kind, depth),), plain)
            op = rng.choice("+-*/" if kind == FLOAT else "+-*/%")
            return Call(op, (self.expression(kind, depth), self.expression(kind, depth)), plain)
        return self.expression(kind, 0)

    def choice(self, kind: Type, depth: int) -> Expression:
        first, second = self.expression(kind, depth), self.expression(kind, depth)
        op = self.rng.choice(("case", "coalesce", "nullif"))
        plain = Type(kind.kind)
        if op == "case":
            return Call("case", (self.expression(BOOL, depth), first, second), plain)
        return Call(op, (first, second), plain)

    def condition(self, depth: int) -> Expression:
        rng = self.rng
        op = rng.choice(("=", "<>", "<", "<=", ">", ">=", "and", "or", "not", "is_null", "is_distinct", "in", "like"))
        if op in ("and", "or"):
            return Call(op, tuple(self.expression(BOOL, depth) for _ in range(rng.choice((2, 2, 3)))), BOOL)
        if op == "not":
            return Call(op, (self.expression(BOOL, depth),), BOOL)
        kind = rng.choice(list(VALUES))
        if op == "is_null":
            return Call(rng.choice(("is_null", "is_not_null")), (self.expression(kind, depth),), BOOL)
        if op == "in":
            items = (self.expression(kind, 0) for _ in range(rng.choice((1, 2, 3))))
            return Call("in", (self.expression(kind, depth), *items), BOOL)
        if op == "like":
            pattern = Literal(rng.choice(("%", "a%", "%b%", "_", "\\a%", "", "a\\")), STR)
            return Call("like", (self.expression(STR, depth), rng.choice((pattern, self.expression(STR, 0)))), BOOL)
        if op == "is_distinct":
            op = rng.choice(("is_distinct", "is_not_distinct"))
        return Call(op, (self.expression(kind, depth), self.expression(kind, depth)), BOOL)

    def text(self, depth: int) -> Expression:
        rng = self.rng
        op = rng.choice(("lower", "upper", "||", "cast"))
        if op == "cast":
            return Call("cast", (self.expression(rng.choice((INT, FLOAT, DECIMAL, BOOL)), depth),), STR)
        count = 2 if op == "||" else 1
        return Call(op, tuple(self.expression(STR, depth) for _ in range(count)), STR)


def load(rng: Random, base: Base) -> None:
    """A first transaction that fills all tables: joins of four tables need rows in each."""
    for name, table in base.tables.items():
        for _ in range(rng.randint(3, 7)):
            base.put(name, make_row(rng, table))


def run_transaction(rng: Random, base: Base) -> None:
    """Insert, update and delete some rows of some tables; stays open."""
    for name in rng.sample(list(base.tables), rng.randint(1, len(base.tables))):
        for _ in range(rng.randint(1, 4)):
            row = make_row(rng, base.tables[name])
            if rng.random() < 0.3:
                base.remove(name, row)
            else:
                base.put(name, row)


def shuffled(rng: Random, base: Base) -> dict[str, list[tuple[Row, int]]]:
    changes = base.changes()
    for rows in changes.values():
        rng.shuffle(rows)
    return changes


def start(rng: Random) -> tuple[Base, View, Definition]:
    tables = make_tables(rng)
    definition = Maker(rng, tables).definition()
    base, view = open_view(definition, tables)
    return base, view, definition


@settings(deadline=None, max_examples=400)
@given(st.randoms(use_true_random=False))
def test_refreshed_view_is_recomputed_view(rng: Random) -> None:
    base, view, definition = start(rng)
    for number in range(rng.randint(1, 5)):
        (run_transaction if number else load)(rng, base)
        try:
            contributions = base.propagate(view.plan, shuffled(rng, base))
        except DataError as error:
            assert "view 'v'" in error.message
            event("aborted")
            base.abort()
            continue
        assert len({contribution.key for contribution in contributions}) == len(contributions)
        view.refresh(contributions)
        try:
            expected = recompute(definition, base.tables, base.rows())
        except DataError:
            event("the definition itself fails on these rows")
            return
        assert same_bag(expected, view.outputs()) == []
        base.commit()
    event(f"sources: {len(definition.sources)}")


@settings(deadline=None, max_examples=150)
@given(st.randoms(use_true_random=False))
def test_contributions_commute_and_are_taken_back(rng: Random) -> None:
    """Any order of the contributions of several transactions gives the same view; their negatives give nothing."""
    base, view, _ = start(rng)
    history = []
    for number in range(rng.randint(2, 4)):
        (run_transaction if number else load)(rng, base)
        try:
            history += base.propagate(view.plan, base.changes())
        except DataError:
            base.abort()
        else:
            base.commit()
    view.refresh(history)
    mixed, other = View(view.plan), list(history)
    rng.shuffle(other)
    mixed.refresh(other)
    assert mixed.stored == view.stored
    mixed.refresh([view.plan.negate(contribution) for contribution in history])
    assert mixed.stored == {}


@settings(deadline=None, max_examples=150)
@given(st.randoms(use_true_random=False))
def test_combined_contributions_are_one(rng: Random) -> None:
    base, view, _ = start(rng)
    combined: dict[bytes, object] = {}
    both = View(view.plan)
    for number in range(3):
        (run_transaction if number else load)(rng, base)
        try:
            contributions = base.propagate(view.plan, base.changes())
        except DataError:
            base.abort()
            continue
        view.refresh(contributions)
        for contribution in contributions:
            earlier = combined.pop(contribution.key, None)
            total = contribution if earlier is None else view.plan.combine(earlier, contribution)  # type: ignore[arg-type]
            if total is not None:
                combined[contribution.key] = total
        base.commit()
    both.refresh(list(combined.values()))  # type: ignore[arg-type]
    assert both.stored == view.stored


@settings(deadline=None, max_examples=150)
@given(st.randoms(use_true_random=False))
def test_join_from_all_rows_of_a_source_is_the_whole_view(rng: Random) -> None:
    base, view, definition = start(rng)
    load(rng, base)
    base.commit()
    source = rng.randrange(len(definition.sources))
    rows = base.rows()
    try:
        expected = recompute(definition, base.tables, rows)
        found = base.join_from(view.plan, source, rows[definition.sources[source].table])
    except DataError:
        event("fails")
        return
    assert same_bag(expected, found) == []


def compiled_value(expression: Expression, rows: tuple[Row, ...]) -> tuple[Value | str, Code]:
    compiler = Compiler(column_leaf, {"DataError": DataError})
    code, condition = compiler.value(expression), compiler.condition(expression) if expression.type == BOOL else "None"
    arguments = ", ".join(f"r{number}" for number in range(len(rows)))
    compiler.define(f"def value({arguments}):\n    return {code.text}\n")
    compiler.define(f"def condition({arguments}):\n    return {condition}\n")
    try:
        value = compiler.namespace["value"](*rows)  # type: ignore[operator]
    except DataError:
        assert not code.safe
        return "DataError", code
    if expression.type == BOOL:
        assert compiler.namespace["condition"](*rows) is (value is True)  # type: ignore[operator]
    return value, code


@settings(deadline=None, max_examples=1500)
@given(st.randoms(use_true_random=False))
def test_compiled_expression_is_the_evaluated_one(rng: Random) -> None:
    """Same value, same type, and an error exactly where the oracle has one."""
    tables = make_tables(rng)
    maker = Maker(rng, tables)
    maker.columns = [
        ColumnRef(number, position, column.name, column.type, column.nullable)
        for number, table in enumerate(tables.values())
        for position, column in enumerate(table.columns)
    ]
    expression = maker.expression(rng.choice(list(VALUES)), 4)
    rows = tuple(make_row(rng, table) for table in tables.values())
    expected: Value | str
    try:
        expected = evaluate(expression, Context(rows))
    except DataError:
        expected = "DataError"
    found, code = compiled_value(expression, rows)
    assert same_bag([(expected,)], [(found,)]) == []
    assert code.nullable or found is not None
