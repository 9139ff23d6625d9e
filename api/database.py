"""The database as users hold it: tables, views, transactions."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from .changetables.algebra import Keyed, Relation
from .changetables.branches import is_hidden
from .changetables.builder import Query
from .changetables.errors import (
    Error,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    StaleRead,
)
from .changetables.explain import explain
from .changetables.keys import table_range
from .changetables.plan import ViewPlan, compile_view
from .changetables.rewriting import positions
from .changetables.rows import coerce
from .changetables.schema import Column, Index, Table
from .changetables.types import type_of
from .config import CACHE_ROWS, HISTORY, Config, usual_ltms
from .coordinator.local_layout import LAYOUTS, laid_out
from .coordinator.ports import Managing
from .freshness import TargetLag, check_token, levels_of, refresh_text
from .ltm.catalog import SYNC, Catalog, without_views
from .ltm.catalog import View as CatalogView
from .ltm.reading import NEWEST
from .ltm.tables import Planned
from .names import nearest
from .node import open_directory, open_memory
from .ports import OpenNode
from .reads import AlignedSnapshot, Snapshot, is_there, sources, unknown_table, view_rows
from .retries import backoffs_ms, changes_catalog
from .row_ids import ROW_ID
from .rows import Result, Token
from .status import DatabaseStatus
from .table import Table as TableHandle
from .targets import MEMORY, ZK, check_options, name_of, scheme_of
from .transaction import Transaction
from .view import View

if TYPE_CHECKING:
    from .changetables.sql import ParameterValues
    from .sql import Session

P = ParamSpec("P")
T = TypeVar("T")

#: `run` gives up after this long unless told otherwise.
RUN_DEADLINE_MS = 10_000

_NAME_BYTES_MAX = 255

#: A table of the engine's own, which any client makes that writes from Spark (`spark.loading`).
SPARK_NOTES = "~spark"


def is_retried(error: Error) -> bool:
    """Whether `run` tries again. A read that was not fresh enough has waited already."""
    return error.retryable and not isinstance(error, StaleRead)


def column(type: object, *, nullable: bool = True, default: object = None) -> ColumnSpec:
    """A column with more to say than its type: `vt.column(int, nullable=False, default=0)`."""
    return ColumnSpec(type, nullable, default)


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    type: object
    nullable: bool
    default: object


def connect(
    target: str | os.PathLike[str],
    *,
    cache_rows: int = CACHE_ROWS,
    view_managers: int = 1,
    history: str | float = HISTORY,
    history_bytes: int | None = None,
    ltms: int | None = None,
    keys: str | os.PathLike[str] | None = None,
    server_key: str = "",
    insecure: bool = False,
) -> Database:
    """Open a database: a directory (created if missing), "memory:" for a new private one, one on a served node,
    "tcp://host:port" or "ipc://path", or that of a cluster: "zk://host:port,host:port/path".

    `ltms`: how many local transaction managers share the keys; with several, transactions take two phases. Without it,
    the environment variable VIEWTIDE_LTMS tells, else it is one.
    `view_managers`: how many of them share the work of refreshing deferred views. `history`: for how long `changes()`
    of views can be read again, as long as the log takes no more than about `history_bytes` (256 MiB, in memory 32 MiB).
    All of them are the node's own where the database is served. `keys`, the file of one's own key, and `server_key`,
    the public key of the node, are for a node that is not on this machine; of a cluster ZooKeeper knows those.
    `insecure`: a node on another machine is taken without keys, for private networks only.
    """
    config = Config(cache_rows, view_managers, history, history_bytes, usual_ltms() if ltms is None else ltms)
    name = name_of(target)
    scheme = scheme_of(name)
    said = replace(config, ltms=1 if ltms is None else ltms)
    changed = {each.name: None for each in fields(said) if getattr(said, each.name) != each.default}
    check_options(name, scheme, changed, keys=keys, server_key=server_key, insecure=insecure)
    if scheme == ZK:
        from .remote_cluster import connect_cluster

        return connect_cluster(name.removeprefix("zk://"), keys)
    if scheme:
        # Imported here: a database in this process needs no network.
        from .remote import connect_remote

        return connect_remote(name, keys, server_key, insecure=insecure)
    return Database(open_memory(config) if name == MEMORY else open_directory(Path(name), config))


class Database:
    """An open database; many threads may share it. Close it, or use it as a context manager."""

    def __init__(self, node: OpenNode) -> None:
        self._node = node
        self._engine = node.engine
        self._changing = node.changing

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self._node.name!r}{', closed' if self._node.closed else ''})"

    def close(self) -> None:
        """Checkpoint and let go of the directory. Everything that was acknowledged is safe without it, too."""
        self._node.close()

    # -- transactions

    def transaction(self) -> Transaction:
        """`with db.transaction() as tx:` commits at the end, rolls back on an exception."""
        if self._node.closed:
            self._node.check_open()
        return Transaction(self._node)

    def snapshot(
        self,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        views: Sequence[str] = (),
    ) -> Snapshot:
        """`with db.snapshot() as s:` reads many tables and views at one timestamp.

        Deferred views are read at their watermarks, each as fresh as the levels ask for. `views`: names of deferred
        views that are brought to one new watermark, at which tables and all views that are never behind are read, too.
        """
        self._node.check_open()
        levels = levels_of(at_least, latest, max_lag)
        check_token(self._node, levels.at_least_ts)
        if isinstance(views, str) or not isinstance(views, Sequence):
            raise InterfaceError("views must be a list of names", hint=f"like views=[{views!r}]")
        return AlignedSnapshot(self._node, levels, tuple(views)) if views else Snapshot(self._node, levels)

    def run(
        self,
        function: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function(tx, ...)` in a transaction and commit; conflicts are retried with backoff until a deadline.

        The function may run more than once, so it should have no other effects than its transaction's.
        """
        if not callable(function):
            raise InterfaceError(
                f"run takes a function, not {type(function).__name__}", hint="like db.run(lambda tx: tx.get(...))"
            )
        if inspect.iscoroutinefunction(function):
            raise InterfaceError(
                "run takes a plain function", hint="use viewtide.aio.connect() for coroutine functions"
            )
        give_up = time.monotonic() + RUN_DEADLINE_MS / 1000
        for backoff_ms in backoffs_ms():
            try:
                with self.transaction() as tx:
                    return function(tx, *args, **kwargs)
            except Error as error:
                if not is_retried(error) or time.monotonic() + backoff_ms / 1000 > give_up:
                    raise
            time.sleep(backoff_ms / 1000)
        raise AssertionError("backoffs never end")

    def transactional(self, function: Callable[Concatenate[Transaction, P], T]) -> Callable[P, T]:
        """Decorator: every call runs as `run` does; the function gets the transaction as its first argument."""

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.run(function, *args, **kwargs)

        return call

    def sql(self, text: str, params: ParameterValues | None = None) -> Result:
        """Run the statements of a text; the result is that of the last one. They are one transaction, but each that
        changes tables or views commits by itself."""
        from .sql import run

        return run(self, text, params)

    # -- tables

    @changes_catalog
    def create_table(
        self,
        name: str,
        columns: Mapping[str, object],
        key: str | Sequence[str] | None = None,
        indexes: Iterable[str | Sequence[str]] = (),
    ) -> None:
        """Create a table: columns are types (int, str, ...), SQL type names, or `vt.column(...)`.

        Without a key each row gets a hidden row id: rows may be equal, and only SQL can change or delete them.
        """
        self._node.check_open()
        if name != SPARK_NOTES:
            _check_name("table", name)
        if not isinstance(columns, Mapping) or not columns:
            raise InterfaceError("columns must be a mapping of name to type", hint='like {"id": int, "name": str}')
        made = tuple(_column(name, column_name, spec) for column_name, spec in columns.items())
        if key is None:
            made = (ROW_ID, *made)
        draft = Table(0, name, made, ())
        key_positions = (0,) if key is None else _positions(draft, key)
        made = tuple(replace(item, nullable=item.nullable and i not in key_positions) for i, item in enumerate(made))
        if isinstance(indexes, str):
            raise InterfaceError("indexes must be a list", hint=f"like indexes=[{indexes!r}]")
        wanted = [_positions(draft, index) for index in indexes]
        if len(set(wanted)) != len(wanted):
            raise ProgrammingError(f"table {name!r} has the same index twice", hint="name each index once")
        with self._changing:
            catalog = self._catalog()
            self._check_free(name)
            first = catalog.next_id
            made_indexes = tuple(Index(first + 1 + n, positions) for n, positions in enumerate(wanted))
            table = Table(first, name, made, key_positions, made_indexes)
            self._engine.change_catalog(lambda before: before.with_table(table))

    def drop_table(self, name: str) -> None:
        """Drop a table that no view needs."""
        if name in self.views():
            raise ProgrammingError(f"{name!r} is a view", hint=f"drop it with db.drop_view({name!r})")
        self._drop((), (name,))

    @changes_catalog
    def add_column(self, table: str, name: str, type: object) -> None:
        """Add a column online; rows that exist have its default, or NULL."""
        with self._changing:
            before = self._table(table)
            _check_name("column", name)
            if before.position(name) is not None:
                raise ProgrammingError(
                    f"table {table!r} has a column {name!r} already",
                    hint="choose another name, or drop that column first",
                )
            added = _column(table, name, type)
            after = replace(before, columns=(*before.columns, added))

            def change(catalog: Catalog) -> Catalog:
                # Between two transactions: no row can slip in after the look.
                if not added.nullable and not added.has_default and self._has_rows(table):
                    raise IntegrityError(
                        f"column {name!r} is NOT NULL and table {table!r} has rows", hint="give it a default"
                    )
                return catalog.with_table(after)

            self._engine.change_catalog(change)

    @changes_catalog
    def drop_column(self, table: str, name: str) -> None:
        """Drop a column that neither the key nor a view needs, with its indexes, unique constraints and checks."""
        with self._changing:
            before = self._table(table)
            position = _position(before, name)
            if position in before.key:
                raise ProgrammingError(
                    f"column {name!r} is part of the primary key of table {table!r}",
                    hint="make a new table with another key, and move the rows",
                )
            indexes = [index for index in before.indexes if position in index.columns]
            used = {(table, index.columns) for index in indexes}
            users = self._users(
                table,
                lambda plan: (table, position) in plan.columns_read or not used.isdisjoint(plan.needed_indexes),
            )
            self._refuse_dependents(f"drop column {name!r} of table {table!r}", users)
            dropped = replace(before.columns[position], dropped=True, nullable=True)
            columns = (*before.columns[:position], dropped, *before.columns[position + 1 :])
            # A condition on a column goes with it, as in PostgreSQL, and so does an index or a constraint that has it.
            checks = tuple(check for check in before.checks if position not in positions(check.condition))

            def change(catalog: Catalog) -> Catalog:
                for index in indexes:
                    catalog = catalog.without_index(table, index)
                after = replace(catalog.tables[table], columns=columns, checks=checks)
                return catalog.with_table(after)

            self._engine.change_catalog(change)

    @changes_catalog
    def create_index(self, table: str, columns: str | Sequence[str]) -> None:
        """Index columns of a table; its contents are computed while writers go on."""
        with self._changing:
            before = self._table(table)
            self._create_index(before, _positions(before, columns))

    @changes_catalog
    def drop_index(self, table: str, columns: str | Sequence[str]) -> None:
        """Drop an index that no view needs."""
        with self._changing:
            before = self._table(table)
            positions = _positions(before, columns)
            index = next((index for index in before.indexes if index.columns == positions), None)
            if index is None:
                raise ProgrammingError(f"table {table!r} has no index on {columns!r}", hint=_index_hint(before))
            unique = next((each for each in before.uniques if each.columns == positions), None)
            if unique is not None:
                raise ProgrammingError(
                    f"constraint {unique.name!r} of table {table!r} needs the index on {columns!r}",
                    hint=f"db.sql('DROP INDEX {unique.name}') drops both",
                )
            users = self._users(table, lambda plan: (table, positions) in plan.needed_indexes)
            self._refuse_dependents(f"drop index {columns!r} of table {table!r}", users)
            self._engine.change_catalog(lambda catalog: catalog.without_index(table, index))

    def table(self, name: str) -> TableHandle:
        """A handle to load rows in bulk with."""
        return TableHandle(self, name)

    def tables(self) -> list[str]:
        """The names of all tables. The engine's own are not among them."""
        return [name for name in self._catalog().tables if not is_hidden(name)]

    # -- views

    @changes_catalog
    def create_view(
        self,
        name: str,
        definition: str | Query,
        *,
        refresh: str | TargetLag = "sync",
        layout: str = "global",
        key: str | Sequence[str] | None = None,
        group: str = "",
        backlog_rows: int = 0,
        backlog_bytes: int = 0,
        evaluator: str | None = None,
    ) -> View:
        """Register a view by SQL or by the builder; its contents are computed while writers go on.

        `key` names outputs that the rows are kept under instead of the keys of their tables: `get` then finds the first
        row with these values, and scans go in their order. `layout="local"` keeps one partial row per LTM, which
        are summed at read: a transaction then needs no other LTM for the view. What is read is the same.

        `refresh`: "sync", an interval such as "500ms", "manual", or `vt.target_lag("2s")`. Deferred views with the same
        `group` are always at one watermark. One that is more than `backlog_rows` changed rows or `backlog_bytes` of the
        log behind is computed anew instead (0: a limit that suits most).

        `evaluator` forces what computes the contents over existing rows: "rows", "columns" or "spark" (the extra
        `spark`). None: whichever is expected to be ready first; its status says which it was, and why.
        """
        mode = refresh_text(refresh)
        _check_deferred(mode, group, backlog_rows, backlog_bytes)
        if layout not in LAYOUTS:
            raise InterfaceError(
                f"layout must be 'global' or 'local', not {layout!r}", hint="leave it out for 'global'"
            )
        with self._changing:
            self._node.check_open()
            _check_name("view", name)
            self._check_free(name)
            relation = self._bind(definition)
            if key is not None:
                relation = Keyed(relation, _output_positions(relation, key))
            text = definition if isinstance(definition, str) else repr(definition)
            view = CatalogView(
                0,
                name,
                relation,
                mode,
                text,
                layout=layout,
                group=group,
                backlog_rows=backlog_rows,
                backlog_bytes=backlog_bytes,
            )
            view = laid_out(view, self._engine.ltm.tables, len(self._engine.ltm_names))
            self._node.admin.create_view(view, evaluator)
        return View(self._node, name)

    def drop_view(self, name: str, *, cascade: bool = False) -> None:
        """Drop a view; with `cascade`, also the views that are made from it."""
        self._drop((name,), (), cascade=cascade, otherwise="or use cascade=True")

    def view(self, name: str) -> View:
        """A handle to read the view with."""
        return View(self._node, name)

    def views(self) -> list[str]:
        """The names of all views."""
        self._node.check_open()
        return [name for name, rows in self._engine.ltm.newest_tables().views.items() if is_there(rows)]

    def explain_view(self, definition: str | Query) -> str:
        """The propagation plan that a view would have, or UnsupportedView with the reason and its place."""
        relation = self._bind(definition)
        planned = Planned(self._engine.ltm.tables)
        plan = compile_view("(not created)", 0, relation, planned)
        return explain(plan, planned.plans(), self._engine.ltm.fan_out)

    @property
    def view_managers(self) -> Managing:
        """Those who refresh the deferred views: add, remove, assign, withdraw, status."""
        self._node.check_open()
        return self._node.refresher.managers

    def status(self) -> DatabaseStatus:
        """Figures of the database: what it holds, what it did, what of its log is kept, its view managers."""
        engine = self._engine
        log = engine.log_figures()
        return DatabaseStatus(
            self._node.name,
            len(self.tables()),
            len(self.views()),
            engine.commits_count,
            engine.flushes_count,
            engine.checkpoints_count,
            log.replayed,
            log.oldest,
            log.newest,
            log.bytes,
            engine.ltm_names,
            tuple(self._node.refresher.managers.status()),
        )

    # -- inside

    def _session(self) -> Session:
        """Statements one by one, for the shell."""
        from .sql import Session

        return Session(self)

    def _catalog(self) -> Catalog:
        self._node.check_open()
        return self._engine.ltm.newest_tables().catalog

    def _table(self, name: str) -> Table:
        table = self._catalog().tables.get(name) if isinstance(name, str) else None
        if table is None:
            raise unknown_table(name, self._engine.ltm.tables)
        return table

    def _check_free(self, name: str) -> None:
        catalog = self._catalog()
        for kind, names in (("table", catalog.tables), ("view", catalog.views)):
            if name in names:
                raise ProgrammingError(f"there is a {kind} {name!r} already", hint="choose another name, or drop it")

    def _bind(self, definition: str | Query) -> Relation:
        tables = self._sources()
        if isinstance(definition, str):
            # Imported here: sqlglot takes longer to import than everything else.
            from .changetables.sql import parse_view

            return parse_view(definition, tables)
        if isinstance(definition, Query):
            return definition.bind(tables)
        raise InterfaceError(
            f"a view is defined by SQL text or vt.query(...), not {type(definition).__name__}",
            hint='like "SELECT id FROM events"',
        )

    def _sources(self) -> dict[str, Table]:
        """What a query can read: tables, and views as tables."""
        self._node.check_open()
        return sources(self._engine.ltm.tables)

    @changes_catalog
    def _drop(self, views: Sequence[str], tables: Sequence[str], *, cascade: bool = False, otherwise: str = "") -> None:
        """Drop views and tables in one change. Without `cascade` no other view may be made from them."""
        with self._changing:
            self._node.check_open()
            named = [("table", self._table(name).name) for name in tables]
            named += [("view", view_rows(name, self._engine.ltm.tables).view.name) for name in views]
            catalog = self._catalog()
            gone = dict.fromkeys(views)
            for what, name in named:
                dependents = [view for view in catalog.readers_of(name) if view.name not in views]
                if not cascade:
                    self._refuse_dependents(f"drop {what} {name!r}", dependents, otherwise)
                gone.update((view.name, None) for view in dependents)

            def change(catalog: Catalog) -> Catalog:
                for name in gone:
                    if name in catalog.views:  # not gone with another one yet
                        catalog = without_views(catalog, name)
                for name in dict.fromkeys(tables):
                    catalog = catalog.without_table(name)
                return catalog

            self._node.admin.drop(gone, change)

    def _adopt_index(self, table: str, index: Index, name: str = "") -> None:
        """What was made for views becomes the user's own: it stays when the views go."""
        own = replace(index, for_views=False, name=name)
        self._engine.change_catalog(lambda catalog: catalog.with_index(table, own))

    def _create_index(self, table: Table, positions: tuple[int, ...]) -> None:
        known = next((index for index in table.indexes if index.columns == positions), None)
        if known is not None and known.for_views:
            self._adopt_index(table.name, known)
            return
        if known is not None:
            names = ", ".join(table.columns[position].name for position in positions)
            raise ProgrammingError(
                f"table {table.name!r} has an index on {names} already", hint="use that one, or drop it first"
            )
        self._node.admin.build_index(table.name, positions)

    def _users(self, table: str, uses: Callable[[ViewPlan], bool]) -> list[CatalogView]:
        """The views of users that use something of a table, straight or through hidden ones."""
        rows = self._engine.ltm.tables.views.values()
        users: dict[str, CatalogView] = {}
        for each in rows:
            if uses(each.plan):
                found = self._catalog().readers_of(each.view.name) if each.view.hidden else [each.view]
                users.update((view.name, view) for view in found)
        return list(users.values())

    def _refuse_dependents(self, what: str, views: Sequence[CatalogView], otherwise: str = "") -> None:
        if views:
            names = ", ".join(repr(view.name) for view in views)
            depend, them = ("depends", "it") if len(views) == 1 else ("depend", "them")
            hint = f"drop {them} first" + (f", {otherwise}" if otherwise else "")
            raise ProgrammingError(f"cannot {what}: {names} {depend} on it", hint=hint)

    def _has_rows(self, name: str) -> bool:
        rows = self._engine.ltm.tables.by_name[name]
        newest = self._engine.ltm.scan(rows.versions, *table_range(rows.table.id), NEWEST)
        return next(newest, None) is not None


def _output_positions(relation: Relation, key: str | Sequence[str]) -> tuple[int, ...]:
    wanted = (key,) if isinstance(key, str) else tuple(map(str, key)) if isinstance(key, Iterable) else ()
    outputs = [output.name for output in relation.fields]
    if not wanted or len(set(wanted)) != len(wanted):
        raise InterfaceError(
            "the key of a view names one or more of its outputs, each once", hint='like key=["product"]'
        )
    for name in wanted:
        if name not in outputs:
            raise ProgrammingError(f"the view has no output {name!r} to be its key", hint=nearest(str(name), outputs))
    return tuple(outputs.index(name) for name in wanted)


def _check_deferred(refresh: str, group: object, backlog_rows: object, backlog_bytes: object) -> None:
    if not isinstance(group, str):
        raise InterfaceError(f"group must be a name, not {group!r}", hint="give its name as text, or leave it out")
    for name, limit in (("backlog_rows", backlog_rows), ("backlog_bytes", backlog_bytes)):
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise InterfaceError(
                f"{name} must be a whole number of at least 0, not {limit!r}",
                hint="leave it out for a limit that suits most",
            )
    if refresh == SYNC and (group or backlog_rows or backlog_bytes):
        raise InterfaceError(
            "group and backlog limits are for deferred views", hint="leave them out, or give refresh='500ms'"
        )


def _check_name(what: str, name: object) -> None:
    try:
        bytes_count = len(name.encode()) if isinstance(name, str) and "\0" not in name else 0
    except UnicodeEncodeError:
        bytes_count = 0
    if not 0 < bytes_count <= _NAME_BYTES_MAX:
        raise InterfaceError(
            f"a {what} name must be text of 1 to {_NAME_BYTES_MAX} bytes, not {name!r}", hint="choose another name"
        )
    if is_hidden(str(name)):
        raise InterfaceError(f"{name!r}: names that begin with ~ are the engine's own", hint="choose another name")


def _column(table: str, name: str, spec: object) -> Column:
    _check_name("column", name)
    if not isinstance(spec, ColumnSpec):
        return Column(name, type_of(spec))
    made = Column(name, type_of(spec.type), bool(spec.nullable))
    if spec.default is None:
        return made
    return replace(made, default=coerce(made, spec.default, f"{table}.{name}"), has_default=True)


def _positions(table: Table, columns: str | Sequence[str]) -> tuple[int, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Iterable) else ()
    if not names:
        raise InterfaceError(
            "a key or index needs at least one column", hint='name a column, as "id", or several, as ["a", "b"]'
        )
    positions = tuple(_position(table, name) for name in names)
    if len(set(positions)) != len(positions):
        raise ProgrammingError(f"a column stands twice in {names!r}", hint="name each column once")
    return positions


def _index_hint(table: Table) -> str:
    """The indexes that there are."""
    known = [", ".join(table.columns[position].name for position in index.columns) for index in table.indexes]
    return f"it has indexes on {' and on '.join(known)}" if known else "it has none"


def _position(table: Table, name: str) -> int:
    position = table.position(name)
    if position is None:
        known = [table.columns[visible].name for visible in table.visible()]
        raise ProgrammingError(f"table {table.name!r} has no column {name!r}", hint=nearest(name, known))
    return position
