"""Ad-hoc queries and the oracle: two ways to evaluate any relation, and one bag."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.properties.reading import ListReader
from tests.properties.relations import databases, relations
from viewtide.changetables import query_joins
from viewtide.changetables.algebra import Project, Relation, Top
from viewtide.changetables.errors import DataError
from viewtide.changetables.execute import Query
from viewtide.changetables.recompute import recompute, same_bag


def is_ordered(relation: Relation) -> bool:
    return isinstance(relation, Top) or (isinstance(relation, Project) and is_ordered(relation.input))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_query_gives_what_the_oracle_gives(data: st.DataObject) -> None:
    database = data.draw(databases())
    relation = data.draw(relations(database.tables))
    expected = recompute(relation, database.tables, database.rows)
    reader = ListReader(database.tables, database.rows)
    query = Query(relation, database.tables)
    found = list(query.rows(reader))
    for kind, _ in set(reader.calls):
        event(f"reads by {kind}")
    assert same_bag(found, expected) == [], query.explain()
    if is_ordered(relation):
        assert [same_bag([one], [two]) for one, two in zip(found, expected, strict=True)] == [[]] * len(found)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_what_the_oracle_computes_without_an_error_a_query_does_too(data: st.DataObject) -> None:
    database = data.draw(databases(views=False))
    relation = data.draw(relations(database.tables, risky=True, depth=3))
    try:
        expected = recompute(relation, database.tables, database.rows)
    except DataError:
        event("the oracle fails")
        return
    found = list(Query(relation, database.tables).rows(ListReader(database.tables, database.rows)))
    assert same_bag(found, expected) == []


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_join_that_changes_its_mind_half_way(data: st.DataObject) -> None:
    """With limits of one key, every look-up join finds too many keys after its first step and reads the rest."""
    database = data.draw(databases())
    relation = data.draw(relations(database.tables, incremental=True, depth=3))
    expected = recompute(relation, database.tables, database.rows)
    limits = query_joins.LOOKED_UP_KEYS_MAX, query_joins.ROWS_PER_STEP_MAX
    query_joins.LOOKED_UP_KEYS_MAX, query_joins.ROWS_PER_STEP_MAX = 1, 1
    try:
        found = list(Query(relation, database.tables).rows(ListReader(database.tables, database.rows)))
    finally:
        query_joins.LOOKED_UP_KEYS_MAX, query_joins.ROWS_PER_STEP_MAX = limits
    assert same_bag(found, expected) == []
