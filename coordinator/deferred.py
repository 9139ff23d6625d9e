"""Creates deferred views, and switches views between sync and deferred, while writers go on.

Creating: at S the views are registered and the log is kept; their contents as of S are computed in the background, and
S becomes their watermark. Views that are made from deferred ones join their group: it waits at S meanwhile.

Switching: hidden views are refreshed when the views that they are kept for are, so those of the new mode are made
first. Then, between two transactions, the view's group is brought to that very moment S and the catalog is changed:
what is stored is the view as of S, whichever way it is refreshed afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..changetables.algebra import Relation, scans
from ..changetables.errors import ProgrammingError, UnsupportedView
from ..changetables.keeping import Kept, keep
from ..changetables.plan import needed_indexes
from ..changetables.schema import Index
from ..ltm.catalog import SYNC, Catalog, Earlier, View
from ..ltm.driver import Ltm
from ..ltm.steps import Published
from ..ltm.tables import Planned, Tables
from .batch import fill
from .build import all_empty, build_index, create_sync, create_view, take_back
from .embedded import Engine
from .refresher import Refresher
from .turns import Turns

_builders = itertools.count(1)
_READER = -(1 << 51)


def create(engine: Engine, refresher: Refresher, view: View, evaluator: str | None = None) -> None:
    """Make a view of any mode, and first the hidden views and the indexes that it needs. Its id does not count.
    `evaluator`: by which its contents are computed; None: by the one that is expected to be ready first."""
    if not view.deferred:
        _refuse_sync_on_deferred(engine, view)
        create_view(engine, view, evaluator)
        return
    scope = f"group {view.group}" if view.group else f"view {engine.ltm.tables.catalog.next_id}"
    view = replace(view, scope=scope)
    planned = Planned(engine.ltm.tables, scope)
    hidden = planned.needed(keep(view.relation, planned))
    views = [_hidden(view, name, relation) for name, relation in hidden.items()]
    _create_deferred(engine, refresher, [*views, view], evaluator)


def _hidden(view: View, name: str, relation: Relation) -> View:
    # Its text is the name of the view that it was made for: errors call it so until that is there.
    return View(0, name, relation, view.refresh, view.name, scope=view.scope)


def _refuse_sync_on_deferred(engine: Engine, view: View) -> None:
    planned = Planned(engine.ltm.tables)
    reads = set(keep(view.relation, planned).reads)
    for _, _, kept in planned.missing.values():
        reads.update(kept.reads)
    below = [name for name in reads if _is_deferred(engine.ltm.tables, name)]
    if below:
        raise UnsupportedView(
            f"view {view.name!r} cannot be sync: {', '.join(map(repr, sorted(below)))} is deferred",
            place=next((scan.place for scan in scans(view.relation) if scan.table in below), None),
            hint="make it deferred too, or switch the view that it reads to sync",
        )


def _is_deferred(tables: Tables, name: str) -> bool:
    rows = tables.views.get(name)
    return rows is not None and rows.view.deferred


# --- creating ---


def _create_deferred(engine: Engine, refresher: Refresher, views: list[View], evaluator: str | None = None) -> None:
    """`views`: each after those that it reads; all get one watermark."""
    _make_indexes(engine, refresher, views)
    together = refresher.members(
        {*_below(engine, views), *_of_groups(engine.ltm.tables.catalog, {view.group for view in views} - {""})}
    )
    reader = _READER - next(_builders)
    ltm = engine.ltm
    with refresher.held(together):
        try:
            with ltm.lock:
                refresher.step_now(together)
                empty = _register(engine, views, together, reader)
                position, at = ltm.log_pins[reader], ltm.horizon.pins[reader]
                if together and not empty:
                    refresher.forward(together, at)
            if not empty:
                _compute(engine, [view.name for view in views], together, at, position, evaluator)
        except BaseException:
            take_back(engine, Catalog.without_unfinished)
            raise
        finally:
            ltm.horizon.unpin(reader)
            ltm.log_pins.pop(reader, None)


def _below(engine: Engine, views: list[View]) -> set[str]:
    tables = engine.ltm.tables
    new = {view.name for view in views}
    read: set[str] = set()
    for kept in _kept(Planned(tables, views[-1].scope), views):
        read |= {*kept.reads} - new
    return {name for name in read if _is_deferred(tables, name)}


def _kept(planned: Planned, views: list[View]) -> Iterator[Kept]:
    """How views are kept, each of which may be made from hidden ones before it that are not there yet."""
    for view in views:
        if view.hidden:
            planned.inner(view.relation)
        yield keep(view.relation, planned)


def _of_groups(catalog: Catalog, groups: set[str]) -> list[str]:
    return [view.name for view in catalog.views.values() if view.group in groups]


def _make_indexes(engine: Engine, refresher: Refresher, views: list[View]) -> None:
    """The indexes of tables and views that are there already. Those of the new views come with them."""
    planned = Planned(engine.ltm.tables, views[-1].scope)
    new = {view.name for view in views}
    for kept in _kept(planned, views):
        for owner, positions in needed_indexes(kept, {name: planned.table(name) for name in kept.sources}):
            if owner in new:
                continue
            known = engine.ltm.tables.source(owner).index_on(positions)
            if known is None or not known.index.ready:
                with refresher.held([owner]):
                    build_index(engine, owner, positions, for_views=True)


def _register(engine: Engine, views: list[View], together: set[str], reader: int) -> bool:
    """Put the views into the catalog; True if there is nothing to compute, so that they are ready at once, together
    with the views that they move with. The caller holds the lock."""
    ltm = engine.ltm
    position = ltm.last_lsn
    empty = True

    def add(_: Catalog, ts: int) -> Tables:
        nonlocal empty
        tables = ltm.tables
        made = []
        for view in views:
            kept = keep(view.relation, Planned(tables, view.scope))
            needs = needed_indexes(kept, {name: tables.table(name) for name in kept.sources})
            catalog = tables.catalog
            for owner, positions in needs:
                if owner in made and tables.source(owner).index_on(positions) is None:
                    catalog = catalog.with_index(owner, Index(catalog.next_id, positions, for_views=True))
            view = replace(view, id=catalog.next_id, reads=kept.reads, needs=needs)
            tables = Tables(catalog.with_view(view), ltm.horizon, tables)
            made.append(view.name)
            plan = tables.views[view.name].plan
            shows = plan.always and (plan.fallible or view.name != views[-1].name)
            empty = empty and not plan.has_constants and not shows and all_empty(engine, plan)
        return Tables(_ready(tables.catalog, made, ts), ltm.horizon, tables) if empty else tables

    def published(catalog: Catalog, ts: int) -> list[Published]:
        names = [*(view.name for view in views), *together]
        return [Published(_ids(catalog, names), 0, ts, position)] if empty else []

    ltm.log_pins[reader] = position
    engine.change_catalog_locked(add, pin=reader, published=published)
    return empty


def _ready(catalog: Catalog, names: Iterable[str], ts: int) -> Catalog:
    for name in names:
        catalog = catalog.with_view(replace(catalog.views[name], ready_ts=ts))
    return catalog


def _ids(catalog: Catalog, names: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted(catalog.views[name].id for name in names))


def _compute(
    engine: Engine, names: list[str], together: set[str], at: int, position: int, evaluator: str | None
) -> None:
    """The contents as of `at`, then they are ready. The views that they move with are there already."""
    ltm = engine.ltm
    turns = Turns(ltm.lock, lambda: engine.commits_count)
    with turns:
        for name in names:
            fill(engine, ltm.tables.views[name], at, turns, evaluator)
    engine.checkpoint()
    ids = _ids(ltm.tables.catalog, [*names, *together])
    engine.change_catalog_at(
        lambda catalog, _: _ready(catalog, names, at), published=lambda _, __: [Published(ids, 0, at, position)]
    )


# --- switching ---


def switch(engine: Engine, refresher: Refresher, name: str, refresh: str) -> None:
    """Change how a view is refreshed."""
    view = engine.ltm.tables.catalog.views[name]
    if view.deferred and refresh != SYNC:
        with refresher.held([name]):
            engine.change_catalog(lambda catalog: catalog.with_view(replace(catalog.views[name], refresh=refresh)))
    elif view.deferred:
        _to_sync(engine, refresher, view)
    elif refresh != SYNC:
        _to_deferred(engine, refresher, view, refresh)


def _to_sync(engine: Engine, refresher: Refresher, view: View) -> None:
    below = [name for name in view.reads if _is_deferred(engine.ltm.tables, name)]
    users = sorted(name for name in _users_below(engine.ltm.tables.catalog, below))
    if users:
        raise ProgrammingError(
            f"view {view.name!r} cannot become sync: it is made from {', '.join(map(repr, users))}, which is deferred",
            hint="switch what it is made from first",
        )
    planned = Planned(engine.ltm.tables)
    hidden = planned.needed(keep(view.relation, planned))
    try:
        for name, relation in hidden.items():
            create_sync(engine, View(0, name, relation, SYNC, view.name))
        _make_indexes(engine, refresher, [replace(view, scope="")])
        _change_mode(engine, refresher, view, SYNC, "", set())
    except BaseException:
        take_back(engine, Catalog.without_unused)
        raise


def _users_below(catalog: Catalog, names: Iterable[str]) -> set[str]:
    """The views of users among these, and those that hidden ones are made from."""
    found: set[str] = set()
    for name in names:
        view = catalog.views[name]
        if view.hidden:
            found |= _users_below(catalog, [each for each in view.reads if each in catalog.views])
        elif view.deferred:
            found.add(name)
    return found


def _to_deferred(engine: Engine, refresher: Refresher, view: View, refresh: str) -> None:
    tables = engine.ltm.tables
    readers = [each.name for each in tables.catalog.readers_of(view.name) if not each.deferred]
    if readers:
        raise ProgrammingError(
            f"view {view.name!r} cannot be deferred: {', '.join(map(repr, readers))} is sync and made from it",
            hint="make those deferred first",
        )
    scope = f"view {view.id}"
    planned = Planned(tables, scope)
    hidden = planned.needed(keep(view.relation, planned))
    made = replace(view, refresh=refresh, scope=scope)
    try:
        if hidden:
            _create_deferred(engine, refresher, [_hidden(made, name, relation) for name, relation in hidden.items()])
        # Those of the hidden views too, which only the view itself looks into.
        _make_indexes(engine, refresher, [made])
        _change_mode(engine, refresher, view, refresh, scope, set(hidden))
    except BaseException:
        take_back(engine, Catalog.without_unused)
        raise


def _change_mode(engine: Engine, refresher: Refresher, view: View, refresh: str, scope: str, hidden: set[str]) -> None:
    """Between two transactions, with the view exactly there."""
    ltm = engine.ltm
    together = {view.name, *hidden}
    together |= {each.name for each in ltm.tables.catalog.readers_of(view.name) if each.deferred}
    together |= {*_of_groups(ltm.tables.catalog, {view.group} - {""})}
    together |= refresher.members(together)
    with refresher.held(together), ltm.lock:
        refresher.step_now(together)
        position = ltm.last_lsn

        def change(catalog: Catalog, ts: int) -> Catalog:
            now = catalog.views[view.name]
            kept = keep(now.relation, Planned(ltm.tables, scope))
            needs = needed_indexes(kept, {name: ltm.tables.table(name) for name in kept.sources})
            earlier = _with_earlier(ltm, now, ts)
            changed = replace(now, refresh=refresh, scope=scope, reads=kept.reads, needs=needs, earlier=earlier)
            return catalog.with_view(changed).in_order().without_unused()

        def published(catalog: Catalog, ts: int) -> list[Published]:
            names = [name for name in together if name in catalog.views and catalog.views[name].deferred]
            return [Published(_ids(catalog, names), 0, ts, position)] if names else []

        engine.change_catalog_locked(change, published=published)


def _with_earlier(ltm: Ltm, view: View, ts: int) -> tuple[Earlier, ...]:
    """What the view was until now, for whoever reads its changes from the log."""
    values = tuple(values.view.id for values in ltm.tables.views[view.name].values)
    oldest_ts = ltm.oldest_ts() or ts
    return (*(each for each in view.earlier if each.until > oldest_ts), Earlier(ts, view.deferred, values))
