"""Ad-hoc queries by hand: what they read (keys and indexes instead of everything), in which order, and what EXPLAIN
tells about it. That the rows are right for every relation is the property test's business."""

from __future__ import annotations

import pytest

from tests.properties.reading import ListReader
from viewtide.changetables.algebra import (
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
    Slice,
    Top,
    Values,
    WithKey,
    column,
)
from viewtide.changetables.errors import DataError, InternalError
from viewtide.changetables.execute import Query, execute, explain_query
from viewtide.changetables.expressions import Aggregate, Call, Expression, Literal
from viewtide.changetables.query_joins import KEYS_FIRST_LOOK_UP
from viewtide.changetables.recompute import recompute, same_bag
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.types import BOOL, INT, STR, Row, Value

ROWS = 500
TABLES = {
    "e": Table(
        1,
        "e",
        (Column("id", INT, nullable=False), Column("p", INT), Column("cost", INT), Column("kind", STR)),
        key=(0,),
        indexes=(Index(100, (1,)), Index(101, (3, 1)), Index(102, (2,), ready=False)),
    ),
    "p": Table(2, "p", (Column("id", INT, nullable=False), Column("name", STR)), key=(0,)),
    "k": Table(
        3,
        "k",
        (Column("tenant", INT, nullable=False), Column("no", INT, nullable=False), Column("x", INT)),
        key=(0, 1),
    ),
    # No primary key: a hidden row id.
    "h": Table(4, "h", (Column("", INT, nullable=False, hidden=True), Column("x", INT)), key=(0,)),
    # A view: its key is hidden, and so is how often a row counts.
    "v": Table(
        5,
        "v",
        (Column("name", STR), Column("", INT, hidden=True), Column("*", INT, nullable=False, hidden=True)),
        key=(1,),
    ),
}
DATA: dict[str, list[Row]] = {
    "e": [(number, number % 50, number % 7, "ab"[number % 2]) for number in range(ROWS)] + [(ROWS, None, None, None)],
    "p": [(number, f"name {number % 5}") for number in range(50)],
    "k": [(number // 10, number % 10, number) for number in range(200)],
    "h": [(number, number % 3) for number in range(9)],
    "v": [("a", 1, 2), ("b", 2, 1)],
}


def scan(name: str, alias: str = "") -> Scan:
    table = TABLES[name]
    positions = table.visible()
    fields = tuple(Field(item.name, item.type, item.nullable) for item in (table.columns[place] for place in positions))
    return Scan(name, alias or name, positions, fields)


def col(relation: Relation, name: str) -> Expression:
    places = [place for place, field in enumerate(relation.fields) if field.name == name]
    return column(relation, places[0])


def lit(value: Value) -> Literal:
    return Literal(value, STR if isinstance(value, str) else BOOL if isinstance(value, bool) else INT)


def call(op: str, *args: Expression) -> Call:
    return Call(op, args, BOOL)


def both(*conditions: Expression) -> Expression:
    return call("and", *conditions)


def where(relation: Relation, **values: Value) -> Filter:
    """The rows that have these values."""
    equalities = [call("=", col(relation, name), lit(value)) for name, value in values.items()]
    return Filter(relation, equalities[0] if len(equalities) == 1 else both(*equalities))


def project(relation: Relation, *names: str) -> Project:
    return Project(relation, tuple(Output(name, col(relation, name), True) for name in names))


def join(kind: str, left: Relation, right: Relation, *pairs: tuple[str, str]) -> Join:
    """Joined on equalities of columns by name."""
    joined = Join(kind, left, right, None)
    width = len(left.fields)
    parts = [
        call(
            "=",
            col(left, one),
            column(joined, width + next(n for n, field in enumerate(right.fields) if field.name == two)),
        )
        for one, two in pairs
    ]
    return Join(kind, left, right, both(*parts) if len(parts) > 1 else parts[0] if parts else None)


def count_by(relation: Relation, name: str) -> Group:
    counted = Aggregate("count_star", None, INT)
    return Group(relation, (col(relation, name),), (counted,), (name, "n"), (True, False))


def top(relation: Relation, limit: int | None, *names: str, offset: int = 0, descending: bool = False) -> Top:
    order = tuple(Order(col(relation, name), descending, descending) for name in names)
    return Top(relation, order, limit, offset)


def run(relation: Relation) -> tuple[list[Row], ListReader]:
    """The rows, which must be those of the oracle, and what was read."""
    reader = ListReader(TABLES, DATA)
    found = execute(relation, TABLES, reader)
    assert same_bag(found, recompute(relation, TABLES, DATA)) == []
    return found, reader


# --- one table ---


def test_a_whole_key_is_looked_up() -> None:
    found, reader = run(where(scan("e"), id=7))
    assert found == [(7, 7, 0, "b")]
    assert reader.calls == [("get_many", "e")]
    assert reader.given == {"e": 1}


def test_a_list_of_keys_is_looked_up_in_one_call() -> None:
    e = scan("e")
    listed = call("in", col(e, "id"), lit(3), lit(5), lit(3), lit(999_999), Literal(None, INT))
    found, reader = run(Filter(e, both(listed, call(">", col(e, "cost"), lit(3)))))
    assert found == [(5, 5, 5, "b")]
    assert reader.calls == [("get_many", "e")]
    assert reader.given == {"e": 2}


@pytest.mark.parametrize("swapped", [False, True])
def test_the_constant_may_stand_on_either_side(swapped: bool) -> None:
    e = scan("e")
    sides = (lit(7), col(e, "id")) if swapped else (col(e, "id"), lit(7))
    assert run(Filter(e, call("=", *sides)))[1].calls == [("get_many", "e")]
    assert run(Filter(e, call("is_not_distinct", *sides)))[1].calls == [("get_many", "e")]
    assert run(Filter(e, call(">=" if swapped else "<=", *sides)))[1].given == {"e": 8}


def test_a_constant_may_be_computed() -> None:
    e = scan("e")
    seven = Call("+", (lit(3), lit(4)), INT)
    assert run(Filter(e, call("=", col(e, "id"), seven)))[1].calls == [("get_many", "e")]


def test_rows_of_values_are_looked_up() -> None:
    k = scan("k")
    one = both(call("=", col(k, "tenant"), lit(1)), call("=", col(k, "no"), lit(2)))
    two = both(call("=", col(k, "no"), lit(4)), call("=", col(k, "tenant"), lit(3)))
    found, reader = run(Filter(k, call("or", one, two)))
    assert sorted(found) == [(1, 2, 12), (3, 4, 34)]
    assert reader.calls == [("get_many", "k")]


def test_lists_for_each_column_of_a_key_are_multiplied() -> None:
    k = scan("k")
    lists = both(
        call("in", col(k, "tenant"), lit(1), lit(2)),
        call("in", col(k, "no"), lit(3), lit(4), lit(5)),
    )
    found, reader = run(Filter(k, lists))
    assert len(found) == 6
    assert reader.calls == [("get_many", "k")]
    assert reader.given == {"k": 6}


def test_an_index_finds_rows() -> None:
    _, reader = run(where(scan("e"), p=7))
    assert reader.calls == [("find", "e")]
    assert reader.given == {"e": ROWS // 50}


def test_the_index_with_the_most_columns_is_taken() -> None:
    query = Query(where(scan("e"), p=7, kind="b"), TABLES)
    assert query.explain().startswith("e: 1 value by index (kind, p), where")


def test_an_index_that_is_being_built_is_not_used() -> None:
    _, reader = run(where(scan("e"), cost=3))
    assert reader.calls == [("scan", "e")]


def test_the_beginning_of_a_key_is_a_range() -> None:
    found, reader = run(where(scan("k"), tenant=4))
    assert len(found) == 10
    assert reader.calls == [("range", "k")]
    assert reader.given == {"k": 10}


def test_several_beginnings_of_a_key_are_found() -> None:
    k = scan("k")
    found, reader = run(Filter(k, call("in", col(k, "tenant"), lit(4), lit(6))))
    assert len(found) == 20
    assert reader.calls == [("find", "k")]
    assert reader.given == {"k": 20}


def test_a_range_may_follow_the_beginning_of_a_key() -> None:
    k = scan("k")
    bounds = (call(">", col(k, "no"), lit(3)), call("<=", col(k, "no"), lit(5)))
    found, reader = run(Filter(k, both(call("=", col(k, "tenant"), lit(4)), *bounds)))
    assert [row[1] for row in found] == [4, 5]
    assert reader.calls == [("range", "k")]
    assert reader.given == {"k": 3}  # The strict bound is tested after reading.


def test_a_range_of_keys_is_read() -> None:
    e = scan("e")
    found, reader = run(Filter(e, both(call(">=", col(e, "id"), lit(10)), call("<", col(e, "id"), lit(20)))))
    assert [row[0] for row in found] == list(range(10, 20))
    assert reader.given == {"e": 11}


def test_conditions_that_contradict_each_other_read_nothing() -> None:
    e = scan("e")
    impossible = both(call("=", col(e, "id"), lit(1)), call("=", col(e, "id"), lit(2)))
    assert run(Filter(e, impossible)) == ([], ListReader(TABLES, DATA))
    assert run(where(e, id=None))[1].calls == []
    assert run(Filter(e, lit(False)))[1].calls == []


def test_nothing_is_asked_for_null() -> None:
    e = scan("e")
    found, reader = run(Filter(e, call("is_not_distinct", col(e, "p"), Literal(None, INT))))
    assert found == [(ROWS, None, None, None)]
    assert reader.calls == [("scan", "e")]


def test_rows_older_than_a_column_have_its_default() -> None:
    grown = Table(9, "g", (Column("id", INT, nullable=False), Column("added", INT, default=5)), key=(0,))
    read = Scan("g", "g", (1, 0), (Field("added", INT, True), Field("id", INT, False)))
    reader = ListReader({"g": grown}, {"g": [(1,), (2, 6), (3, None)]})
    assert execute(read, {"g": grown}, reader) == [(5, 1), (6, 2), (None, 3)]
    fives = Filter(read, call("=", column(read, 0), lit(5)))
    assert execute(fives, {"g": grown}, reader) == [(5, 1)]


def test_a_row_of_a_view_counts_as_often_as_it_says() -> None:
    assert sorted(run(scan("v"))[0]) == [("a",), ("a",), ("b",)]
    assert sorted(run(count_by(scan("v"), "name"))[0]) == [("a", 2), ("b", 1)]


# --- conditions go down ---


def test_conditions_pass_projections_and_unions() -> None:
    e = project(scan("e"), "cost", "id")
    moved = Project(e, (Output("key", col(e, "id"), False), Output("cost", col(e, "cost"), True)))
    union = SetOp("union", True, moved, moved)
    _, reader = run(where(union, key=9))
    assert reader.calls == [("get_many", "e")] * 2


def test_conditions_on_keys_pass_groups() -> None:
    grouped = count_by(scan("e"), "p")
    found, reader = run(where(grouped, p=9))
    assert found == [(9, ROWS // 50)]
    assert reader.calls == [("find", "e")]
    having = Filter(grouped, both(call("=", col(grouped, "p"), lit(9)), call(">", col(grouped, "n"), lit(1_000))))
    assert run(having)[0] == []


def test_a_condition_on_the_one_group_of_all_rows_stays_above_it() -> None:
    whole = Group(scan("e"), (), (Aggregate("count_star", None, INT),), ("n",), (False,))
    assert run(where(whole, n=0))[0] == []
    assert run(Filter(whole, lit(None)))[0] == []


def test_conditions_do_not_pass_a_limit() -> None:
    first = top(scan("e"), 10, "id")
    assert run(where(first, id=500))[0] == []


def test_conditions_on_one_side_pass_joins() -> None:
    joined = join("inner", scan("e"), scan("p"), ("p", "id"))
    found, reader = run(where(joined, cost=3, name="name 1"))
    assert all(row[2] == 3 and row[5] == "name 1" for row in found)
    by_id = Filter(joined, call("=", column(joined, 0), lit(8)))
    found, reader = run(by_id)
    assert found == [(8, 8, 1, "a", 8, "name 3")]
    assert reader.calls == [("get_many", "e"), ("get_many", "p")]


def test_an_outer_join_under_a_condition_that_refuses_its_nulls_is_an_inner_one() -> None:
    left = join("left", scan("e"), scan("p"), ("p", "id"))
    assert explain_query(where(left, name="name 1"), TABLES).splitlines()[1].startswith("  inner join")
    assert explain_query(where(left, cost=1), TABLES).startswith("left join")
    full = join("full", scan("e"), scan("p"), ("p", "id"))
    assert "left join" in explain_query(where(full, cost=1), TABLES)
    assert explain_query(Filter(full, call("is_null", col(full, "name"))), TABLES).splitlines()[1].startswith("  full")
    run(where(full, cost=1))


def test_a_condition_that_may_fail_waits_for_the_others() -> None:
    """100 / p fails for product 0, which the join leaves out."""
    joined = join("inner", scan("e"), Filter(scan("p"), call(">", col(scan("p"), "id"), lit(0))), ("p", "id"))
    divided = Call("/", (lit(100), col(joined, "p")), INT)
    found, _ = run(Filter(joined, call("=", divided, lit(50))))
    assert {row[1] for row in found} == {2}
    with pytest.raises(DataError, match="division by zero"):
        execute(Filter(scan("e"), call("=", divided, lit(50))), TABLES, ListReader(TABLES, DATA))


# --- joins ---


def test_a_few_rows_look_their_partners_up() -> None:
    few = Filter(scan("e"), call("<", col(scan("e"), "id"), lit(5)))
    for kind in ("inner", "left"):
        _, reader = run(join(kind, few, scan("p"), ("p", "id")))
        assert reader.calls == [("range", "e"), ("get_many", "p")]
        assert reader.given["p"] == 5
    _, reader = run(join("right", scan("p"), few, ("id", "p")))
    assert reader.calls == [("range", "e"), ("get_many", "p")]


def test_the_selective_side_drives_whatever_the_order() -> None:
    named = where(scan("p"), name="name 1")
    for joined in (
        join("inner", named, scan("e"), ("id", "p")),
        join("inner", scan("e"), named, ("p", "id")),
    ):
        found, reader = run(joined)
        assert len(found) == ROWS // 5
        assert reader.calls == [("scan", "p"), ("find", "e")]


def test_partners_inside_a_group_are_looked_up() -> None:
    named = where(scan("p"), id=3)
    found, reader = run(join("inner", named, count_by(scan("e"), "p"), ("id", "p")))
    assert found == [(3, "name 3", 3, ROWS // 50)]
    assert reader.calls == [("get_many", "p"), ("find", "e")]


def test_whole_tables_are_hashed_not_looked_up_by_index() -> None:
    _, reader = run(join("inner", scan("p"), scan("e"), ("id", "p")))
    assert sorted(reader.calls) == [("scan", "e"), ("scan", "p")]


def test_each_key_is_looked_up_once() -> None:
    found, reader = run(join("left", scan("e"), scan("p"), ("p", "id")))
    assert len(found) == ROWS + 1
    assert reader.calls == [("scan", "e"), ("get_many", "p")]
    assert reader.given["p"] == 50


def test_tables_that_are_listed_are_joined_along_their_equalities() -> None:
    """FROM e, k, p WHERE e.p = p.id AND p.id = k.tenant: in this order e and k would be multiplied."""
    product = join("inner", join("inner", scan("e"), scan("k")), scan("p"))
    e_p, k_tenant, p_id = column(product, 1), column(product, 4), column(product, 7)
    few = call("=", column(product, 0), lit(7))
    joined = Filter(product, both(call("=", e_p, p_id), call("=", p_id, k_tenant), few))
    found, reader = run(joined)
    assert [row[:2] for row in found] == [(7, 7)] * 10
    assert reader.given == {"e": 1, "p": 1, "k": 10}
    assert "each row with each" not in explain_query(joined, TABLES)


def test_a_join_without_equality() -> None:
    less = Join("left", scan("h"), scan("h", "o"), None)
    condition = call("<", column(less, 0), column(less, 1))
    found, _ = run(Join("left", scan("h"), scan("h", "o"), condition))
    assert found.count((2, None)) == 3
    assert found.count((0, 1)) == 9


def test_a_subquery_with_few_rows_looks_the_others_up() -> None:
    e, named = scan("e"), where(scan("p"), id=3)
    pair = call("=", col(e, "p"), column(Join("inner", e, named, None), 4))
    found, reader = run(Semi(e, named, pair, anti=False))
    assert len(found) == ROWS // 50
    assert reader.calls == [("get_many", "p"), ("find", "e")]


def test_a_few_rows_ask_whether_they_have_partners() -> None:
    e = scan("e")
    few = Filter(e, call("<", col(e, "id"), lit(3)))
    pair = call("=", col(e, "p"), column(Join("inner", e, scan("p"), None), 4))
    for anti in (False, True):
        _, reader = run(Semi(few, scan("p"), pair, anti))
        assert reader.calls == [("range", "e"), ("get_many", "p")]


def test_not_in_is_hashed() -> None:
    e, p = scan("e"), scan("p")
    both_sides = Join("inner", e, p, None)
    equal = call("=", column(both_sides, 1), column(both_sides, 4))
    not_in = Semi(e, where(p, name="name 1"), call("is_distinct", equal, lit(False)), anti=True)
    found, _ = run(not_in)
    assert len(found) == ROWS * 4 // 5
    assert "IS NOT FALSE, by hash" in explain_query(not_in, TABLES)


def test_exists_without_a_condition_reads_one_row() -> None:
    found, reader = run(Semi(scan("h"), scan("e"), None, anti=False))
    assert len(found) == 9
    assert reader.given["e"] == 1


# --- order ---


def test_a_limit_in_the_order_of_the_key_stops_early() -> None:
    found, reader = run(top(scan("e"), 3, "id", offset=2))
    assert [row[0] for row in found] == [2, 3, 4]
    assert reader.given["e"] <= 6
    found, reader = run(top(scan("e"), 3, "id", descending=True))
    assert [row[0] for row in found] == [ROWS, ROWS - 1, ROWS - 2]
    assert reader.given["e"] <= 4


def test_a_limit_by_the_beginning_of_a_key_reads_the_ties_too() -> None:
    shown = project(scan("k"), "x", "tenant")
    found, reader = run(top(shown, 4, "tenant"))
    assert found == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert reader.given["k"] <= 11
    found, reader = run(top(project(scan("k"), "x", "no", "tenant"), 3, "tenant", descending=True))
    assert found == [(190, 0, 19), (191, 1, 19), (192, 2, 19)]


def test_a_limit_without_order_is_by_the_whole_row() -> None:
    found, reader = run(top(scan("e"), 2))
    assert found == DATA["e"][:2]
    assert reader.given["e"] <= 3


def test_a_limit_after_the_bound_part_of_a_key() -> None:
    found, reader = run(top(where(scan("k"), tenant=5), 2, "no"))
    assert found == [(5, 0, 50), (5, 1, 51)]
    assert reader.given["k"] <= 3


def test_a_limit_through_a_join_looks_few_partners_up() -> None:
    found, reader = run(top(join("left", scan("e"), scan("p"), ("p", "id")), 3, "id"))
    assert len(found) == 3
    assert reader.given["e"] <= KEYS_FIRST_LOOK_UP + 1
    assert reader.given["p"] <= KEYS_FIRST_LOOK_UP


def test_an_order_that_no_key_has_is_sorted() -> None:
    found, reader = run(top(scan("e"), 3, "cost", "id"))
    assert [row[0] for row in found] == [0, 7, 14]
    assert reader.given == {"e": ROWS + 1}
    assert execute(top(scan("e"), None, "kind", "id"), TABLES, ListReader(TABLES, DATA))[-1][0] == ROWS


def test_a_limit_of_none_reads_nothing() -> None:
    assert run(top(scan("e"), 0, "cost")) == ([], ListReader(TABLES, DATA))


def test_the_order_is_kept_by_a_projection_above() -> None:
    ordered = top(scan("e"), 3, "cost", "id", descending=True)
    found, _ = run(project(ordered, "id"))
    assert found == [(ROWS,), (496,), (489,)]


@pytest.mark.parametrize(("kind", "expected", "read"), [("min", 0, 1), ("max", ROWS, 1)])
def test_the_first_and_the_last_key_are_read_alone(kind: str, expected: int, read: int) -> None:
    e = scan("e")
    edge = Group(e, (), (Aggregate(kind, col(e, "id"), INT),), ("edge",), (True,))
    found, reader = run(edge)
    assert found == [(expected,)]
    assert reader.given["e"] == read


# --- the rest ---


def test_a_query_can_be_run_again() -> None:
    query = Query(count_by(scan("h"), "x"), TABLES)
    for _ in range(2):
        assert sorted(query.rows(ListReader(TABLES, DATA))) == [(0, 3), (1, 3), (2, 3)]


def test_expressions_that_would_explode_stay_where_they_are() -> None:
    """Each step doubles its column: written out, the last one has a million nodes."""
    relation: Relation = project(scan("h"), "x")
    for _ in range(20):
        x = column(relation, 0)
        zero = Call("-", (x, x), INT)
        relation = Project(relation, (Output("x", Call("+", (zero, x), INT), True),))
    assert len(run(where(relation, x=1))[0]) == 3


def test_the_engines_own_relations_are_refused() -> None:
    for relation in (WithKey(scan("e"), ()), Slice(scan("v"), 1, 0)):
        with pytest.raises(InternalError, match="engine's own"):
            Query(relation, TABLES)


def test_constants() -> None:
    values = Values(((1, "a"), (2, None)), (Field("n", INT, False), Field("s", STR, True)))
    assert run(where(values, n=2))[0] == [(2, None)]
    assert explain_query(values, TABLES) == "2 constant rows"


def test_explain() -> None:
    joined = join("inner", scan("e", "x"), where(scan("p"), name="it's"), ("p", "id"))
    few = Filter(joined, call("<", column(joined, 0), lit(100)))
    relation = top(count_by(few, "name"), 5, "n", descending=True)
    assert explain_query(relation, TABLES).splitlines() == [
        "top 5 by count(*) DESC",
        "  group by p.name: count(*)",
        "    project x.id, x.p, x.cost, x.kind, p.id, p.name",
        "      inner join on p.id = x.p, by look-up",
        "        p: all rows, where (p.name = 'it''s')",
        "        e x: looked up by index (p), where (x.id < 100)",
    ]
    h, k = scan("h"), scan("k")
    anti = Semi(h, k, call("=", column(h, 0), column(Join("inner", h, k, None), 1)), anti=True)
    assert explain_query(SetOp("except", True, anti, scan("h")), TABLES).splitlines() == [
        "except all",
        "  anti-join on h.x = k.tenant, by hash",
        "    h: all rows",
        "    k: all rows",
        "  h: all rows",
    ]
