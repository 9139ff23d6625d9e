"""Constraints on single rows: CHECK conditions, compiled once per table."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from .compiler import Compiler, Lines, column_leaf
from .errors import DataError, IntegrityError
from .evaluate import evaluate
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
    check = cast(Callable[[Row], None], compiler.namespace["check"])

    def told(row: Row) -> None:
        try:
            check(row)
        except DataError as error:
            raise _failed(table, row, error) from None

    return told


def _failed(table: Table, row: Row, error: DataError) -> DataError:
    """A condition that has no value for the row: which one is asked only now."""
    for constraint in table.checks:
        try:
            evaluate(constraint.condition, row)
        except DataError:
            return DataError(f"{_shown(table, row)}, check {constraint.name!r}: {error.message}", hint=error.hint)
    return error


def _shown(table: Table, row: Row) -> str:
    values = {table.columns[place].name: row[place] for place in table.visible()}
    return f"row {values!r} of table {table.name!r}"


def _broken(table: Table, constraint: Check) -> Callable[[Row], IntegrityError]:
    def broken(row: Row) -> IntegrityError:
        return IntegrityError(
            f"{_shown(table, row)} breaks check {constraint.name!r}",
            hint=f"the table asks for {constraint.text}",
        )

    return broken
