"""Constraints on single rows: CHECK conditions, compiled once per table."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from .compiler import Compiler, Lines, column_leaf
from .errors import IntegrityError
from .schema import Check, Table
from .types import Row


def row_check(table: Table) -> Callable[[Row], None] | None:
    """A function that raises IntegrityError for a row that breaks a CHECK of the table, None if it has none."""
    if not table.checks:
        return None
    compiler, lines = Compiler(column_leaf, {}), Lines()
    with lines.block("def check(r0):"):
        for constraint in table.checks:
            broken = compiler.bind(_broken(table, constraint), "broken")
            # NULL passes, as in SQL.
            lines.add(f"if {compiler.value(constraint.condition).text} is False: raise {broken}(r0)")
    compiler.define(str(lines))
    return cast(Callable[[Row], None], compiler.namespace["check"])


def _broken(table: Table, constraint: Check) -> Callable[[Row], IntegrityError]:
    def broken(row: Row) -> IntegrityError:
        shown = {table.columns[place].name: row[place] for place in table.visible()}
        return IntegrityError(
            f"row {shown!r} of table {table.name!r} breaks check {constraint.name!r}",
            hint=f"the table asks for {constraint.text}",
        )

    return broken
