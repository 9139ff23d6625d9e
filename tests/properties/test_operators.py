"""The laws of all operators at once: refresh(view, propagate(□B)) is recompute(B + □B), whatever view and history.

Tables and histories are random and small, so that keys collide, rows join several times and groups come and go. The
oracle (`recompute`) shares no code with the compiled plans. Random relations find what nobody thought of; the queries
in `QUERIES` name each operator, so that a failure can be read.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import viewtide as vt
from tests.propagation import Folded, Memory
from tests.properties.relations import VALUES, Database, Maker, databases, relations, row_of
from viewtide.changetables.algebra import Field, Relation, Scan
from viewtide.changetables.compiler import Code, Compiler, column_leaf
from viewtide.changetables.errors import DataError, UnsupportedView
from viewtide.changetables.evaluate import evaluate
from viewtide.changetables.expressions import Expression
from viewtide.changetables.plan import Contribution
from viewtide.changetables.recompute import same_bag
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.sql import parse_view
from viewtide.changetables.types import BOOL, DECIMAL, INT, STR, Row, Value
from viewtide.reads import ViewReads

# --- named operators ---

TABLES = (
    Table(1, "a", (Column("id", INT, False), Column("x", INT), Column("y", INT), Column("s", STR)), (0,)),
    Table(2, "b", (Column("id", INT, False), Column("x", INT), Column("y", INT), Column("d", DECIMAL)), (0,)),
    Table(3, "c", (Column("k", INT, False), Column("l", INT, False), Column("x", INT), Column("s", STR)), (0, 1)),
    # No primary key: a hidden row id, and rows that are equal.
    Table(4, "n", (Column("", INT, False, hidden=True), Column("x", INT), Column("y", INT)), (0,)),
)
TRANSACTIONS = 14
#: After so many transactions the same view is made once more, from what is there.
LATE = 4

#: (what it shows, the query, the views that it reads)
Case = tuple[str, str, dict[str, str]]


def case(name: str, sql: str, **views: str) -> Case:
    return name, sql, views


QUERIES: list[Case] = [
    # selection, projection, inner joins
    case("selection", "SELECT id, x FROM a WHERE x > 1 OR y IS NULL"),
    case("projection_keeps_duplicates", "SELECT x, y + 1 AS z FROM n"),
    case("inner_join", "SELECT a.s, b.d FROM a JOIN b ON a.x = b.x"),
    case(
        "inner_join_four",
        "SELECT a.id, b.d, c.s, n.y FROM a JOIN b ON a.x = b.id JOIN c ON c.x = b.y, n WHERE n.x = a.y",
    ),
    case("self_join", "SELECT l.id, r.id AS other FROM a l JOIN a r ON l.x = r.y AND l.id <> r.id"),
    case("self_join_of_duplicates", "SELECT l.x, r.y FROM n l JOIN n r ON l.x = r.x"),
    case("using", "SELECT x, a.id, b.y FROM a JOIN b USING (x)"),
    case("natural_join", "SELECT * FROM a NATURAL JOIN n"),
    case("composite_key", "SELECT a.id, c.s FROM a JOIN c ON c.k = a.x AND c.l = a.y"),
    case("key_is_an_expression", "SELECT a.id, b.id AS other FROM a JOIN b ON a.x + 1 = b.y"),
    case("keys_are_expressions", "SELECT a.id, b.id AS other FROM a JOIN b ON a.x + a.y = b.y * 2"),
    case("int_is_numeric", "SELECT a.id, b.id AS other FROM a JOIN b ON a.x = b.d"),
    case("null_safe_key", "SELECT a.id, b.id AS other FROM a JOIN b ON a.x IS NOT DISTINCT FROM b.y"),
    case("null_safe_and_plain", "SELECT a.id, n.y FROM a JOIN n ON a.x IS NOT DISTINCT FROM n.x AND a.y = n.y"),
    # outer joins
    case("left_join", "SELECT a.id, b.id AS other, b.d FROM a LEFT JOIN b ON a.x = b.x"),
    case("left_join_by_key", "SELECT a.id, b.d FROM a LEFT JOIN b ON a.x = b.id"),
    case("right_join", "SELECT a.s, b.id FROM a RIGHT JOIN b ON a.x = b.x"),
    case("full_join", "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.x = b.x"),
    case("full_join_using", "SELECT x, a.id, b.id AS other FROM a FULL JOIN b USING (x)"),
    case("left_join_of_duplicates", "SELECT a.id, n.y FROM a LEFT JOIN n ON n.x = a.x"),
    case("left_self_join", "SELECT l.id, r.id AS other FROM a l LEFT JOIN a r ON l.x = r.y"),
    case("full_self_join", "SELECT l.id, r.id AS other FROM a l FULL JOIN a r ON l.x = r.y AND l.y > 1"),
    case("left_condition_left", "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.x = b.x AND a.y > 1"),
    case("left_condition_right", "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.x = b.x AND b.y > 1"),
    case("left_condition_both", "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.x = b.x AND a.y < b.y"),
    case("full_condition_left", "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.x = b.x AND a.y > 1"),
    case("full_condition_right", "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.x = b.x AND b.y IS NULL"),
    case("full_condition_both", "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.x = b.x AND a.y <> b.y"),
    case(
        "full_conditions_all",
        "SELECT a.id, b.d FROM a FULL JOIN b ON a.x = b.x AND a.y > 0 AND b.y > 0 AND a.id < b.id",
    ),
    case("full_condition_duplicates", "SELECT a.id, n.y FROM a FULL JOIN n ON a.x = n.x AND a.y < n.y"),
    case("left_join_null_safe", "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.x IS NOT DISTINCT FROM b.x"),
    case("full_join_null_safe", "SELECT a.id, n.y FROM a FULL JOIN n ON a.x IS NOT DISTINCT FROM n.x"),
    case("left_join_expression", "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.x + 1 = b.y"),
    case("full_join_expression", "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.x + 1 = b.y - 1"),
    case("full_join_int_numeric", "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.x = b.d"),
    case("left_then_where", "SELECT a.id FROM a LEFT JOIN b ON a.x = b.x WHERE b.id IS NULL"),
    case("left_then_filter", "SELECT a.id, b.y FROM a LEFT JOIN b ON a.x = b.x WHERE coalesce(b.y, 2) > 1"),
    case("left_left", "SELECT a.id, b.y, c.s FROM a LEFT JOIN b ON a.x = b.id LEFT JOIN c ON c.x = a.y"),
    case("left_chain", "SELECT a.id, b.y, c.s FROM a LEFT JOIN b ON a.x = b.id LEFT JOIN c ON c.x = b.y"),
    case(
        "left_of_inner",
        "SELECT a.id, q.s FROM a LEFT JOIN (SELECT b.x, c.s FROM b JOIN c ON c.x = b.y) q ON q.x = a.x",
    ),
    case("inner_right", "SELECT a.id, b.y, c.s FROM a JOIN b ON a.x = b.id RIGHT JOIN c ON c.x = b.y"),
    case("full_full", "SELECT a.id, b.y, c.s FROM a FULL JOIN b ON a.x = b.x FULL JOIN c ON c.x = a.y"),
    case(
        "full_full_coalesced",
        "SELECT a.id, b.y, c.s FROM a FULL JOIN b ON a.x = b.x FULL JOIN c ON c.x = b.y AND c.s = a.s",
    ),
    case(
        "four_kinds",
        "SELECT a.id, b.y, c.s, n.y AS z FROM a LEFT JOIN b ON a.x = b.x RIGHT JOIN c ON c.x = a.y"
        " FULL JOIN n ON n.x = c.x",
    ),
    case(
        "four_kinds_conditions",
        "SELECT a.id, b.id AS other, c.s, n.y AS z FROM a FULL JOIN b ON a.x = b.x AND a.y < 2"
        " LEFT JOIN c ON c.k = b.y AND c.x < 2 LEFT JOIN n ON n.x = c.x AND n.y > a.y",
    ),
    # semi-joins and anti-joins
    case("exists", "SELECT id, s FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x = a.x)"),
    case("not_exists", "SELECT id, s FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.x = a.x)"),
    case(
        "exists_conditions",
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x = a.x AND b.y > 1 AND a.y > 0)",
    ),
    case(
        "not_exists_conditions",
        "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.x = a.x AND b.y > 1 AND a.y > 0)",
    ),
    case("exists_mixed", "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x = a.x AND b.y > a.y)"),
    case("not_exists_mixed", "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.x = a.x AND b.y > a.y)"),
    case(
        "not_exists_mixed_duplicates",
        "SELECT x FROM n WHERE NOT EXISTS (SELECT 1 FROM a WHERE a.x = n.x AND a.y > n.y)",
    ),
    case("not_exists_self", "SELECT id FROM a l WHERE NOT EXISTS (SELECT 1 FROM a r WHERE r.x = l.id)"),
    case(
        "not_exists_self_mixed",
        "SELECT id FROM a l WHERE NOT EXISTS (SELECT 1 FROM a r WHERE r.x = l.x AND r.id > l.id)",
    ),
    case("not_exists_join", "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b JOIN c ON c.x = b.y WHERE b.x = a.x)"),
    case("in", "SELECT x, y FROM n WHERE x IN (SELECT x FROM b)"),
    case("not_in", "SELECT id, x FROM a WHERE x NOT IN (SELECT x FROM b)"),
    case("not_in_without_null", "SELECT id, x FROM a WHERE x NOT IN (SELECT id FROM b)"),
    case("not_in_key", "SELECT id FROM a WHERE id NOT IN (SELECT x FROM b)"),
    case("not_in_correlated", "SELECT id FROM a WHERE x NOT IN (SELECT b.x FROM b WHERE b.y = a.y)"),
    case("not_in_filtered", "SELECT id FROM a WHERE x NOT IN (SELECT x FROM b WHERE y > 1)"),
    case("not_in_values", "SELECT id FROM a WHERE x NOT IN (SELECT v FROM (VALUES (1), (2)) q(v))"),
    case(
        "two_subqueries",
        "SELECT id FROM a WHERE x IN (SELECT x FROM b) AND NOT EXISTS (SELECT 1 FROM c WHERE c.x = a.y)",
    ),
    case("semi_then_left", "SELECT a.id, b.y FROM a LEFT JOIN b ON b.x = a.x WHERE a.y IN (SELECT x FROM c)"),
    # sets
    case("distinct", "SELECT DISTINCT x, y FROM n"),
    case("distinct_expression", "SELECT DISTINCT x % 2 AS p FROM a"),
    case("distinct_of_join", "SELECT DISTINCT a.s, b.y FROM a JOIN b ON a.x = b.x"),
    case("union_all", "SELECT x, y FROM a UNION ALL SELECT x, y FROM n"),
    case("union_all_self", "SELECT x FROM n UNION ALL SELECT x FROM n UNION ALL SELECT y FROM n"),
    case("union", "SELECT x, y FROM a UNION SELECT x, y FROM n"),
    case("intersect", "SELECT x, y FROM a INTERSECT SELECT x, y FROM n"),
    case("intersect_all", "SELECT x FROM a INTERSECT ALL SELECT x FROM n"),
    case("except", "SELECT x, y FROM a EXCEPT SELECT x, y FROM n"),
    case("except_all", "SELECT x FROM a EXCEPT ALL SELECT x FROM n"),
    case(
        "sets_of_sets",
        "(SELECT x FROM a UNION ALL SELECT x FROM b) EXCEPT ALL (SELECT x FROM n INTERSECT SELECT y FROM b)",
    ),
    case("int_and_numeric", "SELECT x FROM a UNION SELECT d FROM b"),
    case(
        "set_operation_below_join",
        "SELECT a.id, q.x FROM a JOIN (SELECT x FROM n EXCEPT ALL SELECT x FROM b) q ON q.x = a.x",
    ),
    case(
        "union_all_below_left_join",
        "SELECT a.id, q.y FROM a LEFT JOIN (SELECT x, y FROM b UNION ALL SELECT x, y FROM n) q ON q.x = a.x",
    ),
    case("union_all_of_outer_joins", "SELECT a.id, b.y FROM a LEFT JOIN b ON a.x = b.x UNION ALL SELECT y, x FROM n"),
    # aggregates
    case("count_sum_avg", "SELECT x, COUNT(*) AS n, COUNT(y) AS c, SUM(y) AS s, AVG(y) AS a FROM n GROUP BY x"),
    case("without_group_by", "SELECT COUNT(*) AS n, SUM(y) AS s, MIN(y) AS lo, MAX(s) AS hi FROM a"),
    case("min_max", "SELECT x, MIN(y) AS lo, MAX(y) AS hi, MIN(s) AS t FROM a GROUP BY x"),
    case("min_max_only", "SELECT MIN(y) AS lo, MAX(y) AS hi FROM n GROUP BY x"),
    case("min_max_numeric", "SELECT MIN(d) AS lo, MAX(d) AS hi FROM b"),
    case(
        "distinct_aggregates",
        "SELECT x, COUNT(DISTINCT y) AS c, SUM(DISTINCT y) AS s, AVG(DISTINCT y) AS a, COUNT(*) AS n FROM n GROUP BY x",
    ),
    case("distinct_numeric", "SELECT SUM(DISTINCT d) AS s, COUNT(DISTINCT d) AS c, AVG(d) AS a FROM b"),
    case(
        "distinct_two_arguments",
        "SELECT COUNT(DISTINCT x) AS c, COUNT(DISTINCT y) AS e, SUM(x) AS s, MAX(x) AS m FROM n",
    ),
    case(
        "filter",
        "SELECT s, COUNT(*) FILTER (WHERE x > 1) AS c, SUM(y) FILTER (WHERE x < 2) AS t, MAX(y) FILTER (WHERE x ="
        " 1) AS m FROM a GROUP BY s",
    ),
    case(
        "variance",
        "SELECT s, var_pop(x) AS p, var_samp(x) AS q, stddev(y) AS r, stddev_pop(y) AS t FROM a GROUP BY s",
    ),
    case("variance_numeric", "SELECT variance(d) AS v, stddev_samp(d) AS s FROM b"),
    case("bool", "SELECT s, bool_and(x > 1) AS a, bool_or(y > 1) AS o, every(y IS NULL) AS e FROM a GROUP BY s"),
    case("having", "SELECT x, COUNT(*) AS n FROM n GROUP BY x HAVING COUNT(*) > 1 AND MAX(y) > 1"),
    case("having_without_group_by", "SELECT COUNT(*) AS n FROM a HAVING COUNT(*) > 3"),
    case(
        "around_aggregates",
        "SELECT x % 2 AS p, MAX(y) - MIN(y) AS spread, coalesce(SUM(y), 0) * 2 AS t FROM a GROUP BY x % 2",
    ),
    case("group_by_without_aggregates", "SELECT x FROM n GROUP BY x, y"),
    case("group_of_join", "SELECT b.y, COUNT(*) AS n, SUM(a.y) AS s FROM a JOIN b ON a.x = b.x GROUP BY b.y"),
    case(
        "group_of_left_join",
        "SELECT a.s, COUNT(b.id) AS c, COUNT(*) AS n, SUM(b.y) AS t, MIN(b.y) AS lo FROM a LEFT JOIN b ON a.x ="
        " b.x GROUP BY a.s",
    ),
    case(
        "group_of_full_join",
        "SELECT coalesce(a.x, b.x) AS k, COUNT(a.id) AS l, COUNT(b.id) AS r, MAX(b.d) AS m FROM a FULL JOIN b ON"
        " a.x = b.x GROUP BY coalesce(a.x, b.x)",
    ),
    case(
        "group_of_union",
        "SELECT x, COUNT(*) AS n, MAX(y) AS m FROM (SELECT x, y FROM a UNION ALL SELECT x, y FROM n) q GROUP BY x",
    ),
    case(
        "group_of_anti_join",
        "SELECT x, COUNT(*) AS n FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.x = a.y) GROUP BY x",
    ),
    case(
        "group_of_group",
        "SELECT n, COUNT(*) AS c, MAX(x) AS m FROM (SELECT x, COUNT(*) AS n FROM n GROUP BY x) q GROUP BY n",
    ),
    case(
        "join_of_groups",
        "SELECT p.x, p.n, q.m FROM (SELECT x, COUNT(*) AS n FROM a GROUP BY x) p LEFT JOIN (SELECT x, MAX(y) AS m"
        " FROM n GROUP BY x) q ON p.x = q.x",
    ),
    case("join_by_aggregate", "SELECT a.id, q.x FROM a JOIN (SELECT x, MAX(y) AS m FROM n GROUP BY x) q ON q.m = a.y"),
    case(
        "join_with_single_row",
        "SELECT a.id, q.m FROM a JOIN (SELECT MAX(x) AS m, COUNT(*) AS n FROM n) q ON q.m = a.x",
    ),
    case(
        "full_join_of_single_rows",
        "SELECT p.n, q.m FROM (SELECT COUNT(*) AS n FROM a) p FULL JOIN (SELECT MAX(x) AS m FROM b) q ON p.n = q.m",
    ),
    case("cte", "WITH q AS (SELECT x, SUM(y) AS t FROM n GROUP BY x) SELECT l.x, r.t FROM q l JOIN q r ON l.t = r.x"),
    # the first rows
    case("top", "SELECT id, x FROM a ORDER BY x DESC LIMIT 3"),
    case("top_ties", "SELECT x, y FROM n ORDER BY x LIMIT 4"),
    case("top_nulls_first", "SELECT id, y FROM a ORDER BY y NULLS FIRST, id DESC LIMIT 3"),
    case("top_expression", "SELECT s FROM a ORDER BY x + y DESC NULLS LAST, s LIMIT 3"),
    case("top_of_groups", "SELECT x, COUNT(*) AS n FROM n GROUP BY x ORDER BY n DESC, x LIMIT 2"),
    case("top_of_except_all", "SELECT x FROM n EXCEPT ALL SELECT x FROM b ORDER BY x DESC LIMIT 3"),
    case("top_of_left_join", "SELECT a.id, b.d FROM a LEFT JOIN b ON a.x = b.x ORDER BY b.d DESC LIMIT 4"),
    case("group_of_top", "SELECT x, COUNT(*) AS n FROM (SELECT x, y FROM n ORDER BY y DESC LIMIT 4) q GROUP BY x"),
    case(
        "join_of_top",
        "SELECT b.id, q.id AS best FROM b LEFT JOIN (SELECT id, x FROM a ORDER BY y DESC LIMIT 3) q ON q.x = b.x",
    ),
    case("not_in_top", "SELECT id FROM b WHERE id NOT IN (SELECT id FROM a ORDER BY y, id LIMIT 3)"),
    # constant rows
    case("values", "VALUES (1, 'one'), (2, NULL), (2, NULL)"),
    case("join_with_values", "SELECT a.id, q.name FROM a JOIN (VALUES (1, 'one'), (2, 'two')) q(v, name) ON q.v = a.x"),
    case(
        "left_join_values",
        "SELECT a.id, q.name FROM a LEFT JOIN (VALUES (1, 'one'), (2, 'two')) q(v, name) ON q.v = a.x",
    ),
    case("values_left_join", "SELECT q.v, a.id FROM (VALUES (1), (2), (9)) q(v) LEFT JOIN a ON a.x = q.v"),
    case("group_with_values", "SELECT x, COUNT(*) AS n FROM (SELECT x FROM a UNION ALL VALUES (1), (7)) q GROUP BY x"),
    # views on views
    case(
        "view_on_rows",
        "SELECT x, SUM(z) AS s FROM v1 GROUP BY x",
        v1="SELECT a.x, b.y AS z FROM a JOIN b ON a.id = b.x",
    ),
    case("view_on_groups", "SELECT n, MIN(x) AS lo FROM v1 GROUP BY n", v1="SELECT x, COUNT(*) AS n FROM n GROUP BY x"),
    case(
        "view_on_extremes",
        "SELECT hi, COUNT(*) AS n FROM v1 GROUP BY hi",
        v1="SELECT x, MAX(y) AS hi FROM n GROUP BY x HAVING MIN(y) > 0",
    ),
    case("view_on_single_row", "SELECT n, s FROM v1 WHERE n > 2", v1="SELECT COUNT(*) AS n, MAX(s) AS s FROM a"),
    case(
        "view_on_bag",
        "SELECT v1.x, n.y FROM v1 JOIN n ON n.x = v1.x",
        v1="SELECT x FROM n EXCEPT ALL SELECT x FROM b",
    ),
    case(
        "sum_of_bag",
        "SELECT SUM(x) AS s, COUNT(*) AS n, COUNT(DISTINCT x) AS c FROM v1",
        v1="SELECT x FROM n INTERSECT ALL SELECT x FROM a",
    ),
    case("view_on_top", "SELECT SUM(y) AS s FROM v1", v1="SELECT x, y FROM n ORDER BY y DESC LIMIT 3"),
    case(
        "view_on_outer_join",
        "SELECT l, COUNT(*) AS n FROM v1 GROUP BY l",
        v1="SELECT a.id AS l, b.id AS r FROM a FULL JOIN b ON a.x = b.x",
    ),
    case(
        "left_join_of_views",
        "SELECT v1.x, v2.m FROM v1 LEFT JOIN v2 ON v1.x = v2.m",
        v1="SELECT DISTINCT x FROM n",
        v2="SELECT y, MAX(x) AS m FROM a GROUP BY y",
    ),
    case(
        "diamond",
        "SELECT v2.x, v2.s, v3.m FROM v2 FULL JOIN v3 ON v2.x = v3.x",
        v1="SELECT x, y FROM n WHERE y IS NOT NULL",
        v2="SELECT x, SUM(y) AS s FROM v1 GROUP BY x",
        v3="SELECT x, MIN(y) AS m FROM v1 GROUP BY x",
    ),
    case(
        "diamond_with_base",
        "SELECT v1.n, v2.k, a.s FROM v1 JOIN v2 ON v1.x = v2.x JOIN a ON a.x = v1.x",
        v1="SELECT x, COUNT(*) AS n FROM a GROUP BY x",
        v2="SELECT x, COUNT(*) AS k FROM b WHERE x IN (SELECT x FROM a) GROUP BY x",
    ),
    case(
        "anti_diamond",
        "SELECT x FROM v1 WHERE NOT EXISTS (SELECT 1 FROM v2 WHERE v2.x = v1.x)",
        v1="SELECT x FROM a GROUP BY x",
        v2="SELECT x FROM a GROUP BY x HAVING COUNT(*) > 1",
    ),
    case(
        "three_levels",
        "SELECT c, COUNT(*) AS k FROM v2 GROUP BY c",
        v1="SELECT x, y, COUNT(*) AS n FROM n GROUP BY x, y",
        v2="SELECT x, MAX(n) AS c FROM v1 GROUP BY x",
    ),
]


def random_row(rng: Random, table: Table, nulls: float) -> Row:
    values: list[Value] = []
    for place, column in enumerate(table.columns):
        if place not in table.key and rng.random() < nulls:
            values.append(None)
        elif column.type == STR:
            values.append(rng.choice(("u", "v", "w")))
        elif column.type == DECIMAL:
            values.append(Decimal(rng.choice(("0", "1", "1.0", "2.50", "3"))))
        else:
            values.append(rng.randrange(8 if table.key == (place,) else 4))
    return tuple(values)


def load(rng: Random, memory: Memory, nulls: float) -> None:
    """A first transaction that fills all tables: joins of four tables need rows in each."""
    for table in TABLES:
        memory.put(table.name, *(random_row(rng, table, nulls) for _ in range(6)))


def write(rng: Random, memory: Memory, nulls: float) -> None:
    """A transaction: some rows of some tables are inserted, updated and deleted."""
    for table in rng.sample(TABLES, rng.choice((1, 1, 2, 3, 4))):
        for _ in range(rng.choice((1, 1, 2, 4))):
            row = random_row(rng, table, nulls)
            known = memory.rows(table.name)
            if known and rng.random() < 0.4:
                memory.remove(table.name, rng.choice(known))
            else:
                memory.put(table.name, row)


def bound(memory: Memory, sql: str) -> Relation:
    views = {view.name: memory.tables.table(view.name) for view in memory.tables.catalog.views.values()}
    return parse_view(sql, {**memory.tables.catalog.tables, **views})


def check(memory: Memory, views: list[str]) -> None:
    for view in views:
        expected = memory.recomputed(memory.view(view).view.relation)
        assert same_bag(expected, memory.outputs(view)) == [], view


@pytest.mark.parametrize(("name", "sql", "below"), QUERIES, ids=[each[0] for each in QUERIES])
def test_a_refreshed_view_is_the_recomputed_view(name: str, sql: str, below: dict[str, str]) -> None:
    shown = run_history(Random(name), Memory(TABLES), sql, {**below, "v": sql})
    assert len(shown) > 1 or name == "values", "the history left the view as it was"


def run_history(rng: Random, memory: Memory, sql: str, views: dict[str, str]) -> set[str]:
    """Random transactions, checked one by one, until all is deleted again. Returns what the view showed."""
    for view, text in views.items():
        memory.create_view(view, bound(memory, text))
    checked, shown = list(views), set()
    for number in range(TRANSACTIONS):
        # NULLs come later: few rows would ever pass a NOT IN if there were some all the time.
        nulls = 0.0 if number < LATE else 0.1 if number < 2 * LATE else 0.3
        if number == LATE:
            memory.create_view("late", bound(memory, sql))
            checked.append("late")
        (write if number else load)(rng, memory, nulls)
        contributions = memory.commit()
        assert all(len({item.key for item in found}) == len(found) for found in contributions.values())
        check(memory, checked)
        shown.add(repr(memory.outputs("v")))
    for table in TABLES:
        memory.remove(table.name, *memory.rows(table.name))
    memory.commit()
    check(memory, checked)
    kept = repr([view.relation for view in memory.tables.catalog.views.values()])
    if "Values(" not in kept and "keys=()" not in kept:
        # Nothing stays behind, in hidden views neither.
        assert {name: states for name, states in memory.stored.items() if states} == {}
    return shown


# --- the same on disk ---

#: Views that live together in one database.
TOGETHER = 34
TRANSACTIONS_ON_DISK = 15


def store_and_forget(db: vt.Database) -> None:
    """Everything to the store, nothing in memory: what is looked up next comes from disk."""
    engine = db._engine
    engine.checkpoint()
    with engine.ltm.lock:
        for versions in engine.ltm.tables.versions.values():
            versions.age()
            versions.age()


def write_on_disk(rng: Random, tx: vt.Transaction) -> None:
    for table in rng.sample(TABLES, rng.choice((1, 2, 4))):
        for _ in range(rng.choice((1, 2, 4))):
            row = random_row(rng, table, 0.15)
            visible = {table.columns[place].name: row[place] for place in table.visible()}
            deletes = rng.random() < 0.35
            if table.name == "n":
                x, y = visible.values()
                if deletes:
                    tx.sql("DELETE FROM n WHERE x = ? OR y = ?", (x, y))
                else:
                    tx.sql("INSERT INTO n VALUES (?, ?), (?, ?)", (x, y, x, y))
            elif deletes:
                tx.delete(table.name, tuple(row[place] for place in table.key))
            else:
                tx.upsert(table.name, visible)


def rows_shown(view: vt.View | ViewReads) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in view.rows())


@pytest.mark.parametrize("first", range(0, len(QUERIES), TOGETHER))
def test_views_on_disk_are_recomputed_views_and_a_transaction_sees_its_own_writes(tmp_path: Path, first: int) -> None:
    """The driver answers the look-ups here: from the store, with the transaction's own rows over them."""
    rng = Random(first)
    with vt.connect(tmp_path / "db", cache_rows=100) as db:
        db.sql(
            "CREATE TABLE a (id int PRIMARY KEY, x int, y int, s text);"
            "CREATE TABLE b (id int PRIMARY KEY, x int, y int, d numeric);"
            "CREATE TABLE c (k int, l int, x int, s text, PRIMARY KEY (k, l)); CREATE TABLE n (x int, y int)"
        )
        for name, sql, below in QUERIES[first : first + TOGETHER]:
            names = {view: f"{name}_{view}" for view in below}
            for view, text in {**below, name: sql}.items():
                for old, new in names.items():
                    text = re.sub(rf"\b{old}\b", new, text)
                db.create_view(names.get(view, name), text)
        for number in range(TRANSACTIONS_ON_DISK):
            store_and_forget(db)
            with db.transaction() as tx:
                for _ in range(4 if number == 0 else 1):
                    write_on_disk(rng, tx)
                seen = {name: rows_shown(tx.view(name)) for name in db.views()}
            for name in db.views():
                assert db.view(name).verify().differences == (), name
                assert rows_shown(db.view(name)) == seen[name], name


#: Longer than a stored key can be, and equal up to there: then only the whole values tell their order.
LONG = [*("x" * 600 + end for end in "abcde"), *("y" * 480 + end for end in "abc"), "z"]
LONG_VIEWS = {
    "top": "SELECT s FROM t ORDER BY s LIMIT 2",
    "last": "SELECT id, s FROM t ORDER BY s DESC LIMIT 2",
    "group_of_top": "SELECT COUNT(*) AS n, MAX(s) AS m FROM (SELECT s FROM t ORDER BY s LIMIT 2) q",
    "join_of_top": "SELECT q.s, t.id FROM (SELECT s FROM t ORDER BY s DESC LIMIT 3) q JOIN t ON t.g = q.s",
    "extremes": "SELECT MIN(s) AS lo, MAX(s) AS hi FROM t",
    "extremes_of_groups": "SELECT g, MIN(s) AS lo, MAX(s) AS hi, COUNT(DISTINCT s) AS n FROM t GROUP BY g",
    "view_on_extremes": "SELECT hi, COUNT(*) AS n FROM extremes_of_groups GROUP BY hi",
    "distinct": "SELECT DISTINCT s FROM t",
    "left_join": "SELECT l.id, r.id AS other FROM t l LEFT JOIN t r ON l.s = r.g",
    "anti_join": "SELECT id FROM t l WHERE NOT EXISTS (SELECT 1 FROM t r WHERE r.s = l.g AND r.id <> l.id)",
    "except_all": "SELECT s FROM t EXCEPT ALL SELECT g FROM t",
}


# Fails while `Ltm.first_rows`, and reads inside a transaction, merge rows by keys that were cut.
@pytest.mark.parametrize("seed", range(4))
def test_long_values_keep_their_order(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    with vt.connect(tmp_path / "db", cache_rows=100) as db:
        db.create_table("t", {"id": int, "s": str, "g": str}, key="id")
        for name, sql in LONG_VIEWS.items():
            db.create_view(name, sql)
        for _ in range(10):
            store_and_forget(db)
            with db.transaction() as tx:
                for _ in range(3):
                    number = rng.randrange(8)
                    if rng.random() < 0.3:
                        tx.delete("t", number)
                    else:
                        tx.upsert("t", {"id": number, "s": rng.choice(LONG), "g": rng.choice(LONG)})
                seen = {name: rows_shown(tx.view(name)) for name in LONG_VIEWS}
            for name in LONG_VIEWS:
                assert db.view(name).verify().differences == (), name
                assert rows_shown(db.view(name)) == seen[name], name


# --- random relations ---


def transaction(data: st.DataObject, database: Database, memory: Memory) -> None:
    """Insert, update and delete some rows; stays open."""
    for name, table in database.tables.items():
        for _ in range(data.draw(st.integers(0, 2), label=f"rows put into {name}")):
            memory.put(name, data.draw(_rows(table)))
        known = memory.rows(name)
        if known:
            for place in data.draw(st.lists(st.integers(0, len(known) - 1), max_size=2), label=f"removed from {name}"):
                memory.remove(name, known[place])


@st.composite
def _rows(draw: st.DrawFn, table: Table) -> Row:
    return row_of(draw, table)


def start(data: st.DataObject, *, risky: bool = False) -> tuple[Database, Memory, Relation]:
    """A database with rows and a view over it, v."""
    database = data.draw(databases(views=False))
    relation = data.draw(relations(database.tables, incremental=True, risky=risky, depth=3))
    memory = Memory(database.tables.values())
    for name, rows in database.rows.items():
        memory.put(name, *rows)
    memory.commit()
    try:
        memory.create_view("v", relation)
    except UnsupportedView:
        assume(False)
    return database, memory, relation


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_refreshed_view_is_its_recomputed_view(data: st.DataObject) -> None:
    database, memory, relation = start(data)
    assert same_bag(memory.recomputed(relation), memory.outputs("v")) == []
    for _ in range(data.draw(st.integers(1, 4), label="transactions")):
        transaction(data, database, memory)
        contributions = memory.commit()
        assert all(len({item.key for item in found}) == len(found) for found in contributions.values())
        assert same_bag(memory.recomputed(relation), memory.outputs("v")) == []
    event(f"root: {type(relation).__name__}")


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_transaction_that_a_view_cannot_show_is_refused_whole(data: st.DataObject) -> None:
    """Arithmetic may fail here: then nothing has changed, and the view goes on."""
    try:
        database, memory, relation = start(data, risky=True)
    except DataError:
        assume(False)
    for _ in range(data.draw(st.integers(1, 4), label="transactions")):
        transaction(data, database, memory)
        before = {name: dict(rows) for name, rows in memory.stored.items()}
        try:
            memory.commit()
        except DataError:
            event("refused")
            assert memory.stored == before
            memory.abort()
        try:
            expected = memory.recomputed(relation)
        except DataError:
            event("the relation itself fails on these rows")
            return
        assert same_bag(expected, memory.outputs("v")) == []


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_contributions_commute_and_are_taken_back(data: st.DataObject) -> None:
    """Any order of the contributions of several transactions gives the same view; their negatives take it back."""
    database, memory, _ = start(data)
    before = {name: dict(rows) for name, rows in memory.stored.items()}
    history: dict[str, list[Contribution]] = {name: [] for name in memory.tables.views}
    for _ in range(data.draw(st.integers(2, 4), label="transactions")):
        transaction(data, database, memory)
        for name, found in memory.commit().items():
            history[name] += found
    for name, contributions in history.items():
        mixed = Folded(memory.plan(name), dict(before[name]))
        mixed.refresh(data.draw(st.permutations(contributions)))
        assert mixed.states == memory.stored[name]
        mixed.refresh([memory.plan(name).negate(each) for each in contributions])
        assert mixed.states == before[name]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_combined_contributions_are_one(data: st.DataObject) -> None:
    database, memory, _ = start(data)
    before = {name: dict(rows) for name, rows in memory.stored.items()}
    combined: dict[tuple[str, bytes], Contribution] = {}
    for _ in range(3):
        transaction(data, database, memory)
        for name, found in memory.commit().items():
            for contribution in found:
                place = (name, contribution.key)
                earlier = combined.pop(place, None)
                plan = memory.plan(name)
                total = contribution if earlier is None else plan.combine(earlier, contribution)
                if total is not None:
                    combined[place] = total
    for name in memory.tables.views:
        both = Folded(memory.plan(name), before[name])
        both.refresh([each for (owner, _), each in combined.items() if owner == name])
        assert both.states == memory.stored[name]


# --- expressions ---


def compiled_value(expression: Expression, row: Row) -> tuple[Value | str, Code]:
    compiler = Compiler(column_leaf, {"DataError": DataError})
    code, condition = compiler.value(expression), compiler.condition(expression) if expression.type == BOOL else "None"
    compiler.define(f"def value(r0):\n    return {code.text}\n")
    compiler.define(f"def condition(r0):\n    return {condition}\n")
    try:
        value = compiler.namespace["value"](row)  # type: ignore[operator]
    except DataError:
        assert not code.safe
        return "DataError", code
    if expression.type == BOOL:
        assert compiler.namespace["condition"](row) is (value is True)  # type: ignore[operator]
    return value, code


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_compiled_expression_is_the_evaluated_one(data: st.DataObject) -> None:
    """Same value, same type, and an error exactly where the oracle has one."""
    database = data.draw(databases(views=False))
    table = database.tables[data.draw(st.sampled_from(sorted(database.tables)))]
    expression, row = data.draw(_expressions(table)), data.draw(_rows(table))
    row += tuple(column.default for column in table.columns[len(row) :])
    expected: Value | str
    try:
        expected = evaluate(expression, row)
    except DataError:
        expected = "DataError"
    found, code = compiled_value(expression, row)
    assert same_bag([(expected,)], [(found,)]) == []
    assert code.nullable or found is not None


@st.composite
def _expressions(draw: st.DrawFn, table: Table) -> Expression:
    fields = tuple(Field(column.name, column.type, column.nullable) for column in table.columns)
    relation = Scan(table.name, table.name, tuple(range(len(fields))), fields)
    kind = draw(st.sampled_from([*sorted({type_.kind for type_ in VALUES}), ""]))
    return Maker(draw, {table.name: table}, incremental=False, risky=True).expression(relation, kind, 4)
