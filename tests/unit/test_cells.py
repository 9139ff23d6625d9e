"""Cells of a participant: what is pruned, and that finding it does not take longer the more rows there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from viewtide.changetables.types import Row
from viewtide.ltm.two_phase.cells import Cells, Version

TABLE = b"\0\0\0\x01"
KEYS = 4
#: (what, key, whether there is a row then); "horizon" raises it to now, or to a moment ago.
STEPS = st.lists(
    st.tuples(st.sampled_from(("put", "add", "place", "horizon", "prune")), st.integers(0, KEYS - 1), st.booleans()),
    max_size=40,
)


def key(number: int) -> bytes:
    return TABLE + bytes([number])


@given(STEPS)
def test_whatever_happened_to_it_a_row_that_is_gone_for_good_is_pruned_and_no_other(
    steps: list[tuple[str, int, bool]],
) -> None:
    cells = Cells()
    for ts, (what, number, is_there) in enumerate(steps, start=1):
        row: Row | None = (ts,) if is_there else None
        match what:
            case "put":
                cells.put(key(number), ts, row)
            case "add":
                cells.add(key(number), ts, lambda _, row=row: row)  # type: ignore[misc]
            case "place":
                if key(number) not in cells.chains:
                    cells.place(key(number), (ts, row, None))
            case "horizon":
                cells.horizon = max(cells.horizon, ts if is_there else ts - 2)
            case _:
                left = {each: chain for each, chain in cells.chains.items() if not _is_gone(chain, cells.horizon)}
                cells.prune()
                assert cells.chains == left
                assert list(cells.keys(TABLE, TABLE + b"\xff", last=False)) == sorted(left)


def _is_gone(chain: Version, horizon: int) -> bool:
    return chain[1] is None and chain[0] <= horizon


def test_pruning_looks_at_no_row_that_is_there() -> None:
    cells = Cells()
    cells.put_all([(key(number), None, (number,)) for number in range(200)], 1)
    cells.put(key(7), 2, None)
    cells.horizon = 3

    class Counting(dict[bytes, Version]):
        asked = 0

        def __getitem__(self, wanted: bytes) -> Version:
            self.asked += 1
            return super().__getitem__(wanted)

        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError("all of them are looked at")

        def items(self) -> NoReturn:
            raise AssertionError("all of them are looked at")

    cells.chains = counting = Counting(cells.chains)
    cells.prune()
    assert key(7) not in cells.chains and len(cells.chains) == 199
    assert counting.asked < 10
