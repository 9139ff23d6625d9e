"""The range map: which LTM owns which keys. An LTM is named by its log; `processes` says who answers for each log.

In a cluster that name is a logical log: its records are in the physical logs of all processes that ever answered for
it, one log per life of a process ("ltm-2/5" is the fifth of ltm-2), and `hosts` names them in their order. The last one
is that of the process that answers for it now. All must be read when another process takes over; those that a
checkpoint in a shared store makes superfluous are forgotten.

A map never changes: every operation makes another one, whose epoch is one higher.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ..changetables.errors import DataError, ProgrammingError
from ..changetables.keys import KEY_BYTES_MAX
from . import codec

#: The end of the last range.
ABOVE_ALL = b"\xff" * (KEY_BYTES_MAX + 1)

T = TypeVar("T", bound=tuple[object, ...])


class Hosting(NamedTuple):
    """Where the records of one log are. `incarnation` counts those who answered for it."""

    incarnation: int
    segments: tuple[str, ...]

    @property
    def life(self) -> str:
        """The physical log of who answers for it, "" if nobody does."""
        return self.segments[-1] if self.segments else ""

    @property
    def process(self) -> str:
        return process_of(self.life)


class Move(NamedTuple):
    """A range that is closed: its owner serves nobody there, and hands it over to `target` when nothing is held in it
    any more. `number` is the epoch in which it was closed; `stop` None: no end."""

    number: int
    start: bytes
    stop: bytes | None
    source: str
    target: str

    def touches(self, start: bytes, stop: bytes | None) -> bool:
        return (stop is None or self.start < stop) and (self.stop is None or start < self.stop)


def process_of(life: str) -> str:
    """The process that a physical log is of."""
    return life.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class RangeMap:
    """The ranges begin at `starts`, the first one at b"", and each goes up to the next; `logs` own them."""

    epoch: int
    starts: tuple[bytes, ...]
    logs: tuple[str, ...]
    processes: dict[str, str] = field(default_factory=dict)
    #: The epoch with which the present leader began.
    term: int = 0
    hosts: dict[str, Hosting] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    #: The version of the catalog: votes of earlier ones are refused for good. 0: it never changes.
    catalog: int = 0
    #: Its S; 0 while it is pending: then its own votes are held off, too.
    catalog_ts: int = 0
    #: It may still be taken back: only the cluster's own table is written.
    catalog_held: bool = False

    @property
    def catalog_pending(self) -> bool:
        return self.catalog > 0 and not self.catalog_ts

    def owner(self, key: bytes) -> str:
        return self.logs[bisect_right(self.starts, key) - 1]

    def process(self, log: str) -> str:
        host = self.hosts.get(log)
        return host.process if host is not None else self.processes.get(log, log)

    def _told(self, log: str) -> str:
        """A log for people, who know processes. After a failure its process is another one than its name says."""
        return f"{self.process(log) or 'nobody'} (log {log})"

    def owners(self, start: bytes, stop: bytes) -> Iterator[tuple[str, bytes, bytes]]:
        """The owners of a range, in key order, each with its part of it."""
        place = bisect_right(self.starts, start) - 1
        while place < len(self.starts) and self.starts[place] < stop:
            end = self.starts[place + 1] if place + 1 < len(self.starts) else stop
            low, high = max(start, self.starts[place]), min(stop, end)
            if low < high:
                yield self.logs[place], low, high
            place += 1

    def owned(self, log: str) -> Iterator[tuple[bytes, bytes | None]]:
        """The ranges of one LTM: the last one of all has no end."""
        for place, (start, owner) in enumerate(zip(self.starts, self.logs, strict=True)):
            if owner == log:
                yield start, self.starts[place + 1] if place + 1 < len(self.starts) else None

    def by_owner(self, items: Iterable[T], key_of: int = 0) -> dict[str, list[T]]:
        """Tuples by the owners of their keys, which are at this place in them. Most transactions have all of a kind in
        one range, and if not, most keys are in the range of the one before."""
        starts, found = self.starts, dict[str, list[T]]()
        some = list(items)
        if not some:
            return found
        keys: list[bytes] = [item[key_of] for item in some]  # type: ignore[misc]
        place = bisect_right(starts, min(keys))
        if place == len(starts) or max(keys) < starts[place]:
            return {self.logs[place - 1]: some}
        low = high = b""
        part: list[T] = []
        for key, item in zip(keys, some, strict=True):
            if not low <= key < high:
                place = bisect_right(starts, key)
                low, high = starts[place - 1], starts[place] if place < len(starts) else ABOVE_ALL
                part = found.setdefault(self.logs[place - 1], [])
            part.append(item)
        return found

    # -- what an owner may serve

    def serves(self, log: str, start: bytes, stop: bytes) -> bool:
        """Whether a log owns all keys in start <= key < stop, and none of them is closed."""
        if any(owner != log for owner, _, _ in self.owners(start, stop)):
            return False
        return not any(move.touches(start, stop) for move in self.moves)

    def serves_keys(self, log: str, keys: Iterable[bytes]) -> bool:
        """Whether a log owns all of them, and none is closed."""
        starts, moves = self.starts, self.moves
        low = high = b""
        for key in keys:
            if not low <= key < high:
                place = bisect_right(starts, key)
                if self.logs[place - 1] != log:
                    return False
                low, high = starts[place - 1], starts[place] if place < len(starts) else ABOVE_ALL
            if moves and any(move.start <= key and (move.stop is None or key < move.stop) for move in moves):
                return False
        return True

    # -- operations

    def split(self, at: bytes) -> RangeMap:
        """Another range begins there; its owner stays."""
        if at in self.starts:
            raise ProgrammingError("a range begins there already", hint="the status of the cluster shows the ranges")
        place = bisect_right(self.starts, at)
        return replace(
            self,
            epoch=self.epoch + 1,
            starts=(*self.starts[:place], at, *self.starts[place:]),
            logs=(*self.logs[:place], self.logs[place - 1], *self.logs[place:]),
        )

    def merge(self, at: bytes) -> RangeMap:
        """The range that begins there and the one before it, of one owner, become one."""
        place = bisect_left(self.starts, at)
        if not at or place == len(self.starts) or self.starts[place] != at:
            raise ProgrammingError(
                f"no range begins at {at!r}", hint="ranges are merged by where the second one begins"
            )
        if self.logs[place] != self.logs[place - 1]:
            raise ProgrammingError(
                f"the ranges on both sides of {at!r} have different owners", hint="move one of them first"
            )
        if any(at in (move.start, move.stop) for move in self.moves):
            raise ProgrammingError(f"one of the ranges at {at!r} is being moved", hint="wait until that is done")
        return replace(
            self,
            epoch=self.epoch + 1,
            starts=self.starts[:place] + self.starts[place + 1 :],
            logs=self.logs[:place] + self.logs[place + 1 :],
        )

    def begin_move(self, start: bytes, stop: bytes | None, target: str) -> RangeMap:
        """Close keys of one owner, which may be parts of its ranges: they are to become another's."""
        source = self.owner(start)
        if stop is not None and start >= stop:
            raise ProgrammingError("there are no keys between these", hint="the second comes after all that are moved")
        if target not in self.hosts:
            raise ProgrammingError(f"keys of {self._told(source)} cannot be moved to {target}: nobody answers for it")
        if target == source:
            raise ProgrammingError(
                f"{self._told(target)} owns the first of these keys already",
                hint="the status of the cluster shows who does",
            )
        if any(move.touches(start, stop) for move in self.moves):
            raise ProgrammingError("some of these keys are being moved", hint="wait until that is done")
        cut = self._cut(start)._cut(stop)
        last = len(cut.starts) if stop is None else bisect_left(cut.starts, stop)
        if any(owner != source for owner in cut.logs[bisect_left(cut.starts, start) : last]):
            raise ProgrammingError(
                f"{self._told(source)} owns the first of these keys and does not own all of them",
                hint="the status of the cluster shows who does: move the keys of one owner at a time",
            )
        epoch = self.epoch + 1
        return replace(cut, epoch=epoch, moves=(*self.moves, Move(epoch, start, stop, source, target)))

    def _cut(self, at: bytes | None) -> RangeMap:
        return self if at is None or at in self.starts else self.split(at)

    def end_move(self, number: int) -> RangeMap:
        """The target has the keys: it owns them."""
        move = next(move for move in self.moves if move.number == number)
        logs = tuple(
            move.target if move.start <= start and (move.stop is None or start < move.stop) else log
            for start, log in zip(self.starts, self.logs, strict=True)
        )
        moves = tuple(each for each in self.moves if each.number != number)
        return replace(self, epoch=self.epoch + 1, logs=logs, moves=moves)

    def host(self, log: str, life: str) -> RangeMap:
        """Another life answers for a log, or the first one for a new log."""
        before = self.hosts.get(log, Hosting(0, ()))
        if life in before.segments:
            raise ProgrammingError(f"{life} has answered for {log} before", hint="a process begins a new log first")
        now = Hosting(before.incarnation + 1, (*before.segments, life))
        return replace(self, epoch=self.epoch + 1, hosts={**self.hosts, log: now})

    def forget_segments(self, log: str) -> RangeMap:
        """Whoever answers for a log needs none of the logs that its records were in before."""
        host = self.hosts[log]
        now = Hosting(host.incarnation, host.segments[-1:])
        return replace(self, epoch=self.epoch + 1, hosts={**self.hosts, log: now})

    def led_anew(self) -> RangeMap:
        """The first map of another leader."""
        return replace(self, epoch=self.epoch + 1, term=self.epoch + 1)

    def with_catalog(self, version: int, ts: int, held: bool = False) -> RangeMap:
        """Another version of the catalog is pending (`ts` 0), or open, perhaps not for everybody."""
        return replace(self, epoch=self.epoch + 1, catalog=version, catalog_ts=ts, catalog_held=held)

    def released(self) -> RangeMap:
        """The catalog is open for everybody."""
        return replace(self, epoch=self.epoch + 1, catalog_held=False)

    # -- as it is stored

    def pack(self) -> bytes:
        hosts = [(log, *host) for log, host in self.hosts.items()]
        catalog = (self.catalog, self.catalog_ts, self.catalog_held)
        return codec.pack((self.epoch, self.term, self.starts, self.logs, hosts, self.moves, catalog))

    @classmethod
    def unpack(cls, data: bytes) -> RangeMap:
        stored: Any = codec.unpack(data)
        try:
            epoch, term, starts, logs, hosts, moves, catalog = stored
            return cls(
                epoch,
                tuple(starts),
                tuple(logs),
                {},
                term,
                {log: Hosting(incarnation, tuple(segments)) for log, incarnation, segments in hosts},
                tuple(Move(*move) for move in moves),
                *catalog,
            )
        except (TypeError, ValueError) as error:
            raise DataError(
                f"this is no range map: {error}", hint="it may be of another version of Viewtide: update this process"
            ) from error
