"""Plans of single views: look-ups, contributions, stored rows, outputs and errors."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.propagation import Base, View, open_view
from viewtide.changetables.definition import Definition, Output, Source
from viewtide.changetables.errors import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    ProgrammingError,
    UnsupportedView,
)
from viewtide.changetables.expressions import Call, ColumnRef, Expression, Literal
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.plan import State, compile_view, needed_indexes
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.sql import parse_view
from viewtide.changetables.types import BOOL, DECIMAL, FLOAT, INT, NAN, STR, Row, Type

TABLES = {
    table.name: table
    for table in (
        Table(1, "categories", (Column("id", INT), Column("name", STR, nullable=False)), (0,)),
        Table(2, "products", (Column("id", INT), Column("category", INT)), (0,)),
        Table(
            3,
            "events",
            (Column("id", INT), Column("product", INT), Column("shop", INT), Column("cost", INT, nullable=False)),
            (0,),
            (Index(30, (1,)),),
        ),
        Table(4, "shops", (Column("id", INT), Column("city", STR)), (0,)),
        Table(5, "stock", (Column("shop", INT), Column("product", INT), Column("n", INT)), (0, 1)),
        Table(
            6,
            "measures",
            (
                Column("id", INT),
                Column("g", STR),
                Column("f", FLOAT),
                Column("d", DECIMAL),
                Column("p", Type("decimal", 8, 2)),
                Column("gf", FLOAT),
            ),
            (0,),
        ),
    )
}
COST_BY_CATEGORY = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n"
    " FROM events e JOIN products p ON e.product = p.id GROUP BY p.category"
)


def opened(sql: str) -> tuple[Base, View]:
    return open_view(parse_view(sql, TABLES), TABLES)


def commit(base: Base, view: View) -> list[tuple[object, ...]]:
    """Propagate and apply the open transaction. Returns what was contributed, without the stored keys."""
    contributions = base.propagate(view.plan, base.changes())
    view.refresh(contributions)
    base.commit()
    return [(contribution.key_values, contribution.delta) for contribution in contributions]


def put(base: Base, table: str, *rows: Row) -> None:
    for row in rows:
        base.put(table, row)


# --- aggregates: the four scenarios of Gautam, on the view of Nikolov fig. 4.1 ---


def shop() -> tuple[Base, View]:
    base, view = opened(COST_BY_CATEGORY)
    put(base, "products", (1, 10), (2, 20))
    put(base, "events", (1, 1, 1, 5), (2, 1, 1, 7), (3, 2, 1, 11))
    commit(base, view)
    return base, view


def test_a_new_row_adds_to_its_group() -> None:
    base, view = shop()
    assert sorted(view.outputs()) == [(10, 12, 2), (20, 11, 1)]
    put(base, "events", (4, 2, 1, 100))
    assert commit(base, view) == [((20,), (1, 100))]
    assert sorted(view.outputs()) == [(10, 12, 2), (20, 111, 2)]


def test_a_changed_value_leaves_the_count() -> None:
    base, view = shop()
    put(base, "events", (1, 1, 1, 6))
    assert commit(base, view) == [((10,), (0, 1))]
    assert (10, 13, 2) in view.outputs()


def test_a_changed_group_moves_the_row() -> None:
    base, view = shop()
    put(base, "products", (1, 20))
    assert sorted(commit(base, view)) == [((10,), (-2, -12)), ((20,), (2, 12))]
    assert view.outputs() == [(20, 23, 3)]


def test_the_last_member_deletes_the_view_row() -> None:
    base, view = shop()
    base.remove("events", (3, 2, 1, 11))
    commit(base, view)
    assert view.outputs() == [(10, 12, 2)]
    assert len(view.stored) == 1


def test_a_change_of_both_sides_counts_once() -> None:
    base, view = shop()
    put(base, "products", (1, 20), (3, 30))
    put(base, "events", (1, 3, 1, 50), (4, 1, 1, 1))
    base.remove("events", (2, 1, 1, 7))
    commit(base, view)
    assert sorted(view.outputs()) == [(20, 12, 2), (30, 50, 1)]


def test_changes_that_cancel_out_contribute_nothing() -> None:
    base, view = shop()
    put(base, "events", (1, 1, 9, 5))  # Only a column that the view does not read.
    assert commit(base, view) == []


def test_a_contribution_may_come_before_what_it_subtracts_from() -> None:
    base, view = shop()
    base.remove("events", (3, 2, 1, 11))
    [deletion] = base.propagate(view.plan, base.changes())
    other = View(view.plan)
    other.refresh([deletion])
    [row] = other.stored.values()
    assert row == (20, -1, -11)
    assert not view.plan.present(row)
    assert other.outputs() == []
    other.refresh([view.plan.negate(deletion)])
    assert other.stored == {}


def test_a_view_without_group_by_always_has_a_row() -> None:
    base, view = opened("SELECT COUNT(*) AS n, SUM(cost) AS s, AVG(cost) AS a, COUNT(product) AS p FROM events")
    assert view.outputs() == [(0, None, None, 0)]
    put(base, "events", (1, None, 1, 5), (2, 1, 1, 8))
    commit(base, view)
    assert view.outputs() == [(2, 13, Decimal("6.5"), 1)]
    base.remove("events", (1, None, 1, 5))
    base.remove("events", (2, 1, 1, 8))
    commit(base, view)
    assert view.stored == {}
    assert view.outputs() == [(0, None, None, 0)]


def test_a_sum_of_integers_passes_64_bits() -> None:
    base, view = opened("SELECT SUM(cost) AS s FROM events")
    put(base, "events", (1, 1, 1, 2**63 - 1), (2, 1, 1, 2**63 - 1))
    commit(base, view)
    assert view.outputs() == [(2**64 - 2,)]


def test_shared_arguments_are_kept_once() -> None:
    base, view = opened(
        "SELECT SUM(product), AVG(product), COUNT(product), SUM(cost) FROM events".replace(
            "SUM(cost)", "SUM(cost) AS c"
        )
    )
    put(base, "events", (1, 4, 1, 7))
    assert commit(base, view) == [((), (1, 1, 4, 7))]


# --- numbers ---


def measured(outputs: str, *rows: Row) -> tuple[Base, View]:
    base, view = opened(f"SELECT {outputs} FROM measures")
    put(base, "measures", *rows)
    commit(base, view)
    return base, view


def measure(number: int, f: float | None = None, d: Decimal | None = None, p: Decimal | None = None) -> Row:
    return (number, None, f, d, p, None)


def test_float_sums_come_back_exactly_after_deletes() -> None:
    base, view = measured("SUM(f) AS s, AVG(f) AS a", measure(1, 0.1), measure(2, 0.2))
    before = view.outputs()
    for odd in (1e300, float("inf"), float("-inf"), NAN):
        put(base, "measures", measure(9, odd))
        commit(base, view)
        assert view.outputs() != before
        base.remove("measures", measure(9, odd))
        commit(base, view)
        assert view.outputs() == before
    assert before == [(0.1 + 0.2, 0.15000000000000002)]


def test_infinities_of_both_signs_are_nan() -> None:
    base, view = measured("SUM(f) AS s, SUM(d) AS t", measure(1, float("inf"), Decimal("Infinity")))
    assert view.outputs() == [(float("inf"), Decimal("Infinity"))]
    put(base, "measures", measure(2, float("-inf"), Decimal("-Infinity")))
    commit(base, view)
    assert view.outputs() == [(NAN, DECIMAL_NAN)]
    base.remove("measures", measure(1))
    commit(base, view)
    assert view.outputs() == [(float("-inf"), Decimal("-Infinity"))]


def test_scale_of_a_decimal_sum_follows_the_rows_that_are_left() -> None:
    base, view = measured("SUM(d) AS s, AVG(d) AS a, SUM(p) AS p", measure(1, None, Decimal("1"), Decimal("1.00")))
    before = repr(view.outputs())
    put(base, "measures", measure(2, None, Decimal("0.3333333333333333333333333"), Decimal("2.50")))
    commit(base, view)
    assert "0.3333333333333333333333333" not in before
    base.remove("measures", measure(2))
    put(base, "measures", measure(3, None, Decimal("1"), None), measure(4, None, Decimal("0"), None))
    commit(base, view)
    base.remove("measures", measure(3))
    base.remove("measures", measure(4))
    commit(base, view)
    assert repr(view.outputs()) == before


def test_average_has_the_digits_of_the_rows_that_are_left() -> None:
    base, view = measured("AVG(d) AS a", *(measure(n, None, Decimal(1 if n else 2)) for n in range(3)))
    before = view.outputs()
    put(base, "measures", measure(9, None, Decimal("0." + "1" * 30)))
    commit(base, view)
    base.remove("measures", measure(9))
    commit(base, view)
    assert view.outputs() == before == [(Decimal("1.3333333333333333"),)]


def test_zeros_of_both_signs_are_one_group_called_zero() -> None:
    base, view = opened("SELECT gf, COUNT(*) AS n FROM measures GROUP BY gf")
    put(base, "measures", (1, None, None, None, None, -0.0), (2, None, None, None, None, 0.0))
    put(base, "measures", (3, None, None, None, None, NAN), (4, None, None, None, None, NAN))
    commit(base, view)
    assert repr(sorted(view.outputs(), key=str)) == "[(0.0, 2), (nan, 2)]"


def test_a_float_sum_that_is_too_large_is_named_at_read() -> None:
    _, view = measured("SUM(f) AS s", measure(1, 1.7e308), measure(2, 1.7e308))
    with pytest.raises(DataError, match=r"view 'v', row \(\): value out of range"):
        view.outputs()


# --- plain rows ---


def test_an_update_of_a_plain_row_is_one_contribution() -> None:
    base, view = opened("SELECT e.cost, p.category FROM events e JOIN products p ON e.product = p.id")
    put(base, "products", (1, 10))
    put(base, "events", (7, 1, 1, 5))
    assert commit(base, view) == [((7, 1), (1, 5, 10))]
    put(base, "events", (7, 1, 1, 6))
    put(base, "products", (1, 11))
    assert commit(base, view) == [((7, 1), (-1, 5, 10, 1, 6, 11))]
    assert list(view.stored.values()) == [(7, 1, 1, 6, 11)]
    assert view.outputs() == [(6, 11)]


def test_an_update_that_the_view_does_not_show_contributes_nothing() -> None:
    base, view = opened("SELECT cost FROM events")
    put(base, "events", (7, 1, 1, 5))
    commit(base, view)
    put(base, "events", (7, 2, 2, 5))
    assert commit(base, view) == []


def test_a_row_that_comes_and_goes_between_two_tables_contributes_nothing() -> None:
    base, view = opened("SELECT e.cost FROM events e JOIN products p ON e.product = p.id")
    put(base, "products", (1, 10))
    commit(base, view)
    put(base, "events", (7, 1, 1, 5))
    base.remove("products", (1, 10))
    assert commit(base, view) == []


def test_equal_rows_are_kept_apart_by_their_keys() -> None:
    base, view = opened("SELECT cost FROM events")
    put(base, "events", (1, 1, 1, 5), (2, 1, 1, 5))
    commit(base, view)
    assert view.outputs() == [(5,), (5,)]


def test_a_new_scale_of_an_equal_decimal_is_shown() -> None:
    base, view = opened("SELECT d, f FROM measures")
    put(base, "measures", measure(1, -0.0, Decimal("1.0")))
    commit(base, view)
    put(base, "measures", measure(1, 0.0, Decimal("1.00")))
    commit(base, view)
    assert repr(view.outputs()) == "[(Decimal('1.00'), 0.0)]"


def test_contributions_to_a_plain_row_commute() -> None:
    base, view = opened("SELECT cost FROM events")
    history = []
    for cost in (5, 6, 7):
        put(base, "events", (1, 1, 1, cost))
        history += base.propagate(view.plan, base.changes())
        base.commit()
    view.refresh(history[::-1][:2])
    assert view.outputs() == []
    assert not any(map(view.plan.present, view.stored.values()))
    view.refresh(history[:1])
    assert view.outputs() == [(7,)]


# --- look-ups ---


def asked(base: Base, view: View) -> list[list[tuple[str, bool, str, int]]]:
    """(table, by primary key, state, keys) of each look-up in each batch of the open transaction."""
    base.asked.clear()
    base.propagate(view.plan, base.changes())
    return [
        [(look_up.table, look_up.index is None, State(look_up.state).name, len(look_up.keys)) for look_up in batch]
        for batch in base.asked
    ]


def test_a_single_table_view_asks_nothing() -> None:
    base, view = opened("SELECT SUM(cost) AS s FROM events")
    put(base, "events", (1, 1, 1, 1))
    assert asked(base, view) == []


CHAIN = (
    "SELECT c.name, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id"
    " JOIN categories c ON p.category = c.id JOIN shops s ON s.id = e.shop GROUP BY c.name"
)


def test_look_ups_by_primary_key_of_one_stage_go_out_together() -> None:
    base, view = opened(CHAIN)
    put(base, "products", (1, 1))
    put(base, "shops", (1, "Bern"))
    base.commit()
    put(base, "events", (1, 1, 1, 5), (2, 1, 1, 6))
    assert asked(base, view) == [
        [("products", True, "OLD", 2), ("shops", True, "OLD", 2)],
        [("categories", True, "OLD", 2)],
    ]


def test_terms_run_in_lock_step_with_old_and_new_states() -> None:
    base, view = opened(COST_BY_CATEGORY)
    put(base, "products", (1, 10))
    put(base, "events", (1, 1, 1, 5))
    assert asked(base, view) == [[("products", True, "NEW", 1), ("events", False, "KEPT", 1)]]


def test_keys_after_an_index_are_asked_for_once() -> None:
    base, view = opened(CHAIN)
    put(base, "events", *((number, 1, number % 2, 5) for number in range(10)))
    put(base, "categories", (3, "books"))
    base.commit()
    put(base, "products", (1, 3))
    assert asked(base, view) == [
        [("categories", True, "OLD", 1)],
        [("events", False, "OLD", 1)],
        [("shops", True, "OLD", 2)],
    ]


def test_null_joins_nothing_and_is_not_looked_up() -> None:
    base, view = opened(COST_BY_CATEGORY)
    put(base, "events", (1, None, 1, 5))
    assert asked(base, view) == []
    put(base, "events", (2, 4, 1, 5))
    assert asked(base, view) == [[("products", True, "OLD", 1)]]


def test_filters_come_before_look_ups() -> None:
    base, view = opened(COST_BY_CATEGORY.replace(" GROUP", " WHERE e.cost > 5 GROUP"))
    put(base, "events", (1, 1, 1, 5), (2, 1, 1, 6))
    assert asked(base, view) == [[("products", True, "OLD", 1)]]


def test_composite_primary_keys_are_bound_by_several_equalities() -> None:
    sql = "SELECT e.id, s.n FROM events e JOIN stock s ON s.product = e.product AND s.shop = e.shop"
    base, view = opened(sql)
    assert needed_indexes(parse_view(sql, TABLES), TABLES) == (("events", (1,)),)
    put(base, "stock", (1, 2, 100), (2, 2, 200))
    base.commit()
    put(base, "events", (1, 2, 1, 5))
    assert asked(base, view) == [[("stock", True, "OLD", 1)]]
    commit(base, view)
    put(base, "stock", (1, 2, 101))
    put(base, "events", (9, 2, 2, 5))
    commit(base, view)
    assert sorted(view.outputs()) == [(1, 101), (9, 200)]


def test_a_missing_index_is_needed_on_all_bound_columns() -> None:
    sql = "SELECT a.id FROM events a JOIN events b ON a.cost = b.cost AND a.shop = b.shop"
    definition = parse_view(sql, TABLES)
    assert needed_indexes(definition, TABLES) == (("events", (2, 3)),)
    with pytest.raises(InternalError, match=r"index of 'events' on \(shop, cost\) does not exist"):
        compile_view("v", 9, definition, TABLES)
    base, view = open_view(definition, TABLES)
    assert view.plan.needed_indexes == (("events", (2, 3)),)
    put(base, "events", (1, 1, 1, 5), (2, 1, 1, 5), (3, 1, 2, 5))
    commit(base, view)
    assert sorted(view.outputs()) == [(1,), (1,), (2,), (2,), (3,)]


def test_an_index_that_is_being_built_is_not_used() -> None:
    tables = {**TABLES, "events": Table(3, "events", TABLES["events"].columns, (0,), (Index(30, (1,), ready=False),))}
    definition = parse_view(COST_BY_CATEGORY, tables)
    assert needed_indexes(definition, tables) == (("events", (1,)),)
    with pytest.raises(InternalError, match="does not exist"):
        compile_view("v", 9, definition, tables)


def test_a_join_without_equality_is_refused() -> None:
    sources = (Source("events", "e"), Source("shops", "s"))
    output = Output("id", ColumnRef(0, 0, "id", INT, False), INT)
    with pytest.raises(UnsupportedView, match="no equality joins s"):
        needed_indexes(Definition(sources, (), (), None, (output,)), TABLES)


def test_many_tables_around_one_are_looked_up_in_several_stages() -> None:
    joins = "".join(f" JOIN events e{number} ON e{number}.product = p.id" for number in range(24))
    base, view = opened(f"SELECT COUNT(*) AS n FROM products p{joins}")
    put(base, "products", (1, 1))
    put(base, "events", (1, 1, 1, 1), (2, 2, 1, 1))
    commit(base, view)
    assert view.outputs() == [(1,)]


def test_join_from_reads_the_old_state_only() -> None:
    base, view = shop()
    put(base, "products", (1, 99))
    rows: list[Row] = [(1, 1, 1, 5), (3, 2, 1, 11)]
    assert sorted(base.join_from(view.plan, 0, rows)) == [(10, 5, 1), (20, 11, 1)]
    assert base.join_from(view.plan, 1, [(1, 10)]) == [(10, 12, 2)]


def test_join_from_nothing_gives_the_empty_row() -> None:
    base, view = opened("SELECT COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id")
    assert base.join_from(view.plan, 0, [(1, 1, 1, 5)]) == [(0,)]


def test_explain_names_every_look_up() -> None:
    _, view = opened(COST_BY_CATEGORY)
    assert view.plan.explain().splitlines() == [
        "view v: groups, key (category)",
        "change of events e",
        "  1. products p by primary key (id): id = e.product",
        "change of products p",
        "  1. events e by index (product): product = p.id",
    ]


# --- keys ---


def test_keys_of_a_grouped_view() -> None:
    _, view = opened(
        "SELECT e.shop AS s, p.category, COUNT(*) AS n FROM events e, products p WHERE e.product = p.id GROUP BY 1, 2"
    )
    plan = view.plan
    assert plan.key_columns == (("s", INT, True), ("category", INT, True))
    expected = plan.keys.encode_short((1, None))
    assert plan.key_of((1, None)) == plan.key_of([1, None]) == plan.key_of({"category": None, "s": 1}) == expected
    with pytest.raises(InterfaceError, match="has 2 columns, got 1 values"):
        plan.key_of(1)
    with pytest.raises(InterfaceError, match="lacks category"):
        plan.key_of({"s": 1})
    with pytest.raises(ProgrammingError, match="'shop' is not in the key"):
        plan.key_of({"shop": 1, "category": 2})
    with pytest.raises(DataError, match=r"v\.s: expected int"):
        plan.key_of(("x", 1))


def test_keys_of_plain_rows_and_of_a_single_row() -> None:
    _, view = opened("SELECT e.id AS event, p.category FROM events e JOIN products p ON e.product = p.id")
    assert [name for name, _, _ in view.plan.key_columns] == ["event", "p.id"]
    with pytest.raises(IntegrityError):
        view.plan.key_of((1, None))
    _, single = opened("SELECT COUNT(*) AS n FROM events")
    assert single.plan.key_of(None) == single.plan.key_of(()) == single.plan.keys.encode_short(())
    with pytest.raises(InterfaceError, match="ask for it without a key"):
        single.plan.key_of(1)


def test_group_expressions_that_are_not_shown_have_a_name() -> None:
    _, view = opened("SELECT COUNT(*) AS n FROM events GROUP BY cost % 2, shop")
    assert [name for name, _, _ in view.plan.key_columns] == ["key_1", "shop"]


# --- expressions ---


def test_errors_name_view_and_row() -> None:
    base, view = opened("SELECT 10 / cost AS x FROM events")
    put(base, "events", (3, 1, 1, 0))
    with pytest.raises(DataError, match=r"view 'v' \(row \(3,\) of table 'events'\): division by zero"):
        commit(base, view)
    _, view = opened("SELECT shop, 10 / (COUNT(*) - 1) AS x FROM events GROUP BY shop")
    with pytest.raises(DataError, match=r"view 'v', row \(7,\): division by zero"):
        view.plan.output((7, 1))


def test_text_of_the_user_never_becomes_source() -> None:
    evil = '\'); raise SystemExit(1) #\n"""{0}'
    table = Table(1, evil, (Column(evil, INT), Column("b", STR)), (0,))
    source, column = Source(evil, evil), ColumnRef(0, 1, evil, STR, True)
    outputs: list[Expression] = [
        Call("||", (column, Literal(evil, STR)), STR),
        Call("like", (column, Literal(evil, STR)), BOOL),
        Call("in", (column, Literal(evil, STR), Literal("x", STR)), BOOL),
    ]
    named = tuple(Output(evil + str(number), output, output.type) for number, output in enumerate(outputs))
    base, view = open_view(Definition((source,), (), (), None, named), {evil: table}, evil)
    put(base, evil, (1, evil))
    commit(base, view)
    assert view.outputs() == [(evil + evil, True, True)]


def test_case_evaluates_only_the_branch_that_it_takes() -> None:
    base, view = opened(
        "SELECT CASE WHEN cost = 0 THEN 0 ELSE 10 / cost END AS x FROM events WHERE cost < 5 OR 1 / cost = 0"
    )
    put(base, "events", (1, 1, 1, 0), (2, 1, 1, 3))
    commit(base, view)
    assert sorted(view.outputs()) == [(0,), (3,)]


def test_deep_expressions_compile() -> None:
    expression: Expression = ColumnRef(0, 3, "cost", INT, False)
    for number in range(140):
        expression = Call("+", (expression, Literal(number % 2, INT)), INT)
    branches = tuple(
        item
        for number in range(200)
        for item in (Call("=", (ColumnRef(0, 0, "id", INT, False), Literal(number, INT)), BOOL), Literal(number, INT))
    )
    case = Call("case", (*branches, Literal(None, INT)), INT)
    outputs = (Output("deep", expression, INT), Output("wide", case, INT))
    base, view = open_view(Definition((Source("events", "e"),), (), (), None, outputs), TABLES)
    put(base, "events", (1, 1, 1, 5), (199, 1, 1, 5), (200, 1, 1, 5))
    commit(base, view)
    assert view.outputs() == [(75, 1), (75, 199), (75, None)]


@pytest.mark.parametrize(
    ("condition", "passes"),
    [
        ("f < 'NaN'", True),
        ("f < f + 'NaN'", True),
        ("f = 'NaN'", False),
        ("f + 'NaN' = 'NaN'::float", True),
        ("f + 'NaN' > f", True),
        ("f + 'NaN' > 1e300::float", True),
        ("'NaN'::float <= f", False),
        ("f IS DISTINCT FROM NULL", True),
        ("d IS NOT DISTINCT FROM NULL", True),
        ("d > 1", False),
        ("NOT d > 1", False),
        ("d IS NULL OR 1 / (id - 1) = 1", True),
        ("p < 'NaN'", True),
        ("p + 'NaN' >= p", True),
        ("g LIKE 'a%c_'", True),
        ("g LIKE 'a\\%c_'", False),
        ("upper(g) = 'ABCÄ' AND length(g) = 4", True),
        ("g IN ('x', NULL)", False),
        ("g NOT IN ('x', NULL)", False),
        ("g NOT IN ('x', 'y')", True),
        ("coalesce(d, p) = 2.5", True),
        ("nullif(g, g) IS NULL", True),
        ("CAST(p AS int) = 3 AND CAST(f AS int) = 2", True),
        ("CAST(f AS text) || '|' || CAST(p AS text) = '2.5|2.50'", True),
        ("CAST(' 12 ' AS int) = 12", True),
        ("p % 1 = 0.5 AND abs(-p) = p", True),
    ],
)
def test_conditions(condition: str, passes: bool) -> None:
    base, view = opened(f"SELECT id FROM measures WHERE {condition}")
    put(base, "measures", (1, "abcä", 2.5, None, Decimal("2.50"), None))
    commit(base, view)
    assert view.outputs() == ([(1,)] if passes else [])
