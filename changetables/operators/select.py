"""Selection: the change table of a filter is the filtered change table.

    □(σ_p(E)) = σ_p(□E)                                                       (Nikolov table 4.1, Gupta and Mumick)

Multiplicities pass unchanged, and neither the old nor the new state of E is needed: the law is linear. It also lets a
filter move through a join to the first place where all rows that it reads are bound, which spares look-ups:

    σ_p(E1 ⋈ E2) = σ_p(E1) ⋈ E2        if p reads only E1

A row passes only when p is TRUE; FALSE and NULL both drop it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..compiler import Compiler, Lines
from ..expressions import Expression


def emit_select(lines: Lines, compiler: Compiler, predicates: Iterable[Expression]) -> None:
    """Inside a loop over bound rows: go on to the next one unless every predicate is TRUE."""
    for predicate in predicates:
        lines.add(f"if not {compiler.condition(predicate)}: continue")
