"""Which partial row of a local view a transaction contributes to: one that an LTM owns which takes part anyway."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...changetables.keys import key_under
from ...changetables.plan import Contribution
from ...ltm.partial_rows import all_partials
from ...ltm.tables import Tables, ViewRows


def placed(
    contributions: Sequence[tuple[int, list[Contribution]]],
    tables: Tables,
    logs: Collection[str],
    owner: Callable[[bytes], str],
) -> list[tuple[int, list[Contribution]]]:
    """Contributions to the first partial rows of views, each moved to the partial row that one of `logs` owns, the
    first of them that owns any. Where none does, it stays: any partial row is right."""
    found: list[tuple[int, list[Contribution]]] = []
    home = next(iter(logs))
    for view_id, items in contributions:
        view = tables.views_by_id[view_id]
        if not view.partials:
            found.append((view_id, items))
            continue
        by_id: dict[int, list[Contribution]] = {}
        number = view_id
        for item in items:
            key = key_under(number, item.key)
            if owner(key) != home:  # else it is as for the last one
                number, key = _nearest(view, item.key, logs, owner)
            by_id.setdefault(number, []).append(item._replace(key=key))
        found += by_id.items()
    return found


def _nearest(view: ViewRows, key: bytes, logs: Collection[str], owner: Callable[[bytes], str]) -> tuple[int, bytes]:
    owned: dict[str, tuple[int, bytes]] = {}
    for each in all_partials(view):
        number = each.versions.table_id
        own = key_under(number, key)
        owned.setdefault(owner(own), (number, own))
    return next((owned[log] for log in logs if log in owned), (view.view.id, key))
