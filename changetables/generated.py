"""Source that the engine made, as code. Equal sources come again and again (every version of the catalog compiles its
codecs), and compiling costs far more than running a definition in a namespace."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType

#: Sources that are remembered: some per table and view.
SOURCES_MAX = 4_096


@lru_cache(maxsize=SOURCES_MAX)
def code_of(source: str, name: str) -> CodeType:
    """The code of generated definitions; `name` is shown in tracebacks."""
    return compile(source, name, "exec")
