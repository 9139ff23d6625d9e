"""Keys in chunks are what one sorted list would be."""

from __future__ import annotations

from random import Random

import pytest

from viewtide.ltm import ordered_keys
from viewtide.ltm.ordered_keys import LateOrderedKeys, OrderedKeys


@pytest.mark.parametrize(("kind", "looks"), [(OrderedKeys, 1.0), (LateOrderedKeys, 1.0), (LateOrderedKeys, 0.1)])
def test_they_are_what_a_sorted_list_is(kind: type[OrderedKeys], looks: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_keys, "CHUNK_KEYS_MAX", 4)
    monkeypatch.setattr(ordered_keys, "LATE_KEYS_MAX", 7)
    draw = Random(7)
    keys, known = kind(), set[bytes]()
    for _ in range(600):
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
        assert bool(keys) is bool(known)
