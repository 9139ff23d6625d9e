"""Help with misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Names that a hint has at most.
SHOWN_MAX = 8


def close_to(name: object, known: Iterable[str]) -> str:
    """A hint: the known name that is most like `name`; empty if none is."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint: the known name that is most like `name`, or all of them if there are few, or some."""
    names = list(known)
    hint = close_to(name, names)
    if hint:
        return hint
    if not names:
        return "there are none"
    shown = ", ".join(map(repr, names[:SHOWN_MAX]))
    return f"there are {shown}" if len(names) <= SHOWN_MAX else f"there are {len(names)}, as {shown}"
