"""What a participant does with the refresh of a view row: the view's own operator, found by its id. The entries of a
deferred view's indexes are refreshed, too: they have the version of the step, as its rows do."""

from __future__ import annotations

from ...changetables.refresh import Contribution
from ...changetables.types import Row
from ..tables import Tables
from .messages import NewRow, Refresh
from .participant import RefreshRow


def refresh_with(tables: Tables) -> RefreshRow:
    """The refresh operators of all views of a catalog."""
    views, indexes = tables.views_by_id, tables.indexes

    def refresh_row(refresh: Refresh, row: Row | None) -> Row | None:
        if refresh[0] in indexes:
            return entry_after(refresh)
        return views[refresh[0]].plan.refresh(row, Contribution(*refresh[1:]))

    return refresh_row


def refresh_of_entry(index_id: int, entry: NewRow) -> Refresh:
    """An entry that comes, or goes. Of one step, or of the contents of a view, there is one for each key at the most,
    and done again it is the same."""
    key, row = entry
    return index_id, key, row or (), ()


def entry_after(refresh: Refresh) -> Row | None:
    return refresh[2] or None
