"""Cells that are woven from columns are those that are joined one by one, and so are their checksums."""

from __future__ import annotations

from random import Random
from zlib import crc32

import pytest

from viewtide.ltm.woven import WOVEN_BYTES_MAX, Fixed, Piece, width_of, woven


@pytest.mark.parametrize("seed", range(20))
def test_items_are_what_joining_them_makes(seed: int) -> None:
    draw = Random(seed)
    count = draw.choice((1, 2, 3, 300))
    pieces = [_piece(draw, count) for _ in range(draw.randrange(2, 8))]
    cut = draw.randrange(1, len(pieces))
    found = woven(pieces[:cut], pieces[cut:], count)

    expected = []
    for number in range(count):
        key, body = (b"".join(_at(piece, number) for piece in some) for some in (pieces[:cut], pieces[cut:]))
        expected.append((key, body + crc32(key + body).to_bytes(4, "little")))
    assert list(found) == expected
    assert (len(found), found[0], found[-1], found[1:]) == (count, expected[0], expected[-1], expected[1:])


def test_as_wide_as_they_may_be() -> None:
    pieces: list[Piece] = [b"k", Fixed(bytes(range(WOVEN_BYTES_MAX - 1)) * 2, WOVEN_BYTES_MAX - 1)]
    assert width_of(pieces) == WOVEN_BYTES_MAX
    assert {crc32(key + value) for key, value in woven(pieces[:1], pieces[1:], 2)} == {0x2144DF1C}


def test_no_item_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        woven([b"k"], [b"v"], 2)[2]


def _piece(draw: Random, count: int) -> Piece:
    width = draw.randrange(1, 9)
    if draw.random() < 0.3:
        return draw.randbytes(width)
    # Few different bytes, so that some places are alike in all items.
    return Fixed(bytes(draw.choices(draw.choice((b"\0", b"\0\1", bytes(range(256)))), k=width * count)), width)


def _at(piece: Piece, number: int) -> bytes:
    return piece if isinstance(piece, bytes) else piece.data[number * piece.width :][: piece.width]
