"""What a table or view was, and how it changed: through the API, whoever has the database open.

V(as_of) = V(now) - the changes since `as_of`        a change table is signed rows, so it can be taken back
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

from ..changes import Changes
from ..changetables.errors import OperationalError, StaleRead
from ..changetables.types import INT, Row
from ..coordinator.embedded import wall_clock_ms
from ..coordinator.timestamps import to_ms
from ..database import Database
from ..freshness import TOKEN_AHEAD_MS_MAX
from ..reads import Snapshot
from ..remote import RemoteChanges, RemoteDatabase
from ..remote_protocol import values_of
from ..rows import Result, Token
from ..rows import Row as ApiRow
from ..table_changes import TableChanges
from .columns import Columns
from .options import NOW, Options

#: How often a row came (negative: went), and when.
CHANGE, COMMIT_TS = "_change", "_commit_ts"
CHANGE_COLUMNS = ((CHANGE, INT), (COMMIT_TS, INT))
#: Rows that were changed since then, at the most, when it is asked what was before: they are kept in memory.
UNDONE_ROWS_MAX = 5_000_000
#: Rows of a table that the client asks for at once.
PAGE_ROWS = 10_000


def api_columns(db: Database, options: Options) -> Columns:
    with db.snapshot() as snapshot:
        header = _first(snapshot, options)._columns
    return list(zip(header.names, header.types, strict=True))


def _first(snapshot: Snapshot, options: Options) -> Result:
    """No rows, but their columns."""
    if options.is_view:
        return snapshot.view(options.name).scan(limit=0)
    return snapshot.scan(options.name, limit=0)


def newest_ts(db: Database, options: Options) -> int:
    """Everything up to it can be read: of a deferred view, its watermark."""
    with _changes(db, options, None) as changes:
        return changes.token.commit_ts


def _changes(db: Database, options: Options, since: int | None) -> Changes:
    """Those that are there by now."""
    token = None if since is None or since == NOW else Token(since)
    if options.is_view:
        return db.view(options.name).changes(token)
    if isinstance(db, RemoteDatabase):
        return RemoteChanges(db._remote, options.name, token, False, None)
    return TableChanges(db._node, options.name, token, False, None)


def changed_rows(db: Database, options: Options, since: int, up_to: int | None) -> Iterator[list[Row]]:
    """Every change of since < commit_ts <= up_to, a row with its sign and its timestamp, one commit or step a page."""
    if up_to is not None:
        _check_not_ahead(up_to)
    with _changes(db, options, since) as changes:
        for change in changes:
            if up_to is not None and change.watermark > up_to:
                return
            values = _engine_rows([row for row, _ in change.rows])
            signs = [(times, change.watermark) for _, times in change.rows]
            yield [(*row, *sign) for row, sign in zip(values, signs, strict=True)]


def rows_as_of(db: Database, options: Options) -> Iterator[list[Row]]:
    """All rows now, or as of a timestamp of the past."""
    with db.snapshot() as snapshot:
        first = _first(snapshot, options) if not options.is_view else snapshot.view(options.name).rows()
        came: Counter[Row] = Counter()
        if options.as_of is not None:
            _check_not_ahead(options.as_of)
            came = _came_since(db, options, options.as_of, first.watermark)
        for page in [_engine_rows(list(first))] if options.is_view else _table_pages(db, snapshot, options.name):
            yield [row for row in page if not _take(came, row)] if came else page
        yield [row for row, times in came.items() for _ in range(-times)]


def _came_since(db: Database, options: Options, since: int, up_to: int) -> Counter[Row]:
    """How often each row came between two timestamps; negative: went."""
    came: Counter[Row] = Counter()
    for page in changed_rows(db, options, since, up_to):
        for *row, times, _ in page:
            came[tuple(row)] += cast(int, times)
        if len(came) > UNDONE_ROWS_MAX:
            raise OperationalError(
                f"more than {UNDONE_ROWS_MAX} rows of {options.name!r} have changed since as_of={since}",
                hint="read a later timestamp",
            )
    return Counter({row: times for row, times in came.items() if times})


def _take(came: Counter[Row], row: Row) -> bool:
    """Whether a row is one of those that came later."""
    if came.get(row, 0) <= 0:
        return False
    came[row] -= 1
    return True


def _table_pages(db: Database, snapshot: Snapshot, name: str) -> Iterator[list[Row]]:
    table = db._table(name)
    key = [table.columns[position].name for position in table.key]
    if table.columns[table.key[0]].hidden:
        # Its rows have no key that a page could begin after.
        yield _engine_rows(list(snapshot.scan(name)))
        return
    after: object = None
    while True:
        # The first row of a page is the last one of the page before.
        found = list(snapshot.scan(name, after, None, PAGE_ROWS + 1))
        yield _engine_rows(found if after is None else found[1:])
        if len(found) <= PAGE_ROWS:
            return
        last = tuple(found[-1][column] for column in key)
        after = last if len(last) > 1 else last[0]


def _engine_rows(rows: list[ApiRow]) -> list[Row]:
    return values_of(rows[0]._columns, rows) if rows else []


def _check_not_ahead(ts: int) -> None:
    if to_ms(ts) > wall_clock_ms() + TOKEN_AHEAD_MS_MAX:
        raise StaleRead("as_of is ahead of the clock", hint="use a timestamp of the past")
