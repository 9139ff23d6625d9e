"""Views of the local layout: how many partial rows they have (`ltm/partial_rows.py`).

What a transaction must know of a view row before it commits is the sum of partial rows that other LTMs own: to look at
it would bring all of them into the transaction, and hold what others add to. So nothing may need it. Kept in one
partial row, however many LTMs there are, is

    a deferred view                   no writer refreshes it, so there is nobody for whom a partial row would be nearer
    the first rows of an order        which rows are among them is told by all rows
    what needs hidden views           those are kept as one row (for MIN and MAX, outer joins, EXISTS, ...)
    outputs that may fail             a writer is refused if it would leave a row that cannot be shown

`explain` says which. What is made from a view is told what its rows showed before and after: where it has several
partial rows that is refused, and so is making it a deferred one.
"""

from __future__ import annotations

from dataclasses import replace

from ..changetables.algebra import scans
from ..changetables.errors import UnsupportedView
from ..changetables.keeping import keep
from ..changetables.plan import compile_view
from ..ltm.catalog import SYNC, Catalog, View
from ..ltm.tables import Planned, Tables

GLOBAL, LOCAL = "global", "local"
LAYOUTS = (GLOBAL, LOCAL)
#: Every read adds up all partial rows: with more LTMs, several have one in common.
PARTIALS_MAX = 64


def laid_out(view: View, tables: Tables, ltms_count: int) -> View:
    """A view that is not in the catalog yet, with as many others beside the first partial row as there are LTMs.
    UnsupportedView if it is made from one that has several."""
    for scan in scans(view.relation):
        source = tables.views.get(scan.table)
        if source is not None and source.view.partials:
            raise UnsupportedView(
                f"a view over {scan.table!r}, which has partial rows (layout='local')",
                place=scan.place,
                hint=f"make it from the tables of {scan.table!r}, or create that one with layout='global'",
            )
    return view if why_one_row(view, tables) else replace(view, partials=(0,) * (_count(ltms_count) - 1))


def check_switch(view: View, refresh: str) -> None:
    if view.partials and refresh != SYNC:
        raise UnsupportedView(
            f"a deferred view with partial rows, which {view.name!r} would become",
            hint="create it again with layout='global'",
        )


def told(view: View, tables: Tables) -> str:
    """For `explain`; "" where there is nothing to tell."""
    if view.layout != LOCAL:
        return ""
    if view.partials:
        return f"layout: local, {1 + len(view.partials)} partial rows"
    return f"layout: local, one partial row: {why_one_row(view, tables) or 'there was one LTM'}"


def _count(ltms_count: int) -> int:
    return min(ltms_count, PARTIALS_MAX)


def why_one_row(view: View, tables: Tables) -> str:
    """Why a view has one row under each key; "": it may have partial rows."""
    if view.layout != LOCAL:
        return "the layout is global"
    if view.deferred:
        return "it is deferred: no writer refreshes it"
    relation = view.relation
    planned = Planned(tables)
    kept = keep(relation, planned)
    if kept.kind in ("ordered", "slice"):
        return "the first rows of an order"
    if kept.extremes:
        return "MIN and MAX, which are read from a hidden view"
    if any(
        name not in tables.by_name and (name not in tables.views or tables.views[name].view.hidden)
        for name in kept.reads
    ):
        return "a query that needs a hidden view (outer joins, EXISTS, subqueries, DISTINCT inside aggregates)"
    if compile_view("(not created)", 0, relation, planned).fallible:
        return "expressions around aggregates that can fail"
    return ""


def with_partials(tables: Tables, ltms_count: int) -> Catalog | None:
    """With partial rows for LTMs that were not there when a view was created, None if there are enough. Those of fewer
    LTMs stay: they have rows."""
    catalog = tables.catalog
    for view in tables.catalog.views.values():
        missing = _count(ltms_count) - 1 - len(view.partials)
        if missing <= 0 or catalog.readers_of(view.name) or why_one_row(view, tables):
            continue
        added = range(catalog.next_id, catalog.next_id + missing)
        catalog = catalog.with_view(replace(view, partials=(*view.partials, *added)))
    return None if catalog is tables.catalog else catalog
