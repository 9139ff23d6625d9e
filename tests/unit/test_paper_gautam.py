"""The scenarios of Gautam, "Incremental view maintenance in HBase" (chapter 3), as tests of the engine.

Section 3.2 names four things that can happen to a base row: it is new, its value changes, its key (what it is grouped
or joined by) changes, or it is deleted; the last member of a group takes the view row with it. The figures 3.2 to 3.6
are small exact tables. The last part asks the same four of every kind of view that the language has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import viewtide as vt
from viewtide.changetables.branches import is_hidden
from viewtide.changetables.keys import table_range

AGGREGATION = (
    "SELECT key, SUM(value) AS sum, COUNT(*) AS count, MIN(value) AS min, MAX(value) AS max FROM aggr GROUP BY key"
)
#: The base table of figures 3.2 to 3.5.
AGGR_TABLE = [(1, "A", 10), (2, "A", 20), (3, "B", 20), (4, "B", 40), (5, "C", 60)]
#: The view table on their left.
AGGR_VIEW = {"A": (30, 2, 10, 20), "B": (60, 2, 20, 40), "C": (60, 1, 60, 60)}


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        yield opened


# --- figures 3.1 to 3.5: aggregation


@pytest.fixture
def aggr(db: vt.Database) -> vt.Database:
    db.create_table("aggr", {"rowkey": int, "key": str, "value": int}, key="rowkey")
    with db.transaction() as tx:
        tx.insert("aggr", [{"rowkey": rowkey, "key": key, "value": value} for rowkey, key, value in AGGR_TABLE])
    db.create_view("aggr_view", AGGREGATION)
    return db


def aggregates(db: vt.Database) -> dict[object, tuple[object, ...]]:
    view = db.view("aggr_view")
    assert view.verify().ok
    return {row["key"]: tuple(row.values())[1:] for row in view.rows()}


def plotted(db: vt.Database) -> list[tuple[object, ...]]:
    """The intermediate table: here a hidden view that has each (key, value) once, in order."""
    ltm = db._engine.ltm
    [rows] = [rows for name, rows in ltm.tables.views.items() if is_hidden(name)]
    return [row for _, row in ltm.shown(rows, *table_range(rows.view.id), ltm.horizon.durable_ts)]


def test_the_intermediate_table_holds_the_values_of_each_key(aggr: vt.Database) -> None:
    """Section 3.2, figure 3.1: it restricts what a change has to look at; the base table is not scanned."""
    assert aggregates(aggr) == AGGR_VIEW
    assert plotted(aggr) == [("A", 10), ("A", 20), ("B", 20), ("B", 40), ("C", 60)]


def test_a_new_row_of_a_new_key_adds_a_view_row(aggr: vt.Database) -> None:
    """Section 3.2.1, figure 3.2."""
    with aggr.transaction() as tx:
        tx.insert("aggr", {"rowkey": 6, "key": "D", "value": 30})
    assert aggregates(aggr) == {**AGGR_VIEW, "D": (30, 1, 30, 30)}
    assert plotted(aggr)[-1] == ("D", 30)


def test_a_changed_value_changes_the_aggregates_and_leaves_the_count(aggr: vt.Database) -> None:
    """Section 3.2.1, figure 3.3; section 2.3.1: count remains the same, the others are calculated anew."""
    with aggr.transaction() as tx:
        tx.update("aggr", 2, {"value": 50})
    assert aggregates(aggr) == {**AGGR_VIEW, "A": (60, 2, 10, 50)}
    assert plotted(aggr)[:2] == [("A", 10), ("A", 50)]


def test_a_changed_key_changes_two_view_rows(aggr: vt.Database) -> None:
    """Section 3.2.1, figure 3.4: the most complex scenario, because it affects more than one view row."""
    with aggr.transaction() as tx:
        tx.update("aggr", 2, {"key": "B"})
    assert aggregates(aggr) == {**AGGR_VIEW, "A": (10, 1, 10, 10), "B": (80, 3, 20, 40)}


def test_the_last_row_of_a_key_takes_the_view_row_with_it(aggr: vt.Database) -> None:
    """Section 3.2.1, figure 3.5."""
    with aggr.transaction() as tx:
        assert tx.delete("aggr", 5)
    assert aggregates(aggr) == {"A": AGGR_VIEW["A"], "B": AGGR_VIEW["B"]}
    assert aggr.view("aggr_view").get("C") is None
    assert all(key != "C" for key, _ in plotted(aggr))


def test_a_deleted_row_of_a_key_that_has_others_changes_the_view_row(aggr: vt.Database) -> None:
    """Section 3.2.1: more than one value is plotted, so the aggregates are updated; the minimum goes with its row."""
    with aggr.transaction() as tx:
        tx.delete("aggr", 3)
    assert aggregates(aggr) == {**AGGR_VIEW, "B": (40, 1, 40, 40)}


def test_all_four_scenarios_in_one_transaction(aggr: vt.Database) -> None:
    with aggr.transaction() as tx:
        tx.insert("aggr", {"rowkey": 6, "key": "D", "value": 30})
        tx.update("aggr", 1, {"value": 50})
        tx.update("aggr", 2, {"key": "B"})
        tx.delete("aggr", 5)
    assert aggregates(aggr) == {"A": (50, 1, 50, 50), "B": (80, 3, 20, 40), "D": (30, 1, 30, 30)}


# --- figure 3.6: join and aggregation

SUM_OF_PAIR = (
    "SELECT a.rowkey AS a, b.rowkey AS b, a.value + b.value AS sum FROM base_a a JOIN base_b b ON a.key = b.key"
)
BASE_A = [("a1", "A", 10), ("a2", "B", 20), ("a3", "C", 30), ("a4", "D", 40)]
BASE_B = [("b1", "A", 10), ("b2", "A", 20), ("b3", "B", 30), ("b4", "B", 40), ("b5", "E", 50)]
PAIRS = {("a1", "b1"): 20, ("a1", "b2"): 30, ("a2", "b3"): 50, ("a2", "b4"): 60}


@pytest.fixture
def pair(db: vt.Database) -> vt.Database:
    for name, rows in (("base_a", BASE_A), ("base_b", BASE_B)):
        db.create_table(name, {"rowkey": str, "key": str, "value": int}, key="rowkey")
        with db.transaction() as tx:
            tx.insert(name, [{"rowkey": rowkey, "key": key, "value": value} for rowkey, key, value in rows])
    db.create_view("view_table", SUM_OF_PAIR)
    return db


def pairs(db: vt.Database) -> dict[tuple[object, object], object]:
    view = db.view("view_table")
    assert view.verify().ok
    return {(row["a"], row["b"]): row["sum"] for row in view.rows()}


def test_a_new_row_joins_the_row_that_waited_for_it(pair: vt.Database) -> None:
    """Section 3.2.2, figure 3.6. (On its left the figure prints the pair a5, b5 already; a5 is not there yet.)"""
    assert pairs(pair) == PAIRS
    with pair.transaction() as tx:
        tx.insert("base_a", {"rowkey": "a5", "key": "E", "value": 30})
    assert pairs(pair) == {**PAIRS, ("a5", "b5"): 80}


def test_a_changed_value_changes_every_pair_of_its_row(pair: vt.Database) -> None:
    """Section 3.2.2, existing value of a row is updated; on either side."""
    with pair.transaction() as tx:
        tx.update("base_a", "a1", {"value": 11})
    assert pairs(pair) == {**PAIRS, ("a1", "b1"): 21, ("a1", "b2"): 31}
    with pair.transaction() as tx:
        tx.update("base_b", "b3", {"value": 0})
    assert pairs(pair) == {**PAIRS, ("a1", "b1"): 21, ("a1", "b2"): 31, ("a2", "b3"): 20}


def test_a_changed_key_takes_its_pairs_away_and_makes_new_ones(pair: vt.Database) -> None:
    """Section 3.2.2, existing key of a row is updated: deleted first, then inserted."""
    with pair.transaction() as tx:
        tx.update("base_a", "a1", {"key": "B"})
    assert pairs(pair) == {("a1", "b3"): 40, ("a1", "b4"): 50, ("a2", "b3"): 50, ("a2", "b4"): 60}
    with pair.transaction() as tx:
        tx.update("base_b", "b4", {"key": "Z"})
    assert pairs(pair) == {("a1", "b3"): 40, ("a2", "b3"): 50}


def test_a_deleted_row_takes_its_pairs_with_it(pair: vt.Database) -> None:
    """Section 3.2.2, existing row is deleted; one without pairs takes nothing."""
    with pair.transaction() as tx:
        tx.delete("base_b", "b1")
        tx.delete("base_a", "a4")
    assert pairs(pair) == {key: value for key, value in PAIRS.items() if key != ("a1", "b1")}
    with pair.transaction() as tx:
        tx.delete("base_a", "a2")
    assert pairs(pair) == {("a1", "b2"): 30}


# --- the four scenarios for every kind of view

KINDS = {
    "selection": "SELECT rowkey, value FROM base_a WHERE value > 15",
    "projection": "SELECT value FROM base_b",
    "other_key": "SELECT key, rowkey, value FROM base_b ORDER BY key, rowkey LIMIT 100",
    "aggregation": "SELECT key, SUM(value) AS s, COUNT(*) AS n, AVG(value) AS a FROM base_b GROUP BY key",
    "min_max": "SELECT key, MIN(value) AS lo, MAX(value) AS hi FROM base_b GROUP BY key",
    "distinct_aggregates": "SELECT key, COUNT(DISTINCT value) AS n, SUM(DISTINCT value) AS s FROM base_b GROUP BY key",
    "without_group_by": "SELECT COUNT(*) AS n, SUM(value) AS s, MAX(value) AS hi FROM base_b",
    "variance": "SELECT key, var_pop(value) AS v, stddev(value) AS d FROM base_b GROUP BY key",
    "bool": "SELECT key, bool_and(value > 20) AS every, bool_or(value > 20) AS some FROM base_b GROUP BY key",
    "having": "SELECT key, COUNT(*) AS n FROM base_b GROUP BY key HAVING COUNT(*) > 1 OR MAX(value) > 40",
    "join": SUM_OF_PAIR,
    "join_and_aggregation": "SELECT a.key, SUM(a.value + b.value) AS s, COUNT(*) AS n"
    " FROM base_a a JOIN base_b b ON a.key = b.key GROUP BY a.key",
    "join_and_selection": "SELECT a.value AS l, b.value AS r FROM base_a a JOIN base_b b ON a.key = b.key"
    " WHERE b.value > 15",
    "self_join": "SELECT l.rowkey AS l, r.rowkey AS r FROM base_b l JOIN base_b r ON l.key = r.key",
    "left_join": "SELECT a.rowkey AS l, b.rowkey AS r, b.value FROM base_a a LEFT JOIN base_b b ON a.key = b.key",
    "right_join": "SELECT a.rowkey AS l, b.rowkey AS r FROM base_a a RIGHT JOIN base_b b ON a.key = b.key",
    "full_join": "SELECT a.rowkey AS l, b.rowkey AS r FROM base_a a FULL JOIN base_b b ON a.key = b.key",
    "full_join_with_condition": "SELECT a.rowkey AS l, b.rowkey AS r FROM base_a a FULL JOIN base_b b"
    " ON a.key = b.key AND a.value < b.value",
    "outer_join_and_aggregation": "SELECT a.key, COUNT(b.rowkey) AS n, MAX(b.value) AS hi"
    " FROM base_a a LEFT JOIN base_b b ON a.key = b.key GROUP BY a.key",
    "semi_join": "SELECT rowkey FROM base_a a WHERE EXISTS (SELECT 1 FROM base_b b WHERE b.key = a.key)",
    "anti_join": "SELECT rowkey FROM base_a a WHERE NOT EXISTS (SELECT 1 FROM base_b b WHERE b.key = a.key)",
    "in": "SELECT rowkey FROM base_b WHERE key IN (SELECT key FROM base_a WHERE value > 15)",
    "not_in": "SELECT rowkey FROM base_b WHERE key NOT IN (SELECT key FROM base_a)",
    "distinct": "SELECT DISTINCT key FROM base_b",
    "union_all": "SELECT key, value FROM base_a UNION ALL SELECT key, value FROM base_b",
    "union": "SELECT key, value FROM base_a UNION SELECT key, value FROM base_b",
    "intersect": "SELECT key FROM base_a INTERSECT SELECT key FROM base_b",
    "intersect_all": "SELECT value FROM base_a INTERSECT ALL SELECT value FROM base_b",
    "except": "SELECT key FROM base_b EXCEPT SELECT key FROM base_a",
    "except_all": "SELECT key FROM base_b EXCEPT ALL SELECT key FROM base_a",
    "top": "SELECT rowkey, value FROM base_b ORDER BY value DESC LIMIT 2",
    "subquery": "SELECT n, COUNT(*) AS keys FROM (SELECT key, COUNT(*) AS n FROM base_b GROUP BY key) q GROUP BY n",
    "view_on_view": "SELECT COUNT(*) AS n, SUM(sum) AS s FROM view_table",
}

Scenario = Callable[[vt.Transaction], object]
SCENARIOS: dict[str, dict[str, Scenario]] = {
    "new_row": {
        "base_a": lambda tx: tx.insert("base_a", {"rowkey": "a5", "key": "E", "value": 50}),
        "base_b": lambda tx: tx.insert("base_b", {"rowkey": "b6", "key": "C", "value": 30}),
    },
    "value": {
        "base_a": lambda tx: tx.update("base_a", "a1", {"value": 15}),
        "base_b": lambda tx: tx.update("base_b", "b4", {"value": 5}),
    },
    "key": {
        "base_a": lambda tx: tx.update("base_a", "a2", {"key": "E"}),
        "base_b": lambda tx: tx.update("base_b", "b2", {"key": "D"}),
    },
    "delete": {
        "base_a": lambda tx: tx.delete("base_a", "a1"),
        # The only one of its key, and the largest value.
        "base_b": lambda tx: tx.delete("base_b", "b5"),
    },
}


def contents(view: vt.View) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in view.rows())


@pytest.mark.parametrize("kind", KINDS)
def test_the_four_scenarios_of_every_view_kind(pair: vt.Database, kind: str) -> None:
    """Section 3.2, for each table alone, then both at once, and back: the view is what it would be if it were new."""
    view = pair.create_view("v", KINDS[kind])
    before = contents(view)
    for scenario, changes in SCENARIOS.items():
        for change in changes.values():
            with pair.transaction() as tx:
                change(tx)
            assert view.verify().differences == (), scenario
        pair.create_view(f"after_{scenario}", KINDS[kind])
        after = contents(pair.view(f"after_{scenario}"))
        assert contents(view) == after, scenario
        undo(pair)
        assert contents(view) == before, scenario
        with pair.transaction() as tx:
            for change in changes.values():
                change(tx)
        assert contents(view) == contents(pair.view(f"after_{scenario}")) == after, scenario
        pair.drop_view(f"after_{scenario}")
        undo(pair)


def undo(db: vt.Database) -> None:
    """Both tables as they were at the beginning, in one transaction."""
    with db.transaction() as tx:
        for name, rows in (("base_a", BASE_A), ("base_b", BASE_B)):
            for row in list(tx.scan(name)):
                tx.delete(name, row["rowkey"])
            tx.insert(name, [{"rowkey": rowkey, "key": key, "value": value} for rowkey, key, value in rows])


@pytest.mark.parametrize("kind", KINDS)
def test_deleting_the_last_rows_empties_every_view_kind(pair: vt.Database, kind: str) -> None:
    """Section 3.2.1: with the last member the view row goes, in the intermediate tables too."""
    view = pair.create_view("v", KINDS[kind])
    with pair.transaction() as tx:
        for name in ("base_a", "base_b"):
            for row in list(tx.scan(name)):
                tx.delete(name, row["rowkey"])
    assert view.verify().ok
    single = kind in ("without_group_by", "view_on_view")
    assert len(list(view.rows())) == (1 if single else 0)
    ltm = pair._engine.ltm
    for rows in ltm.tables.views.values():
        assert list(ltm.scan(rows.versions, *table_range(rows.view.id), ltm.horizon.durable_ts)) == []
