"""The range map: every operation makes another map, one epoch later, and refuses what would tear it apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from viewtide.changetables.errors import DataError, ProgrammingError
from viewtide.ltm import codec
from viewtide.ltm.key_range import Hosting, Move, RangeMap, process_of


def three() -> RangeMap:
    """a owns keys below d, b those from d to m, a those from m on."""
    hosts = {log: Hosting(1, (f"{log}-process/1",)) for log in "abc"}
    return RangeMap(5, (b"", b"d", b"m"), ("a", "b", "a"), {}, 3, hosts)


def ends(ranges: RangeMap) -> list[tuple[bytes, str]]:
    return list(zip(ranges.starts, ranges.logs, strict=True))


def test_owners_of_keys_and_of_ranges() -> None:
    ranges = three()
    assert [ranges.owner(key) for key in (b"", b"c", b"d", b"lz", b"m", b"z")] == ["a", "a", "b", "b", "a", "a"]
    assert list(ranges.owners(b"c", b"n")) == [("a", b"c", b"d"), ("b", b"d", b"m"), ("a", b"m", b"n")]
    assert list(ranges.owners(b"e", b"f")) == [("b", b"e", b"f")]
    assert list(ranges.owned("a")) == [(b"", b"d"), (b"m", None)]
    assert ranges.by_owner([(b"a",), (b"e",), (b"z",)]) == {"a": [(b"a",), (b"z",)], "b": [(b"e",)]}
    assert ranges.process("a") == "a-process"
    assert RangeMap(0, (b"",), ("x",)).process("x") == "x"


def test_split_changes_no_owner() -> None:
    after = three().split(b"f")
    assert ends(after) == [(b"", "a"), (b"d", "b"), (b"f", "b"), (b"m", "a")]
    assert after.epoch == 6
    assert after.term == 3


def test_merge_undoes_a_split() -> None:
    after = three().split(b"f").merge(b"f")
    assert ends(after) == ends(three())
    assert after.epoch == 7


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (lambda ranges: ranges.split(b"d"), "begins there already"),
        (lambda ranges: ranges.merge(b""), "no range begins"),
        (lambda ranges: ranges.merge(b"e"), "no range begins"),
        (lambda ranges: ranges.merge(b"d"), "different owners"),
        (lambda ranges: ranges.begin_move(b"e", b"e", "a"), "no keys"),
        (
            lambda ranges: ranges.begin_move(b"e", b"f", "b"),
            r"b-process \(log b\) owns the first of these keys already",
        ),
        (
            lambda ranges: ranges.begin_move(b"e", b"f", "nobody"),
            r"keys of b-process \(log b\) cannot be moved to nobody",
        ),
        (lambda ranges: ranges.begin_move(b"c", b"e", "c"), r"a-process \(log a\) owns .* does not own all"),
        (lambda ranges: ranges.begin_move(b"e", None, "c"), "does not own all"),
        (lambda ranges: ranges.begin_move(b"e", b"g", "c").begin_move(b"f", b"h", "a"), "being moved"),
        (lambda ranges: ranges.begin_move(b"e", b"g", "c").merge(b"e"), "being moved"),
        (lambda ranges: ranges.begin_move(b"e", b"g", "c").merge(b"g"), "being moved"),
        (lambda ranges: ranges.host("a", "a-process/1"), "answered for a before"),
    ],
)
def test_what_makes_no_sense_is_refused(operation: Callable[[RangeMap], RangeMap], why: str) -> None:
    with pytest.raises(ProgrammingError, match=why):
        operation(three())


def test_a_move_closes_keys_and_opens_them_elsewhere() -> None:
    closed = three().begin_move(b"e", b"g", "c")
    assert closed.moves == (Move(6, b"e", b"g", "b", "c"),)
    assert ends(closed) == [(b"", "a"), (b"d", "b"), (b"e", "b"), (b"g", "b"), (b"m", "a")]
    assert closed.serves_keys("b", [b"d"])
    assert not closed.serves_keys("b", [b"f"])
    assert not closed.serves_keys("c", [b"f"])
    assert closed.serves("b", b"d", b"e")
    assert not closed.serves("b", b"d", b"e\0")
    assert not closed.serves("b", b"f", b"m")
    opened = closed.end_move(6)
    assert opened.moves == ()
    assert opened.epoch == 7
    assert ends(opened) == [(b"", "a"), (b"d", "b"), (b"e", "c"), (b"g", "b"), (b"m", "a")]
    assert opened.serves("c", b"e", b"g")
    assert not opened.serves("b", b"d", b"f")


def test_a_move_without_an_end_takes_all_that_follows() -> None:
    closed = three().begin_move(b"p", None, "c")
    assert not closed.serves_keys("a", [b"zzz"])
    assert closed.serves_keys("a", [b"n"])
    assert ends(closed.end_move(6))[-2:] == [(b"m", "a"), (b"p", "c")]


def test_a_range_may_be_split_while_it_moves_and_all_of_it_arrives() -> None:
    moved = three().begin_move(b"d", b"m", "c").split(b"k").end_move(6)
    assert ends(moved) == [(b"", "a"), (b"d", "c"), (b"k", "c"), (b"m", "a")]


def test_two_ranges_can_swap_owners() -> None:
    both = three().begin_move(b"", b"d", "b").begin_move(b"d", b"m", "a")
    assert ends(both.end_move(7).end_move(6)) == [(b"", "b"), (b"d", "a"), (b"m", "a")]


def test_a_log_goes_from_life_to_life_and_remembers_where_its_records_are() -> None:
    after = three().host("a", "other/7")
    assert after.hosts["a"] == Hosting(2, ("a-process/1", "other/7"))
    assert after.process("a") == "other"
    assert after.hosts["a"].life == "other/7"
    assert three().host("new", "other/7").hosts["new"] == Hosting(1, ("other/7",))
    assert Hosting(0, ()).life == ""
    assert process_of("rack/ltm-1/12") == "rack/ltm-1"


def test_a_new_leader_begins_a_term_with_its_first_epoch() -> None:
    after = three().led_anew()
    assert (after.epoch, after.term) == (6, 6)


def test_what_is_stored_is_the_same_map() -> None:
    ranges = three().begin_move(b"p", None, "c").host("a", "other/7")
    assert RangeMap.unpack(ranges.pack()) == ranges


def test_a_map_of_another_version_is_refused_with_a_word() -> None:
    known = cast("list[list[int]]", codec.unpack(RangeMap(1, (b"",), ("a",)).pack()))
    for later in ([*known, 1], [*known[:-1], [*known[-1], 1, 2, 3]]):
        with pytest.raises(DataError, match="no range map") as caught:
            RangeMap.unpack(codec.pack(later))
        assert "another version" in caught.value.hint
