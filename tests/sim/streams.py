"""Random numbers by name: a draw more in one place must not change what all other places draw."""

from __future__ import annotations

from hashlib import blake2b
from random import Random


class Streams:
    """One seed, and a `Random` of its own for each name. The name is digested: `hash()` differs between processes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, Random] = {}

    def __getitem__(self, name: str) -> Random:
        stream = self._streams.get(name)
        if stream is None:
            digest = blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
            stream = self._streams[name] = Random(int.from_bytes(digest, "big"))
        return stream
