"""Catalog changes with one rule left out at a time (C1 and C2), and other known-bad variants. Each must be caught.

The names begin with the rule that is left out. What needs too much to coincide is in
tests/unit/test_cluster_catalog.py: requests to vote that wait when the catalog changes, and S that is drawn too soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from viewtide.coordinator.cluster.catalog_builder import CatalogBuilder
from viewtide.coordinator.transaction import ANY
from viewtide.coordinator.two_phase import attempt as attempts
from viewtide.coordinator.two_phase.messages import Submit
from viewtide.coordinator.vms.cluster_scheduler import ClusterScheduler
from viewtide.ltm.cluster.member import Member

from .scenario import Mutant

#: Directed scenarios, for what a drawn plan rarely does.
CALM, LAGGING, RESTARTS = "catalog-calm", "catalog-lagging", "catalog-restarts"
HASTY, SWITCHING, LOCAL_LAYOUT = "catalog-hasty", "catalog-switching", "catalog-local"
FAILING = "catalog-failing"
SEEDS_MAX = 40


def _mutant(name: str, owner: type, attribute: str, replacement: object, scenario: str = "") -> Mutant:
    def patched() -> AbstractContextManager[object]:
        return patch.object(owner, attribute, replacement)

    return Mutant(name, patched, SEEDS_MAX, scenario)


def _always(value: object) -> Callable[..., object]:
    return lambda *arguments: value


def _nothing(*arguments: object) -> Iterator[object]:
    return iter(())


_page_of_rightly = CatalogBuilder._page_of


def _page_as_of_now(self: CatalogBuilder, tables: Any, name: str, start: bytes, ts: int, first: bool) -> Any:
    return _page_of_rightly(self, tables, name, start, 0, first)


_submit_rightly = CatalogBuilder._submit


def _submit_unseen(self: CatalogBuilder, tables: Any, read: Any, what: Submit) -> Submit:
    """Entries of rows that may have changed meanwhile."""
    submit = _submit_rightly(self, tables, read, what)
    return submit._replace(seen=submit.seen[:1]) if submit.cells else submit


def _page_again(self: CatalogBuilder, view_id: int, ts: int, page: int) -> object:
    return ANY, (view_id, 5, ts, 0, page, 0, ts, 0, 0), None, True


def _counted_twice() -> AbstractContextManager[object]:
    return patch.multiple(CatalogBuilder, _page_row=_page_again, _is_there=_always(False))


_placed_rightly = attempts.placed


def _placed_near_only(contributions: Any, tables: Any, logs: Any, owner: Callable[[bytes], str]) -> Any:
    """What nobody who takes part has partial rows for is left out."""
    placed = _placed_rightly(contributions, tables, logs, owner)
    views = tables.views_by_id
    return [
        (number, [item for item in items if owner(item.key) in logs] if views[number].view.partials else items)
        for number, items in placed
    ]


def _near_only() -> AbstractContextManager[object]:
    return patch.object(attempts, "placed", _placed_near_only)


@contextmanager
def _beyond_s() -> Iterator[None]:
    """And writers go on meanwhile: if they wait for the step there is nothing beyond S."""
    with (
        patch.object(ClusterScheduler, "_w1", lambda self, each, read_at: read_at),
        patch.object(Member, "_has_to_wait", _always(False)),
    ):
        yield


MUTANTS: tuple[Mutant, ...] = (
    _mutant("C1: votes of earlier catalogs are accepted", Member, "_of_other_catalog", _always(""), HASTY),
    _mutant("C1: nothing is marked at S", Member, "_mark_opened", _always(None), HASTY),
    _mutant("C1: writers go on by a catalog that may be taken back", Member, "_has_to_wait", _always(False), FAILING),
    _mutant("C1: contents as of a later timestamp", CatalogBuilder, "_page_of", _page_as_of_now, SWITCHING),
    Mutant("contents counted twice", _counted_twice, SEEDS_MAX, RESTARTS),
    _mutant("C2: no last step of a view that becomes sync", CatalogBuilder, "_final_steps", _nothing, SWITCHING),
    Mutant("C2: the last step goes beyond S", _beyond_s, SEEDS_MAX, SWITCHING),
    _mutant("C2: a view that becomes deferred has no watermark", CatalogBuilder, "_watermarks", _nothing, SWITCHING),
    _mutant("entries of rows that changed meanwhile", CatalogBuilder, "_submit", _submit_unseen, SWITCHING),
    Mutant("contributions only to partial rows that are near", _near_only, SEEDS_MAX, LOCAL_LAYOUT),
)
