"""Keys: the order of the bytes is the order of the values, none is a prefix of another, and they decode."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from viewtide.changetables import types
from viewtide.changetables.errors import DataError, InternalError, OperationalError
from viewtide.changetables.keys import (
    INDEX_PREFIX_BYTES_MAX,
    KEY_BYTES_KEPT,
    KEY_BYTES_MAX,
    TABLE_ID_MAX,
    TABLE_PREFIX_BYTES,
    KeyCodec,
    OrderedKeyCodec,
    ViewKeyCodec,
    index_codec,
    key_codec,
    prefix_stop,
    shorten,
    table_range,
)
from viewtide.changetables.numbers import DECIMAL_NAN, decimal_value
from viewtide.changetables.schema import Column, Index, Table
from viewtide.changetables.types import Type, Value

TABLE_ID = 7

# Small alphabets make equal beginnings, escapes and terminators likely.
texts = st.text(st.sampled_from("\x00\x01\x02ab\x7fé\uffff\U0001f600"), max_size=5) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
blobs = st.lists(st.sampled_from([0, 1, 2, 97, 254, 255]), max_size=5).map(bytes) | st.binary(max_size=8)
decimals = (
    st.decimals().map(decimal_value)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-20, max_value=20).map(decimal_value)
    | st.sampled_from(
        [Decimal(text) for text in ("0", "0.00", "1", "1.0", "10", "100", "-1", "-10", "0.1", "-0.1", "11")]
    )
)
STRATEGIES: dict[Type, st.SearchStrategy[Value]] = {
    types.INT: st.integers(types.INT_MIN, types.INT_MAX) | st.integers(-3, 3),
    types.FLOAT: st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, types.NAN, 5e-324, -5e-324]),
    types.DECIMAL: decimals,
    types.STR: texts,
    types.BYTES: blobs,
    types.BOOL: st.booleans(),
    types.DATE: st.dates(),
    types.TIMESTAMP: st.datetimes(),
    types.TIMESTAMPTZ: st.datetimes(),
    types.JSON: st.dictionaries(st.sampled_from("ab"), st.integers(-1, 1)).map(
        lambda value: json.dumps(value, sort_keys=True)
    ),
}


def order(value: Value) -> tuple[object, ...]:
    """SQL's order, said without bytes: NULL last, NaN above the rest and equal to itself, text by code point."""
    if value is None:
        return (2,)
    if isinstance(value, float | Decimal):
        return (1,) if value != value else (0, value)
    if isinstance(value, str):
        return (0, [ord(character) for character in value])
    return (0, value)


def order_of_row(values: tuple[Value, ...]) -> list[tuple[object, ...]]:
    # (1,) for NaN must come after (0, x) and before (2,): a tuple comparison never reaches the second place then.
    return [order(value) for value in values]


def assert_same_order(codec: KeyCodec, left: tuple[Value, ...], right: tuple[Value, ...]) -> None:
    left_key, right_key = codec.encode(left), codec.encode(right)
    assert (left_key < right_key) == (order_of_row(left) < order_of_row(right))
    assert (left_key == right_key) == (order_of_row(left) == order_of_row(right))
    if left_key != right_key:
        assert not left_key.startswith(right_key)
        assert not right_key.startswith(left_key)


@pytest.mark.parametrize("nullable", [False, True], ids=["not null", "nullable"])
@pytest.mark.parametrize("column_type", STRATEGIES, ids=str)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_order_of_one_column(column_type: Type, nullable: bool, data: st.DataObject) -> None:
    codec = key_codec(TABLE_ID, [(column_type, nullable)])
    values = st.none() | STRATEGIES[column_type] if nullable else STRATEGIES[column_type]
    left, right = data.draw(values), data.draw(values)
    assert_same_order(codec, (left,), (right,))
    assert codec.encode((left,)) == codec.encode_short((left,)) == codec.encode_checked((left,))


@pytest.mark.parametrize("nullable", [False, True], ids=["not null", "nullable"])
@pytest.mark.parametrize("column_type", STRATEGIES, ids=str)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_round_trip_of_one_column(column_type: Type, nullable: bool, data: st.DataObject) -> None:
    codec = key_codec(TABLE_ID, [(column_type, nullable)])
    value = data.draw(STRATEGIES[column_type])
    key = codec.encode((value,))
    (decoded,) = codec.decode(key)
    assert order(decoded) == order(value)
    assert type(decoded) is type(value)
    assert codec.encode((decoded,)) == key


columns_and_rows = st.lists(
    st.tuples(st.sampled_from(list(STRATEGIES)), st.booleans()), min_size=1, max_size=4
).flatmap(
    lambda columns: st.tuples(
        st.just(columns),
        *(
            st.tuples(*(STRATEGIES[kind] | st.none() if nullable else STRATEGIES[kind] for kind, nullable in columns))
            for _ in range(2)
        ),
    )
)


@given(columns_and_rows)
@settings(deadline=None, max_examples=200)
@example(([(types.STR, False), (types.INT, False)], ("a", 2), ("a\x00", 1)))
@example(([(types.INT, True), (types.INT, True)], (None, 1), (1, None)))
def test_composite_keys(case: tuple[list[tuple[Type, bool]], tuple[Value, ...], tuple[Value, ...]]) -> None:
    columns, left, right = case
    codec = key_codec(TABLE_ID, columns)
    assert_same_order(codec, left, right)
    key = codec.encode(left)
    assert order_of_row(codec.decode(key)) == order_of_row(left)
    for count in range(len(columns) + 1):
        prefix = codec.encode_prefix(left[:count])
        assert key.startswith(prefix)
        same = order_of_row(left[:count]) == order_of_row(right[:count])
        assert codec.encode(right).startswith(prefix) == same
        assert prefix <= key < prefix_stop(prefix)
    backwards = tuple(reversed(left))
    assert codec.row_encoder(tuple(reversed(range(len(left)))))(backwards) == codec.encode_short(left)


@pytest.mark.parametrize(
    ("column_type", "values"),
    [
        (types.FLOAT, (0.0, -0.0)),
        (types.FLOAT, (types.NAN, float("nan"), -float("nan"))),
        (types.DECIMAL, (Decimal("1.0"), Decimal("1.00"), Decimal(1), 1)),
        (types.DECIMAL, (Decimal("100"), Decimal("1E+2"), Decimal("100.000"))),
        (types.DECIMAL, (Decimal("0"), Decimal("0.00"), Decimal("-0"))),
        (types.DECIMAL, (DECIMAL_NAN, Decimal("-NaN"), Decimal("sNaN"))),
    ],
)
def test_equal_values_have_one_key(column_type: Type, values: tuple[Value, ...]) -> None:
    codec = key_codec(TABLE_ID, [(column_type, True)])
    assert len({codec.encode((value,)) for value in values}) == 1


@pytest.mark.parametrize(
    ("column_type", "value", "canonical"),
    [
        (types.FLOAT, -0.0, "0.0"),
        (types.DECIMAL, Decimal("1.500"), "1.5"),
        (types.DECIMAL, Decimal("100.0"), "100"),
        (types.DECIMAL, Decimal("-0.00"), "0"),
    ],
)
def test_decode_gives_canonical_values(column_type: Type, value: Value, canonical: str) -> None:
    codec = key_codec(TABLE_ID, [(column_type, False)])
    assert str(codec.decode(codec.encode((value,)))[0]) == canonical


def test_decode_gives_the_one_nan() -> None:
    codec = key_codec(TABLE_ID, [(types.FLOAT, False), (types.DECIMAL, False)])
    decoded = codec.decode(codec.encode((float("nan"), Decimal("NaN"))))
    assert decoded[0] is types.NAN
    assert decoded[1] is DECIMAL_NAN


def test_decimals_of_many_digits_are_not_rounded() -> None:
    codec = key_codec(TABLE_ID, [(types.DECIMAL, False)])
    long = decimal_value(Decimal("1." + "3" * 300))
    longer = decimal_value(Decimal("1." + "3" * 300 + "1"))
    assert codec.encode((long,)) < codec.encode((longer,))
    assert codec.decode(codec.encode((longer,))) == (longer,)


def test_a_column_of_bare_nulls() -> None:
    codec = key_codec(TABLE_ID, [(types.NULL, True), (types.INT, False)])
    assert codec.decode(codec.encode((None, 5))) == (None, 5)


def test_the_format_is_stable() -> None:
    """Keys are on disk: a change here makes every database unreadable."""
    codec = key_codec(1, [(types.INT, False), (types.STR, True), (types.FLOAT, False), (types.DECIMAL, False)])
    key = codec.encode((-1, "a\x00", 1.5, Decimal("-12.5")))
    assert key.hex(" ", 1) == (
        "00 00 00 01 7f ff ff ff ff ff ff ff 01 61 01 01 00 bf f8 00 00 00 00 00 00 20 7f ff ff fe dc 9f ff"
    )


def test_values_that_cannot_be_packed_are_data_errors() -> None:
    with pytest.raises(DataError, match="out of range"):
        key_codec(TABLE_ID, [(types.INT, False)]).encode((2**63,))
    with pytest.raises(DataError, match="surrogates"):
        key_codec(TABLE_ID, [(types.STR, False)]).encode(("\ud800",))


# --- integers of any size: sums in views ---

#: Around the ends of 64 bits, and far beyond.
wide_integers = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    *(st.integers(edge - 3, edge + 3) for edge in (types.INT_MIN, types.INT_MAX, -(2**71), 2**71, 2**128)),
)
wide_rows = st.tuples(wide_integers, st.none() | wide_integers, texts)
WIDE_COLUMNS = [(types.INT, False), (types.INT, True), (types.STR, False)]


@given(wide_rows, wide_rows)
@settings(deadline=None, max_examples=300)
@example((types.INT_MAX, 1, ""), (types.INT_MAX + 1, None, ""))
@example((types.INT_MIN, 1, ""), (types.INT_MIN - 1, None, ""))
def test_integers_of_any_size_keep_their_order_in_views(left: tuple[Value, ...], right: tuple[Value, ...]) -> None:
    codec = ViewKeyCodec(TABLE_ID, WIDE_COLUMNS)
    assert_same_order(codec, left, right)
    assert codec.decode(codec.encode(left)) == left
    assert codec.encode_short(left) == codec.look_up(left) == codec.encode(left)
    assert codec.encode(left).startswith(codec.encode_prefix(left[:1]))
    assert codec.encode_short(left).startswith(codec.group_prefix(left[:-1]))


@given(wide_integers, wide_integers)
@settings(deadline=None, max_examples=200)
def test_integers_of_any_size_are_ordered_up_and_down(left: int, right: int) -> None:
    for descending in (False, True):
        codec = OrderedKeyCodec(TABLE_ID, [(types.INT, True)], [(descending, False)])
        one, other = codec.encode_short((left,)), codec.encode_short((right,))
        assert (one < other) == (left > right if descending else left < right)
        assert (one == other) == (left == right)
        assert one < codec.encode_short((None,))


def test_integers_of_64_bits_are_as_short_in_views_as_in_tables() -> None:
    view, table = ViewKeyCodec(TABLE_ID, [(types.INT, False)]), key_codec(TABLE_ID, [(types.INT, False)])
    for value in (0, 1, -1, 2**31, types.INT_MIN + 1, types.INT_MAX - 1):
        assert view.encode((value,)) == table.encode((value,))
    # The two ends say that they are not beyond.
    assert view.encode((types.INT_MAX,)).hex() == "00000007" + "ff" * 8 + "00000000"
    assert view.encode((types.INT_MAX + 1,)).hex() == "00000007" + "ff" * 8 + "00000001" + "01"
    assert view.encode((types.INT_MIN - 1,)).hex() == "00000007" + "00" * 8 + "fffffffe" + "fe"


def test_long_groups_of_wide_integers_stand_together() -> None:
    """Twenty short integers fit into what a group keeps; one of them wide does not."""
    codec = ViewKeyCodec(TABLE_ID, [(types.INT, False)] * 21)
    group = (2**80,) + (1,) * 19
    low, high = (codec.encode_short((*group, last)) for last in (-(2**90), 2**90))
    prefix = codec.group_prefix(group)
    assert len(prefix) == INDEX_PREFIX_BYTES_MAX and low < high
    assert low.startswith(prefix) and high.startswith(prefix)


def test_a_wide_integer_is_in_no_table() -> None:
    """Tables have integers of 64 bits: what is looked up beyond is nowhere, not even near the ends."""
    codec, index = key_codec(TABLE_ID, [(types.INT, False), (types.STR, False)]), index_codec(TABLE, TABLE.indexes[0])
    start, stop = table_range(TABLE_ID)
    for value in (2**63, -(2**63) - 1):
        key = codec.look_up((value, "a"))
        assert start < key < stop and len(key) > KEY_BYTES_MAX
        assert len(index.prefix((value,))) > KEY_BYTES_MAX
    assert codec.look_up((5, "a")) == codec.encode((5, "a"))


def test_index_entries_of_views_take_integers_of_any_size() -> None:
    view = Table(9, "v", (Column("s", types.INT), Column("k", types.STR)), (1,), (Index(21, (0,)),), view=True)
    codec, key = index_codec(view, view.indexes[0]), ViewKeyCodec(9, [(types.STR, True)]).encode(("a",))
    values: list[int | None] = [-(2**70), types.INT_MIN, 0, types.INT_MAX, 2**70, None]
    entries = [codec.entry((value, "a"), key) for value in values]
    assert entries == sorted(entries)
    for value, entry in zip(values, entries, strict=True):
        assert codec.prefix_and_entry((value, "a"), key) == (codec.prefix((value,)), entry)
        assert codec.prefix_of((value, "a")) == codec.prefix((value,)) and entry.startswith(codec.prefix((value,)))


@pytest.mark.parametrize("tail", ["", "00", "00000002", "0000000201"])
def test_a_wide_integer_that_is_cut_off_does_not_decode(tail: str) -> None:
    with pytest.raises(OperationalError):
        ViewKeyCodec(TABLE_ID, [(types.INT, False)]).decode(bytes.fromhex("00000007" + "ff" * 8 + tail))


@pytest.mark.parametrize("damage", [b"\x00", b"\x00\x00\x00\x07\x80", b"\x00\x00\x00\x07" + b"\x80" * 9])
def test_damaged_keys_do_not_decode(damage: bytes) -> None:
    with pytest.raises((OperationalError, InternalError)):
        key_codec(TABLE_ID, [(types.INT, False)]).decode(damage)


def test_a_shortened_key_does_not_decode() -> None:
    codec = key_codec(TABLE_ID, [(types.STR, False)])
    with pytest.raises(OperationalError, match="shortened"):
        codec.decode(codec.encode_short(("a" * 1000,)))


def test_ranges_hold_a_table_and_nothing_else() -> None:
    codec = key_codec(TABLE_ID, [(types.INT, False)])
    start, stop = table_range(TABLE_ID)
    assert start <= codec.encode((types.INT_MIN,)) < codec.encode((types.INT_MAX,)) < stop
    assert stop == table_range(TABLE_ID + 1)[0]
    assert table_range(TABLE_ID_MAX) == (b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff")
    with pytest.raises(InternalError, match="table id"):
        table_range(TABLE_ID_MAX + 1)


@given(st.binary(min_size=1, max_size=6), st.binary(max_size=6))
@settings(deadline=None, max_examples=100)
@example(b"\x01\xff\xff", b"\xff")
def test_prefix_stop(prefix: bytes, rest: bytes) -> None:
    if prefix.strip(b"\xff"):
        stop = prefix_stop(prefix)
        assert prefix + rest < stop
        # It is the smallest: every bytes below it is below the prefix or begins with it.
        assert stop[:-1] == prefix[: len(stop) - 1]
        assert stop[-1] == prefix[len(stop) - 1] + 1
    else:
        with pytest.raises(InternalError):
            prefix_stop(prefix)


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=100)
def test_shorten_fits_and_is_deterministic(key: bytes) -> None:
    limit = 100
    short = shorten(key, limit)
    assert short == shorten(bytes(bytearray(key)), limit)
    assert len(short) <= limit
    assert short[: limit - 33] == key[: limit - 33]
    assert (short == key) == (len(key) <= limit - 33)
    assert shorten(key + b"x", limit) != short


def test_a_shortened_key_never_begins_with_a_whole_one() -> None:
    """A whole key may end where the digest of another begins, and its terminator look like the digest's first byte."""
    codec = key_codec(TABLE_ID, [(types.BYTES, False)])
    kept = b"k" * (KEY_BYTES_MAX - 33 - TABLE_PREFIX_BYTES)
    whole = codec.encode_short((kept + b"\xff",))
    shortened = [codec.encode_short((kept + b"\xff" + b"x" * count,)) for count in range(1, 2000)]
    assert any(key[KEY_BYTES_MAX - 32] == 0 for key in shortened), "no digest begins like a terminator"
    assert not any(key.startswith(whole) for key in shortened)


@given(st.lists(st.sampled_from([1, 30, 166, 167, 168, 440, 447, 448, 479, 480, 481]), min_size=2, max_size=2), blobs)
@settings(deadline=None, max_examples=100)
def test_short_keys_are_prefix_free(sizes: list[int], tail: bytes) -> None:
    codec = key_codec(TABLE_ID, [(types.BYTES, False), (types.INT, False)])
    left, right = (codec.encode_short((b"\xff" * size + tail, 1)) for size in sizes)
    assert max(len(left), len(right)) <= KEY_BYTES_MAX
    assert (left == right) == (sizes[0] == sizes[1])
    if left != right:
        assert not left.startswith(right)
        assert not right.startswith(left)
    prefix = codec.encode_prefix((b"\xff" * sizes[0] + tail,))
    assert left.startswith(prefix[:KEY_BYTES_KEPT])


def test_long_primary_keys_are_refused() -> None:
    codec = key_codec(TABLE_ID, [(types.STR, False)])
    fitting = "a" * (KEY_BYTES_MAX - TABLE_PREFIX_BYTES - 1)
    assert len(codec.encode_checked((fitting,))) == KEY_BYTES_MAX
    with pytest.raises(DataError, match="needs 481 bytes, the limit is 480"):
        codec.encode_checked((fitting + "a",))
    assert len(codec.encode_short((fitting * 9,))) == KEY_BYTES_MAX


def test_many_fixed_columns_can_be_too_long_too() -> None:
    codec = key_codec(TABLE_ID, [(types.INT, False)] * 60)
    with pytest.raises(DataError, match="needs 484 bytes"):
        codec.encode_checked((1,) * 60)
    assert len(codec.encode_short((1,) * 60)) == KEY_BYTES_MAX


TABLE = Table(
    1,
    "events",
    (
        Column("id", types.STR, nullable=False),
        Column("product", types.INT, nullable=False),
        Column("category", types.STR),
    ),
    (0,),
    (Index(20, (1,)), Index(21, (2, 1))),
)
PRIMARY = key_codec(TABLE.id, [(types.STR, False)])


def test_index_entries_of_one_int_column() -> None:
    codec = index_codec(TABLE, TABLE.indexes[0])
    primary_key = PRIMARY.encode(("x",))
    entry = codec.entry(("x", 5, None), primary_key)
    assert entry == codec.prefix((5,)) + primary_key[TABLE_PREFIX_BYTES:]
    assert codec.prefix((5,)) == key_codec(20, [(types.INT, False)]).encode((5,))


index_rows = st.tuples(
    texts, st.integers(-2, 2), st.none() | texts | st.integers(150, 210).map(lambda size: "\x7f" * size)
)


@given(index_rows, index_rows)
@settings(deadline=None, max_examples=200)
@example(("a" * 475, 1, "b" * 300), ("a" * 475, 1, "b" * 301))
@example(("a" * 400, 1, None), ("a" * 401, 1, None))
def test_index_prefixes_find_exactly_their_rows(
    left: tuple[str, int, str | None], right: tuple[str, int, str | None]
) -> None:
    codec = index_codec(TABLE, TABLE.indexes[1])
    left_entry = codec.entry(left, PRIMARY.encode((left[0],)))
    right_entry = codec.entry(right, PRIMARY.encode((right[0],)))
    prefix = codec.prefix((left[2], left[1]))
    assert len(left_entry) <= KEY_BYTES_MAX
    assert len(prefix) <= INDEX_PREFIX_BYTES_MAX
    assert left_entry.startswith(prefix)
    assert right_entry.startswith(prefix) == (left[1:] == right[1:])
    assert (left_entry == right_entry) == (left == right)
    assert codec.prefix_of(left) == prefix
    assert left_entry.startswith(codec.prefix((left[2],)))
    assert left_entry.startswith(codec.prefix(()))
