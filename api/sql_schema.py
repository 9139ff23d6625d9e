"""Statements that change tables, indexes and views. Each commits by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .changetables.errors import InterfaceError, ProgrammingError
from .changetables.rows import coerce, to_api
from .changetables.schema import Column, Index, Table, Unique
from .changetables.statements import (
    AddColumn,
    AlterTable,
    AlterView,
    CreateIndex,
    CreateTable,
    CreateView,
    DropIndex,
    DropTable,
    DropView,
    Name,
    Option,
    RefreshView,
    SchemaStatement,
)
from .changetables.types import Value
from .freshness import refresh_text
from .ltm.catalog import Catalog
from .names import nearest
from .retries import changes_catalog
from .row_ids import ROW_ID
from .sql_writes import constants

if TYPE_CHECKING:
    from .changetables.plan import ViewPlan
    from .changetables.sql.writes import BoundColumn
    from .database import Database


@changes_catalog
def change_schema(database: Database, statement: SchemaStatement) -> None:
    match statement:
        case CreateTable():
            _create_table(database, statement)
        case AlterTable():
            _alter_table(database, statement)
        case DropTable():
            _drop_tables(database, statement)
        case CreateIndex():
            _create_index(database, statement)
        case DropIndex():
            _drop_indexes(database, statement)
        case CreateView():
            _create_view(database, statement)
        case AlterView():
            if not (statement.if_exists and statement.name.text not in database.views()):
                refresh = _refresh_text(statement.refresh)
                with _placed(statement.name):
                    database.view(statement.name.text).set_refresh(refresh)
        case RefreshView():
            with _placed(statement.name):
                database.view(statement.name.text).refresh()
        case DropView():
            _drop_views(database, statement)


def _wrong(message: str, name: Name | Option, hint: str = "") -> ProgrammingError:
    return ProgrammingError(f"{message} at line {name.place[0]}, column {name.place[1]}", hint=hint)


@contextmanager
def _placed(name: Name) -> Iterator[None]:
    """What the Python API refuses to do with a view, with the place where the text names it."""
    try:
        yield
    except ProgrammingError as error:
        raise _wrong(error.message, name, error.hint) from None


# --- tables ---


def _create_table(database: Database, statement: CreateTable) -> None:
    from .changetables.sql.writes import bound_checks, bound_column, bound_uniques
    from .database import _check_name

    name = statement.name.text
    if statement.if_not_exists and _is_taken(database, name):
        return
    _check_name("table", name)
    key = [each.text for each in statement.key or ()]
    bound = [bound_column(column, in_key=column.name.text in key) for column in statement.columns]
    columns = _columns(name, bound)
    for column in columns:
        _check_name("column", column.name)
    if statement.key is None:
        columns = (ROW_ID, *columns)
    positions = {column.name: position for position, column in enumerate(columns)}
    key_positions = tuple(positions[each] for each in key) or (0,)
    uniques = tuple(unique for unique in bound_uniques(statement, columns) if unique.columns != key_positions)
    checks = bound_checks(statement, columns)
    with database._changing:
        database._check_free(name)
        for unique in uniques:
            _check_index_name(database._catalog(), unique.name, statement.name)
        first = database._catalog().next_id
        indexes = tuple(Index(first + 1 + n, unique.columns, name=unique.name) for n, unique in enumerate(uniques))
        table = Table(first, name, columns, key_positions, indexes, uniques, checks)
        database._engine.change_catalog(lambda before: before.with_table(table))


def _is_taken(database: Database, name: str) -> bool:
    catalog = database._catalog()
    return name in catalog.tables or name in catalog.views


def _columns(table: str, bound: list[BoundColumn]) -> tuple[Column, ...]:
    """The columns with the values of their defaults."""
    values = iter(constants([each.default for each in bound if each.default is not None]))
    return tuple(
        each.column if each.default is None else _with_default(table, each.column, next(values)) for each in bound
    )


def _with_default(table: str, column: Column, value: Value) -> Column:
    if value is None:
        return column
    if column.type.kind != "json":
        value = coerce(column, value, f"{table}.{column.name}")
    return replace(column, default=value, has_default=True)


def _alter_table(database: Database, statement: AlterTable) -> None:
    from .changetables.sql.writes import bound_column
    from .database import ColumnSpec

    name = statement.table.text
    if statement.if_exists and name not in database._catalog().tables:
        return
    table = _table(database, statement.table)
    action = statement.action
    if isinstance(action, AddColumn):
        if action.if_not_exists and table.position(action.column.name.text) is not None:
            return
        (column,) = _columns(name, [bound_column(action.column)])
        default = to_api(column.type, column.default)
        database.add_column(name, column.name, ColumnSpec(column.type, column.nullable, default))
    elif not (action.if_exists and table.position(action.name.text) is None):
        database.drop_column(name, action.name.text)


def _table(database: Database, name: Name) -> Table:
    catalog = database._catalog()
    table = catalog.tables.get(name.text)
    if table is None:
        if name.text in database.views():
            raise _wrong(f"{name.text!r} is a view", name, "use ALTER or DROP MATERIALIZED VIEW")
        raise _wrong(f"there is no table {name.text!r}", name, nearest(name.text, catalog.tables))
    return table


def _drop_tables(database: Database, statement: DropTable) -> None:
    catalog = database._catalog()
    names = [each for each in statement.names if not (statement.if_exists and each.text not in catalog.tables)]
    tables = [_table(database, each).name for each in names]
    if tables:
        database._drop((), tables, cascade=statement.cascade, otherwise="or add CASCADE")


# --- indexes ---


def _create_index(database: Database, statement: CreateIndex) -> None:
    with database._changing:
        table = _table(database, statement.table)
        catalog = database._catalog()
        positions = tuple(_position(table, column) for column in statement.columns)
        if len(set(positions)) != len(positions):
            raise _wrong("a column stands twice in an index", statement.columns[0])
        if statement.name is not None and _index_named(catalog, statement.name.text) is not None:
            if statement.if_not_exists:
                return
            raise _wrong(f"there is an index {statement.name.text!r} already", statement.name)
        name = statement.name.text if statement.name is not None else _free_index_name(catalog, table, positions)
        known = next((index for index in table.indexes if index.columns == positions), None)
        if known is not None and not known.for_views:
            columns = ", ".join(column.text for column in statement.columns)
            raise _wrong(f"table {table.name!r} has an index on {columns} already", statement.columns[0])
        if statement.unique:
            database._node.admin.make_unique(table.name, Unique(name, positions))
        elif known is None:
            database._node.admin.build_index(table.name, positions, name)
        else:
            database._adopt_index(table.name, known, name)


def _position(table: Table, name: Name) -> int:
    position = table.position(name.text)
    if position is None:
        known = [table.columns[visible].name for visible in table.visible()]
        raise _wrong(f"table {table.name!r} has no column {name.text!r}", name, nearest(name.text, known))
    return position


def _without_index(catalog: Catalog, table: str, name: str) -> Catalog:
    owner = catalog.tables[table]
    index = next(index for index in owner.indexes if index_name(owner, index) == name)
    return catalog.without_index(table, index)


def _drop_indexes(database: Database, statement: DropIndex) -> None:
    with database._changing:
        found: dict[str, str] = {}
        for name in statement.names:
            known = _index_named(database._catalog(), name.text)
            if known is None:
                if statement.if_exists:
                    continue
                names = [index_name(t, index) for t in database._catalog().tables.values() for index in t.indexes]
                raise _wrong(f"there is no index {name.text!r}", name, nearest(name.text, names))
            owner, wanted = known
            users = database._users(owner.name, partial(_uses_index, table=owner.name, columns=wanted.columns))
            database._refuse_dependents(f"drop index {name.text!r}", users)
            found[name.text] = owner.name

        def change(catalog: Catalog) -> Catalog:
            for index, table in found.items():
                catalog = _without_index(catalog, table, index)
            return catalog

        if found:
            database._engine.change_catalog(change)


def _uses_index(plan: ViewPlan, table: str, columns: tuple[int, ...]) -> bool:
    return (table, columns) in plan.needed_indexes


def index_name(table: Table, index: Index) -> str:
    """Its name, or the one that PostgreSQL would give to an index that was made without."""
    return index.name or f"{table.name}_{'_'.join(table.columns[position].name for position in index.columns)}_idx"


def _index_named(catalog: Catalog, name: str) -> tuple[Table, Index] | None:
    for table in catalog.tables.values():
        for index in table.indexes:
            if index_name(table, index) == name:
                return table, index
    return None


def _free_index_name(catalog: Catalog, table: Table, positions: tuple[int, ...]) -> str:
    first = name = index_name(table, Index(0, positions))
    number = 0
    while _index_named(catalog, name) is not None:
        number += 1
        name = f"{first}{number}"
    return name


def _check_index_name(catalog: Catalog, name: str, near: Name) -> None:
    if _index_named(catalog, name) is not None:
        raise _wrong(f"there is an index {name!r} already", near, "name the constraint with CONSTRAINT")


# --- views ---


def _create_view(database: Database, statement: CreateView) -> None:
    from .changetables.sql.writes import bound_view, placed_in

    name = statement.name.text
    if statement.if_not_exists and _is_taken(database, name):
        return
    # For its errors only: here they tell the place in the whole text.
    bound_view(statement.query, database._sources())
    with placed_in(statement.query):
        database.create_view(
            name,
            statement.query.text,
            refresh="sync" if statement.refresh is None else _refresh_text(statement.refresh),
            layout=statement.layout or "global",
            group=statement.group or "",
            backlog_rows=statement.backlog_rows or 0,
            backlog_bytes=statement.backlog_bytes or 0,
        )


def _refresh_text(option: Option) -> str:
    try:
        return refresh_text(option.text)
    except InterfaceError as error:  # here it is the text that is wrong, not the call
        raise _wrong(error.message, option, error.hint) from None


def _drop_views(database: Database, statement: DropView) -> None:
    known = database.views()
    names = [each for each in statement.names if not (statement.if_exists and each.text not in known)]
    for each in names:
        if each.text not in known:
            hint = "use DROP TABLE" if each.text in database.tables() else nearest(each.text, known)
            raise _wrong(f"there is no view {each.text!r}", each, hint)
    if names:
        views = [each.text for each in names]
        database._drop(views, (), cascade=statement.cascade, otherwise="or add CASCADE")
