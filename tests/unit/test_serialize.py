"""Definitions and tables survive the way to plain lists and back; what cannot be read is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

from viewtide.changetables.definition import Definition, Output, Source
from viewtide.changetables.errors import InternalError, OperationalError
from viewtide.changetables.expressions import Literal
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.serialize import (
    LEVELS_MAX,
    VERSION,
    from_plain,
    table_from_plain,
    table_to_plain,
    to_plain,
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
def test_definitions_round_trip(sql: str) -> None:
    definition = parse_view(sql, TABLES)
    plain = to_plain(definition)
    assert only_plain(plain)
    assert from_plain(plain) == definition


@pytest.mark.parametrize("table", [EVENTS, PRODUCTS])
def test_tables_round_trip(table: Table) -> None:
    plain = table_to_plain(table)
    assert only_plain(plain)
    assert table_from_plain(plain) == table


def test_nan_comes_back_as_the_one_nan() -> None:
    plain = [
        VERSION,
        ["Definition", ["()"], ["()"], ["()"], None, ["()", ["Literal", float("nan"), ["Type", "float"]]]],
    ]
    literal = from_plain(plain).outputs[0]
    assert isinstance(literal, Literal)
    assert literal.value is NAN


def test_the_stored_form_does_not_change_by_accident() -> None:
    definition = Definition((Source("t", "t"),), (), (), None, (Output("one", Literal(1, INT), INT),))
    type_ = ["Type", "int", None, None, None]
    assert to_plain(definition) == [
        1,
        [
            "Definition",
            ["()", ["Source", "t", "t"]],
            ["()"],
            ["()"],
            None,
            ["()", ["Output", "one", ["Literal", 1, type_], type_]],
        ],
    ]


def test_missing_last_fields_take_their_defaults() -> None:
    plain = [VERSION, ["Table", 1, "t", ["()", ["Column", "id", ["Type", "int"], False]], ["()", 0]]]
    assert table_from_plain(plain) == Table(1, "t", (Column("id", INT, nullable=False),), key=(0,))


DEEP: list[object] = []
for _ in range(LEVELS_MAX + 10):
    DEEP = ["()", DEEP]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([2, ["Definition"]], "has format 2"),
        (["1", ["Definition"]], "has format '1'"),
        ([True, ["Definition"]], "has format True"),
        ([1], "not a list of version and content"),
        (None, "not a list of version and content"),
        ([1, ["Nosuch", 1]], "unknown node 'Nosuch'"),
        ([1, [["Type", "int"], 1]], "unknown node ["),
        ([1, ["Source", "t"]], "Source with 1 fields"),
        ([1, ["Source", "t", "t", "t"]], "Source with 3 fields"),
        ([1, ["Source", "t", "t"]], "Source where Definition is expected"),
        ([1, []], "an empty node"),
        ([1, DEEP], "nested too deeply"),
        ([1, ["()", {"a": 1}]], "a value of type dict"),
        (table_to_plain(PRODUCTS), "Table where Definition is expected"),
    ],
)
def test_what_cannot_be_read_is_refused(plain: object, message: str) -> None:
    with pytest.raises(OperationalError) as caught:
        from_plain(plain)
    assert message in str(caught.value)
    assert caught.value.hint


def test_only_known_parts_are_written() -> None:
    strange = Table(1, "t", (Column("id", DECIMAL, default=object()),), key=(0,))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="object is not a part"):
        table_to_plain(strange)
