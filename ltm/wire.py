"""Messages as bytes: a version, the number of the message's class, its fields. Nothing that arrives is believed.

    | version 1 | msgpack array: number, field, field ... |

A class is a NamedTuple of plain values, registered under a number by the package that owns it (`registered.py`).
Numbers never change and are never used again; a field may be added at the end, with a default, which is what it is if
somebody does not send it yet. Fields are sent as arrays in arrays. One that is annotated with a NamedTuple becomes one
again; one that is annotated with `object` is a message itself, with its number.

What arrives is checked against the annotations, by a function that is compiled once for each class. Anything wrong,
whatever it is, raises `RemoteProtocolError`, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, get_type_hints

from ..changetables.errors import LocalProtocolError, RemoteProtocolError
from .codec import NotUnderstood, pack_for_peer, unpack_from_peer
from .wire_checks import Wrong, compile_fields, nests

VERSION = 1
#: Numbers have at most three bytes on the wire.
NUMBER_MAX = 65_535
#: A message in a message (for a log), in a message (that was passed on): no machine packs deeper.
NESTED_MAX = 3

_VERSION = bytes((VERSION,))


class _Known(NamedTuple):
    """A class of messages. `make` checks the fields and returns the message. `inner` are the positions of fields that
    are messages themselves, or tuples of such."""

    number: int
    kind: type
    make: Callable[[tuple[object, ...], int], object]
    inner: tuple[int, ...]


_by_number: dict[int, _Known] = {}
_by_class: dict[type, _Known] = {}


def register(number: int, kind: type) -> None:
    """A class of messages that this process can send and understand. Again with the same number changes nothing."""
    known = _by_number.get(number)
    if known is not None and known.kind is kind:
        return
    if known is not None or kind in _by_class:
        raise LocalProtocolError(f"{kind.__name__} or the number {number} is registered already")
    if not 0 < number <= NUMBER_MAX:
        raise LocalProtocolError(f"{number} is no number of a message")
    annotations = list(get_type_hints(kind).values())
    defaults: Mapping[str, object] = kind._field_defaults  # type: ignore[attr-defined]
    make = compile_fields(kind, annotations, tuple(defaults.values()), _inner_message)
    inner = tuple(position for position, annotation in enumerate(annotations) if nests(annotation))
    _by_number[number] = _by_class[kind] = _Known(number, kind, make, inner)


def register_all(table: Mapping[int, type]) -> None:
    for number, kind in table.items():
        register(number, kind)


def registered() -> dict[int, type]:
    return {number: known.kind for number, known in _by_number.items()}


def encode(message: object) -> bytes:
    try:
        return _VERSION + pack_for_peer(_plain(message))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"a {type(message).__name__} cannot be sent: {error}") from error


def decode(data: bytes) -> object:
    """The message; its class is one of those that are registered."""
    if data[:1] != _VERSION:
        version = str(data[0]) if data else "none"
        raise RemoteProtocolError(f"a message of version {version}, not {VERSION}", hint="update the older side")
    try:
        return _message(unpack_from_peer(data, 1), 0)
    except (NotUnderstood, Wrong) as error:
        raise RemoteProtocolError(f"a message that makes no sense: {error}") from None


def _plain(message: object) -> tuple[object, ...]:
    known = _by_class.get(message.__class__)
    if known is None:
        raise LocalProtocolError(
            f"{type(message).__name__} is no message that is registered",
            hint="add it to `registered.py` of its package, and import that",
        )
    assert isinstance(message, tuple)
    if not known.inner:
        return (known.number, *message)
    fields = list(message)
    for position in known.inner:
        fields[position] = _plain_inner(fields[position])
    return (known.number, *fields)


def _plain_inner(field: object) -> object:
    if field.__class__ is tuple:
        return tuple([_plain_inner(each) for each in field])
    return _plain(field)


def _message(plain: object, depth: int) -> object:
    if plain.__class__ is not tuple or not plain:
        raise Wrong("not an array of fields")
    number = plain[0]
    known = _by_number.get(number) if number.__class__ is int else None
    if known is None:
        raise Wrong(f"its number is {str(number)[:20]}")
    return known.make(plain[1:], depth)


def _inner_message(plain: object, depth: int) -> object:
    if depth >= NESTED_MAX:
        raise Wrong("messages are nested too deep")
    return _message(plain, depth + 1)
