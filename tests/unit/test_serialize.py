"""Relations and tables survive the way to plain lists and back; what cannot be read is refused."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.propagation import Memory
from tests.properties.relations import databases, relations
from viewtide.changetables.algebra import Field, Filter, Output, Project, Relation, Scan, Values, inputs, scans
from viewtide.changetables.errors import InternalError, OperationalError
from viewtide.changetables.expressions import Literal
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.serialize import (
    LEVELS_MAX,
    VERSION,
    relation_from_plain,
    relation_to_plain,
    table_from_plain,
    table_to_plain,
)
from viewtide.changetables.sql import parse_view
from viewtide.changetables.types import BYTES, DATE, DECIMAL, FLOAT, INT, NAN, STR, TIMESTAMP, Type

EVENTS = Table(
    7,
    "events",
    (
        Column("id", INT, nullable=False),
        Column("product", INT),
        Column("cost", Type("decimal", 10, 2), default=Decimal("1.50"), has_default=True),
        Column("gone", STR, dropped=True),
        Column("day", DATE, default=datetime.date(2024, 2, 29), has_default=True),
        Column("at", TIMESTAMP, default=datetime.datetime(2024, 2, 29, 1, 2, 3, 4), has_default=True),
        Column("raw", BYTES, default=b"\x00\xff", has_default=True),
        Column("name", Type("str", length=5), default="\u20ac", has_default=True),
        Column("rate", FLOAT, default=NAN, has_default=True),
    ),
    key=(0,),
    indexes=(Index(8, (1,)), Index(9, (1, 2), ready=False)),
)
PRODUCTS = Table(1, "products", (Column("id", INT, nullable=False), Column("category", STR)), key=(0,))
TABLES = {"events": EVENTS, "products": PRODUCTS}

VIEWS = [
    "VALUES (1, 'a'), (2, NULL)",
    "SELECT id, -0.0::float AS z, 1.00 AS d FROM events e LEFT JOIN products p USING (id)"
    " WHERE e.rate IS NOT DISTINCT FROM 1.5",
    "SELECT id FROM events WHERE product NOT IN (SELECT id FROM products)"
    " AND EXISTS (SELECT 1 FROM products p WHERE p.id = day - day)",
    "SELECT DISTINCT product FROM events UNION ALL (SELECT id FROM products EXCEPT ALL SELECT product FROM events)",
    "SELECT id, cost FROM events ORDER BY cost DESC NULLS LAST, day LIMIT 10",
    "SELECT category, COUNT(DISTINCT id) FILTER (WHERE id > 1) AS n FROM products GROUP BY category HAVING MAX(id) > 3",
    "SELECT * FROM events",
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, AVG(e.rate) + 1 AS r FROM events e"
    " JOIN products p ON e.product = p.id AND e.rate > 0.5 WHERE e.day >= '2024-01-01' GROUP BY p.category",
    "SELECT COUNT(*) FROM events",
    "SELECT id, CASE WHEN rate = 'nan' THEN NULL ELSE name::text || 'x' END AS q, raw = '\\x00' AS z FROM events",
    "SELECT a.id FROM products a JOIN products b ON a.id = b.id WHERE a.category IN ('x', 'y') OR b.category LIKE '%z'",
]


def only_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(only_plain(item) for item in value)
    return value is None or type(value) in (
        bool,
        int,
        float,
        str,
        bytes,
        Decimal,
        datetime.date,
        datetime.datetime,
    )


@pytest.mark.parametrize("sql", VIEWS)
def test_relations_round_trip(sql: str) -> None:
    relation = parse_view(sql, TABLES)
    plain = relation_to_plain(relation)
    assert only_plain(plain)
    assert relation_from_plain(plain) == relation
    # 1.0 equals 1.00 and 0.0 equals -0.0, but they are not the same.
    assert repr(relation_from_plain(plain)) == repr(relation)


def nodes(relation: Relation) -> set[str]:
    return {type(relation).__name__}.union(*map(nodes, inputs(relation)))


def test_every_kind_of_relation_is_among_the_views() -> None:
    kinds = set[str]().union(*(nodes(parse_view(sql, TABLES)) for sql in VIEWS))
    # Subqueries that are a column of their rows (Apply) are in statements only, which are not kept.
    assert kinds == {part.__name__ for part in get_args(Relation)} - {"WithKey", "Slice", "Keyed", "Apply"}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_random_relations_round_trip(data: st.DataObject) -> None:
    relation = data.draw(relations(data.draw(databases()).tables))
    plain = relation_to_plain(relation)
    assert only_plain(plain)
    assert repr(relation_from_plain(plain)) == repr(relation)


def test_the_relations_that_only_the_engine_makes_round_trip() -> None:
    """Hidden views are stored with their relations: outer joins, extremes and slices of ordered views."""
    memory = Memory(TABLES.values())
    for number, sql in enumerate(
        (
            "SELECT e.id FROM events e LEFT JOIN products p ON e.product = p.id AND e.rate < p.id",
            "SELECT MAX(cost) AS m, COUNT(DISTINCT day) AS d FROM events",
            "SELECT COUNT(*) AS n FROM (SELECT id FROM products ORDER BY category LIMIT 3) q",
        )
    ):
        memory.create_view(f"v{number}", parse_view(sql, TABLES))
    hidden = [view.relation for view in memory.tables.catalog.views.values() if view.hidden]
    assert {"WithKey", "Slice"} <= set[str]().union(*map(nodes, hidden))
    for relation in hidden:
        assert repr(relation_from_plain(relation_to_plain(relation))) == repr(relation)


@pytest.mark.parametrize("table", [EVENTS, PRODUCTS])
def test_tables_round_trip(table: Table) -> None:
    plain = table_to_plain(table)
    assert only_plain(plain)
    assert table_from_plain(plain) == table


def test_nan_comes_back_as_the_one_nan() -> None:
    rows = ["()", ["()", float("nan"), Decimal("NaN")]]
    plain = [VERSION, ["Filter", ["Values", rows, ["()"]], ["Literal", float("nan"), ["Type", "float"]]]]
    relation = relation_from_plain(plain)
    assert isinstance(relation, Filter) and isinstance(relation.input, Values)
    assert relation.input.rows[0][0] is NAN
    assert relation.input.rows[0][1] is DECIMAL_NAN
    assert isinstance(relation.condition, Literal)
    assert relation.condition.value is NAN


def test_the_stored_form_does_not_change_by_accident() -> None:
    scan = Scan("t", "u", (0,), (Field("id", INT, False),), (1, 15))
    relation = Project(scan, (Output("one", Literal(1, INT), False),))
    type_ = ["Type", "int", None, None, None]
    stored = [
        "Project",
        ["Scan", "t", "u", ["()", 0], ["()", ["Field", "id", type_, False]], ["()", 1, 15]],
        ["()", ["Output", "one", ["Literal", 1, type_], False]],
    ]
    assert relation_to_plain(relation) == [VERSION, stored]
    assert [each.place for each in scans(relation_from_plain([VERSION, stored]))] == [(1, 15)]
    assert VERSION == 2


def test_char_is_stored_with_one_field_more() -> None:
    """The last field of a Type is newer than the form: what is not char(n) is stored without it."""
    table = Table(1, "t", (Column("id", Type("str", length=3, padded=True), nullable=False),), key=(0,))
    plain = table_to_plain(table)
    assert '["Type", "str", null, null, 3, true]' in json.dumps(plain)
    assert table_from_plain(plain) == table


def test_missing_last_fields_take_their_defaults() -> None:
    plain = [VERSION, ["Table", 1, "t", ["()", ["Column", "id", ["Type", "int"], False]], ["()", 0]]]
    assert table_from_plain(plain) == Table(1, "t", (Column("id", INT, nullable=False),), key=(0,))


DEEP: list[object] = []
for _ in range(LEVELS_MAX + 10):
    DEEP = ["()", DEEP]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([1, ["Values"]], "has format 1"),
        (["2", ["Values"]], "has format '2'"),
        ([True, ["Values"]], "has format True"),
        ([2], "not a list of version and content"),
        (None, "not a list of version and content"),
        ([2, ["Nosuch", 1]], "unknown node 'Nosuch'"),
        ([2, [["Type", "int"], 1]], "unknown node ["),
        ([2, ["Field", "t"]], "Field with 1 fields"),
        ([2, ["Field", "t", "t", "t", "t"]], "Field with 4 fields"),
        ([2, ["Field", "t", "t", "t"]], "Field where a relation is expected"),
        ([2, []], "an empty node"),
        ([2, DEEP], "nested too deeply"),
        ([2, ["()", {"a": 1}]], "a value of type dict"),
        (table_to_plain(PRODUCTS), "Table where a relation is expected"),
    ],
)
def test_what_cannot_be_read_is_refused(plain: object, message: str) -> None:
    with pytest.raises(OperationalError) as caught:
        relation_from_plain(plain)
    assert message in str(caught.value)
    assert caught.value.hint


def test_only_known_parts_are_written() -> None:
    strange = Table(1, "t", (Column("id", DECIMAL, default=object()),), key=(0,))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="object is not a part"):
        table_to_plain(strange)
