"""Help with misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint: the known name that is most like `name`, or all of them if there are few."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if names and len(names) <= 8:
        return f"there are {', '.join(map(repr, names))}"
    return ""
