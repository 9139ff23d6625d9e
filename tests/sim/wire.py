"""How messages and records are frozen, so that no two processes, and no two lives of one, share what can change.

A scenario may give the world another wire, for instance the codec of the real transport, which is then proven too.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple, Protocol

from viewtide.ltm import codec

from .trace import fingerprint


class Wire(Protocol):
    def freeze(self, value: object) -> tuple[object, bytes]:
        """What travels or is stored, and what the trace hashes of it: bytes that are equal for equal values."""

    def thaw(self, frozen: object) -> object:
        """Equal to what was frozen, and the caller's own."""


class _Pickled(NamedTuple):
    data: bytes


class AnyWire:
    """Keeps the types. What is immutable all the way down (tuples, named tuples, frozen dataclasses of plain values) is
    passed on as it is: nobody can change it. All else is copied by pickle, which costs ten times as much."""

    def freeze(self, value: object) -> tuple[object, bytes]:
        hashed, immutable = fingerprint(value)
        if immutable:
            return value, hashed
        return _Pickled(pickle.dumps(value, pickle.HIGHEST_PROTOCOL)), hashed

    def thaw(self, frozen: object) -> object:
        if frozen.__class__ is _Pickled:
            value: object = pickle.loads(frozen.data)
            return value
        return frozen


class CodecWire:
    """Through the codec of the commit log and the network: plain values only; lists and named tuples become tuples."""

    def freeze(self, value: object) -> tuple[object, bytes]:
        data = codec.pack(value)
        return data, data

    def thaw(self, frozen: object) -> object:
        assert isinstance(frozen, bytes)
        return codec.unpack(frozen)
