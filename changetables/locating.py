"""Where a query failed: generated code runs without looking back, so only a failure asks which row and which expression
it was. The query is then run once more, part by part from below, and the first part that fails is taken row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .access import Reader
from .algebra import Apply, Filter, Group, Project, Relation, Scan, inputs
from .errors import DataError
from .evaluate import evaluate
from .execute import Query
from .expressions import ColumnRef, Expression
from .query_subqueries import with_row
from .rewriting import conjuncts
from .schema import Table, row_name
from .types import Row


def located(
    error: DataError, relation: Relation, tables: Mapping[str, Table], reader: Reader, columns: Sequence[str] = ()
) -> DataError:
    """The same error with row and column in front; as it is where nobody can tell. `columns` are what the outputs are
    for, if not for a result."""
    where = _where(relation, tables, reader, columns)
    return DataError(f"{where}: {error.message}", hint=error.hint) if where else error


def _where(relation: Relation, tables: Mapping[str, Table], reader: Reader, columns: Sequence[str]) -> str:
    # The query of an Apply has no rows of its own: it reads those of the input.
    for below in inputs(relation)[:1] if isinstance(relation, Apply) else inputs(relation):
        if _fails(below, tables, reader):
            return _where(below, tables, reader, ())
    if isinstance(relation, Apply):
        return _where_applied(relation, tables, reader)
    if not isinstance(relation, Filter | Project | Group):
        return ""
    parts = _parts(relation, columns)
    for row in Query(relation.input, tables).rows(reader):
        for label, expression in parts:
            try:
                evaluate(expression, row)
            except DataError:
                return ", ".join(filter(None, (_origin(relation.input, row, tables), label)))
    return ""


def _where_applied(apply: Apply, tables: Mapping[str, Table], reader: Reader) -> str:
    for row in Query(apply.input, tables).rows(reader):
        if _fails(with_row(apply, row), tables, reader):
            return ", ".join(filter(None, (_origin(apply.input, row, tables), "subquery")))
    return ""


def _fails(relation: Relation, tables: Mapping[str, Table], reader: Reader) -> bool:
    try:
        for _ in Query(relation, tables).rows(reader):
            pass
    except DataError:
        return True
    return False


def _parts(relation: Filter | Project | Group, columns: Sequence[str]) -> list[tuple[str, Expression]]:
    """What is computed for each row, and what to call it."""
    match relation:
        case Filter():
            return [("condition", condition) for condition in conjuncts(relation.condition)]
        case Project():
            labels = columns or [f"output {output.name}" for output in relation.outputs]
            return [(label, output.expression) for label, output in zip(labels, relation.outputs, strict=True)]
        case Group():
            keys = [("GROUP BY", key) for key in relation.keys]
            return keys + [(each.kind, each.argument) for each in relation.aggregates if each.argument is not None]


def _keeps_columns(project: Project) -> bool:
    """Whether it only leaves the last columns out."""
    return all(
        isinstance(output.expression, ColumnRef) and output.expression.position == place
        for place, output in enumerate(project.outputs)
    )


def _origin(relation: Relation, row: Row, tables: Mapping[str, Table]) -> str:
    """The row of the one table that it comes from, if it is one and its key is there."""
    while isinstance(relation, Filter | Apply) or (isinstance(relation, Project) and _keeps_columns(relation)):
        relation = relation.input
    if not isinstance(relation, Scan):
        return ""
    table = tables[relation.table]
    values = dict(zip(relation.positions, row, strict=False))
    named = table.key if not any(table.columns[position].hidden for position in table.key) else table.visible()
    if not all(position in values for position in named):
        return ""
    return row_name(table, tuple(values.get(position) for position in range(len(table.columns))))
