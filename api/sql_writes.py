"""INSERT, UPDATE and DELETE inside a transaction.

Each finds out all that it will do, then does it at once (`_change`): rows that go, rows that come. So a key may move to
where another row of the same statement stood: UPDATE t SET id = id + 1 needs no lucky order, and duplicates count at
the end of the statement. (PostgreSQL checks row by row there and may fail on a duplicate that would have gone.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from .changetables.algebra import Field, Filter, Output, Project, Relation
from .changetables.algebra import Values as ValuesRelation
from .changetables.errors import DataError, IntegrityError, ProgrammingError
from .changetables.expressions import Call, ColumnRef, Expression, Literal
from .changetables.schema import Table, row_name
from .changetables.statements import Delete, Insert, Update
from .changetables.types import INT, Value
from .changetables.types import Row as Values
from .coordinator.transaction import ABSENT, PRESENT, Intent
from .ltm.tables import TableRows
from .row_ids import has_row_id, row_ids_of
from .sql_reads import read_relation, tables_of
from .transaction import Transaction

if TYPE_CHECKING:
    from .changetables.sql import Parameters
    from .changetables.sql.writes import BoundConflict, BoundInsert

Fit: TypeAlias = Callable[[object], Value]


# --- INSERT ---


def insert_rows(tx: Transaction, statement: Insert, parameters: Parameters) -> int:
    """The number of rows that were inserted, or updated instead."""
    from .changetables.sql.writes import bound_insert

    bound = bound_insert(statement, _tables(tx, statement.query is not None), parameters)
    if bound.relation is not None and statement.query is None:
        bound = bound_insert(statement, _tables(tx), parameters)  # Its values have subqueries: they read.
    target = tx._table(bound.table.name)
    rows = _new_rows(tx, target, statement, bound.positions, _values(tx, bound, statement))
    if bound.conflict is None:
        _change(tx, target, (), rows)
        return len(rows)
    if target.check is not None:
        for row in rows:  # As in PostgreSQL: also those that are not inserted in the end.
            target.check(row)
    fresh, conflicts = _told_apart(tx, target, rows, bound.conflict)
    if bound.conflict.update is None:
        _change(tx, target, (), fresh)
        return len(fresh)
    changed = _updated(tx, target, conflicts, bound.conflict)
    _change(tx, target, changed, [*fresh, *changed.values()])
    return len(fresh) + len(changed)


def _tables(tx: Transaction, reads: bool = True) -> Mapping[str, Table]:
    """What the statement can name. One that only inserts constants need not fix the transaction's snapshot."""
    if reads:
        tx._begin()
    return tables_of(tx)


def _values(tx: Transaction, bound: BoundInsert, statement: Insert) -> Iterable[Sequence[Value]]:
    if bound.relation is not None:
        columns = [_column_name(bound.table, position) for position in bound.positions]
        return list(read_relation(tx, bound.relation, tables_of(tx), columns))
    assert bound.rows is not None, "rows or a relation"
    computed = [item for row in bound.rows for item in row if not isinstance(item, Literal)]
    try:
        values = iter(constants(computed))
    except DataError as error:
        raise _failed_value(error, bound, statement) from None
    return [[item.value if isinstance(item, Literal) else next(values) for item in row] for row in bound.rows]


def _failed_value(error: DataError, bound: BoundInsert, statement: Insert) -> DataError:
    """The first value of VALUES that cannot be computed, with its column and its place."""
    for number, row in enumerate(bound.rows or ()):
        for place, item in enumerate(row):
            try:
                constants([item])
            except DataError as found:
                column = _column_name(bound.table, bound.positions[place])
                return DataError(f"{column}: {found.message}{_place(statement, number, place)}", hint=found.hint)
    return error


def _column_name(table: Table, position: int) -> str:
    return f"column {table.name}.{table.columns[position].name}"


def _place(statement: Insert, row: int, item: int) -> str:
    """Where a value of VALUES stands; of a query, the number of its row."""
    if statement.rows is None:
        return f" in row {row + 1} of the query"
    line, column = statement.rows[row][item].place
    return f" at line {line}, column {column}"


def constants(expressions: Sequence[Expression]) -> Sequence[Value]:
    """The values of expressions that read no rows."""
    if not expressions:
        return ()
    outputs = tuple(Output(f"c{place}", expression, True) for place, expression in enumerate(expressions))
    relation = Project(ValuesRelation(((),), ()), outputs)
    return next(iter(_computed(relation)))


def _computed(relation: Relation) -> Iterable[Values]:
    """The rows of a relation that reads no tables."""
    from .changetables.execute import execute
    from .sql_reads import NO_TABLES

    return execute(relation, {}, NO_TABLES)


def _new_rows(
    tx: Transaction,
    target: TableRows,
    statement: Insert,
    positions: Sequence[int],
    values: Iterable[Sequence[Value]],
) -> list[Values]:
    """Physical rows: the given values as their columns take them, and defaults."""
    table = target.table
    fits = [(position, _fit(target, position)) for position in positions]
    given = set(positions)
    missing = next(
        (
            column
            for position, column in enumerate(table.columns)
            if position not in given and not (column.dropped or column.hidden or column.nullable)
            if column.default is None
        ),
        None,
    )
    template = [None if column.dropped else column.default for column in table.columns]
    rows: list[list[Value]] = []
    for row in values:
        if missing is not None:
            line, column_number = statement.table.place
            where = f"{table.name}.{missing.name} may not be NULL and has no default"
            raise IntegrityError(f"column {where} at line {line}, column {column_number}", hint="give a value")
        made = template.copy()
        try:
            for (position, fit), value in zip(fits, row, strict=True):
                made[position] = fit(value)
        except (DataError, IntegrityError) as error:
            where = _place(statement, len(rows), positions.index(position))
            raise type(error)(f"{error.message}{where}", hint=error.hint) from None
        rows.append(made)
    if has_row_id(table) and rows:
        for made, row_id in zip(rows, row_ids_of(tx._node).take(target, len(rows)), strict=True):
            made[table.key[0]] = row_id
    return [tuple(made) for made in rows]


def _fit(target: TableRows, position: int) -> Fit:
    """The column's converter: lengths, precisions, ranges and NULL, with the same errors as the Python API's."""
    column = target.table.columns[position]
    convert = target.codec.converter(column.name)
    if column.type.kind != "json":
        return convert

    def fit(value: object) -> Value:
        # A value of the engine is JSON text already; the converter would take it for a string to encode.
        return convert(None) if value is None else value  # type: ignore[return-value]  # it is a value

    return fit


# --- ON CONFLICT ---


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A row that is there, and the one that was to be inserted."""

    key: bytes
    there: Values
    proposed: Values


def _told_apart(
    tx: Transaction, target: TableRows, rows: Iterable[Values], conflict: BoundConflict
) -> tuple[list[Values], list[_Conflict]]:
    """The rows that can be inserted, and those that meet one that is there. Of rows of the statement that meet each
    other, the first is inserted: for DO NOTHING the others are left out, for DO UPDATE they are an error."""
    table = target.table
    sets = [table.key, *(unique.columns for unique in table.uniques)]
    if conflict.target is not None:
        sets = [columns for columns in sets if set(columns) == set(conflict.target)]
    fresh: list[Values] = []
    seen: list[set[tuple[Value, ...]]] = [set() for _ in sets]
    conflicts = []
    for row in rows:
        met = next((found for columns in sets if (found := _row_there(tx, target, columns, row))), None)
        if met is not None:
            conflicts.append(_Conflict(target.codec.key(met), met, row))
            continue
        values = [tuple(row[position] for position in columns) for columns in sets]
        if any(None not in value and value in before for value, before in zip(values, seen, strict=True)):
            if conflict.update is not None:
                raise _second_time(conflict)
            continue
        for value, before in zip(values, seen, strict=True):
            before.add(value)
        fresh.append(row)
    return fresh, conflicts


def _row_there(tx: Transaction, target: TableRows, columns: tuple[int, ...], row: Values) -> Values | None:
    if columns == target.table.key:
        # A key that was just made cannot be there.
        return None if has_row_id(target.table) else tx._row(target, target.codec.key(row))
    wanted = {position: row[position] for position in columns}
    if any(value is None for value in wanted.values()):
        return None
    found = tx._find(target, wanted)
    return found[0] if found else None


def _updated(
    tx: Transaction, target: TableRows, conflicts: Sequence[_Conflict], conflict: BoundConflict
) -> dict[bytes, Values]:
    """What DO UPDATE makes of the rows that are there, by their present keys."""
    assert conflict.update is not None, "DO NOTHING changes nothing"
    if not conflicts:
        return {}
    shown = target.table.visible()
    # In front of both rows stands the number of the conflict: WHERE leaves some out.
    rows = tuple(
        (number, *(met.there[p] for p in shown), *(met.proposed[p] for p in shown))
        for number, met in enumerate(conflicts)
    )
    relation: Relation = ValuesRelation(rows, (Field("", INT, False), *conflict.fields))
    if conflict.where is not None:
        relation = Filter(relation, _moved(conflict.where))
    outputs = [Output("", ColumnRef(0, 0, "", INT, False), False)]
    outputs += [Output("", _moved(expression), True) for _, expression in conflict.update]
    fits = [(position, _fit(target, position)) for position, _ in conflict.update]
    changed: dict[bytes, Values] = {}
    try:
        computed = _computed(Project(relation, tuple(outputs)))
    except DataError as error:
        raise _failed_update(error, target.table, conflicts, conflict) from None
    for number, *values in computed:
        met = conflicts[number]  # type: ignore[index]  # the number that was put there
        if met.key in changed:
            raise _second_time(conflict)
        changed[met.key] = _with_values(target.table, met.there, fits, values)
    return changed


def _with_values(
    table: Table, there: Values, fits: Sequence[tuple[int, Fit]], values: Sequence[Value]
) -> tuple[Value, ...]:
    """The row with new values, as its columns take them."""
    row = list(there)
    try:
        for (position, fit), value in zip(fits, values, strict=True):
            row[position] = fit(value)
    except (DataError, IntegrityError) as error:
        raise type(error)(f"{row_name(table, there)}, {error.message}", hint=error.hint) from None
    return tuple(row)


def _failed_update(
    error: DataError, table: Table, conflicts: Sequence[_Conflict], conflict: BoundConflict
) -> DataError:
    """The first row and column of DO UPDATE that cannot be computed."""
    from .changetables.evaluate import evaluate

    shown = table.visible()
    parts = [] if conflict.where is None else [("condition", conflict.where)]
    parts += [(_column_name(table, position), expression) for position, expression in conflict.update or ()]
    for met in conflicts:
        row = (*(met.there[p] for p in shown), *(met.proposed[p] for p in shown))
        for name, expression in parts:
            try:
                value = evaluate(expression, row)
            except DataError as found:
                return DataError(f"{row_name(table, met.there)}, {name}: {found.message}", hint=found.hint)
            if name == "condition" and value is not True:
                break
    return error


def _moved(expression: Expression) -> Expression:
    """The expression over rows that have one more column in front."""
    if isinstance(expression, ColumnRef):
        return ColumnRef(0, expression.position + 1, expression.name, expression.type, expression.nullable)
    if isinstance(expression, Call):
        return Call(expression.op, tuple(map(_moved, expression.args)), expression.type)
    return expression


def _second_time(conflict: BoundConflict) -> ProgrammingError:
    line, column = conflict.place
    return ProgrammingError(
        f"ON CONFLICT DO UPDATE cannot affect a row a second time at line {line}, column {column}",
        hint="no two rows of one INSERT may have the same key",
    )


# --- UPDATE and DELETE ---


def update_rows(tx: Transaction, statement: Update, parameters: Parameters) -> int:
    from .changetables.sql.writes import bound_update

    tables = _tables(tx)
    bound = bound_update(statement, tables, parameters)
    target = tx._table(bound.table.name)
    key_count = len(bound.table.key)
    fits = [(position, _fit(target, position)) for position in bound.positions]
    changed: dict[bytes, Values] = {}
    columns = [_column_name(bound.table, position) for position in (*bound.table.key, *bound.positions)]
    rows = list(read_relation(tx, bound.relation, tables, columns))
    keys = [target.codec.keys.encode_checked(tuple(found[:key_count])) for found in rows]
    tx._ltm.fetch(target.versions, keys, tx._begin())
    for found, key in zip(rows, keys, strict=True):
        there = tx._row(target, key)
        assert there is not None, "it was read at the same snapshot"
        changed[key] = _with_values(target.table, there, fits, found[key_count:])
    _change(tx, target, changed, list(changed.values()))
    return len(changed)


def delete_rows(tx: Transaction, statement: Delete, parameters: Parameters) -> int:
    from .changetables.sql.writes import bound_delete

    tables = _tables(tx)
    bound = bound_delete(statement, tables, parameters)
    target = tx._table(bound.table.name)
    encode = target.codec.keys.encode_checked
    keys = [encode(tuple(found)) for found in read_relation(tx, bound.relation, tables)]
    _change(tx, target, keys, ())
    return len(keys)


# --- the one way to write ---


def _change(tx: Transaction, target: TableRows, gone: Collection[bytes], rows: Sequence[Values]) -> None:
    """Take away the rows with these keys and put these rows there, or raise and change nothing."""
    keys = [target.codec.key(row) for row in rows]
    there = dict(zip(keys, rows, strict=True))
    if len(there) < len(keys):
        seen: set[bytes] = set()
        for key in keys:
            if key in seen:
                raise tx._duplicate(target, key)
            seen.add(key)
    known = tx._request.writes.get(target.table.name)
    if not gone and known is None and tx._snapshot is None and target.versions.surely_absent(keys):
        tx._write(target, {key: (ABSENT, row, None, True) for key, row in there.items()})
        return
    intents: dict[bytes, Intent] = {}
    for key in gone:
        before = tx._intent(target, key)
        if key in there:
            intents[key] = (PRESENT if before is None else before[0], there.pop(key), None, True)
        elif before is None:
            intents[key] = (PRESENT, None, None, True)
        else:
            # What this transaction itself inserted leaves no trace but its expectation.
            intents[key] = (before[0], None, None, before[0] != ABSENT)
    intents.update(tx._inserts(target, list(there), list(there.values()), known or {}))
    tx._write(target, intents)
