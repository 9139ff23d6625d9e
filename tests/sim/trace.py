"""The trace of a run: one entry per event, a running hash over all of them, and the story that is printed of it.

Entries are cheap tuples. What is hashed is packed; a line is formatted only when somebody wants to read it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import msgpack

#: Entries that are kept for a violation's story; with `keep_all`, the whole run is.
ENTRIES_KEPT = 4_000
#: Entries hashed at a time: one update of the hash per entry would cost more than the packing.
_HASHED_TOGETHER = 256
#: A line's detail is cut there: a story is read by people.
DETAIL_CHARS_MAX = 300


class Event(NamedTuple):
    """One thing that happened. `what` is the kind; `detail` depends on it and is plain, or a message or a record."""

    time_us: int
    process: str
    what: str
    detail: tuple[object, ...]


#: Kinds whose detail ends with a frozen message or record: only a reader of the story pays for its reading.
SEND, DELIVER, PERSIST = "send", "deliver", "persist"
_FROZEN_LAST = frozenset((SEND, DELIVER, PERSIST))


_Entry: TypeAlias = tuple[int, str, str, tuple[object, ...], object]


class Trace:
    def __init__(self, thaw: Callable[[object], object], keep_all: bool = False) -> None:
        self._thaw = thaw
        self._kept: deque[_Entry] = deque(maxlen=None if keep_all else ENTRIES_KEPT)
        self._keep = self._kept.append
        self._hash = blake2b(digest_size=16)
        self._unhashed: list[_Entry] = []
        self._count = 0

    def add(self, time_us: int, process: str, what: str, detail: tuple[object, ...], hashed: object) -> None:
        """`hashed` stands for the detail in the hash: values that are equal in every run of the seed."""
        entry = (time_us, process, what, detail, hashed)
        self._keep(entry)
        unhashed = self._unhashed
        unhashed.append(entry)
        if len(unhashed) >= _HASHED_TOGETHER:
            self._hash_all()

    def _hash_all(self) -> None:
        self._count += len(self._unhashed)
        lines = [(time_us, process, what, hashed) for time_us, process, what, _, hashed in self._unhashed]
        self._unhashed.clear()
        self._hash.update(_pack(lines))

    @property
    def count(self) -> int:
        return self._count + len(self._unhashed)

    def digest(self) -> str:
        self._hash_all()
        return self._hash.hexdigest()

    def events(self) -> Iterator[Event]:
        """Those that are kept, with messages and records as values again."""
        for entry in self._kept:
            yield self._readable(entry)

    def _readable(self, entry: _Entry) -> Event:
        time_us, process, what, detail, _ = entry
        if what in _FROZEN_LAST:
            *rest, frozen = detail
            detail = (*rest, self._thaw(frozen))
        return Event(time_us, process, what, detail)

    def story(self, concerns: Iterable[str] = (), last: int | None = None) -> list[str]:
        """The kept lines, or the last of them that name one of `concerns`."""
        words = tuple(concerns)
        lines: list[str] = []
        for entry in reversed(self._kept):
            line = line_of(self._readable(entry))
            if not words or any(word in line for word in words):
                lines.append(line)
                if last is not None and len(lines) >= last:
                    break
        lines.reverse()
        return lines


def line_of(event: Event) -> str:
    detail = " ".join(part if isinstance(part, str) else repr(part) for part in event.detail)
    if len(detail) > DETAIL_CHARS_MAX:
        detail = detail[:DETAIL_CHARS_MAX] + "…"
    return f"{event.time_us / 1_000_000:12.6f} {event.process:<12} {event.what:<10} {detail}".rstrip()


def fingerprint(value: object) -> tuple[bytes, bool]:
    """Bytes that are equal for equal values in every process, and whether the value is immutable all the way down.

    (Pickle would not do: its bytes depend on who shares what.) `hash()` is called for its error only, which says that
    there is a list, dict or set inside: it looks at everything without a line of Python. Objects that it takes although
    they can change pass through `_plain`, where they are noticed.
    """
    global _changeable
    _changeable = False
    packed = _pack(value)
    if _changeable:
        return packed, False
    try:
        hash(value)
    except TypeError:
        return packed, False
    return packed, True


#: Whether the value that is being packed has something in it that can change.
_changeable = False
_field_names: dict[type, tuple[str, ...]] = {}
#: Beside what msgpack knows and enumerations.
_IMMUTABLE = frozenset((Decimal, datetime.date, datetime.datetime, datetime.timedelta, frozenset, int))


def _plain(value: object) -> object:
    """What msgpack does not know, as something that it knows."""
    global _changeable
    kind = type(value)
    if dataclasses.is_dataclass(value):
        names = _field_names.get(kind)
        if names is None:
            names = _field_names[kind] = tuple(field.name for field in dataclasses.fields(value))
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            _changeable = True
        return (kind.__name__, *[getattr(value, name) for name in names])
    if isinstance(value, Enum):
        return value.name
    if kind not in _IMMUTABLE:
        _changeable = True
    if isinstance(value, (set, frozenset)):
        return sorted(_pack_inside(item) for item in value)
    if isinstance(value, int):
        return str(value)
    if kind.__repr__ is object.__repr__ or callable(value):
        raise TypeError(f"{kind.__name__} in a message or record: its repr is an address, so no trace can name it")
    return repr(value)


def _pack_inside(value: object) -> bytes:
    """With a packer of its own: one that is at work cannot be called again."""
    packed: bytes = msgpack.packb(value, default=_plain)
    return packed


_pack: Callable[[object], bytes] = msgpack.Packer(default=_plain).pack
