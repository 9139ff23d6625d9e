"""Keys in chunks are what one sorted list would be."""

from __future__ import annotations

from random import Random

import pytest

from viewtide.ltm import ordered_keys
from viewtide.ltm.ordered_keys import OrderedKeys


@pytest.mark.parametrize("looks", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("late_few", [0, 2, 100])
def test_they_are_what_a_sorted_list_is(looks: float, late_few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_keys, "CHUNK_KEYS_MAX", 4)
    monkeypatch.setattr(ordered_keys, "LATE_KEYS_FEW", late_few)
    draw = Random(7)
    keys, known = OrderedKeys(), set[bytes]()
    for _ in range(2_000):
        key = draw.randrange(200).to_bytes(2, "big")
        if key in known:
            known.remove(key)
            keys.remove(key)
        else:
            known.add(key)
            keys.add(key)
        assert bool(keys) is bool(known)
        if draw.random() >= looks:
            continue
        start, stop = draw.randrange(210).to_bytes(2, "big"), draw.randrange(210).to_bytes(2, "big")
        expected = sorted(each for each in known if start <= each < stop)
        assert list(keys.between(start, stop)) == expected
        assert list(keys.back_between(start, stop)) == expected[::-1]
        assert keys.last_below(stop) == max((each for each in known if each < stop), default=None)
        assert list(keys) == sorted(known)


@pytest.mark.parametrize("order", ["up", "down", "any"])
def test_no_chunk_is_long_or_empty(order: str) -> None:
    keys = OrderedKeys()
    all_keys = [number.to_bytes(3, "big") for number in range(20_000)]
    added = {"up": all_keys, "down": all_keys[::-1], "any": Random(1).sample(all_keys, len(all_keys))}[order]
    keys.add_all(added)
    sizes = [len(chunk) for chunk in keys._chunks]
    assert sum(sizes) == len(all_keys)
    assert 0 < min(sizes) <= max(sizes) <= ordered_keys.CHUNK_KEYS_MAX
    assert len(sizes) <= 40
    assert list(keys) == all_keys
    for key in added:
        keys.remove(key)
    assert not keys
    assert list(keys) == []


def test_removing_the_lowest_keys_leaves_room_for_lower_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_keys, "CHUNK_KEYS_MAX", 2)
    keys = OrderedKeys()
    keys.add_all([b"d", b"e", b"f", b"g"])
    for key in (b"d", b"e"):
        keys.remove(key)
    keys.add(b"a")
    assert list(keys) == [b"a", b"f", b"g"]
    assert list(keys.between(b"", b"g")) == [b"a", b"f"]
