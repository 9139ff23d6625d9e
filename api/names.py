"""Help with misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .changetables.errors import ProgrammingError

if TYPE_CHECKING:
    from .database import Database
    from .view import View

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


def named_views(database: Database, names: Sequence[str]) -> list[View]:
    """The views that a command is about, all of them if none is named. Hints of `Database.view` are about calls."""
    views = database.views()
    tables = database.tables() if names else []
    for name in names:
        if name in tables:
            raise ProgrammingError(f"{name!r} is a table, and this is about views", hint=nearest(name, views))
    return [database.view(name) for name in names or views]
