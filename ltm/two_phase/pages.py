"""Rows that go into one message: pages are bounded by bytes, too. A page has at least one row, however long that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TypeVar

from ...changetables.types import Row
from .messages import KeyRange

#: Bytes of one page, about: far below what a message may have, also if every character takes four.
PAGE_BYTES_MAX = 4 * 2**20
#: What a row takes beside texts, bytes and large numbers.
ROW_BYTES = 300

T = TypeVar("T")


def row_bytes(row: Row | None) -> int:
    """About how many bytes it takes."""
    size = ROW_BYTES
    for value in row or ():
        kind = type(value)
        if kind is str or kind is bytes:
            size += len(value)  # type: ignore[arg-type]
        elif kind is int:
            size += value.bit_length() >> 3  # type: ignore[union-attr]
        elif kind is Decimal:
            size += len(value.as_tuple().digits)  # type: ignore[union-attr]
    return size


def fitting(items: Sequence[T], bytes_of: Callable[[T], int], bytes_max: int) -> int:
    """How many of the first ones go into one page: the last of them fills it."""
    left = bytes_max
    for number, item in enumerate(items):
        if left <= 0:
            return number
        left -= bytes_of(item)
    return len(items)


def in_pages(
    items: Sequence[T], bytes_of: Callable[[T], int], items_max: int, bytes_max: int = PAGE_BYTES_MAX
) -> list[Sequence[T]]:
    """All of them, in order. The same items are always cut at the same places."""
    pages = []
    place = 0
    while place < len(items):
        some = items[place : place + items_max]
        some = some[: fitting(some, bytes_of, bytes_max)]
        pages.append(some)
        place += len(some)
    return pages


def rest_of(wanted: KeyRange, last_key: bytes, found: int) -> KeyRange:
    """What is left of a range when so many rows were found, up to that key."""
    start, stop, limit, last = wanted
    left = limit - found if limit else 0
    return (start, last_key, left, last) if last else (last_key + b"\0", stop, left, last)
