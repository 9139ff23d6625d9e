"""What the shell prints: results as tables or JSON, errors with a caret under what is wrong."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, TextIO, TypeAlias

from .changetables.errors import Error
from .rows import Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: A line, or the columns and rows of a table.
Part: TypeAlias = str | tuple[Sequence[str], Sequence[Sequence[object]]]

#: Wide enough that no table of a script's output is ever wrapped.
_WIDTH_CHARACTERS = 1_000_000
_NUMBERS = (int, float, Decimal)
_PLACE = re.compile(r" at line (\d+), column (\d+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Output:
    """Prints to a terminal or a file. `limit` rows of a result are shown at the most, 0 for all."""

    def __init__(self, out: TextIO, err: TextIO, *, as_json: bool, limit: int) -> None:
        self._out = out
        self._err = err
        self._as_json = as_json
        self._limit = limit
        self._console: Console | None = None

    def result(self, tag: str, result: Result) -> None:
        """`tag` says what was done, as psql does: "INSERT 3"."""
        if self._as_json:
            plain = self._plain(result)
            self._print(json_text(plain, self._out))
            if "shown" in plain:
                self.note(f"{plain['shown']} of {result.rowcount} rows are printed; --limit 0 prints all")
        elif result.columns:
            self._table(result)
        else:
            self._print(tag)

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._print(printable(line))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table of the shell's own."""
        if self._as_json:
            self._print(json_text({"columns": list(columns), "rows": [list(row) for row in rows]}, self._out))
        else:
            self._grid(columns, rows)

    def page(self, parts: Iterable[Part]) -> None:
        """Lines and tables, once."""
        for part in parts:
            if isinstance(part, str):
                self._print(printable(part))
            else:
                self._grid(*part)

    def watch(self, page: Callable[[], Iterable[Part]], pause: Callable[[], None]) -> None:
        """Show a page in its place again and again, until Ctrl-C."""
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(console=self._rich(), auto_refresh=False) as live:
            try:
                while True:
                    made = [Text(printable(part)) if isinstance(part, str) else _table(*part) for part in page()]
                    live.update(Group(*made), refresh=True)
                    pause()
            except KeyboardInterrupt as interrupt:
                if interrupt.args not in ((), (signal.SIGINT,)):
                    raise  # not Ctrl-C, but an end from outside

    def error(self, error: Error, text: str, first_line: int = 1) -> None:
        """`text` is what was run, its first line being this one of the whole input."""
        for line in error_lines(error, text, first_line):
            print(printable(line), file=self._err)

    def note(self, text: str) -> None:
        print(text, file=self._err)

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _shown(self, result: Result) -> list[tuple[object, ...]]:
        rows = result[: self._limit] if self._limit else list(result)
        width = len(result.columns)
        # By position: the columns of a query may share a name.
        return [tuple(row[position] for position in range(width)) for row in rows]

    def _table(self, result: Result) -> None:
        rows = self._shown(result)
        self._grid(result.columns, rows)
        count = result.rowcount
        note = f"({count} row{'' if count == 1 else 's'})"
        if len(rows) < count:
            note = f"({len(rows)} of {count} rows; --limit shows more)"
        self._print(note)

    def _grid(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._rich().print(_table(columns, rows))

    def _rich(self) -> Console:
        if self._console is None:
            from rich.console import Console

            terminal = self._out.isatty()
            self._console = Console(file=self._out, width=None if terminal else _WIDTH_CHARACTERS, highlight=False)
        return self._console

    def _plain(self, result: Result) -> dict[str, object]:
        rows = self._shown(result)
        plain: dict[str, object] = {"rowcount": result.rowcount}
        if result.columns:
            plain["columns"] = list(result.columns)
            plain["rows"] = [[json_value(value) for value in row] for row in rows]
            if len(rows) < result.rowcount:
                plain["shown"] = len(rows)
        return plain


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    # Imported here: --help and --json need none of it.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ASCII2, show_edge=False, header_style="bold")
    for position, name in enumerate(columns):
        values = [row[position] for row in rows if row[position] is not None]
        numbers = bool(values) and all(isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in values)
        table.add_column(Text(printable(name)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("NULL", style="dim") if value is None else Text(cell(value)) for value in row))
    return table


def printable(text: str) -> str:
    """The text without anything that moves the cursor or changes what else is seen: data must not write to a terminal
    as if it were the shell."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cell(value: object) -> str:
    """A value as PostgreSQL would write it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case bytes():
            return f"\\x{value.hex()}"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case float() if math.isnan(value):
            return "NaN"
        case Decimal():
            return f"{value:f}"
        case datetime.datetime():
            return value.isoformat(sep=" ")
        case dict() | list():
            return printable(json.dumps(value, ensure_ascii=False))
        case _:
            return printable(str(value))


def json_value(value: object) -> object:
    """A value in JSON. What JSON has no form for is text: decimals, to stay exact; bytes as base64."""
    match value:
        case None | bool() | int() | str() | dict() | list():
            return value
        case float():
            return value if math.isfinite(value) else cell(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime() | datetime.date():
            return value.isoformat()
        case _:
            return cell(value)


def json_text(value: object, out: TextIO) -> str:
    """As people read it. Where the encoding of the output lacks a character, JSON's own escapes stand for all of them:
    a program that reads it gets what there was, not a replacement."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(out, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text


def error_lines(error: Error, text: str, first_line: int = 1) -> list[str]:
    """The message, the line that it is about with a caret under the place, and the hint."""
    place = place_of(error)
    message = _PLACE.sub("", error.message, count=1) if place else error.message
    lines = [f"ERROR: {message}"]
    written = text.split("\n")
    if place is not None and 1 <= place[0] <= len(written):
        line, column = place
        head = f"LINE {first_line + line - 1}: "
        # Tabs stay tabs, so that the caret stands under its word whatever their width.
        before = "".join("\t" if character == "\t" else " " for character in written[line - 1][: column - 1])
        lines += [f"{head}{written[line - 1]}", f"{' ' * len(head)}{before}^"]
    if error.hint:
        lines.append(f"HINT: {error.hint}")
    return lines


def place_of(error: Error) -> tuple[int, int] | None:
    """Where in the text an error is, as its message says."""
    found = _PLACE.search(error.message)
    return (int(found[1]), int(found[2])) if found else None
