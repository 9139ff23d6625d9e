"""SQL statements as data: what a text asks for, before any name in it is looked up.

A text is parsed whole before its first statement runs, and a statement is bound only when its turn comes: the tables
that it names may be made by the statements before it. So names are kept as written (folded, with their places), and
expressions and queries as `Fragment`s that only the `sql` package can read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .types import Type

#: Line and column in the text, both from 1.
Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier: unquoted ones are folded to lower case already."""

    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Fragment:
    """An expression or a query of the text. `source` and `node` are the parser's; `text` is how it was written."""

    source: object
    node: object
    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class Default:
    """The word DEFAULT in the place of a value."""

    place: Place


Item: TypeAlias = Fragment | Default


# --- tables and indexes ---


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    name: Name
    type: Type
    not_null: bool = False
    default: Fragment | None = None


@dataclass(frozen=True, slots=True)
class UniqueDefinition:
    """`name` is empty if the constraint has none."""

    name: str
    columns: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class CheckDefinition:
    name: str
    condition: Fragment


@dataclass(frozen=True, slots=True)
class CreateTable:
    """`key` is None for a table without PRIMARY KEY, which gets a hidden row id."""

    place: Place
    name: Name
    columns: tuple[ColumnDefinition, ...]
    key: tuple[Name, ...] | None
    uniques: tuple[UniqueDefinition, ...]
    checks: tuple[CheckDefinition, ...]
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: ColumnDefinition
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: Name
    if_exists: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class AlterTable:
    """`if_exists` is about the table."""

    place: Place
    table: Name
    action: AddColumn | DropColumn
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DropTable:
    place: Place
    names: tuple[Name, ...]
    if_exists: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """`name` is None where the text leaves it to us."""

    place: Place
    name: Name | None
    table: Name
    columns: tuple[Name, ...]
    unique: bool
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropIndex:
    place: Place
    names: tuple[Name, ...]
    if_exists: bool


# --- rows ---


@dataclass(frozen=True, slots=True)
class Assignment:
    """`SET column = value`, or `SET (column, ...) = (value, ...)`: as many values as columns."""

    columns: tuple[Name, ...]
    values: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class OnConflict:
    """`target` are the columns in parentheses, None if there are none. `assignments` None: DO NOTHING."""

    place: Place
    target: tuple[Name, ...] | None
    assignments: tuple[Assignment, ...] | None
    where: Fragment | None


@dataclass(frozen=True, slots=True)
class Insert:
    """`rows` are those of VALUES, None where a `query` gives them; neither of them: DEFAULT VALUES."""

    place: Place
    table: Name
    alias: Name | None
    columns: tuple[Name, ...] | None
    rows: tuple[tuple[Item, ...], ...] | None
    query: Fragment | None
    conflict: OnConflict | None


@dataclass(frozen=True, slots=True)
class Update:
    place: Place
    table: Name
    alias: Name | None
    assignments: tuple[Assignment, ...]
    where: Fragment | None


@dataclass(frozen=True, slots=True)
class Delete:
    place: Place
    table: Name
    alias: Name | None
    where: Fragment | None


@dataclass(frozen=True, slots=True)
class Truncate:
    place: Place
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Select:
    place: Place
    query: Fragment


# --- views ---


@dataclass(frozen=True, slots=True)
class Option:
    """The value of an option of a view."""

    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class CreateView:
    """`query.text` is what defines the view. Options are None where the text does not say."""

    place: Place
    name: Name
    query: Fragment
    refresh: Option | None
    layout: str | None
    if_not_exists: bool
    group: str | None = None
    backlog_rows: int | None = None
    backlog_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AlterView:
    place: Place
    name: Name
    refresh: Option
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RefreshView:
    place: Place
    name: Name


@dataclass(frozen=True, slots=True)
class DropView:
    place: Place
    names: tuple[Name, ...]
    if_exists: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class ExplainView:
    """EXPLAIN MATERIALIZED VIEW name: the plan of a view that exists."""

    place: Place
    name: Name


@dataclass(frozen=True, slots=True)
class Explain:
    place: Place
    statement: Select | Insert | Update | Delete | CreateView


# --- transactions (of the shell) ---


@dataclass(frozen=True, slots=True)
class Begin:
    place: Place


@dataclass(frozen=True, slots=True)
class Commit:
    place: Place


@dataclass(frozen=True, slots=True)
class Rollback:
    place: Place


@dataclass(frozen=True, slots=True)
class Savepoint:
    """SAVEPOINT, RELEASE and ROLLBACK TO: known, so that they can be refused with a hint."""

    place: Place


TableStatement: TypeAlias = CreateTable | AlterTable | DropTable | CreateIndex | DropIndex
ViewStatement: TypeAlias = CreateView | AlterView | RefreshView | DropView
#: Each of these commits by itself.
SchemaStatement: TypeAlias = TableStatement | ViewStatement
#: These read and write in a transaction.
RowStatement: TypeAlias = Select | Insert | Update | Delete | Truncate | Explain | ExplainView
TransactionStatement: TypeAlias = Begin | Commit | Rollback | Savepoint
Statement: TypeAlias = SchemaStatement | RowStatement | TransactionStatement

SCHEMA_STATEMENTS = (
    CreateTable,
    AlterTable,
    DropTable,
    CreateIndex,
    DropIndex,
    CreateView,
    AlterView,
    RefreshView,
    DropView,
)
TRANSACTION_STATEMENTS = (Begin, Commit, Rollback, Savepoint)


@dataclass(frozen=True, slots=True)
class Script:
    """The statements of one text. `source` is the parser's: it knows the parameters."""

    text: str
    statements: tuple[Statement, ...]
    source: object
