"""Rows: what a user may give for a column, what the engine makes of it, and what it says when it refuses."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viewtide.changetables import types
from viewtide.changetables.errors import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    ProgrammingError,
)
from viewtide.changetables.keys import key_codec
from viewtide.changetables.numbers import DECIMAL_NAN
from viewtide.changetables.rows import coerce, row_codec, to_api
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import INT_MAX, INT_MIN, Type, type_of

BERLIN_SUMMER = datetime.timezone(datetime.timedelta(hours=2))
NOON = datetime.datetime(2024, 5, 6, 12, 0, 0, 7)


class Number(int):
    pass


class Text(str):
    """As a member of `class Colour(str, Enum)`: str() of it is not its text."""

    def __str__(self) -> str:
        return "Text"


class Level(enum.IntEnum):
    HIGH = 3


class Real(float):
    pass


class Money(Decimal):
    pass


class Blob(bytes):
    pass


class Day(datetime.date):
    pass


class Moment(datetime.datetime):
    pass


class Indexable:
    """As numpy.int64: no int, but an exact integer."""

    def __index__(self) -> int:
        return 42


# --- types of columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (int, types.INT),
        (float, types.FLOAT),
        (Decimal, types.DECIMAL),
        (str, types.STR),
        (bytes, types.BYTES),
        (bool, types.BOOL),
        (datetime.date, types.DATE),
        (datetime.datetime, types.TIMESTAMP),
        (dict, types.JSON),
        (list, types.JSON),
        (types.TIMESTAMPTZ, types.TIMESTAMPTZ),
        ("BigInt", types.INT),
        ("smallint", types.INT),
        ("double  precision", types.FLOAT),
        ("real", types.FLOAT),
        ("float(24)", types.FLOAT),
        ("numeric", types.DECIMAL),
        ("numeric(10,2)", Type("decimal", precision=10, scale=2)),
        (" NUMERIC ( 10 , 2 ) ", Type("decimal", precision=10, scale=2)),
        ("decimal(5)", Type("decimal", precision=5, scale=0)),
        ("numeric(3,-2)", Type("decimal", precision=3, scale=-2)),
        ("text", types.STR),
        ("varchar", types.STR),
        ("varchar(20)", Type("str", length=20)),
        ("character varying(20)", Type("str", length=20)),
        ("char", Type("str", length=1, padded=True)),
        ("char(3)", Type("str", length=3, padded=True)),
        ("character(3)", Type("str", length=3, padded=True)),
        ("bpchar(3)", Type("str", length=3, padded=True)),
        ("bpchar", types.STR),
        ("bytea", types.BYTES),
        ("boolean", types.BOOL),
        ("date", types.DATE),
        ("timestamp", types.TIMESTAMP),
        ("timestamp without time zone", types.TIMESTAMP),
        ("timestamp with time zone", types.TIMESTAMPTZ),
        ("timestamp(6) with time zone", types.TIMESTAMPTZ),
        ("timestamptz", types.TIMESTAMPTZ),
        ("jsonb", types.JSON),
    ],
)
def test_type_of(spec: object, expected: Type) -> None:
    assert type_of(spec) == expected
    assert type_of(str(expected)) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "money",
        "uuid",
        "",
        "int(4)",
        "text(3)",
        "varchar(0)",
        "varchar(2,3)",
        "numeric(0)",
        "numeric(2000)",
        "timestamp(3)",
        "null",
        "int; drop table t",
        complex,
        set,
        None,
        7,
        [],
    ],
)
def test_other_types_are_refused_with_a_hint(spec: object) -> None:
    with pytest.raises(NotSupportedError) as caught:
        type_of(spec)
    assert caught.value.hint


# --- one value ------------------------------------------------------------------------------------------------------

ACCEPTED: list[tuple[str, object, object]] = [
    ("int", 5, 5),
    ("int", INT_MIN, INT_MIN),
    ("int", INT_MAX, INT_MAX),
    ("int", Number(5), 5),
    ("int", Level.HIGH, 3),
    ("int", Indexable(), 42),
    ("float", 1.5, 1.5),
    ("float", 3, 3.0),
    ("float", Indexable(), 42.0),
    ("float", Real(2.5), 2.5),
    ("float", math.inf, math.inf),
    ("numeric", Decimal("1.50"), Decimal("1.50")),
    ("numeric", 7, Decimal(7)),
    ("numeric", Indexable(), Decimal(42)),
    ("numeric", Money("2.5"), Decimal("2.5")),
    ("numeric", Decimal("1E+3"), Decimal(1000)),
    ("numeric(6,2)", Decimal("1.005"), Decimal("1.01")),
    ("numeric(6,2)", Decimal("-1.005"), Decimal("-1.01")),
    ("numeric(6,2)", 7, Decimal("7.00")),
    ("text", "häß\x00", "häß\x00"),
    ("text", Text("red"), "red"),
    ("varchar(3)", "äöü", "äöü"),
    ("varchar(3)", "abc  ", "abc"),
    ("char(3)", "ab", "ab"),
    ("char(3)", " a  ", " a"),
    ("char(3)", "\u20ac ", "\u20ac"),
    ("bytea", b"x", b"x"),
    ("bytea", Blob(b"x"), b"x"),
    ("bytea", bytearray(b"xy"), b"xy"),
    ("bytea", memoryview(b"abcd")[::2], b"ac"),
    ("boolean", True, True),
    ("date", datetime.date(2024, 1, 2), datetime.date(2024, 1, 2)),
    ("date", Day(2024, 1, 2), datetime.date(2024, 1, 2)),
    ("timestamp", NOON, NOON),
    ("timestamp", Moment(2024, 1, 2), datetime.datetime(2024, 1, 2)),
    ("timestamp", datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2)),
    ("timestamp", NOON.replace(tzinfo=BERLIN_SUMMER), NOON.replace(hour=10)),
    ("timestamptz", NOON.replace(tzinfo=BERLIN_SUMMER), NOON.replace(hour=10)),
    ("timestamptz", NOON.replace(tzinfo=datetime.UTC), NOON),
    ("timestamptz", NOON, NOON),
    ("json", {"b": 1, "a": [None, True, 1.5, "é"]}, '{"a":[null,true,1.5,"é"],"b":1}'),
    ("json", "text", '"text"'),
    ("json", 5, "5"),
    ("json", [], "[]"),
]


@pytest.mark.parametrize(("type_name", "value", "expected"), ACCEPTED)
def test_accepted_values(type_name: str, value: object, expected: object) -> None:
    column = Column("c", type_of(type_name))
    codec = row_codec(Table(1, "t", (Column("id", types.INT, nullable=False), column), (0,)))
    results = [
        coerce(column, value, "t.c"),
        codec.row({"id": 1, "c": value})[1],
        codec.row(OrderedDict(c=value, id=1))[1],
        codec.changes({"c": value})[1],
    ]
    for result in results:
        assert result == expected
        assert type(result) is type(expected)
        assert str(result) == str(expected)


REFUSED: list[tuple[str, object, str, str]] = [
    ("int", True, "expected int, got bool", "int()"),
    ("int", 1.0, "expected int, got float", "int()"),
    ("int", "1", "expected int, got str", ""),
    ("int", 2**63, "integer out of range", "decimal"),
    ("int", -(2**63) - 1, "integer out of range", "decimal"),
    ("float", True, "expected float, got bool", "float()"),
    ("float", Decimal(1), "expected float, got Decimal", "float()"),
    ("float", 10**400, "value out of range", "largest float"),
    ("numeric", 1.5, "expected Decimal or int, got float", "Decimal(str(x))"),
    ("numeric", False, "expected Decimal or int, got bool", ""),
    ("numeric", Decimal("1E+200000"), "value overflows numeric format", "131072"),
    ("numeric(4,2)", Decimal("99.995"), "numeric field overflow", ""),
    ("numeric(4,2)", 100, "numeric field overflow", ""),
    ("numeric(4,2)", Decimal("Infinity"), "numeric field overflow", ""),
    ("text", 5, "expected str, got int", ""),
    ("text", b"x", "expected str, got bytes", "decode"),
    ("text", "a\ud800", "not valid Unicode", ""),
    ("varchar(3)", "abcd", "value too long: 4 characters, the limit is 3", ""),
    ("varchar(3)", "äöüß", "value too long: 4 characters, the limit is 3", ""),
    ("bytea", "x", "expected bytes, got str", "encode"),
    ("boolean", 1, "expected bool, got int", "bool()"),
    ("date", "2024-01-02", "expected date, got str", "fromisoformat"),
    ("date", NOON, "expected date, got datetime", ".date()"),
    ("timestamp", "2024-01-02", "expected datetime (timestamp), got str", "fromisoformat"),
    ("timestamptz", 5, "expected datetime (timestamptz), got int", ""),
    ("timestamptz", datetime.datetime.min.replace(tzinfo=BERLIN_SUMMER), "timestamp out of range", ""),
    ("json", {1, 2}, "cannot be stored as json", "dicts"),
    ("json", math.nan, "cannot be stored as json", "dicts"),
    ("json", {"a": "\ud800"}, "cannot be stored as json", "dicts"),
    ("json", {1: 1, "a": 2}, "cannot be stored as json", "dicts"),
]


@pytest.mark.parametrize(("type_name", "value", "message", "hint"), REFUSED)
def test_refused_values(type_name: str, value: object, message: str, hint: str) -> None:
    column = Column("cost", type_of(type_name))
    codec = row_codec(Table(1, "events", (Column("id", types.INT, nullable=False), column), (0,)))
    attempts: list[Callable[[], object]] = [
        lambda: coerce(column, value, "events.cost"),
        lambda: codec.row({"id": 1, "cost": value}),
        lambda: codec.changes({"cost": value}),
    ]
    for attempt in attempts:
        with pytest.raises(DataError) as caught:
            attempt()
        assert "column events.cost: " in caught.value.message
        assert message in caught.value.message
        assert hint in caught.value.hint


def test_json_that_never_ends() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(DataError, match="cannot be stored as json"):
        coerce(Column("c", types.JSON), circle, "t.c")


@pytest.mark.parametrize("nan", [float("nan"), -float("nan"), Real("nan")])
def test_every_nan_is_the_one(nan: float) -> None:
    codec = row_codec(
        Table(1, "t", (Column("id", types.INT), Column("x", types.FLOAT), Column("d", types.DECIMAL)), (0,))
    )
    row = codec.row({"id": 1, "x": nan, "d": Decimal("sNaN")})
    assert row[1] is types.NAN
    assert row[2] is DECIMAL_NAN
    assert row == codec.row({"id": 1, "x": float("nan"), "d": Decimal("NaN")})


@pytest.mark.parametrize(
    ("column_type", "value", "seen"),
    [
        (types.JSON, '{"a":[1,null]}', {"a": [1, None]}),
        (types.TIMESTAMPTZ, NOON, NOON.replace(tzinfo=datetime.UTC)),
        (types.TIMESTAMP, NOON, NOON),
        (types.INT, 5, 5),
        (types.JSON, None, None),
        (types.TIMESTAMPTZ, None, None),
    ],
)
def test_what_the_user_sees(column_type: Type, value: types.Value, seen: object) -> None:
    assert to_api(column_type, value) == seen


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: value is not None)


@given(json_values)
@settings(deadline=None, max_examples=60)
def test_json_comes_back_and_is_canonical(value: object) -> None:
    column = Column("c", types.JSON)
    text = coerce(column, value, "t.c")
    assert to_api(types.JSON, text) == value
    assert coerce(column, to_api(types.JSON, text), "t.c") == text


# --- rows -----------------------------------------------------------------------------------------------------------

EVENTS = Table(
    3,
    "events",
    (
        Column("id", types.INT, nullable=False),
        Column("old", types.STR, nullable=False, dropped=True),
        Column("cost", types.INT, nullable=False),
        Column("note", types.STR),
        Column("state", types.STR, nullable=False, default="new", has_default=True),
        Column("extra", types.JSON, default='{"a":1}', has_default=True),
    ),
    (0,),
)
CODEC = row_codec(EVENTS)
FULL = {"id": 1, "cost": 2, "note": "n", "state": "s", "extra": {"b": 2}}


def test_a_row_is_the_full_physical_tuple() -> None:
    assert CODEC.row(FULL) == (1, None, 2, "n", "s", '{"b":2}')
    assert CODEC.row(dict(reversed(FULL.items()))) == CODEC.row(FULL)
    assert CODEC.row(MappingProxyType(FULL)) == CODEC.row(FULL)


def test_missing_columns_get_their_default_or_null() -> None:
    assert CODEC.row({"id": 1, "cost": 2}) == (1, None, 2, None, "new", '{"a":1}')
    assert CODEC.row({"id": 1, "cost": 2, "extra": None}) == (1, None, 2, None, "new", None)


@pytest.mark.parametrize(
    ("mapping", "error", "message", "hint"),
    [
        ({"id": 1}, IntegrityError, "column events.cost may not be NULL and has no default", "give a value"),
        ({"id": 1, "cost": None}, IntegrityError, "column events.cost may not be NULL", "give a value"),
        (FULL | {"cost": None}, IntegrityError, "column events.cost may not be NULL", "give a value"),
        (FULL | {"state": None}, IntegrityError, "column events.state may not be NULL", "give a value"),
        ({"cost": 1}, IntegrityError, "column events.id may not be NULL", "give a value"),
        ({"id": 1, "csot": 2}, ProgrammingError, "table events has no column 'csot'", "did you mean cost?"),
        (FULL | {"zzz": 2}, ProgrammingError, "table events has no column 'zzz'", "its columns are id, cost, note"),
        ({"old": "x"}, ProgrammingError, "table events has no column 'old'", ""),
        ({"id": 1, "cost": 2, 7: 1}, ProgrammingError, "table events has no column 7", ""),
        ({"ID": 1, "cost": 2, "note": "n", "state": "s", "extra": 1}, ProgrammingError, "has no column 'ID'", ""),
        ([("id", 1)], InterfaceError, "a row of table events must be a mapping, got list", "give column names"),
        (None, InterfaceError, "a row of table events must be a mapping, got NoneType", "give column names"),
    ],
)
def test_refused_rows(mapping: object, error: type[Error], message: str, hint: str) -> None:
    with pytest.raises(error) as caught:
        CODEC.row(mapping)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_key_column_refuses_null_even_if_declared_nullable() -> None:
    codec = row_codec(Table(1, "t", (Column("id", types.INT), Column("x", types.INT)), (0,)))
    for mapping in ({"id": None, "x": 1}, {"x": 1}):
        with pytest.raises(IntegrityError, match=r"t\.id may not be NULL"):
            codec.row(mapping)
    with pytest.raises(IntegrityError, match=r"t\.id may not be NULL"):
        codec.changes({"id": None})


def test_names_never_become_code() -> None:
    evil = "x'); raise SystemExit #\n\"\\{0}"
    table = Table(
        1, evil, (Column(evil, types.INT), Column("None", types.STR, default="'\"{}", has_default=True)), (0,)
    )
    codec = row_codec(table)
    assert codec.row({evil: 1}) == (1, "'\"{}")
    assert codec.changes({evil: 2}) == {0: 2}


def test_changes_are_positions_and_values() -> None:
    assert CODEC.changes({"note": None, "cost": Number(4), "extra": [1]}) == {3: None, 2: 4, 5: "[1]"}
    assert CODEC.changes(MappingProxyType({"cost": 4})) == {2: 4}
    assert CODEC.changes({}) == {}
    with pytest.raises(IntegrityError, match=r"events\.cost may not be NULL"):
        CODEC.changes({"cost": None})
    with pytest.raises(ProgrammingError, match="no column 'nope'"):
        CODEC.changes({"nope": 1})
    with pytest.raises(InterfaceError, match="must be a mapping"):
        CODEC.changes(5)  # type: ignore[arg-type]


def test_rows_from_before_a_column_are_padded() -> None:
    full = CODEC.row(FULL)
    assert CODEC.pad(full) is full
    assert CODEC.pad((1, "dropped later", 2)) == (1, "dropped later", 2, None, "new", '{"a":1}')
    assert CODEC.pad((1,)) == (1, None, None, None, "new", '{"a":1}')
    with pytest.raises(InternalError, match="has 7 columns, expected 6"):
        CODEC.pad((*full, 1))


def test_has_float() -> None:
    assert not CODEC.has_float
    assert row_codec(Table(1, "t", (Column("id", types.INT), Column("x", types.FLOAT, dropped=True)), (0,))).has_float


# --- keys -----------------------------------------------------------------------------------------------------------

PAIRS = Table(
    4,
    "pairs",
    (Column("b", types.STR, nullable=False), Column("x", types.INT), Column("a", types.INT, nullable=False)),
    (2, 0),
)
PAIR_CODEC = row_codec(PAIRS)


def test_the_key_of_a_row() -> None:
    assert CODEC.key(CODEC.row(FULL)) == key_codec(3, [(types.INT, False)]).encode((1,))
    assert PAIR_CODEC.key(("b", 0, 5)) == PAIR_CODEC.keys.encode((5, "b"))
    assert PAIR_CODEC.keys.decode(PAIR_CODEC.key(("b", 0, 5))) == (5, "b")


@pytest.mark.parametrize(
    "key", [42, Number(42), Indexable(), (42,), [42], {"id": 42}, MappingProxyType({"id": Indexable()})]
)
def test_keys_of_one_column(key: object) -> None:
    assert CODEC.key_of(key) == CODEC.keys.encode((42,))


@pytest.mark.parametrize("key", [(5, "b"), [5, "b"], {"b": "b", "a": 5}, (Number(5), Text("b"))])
def test_keys_of_two_columns(key: object) -> None:
    assert PAIR_CODEC.key_of(key) == PAIR_CODEC.keys.encode((5, "b"))


@pytest.mark.parametrize(
    ("codec_name", "key", "error", "message"),
    [
        ("one", None, IntegrityError, "events.id may not be NULL"),
        ("one", "x", DataError, "column events.id: expected int, got str"),
        ("one", True, DataError, "expected int, got bool"),
        ("one", 2**63, DataError, "integer out of range"),
        ("one", (1, 2), InterfaceError, "the key of table events has 1 column, got 2 values"),
        ("one", (), InterfaceError, "got 0 values"),
        ("one", {"cost": 1}, ProgrammingError, "column 'cost' is not in the key of table events"),
        ("one", {}, InterfaceError, "lacks column id"),
        ("two", 5, InterfaceError, "the key of table pairs has 2 columns, got int"),
        ("two", (5,), InterfaceError, "the key of table pairs has 2 columns, got 1 value"),
        ("two", (5, None), IntegrityError, "pairs.b may not be NULL"),
        ("two", ("b", 5), DataError, "column pairs.a: expected int, got str"),
        ("two", {"a": 5}, InterfaceError, "lacks column b"),
        ("two", (5, "b" * 500), DataError, "needs 513 bytes, the limit is 480"),
    ],
)
def test_refused_keys(codec_name: str, key: object, error: type[Error], message: str) -> None:
    codec = CODEC if codec_name == "one" else PAIR_CODEC
    with pytest.raises(error) as caught:
        codec.key_of(key)
    assert message in caught.value.message


@pytest.mark.parametrize("bound", [5, (5,), [5], {"a": 5}, Number(5)])
def test_a_bound_may_be_the_first_values_of_a_key(bound: object) -> None:
    assert PAIR_CODEC.prefix_of_key(bound) == PAIR_CODEC.keys.encode_prefix((5,))


def test_bounds() -> None:
    assert (
        PAIR_CODEC.prefix_of_key((5, "b"))
        == PAIR_CODEC.prefix_of_key({"b": "b", "a": 5})
        == PAIR_CODEC.key_of((5, "b"))
    )
    assert PAIR_CODEC.prefix_of_key(()) == PAIR_CODEC.keys.encode_prefix(())
    # A bound is only compared with: it may be longer than any stored key.
    assert PAIR_CODEC.prefix_of_key((5, "b" * 500)) > PAIR_CODEC.key_of((5, "b"))
    with pytest.raises(InterfaceError, match="has 2 columns, got 3 values"):
        PAIR_CODEC.prefix_of_key((5, "b", 1))
    with pytest.raises(InterfaceError, match="lacks column a"):
        PAIR_CODEC.prefix_of_key({"b": "b"})
    with pytest.raises(DataError, match=r"pairs\.a: expected int, got str"):
        PAIR_CODEC.prefix_of_key("b")


def test_too_long_keys_of_rows_are_refused() -> None:
    with pytest.raises(DataError, match="needs 513 bytes, the limit is 480"):
        PAIR_CODEC.key(("b" * 500, None, 1))


def test_a_json_key_is_its_value() -> None:
    codec = row_codec(Table(1, "t", (Column("k", types.JSON),), (0,)))
    assert codec.key_of({"k": 1}) == codec.key(codec.row({"k": {"k": 1}}))
    assert codec.key_of([1, 2]) == codec.key(codec.row({"k": [1, 2]}))


def test_the_callers_decimal_context_does_not_matter() -> None:
    codec = row_codec(Table(1, "t", (Column("k", types.DECIMAL),), (0,)))
    long = Decimal("1.234567890123456789012345678901234567890")
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.Inexact] = True
        row = codec.row({"k": long})
        assert row == (long,)
        assert codec.keys.decode(codec.key(row)) == (long.normalize(decimal.Context(prec=100)),)


# --- rows by position ------------------------------------------------------------------------------------------------


def test_rows_by_position_are_checked_as_named_ones_are() -> None:
    columns = (Column("id", types.INT), Column("f", types.FLOAT), Column("s", type_of("varchar(3)")))
    codec = row_codec(Table(1, "t", columns, (0,)))
    assert codec.takes_positions
    good = [(1, 1.5, "abc"), (2, None, None)]
    assert codec.checked(good) == good
    (made,) = codec.checked([(3, float("nan"), "é")])
    assert made[1] is types.NAN
    for wrong, error in (
        ((None, 1.0, "a"), IntegrityError),
        ((1, "x", "a"), DataError),
        ((1, 1.0, "long"), DataError),
        ((1, 1.0), InterfaceError),
        ("abc", InterfaceError),
        ((True, 1.0, "a"), DataError),
    ):
        with pytest.raises(error):
            codec.checked([good[0], wrong])
    with_json = (*columns, Column("j", types.JSON))
    assert not row_codec(Table(1, "t", with_json, (0,))).takes_positions


# --- what tells rows apart -------------------------------------------------------------------------------------------

_SIMPLE_KEYS = {
    "int": st.integers(INT_MIN, INT_MAX) | st.sampled_from([0, 1, -1]),
    "bool": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes() | st.sampled_from([NOON, NOON.replace(fold=1)]),
    "timestamptz": st.datetimes(timezones=st.sampled_from([datetime.UTC, BERLIN_SUMMER])).filter(
        lambda value: 1 < value.year < 9999
    ),
}


@given(st.data(), st.lists(st.sampled_from(sorted(_SIMPLE_KEYS)), min_size=1, max_size=2))
def test_rows_with_simple_keys_are_told_apart_by_values_as_by_keys(data: st.DataObject, kinds: list[str]) -> None:
    columns = tuple(Column(f"k{place}", type_of(kind)) for place, kind in enumerate(kinds))
    codec = row_codec(Table(1, "t", (*columns, Column("x", types.INT)), tuple(range(len(kinds)))))
    assert codec.identity is not None
    drawn = st.fixed_dictionaries({f"k{place}": _SIMPLE_KEYS[kind] for place, kind in enumerate(kinds)})
    rows = codec.rows([{**data.draw(drawn), "x": number} for number in range(6)])
    keys, identities = codec.keys_of(rows), list(map(codec.identity, rows))
    assert [each == other for each in keys for other in keys] == [
        each == other and hash(each) == hash(other) for each in identities for other in identities
    ]


@pytest.mark.parametrize("kind", ["str", "bytes", "float", "decimal", "json"])
def test_other_rows_are_told_apart_by_their_keys(kind: str) -> None:
    """They may be too long, or equal as values or as keys only."""
    columns = (Column("k", type_of(kind)), Column("x", types.INT))
    assert row_codec(Table(1, "t", columns, (0,))).identity is None
    assert row_codec(Table(1, "t", columns, (1, 0))).identity is None
