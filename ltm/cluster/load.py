"""What is asked of an LTM process: how many requests, and the keys of some of them. For whoever balances key ranges."""

from __future__ import annotations

from ..two_phase.messages import Ask, Prepare, Read

#: Keys of one report at the most: they are taken from requests evenly.
KEYS_MAX = 64


class Load:
    def __init__(self) -> None:
        self.requests = 0
        self._keys: list[bytes] = []
        #: Of so many requests one key is taken.
        self._every = 1

    def note(self, message: object) -> None:
        self.requests += 1
        if self.requests % self._every:
            return
        key = _key_of(message)
        if key is None:
            return
        self._keys.append(key)
        if len(self._keys) > KEYS_MAX:
            # Half of them stand for twice as many.
            del self._keys[::2]
            self._every *= 2

    def take(self) -> tuple[int, tuple[bytes, ...]]:
        """Since it was last taken."""
        found = (self.requests, tuple(self._keys))
        self.requests, self._keys, self._every = 0, [], 1
        return found


def _key_of(message: object) -> bytes | None:
    match message:
        case Ask():
            return next(iter((*message.writes, *message.keys, *(start for start, *_ in message.ranges))), None)
        case Prepare():
            if message.writes:
                return message.writes[0][0]
            return message.refreshes[0][1] if message.refreshes else None
        case Read():
            return next(iter((*message.keys, *(start for start, *_ in message.ranges))), None)
    return None
