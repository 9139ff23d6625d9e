"""What blind inserts into a table do to its views, in few steps; what they are joined with is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from ..changetables.plan import Answers, Inserting, LookUp
from ..changetables.refresh import Columns, by_columns
from ..changetables.types import Row
from ..ltm.tables import TableRows, Tables
from ..ltm.versions import RowVersions

#: Joined rows that are remembered for each view. They are kept in memory, whatever the cache does.
KNOWN_ROWS_MAX = 10_000

LookingUp: TypeAlias = Callable[[list[LookUp]], Answers]


class TakingIn:
    """Made anew with every catalog. Writers call it, one at a time.

    Most new rows refer to rows that others referred to before, of a table that hardly ever changes. What was found for
    a value stays true as long as nobody has written to that table. So it is looked up here in one step: from the value
    to its key and from the key through the layers of versions takes a dozen cold cache lines a row.
    """

    __slots__ = ("_changed_ts", "_inserting", "_joined", "_known", "_tables", "view_id")

    def __init__(self, view_id: int, inserting: Inserting, tables: Tables) -> None:
        self.view_id = view_id
        self._inserting = inserting
        self._tables = tables
        #: The table that is looked into by key, once it was.
        self._joined: RowVersions | None = None
        self._changed_ts = 0
        self._known: dict[object, object] = {}

    def contributions(self, rows: list[Row], look_up: LookingUp) -> Columns | None:
        """None: these rows are none of those that it is for."""
        joined, (ask, add, values, _, _, _, columns_known) = self._joined, self._inserting
        asked = rows
        if (
            joined is not None
            and joined.changed_ts == self._changed_ts
            and values is not None
            and columns_known is not None
        ):
            try:
                return columns_known(rows, self._known)
            except KeyError:
                if len(self._known) <= KNOWN_ROWS_MAX:
                    asked = [row for row, value in zip(rows, values(rows), strict=True) if value not in self._known]
        wanted = ask(asked)
        if wanted is None:
            return None
        answers = look_up(wanted) if wanted else ()
        if columns_known is not None:
            self._remember(wanted[0].table, asked, answers)
            if asked is not rows:
                return columns_known(rows, self._known)
        return by_columns(add(rows, answers))

    def _remember(self, name: str, rows: list[Row], answers: Answers) -> None:
        values, table = self._inserting.values, self._tables.by_name.get(name)
        if table is None or values is None:
            return  # what a view shows changes in other ways, too
        joined = table.versions
        if joined is not self._joined or joined.changed_ts != self._changed_ts or len(self._known) > KNOWN_ROWS_MAX:
            self._joined, self._changed_ts, self._known = joined, joined.changed_ts, {}
        self._known.update(zip(values(rows), answers[0], strict=True))


def taking_in(table: TableRows, tables: Tables) -> tuple[TakingIn, ...] | None:
    """What takes a blind insert into the views of a table, if there is no more to it; else None."""
    if not table.inserts_known:
        found = inserts_of(table)
        if found is not None:
            table.inserts = tuple(TakingIn(view_id, inserting, tables) for view_id, inserting in found)
        table.inserts_known = True
    return cast("tuple[TakingIn, ...] | None", table.inserts)


def inserts_of(table: TableRows) -> list[tuple[int, Inserting]] | None:
    """The views of a table with the functions that take in new rows, if a blind insert is only that: nobody judges the
    rows, no view is read by another one, and all views take them in at once. Else None."""
    if table.check is not None or table.table.uniques:
        return None
    found: list[tuple[int, Inserting]] = []
    for view in table.views:
        inserting = view.plan.inserting(table.table.name)
        if inserting is None or view.views or (view.plan.extremes and view.is_read):
            return None
        found.append((view.view.id, inserting))
    return found
