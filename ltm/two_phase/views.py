"""What a participant does with the refresh of a view row: the view's own operator, found by its id."""

from __future__ import annotations

from ...changetables.refresh import Contribution
from ...changetables.types import Row
from ..tables import Tables
from .messages import Refresh
from .participant import RefreshRow


def refresh_with(tables: Tables) -> RefreshRow:
    """The refresh operators of all views of a catalog."""
    views = tables.views_by_id

    def refresh_row(refresh: Refresh, row: Row | None) -> Row | None:
        return views[refresh[0]].plan.refresh(row, Contribution(*refresh[1:]))

    return refresh_row
