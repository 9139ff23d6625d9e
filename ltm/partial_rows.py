"""The local layout: a row of a view is kept as one partial row for each LTM (Agrawal, local view tables).

    V[key] = Σ over the ids of the view: the row under (id, key)

A view is a sum, and so is a partial row: all that some of its contributions add up to. Whoever contributes may choose
any partial row, and chooses one that an LTM owns which takes part anyway: so the view brings no other LTM into the
transaction. What the view shows depends on the sum alone, never on who owned which keys at what time: a partial row may
have a `_count` of zero or below.

The ids of a local view are those of its first partial rows, which is the view's own, and of the others. A key is that
of the first one everywhere; only the id in it differs from one partial row to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..changetables.keys import key_under, table_range
from ..changetables.plan import Contribution, ViewPlan
from ..changetables.types import Row
from .tables import ViewRows


def all_partials(view: ViewRows) -> tuple[ViewRows, ...]:
    """Where the rows of a view are: of the global layout in one place."""
    return (view, *view.partials)


def keys_of(view: ViewRows, key: bytes) -> list[bytes]:
    """The keys of all partial rows of a row."""
    return [key, *(key_under(each.versions.table_id, key) for each in view.partials)]


def ranges_of(view: ViewRows, start: bytes, stop: bytes) -> Iterator[tuple[ViewRows, bytes, bytes]]:
    """Where the partial rows of start <= key < stop are."""
    low, high = table_range(view.view.id)
    for each in all_partials(view):
        own_low, own_high = table_range(each.versions.table_id)
        first = own_low if start <= low else key_under(each.versions.table_id, start)
        last = own_high if stop >= high else key_under(each.versions.table_id, stop)
        if start < high and first < last:
            yield each, first, last


def total(plan: ViewPlan, states: Iterable[Row | None]) -> Row | None:
    """The row that partial rows add up to."""
    key_count = len(plan.key_columns)
    found: Row | None = None
    for state in states:
        if found is None:
            found = state
        elif state is not None:
            found = plan.refresh(found, Contribution(b"", state[:key_count], state[key_count:]))
    return found
