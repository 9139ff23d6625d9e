"""`viewtide sql`: statements from a terminal, a script or the command line, each run when its semicolon has come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from .changetables.errors import Error, ProgrammingError
from .changetables.literals import sql_name
from .changetables.schema import Column, Table
from .changetables.statements import Commit, Rollback, Statement
from .changetables.types import Type
from .names import nearest
from .rows import Result
from .shell_output import Output, cell, place_of
from .sql import not_committed, parse, statements_refused, tag_of

if TYPE_CHECKING:
    from .database import Database

PROMPT = "viewtide=> "
PROMPT_IN_TRANSACTION = "viewtide=*> "
PROMPT_FAILED = "viewtide=!> "
PROMPT_MORE = "viewtide-> "
HISTORY_LINES_MAX = 10_000
#: Names the history file; empty for none.
HISTORY_VARIABLE = "VIEWTIDE_HISTORY"

HELP = (
    "Statements end with a semicolon; BEGIN, COMMIT and ROLLBACK make a transaction of several.",
    "\\d          list tables and views",
    "\\d NAME     describe a table or view",
    "\\timing     show how long each statement takes, or stop; \\timing on, \\timing off",
    "\\?          this help",
    "\\q          quit",
)
#: What people type who know other shells: as a whole line, where a statement would begin. None begins so.
WORDS = {"help": "\\?", "exit": "\\q", "quit": "\\q"}
_SWITCHES = {"on": True, "off": False}
_KEYWORDS = """
    ALTER AND AS ASC AVG BEGIN BETWEEN BY CASE CAST CHECK COLUMN COMMIT CONFLICT COUNT CREATE CROSS DEFAULT DELETE DESC
    DISTINCT DO DROP ELSE END EXCEPT EXISTS EXPLAIN FALSE FROM FULL GROUP HAVING IN INDEX INNER INSERT INTERSECT INTO IS
    JOIN KEY LEFT LIKE LIMIT MATERIALIZED MAX MIN NOT NOTHING NULL OFFSET ON OR ORDER OUTER PRIMARY REFRESH RIGHT
    ROLLBACK SELECT SET SUM TABLE THEN TRUE TRUNCATE UNION UNIQUE UPDATE USING VALUES VIEW WHEN WHERE WITH
"""


class Shell:
    """Collects lines into statements and runs them. Every method that runs something says whether all went well."""

    def __init__(self, database: Database, output: Output) -> None:
        self._database = database
        self._session = database._session()
        self._output = output
        self._lines: list[str] = []
        self._first_line = 1
        self._line = 0
        self._timing = False
        #: The transaction has failed by a text that cannot be read: the session was never given it.
        self._unread = False
        self.quit = False

    @property
    def prompt(self) -> str:
        if self._lines:
            return PROMPT_MORE
        if self._session.failed or self._unread:
            return PROMPT_FAILED
        return PROMPT_IN_TRANSACTION if self._session.in_transaction else PROMPT

    @property
    def in_transaction(self) -> bool:
        return self._session.in_transaction

    def is_within(self, line: str) -> bool:
        """Whether it is one of WORDS, and taken for a part of the statement that is being typed."""
        return bool(self._lines) and _word(line) in WORDS

    def begin(self) -> None:
        """A text of its own begins: places are told in it."""
        self._line = 0

    def feed(self, line: str) -> bool:
        """One more line of input; runs what it completes."""
        self._line += 1
        if not self._lines:
            text = WORDS.get(_word(line), line.strip())
            if text.startswith("\\"):
                return self._command(text)
            if not text:
                return True
            self._first_line = self._line
        self._lines.append(line)
        # Only a line with a semicolon can complete a statement; looking at every line again would cost its square.
        if ";" not in line or not _complete("\n".join(self._lines)):
            return True
        return self.finish()

    def finish(self) -> bool:
        """Run what has been collected, complete or not."""
        text, self._lines = "\n".join(self._lines), []
        return self.run(text, self._first_line) if text.strip() else True

    def forget(self) -> None:
        """Drop what has been collected: Ctrl-C at the prompt."""
        self._lines = []

    def run(self, text: str, first_line: int = 1) -> bool:
        """Each statement of a text, until one fails."""
        try:
            statements = parse(text).statements
        except Error as error:
            # What stands before it is not wrong: a BEGIN there makes this an error inside a transaction.
            before = _before(text, error)
            if before.strip() and not self.run(before, first_line):
                return False
            self._unread = self._session.in_transaction
            self._output.error(error, text, first_line)
            return False
        try:
            for statement in statements:
                begin = time.perf_counter()
                result = self._execute(statement, text)
                self._output.result(tag_of(statement, result), result)
                if self._timing:
                    self._output.note(f"Time: {(time.perf_counter() - begin) * 1000:.3f} ms")
        except Error as error:
            self._output.error(error, text, first_line)
            return False
        return True

    def _told(self, statement: Statement, text: str) -> Result:
        try:
            return self._session.execute(statement, text)
        except KeyboardInterrupt:
            if self._session.goes_on:
                self._output.note("the node goes on with this statement: what it changes may still be committed")
            raise

    def _execute(self, statement: Statement, text: str) -> Result:
        if not self._unread:
            return self._told(statement, text)
        if not isinstance(statement, Commit | Rollback):
            raise statements_refused()
        self._unread = False
        rollback = parse("ROLLBACK")
        result = self._session.execute(rollback.statements[0], rollback.text)
        if isinstance(statement, Commit):
            raise not_committed()
        return result

    def close(self) -> None:
        """What was begun and not committed is rolled back."""
        if self._session.in_transaction:
            self._output.note("the open transaction is rolled back")
        self._session.close()

    # -- commands

    def _command(self, text: str) -> bool:
        name, _, argument = text.rstrip("; \t").partition(" ")
        argument = argument.strip()
        try:
            if name == "\\q":
                self.quit = True
            elif name == "\\?":
                self._output.lines(HELP)
            elif name == "\\timing" and argument and argument.lower() not in _SWITCHES:
                self._output.note(f"\\timing takes on or off, not {argument}")
                return False
            elif name == "\\timing":
                self._timing = _SWITCHES.get(argument.lower(), not self._timing)
                self._output.note(f"Timing is {'on' if self._timing else 'off'}.")
            elif name == "\\d" and argument:
                self._describe(argument)
            elif name == "\\d":
                self._list()
            else:
                self._output.note(f"unknown command {name}; \\? lists them")
                return False
        except Error as error:
            self._output.error(error, text)
            return False
        return True

    def _list(self) -> None:
        rows: list[tuple[object, ...]] = [(name, "table", "", "") for name in sorted(self._database.tables())]
        for name in sorted(self._database.views()):
            refresh, lag_ms = self._database.view(name)._age()
            rows.append((name, "materialized view", refresh, round(lag_ms)))
        self._output.table(("name", "kind", "refresh", "lag ms"), rows)

    def _describe(self, name: str) -> None:
        name = name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name
        tables, views = self._database.tables(), self._database.views()
        if name in views:
            self._describe_view(name)
            return
        if name not in tables:
            raise ProgrammingError(
                f"there is neither a table nor a view {name!r}", hint=nearest(name, [*tables, *views])
            )
        table = self._database._table(name)
        columns = [table.columns[position] for position in table.visible()]
        self._output.table(("column", "type", "nullable", "default"), [_described(column) for column in columns])
        self._output.lines(_constraints(table))

    def _describe_view(self, name: str) -> None:
        status, table = self._database.view(name).status(), self._database._sources()[name]
        behind = "" if status.mode == "sync" else f", {status.lag_ms:.0f} ms behind, {status.state}"
        self._output.lines([f"materialized view {name}, refresh {status.refresh}{behind}"])
        columns = [table.columns[position] for position in table.visible()]
        self._output.table(("column", "type", "nullable"), [_described(column)[:3] for column in columns])
        if table.key:
            self._output.lines([f"key ({', '.join(table.columns[position].name for position in table.key)})"])
        self._output.lines([status.sql])

    # -- completion

    def words(self) -> list[str]:
        """What a word of a statement may be completed to."""
        names = [*self._database.tables(), *self._database.views()]
        for name in self._database.tables():
            table = self._database._table(name)
            names += [table.columns[position].name for position in table.visible()]
        return sorted(set(names)) + sorted(_KEYWORDS.split())

    def complete(self, text: str, state: int) -> str | None:
        """readline's completer."""
        found = [word for word in self.words() if word.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None


def _complete(text: str) -> bool:
    # Imported here: sqlglot takes longer to import than everything else.
    from .changetables.sql.heads import is_complete

    return is_complete(text)


def _before(text: str, error: Error) -> str:
    """The statements before the one that cannot be read; nothing where nobody can tell which one it is."""
    from .changetables.sql.heads import split

    place = place_of(error)
    try:
        _, parts = split(text)
    except Error:  # a quote that is not closed, or the like
        return ""
    starts = [part.tokens[0].start for part in parts if place and part.place_of_offset(part.tokens[0].start) <= place]
    return text[: starts[-1]] if starts else ""


def _word(line: str) -> str:
    return line.strip().rstrip("; \t").lower()


def _described(column: Column) -> tuple[str, str, str, str]:
    default = cell(column.default) if column.has_default else ""
    return column.name, _type_name(column.type), "yes" if column.nullable else "no", default


def _type_name(type_: Type) -> str:
    """As CREATE TABLE takes it."""
    if type_.precision is not None:
        return f"numeric({type_.precision},{type_.scale or 0})"
    return f"varchar({type_.length})" if type_.length is not None else sql_name(type_)


def _constraints(table: Table) -> Iterator[str]:
    def names(positions: Iterable[int]) -> str:
        return ", ".join(table.columns[position].name for position in positions)

    if not table.columns[table.key[0]].hidden:
        yield f"primary key ({names(table.key)})"
    for index in table.indexes:
        yield f"index{f' {index.name}' if index.name else ''} ({names(index.columns)})"
    for unique in table.uniques:
        yield f"unique {unique.name} ({names(unique.columns)})"
    for check in table.checks:
        yield f"check {check.name} ({check.text})"


def run_script(shell: Shell, lines: Iterable[str]) -> bool:
    """A script: the first error ends it."""
    shell.begin()
    for line in lines:
        if not shell.feed(line.rstrip("\n")):
            return False
        if shell.quit:
            return True
    return shell.finish()


def run_terminal(shell: Shell, output: Output) -> None:
    """A person: errors are shown and it goes on, until \\q or the end of the input."""
    output.note("\\? for help, \\q to quit")
    with _history(shell):
        while not shell.quit:
            if shell.prompt != PROMPT_MORE:
                shell.begin()  # a person counts the lines of a statement, not those of an hour
            try:
                line = input(shell.prompt)
                if shell.is_within(line):
                    output.note("this is a part of your statement; end it with a semicolon, or drop it with Ctrl-C")
                shell.feed(line)
            except KeyboardInterrupt as interrupt:
                if interrupt.args not in ((), (signal.SIGINT,)):
                    raise  # not Ctrl-C, but an end from outside
                output.note("")
                shell.forget()
            except EOFError:
                output.note("")
                return


class _history:
    """History and completion by the standard library's readline, where there is one."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._path = history_path()

    def __enter__(self) -> None:
        try:
            import readline
        except ImportError:  # a Python without it: lines are read all the same
            return
        readline.set_completer(self._shell.complete)
        readline.set_completer_delims(" \t\n,;()=<>+-*/%'\".")
        readline.parse_and_bind("tab: complete")
        readline.set_history_length(HISTORY_LINES_MAX)
        if self._path is not None and _made_private(self._path):
            readline.read_history_file(self._path)

    def __exit__(self, *_: object) -> None:
        if self._path is not None and _made_private(self._path):
            import readline

            before = os.umask(0o077)
            try:
                readline.write_history_file(self._path)
            finally:
                os.umask(before)


def history_path() -> Path | None:
    named = os.environ.get(HISTORY_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    return Path.home() / ".viewtide_history"


def _made_private(path: Path) -> bool:
    """Statements hold data: only the owner may read them. False if there cannot be such a file, which stops nobody."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return True


def run_shell(
    database: Database,
    texts: Sequence[str] | None,
    *,
    as_json: bool,
    limit: int,
    source: TextIO,
    out: TextIO,
    err: TextIO,
) -> bool:
    """`texts` one after the other if there are any, else `source`: a terminal or a script. Says whether all went
    well."""
    output = Output(out, err, as_json=as_json, limit=limit)
    shell = Shell(database, output)
    try:
        if texts is None and source.isatty():
            run_terminal(shell, output)
            return True
        scripts = [source] if texts is None else [text.split("\n") for text in texts]
        fine = all(shell.quit or run_script(shell, lines) for lines in scripts)
        if fine and shell.in_transaction:
            # Whoever wrote it meant to keep what it did, and would not look again after the exit code 0.
            output.error(ProgrammingError("the input ended inside a transaction", hint="end it with COMMIT;"), "")
            return False
        return fine
    finally:
        shell.close()
