"""Many values of one width, one behind the other: stored rows whose columns are read as strides of their bytes.

Rows that were loaded in bulk look like that, because the numbers of a batch all have one width (`bulk_cells`). If the
bytes that say what follows are the same in all rows, every column stands at one place. What is read here is what
`unpack` would read, or None.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from sys import byteorder
from typing import TypeAlias, overload

from ..changetables.types import NAN, Row, Value

#: msgpack's marks of numbers: (bytes, code of array.array)
_NUMBERS = {
    0xCC: (1, "B"),
    0xCD: (2, "H"),
    0xCE: (4, "I"),
    0xCF: (8, "Q"),
    0xD0: (1, "b"),
    0xD1: (2, "h"),
    0xD2: (4, "i"),
    0xD3: (8, "q"),
    0xCB: (8, "d"),
}
_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_SHORT_TEXT, _TEXT = range(0xA0, 0xC0), 0xD9
_FIXED_ARRAY, _ARRAY = range(0x90, 0xA0), 0xDC


#: The values of a column.
Column: TypeAlias = "array[int] | array[float] | list[Value]"


class FixedValues(Sequence[bytes]):
    """Every `width` bytes of `data` begin with a value, and all values have `size` bytes."""

    def __init__(self, data: bytes, width: int, size: int) -> None:
        self.data, self.width, self.size = data, width, size

    def __len__(self) -> int:
        return len(self.data) // self.width

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        first = range(len(self))[place] * self.width
        return self.data[first : first + self.size]

    def __iter__(self) -> Iterator[bytes]:
        return (value for (value,) in Struct(f"{self.size}s{self.width - self.size}x").iter_unpack(self.data))

    def rows(self) -> list[Row] | None:
        """What they encode, if all of them are arrays with the same kinds of values; None: that has to be found out one
        by one."""
        columns = self.columns()
        return None if columns is None else list(zip(*map(_with_one_nan, columns), strict=True))

    def columns(self) -> list[Column] | None:
        """The same, column by column. Numbers are arrays, and every NaN among them is as it was stored."""
        head = self.data[0] if self._is_alike(0) else 0
        if head in _FIXED_ARRAY:
            count, place = head & 0x0F, 1
        elif head == _ARRAY and self._is_alike(1) and self._is_alike(2):
            count, place = int.from_bytes(self.data[1:3], "big"), 3
        else:
            return None
        found: list[Column] = []
        for _ in range(count):
            read = self._column(place) if place < self.size else None
            if read is None:
                return None
            values, place = read
            found.append(values)
        return found if found and place == self.size else None

    def _is_alike(self, place: int) -> bool:
        column = self._bytes(place)
        return column == column[:1] * len(column)

    def _bytes(self, place: int) -> bytes:
        return self.data[place :: self.width]

    def _column(self, place: int) -> tuple[Column, int] | None:
        """The values that begin at a place of all rows, and where the next begin."""
        marks = self._bytes(place)
        if marks.isascii():  # numbers that are their own marks
            return array("B", marks), place + 1
        mark = marks[0]
        if mark in (_FALSE, _TRUE) and not marks.strip(b"\xc2\xc3"):
            return [each == _TRUE for each in marks], place + 1
        if marks != marks[:1] * len(marks):
            return None
        if mark == _NIL:
            return [None] * len(marks), place + 1
        if mark in _NUMBERS:
            return self._numbers(place + 1, *_NUMBERS[mark])
        if mark in _SHORT_TEXT:
            return self._texts(place + 1, mark & 0x1F)
        if mark == _TEXT and place + 1 < self.size and self._is_alike(place + 1):
            return self._texts(place + 2, self.data[place + 1])
        return None

    def _numbers(self, place: int, size: int, code: str) -> tuple[Column, int] | None:
        if place + size > self.size:
            return None
        joined = bytearray(size * len(self))
        for number in range(size):
            joined[number::size] = self._bytes(place + number)
        numbers = array(code)
        numbers.frombytes(joined)
        if byteorder == "little":
            numbers.byteswap()
        return numbers, place + size

    def _texts(self, place: int, size: int) -> tuple[Column, int] | None:
        if place + size > self.size:
            return None
        cut = Struct(f"{place}x{size}s{self.width - place - size}x")
        decode: Callable[[bytes], str] = bytes.decode
        return [decode(text) for (text,) in cut.iter_unpack(self.data)], place + size


def _with_one_nan(column: Column) -> Iterable[Value]:
    if isinstance(column, array) and column.typecode == "d":
        return [NAN if each != each else each for each in column]
    return column
