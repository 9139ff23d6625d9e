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
from typing import NamedTuple, TypeAlias, overload

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


#: What else a column may consist of; and the numbers that are read as they stand, for whom there is nothing to look at.
_BOOLS, _NULLS, _TEXTS = "bools", "nulls", "texts"
_WHOLE_CODES = frozenset(code for _, code in _NUMBERS.values()) - {"d"}

#: The values of a column.
Column: TypeAlias = "array[int] | array[float] | list[Value]"


class _Place(NamedTuple):
    """Where the values of a column are in every row: `code` is that of `_NUMBERS`, or one of those below."""

    start: int
    stop: int
    code: str


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
        places = self._places()
        if places is None:
            return None
        if all(place.code in _WHOLE_CODES for place in places):
            return list(self._cut(places).iter_unpack(self.data))
        return list(zip(*(_with_one_nan(self._read(place)) for place in places), strict=True))

    def columns(self) -> list[Column] | None:
        """The same, column by column. Numbers are arrays, and every NaN among them is as it was stored."""
        places = self._places()
        return None if places is None else [self._read(place) for place in places]

    def _places(self) -> list[_Place] | None:
        """Where the values of each column are, if that is the same in all rows."""
        head = self.data[0] if self._is_alike(0) else 0
        if head in _FIXED_ARRAY:
            count, start = head & 0x0F, 1
        elif head == _ARRAY and self._is_alike(1) and self._is_alike(2):
            count, start = int.from_bytes(self.data[1:3], "big"), 3
        else:
            return None
        found: list[_Place] = []
        for _ in range(count):
            place = self._place(start) if start < self.size else None
            if place is None or place.stop > self.size:
                return None
            found.append(place)
            start = place.stop
        return found if found and start == self.size else None

    def _cut(self, places: Sequence[_Place]) -> Struct:
        """Takes the numbers out of one row."""
        end, parts = 0, [">"]
        for place in places:
            parts.append(f"{place.start - end}x{place.code}")
            end = place.stop
        return Struct("".join((*parts, f"{self.width - end}x")))

    def _is_alike(self, place: int) -> bool:
        column = self._bytes(place)
        return column == column[:1] * len(column)

    def _bytes(self, place: int) -> bytes:
        return self.data[place :: self.width]

    def _place(self, start: int) -> _Place | None:
        """Of the values that begin there in all rows; it may end behind them."""
        marks = self._bytes(start)
        if marks.isascii():  # numbers that are their own marks
            return _Place(start, start + 1, "B")
        mark = marks[0]
        if mark in (_FALSE, _TRUE) and not marks.strip(b"\xc2\xc3"):
            return _Place(start, start + 1, _BOOLS)
        if marks != marks[:1] * len(marks):
            return None
        if mark == _NIL:
            return _Place(start, start + 1, _NULLS)
        if mark in _NUMBERS:
            size, code = _NUMBERS[mark]
            return _Place(start + 1, start + 1 + size, code)
        if mark in _SHORT_TEXT:
            return _Place(start + 1, start + 1 + (mark & 0x1F), _TEXTS)
        if mark == _TEXT and start + 1 < self.size and self._is_alike(start + 1):
            return _Place(start + 2, start + 2 + self.data[start + 1], _TEXTS)
        return None

    def _read(self, place: _Place) -> Column:
        start, stop, code = place
        if code == _BOOLS:
            return [each == _TRUE for each in self._bytes(start)]
        if code == _NULLS:
            return [None] * len(self)
        if code == _TEXTS:
            cut = Struct(f"{start}x{stop - start}s{self.width - stop}x")
            decode: Callable[[bytes], str] = bytes.decode
            return [decode(text) for (text,) in cut.iter_unpack(self.data)]
        if stop - start == 1:
            return array(code, self._bytes(start))
        size = stop - start
        joined = bytearray(size * len(self))
        for number in range(size):
            joined[number::size] = self._bytes(start + number)
        numbers = array(code)
        numbers.frombytes(joined)
        if byteorder == "little":
            numbers.byteswap()
        return numbers


def _with_one_nan(column: Column) -> Iterable[Value]:
    if isinstance(column, array) and column.typecode == "d":
        return [NAN if each != each else each for each in column]
    return column
