"""Plans of single views: look-ups, contributions, stored rows, outputs and errors."""

from __future__ import annotations

from decimal import Decimal

import pytest

import viewtide as vt
from tests.propagation import Folded, Memory
from viewtide.changetables import branches as expansion
from viewtide.changetables.algebra import Field, Filter, Join, Output, Project, Relation, Scan
from viewtide.changetables.branches import BRANCHES_MAX, Branch, Stored, is_hidden
from viewtide.changetables.errors import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    ProgrammingError,
    UnsupportedView,
)
from viewtide.changetables.expressions import Call, ColumnRef, Expression, Literal
from viewtide.changetables.keeping import keep
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.plan import (
    FIRST,
    LAST,
    STATES,
    TOP,
    WHOLE_TABLE,
    State,
    compile_view,
    needed_indexes,
)
from viewtide.changetables.recompute import same_bag
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.sql import parse_view
from viewtide.changetables.types import BOOL, DECIMAL, FLOAT, INT, NAN, STR, Row, Type
from viewtide.ltm.tables import Planned

TABLES = {
    table.name: table
    for table in (
        Table(1, "categories", (Column("id", INT, nullable=False), Column("name", STR, nullable=False)), (0,)),
        Table(2, "products", (Column("id", INT, nullable=False), Column("category", INT)), (0,)),
        Table(
            3,
            "events",
            (
                Column("id", INT, nullable=False),
                Column("product", INT),
                Column("shop", INT),
                Column("cost", INT, nullable=False),
            ),
            (0,),
            (Index(30, (1,)),),
        ),
        Table(4, "shops", (Column("id", INT, nullable=False), Column("city", STR)), (0,)),
        Table(
            5,
            "stock",
            (Column("shop", INT, nullable=False), Column("product", INT, nullable=False), Column("n", INT)),
            (0, 1),
        ),
        Table(
            6,
            "measures",
            (
                Column("id", INT, nullable=False),
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


def opened(sql: str) -> Memory:
    return over(parse_view(sql, TABLES))


def over(relation: Relation) -> Memory:
    """An empty database with one view, v."""
    memory = Memory(TABLES.values())
    memory.create_view("v", relation)
    return memory


def scan(table: Table, alias: str = "") -> Scan:
    fields = tuple(Field(column.name, column.type, column.nullable) for column in table.columns)
    return Scan(table.name, alias or table.name, tuple(range(len(fields))), fields)


def commit(memory: Memory) -> list[tuple[object, ...]]:
    """Commit the open transaction. Returns what was contributed, without the stored keys."""
    contributions = memory.commit().get("v", [])
    return [(contribution.key_values, contribution.delta) for contribution in contributions]


# --- aggregates: the four scenarios of Gautam, on the view of Nikolov fig. 4.1 ---


def shop() -> Memory:
    memory = opened(COST_BY_CATEGORY)
    memory.put("products", (1, 10), (2, 20))
    memory.put("events", (1, 1, 1, 5), (2, 1, 1, 7), (3, 2, 1, 11))
    commit(memory)
    return memory


def test_a_new_row_adds_to_its_group() -> None:
    memory = shop()
    assert sorted(memory.outputs("v")) == [(10, 12, 2), (20, 11, 1)]
    memory.put("events", (4, 2, 1, 100))
    assert commit(memory) == [((20,), (1, 100))]
    assert sorted(memory.outputs("v")) == [(10, 12, 2), (20, 111, 2)]


def test_a_changed_value_leaves_the_count() -> None:
    memory = shop()
    memory.put("events", (1, 1, 1, 6))
    assert commit(memory) == [((10,), (0, 1))]
    assert (10, 13, 2) in memory.outputs("v")


def test_a_changed_group_moves_the_row() -> None:
    memory = shop()
    memory.put("products", (1, 20))
    assert sorted(commit(memory)) == [((10,), (-2, -12)), ((20,), (2, 12))]
    assert memory.outputs("v") == [(20, 23, 3)]


def test_the_last_member_deletes_the_view_row() -> None:
    memory = shop()
    memory.remove("events", (3, 2, 1, 11))
    commit(memory)
    assert memory.outputs("v") == [(10, 12, 2)]
    assert len(memory.stored["v"]) == 1


def test_a_change_of_both_sides_counts_once() -> None:
    memory = shop()
    memory.put("products", (1, 20), (3, 30))
    memory.put("events", (1, 3, 1, 50), (4, 1, 1, 1))
    memory.remove("events", (2, 1, 1, 7))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(20, 12, 2), (30, 50, 1)]


def test_changes_that_cancel_out_contribute_nothing() -> None:
    memory = shop()
    memory.put("events", (1, 1, 9, 5))  # Only a column that the view does not read.
    assert commit(memory) == []


def test_a_contribution_may_come_before_what_it_subtracts_from() -> None:
    memory = shop()
    memory.remove("events", (3, 2, 1, 11))
    [deletion] = memory.propagate()["v"]
    other = Folded(memory.plan("v"))
    other.refresh([deletion])
    assert list(other.states.values()) == [(20, -1, -11)]
    assert other.multiplicities() == [0]
    other.refresh([memory.plan("v").negate(deletion)])
    assert other.states == {}


def test_a_view_without_group_by_always_has_a_row() -> None:
    memory = opened("SELECT COUNT(*) AS n, SUM(cost) AS s, AVG(cost) AS a, COUNT(product) AS p FROM events")
    assert memory.outputs("v") == [(0, None, None, 0)]
    memory.put("events", (1, None, 1, 5), (2, 1, 1, 8))
    commit(memory)
    assert memory.outputs("v") == [(2, 13, Decimal("6.5"), 1)]
    memory.remove("events", (1, None, 1, 5))
    memory.remove("events", (2, 1, 1, 8))
    commit(memory)
    assert memory.stored["v"] == {}
    assert memory.outputs("v") == [(0, None, None, 0)]


def test_a_sum_of_integers_passes_64_bits() -> None:
    memory = opened("SELECT SUM(cost) AS s FROM events")
    memory.put("events", (1, 1, 1, 2**63 - 1), (2, 1, 1, 2**63 - 1))
    commit(memory)
    assert memory.outputs("v") == [(2**64 - 2,)]


def test_shared_arguments_are_kept_once() -> None:
    memory = opened(
        "SELECT SUM(product), AVG(product), COUNT(product), SUM(cost) FROM events".replace(
            "SUM(cost)", "SUM(cost) AS c"
        )
    )
    memory.put("events", (1, 4, 1, 7))
    assert commit(memory) == [((), (1, 1, 4, 7))]


# --- numbers ---


def measured(outputs: str, *rows: Row) -> Memory:
    memory = opened(f"SELECT {outputs} FROM measures")
    memory.put("measures", *rows)
    commit(memory)
    return memory


def measure(number: int, f: float | None = None, d: Decimal | None = None, p: Decimal | None = None) -> Row:
    return (number, None, f, d, p, None)


def test_float_sums_come_back_exactly_after_deletes() -> None:
    memory = measured("SUM(f) AS s, AVG(f) AS a", measure(1, 0.1), measure(2, 0.2))
    before = memory.outputs("v")
    for odd in (1e300, float("inf"), float("-inf"), NAN):
        memory.put("measures", measure(9, odd))
        commit(memory)
        assert memory.outputs("v") != before
        memory.remove("measures", measure(9, odd))
        commit(memory)
        assert memory.outputs("v") == before
    assert before == [(0.1 + 0.2, 0.15000000000000002)]


def test_infinities_of_both_signs_are_nan() -> None:
    memory = measured("SUM(f) AS s, SUM(d) AS t", measure(1, float("inf"), Decimal("Infinity")))
    assert memory.outputs("v") == [(float("inf"), Decimal("Infinity"))]
    memory.put("measures", measure(2, float("-inf"), Decimal("-Infinity")))
    commit(memory)
    assert memory.outputs("v") == [(NAN, DECIMAL_NAN)]
    memory.remove("measures", measure(1))
    commit(memory)
    assert memory.outputs("v") == [(float("-inf"), Decimal("-Infinity"))]


def test_scale_of_a_decimal_sum_follows_the_rows_that_are_left() -> None:
    memory = measured("SUM(d) AS s, AVG(d) AS a, SUM(p) AS p", measure(1, None, Decimal("1"), Decimal("1.00")))
    before = repr(memory.outputs("v"))
    memory.put("measures", measure(2, None, Decimal("0.3333333333333333333333333"), Decimal("2.50")))
    commit(memory)
    assert "0.3333333333333333333333333" not in before
    memory.remove("measures", measure(2))
    memory.put("measures", measure(3, None, Decimal("1"), None), measure(4, None, Decimal("0"), None))
    commit(memory)
    memory.remove("measures", measure(3))
    memory.remove("measures", measure(4))
    commit(memory)
    assert repr(memory.outputs("v")) == before


def test_average_has_the_digits_of_the_rows_that_are_left() -> None:
    memory = measured("AVG(d) AS a", *(measure(n, None, Decimal(1 if n else 2)) for n in range(3)))
    before = memory.outputs("v")
    memory.put("measures", measure(9, None, Decimal("0." + "1" * 30)))
    commit(memory)
    memory.remove("measures", measure(9))
    commit(memory)
    assert memory.outputs("v") == before == [(Decimal("1.3333333333333333"),)]


def test_zeros_of_both_signs_are_one_group_called_zero() -> None:
    memory = opened("SELECT gf, COUNT(*) AS n FROM measures GROUP BY gf")
    memory.put("measures", (1, None, None, None, None, -0.0), (2, None, None, None, None, 0.0))
    memory.put("measures", (3, None, None, None, None, NAN), (4, None, None, None, None, NAN))
    commit(memory)
    assert repr(sorted(memory.outputs("v"), key=str)) == "[(0.0, 2), (nan, 2)]"


def test_a_float_sum_that_is_too_large_is_named_at_read() -> None:
    memory = measured("SUM(f) AS s", measure(1, 1.7e308))
    memory.put("measures", measure(2, 1.7e308))
    with pytest.raises(DataError, match=r"view 'v', row \(\): value out of range"):
        memory.commit()
    state = Folded(memory.plan("v"), dict(memory.stored["v"]))
    state.refresh(memory.propagate()["v"])
    with pytest.raises(DataError, match=r"view 'v', row \(\): value out of range"):
        memory.plan("v").output(*state.states.values())


# --- plain rows ---


def test_an_update_of_a_plain_row_is_one_contribution() -> None:
    memory = opened("SELECT e.cost, p.category FROM events e JOIN products p ON e.product = p.id")
    memory.put("products", (1, 10))
    memory.put("events", (7, 1, 1, 5))
    assert commit(memory) == [((7, 1), (1, 5, 10))]
    memory.put("events", (7, 1, 1, 6))
    memory.put("products", (1, 11))
    assert commit(memory) == [((7, 1), (-1, 5, 10, 1, 6, 11))]
    assert list(memory.stored["v"].values()) == [(7, 1, 1, 6, 11)]
    assert memory.outputs("v") == [(6, 11)]


def test_an_update_that_the_view_does_not_show_contributes_nothing() -> None:
    memory = opened("SELECT cost FROM events")
    memory.put("events", (7, 1, 1, 5))
    commit(memory)
    memory.put("events", (7, 2, 2, 5))
    assert commit(memory) == []


def test_a_row_that_comes_and_goes_between_two_tables_contributes_nothing() -> None:
    memory = opened("SELECT e.cost FROM events e JOIN products p ON e.product = p.id")
    memory.put("products", (1, 10))
    commit(memory)
    memory.put("events", (7, 1, 1, 5))
    memory.remove("products", (1, 10))
    assert commit(memory) == []


def test_equal_rows_are_kept_apart_by_their_keys() -> None:
    memory = opened("SELECT cost FROM events")
    memory.put("events", (1, 1, 1, 5), (2, 1, 1, 5))
    commit(memory)
    assert memory.outputs("v") == [(5,), (5,)]


def test_a_new_scale_of_an_equal_decimal_is_shown() -> None:
    memory = opened("SELECT d, f FROM measures")
    memory.put("measures", measure(1, -0.0, Decimal("1.0")))
    commit(memory)
    memory.put("measures", measure(1, 0.0, Decimal("1.00")))
    commit(memory)
    assert repr(memory.outputs("v")) == "[(Decimal('1.00'), 0.0)]"


def test_contributions_to_a_plain_row_commute() -> None:
    memory = opened("SELECT cost FROM events")
    history = []
    for cost in (5, 6, 7):
        memory.put("events", (1, 1, 1, cost))
        history += memory.commit()["v"]
    other = Folded(memory.plan("v"))
    other.refresh(history[::-1][:2])
    assert other.multiplicities() == [0]
    other.refresh(history[:1])
    assert other.states == memory.stored["v"]
    assert memory.outputs("v") == [(7,)]


# --- look-ups ---


def asked(memory: Memory) -> list[list[tuple[str, bool, str, int]]]:
    """(table, by primary key, state, keys) of each look-up in each batch of the open transaction."""
    memory.asked.clear()
    memory.propagate()
    return [
        [(look_up.table, look_up.index is None, State(look_up.state).name, len(look_up.keys)) for look_up in batch]
        for batch in memory.asked
    ]


def test_a_single_table_view_asks_nothing() -> None:
    memory = opened("SELECT SUM(cost) AS s FROM events")
    memory.put("events", (1, 1, 1, 1))
    assert asked(memory) == []


CHAIN = (
    "SELECT c.name, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id"
    " JOIN categories c ON p.category = c.id JOIN shops s ON s.id = e.shop GROUP BY c.name"
)


def test_look_ups_by_primary_key_of_one_stage_go_out_together() -> None:
    memory = opened(CHAIN)
    memory.put("products", (1, 1))
    memory.put("shops", (1, "Bern"))
    memory.commit()
    memory.put("events", (1, 1, 1, 5), (2, 1, 1, 6))
    assert asked(memory) == [
        [("products", True, "OLD", 2), ("shops", True, "OLD", 2)],
        [("categories", True, "OLD", 2)],
    ]


def test_terms_run_in_lock_step_with_old_and_new_states() -> None:
    memory = opened(COST_BY_CATEGORY)
    memory.put("products", (1, 10))
    memory.put("events", (1, 1, 1, 5))
    assert asked(memory) == [[("products", True, "NEW", 1), ("events", False, "KEPT", 1)]]


def test_keys_after_an_index_are_asked_for_once() -> None:
    memory = opened(CHAIN)
    memory.put("events", *((number, 1, number % 2, 5) for number in range(10)))
    memory.put("categories", (3, "books"))
    memory.commit()
    memory.put("products", (1, 3))
    assert asked(memory) == [
        [("categories", True, "OLD", 1)],
        [("events", False, "OLD", 1)],
        [("shops", True, "OLD", 2)],
    ]


def test_null_joins_nothing_and_is_not_looked_up() -> None:
    memory = opened(COST_BY_CATEGORY)
    memory.put("events", (1, None, 1, 5))
    assert asked(memory) == []
    memory.put("events", (2, 4, 1, 5))
    assert asked(memory) == [[("products", True, "OLD", 1)]]


def test_filters_come_before_look_ups() -> None:
    memory = opened(COST_BY_CATEGORY.replace(" GROUP", " WHERE e.cost > 5 GROUP"))
    memory.put("events", (1, 1, 1, 5), (2, 1, 1, 6))
    assert asked(memory) == [[("products", True, "OLD", 1)]]


def test_composite_primary_keys_are_bound_by_several_equalities() -> None:
    sql = "SELECT e.id, s.n FROM events e JOIN stock s ON s.product = e.product AND s.shop = e.shop"
    memory = opened(sql)
    assert memory.plan("v").needed_indexes == (("events", (1,)),)
    memory.put("stock", (1, 2, 100), (2, 2, 200))
    memory.commit()
    memory.put("events", (1, 2, 1, 5))
    assert asked(memory) == [[("stock", True, "OLD", 1)]]
    commit(memory)
    memory.put("stock", (1, 2, 101))
    memory.put("events", (9, 2, 2, 5))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(1, 101), (9, 200)]


def test_a_missing_index_is_needed_on_all_bound_columns() -> None:
    sql = "SELECT a.id FROM events a JOIN events b ON a.cost = b.cost AND a.shop = b.shop"
    relation, stored = parse_view(sql, TABLES), Memory(TABLES.values())
    assert needed_indexes(keep(relation, Planned(stored.tables)), TABLES) == (("events", (2, 3)),)
    plan = compile_view("v", 9, relation, Planned(stored.tables))
    with pytest.raises(InternalError, match=r"index of 'events' on \(shop, cost\) does not exist"):
        stored.run(plan.propagate({"events": [((1, 1, 1, 5), 1)]}))
    memory = over(relation)
    assert memory.plan("v").needed_indexes == (("events", (2, 3)),)
    memory.put("events", (1, 1, 1, 5), (2, 1, 1, 5), (3, 1, 2, 5))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(1,), (1,), (2,), (2,), (3,)]


def test_an_index_that_is_being_built_is_not_used() -> None:
    tables = {**TABLES, "events": Table(3, "events", TABLES["events"].columns, (0,), (Index(30, (1,), ready=False),))}
    relation, stored = parse_view(COST_BY_CATEGORY, tables), Memory(tables.values())
    assert needed_indexes(keep(relation, Planned(stored.tables)), tables) == (("events", (1,)),)
    plan = compile_view("v", 9, relation, Planned(stored.tables))
    with pytest.raises(InternalError, match="does not exist"):
        stored.run(plan.propagate({"products": [((1, 1), 1)]}))


def test_a_join_without_equality_is_refused() -> None:
    product = Join("inner", scan(TABLES["events"], "e"), scan(TABLES["shops"], "s"), None)
    with pytest.raises(UnsupportedView, match="joins without any equality") as caught:
        over(product)
    assert caught.value.hint == "add a condition s.x = other.y"
    below = Call("<", (ColumnRef(0, 0, "id", INT, False), ColumnRef(0, 4, "id", INT, False)), BOOL)
    with pytest.raises(UnsupportedView, match="joins without any equality"):
        over(Filter(product, below))


def test_an_expression_over_two_tables_joins_by_their_stored_join() -> None:
    query = (
        "(SELECT e.id, e.cost + p.category AS s FROM events e JOIN products p ON e.product = p.id WHERE e.cost > 0) q"
    )
    memory = opened(f"SELECT q.id, s.id AS shop FROM {query} JOIN shops s ON s.id = q.s")
    [hidden] = [name for name in memory.tables.views if name != "v"]
    assert memory.tables.views[hidden].plan.sources == ("events", "products")
    text = memory.explain("v")
    assert "inner view 1 by index (column" in text and "shops s by primary key (id = inner view 1.column" in text
    memory.put("shops", *((number, "x") for number in range(8)))
    memory.put("products", (1, 2), (2, 3))
    memory.put("events", (1, 1, 1, 5), (2, 2, 1, 4), (3, 2, 1, -1), (4, 2, 1, 7))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(1, 7), (2, 7)]


def test_a_row_of_values_connects_what_is_joined_with_it() -> None:
    memory = opened(
        "SELECT e.id, p.id AS product FROM (VALUES (1), (2)) AS v (k) JOIN events e ON e.shop = v.k"
        " JOIN products p ON p.category = v.k"
    )
    assert memory.plan("v").needed_indexes == (("products", (1,)), ("events", (2,)))
    memory.put("products", (1, 1), (2, 2), (3, 3))
    memory.put("events", (1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 2, 1), (4, 1, 3, 1))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(1, 1), (2, 1), (3, 2)]
    with pytest.raises(UnsupportedView, match="joins without any equality"):
        opened("SELECT 1 AS one FROM events e, products p WHERE e.shop = 1 AND p.category = 2")


@pytest.mark.parametrize(("kind", "expansions_max"), [("LEFT", 6 * 20), ("RIGHT", 4 * 20**2)])
def test_a_chain_of_outer_joins_is_expanded_once(
    monkeypatch: pytest.MonkeyPatch, kind: str, expansions_max: int
) -> None:
    """With the presence views: of a LEFT JOIN they are of one table each, of a RIGHT JOIN of the chain so far."""
    joins = "".join(f" {kind} JOIN products p{n} ON p{n}.id = p{n - 1}.category" for n in range(1, 20))
    relation = parse_view(f"SELECT p0.id FROM products p0{joins}", TABLES)
    expanded: list[tuple[int, ...]] = []
    expand = expansion._expand

    def counted(relation: Relation, stored: Stored, path: tuple[int, ...]) -> list[Branch]:
        expanded.append(path)
        assert len(expanded) <= expansions_max
        return expand(relation, stored, path)

    monkeypatch.setattr(expansion, "_expand", counted)
    assert len(keep(relation, Planned(Memory(TABLES.values()).tables)).parts) == 20


def test_a_long_chain_of_left_joins_is_kept() -> None:
    joins = "".join(f" LEFT JOIN products p{n} ON p{n}.id = p{n - 1}.category" for n in range(1, 8))
    memory = opened(f"SELECT p0.id, p1.id AS next, p7.id AS last FROM products p0{joins}")
    memory.put("products", (1, 2), (2, 3), (3, None), (4, 4))
    commit(memory)
    assert sorted(memory.outputs("v"), key=str) == [(1, 2, None), (2, 3, None), (3, None, None), (4, 4, 4)]
    memory.put("products", (3, 1))
    memory.remove("products", (4, 4))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(1, 2, 2), (2, 3, 3), (3, 1, 1)]


def test_values_beyond_the_limit_belong_into_a_table() -> None:
    rows = ", ".join(f"({number})" for number in range(BRANCHES_MAX + 1))
    with pytest.raises(UnsupportedView, match="VALUES with more than 64 rows") as caught:
        opened(f"SELECT a FROM (VALUES {rows}) AS v (a)")
    assert caught.value.hint == "put the rows into a table, and read them from there"


def test_many_tables_around_one_are_looked_up_in_several_stages() -> None:
    joins = "".join(f" JOIN events e{number} ON e{number}.product = p.id" for number in range(24))
    memory = opened(f"SELECT COUNT(*) AS n FROM products p{joins}")
    memory.put("products", (1, 1))
    memory.put("events", (1, 1, 1, 1), (2, 2, 1, 1))
    commit(memory)
    assert memory.outputs("v") == [(1,)]


def contributed(memory: Memory, source: int, *rows: Row) -> list[tuple[object, ...]]:
    found = memory.run(memory.plan("v").contribute_from(0, source, rows))
    assert {look_up.state for batch in memory.asked for look_up in batch} <= {State.OLD}
    return sorted((contribution.key_values, contribution.delta) for contribution in found)


def test_first_contents_come_from_one_source_with_all_others_as_they_are() -> None:
    memory = shop()
    memory.asked.clear()
    assert memory.plan("v").starts() == [(0, 0, "events")]
    assert contributed(memory, 0, (1, 1, 1, 5), (3, 2, 1, 11)) == [((10,), (1, 5)), ((20,), (1, 11))]
    assert contributed(memory, 1, (1, 10)) == [((10,), (2, 12))]


def test_a_row_that_joins_nothing_contributes_nothing_to_the_first_contents() -> None:
    memory = opened("SELECT COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id")
    assert contributed(memory, 0, (1, 1, 1, 5)) == []
    assert memory.outputs("v") == [(0,)]


def test_first_contents_of_all_branches_and_constants_are_the_view() -> None:
    """A view that is created over rows is the one that was there before them."""
    sql = (
        "SELECT p.id, e.cost FROM products p LEFT JOIN events e ON e.product = p.id"
        " UNION ALL SELECT id, NULL FROM shops UNION ALL VALUES (100, 200), (100, 200)"
    )
    early, late = opened(sql), Memory(TABLES.values())
    for memory in (early, late):
        memory.put("products", (1, 10), (2, 20), (3, None))
        memory.put("events", (1, 1, 1, 5), (2, 1, 1, 7), (3, 9, 1, 11))
        memory.put("shops", (7, "Bern"))
        memory.commit()
    late.create_view("v", parse_view(sql, TABLES))
    assert late.stored["v"] == early.stored["v"]
    assert sorted(late.outputs("v"), key=str) == [
        (1, 5), (1, 7), (100, 200), (100, 200), (2, None), (3, None), (7, None),
    ]  # fmt: skip


def test_explain_names_every_look_up() -> None:
    memory = opened(COST_BY_CATEGORY)
    assert memory.explain("v").splitlines() == [
        "view v: groups, key (category)",
        "└─ events e ⋈ products p",
        "   ├─ change of events e: 1.0 look-ups per row",
        "   │  └─ products p by primary key (id = e.product)",
        "   └─ change of products p: 1.0 look-ups and 10.0 rows per row",
        "      └─ events e by index (product = p.id)",
    ]


def test_explain_shows_the_views_that_are_kept_for_a_view() -> None:
    text = opened("SELECT id FROM products WHERE id NOT IN (SELECT shop FROM events WHERE shop > 1)").explain("v")
    assert "must not be there" in text
    assert "all rows, because the first or the last row of the other side came or went" in text
    assert "kept for it: SELECT DISTINCT shop FROM events WHERE " in text
    assert "~" not in text


# --- hidden views ---


def kinds_asked(memory: Memory) -> list[list[tuple[str, str, str, int]]]:
    """(table, how, state, keys) of each look-up of the open transaction; hidden views are all called "~"."""
    special = {None: "key", STATES: "states", FIRST: "first", LAST: "last", TOP: "top", WHOLE_TABLE: "all"}
    memory.asked.clear()
    memory.propagate()
    return [
        [
            (
                look_up.table[:1] if is_hidden(look_up.table) else look_up.table,
                special.get(look_up.index, "index"),
                State(look_up.state).name,
                len(look_up.keys),
            )
            for look_up in batch
        ]
        for batch in memory.asked
    ]


WITHOUT_EVENTS = "SELECT id FROM products p WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.product = p.id)"


def test_a_change_reaches_an_anti_join_only_when_a_key_appears_or_disappears() -> None:
    memory = opened(WITHOUT_EVENTS)
    memory.put("products", (1, 1))
    assert kinds_asked(memory) == [[("~", "key", "OLD", 1)]]
    memory.commit()
    memory.put("events", (1, 1, 1, 1))
    assert kinds_asked(memory) == [[("~", "states", "OLD", 1)], [("products", "key", "OLD", 1)]]
    memory.commit()
    assert memory.outputs("v") == []
    memory.put("events", (2, 1, 1, 1), (3, 1, 1, 1))
    assert kinds_asked(memory) == [[("~", "states", "OLD", 1)]]
    assert "v" not in memory.commit()
    memory.remove("events", (1,), (2,))
    assert "v" not in memory.commit()
    memory.remove("events", (3,))
    assert commit(memory) == [((1,), (1, 1))]


def test_a_row_and_its_partner_that_come_together_contribute_nothing_to_an_anti_join() -> None:
    memory = opened(WITHOUT_EVENTS)
    memory.put("products", (1, 1))
    memory.put("events", (1, 1, 1, 1))
    assert kinds_asked(memory)[1] == [("~", "key", "NEW", 1), ("products", "key", "KEPT", 1)]
    assert commit(memory) == []
    memory.remove("products", (1,))
    memory.remove("events", (1,))
    assert commit(memory) == []
    assert [memory.stored[name] for name in memory.tables.views] == [{}, {}]


def test_of_an_anti_source_only_what_is_absent_before_and_after_is_left_alone() -> None:
    """State.TAKEN: the key of the presence that this transaction removes is somebody else's term."""
    memory = opened(
        "SELECT s.id, s.city FROM shops s WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.shop = s.id)"
        " AND EXISTS (SELECT 1 FROM stock t WHERE t.shop = s.id)"
    )
    memory.put("shops", (1, "Bern"), (2, "Genf"))
    memory.put("stock", (1, 1, 1), (2, 1, 1))
    memory.put("events", (1, 1, 1, 1))
    memory.commit()
    assert memory.outputs("v") == [(2, "Genf")]
    memory.remove("events", (1,))
    memory.remove("stock", (2, 1))
    memory.put("shops", (1, "Basel"))
    states = {state for batch in kinds_asked(memory) for _, _, state, _ in batch}
    assert states >= {"OLD", "NEW", "KEPT", "TAKEN"}
    memory.commit()
    assert memory.outputs("v") == [(1, "Basel")]


def test_null_finds_no_partner_and_passes_an_anti_join() -> None:
    memory = opened("SELECT id FROM events e WHERE NOT EXISTS (SELECT 1 FROM products p WHERE p.category = e.product)")
    memory.put("events", (1, None, 1, 1), (2, 7, 1, 1))
    memory.put("products", (1, None), (2, 7))
    memory.commit()
    assert memory.outputs("v") == [(1,)]


def test_the_first_null_of_not_in_touches_every_row_and_the_second_none() -> None:
    memory = opened("SELECT id FROM events WHERE product NOT IN (SELECT category FROM products)")
    memory.put("events", (1, 1, 1, 1), (2, 2, 1, 1), (3, None, 1, 1))
    memory.put("products", (1, 1))
    memory.commit()
    assert memory.outputs("v") == [(2,)]
    memory.put("products", (2, None))
    assert ("events", "all", "OLD", 1) in [each for batch in kinds_asked(memory) for each in batch]
    memory.commit()
    assert memory.outputs("v") == []
    memory.put("products", (3, None))
    assert all(table == "~" and how == "states" for batch in kinds_asked(memory) for table, how, _, _ in batch)
    memory.commit()
    memory.remove("products", (1,), (2,), (3,))
    memory.commit()
    assert memory.outputs("v") == [(1,), (2,), (3,)]


def test_extremes_are_looked_up_by_readers_only() -> None:
    memory = opened("SELECT shop, MIN(cost) AS lo, MAX(cost) AS hi FROM events GROUP BY shop")
    memory.put("events", (1, 1, 1, 5), (2, 1, 1, 9))
    assert kinds_asked(memory) == [[("~", "states", "OLD", 2)]]
    memory.commit()
    assert memory.outputs("v") == [(1, 5, 9)]
    memory.remove("events", (2,))
    memory.commit()
    assert memory.outputs("v") == [(1, 5, 5)]


def test_extremes_that_may_not_be_shown_are_looked_at_before_the_commit() -> None:
    memory = opened("SELECT shop, 10 / MIN(cost) AS x FROM events GROUP BY shop")
    memory.put("events", (1, 1, 1, 5))
    assert kinds_asked(memory)[-1] == [("~", "first", "OLD", 1), ("~", "first", "NEW", 1)]
    memory.commit()
    memory.put("events", (2, 1, 1, 0))
    with pytest.raises(DataError, match=r"view 'v', row \(1,\): division by zero"):
        memory.commit()


def test_equal_parts_of_several_views_are_kept_once() -> None:
    memory = opened("SELECT p.id, e.cost FROM products p LEFT JOIN events e ON e.product = p.id")
    hidden = [name for name in memory.tables.views if is_hidden(name)]
    assert len(hidden) == 1
    memory.create_view("w", parse_view(WITHOUT_EVENTS.replace("events e", "events x").replace("e.p", "x.p"), TABLES))
    assert [name for name in memory.tables.views if is_hidden(name)] == hidden


def test_views_of_one_level_ask_together_and_a_view_comes_after_all_that_it_reads() -> None:
    memory = Memory(TABLES.values())
    for name, sql in (
        ("low", "SELECT shop, MIN(cost) AS c FROM events GROUP BY shop"),
        ("high", "SELECT shop, MAX(cost) AS c FROM events GROUP BY shop"),
        ("v", "SELECT low.shop, high.c - low.c AS d FROM low JOIN high ON low.shop = high.shop"),
    ):
        views = {view.name: memory.tables.table(view.name) for view in memory.tables.catalog.views.values()}
        memory.create_view(name, parse_view(sql, {**TABLES, **views}))
    levels = {name: memory.view(name).level for name in ("low", "high", "v")}
    assert levels == {"low": 1, "high": 1, "v": 2}
    memory.put("events", (1, 1, 1, 5))
    memory.commit()
    memory.put("events", (2, 1, 1, 9))
    assert kinds_asked(memory) == [
        [("~", "states", "OLD", 1)],
        [("low", "states", "OLD", 1), ("high", "states", "OLD", 1)],
        [("~", how, state, 1) for how in ("first", "last") for state in ("OLD", "NEW")],
        [("low", "key", "OLD", 2)],
    ]
    assert commit(memory) == [((1, 1), (-1, 1, 0, 1, 1, 4))]


# --- rows that never were ---


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 10 / (e.cost - p.category) AS x FROM events e JOIN products p ON e.product = p.id",
        "SELECT e.id FROM events e JOIN products p ON e.product = p.id WHERE 10 / (e.cost - p.category) < 100",
        "SELECT SUM(10 / (e.cost - p.category)) AS x FROM events e JOIN products p ON e.product = p.id",
        "SELECT MAX(10 / (e.cost - p.category)) AS x FROM events e JOIN products p ON e.product = p.id",
        "SELECT DISTINCT 10 / (e.cost - p.category) AS x FROM events e JOIN products p ON e.product = p.id",
        "SELECT e.id, p.id AS p FROM events e FULL JOIN products p"
        " ON e.product = p.id AND 10 / (e.cost - p.category) < 100",
        "SELECT id FROM events e WHERE EXISTS"
        " (SELECT 1 FROM products p WHERE e.product = p.id AND 10 / (e.cost - p.category) < 100)",
        "SELECT id FROM events e WHERE NOT EXISTS"
        " (SELECT 1 FROM products p WHERE e.product = p.id AND 10 / (e.cost - p.category) < 0)",
        "SELECT e.id, 10 / (e.cost - p.category) AS x FROM events e JOIN products p ON e.product = p.id"
        " ORDER BY 10 / (e.cost - p.category) LIMIT 2",
        "SELECT 10 / (e.cost - p.category) AS x FROM (SELECT product, MAX(cost) AS cost FROM events GROUP BY product) e"
        " JOIN products p ON e.product = p.id",
    ],
    ids=["output", "where", "sum", "max", "distinct", "full_join", "exists", "not_exists", "top", "view_on_view"],
)
@pytest.mark.parametrize("steps", [((1, 2), (2, 3)), ((2, 3), (1, 2))], ids=["old_partner", "new_partner"])
def test_no_joined_row_that_never_existed_is_evaluated(sql: str, steps: tuple[tuple[int, int], ...]) -> None:
    """The new cost with the old category, or the old cost with the new category, would divide by zero."""
    memory = opened(sql)
    relation = memory.view("v").view.relation
    for cost, category in steps:
        memory.put("events", (1, 1, 1, cost))
        memory.put("products", (1, category))
        memory.commit()
        assert same_bag(memory.recomputed(relation), memory.outputs("v")) == []


# --- equal, but not the same ---


def measured_twice(sql: str, views: dict[str, str]) -> Memory:
    """A measure whose values become equal ones that are written differently."""
    memory = Memory(TABLES.values())
    for name, text in {**views, "v": sql}.items():
        known = {view.name: memory.tables.table(view.name) for view in memory.tables.catalog.views.values()}
        memory.create_view(name, parse_view(text, {**TABLES, **known}))
    memory.put("products", (1, 7), (2, 7))
    memory.put("measures", (7, None, -0.0, Decimal("1.0"), None, None))
    memory.commit()
    memory.put("measures", (7, None, 0.0, Decimal("1.00"), None, None))
    memory.commit()
    return memory


def test_a_row_that_counts_several_times_is_shown_as_written_last() -> None:
    memory = measured_twice(
        "SELECT m.d, m.f FROM x JOIN measures m ON m.id = x.category",
        {"x": "SELECT category FROM products EXCEPT ALL SELECT id FROM shops"},
    )
    assert repr(memory.outputs("v")) == "[(Decimal('1.00'), 0.0), (Decimal('1.00'), 0.0)]"


def test_the_first_rows_are_shown_as_written_last() -> None:
    top = "SELECT id, d, f FROM measures ORDER BY id LIMIT 2"
    assert repr(measured_twice(top, {}).outputs("v")) == "[(7, Decimal('1.00'), 0.0)]"
    memory = measured_twice(f"SELECT q.d, q.f FROM ({top}) q JOIN products p ON p.category = q.id", {})
    assert repr(memory.outputs("v")) == "[(Decimal('1.00'), 0.0), (Decimal('1.00'), 0.0)]"


def test_an_outer_join_shows_rows_as_written_last() -> None:
    memory = measured_twice("SELECT p.id, m.d, m.f FROM products p LEFT JOIN measures m ON m.id = p.category", {})
    assert repr(memory.outputs("v")) == "[(1, Decimal('1.00'), 0.0), (2, Decimal('1.00'), 0.0)]"


def test_a_view_on_a_view_shows_rows_as_written_last() -> None:
    memory = measured_twice("SELECT d, f FROM x", {"x": "SELECT id, d, f FROM measures"})
    assert repr(memory.outputs("v")) == "[(Decimal('1.00'), 0.0)]"


# --- keys ---


def test_keys_of_a_grouped_view() -> None:
    memory = opened(
        "SELECT e.shop AS s, p.category, COUNT(*) AS n FROM events e, products p WHERE e.product = p.id GROUP BY 1, 2"
    )
    plan = memory.plan("v")
    assert plan.key_columns == (("s", INT, True), ("category", INT, True))
    expected = plan.keys.encode_short((1, None))
    assert plan.key_of((1, None)) == plan.key_of([1, None]) == plan.key_of({"category": None, "s": 1}) == expected
    with pytest.raises(InterfaceError, match=r"has 2 columns, got 1 value \("):
        plan.key_of(1)
    with pytest.raises(InterfaceError, match="lacks category"):
        plan.key_of({"s": 1})
    with pytest.raises(ProgrammingError, match="'shop' is not in the key"):
        plan.key_of({"shop": 1, "category": 2})
    with pytest.raises(DataError, match=r"v\.s: expected int"):
        plan.key_of(("x", 1))


def test_keys_of_plain_rows_and_of_a_single_row() -> None:
    memory = opened("SELECT e.id AS event, p.category FROM events e JOIN products p ON e.product = p.id")
    assert [name for name, _, _ in memory.plan("v").key_columns] == ["event", "p.id"]
    with pytest.raises(IntegrityError):
        memory.plan("v").key_of((1, None))
    single = opened("SELECT COUNT(*) AS n FROM events")
    assert single.plan("v").key_of(None) == single.plan("v").key_of(()) == single.plan("v").keys.encode_short(())
    with pytest.raises(InterfaceError, match="ask for it without a key"):
        single.plan("v").key_of(1)


def test_group_expressions_that_are_not_shown_have_a_name() -> None:
    memory = opened("SELECT COUNT(*) AS n FROM events GROUP BY cost % 2, shop")
    assert [name for name, _, _ in memory.plan("v").key_columns] == ["key_1", "shop"]


# --- expressions ---


def test_errors_name_view_and_row() -> None:
    memory = opened("SELECT 10 / cost AS x FROM events")
    memory.put("events", (3, 1, 1, 0))
    with pytest.raises(DataError, match=r"view 'v' \(row \(3,\) of table 'events'\): division by zero"):
        commit(memory)
    memory = opened("SELECT shop, 10 / (COUNT(*) - 1) AS x FROM events GROUP BY shop")
    with pytest.raises(DataError, match=r"view 'v', row \(7,\): division by zero"):
        memory.plan("v").output((7, 1))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT MAX(10 / cost) AS x FROM events",
        "SELECT COUNT(DISTINCT 10 / cost) AS x FROM events",
        "SELECT id FROM products p WHERE EXISTS (SELECT 1 FROM events e WHERE e.product = p.id AND 10 / e.cost > p.id)",
        "SELECT COUNT(*) AS n FROM (SELECT shop, 10 / SUM(cost) AS x FROM events GROUP BY shop) q WHERE x > 1",
    ],
    ids=["max", "count_distinct", "exists", "subquery"],
)
def test_errors_in_hidden_views_name_the_view_of_the_user(sql: str) -> None:
    with vt.connect("memory:") as db:
        db.create_table("products", {"id": int, "category": int}, key="id")
        db.create_table("events", {"id": int, "product": int, "shop": int, "cost": int}, key="id")
        db.create_view("v", sql)
        with pytest.raises(DataError, match=r"view 'v'.*division by zero"), db.transaction() as tx:
            tx.insert("products", {"id": 1, "category": 1})
            tx.insert("events", {"id": 1, "product": 1, "shop": 1, "cost": 0})


def test_text_of_the_user_never_becomes_source() -> None:
    evil = '\'); raise SystemExit(1) #\n"""{0}'
    table = Table(1, evil, (Column(evil, INT), Column("b", STR)), (0,))
    column = ColumnRef(0, 1, evil, STR, True)
    outputs: list[Expression] = [
        Call("||", (column, Literal(evil, STR)), STR),
        Call("like", (column, Literal(evil, STR)), BOOL),
        Call("in", (column, Literal(evil, STR), Literal("x", STR)), BOOL),
    ]
    named = tuple(Output(evil + str(number), output, True) for number, output in enumerate(outputs))
    memory = Memory([table])
    memory.create_view(evil + "v", Project(scan(table, evil), named))
    memory.put(evil, (1, evil))
    memory.commit()
    assert memory.outputs(evil + "v") == [(evil + evil, True, True)]


def test_case_evaluates_only_the_branch_that_it_takes() -> None:
    memory = opened(
        "SELECT CASE WHEN cost = 0 THEN 0 ELSE 10 / cost END AS x FROM events WHERE cost < 5 OR 1 / cost = 0"
    )
    memory.put("events", (1, 1, 1, 0), (2, 1, 1, 3))
    commit(memory)
    assert sorted(memory.outputs("v")) == [(0,), (3,)]


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
    memory = over(Project(scan(TABLES["events"]), (Output("deep", expression, False), Output("wide", case, True))))
    memory.put("events", (1, 1, 1, 5), (199, 1, 1, 5), (200, 1, 1, 5))
    commit(memory)
    assert memory.outputs("v") == [(75, 1), (75, 199), (75, None)]


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
    memory = opened(f"SELECT id FROM measures WHERE {condition}")
    memory.put("measures", (1, "abcä", 2.5, None, Decimal("2.50"), None))
    commit(memory)
    assert memory.outputs("v") == ([(1,)] if passes else [])
