"""Compiles the annotations of a message's fields to one function that checks what has arrived.

Source text is made from annotations and positions only, never from what arrives. What `unpack` can give are None,
bool, int, float, str, bytes, tuples, dicts and the extension types; classes are compared exactly, so that True is no
int, and whole tuples of plain values are checked by one call into C:

    f0.__class__ is tuple and ints.issuperset(map(type, f0))

A check is a statement about a variable. Where a class has to be made (a NamedTuple, a message in a message), it also
puts the result into that variable.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints

from ..changetables.errors import LocalProtocolError

#: Makes a message out of a field, given how deep it is nested.
Nested: TypeAlias = Callable[[object, int], object]


class Wrong(Exception):
    """What has arrived is not what the annotations say."""


def compile_fields(
    kind: type, annotations: list[object], defaults: tuple[object, ...], nested: Nested
) -> Callable[[tuple[object, ...], int], object]:
    """A function (fields, depth of nesting) -> an instance of `kind`. It raises `Wrong`."""
    source = _Source(nested)
    count = len(annotations)
    required = count - len(defaults)
    wrong = source.constant(_refuser(f"the number of fields of {kind.__name__}"))
    source.add(1, f"if not {required} <= len(fields) <= {count}: {wrong}()")
    if defaults:
        source.add(1, f"if len(fields) < {count}: fields += {source.constant(defaults)}[len(fields) - {required}:]")
    names = source.unpack(1, "fields", count)
    for name, annotation, field in zip(names, annotations, kind._fields, strict=True):  # type: ignore[attr-defined]
        source.check(1, annotation, name, f"{field} of {kind.__name__}")
    made = "fields" if not any(map(_makes, annotations)) else f"({''.join(f'{name}, ' for name in names)})"
    source.add(1, f"return new({source.constant(kind)}, {made})")
    return source.compile()


def nests(annotation: object) -> bool:
    """Whether there are messages in such a field: it is one, or a tuple of them."""
    if annotation is object:
        return True
    inner = [each for each in get_args(annotation) if each is not Ellipsis]
    if any(map(nests, inner)):
        if get_origin(annotation) is not tuple:
            raise LocalProtocolError(f"messages can be in a field or in tuples of one, not in {annotation}")
        return True
    return False


class _Source:
    def __init__(self, nested: Nested) -> None:
        self._lines = ["def make(fields, depth):"]
        self._constants: dict[str, object] = {"new": tuple.__new__, "nested": nested, "type": type, "map": map}
        self._names = 0

    def add(self, indent: int, line: str) -> None:
        self._lines.append("    " * indent + line)

    def constant(self, value: object) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def unpack(self, indent: int, name: str, count: int) -> list[str]:
        """Variables for the items of a tuple that has so many."""
        items = [self._fresh() for _ in range(count)]
        if items:
            self.add(indent, f"{''.join(f'{item}, ' for item in items)}= {name}")
        return items

    def compile(self) -> Callable[[tuple[object, ...], int], object]:
        scope = dict(self._constants)
        exec("\n".join(self._lines), scope)
        made: Callable[[tuple[object, ...], int], object] = scope["make"]  # type: ignore[assignment]
        return made

    def check(self, indent: int, annotation: object, name: str, where: str) -> None:
        wrong = self.constant(_refuser(where))
        plain = _plain_classes(annotation)
        if annotation is object:
            self.add(indent, f"{name} = nested({name}, depth)")
        elif plain is not None and len(plain) == 1:
            self.add(indent, f"if {name}.__class__ is not {self.constant(*plain)}: {wrong}()")
        elif plain is not None:
            self.add(indent, f"if {name}.__class__ not in {self.constant(plain)}: {wrong}()")
        elif _or_none(annotation) is not None:
            self.add(indent, f"if {name} is not None:")
            self.check(indent + 1, _or_none(annotation), name, where)
        elif get_origin(annotation) is tuple:
            self._check_tuple(indent, get_args(annotation), name, where, wrong)
        elif get_origin(annotation) in (dict, Mapping):
            self._check_mapping(indent, get_args(annotation), name, where, wrong)
        elif _is_named_tuple(annotation):
            self._check_named_tuple(indent, annotation, name, where, wrong)
        else:
            raise LocalProtocolError(f"{where}: no message can have a field that is annotated with {annotation}")

    def _check_tuple(self, indent: int, inner: tuple[object, ...], name: str, where: str, wrong: str) -> None:
        if len(inner) == 2 and inner[1] is Ellipsis:
            self._check_all(indent, inner[0], name, where, wrong)
            return
        self.add(indent, f"if {name}.__class__ is not tuple or len({name}) != {len(inner)}: {wrong}()")
        items = self.unpack(indent, name, len(inner))
        for item, annotation in zip(items, inner, strict=True):
            self.check(indent, annotation, item, where)
        if any(map(_makes, inner)):
            self.add(indent, f"{name} = ({''.join(f'{item}, ' for item in items)})")

    def _check_all(self, indent: int, annotation: object, name: str, where: str, wrong: str) -> None:
        """A tuple of any length."""
        plain = _plain_classes(annotation)
        if plain is not None:
            every = f"{self.constant(plain)}.issuperset(map(type, {name}))"
            self.add(indent, f"if {name}.__class__ is not tuple or not {every}: {wrong}()")
            return
        self.add(indent, f"if {name}.__class__ is not tuple: {wrong}()")
        item = self._fresh()
        made = self._fresh() if _makes(annotation) else ""
        if made:
            self.add(indent, f"{made} = []")
        self.add(indent, f"for {item} in {name}:")
        self.check(indent + 1, annotation, item, where)
        if made:
            self.add(indent + 1, f"{made}.append({item})")
            self.add(indent, f"{name} = tuple({made})")

    def _check_mapping(self, indent: int, inner: tuple[object, ...], name: str, where: str, wrong: str) -> None:
        keys, values = map(_plain_classes, inner)
        if keys is None or values is None:
            raise LocalProtocolError(f"{where}: only plain keys and values can be sent in a mapping")
        every = f"{self.constant(keys)}.issuperset(map(type, {name}))"
        each = f"{self.constant(values)}.issuperset(map(type, {name}.values()))"
        self.add(indent, f"if {name}.__class__ is not dict or not {every} or not {each}: {wrong}()")

    def _check_named_tuple(self, indent: int, kind: object, name: str, where: str, wrong: str) -> None:
        annotations = list(get_type_hints(kind).values())
        self.add(indent, f"if {name}.__class__ is not tuple or len({name}) != {len(annotations)}: {wrong}()")
        items = self.unpack(indent, name, len(annotations))
        for item, annotation in zip(items, annotations, strict=True):
            self.check(indent, annotation, item, where)
        self.add(indent, f"{name} = new({self.constant(kind)}, ({''.join(f'{item}, ' for item in items)}))")

    def _fresh(self) -> str:
        self._names += 1
        return f"f{self._names}"


def _refuser(where: str) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise Wrong(where)

    return refuse


def _plain_classes(annotation: object) -> frozenset[type] | None:
    """The classes of an annotation that names nothing else, None included."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_plain_classes(each) for each in get_args(annotation)]
        return frozenset().union(*parts) if all(part is not None for part in parts) else None  # type: ignore[arg-type]
    if annotation is None or annotation is type(None):
        return frozenset((type(None),))
    if isinstance(annotation, type) and not get_args(annotation) and not issubclass(annotation, tuple | dict | list):
        return frozenset((annotation,)) if annotation is not object else None
    return None


def _or_none(annotation: object) -> object | None:
    """X of `X | None`."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return None
    others = [each for each in get_args(annotation) if each is not type(None)]
    return others[0] if len(others) == 1 and len(others) < len(get_args(annotation)) else None


def _is_named_tuple(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def _makes(annotation: object) -> bool:
    """Whether a check of it makes something new."""
    return annotation is object or _is_named_tuple(annotation) or any(map(_makes, get_args(annotation)))
