"""How messages and records are frozen, so that no two processes, and no two lives of one, share what can change.

A scenario may give the world another wire, for instance the codec of the real transport, which is then proven too.
"""

from __future__ import annotations

import pickle
from collections import Counter
from typing import ClassVar, NamedTuple, Protocol

from viewtide.coordinator import registered
from viewtide.ltm import codec, wire

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


class _Encoded(NamedTuple):
    data: bytes


class RealWire(AnyWire):
    """Messages and records of logs through the wire of a cluster, as bytes. What never leaves its process (ZooKeeper's
    client, timers) is passed on as it is. The hash is that of `AnyWire`: a run must not differ from one with that."""

    #: What went through as bytes, and what did not, by the names of the classes: of all instances.
    encoded: ClassVar[Counter[str]] = Counter()
    passed: ClassVar[Counter[str]] = Counter()

    def freeze(self, value: object) -> tuple[object, bytes]:
        name = type(value).__name__
        if type(value) not in _SENT:
            self.passed[name] += 1
            return super().freeze(value)
        self.encoded[name] += 1
        return _Encoded(wire.encode(value)), fingerprint(value)[0]

    def thaw(self, frozen: object) -> object:
        if frozen.__class__ is _Encoded:
            return wire.decode(frozen.data)
        return super().thaw(frozen)


_SENT = frozenset(registered.MESSAGES.values())
