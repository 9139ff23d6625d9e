"""`db.sql` and `tx.sql`: the statements of a text, run in a database or inside a transaction.

A text is parsed whole before its first statement runs. What stands between two statements that change tables or views
is one transaction; each of those commits by itself. A statement reads everything that it needs before it writes
anything, so it happens whole or not at all, and it sees nothing of what it writes itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from .changetables.algebra import Relation, scans
from .changetables.errors import InterfaceError, NotSupportedError, ProgrammingError
from .changetables.schema import Table
from .changetables.statements import (
    SCHEMA_STATEMENTS,
    TRANSACTION_STATEMENTS,
    AlterTable,
    AlterView,
    Begin,
    Commit,
    CreateIndex,
    CreateTable,
    CreateView,
    Delete,
    DropIndex,
    DropTable,
    DropView,
    Explain,
    ExplainView,
    Insert,
    RefreshView,
    Rollback,
    Savepoint,
    SchemaStatement,
    Script,
    Select,
    Statement,
    Truncate,
    Update,
)
from .changetables.types import STR
from .reads import Reads, Snapshot, through_switches
from .rows import Columns, Result, Written
from .sql_reads import read_relation, tables_of
from .sql_schema import change_schema
from .sql_writes import delete_rows, insert_rows, update_rows
from .transaction import Transaction

if TYPE_CHECKING:
    from .changetables.builder import Query
    from .changetables.sql import Parameters, ParameterValues
    from .database import Database

    Params: TypeAlias = ParameterValues | None

#: Texts whose statements are remembered: parsing costs more than running a small statement does.
SCRIPTS_REMEMBERED = 256
#: Longer texts are parsed each time; they would take the memory of many.
SCRIPT_CHARACTERS_REMEMBERED = 4_096

_READS = (Select, Explain, ExplainView)


def parse(text: str) -> Script:
    """The statements of a text."""
    if not isinstance(text, str):
        raise InterfaceError(f"SQL is text, not {type(text).__name__}", hint='like "SELECT 1"')
    return _remembered(text) if len(text) <= SCRIPT_CHARACTERS_REMEMBERED else _parse(text)


def _parse(text: str) -> Script:
    # Imported here, as everywhere: sqlglot takes longer to import than everything else.
    from .changetables.sql.statements import parse_script

    return parse_script(text)


_remembered = functools.lru_cache(maxsize=SCRIPTS_REMEMBERED)(_parse)


def prepared(text: str, params: Params) -> tuple[tuple[Statement, ...], Parameters]:
    """The statements and parameters of a text for `sql()`, which has at least one statement and no BEGIN."""
    script = parse(text)
    from .changetables.sql.writes import bound_parameters

    parameters = bound_parameters(script, params)
    if not script.statements:
        raise ProgrammingError("the SQL text is empty", hint="write a statement")
    for statement in script.statements:
        if isinstance(statement, TRANSACTION_STATEMENTS):
            raise ProgrammingError(
                f"BEGIN, COMMIT, ROLLBACK and SAVEPOINT are not for sql(){_where(statement)}",
                hint="use db.transaction(); the statements of one text are one transaction already",
            )
    return script.statements, parameters


def _where(statement: Statement) -> str:
    return f" at line {statement.place[0]}, column {statement.place[1]}"


# --- db.sql ---


def run(database: Database, text: str, params: Params = None) -> Result:
    """`db.sql`: the result of the last statement."""
    statements, parameters = prepared(text, params)
    result: Result = Written(0)
    for group in groups(statements):
        result = run_group(database, group, parameters)
    return result


def groups(statements: Iterable[Statement]) -> Iterator[list[Statement]]:
    """What is run together: each statement that changes tables or views alone, the others between them."""
    for _, group in itertools.groupby(enumerate(statements), key=_group_of):
        yield [statement for _, statement in group]


def _group_of(item: tuple[int, Statement]) -> int:
    number, statement = item
    return number if isinstance(statement, SCHEMA_STATEMENTS) else -1


def run_group(database: Database, group: Sequence[Statement], parameters: Parameters) -> Result:
    first = group[0]
    if isinstance(first, SCHEMA_STATEMENTS):
        change_schema(database, first)
        return Written(0)
    if only_reads(group):
        return through_switches(lambda: _run_reads(database, group, parameters))
    used: list[Transaction] = []

    def work(tx: Transaction) -> Result:
        used[:] = [tx]
        return run_rows(tx, group, parameters)

    result = database.run(work)
    if isinstance(result, Written):
        result.watermark = used[0].token.commit_ts
    return result


def _run_reads(database: Database, group: Sequence[Statement], parameters: Parameters) -> Result:
    with database.snapshot() as snapshot:
        return run_rows(snapshot, group, parameters)


def is_schema_change(group: Sequence[Statement]) -> bool:
    return isinstance(group[0], SCHEMA_STATEMENTS)


def only_reads(group: Iterable[Statement]) -> bool:
    return all(isinstance(statement, _READS) for statement in group)


# --- tx.sql ---


def run_in(tx: Transaction, text: str, params: Params = None) -> Result:
    """`tx.sql`: the same inside a transaction."""
    tx._check_open()
    statements, parameters = prepared(text, params)
    for statement in statements:
        if isinstance(statement, SCHEMA_STATEMENTS):
            raise ProgrammingError(
                f"a transaction cannot change tables and views{_where(statement)}",
                hint="use db.sql(): each of these statements commits by itself",
            )
    return run_rows(tx, statements, parameters)


def run_in_snapshot(snapshot: Snapshot, text: str, params: Params = None) -> Result:
    """`snapshot.sql`: statements that only read."""
    snapshot._check_open()
    statements, parameters = prepared(text, params)
    for statement in statements:
        if not only_reads([statement]):
            raise ProgrammingError(
                f"a snapshot is read-only{_where(statement)}", hint="use db.sql() or a transaction to write"
            )
    return run_rows(snapshot, statements, parameters)


# --- statements that read and write rows ---


def run_rows(reads: Snapshot | Transaction, statements: Iterable[Statement], parameters: Parameters) -> Result:
    result: Result = Written(0)
    for statement in statements:
        result = _run_one(reads, statement, parameters)
    return result


def _run_one(reads: Snapshot | Transaction, statement: Statement, parameters: Parameters) -> Result:
    if isinstance(statement, Select):
        return _select(reads, statement, parameters)
    if isinstance(statement, Explain | ExplainView):
        return _lines(reads, _explained(reads, statement, parameters))
    assert isinstance(reads, Transaction), "a snapshot is given reads only"
    if isinstance(statement, Insert):
        return Written(insert_rows(reads, statement, parameters))
    if isinstance(statement, Update):
        return Written(update_rows(reads, statement, parameters))
    if isinstance(statement, Delete):
        return Written(delete_rows(reads, statement, parameters))
    assert isinstance(statement, Truncate), "all others were refused before"
    deletes = [Delete(name.place, name, None, None) for name in statement.names]
    return Written(sum(delete_rows(reads, delete, parameters) for delete in deletes))


def _select(reads: Reads, statement: Select, parameters: Parameters) -> Result:
    from .changetables.sql.writes import bound_select

    reads._begin()
    tables = tables_of(reads)
    return _result(reads, bound_select(statement, tables, parameters), tables)


def _result(reads: Reads, relation: Relation, tables: Mapping[str, Table]) -> Result:
    columns = Columns([(field.name, field.type) for field in relation.fields])
    found = read_relation(reads, relation, tables)
    known = reads._tables
    names = [scan.table for scan in scans(relation)]
    return reads._result(columns, found, [known.source(name) for name in names if name in tables])


def run_query(reads: Reads, query: Query, start: Mapping[str, object] | None) -> Result:
    """`join`: a query of the builder, from the rows that `start` names on."""
    from .sql_reads import started

    reads._begin()
    tables = tables_of(reads)
    relation = query.bind(tables)
    return _result(reads, relation if start is None else started(relation, start, tables), tables)


# --- EXPLAIN ---


def _lines(reads: Reads, text: str) -> Result:
    columns = Columns([("plan", STR)])
    return reads._result(columns, [(line,) for line in text.splitlines()])


def _explained(reads: Reads, statement: Explain | ExplainView, parameters: Parameters) -> str:
    from .changetables.execute import explain_query
    from .changetables.sql.writes import bound_delete, bound_insert, bound_select, bound_update, bound_view, placed_in
    from .database import Database
    from .view import View

    reads._begin()
    tables = tables_of(reads)
    if isinstance(statement, ExplainView):
        return View(reads._node, statement.name.text).explain()
    inner = statement.statement
    if isinstance(inner, CreateView):
        bound_view(inner.query, tables)  # for its errors only: here they tell the place in the whole text
        with placed_in(inner.query):
            return Database(reads._node).explain_view(inner.query.text)
    if isinstance(inner, Select):
        return explain_query(bound_select(inner, tables, parameters), tables)
    if isinstance(inner, Insert):
        bound = bound_insert(inner, tables, parameters)
        head = f"insert into {bound.table.name}"
        return head if bound.relation is None else f"{head}\n{explain_query(bound.relation, tables)}"
    if isinstance(inner, Update):
        changed = bound_update(inner, tables, parameters)
        return f"update {changed.table.name}\n{explain_query(changed.relation, tables)}"
    gone = bound_delete(inner, tables, parameters)
    return f"delete from {gone.table.name}\n{explain_query(gone.relation, tables)}"


# --- the shell ---


class Session:
    """Statements one by one, with BEGIN, COMMIT and ROLLBACK, as a person types them. It belongs to one thread.

    After an error inside a transaction, everything but its end is refused, as PostgreSQL does: what was meant to happen
    together must not happen in part because nobody looked at an error.
    """

    #: The last statement was left, and is carried out all the same.
    goes_on = False

    def __init__(self, database: Database) -> None:
        from .changetables.sql import Parameters

        self._database = database
        self._tx: Transaction | None = None
        self._parameters = Parameters()
        self.failed = False

    @property
    def in_transaction(self) -> bool:
        return self._tx is not None

    def execute(self, statement: Statement, text: str = "") -> Result:
        """`text`: where the statement stands; a shell of a served node needs it."""
        if isinstance(statement, Commit | Rollback):
            return self._finish(statement)
        if self.failed:
            raise statements_refused()
        try:
            return self._run(statement)
        except BaseException:  # Ctrl-C too: nobody knows how far the statement came
            self.failed = self._tx is not None
            raise

    def close(self) -> None:
        if self._tx is not None:
            self._tx.rollback()
        self._tx, self.failed = None, False

    def _run(self, statement: Statement) -> Result:
        if isinstance(statement, Savepoint):
            raise NotSupportedError(
                f"savepoints: not supported{_where(statement)}", hint="use one transaction for each part"
            )
        if isinstance(statement, Begin):
            if self._tx is not None:
                raise ProgrammingError("there is already a transaction in progress", hint="COMMIT; or ROLLBACK; first")
            self._tx = self._database.transaction()._unbound()  # A served node runs its sessions in any thread.
            return Written(0)
        if self._tx is None:
            return run_group(self._database, [statement], self._parameters)
        if isinstance(statement, SCHEMA_STATEMENTS):
            raise ProgrammingError(
                f"a transaction cannot change tables and views{_where(statement)}", hint="COMMIT; or ROLLBACK; first"
            )
        return run_rows(self._tx, [statement], self._parameters)

    def _finish(self, statement: Commit | Rollback) -> Result:
        tx, failed = self._tx, self.failed
        self._tx, self.failed = None, False
        if tx is None:
            raise ProgrammingError("there is no transaction in progress", hint="BEGIN; starts one")
        if isinstance(statement, Rollback):
            tx.rollback()
            return Written(0)
        if failed:
            tx.rollback()
            raise not_committed()
        return Written(0, tx.commit().commit_ts)


def statements_refused() -> ProgrammingError:
    return ProgrammingError("the transaction has failed: statements are refused until its end", hint="ROLLBACK;")


def not_committed() -> ProgrammingError:
    """What COMMIT is answered after a failure."""
    return ProgrammingError(
        "the transaction had failed, so it was rolled back, not committed", hint="run all its statements again"
    )


_TAGS: dict[type[Statement], str] = {
    CreateTable: "CREATE TABLE",
    AlterTable: "ALTER TABLE",
    DropTable: "DROP TABLE",
    CreateIndex: "CREATE INDEX",
    DropIndex: "DROP INDEX",
    CreateView: "CREATE MATERIALIZED VIEW",
    AlterView: "ALTER MATERIALIZED VIEW",
    RefreshView: "REFRESH MATERIALIZED VIEW",
    DropView: "DROP MATERIALIZED VIEW",
    Begin: "BEGIN",
    Commit: "COMMIT",
    Rollback: "ROLLBACK",
}


def tag_of(statement: Statement, result: Result) -> str:
    """What was done, in a word: "INSERT 3"."""
    tag = _TAGS.get(type(statement))
    return tag if tag is not None else f"{type(statement).__name__.upper()} {result.rowcount}"


__all__ = [
    "SchemaStatement",
    "Session",
    "Written",
    "groups",
    "is_schema_change",
    "only_reads",
    "parse",
    "prepared",
    "run",
    "run_group",
    "run_in",
    "run_query",
    "run_rows",
    "tag_of",
]
