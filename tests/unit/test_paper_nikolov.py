"""The claims of Nikolov, "Aggregate Queries in NoSQL Cloud Data Stores" (2011), as tests of the engine.

The name of a test is the claim, its docstring the section. The example is that of figure 4.1: cost per category from
events and products.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import cast

import pytest

import viewtide as vt
from viewtide.changetables.types import Row as Values
from viewtide.coordinator.transaction import ANY, Request, Transaction
from viewtide.ltm.tables import Tables

COST_BY_CATEGORY = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n"
    " FROM events e, products p WHERE e.product = p.id GROUP BY p.category"
)


@pytest.fixture
def db() -> Iterator[vt.Database]:
    """Three results from category 5, one from 8, one from 17."""
    with vt.connect("memory:") as opened:
        opened.create_table("products", {"id": int, "category": int}, key="id")
        opened.create_table("events", {"id": int, "product": int, "cost": int}, key="id")
        with opened.transaction() as tx:
            tx.insert("products", [{"id": i, "category": c} for i, c in ((1, 5), (2, 8), (3, 17), (4, 5))])
            tx.insert("events", [_event(1, 1, 10), _event(2, 1, 20), _event(3, 4, 5), _event(4, 2, 7), _event(5, 3, 9)])
        yield opened


def _event(number: int, product: int, cost: int) -> dict[str, object]:
    return {"id": number, "product": product, "cost": cost}


def _contents(db: vt.Database, view: str = "cost_by_category") -> dict[object, tuple[object, object]]:
    return {row[0]: (row["cost"], row["n"]) for row in db.view(view).rows()}


def _stored(db: vt.Database, category: int) -> Values | None:
    """The stored row of a group with its internal columns."""
    ltm = db._engine.ltm
    rows = ltm.tables.views["cost_by_category"]
    return ltm.read(rows.versions, rows.plan.key_of(category), ltm.horizon.durable_ts)


# --- table 4.1 and section 4.3


def test_the_first_contents_are_computed_from_scratch_with_a_count_per_group(db: vt.Database) -> None:
    """4.3.3, figure 4.1 (1)."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    assert _contents(db) == {5: (35, 3), 8: (7, 1), 17: (9, 1)}


def test_insertions_and_deletions_are_joined_aggregated_and_added(db: vt.Database) -> None:
    """4.3.3, figure 4.1 (2) and (3): three insertions and one deletion in one transaction."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.insert("events", [_event(6, 1, 1), _event(7, 2, 2), _event(8, 2, 3)])
        assert tx.delete("events", 5)
    assert _contents(db) == {5: (36, 4), 8: (12, 3)}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id, cost FROM events WHERE cost > 8", [(1, 10), (2, 20), (6, 50)]),
        ("SELECT cost + 1 AS more FROM events", [(6,), (8,), (11,), (21,), (51,)]),
        (
            "SELECT e.id, p.category FROM events e JOIN products p ON e.product = p.id",
            [(1, 5), (2, 5), (3, 5), (4, 8), (6, 8)],
        ),
        (
            "SELECT product AS p FROM events UNION ALL SELECT id FROM products",
            [(1,), (1,), (1,), (2,), (2,), (2,), (3,), (4,), (4,)],
        ),
        ("SELECT product, COUNT(*) AS n FROM events GROUP BY product", [(1, 2), (2, 2), (4, 1)]),
    ],
    ids=["selection", "projection", "inner_join", "bag_union", "aggregation"],
)
def test_a_change_table_propagates_through_the_operator(
    db: vt.Database, sql: str, expected: list[tuple[object, ...]]
) -> None:
    """Table 4.1, line by line: the refreshed view is the operator applied to the changed table."""
    check_refreshed(db, sql, expected)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT product FROM events EXCEPT ALL SELECT id FROM products", [(1,), (2,)]),
        ("SELECT id FROM products EXCEPT SELECT product FROM events", [(3,)]),
        ("SELECT product FROM events INTERSECT ALL SELECT id FROM products", [(1,), (2,), (4,)]),
        ("SELECT product FROM events UNION SELECT id FROM products", [(1,), (2,), (3,), (4,)]),
        ("SELECT DISTINCT product FROM events", [(1,), (2,), (4,)]),
        (
            "SELECT p.id, e.id AS event FROM products p LEFT JOIN events e ON e.product = p.id",
            [(1, 1), (1, 2), (2, 4), (2, 6), (3, None), (4, 3)],
        ),
        (
            "SELECT p.id, e.id AS event FROM products p RIGHT JOIN events e ON e.product = p.id AND e.cost < 50",
            [(1, 1), (1, 2), (2, 4), (4, 3), (None, 6)],
        ),
        (
            "SELECT p.id, e.id AS event FROM products p FULL JOIN events e ON e.product = p.id AND e.cost < 50",
            [(1, 1), (1, 2), (2, 4), (3, None), (4, 3), (None, 6)],
        ),
        ("SELECT id FROM products p WHERE EXISTS (SELECT 1 FROM events e WHERE e.product = p.id)", [(1,), (2,), (4,)]),
        ("SELECT id FROM products p WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.product = p.id)", [(3,)]),
        (
            "SELECT product, SUM(cost) AS s, AVG(cost) AS a, COUNT(cost) AS n FROM events GROUP BY product",
            [(1, 30, 15, 2), (2, 57, 28.5, 2), (4, 5, 5, 1)],
        ),
        (
            "SELECT product, MIN(cost) AS lo, MAX(cost) AS hi, COUNT(DISTINCT cost) AS n FROM events GROUP BY product",
            [(1, 10, 20, 2), (2, 7, 50, 2), (4, 5, 5, 1)],
        ),
        ("SELECT product, SUM(cost) AS s FROM events GROUP BY product HAVING COUNT(*) > 1", [(1, 30), (2, 57)]),
        ("SELECT id, cost FROM events ORDER BY cost DESC LIMIT 2", [(2, 20), (6, 50)]),
    ],
    ids=[
        "monus",
        "difference",
        "minimal_intersection",
        "union",
        "duplicate_elimination",
        "left_outer_join",
        "right_outer_join",
        "full_outer_join",
        "semi_join",
        "anti_join",
        "distributive_and_algebraic_functions",
        "holistic_functions",
        "having",
        "first_rows",
    ],
)
def test_a_change_table_propagates_through_operators_that_the_table_does_not_have(
    db: vt.Database, sql: str, expected: list[tuple[object, ...]]
) -> None:
    """Section 4.2 defines the monus and names holistic functions; the thesis leaves them, and outer joins, open."""
    check_refreshed(db, sql, expected)


def check_refreshed(db: vt.Database, sql: str, expected: list[tuple[object, ...]]) -> None:
    """One deletion and one insertion, in a transaction of their own each, then in one; and back."""
    view = db.create_view("v", sql)
    before = contents(view)
    with db.transaction() as tx:
        tx.delete("events", 5)
    with db.transaction() as tx:
        tx.insert("events", _event(6, 2, 50))
    assert contents(view) == sorted(map(repr, expected))
    assert view.verify().ok
    with db.transaction() as tx:
        tx.delete("events", 6)
        tx.insert("events", _event(5, 3, 9))
    assert contents(view) == before
    with db.transaction() as tx:
        tx.delete("events", 5)
        tx.insert("events", _event(6, 2, 50))
    assert contents(view) == sorted(map(repr, expected))
    assert view.verify().ok


def contents(view: vt.View) -> list[str]:
    """The rows as text, in any order; a numeric without the zeros at its end."""

    def text(value: object) -> str:
        return f"{value.normalize():f}" if isinstance(value, Decimal) else repr(value)

    return sorted(
        "(" + ", ".join(map(text, row.values())) + ("," if len(row) == 1 else "") + ")" for row in view.rows()
    )


def test_a_group_keeps_its_minimum_and_maximum_when_rows_are_deleted(db: vt.Database) -> None:
    """Section 4.2: MIN and MAX are distributive only for inserts. Here the next value is found without a scan."""
    view = db.create_view("v", "SELECT MIN(cost) AS lo, MAX(cost) AS hi FROM events")
    seen = []
    for number in (2, 3, 1, 4, 5):
        with db.transaction() as tx:
            tx.delete("events", number)
        row = view.get()
        assert row is not None
        seen.append((row["lo"], row["hi"]))
    assert seen == [(5, 10), (7, 10), (7, 9), (9, 9), (None, None)]


def test_the_change_table_of_a_view_is_the_input_of_the_next(db: vt.Database) -> None:
    """Section 4.3.4: once a change table has been computed for an aggregation, it can be propagated further."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    view = db.create_view("categories_by_n", "SELECT n, COUNT(*) AS categories FROM cost_by_category GROUP BY n")
    assert contents(view) == ["(1, 2)", "(3, 1)"]
    with db.transaction() as tx:
        tx.insert("events", [_event(6, 2, 1), _event(7, 2, 1)])
        tx.delete("events", 5)
    assert contents(view) == ["(3, 2)"]


def test_both_sides_of_a_join_may_change_in_one_transaction(db: vt.Database) -> None:
    """Table 4.1, inner join, for changes of both operands: neither counts twice nor is left out."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.insert("products", {"id": 9, "category": 99})
        tx.insert("events", _event(9, 9, 90))
        tx.update("products", 1, {"category": 99})
        tx.delete("events", 1)
        tx.update("events", 4, {"product": 1})
        tx.delete("products", 3)
    assert _contents(db) == {5: (5, 1), 99: (20 + 7 + 90, 3)}
    assert db.view("cost_by_category").verify().ok


# --- algorithm 5.1


def test_views_and_base_tables_change_in_one_transaction(db: vt.Database) -> None:
    """Algorithm 5.1, step 2: no reader sees the one without the other."""
    view = db.create_view("cost_by_category", COST_BY_CATEGORY)
    before = db.snapshot().__enter__()
    with db.transaction() as tx:
        tx.insert("events", _event(6, 2, 3))
        assert view.get(8) == {"category": 8, "cost": 7, "n": 1}
    with db.snapshot() as after:
        assert after.token == vt.Token(tx.token.commit_ts)
        assert after.get("events", 6) == _event(6, 2, 3)
        assert after.view("cost_by_category").get(8) == {"category": 8, "cost": 10, "n": 2}
    assert before.get("events", 6) is None
    assert before.view("cost_by_category").get(8) == {"category": 8, "cost": 7, "n": 1}
    before.close()


def test_a_failure_leaves_neither_base_nor_view_changes(db: vt.Database) -> None:
    """Section 5.3.1: upon failure the coordinator aborts, and the tables stay consistent."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    db.create_view("shares", "SELECT id, 100 / cost AS share FROM events")
    before = _contents(db)
    with pytest.raises(vt.DataError), db.transaction() as tx:
        tx.insert("events", [_event(6, 1, 5), _event(7, 1, 0)])
    assert _contents(db) == before
    with db.snapshot() as snapshot:
        assert snapshot.get("events", 6) is None
    assert db.view("cost_by_category").verify().ok and db.view("shares").verify().ok


# --- figure 5.2


def test_an_update_need_not_name_all_columns(db: vt.Database) -> None:
    """Figure 5.2, step 2: participants answer with the whole old rows, because a write does not hold every column."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.update("events", 4, {"cost": 70})
        tx.upsert("events", {"id": 5, "product": 2})
    assert _contents(db) == {5: (35, 3), 8: (70 + 9, 2)}


def test_the_coordinator_asks_for_old_rows_then_for_look_ups_then_refreshes(db: vt.Database) -> None:
    """Figure 5.2, steps 1 to 4, on the transaction machine alone: it reads nothing by itself."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    tables: Tables = db._engine.ltm.tables
    events, products = tables.by_name["events"], tables.by_name["products"]
    request = Request((1, 1))
    request.tables["events"] = events
    key = events.codec.key_of(4)
    request.writes["events"] = {key: (ANY, (4, 2, 70), {2: 70}, True)}
    machine = Transaction(request, tables)

    machine.old_rows({"events": [(4, 2, 7)]})
    (look_up,) = machine.wanted
    assert (look_up.table, look_up.index, set(look_up.keys)) == ("products", None, {products.codec.key_of(2)})

    machine.looked_up([[(2, 8)] * len(look_up.keys)])
    assert machine.wanted == []
    record = machine.record(tx_ids=((1, 1),), commit_ts=1 << 20)
    assert machine.own_rows() == {"events": {key: (4, 2, 70)}}
    ((view_id, contributions),) = record.contributions
    plan = tables.views_by_id[view_id].plan
    (contribution,) = contributions
    assert (contribution.key, contribution.key_values) == (plan.key_of(8), (8,))
    stored = _stored(db, 8)
    assert stored is not None
    refreshed = plan.refresh(stored, contribution)
    assert refreshed is not None and plan.output(refreshed) == (8, 70, 1)


def test_a_transaction_that_touches_no_base_table_of_a_view_does_not_touch_the_view(db: vt.Database) -> None:
    """Figure 5.2: table C takes part in the transaction and in no view."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    db.create_table("c", {"id": int}, key="id")
    rows = db._engine.ltm.tables.views["cost_by_category"]
    changed = rows.versions.changed_ts
    with db.transaction() as tx:
        tx.insert("c", {"id": 1})
    assert rows.versions.changed_ts == changed
    with db.transaction() as tx:
        tx.insert("c", {"id": 2})
        tx.insert("events", _event(6, 1, 1))
    assert rows.versions.changed_ts == tx.token.commit_ts


# --- algorithm 5.3


def test_a_refresh_inserts_the_row_of_a_new_group(db: vt.Database) -> None:
    """Algorithm 5.3, step 2a."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    assert _stored(db, 42) is None
    with db.transaction() as tx:
        tx.insert("products", {"id": 42, "category": 42})
        tx.insert("events", [_event(6, 42, 1), _event(7, 42, 2)])
    assert _contents(db)[42] == (3, 2)


def test_a_refresh_deletes_the_row_of_a_group_whose_count_is_zero(db: vt.Database) -> None:
    """Algorithm 5.3, step 2b i."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.delete("events", 4)
    assert 8 not in _contents(db)
    assert _stored(db, 8) is None
    assert db.view("cost_by_category").get(8) is None


def test_a_refresh_keeps_a_row_whose_sum_is_zero_and_whose_count_is_not(db: vt.Database) -> None:
    """Algorithm 5.3, step 2b ii: the count decides, not the sum."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.insert("events", _event(6, 2, -7))
    assert _contents(db)[8] == (0, 2)


def test_a_refresh_updates_a_row_that_matches(db: vt.Database) -> None:
    """Algorithm 5.3, step 2b ii."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.update("events", 1, {"cost": 11})
    assert _contents(db)[5] == (36, 3)


def test_a_group_that_a_transaction_empties_and_fills_again_is_refreshed_once(db: vt.Database) -> None:
    """Algorithm 5.3, step 1: one refresh per row of the view's change table, however many base rows caused it."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        for number in (1, 2, 3):
            tx.delete("events", number)
        tx.insert("events", _event(6, 1, 1000))
    assert _contents(db)[5] == (1000, 1)


def test_changes_that_cancel_out_leave_the_view_row_as_it_was(db: vt.Database) -> None:
    """Algorithm 5.3 with an empty change table: there is nothing to refresh."""
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    rows = db._engine.ltm.tables.views["cost_by_category"]
    changed = rows.versions.changed_ts
    with db.transaction() as tx:
        tx.update("events", 1, {"cost": 20})
        tx.update("events", 2, {"cost": 10})
    assert _contents(db)[5] == (35, 3)
    assert rows.versions.changed_ts == changed


# --- the API


def test_a_query_of_join_tables_and_join_edges_is_the_same_view_as_its_sql(db: vt.Database) -> None:
    """Section 5.4: JoinTable and JoinEdge objects, GROUP BY columns and aggregate functions."""
    query = vt.query(
        vt.JoinTable("events", "e"), vt.JoinTable("products", "p"), on=[vt.JoinEdge("e.product", "p.id")],
        group_by=["p.category"], select={"cost": vt.sum("e.cost"), "n": vt.count()},
    )  # fmt: skip
    db.create_view("built", query)
    db.create_view("cost_by_category", COST_BY_CATEGORY)
    with db.transaction() as tx:
        tx.insert("events", _event(6, 3, 6))
        tx.delete("products", 2)
    assert _contents(db, "built") == _contents(db) == {5: (35, 3), 17: (15, 2)}


def test_the_sum_at_the_end_is_count_times_inserted_minus_deleted(db: vt.Database) -> None:
    """Section 6.2 with one generator; tests/properties/test_verifier.py runs many at once."""
    view = db.create_view("total", "SELECT SUM(cost) AS cost, COUNT(*) AS n FROM events")
    start = view.get()
    assert start is not None
    for number in range(100, 120):
        with db.transaction() as tx:
            tx.insert("events", _event(number, 1, 6))
        row = view.get()
        assert row is not None and (cast(int, row["cost"]) - cast(int, start["cost"])) % 6 == 0
        if number % 2:
            with db.transaction() as tx:
                tx.delete("events", number)
    end = view.get()
    assert end is not None
    assert cast(int, end["cost"]) - cast(int, start["cost"]) == (20 - 10) * 6
